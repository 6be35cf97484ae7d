//! Parameters: from environment, user file, system file and defaults to one typed [`Config`].
//!
//! Nothing here reads the environment. A program passes in what it has ([`Sources`]), and prints
//! the warnings that come back:
//! `Config::load(&Sources::of_process(std::env::vars_os())?, config::read_file)`. In reading order:
//! the table is in [`defs`]; layering and the typed values are here; the syntax of files, values
//! and host lists is in the private modules.

mod account;
pub mod defs;
mod descriptors;
pub mod ending;
mod file;
mod groups;
mod hint;
pub mod hosts;
mod lists;
mod mount_point;
mod process;
mod relaunch;
mod restarting;
mod rules;
mod value;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use account::{Account, Claim};
pub use descriptors::CheckpointDescriptor;
pub use ending::Ending;
pub use hint::{HOSTS_HINT, PROCESS_HINT};
pub use hosts::expand as expand_hosts;
pub use process::read_file;
pub use relaunch::Relaunch;
pub use restarting::Restarting;

use crate::checkpoint_path;
use crate::control::{AdviceRules, JobRules, LooseRules, SealRules, Settings};
use crate::dataset::{Protection, Protections, Scheme};
use crate::pattern::NamePattern;
use crate::status::people::shortened;
use defs::{Kind, Parameter, Who};

/// Where the administrator's settings are.
pub const SYSTEM_FILE: &str = "/etc/scrfs.conf";
/// The user file's name in the prefix.
pub const USER_FILE: &str = ".scrconf";
/// A configuration file is at most this many bytes.
pub const FILE_BYTES_MAX: u64 = 1 << 20;
/// Seconds: nodes that live are silent for that long on a busy machine.
const NODE_TIMEOUT_MIN: u64 = 2;
/// Of a file that is there and is no configuration file.
const INVALID: std::io::ErrorKind = std::io::ErrorKind::InvalidData;

/// Where a value came from, for messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// An option of the program.
    Option(&'static str),
    /// The environment.
    Environment,
    /// A line of a file.
    File {
        /// Its path.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
    },
    /// The table.
    Default,
}

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Option(option) => write!(f, "option {option}"),
            Self::Environment => f.write_str("environment"),
            Self::File { path, line } => write!(f, "{}:{line}", path.display()),
            Self::Default => f.write_str("default"),
        }
    }
}

/// Why there is no configuration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// A parameter's value cannot be read.
    #[error("{origin}: {name}={}: {expected}", shortened(&format!("{text:?}")))]
    Value {
        /// Where it stands.
        origin: Origin,
        /// The parameter.
        name: String,
        /// Its text.
        text: String,
        /// What it should look like.
        expected: String,
    },
    /// An option is there without its value.
    #[error("{option} {text:?}: there is nothing in it")]
    Blank {
        /// The option.
        option: String,
        /// What was given.
        text: String,
    },
    /// A line of a file is no setting.
    #[error("{}:{line}: {problem}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// What is wrong.
        problem: String,
    },
    /// A file is there and cannot be read.
    #[error("{}: {reason}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
        /// The same for programs.
        kind: std::io::ErrorKind,
    },
}

/// What a program hands in.
#[derive(Debug, Clone)]
pub struct Sources {
    /// The environment, or what of it is to count; a program puts its own options on top
    /// ([`Sources::give`]).
    pub environment: BTreeMap<String, OsString>,
    /// Which parameters of `environment` came by an option, and by which: for messages.
    pub options: BTreeMap<&'static str, &'static str>,
    /// Its working directory: relative paths are below it, and it is the default prefix.
    pub working_directory: PathBuf,
    /// Name of the user who started it.
    pub user: String,
    /// Its host's name.
    pub host: String,
    /// The administrator started it: its environment may set everything.
    pub administrator: bool,
    /// Parameters that must be right; of others a wrong value is a warning, and they count as not
    /// set. `None`: all must be.
    pub essential: Option<&'static [&'static str]>,
    /// The user file counts. Not for what root does for a user: that file is in a place of the
    /// user's, or of others.
    pub reads_user_file: bool,
}

/// The id of the job where neither `SCR_JOB_ID` nor a scheduler says one.
pub const NO_JOB: &str = "local";

/// All parameters, read and checked.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// `SCR_ENABLE`.
    pub enable: bool,
    /// `SCR_DEBUG`.
    pub debug: u64,
    /// `SCR_JOB_ID`.
    pub job_id: String,
    /// `SCR_USER_NAME`, else where the administrator asks `SLURM_JOB_USER`, else who started this.
    pub user: String,
    /// What is said of the job's user, for [`Account::of`].
    pub claim: Claim,
    /// `SCRFS_MOUNT`, with job and user in it.
    pub mount: PathBuf,
    /// `SCRFS_MODE`.
    pub mode: u32,
    /// `SCRFS_OPERATOR_GROUP`.
    pub operator_group: Option<String>,
    /// `SCR_NODELIST`; never empty.
    pub nodes: Vec<String>,
    /// `SCR_PREFIX`, absolute.
    pub prefix: PathBuf,
    /// `SCR_PREFIX` is set, be it to the working directory.
    pub prefix_is_named: bool,
    /// `SCR_CNTL_BASE`.
    pub control_base: PathBuf,
    /// `SCR_CACHE_BASE`; never empty.
    pub cache_bases: Vec<PathBuf>,
    /// `CKPT=` lines of a file, or `SCRFS_DESCRIPTORS`.
    pub descriptors: Vec<CheckpointDescriptor>,
    /// `SCR_CACHE_SIZE`.
    pub cache_size: u32,
    /// `SCRFS_CACHE_BYTES`; 0: no limit.
    pub cache_bytes: u64,
    /// `SCR_COPY_TYPE`.
    pub scheme: Scheme,
    /// `SCR_SET_SIZE`.
    pub set_size: u32,
    /// `SCR_HOP_DISTANCE`.
    pub hop_distance: u32,
    /// `SCR_GROUP`, in capitals.
    pub group: String,
    /// Of which failure groups this host is, by their kind: `GROUPS=` lines of a file, or
    /// `SCRFS_GROUPS`.
    pub groups: BTreeMap<String, String>,
    /// What a restart does.
    pub restarting: Restarting,
    /// `SCR_FLUSH`.
    pub flush_every: u32,
    /// When a program is started again.
    pub relaunch: Relaunch,
    /// `SCR_EXCLUDE_NODES`.
    pub exclude_nodes: Vec<String>,
    /// `SCR_MPI_BUF_SIZE`, `SCRFS_ENCODE_THREADS`.
    pub jobs: JobRules,
    /// `SCRFS_CHECKPOINT_PATH` as it was written, absolute or below the mount's root; `None`: the
    /// mount's root.
    pub checkpoint_path: Option<PathBuf>,
    /// `SCRFS_MARKER`, `SCRFS_MARKER_SCOPE`, `SCRFS_SEAL`, `SCRFS_COMMIT_ON_RENAME`.
    pub sealing: SealRules,
    /// `SCRFS_DATASET_PATTERN`, `SCRFS_LOOSE_MAX`, `SCRFS_LOOSE_FILES`.
    pub loose: LooseRules,
    /// `SCRFS_SEAL_TIMEOUT`.
    pub seal_timeout: Duration,
    /// `SCRFS_COORDINATOR_WAIT`.
    pub coordinator_wait: Duration,
    /// `SCRFS_NODE_TIMEOUT`.
    pub node_timeout: Duration,
    /// `SCRFS_SCRUB_INTERVAL`; 0: never.
    pub scrub_interval: Duration,
    /// `SCRFS_FANOUT`.
    pub fanout: u32,
    /// `SCRFS_LIST_MAX`.
    pub list_max: u64,
    /// How the job ends.
    pub ending: Ending,
    /// `SCR_CHECKPOINT_INTERVAL`, `_SECONDS`, `_OVERHEAD`, `SCR_HALT_SECONDS`, `SCRFS_END_TIME`.
    pub advice: AdviceRules,
    /// What the user file sets, as texts by parameter: for those who must not read that file again,
    /// as it may be gone.
    pub user_file: BTreeMap<&'static str, String>,
    /// Lines for people: what was not understood or has no effect.
    pub warnings: Vec<String>,
}

impl Config {
    /// Reads all sources. `read` gives a file's text (bounded by [`FILE_BYTES_MAX`]), `None` when
    /// there is none.
    pub fn load(
        sources: &Sources,
        read: impl Fn(&Path) -> std::io::Result<Option<String>>,
    ) -> Result<Self, ConfigError> {
        sources.refuse_blank_options()?;
        let mut layers = Layers { essential: sources.essential, ..Layers::default() };
        layers.add_environment(sources)?;
        let system = PathBuf::from(SYSTEM_FILE);
        // The system file comes first here: it may say where the prefix, and with it the user file,
        // is.
        layers.add_file(&system, text_of(&read, &system)?.as_deref(), Rank::System)?;
        let prefix = layers.path("SCR_PREFIX", sources)?.unwrap_or_else(|| sources.working_directory.clone());
        let named = layers.path("SCR_CONF_FILE", sources)?;
        if !sources.reads_user_file {
            if let Some(named) = named {
                layers
                    .warnings
                    .push(format!("{} (SCR_CONF_FILE): not read for root's daemon", named.display()));
            }
            return layers.finish(sources);
        }
        let user_file = named.clone().unwrap_or_else(|| prefix.join(USER_FILE));
        let text = match text_of(&read, &user_file) {
            // A PFS that is away must not keep a job from its caches. What is there and wrong is an
            // error.
            Err(ConfigError::Unreadable { path, reason, kind }) if named.is_none() && kind != INVALID => {
                layers.warnings.push(format!("{}: {reason}; what it may set has no effect", path.display()));
                None
            }
            other => other?,
        };
        if text.is_none() && named.is_some() {
            return Err(ConfigError::Unreadable {
                path: user_file,
                reason: "no such file (SCR_CONF_FILE)".to_owned(),
                kind: std::io::ErrorKind::NotFound,
            });
        }
        layers.add_file(&user_file, text.as_deref(), Rank::User)?;
        layers.finish(sources)
    }

    /// What daemons are told when coordinators attach.
    pub fn settings(&self) -> Settings {
        Settings {
            prefix: self.prefix.as_os_str().as_bytes().to_vec(),
            user: self.user.clone(),
            job_id: self.job_id.clone(),
            checkpoint_path: self.checkpoint_path.as_ref().map(|path| path.as_os_str().as_bytes().to_vec()),
            coordinator_wait_ms: millis(self.coordinator_wait),
            seal_timeout_ms: millis(self.seal_timeout),
            cache_size: self.cache_size,
            cache_bytes: self.cache_bytes,
            protections: self.protections(),
            enable: self.enable,
            flush_every: self.flush_every,
            scrub_interval_ms: millis(self.scrub_interval),
            fetch: self.restarting.fetch,
            distribute: self.restarting.distribute,
            list_max: self.list_max,
            jobs: self.jobs,
            restart: self.restarting.rules(),
            sealing: self.sealing.clone(),
            loose: self.loose.clone(),
            advice: self.advice,
        }
    }

    /// How datasets are protected and where they go.
    pub fn protections(&self) -> Protections {
        let usual = Protection {
            set_size: self.set_size,
            hop_distance: self.hop_distance,
            group: self.group.clone(),
            ..Protection::by(self.scheme)
        };
        let bytes = |store: &PathBuf| store.as_os_str().as_bytes().to_vec();
        let descriptor = |one: &CheckpointDescriptor| Protection {
            interval: one.interval,
            set_size: one.set_size,
            hop_distance: one.hop_distance,
            group: one.group.clone(),
            store: one.store.as_ref().map(bytes),
            ..Protection::by(one.scheme)
        };
        Protections { descriptors: self.descriptors.iter().map(descriptor).collect(), usual }
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn text_of(
    read: &impl Fn(&Path) -> std::io::Result<Option<String>>,
    path: &Path,
) -> Result<Option<String>, ConfigError> {
    read(path).map_err(|e| ConfigError::Unreadable {
        path: path.to_owned(),
        reason: e.to_string(),
        kind: e.kind(),
    })
}

/// Lower is stronger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Environment,
    User,
    System,
}

/// Raw texts by parameter and layer.
#[derive(Debug, Default)]
struct Layers {
    texts: BTreeMap<&'static str, BTreeMap<Rank, (String, Origin)>>,
    /// The scheduler's words, used where SCR's are not set.
    scheduler: BTreeMap<&'static str, String>,
    /// Lines of files that are lists of fields: their first word, the rest, and where it stands.
    lines: BTreeMap<Rank, Vec<(&'static str, String, Origin)>>,
    warnings: Vec<String>,
    /// As in [`Sources::essential`].
    essential: Option<&'static [&'static str]>,
    /// What is wrong, and not essential.
    doubts: RefCell<Vec<String>>,
    /// Parameters that were read: a row of the table that nobody reads would promise what is not
    /// kept.
    used: RefCell<BTreeSet<&'static str>>,
}

/// What a scheduler may say of a job's user.
const USER_WORDS: [&str; 3] = ["SLURM_JOB_USER", "SLURM_JOB_UID", "SLURM_JOB_GID"];

const SCHEDULER: [(&str, &[&str]); 3] = [
    ("SCR_JOB_ID", &["SLURM_JOB_ID", "SLURM_JOBID", "PBS_JOBID", "FLUX_JOB_ID", "LSB_JOBID"]),
    ("SCRFS_END_TIME", &["SLURM_JOB_END_TIME"]),
    ("SCR_NODELIST", &["SLURM_JOB_NODELIST", "SLURM_NODELIST"]),
];

impl Layers {
    fn add_environment(&mut self, sources: &Sources) -> Result<(), ConfigError> {
        for (name, value) in &sources.environment {
            let Some(parameter) = defs::find(name) else {
                if name.starts_with("SCR") {
                    self.warn_unknown(name, &Origin::Environment);
                }
                continue;
            };
            let origin =
                sources.options.get(name.as_str()).map_or(Origin::Environment, |o| Origin::Option(o));
            let text = value.to_str().ok_or_else(|| ConfigError::Value {
                origin: origin.clone(),
                name: name.clone(),
                text: value.to_string_lossy().into_owned(),
                expected: "expected UTF-8".to_owned(),
            })?;
            self.add(parameter, text, origin, Rank::Environment, sources.administrator);
        }
        for (name, words) in SCHEDULER {
            let found = words.iter().find_map(|w| sources.environment.get(*w)?.to_str());
            if let Some(text) = found.filter(|t| !t.is_empty()) {
                self.scheduler.insert(name, text.to_owned());
            }
        }
        // Prologs run as root for the job's user. To all others these words say what they know
        // already.
        for name in USER_WORDS.into_iter().filter(|_| sources.administrator) {
            if let Some(text) = sources.environment.get(name).and_then(|text| text.to_str()) {
                self.scheduler.insert(name, text.to_owned());
            }
        }
        Ok(())
    }

    fn add(&mut self, parameter: &'static Parameter, text: &str, origin: Origin, rank: Rank, trusted: bool) {
        if parameter.who == Who::Administrator && !trusted {
            self.warnings
                .push(format!("{origin}: {} is the administrator's to set; ignored", parameter.name));
            return;
        }
        // An empty value unsets: `SCR_RUNS= scrfs-run` is the default.
        if !text.trim().is_empty() {
            self.texts.entry(parameter.name).or_default().insert(rank, (text.trim().to_owned(), origin));
        }
    }

    fn warn_unknown(&mut self, name: &str, origin: &Origin) {
        if defs::NOT_YET.contains(&name) {
            self.warnings.push(format!("{origin}: {name} has no effect in this version"));
        } else if let Some(meant) = defs::nearest(name) {
            self.warnings.push(format!("{origin}: {name} is unknown; ignored; is {meant} meant?"));
        } else if defs::is_ours(name) || matches!(origin, Origin::File { .. }) {
            self.warnings.push(format!("{origin}: {name} is unknown; ignored"));
        }
    }

    /// The strongest text of a parameter and where it stands; empty when it is not set at all.
    fn text(&self, parameter: &'static Parameter) -> (String, Origin) {
        self.used.borrow_mut().insert(parameter.name);
        if let Some((_, found)) = self.texts.get(parameter.name).and_then(|layers| layers.first_key_value()) {
            return found.clone();
        }
        match self.scheduler.get(parameter.name) {
            Some(text) => (text.clone(), Origin::Environment),
            None => (parameter.default.to_owned(), Origin::Default),
        }
    }

    /// `None` when the parameter is not set and has no default.
    fn read<T>(
        &self,
        name: &'static str,
        parse: impl FnOnce(&str, Kind) -> Result<T, String>,
    ) -> Result<Option<T>, ConfigError> {
        let failed = |origin: Origin, text: &str, expected: String| ConfigError::Value {
            origin,
            name: name.to_owned(),
            text: text.to_owned(),
            expected,
        };
        let Some(parameter) = defs::find(name) else {
            return Err(failed(Origin::Default, "", "not in the table of parameters".to_owned()));
        };
        let (text, origin) = self.text(parameter);
        if text.is_empty() {
            return Ok(None);
        }
        match parse(&text, parameter.kind) {
            Ok(value) => Ok(Some(value)),
            Err(expected) => {
                self.unless_essential(|essential| essential == name, failed(origin, &text, expected))?;
                Ok(None)
            }
        }
    }

    fn boolean(&self, name: &'static str) -> Result<bool, ConfigError> {
        Ok(self.read(name, |text, _| value::boolean(text))?.unwrap_or_default())
    }

    fn count(&self, name: &'static str) -> Result<Option<u64>, ConfigError> {
        self.read(name, |text, kind| match kind {
            Kind::Count(low, high) => value::count(text, low, high),
            Kind::Bytes(low, high) => value::bytes(text, low, high),
            _ => Err("not a number in the table of parameters".to_owned()),
        })
    }

    /// The table's ranges of these fit.
    fn small(&self, name: &'static str) -> Result<Option<u32>, ConfigError> {
        Ok(self.count(name)?.map(|n| u32::try_from(n).unwrap_or(u32::MAX)))
    }

    fn time(&self, name: &'static str) -> Result<Duration, ConfigError> {
        Ok(self.read(name, |text, _| value::time(text))?.unwrap_or_default())
    }

    fn path(&self, name: &'static str, sources: &Sources) -> Result<Option<PathBuf>, ConfigError> {
        self.read(name, |text, _| Ok(sources.working_directory.join(text)))
    }

    /// The same from whichever directory a mount, a prolog or an epilog is started.
    fn absolute(&self, name: &'static str) -> Result<Option<PathBuf>, ConfigError> {
        self.read(name, |text, _| {
            let path = PathBuf::from(text);
            if path.is_absolute() { Ok(path) } else { Err("expected an absolute path".to_owned()) }
        })
    }

    fn hosts(&self, name: &'static str) -> Result<Vec<String>, ConfigError> {
        Ok(self.read(name, |text, _| hosts::expand(text))?.unwrap_or_default())
    }

    /// Used as the name of a directory.
    fn name(&self, name: &'static str) -> Result<Option<String>, ConfigError> {
        self.read(name, |text, _| {
            let bad = text.contains(['/', '\0', '\n']) || text == "." || text == ".." || text.len() > 128;
            if bad { Err("expected a short name without slashes".to_owned()) } else { Ok(text.to_owned()) }
        })
    }

    /// The text of a regular expression that `check` accepts.
    fn pattern(
        &self,
        name: &'static str,
        check: fn(&str) -> Result<NamePattern, String>,
    ) -> Result<Option<String>, ConfigError> {
        self.read(name, |text, _| check(text).map(|_| text.to_owned()))
    }

    /// A user's choice must be one of those that the system file lists.
    fn cache_bases(&self) -> Result<Vec<PathBuf>, ConfigError> {
        let name = "SCR_CACHE_BASE";
        let permitted = self.texts.get(name).and_then(|layers| layers.get(&Rank::System));
        let permitted = permitted.map(|(text, _)| value::paths(text).unwrap_or_default());
        let chosen = self.read(name, |text, _| {
            let paths = value::paths(text)?;
            match &permitted {
                Some(allowed) if !paths.iter().all(|p| allowed.contains(p)) => {
                    Err(format!("{SYSTEM_FILE} permits only {}", show(allowed)))
                }
                _ => Ok(paths),
            }
        })?;
        Ok(chosen.unwrap_or_else(|| vec![PathBuf::from("/dev/shm")]))
    }

    fn job_id(&self) -> Result<String, ConfigError> {
        Ok(self.name("SCR_JOB_ID")?.unwrap_or_else(|| NO_JOB.to_owned()))
    }

    fn finish(mut self, sources: &Sources) -> Result<Config, ConfigError> {
        let own = |list: Vec<String>| if list.is_empty() { vec![sources.host.clone()] } else { list };
        self.used.borrow_mut().insert("SCR_CONF_FILE");
        for name in defs::PENDING.iter().filter(|name| self.texts.contains_key(**name)) {
            self.warnings.push(format!("{name} has no effect in this version"));
        }
        let cache_bases = self.cache_bases()?;
        let (job_id, claim) = (self.job_id()?, self.claim()?);
        let user = claim.user_name().unwrap_or(&sources.user).to_owned();
        let ending = self.ending()?;
        let usual = self.usual()?;
        let descriptors = self.descriptors(&cache_bases, &usual);
        let descriptors = self.or_none(descriptors::PARAMETER, descriptors)?;
        let prefix = self.path("SCR_PREFIX", sources)?;
        let config = Config {
            mount: self.mount_point(&job_id, &user)?,
            mode: self.read("SCRFS_MODE", |text, _| value::mode(text))?.unwrap_or(0o700),
            operator_group: self.name("SCRFS_OPERATOR_GROUP")?,
            descriptors,
            enable: self.boolean("SCR_ENABLE")?,
            debug: self.count("SCR_DEBUG")?.unwrap_or_default(),
            job_id,
            user,
            claim,
            nodes: own(self.hosts("SCR_NODELIST")?),
            prefix_is_named: prefix.is_some(),
            prefix: prefix.unwrap_or_else(|| sources.working_directory.clone()),
            control_base: self.absolute("SCR_CNTL_BASE")?.unwrap_or_else(|| control_base(sources)),
            cache_bases,
            cache_size: self.small("SCR_CACHE_SIZE")?.unwrap_or_default(),
            cache_bytes: self.count("SCRFS_CACHE_BYTES")?.unwrap_or_default(),
            scheme: usual.scheme(),
            set_size: usual.set_size,
            hop_distance: usual.hop_distance,
            group: usual.group,
            groups: self.or_none(groups::PARAMETER, self.groups(&sources.host))?,
            restarting: self.restarting()?,
            flush_every: self.small("SCR_FLUSH")?.unwrap_or_default(),
            relaunch: self.relaunch()?,
            exclude_nodes: self.hosts("SCR_EXCLUDE_NODES")?,
            jobs: self.jobs()?,
            checkpoint_path: self.read("SCRFS_CHECKPOINT_PATH", |text, _| checkpoint_path::named(text))?,
            sealing: self.sealing()?,
            loose: self.loose()?,
            seal_timeout: self.time("SCRFS_SEAL_TIMEOUT")?,
            coordinator_wait: self.time("SCRFS_COORDINATOR_WAIT")?,
            node_timeout: self
                .read("SCRFS_NODE_TIMEOUT", |text, _| value::time_from(text, NODE_TIMEOUT_MIN))?
                .unwrap_or_default(),
            scrub_interval: self.time("SCRFS_SCRUB_INTERVAL")?,
            fanout: self.small("SCRFS_FANOUT")?.unwrap_or_default(),
            list_max: self.count("SCRFS_LIST_MAX")?.unwrap_or_default(),
            advice: AdviceRules {
                interval: self.small("SCR_CHECKPOINT_INTERVAL")?.unwrap_or_default(),
                seconds: self.count("SCR_CHECKPOINT_SECONDS")?.unwrap_or_default(),
                overhead: self.small("SCR_CHECKPOINT_OVERHEAD")?.unwrap_or_default(),
                halt_seconds: self.count("SCR_HALT_SECONDS")?.unwrap_or_default(),
                end_time: self.count("SCRFS_END_TIME")?.unwrap_or_default(),
                end_reserve: ending.reserve().as_secs(),
            },
            ending,
            user_file: self.of_rank(Rank::User),
            warnings: std::mem::take(&mut self.warnings).into_iter().chain(self.doubts.take()).collect(),
        };
        debug_assert!(
            defs::PARAMETERS.iter().all(|p| self.used.borrow().contains(p.name)),
            "a parameter of the table is never read"
        );
        Ok(config)
    }
}

/// Root's is where nobody else can make names.
fn control_base(sources: &Sources) -> PathBuf {
    if sources.administrator { "/run/scrfs".into() } else { "/dev/shm".into() }
}

fn show(paths: &[PathBuf]) -> String {
    paths.iter().map(|p| p.display().to_string()).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests;

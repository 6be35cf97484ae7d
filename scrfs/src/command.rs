//! The command line.

mod doctor;
mod options;

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, CommandFactory, Parser, Subcommand};
use scrfs::checkpoint_path;
use scrfs::config::{self, Account, Config, Sources, read_file};
use scrfs::manual::{self, Page};
use scrfs::mount::jobs::{self, Alive, Bases, Manner, Order, Unsaved};
use scrfs::mount::terms::Terms;
use scrfs::mount::unmount::Despite;
use scrfs::mount::{MountError, is_shortage, launch, service, supervisor, unmount, worker};
use scrfs::status::people::printable;
use scrfs::syslog::{self, Syslog};

/// What the manual says beside the command line.
const PAGE: Page = Page { name: "scrfs", section: 8, text: include_str!("manual/scrfs.8") };

use self::options::{of_worker, options};
use crate::trial::{self, TrialError};

/// A year: times are added to one another.
const SECONDS_MAX: u64 = 31_536_000;

fn seconds() -> clap::builder::RangedU64ValueParser {
    clap::value_parser!(u64).range(..=SECONDS_MAX)
}

/// A checkpoint file system: programs write checkpoints at node-local speed; sealed ones survive
/// the loss of nodes.
///
/// Begin with `man 7 scrfs`: what a job does with it, and what an administrator.
#[derive(Debug, Parser)]
#[command(name = "scrfs", version)]
struct CommandLine {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Mount, and return when the mount answers.
    Mount {
        /// Stay in the foreground until it is unmounted.
        #[arg(long)]
        foreground: bool,
        #[command(flatten)]
        mount: MountArgs,
    },
    /// Unmount, and return when the daemon has ended.
    Umount {
        /// Even if the mount is in use, or the job runs.
        #[arg(long)]
        force: bool,
        /// Even if a coordinator is attached, as long as nobody uses the mount.
        #[arg(long, hide = true)]
        served: bool,
        /// What is mounted for this job, wherever that is, and nothing else; when nothing is, that
        /// is no error. Where root names no user the job is whoever's, if one user only has a job
        /// of that id.
        #[arg(long, value_name = "ID")]
        job_id: Option<OsString>,
        /// First save this node's part of the job's newest protected dataset in the prefix, within
        /// so many seconds; when that cannot be done nothing is unmounted or removed. Needs
        /// --job-id.
        #[arg(long, value_name = "SECONDS", requires = "job_id", allow_negative_numbers = true, value_parser = seconds())]
        save: Option<u64>,
        /// Remove the job's caches and state on this node; needs --job-id.
        #[arg(long, requires = "job_id")]
        purge: bool,
        #[command(flatten)]
        bases: BaseArgs,
        /// Where it is mounted [default: SCRFS_MOUNT; with --job-id: anywhere].
        mount_point: Option<PathBuf>,
    },
    /// Remove what jobs that are gone have left on this node: mounts, caches, state.
    ///
    /// Jobs with datasets that are not on the PFS are named, and stay, unless the options say
    /// otherwise.
    Sweep {
        /// The jobs that live, separated by commas, blanks or newlines; `none`: no job does.
        #[arg(long, value_name = "ID,...", conflicts_with = "scheduler")]
        alive: Option<String>,
        /// Ask squeue which jobs live; this is the default.
        #[arg(long)]
        scheduler: bool,
        /// Begin nothing new after so many seconds.
        #[arg(long, value_name = "SECONDS", default_value_t = 60, allow_negative_numbers = true, value_parser = seconds())]
        limit: u64,
        /// First save this node's part of each job's newest protected dataset in its prefix, within
        /// so many seconds.
        #[arg(long, value_name = "SECONDS", allow_negative_numbers = true, value_parser = seconds())]
        save: Option<u64>,
        /// Remove also what is not on the PFS, and was not saved; it is named.
        #[arg(long)]
        discard: bool,
        #[command(flatten)]
        bases: BaseArgs,
    },
    /// Print where a job's mount is by its settings, and below which directories its files are:
    /// `mount POINT`, `control DIR`, and `store DIR` for each store.
    Places {
        /// Print what jobs have in the stores too: `cache JOB DATASETS USER`, with the number of
        /// datasets.
        #[arg(long)]
        caches: bool,
        /// The job's id [default: SCR_JOB_ID, else the scheduler's, else `local`].
        #[arg(long, value_name = "ID")]
        job_id: Option<OsString>,
        #[command(flatten)]
        bases: BaseArgs,
    },
    /// Replace the running daemon by the program that is installed now; programs on the mount go
    /// on.
    Reload {
        /// Where it is mounted.
        mount_point: PathBuf,
    },
    /// A mount and a coordinator on this machine alone, without root, scheduler or launcher, to see
    /// what it is like.
    Try {
        /// End it, and remove what was written there.
        #[arg(long)]
        stop: bool,
        /// Stay until interrupted, and end it then.
        #[arg(long, conflicts_with = "stop")]
        foreground: bool,
        /// An empty directory; it is made if it is missing.
        directory: PathBuf,
    },
    /// Say whether this node is fit for scrfs, and what to do where it is not.
    Doctor(doctor::DoctorArgs),
    #[command(hide = true)]
    Supervise(MountArgs),
    #[command(hide = true)]
    Worker {
        /// The state memory's descriptor.
        #[arg(long)]
        state: i32,
        /// What the mount began with; the supervisor of a former version does not tell.
        #[arg(long, value_parser = Terms::parse)]
        terms: Option<Terms>,
        #[command(flatten)]
        mount: MountArgs,
    },
}

/// Whose, and where.
#[derive(Debug, Default, Args)]
struct BaseArgs {
    /// The job's user [default: SCR_USER_NAME, else the scheduler's where root asks, else you].
    #[arg(long, value_name = "NAME")]
    user: Option<OsString>,
    /// Where small state is
    /// [default: SCR_CNTL_BASE, else /run/scrfs for root, /dev/shm for others].
    #[arg(long, value_name = "DIR")]
    control_base: Option<OsString>,
    /// Where files are, or a list of such stores: each dataset in one, by its descriptor, else by
    /// room [default: SCR_CACHE_BASE, else /dev/shm].
    #[arg(long, value_name = "DIR,...")]
    cache_base: Option<OsString>,
}

#[derive(Debug, Args)]
struct MountArgs {
    /// The job's id [default: SCR_JOB_ID, else the scheduler's, else `local`].
    #[arg(long, value_name = "ID")]
    job_id: Option<OsString>,
    #[command(flatten)]
    bases: BaseArgs,
    /// That user's number, as the process that started this one found it.
    #[arg(long, hide = true, requires = "gid")]
    uid: Option<u32>,
    /// That user's group.
    #[arg(long, hide = true)]
    gid: Option<u32>,
    /// The directory below the mount point that holds datasets
    /// [default: SCRFS_CHECKPOINT_PATH, else the mount point].
    #[arg(long, value_name = "P")]
    checkpoint_path: Option<OsString>,
    /// Do not let the kernel serve file data by itself.
    #[arg(long)]
    no_passthrough: bool,
    /// An empty directory; where root mounts, it is made if it is missing [default: SCRFS_MOUNT].
    mount_point: Option<PathBuf>,
}

/// What goes wrong before anything is mounted.
#[derive(Debug, thiserror::Error)]
enum CommandError {
    #[error(transparent)]
    Mount(#[from] MountError),
    #[error(transparent)]
    Trial(#[from] TrialError),
    #[error(transparent)]
    Config(#[from] config::ConfigError),
    #[error("cannot read this process's settings: {0}")]
    Process(#[from] std::io::Error),
    #[error("cannot write to standard output: {0}")]
    Output(std::io::Error),
    #[error("environment: SCRFS_LOG_TO={0:?}: expected file or syslog")]
    LogTo(OsString),
    #[error("--hosts {0:?}: {1}")]
    Hosts(String, String),
    #[error(transparent)]
    CheckpointPath(#[from] checkpoint_path::Refused),
}

impl CommandError {
    /// One line; more where another of these programs has said more.
    fn text(&self) -> String {
        let text = self.to_string();
        match self {
            Self::Trial(TrialError::Command { .. }) => {
                text.lines().map(printable).collect::<Vec<_>>().join("\n")
            }
            _ => printable(&text),
        }
    }

    fn hint(&self) -> String {
        match self {
            Self::Mount(error) => error.hint(),
            Self::Trial(error) => error.hint(),
            Self::CheckpointPath(..) => "name a directory of its own, relative to the mount point".into(),
            Self::Config(error) => error.hint(),
            Self::Hosts(..) => config::HOSTS_HINT.into(),
            Self::LogTo(_) => "set one of these, or unset it".into(),
            Self::Process(_) => config::PROCESS_HINT.into(),
            Self::Output(_) => "it has to be open, with room for a few lines".into(),
        }
    }

    fn is_shortage(&self) -> bool {
        match self {
            Self::Mount(error) => error.is_shortage(),
            other => is_shortage(other),
        }
    }

    /// Wrong usage and refused parameters are 2, as scrfs-run's are.
    fn code(&self) -> ExitCode {
        match self {
            Self::Config(_)
            | Self::CheckpointPath(..)
            | Self::Hosts(..)
            | Self::LogTo(_)
            | Self::Mount(MountError::NobodyAlive(_) | MountError::NoJobId { .. }) => ExitCode::from(2),
            Self::Mount(_) | Self::Trial(_) | Self::Process(_) | Self::Output(_) => ExitCode::FAILURE,
        }
    }
}

pub(super) fn main() -> ExitCode {
    if let Some(written) = manual::when_asked(std::env::args_os(), CommandLine::command, PAGE, true) {
        return written;
    }
    let line = scrfs::usage::parse::<CommandLine>("scrfs");
    let is_worker = matches!(line.action, Action::Worker { .. });
    match start_log(&line.action).and_then(|()| act(line.action)) {
        Ok(code) => code,
        Err(error) => {
            let text = format!("scrfs: {}\nhint: {}\n", error.text(), printable(&error.hint()));
            // Nobody reads it: the exit code stays.
            let _ = std::io::stderr().write_all(text.as_bytes());
            if is_worker && error.is_shortage() { ExitCode::from(supervisor::SHORTAGE) } else { error.code() }
        }
    }
}

/// Logs go to standard error, which is a daemon's log file, or a daemon's to syslog; `SCRFS_LOG`
/// filters them.
fn start_log(action: &Action) -> Result<(), CommandError> {
    use std::io::IsTerminal;
    let to = std::env::var_os("SCRFS_LOG_TO").unwrap_or_default();
    let is_daemon = matches!(action, Action::Supervise(_) | Action::Worker { .. });
    let filter = log_filter(!is_daemon);
    if to == "syslog" && is_daemon {
        let failed = |source| MountError::Io { doing: "no socket for", path: syslog::SOCKET.into(), source };
        let log = Syslog::new("scrfs", Path::new(syslog::SOCKET)).map_err(failed)?;
        let lines = tracing_subscriber::fmt()
            .log_internal_errors(false)
            .without_time()
            .with_level(false)
            .with_ansi(false);
        let started = lines.with_env_filter(filter).with_writer(log).try_init();
        debug_assert!(started.is_ok());
        return Ok(());
    }
    if !["", "file", "syslog"].iter().any(|word| to == *word) {
        return Err(CommandError::LogTo(to));
    }
    let started = scrfs::log::builder(String::new())
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .try_init();
    debug_assert!(started.is_ok());
    Ok(())
}

/// What `SCRFS_LOG` says; a mistake there keeps nothing from its work. `aloud`: it is told of, once
/// by all processes of a mount.
fn log_filter(aloud: bool) -> tracing_subscriber::EnvFilter {
    const DEFAULT: &str = "warn,scrfs=info";
    let Some(given) = std::env::var_os("SCRFS_LOG") else { return DEFAULT.into() };
    let parsed = given.to_str().ok_or("it is no UTF-8".to_owned());
    let parsed = parsed.and_then(|text| text.parse().map_err(|e| format!("{e}")));
    parsed.unwrap_or_else(|problem: String| {
        if aloud {
            let (given, problem) = (given.to_string_lossy(), printable(&problem));
            tell(&[format!("environment: SCRFS_LOG={given:?}: {problem}; it counts as {DEFAULT}")]);
        }
        DEFAULT.into()
    })
}

fn despite(force: bool, served: bool) -> Despite {
    match (force, served) {
        (true, _) => Despite::Use,
        (false, true) => Despite::Coordinator,
        (false, false) => Despite::Nothing,
    }
}

/// What has to be right in the configuration so that a mount, or what is left of jobs, can be
/// found: no other mistake keeps an epilog from its work.
const OF_MOUNT: &[&str] = &["SCRFS_MOUNT", "SCR_JOB_ID", "SCR_USER_NAME"];
const OF_PLACES: &[&str] = &["SCRFS_MOUNT", "SCR_JOB_ID", "SCR_USER_NAME", "SCR_CNTL_BASE", "SCR_CACHE_BASE"];
const OF_JOBS: &[&str] = &["SCR_JOB_ID", "SCR_USER_NAME", "SCR_CNTL_BASE", "SCR_CACHE_BASE"];

fn act(action: Action) -> Result<ExitCode, CommandError> {
    match action {
        Action::Try { stop, foreground, directory } => {
            // Its job id is its own.
            let config = load(BaseArgs::default(), Some("try".into()), Some(OF_JOBS))?;
            if stop {
                trial::stop(&config.control_base, &directory)?;
            } else {
                trial::start(&config.control_base, &directory, foreground)?;
            }
        }
        Action::Umount { force, served, job_id: None, bases, mount_point, .. } => {
            let mount = || load(bases, None, Some(OF_MOUNT)).map(|config| config.mount);
            let point = mount_point.map_or_else(mount, Ok)?;
            unmount::unmount(&point, despite(force, served))?;
        }
        Action::Umount { force, served, job_id, save, purge, bases, mount_point } => {
            let config = load(bases, job_id, Some(OF_JOBS))?;
            let user = config.claim.is_made().then(|| Account::name_of_job(&config.claim)).transpose()?;
            let unsaved = save.map_or(Unsaved::GiveUp, |limit| Unsaved::Save(Duration::from_secs(limit)));
            let despite = despite(force, served);
            let order = Order { job_id: config.job_id, user, mount_point, unsaved, purge, despite };
            tell(&jobs::unmount(
                &order,
                &Bases { control: config.control_base, caches: config.cache_bases },
            )?);
        }
        Action::Sweep { alive, limit, save, discard, bases, .. } => {
            // Of a prolog's environment the user is not meant: it clears up after all.
            let user = bases.user.clone();
            let config = load(bases, None, Some(OF_JOBS))?;
            let bases = Bases { control: config.control_base, caches: config.cache_bases };
            let alive = alive.map_or(Ok(Alive::Scheduler), |text| Alive::listed(&text))?;
            let (limit, save) = (Duration::from_secs(limit), save.map(Duration::from_secs));
            let user = user.map(|_| Account::name_of_job(&config.claim)).transpose()?;
            let swept = jobs::sweep(&alive, user.as_deref(), &bases, &Manner { limit, save, discard });
            if let Ok(done) | Err(MountError::Left { done, .. }) = &swept {
                tell(done);
            }
            swept?;
        }
        Action::Places { caches, job_id, bases } => {
            let config = load(bases, job_id, Some(OF_PLACES))?;
            let _ = Account::of_job(&config.claim)?;
            places(&config)?;
            if caches {
                jobs_in_stores(&config)?;
            }
        }
        Action::Mount { foreground, mount } => {
            let options = options(mount)?;
            if let Some(warning) = worker::unknown_group(&options) {
                tracing::warn!("{warning}");
            }
            launch::mount(options, foreground.then_some(tell_service_manager))?;
        }
        Action::Supervise(mount) => launch::supervise(&options(mount)?)?,
        Action::Reload { mount_point } => launch::reload(&mount_point)?,
        Action::Worker { state, terms, mount } => worker::run(&of_worker(mount, terms)?, state)?,
        Action::Doctor(args) => return doctor::doctor(args),
    }
    Ok(ExitCode::SUCCESS)
}

/// The one that started this in the foreground, if it wants to know when the mount answers.
fn tell_service_manager() {
    if let Some(socket) = std::env::var_os(service::SOCKET)
        && let Err(error) = service::ready(&socket)
    {
        tracing::warn!(%error, "{} cannot be told that the mount answers", service::SOCKET);
    }
}

/// One line for each, as bytes: paths may be no UTF-8.
fn places(config: &Config) -> Result<(), CommandError> {
    use std::os::unix::ffi::OsStrExt;
    let mut out = std::io::stdout().lock();
    let stores = config.cache_bases.iter().map(|base| ("store", base));
    for (word, path) in
        [("mount", &config.mount), ("control", &config.control_base)].into_iter().chain(stores)
    {
        let line = [word.as_bytes(), b" ", path.as_os_str().as_bytes(), b"\n"].concat();
        out.write_all(&line).map_err(CommandError::Output)?;
    }
    Ok(())
}

/// The same of what jobs have in the stores.
fn jobs_in_stores(config: &Config) -> Result<(), CommandError> {
    let mut out = std::io::stdout().lock();
    let bases = Bases { control: config.control_base.clone(), caches: config.cache_bases.clone() };
    for cache in jobs::in_stores(&bases)? {
        writeln!(out, "cache {} {} {}", cache.job, cache.datasets, cache.user)
            .map_err(CommandError::Output)?;
    }
    Ok(())
}

/// What was done, for people.
fn tell(lines: &[String]) {
    for line in lines {
        // Nobody reads it: what was done is done.
        let _ = writeln!(std::io::stderr(), "scrfs: {}", printable(line));
    }
}

/// Options of the command line, over the environment, over files, over defaults.
/// `essential`: as in [`Sources::essential`].
fn load(
    bases: BaseArgs,
    job_id: Option<OsString>,
    essential: Option<&'static [&'static str]>,
) -> Result<Config, CommandError> {
    let mut sources = Sources::of_process(std::env::vars_os())?;
    sources.essential = essential;
    sources.reads_user_file = !sources.administrator;
    let given = [
        ("SCR_USER_NAME", "--user", bases.user),
        ("SCR_JOB_ID", "--job-id", job_id),
        ("SCR_CNTL_BASE", "--control-base", bases.control_base),
        ("SCR_CACHE_BASE", "--cache-base", bases.cache_base),
    ];
    for (name, option, value) in given {
        if let Some(value) = value {
            sources.give(name, option, value);
        }
    }
    let config = Config::load(&sources, read_file)?;
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    Ok(config)
}

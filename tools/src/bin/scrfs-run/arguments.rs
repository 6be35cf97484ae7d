//! The command line and the parameters, as one checked value.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use nix::sys::signal::Signal;
use scrfs::allocation::SLURM_JOB;
use scrfs::bounded;
use scrfs::config::{self, Config, Sources, hosts};
use scrfs::control::AdviceRules;
use scrfs::prefix::strangers;
use scrfs_tools::probe::RUN_VARIABLE;
use scrfs_tools::token::Token;
use scrfs_tools::{Failure, Outcome};

use crate::allocation::{self, Question};
use crate::launcher::{Asked, Launcher, Lines, Surroundings, choose};
use crate::layout;
use crate::look::same_host;
use crate::prefix;
use crate::scheduler;
use crate::supervise::{EndPlan, Plan};
use crate::talk;

/// A year, in seconds: times are added to one another.
const LIMIT_MAX: u64 = 31_536_000;

/// Run a program with checkpoints in an scrfs mount; start it again without the nodes that die.
///
/// Parameters (SCR_FLUSH, SCR_COPY_TYPE, ...) come from the environment, `$SCR_PREFIX/.scrconf` and
/// /etc/scrfs.conf. The program finds the name of the checkpoint to restart from in SCRFS_CURRENT
/// (empty: none), and its files at the same paths as before.
#[derive(Debug, Parser)]
#[command(name = "scrfs-run", version, max_term_width = 100)]
pub(crate) struct Arguments {
    /// Hosts, such as `node[0-4]`; those beyond what is needed are spares
    /// [default: SCR_NODELIST, the scheduler's].
    #[arg(long, value_name = "LIST")]
    hosts: Option<String>,
    /// Nodes that run the program [default: all].
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..))]
    nodes: Option<u32>,
    /// Ranks of the program on each node [default: the allocation's tasks per node, else 1].
    #[arg(long, value_name = "K", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    ranks_per_node: Option<u32>,
    /// Where scrfs is mounted on every node [default: SCRFS_MOUNT, else /scr].
    #[arg(long, value_name = "DIR")]
    mount: Option<PathBuf>,
    /// The job's directory on the parallel file system
    /// [default: SCR_PREFIX, else the working directory].
    #[arg(long, value_name = "DIR")]
    prefix: Option<PathBuf>,
    /// What starts the program and the coordinators.
    #[arg(long, value_name = "NAME", value_enum, default_value_t = Asked::Auto)]
    launcher: Asked,
    /// The launcher's command, if it is not the one in PATH.
    #[arg(long, value_name = "PROGRAM")]
    launcher_program: Option<OsString>,
    /// One more argument of the program's launcher; may be given again.
    #[arg(long, value_name = "ARG", allow_hyphen_values = true, alias = "mpirun-arg")]
    launcher_arg: Vec<OsString>,
    /// The same as `--launcher mpirun --launcher-program PROGRAM`.
    #[arg(long, value_name = "PROGRAM", conflicts_with_all = ["launcher", "launcher_program"], hide = true)]
    mpirun: Option<OsString>,
    /// Pass on what the launcher says as it is, also when a node is lost.
    #[arg(long)]
    raw_launcher_output: bool,
    /// The coordinator [default: beside this program].
    #[arg(long, value_name = "PROGRAM")]
    coordinator: Option<PathBuf>,
    /// Seconds that a restart may take to present its dataset. Then it is ended and begun again;
    /// five are the most.
    #[arg(long, value_name = "SECONDS", default_value_t = 900, allow_negative_numbers = true,
          value_parser = clap::value_parser!(u64).range(1..=LIMIT_MAX))]
    ready_limit: u64,
    /// Seconds that flushes may go on after the program's end.
    #[arg(long, value_name = "SECONDS", default_value_t = 600, allow_negative_numbers = true,
          value_parser = clap::value_parser!(u64).range(..=LIMIT_MAX))]
    flush_limit: u64,
    /// Starts anew: goes on from no dataset of earlier runs. These stay on the parallel file
    /// system.
    #[arg(long)]
    fresh: bool,
    /// A restart moves aside what is not sealed, into the cache, and removes none of it
    /// (SCRFS_KEEP_UNSEALED).
    #[arg(long)]
    keep_unsealed: bool,
    #[command(flatten)]
    restarting: Restarting,
    /// One of several scrfs-runs of the job at once, on other nodes than theirs; its prefix is NAME
    /// in the job's.
    #[arg(long, value_name = "NAME", value_parser = run_name)]
    name: Option<String>,
    /// The program and its arguments.
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// When a restart starts the program.
#[derive(Debug, clap::Args)]
struct Restarting {
    /// A restart starts the program when all bytes of its dataset are there (SCRFS_RESTART=eager,
    /// SCRFS_FETCH=eager).
    #[arg(long)]
    eager: bool,
    /// A restart starts the program when all names of its dataset are there; bytes that were lost
    /// are rebuilt behind it, and what is opened is waited for (SCRFS_RESTART=lazy).
    #[arg(long, conflicts_with = "eager")]
    lazy: bool,
}

impl Restarting {
    /// As the parameter has it, if it is given here.
    fn way(&self) -> Option<&'static str> {
        match self {
            Self { eager: true, .. } => Some("eager"),
            Self { lazy: true, .. } => Some("lazy"),
            _ => None,
        }
    }
}

/// What is to be run, checked.
#[derive(Debug)]
pub(crate) struct Job {
    /// `SCR_ENABLE`.
    pub(crate) enable: bool,
    pub(crate) plan: Plan,
    /// What keeps a program from being started, beside the halt file: seconds before the
    /// allocation's end. For what saving needs before it the plan provides.
    pub(crate) halt_rules: AdviceRules,
    /// `SCR_EXCLUDE_NODES`.
    pub(crate) excluded: Vec<String>,
    pub(crate) ranks_per_node: usize,
    pub(crate) mount: PathBuf,
    /// `SCRFS_CHECKPOINT_PATH`, if it is set.
    pub(crate) checkpoint_path: Option<PathBuf>,
    pub(crate) prefix: PathBuf,
    /// Who knows when the allocation ends, now.
    pub(crate) end_question: Option<Question>,
    pub(crate) flush_every: u32,
    pub(crate) program: Vec<OsString>,
    pub(crate) lines: Lines,
    pub(crate) raw_launcher_output: bool,
    pub(crate) coordinator: PathBuf,
    pub(crate) ctl: PathBuf,
    /// Marks everything that this run starts, on all nodes.
    pub(crate) token: Token,
}

impl Arguments {
    pub(crate) fn into_job(self) -> Outcome<Job> {
        let mut environment: BTreeMap<OsString, OsString> = std::env::vars_os().collect();
        if let Some(job) = forget_another_job(&mut environment) {
            talk::tell(&format!(
                "warning: {} are those of job {job}, whose program has submitted this one: they have no effect",
                OF_A_JOB.join(", ")
            ));
        }
        if let Some(prefix) = &self.prefix {
            environment.insert("SCR_PREFIX".into(), prefix.into());
        }
        if let Some(hosts) = &self.hosts {
            // Also for what is started: the launchers' variables.
            environment.insert("SCR_NODELIST".into(), hosts.into());
        }
        if self.keep_unsealed {
            environment.insert("SCRFS_KEEP_UNSEALED".into(), "1".into());
        }
        if let Some(way) = self.restarting.way() {
            environment.insert("SCRFS_RESTART".into(), way.into());
            environment.insert("SCRFS_FETCH".into(), way.into());
        }
        start_once(&environment)?;
        self.refuse_empty_words()?;
        let mut sources = Sources::of_process(environment.clone()).map_err(|e| {
            Failure::new(format!("this process's user or working directory: {e}")).hint(config::PROCESS_HINT)
        })?;
        if let Some(prefix) = &self.prefix {
            sources.give("SCR_PREFIX", "--prefix", prefix.into());
        }
        if let Some(hosts) = &self.hosts {
            sources.give("SCR_NODELIST", "--hosts", hosts.into());
        }
        let load = |sources: &Sources| {
            Config::load(sources, config::read_file).map_err(|e| Failure::new(&e).hint(e.hint()).code(2))
        };
        let mut config = load(&sources)?;
        // Nobody has named hosts; this one alone is no guess where a scheduler has given others.
        if config.nodes == [sources.host.clone()]
            && is_unset(&environment, &"SCR_NODELIST".into())
            && let Some(hosts) = allocation::hosts(self.launcher, &environment)?
        {
            sources.give("SCR_NODELIST", "--launcher", hosts.clone().into());
            environment.insert("SCR_NODELIST".into(), hosts.into());
            config = load(&sources)?;
        }
        for warning in &config.warnings {
            talk::tell(&format!("warning: {warning}"));
        }
        let excluded = excluded(&config);
        let end = allocation::end(config.advice.end_time, &environment);
        let end_time = end.at;
        let mut plan = self.plan(&config, &end)?;
        if plan.hosts.len() > plan.min_nodes.unwrap_or(plan.nodes) {
            allocation::look_for_no_kill(&environment);
        }
        let (launcher, service) = self.launchers(&config, &environment, &sources.host)?;
        if launcher.is_program() {
            plan.launcher_timeout = Duration::ZERO;
        }
        let ranks_per_node = match launcher.name() {
            "none" | "pernode" => 1,
            _ => self.ranks_per_node(&environment, plan.nodes)?,
        };
        warn_of_launcher(&self.program, launcher.name());
        let prefix =
            self.name.as_ref().map_or_else(|| config.prefix.clone(), |name| config.prefix.join(name));
        let mount = self.mount.map_or(Ok(config.mount), |mount| absolute(&mount))?;
        let mut bases = config.cache_bases.clone();
        bases.push(config.control_base.clone());
        prefix::is_outside(&prefix, &mount, &bases)?;
        if self.name.is_some() {
            make_prefix(&config.prefix, &prefix)?;
        }
        let token = Token {
            stamp: start_stamp(),
            pid: std::process::id(),
            host: sources.host.clone(),
            job: format!("{}/{}", config.user, config.job_id),
            name: self.name.clone().unwrap_or_default(),
        };
        // All parts are to see the same, whatever their own working directory is.
        environment.insert("SCR_PREFIX".into(), prefix.clone().into());
        environment.insert("SCR_JOB_ID".into(), config.job_id.clone().into());
        environment.insert("SCR_USER_NAME".into(), config.user.clone().into());
        match end_time {
            Some(end_time) => environment.insert("SCRFS_END_TIME".into(), end_time.to_string().into()),
            // One in a file, which is past, would hold for the coordinators.
            None if config.advice.end_time > 0 => environment.insert("SCRFS_END_TIME".into(), "0".into()),
            None => environment.remove(OsStr::new("SCRFS_END_TIME")),
        };
        // Of a scrfs-run around this one.
        environment.remove(OsStr::new(RUN_VARIABLE));
        let user_file = config.user_file.iter().map(|(name, text)| (name.into(), text.into()));
        let user_file = user_file.filter(|(name, _)| is_unset(&environment, name)).collect();
        plan.fresh = self.fresh && !is_requeued(&environment);
        let coordinator = self.coordinator.map(|path| absolute(&path)).transpose()?;
        let beside = beside_this_program()?;
        check_below(config.checkpoint_path.as_deref(), &mount)?;
        let halt_rules = AdviceRules {
            halt_seconds: config.advice.halt_seconds,
            end_time: end_time.unwrap_or_default(),
            ..AdviceRules::default()
        };
        Ok(Job {
            enable: config.enable,
            plan,
            halt_rules,
            excluded,
            ranks_per_node,
            mount,
            checkpoint_path: config.checkpoint_path,
            prefix,
            end_question: end.question,
            flush_every: config.flush_every,
            program: self.program,
            lines: Lines { launcher, service, environment, user_file },
            raw_launcher_output: self.raw_launcher_output,
            coordinator: coordinator.unwrap_or_else(|| beside.join("scrfs-coordinator")),
            ctl: beside.join("scrfs-ctl"),
            token,
        })
    }

    /// A word that is empty is a script's variable that is not set.
    fn refuse_empty_words(&self) -> Outcome {
        let none = |word: Option<&OsString>| word.is_some_and(|word| word.is_empty());
        let wrong = if none(self.program.first()) {
            "the program's name is empty"
        } else if self.launcher_arg.iter().any(|word| word.is_empty()) {
            "--launcher-arg \"\": there is nothing in it"
        } else {
            return Ok(());
        };
        Err(Failure::new(wrong).hint("a script's variable may be unset").code(2))
    }

    fn ranks_per_node(&self, environment: &BTreeMap<OsString, OsString>, nodes: usize) -> Outcome<usize> {
        if let Some(ranks) = self.ranks_per_node {
            return Ok(size(ranks));
        }
        let variable = |name: &str| environment.get(OsStr::new(name))?.to_str().map(str::to_owned);
        layout::ranks_per_node(variable, nodes)
            .map_err(|wrong| Failure::new(wrong).hint("say it with --ranks-per-node").code(2))
    }

    /// The program's and our own.
    fn launchers(
        &self,
        config: &Config,
        environment: &BTreeMap<OsString, OsString>,
        host: &str,
    ) -> Outcome<(Arc<dyn Launcher>, Arc<dyn Launcher>)> {
        let slurm = environment.get(OsStr::new("SLURM_JOB_ID")).is_some_and(|id| !id.is_empty());
        let asked = if self.mpirun.is_some() { Asked::Mpirun } else { self.launcher };
        let may_be_srun = slurm && matches!(asked, Asked::Auto | Asked::Pernode);
        let program = self.launcher_program.clone().or_else(|| self.mpirun.clone());
        let around = Surroundings {
            program: program.map(in_path_or_absolute).transpose()?,
            extra: self.launcher_arg.clone(),
            srun: if may_be_srun { scheduler::mpi_plugins() } else { None },
            slurm,
            here_alone: config.nodes.len() == 1 && same_host(&config.nodes[0], host),
        };
        let takes_none = asked == Asked::None || asked == Asked::Pernode && around.here_alone;
        if takes_none && (around.program.is_some() || !around.extra.is_empty()) {
            return Err(Failure::new(
                "--launcher-program and --launcher-arg are for a launcher, and there is none here",
            )
            .hint("leave them out, or name a launcher with --launcher")
            .code(2));
        }
        let choice = choose(asked, &around).map_err(|wrong| {
            Failure::new(format!("--launcher: {wrong}"))
                .hint("`--launcher auto` chooses; --hosts names the hosts")
                .code(2)
        })?;
        if let Some(why) = choice.why {
            talk::tell(&format!("launcher: {why}"));
        }
        Ok((choice.launcher, choice.service))
    }

    fn plan(&self, config: &Config, allocation: &allocation::End) -> Outcome<Plan> {
        if let Some((one, other)) = hosts::twice(&config.nodes) {
            return Err(Failure::new(format!(
                "{one} and {other} of the list of hosts (SCR_NODELIST) are one host"
            ))
            .hint("name each host once, all with their domain or all without")
            .code(2));
        }
        let usable = config.nodes.len() - excluded(config).len();
        let nodes = self.nodes.map_or(usable.max(1), size);
        if nodes > usable || usable == 0 {
            let excluded = match config.nodes.len() - usable {
                0 => String::new(),
                excluded => format!(" without the {excluded} that SCR_EXCLUDE_NODES leaves out"),
            };
            return Err(Failure::new(format!("nodes are wanted: {nodes}; the list has {usable}{excluded}"))
                .hint("name more with --hosts, or fewer with --nodes")
                .code(2));
        }
        Ok(Plan {
            hosts: config.nodes.clone(),
            nodes,
            min_nodes: config.relaunch.min_nodes.map(size),
            runs: config.relaunch.runs,
            ready_limit: Duration::from_secs(self.ready_limit),
            flush_limit: Duration::from_secs(self.flush_limit),
            launcher_timeout: config.relaunch.launcher_timeout,
            node_timeout: config.node_timeout,
            // Markers protect nothing then, and no dataset becomes complete.
            watchdog: if config.enable { config.relaunch.watchdog_timeout } else { Duration::ZERO },
            fresh: false,
            end: EndPlan {
                grace: config.ending.grace,
                signal: signal_number(config.ending.signal)?,
                halt_grace: config.ending.halt_grace,
                left: allocation.at.map(|end| Duration::from_secs(end.saturating_sub(allocation::now()))),
                asks: allocation.question.is_some(),
                reserve: config.ending.reserve(),
                early: Duration::from_secs(config.advice.halt_seconds),
                keep_unsealed: config.restarting.keep_unsealed,
            },
        })
    }
}

/// What tells the program of a run of its job.
const OF_A_JOB: [&str; 3] = ["SCR_JOB_ID", "SCR_NODELIST", "SCRFS_END_TIME"];

/// A program of another scrfs-run that submits a job gives it its environment: what is in it of
/// that other job, whose id is the answer, goes.
fn forget_another_job(environment: &mut BTreeMap<OsString, OsString>) -> Option<String> {
    let value = |name: &str| environment.get(OsStr::new(name))?.to_str();
    let (own, inherited) = (value(SLURM_JOB)?.to_owned(), value("SCR_JOB_ID")?.to_owned());
    let outer = Token::parse(value(RUN_VARIABLE)?)?;
    let is_theirs = outer.job.split_once('/').is_some_and(|(_, id)| id == inherited);
    // One that is no number is a user's word for several jobs.
    let is_slurms = inherited.bytes().all(|byte| byte.is_ascii_digit());
    if own.is_empty() || own == inherited || !is_theirs || !is_slurms {
        return None;
    }
    environment.retain(|name, _| OF_A_JOB.iter().all(|of_a_job| name != of_a_job));
    Some(inherited)
}

/// Below a launcher there would be one for each rank, and they would take the nodes from one
/// another.
fn start_once(environment: &BTreeMap<OsString, OsString>) -> Outcome {
    for (variable, launcher) in [("SLURM_STEP_NUM_TASKS", "srun"), ("OMPI_COMM_WORLD_SIZE", "mpirun")] {
        let tasks = environment.get(OsStr::new(variable)).and_then(|text| text.to_str()?.parse::<u64>().ok());
        if let Some(tasks) = tasks.filter(|tasks| *tasks > 1) {
            return Err(Failure::new(format!(
                "scrfs-run is one of {tasks} tasks of {launcher} ({variable})"
            ))
            .hint("start it once, without a launcher: it starts the program on all nodes by itself")
            .code(2));
        }
    }
    Ok(())
}

fn warn_of_launcher(program: &[OsString], driver: &str) {
    let name = program.first().and_then(|program| Path::new(program).file_name()?.to_str());
    if let Some(name) = name.filter(|name| ["mpirun", "mpiexec", "srun", "orterun", "prun"].contains(name))
        && !["none", "pernode"].contains(&driver)
    {
        talk::tell(&format!("warning: the program is {name}, and is started once for each rank"));
        talk::line("hint: name what it would start; --launcher and --launcher-arg say how that is started");
    }
}

/// A batch script that is run again says the same again: what its job has protected meanwhile is
/// what it is to go on from.
fn is_requeued(environment: &BTreeMap<OsString, OsString>) -> bool {
    let count = environment
        .get(OsStr::new("SLURM_RESTART_COUNT"))
        .and_then(|text| text.to_str()?.parse::<u64>().ok());
    let again = count.is_some_and(|count| count > 0);
    if again {
        talk::line(
            "scrfs-run: --fresh has no effect: this job was queued again (SLURM_RESTART_COUNT), and goes on from what it has",
        );
    }
    again
}

/// A directory in the prefix, and a part of the run's mark.
fn run_name(text: &str) -> Result<String, String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let good = !text.is_empty() && text.len() <= 64 && text.chars().all(plain) && !text.starts_with('.');
    good.then(|| text.to_owned())
        .ok_or_else(|| "letters, digits, `-`, `_` and `.`; at most 64; no `.` first".to_owned())
}

/// Of the prefix of a named run the parent is the job's; made here if it is not there, as for other
/// runs. That it cannot be made is told when its own is looked at. Its own is refused where a
/// stranger was first.
fn make_prefix(prefix: &Path, own: &Path) -> Outcome {
    let (prefix, own) = (prefix.to_owned(), own.to_owned());
    let made = bounded::within(Duration::from_secs(10), move || {
        drop(scrfs::prefix::make(&prefix));
        strangers::check(&own)
    });
    match made {
        Err(error) if strangers::is_of_strangers(&error) => Err(Failure::new(error).hint(
            "choose another --name, or a prefix that nobody else can write to with --prefix or SCR_PREFIX",
        )),
        _ => Ok(()),
    }
}

/// Hosts of the list that `SCR_EXCLUDE_NODES` names, with or without their domain.
fn excluded(config: &Config) -> Vec<String> {
    let is_named = |host: &&String| config.exclude_nodes.iter().any(|named| same_host(named, host));
    config.nodes.iter().filter(is_named).cloned().collect()
}

fn signal_number(name: &str) -> Outcome<u8> {
    let number =
        format!("SIG{name}").parse::<Signal>().ok().and_then(|signal| u8::try_from(signal as i32).ok());
    number.ok_or_else(|| {
        Failure::new(format!("SCRFS_HALT_SIGNAL: no signal {name}"))
            .hint("name one such as TERM or USR1")
            .code(2)
    })
}

/// An empty value unsets.
fn is_unset(environment: &BTreeMap<OsString, OsString>, name: &OsString) -> bool {
    environment.get(name).is_none_or(|value| value.to_string_lossy().trim().is_empty())
}

/// What is started may have another working directory.
fn absolute(path: &Path) -> Outcome<PathBuf> {
    std::path::absolute(path).map_err(|e| Failure::system(path.display(), &e))
}

/// One that is only a name is looked up in PATH.
fn in_path_or_absolute(program: OsString) -> Outcome<OsString> {
    let is_path = program.as_encoded_bytes().contains(&b'/');
    if is_path { Ok(absolute(Path::new(&program))?.into()) } else { Ok(program) }
}

/// Microseconds since 1970.
fn start_stamp() -> u128 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |t| t.as_micros())
}

fn beside_this_program() -> Outcome<PathBuf> {
    let exe = std::env::current_exe().map_err(|e| Failure::system("own path", &e))?;
    Ok(exe.parent().unwrap_or(Path::new("/")).to_owned())
}

fn size(n: u32) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}

/// `SCRFS_CHECKPOINT_PATH` names a directory of the mount.
fn check_below(path: Option<&Path>, mount: &Path) -> Outcome {
    let Some(path) = path else { return Ok(()) };
    scrfs::checkpoint_path::relative(path, mount).map(drop).map_err(|refused| {
        Failure::new(format!("SCRFS_CHECKPOINT_PATH: {refused}"))
            .hint("name a directory of its own, relative to the mount point")
            .code(2)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn what_a_job_inherits_of_the_one_that_has_submitted_it_has_no_effect() {
        for (token, id, slurm, forgotten) in [
            ("1-1@h/u/77", "77", "78", Some("77")),
            ("1-1@h/u/77", "77", "77", None),
            ("1-1@h/u/77", "5", "78", None),
            ("1-1@h/u/mine", "mine", "78", None),
            ("", "77", "78", None),
        ] {
            let set = [(RUN_VARIABLE, token), ("SCR_JOB_ID", id), (SLURM_JOB, slurm), ("SCR_NODELIST", "n1")];
            let mut environment = set.iter().map(|(name, value)| (name.into(), value.into())).collect();
            assert_eq!(forget_another_job(&mut environment).as_deref(), forgotten, "{set:?}");
            let left = environment.contains_key(OsStr::new("SCR_NODELIST"));
            assert_eq!((left, environment.len()), (forgotten.is_none(), if left { 4 } else { 2 }));
        }
    }

    #[test]
    fn the_command_line_is_sound() {
        Arguments::command().debug_assert();
        let a = Arguments::parse_from([
            "scrfs-run",
            "--hosts",
            "n[0-4]",
            "--nodes",
            "4",
            "--",
            "lmp",
            "-in",
            "x",
        ]);
        assert_eq!((a.nodes, a.program.len()), (Some(4), 3));
        assert!(Arguments::try_parse_from(["scrfs-run", "--nodes", "0", "--", "x"]).is_err());
        assert!(Arguments::try_parse_from(["scrfs-run"]).is_err());
        let limits = |option: &str, text: &str| {
            Arguments::try_parse_from(["scrfs-run", option, text, "--", "x"]).is_ok()
        };
        for (option, text, good) in [
            ("--ready-limit", "0", false),
            ("--ready-limit", "1", true),
            ("--ready-limit", "18446744073709551615", false),
            ("--flush-limit", "0", true),
            ("--flush-limit", "31536000", true),
            ("--flush-limit", "31536001", false),
            ("--flush-limit", "18446744073709551615", false),
        ] {
            assert_eq!(limits(option, text), good, "{option} {text}");
        }
        for (words, part) in
            [(&["--", ""][..], "program"), (&["--launcher-arg", "", "--", "x"], "--launcher-arg")]
        {
            let words = [&["scrfs-run"], words].concat();
            let failure = Arguments::parse_from(words).refuse_empty_words().unwrap_err();
            assert!(failure.code == 2 && failure.message.contains(part), "{failure}");
        }
        assert!(Arguments::parse_from(["scrfs-run", "--", "x", ""]).refuse_empty_words().is_ok());
        let place = tempfile::tempdir().unwrap();
        let own = place.path().join("run");
        assert!(make_prefix(place.path(), &own).is_ok() && place.path().join(".scr").is_dir());
        std::fs::create_dir(&own).unwrap();
        std::os::unix::fs::chown(&own, Some(54_322), None).unwrap();
        assert!(make_prefix(place.path(), &own).is_ok(), "a colleague's");
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o1777);
        std::fs::set_permissions(place.path(), open).unwrap();
        let failure = make_prefix(place.path(), &own).unwrap_err();
        assert!(failure.message.contains("run: it belongs to user 54322"), "{failure}");
        for bad in ["", ".x", "a/b", "a#b", &"x".repeat(65)] {
            assert!(run_name(bad).is_err(), "{bad}");
        }
        assert_eq!(run_name("left.2_a-b").unwrap(), "left.2_a-b");
        let restarts = |count: &str| [("SLURM_RESTART_COUNT".into(), count.into())].into();
        assert!(
            is_requeued(&restarts("1")) && !is_requeued(&restarts("0")) && !is_requeued(&BTreeMap::new())
        );
        for name in config::defs::SIGNALS {
            assert!(signal_number(name).unwrap() > 0, "{name}");
        }
    }
}

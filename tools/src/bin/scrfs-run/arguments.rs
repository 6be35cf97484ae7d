//! The command line and the parameters, as one checked value.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Parser;
use scrfs::config::{self, Config, Sources};
use scrfs_tools::node::MOUNT;
use scrfs_tools::probe::RUN_VARIABLE;
use scrfs_tools::token::Token;
use scrfs_tools::{Failure, Outcome, output};

use crate::launcher::Mpirun;
use crate::supervise::Plan;

/// Run a program with checkpoints in an scrfs mount; start it again without the nodes that die.
///
/// Parameters (SCR_FLUSH, SCR_COPY_TYPE, ...) come from the environment, `$SCR_PREFIX/.scrconf` and /etc/scrfs.conf.
/// The program finds the name of the checkpoint to restart from in SCRFS_CURRENT (empty: none), and its files at the
/// same paths as before.
#[derive(Debug, Parser)]
#[command(name = "scrfs-run", version, max_term_width = 100)]
pub(crate) struct Arguments {
    /// Hosts, such as `node[0-4]`; those beyond what is needed are spares [default: SCR_NODELIST, the scheduler's].
    #[arg(long, value_name = "LIST")]
    hosts: Option<String>,
    /// Nodes that run the program [default: all].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    nodes: Option<u32>,
    /// Ranks of the program on each node.
    #[arg(long, value_name = "K", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    ranks_per_node: u32,
    /// Where scrfs is mounted on every node.
    #[arg(long, value_name = "DIR", default_value = MOUNT)]
    mount: PathBuf,
    /// The job's directory on the parallel file system [default: SCR_PREFIX, else the working directory].
    #[arg(long, value_name = "DIR")]
    prefix: Option<PathBuf>,
    /// The launcher.
    #[arg(long, value_name = "PROGRAM", default_value = "mpirun")]
    mpirun: OsString,
    /// One more argument of the program's mpirun; may be given again.
    #[arg(long, value_name = "ARG", allow_hyphen_values = true)]
    mpirun_arg: Vec<OsString>,
    /// The coordinator [default: beside this program].
    #[arg(long, value_name = "PROGRAM")]
    coordinator: Option<PathBuf>,
    /// Seconds that recovery may take before it is tried again.
    #[arg(long, value_name = "SECONDS", default_value_t = 900)]
    ready_limit: u64,
    /// Seconds that flushes may go on after the program's end.
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    flush_limit: u64,
    /// The program and its arguments.
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// What is to be run, checked.
#[derive(Debug)]
pub(crate) struct Job {
    /// `SCR_ENABLE`.
    pub(crate) enable: bool,
    pub(crate) plan: Plan,
    /// `SCR_EXCLUDE_NODES`.
    pub(crate) excluded: Vec<String>,
    pub(crate) ranks_per_node: usize,
    pub(crate) mount: PathBuf,
    pub(crate) prefix: PathBuf,
    pub(crate) flush_every: u32,
    pub(crate) program: Vec<OsString>,
    pub(crate) mpirun: Mpirun,
    pub(crate) coordinator: PathBuf,
    pub(crate) ctl: PathBuf,
    /// Marks everything that this run starts, on all nodes.
    pub(crate) token: Token,
}

impl Arguments {
    pub(crate) fn into_job(self) -> Outcome<Job> {
        let mut environment: BTreeMap<OsString, OsString> = std::env::vars_os().collect();
        if let Some(prefix) = &self.prefix {
            environment.insert("SCR_PREFIX".into(), prefix.into());
        }
        if let Some(hosts) = &self.hosts {
            environment.insert("SCR_NODELIST".into(), hosts.into());
        }
        let sources = Sources::of_process(environment.clone()).map_err(|e| {
            Failure::new(format!("this process's user or working directory: {e}"))
                .hint("start it in a directory that exists")
        })?;
        let config = Config::load(&sources, config::read_file)
            .map_err(|e| Failure::new(e).hint("the parameters are in scrfs.conf(5)").code(2))?;
        for warning in &config.warnings {
            output::talk(&format!("scrfs-run: warning: {warning}"));
        }
        let plan = self.plan(&config)?;
        let token = Token {
            stamp: start_stamp(),
            pid: std::process::id(),
            host: sources.host.clone(),
            job: format!("{}/{}", config.user, config.job_id),
        };
        // All parts are to see the same, whatever their own working directory is.
        environment.insert("SCR_PREFIX".into(), config.prefix.clone().into());
        environment.insert("SCR_JOB_ID".into(), config.job_id.clone().into());
        environment.insert("SCR_USER_NAME".into(), config.user.clone().into());
        if config.advice.end_time > 0 {
            environment.insert("SCRFS_END_TIME".into(), config.advice.end_time.to_string().into());
        }
        // Of a scrfs-run around this one.
        environment.remove(OsStr::new(RUN_VARIABLE));
        let user_file = config.user_file.iter().map(|(name, text)| (name.into(), text.into()));
        let user_file = user_file.filter(|(name, _)| is_unset(&environment, name)).collect();
        let coordinator = self.coordinator.map(|path| absolute(&path)).transpose()?;
        let beside = beside_this_program()?;
        Ok(Job {
            enable: config.enable,
            plan,
            excluded: config.exclude_nodes,
            ranks_per_node: size(self.ranks_per_node),
            mount: absolute(&self.mount)?,
            prefix: config.prefix,
            flush_every: config.flush_every,
            program: self.program,
            mpirun: Mpirun {
                program: launcher(self.mpirun)?,
                extra: self.mpirun_arg,
                environment,
                user_file,
            },
            coordinator: coordinator.unwrap_or_else(|| beside.join("scrfs-coordinator")),
            ctl: beside.join("scrfs-ctl"),
            token,
        })
    }

    fn plan(&self, config: &Config) -> Outcome<Plan> {
        let usable = config.nodes.iter().filter(|h| !config.exclude_nodes.contains(h)).count();
        let nodes = self.nodes.map_or(usable, size);
        if nodes > usable || usable == 0 {
            return Err(Failure::new(format!("{nodes} nodes are wanted and {usable} are in the list"))
                .hint("name more with --hosts, or fewer with --nodes")
                .code(2));
        }
        Ok(Plan {
            hosts: config.nodes.clone(),
            nodes,
            min_nodes: config.min_nodes.map(size),
            runs: config.runs,
            ready_limit: Duration::from_secs(self.ready_limit),
            flush_limit: Duration::from_secs(self.flush_limit),
        })
    }
}

/// An empty value unsets.
fn is_unset(environment: &BTreeMap<OsString, OsString>, name: &OsString) -> bool {
    environment.get(name).is_none_or(|value| value.to_string_lossy().trim().is_empty())
}

/// What is started may have another working directory.
fn absolute(path: &Path) -> Outcome<PathBuf> {
    std::path::absolute(path).map_err(|e| Failure::new(format!("{}: {e}", path.display())))
}

/// One that is only a name is looked up in PATH.
fn launcher(program: OsString) -> Outcome<OsString> {
    let is_path = program.as_encoded_bytes().contains(&b'/');
    if is_path { Ok(absolute(Path::new(&program))?.into()) } else { Ok(program) }
}

/// Microseconds since 1970.
fn start_stamp() -> u128 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |t| t.as_micros())
}

fn beside_this_program() -> Outcome<PathBuf> {
    let exe = std::env::current_exe().map_err(|e| Failure::new(format!("own path: {e}")))?;
    Ok(exe.parent().unwrap_or(Path::new("/")).to_owned())
}

fn size(n: u32) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

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
    }
}

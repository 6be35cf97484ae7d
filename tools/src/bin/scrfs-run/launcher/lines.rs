//! The command lines of one job: its program, its coordinators, its small questions.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::sync::Arc;

use nix::sys::signal::Signal;
use scrfs::config::hosts::list;
use scrfs::store::private::{OPEN_MPI_AGENTS, OPEN_MPI_PARTS, OPEN_MPI_PLACES};

use super::none::Alone;
use super::{CommandLine, Cpus, Kind, Launcher, Task};
use crate::layout;
use crate::supervise::{Part, Start};

/// Of Open MPI's parameters in the environment, those that say how to reach nodes, what to start
/// there, and where it keeps its files; the others are the program's.
const REACH: [&str; 7] = [
    "OMPI_MCA_plm_",
    "OMPI_MCA_oob_",
    "OMPI_MCA_btl_tcp_if_",
    OPEN_MPI_PLACES[0],
    OPEN_MPI_PLACES[1],
    OPEN_MPI_AGENTS[0].0,
    OPEN_MPI_AGENTS[1].0,
];

/// Prefixes of what MPI libraries and launchers put into the environment.
const MPI: [&str; 5] = ["OMPI_", "PMIX_", "PMI_", "ORTE_", "PRTE_"];

/// What coordinators are told of what a restart goes on from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Restart {
    /// Datasets of earlier epochs are not presented.
    pub(crate) not_before: u64,
    /// `--name`; empty: there is only one scrfs-run in the job.
    pub(crate) name: String,
}

impl Restart {
    fn arguments(&self) -> Vec<OsString> {
        let mut arguments = Vec::new();
        if self.not_before > 0 {
            arguments.extend(["--not-before".into(), self.not_before.to_string().into()]);
        }
        if !self.name.is_empty() {
            arguments.extend(["--name".into(), OsString::from(&self.name)]);
        }
        arguments
    }
}

/// Builds them.
#[derive(Debug, Clone)]
pub(crate) struct Lines {
    /// Of the program.
    pub(crate) launcher: Arc<dyn Launcher>,
    /// Of our own programs.
    pub(crate) service: Arc<dyn Launcher>,
    /// The environment of scrfs-run, and the job's parameters.
    pub(crate) environment: BTreeMap<OsString, OsString>,
    /// What the user file sets and the environment does not; for our own programs.
    pub(crate) user_file: BTreeMap<OsString, OsString>,
}

impl Lines {
    /// Whoever starts that part.
    pub(crate) fn of(&self, part: Part) -> &Arc<dyn Launcher> {
        if part == Part::Program { &self.launcher } else { &self.service }
    }

    /// The user's program; its environment is the user's. `set` is added and goes to every rank, as
    /// all `SCR*` does.
    pub(crate) fn program(
        &self,
        hosts: &[String],
        ranks_per_node: usize,
        command: &[OsString],
        set: &[(&str, OsString)],
    ) -> CommandLine {
        let mut environment = self.environment.clone();
        environment.extend(set.iter().map(|(name, value)| (OsString::from(name), value.clone())));
        self.launcher.line(Task {
            hosts: hosts.to_vec(),
            per_node: ranks_per_node,
            command: command.to_vec(),
            environment,
            kind: Kind::Program,
            cpus: layout::cpus_per_task(&self.environment, ranks_per_node),
        })
    }

    /// Sends `signal` to the processes of the program, of which `pid` is the launcher; `None`: the
    /// launcher passes it on.
    pub(crate) fn signal(&self, signal: Signal, pid: u32) -> Option<CommandLine> {
        let arguments = self.launcher.signal(signal, pid)?;
        let (program, environment) = ("/bin/sh".into(), self.environment.clone());
        Some(CommandLine { program, arguments, environment, directory: Some("/".into()) })
    }

    /// One coordinator on each host: unbound, idle without spinning, untouched by the program's MPI
    /// settings. The program runs on some of the hosts, or all.
    pub(crate) fn coordinators(
        &self,
        (hosts, program): (&[String], &[String]),
        binary: &Path,
        start: Start,
        mount: &Path,
        restart: &Restart,
        set: &[(&str, OsString)],
    ) -> CommandLine {
        let start = match start {
            Start::Restart => "--restart",
            Start::Attach => "--attach",
        };
        // Coordinators take ranges for other words for their nodes: then the program runs on all.
        let program_hosts = list(program);
        let restart = restart.arguments();
        let mut command: Vec<&OsStr> = vec![
            binary.as_ref(),
            start.as_ref(),
            "--mount".as_ref(),
            mount.as_ref(),
            "--program-hosts".as_ref(),
            program_hosts.as_ref(),
        ];
        command.extend(restart.iter().map(OsString::as_os_str));
        self.service(&*self.service, hosts, &command, set, Kind::Service)
    }

    /// One of our small programs on each host.
    pub(crate) fn tool(&self, hosts: &[String], command: &[&OsStr]) -> CommandLine {
        self.service(&*self.service, hosts, command, &[], Kind::Tool)
    }

    /// The same on this host, which needs no launcher.
    pub(crate) fn here(&self, command: &[&OsStr]) -> CommandLine {
        self.service(&Alone, &[], command, &[], Kind::Tool)
    }

    /// Nothing of ours depends on the prefix: neither on the user file in it, nor on a working
    /// directory that may be there too.
    fn service(
        &self,
        launcher: &dyn Launcher,
        hosts: &[String],
        command: &[&OsStr],
        set: &[(&str, OsString)],
        kind: Kind,
    ) -> CommandLine {
        let mut environment = self.environment.clone();
        environment.retain(|name, _| is_kept(name));
        environment.extend(self.user_file.clone());
        environment.insert("SCR_CONF_FILE".into(), "/dev/null".into());
        environment.extend(set.iter().map(|(name, value)| (OsString::from(name), value.clone())));
        let line = launcher.line(Task {
            hosts: hosts.to_vec(),
            per_node: 1,
            command: command.iter().map(|&word| word.to_owned()).collect(),
            environment,
            kind,
            cpus: Cpus::Any,
        });
        CommandLine { directory: Some("/".into()), ..line }
    }
}

/// May this variable reach a launcher that runs our own programs?
fn is_kept(name: &OsStr) -> bool {
    let Some(name) = name.to_str() else { return true };
    // Leave to run as root is no parameter of MPI.
    !MPI.iter().any(|p| name.starts_with(p))
        || REACH.iter().chain(&OPEN_MPI_PARTS).any(|p| name.starts_with(p))
        || name.starts_with("OMPI_ALLOW_RUN_AS_ROOT")
}

//! Command lines of Open MPI's mpirun. Pure: what is to run in, program, arguments and environment out.
//!
//! Options that every mpirun gets here have one reason: without keepalive it never notices that a node lost its power.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use crate::supervise::Start;

/// A silent node is given up after four seconds.
const KEEPALIVE: [&str; 9] = [
    "--mca",
    "oob_tcp_keepalive_time",
    "2",
    "--mca",
    "oob_tcp_keepalive_intvl",
    "1",
    "--mca",
    "oob_tcp_keepalive_probes",
    "2",
];

/// Our own programs are guests on cores that are the program's.
const SERVICE: [&str; 6] = ["--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"];

/// Of Open MPI's parameters in the environment, those that say how to reach nodes; the others are the program's.
const REACH: [&str; 3] = ["OMPI_MCA_plm_", "OMPI_MCA_oob_", "OMPI_MCA_btl_tcp_if_"];

/// Prefixes of what MPI libraries and launchers put into the environment.
const MPI: [&str; 4] = ["OMPI_", "PMIX_", "PMI_", "ORTE_"];

/// How nice coordinators are: the program's own work comes first.
const NICE: &str = "5";

/// A command, ready to be started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CommandLine {
    pub(crate) program: OsString,
    pub(crate) arguments: Vec<OsString>,
    /// All of it; nothing is inherited.
    pub(crate) environment: BTreeMap<OsString, OsString>,
    /// Where it runs; `None`: in this program's working directory.
    pub(crate) directory: Option<PathBuf>,
}

/// What coordinators are told of what a restart goes on from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Restart {
    /// Datasets of earlier epochs are not presented.
    pub(crate) not_before: u64,
    /// `--name`; empty: there is only one scrfs-run in the job.
    pub(crate) name: String,
}

impl Restart {
    pub(crate) fn arguments(&self) -> Vec<OsString> {
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

/// Builds command lines of one job.
#[derive(Debug, Clone)]
pub(crate) struct Mpirun {
    /// `mpirun`, or where it is.
    pub(crate) program: OsString,
    /// More arguments, for the program only.
    pub(crate) extra: Vec<OsString>,
    /// The environment of scrfs-run, and the job's parameters.
    pub(crate) environment: BTreeMap<OsString, OsString>,
    /// What the user file sets and the environment does not; for our own programs.
    pub(crate) user_file: BTreeMap<OsString, OsString>,
}

impl Mpirun {
    /// The user's program; its environment is the user's. `set` is added and goes to every rank, as all `SCR*` does.
    pub(crate) fn program(
        &self,
        hosts: &[String],
        ranks_per_node: usize,
        command: &[OsString],
        set: &[(&str, OsString)],
    ) -> CommandLine {
        let mut environment = self.environment.clone();
        environment.extend(set.iter().map(|(name, value)| (OsString::from(name), value.clone())));
        let mut arguments = placed(hosts, ranks_per_node);
        arguments.extend(KEEPALIVE.map(OsString::from));
        arguments.extend(forwarded(&environment));
        arguments.extend(self.extra.iter().cloned());
        arguments.extend(command.iter().cloned());
        CommandLine { program: self.program.clone(), arguments, environment, directory: None }
    }

    /// One coordinator on each host: unbound, niced, idle without spinning, untouched by the program's MPI settings.
    pub(crate) fn coordinators(
        &self,
        hosts: &[String],
        binary: &Path,
        start: Start,
        mount: &Path,
        restart: &Restart,
        set: &[(&str, OsString)],
    ) -> CommandLine {
        let mut line = self.service(hosts, set);
        let start = match start {
            Start::Restart => "--restart",
            Start::Attach => "--attach",
        };
        let command: [&OsStr; 7] = [
            "nice".as_ref(),
            "-n".as_ref(),
            NICE.as_ref(),
            binary.as_ref(),
            start.as_ref(),
            "--mount".as_ref(),
            mount.as_ref(),
        ];
        line.arguments.extend(command.map(OsStr::to_owned));
        // The program runs where its coordinators do.
        line.arguments.extend(["--program-hosts".into(), hosts.join(",").into()]);
        line.arguments.extend(restart.arguments());
        line
    }

    /// One of our small programs on each host.
    pub(crate) fn tool(&self, hosts: &[String], command: &[&OsStr]) -> CommandLine {
        let mut line = self.service(hosts, &[]);
        line.arguments.extend(command.iter().map(|&word| word.to_owned()));
        line
    }

    /// Nothing of ours depends on the prefix: neither on the user file in it, nor on a working directory that may be
    /// there too.
    fn service(&self, hosts: &[String], set: &[(&str, OsString)]) -> CommandLine {
        let mut environment = self.environment.clone();
        environment.retain(|name, _| is_kept(name));
        environment.extend(self.user_file.clone());
        environment.insert("SCR_CONF_FILE".into(), "/dev/null".into());
        environment.extend(set.iter().map(|(name, value)| (OsString::from(name), value.clone())));
        let mut arguments = placed(hosts, 1);
        arguments.extend(SERVICE.map(OsString::from));
        arguments.extend(KEEPALIVE.map(OsString::from));
        arguments.extend(forwarded(&environment));
        CommandLine { program: self.program.clone(), arguments, environment, directory: Some("/".into()) }
    }
}

fn placed(hosts: &[String], ranks_per_node: usize) -> Vec<OsString> {
    let list: Vec<String> = hosts.iter().map(|host| format!("{host}:{ranks_per_node}")).collect();
    let total = hosts.len().saturating_mul(ranks_per_node);
    [
        "--host".to_owned(),
        list.join(","),
        "-np".to_owned(),
        total.to_string(),
        "--map-by".to_owned(),
        format!("ppr:{ranks_per_node}:node"),
    ]
    .map(OsString::from)
    .to_vec()
}

/// `-x NAME` for each parameter of ours; the value travels in the environment, whatever is in it.
fn forwarded(environment: &BTreeMap<OsString, OsString>) -> Vec<OsString> {
    let ours = |name: &OsString| {
        name.to_str().is_some_and(|n| n.starts_with("SCR_") || n.starts_with("SCRFS_")) || name == "RUST_LOG"
    };
    environment
        .keys()
        .filter(|name| ours(name))
        .flat_map(|name| [OsString::from("-x"), name.clone()])
        .collect()
}

/// May this variable reach an mpirun that runs our own programs?
fn is_kept(name: &OsStr) -> bool {
    let Some(name) = name.to_str() else { return true };
    // Leave to run as root is no parameter of MPI.
    !MPI.iter().any(|p| name.starts_with(p))
        || REACH.iter().any(|p| name.starts_with(p))
        || name.starts_with("OMPI_ALLOW_RUN_AS_ROOT")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mpirun() -> Mpirun {
        let environment = [
            ("PATH", "/bin"),
            ("SCR_PREFIX", "/pfs/a b;c"),
            ("SCRATCH", "/tmp"),
            ("OMPI_MCA_btl", "self"),
            ("OMPI_MCA_plm_rsh_agent", "my rsh"),
            ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
            ("PMIX_RANK", "3"),
        ];
        Mpirun {
            program: "mpirun".into(),
            extra: vec!["--bind-to".into(), "core".into()],
            environment: environment.into_iter().map(|(n, v)| (n.into(), v.into())).collect(),
            user_file: [("SCR_FLUSH".into(), "3".into())].into(),
        }
    }

    fn words(line: &CommandLine) -> String {
        let words: Vec<_> = line.arguments.iter().map(|a| a.to_string_lossy().into_owned()).collect();
        words.join(" ").replace(&KEEPALIVE.join(" "), "KEEPALIVE")
    }

    fn hosts() -> Vec<String> {
        vec!["n1".to_owned(), "n2".to_owned()]
    }

    #[test]
    fn the_program_gets_the_users_environment_and_arguments() {
        let line = mpirun().program(
            &hosts(),
            3,
            &["lmp".into(), "-in".into(), "x y".into()],
            &[("SCRFS_CURRENT", "".into())],
        );
        assert_eq!(
            words(&line),
            "--host n1:3,n2:3 -np 6 --map-by ppr:3:node KEEPALIVE -x SCRFS_CURRENT -x SCR_PREFIX --bind-to core lmp -in x y"
        );
        assert_eq!(line.environment[OsStr::new("OMPI_MCA_btl")], "self");
        assert_eq!(line.environment[OsStr::new("SCRFS_CURRENT")], "");
        assert_eq!(line.directory, None);
    }

    #[test]
    fn coordinators_get_a_clean_one() {
        let line = mpirun().coordinators(
            &hosts(),
            "/opt/scrfs-coordinator".as_ref(),
            Start::Attach,
            "/scr".as_ref(),
            &Restart { not_before: 7, name: "left".to_owned() },
            &[("SCRFS_RUN", "t1".into())],
        );
        assert_eq!(
            words(&line),
            "--host n1:1,n2:1 -np 2 --map-by ppr:1:node --oversubscribe --bind-to none --mca mpi_yield_when_idle 1 \
             KEEPALIVE -x SCRFS_RUN -x SCR_CONF_FILE -x SCR_FLUSH -x SCR_PREFIX nice -n 5 /opt/scrfs-coordinator \
             --attach --mount /scr --program-hosts n1,n2 --not-before 7 --name left"
        );
        let names: Vec<_> = line.environment.keys().map(|n| n.to_string_lossy().into_owned()).collect();
        assert_eq!(
            names,
            [
                "OMPI_ALLOW_RUN_AS_ROOT",
                "OMPI_MCA_plm_rsh_agent",
                "PATH",
                "SCRATCH",
                "SCRFS_RUN",
                "SCR_CONF_FILE",
                "SCR_FLUSH",
                "SCR_PREFIX"
            ]
        );
        assert_eq!(line.directory.as_deref(), Some(Path::new("/")));
    }

    #[test]
    fn tools_run_once_on_each_host() {
        let line = mpirun().tool(&hosts()[1..], &["/opt/scrfs-ctl".as_ref(), "probe".as_ref()]);
        assert!(
            words(&line).starts_with("--host n2:1 -np 1 ") && words(&line).ends_with(" /opt/scrfs-ctl probe")
        );
    }
}

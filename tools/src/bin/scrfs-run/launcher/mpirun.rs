//! Open MPI's mpirun (4 and 5).
//!
//! Options that every mpirun gets here have one reason: without keepalive it never notices that a
//! node lost its power.
//!
//! By itself it binds each of one or two ranks to one core, whatever threads they have. `PE=n`
//! would count cores where a scheduler may count hardware threads, and be refused then: ranks with
//! several CPUs are not bound.

use std::collections::BTreeMap;
use std::ffi::OsString;

use scrfs_tools::output::escaped;

use super::{CommandLine, Cpus, Kind, Launcher, Refusal, Said, Task, word_after};

/// A silent node is given up after four seconds.
pub(super) const KEEPALIVE: [&str; 9] = [
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
pub(super) const SERVICE: [&str; 6] =
    ["--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"];

/// The `mpirun` of a job.
#[derive(Debug, Clone)]
pub(crate) struct Mpirun {
    /// `mpirun`, or where it is.
    pub(crate) program: OsString,
    /// More arguments, for the program only.
    pub(crate) extra: Vec<OsString>,
    /// More arguments, for all.
    pub(crate) reach: &'static [&'static str],
}

impl Launcher for Mpirun {
    fn name(&self) -> &'static str {
        "mpirun"
    }

    fn line(&self, task: Task) -> CommandLine {
        let Task { hosts, per_node, command, mut environment, kind, cpus } = task;
        // Under Slurm it starts its daemons with srun, which else waits for ever for cores that the
        // batch script's other steps have.
        environment.insert("SLURM_OVERLAP".into(), "1".into());
        let mut arguments = placed(&hosts, per_node);
        if kind != Kind::Program {
            arguments.extend(SERVICE.map(OsString::from));
        }
        arguments.extend(KEEPALIVE.map(OsString::from));
        arguments.extend(self.reach.iter().map(OsString::from));
        arguments.extend(forwarded(&environment));
        if kind == Kind::Program && cpus != Cpus::Any && !self.binds() {
            arguments.extend(["--bind-to", "none"].map(OsString::from));
        }
        if kind == Kind::Program {
            arguments.extend(self.extra.iter().cloned());
        }
        arguments.extend(command);
        CommandLine { program: self.program.clone(), arguments, environment, directory: None }
    }

    fn understand(&self, text: &str, pid: u32) -> Option<Said> {
        // A line alone may be a rank's.
        let is_block = text.starts_with(FENCE);
        if is_block && text.contains("lost communication with a remote daemon") {
            // The block's first node is where mpirun is.
            let remote = &text[text.find("Remote daemon").unwrap_or(0)..];
            return Some(Said::Lost(word_after(remote, "on node ").map(str::to_owned).into_iter().collect()));
        }
        if let Some(refusal) = if is_block { refusal(text) } else { wrong_option(text) } {
            return Some(Said::Refused(refusal));
        }
        let own = [format!(":{pid}] "), format!(":{pid:05}] ")].iter().any(|mark| text.contains(mark))
            && text.trim_start().starts_with('[');
        (own || is_noise(text)).then_some(Said::Noise)
    }

    fn fence(&self) -> Option<&'static str> {
        Some(FENCE)
    }
}

impl Mpirun {
    /// The user says where ranks run.
    fn binds(&self) -> bool {
        const BINDING: [&str; 5] = ["bind-to", "map-by", "cpus-per", "cpu-set", "rankfile"];
        let says = |argument: &OsString| BINDING.iter().any(|word| argument.to_string_lossy().contains(word));
        self.extra.iter().any(says)
    }
}

/// Open MPI says more than a line between lines of this beginning, mpirun as well as the library in
/// each rank.
pub(super) const FENCE: &str = "------------------------------------------------------------";

/// A word on a node that is gone, or that follows from it.
pub(super) fn is_noise(text: &str) -> bool {
    NOISE.iter().any(|phrase| text.contains(phrase))
}

/// What mpirun, its daemons and the library say when a node is gone, and what they say because of
/// that.
const NOISE: [&str; 18] = [
    "was unable to start the specified application as it encountered",
    "abort is already in progress",
    "MPI communication peer process has unexpectedly disconnected",
    "ORTE was unable to reliably start one or more daemons",
    "PRTE has lost communication",
    "ORTE does not know how to route a message",
    "An ORTE daemon has unexpectedly failed",
    "A daemon (pid",
    "ORTE_ERROR_LOG",
    "PRTE ERROR",
    "PMIX ERROR",
    "plm:rsh: Warning: setpgid",
    "Open MPI detected an inbound MPI TCP connection request",
    "Open MPI failed to TCP connect to a peer",
    "Open MPI accepted a TCP connection from what appears to be a",
    "was unable to complete a TCP connection",
    "total processes failed to start",
    "more process has sent help message",
];

const OPTIONS: &str = "`mpirun --help` lists its options; those of --launcher-arg go to it as they are";

/// The line that it begins with its own name.
fn wrong_option(text: &str) -> Option<Refusal> {
    let (name, what) = text.split_once(": Error: ")?;
    let own = ["mpirun", "mpiexec", "orterun", "prterun"].iter().any(|own| name.starts_with(own));
    (own && what.starts_with("unknown option"))
        .then(|| Refusal { what: format!("mpirun: {}", what.trim_end()), hint: OPTIONS })
}

/// In what mpirun says of arguments that it does not take.
const REFUSED: [&str; 4] = [
    "could not be executed",
    "unrecognized argument",
    "policy is not recognized",
    "Conflicting directives for",
];

/// Of a block between fences.
fn refusal(text: &str) -> Option<Refusal> {
    let executable = || executable(text).unwrap_or_else(|| "the program".to_owned());
    let node = || word_after(text, "Node:").unwrap_or("a node");
    if text.contains("not enough slots available") {
        let wanted = word_after(text, "satisfy the").unwrap_or("so many");
        return Some(Refusal {
            what: format!("mpirun has fewer slots than the {wanted} processes that are to run"),
            hint: "ask for fewer with --ranks-per-node, or allow more than cores with --launcher-arg --oversubscribe",
        });
    }
    if text.contains("detected an attempt to run as root") {
        return Some(Refusal {
            what: "mpirun does not run for root".to_owned(),
            hint: "start scrfs-run as the job's user; for root too: OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
        });
    }
    if text.contains("was unable to find the specified executable") {
        return Some(Refusal {
            what: format!("there is no program {} on {}", executable(), node()),
            hint: "it is looked for in PATH on the nodes; a path with a slash is taken as it is",
        });
    }
    if text.contains("it could not access") && text.contains("or execute an executable") {
        return Some(Refusal {
            what: format!("{} cannot be run on {}: it is not there, or not executable", executable(), node()),
            hint: "name a program that is there on every node and may be executed",
        });
    }
    if text.contains("tried to fork a new process via the \"execve\" system call") {
        let after = |key: &str| text.lines().find_map(|line| line.trim().strip_prefix(key)).map(str::trim);
        let (name, node) = (after("Application name:").unwrap_or("the program"), after("Local host:"));
        let why = after("Error:").unwrap_or("it failed");
        return Some(Refusal {
            what: format!("{name} cannot be run on {}: {why}", node.unwrap_or("a node")),
            hint: "name a program of this kind of machine, or a script whose first line names one",
        });
    }
    if text.contains("\"plm_rsh_agent\" was set to a path") {
        let agent = word_after(text, "plm_rsh_agent:").unwrap_or("the remote shell");
        return Some(Refusal {
            what: format!("mpirun starts its daemons with {agent}, which is not in PATH"),
            hint: "put it in PATH (PBS has pbs_tmrsh beside qsub), or choose another --launcher",
        });
    }
    if REFUSED.iter().any(|phrase| text.contains(phrase)) {
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with(FENCE));
        return Some(Refusal { what: lines.collect::<Vec<_>>().join(" "), hint: OPTIONS });
    }
    None
}

/// A path may have blanks and line breaks: it ends where the block goes on.
fn executable(text: &str) -> Option<String> {
    let (_, rest) = text.split_once("Executable:")?;
    let ends = ["\nNode:", "\n\n", "\n---"].iter().filter_map(|end| rest.find(end));
    let path = rest[..ends.min().unwrap_or(rest.len())].trim_matches([' ', '\n']);
    (!path.is_empty()).then(|| escaped(path))
}

/// Bytes of one list of hosts; an argument may have 128 KiB. mpirun adds up lists, and takes no
/// ranges.
const LIST_MAX: usize = 32 << 10;

fn placed(hosts: &[String], ranks_per_node: usize) -> Vec<OsString> {
    let mut lists: Vec<String> = Vec::new();
    for host in hosts {
        let host = format!("{host}:{ranks_per_node}");
        match lists.last_mut() {
            Some(list) if list.len() + host.len() < LIST_MAX => {
                list.push(',');
                list.push_str(&host);
            }
            _ => lists.push(host),
        }
    }
    let total = hosts.len().saturating_mul(ranks_per_node).to_string();
    let by_node = format!("ppr:{ranks_per_node}:node");
    let named = lists.into_iter().flat_map(|list| ["--host".to_owned(), list]);
    let counted = ["-np".to_owned(), total, "--map-by".to_owned(), by_node];
    named.chain(counted).map(OsString::from).collect()
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

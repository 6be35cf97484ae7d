//! `scrfs-ctl probe --count`: how many processes of this node may be the program's. Whether a
//! program lives must never be denied: so each process of the job's user counts that is not
//! certainly something else, whatever it has made of its name, its environment and its parents.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use scrfs_tools::probe::{RUN_VARIABLE, Report};
use scrfs_tools::token::Token;
use scrfs_tools::{Failure, Outcome, output};

use crate::probe::{host, processes};

/// Launchers set one of these for each process of a program, and not for what they reach nodes by.
const RANKS: [&str; 5] =
    ["OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "FLUX_TASK_RANK", "SCRFS_NODE_RANK"];
/// What a remote shell starts on a node for a launcher, in a word of its command line.
const DAEMONS: [&str; 3] = ["orted", "prted", "hydra_pmi_proxy"];
/// Whose children are the kernel's own threads.
const KTHREADD: u32 = 2;

/// An executable file: device and inode number.
type Executable = (u64, u64);

/// A process, by what may be read of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Process {
    name: String,
    parent: u32,
    users: Vec<u32>,
    /// It has ended, and nobody has waited for it. One whose first thread has ended lives by the
    /// others.
    is_zombie: bool,
    /// When it began, by a clock of this node.
    began: u64,
    executable: Option<Executable>,
    /// It was started with this run's mark. `None`: that cannot be read.
    marked: Option<bool>,
    /// A launcher has started it as a process of a program.
    is_rank: bool,
    says: Says,
}

/// What a process has among its arguments.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Says {
    #[default]
    Anything,
    /// `--restart`, as coordinators of a restart have.
    Restart,
    /// A launcher's daemon, as what brings it to another node has.
    Daemon,
}

impl Process {
    /// From `/proc/PID/status` (proc_pid_status(5)).
    fn parse(status: &str) -> Option<Self> {
        let field = |name: &str| {
            status.lines().find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim()))
        };
        let threads: u32 = field("Threads")?.parse().ok()?;
        Some(Self {
            name: field("Name")?.to_owned(),
            parent: field("PPid")?.parse().ok()?,
            users: field("Uid")?.split_whitespace().filter_map(|user| user.parse().ok()).collect(),
            is_zombie: field("State")?.starts_with(['Z', 'X']) && threads < 2,
            ..Self::default()
        })
    }

    fn read(pid: u32, mark: &str) -> Option<Self> {
        let place = format!("/proc/{pid}");
        let read = |file: &str| fs::read(format!("{place}/{file}")).ok().filter(|bytes| !bytes.is_empty());
        let mut process = Self::parse(&String::from_utf8_lossy(&read("status")?))?;
        process.began = began(&String::from_utf8_lossy(&read("stat")?)).unwrap_or(u64::MAX);
        process.executable = executable(Path::new(&format!("{place}/exe")));
        let environment = read("environ");
        process.marked = environment.as_deref().map(|bytes| {
            let mark = format!("{RUN_VARIABLE}={mark}");
            words(bytes).any(|word| word == mark.as_bytes())
        });
        let is_rank = |word: &[u8]| {
            let name = word.split(|&byte| byte == b'=').next().unwrap_or_default();
            RANKS.iter().any(|rank| rank.as_bytes() == name)
        };
        process.is_rank = environment.is_some_and(|bytes| words(&bytes).any(is_rank));
        let arguments = read("cmdline").unwrap_or_default();
        let is_daemon = |word: &[u8]| {
            let word = String::from_utf8_lossy(word);
            DAEMONS.iter().any(|daemon| word.contains(daemon))
        };
        if words(&arguments).any(|word| word == b"--restart") {
            process.says = Says::Restart;
        } else if words(&arguments).skip(1).any(is_daemon) {
            process.says = Says::Daemon;
        }
        Some(process)
    }

    /// All that it may act as is root.
    fn is_roots(&self) -> bool {
        self.users.iter().all(|user| *user == 0)
    }
}

fn words(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    bytes.split(|&byte| byte == 0)
}

/// From `/proc/PID/stat` (proc_pid_stat(5), `starttime`). The name may have blanks and parentheses.
fn began(stat: &str) -> Option<u64> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

fn executable(path: &Path) -> Option<Executable> {
    fs::metadata(path).ok().map(|of| (of.dev(), of.ino()))
}

/// What is known of the run whose program is counted.
#[derive(Debug, Clone, Default)]
struct Run {
    user: u32,
    /// The parent of this process: a launcher's daemon.
    asks: u32,
    /// scrfs-run, if it is on this node.
    starter: Option<u32>,
    /// The program's launcher there. Other children of scrfs-run may be what the program has left.
    launcher: Option<u32>,
    coordinator: Option<Executable>,
    /// The mount's.
    daemon: Option<Executable>,
    /// This program's, which becomes a launcher's daemon.
    agent: Option<Executable>,
}

/// What is found.
#[derive(Debug, PartialEq, Eq)]
struct Crowd {
    /// These may be the program's.
    programs: BTreeSet<u32>,
    /// At least one of them is.
    has_begun: bool,
}

/// Answers with their number.
pub(crate) fn count(mark: &str, launcher: Option<u32>, coordinator: Option<&Path>) -> Outcome {
    let wrong = || Failure::new(format!("--count {mark}: no mark")).hint("scrfs-run knows it").code(2);
    let token = Token::parse(mark).ok_or_else(wrong)?;
    let host = host()?;
    let all: BTreeMap<u32, Process> =
        processes().filter_map(|pid| Some((pid, Process::read(pid, mark)?))).collect();
    let own = std::env::current_exe().unwrap_or_default();
    let beside = |name: &str| executable(&own.with_file_name(name));
    let is_starter = |pid: &u32| {
        all.get(pid).is_some_and(|of| of.executable.is_some() && of.executable == beside("scrfs-run"))
    };
    let starter = Some(token.pid).filter(|_| token.host == host).filter(is_starter);
    let is_launcher = |pid: &u32| starter.is_some() && all.get(pid).map(|of| of.parent) == starter;
    let run = Run {
        user: nix::unistd::getuid().as_raw(),
        asks: std::os::unix::process::parent_id(),
        starter,
        launcher: launcher.filter(is_launcher),
        coordinator: coordinator.and_then(executable),
        daemon: beside("scrfs"),
        agent: executable(&own),
    };
    let Crowd { programs, has_begun } = may_be_programs(&all, &run);
    let programs = Some(u32::try_from(programs.len()).unwrap_or(u32::MAX));
    output::data(&Report { host, programs, has_begun, ..Report::default() }.line())
}

/// All processes of the user that are not certainly something else.
fn may_be_programs(all: &BTreeMap<u32, Process>, run: &Run) -> Crowd {
    let others = certainly_others(all, run);
    let counts = |pid: &u32, process: &Process| {
        !process.is_zombie && process.users.contains(&run.user) && !others.contains(pid)
    };
    let programs: BTreeSet<u32> =
        all.iter().filter(|(pid, process)| counts(pid, process)).map(|(pid, _)| *pid).collect();
    // Beside scrfs-run, what a launcher has started to reach other nodes has the mark too, and so
    // has what a script does before it becomes the launcher.
    let is_programs =
        |process: &Process| process.marked == Some(true) && (run.starter.is_none() || process.is_rank);
    Crowd { has_begun: programs.iter().any(|pid| is_programs(&all[pid])), programs }
}

fn certainly_others(all: &BTreeMap<u32, Process>, run: &Run) -> BTreeSet<u32> {
    let parent = |pid: &u32| all.get(pid).map_or(0, |process| process.parent);
    let mut others = BTreeSet::new();
    // Whom this process, scrfs-run and the run's coordinators come from: all of them were there
    // before the program.
    let coordinators = || {
        let is_one = |process: &Process| {
            process.executable.is_some()
                && process.executable == run.coordinator
                && process.marked == Some(true)
        };
        all.iter().filter(move |(_, process)| is_one(process))
    };
    for pid in coordinators().map(|(pid, _)| *pid).chain([run.asks]).chain(run.starter) {
        let mut at = pid;
        while at != 0 && others.insert(at) {
            at = parent(&at);
        }
    }
    // The program began when these were ready.
    let before = coordinators().filter(|(_, of)| of.says == Says::Restart).map(|(_, of)| of.began).min();
    let is_thread = |process: &Process| {
        process.parent == KTHREADD
            && all.get(&KTHREADD).is_some_and(|of| of.name == "kthreadd" && of.parent == 0)
    };
    let is_helper = |process: &Process| {
        process.says == Says::Daemon && !process.is_rank && run.launcher == Some(process.parent)
    };
    others.extend(all.iter().filter_map(|(pid, process)| {
        let is_other = before.is_some_and(|before| process.began < before)
            || process.executable.is_some() && process.executable == run.daemon
            || run.launcher == Some(*pid)
            || is_thread(process)
            || is_helper(process);
        is_other.then_some(*pid)
    }));
    others.extend(daemons(all, run));
    others
}

/// Launchers' daemons of the kind by which this process was started, that the program has not
/// started; and the session of the remote shell that has brought each.
fn daemons(all: &BTreeMap<u32, Process>, run: &Run) -> BTreeSet<u32> {
    let mut found = BTreeSet::new();
    let Some(kind) = all.get(&run.asks).and_then(|process| process.executable) else { return found };
    let is_unmarked = |process: &&Process| process.marked == Some(false);
    let has_marked_parent = |process: &Process| {
        let above = |pid: &u32| all.get(pid).map(|process| process.parent);
        let mut line = std::iter::successors(Some(process.parent), above).take(all.len());
        line.any(|pid| all.get(&pid).is_some_and(|process| process.marked == Some(true)))
    };
    // Its parent serves others too, and is no user's.
    let is_session = |process: &&Process| {
        let by = all.get(&process.parent);
        by.is_some_and(|by| run.user != 0 && by.is_roots() && by.name == process.name)
    };
    for (pid, process) in all {
        let becomes_one = process.says == Says::Daemon && process.executable == run.agent;
        let is_daemon = process.executable == Some(kind) || becomes_one;
        if !(is_daemon && is_unmarked(&process)) || has_marked_parent(process) {
            continue;
        }
        found.insert(*pid);
        let Some(shell) = all.get(&process.parent) else { continue };
        let session = all.get(&shell.parent).filter(is_session);
        if is_session(&shell) {
            found.insert(process.parent);
        } else if is_unmarked(&shell) && (session.is_some() || shell.parent == 0 && process.parent != 1) {
            found.insert(process.parent);
            found.extend(session.map(|_| shell.parent));
        }
    }
    found
}

#[cfg(test)]
mod tests;

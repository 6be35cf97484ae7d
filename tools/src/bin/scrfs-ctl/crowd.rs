//! `scrfs-ctl probe --count`: how many processes of this node may be the program's. Whether a
//! program lives must never be denied: so each process of the job's user counts that is not known
//! to be something else, whatever it has made of its name, its environment and its parents.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use scrfs_tools::probe::Report;
use scrfs_tools::token::Token;
use scrfs_tools::{Failure, Outcome, output};

use crate::probe::{host, processes};

/// What launchers are called, their daemons, and what brings these to other hosts. Of a longer name
/// the kernel has 15 bytes.
const LAUNCHERS: [&str; 15] = [
    "mpirun",
    "mpiexec",
    "mpiexec.hydra",
    "orterun",
    "prterun",
    "prte",
    "prted",
    "orted",
    "hydra_pmi_proxy",
    "srun",
    "slurmstepd",
    "flux",
    "ssh",
    "sshd",
    "rsh",
];
/// What our own programs' names begin with.
const OURS: &str = "scrfs";

/// A process, by what everybody may read of it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Process {
    name: String,
    parent: u32,
    users: Vec<u32>,
    /// It has ended, and nobody has waited for it. One whose first thread has ended lives by the
    /// others.
    is_zombie: bool,
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
        })
    }

    fn is_known(&self) -> bool {
        self.name.starts_with(OURS) || LAUNCHERS.contains(&&*self.name)
    }
}

/// Answers with their number.
pub(crate) fn count(mark: &str) -> Outcome {
    let wrong = || Failure::new(format!("--count {mark}: no mark")).hint("scrfs-run knows it").code(2);
    let mark = Token::parse(mark).ok_or_else(wrong)?;
    let host = host()?;
    let all: BTreeMap<u32, Process> = processes()
        .filter_map(|pid| {
            Some((pid, Process::parse(&fs::read_to_string(format!("/proc/{pid}/status")).ok()?)?))
        })
        .collect();
    // scrfs-run itself, with the batch script around it.
    let starter = (mark.host == host).then_some(mark.pid);
    let others = [Some(std::os::unix::process::parent_id()), starter];
    let counted = may_be_programs(&all, nix::unistd::getuid().as_raw(), others.into_iter().flatten());
    let programs = Some(u32::try_from(counted.len()).unwrap_or(u32::MAX));
    output::data(&Report { host, programs, ..Report::default() }.line())
}

/// Processes of `user` that are no launcher, none of ours, and have not started one: neither
/// `others` nor any launcher comes from them.
fn may_be_programs(
    all: &BTreeMap<u32, Process>,
    user: u32,
    others: impl Iterator<Item = u32>,
) -> BTreeSet<u32> {
    let launchers = all.iter().filter(|(_, process)| process.is_known()).map(|(pid, _)| *pid);
    let mut above = BTreeSet::new();
    for pid in others.chain(launchers) {
        let mut at = pid;
        while at != 0 && above.insert(at) {
            at = all.get(&at).map_or(0, |process| process.parent);
        }
    }
    let counts = |pid: &u32, process: &Process| {
        !process.is_zombie && process.users.contains(&user) && !above.contains(pid)
    };
    all.iter().filter(|(pid, process)| counts(pid, process)).map(|(pid, _)| *pid).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(name: &str, parent: u32, user: u32) -> Process {
        Process { name: name.into(), parent, users: vec![user; 4], is_zombie: false }
    }

    #[test]
    fn whatever_may_be_the_programs_counts() {
        let all = BTreeMap::from([
            (1, process("systemd", 0, 0)),
            (2, process("slurmstepd", 1, 0)),
            (3, process("slurm_script", 2, 7)),
            (4, process("scrfs-run", 3, 7)),
            (5, process("sshd", 1, 7)),
            (6, process("sh", 5, 7)),
            (7, process("orted", 6, 7)),
            (8, process("sleep", 7, 7)),
            // Its parent has ended.
            (9, process("renamed itself", 1, 7)),
            (10, process("another user's", 1, 8)),
            (11, Process { users: vec![7, 0, 0, 0], ..process("privileged", 7, 7) }),
            (12, Process { is_zombie: true, ..process("ended", 7, 7) }),
            // Beneath the batch script, beside scrfs-run.
            (13, process("helper", 3, 7)),
            (14, process("scrfs-coordinat", 7, 7)),
        ]);
        let counted = may_be_programs(&all, 7, [4].into_iter());
        assert_eq!(counted, BTreeSet::from([8, 9, 11, 13]));
        // A program that starts ranks by itself lives by those.
        let nested = BTreeMap::from([
            (8, process("script", 7, 7)),
            (9, process("mpirun", 8, 7)),
            (10, process("inner", 9, 7)),
        ]);
        assert_eq!(may_be_programs(&nested, 7, [].into_iter()), BTreeSet::from([10]));
    }

    #[test]
    fn the_kernels_words_are_understood() {
        let of = |state: &str, threads: u32| {
            let lines = ["Name:\ta name", &format!("State:\t{state}"), "PPid:\t3", "Uid:\t5\t6\t7\t8"];
            Process::parse(&format!("{}\nThreads:\t{threads}\n", lines.join("\n")))
        };
        let expected =
            Process { name: "a name".into(), parent: 3, users: vec![5, 6, 7, 8], is_zombie: false };
        assert_eq!(of("S (sleeping)", 1), Some(expected.clone()));
        assert_eq!(of("Z (zombie)", 3), Some(expected.clone()));
        assert_eq!(of("Z (zombie)", 1), Some(Process { is_zombie: true, ..expected }));
        assert_eq!(Process::parse("Name:\tx\n"), None);
        let own = Process::parse(&fs::read_to_string("/proc/self/status").unwrap()).unwrap();
        assert_eq!((own.parent, own.is_zombie), (std::os::unix::process::parent_id(), false));
        assert!(own.users.contains(&nix::unistd::getuid().as_raw()));
    }
}

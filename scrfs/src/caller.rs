//! Who makes a request, and what /proc tells of the processes that wait for an answer.

use std::collections::HashSet;

/// The process that made a request, as far as the kernel tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Caller {
    /// Thread id in the daemon's pid namespace; 0 = unknown.
    pub tid: u32,
    /// File-system uid.
    pub uid: u32,
    /// File-system gid.
    pub gid: u32,
    /// The kernel's number of the request; 0 = none.
    pub unique: u64,
}

/// Signals whose default action does not end a process: SIGCHLD, SIGCONT, SIGSTOP, SIGTSTP,
/// SIGTTIN, SIGTTOU, SIGURG, SIGWINCH.
const HARMLESS: u64 = bit(17) | bit(18) | bit(19) | bit(20) | bit(21) | bit(22) | bit(23) | bit(28);
const KILL: u64 = bit(9);
/// Ancestors that are looked at.
const ANCESTORS_MAX: usize = 64;

const fn bit(signal: u32) -> u64 {
    1 << (signal - 1)
}

/// The fields of /proc/TID/status that matter here.
#[derive(Debug, Default, PartialEq, Eq)]
struct Status {
    tgid: u32,
    parent: u32,
    pending: u64,
    blocked: u64,
    ignored: u64,
    caught: u64,
}

fn parse(text: &str) -> Status {
    let mut status = Status::default();
    for line in text.lines() {
        let Some((key, value)) = line.split_once(':') else { continue };
        let value = value.trim();
        let mask = || u64::from_str_radix(value, 16).unwrap_or(0);
        match key {
            "Tgid" => status.tgid = value.parse().unwrap_or(0),
            "PPid" => status.parent = value.parse().unwrap_or(0),
            "SigPnd" | "ShdPnd" => status.pending |= mask(),
            "SigBlk" => status.blocked = mask(),
            "SigIgn" => status.ignored = mask(),
            "SigCgt" => status.caught = mask(),
            _ => {}
        }
    }
    status
}

fn status_of(tid: u32) -> Option<Status> {
    // The text is made by the kernel; some kilobytes.
    std::fs::read_to_string(format!("/proc/{tid}/status")).ok().map(|text| parse(&text))
}

/// True when thread `tid` is about to die by a signal, or is gone.
pub(crate) fn is_dying(tid: u32) -> bool {
    status_of(tid).map_or_else(|| is_gone(tid), |status| is_fatal(&status))
}

/// /proc may keep a daemon without privileges from seeing other users' and untraceable processes
/// (`hidepid`).
fn is_gone(tid: u32) -> bool {
    let pid = i32::try_from(tid).ok().and_then(rustix::process::Pid::from_raw);
    pid.is_none_or(|pid| rustix::process::test_kill_process(pid) == Err(rustix::io::Errno::SRCH))
}

fn is_fatal(status: &Status) -> bool {
    let deadly = status.pending & !status.blocked & !status.ignored & !status.caught & !HARMLESS;
    status.pending & KILL != 0 || deadly != 0
}

/// The processes of `tids` and all their ancestors, as process ids.
pub(crate) fn with_ancestors(tids: impl Iterator<Item = u32>) -> HashSet<u32> {
    let mut found = HashSet::new();
    for tid in tids {
        let mut next = status_of(tid).map(|status| (status.tgid, status.parent));
        for _ in 0..ANCESTORS_MAX {
            // Process 1 is everyone's ancestor and writes no checkpoint that it marks.
            let Some((pid, parent)) = next.filter(|&(pid, _)| pid > 1) else { break };
            if !found.insert(pid) || parent <= 1 {
                break;
            }
            next = Some((parent, status_of(parent).map_or(0, |status| status.parent)));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(pending: u64, blocked: u64, ignored: u64, caught: u64) -> Status {
        Status { pending, blocked, ignored, caught, ..Status::default() }
    }

    #[test]
    fn only_what_would_end_the_process_counts() {
        let (int, term, child) = (bit(2), bit(15), bit(17));
        assert!(is_fatal(&status(KILL, u64::MAX, u64::MAX, 0)));
        assert!(is_fatal(&status(term, 0, 0, 0)));
        assert!(!is_fatal(&status(term, term, 0, 0)), "blocked");
        assert!(!is_fatal(&status(int, 0, int, 0)), "ignored");
        assert!(!is_fatal(&status(int, 0, 0, int)), "caught");
        assert!(!is_fatal(&status(child, 0, 0, 0)), "harmless");
        assert!(!is_fatal(&status(0, 0, 0, 0)));
        assert!(is_fatal(&status(bit(34), 0, 0, 0)), "a real-time signal ends it");
    }

    #[test]
    fn the_kernels_text_is_understood() {
        let text = "Name:\tcat\nTgid:\t12\nPid:\t13\nPPid:\t7\nSigPnd:\t0000000000000000\n\
            ShdPnd:\t0000000000000100\nSigBlk:\t0000000000010000\nSigIgn:\t0000000000001000\nSigCgt:\t0000000000000002\n";
        let expected =
            Status { tgid: 12, parent: 7, pending: 0x100, blocked: 0x10000, ignored: 0x1000, caught: 2 };
        assert_eq!(parse(text), expected);
        assert!(!is_dying(std::process::id()));
        assert!(is_dying(u32::MAX), "nobody has this number");
        assert!(is_gone(i32::MAX.cast_unsigned()) && !is_gone(std::process::id()));
        let mine = with_ancestors(std::iter::once(std::process::id()));
        assert!(mine.contains(&std::process::id()));
        let parent = rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get().cast_unsigned());
        assert!(parent <= 1 || mine.contains(&parent));
    }
}

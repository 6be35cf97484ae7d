//! `scrfs-ctl probe`: see [`scrfs_tools::probe`]. Its exit code is 0 whenever there is an answer.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::unistd::Pid;
use scrfs::status::NodeStatus;
use scrfs_tools::ended::Process;
use scrfs_tools::node::Node;
use scrfs_tools::probe::{RUN_VARIABLE, Report};
use scrfs_tools::{Failure, Outcome, output};

/// A daemon that takes longer is not fit. With [`SWEEP`] below what scrfs-run waits for the whole probe.
const ANSWER: Duration = Duration::from_secs(4);
/// How long processes may take to end after KILL.
const SWEEP: Duration = Duration::from_secs(2);

pub(crate) fn probe(mount: Option<&Path>, sweep: Option<&str>) -> Outcome {
    let host = nix::unistd::gethostname().map_err(|e| Failure::new(format!("host name: {e}")))?;
    let mut report = Report { host: host.to_string_lossy().into_owned(), problem: None, newest: 0, ended: 0 };
    if let Some(token) = sweep.filter(|t| !t.is_empty()) {
        match end_all(token) {
            Ok(ended) => report.ended = ended,
            Err(failure) => report.problem = Some(failure.message),
        }
    }
    match mount.map(|dir| Node::at(dir)?.within(ANSWER).status()).transpose() {
        Ok(status) => report.newest = status.as_ref().map(newest).unwrap_or_default(),
        Err(failure) => report.problem = Some(failure.message),
    }
    output::data(&report.line())
}

/// The highest id that is protected.
fn newest(status: &NodeStatus) -> u64 {
    let protected = |state: &str| matches!(state, "protected" | "flushing" | "flushed");
    status.datasets.iter().filter(|d| protected(&d.state)).map(|d| d.id).max().unwrap_or(0)
}

/// Kills every process that has the mark in its environment, until none is left.
fn end_all(token: &str) -> Outcome<u32> {
    let begun = Instant::now();
    let mut ended = std::collections::BTreeSet::new();
    loop {
        let left = marked(token);
        if left.is_empty() {
            return Ok(u32::try_from(ended.len()).unwrap_or(u32::MAX));
        }
        for (_, process) in &left {
            process.kill();
        }
        // While they end they may have started others: one more look.
        for (pid, process) in left {
            if begun.elapsed() >= SWEEP || !process.wait(SWEEP.saturating_sub(begun.elapsed())) {
                return Err(Failure::new(format!("process {pid} of the former run does not end")));
            }
            ended.insert(pid);
        }
    }
}

/// Processes of this user whose environment has the mark. Others' environments cannot be read, nor are they ours.
fn marked(token: &str) -> Vec<(Pid, Process)> {
    let wanted = format!("{RUN_VARIABLE}={token}");
    let own = std::process::id();
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok())
        .filter(|&pid| pid != own)
        .filter_map(|pid| {
            let number = Pid::from_raw(i32::try_from(pid).ok()?);
            // Opened before the look: what is killed is what was looked at.
            let process = Process::open(number)?;
            has_mark(pid, wanted.as_ref()).then_some((number, process))
        })
        .collect()
}

/// A zombie's environment is empty: it has ended already.
fn has_mark(pid: u32, wanted: &OsStr) -> bool {
    std::fs::read(format!("/proc/{pid}/environ"))
        .is_ok_and(|environ| environ.split(|&b| b == 0).any(|entry| entry == wanted.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_what_carries_the_mark_and_nothing_else() {
        let token = format!("test-{}", std::process::id());
        let start = |value: &str| {
            std::process::Command::new("sleep").arg("60").env(RUN_VARIABLE, value).spawn().unwrap()
        };
        let (mut ours, mut other) = (start(&token), start(&format!("{token}x")));
        // Until it is `sleep`, the child has its parent's environment.
        while marked(&token).is_empty() {
            std::thread::yield_now();
        }
        assert_eq!(end_all(&token).unwrap(), 1);
        ours.wait().unwrap();
        assert!(other.try_wait().unwrap().is_none());
        other.kill().unwrap();
        other.wait().unwrap();
    }
}

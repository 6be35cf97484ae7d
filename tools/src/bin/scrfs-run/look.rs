//! How nodes are: each is asked by `scrfs-ctl probe`, started there the way the program will be. A node is fit when that
//! answers and finds no problem.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;

use nix::sys::signal::Signal;
use rustix::fs::MemfdFlags;
use scrfs_tools::probe::Report;

use crate::launcher::{CommandLine, Mpirun};
use crate::process::{self, Group, Streams};
use crate::supervise::Look;

/// How long a node may take to answer.
const LIMIT: Duration = Duration::from_secs(8);
/// Nodes that are asked at the same time, each by an mpirun of its own.
const AT_ONCE: usize = 16;
/// An answer and what launchers add to it are not longer.
const OUTPUT_BYTES_MAX: u64 = 1 << 20;

/// Asks nodes; copies may be used in any thread.
#[derive(Debug, Clone)]
pub(crate) struct Looker {
    pub(crate) mpirun: Mpirun,
    pub(crate) ctl: PathBuf,
    pub(crate) mount: PathBuf,
    pub(crate) token: String,
}

impl Looker {
    /// All of `hosts`, in their order. All at once is quick when all are there, and tells nothing when one is not; so
    /// with `doubt` each is asked by itself from the start. One that was too slow is asked once more: a busy machine is
    /// not a dead one.
    pub(crate) fn look(&self, hosts: &[String], sweep: bool, doubt: bool) -> Vec<Look> {
        let mut found: Vec<Option<Report>> = hosts.iter().map(|_| None).collect();
        if hosts.len() > 1 && !doubt {
            for report in self.ask(hosts, sweep).0 {
                if let Some(at) = hosts.iter().position(|h| same_host(h, &report.host)) {
                    found[at] = Some(report);
                }
            }
        }
        let missing: Vec<usize> = (0..hosts.len()).filter(|&at| found[at].is_none()).collect();
        let mut reasons = vec![String::new(); hosts.len()];
        for chunk in missing.chunks(AT_ONCE) {
            std::thread::scope(|scope| {
                let one = |at: usize| std::slice::from_ref(&hosts[at]);
                let asked: Vec<_> = chunk
                    .iter()
                    .map(|&at| (at, scope.spawn(move || self.ask_twice(one(at), sweep))))
                    .collect();
                for (at, thread) in asked {
                    match thread.join() {
                        Ok(Ok(report)) => found[at] = Some(report),
                        Ok(Err(silence)) => reasons[at] = silence.to_string(),
                        Err(_) => "the question failed".clone_into(&mut reasons[at]),
                    }
                }
            });
        }
        hosts
            .iter()
            .zip(found.into_iter().zip(reasons))
            .map(|(host, (report, reason))| match report {
                Some(r) => Look {
                    host: host.clone(),
                    problem: r.problem,
                    newest: r.newest,
                    orphans: r.orphans,
                    foreign: r.foreign,
                    writers: r.writers,
                    unsealed: r.unsealed,
                    unsaved: r.unsaved,
                },
                None => Look { host: host.clone(), problem: Some(reason), ..Look::default() },
            })
            .collect()
    }

    fn ask_twice(&self, host: &[String], sweep: bool) -> Result<Report, Silence> {
        let mut asked = self.ask(host, sweep);
        if asked.0.is_empty() && matches!(asked.1, Silence::TooSlow) {
            asked = self.ask(host, sweep);
        }
        let (reports, silence) = asked;
        reports.into_iter().next().ok_or(silence)
    }

    /// One mpirun over `hosts`: the answers, and what it means if there is none.
    fn ask(&self, hosts: &[String], sweep: bool) -> (Vec<Report>, Silence) {
        let mut command: Vec<&OsStr> =
            vec![self.ctl.as_os_str(), "probe".as_ref(), "--mount".as_ref(), self.mount.as_os_str()];
        if sweep {
            command.extend([OsStr::new("--sweep"), OsStr::new(&self.token)]);
        }
        match bounded(&self.mpirun.tool(hosts, &command), LIMIT) {
            Ok(Ended { output, code }) => {
                (Report::find_all(&output), code.map_or(Silence::TooSlow, Silence::Unreachable))
            }
            Err(error) => {
                let launcher = self.mpirun.program.display();
                (
                    Vec::new(),
                    Silence::NoLauncher(format!("{launcher}: {error}; name the launcher with --mpirun")),
                )
            }
        }
    }
}

/// Why a node did not answer.
#[derive(Debug, thiserror::Error)]
enum Silence {
    #[error("it cannot be reached (launcher's exit code {0})")]
    Unreachable(u8),
    #[error("no answer in {} s", LIMIT.as_secs())]
    TooSlow,
    #[error("{0}")]
    NoLauncher(String),
}

/// Lists and hosts may differ in their domain.
fn same_host(listed: &str, reported: &str) -> bool {
    let short = |name: &str| name.split('.').next().unwrap_or_default().to_owned();
    listed == reported || short(listed) == short(reported)
}

struct Ended {
    output: String,
    /// `None`: it had to be ended.
    code: Option<u8>,
}

/// Runs a command to its end, or ends it after `limit`. Its output goes to memory rather than through a pipe: nobody
/// has to wait for grandchildren that keep a pipe open.
fn bounded(line: &CommandLine, limit: Duration) -> io::Result<Ended> {
    let memory = File::from(rustix::fs::memfd_create("probe", MemfdFlags::CLOEXEC)?);
    let group = Group::start(line, Streams::Into(memory.try_clone()?))?;
    let id = group.id();
    let (tell, told) = mpsc::channel();
    let waiter = std::thread::spawn(move || drop(tell.send(process::await_end(id))));
    let in_time = told.recv_timeout(limit).is_ok();
    if !in_time {
        process::signal(id, Signal::SIGTERM);
        if told.recv_timeout(Duration::from_secs(1)).is_err() {
            process::signal(id, Signal::SIGKILL);
        }
    }
    drop(waiter.join());
    let code = group.reap();
    let mut bytes = Vec::new();
    (&memory).rewind()?;
    memory.take(OUTPUT_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(Ended { output: String::from_utf8_lossy(&bytes).into_owned(), code: in_time.then_some(code) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_with_and_without_domain() {
        assert!(same_host("n1.cluster", "n1") && same_host("n1", "n1") && !same_host("n1", "n10"));
    }
}

//! How nodes are: each is asked by `scrfs-ctl probe`, started there the way the program will be. A node is fit when that
//! answers and finds no problem.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;

use nix::sys::signal::Signal;
use rustix::fs::MemfdFlags;
use scrfs_tools::probe::Report;

use crate::launcher::{CommandLine, Lines};
use crate::process::{self, Group, Streams};
use crate::reach;
use crate::scheduler::{self, Standing};
use crate::supervise::Look;
use crate::talk;

/// How long a node may take to answer.
const LIMIT: Duration = Duration::from_secs(8);
/// The same for one that does not answer a connection, though others do.
const SILENT_LIMIT: Duration = Duration::from_secs(3);
/// Launchers that ask at the same time.
const AT_ONCE: usize = 16;
/// An answer and what launchers add to it are not longer.
const OUTPUT_BYTES_MAX: u64 = 1 << 20;

/// Asks nodes; copies may be used in any thread.
#[derive(Debug, Clone)]
pub(crate) struct Looker {
    pub(crate) lines: Lines,
    pub(crate) ctl: PathBuf,
    pub(crate) mount: PathBuf,
    /// `SCRFS_CHECKPOINT_PATH`, if the job has set it.
    pub(crate) checkpoint_path: Option<PathBuf>,
    pub(crate) token: String,
}

impl Looker {
    /// All of `hosts`, in their order. Those that answer a connection are asked all at once: that is quick when all are
    /// there, and tells nothing when one is not; so with `doubt` they are asked in groups. Who does not answer a connection,
    /// or whose group did not answer, is asked by itself. Whom the scheduler names is not asked.
    pub(crate) fn look(&self, hosts: &[String], sweep: bool, doubt: bool) -> Vec<Look> {
        let (standings, silent) = std::thread::scope(|scope| {
            let standings = scope.spawn(|| scheduler::standings(hosts));
            let silent = reach::silent(hosts);
            (standings.join().unwrap_or_default(), silent)
        });
        let mut found: Vec<Option<Report>> = hosts.iter().map(|_| None).collect();
        let mut reasons = vec![String::new(); hosts.len()];
        let mut leaving: Vec<Option<String>> = vec![None; hosts.len()];
        let mut asked: Vec<usize> = Vec::new();
        for (at, host) in hosts.iter().enumerate() {
            match standings.iter().find(|(name, _)| same_host(host, name)).map(|(_, standing)| standing) {
                Some(Standing::Lost(state)) => reasons[at] = format!("the scheduler says that it is {state}"),
                Some(Standing::Leaving(state)) => {
                    leaving[at] = Some(state.clone());
                    asked.push(at);
                }
                None => asked.push(at),
            }
        }
        let (alone, together): (Vec<_>, Vec<_>) = asked.into_iter().partition(|at| silent.contains(at));
        let answers = std::thread::scope(|scope| {
            let groups: Vec<_> = groups(&together, if doubt { AT_ONCE } else { 1 })
                .map(|group| scope.spawn(move || self.ask_together(hosts, group, sweep)))
                .collect();
            let each = self.ask_each(hosts, &alone, &silent, sweep);
            let all = groups.into_iter().flat_map(|group| group.join().unwrap_or_default());
            all.chain(each).collect::<Vec<_>>()
        });
        let missing: Vec<usize> = together
            .iter()
            .copied()
            .filter(|at| answers.iter().all(|(answered, _)| answered != at))
            .collect();
        for (at, answer) in answers.into_iter().chain(self.ask_each(hosts, &missing, &silent, sweep)) {
            match answer {
                Ok(report) => found[at] = Some(report),
                Err(silence) => reasons[at] = silence.to_string(),
            }
        }
        hosts
            .iter()
            .zip(found.into_iter().zip(reasons).zip(leaving))
            .map(|(host, ((report, reason), leaving))| match report {
                Some(r) => Look {
                    host: host.clone(),
                    problem: r.problem,
                    leaving,
                    newest: r.newest,
                    orphans: r.orphans,
                    foreign: r.foreign,
                    writers: r.writers,
                    unsealed: r.unsealed,
                    more_unsealed: r.more_unsealed,
                    unsaved: r.unsaved,
                },
                None => Look { host: host.clone(), problem: Some(reason), ..Look::default() },
            })
            .collect()
    }

    /// One launcher over all: who answered.
    fn ask_together(
        &self,
        hosts: &[String],
        which: &[usize],
        sweep: bool,
    ) -> Vec<(usize, Result<Report, Silence>)> {
        if which.is_empty() {
            return Vec::new();
        }
        let names: Vec<String> = which.iter().map(|&at| hosts[at].clone()).collect();
        let reports = self.ask(&names, sweep, LIMIT).0.into_iter();
        let place = |report: &Report| which.iter().copied().find(|&at| same_host(&hosts[at], &report.host));
        reports.filter_map(|report| Some((place(&report)?, Ok(report)))).collect()
    }

    /// One launcher for each: everybody's answer, or why there is none.
    fn ask_each(
        &self,
        hosts: &[String],
        which: &[usize],
        silent: &BTreeSet<usize>,
        sweep: bool,
    ) -> Vec<(usize, Result<Report, Silence>)> {
        let mut answers = Vec::new();
        for chunk in which.chunks(AT_ONCE) {
            std::thread::scope(|scope| {
                let ask =
                    |at: usize| self.ask_one(std::slice::from_ref(&hosts[at]), sweep, silent.contains(&at));
                let asked: Vec<_> = chunk.iter().map(|&at| (at, scope.spawn(move || ask(at)))).collect();
                for (at, thread) in asked {
                    answers.push((at, thread.join().unwrap_or(Err(Silence::TooSlow(LIMIT)))));
                }
            });
        }
        answers
    }

    /// One that was too slow is asked once more, a busy machine is not a dead one; but not if it does not answer a
    /// connection either.
    fn ask_one(&self, host: &[String], sweep: bool, silent: bool) -> Result<Report, Silence> {
        let limit = if silent { SILENT_LIMIT } else { LIMIT };
        let mut asked = self.ask(host, sweep, limit);
        if asked.0.is_empty() && !silent && matches!(asked.1, Silence::TooSlow(_)) {
            asked = self.ask(host, sweep, limit);
        }
        let (reports, silence) = asked;
        reports.into_iter().next().ok_or(silence)
    }

    /// One launcher over `hosts`: the answers, and what it means if there is none.
    fn ask(&self, hosts: &[String], sweep: bool, limit: Duration) -> (Vec<Report>, Silence) {
        let mut command: Vec<&OsStr> =
            vec![self.ctl.as_os_str(), "probe".as_ref(), "--mount".as_ref(), self.mount.as_os_str()];
        if sweep {
            command.extend([OsStr::new("--sweep"), OsStr::new(&self.token)]);
            // While no program of the job runs.
            if let Some(path) = &self.checkpoint_path {
                command.extend([OsStr::new("--checkpoint-path"), path.as_os_str()]);
            }
        }
        let launcher = self.lines.service.as_ref();
        match bounded(&self.lines.tool(hosts, &command), limit, true) {
            Ok(Ended { output, code }) => {
                let said = talk::refusal_in(&self.lines.service, &output);
                let silence = match (code, said) {
                    (_, Some(said)) => Silence::Refused(said),
                    (None, None) => Silence::TooSlow(limit),
                    (Some(code), None) => Silence::Unreachable(launcher.name(), code),
                };
                (Report::find_all(&output), silence)
            }
            Err(error) => (Vec::new(), Silence::Refused(format!("{}: {error}", launcher.name()))),
        }
    }
}

/// At most so many groups, all but the last of one size.
fn groups(all: &[usize], most: usize) -> impl Iterator<Item = &[usize]> {
    all.chunks(all.len().div_ceil(most).max(1))
}

/// Why a node did not answer.
#[derive(Debug, thiserror::Error)]
enum Silence {
    #[error("it cannot be reached ({0} ended with exit code {1})")]
    Unreachable(&'static str, u8),
    #[error("no answer in {} s", .0.as_secs())]
    TooSlow(Duration),
    #[error("{0}")]
    Refused(String),
}

/// Lists and hosts may differ in their domain.
pub(crate) fn same_host(listed: &str, reported: &str) -> bool {
    let short = |name: &str| name.split('.').next().unwrap_or_default().to_owned();
    listed == reported || short(listed) == short(reported)
}

pub(crate) struct Ended {
    pub(crate) output: String,
    /// `None`: it had to be ended.
    pub(crate) code: Option<u8>,
}

/// Runs a command to its end, or ends it after `limit`. Its output goes to memory rather than through a pipe: nobody
/// has to wait for grandchildren that keep a pipe open. `errors`: standard error counts as output.
pub(crate) fn bounded(line: &CommandLine, limit: Duration, errors: bool) -> io::Result<Ended> {
    let memory = File::from(rustix::fs::memfd_create("probe", MemfdFlags::CLOEXEC)?);
    let group = Group::start(line, Streams::Into(memory.try_clone()?, errors))?;
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

    /// One launcher for each of a thousand would take minutes after every crash.
    #[test]
    fn doubt_takes_a_bounded_number_of_launchers() {
        let all: Vec<usize> = (0..1000).collect();
        for (hosts, most, sizes) in [
            (1000, 1, vec![1000]),
            (1000, AT_ONCE, [vec![63; 15], vec![55]].concat()),
            (16, AT_ONCE, vec![1; 16]),
            (3, AT_ONCE, vec![1; 3]),
            (0, AT_ONCE, vec![]),
        ] {
            let got: Vec<usize> = groups(&all[..hosts], most).map(<[usize]>::len).collect();
            assert_eq!(got, sizes, "{hosts} {most}");
            assert_eq!(groups(&all[..hosts], most).flatten().copied().collect::<Vec<_>>(), all[..hosts]);
        }
    }

    #[test]
    fn hosts_with_and_without_domain() {
        assert!(same_host("n1.cluster", "n1") && same_host("n1", "n1") && !same_host("n1", "n10"));
    }
}

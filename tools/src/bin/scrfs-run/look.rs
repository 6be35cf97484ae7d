//! How nodes are: each is asked by `scrfs-ctl probe`, started there the way the program will be. A
//! node is fit when that answers and finds no problem.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use rustix::fs::MemfdFlags;
use scrfs_tools::probe::Report;
use scrfs_tools::scheduler::short;

use crate::launcher::{CommandLine, Lines, Refusal, is_of_a_restart};
use crate::process::{self, Group, Streams};
use crate::reach;
use crate::scheduler::{self, Standing};
use crate::supervise::{Count, Look};
use crate::talk;

/// How long a node may take to answer.
const LIMIT: Duration = Duration::from_secs(8);
/// The same for one that does not answer a connection, though others do.
const SILENT_LIMIT: Duration = Duration::from_secs(3);
/// At the end of the job: for all nodes together, before those that did not answer are asked by
/// themselves.
const LAST_LIMIT: Duration = Duration::from_secs(6);
/// For how long all of a job's nodes may be out of a launcher's reach because the scheduler that it
/// asks is: restarted, or taken over by another host.
const PATIENCE: Duration = Duration::from_mins(3);
/// Until it is asked again.
const PAUSE: Duration = Duration::from_secs(2);
/// Launchers that ask at the same time.
const AT_ONCE: usize = 16;
/// An answer and what launchers add to it are not longer.
const OUTPUT_BYTES_MAX: u64 = 1 << 20;
/// What to do about a launcher that cannot be started.
const ELSEWHERE: &str = "--launcher names another launcher, --launcher-program says where it is";

/// Asks nodes; copies may be used in any thread.
#[derive(Debug, Clone)]
pub(crate) struct Looker {
    pub(crate) lines: Lines,
    pub(crate) ctl: PathBuf,
    pub(crate) mount: PathBuf,
    /// `SCRFS_CHECKPOINT_PATH`, if the job has set it.
    pub(crate) checkpoint_path: Option<PathBuf>,
    pub(crate) token: String,
    /// The number of the look that somebody waits for.
    pub(crate) awaited: Arc<AtomicU64>,
    /// A node has answered: what is asked of the scheduler is right.
    pub(crate) answered: Arc<AtomicBool>,
}

impl Looker {
    /// Look `serial` is the one that is awaited from now on.
    pub(crate) fn await_look(&self, serial: u64) {
        let next = |awaited: u64| (awaited != u64::MAX).then_some(serial);
        let _ = self.awaited.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
    }

    /// From now on no look waits for a scheduler that does not answer.
    pub(crate) fn hurry(&self) {
        self.awaited.store(u64::MAX, Ordering::Relaxed);
    }

    /// All of `hosts`, in their order. Those that answer a connection are asked all at once: that
    /// is quick when all are there, and tells nothing when one is not; so with `doubt` they are
    /// asked in groups. Who does not answer a connection, or whose group did not answer, is asked
    /// by itself. Whom the scheduler names is not asked.
    ///
    /// A launcher that reaches no node because the scheduler does not answer says nothing of the
    /// nodes: that is told to `say`, and all are asked again, while `serial` is the look that is
    /// awaited.
    pub(crate) fn look(
        &self,
        serial: u64,
        hosts: &[String],
        (sweep, doubt): (bool, bool),
        say: impl Fn(&str),
    ) -> Vec<Look> {
        let begun = Instant::now();
        let mut said = false;
        loop {
            let (looks, is_away) = self.look_once(hosts, sweep, doubt);
            let is_awaited = self.awaited.load(Ordering::Relaxed) == serial;
            if !is_away || !is_awaited || begun.elapsed() >= PATIENCE {
                return looks;
            }
            if !std::mem::replace(&mut said, true) {
                say(
                    "nodes cannot be asked, as the scheduler does not answer or has just been started: waiting for it",
                );
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Also tells whether the scheduler is to blame for nodes that did not answer.
    fn look_once(&self, hosts: &[String], sweep: bool, doubt: bool) -> (Vec<Look>, bool) {
        let (standings, silent) = std::thread::scope(|scope| {
            let standings = scope.spawn(|| scheduler::standings(hosts));
            let silent = reach::silent(hosts);
            (standings.join().unwrap_or_default(), silent)
        });
        let (scheduler_answers, is_right) = (standings.is_some(), self.answered.load(Ordering::Relaxed));
        let standings = standings.unwrap_or_default();
        let mut found: Vec<Option<Report>> = hosts.iter().map(|_| None).collect();
        let mut reasons = vec![(String::new(), None); hosts.len()];
        let mut leaving: Vec<Option<String>> = vec![None; hosts.len()];
        let mut asked: Vec<usize> = Vec::new();
        for (at, host) in hosts.iter().enumerate() {
            match standings.iter().find(|(name, _)| same_host(host, name)).map(|(_, standing)| standing) {
                Some(Standing::Lost(state)) => {
                    reasons[at].0 = format!("the scheduler says that it is {state}");
                }
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
        let mut restarting = BTreeSet::new();
        for (at, answer) in answers.into_iter().chain(self.ask_each(hosts, &missing, &silent, sweep)) {
            match answer {
                Ok(report) => found[at] = Some(report),
                Err(silence) => {
                    restarting.extend(silence.is_of_a_restart().then_some(at));
                    reasons[at] = (silence.to_string(), silence.remedy());
                }
            }
        }
        let missing: Vec<usize> = together.iter().copied().filter(|at| found[*at].is_none()).collect();
        self.answered.fetch_or(found.iter().any(Option::is_some), Ordering::Relaxed);
        let is_away = blames_scheduler(scheduler_answers, &missing, &restarting, is_right);
        let all = hosts.iter().zip(found.into_iter().zip(reasons).zip(leaving));
        let looks = all.map(|(host, ((report, (reason, remedy)), leaving))| match report {
            Some(report) => of_report(host, report, leaving),
            None => Look { host: host.clone(), problem: Some(reason), remedy, ..Look::default() },
        });
        (looks.collect(), is_away)
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

    /// One that was too slow is asked once more, a busy machine is not a dead one; but not if it
    /// does not answer a connection either.
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
        self.probe(hosts, &command, limit)
    }

    /// How many processes the program may have on these nodes, if `launcher` is its launcher's
    /// process and `coordinator` the file of its coordinators.
    pub(crate) fn count_processes(&self, hosts: &[String], launcher: u32, coordinator: &Path) -> Count {
        let (ctl, launcher) = (self.ctl.as_os_str(), launcher.to_string());
        let command = [ctl, "probe".as_ref(), "--count".as_ref(), self.token.as_ref()];
        let besides =
            ["--launcher".as_ref(), launcher.as_ref(), "--coordinator".as_ref(), coordinator.as_os_str()];
        let reports = self.probe(hosts, &[command, besides].concat(), LIMIT).0;
        let has_begun = reports.iter().any(|report| report.has_begun);
        let counts: HashMap<&str, u32> =
            reports.iter().filter_map(|report| Some((short(&report.host), report.programs?))).collect();
        let programs: Option<u64> =
            hosts.iter().map(|host| counts.get(short(host)).copied().map(u64::from)).sum();
        programs.map_or(Count::Silence, |programs| Count::Said { programs, has_begun })
    }

    /// The end of the job: what has left its launcher's reach there, as a session of its own does,
    /// is ended; for at most `limit`. Who does not answer a connection is not asked, and who is
    /// in `doubtful` keeps nobody waiting.
    pub(crate) fn end_left(&self, hosts: &[String], doubtful: &BTreeSet<String>, limit: Duration) {
        let begun = Instant::now();
        let left = || limit.saturating_sub(begun.elapsed());
        let silent = reach::silent(hosts);
        let answering = hosts.iter().enumerate().filter(|(at, _)| !silent.contains(at));
        let answering = || answering.clone().map(|(_, host)| host.clone());
        let sound: Vec<String> = answering().filter(|host| !doubtful.contains(host)).collect();
        let command = [self.ctl.as_os_str(), "probe".as_ref(), "--unmounted".as_ref(), "--sweep".as_ref()];
        let command = [&command[..], &[OsStr::new(&self.token)]].concat();
        let answers = if sound.is_empty() {
            Vec::new()
        } else {
            self.probe(&sound, &command, left().min(LAST_LIMIT)).0
        };
        let is_silent = |host: &String| answers.iter().all(|report| !same_host(host, &report.host));
        let rest: Vec<String> = answering().filter(is_silent).collect();
        std::thread::scope(|scope| {
            for group in rest.chunks(rest.len().div_ceil(AT_ONCE).max(1)) {
                let (command, limit) = (&command, left().min(SILENT_LIMIT));
                scope.spawn(move || self.probe(group, command, limit));
            }
        });
    }

    fn probe(&self, hosts: &[String], command: &[&OsStr], limit: Duration) -> (Vec<Report>, Silence) {
        let launcher = self.lines.service.as_ref();
        match bounded(&self.lines.tool(hosts, command), limit, true) {
            Ok(Ended { output, code }) => {
                let said = talk::refusal_in(&self.lines.service, &output);
                let silence = match (code, said) {
                    (_, Some(said)) => Silence::Refused(said),
                    (None, None) => Silence::TooSlow(limit),
                    (Some(code), None) => {
                        let ended = || format!("{} ended with exit code {code}", launcher.name());
                        Silence::Unreachable(shell_says(&output).map_or_else(ended, str::to_owned))
                    }
                };
                (Report::find_all(&output), silence)
            }
            Err(error) => {
                let what = format!("{}: {error}", launcher.name());
                (Vec::new(), Silence::Refused(Refusal { what, hint: ELSEWHERE }))
            }
        }
    }
}

fn of_report(host: &str, report: Report, leaving: Option<String>) -> Look {
    Look {
        host: host.to_owned(),
        problem: report.problem,
        remedy: None,
        leaving,
        newest: report.newest,
        epoch: report.epoch,
        held_by: report.held_by,
        expendable: report.expendable,
        orphans: report.orphans,
        foreign: report.foreign,
        writers: report.writers,
        unsealed: report.unsealed,
        more_unsealed: report.more_unsealed,
        unsaved: report.unsaved,
    }
}

/// Nodes that answer a connection are `missing` because of the scheduler: it does not answer
/// either, or says of each what it says after a restart of its own (`restarting`). While no node
/// has ever answered, that would be a wrong request: not `is_right`.
fn blames_scheduler(
    scheduler_answers: bool,
    missing: &[usize],
    restarting: &BTreeSet<usize>,
    is_right: bool,
) -> bool {
    let of_restart = is_right && missing.iter().all(|at| restarting.contains(at));
    !missing.is_empty() && (!scheduler_answers || of_restart)
}

/// At most so many groups, all but the last of one size.
fn groups(all: &[usize], most: usize) -> impl Iterator<Item = &[usize]> {
    all.chunks(all.len().div_ceil(most).max(1))
}

/// Why a node did not answer.
#[derive(Debug, thiserror::Error)]
enum Silence {
    #[error("it cannot be reached ({0})")]
    Unreachable(String),
    #[error("no answer in {} s", .0.as_secs())]
    TooSlow(Duration),
    #[error("{}", .0.what)]
    Refused(Refusal),
}

impl Silence {
    /// So it goes while a scheduler that was started anew has not heard of its nodes.
    fn is_of_a_restart(&self) -> bool {
        matches!(self, Self::Refused(refusal) if is_of_a_restart(&refusal.what))
    }

    /// What a person can do about it, where that is not about the node.
    fn remedy(&self) -> Option<&'static str> {
        match self {
            Self::Refused(refusal) => Some(refusal.hint),
            Self::Unreachable(_) | Self::TooSlow(_) => None,
        }
    }
}

/// What the remote shell of a launcher says about why it did not come to a node.
fn shell_says(output: &str) -> Option<&str> {
    let said = |line: &&str| {
        // What was to become it there.
        line.starts_with("scrfs-ctl: mpirun's daemon ")
            || line.starts_with("ssh: ")
            || line.starts_with("rsh: ")
            || line.starts_with("Host key verification failed")
            || line.contains(": Permission denied (")
    };
    output.lines().map(str::trim).find(said)
}

/// Lists and hosts may differ in their domain.
pub(crate) fn same_host(listed: &str, reported: &str) -> bool {
    short(listed) == short(reported)
}

#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) output: String,
    /// `None`: it had to be ended.
    pub(crate) code: Option<u8>,
}

/// Runs a command to its end, or ends it after `limit`. Its output goes to memory rather than
/// through a pipe: nobody has to wait for grandchildren that keep a pipe open. `errors`: standard
/// error counts as output.
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
    fn nodes_that_are_there_are_not_given_up_for_their_scheduler() {
        let restarting = BTreeSet::from([1, 2]);
        for (answers, missing, is_right, expected) in [
            (true, &[][..], true, false),
            (false, &[], true, false),
            (false, &[1], false, true),
            (true, &[1], false, false),
            (true, &[1, 2], true, true),
            (true, &[1, 3], true, false),
        ] {
            let blamed = blames_scheduler(answers, missing, &restarting, is_right);
            assert_eq!(blamed, expected, "{answers} {missing:?} {is_right}");
        }
    }

    #[test]
    fn a_remote_shell_says_why_it_did_not_come() {
        let said =
            "x\nssh: Could not resolve hostname n9: Name or service not known\r\n-----\nORTE was unable";
        assert_eq!(shell_says(said), Some("ssh: Could not resolve hostname n9: Name or service not known"));
        let refused = "ann@n9: Permission denied (publickey,password).";
        assert_eq!((shell_says(refused), shell_says("a rank's words")), (Some(refused), None));
    }

    #[test]
    fn hosts_with_and_without_domain() {
        assert!(same_host("n1.cluster", "n1") && same_host("n1", "n1") && !same_host("n1", "n10"));
    }
}

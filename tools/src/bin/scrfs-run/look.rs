//! How nodes are: each is asked by `scrfs-ctl probe`, started there the way the program will be. A
//! node is fit when that answers and finds no problem.
//!
//! - `silence`: why a node did not answer

mod silence;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use rustix::fs::MemfdFlags;
use scrfs::beside::beside;
use scrfs_tools::probe::Report;
use scrfs_tools::scheduler::short;

use self::silence::{Silence, shell_says};
use crate::launcher::{CommandLine, Lines, Refusal};
use crate::process::{self, Group, Streams};
use crate::reach::{self, Watch};
use crate::scheduler::{self, Standing};
use crate::supervise::{Count, Doubt, Look};
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
/// For how long killed processes may take to end: to give a hundred GB back, or a GPU's memory.
const ENDING: Duration = Duration::from_mins(2);
/// Until it is asked again.
const PAUSE: Duration = Duration::from_secs(2);
/// Launchers that ask at the same time.
const AT_ONCE: usize = 16;
/// The answers of ten thousand nodes, and what launchers add to them, are not longer.
const OUTPUT_BYTES_MAX: u64 = 64 << 20;
/// A launcher that dies itself asks so often, with this pause before the second time and the next.
const TRIES: usize = 3;
const BETWEEN_TRIES: Duration = Duration::from_millis(300);
/// So often is it looked whether a launcher has taken too long.
const NOW_AND_THEN: Duration = Duration::from_millis(50);
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
    /// Where this program runs.
    pub(crate) here: String,
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
    /// by itself. Whom the scheduler names is not asked. Of [`Doubt::IfSilent`] nothing comes while
    /// all answer a connection, or none does.
    ///
    /// A launcher that reaches no node because the scheduler does not answer, or that dies itself,
    /// says nothing of the nodes: that is told to `say`, and all are asked again, while `serial` is
    /// the look that is awaited. So are those alone on which killed processes have not ended.
    pub(crate) fn look(
        &self,
        serial: u64,
        hosts: &[String],
        (sweep, doubt): (bool, Doubt),
        say: impl Fn(&str),
    ) -> Vec<Look> {
        if doubt == Doubt::IfSilent && reach::silent(hosts).0.is_empty() {
            return Vec::new();
        }
        let begun = Instant::now();
        let mut said = false;
        let mut looks = loop {
            let (looks, why) = self.look_once(hosts, sweep, doubt);
            let is_waited_for = self.is_awaited(serial) && begun.elapsed() < PATIENCE;
            let Some(why) = why.filter(|_| is_waited_for) else { break looks };
            if !std::mem::replace(&mut said, true) {
                say(&format!("nodes cannot be asked, as {why}"));
            }
            std::thread::sleep(PAUSE);
        };
        self.await_ending(serial, &mut looks, sweep, say);
        looks
    }

    fn is_awaited(&self, serial: u64) -> bool {
        self.awaited.load(Ordering::Relaxed) == serial
    }

    fn await_ending(&self, serial: u64, looks: &mut [Look], sweep: bool, say: impl Fn(&str)) {
        let begun = Instant::now();
        let mut said = false;
        loop {
            let mut ending: Vec<&mut Look> = looks.iter_mut().filter(|look| look.ending).collect();
            if ending.is_empty() || begun.elapsed() >= ENDING || !self.is_awaited(serial) {
                return;
            }
            let hosts: Vec<String> = ending.iter().map(|look| look.host.clone()).collect();
            if !std::mem::replace(&mut said, true) {
                say(&format!("{}: killed processes of the former run are still ending", hosts.join(" ")));
            }
            std::thread::sleep(PAUSE);
            let again = self.look_once(&hosts, sweep, Doubt::OfOne).0;
            for (former, look) in ending.iter_mut().zip(again) {
                let orphans = former.orphans.saturating_add(look.orphans);
                **former = Look { orphans, ..look };
            }
        }
    }

    /// Also tells why no more nodes answered, if that is no node's fault.
    fn look_once(&self, hosts: &[String], sweep: bool, doubt: Doubt) -> (Vec<Look>, Option<String>) {
        let (standings, (silent, some_answer)) = std::thread::scope(|scope| {
            let standings = beside(scope, || scheduler::standings(hosts));
            let silent = reach::silent(hosts);
            (standings.join().flatten(), silent)
        });
        let watch = Watch::begin(hosts, silent);
        let scheduler_answers = standings.is_some();
        let mut asked = Asked::of(hosts, &standings.unwrap_or_default());
        asked.is_cut_off = !some_answer && !hosts.iter().any(|host| same_host(host, &self.here));
        let (here, rest): (Vec<_>, Vec<_>) =
            asked.whom.iter().partition(|&&at| !sweep && same_host(&hosts[at], &self.here));
        let (silent, answering): (Vec<usize>, Vec<usize>) =
            rest.into_iter().partition(|&at| watch.is_silent(at));
        // With doubt, few are asked each by itself.
        let by_one = doubt != Doubt::None && answering.len() <= AT_ONCE;
        let (together, each) = if by_one { (&[][..], &answering[..]) } else { (&answering[..], &[][..]) };
        let most = if doubt == Doubt::None { 1 } else { AT_ONCE };
        let each = [&here, each, &silent].concat();
        for (at, answer) in self.ask_them(hosts, (together, most), &each, sweep, &watch) {
            asked.take(at, answer);
        }
        let is_missing = |at: &usize| asked.found[*at].is_none() && !watch.is_silent(*at);
        let missing: Vec<usize> = answering.iter().copied().filter(is_missing).collect();
        let is_right = self.answered.fetch_or(asked.found.iter().any(Option::is_some), Ordering::Relaxed);
        let is_away = blames_scheduler(scheduler_answers, &missing, &asked.restarting, is_right);
        let away = || "the scheduler does not answer or has just been started: waiting for it".to_owned();
        // Before something is started there, all of them alike: whoever reaches them is slow.
        let is_slow =
            sweep && is_right && !answering.is_empty() && answering.iter().all(|&at| asked.is_slow(at));
        let name = self.lines.service.name();
        let slow =
            || format!("{name} brings no answer in time, though they answer a connection: asking again");
        let why = asked.crashed.take().or_else(|| is_away.then(away)).or_else(|| is_slow.then(slow));
        (asked.looks(hosts), why)
    }

    /// Everybody's answer, or why there is none: those who are `together` by at most so many
    /// launchers, all others by themselves.
    fn ask_them(
        &self,
        hosts: &[String],
        (together, most): (&[usize], usize),
        each: &[usize],
        sweep: bool,
        watch: &Watch,
    ) -> Vec<(usize, Result<Report, Silence>)> {
        let mut answers = std::thread::scope(|scope| {
            let groups = beside(scope, || self.ask_together(hosts, together, most, sweep, watch));
            let each = self.ask_each(hosts, each, sweep, watch);
            [groups.join().unwrap_or_default(), each].into_iter().flatten().collect::<Vec<_>>()
        });
        let missing = |answers: &[(usize, _)]| -> Vec<usize> {
            together.iter().copied().filter(|at| answers.iter().all(|(answered, _)| answered != at)).collect()
        };
        let mut rest = missing(&answers);
        // One that is gone has kept all of its group from answering.
        if rest.len() > AT_ONCE {
            rest.retain(|&at| !watch.is_silent(at));
            answers.extend(self.ask_together(hosts, &rest, AT_ONCE, sweep, watch));
            rest = missing(&answers);
        }
        answers.extend(self.ask_each(hosts, &rest, sweep, watch));
        answers
    }

    /// At most `most` launchers over all: who answered.
    fn ask_together(
        &self,
        hosts: &[String],
        which: &[usize],
        most: usize,
        sweep: bool,
        watch: &Watch,
    ) -> Vec<(usize, Result<Report, Silence>)> {
        let ask = |group: &[usize]| {
            let names: Vec<String> = group.iter().map(|&at| hosts[at].clone()).collect();
            self.ask_all(&names, sweep, Patience::with(LIMIT, watch, group), false).0
        };
        let reports: Vec<Report> = std::thread::scope(|scope| {
            let begin = |group| beside(scope, move || ask(group));
            let asked: Vec<_> = groups(which, most).map(begin).collect();
            asked.into_iter().flat_map(|group| group.join().unwrap_or_default()).collect()
        });
        let place = |report: &Report| which.iter().copied().find(|&at| same_host(&hosts[at], &report.host));
        reports.into_iter().filter_map(|report| Some((place(&report)?, Ok(report)))).collect()
    }

    /// One launcher for each: everybody's answer, or why there is none.
    fn ask_each(
        &self,
        hosts: &[String],
        which: &[usize],
        sweep: bool,
        watch: &Watch,
    ) -> Vec<(usize, Result<Report, Silence>)> {
        let mut answers = Vec::new();
        for chunk in which.chunks(AT_ONCE) {
            std::thread::scope(|scope| {
                let ask =
                    |at: usize| self.ask_one(&hosts[at..=at], sweep, Patience::with(LIMIT, watch, &[at]));
                let asked: Vec<_> = chunk.iter().map(|&at| (at, beside(scope, move || ask(at)))).collect();
                for (at, thread) in asked {
                    answers.push((at, thread.join().unwrap_or(Err(Silence::TooSlow(LIMIT)))));
                }
            });
        }
        answers
    }

    /// One that was too slow is asked once more, a busy machine is not a dead one; but not if it
    /// does not answer a connection either. This host needs no launcher to be asked; before
    /// something is started on it, it is known whether one gets here.
    fn ask_one(&self, host: &[String], sweep: bool, patience: Patience<'_>) -> Result<Report, Silence> {
        let is_here = same_host(&host[0], &self.here);
        if is_here && !sweep {
            return self.ask(host, sweep, patience, true);
        }
        let mut asked = self.ask(host, sweep, patience, false);
        if !patience.is_short() && matches!(asked, Err(Silence::TooSlow(_))) {
            asked = self.ask(host, sweep, patience, is_here);
        }
        asked
    }

    /// One launcher over `hosts`, or none on this one: the first answer, and what it means if there
    /// is none.
    fn ask(
        &self,
        hosts: &[String],
        sweep: bool,
        patience: Patience<'_>,
        here: bool,
    ) -> Result<Report, Silence> {
        let (reports, silence) = self.ask_all(hosts, sweep, patience, here);
        reports.into_iter().next().ok_or(silence)
    }

    fn ask_all(
        &self,
        hosts: &[String],
        sweep: bool,
        patience: Patience<'_>,
        here: bool,
    ) -> (Vec<Report>, Silence) {
        let mut command: Vec<&OsStr> =
            vec![self.ctl.as_os_str(), "probe".as_ref(), "--mount".as_ref(), self.mount.as_os_str()];
        if sweep {
            command.extend([OsStr::new("--sweep"), OsStr::new(&self.token)]);
            // While no program of the job runs.
            if let Some(path) = &self.checkpoint_path {
                command.extend([OsStr::new("--checkpoint-path"), path.as_os_str()]);
            }
        }
        if here {
            return self.run(&self.lines.here(&command), "scrfs-ctl", patience);
        }
        self.probe(hosts, &command, patience)
    }

    /// How many processes the program may have on these nodes, if `launcher` is its launcher's
    /// process and `coordinator` the file of its coordinators.
    pub(crate) fn count_processes(&self, hosts: &[String], launcher: u32, coordinator: &Path) -> Count {
        let (ctl, launcher) = (self.ctl.as_os_str(), launcher.to_string());
        let command = [ctl, "probe".as_ref(), "--count".as_ref(), self.token.as_ref()];
        let besides =
            ["--launcher".as_ref(), launcher.as_ref(), "--coordinator".as_ref(), coordinator.as_os_str()];
        let reports = self.probe(hosts, &[command, besides].concat(), Patience::of(LIMIT)).0;
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
        let (silent, _) = reach::silent(hosts);
        let answering = hosts.iter().enumerate().filter(|(at, _)| !silent.contains(at));
        let answering = || answering.clone().map(|(_, host)| host.clone());
        let sound: Vec<String> = answering().filter(|host| !doubtful.contains(host)).collect();
        let (ctl, mount, token) = (self.ctl.as_os_str(), self.mount.as_os_str(), OsStr::new(&self.token));
        let words = ["probe", "--ended", "--mount"].map(OsStr::new);
        let command = [&[ctl][..], &words, &[mount, OsStr::new("--sweep"), token]].concat();
        let answers = if sound.is_empty() {
            Vec::new()
        } else {
            self.probe(&sound, &command, Patience::of(left().min(LAST_LIMIT))).0
        };
        let is_silent = |host: &String| answers.iter().all(|report| !same_host(host, &report.host));
        let rest: Vec<String> = answering().filter(is_silent).collect();
        std::thread::scope(|scope| {
            for group in rest.chunks(rest.len().div_ceil(AT_ONCE).max(1)) {
                let (command, limit) = (&command, left().min(SILENT_LIMIT));
                beside(scope, move || self.probe(group, command, Patience::of(limit)));
            }
        });
    }

    /// A launcher that dies itself says nothing of any node, and asks again.
    fn probe(&self, hosts: &[String], command: &[&OsStr], patience: Patience<'_>) -> (Vec<Report>, Silence) {
        let (line, launcher) = (self.lines.tool(hosts, command), self.lines.service.name());
        let mut asked = self.run(&line, launcher, patience);
        for _ in 1..TRIES {
            if !(asked.0.is_empty() && matches!(asked.1, Silence::Crashed(..))) {
                break;
            }
            std::thread::sleep(BETWEEN_TRIES);
            asked = self.run(&line, launcher, patience);
        }
        asked
    }

    fn run(&self, line: &CommandLine, name: &'static str, patience: Patience<'_>) -> (Vec<Report>, Silence) {
        match bounded_by(line, &|spent| spent >= patience.limit(), true) {
            Ok(Ended { output, code, signal }) => {
                let said = talk::refusal_in(&self.lines.service, &output);
                let silence = match (code, signal, said) {
                    (Some(_), Some(signal), _) => Silence::Crashed(name, signal),
                    (_, _, Some(said)) => Silence::Refused(said),
                    (None, ..) => Silence::TooSlow(patience.limit()),
                    (Some(code), None, None) => {
                        let ended = || format!("{name} ended with exit code {code}");
                        Silence::Unreachable(shell_says(&output).map_or_else(ended, str::to_owned))
                    }
                };
                (Report::find_all(&output), silence)
            }
            Err(error) => {
                let what = format!("{name}: {error}");
                (Vec::new(), Silence::Refused(Refusal { what, hint: ELSEWHERE }))
            }
        }
    }
}

/// How long those who are asked together may take.
#[derive(Debug, Clone, Copy)]
struct Patience<'a> {
    limit: Duration,
    /// One of these need not answer a connection any more: then that is shorter.
    watched: Option<(&'a Watch, &'a [usize])>,
}

impl<'a> Patience<'a> {
    fn of(limit: Duration) -> Self {
        Self { limit, watched: None }
    }

    fn with(limit: Duration, watch: &'a Watch, which: &'a [usize]) -> Self {
        Self { limit, watched: Some((watch, which)) }
    }

    fn is_short(self) -> bool {
        self.watched.is_some_and(|(watch, which)| which.iter().any(|&at| watch.is_silent(at)))
    }

    fn limit(self) -> Duration {
        if self.is_short() { self.limit.min(SILENT_LIMIT) } else { self.limit }
    }
}

/// Who of a job's hosts is asked, and what comes of it, by their places.
#[derive(Debug)]
struct Asked {
    whom: Vec<usize>,
    found: Vec<Option<Report>>,
    /// Why others are not fit, whether that is merely silence, and what a person can do.
    reasons: Vec<(String, bool, Option<&'static str>)>,
    /// The scheduler's word.
    leaving: Vec<Option<String>>,
    /// Those of which the scheduler says what it says after a restart of its own.
    restarting: BTreeSet<usize>,
    /// Those that merely have not answered in time.
    slow: BTreeSet<usize>,
    /// A launcher died itself.
    crashed: Option<String>,
    /// Neither is one of them here nor does any answer a connection: whatever coordinators on them
    /// had to say would not be heard, so that silence counts.
    is_cut_off: bool,
}

impl Asked {
    /// All but those of which the scheduler says that they are gone.
    fn of(hosts: &[String], standings: &BTreeMap<String, Standing>) -> Self {
        let mut asked = Self {
            whom: Vec::new(),
            found: hosts.iter().map(|_| None).collect(),
            reasons: vec![(String::new(), true, None); hosts.len()],
            leaving: vec![None; hosts.len()],
            restarting: BTreeSet::new(),
            slow: BTreeSet::new(),
            crashed: None,
            is_cut_off: false,
        };
        for (at, host) in hosts.iter().enumerate() {
            match standings.iter().find(|(name, _)| same_host(host, name)).map(|(_, standing)| standing) {
                Some(Standing::Lost(state)) => {
                    asked.reasons[at] = (format!("the scheduler says that it is {state}"), false, None);
                    continue;
                }
                Some(Standing::Leaving(state)) => asked.leaving[at] = Some(state.clone()),
                None => {}
            }
            asked.whom.push(at);
        }
        asked
    }

    fn take(&mut self, at: usize, answer: Result<Report, Silence>) {
        match answer {
            Ok(report) => self.found[at] = Some(report),
            Err(silence) => {
                self.restarting.extend(silence.is_of_a_restart().then_some(at));
                self.slow.extend(matches!(silence, Silence::TooSlow(_)).then_some(at));
                let is_crash = matches!(silence, Silence::Crashed(..));
                self.reasons[at] = (silence.to_string(), is_crash || !self.is_cut_off, silence.remedy());
                if is_crash {
                    self.crashed = Some(format!("{silence}: asking again"));
                }
            }
        }
    }

    /// Neither it nor its daemon has answered in time.
    fn is_slow(&self, at: usize) -> bool {
        self.found[at].as_ref().map_or_else(|| self.slow.contains(&at), |report| report.late)
    }

    fn looks(self, hosts: &[String]) -> Vec<Look> {
        let all = hosts.iter().zip(self.found.into_iter().zip(self.reasons).zip(self.leaving));
        let looks = all.map(|(host, ((report, (reason, silent, remedy)), leaving))| match report {
            Some(report) => of_report(host, report, leaving),
            None => Look { host: host.clone(), problem: Some(reason), silent, remedy, ..Look::default() },
        });
        looks.collect()
    }
}

fn of_report(host: &str, report: Report, leaving: Option<String>) -> Look {
    Look {
        host: host.to_owned(),
        problem: report.problem,
        silent: report.late,
        ending: report.ending.is_some(),
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

/// Lists and hosts may differ in their domain.
pub(crate) fn same_host(listed: &str, reported: &str) -> bool {
    short(listed) == short(reported)
}

#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) output: String,
    /// `None`: it had to be ended.
    pub(crate) code: Option<u8>,
    /// A signal has ended it, or what was to end it.
    pub(crate) signal: Option<i32>,
}

/// Runs a command to its end, or ends it after `limit`. Its output goes to memory rather than
/// through a pipe: nobody has to wait for grandchildren that keep a pipe open. `errors`: standard
/// error counts as output.
pub(crate) fn bounded(line: &CommandLine, limit: Duration, errors: bool) -> io::Result<Ended> {
    bounded_by(line, &|spent| spent >= limit, errors)
}

/// The same with a limit that may change: `is_over` is asked now and then, with the time spent.
fn bounded_by(line: &CommandLine, is_over: &dyn Fn(Duration) -> bool, errors: bool) -> io::Result<Ended> {
    let memory = File::from(rustix::fs::memfd_create("probe", MemfdFlags::CLOEXEC)?);
    let group = Group::start(line, Streams::Into(memory.try_clone()?, errors))?;
    let id = group.id();
    let begun = Instant::now();
    let in_time = loop {
        if process::ends_within(id, NOW_AND_THEN) {
            break true;
        }
        if is_over(begun.elapsed()) {
            break false;
        }
    };
    if !in_time {
        process::signal(id, Signal::SIGTERM);
        process::kill_after(id, Duration::from_secs(1));
    }
    let (code, signal) = group.reap();
    let mut bytes = Vec::new();
    (&memory).rewind()?;
    memory.take(OUTPUT_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(Ended { output: String::from_utf8_lossy(&bytes).into_owned(), code: in_time.then_some(code), signal })
}

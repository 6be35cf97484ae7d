//! Carries out what [`Supervisor`] decides, and tells it what happens.
//!
//! One thread owns everything and waits for one queue; small threads wait for one thing each and
//! put it there.
//!
//! - `parts`: how the program, coordinators and questions are started, heard and ended
//! - `programs`: whether what is to be started is there

mod parts;
mod programs;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use nix::unistd::Pid;
use scrfs::config::hosts::{expand, short};
use scrfs::control::lost::{Lost, Why};
use scrfs::control::ready::{Failed, HaltDue, Ready};
use scrfs_tools::probe::NAMED;
use scrfs_tools::{Failure, Outcome, token};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};

use crate::allocation;
use crate::announce::Word;
use crate::apart;
use crate::arguments::Job;
use crate::input;
use crate::launcher::NotLaunched;
use crate::look::{Looker, same_host};
use crate::prefix;
use crate::process::{self, GRACE, Group};
use crate::supervise::{Input, Output, Part, SaveError, Supervisor};
use crate::talk::{self, Log};

/// Between TERM and KILL for what may wait for a node that is lost.
const HURRY: Duration = Duration::from_millis(500);
/// For ending what is left on the nodes when all is done, and what of the allocation's time is left
/// alone.
const SWEEP: Duration = Duration::from_secs(10);
const SWEEP_RESERVE: Duration = Duration::from_secs(1);
/// More than this says nothing more.
const FOLDED_BYTES_MAX: usize = 64 << 10;
const BY_LAUNCHER: &str = "is lost (the launcher says so)";

/// What comes through the queue.
enum Event {
    Tell(Input),
    Ended(Part, Pid),
    /// From the coordinators of this start.
    Said(u64, Word),
    /// Somebody names this host as lost.
    Lost(String),
    /// The launcher of this part could not launch on some nodes.
    NotLaunched(Part, NotLaunched),
    /// For the person who waits.
    Say(String),
    /// What a launcher said about something that has gone wrong.
    Folded(Vec<u8>),
    /// The program could not be sent this signal other than through its launcher, and why.
    NotSignalled(Pid, Signal, String),
    /// When the allocation ends, seconds since 1970; `None` within: never.
    AllocationEnds(Result<Option<u64>, String>),
}

/// A part that runs.
struct Running {
    group: Group,
    /// It was asked to end.
    stopped: bool,
    /// Its launcher was sent a SIGTERM at this time, to pass on.
    terminated: Option<Instant>,
    /// When it is killed for not doing so.
    kill_at: Option<Instant>,
}

/// Runs the job to its end; gives the exit code.
pub(crate) fn supervised(mut job: Job) -> Outcome<u8> {
    for binary in [&job.coordinator, &job.ctl] {
        if !binary.exists() {
            return Err(Failure::new(format!("{} is missing", binary.display())).hint(
                "scrfs-run, scrfs-ctl and scrfs-coordinator belong in one directory, the same on all nodes",
            ));
        }
    }
    programs::look_for(&job)?;
    if !job.enable {
        talk::tell("SCR_ENABLE=0: markers succeed at once, and nothing is protected");
    }
    // For as long as this process lives: no other start of this job may take its program for dead.
    let _only = job.token.hold()?;
    token::sweep();
    let _session = apart::choose(&mut job.lines.environment, &job.ctl);
    prefix::look(&job.prefix, &job.token.job.replacen('/', " ", 1))?;
    process::adopt_orphans(&job.token.to_string())
        .map_err(|e| Failure::system("becoming a subreaper", &e))?;
    let (queue, events) = mpsc::channel();
    watch_signals(&queue)?;
    let mut driver = Driver::new(job, queue);
    let code = driver.run(&events);
    driver.end_all();
    driver.end_left();
    if driver.starts > 0 {
        prefix::tell_end(&driver.job.prefix);
    }
    Ok(code)
}

struct Driver {
    job: Job,
    /// The supervisor's clock begins here.
    begun: Instant,
    looker: Looker,
    queue: Sender<Event>,
    running: BTreeMap<Part, Running>,
    /// Starts of coordinators so far.
    starts: u64,
    /// Where parts were started that have one task on each node.
    started_on: BTreeMap<Part, Vec<String>>,
    /// Where something was started.
    touched: BTreeSet<String>,
    /// Hosts that may not answer.
    doubtful: BTreeSet<String>,
    wake_at: Option<Instant>,
    input: input::Input,
    log: Log,
    /// What launchers said since the last start, while nothing explains it.
    folded: Folded,
    /// With `--fresh`: datasets of earlier epochs are not presented. Until the first restart has
    /// its epoch: none is.
    floor: Option<u64>,
}

impl Driver {
    fn new(job: Job, queue: Sender<Event>) -> Self {
        let looker = Looker {
            lines: job.lines.clone(),
            ctl: job.ctl.clone(),
            mount: job.mount.clone(),
            checkpoint_path: job.checkpoint_path.clone(),
            token: job.token.to_string(),
            here: job.token.host.clone(),
            awaited: Arc::default(),
            answered: Arc::default(),
        };
        let log = Log::at(job.prefix.join(".scr/scrfs-run.log"));
        let floor = job.plan.fresh.then_some(u64::MAX);
        Self {
            job,
            begun: Instant::now(),
            looker,
            queue,
            running: BTreeMap::new(),
            starts: 0,
            started_on: BTreeMap::new(),
            touched: BTreeSet::new(),
            doubtful: BTreeSet::new(),
            wake_at: None,
            input: input::Input::of_process(),
            log,
            folded: Folded::default(),
            floor,
        }
    }

    fn run(&mut self, events: &Receiver<Event>) -> u8 {
        let begun = self.begun;
        let mut supervisor = Supervisor::new(self.job.plan.clone(), self.job.excluded.clone());
        let mut input = Some(Input::Begin);
        loop {
            if let Some(input) = input.take() {
                self.wake_at = None;
                for wanted in supervisor.step(begun.elapsed(), input) {
                    if let Some(code) = self.carry_out(wanted) {
                        return code;
                    }
                }
            }
            input = match self.next(events) {
                Some(event) => self.understand(event),
                None => self.wake_at.is_some_and(|at| at <= Instant::now()).then_some(Input::Tick),
            };
        }
    }

    /// The next event; `None` when it was time for something first.
    fn next(&mut self, events: &Receiver<Event>) -> Option<Event> {
        let times = self.running.values().filter_map(|r| r.kill_at).chain(self.wake_at);
        let event = match times.min() {
            Some(at) => events.recv_timeout(at.saturating_duration_since(Instant::now())).ok(),
            None => events.recv().ok(),
        };
        let now = Instant::now();
        for part in self.running.values_mut().filter(|r| r.kill_at.is_some_and(|at| at <= now)) {
            process::signal(part.group.id(), Signal::SIGKILL);
            part.kill_at = None;
        }
        event
    }

    fn understand(&mut self, event: Event) -> Option<Input> {
        match event {
            Event::Tell(input) => {
                if let Input::Looked { nodes, .. } = &input {
                    let lost = nodes.iter().filter(|node| node.problem.is_some());
                    self.doubtful.extend(lost.map(|node| node.host.clone()));
                }
                if let Input::Signal(_) = input {
                    self.folded.is_over = true;
                    self.looker.hurry();
                }
                Some(input)
            }
            Event::Lost(name) => self.lost(&name, BY_LAUNCHER, true),
            Event::NotLaunched(part, failed) => Some(self.not_launched(part, failed)),
            Event::Say(line) => {
                talk::tell(&line);
                None
            }
            Event::Folded(bytes) => {
                self.folded.add(&bytes);
                None
            }
            Event::NotSignalled(program, signal, why) => {
                self.signal_launcher(program, signal, &why);
                None
            }
            Event::AllocationEnds(asked) => Some(Input::AllocationEnds(self.allocation_ends(asked))),
            Event::Said(started, word) => {
                tracing::debug!(started, ?word, "the coordinators say");
                self.said(started, word)
            }
            Event::Ended(part, pid) => {
                let (code, crashed) = self.reap(part, pid)?;
                Some(match part {
                    Part::Program => Input::ProgramEnded(code),
                    Part::Coordinators => Input::CoordinatorsEnded(code),
                    Part::Save if code == 0 => Input::Saved(Ok(())),
                    Part::Save if code == NAMED => {
                        self.folded.is_explained = true;
                        Input::Saved(Err(SaveError::Named))
                    }
                    Part::Save if crashed => Input::Saved(Err(SaveError::Crashed)),
                    Part::Save => {
                        let why = format!("whoever was to save it ended with exit code {code}");
                        Input::Saved(Err(SaveError::Failed(why)))
                    }
                })
            }
        }
    }

    /// By the supervisor's clock. What is started from now on goes by it.
    fn allocation_ends(&mut self, asked: Result<Option<u64>, String>) -> Option<Duration> {
        let at = match asked {
            Ok(at) => at,
            Err(why) => {
                tracing::debug!(why, "when the allocation ends");
                return None;
            }
        };
        self.job.halt_rules.end_time = at.unwrap_or_default();
        let environment = &mut self.job.lines.environment;
        let Some(at) = at else {
            environment.remove(OsStr::new("SCRFS_END_TIME"));
            return Some(Duration::MAX);
        };
        environment.insert("SCRFS_END_TIME".into(), at.to_string().into());
        Some(self.begun.elapsed() + Duration::from_secs(at.saturating_sub(allocation::now())))
    }

    /// Coordinators of this start.
    fn said(&mut self, started: u64, word: Word) -> Option<Input> {
        // Not of those that have ended or are to end.
        let part = self.running.get(&Part::Coordinators).filter(|part| !part.stopped);
        let serves = part.is_some() && started == self.starts;
        match word {
            Word::Lost(Lost { host, why }) => self.lost(
                &host,
                match why {
                    Why::Network => "has lost its power or its network (the other nodes say so)",
                    Why::Silent => {
                        "does not respond any more, though its network does (the other nodes say so)"
                    }
                },
                false,
            ),
            Word::Ready(Ready { epoch, current, id }) if serves => {
                // Whatever it was, it is over.
                self.folded.take();
                self.floor = self.floor.map(|floor| floor.min(epoch.0));
                Some(Input::Ready(current.map(|name| (id, OsString::from_vec(name)))))
            }
            Word::Halt(HaltDue { reason }) if serves => Some(Input::HaltDue(reason)),
            Word::Met if serves => Some(Input::Met),
            Word::Sealed if serves => Some(Input::Sealed),
            Word::Leaving(_) if serves => Some(Input::CoordinatorsLeave),
            Word::Failed(Failed { reason }) if serves => Some(Input::CoordinatorsFail(reason)),
            Word::Met
            | Word::Ready(_)
            | Word::Sealed
            | Word::Halt(_)
            | Word::Leaving(_)
            | Word::Failed(_) => None,
        }
    }

    fn lost(&mut self, name: &str, how: &'static str, by_launcher: bool) -> Option<Input> {
        self.folded.is_explained = true;
        let host = self.job.plan.hosts.iter().find(|host| same_host(host, name))?.clone();
        self.doubtful.insert(host.clone());
        Some(Input::Lost { host, how, by_launcher })
    }

    /// Tasks are numbered by the nodes, where each has one; srun alone tells of tasks.
    fn not_launched(&self, part: Part, NotLaunched { hosts, tasks, what }: NotLaunched) -> Input {
        let started = self.started_on.get(&part);
        let started = started.and_then(|hosts| in_slurms_order(hosts, &self.job.lines.environment));
        let of_tasks = tasks.iter().filter_map(|task| started.as_ref()?.get(*task)).cloned();
        let named = |name: &String| self.job.plan.hosts.iter().find(|host| same_host(host, name)).cloned();
        let hosts = hosts.iter().filter_map(named).chain(of_tasks).collect();
        Input::NotLaunched { part, hosts, what }
    }

    /// The exit code, if that process is still the one that is watched, and whether it was a
    /// launcher that nobody here has ended and a signal has.
    fn reap(&mut self, part: Part, pid: Pid) -> Option<(u8, bool)> {
        if self.running.get(&part)?.group.id() != pid {
            return None;
        }
        let running = self.running.remove(&part)?;
        let (was_stopped, (code, signal)) = (running.stopped, running.group.reap());
        let launcher = self.job.lines.of(part);
        let crash = signal.filter(|_| !was_stopped && !launcher.is_program());
        if let Some(signal) = crash {
            let name = launcher.name();
            talk::tell(&format!("{name} was ended by signal {signal}, which is not the nodes' fault"));
        }
        if !self.running.contains_key(&Part::Program) && !self.running.contains_key(&Part::Coordinators) {
            process::end_orphans();
        }
        Some((code, crash.is_some()))
    }

    /// The exit code, at the end.
    fn carry_out(&mut self, wanted: Output) -> Option<u8> {
        match wanted {
            Output::Look { serial, hosts, sweep, doubt } => self.look(serial, hosts, sweep, doubt),
            Output::StartCoordinators { hosts, program, start, keep } => {
                let program = &hosts[..program.min(hosts.len())];
                let started = self.start_coordinators(&hosts, program, start, keep);
                self.tell_failed(Part::Coordinators, started);
            }
            Output::StartProgram { hosts, current, run } => {
                let started = self.start_program(&hosts, current, run);
                self.tell_failed(Part::Program, started);
            }
            Output::SignalProgram(signal) => {
                // What its launcher says about that.
                self.folded.is_explained = true;
                self.signal_program(signal);
            }
            Output::CountProcesses { run, hosts } => self.count_processes(run, hosts),
            Output::AskEnd => self.ask_end(),
            Output::StopProgram => self.stop(Part::Program),
            Output::StopCoordinators => self.stop(Part::Coordinators),
            Output::Hurry => {
                let at = Instant::now() + HURRY;
                for part in self.running.values_mut().filter(|part| part.stopped) {
                    part.kill_at = part.kill_at.map(|former| former.min(at));
                }
            }
            Output::Save { host, limit, due, newest } => {
                let started = self.save(host, limit, due, newest);
                self.tell_failed(Part::Save, started);
            }
            Output::Wake(after) => self.wake_at = Some(Instant::now() + after),
            Output::Say(line) => talk::tell(&line),
            Output::Hint(line) => talk::line(&format!("hint: {line}")),
            Output::Explained => self.folded.is_explained = true,
            Output::Finish(code) => {
                if code != 0 {
                    self.tell_folded();
                }
                return Some(code);
            }
        }
        None
    }

    fn tell_folded(&mut self) {
        let text = self.folded.take();
        if !text.is_empty() {
            talk::say(&text);
        }
    }

    /// Nothing that was started outlives this program.
    fn end_all(&mut self) {
        let parts: Vec<Running> = std::mem::take(&mut self.running).into_values().collect();
        for part in &parts {
            process::signal(part.group.id(), Signal::SIGTERM);
        }
        for part in parts {
            process::kill_after(part.group.id(), GRACE);
            part.group.reap();
        }
        process::end_orphans();
    }

    /// What made a session of its own outlives its launcher, on every node.
    fn end_left(&self) {
        let limit = sweep_limit(allocation::now(), self.job.halt_rules.end_time);
        if !self.touched.is_empty() && !limit.is_zero() {
            let hosts: Vec<String> = self.touched.iter().cloned().collect();
            self.looker.end_left(&hosts, &self.doubtful, limit);
        }
    }
}

/// The nodes of a step, where srun has one task on each: in the order of the allocation's list,
/// whatever the order in which they were named. `None`: that is not known.
fn in_slurms_order(hosts: &[String], environment: &BTreeMap<OsString, OsString>) -> Option<Vec<String>> {
    let list = environment.get(OsStr::new("SLURM_JOB_NODELIST"))?.to_str()?;
    let list = expand(list).ok()?;
    let places: HashMap<&str, usize> = list.iter().map(|host| short(host)).zip(0..).collect();
    let placed = hosts.iter().map(|host| Some((*places.get(short(host))?, host.clone())));
    let ordered: BTreeMap<usize, String> = placed.collect::<Option<_>>()?;
    Some(ordered.into_values().collect())
}

/// How long the nodes may be asked at the end, `now` and `end` in seconds since 1970; 0: no end is
/// known.
fn sweep_limit(now: u64, end: u64) -> Duration {
    let left = Duration::from_secs(end.saturating_sub(now)).saturating_sub(SWEEP_RESERVE);
    // An allocation that should be over is of no account.
    if end <= now { SWEEP } else { left.min(SWEEP) }
}

/// What launchers said about something that has gone wrong: told where nothing else explains it.
#[derive(Debug, Default)]
struct Folded {
    text: Vec<u8>,
    is_explained: bool,
    /// Somebody has asked for the end: whatever they say from now on follows from that.
    is_over: bool,
}

impl Folded {
    fn add(&mut self, bytes: &[u8]) {
        let room = FOLDED_BYTES_MAX.saturating_sub(self.text.len());
        self.text.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }

    /// What is to be told; begins anew.
    fn take(&mut self) -> Vec<u8> {
        let Self { text, is_explained, is_over } = std::mem::take(self);
        self.is_over = is_over;
        if is_explained || is_over { Vec::new() } else { text }
    }
}

/// The job ends at each of these: a batch script may choose any of them as its warning
/// (`sbatch --signal`), XCPU comes at a limit.
const ENDING: [i32; 7] = [SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, Signal::SIGXCPU as i32];

/// What is ignored when this program starts stays so: nohup(1) ignores HUP, and a script's shell
/// ignores INT and QUIT for what it starts in the background.
fn watch_signals(queue: &Sender<Event>) -> Outcome {
    let own = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let heeded = ENDING.into_iter().filter(|signal| !is_ignored(&own, *signal));
    let mut signals = signal_hook::iterator::Signals::new(heeded)
        .map_err(|e| Failure::system("listening for signals", &e))?;
    let queue = queue.clone();
    spawn("signals", move || {
        for signal in signals.forever() {
            drop(queue.send(Event::Tell(Input::Signal(u8::try_from(signal).unwrap_or(0)))));
        }
    })
}

/// By the status of a process (proc_pid_status(5)).
fn is_ignored(status: &str, signal: i32) -> bool {
    let mask =
        status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigIgn:")?.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

pub(crate) fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Outcome {
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(work)
        .map(drop)
        .map_err(|e| Failure::system("starting a thread", &e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_launchers_say_is_told_where_nothing_explains_it_and_nobody_has_asked_for_the_end() {
        let mut folded = Folded::default();
        folded.add(b"firewall");
        assert_eq!(folded.take(), b"firewall");
        folded.add(b"firewall");
        folded.is_explained = true;
        assert!(folded.take().is_empty());
        folded.is_over = true;
        for _ in 0..2 {
            folded.add(b"firewall");
            assert!(folded.take().is_empty());
        }
    }

    #[test]
    fn tasks_are_numbered_as_slurm_lists_the_nodes() {
        let ordered = |hosts: &[&str], list: &str| {
            let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
            in_slurms_order(&hosts, &BTreeMap::from([("SLURM_JOB_NODELIST".into(), list.into())]))
        };
        let hosts = ["n3.site", "n1", "n2"];
        assert_eq!(ordered(&hosts, "n[0-3]").unwrap(), ["n1", "n2", "n3.site"]);
        assert_eq!(ordered(&hosts, "n[1-2]"), None, "n3 is not in it");
        assert_eq!(in_slurms_order(&["n1".to_owned()], &BTreeMap::new()), None);
    }

    #[test]
    fn what_is_ignored_at_the_start_is_known() {
        // As nohup(1) leaves it, and as a shell does in the background.
        for (mask, ignored) in [
            ("0000000000000001", &[SIGHUP][..]),
            ("0000000000001006", &[SIGINT, SIGQUIT]),
            ("0000000000000000", &[]),
        ] {
            let status = format!("Name:\tscrfs-run\nSigIgn:\t{mask}\nSigCgt:\t00000001800044ff\n");
            let found: Vec<i32> = ENDING.into_iter().filter(|signal| is_ignored(&status, *signal)).collect();
            assert_eq!(found, ignored, "{mask}");
        }
        assert!(ENDING.into_iter().all(|signal| !is_ignored("", signal)));
    }

    #[test]
    fn the_last_sweep_ends_before_the_allocation() {
        for (now, end, seconds) in
            [(100, 0, 10), (100, 1000, 10), (100, 105, 4), (100, 101, 0), (100, 99, 10)]
        {
            assert_eq!(sweep_limit(now, end), Duration::from_secs(seconds), "{now} {end}");
        }
    }
}

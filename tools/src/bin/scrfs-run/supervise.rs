//! Decides: which nodes run, what is started and ended, when to give up. A state machine: what
//! happened in, what to do out; no process, file, clock or thread.
//!
//! One turn of a job's life: *look* at all nodes, *recover* (coordinators choose and rebuild a
//! dataset), *run* the program; when it ends, either *save* what is to be on the PFS and be done,
//! or *clear* what is left and look again.

mod choosing;
mod doubting;
mod ending;
mod halting;
mod hanging;
mod losing;
mod meeting;
mod message;
mod progress;
mod serving;
#[cfg(test)]
mod tests;
mod unsealed;
mod wanting;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use self::doubting::Watch;
use self::ending::{End, Holders};
use self::halting::Halting;
use self::hanging::Pulse;
use self::meeting::Meeting;
pub(crate) use self::message::{Count, Doubt, EndPlan, Input, Look, Output, Part, Plan, SaveError, Start};
use self::wanting::Wanted;
use crate::launcher::Refusal;

/// Recoveries in a row that may fail before it is given up.
const RECOVERIES_MAX: u32 = 5;
/// The exit code when the program was ended because a halt was due (EX_TEMPFAIL): a later run can
/// go on.
const HALTED: u8 = 75;
/// The coordinators' exit code when starting them again is of no use (EX_CONFIG).
const SETTINGS: u8 = 78;
/// Theirs when a checkpoint waits for room in the caches, or for the prefix, and there is no other
/// (EX_UNAVAILABLE).
const LACKS: u8 = 69;
/// Attaching takes a few seconds; after this time it is tried anew.
const ATTACH_LIMIT: Duration = Duration::from_mins(1);
/// After each failed attach, the next one waits longer; the last pause is kept. Each of them with
/// an attach stays below `SCRFS_COORDINATOR_WAIT` (10 s): mkdir and markers of the living program
/// wait no longer than that.
const ATTACH_PAUSES: [Duration; 4] =
    [Duration::ZERO, Duration::from_secs(1), Duration::from_secs(2), Duration::from_secs(4)];
/// Coordinators that lived as long as this did not fail at attaching.
const ATTACHED_WELL: Duration = Duration::from_secs(5);
/// Whatever does not end in this time after KILL is left to the nodes' sweep.
const CLEAR_LIMIT: Duration = Duration::from_secs(15);
/// Coordinators that are not ready by then may hang at a node before they watch one another: nodes
/// are looked at meanwhile, and again after a longer time.
const DOUBT: Duration = Duration::from_secs(25);
const DOUBT_AGAIN: Duration = Duration::from_mins(1);
/// The same of those that attach, which takes a few seconds: a node's daemon may be dead.
const ATTACH_DOUBT: Duration = Duration::from_secs(8);
/// How often it is said that recovery goes on.
const TELL: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Before [`Input::Begin`].
    Idle,
    /// All nodes are looked at, to choose those of the next run.
    Looking,
    /// The same; when that is done the job ends.
    LookingToEnd(End),
    /// Coordinators recover; no program runs.
    Recovering,
    /// The program runs.
    Running,
    /// The program ended with 0, or its launcher says that it was not started. Its nodes are looked
    /// at, for neither proves anything.
    Checking,
    /// The program is being ended, the coordinators live on.
    Stopping(End),
    /// The program has ended; what is to be on the PFS is brought there.
    Saving(End),
    /// That could not be: nodes are asked what they have.
    Naming(End),
    /// Waiting until program and coordinators have ended.
    Clearing(After),
    /// [`Output::Finish`] was given.
    Finished,
}

/// What comes when all has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum After {
    Look,
    Save(End),
    Finish(u8),
}

/// TERM or KILL: of the ranks of a program that halts, the first that ends with another code than 0
/// lets its launcher end the others so, and tell of them.
fn is_of_launcher(code: u8) -> bool {
    [128 + 15, 128 + 9].contains(&code)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Coordinators {
    Down,
    /// They have not settled yet, or are being ended.
    Starting,
    /// Somebody else has told them to end.
    Leaving,
    /// Since then they serve.
    Settled(Duration),
}

impl Coordinators {
    fn lived_well(self, now: Duration) -> bool {
        matches!(self, Self::Settled(since) if now.saturating_sub(since) >= ATTACHED_WELL)
    }
}

/// The state machine.
#[derive(Debug)]
pub(crate) struct Supervisor {
    plan: Plan,
    phase: Phase,
    /// Not used, and not asked.
    excluded: BTreeSet<String>,
    /// Of these, those that somebody has named as lost, and that nobody has asked since.
    unasked: BTreeSet<String>,
    /// Those that were used again although somebody had named them, and the newest dataset then.
    taken_back: BTreeMap<String, u64>,
    /// How often a launcher could not launch on a node since a dataset became complete.
    unlaunched: BTreeMap<String, u32>,
    /// Nodes of this run, on which coordinators run; the first ones run the program.
    used: Vec<String>,
    program_up: bool,
    coordinators: Coordinators,
    /// When what is waited for is given up, in [`Phase::Recovering`], [`Phase::Clearing`] and while
    /// attaching.
    deadline: Option<Duration>,
    /// When to say again that recovery goes on.
    tell_at: Option<Duration>,
    /// When to attach again, or to start again what saves.
    attach_at: Option<Duration>,
    attach_failures: u32,
    recovery_failures: u32,
    /// Of coordinators that recover.
    meeting: Meeting,
    /// A launcher has named a node while coordinators started: all nodes are asked.
    suspects: bool,
    save_attaches: u32,
    /// Launchers of what saves that have died themselves, and starts of it that have failed.
    save_crashes: u32,
    serial: u64,
    /// The program was started this many times.
    runs: u32,
    /// Of these, starts that a launcher could not launch on all nodes: they are no runs that count.
    unlaunched_runs: u32,
    /// The highest protected id ever seen.
    newest: u64,
    /// Of the datasets that nodes have, the one that is to be presented.
    wanted: Wanted,
    /// Runs in a row that protected nothing new.
    fruitless: u32,
    /// A run has ended since [`Supervisor::newest`] was last compared.
    run_to_judge: bool,
    /// Nodes of this run were named as lost: the others need not be doubted.
    named: Vec<String>,
    /// When the program was started last.
    launched: Duration,
    /// When it was last seen to go on.
    progress: Duration,
    /// When its nodes were first looked at after its end.
    checked: Duration,
    /// Nodes that do not answer, of which that was said.
    doubted: BTreeSet<String>,
    /// Why the first launch failed, and when its launcher said so.
    refusal: Option<(Duration, Refusal)>,
    /// What the launcher of coordinators that have not met has said of an error of its own.
    launcher_error: Option<String>,
    /// Why a coordinator of this start could not go on, as it has said.
    failure: Option<String>,
    /// The exit code of the last run, if it ended by itself.
    own_code: Option<u8>,
    /// How coordinators start next on the nodes in use: once some have settled there, they attach.
    start: Start,
    /// Newest protected datasets that are not on the PFS, in words, and the hosts that say so, by
    /// the last look.
    unsaved: BTreeMap<String, Holders>,
    /// After so many runs.
    unsaved_at: u32,
    halting: Option<Halting>,
    /// When the allocation ends, if that is known.
    left: Option<Duration>,
    /// How often it was asked for since it moved last.
    asked: u8,
    /// A halt for its sake that coordinators want, until it is known whether it has moved.
    due: Option<String>,
    /// When nodes are looked at although recovery goes on: its launcher may hang.
    doubt_at: Option<Duration>,
    /// Of nodes on which coordinators that recover start, until they have met.
    watch: Option<Watch>,
    /// Of the program that runs, where its launcher's end is not waited for without limit.
    pulse: Option<Pulse>,
    /// The last signal came then.
    signalled: Option<Duration>,
    code: u8,
}

impl Supervisor {
    pub(crate) fn new(plan: Plan, excluded: impl IntoIterator<Item = String>) -> Self {
        Self {
            left: plan.end.left,
            asked: 0,
            due: None,
            doubt_at: None,
            plan,
            phase: Phase::Idle,
            excluded: excluded.into_iter().collect(),
            unasked: BTreeSet::new(),
            taken_back: BTreeMap::new(),
            unlaunched: BTreeMap::new(),
            used: Vec::new(),
            program_up: false,
            coordinators: Coordinators::Down,
            deadline: None,
            tell_at: None,
            attach_at: None,
            attach_failures: 0,
            recovery_failures: 0,
            meeting: Meeting::default(),
            suspects: false,
            save_attaches: 0,
            save_crashes: 0,
            serial: 0,
            runs: 0,
            unlaunched_runs: 0,
            newest: 0,
            wanted: Wanted::default(),
            fruitless: 0,
            run_to_judge: false,
            named: Vec::new(),
            launched: Duration::ZERO,
            progress: Duration::ZERO,
            checked: Duration::ZERO,
            doubted: BTreeSet::new(),
            refusal: None,
            launcher_error: None,
            failure: None,
            own_code: None,
            start: Start::Restart,
            unsaved: BTreeMap::new(),
            unsaved_at: 0,
            halting: None,
            watch: None,
            pulse: None,
            signalled: None,
            code: 1,
        }
    }

    /// Takes what happened at `now` (any clock that does not go back) and says what to do, in
    /// order.
    pub(crate) fn step(&mut self, now: Duration, input: Input) -> Vec<Output> {
        let mut out = Vec::new();
        if self.phase == Phase::Finished {
            return out;
        }
        match input {
            Input::Begin => self.look(Doubt::None, &mut out),
            Input::Looked { serial, nodes, halt } if serial == self.serial => {
                self.looked(now, &nodes, halt, &mut out);
            }
            Input::Met => {
                self.meeting.is_over(now);
                self.launcher_error = None;
                self.met_to_save();
            }
            Input::Ready(current) => self.ready(now, current, &mut out),
            Input::Sealed => {
                self.unlaunched.clear();
                self.goes_on(now);
            }
            Input::CoordinatorsLeave => self.coordinators_leave(now, &mut out),
            Input::CoordinatorsFail(why) => drop(self.failure.get_or_insert(why)),
            Input::CoordinatorsEnded(code) => self.coordinators_ended(now, code, &mut out),
            Input::ProgramEnded(code) => self.program_ended(now, code, &mut out),
            Input::Saved(result) => self.saved(now, result, &mut out),
            Input::Counted { run, count } => self.counted(now, run, count, &mut out),
            Input::AllocationEnds(at) => self.allocation_ends(now, at, &mut out),
            Input::HaltDue(reason) => self.halt_due(now, reason, &mut out),
            Input::Signal(signal) => self.signal(now, signal, &mut out),
            Input::Lost { host, how, by_launcher } if by_launcher && self.is_to_be_asked(&host) => {
                self.suspect(now, &host, how, &mut out);
            }
            Input::Lost { host, how, .. } => self.lost(now, &host, how, &mut out),
            Input::NotLaunched { part, hosts, what } => {
                self.not_launched_on(now, part, &hosts, what, &mut out);
            }
            Input::LauncherFailed(what) => self.launcher_failed(what),
            Input::Refused(refusal) => self.refused(now, refusal),
            Input::CannotStart(part, why) => self.cannot_start(now, part, &why, &mut out),
            Input::CannotLook(why) => self.cannot_look(now, &why, &mut out),
            // An answer to a question of earlier; or only time has passed.
            Input::Looked { .. } | Input::Tick => {}
        }
        self.on_time(now, &mut out);
        let times = [self.deadline, self.attach_at, self.tell_at, self.doubt_at, self.meeting.by()];
        let times =
            times.into_iter().chain([self.halt_at(), self.stalls_at(), self.pulse_at(), self.watch_at()]);
        if let Some(next) = times.flatten().min() {
            out.push(Output::Wake(next.saturating_sub(now)));
        }
        out
    }

    fn give_up(&mut self, now: Duration, why: &str, hint: &'static str, out: &mut Vec<Output>) {
        out.push(Output::Say(format!("giving up: {why}")));
        out.push(Output::Hint(hint.into()));
        self.end(now, self.code, false, out);
    }

    fn finish(&mut self, code: u8, out: &mut Vec<Output>) {
        self.phase = Phase::Finished;
        self.deadline = None;
        self.tell_at = None;
        self.attach_at = None;
        self.halting = None;
        (self.doubt_at, self.watch) = (None, None);
        self.meeting.forget();
        out.push(Output::Finish(code));
    }

    fn recover(&mut self, now: Duration, out: &mut Vec<Output>) {
        self.named.clear();
        (self.refusal, self.launcher_error) = (None, None);
        self.suspects = false;
        self.doubted.clear();
        self.phase = Phase::Recovering;
        self.deadline = Some(now + self.plan.ready_limit);
        self.tell_at = Some(now + TELL);
        self.doubt_at = Some(now + DOUBT);
        self.meeting.begins(now);
        self.watch = Some(Watch::from(now));
        self.start_coordinators(Start::Restart, false, out);
    }

    fn start_coordinators(&mut self, start: Start, keep: bool, out: &mut Vec<Output>) {
        self.coordinators = Coordinators::Starting;
        self.attach_at = None;
        let program = self.program_hosts().len();
        out.push(Output::StartCoordinators { hosts: self.used.clone(), program, start, keep });
    }

    fn program_ended(&mut self, now: Duration, code: u8, out: &mut Vec<Output>) {
        self.program_up = false;
        self.attach_at = None;
        match self.phase {
            Phase::Running if code == 0 => {
                self.refusal = None;
                self.check(now, out);
            }
            Phase::Running if self.was_signalled() => {
                out.push(Output::Say(format!("the program was halted (exit code {code})")));
                self.end(now, HALTED, false, out);
            }
            Phase::Stopping(end) => self.save(now, end, out),
            Phase::Running => {
                self.code = if code == 0 { 1 } else { code };
                let is_own = self.halting.is_none() || !is_of_launcher(code);
                self.own_code = is_own.then_some(self.code);
                // The coordinators that are there save what there is to save. Without them it
                // is not known yet whether a node is lost.
                let saves = self.is_settled();
                if let Some(reason) = self.halts_for().filter(|_| saves) {
                    out.push(Output::Say(format!("the program ended with exit code {code}")));
                    return self.stay_halted(now, &reason, out);
                }
                if self.is_refused(now) {
                    return self.check(now, out);
                }
                self.failed(now, code, out);
            }
            Phase::Clearing(after) => self.cleared(now, after, out),
            _ => {}
        }
    }

    fn check(&mut self, now: Duration, out: &mut Vec<Output>) {
        self.phase = Phase::Checking;
        self.checked = now;
        self.deadline = None;
        self.ask(self.used.clone(), false, Doubt::None, out);
    }

    /// The program has ended, and not well.
    fn failed(&mut self, now: Duration, code: u8, out: &mut Vec<Output>) {
        self.refusal = None;
        out.push(Output::Say(format!("the program ended with exit code {code}")));
        self.clear(now, After::Look, out);
    }

    /// Ends what runs; then `after`.
    fn clear(&mut self, now: Duration, after: After, out: &mut Vec<Output>) {
        self.phase = Phase::Clearing(after);
        self.attach_at = None;
        if self.program_up {
            out.push(Output::StopProgram);
        }
        if self.coordinators != Coordinators::Down {
            out.push(Output::StopCoordinators);
        }
        self.deadline = Some(now + CLEAR_LIMIT);
        self.cleared(now, after, out);
    }

    fn cleared(&mut self, now: Duration, after: After, out: &mut Vec<Output>) {
        if self.program_up || self.coordinators != Coordinators::Down {
            return;
        }
        match after {
            After::Look if self.named.is_empty() => self.look(Doubt::OfOne, out),
            After::Look => self.look(Doubt::None, out),
            After::Save(end) => self.save(now, end, out),
            After::Finish(code) => self.finish(code, out),
        }
    }

    fn is_settled(&self) -> bool {
        matches!(self.coordinators, Coordinators::Settled(_))
    }

    fn on_time(&mut self, now: Duration, out: &mut Vec<Output>) {
        self.save_again(now, out);
        if self.attach_at.is_some_and(|at| at <= now) && self.phase == Phase::Running {
            self.deadline = Some(now + ATTACH_LIMIT);
            self.doubt_at = Some(now + ATTACH_DOUBT);
            self.start_coordinators(Start::Attach, false, out);
        }
        if self.phase != Phase::Recovering {
            (self.tell_at, self.watch) = (None, None);
            self.meeting.forget();
            self.doubt_attach(now, out);
        } else if self.meeting.by().is_some_and(|at| at <= now) && self.deadline.is_none_or(|at| at > now) {
            // Their end is asked for, as at the deadline.
            self.deadline = None;
            self.meeting.fails();
            out.push(Output::Say("the coordinators do not come together: ending them".to_owned()));
            out.push(Output::StopCoordinators);
        } else if self.doubt_at.is_some_and(|at| at <= now) && self.deadline.is_none_or(|at| at > now) {
            self.doubt_at = Some(now + DOUBT_AGAIN);
            self.ask(self.used.clone(), false, Doubt::OfOne, out);
        } else if self.watch_at().is_some_and(|at| at <= now) && self.deadline.is_none_or(|at| at > now) {
            self.ask(self.used.clone(), false, Doubt::IfSilent, out);
        } else if self.tell_at.is_some_and(|at| at <= now) {
            self.tell_at = Some(now + TELL);
            out.push(Output::Say("still waiting for the mounts to present their dataset".to_owned()));
        }
        self.halt_on_time(now, out);
        self.end_if_stalled(now, out);
        self.feel_pulse(now, out);
        if self.deadline.is_none_or(|at| at > now) {
            return;
        }
        self.deadline = None;
        match self.phase {
            Phase::Recovering => {
                self.tell_late("recovery takes too long", out);
                out.push(Output::StopCoordinators);
            }
            Phase::Saving(_) if self.is_settled() => {
                self.saved(now, Err(SaveError::Failed("it takes too long".to_owned())), out);
            }
            Phase::Saving(end) if now >= end.by => self.cannot_save(now, end, out),
            Phase::Naming(end) => self.name_from_memory(now, end, out),
            Phase::Checking => self.ask(self.used.clone(), false, Doubt::OfOne, out),
            Phase::Stopping(end) => {
                out.push(Output::Say("the program does not end: going on without it".to_owned()));
                self.program_up = false;
                self.save(now, end, out);
            }
            Phase::Running | Phase::Saving(_) if self.coordinators != Coordinators::Down => {
                self.tell_late("coordinators do not settle", out);
                out.push(Output::StopCoordinators);
            }
            Phase::Clearing(after) => {
                out.push(Output::Say("something does not end: going on without it".to_owned()));
                (self.program_up, self.coordinators) = (false, Coordinators::Down);
                self.cleared(now, after, out);
            }
            _ => {}
        }
    }
}

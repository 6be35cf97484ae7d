//! Halting: the program is ended because a condition of the halt file is due, or because the
//! allocation ends. It may end by itself first; then it gets a signal; then it is ended. It is not
//! started again.

use std::time::Duration;

use scrfs::halt;

use super::{HALTED, Output, Phase, Supervisor};

/// Before the program is stopped for the allocation's end, that is asked for again: so long before,
/// and so long before coordinators may do so.
const ASK: Duration = Duration::from_secs(15);
const ASK_EARLY: Duration = Duration::from_mins(1);
/// An end that is told anew and differs by no more has not moved.
const SAME: Duration = Duration::from_secs(5);
/// What to do about it.
const NEXT: &str = "the next job with this prefix goes on from the newest dataset; SCR_HALT_SECONDS and `scrfs-ctl halt --seconds` \
                    stop it earlier than saving needs";
const REMOVE: &str = "`scrfs-ctl halt --list` says what is set, `scrfs-ctl halt --remove` takes it back";

/// A halt that is due.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Halting {
    reason: String,
    /// The next step: the signal, then the end.
    at: Option<Duration>,
    signalled: bool,
}

impl Supervisor {
    /// A condition is due while a program may run.
    pub(super) fn halt_due(&mut self, now: Duration, reason: String, out: &mut Vec<Output>) {
        if self.halting.is_some() || self.phase != Phase::Running {
            return;
        }
        // They know the end that held when they were started.
        if self.plan.end.asks && halt::is_of_allocation(&reason) {
            self.due = Some(reason);
            out.push(Output::AskEnd);
            return;
        }
        self.begin_halting(now, reason, out);
    }

    fn begin_halting(&mut self, now: Duration, reason: String, out: &mut Vec<Output>) {
        let grace = self.plan.end.halt_grace;
        out.push(Output::Say(format!(
            "halting, because {reason}: the program has {} s to end by itself",
            grace.as_secs()
        )));
        self.halting = Some(Halting { reason, at: Some(now + grace), signalled: false });
    }

    /// When the next step is due.
    pub(super) fn halt_at(&self) -> Option<Duration> {
        match &self.halting {
            Some(halting) => halting.at.filter(|_| self.phase == Phase::Running),
            None if self.phase == Phase::Running => self.ask_at().or_else(|| self.stop_at()),
            None => None,
        }
    }

    /// What is left of the allocation after this is needed to end and save. Coordinators know
    /// better how long a flush takes, and may say so earlier; this holds without them.
    fn stop_at(&self) -> Option<Duration> {
        let plan = &self.plan.end;
        let left = self.left.filter(|_| !plan.grace.is_zero())?;
        Some(left.saturating_sub(plan.reserve))
    }

    /// When the allocation's end is to be asked for again.
    fn ask_at(&self) -> Option<Duration> {
        let plan = &self.plan.end;
        let left = self.left.filter(|_| plan.asks && !plan.grace.is_zero())?;
        let before = match self.asked {
            0 => plan.reserve.max(plan.early) + ASK_EARLY,
            1 => plan.reserve + ASK,
            _ => return None,
        };
        Some(left.saturating_sub(before))
    }

    /// When the allocation ends, as it is known now.
    pub(super) fn allocation_ends(&mut self, now: Duration, at: Option<Duration>, out: &mut Vec<Output>) {
        let due = self.due.take();
        let never = at == Some(Duration::MAX);
        let moved = match (self.left, at) {
            (_, None) => false,
            (None, Some(_)) => !never,
            (Some(left), Some(at)) => left.abs_diff(at) > SAME,
        };
        if moved {
            self.left = at.filter(|_| !never);
            self.asked = 0;
            out.push(Output::Say(match self.left {
                Some(left) => format!("the allocation ends in {} s now", left.saturating_sub(now).as_secs()),
                None => "the allocation has no end now".to_owned(),
            }));
            // New ones know it.
            let runs_on = self.phase == Phase::Running && self.halting.is_none();
            if runs_on && self.stop_at().is_none_or(|at| at > now) && self.is_settled() {
                out.push(Output::StopCoordinators);
            }
        } else if let Some(reason) = due.filter(|_| self.halting.is_none() && self.phase == Phase::Running) {
            self.begin_halting(now, reason, out);
        }
    }

    pub(super) fn halt_on_time(&mut self, now: Duration, out: &mut Vec<Output>) {
        if self.phase != Phase::Running {
            return;
        }
        if self.halting.is_none() {
            if self.ask_at().is_some_and(|at| at <= now) {
                self.asked += 1;
                out.push(Output::AskEnd);
            }
            if self.stop_at().is_some_and(|at| at <= now) {
                self.begin_halting(now, self.end_is_near(now), out);
            }
            return;
        }
        let (signal, grace) = (self.plan.end.signal, self.plan.end.halt_grace);
        let Some(halting) = self.halting.as_mut().filter(|halting| halting.at.is_some_and(|at| at <= now))
        else {
            return;
        };
        if halting.signalled {
            halting.at = None;
            out.push(Output::Say("the program does not end: ending it".to_owned()));
            out.push(Output::StopProgram);
        } else {
            halting.signalled = true;
            halting.at = Some(now + grace);
            out.push(Output::Say(format!("the program did not end by itself: sending it signal {signal}")));
            out.push(Output::SignalProgram(signal));
        }
    }

    fn end_is_near(&self, now: Duration) -> String {
        let left = self.left.unwrap_or_default().saturating_sub(now);
        format!("the allocation ends in {} s", left.as_secs())
    }

    /// Why the program is being halted, if it is.
    pub(super) fn halts_for(&self) -> Option<String> {
        self.halting.as_ref().map(|halting| halting.reason.clone())
    }

    pub(super) fn was_signalled(&self) -> bool {
        self.halting.as_ref().is_some_and(|halting| halting.signalled)
    }

    /// Why no program is started now, if so: a halt was due, the halt file says so, or the
    /// allocation ends too soon.
    pub(super) fn halted(&self, now: Duration, file: Option<String>) -> Option<String> {
        let near = || self.stop_at().filter(|at| *at <= now).map(|_| self.end_is_near(now));
        self.halts_for().or(file).or_else(near)
    }

    /// No program is started.
    pub(super) fn stay_halted(&mut self, now: Duration, reason: &str, out: &mut Vec<Output>) {
        let again = if self.runs == 0 { "" } else { " again" };
        out.push(Output::Say(format!("halted, because {reason}: the program is not started{again}")));
        out.push(Output::Hint(match (halt::is_of_allocation(reason), self.runs) {
            (false, _) => REMOVE.into(),
            (true, 0) => format!(
                "{} s are kept to end the program and save: ask for more time (sbatch --time), or set SCRFS_HALT_GRACE (twice \
                 in it) and SCRFS_END_GRACE lower",
                self.plan.end.reserve.as_secs()
            )
            .into(),
            (true, _) => NEXT.into(),
        }));
        let code = self.own_code.unwrap_or(HALTED);
        self.end(now, code, false, out);
    }
}

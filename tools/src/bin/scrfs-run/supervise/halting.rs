//! Halting: the program is ended because a condition of the halt file is due, or because the allocation ends. It may end by
//! itself first; then it gets a signal; then it is ended. It is not started again.

use std::time::Duration;

use super::{HALTED, Output, Phase, Supervisor};

/// What to do about it.
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
            Some(halting) => halting.at,
            None if self.phase == Phase::Running => self.stop_at(),
            None => None,
        }
    }

    /// What is left of the allocation after this is needed to end and save. Coordinators know better how long a flush takes,
    /// and may say so earlier; this holds without them.
    fn stop_at(&self) -> Option<Duration> {
        let plan = &self.plan.end;
        let left = plan.left.filter(|_| !plan.grace.is_zero())?;
        Some(left.saturating_sub(plan.grace + plan.halt_grace))
    }

    pub(super) fn halt_on_time(&mut self, now: Duration, out: &mut Vec<Output>) {
        if self.phase != Phase::Running {
            return;
        }
        if self.halting.is_none() {
            if self.stop_at().is_some_and(|at| at <= now) {
                self.halt_due(now, self.end_is_near(now), out);
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
        let left = self.plan.end.left.unwrap_or_default().saturating_sub(now);
        format!("the allocation ends in {} s", left.as_secs())
    }

    pub(super) fn was_signalled(&self) -> bool {
        self.halting.as_ref().is_some_and(|halting| halting.signalled)
    }

    /// Why no program is started now, if so: a halt was due, the halt file says so, or the allocation ends too soon.
    pub(super) fn halted(&self, now: Duration, file: Option<String>) -> Option<String> {
        let due = self.halting.as_ref().map(|halting| halting.reason.clone());
        let near = || self.stop_at().filter(|at| *at <= now).map(|_| self.end_is_near(now));
        due.or(file).or_else(near)
    }

    /// No program is started.
    pub(super) fn stay_halted(&mut self, now: Duration, reason: &str, out: &mut Vec<Output>) {
        let again = if self.runs == 0 { "" } else { " again" };
        out.push(Output::Say(format!("halted, because {reason}: the program is not started{again}")));
        out.push(Output::Hint(REMOVE));
        let code = if self.runs == 0 { HALTED } else { self.code };
        self.end(now, code, false, out);
    }
}

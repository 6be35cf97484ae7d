//! A program that is up and gets nowhere: its ranks wait for one another, and none of them ends. No
//! launcher tells that. A job that knows how long the program takes from one dataset to the next
//! says so (`SCR_WATCHDOG_TIMEOUT`); a program that takes longer is ended as one that has failed.

use std::time::Duration;

use super::{After, Output, Phase, Supervisor};

/// What to do about it.
const TOO_SHORT: &str =
    "SCR_WATCHDOG_TIMEOUT has to be longer than the program takes from one dataset to the next";

/// Who looks so late was stopped itself, perhaps with the program, and has not heard yet what
/// became of that meanwhile: the time begins anew.
const LATE: Duration = Duration::from_secs(5);

impl Supervisor {
    /// When the program is ended if no dataset becomes complete before. While coordinators are away
    /// none can.
    pub(super) fn stalls_at(&self) -> Option<Duration> {
        let limit = self.plan.watchdog;
        let can_seal = self.phase == Phase::Running && self.is_settled();
        let is_watched = can_seal && self.halting.is_none() && !limit.is_zero();
        is_watched.then(|| self.progress.saturating_add(limit))
    }

    /// The program begins, a dataset of it has become complete, or one can become so again.
    pub(super) fn goes_on(&mut self, now: Duration) {
        self.progress = now;
    }

    pub(super) fn end_if_stalled(&mut self, now: Duration, out: &mut Vec<Output>) {
        let Some(late) = self.stalls_at().and_then(|at| now.checked_sub(at)) else { return };
        if late > LATE {
            return self.goes_on(now);
        }
        out.push(Output::Say(format!(
            "no dataset has become complete for {} s: ending the program",
            self.plan.watchdog.as_secs()
        )));
        out.push(Output::Hint(TOO_SHORT.into()));
        (self.code, self.own_code, self.refusal) = (1, None, None);
        self.clear(now, After::Look, out);
    }
}

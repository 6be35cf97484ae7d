//! Coordinators that are ready, and coordinators that have ended.

use std::ffi::OsString;
use std::time::Duration;

use scrfs_tools::output::escaped;

use super::hanging::Pulse;
use super::meeting::MEETINGS_MAX;
use super::{
    ATTACH_PAUSES, Coordinators, Doubt, LACKS, Output, Phase, RECOVERIES_MAX, SETTINGS, Start, Supervisor,
};
use crate::launcher::Refusal;

/// A hint.
const SEE_COORDINATORS: &str = "the coordinators' lines above, and `scrfs-ctl events` on the nodes, say why";
/// What was started as coordinators, and is none; and what to do about it.
const NO_COORDINATOR: &str = "what was started as coordinators ended with exit code 0 before it was ready, as no scrfs-coordinator does";
const NAME_ANOTHER: &str = "without --coordinator it is the scrfs-coordinator beside scrfs-run; give that option its path, or leave it out";

impl Supervisor {
    pub(super) fn ready(&mut self, now: Duration, current: Option<(u64, OsString)>, out: &mut Vec<Output>) {
        if matches!(self.coordinators, Coordinators::Down | Coordinators::Leaving) {
            return;
        }
        self.coordinators = Coordinators::Settled(now);
        self.goes_on(now);
        self.deadline = None;
        let presents = std::mem::replace(&mut self.start, Start::Attach) == Start::Restart;
        let (id, current) = current.unzip();
        let presented = id.zip(current.as_deref());
        let phase = self.phase;
        match phase {
            Phase::Recovering if self.reaches_out(now, presented, out) => {}
            Phase::Recovering => {
                // It may come from the prefix, which no look at the nodes has told of: a former run
                // has protected it.
                if let Some(id) = id.filter(|id| *id > self.newest) {
                    (self.newest, self.fruitless) = (id, 0);
                    self.unlaunched.clear();
                }
                (self.launched, self.refusal, self.own_code) = (now, None, None);
                self.pulse = Pulse::of_program(now, self.plan.launcher_timeout);
                self.doubted.clear();
                self.recovery_failures = 0;
                self.attach_failures = 0;
                self.runs += 1;
                self.run_to_judge = true;
                self.program_up = true;
                self.phase = Phase::Running;
                out.push(Output::Say(match &current {
                    Some(name) => format!("the program can restart from {}", escaped(name.display())),
                    None => "no checkpoint: the program starts from the beginning".to_owned(),
                }));
                out.push(Output::StartProgram { hosts: self.program_hosts(), current, run: self.runs });
            }
            Phase::Running => out.push(Output::Say("coordinators are back".to_owned())),
            Phase::Saving(end) if presents => self.presented(now, end, current.as_deref(), out),
            Phase::Saving(end) => self.await_saved(now, end, out),
            _ => {}
        }
    }

    pub(super) fn coordinators_ended(&mut self, now: Duration, code: u8, out: &mut Vec<Output>) {
        let error = self.launcher_error.take();
        let failure = self.failure.take();
        let passing = self.refusal.as_ref().map(|(_, refusal)| refusal.what.clone());
        let why = error.clone().or(failure).or(passing).unwrap_or_else(|| format!("exit code {code}"));
        let former = std::mem::replace(&mut self.coordinators, Coordinators::Down);
        let lived_well = former.lived_well(now);
        let phase = self.phase;
        match phase {
            Phase::Recovering if code == SETTINGS => {
                self.give_up(
                    now,
                    "the coordinators refuse the parameters or the mount",
                    SEE_COORDINATORS,
                    out,
                );
            }
            // Nobody has asked them to end.
            Phase::Recovering
                if code == 0
                    && former == Coordinators::Starting
                    && self.deadline.is_some()
                    && self.refusal.is_none()
                    && error.is_none() =>
            {
                self.give_up(now, NO_COORDINATOR, NAME_ANOTHER, out);
            }
            Phase::Recovering if code == LACKS && self.reaches_out(now, None, out) => {}
            Phase::Recovering if code == LACKS => {
                let why = "the checkpoint cannot be presented yet, and the program is not started without it";
                self.give_up(now, why, SEE_COORDINATORS, out);
            }
            Phase::Recovering if self.refusal.is_some() && !self.refusal_passes() => {
                let refusal = self.refusal.take();
                let Some((_, Refusal { what, hint })) = refusal else { return };
                out.push(Output::Explained);
                self.give_up(now, &format!("the coordinators were not started: {what}"), hint, out);
            }
            Phase::Recovering => {
                // Whether this end is that of coordinators which had not met in time.
                let unmet = self.meeting.has_failed();
                self.recovery_failures += u32::from(!unmet);
                if self.recovery_failures >= RECOVERIES_MAX || self.meeting.failures() >= MEETINGS_MAX {
                    return self.give_up(
                        now,
                        &format!(
                            "recovery failed {} times, at last: {why}",
                            self.recovery_failures + self.meeting.failures()
                        ),
                        SEE_COORDINATORS,
                        out,
                    );
                }
                out.push(Output::Say(format!("recovery was broken off ({why}): once more")));
                self.look(Doubt::OfOne, out);
            }
            Phase::Running => {
                self.deadline = None;
                if lived_well {
                    self.attach_failures = 0;
                }
                let at =
                    usize::try_from(self.attach_failures).unwrap_or(usize::MAX).min(ATTACH_PAUSES.len() - 1);
                self.attach_at = Some(now + ATTACH_PAUSES[at]);
                out.push(Output::Say(format!(
                    "coordinators ended ({why}), the program goes on: starting new ones"
                )));
                if self.attach_failures > 0 {
                    self.ask(self.used.clone(), false, Doubt::OfOne, out);
                }
                self.attach_failures += 1;
            }
            Phase::Saving(end) if code == SETTINGS || code == LACKS => self.cannot_save(now, end, out),
            Phase::Saving(end) => self.attach_to_save(now, end, out),
            Phase::Clearing(after) => self.cleared(now, after, out),
            _ => {}
        }
    }
}

//! What is done about a launcher that hangs: its program has ended on all nodes, or its
//! coordinators were told to end, and it does not end, nor say how that was.

use std::time::Duration;

use super::{After, Coordinators, Count, Doubt, Output, Phase, Supervisor};

/// The first look at a program's processes comes so long after its start.
const FIRST: Duration = Duration::from_secs(20);
/// Whoever counts answers sooner. Until then nobody else is asked.
const ANSWER: Duration = Duration::from_mins(1);
/// A launcher that has told its coordinators to end, and waits for a node that is gone, never ends:
/// it has so long.
pub(super) const LEAVE_LIMIT: Duration = Duration::from_secs(5);

/// Whether the program of a launcher lives.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pulse {
    /// The next look.
    at: Duration,
    /// Between two.
    pause: Duration,
    found: Found,
    /// A node did not answer: all are asked whether they live.
    doubts: bool,
}

/// What the last looks have found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    /// No process that is the program's for certain: it may not have begun.
    Nothing,
    Processes,
    /// Not any more. One look may fall between a script's two programs.
    NoMore,
}

impl Pulse {
    /// `timeout` is that of the launcher; zero: there is none.
    pub(super) fn of_program(launched: Duration, timeout: Duration) -> Option<Self> {
        let pause = timeout / 2;
        let at = launched + pause.min(FIRST);
        (!timeout.is_zero()).then_some(Self { at, pause, found: Found::Nothing, doubts: false })
    }
}

impl Supervisor {
    pub(super) fn pulse_at(&self) -> Option<Duration> {
        self.pulse.filter(|_| self.phase == Phase::Running).map(|pulse| pulse.at)
    }

    pub(super) fn feel_pulse(&mut self, now: Duration, out: &mut Vec<Output>) {
        if self.phase != Phase::Running {
            self.pulse = None;
        }
        if let Some(pulse) = self.pulse.as_mut().filter(|pulse| pulse.at <= now) {
            pulse.at = now + pulse.pause.max(ANSWER);
            out.push(Output::CountProcesses { run: self.runs, hosts: self.program_hosts() });
        }
    }

    pub(super) fn counted(&mut self, now: Duration, run: u32, count: Count, out: &mut Vec<Output>) {
        let Some(pulse) = self.pulse.as_mut().filter(|_| run == self.runs) else { return };
        pulse.at = now + pulse.pause;
        pulse.found = match (count, pulse.found) {
            // What counts may not be the program's; but once that has begun, it may.
            (Count::Said { has_begun: false, .. } | Count::Unknown | Count::Silence, Found::Nothing) => {
                Found::Nothing
            }
            (Count::Said { programs: 0, .. }, Found::Processes) => Found::NoMore,
            (Count::Said { programs: 0, .. }, Found::NoMore) => {
                out.push(Output::Say(
                    "no process of the program is left on any node, and its launcher does not end: ending it"
                        .to_owned(),
                ));
                (self.code, self.own_code) = (1, None);
                return self.clear(now, After::Look, out);
            }
            (Count::Said { .. } | Count::Unknown | Count::Silence, _) => Found::Processes,
        };
        // Its launcher may wait for a node that is gone.
        if count == Count::Silence && !std::mem::replace(&mut pulse.doubts, true) {
            self.ask(self.used.clone(), false, Doubt::OfOne, out);
        }
    }

    /// Nodes were looked at while the program runs.
    pub(super) fn doubt_is_over(&mut self) {
        if let Some(pulse) = &mut self.pulse {
            pulse.doubts = false;
        }
    }

    /// Somebody has told coordinators to end: they watch no node any more, nor can they name one.
    pub(super) fn coordinators_leave(&mut self, now: Duration, out: &mut Vec<Output>) {
        if matches!(self.coordinators, Coordinators::Down | Coordinators::Leaving) {
            return;
        }
        let asks = match self.phase {
            Phase::Running | Phase::Recovering | Phase::Saving(_) => true,
            // These have a limit of their own.
            Phase::Stopping(_) | Phase::Checking => false,
            _ => return,
        };
        if self.coordinators.lived_well(now) {
            self.attach_failures = 0;
        }
        self.coordinators = Coordinators::Leaving;
        if asks {
            let by = now + LEAVE_LIMIT;
            self.deadline = Some(self.deadline.map_or(by, |deadline| deadline.min(by)));
            self.ask(self.used.clone(), false, Doubt::OfOne, out);
        }
    }

    /// What is waited for does not come.
    pub(super) fn tell_late(&self, what: &str, out: &mut Vec<Output>) {
        let is_left = self.coordinators == Coordinators::Leaving;
        let what = if is_left { "the coordinators' launcher does not end: ending it" } else { what };
        out.push(Output::Say(what.to_owned()));
    }
}

//! What is done about a node that is named as lost, and about a launcher that cannot launch.

use std::time::Duration;

use super::{After, Coordinators, Output, Phase, Supervisor};
use crate::launcher::Refusal;

impl Supervisor {
    /// Somebody says that this node is lost: it is not asked, and nothing waits for it.
    pub(super) fn lost(&mut self, now: Duration, host: &str, how: &str, out: &mut Vec<Output>) {
        if !self.plan.hosts.iter().any(|known| known == host) || !self.excluded.insert(host.to_owned()) {
            return;
        }
        out.push(Output::Say(format!("{host} {how}: it is left out from now on")));
        if !self.used.iter().any(|used| used == host) {
            return;
        }
        self.named.push(host.to_owned());
        match self.phase {
            Phase::Running | Phase::Recovering => {
                self.code = 1;
                self.clear(now, After::Look, out);
            }
            Phase::Checking => self.lost_at_the_end(now, out),
            // It is still among those in use: so new coordinators rebuild its part before they save.
            Phase::Stopping(_) | Phase::Saving(_) => {
                if self.coordinators != Coordinators::Down {
                    // What is asked of them now tells nothing, and their end starts others.
                    self.coordinators = Coordinators::Starting;
                    out.push(Output::StopCoordinators);
                }
            }
            Phase::Naming(_) | Phase::Clearing(_) => {}
            Phase::Idle | Phase::Looking | Phase::Finished => return,
        }
        out.push(Output::Hurry);
    }

    pub(super) fn lost_at_the_end(&mut self, now: Duration, out: &mut Vec<Output>) {
        out.push(Output::Say("exit 0, but a node was lost: this run does not count as done".to_owned()));
        self.code = 1;
        self.clear(now, After::Look, out);
    }

    /// Before anything has run, a launch error is one of the command line's; later on a node's death may look so too.
    pub(super) fn refused(&mut self, refusal: Refusal) {
        let first = match self.phase {
            Phase::Recovering => self.runs == 0,
            Phase::Running => self.runs == 1 && !self.node_lost,
            _ => false,
        };
        if first {
            self.refusal.get_or_insert(refusal);
        }
    }

    /// The program's first launch has failed: told, and not tried again.
    pub(super) fn not_launched(&mut self, now: Duration, out: &mut Vec<Output>) -> bool {
        let Some(Refusal { what, hint }) = self.refusal.take() else { return false };
        out.push(Output::Say(format!("the program was not started: {what}")));
        out.push(Output::Hint(hint));
        self.code = 1;
        self.clear(now, After::Finish(1), out);
        true
    }
}

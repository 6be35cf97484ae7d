//! What is done about a node that is named as lost, and about a launcher that cannot launch.

use std::time::Duration;

use super::{After, Coordinators, Look, Output, Part, Phase, SaveError, Supervisor};
use crate::launcher::{Refusal, is_of_a_restart};

/// A launcher that cannot launch says so within this time. What says so later is none.
const LAUNCH_LIMIT: Duration = Duration::from_mins(1);
/// And it ends within this time.
const REFUSED_ENDS: Duration = Duration::from_secs(10);

/// A node on which so many starts could not be launched since a dataset became complete is left
/// out. One is no reason: what keeps a step from a node may be gone with the next one, and the node
/// has datasets.
pub(super) const LAUNCHES_MAX: u32 = 3;
/// When so many have failed on whichever nodes, it is none of theirs.
pub(super) const FAILURES_MAX: u32 = 4 * LAUNCHES_MAX;

/// So srun says that it could not launch.
const NOT_LAUNCHED: &str = "launch failed";
/// And so, of a node that slurmd runs on.
const NOT_REACHED: &str = "could not connect";
const SEE_NETWORK: &str =
    "that node's network did not answer for a while: its log, and that of its switch, may say more";
const SEE_SLURMD: &str = "slurmd's log on that node says why; a directory /tmp/spmix_appdir_... that is somebody else's is a reason \
                          (PMIxCliTmpDirBase in mpi.conf keeps others from making it)";

impl Supervisor {
    /// Somebody says that this node is lost: it is not asked, and nothing waits for it.
    pub(super) fn lost(&mut self, now: Duration, host: &str, how: &str, out: &mut Vec<Output>) {
        if !self.plan.hosts.iter().any(|known| known == host) || !self.excluded.insert(host.to_owned()) {
            return;
        }
        out.push(Output::Say(format!("{host} {how}: it is left out from now on")));
        self.unasked.insert(host.to_owned());
        if !self.used.iter().any(|used| used == host) {
            return;
        }
        self.named.push(host.to_owned());
        match self.phase {
            Phase::Running | Phase::Recovering => {
                (self.code, self.own_code) = (1, None);
                self.clear(now, After::Look, out);
            }
            Phase::Checking => self.lost_at_the_end(now, out),
            // It is still among those in use: so new coordinators rebuild its part before they
            // save.
            Phase::Stopping(_) | Phase::Saving(_) => {
                if self.coordinators != Coordinators::Down {
                    // What is asked of them now tells nothing, and their end starts others.
                    self.coordinators = Coordinators::Starting;
                    out.push(Output::StopCoordinators);
                }
            }
            Phase::Naming(_) | Phase::Clearing(_) => {}
            Phase::Idle | Phase::Looking | Phase::LookingToEnd(_) | Phase::Finished => return,
        }
        out.push(Output::Hurry);
    }

    /// A launcher whose daemons do not stand yet takes daemons that end because of a lost node for
    /// lost ones: it is believed the second time.
    pub(super) fn is_to_be_asked(&self, host: &str) -> bool {
        let starts =
            self.phase == Phase::Recovering && self.meeting.is_awaited() && self.meeting.failures() == 0;
        let asks = self.suspects && matches!(self.phase, Phase::Clearing(After::Look) | Phase::Looking);
        (starts || asks) && self.used.iter().any(|used| used == host)
    }

    /// All nodes are asked which of them is lost.
    pub(super) fn suspect(&mut self, now: Duration, host: &str, how: &str, out: &mut Vec<Output>) {
        if std::mem::replace(&mut self.suspects, true) {
            return;
        }
        self.meeting.fails();
        out.push(Output::Say(format!("{host} {how}, while coordinators start: all nodes are asked")));
        (self.code, self.own_code) = (1, None);
        self.clear(now, After::Look, out);
        out.push(Output::Hurry);
    }

    pub(super) fn lost_at_the_end(&mut self, now: Duration, out: &mut Vec<Output>) {
        // A launcher that has lost a node may say anything.
        if self.refusal.take().is_none() {
            out.push(Output::Say("exit 0, but a node was lost: this run does not count as done".to_owned()));
        }
        (self.code, self.own_code) = (1, None);
        self.clear(now, After::Look, out);
    }

    /// A launcher could not start anything on these nodes: it is tried again, and at last others
    /// are used in their place. Where that goes for all nodes of the run, it is none of theirs.
    pub(super) fn not_launched_on(
        &mut self,
        now: Duration,
        part: Part,
        hosts: &[String],
        what: String,
        out: &mut Vec<Output>,
    ) {
        let is_all = || self.used.iter().all(|host| hosts.contains(host));
        let has_nodes =
            !hosts.is_empty() && !is_all() && self.unlaunched.values().sum::<u32>() < FAILURES_MAX;
        if has_nodes && self.is_starting(part) && !self.is_refused(now) {
            let how = format!("could not be launched on ({what})");
            if part == Part::Program {
                self.unlaunched_runs += 1;
                self.run_to_judge = false;
            }
            let failed: Vec<&String> = hosts.iter().filter(|host| self.fails_too_often(host)).collect();
            for host in &failed {
                self.lost(now, host, &how, out);
            }
            if failed.is_empty() {
                out.push(Output::Say(format!("{} {how}: once more", hosts.join(" "))));
                // Beneath a program that runs, others are started when these coordinators end.
                if part == Part::Coordinators && self.phase == Phase::Running {
                    self.launcher_error = Some(what.clone());
                } else {
                    (self.code, self.own_code) = (1, None);
                    self.clear(now, After::Look, out);
                    out.push(Output::Hurry);
                }
            }
            let is_network = what.contains(NOT_REACHED);
            out.push(Output::Hint(if is_network { SEE_NETWORK } else { SEE_SLURMD }.into()));
        }
        self.launcher_failed(what);
    }

    /// This part was started, is not up yet as far as that can be told, and no error of this start
    /// was taken note of.
    fn is_starting(&self, part: Part) -> bool {
        let coordinators_start = self.coordinators == Coordinators::Starting;
        match (part, self.phase) {
            (Part::Program, Phase::Running) => self.program_up,
            (Part::Coordinators, Phase::Recovering) => coordinators_start,
            (Part::Coordinators, Phase::Running) => coordinators_start && self.launcher_error.is_none(),
            _ => false,
        }
    }

    fn fails_too_often(&mut self, host: &str) -> bool {
        let failures = self.unlaunched.entry(host.to_owned()).or_default();
        *failures += 1;
        *failures >= LAUNCHES_MAX
    }

    /// Of what it says, that it could not launch explains the rest.
    pub(super) fn launcher_failed(&mut self, what: String) {
        let starts = self.phase == Phase::Recovering && self.meeting.is_awaited();
        let is_explained = self.launcher_error.as_ref().is_some_and(|known| known.contains(NOT_LAUNCHED));
        if starts && (!is_explained || what.contains(NOT_LAUNCHED)) {
            self.launcher_error = Some(what);
        }
    }

    /// Before anything has run, a launch error is one of the command line's; later on a node's
    /// death may look so too.
    pub(super) fn refused(&mut self, now: Duration, refusal: Refusal) {
        let first = match self.phase {
            Phase::Recovering => self.runs == 0,
            Phase::Running => self.counted_runs() == 1 && now.saturating_sub(self.launched) <= LAUNCH_LIMIT,
            _ => false,
        };
        if first {
            self.refusal.get_or_insert((now, refusal));
        }
    }

    /// The program has ended: was that because it could not be started? A launcher that says so
    /// ends soon.
    pub(super) fn is_refused(&mut self, now: Duration) -> bool {
        self.refusal.take_if(|(at, _)| now.saturating_sub(*at) > REFUSED_ENDS);
        self.refusal.is_some()
    }

    /// What a launcher has said of a first start passes by itself, as while its scheduler is
    /// started anew.
    pub(super) fn refusal_passes(&self) -> bool {
        self.refusal.as_ref().is_some_and(|(_, refusal)| is_of_a_restart(&refusal.what))
    }

    /// The program's first launch has failed: told, and not tried again. Unless something was
    /// protected meanwhile: then it has run; or what has kept it from being started passes.
    pub(super) fn not_launched(&mut self, now: Duration, nodes: &[Look], out: &mut Vec<Output>) {
        let passes = self.refusal_passes();
        let Some((_, Refusal { what, hint })) = self.refusal.take() else { return };
        if passes && self.unlaunched_runs < FAILURES_MAX {
            self.unlaunched_runs += 1;
            self.run_to_judge = false;
            out.push(Output::Say(format!("the program was not started ({what}): once more")));
            return self.clear(now, After::Look, out);
        }
        if nodes.iter().any(|node| node.newest > self.newest) {
            return self.failed(now, self.code, out);
        }
        out.push(Output::Explained);
        out.push(Output::Say(format!("the program was not started: {what}")));
        out.push(Output::Hint(hint.into()));
        self.code = 1;
        if self.unsaved.is_empty() {
            return self.clear(now, After::Finish(1), out);
        }
        self.end(now, 1, false, out);
    }

    /// Something that has nothing to do with a node keeps a part from being started.
    pub(super) fn cannot_start(&mut self, now: Duration, part: Part, why: &Refusal, out: &mut Vec<Output>) {
        match (part, self.phase) {
            (Part::Program, Phase::Running) => {
                self.program_up = false;
                self.give_up(now, &why.what, why.hint, out);
            }
            (Part::Program, _) => self.program_ended(now, 1, out),
            (Part::Coordinators, Phase::Recovering) => {
                self.coordinators = Coordinators::Down;
                self.give_up(now, &why.what, why.hint, out);
            }
            (Part::Coordinators, _) => {
                out.push(Output::Say(why.what.clone()));
                out.push(Output::Hint(why.hint.into()));
                self.coordinators_ended(now, 1, out);
            }
            (Part::Save, _) => self.saved(now, Err(SaveError::Failed(why.what.clone())), out),
        }
    }

    pub(super) fn cannot_look(&mut self, now: Duration, why: &Refusal, out: &mut Vec<Output>) {
        match self.phase {
            Phase::Looking => self.give_up(now, &why.what, why.hint, out),
            Phase::LookingToEnd(end) => self.save(now, end, out),
            Phase::Checking => self.end(now, 1, true, out),
            Phase::Naming(end) => self.name_from_memory(now, end, out),
            _ => {}
        }
    }
}

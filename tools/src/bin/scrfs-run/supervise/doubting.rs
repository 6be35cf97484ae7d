//! What is made of nodes that do not answer a look. A busy scheduler or launcher is no dead node:
//! while coordinators serve, they watch one another, and name a node that is gone themselves.

use std::time::Duration;

use super::{Coordinators, DOUBT_AGAIN, Doubt, Look, Output, Phase, Supervisor};

/// Between two looks at nodes that do not answer.
pub(super) const AGAIN: Duration = Duration::from_secs(5);

/// Nobody watches the nodes on which coordinators start, and a launcher waits long for one that is
/// gone: each is asked for a connection, so long after the start, and again after as long; from the
/// fourth time on, each time after twice as long.
const PAUSE: Duration = Duration::from_millis(1500);
const EVEN: u32 = 3;

/// When that is done next.
#[derive(Debug, Clone, Copy)]
pub(super) struct Watch {
    /// `None`: they are being asked.
    at: Option<Duration>,
    /// So often it was.
    times: u32,
}

impl Watch {
    /// Of coordinators that start `now`.
    pub(super) fn from(now: Duration) -> Self {
        Self { at: Some(now + PAUSE), times: 0 }
    }
}

impl Supervisor {
    pub(super) fn watch_at(&self) -> Option<Duration> {
        self.watch.filter(|_| self.meeting.is_awaited())?.at
    }

    /// Nodes are being looked at: one question at a time.
    pub(super) fn hold_watch(&mut self) {
        if let Some(watch) = &mut self.watch {
            watch.at = None;
        }
    }

    /// No node was found to be gone.
    pub(super) fn watch_on(&mut self, now: Duration) {
        if let Some(watch) = &mut self.watch {
            watch.times += 1;
            // Coordinators have met, or are ended, long before this is large.
            watch.at = Some(now + PAUSE * (1 << watch.times.saturating_sub(EVEN).min(8)));
        }
    }

    /// Coordinators that attach for long may wait for a daemon that is dead.
    pub(super) fn doubt_attach(&mut self, now: Duration, out: &mut Vec<Output>) {
        if self.phase != Phase::Running || self.coordinators != Coordinators::Starting {
            self.doubt_at = None;
        } else if self.doubt_at.is_some_and(|at| at <= now) {
            self.doubt_at = Some(now + DOUBT_AGAIN);
            self.ask(self.used.clone(), false, Doubt::OfOne, out);
        }
    }

    /// Whether coordinators answer for the nodes of the program: it was started over them, and they
    /// have neither ended nor been told to.
    fn coordinators_vouch(&self) -> bool {
        matches!(self.phase, Phase::Running | Phase::Checking) && self.is_settled()
    }

    /// Coordinators that recover on this node have met, so they watch one another: a second look,
    /// so long after the first that they would have found it dead, decides.
    fn may_answer_later(&self, host: &String) -> bool {
        let have_met = !self.meeting.is_awaited() && !self.meeting.has_failed();
        let recover = self.phase == Phase::Recovering && self.coordinators == Coordinators::Starting;
        recover && have_met && !self.doubted.contains(host)
    }

    /// Nodes do not answer although coordinators that recover on them have met.
    pub(super) fn doubt_later(&mut self, now: Duration, hosts: &[&String], out: &mut Vec<Output>) {
        self.tell_in_doubt(hosts, "recovery", out);
        self.doubted.retain(|host| hosts.contains(&host));
        if !hosts.is_empty() {
            self.doubt_at = Some(now + self.plan.node_timeout);
        }
    }

    /// The nodes in doubt, that merely do not answer while coordinators answer for them; and those
    /// that are gone, each with its problem.
    pub(super) fn judge<'a>(&self, nodes: &'a [Look]) -> (Vec<&'a String>, Vec<(&'a Look, &'a String)>) {
        let vouch = self.coordinators_vouch();
        let may_live = |node: &Look| vouch || self.may_answer_later(&node.host);
        let is_in_doubt = |node: &&Look| node.silent && self.used.contains(&node.host) && may_live(node);
        let with_problem = || nodes.iter().filter(|node| node.problem.is_some());
        let in_doubt = with_problem().filter(is_in_doubt).map(|node| &node.host).collect();
        let gone = with_problem().filter(|node| !is_in_doubt(node));
        let gone = gone.filter_map(|node| Some((node, node.problem.as_ref()?))).collect();
        (in_doubt, gone)
    }

    /// Nobody but this look says that the node cannot be used: it is asked once more before too
    /// little is left. Not where a person has to see to something else than the node, nor at a
    /// first start without any dataset, which loses nothing.
    pub(super) fn may_be_back(&self, node: &Look, nodes: &[Look]) -> bool {
        let has_something = self.runs > 0 || nodes.iter().any(|node| node.held_by > 0);
        node.ending || node.silent && node.remedy.is_none() && has_something
    }

    /// The job was told to end: a launcher that its scheduler ends too says nothing of the nodes.
    pub(super) fn says_nothing_of(&self, host: &str, nodes: &[Look]) -> bool {
        self.signalled.is_some() && nodes.iter().any(|node| node.host == host && node.silent)
    }

    /// Once for each node and run.
    pub(super) fn tell_in_doubt(&mut self, hosts: &[&String], what: &str, out: &mut Vec<Output>) {
        let new: Vec<&str> = hosts
            .iter()
            .filter(|host| self.doubted.insert((**host).clone()))
            .map(|host| host.as_str())
            .collect();
        if !new.is_empty() {
            out.push(Output::Say(format!(
                "{}: no answer through the launcher; the coordinators run, so {what} goes on",
                new.join(" ")
            )));
        }
    }

    /// The program has ended with 0, and these nodes do not say that they are there: coordinators
    /// get the time in which they would find one that is dead.
    pub(super) fn is_to_be_checked_again(&self, now: Duration, in_doubt: &[&String]) -> bool {
        let trusts = now.saturating_sub(self.checked) > self.plan.node_timeout + AGAIN;
        !in_doubt.is_empty() && self.refusal.is_none() && !trusts
    }
}

//! The newest dataset that nodes tell of, where coordinators present an older one, or none. Nodes
//! that are not used may have what is missing: those that were named as lost and are back, and
//! holders beyond the nodes that run the program. So the program does not start before they were
//! asked, once.

use std::ffi::OsStr;
use std::time::Duration;

use scrfs_tools::output::escaped;

use super::{After, Doubt, Look, Output, Start, Supervisor};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Wanted {
    /// The id of the newest dataset that nodes which hold it told of at the last look; 0: none did.
    newest: u64,
    /// Up to this id nothing is waited for: it cannot be had, or is not wanted.
    given_up: u64,
    /// Nodes that hold the newest one, answered, and are not used.
    unused: usize,
    /// Coordinators run on those too.
    pub(super) reaches_out: bool,
}

impl Wanted {
    /// All nodes were looked at. Where no holder has answered, what was known holds. (A dataset of
    /// a later epoch is newer, whatever its id.)
    pub(super) fn learn(&mut self, nodes: &[Look]) {
        let holders = nodes.iter().filter(|node| node.problem.is_none()).filter_map(held);
        if let Some((_, newest)) = holders.max() {
            self.newest = newest;
        }
    }

    /// Coordinators start on `used`.
    pub(super) fn note_unused(&mut self, used: &[String], nodes: &[Look]) {
        let holds = |node: &&Look| node.problem.is_none() && held(node).is_some();
        let unused = nodes.iter().filter(holds).filter(|node| !used.contains(&node.host));
        self.unused = unused.filter(|node| node.newest == self.newest).count();
    }

    /// What coordinators present is older. `None`: they present nothing.
    fn is_newer_than(&self, id: Option<u64>) -> bool {
        self.newest > id.unwrap_or(0).max(self.given_up)
    }
}

/// How new what a node holds is: a later epoch's is newer whatever its id. `None`: it holds
/// nothing.
pub(super) fn held(node: &Look) -> Option<(u64, u64)> {
    (node.held_by > 0).then_some((node.epoch, node.newest))
}

impl Supervisor {
    /// Coordinators that recover present an older dataset than nodes have. True: they start once
    /// more, with others.
    pub(super) fn reaches_out(
        &mut self,
        now: Duration,
        presented: Option<(u64, &OsStr)>,
        out: &mut Vec<Output>,
    ) -> bool {
        let id = presented.map(|(id, _)| id);
        if self.plan.fresh && self.runs == 0 {
            // What is older than this scrfs-run is not wanted, in later runs either.
            self.wanted.given_up = self.wanted.newest;
        }
        if !self.wanted.is_newer_than(id) {
            return false;
        }
        let newest = self.name_of_wanted();
        let named = self.take_back_named();
        let unused = if self.wanted.reaches_out { 0 } else { self.wanted.unused };
        if named.is_empty() && unused == 0 {
            self.wanted.given_up = self.wanted.newest;
            let instead = presented.map_or_else(
                || "there is no other".to_owned(),
                |(_, name)| format!("{} takes its place", escaped(name.display())),
            );
            out.push(Output::Say(format!("{newest} is not presented by the nodes that are left: {instead}")));
            return false;
        }
        self.wanted.reaches_out = true;
        let named = (!named.is_empty()).then(|| format!("{} asked once more", named.join(" ")));
        let unused = (unused > 0).then(|| format!("{unused} more nodes that have it are used"));
        let how = [named, unused].into_iter().flatten().collect::<Vec<_>>().join(", and ");
        out.push(Output::Say(format!("{newest} is not presented without other nodes: {how}")));
        self.start = Start::Restart;
        self.clear(now, After::Look, out);
        true
    }

    /// By its name, where a node has told it.
    fn name_of_wanted(&self) -> String {
        let number = format!("dataset {}", self.wanted.newest);
        let is_it =
            |what: &&String| what.contains(&format!("({number},")) || what.ends_with(&format!("({number})"));
        self.unsaved.keys().find(is_it).cloned().unwrap_or(number)
    }

    /// Nodes that somebody has named as lost, and that nobody has asked since: the next look asks
    /// them. One that is named again is not asked again before something new was protected.
    fn take_back_named(&mut self) -> Vec<String> {
        let newest = self.newest;
        let is_due = |host: &&String| self.taken_back.get(*host).is_none_or(|former| *former < newest);
        let named: Vec<String> = self.unasked.iter().filter(is_due).cloned().collect();
        for host in &named {
            self.unasked.remove(host);
            self.excluded.remove(host);
            self.taken_back.insert(host.clone(), newest);
        }
        named
    }

    /// Too few nodes are left: those that somebody has named as lost are asked whether that is so.
    /// False: there is nobody to ask.
    pub(super) fn ask_named(&mut self, out: &mut Vec<Output>) -> bool {
        let named = self.take_back_named();
        if named.is_empty() {
            return false;
        }
        // They may have come back empty: what is theirs is to be rebuilt.
        self.start = Start::Restart;
        let named = named.join(" ");
        out.push(Output::Say(format!(
            "too few nodes are left: whether {named} can be used is asked once more"
        )));
        self.look(Doubt::OfOne, out);
        true
    }

    /// The nodes that run the program: of those in use the first ones.
    pub(super) fn program_hosts(&self) -> Vec<String> {
        self.used.iter().take(self.plan.nodes.max(1)).cloned().collect()
    }
}

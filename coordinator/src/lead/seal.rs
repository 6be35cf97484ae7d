//! Seals in the order of their markers: freeze, encode, commit (`scrfs/docs/protocol.md`, Seal). A
//! marker of a complete dataset asks for its next generation: all nodes are asked first whether
//! there is anything to seal.
//!
//! While one is encoded or committed the next is frozen, so that a marker in the background is
//! answered soon. It is encoded when the one before is over.
//!
//! Until the first COMPLETE any failure drops the seal on all nodes; from the first `Commit` on the
//! dataset may be complete, so `Commit` is sent again until every node has recorded it.

mod step;

use std::collections::VecDeque;
use std::sync::Arc;

use scrfs::control::{Command, DirOp, FrozenPart, MarkerOutcome, Reason};
use scrfs::dataset::Catalog;
use scrfs::ids::{DatasetId, NodeRank};
use scrfs::path::RelPath;

use self::step::{Seal, Step, bad_name};
use super::answers::Answers;
use super::catalog::Making;
use super::cluster::Cluster;
use super::committing::{Committed, Committing};
use super::directories::{Hold, paths};
use super::encoding::{Encoded, Encoding};
use super::generation::{Merged, dropped};
use super::jobs::ShareEnd;
use super::markers::{Marker, Markers, longest_wait};
use super::policy::MS;
use crate::job::{About, JobFailure};

/// A seal of an earlier epoch that some nodes have recorded.
#[derive(Debug)]
struct Resumed {
    catalog: Arc<Catalog>,
    missing: Vec<NodeRank>,
    flushed: bool,
    /// As in [`Seal`].
    markers: Vec<Marker>,
}

/// The running seals and the markers that queue.
#[derive(Debug, Default)]
pub(super) struct Seals {
    resumed: VecDeque<Resumed>,
    markers: Markers,
    /// In the order of their markers. Only the first one is encoded and committed; there is another
    /// one at most.
    running: Vec<Seal>,
    /// The commit that nobody waits for any longer: a node cannot record it.
    overdue: Option<DatasetId>,
    /// The last encoding that failed, of the next generation of this dataset: shares of it may
    /// still end.
    failed_over: Option<(DatasetId, Box<Encoding>)>,
}

impl Seals {
    /// A seal in doubt of an earlier epoch, complete on some node: `missing` have not recorded it
    /// yet.
    pub(super) fn resume(&mut self, catalog: Arc<Catalog>, missing: Vec<NodeRank>, flushed: bool) {
        assert!(!missing.is_empty(), "a seal that all have recorded is not in doubt");
        self.resumed.push_back(Resumed { catalog, missing, flushed, markers: Vec::new() });
    }

    /// A marker was set.
    pub(super) fn marker(&mut self, cluster: &mut Cluster, name: &[u8], marker: Marker) {
        if !self.markers.open(marker.request) {
            return;
        }
        if let Some(outcome) = self.ends_at_once(cluster, name, &marker) {
            return self.markers.end(cluster, name, [marker], &outcome);
        }
        let is_it = |seal: &&mut Resumed| seal.catalog.name == name && marker.base != Some(seal.catalog.id);
        if let Some(seal) = self.resumed.iter_mut().find(is_it) {
            return seal.markers.push(marker);
        }
        let Some(seal) = self.running.iter_mut().find(|seal| seal.name == name) else {
            self.markers.note(cluster, name, marker);
            return self.markers.queue(cluster, name);
        };
        match &seal.step {
            // It is being looked at.
            Step::Holding | Step::Asking(..) => self.markers.note(cluster, name, marker),
            Step::Freezing(..) | Step::Merging(..) => seal.markers.push(marker),
            Step::Frozen(Making { id, .. }, _) | Step::Encoding(id, _) => {
                cluster.send(marker.node, Command::AllFrozen(*id));
                seal.markers.push(marker);
            }
            // A marker that was set after its node's commit has this dataset as its base, and goes
            // to the last arm.
            Step::Committing(committing, _) if marker.base != Some(committing.catalog.id) => {
                cluster.send(marker.node, Command::AllFrozen(committing.catalog.id));
                seal.markers.push(marker);
            }
            // Set after that node had dropped it the marker is a new try.
            Step::Dropping(_, dropped) if !dropped.has(marker.node) => seal.markers.push(marker),
            Step::Committing(..) | Step::Dropping(..) => {
                self.markers.note(cluster, name, marker);
                self.markers.queue(cluster, name);
            }
        }
    }

    /// The outcome of a marker that no seal takes: a bad name, `SCR_ENABLE=0`, a stuck commit.
    fn ends_at_once(&self, cluster: &Cluster, name: &[u8], marker: &Marker) -> Option<MarkerOutcome> {
        if let Some(reason) = bad_name(name) {
            return Some(MarkerOutcome::Refused(reason));
        }
        if !cluster.settings.enable {
            return Some(MarkerOutcome::Waived);
        }
        let stuck = self.stuck(cluster).filter(|_| !marker.everywhere);
        stuck.map(|(_, reason)| MarkerOutcome::Refused(reason))
    }

    /// `.invalid` is to be made in a dataset that is frozen there: a seal that is not committing
    /// fails. True: such an event may come at any time.
    pub(super) fn invalid(&mut self, cluster: &mut Cluster, node: NodeRank, name: &[u8]) -> bool {
        let Some(at) = self.of_name(name) else { return true };
        let step = &self.running[at].step;
        if matches!(step, Step::Freezing(..) | Step::Merging(..) | Step::Frozen(..) | Step::Encoding(..)) {
            let reason = format!("{}: .invalid was made in it", cluster.host(node));
            self.fail(cluster, at, reason);
        }
        true
    }

    /// The next generation of this dataset is being sealed, or may be, or its seal is in doubt: it
    /// must stay until that is done. A node that has not recorded the next one has that in its
    /// place, and would lose both.
    pub(super) fn needs(&self, catalog: &Catalog) -> bool {
        let over = |id: DatasetId, name: &[u8]| id != catalog.id && name == catalog.name;
        let resumed = |seal: &Resumed| over(seal.catalog.id, &seal.catalog.name);
        let running = |seal: &Seal| match &seal.step {
            Step::Committing(committing, _) => over(committing.catalog.id, &seal.name),
            Step::Holding => seal.name == catalog.name,
            Step::Asking(id, ..) => *id == catalog.id,
            _ => seal.base == Some(catalog.id),
        };
        self.running.iter().any(running) || self.resumed.iter().any(resumed)
    }

    /// What may be complete on some nodes, and is not known to be on all.
    pub(super) fn doubts(&self) -> impl Iterator<Item = &Catalog> {
        self.resumed.iter().map(|seal| &*seal.catalog).chain(self.commits())
    }

    /// What is being committed, or about to be.
    pub(super) fn commits(&self) -> Option<&Catalog> {
        self.commit().map(|committing| &*committing.catalog)
    }

    /// The commit that runs: only the first seal's can.
    fn commit(&self) -> Option<&Committing> {
        match self.running.first().map(|seal| &seal.step) {
            Some(Step::Committing(committing, _)) => Some(committing),
            _ => None,
        }
    }

    fn of_name(&self, name: &[u8]) -> Option<usize> {
        self.running.iter().position(|seal| seal.name == name)
    }

    /// The seal that has this dataset.
    fn of_dataset(&self, id: DatasetId) -> Option<usize> {
        self.running.iter().position(|seal| seal.step.dataset() == Some(id))
    }

    /// What is being committed does not come to nothing any more.
    pub(super) fn is_decided(&self) -> bool {
        self.commit().is_some_and(Committing::is_decided)
    }

    /// It is complete on some nodes perhaps, and not yet known to be on all.
    pub(super) fn committing(&self, id: DatasetId) -> bool {
        self.commits().is_some_and(|catalog| catalog.id == id)
            || self.resumed.iter().any(|seal| seal.catalog.id == id)
    }

    /// What the running seals mean for a directory operation.
    pub(super) fn hold(&self, op: &DirOp) -> Hold {
        let resumed = |path: &RelPath| {
            self.resumed
                .iter()
                .any(|seal| path.split_first().is_some_and(|(top, _)| top == seal.catalog.name))
        };
        if paths(op).any(resumed) {
            return Hold::Wait;
        }
        let mut waits = Hold::Free;
        for seal in &self.running {
            match seal.hold(op) {
                Hold::Free => {}
                Hold::Wait => waits = Hold::Wait,
                refused @ Hold::Refuse(_) => return refused,
            }
        }
        waits
    }

    /// The top of dataset `name` was removed everywhere.
    pub(super) fn removed(&mut self, cluster: &mut Cluster, name: &[u8]) {
        match self.of_name(name) {
            Some(at) => self.fail(cluster, at, "its directory was removed"),
            None => self.markers.refuse(cluster, name, "its directory was removed".to_owned()),
        }
    }

    /// Begins the next seal if it may. `may_give_ids`: the highest id is known. `round_touches`:
    /// the round that runs has an operation in that dataset. `is_whole`: all members of the dataset
    /// of that name are on their nodes. True when a marker was answered and the next can be looked
    /// at.
    pub(super) fn begin(
        &mut self,
        cluster: &mut Cluster,
        may_give_ids: bool,
        round_touches: impl Fn(&[u8]) -> bool,
        is_whole: impl Fn(&[u8]) -> bool,
    ) -> bool {
        if self.running.is_empty()
            && let Some(Resumed { catalog, missing, flushed, markers }) = self.resumed.pop_front()
        {
            let name = catalog.name.clone();
            let step = Step::Committing(Committing::start(cluster, catalog, missing, true), flushed);
            self.running.push(Seal { name, base: None, markers, waited: 0, step });
        } else if may_give_ids && self.takes_another(cluster) {
            let sealed = self.running.first().map(|seal| seal.name.as_slice());
            if let Some(name) = self.markers.next(cluster, is_whole, sealed) {
                let (markers, step) = (Vec::new(), Step::Holding);
                self.running.push(Seal { name, base: None, markers, waited: 0, step });
            }
        }
        let Some(seal) = self.running.last_mut() else { return false };
        if matches!(seal.step, Step::Holding) && !round_touches(&seal.name) {
            if let Some(id) = cluster.datasets.named(&seal.name) {
                cluster.send_all(Command::AskChanges(id));
                seal.step = Step::Asking(id, Answers::of(cluster.nodes()), self.markers.count(&seal.name));
            } else if self.markers.waits(&seal.name) && self.markers.is_set(cluster, &seal.name) {
                seal.markers = self.markers.take(&seal.name);
                seal.freeze(cluster, None);
            } else {
                // It was sealed when it was taken from the queue, and is gone; or its markers were
                // refused meanwhile.
                self.running.pop();
                return true;
            }
        }
        false
    }

    /// Another seal may begin: none runs, or one that is beyond its freeze. What is frozen behind a
    /// commit that is stuck would stay so for long.
    fn takes_another(&self, cluster: &Cluster) -> bool {
        match self.running.as_slice() {
            [] => true,
            [seal] => {
                let beyond = matches!(seal.step, Step::Encoding(..) | Step::Committing(..));
                beyond && self.resumed.is_empty() && self.stuck(cluster).is_none()
            }
            _ => false,
        }
    }

    /// The seal at this place is over.
    fn ends(&mut self, cluster: &mut Cluster, at: usize) -> Seal {
        let seal = self.running.remove(at);
        self.go_on(cluster);
        seal
    }

    /// What is frozen is encoded once it is the first.
    fn go_on(&mut self, cluster: &mut Cluster) {
        let Some(Seal { step, .. }) = self.running.first_mut() else { return };
        if let Step::Frozen(making, frozen) = step {
            let (making, frozen) = (making.clone(), std::mem::take(frozen));
            *step = Step::Encoding(making.id, Box::new(Encoding::start(cluster, making, frozen)));
        }
    }

    /// A node says whether the dataset was changed there: whether that was awaited, and whether all
    /// have answered. Until it `is_whole` no next generation is sealed over it, which carries on
    /// what is on nodes.
    pub(super) fn changes(
        &mut self,
        cluster: &mut Cluster,
        node: NodeRank,
        (id, is_whole): (DatasetId, bool),
        changed: bool,
    ) -> (bool, bool) {
        // Only the last one can be asking.
        let at = self.running.len().saturating_sub(1);
        let Some(seal) = self.running.last_mut() else { return (false, false) };
        let Step::Asking(asking, answers, asked_for) = &mut seal.step else { return (false, false) };
        if *asking != id || !answers.put(node, changed) {
            return (false, false);
        }
        let asked_for = *asked_for;
        if !answers.all() {
            return (true, false);
        }
        let changed = answers.iter().any(|(_, changed)| *changed);
        let gone = cluster.datasets.any(id).is_none();
        let is_wanted = self.markers.waits(&seal.name) && self.markers.is_set(cluster, &seal.name);
        if (gone || changed) && !is_wanted {
            // The others have not set it yet, or all its markers were refused meanwhile.
            self.ends(cluster, at);
            return (true, true);
        }
        if changed && !gone && !is_whole {
            let seal = self.ends(cluster, at);
            self.markers.put_off(seal.name);
            return (true, true);
        }
        if gone || changed {
            seal.markers = self.markers.take(&seal.name);
            seal.freeze(cluster, (!gone).then_some(id));
            return (true, true);
        }
        let Seal { name, .. } = self.ends(cluster, at);
        let ended = self.markers.take_first(cluster, &name, asked_for);
        let outcome = if cluster.datasets.has_failed(id) {
            MarkerOutcome::Refused("no source has the right bytes of one of its files".to_owned())
        } else {
            MarkerOutcome::Sealed(id)
        };
        self.markers.end(cluster, &name, ended, &outcome);
        (true, true)
    }

    /// A node is quiet, or cannot be frozen; false when that is not awaited.
    pub(super) fn frozen(
        &mut self,
        cluster: &mut Cluster,
        node: NodeRank,
        id: DatasetId,
        result: Result<FrozenPart, Reason>,
    ) -> bool {
        let Some(at) = self.of_dataset(id) else { return false };
        match &mut self.running[at].step {
            Step::Freezing(_, answers, merging) => {
                let Some(all) = answers.answered(node, ()) else { return false };
                let host = |node| cluster.host(node).to_owned();
                let part = result.map_err(|reason| reason.on(cluster.host(node)));
                match part.and_then(|part| merging.add(node, part, host)) {
                    Err(reason) => self.fail(cluster, at, reason),
                    Ok(()) if all => self.merge(cluster, at),
                    Ok(()) => {}
                }
                true
            }
            // The node sent this answer before it had the `Drop`.
            Step::Dropping(..) => true,
            _ => false,
        }
    }

    /// All are frozen: checks what can be checked without reading; of a next generation, who
    /// carries on what.
    fn merge(&mut self, cluster: &mut Cluster, at: usize) {
        let seal = &mut self.running[at];
        let Step::Freezing(id, _, merging) = &mut seal.step else { return };
        let id = *id;
        if seal.base.is_some_and(|base| cluster.datasets.any(base).is_none()) {
            return self.fail(cluster, at, "the generation before it is gone");
        }
        let (merged, gone) = match merging.merged() {
            Ok(merged) => merged,
            Err(reason) => return self.fail(cluster, at, reason),
        };
        let (mut members, mut alike) = (Vec::with_capacity(merged.len()), Vec::new());
        for (node, Merged { files, dropped: own }) in cluster.nodes().zip(merged) {
            if own.is_empty() {
                alike.push(node);
            } else {
                cluster.send(node, Command::Carry { id, dropped: dropped(own, &gone) });
            }
            members.push(files);
        }
        let over = seal.base.is_some();
        if over && !alike.is_empty() {
            cluster.send_to(alike, Command::Carry { id, dropped: dropped(Vec::new(), &gone) });
        }
        let nodes = if over { cluster.nodes().collect() } else { Vec::new() };
        seal.step = Step::Merging(id, Answers::of(nodes), members);
        self.encode(cluster, at);
    }

    /// A node's part is what it carries on and what was changed there; false when that is not
    /// awaited.
    pub(super) fn carried(
        &mut self,
        cluster: &mut Cluster,
        node: NodeRank,
        id: DatasetId,
        result: Result<(), Reason>,
    ) -> bool {
        let Some(at) = self.of_dataset(id) else { return false };
        match &mut self.running[at].step {
            Step::Merging(_, answers, _) => {
                if !answers.put(node, ()) {
                    return false;
                }
                match result {
                    Err(reason) => {
                        let reason = reason.on(cluster.host(node));
                        self.fail(cluster, at, reason);
                    }
                    Ok(()) => self.encode(cluster, at),
                }
                true
            }
            // The node sent this answer before it had the `Drop`.
            Step::Dropping(..) => true,
            _ => false,
        }
    }

    /// When all know their parts: starts to encode, or waits for the seal before.
    fn encode(&mut self, cluster: &mut Cluster, at: usize) {
        let Seal { name, step, markers, waited, .. } = &mut self.running[at];
        let Step::Merging(id, answers, frozen) = step else { return };
        if !answers.all() {
            return;
        }
        let (id, frozen) = (*id, std::mem::take(frozen));
        let files: usize = frozen.iter().map(Vec::len).sum();
        if files == 0 {
            self.fail(cluster, at, "no node has a file in it");
        } else if files as u64 > cluster.settings.list_max {
            let limit = cluster.settings.list_max;
            self.fail(cluster, at, format!("{files} files, more than SCRFS_LIST_MAX ({limit})"));
        } else {
            let about = About {
                name: name.clone(),
                created_us: cluster.now,
                user: cluster.settings.user.clone(),
                job_id: cluster.settings.job_id.clone(),
                files: 0,
                bytes: 0,
            };
            let making = Making { id, epoch: cluster.epoch, revision: 0, about };
            cluster.send_all(Command::AllFrozen(id));
            *waited = longest_wait(cluster, markers.iter());
            *step = if at == 0 {
                Step::Encoding(id, Box::new(Encoding::start(cluster, making, frozen)))
            } else {
                Step::Frozen(making, frozen)
            };
        }
    }

    /// The dataset whose next generation could not be encoded, as this share has found a file that
    /// nobody has changed not to be as it was sealed: no try will succeed before it is mended.
    pub(super) fn bad_base(&self, share: &ShareEnd) -> Option<DatasetId> {
        let is_bad = share.result.as_ref().is_err_and(JobFailure::is_bad);
        let failed = self.failed_over.as_ref().filter(|(_, encoding)| encoding.has(share.job));
        match self.running.first() {
            _ if !is_bad => None,
            Some(Seal { step: Step::Encoding(_, encoding), base, .. }) if encoding.has(share.job) => *base,
            _ => failed.map(|(base, _)| *base),
        }
    }

    /// A job's share ended; false when it is no share of this seal.
    pub(super) fn job(&mut self, cluster: &mut Cluster, share: ShareEnd) -> bool {
        let Some(Seal { step, .. }) = self.running.first_mut() else { return false };
        let Step::Encoding(_, encoding) = step else { return false };
        match encoding.job(cluster, share) {
            None => return false,
            Some(Encoded::Running) => {}
            // Its marker need not wait for shares that end for nothing.
            Some(Encoded::Failing(reason) | Encoded::Failed(reason)) => self.fail(cluster, 0, reason),
            Some(Encoded::Done(catalog)) => {
                let nodes = cluster.nodes();
                *step = Step::Committing(Committing::start(cluster, catalog, nodes, false), false);
            }
        }
        true
    }

    /// A node's answer to `Commit`: whether it was awaited, and the dataset when the seal is done,
    /// with the microseconds that its program has waited for it.
    pub(super) fn committed(
        &mut self,
        cluster: &mut Cluster,
        node: NodeRank,
        (id, decided): (DatasetId, bool),
        result: Result<(), Reason>,
    ) -> (bool, Option<(DatasetId, u64)>) {
        let Some(Seal { step: Step::Committing(committing, _), .. }) = self.running.first_mut() else {
            return (false, None);
        };
        if committing.catalog.id != id {
            return (false, None);
        }
        match committing.committed(cluster, node, result, decided) {
            None => (false, None),
            Some(Committed::Running) => (true, None),
            Some(Committed::Failed(reason)) => {
                self.fail(cluster, 0, reason);
                (true, None)
            }
            Some(Committed::Done) => (true, self.done(cluster)),
        }
    }

    fn done(&mut self, cluster: &mut Cluster) -> Option<(DatasetId, u64)> {
        let seal = self.running.remove(0);
        let Seal { step: Step::Committing(committing, flushed), markers, waited, .. } = seal else {
            return None;
        };
        // Others than closes wait for the freeze only.
        let closes =
            markers.iter().filter(|marker| !marker.everywhere && !cluster.settings.sealing.background);
        let waited = waited.max(longest_wait(cluster, closes));
        let catalog = committing.catalog;
        let id = catalog.id;
        cluster.send_all(Command::Sealed(id));
        self.markers.end(cluster, &catalog.name, markers, &MarkerOutcome::Sealed(id));
        cluster.note_unprotected(&catalog);
        cluster.datasets.insert(catalog, flushed);
        self.go_on(cluster);
        Some((id, waited))
    }

    /// The seal at this place comes to nothing.
    fn fail(&mut self, cluster: &mut Cluster, at: usize, reason: impl Into<Reason>) {
        let reason = reason.into();
        let seal = &mut self.running[at];
        let id = match &seal.step {
            Step::Holding | Step::Asking(..) => {
                let Seal { name, .. } = self.ends(cluster, at);
                self.markers.refuse(cluster, &name, reason.words().to_owned());
                return;
            }
            Step::Freezing(id, ..) | Step::Merging(id, ..) | Step::Encoding(id, _) => *id,
            Step::Frozen(making, _) => making.id,
            Step::Committing(committing, _) => committing.catalog.id,
            Step::Dropping(..) => return,
        };
        let text = format!("seal of {} failed: {reason}", String::from_utf8_lossy(&seal.name));
        cluster.log(text);
        cluster.send_all(Command::Drop { id, reason });
        let dropping = Step::Dropping(id, Answers::of(cluster.nodes()));
        if let Step::Encoding(_, encoding) = std::mem::replace(&mut seal.step, dropping) {
            self.failed_over = seal.base.map(|base| (base, encoding));
        }
    }

    /// A node has dropped: whether that was awaited, and whether all have.
    pub(super) fn dropped(&mut self, cluster: &mut Cluster, node: NodeRank, id: DatasetId) -> (bool, bool) {
        let Some(at) = self.of_dataset(id) else { return (false, false) };
        let Step::Dropping(_, answers) = &mut self.running[at].step else { return (false, false) };
        if !answers.put(node, ()) {
            return (false, false);
        }
        let all = answers.all();
        if all {
            // Not before: a marker that a program sets because it heard of the failure is a new try
            // on whatever node.
            let Seal { name, markers, .. } = self.ends(cluster, at);
            self.markers.end(cluster, &name, markers, &MarkerOutcome::NotSealed(id));
        }
        (true, all)
    }

    /// The commit that some node has failed to record for as long as a marker waits for writers,
    /// and that in words. It is tried until all have recorded it, but no marker waits for that: it
    /// may take as long as a disk stays full.
    fn stuck(&self, cluster: &Cluster) -> Option<(DatasetId, String)> {
        let Some(Seal { name, step: Step::Committing(committing, _), .. }) = self.running.first() else {
            return None;
        };
        let limit = cluster.settings.seal_timeout_ms.saturating_mul(MS);
        let failure = committing.stuck(cluster.now, limit)?;
        let (id, shown) = (committing.catalog.id, String::from_utf8_lossy(name));
        let text = format!(
            "{shown} is protected but not yet recorded as complete on all nodes: {failure}; this goes on by \
             itself once that node can record it"
        );
        Some((id, text))
    }

    /// Fails the markers that wait for a commit that is stuck, or behind it, once.
    fn stop_waiting(&mut self, cluster: &mut Cluster) {
        let Some((id, reason)) = self.stuck(cluster) else { return };
        if self.overdue.replace(id) == Some(id) {
            return;
        }
        self.markers.refuse_closes(cluster, &reason);
        // What is frozen behind it would stay so for as long; save what was promised.
        let stays = |seal: &Seal| seal.step.dataset().is_none() || seal.is_promised(cluster);
        if self.running.get(1).is_some_and(|seal| !stays(seal)) {
            self.fail(cluster, 1, reason.clone());
        }
        if let Some(Seal { name, markers, .. }) = self.running.first_mut() {
            let closes: Vec<Marker> = markers.extract_if(.., |marker| !marker.everywhere).collect();
            self.markers.end(cluster, name, closes, &MarkerOutcome::Refused(reason));
        }
    }

    pub(super) fn tick(&mut self, cluster: &mut Cluster) {
        if let Some(Seal { step: Step::Committing(committing, _), .. }) = self.running.first_mut() {
            committing.tick(cluster);
        }
        self.stop_waiting(cluster);
        let looked_at: Vec<&[u8]> = self.running.iter().map(|seal| seal.name.as_slice()).collect();
        self.markers.expire(cluster, &looked_at);
    }
}

#[cfg(test)]
mod tests;

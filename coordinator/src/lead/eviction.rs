//! Which datasets leave the caches: those that newer ones take the place of, and earlier ones where
//! a node has too little room (`scrfs/docs/protocol.md`, Room).

use std::collections::{BTreeMap, BTreeSet};

use scrfs::control::{Command, NoRoom};
use scrfs::ids::{DatasetId, NodeRank};

use super::datasets::Known;
use super::fetch::ShortOfRoom;
use super::policy::{Evictable, Kept, Sacrifice, evictions, guard, sacrifice, sacrifices};
use super::{Phase, Running};

/// Datasets on their way out, and the nodes that still have bytes of them.
#[derive(Debug, Default)]
pub(super) struct Leaving(BTreeMap<DatasetId, BTreeSet<NodeRank>>);

impl Leaving {
    /// The node has nothing of it any more.
    fn left(&mut self, id: DatasetId, node: NodeRank) {
        if let Some(nodes) = self.0.get_mut(&id) {
            nodes.remove(&node);
            if nodes.is_empty() {
                self.0.remove(&id);
            }
        }
    }

    fn gives_room_to(&self, node: NodeRank) -> bool {
        self.0.values().any(|nodes| nodes.contains(&node))
    }
}

/// Where inodes lack, no byte is free.
pub(super) fn free_in_words(free: u64) -> String {
    let inodes = if free == 0 { " (or no inodes)" } else { "" };
    format!("{free} bytes are free{inodes}")
}

impl Running {
    /// Lets go the generations in whose place newer ones are, and what `SCR_CACHE_SIZE` and
    /// `SCRFS_CACHE_BYTES` have no room for.
    pub(super) fn evict(&mut self) {
        if !matches!(self.phase, Phase::Serving) {
            return;
        }
        let mut gone = self.cluster.datasets.superseded();
        // What goes for its successor takes no other dataset's place.
        let mut newest_first = self.cluster.datasets.newest_first();
        newest_first.retain(|known| !gone.contains(&known.catalog.id));
        let settings = &self.cluster.settings;
        let mut kept =
            Kept::with(guard(newest_first.iter().map(|known| known.cached(settings)), settings), settings);
        let newest_first: Vec<Evictable> = newest_first
            .iter()
            .map(|known| {
                let id = known.catalog.id;
                let flushing = !known.flushed && self.flushes.busy(id);
                let kept = kept.takes(id, &known.catalog.layout, settings);
                // What is about to be whole may be the only one that is protected.
                let restored = self.fetches.rebuilding(id) || self.fetches.restores(&self.cluster, id);
                Evictable { id, kept, busy: flushing || restored }
            })
            .collect();
        let kept = newest_first.iter().filter(|evictable| evictable.kept).count();
        gone.retain(|id| !self.flushes.runs(*id) && !self.fetches.rebuilding(*id));
        for id in evictions(&newest_first) {
            if !gone.contains(&id) {
                gone.push(id);
            }
        }
        let (datasets, seals) = (&self.cluster.datasets, &self.seals);
        gone.retain(|id| !datasets.any(*id).is_some_and(|known| seals.needs(&known.catalog)));
        for id in gone {
            if newest_first.iter().any(|evictable| evictable.id == id) {
                self.tell_evicted(id, kept);
            }
            self.let_go(id);
        }
    }

    /// An event names the dataset before it leaves for newer ones.
    fn tell_evicted(&mut self, id: DatasetId, kept: usize) {
        let Some(known) = self.cluster.datasets.any(id) else { return };
        let name = String::from_utf8_lossy(&known.catalog.name).into_owned();
        let place = if known.flushed { "it is on the PFS" } else { "it is nowhere else" };
        // Every checkpoint does that: the log of the job has no line for each.
        self.cluster.tell_nodes(format!(
            "dataset {id} ({name}) leaves the caches: SCR_CACHE_SIZE and SCRFS_CACHE_BYTES have room for {kept} others; {place}"
        ));
    }

    /// A node's cache has less room than is wanted there, as `short` says; false if none can be
    /// made. What is leaving anyhow may be enough: the node looks again when it has left. Only
    /// those that help are let go (`None`: all do).
    pub(super) fn make_room(
        &mut self,
        node: NodeRank,
        short: &str,
        begins: bool,
        helps: Option<&[DatasetId]>,
    ) -> bool {
        if self.leaving.gives_room_to(node) {
            return true;
        }
        let mut newest_first = self.sacrifices();
        for sacrifice in &mut newest_first {
            sacrifice.needed |= helps.is_some_and(|helps| !helps.contains(&sacrifice.id));
        }
        let host = self.cluster.host(node).to_owned();
        let may_be_lost = begins && self.cluster.settings.cache_size == 1;
        let Some(id) = sacrifice(&newest_first, may_be_lost) else {
            self.cluster.warn(format!("{host}: {short}; no dataset may leave the caches"));
            return false;
        };
        self.cluster.note(format!("{host}: {short}; dataset {id} leaves the caches early"));
        self.let_go(id);
        true
    }

    /// The datasets as they are seen when room is short, newest first.
    fn sacrifices(&self) -> Vec<Sacrifice> {
        let (mut newest_first, settings) = (self.cluster.datasets.newest_first(), &self.cluster.settings);
        // What a program removes at this moment goes by itself, and nothing is restarted from it.
        newest_first.retain(|known| !self.directories.round_removes(&known.catalog.name));
        let guard = guard(newest_first.iter().map(|known| known.cached(settings)), settings);
        let guard = guard.map(|guard| guard.id);
        let sacrifice = |known: &&Known| {
            let id = known.catalog.id;
            let fetched = self.fetches.rebuilding(id) || self.fetches.wants(id);
            Sacrifice {
                id,
                needed: fetched
                    || guard == Some(id)
                    || self.seals.needs(&known.catalog)
                    || self.overwritten.contains(&id),
                flushing: !known.flushed && self.flushes.busy(id),
                // What a restart does not fetch is lost to it.
                flushed: known.cached(settings).flushed,
            }
        };
        newest_first.iter().map(sacrifice).collect()
    }

    /// A node has nothing of the dataset any more.
    pub(super) fn left(&mut self, id: DatasetId, node: NodeRank) {
        self.leaving.left(id, node);
        if !self.leaving.gives_room_to(node) {
            self.fetches.room_made(node);
        }
    }

    /// Room for files that programs open: what is needed for them goes, or nothing.
    pub(super) fn make_room_for_fetches(&mut self) {
        while let Some(short) = self.fetches.take_short() {
            // What is leaving anyhow may be enough: it is tried again when that has left.
            if !self.leaving.gives_room_to(short.node) {
                self.make_room_for_fetch(&short);
            }
        }
    }

    fn make_room_for_fetch(&mut self, short: &ShortOfRoom) {
        let NoRoom { wanted, room } = &short.full;
        let held = |id| room.held.iter().find(|(of, _)| *of == id).map_or(0, |(_, bytes)| *bytes);
        let gone = sacrifices(self.sacrifices(), wanted.saturating_sub(room.free), held);
        let free = free_in_words(room.free);
        let text = format!("room is short for a file that is opened: it takes {wanted} bytes, and {free}");
        match gone {
            Err(most) => {
                let text = format!("{text}; datasets that may go have {most}, so none goes");
                self.fetches.no_room(&mut self.cluster, short, &text);
            }
            // Others took the room, and it is there again.
            Ok(gone) if gone.is_empty() && short.again => {
                self.fetches.no_room(&mut self.cluster, short, &text);
            }
            Ok(gone) if gone.is_empty() => self.fetches.room_made(short.node),
            Ok(gone) => {
                let host = self.cluster.host(short.node).to_owned();
                for id in gone {
                    self.cluster.note(format!("{host}: {text}; dataset {id} leaves the caches early"));
                    self.let_go(id);
                }
            }
        }
    }

    /// It leaves all caches.
    pub(super) fn let_go(&mut self, id: DatasetId) {
        let known = self.cluster.datasets.remove(id);
        match known.as_ref().filter(|known| !known.flushed) {
            Some(known) if self.cluster.datasets.named(&known.catalog.name).is_none() => {
                self.flushes.lost(&mut self.cluster, id);
            }
            _ => self.flushes.removed(id),
        }
        self.overwritten.remove(&id);
        self.scrubs.removed(id);
        self.leaves(id);
        self.vacated(known);
    }

    /// A program removed it.
    pub(super) fn forget(&mut self, id: DatasetId) {
        self.cluster.datasets.remove(id);
        self.flushes.removed(id);
        self.overwritten.remove(&id);
        self.scrubs.removed(id);
    }

    /// A program removed the directory, and some node has not said that this generation went with
    /// it: it leaves all caches.
    pub(super) fn removed(&mut self, id: DatasetId) {
        self.forget(id);
        self.leaves(id);
    }

    fn leaves(&mut self, id: DatasetId) {
        self.leaving.0.insert(id, self.cluster.nodes().collect());
        self.cluster.send_all(Command::Evict(id));
    }

    /// What was begun over a dataset that has left the caches has left with it.
    pub(super) fn vacated(&mut self, gone: Option<Known>) {
        // A replaced dataset gave its name to its successor. By now a new directory may have that
        // name.
        let Some(known) = gone.filter(|known| !known.replaced) else { return };
        if self.cluster.datasets.named(&known.catalog.name).is_none() {
            self.loose.removed(&mut self.cluster, &known.catalog.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use scrfs::control::{Event, MarkerOutcome, Start};
    use scrfs::ids::{Epoch, RequestId};

    use super::*;
    use crate::lead::cluster::Cluster;
    use crate::lead::flush::tests::catalog;
    use crate::lead::{Input, Output, Survey};
    use crate::settings::tests::settings;

    /// What nodes do not have any more has no bad bytes there.
    #[test]
    fn the_scrub_of_a_dataset_that_leaves_ends_without_a_word() {
        for is_removed in [true, false] {
            let cluster = Cluster::new(Epoch(1), vec!["a".to_owned()], settings(), 1);
            let mut running = Running::begin(cluster, Start::Attach);
            running.phase = Phase::Serving;
            running.cluster.datasets.insert(catalog(1).into(), false);
            running.cluster.take_outputs();
            let (node, id) = (NodeRank(0), DatasetId(1));
            let begun = running.step(Input::Daemon(node, Event::ScrubWanted(id)));
            let is_scrub = |output: &Output| matches!(output, Output::Command(_, Command::Scrub { .. }));
            assert!(begun.iter().any(is_scrub), "{begun:?}");
            if is_removed {
                running.step(Input::Daemon(node, Event::Removed(id)));
            } else {
                running.let_go(id);
            }
            running.cluster.take_outputs();
            let said = running.step(Input::Daemon(node, Event::Scrubbed { id, round: 1, bad: Vec::new() }));
            assert_eq!(said, []);
        }
    }

    /// Whether nodes have changed it is asked at that moment: what they have changed goes with it.
    #[test]
    fn a_dataset_stays_while_its_marker_is_looked_at() {
        for changed in [false, true] {
            let settings = scrfs::control::Settings { cache_size: 1, ..settings() };
            let cluster = Cluster::new(Epoch(1), vec!["a".to_owned()], settings, 1);
            let mut running = Running::begin(cluster, Start::Attach);
            (running.phase, running.survey) = (Phase::Serving, Survey::Unknown);
            let (node, old) = (NodeRank(0), DatasetId(1));
            running.cluster.datasets.insert(catalog(1).into(), true);
            let request = RequestId { origin: 1, serial: 1 };
            let (name, base) = (b"ck.1".to_vec(), Some(old));
            running.step(Input::Daemon(node, Event::Marker { request, name, base, everywhere: false }));
            running.cluster.datasets.insert(catalog(2).into(), true);
            running.evict();
            let (free, wanted, helps) = (1, 2, Some(vec![old]));
            let short = Event::RoomShort { free, wanted, begins: false, helps };
            running.step(Input::Daemon(node, short));
            assert!(running.cluster.datasets.any(old).is_some());

            let said = running.step(Input::Daemon(node, Event::Changes { id: old, changed }));
            let sealed = MarkerOutcome::Sealed(old);
            let says = |output: &Output| match output {
                Output::Command(_, Command::MarkersEnd { outcome, .. }) => *outcome == sealed,
                Output::Command(_, Command::Freeze { base, .. }) => *base == Some(old),
                _ => false,
            };
            let leaves =
                |output: &Output| matches!(output, Output::Command(_, Command::Evict(id)) if *id == old);
            let (told, gone) = (said.iter().position(says), said.iter().position(leaves));
            assert!(told.is_some() && gone.is_none_or(|gone| told < Some(gone)), "{said:?}");
            // Its next generation takes its place.
            assert_eq!(running.cluster.datasets.any(old).is_some(), changed);
        }
    }
}

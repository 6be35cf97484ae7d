//! Programs remove whole datasets, also while the generation before is still flushed: no restart
//! presents either, and nothing of them stays in the caches.

use std::collections::BTreeSet;

use scrfs::control::{DirOp, HeldState};
use scrfs::ids::DatasetId;
use scrfs::path::RelPath;

use super::World;
use crate::daemon::{Daemon, Dataset};
use crate::observer::Key;

/// Complete datasets that the node has and does not list.
fn hidden(node: &Daemon) -> impl Iterator<Item = (Key, &Dataset)> {
    let hidden = |dataset: &Dataset| !dataset.listed && dataset.state == HeldState::Complete;
    let all = node.datasets.iter().filter(move |(_, dataset)| hidden(dataset));
    all.map(|(id, dataset)| ((dataset.epoch, *id), dataset))
}

/// Newer ones are listed there, and all of them have failed.
fn all_newer_have_failed(node: &Daemon, key: Key) -> bool {
    let mut newer = node.datasets.iter().filter(|(id, dataset)| {
        dataset.listed && dataset.state == HeldState::Complete && (dataset.epoch, **id) > key
    });
    let newest = newer.next();
    newest.is_some_and(|(_, dataset)| dataset.failed) && newer.all(|(_, dataset)| dataset.failed)
}

impl World {
    /// A program runs `rm -rf` of a whole dataset: seldom, save where the generation before is
    /// still there.
    pub(super) fn remove_dataset(&mut self, at: usize, name: &[u8]) {
        let Some((id, _)) = self.nodes[at].listed(name) else { return };
        let is_over = hidden(&self.nodes[at]).any(|(_, dataset)| dataset.name == name);
        if !self.rng.chance(if is_over { 90 } else { 40 }) {
            return;
        }
        self.counts.hurried += u64::from(is_over);
        self.nodes[at].emptied.insert(id);
        self.removing.insert(name.to_vec());
        let path = RelPath::new(name.to_vec()).expect("a name");
        self.directory(at, DirOp::Remove { path });
    }

    /// The program hears that its directory is gone: so is every generation that was there.
    pub(super) fn check_removal(&mut self, at: usize, path: &RelPath) {
        let name = path.as_bytes();
        let Some((key, _)) = self.nodes[at].removed.get(name).copied() else { return };
        self.removed.insert(name.to_vec(), key);
        self.counts.removals += 1;
        self.check_removed();
    }

    /// No cache has anything of what was removed.
    pub(super) fn check_removed(&self) {
        for node in &self.nodes {
            for (id, dataset) in &node.datasets {
                let removed = self.removed.get(&dataset.name);
                let is_removed = removed.is_some_and(|newest| (dataset.epoch, *id) <= *newest);
                assert!(!is_removed, "{id} was removed, and {} has it", node.host);
            }
        }
    }

    /// A restart presents these: none was removed, but what is in the prefix as well.
    pub(super) fn check_presented(&mut self, listed: &[(DatasetId, Dataset)]) {
        for (id, dataset) in listed {
            let key = (dataset.epoch, *id);
            let is_removed = self.removed.get(&dataset.name).is_some_and(|newest| key <= *newest);
            let is_stored = self.prefix.datasets.contains_key(&key);
            // Also where only some nodes came to remove it.
            let mut newer = self.nodes.iter().filter_map(|node| node.removed.get(&dataset.name));
            let is_newer = newer.any(|(newer, _)| key < *newer) && !self.excused.contains(&dataset.name);
            assert!(!is_newer || is_stored, "{id} is presented for a removed one");
            assert!(!is_removed || is_stored, "{id} was removed, and a restart presents it");
            if is_removed {
                self.removed.remove(&dataset.name);
            }
        }
        self.excused.clear();
        self.hidden = self.nodes.iter().flat_map(hidden).map(|(key, _)| key).collect();
    }

    /// A node comes back that may have not heard of removals, and speak of those of long ago.
    pub(super) fn comes_back(&mut self, back: &Daemon) {
        self.counts.stale += self.removed_on(back);
        self.excused.extend(back.removed.keys().cloned());
    }

    /// How many datasets it has that programs have removed.
    pub(super) fn removed_on(&self, node: &Daemon) -> u64 {
        let is_removed = |(id, dataset): (&DatasetId, &Dataset)| {
            self.removed.get(&dataset.name).is_some_and(|newest| (dataset.epoch, *id) <= *newest)
        };
        node.datasets.iter().map(|one| u64::from(is_removed(one))).sum()
    }

    /// Nodes are lost: when nobody is left who knows of a removal, what a node that was away has
    /// may be presented.
    pub(super) fn forget_removals(&mut self) {
        let nodes = &self.nodes;
        self.removed.retain(|name, key| {
            nodes.iter().any(|node| node.removed.get(name).is_some_and(|(newest, _)| newest >= key))
        });
    }

    /// Nothing is left to do: what caches have and do not list is what a restart did not present,
    /// or what is whole where all newer ones went bad while it was still flushed: a restart
    /// presents it.
    pub(super) fn check_hidden(&self) {
        for node in &self.nodes {
            let failed = |name| node.listed(name).is_some_and(|(_, newer)| newer.failed);
            let left = hidden(node).filter(|(_, former)| !failed(&former.name));
            let left = left.map(|(key, _)| key);
            let left: BTreeSet<Key> =
                left.filter(|key| !self.hidden.contains(key) && !all_newer_have_failed(node, *key)).collect();
            assert!(left.is_empty(), "{left:?} are left on {}", node.host);
            for (key, dataset) in hidden(node) {
                let newer = node.listed(&dataset.name).filter(|(_, newer)| !newer.failed);
                let newer = newer.map(|(id, newer)| (newer.epoch, id));
                assert!(
                    newer < Some(key),
                    "{key:?} is left on {}, where {newer:?} is in its place",
                    node.host
                );
            }
        }
    }
}

//! Markers that fail: where nothing is made to fail by chance, what the lead says of it must be so.

use std::collections::BTreeMap;

use scrfs::control::{HeldState, MarkerScope, Reason};
use scrfs::ids::DatasetId;
use scrfs::path::RelPath;

use super::World;
use crate::daemon::Daemon;

impl World {
    /// The seal of `id` comes to nothing.
    pub(super) fn check_drop(&mut self, id: DatasetId, reason: &Reason) {
        // What is dropped in a start was another lead's.
        let Some(name) = self.seals.get(&id).filter(|_| self.smooth && self.ready) else { return };
        let words = reason.words();
        let path = RelPath::new(name.clone()).expect("a name");
        let any = |says: &dyn Fn(&Daemon) -> bool| self.nodes.iter().any(says);
        let is_so = if words.contains(".invalid is in it") {
            any(&|node| node.invalid.contains(name))
        } else if words.contains(".invalid was made in it") {
            any(&|node| node.invalidating.contains(name))
        } else if words.contains("no such directory") || words.contains("its directory was removed") {
            any(&|node| !node.directories.contains(&path))
        } else if words.contains("differs between") {
            self.differs(id)
        } else if words.contains("no node has a file in it") {
            !self.has_files(id)
        } else if words.contains("no node has its sealed bytes") || words.contains("bytes are bad") {
            self.has_bad_base(id)
        } else {
            false
        };
        assert!(is_so, "the seal of {name:?} ({id}) fails, and it is not so: {words}");
        self.counts.dropped += 1;
    }

    /// The markers of `name` fail without a seal.
    pub(super) fn check_refusal(&self, name: &[u8], words: &str) {
        if !self.smooth {
            return;
        }
        let path = RelPath::new(name).expect("a name");
        let is_so = if words.contains("its directory was removed") {
            self.nodes.iter().all(|node| !node.directories.contains(&path))
        } else if words.contains("SCRFS_MARKER_SCOPE=all") {
            self.settings.sealing.scope == MarkerScope::All
        } else if words.contains("no source has the right bytes") {
            let is_it = |key| self.catalogs.get(&(key, 0)).is_some_and(|catalog| catalog.name == name);
            self.failed.iter().any(|key| is_it(*key))
        } else {
            false
        };
        assert!(is_so, "the markers of {name:?} fail, and it is not so: {words}");
    }

    /// Two nodes have made one file, with other bytes each.
    fn differs(&self, id: DatasetId) -> bool {
        let mut made: BTreeMap<&RelPath, u64> = BTreeMap::new();
        self.nodes.iter().filter_map(|node| node.datasets.get(&id)).any(|dataset| {
            let frozen = dataset.frozen.as_ref().map(|(_, data)| &data.files);
            let changed = dataset.over.as_ref().map(|(_, next)| &next.changed).or(frozen);
            let mut files = changed.into_iter().flatten();
            files.any(|(path, content)| *made.entry(path).or_insert(*content) != *content)
        })
    }

    /// Something is left to be sealed.
    fn has_files(&self, id: DatasetId) -> bool {
        let held = self.nodes.iter().filter_map(|node| node.datasets.get(&id));
        let mut frozen = held.filter_map(|dataset| dataset.frozen.as_ref());
        frozen.any(|(_, data)| !data.files.is_empty())
    }

    /// Of the generation before some member is bad, or not on its node.
    fn has_bad_base(&self, id: DatasetId) -> bool {
        let over = |node: &Daemon| node.datasets.get(&id)?.over.as_ref().map(|(base, _)| *base);
        let Some(base) = self.nodes.iter().find_map(over) else { return false };
        let held = |node: &Daemon| node.datasets.get(&base).map(|dataset| (dataset.epoch, base));
        let Some(key) = self.nodes.iter().find_map(held) else { return true };
        let complete = |node: &Daemon| {
            node.datasets.get(&base).is_some_and(|dataset| dataset.state == HeldState::Complete)
        };
        let Some(catalog) = crate::observer::catalog(&self.nodes, key) else { return true };
        let (_, readable) = crate::observer::in_places(&self.nodes, catalog);
        // It may have been mended meanwhile.
        self.decayed.contains(&key)
            || !self.nodes.iter().all(complete)
            || readable.len() < catalog.layout.members.len()
    }
}

//! The complete datasets that the lead knows of in its epoch.

use std::collections::{BTreeMap, BTreeSet};

use scrfs::dataset::Catalog;
use scrfs::ids::{DatasetId, Epoch};

/// A dataset of which every node has recorded COMPLETE.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) catalog: Catalog,
    /// It is on the PFS.
    pub(super) flushed: bool,
}

/// The known datasets.
#[derive(Debug, Default)]
pub(super) struct Datasets {
    listed: BTreeMap<DatasetId, Known>,
    /// Still in caches, but not listed: a restart could not or would not present them.
    aside: BTreeSet<DatasetId>,
    /// The highest id that is known to be on the PFS; 0 = none.
    pub(super) highest_flushed: u64,
}

impl Datasets {
    pub(super) fn insert(&mut self, catalog: Catalog, flushed: bool) {
        if flushed {
            self.highest_flushed = self.highest_flushed.max(catalog.id.0);
        }
        self.aside.remove(&catalog.id);
        self.listed.insert(catalog.id, Known { catalog, flushed });
    }

    pub(super) fn put_aside(&mut self, id: DatasetId) {
        if !self.listed.contains_key(&id) {
            self.aside.insert(id);
        }
    }

    pub(super) fn take_aside(&mut self) -> BTreeSet<DatasetId> {
        std::mem::take(&mut self.aside)
    }

    pub(super) fn get(&self, id: DatasetId) -> Option<&Known> {
        self.listed.get(&id)
    }

    pub(super) fn remove(&mut self, id: DatasetId) -> Option<Known> {
        self.aside.remove(&id);
        self.listed.remove(&id)
    }

    /// The newest of that name.
    pub(super) fn named(&self, name: &[u8]) -> Option<DatasetId> {
        self.listed.values().rev().find(|known| known.catalog.name == name).map(|known| known.catalog.id)
    }

    /// Ids of all of that name.
    pub(super) fn all_named(&self, name: &[u8]) -> Vec<DatasetId> {
        self.listed
            .values()
            .filter(|known| known.catalog.name == name)
            .map(|known| known.catalog.id)
            .collect()
    }

    pub(super) fn flushed(&mut self, id: DatasetId) {
        self.highest_flushed = self.highest_flushed.max(id.0);
        if let Some(known) = self.listed.get_mut(&id) {
            known.flushed = true;
        }
    }

    /// Newest first.
    pub(super) fn newest_first(&self) -> Vec<&Known> {
        let mut all: Vec<&Known> = self.listed.values().collect();
        all.sort_by_key(|known| std::cmp::Reverse(age(&known.catalog)));
        all
    }
}

/// Newest = highest (DESIGN 3).
pub(super) fn age(catalog: &Catalog) -> (Epoch, DatasetId) {
    (catalog.epoch, catalog.id)
}

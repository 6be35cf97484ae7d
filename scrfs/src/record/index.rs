//! `index.scr`: the datasets in a prefix. Its rewriting is the commit of a flush.

use super::descriptor::DatasetDescriptor;
use super::field::record;
use super::ordered::{Ordered, Words};
use crate::hash::Text;
use crate::ids::DatasetId;

/// The version that is written.
pub const INDEX_VERSION: u64 = 1;

record! {
    /// The datasets in a prefix, by name and by id. Change it with [`Index::set_entry`] and
    /// [`Index::remove_entry`].
    Index {
        /// The dataset that a restart presents.
        current: Option<Text> = ["CURRENT"],
        /// The dataset that the link `scr.current` was pointed at last (scrfs).
        linked: Option<Text> = ["LINKED"],
        /// 1; SCR 3 writes 2, which has no names below ids.
        version: Option<u64> = ["VERSION"],
        /// Ids of each name (`NAME` in 1.2 and later).
        names: Ordered<Text, IndexName> = ["DIR", "NAME"],
        /// Datasets by id (`CKPT` in 2011).
        datasets: Ordered<DatasetId, IndexDataset> = ["DSET", "CKPT"],
    }
}

record! {
    /// The ids of one name.
    IndexName {
        /// Almost always one.
        ids: Ordered<DatasetId, ()> = ["DSET", "CKPT"],
    }
}

record! {
    /// The datasets of one id: one by name in version 1, itself in version 2.
    IndexDataset {
        /// By name (version 1).
        by_name: Ordered<Text, IndexEntry> = ["DIR", "NAME"],
        /// As in [`IndexEntry`] (version 2).
        complete: Option<bool> = ["COMPLETE"],
        /// As in [`IndexEntry`] (version 2).
        dataset: Option<DatasetDescriptor> = ["DSET"],
        /// As in [`IndexEntry`] (version 2).
        flushed: Words = ["FLUSHED"],
        /// As in [`IndexEntry`] (version 2).
        fetched: Words = ["FETCHED"],
        /// As in [`IndexEntry`] (version 2).
        failed: Words = ["FAILED"],
    }
}

record! {
    /// One dataset. Times are `YYYY-MM-DDTHH:MM:SS`, local.
    IndexEntry {
        /// The epoch that sealed it (scrfs).
        epoch: Option<u64> = ["EPOCH"],
        /// All files are there.
        complete: Option<bool> = ["COMPLETE"],
        /// The dataset (not in 2011).
        dataset: Option<DatasetDescriptor> = ["DSET"],
        /// When it was flushed.
        flushed: Words = ["FLUSHED"],
        /// When it was fetched.
        fetched: Words = ["FETCHED"],
        /// When a fetch of it failed: not to be tried again.
        failed: Words = ["FAILED"],
    }
}

/// One dataset of an index, whatever the index's version.
#[derive(Debug, Clone, Copy)]
pub struct IndexView<'a> {
    /// Its id.
    pub id: DatasetId,
    /// Its name, where the index has one.
    pub name: Option<&'a Text>,
    /// The epoch that sealed it (scrfs).
    pub epoch: Option<u64>,
    /// All files are there.
    pub complete: bool,
    /// The dataset (not in 2011).
    pub dataset: Option<&'a DatasetDescriptor>,
    /// When it was flushed.
    pub flushed: &'a Words,
    /// When it was fetched.
    pub fetched: &'a Words,
    /// When a fetch of it failed.
    pub failed: &'a Words,
}

impl Index {
    /// An index without datasets.
    pub fn new() -> Self {
        Self { version: Some(INDEX_VERSION), ..Self::default() }
    }

    /// All datasets, in the file's order.
    pub fn entries(&self) -> impl Iterator<Item = IndexView<'_>> {
        self.datasets.iter().flat_map(|(&id, of_id)| {
            let named = of_id.by_name.iter().map(move |(name, entry)| entry.view(id, name));
            of_id.unnamed(id).into_iter().chain(named)
        })
    }

    /// The entry of this name and id.
    pub fn entry(&self, name: &Text, id: DatasetId) -> Option<&IndexEntry> {
        self.datasets.get(&id)?.by_name.get(name)
    }

    /// The entry of this name and id, to change it.
    pub fn entry_mut(&mut self, name: &Text, id: DatasetId) -> Option<&mut IndexEntry> {
        self.datasets.get_mut(&id)?.by_name.get_mut(name)
    }

    /// Sets the entry of this name and id, on both sides.
    pub fn set_entry(&mut self, name: Text, id: DatasetId, entry: IndexEntry) {
        let mut of_name = self.names.remove(&name).unwrap_or_default();
        of_name.ids.set_first(id, ());
        self.names.set_first(name.clone(), of_name);
        let mut of_id = self.datasets.remove(&id).unwrap_or_default();
        of_id.by_name.set_first(name, entry);
        self.datasets.set_first(id, of_id);
    }

    /// Removes the entry of this name and id, on both sides.
    pub fn remove_entry(&mut self, name: &Text, id: DatasetId) -> Option<IndexEntry> {
        let removed = self.datasets.get_mut(&id)?.by_name.remove(name);
        if self.datasets.get(&id).is_some_and(|of| of.by_name.is_empty()) {
            self.datasets.remove(&id);
        }
        if let Some(of_name) = self.names.get_mut(name) {
            of_name.ids.remove(&id);
            if of_name.ids.is_empty() {
                self.names.remove(name);
            }
        }
        removed
    }
}

impl IndexDataset {
    fn unnamed(&self, id: DatasetId) -> Option<IndexView<'_>> {
        let name = self.dataset.as_ref().and_then(|dataset| dataset.name.as_ref());
        let view = IndexView {
            id,
            name,
            epoch: None,
            complete: self.complete == Some(true),
            dataset: self.dataset.as_ref(),
            flushed: &self.flushed,
            fetched: &self.fetched,
            failed: &self.failed,
        };
        (self.by_name.is_empty() || self.dataset.is_some()).then_some(view)
    }
}

impl IndexEntry {
    fn view<'a>(&'a self, id: DatasetId, name: &'a Text) -> IndexView<'a> {
        IndexView {
            id,
            name: Some(name),
            epoch: self.epoch,
            complete: self.complete == Some(true),
            dataset: self.dataset.as_ref(),
            flushed: &self.flushed,
            fetched: &self.fetched,
            failed: &self.failed,
        }
    }
}

//! A model of the prefix.

use std::collections::{BTreeMap, BTreeSet};

use scrfs::control::loose::{Age, LooseSet};
use scrfs::dataset::{Catalog, EntryKind};
use scrfs::ids::{DatasetId, Epoch};
use scrfs::path::RelPath;
use scrfs::prefix::{Contents, PfsCause, PfsFailure, PfsOutcome, PfsTask, StoredDataset};

use crate::observer::{Key, Truth};
use crate::saved::Saved;

/// Tries of a flush in one epoch.
pub(crate) const TRIES: u32 = 6;

#[derive(Debug, Clone)]
pub(crate) struct Stored {
    pub(crate) catalog: Catalog,
    pub(crate) files: BTreeMap<RelPath, u64>,
    pub(crate) failed: bool,
    /// A file has rotted.
    pub(crate) bad: bool,
    /// Summary or rank2file has.
    pub(crate) unreadable: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Prefix {
    pub(crate) datasets: BTreeMap<(Epoch, DatasetId), Stored>,
    pub(crate) loose: BTreeMap<Age, LooseSet>,
    /// `scavenge.<epoch>.<id>`.
    pub(crate) saved: BTreeMap<Key, Saved>,
    /// How many of these became whole.
    pub(crate) adopted: u64,
    /// `flush.<epoch>.<id>`; one epoch works here at a time.
    pub(crate) begun: BTreeMap<DatasetId, BTreeMap<RelPath, u64>>,
    pub(crate) published: u64,
    pub(crate) curse: Option<Curse>,
    /// Flushes that fail every time: tries in this epoch.
    pub(crate) tried: BTreeMap<DatasetId, u32>,
    /// When each was last.
    pub(crate) tried_at: BTreeMap<DatasetId, u64>,
    /// Datasets that were published while a cursed one waited for its next try.
    pub(crate) overtook: u64,
    /// Found damaged, to be marked FAILED.
    pub(crate) to_mark: BTreeSet<(Epoch, DatasetId)>,
    /// For damaged records.
    pub(crate) marked: u64,
}

/// Where the flush of every third dataset fails, each time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Curse {
    Begin,
    Copy,
    Publish,
}

impl Prefix {
    /// Nobody knows it yet: the dataset may have left the caches for what is here.
    pub(crate) fn has_rotted(&self, key: Key) -> bool {
        self.datasets.get(&key).is_some_and(|stored| stored.bad || stored.unreadable)
    }

    pub(crate) fn cursed(&self, id: DatasetId) -> bool {
        self.curse.is_some() && id.0.is_multiple_of(3)
    }

    /// Flushes of it end here.
    pub(crate) fn refuses(&self, id: DatasetId, at: Curse) -> bool {
        self.cursed(id) && self.curse == Some(at)
    }

    /// Of a dataset of that very epoch: other branches give the same ids.
    pub(crate) fn read(&self, key: Key, path: &RelPath) -> Option<u64> {
        self.datasets.get(&key).filter(|stored| !stored.bad)?.files.get(path).copied()
    }

    pub(crate) fn copy(&mut self, id: DatasetId, files: &BTreeMap<RelPath, u64>) {
        if let Some(begun) = self.begun.get_mut(&id) {
            begun.extend(files.iter().map(|(path, content)| (path.clone(), *content)));
        }
    }

    pub(crate) fn carry_out(&mut self, task: PfsTask, truth: &Truth) -> PfsOutcome {
        if let PfsTask::MarkFailed(dataset) = &task {
            self.to_mark.remove(&(dataset.epoch, dataset.id));
        }
        match task {
            PfsTask::Survey => {
                let partial = self.adopt(truth);
                let newest =
                    self.datasets.iter().filter(|(_, stored)| !stored.failed).map(|(key, _)| *key).max();
                let all = self.datasets.iter().rev().map(|(key, stored)| StoredDataset {
                    id: key.1,
                    epoch: key.0,
                    name: stored.catalog.name.clone(),
                    directory: [b"/pfs/", stored.catalog.name.as_slice()].concat(),
                    created_us: Some(stored.catalog.created_us),
                    usable: !stored.failed,
                    current: Some(*key) == newest,
                });
                let datasets = all.collect();
                PfsOutcome::Surveyed(Contents { datasets, partial, hindered: Vec::new() })
            }
            PfsTask::BeginFlush(catalog) if self.refuses(catalog.id, Curse::Begin) => {
                failed(PfsTask::BeginFlush(catalog), PfsCause::Unavailable, "cursed")
            }
            PfsTask::Publish(catalog) if self.refuses(catalog.id, Curse::Publish) => {
                failed(PfsTask::Publish(catalog), PfsCause::Unavailable, "cursed")
            }
            PfsTask::BeginFlush(catalog) => {
                self.begun.insert(catalog.id, BTreeMap::new());
                let directory = format!("/pfs/.scr/flush.{}.{}", catalog.epoch, catalog.id);
                PfsOutcome::FlushBegun(catalog.id, directory.into_bytes())
            }
            PfsTask::Publish(catalog) => {
                let id = catalog.id;
                let files = self.begun.remove(&id).expect("begun before it is published");
                for entry in &catalog.entries {
                    let file = matches!(entry.kind, EntryKind::File(_));
                    assert!(!file || files.contains_key(&entry.path), "{} was not copied", entry.path);
                }
                self.published += 1;
                let waits = |(cursed, tries): (&DatasetId, &u32)| *cursed < id && *tries < TRIES;
                self.overtook += u64::from(self.tried.iter().any(waits));
                let stored = Stored {
                    catalog: std::sync::Arc::unwrap_or_clone(catalog),
                    files,
                    failed: false,
                    bad: false,
                    unreadable: false,
                };
                // A swap: what had that name is gone.
                self.datasets.retain(|_, old| old.catalog.name != stored.catalog.name);
                self.datasets.insert((stored.catalog.epoch, id), stored);
                PfsOutcome::Published(id)
            }
            PfsTask::ReadCatalog(dataset) => match self.datasets.get(&(dataset.epoch, dataset.id)) {
                Some(stored) if stored.unreadable => {
                    self.to_mark.insert((dataset.epoch, dataset.id));
                    failed(PfsTask::ReadCatalog(dataset), PfsCause::Damaged, "bad CRC")
                }
                Some(stored) => PfsOutcome::Catalog(dataset, Box::new(stored.catalog.clone())),
                None => failed(PfsTask::ReadCatalog(dataset), PfsCause::Unavailable, "not there"),
            },
            PfsTask::PutLoose(set) => {
                let age = set.age;
                assert!(
                    set.versions.iter().all(|version| version.entry.is_whole()),
                    "a set without its bytes"
                );
                if self.loose.get(&age).is_none_or(|known| known.as_of <= set.as_of) {
                    self.loose.insert(age, *set);
                }
                PfsOutcome::LoosePut(age)
            }
            PfsTask::ReadLoose(age) => PfsOutcome::Loose(age, self.loose.get(&age).cloned().map(Box::new)),
            PfsTask::MarkFailed(dataset) => {
                if let Some(stored) = self.datasets.get_mut(&(dataset.epoch, dataset.id)) {
                    assert!(stored.bad || stored.unreadable, "a sound dataset is marked FAILED");
                    self.marked += u64::from(stored.unreadable);
                    stored.failed = true;
                }
                PfsOutcome::Marked(dataset.id)
            }
            PfsTask::Halt { .. } => PfsOutcome::Halt(Box::default()),
            PfsTask::Post { .. } => PfsOutcome::Posted,
        }
    }
}

pub(crate) fn failed(task: PfsTask, cause: PfsCause, reason: &str) -> PfsOutcome {
    PfsOutcome::Failed(task, PfsFailure { cause, reason: reason.into() })
}

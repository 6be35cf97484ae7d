//! Datasets that have left the caches, for the status: those that were due for the PFS and are not
//! on it, and the newest that is. Not on storage.

use crate::ids::{DatasetId, Epoch};
use crate::status::{Elsewhere, Unsaved};

use super::state::{Dataset, Table};

/// Losses that are remembered: the newest.
const LOSSES_MAX: usize = 16;

#[derive(Debug, Default)]
pub(super) struct Losses {
    lost: Vec<Unsaved>,
    /// The newest dataset that this worker has seen on the PFS.
    newest_saved: Option<DatasetId>,
    /// The newest that has left the caches and is on the PFS.
    on_pfs: Option<(Epoch, Elsewhere)>,
}

impl Losses {
    /// Dataset `id` of `table` is about to leave the caches. A loss is one whose flush failed,
    /// unless a newer one is on the PFS: a restart would want that.
    pub(super) fn leaves(&mut self, id: DatasetId, table: &Table) {
        let Some(dataset) = table.datasets.get(&id) else { return };
        self.stays_on_pfs(dataset);
        let Some(failure) = dataset.told.flush_failed.as_ref().filter(|_| !dataset.flushed) else { return };
        let saved = table.datasets.values().filter(|other| other.flushed).map(|other| other.id).max();
        if saved.max(self.newest_saved) > Some(id) {
            return;
        }
        self.lost.retain(|lost| lost.id != id.0);
        self.lost.push(loss(dataset, failure.reason.clone()));
        let more = self.lost.len().saturating_sub(LOSSES_MAX);
        self.lost.drain(..more);
    }

    /// A program removes the dataset: what is on the PFS stays there, and a restart presents it.
    pub(super) fn stays_on_pfs(&mut self, dataset: &Dataset) {
        if dataset.flushed && !dataset.life.is_hidden() {
            let left = Elsewhere { id: dataset.id.0, name: dataset.shown_name() };
            let newer = |known: &(Epoch, Elsewhere)| (known.0, known.1.id) > (dataset.epoch, left.id);
            self.on_pfs = self.on_pfs.take().filter(newer).or(Some((dataset.epoch, left)));
        }
    }

    /// Dataset `id` is on the PFS.
    pub(super) fn saved(&mut self, id: DatasetId) {
        self.newest_saved = self.newest_saved.max(Some(id));
        self.lost.retain(|lost| lost.id > id.0);
    }

    /// Another prefix is the job's now: what was on the PFS is not there.
    pub(super) fn elsewhere(&mut self) {
        self.newest_saved = None;
        self.on_pfs = None;
    }

    /// Where restarts go on from none that is older than `floor`.
    pub(super) fn on_pfs(&self, floor: Epoch) -> Option<Elsewhere> {
        let known = self.on_pfs.as_ref().filter(|(epoch, _)| *epoch >= floor);
        known.map(|(_, elsewhere)| elsewhere.clone())
    }

    pub(super) fn list(&self) -> Vec<Unsaved> {
        self.lost.clone()
    }
}

fn loss(dataset: &Dataset, reason: String) -> Unsaved {
    Unsaved { id: dataset.id.0, name: dataset.shown_name(), bytes: dataset.bytes(), reason }
}

//! Datasets that were due for the PFS and left the caches before they were on it, for the status.
//! Not on storage.

use crate::ids::DatasetId;
use crate::status::Unsaved;

use super::state::{Dataset, Table};

/// Losses that are remembered: the newest.
const LOSSES_MAX: usize = 16;

#[derive(Debug, Default)]
pub(super) struct Losses {
    lost: Vec<Unsaved>,
    /// The newest dataset that this worker has seen on the PFS.
    newest_saved: Option<DatasetId>,
}

impl Losses {
    /// Dataset `id` of `table` is about to leave the caches. A loss is one whose flush failed,
    /// unless a newer one is on the PFS: a restart would want that.
    pub(super) fn leaves(&mut self, id: DatasetId, table: &Table) {
        let Some(dataset) = table.datasets.get(&id).filter(|dataset| !dataset.flushed) else { return };
        let Some(failure) = &dataset.flush_failed else { return };
        let saved = table.datasets.values().filter(|other| other.flushed).map(|other| other.id).max();
        if saved.max(self.newest_saved) > Some(id) {
            return;
        }
        self.lost.retain(|lost| lost.id != id.0);
        self.lost.push(loss(dataset, failure.reason.clone()));
        let more = self.lost.len().saturating_sub(LOSSES_MAX);
        self.lost.drain(..more);
    }

    /// Dataset `id` is on the PFS.
    pub(super) fn saved(&mut self, id: DatasetId) {
        self.newest_saved = self.newest_saved.max(Some(id));
        self.lost.retain(|lost| lost.id > id.0);
    }

    /// Another prefix is the job's now: what was on the PFS is not there.
    pub(super) fn elsewhere(&mut self) {
        self.newest_saved = None;
    }

    pub(super) fn list(&self) -> Vec<Unsaved> {
        self.lost.clone()
    }
}

fn loss(dataset: &Dataset, reason: String) -> Unsaved {
    Unsaved { id: dataset.id.0, name: dataset.shown_name(), bytes: dataset.bytes(), reason }
}

//! Files that a seal by a data-file marker left out because that marker came too early.
//!
//! A data-file marker (`SCRFS_MARKER`) is one program's last write. Programs on other nodes may
//! still be writing then, and no seal can know that. Their writes change the sealed dataset, so
//! they are in its next generation, which nothing protects. A warning names these files.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::dataset::EntryKind;
use crate::ids::DatasetId;
use crate::path::RelPath;

use super::node::Node;
use super::state::State;

/// Microseconds after a seal in which a change on another node means that the marker came too
/// early.
const LATE_US: u64 = 10_000_000;
/// Files of one dataset that are named.
const NAMED_MAX: u32 = 16;

/// The dataset whose late files were named last, and how many they were.
#[derive(Default)]
pub(super) struct Late {
    dataset: Option<DatasetId>,
    named: u32,
}

impl Late {
    /// True if another file of `dataset` is to be named.
    fn count(&mut self, dataset: DatasetId) -> bool {
        if self.dataset != Some(dataset) {
            *self = Self { dataset: Some(dataset), named: 0 };
        }
        self.named += 1;
        self.named <= NAMED_MAX
    }
}

impl State {
    /// The data-file marker by which another node sealed dataset `id` less than [`LATE_US`] before
    /// `now_us` (microseconds since 1970).
    fn early_marker(&self, id: DatasetId, now_us: u64) -> Option<&[u8]> {
        let markers = &self.settings.as_ref()?.sealing.markers;
        let dataset = self.table.datasets.get(&id)?;
        let index = dataset.life.catalog()?;
        if now_us.saturating_sub(index.catalog().created_us) >= LATE_US {
            return None;
        }
        let elsewhere = |marker: &&Vec<u8>| {
            let entry = RelPath::new(marker.as_slice()).ok().and_then(|path| index.entry(&path));
            let kind = entry.map(|entry| &entry.kind);
            matches!(kind, Some(EntryKind::File(copy)) if !dataset.parts.contains_key(&copy.member))
        };
        markers.iter().find(elsewhere).map(Vec::as_slice)
    }
}

impl Node {
    /// A program here is about to make or change the file `path` in the next generation of dataset
    /// `id`.
    pub(super) fn tell_late(&self, id: DatasetId, path: &RelPath) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now_us = u64::try_from(now.as_micros()).unwrap_or(u64::MAX);
        let mut state = self.state.lock();
        let Some(marker) = state.early_marker(id, now_us) else { return };
        let marker = String::from_utf8_lossy(marker).into_owned();
        if !state.late.count(id) {
            return;
        }
        drop(state);
        let text = format!(
            "{path}: written here right after another node wrote the marker {marker}: what was sealed is without this \
             change, and nothing protects it; let all programs finish before one writes {marker}"
        );
        self.events.warning(Some(id), &text);
    }
}

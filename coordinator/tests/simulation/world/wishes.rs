//! An operator asks for flushes that `SCR_FLUSH` does not ask for.

use scrfs::control::Event;
use scrfs::ids::DatasetId;

use super::World;

/// Microseconds in which a flush that failed once or twice is tried again.
const RETRIED_WITHIN: u64 = 120_000_000;

impl World {
    /// Dataset `id` was sealed: every other one is asked for, on some node. Not those whose flushes
    /// fail every time: they would be tried without end.
    pub(super) fn wish(&mut self, id: DatasetId) {
        if id.0.is_multiple_of(2) || self.prefix.cursed(id) {
            return;
        }
        self.wished.insert(id);
        self.wishes_made += 1;
        let node = usize::try_from(id.0).unwrap_or(0) % self.up.len();
        self.up[node].push_back(Event::FlushWanted(id));
    }

    /// A flush of it has failed, and is tried again in a while.
    pub(super) fn awaits_retry(&self, id: DatasetId) -> bool {
        self.flush_failed.get(&id).is_some_and(|failed| failed + RETRIED_WITHIN > self.now)
    }

    /// Nothing is on its way: what was asked for is on the PFS, or has gone.
    pub(super) fn check_wishes(&self) {
        for (id, dataset) in self.nodes[0].datasets.iter().filter(|(_, dataset)| dataset.listed) {
            let decayed = self.decayed.contains(&(dataset.epoch, *id));
            let done = dataset.flushed || decayed || dataset.failed || self.awaits_retry(*id);
            assert!(done || !self.wished.contains(id), "{id} was asked for and is not flushed");
        }
    }
}

//! Which datasets programs have removed: a node that was away then may come back and have them
//! still, and no restart is to present them.

use std::collections::BTreeMap;

use crate::control::Removed;
use crate::ids::{DatasetId, Epoch};

/// How many names are remembered: those whose datasets are the newest. A node that was away for
/// longer brings back what is older than all of these.
pub(super) const NAMES_MAX: usize = 256;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Removal {
    newest: (Epoch, DatasetId),
    during: Epoch,
}

/// See the module.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Removals {
    /// Of each name the newest generation that was there when its directory was removed.
    newest: BTreeMap<Vec<u8>, Removal>,
}

impl Removals {
    /// A program has removed this dataset in epoch `during`, and with it every generation before.
    pub(super) fn add(&mut self, name: &[u8], newest: (Epoch, DatasetId), during: Epoch) {
        let removal = self.newest.entry(name.to_vec()).or_insert(Removal { newest, during });
        if newest >= removal.newest {
            *removal = Removal { newest, during };
        }
        while self.newest.len() > NAMES_MAX {
            let oldest = self.newest.iter().min_by_key(|(_, removal)| removal.newest);
            oldest.map(|(name, _)| name.clone()).and_then(|name| self.newest.remove(&name));
        }
    }

    /// A dataset that programs had removed has come back (a restart fetched it) and is complete
    /// here: it counts as removed no more.
    pub(super) fn is_back(&mut self, name: &[u8], epoch: Epoch, id: DatasetId) {
        if self.newest.get(name).is_some_and(|removal| (epoch, id) <= removal.newest) {
            self.newest.remove(name);
        }
    }

    /// As coordinators are told.
    pub(super) fn all(&self) -> Vec<Removed> {
        let removed = |(name, removal): (&Vec<u8>, &Removal)| Removed {
            name: name.clone(),
            epoch: removal.newest.0,
            id: removal.newest.1,
            during: removal.during,
        };
        self.newest.iter().map(removed).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn removals(all: &[(&str, u64, u64)]) -> Removals {
        let mut removals = Removals::default();
        for (name, epoch, id) in all {
            removals.add(name.as_bytes(), (Epoch(*epoch), DatasetId(*id)), Epoch(5));
        }
        removals
    }

    #[test]
    fn the_newest_of_a_name_counts() {
        let mut two = removals(&[("a", 1, 7), ("b", 1, 1), ("a", 2, 3), ("a", 1, 9)]);
        assert_eq!(two, removals(&[("a", 2, 3), ("b", 1, 1)]));
        two.is_back(b"a", Epoch(2), DatasetId(4));
        assert_eq!(two.all().len(), 2, "a newer one says nothing of what was removed");
        two.is_back(b"a", Epoch(2), DatasetId(3));
        assert_eq!(two, removals(&[("b", 1, 1)]));
    }

    #[test]
    fn what_is_oldest_is_forgotten() {
        let mut many = Removals::default();
        for id in 0..NAMES_MAX as u64 + 3 {
            many.add(format!("ck.{id}").as_bytes(), (Epoch(1), DatasetId(id)), Epoch(1));
        }
        let left = many.all();
        assert_eq!(left.len(), NAMES_MAX);
        assert!(left.iter().all(|removed| removed.id >= DatasetId(3)));
    }
}

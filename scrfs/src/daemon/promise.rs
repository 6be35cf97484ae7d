//! When all nodes are frozen: markers that wait for no more are answered, and what is to be sealed
//! stays as it is, whatever dies, until it is sealed or given up.
//!
//! Fault point: `seal.promised`.

use crate::faults;
use crate::ids::DatasetId;

use super::node::Node;

/// What dropping a seal means for the markers that asked for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Settling {
    /// The seal failed, and they with it.
    No,
    /// They ask again; what was answered when all were frozen stays frozen until then.
    Kept,
    /// Those that wait ask again, if anybody is there to ask; all is thawed.
    Given,
}

impl Node {
    /// All nodes are frozen: markers that wait for no more than this are answered. Each node had
    /// recorded that it keeps the dataset as it is, whatever dies, before it said that it is
    /// frozen. In the records' thread.
    pub(super) fn all_frozen(&self, id: DatasetId) {
        let (name, background) = {
            let state = self.state.lock();
            let known = state.table.datasets.get(&id).map(|dataset| dataset.name.clone());
            let Some(name) = known.or_else(|| state.seals.get(&id).cloned()) else { return };
            (name, state.settings.as_ref().is_some_and(|settings| settings.sealing.background))
        };
        if let Err(error) = faults::hit("seal.promised") {
            self.events.error(Some(id), &error.to_string());
        }
        let waiters = self.state.lock().waiting.take_unhurried(&name, background);
        if !waiters.is_empty() {
            let shown = String::from_utf8_lossy(&name).into_owned();
            self.events.info(Some(id), &format!("{shown}: all nodes are frozen, its marker's close returns"));
        }
        for waiter in waiters {
            waiter.answer(0);
        }
    }

    /// Datasets that were kept frozen for a seal, and will not be sealed. In the records' thread.
    pub(super) fn give_up_background(&self, names: &[Vec<u8>], reason: &str) {
        let names: Vec<Vec<u8>> = {
            let state = self.state.lock();
            names.iter().filter(|name| state.table.background.contains_key(*name)).cloned().collect()
        };
        if names.is_empty() {
            return;
        }
        let forgotten = self.disk.lock().change(&self.state, |table| {
            table.background.retain(|name, _| !names.contains(name));
        });
        if let Err(error) = forgotten {
            self.events.error(None, &format!("seals that failed cannot be forgotten: {error}"));
        }
        for name in names {
            let shown = String::from_utf8_lossy(&name).into_owned();
            self.events.error(None, &format!("{shown}: is thawed, and its seal is given up: {reason}"));
            self.tree.thaw(&name);
        }
    }
}

//! How markers end. When all nodes are frozen, those markers are answered that wait for the freeze
//! only (`SCRFS_SEAL=background`, and markers that are set by a rename or a link). Such a seal is
//! *owed*: the dataset stays frozen, whatever dies, until it is sealed or given up.
//!
//! Fault point: `seal.promised`.

use crate::control::MarkerOutcome;
use crate::faults;
use crate::ids::{DatasetId, RequestId};

use super::core::desk::{Effect, Input};
use super::node::Node;

/// What dropping a seal means for the markers that asked for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Settling {
    /// Programs are served: the seal failed, and its markers with it.
    No,
    /// An attach settles: its markers are sent again after `Serve`, and until then the dataset
    /// stays frozen, as some of them may have been answered when all nodes were frozen.
    Kept,
    /// A restart settles, or no successor came: the dataset is thawed. Markers that still wait are
    /// sent again, if a lead comes.
    Given,
}

impl Node {
    /// All nodes are frozen: markers that wait for the freeze only are answered. Each node had
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
        let answers =
            self.desk_step(&mut self.state.lock(), Input::Frozen { name: name.clone(), id, background });
        if !answers.is_empty() {
            let shown = String::from_utf8_lossy(&name).into_owned();
            self.events.info(Some(id), &format!("{shown}: all nodes are frozen, its marker's close returns"));
        }
        self.carry_out_effects(answers);
    }

    /// The lead has decided on markers of `name` that were set here. A sealed marker is answered in
    /// the records' thread, after the commit. An error is answered at once in the link's thread
    /// (`scrfs-control`): the records' thread may hang with a store.
    pub(super) fn markers_end(
        &self,
        link: u64,
        name: Vec<u8>,
        requests: Vec<RequestId>,
        outcome: MarkerOutcome,
    ) {
        let shown = String::from_utf8_lossy(&name).into_owned();
        let (errno, reason) = match outcome {
            MarkerOutcome::Sealed(id) => {
                return self.in_records(link, move |node| node.markers_sealed(id, &name, requests));
            }
            MarkerOutcome::NotSealed(_) => {
                // Dropping the seal gave up what was owed.
                self.end_markers(requests, libc::EIO);
                return;
            }
            MarkerOutcome::Refused(reason) => {
                self.events.error(None, &format!("{shown}: cannot be sealed: {reason}"));
                (libc::EIO, reason)
            }
            MarkerOutcome::Waived => {
                let reason = "SCR_ENABLE=0".to_owned();
                self.events.warning(None, &format!("{shown}: not protected: {reason}"));
                (0, reason)
            }
        };
        if self.end_markers(requests, errno) {
            self.in_records(link, move |node| {
                // One in doubt may be complete on another node: what is in it stays as it is.
                if !node.state.lock().is_in_doubt(&name) {
                    node.give_up_background(&[name], &reason);
                }
            });
        }
    }

    /// Answers programs; true when a seal that was owed has ended with their markers.
    fn end_markers(&self, requests: Vec<RequestId>, errno: i32) -> bool {
        let effects = self.desk_step(&mut self.state.lock(), Input::Markers(requests, errno));
        let owed = effects.iter().any(|effect| matches!(effect, Effect::OwedEnded));
        self.carry_out_effects(effects);
        owed
    }

    fn markers_sealed(&self, id: DatasetId, name: &[u8], requests: Vec<RequestId>) {
        let owed = self.end_markers(requests, 0);
        // A seal that was owed was asked for again, and no node had anything left to seal.
        if owed && self.state.lock().table.background.contains_key(name) {
            let forgotten = self.disk.lock().change(&self.state, |table| {
                table.background.remove(name);
            });
            if let Err(error) = forgotten {
                self.events.error(Some(id), &format!("that it is sealed cannot be recorded: {error}"));
            }
            self.tree.thaw(name);
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

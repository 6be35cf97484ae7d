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
use super::state::{State, Table};

impl Node {
    /// The coordinator is gone, another one has come, or the daemon ends.
    pub(super) fn give_up_seals(&self, state: &mut State) {
        state.seals.lead_gone();
        self.freezes.end_given_up(&state.seals);
    }

    /// All nodes are frozen: markers that wait for the freeze only are answered. Each node had
    /// recorded that it keeps the dataset as it is, whatever dies, before it said that it is
    /// frozen. In the records' thread.
    pub(super) fn all_frozen(&self, id: DatasetId) {
        let (name, background) = {
            let state = self.state.lock();
            let known = state.table.datasets.get(&id).map(|dataset| dataset.name.as_slice());
            let Some(name) = known.or_else(|| state.seals.name(id)) else { return };
            (name.to_vec(), state.settings.as_ref().is_some_and(|settings| settings.sealing.background))
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
                let stays_frozen = node.state.lock().stays_frozen(&name);
                if !stays_frozen {
                    node.give_up_owed(&[name], &reason);
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
        if owed && self.state.lock().table.owed.has(name) {
            let forgotten = self.disk.lock().change(&self.state, |table| table.owed.ended(name));
            if let Err(error) = forgotten {
                self.events.error(Some(id), &format!("that it is sealed cannot be recorded: {error}"));
            }
            self.tree.thaw(name);
        }
    }

    /// Datasets that were kept frozen for a seal, and will not be sealed. In the records' thread.
    pub(super) fn give_up_owed(&self, names: &[Vec<u8>], reason: &str) {
        let names: Vec<Vec<u8>> = {
            let state = self.state.lock();
            names.iter().filter(|name| state.table.owed.has(name)).cloned().collect()
        };
        if names.is_empty() {
            return;
        }
        let forget = |table: &mut Table| names.iter().for_each(|name| table.owed.ended(name));
        let forgotten = self.disk.lock().change(&self.state, forget);
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

//! Room for what programs write next (DESIGN 5).
//!
//! With passthrough the kernel itself tells a program that the cache is full, at once, and the daemon hears nothing of it.
//! So room is looked at before: when a dataset begins, and every second. If it is short, the lead is told, which lets the
//! oldest dataset go that may go. After each removal it is looked at again.

use std::time::{Duration, Instant};

use parking_lot::MutexGuard;

use crate::control::{Event, HeldState};
use crate::dataset::{Catalog, Scheme};
use crate::ids::{DatasetId, Member};

use super::node::Node;
use super::state::State;

/// Time between two looks while programs may write; and where there is nothing to look at.
const LOOK: Duration = Duration::from_secs(1);
const NO_LOOK: Duration = Duration::from_hours(1);
/// While a dataset is being written, this part of its whole is kept free.
const RESERVE: u64 = 8;

/// When room is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Moment {
    /// A dataset begins, or the next generation of one: all of it is to come.
    Begin,
    /// Some of it may be there already. Nothing to do where nothing is being written.
    Meanwhile,
    /// A dataset has gone: was that enough?
    Gone,
}

/// What the lead was told.
#[derive(Debug, Default)]
pub(super) struct Shortage {
    /// Bytes that were asked for, until there is as much; 0 if none.
    wanted: u64,
    /// For a dataset that began.
    begins: bool,
    /// What might have gone then, and was it on the PFS: as long as that is the same, asking again is of no use.
    asked_with: Vec<(DatasetId, bool)>,
}

/// Bytes that `host` has of the dataset: its members' files, and what protects their sets.
fn bytes_on(host: &str, catalog: &Catalog) -> u64 {
    let layout = &catalog.layout;
    let bytes = |member: &Member| layout.members.get(member.0 as usize).map_or(0, |place| place.bytes);
    let here =
        |member: &Member| layout.members.get(member.0 as usize).is_some_and(|place| place.host == host);
    let mut sum: u64 = 0;
    for set in &layout.sets {
        for (at, member) in set.iter().enumerate().filter(|(_, member)| here(member)) {
            let others = set.len() as u64 - 1;
            let protection = match layout.scheme {
                Scheme::Xor if others > 0 => set.iter().map(bytes).max().unwrap_or(0).div_ceil(others),
                Scheme::Partner if others > 0 => bytes(&set[(at + set.len() - 1) % set.len()]),
                _ => 0,
            };
            sum = sum.saturating_add(bytes(member)).saturating_add(protection);
        }
    }
    sum
}

impl State {
    /// Complete datasets in the cache, presented or not.
    fn removable(&self) -> Vec<(DatasetId, bool)> {
        let complete = self.present().filter(|dataset| dataset.state() == HeldState::Complete);
        complete.map(|dataset| (dataset.id, dataset.flushed)).collect()
    }

    /// Is there anything to look at?
    pub(super) fn may_be_short(&self) -> bool {
        self.served() && self.present().any(|dataset| dataset.state() == HeldState::Complete)
    }
}

impl Node {
    /// For a thread that waits for other things with `state`: looks if it is time, and says when it will be next.
    pub(super) fn look_now_and_then(
        &self,
        state: &mut MutexGuard<'_, State>,
        looked: &mut Instant,
    ) -> Duration {
        if !state.may_be_short() {
            return NO_LOOK;
        }
        if looked.elapsed() >= LOOK {
            *looked = Instant::now();
            MutexGuard::unlocked(state, || self.look_at_room(Moment::Meanwhile));
        }
        LOOK
    }

    /// Tells the lead when room is short.
    pub(super) fn look_at_room(&self, moment: Moment) {
        if moment == Moment::Meanwhile && self.journal.lock().is_empty() {
            return;
        }
        let Ok(room) = self.cache.room() else { return };
        let free = room.f_bavail.saturating_mul(room.f_frsize);
        let mut state = self.state.lock();
        if !state.may_be_short() {
            return;
        }
        let newest = state.current_now().and_then(|id| state.table.datasets[&id].catalog.clone());
        let whole = newest.map_or(0, |index| bytes_on(&self.config.host, index.catalog()));
        let (wanted, begins) = match moment {
            Moment::Begin => (whole, true),
            Moment::Meanwhile => (whole / RESERVE, false),
            Moment::Gone => (state.shortage.wanted, state.shortage.begins),
        };
        if free >= wanted {
            // The smaller reserve says nothing of what a beginning dataset has asked for.
            if moment != Moment::Meanwhile {
                state.shortage = Shortage::default();
            }
            return;
        }
        let removable = state.removable();
        if moment == Moment::Meanwhile && state.shortage.asked_with == removable {
            return;
        }
        state.shortage = Shortage { wanted, begins, asked_with: removable };
        state.send_request(Event::RoomShort { free, wanted, begins });
        drop(state);
        self.events.info(None, &format!("room is short: {free} bytes are free, {wanted} are wanted"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::{Layout, MemberPlace};
    use crate::ids::Epoch;

    fn catalog(scheme: Scheme, bytes: &[u64]) -> Catalog {
        let place = |(at, &bytes): (usize, &u64)| MemberPlace { host: format!("n{at}"), files: 1, bytes };
        let members: Vec<MemberPlace> = bytes.iter().enumerate().map(place).collect();
        let sets = vec![(0..).map(Member).take(bytes.len()).collect()];
        let layout = Layout { scheme, members, sets };
        Catalog {
            id: DatasetId(1),
            epoch: Epoch(1),
            revision: 0,
            name: b"a".to_vec(),
            created_us: 0,
            user: String::new(),
            job_id: String::new(),
            entries: Vec::new(),
            layout,
        }
    }

    #[test]
    fn a_node_has_its_files_and_what_protects_others() {
        assert_eq!(bytes_on("n1", &catalog(Scheme::Single, &[10, 20, 30])), 20);
        assert_eq!(bytes_on("n1", &catalog(Scheme::Partner, &[10, 20, 30])), 30);
        assert_eq!(bytes_on("n0", &catalog(Scheme::Partner, &[10, 20, 30])), 40);
        assert_eq!(bytes_on("n1", &catalog(Scheme::Xor, &[10, 20, 31])), 36);
        assert_eq!(bytes_on("n0", &catalog(Scheme::Xor, &[10])), 10);
        assert_eq!(bytes_on("elsewhere", &catalog(Scheme::Xor, &[10, 20])), 0);
    }
}

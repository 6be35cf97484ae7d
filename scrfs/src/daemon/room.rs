//! Room for what programs write next (`scrfs/docs/protocol.md`, Room).
//!
//! With passthrough the kernel itself tells a program that the cache is full, at once, and the
//! daemon hears nothing of it. So room is looked at before: when a dataset begins, and every
//! second. If it is short, the lead is told, which lets the oldest dataset go that may go. After
//! each removal it is looked at again.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::fs::StatVfs;

use crate::control::{Event, HeldState};
use crate::ids::DatasetId;
use crate::lock::MutexGuard;
use crate::path::RelPath;
use crate::stores::PRIMARY;

use super::node::Node;
use super::state::State;
use crate::errno::Errno;

/// Time between two looks while programs may write; and where there is nothing to look at.
pub(super) const LOOK: Duration = Duration::from_secs(1);
const NO_LOOK: Duration = Duration::from_hours(1);
/// For so long after the lead was asked for room, files may be made though the bound is reached.
const PATIENCE: Duration = Duration::from_secs(2);
/// While a dataset is being written, this part of its whole is kept free.
const RESERVE: u64 = 8;

/// Inodes that a dataset takes besides those of its files.
const INODES_MORE: u64 = 8;

/// Bytes that a file can take. Where inodes lack it cannot be made, whatever bytes are free; what
/// leaves the cache gives both.
pub(super) fn free_for_file(room: &StatVfs) -> u64 {
    if lacks_inodes(room, 0) { 0 } else { bytes_free(room) }
}

pub(super) fn bytes_free(room: &StatVfs) -> u64 {
    room.f_bavail.saturating_mul(room.f_frsize)
}

/// For so many files; some file systems make inodes when they are needed.
fn lacks_inodes(room: &StatVfs, files: u64) -> bool {
    room.f_files > 0 && room.f_favail < files.saturating_add(INODES_MORE)
}

/// When room is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Moment {
    /// A dataset begins in this store, or the next generation of one: all of it is to come.
    Begin(Option<usize>),
    /// Some of it may be there already. Nothing to do where nothing is being written.
    Meanwhile,
    /// A dataset has gone: was that enough?
    Gone,
    /// A program has to do without. As meanwhile, also if it is the first file.
    Refused,
}

/// What the lead was told.
#[derive(Debug, Default)]
pub(super) struct Shortage {
    /// Bytes that were asked for, until there is as much; 0 if none.
    wanted: u64,
    /// For a dataset that began.
    begins: bool,
    /// That dataset's name.
    name: Vec<u8>,
    /// Where.
    store: usize,
    /// The datasets that could have gone when the lead was asked, and whether each was on the PFS.
    /// While this is unchanged there is no use in asking again.
    asked_with: Vec<(DatasetId, bool)>,
    asked_at: Option<Instant>,
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
    /// For a thread that waits for other things with `state`: looks if it is time, and says when it
    /// will be next.
    pub(super) fn look_now_and_then(
        &self,
        state: &mut MutexGuard<'_, State>,
        looked: &mut Instant,
    ) -> Duration {
        let bounded = self.bound.limit() > 0;
        let restless = self.kept_back.is_restless();
        let owes = self.owes.load(Ordering::Relaxed);
        if !bounded && !restless && !owes && !state.may_be_short() && !self.cache.has_recycled() {
            return NO_LOOK;
        }
        if self.now().duration_since(*looked) >= LOOK {
            *looked = self.now();
            if owes {
                let me = self.me.clone();
                self.lanes.local.run(move || me.upgrade().iter().for_each(|node| node.make_owed()));
            }
            if restless {
                MutexGuard::unlocked(state, || self.look_at_reserve());
            }
            if bounded {
                self.count_in_background();
            } else {
                MutexGuard::unlocked(state, || self.look_at_room(Moment::Meanwhile));
            }
        }
        LOOK
    }

    /// A name has no entry in the filemap's journal. That there is no room its program is told, and
    /// nobody else.
    pub(super) fn not_entered(&self, path: &RelPath, error: &std::io::Error) -> Errno {
        let errno = error.raw_os_error().unwrap_or(libc::EIO);
        if !matches!(errno, libc::ENOSPC | libc::EDQUOT) {
            self.events.error(None, &format!("{path}: the filemap's journal cannot be written: {error}"));
        }
        Errno(errno)
    }

    /// Asks the lead for room where it has not been asked in vain: some may come.
    pub(super) fn may_get_room(&self) -> bool {
        if self.cache.give_pages_back() {
            return true;
        }
        let asked = {
            let state = self.state.lock();
            let asked = state.shortage.asked_at.filter(|_| state.shortage.asked_with == state.removable());
            match asked {
                _ if !state.may_be_short() => return false,
                Some(asked) => asked,
                None => {
                    drop(state);
                    self.look_at_room(Moment::Refused);
                    return true;
                }
            }
        };
        self.now().duration_since(asked) < PATIENCE
    }

    /// The store whose room counts: where something begins, or was short of room; else of those
    /// that are written to the one with least, or the one that is next.
    pub(super) fn store_in_need(&self, moment: Moment) -> usize {
        if self.cache.is_one() {
            return PRIMARY;
        }
        match moment {
            Moment::Begin(Some(store)) => return store,
            Moment::Gone => return self.state.lock().shortage.store,
            _ => {}
        }
        let names = self.journal.lock().names();
        let stores: BTreeSet<usize> =
            names.iter().filter_map(|name| self.cache.tree_store(name).ok().flatten()).collect();
        let free = |store: &usize| self.cache.room_of(*store).map_or(0, |room| free_for_file(&room));
        stores.into_iter().min_by_key(free).unwrap_or_else(|| self.cache.stores.next())
    }

    /// The datasets whose removal gives room in a store; `None` when all do.
    pub(super) fn help_in(&self, store: usize, removable: &[(DatasetId, bool)]) -> Option<Vec<DatasetId>> {
        if self.cache.is_one() {
            return None;
        }
        let there = |id: &DatasetId| self.cache.store_of(*id).is_ok_and(|at| at == store);
        Some(removable.iter().map(|(id, _)| *id).filter(there).collect())
    }

    /// Dataset `name` begins, or its next generation does: all of it is to come.
    pub(super) fn begins(&self, name: &[u8]) {
        self.look_at_room(Moment::Begin(self.cache.tree_store(name).ok().flatten()));
        let mut state = self.state.lock();
        if state.shortage.begins {
            state.shortage.name = name.to_vec();
        }
    }

    /// Dataset `name` is sealed: nothing of it is to come any more.
    pub(super) fn no_more_comes(&self, name: &[u8]) {
        let mut state = self.state.lock();
        if state.shortage.begins && state.shortage.name == name {
            state.shortage = Shortage::default();
        }
    }

    /// Tells the lead when room is short.
    pub(super) fn look_at_room(&self, moment: Moment) {
        self.look_at_recycled();
        if moment == Moment::Meanwhile && self.journal.lock().is_empty() {
            return;
        }
        let store = self.store_in_need(moment);
        let Ok(room) = self.cache.room_of(store) else { return };
        let mut state = self.state.lock();
        if !state.may_be_short() {
            return;
        }
        let newest =
            state.current_now().and_then(|id| state.table.datasets.get(&id)?.life.catalog().cloned());
        let (whole, files) = newest.map_or((0, 0), |index| {
            let (layout, host) = (&index.catalog().layout, &self.config.host);
            (layout.bytes_on(host), layout.files_on(host))
        });
        let (wanted, begins) = match moment {
            Moment::Begin(_) => (whole, true),
            // Where the cache has reached its bound any room is better than none.
            Moment::Meanwhile | Moment::Refused => (whole / RESERVE, false),
            Moment::Gone => (state.shortage.wanted, state.shortage.begins),
        };
        let lacks_inodes = lacks_inodes(&room, if begins { files } else { files / RESERVE });
        let free_of = |room: &StatVfs| if lacks_inodes { 0 } else { bytes_free(room) };
        let (there, free) = (free_of(&room), free_of(&self.narrowed(room)));
        let wanted = if lacks_inodes || !begins { wanted.max(1) } else { wanted };
        if free >= wanted {
            // The smaller reserve says nothing of what a beginning dataset has asked for.
            if matches!(moment, Moment::Begin(_) | Moment::Gone) {
                state.shortage = Shortage::default();
            }
            return;
        }
        let removable = state.removable();
        if matches!(moment, Moment::Meanwhile | Moment::Refused) && state.shortage.asked_with == removable {
            return;
        }
        // The bound is one for all stores.
        let helps = if there < wanted { self.help_in(store, &removable) } else { None };
        // Who asks in vain again gives programs no more time than the first did.
        let again = state.shortage.asked_with == removable && (state.shortage.begins || !begins);
        let asked_at = state.shortage.asked_at.filter(|_| again).or_else(|| Some(self.now()));
        let name = std::mem::take(&mut state.shortage.name);
        state.shortage = Shortage { wanted, begins, name, store, asked_with: removable, asked_at };
        state.send_request(Event::RoomShort { free, wanted, begins, helps });
        drop(state);
        // What leaves for this is to leave whole.
        self.cache.give_pages_back();
        let inodes = if lacks_inodes { ", for want of inodes" } else { "" };
        self.events.info(None, &format!("room is short: {free} bytes are free{inodes}, {wanted} are wanted"));
    }
}

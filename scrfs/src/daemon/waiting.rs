//! The table of waiting programs, and what the lead is asked for them.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use crate::control::loose::LooseEntry;
use crate::control::{DirOp, Event, SealedFile};
use crate::ids::{DatasetId, RequestId};

use crate::boundary::{Completion, Marking};
use crate::caller::Caller;
use crate::errno::Errno;

/// A directory operation while a coordinator is attached.
pub(super) const DIRECTORY_MAX: Duration = Duration::from_mins(2);
/// A file that is brought here while a coordinator is attached: it may be large, and come from the
/// PFS.
const FETCH_MAX: Duration = Duration::from_mins(30);
/// A marker until its seal begins, beyond the seal's own time-out; other seals may run before it.
const MARKER_START_MAX: Duration = Duration::from_mins(3);

/// What is waited for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Wanted {
    Directory(DirOp),
    Marker(Vec<u8>),
    Fetch(SealedFile),
    Loose(Vec<LooseEntry>),
}

/// One waiting program.
pub(super) struct Waiter {
    pub(super) request: RequestId,
    pub(super) wanted: Wanted,
    /// Of a marker: the sealed dataset that was changed here before it was set, until the lead
    /// knows that. Its own seal is not what is waited for.
    pub(super) base: Option<DatasetId>,
    /// Of a marker: how it was set.
    pub(super) marking: Marking,
    /// Of a marker: the seal that was dropped here and is being dropped elsewhere, with which it
    /// fails.
    pub(super) doom: Option<DatasetId>,
    pub(super) caller: Caller,
    pub(super) done: Completion,
    pub(super) since: Instant,
    pub(super) deadline: Instant,
}

impl Waiter {
    /// Ends the wait; 0 is success. Not to be called with a lock held.
    pub(super) fn answer(self, errno: i32) {
        (self.done)(if errno == 0 { Ok(()) } else { Err(Errno(errno)) });
    }

    /// It waits for the marker of `name`, whose outcome is open.
    fn marks(&self, name: &[u8]) -> bool {
        self.doom.is_none() && matches!(&self.wanted, Wanted::Marker(n) if n == name)
    }
}

/// All waiting programs.
#[derive(Default)]
pub(super) struct Waiting {
    pub(super) waiters: BTreeMap<RequestId, Waiter>,
    /// Files on the way and the request that asked for each; others that want the same file join
    /// it.
    pub(super) fetches: HashMap<SealedFile, RequestId>,
}

impl Waiting {
    pub(super) fn len(&self) -> usize {
        self.waiters.len()
    }

    pub(super) fn take_all(&mut self) -> Vec<Waiter> {
        self.fetches.clear();
        std::mem::take(&mut self.waiters).into_values().collect()
    }

    /// Changed pointer files, and the last request for each.
    pub(super) fn loose_names(&self) -> impl Iterator<Item = (Vec<u8>, RequestId)> {
        let loose = self.waiters.values().filter_map(|waiter| match &waiter.wanted {
            Wanted::Loose(entries) => Some(entries.iter().map(|entry| (entry.name.clone(), waiter.request))),
            _ => None,
        });
        loose.flatten()
    }

    pub(super) fn take(&mut self, request: RequestId) -> Option<Waiter> {
        self.waiters.remove(&request)
    }

    /// Takes those that want the marker of `name`, save those that ask for the generation after
    /// `sealed`.
    pub(super) fn take_markers(&mut self, name: &[u8], sealed: Option<DatasetId>) -> Vec<Waiter> {
        let later = |waiter: &Waiter| sealed.is_some() && waiter.base == sealed;
        self.take_where(|waiter| waiter.marks(name) && !later(waiter))
    }

    /// Those that want the marker of `name` fail with seal `id`.
    pub(super) fn doom_markers(&mut self, name: &[u8], id: DatasetId) {
        for waiter in self.waiters.values_mut().filter(|waiter| waiter.marks(name)) {
            waiter.doom = Some(id);
        }
    }

    /// Takes those that fail with seal `id`.
    pub(super) fn take_doomed(&mut self, id: DatasetId) -> Vec<Waiter> {
        self.take_where(|waiter| waiter.doom == Some(id))
    }

    /// Takes those that want the marker of `name` and wait only until all nodes are frozen.
    pub(super) fn take_unhurried(&mut self, name: &[u8], background: bool) -> Vec<Waiter> {
        self.take_where(|waiter| waiter.marks(name) && (background || waiter.marking.holds_directory))
    }

    /// The lead is told what was changed in `sealed` until now: markers that asked for the
    /// generation after it are answered by what comes of that.
    pub(super) fn covered(&mut self, sealed: DatasetId) {
        for waiter in self.waiters.values_mut().filter(|waiter| waiter.base == Some(sealed)) {
            waiter.base = None;
        }
    }

    /// Takes those that want the file that `request` asked for.
    pub(super) fn take_fetch(&mut self, request: RequestId) -> Vec<Waiter> {
        let file = self.fetches.iter().find(|(_, r)| **r == request).map(|(file, _)| file.clone());
        let Some(file) = file else { return Vec::new() };
        self.fetches.remove(&file);
        self.take_where(|waiter| matches!(&waiter.wanted, Wanted::Fetch(f) if *f == file))
    }

    /// Files that nobody waits for are not asked for again; a successor is asked for the others.
    pub(super) fn forget_fetches(&mut self) {
        let waiters = &self.waiters;
        let wanted = |file: &SealedFile| {
            waiters.values().any(|waiter| matches!(&waiter.wanted, Wanted::Fetch(wanted) if wanted == file))
        };
        self.fetches.retain(|file, _| wanted(file));
    }

    pub(super) fn take_where(&mut self, wanted: impl Fn(&Waiter) -> bool) -> Vec<Waiter> {
        let ids: Vec<_> =
            self.waiters.values().filter(|waiter| wanted(waiter)).map(|waiter| waiter.request).collect();
        ids.iter().filter_map(|id| self.waiters.remove(id)).collect()
    }

    /// Thread ids of those that wait for the marker of `name` here.
    pub(super) fn marker_callers(&self, name: &[u8]) -> Vec<u32> {
        let wanted = Wanted::Marker(name.to_vec());
        self.waiters
            .values()
            .filter(|waiter| waiter.wanted == wanted && waiter.caller.tid != 0)
            .map(|waiter| waiter.caller.tid)
            .collect()
    }

    pub(super) fn wants_marker(&self, name: &[u8]) -> bool {
        self.waiters.values().any(|waiter| waiter.marks(name))
    }

    /// A coordinator attached: bounds count anew.
    pub(super) fn restart_clocks(&mut self, now: Instant, seal_timeout: Duration) {
        for waiter in self.waiters.values_mut() {
            waiter.since = now;
            waiter.deadline = now + attached_bound(&waiter.wanted, seal_timeout);
        }
    }

    /// The coordinator is gone: nobody waits beyond `deadline`.
    pub(super) fn bound_all(&mut self, deadline: Instant) {
        for waiter in self.waiters.values_mut() {
            waiter.deadline = deadline;
        }
    }

    /// Some marker of `name` that waits was set by what all nodes have seen.
    pub(super) fn set_everywhere(&self, name: &[u8]) -> bool {
        self.waiters.values().any(|waiter| waiter.marking.everywhere && waiter.marks(name))
    }

    /// The events that ask the lead for what is waited for, each thing once; `background`: markers
    /// that were answered when all were frozen.
    pub(super) fn events<'a>(&mut self, background: impl Iterator<Item = &'a Vec<u8>>) -> Vec<Event> {
        // The lead that dropped their seals is gone and did not say that all had: they are tries
        // like any other.
        self.waiters.values_mut().for_each(|waiter| waiter.doom = None);
        let mut events = Vec::new();
        let mut markers: Vec<Vec<u8>> = background.cloned().collect();
        events.extend(markers.iter().map(|name| Event::Marker { name: name.clone(), everywhere: true }));
        self.fetches.retain(|file, request| {
            events.push(Event::Fetch { request: *request, file: file.clone() });
            true
        });
        for waiter in self.waiters.values() {
            match &waiter.wanted {
                Wanted::Directory(op) => {
                    events.push(Event::DirRequest { request: waiter.request, op: op.clone() });
                }
                Wanted::Marker(name) if !markers.contains(name) => {
                    markers.push(name.clone());
                    let everywhere = self.set_everywhere(name);
                    events.push(Event::Marker { name: name.clone(), everywhere });
                }
                Wanted::Loose(entries) => {
                    let (request, entries) = (waiter.request, entries.clone());
                    events.push(Event::LooseRequest { request, entries });
                }
                Wanted::Marker(_) | Wanted::Fetch(_) => {}
            }
        }
        events
    }
}

/// How long it may wait while a coordinator is attached.
pub(super) fn attached_bound(wanted: &Wanted, seal_timeout: Duration) -> Duration {
    match wanted {
        Wanted::Directory(_) | Wanted::Loose(_) => DIRECTORY_MAX,
        Wanted::Marker(_) => MARKER_START_MAX + seal_timeout,
        Wanted::Fetch(_) => FETCH_MAX,
    }
}

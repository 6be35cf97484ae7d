//! The table of waiting programs, and what the lead is asked for them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

use crate::control::loose::LooseEntry;
use crate::control::{DirOp, Event, SealedFile};
use crate::ids::{DatasetId, RequestId};

use crate::boundary::{Completion, Marking};
use crate::caller::Caller;
use crate::errno::Errno;

/// A directory operation while a coordinator is attached.
pub(in crate::daemon) const DIRECTORY_MAX: Duration = Duration::from_mins(2);
/// A file that is brought here while a coordinator is attached: it may be large, and come from the
/// PFS.
const FETCH_MAX: Duration = Duration::from_mins(30);
/// A marker until its seal begins, beyond the seal's own time-out; other seals may run before it.
const MARKER_START_MAX: Duration = Duration::from_mins(3);

/// What is waited for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::daemon) enum Wanted {
    Directory(DirOp),
    Marker(Marker),
    Fetch(SealedFile),
    Loose(Vec<LooseEntry>),
}

/// A marker that was set here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::daemon) struct Marker {
    pub(in crate::daemon) name: Vec<u8>,
    /// The complete dataset of that name when it was set. The seal of that one is not what its
    /// program waits for.
    pub(in crate::daemon) base: Option<DatasetId>,
    /// How it was set.
    pub(in crate::daemon) marking: Marking,
}

/// One waiting program.
pub(in crate::daemon) struct Waiter {
    pub(in crate::daemon) request: RequestId,
    pub(in crate::daemon) wanted: Wanted,
    pub(in crate::daemon) caller: Caller,
    pub(in crate::daemon) done: Completion,
    /// Both are set by [`super::desk::Desk`].
    pub(in crate::daemon) since: Instant,
    pub(in crate::daemon) deadline: Instant,
}

impl Waiter {
    /// Ends the wait; 0 is success. Not to be called with a lock held.
    pub(in crate::daemon) fn answer(self, errno: i32) {
        (self.done)(if errno == 0 { Ok(()) } else { Err(Errno(errno)) });
    }

    /// Asks the lead for it; a file is asked for once, whoever waits for it.
    fn event(&self) -> Option<Event> {
        let request = self.request;
        match &self.wanted {
            Wanted::Directory(op) => Some(Event::DirRequest { request, op: op.clone() }),
            Wanted::Marker(Marker { name, base, marking }) => {
                let (name, base, everywhere) = (name.clone(), *base, marking.everywhere);
                Some(Event::Marker { request, name, base, everywhere })
            }
            Wanted::Loose(entries) => Some(Event::LooseRequest { request, entries: entries.clone() }),
            Wanted::Fetch(_) => None,
        }
    }

    /// It waits for the marker of `name`.
    fn marks(&self, name: &[u8]) -> bool {
        matches!(&self.wanted, Wanted::Marker(marker) if marker.name == name)
    }
}

/// All waiting programs.
#[derive(Default)]
pub(in crate::daemon) struct Waiting {
    waiters: BTreeMap<RequestId, Waiter>,
    /// Files on the way and the request that asked for each; others that want the same file join
    /// it.
    fetches: HashMap<SealedFile, RequestId>,
    /// Requests under which this lead was asked for seals that are owed: some of their markers may
    /// have been answered before there was an outcome.
    owed: BTreeSet<RequestId>,
}

impl Waiting {
    /// Something is waited for: the event that asks for it, unless one is on its way already.
    pub(super) fn begins(&mut self, waiter: Waiter) -> Option<Event> {
        let mut event = waiter.event();
        if let Wanted::Fetch(file) = &waiter.wanted
            && !self.fetches.contains_key(file)
        {
            self.fetches.insert(file.clone(), waiter.request);
            event = Some(Event::Fetch { request: waiter.request, file: file.clone() });
        }
        self.waiters.insert(waiter.request, waiter);
        event
    }

    pub(in crate::daemon) fn len(&self) -> usize {
        self.waiters.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    /// A program waits for the answer to this request.
    pub(in crate::daemon) fn has(&self, request: RequestId) -> bool {
        self.waiters.contains_key(&request)
    }

    pub(in crate::daemon) fn iter(&self) -> impl Iterator<Item = &Waiter> {
        self.waiters.values()
    }

    pub(super) fn take_all(&mut self) -> Vec<Waiter> {
        self.fetches.clear();
        std::mem::take(&mut self.waiters).into_values().collect()
    }

    /// Changed pointer files, and the last request for each.
    pub(in crate::daemon) fn loose_names(&self) -> impl Iterator<Item = (Vec<u8>, RequestId)> {
        let loose = self.waiters.values().filter_map(|waiter| match &waiter.wanted {
            Wanted::Loose(entries) => Some(entries.iter().map(|entry| (entry.name.clone(), waiter.request))),
            _ => None,
        });
        loose.flatten()
    }

    pub(super) fn take(&mut self, request: RequestId) -> Option<Waiter> {
        self.waiters.remove(&request)
    }

    /// The same, if it is such a one: a request of another kind cannot be ended so.
    pub(super) fn take_if(
        &mut self,
        request: RequestId,
        is_such: impl FnOnce(&Waiter) -> bool,
    ) -> Option<Waiter> {
        self.waiters.get(&request).filter(|waiter| is_such(waiter))?;
        self.waiters.remove(&request)
    }

    /// Takes those whose bound has passed; `extended` may give one a later bound.
    pub(super) fn expired(
        &mut self,
        now: Instant,
        extended: impl Fn(&Waiter) -> Option<Instant>,
    ) -> Vec<Waiter> {
        for waiter in self.waiters.values_mut().filter(|waiter| waiter.deadline <= now) {
            waiter.deadline = extended(waiter).unwrap_or(waiter.deadline);
        }
        self.take_where(|waiter| waiter.deadline <= now)
    }

    /// Takes those that want the marker of `name` and wait only until all nodes are frozen for seal
    /// `id` of it.
    pub(super) fn take_unhurried(&mut self, name: &[u8], id: DatasetId, background: bool) -> Vec<Waiter> {
        self.take_where(|waiter| match &waiter.wanted {
            Wanted::Marker(marker) => {
                marker.name == name
                    && marker.base != Some(id)
                    && (background || marker.marking.holds_directory)
            }
            _ => false,
        })
    }

    /// These names have seals that are owed: the events that ask the lead for them, each under its
    /// new request.
    pub(super) fn owe(&mut self, owed: Vec<(RequestId, Vec<u8>)>) -> Vec<Event> {
        self.owed = owed.iter().map(|(request, _)| *request).collect();
        let event = |(request, name)| Event::Marker { request, name, base: None, everywhere: true };
        owed.into_iter().map(event).collect()
    }

    /// These markers have come to their end: takes those who wait for them, and tells whether a
    /// seal that was owed is among them.
    pub(super) fn end_markers(&mut self, requests: &[RequestId]) -> (Vec<Waiter>, bool) {
        let owed = requests.iter().filter(|request| self.owed.remove(request)).count() > 0;
        let is_marker = |waiter: &Waiter| matches!(waiter.wanted, Wanted::Marker(_));
        let ended = |waiter: &Waiter| is_marker(waiter) && requests.contains(&waiter.request);
        (self.take_where(ended), owed)
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

    fn take_where(&mut self, wanted: impl Fn(&Waiter) -> bool) -> Vec<Waiter> {
        let ids: Vec<_> =
            self.waiters.values().filter(|waiter| wanted(waiter)).map(|waiter| waiter.request).collect();
        ids.iter().filter_map(|id| self.waiters.remove(id)).collect()
    }

    /// Thread ids of those that wait for the marker of `name` here.
    pub(in crate::daemon) fn marker_callers(&self, name: &[u8]) -> Vec<u32> {
        self.waiters
            .values()
            .filter(|waiter| waiter.marks(name) && waiter.caller.tid != 0)
            .map(|waiter| waiter.caller.tid)
            .collect()
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

    /// The events that ask the lead for what is waited for, each thing once.
    pub(super) fn events(&self) -> Vec<Event> {
        let fetches = self.fetches.iter();
        let fetches = fetches.map(|(file, request)| Event::Fetch { request: *request, file: file.clone() });
        fetches.chain(self.waiters.values().filter_map(Waiter::event)).collect()
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

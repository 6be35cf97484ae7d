//! Pointer files (`scrfs/docs/protocol.md`, Pointer files): what programs change in the mount goes
//! to the lead, and what the lead orders goes to storage and into the mount.
//!
//! A change is sent as what the name is now, so that asking twice is asking once. What was put into
//! the mount is remembered: only what differs from that is a program's change. A version that comes
//! while a program has the name open for writing, or has changed it and waits for its turn, is not
//! put over it.
//!
//! Fault points: `loose.storing`, `loose.indexed`, `loose.placed`, `loose.bound`, `loose.shown`.

use std::collections::{HashMap, HashSet};

use crate::control::loose::{
    Age, Begun, LooseBase, LooseEntry, LooseInventory, LooseOwner, LooseStamp, LooseVersion,
};
use crate::control::{Event, LooseRules, Reason};
use crate::faults;
use crate::ids::RequestId;

use super::core::desk::Input;
use super::core::waiting::Wanted;
use super::loose_store::LooseStore;
use super::node::Node;
use super::state::State;
use crate::boundary::{Completion, Look};
use crate::caller::Caller;

/// Names that are told to stay on this node.
const STAYING_TOLD: usize = 64;

/// This node's pointer files.
pub(super) struct Loose {
    pub(super) store: LooseStore,
    /// The last request for each name that programs changed and whose outcome is not known.
    pending: HashMap<Vec<u8>, RequestId>,
    /// What the next presentation puts in place, and with which dataset.
    show: Option<(Vec<LooseStamp>, Age)>,
    /// A name was left out, and that was told.
    told: bool,
    /// Names of which events say that they stay here.
    staying: HashSet<Vec<u8>>,
}

impl Loose {
    pub(super) fn new(store: LooseStore) -> Self {
        Self { store, pending: HashMap::new(), show: None, told: false, staying: HashSet::new() }
    }

    /// A program changed it since it was put here, or another one that did so waits. While another
    /// node's version waits to be put here, the same bytes written anew are a change too: they are
    /// the last word.
    fn is_change(&self, entry: &LooseEntry) -> bool {
        if self.pending.contains_key(&entry.name) {
            return true;
        }
        match self.store.placed(&entry.name) {
            Some((stamp, placed)) => {
                let waits = self.store.live(&entry.name).is_some_and(|live| live.stamp != *stamp);
                !placed.same(entry) || (waits && placed.mtime != entry.mtime)
            }
            None => !entry.is_gone(),
        }
    }
}

impl Node {
    fn loose_rules(&self) -> LooseRules {
        self.state.lock().settings.as_ref().map(|settings| settings.loose.clone()).unwrap_or_default()
    }

    /// What of `names` programs have changed here.
    fn loose_changes(&self, loose: &mut Loose, names: &[Vec<u8>]) -> Vec<LooseEntry> {
        let rules = self.loose_rules();
        let mut changes: Vec<LooseEntry> = Vec::new();
        for name in names {
            let entry = match self.tree.loose_entry(name, rules.max_bytes) {
                Ok(Look::Pointer(entry)) => entry,
                // For the other nodes it is none.
                Ok(Look::Stays) => {
                    self.tell_staying(loose, name, rules.max_bytes);
                    LooseEntry::gone(name.clone())
                }
                Ok(Look::Dataset) => LooseEntry::gone(name.clone()),
                Err(error) => {
                    let shown = String::from_utf8_lossy(name);
                    self.events.warning(None, &format!("{shown}: cannot be brought to other nodes: {error}"));
                    continue;
                }
            };
            if !loose.is_change(&entry) || changes.iter().any(|change| change.name == *name) {
                continue;
            }
            let known = loose.store.placed(name).is_some() || loose.store.live(name).is_some();
            if !known && !entry.is_gone() && loose.store.names().count() >= rules.max_names as usize {
                if !std::mem::replace(&mut loose.told, true) {
                    let (shown, limit) = (String::from_utf8_lossy(name), rules.max_names);
                    let text = format!(
                        "{shown}: stays on this node: {limit} pointer files are there (SCRFS_LOOSE_FILES)"
                    );
                    self.events.warning(None, &text);
                }
                continue;
            }
            changes.push(entry);
        }
        changes
    }

    /// An event for what other nodes do not get, once for each name.
    fn tell_staying(&self, loose: &mut Loose, name: &[u8], limit: u64) {
        if loose.staying.len() < STAYING_TOLD && loose.staying.insert(name.to_vec()) {
            let shown = String::from_utf8_lossy(name);
            self.events.warning(None, &format!(
                "{shown}: stays on this node: it is a special file, or has more than {limit} bytes (SCRFS_LOOSE_MAX)"
            ));
        }
    }

    /// Programs may have changed these names; `done` learns when all nodes have what they are now.
    pub(super) fn loose_changed(&self, names: &[Vec<u8>], caller: Caller, done: Completion) {
        let request = self.ids.next();
        let entries = {
            let mut loose = self.loose.lock();
            let entries = self.loose_changes(&mut loose, names);
            for entry in &entries {
                loose.pending.insert(entry.name.clone(), request);
            }
            entries
        };
        if entries.is_empty() {
            return done(Ok(()));
        }
        self.ask(request, Wanted::Loose(entries), caller, done);
    }

    pub(super) fn forget_pending(&self, request: RequestId) {
        self.loose.lock().pending.retain(|_, pending| *pending != request);
    }

    /// Nobody writes this name here any more: what had to wait is put in its place.
    pub(super) fn loose_name_closed(&self, name: &[u8]) {
        if self.loose.lock().store.late().iter().any(|late| late == name) {
            self.place_late_in_records();
        }
    }

    fn place_late_in_records(&self) {
        let me = self.me.clone();
        self.lanes.records.run(move || {
            if let Some(node) = me.upgrade() {
                node.place_late();
            }
        });
    }

    /// All waits are known to the lead now: tells it of changes that nobody waits for, and puts in
    /// place what could not be.
    pub(super) fn tell_loose(&self) {
        let found = self.tree.loose_names();
        let mut names = found.unwrap_or_else(|error| {
            self.events.warning(None, &format!("pointer files cannot be listed: {error}"));
            Vec::new()
        });
        let mut loose = self.loose.lock();
        {
            let state = self.state.lock();
            loose.pending = state.desk.waiting().loose_names().collect();
        }
        names.extend(loose.store.names().map(<[u8]>::to_vec));
        names.retain(|name| !loose.pending.contains_key(name));
        let rules = self.loose_rules();
        for name in &names {
            // Placed, and not recorded so when the worker died.
            if let Some(live) = loose.store.live(name).cloned()
                && let Ok(Look::Pointer(now)) = self.tree.loose_entry(name, rules.max_bytes)
                && live.entry.same(&now)
            {
                loose.store.place(&live);
            }
        }
        for entry in self.loose_changes(&mut loose, &names) {
            let request = self.ids.next();
            loose.pending.insert(entry.name.clone(), request);
            self.state.lock().send_request(Event::LooseRequest { request, entries: vec![entry] });
        }
        drop(loose);
        self.place_late();
    }

    pub(super) fn send_loose_inventory(&self) {
        let names = self.journal.lock().begun();
        let (mut inventory, bad) = {
            let mut loose = self.loose.lock();
            let (versions, bad) = loose.store.whole();
            let (base, began, bound) = (loose.store.base(), loose.store.began_all(), loose.store.bound_all());
            (LooseInventory { versions, base, began, bound, begun: Vec::new() }, bad)
        };
        for reason in bad {
            self.events.warning(None, &format!("a version of a pointer file is bad: {reason}"));
        }
        let state = self.state.lock();
        inventory.begun = begun_over(&state, names);
        state.send(Event::LooseInventory(Box::new(inventory)));
    }

    pub(super) fn send_loose(&self, stamp: LooseStamp) {
        let version = self.loose.lock().store.read(stamp);
        let version = version.map_err(|reason| self.events.warning(None, reason.words())).ok().map(Box::new);
        self.state.lock().send(Event::LooseRead { stamp, version });
    }

    /// When a dataset's first file that is not sealed was made here; 0: there is none, or nobody
    /// knows.
    pub(super) fn begun_at(&self, name: &[u8]) -> u64 {
        let begun = self.journal.lock().begun();
        begun.into_iter().find(|(begun, _)| begun == name).map_or(0, |(_, since)| since)
    }

    /// Says what has begun here.
    pub(super) fn send_begun(&self, round: u64) {
        let names = self.journal.lock().begun();
        let state = self.state.lock();
        state.send(Event::LooseBegun { round, begun: begun_over(&state, names) });
    }

    /// Stores versions, then puts them into the mount. In the records' thread.
    pub(super) fn store_loose(&self, round: u64, versions: &[LooseVersion], place: bool) {
        let errno = match self.try_store_loose(versions, place) {
            Ok(()) => 0,
            Err(error) => {
                self.events.error(None, &format!("pointer files cannot be stored: {error}"));
                error.raw_os_error().unwrap_or(libc::EIO)
            }
        };
        self.state.lock().send(Event::LooseStored { round, errno });
    }

    fn try_store_loose(&self, versions: &[LooseVersion], place: bool) -> std::io::Result<()> {
        let error = |error: crate::store::StoreError| std::io::Error::from_raw_os_error(error.errno());
        let mut loose = self.loose.lock();
        faults::hit("loose.storing")?;
        for version in versions {
            loose.store.add(version).map_err(error)?;
            let name = &version.entry.name;
            if loose.pending.get(name) == Some(&version.request) {
                // It has its place in the order: later ones overrule it.
                loose.pending.remove(name);
                loose.store.place(version);
            }
        }
        let mut standing = Vec::new();
        for version in versions.iter().filter(|_| place) {
            if loose.store.stands(version) {
                standing.push(version);
            }
        }
        loose.store.commit().map_err(error)?;
        faults::hit("loose.indexed")?;
        for version in standing {
            // A later version of the same round is what stands.
            if loose.store.live(&version.entry.name).is_some_and(|live| live.stamp == version.stamp) {
                self.place(&mut loose, version);
            }
        }
        faults::hit("loose.placed")?;
        loose.store.commit().map_err(error)
    }

    /// Puts a version that stands into the mount, unless a program here is about to overrule it.
    fn place(&self, loose: &mut Loose, version: &LooseVersion) {
        let (name, entry) = (&version.entry.name, &version.entry);
        if loose.pending.contains_key(name) {
            return;
        }
        let max = self.loose_rules().max_bytes;
        match self.tree.loose_entry(name, max) {
            Ok(Look::Pointer(now)) => {
                // The version is this node's own, and a program has changed the file again: that
                // change will go to the lead.
                let newer = self.ids.has(version.request) && loose.is_change(&now);
                if now.same(entry) || newer {
                    loose.store.place(version);
                    return;
                }
            }
            Ok(Look::Stays) => {
                self.tell_staying(loose, name, max);
                // For the others there is nothing of this name, as far as this node goes.
                if entry.is_gone() {
                    loose.store.place(version);
                }
                return;
            }
            Ok(Look::Dataset) | Err(_) => {}
        }
        match self.tree.place_loose(entry, max) {
            Ok(true) => loose.store.place(version),
            Ok(false) => {}
            Err(error) => {
                let shown = String::from_utf8_lossy(name);
                self.events
                    .warning(None, &format!("{shown}: another node's version cannot be put here: {error}"));
            }
        }
    }

    /// Tries again what could not be put in place.
    pub(super) fn place_late(&self) {
        let max = self.loose_rules().max_bytes;
        let mut loose = self.loose.lock();
        for name in loose.store.late() {
            let Some((stamp, gone)) = loose.store.live(&name).map(|live| (live.stamp, live.entry.is_gone()))
            else {
                continue;
            };
            // Nothing would be put in its place.
            if !gone && matches!(self.tree.loose_entry(&name, max), Ok(Look::Stays)) {
                self.tell_staying(&mut loose, &name, max);
                continue;
            }
            match loose.store.read(stamp) {
                Ok(version) => self.place(&mut loose, &version),
                Err(reason) => {
                    self.events.warning(None, &format!("a pointer file cannot be put here: {reason}"));
                }
            }
        }
        if let Err(error) = loose.store.commit() {
            self.events.warning(None, &error.to_string());
        }
    }

    /// Every node has answered: answers the programs.
    pub(super) fn finish_loose(&self, results: &[(RequestId, i32)]) {
        for &(request, errno) in results {
            self.forget_pending(request);
            self.at_desk(Input::Loose(request, errno));
        }
        // Other nodes' versions that had to wait for the outcome, where that brought none.
        if !self.loose.lock().store.late().is_empty() {
            self.place_late_in_records();
        }
    }

    /// Versions belong to other datasets. In the records' thread: before the commit that follows.
    pub(super) fn bind_loose(&self, bound: Vec<(LooseStamp, LooseOwner)>, began: Vec<(Age, u64)>) {
        let mut loose = self.loose.lock();
        for (age, began) in began {
            loose.store.began(age, began);
        }
        for (stamp, owner) in bound {
            loose.store.bind(stamp, owner);
        }
        let stored = loose.store.commit().map_err(|e| e.to_string());
        drop(loose);
        if let Err(reason) = stored.and_then(|()| faults::hit("loose.bound").map_err(|e| e.to_string())) {
            self.events.error(None, &format!("pointer files cannot be bound to their datasets: {reason}"));
        }
    }

    pub(super) fn forget_loose(&self, stamps: &[LooseStamp], datasets: &[Age]) {
        if let Err(error) = self.loose.lock().store.forget(stamps, datasets) {
            self.events.warning(None, &format!("old pointer files cannot be removed: {error}"));
        }
    }

    /// The seal of `age` comes to nothing: versions that were bound to it belong to what is not
    /// sealed again. In the records' thread, before the seal is forgotten.
    pub(super) fn unbind_loose(&self, age: Age, name: &[u8]) {
        let mut loose = self.loose.lock();
        loose.store.unbind(age, name);
        if let Err(error) = loose.store.commit() {
            self.events.error(None, &format!("pointer files cannot be bound to their datasets: {error}"));
        }
    }

    pub(super) fn plan_loose(&self, versions: Vec<LooseStamp>, shown: Age) {
        self.loose.lock().show = Some((versions, shown));
    }

    /// Puts what goes with the presented dataset into the mount, which has no loose files now.
    pub(super) fn show_loose(&self) -> Result<(), Reason> {
        let epoch = self.state.lock().attached.as_ref().map(|attached| attached.greeting.epoch);
        let mut loose = self.loose.lock();
        let plan = loose.show.clone();
        let base = epoch.zip(plan.as_ref()).map(|(epoch, (_, shown))| LooseBase { epoch, shown: *shown });
        loose.pending.clear();
        loose.store.clear_places(base);
        let max = self.loose_rules().max_bytes;
        for stamp in plan.map(|(stamps, _)| stamps).unwrap_or_default() {
            let version = match loose.store.read(stamp) {
                Ok(version) => version,
                Err(reason) => {
                    self.events.error(None, &format!("a pointer file cannot be presented: {reason}"));
                    continue;
                }
            };
            let name = String::from_utf8_lossy(&version.entry.name).into_owned();
            let placed =
                self.tree.place_loose(&version.entry, max).map_err(|error| Reason::from(error).on(&name))?;
            loose.store.stands(&version);
            if placed {
                loose.store.place(&version);
            }
        }
        faults::hit("loose.shown")?;
        loose.store.commit().map_err(Reason::from)
    }
}

/// What has begun under these names, over what is complete here. Of a dataset that nobody has
/// changed since it was sealed a worker that died may have left entries.
fn begun_over(state: &State, names: Vec<(Vec<u8>, u64)>) -> Vec<Begun> {
    let over = |(name, since_us): (Vec<u8>, u64)| {
        let base = state.base(&name);
        let unchanged = base.is_some_and(|dataset| dataset.life.is_in_tree());
        (!unchanged).then(|| Begun { base: base.map(|dataset| dataset.id), name, since_us })
    };
    names.into_iter().filter_map(over).collect()
}

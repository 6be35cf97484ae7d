//! Pointer files as a daemon keeps them. What one says is a number: the bytes of a file.

use std::collections::{BTreeMap, BTreeSet};

use scrfs::control::loose::{
    Age, Begun, LooseBase, LooseEntry, LooseInventory, LooseKind, LooseOwner, LooseStamp, LooseVersion,
};
use scrfs::control::{Command, Event};
use scrfs::ids::{DatasetId, Epoch, RequestId};
use scrfs::path::RelPath;

use super::{Daemon, Trouble, top_of};
use crate::rng::Rng;

/// See the module.
#[derive(Debug, Clone, Default)]
pub(crate) struct Pointers {
    versions: BTreeMap<LooseStamp, LooseVersion>,
    live: BTreeMap<Vec<u8>, LooseStamp>,
    base: Option<LooseBase>,
    began: Vec<(Age, u64)>,
    /// Whose versions were before they were bound.
    bound: BTreeMap<LooseStamp, (Age, LooseOwner)>,
    show: (Vec<LooseStamp>, Age),
    /// What programs see.
    pub(crate) tree: BTreeMap<Vec<u8>, u64>,
    pub(crate) waiting: BTreeMap<RequestId, LooseEntry>,
    /// Requests that ended, and how.
    pub(crate) answered: Vec<(RequestId, i32)>,
    /// Requests of this node that have their place in this epoch's order.
    pub(crate) ordered: BTreeSet<RequestId>,
    /// What was ever stored here, and has not gone bad; for the checks.
    pub(crate) had: BTreeSet<RequestId>,
    /// Datasets of which this node knew when the last restart began what goes with them.
    pub(crate) knew: BTreeSet<(Epoch, DatasetId)>,
    /// What this node had presented last when the last restart began.
    pub(crate) based: Option<LooseBase>,
    /// Requests that succeeded while this node took part; for the checks.
    pub(crate) heard: BTreeSet<RequestId>,
    /// Of these a copy here went bad.
    pub(crate) bad: BTreeSet<RequestId>,
    /// A moment that no other act has.
    pub(crate) moment: u64,
    /// When the first unsealed file of each name was made, or of what it was changed over.
    begun: BTreeMap<(Vec<u8>, Option<DatasetId>), u64>,
}

impl Pointers {
    /// What was asked for is stored here; of a removal, which leaves no version where there is none
    /// to overrule: this node took part in it.
    pub(crate) fn has(&self, request: &RequestId, says: Option<u64>) -> bool {
        if says.is_some() { self.had.contains(request) } else { self.heard.contains(request) }
    }

    /// This node has a version of this request now.
    pub(crate) fn holds(&self, request: &RequestId) -> bool {
        self.versions.values().any(|version| version.request == *request)
    }

    /// A restart begins.
    pub(crate) fn begins(&mut self) {
        self.knew = self.began.iter().map(|(age, _)| (age.epoch, age.id)).collect();
        self.based = self.base;
    }
}

pub(crate) fn entry(name: &[u8], says: Option<u64>) -> LooseEntry {
    let mut entry = LooseEntry::gone(name.to_vec());
    if let Some(says) = says {
        entry.bytes = says.to_be_bytes().to_vec();
        entry.kind = LooseKind::File { size: 8, crc: crc32fast::hash(&entry.bytes) };
    }
    entry
}

pub(crate) fn said(entry: &LooseEntry) -> Option<u64> {
    entry.bytes.as_slice().try_into().ok().map(u64::from_be_bytes)
}

impl Daemon {
    /// A file of `name` is made or changed.
    pub(crate) fn begins(&mut self, name: &[u8], base: Option<DatasetId>, now: u64) {
        let has_begun = self.begun().iter().any(|begun| begun.name == name && begun.base == base);
        let since = self.pointers.begun.entry((name.to_vec(), base)).or_insert(now);
        if !has_begun {
            *since = now;
        }
    }

    /// What has begun here and is not sealed.
    pub(crate) fn begun(&self) -> Vec<Begun> {
        let unsealed: BTreeSet<&[u8]> = self.files.keys().map(top_of).collect();
        let over = self.next.iter().filter(|(_, next)| !next.changed.is_empty());
        let over = over.filter_map(|(id, _)| Some((self.datasets.get(id)?.name.clone(), Some(*id))));
        let all = unsealed.into_iter().map(|name| (name.to_vec(), None)).chain(over);
        let since = |key: &(Vec<u8>, Option<DatasetId>)| self.pointers.begun.get(key).copied().unwrap_or(0);
        all.map(|key| Begun { since_us: since(&key), name: key.0, base: key.1 }).collect()
    }

    pub(super) fn begun_at(&self, name: &[u8]) -> u64 {
        self.begun().iter().find(|begun| begun.name == name).map_or(0, |begun| begun.since_us)
    }

    /// Before files move with a directory.
    pub(super) fn renamed_begun(&mut self, from: &RelPath, to: &RelPath) {
        let top = |path: &RelPath| path.names().count() == 1;
        if top_of(from) == top_of(to) || !self.files.keys().any(|file| file.strip(from).is_some()) {
            return;
        }
        let key = (top_of(to).to_vec(), None);
        let since =
            if top(from) { self.pointers.begun.remove(&(from.as_bytes().to_vec(), None)) } else { None };
        let since = since.filter(|_| top(to)).unwrap_or(self.pointers.moment);
        if top(to) || !self.files.keys().any(|file| top_of(file) == top_of(to)) {
            self.pointers.begun.insert(key, since);
        }
    }

    /// Two directories have exchanged their names: two datasets, or two directories of one.
    pub(super) fn exchanged_begun(&mut self, one: &RelPath, other: &RelPath) {
        let key = |path: &RelPath| (path.as_bytes().to_vec(), None);
        let begun = &mut self.pointers.begun;
        let (first, second) = (begun.remove(&key(one)), begun.remove(&key(other)));
        begun.extend(first.map(|since| (key(other), since)));
        begun.extend(second.map(|since| (key(one), since)));
    }

    /// The seal of `age` comes to nothing.
    pub(super) fn unbind_pointers(&mut self, age: Age, name: &[u8]) {
        let Some(at) = self.pointers.began.iter().position(|(other, _)| *other == age) else { return };
        let (_, since_us) = self.pointers.began.remove(at);
        let after = self.pointers.began.iter().map(|(other, _)| *other).filter(|other| *other < age).max();
        let owner = LooseOwner::Begun { name: name.to_vec(), since_us, after: after.unwrap_or_default() };
        for version in self.pointers.versions.values_mut().filter(|v| v.owner == LooseOwner::Sealed(age)) {
            let former = self.pointers.bound.remove(&version.stamp).filter(|(to, _)| *to == age);
            version.owner = former.map_or_else(|| owner.clone(), |(_, former)| former);
        }
    }

    /// Dataset `name` is sealed, or gone.
    pub(super) fn forget_begun(&mut self, name: &[u8]) {
        self.pointers.begun.retain(|(other, _), _| other != name);
    }

    pub(super) fn present_pointers(&mut self) {
        let pointers = &mut self.pointers;
        (pointers.tree, pointers.live) = (BTreeMap::new(), BTreeMap::new());
        pointers.begun.clear();
        let (stamps, shown) = pointers.show.clone();
        for stamp in stamps {
            let version = pointers.versions.get(&stamp).expect("shown means stored");
            let name = version.entry.name.clone();
            pointers.tree.insert(name.clone(), said(&version.entry).expect("shown means that there is one"));
            pointers.live.insert(name, stamp);
        }
        pointers.base = Some(LooseBase { epoch: self.epoch, shown });
    }

    /// Carries out what is about pointer files; `None`: it is not.
    pub(super) fn pointer_command(
        &mut self,
        command: &Command,
        rng: &mut Rng,
        trouble: Trouble,
    ) -> Option<Vec<Event>> {
        let pointers = &mut self.pointers;
        match command {
            Command::LooseInventory => {
                let versions = pointers.versions.values().map(LooseVersion::head).collect();
                let began = pointers.began.clone();
                let bound = pointers.bound.iter().map(|(stamp, (age, owner))| (*stamp, *age, owner.clone()));
                let (bound, base) = (bound.collect(), pointers.base);
                let begun = self.begun();
                let inventory = LooseInventory { versions, base, began, bound, begun };
                return Some(vec![Event::LooseInventory(Box::new(inventory))]);
            }
            Command::ReadLoose(stamp) => {
                if rng.rarely(trouble.0)
                    && let Some(bad) = pointers.versions.remove(stamp)
                {
                    pointers.had.remove(&bad.request);
                    pointers.bad.insert(bad.request);
                }
                let version = pointers.versions.get(stamp).cloned();
                return Some(vec![Event::LooseRead { stamp: *stamp, version: version.map(Box::new) }]);
            }
            Command::LooseAsk { round } => {
                return Some(vec![Event::LooseBegun { round: *round, begun: self.begun() }]);
            }
            Command::LooseStore { round, versions, place } => {
                let errno = if rng.rarely(trouble.0) { 28 } else { 0 };
                for version in versions.iter().filter(|_| errno == 0) {
                    assert!(version.entry.is_whole(), "a version without its bytes");
                    pointers.had.insert(version.request);
                    pointers.versions.insert(version.stamp, version.clone());
                    let name = &version.entry.name;
                    let stands = pointers.live.get(name).is_none_or(|live| *live <= version.stamp);
                    if pointers.waiting.contains_key(&version.request) {
                        pointers.ordered.insert(version.request);
                    }
                    let later = |id: &RequestId| !pointers.ordered.contains(id);
                    let own = pointers.waiting.iter().any(|(id, e)| e.name == *name && later(id));
                    if *place && stands {
                        pointers.live.insert(name.clone(), version.stamp);
                        match said(&version.entry) {
                            _ if own => {}
                            Some(says) => drop(pointers.tree.insert(name.clone(), says)),
                            None => drop(pointers.tree.remove(name)),
                        }
                    }
                }
                return Some(vec![Event::LooseStored { round: *round, errno }]);
            }
            Command::LooseFinish { results } => {
                for (request, errno) in results {
                    let Some(entry) = pointers.waiting.remove(request) else { continue };
                    pointers.answered.push((*request, *errno));
                    // It may have brought no version of its own.
                    let live = pointers.live.get(&entry.name).and_then(|stamp| pointers.versions.get(stamp));
                    let waits = pointers.waiting.values().any(|other| other.name == entry.name);
                    if let Some(live) = live.filter(|_| !waits) {
                        match said(&live.entry) {
                            Some(says) => drop(pointers.tree.insert(entry.name, says)),
                            None => drop(pointers.tree.remove(&entry.name)),
                        }
                    }
                }
            }
            Command::LooseBind { bound, began } => {
                pointers.began.retain(|(age, _)| !began.iter().any(|(known, _)| known == age));
                pointers.began.extend(began);
                for (stamp, owner) in bound {
                    if let Some(version) = pointers.versions.get_mut(stamp) {
                        let former = std::mem::replace(&mut version.owner, owner.clone());
                        if let (LooseOwner::Begun { .. }, LooseOwner::Sealed(age)) = (&former, owner) {
                            pointers.bound.insert(*stamp, (*age, former));
                        }
                    }
                }
            }
            Command::LooseForget { versions, datasets } => {
                for stamp in versions {
                    pointers.versions.remove(stamp);
                }
                pointers.began.retain(|(age, _)| !datasets.contains(age));
            }
            Command::LooseShow { versions, shown } => pointers.show = (versions.clone(), *shown),
            _ => return None,
        }
        Some(Vec::new())
    }
}

//! Bytes that go bad while programs run, and what an open must give then: the right bytes while any
//! source has them, and EIO, never wrong ones, when none has.

use std::collections::BTreeSet;

use scrfs::control::{Command, Event, HeldState, SealedFile};
use scrfs::dataset::{Catalog, EntryKind};
use scrfs::ids::{DatasetId, Member};

use super::World;
use crate::observer::{self, Key};

impl World {
    /// A member of a sealed dataset goes bad on its node.
    pub(super) fn rot(&mut self, at: usize) {
        let node = &self.nodes[at];
        let mut found = Vec::new();
        for (id, dataset) in node.datasets.iter().filter(|(_, d)| d.listed) {
            let key = (dataset.epoch, *id);
            let settled = self.promised.contains_key(&key) || self.rotten.contains(&key);
            if settled && self.is_everywhere(key) {
                found.extend(dataset.members.keys().map(|member| (key, *member)));
            }
        }
        let Some(&(key, member)) = self.rng.pick(&found) else { return };
        self.say(|| format!("=== member {member} of {key:?} rots on n{at}"));
        self.decayed.insert(key);
        *self.rots.entry((key, member)).or_default() += 1;
        let dataset = self.nodes[at].datasets.get_mut(&key.1).expect("there");
        dataset.members.get_mut(&member).expect("there").rot(false);
        // Somebody looks, now and then.
        if self.rng.chance(40)
            && let Some(up) = self.up.get_mut(at)
        {
            up.push_back(Event::ScrubWanted(key.1));
        }
        self.note_bared(key);
        if !self.can_give(key) {
            self.rotten.insert(key);
            self.promised.remove(&key);
            self.forget_older();
        }
    }

    pub(super) fn is_everywhere(&self, key: Key) -> bool {
        self.nodes.iter().all(|node| {
            let held = node.datasets.get(&key.1).filter(|d| d.epoch == key.0);
            held.is_some_and(|d| d.state == HeldState::Complete && d.listed)
        })
    }

    /// A marker may be set again on what is old and may go: that is no promise to keep it.
    pub(super) fn may_promise(&self, key: Key) -> bool {
        self.rotten.last() < Some(&key)
    }

    /// The newest promise is gone: of the older ones only those count that the lead must go on
    /// keeping. It cannot know of a dataset that has rotted and that nobody has read since, and
    /// counts it.
    pub(super) fn forget_older(&mut self) {
        let evicts = |id: DatasetId| self.down.iter().flatten().any(|command| *command == Command::Evict(id));
        let counted = |key: &Key| self.is_everywhere(*key) && !self.failed.contains(key) && !evicts(key.1);
        let all: BTreeSet<Key> = self.promised.keys().chain(&self.rotten).copied().collect();
        let kept: Vec<Key> = all.into_iter().rev().filter(counted).collect();
        let guarded = self.guarded(|key| self.is_everywhere(key));
        // The lead may count one as the guard that protects nothing.
        let is_held = |key: &Key| self.bared.contains(key) && self.is_everywhere(*key);
        let may_guard = self.settings.cache_size > 1 && self.promised.keys().chain(&self.rotten).any(is_held);
        let places = self.settings.cache_size as usize - usize::from(guarded.is_some() || may_guard);
        let kept: Vec<Key> = kept.into_iter().take(places).chain(guarded).collect();
        self.promised.retain(|key, _| kept.contains(key) && observer::in_caches(&self.nodes, *key));
    }

    /// The lead says that no source of some file is good.
    pub(super) fn marked_failed(&mut self, id: DatasetId) {
        let known = self.nodes.iter().find_map(|node| node.datasets.get(&id));
        let Some(key) = known.map(|dataset| (dataset.epoch, id)) else { return };
        let Some(catalog) = observer::catalog(&self.nodes, key) else { return };
        let lost = self.is_lost(catalog);
        let known = observer::failed(&self.nodes, key);
        assert!(lost || known, "{key:?} is called failed, and every file of it has a source in the caches");
        assert!(!self.is_in_prefix(key) || known, "{key:?} is called failed, and is on the PFS");
        self.failed.insert(key);
        self.rotten.insert(key);
        if self.promised.remove(&key).is_some() {
            self.forget_older();
        }
    }

    /// Some file of it is not as it was sealed where the catalog says, and its set does not give it
    /// back.
    pub(super) fn is_lost(&self, catalog: &Catalog) -> bool {
        let (whole, readable) = observer::in_places(&self.nodes, catalog);
        catalog.entries.iter().any(|entry| match &entry.kind {
            EntryKind::File(copy) => {
                !readable.contains(&copy.member) && !observer::rebuildable(catalog, &whole, copy.member)
            }
            _ => false,
        })
    }

    /// Notes whether a dataset lacks something that its sets do not give back.
    pub(super) fn note_bared(&mut self, key: Key) {
        let Some(catalog) = observer::catalog(&self.nodes, key) else { return };
        let (whole, _) = observer::in_places(&self.nodes, catalog);
        let layout = &catalog.layout;
        let mut members = (0..).map(Member).zip(&layout.members).filter(|(member, place)| {
            (place.files > 0 || layout.has_redundancy_file(*member)) && !whole.contains(member)
        });
        if members.any(|(member, _)| !observer::rebuildable(catalog, &whole, member)) {
            self.bared.insert(key);
        }
    }

    /// It is on the PFS whole, and everybody knows it.
    fn is_in_prefix(&self, key: Key) -> bool {
        let flushed = self.nodes.iter().all(|node| node.datasets.get(&key.1).is_some_and(|d| d.flushed));
        flushed && observer::in_prefix(&self.prefix, key)
    }

    pub(super) fn check_fetch(&self, at: usize, file: &SealedFile, errno: i32) {
        let Some(dataset) = self.nodes[at].datasets.get(&file.id) else { return };
        let key = (dataset.epoch, file.id);
        if errno == 0 {
            let here = self.nodes[at].copies.get(&(file.id, file.path.clone())).copied();
            let here = here.or_else(|| self.nodes[at].good(file.id, &file.path));
            let right = self.truth[&key].get(&file.path).copied();
            // A member that was rebuilt in place may have gone bad again since.
            let own = dataset.members.values().any(|data| data.bad && data.files.contains_key(&file.path));
            assert!(here == right || (here.is_none() && own), "{file:?} was opened with other bytes");
        } else if self.quiet && self.is_everywhere(key) {
            let catalog = dataset.catalog.as_ref().expect("complete");
            let rots = |member| self.rots.get(&(key, member)).copied().unwrap_or(0);
            let of_file = catalog.entries.iter().filter(|entry| entry.path == file.path);
            // What goes bad again after each of three rebuilds is a broken disk.
            let is_worn = of_file.map(|entry| &entry.kind).any(|kind| match kind {
                EntryKind::File(copy) => rots(copy.member) > 3,
                _ => false,
            });
            let has_source = self.has_source(catalog, file) && !is_worn;
            assert!(!has_source, "{file:?} has a source, but its open failed");
            assert!(!self.is_in_prefix(key), "{file:?} is on the PFS, but its open failed");
        }
    }

    fn has_source(&self, catalog: &Catalog, file: &SealedFile) -> bool {
        let (whole, readable) = observer::in_places(&self.nodes, catalog);
        catalog.entries.iter().filter(|entry| entry.path == file.path).any(|entry| match &entry.kind {
            EntryKind::File(copy) => {
                readable.contains(&copy.member) || observer::rebuildable(catalog, &whole, copy.member)
            }
            _ => false,
        })
    }
}

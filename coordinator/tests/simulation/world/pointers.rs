//! Pointer files: what a restart presents must be the newest that is not later than the presented
//! dataset. Told apart from the lead by what programs did, and when.

use std::collections::{BTreeMap, BTreeSet};

use scrfs::control::loose::Begun;
use scrfs::control::{Command, Event, HeldState};
use scrfs::dataset::Catalog;
use scrfs::ids::{DatasetId, RequestId};

use super::World;
use crate::daemon::Daemon;
use crate::daemon::loose::entry;
use crate::observer::Key;

/// The newest dataset that had begun at some moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Owner {
    None,
    Sealed(Key),
    /// Not sealed; when it began, which no two datasets did at once.
    Begun(u64),
    /// It was removed, never sealed: nothing is said of what belonged to it.
    Free,
}

/// A program's change of a pointer.
#[derive(Debug, Clone)]
pub(super) struct Pointer {
    name: Vec<u8>,
    says: Option<u64>,
    asked: u64,
    /// Whose it was when it was asked for, and when it was answered.
    least: Owner,
    most: Owner,
    answered: Option<u64>,
    /// Before the dataset was sealed to which it belongs now.
    was: Option<(Key, Owner, Owner)>,
    /// The epoch in which it was asked for.
    epoch: u64,
    /// Something else had begun meanwhile, which may be gone.
    wavered: bool,
    /// Of a branch that the restart of this epoch gave up.
    lost: Option<u64>,
}

/// All of them, and when sealed datasets began.
#[derive(Debug, Default)]
pub(super) struct Oracle {
    pointers: BTreeMap<RequestId, Pointer>,
    began: BTreeMap<Key, u64>,
    /// When those began that restarts gave up: they may come back.
    given_up: BTreeMap<Key, u64>,
    /// Of these some node recorded COMPLETE.
    complete: BTreeSet<Key>,
    /// Changes of which all copies have gone bad: what they had overruled may be gone with them,
    /// also when a program asks for them again, which may be in a later dataset.
    gone_bad: BTreeSet<RequestId>,
    /// Restarts, by their epochs, and what they presented.
    restarts: Vec<(u64, Option<Key>)>,
    /// Restarts that found some.
    pub(super) shown: u64,
}

/// A restart that presents `current` can know of it: a node that has it knows what goes with
/// `current`. Others, of a branch that had given `current` up, have forgotten what went with it.
fn is_there(nodes: &[Daemon], request: &RequestId, pointer: &Pointer, current: Option<Key>) -> bool {
    let knows = |node: &Daemon| current.is_none_or(|current| node.pointers.knew.contains(&current));
    let heard = |node: &Daemon| node.pointers.heard.contains(request);
    let believed = believed_over(nodes, pointer, current);
    let all_count = believed.is_empty() || believed.iter().any(|node| heard(node));
    let is_believed = |node: &Daemon| believed.iter().any(|one| one.host == node.host);
    let counts = |node: &Daemon| all_count || heard(node) || is_believed(node);
    nodes.iter().any(|node| knows(node) && counts(node) && node.pointers.has(request, pointer.says))
}

/// Nodes that have come back from before it was asked for, and know what went with `current` then.
/// Where nobody here has presented anything since, they are believed over a node that got it from
/// a restart that was killed before it presented there.
fn believed_over<'a>(nodes: &'a [Daemon], pointer: &Pointer, current: Option<Key>) -> Vec<&'a Daemon> {
    let newest = nodes.iter().filter_map(|node| node.pointers.based).max();
    let Some(current) = current.filter(|_| newest.is_some_and(|base| base.epoch.0 < pointer.epoch)) else {
        return Vec::new();
    };
    let is_it = |node: &&Daemon| node.pointers.based == newest && node.pointers.knew.contains(&current);
    nodes.iter().filter(is_it).collect()
}

impl World {
    /// A moment that no other act has.
    pub(super) fn moment(&mut self) -> u64 {
        self.moments += 1;
        self.now + self.moments
    }

    fn newest_begun(&self) -> Owner {
        let sealed = self.pointers.began.iter().max_by_key(|(key, _)| **key);
        // What a node has not yet recorded, and others have, is that very dataset.
        let stale = |node: &Daemon, begun: &Begun| {
            let named = |key: &&Key| self.catalogs.get(&(**key, 0)).is_some_and(|c| c.name == begun.name);
            let newest = self.pointers.began.keys().filter(named).max();
            newest.is_some_and(|key| {
                let state = node.datasets.get(&key.1).filter(|d| d.epoch == key.0).map(|d| d.state);
                let here = state.is_some_and(|state| state != HeldState::Complete);
                begun.base.is_none_or(|base| base < key.1) && here && self.committed(*key)
            })
        };
        let of_node = |node| Daemon::begun(node).into_iter().filter(move |begun| !stale(node, begun));
        let begun = self.nodes.iter().flat_map(of_node);
        let mut first: BTreeMap<Vec<u8>, u64> = BTreeMap::new();
        for Begun { name, since_us, .. } in begun {
            // Only names were removed, at a time that is not known: as the lead, take the latest.
            let since_us = if since_us == 0 { u64::MAX } else { since_us };
            let since = first.entry(name).or_insert(since_us);
            *since = (*since).min(since_us);
        }
        match (first.into_values().max(), sealed) {
            (Some(since), Some((_, began))) if since >= *began => Owner::Begun(since),
            (Some(since), None) => Owner::Begun(since),
            (_, Some((key, _))) => Owner::Sealed(*key),
            (None, None) => Owner::None,
        }
    }

    fn committed(&self, key: Key) -> bool {
        self.nodes
            .iter()
            .any(|n| n.datasets.get(&key.1).is_some_and(|d| d.epoch == key.0 && d.catalog.is_some()))
    }

    /// A program writes a pointer, or removes it.
    pub(super) fn point(&mut self, at: usize) {
        let name = vec![*self.rng.pick(b"pq").expect("some")];
        let says = (!self.rng.chance(15)).then(|| self.rng.number());
        let node = &mut self.nodes[at];
        let busy = node.pointers.waiting.values().any(|entry| entry.name == name);
        if busy || (says.is_none() && !node.pointers.tree.contains_key(&name)) {
            return;
        }
        match says {
            Some(says) => drop(node.pointers.tree.insert(name.clone(), says)),
            None => drop(node.pointers.tree.remove(&name)),
        }
        node.serial += 1;
        let request = RequestId { origin: node.origin, serial: node.serial };
        node.pointers.waiting.insert(request, entry(&name, says));
        let (owner, asked) = (self.newest_begun(), self.moment());
        let pointer = Pointer {
            name: name.clone(),
            says,
            asked,
            least: owner,
            most: owner,
            answered: None,
            was: None,
            epoch: self.epoch,
            wavered: false,
            lost: None,
        };
        self.pointers.pointers.insert(request, pointer);
        if self.nodes[at].serving {
            self.send_up(at, Event::LooseRequest { request, entries: vec![entry(&name, says)] });
        }
    }

    /// Datasets of which nobody recorded COMPLETE, and nobody has the seal any more.
    fn undo_pointers(&mut self) {
        let began = self.pointers.began.keys();
        let open: Vec<Key> = began.filter(|key| !self.pointers.complete.contains(key)).copied().collect();
        for key in open {
            if self.committed(key) {
                self.pointers.complete.insert(key);
                continue;
            }
            let has = |node: &Daemon| node.datasets.get(&key.1).is_some_and(|dataset| dataset.epoch == key.0);
            if self.nodes.iter().any(has) {
                continue;
            }
            let Some(since) = self.pointers.began.remove(&key) else { continue };
            for pointer in self.pointers.pointers.values_mut() {
                let was = pointer.was.filter(|(of, ..)| *of == key);
                let (least, most) =
                    was.map_or((Owner::Begun(since), Owner::Begun(since)), |(_, least, most)| (least, most));
                for (owner, former) in [(&mut pointer.least, least), (&mut pointer.most, most)] {
                    if *owner == Owner::Sealed(key) {
                        *owner = former;
                    }
                }
            }
        }
    }

    /// Datasets that had begun and are gone.
    fn free_pointers(&mut self) {
        let is_of_begun =
            |p: &Pointer| matches!((p.least, p.most), (Owner::Begun(_), _) | (_, Owner::Begun(_)));
        if !self.pointers.pointers.values().any(is_of_begun) {
            return;
        }
        let begun: Vec<u64> = self.nodes.iter().flat_map(Daemon::begun).map(|begun| begun.since_us).collect();
        for pointer in self.pointers.pointers.values_mut() {
            for owner in [&mut pointer.least, &mut pointer.most] {
                if matches!(owner, Owner::Begun(since) if !begun.contains(since)) {
                    *owner = Owner::Free;
                }
            }
        }
    }

    /// Notes changes of which the last copy has gone bad.
    fn note_gone_bad(&mut self) {
        let bad = self.nodes.iter().flat_map(|node| &node.pointers.bad);
        // A copy that did not go bad is forgotten with its dataset, which others may still have.
        let is_there = |request: &RequestId| self.nodes.iter().any(|node| node.pointers.holds(request));
        let gone: Vec<RequestId> = bad.copied().filter(|request| !is_there(request)).collect();
        self.pointers.gone_bad.extend(gone);
    }

    pub(super) fn check_pointer_answers(&mut self) {
        self.undo_pointers();
        self.note_gone_bad();
        self.free_pointers();
        if self.nodes.iter().any(|node| !node.pointers.waiting.is_empty()) {
            let newest = self.newest_begun();
            let waiting = self.nodes.iter().flat_map(|node| node.pointers.waiting.keys());
            for request in waiting {
                if let Some(pointer) = self.pointers.pointers.get_mut(request)
                    && pointer.least != newest
                {
                    // It may be stored for either, also where it fails or is never answered.
                    (pointer.wavered, pointer.most) = (true, Owner::Free);
                }
            }
        }
        for at in 0..self.nodes.len() {
            for (request, errno) in std::mem::take(&mut self.nodes[at].pointers.answered) {
                let (owner, moment) = (self.newest_begun(), self.moment());
                let pointer = self.pointers.pointers.get_mut(&request).expect("asked for");
                if errno == 0 {
                    pointer.answered = Some(moment);
                    pointer.most = if pointer.wavered { Owner::Free } else { owner };
                    let stored = |node: &Daemon| node.pointers.had.contains(&request);
                    let nothing = pointer.says.is_none();
                    assert!(nothing || self.nodes.iter().all(stored), "{pointer:?} is not on all nodes");
                    for node in &mut self.nodes {
                        node.pointers.heard.insert(request);
                    }
                }
            }
        }
    }

    /// A dataset is committed for the first time.
    pub(super) fn pointers_sealed(&mut self, catalog: &Catalog) {
        let key = (catalog.epoch, catalog.id);
        let begun = |node: &Daemon| Some(node.datasets.get(&catalog.id)?.begun).filter(|b| *b > 0);
        let all: Vec<u64> = self.nodes.iter().filter_map(begun).collect();
        // Names were removed, and nothing was made.
        let first = all.iter().min().copied().unwrap_or_default();
        self.pointers.began.insert(key, first);
        // What goes at this moment may have gone before: by its name, or with what it was begun
        // over.
        let evicts = |id: DatasetId| self.down.iter().flatten().any(|command| *command == Command::Evict(id));
        let is_gone = |id: DatasetId| self.nodes.iter().any(|node| !node.datasets.contains_key(&id));
        let leaves = |begun: &Begun| begun.base.is_some_and(|id| evicts(id) || is_gone(id));
        let begun: Vec<Begun> = self.nodes.iter().flat_map(Daemon::begun).collect();
        let goes = begun.iter().filter(|begun| self.removing.contains(&begun.name) || leaves(begun));
        let goes = goes.map(|b| b.since_us).filter(|since| !all.contains(since));
        // Another one that began at the same moment: a time does not tell whose a pointer is.
        let tied = begun.iter().filter(|begun| begun.name != catalog.name).map(|b| b.since_us);
        let unclear: Vec<u64> = goes.chain(tied.filter(|since| all.contains(since))).collect();
        for pointer in self.pointers.pointers.values_mut().filter(|pointer| pointer.lost.is_none()) {
            let former = (pointer.least, pointer.most);
            for owner in [&mut pointer.least, &mut pointer.most] {
                if matches!(owner, Owner::Begun(since) if unclear.contains(since)) {
                    *owner = Owner::Free;
                } else if matches!(owner, Owner::Begun(since) if *since <= first || all.contains(since)) {
                    *owner = Owner::Sealed(key);
                }
            }
            if former != (pointer.least, pointer.most) {
                // Only one that became sealed by this goes back with it.
                let back =
                    |former: Owner| if matches!(former, Owner::Sealed(_)) { Owner::Free } else { former };
                pointer.was = Some((key, back(former.0), back(former.1)));
            }
        }
    }

    /// A restart presents `current`, or nothing.
    pub(super) fn check_shown(&mut self, current: Option<Key>) {
        let tree = &self.nodes[0].pointers.tree;
        for node in &self.nodes {
            assert_eq!(node.pointers.tree, *tree, "pointer files on {}", node.host);
        }
        let Some(current) = current else {
            assert!(tree.is_empty(), "pointer files without a dataset");
            self.give_up(None, None);
            return;
        };
        let later = |owner: Owner| match owner {
            Owner::None => false,
            Owner::Sealed(key) => key > current,
            Owner::Begun(_) | Owner::Free => true,
        };
        let back = |pointer: &Pointer| pointer.lost.is_some_and(|epoch| current.0.0 < epoch);
        let pointers = || self.pointers.pointers.iter().filter(|(_, p)| p.lost.is_none() || back(p));
        // What a dataset of a former branch brings with it, its branch knows.
        let comes_back = pointers().any(|(_, pointer)| back(pointer));
        for name in [b"p", b"q"] {
            let says = tree.get(name.as_slice()).copied();
            let of_name = || pointers().filter(|(_, pointer)| pointer.name == name);
            let shown = of_name().find(|(_, pointer)| says.is_some() && pointer.says == says);
            if let Some((_, pointer)) = shown {
                let free = [pointer.least, pointer.most].contains(&Owner::Free);
                assert!(free || !later(pointer.least), "{pointer:?} is later than {current:?}");
            } else {
                assert_eq!(says, None, "nobody wrote that, or it was given up");
            }
            let bad = |request: &RequestId| self.pointers.gone_bad.contains(request);
            let overruled = |old: &Pointer| {
                of_name().any(|(request, p)| bad(request) && p.answered.is_none_or(|end| end > old.asked))
            };
            let elsewhere = |pointer: &Pointer| is_elsewhere(&self.pointers.restarts, pointer, current);
            // Between its question and its answer another dataset may have begun and gone.
            let mut required = of_name().filter(|(request, pointer)| {
                let there = is_there(&self.nodes, request, pointer, Some(current));
                pointer.answered.is_some()
                    && pointer.least == pointer.most
                    && !later(pointer.most)
                    && there
                    && !self.from_prefix
                    && !comes_back
                    && !elsewhere(pointer)
                    && !overruled(pointer)
            });
            // What was asked for at the same time may have overruled it.
            let missed = match shown {
                Some((_, shown)) => {
                    let after = |pointer: &Pointer| shown.answered.is_some_and(|end| pointer.asked > end);
                    required.find(|(_, pointer)| after(pointer))
                }
                None => required.find(|(_, pointer)| {
                    let ended = |over: &Pointer| over.answered.is_none_or(|end| end > pointer.asked);
                    let free = |over: &Pointer| [over.least, over.most].contains(&Owner::Free);
                    let removes = |over: &Pointer| {
                        over.says.is_none() && (free(over) || !later(over.least)) && ended(over)
                    };
                    pointer.says.is_some() && !of_name().any(|(_, over)| removes(over))
                }),
            };
            assert!(missed.is_none(), "{missed:?} is not shown with {current:?}, but {shown:?}");
        }
        self.pointers.shown += u64::from(!tree.is_empty());
        let former = pointers().filter(|(_, pointer)| back(pointer)).filter_map(|(_, p)| p.lost).min();
        self.give_up(Some(current), former);
    }

    /// What belongs to anything later is of a branch that is given up. `former`: of a branch that
    /// was given up in that epoch; what was asked for since is of the other one.
    fn give_up(&mut self, current: Option<Key>, former: Option<u64>) {
        self.pointers.restarts.push((self.epoch, current));
        let (tree, restarts) = (&self.nodes[0].pointers.tree, &self.pointers.restarts);
        for (request, pointer) in &mut self.pointers.pointers {
            let later = |owner: Owner| match (owner, current) {
                (Owner::None, current) => current.is_none(),
                (Owner::Sealed(key), Some(current)) => key > current,
                (Owner::Sealed(_), None) | (Owner::Begun(_), _) => true,
                (Owner::Free, _) => false,
            };
            let shown = pointer.says.is_some() && tree.get(&pointer.name).copied() == pointer.says;
            let elsewhere = current.is_some_and(|current| is_elsewhere(restarts, pointer, current));
            let other = former.is_some_and(|epoch| pointer.epoch >= epoch);
            if (later(pointer.least) || other) && !shown {
                pointer.lost.get_or_insert(self.epoch);
            }
            if shown {
                pointer.lost = None;
            }
            // It went with its nodes, or is with one that is away; or a branch may have come back
            // that had overruled it.
            let away =
                self.from_prefix || former.is_some() || !is_there(&self.nodes, request, pointer, current);
            let overruled = away && !shown && (tree.contains_key(&pointer.name) || pointer.says.is_some());
            if later(pointer.least) || later(pointer.most) || overruled || elsewhere {
                // It may belong to either, be of another branch, or have gone with its nodes: it is
                // not asked for any more.
                pointer.most = Owner::Free;
            }
        }
        let Oracle { began, given_up, .. } = &mut self.pointers;
        given_up.extend(began.extract_if(.., |key, _| current.is_none_or(|current| *key > current)));
        began.extend(current.and_then(|current| given_up.remove_entry(&current)));
    }
}

/// Written after a restart that presented something older: of another branch than `current`.
fn is_elsewhere(restarts: &[(u64, Option<Key>)], pointer: &Pointer, current: Key) -> bool {
    restarts
        .iter()
        .any(|(epoch, shown)| (current.0.0 + 1..=pointer.epoch).contains(epoch) && *shown < Some(current))
}

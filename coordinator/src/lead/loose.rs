//! Pointer files, ordered in rounds (`scrfs/docs/protocol.md`, Pointer files): ask which datasets
//! have begun, store on all nodes, finish.
//!
//! All requests that arrived while a round ran go together into the next one. The answers to the
//! question tell to which dataset its versions belong: a file that was made before the pointer, on
//! any node, is known by then. When a dataset is about to be committed, versions that belong to it
//! are bound to its id first, so that whoever has its COMPLETE has them bound.

mod epoch;
mod rounds;

use std::collections::{BTreeMap, BTreeSet};

use scrfs::control::Command;
use scrfs::control::loose::{Age, Begun, LooseInventory, LooseOwner, LooseSet};
use scrfs::dataset::Catalog;
use scrfs::ids::DatasetId;

use self::rounds::Rounds;
use super::answers::Answers;
use super::cluster::Cluster;
use super::loose_set::Sets;
use super::spread::Spread;
use super::versions::Versions;

/// What the seals of this moment mean for new versions.
#[derive(Debug, Clone, Copy)]
pub(super) struct Now<'a> {
    /// The dataset that is being committed, which may be complete on some nodes.
    pub(super) committing: Option<&'a Catalog>,
}

/// A dataset that is being committed.
#[derive(Debug)]
pub(super) struct Commit {
    age: Age,
    name: Vec<u8>,
    /// It does not come to nothing any more.
    is_decided: bool,
}

impl Commit {
    pub(super) fn of(catalog: &Catalog, is_decided: bool) -> Self {
        Self { age: age_of(catalog), name: catalog.name.clone(), is_decided }
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Loose {
    /// What the nodes have, until all have told.
    pub(super) telling: Option<Answers<LooseInventory>>,
    pub(super) versions: Versions,
    spread: Option<Spread>,
    rounds: Rounds,
    /// The newest dataset that was sealed, also when it is gone.
    newest: Age,
    /// Datasets that have begun and are not sealed, and when.
    begun: BTreeMap<Vec<u8>, u64>,
    /// When sealed ones began, as far as this epoch knows.
    pub(super) sealed: BTreeMap<Age, u64>,
    /// When what is being frozen began, as its nodes have told so far; 0: nothing has.
    freezing: BTreeMap<DatasetId, u64>,
    /// Datasets that are complete on some nodes perhaps, and not known to be on all.
    pub(super) doubts: Vec<Age>,
    /// What the caches had when the epoch began, until another dataset is sealed: also what is not
    /// listed may be presented by a restart.
    pub(super) held: Vec<Age>,
    /// A dataset was sealed: branches that were given up do not come back.
    onward: bool,
    /// What was being committed when an input came last.
    committed: Option<Commit>,
    /// Seals that came to nothing when the epoch began, and what they would have sealed.
    pub(super) dropped: BTreeMap<Age, Vec<u8>>,
    pub(super) sets: Sets,
}

pub(super) fn age_of(catalog: &Catalog) -> Age {
    Age { epoch: catalog.epoch, id: catalog.id }
}

impl Loose {
    /// The seal of `age` has come to nothing.
    fn unseal(&mut self, age: Age, name: Vec<u8>) {
        let since_us = self.sealed.remove(&age).unwrap_or(u64::MAX);
        let after = self.sealed.range(..age).next_back().map(|(age, _)| *age).unwrap_or_default();
        self.versions.unseal(age, &LooseOwner::Begun { name, since_us, after });
    }

    /// The newest dataset that is known to have been sealed, of the branch that goes on.
    fn newest_known(&self, cluster: &Cluster) -> Age {
        let known = cluster.datasets.all().map(age_of).chain(self.sealed.keys().copied());
        known.filter(|age| !self.versions.is_lost_dataset(*age)).max().unwrap_or_default()
    }

    /// What is being committed now: what was, and is not complete, has come to nothing.
    pub(super) fn commits(&mut self, cluster: &Cluster, now: Option<Commit>) {
        let same = |age: Age| now.as_ref().is_some_and(|current| current.age == age);
        if let Some(Commit { age, name, .. }) = self.committed.take()
            && !same(age)
            && cluster.datasets.any(age.id).is_none()
        {
            self.unseal(age, name);
            if self.newest == age {
                self.newest = self.newest_known(cluster);
            }
        }
        self.committed = now;
    }

    /// Only what goes with `kept` is kept from now on; no node is to know the datasets of `gaps`
    /// that are not known here.
    fn forget_datasets(&mut self, cluster: &mut Cluster, kept: &[Age], gaps: BTreeSet<Age>) {
        let mut datasets = gaps;
        datasets.retain(|age| !self.sealed.contains_key(age));
        datasets.extend(self.sealed.keys().filter(|age| !kept.contains(age)));
        self.sealed.retain(|age, _| kept.contains(age));
        let datasets: Vec<Age> = datasets.into_iter().collect();
        if !datasets.is_empty() {
            cluster.send_all(Command::LooseForget { versions: Vec::new(), datasets });
        }
    }

    /// Datasets of which pointer files are kept.
    fn ages(&self, cluster: &Cluster) -> Vec<Age> {
        let others = self.doubts.iter().chain(&self.held).chain([&self.newest]).copied();
        cluster.datasets.all().map(age_of).chain(others).collect()
    }

    /// Takes in what has begun on all nodes.
    fn learn(&mut self, cluster: &Cluster, now: Now<'_>, told: impl Iterator<Item = Begun>) {
        let mut there: BTreeMap<Vec<u8>, u64> = BTreeMap::new();
        for Begun { name, base, since_us } in told {
            let over = now.committing.filter(|catalog| catalog.name == name).map(|catalog| catalog.id);
            if base != over.or_else(|| cluster.datasets.named(&name)) {
                // What that node had begun is sealed, or gone, meanwhile.
                continue;
            }
            // What began at a time that nobody knows is taken for the newest.
            let since_us = if since_us == 0 { u64::MAX } else { since_us };
            let first = there.entry(name).or_insert(since_us);
            *first = (*first).min(since_us);
        }
        self.begun.retain(|name, _| there.contains_key(name));
        for (name, since) in there {
            if since == u64::MAX {
                self.begun.entry(name).or_insert(cluster.now);
            } else {
                // It may be another one than before that has the name.
                self.begun.insert(name, since);
            }
        }
    }

    /// To which dataset a version belongs that is made now.
    fn owner(&self, cluster: &Cluster, now: Now<'_>) -> LooseOwner {
        let newest = cluster.datasets.all().chain(now.committing).max_by_key(|catalog| age_of(catalog));
        let doubt = self.doubts.iter().copied().max().unwrap_or_default();
        let after = newest.map(age_of).unwrap_or_default().max(self.newest).max(doubt);
        let created = newest.filter(|catalog| age_of(catalog) == after).map(|catalog| catalog.created_us);
        let sealed_began = self.sealed.get(&after).copied().or(created);
        match self.begun.iter().max_by_key(|(_, since)| **since) {
            Some((name, since)) if sealed_began.is_none_or(|sealed| *since >= sealed) => {
                LooseOwner::Begun { name: name.clone(), since_us: *since, after }
            }
            _ => LooseOwner::Sealed(after),
        }
    }

    fn prune(&mut self, cluster: &mut Cluster) {
        // Nothing is pruned while a round or a spread runs, or a commit that may fail: then its
        // versions belong to an unsealed dataset again. One that cannot fail may go on for as long
        // as a node's disk is full.
        let may_fail = self.committed.as_ref().is_some_and(|commit| !commit.is_decided);
        if !self.rounds.is_idle() || self.spread.is_some() || may_fail {
            return;
        }
        let kept = self.ages(cluster);
        let versions = self.versions.prune(&kept, !self.onward);
        // First: a dataset that a node knows has all its versions there.
        self.forget_datasets(cluster, &kept, BTreeSet::new());
        if !versions.is_empty() {
            cluster.send_all(Command::LooseForget { versions, datasets: Vec::new() });
        }
    }

    /// A node's part of a dataset is frozen, and began then (0: it has none).
    pub(super) fn frozen(&mut self, id: DatasetId, begun_us: u64) {
        let first = self.freezing.entry(id).or_default();
        if *first == 0 || (begun_us != 0 && begun_us < *first) {
            *first = begun_us;
        }
    }

    /// A dataset is about to be committed: the versions that belong to it are bound before.
    pub(super) fn committing(&mut self, cluster: &mut Cluster, catalog: &Catalog) {
        let frozen = self.freezing.remove(&catalog.id);
        self.freezing.retain(|id, _| *id > catalog.id);
        let known = self.begun.remove(&catalog.name);
        // None (0) where names were removed and no file was made, or is there any more: it has no
        // versions but those of its name.
        let begun = frozen.or(known).unwrap_or_default();
        let age = age_of(catalog);
        self.sealed.insert(age, begun);
        self.newest = self.newest.max(age);
        let bound = self.versions.bind(&catalog.name, begun, age);
        let began = vec![(age, begun)];
        cluster.at_front(|cluster| cluster.send_all(Command::LooseBind { bound, began }));
    }

    /// It is complete everywhere.
    pub(super) fn sealed(&mut self, cluster: &mut Cluster) {
        self.committed = None;
        self.held.clear();
        self.onward = true;
        self.prune(cluster);
    }

    /// A dataset's directory is gone everywhere.
    pub(super) fn removed(&mut self, cluster: &mut Cluster, name: &[u8]) {
        self.begun.remove(name);
        let mut bound = self.versions.unbind(name, &self.begun, &self.sealed);
        // What they belong to instead may have been bound meanwhile.
        for (age, began) in self.sealed.iter().filter(|_| !bound.is_empty()).collect::<Vec<_>>() {
            bound.extend(self.versions.bind(b"", *began, *age));
        }
        if !bound.is_empty() {
            cluster.send_all(Command::LooseBind { bound, began: Vec::new() });
        }
    }

    /// A dataset's directory has another name everywhere.
    pub(super) fn renamed(&mut self, cluster: &mut Cluster, from: &[u8], to: &[u8], exchange: bool) {
        if !exchange {
            self.removed(cluster, to);
        }
        let (moved, back) = (self.begun.remove(from), self.begun.remove(to));
        self.begun.extend(moved.map(|since| (to.to_vec(), since)));
        if exchange {
            self.begun.extend(back.map(|since| (from.to_vec(), since)));
        }
        let bound = self.versions.renamed(from, to, exchange);
        if !bound.is_empty() {
            cluster.send_all(Command::LooseBind { bound, began: Vec::new() });
        }
    }

    /// What the prefix is to keep with a dataset that is about to be published, or is there.
    pub(super) fn publish(&mut self, cluster: &mut Cluster, age: Age) {
        // While bytes are still being read the set is put afterwards.
        if self.spread.is_none() {
            cluster.at_front(|cluster| self.sets.put(cluster, &self.versions, age));
        }
    }

    /// Time passed.
    pub(super) fn tick(&mut self, cluster: &mut Cluster) {
        if let Some(spread) = &mut self.spread {
            spread.tick(cluster, &self.versions);
            self.spread_on(cluster);
        }
        self.sets.tick(cluster, &self.versions);
    }

    /// What is on the PFS was found out, or is new.
    pub(super) fn refresh(&mut self, cluster: &mut Cluster) {
        if self.spread.is_none() {
            self.sets.changed(cluster, &self.versions);
        }
    }

    /// The prefix's set of a dataset that was fetched from there.
    pub(super) fn fetched(&mut self, age: Age, set: Option<LooseSet>) {
        self.sets.fetched(age, set);
    }
}

#[cfg(test)]
mod tests {
    use scrfs::control::loose::{LooseBase, LooseEntry, LooseKind, LooseStamp, LooseVersion};
    use scrfs::ids::{Epoch, NodeRank, RequestId};

    use super::super::flush::tests::catalog;
    use super::super::recover::Chosen;
    use super::*;
    use crate::lead::Output;
    use crate::settings::tests::settings;

    #[test]
    fn what_a_commit_that_may_fail_overrules_stays_until_it_cannot() {
        for fails in [true, false] {
            let mut cluster = Cluster::new(Epoch(1), vec!["a".to_owned()], settings(), 0);
            let mut loose = Loose::default();
            for (serial, name) in [(1, "ck.1"), (2, "ck.2")] {
                let (name, since_us) = (name.as_bytes().to_vec(), serial * 10);
                let owner = LooseOwner::Begun { name: name.clone(), since_us, after: Age::default() };
                let (stamp, request) =
                    (LooseStamp { epoch: Epoch(1), serial }, RequestId { origin: 1, serial });
                let kind = LooseKind::Symlink(name.clone());
                let entry = LooseEntry { kind, ..LooseEntry::gone(b"latest".to_vec()) };
                loose.versions.insert(LooseVersion { stamp, request, owner, entry });
                loose.begun.insert(name, since_us);
            }
            let catalog = Catalog { name: b"ck.2".to_vec(), ..catalog(2) };
            loose.committing(&mut cluster, &catalog);
            loose.commits(&cluster, Some(Commit::of(&catalog, false)));
            loose.prune(&mut cluster);
            let of = |loose: &Loose| loose.versions.iter().map(|version| version.owner.clone()).collect();
            let sealed = LooseOwner::Sealed(age_of(&catalog));
            assert_eq!(of(&loose), vec![sealed.clone(), sealed.clone()]);
            if fails {
                loose.commits(&cluster, None);
                let owners: Vec<LooseOwner> = of(&loose);
                assert!(
                    matches!(&owners[0], LooseOwner::Begun { name, .. } if name == b"ck.1"),
                    "{owners:?}"
                );
            } else {
                // It is recorded on some nodes, and others try it again and again.
                loose.commits(&cluster, Some(Commit::of(&catalog, true)));
                loose.prune(&mut cluster);
                assert_eq!(of(&loose), vec![sealed.clone()]);
                loose.sealed(&mut cluster);
                assert_eq!(of(&loose), vec![sealed]);
            }
        }
    }

    #[test]
    fn for_a_lead_that_attaches_the_newest_dataset_stays_that_when_it_leaves() {
        let age = |id| Age { epoch: Epoch(1), id: DatasetId(id) };
        // It leaves under this lead; it left under the one before; a newer one was given up.
        for (there, shown, newest) in [(&[3][..], None, 3), (&[], None, 3), (&[2], Some(2), 2)] {
            let mut cluster = Cluster::new(Epoch(3), vec!["a".to_owned()], settings(), 0);
            for id in there {
                cluster.datasets.insert(catalog(*id).into(), false);
            }
            let mut loose = Loose::begin_epoch(&mut cluster);
            let base = shown.map(|id| LooseBase { epoch: Epoch(2), shown: age(id) });
            let began = vec![(age(2), 20), (age(3), 30)];
            assert!(
                loose.inventory(NodeRank(0), LooseInventory { base, began, ..LooseInventory::default() })
            );
            loose.attach(&mut cluster, &[], &[]);
            for id in there {
                cluster.datasets.remove(DatasetId(*id));
            }
            let owner = loose.owner(&cluster, Now { committing: None });
            assert_eq!(owner, LooseOwner::Sealed(age(newest)), "{there:?}, {shown:?}");
        }
    }

    #[test]
    fn a_dataset_began_when_the_first_of_its_nodes_began_it() {
        let mut cluster = Cluster::new(Epoch(1), vec!["a".to_owned(), "b".to_owned()], settings(), 0);
        let mut loose = Loose::default();
        // At the last round node b alone had begun ck.1; node a had done so before ck.2.
        loose.begun.extend([(b"ck.1".to_vec(), 80), (b"ck.2".to_vec(), 50)]);
        let owner = LooseOwner::Begun { name: b"ck.2".to_vec(), since_us: 50, after: Age::default() };
        let stamp = LooseStamp { epoch: Epoch(1), serial: 1 };
        let request = RequestId { origin: 1, serial: 1 };
        let kind = LooseKind::Symlink(b"ck.2".to_vec());
        let entry = LooseEntry { kind, ..LooseEntry::gone(b"latest".to_vec()) };
        loose.versions.insert(LooseVersion { stamp, request, owner: owner.clone(), entry });
        for begun_us in [80, 20] {
            loose.frozen(DatasetId(1), begun_us);
        }
        loose.committing(&mut cluster, &Catalog { name: b"ck.1".to_vec(), ..catalog(1) });
        assert_eq!(loose.versions.get(stamp).unwrap().owner, owner);
    }

    #[test]
    fn what_was_made_in_a_dataset_and_is_gone_by_its_seal_has_not_begun_it() {
        let mut cluster = Cluster::new(Epoch(1), vec!["a".to_owned(), "b".to_owned()], settings(), 0);
        let mut loose = Loose::default();
        // At the last round a new file of ck.1 was there, which was removed before the freeze.
        loose.begun.extend([(b"ck.1".to_vec(), 80), (b"ck.2".to_vec(), 50)]);
        loose.frozen(DatasetId(1), 0);
        loose.frozen(DatasetId(1), 0);
        let catalog = Catalog { name: b"ck.1".to_vec(), ..catalog(1) };
        loose.committing(&mut cluster, &catalog);
        let now = Now { committing: Some(&catalog) };
        let owner = loose.owner(&cluster, now);
        assert!(matches!(&owner, LooseOwner::Begun { name, .. } if name == b"ck.2"), "{owner:?}");
    }

    /// A node that took no part in a restart comes back: what it knows, others have forgotten.
    #[test]
    fn a_dataset_of_which_others_have_forgotten_versions_is_known_to_nobody() {
        let mut cluster = Cluster::new(Epoch(9), vec!["a".to_owned(), "b".to_owned()], settings(), 0);
        let age = |epoch, id| Age { epoch: Epoch(epoch), id: DatasetId(id) };
        let mut loose = Loose::begin_epoch(&mut cluster);
        for (node, epoch, began) in [(0, 6, age(5, 7)), (1, 7, age(8, 8))] {
            let base = Some(LooseBase { epoch: Epoch(epoch), shown: age(5, 7) });
            let inventory = LooseInventory { base, began: vec![(began, 1)], ..LooseInventory::default() };
            assert!(loose.inventory(NodeRank(node), inventory));
        }
        let newest = Catalog { epoch: Epoch(8), ..catalog(8) };
        assert!(loose.present(&mut cluster, &[Chosen::cached(newest)], false));
        assert_eq!(loose.sealed.keys().copied().collect::<Vec<_>>(), [age(8, 8)]);
        let forgotten = cluster.take_outputs().into_iter().find_map(|output| match output {
            Output::Command(nodes, Command::LooseForget { datasets, .. }) => Some((nodes.len(), datasets)),
            _ => None,
        });
        assert_eq!(forgotten, Some((2, vec![age(5, 7)])));
    }
}

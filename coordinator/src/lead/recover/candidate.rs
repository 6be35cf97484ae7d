//! The datasets that a restart may present, and those that it has chosen.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use scrfs::control::Command;
use scrfs::dataset::Catalog;
use scrfs::ids::{DatasetId, Epoch, Member, NodeRank};
use scrfs::prefix::StoredDataset;

use super::super::cluster::Cluster;
use super::super::held::Held;

/// A dataset that may be presented: what caches have of it, and what the prefix has.
#[derive(Debug, Clone)]
pub(super) struct Candidate {
    pub(super) id: DatasetId,
    pub(super) held: Option<Held>,
    pub(super) stored: Option<StoredDataset>,
}

impl Candidate {
    /// Its name and id.
    pub(super) fn in_words(&self) -> String {
        let held = self.held.as_ref().map(|held| &held.name);
        let name = held.or(self.stored.as_ref().map(|stored| &stored.name));
        let name = name.map(|name| String::from_utf8_lossy(name)).unwrap_or_default();
        format!("{name} (dataset {})", self.id)
    }

    pub(super) fn age(&self) -> Option<(Epoch, DatasetId)> {
        let held = self.held.as_ref().map(|held| held.epoch);
        held.or(self.stored.as_ref().map(|stored| stored.epoch)).map(|epoch| (epoch, self.id))
    }

    /// What has another name in the prefix is another job's, from before this job used the prefix.
    pub(super) fn is(&self, stored: &StoredDataset) -> bool {
        let held = self.held.as_ref().map(|held| &held.name);
        let name = held.or(self.stored.as_ref().map(|stored| &stored.name));
        self.age() == Some((stored.epoch, stored.id)) && name == Some(&stored.name)
    }
}

/// A dataset that is presented.
#[derive(Debug)]
pub(in crate::lead) struct Chosen {
    pub(in crate::lead) catalog: Arc<Catalog>,
    /// It is on the PFS.
    pub(in crate::lead) flushed: bool,
    /// A node has recorded that it is, though it is not.
    pub(in crate::lead) marked: bool,
    /// Members that no node has yet.
    pub(in crate::lead) absent: BTreeSet<Member>,
}

#[cfg(test)]
impl Chosen {
    /// One that the caches have whole.
    pub(in crate::lead) fn cached(catalog: Catalog) -> Self {
        Self { catalog: Arc::new(catalog), flushed: false, marked: false, absent: BTreeSet::new() }
    }
}

/// Joins what caches and prefix have, newest (epoch, id) first.
pub(super) fn candidates(held: Vec<(DatasetId, Held)>, stored: Vec<StoredDataset>) -> VecDeque<Candidate> {
    let mut all: BTreeMap<(Epoch, DatasetId), Candidate> = BTreeMap::new();
    for (id, held) in held {
        all.insert((held.epoch, id), Candidate { id, held: Some(held), stored: None });
    }
    for dataset in stored {
        let key = (dataset.epoch, dataset.id);
        let new = Candidate { id: dataset.id, held: None, stored: None };
        let candidate = all.entry(key).or_insert(new);
        if candidate.held.is_none() || candidate.is(&dataset) {
            candidate.stored = Some(dataset);
        }
    }
    all.into_values().rev().collect()
}

/// Without the datasets that this job is not to go on from (`scrfs-run --fresh`): what caches have
/// of these is put aside.
pub(super) fn not_before(
    cluster: &mut Cluster,
    held: Vec<(DatasetId, Held)>,
    stored: Vec<StoredDataset>,
) -> (Vec<(DatasetId, Held)>, Vec<StoredDataset>) {
    let floor = Epoch(cluster.settings.restart.not_before);
    if floor > Epoch(0) {
        cluster.note("earlier datasets are left alone: the job was started afresh (--fresh)".to_owned());
    }
    let (old, held): (Vec<_>, _) = held.into_iter().partition(|(_, held)| held.epoch < floor);
    for (id, held) in old {
        aside(cluster, id, &held);
    }
    (held, stored.into_iter().filter(|stored| stored.epoch >= floor).collect())
}

/// What is left of it stays in the caches until a newer dataset is sealed, save where COMPLETE was
/// never recorded: there it would keep the next dataset of its name from being sealed.
pub(super) fn aside(cluster: &mut Cluster, id: DatasetId, held: &Held) {
    cluster.datasets.put_aside(id);
    // Others under its id are given up in their turn.
    let keep: BTreeSet<NodeRank> =
        held.complete().map(|(node, _)| node).chain(held.strangers.iter().copied()).collect();
    for node in cluster.nodes().filter(|node| !keep.contains(node)) {
        let reason = "the job does not go on from its dataset".into();
        cluster.send(node, Command::Drop { id, reason });
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::lead::recover) fn held(epoch: u64) -> Held {
        Held { epoch: Epoch(epoch), name: b"ck".to_vec(), nodes: BTreeMap::new(), strangers: Vec::new() }
    }

    pub(in crate::lead::recover) fn stored(epoch: u64, id: u64) -> StoredDataset {
        StoredDataset {
            id: DatasetId(id),
            epoch: Epoch(epoch),
            name: b"ck".to_vec(),
            directory: b"/pfs/ck".to_vec(),
            created_us: None,
            usable: true,
            current: false,
        }
    }

    #[test]
    fn newest_first_from_caches_and_prefix() {
        let caches = [(5, 3), (4, 3), (9, 2)].map(|(id, epoch)| (DatasetId(id), held(epoch)));
        let other = StoredDataset { name: b"another job's".to_vec(), ..stored(2, 9) };
        let found = candidates(caches.into(), vec![stored(3, 4), other, stored(1, 7), stored(4, 1)]);
        let shown: Vec<_> = found.iter().map(|c| (c.id.0, c.held.is_some(), c.stored.is_some())).collect();
        assert_eq!(
            shown,
            [(1, false, true), (5, true, false), (4, true, true), (9, true, false), (7, false, true)]
        );
    }
}

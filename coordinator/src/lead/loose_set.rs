//! Pointer files in the prefix: with each flushed dataset the versions that it is presented with.

use std::collections::BTreeMap;

use scrfs::control::loose::{Age, LooseSet, LooseStamp};
use scrfs::prefix::{PfsTask, StoredDataset};

use super::cluster::Cluster;
use super::policy::{MS, delay};
use super::versions::Versions;

/// Tries to put one set.
const TRIES: u32 = 6;
/// A restart waits no longer for a set than this, microseconds.
const READ_LIMIT: u64 = 30_000 * MS;
/// Until it is asked for again.
const READ_AGAIN: u64 = 500 * MS;

#[derive(Debug, Default)]
struct Put {
    /// What the prefix has, or is about to have.
    stamps: Vec<LooseStamp>,
    tries: u32,
    /// It failed; again at this time.
    again: Option<u64>,
    /// A task with a set of it has no outcome yet.
    running: bool,
    /// The set that goes when there is one: a prefix may be slower than programs are.
    next: Option<Box<LooseSet>>,
}

impl Put {
    /// One at a time: each has all bytes of the set.
    fn send(&mut self, cluster: &mut Cluster, set: Box<LooseSet>) {
        if self.running {
            self.next = Some(set);
        } else {
            self.running = true;
            cluster.pfs(PfsTask::PutLoose(set));
        }
    }

    /// The task has an outcome.
    fn ended(&mut self, cluster: &mut Cluster) {
        self.running = false;
        if let Some(next) = self.next.take() {
            self.send(cluster, next);
        }
    }
}

#[derive(Debug)]
enum Read {
    Asked(Age, u64),
    Again { age: Age, since: u64, at: u64 },
    Done(Age, Option<LooseSet>),
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Sets {
    puts: BTreeMap<Age, Put>,
    read: Option<Read>,
}

impl Sets {
    /// The set of `age` belongs in the prefix.
    pub(super) fn put(&mut self, cluster: &mut Cluster, versions: &Versions, age: Age) {
        let set = versions.set_of(age);
        let stamps: Vec<LooseStamp> = set.versions.iter().map(|version| version.stamp).collect();
        let known = self.puts.get(&age);
        let same = match known {
            Some(put) => put.stamps == stamps && put.again.is_none(),
            None => stamps.is_empty(),
        };
        if same {
            return;
        }
        let tries = known.filter(|put| put.stamps == stamps).map_or(0, |put| put.tries);
        let put = self.puts.entry(age).or_default();
        (put.stamps, put.tries, put.again) = (stamps, tries, None);
        put.send(cluster, Box::new(set));
    }

    /// The prefix has a set of `age`.
    pub(super) fn done(&mut self, cluster: &mut Cluster, age: Age) {
        if let Some(put) = self.puts.get_mut(&age) {
            put.ended(cluster);
        }
    }

    /// Versions are new: the newest dataset that is on the PFS may be presented with them.
    pub(super) fn changed(&mut self, cluster: &mut Cluster, versions: &Versions) {
        let on_pfs = cluster.datasets.newest_first().into_iter().find(|known| known.flushed);
        let newest = on_pfs.map(|known| Age { epoch: known.catalog.epoch, id: known.catalog.id });
        // Of a dataset that has left the caches not all versions are known any more.
        self.puts.retain(|age, put| put.running || cluster.datasets.get(age.id).is_some());
        let is_newer = |age: &Age| Some(*age) > newest && cluster.datasets.get(age.id).is_some();
        let published: Vec<Age> =
            newest.into_iter().chain(self.puts.keys().copied().filter(is_newer)).collect();
        for age in published {
            self.put(cluster, versions, age);
        }
        // Older ones do not change any more.
        self.puts.retain(|age, put| put.running || newest.is_none_or(|newest| *age >= newest));
    }

    /// A set could not be put.
    pub(super) fn failed(&mut self, cluster: &mut Cluster, age: Age, reason: &str) {
        let Some(put) = self.puts.get_mut(&age) else { return };
        let has_next = put.next.is_some();
        put.ended(cluster);
        if has_next {
            cluster.log(format!("pointer files of dataset {}: {reason}; newer ones are put now", age.id));
            return;
        }
        put.tries += 1;
        if put.tries < TRIES {
            put.again = Some(cluster.now + delay(put.tries, 1_000 * MS, 60_000 * MS));
            cluster.warn(format!(
                "pointer files of dataset {} are not in the prefix, it will be tried again: {reason}",
                age.id
            ));
        } else {
            cluster.warn(format!(
                "pointer files of dataset {} are not in the prefix, it was tried {TRIES} times: {reason}",
                age.id
            ));
        }
    }

    pub(super) fn tick(&mut self, cluster: &mut Cluster, versions: &Versions) {
        let due = |put: &Put| put.again.is_some_and(|again| again <= cluster.now);
        self.puts.retain(|age, put| put.again.is_none() || cluster.datasets.get(age.id).is_some());
        let due: Vec<Age> = self.puts.iter().filter(|(_, put)| due(put)).map(|(age, _)| *age).collect();
        for age in due {
            self.put(cluster, versions, age);
        }
    }

    /// Asks for the set of a dataset that was fetched from the prefix. True when it is there, or
    /// will not come.
    pub(super) fn wants(&mut self, cluster: &mut Cluster, stored: &StoredDataset) -> bool {
        let age = Age { epoch: stored.epoch, id: stored.id };
        match &self.read {
            Some(Read::Done(of, _)) if *of == age => true,
            Some(Read::Asked(of, since)) if *of == age => {
                let late = cluster.now > since + READ_LIMIT;
                if late {
                    cluster.warn("the prefix does not give its pointer files in time".to_owned());
                    self.read = Some(Read::Done(age, None));
                }
                late
            }
            Some(Read::Again { age: of, since, at }) if *of == age => {
                if cluster.now > since + READ_LIMIT {
                    cluster.warn("the prefix does not give its pointer files".to_owned());
                    self.read = Some(Read::Done(age, None));
                    return true;
                }
                if cluster.now >= *at {
                    cluster.pfs(PfsTask::ReadLoose(age));
                    self.read = Some(Read::Asked(age, *since));
                }
                false
            }
            _ => {
                cluster.pfs(PfsTask::ReadLoose(age));
                self.read = Some(Read::Asked(age, cluster.now));
                false
            }
        }
    }

    /// The prefix has answered, perhaps too late.
    pub(super) fn fetched(&mut self, age: Age, set: Option<LooseSet>) {
        if matches!(self.read, Some(Read::Asked(of, _)) if of == age) {
            self.read = Some(Read::Done(age, set.filter(|set| set.age == age)));
        }
    }

    /// The prefix did not answer; it is asked again.
    pub(super) fn unread(&mut self, cluster: &Cluster, age: Age) {
        if let Some(Read::Asked(of, since)) = self.read
            && of == age
        {
            self.read = Some(Read::Again { age, since, at: cluster.now + READ_AGAIN });
        }
    }

    pub(super) fn take_read(&mut self) -> Option<LooseSet> {
        match self.read.take() {
            Some(Read::Done(_, set)) => set,
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use scrfs::control::loose::{LooseEntry, LooseKind, LooseOwner, LooseVersion};
    use scrfs::ids::{DatasetId, Epoch, RequestId};

    use super::*;
    use crate::lead::Output;
    use crate::lead::flush::tests::catalog;
    use crate::settings::tests::settings;

    const AGE: Age = Age { epoch: Epoch(1), id: DatasetId(1) };

    struct Bench {
        cluster: Cluster,
        versions: Versions,
        sets: Sets,
    }

    impl Bench {
        /// A dataset that is on the PFS.
        fn new() -> Self {
            let mut cluster = Cluster::new(Epoch(1), vec!["a".to_owned()], settings(), 100);
            cluster.datasets.insert(catalog(1).into(), true);
            Self { cluster, versions: Versions::default(), sets: Sets::default() }
        }

        /// A program has closed a pointer file.
        fn closed(&mut self, serial: u64) -> Vec<u64> {
            let (stamp, request) = (LooseStamp { epoch: Epoch(1), serial }, RequestId { origin: 1, serial });
            let kind = LooseKind::Symlink(b"ck.1".to_vec());
            let entry = LooseEntry { kind, ..LooseEntry::gone(b"latest".to_vec()) };
            let owner = LooseOwner::Sealed(AGE);
            self.versions.insert(LooseVersion { stamp, request, owner, entry });
            self.sets.changed(&mut self.cluster, &self.versions);
            self.put()
        }

        /// The newest version of each set that is put.
        fn put(&mut self) -> Vec<u64> {
            let outputs = self.cluster.take_outputs().into_iter();
            let puts = outputs.filter_map(|output| match output {
                Output::Pfs(PfsTask::PutLoose(set)) => {
                    set.versions.iter().map(|version| version.stamp.serial).max()
                }
                _ => None,
            });
            puts.collect()
        }

        fn done(&mut self) -> Vec<u64> {
            self.sets.done(&mut self.cluster, AGE);
            self.put()
        }
    }

    #[test]
    fn a_prefix_that_is_slower_than_programs_has_one_set_at_a_time() {
        let mut bench = Bench::new();
        let put: Vec<Vec<u64>> = (1..=5).map(|serial| bench.closed(serial)).collect();
        assert_eq!(put, [vec![1], vec![], vec![], vec![], vec![]]);
        // What goes is put nonetheless.
        bench.cluster.datasets.remove(DatasetId(1));
        bench.sets.changed(&mut bench.cluster, &bench.versions);
        assert!(bench.put().is_empty());
        assert_eq!([bench.done(), bench.done()], [vec![5], vec![]]);
        bench.sets.changed(&mut bench.cluster, &bench.versions);
        assert!(bench.sets.puts.is_empty());
    }

    #[test]
    fn a_set_that_fails_gives_way_to_a_newer_one() {
        let mut bench = Bench::new();
        assert_eq!([bench.closed(1), bench.closed(2)], [vec![1], vec![]]);
        bench.sets.failed(&mut bench.cluster, AGE, "EIO");
        assert_eq!(bench.put(), [2]);
        bench.sets.failed(&mut bench.cluster, AGE, "EIO");
        assert!(bench.put().is_empty());
        bench.cluster.now += 60_000 * MS;
        bench.sets.tick(&mut bench.cluster, &bench.versions);
        assert_eq!(bench.put(), [2]);
        assert_eq!([bench.done(), bench.closed(2), bench.closed(3)], [vec![], vec![], vec![3]]);
    }
}

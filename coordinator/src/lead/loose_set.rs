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
        self.puts.insert(age, Put { stamps, tries, again: None });
        cluster.pfs(PfsTask::PutLoose(Box::new(set)));
    }

    /// Versions are new: the newest dataset that is on the PFS may be presented with them.
    pub(super) fn changed(&mut self, cluster: &mut Cluster, versions: &Versions) {
        let on_pfs = cluster.datasets.newest_first().into_iter().find(|known| known.flushed);
        let newest = on_pfs.map(|known| Age { epoch: known.catalog.epoch, id: known.catalog.id });
        // Of a dataset that has left the caches not all versions are known any more.
        self.puts.retain(|age, _| cluster.datasets.get(age.id).is_some());
        let published: Vec<Age> =
            newest.into_iter().chain(self.puts.keys().copied().filter(|age| Some(*age) > newest)).collect();
        for age in published {
            self.put(cluster, versions, age);
        }
        // Older ones do not change any more.
        self.puts.retain(|age, _| newest.is_none_or(|newest| *age >= newest));
    }

    /// A set could not be put.
    pub(super) fn failed(&mut self, cluster: &mut Cluster, age: Age, reason: &str) {
        let Some(put) = self.puts.get_mut(&age) else { return };
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

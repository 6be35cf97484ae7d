//! Members that no node has, rebuilt behind the programs: a lazy restart presents a dataset before
//! that (`SCRFS_RESTART`), and coordinators that attach may find one so. The newest dataset goes
//! first. What a program opens meanwhile waits for the rebuild of its member, which begins at once.

use std::collections::BTreeMap;

use scrfs::ids::{DatasetId, Member};

use super::cluster::Cluster;
use super::datasets::{Known, age};
use super::policy::{MS, delay};

/// Rebuilds of one member that fail before it is left to the next restart.
const TRIES_MAX: u32 = 5;

/// The members that could not be restored yet: how often that was tried, and when it may be again.
#[derive(Debug, Default)]
pub(super) struct Restores(BTreeMap<(DatasetId, Member), (u32, u64)>);

impl Restores {
    /// The absent members to be rebuilt now: those of the newest dataset that has any.
    pub(super) fn due(&self, cluster: &Cluster) -> Vec<(DatasetId, Member)> {
        let lacking = cluster.datasets.lacking().filter(|known| self.goes_on(known));
        let Some(known) = lacking.max_by_key(|known| age(&known.catalog)) else { return Vec::new() };
        let id = known.catalog.id;
        let may_begin = |member: &&Member| {
            self.0.get(&(id, **member)).is_none_or(|(tries, at)| *tries < TRIES_MAX && *at <= cluster.now)
        };
        known.absent.iter().filter(may_begin).map(|member| (id, *member)).collect()
    }

    /// Some absent member of it is not given up.
    pub(super) fn goes_on(&self, known: &Known) -> bool {
        let tries = |member: &Member| self.0.get(&(known.catalog.id, *member)).map_or(0, |(tries, _)| *tries);
        known.absent.iter().any(|member| tries(member) < TRIES_MAX)
    }

    /// The rebuild of a member has failed.
    pub(super) fn failed(&mut self, cluster: &mut Cluster, id: DatasetId, member: Member) {
        if !cluster.datasets.get(id).is_some_and(|known| known.absent.contains(&member)) {
            return;
        }
        let (tries, at) = self.0.entry((id, member)).or_default();
        *tries += 1;
        *at = cluster.now.saturating_add(delay(*tries, 1_000 * MS, 60_000 * MS));
        if *tries == TRIES_MAX {
            cluster.warn(format!(
                "member {member} of dataset {id} is on no node, and is left to the next restart after {tries} tries"
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use scrfs::control::Command;
    use scrfs::ids::Epoch;

    use super::*;
    use crate::lead::Output;
    use crate::lead::flush::tests::catalog;
    use crate::settings::tests::settings;

    fn cluster(absent: &[(u64, &[u32])]) -> Cluster {
        let hosts = vec!["a".to_owned(), "b".to_owned()];
        let mut cluster = Cluster::new(Epoch(1), hosts, settings(), 100);
        for (id, members) in absent {
            cluster.datasets.insert(Arc::new(catalog(*id)), false);
            cluster.lacks(DatasetId(*id), members.iter().copied().map(Member).collect());
        }
        cluster
    }

    fn due(restores: &Restores, cluster: &Cluster) -> Vec<(u64, u32)> {
        restores.due(cluster).into_iter().map(|(id, member)| (id.0, member.0)).collect()
    }

    /// What all nodes were told of absent members.
    fn told(cluster: &mut Cluster) -> Vec<(u64, usize)> {
        let outputs = cluster.take_outputs().into_iter();
        let marks = outputs.filter_map(|output| match output {
            Output::Command(_, Command::MarkAbsent { id, members }) => Some((id.0, members.len())),
            _ => None,
        });
        marks.collect()
    }

    #[test]
    fn the_newest_goes_first_and_all_nodes_know_what_is_left() {
        let (mut cluster, restores) = (cluster(&[(1, &[0]), (2, &[0, 1]), (3, &[])]), Restores::default());
        assert_eq!(told(&mut cluster), [(1, 1), (2, 2)]);
        assert_eq!(due(&restores, &cluster), [(2, 0), (2, 1)]);
        cluster.restored(DatasetId(2), Member(1));
        cluster.restored(DatasetId(2), Member(1));
        assert_eq!(due(&restores, &cluster), [(2, 0)]);
        cluster.restored(DatasetId(2), Member(0));
        assert_eq!(told(&mut cluster), [(2, 1), (2, 0)]);
        assert_eq!(due(&restores, &cluster), [(1, 0)]);
        cluster.datasets.remove(DatasetId(1));
        assert_eq!(due(&restores, &cluster), []);
    }

    #[test]
    fn what_fails_is_tried_again_later_and_not_for_ever() {
        let (mut cluster, mut restores) = (cluster(&[(1, &[0]), (2, &[1])]), Restores::default());
        for tries in 1..TRIES_MAX {
            restores.failed(&mut cluster, DatasetId(2), Member(1));
            assert_eq!(due(&restores, &cluster), [], "after {tries} tries nothing begins at once");
            cluster.now += 60_000 * MS;
            assert_eq!(due(&restores, &cluster), [(2, 1)]);
        }
        restores.failed(&mut cluster, DatasetId(2), Member(1));
        cluster.now += 60_000 * MS;
        assert_eq!(due(&restores, &cluster), [(1, 0)], "the older one has its turn");
        restores.failed(&mut cluster, DatasetId(1), Member(7));
        assert_eq!(due(&restores, &cluster), [(1, 0)], "member 7 is where it should be");
    }
}

//! Members that no node has, brought to their nodes behind the programs: a lazy restart presents a
//! dataset before that (`SCRFS_RESTART`), and coordinators that attach may find one so. They are
//! rebuilt by their sets ([`super::mend`]), else brought from the prefix ([`super::refill`]). The
//! newest dataset goes first. What a program opens meanwhile is waited for, or comes by itself.

use std::collections::BTreeMap;

use scrfs::control::FetchFailure;
use scrfs::ids::{DatasetId, Member, NodeRank};

use super::cluster::Cluster;
use super::datasets::{Known, age};
use super::jobs::Share;
use super::policy::{MS, delay};
use super::refill::{Refill, Refilled};

/// Failures of one member before it is left to the next restart.
const TRIES_MAX: u32 = 5;

#[derive(Debug, Default)]
pub(super) struct Restores {
    /// The members that could not be restored yet: how often that was tried, and when it may be
    /// again.
    tries: BTreeMap<(DatasetId, Member), (u32, u64)>,
    refill: Option<Refill>,
}

impl Restores {
    /// The absent members of the newest dataset that has any, as far as they may be tried now.
    fn next<'a>(&self, cluster: &'a Cluster) -> Option<(&'a Known, Vec<Member>)> {
        let lacking = cluster.datasets.lacking().filter(|known| self.goes_on(known));
        let known = lacking.max_by_key(|known| age(&known.catalog))?;
        let id = known.catalog.id;
        let may_begin = |member: &&Member| {
            let tried = self.tries.get(&(id, **member));
            tried.is_none_or(|(tries, at)| *tries < TRIES_MAX && *at <= cluster.now)
        };
        Some((known, known.absent.iter().filter(may_begin).copied().collect()))
    }

    /// The absent members to be rebuilt now.
    pub(super) fn due(&self, cluster: &Cluster) -> Vec<(DatasetId, Member)> {
        let Some((known, members)) = self.next(cluster) else { return Vec::new() };
        let given_back = members.into_iter().filter(|member| known.gives_back(*member));
        given_back.map(|member| (known.catalog.id, member)).collect()
    }

    /// Begins to bring from the prefix what no set gives back, and encodes what has come.
    /// `touches`: the directory round that runs has an operation in that dataset.
    pub(super) fn refill(&mut self, cluster: &mut Cluster, touches: impl Fn(&[u8]) -> bool) {
        // A program has removed it, or no source has its bytes.
        self.refill.take_if(|refill| cluster.datasets.get(refill.id).is_none());
        if let Some(refill) = &mut self.refill {
            return refill.encode(cluster, touches);
        }
        if !cluster.settings.fetch {
            return;
        }
        let Some((known, mut members)) = self.next(cluster).filter(|(known, _)| known.flushed) else {
            return;
        };
        members.retain(|member| !known.gives_back(*member));
        let (id, name) = (known.catalog.id, String::from_utf8_lossy(&known.catalog.name).into_owned());
        if !members.is_empty() {
            let count = members.len();
            cluster.note(format!(
                "{name} (dataset {id}): {count} members are fetched from the prefix while programs run"
            ));
            self.refill = Refill::begin(cluster, id, members);
        }
    }

    /// Members of it are being brought from the prefix.
    pub(super) fn refills(&self, id: DatasetId) -> bool {
        self.refill.as_ref().is_some_and(|refill| refill.id == id)
    }

    /// A directory operation in this dataset has to wait.
    pub(super) fn holds(&self, name: &[u8]) -> bool {
        self.refill.as_ref().is_some_and(|refill| refill.holds(name))
    }

    /// A node has fetched a member, or could not; also one that nobody awaits any more. True when
    /// the refill has ended.
    pub(super) fn fetched(
        &mut self,
        cluster: &mut Cluster,
        node: NodeRank,
        id: DatasetId,
        result: Result<(), FetchFailure>,
    ) -> bool {
        let Some(refill) = self.refill.as_mut().filter(|refill| refill.id == id) else { return false };
        let refilled = refill.fetched(cluster, node, result);
        self.ended(cluster, id, refilled)
    }

    /// A share ended; `None` when it is no share of these jobs. True when the refill has ended.
    pub(super) fn job(&mut self, cluster: &mut Cluster, share: &Share) -> Option<bool> {
        let refill = self.refill.as_mut()?;
        let (id, refilled) = (refill.id, refill.job(cluster, share.clone())?);
        Some(self.ended(cluster, id, refilled))
    }

    fn ended(&mut self, cluster: &mut Cluster, id: DatasetId, refilled: Refilled) -> bool {
        match refilled {
            Refilled::Running => return false,
            Refilled::Done(members) => {
                for member in members {
                    cluster.restored(id, member);
                }
            }
            Refilled::Failed(members, reason) => {
                cluster.warn(format!("dataset {id} cannot be fetched from the prefix: {reason}"));
                for member in members {
                    self.failed(cluster, id, member);
                }
            }
        }
        self.refill = None;
        true
    }

    /// Some absent member of it is not given up.
    pub(super) fn goes_on(&self, known: &Known) -> bool {
        let tries =
            |member: &Member| self.tries.get(&(known.catalog.id, *member)).map_or(0, |(tries, _)| *tries);
        known.absent.iter().any(|member| tries(member) < TRIES_MAX)
    }

    /// A member could not be restored.
    pub(super) fn failed(&mut self, cluster: &mut Cluster, id: DatasetId, member: Member) {
        if !cluster.datasets.get(id).is_some_and(|known| known.absent.contains(&member)) {
            return;
        }
        let (tries, at) = self.tries.entry((id, member)).or_default();
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
    use scrfs::dataset::{Catalog, Layout, MemberPlace, Protection, Scheme};
    use scrfs::ids::Epoch;

    use super::*;
    use crate::job::{Job, JobId, JobOutput};
    use crate::lead::Output;
    use crate::lead::flush::tests::catalog;
    use crate::settings::tests::settings;

    /// Datasets of two sets of two members each, of which a node has one.
    fn dataset(id: u64, scheme: Scheme) -> Catalog {
        let place = |host: &str| MemberPlace { host: host.to_owned(), files: 1, bytes: 1, taken: None };
        let layout = Layout {
            encoding: 0,
            protection: Protection::by(scheme),
            members: ["a", "b", "c", "d"].map(place).into(),
            sets: vec![vec![Member(0), Member(1)], vec![Member(2), Member(3)]],
        };
        Catalog { layout, ..catalog(id) }
    }

    fn cluster(scheme: Scheme, absent: &[(u64, &[u32])]) -> Cluster {
        let hosts = ["a", "b", "c", "d"].map(str::to_owned).into();
        let mut cluster = Cluster::new(Epoch(1), hosts, settings(), 100);
        for (id, members) in absent {
            cluster.datasets.insert(Arc::new(dataset(*id, scheme)), true);
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
        let (mut cluster, restores) =
            (cluster(Scheme::Xor, &[(1, &[0]), (2, &[0, 2]), (3, &[])]), Restores::default());
        assert_eq!(told(&mut cluster), [(1, 1), (2, 2)]);
        assert_eq!(due(&restores, &cluster), [(2, 0), (2, 2)]);
        cluster.restored(DatasetId(2), Member(2));
        cluster.restored(DatasetId(2), Member(2));
        assert_eq!(due(&restores, &cluster), [(2, 0)]);
        cluster.restored(DatasetId(2), Member(0));
        assert_eq!(told(&mut cluster), [(2, 1), (2, 0)]);
        assert_eq!(due(&restores, &cluster), [(1, 0)]);
        cluster.datasets.remove(DatasetId(1));
        assert_eq!(due(&restores, &cluster), []);
    }

    #[test]
    fn what_fails_is_tried_again_later_and_not_for_ever() {
        let (mut cluster, mut restores) =
            (cluster(Scheme::Xor, &[(1, &[0]), (2, &[1])]), Restores::default());
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
    /// What a step asks for, in short.
    fn asked(cluster: &mut Cluster) -> Vec<String> {
        let outputs = cluster.take_outputs().into_iter();
        let short = |output| match output {
            Output::Command(nodes, Command::FetchMember { member, .. }) => {
                Some(format!("{} fetches {member}", cluster.host(nodes[0])))
            }
            Output::Start(_, Job::Encode { set, .. }) => {
                let members: Vec<_> = set.iter().map(|member| member.member.to_string()).collect();
                Some(format!("encode {}", members.join(" ")))
            }
            Output::Command(_, Command::MarkAbsent { members, .. }) => {
                Some(format!("{} absent", members.len()))
            }
            _ => None,
        };
        outputs.filter_map(short).collect()
    }

    #[test]
    fn what_no_set_gives_back_comes_from_the_prefix_and_is_encoded() {
        let (mut cluster, mut restores) = (cluster(Scheme::Xor, &[(1, &[0, 1, 3])]), Restores::default());
        assert_eq!(asked(&mut cluster), ["3 absent"]);
        assert_eq!(due(&restores, &cluster), [(1, 3)], "its set gives it back");
        restores.refill(&mut cluster, |_| false);
        assert_eq!(asked(&mut cluster), ["a fetches 0", "b fetches 1"]);
        let busy = FetchFailure { reason: "EIO".to_owned(), corrupt: false, full: None };
        assert!(!restores.fetched(&mut cluster, NodeRank(0), DatasetId(1), Err(busy)), "all are awaited");
        assert!(restores.fetched(&mut cluster, NodeRank(1), DatasetId(1), Ok(())));
        restores.refill(&mut cluster, |_| false);
        assert_eq!(asked(&mut cluster), [""; 0], "not at once");
        cluster.now += 60_000 * MS;
        restores.refill(&mut cluster, |_| false);
        assert_eq!(asked(&mut cluster), ["a fetches 0", "b fetches 1"]);
        for node in [0, 1] {
            assert!(!restores.fetched(&mut cluster, NodeRank(node), DatasetId(1), Ok(())));
        }
        restores.refill(&mut cluster, |name| name == b"ck.1");
        assert_eq!(asked(&mut cluster), [""; 0], "a directory operation in it is under way");
        restores.refill(&mut cluster, |_| false);
        assert_eq!(asked(&mut cluster), ["encode 0 1"]);
        assert!(restores.holds(b"ck.1") && !restores.holds(b"ck.2") && restores.refills(DatasetId(1)));
        for (node, ends) in [(0, false), (1, true)] {
            let share = Share { node: NodeRank(node), job: JobId(1), result: Ok(JobOutput::Done) };
            assert_eq!(restores.job(&mut cluster, &share), Some(ends));
        }
        assert_eq!(asked(&mut cluster), ["2 absent", "1 absent"]);
        assert!(!restores.refills(DatasetId(1)));
    }

    #[test]
    fn a_dataset_that_a_program_removes_is_refilled_no_more() {
        let (mut cluster, mut restores) = (cluster(Scheme::Single, &[(1, &[0])]), Restores::default());
        restores.refill(&mut cluster, |_| false);
        cluster.datasets.remove(DatasetId(1));
        restores.refill(&mut cluster, |_| false);
        assert!(!restores.refills(DatasetId(1)));
        assert!(!restores.fetched(&mut cluster, NodeRank(0), DatasetId(1), Ok(())), "nobody awaits it");
    }
}

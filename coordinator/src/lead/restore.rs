//! Members that no node has, brought to their nodes behind the programs: a lazy restart presents a
//! dataset before that (`SCRFS_RESTART`), and coordinators that attach may find one so. They are
//! rebuilt by their sets ([`super::mend`]), else brought from the prefix ([`super::refill`]). The
//! newest dataset goes first. What a program opens meanwhile is waited for, or comes by itself.

use std::collections::{BTreeMap, BTreeSet};

use scrfs::control::FetchFailure;
use scrfs::ids::{DatasetId, Member, NodeRank};

use super::cluster::Cluster;
use super::datasets::{Known, age};
use super::jobs::ShareEnd;
use super::policy::{MS, delay};
use super::refill::{Cause, Refill, Refilled};

/// Failures of one member before nothing waits for it any longer: it is still tried again.
const TRIES_MAX: u32 = 5;

/// A member that could not be restored.
#[derive(Debug, Default)]
struct Tried {
    times: u32,
    /// Not again before this time, microseconds.
    at: u64,
    /// Its set has no right bytes of it.
    set_is_bad: bool,
    /// The prefix has none, or with what it has the set cannot be encoded.
    prefix_is_bad: bool,
}

/// Who gives an absent member back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Set,
    Prefix,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Restores {
    tried: BTreeMap<(DatasetId, Member), Tried>,
    refill: Option<Refill>,
}

impl Restores {
    /// The absent members of a dataset that can be given back; with each, who gives it back, and
    /// the tries that have failed.
    fn ways<'a>(
        &'a self,
        cluster: &'a Cluster,
        known: &'a Known,
    ) -> impl Iterator<Item = (Member, Way, Option<&'a Tried>)> {
        let in_prefix = known.in_prefix() && cluster.settings.fetch;
        known.given_back().filter_map(move |(member, given_back)| {
            let tried = self.tried.get(&(known.catalog.id, member));
            if given_back && tried.is_none_or(|tried| !tried.set_is_bad) {
                Some((member, Way::Set, tried))
            } else if in_prefix && tried.is_none_or(|tried| !tried.prefix_is_bad) {
                Some((member, Way::Prefix, tried))
            } else {
                None
            }
        })
    }

    /// The newest dataset with absent members that may be tried now, and these.
    fn next<'a>(&self, cluster: &'a Cluster) -> Option<(&'a Known, Vec<(Member, Way)>)> {
        let due = |known: &'a Known| {
            let may_begin = |tried: Option<&Tried>| tried.is_none_or(|tried| tried.at <= cluster.now);
            let all = self.ways(cluster, known).filter(|(.., tried)| may_begin(*tried));
            (known, all.map(|(member, way, _)| (member, way)).collect::<Vec<_>>())
        };
        let lacking = cluster.datasets.lacking().map(due).filter(|(_, members)| !members.is_empty());
        lacking.max_by_key(|(known, _)| age(&known.catalog))
    }

    /// The absent members to be rebuilt now.
    pub(super) fn due(&self, cluster: &Cluster) -> Vec<(DatasetId, Member)> {
        let Some((known, members)) = self.next(cluster) else { return Vec::new() };
        let rebuilt = members.into_iter().filter(|(_, way)| *way == Way::Set);
        rebuilt.map(|(member, _)| (known.catalog.id, member)).collect()
    }

    /// An open of a file of this absent member waits for the rebuild.
    pub(super) fn is_rebuilt(&self, cluster: &Cluster, known: &Known, member: Member) -> bool {
        self.ways(cluster, known).any(|(of, way, _)| of == member && way == Way::Set)
    }

    /// Begins to bring from the prefix what no set gives back, and encodes what has come.
    /// `touches`: the directory round that runs has an operation in that dataset. `is_rebuilt`: the
    /// set of that member is being rebuilt, which makes files of absent members too.
    pub(super) fn refill(
        &mut self,
        cluster: &mut Cluster,
        touches: impl Fn(&[u8]) -> bool,
        is_rebuilt: impl Fn(DatasetId, Member) -> bool,
    ) {
        // A program has removed it.
        self.refill.take_if(|refill| cluster.datasets.any(refill.id).is_none());
        if let Some(refill) = &mut self.refill {
            return refill.encode(cluster, touches);
        }
        let Some((known, members)) = self.next(cluster) else { return };
        let (id, name) = (known.catalog.id, String::from_utf8_lossy(&known.catalog.name).into_owned());
        let fetched = members.into_iter().filter(|(_, way)| *way == Way::Prefix);
        let members: Vec<Member> = fetched.map(|(member, _)| member).collect();
        if members.is_empty() || members.iter().any(|member| is_rebuilt(id, *member)) {
            return;
        }
        self.refill = Refill::begin(cluster, id, members.clone());
        if self.refill.is_some() {
            let count = members.len();
            cluster.note(format!(
                "{name} (dataset {id}): {count} members are fetched from the prefix while programs run"
            ));
        } else {
            for member in members {
                self.failed(cluster, id, member, false);
            }
        }
    }

    /// Members of it are being brought from the prefix.
    pub(super) fn refills(&self, id: DatasetId) -> bool {
        self.refill.as_ref().is_some_and(|refill| refill.id == id)
    }

    /// Members of this member's set are being brought from the prefix.
    pub(super) fn refills_set_of(&self, cluster: &Cluster, id: DatasetId, member: Member) -> bool {
        let Some(refill) = self.refill.as_ref().filter(|refill| refill.id == id) else { return false };
        let known = cluster.datasets.any(id);
        let mut sets = known.iter().flat_map(|known| &known.catalog.layout.sets);
        sets.any(|set| set.contains(&member) && refill.works_on(set))
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
    pub(super) fn job(&mut self, cluster: &mut Cluster, share: &ShareEnd) -> Option<bool> {
        let refill = self.refill.as_mut()?;
        let (id, refilled) = (refill.id, refill.job(cluster, share.clone())?);
        Some(self.ended(cluster, id, refilled))
    }

    fn ended(&mut self, cluster: &mut Cluster, id: DatasetId, refilled: Refilled) -> bool {
        match refilled {
            Refilled::Running => return false,
            Refilled::Done(members) => cluster.restored(id, &members),
            Refilled::Failed { members, reason, cause, bad } => {
                let bad = lacks_too(cluster, id, bad);
                if bad.is_empty() {
                    cluster.warn(format!("dataset {id} cannot be fetched from the prefix: {reason}"));
                    self.not_refilled(cluster, id, &members, cause);
                } else {
                    let bad: Vec<String> = bad.iter().map(ToString::to_string).collect();
                    cluster.warn(format!(
                        "dataset {id}: {reason}; what nodes have of members {} has gone bad: it is fetched too",
                        bad.join(", ")
                    ));
                }
            }
        }
        self.refill = None;
        true
    }

    fn not_refilled(&mut self, cluster: &mut Cluster, id: DatasetId, members: &[Member], cause: Cause) {
        for &member in members {
            self.failed(cluster, id, member, false);
            let tried = self.tried.entry((id, member)).or_default();
            let is_in_vain = cause == Cause::Encoding && tried.times >= TRIES_MAX;
            tried.prefix_is_bad |= cause == Cause::Corrupt || is_in_vain;
        }
    }

    /// Some absent member of it can be given back, and that has not failed too often to be waited
    /// for.
    pub(super) fn goes_on(&self, cluster: &Cluster, known: &Known) -> bool {
        self.ways(cluster, known).any(|(.., tried)| tried.is_none_or(|tried| tried.times < TRIES_MAX))
    }

    /// A member could not be restored; `is_bad`: its set has no right bytes of it.
    pub(super) fn failed(&mut self, cluster: &mut Cluster, id: DatasetId, member: Member, is_bad: bool) {
        if !cluster.datasets.get(id).is_some_and(|known| known.absent.contains(&member)) {
            return;
        }
        let tried = self.tried.entry((id, member)).or_default();
        tried.times += 1;
        tried.at = cluster.now.saturating_add(delay(tried.times, 1_000 * MS, 60_000 * MS));
        tried.set_is_bad |= is_bad;
        if tried.times == TRIES_MAX {
            cluster.warn(format!(
                "member {member} of dataset {id} is on no node, and {TRIES_MAX} tries to restore it have failed: nothing waits for it any longer"
            ));
        }
    }
}

/// Members whose bytes are bad, in sets that cannot give them back, are as good as absent. Those
/// that were not absent before.
fn lacks_too(cluster: &mut Cluster, id: DatasetId, mut bad: BTreeSet<Member>) -> BTreeSet<Member> {
    let Some(known) = cluster.datasets.get(id) else { return BTreeSet::new() };
    let absent = known.absent.clone();
    bad.retain(|member| !absent.contains(member));
    if !bad.is_empty() {
        cluster.lacks(id, absent.union(&bad).copied().collect());
    }
    bad
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use scrfs::control::Command;
    use scrfs::dataset::{Catalog, Layout, MemberPlace, Protection, Scheme};
    use scrfs::ids::Epoch;

    use super::*;
    use crate::job::{Job, JobFailure, JobId, JobOutput};
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
        cluster.restored(DatasetId(2), &[Member(2)]);
        cluster.restored(DatasetId(2), &[Member(2)]);
        assert_eq!(due(&restores, &cluster), [(2, 0)]);
        cluster.restored(DatasetId(2), &[Member(0)]);
        assert_eq!(told(&mut cluster), [(2, 1), (2, 0)]);
        assert_eq!(due(&restores, &cluster), [(1, 0)]);
        cluster.datasets.remove(DatasetId(1));
        assert_eq!(due(&restores, &cluster), []);
    }

    #[test]
    fn what_fails_is_tried_again_later_and_waited_for_a_few_times() {
        let (mut cluster, mut restores) =
            (cluster(Scheme::Xor, &[(1, &[0]), (2, &[1])]), Restores::default());
        for tries in 1..=TRIES_MAX {
            let goes_on = restores.goes_on(&cluster, cluster.datasets.get(DatasetId(2)).unwrap());
            assert!(goes_on, "after {} tries", tries - 1);
            restores.failed(&mut cluster, DatasetId(2), Member(1), false);
            assert_eq!(due(&restores, &cluster), [(1, 0)], "the older one has its turn");
            cluster.now += 60_000 * MS;
            assert_eq!(due(&restores, &cluster), [(2, 1)]);
        }
        assert!(!restores.goes_on(&cluster, cluster.datasets.get(DatasetId(2)).unwrap()));
        restores.failed(&mut cluster, DatasetId(1), Member(7), false);
        assert!(restores.goes_on(&cluster, cluster.datasets.get(DatasetId(1)).unwrap()), "7 is not absent");
    }

    #[test]
    fn where_a_set_has_bad_bytes_the_prefix_is_the_source() {
        let (mut cluster, mut restores) = (cluster(Scheme::Xor, &[(1, &[0])]), Restores::default());
        asked(&mut cluster);
        restores.failed(&mut cluster, DatasetId(1), Member(0), true);
        cluster.now += 60_000 * MS;
        assert_eq!(due(&restores, &cluster), []);
        restores.refill(&mut cluster, |_| false, |_, _| false);
        assert_eq!(asked(&mut cluster), ["a fetches 0"]);
        let bad = FetchFailure { reason: "CRC".to_owned(), corrupt: true, full: None };
        assert!(restores.fetched(&mut cluster, NodeRank(0), DatasetId(1), Err(bad)));
        cluster.now += 60_000 * MS;
        restores.refill(&mut cluster, |_| false, |_, _| false);
        assert_eq!(asked(&mut cluster), [""; 0], "nobody has it");
        assert!(!restores.goes_on(&cluster, cluster.datasets.get(DatasetId(1)).unwrap()));
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
        restores.refill(&mut cluster, |_| false, |_, _| false);
        assert_eq!(asked(&mut cluster), ["a fetches 0", "b fetches 1"]);
        let busy = FetchFailure { reason: "EIO".to_owned(), corrupt: false, full: None };
        assert!(!restores.fetched(&mut cluster, NodeRank(0), DatasetId(1), Err(busy)), "all are awaited");
        assert!(restores.fetched(&mut cluster, NodeRank(1), DatasetId(1), Ok(())));
        restores.refill(&mut cluster, |_| false, |_, _| false);
        assert_eq!(asked(&mut cluster), [""; 0], "not at once");
        cluster.now += 60_000 * MS;
        restores.refill(&mut cluster, |_| false, |_, _| false);
        assert_eq!(asked(&mut cluster), ["a fetches 0", "b fetches 1"]);
        for node in [0, 1] {
            assert!(!restores.fetched(&mut cluster, NodeRank(node), DatasetId(1), Ok(())));
        }
        restores.refill(&mut cluster, |name| name == b"ck.1", |_, _| false);
        assert_eq!(asked(&mut cluster), [""; 0], "a directory operation in it is under way");
        restores.refill(&mut cluster, |_| false, |_, _| false);
        assert_eq!(asked(&mut cluster), ["encode 0 1"]);
        assert!(restores.holds(b"ck.1") && !restores.holds(b"ck.2") && restores.refills(DatasetId(1)));
        for (node, ends) in [(0, false), (1, true)] {
            let share = ShareEnd { node: NodeRank(node), job: JobId(1), result: Ok(JobOutput::Done) };
            assert_eq!(restores.job(&mut cluster, &share), Some(ends));
        }
        assert_eq!(asked(&mut cluster), ["1 absent"]);
        assert!(!restores.refills(DatasetId(1)));
    }

    /// The set of a member that the prefix gave has another one whose bytes have gone bad.
    #[test]
    fn what_turns_out_to_be_bad_is_restored_too() {
        let (mut cluster, mut restores) = (cluster(Scheme::Single, &[(1, &[0])]), Restores::default());
        asked(&mut cluster);
        let is_bad = JobFailure { bad: vec![1], ..JobFailure::passing("CRC") };
        let tries = [
            (JobId(1), &["a fetches 0"][..], Err(is_bad), "2 absent"),
            (JobId(2), &["a fetches 0", "b fetches 1"], Ok(JobOutput::Done), "0 absent"),
        ];
        for (job, fetches, result, then) in tries {
            restores.refill(&mut cluster, |_| false, |_, _| false);
            assert_eq!(asked(&mut cluster), fetches);
            for (node, _) in (0..).zip(fetches) {
                assert!(!restores.fetched(&mut cluster, NodeRank(node), DatasetId(1), Ok(())));
            }
            restores.refill(&mut cluster, |_| false, |_, _| false);
            assert_eq!(asked(&mut cluster), ["encode 0 1"]);
            for (node, result) in [(0, Ok(JobOutput::Done)), (1, result)] {
                assert!(
                    restores.job(&mut cluster, &ShareEnd { node: NodeRank(node), job, result }).is_some()
                );
            }
            assert_eq!(asked(&mut cluster), [then]);
        }
    }

    #[test]
    fn a_file_that_a_program_changes_meanwhile_says_nothing_of_the_prefix() {
        for (moved, tries) in [(false, TRIES_MAX), (true, TRIES_MAX + 2)] {
            let (mut cluster, mut restores) = (cluster(Scheme::Single, &[(1, &[0])]), Restores::default());
            asked(&mut cluster);
            let mut fetches = 0;
            for job in 1..=u64::from(TRIES_MAX) + 2 {
                cluster.now += 100_000 * MS;
                restores.refill(&mut cluster, |_| false, |_, _| false);
                if asked(&mut cluster) != ["a fetches 0"] {
                    break;
                }
                fetches += 1;
                restores.fetched(&mut cluster, NodeRank(0), DatasetId(1), Ok(()));
                restores.refill(&mut cluster, |_| false, |_, _| false);
                let changed = Err(JobFailure { moved, ..JobFailure::passing("it was changed") });
                for (node, result) in [(0, Ok(JobOutput::Done)), (1, changed)] {
                    let share = ShareEnd { node: NodeRank(node), job: JobId(job), result };
                    assert!(restores.job(&mut cluster, &share).is_some());
                }
                asked(&mut cluster);
            }
            assert_eq!(fetches, tries, "{moved}");
        }
    }

    #[test]
    fn a_dataset_that_a_program_removes_is_refilled_no_more() {
        let (mut cluster, mut restores) = (cluster(Scheme::Single, &[(1, &[0])]), Restores::default());
        restores.refill(&mut cluster, |_| false, |_, _| false);
        cluster.datasets.remove(DatasetId(1));
        restores.refill(&mut cluster, |_| false, |_, _| false);
        assert!(!restores.refills(DatasetId(1)));
        assert!(!restores.fetched(&mut cluster, NodeRank(0), DatasetId(1), Ok(())), "nobody awaits it");
    }
}

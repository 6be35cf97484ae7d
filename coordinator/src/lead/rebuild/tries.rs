//! A candidate whose jobs and commits fail: what is tried again, and when it is given up.
//!
//! Four nodes with a member each of one Reed-Solomon set that survives two losses; node 3 has lost
//! its member.

use scrfs::dataset::{Entry, EntryKind, FileCopy, Layout, MemberPlace, Protection, Scheme, Stamp};
use scrfs::ids::Epoch;
use scrfs::path::RelPath;

use super::*;
use crate::job::{JobId, JobOutput};
use crate::lead::Output;
use crate::settings::tests::settings;

const ID: DatasetId = DatasetId(1);
const HOSTS: [&str; 4] = ["a", "b", "c", "d"];

struct Trial {
    cluster: Cluster,
    rebuild: Rebuild,
    /// The last that was started.
    job: JobId,
}

fn newest() -> Catalog {
    let file = |member: u32| Entry {
        path: RelPath::new(format!("rank{member}")).unwrap(),
        kind: EntryKind::File(FileCopy { size: 1, crc: 0, member: Member(member), program_rank: None }),
        mode: 0o644,
        uid: 0,
        gid: 0,
        atime: Stamp::default(),
        mtime: Stamp::default(),
    };
    let place = |host: &str| MemberPlace { host: host.to_owned(), files: 1, bytes: 1, taken: None };
    let layout = Layout {
        encoding: 0,
        protection: Protection::by(Scheme::ReedSolomon { failures: 2 }),
        members: HOSTS.map(place).into(),
        sets: vec![(0..4).map(Member).collect()],
    };
    Catalog { layout, entries: (0..4).map(file).collect(), ..crate::lead::flush::tests::catalog(1) }
}

impl Trial {
    /// An eager restart has read the catalog.
    fn begin() -> Self {
        let mut cluster = Cluster::new(Epoch(7), HOSTS.map(str::to_owned).into(), settings(), 0);
        let holding = |member: u32| Holding {
            revision: 0,
            state: HeldState::Complete,
            members: BTreeSet::from([member]),
            encoded: BTreeSet::from([(Member(member), 0)]),
            paths: Vec::new(),
            flushed: false,
            listed: false,
            failed: false,
        };
        let nodes = (0..3).map(|member| (NodeRank(member), holding(member))).collect();
        let held = Held { epoch: Epoch(1), name: b"ck".to_vec(), nodes, strangers: Vec::new() };
        let mut rebuild = Rebuild::begin(&mut cluster, ID, held, false);
        rebuild.catalog(&mut cluster, NodeRank(0), Some(Arc::new(newest()))).unwrap();
        Self { cluster, rebuild, job: JobId(0) }
    }

    /// What the lead asks for since the last call.
    fn told(&mut self) -> Vec<String> {
        let mut told = Vec::new();
        for output in self.cluster.take_outputs() {
            match output {
                Output::Command(nodes, Command::Verify(_)) => told.push(format!("verify {}", nodes[0].0)),
                Output::Command(nodes, Command::Commit(_)) => told.push(format!("commit {}", nodes.len())),
                Output::Command(nodes, Command::Revise(_)) => told.push(format!("revise {}", nodes.len())),
                Output::Start(job, Job::Rebuild { lost, .. }) => {
                    self.job = job;
                    told.push(format!("rebuild {lost:?}"));
                }
                _ => {}
            }
        }
        told
    }

    /// All nodes with members have read them; what is `bad` of them.
    fn verified(&mut self, bad: &[u32]) -> Recovered {
        let mut outcome = None;
        for member in 0..3 {
            let files = if bad.contains(&member) { Err("CRC".into()) } else { Ok(()) };
            let read = VerifiedMember { member: Member(member), files, redundancy: Ok(()) };
            outcome = self.rebuild.verified(&mut self.cluster, NodeRank(member), vec![read]);
        }
        outcome.unwrap()
    }

    /// All shares of the job have ended: that of node 2 by this failure, the others because of it.
    fn failed(&mut self, failure: &JobFailure) -> Recovered {
        let mut outcome = None;
        for node in [2, 0, 1, 3] {
            let other = || JobFailure::passing("ended by others");
            let result = Err(if node == 2 { failure.clone() } else { other() });
            let share = ShareEnd { node: NodeRank(node), job: self.job, result };
            outcome = self.rebuild.job(&mut self.cluster, share);
        }
        outcome.unwrap()
    }
}

const VERIFY: [&str; 3] = ["verify 0", "verify 1", "verify 2"];

#[test]
fn a_source_that_goes_bad_after_it_was_verified_is_rebuilt_too() {
    let mut trial = Trial::begin();
    assert_eq!(trial.told(), VERIFY);
    trial.verified(&[]);
    assert_eq!(trial.told(), ["rebuild [3]"]);
    let bad = JobFailure { bad: vec![2], ..JobFailure::passing("rank2: CRC") };
    assert!(matches!(trial.failed(&bad), Recovered::Running));
    assert_eq!(trial.told(), VERIFY);
    trial.verified(&[2]);
    assert_eq!(trial.told(), ["rebuild [2, 3]"]);
}

#[test]
fn bytes_that_are_now_good_and_now_bad_are_compared_a_few_times() {
    let mut trial = Trial::begin();
    let bad = JobFailure { bad: vec![2], ..JobFailure::passing("rank2: CRC") };
    for _ in 0..=LOOKS_MAX {
        assert_eq!(trial.told(), VERIFY);
        trial.verified(&[]);
        assert_eq!(trial.told(), ["rebuild [3]"]);
        let outcome = trial.failed(&bad);
        let given_up = trial.rebuild.tries.looks > LOOKS_MAX;
        assert_eq!(matches!(outcome, Recovered::Failed(_)), given_up, "{outcome:?}");
    }
    assert!(trial.told().is_empty() && trial.rebuild.tries.looks > LOOKS_MAX);
}

#[test]
fn a_failure_that_may_pass_is_no_reason_for_an_older_dataset() {
    let mut trial = Trial::begin();
    trial.told();
    trial.verified(&[]);
    let stalled = JobFailure::passing("share 1 has sent nothing for 120 s");
    for _ in 0..RETRIES_MAX {
        assert_eq!(trial.told(), ["rebuild [3]"]);
        assert!(matches!(trial.failed(&stalled), Recovered::Running));
    }
    assert_eq!(trial.told(), ["rebuild [3]"]);
    let outcome = trial.failed(&stalled);
    assert!(
        matches!(&outcome, Recovered::Failed(reason) if reason.words().contains("sent nothing")),
        "{outcome:?}"
    );
}

/// Its disk is full for some seconds.
#[test]
fn a_node_that_cannot_record_for_a_while_is_waited_for() {
    let mut trial = Trial::begin();
    trial.told();
    trial.verified(&[]);
    trial.told();
    for node in 0..4 {
        let result = Ok(JobOutput::Done);
        trial
            .rebuild
            .job(&mut trial.cluster, ShareEnd { node: NodeRank(node), job: trial.job, result })
            .unwrap();
    }
    assert_eq!(trial.told(), ["revise 3", "commit 1"]);
    let mut answer = |result: Result<(), Reason>, after: u64| {
        trial.cluster.now += after * MS;
        trial.rebuild.tick(&mut trial.cluster);
        trial.rebuild.committed(&mut trial.cluster, NodeRank(1), (result, true)).unwrap()
    };
    let full = || Err("no space left on device".into());
    assert!(matches!(answer(full(), 0), Recovered::Running));
    for _ in 0..2 {
        assert!(matches!(answer(full(), 12_000), Recovered::Running));
    }
    let outcome = answer(full(), 12_000);
    assert!(
        matches!(&outcome, Recovered::Failed(reason) if reason.words().contains("b cannot record it")),
        "{outcome:?}"
    );
}

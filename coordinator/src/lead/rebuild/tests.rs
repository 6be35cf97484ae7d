//! What is asked of nodes before a candidate is presented.

use scrfs::dataset::{Entry, EntryKind, FileCopy, Layout, MemberPlace, Protection, Scheme, Stamp};
use scrfs::ids::Epoch;
use scrfs::path::RelPath;

use super::*;
use crate::job::JobOutput;
use crate::lead::Output;
use crate::settings::tests::settings;

const ID: DatasetId = DatasetId(1);

/// Of one member, that has all files.
fn catalog(paths: &[&str]) -> Catalog {
    let file = |path: &&str| Entry {
        path: RelPath::new(*path).unwrap(),
        kind: EntryKind::File(FileCopy { size: 1, crc: 0, member: Member(0), program_rank: None }),
        mode: 0o644,
        uid: 0,
        gid: 0,
        atime: Stamp::default(),
        mtime: Stamp::default(),
    };
    let layout = Layout {
        encoding: 0,
        protection: Protection::by(Scheme::Single),
        members: vec![MemberPlace { host: "b".to_owned(), files: 2, bytes: 2, taken: None }],
        sets: vec![vec![Member(0)]],
    };
    let entries = paths.iter().map(file).collect();
    Catalog { revision: 1024, layout, entries, ..super::super::flush::tests::catalog(ID.0) }
}

/// A node that voted for a seal comes back when others have fetched the dataset: what it has as
/// that member leaves, and is not taken for it, where the files were dealt to members anew.
#[test]
fn what_was_recorded_before_the_files_were_dealt_anew_is_no_copy() {
    let asked = |recorded: &[&str]| {
        let hosts = ["a", "b"].map(str::to_owned).to_vec();
        let mut cluster = Cluster::new(Epoch(7), hosts, settings(), 0);
        let newest = catalog(&["x", "y"]);
        let holding = |revision, state, paths| Holding {
            revision,
            state,
            members: BTreeSet::from([0]),
            encoded: BTreeSet::new(),
            paths,
            flushed: false,
            listed: false,
            failed: false,
        };
        let voted = catalog(recorded);
        let paths = vec![(Member(0), MemberFiles::of_all(&voted).sum_of_paths(Member(0)))];
        let nodes = BTreeMap::from([
            (NodeRank(0), holding(0, HeldState::Recorded, paths)),
            (NodeRank(1), holding(newest.revision, HeldState::Complete, Vec::new())),
        ]);
        let held = Held { epoch: Epoch(1), name: b"ck".to_vec(), nodes, strangers: Vec::new() };
        let mut rebuild = Rebuild::begin(&mut cluster, ID, held, false);
        rebuild.catalog(&mut cluster, NodeRank(1), Some(Arc::new(newest))).unwrap();
        let verified = || vec![VerifiedMember { member: Member(0), files: Ok(()), redundancy: Ok(()) }];
        rebuild.verified(&mut cluster, NodeRank(0), verified());
        rebuild.verified(&mut cluster, NodeRank(1), verified()).unwrap();
        let outputs = cluster.take_outputs().into_iter();
        let told = outputs.filter_map(|output| match output {
            Output::Command(nodes, Command::Verify(_)) => Some(("verify", nodes[0].0)),
            Output::Command(nodes, Command::Evict(_)) => Some(("evict", nodes[0].0)),
            _ => None,
        });
        told.collect::<Vec<_>>()
    };
    assert_eq!(asked(&["x"]), [("verify", 1), ("evict", 0)]);
    assert_eq!(asked(&["x", "y"]), [("verify", 0), ("verify", 1)]);
}

/// Two members of a set, each on a node that has recorded it.
fn presented(lazy: bool, encoded: bool) -> (Recovered, Vec<&'static str>, bool) {
    let hosts = ["a", "b"].map(str::to_owned).to_vec();
    let mut settings = settings();
    settings.restart.lazy = lazy;
    let mut cluster = Cluster::new(Epoch(7), hosts, settings, 0);
    let place = |host: &str| MemberPlace { host: host.to_owned(), files: 1, bytes: 1, taken: None };
    let mut newest = catalog(&["x"]);
    newest.layout.protection = Protection::by(Scheme::Xor);
    newest.layout.members = ["a", "b"].map(place).into();
    newest.layout.sets = vec![vec![Member(0), Member(1)]];
    let holding = |member: u32| Holding {
        revision: newest.revision,
        state: HeldState::Complete,
        members: BTreeSet::from([member]),
        encoded: if encoded { BTreeSet::from([(Member(member), 0)]) } else { BTreeSet::new() },
        paths: Vec::new(),
        flushed: false,
        listed: false,
        failed: false,
    };
    let nodes = BTreeMap::from([(NodeRank(0), holding(0)), (NodeRank(1), holding(1))]);
    let held = Held { epoch: Epoch(1), name: b"ck".to_vec(), nodes, strangers: Vec::new() };
    let mut rebuild = Rebuild::begin(&mut cluster, ID, held, false);
    let outcome = rebuild.catalog(&mut cluster, NodeRank(0), Some(Arc::new(newest))).unwrap();
    let mut told = |rebuild: &mut Rebuild, failure: Option<JobFailure>| {
        let mut told = Vec::new();
        for output in cluster.take_outputs() {
            match output {
                Output::Command(_, Command::Verify(_)) => told.push("verify"),
                Output::Start(job, _) => {
                    told.push("job");
                    for node in [0, 1].map(NodeRank).into_iter().filter(|_| failure.is_some()) {
                        let result = failure.clone().map_or(Ok(JobOutput::Done), Err);
                        rebuild.job(&mut cluster, ShareEnd { node, job, result });
                    }
                }
                _ => {}
            }
        }
        told
    };
    let first = told(&mut rebuild, Some(JobFailure { bad: vec![1], ..JobFailure::passing("CRC") }));
    let looks_again = told(&mut rebuild, None) == ["verify", "verify"];
    (outcome, first, looks_again)
}

#[test]
fn a_lazy_restart_reads_nothing_until_a_job_finds_bad_bytes() {
    let (outcome, told, looks_again) = presented(true, true);
    assert!(matches!(outcome, Recovered::Done(_)) && told.is_empty() && !looks_again, "{outcome:?} {told:?}");
    let (outcome, told, _) = presented(false, true);
    assert!(matches!(outcome, Recovered::Running) && told == ["verify", "verify"], "{outcome:?} {told:?}");
    // All redundancy data is gone: the set is encoded anew before programs start.
    let (outcome, told, looks_again) = presented(true, false);
    assert!(matches!(outcome, Recovered::Running) && told == ["job"] && looks_again, "{outcome:?} {told:?}");
}

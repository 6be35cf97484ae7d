//! What a restart takes, in which order, and what it leaves alone.

use scrfs::control::{FetchFailure, HeldState, Settings};
use scrfs::dataset::MemberPlace;
use scrfs::prefix::{PfsCause, PfsTask};

use super::candidate::tests::{held, stored};
use super::*;
use crate::lead::Output;
use crate::lead::flush::tests::catalog;
use crate::lead::held::Holding;
use crate::settings::tests::settings;

#[test]
fn a_fresh_start_leaves_what_is_older_alone() {
    let left = |not_before| {
        let mut settings = settings();
        settings.restart.not_before = not_before;
        let mut cluster = Cluster::new(Epoch(9), vec!["a".to_owned()], settings, 0);
        let all = [3, 4].map(|epoch| (DatasetId(epoch), held(epoch)));
        let (held, stored) = super::not_before(&mut cluster, all.into(), vec![stored(4, 4), stored(3, 3)]);
        let drops = cluster
            .take_outputs()
            .into_iter()
            .filter(|output| matches!(output, Output::Command(_, Command::Drop { .. })));
        (held.len(), stored.len(), drops.count())
    };
    assert_eq!([left(0), left(4), left(u64::MAX)], [(2, 2, 0), (1, 1, 1), (0, 0, 2)]);
}

/// Ids were given twice: a node has an older dataset under the id of one that the prefix has.
#[test]
fn what_has_the_id_of_one_that_is_fetched_stays_a_candidate_until_it_makes_room() {
    let older = Held { nodes: [(NodeRank(0), holding(false))].into(), ..held(1) };
    let place = MemberPlace { host: "a".to_owned(), files: 0, bytes: 0, taken: None };
    let mut readable = Catalog { epoch: Epoch(2), ..catalog(5) };
    readable.layout.members.push(place);
    let bad = || FetchFailure { reason: "CRC".to_owned(), corrupt: true, full: None };
    // Whether the older one is read in the end, and whether it was evicted.
    let tried = |records: Result<Catalog, &PfsFailure>| {
        let mut cluster = Cluster::new(Epoch(9), vec!["a".to_owned()], settings(), 0);
        let newer = stored(2, 5);
        let contents = Contents { datasets: vec![newer.clone()], ..Contents::default() };
        let mut recover =
            Recover::begin(&mut cluster, [(DatasetId(5), older.clone())].into(), Some(contents));
        recover.stored(&mut cluster, &newer, records);
        let id = DatasetId(5);
        for event in [Event::Evicted(id), Event::FetchedMember { id, result: Err(bad()) }, Event::Dropped(id)]
        {
            recover.event(&mut cluster, NodeRank(0), event);
        }
        let outputs = cluster.take_outputs();
        let is_told = |wanted: &Command| {
            outputs.iter().any(|output| matches!(output, Output::Command(_, told) if told == wanted))
        };
        [Command::ReadCatalog(id), Command::Evict(id)].map(|command| is_told(&command))
    };
    assert_eq!(tried(Err(&failure(PfsCause::Damaged))), [true, false]);
    assert_eq!(tried(Ok(readable)), [false, true]);
}

/// A node has it complete; `presented`: it lists it, and saw it flushed.
fn holding(presented: bool) -> Holding {
    Holding {
        revision: 0,
        state: HeldState::Complete,
        members: [0].into(),
        encoded: BTreeSet::new(),
        paths: Vec::new(),
        flushed: presented,
        listed: presented,
        failed: false,
    }
}

fn failure(cause: PfsCause) -> PfsFailure {
    PfsFailure { cause, reason: "its records".into() }
}

/// All is found: why the start is given up, if it is.
fn given_up(cluster: &mut Cluster, recover: &mut Recover) -> Option<String> {
    assert!(recover.found().is_some());
    recover.present(cluster, 0);
    let mut outputs = cluster.take_outputs().into_iter();
    outputs.find_map(|output| match output {
        Output::GiveUp(Lack::Prefix, reason) => Some(reason),
        _ => None,
    })
}

/// What caches have of it would go before one byte of the prefix was read.
#[test]
fn what_has_no_room_in_the_caches_is_not_fetched_in_its_place() {
    let tried = |lazy_fetch, outcome: Recovered| {
        let mut settings = settings();
        settings.restart.keep_unsealed = true;
        settings.restart.lazy_fetch = lazy_fetch;
        let mut cluster = Cluster::new(Epoch(9), vec!["a".to_owned()], settings, 0);
        let contents = Contents { datasets: vec![stored(2, 5)], ..Contents::default() };
        let held = [(DatasetId(5), Held { nodes: [(NodeRank(0), holding(true))].into(), ..held(2) })];
        let mut recover = Recover::begin(&mut cluster, held.into(), Some(contents));
        recover.outcome(&mut cluster, Some(outcome));
        let is_read = cluster.take_outputs().contains(&Output::Pfs(PfsTask::ReadCatalog(stored(2, 5))));
        let lack = recover.found().is_some().then(|| recover.lacking(&cluster).map(|(lack, _)| lack));
        (is_read, lack.flatten())
    };
    let no_room = || Recovered::NoRoom("full".into());
    assert_eq!(tried(false, no_room()), (false, Some(Lack::Room)));
    assert_eq!(tried(true, no_room()), (true, None));
    assert_eq!(tried(false, Recovered::Failed("gone".into())), (true, None));
}

/// Since it was flushed its copy was marked FAILED, or has gone.
#[test]
fn what_the_prefix_has_counts_and_not_that_a_node_saw_it_flushed() {
    let id = DatasetId(5);
    let catalog = Catalog { epoch: Epoch(2), name: b"ck".to_vec(), ..catalog(5) };
    let whole = Held { nodes: [(NodeRank(0), holding(true))].into(), ..held(2) };
    let presented = |contents: Option<Vec<StoredDataset>>| {
        let mut cluster = Cluster::new(Epoch(9), vec!["a".to_owned()], settings(), 0);
        let contents = contents.map(|datasets| Contents { datasets, ..Contents::default() });
        let mut recover = Recover::begin(&mut cluster, [(id, whole.clone())].into(), contents);
        recover.outcome(&mut cluster, Some(Recovered::Done(catalog.clone().into())));
        recover.hand_over(&mut cluster);
        let outputs = cluster.take_outputs();
        let is_told = |told: Command| {
            outputs.iter().any(|output| matches!(output, Output::Command(_, command) if *command == told))
        };
        let flushed = cluster.datasets.get(id).map(|known| known.flushed);
        (flushed, is_told(Command::MarkFlushed(id)), is_told(Command::UnmarkFlushed(id)))
    };
    let bad = StoredDataset { usable: false, ..stored(2, 5) };
    let other = StoredDataset { created_us: Some(7), ..stored(2, 5) };
    for contents in [vec![], vec![bad], vec![other]] {
        assert_eq!(presented(Some(contents.clone())), (Some(false), false, true), "{contents:?}");
    }
    for contents in [Some(vec![stored(2, 5)]), None] {
        assert_eq!(presented(contents.clone()), (Some(true), true, false), "{contents:?}");
    }
}

/// The caches are empty: a program that began from nothing would write over what the prefix may
/// have.
#[test]
fn a_prefix_of_which_nothing_is_known_is_not_taken_for_an_empty_one() {
    let is_given_up = |contents: Option<Contents>, not_before, fetch| {
        let mut settings = Settings { fetch, ..settings() };
        settings.restart.not_before = not_before;
        let mut cluster = Cluster::new(Epoch(9), vec!["a".to_owned()], settings, 0);
        let mut recover = Recover::begin(&mut cluster, Vec::new(), contents);
        given_up(&mut cluster, &mut recover).is_some_and(|why| why.contains("is not known"))
    };
    assert!(is_given_up(None, 0, true));
    assert!(!is_given_up(Some(Contents::default()), 0, true), "it is empty");
    assert!(!is_given_up(None, 0, false), "SCR_FETCH=0");
    // With `--fresh`: in the first start, and after one that may have flushed something.
    assert_eq!([u64::MAX, 9, 8].map(|floor| is_given_up(None, floor, true)), [false, false, true]);
}

#[test]
fn what_the_prefix_has_and_does_not_give_now_is_tried_again_and_not_begun_anew_without() {
    let id = DatasetId(5);
    let mut readable = Catalog { epoch: Epoch(2), ..catalog(5) };
    let place = MemberPlace { host: "a".to_owned(), files: 0, bytes: 0, taken: None };
    readable.layout.members.push(place);
    // Each try fails so; `None`: the prefix is silent. How often the records were asked for,
    // and whether the start is given up.
    let tried = |tries: &[Option<(Result<Catalog, PfsFailure>, bool)>]| {
        let mut cluster = Cluster::new(Epoch(9), vec!["a".to_owned()], settings(), 0);
        let (newer, older) = (stored(2, 5), stored(1, 4));
        let is_of =
            |of: &StoredDataset, output: &Output| *output == Output::Pfs(PfsTask::ReadCatalog(of.clone()));
        let datasets = vec![newer.clone(), StoredDataset { usable: false, ..older }];
        let contents = Contents { datasets, ..Contents::default() };
        let mut recover = Recover::begin(&mut cluster, Vec::new(), Some(contents));
        for one in tries {
            if let Some((records, corrupt)) = one {
                recover.stored(&mut cluster, &newer, records.as_ref().cloned());
                let reason = "EIO".to_owned();
                let result = Err(FetchFailure { reason, corrupt: *corrupt, full: None });
                for event in [Event::FetchedMember { id, result }, Event::Dropped(id)] {
                    recover.event(&mut cluster, NodeRank(0), event);
                }
            }
            cluster.now += 60_000 * MS;
            recover.tick(&mut cluster);
        }
        let asked = cluster.take_outputs().iter().filter(|output| is_of(&newer, output)).count();
        (asked, given_up(&mut cluster, &mut recover).is_some())
    };
    let bytes = |corrupt| Some((Ok(readable.clone()), corrupt));
    let records = |cause| Some((Err(failure(cause)), false));
    let passing = || records(PfsCause::Unavailable);
    assert_eq!(tried(&[bytes(false), bytes(false), bytes(false)]), (3, true));
    assert_eq!(tried(&[passing(), bytes(false), passing()]), (3, true));
    assert_eq!(tried(&[None]), (1, true));
    assert_eq!(tried(&[bytes(false), None]), (2, true));
    assert_eq!(tried(&[passing(), bytes(true)]), (2, false), "its bytes are bad");
    assert_eq!(tried(&[records(PfsCause::Damaged)]), (1, false), "its records are");
}

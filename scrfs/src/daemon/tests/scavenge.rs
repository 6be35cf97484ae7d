//! Saving this node's part when the job has ended without its coordinators.

use super::*;
use crate::control::loose::Age;
use crate::control::{Named, Reason, Scavenged};
use crate::prefix::scavenge::{Begun, Collection, MemberRecord, adopt_all, digest};
use crate::prefix::{Known, Prefix};

/// A prefix whose job saves its newest dataset at its end.
fn prefix(bench: &Bench) -> tempfile::TempDir {
    let place = tempfile::tempdir().unwrap();
    let mut state = bench.node.state.lock();
    let settings = state.settings.as_mut().unwrap();
    settings.prefix = place.path().as_os_str().as_bytes().to_vec();
    settings.advice.end_reserve = 60;
    place
}

/// The coordinator is killed.
fn kill(bench: &Bench, lead: Lead) {
    drop(lead);
    until("the coordinator is gone", || bench.node.state.lock().attached.is_none());
}

fn ask(bench: &Bench) -> Scavenged {
    bench.node.scavenge(WAIT, 0)
}

/// What became of each dataset, by id.
fn tried(bench: &Bench) -> Vec<(u64, Result<String, Reason>)> {
    match ask(bench) {
        Scavenged::Tried(tried) => tried.into_iter().map(|(Named { id, .. }, saved)| (id.0, saved)).collect(),
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn nothing(bench: &Bench, why: &str) {
    let Scavenged::Nothing(told) = ask(bench) else { panic!("something is saved") };
    assert!(told.words().contains(why), "{told}");
}

/// What the other node does, which has the member without files.
fn save_other(root: &Path, catalog: &Catalog) {
    let prefix = Prefix::new(root.as_os_str().as_bytes(), catalog.epoch, "n1");
    let age = Age { epoch: catalog.epoch, id: catalog.id };
    let Begun::Collect(collection) = Collection::begin(&prefix, &Known::by_age(age)).unwrap() else {
        panic!()
    };
    let record = MemberRecord {
        age,
        member: Member(1),
        host: "n1".into(),
        digest: digest(std::iter::empty()),
        redundancy: Vec::new(),
    };
    collection.record(&prefix, &record).unwrap();
}

#[test]
fn where_there_is_nothing_to_save_that_is_said_at_once() {
    let bench = Bench::new();
    nothing(&bench, "no coordinator was ever here");
    let lead = bench.serving(1);
    let place = prefix(&bench);
    assert!(matches!(bench.node.scavenge(Duration::from_millis(20), 0), Scavenged::Attached));
    kill(&bench, lead);
    nothing(&bench, "no dataset is protected here");
    bench.write("ck/f", b"x");
    let mut lead = bench.serving(2);
    let _place = (place, prefix(&bench));
    lead.seal(1, "ck");
    kill(&bench, lead);
    let with = |change: &dyn Fn(&mut Settings), why: &str| {
        let former = bench.node.state.lock().settings.clone();
        change(bench.node.state.lock().settings.as_mut().unwrap());
        nothing(&bench, why);
        bench.node.state.lock().settings = former;
    };
    with(&|settings| settings.enable = false, "SCR_ENABLE=0");
    with(&|settings| settings.advice.end_reserve = 0, "SCRFS_END_GRACE=0");
    let mut lead = bench.serving(3);
    lead.send(Command::MarkFlushed(DatasetId(1)));
    until("the mark", || bench.inventory().datasets[0].flushed);
    bench.node.state.lock().settings.as_mut().unwrap().advice.end_reserve = 60;
    kill(&bench, lead);
    nothing(&bench, "ck (dataset 1) is on the PFS");
}

#[test]
fn this_nodes_part_is_saved_and_published_when_all_are_there() {
    let mut bench = Bench::new();
    bench.write("ck/sub/rank 0", b"hello");
    bench.write("ck/empty", b"");
    let mut lead = bench.serving(1);
    let place = prefix(&bench);
    let settings = bench.node.state.lock().settings.clone().unwrap();
    bench.node.disk.lock().record_settings(&settings).unwrap();
    let catalog = lead.seal(1, "ck");
    kill(&bench, lead);
    let saved = tried(&bench);
    assert!(matches!(&saved[..], [(1, Ok(how))] if how.contains("member 1 (n1) missing")), "{saved:?}");
    let there = place.path().join(".scr/scavenge.1.1");
    assert_eq!(std::fs::read(there.join("dataset/sub/rank 0")).unwrap(), b"hello");
    assert_eq!(std::fs::read(there.join(REDUNDANCY)).unwrap(), b"parity");
    // What is there is not written again, and a successor of this worker goes on.
    std::fs::write(there.join("dataset/sub/rank 0"), "HELLO").unwrap();
    bench.restart();
    assert!(tried(&bench)[0].1.is_ok());
    assert_eq!(std::fs::read(there.join("dataset/sub/rank 0")).unwrap(), b"HELLO");
    std::fs::write(there.join("dataset/sub/rank 0"), "hello").unwrap();
    save_other(place.path(), &catalog);
    assert_eq!(tried(&bench), [(1, Ok("saved: it is on the PFS".to_owned()))]);
    assert_eq!(std::fs::read(place.path().join("ck/sub/rank 0")).unwrap(), b"hello");
    assert!(place.path().join("ck/.scr/summary.scr").exists() && !there.exists());
    nothing(&bench, "ck (dataset 1) is on the PFS");
}

#[test]
fn a_newer_dataset_in_doubt_is_saved_beside_the_newest_complete_one() {
    let bench = Bench::new();
    bench.write("one/f", b"one");
    bench.write("two/f", b"two");
    bench.write("three/f", b"three");
    let mut lead = bench.serving(1);
    let place = prefix(&bench);
    lead.seal(1, "one");
    let files = lead.freeze(2, "two").unwrap();
    let part = encode(&mut lead.data(), 2, &files).unwrap();
    // Frozen, and not voted for.
    lead.freeze(3, "three").unwrap();
    kill(&bench, lead);
    let saved = tried(&bench);
    assert_eq!(saved.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [1, 2]);
    assert!(saved.iter().all(|(_, saved)| saved.is_ok()), "{saved:?}");
    let there = |name: &str| place.path().join(".scr").join(name).exists();
    assert!(there("scavenge.1.1/catalog.0") && there("scavenge.1.2/member.0"));
    assert!(!there("scavenge.1.2/catalog.0") && !there("scavenge.1.3"));
    // Another node has COMPLETE of it.
    let catalog = catalog(2, 1, "two", &part);
    save_other(place.path(), &catalog);
    let prefix = Prefix::new(place.path().as_os_str().as_bytes(), Epoch(1), "n1");
    let age = Age { epoch: Epoch(1), id: DatasetId(2) };
    let Begun::Collect(collection) = Collection::begin(&prefix, &Known::by_age(age)).unwrap() else {
        panic!()
    };
    collection.put_catalog(&prefix, &catalog).unwrap();
    assert_eq!(tried(&bench)[1].1, Ok("saved: it is on the PFS".to_owned()));
    assert_eq!(std::fs::read(place.path().join("two/f")).unwrap(), b"two");
}

/// A node with a sealed dataset that the prefix lacks, whose coordinator is gone; and that prefix.
fn left_behind() -> (Bench, tempfile::TempDir) {
    let bench = Bench::new();
    bench.write("ck/f", b"good");
    let mut lead = bench.serving(1);
    let place = prefix(&bench);
    lead.seal(1, "ck");
    kill(&bench, lead);
    (bench, place)
}

/// A restart without the nodes that have the rest of it, which come back and save theirs.
#[test]
fn what_a_restart_could_not_present_is_saved() {
    let (bench, place) = left_behind();
    let mut lead = bench.lead(2, Start::Restart);
    lead.send(Command::Present { datasets: Vec::new() });
    assert_eq!(lead.next(), Event::Presented { result: Ok(()) });
    lead.send(Command::Serve);
    let again = prefix(&bench);
    kill(&bench, lead);
    let saved = tried(&bench);
    assert!(matches!(&saved[..], [(1, Ok(how))] if how.contains("member 1 (n1) missing")), "{saved:?}");
    let there = |place: &Path| place.join(".scr/scavenge.1.1/dataset/f").exists();
    assert!(there(again.path()) && !there(place.path()));
    // One that is presented and newer makes it needless.
    bench.write("new/f", b"new");
    let mut lead = bench.serving(3);
    let _third = prefix(&bench);
    lead.seal(2, "new");
    kill(&bench, lead);
    assert_eq!(tried(&bench).iter().map(|(id, _)| *id).collect::<Vec<_>>(), [2]);
}

/// Other nodes of the job have saved their parts, and given up their caches.
#[test]
fn the_lead_of_a_restart_has_this_nodes_part_saved() {
    let bench = Bench::new();
    bench.write("ck/f", b"good");
    let mut lead = bench.serving(1);
    let catalog = lead.seal(1, "ck");
    kill(&bench, lead);
    let mut lead = bench.lead(2, Start::Restart);
    let place = prefix(&bench);
    let mut save = |id: u64| {
        lead.send(Command::Save(DatasetId(id)));
        let Event::Saved { id: of, result } = lead.next() else { panic!("another answer") };
        assert_eq!(of, DatasetId(id));
        result.map_err(|reason| reason.to_string())
    };
    assert!(save(9).unwrap_err().contains("dataset 9"));
    // Its redundancy file is bad; the files are worth saving.
    let own = bench.directory.path().join("cache/user/scr.j1/dataset.1");
    std::fs::write(own.join(REDUNDANCY), b"PARITY").unwrap();
    assert_eq!(save(1), Ok(()));
    let there = place.path().join(".scr/scavenge.1.1");
    assert!(there.join("dataset/f").exists() && there.join("member.0").exists());
    assert!(!there.join(REDUNDANCY).exists() && !place.path().join("ck").exists());
    assert!(bench.events().contains("a redundancy file is not saved"), "{}", bench.events());
    save_other(place.path(), &catalog);
    assert_eq!(save(1), Ok(()));
    assert!(!place.path().join("ck").exists(), "the lead publishes");
    adopt_all(&Prefix::new(place.path().as_os_str().as_bytes(), Epoch(2), "n0"), &|_| {}).unwrap();
    assert_eq!(save(1), Ok(()));
    assert_eq!(std::fs::read(place.path().join("ck/f")).unwrap(), b"good");
    until("the mark", || bench.inventory().datasets[0].flushed);
}

#[test]
fn what_takes_too_long_is_said() {
    let (bench, _place) = left_behind();
    // The thread that saves has other work.
    let (release, work) = std::sync::mpsc::channel::<()>();
    bench.node.lanes.transfers.run(move || {
        let _ = work.recv();
    });
    let late = bench.node.scavenge(Duration::ZERO, 0);
    assert!(
        matches!(&late, Scavenged::Tried(tried) if tried[0].1 == Err("not done in 0 s".into())),
        "{late:?}"
    );
    drop(release);
}

#[test]
fn what_cannot_be_saved_is_said_and_tried_again() {
    let (bench, place) = left_behind();
    let failed = |why: &str| {
        let saved = tried(&bench);
        assert!(matches!(&saved[..], [(1, Err(told))] if told.words().contains(why)), "{saved:?}");
        assert!(!place.path().join(".scr/scavenge.1.1/member.0").exists());
    };
    std::fs::write(place.path().join(".scr"), b"in the way").unwrap();
    failed("Not a directory");
    std::fs::remove_file(place.path().join(".scr")).unwrap();
    // Bytes that are not those that were sealed are not saved.
    let cached = bench.tree.at(&path("ck/f"));
    std::fs::write(&cached, b"evil").unwrap();
    failed("CRC");
    std::fs::write(&cached, b"good").unwrap();
    assert!(tried(&bench)[0].1.is_ok());
    assert!(bench.events().contains("this node's part is not saved"), "{}", bench.events());
}

#[test]
fn beside_a_newest_dataset_that_nothing_protects_an_older_one_is_saved_that_is() {
    let bench = Bench::new();
    let mut lead = bench.serving(1);
    let place = prefix(&bench);
    for (id, name) in [(1, "one"), (2, "two"), (3, "three")] {
        bench.write(&format!("{name}/f"), name.as_bytes());
        lead.seal(id, name);
    }
    // Sets of one, as with LOCAL.
    let weaken = |id: u64| {
        let mut state = bench.node.state.lock();
        let dataset = state.table.datasets.get_mut(&DatasetId(id)).unwrap();
        let mut weak = dataset.life.catalog().unwrap().catalog().clone();
        weak.layout.protection = Protection::by(Scheme::Single);
        dataset.complete(&Arc::new(CatalogIndex::new(weak)));
    };
    kill(&bench, lead);
    let ids = || tried(&bench).iter().map(|(id, _)| *id).collect::<Vec<_>>();
    assert_eq!(ids(), [3]);
    weaken(3);
    weaken(2);
    assert_eq!(ids(), [3, 1]);
    assert!(place.path().join(".scr/scavenge.1.1/catalog.0").exists());
}

/// Where the prefix is, a damaged record does not tell any more.
#[test]
fn without_the_jobs_settings_what_is_here_counts_as_not_saved() {
    let mut bench = Bench::new();
    bench.write("ck/f", b"x");
    let mut lead = bench.serving(1);
    lead.seal(1, "ck");
    kill(&bench, lead);
    let settings = bench.control().join("settings.json");
    assert!(settings.exists());
    std::fs::write(settings, "{").unwrap();
    bench.restart();
    let saved = tried(&bench);
    assert!(matches!(&saved[..], [(1, Err(_))]), "{saved:?}");
}

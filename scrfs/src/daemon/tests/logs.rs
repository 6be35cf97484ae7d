//! Files that programs hold open for append while their dataset is sealed.

use std::fs::File;

use super::crash::{at_every_step, state};
use super::generations::{names, read};
use super::*;
use crate::control::HeldState;
use crate::daemon::cache::Instead;

fn appending(file: &str) -> Writer {
    Writer { path: path(file), pid: 999_999, command: "prog".into(), appends: true, closing: false }
}

impl Bench {
    fn open_log(&self) -> File {
        self.tree.set_writers(vec![appending("log")]);
        File::options().append(true).open(self.tree.at(&path("ck/log"))).unwrap()
    }

    fn copies(&self, id: u64) -> usize {
        self.node.cache.copies(DatasetId(id), Instead::Log).unwrap().len()
    }
}

fn size(files: &[FrozenFile], name: &str) -> Option<u64> {
    files.iter().find(|file| file.path == path(name)).map(|file| file.size)
}

fn begun() -> Generation {
    Generation { open: true, changed: vec![path("log")], begins: true, ..Generation::default() }
}

#[test]
fn it_is_sealed_from_a_copy_and_goes_on_growing() {
    let mut bench = Bench::new();
    bench.write("ck/a", b"alpha");
    bench.write("ck/log", b"one ");
    let mut log = bench.open_log();
    let mut lead = bench.serving(1);
    let files = lead.freeze(1, "ck").unwrap();
    assert_eq!(size(&files, "log"), Some(4));
    log.write_all(b"two ").unwrap();
    let part = encode(&mut lead.data(), 1, &files).unwrap();
    log.write_all(b"three ").unwrap();
    lead.commit(&catalog(1, 1, "ck", &part)).unwrap();
    lead.send(Command::Sealed(DatasetId(1)));
    assert!(lead.changed(1), "it has grown since");
    assert_eq!(bench.told(1).map(|told| Generation { begins: true, ..told }), Some(begun()));
    for _ in 0..2 {
        assert_eq!([read(&lead, 1, "log"), read(&lead, 1, "a")], ["one ", "alpha"]);
        assert_eq!(bench.in_tree("log").as_deref(), Some("one two three "));
        bench.restart();
        assert_eq!(bench.told(1).map(|told| Generation { begins: true, ..told }), Some(begun()));
        lead = bench.serving(lead.epoch + 1);
        assert!(lead.changed(1));
    }
    let _log = bench.open_log();
    let part = lead.freeze_over(2, "ck", Some(1)).unwrap();
    assert_eq!((size(&part.files, "log"), names(&part.carried)), (Some(14), vec!["a".to_owned()]));
    log.write_all(b"four ").unwrap();
    lead.finish(2, &part, &[]);
    lead.changed(2);
    assert_eq!([read(&lead, 1, "log"), read(&lead, 2, "log")], ["one ", "one two three "]);
    assert_eq!((bench.told(2), bench.copies(2)), (Some(begun()), 1));
    // A restart presents what was sealed, and only that.
    drop(lead);
    let mut lead = bench.lead(9, Start::Restart);
    let held = lead.inventory().datasets;
    assert!(held.iter().all(|dataset| dataset.members.len() == 1), "{held:?}");
    lead.send(Command::Present { datasets: vec![DatasetId(2)] });
    assert_eq!(lead.next(), Event::Presented { result: Ok(()) });
    assert_eq!(bench.in_tree("log").as_deref(), Some("one two three "));
    bench.tree.set_writers(Vec::new());
    lead.send(Command::Serve);
    assert!(!lead.changed(2));
    assert_eq!(bench.copies(2), 0);
    bench.restart();
    assert_eq!(bench.told(2), None, "nothing was changed since");
}

#[test]
fn one_that_has_not_grown_was_not_changed() {
    let mut bench = Bench::new();
    bench.write("ck/log", b"all");
    let mut log = bench.open_log();
    let mut lead = bench.serving(1);
    lead.seal(1, "ck");
    assert!(!lead.changed(1));
    bench.restart();
    let mut lead = bench.serving(2);
    assert!(!lead.changed(1));
    log.write_all(b" and more").unwrap();
    assert!(lead.changed(1));
}

#[test]
fn a_failed_seal_drops_the_copy() {
    let bench = Bench::new();
    bench.write("ck/log", b"one ");
    let mut log = bench.open_log();
    let mut lead = bench.serving(1);
    lead.freeze(1, "ck").unwrap();
    assert_eq!(bench.copies(1), 1);
    log.write_all(b"two ").unwrap();
    lead.send(Command::Drop { id: DatasetId(1), reason: "a node is full".into() });
    assert_eq!(lead.next(), Event::Dropped(DatasetId(1)));
    assert_eq!((bench.copies(1), bench.tree.is_frozen("ck")), (0, false));
    assert_eq!((bench.told(1), bench.in_tree("log").as_deref()), (None, Some("one two ")));
    // One who can write anywhere in it is waited for, and named; no copy is left.
    bench.node.state.lock().settings.as_mut().unwrap().seal_timeout_ms = 50;
    let other = Writer { appends: false, command: "other".into(), ..appending("log") };
    bench.tree.set_writers(vec![appending("log"), other]);
    let error = lead.freeze(2, "ck").unwrap_err();
    assert!(error.contains("log by other"), "{error}");
    assert_eq!(bench.copies(2), 0);
    // One whose release is on its way is waited for too.
    bench.node.state.lock().settings.as_mut().unwrap().seal_timeout_ms = 3_600_000;
    bench.tree.set_writers(Vec::new());
    bench.tree.set_passing_writers(vec![Writer { closing: true, ..appending("log") }]);
    lead.send(Command::Freeze { id: DatasetId(3), name: b"ck".to_vec(), member: Member(0), base: None });
    assert!(matches!(lead.next(), Event::Frozen { result: Ok(part), .. } if part.files[0].size == 8));
    assert_eq!(bench.copies(3), 0);
}

/// Coordinators and workers that die between freeze and commit; a successor that finds the member
/// recorded commits it.
#[test]
fn what_was_frozen_is_whole_for_a_successor() {
    for start in [Start::Attach, Start::Restart] {
        let mut bench = Bench::new();
        bench.write("ck/log", b"sealed");
        let mut log = bench.open_log();
        let mut lead = bench.serving(1);
        let files = lead.freeze(1, "ck").unwrap();
        log.write_all(b" and more").unwrap();
        bench.restart();
        let mut lead = bench.lead(2, start);
        let held = lead.inventory().datasets;
        assert_eq!((held[0].state, held[0].members.as_slice()), (HeldState::Frozen, &[Member(0)][..]));
        let part = encode(&mut lead.data(), 1, &files).unwrap();
        let catalog = catalog(1, 2, "ck", &part);
        bench.restart();
        let mut lead = bench.lead(3, start);
        assert_eq!(lead.inventory().datasets[0].members, [Member(0)]);
        lead.commit(&catalog).unwrap();
        if start == Start::Restart {
            lead.send(Command::Present { datasets: vec![DatasetId(1)] });
            assert_eq!(lead.next(), Event::Presented { result: Ok(()) });
            assert_eq!(bench.in_tree("log").as_deref(), Some("sealed"));
        } else {
            assert_eq!(bench.told(1).map(|told| Generation { begins: true, ..told }), Some(begun()));
            assert_eq!(bench.in_tree("log").as_deref(), Some("sealed and more"));
        }
        assert_eq!(read(&lead, 1, "log"), "sealed");
    }
}

#[test]
fn a_crash_at_any_step_of_the_commit_leaves_it_sealed_or_not() {
    at_every_step(
        |bench, _| {
            bench.write("ck/log", b"sealed");
            bench.tree.set_writers(vec![appending("log")]);
        },
        |bench, lead| {
            let Ok(files) = lead.freeze(1, "ck") else { return false };
            let log = File::options().append(true).open(bench.tree.at(&path("ck/log")));
            log.unwrap().write_all(b" and more").unwrap();
            let Ok(part) = encode(&mut lead.data(), 1, &files) else { return false };
            lead.commit(&catalog(1, 1, "ck", &part)).is_ok()
        },
        |bench, succeeded| {
            let sealed = state(bench) == Some(HeldState::Complete);
            assert!(sealed || !succeeded);
            if sealed {
                assert_eq!(bench.told(1).map(|told| Generation { begins: true, ..told }), Some(begun()));
                let lead = bench.serving(2);
                assert_eq!([read(&lead, 1, "log"), read(&lead, 1, "f")], ["sealed", "bytes"]);
            } else if state(bench).is_none() {
                assert_eq!(bench.copies(1), 0, "of a seal of which nothing is known");
            }
            assert!(bench.in_tree("log").is_some_and(|text| text.starts_with("sealed")));
        },
    );
}

#[test]
fn an_empty_one_is_sealed_as_that() {
    let bench = Bench::new();
    bench.write("ck/log", b"");
    let _log = bench.open_log();
    let mut lead = bench.serving(1);
    assert_eq!(size(&lead.freeze(1, "ck").unwrap(), "log"), Some(0));
    assert_eq!(bench.copies(1), 1);
}

//! One dataset's life, with the worker killed and started again after every step.

use super::*;
use crate::control::{Answer, Ask, HeldState, client};
use crate::status::FlushFailure;

/// Restarts; the new worker must tell a new coordinator what the old one would have.
fn survives_restart(bench: &mut Bench) {
    let before = bench.inventory();
    bench.restart();
    let mut after = bench.inventory();
    after.epoch = before.epoch;
    assert_eq!(after, before);
}

#[test]
fn every_step_survives_a_restart() {
    let mut bench = Bench::new();
    survives_restart(&mut bench);

    let mut lead = bench.serving(1);
    let made = bench.directory_op(make("ck"));
    let Event::DirRequest { request, op } = lead.next() else { panic!() };
    lead.send(Command::DirPrepare { round: 1, ops: vec![(request, op)] });
    assert_eq!(lead.next(), Event::DirPrepared { round: 1, votes: vec![0] });
    assert_eq!(bench.tree.held(), 1);
    lead.send(Command::DirApply { round: 1, verdicts: vec![0] });
    assert_eq!(lead.next(), Event::DirApplied { round: 1, results: vec![0] });
    lead.send(Command::DirFinish { results: vec![(request, 0)] });
    assert_eq!(made.recv_timeout(WAIT).unwrap(), Ok(()));
    survives_restart(&mut bench);

    bench.write("ck/rank 0", b"hello");
    bench.write("ck/sub/rank 1", b"");
    std::os::unix::fs::symlink("rank 0", bench.tree.at(&path("ck/link"))).unwrap();
    survives_restart(&mut bench);

    let mut lead = bench.serving(2);
    let files = lead.freeze(1, "ck").unwrap();
    assert_eq!(files.len(), 2);
    assert!(bench.tree.is_frozen("ck"));
    survives_restart(&mut bench);
    assert!(bench.tree.is_frozen("ck"), "a seal in doubt is frozen again");
    assert_eq!(bench.inventory().datasets[0].state, HeldState::Frozen);

    let mut lead = bench.lead(3, Start::Attach);
    assert_eq!(lead.inventory().epoch, Epoch(2));
    let part = encode(&mut lead.data(), 1, &files).unwrap();
    let is_file = |e: &&crate::dataset::Entry| matches!(e.kind, crate::dataset::EntryKind::File(_));
    let paths = part.entries.iter().filter(is_file).map(|e| &e.path);
    assert_eq!(paths.clone().count(), 2);
    survives_restart(&mut bench);
    let held = &bench.inventory().datasets[0];
    assert_eq!((held.state, &held.members[..]), (HeldState::Recorded, &[Member(0)][..]));
    assert_eq!(held.paths, [(Member(0), crate::control::sum_of_paths(paths))]);

    let mut lead = bench.lead(4, Start::Attach);
    let catalog = catalog(1, 4, "ck", &part);
    lead.commit(&catalog).unwrap();
    assert!(bench.tree.is_sealed("ck"));
    survives_restart(&mut bench);
    assert!(bench.tree.is_sealed("ck"));
    assert!(bench.inventory().datasets[0].listed);

    let mut lead = bench.serving(5);
    lead.send(Command::Sealed(DatasetId(1)));
    lead.send(Command::MarkFlushed(DatasetId(1)));
    lead.send(Command::ReadCatalog(DatasetId(1)));
    let Event::Catalog { catalog: Some(read), .. } = lead.next() else { panic!() };
    assert_eq!(*read, catalog);
    let again = bench.marker("ck", Caller::default());
    // The lead knows whether it was changed.
    let request = lead.marker("ck", false);
    assert!(!lead.changed(1));
    lead.sealed(request, 1);
    assert_eq!(again.recv_timeout(WAIT).unwrap(), Ok(()));
    survives_restart(&mut bench);
    assert!(bench.inventory().datasets[0].flushed);

    // Its copy on the PFS is bad.
    let mut lead = bench.serving(6);
    lead.send(Command::UnmarkFlushed(DatasetId(1)));
    lead.send(Command::ReadCatalog(DatasetId(1)));
    let Event::Catalog { catalog: Some(_), .. } = lead.next() else { panic!() };
    survives_restart(&mut bench);
    assert!(!bench.inventory().datasets[0].flushed);

    let mut lead = bench.serving(7);
    lead.send(Command::Evict(DatasetId(1)));
    assert_eq!(lead.next(), Event::Evicted(DatasetId(1)));
    assert!(!bench.tree.at(&path("ck")).exists());
    survives_restart(&mut bench);
    let inventory = bench.inventory();
    assert!(inventory.datasets.is_empty());
    assert_eq!(inventory.highest_id, 1, "ids are never used again");
    assert!(!bench.directory.path().join("cache/user/scr.j1/dataset.1").exists());
}

#[test]
fn what_leaves_the_caches_unsaved_is_remembered_until_a_newer_one_is_saved() {
    let bench = Bench::new();
    let mut lead = bench.serving(1);
    for id in 1..=4 {
        bench.write(&format!("ck{id}/f"), b"hello");
        lead.seal(id, &format!("ck{id}"));
    }
    let failed = |id, given_up| {
        let reason = "/pfs: full".to_owned();
        Command::FlushFailed { id: DatasetId(id), reason, given_up }
    };
    let evict = |lead: &mut Lead, id| {
        lead.send(Command::Evict(DatasetId(id)));
        assert_eq!(lead.next(), Event::Evicted(DatasetId(id)));
    };
    let unsaved = || {
        let gone = bench.node.status().unsaved.into_iter();
        gone.map(|gone| (gone.id, gone.name, gone.bytes, gone.reason)).collect::<Vec<_>>()
    };
    lead.send(failed(2, false));
    evict(&mut lead, 1);
    evict(&mut lead, 2);
    assert_eq!(unsaved(), [(2, "ck2".to_owned(), 5, "/pfs: full".to_owned())], "1 was not due");
    lead.send(failed(3, true));
    lead.send(Command::MarkFlushed(DatasetId(4)));
    until("a newer one on the PFS", || unsaved().is_empty());
    assert!(bench.node.status().on_pfs.is_none(), "it is in the caches");
    evict(&mut lead, 4);
    evict(&mut lead, 3);
    assert!(unsaved().is_empty());
    let shown = crate::status::show(&bench.node.status());
    assert!(
        shown.contains("ck4 (dataset 4) has left the caches: a restart fetches it from the PFS"),
        "{shown}"
    );
}

/// Also for a worker that is new.
#[test]
fn what_was_flushed_or_given_up_counts_for_its_prefix_and_its_coordinators() {
    let mut bench = Bench::new();
    let mut lead = bench.serving(1);
    for id in 1..=2 {
        bench.write(&format!("ck{id}/f"), b"hello");
        lead.seal(id, &format!("ck{id}"));
    }
    let failed = |lead: &mut Lead| {
        let reason = "/pfs: read-only".to_owned();
        lead.send(Command::FlushFailed { id: DatasetId(2), reason, given_up: true });
    };
    // Newest first.
    let state = |bench: &Bench| {
        let failure = |failure: &FlushFailure| failure.given_up;
        let datasets = bench.node.status().datasets.into_iter();
        datasets
            .map(|dataset| (dataset.flushed, dataset.flush_failed.as_ref().map(failure)))
            .collect::<Vec<_>>()
    };
    lead.send(Command::MarkFlushed(DatasetId(1)));
    failed(&mut lead);
    until("both", || state(&bench) == [(false, Some(true)), (true, None)]);
    let mut lead = bench.serving(2);
    assert_eq!(state(&bench), [(false, Some(false)), (true, None)], "it is tried again");
    failed(&mut lead);
    until("the failure", || state(&bench)[0] == (false, Some(true)));

    bench.settings.prefix = b"/elsewhere".to_vec();
    bench.serving(3);
    assert_eq!(state(&bench), [(false, None), (false, None)]);
    survives_restart(&mut bench);
    assert_eq!(state(&bench), [(false, None), (false, None)]);
    let mut lead = bench.serving(4);
    lead.send(Command::MarkFlushed(DatasetId(1)));
    until("the mark", || state(&bench) == [(false, None), (true, None)]);
    survives_restart(&mut bench);
    bench.serving(5);
    assert_eq!(state(&bench), [(false, None), (true, None)]);
}

#[test]
fn the_filemap_has_what_scr_reads() {
    let bench = Bench::new();
    bench.write("ck/rank 0", b"hello");
    bench.serving(1).seal(1, "ck");
    let bytes = std::fs::read(bench.control().join("filemap_0.scrinfo")).unwrap();
    let tree = crate::hash::decode_file(&bytes).unwrap();
    let part = ["RANK", "0", "DSET", "1"].iter().fold(&tree, |at, key| at.get(key).unwrap());
    assert_eq!(part.number::<u32>("FILES").unwrap(), Some(2), "the redundancy file counts");
    let meta = ["FILE", "rank 0", "META"].iter().fold(part, |at, key| at.get(key).unwrap());
    for (key, value) in [
        ("FILE", "rank 0"),
        ("NAME", "rank 0"),
        ("SIZE", "5"),
        ("RANKS", "2"),
        ("COMPLETE", "1"),
        ("PROGRAM_RANK", "7"),
    ] {
        assert!(meta.text(key).unwrap().unwrap() == value, "{key}");
    }
    let crc = format!("{:#x}", crc32fast::hash(b"hello"));
    assert!(meta.text("CRC").unwrap().unwrap() == crc.as_str());
    assert!(part.get("DSETDESC").is_some() && part.get("REDDESC").is_some());
}

#[test]
fn what_cannot_be_sealed_is_named() {
    let bench = Bench::new();
    bench.write("ck/f", b"x");
    let mut lead = bench.serving(1);
    for n in 0..20 {
        let at = bench.tree.at(&path(&format!("ck/pipe {n:02}")));
        rustix::fs::mknodat(rustix::fs::CWD, at, rustix::fs::FileType::Fifo, Mode::RWXU, 0).unwrap();
    }
    let _socket = std::os::unix::net::UnixListener::bind(bench.tree.at(&path("ck/a socket"))).unwrap();
    assert_eq!(lead.freeze(1, "ck").unwrap().len(), 1);
    let events = bench.events();
    assert!(events.contains("a socket (a socket), pipe 00 (a FIFO)"), "{events}");
    assert!(events.contains("pipe 06 (a FIFO) and 13 more") && !events.contains("pipe 07"), "{events}");
}

#[test]
fn a_program_removes_a_sealed_dataset() {
    let bench = Bench::new();
    bench.write("ck/f", b"x");
    let mut lead = bench.serving(1);
    lead.seal(1, "ck");
    lead.remove_directory("ck");
    assert_eq!(lead.next(), Event::Removed(DatasetId(1)));
    assert_eq!(lead.next(), Event::DirApplied { round: 1, results: vec![0] });
    // The name is free at once, whatever is still being deleted.
    bench.write("ck/new", b"y");
    until("the removal", || !bench.control().join("dataset.1.scrinfo").exists());
    assert!(bench.inventory().datasets.is_empty());
    assert!(bench.tree.at(&path("ck/new")).exists());
}

#[test]
fn a_dropped_seal_leaves_the_files_and_fails_the_marker() {
    let bench = Bench::new();
    bench.write("ck/f", b"x");
    let mut lead = bench.serving(1);
    let marker = bench.marker("ck", Caller::default());
    let request = lead.marker("ck", false);
    let files = lead.freeze(1, "ck").unwrap();
    encode(&mut lead.data(), 1, &files).unwrap();
    lead.send(Command::Drop { id: DatasetId(1), reason: "a full cache elsewhere".into() });
    assert_eq!(lead.next(), Event::Dropped(DatasetId(1)));
    lead.end(request, MarkerOutcome::NotSealed(DatasetId(1)));
    assert_eq!(marker.recv_timeout(WAIT).unwrap(), Err(Errno(libc::EIO)));
    assert!(!bench.tree.is_frozen("ck"));
    assert!(bench.events().contains("a full cache elsewhere"));
    assert!(bench.inventory().datasets.is_empty());
    // The same again, under a new id.
    let marker = bench.marker("ck", Caller::default());
    let request = lead.marker("ck", false);
    lead.seal(2, "ck");
    lead.sealed(request, 2);
    assert_eq!(marker.recv_timeout(WAIT).unwrap(), Ok(()));
}

#[test]
fn status_shows_what_is_there() {
    let bench = Bench::new();
    bench.write("ck1/f", b"12345");
    bench.write("ck2/g", b"xy");
    let mut lead = bench.serving(1);
    lead.seal(1, "ck1");
    until("sealed", || bench.events().contains("all members"));
    let Answer::Status(status) = client::ask(&bench.control(), &Ask::Status, WAIT).unwrap() else { panic!() };
    let of = |name: &str| status.datasets.iter().find(|d| d.name == name).unwrap();
    assert_eq!((of("ck1").state.as_str(), of("ck1").bytes, of("ck1").id), ("protected", 5, 1));
    assert!(of("ck1").current);
    assert_eq!(of("ck1").survives, [("n0".to_owned(), true), ("n1".to_owned(), true)]);
    assert_eq!((of("ck2").state.as_str(), of("ck2").bytes), ("open", 2));
    assert_eq!(status.coordinator.unwrap().hosts.len(), 2);
    let Answer::Events(lines) = client::ask(&bench.control(), &Ask::Events(3), WAIT).unwrap() else {
        panic!()
    };
    assert_eq!(lines.len(), 3);
}

/// What follows from COMPLETE may fail, also on all nodes at once: the lead must not take the
/// dataset for one that nobody has recorded.
#[cfg(feature = "faults")]
#[test]
fn a_commit_that_fails_says_whether_complete_is_on_storage() {
    use crate::faults::{Fault, arm};
    let mut outcomes = BTreeSet::new();
    // Some fail without harm.
    for point in 1..16 {
        let bench = Bench::new();
        bench.write("ck/f", b"x");
        let mut lead = bench.serving(1);
        let files = lead.freeze(1, "ck").unwrap();
        let part = encode(&mut lead.data(), 1, &files).unwrap();
        let catalog = catalog(1, 1, "ck", &part);
        arm(point, Fault::Error(libc::ENOSPC));
        bench.node.commit(catalog.clone());
        arm(0, Fault::Error(0));
        let Event::Committed { result, decided, .. } = lead.next() else { panic!() };
        let is_there = bench.control().join("dataset.1.scrinfo").exists();
        assert!(decided == is_there, "{result:?} at point {point}: {decided}");
        outcomes.insert((result.is_ok(), decided));
        if result.is_err() {
            lead.commit(&catalog).unwrap();
        }
        let held = bench.inventory().datasets.remove(0);
        assert_eq!((held.state, held.listed), (HeldState::Complete, true), "at point {point}");
    }
    assert_eq!(outcomes.into_iter().collect::<Vec<_>>(), [(false, false), (false, true), (true, true)]);
}

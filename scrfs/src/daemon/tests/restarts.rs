//! Presenting, verifying, flushing and fetching.

use super::*;
use crate::control::HeldState;
use crate::dataset::lifecycle::Step;
use crate::dataset::{Entry, EntryKind};

#[test]
fn only_what_is_presented_is_there() {
    let mut bench = Bench::new();
    let mut lead = bench.serving(1);
    for (id, name) in [(1, "ck1"), (2, "ck2"), (3, "ck3")] {
        bench.write(&format!("{name}/f"), name.as_bytes());
        lead.seal(id, name);
    }
    bench.write("ck4/unsealed", b"x");
    bench.restart();
    let mut lead = bench.lead(2, Start::Restart);
    assert_eq!(lead.inventory().datasets.len(), 3);
    lead.send(Command::Present { datasets: vec![DatasetId(2), DatasetId(1)] });
    assert_eq!(lead.next(), Event::Presented { result: Ok(()) });
    lead.send(Command::Serve);
    let listing = |bench: &Bench| {
        let mut names: Vec<_> = std::fs::read_dir(&bench.tree.root)
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    };
    assert_eq!(listing(&bench), ["ck1", "ck2"]);
    bench.restart();
    assert_eq!(listing(&bench), ["ck1", "ck2"]);
    assert!(bench.tree.is_sealed("ck1") && !bench.tree.is_sealed("ck3"));
    let listed: Vec<bool> = bench.inventory().datasets.iter().map(|d| d.listed).collect();
    assert_eq!(listed, [true, true, false]);
    // Nor does status speak of it as of something that a restart would present.
    let status = bench.node.status();
    let told: Vec<_> = status.datasets.iter().map(|d| (d.id, d.state.as_str(), d.current)).collect();
    assert_eq!(told, [(3, "hidden", false), (2, "protected", true), (1, "protected", false)]);
    assert!(status.datasets[0].hosts.is_empty() && status.datasets[0].survives.is_empty());
    // The one put aside is whole, and can be presented later.
    assert_eq!(bench.inventory().datasets[2].members, [Member(0)]);
    let mut lead = bench.lead(3, Start::Restart);
    lead.send(Command::Present { datasets: vec![DatasetId(3)] });
    assert_eq!(lead.next(), Event::Presented { result: Ok(()) });
    assert_eq!(listing(&bench), ["ck3"]);
    assert_eq!(std::fs::read(bench.tree.at(&path("ck3/f"))).unwrap(), b"ck3");
    lead.send(Command::Present { datasets: vec![DatasetId(9)] });
    assert!(matches!(lead.next(), Event::Presented { result: Err(_) }));
}

/// Before it is known what is presented, only that goes of which no dataset can be there.
#[test]
fn what_is_not_sealed_makes_room_and_what_may_be_a_dataset_does_not() {
    let bench = Bench::new();
    let mut lead = bench.serving(1);
    bench.write("ck1/f", b"one");
    lead.seal(1, "ck1");
    // Complete on another node, perhaps.
    bench.write("ck2/f", b"two");
    let files = lead.freeze(2, "ck2").unwrap();
    encode(&mut lead.data(), 2, &files).unwrap();
    bench.write("ck3/d/f", b"three");
    let mut lead = bench.lead(2, Start::Restart);
    for names in [1, 0] {
        lead.send(Command::RemoveUnsealed);
        assert_eq!(lead.next(), Event::UnsealedRemoved { names });
    }
    let there = |name: &str| bench.tree.at(&path(name)).exists();
    assert_eq!(["ck1/f", "ck2/f", "ck3"].map(there), [true, true, false]);
    let told = bench.events();
    assert!(told.contains("ck3: what is not sealed is removed, as a dataset needs its room"), "{told}");
    assert!(bench.node.journal.lock().files_of(&path("ck3")).is_empty());
}

/// What somebody made at the name meanwhile is not taken for the sealed files, by no later try.
#[test]
fn files_that_could_not_be_put_back_stay_aside_for_the_next_try() {
    let bench = Bench::new();
    let mut lead = bench.serving(1);
    for (id, name) in [(1, "ck1"), (2, "ck2")] {
        bench.write(&format!("{name}/f"), name.as_bytes());
        lead.seal(id, name);
    }
    let mut lead = bench.lead(2, Start::Restart);
    let mut present = |id| {
        lead.send(Command::Present { datasets: vec![DatasetId(id)] });
        let Event::Presented { result } = lead.next() else { panic!() };
        result
    };
    let read = |name: &str| std::fs::read(bench.tree.at(&path(name))).unwrap();
    assert_eq!(present(2), Ok(()));
    for next in [2, 1] {
        bench.tree.inner.lock().intruder = Some(bench.tree.root.join("ck1/x"));
        let refused = present(1).unwrap_err();
        assert!(refused.words().contains("dataset 1 cannot be put in place"), "{refused}");
        assert_eq!(present(next), Ok(()));
    }
    assert_eq!((read("ck1/f"), bench.tree.at(&path("ck1/x")).exists()), (b"ck1".to_vec(), false));
}

#[test]
fn a_seal_in_doubt_is_settled_before_presenting() {
    let mut bench = Bench::new();
    bench.write("ck/f", b"x");
    let mut lead = bench.serving(1);
    let files = lead.freeze(1, "ck").unwrap();
    let part = encode(&mut lead.data(), 1, &files).unwrap();
    bench.restart();
    let mut lead = bench.lead(2, Start::Restart);
    assert_eq!(lead.inventory().datasets[0].state, HeldState::Recorded);
    lead.commit(&catalog(1, 1, "ck", &part)).unwrap();
    lead.send(Command::Sealed(DatasetId(1)));
    assert!(!bench.tree.is_sealed("ck"), "not before it is presented");
    lead.send(Command::Present { datasets: vec![DatasetId(1)] });
    assert_eq!(lead.next(), Event::Presented { result: Ok(()) });
    assert!(bench.tree.is_sealed("ck") && !bench.tree.is_frozen("ck"));
    assert_eq!(std::fs::read(bench.tree.at(&path("ck/f"))).unwrap(), b"x");
}

#[test]
fn bad_bytes_are_found_and_never_read_again() {
    let bench = Bench::new();
    bench.write("ck/f", b"good");
    bench.write("ck/g", b"fine");
    let mut lead = bench.serving(1);
    lead.seal(1, "ck");
    std::fs::write(bench.tree.at(&path("ck/f")), b"evil").unwrap();
    let [files, redundancy] = lead.verify(DatasetId(1))[0].1.clone();
    assert!(files.unwrap().contains("CRC") && redundancy.is_none());
    assert!(!bench.tree.at(&path("ck/f")).exists());
    assert!(bench.tree.at(&path("ck/g")).exists());
    assert!(bench.inventory().datasets[0].members.is_empty());
    let own = bench.directory.path().join("cache/user/scr.j1/dataset.1").join(REDUNDANCY);
    std::fs::write(own, b"parits").unwrap();
    let [_, redundancy] = lead.verify(DatasetId(1))[0].1.clone();
    assert!(redundancy.unwrap().contains(REDUNDANCY));
}

#[test]
fn to_the_prefix_and_back() {
    let bench = Bench::new();
    let pfs = tempfile::tempdir().unwrap();
    let directory = pfs.path().as_os_str().as_bytes().to_vec();
    bench.write("ck/sub/rank 0", b"hello");
    let mut lead = bench.serving(1);
    let catalog = lead.seal(1, "ck");
    lead.send(Command::FlushMember { id: DatasetId(1), directory: directory.clone() });
    assert_eq!(lead.next(), Event::FlushedMember { id: DatasetId(1), result: Ok(()), bad: Vec::new() });
    assert_eq!(std::fs::read(pfs.path().join("sub/rank 0")).unwrap(), b"hello");
    lead.send(Command::FlushMember { id: DatasetId(1), directory: b"/nowhere".to_vec() });
    assert!(matches!(lead.next(), Event::FlushedMember { result: Err(_), .. }));
    // An answer is for whoever has asked.
    let former = bench.node.state.lock().attached.as_ref().unwrap().link.id();
    let mut lead = bench.serving(2);
    bench.node.flush_member(former, DatasetId(1), &directory);
    bench.node.verify(former, DatasetId(1));
    lead.send(Command::Ping);
    assert_eq!(lead.next(), Event::Pong);

    // On a node that lost everything.
    let bench = Bench::new();
    let mut lead = bench.lead(2, Start::Restart);
    // As every lead does first: then what an earlier one left unfinished is gone.
    lead.inventory();
    let fetch = |entries: Vec<Entry>| Command::FetchMember {
        id: DatasetId(1),
        epoch: Epoch(1),
        name: b"ck".to_vec(),
        member: Member(0),
        directory: directory.clone(),
        entries,
    };
    let mut wrong = catalog.entries.clone();
    for entry in &mut wrong {
        if let EntryKind::File(copy) = &mut entry.kind {
            copy.crc ^= 1;
        }
    }
    lead.send(fetch(wrong));
    let Event::FetchedMember { result: Err(failure), .. } = lead.next() else { panic!() };
    assert!(failure.corrupt, "{}", failure.reason);
    assert!(bench.inventory().datasets.is_empty());
    // Nothing is mounted here, or the directory is not seen yet: that is this node's trouble. With
    // the dataset's summary in sight a file is gone.
    let empty = tempfile::tempdir().unwrap();
    std::fs::create_dir(empty.path().join(".scr")).unwrap();
    let here = empty.path().as_os_str().as_bytes().to_vec();
    let mut corrupt = |directory: &[u8]| {
        let Command::FetchMember { id, epoch, name, member, entries, .. } = fetch(catalog.entries.clone())
        else {
            panic!()
        };
        let directory = directory.to_vec();
        lead.send(Command::FetchMember { id, epoch, name, member, directory, entries });
        let Event::FetchedMember { result: Err(failure), .. } = lead.next() else { panic!() };
        failure.corrupt
    };
    assert!(!corrupt(b"/nowhere") && !corrupt(&here));
    std::fs::write(empty.path().join(".scr/summary.scr"), "").unwrap();
    assert!(corrupt(&here));
    lead.send(fetch(catalog.entries.clone()));
    let Event::FetchedMember { result: Ok(files), .. } = lead.next() else { panic!() };
    assert_eq!(files.len(), 1);
    let part = encode(&mut lead.data(), 1, &files).unwrap();
    assert_eq!(part.entries.len(), catalog.entries.len());
    lead.commit(&catalog).unwrap();
    lead.send(Command::Present { datasets: vec![DatasetId(1)] });
    assert_eq!(lead.next(), Event::Presented { result: Ok(()) });
    assert_eq!(std::fs::read(bench.tree.at(&path("ck/sub/rank 0"))).unwrap(), b"hello");

    // One file that a program waits for.
    lead.send(Command::Serve);
    std::fs::remove_file(bench.tree.at(&path("ck/sub/rank 0"))).unwrap();
    let file = crate::control::SealedFile { id: DatasetId(1), path: path("sub/rank 0") };
    let request = RequestId { origin: 1, serial: 1 };
    lead.send(Command::CopyFromPrefix { request, file, directory });
    assert_eq!(lead.next(), Event::CopiedFromPrefix { request, result: Ok(()) });
    assert_eq!(std::fs::read(bench.tree.at(&path("ck/sub/rank 0"))).unwrap(), b"hello");
}

#[test]
fn directories_are_united() {
    let bench = Bench::new();
    std::fs::create_dir(bench.tree.at(&path("mine"))).unwrap();
    let mut lead = bench.lead(1, Start::Attach);
    let mine = lead.inventory().directories;
    assert_eq!(mine.len(), 1);
    let other = DirHeld { path: path("theirs"), ..mine[0].clone() };
    lead.send(Command::DirUnite { directories: vec![mine[0].clone(), other] });
    assert_eq!(lead.next(), Event::DirUnited);
    assert!(bench.tree.at(&path("theirs")).exists());
}

#[test]
fn what_could_not_be_removed_is_not_presented() {
    let bench = Bench::new();
    let mut lead = bench.serving(1);
    for (id, name) in [(1, "ck1"), (2, "ck2")] {
        bench.write(&format!("{name}/f"), name.as_bytes());
        lead.seal(id, name);
    }
    // Its removal has begun and failed.
    bench.node.disk.lock().step(&bench.node.state, DatasetId(1), &Step::Leaves).unwrap();
    assert!(bench.tree.is_sealed("ck1"));
    let mut lead = bench.lead(2, Start::Restart);
    lead.inventory();
    lead.send(Command::Present { datasets: vec![DatasetId(2)] });
    assert_eq!(lead.next(), Event::Presented { result: Ok(()) });
    assert!(!bench.tree.is_sealed("ck1") && !bench.tree.at(&path("ck1")).exists());
    assert_eq!(std::fs::read(bench.tree.at(&path("ck2/f"))).unwrap(), b"ck2");
    until("removed", || !bench.node.state.lock().table.datasets.contains_key(&DatasetId(1)));
}

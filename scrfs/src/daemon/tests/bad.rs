//! Bytes that went bad in the cache: a member rebuilt where it is, and a dataset marked as failed.

use std::fs::File;
use std::io::{Read, Write};

use super::*;
use crate::control::SealedFile;
use crate::dataset::{EntryKind, FileCopy};

const ID: DatasetId = DatasetId(1);
const MEMBER: Member = Member(0);
const FILES: [(&str, &[u8]); 2] = [("a", b"first"), ("b", b"second")];

/// A job's worker that rebuilds member 0 with these bytes of `b`; finished when `finish`.
pub(super) fn rebuild(
    data: &mut DataConnection,
    catalog: &Catalog,
    b: &[u8],
    finish: bool,
) -> Result<(), String> {
    let begin = DataRequest::BeginMember { catalog: Arc::new(catalog.clone()), member: MEMBER };
    data.done(&begin).map_err(|error| error.to_string())?;
    let mut crcs = Vec::new();
    for (name, bytes) in [FILES[0], ("b", b)] {
        let fd =
            data.descriptor(&DataRequest::CreateFile { id: ID, member: MEMBER, path: path(name) }).unwrap();
        File::from(fd).write_all(bytes).unwrap();
        crcs.push(crc32fast::hash(bytes));
    }
    let create = DataRequest::CreateRedundancy { id: ID, member: MEMBER, name: REDUNDANCY.into() };
    File::from(data.descriptor(&create).unwrap()).write_all(b"parity").unwrap();
    if finish { self::finish(data, crcs) } else { Ok(()) }
}

fn finish(data: &mut DataConnection, crcs: Vec<u32>) -> Result<(), String> {
    let redundancy = Some((REDUNDANCY.to_owned(), 6, crc32fast::hash(b"parity")));
    let set = vec![Member(0), Member(1)];
    let finish = DataRequest::FinishMember { id: ID, member: MEMBER, crcs, redundancy, set, members: 2 };
    data.request(&finish).map(drop).map_err(|error| error.to_string())
}

fn sealed(bench: &Bench) -> (Lead, Catalog) {
    for (name, bytes) in FILES {
        bench.write(&format!("ck/{name}"), bytes);
    }
    let mut lead = bench.serving(1);
    let catalog = lead.seal(1, "ck");
    (lead, catalog)
}

#[test]
fn a_bad_member_counts_as_it_is_until_its_rebuild_is_whole() {
    let mut bench = Bench::new();
    let (lead, catalog) = sealed(&bench);
    let bad = bench.tree.at(&path("ck/b"));
    std::fs::write(&bad, b"SECOND").unwrap();
    let mut held_open = File::open(&bad).unwrap();
    let as_before = |bench: &Bench| {
        assert_eq!(bench.inventory().datasets[0].members, [MEMBER]);
        assert_eq!(std::fs::read(bench.tree.at(&path("ck/b"))).unwrap(), b"SECOND");
        assert_eq!(std::fs::read(bench.tree.at(&path("ck/a"))).unwrap(), FILES[0].1);
    };
    let mut data = lead.data();
    // Bytes that were not sealed are not taken.
    assert!(rebuild(&mut data, &catalog, b"Second", true).unwrap_err().contains("CRC"));
    as_before(&bench);
    data.done(&DataRequest::AbandonMember { id: ID, member: MEMBER }).unwrap();
    as_before(&bench);
    // A coordinator that dies, and a worker of the daemon that does, leave what was there.
    rebuild(&mut data, &catalog, FILES[1].1, false).unwrap();
    as_before(&bench);
    let mut lead = bench.serving(2);
    lead.inventory();
    as_before(&bench);
    assert!(!bench.directory.path().join("cache/user/scr.j1/dataset.1/staged").exists());
    rebuild(&mut lead.data(), &catalog, FILES[1].1, false).unwrap();
    bench.restart();
    as_before(&bench);

    let lead = bench.serving(3);
    rebuild(&mut lead.data(), &catalog, FILES[1].1, true).unwrap();
    for (name, bytes) in FILES {
        assert_eq!(std::fs::read(bench.tree.at(&path(&format!("ck/{name}")))).unwrap(), bytes);
    }
    let mut old = Vec::new();
    held_open.read_to_end(&mut old).unwrap();
    assert_eq!(old, b"SECOND", "who has it open keeps it");
    bench.restart();
    let mut lead = bench.serving(4);
    assert_eq!(lead.verify(ID), [(MEMBER, [None, None])]);
}

#[test]
fn a_removed_dataset_does_not_come_back_as_a_rebuilt_one() {
    let bench = Bench::new();
    let (mut lead, catalog) = sealed(&bench);
    lead.send(Command::Evict(ID));
    assert_eq!(lead.next(), Event::Evicted(ID));
    let error = rebuild(&mut lead.data(), &catalog, FILES[1].1, false).unwrap_err();
    assert!(error.contains("removed"), "{error}");
    assert!(bench.inventory().datasets.is_empty());
}

#[test]
fn a_failed_dataset_stays_failed_and_its_predecessor_is_current() {
    let mut bench = Bench::new();
    let (mut lead, _) = sealed(&bench);
    bench.write("ck2/c", b"newer");
    let newer = lead.seal(2, "ck2");
    let reason = "no source has the right bytes of c".to_owned();
    lead.send(Command::MarkFailed { id: newer.id, reason });
    lead.inventory();
    let check = |bench: &Bench| {
        let failed: Vec<bool> = bench.inventory().datasets.iter().map(|held| held.failed).collect();
        assert_eq!(failed, [false, true]);
        let status = bench.node.status();
        let [new, old] = &status.datasets[..] else { panic!("{status:?}") };
        assert_eq!((new.state.as_str(), new.current), ("failed", false));
        assert!(new.survives.iter().all(|(_, survives)| !survives));
        assert_eq!((old.state.as_str(), old.current), ("protected", true));
    };
    check(&bench);
    assert!(bench.events().contains("failed: no source has the right bytes of c"));
    // Whether any node has changed it the lead knows.
    let marker = bench.marker("ck2", Caller::default());
    let request = lead.marker("ck2", false);
    lead.end(request, MarkerOutcome::Refused("it has failed".to_owned()));
    assert_eq!(marker.recv_timeout(WAIT).unwrap(), Err(Errno(libc::EIO)), "its marker is true no more");
    bench.restart();
    check(&bench);

    // Brought anew, under a later revision, it is what it was.
    let mut lead = bench.serving(2);
    let again = Catalog { revision: 1, ..newer };
    assert!(again.entries.iter().any(|entry| matches!(entry.kind, EntryKind::File(_))));
    lead.commit(&again).unwrap();
    assert!(bench.inventory().datasets.iter().all(|held| !held.failed));
}

#[test]
fn a_member_is_rebuilt_below_its_next_generation() {
    let bench = Bench::new();
    let (mut lead, catalog) = sealed(&bench);
    bench.begin(1).unwrap();
    let in_tree = |name: &str| std::fs::read(bench.tree.at(&path("ck")).join(name)).unwrap();
    // One file is changed, and the sealed bytes of both go bad; those of `b` are shared.
    bench.keep(1, "a").unwrap();
    bench.node.changing(ID, &path("a"), None).unwrap();
    std::fs::write(bench.tree.at(&path("ck/a")), b"changed").unwrap();
    std::fs::write(bench.tree.at(&path("ck/b")), b"SECOND").unwrap();
    let aside = bench.directory.path().join("cache/user/scr.j1/dataset.1/aside");
    std::fs::write(aside.join("a"), b"FIRST").unwrap();
    assert!(lead.verify(ID)[0].1[0].is_some());

    rebuild(&mut lead.data(), &catalog, FILES[1].1, true).unwrap();
    assert_eq!(lead.verify(ID), [(MEMBER, [None, None])]);
    assert_eq!((in_tree("a"), in_tree("b")), (b"changed".to_vec(), FILES[1].1.to_vec()));
    let part = lead.freeze_over(2, "ck", Some(1)).unwrap();
    let names = |files: &[FrozenFile]| files.iter().map(|file| file.path.to_string()).collect::<Vec<_>>();
    assert_eq!((names(&part.files), names(&part.carried)), (vec!["a".into()], vec!["b".into()]));
}

/// Before each step of the storage in the commit of its next generation.
#[cfg(feature = "faults")]
#[test]
fn a_member_rebuilt_while_its_next_generation_is_sealed_brings_nothing_back_into_the_tree() {
    for step in 1.. {
        let bench = Bench::new();
        let (mut lead, former) = sealed(&bench);
        bench.begin(1).unwrap();
        bench.change(1, "a", b"changed");
        let told = lead.freeze_over(2, "ck", Some(1)).unwrap();
        // Another node has written `b` anew.
        lead.carry(2, &["b"]);
        let part = encode(&mut lead.data(), 2, &told.files).unwrap();
        let mut newer = catalog(2, 1, "ck", &part);
        let copy = FileCopy { size: 5, crc: 1, member: Member(1), program_rank: None };
        newer.entries.push(crate::dataset::Entry {
            path: path("b"),
            kind: EntryKind::File(copy),
            ..part.entries[0].clone()
        });
        newer.layout.members[1] = MemberPlace { files: 1, bytes: 5, ..newer.layout.members[1].clone() };
        newer.sort();

        let (mut data, (give, rebuilt)) = (lead.data(), crossbeam_channel::bounded(2));
        rebuild(&mut data, &former, FILES[1].1, false).unwrap();
        let crcs = FILES.map(|(_, bytes)| crc32fast::hash(bytes)).to_vec();
        crate::faults::interrupt(
            "store",
            step,
            Box::new(move || {
                let (over, wait) = crossbeam_channel::bounded(1);
                std::thread::spawn(move || {
                    give.send(finish(&mut data, crcs)).unwrap();
                    let _ = over.send(());
                });
                // Where it has to wait for the commit, the commit goes on.
                let _ = wait.recv_timeout(Duration::from_millis(50));
            }),
        );
        bench.node.commit(newer);
        if crate::faults::uninterrupted().is_some() {
            assert!(step > 10);
            return;
        }
        rebuilt.recv_timeout(WAIT).expect("an end").unwrap();
        let b = bench.tree.at(&path("ck/b"));
        assert!(!b.exists(), "step {step}: the former generation's bytes are in the new one");
        assert_eq!(lead.next(), Event::Committed { id: DatasetId(2), result: Ok(()), decided: true });
        assert_eq!(lead.verify(ID), [(MEMBER, [None, None])]);
    }
}

#[cfg(feature = "faults")]
#[test]
fn a_file_whose_fsync_has_failed_is_sealed_by_no_later_try() {
    use crate::control::server::Service;
    use crate::faults::{Fault, arm};

    let bench = Bench::new();
    for (name, bytes) in FILES {
        bench.write(&format!("ck/{name}"), bytes);
    }
    let mut lead = bench.serving(1);
    lead.freeze(1, "ck").unwrap();
    let crcs = FILES.map(|(_, bytes)| crc32fast::hash(bytes)).to_vec();
    let set = vec![MEMBER];
    let finish =
        DataRequest::FinishMember { id: ID, member: MEMBER, crcs, redundancy: None, set, members: 1 };
    arm(1, Fault::Error(libc::EIO));
    let (reply, _) = bench.node.request(Epoch(1), finish);
    assert!(matches!(&reply, DataReply::Failed { errno: libc::EIO, .. }), "{reply:?}");
    lead.send(Command::Drop { id: ID, reason: "EIO".into() });
    assert_eq!(lead.next(), Event::Dropped(ID));
    let again = lead.freeze(2, "ck").unwrap_err();
    assert!(again.contains("a: an fsync of it has failed"), "{again}");

    let (file, new) = (bench.tree.at(&path("ck/a")), bench.tree.at(&path("ck/a.new")));
    std::fs::write(&new, FILES[0].1).unwrap();
    std::fs::rename(new, file).unwrap();
    assert_eq!(lead.freeze(3, "ck").unwrap().len(), 2);
}

/// A node comes back whose member was rebuilt on another one.
#[test]
fn a_damaged_copy_of_a_member_that_is_on_another_node_keeps_no_flush_from_its_end() {
    let bench = Bench::new();
    let (mut lead, mut catalog) = sealed(&bench);
    let flush = |lead: &mut Lead| {
        let pfs = tempfile::tempdir().unwrap();
        lead.send(Command::FlushMember { id: ID, directory: pfs.path().as_os_str().as_bytes().to_vec() });
        let Event::FlushedMember { result, bad, .. } = lead.next() else { panic!("another answer") };
        (result.map_err(|reason| reason.to_string()), bad, pfs.path().join("a").exists())
    };
    catalog.revision += 1;
    catalog.layout.members[0].host = "n2".into();
    lead.commit(&catalog).unwrap();
    std::fs::remove_file(bench.tree.at(&path("ck/b"))).unwrap();
    assert_eq!(flush(&mut lead), (Ok(()), Vec::new(), false));
    // While no node has the member, this copy is what there is.
    lead.send(Command::MarkAbsent { id: ID, members: vec![MEMBER] });
    let (result, bad, copied) = flush(&mut lead);
    assert!(result.unwrap_err().contains('b') && bad == [MEMBER] && copied);
}

/// A file system gives the number of a file that is gone to the next one.
#[test]
fn the_number_of_a_sealed_file_that_was_brought_anew_says_nothing_of_other_files() {
    let bench = Bench::new();
    let (lead, _) = sealed(&bench);
    bench.begin(1).unwrap();
    // The numbers aside are known from here on.
    bench.keep(1, "a").unwrap();
    let tree = bench.tree.at(&path("ck"));
    std::fs::hard_link(tree.join("b"), tree.join("with_its_number")).unwrap();
    let file = SealedFile { id: ID, path: path("b") };
    let mut data = lead.data();
    let fd = data.descriptor(&DataRequest::CreateCopy { file: file.clone(), takes: 4096 }).unwrap();
    File::from(fd).write_all(FILES[1].1).unwrap();
    let (size, crc) = (FILES[1].1.len() as u64, crc32fast::hash(FILES[1].1));
    data.done(&DataRequest::InstallCopy { file, size, crc }).unwrap();
    std::fs::write(tree.join("with_its_number"), b"the program's").unwrap();
    bench.keep(1, "with_its_number").unwrap();
    let aside = bench.directory.path().join("cache/user/scr.j1/dataset.1/aside");
    assert_eq!(std::fs::read(aside.join("b")).unwrap(), FILES[1].1);
    assert!(!bench.events().contains("sealed were"), "{}", bench.events());
}

#[test]
fn a_restart_removes_a_copy_that_went_bad() {
    let bench = Bench::new();
    bench.write("ck/a", b"first");
    let mut lead = bench.serving(1);
    let files = lead.freeze(1, "ck").unwrap();
    let part = encode(&mut lead.data(), 1, &files).unwrap();
    let mut catalog = catalog(1, 1, "ck", &part);
    let copies = [("x", &b"there"[..]), ("y", b"too")];
    for (name, bytes) in copies {
        let mut entry = part.entries.iter().find(|entry| entry.path == path("a")).unwrap().clone();
        let (size, crc) = (bytes.len() as u64, crc32fast::hash(bytes));
        let copy = FileCopy { size, crc, member: Member(1), program_rank: None };
        (entry.path, entry.kind) = (path(name), EntryKind::File(copy));
        catalog.entries.push(entry);
        catalog.layout.members[1].files += 1;
        catalog.layout.members[1].bytes += size;
    }
    catalog.sort();
    lead.commit(&catalog).unwrap();
    let mut data = lead.data();
    for (name, bytes) in copies {
        let file = SealedFile { id: ID, path: path(name) };
        let create = DataRequest::CreateCopy { file: file.clone(), takes: 4096 };
        File::from(data.descriptor(&create).unwrap()).write_all(bytes).unwrap();
        let (size, crc) = (bytes.len() as u64, crc32fast::hash(bytes));
        data.done(&DataRequest::InstallCopy { file, size, crc }).unwrap();
    }
    std::fs::write(bench.tree.at(&path("ck/x")), b"THERE").unwrap();
    let mut lead = bench.lead(2, Start::Restart);
    lead.inventory();
    lead.send(Command::Present { datasets: vec![ID] });
    assert_eq!(lead.next(), Event::Presented { result: Ok(()) });
    assert!(!bench.tree.at(&path("ck/x")).exists());
    assert_eq!(std::fs::read(bench.tree.at(&path("ck/y"))).unwrap(), b"too");
    assert!(bench.events().contains("a copy was bad and is removed: x"));
}

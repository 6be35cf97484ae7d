//! Data connections: what workers may open, and what is believed of what they bring.

use std::fs::File;

use super::*;
use crate::control::client::ClientError;
use crate::control::{HeldState, SealedFile};
use crate::dataset::EntryKind;

/// A catalog with one file of member 1, which is elsewhere.
pub(super) fn elsewhere(bytes: &[u8]) -> Catalog {
    let mut catalog = catalog(3, 1, "ck", &MemberPart { member: Member(0), entries: Vec::new(), taken: 0 });
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let entry = |path: &str, kind, mode| crate::dataset::Entry {
        path: RelPath::new(path).unwrap(),
        kind,
        mode,
        uid,
        gid,
        atime: crate::dataset::Stamp { secs: 100, nsecs: 0 },
        mtime: crate::dataset::Stamp { secs: 200, nsecs: 0 },
    };
    let copy = crate::dataset::FileCopy {
        size: bytes.len() as u64,
        crc: crc32fast::hash(bytes),
        member: Member(1),
        program_rank: None,
    };
    catalog.entries = vec![
        entry("", EntryKind::Directory, 0o755),
        entry("d", EntryKind::Directory, 0o751),
        entry("d/f", EntryKind::File(copy), 0o640),
        entry("l", EntryKind::Symlink(b"d/f".to_vec()), 0o777),
    ];
    catalog.layout.members[1].files = 1;
    catalog.layout.members[1].bytes = bytes.len() as u64;
    catalog
}

fn failed(result: Result<impl Sized, ClientError>) -> (i32, String) {
    match result {
        Err(ClientError::Failed { errno, reason }) => (errno, reason),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it did not fail"),
    }
}

#[test]
fn a_lost_member_is_rebuilt_here() {
    let bytes = b"rebuilt bytes";
    let mut bench = Bench::new();
    let mut lead = bench.lead(1, Start::Restart);
    lead.inventory();
    let mut data = lead.data();
    let (id, member) = (DatasetId(3), Member(1));
    let begin = DataRequest::BeginMember { catalog: Arc::new(elsewhere(bytes)), member };
    let create = DataRequest::CreateFile { id, member, path: path("d/f") };
    let finish = |crc| DataRequest::FinishMember {
        id,
        member,
        crcs: vec![crc],
        redundancy: Some(("2_of_2_in_0.xor".into(), 6, crc32fast::hash(b"parity"))),
        set: vec![Member(0), Member(1)],
        members: 2,
    };
    let bring = |data: &mut DataConnection, bytes: &[u8]| {
        data.done(&begin).unwrap();
        File::from(data.descriptor(&create).unwrap()).write_all(bytes).unwrap();
        let name = "2_of_2_in_0.xor".into();
        let fd = data.descriptor(&DataRequest::CreateRedundancy { id, member, name }).unwrap();
        File::from(fd).write_all(b"parity").unwrap();
    };
    // Bytes that are not those of the catalog are not taken.
    bring(&mut data, bytes);
    assert!(failed(data.request(&finish(7))).1.contains("CRC"));
    bring(&mut data, b"short");
    assert!(failed(data.request(&finish(crc32fast::hash(bytes)))).1.contains("bytes"));
    assert!(bench.inventory().datasets[0].members.is_empty());
    // What a former coordinator's job left is gone with it.
    let mut lead = bench.lead(2, Start::Restart);
    lead.inventory();
    assert!(!bench.directory.path().join("cache/user/scr.j1/dataset.3/staged").exists());
    let mut data = lead.data();
    assert!(failed(data.descriptor(&create)).1.contains("no member"));

    bring(&mut data, bytes);
    assert!(matches!(data.request(&finish(crc32fast::hash(bytes))).unwrap(), DataReply::Part(_)));
    let held = bench.inventory().datasets.remove(0);
    assert_eq!((held.state, held.members, held.listed), (HeldState::Complete, vec![member], false));
    bench.restart();
    assert!(!bench.tree.at(&path("ck")).exists(), "not presented yet");
    let mut lead = bench.lead(3, Start::Restart);
    assert_eq!(lead.verify(id), [(member, [None, None])]);
    lead.send(Command::Present { datasets: vec![id] });
    assert_eq!(lead.next(), Event::Presented { result: Ok(()) });
    assert_eq!(std::fs::read(bench.tree.at(&path("ck/d/f"))).unwrap(), bytes);
    let meta = std::fs::metadata(bench.tree.at(&path("ck/d/f"))).unwrap();
    assert_eq!(meta.mtime(), 200);
    let mode = std::fs::metadata(bench.tree.at(&path("ck/d"))).unwrap().mode();
    assert_eq!(mode & 0o7777, 0o751);
    assert_eq!(std::fs::read_link(bench.tree.at(&path("ck/l"))).unwrap(), Path::new("d/f"));
}

#[test]
fn a_sealed_file_is_brought_here_only_whole() {
    let bytes = b"sealed";
    let bench = Bench::new();
    std::fs::create_dir(bench.tree.at(&path("ck"))).unwrap();
    let mut lead = bench.serving(1);
    lead.commit(&elsewhere(bytes)).unwrap();
    let file = SealedFile { id: DatasetId(3), path: path("d/f") };
    let open = || {
        let (give, outcome) = crossbeam_channel::bounded(1);
        let done = Box::new(move |result| give.send(result).unwrap());
        bench.node.fetch(file.id, &file.path, Caller::default(), done);
        outcome
    };
    let (first, second) = (open(), open());
    let Event::Fetch { request, file: asked } = lead.next() else { panic!() };
    assert_eq!(asked, file);
    let mut data = lead.data();
    let mut bring = |bytes: &[u8]| {
        let fd = data.descriptor(&DataRequest::CreateCopy { file: file.clone(), takes: 4096 }).unwrap();
        File::from(fd).write_all(bytes).unwrap();
        let (size, crc) = (bytes.len() as u64, crc32fast::hash(bytes));
        data.done(&DataRequest::InstallCopy { file: file.clone(), size, crc })
    };
    assert_eq!(failed(bring(b"forged")).0, libc::EIO);
    assert!(!bench.tree.at(&path("ck/d/f")).exists());
    bring(bytes).unwrap();
    assert_eq!(std::fs::read(bench.tree.at(&path("ck/d/f"))).unwrap(), bytes);
    // One request for both, answered together.
    lead.send(Command::Fetched { request, errno: 0 });
    assert_eq!(first.recv_timeout(WAIT).unwrap(), Ok(()));
    assert_eq!(second.recv_timeout(WAIT).unwrap(), Ok(()));
}

#[test]
fn a_copy_is_begun_only_where_there_is_room_for_all_that_comes() {
    let bench = Bench::new();
    std::fs::create_dir(bench.tree.at(&path("ck"))).unwrap();
    let mut lead = bench.serving(1);
    lead.commit(&elsewhere(b"sealed")).unwrap();
    let file = SealedFile { id: DatasetId(3), path: path("d/f") };
    let mut data = lead.data();
    let mut room = || match data.request(&DataRequest::Room(DatasetId(3))).unwrap() {
        DataReply::Room(room) => room,
        other => panic!("{other:?}"),
    };
    // Others write to this machine's file system too: the figures are compared with ample distance.
    let (before, much) = (room(), 1 << 30);
    assert!(before.free > 3 * much, "this test needs some GiB of free room");
    assert_eq!(before.held.iter().map(|(id, _)| id.0).collect::<Vec<_>>(), [3]);
    let create = |takes| DataRequest::CreateCopy { file: file.clone(), takes };
    let mut data = lead.data();
    let refused = failed(data.descriptor(&create(u64::MAX)));
    assert_eq!(refused.0, libc::ENOSPC);
    assert!(refused.1.contains(&format!("it takes {} bytes of the cache, and", u64::MAX)), "{}", refused.1);
    assert!(room().free > before.free - much, "nothing is held for it");
    data.descriptor(&create(2 * much)).unwrap();
    assert!(room().free < before.free - much, "what is to come counts");
    data.descriptor(&create(2 * much)).unwrap();
    assert!(room().free > before.free - 3 * much, "asked for again, it comes once");
    data.done(&DataRequest::AbandonCopy(file.clone())).unwrap();
    assert!(room().free > before.free - much, "it does not come");
    assert!(data.done(&DataRequest::InstallCopy { file, size: 0, crc: 0 }).is_err());
}

#[test]
fn a_dataset_gives_free_what_has_no_name_elsewhere() {
    let bench = Bench::new();
    bench.write("ck/f", &vec![7; 100_000]);
    let mut lead = bench.serving(1);
    let files = lead.freeze(1, "ck").unwrap();
    let part = encode(&mut lead.data(), 1, &files).unwrap();
    assert!((100_000..200_000).contains(&part.taken), "{}", part.taken);
    lead.commit(&catalog(1, 1, "ck", &part)).unwrap();
    let mut data = lead.data();
    let mut held = || match data.request(&DataRequest::Room(DatasetId(1))).unwrap() {
        DataReply::Room(room) => room.held,
        other => panic!("{other:?}"),
    };
    let [(DatasetId(1), bytes)] = held()[..] else { panic!("{:?}", held()) };
    assert!((100_000..200_000).contains(&bytes), "{bytes}");
    std::fs::hard_link(bench.tree.at(&path("ck/f")), bench.tree.at(&path("kept"))).unwrap();
    let [(DatasetId(1), bytes)] = held()[..] else { panic!("{:?}", held()) };
    assert!(bytes < 100_000, "{bytes}");
}

#[test]
fn paths_and_names_stay_in_the_dataset() {
    let bench = Bench::new();
    bench.write("ck/f", b"x");
    let outside = tempfile::tempdir().unwrap();
    std::fs::write(outside.path().join("secret"), b"s").unwrap();
    std::os::unix::fs::symlink(outside.path(), bench.tree.at(&path("ck/out"))).unwrap();
    let mut lead = bench.serving(1);
    lead.freeze(1, "ck").unwrap();
    let mut data = lead.data();
    let id = DatasetId(1);
    assert_eq!(
        failed(data.descriptor(&DataRequest::OpenFile { id, path: path("out/secret") })).0,
        libc::ENOENT
    );
    for name in ["../x", "a/b", "", "staged", "aside", "/x"] {
        let create = DataRequest::CreateRedundancy { id, member: Member(0), name: name.into() };
        assert_eq!(failed(data.descriptor(&create)).0, libc::EINVAL, "{name}");
    }
    assert_eq!(
        failed(data.descriptor(&DataRequest::OpenFile { id: DatasetId(9), path: path("f") })).0,
        libc::ESTALE
    );
    let finish = |crcs, set| DataRequest::FinishMember {
        id,
        member: Member(0),
        crcs,
        redundancy: None,
        set,
        members: 1,
    };
    assert_eq!(failed(data.request(&finish(vec![1, 2], vec![Member(0)]))).0, libc::EINVAL);
    assert_eq!(failed(data.request(&finish(vec![1], vec![Member(5)]))).0, libc::EINVAL);
    // The file changed after it was frozen: that is not what the others encode.
    std::fs::write(bench.tree.at(&path("ck/f")), b"longer").unwrap();
    assert_eq!(failed(data.request(&finish(vec![1], vec![Member(0)]))).0, libc::EIO);
    // A catalog that speaks of other bytes is refused.
    std::fs::write(bench.tree.at(&path("ck/f")), b"x").unwrap();
    let DataReply::Part(part) = data.request(&finish(vec![5], vec![Member(0)])).unwrap() else { panic!() };
    let mut other = catalog(1, 1, "ck", &part);
    for entry in &mut other.entries {
        if let EntryKind::File(copy) = &mut entry.kind {
            copy.crc = 6;
        }
    }
    assert!(lead.commit(&other).is_err());
}

/// A worker's request is long in its last fdatasync when the next coordinators come, and they begin
/// the same member anew.
#[cfg(feature = "faults")]
#[test]
fn a_former_try_puts_nothing_of_the_next_one_in_place() {
    use crate::control::server::Service;
    let bytes = b"rebuilt bytes";
    let bench = Bench::new();
    let (id, member) = (DatasetId(3), Member(1));
    let begin = DataRequest::BeginMember { catalog: Arc::new(elsewhere(bytes)), member };
    let create = DataRequest::CreateFile { id, member, path: path("d/f") };
    let crcs = vec![crc32fast::hash(bytes)];
    let set = vec![Member(0), Member(1)];
    let finish = DataRequest::FinishMember { id, member, crcs, redundancy: None, set, members: 2 };
    let mut former = bench.lead(1, Start::Restart);
    former.inventory();
    let mut data = former.data();
    data.done(&begin).unwrap();
    File::from(data.descriptor(&create).unwrap()).write_all(bytes).unwrap();

    let (control, settings) = (bench.control(), bench.settings.clone());
    let (give, next) = crossbeam_channel::bounded(1);
    let interruption = move || {
        let mut lead = Lead::attach(&control, 2, Start::Restart, settings);
        lead.inventory();
        let mut data = lead.data();
        data.done(&begin).unwrap();
        let mut file = File::from(data.descriptor(&create).unwrap());
        file.set_len(bytes.len() as u64).unwrap();
        file.write_all(&bytes[..3]).unwrap();
        give.send((lead, data, file)).unwrap();
    };
    crate::faults::interrupt("seal", 1, Box::new(interruption));
    let (reply, _) = bench.node.request(Epoch(1), finish.clone());
    assert!(matches!(reply, DataReply::Failed { .. }), "{reply:?}");
    let place = bench.directory.path().join("cache/user/scr.j1/dataset.3/aside/d/f");
    let there = std::fs::read(&place);
    assert!(there.as_ref().is_ok_and(|found| found == bytes) || there.is_err(), "{there:?}");
    assert!(bench.inventory().datasets[0].members.is_empty());

    let (_lead, mut data, mut file) = next.recv().unwrap();
    file.write_all(&bytes[3..]).unwrap();
    assert!(matches!(data.request(&finish).unwrap(), DataReply::Part(_)));
    assert_eq!(std::fs::read(&place).unwrap(), bytes);
    assert_eq!(bench.inventory().datasets[0].members, [member]);
}

/// The filemap has one entry for a name: the file's would be gone after the next worker's start.
#[test]
fn a_programs_file_with_the_name_of_its_redundancy_file_fails_the_seal_by_name() {
    let bench = Bench::new();
    bench.write(&format!("ck/{REDUNDANCY}"), b"of another library");
    bench.write("ck/f", b"x");
    let mut lead = bench.serving(1);
    let files = lead.freeze(1, "ck").unwrap();
    let refused = encode(&mut lead.data(), 1, &files).unwrap_err();
    assert!(refused.contains(REDUNDANCY) && refused.contains("redundancy data needs"), "{refused}");
}

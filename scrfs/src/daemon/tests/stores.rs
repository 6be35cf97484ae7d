//! A node over two stores in two file systems: all of a dataset is in one.

use super::super::room::Moment;
use super::*;
use crate::control::HeldState;

/// The second store is in memory, the first where tests have their directories.
fn bench() -> (Bench, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let other = tempfile::tempdir_in("/dev/shm").unwrap();
    std::os::unix::fs::symlink(other.path(), directory.path().join("other")).unwrap();
    (Bench::over(directory, test_settings()), other)
}

/// As the mount does: the directory is made where the next dataset goes.
fn make_directory(bench: &Bench, name: &str) {
    let root = &bench.node.config.in_use.places()[bench.node.config.in_use.next()];
    std::fs::create_dir(root.tree().join(name)).unwrap();
}

fn cache(bench: &Bench, store: usize) -> PathBuf {
    bench.node.config.in_use.places()[store].cache.clone()
}

/// A dataset's own directory and its directory in the tree, if they are there, in each store.
fn places(bench: &Bench, id: u64, name: &str) -> [(bool, bool); 2] {
    [0, 1].map(|store| {
        let cache = cache(bench, store);
        (cache.join(format!("dataset.{id}")).exists(), cache.join("tree").join(name).exists())
    })
}

const NOWHERE: (bool, bool) = (false, false);
const WHOLE: (bool, bool) = (true, true);
const ASIDE: (bool, bool) = (true, false);

#[test]
fn a_dataset_is_whole_in_its_store_all_its_life() {
    let (mut bench, _other) = bench();
    let mut lead = bench.serving(1);
    for (id, name) in [(1, "ck1"), (2, "ck2")] {
        make_directory(&bench, name);
        bench.write(&format!("{name}/f"), name.as_bytes());
        lead.seal(id, name);
    }
    assert_eq!(places(&bench, 1, "ck1"), [WHOLE, NOWHERE]);
    assert_eq!(places(&bench, 2, "ck2"), [NOWHERE, WHOLE]);
    assert!(cache(&bench, 1).join("dataset.2").join(REDUNDANCY).exists());
    // What SCR's tools read says where.
    let filemap = std::fs::read(bench.control().join("filemap_0.scrinfo")).unwrap();
    let tree = crate::hash::decode_file(&filemap).unwrap();
    for (id, base) in [("1", "/first"), ("2", "/other")] {
        let keys = ["RANK", "0", "DSET", id, "REDDESC"];
        let described = keys.iter().fold(&tree, |at, key| at.get(key).unwrap());
        assert!(described.text("BASE").unwrap().unwrap() == base);
    }

    // Put aside, shown again, by another worker; and it is found whole.
    bench.restart();
    let mut lead = bench.lead(2, Start::Restart);
    lead.send(Command::Present { datasets: vec![DatasetId(1)] });
    assert_eq!(lead.next(), Event::Presented { result: Ok(()) });
    assert_eq!(places(&bench, 2, "ck2"), [NOWHERE, ASIDE]);
    bench.restart();
    let mut lead = bench.lead(3, Start::Restart);
    assert_eq!(lead.verify(DatasetId(2)), [(Member(0), [None, None])]);
    lead.send(Command::Present { datasets: vec![DatasetId(2), DatasetId(1)] });
    assert_eq!(lead.next(), Event::Presented { result: Ok(()) });
    assert_eq!(places(&bench, 2, "ck2"), [NOWHERE, WHOLE]);
    assert_eq!(std::fs::read(bench.tree.at(&path("ck2/f"))).unwrap(), b"ck2");
    lead.send(Command::Serve);
    lead.send(Command::Evict(DatasetId(2)));
    assert_eq!(lead.next(), Event::Evicted(DatasetId(2)));
    assert_eq!(places(&bench, 2, "ck2"), [NOWHERE, NOWHERE]);
    assert_eq!(places(&bench, 1, "ck1"), [WHOLE, NOWHERE]);
}

#[test]
fn the_next_generation_stays_where_the_dataset_is() {
    let (mut bench, _other) = bench();
    let mut lead = bench.serving(1);
    bench.node.config.in_use.seen(1);
    make_directory(&bench, "ck");
    bench.write("ck/f", b"first");
    bench.write("ck/g", b"both");
    lead.seal(2, "ck");
    let (give, begun) = crossbeam_channel::bounded(1);
    let done = Box::new(move |result| give.send(result).unwrap());
    GlobalRequests::open_generation(bench.node.as_ref(), DatasetId(2), done);
    assert_eq!(begun.recv_timeout(WAIT).unwrap(), Ok(()));
    let (give, kept) = crossbeam_channel::bounded(1);
    let done = Box::new(move |result| give.send(result).unwrap());
    bench.node.keep_sealed(DatasetId(2), &path("f"), bench.number("ck/f"), done);
    assert_eq!(kept.recv_timeout(WAIT).unwrap(), Ok(()));
    bench.node.changing(DatasetId(2), &path("f"), None).unwrap();
    std::fs::write(bench.tree.at(&path("ck/f")), b"second").unwrap();
    let aside = cache(&bench, 1).join("dataset.2/aside");
    assert_eq!(std::fs::read(aside.join("f")).unwrap(), b"first");
    // Its id would send a new dataset to the other store.
    let frozen = lead.freeze_over(3, "ck", Some(2)).unwrap();
    let files: Vec<FrozenFile> = frozen.files.iter().chain(&frozen.carried).cloned().collect();
    assert_eq!(files.len(), 2);
    assert_eq!(places(&bench, 3, "ck"), [NOWHERE, WHOLE]);
    bench.restart();
    assert_eq!(std::fs::read(aside.join("f")).unwrap(), b"first");
    assert_eq!(places(&bench, 3, "ck"), [NOWHERE, WHOLE]);
}

#[test]
fn what_comes_to_a_node_goes_where_its_id_says() {
    let (mut bench, _other) = bench();
    let bytes = b"rebuilt bytes";
    let mut catalog = members::elsewhere(bytes);
    catalog.id = DatasetId(4);
    let mut lead = bench.lead(1, Start::Restart);
    lead.inventory();
    let mut data = lead.data();
    let (id, member) = (DatasetId(4), Member(1));
    data.done(&DataRequest::BeginMember { catalog: Arc::new(catalog), member }).unwrap();
    assert_eq!(places(&bench, 4, "ck"), [NOWHERE, ASIDE]);
    let file = data.descriptor(&DataRequest::CreateFile { id, member, path: path("d/f") }).unwrap();
    std::fs::File::from(file).write_all(bytes).unwrap();
    let name: String = "2_of_2_in_0.xor".into();
    let parity = data.descriptor(&DataRequest::CreateRedundancy { id, member, name: name.clone() }).unwrap();
    std::fs::File::from(parity).write_all(b"parity").unwrap();
    let finish = DataRequest::FinishMember {
        id,
        member,
        crcs: vec![crc32fast::hash(bytes)],
        redundancy: Some((name, 6, crc32fast::hash(b"parity"))),
        set: vec![Member(0), Member(1)],
        members: 2,
    };
    assert!(matches!(data.request(&finish).unwrap(), DataReply::Part(_)));
    bench.restart();
    let held = bench.inventory().datasets.remove(0);
    assert_eq!((held.state, held.members), (HeldState::Complete, vec![member]));
    let mut lead = bench.lead(2, Start::Restart);
    // Left by somebody who made a directory of that name here.
    std::fs::create_dir(cache(&bench, 0).join("tree/ck")).unwrap();
    lead.send(Command::Present { datasets: vec![id] });
    assert_eq!(lead.next(), Event::Presented { result: Ok(()) });
    assert_eq!(places(&bench, 4, "ck"), [NOWHERE, WHOLE]);
    assert_eq!(std::fs::read(bench.tree.at(&path("ck/d/f"))).unwrap(), bytes);
}

#[test]
fn a_seal_that_is_given_up_leaves_nothing_in_any_store() {
    let (bench, _other) = bench();
    let mut lead = bench.serving(1);
    bench.node.config.in_use.seen(1);
    make_directory(&bench, "ck");
    bench.write("ck/f", b"1");
    lead.freeze(2, "ck").unwrap();
    assert_eq!(places(&bench, 2, "ck"), [NOWHERE, WHOLE]);
    lead.send(Command::Drop { id: DatasetId(2), reason: "a test".into() });
    assert_eq!(lead.next(), Event::Dropped(DatasetId(2)));
    assert_eq!(places(&bench, 2, "ck"), [NOWHERE, (false, true)]);
}

#[test]
fn room_is_looked_for_in_the_store_that_is_short_and_bytes_are_counted_in_both() {
    let (bench, _other) = bench();
    let mut lead = bench.serving(1);
    for (id, name) in [(1, "ck1"), (2, "ck2")] {
        make_directory(&bench, name);
        bench.write(&format!("{name}/f"), &vec![7; 300_000]);
        lead.seal(id, name);
    }
    let removable = [(DatasetId(1), false), (DatasetId(2), true)];
    assert_eq!(bench.node.help_in(0, &removable), Some(vec![DatasetId(1)]));
    assert_eq!(bench.node.help_in(1, &removable), Some(vec![DatasetId(2)]));
    assert_eq!(bench.node.store_in_need(Moment::Begin(Some(1))), 1);
    assert_eq!(bench.node.store_in_need(Moment::Meanwhile), 0, "the next id is 3");
    // What is being written counts, wherever the next one goes.
    std::fs::create_dir(cache(&bench, 1).join("tree/open")).unwrap();
    bench.write("open/f", b"1");
    assert_eq!(bench.node.store_in_need(Moment::Meanwhile), 1);
    let bytes = bench.node.cache.bytes().unwrap();
    assert!((600_000..900_000).contains(&bytes), "{bytes}");
    let free = |store| bench.node.cache.room_of(store).map(|room| room.f_bfree * room.f_frsize).unwrap();
    let (both, all) = (free(0) + free(1), bench.node.cache.free().unwrap().0);
    // Both may be directories of one file system, to which others write meanwhile.
    assert!(all > both / 3 && all < both * 2, "{all} of {both}");
}

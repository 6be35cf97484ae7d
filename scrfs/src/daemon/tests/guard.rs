//! What a job may take of a node that it shares, and what its administrator has bounded.

use super::*;
use crate::control::loose::{Age, LooseEntry, LooseKind, LooseOwner, LooseStamp, LooseVersion};
use crate::daemon::priority::is_asked_for;
use crate::ids::RequestId;

/// A node with these settings of the administrator's.
fn node(directory: &Path, cache_bytes: u64, control_bytes: u64) -> Arc<Node> {
    let config = NodeConfig { cache_bytes, control_bytes, ..Bench::config(directory) };
    let root = directory.join("cache/user/scr.j1/tree");
    let tree = Arc::new(FakeTree { root, other: None, inner: Mutex::default() });
    Node::start(config, tree).unwrap()
}

#[test]
fn the_administrators_bound_outlives_a_job_that_sets_none_and_a_worker() {
    let directory = tempfile::tempdir().unwrap();
    for epoch in 1..3 {
        let node = node(directory.path(), 1 << 30, 0);
        assert_eq!(node.bound.limit(), 1 << 30, "epoch {epoch}: at the worker's start");
        let lead = Lead::attach(&directory.path().join("cntl"), epoch, Start::Attach, test_settings());
        assert_eq!(node.bound.limit(), 1 << 30, "epoch {epoch}: the job sets none");
        node.stop();
        drop(lead);
    }
}

#[test]
fn a_job_cannot_fill_the_file_system_of_the_control_directory() {
    const LIMIT: u64 = 8 << 20;
    let directory = tempfile::tempdir().unwrap();
    let node = node(directory.path(), 0, LIMIT);
    let taken = || {
        let mut bytes = 0;
        for below in ["cntl", "cntl/loose"] {
            for entry in std::fs::read_dir(directory.path().join(below)).unwrap() {
                let entry = entry.unwrap();
                if entry.file_name().to_str().is_some_and(|name| name.starts_with("reserve")) {
                    continue;
                }
                let meta = entry.metadata().unwrap();
                bytes += if meta.is_file() { std::os::unix::fs::MetadataExt::blocks(&meta) * 512 } else { 0 };
            }
        }
        bytes
    };
    let told = || node.events.newest(100).join("\n").matches("has reached what it may take").count();
    let mut lead = Lead::attach(&directory.path().join("cntl"), 1, Start::Attach, test_settings());
    lead.serve(&node);
    // Pointer files, version after version.
    let mut store = |serial: u64| {
        let bytes = vec![b'x'; 1 << 20];
        let kind = LooseKind::File { size: bytes.len() as u64, crc: crc32fast::hash(&bytes) };
        let version = LooseVersion {
            stamp: LooseStamp { epoch: Epoch(1), serial },
            request: RequestId { origin: 1, serial },
            owner: LooseOwner::Sealed(Age::default()),
            entry: LooseEntry { kind, bytes, ..LooseEntry::gone(b"latest".to_vec()) },
        };
        lead.send(Command::LooseStore { round: serial, versions: vec![version], place: false });
        match lead.next() {
            Event::LooseStored { errno, .. } => errno,
            other => panic!("{other:?}"),
        }
    };
    let refused = (1..20).find(|serial| store(*serial) == libc::ENOSPC).expect("it is bounded");
    assert!((2..8).contains(&refused), "{refused}");
    assert!(taken() <= LIMIT, "{}", taken());
    assert_eq!(told(), 1);
    // Names of files, each with its record: they are refused in time too.
    let long = "n".repeat(200);
    let refused = (0..100_000).find_map(|n| node.creating(&path(&format!("ck/{n}{long}")), None).err());
    assert_eq!(refused, Some(Errno(libc::ENOSPC)));
    assert!(taken() <= LIMIT, "{}", taken());
    assert_eq!(told(), 1, "some of them were granted, and it was said a moment ago");
    // What is there can be sealed, and goes on.
    std::fs::create_dir(directory.path().join("cache/user/scr.j1/tree/ck")).unwrap();
    lead.freeze(1, "ck").unwrap();
    node.stop();
}

#[test]
fn an_encode_that_goes_on_is_waited_for_as_the_seal_is() {
    let bench = Bench::new();
    let progress = |id| DataRequest::Progress { id: DatasetId(id), done: 1, total: 2 };
    let waits = |request: &DataRequest| is_asked_for(request, &bench.node.state.lock());
    assert!(waits(&DataRequest::Waited) && !waits(&DataRequest::Room(DatasetId(3))));
    assert!(!waits(&progress(3)), "nothing is being sealed");
    bench.node.state.lock().seals.insert(DatasetId(3), b"ck".to_vec());
    assert!(waits(&progress(3)) && !waits(&progress(4)));
    // Nobody waits for a seal in the background.
    let mut settings = test_settings();
    settings.sealing.background = true;
    bench.node.state.lock().settings = Some(settings);
    assert!(!waits(&progress(3)));
}

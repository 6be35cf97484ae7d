//! Whole inputs: every file that SCR wrote, and what we write.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use scrfs::control::codec;
use scrfs::control::{
    Advice, Answer, Command, DataReply, DataRequest, DirHeld, DirOp, Event, FrozenFile, FrozenPart,
    HeldDataset, HeldState, Hello, Inventory, MemberPart, PROTOCOL, Removed, Role, SealedFile, Settings,
    Start, VerifiedMember,
};
use scrfs::dataset::{
    Catalog, Entry, EntryKind, FileCopy, Layout, MemberPlace, Protection, Protections, Revision, Scheme,
    Stamp,
};
use scrfs::hash::{decode_record, encode};
use scrfs::ids::{DatasetId, Epoch, Member, NodeRank, RequestId};
use scrfs::path::RelPath;
use scrfs::record::catalog_file;
use scrfs::record::{RecordKind, detect};
use scrfs::status::{CoordinatorStatus, DatasetStatus, Elsewhere, NodeStatus, StoreStatus, survives};
use scrfs::store::Store;
use scrfs::store::log::Log;
use scrfs_coordinator::job::{About, Fresh, Job, JobId, JobOutput, SetMember};
use scrfs_coordinator::jobs::block::{Address, Stream};
use scrfs_coordinator::message::{Greeting, Opening, PeerMessage};
use scrfs_harness::cluster::workspace;
use serde::Serialize;

/// All files below `tests/golden`, our own form of each that is a record, and a catalog's record.
pub(crate) fn hash_files() -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for path in files(&workspace().join("tests/golden")) {
        let bytes = fs::read(&path).unwrap();
        let name = path.file_name().unwrap().as_encoded_bytes();
        if let Ok((tree, _)) = decode_record(&bytes) {
            let kinds = detect(name, &tree).into_iter().chain([RecordKind::Meta]);
            all.extend(kinds.filter_map(|kind| Some(encode(&kind.read(&tree).ok()?.to_hash()))));
        }
        all.push(bytes);
    }
    // A catalog is what most of our own readers meet.
    for _ in 0..50 {
        all.push(catalog_file::encode(&catalog()).unwrap());
    }
    all
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found.sort();
    found
}

/// Frames of every kind of connection, and what coordinators send one another.
pub(crate) fn messages() -> Vec<Vec<u8>> {
    let id = DatasetId(4);
    let (request, epoch) = (RequestId { origin: 77, serial: 3 }, Epoch(9));
    let dir = |name: &str| DirHeld { path: path(name), mode: 0o755, uid: 1, gid: 2 };
    let make = DirOp::Make { path: path("ck.4/d"), mode: 0o700, uid: 1, gid: 2 };
    let rename = DirOp::Rename { from: path("a"), to: path("b"), no_replace: true, exchange: false };
    let held = HeldDataset {
        id,
        epoch,
        revision: 1,
        name: b"ck.4".to_vec(),
        state: HeldState::Complete,
        members: vec![Member(0), Member(1)],
        encoded: vec![(Member(0), 7)],
        paths: vec![(Member(0), 8)],
        flushed: true,
        listed: true,
        failed: false,
    };
    let advice =
        Advice { need_checkpoint: true, should_exit: false, begun_us: 5, sealed_us: 6, waited_us: 7 };
    let inventory = Inventory {
        epoch,
        served: epoch,
        highest_id: 4,
        directories: vec![dir("x"), dir("x/y")],
        unfinished: vec![(request, make.clone())],
        datasets: vec![held],
        removed: vec![Removed { name: b"ck.1".to_vec(), epoch, id, during: epoch }],
        advice: Some(advice),
    };
    let frozen = FrozenPart {
        files: vec![FrozenFile { path: path("a b"), size: 5 }, FrozenFile { path: path("d/x"), size: 0 }],
        carried: vec![FrozenFile { path: path("d/y"), size: 7 }],
        removed: vec![path("gone")],
        links: vec![path("latest")],
        begun_us: 7,
    };
    let begin = DataRequest::BeginMember { catalog: Arc::new(catalog()), member: Member(1) };
    let finish = DataRequest::FinishMember {
        id,
        member: Member(1),
        crcs: vec![1, 2, 3],
        redundancy: Some(("2_of_3_in_0.xor".into(), 9, 8)),
        set: vec![Member(0), Member(1), Member(2)],
        members: 3,
    };
    let hello = Role::Coordinator {
        epoch,
        rank: NodeRank(1),
        hosts: hosts(),
        start: Start::Restart,
        settings: Box::new(settings()),
    };
    let fetch = Command::FetchMember {
        id,
        epoch,
        name: b"ck.4".to_vec(),
        member: Member(0),
        directory: b"/pfs/job/ck.4".to_vec(),
        entries: catalog().entries,
    };
    let part = MemberPart { member: Member(1), entries: catalog().entries, taken: 4096 };
    let prepare = Command::DirPrepare { round: 5, ops: vec![(request, make.clone()), (request, rename)] };
    let verified = VerifiedMember { member: Member(1), files: Ok(()), redundancy: Err("size".into()) };
    let mut all = vec![
        frame(&Hello { protocol: PROTOCOL, role: hello }),
        frame(&prepare),
        frame(&Command::DirApply { round: 5, verdicts: vec![0, 17, -1] }),
        frame(&Command::Commit(Arc::new(catalog()))),
        frame(&Command::Revise(Arc::new(Revision::new(0, &catalog())))),
        frame(&fetch),
        frame(&Command::Present { datasets: vec![id, DatasetId(3)] }),
        frame(&Event::Inventory(Box::new(inventory.clone()))),
        frame(&Event::DirRequest { request, op: make }),
        frame(&Event::Frozen { id, result: Ok(frozen) }),
        frame(&Command::Carry { id, dropped: vec![path("gone"), path("d")] }),
        frame(&Event::UnsealedRemoved { names: 3 }),
        frame(&Event::Verified { id, members: vec![verified] }),
        frame(&begin),
        frame(&finish),
        frame(&DataReply::Part(Box::new(part.clone()))),
        frame(&Answer::Status(Box::new(status()))),
        frame(&Answer::Flush(scrfs::control::Flushable::Failed("x".into()))),
        frame(&Event::FlushWanted(id)),
        frame(&Event::Scrubbed { id, round: 3, bad: vec![(Member(1), "CRC".into())] }),
        frame(&Command::Scrub { id, round: 3, gently: true }),
        frame(&Answer::Events(vec!["{}".into(), "{\"a\":1}".into()])),
    ];
    let several = [all[1].clone(), all[2].clone(), all[4].clone()].concat();
    all.push(several);
    let set: Vec<_> =
        (0..3).map(|m| SetMember { member: Member(m), node: NodeRank(m), sizes: vec![5, 0] }).collect();
    let about = About {
        name: b"ck.4".to_vec(),
        created_us: 1,
        user: "u".into(),
        job_id: "j".into(),
        files: 3,
        bytes: 99,
    };
    let paths = vec![vec![path("a"), path("b")]; 3];
    let fresh = Some(Fresh { catalog: Arc::new(catalog()), members: vec![Member(2)] });
    let encode_job = Job::Encode {
        id,
        scheme: Scheme::Xor,
        about,
        paths,
        set: set.clone(),
        members: 3,
        encoding: 7,
        fresh,
    };
    let greeting = Greeting {
        host: "n0".into(),
        epoch,
        watch_port: 9,
        bell_port: 8,
        groups: [("SWITCH".to_owned(), "s1".to_owned())].into(),
        settings: settings(),
        by_hand: ["SCR_FLUSH".to_owned()].into(),
    };
    let opening = Opening {
        epoch,
        hosts: hosts(),
        groups: scrfs_coordinator::groups::FailureGroups::default(),
        secret: scrfs_coordinator::message::EpochSecret([7; 16]),
        watch_ports: vec![1, 2],
        bell_ports: vec![3, 4],
        start: Start::Attach,
        fanout: 16,
        settings: settings(),
        notes: Vec::new(),
    };
    let file = SealedFile { id, path: path("a b") };
    let send = Job::Send { file, size: 5, crc: 7, from: NodeRank(0), to: NodeRank(2) };
    let peers = [
        PeerMessage::Greeting(Box::new(greeting)),
        PeerMessage::Begin(Box::new(opening)),
        PeerMessage::Pass([NodeRank(1), NodeRank(2), NodeRank(9)].into_iter().collect()),
        PeerMessage::Relay(fetch),
        PeerMessage::Report(Event::Inventory(Box::new(inventory))),
        PeerMessage::StartJob(JobId(3), Box::new(encode_job)),
        PeerMessage::StartJob(
            JobId(3),
            Box::new(Job::Rebuild { catalog: Arc::new(catalog()), set, lost: vec![1] }),
        ),
        PeerMessage::StartJob(JobId(4), Box::new(send)),
        PeerMessage::JobDone(JobId(3), Ok(JobOutput::Part(Box::new(part)))),
        PeerMessage::Credit { job: JobId(3), stream: Stream { from: 0, to: 1, strip: 2 } },
    ];
    // Between coordinators there are no frames.
    all.extend(peers.iter().map(|message| frame(message)[4..].to_vec()));
    all.push(Address { job: JobId(3), stream: Stream { from: 0, to: 1, strip: 2 } }.to_message());
    all
}

/// Logs as a daemon writes them.
pub(crate) fn logs() -> Vec<Vec<u8>> {
    let directory = tempfile::tempdir().unwrap();
    let store = Arc::new(Store::open(directory.path()).unwrap());
    let (mut log, _, _) = Log::<(RelPath, Option<u32>)>::open(&store, "files").unwrap();
    for rank in 0..20 {
        log.append(&(path(&format!("ck.4/rank {rank}")), (rank % 3 == 0).then_some(rank))).unwrap();
    }
    let (mut events, _, _) = Log::<Event>::open(&store, "events").unwrap();
    for round in 0..5 {
        events.append(&Event::DirPrepared { round, votes: vec![0, 17, 2] }).unwrap();
    }
    ["files", "events"].map(|name| fs::read(directory.path().join(name)).unwrap()).to_vec()
}

fn frame<T: Serialize>(message: &T) -> Vec<u8> {
    codec::encode(message).unwrap()
}

fn path(name: &str) -> RelPath {
    RelPath::new(name).unwrap()
}

fn hosts() -> Vec<String> {
    ["n0", "n1", "n2"].map(str::to_owned).to_vec()
}

fn settings() -> Settings {
    Settings {
        prefix: b"/pfs/job".to_vec(),
        user: "u".into(),
        job_id: "j".into(),
        checkpoint_path: None,
        coordinator_wait_ms: 10_000,
        seal_timeout_ms: 30_000,
        cache_size: 2,
        cache_bytes: 0,
        protections: Protections::default(),
        enable: true,
        flush_every: 10,
        scrub_interval_ms: 0,
        fetch: true,
        distribute: true,
        list_max: 100_000,
        jobs: scrfs::control::JobRules { block_bytes: 1 << 17, encode_threads: 1 },
        sealing: scrfs::control::SealRules::default(),
        loose: scrfs::control::LooseRules::default(),
        restart: scrfs::control::RestartRules::default(),
        advice: scrfs::control::AdviceRules::default(),
    }
}

fn catalog() -> Catalog {
    let stamp = Stamp { secs: 1_700_000_000, nsecs: 7 };
    let entry = |name: &str, kind| Entry {
        path: path(name),
        kind,
        mode: 0o644,
        uid: 1,
        gid: 2,
        atime: stamp,
        mtime: stamp,
    };
    let file = |size, member| {
        EntryKind::File(FileCopy { size, crc: 0x0089_8812, member: Member(member), program_rank: Some(3) })
    };
    let members =
        hosts().into_iter().map(|host| MemberPlace { host, files: 1, bytes: 5, taken: Some(4096) }).collect();
    Catalog {
        id: DatasetId(4),
        epoch: Epoch(9),
        revision: 2,
        name: b"ck.4".to_vec(),
        created_us: 12,
        user: "u".into(),
        job_id: "j".into(),
        layout: Layout {
            encoding: 0,
            protection: Protection::by(Scheme::Xor),
            members,
            sets: vec![vec![Member(2), Member(0), Member(1)]],
        },
        entries: vec![
            entry("", EntryKind::Directory),
            entry("a b", file(5, 0)),
            entry("d", EntryKind::Directory),
            entry("d/x", file(0, 1)),
            entry("link", EntryKind::Symlink(b"../there".to_vec())),
        ],
    }
}

fn status() -> NodeStatus {
    let dataset = DatasetStatus {
        id: 4,
        name: "ck.4".into(),
        state: "flushing".into(),
        scheme: "XOR".into(),
        bytes: 99,
        files: 3,
        hosts: hosts(),
        flushed: false,
        flush_failed: None,
        restoring: 1,
        unread: 2,
        scrubbed: Some(scrfs::status::Scrubbed { at_us: 5, found: 1, left: Some("f".into()) }),
        changed: None,
        current: true,
        progress: Some((1, 99)),
        survives: survives(&catalog().layout, &BTreeSet::new(), false),
    };
    NodeStatus {
        version: 1,
        host: "n0".into(),
        mount_point: "/scr".into(),
        mode: "plain".into(),
        mode_reason: "kernel 6.1".into(),
        job: "u/j".into(),
        control_directory: "/dev/shm/u/scr.j".into(),
        cache_directory: "/dev/shm/u/scr.j".into(),
        stores: vec![StoreStatus {
            path: "/dev/shm".into(),
            used: true,
            note: "the only one".into(),
            room: Some((5, 9)),
        }],
        reserve: Some((1, 2)),
        cache_bytes: Some((3, 7)),
        prefix: "/pfs".into(),
        enabled: true,
        flush_every: 10,
        coordinator: Some(CoordinatorStatus { rank: 0, hosts: hosts(), pid: 44 }),
        was_attached: true,
        awaited: true,
        job_ended: true,
        supervisor_stopped: Some(44),
        epoch: 9,
        datasets: vec![dataset],
        unsaved: Vec::new(),
        on_pfs: Some(Elsewhere { id: 3, name: "ck.3".into() }),
        more_open: 0,
        waiting: 0,
        priority: scrfs::status::PriorityStatus::default(),
    }
}

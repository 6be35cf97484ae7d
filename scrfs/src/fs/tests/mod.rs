//! Whole operations without a mount, against a node that only records what it is asked.

mod directories;
mod flat;
mod generations;
mod listing;
mod marker;
mod sealed;
mod stores;
mod waits;

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::Duration;

use parking_lot::Mutex;

use crate::boundary::{Completion, Eye, GlobalRequests, IoRecord, Marking, MountedTree};
use crate::caller::Caller;
use crate::control::DirOp;
use crate::dataset::{
    Catalog, CatalogIndex, Entry as Sealed, EntryKind, FileCopy, Layout, MemberPlace, Protection,
    Protections, Scheme, Stamp,
};
use crate::errno::Errno;
use crate::fs::{Changes, Done, Entry, FileSystem, Kind, NewNode, ROOT, SetTime, Taken};
use crate::ids::{DatasetId, Epoch, Member, RequestId};
use crate::keep::Keep;
use crate::lane::Hands;
use crate::path::RelPath;
use crate::stores::{Place, Stores};

enum Asked {
    Directory(DirOp, Completion),
    Marker(Vec<u8>, Marking, Completion),
    Invalid(Vec<u8>),
    Fetch(RelPath, Completion),
    Open(DatasetId, Completion),
    Keep(RelPath, Completion),
}

#[derive(Default)]
struct Node {
    asked: Mutex<VecDeque<Asked>>,
    created: Mutex<Vec<RelPath>>,
    removed: Mutex<Vec<RelPath>>,
    notes: Mutex<Vec<String>>,
}

impl GlobalRequests for Node {
    fn new_request(&self) -> RequestId {
        RequestId { origin: 1, serial: 1 }
    }
    fn directory(&self, _: RequestId, op: DirOp, _: Caller, done: Completion) {
        self.asked.lock().push_back(Asked::Directory(op, done));
    }
    fn marker(&self, name: &[u8], marking: Marking, _: Caller, done: Completion) {
        self.asked.lock().push_back(Asked::Marker(name.to_vec(), marking, done));
    }
    fn invalid(&self, name: &[u8]) {
        self.asked.lock().push_back(Asked::Invalid(name.to_vec()));
    }
    fn fetch(&self, _: DatasetId, path: &RelPath, _: Caller, done: Completion) {
        self.asked.lock().push_back(Asked::Fetch(path.clone(), done));
    }
    fn creating(&self, path: &RelPath, _: Option<u32>) -> Result<(), Errno> {
        self.created.lock().push(path.clone());
        Ok(())
    }
    fn naming(&self, path: &RelPath, rank: Option<u32>) -> Result<(), Errno> {
        self.creating(path, rank)
    }
    fn open_generation(&self, id: DatasetId, done: Completion) {
        self.asked.lock().push_back(Asked::Open(id, done));
    }
    fn keep_sealed(&self, _: DatasetId, path: &RelPath, _: (u64, u64), done: Completion) {
        self.asked.lock().push_back(Asked::Keep(path.clone(), done));
    }
    fn changing(&self, _: DatasetId, path: &RelPath, _: Option<u32>) -> Result<(), Errno> {
        self.created.lock().push(path.clone());
        Ok(())
    }
    fn removing(&self, _: DatasetId, path: &RelPath) -> Result<(), Errno> {
        self.removed.lock().push(path.clone());
        Ok(())
    }
    fn staying(&self, id: DatasetId, path: &RelPath, rank: Option<u32>) -> Result<(), Errno> {
        self.changing(id, path, rank)
    }
    fn decides(&self) -> bool {
        true
    }
    fn loose(&self, _: Vec<Vec<u8>>, _: Caller, done: Completion) {
        done(Ok(()));
    }
    fn loose_closed(&self, _: &[u8]) {}
    fn room(&self, room: rustix::fs::StatVfs) -> rustix::fs::StatVfs {
        room
    }
    fn lost_writes(&self, _: std::os::fd::BorrowedFd<'_>) {
        self.notes.lock().push("lost writes".to_owned());
    }
    fn note(&self, text: String) {
        self.notes.lock().push(text);
    }
    fn look(&self, _: Eye, _: Caller) -> Result<Vec<u8>, Errno> {
        Ok(b"text".to_vec())
    }
    fn post(&self, _: Caller, text: &str) {
        self.note(text.to_owned());
    }
    fn record(&self, _: &IoRecord) {}
    fn describe(&self, _: &[u8], _: &RelPath) -> Vec<(&'static str, String)> {
        Vec::new()
    }
}

struct Bench {
    dir: tempfile::TempDir,
    fs: Arc<FileSystem>,
    node: Arc<Node>,
    /// Of a mount over several stores: the checkpoint path, and they.
    stores: Option<(RelPath, Arc<Stores>)>,
    ids: std::sync::atomic::AtomicU64,
}

fn path(text: &str) -> RelPath {
    RelPath::new(text).unwrap()
}

fn me() -> Caller {
    Caller {
        tid: std::process::id(),
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        unique: 0,
    }
}

/// Starts an operation; its outcome comes through the channel.
fn start<T: Send + 'static>(operation: impl FnOnce(Done<T>)) -> Receiver<Result<T, Errno>> {
    let (send, receive) = channel();
    // A test may no longer want to know.
    operation(Box::new(move |outcome| send.send(outcome).unwrap_or_default()));
    receive
}

fn now<T>(outcome: &Receiver<Result<T, Errno>>) -> Result<T, Errno> {
    outcome.recv_timeout(Duration::from_mins(1)).expect("an answer")
}

fn waits<T>(outcome: &Receiver<Result<T, Errno>>) -> bool {
    matches!(outcome.try_recv(), Err(TryRecvError::Empty))
}

impl Bench {
    fn new(checkpoint: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("tree")).unwrap();
        let fs = FileSystem::new(&dir.path().join("tree"), path(checkpoint)).unwrap();
        let node = Arc::new(Node::default());
        fs.connect(&(Arc::clone(&node) as _));
        Self { dir, fs, node, stores: None, ids: 0.into() }
    }

    /// Goes on with what another worker has left in the tree and in the state memory.
    fn over(dir: tempfile::TempDir, memory: &std::os::fd::OwnedFd) -> Self {
        let keep = Arc::new(Keep::map(memory).unwrap());
        let fs = FileSystem::with_keep(&dir.path().join("tree"), RelPath::root(), keep).unwrap();
        fs.begin().unwrap();
        let node = Arc::new(Node::default());
        fs.connect(&(Arc::clone(&node) as _));
        Self { dir, fs, node, stores: None, ids: 0.into() }
    }

    /// Over stores `a` and `b`, of which `rules` say what goes to which.
    fn over_two(checkpoint: &str, rules: Protections) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let place = |base: &str| {
            let cache = dir.path().join(base);
            std::fs::create_dir_all(cache.join("tree")).unwrap();
            Place { base: base.into(), cache }
        };
        let stores = Arc::new(Stores::new(place("a"), vec![place("b")], rules));
        let keep = Arc::new(Keep::alone().unwrap());
        let fs =
            FileSystem::with_stores(path(checkpoint), keep, Arc::clone(&stores), Hands::Threads).unwrap();
        fs.begin().unwrap();
        let node = Arc::new(Node::default());
        fs.connect(&(Arc::clone(&node) as _));
        Self { dir, fs, node, stores: Some((path(checkpoint), stores)), ids: 0.into() }
    }

    /// Another worker's tree over the same stores.
    fn again(&self) -> (Arc<FileSystem>, Arc<Stores>) {
        let (checkpoint, stores) = self.stores.clone().expect("stores");
        let keep = Arc::new(Keep::alone().unwrap());
        let fs = FileSystem::with_stores(checkpoint, keep, Arc::clone(&stores), Hands::Threads).unwrap();
        fs.begin().unwrap();
        (fs, stores)
    }

    /// An id is given: the next directory is for the one after it.
    fn next_id(&self) {
        let (_, stores) = self.stores.as_ref().expect("stores");
        let next = self.ids.fetch_add(1, std::sync::atomic::Ordering::Relaxed) + 1;
        stores.seen(next);
    }

    fn tree(&self, below: &str) -> std::path::PathBuf {
        self.dir.path().join("tree").join(below)
    }

    fn read(&self, fh: u64) -> Vec<u8> {
        let mut buffer = [0; 100];
        let filled = self.fs.read(fh, 0, &mut buffer).unwrap();
        buffer[..filled].to_vec()
    }

    fn asked(&self) -> Asked {
        self.node.asked.lock().pop_front().expect("a request to the node")
    }

    /// Decides the directory operation that was asked for, as a round does.
    fn round(&self) -> Result<(), Errno> {
        let Asked::Directory(op, done) = self.asked() else { panic!("not a directory operation") };
        let outcome = self.fs.prepare(&op).and_then(|()| self.fs.apply(&op));
        done(outcome);
        outcome
    }

    fn mkdir(&self, parent: u64, name: &str) -> Entry {
        let made = start(|done| self.fs.mkdir(me(), parent, name.as_bytes(), 0o755, done));
        assert!(waits(&made));
        self.round().unwrap();
        now(&made).unwrap()
    }

    fn create(&self, parent: u64, name: &str) -> Result<(Entry, super::Opened), Errno> {
        now(&start(|done| {
            self.fs.create(me(), parent, name.as_bytes(), 0o644, libc::O_RDWR, done);
        }))
    }

    fn write(&self, parent: u64, name: &str, data: &[u8]) -> u64 {
        let (entry, opened) = self.create(parent, name).unwrap();
        assert_eq!(self.fs.write(Caller::default(), opened.fh, 0, data).unwrap(), data.len());
        self.fs.release(opened.fh);
        entry.attr.nodeid
    }

    fn open(&self, id: u64, flags: i32) -> Receiver<Result<super::Opened, Errno>> {
        start(|done| self.fs.open(me(), id, flags, done))
    }

    fn names(&self, id: u64) -> Vec<String> {
        let fh = self.fs.opendir(me(), id).unwrap();
        let mut names = Vec::new();
        self.fs
            .readdir(fh, 0, true, &mut |listed, entry, _| {
                if let Some(entry) = entry {
                    names.push(String::from_utf8(listed.name.clone()).unwrap());
                    assert!(entry.attr.nodeid > 0);
                }
                Taken::Name
            })
            .unwrap();
        self.fs.releasedir(fh);
        names.sort();
        names
    }

    fn seal(&self, id: u64, name: &str, files: &[(&str, u64)]) {
        self.fs.sealed(Arc::new(CatalogIndex::new(catalog(id, name, files))));
    }
}

pub(super) fn catalog(id: u64, name: &str, files: &[(&str, u64)]) -> Catalog {
    let entry = |path: RelPath, kind| Sealed {
        path,
        kind,
        mode: 0o640,
        uid: 7,
        gid: 8,
        atime: Stamp::default(),
        mtime: Stamp { secs: 77, nsecs: 5 },
    };
    let mut entries = vec![entry(RelPath::root(), EntryKind::Directory)];
    for (at, size) in files {
        let copy = FileCopy { size: *size, crc: 0, member: Member(0), program_rank: None };
        entries.push(entry(path(at), EntryKind::File(copy)));
    }
    entries.push(entry(path("link"), EntryKind::Symlink(b"a".to_vec())));
    Catalog {
        id: DatasetId(id),
        epoch: Epoch(1),
        revision: 0,
        name: name.into(),
        created_us: 5_000_000,
        user: "u".into(),
        job_id: "1".into(),
        layout: Layout {
            encoding: 0,
            protection: Protection::by(Scheme::Single),
            members: vec![MemberPlace { host: "h".into(), files: files.len() as u64, bytes: 0, taken: None }],
            sets: vec![vec![Member(0)]],
        },
        entries,
    }
}

#[test]
fn files_are_announced_before_they_are_made() {
    let bench = Bench::new("");
    let ck = bench.mkdir(ROOT, "ck").attr.nodeid;
    bench.write(ck, "a", b"hello");
    bench.write(ROOT, "loose", b"x");
    assert_eq!(*bench.node.created.lock(), vec![path("ck/a")]);
    assert_eq!(std::fs::read(bench.tree("ck/a")).unwrap(), b"hello");
    assert_eq!(bench.names(ck), ["a"]);
}

#[test]
fn scratch_beside_the_checkpoint_path_is_nobodys_business() {
    let bench = Bench::new("ckpt");
    let made = start(|done| bench.fs.mkdir(me(), ROOT, b"scratch", 0o755, done));
    let scratch = now(&made).unwrap().attr.nodeid;
    bench.write(scratch, ".complete", b"");
    assert!(bench.node.created.lock().is_empty());
    assert_eq!(bench.names(ROOT), ["ckpt", "scratch"]);
    for name in ["ckpt", "nothing"] {
        let refused = now(&start(|done| bench.fs.rmdir(me(), ROOT, name.as_bytes(), done)));
        assert!(refused.is_err(), "{name}");
    }
}

#[test]
fn listings_keep_their_offsets_while_names_change() {
    let bench = Bench::new("");
    for n in 0..10 {
        bench.write(ROOT, &format!("f{n}"), b"");
    }
    let fh = bench.fs.opendir(me(), ROOT).unwrap();
    let mut seen = Vec::new();
    let mut offset = 0;
    loop {
        let before = seen.len();
        bench
            .fs
            .readdir(fh, offset, false, &mut |listed, _, next| {
                if seen.len() == before + 3 {
                    return Taken::Full;
                }
                seen.push(String::from_utf8(listed.name.clone()).unwrap());
                offset = next;
                Taken::Name
            })
            .unwrap();
        if seen.len() == before {
            break;
        }
        // Removing what was listed must not make the listing skip.
        for name in &seen[before..] {
            let _ = now(&start(|done| bench.fs.unlink(me(), ROOT, name.as_bytes(), done)));
        }
    }
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 12);
}

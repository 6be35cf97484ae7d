//! Whole operations without a mount, against a node that only records what it is asked.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::Duration;

use parking_lot::Mutex;

use super::table::ROOT;
use super::{Changes, Done, Entry, FileSystem, Kind, NewNode, SetTime};
use crate::control::DirOp;
use crate::daemon::boundary::{Caller, Completion, Errno, GlobalRequests, MountedTree};
use crate::dataset::{
    Catalog, CatalogIndex, Entry as Sealed, EntryKind, FileCopy, Layout, MemberPlace, Scheme, Stamp,
};
use crate::ids::{DatasetId, Epoch, Member};
use crate::path::RelPath;

enum Asked {
    Directory(DirOp, Completion),
    Marker(Vec<u8>, Completion),
    Fetch(RelPath, Completion),
}

#[derive(Default)]
struct Node {
    asked: Mutex<VecDeque<Asked>>,
    created: Mutex<Vec<RelPath>>,
    notes: Mutex<Vec<String>>,
}

impl GlobalRequests for Node {
    fn directory(&self, op: DirOp, _: Caller, done: Completion) {
        self.asked.lock().push_back(Asked::Directory(op, done));
    }
    fn marker(&self, name: &[u8], _: Caller, done: Completion) {
        self.asked.lock().push_back(Asked::Marker(name.to_vec(), done));
    }
    fn fetch(&self, _: DatasetId, path: &RelPath, _: Caller, done: Completion) {
        self.asked.lock().push_back(Asked::Fetch(path.clone(), done));
    }
    fn creating(&self, path: &RelPath, _: Option<u32>) -> Result<(), Errno> {
        self.created.lock().push(path.clone());
        Ok(())
    }
    fn note(&self, text: String) {
        self.notes.lock().push(text);
    }
}

struct Bench {
    dir: tempfile::TempDir,
    fs: Arc<FileSystem>,
    node: Arc<Node>,
}

fn path(text: &str) -> RelPath {
    RelPath::new(text).unwrap()
}

fn me() -> Caller {
    Caller {
        tid: std::process::id(),
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
    }
}

/// Starts an operation; its outcome comes through the channel.
fn start<T: Send + 'static>(operation: impl FnOnce(Done<T>)) -> Receiver<Result<T, Errno>> {
    let (send, receive) = channel();
    operation(Box::new(move |outcome| send.send(outcome).unwrap()));
    receive
}

fn now<T>(outcome: &Receiver<Result<T, Errno>>) -> Result<T, Errno> {
    outcome.recv_timeout(Duration::from_secs(10)).expect("an answer")
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
        fs.connect(Arc::clone(&node) as _);
        Self { dir, fs, node }
    }

    fn tree(&self, below: &str) -> std::path::PathBuf {
        self.dir.path().join("tree").join(below)
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
        assert_eq!(self.fs.write(opened.fh, 0, data).unwrap(), data.len());
        self.fs.release(opened.fh);
        entry.attr.nodeid
    }

    fn open(&self, id: u64, flags: i32) -> Receiver<Result<super::Opened, Errno>> {
        start(|done| self.fs.open(me(), id, flags, done))
    }

    fn names(&self, id: u64) -> Vec<String> {
        let fh = self.fs.opendir(id).unwrap();
        let mut names = Vec::new();
        self.fs
            .readdir(fh, 0, true, &mut |listed, entry, _| {
                if let Some(entry) = entry {
                    names.push(String::from_utf8(listed.name.clone()).unwrap());
                    self.fs.forget(entry.attr.nodeid, 1);
                }
                true
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

fn catalog(id: u64, name: &str, files: &[(&str, u64)]) -> Catalog {
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
            scheme: Scheme::Single,
            members: vec![MemberPlace { host: "h".into(), files: files.len() as u64, bytes: 0 }],
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
fn a_held_name_makes_local_operations_wait() {
    let bench = Bench::new("");
    let op = DirOp::Make { path: path("d"), mode: 0o700, uid: me().uid, gid: me().gid };
    bench.fs.prepare(&op).unwrap();
    let file = start(|done| bench.fs.create(me(), ROOT, b"d", 0o644, libc::O_RDWR | libc::O_EXCL, done));
    assert!(waits(&file) && bench.fs.waiting() == 1);
    bench.write(ROOT, "other", b"");
    bench.fs.apply(&op).unwrap();
    assert_eq!(now(&file).unwrap_err(), Errno(libc::EEXIST));
    bench.fs.apply(&op).expect("what is done is done");
    assert_eq!(bench.fs.prepare(&op), Err(Errno(libc::EEXIST)));
    let below = DirOp::Make { path: path("no/where"), mode: 0o700, uid: 0, gid: 0 };
    assert_eq!(bench.fs.prepare(&below), Err(Errno(libc::ENOENT)));
}

#[test]
fn a_waiter_that_died_or_waited_too_long_is_answered() {
    let bench = Bench::new("");
    let op = DirOp::Make { path: path("d"), mode: 0o700, uid: 0, gid: 0 };
    bench.fs.prepare(&op).unwrap();
    let gone = Caller { tid: u32::MAX / 4, ..me() };
    let dead = start(|done| bench.fs.unlink(gone, ROOT, b"d", done));
    let bound = Duration::from_secs(10);
    assert_eq!(dead.recv_timeout(bound).unwrap(), Err(Errno(libc::EINTR)));
    bench.fs.set_wait_bound(Duration::from_millis(10));
    let late = start(|done| bench.fs.unlink(me(), ROOT, b"d", done));
    assert_eq!(late.recv_timeout(bound).unwrap(), Err(Errno(libc::ETIMEDOUT)));
}

#[test]
fn a_frozen_dataset_lets_reads_and_the_marker_through() {
    let bench = Bench::new("");
    let ck = bench.mkdir(ROOT, "ck").attr.nodeid;
    let file = bench.write(ck, "a", b"data");
    bench.fs.freeze(b"ck");
    let writes = bench.open(file, libc::O_WRONLY);
    let creates = start(|done| bench.fs.create(me(), ck, b"b", 0o644, libc::O_WRONLY, done));
    let truncate = Changes { size: Some(0), ..Changes::default() };
    let truncates = start(|done| bench.fs.setattr(me(), file, truncate, done));
    let unlinks = start(|done| bench.fs.unlink(me(), ck, b"a", done));
    let makes = start(|done| bench.fs.mkdir(me(), ck, b"sub", 0o755, done));
    assert!(waits(&writes) && waits(&creates) && waits(&truncates) && waits(&unlinks) && waits(&makes));
    let reads = now(&bench.open(file, libc::O_RDONLY)).unwrap();
    assert_eq!(bench.fs.read(reads.fh, 0, 10).unwrap(), b"data");
    bench.fs.release(reads.fh);
    let (_, marker) = bench.create(ck, ".complete").unwrap();
    bench.fs.release(marker.fh);

    bench.seal(1, "ck", &[("a", 4)]);
    assert_eq!(now(&writes).unwrap_err(), Errno(libc::EROFS));
    assert_eq!(now(&creates).unwrap_err(), Errno(libc::EROFS));
    assert_eq!(now(&truncates).unwrap_err(), Errno(libc::EROFS));
    assert_eq!(now(&makes).unwrap_err(), Errno(libc::EROFS));
    assert_eq!(now(&unlinks), Ok(()), "unlinking hides the name");
    assert_eq!(std::fs::read(bench.tree("ck/a")).unwrap(), b"data", "the bytes stay");
}

#[test]
fn a_failed_seal_lets_waiters_go_on() {
    let bench = Bench::new("");
    let ck = bench.mkdir(ROOT, "ck").attr.nodeid;
    bench.fs.freeze(b"ck");
    let creates = start(|done| bench.fs.create(me(), ck, b"b", 0o644, libc::O_WRONLY, done));
    assert!(waits(&creates));
    bench.fs.thaw(b"ck");
    assert!(now(&creates).is_ok());
}

#[test]
fn the_marker_is_set_by_its_last_close_and_listed_when_true() {
    let bench = Bench::new("");
    let ck = bench.mkdir(ROOT, "ck").attr.nodeid;
    bench.write(ck, "a", b"data");
    for attempt in 0..2 {
        let (entry, opened) = bench.create(ck, ".complete").unwrap();
        assert!(opened.direct && !opened.passthrough);
        assert_eq!(bench.fs.write(opened.fh, 4090, &[0; 10]), Err(Errno(libc::EFBIG)));
        let times = Changes { mtime: Some(SetTime::Now), handle: Some(opened.fh), ..Changes::default() };
        now(&start(|done| bench.fs.setattr(me(), entry.attr.nodeid, times, done))).unwrap();
        let closed = start(|done| bench.fs.flush(me(), opened.fh, done));
        assert!(waits(&closed));
        let Asked::Marker(name, done) = bench.asked() else { panic!("not a marker") };
        assert_eq!(name, b"ck");
        assert_eq!(bench.names(ck), ["a"], "not listed yet");
        if attempt == 0 {
            done(Err(Errno(libc::EIO)));
            assert_eq!(now(&closed), Err(Errno(libc::EIO)));
            assert_eq!(bench.fs.lookup(ck, b".complete").unwrap_err(), Errno(libc::ENOENT));
        } else {
            bench.seal(1, "ck", &[("a", 4)]);
            done(Ok(()));
            assert_eq!(now(&closed), Ok(()));
            assert_eq!(bench.names(ck), [".complete", "a", "link"]);
        }
        bench.fs.release(opened.fh);
    }
    let again = bench.fs.lookup(ck, b".complete").unwrap();
    let opened = now(&bench.open(again.attr.nodeid, libc::O_WRONLY)).unwrap();
    assert_eq!(now(&start(|done| bench.fs.flush(me(), opened.fh, done))), Ok(()), "sealed already");
    assert!(bench.node.asked.lock().is_empty());
}

#[test]
fn a_dying_process_sets_no_marker() {
    let bench = Bench::new("");
    let ck = bench.mkdir(ROOT, "ck").attr.nodeid;
    let (_, opened) = bench.create(ck, ".complete").unwrap();
    let gone = Caller { tid: u32::MAX / 4, ..me() };
    assert_eq!(now(&start(|done| bench.fs.flush(gone, opened.fh, done))), Ok(()));
    assert!(bench.node.asked.lock().is_empty());
}

#[test]
fn rename_and_link_onto_the_markers_name_wait_for_the_seal() {
    let bench = Bench::new("");
    let ck = bench.mkdir(ROOT, "ck").attr.nodeid;
    bench.write(ck, "x", b"1");
    let renamed = start(|done| bench.fs.rename(me(), (ck, b"x"), (ck, b".complete"), 0, done));
    assert!(waits(&renamed));
    let Asked::Marker(_, done) = bench.asked() else { panic!("not a marker") };
    done(Err(Errno(libc::EIO)));
    assert_eq!(now(&renamed), Err(Errno(libc::EIO)));

    let y = bench.write(ck, "y", b"2");
    let linked = start(|done| bench.fs.link(me(), y, ck, b".complete", done));
    let Asked::Marker(_, done) = bench.asked() else { panic!("not a marker") };
    bench.seal(1, "ck", &[("y", 1)]);
    bench.seal(1, "ck", &[("y", 1), ("z", 1)]);
    done(Ok(()));
    assert!(now(&linked).is_ok());
    bench.fs.lookup(ck, b"z").unwrap();
    let repeated = start(|done| bench.fs.rename(me(), (ck, b"z"), (ck, b".complete"), 0, done));
    assert_eq!(now(&repeated), Ok(()), "the dataset is sealed, which is what was wanted");
    assert_eq!(bench.names(ck), [".complete", "link", "y"]);
}

#[test]
fn deeper_markers_are_ordinary_and_noted() {
    let bench = Bench::new("");
    let ck = bench.mkdir(ROOT, "ck").attr.nodeid;
    let sub = bench.mkdir(ck, "sub").attr.nodeid;
    bench.write(sub, ".complete", b"x");
    assert_eq!(bench.node.notes.lock().len(), 1);
    assert_eq!(bench.names(sub), [".complete"]);
    assert_eq!(bench.create(ck, ".scr").unwrap_err(), Errno(libc::EPERM));
    assert_eq!(bench.fs.lookup(ROOT, b".scrfs").unwrap_err(), Errno(libc::ENOENT));
}

#[test]
fn a_sealed_file_from_elsewhere_is_fetched_under_its_number() {
    let bench = Bench::new("");
    bench.seal(3, "ck", &[("a", 4), ("dir/b", 9)]);
    assert_eq!(bench.names(ROOT), ["ck"]);
    let ck = bench.fs.lookup(ROOT, b"ck").unwrap().attr;
    assert_eq!((ck.kind, ck.perm, ck.uid, ck.mtime.secs), (Kind::Directory, 0o640, 7, 77));
    assert_eq!(bench.names(ck.nodeid), [".complete", "a", "dir", "link"]);
    let dir = bench.fs.lookup(ck.nodeid, b"dir").unwrap().attr;
    assert_eq!((dir.kind, bench.names(dir.nodeid)), (Kind::Directory, vec!["b".to_owned()]));
    let link = bench.fs.lookup(ck.nodeid, b"link").unwrap().attr;
    assert_eq!(bench.fs.readlink(link.nodeid).unwrap(), b"a");
    let b = bench.fs.lookup(dir.nodeid, b"b").unwrap().attr;
    assert_eq!((b.size, b.gid), (9, 8));

    assert_eq!(now(&bench.open(b.nodeid, libc::O_RDWR)).unwrap_err(), Errno(libc::EROFS));
    let opening = bench.open(b.nodeid, libc::O_RDONLY);
    assert!(waits(&opening));
    let Asked::Fetch(wanted, done) = bench.asked() else { panic!("not a fetch") };
    assert_eq!(wanted, path("dir/b"));
    std::fs::create_dir_all(bench.tree("ck/dir")).unwrap();
    std::fs::write(bench.tree("ck/dir/b"), b"nine byte").unwrap();
    done(Ok(()));
    let opened = now(&opening).unwrap();
    assert_eq!(bench.fs.read(opened.fh, 0, 100).unwrap(), b"nine byte");
    assert_eq!(bench.fs.lookup(dir.nodeid, b"b").unwrap().attr.nodeid, b.nodeid);
    bench.fs.release(opened.fh);

    std::fs::write(bench.tree("ck/dir/b"), b"short").unwrap();
    let opening = bench.open(b.nodeid, libc::O_RDONLY);
    let Asked::Fetch(_, done) = bench.asked() else { panic!("not a fetch") };
    done(Err(Errno(libc::EIO)));
    assert_eq!(now(&opening).unwrap_err(), Errno(libc::EIO), "never wrong bytes");
}

#[test]
fn sealed_names_do_not_change_but_the_marker_may() {
    let bench = Bench::new("");
    bench.seal(3, "ck", &[("a", 4)]);
    let ck = bench.fs.lookup(ROOT, b"ck").unwrap().attr.nodeid;
    let a = bench.fs.lookup(ck, b"a").unwrap().attr.nodeid;
    let fs = &bench.fs;
    let refused: Vec<Errno> = vec![
        bench.create(ck, "new").unwrap_err(),
        now(&start(|done| fs.rename(me(), (ck, b"a"), (ck, b"b"), 0, done))).unwrap_err(),
        now(&start(|done| fs.link(me(), a, ck, b"b", done))).unwrap_err(),
        now(&start(|done| fs.make_node(me(), ck, b"l", NewNode::Symlink(b"x".to_vec()), done))).unwrap_err(),
        now(&start(|done| fs.setattr(me(), a, Changes { mode: Some(0), ..Changes::default() }, done)))
            .unwrap_err(),
        now(&start(|done| fs.rename(me(), (ROOT, b"ck"), (ROOT, b"other"), 0, done))).unwrap_err(),
        fs.setxattr(a, b"user.x", b"1", 0).unwrap_err(),
    ];
    assert!(refused.iter().all(|e| *e == Errno(libc::EROFS)), "{refused:?}");
    let marker = fs.lookup(ck, b".complete").unwrap().attr;
    assert_eq!((marker.size, marker.perm), (0, 0o644));
    let times = Changes { mtime: Some(SetTime::At(Stamp { secs: 9, nsecs: 1 })), ..Changes::default() };
    let (attr, _) = now(&start(|done| fs.setattr(me(), marker.nodeid, times, done))).unwrap();
    assert_eq!(attr.mtime, Stamp { secs: 9, nsecs: 1 });
    let opened = now(&bench.open(marker.nodeid, libc::O_WRONLY | libc::O_TRUNC)).unwrap();
    assert_eq!(fs.write(opened.fh, 0, b"again").unwrap(), 5);
    fs.release(opened.fh);
    assert_eq!(fs.lookup(ck, b".complete").unwrap().attr.size, 5);
}

#[test]
fn a_sealed_dataset_is_removed_from_below() {
    let bench = Bench::new("");
    bench.seal(3, "ck", &[("dir/b", 9)]);
    let ck = bench.fs.lookup(ROOT, b"ck").unwrap().attr.nodeid;
    let dir = bench.fs.lookup(ck, b"dir").unwrap().attr.nodeid;
    let unlink =
        |parent, name: &str| now(&start(|done| bench.fs.unlink(me(), parent, name.as_bytes(), done)));
    let rmdir = |parent, name: &str| start(|done| bench.fs.rmdir(me(), parent, name.as_bytes(), done));
    assert_eq!(now(&rmdir(ROOT, "ck")), Err(Errno(libc::ENOTEMPTY)));
    assert_eq!(unlink(ck, "dir"), Err(Errno(libc::EISDIR)));
    unlink(dir, "b").unwrap();
    assert_eq!(unlink(dir, "b"), Err(Errno(libc::ENOENT)));
    let gone = rmdir(ck, "dir");
    bench.round().unwrap();
    now(&gone).unwrap();
    unlink(ck, "link").unwrap();
    unlink(ck, ".complete").unwrap();
    let gone = rmdir(ROOT, "ck");
    bench.round().unwrap();
    now(&gone).unwrap();
    assert!(bench.names(ROOT).is_empty());
    let anew = bench.mkdir(ROOT, "ck").attr.nodeid;
    assert_ne!(anew, ck);
    bench.write(anew, "a", b"");
}

#[test]
fn who_writes_is_named_until_he_stops() {
    let bench = Bench::new("");
    let ck = bench.mkdir(ROOT, "ck").attr.nodeid;
    bench.write(ck, "done", b"1234");
    let (_, opened) = bench.create(ck, "busy").unwrap();
    let (woken, wake) = channel();
    bench.fs.freeze(b"ck");
    bench.fs.on_release(b"ck", Arc::new(move || woken.send(()).unwrap()));
    let writers = bench.fs.writers(b"ck").unwrap();
    assert_eq!(writers.len(), 1);
    assert_eq!((&writers[0].path, writers[0].pid), (&path("busy"), std::process::id()));
    bench.fs.release(opened.fh);
    drop(opened);
    wake.try_recv().unwrap();
    assert!(bench.fs.writers(b"ck").unwrap().is_empty());
    let files = bench.fs.files(b"ck").unwrap();
    assert_eq!(
        files.iter().map(|f| (f.path.to_string(), f.size)).collect::<Vec<_>>(),
        [("busy".to_owned(), 0), ("done".to_owned(), 4)]
    );
}

#[test]
fn directories_are_voted_on() {
    let bench = Bench::new("");
    let (a, b) = (bench.mkdir(ROOT, "a").attr.nodeid, bench.mkdir(ROOT, "b").attr.nodeid);
    let (entry, opened) = bench.create(a, "f").unwrap();
    let remove = DirOp::Remove { path: path("a") };
    assert_eq!(bench.fs.prepare(&remove), Err(Errno(libc::ENOTEMPTY)), "a file is open");
    bench.fs.release(opened.fh);
    let rename = |from: &str, to: &str| DirOp::Rename {
        from: path(from),
        to: path(to),
        no_replace: false,
        exchange: false,
    };
    assert_eq!(bench.fs.prepare(&rename("b", "a")), Err(Errno(libc::ENOTEMPTY)));
    assert_eq!(bench.fs.prepare(&rename("b", "b/c")), Err(Errno(libc::EINVAL)));
    let moved = start(|done| bench.fs.rename(me(), (ROOT, b"a"), (b, b"c"), 0, done));
    bench.round().unwrap();
    now(&moved).unwrap();
    assert_eq!(bench.fs.place_of(entry.attr.nodeid).unwrap().0, path("b/c/f"));
    let held: Vec<String> = bench.fs.directories().unwrap().iter().map(|d| d.path.to_string()).collect();
    assert_eq!(held, ["b", "b/c"]);
    let elsewhere = DirOp::Remove { path: path("b") };
    bench.fs.prepare(&elsewhere).expect("files that only this node has go with it");
    bench.fs.apply(&elsewhere).unwrap();
    assert!(!bench.tree("b").exists());
}

#[test]
fn a_restart_removes_what_is_not_sealed() {
    let bench = Bench::new("");
    let junk = bench.mkdir(ROOT, "junk").attr.nodeid;
    bench.write(junk, "f", b"1");
    bench.write(ROOT, "loose", b"1");
    bench.mkdir(ROOT, "ck");
    bench.seal(1, "ck", &[]);
    bench.fs.remove_junk().unwrap();
    assert_eq!(bench.names(ROOT), ["ck"]);
    bench.fs.unlisted(DatasetId(1));
    assert!(Path::new(&bench.tree("ck")).exists(), "bytes are the node's business");
}

#[test]
fn listings_keep_their_offsets_while_names_change() {
    let bench = Bench::new("");
    for n in 0..10 {
        bench.write(ROOT, &format!("f{n}"), b"");
    }
    let fh = bench.fs.opendir(ROOT).unwrap();
    let mut seen = Vec::new();
    let mut offset = 0;
    loop {
        let before = seen.len();
        bench
            .fs
            .readdir(fh, offset, false, &mut |listed, _, next| {
                if seen.len() == before + 3 {
                    return false;
                }
                seen.push(String::from_utf8(listed.name.clone()).unwrap());
                offset = next;
                true
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

//! Pointer files, with the mounted tree itself in place of a stand-in.

use super::*;
use crate::control::loose::{Age, LooseEntry, LooseKind, LooseOwner, LooseStamp, LooseVersion};
use crate::fs::FileSystem;
use crate::fs::ROOT;
use crate::ids::RequestId;

/// A node whose programs work without a kernel.
struct Real {
    directory: tempfile::TempDir,
    fs: Arc<FileSystem>,
    node: Arc<Node>,
}

impl Real {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let (fs, node) = Self::start(directory.path());
        Self { directory, fs, node }
    }

    fn start(directory: &Path) -> (Arc<FileSystem>, Arc<Node>) {
        let cache = directory.join("cache/user/scr.j1");
        std::fs::create_dir_all(cache.join("tree")).unwrap();
        let fs = FileSystem::new(&cache.join("tree"), RelPath::root()).unwrap();
        let config = Bench::config(directory);
        let node = Node::start(config, Arc::clone(&fs) as _).unwrap();
        fs.connect(&(Arc::clone(&node) as _));
        (fs, node)
    }

    fn restart(&mut self) {
        self.node.stop();
        (self.fs, self.node) = Self::start(self.directory.path());
    }

    fn lead(&self, epoch: u64, start: Start) -> Lead {
        let mut lead = Lead::attach(&self.directory.path().join("cntl"), epoch, start, test_settings());
        lead.inventory();
        lead
    }

    fn serving(&self, epoch: u64) -> Lead {
        let mut lead = self.lead(epoch, Start::Attach);
        lead.serve(&self.node);
        lead
    }

    fn tree(&self, name: &str) -> PathBuf {
        self.directory.path().join("cache/user/scr.j1/tree").join(name)
    }

    fn says(&self, name: &str) -> Option<String> {
        std::fs::read_to_string(self.tree(name)).ok()
    }

    /// A program closes a file that it wrote.
    fn closes(&self, name: &str, says: &str) -> Receiver<Result<(), Errno>> {
        std::fs::write(self.tree(name), says).unwrap();
        let (give, outcome) = crossbeam_channel::bounded(1);
        // The test that waits for it may have failed.
        let done = Box::new(move |result| give.send(result).unwrap_or_default());
        self.node.loose(vec![name.into()], Caller::default(), done);
        outcome
    }

    /// A program has it open for writing.
    fn opens(&self, name: &str) -> u64 {
        let inode = self.fs.lookup(ROOT, name.as_bytes()).unwrap().attr.nodeid;
        let (give, opened) = crossbeam_channel::bounded(1);
        let done = Box::new(move |opened| give.send(opened).unwrap());
        self.fs.open(Caller::default(), inode, libc::O_WRONLY, done);
        opened.recv_timeout(WAIT).unwrap().unwrap().fh
    }
}

impl Drop for Real {
    fn drop(&mut self) {
        self.node.stop();
    }
}

fn version(serial: u64, request: RequestId, entry: LooseEntry) -> LooseVersion {
    let stamp = LooseStamp { epoch: Epoch(1), serial };
    LooseVersion { stamp, request, owner: LooseOwner::Sealed(Age::default()), entry }
}

/// Another node's.
fn foreign(serial: u64, name: &str, says: &str) -> LooseVersion {
    let kind = LooseKind::File { size: says.len() as u64, crc: crc32fast::hash(says.as_bytes()) };
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let gone = LooseEntry::gone(name.into());
    let entry = LooseEntry { kind, bytes: says.into(), mode: 0o640, uid, gid, ..gone };
    version(serial, RequestId { origin: 1, serial }, entry)
}

impl Lead {
    fn asked(&mut self) -> (RequestId, LooseEntry) {
        match self.next() {
            Event::LooseRequest { request, mut entries } => (request, entries.remove(0)),
            other => panic!("{other:?}"),
        }
    }

    fn store(&mut self, versions: Vec<LooseVersion>) {
        self.send(Command::LooseStore { round: 7, versions, place: true });
        assert_eq!(self.next(), Event::LooseStored { round: 7, errno: 0 });
    }

    fn loose(&mut self) -> Vec<LooseVersion> {
        self.send(Command::LooseInventory);
        match self.next() {
            Event::LooseInventory(inventory) => inventory.versions,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn the_leads_order_stands_and_nobody_is_overwritten() {
    let bench = Real::new();
    assert_eq!(bench.closes("alone", "x").recv_timeout(WAIT).unwrap(), Ok(()), "no coordinator");
    let mut lead = bench.serving(1);
    let (told, entry) = lead.asked();
    assert_eq!(entry.name, b"alone", "what was changed before it came");
    lead.store(vec![version(1, told, entry)]);
    lead.send(Command::LooseFinish { results: vec![(told, 0)] });

    let closed = bench.closes("latest", "mine");
    let (request, entry) = lead.asked();
    assert_eq!(entry.bytes, b"mine");
    // One that was ordered before it is not put over it, one that was ordered after it is.
    lead.store(vec![foreign(2, "latest", "before")]);
    assert_eq!(bench.says("latest").unwrap(), "mine");
    assert!(closed.is_empty());
    lead.store(vec![version(3, request, entry), foreign(4, "latest", "after")]);
    assert_eq!(bench.says("latest").unwrap(), "after");
    lead.send(Command::LooseFinish { results: vec![(request, 0)] });
    assert_eq!(closed.recv_timeout(WAIT).unwrap(), Ok(()));
    let mode =
        std::os::unix::fs::PermissionsExt::mode(&bench.tree("latest").metadata().unwrap().permissions());
    assert_eq!(mode & 0o777, 0o640);
    // Nothing was changed since.
    assert_eq!(bench.closes("latest", "after").recv_timeout(WAIT).unwrap(), Ok(()));

    // While a program has it open for writing nothing is put over it.
    let inode = bench.fs.lookup(ROOT, b"latest").unwrap().attr.nodeid;
    let fh = bench.opens("latest");
    lead.store(vec![foreign(5, "latest", "late")]);
    assert_eq!(bench.says("latest").unwrap(), "after");
    bench.fs.release(fh);
    lead.loose();
    assert_eq!(bench.says("latest").unwrap(), "late");
    assert_ne!(bench.fs.lookup(ROOT, b"latest").unwrap().attr.nodeid, inode, "another file");
    // What it writes then is the last word, also if it is what was there before.
    let fh = bench.opens("latest");
    lead.store(vec![foreign(6, "latest", "other")]);
    let closed = bench.closes("latest", "late");
    let (request, entry) = lead.asked();
    assert_eq!(entry.bytes, b"late");
    lead.store(vec![version(7, request, entry)]);
    lead.send(Command::LooseFinish { results: vec![(request, 0)] });
    assert_eq!(closed.recv_timeout(WAIT).unwrap(), Ok(()));
    bench.fs.release(fh);
    lead.loose();
    assert_eq!(bench.says("latest").unwrap(), "late");
    // A name that is gone, a link, and what is no pointer.
    let gone = version(8, RequestId { origin: 1, serial: 8 }, LooseEntry::gone(b"latest".to_vec()));
    let mut link = foreign(9, "link", "");
    link.entry.kind = LooseKind::Symlink(b"ck.1".to_vec());
    lead.store(vec![gone, link]);
    assert!(bench.says("latest").is_none());
    assert_eq!(std::fs::read_link(bench.tree("link")).unwrap(), Path::new("ck.1"));
    std::fs::create_dir(bench.tree("ck")).unwrap();
    lead.store(vec![foreign(10, "ck", "a file elsewhere")]);
    assert!(bench.tree("ck").is_dir());
}

#[test]
fn a_restart_shows_what_the_lead_chose_and_a_new_worker_goes_on() {
    let mut bench = Real::new();
    let mut lead = bench.serving(1);
    lead.store(vec![foreign(1, "latest", "ck.1"), foreign(2, "latest", "ck.2"), foreign(3, "new", "x")]);
    let age = Age { epoch: Epoch(1), id: DatasetId(2) };
    let second = LooseStamp { epoch: Epoch(1), serial: 2 };
    lead.send(Command::LooseBind { bound: vec![(second, LooseOwner::Sealed(age))], began: vec![(age, 7)] });
    assert_eq!(bench.says("latest").unwrap(), "ck.2");
    lead.loose();
    bench.restart();
    let mut lead = bench.lead(2, Start::Restart);
    let versions = lead.loose();
    let owners: Vec<bool> = versions.iter().map(|v| v.owner == LooseOwner::Sealed(age)).collect();
    assert_eq!(owners, [false, true, false]);
    lead.send(Command::ReadLoose(second));
    let Event::LooseRead { version: Some(read), .. } = lead.next() else { panic!("not read") };
    assert_eq!(read.entry.bytes, b"ck.2");
    let first = LooseStamp { epoch: Epoch(1), serial: 1 };
    lead.send(Command::LooseShow { versions: vec![first], shown: Age::default() });
    lead.send(Command::Present { datasets: Vec::new() });
    assert_eq!(lead.next(), Event::Presented { result: Ok(()) });
    assert_eq!((bench.says("latest").as_deref(), bench.says("new")), (Some("ck.1"), None));
    lead.send(Command::LooseForget { versions: vec![second], datasets: vec![] });
    lead.send(Command::Serve);
    assert_eq!(lead.loose().len(), 2);
    bench.restart();
    assert_eq!(bench.serving(3).loose().len(), 2, "and nothing to tell");
    assert_eq!(bench.says("latest").unwrap(), "ck.1");
}

#[test]
fn what_has_begun_is_told() {
    let bench = Real::new();
    let mut lead = bench.serving(1);
    let mut begun = || {
        lead.send(Command::LooseAsk { round: 3 });
        match lead.next() {
            Event::LooseBegun { round: 3, begun } => begun,
            other => panic!("{other:?}"),
        }
    };
    assert!(begun().is_empty());
    bench.node.creating(&path("ck.tmp/a"), None).unwrap();
    bench.node.creating(&path("loose"), None).unwrap();
    let first = begun();
    assert_eq!((first.len(), first[0].name.as_slice(), first[0].base), (1, b"ck.tmp".as_slice(), None));
    assert!(first[0].since_us > 0);
    bench.node.creating(&path("ck.tmp/b"), None).unwrap();
    assert_eq!(begun(), first);
}

#[test]
fn what_stays_here_is_neither_replaced_nor_removed() {
    let bench = Real::new();
    let mut lead = bench.serving(1);
    let large = "x".repeat(2 << 20);
    let mut serial = 0;
    let mut order = |lead: &mut Lead, closed: Receiver<Result<(), Errno>>| {
        let (request, entry) = lead.asked();
        serial += 20;
        let gone = entry.is_gone();
        lead.store(vec![version(serial, request, entry)]);
        lead.send(Command::LooseFinish { results: vec![(request, 0)] });
        assert_eq!(closed.recv_timeout(WAIT).unwrap(), Ok(()));
        gone
    };
    let closed = bench.closes("state", "small");
    assert!(!order(&mut lead, closed));
    // As by a rename over it: for the other nodes it is gone.
    let closed = bench.closes("state", &large);
    assert!(order(&mut lead, closed));
    assert_eq!(bench.says("state").unwrap().len(), large.len());
    // What others make and remove of that name.
    lead.store(vec![foreign(45, "state", "theirs")]);
    assert_eq!(bench.says("state").unwrap().len(), large.len());
    let gone = LooseEntry::gone(b"state".to_vec());
    lead.store(vec![version(46, RequestId { origin: 1, serial: 46 }, gone)]);
    assert_eq!(bench.says("state").unwrap().len(), large.len());
    // A special file.
    let pipe = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, bench.tree("pipe"), pipe, Mode::RUSR, 0).unwrap();
    lead.store(vec![foreign(47, "pipe", "theirs")]);
    let gone = LooseEntry::gone(b"pipe".to_vec());
    lead.store(vec![version(48, RequestId { origin: 1, serial: 48 }, gone)]);
    assert!(bench.tree("pipe").symlink_metadata().is_ok());
    // Small again it is a pointer.
    let closed = bench.closes("state", "again");
    assert!(!order(&mut lead, closed));
    assert_eq!(bench.says("state").unwrap(), "again");
}

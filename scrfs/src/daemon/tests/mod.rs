//! Tests of the node with stand-ins for its neighbours: a tree that is a plain directory, and a
//! scripted lead that speaks over the real socket.

mod advice;
mod background;
mod bad;
mod checkpoint_path;
mod crash;
mod encodings;
mod fake_tree;
mod generations;
mod guard;
mod life;
mod links;
mod logs;
mod loose;
mod members;
mod recycled;
mod restarts;
mod scavenge;
mod stores;
mod verification;
mod waits;

use std::collections::BTreeSet;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::Receiver;
use parking_lot::Mutex;
use rustix::fs::Mode;

use self::fake_tree::FakeTree;
use super::{Node, NodeConfig};
use crate::boundary::{Eye, Generation, GlobalRequests, Marking, MountedTree, Writer};
use crate::caller::Caller;
use crate::checkpoint_path::Chosen;
use crate::control::client::{DataConnection, EventReceiver, Link};
use crate::control::{
    Command, DataReply, DataRequest, DirHeld, DirOp, Event, FrozenFile, FrozenPart, Inventory, MarkerOutcome,
    MemberPart, Reason, Role, Settings, Start, test_settings,
};
use crate::dataset::protection::to_stores;
use crate::dataset::{Catalog, CatalogIndex, Layout, MemberPlace, Protection, Revision, Scheme};
use crate::errno::Errno;
use crate::ids::{DatasetId, Epoch, Member, NodeRank, RequestId};
use crate::path::RelPath;
use crate::patience::until;
use crate::store::Store;
use crate::stores::{Place, Stores};

/// Longer than anything here takes.
const WAIT: Duration = Duration::from_mins(1);

fn path(text: &str) -> RelPath {
    RelPath::new(text).unwrap()
}

fn make(name: &str) -> DirOp {
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    DirOp::Make { path: path(name), mode: 0o755, uid, gid }
}

/// A node in a directory of its own; restarts as a killed worker does.
struct Bench {
    directory: tempfile::TempDir,
    tree: Arc<FakeTree>,
    node: Arc<Node>,
    /// What its leads give it.
    settings: Settings,
}

/// What a worker finds; the mount was made with its root.
fn in_force(directory: &Path) -> Chosen {
    let control = directory.join("cntl");
    let chosen = Store::open(&control).ok().and_then(|store| Chosen::load(&store).unwrap());
    chosen.unwrap_or(Chosen { path: RelPath::root(), former: None })
}

impl Bench {
    /// On which no wait for a successor ends while the test runs, nor one for writers.
    fn new() -> Self {
        Self::over(tempfile::tempdir().unwrap(), test_settings())
    }

    /// On which both soon end.
    fn hasty() -> Self {
        let settings = Settings { coordinator_wait_ms: 300, seal_timeout_ms: 400, ..test_settings() };
        Self::over(tempfile::tempdir().unwrap(), settings)
    }

    fn over(directory: tempfile::TempDir, settings: Settings) -> Self {
        let (tree, node) = Self::start(directory.path());
        Self { directory, tree, node, settings }
    }

    fn start(directory: &Path) -> (Arc<FakeTree>, Arc<Node>) {
        let cache = directory.join("cache/user/scr.j1");
        let config = Self::config(directory);
        let other = config.in_use.places().get(1).map(Place::tree);
        let tree = Arc::new(FakeTree { root: cache.join("tree"), other, inner: Mutex::default() });
        let mounted: Arc<dyn MountedTree> = Arc::clone(&tree) as _;
        (tree, Node::start(config, mounted).unwrap())
    }

    /// Over one store; where `other` is in the directory, over that as well: datasets with even ids
    /// go there.
    fn config(directory: &Path) -> NodeConfig {
        let cache = directory.join("cache/user/scr.j1");
        let in_use = match std::fs::canonicalize(directory.join("other")) {
            Err(_) => Stores::one(&cache),
            Ok(base) => {
                let first = Place { base: "/first".into(), cache };
                let other = Place { cache: base.join("user/scr.j1"), base: "/other".into() };
                Stores::new(first, vec![other], to_stores(&[(1, "/first"), (2, "/other")]))
            }
        };
        NodeConfig {
            is_new: false,
            hands: crate::lane::Hands::Threads,
            control_directory: directory.join("cntl"),
            checkpoint_path: in_force(directory),
            in_use: Arc::new(in_use),
            mount_point: "/scr".into(),
            job_user: "tester".into(),
            job_uid: rustix::process::getuid().as_raw(),
            job_gid: rustix::process::getgid().as_raw(),
            operators: None,
            job_id: "j1".into(),
            host: "n0".into(),
            coordinator_wait: Duration::from_mins(10),
            cache_bytes: 0,
            stores: Vec::new(),
            on_stop: Arc::new(|| {}),
            on_reload: Arc::new(|| true),
        }
    }

    fn control(&self) -> PathBuf {
        self.directory.path().join("cntl")
    }

    fn restart(&mut self) {
        self.node.stop();
        (self.tree, self.node) = Self::start(self.directory.path());
    }

    /// Device and inode number of a file in the tree.
    fn number(&self, file: &str) -> (u64, u64) {
        let found = std::fs::metadata(self.tree.at(&path(file))).map(|file| (file.dev(), file.ino()));
        found.unwrap_or_default()
    }

    fn write(&self, file: &str, bytes: &[u8]) {
        self.node.creating(&path(file), Some(7)).unwrap();
        let at = self.tree.at(&path(file));
        std::fs::create_dir_all(at.parent().unwrap()).unwrap();
        std::fs::write(at, bytes).unwrap();
    }

    /// The outcome of a program's directory operation.
    fn directory_op(&self, op: DirOp) -> Receiver<Result<(), Errno>> {
        let (give, outcome) = crossbeam_channel::bounded(1);
        self.node.directory(
            self.node.new_request(),
            op,
            Caller::default(),
            Box::new(move |result| give.send(result).unwrap()),
        );
        outcome
    }

    fn marker(&self, name: &str, caller: Caller) -> Receiver<Result<(), Errno>> {
        self.marking(name, Marking::default(), caller)
    }

    fn marking(&self, name: &str, marking: Marking, caller: Caller) -> Receiver<Result<(), Errno>> {
        let (give, outcome) = crossbeam_channel::bounded(1);
        // A test may have ended before its node.
        let done = Box::new(move |result| {
            let _ = give.send(result);
        });
        self.node.marker(name.as_bytes(), marking, caller, done);
        outcome
    }

    fn lead(&self, epoch: u64, start: Start) -> Lead {
        Lead::attach(&self.control(), epoch, start, self.settings.clone())
    }

    /// Attached, asked and serving.
    fn serving(&self, epoch: u64) -> Lead {
        let mut lead = self.lead(epoch, Start::Attach);
        lead.inventory();
        lead.serve(&self.node);
        lead
    }

    /// What a new coordinator would be told.
    fn inventory(&self) -> Inventory {
        self.node.inventory()
    }

    fn events(&self) -> String {
        self.node.events.newest(1000).join("\n")
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.node.stop();
    }
}

/// The lead as this node sees it.
struct Lead {
    link: Link,
    epoch: u64,
    directory: PathBuf,
}

impl Lead {
    fn attach(directory: &Path, epoch: u64, start: Start, settings: Settings) -> Self {
        let role = Role::Coordinator {
            epoch: Epoch(epoch),
            rank: NodeRank(0),
            hosts: vec!["n0".into(), "n1".into()],
            start,
            settings: Box::new(settings),
        };
        Self { link: Link::connect(directory, role, WAIT).unwrap(), epoch, directory: directory.to_owned() }
    }

    #[expect(clippy::needless_pass_by_value, reason = "reads as it is said")]
    fn send(&mut self, command: Command) {
        self.link.commands.send(&command).unwrap();
    }

    /// The next event.
    fn next(&mut self) -> Event {
        next(&mut self.link.events)
    }

    /// Returns when `node` is done with what it tells a lead that begins to serve: a request that
    /// is made meanwhile is told twice.
    fn serve(&mut self, node: &Node) {
        self.send(Command::Serve);
        until("serving", || node.state.lock().served());
        let (give, done) = crossbeam_channel::bounded(1);
        node.lanes.records.run(move || give.send(()).unwrap());
        done.recv_timeout(WAIT).unwrap();
    }

    fn inventory(&mut self) -> Inventory {
        self.send(Command::Inventory);
        match self.next() {
            Event::Inventory(inventory) => *inventory,
            other => panic!("{other:?}"),
        }
    }

    fn data(&self) -> DataConnection {
        DataConnection::connect(&self.directory, Epoch(self.epoch), WAIT).unwrap()
    }

    fn freeze(&mut self, id: u64, name: &str) -> Result<Vec<FrozenFile>, String> {
        self.freeze_over(id, name, None).map(|part| part.files)
    }

    fn freeze_over(&mut self, id: u64, name: &str, base: Option<u64>) -> Result<FrozenPart, String> {
        let base = base.map(DatasetId);
        self.send(Command::Freeze { id: DatasetId(id), name: name.into(), member: Member(0), base });
        match self.next() {
            Event::Frozen { result, .. } => result.map_err(|reason| reason.to_string()),
            other => panic!("{other:?}"),
        }
    }

    /// What is wrong with the files and with the redundancy file of each member here.
    /// A round has dataset `name`'s directory removed, and here it is applied by now.
    fn remove_directory(&mut self, name: &str) {
        let request = RequestId { origin: 9, serial: 1 };
        let ops = vec![(request, DirOp::Remove { path: path(name) })];
        self.send(Command::DirPrepare { round: 1, ops });
        assert_eq!(self.next(), Event::DirPrepared { round: 1, votes: vec![0] });
        self.send(Command::DirApply { round: 1, verdicts: vec![0] });
    }

    fn verify(&mut self, id: DatasetId) -> Vec<(Member, [Option<String>; 2])> {
        self.send(Command::Verify(id));
        let Event::Verified { id: of, members } = self.next() else { panic!("another answer") };
        assert_eq!(of, id);
        let wrong = |result: Result<(), Reason>| result.err().map(|reason| reason.to_string());
        members.into_iter().map(|m| (m.member, [wrong(m.files), wrong(m.redundancy)])).collect()
    }

    fn commit(&mut self, catalog: &Catalog) -> Result<(), String> {
        self.send(Command::Commit(Arc::new(catalog.clone())));
        match self.next() {
            Event::Committed { result, .. } => result.map_err(|reason| reason.to_string()),
            other => panic!("{other:?}"),
        }
    }

    fn revise(&mut self, revision: Revision) -> Result<(), String> {
        self.send(Command::Revise(Arc::new(revision)));
        match self.next() {
            Event::Committed { result, .. } => result.map_err(|reason| reason.to_string()),
            other => panic!("{other:?}"),
        }
    }

    /// Freezes, encodes, commits and seals.
    fn seal(&mut self, id: u64, name: &str) -> Catalog {
        let files = self.freeze(id, name).unwrap();
        let part = encode(&mut self.data(), id, &files).unwrap();
        let catalog = catalog(id, self.epoch, name, &part);
        self.commit(&catalog).unwrap();
        self.send(Command::Sealed(DatasetId(id)));
        catalog
    }
}

/// The next event that wants an answer or is one.
fn next(events: &mut EventReceiver) -> Event {
    loop {
        match events.receive(Some(WAIT)).unwrap().expect("an event within the time") {
            Event::Overwritten(_) => {}
            event => return event,
        }
    }
}

const REDUNDANCY: &str = "1_of_2_in_0.xor";

/// What a coordinator's encode job does at its daemon.
fn encode(data: &mut DataConnection, id: u64, files: &[FrozenFile]) -> Result<MemberPart, String> {
    let id = DatasetId(id);
    let mut crcs = Vec::new();
    for file in files {
        let fd = data
            .descriptor(&DataRequest::OpenFile { id, path: file.path.clone() })
            .map_err(|error| error.to_string())?;
        let mut bytes = Vec::new();
        std::io::Read::read_to_end(&mut std::fs::File::from(fd), &mut bytes).unwrap();
        crcs.push(crc32fast::hash(&bytes));
    }
    let create = DataRequest::CreateRedundancy { id, member: Member(0), name: REDUNDANCY.into() };
    let fd = data.descriptor(&create).map_err(|error| error.to_string())?;
    std::fs::File::from(fd).write_all(b"parity").unwrap();
    let redundancy = Some((REDUNDANCY.to_owned(), 6, crc32fast::hash(b"parity")));
    let set = vec![Member(0), Member(1)];
    let finish = DataRequest::FinishMember { id, member: Member(0), crcs, redundancy, set, members: 2 };
    match data.request(&finish).map_err(|error| error.to_string())? {
        DataReply::Part(part) => Ok(*part),
        other => panic!("{other:?}"),
    }
}

/// The catalog of this node's part and an empty member on `n1`.
fn catalog(id: u64, epoch: u64, name: &str, part: &MemberPart) -> Catalog {
    let sizes: Vec<u64> = part
        .entries
        .iter()
        .filter_map(|entry| match &entry.kind {
            crate::dataset::EntryKind::File(copy) => Some(copy.size),
            _ => None,
        })
        .collect();
    let place = |host: &str, files, bytes| MemberPlace { host: host.into(), files, bytes, taken: None };
    let mut catalog = Catalog {
        id: DatasetId(id),
        epoch: Epoch(epoch),
        revision: 0,
        name: name.into(),
        created_us: 1,
        user: "tester".into(),
        job_id: "j1".into(),
        layout: Layout {
            encoding: 0,
            protection: Protection::by(Scheme::Xor),
            members: vec![place("n0", sizes.len() as u64, sizes.iter().sum()), place("n1", 0, 0)],
            sets: vec![vec![Member(0), Member(1)]],
        },
        entries: part.entries.clone(),
    };
    catalog.sort();
    catalog
}

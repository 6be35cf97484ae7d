//! Stand-ins for the tests of jobs: nodes of one process over the simulated transport, a daemon
//! that is a directory.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::comm::sim::{SimControl, SimTransport, world};
use crate::comm::{Lane, Transport};
use crate::job::{Job, JobId, JobResult};
use crate::jobs::Jobs;
use crate::jobs::block::{Address, Announced, Arrival, Outgoing, Stream};
use crate::jobs::link::DataLink;
use crossbeam_channel::{Receiver, Sender, unbounded};
use scrfs::control::{DataReply, DataRequest, JobRules, MemberPart, Reason, Room};
use scrfs::dataset::{Entry, EntryKind, FileCopy, Stamp};
use scrfs::ids::{DatasetId, Member, NodeRank};
use scrfs::lock::Mutex;
use scrfs::path::RelPath;

/// Strips in which a member is encoded, where it has data for so many.
pub(super) const ENCODE_THREADS: u32 = 3;

/// Bytes of another redundancy file in those that even members get.
const USED: usize = 20_000;

/// A daemon's node-local directories: `tree` (files), `red` (redundancy files).
#[derive(Clone)]
pub(super) struct FakeDaemon {
    pub(super) root: PathBuf,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// The member's file order, from the job or the catalog.
    files: BTreeMap<Member, Vec<RelPath>>,
    abandoned: Vec<Member>,
    names: BTreeMap<Member, String>,
    /// What was recorded of their redundancy files.
    crcs: BTreeMap<Member, u32>,
    installed: Vec<RelPath>,
    /// Bytes for copies, if there is a bound.
    room: Option<u64>,
    /// A program begins to change this file when it has been opened next.
    changing: Option<RelPath>,
    /// Requests from now on until one fails.
    fail_after: Option<u64>,
    /// Killed: connections are closed.
    dead: bool,
}

impl FakeDaemon {
    pub(super) fn new(root: &Path) -> Self {
        fs::create_dir_all(root.join("tree")).unwrap();
        fs::create_dir_all(root.join("red")).unwrap();
        Self { root: root.to_owned(), state: Arc::default() }
    }

    pub(super) fn tree(&self, path: &RelPath) -> PathBuf {
        self.root.join("tree").join(path.as_path())
    }

    pub(super) fn put(&self, path: &RelPath, bytes: &[u8]) {
        fs::create_dir_all(self.tree(path).parent().unwrap()).unwrap();
        fs::write(self.tree(path), bytes).unwrap();
    }

    pub(super) fn order(&self, member: Member, files: Vec<RelPath>) {
        self.state.lock().files.insert(member, files);
    }

    pub(super) fn wipe(&self) {
        fs::remove_dir_all(&self.root).unwrap();
        fs::create_dir_all(self.root.join("tree")).unwrap();
        fs::create_dir_all(self.root.join("red")).unwrap();
        *self.state.lock() = State::default();
    }

    pub(super) fn has_room_for(&self, bytes: u64) {
        self.state.lock().room = Some(bytes);
    }

    pub(super) fn fail_after(&self, requests: u64) {
        self.state.lock().fail_after = Some(requests);
    }

    pub(super) fn change_once_opened(&self, path: &RelPath) {
        self.state.lock().changing = Some(path.clone());
    }

    /// As [`DataRequest::OpenFile`] has it. A file that a program begins to change is the program's
    /// from then on, and its sealed bytes are in another one.
    fn open(&self, path: &RelPath) -> std::io::Result<File> {
        let file = File::open(self.tree(path))?;
        if self.state.lock().changing.take_if(|changing| changing == path).is_some() {
            let (place, aside) = (self.tree(path), self.root.join("aside"));
            let mut bytes = fs::read(&place)?;
            fs::write(&aside, &bytes)?;
            bytes = bytes.into_iter().map(|byte| byte ^ 1).collect();
            fs::write(&place, &bytes)?;
            fs::rename(&aside, &place)?;
        }
        Ok(file)
    }

    pub(super) fn die(&self) {
        self.state.lock().dead = true;
    }

    /// Which redundancy file is `member`'s.
    pub(super) fn name(&self, member: Member, name: &str) {
        let crc = crc32fast::hash(&fs::read(self.root.join("red").join(name)).unwrap());
        let mut state = self.state.lock();
        state.names.insert(member, name.to_owned());
        state.crcs.insert(member, crc);
    }

    /// Where the files of a member are while it is rebuilt.
    fn staged(&self, member: Member) -> PathBuf {
        self.root.join(format!("staged.{member}"))
    }

    pub(super) fn abandoned(&self) -> Vec<Member> {
        self.state.lock().abandoned.clone()
    }

    pub(super) fn redundancy_bytes(&self) -> Vec<(String, Vec<u8>)> {
        let mut all: Vec<_> = fs::read_dir(self.root.join("red"))
            .unwrap()
            .map(|e| e.unwrap())
            .map(|e| (e.file_name().into_string().unwrap(), fs::read(e.path()).unwrap()))
            .collect();
        all.sort();
        all
    }

    fn part(&self, member: Member, crcs: &[u32]) -> MemberPart {
        let files = self.state.lock().files.get(&member).cloned().unwrap_or_default();
        assert_eq!(files.len(), crcs.len());
        let entry = |(path, crc): (RelPath, &u32)| {
            let size = fs::metadata(self.tree(&path)).unwrap().len();
            let kind = EntryKind::File(FileCopy { size, crc: *crc, member, program_rank: None });
            Entry {
                path,
                kind,
                mode: 0o644,
                uid: 0,
                gid: 0,
                atime: Stamp::default(),
                mtime: Stamp::default(),
            }
        };
        MemberPart { member, entries: files.into_iter().zip(crcs).map(entry).collect(), taken: 0 }
    }
}

fn opened(file: std::io::Result<File>) -> (DataReply, Option<OwnedFd>) {
    match file {
        Ok(file) => (DataReply::Descriptor, Some(file.into())),
        Err(e) => (DataReply::Failed { errno: e.raw_os_error().unwrap_or(0), reason: e.to_string() }, None),
    }
}

impl DataLink for FakeDaemon {
    fn request(&mut self, request: &DataRequest) -> Result<(DataReply, Option<OwnedFd>), Reason> {
        {
            let mut state = self.state.lock();
            if state.dead {
                return Err("the connection was closed".into());
            }
            if let Some(left) = &mut state.fail_after {
                if *left == 0 {
                    return Ok((DataReply::Failed { errno: 5, reason: "injected".to_owned() }, None));
                }
                *left -= 1;
            }
        }
        let red = |member: &Member, state: &State| self.root.join("red").join(&state.names[member]);
        Ok(match request {
            DataRequest::OpenFile { path, .. } => opened(self.open(path)),
            DataRequest::OpenRedundancy { member, .. } => {
                let state = self.state.lock();
                match opened(File::open(red(member, &state))) {
                    (DataReply::Descriptor, fd) => (DataReply::Redundancy { crc: state.crcs[member] }, fd),
                    failed => failed,
                }
            }
            DataRequest::CreateRedundancy { member, name, .. } => {
                let mut state = self.state.lock();
                state.names.insert(*member, name.clone());
                let path = red(member, &state);
                let file = File::options().read(true).write(true).create_new(true).open(&path);
                if member.0.is_multiple_of(2) {
                    // Pages that are used again.
                    fs::write(path, vec![0xa5; USED]).unwrap();
                }
                opened(file)
            }
            DataRequest::BeginMember { catalog, member } => {
                let files = catalog.files_of(*member).map(|(e, _)| e.path.clone()).collect();
                self.state.lock().files.insert(*member, files);
                (DataReply::Done, None)
            }
            DataRequest::CreateFile { member, path, .. } => {
                let staged = self.staged(*member).join(path.as_path());
                fs::create_dir_all(staged.parent().unwrap()).unwrap();
                opened(File::options().write(true).create_new(true).open(staged))
            }
            DataRequest::FinishMember { member, crcs, redundancy, .. } => {
                if let Some((name, size, crc)) = redundancy {
                    let bytes = fs::read(self.root.join("red").join(name)).unwrap();
                    assert_eq!((bytes.len() as u64, crc32fast::hash(&bytes)), (*size, *crc), "{name}");
                    self.state.lock().crcs.insert(*member, *crc);
                }
                let staged = self.staged(*member);
                if staged.exists() {
                    for path in self.state.lock().files[member].clone() {
                        fs::create_dir_all(self.tree(&path).parent().unwrap()).unwrap();
                        fs::rename(staged.join(path.as_path()), self.tree(&path)).unwrap();
                    }
                }
                let part = self.part(*member, crcs);
                (DataReply::Part(Box::new(part)), None)
            }
            DataRequest::AbandonMember { member, .. } => {
                self.state.lock().abandoned.push(*member);
                (DataReply::Done, None)
            }
            DataRequest::CreateCopy { file, takes } => {
                fs::create_dir_all(self.tree(&file.path).parent().unwrap()).unwrap();
                let room = self.state.lock().room;
                if room.is_some_and(|room| *takes > room) {
                    return Ok((DataReply::Failed { errno: 28, reason: "no room".to_owned() }, None));
                }
                // Beside the tree, as the real one: the file there may be the one that is sent.
                opened(File::create(self.root.join("copy")))
            }
            DataRequest::AbandonCopy(_) => {
                drop(fs::remove_file(self.root.join("copy")));
                (DataReply::Done, None)
            }
            DataRequest::Progress { .. } | DataRequest::Waited => (DataReply::Done, None),
            DataRequest::Room(_) => {
                let free = self.state.lock().room.unwrap_or(u64::MAX);
                (DataReply::Room(Room { free, held: vec![(DatasetId(1), 5)] }), None)
            }
            DataRequest::InstallCopy { file, size, crc } => {
                let bytes = fs::read(self.root.join("copy")).unwrap();
                assert_eq!((bytes.len() as u64, crc32fast::hash(&bytes)), (*size, *crc));
                fs::rename(self.root.join("copy"), self.tree(&file.path)).unwrap();
                self.state.lock().installed.push(file.path.clone());
                (DataReply::Done, None)
            }
        })
    }
}

/// Nodes of one process, each with its loop in a thread, as `run` has it but without a lead.
pub(super) struct Nodes {
    pub(super) daemons: Vec<FakeDaemon>,
    pub(super) control: SimControl,
    starts: Vec<Sender<Order>>,
    results: Receiver<(NodeRank, JobId, JobResult)>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

enum Order {
    Start(JobId, Box<Job>),
    Stop,
}

/// Control messages of this small loop: tag, job, from, to, strip, text.
fn control(tag: u8, job: JobId, stream: Stream, text: &str) -> Vec<u8> {
    let mut bytes = vec![tag];
    bytes.extend(job.0.to_le_bytes());
    bytes.extend(stream.from.to_le_bytes());
    bytes.extend(stream.to.to_le_bytes());
    bytes.extend(stream.strip.to_le_bytes());
    bytes.extend(text.as_bytes());
    bytes
}

impl Nodes {
    pub(super) fn new(count: u32, seed: u64, block: u32, root: &Path) -> Self {
        let (ranks, sim) = world(count, seed, Duration::from_micros(200));
        let daemons: Vec<_> = (0..count).map(|n| FakeDaemon::new(&root.join(format!("node{n}")))).collect();
        let (done, results) = unbounded();
        let mut starts = Vec::new();
        let mut threads = Vec::new();
        for (transport, daemon) in ranks.into_iter().zip(daemons.clone()) {
            let (start, orders) = unbounded();
            starts.push(start);
            let done = done.clone();
            threads.push(std::thread::spawn(move || node_loop(transport, daemon, block, &orders, &done)));
        }
        Self { daemons, control: sim, starts, results, threads }
    }

    /// Starts `job` on its nodes, in an order that `skew` turns, and waits for all results.
    pub(super) fn run(&self, id: u64, job: &Job, skew: usize) -> BTreeMap<NodeRank, JobResult> {
        let mut nodes = job.nodes();
        nodes.sort_unstable();
        nodes.dedup();
        let by = skew % nodes.len();
        nodes.rotate_left(by);
        for node in &nodes {
            self.starts[node.0 as usize].send(Order::Start(JobId(id), Box::new(job.clone()))).unwrap();
        }
        let mut results = BTreeMap::new();
        while results.len() < nodes.len() {
            let (node, job, result) =
                self.results.recv_timeout(Duration::from_mins(1)).expect("a share hangs");
            assert_eq!(job, JobId(id));
            assert!(results.insert(node, result).is_none(), "node {node} reported twice");
        }
        results
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        for start in &self.starts {
            let _ = start.send(Order::Stop);
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn node_loop(
    mut transport: SimTransport,
    daemon: FakeDaemon,
    block: u32,
    orders: &Receiver<Order>,
    done: &Sender<(NodeRank, JobId, JobResult)>,
) {
    let me = transport.rank();
    let (out, outgoing) = unbounded();
    let connect = Arc::new(move || Ok(Box::new(daemon.clone()) as Box<dyn DataLink>));
    let buffers = transport.buffers().clone();
    let rules = JobRules { block_bytes: block, encode_threads: ENCODE_THREADS };
    let mut jobs = Jobs::new(me, rules, connect, Arc::new(move |o| drop(out.send(o))), buffers);
    let (mut lost, mut announced) = (false, Announced::default());
    let start = Instant::now();
    loop {
        assert!(start.elapsed() < Duration::from_mins(5), "a test that does not end");
        while let Ok(order) = orders.try_recv() {
            match order {
                Order::Start(id, job) => jobs.start(id, *job),
                Order::Stop => return,
            }
        }
        loop {
            let message = match transport.poll() {
                Ok(Some(message)) => message,
                Ok(None) => break,
                Err(error) => {
                    if !lost {
                        jobs.abort_all(&error.to_string());
                    }
                    lost = true;
                    break;
                }
            };
            if message.lane == Lane::Bulk {
                match announced.take(message.from, message.bytes) {
                    Arrival::Announced => {}
                    Arrival::Block(Address { job, stream }, block) => jobs.arrived(job, stream, block),
                    Arrival::Senseless => panic!("neither a block nor its address"),
                }
                continue;
            }
            let bytes = &message.bytes;
            let number = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
            let job = JobId(u64::from_le_bytes(bytes[1..9].try_into().unwrap()));
            let stream = Stream { from: number(9), to: number(13), strip: number(17) };
            match bytes[0] {
                0 => jobs.credited(job, stream),
                _ => jobs.abort(job, String::from_utf8_lossy(&bytes[21..]).into_owned().into()),
            }
        }
        while let Ok(out) = outgoing.recv_timeout(Duration::from_micros(50)) {
            let nowhere = Stream { from: 0, to: 0, strip: 0 };
            let sent = match out {
                Outgoing::Block { node, address, bytes } => transport
                    .send(node, Lane::Bulk, address.to_message())
                    .and_then(|()| transport.send(node, Lane::Bulk, bytes)),
                Outgoing::Credit { node, job, stream } => {
                    transport.send(node, Lane::Control, control(0, job, stream, ""))
                }
                Outgoing::Ended { job, result, peers } => {
                    jobs.ended(job);
                    if let Err(reason) = &result {
                        for peer in peers {
                            let _ = transport.send(
                                peer,
                                Lane::Control,
                                control(1, job, nowhere, reason.reason.words()),
                            );
                        }
                    }
                    let _ = done.send((me, job, result));
                    Ok(())
                }
            };
            if sent.is_err() {
                jobs.abort_all("the transport is lost");
            }
        }
    }
}

//! What nodes without programs or storage answer: yes to everything, each with as many files.

use scrfs::control::loose::LooseInventory;
use scrfs::control::{Command, Event, FrozenFile, FrozenPart, Inventory, MemberPart, Start};
use scrfs::dataset::{Entry, EntryKind, FileCopy, Stamp};
use scrfs::ids::{Epoch, Member, NodeRank};
use scrfs::path::RelPath;
use scrfs::prefix::{PfsOutcome, PfsTask};
use scrfs_coordinator::job::{Job, JobOutput};
use scrfs_coordinator::lead::Input;
use scrfs_coordinator::message::PeerMessage;
use scrfs_harness::settings;

const FILE_BYTES: u64 = 1 << 30;

pub(crate) struct Answers {
    nodes: u32,
    files: u32,
    sealed: u32,
}

impl Answers {
    pub(crate) fn new(nodes: u32, files: u32) -> Self {
        Self { nodes, files, sealed: 0 }
    }

    /// Seals that rank 0's daemon has heard of.
    pub(crate) fn sealed(&self) -> u32 {
        self.sealed
    }

    pub(crate) fn begin(&self, epoch: Epoch) -> Result<Input, String> {
        let hosts = (0..self.nodes).map(|node| format!("node{node:05}")).collect();
        let groups = scrfs_coordinator::groups::FailureGroups::default();
        let settings = settings::of_little("user", "/pfs".into()).map_err(|error| error.to_string())?;
        Ok(Input::Begin { epoch, hosts, groups, start: Start::Restart, settings: Box::new(settings) })
    }

    pub(crate) fn marker(name: &str) -> Event {
        Event::Marker { name: name.as_bytes().to_vec(), everywhere: false }
    }

    pub(crate) fn of_pfs(task: &PfsTask) -> Option<PfsOutcome> {
        match task {
            PfsTask::Survey => Some(PfsOutcome::Surveyed(Vec::new())),
            PfsTask::Halt { .. } => Some(PfsOutcome::Halt(Box::default())),
            _ => None,
        }
    }

    pub(crate) fn of_node(&mut self, node: NodeRank, message: &PeerMessage) -> Option<PeerMessage> {
        match message {
            PeerMessage::Relay(command) => self.of_daemon(node, command).map(PeerMessage::Report),
            PeerMessage::StartJob(id, job) => {
                let Job::Encode { set, .. } = &**job else { return None };
                let member = set.iter().find(|member| member.node == node)?.member;
                let part = MemberPart { member, entries: self.entries(member), taken: FILE_BYTES };
                Some(PeerMessage::JobDone(*id, Ok(JobOutput::Part(Box::new(part)))))
            }
            _ => None,
        }
    }

    fn of_daemon(&mut self, node: NodeRank, command: &Command) -> Option<Event> {
        let answer = match command {
            Command::Inventory => Event::Inventory(Box::new(inventory())),
            Command::LooseInventory => Event::LooseInventory(Box::new(loose_inventory())),
            Command::DirUnite { .. } => Event::DirUnited,
            Command::Present { .. } => Event::Presented { result: Ok(()) },
            Command::Evict(id) => Event::Evicted(*id),
            Command::AskChanges(id) => Event::Changes { id: *id, changed: true },
            Command::Freeze { id, .. } => Event::Frozen { id: *id, result: Ok(self.part(node)) },
            Command::Carry { id, .. } => Event::Carried { id: *id, result: Ok(()) },
            Command::LooseAsk { round } => Event::LooseBegun { round: *round, begun: Vec::new() },
            Command::LooseStore { round, .. } => Event::LooseStored { round: *round, errno: 0 },
            Command::Drop { id, .. } => Event::Dropped(*id),
            Command::Commit(catalog) => Event::Committed { id: catalog.id, result: Ok(()) },
            Command::Sealed(id) => {
                self.sealed += u32::from(node == NodeRank(0));
                Event::Heard(*id)
            }
            _ => return None,
        };
        Some(answer)
    }

    fn paths(&self, member: u32) -> impl Iterator<Item = RelPath> + use<> {
        let name = move |file| format!("rank.{member:05}.{file:03}.ckpt");
        (0..self.files).filter_map(move |file| RelPath::new(name(file)).ok())
    }

    fn part(&self, node: NodeRank) -> FrozenPart {
        let files = self.paths(node.0).map(|path| FrozenFile { path, size: FILE_BYTES });
        FrozenPart { files: files.collect(), ..FrozenPart::default() }
    }

    fn entries(&self, member: Member) -> Vec<Entry> {
        let copy = FileCopy { size: FILE_BYTES, crc: member.0, member, program_rank: Some(member.0) };
        let files = self.paths(member.0).map(|path| entry(path, EntryKind::File(copy.clone()), 0o644));
        std::iter::once(entry(RelPath::root(), EntryKind::Directory, 0o755)).chain(files).collect()
    }
}

fn entry(path: RelPath, kind: EntryKind, mode: u32) -> Entry {
    let stamp = Stamp { secs: 1, nsecs: 0 };
    Entry { path, kind, mode, uid: 1000, gid: 1000, atime: stamp, mtime: stamp }
}

fn inventory() -> Inventory {
    Inventory {
        epoch: Epoch(0),
        served: Epoch(0),
        highest_id: 0,
        directories: Vec::new(),
        unfinished: Vec::new(),
        datasets: Vec::new(),
        removed: Vec::new(),
        advice: None,
    }
}

fn loose_inventory() -> LooseInventory {
    LooseInventory {
        versions: Vec::new(),
        base: None,
        began: Vec::new(),
        bound: Vec::new(),
        begun: Vec::new(),
    }
}

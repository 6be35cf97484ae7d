//! What nodes without programs or storage answer: yes to everything, each with as many files.

use std::sync::Arc;

use scrfs::control::loose::LooseInventory;
use scrfs::control::{
    Command, DirOp, Event, FrozenFile, FrozenPart, HeldDataset, HeldState, Inventory, MarkerOutcome,
    MemberPart, Start, VerifiedMember,
};
use scrfs::dataset::{Catalog, Entry, EntryKind, FileCopy, Stamp};
use scrfs::ids::{Epoch, Member, NodeRank, RequestId};
use scrfs::path::RelPath;
use scrfs::prefix::{Contents, PfsOutcome, PfsTask};
use scrfs_coordinator::job::{Job, JobOutput};
use scrfs_coordinator::lead::Input;
use scrfs_coordinator::message::PeerMessage;
use scrfs_harness::settings;

const FILE_BYTES: u64 = 1 << 30;

pub(crate) struct Answers {
    nodes: u32,
    files: u32,
    sealed: u32,
    /// Directories that programs have been told of.
    made: u32,
    /// Members that were lost and are there again.
    rebuilt: u32,
    /// Operations of the round that is prepared.
    round: usize,
    /// The newest dataset, which each node has its member of.
    dataset: Option<Arc<Catalog>>,
    /// The one that is a spare, which has nothing.
    spare: Option<NodeRank>,
}

impl Answers {
    pub(crate) fn new(nodes: u32, files: u32) -> Self {
        Self { nodes, files, sealed: 0, made: 0, rebuilt: 0, round: 0, dataset: None, spare: None }
    }

    /// The next start, with one node lost and a spare in its place.
    pub(crate) fn with_a_spare(self) -> Self {
        Self { spare: Some(NodeRank(self.nodes / 2)), ..self }
    }

    pub(crate) fn nodes(&self) -> u32 {
        self.nodes
    }

    pub(crate) fn made(&self) -> u32 {
        self.made
    }

    pub(crate) fn rebuilt(&self) -> u32 {
        self.rebuilt
    }

    /// Seals that rank 0's daemon has heard of.
    pub(crate) fn sealed(&self) -> u32 {
        self.sealed
    }

    pub(crate) fn begin(&self, epoch: Epoch) -> Result<Input, String> {
        let host =
            |node| if self.spare == Some(node) { "spare".to_owned() } else { format!("node{:05}", node.0) };
        let hosts = (0..self.nodes).map(NodeRank).map(host).collect();
        let groups = scrfs_coordinator::groups::FailureGroups::default();
        let settings = settings::of_little("user", "/pfs".into()).map_err(|error| error.to_string())?;
        Ok(Input::Begin { epoch, hosts, groups, start: Start::Restart, settings: Box::new(settings) })
    }

    /// A program sets the marker of `name`, the only one that waits.
    pub(crate) fn marker(&self, name: &str) -> Event {
        let request = RequestId { origin: u64::MAX, serial: self.sealed.into() };
        Event::Marker { request, name: name.as_bytes().to_vec(), base: None, everywhere: false }
    }

    /// A program on this node makes a directory.
    pub(crate) fn make_directory(node: NodeRank, time: u32) -> Result<Event, String> {
        let path = RelPath::new(format!("d{time}.{:05}", node.0)).map_err(|error| error.to_string())?;
        let request = RequestId { origin: node.0.into(), serial: time.into() };
        Ok(Event::DirRequest { request, op: DirOp::Make { path, mode: 0o755, uid: 1000, gid: 1000 } })
    }

    pub(crate) fn of_pfs(task: &PfsTask) -> Option<PfsOutcome> {
        match task {
            PfsTask::Survey => Some(PfsOutcome::Surveyed(Contents::default())),
            PfsTask::Halt { .. } => Some(PfsOutcome::Halt(Box::default())),
            _ => None,
        }
    }

    pub(crate) fn of_node(&mut self, node: NodeRank, message: &PeerMessage) -> Option<PeerMessage> {
        match message {
            PeerMessage::Relay(command) => self.of_daemon(node, command).map(PeerMessage::Report),
            PeerMessage::StartJob(id, job) => {
                let (Job::Encode { set, .. } | Job::Rebuild { set, .. }) = &**job else { return None };
                let member = set.iter().find(|member| member.node == node)?.member;
                let gives_only = matches!(**job, Job::Rebuild { .. }) && self.spare != Some(node);
                self.rebuilt += u32::from(matches!(**job, Job::Rebuild { .. }) && !gives_only);
                let part = || MemberPart { member, entries: self.entries(member), taken: FILE_BYTES };
                let output = if gives_only { JobOutput::Done } else { JobOutput::Part(Box::new(part())) };
                Some(PeerMessage::JobDone(*id, Ok(output)))
            }
            _ => None,
        }
    }

    fn of_daemon(&mut self, node: NodeRank, command: &Command) -> Option<Event> {
        let answer = match command {
            Command::Inventory => Event::Inventory(Box::new(self.inventory(node))),
            Command::ReadCatalog(id) => Event::Catalog { id: *id, catalog: self.dataset.clone() },
            Command::RemoveUnsealed => Event::UnsealedRemoved { names: 0 },
            Command::Verify(id) => Event::Verified { id: *id, members: vec![verified(node)] },
            Command::DirPrepare { round, ops } => {
                self.round = ops.len();
                Event::DirPrepared { round: *round, votes: vec![0; ops.len()] }
            }
            Command::DirApply { round, .. } => {
                Event::DirApplied { round: *round, results: vec![0; self.round] }
            }
            Command::DirFinish { results } => {
                let own = results
                    .iter()
                    .filter(|(request, errno)| request.origin == u64::from(node.0) && *errno == 0);
                self.made += u32::try_from(own.count()).unwrap_or(u32::MAX);
                return None;
            }
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
            Command::Commit(catalog) => {
                self.dataset = Some(Arc::clone(catalog));
                Event::Committed { id: catalog.id, result: Ok(()), decided: true }
            }
            Command::Revise(revision) => {
                let before = self.dataset.as_ref()?;
                if revision.is_of(before) {
                    self.dataset = Some(Arc::new(revision.applied_to(before)?));
                }
                Event::Committed { id: revision.id, result: Ok(()), decided: true }
            }
            Command::MarkersEnd { outcome: MarkerOutcome::Sealed(_), .. } => {
                self.sealed += 1;
                return None;
            }
            _ => return None,
        };
        Some(answer)
    }

    fn inventory(&self, node: NodeRank) -> Inventory {
        let there = self.dataset.as_ref().filter(|_| self.spare != Some(node));
        let member = Member(node.0);
        let held = |catalog: &Arc<Catalog>| HeldDataset {
            id: catalog.id,
            epoch: catalog.epoch,
            revision: catalog.revision,
            name: catalog.name.clone(),
            state: HeldState::Complete,
            members: vec![member],
            encoded: vec![(member, 0)],
            paths: Vec::new(),
            flushed: false,
            listed: true,
            failed: false,
        };
        let last = there.map_or(Epoch(0), |catalog| catalog.epoch);
        Inventory {
            epoch: last,
            served: last,
            highest_id: there.map_or(0, |catalog| catalog.id.0),
            directories: Vec::new(),
            unfinished: Vec::new(),
            datasets: there.into_iter().map(held).collect(),
            removed: Vec::new(),
            advice: None,
        }
    }

    fn paths(&self, member: u32) -> impl Iterator<Item = RelPath> + use<> {
        let name = move |file| format!("rank.{member:05}.{file:03}.ckpt");
        (0..self.files).filter_map(move |file| RelPath::new(name(file)).ok())
    }

    /// All files are new, or take the places of those of the generation before.
    fn part(&self, node: NodeRank) -> FrozenPart {
        let files = self.paths(node.0).map(|path| FrozenFile { path, size: FILE_BYTES });
        FrozenPart { files: files.collect(), removed: self.paths(node.0).collect(), ..FrozenPart::default() }
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

fn verified(node: NodeRank) -> VerifiedMember {
    VerifiedMember { member: Member(node.0), files: Ok(()), redundancy: Ok(()) }
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

//! What every part of the lead shares: who takes part, the settings, the time, the known datasets,
//! and the outputs of the step that runs.

use std::collections::{BTreeSet, HashMap};

use scrfs::control::{Command, Reason, Settings, Severity};
use scrfs::dataset::{Catalog, Layout, Protection};
use scrfs::ids::{DatasetId, Epoch, Member, NodeRank};
use scrfs::prefix::PfsTask;

use super::datasets::Datasets;
use super::{Lack, Output};
use crate::groups::FailureGroups;
use crate::job::{Job, JobId};

/// Shared by the lead's machines.
#[derive(Debug)]
pub(super) struct Cluster {
    pub(super) epoch: Epoch,
    /// By rank.
    pub(super) hosts: Vec<String>,
    /// The ranks of these hosts.
    ranks: HashMap<String, NodeRank>,
    groups: FailureGroups,
    pub(super) settings: Settings,
    /// Microseconds since 1970.
    pub(super) now: u64,
    /// The highest id that anybody has seen; the next seal's is one above.
    pub(super) highest_id: u64,
    pub(super) datasets: Datasets,
    next_job: u64,
    next_round: u64,
    out: Vec<Output>,
}

impl Cluster {
    pub(super) fn new(epoch: Epoch, hosts: Vec<String>, settings: Settings, now: u64) -> Self {
        // Of two nodes of one name the lower rank counts.
        let mut ranks = HashMap::new();
        for (host, rank) in hosts.iter().zip((0..).map(NodeRank)) {
            ranks.entry(host.clone()).or_insert(rank);
        }
        Self {
            epoch,
            ranks,
            hosts,
            groups: FailureGroups::default(),
            settings,
            now,
            highest_id: 0,
            datasets: Datasets::default(),
            next_job: 1,
            next_round: 1,
            out: Vec::new(),
        }
    }

    /// Nodes are of these failure groups; what they make of the sets is said.
    pub(super) fn of_groups(mut self, groups: FailureGroups) -> Self {
        for (weaker, text) in groups.shortcomings(&self.settings, self.hosts.len()) {
            if weaker {
                self.warn(text);
            } else {
                self.note(text);
            }
        }
        self.groups = groups;
        self
    }

    /// The failure group of each node, by rank, of the kind that a dataset's protection names.
    pub(super) fn groups_of(&self, protection: &Protection) -> Vec<u32> {
        self.groups.of_kind(&protection.group, self.hosts.len())
    }

    /// All ranks.
    pub(super) fn nodes(&self) -> impl Iterator<Item = NodeRank> + use<> {
        (0..u32::try_from(self.hosts.len()).unwrap_or(u32::MAX)).map(NodeRank)
    }

    /// The nodes on which the program runs: those that were named when it was started, else all. A
    /// name that is no node's may be another word for any of them: then all count.
    pub(super) fn program_nodes(&self) -> Vec<NodeRank> {
        let named = &self.settings.sealing.program_hosts;
        let found: Vec<NodeRank> = named.iter().filter_map(|host| self.rank_of(host)).collect();
        if found.is_empty() || found.len() < named.len() { self.nodes().collect() } else { found }
    }

    pub(super) fn has(&self, node: NodeRank) -> bool {
        (node.0 as usize) < self.hosts.len()
    }

    pub(super) fn host(&self, node: NodeRank) -> &str {
        self.hosts.get(node.0 as usize).map_or("?", String::as_str)
    }

    /// The node of a host that takes part in this epoch.
    pub(super) fn rank_of(&self, host: &str) -> Option<NodeRank> {
        self.ranks.get(host).copied()
    }

    /// The coordinators end.
    pub(super) fn give_up(&mut self, lack: Lack, reason: String) {
        self.out.push(Output::GiveUp(lack, reason));
    }

    pub(super) fn send(&mut self, node: NodeRank, command: Command) {
        self.send_to(vec![node], command);
    }

    pub(super) fn send_all(&mut self, command: Command) {
        self.send_to(self.nodes().collect(), command);
    }

    /// One command for all of `nodes`, however many: it may be as long as a catalog.
    pub(super) fn send_to(&mut self, nodes: Vec<NodeRank>, command: Command) {
        self.out.push(Output::Command(nodes, command));
    }

    pub(super) fn start(&mut self, job: Job) -> JobId {
        let id = JobId(self.next_job);
        self.next_job += 1;
        self.out.push(Output::Start(id, job));
        id
    }

    /// The shares of these nodes are of no use any more.
    pub(super) fn abort(&mut self, job: JobId, nodes: Vec<NodeRank>, reason: Reason) {
        self.out.push(Output::Abort(job, nodes, reason));
    }

    /// A job of this epoch, running or over.
    pub(super) fn started(&self, job: JobId) -> bool {
        job.0 < self.next_job
    }

    pub(super) fn next_round(&mut self) -> u64 {
        let round = self.next_round;
        self.next_round += 1;
        round
    }

    pub(super) fn next_id(&mut self) -> DatasetId {
        self.highest_id += 1;
        DatasetId(self.highest_id)
    }

    pub(super) fn seen_id(&mut self, id: u64) {
        self.highest_id = self.highest_id.max(id);
    }

    pub(super) fn pfs(&mut self, task: PfsTask) {
        self.out.push(Output::Pfs(task));
    }

    pub(super) fn ready(&mut self, current: Option<(DatasetId, Vec<u8>)>) {
        self.out.push(Output::Ready(current));
    }

    /// A dataset of the program is complete.
    pub(super) fn sealed(&mut self, id: DatasetId) {
        self.out.push(Output::Sealed(id));
    }

    /// For the log of the coordinator only.
    pub(super) fn log(&mut self, text: String) {
        self.out.push(Output::Note(Severity::Info, text));
    }

    /// What was decided or done: for the log and for every node's events.
    pub(super) fn note(&mut self, text: String) {
        self.tell(Severity::Info, text);
    }

    /// The same for the events only.
    pub(super) fn tell_nodes(&mut self, text: String) {
        self.send_all(Command::Note { severity: Severity::Info, text });
    }

    /// Something was lost, is unprotected or failed: for the log and for every node's events.
    pub(super) fn warn(&mut self, text: String) {
        self.tell(Severity::Warning, text);
    }

    /// The program is to be ended.
    pub(super) fn halt(&mut self, reason: String) {
        self.note(format!("a halt is due: {reason}"));
        self.out.push(Output::Halt(reason));
    }

    fn tell(&mut self, severity: Severity, text: String) {
        self.send_all(Command::Note { severity, text: text.clone() });
        self.out.push(Output::Note(severity, text));
    }

    /// What `say` says goes before all else of this step.
    pub(super) fn at_front(&mut self, say: impl FnOnce(&mut Self)) {
        let others = std::mem::take(&mut self.out);
        say(self);
        self.out.extend(others);
    }

    pub(super) fn take_outputs(&mut self) -> Vec<Output> {
        std::mem::take(&mut self.out)
    }

    /// Where a dataset is (or would be) on the PFS.
    pub(super) fn prefix_of(&self, name: &[u8]) -> Vec<u8> {
        let mut directory = self.settings.prefix.clone();
        directory.push(b'/');
        directory.extend_from_slice(name);
        directory
    }

    /// This node is where the catalog of a dataset has a member.
    pub(super) fn holds(&self, node: NodeRank, id: DatasetId, member: Member) -> bool {
        let known = self.datasets.any(id);
        let place = known.and_then(|known| known.catalog.layout.members.get(member.0 as usize));
        place.is_some_and(|place| place.host == self.host(node))
    }

    /// The revision of a catalog whose places this epoch changes: above all that were seen, and
    /// above all that any earlier epoch can have given (a node that is away now may come back with
    /// one of those).
    pub(super) fn next_revision(&self, highest_seen: Option<u32>) -> u32 {
        let base = u32::try_from(self.epoch.0).unwrap_or(u32::MAX).min(u32::MAX >> 8) << 8;
        highest_seen.map_or(base, |seen| base.max(seen.saturating_add(1)))
    }

    /// No node has these members of a known dataset; the others give them back while programs run.
    pub(super) fn lacks(&mut self, id: DatasetId, absent: BTreeSet<Member>) {
        if !absent.is_empty() {
            self.send_all(Command::MarkAbsent { id, members: absent.iter().copied().collect() });
            self.datasets.lacks(id, absent);
        }
    }

    /// These members are on their nodes, of which they may have been absent.
    pub(super) fn restored(&mut self, id: DatasetId, members: &[Member]) {
        let Some(absent) = self.datasets.restored(id, members) else { return };
        let members: Vec<Member> = absent.iter().copied().collect();
        if members.is_empty() {
            self.note(format!("dataset {id}: all its members are on their nodes again"));
        }
        self.send_all(Command::MarkAbsent { id, members });
    }

    /// Says so when `layout` cannot stand the loss of a node.
    pub(super) fn note_unprotected(&mut self, catalog: &Catalog) {
        if let Some(why) = unprotected(&catalog.layout) {
            let name = String::from_utf8_lossy(&catalog.name).into_owned();
            self.warn(format!("dataset {} ({name}): {why}", catalog.id));
        }
    }
}

/// Why the loss of some node would lose data; `None` when none would.
fn unprotected(layout: &Layout) -> Option<String> {
    let lost: Vec<String> = scrfs::status::survives(layout, &BTreeSet::new(), false)
        .into_iter()
        .filter_map(|(host, survives)| (!survives).then_some(host))
        .collect();
    if lost.is_empty() {
        None
    } else if layout.members.len() == 1 || layout.sets.iter().all(|set| set.len() == 1) {
        Some("nothing protects it: each redundancy set has one member".to_owned())
    } else {
        Some(format!("nothing protects it against the loss of {}", lost.join(", ")))
    }
}

//! Members that no node has and that their sets cannot give back, brought from the prefix while
//! programs run: each is fetched by the node that the catalog names, then the sets are encoded. The
//! catalog says already what all that comes to, so nothing is committed; until its redundancy data
//! is there a member is absent.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use scrfs::control::{Command, FetchFailure, Reason};
use scrfs::dataset::{Entry, EntryKind};
use scrfs::ids::{DatasetId, Member, NodeRank};

use super::cluster::Cluster;
use super::datasets::Known;
use super::jobs::{Ended, Jobs, Share};
use super::rebuild::MemberFiles;
use crate::job::{About, Job};

#[derive(Debug)]
enum Step {
    /// By node: the member that is being fetched, and those that are fetched next.
    Fetching(BTreeMap<NodeRank, VecDeque<Member>>),
    /// All are there: to be encoded when no directory operation is under way.
    Fetched,
    Encoding(Jobs),
}

/// How far it is.
#[derive(Debug)]
pub(super) enum Refilled {
    Running,
    /// These members are on their nodes.
    Done(Vec<Member>),
    /// These are not.
    Failed(Vec<Member>, Reason),
}

/// The members of one dataset, on their way.
#[derive(Debug)]
pub(super) struct Refill {
    pub(super) id: DatasetId,
    name: Vec<u8>,
    members: Vec<Member>,
    step: Step,
    /// The first.
    failure: Option<Reason>,
}

impl Refill {
    /// Has `members` fetched; `None` where the node of one takes no part in this epoch.
    pub(super) fn begin(cluster: &mut Cluster, id: DatasetId, members: Vec<Member>) -> Option<Self> {
        let known = cluster.datasets.get(id)?;
        let mut by_node: BTreeMap<NodeRank, VecDeque<Member>> = BTreeMap::new();
        for &member in &members {
            let place = known.catalog.layout.members.get(member.0 as usize)?;
            by_node.entry(cluster.rank_of(&place.host)?).or_default().push_back(member);
        }
        let name = known.catalog.name.clone();
        for (&node, members) in &by_node {
            ask(cluster, id, node, members);
        }
        Some(Self { id, name, members, step: Step::Fetching(by_node), failure: None })
    }

    /// A directory operation in this dataset has to wait.
    pub(super) fn holds(&self, name: &[u8]) -> bool {
        self.name == name && matches!(self.step, Step::Encoding(_))
    }

    /// A node has fetched a member, or could not.
    pub(super) fn fetched(
        &mut self,
        cluster: &mut Cluster,
        node: NodeRank,
        result: Result<(), FetchFailure>,
    ) -> Refilled {
        let Step::Fetching(by_node) = &mut self.step else { return Refilled::Running };
        let Some(members) = by_node.get_mut(&node) else { return Refilled::Running };
        members.pop_front();
        match result {
            Ok(()) if self.failure.is_none() => ask(cluster, self.id, node, members),
            Ok(()) => members.clear(),
            Err(failure) => {
                members.clear();
                self.failure.get_or_insert(Reason::from(failure.reason).on(cluster.host(node)));
            }
        }
        by_node.retain(|_, members| !members.is_empty());
        // Also after a failure all are awaited: the next try must not meet this one's answers.
        if !by_node.is_empty() {
            return Refilled::Running;
        }
        if let Some(reason) = self.failure.take() {
            return Refilled::Failed(std::mem::take(&mut self.members), reason);
        }
        self.step = Step::Fetched;
        Refilled::Running
    }

    /// Starts to encode what is fetched, unless a directory round `touches` the dataset.
    pub(super) fn encode(&mut self, cluster: &mut Cluster, touches: impl Fn(&[u8]) -> bool) {
        if !matches!(self.step, Step::Fetched) || touches(&self.name) {
            return;
        }
        let Some(known) = cluster.datasets.get(self.id) else { return };
        let mut jobs = Jobs::default();
        for job in encodings(cluster, known, &self.members) {
            jobs.start(cluster, job);
        }
        self.step = Step::Encoding(jobs);
    }

    /// A share ended; `None` when it is no share of these jobs.
    pub(super) fn job(&mut self, cluster: &Cluster, share: Share) -> Option<Refilled> {
        let Step::Encoding(jobs) = &mut self.step else { return None };
        Some(match jobs.ended(cluster, share)? {
            Ended::Running | Ended::Failing(_) => Refilled::Running,
            Ended::Done(_) => Refilled::Done(std::mem::take(&mut self.members)),
            Ended::Failed(reason) => Refilled::Failed(std::mem::take(&mut self.members), reason),
        })
    }
}

/// Asks a node for the first of `members`.
fn ask(cluster: &mut Cluster, id: DatasetId, node: NodeRank, members: &VecDeque<Member>) {
    let (Some(known), Some(&member)) = (cluster.datasets.get(id), members.front()) else { return };
    let catalog = &known.catalog;
    let is_its = |entry: &&Entry| match &entry.kind {
        EntryKind::File(copy) => copy.member == member,
        EntryKind::Directory | EntryKind::Symlink(_) => true,
    };
    let command = Command::FetchMember {
        id,
        epoch: catalog.epoch,
        name: catalog.name.clone(),
        member,
        directory: cluster.prefix_of(&catalog.name),
        entries: catalog.entries.iter().filter(is_its).cloned().collect(),
    };
    cluster.send(node, command);
}

/// The sets that `members` are in.
fn encodings(cluster: &Cluster, known: &Known, members: &[Member]) -> Vec<Job> {
    let (catalog, layout) = (&known.catalog, &known.catalog.layout);
    let (about, files) = (About::of(catalog), MemberFiles::of_all(catalog));
    let wanted: BTreeSet<Member> = members.iter().copied().collect();
    let node = |member: &Member| {
        let place = layout.members.get(member.0 as usize);
        place.and_then(|place| cluster.rank_of(&place.host)).unwrap_or(NodeRank(0))
    };
    let touched = layout.sets.iter().filter(|set| set.iter().any(|member| wanted.contains(member)));
    let job = |set: &Vec<Member>| Job::Encode {
        id: catalog.id,
        scheme: layout.scheme(),
        about: about.clone(),
        paths: set.iter().map(|member| files.paths(*member)).collect(),
        set: set.iter().map(|member| files.on(*member, node(member))).collect(),
        members: u32::try_from(layout.members.len()).unwrap_or(u32::MAX),
        encoding: layout.encoding,
        fresh: None,
    };
    touched.map(job).collect()
}

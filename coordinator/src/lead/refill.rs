//! Members that no node has and that their sets cannot give back, brought from the prefix while
//! programs run: each is fetched by the node that the catalog names, then the sets are encoded. The
//! catalog already has places, sizes, CRCs and sets, so nothing is committed; until its redundancy
//! data is there a member is absent.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use scrfs::control::{Command, FetchFailure, Reason};
use scrfs::dataset::{Entry, EntryKind};
use scrfs::ids::{DatasetId, Member, NodeRank};

use super::cluster::Cluster;
use super::datasets::Known;
use super::jobs::{Ended, Jobs, ShareEnd};
use super::rebuild::MemberFiles;
use crate::job::{About, Job, JobId};

#[derive(Debug)]
enum Step {
    /// By node: what it was asked for, and what it is asked for next.
    Fetching(BTreeMap<NodeRank, VecDeque<Command>>),
    /// All are there: to be encoded when no directory operation is under way.
    Fetched,
    Encoding(Encoding),
}

#[derive(Debug, Default)]
struct Encoding {
    jobs: Jobs,
    /// By job: its set.
    sets: BTreeMap<JobId, Vec<Member>>,
    /// Members whose bytes on their nodes are not what was sealed.
    bad: BTreeSet<Member>,
    /// A program had begun to change a file while a share read it.
    moved: bool,
}

/// How far it is.
#[derive(Debug)]
pub(super) enum Refilled {
    Running,
    /// These members are on their nodes.
    Done(Vec<Member>),
    Failed {
        /// These are not.
        members: Vec<Member>,
        /// With the host.
        reason: Reason,
        cause: Cause,
        /// Members of these sets whose bytes turned out not to be what was sealed.
        bad: BTreeSet<Member>,
    },
}

/// Why it failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cause {
    /// What may pass.
    Passing,
    /// What the prefix has is not what it records.
    Corrupt,
    /// The sets could not be encoded: bytes of another member may be bad.
    Encoding,
}

/// The members of one dataset, on their way.
#[derive(Debug)]
pub(super) struct Refill {
    pub(super) id: DatasetId,
    name: Vec<u8>,
    members: Vec<Member>,
    step: Step,
    /// The first failure of a node, and whether the prefix was at fault in any.
    failure: Option<(Reason, Cause)>,
}

impl Refill {
    /// Has `members` fetched; `None` where the node of one takes no part in this epoch.
    pub(super) fn begin(cluster: &mut Cluster, id: DatasetId, members: Vec<Member>) -> Option<Self> {
        let known = cluster.datasets.get(id)?;
        let name = known.catalog.name.clone();
        let mut asks = fetches(cluster, known, &members)?;
        for (&node, asks) in &mut asks {
            ask(cluster, node, asks);
        }
        Some(Self { id, name, members, step: Step::Fetching(asks), failure: None })
    }

    /// Members of this set are fetched, or encoded after that.
    pub(super) fn works_on(&self, set: &[Member]) -> bool {
        self.members.iter().any(|member| set.contains(member))
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
        let Step::Fetching(asks) = &mut self.step else { return Refilled::Running };
        let Some(next) = asks.get_mut(&node) else { return Refilled::Running };
        if let Err(failure) = result {
            let reason = Reason::from(failure.reason).on(cluster.host(node));
            let first = self.failure.get_or_insert((reason, Cause::Passing));
            if failure.corrupt {
                first.1 = Cause::Corrupt;
            }
        }
        if self.failure.is_some() || next.is_empty() {
            asks.remove(&node);
        } else {
            ask(cluster, node, next);
        }
        // Also after a failure all are awaited: the next try must not meet this one's answers.
        if !asks.is_empty() {
            return Refilled::Running;
        }
        self.step = Step::Fetched;
        match self.failure.take() {
            Some((reason, cause)) => {
                let (members, bad) = (std::mem::take(&mut self.members), BTreeSet::new());
                Refilled::Failed { members, reason, cause, bad }
            }
            None => Refilled::Running,
        }
    }

    /// Starts to encode what is fetched, unless a directory round `touches` the dataset.
    pub(super) fn encode(&mut self, cluster: &mut Cluster, touches: impl Fn(&[u8]) -> bool) {
        if !matches!(self.step, Step::Fetched) || touches(&self.name) {
            return;
        }
        let Some(known) = cluster.datasets.any(self.id) else { return };
        let mut encoding = Encoding::default();
        for (set, job) in encodings(cluster, known, &self.members) {
            encoding.sets.insert(encoding.jobs.start(cluster, job), set);
        }
        self.step = Step::Encoding(encoding);
    }

    /// A share ended; `None` when it is no share of these jobs.
    pub(super) fn job(&mut self, cluster: &Cluster, share: ShareEnd) -> Option<Refilled> {
        let Step::Encoding(Encoding { jobs, sets, bad, moved }) = &mut self.step else { return None };
        if let (Err(failure), Some(set)) = (&share.result, sets.get(&share.job)) {
            bad.extend(failure.bad.iter().filter_map(|at| set.get(*at as usize)));
            *moved |= failure.moved;
        }
        Some(match jobs.ended(cluster, share)? {
            Ended::Running | Ended::Failing(_) => Refilled::Running,
            Ended::Done(_) => Refilled::Done(std::mem::take(&mut self.members)),
            Ended::Failed(reason) => {
                // What a program changes says nothing of what the prefix has.
                let cause = if *moved { Cause::Passing } else { Cause::Encoding };
                let (members, bad) = (std::mem::take(&mut self.members), std::mem::take(bad));
                Refilled::Failed { members, reason, cause, bad }
            }
        })
    }
}

/// Asks a node for the next of its members.
fn ask(cluster: &mut Cluster, node: NodeRank, asks: &mut VecDeque<Command>) {
    if let Some(command) = asks.pop_front() {
        cluster.send(node, command);
    }
}

/// What the nodes of `members` are asked for; `None` where one takes no part in this epoch.
fn fetches(
    cluster: &Cluster,
    known: &Known,
    members: &[Member],
) -> Option<BTreeMap<NodeRank, VecDeque<Command>>> {
    let catalog = &known.catalog;
    let mut files: BTreeMap<Member, Vec<Entry>> = BTreeMap::new();
    let mut shared = Vec::new();
    for entry in &catalog.entries {
        match &entry.kind {
            EntryKind::File(copy) => files.entry(copy.member).or_default().push(entry.clone()),
            EntryKind::Directory | EntryKind::Symlink(_) => shared.push(entry.clone()),
        }
    }
    let mut asks: BTreeMap<NodeRank, VecDeque<Command>> = BTreeMap::new();
    for &member in members {
        let mut entries = shared.clone();
        entries.extend(files.remove(&member).unwrap_or_default());
        let place = catalog.layout.members.get(member.0 as usize)?;
        let command = Command::FetchMember {
            id: catalog.id,
            epoch: catalog.epoch,
            name: catalog.name.clone(),
            member,
            directory: cluster.prefix_of(&catalog.name),
            entries,
        };
        asks.entry(cluster.rank_of(&place.host)?).or_default().push_back(command);
    }
    Some(asks)
}

/// The sets that `members` are in, each with the job that encodes it.
fn encodings(cluster: &Cluster, known: &Known, members: &[Member]) -> Vec<(Vec<Member>, Job)> {
    let (catalog, layout) = (&known.catalog, &known.catalog.layout);
    let (about, files) = (About::of(catalog), MemberFiles::of_all(catalog));
    let wanted: BTreeSet<Member> = members.iter().copied().collect();
    let node = |member: &Member| {
        let place = layout.members.get(member.0 as usize);
        place.and_then(|place| cluster.rank_of(&place.host)).unwrap_or(NodeRank(0))
    };
    let touched = layout.sets.iter().filter(|set| set.iter().any(|member| wanted.contains(member)));
    let job = |set: &Vec<Member>| {
        let job = Job::Encode {
            id: catalog.id,
            scheme: layout.scheme(),
            about: about.clone(),
            paths: set.iter().map(|member| files.paths(*member)).collect(),
            set: set.iter().map(|member| files.on(*member, node(member))).collect(),
            members: u32::try_from(layout.members.len()).unwrap_or(u32::MAX),
            encoding: layout.encoding,
            fresh: None,
        };
        (set.clone(), job)
    };
    touched.map(job).collect()
}

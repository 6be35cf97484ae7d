//! Bad members, and those that no node has ([`super::restore`]), rebuilt while programs run: from
//! the other members of the set, on the node that the catalog names (`scrfs/docs/protocol.md`,
//! Fetch). No place changes, so nothing is committed: until the new files are whole and verified
//! the daemon keeps what it has, and what it has recorded of the member is true all the time.
//!
//! One rebuild per member, whoever waits for it; absent members of a set are rebuilt together
//! (with PARTNER, neighbours). Its dataset is not removed and not evicted meanwhile. Others of its
//! set that turn out to be bad meanwhile are rebuilt with it, where the scheme survives that.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use scrfs::control::NoRoom;
use scrfs::dataset::{Catalog, Layout, Scheme};
use scrfs::ids::{DatasetId, Member, NodeRank};

use super::answers::Answers;
use super::cluster::Cluster;
use super::datasets::Known;
use super::jobs::ShareEnd;
use super::rebuild::MemberFiles;
use crate::job::{Job, JobId, JobOutput, JobResult, SetMember};

/// Times that a job is tried again because programs had begun to change what it read.
pub(super) const MOVES_MAX: u32 = 4;

/// Why a source did not give what was asked of it.
#[derive(Debug, Clone)]
pub(super) struct Missed {
    pub(super) reason: String,
    /// Its bytes are gone or wrong; false for what may pass.
    pub(super) bad: bool,
    /// A program has begun to change what was read: the next try finds the sealed bytes.
    pub(super) moved: bool,
    /// The cache that it was for has no room: whose, and what was needed.
    pub(super) full: Option<(NodeRank, NoRoom)>,
}

impl Missed {
    pub(super) fn passing(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), bad: false, moved: false, full: None }
    }

    pub(super) fn bad(reason: impl Into<String>) -> Self {
        Self { bad: true, ..Self::passing(reason) }
    }

    /// Of the shares of a job that failed: the one that found bad data, else the one that had no
    /// room, else the one whose file a program has begun to change, else the first.
    pub(super) fn of(cluster: &Cluster, answers: &Answers<JobResult>) -> Self {
        let failures = || answers.iter().filter_map(|(node, result)| Some((node, result.as_ref().err()?)));
        let bad = failures().find(|(_, failure)| failure.is_bad());
        let full = || failures().find(|(_, failure)| failure.full.is_some());
        let moved = || failures().find(|(_, failure)| failure.moved);
        match bad.or_else(full).or_else(moved).or_else(|| failures().next()) {
            Some((node, failure)) => {
                let reason = format!("{}: {failure}", cluster.host(node));
                let full = failure.full.clone().map(|full| (node, full));
                Self { reason, bad: failure.is_bad(), moved: failure.moved, full }
            }
            None => Self::passing("a share ended without its result"),
        }
    }
}

#[derive(Debug)]
struct Running {
    job: JobId,
    /// The dataset's.
    name: Vec<u8>,
    /// Who takes part, in ring order.
    set: Vec<SetMember>,
    /// Positions in `set` of those that are rebuilt, ascending.
    lost: Vec<u32>,
    /// What is rebuilt after that, which needs these to be good (PARTNER).
    then: Option<Vec<u32>>,
    /// Nothing more is tried after it.
    last: bool,
    /// No node has had it yet.
    absent: bool,
    /// Times that it was started again because programs had begun to change what was read.
    moves: u32,
    answers: Answers<JobResult>,
}

impl Running {
    /// Starts the rebuild of these members of a dataset's set.
    fn start(cluster: &mut Cluster, catalog: Arc<Catalog>, set: Vec<SetMember>, lost: Vec<u32>) -> Self {
        let name = catalog.name.clone();
        let job = Job::Rebuild { catalog, set: set.clone(), lost: lost.clone() };
        let answers = Answers::of(job.nodes());
        let (then, last, absent, moves) = (None, false, false, 0);
        Self { job: cluster.start(job), name, set, lost, then, last, absent, moves, answers }
    }

    /// The members that are rebuilt, and where.
    fn targets(&self) -> impl Iterator<Item = &SetMember> {
        self.lost.iter().filter_map(|at| self.set.get(*at as usize))
    }

    /// The set, in ring order.
    fn members(&self) -> Vec<Member> {
        self.set.iter().map(|member| member.member).collect()
    }

    /// The node has checked and placed the files; whatever a survivor says after that does not
    /// matter.
    fn is_placed(&self, node: NodeRank) -> bool {
        self.answers.iter().any(|(from, result)| from == node && matches!(result, Ok(JobOutput::Part(_))))
    }

    /// Others that were bad, if they can be rebuilt by themselves and what is rebuilt now could not
    /// together with them: with PARTNER each needs the other's good side only.
    fn before(&self, layout: &Layout) -> Option<Vec<u32>> {
        let failures = self.answers.iter().filter_map(|(_, result)| result.as_ref().err());
        let bad: BTreeSet<u32> = failures.flat_map(|failure| failure.bad.iter().copied()).collect();
        let positions: Vec<usize> = bad.iter().map(|at| *at as usize).collect();
        let may_help = layout.scheme() == Scheme::Partner
            && !self.last
            && !bad.is_empty()
            && !self.lost.iter().any(|at| bad.contains(at))
            && layout.survives(&self.members(), &positions);
        may_help.then(|| bad.into_iter().collect())
    }

    /// A program has begun to change files while a survivor read them, which goes no further: each
    /// file leaves its place once. So it is tried again, within reason.
    fn is_moved(&self) -> bool {
        let failures = self.answers.iter().filter_map(|(_, result)| result.as_ref().err());
        self.moves < MOVES_MAX && failures.into_iter().any(|failure| failure.moved)
    }

    /// The positions to rebuild when those that were bad are counted as lost, too; `None` where
    /// there are no such, or too many.
    fn with_bad(&self, layout: &Layout) -> Option<Vec<u32>> {
        let failures = self.answers.iter().filter_map(|(_, result)| result.as_ref().err());
        let bad: BTreeSet<u32> = failures.flat_map(|failure| failure.bad.iter().copied()).collect();
        let is_lost = |at: &u32| self.lost.contains(at) || bad.contains(at);
        let lost: Vec<u32> = (0..).take(self.set.len()).filter(is_lost).collect();
        let positions: Vec<usize> = lost.iter().map(|at| *at as usize).collect();
        (lost.len() > self.lost.len() && layout.survives(&self.members(), &positions)).then_some(lost)
    }
}

/// How far a rebuild is.
#[derive(Debug)]
pub(super) enum Mending {
    Running,
    /// The member that was wanted, and others that were rebuilt with it.
    Ended(Vec<Mended>),
}

/// A rebuild that ended.
#[derive(Debug)]
pub(super) struct Mended {
    pub(super) id: DatasetId,
    pub(super) member: Member,
    pub(super) result: Result<(), Missed>,
}

/// The rebuilds that run.
#[derive(Debug, Default)]
pub(super) struct Mends {
    running: BTreeMap<(DatasetId, Member), Running>,
    /// How often a member was rebuilt in this epoch.
    rebuilt: BTreeMap<(DatasetId, Member), u32>,
    /// What the rest of its set cannot give back, and why: not tried again in this epoch.
    lost: BTreeMap<(DatasetId, Member), String>,
}

impl Mends {
    /// Starts the rebuild of a member unless it runs.
    pub(super) fn begin(
        &mut self,
        cluster: &mut Cluster,
        id: DatasetId,
        member: Member,
    ) -> Result<(), Missed> {
        if self.running.contains_key(&(id, member)) {
            return Ok(());
        }
        if let Some(reason) = self.lost.get(&(id, member)) {
            return Err(Missed::bad(reason.clone()));
        }
        let Some(known) = cluster.datasets.any(id) else {
            return Err(Missed::passing("its dataset is not there any more"));
        };
        let (set, lost) = plan(cluster, known, member)?;
        let (catalog, absent) = (Arc::clone(&known.catalog), known.absent.contains(&member));
        let running = Running { absent, ..Running::start(cluster, catalog, set, lost) };
        let state = if absent { "on no node" } else { "bad" };
        cluster.log(format!("member {member} of dataset {id} is {state} and is being rebuilt from its set"));
        self.running.insert((id, member), running);
        Ok(())
    }

    /// A share ended: `None` when it is no share of these jobs.
    pub(super) fn job(&mut self, cluster: &mut Cluster, share: ShareEnd) -> Option<Mending> {
        let ShareEnd { node, job, result } = share;
        let (&key, running) = self.running.iter_mut().find(|(_, running)| running.job == job)?;
        if !running.answers.put(node, result) {
            return None;
        }
        if !running.answers.all() {
            return Some(Mending::Running);
        }
        let mut running = self.running.remove(&key)?;
        let (id, member) = key;
        if let Some(lost) = running.then.take() {
            // Whether it succeeded or not: the next try tells.
            self.count_placed(cluster, id, &running);
            let Some(known) = cluster.datasets.any(id) else {
                let result = Err(Missed::passing("its dataset is not there any more"));
                return Some(Mending::Ended(vec![Mended { id, member, result }]));
            };
            let catalog = Arc::clone(&known.catalog);
            let absent = running.absent;
            let again = Running { last: true, absent, ..Running::start(cluster, catalog, running.set, lost) };
            self.running.insert(key, again);
            return Some(Mending::Running);
        }
        let target = running.targets().find(|target| target.member == member)?.node;
        if !running.is_placed(target)
            && let Some(known) = cluster.datasets.any(id)
            && let Some(lost) = running.with_bad(&known.catalog.layout)
        {
            let catalog = Arc::clone(&known.catalog);
            let absent = running.absent;
            let running = Running { absent, ..Running::start(cluster, catalog, running.set, lost) };
            let members: Vec<String> = running.targets().map(|target| target.member.to_string()).collect();
            let members = members.join(", ");
            cluster.log(format!("members {members} of dataset {id} are bad and are being rebuilt together"));
            self.running.insert(key, running);
            return Some(Mending::Running);
        }
        if !running.is_placed(target)
            && let Some(known) = cluster.datasets.any(id)
            && let Some(before) = running.before(&known.catalog.layout)
        {
            let (catalog, then) = (Arc::clone(&known.catalog), Some(running.lost));
            let absent = running.absent;
            let running = Running { then, absent, ..Running::start(cluster, catalog, running.set, before) };
            self.running.insert(key, running);
            return Some(Mending::Running);
        }
        if !running.is_placed(target)
            && running.is_moved()
            && let Some(known) = cluster.datasets.any(id)
        {
            let (catalog, absent, moves) = (Arc::clone(&known.catalog), running.absent, running.moves + 1);
            let again = Running::start(cluster, catalog, running.set, running.lost);
            self.running.insert(key, Running { absent, moves, ..again });
            return Some(Mending::Running);
        }
        let mut ended = self.count_placed(cluster, id, &running);
        ended.retain(|placed| placed.member != member);
        let result =
            if running.is_placed(target) { Ok(()) } else { Err(Missed::of(cluster, &running.answers)) };
        let host = cluster.host(target).to_owned();
        match &result {
            Ok(()) if running.absent => {
                cluster.note(format!("member {member} of dataset {id} is rebuilt on {host} from its set"));
            }
            Ok(()) => cluster.warn(format!(
                "member {member} of dataset {id} was bad on {host} and is rebuilt from its set"
            )),
            Err(missed) => {
                let text = &missed.reason;
                let state = if running.absent { "on no node" } else { "bad" };
                cluster.warn(format!(
                    "member {member} of dataset {id} is {state} and cannot be rebuilt on {host}: {text}"
                ));
                if missed.bad {
                    self.lost.insert(key, text.clone());
                }
            }
        }
        ended.push(Mended { id, member, result });
        Some(Mending::Ended(ended))
    }

    /// The members that a rebuild has put on their nodes.
    fn count_placed(&mut self, cluster: &mut Cluster, id: DatasetId, running: &Running) -> Vec<Mended> {
        let placed = running.targets().filter(|target| running.is_placed(target.node));
        let placed: Vec<Member> = placed.map(|target| target.member).collect();
        for &member in &placed {
            *self.rebuilt.entry((id, member)).or_default() += 1;
            // What could not be given back without it may be now.
            self.lost.retain(|(of, _), _| *of != id);
        }
        cluster.restored(id, &placed);
        placed.into_iter().map(|member| Mended { id, member, result: Ok(()) }).collect()
    }

    /// How often this member was rebuilt.
    pub(super) fn rebuilds(&self, id: DatasetId, member: Member) -> u32 {
        self.rebuilt.get(&(id, member)).copied().unwrap_or(0)
    }

    /// A rebuild of this dataset runs.
    pub(super) fn busy(&self, id: DatasetId) -> bool {
        self.running.keys().any(|(running, _)| *running == id)
    }

    /// A rebuild of this member's set runs.
    pub(super) fn works_on(&self, id: DatasetId, member: Member) -> bool {
        let running = self.running.iter().filter(|((running, _), _)| *running == id);
        running.flat_map(|(_, running)| &running.set).any(|of_set| of_set.member == member)
    }

    /// A rebuild of another member of its set runs.
    pub(super) fn rebuilds_other(&self, id: DatasetId, member: Member) -> bool {
        let running = self.running.iter().filter(|((running, other), _)| *running == id && *other != member);
        running.flat_map(|(_, running)| &running.set).any(|of_set| of_set.member == member)
    }

    /// A rebuild of the dataset of this name runs.
    pub(super) fn busy_name(&self, name: &[u8]) -> bool {
        self.running.values().any(|running| running.name == name)
    }
}

/// Who takes part in the rebuild of `member` on its own node, in ring order, and the positions in
/// that of those that are rebuilt.
fn plan(cluster: &Cluster, known: &Known, member: Member) -> Result<(Vec<SetMember>, Vec<u32>), Missed> {
    let (catalog, layout) = (&known.catalog, &known.catalog.layout);
    let Some(set) = layout.sets.iter().find(|set| set.contains(&member)) else {
        return Err(Missed::bad("it is in no set"));
    };
    let at = set.iter().position(|of_set| *of_set == member).unwrap_or(0);
    let lost = known.rebuilt_with(set, at);
    if !layout.survives(set, &lost) {
        return Err(Missed::bad("its set cannot give a member back"));
    }
    let files = MemberFiles::of_all(catalog);
    let lost = lost.into_iter().filter_map(|at| u32::try_from(at).ok()).collect();
    let mut nodes = Vec::with_capacity(set.len());
    for member in set {
        let host = layout.members.get(member.0 as usize).map_or("?", |place| place.host.as_str());
        let Some(node) = cluster.rank_of(host) else {
            return Err(Missed::passing(format!("{host} takes no part in this epoch")));
        };
        nodes.push(files.on(*member, node));
    }
    Ok((nodes, lost))
}

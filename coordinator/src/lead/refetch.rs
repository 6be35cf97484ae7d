//! Restart: one candidate from the prefix. Its files are dealt to the current nodes, fetched,
//! encoded and committed.
//!
//! Nodes that still hold an unrecoverable version of it drop that first.

use std::collections::{BTreeMap, BTreeSet};

use scrfs::control::{Command, FetchFailure, FrozenFile, Reason};
use scrfs::dataset::{Catalog, Entry, EntryKind, Layout, Protection};
use scrfs::ids::{DatasetId, Member, NodeRank};
use scrfs::path::RelPath;
use scrfs::prefix::{PfsCause, PfsFailure, PfsTask, StoredDataset};
use scrfs::redundancy::sets::lay_out;

use super::answers::Answers;
use super::catalog::{Making, check, places, within};
use super::cluster::Cluster;
use super::committing::{Committed, Committing};
use super::encoding::{Encoded, Encoding};
use super::held::Held;
use super::jobs::ShareEnd;
use super::policy::MS;
use super::rebuild::{RECORD_LIMIT, Recovered};
use crate::job::About;

/// A PFS that hangs must not keep what caches have from being presented.
const READ_LIMIT: u64 = 60_000 * MS;
/// It is tried again so many times after what may pass: an error of the PFS, or on a node.
const TRIES_AGAIN: u32 = 2;
/// And after so long, microseconds.
const PAUSE: u64 = 3_000 * MS;

#[derive(Debug)]
enum Step {
    /// Not waited for after this time.
    Reading(u64),
    Evicting(Answers<()>),
    Fetching(Answers<Result<Vec<FrozenFile>, FetchFailure>>),
    Encoding(Box<Encoding>),
    Committing(Committing),
    /// It failed: what was fetched goes.
    Dropping(Answers<()>, Reason, Cause),
    /// It is begun again at this time.
    Waiting(u64),
}

/// Why it failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cause {
    /// What the prefix has is not what it records.
    Corrupt,
    NoRoom,
    Other,
}

impl Cause {
    /// Of what nodes say of themselves.
    fn of(reason: &Reason) -> Self {
        if reason.is_shortage_of_room() { Self::NoRoom } else { Self::Other }
    }
}

/// One candidate on its way.
#[derive(Debug)]
pub(super) struct Refetch {
    stored: StoredDataset,
    /// Nodes that may have something under its id.
    holders: BTreeSet<NodeRank>,
    /// The highest revision that they have.
    revision: Option<u32>,
    /// As the prefix has it, dealt to the current nodes.
    source: Option<Catalog>,
    /// Members that are fetched behind the programs.
    absent: BTreeSet<Member>,
    /// The times that it failed for what may pass.
    failures: u32,
    /// What the prefix has of it is bad.
    bad: bool,
    step: Step,
}

impl Refetch {
    /// `held`: what caches have under its id.
    pub(super) fn begin(cluster: &mut Cluster, stored: StoredDataset, held: &[Held]) -> Self {
        cluster.pfs(PfsTask::ReadCatalog(stored.clone()));
        // A rebuild that failed has left members on nodes that had none before.
        let holders = cluster.nodes().filter(|_| !held.is_empty()).collect();
        let revision = held.iter().map(Held::highest_revision).max();
        let (source, absent, step) = (None, BTreeSet::new(), Step::Reading(cluster.now + READ_LIMIT));
        Self { stored, holders, revision, source, absent, failures: 0, bad: false, step }
    }

    /// Members that no node has, and that are fetched while programs run.
    pub(super) fn into_absent(self) -> BTreeSet<Member> {
        self.absent
    }

    fn id(&self) -> DatasetId {
        self.stored.id
    }

    /// The prefix's catalog; `None` when it is not awaited.
    pub(super) fn catalog(&mut self, cluster: &mut Cluster, mut catalog: Catalog) -> Option<Recovered> {
        if !matches!(self.step, Step::Reading(_)) {
            return None;
        }
        if let Err(reason) = check(&catalog, self.id(), false) {
            return Some(Recovered::Failed(reason));
        }
        if let Err(reason) =
            within(catalog.entries.iter().map(|entry| &entry.kind), cluster.settings.list_max)
        {
            return Some(Recovered::Failed(reason));
        }
        deal(&mut catalog, cluster.hosts.len());
        self.source = Some(catalog);
        if self.holders.is_empty() {
            self.fetch(cluster);
        } else {
            for &node in &self.holders {
                cluster.send(node, Command::Evict(self.id()));
            }
            self.step = Step::Evicting(Answers::of(self.holders.iter().copied()));
        }
        Some(Recovered::Running)
    }

    /// The prefix cannot give its catalog.
    pub(super) fn unreadable(&mut self, cluster: &mut Cluster, failure: &PfsFailure) -> Option<Recovered> {
        if !matches!(self.step, Step::Reading(_)) {
            return None;
        }
        self.bad |= failure.cause == PfsCause::Damaged;
        Some(self.failed(cluster, failure.reason.clone()))
    }

    /// What the prefix has of it is bad, as far as that was seen: no later try gives it.
    pub(super) fn is_bad(&self) -> bool {
        self.bad
    }

    /// It failed, and no node has any of it: it is tried again where that may help.
    fn failed(&mut self, cluster: &mut Cluster, reason: Reason) -> Recovered {
        if self.bad || self.failures == TRIES_AGAIN {
            return Recovered::Failed(reason);
        }
        self.failures += 1;
        self.step = Step::Waiting(cluster.now + PAUSE);
        cluster.warn(format!("dataset {}: its fetch failed, and is tried again: {reason}", self.id()));
        Recovered::Running
    }

    /// What caches have under its id goes, or has gone.
    pub(super) fn evicts(&self) -> bool {
        !self.holders.is_empty() && !matches!(self.step, Step::Reading(_) | Step::Waiting(_))
    }

    /// This is the dataset that is fetched.
    pub(super) fn is_of(&self, stored: &StoredDataset) -> bool {
        (self.stored.epoch, self.stored.id) == (stored.epoch, stored.id)
    }

    /// A node has dropped its old version; `None` when that is not awaited.
    pub(super) fn evicted(&mut self, cluster: &mut Cluster, node: NodeRank) -> Option<Recovered> {
        let Step::Evicting(answers) = &mut self.step else { return None };
        if answers.answered(node, ())? {
            self.fetch(cluster);
        }
        Some(Recovered::Running)
    }

    /// A lazy restart lists what the prefix records; its bytes come when programs run.
    fn list(&mut self, cluster: &mut Cluster) {
        let Some(mut catalog) = self.source.take() else { return };
        let protection = cluster.settings.protections.of(catalog.id.0).clone();
        let Protection { set_size, hop_distance, .. } = protection;
        let sets = lay_out(&cluster.groups_of(&protection), set_size as usize, hop_distance as usize);
        let mut members = places(&cluster.hosts);
        for entry in &catalog.entries {
            if let EntryKind::File(copy) = &entry.kind {
                let place = &mut members[copy.member.0 as usize];
                (place.files, place.bytes) = (place.files + 1, place.bytes.saturating_add(copy.size));
            }
        }
        self.absent = (0..).map(Member).take(members.len()).collect();
        catalog.layout = Layout { protection, members, sets, encoding: 0 };
        catalog.epoch = self.stored.epoch;
        catalog.revision = cluster.next_revision(self.revision);
        let nodes = cluster.nodes();
        self.step = Step::Committing(Committing::start(cluster, catalog.into(), nodes, false));
    }

    fn fetch(&mut self, cluster: &mut Cluster) {
        if cluster.settings.restart.lazy_fetch {
            return self.list(cluster);
        }
        let Some(source) = &self.source else { return };
        let (mut shared, mut files) = (Vec::new(), BTreeMap::<Member, Vec<Entry>>::new());
        for entry in &source.entries {
            match &entry.kind {
                EntryKind::File(copy) => files.entry(copy.member).or_default().push(entry.clone()),
                EntryKind::Directory | EntryKind::Symlink(_) => shared.push(entry.clone()),
            }
        }
        for node in cluster.nodes() {
            let member = Member(node.0);
            let mut entries = shared.clone();
            entries.extend(files.remove(&member).unwrap_or_default());
            let command = Command::FetchMember {
                id: source.id,
                epoch: self.stored.epoch,
                name: source.name.clone(),
                member,
                directory: self.stored.directory.clone(),
                entries,
            };
            cluster.send(node, command);
        }
        self.step = Step::Fetching(Answers::of(cluster.nodes()));
    }

    /// A node has fetched its files, or could not; `None` when that is not awaited.
    pub(super) fn fetched(
        &mut self,
        cluster: &mut Cluster,
        node: NodeRank,
        result: Result<Vec<FrozenFile>, FetchFailure>,
    ) -> Option<Recovered> {
        let Step::Fetching(answers) = &mut self.step else { return None };
        if !answers.answered(node, result)? {
            return Some(Recovered::Running);
        }
        let mut frozen = Vec::new();
        let mut failure: Option<Reason> = None;
        let mut cause = Cause::Other;
        let answers = std::mem::replace(answers, Answers::of([]));
        for (node, result) in answers.into_answers() {
            match result {
                Ok(files) => frozen.push(files),
                Err(why) => {
                    match cause {
                        _ if why.corrupt => cause = Cause::Corrupt,
                        Cause::Other if why.full.is_some() => cause = Cause::NoRoom,
                        _ => {}
                    }
                    failure.get_or_insert(Reason::from(why.reason).on(cluster.host(node)));
                }
            }
        }
        if let Some(reason) = failure {
            return Some(self.fail(cluster, reason, cause));
        }
        let Some(source) = &self.source else { return None };
        let about = About {
            name: source.name.clone(),
            created_us: source.created_us,
            user: source.user.clone(),
            job_id: source.job_id.clone(),
            files: 0,
            bytes: 0,
        };
        let revision = cluster.next_revision(self.revision);
        let making = Making { id: source.id, epoch: self.stored.epoch, revision, about };
        self.step = Step::Encoding(Box::new(Encoding::start(cluster, making, frozen)));
        Some(Recovered::Running)
    }

    /// A share ended; `None` when it is no share of these jobs.
    pub(super) fn job(&mut self, cluster: &mut Cluster, share: ShareEnd) -> Option<Recovered> {
        let Step::Encoding(encoding) = &mut self.step else { return None };
        Some(match encoding.job(cluster, share)? {
            // The next try brings the same members: no share of this one may be at work on them.
            Encoded::Running | Encoded::Failing(_) => Recovered::Running,
            Encoded::Failed(reason) => {
                let cause = Cause::of(&reason);
                self.fail(cluster, reason, cause)
            }
            Encoded::Done(catalog) => {
                if let Some(path) = self.differs(&catalog) {
                    self.fail(
                        cluster,
                        format!("{path} is not as the prefix records it").into(),
                        Cause::Corrupt,
                    )
                } else {
                    let nodes = cluster.nodes();
                    self.step = Step::Committing(Committing::start(cluster, catalog, nodes, false));
                    Recovered::Running
                }
            }
        })
    }

    /// A file that is not what the prefix's catalog says.
    fn differs(&self, catalog: &Catalog) -> Option<RelPath> {
        let files = |catalog: &Catalog| -> BTreeMap<RelPath, (u64, u32)> {
            let file = |entry: &Entry| match &entry.kind {
                EntryKind::File(copy) => Some((entry.path.clone(), (copy.size, copy.crc))),
                _ => None,
            };
            catalog.entries.iter().filter_map(file).collect()
        };
        let (wanted, got) = (self.source.as_ref().map(files).unwrap_or_default(), files(catalog));
        wanted
            .iter()
            .find(|(path, value)| got.get(*path) != Some(value))
            .or_else(|| got.iter().find(|(path, _)| !wanted.contains_key(*path)))
            .map(|(path, _)| path.clone())
    }

    /// A node's answer to `Commit`; `None` when it is not awaited.
    pub(super) fn committed(
        &mut self,
        cluster: &mut Cluster,
        node: NodeRank,
        (result, decided): (Result<(), Reason>, bool),
    ) -> Option<Recovered> {
        let Step::Committing(committing) = &mut self.step else { return None };
        let failure = result.as_ref().err().cloned();
        Some(match committing.committed(cluster, node, result, decided)? {
            Committed::Running => {
                let stuck = failure.filter(|_| committing.stuck(cluster.now, RECORD_LIMIT).is_some());
                let Some(reason) = stuck else { return Some(Recovered::Running) };
                let reason = reason.on(format_args!("{} cannot record it", cluster.host(node)));
                let cause = Cause::of(&reason);
                self.fail(cluster, reason, cause)
            }
            Committed::Done => Recovered::Done(committing.catalog.clone()),
            Committed::Failed(reason) => {
                let cause = Cause::of(&reason);
                self.fail(cluster, reason, cause)
            }
        })
    }

    fn fail(&mut self, cluster: &mut Cluster, reason: Reason, cause: Cause) -> Recovered {
        if cause == Cause::Corrupt {
            self.bad = true;
            cluster.pfs(PfsTask::MarkFailed(self.stored.clone()));
        }
        cluster.send_all(Command::Drop { id: self.id(), reason: reason.clone() });
        self.step = Step::Dropping(Answers::of(cluster.nodes()), reason, cause);
        Recovered::Running
    }

    /// A node has dropped what it fetched; `None` when that is not awaited.
    pub(super) fn dropped(&mut self, cluster: &mut Cluster, node: NodeRank) -> Option<Recovered> {
        let Step::Dropping(answers, reason, cause) = &mut self.step else { return None };
        Some(match answers.answered(node, ())? {
            false => Recovered::Running,
            true if *cause == Cause::NoRoom => Recovered::NoRoom(reason.clone()),
            true => {
                let reason = reason.clone();
                self.failed(cluster, reason)
            }
        })
    }

    /// It fails for good when the prefix leaves it without an answer.
    pub(super) fn tick(&mut self, cluster: &mut Cluster) -> Option<Recovered> {
        match &mut self.step {
            Step::Reading(until) if *until <= cluster.now => {
                Some(Recovered::Failed("the prefix does not give its records in time".into()))
            }
            Step::Waiting(until) if *until <= cluster.now => {
                cluster.pfs(PfsTask::ReadCatalog(self.stored.clone()));
                self.step = Step::Reading(cluster.now + READ_LIMIT);
                None
            }
            Step::Committing(committing) => {
                committing.tick(cluster);
                None
            }
            _ => None,
        }
    }
}

/// Deals the files to `nodes`: those of old member r to node r where there is one, else to r modulo
/// their number. Equal files of two members are fetched once.
fn deal(catalog: &mut Catalog, nodes: usize) {
    let nodes = u32::try_from(nodes.max(1)).unwrap_or(u32::MAX);
    catalog.sort();
    catalog.entries.dedup_by(|later, first| later.path == first.path);
    for entry in &mut catalog.entries {
        if let EntryKind::File(copy) = &mut entry.kind {
            copy.member = Member(copy.member.0 % nodes);
        }
    }
}

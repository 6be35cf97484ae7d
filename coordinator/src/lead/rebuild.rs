//! Restart: one candidate from the caches. Its catalog is read, what nodes hold of it is verified
//! (in a lazy restart when it is opened, or behind the programs: [`Bytes`]), lost members are
//! rebuilt, sets of which a node has two members by now are encoded anew ([`reencode`]), and the
//! catalog with the new places is committed on all nodes.

mod means;
mod places;
mod reencode;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use scrfs::control::{Command, HeldState, Reason, VerifiedMember};
use scrfs::dataset::Catalog;
use scrfs::ids::{DatasetId, Member, NodeRank};

use self::means::Means;
pub(super) use self::places::MemberFiles;
use self::places::{Copy, Places, Restored, told};
use self::reencode::{NewSets, Reencoded, Reencoding};
use super::answers::Answers;
use super::catalog::check;
use super::cluster::Cluster;
use super::committing::{Committed, Committing};
use super::held::{Held, Holding};
use super::jobs::{Ended, Jobs, ShareEnd};
use super::policy::MS;
use crate::job::{Job, JobFailure};

/// A node that fails to record the candidate for so long, in microseconds, gives it up. An older
/// dataset would take its place for good: a store that is short of room, or slow, has its time.
pub(super) const RECORD_LIMIT: u64 = 30_000 * MS;
/// Times that all bytes are compared because a job has found some to be bad that counted as good.
const LOOKS_MAX: u32 = 2;
/// Times that rebuilds are tried again that failed neither for bad bytes nor for want of room.
const RETRIES_MAX: u32 = 2;

/// How far a candidate is.
#[derive(Debug)]
pub(super) enum Recovered {
    Running,
    /// Complete on every node.
    Done(Arc<Catalog>),
    Failed(Reason),
    /// It could be had if caches had more room.
    NoRoom(Reason),
}

#[derive(Debug)]
enum Step {
    /// Catalogs by revision, one of each: who is asked now, who can be asked next.
    Reading(BTreeMap<u32, (Option<Arc<Catalog>>, VecDeque<NodeRank>)>),
    /// Nodes that have the data of a new encoding record the catalog that says so, which others
    /// have recorded.
    CatchingUp(Committing),
    Verifying(Answers<Vec<VerifiedMember>>),
    /// Nodes that hold members of another layout of it.
    Evicting(Answers<()>, Places),
    /// From what was found to where everything is then.
    Rebuilding(Jobs, Places, Restored),
    /// These nodes have no room, for this reason; more may be made.
    Short(Places, BTreeSet<NodeRank>, Reason),
    Encoding(Reencoding, BTreeMap<Member, NodeRank>),
    Committing(Committing),
}

/// Whether the bytes that nodes hold are compared with their checksums before they are presented.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bytes {
    /// Not yet (`SCRFS_RESTART=lazy`): the nodes have the files with their sizes, as they told.
    Told,
    /// They were: an eager restart, or a job had found some to be bad.
    Read,
    /// A job has found some to be bad, and all are to be compared.
    Doubted,
}

/// What was tried again.
#[derive(Debug, Default)]
struct Tries {
    /// Times that all bytes were compared because a job had found bad ones.
    looks: u32,
    /// Times that rebuilds were begun again.
    rebuilds: u32,
}

/// One candidate on its way.
#[derive(Debug)]
pub(super) struct Rebuild {
    id: DatasetId,
    held: Held,
    /// The highest revision's, once read.
    catalog: Option<Arc<Catalog>>,
    /// Nodes whose data belongs to another layout.
    other_layout: BTreeSet<NodeRank>,
    /// Nodes with the files of their members, but without the newest encoding's redundancy data.
    lagging: BTreeSet<NodeRank>,
    /// Nodes whose cache has no room for a member: no lost one goes there.
    full: BTreeSet<NodeRank>,
    /// Unsealed files may still be removed for room. That comes before other nodes are tried, and
    /// before a redundancy file is given up.
    may_make_room: bool,
    /// Nodes have data of an encoding that came to nothing.
    is_stale: bool,
    bytes: Bytes,
    tries: Tries,
    /// Members that are rebuilt behind the programs, each where the catalog to come has it.
    absent: BTreeSet<Member>,
    step: Step,
}

impl Rebuild {
    pub(super) fn begin(cluster: &mut Cluster, id: DatasetId, held: Held, may_make_room: bool) -> Self {
        let mut revisions: BTreeMap<u32, (Option<Arc<Catalog>>, VecDeque<NodeRank>)> = BTreeMap::new();
        for (node, holding) in held.complete() {
            revisions.entry(holding.revision).or_default().1.push_back(node);
        }
        for (_, nodes) in revisions.values() {
            if let Some(&node) = nodes.front() {
                cluster.send(node, Command::ReadCatalog(id));
            }
        }
        let step = Step::Reading(revisions);
        let (other_layout, lagging, full, is_stale, absent) = Default::default();
        let bytes = if cluster.settings.restart.lazy { Bytes::Told } else { Bytes::Read };
        Self {
            id,
            held,
            catalog: None,
            other_layout,
            lagging,
            full,
            may_make_room,
            is_stale,
            bytes,
            tries: Tries::default(),
            absent,
            step,
        }
    }

    /// Members that no node has, and that are rebuilt while programs run.
    pub(super) fn into_absent(self) -> BTreeSet<Member> {
        self.absent
    }

    /// A node's catalog; `None` when it is not awaited.
    pub(super) fn catalog(
        &mut self,
        cluster: &mut Cluster,
        node: NodeRank,
        catalog: Option<Arc<Catalog>>,
    ) -> Option<Recovered> {
        let Step::Reading(revisions) = &mut self.step else { return None };
        let waits = |(read, nodes): &&mut (Option<Arc<Catalog>>, VecDeque<NodeRank>)| {
            read.is_none() && nodes.front() == Some(&node)
        };
        let (read, nodes) = revisions.values_mut().find(waits)?;
        let good = catalog
            .filter(|catalog| check(catalog, self.id, true).is_ok() && catalog.epoch == self.held.epoch);
        if good.is_some() {
            *read = good;
        } else {
            nodes.pop_front();
            if let Some(&next) = nodes.front() {
                cluster.send(next, Command::ReadCatalog(self.id));
            }
        }
        if revisions.values().any(|(read, nodes)| read.is_none() && !nodes.is_empty()) {
            return Some(Recovered::Running);
        }
        Some(self.read(cluster))
    }

    /// All revisions are read: the highest counts; members held under it, or under one that means
    /// the same, are verified.
    fn read(&mut self, cluster: &mut Cluster) -> Recovered {
        let Step::Reading(revisions) = &mut self.step else { return Recovered::Running };
        let mut catalogs: BTreeMap<u32, Arc<Catalog>> = BTreeMap::new();
        for (revision, (read, _)) in std::mem::take(revisions) {
            if let Some(catalog) = read {
                catalogs.insert(revision, catalog);
            }
        }
        let Some((highest, newest)) = catalogs.pop_last() else {
            return Recovered::Failed("no node can give its catalog".into());
        };
        let mut revisions: BTreeMap<u32, Means> =
            catalogs.iter().map(|(revision, older)| (*revision, Means::of(older, &newest))).collect();
        revisions.insert(highest, Means::All);
        // Who has not recorded it knows its member as it was sealed. A fetch deals the files anew.
        let files = (highest > 0).then(|| MemberFiles::of_all(&newest));
        let is_dealt_anew = |holding: &Holding| {
            let differs = |(member, sum): &(Member, u32)| {
                files.as_ref().is_some_and(|files| files.sum_of_paths(*member) != *sum)
            };
            holding.paths.iter().any(differs)
        };
        let protected = newest.layout.protected();
        let mut behind = Vec::new();
        for (&node, holding) in &self.held.nodes {
            let (complete, encoding) = (holding.state == HeldState::Complete, newest.layout.encoding);
            let is_encoded = || holding.is_encoded_as(&newest.layout, &protected, cluster.host(node));
            let means = match revisions.get(&holding.revision) {
                _ if !complete && is_dealt_anew(holding) => Means::Other,
                _ if !complete && encoding == 0 => Means::All,
                _ if !complete => Means::Files,
                Some(means) => *means,
                None => Means::Other,
            };
            match means {
                // What it has of an encoding that came to nothing goes with the commit.
                Means::All if complete && holding.has_others_than(encoding) => behind.push(node),
                Means::All => {}
                Means::Files if is_encoded() => behind.push(node),
                Means::Files => drop(self.lagging.insert(node)),
                Means::Other => drop(self.other_layout.insert(node)),
            }
        }
        if let Err(reason) = self.at_best(cluster, &newest).recoverable(&newest.layout) {
            return Recovered::Failed(reason);
        }
        self.catalog = Some(Arc::clone(&newest));
        if behind.is_empty() {
            return self.verify(cluster);
        }
        self.step = Step::CatchingUp(Committing::start(cluster, newest, behind, true));
        Recovered::Running
    }

    fn verify(&mut self, cluster: &mut Cluster) -> Recovered {
        if self.bytes == Bytes::Told {
            return self.take_as_told(cluster);
        }
        self.bytes = Bytes::Read;
        let holders: Vec<NodeRank> = self.holders().map(|(node, _)| node).collect();
        for &node in &holders {
            cluster.send(node, Command::Verify(self.id));
        }
        self.step = Step::Verifying(Answers::of(holders));
        Recovered::Running
    }

    /// Nodes with usable members.
    fn holders(&self) -> impl Iterator<Item = (NodeRank, &Holding)> {
        let usable = |node: &NodeRank| !self.other_layout.contains(node);
        self.held
            .nodes
            .iter()
            .filter(move |(node, holding)| usable(node) && !holding.members.is_empty())
            .map(|(node, holding)| (*node, holding))
    }

    /// Where members would be if all that nodes have were good.
    fn at_best(&self, cluster: &Cluster, catalog: &Catalog) -> Places {
        let copies = self.holders().flat_map(|(node, holding)| {
            holding.members.iter().map(move |member| Copy { member: Member(*member), node, is_bare: false })
        });
        Places::of(cluster, catalog, copies)
    }

    /// What nodes have told of counts as it is: they have looked for each file and its size.
    fn take_as_told(&mut self, cluster: &mut Cluster) -> Recovered {
        let Some(catalog) = &self.catalog else { return Recovered::Failed("no catalog".into()) };
        let (lagging, layout) = (&self.lagging, &catalog.layout);
        let copies = self.holders().flat_map(|(node, holding)| {
            holding.members.iter().map(|member| Member(*member)).map(move |member| {
                let is_bare = lagging.contains(&node) || !holding.guards(layout, member);
                Copy { member, node, is_bare }
            })
        });
        let places = Places::of(cluster, catalog, copies);
        match places.recoverable(&catalog.layout) {
            Ok(()) => self.evict(cluster, places),
            Err(reason) => Recovered::Failed(reason),
        }
    }

    /// A job has failed, and shares of it have found bad bytes that count as good so far, also some
    /// that went bad since they were compared: all are looked at, and what is bad is rebuilt too.
    fn look_again(&mut self, cluster: &mut Cluster, reason: &Reason) -> Recovered {
        self.tries.looks += 1;
        if self.tries.looks > LOOKS_MAX {
            return Recovered::Failed(reason.clone());
        }
        cluster.warn(format!("dataset {}: all that nodes have of it is verified, as {reason}", self.id));
        self.verify(cluster)
    }

    /// A node has verified; `None` when that is not awaited.
    pub(super) fn verified(
        &mut self,
        cluster: &mut Cluster,
        node: NodeRank,
        members: Vec<VerifiedMember>,
    ) -> Option<Recovered> {
        let Step::Verifying(answers) = &mut self.step else { return None };
        if !answers.answered(node, members)? {
            return Some(Recovered::Running);
        }
        let Some(catalog) = &self.catalog else { return Some(Recovered::Failed("no catalog".into())) };
        let mut copies = Vec::new();
        for (node, members) in answers.iter() {
            for VerifiedMember { member, files, redundancy } in members {
                let problems = [files, redundancy].into_iter().filter_map(|result| result.as_ref().err());
                let place = catalog.layout.members.get(member.0 as usize);
                // Elsewhere it is left over from before it moved.
                if let Some(reason) = Reason::all(problems.cloned())
                    && place.is_some_and(|place| place.host == cluster.host(node))
                {
                    let host = cluster.host(node).to_owned();
                    cluster.warn(format!("member {member} of dataset {} on {host}: {reason}", self.id));
                }
                if files.is_ok() {
                    let is_bare = redundancy.is_err() || self.lagging.contains(&node);
                    copies.push(Copy { member: *member, node, is_bare });
                }
            }
        }
        let places = Places::of(cluster, catalog, copies.into_iter());
        if let Err(reason) = places.recoverable(&catalog.layout) {
            return Some(Recovered::Failed(reason));
        }
        Some(self.evict(cluster, places))
    }

    /// Others under its id have made room for it, or do so now.
    pub(super) fn has_evicted_strangers(&self) -> bool {
        self.held.strangers.is_empty()
    }

    /// What belongs to another layout goes before a member is rebuilt there, and so do others under
    /// its id.
    fn evict(&mut self, cluster: &mut Cluster, places: Places) -> Recovered {
        let strangers = std::mem::take(&mut self.held.strangers);
        let leaving: BTreeSet<NodeRank> = self.other_layout.iter().copied().chain(strangers).collect();
        if leaving.is_empty() {
            return self.rebuild(cluster, places);
        }
        for &node in &leaving {
            cluster.send(node, Command::Evict(self.id));
        }
        self.step = Step::Evicting(Answers::of(leaving), places);
        Recovered::Running
    }

    /// A node has evicted; `None` when that is not awaited.
    pub(super) fn evicted(&mut self, cluster: &mut Cluster, node: NodeRank) -> Option<Recovered> {
        let Step::Evicting(answers, places) = &mut self.step else { return None };
        if !answers.answered(node, ())? {
            return Some(Recovered::Running);
        }
        let places = std::mem::take(places);
        Some(self.rebuild(cluster, places))
    }

    /// Starts the rebuild of each member that its set gives back; what is nowhere goes onto a node
    /// that is chosen for it.
    fn rebuild(&mut self, cluster: &mut Cluster, found: Places) -> Recovered {
        let Some(catalog) = &self.catalog else { return Recovered::Failed("no catalog".into()) };
        let places = found.with_targets(cluster, catalog, &self.full);
        let mut restored = Restored { places, ..Restored::default() };
        let (mut jobs, mut rebuilt, files) = (Vec::new(), Vec::new(), MemberFiles::of_all(catalog));
        for set in &catalog.layout.sets {
            let (lost, bare) = found.gone(set);
            let Some(repair) = catalog.layout.repair(set, &lost, &bare) else {
                return Recovered::Failed("a set cannot give back what is gone of it".into());
            };
            restored.anew |= repair.anew;
            restored.fresh.extend(lost.iter().filter(|at| !repair.rebuild.contains(at)).map(|at| set[*at]));
            let gone = found.rebuilt(&catalog.layout, set, &repair);
            if gone.is_empty() {
                continue;
            }
            rebuilt.extend(gone.iter().map(|at| set[*at]));
            let job = Job::Rebuild {
                catalog: Arc::clone(catalog),
                set: set.iter().map(|member| files.on(*member, restored.places[member])).collect(),
                lost: gone.iter().filter_map(|at| u32::try_from(*at).ok()).collect(),
            };
            jobs.push(job);
        }
        if jobs.is_empty() {
            return self.encode(cluster, restored);
        }
        // Other sets are made of all members, and a catalog of the places that count.
        let is_lazy = cluster.settings.restart.lazy
            && restored.fresh.is_empty()
            && Reencoding::sets(cluster, catalog, &restored).is_none();
        let text = told(cluster, catalog, &rebuilt, &restored.places);
        if is_lazy {
            cluster.note(format!("{text}, while programs run (SCRFS_RESTART=lazy)"));
            self.absent = rebuilt.into_iter().collect();
            return self.commit(cluster, &restored.places, None);
        }
        cluster.note(text);
        let mut started = Jobs::default();
        for job in jobs {
            started.start(cluster, job);
        }
        self.step = Step::Rebuilding(started, found, restored);
        Recovered::Running
    }

    /// After [`Recovered::NoRoom`]: what was to make room has done so, or there was nothing.
    pub(super) fn room_made(&mut self, cluster: &mut Cluster, is_made: bool) -> Recovered {
        let Step::Short(found, full, why) = &mut self.step else {
            return Recovered::Failed("it is not short of room".into());
        };
        let (found, full, why) = (std::mem::take(found), std::mem::take(full), why.clone());
        if is_made { self.rebuild(cluster, found) } else { self.again(cluster, found, &full, why) }
    }

    /// Members could not be rebuilt where they were to be. Others are tried while there are nodes
    /// that may have room.
    fn again(
        &mut self,
        cluster: &mut Cluster,
        found: Places,
        full: &BTreeSet<NodeRank>,
        why: Reason,
    ) -> Recovered {
        if full.is_empty() {
            return Recovered::Failed(why);
        }
        let is_known = full.is_subset(&self.full);
        self.full.extend(full);
        let hosts: Vec<&str> = full.iter().map(|node| cluster.host(*node)).collect();
        let hosts = hosts.join(", ");
        // What is rebuilt where it is can go nowhere else.
        let (found, unguarded) = found.without_guards_on(&self.full);
        if unguarded {
            cluster.warn(format!(
                "dataset {}: there is no room on {hosts} for redundancy data that is gone: the loss of a node may cost the dataset",
                self.id
            ));
        }
        let members = self.catalog.as_ref().map_or(0, |catalog| catalog.layout.members.len());
        if found.count() < members {
            let has_other = cluster.nodes().any(|node| !self.full.contains(&node));
            if is_known || !has_other {
                return Recovered::NoRoom(why);
            }
            let text =
                format!("dataset {}: {hosts} has no room for what is rebuilt; others are tried", self.id);
            cluster.warn(text);
        } else if is_known && !unguarded {
            return Recovered::NoRoom(why);
        }
        self.rebuild(cluster, found)
    }

    /// All members are somewhere. Where nodes have several of one set, or redundancy data is gone
    /// that no set can give back, the dataset is encoded anew.
    fn encode(&mut self, cluster: &mut Cluster, restored: Restored) -> Recovered {
        let Some(catalog) = &self.catalog else { return Recovered::Failed("no catalog".into()) };
        let revision = cluster.next_revision(Some(self.held.highest_revision()));
        match Reencoding::start(cluster, catalog, &restored, revision) {
            Some(reencoding) => {
                self.step = Step::Encoding(reencoding, restored.places);
                Recovered::Running
            }
            None => self.commit(cluster, &restored.places, None),
        }
    }

    /// A share ended; `None` when it is no share of these jobs.
    pub(super) fn job(&mut self, cluster: &mut Cluster, share: ShareEnd) -> Option<Recovered> {
        if share.result.as_ref().is_err_and(JobFailure::is_bad) {
            self.bytes = Bytes::Doubted;
        }
        let is_doubted = self.bytes == Bytes::Doubted;
        Some(match &mut self.step {
            Step::Rebuilding(jobs, found, restored) => match jobs.ended(cluster, share)? {
                // Also after a failure all are awaited: no share may write behind the next
                // candidate's back.
                Ended::Running | Ended::Failing(_) => Recovered::Running,
                Ended::Failed(reason) if is_doubted => self.look_again(cluster, &reason),
                Ended::Failed(reason) => {
                    let (found, full) = (std::mem::take(found), jobs.full().clone());
                    if full.is_empty() && self.tries.rebuilds < RETRIES_MAX {
                        self.tries.rebuilds += 1;
                        cluster.warn(format!("dataset {}: is rebuilt once more, as {reason}", self.id));
                        return Some(self.rebuild(cluster, found));
                    }
                    if full.is_empty() || !std::mem::take(&mut self.may_make_room) {
                        return Some(self.again(cluster, found, &full, reason));
                    }
                    self.step = Step::Short(found, full, reason.clone());
                    Recovered::NoRoom(reason)
                }
                Ended::Done(_) => {
                    let restored = std::mem::take(restored);
                    self.encode(cluster, restored)
                }
            },
            Step::Encoding(reencoding, places) => match reencoding.job(cluster, share)? {
                Reencoded::Running => Recovered::Running,
                Reencoded::Done(sets) => {
                    let places = std::mem::take(places);
                    self.commit(cluster, &places, Some(sets))
                }
                Reencoded::Failed(reason) => {
                    let places = std::mem::take(places);
                    cluster.warn(format!("dataset {} cannot be encoded anew: {reason}", self.id));
                    // What was made of the new ones goes with the next commit.
                    self.is_stale = true;
                    if is_doubted {
                        return Some(self.look_again(cluster, &reason));
                    }
                    self.commit(cluster, &places, None)
                }
            },
            _ => return None,
        })
    }

    /// The catalog with the new places and sets, to all; nothing when nothing has changed and every
    /// node has it.
    fn commit(
        &mut self,
        cluster: &mut Cluster,
        places: &BTreeMap<Member, NodeRank>,
        sets: Option<NewSets>,
    ) -> Recovered {
        let Some(mut catalog) = self.catalog.take() else {
            return Recovered::Failed("no catalog".into());
        };
        let host = |member| places.get(&member).map(|node| cluster.host(*node));
        let mut members = (0..).map(Member).zip(&catalog.layout.members);
        let has_moved = members.any(|(member, place)| host(member).is_some_and(|host| host != place.host));
        let changed = self.is_stale || sets.is_some() || has_moved;
        let of = catalog.revision;
        let have = self.held.complete().filter(|(_, holding)| holding.revision == of).map(|(node, _)| node);
        let have: BTreeSet<NodeRank> = have.filter(|node| !self.other_layout.contains(node)).collect();
        if !changed && cluster.nodes().all(|node| have.contains(&node)) {
            return Recovered::Done(catalog);
        }
        let revised = Arc::make_mut(&mut catalog);
        if let Some(sets) = sets {
            sets.put_into(revised);
        }
        for (member, place) in (0..).map(Member).zip(&mut revised.layout.members) {
            if let Some(host) = host(member) {
                host.clone_into(&mut place.host);
            }
        }
        revised.revision = cluster.next_revision(Some(self.held.highest_revision()));
        self.step = Step::Committing(Committing::revise(cluster, catalog, of, &have));
        Recovered::Running
    }

    /// A node's answer to `Commit`; `None` when it is not awaited.
    pub(super) fn committed(
        &mut self,
        cluster: &mut Cluster,
        node: NodeRank,
        (result, decided): (Result<(), Reason>, bool),
    ) -> Option<Recovered> {
        let (committing, is_last) = match &mut self.step {
            Step::CatchingUp(committing) => (committing, false),
            Step::Committing(committing) => (committing, true),
            _ => return None,
        };
        let failure = result.as_ref().err().cloned();
        Some(match committing.committed(cluster, node, result, decided)? {
            Committed::Done if is_last => Recovered::Done(committing.catalog.clone()),
            Committed::Done => self.verify(cluster),
            _ if committing.stuck(cluster.now, RECORD_LIMIT).is_some() => {
                let reason = failure.map_or_else(String::new, |reason: Reason| format!(": {reason}"));
                Recovered::Failed(format!("{} cannot record it{reason}", cluster.host(node)).into())
            }
            _ => Recovered::Running,
        })
    }

    pub(super) fn tick(&mut self, cluster: &mut Cluster) {
        if let Step::Committing(committing) | Step::CatchingUp(committing) = &mut self.step {
            committing.tick(cluster);
        }
    }
}

#[cfg(test)]
mod tries;

#[cfg(test)]
mod tests;

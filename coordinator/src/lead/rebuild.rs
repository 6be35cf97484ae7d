//! Restart: one candidate from the caches. Its catalog is read, what nodes hold of it is verified,
//! lost members are rebuilt, sets of which a node has two members by now are encoded anew
//! ([`reencode`]), and the catalog with the new places is committed on all nodes.

mod reencode;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use scrfs::control::{Command, HeldState, Reason};
use scrfs::dataset::{Catalog, EntryKind};
use scrfs::ids::{DatasetId, Member, NodeRank};
use scrfs::path::RelPath;

use self::reencode::{NewSets, Reencoded, Reencoding};
use super::answers::Answers;
use super::catalog::{check, same_files};
use super::cluster::Cluster;
use super::committing::{Committed, Committing};
use super::jobs::{Ended, Jobs, Share};
use super::settle::Held;
use crate::job::{Job, SetMember};

/// Failed commits on one node before the candidate is given up.
const COMMIT_TRIES: u32 = 5;

/// Members and what a node has verified of each.
type Verified = Vec<(Member, Result<(), Reason>)>;

/// How far a candidate is.
#[derive(Debug)]
pub(super) enum Recovered {
    Running,
    /// Complete on every node.
    Done(Box<Catalog>),
    Failed(Reason),
}

#[derive(Debug)]
enum Step {
    /// Catalogs by revision, one of each: who is asked now, who can be asked next.
    Reading(BTreeMap<u32, (Option<Catalog>, VecDeque<NodeRank>)>),
    /// Nodes that have the data of a new encoding record the catalog that says so, which others
    /// have recorded.
    CatchingUp(Committing),
    Verifying(Answers<Verified>),
    Rebuilding(Jobs, BTreeMap<Member, NodeRank>),
    /// Nodes that hold members of another layout of it.
    Evicting(Answers<()>, BTreeMap<Member, NodeRank>),
    Encoding(Reencoding, BTreeMap<Member, NodeRank>),
    Committing(Committing),
}

/// What an older catalog says of the newest's members.
#[derive(Debug, Clone, Copy)]
enum Means {
    /// The same.
    All,
    /// The same of their files; what protects them is another encoding's.
    Files,
    /// Something else.
    Other,
}

/// One candidate on its way.
#[derive(Debug)]
pub(super) struct Rebuild {
    id: DatasetId,
    held: Held,
    /// The highest revision's, once read.
    catalog: Option<Catalog>,
    /// Nodes whose data belongs to another layout.
    other_layout: BTreeSet<NodeRank>,
    /// Members without files that are not rebuilt.
    lacks_members: bool,
    /// Nodes have data of an encoding that came to nothing.
    is_stale: bool,
    step: Step,
}

impl Rebuild {
    pub(super) fn begin(cluster: &mut Cluster, id: DatasetId, held: Held) -> Self {
        let mut revisions: BTreeMap<u32, (Option<Catalog>, VecDeque<NodeRank>)> = BTreeMap::new();
        for (node, holding) in held.complete() {
            revisions.entry(holding.revision).or_default().1.push_back(node);
        }
        for (_, nodes) in revisions.values() {
            if let Some(&node) = nodes.front() {
                cluster.send(node, Command::ReadCatalog(id));
            }
        }
        let step = Step::Reading(revisions);
        let (lacks_members, is_stale) = (false, false);
        Self { id, held, catalog: None, other_layout: BTreeSet::new(), lacks_members, is_stale, step }
    }

    /// A node's catalog; `None` when it is not awaited.
    pub(super) fn catalog(
        &mut self,
        cluster: &mut Cluster,
        node: NodeRank,
        catalog: Option<Catalog>,
    ) -> Option<Recovered> {
        let Step::Reading(revisions) = &mut self.step else { return None };
        let waits = |(read, nodes): &&mut (Option<Catalog>, VecDeque<NodeRank>)| {
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
        let mut catalogs: BTreeMap<u32, Catalog> = BTreeMap::new();
        for (revision, (read, _)) in std::mem::take(revisions) {
            if let Some(catalog) = read {
                catalogs.insert(revision, catalog);
            }
        }
        let Some((highest, newest)) = catalogs.pop_last() else {
            return Recovered::Failed("no node can give its catalog".into());
        };
        let means = |older: &Catalog| {
            if !same_files(older, &newest) {
                Means::Other
            } else if older.layout.encoding != newest.layout.encoding {
                Means::Files
            } else if older.layout.sets == newest.layout.sets {
                Means::All
            } else {
                Means::Other
            }
        };
        let mut revisions: BTreeMap<u32, Means> =
            catalogs.iter().map(|(revision, older)| (*revision, means(older))).collect();
        revisions.insert(highest, Means::All);
        let protected = newest.layout.protected();
        let mut behind = Vec::new();
        for (&node, holding) in &self.held.nodes {
            let (complete, encoding) = (holding.state == HeldState::Complete, newest.layout.encoding);
            let is_encoded = || holding.is_encoded_as(&newest.layout, &protected, cluster.host(node));
            let means = match revisions.get(&holding.revision) {
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
                Means::Files | Means::Other => drop(self.other_layout.insert(node)),
            }
        }
        let catalog = Box::new(newest.clone());
        self.catalog = Some(newest);
        if let Err(reason) = self.recoverable(&self.places(cluster, |_, _| true)) {
            return Recovered::Failed(reason);
        }
        if behind.is_empty() {
            return self.verify(cluster);
        }
        self.step = Step::CatchingUp(Committing::start(cluster, catalog, behind, true));
        Recovered::Running
    }

    fn verify(&mut self, cluster: &mut Cluster) -> Recovered {
        let holders: Vec<NodeRank> = self.holders().map(|(node, _)| node).collect();
        for &node in &holders {
            cluster.send(node, Command::Verify(self.id));
        }
        self.step = Step::Verifying(Answers::of(holders));
        Recovered::Running
    }

    /// Nodes with usable members.
    fn holders(&self) -> impl Iterator<Item = (NodeRank, &BTreeSet<u32>)> {
        let usable = |node: &NodeRank| !self.other_layout.contains(node);
        self.held
            .nodes
            .iter()
            .filter(move |(node, holding)| usable(node) && !holding.members.is_empty())
            .map(|(node, holding)| (*node, &holding.members))
    }

    /// Where each member is: at the catalog's place if it is there, else at the lowest holder.
    fn places(
        &self,
        cluster: &Cluster,
        good: impl Fn(NodeRank, Member) -> bool,
    ) -> BTreeMap<Member, NodeRank> {
        let Some(catalog) = &self.catalog else { return BTreeMap::new() };
        let mut places = BTreeMap::new();
        for (member, place) in (0..).map(Member).zip(&catalog.layout.members) {
            let holders = self.holders().filter(|(_, members)| members.contains(&member.0));
            let holders: Vec<NodeRank> =
                holders.map(|(node, _)| node).filter(|node| good(*node, member)).collect();
            let home = cluster.rank_of(&place.host).filter(|home| holders.contains(home));
            if let Some(node) = home.or(holders.first().copied()) {
                places.insert(member, node);
            }
        }
        places
    }

    /// Each set can give its lost members back.
    fn recoverable(&self, places: &BTreeMap<Member, NodeRank>) -> Result<(), Reason> {
        let Some(catalog) = &self.catalog else { return Err("no catalog".into()) };
        for set in &catalog.layout.sets {
            let lost: Vec<usize> = (0..set.len()).filter(|at| !places.contains_key(&set[*at])).collect();
            let survives = catalog.layout.survives(set, &lost);
            if !survives && lost.iter().any(|at| has_files(catalog, set[*at])) {
                let members: Vec<String> = lost.iter().map(|at| set[*at].to_string()).collect();
                let (lost, of) = (members.join(", "), set.len());
                let scheme = catalog.layout.scheme();
                return Err(format!(
                    "members {lost} of a set of {of} are lost, more than {scheme} gives back"
                )
                .into());
            }
        }
        Ok(())
    }

    /// A node has verified; `None` when that is not awaited.
    pub(super) fn verified(
        &mut self,
        cluster: &mut Cluster,
        node: NodeRank,
        members: Verified,
    ) -> Option<Recovered> {
        let Step::Verifying(answers) = &mut self.step else { return None };
        if !answers.answered(node, members)? {
            return Some(Recovered::Running);
        }
        let members = self.catalog.iter().flat_map(|catalog| &catalog.layout.members);
        let homes: BTreeSet<(Member, &str)> =
            (0..).map(Member).zip(members.map(|place| place.host.as_str())).collect();
        let mut good: BTreeSet<(NodeRank, Member)> = BTreeSet::new();
        for (node, members) in answers.iter() {
            for (member, result) in members {
                match result {
                    Ok(()) => {
                        good.insert((node, *member));
                    }
                    Err(reason) if homes.contains(&(*member, cluster.host(node))) => {
                        let host = cluster.host(node).to_owned();
                        cluster.warn(format!("member {member} of dataset {} on {host}: {reason}", self.id));
                    }
                    // Left over from before it moved.
                    Err(_) => {}
                }
            }
        }
        let places = self.places(cluster, |node, member| good.contains(&(node, member)));
        if let Err(reason) = self.recoverable(&places) {
            return Some(Recovered::Failed(reason));
        }
        Some(self.evict(cluster, places))
    }

    /// What belongs to another layout goes before a member is rebuilt there.
    fn evict(&mut self, cluster: &mut Cluster, places: BTreeMap<Member, NodeRank>) -> Recovered {
        if self.other_layout.is_empty() {
            return self.rebuild(cluster, places);
        }
        for &node in &self.other_layout {
            cluster.send(node, Command::Evict(self.id));
        }
        self.step = Step::Evicting(Answers::of(self.other_layout.iter().copied()), places);
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

    /// Starts the rebuild of each lost member, each onto a node that is chosen for it.
    fn rebuild(&mut self, cluster: &mut Cluster, mut places: BTreeMap<Member, NodeRank>) -> Recovered {
        let Some(catalog) = &self.catalog else { return Recovered::Failed("no catalog".into()) };
        let held = places.clone();
        for set in &catalog.layout.sets {
            for member in set {
                if !places.contains_key(member) {
                    let target = target(cluster, catalog, set, &places, *member);
                    places.insert(*member, target);
                }
            }
        }
        let (mut jobs, mut rebuilt, files) = (Jobs::default(), Vec::new(), MemberFiles::of_all(catalog));
        for set in &catalog.layout.sets {
            let lost: Vec<usize> = (0..set.len()).filter(|at| !held.contains_key(&set[*at])).collect();
            if !catalog.layout.survives(set, &lost) {
                // Members without files: nothing of them is lost, but what they protected has one
                // guard less.
                cluster
                    .warn(format!("dataset {}: redundancy data of members without files is lost", self.id));
                self.lacks_members = true;
                continue;
            }
            if lost.is_empty() {
                continue;
            }
            rebuilt.extend(lost.iter().map(|at| set[*at]));
            let job = Job::Rebuild {
                catalog: Box::new(catalog.clone()),
                set: set.iter().map(|member| files.on(*member, places[member])).collect(),
                lost: lost.iter().filter_map(|at| u32::try_from(*at).ok()).collect(),
            };
            jobs.start(cluster, job);
        }
        if jobs.is_empty() {
            return self.encode(cluster, places);
        }
        let text = told(cluster, catalog, &rebuilt, &places);
        cluster.note(text);
        self.step = Step::Rebuilding(jobs, places);
        Recovered::Running
    }

    /// All members are somewhere: where nodes have several of one set, other sets are made.
    fn encode(&mut self, cluster: &mut Cluster, places: BTreeMap<Member, NodeRank>) -> Recovered {
        let Some(catalog) = &self.catalog else { return Recovered::Failed("no catalog".into()) };
        let revision = cluster.next_revision(Some(self.held.highest_revision()));
        // Those that are not rebuilt have nothing to be encoded.
        if !self.lacks_members
            && let Some(reencoding) = Reencoding::start(cluster, catalog, &places, revision)
        {
            self.step = Step::Encoding(reencoding, places);
            return Recovered::Running;
        }
        self.commit(cluster, &places, None)
    }

    /// A share ended; `None` when it is no share of these jobs.
    pub(super) fn job(&mut self, cluster: &mut Cluster, share: Share) -> Option<Recovered> {
        Some(match &mut self.step {
            Step::Rebuilding(jobs, places) => match jobs.ended(cluster, share)? {
                // Also after a failure all are awaited: no share may write behind the next
                // candidate's back.
                Ended::Running | Ended::Failing(_) => Recovered::Running,
                Ended::Failed(reason) => Recovered::Failed(reason),
                Ended::Done(_) => {
                    let places = std::mem::take(places);
                    self.encode(cluster, places)
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
                    cluster.warn(format!("dataset {} keeps its redundancy sets: {reason}", self.id));
                    // What was made of the new ones goes with the next commit.
                    self.is_stale = true;
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
        let mut changed = self.is_stale || sets.is_some();
        if let Some(sets) = sets {
            sets.put_into(&mut catalog);
        }
        for (member, place) in (0..).map(Member).zip(&mut catalog.layout.members) {
            let host = places.get(&member).map(|node| cluster.host(*node));
            if let Some(host) = host.filter(|host| *host != place.host) {
                host.clone_into(&mut place.host);
                changed = true;
            }
        }
        let everywhere = cluster.nodes().all(|node| {
            self.held.complete().any(|(holder, holding)| {
                holder == node && holding.revision == catalog.revision && !self.other_layout.contains(&node)
            })
        });
        if everywhere && !changed {
            return Recovered::Done(Box::new(catalog));
        }
        catalog.revision = cluster.next_revision(Some(self.held.highest_revision()));
        let nodes = cluster.nodes();
        self.step = Step::Committing(Committing::start(cluster, Box::new(catalog), nodes, true));
        Recovered::Running
    }

    /// A node's answer to `Commit`; `None` when it is not awaited.
    pub(super) fn committed(
        &mut self,
        cluster: &mut Cluster,
        node: NodeRank,
        result: Result<(), Reason>,
    ) -> Option<Recovered> {
        let (committing, is_last) = match &mut self.step {
            Step::CatchingUp(committing) => (committing, false),
            Step::Committing(committing) => (committing, true),
            _ => return None,
        };
        let failure = result.as_ref().err().cloned();
        Some(match committing.committed(cluster, node, result)? {
            Committed::Done if is_last => Recovered::Done(committing.catalog.clone()),
            Committed::Done => self.verify(cluster),
            _ if committing.tries() >= COMMIT_TRIES => {
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

/// Members named when some are rebuilt; of more, only their number is told.
const TOLD_MAX: usize = 16;

/// Which members of a dataset are rebuilt, whose they were, and where they are now.
fn told(
    cluster: &Cluster,
    catalog: &Catalog,
    rebuilt: &[Member],
    places: &BTreeMap<Member, NodeRank>,
) -> String {
    let one = |member: &Member| {
        let had = catalog.layout.members.get(member.0 as usize).map_or("?", |place| place.host.as_str());
        let has = places.get(member).map_or("?", |node| cluster.host(*node));
        if had == has { format!("{member} on {had}") } else { format!("{member} of {had} on {has}") }
    };
    let mut members: Vec<String> = rebuilt.iter().take(TOLD_MAX).map(one).collect();
    if rebuilt.len() > TOLD_MAX {
        members.push(format!("{} more", rebuilt.len() - TOLD_MAX));
    }
    let name = String::from_utf8_lossy(&catalog.name);
    format!(
        "{name} (dataset {}): members that are not on their nodes are rebuilt from the others: {}",
        catalog.id,
        members.join(", ")
    )
}

fn has_files(catalog: &Catalog, member: Member) -> bool {
    catalog.files_of(member).next().is_some()
}

/// The files of each member, found in one pass.
pub(super) struct MemberFiles<'a>(Vec<Vec<(&'a RelPath, u64)>>);

impl<'a> MemberFiles<'a> {
    pub(super) fn of_all(catalog: &'a Catalog) -> Self {
        let mut all = vec![Vec::new(); catalog.layout.members.len()];
        for entry in &catalog.entries {
            if let EntryKind::File(copy) = &entry.kind
                && let Some(files) = all.get_mut(copy.member.0 as usize)
            {
                files.push((&entry.path, copy.size));
            }
        }
        Self(all)
    }

    /// In the order of the logical file.
    pub(super) fn paths(&self, member: Member) -> Vec<RelPath> {
        self.get(member).iter().map(|(path, _)| (*path).clone()).collect()
    }

    /// A member that is on this node.
    pub(super) fn on(&self, member: Member, node: NodeRank) -> SetMember {
        SetMember { member, node, sizes: self.get(member).iter().map(|(_, size)| *size).collect() }
    }

    fn get(&self, member: Member) -> &[(&'a RelPath, u64)] {
        self.0.get(member.0 as usize).map_or(&[], Vec::as_slice)
    }
}

/// Where a lost member goes: to a node that holds none, of these to one of a failure group that its
/// set has no member in, then to the node that had it, then to one that never had a part in the
/// dataset. Where all hold some: to one that is not of the same set, then not of a group of it,
/// then to the one with the fewest.
fn target(
    cluster: &Cluster,
    catalog: &Catalog,
    set: &[Member],
    places: &BTreeMap<Member, NodeRank>,
    lost: Member,
) -> NodeRank {
    let home = catalog.layout.members.get(lost.0 as usize).and_then(|place| cluster.rank_of(&place.host));
    let members_on = |node: NodeRank| places.values().filter(|place| **place == node).count();
    let groups = cluster.groups_of(&catalog.layout.protection);
    let group = |node: NodeRank| groups.get(node.0 as usize);
    let with_set: BTreeSet<_> = set
        .iter()
        .filter(|&&member| member != lost)
        .filter_map(|member| places.get(member))
        .copied()
        .collect();
    let with_group: BTreeSet<_> = with_set.iter().map(|&node| group(node)).collect();
    let had_part = |node: NodeRank| {
        let host = cluster.host(node);
        catalog.layout.members.iter().any(|place| place.host == host)
    };
    cluster
        .nodes()
        .min_by_key(|&node| {
            let count = members_on(node);
            let in_group = with_group.contains(&group(node));
            (count > 0, with_set.contains(&node), in_group, count, Some(node) != home, had_part(node), node)
        })
        .unwrap_or(NodeRank(0))
}

#[cfg(test)]
mod tests {
    use scrfs::dataset::{Layout, MemberPlace, Protection, Scheme};
    use scrfs::ids::Epoch;

    use super::*;

    fn cluster(hosts: &[&str]) -> Cluster {
        let settings = crate::settings::tests::settings();
        Cluster::new(Epoch(2), hosts.iter().map(|host| (*host).to_owned()).collect(), settings, 0)
    }

    fn catalog(hosts: &[&str], sets: &[&[u32]]) -> Catalog {
        let place = |host: &&str| MemberPlace { host: (*host).to_owned(), files: 1, bytes: 1, taken: None };
        Catalog {
            id: DatasetId(1),
            epoch: Epoch(1),
            revision: 0,
            name: b"ck".to_vec(),
            created_us: 0,
            user: String::new(),
            job_id: String::new(),
            layout: Layout {
                encoding: 0,
                protection: Protection::by(Scheme::Xor),
                members: hosts.iter().map(place).collect(),
                sets: sets.iter().map(|set| set.iter().copied().map(Member).collect()).collect(),
            },
            entries: Vec::new(),
        }
    }

    /// Hosts of the members, sets, nodes now, who holds what, the lost member, and where it goes.
    #[test]
    fn a_lost_member_goes_to() {
        type Row<'a> = (&'a [&'a str], &'a [&'a [u32]], &'a [&'a str], &'a [(u32, u32)], u32, u32, &'a str);
        let table: &[Row<'_>] = &[
            (&["a", "b", "c"], &[&[0, 1, 2]], &["a", "s", "c"], &[(0, 0), (2, 2)], 1, 1, "the spare"),
            (
                &["a", "b", "c"],
                &[&[0, 1, 2]],
                &["s", "a", "b", "c"],
                &[(0, 1), (2, 3)],
                1,
                2,
                "its own node again",
            ),
            (&["a", "b", "c"], &[&[0, 1, 2]], &["a", "c"], &[(0, 0), (2, 1)], 1, 0, "any"),
            (
                &["a", "b", "c", "d"],
                &[&[0, 1], &[2, 3]],
                &["a", "c", "d"],
                &[(0, 0), (2, 1), (3, 2)],
                1,
                1,
                "a node of another set",
            ),
        ];
        for (members, sets, nodes, held, lost, wanted, why) in table {
            let (cluster, catalog) = (cluster(nodes), catalog(members, sets));
            let places = held.iter().map(|(member, node)| (Member(*member), NodeRank(*node))).collect();
            let set = catalog.layout.sets.iter().find(|set| set.contains(&Member(*lost))).unwrap();
            assert_eq!(target(&cluster, &catalog, set, &places, Member(*lost)), NodeRank(*wanted), "{why}");
        }
    }

    #[test]
    fn a_lost_member_goes_to_a_rack_of_which_its_set_has_no_member() {
        let mut cluster = cluster(&["a", "c", "s", "t"]);
        let protection = Protection { group: "RACK".to_owned(), ..Protection::by(Scheme::Xor) };
        cluster.settings.protections = scrfs::dataset::Protections::all(protection.clone());
        let racks = ["1", "3", "3", "2"].map(|rack| BTreeMap::from([("RACK".to_owned(), rack.to_owned())]));
        let nodes: Vec<_> = ["a", "c", "s", "t"].into_iter().zip(&racks).collect();
        let groups = crate::groups::FailureGroups::of(&cluster.settings, &nodes).unwrap();
        let cluster = cluster.of_groups(groups);
        let mut catalog = catalog(&["a", "b", "c"], &[&[0, 1, 2]]);
        catalog.layout.protection = protection;
        let places = [(Member(0), NodeRank(0)), (Member(2), NodeRank(1))].into();
        let set = &catalog.layout.sets[0];
        assert_eq!(
            target(&cluster, &catalog, set, &places, Member(1)),
            NodeRank(3),
            "not s, which is in c's rack"
        );
    }
}

//! Where the members of a dataset are, and where those go that are nowhere.

use std::collections::{BTreeMap, BTreeSet};

use scrfs::control::{Reason, sum_of_paths};
use scrfs::dataset::{Catalog, EntryKind, Layout, Repair, Scheme};
use scrfs::ids::{Member, NodeRank};
use scrfs::path::RelPath;

use super::super::cluster::Cluster;
use crate::job::SetMember;

/// A member's files on a node.
#[derive(Debug, Clone, Copy)]
pub(super) struct Copy {
    pub(super) member: Member,
    pub(super) node: NodeRank,
    /// Its redundancy file is gone or bad.
    pub(super) is_bare: bool,
}

/// Where each member is, if it is anywhere.
#[derive(Debug, Clone, Default)]
pub(super) struct Places {
    nodes: BTreeMap<Member, NodeRank>,
    /// Members whose files are there, and whose redundancy file is not.
    bare: BTreeSet<Member>,
    /// Those of them whose redundancy file stays gone: there is no room for it.
    unguarded: BTreeSet<Member>,
}

/// A dataset whose members have all been given a node.
#[derive(Debug, Default)]
pub(super) struct Restored {
    /// Every member is in it.
    pub(super) places: BTreeMap<Member, NodeRank>,
    /// Members without files that were lost, and that nobody could give back.
    pub(super) fresh: BTreeSet<Member>,
    /// Redundancy data is gone: see [`scrfs::dataset::Repair::anew`].
    pub(super) anew: bool,
}

impl Places {
    /// Of several copies of a member one with its redundancy file is taken, then the one on the
    /// node that the catalog names, then the one of the lowest rank.
    pub(super) fn of(cluster: &Cluster, catalog: &Catalog, copies: impl Iterator<Item = Copy>) -> Self {
        let mut best: BTreeMap<Member, (bool, bool, NodeRank)> = BTreeMap::new();
        for Copy { member, node, is_bare } in copies {
            let Some(place) = catalog.layout.members.get(member.0 as usize) else { continue };
            let key = (is_bare, place.host != cluster.host(node), node);
            best.entry(member).and_modify(|best| *best = key.min(*best)).or_insert(key);
        }
        let bare = best.iter().filter(|(_, (is_bare, ..))| *is_bare).map(|(member, _)| *member).collect();
        let nodes = best.into_iter().map(|(member, (.., node))| (member, node)).collect();
        Self { nodes, bare, unguarded: BTreeSet::new() }
    }

    /// Members that are somewhere.
    pub(super) fn count(&self) -> usize {
        self.nodes.len()
    }

    /// Positions in a set: of members that are nowhere, and of those without their redundancy file.
    pub(super) fn gone(&self, set: &[Member]) -> (Vec<usize>, Vec<usize>) {
        let positions = |of: &dyn Fn(&Member) -> bool| (0..set.len()).filter(|at| of(&set[*at])).collect();
        (
            positions(&|member| !self.nodes.contains_key(member)),
            positions(&|member| self.bare.contains(member)),
        )
    }

    /// Each set can give back what is gone of it.
    pub(super) fn recoverable(&self, layout: &Layout) -> Result<(), Reason> {
        for set in &layout.sets {
            let (lost, bare) = self.gone(set);
            if layout.repair(set, &lost, &bare).is_some() {
                continue;
            }
            let named =
                |at: &[usize]| at.iter().map(|at| set[*at].to_string()).collect::<Vec<_>>().join(", ");
            let mut text = format!("members {} of a set of {} are lost", named(&lost), set.len());
            if !bare.is_empty() {
                text = format!("{text}, and the redundancy data of {}", named(&bare));
            }
            return Err(format!("{text}, more than {} gives back", layout.scheme()).into());
        }
        Ok(())
    }

    /// Redundancy files on these nodes stay gone, as there is no room for them; and whether there
    /// are more such than before.
    pub(super) fn without_guards_on(mut self, full: &BTreeSet<NodeRank>) -> (Self, bool) {
        let before = self.unguarded.len();
        let is_on_full = |member: &&Member| self.nodes.get(member).is_some_and(|node| full.contains(node));
        self.unguarded.extend(self.bare.iter().filter(is_on_full));
        let any = self.unguarded.len() > before;
        (self, any)
    }

    /// Which of the positions that a repair of the set gives back are rebuilt. Of Reed-Solomon all
    /// are while a member is lost: its rebuild would read what is left out.
    pub(super) fn rebuilt(&self, layout: &Layout, set: &[Member], repair: &Repair) -> Vec<usize> {
        let is_lost = |member| !self.nodes.contains_key(member);
        let together = matches!(layout.scheme(), Scheme::ReedSolomon { .. }) && set.iter().any(is_lost);
        let stays_gone = |at: &&usize| !together && self.unguarded.contains(&set[**at]);
        repair.rebuild.iter().filter(|at| !stays_gone(at)).copied().collect()
    }

    /// With a node for each member that is nowhere; one that is `full` only if all are.
    pub(super) fn with_targets(
        &self,
        cluster: &Cluster,
        catalog: &Catalog,
        full: &BTreeSet<NodeRank>,
    ) -> BTreeMap<Member, NodeRank> {
        let mut places = self.nodes.clone();
        let mut targets = Targets { full, ..Targets::new(cluster, catalog, &places) };
        for set in &catalog.layout.sets {
            for member in set {
                if !places.contains_key(member) {
                    let target = targets.of(set, &places, *member);
                    targets.counts[target.0 as usize] += 1;
                    places.insert(*member, target);
                }
            }
        }
        places
    }
}

/// Members named when some are rebuilt; of more, only their number is told.
const TOLD_MAX: usize = 16;

/// Which members of a dataset are rebuilt, whose they were, and where they are now.
pub(super) fn told(
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

/// The files of each member, found in one pass.
pub(in crate::lead) struct MemberFiles<'a>(Vec<Vec<(&'a RelPath, u64)>>);

impl<'a> MemberFiles<'a> {
    pub(in crate::lead) fn of_all(catalog: &'a Catalog) -> Self {
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
    pub(in crate::lead) fn paths(&self, member: Member) -> Vec<RelPath> {
        self.get(member).iter().map(|(path, _)| (*path).clone()).collect()
    }

    pub(in crate::lead) fn sum_of_paths(&self, member: Member) -> u32 {
        sum_of_paths(self.get(member).iter().map(|(path, _)| *path))
    }

    /// A member that is on this node.
    pub(in crate::lead) fn on(&self, member: Member, node: NodeRank) -> SetMember {
        SetMember { member, node, sizes: self.get(member).iter().map(|(_, size)| *size).collect() }
    }

    fn get(&self, member: Member) -> &[(&'a RelPath, u64)] {
        self.0.get(member.0 as usize).map_or(&[], Vec::as_slice)
    }
}

/// The nodes that lost members may go to.
struct Targets<'a> {
    cluster: &'a Cluster,
    catalog: &'a Catalog,
    /// The failure group of each node.
    groups: Vec<u32>,
    /// How many members of the dataset each node has by now.
    counts: Vec<usize>,
    /// The nodes that the catalog names.
    had_part: BTreeSet<&'a str>,
    /// Nodes whose cache has no room.
    full: &'a BTreeSet<NodeRank>,
}

/// Of which nodes that is known.
const NONE_FULL: &BTreeSet<NodeRank> = &BTreeSet::new();

impl<'a> Targets<'a> {
    fn new(cluster: &'a Cluster, catalog: &'a Catalog, places: &BTreeMap<Member, NodeRank>) -> Self {
        let mut counts = vec![0; cluster.hosts.len()];
        for node in places.values() {
            counts[node.0 as usize] += 1;
        }
        let groups = cluster.groups_of(&catalog.layout.protection);
        let had_part = catalog.layout.members.iter().map(|place| place.host.as_str()).collect();
        Self { cluster, catalog, groups, counts, had_part, full: NONE_FULL }
    }

    /// Where a lost member goes: to a node that holds none, of these to one of a failure group that
    /// its set has no member in, then to the node that had it, then to one that never had a part in
    /// the dataset. Where all hold some: to one that is not of the same set, then not of a group of
    /// it, then to the one with the fewest.
    fn of(&self, set: &[Member], places: &BTreeMap<Member, NodeRank>, lost: Member) -> NodeRank {
        let cluster = self.cluster;
        let place = self.catalog.layout.members.get(lost.0 as usize);
        let home = place.and_then(|place| cluster.rank_of(&place.host));
        let group = |node: NodeRank| self.groups.get(node.0 as usize);
        let others = set.iter().filter(|&&member| member != lost);
        let with_set: BTreeSet<_> = others.filter_map(|member| places.get(member)).copied().collect();
        let with_group: BTreeSet<_> = with_set.iter().map(|&node| group(node)).collect();
        let key = |node: &NodeRank| {
            let count = self.counts[node.0 as usize];
            let (in_set, in_group) = (with_set.contains(node), with_group.contains(&group(*node)));
            let had_part = self.had_part.contains(cluster.host(*node));
            let is_full = self.full.contains(node);
            (is_full, count > 0, in_set, in_group, count, Some(*node) != home, had_part, *node)
        };
        cluster.nodes().min_by_key(key).unwrap_or(NodeRank(0))
    }
}

#[cfg(test)]
mod tests {
    use scrfs::dataset::{MemberPlace, Protection};
    use scrfs::ids::{DatasetId, Epoch};

    use super::*;

    fn target(
        cluster: &Cluster,
        catalog: &Catalog,
        set: &[Member],
        places: &BTreeMap<Member, NodeRank>,
        lost: Member,
    ) -> NodeRank {
        Targets::new(cluster, catalog, places).of(set, places, lost)
    }

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

    /// A set of four members, the first of which is lost, or none is; the redundancy file of the
    /// one at `bare` is gone, and its node is full: what is rebuilt, and whether more is made anew.
    #[test]
    fn there_is_no_room_for_a_redundancy_file_that_is_gone() {
        type Row = (Scheme, bool, u64, usize, &'static [usize], bool);
        let rs = Scheme::ReedSolomon { failures: 2 };
        let table: [Row; 6] = [
            (Scheme::Xor, false, 1, 2, &[], false),
            // Nobody is asked for what it has not.
            (Scheme::Xor, true, 0, 2, &[], true),
            (Scheme::Partner, true, 1, 2, &[0], false),
            (Scheme::Partner, true, 0, 1, &[0], false),
            (rs, false, 1, 2, &[], false),
            (rs, true, 1, 2, &[0, 2], false),
        ];
        for (scheme, is_lost, files, bare, wanted, anew) in table {
            let cluster = cluster(&["a", "b", "c", "d"]);
            let mut catalog = catalog(&["a", "b", "c", "d"], &[&[0, 1, 2, 3]]);
            catalog.layout.protection = Protection::by(scheme);
            catalog.layout.members[0].files = files;
            let there = (u32::from(is_lost)..4).map(|at| Copy {
                member: Member(at),
                node: NodeRank(at),
                is_bare: at as usize == bare,
            });
            let found = Places::of(&cluster, &catalog, there);
            let full = BTreeSet::from([NodeRank(u32::try_from(bare).unwrap())]);
            let (found, more) = found.without_guards_on(&full);
            assert!(more && !found.clone().without_guards_on(&full).1);
            let set = &catalog.layout.sets[0];
            let (lost, bare) = found.gone(set);
            let repair = catalog.layout.repair(set, &lost, &bare).unwrap();
            let rebuilt = found.rebuilt(&catalog.layout, set, &repair);
            assert_eq!((&rebuilt[..], repair.anew), (wanted, anew), "{scheme}, {files} files");
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

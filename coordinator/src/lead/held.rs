//! What the nodes have of a dataset when an epoch begins, as their inventories tell.

use std::collections::{BTreeMap, BTreeSet};

use scrfs::control::HeldState;
use scrfs::dataset::Layout;
use scrfs::ids::{Epoch, Member, NodeRank};

use super::cluster::Cluster;

/// What one node has of a dataset.
#[derive(Debug, Clone)]
pub(super) struct Holding {
    pub(super) revision: u32,
    pub(super) state: HeldState,
    pub(super) members: BTreeSet<u32>,
    /// Their redundancy files that are there, by encoding.
    pub(super) encoded: BTreeSet<(Member, u32)>,
    /// While it is not complete: sums of their files' paths.
    pub(super) paths: Vec<(Member, u32)>,
    pub(super) flushed: bool,
    pub(super) listed: bool,
    pub(super) failed: bool,
}

impl Holding {
    /// It has redundancy files of other encodings.
    pub(super) fn has_others_than(&self, encoding: u32) -> bool {
        self.encoded.iter().any(|(_, one)| *one != encoding)
    }

    /// This member has the redundancy file that the layout says.
    pub(super) fn guards(&self, layout: &Layout, member: Member) -> bool {
        !layout.has_redundancy_file(member) || self.encoded.contains(&(member, layout.encoding))
    }

    /// The members that this layout has on the node, `host`, have the redundancy files that it
    /// says; `protected` is of [`Layout::protected`]. What a node has of others is left over from
    /// before they moved.
    pub(super) fn is_encoded_as(&self, layout: &Layout, protected: &[bool], host: &str) -> bool {
        let is_at_home =
            |member: &Member| layout.members.get(member.0 as usize).is_some_and(|place| place.host == host);
        self.members.iter().map(|member| Member(*member)).filter(is_at_home).all(|member| {
            let is_protected = protected.get(member.0 as usize) == Some(&true);
            !is_protected || self.encoded.contains(&(member, layout.encoding))
        })
    }
}

/// A dataset that is complete: some daemon recorded COMPLETE.
#[derive(Debug, Clone)]
pub(super) struct Held {
    pub(super) epoch: Epoch,
    pub(super) name: Vec<u8>,
    pub(super) nodes: BTreeMap<NodeRank, Holding>,
    /// Nodes that have another dataset under this id: made while the network or the PFS was in
    /// pieces.
    pub(super) strangers: Vec<NodeRank>,
}

impl Held {
    pub(super) fn flushed(&self) -> bool {
        self.nodes.values().any(|holding| holding.flushed)
    }

    pub(super) fn listed(&self) -> bool {
        self.nodes.values().any(|holding| holding.listed)
    }

    /// A node that has its highest revision has it marked as failed. An older revision's mark says
    /// nothing: it was fetched anew since.
    pub(super) fn failed(&self) -> bool {
        let highest = self.highest_revision();
        self.complete().any(|(_, holding)| holding.failed && holding.revision == highest)
    }

    pub(super) fn highest_revision(&self) -> u32 {
        self.complete().map(|(_, holding)| holding.revision).max().unwrap_or(0)
    }

    /// Those of `nodes` that have not recorded this revision, or do not list the dataset.
    pub(super) fn missing(&self, nodes: &[NodeRank], revision: u32) -> Vec<NodeRank> {
        let has = |node: &NodeRank| {
            self.nodes.get(node).is_some_and(|holding| {
                holding.state == HeldState::Complete && holding.revision == revision && holding.listed
            })
        };
        nodes.iter().copied().filter(|node| !has(node)).collect()
    }

    /// Positions of the members that are on no node, set by set.
    pub(super) fn lost<'a>(&self, layout: &'a Layout) -> impl Iterator<Item = (&'a Vec<Member>, Vec<usize>)> {
        let held: BTreeSet<u32> =
            self.nodes.values().flat_map(|holding| holding.members.iter().copied()).collect();
        layout.sets.iter().map(move |set| {
            let lost = (0..set.len()).filter(|at| !held.contains(&set[*at].0)).collect();
            (set, lost)
        })
    }

    /// Some member is on no node.
    pub(super) fn lacks_members(&self, layout: &Layout) -> bool {
        self.lost(layout).any(|(_, lost)| !lost.is_empty())
    }

    /// Members whose files or redundancy files are on no node, also those that nothing gives back:
    /// a dataset without them is not whole, and the one before it stays.
    pub(super) fn absent(&self, layout: &Layout) -> BTreeSet<Member> {
        let protected = layout.protected();
        let encoded = self.nodes.values().flat_map(|holding| &holding.encoded);
        let encoded: BTreeSet<Member> =
            encoded.filter(|(_, encoding)| *encoding == layout.encoding).map(|(member, _)| *member).collect();
        let place = |member: &Member| layout.members.get(member.0 as usize);
        let is_guarded = |member: &Member| protected.get(member.0 as usize) == Some(&true);
        let has_any =
            |member: &Member| is_guarded(member) || place(member).is_some_and(|place| place.files > 0);
        let of_set = |(set, mut lost): (&Vec<Member>, Vec<usize>)| {
            lost.extend((0..set.len()).filter(|at| is_guarded(&set[*at]) && !encoded.contains(&set[*at])));
            lost.sort_unstable();
            lost.dedup();
            let lost: Vec<Member> = lost.into_iter().map(|at| set[at]).collect();
            if lost.iter().any(has_any) { lost } else { Vec::new() }
        };
        self.lost(layout).flat_map(of_set).collect()
    }

    /// So many nodes have removed their members that the others cannot give them back. What a node
    /// has and cannot read now, or what is on one that takes no part, may be there again later.
    pub(super) fn is_removed(&self, cluster: &Cluster, layout: &Layout) -> bool {
        let has_removed = |member: Member| {
            let place = layout.members.get(member.0 as usize);
            let home = place.and_then(|place| cluster.rank_of(&place.host));
            home.is_some_and(|home| !self.nodes.contains_key(&home))
        };
        self.lost(layout).any(|(set, mut lost)| {
            lost.retain(|at| has_removed(set[*at]));
            layout.repair(set, &lost, &[]).is_none()
        })
    }

    pub(super) fn complete(&self) -> impl Iterator<Item = (NodeRank, &Holding)> {
        self.nodes
            .iter()
            .filter(|(_, holding)| holding.state == HeldState::Complete)
            .map(|(node, holding)| (*node, holding))
    }
}

#[cfg(test)]
mod tests {
    use scrfs::dataset::{MemberPlace, Protection, Scheme};

    use super::*;

    /// Of an XOR set of three members, of which `here` are on their nodes.
    fn absent(here: &[u32]) -> Vec<u32> {
        let place = |host: &str| MemberPlace { host: host.to_owned(), files: 1, bytes: 1, taken: None };
        let layout = Layout {
            encoding: 0,
            protection: Protection::by(Scheme::Xor),
            members: ["a", "b", "c"].map(place).into(),
            sets: vec![(0..3).map(Member).collect()],
        };
        let holding = |member: u32| Holding {
            revision: 0,
            state: HeldState::Complete,
            members: BTreeSet::from([member]),
            encoded: BTreeSet::from([(Member(member), 0)]),
            paths: Vec::new(),
            flushed: false,
            listed: true,
            failed: false,
        };
        let nodes = here.iter().map(|member| (NodeRank(*member), holding(*member))).collect();
        let held = Held { epoch: Epoch(1), name: b"ck".to_vec(), nodes, strangers: Vec::new() };
        held.absent(&layout).into_iter().map(|member| member.0).collect()
    }

    /// Also of those that are lost for good: a dataset without them must not count as whole.
    #[test]
    fn all_members_that_are_on_no_node_are_absent() {
        assert_eq!(absent(&[0, 1, 2]), [0; 0]);
        assert_eq!(absent(&[0, 2]), [1]);
        assert_eq!(absent(&[2]), [0, 1]);
    }
}

//! The tree of coordinators: what rank 0 sends to many goes to a few, who pass it on.
//!
//! Rank 0 is the root, and the children of rank `r` are `f*r + 1` to `f*r + f` for a fan-out `f`.
//! All that rank 0 sends to a node takes the one way through the tree, so its order holds. The tree
//! needs no repair: a coordinator that is gone ends the epoch. What nodes say to rank 0 goes the
//! same way back ([`crate::fold`]).
//!
//! What is passed on are two messages in one lane: whom the next one is for, and that one, of which
//! all copies on their way share their bytes. No socket, clock or thread here.

use std::collections::BTreeMap;

use scrfs::ids::NodeRank;
use serde::{Deserialize, Serialize};

/// Nodes that each coordinator passes messages to. With 10,000 nodes four hops reach all.
pub const FANOUT: u32 = 16;

/// The ranks that a message is for, as ranges: first and last.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ranks(Vec<(u32, u32)>);

impl Ranks {
    /// Of ranks in ascending order.
    fn push(&mut self, rank: u32) {
        match self.0.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(rank) => *last = rank,
            _ => self.0.push((rank, rank)),
        }
    }

    /// How many they are.
    pub fn count(&self) -> u64 {
        self.0.iter().map(|&(first, last)| (u64::from(last) + 1).saturating_sub(first.into())).sum()
    }

    /// Some rank is among both.
    pub fn meet(&self, other: &Self) -> bool {
        let meets = |&(first, last): &(u32, u32)| other.0.iter().any(|of| first <= of.1 && of.0 <= last);
        self.0.iter().any(meets)
    }

    /// Takes those in.
    pub fn join(&mut self, other: &Self) {
        self.0.extend_from_slice(&other.0);
        self.0.sort_unstable();
        let ranges = std::mem::take(&mut self.0);
        for (first, last) in ranges {
            match self.0.last_mut() {
                Some((_, end)) if first <= end.saturating_add(1) => *end = last.max(*end),
                _ => self.0.push((first, last)),
            }
        }
    }

    /// Each of them below `size`, in the order of the ranges.
    pub fn iter(&self, size: u32) -> impl Iterator<Item = u32> {
        self.0.iter().flat_map(move |&(first, last)| first..=last.min(size.saturating_sub(1)))
    }
}

impl FromIterator<NodeRank> for Ranks {
    fn from_iter<I: IntoIterator<Item = NodeRank>>(ranks: I) -> Self {
        let mut sorted: Vec<_> = ranks.into_iter().map(|rank| rank.0).collect();
        sorted.sort_unstable();
        sorted.dedup();
        let mut these = Self::default();
        for rank in sorted {
            these.push(rank);
        }
        these
    }
}

/// The place of one coordinator in the tree.
#[derive(Debug, Clone, Copy)]
pub struct Place {
    me: NodeRank,
    size: u32,
    fanout: u32,
}

/// What becomes of a message.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Route {
    /// It is for this node too.
    pub here: bool,
    /// To whom it is passed on, and whom it is for there.
    pub on: BTreeMap<NodeRank, Ranks>,
}

impl Place {
    /// Of rank `me` among `size`; a fan-out of less than two is none.
    pub fn new(me: NodeRank, size: u32, fanout: u32) -> Self {
        Self { me, size, fanout: fanout.max(2) }
    }

    /// Who passes messages to this node; none to the root.
    pub fn parent(self) -> Option<NodeRank> {
        parent(self.me.0, self.fanout).map(NodeRank)
    }

    /// To whom this node passes messages.
    pub fn children(self) -> impl Iterator<Item = NodeRank> {
        let first = u64::from(self.me.0) * u64::from(self.fanout) + 1;
        let end = first.saturating_add(self.fanout.into()).min(self.size.into());
        (first..end).filter_map(|rank| u32::try_from(rank).ok()).map(NodeRank)
    }

    /// All nodes are the root's children: nobody passes anything on.
    pub fn is_flat(self) -> bool {
        self.size <= self.fanout.saturating_add(1)
    }

    /// Where a message for `ranks` goes from here. Those that are not below this node are left out.
    pub fn route(self, ranks: &Ranks) -> Route {
        let mut route = Route::default();
        for rank in ranks.iter(self.size) {
            if rank == self.me.0 {
                route.here = true;
            } else if let Some(child) = self.towards(rank) {
                route.on.entry(NodeRank(child)).or_default().push(rank);
            }
        }
        route
    }

    /// All of them are below this node, behind `child` or that one itself.
    pub fn all_through(self, ranks: &Ranks, child: NodeRank) -> bool {
        ranks.count() <= self.size.into()
            && ranks.0.iter().all(|&(first, last)| {
                last < self.size && (first..=last).all(|rank| self.towards(rank) == Some(child.0))
            })
    }

    /// This node and all below it.
    pub fn subtree(self) -> u64 {
        let (fanout, size) = (u64::from(self.fanout), u64::from(self.size));
        let (mut first, mut last, mut count) = (u64::from(self.me.0), u64::from(self.me.0), 0);
        while first < size {
            count += last.min(size - 1) - first + 1;
            (first, last) = (first * fanout + 1, last * fanout + fanout);
        }
        count
    }

    /// The child of this node through which `rank` is reached.
    pub fn towards(self, rank: u32) -> Option<u32> {
        let mut at = rank;
        loop {
            let above = parent(at, self.fanout)?;
            if above == self.me.0 {
                return Some(at);
            }
            at = above;
        }
    }
}

fn parent(rank: u32, fanout: u32) -> Option<u32> {
    rank.checked_sub(1).map(|before| before / fanout)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranks(all: impl IntoIterator<Item = u32>) -> Ranks {
        all.into_iter().map(NodeRank).collect()
    }

    #[test]
    fn every_node_is_reached_once_whoever_it_is_for() {
        for (size, fanout) in [(1, 2), (2, 2), (6, 2), (17, 16), (18, 16), (100, 3), (10_000, 16)] {
            for keep in [1, 2, 7] {
                let wanted: Vec<_> = (0..size).filter(|rank| rank % keep == 0).collect();
                let mut reached = Vec::new();
                let mut sent = vec![(NodeRank(0), ranks(wanted.iter().copied()))];
                while let Some((at, to)) = sent.pop() {
                    let place = Place::new(at, size, fanout);
                    let Route { here, on } = place.route(&to);
                    reached.extend(here.then_some(at.0));
                    for (child, ranks) in on {
                        assert!(place.children().any(|one| one == child), "{at} to {child}");
                        assert_eq!(Place::new(child, size, fanout).parent(), Some(at));
                        sent.push((child, ranks));
                    }
                }
                reached.sort_unstable();
                assert_eq!(reached, wanted, "{size} nodes, fan-out {fanout}");
            }
        }
    }

    #[test]
    fn nobody_has_more_to_pass_on_than_the_fan_out() {
        for size in [1, 16, 17, 18, 300] {
            let all = (0..size).map(|rank| Place::new(NodeRank(rank), size, 16));
            let below: usize = all.clone().map(|place| place.children().count()).sum();
            assert_eq!(below, usize::try_from(size).unwrap() - 1, "each has one parent");
            assert!(all.clone().all(|place| place.children().count() <= 16));
            assert_eq!(all.clone().any(Place::is_flat), size <= 17);
        }
    }

    #[test]
    fn a_node_counts_those_that_speak_through_it() {
        for (size, fanout) in [(1, 2), (6, 2), (18, 16), (100, 3), (10_000, 16)] {
            let place = |rank| Place::new(NodeRank(rank), size, fanout);
            assert_eq!(place(0).subtree(), u64::from(size));
            for rank in [0, 1, size / 2] {
                let below: u64 = place(rank).children().map(|child| place(child.0).subtree()).sum();
                assert_eq!(place(rank).subtree(), below + u64::from(rank < size), "{rank} of {size}");
            }
        }
    }

    #[test]
    fn ranks_are_joined_and_compared_as_sets() {
        let mut some = ranks([1, 2, 9]);
        assert!(some.meet(&ranks([0, 2])) && !some.meet(&ranks([3, 8, 10])) && !some.meet(&ranks([])));
        some.join(&ranks([3, 7, 8]));
        assert_eq!((some.0.as_slice(), some.count()), ([(1, 3), (7, 9)].as_slice(), 6));
        let senseless = Ranks(vec![(5, 2)]);
        assert_eq!((senseless.count(), senseless.meet(&ranks([3]))), (0, false));
    }

    #[test]
    fn ranges_of_strangers_are_bounded_by_the_nodes_that_there_are() {
        let place = Place::new(NodeRank(1), 4, 2);
        let said = Ranks(vec![(3, u32::MAX), (2, 1), (0, 0)]);
        let route = place.route(&said);
        assert_eq!((route.here, route.on), (false, [(NodeRank(3), ranks([3]))].into()));
        assert_eq!(Place::new(NodeRank(u32::MAX - 1), u32::MAX, 16).children().count(), 0);
        assert_eq!(ranks([5, 1, 2, 2, 4]).0, [(1, 2), (4, 5)]);
    }
}

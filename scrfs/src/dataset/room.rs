//! Room that a sealed dataset takes on each node.

use std::collections::BTreeMap;

use super::{Layout, Scheme};
use crate::ids::Member;
use crate::redundancy::geometry::Geometry;

impl Layout {
    /// Bytes of the cache that the dataset takes on each host, its members' files and what protects
    /// their sets: what was seen when it was sealed, else by their sizes.
    pub fn bytes_by_host(&self) -> BTreeMap<&str, u64> {
        let bytes = |member: &Member| self.members.get(member.0 as usize).map_or(0, |place| place.bytes);
        let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
        for set in &self.sets {
            let lengths: Vec<u64> = set.iter().map(bytes).collect();
            // A set of one protects nothing, and has no parity.
            let geometry = Geometry::new(&lengths, self.scheme().parities(set.len()));
            let parity = geometry.as_ref().map_or(0, Geometry::payload);
            for (at, member) in set.iter().enumerate() {
                let Some(place) = self.members.get(member.0 as usize) else { continue };
                let protection = match self.scheme() {
                    Scheme::Partner if set.len() == 1 => 0,
                    Scheme::Partner => lengths[(at + set.len() - 1) % set.len()],
                    Scheme::Single | Scheme::Xor | Scheme::ReedSolomon { .. } => parity,
                };
                let taken = place.taken.unwrap_or(place.bytes.saturating_add(protection));
                let sum = sums.entry(&place.host).or_default();
                *sum = sum.saturating_add(taken);
            }
        }
        sums
    }

    /// Bytes that the dataset takes on `host`.
    pub fn bytes_on(&self, host: &str) -> u64 {
        self.bytes_by_host().get(host).copied().unwrap_or(0)
    }

    /// Files that the dataset has on `host`, redundancy files left out.
    pub fn files_on(&self, host: &str) -> u64 {
        self.members.iter().filter(|place| place.host == host).map(|place| place.files).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::{MemberPlace, Scheme};

    fn layout(scheme: Scheme, bytes: &[u64]) -> Layout {
        let place = |(at, &bytes): (usize, &u64)| MemberPlace {
            host: format!("n{at}"),
            files: 1,
            bytes,
            taken: None,
        };
        let members: Vec<MemberPlace> = bytes.iter().enumerate().map(place).collect();
        let sets = vec![(0..).map(Member).take(bytes.len()).collect()];
        Layout { protection: crate::dataset::Protection::by(scheme), members, sets, encoding: 0 }
    }

    #[test]
    fn a_node_has_its_files_and_what_protects_others() {
        assert_eq!(layout(Scheme::Single, &[10, 20, 30]).bytes_on("n1"), 20);
        assert_eq!(layout(Scheme::Partner, &[10, 20, 30]).bytes_on("n1"), 30);
        assert_eq!(layout(Scheme::Partner, &[10, 20, 30]).bytes_on("n0"), 40);
        assert_eq!(layout(Scheme::Xor, &[10, 20, 31]).bytes_on("n1"), 36);
        assert_eq!(layout(Scheme::Xor, &[10]).bytes_on("n0"), 10);
        let rs = Scheme::ReedSolomon { failures: 2 };
        assert_eq!(layout(rs, &[10, 20, 31]).bytes_on("n1"), 20 + 2 * 31);
        assert_eq!(layout(rs, &[10, 20]).bytes_on("n1"), 20 + 20);
        assert_eq!(layout(Scheme::Xor, &[10, 20]).bytes_on("elsewhere"), 0);
    }

    #[test]
    fn what_was_seen_counts_before_sizes() {
        let mut sparse = layout(Scheme::Xor, &[10, 20, 31]);
        sparse.members[1].taken = Some(7);
        assert_eq!(sparse.bytes_by_host().into_values().collect::<Vec<_>>(), [26, 7, 47]);
    }
}

//! What some nodes know of the owners of versions goes to the others before they get the datasets
//! themselves, so that whoever has a dataset has bound what belongs to it.

use std::collections::{BTreeMap, BTreeSet};

use scrfs::control::Command;
use scrfs::control::loose::{Age, LooseStamp, LooseVersion};
use scrfs::ids::NodeRank;

use super::cluster::Cluster;
use super::loose::Loose;
use super::versions::Versions;

impl Loose {
    /// A restart begins: a node that has what goes with a dataset knows so before it gets the
    /// dataset itself.
    pub(super) fn tell_bound(&mut self, cluster: &mut Cluster) {
        let Some(telling) = &self.telling else { return };
        let base = telling.iter().map(|(_, inventory)| inventory.base).max().flatten();
        let current = || telling.iter().filter(|(_, inventory)| base.is_some() && inventory.base == base);
        let mut joined = Versions::default();
        let mut began: BTreeMap<Age, u64> = BTreeMap::new();
        for (_, inventory) in current() {
            began.extend(inventory.began.iter().copied());
            inventory.versions.iter().for_each(|version| joined.insert(version.clone()));
        }
        for (node, inventory) in current() {
            let known = |version: &LooseVersion| joined.get(version.stamp).map(|known| known.owner.clone());
            let differs = inventory.versions.iter().filter_map(|version| {
                known(version).filter(|owner| *owner != version.owner).map(|owner| (version.stamp, owner))
            });
            let bound: Vec<_> = differs.collect();
            let had = |stamp: LooseStamp| inventory.versions.iter().any(|version| version.stamp == stamp);
            let whole = began.iter().filter(|(age, _)| joined.is_whole_with(**age, had));
            let news: Vec<(Age, u64)> = whole.map(|(age, began)| (*age, *began)).collect();
            if !bound.is_empty() || news != inventory.began {
                cluster.send(node, Command::LooseBind { bound, began: news });
            }
        }
    }

    /// Before a seal that goes on is committed: what belongs to it is bound, as on the others. A
    /// node that has forgotten what goes with an older one does not hear when that began.
    pub(super) fn bind_first(&self, cluster: &mut Cluster, holders: &mut [(NodeRank, Vec<LooseVersion>)]) {
        for (node, versions) in holders {
            let stamps: BTreeSet<LooseStamp> = versions.iter().map(|version| version.stamp).collect();
            let had = |stamp: LooseStamp| stamps.contains(&stamp);
            let tells = |age: &Age| self.doubts.contains(age) || self.versions.is_whole_with(*age, had);
            let began = self.sealed.iter().filter(|(age, _)| tells(age));
            let began: Vec<(Age, u64)> = began.map(|(age, began)| (*age, *began)).collect();
            let mut bound = Vec::new();
            for version in versions {
                if let Some(known) = self.versions.get(version.stamp).filter(|v| v.owner != version.owner) {
                    version.owner = known.owner.clone();
                    bound.push((version.stamp, known.owner.clone()));
                }
            }
            let bind = Command::LooseBind { bound, began };
            cluster.at_front(|cluster| cluster.send(*node, bind));
        }
    }
}

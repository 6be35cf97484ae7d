//! Some jobs ask that no two nodes of a rack share a redundancy set.

use scrfs::dataset::{Protection, Scheme};
use scrfs::ids::Member;
use scrfs::redundancy::sets::{at_risk, lay_out};

use super::*;

/// Kind of the failure groups of these jobs.
const RACK: &str = "RACK";

/// Two hosts that follow one another share a rack.
fn rack(host: &str) -> u64 {
    host.trim_start_matches('n').parse::<u64>().expect("n and a number") / 2
}

/// In some seeds, whatever else they are.
pub(super) fn ask(settings: &mut Settings, seed: u64) {
    if seed % 4 == 2 {
        let protections = &mut settings.protections;
        for one in std::iter::once(&mut protections.usual).chain(&mut protections.descriptors) {
            RACK.clone_into(&mut one.group);
        }
    }
}

impl World {
    /// As the lead learns them from the nodes that greet it.
    pub(super) fn groups(&self) -> FailureGroups {
        let of = |node: &Daemon| BTreeMap::from([(RACK.to_owned(), rack(&node.host).to_string())]);
        let groups: Vec<_> = self.nodes.iter().map(|node| (node.host.as_str(), of(node))).collect();
        let nodes: Vec<_> = groups.iter().map(|(host, groups)| (*host, groups)).collect();
        FailureGroups::of(&self.settings, &nodes).expect("each node is in a rack")
    }

    /// After a restart in which nothing failed the sets are as good as they can be for where the
    /// members are now.
    pub(super) fn is_well_laid_out(&self, key: Key) {
        let Some(catalog) = observer::catalog(&self.nodes, key) else { return };
        let layout = &catalog.layout;
        for data in
            self.nodes.iter().filter_map(|node| node.datasets.get(&key.1)).flat_map(|d| d.members.values())
        {
            let other = data.encodings.iter().find(|encoding| **encoding != layout.encoding);
            assert_eq!(other, None, "an encoding of {key:?} that does not count is left");
        }
        let (whole, _) = observer::in_places(&self.as_told(), catalog);
        let members = (0..).map(Member).zip(&layout.members);
        let has_any = |member: Member, files: u64| files > 0 || layout.has_redundancy_file(member);
        let absent = self.absent(key.1);
        let lacking: Vec<Member> = members
            .filter(|(member, place)| {
                has_any(*member, place.files) && !whole.contains(member) && !absent.contains(member)
            })
            .map(|(member, _)| member)
            .collect();
        assert_eq!(lacking, [], "{key:?} is presented without what protects it");
        let Protection { set_size, hop_distance, ref group, .. } = layout.protection;
        let group = |host: &str| if group == RACK { rack(host).to_string() } else { host.to_owned() };
        let groups: Vec<String> = layout.members.iter().map(|place| group(&place.host)).collect();
        let best = lay_out(&groups, set_size as usize, hop_distance as usize);
        let (is, best) = (&layout.sets, &best);
        let scheme = layout.scheme();
        assert!(
            at_risk(scheme, is, &groups) <= at_risk(scheme, best, &groups),
            "{is:?} and not {best:?} for {groups:?}"
        );
    }

    /// What is sealed now has sets of one member of each rack at most.
    pub(super) fn racks_are_apart(&self, catalog: &Catalog) {
        let layout = &catalog.layout;
        assert_eq!(layout.protection.group, self.settings.protections.usual.group, "as it was asked for");
        if layout.protection.group != RACK || layout.scheme() == Scheme::Single {
            return;
        }
        for set in &layout.sets {
            let racks: BTreeSet<u64> =
                set.iter().map(|member| rack(&layout.members[member.0 as usize].host)).collect();
            assert_eq!(racks.len(), set.len(), "two members of a rack in one set of {}", catalog.id);
        }
    }
}

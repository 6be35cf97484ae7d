//! Of which failure groups the nodes of an epoch are: what loses a rack, a power supply or a switch
//! loses at once. The lead learns them when nodes greet it, and no two nodes of one group share a
//! redundancy set.

use std::collections::{BTreeMap, BTreeSet};

use scrfs::control::Settings;
use scrfs::dataset::{NODE, Protection, Protections, Scheme};
use scrfs::redundancy::sets::lay_out;
use serde::{Deserialize, Serialize};

/// Hosts that one message names.
const NAMED_MAX: usize = 8;

/// For each kind of groups that all nodes have one of: the group of each node, by rank, as numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailureGroups(BTreeMap<String, Vec<u32>>);

impl FailureGroups {
    /// Of nodes in the order of their ranks, each with its host's name and its groups by kind.
    ///
    /// # Errors
    /// Nodes that have no group of a kind that the job's settings ask for: which hosts.
    pub fn of(settings: &Settings, nodes: &[(&str, &BTreeMap<String, String>)]) -> Result<Self, String> {
        for kind in in_use(settings).into_iter().map(|protection| &protection.group) {
            let missing = nodes.iter().filter(|(_, groups)| !groups.contains_key(kind));
            let missing: Vec<&str> = missing.map(|(host, _)| *host).collect();
            let (named, more) = missing.split_at(NAMED_MAX.min(missing.len()));
            if !named.is_empty() {
                let more = if more.is_empty() { String::new() } else { format!(" and {} more", more.len()) };
                let named = named.join(" ");
                return Err(format!(
                    "groups of the kind {kind} are asked for, and no GROUPS line has one of {named}{more}"
                ));
            }
        }
        // Also kinds that nothing asks for now: a dataset may have been sealed when something did.
        let kinds = nodes.first().into_iter().flat_map(|(_, groups)| groups.keys());
        let numbered = |kind: &String| {
            let mut numbers: BTreeMap<&str, u32> = BTreeMap::new();
            let names: Option<Vec<&String>> = nodes.iter().map(|(_, groups)| groups.get(kind)).collect();
            for name in names.as_ref()? {
                let next = u32::try_from(numbers.len()).unwrap_or(u32::MAX);
                numbers.entry(name).or_insert(next);
            }
            let of_name = |name: &String| numbers.get(name.as_str()).copied().unwrap_or(u32::MAX);
            Some((kind.clone(), names?.into_iter().map(of_name).collect()))
        };
        Ok(Self(kinds.filter_map(numbered).collect()))
    }

    /// The group of each of `nodes` nodes, by rank. Of the kind NODE, and of one of which some node
    /// has none, each node is its own.
    pub fn of_kind(&self, kind: &str, nodes: usize) -> Vec<u32> {
        match self.0.get(kind) {
            Some(groups) if groups.len() == nodes => groups.clone(),
            _ => (0..u32::try_from(nodes).unwrap_or(u32::MAX)).collect(),
        }
    }

    /// For each way of protecting datasets that asks for groups: what they make of its sets, if
    /// these are smaller than nodes alone would make them; with `true` if datasets then survive
    /// fewer losses.
    pub fn shortcomings(&self, settings: &Settings, nodes: usize) -> BTreeSet<(bool, String)> {
        let of_protection = |protection: &Protection| {
            let Protection { group: kind, scheme, set_size, hop_distance, .. } = protection;
            let smallest = |groups: &[u32]| {
                let sets = lay_out(groups, *set_size as usize, *hop_distance as usize);
                sets.iter().map(Vec::len).min().unwrap_or_default()
            };
            let groups = self.of_kind(kind, nodes);
            let count = match groups.iter().collect::<BTreeSet<_>>().len() {
                1 => "one group".to_owned(),
                count => format!("{count} groups"),
            };
            let (size, without) = (smallest(&groups), smallest(&self.of_kind(NODE, nodes)));
            if size >= without {
                return None;
            }
            let failures = scheme.failures().map_or(1, usize::from);
            let text =
                format!("{nodes} nodes in {count} of the kind {kind} make sets of {size}, not of {without}");
            Some(match size {
                1 => (true, format!("{text}: nothing protects those; groups of the kind {NODE} would")),
                _ if size <= failures => {
                    (true, format!("{text}: all but one of such a set may be lost, not {failures}"))
                }
                _ => (false, text),
            })
        };
        in_use(settings).into_iter().filter_map(of_protection).collect()
    }
}

/// The ways of protecting datasets that some id can have, and in which groups count.
fn in_use(settings: &Settings) -> Vec<&Protection> {
    let Protections { usual, descriptors } = &settings.protections;
    let mut intervals = BTreeSet::new();
    let mut all: Vec<_> = descriptors.iter().filter(|one| intervals.insert(one.interval)).collect();
    if !intervals.contains(&1) {
        all.insert(0, usual);
    }
    all.retain(|one| one.group != NODE && one.scheme != Scheme::Single);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(scheme: Scheme, set_size: u32) -> Settings {
        let usual = Protection { set_size, group: "SWITCH".to_owned(), ..Protection::by(scheme) };
        let mut settings = crate::settings::tests::settings();
        settings.protections = Protections::all(usual);
        settings
    }

    fn nodes(switches: &[&str]) -> Vec<(String, BTreeMap<String, String>)> {
        let of = |switch: &&str| [("SWITCH".to_owned(), (*switch).to_owned())].into();
        switches.iter().enumerate().map(|(rank, switch)| (format!("n{rank}"), of(switch))).collect()
    }

    fn pairs(nodes: &[(String, BTreeMap<String, String>)]) -> Vec<(&str, &BTreeMap<String, String>)> {
        nodes.iter().map(|(host, groups)| (host.as_str(), groups)).collect()
    }

    fn groups(settings: &Settings, switches: &[&str]) -> FailureGroups {
        let nodes = nodes(switches);
        FailureGroups::of(settings, &pairs(&nodes)).unwrap()
    }

    #[test]
    fn nodes_of_one_group_have_its_number() {
        let groups = groups(&settings(Scheme::Xor, 8), &["a", "b", "a", "c"]);
        assert_eq!(groups.of_kind("SWITCH", 4), [0, 1, 0, 2]);
        assert_eq!(groups.of_kind(NODE, 4), [0, 1, 2, 3]);
    }

    #[test]
    fn nodes_without_a_group_are_named() {
        let mut nodes = nodes(&["a", "b", "a"]);
        nodes[1].1.clear();
        let of = |settings: Settings| FailureGroups::of(&settings, &pairs(&nodes));
        let error = of(settings(Scheme::Xor, 8)).unwrap_err();
        assert_eq!(error, "groups of the kind SWITCH are asked for, and no GROUPS line has one of n1");
        // Nobody asks for groups: nobody needs one.
        assert!(of(settings(Scheme::Single, 8)).is_ok());
        assert!(of(crate::settings::tests::settings()).is_ok());
        let many: Vec<(String, BTreeMap<String, String>)> =
            (0..20).map(|rank| (format!("n{rank}"), BTreeMap::new())).collect();
        let error = FailureGroups::of(&settings(Scheme::Xor, 8), &pairs(&many));
        assert!(error.unwrap_err().ends_with("n6 n7 and 12 more"));
    }

    #[test]
    fn too_few_groups_are_told() {
        let told = |scheme, size, switches: &[&str]| {
            let settings = settings(scheme, size);
            groups(&settings, switches).shortcomings(&settings, switches.len())
        };
        let line = |weaker: bool, text: &str| BTreeSet::from([(weaker, text.to_owned())]);
        let none = BTreeSet::new();
        assert_eq!(told(Scheme::Xor, 2, &["a", "b", "a", "b"]), none);
        assert_eq!(told(Scheme::Xor, 8, &["a", "b"]), none);
        assert_eq!(
            told(Scheme::Xor, 4, &["a", "b", "a", "b"]),
            line(false, "4 nodes in 2 groups of the kind SWITCH make sets of 2, not of 4")
        );
        assert_eq!(
            told(Scheme::Xor, 4, &["a", "a", "a"]),
            line(
                true,
                "3 nodes in one group of the kind SWITCH make sets of 1, not of 3: nothing protects those; groups of \
                 the kind NODE would"
            )
        );
        assert_eq!(
            told(Scheme::ReedSolomon { failures: 2 }, 4, &["a", "b", "a", "b"]),
            line(
                true,
                "4 nodes in 2 groups of the kind SWITCH make sets of 2, not of 4: all but one of such a set may be lost, \
                 not 2"
            )
        );
    }

    #[test]
    fn only_what_some_dataset_has_counts() {
        let mut settings = settings(Scheme::Xor, 2);
        let node = Protection { group: NODE.to_owned(), ..Protection::by(Scheme::Xor) };
        let nodes = vec![("n0".to_owned(), BTreeMap::new()), ("n1".to_owned(), BTreeMap::new())];
        let is_refused = |settings: &Settings| FailureGroups::of(settings, &pairs(&nodes)).is_err();
        assert!(is_refused(&settings));
        // A descriptor of interval 1 is for all ids, and the first of an interval counts.
        settings.protections.descriptors = vec![node.clone()];
        assert!(!is_refused(&settings));
        let of = |interval, group: &str| Protection { interval, group: group.to_owned(), ..node.clone() };
        settings.protections.descriptors = vec![node.clone(), of(4, NODE), of(4, "SWITCH")];
        assert!(!is_refused(&settings));
        settings.protections.descriptors = vec![node.clone(), of(4, "SWITCH")];
        assert!(is_refused(&settings));
    }
}

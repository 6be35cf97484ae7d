//! Somebody who sees all caches and the prefix at once, and knows what a restart must find. Written
//! apart from the lead.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use scrfs::control::HeldState;
use scrfs::dataset::{Catalog, EntryKind, Scheme};
use scrfs::ids::{DatasetId, Epoch, Member};
use scrfs::path::RelPath;

use crate::daemon::{Daemon, Dataset};
use crate::prefix::Prefix;

pub(crate) type Key = (Epoch, DatasetId);
/// What each dataset's files were when it was sealed.
pub(crate) type Truth = BTreeMap<Key, BTreeMap<RelPath, u64>>;

/// The catalog that counts: the highest revision's.
pub(crate) fn catalog(nodes: &[Daemon], key: Key) -> Option<&Catalog> {
    let complete = nodes.iter().filter_map(|node| node.datasets.get(&key.1));
    let complete = complete.filter(|d| d.epoch == key.0 && d.state == HeldState::Complete);
    complete.filter_map(|dataset| dataset.catalog.as_ref()).max_by_key(|catalog| catalog.revision)
}

/// Members of which some node has good bytes.
pub(crate) fn members(nodes: &[Daemon], key: Key) -> BTreeSet<Member> {
    let Some(newest) = catalog(nodes, key) else { return BTreeSet::new() };
    let mut found = BTreeSet::new();
    let layout = &newest.layout;
    for node in nodes {
        let Some(dataset) = node.datasets.get(&key.1).filter(|d| d.epoch == key.0) else { continue };
        let whole = dataset.members.iter().filter(|(member, data)| data.is_whole(layout, **member));
        let whole: BTreeSet<Member> = whole.map(|(member, _)| *member).collect();
        let same = match &dataset.catalog {
            None => layout.encoding == 0,
            Some(catalog) if catalog.layout.encoding == layout.encoding => {
                catalog.entries == newest.entries && catalog.layout.sets == layout.sets
            }
            // It has not recorded the new encoding: good if it has the data of all that is its own.
            Some(catalog) => {
                let own = |member: &&Member| layout.members[member.0 as usize].host == node.host;
                let mut own = dataset.members.keys().filter(own);
                catalog.entries == newest.entries
                    && own.all(|member| {
                        let data = &dataset.members[member];
                        !layout.has_redundancy_file(*member) || data.encodings.contains(&layout.encoding)
                    })
            }
        };
        if same {
            found.extend(whole);
        }
    }
    found
}

/// Some node that knows its highest revision has it marked as failed.
pub(crate) fn failed(nodes: &[Daemon], key: Key) -> bool {
    let Some(newest) = catalog(nodes, key) else { return false };
    let held = nodes.iter().filter_map(|node| node.datasets.get(&key.1));
    held.filter(|d| d.epoch == key.0 && d.failed)
        .any(|d| d.catalog.as_ref().is_some_and(|catalog| catalog.revision == newest.revision))
}

/// Members whose bytes are good where the catalog says that they are.
pub(crate) fn in_places(nodes: &[Daemon], catalog: &Catalog) -> BTreeSet<Member> {
    let good = |host: &str, member: Member| {
        let holder = nodes.iter().find(|node| node.host == host)?;
        holder.datasets.get(&catalog.id)?.members.get(&member).filter(|data| !data.bad)
    };
    let places = (0..).map(Member).zip(&catalog.layout.members);
    places.filter(|(member, place)| good(&place.host, *member).is_some()).map(|(member, _)| member).collect()
}

/// The others of its set can give this member back.
pub(crate) fn rebuildable(catalog: &Catalog, found: &BTreeSet<Member>, member: Member) -> bool {
    let set = catalog.layout.sets.iter().find(|set| set.contains(&member)).expect("in a set");
    let at = set.iter().position(|m| *m == member).expect("in its set");
    match catalog.layout.scheme() {
        Scheme::Single => false,
        Scheme::Xor => set.len() > 1 && set.iter().all(|m| *m == member || found.contains(m)),
        Scheme::ReedSolomon { failures } => {
            let lost = set.iter().filter(|m| **m == member || !found.contains(m)).count();
            lost <= failures.into() && lost < set.len()
        }
        // Its own files from its right neighbour, the copy that it keeps from its left one.
        Scheme::Partner => {
            let there = |by: usize| found.contains(&set[(at + by) % set.len()]);
            set.len() > 1 && there(1) && there(set.len() - 1)
        }
    }
}

/// The caches can give it.
pub(crate) fn in_caches(nodes: &[Daemon], key: Key) -> bool {
    let Some(catalog) = catalog(nodes, key) else { return false };
    if failed(nodes, key) {
        return false;
    }
    // Ids were given twice when all that knew of the first was away: the newer epoch's stands.
    let newer = |dataset: &Dataset| dataset.epoch > key.0 && dataset.state == HeldState::Complete;
    if nodes.iter().filter_map(|node| node.datasets.get(&key.1)).any(newer) {
        return false;
    }
    let found = members(nodes, key);
    catalog.layout.sets.iter().all(|set| {
        let there = |at: usize| found.contains(&set[at]);
        let lost: Vec<usize> = (0..set.len()).filter(|at| !there(*at)).collect();
        let survives = match catalog.layout.scheme() {
            Scheme::Single => lost.is_empty(),
            Scheme::Xor => lost.len() <= 1 && set.len() > 1,
            Scheme::ReedSolomon { failures } => lost.len() <= failures.into() && lost.len() < set.len(),
            // A member's copy is at its right neighbour, if it has anything to copy.
            Scheme::Partner => lost
                .iter()
                .all(|at| there((at + 1) % set.len()) || catalog.files_of(set[*at]).next().is_none()),
        };
        survives || lost.is_empty() || lost.iter().all(|at| catalog.files_of(set[*at]).next().is_none())
    })
}

pub(crate) fn in_prefix(prefix: &Prefix, key: Key) -> bool {
    prefix.datasets.get(&key).is_some_and(|stored| !stored.failed && !stored.bad && !stored.unreadable)
}

/// What a restart must present as current.
pub(crate) fn expected(nodes: &[Daemon], prefix: &Prefix, distribute: bool, fetch: bool) -> Option<Key> {
    let mut keys: BTreeSet<Reverse<Key>> = prefix.datasets.keys().map(|key| Reverse(*key)).collect();
    for node in nodes {
        let complete = node.datasets.iter().filter(|(_, dataset)| dataset.state == HeldState::Complete);
        keys.extend(complete.map(|(id, dataset)| Reverse((dataset.epoch, *id))));
    }
    // Of two datasets with one id the older makes room for a fetch of the newer, also when that
    // fails then: ids were given twice when all that knew of the first was away.
    let newer = |key: &Key, stored: &Key| stored.1 == key.1 && stored.0 > key.0;
    let makes_room = |key: &Key| {
        fetch && prefix.datasets.iter().any(|(stored, dataset)| newer(key, stored) && !dataset.failed)
    };
    let cached = |key: &Key| distribute && in_caches(nodes, *key) && !makes_room(key);
    let found = |key: &Key| cached(key) || (fetch && in_prefix(prefix, *key));
    keys.into_iter().map(|key| key.0).find(found)
}

/// Every file of a presented dataset is where its catalog says, with the bytes that were sealed.
pub(crate) fn readable(nodes: &[Daemon], truth: &Truth, id: DatasetId) {
    let catalog = nodes[0].datasets[&id].catalog.as_ref().expect("presented");
    let files = &truth[&(catalog.epoch, id)];
    let mut seen = 0;
    for entry in &catalog.entries {
        let EntryKind::File(copy) = &entry.kind else { continue };
        let host = &catalog.layout.members[copy.member.0 as usize].host;
        let holder = nodes.iter().find(|node| node.host == *host).expect("a member's node takes part");
        let data = holder.datasets.get(&id).and_then(|dataset| dataset.members.get(&copy.member));
        let data = data.unwrap_or_else(|| panic!("{host} lacks member {} of {id}", copy.member));
        assert!(!data.bad, "bad bytes of {id} on {host}");
        assert_eq!(
            data.files.get(&entry.path),
            files.get(&entry.path),
            "wrong bytes of {} in {id}",
            entry.path
        );
        seen += 1;
    }
    assert!(seen >= files.len(), "files of {id} are missing");
}

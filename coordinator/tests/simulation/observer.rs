//! Somebody who sees all caches and the prefix at once, and knows what a restart must find. Written
//! apart from the lead.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use scrfs::control::{HeldState, Settings};
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

/// Members that some node has, with the newest encoding's redundancy data; and those of which some
/// node has good files.
pub(crate) fn members(nodes: &[Daemon], key: Key) -> (BTreeSet<Member>, BTreeSet<Member>) {
    let Some(newest) = catalog(nodes, key) else { return Default::default() };
    let (mut whole, mut readable) = (BTreeSet::new(), BTreeSet::new());
    let layout = &newest.layout;
    for node in nodes {
        let Some(dataset) = node.datasets.get(&key.1).filter(|d| d.epoch == key.0) else { continue };
        // It was away when the files were dealt anew, and has recorded neither.
        if dataset.members.iter().any(|(member, data)| !data.is_dealt_by(newest, *member)) {
            continue;
        }
        let is_of_newest = match &dataset.catalog {
            None if layout.encoding == 0 => true,
            Some(catalog) if catalog.entries != newest.entries => continue,
            Some(catalog) if catalog.layout.encoding == layout.encoding => {
                if catalog.layout.sets != layout.sets {
                    continue;
                }
                true
            }
            // It has not recorded the new encoding: good if it has the data of all that is its own.
            _ => {
                let place = |member: &Member| layout.members.get(member.0 as usize);
                let own = |member: &&Member| place(member).is_some_and(|place| place.host == node.host);
                let mut own = dataset.members.keys().filter(own);
                own.all(|member| dataset.members[member].guards(layout, *member))
            }
        };
        let good = || dataset.members.iter().filter(|(_, data)| !data.bad);
        readable.extend(good().map(|(member, _)| *member));
        let guards = good().filter(|(member, data)| is_of_newest && data.guards(layout, **member));
        whole.extend(guards.map(|(member, _)| *member));
    }
    (whole, readable)
}

/// Some node that knows its highest revision has it marked as failed.
pub(crate) fn failed(nodes: &[Daemon], key: Key) -> bool {
    let Some(newest) = catalog(nodes, key) else { return false };
    let held = nodes.iter().filter_map(|node| node.datasets.get(&key.1));
    held.filter(|d| d.epoch == key.0 && d.failed)
        .any(|d| d.catalog.as_ref().is_some_and(|catalog| catalog.revision == newest.revision))
}

/// Members that are where the catalog says, with their redundancy data; and those with good files
/// there.
pub(crate) fn in_places(nodes: &[Daemon], catalog: &Catalog) -> (BTreeSet<Member>, BTreeSet<Member>) {
    let (mut whole, mut readable) = (BTreeSet::new(), BTreeSet::new());
    for (member, place) in (0..).map(Member).zip(&catalog.layout.members) {
        let holder = nodes.iter().find(|node| node.host == place.host);
        let data = holder.and_then(|holder| holder.datasets.get(&catalog.id)?.members.get(&member));
        let Some(data) = data.filter(|data| !data.bad) else { continue };
        readable.insert(member);
        if data.guards(&catalog.layout, member) {
            whole.insert(member);
        }
    }
    (whole, readable)
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
    // Ids were given twice when all that knew of the first was away: the newer one stands, where
    // the caches give it.
    let newer = |dataset: &&Dataset| dataset.epoch > key.0 && dataset.state == HeldState::Complete;
    let mut newer = nodes.iter().filter_map(|node| node.datasets.get(&key.1)).filter(newer);
    if newer.any(|dataset| {
        let newer = (dataset.epoch, key.1);
        !removed(nodes, newer) && in_caches(nodes, newer)
    }) {
        return false;
    }
    let (whole, readable) = members(nodes, key);
    let mut all = (0..).map(Member).zip(&catalog.layout.members);
    all.all(|(member, _)| has_source(catalog, (&whole, &readable), member))
}

/// The member's files are there, or others have what they are rebuilt from.
pub(crate) fn has_source(
    catalog: &Catalog,
    (whole, readable): (&BTreeSet<Member>, &BTreeSet<Member>),
    member: Member,
) -> bool {
    readable.contains(&member)
        || catalog.files_of(member).next().is_none()
        || gives_back(catalog, whole, member)
}

/// The nodes put theirs beside what others have saved.
fn joined(nodes: &[Daemon], prefix: &Prefix, key: Key) -> bool {
    let is_newest = prefix.datasets.iter().all(|(other, stored)| *other < key || stored.failed);
    is_newest && is_known(nodes, key) && !failed(nodes, key) && prefix.can_join(nodes, key)
}

/// Some node has it complete, and none a newer one under its id.
fn is_known(nodes: &[Daemon], key: Key) -> bool {
    let complete = nodes.iter().filter_map(|node| node.datasets.get(&key.1));
    let newest = complete.filter(|dataset| dataset.state == HeldState::Complete).map(|d| d.epoch).max();
    newest == Some(key.0)
}

/// The others of its set have what this member's files are rebuilt from.
fn gives_back(catalog: &Catalog, whole: &BTreeSet<Member>, member: Member) -> bool {
    let set = catalog.layout.sets.iter().find(|set| set.contains(&member)).expect("in a set");
    let at = set.iter().position(|m| *m == member).expect("in its set");
    match catalog.layout.scheme() {
        // Its copy is at its right neighbour.
        Scheme::Partner => set.len() > 1 && whole.contains(&set[(at + 1) % set.len()]),
        _ => rebuildable(catalog, whole, member),
    }
}

pub(crate) fn in_prefix(prefix: &Prefix, key: Key) -> bool {
    prefix.datasets.get(&key).is_some_and(|stored| !stored.failed && !stored.bad && !stored.unreadable)
}

/// A program removed it while the nodes that still have it were away, or died of it. What a node
/// has that served programs in a later epoch is there anew.
pub(crate) fn removed(nodes: &[Daemon], key: Key) -> bool {
    let has = |node: &&Daemon| {
        let dataset = node.datasets.get(&key.1);
        dataset.is_some_and(|dataset| dataset.epoch == key.0 && dataset.state == HeldState::Complete)
    };
    let Some(holder) = nodes.iter().find(has) else { return false };
    let name = &holder.datasets[&key.1].name;
    let served = nodes.iter().filter(has).map(|node| node.served).max();
    let mut removals = nodes.iter().filter_map(|node| node.removed.get(name));
    removals.any(|(newest, during)| key <= *newest && served <= Some(*during))
}

/// What a restart must present as current: the first of these, newest first. A lazy one has read no
/// bytes of the prefix.
pub(crate) fn found(nodes: &[Daemon], prefix: &Prefix, settings: &Settings) -> impl Iterator<Item = Key> {
    let Settings { distribute, fetch, ref restart, .. } = *settings;
    let mut keys: BTreeSet<Reverse<Key>> = prefix.datasets.keys().map(|key| Reverse(*key)).collect();
    for node in nodes {
        let complete = node.datasets.iter().filter(|(_, dataset)| dataset.state == HeldState::Complete);
        keys.extend(complete.map(|(id, dataset)| Reverse((dataset.epoch, *id))));
    }
    // Of two datasets with one id the older makes room for a fetch of the newer once the newer
    // one's records are read, also when the fetch fails then: ids were given twice when all that
    // knew of the first was away.
    let newer = move |key: &Key, stored: &Key| stored.1 == key.1 && stored.0 > key.0;
    let makes_room = move |key: &Key| {
        fetch
            && prefix
                .datasets
                .iter()
                .any(|(stored, dataset)| newer(key, stored) && !dataset.failed && !dataset.unreadable)
    };
    let cached =
        move |key: &Key| distribute && in_caches(nodes, *key) && !makes_room(key) && !removed(nodes, *key);
    let joined = move |key: &Key| joined(nodes, prefix, *key) && !removed(nodes, *key);
    let is_listed = move |key: &Key| {
        let stored = prefix.datasets.get(key);
        restart.lazy_fetch && stored.is_some_and(|stored| !stored.failed && !stored.unreadable)
    };
    let stored = move |key: &Key| in_prefix(prefix, *key) || is_listed(key) || joined(key);
    let found = move |key: &Key| cached(key) || (fetch && stored(key));
    keys.into_iter().map(|key| key.0).filter(found)
}

/// Every file of a presented dataset is where its catalog says, with the bytes that were sealed; or
/// its member is `absent`, and its set gives it back.
pub(crate) fn readable(nodes: &[Daemon], truth: &Truth, id: DatasetId, absent: &BTreeSet<Member>) {
    let catalog = nodes[0].datasets[&id].catalog.as_ref().expect("presented");
    let files = &truth[&(catalog.epoch, id)];
    let mut seen = 0;
    for entry in &catalog.entries {
        let EntryKind::File(copy) = &entry.kind else { continue };
        seen += 1;
        if absent.contains(&copy.member) {
            let (whole, readable) = in_places(nodes, catalog);
            let given_back = has_source(catalog, (&whole, &readable), copy.member);
            assert!(given_back, "{id}: nobody can give member {} back", copy.member);
            continue;
        }
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
    }
    assert!(seen >= files.len(), "files of {id} are missing");
}

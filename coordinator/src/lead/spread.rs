//! Bringing versions of pointer files to the nodes that lack them: read where they are, store where
//! they are not. A version is forgotten for a newer one only when the bytes of that one are there.

use std::collections::BTreeMap;

use scrfs::control::Command;
use scrfs::control::loose::{Age, LooseKind, LooseOwner, LooseStamp, LooseVersion};
use scrfs::ids::NodeRank;

use super::cluster::Cluster;
use super::policy::{MS, delay};
use super::versions::Versions;

/// Bytes in one message, once there is a version in it.
const MESSAGE_BYTES: usize = 16 << 20;

/// Tries of one node while programs run.
const TRIES: u32 = 4;

/// See the module.
#[derive(Debug)]
pub(super) struct Spread {
    /// Also into the mounts, where they are the newest.
    place: bool,
    /// Datasets of which versions are kept.
    ages: Vec<Age>,
    /// What each node has, and to which dataset it takes it to belong.
    holders: BTreeMap<NodeRank, BTreeMap<LooseStamp, LooseOwner>>,
    /// Bytes that are awaited, from whom, and who else has them.
    reading: BTreeMap<LooseStamp, (NodeRank, Vec<NodeRank>)>,
    /// The parts that nodes were sent.
    storing: Option<(u64, BTreeMap<NodeRank, Part>)>,
}

/// What one node lacks.
#[derive(Debug)]
struct Part {
    had: BTreeMap<LooseStamp, LooseOwner>,
    /// Answers that are awaited.
    awaited: usize,
    /// Some failed; how often, and when it is tried again.
    failed: bool,
    tries: u32,
    again: Option<u64>,
    given_up: bool,
}

impl Part {
    fn done(&self) -> bool {
        self.awaited == 0 && !self.failed && self.again.is_none()
    }
}

impl Spread {
    /// Programs see the versions as they come.
    pub(super) fn is_of_attach(&self) -> bool {
        self.place
    }

    pub(super) fn begin(
        cluster: &mut Cluster,
        versions: &Versions,
        holders: Vec<(NodeRank, Vec<LooseVersion>)>,
        ages: Vec<Age>,
        place: bool,
    ) -> Self {
        let had = |versions: Vec<LooseVersion>| versions.into_iter().map(|v| (v.stamp, v.owner)).collect();
        let holders: BTreeMap<NodeRank, BTreeMap<LooseStamp, LooseOwner>> =
            holders.into_iter().map(|(node, versions)| (node, had(versions))).collect();
        let mut reading = BTreeMap::new();
        for version in versions.iter() {
            let stamp = version.stamp;
            let has = |node: &NodeRank| holders.get(node).is_some_and(|had| had.contains_key(&stamp));
            let needs_bytes =
                matches!(version.entry.kind, LooseKind::File { .. }) && !version.entry.is_whole();
            // Also when every node has them: the prefix is to have them too.
            if needs_bytes {
                let mut from: Vec<NodeRank> = cluster.nodes().filter(has).collect();
                if let Some(first) = from.pop() {
                    cluster.send(first, Command::ReadLoose(stamp));
                    reading.insert(stamp, (first, from));
                }
            }
        }
        Self { place, ages, holders, reading, storing: None }
    }

    /// A node's copy; false when it was not asked for.
    pub(super) fn read(
        &mut self,
        cluster: &mut Cluster,
        versions: &mut Versions,
        node: NodeRank,
        stamp: LooseStamp,
        version: Option<LooseVersion>,
    ) -> bool {
        let Some((_, others)) = self.reading.get_mut(&stamp).filter(|(asked, _)| *asked == node) else {
            return false;
        };
        let good = version.filter(|version| version.stamp == stamp && version.entry.is_whole());
        let good = good.filter(|v| versions.get(stamp).is_some_and(|known| known.entry.kind == v.entry.kind));
        if let Some(version) = good {
            versions.insert(version);
            self.reading.remove(&stamp);
            return true;
        }
        // Its copy is bad: it gets another one.
        if let Some(had) = self.holders.get_mut(&node) {
            had.remove(&stamp);
        }
        if let Some(next) = others.pop() {
            cluster.send(next, Command::ReadLoose(stamp));
            let others = std::mem::take(others);
            self.reading.insert(stamp, (next, others));
        } else {
            let name = versions.get(stamp).map(|v| String::from_utf8_lossy(&v.entry.name).into_owned());
            cluster.warn(format!("{}: no node has the bytes of a version of it", name.unwrap_or_default()));
            versions.remove(stamp);
            self.reading.remove(&stamp);
        }
        true
    }

    /// Goes on if nothing is awaited; true when every node has all.
    pub(super) fn go_on(&mut self, cluster: &mut Cluster, versions: &mut Versions) -> bool {
        if !self.reading.is_empty() {
            return false;
        }
        if let Some((_, awaited)) = &self.storing {
            return awaited.values().all(Part::done);
        }
        versions.prune(&self.ages, true);
        let round = cluster.next_round();
        let mut awaited = BTreeMap::new();
        for node in cluster.nodes() {
            let had = self.holders.remove(&node).unwrap_or_default();
            let count = send_missing(cluster, node, &had, versions, round, self.place);
            let changed = |version: &&LooseVersion| {
                had.get(&version.stamp).is_some_and(|owner| *owner != version.owner)
            };
            let bound: Vec<_> = versions.iter().filter(changed).map(|v| (v.stamp, v.owner.clone())).collect();
            if !bound.is_empty() {
                cluster.send(node, Command::LooseBind { bound, began: Vec::new() });
            }
            let gone: Vec<_> = had.keys().copied().filter(|stamp| versions.get(*stamp).is_none()).collect();
            if !gone.is_empty() {
                cluster.send(node, Command::LooseForget { versions: gone, datasets: Vec::new() });
            }
            awaited.insert(
                node,
                Part { had, awaited: count, failed: false, tries: 0, again: None, given_up: false },
            );
        }
        let done = awaited.values().all(Part::done);
        self.storing = Some((round, awaited));
        done
    }

    /// A node has stored a part; false when that is not awaited.
    pub(super) fn stored(&mut self, cluster: &mut Cluster, node: NodeRank, round: u64, errno: i32) -> bool {
        let Some((number, awaited)) = &mut self.storing else { return false };
        let part = awaited.get_mut(&node).filter(|part| *number == round && part.awaited > 0);
        let Some(part) = part else { return false };
        part.awaited -= 1;
        part.failed |= errno != 0;
        if errno != 0 {
            let text = std::io::Error::from_raw_os_error(errno);
            let host = cluster.host(node).to_owned();
            cluster.warn(format!("{host} cannot store pointer files that other nodes have: {text}"));
        }
        if part.awaited == 0 && std::mem::take(&mut part.failed) {
            part.tries += 1;
            // While programs run, their changes wait for this.
            if !self.place || part.tries < TRIES {
                part.again = Some(cluster.now + delay(part.tries, 200 * MS, 10_000 * MS));
            } else {
                part.given_up = true;
            }
        }
        true
    }

    /// What some node could not be given.
    pub(super) fn lacking(&self, versions: &Versions) -> impl Iterator<Item = LooseStamp> {
        let parts = self.storing.iter().flat_map(|(_, parts)| parts.values());
        let given_up: Vec<&Part> = parts.filter(|part| part.given_up).collect();
        let lacks = move |stamp: &LooseStamp| given_up.iter().any(|part| !part.had.contains_key(stamp));
        versions.iter().map(|version| version.stamp).filter(lacks)
    }

    /// Tries again where it is time.
    pub(super) fn tick(&mut self, cluster: &mut Cluster, versions: &Versions) {
        let Some((round, parts)) = &mut self.storing else { return };
        let now = cluster.now;
        for (&node, part) in parts.iter_mut().filter(|(_, part)| part.again.is_some_and(|at| at <= now)) {
            part.again = None;
            part.awaited = send_missing(cluster, node, &part.had, versions, *round, self.place);
        }
    }
}

/// Sends what `node` lacks; gives the number of answers to await.
fn send_missing(
    cluster: &mut Cluster,
    node: NodeRank,
    had: &BTreeMap<LooseStamp, LooseOwner>,
    versions: &Versions,
    round: u64,
    place: bool,
) -> usize {
    let mut count = 0;
    // What belongs to a branch that was given up is kept, and not put into mounts.
    for lost in [true, false] {
        let (mut bytes, mut part) = (0, Vec::new());
        let mut send = |versions: Vec<LooseVersion>| {
            if !versions.is_empty() {
                cluster.send(node, Command::LooseStore { round, versions, place: place && !lost });
                count += 1;
            }
        };
        let missing = versions.iter().filter(|version| !had.contains_key(&version.stamp));
        for version in missing.filter(|version| versions.is_lost(version) == lost) {
            if bytes + version.entry.bytes.len() > MESSAGE_BYTES {
                send(std::mem::take(&mut part));
                bytes = 0;
            }
            bytes += version.entry.bytes.len();
            part.push(version.clone());
        }
        send(part);
    }
    count
}

#[cfg(test)]
mod tests {
    use scrfs::control::loose::LooseEntry;
    use scrfs::ids::{DatasetId, Epoch, RequestId};

    use super::*;
    use crate::settings::tests::settings;

    fn version(serial: u64, with_bytes: bool) -> LooseVersion {
        let bytes = format!("ck.{serial}").into_bytes();
        let kind = LooseKind::File { size: 4, crc: crc32fast::hash(&bytes) };
        let bytes = if with_bytes { bytes } else { Vec::new() };
        let entry = LooseEntry { kind, bytes, ..LooseEntry::gone(b"latest".to_vec()) };
        let owner = LooseOwner::Sealed(Age { epoch: Epoch(1), id: DatasetId(1) });
        let stamp = LooseStamp { epoch: Epoch(1), serial };
        LooseVersion { stamp, request: RequestId { origin: 1, serial }, owner, entry }
    }

    #[test]
    fn an_older_version_is_forgotten_only_when_the_bytes_of_a_newer_one_are_there() {
        for is_good in [true, false] {
            let mut cluster = Cluster::new(Epoch(2), vec!["a".to_owned()], settings(), 0);
            let mut versions = Versions::default();
            let told: Vec<LooseVersion> = [1, 2].map(|serial| version(serial, false)).into();
            for version in &told {
                versions.insert(version.clone());
            }
            let age = Age { epoch: Epoch(1), id: DatasetId(1) };
            let holders = vec![(NodeRank(0), told)];
            let mut spread = Spread::begin(&mut cluster, &versions, holders, vec![age], false);
            for (serial, is_good) in [(2, is_good), (1, true)] {
                assert!(!spread.go_on(&mut cluster, &mut versions));
                let wanted = version(serial, true);
                let read = is_good.then(|| wanted.clone());
                assert!(spread.read(&mut cluster, &mut versions, NodeRank(0), wanted.stamp, read));
            }
            assert!(spread.go_on(&mut cluster, &mut versions));
            let kept: Vec<u64> = versions.iter().map(|version| version.stamp.serial).collect();
            assert_eq!(kept, [if is_good { 2 } else { 1 }]);
        }
    }
}

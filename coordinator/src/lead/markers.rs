//! Markers that wait for their seal, by their datasets' names in the order in which those were set.
//! With `SCRFS_MARKER_SCOPE=all` a seal begins when the marker is set on every node that runs the
//! program: until then, or until the seal's time-out, markers are gathered here.
//!
//! Each marker has the request of its program, and is answered once, by [`Markers::end`]. A seal
//! takes those that it will answer ([`Markers::take`]); those that stay here are another one's.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use scrfs::control::{Command, MarkerOutcome, MarkerScope};
use scrfs::ids::{DatasetId, NodeRank, RequestId};

use super::cluster::Cluster;
use super::policy::MS;

/// A marker that was set and not answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Marker {
    pub(super) node: NodeRank,
    pub(super) request: RequestId,
    /// The complete dataset of its name on that node when it was set. Whatever was changed since
    /// then is in a later generation.
    pub(super) base: Option<DatasetId>,
    /// Set by a rename, or answered before an epoch ended, with what was frozen for it kept so.
    pub(super) everywhere: bool,
    /// When the lead heard of it, microseconds.
    pub(super) since: u64,
}

/// Microseconds since the first of these was set.
pub(super) fn longest_wait<'a>(cluster: &Cluster, markers: impl Iterator<Item = &'a Marker>) -> u64 {
    markers.map(|marker| cluster.now.saturating_sub(marker.since)).max().unwrap_or(0)
}

/// Markers of one name.
#[derive(Debug, Default)]
struct Gathering {
    /// When the first one was set, microseconds.
    since: u64,
    /// In the order in which they came.
    markers: Vec<Marker>,
    /// Where they were set.
    nodes: BTreeSet<NodeRank>,
    /// One of them counts as set on all.
    everywhere: bool,
}

impl Gathering {
    fn add(&mut self, marker: Marker) {
        self.nodes.insert(marker.node);
        self.everywhere |= marker.everywhere;
        self.markers.push(marker);
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Markers {
    /// Names that are to be looked at.
    queue: VecDeque<Vec<u8>>,
    /// Of these, those that were looked at: their datasets were changed, and the next generation
    /// waits until all members of the one before are on their nodes.
    put_off: BTreeSet<Vec<u8>>,
    gathering: BTreeMap<Vec<u8>, Gathering>,
    /// Those that are not answered, also such as a seal has taken: a node may tell of one twice.
    open: BTreeSet<RequestId>,
}

impl Markers {
    /// A node tells of a marker; false when it did before, and the marker is not answered.
    pub(super) fn open(&mut self, request: RequestId) -> bool {
        self.open.insert(request)
    }

    /// Answers the programs that have set these.
    pub(super) fn end(
        &mut self,
        cluster: &mut Cluster,
        name: &[u8],
        markers: impl IntoIterator<Item = Marker>,
        outcome: &MarkerOutcome,
    ) {
        let mut of_node: BTreeMap<NodeRank, Vec<RequestId>> = BTreeMap::new();
        for marker in markers {
            self.open.remove(&marker.request);
            of_node.entry(marker.node).or_default().push(marker.request);
        }
        for (node, requests) in of_node {
            let (name, outcome) = (name.to_vec(), outcome.clone());
            cluster.send(node, Command::MarkersEnd { name, requests, outcome });
        }
    }

    /// Fails those of `name` that no seal has taken.
    pub(super) fn refuse(&mut self, cluster: &mut Cluster, name: &[u8], reason: String) {
        let markers = self.take(name);
        self.end(cluster, name, markers, &MarkerOutcome::Refused(reason));
    }

    /// Fails those that no seal has taken and that are closes of programs: no promise was given for
    /// them yet.
    pub(super) fn refuse_closes(&mut self, cluster: &mut Cluster, reason: &str) {
        for name in self.gathering.keys().cloned().collect::<Vec<_>>() {
            let (promised, closes): (Vec<_>, Vec<_>) =
                self.take(&name).into_iter().partition(|marker| marker.everywhere);
            self.end(cluster, &name, closes, &MarkerOutcome::Refused(reason.to_owned()));
            self.keep(cluster, &name, promised);
        }
    }

    /// Puts markers back that were taken.
    fn keep(&mut self, cluster: &Cluster, name: &[u8], markers: Vec<Marker>) {
        for marker in markers {
            self.note(cluster, name, marker);
        }
        self.queue(cluster, name);
    }

    /// A marker of `name` was set.
    pub(super) fn note(&mut self, cluster: &Cluster, name: &[u8], marker: Marker) {
        let fresh = || Gathering { since: cluster.now, ..Gathering::default() };
        self.gathering.entry(name.to_vec()).or_insert_with(fresh).add(marker);
    }

    /// Queues `name`, noted before, once something can be done about it: its marker is set wherever
    /// it has to be, or it may be that of a sealed dataset that nobody has changed.
    pub(super) fn queue(&mut self, cluster: &Cluster, name: &[u8]) {
        if self.can_begin(cluster, name) && !self.queue.iter().any(|queued| queued == name) {
            self.queue.push_back(name.to_vec());
        }
    }

    /// Its turn comes again when its dataset is whole; others need not wait for it.
    pub(super) fn put_off(&mut self, name: Vec<u8>) {
        self.put_off.insert(name.clone());
        self.queue.push_back(name);
    }

    /// The next one to be looked at. `is_whole`: all members of that dataset are on their nodes.
    /// `sealed`: it is being sealed, and none comes before its next generation.
    pub(super) fn next(
        &mut self,
        cluster: &Cluster,
        is_whole: impl Fn(&[u8]) -> bool,
        sealed: Option<&[u8]>,
    ) -> Option<Vec<u8>> {
        loop {
            let may = |name: &Vec<u8>| !self.put_off.contains(name) || is_whole(name);
            let at = self.queue.iter().position(may)?;
            if self.queue.get(at).map(Vec::as_slice) == sealed {
                return None;
            }
            let name = self.queue.remove(at)?;
            self.put_off.remove(&name);
            if self.can_begin(cluster, &name) {
                return Some(name);
            }
        }
    }

    /// Some marker of `name` waits, and it is set wherever it has to be, or may be that of a sealed
    /// dataset that nobody has changed.
    fn can_begin(&self, cluster: &Cluster, name: &[u8]) -> bool {
        self.waits(name) && (self.is_set(cluster, name) || cluster.datasets.named(name).is_some())
    }

    /// It is set on every node on which it has to be.
    pub(super) fn is_set(&self, cluster: &Cluster, name: &[u8]) -> bool {
        match cluster.settings.sealing.scope {
            MarkerScope::Any => true,
            MarkerScope::All => self.lacking(cluster, name).is_empty(),
        }
    }

    fn lacking(&self, cluster: &Cluster, name: &[u8]) -> Vec<NodeRank> {
        let set = self.gathering.get(name);
        if set.is_some_and(|set| set.everywhere) {
            return Vec::new();
        }
        let is_set = |node: &NodeRank| set.is_some_and(|set| set.nodes.contains(node));
        cluster.program_nodes().into_iter().filter(|node| !is_set(node)).collect()
    }

    /// How many of `name` no seal has taken.
    pub(super) fn count(&self, name: &[u8]) -> usize {
        self.gathering.get(name).map_or(0, |gathering| gathering.markers.len())
    }

    /// Some marker of `name` was set that no seal has taken.
    pub(super) fn waits(&self, name: &[u8]) -> bool {
        self.gathering.contains_key(name)
    }

    /// All of `name` that no seal has taken: whoever takes them answers them.
    pub(super) fn take(&mut self, name: &[u8]) -> Vec<Marker> {
        self.put_off.remove(name);
        self.gathering.remove(name).map(|gathering| gathering.markers).unwrap_or_default()
    }

    /// The first `count` of `name`; those that were set later have another look.
    pub(super) fn take_first(&mut self, cluster: &Cluster, name: &[u8], count: usize) -> Vec<Marker> {
        let mut markers = self.take(name);
        let later = markers.split_off(count.min(markers.len()));
        self.keep(cluster, name, later);
        markers
    }

    /// Fails the markers of each name that some node has not set in time, and tells the nodes that
    /// set them. A marker that another node sets just then is the first of the next gathering.
    /// `looked_at`: the names that are being looked at now, whose markers stay.
    pub(super) fn expire(&mut self, cluster: &mut Cluster, looked_at: &[&[u8]]) {
        for (name, reason) in self.overdue(cluster, looked_at) {
            self.refuse(cluster, &name, reason);
        }
    }

    /// Those that were not set everywhere in time, and on which nodes they were not.
    fn overdue(&self, cluster: &Cluster, looked_at: &[&[u8]]) -> Vec<(Vec<u8>, String)> {
        if cluster.settings.sealing.scope == MarkerScope::Any {
            return Vec::new();
        }
        let limit = cluster.settings.seal_timeout_ms.saturating_mul(MS);
        let late = |(name, gathering): &(&Vec<u8>, &Gathering)| {
            gathering.since.saturating_add(limit) <= cluster.now
                && !looked_at.contains(&name.as_slice())
                && !self.queue.contains(name)
        };
        let told = self.gathering.iter().filter(late).map(|(name, _)| {
            let lacking: Vec<&str> =
                self.lacking(cluster, name).into_iter().map(|node| cluster.host(node)).collect();
            let seconds = limit / (1000 * MS);
            let text = format!(
                "its marker was not set on {} within {seconds} s (SCRFS_MARKER_SCOPE=all)",
                lacking.join(", ")
            );
            (name.clone(), text)
        });
        told.collect()
    }
}

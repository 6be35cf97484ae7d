//! Markers that wait for their seal, in the order in which they were set. With
//! `SCRFS_MARKER_SCOPE=all` a seal begins when the marker is set on every node that runs the
//! program: until then, or until the seal's time-out, it is gathered here.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use scrfs::control::{Command, MarkerScope};
use scrfs::ids::{DatasetId, NodeRank};

use super::cluster::Cluster;
use super::policy::MS;

#[derive(Debug)]
struct Gathering {
    /// When the first one was set, microseconds.
    since: u64,
    /// Where, and whether by what every node has seen.
    nodes: BTreeMap<NodeRank, bool>,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Markers {
    queue: VecDeque<Vec<u8>>,
    /// Of these, those that were looked at: their datasets were changed, and the next generation
    /// waits until all members of the one before are on their nodes.
    put_off: BTreeSet<Vec<u8>>,
    gathering: BTreeMap<Vec<u8>, Gathering>,
    /// Of those that wait: set by a rename, or answered before an epoch ended, with what was
    /// frozen for them kept so.
    everywhere: BTreeSet<Vec<u8>>,
    /// Refusals that a node has yet to answer: what it says of that marker before was said before
    /// it heard of them.
    refusing: BTreeMap<(NodeRank, Vec<u8>), u32>,
    /// The same of seals that succeeded.
    sealed: BTreeMap<DatasetId, (Vec<u8>, BTreeMap<NodeRank, u32>)>,
}

impl Markers {
    /// Fails the markers of `name` that wait.
    pub(super) fn refuse(&mut self, cluster: &mut Cluster, name: &[u8], reason: &str) {
        self.end(name);
        for node in cluster.nodes() {
            self.refuse_on(cluster, node, name, reason);
        }
    }

    pub(super) fn refuse_on(&mut self, cluster: &mut Cluster, node: NodeRank, name: &[u8], reason: &str) {
        *self.refusing.entry((node, name.to_vec())).or_default() += 1;
        cluster.send(node, Command::RefuseMarker { name: name.to_vec(), reason: reason.to_owned() });
    }

    /// Lets those of `name` on `node` succeed without a seal.
    pub(super) fn waive(&mut self, cluster: &mut Cluster, node: NodeRank, name: Vec<u8>) {
        *self.refusing.entry((node, name.clone())).or_default() += 1;
        cluster.send(node, Command::WaiveMarker { name });
    }

    /// A node has; false when that is not awaited.
    pub(super) fn refused(&mut self, node: NodeRank, name: Vec<u8>) -> bool {
        let Entry::Occupied(mut open) = self.refusing.entry((node, name)) else { return false };
        *open.get_mut() -= 1;
        if *open.get() == 0 {
            open.remove();
        }
        true
    }

    /// Names whose markers wait for their turn or for other nodes, and are closes of programs: no
    /// promise was given for them yet.
    pub(super) fn closes(&self) -> BTreeSet<Vec<u8>> {
        let names = self.queue.iter().chain(self.gathering.keys());
        names.filter(|name| !self.everywhere.contains(*name)).cloned().collect()
    }

    /// All markers that are known so far are being answered.
    pub(super) fn end(&mut self, name: &[u8]) {
        self.taken(name);
        self.put_off.remove(name);
        self.queue.retain(|queued| queued != name);
    }

    /// Dataset `id` is sealed: tells those whose markers wait. Who wants more than that will say so
    /// again.
    pub(super) fn succeed(&mut self, cluster: &mut Cluster, id: DatasetId, name: &[u8]) {
        self.end(name);
        let told = self.sealed.entry(id).or_insert_with(|| (name.to_vec(), BTreeMap::new()));
        for node in cluster.nodes() {
            *told.1.entry(node).or_insert(0) += 1;
        }
        cluster.send_all(Command::Sealed(id));
    }

    /// A node has heard of it; false when that is not awaited.
    pub(super) fn heard(&mut self, node: NodeRank, id: DatasetId) -> bool {
        let Some((_, nodes)) = self.sealed.get_mut(&id) else { return false };
        let Some(times) = nodes.get_mut(&node) else { return false };
        *times -= 1;
        if *times == 0 {
            nodes.remove(&node);
        }
        if nodes.is_empty() {
            self.sealed.remove(&id);
        }
        true
    }

    /// What `node` says of the marker of `name` was said before it heard how that ended.
    pub(super) fn is_over(&self, node: NodeRank, name: &[u8]) -> bool {
        let sealed =
            |(of, nodes): &(Vec<u8>, BTreeMap<NodeRank, u32>)| of == name && nodes.contains_key(&node);
        self.refusing.contains_key(&(node, name.to_vec())) || self.sealed.values().any(sealed)
    }

    /// The marker of `name` was set on `node`; by a rename, `everywhere`.
    pub(super) fn note(&mut self, cluster: &Cluster, node: NodeRank, name: &[u8], everywhere: bool) {
        if everywhere {
            self.everywhere.insert(name.to_vec());
        }
        if cluster.settings.sealing.scope == MarkerScope::Any {
            return;
        }
        let fresh = || Gathering { since: cluster.now, nodes: BTreeMap::new() };
        let gathering = self.gathering.entry(name.to_vec()).or_insert_with(fresh);
        *gathering.nodes.entry(node).or_default() |= everywhere;
    }

    /// Queues `name`, noted before, once something can be done about it: it is set wherever it has
    /// to be, or it may be that of a sealed dataset that nobody has changed.
    pub(super) fn queue(&mut self, cluster: &Cluster, name: Vec<u8>) {
        if self.can_begin(cluster, &name) && !self.queue.contains(&name) {
            self.queue.push_back(name);
        }
    }

    /// Its turn comes again when its dataset is whole; others need not wait for it.
    pub(super) fn put_off(&mut self, name: Vec<u8>) {
        self.put_off.insert(name.clone());
        self.queue.push_back(name);
    }

    /// The next one to be looked at. `is_whole`: all members of that dataset are on their nodes.
    pub(super) fn next(&mut self, cluster: &Cluster, is_whole: impl Fn(&[u8]) -> bool) -> Option<Vec<u8>> {
        loop {
            let may = |name: &Vec<u8>| !self.put_off.contains(name) || is_whole(name);
            let name = self.queue.iter().position(may).and_then(|at| self.queue.remove(at))?;
            self.put_off.remove(&name);
            if self.can_begin(cluster, &name) {
                return Some(name);
            }
        }
    }

    fn can_begin(&self, cluster: &Cluster, name: &[u8]) -> bool {
        self.is_set(cluster, name) || cluster.datasets.named(name).is_some()
    }

    /// It is set on every node on which it has to be.
    pub(super) fn is_set(&self, cluster: &Cluster, name: &[u8]) -> bool {
        match cluster.settings.sealing.scope {
            MarkerScope::Any => true,
            MarkerScope::All => self.lacking(cluster, name).is_empty(),
        }
    }

    fn lacking(&self, cluster: &Cluster, name: &[u8]) -> Vec<NodeRank> {
        let set = self.gathering.get(name).map(|gathering| &gathering.nodes);
        if set.is_some_and(|set| set.values().any(|everywhere| *everywhere)) {
            return Vec::new();
        }
        cluster
            .program_nodes()
            .into_iter()
            .filter(|node| !set.is_some_and(|set| set.contains_key(node)))
            .collect()
    }

    /// Its seal begins, or there need be none: markers that are set from now on are others.
    pub(super) fn taken(&mut self, name: &[u8]) {
        self.gathering.remove(name);
        self.everywhere.remove(name);
    }

    /// Some node waits for others to set it.
    pub(super) fn gathers(&self, name: &[u8]) -> bool {
        self.gathering.contains_key(name)
    }

    /// Fails those that were not set everywhere in time, on the nodes that set them: a marker of
    /// that name that another one sets at this moment is a new try, the first of those that will be
    /// gathered for it. `looked_at`: what is being looked at now.
    pub(super) fn expire(&mut self, cluster: &mut Cluster, looked_at: Option<&[u8]>) {
        for (name, reason) in self.overdue(cluster, looked_at) {
            let nodes = self.gathering.remove(&name).map(|gathering| gathering.nodes).unwrap_or_default();
            for node in nodes.into_keys() {
                self.refuse_on(cluster, node, &name, &reason);
            }
        }
    }

    /// Those that were not set everywhere in time, and on which nodes they were not.
    fn overdue(&self, cluster: &Cluster, looked_at: Option<&[u8]>) -> Vec<(Vec<u8>, String)> {
        let limit = cluster.settings.seal_timeout_ms.saturating_mul(MS);
        let late = |name: &&Vec<u8>| {
            let since = self.gathering.get(*name).map_or(0, |gathering| gathering.since);
            since.saturating_add(limit) <= cluster.now
                && looked_at != Some(name.as_slice())
                && !self.queue.contains(name)
        };
        let names: Vec<Vec<u8>> = self.gathering.keys().filter(late).cloned().collect();
        let told = names.into_iter().map(|name| {
            let lacking: Vec<&str> =
                self.lacking(cluster, &name).into_iter().map(|node| cluster.host(node)).collect();
            let seconds = limit / (1000 * MS);
            let text = format!(
                "its marker was not set on {} within {seconds} s (SCRFS_MARKER_SCOPE=all)",
                lacking.join(", ")
            );
            (name, text)
        });
        told.collect()
    }
}

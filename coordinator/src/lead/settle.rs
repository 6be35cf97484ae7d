//! The start of an epoch: what do the daemons have, and what did the last epoch leave half-done.
//!
//! Inventories; directory operations that some node applied are replayed on all nodes (*attach*),
//! or forgotten (*restart*); what programs removed while a node was away is evicted there; seals of
//! which nobody recorded COMPLETE are dropped. Then *attach* reads the catalogs of what is complete
//! and unites directories, and *restart* goes on in `recover`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use scrfs::control::loose::Age;
use scrfs::control::{Advice, Command, DirHeld, DirOp, HeldState, Inventory, Reason, Removed, Start};
use scrfs::dataset::Catalog;
use scrfs::ids::{DatasetId, Epoch, NodeRank, RequestId};
use scrfs::path::RelPath;

use super::answers::Answers;
use super::catalog::check;
use super::cluster::Cluster;
use super::datasets::Datasets;
use super::held::{Held, Holding};
use super::policy::{Cached, Kept, guard};
use super::seal::Seals;

#[derive(Debug)]
enum Step {
    Asking(Answers<Inventory>),
    Replaying {
        round: u64,
        ops: Vec<(RequestId, DirOp)>,
        answers: Answers<Vec<i32>>,
    },
    Dropping(BTreeMap<DatasetId, Answers<()>>),
    /// Attach: catalogs that are awaited, and the nodes that have not been asked yet.
    Reading(BTreeMap<DatasetId, Vec<NodeRank>>),
    Uniting(Answers<()>),
    Done,
}

/// Settles; then `done`.
#[derive(Debug)]
pub(super) struct Settle {
    start: Start,
    step: Step,
    replayed: bool,
    /// A restart: see [`Settle::evict_former`].
    removed_in_part: BTreeSet<Vec<u8>>,
    inventories: BTreeMap<NodeRank, Inventory>,
    /// By id; complete ones only.
    pub(super) held: BTreeMap<DatasetId, Held>,
    /// A restart: older ones under the ids of these. They make room when the newer is rebuilt.
    pub(super) older: Vec<(DatasetId, Held)>,
    /// Seals that come to nothing.
    pub(super) undecided: BTreeMap<(Epoch, DatasetId), Vec<u8>>,
    catalogs: BTreeMap<DatasetId, Arc<Catalog>>,
    /// What nodes have been told to evict. It must be gone before anything of that id is brought
    /// there, as that would go with it.
    leaving: BTreeSet<(DatasetId, NodeRank)>,
}

impl Settle {
    pub(super) fn begin(cluster: &mut Cluster, start: Start) -> Self {
        cluster.send_all(Command::Inventory);
        Self {
            start,
            step: Step::Asking(Answers::of(cluster.nodes())),
            replayed: false,
            removed_in_part: BTreeSet::new(),
            inventories: BTreeMap::new(),
            held: BTreeMap::new(),
            older: Vec::new(),
            undecided: BTreeMap::new(),
            catalogs: BTreeMap::new(),
            leaving: BTreeSet::new(),
        }
    }

    pub(super) fn start(&self) -> Start {
        self.start
    }

    /// What the daemons were told by the lead before.
    pub(super) fn advised(&self) -> Vec<Advice> {
        self.inventories.values().filter_map(|inventory| inventory.advice).collect()
    }

    /// Sealed datasets that programs have removed, as far as the daemons remember.
    pub(super) fn removed(&self) -> Vec<Age> {
        let removed = self.inventories.values().flat_map(|inventory| &inventory.removed);
        removed.map(|removed| Age { epoch: removed.epoch, id: removed.id }).collect()
    }

    pub(super) fn done(&self) -> bool {
        matches!(self.step, Step::Done)
    }

    pub(super) fn inventory(&mut self, cluster: &mut Cluster, node: NodeRank, inventory: Inventory) -> bool {
        let Step::Asking(answers) = &mut self.step else { return false };
        cluster.seen_id(inventory.highest_id);
        for dataset in &inventory.datasets {
            cluster.seen_id(dataset.id.0);
        }
        if !answers.put(node, inventory) {
            return false;
        }
        if answers.all() {
            let answers = std::mem::replace(answers, Answers::of([]));
            self.inventories = answers.into_answers().collect();
            self.replay(cluster);
        }
        true
    }

    /// Operations that some node applied and not all have finished: every node had voted for them.
    /// A restart only has them forgotten: no program waits, directories are made anew, and a node
    /// that was away may come back with an operation of long ago.
    fn replay(&mut self, cluster: &mut Cluster) {
        let mut unfinished: BTreeMap<RequestId, DirOp> = BTreeMap::new();
        for inventory in self.inventories.values() {
            for (id, op) in &inventory.unfinished {
                unfinished.entry(*id).or_insert_with(|| op.clone());
            }
        }
        if unfinished.is_empty() || self.replayed {
            self.drop_undecided(cluster);
            return;
        }
        if self.start == Start::Restart {
            self.removed_in_part = self.removed_in_part();
            let results = unfinished.into_keys().map(|id| (id, 0)).collect();
            cluster.send_all(Command::DirFinish { results });
            self.drop_undecided(cluster);
            return;
        }
        let ops: Vec<_> = unfinished.into_iter().collect();
        let round = cluster.next_round();
        cluster.send_all(Command::DirReplay { round, ops: ops.clone() });
        self.step = Step::Replaying { round, ops, answers: Answers::of(cluster.nodes()) };
    }

    pub(super) fn applied(
        &mut self,
        cluster: &mut Cluster,
        node: NodeRank,
        of: u64,
        results: Vec<i32>,
    ) -> bool {
        let Step::Replaying { round, ops, answers } = &mut self.step else { return false };
        if *round != of || !answers.put(node, results) {
            return false;
        }
        if answers.all() {
            let result = |at: usize| {
                let errnos = answers.iter().filter_map(|(_, errnos)| errnos.get(at).copied());
                errnos.into_iter().find(|errno| *errno != 0).unwrap_or(0)
            };
            let results = ops.iter().enumerate().map(|(at, (id, _))| (*id, result(at))).collect();
            cluster.send_all(Command::DirFinish { results });
            // What the replay changed, removed datasets among it, is asked rather than computed.
            self.replayed = true;
            cluster.send_all(Command::Inventory);
            self.step = Step::Asking(Answers::of(cluster.nodes()));
        }
        true
    }

    /// Names that programs were removing when the last coordinators ended.
    fn removed_in_part(&self) -> BTreeSet<Vec<u8>> {
        let last = self.inventories.values().map(|inventory| inventory.epoch).max();
        // A node that was away may speak of long ago.
        let of_last = self.inventories.values().filter(|inventory| Some(inventory.epoch) == last);
        let removed = of_last.flat_map(|inventory| &inventory.unfinished).filter_map(|(_, op)| match op {
            DirOp::Remove { path } if path.names().count() == 1 => Some(path.as_bytes().to_vec()),
            _ => None,
        });
        removed.collect()
    }

    /// Programs have removed these while the nodes that still have them were away, or died of it.
    /// What a node has that served programs in a later epoch is there anew.
    fn evict_removed(&mut self, cluster: &mut Cluster) {
        let mut removals: BTreeMap<&[u8], Vec<&Removed>> = BTreeMap::new();
        for removed in self.inventories.values().flat_map(|inventory| &inventory.removed) {
            removals.entry(&removed.name).or_default().push(removed);
        }
        let served = |node: NodeRank| self.inventories.get(&node).map(|inventory| inventory.served);
        let is_removed = |id: &DatasetId, held: &mut Held| {
            let last = held.complete().filter_map(|(node, _)| served(node)).max();
            removals.get(&*held.name).into_iter().flatten().any(|removed| {
                (held.epoch, *id) <= (removed.epoch, removed.id) && last <= Some(removed.during)
            })
        };
        let mut removed: Vec<_> = self.held.extract_if(.., is_removed).collect();
        removed.extend(self.older.extract_if(.., |(id, held)| is_removed(id, held)));
        for (id, held) in removed {
            // What has its id and another name was not removed.
            let nodes: Vec<NodeRank> = held.complete().map(|(node, _)| node).collect();
            cluster.warn(format!(
                "dataset {id} ({}) is removed: a program removed it while {} nodes that have it were away",
                String::from_utf8_lossy(&held.name),
                nodes.len()
            ));
            self.evict(cluster, id, nodes);
        }
    }

    fn evict(&mut self, cluster: &mut Cluster, id: DatasetId, nodes: Vec<NodeRank>) {
        self.leaving.extend(nodes.iter().map(|node| (id, *node)));
        cluster.send_to(nodes, Command::Evict(id));
    }

    /// A node has evicted; false when that is not awaited.
    pub(super) fn evicted(&mut self, cluster: &mut Cluster, node: NodeRank, id: DatasetId) -> bool {
        let was_awaited = self.leaving.remove(&(id, node));
        self.after_drops(cluster);
        was_awaited
    }

    /// What some nodes have removed and others still have may be presented again, but not a former
    /// generation of it in its place.
    fn evict_former(&mut self, cluster: &mut Cluster) {
        for name in std::mem::take(&mut self.removed_in_part) {
            let named = self.held.iter().filter(|(_, held)| held.name == name);
            let newest = named.map(|(&id, held)| (held.epoch, id)).max();
            let former = |id: DatasetId, held: &Held| held.name == name && Some((held.epoch, id)) < newest;
            let mut gone: Vec<_> = self.held.extract_if(.., |id, held| former(*id, held)).collect();
            gone.extend(self.older.extract_if(.., |(id, held)| former(*id, held)));
            for (id, held) in gone {
                self.evict(cluster, id, held.complete().map(|(node, _)| node).collect());
            }
        }
    }

    /// Sorts datasets into complete ones and seals that nobody has recorded; drops these.
    fn drop_undecided(&mut self, cluster: &mut Cluster) {
        (self.held, self.older) = complete(&self.inventories);
        self.evict_removed(cluster);
        // A restart does not know yet whether the newer one is whole.
        if self.start == Start::Attach {
            for (id, held) in std::mem::take(&mut self.older) {
                self.evict(cluster, id, held.complete().map(|(node, _)| node).collect());
            }
        }
        self.evict_former(cluster);
        let mut drops: BTreeMap<DatasetId, BTreeSet<NodeRank>> = BTreeMap::new();
        for (&node, inventory) in &self.inventories {
            for dataset in inventory.datasets.iter().filter(|dataset| dataset.state != HeldState::Complete) {
                let is_it = |id: DatasetId, held: &Held| (id, held.epoch) == (dataset.id, dataset.epoch);
                let newest = self.held.get(&dataset.id).is_some_and(|held| is_it(dataset.id, held));
                if !newest && !self.older.iter().any(|(id, held)| is_it(*id, held)) {
                    drops.entry(dataset.id).or_default().insert(node);
                    self.undecided.insert((dataset.epoch, dataset.id), dataset.name.clone());
                }
            }
        }
        for (id, nodes) in &drops {
            for &node in nodes {
                let reason = "its seal was not finished when the coordinators ended".into();
                cluster.send(node, Command::Drop { id: *id, reason });
            }
        }
        self.step = Step::Dropping(drops.into_iter().map(|(id, nodes)| (id, Answers::of(nodes))).collect());
        self.after_drops(cluster);
    }

    pub(super) fn dropped(&mut self, cluster: &mut Cluster, node: NodeRank, id: DatasetId) -> bool {
        let Step::Dropping(drops) = &mut self.step else { return false };
        if !drops.get_mut(&id).is_some_and(|answers| answers.put(node, ())) {
            return false;
        }
        self.after_drops(cluster);
        true
    }

    fn after_drops(&mut self, cluster: &mut Cluster) {
        let Step::Dropping(drops) = &self.step else { return };
        if !drops.values().all(Answers::all) || !self.leaving.is_empty() {
            return;
        }
        match self.start {
            Start::Restart => self.step = Step::Done,
            Start::Attach => {
                let listed = self.held.iter().filter(|(_, held)| held.listed());
                let asks = listed.map(|(&id, held)| {
                    let highest = held.highest_revision();
                    let holders = held.complete().filter(|(_, holding)| holding.revision == highest);
                    (id, holders.map(|(node, _)| node).collect())
                });
                self.step = Step::Reading(asks.collect());
                let Step::Reading(asks) = &mut self.step else { return };
                asks.retain(|&id, nodes| ask_catalog(cluster, id, nodes));
                self.unite(cluster);
            }
        }
    }

    pub(super) fn catalog(
        &mut self,
        cluster: &mut Cluster,
        node: NodeRank,
        id: DatasetId,
        catalog: Option<Arc<Catalog>>,
    ) -> bool {
        let Step::Reading(asks) = &mut self.step else { return false };
        let Some(others) = asks.get_mut(&id) else { return false };
        let checked = catalog.ok_or_else(|| Reason::from("no catalog")).and_then(|catalog| {
            check(&catalog, id, true)?;
            Ok(catalog)
        });
        match checked {
            Ok(catalog) => {
                self.catalogs.insert(id, catalog);
                asks.remove(&id);
            }
            Err(reason) => {
                cluster.warn(format!("{} has dataset {id} complete, but: {reason}", cluster.host(node)));
                if !ask_catalog(cluster, id, others) {
                    asks.remove(&id);
                }
            }
        }
        self.unite(cluster);
        true
    }

    /// When all catalogs are read: the union of all directories to all.
    fn unite(&mut self, cluster: &mut Cluster) {
        if !matches!(&self.step, Step::Reading(asks) if asks.is_empty()) {
            return;
        }
        // Sorted by path, parents come before children.
        let mut union: BTreeMap<RelPath, DirHeld> = BTreeMap::new();
        for directory in self.inventories.values().flat_map(|inventory| &inventory.directories) {
            union.entry(directory.path.clone()).or_insert_with(|| directory.clone());
        }
        let directories: Vec<DirHeld> = union.into_values().collect();
        if directories.is_empty() {
            self.step = Step::Done;
        } else {
            cluster.send_all(Command::DirUnite { directories });
            self.step = Step::Uniting(Answers::of(cluster.nodes()));
        }
    }

    pub(super) fn united(&mut self, node: NodeRank) -> bool {
        let Step::Uniting(answers) = &mut self.step else { return false };
        let accepted = answers.put(node, ());
        if answers.all() {
            self.step = Step::Done;
        }
        accepted
    }

    /// Attach: what every node has recorded is known now; what some have not is a seal to be
    /// finished, or an eviction.
    pub(super) fn hand_over(self, cluster: &mut Cluster, seals: &mut Seals) {
        let all: Vec<NodeRank> = cluster.nodes().collect();
        let mut doubts = Vec::new();
        let mut newest_first: Vec<(DatasetId, Held)> = self.held.into_iter().collect();
        newest_first.sort_by_key(|(id, held)| std::cmp::Reverse((held.epoch, *id)));
        let mut catalogs = self.catalogs;
        let mut named: BTreeSet<&[u8]> = BTreeSet::new();
        let whole = newest_first.iter().filter_map(|(id, held)| {
            let catalog = catalogs.get(id).filter(|_| named.insert(&held.name))?;
            if !held.missing(&all, catalog.revision).is_empty() {
                return None;
            }
            let flushed = held.flushed() && cluster.settings.fetch;
            (!held.failed()).then_some(Cached {
                id: *id,
                layout: &catalog.layout,
                whole: !held.lacks_members(&catalog.layout),
                flushed,
            })
        });
        let mut kept = Kept::with(guard(whole, &cluster.settings), &cluster.settings);
        let mut names: BTreeSet<Vec<u8>> = BTreeSet::new();
        for (id, held) in newest_first {
            let Some(catalog) = catalogs.remove(&id) else {
                if is_left_over(&cluster.datasets, &held.name) {
                    cluster.send_all(Command::Evict(id));
                } else {
                    cluster.datasets.put_aside(id);
                }
                continue;
            };
            if !names.insert(held.name.clone()) {
                // A newer generation has its place, or takes it now; then this one is evicted.
                cluster.datasets.insert(catalog, held.flushed());
                continue;
            }
            let missing = held.missing(&all, catalog.revision);
            if missing.is_empty() && held.failed() {
                hand_over_failed(cluster, catalog, &held);
            } else if missing.is_empty() {
                kept.takes(id, &catalog.layout, &cluster.settings);
                let absent = held.absent(&catalog.layout);
                cluster.datasets.insert(catalog, held.flushed());
                cluster.lacks(id, absent);
            } else if !kept.clone().takes(id, &catalog.layout, &cluster.settings) || held.failed() {
                // Enough newer ones are complete everywhere, or it has failed: its eviction had
                // begun.
                cluster.send_all(Command::Evict(id));
            } else if !held.flushed() && held.is_removed(cluster, &catalog.layout) {
                // Its eviction had gone far, and since then newer ones were removed.
                cluster.warn(format!("dataset {id}: its files are on no node any more; it is removed"));
                cluster.send_all(Command::Evict(id));
            } else {
                if held.lacks_members(&catalog.layout) {
                    // An eviction that had begun, and since then newer ones were removed; or a
                    // loss.
                    cluster.warn(format!("dataset {id}: a member is lost; the next restart rebuilds it"));
                }
                doubts.push((catalog, missing, held.flushed()));
            }
        }
        for (catalog, missing, flushed) in doubts.into_iter().rev() {
            seals.resume(catalog, missing, flushed);
        }
    }
}

/// No node lists a dataset of that name; it was still being flushed. True when no restart will
/// present it: all nodes have a newer generation of it, or that generation has left the caches and
/// another newer dataset is whole. `newer` has all newer datasets.
fn is_left_over(newer: &Datasets, name: &[u8]) -> bool {
    match newer.named(name) {
        Some(successor) => !newer.has_failed(successor),
        None => newer.newest_first().iter().any(|known| known.absent.is_empty()),
    }
}

/// It stays what it is, and all nodes know it.
fn hand_over_failed(cluster: &mut Cluster, catalog: Arc<Catalog>, held: &Held) {
    let id = catalog.id;
    cluster.datasets.insert(catalog, held.flushed());
    cluster.datasets.fail(id);
    for (node, _) in held.complete().filter(|(_, holding)| !holding.failed) {
        let reason = "another node has it marked as failed".to_owned();
        cluster.send(node, Command::MarkFailed { id, reason });
    }
}

/// Asks the next node; false when there is none left.
fn ask_catalog(cluster: &mut Cluster, id: DatasetId, nodes: &mut Vec<NodeRank>) -> bool {
    if nodes.is_empty() {
        return false;
    }
    let node = nodes.remove(0);
    cluster.send(node, Command::ReadCatalog(id));
    true
}

/// Datasets of which some node recorded COMPLETE: of each id that of the newest epoch, and apart
/// those of older ones.
fn complete(
    inventories: &BTreeMap<NodeRank, Inventory>,
) -> (BTreeMap<DatasetId, Held>, Vec<(DatasetId, Held)>) {
    let mut all: BTreeMap<DatasetId, BTreeMap<Epoch, Held>> = BTreeMap::new();
    let datasets = || {
        inventories.iter().flat_map(|(node, inventory)| inventory.datasets.iter().map(move |d| (*node, d)))
    };
    for (_, dataset) in datasets().filter(|(_, dataset)| dataset.state == HeldState::Complete) {
        let (epoch, name) = (dataset.epoch, dataset.name.clone());
        let new = || Held { epoch, name, nodes: BTreeMap::new(), strangers: Vec::new() };
        all.entry(dataset.id).or_default().entry(epoch).or_insert_with(new);
    }
    for (node, dataset) in datasets() {
        let Some(of_id) = all.get_mut(&dataset.id) else { continue };
        let is_one_of_them = of_id.contains_key(&dataset.epoch);
        for held in of_id.values_mut() {
            if held.epoch == dataset.epoch {
                let holding = Holding {
                    revision: dataset.revision,
                    state: dataset.state,
                    members: dataset.members.iter().map(|member| member.0).collect(),
                    encoded: dataset.encoded.iter().copied().collect(),
                    paths: dataset.paths.clone(),
                    flushed: dataset.flushed,
                    listed: dataset.listed,
                    failed: dataset.failed,
                };
                held.nodes.insert(node, holding);
            } else if is_one_of_them {
                held.strangers.push(node);
            }
        }
    }
    let (mut newest, mut older) = (BTreeMap::new(), Vec::new());
    for (id, mut of_id) in all {
        newest.extend(of_id.pop_last().map(|(_, held)| (id, held)));
        older.extend(of_id.into_values().map(|held| (id, held)));
    }
    (newest, older)
}

#[cfg(test)]
mod tests {
    use scrfs::control::{Event, HeldDataset};
    use scrfs::dataset::MemberPlace;
    use scrfs::ids::Member;

    use super::super::flush::tests::catalog;
    use super::super::recover::Recover;
    use super::*;
    use crate::lead::Output;
    use crate::settings::tests::settings;

    const ID: DatasetId = DatasetId(5);

    /// Sealed in an epoch by some nodes, of which one has it, with member 0 alone.
    fn sealed(epoch: u64, state: HeldState) -> HeldDataset {
        HeldDataset {
            id: ID,
            epoch: Epoch(epoch),
            revision: 0,
            name: format!("of epoch {epoch}").into_bytes(),
            state,
            members: vec![Member(0)],
            encoded: Vec::new(),
            paths: Vec::new(),
            flushed: false,
            listed: false,
            failed: false,
        }
    }

    fn inventory(dataset: HeldDataset) -> Inventory {
        let served = dataset.epoch;
        Inventory {
            epoch: served,
            served,
            highest_id: 0,
            directories: Vec::new(),
            unfinished: Vec::new(),
            datasets: vec![dataset],
            removed: Vec::new(),
            advice: None,
        }
    }

    /// Nodes that were told to read the dataset's catalog, to evict it, and to drop it; and the
    /// epoch of that which all record.
    fn told(cluster: &mut Cluster, committed: &mut Option<Epoch>) -> [Vec<u32>; 3] {
        let mut told = [const { Vec::new() }; 3];
        for output in cluster.take_outputs() {
            let Output::Command(nodes, command) = output else { continue };
            let at = match command {
                Command::ReadCatalog(ID) => 0,
                Command::Evict(ID) => 1,
                Command::Drop { id: ID, .. } => 2,
                Command::Commit(catalog) => {
                    *committed = Some(catalog.epoch);
                    continue;
                }
                _ => continue,
            };
            told[at].extend(nodes.iter().map(|node| node.0));
        }
        told
    }

    /// Node a has the older dataset and node c has voted for it; node b has a part of a newer one
    /// under its id, which has `members`.
    fn settled(start: Start) -> (Cluster, Settle) {
        let hosts = ["a", "b", "c"].map(str::to_owned).to_vec();
        let mut settings = settings();
        settings.restart.lazy = true;
        let mut cluster = Cluster::new(Epoch(11), hosts, settings, 0);
        let mut settle = Settle::begin(&mut cluster, start);
        let of_nodes = [(2, HeldState::Complete), (9, HeldState::Complete), (2, HeldState::Recorded)];
        for (node, (epoch, state)) in (0..).zip(of_nodes) {
            settle.inventory(&mut cluster, NodeRank(node), inventory(sealed(epoch, state)));
        }
        (cluster, settle)
    }

    /// Restarts, where the newer dataset has so many members: what nodes are told then, and the
    /// epoch of that which is recorded by all.
    fn restarted(members: usize) -> (Vec<[Vec<u32>; 3]>, Option<Epoch>) {
        let (mut cluster, settle) = settled(Start::Restart);
        let mut committed = None;
        let mut all = vec![told(&mut cluster, &mut committed)];
        let held = settle.held.into_iter().chain(settle.older).collect();
        let mut recover = Recover::begin(&mut cluster, held, None);
        let place = || MemberPlace { host: "b".to_owned(), files: 1, bytes: 1, taken: None };
        let of = |epoch, members| {
            let mut catalog = Catalog { epoch: Epoch(epoch), ..catalog(ID.0) };
            catalog.layout.members = (0..members).map(|_| place()).collect();
            catalog.layout.sets = (0..members).map(|at| vec![Member(u32::try_from(at).unwrap())]).collect();
            catalog
        };
        for (node, catalog) in [(1, of(9, members)), (0, of(2, 1))] {
            all.push(told(&mut cluster, &mut committed));
            let catalog = Some(Arc::new(catalog));
            recover.event(&mut cluster, NodeRank(node), Event::Catalog { id: ID, catalog });
            all.push(told(&mut cluster, &mut committed));
            for node in 0..3 {
                recover.event(&mut cluster, NodeRank(node), Event::Evicted(ID));
            }
        }
        told(&mut cluster, &mut committed);
        (all, committed)
    }

    /// Both branches have come back: the older dataset leaves once the newer one can be had.
    #[test]
    fn the_older_of_two_under_one_id_stays_until_the_newer_is_rebuilt() {
        let none = || [vec![], vec![], vec![]];
        let (told_of_whole, found) = restarted(1);
        assert_eq!(
            told_of_whole,
            [none(), [vec![1], vec![], vec![]], [vec![], vec![0, 2], vec![]], none(), none()]
        );
        assert_eq!(found, Some(Epoch(9)));
        // The newer one lacks a member: nothing of the older one goes for it.
        let (told_of_part, found) = restarted(2);
        let reads = |node, drops| [vec![node], vec![], drops];
        assert_eq!(told_of_part[..3], [none(), reads(1, vec![]), reads(0, vec![])]);
        assert_eq!(told_of_part[4], [vec![], vec![1], vec![]]);
        assert_eq!(found, Some(Epoch(2)));
    }

    /// Programs go on with the newer one.
    #[test]
    fn coordinators_that_attach_let_the_older_of_two_under_one_id_go() {
        let (mut cluster, settle) = settled(Start::Attach);
        assert_eq!(told(&mut cluster, &mut None)[1..], [vec![0], vec![2]]);
        assert!(settle.held.len() == 1 && settle.older.is_empty());
    }
}

//! Pointer files, ordered in rounds (DESIGN 4.7): ask which datasets have begun, store on all nodes, finish.
//!
//! All requests that arrived while a round ran go together into the next one. The answers to the question tell to which
//! dataset its versions belong: a file that was made before the pointer, on any node, is known by then. When a dataset is
//! about to be committed, versions that belong to it are bound to its id first, so that whoever has its COMPLETE has
//! them bound.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use scrfs::control::Command;
use scrfs::control::loose::{
    Age, Begun, LooseBase, LooseEntry, LooseInventory, LooseOwner, LooseSet, LooseStamp, LooseVersion,
};
use scrfs::dataset::Catalog;
use scrfs::ids::{DatasetId, NodeRank, RequestId};

use super::answers::Answers;
use super::cluster::Cluster;
use super::loose_set::Sets;
use super::spread::Spread;
use super::versions::{Versions, is_lost};

/// Requests of one round, and bytes in them (once there is one), so that a message stays well below the bound of a frame.
const ROUND_MAX: usize = 256;
const ROUND_BYTES: usize = 16 << 20;
/// Answers that are remembered in case a request comes again.
const REMEMBERED: usize = 4096;

#[derive(Debug)]
struct Request {
    id: RequestId,
    entries: Vec<LooseEntry>,
}

#[derive(Debug)]
enum Step {
    Asking(Answers<Vec<Begun>>),
    Storing(Answers<i32>, Vec<LooseStamp>),
}

#[derive(Debug)]
struct Round {
    number: u64,
    requests: Vec<Request>,
    step: Step,
}

/// What the seals of this moment mean for new versions.
#[derive(Debug, Clone, Copy)]
pub(super) struct Now<'a> {
    /// The dataset that is being committed, which may be complete on some nodes.
    pub(super) committing: Option<&'a Catalog>,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Loose {
    /// What the nodes have, until all have told.
    pub(super) telling: Option<Answers<LooseInventory>>,
    pub(super) versions: Versions,
    spread: Option<Spread>,
    queue: VecDeque<Request>,
    /// Ids in the queue and in the round.
    open: BTreeSet<RequestId>,
    answered: BTreeMap<RequestId, i32>,
    answered_order: VecDeque<RequestId>,
    round: Option<Round>,
    serial: u64,
    /// The newest dataset that was sealed, also when it is gone.
    newest: Age,
    /// Datasets that have begun and are not sealed, and when.
    begun: BTreeMap<Vec<u8>, u64>,
    /// When sealed ones began, as far as this epoch knows.
    pub(super) sealed: BTreeMap<Age, u64>,
    /// When what is being frozen began.
    freezing: BTreeMap<DatasetId, u64>,
    /// Datasets that are complete on some nodes perhaps, and not known to be on all.
    pub(super) doubts: Vec<Age>,
    /// What the caches had when the epoch began, until another dataset is sealed: also what is not listed may be presented
    /// by a restart.
    pub(super) held: Vec<Age>,
    /// A dataset was sealed: branches that were given up do not come back.
    onward: bool,
    /// What was being committed when an input came last.
    committed: Option<(Age, Vec<u8>)>,
    /// Seals that came to nothing when the epoch began, and what they would have sealed.
    pub(super) dropped: BTreeMap<Age, Vec<u8>>,
    /// A name was refused, and that was told.
    full: bool,
    pub(super) sets: Sets,
}

pub(super) fn age_of(catalog: &Catalog) -> Age {
    Age { epoch: catalog.epoch, id: catalog.id }
}

impl Loose {
    pub(super) fn begin_epoch(cluster: &mut Cluster) -> Self {
        cluster.send_all(&Command::LooseInventory);
        Self { telling: Some(Answers::of(cluster.nodes())), ..Self::default() }
    }

    /// What a node has; false when it has told before.
    pub(super) fn inventory(&mut self, node: NodeRank, inventory: LooseInventory) -> bool {
        self.telling.as_mut().is_some_and(|telling| telling.put(node, inventory))
    }

    /// All nodes have told.
    pub(super) fn told(&self) -> bool {
        self.telling.as_ref().is_none_or(Answers::all)
    }

    /// What they have told is taken in.
    pub(super) fn joined(&self) -> bool {
        self.telling.is_none()
    }

    /// A node knows what is presented with the dataset of `age`.
    pub(super) fn knows(&self, age: Age) -> bool {
        let told = self.telling.iter().flat_map(Answers::iter);
        told.into_iter().any(|(_, inventory)| inventory.began.iter().any(|(known, _)| *known == age))
    }

    /// Joins what the nodes have told: gives what each has. `shown`: what is about to be presented.
    fn join(&mut self, shown: Age) -> Vec<(NodeRank, Vec<LooseVersion>)> {
        let Some(telling) = self.telling.take() else { return Vec::new() };
        let told: Vec<(NodeRank, LooseInventory)> = telling.into_answers().collect();
        for (_, inventory) in &told {
            self.sealed.extend(inventory.began.iter().copied());
            self.versions.was(inventory.bound.clone());
        }
        let base = told.iter().map(|(_, inventory)| inventory.base).max().flatten();
        self.versions.based(base);
        // Who took no part in the last restart may have what was forgotten since: of the branch that goes on the others
        // know all that counts.
        let (current, former): (Vec<_>, Vec<_>) =
            told.into_iter().partition(|(_, inventory)| inventory.base == base);
        for (_, inventory) in &current {
            inventory.versions.iter().for_each(|version| self.versions.insert(version.clone()));
        }
        let knows = |inventory: &LooseInventory| inventory.began.iter().any(|(age, _)| *age == shown);
        // Unless what is presented is known to them alone.
        let alone = !current.iter().any(|(_, inventory)| knows(inventory));
        for (_, inventory) in &former {
            let counts = alone && knows(inventory);
            for version in &inventory.versions {
                let not_later = matches!(version.owner, LooseOwner::Sealed(age) if age <= shown);
                // What a restart had given up before that node left is of no branch that can come back with it.
                let of_its_branch = !is_lost(inventory.base, version);
                if self.versions.get(version.stamp).is_some()
                    || (of_its_branch && ((counts && not_later) || self.versions.is_lost(version)))
                {
                    self.versions.insert(version.clone());
                }
            }
        }
        // The branch of what is presented, as those know it that were in it: what it had given up is not of it.
        let of_branch = current.iter().chain(&former).map(|(_, inventory)| inventory).filter(|i| knows(i));
        let bases = of_branch.filter_map(|inventory| inventory.base).filter(|b| b.epoch <= shown.epoch);
        if let Some(branch) = bases.max() {
            self.versions.drop_lost(branch);
        }
        for (age, name) in std::mem::take(&mut self.dropped) {
            self.unseal(age, name);
        }
        current.into_iter().chain(former).map(|(node, inventory)| (node, inventory.versions)).collect()
    }

    /// The seal of `age` has come to nothing.
    fn unseal(&mut self, age: Age, name: Vec<u8>) {
        let since_us = self.sealed.remove(&age).unwrap_or(u64::MAX);
        let after = self.sealed.range(..age).next_back().map(|(age, _)| *age).unwrap_or_default();
        self.versions.unseal(age, &LooseOwner::Begun { name, since_us, after });
    }

    /// What is being committed now: what was, and is not complete, has come to nothing.
    pub(super) fn commits(&mut self, cluster: &Cluster, now: Option<(Age, Vec<u8>)>) {
        let same = |age: Age| now.as_ref().is_some_and(|(current, _)| *current == age);
        if let Some((age, name)) = self.committed.take()
            && !same(age)
            && cluster.datasets.any(age.id).is_none()
        {
            self.unseal(age, name);
            if self.newest == age {
                let known = cluster.datasets.all().map(age_of).chain(self.sealed.keys().copied());
                self.newest = known.max().unwrap_or_default();
            }
        }
        self.committed = now;
    }

    /// Attach: every node gets what the others have.
    pub(super) fn attach(&mut self, cluster: &mut Cluster, doubts: &[(Vec<u8>, DatasetId)]) {
        // Before any of it may be removed: what belonged to that belongs to what had begun before it. What is complete on
        // some nodes is sealed, also where that is not known yet.
        let sealed =
            |begun: &Begun| doubts.iter().any(|(name, id)| *name == begun.name && begun.base != Some(*id));
        let told = self.telling.iter().flat_map(Answers::iter);
        let begun = told.flat_map(|(_, inventory)| inventory.begun.iter().filter(|begun| !sealed(begun)));
        let begun: Vec<Begun> = begun.cloned().collect();
        self.learn(cluster, Now { committing: None }, begun.into_iter());
        let mut holders = self.join(Age::default());
        for version in self.versions.iter().filter(|version| !self.versions.is_lost(version)) {
            match &version.owner {
                LooseOwner::Begun { name, since_us, after } => {
                    self.begun.entry(name.clone()).or_insert(*since_us);
                    self.newest = self.newest.max(*after);
                }
                LooseOwner::Sealed(age) => self.newest = self.newest.max(*age),
            }
        }
        let kept = self.ages(cluster);
        for (_, versions) in &holders {
            let had: BTreeSet<LooseStamp> = versions.iter().map(|version| version.stamp).collect();
            let missing = self.versions.iter().map(|version| version.stamp);
            let missing: Vec<LooseStamp> = missing.filter(|stamp| !had.contains(stamp)).collect();
            self.versions.lack(missing);
        }
        // What is not needed any more too: the nodes have it until they are told to forget it.
        self.bind_first(cluster, &mut holders);
        self.versions.prune(&kept, true);
        self.forget_datasets(cluster, &kept);
        self.spread = Some(Spread::begin(cluster, &self.versions, holders, true));
        self.spread_on(cluster);
    }

    /// Only what goes with `kept` is kept from now on.
    fn forget_datasets(&mut self, cluster: &mut Cluster, kept: &[Age]) {
        let datasets: Vec<Age> = self.sealed.keys().filter(|age| !kept.contains(age)).copied().collect();
        self.sealed.retain(|age, _| kept.contains(age));
        if !datasets.is_empty() {
            cluster.send_all(&Command::LooseForget { versions: Vec::new(), datasets });
        }
    }

    /// Restart: the first of `chosen` is presented (none: nothing is), of which the prefix has what goes with it, if it is
    /// `stored` there. False until every node has what that takes.
    pub(super) fn present(
        &mut self,
        cluster: &mut Cluster,
        chosen: &[(Catalog, bool)],
        stored: bool,
    ) -> bool {
        if self.telling.is_some() {
            let set = self.sets.take_read();
            let shown = chosen.first().map(|(catalog, _)| age_of(catalog)).unwrap_or_default();
            let known = shown == Age::default() || self.knows(shown);
            let holders = self.join(shown);
            match set {
                Some(set) => {
                    // The nodes know of another branch, or of too little.
                    if !known {
                        self.versions.give_up(shown);
                    }
                    self.versions.add_set(set);
                    let created = chosen.first().map_or(0, |(catalog, _)| catalog.created_us);
                    self.sealed.entry(shown).or_insert(created);
                }
                // What the nodes have may be of another branch: who knew it left before the others were told.
                None if !known => {
                    if !stored {
                        cluster.warn(format!(
                            "no node knows the pointer files of dataset {}: there are none",
                            shown.id
                        ));
                    }
                    self.versions.give_up(shown);
                }
                None => {}
            }
            self.versions.present(LooseBase { epoch: cluster.epoch, shown });
            self.newest = shown;
            let chosen = chosen.iter().map(|(catalog, _)| age_of(catalog));
            let ages: Vec<Age> = chosen.chain(self.held.iter().copied()).collect();
            self.versions.prune(&ages, true);
            self.forget_datasets(cluster, &ages);
            self.spread = Some(Spread::begin(cluster, &self.versions, holders, false));
            self.spread_on(cluster);
        }
        if self.spread.is_some() {
            return false;
        }
        let shown = chosen.first().map(|(catalog, _)| age_of(catalog)).unwrap_or_default();
        let mut versions = Vec::new();
        if shown != Age::default() {
            let there = |version: &&LooseVersion| !version.entry.is_gone();
            versions.extend(self.versions.shown(shown).into_iter().filter(there).map(|v| v.stamp));
        }
        let began = self.sealed.iter().map(|(age, began)| (*age, *began)).collect();
        cluster.send_all(&Command::LooseBind { bound: Vec::new(), began });
        cluster.send_all(&Command::LooseShow { versions, shown });
        true
    }

    /// Datasets of which pointer files are kept.
    fn ages(&self, cluster: &Cluster) -> Vec<Age> {
        let others = self.doubts.iter().chain(&self.held).chain([&self.newest]).copied();
        cluster.datasets.all().map(age_of).chain(others).collect()
    }

    fn spread_on(&mut self, cluster: &mut Cluster) {
        if let Some(spread) = &mut self.spread
            && spread.go_on(cluster, &mut self.versions)
        {
            let lacking: BTreeSet<LooseStamp> = spread.lacking(&self.versions).collect();
            self.versions.lack_only(lacking);
            self.spread = None;
            self.sets.changed(cluster, &self.versions);
        }
    }

    /// A node's copy of a version; false when it was not asked for one.
    pub(super) fn read(
        &mut self,
        cluster: &mut Cluster,
        node: NodeRank,
        stamp: LooseStamp,
        version: Option<LooseVersion>,
    ) -> bool {
        let Some(spread) = &mut self.spread else { return false };
        let awaited = spread.read(cluster, &mut self.versions, node, stamp, version);
        self.spread_on(cluster);
        awaited
    }

    /// A program's request. One that came before is not carried out again.
    pub(super) fn request(
        &mut self,
        cluster: &mut Cluster,
        node: NodeRank,
        id: RequestId,
        entries: Vec<LooseEntry>,
    ) {
        if let Some(&errno) = self.answered.get(&id) {
            cluster.send(node, Command::LooseFinish { results: vec![(id, errno)] });
        } else if self.open.insert(id) {
            self.queue.push_back(Request { id, entries });
        }
    }

    /// The nodes are asked what has begun under which name: names do not change meanwhile.
    pub(super) fn asks(&self) -> bool {
        self.round.as_ref().is_some_and(|round| matches!(round.step, Step::Asking(_)))
    }

    /// Begins the next round if none runs and something is asked for.
    pub(super) fn begin(&mut self, cluster: &mut Cluster) {
        if self.round.is_some() || self.spread.is_some() || self.queue.is_empty() {
            return;
        }
        let mut bytes = 0;
        let mut requests = Vec::new();
        while let Some(next) = self.queue.front() {
            bytes += next.entries.iter().map(|entry| entry.bytes.len()).sum::<usize>();
            if requests.len() == ROUND_MAX || (bytes > ROUND_BYTES && !requests.is_empty()) {
                break;
            }
            requests.extend(self.queue.pop_front());
        }
        let number = cluster.next_round();
        cluster.send_all(&Command::LooseAsk { round: number });
        self.round = Some(Round { number, requests, step: Step::Asking(Answers::of(cluster.nodes())) });
    }

    /// A node says what has begun there; false when no such round asked.
    pub(super) fn asked(
        &mut self,
        cluster: &mut Cluster,
        now: Now<'_>,
        node: NodeRank,
        round: u64,
        begun: Vec<Begun>,
    ) -> bool {
        let Some(running) = self.round.as_mut().filter(|running| running.number == round) else {
            return false;
        };
        let Step::Asking(answers) = &mut running.step else { return false };
        if !answers.put(node, begun) {
            return false;
        }
        if answers.all() {
            let answers = std::mem::replace(answers, Answers::of([]));
            self.learn(cluster, now, answers.into_answers().flat_map(|(_, begun)| begun));
            self.order(cluster, now);
        }
        true
    }

    /// Takes in what has begun on all nodes.
    fn learn(&mut self, cluster: &Cluster, now: Now<'_>, told: impl Iterator<Item = Begun>) {
        let mut there: BTreeMap<Vec<u8>, u64> = BTreeMap::new();
        for Begun { name, base, since_us } in told {
            let over = now.committing.filter(|catalog| catalog.name == name).map(|catalog| catalog.id);
            if base != over.or_else(|| cluster.datasets.named(&name)) {
                // What that node had begun is sealed, or gone, meanwhile.
                continue;
            }
            // What began at a time that nobody knows is taken for the newest.
            let since_us = if since_us == 0 { u64::MAX } else { since_us };
            let first = there.entry(name).or_insert(since_us);
            *first = (*first).min(since_us);
        }
        self.begun.retain(|name, _| there.contains_key(name));
        for (name, since) in there {
            if since == u64::MAX {
                self.begun.entry(name).or_insert(cluster.now);
            } else {
                // It may be another one than before that has the name.
                self.begun.insert(name, since);
            }
        }
    }

    /// To which dataset a version belongs that is made now.
    fn owner(&self, cluster: &Cluster, now: Now<'_>) -> LooseOwner {
        let newest = cluster.datasets.all().chain(now.committing).max_by_key(|catalog| age_of(catalog));
        let doubt = self.doubts.iter().copied().max().unwrap_or_default();
        let after = newest.map(age_of).unwrap_or_default().max(self.newest).max(doubt);
        let created = newest.filter(|catalog| age_of(catalog) == after).map(|catalog| catalog.created_us);
        let sealed_began = self.sealed.get(&after).copied().or(created);
        match self.begun.iter().max_by_key(|(_, since)| **since) {
            Some((name, since)) if sealed_began.is_none_or(|sealed| *since >= sealed) => {
                LooseOwner::Begun { name: name.clone(), since_us: *since, after }
            }
            _ => LooseOwner::Sealed(after),
        }
    }

    /// Gives the round's versions their places, and has all nodes store them.
    fn order(&mut self, cluster: &mut Cluster, now: Now<'_>) {
        let owner = self.owner(cluster, now);
        let Some(round) = &mut self.round else { return };
        let mut versions = Vec::new();
        for Request { id, entries } in &mut round.requests {
            for entry in std::mem::take(entries) {
                let names = self.versions.names();
                let known = names.contains(entry.name.as_slice());
                if entry.is_gone() && !known {
                    continue;
                }
                if !entry.is_gone() && !known && names.len() >= cluster.settings.loose.max_names as usize {
                    let name = String::from_utf8_lossy(&entry.name).into_owned();
                    if !std::mem::replace(&mut self.full, true) {
                        let limit = cluster.settings.loose.max_names;
                        cluster.warn(format!(
                            "{name}: there are {limit} pointer files already (SCRFS_LOOSE_FILES): it stays on its node, as \
                             all further ones do"
                        ));
                    }
                    continue;
                }
                self.serial += 1;
                let stamp = LooseStamp { epoch: cluster.epoch, serial: self.serial };
                let version = LooseVersion { stamp, request: *id, owner: owner.clone(), entry };
                self.versions.insert(version.clone());
                versions.push(version);
            }
        }
        if versions.is_empty() {
            return self.finish(cluster, 0);
        }
        let stamps = versions.iter().map(|version| version.stamp).collect();
        cluster.send_all(&Command::LooseStore { round: round.number, versions, place: true });
        round.step = Step::Storing(Answers::of(cluster.nodes()), stamps);
    }

    /// A node has stored; false when no such round waits for it.
    pub(super) fn stored(&mut self, cluster: &mut Cluster, node: NodeRank, round: u64, errno: i32) -> bool {
        if let Some(spread) = &mut self.spread
            && spread.stored(cluster, node, round, errno)
        {
            self.spread_on(cluster);
            return true;
        }
        let Some(running) = self.round.as_mut().filter(|running| running.number == round) else {
            return false;
        };
        let Step::Storing(answers, stamps) = &mut running.step else { return false };
        if errno != 0 {
            self.versions.lack(stamps.iter().copied());
            let text = std::io::Error::from_raw_os_error(errno);
            let host = cluster.host(node).to_owned();
            cluster.warn(format!("{host} cannot store pointer files: {text}"));
        }
        if !answers.put(node, errno) {
            return false;
        }
        if answers.all() {
            let errno = answers.iter().map(|(_, errno)| *errno).find(|errno| *errno != 0).unwrap_or(0);
            self.finish(cluster, errno);
        }
        true
    }

    fn finish(&mut self, cluster: &mut Cluster, errno: i32) {
        let Some(round) = self.round.take() else { return };
        let results: Vec<(RequestId, i32)> =
            round.requests.iter().map(|request| (request.id, errno)).collect();
        for &(id, errno) in &results {
            self.open.remove(&id);
            self.answered.insert(id, errno);
            self.answered_order.push_back(id);
        }
        while self.answered_order.len() > REMEMBERED {
            if let Some(old) = self.answered_order.pop_front() {
                self.answered.remove(&old);
            }
        }
        // Before anybody hears of it.
        self.sets.changed(cluster, &self.versions);
        cluster.send_all(&Command::LooseFinish { results });
        self.prune(cluster);
    }

    fn prune(&mut self, cluster: &mut Cluster) {
        // What is on its way to the nodes, or asked for there, stays.
        if self.round.is_some() || self.spread.is_some() {
            return;
        }
        let kept = self.ages(cluster);
        let versions = self.versions.prune(&kept, !self.onward);
        // First: a dataset that a node knows has all its versions there.
        self.forget_datasets(cluster, &kept);
        if !versions.is_empty() {
            cluster.send_all(&Command::LooseForget { versions, datasets: Vec::new() });
        }
    }

    /// A node's part of a dataset is frozen, and began then (0: it has none).
    pub(super) fn frozen(&mut self, id: DatasetId, begun_us: u64) {
        if begun_us != 0 {
            let first = self.freezing.entry(id).or_insert(begun_us);
            *first = (*first).min(begun_us);
        }
    }

    /// A dataset is about to be committed: the versions that belong to it are bound before.
    pub(super) fn committing(&mut self, cluster: &mut Cluster, catalog: &Catalog) {
        let frozen = self.freezing.remove(&catalog.id);
        self.freezing.retain(|id, _| *id > catalog.id);
        let known = self.begun.remove(&catalog.name);
        // Names were removed and no file was made, or nobody knows: it has no versions but those of its name.
        let begun = frozen.into_iter().chain(known).max().unwrap_or_default();
        let age = age_of(catalog);
        self.sealed.insert(age, begun);
        self.newest = self.newest.max(age);
        let bound = self.versions.bind(&catalog.name, begun, age);
        let began = vec![(age, begun)];
        cluster.at_front(|cluster| cluster.send_all(&Command::LooseBind { bound, began }));
    }

    /// It is complete everywhere.
    pub(super) fn sealed(&mut self, cluster: &mut Cluster) {
        self.held.clear();
        self.onward = true;
        self.prune(cluster);
    }

    /// A dataset's directory is gone everywhere.
    pub(super) fn removed(&mut self, cluster: &mut Cluster, name: &[u8]) {
        self.begun.remove(name);
        let mut bound = self.versions.unbind(name, &self.begun, &self.sealed);
        // What they belong to instead may have been bound meanwhile.
        for (age, began) in self.sealed.iter().filter(|_| !bound.is_empty()).collect::<Vec<_>>() {
            bound.extend(self.versions.bind(b"", *began, *age));
        }
        if !bound.is_empty() {
            cluster.send_all(&Command::LooseBind { bound, began: Vec::new() });
        }
    }

    /// A dataset's directory has another name everywhere.
    pub(super) fn renamed(&mut self, cluster: &mut Cluster, from: &[u8], to: &[u8], exchange: bool) {
        if !exchange {
            self.removed(cluster, to);
        }
        let (moved, back) = (self.begun.remove(from), self.begun.remove(to));
        self.begun.extend(moved.map(|since| (to.to_vec(), since)));
        if exchange {
            self.begun.extend(back.map(|since| (from.to_vec(), since)));
        }
        let bound = self.versions.renamed(from, to, exchange);
        if !bound.is_empty() {
            cluster.send_all(&Command::LooseBind { bound, began: Vec::new() });
        }
    }

    /// What the prefix is to keep with a dataset that is about to be published, or is there.
    pub(super) fn publish(&mut self, cluster: &mut Cluster, age: Age) {
        // While bytes are still being read the set is put afterwards.
        if self.spread.is_none() {
            cluster.at_front(|cluster| self.sets.put(cluster, &self.versions, age));
        }
    }

    /// Time passed.
    pub(super) fn tick(&mut self, cluster: &mut Cluster) {
        if let Some(spread) = &mut self.spread {
            spread.tick(cluster, &self.versions);
            self.spread_on(cluster);
        }
        self.sets.tick(cluster, &self.versions);
    }

    /// What is on the PFS was found out, or is new.
    pub(super) fn refresh(&mut self, cluster: &mut Cluster) {
        if self.spread.is_none() {
            self.sets.changed(cluster, &self.versions);
        }
    }

    /// The prefix's set of a dataset that was fetched from there.
    pub(super) fn fetched(&mut self, age: Age, set: Option<LooseSet>) {
        self.sets.fetched(age, set);
    }
}

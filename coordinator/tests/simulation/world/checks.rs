//! What must hold: at every answer, at every commit, when a start is over and when everything has
//! settled.

use std::collections::{BTreeMap, BTreeSet};

use scrfs::control::{Advice, Command, Event, HeldState, MarkerScope, Start};
use scrfs::dataset::{Catalog, EntryKind};
use scrfs::ids::DatasetId;
use scrfs::path::RelPath;
use scrfs::prefix::PfsTask;

use super::{World, room};
use crate::daemon::{Answered, Daemon, Dataset, crc_of, size_of, top_of};
use crate::observer::{self, Key};
use crate::prefix::TRIES;

impl World {
    /// What was advised holds until the next seal, and what it counts goes on, whoever leads.
    pub(super) fn check_advice(&self, node: &Daemon, told: &Advice) {
        let Some(before) = node.advised else { return };
        assert_eq!(before.begun_us, told.begun_us, "{}: the program began anew", node.host);
        let at = told.sealed_us;
        let seals = self.sealed_at.get(&at).map_or(0, BTreeSet::len);
        if at != before.sealed_us {
            // Or one that is complete, but whose seal's end was never told.
            let known = seals > 0 || self.catalogs.values().any(|catalog| catalog.created_us == at);
            assert!(known, "{}: {before:?}, then {told:?} without a seal", node.host);
        } else if seals + usize::from(at == told.begun_us) <= 1 {
            let kept = (told.need_checkpoint || !before.need_checkpoint)
                && (told.should_exit || !before.should_exit)
                && told.waited_us == before.waited_us;
            assert!(kept, "{}: {before:?}, then {told:?}", node.host);
        }
    }

    pub(super) fn got_ready(&mut self, name: Option<Vec<u8>>) {
        assert!(!self.ready, "ready once");
        self.ready = true;
        self.programs = true;
        let held: Vec<Key> = self.nodes[0].datasets.iter().map(|(id, held)| (held.epoch, *id)).collect();
        if self.start == Start::Attach {
            for key in held {
                self.note_bared(key);
            }
            // An eviction that was decided and never reached a node did not happen.
            // What all have recorded is promised from now on, its predecessor may go.
            let everywhere = |id: &DatasetId| {
                let complete = |node: &Daemon| node.datasets.get(id).is_some_and(|d| d.listed);
                self.nodes.iter().all(complete)
            };
            let whole = self.nodes[0].datasets.iter().filter(|(id, _)| everywhere(id));
            let whole = whole.map(|(id, dataset)| ((dataset.epoch, *id), dataset.name.clone()));
            self.promised.extend(whole.filter(|(key, _)| !self.rotten.contains(key)));
            // What a former lead found bad and told nobody is good for all that anybody knows.
            self.failed.retain(|key| observer::failed(&self.nodes, *key));
            let newest = self.promised.last_key_value().map(|(key, _)| *key);
            if self.rotten.last() > newest.as_ref() {
                self.forget_older();
            }
            let evicts = self.down.iter().flatten().filter_map(|command| match command {
                Command::Evict(id) => Some(*id),
                _ => None,
            });
            let evicts: BTreeSet<DatasetId> = evicts.collect();
            for node in &self.nodes {
                let listed = |top: &[u8]| node.listed(top).is_some_and(|(id, _)| !evicts.contains(&id));
                self.oracle.extend(node.directories.iter().filter(|dir| listed(top_of(dir))).cloned());
            }
            return;
        }
        // The restart has encoded anew what it could: only what is so now counts.
        self.bared.clear();
        for key in held {
            self.note_bared(key);
        }
        self.promised.clear();
        self.removing.clear();
        let listed: Vec<(DatasetId, Dataset)> = self.nodes[0]
            .datasets
            .iter()
            .filter(|(_, dataset)| dataset.listed)
            .map(|(id, dataset)| (*id, dataset.clone()))
            .collect();
        self.oracle = self.nodes[0].directories.clone();
        for node in &self.nodes {
            assert_eq!(node.directories, self.oracle, "directories after a restart");
            assert!(node.files.is_empty(), "unsealed files after a restart");
            let here: Vec<DatasetId> =
                node.datasets.iter().filter(|(_, d)| d.listed).map(|(id, _)| *id).collect();
            assert_eq!(here, listed.iter().map(|(id, _)| *id).collect::<Vec<_>>(), "listed on {}", node.host);
        }
        self.check_presented(&listed);
        let nodes = self.as_told();
        for (id, dataset) in &listed {
            let key = (dataset.epoch, *id);
            if self.can_give(key) {
                self.rotten.remove(&key);
            } else {
                // A lazy restart finds that out later.
                self.rotten.insert(key);
            }
            // A lazy restart presents it unread: what is bad for good is not flushed either.
            let catalog = dataset.catalog.as_ref().expect("presented");
            if self.is_lost(catalog) {
                self.decayed.insert(key);
            }
            // Nobody has read yet what a lazy restart fetches.
            let absent = self.absent(*id);
            if absent.is_empty()
                || !self.settings.restart.lazy_fetch
                || !self.is_fetched((dataset.epoch, *id))
            {
                observer::readable(&nodes, &self.truth, *id, &absent);
            }
        }
        let current = listed.iter().map(|(id, dataset)| (dataset.epoch, *id)).max();
        let current_name = listed.iter().find(|(id, _)| Some(*id) == current.map(|key| key.1));
        assert_eq!(name, current_name.map(|(_, dataset)| dataset.name.clone()), "ready names current");
        if self.calm {
            let [best, told] = self.expected;
            // One in between was believed until a restart that gave up a newer one read that.
            let is_between = best < current && current < told;
            assert!(
                is_between || self.expected.contains(&current),
                "{current:?} and not {best:?} or {told:?}"
            );
            if let Some(key) = current {
                self.is_well_laid_out(key);
            }
            self.check_older(current);
        } else {
            // What fails three times is not waited for.
            let is_spoilt = |key: &Key| self.spoilt.get(&key.1).is_some_and(|tries| *tries == 3);
            let has_nothing = self.expected.contains(&None) || self.whole.iter().all(is_spoilt);
            assert!(current.is_some() || has_nothing, "begins from nothing over {:?}", self.expected);
        }
        let good = current.filter(|key| !self.rotten.contains(key));
        self.promised.extend(good.into_iter().zip(name));
        self.check_shown(current);
        self.counts.rebuilt += u64::from(current.is_some());
    }

    /// Also what is older than `current` is listed, where the caches have it whole.
    fn check_older(&self, current: Option<Key>) {
        for node in &self.nodes {
            for (id, dataset) in node.datasets.iter().filter(|(_, dataset)| !dataset.listed) {
                let key = (dataset.epoch, *id);
                let newer = node.listed(&dataset.name).is_some_and(|(id, newer)| (newer.epoch, id) > key);
                let is_there = dataset.state == HeldState::Complete
                    && Some(key) < current
                    && !newer
                    && self.settings.distribute
                    && !observer::removed(&self.nodes, key)
                    && observer::in_caches(&self.nodes, key);
                assert!(!is_there, "{key:?} is older than {current:?}, whole, and not listed");
            }
        }
    }

    /// With a listed dataset its directories go.
    pub(super) fn evicting(&mut self, id: DatasetId) {
        let counted = self.ready || self.start == Start::Attach;
        if self.early || (counted && self.settings.cache_bytes > 0) {
            self.leaves_early(id);
        }
        let listed =
            self.nodes.iter().filter_map(|node| node.datasets.get(&id)).find(|dataset| dataset.listed);
        if let Some(dataset) = listed.filter(|_| self.ready) {
            let top = RelPath::new(dataset.name.clone()).expect("a name");
            self.oracle.retain(|dir| dir.strip(&top).is_none());
        }
    }

    /// With scope all every node's programs wait for this seal, unless it was set by what all have
    /// seen.
    pub(super) fn freezing(&self, name: &[u8]) {
        let everywhere = |node: &Daemon| node.renamed.contains(name) || node.background.contains(name);
        let set = |node: &Daemon| node.markers.contains_key(name);
        let all = self.settings.sealing.scope == MarkerScope::All;
        let may = !all || self.nodes.iter().any(everywhere) || self.nodes.iter().all(set);
        assert!(may, "{name:?} is sealed, and not marked on all nodes");
    }

    /// What the catalog says that the node has of a listed dataset.
    fn bytes_on(&self, node: &Daemon, id: DatasetId) -> u64 {
        let key = (node.datasets[&id].epoch, id);
        observer::catalog(&self.nodes, key).map_or(0, |catalog| catalog.layout.bytes_on(&node.host))
    }

    /// A node says it to the lead.
    pub(super) fn overwritten(&mut self, event: &Event) {
        if let (Event::Overwritten(id), Some(overwriting)) = (event, &mut self.overwriting) {
            overwriting.insert(*id);
        }
    }

    /// `...; dataset ID leaves the caches early`: nobody may lose what is being built on it.
    pub(super) fn check_early(&self, text: &str) {
        let id = text.rsplit_once("dataset ").and_then(|(_, rest)| rest.split(' ').next()?.parse().ok());
        let id = DatasetId(id.unwrap_or_else(|| panic!("{text}")));
        let has_begun = |node: &Daemon| node.next.contains_key(&id);
        let is_told = self.overwriting.iter().any(|overwriting| overwriting.contains(&id));
        let is_known = is_told && self.nodes.iter().any(has_begun);
        assert!(!is_known, "{id} leaves for want of room, and its next generation has begun");
    }

    /// Of what goes for want of room the newest is on the PFS, or `SCR_CACHE_SIZE` is 1.
    fn leaves_early(&mut self, id: DatasetId) {
        self.sacrificed.insert(id);
        let Some((key, _)) = self.promised.last_key_value().filter(|(key, _)| key.1 == id) else { return };
        // Also one whose bytes have gone bad, which nobody knows.
        let is_newer =
            |(other, dataset): (&DatasetId, &Dataset)| (dataset.epoch, *other) > *key && dataset.listed;
        let newest = !self.nodes.iter().any(|node| node.datasets.iter().any(is_newer));
        let flushed = self.settings.fetch && self.prefix.datasets.contains_key(key);
        assert!(flushed || !newest || self.settings.cache_size == 1, "{id} is the newest, and goes");
        // Nobody knows what has gone bad, here or on the PFS, before it is read.
        if !flushed || !observer::in_prefix(&self.prefix, *key) {
            self.promised.clear();
        }
    }

    pub(super) fn committing(&mut self, catalog: &Catalog) {
        let key = (catalog.epoch, catalog.id);
        let is_known = self.catalogs.contains_key(&(key, catalog.revision));
        let stored = self.catalogs.entry((key, catalog.revision)).or_insert_with(|| catalog.clone());
        assert_eq!(stored, catalog, "two catalogs under one id and revision");
        if (self.start == Start::Attach || is_known) && self.truth.contains_key(&key) {
            // It was checked before; it may have lost members since.
            return;
        }
        for node in self.nodes.iter().filter(|_| !self.truth.contains_key(&key)) {
            assert!(!node.invalid.contains(&catalog.name), "committed with .invalid on {}", node.host);
        }
        let mut sealed = BTreeMap::new();
        for entry in &catalog.entries {
            let EntryKind::File(copy) = &entry.kind else { continue };
            if self.may_be_absent(catalog, copy) {
                let content = self.truth[&key][&entry.path];
                assert_eq!(
                    (size_of(content), crc_of(content)),
                    (copy.size, copy.crc),
                    "it is not what was sealed"
                );
                sealed.insert(entry.path.clone(), content);
                continue;
            }
            let host = &catalog.layout.members[copy.member.0 as usize].host;
            let holder = self.nodes.iter().find(|node| node.host == *host).expect("takes part");
            let data = &holder.datasets[&catalog.id].members[&copy.member];
            let content = data.files[&entry.path];
            let may_be_bad = self.settings.restart.lazy && self.start == Start::Restart && !self.ready;
            let is_good = size_of(content) == copy.size && (!data.bad || may_be_bad);
            assert!(is_good, "{} of {key:?} is committed before it is recorded", entry.path);
            sealed.insert(entry.path.clone(), content);
        }
        if let Some(truth) = self.truth.get(&key) {
            assert_eq!(*truth, sealed, "other bytes under the id of {key:?}");
        } else {
            self.check_generation(catalog.id, &sealed);
            self.racks_are_apart(catalog);
            self.pointers_sealed(catalog);
            self.truth.insert(key, sealed);
            self.counts.seals += 1;
        }
    }

    /// Tries are few, and after those far between, in each epoch.
    pub(super) fn flush_begins(&mut self, task: &PfsTask) {
        if let PfsTask::BeginFlush(catalog) = task
            && self.prefix.cursed(catalog.id)
        {
            let tries = self.prefix.tried.entry(catalog.id).or_default();
            *tries += 1;
            let last = self.prefix.tried_at.insert(catalog.id, self.now).unwrap_or_default();
            let rested = last + 600_000_000 <= self.now;
            assert!(*tries <= TRIES || rested, "flush of {} is tried without a rest", catalog.id);
        }
    }

    /// Nothing is on its way: what is due is flushed, or cursed. One that fails every time holds no
    /// other up.
    pub(super) fn check_flushes(&self) {
        if self.lead.is_none() || !self.smooth || !self.ready {
            return;
        }
        self.check_wishes();
        if self.settings.flush_every != 1 {
            return;
        }
        let newest = self.prefix.datasets.keys().max().copied();
        for (id, dataset) in self.nodes[0].datasets.iter().filter(|(_, dataset)| dataset.listed) {
            // Bad bytes are not flushed, and a flush that was given up for them is not tried again.
            let decayed = self.decayed.contains(&(dataset.epoch, *id));
            let due = Some((dataset.epoch, *id)) > newest && !self.prefix.cursed(*id) && !decayed;
            // Where its eviction had gone far when the coordinators died, the first try may find
            // members gone: they are rebuilt, and it is tried again.
            let waits = self.awaits_retry(*id);
            assert!(!due || dataset.flushed || waits, "{id} is due and not flushed");
        }
    }

    /// The PFS hangs; it may begin to.
    pub(super) fn hangs(&mut self, may_begin: bool) -> bool {
        let Some((_, task)) = self.tasks.front().filter(|_| self.hangs && may_begin) else {
            return self.now < self.hang;
        };
        // Seldom asked.
        let reads = matches!(task, PfsTask::ReadCatalog(_));
        let begins = self.rng.rarely(if reads { 2000 } else { 100 });
        if begins && self.hang <= self.now {
            self.hang = self.now + 1_000_000 * *self.rng.pick(&[40, 100, 2000]).expect("some");
            self.calm = false;
            self.say(|| "the PFS hangs".to_owned());
        }
        self.now < self.hang
    }

    /// A PFS that hangs keeps no job from starting, and does not let the caches grow without end.
    pub(super) fn check_held_up(&self) {
        let asked = self.tasks.front().map_or(self.now, |(since, _)| *since);
        assert!(self.ready || asked + 300_000_000 > self.now, "the start waits for a PFS that hangs");
        let flush = |task: &PfsTask| matches!(task, PfsTask::BeginFlush(_) | PfsTask::Publish(_));
        let since = self.tasks.iter().rev().find(|(_, task)| flush(task)).map(|(since, _)| *since);
        if self.ready && since.is_some_and(|since| since + 1_000_000_000 < self.now) {
            for node in &self.nodes {
                let kept = |dataset: &&Dataset| dataset.listed && !dataset.failed;
                let listed = node.datasets.values().filter(kept).count();
                assert!(listed <= self.settings.cache_size as usize + 1, "{} keeps {listed}", node.host);
            }
        }
    }

    /// A next generation is the one before it, less what was removed anywhere, with what was
    /// changed anywhere.
    fn check_generation(&mut self, id: DatasetId, sealed: &BTreeMap<RelPath, u64>) {
        let overs: Vec<_> =
            self.nodes.iter().filter_map(|node| node.datasets.get(&id)?.over.as_ref()).cloned().collect();
        let Some(base) = overs.first().map(|(base, _)| *base) else { return };
        assert!(overs.iter().all(|(other, _)| *other == base), "one base");
        let epoch =
            self.nodes.iter().find_map(|node| Some(node.datasets.get(&base)?.epoch)).expect("its base");
        let mut expected = self.truth[&(epoch, base)].clone();
        for (_, next) in &overs {
            expected.retain(|path, _| !next.removed.contains(path));
        }
        let mut changed = BTreeMap::new();
        for (path, content) in overs.into_iter().flat_map(|(_, next)| next.changed) {
            let other = *changed.entry(path.clone()).or_insert(content);
            assert_eq!(other, content, "{path} of {id} was changed on two nodes, with other bytes");
        }
        expected.extend(changed);
        assert_eq!(*sealed, expected, "generation {id} over {base}");
        self.counts.generations += 1;
    }

    pub(super) fn check_answers(&mut self) {
        for at in 0..self.nodes.len() {
            for answer in std::mem::take(&mut self.nodes[at].answered) {
                self.check_answer(at, &answer);
            }
        }
    }

    fn check_answer(&mut self, at: usize, answer: &Answered) {
        match answer {
            Answered::Directory(_, op, 0) => self.check_directory(at, op),
            Answered::Marker(name, Some(id)) => {
                let epoch = self.nodes[at].datasets[id].epoch;
                // An old one whose marker was set again, or room was short: it was let go once its
                // marker was answered, which this node has yet to hear. A newer one may have gone
                // since.
                let leaves = self.down[at].contains(&Command::Evict(*id));
                for node in &self.nodes {
                    let Some(dataset) = node.datasets.get(id) else {
                        assert!(leaves, "{id} is not on {}", node.host);
                        continue;
                    };
                    assert_eq!(
                        (&dataset.name, dataset.state),
                        (name, HeldState::Complete),
                        "on {}",
                        node.host
                    );
                }
                if !leaves && self.may_promise((epoch, *id)) && !self.sacrificed.contains(id) {
                    self.promised.insert((epoch, *id), name.clone());
                }
            }
            Answered::Frozen(..) => self.counts.unhurried += 1,
            Answered::Fetch(file, room::ENOSPC) => self.check_full(at, file),
            Answered::Fetch(file, errno) => self.check_fetch(at, file, *errno),
            _ => {}
        }
    }

    /// Nothing is left to do, and nothing waits.
    pub(crate) fn check_settled(&self) {
        assert!(self.ready, "ready");
        assert!(self.prefix.to_mark.is_empty(), "{:?} are damaged, not marked", self.prefix.to_mark);
        self.check_removed();
        self.check_hidden();
        self.check_restored();
        for node in &self.nodes {
            let host = &node.host;
            assert!(node.waiting.is_empty(), "{host}: {:?} wait", node.waiting);
            assert!(node.markers.is_empty(), "{host}: markers {:?} wait", node.markers);
            assert!(node.background.is_empty(), "{host}: seals of {:?} have no end", node.background);
            assert!(node.invalidating.is_empty(), "{host}: .invalid of {:?} waits", node.invalidating);
            assert!(node.fetches.is_empty(), "{host}: fetches wait");
            assert!(node.pointers.waiting.is_empty(), "{host}: pointers wait");
            if self.smooth {
                assert_eq!(node.pointers.tree, self.nodes[0].pointers.tree, "pointers on {host}");
            }
            assert!(node.unfinished.is_empty() && node.prepared.is_none(), "{host}: a round is not finished");
            assert_eq!(node.directories, self.nodes[0].directories, "directories on {host}");
            assert_eq!(node.directories, self.oracle, "directories of the order");
            let listed = |node: &Daemon| -> Vec<DatasetId> {
                let complete = node.datasets.iter().filter(|(_, d)| d.listed);
                complete.map(|(id, _)| *id).collect()
            };
            assert_eq!(listed(node), listed(&self.nodes[0]), "listed on {host}");
            assert!(
                node.datasets.values().all(|d| d.state == HeldState::Complete),
                "{host}: a seal in doubt"
            );
            let size = self.settings.cache_size as usize;
            let failed = |id: &DatasetId| node.datasets[id].failed;
            for id in listed(node) {
                assert_eq!(
                    failed(&id),
                    self.nodes[0].datasets[&id].failed,
                    "{id} has failed on some nodes only"
                );
            }
            let kept: Vec<DatasetId> = listed(node).into_iter().filter(|id| !failed(id)).collect();
            assert!(kept.len() <= size, "{host} keeps {:?}", listed(node));
            // The newest may be more than fits, and what has nothing here takes no room beside it.
            let here = kept.iter().map(|id| self.bytes_on(node, *id)).filter(|bytes| *bytes > 0);
            let (bytes, bound) = (here.clone().sum::<u64>(), self.settings.cache_bytes);
            let fits = bound == 0 || bytes <= bound || here.count() <= 1;
            assert!(fits, "{host} keeps {bytes} of {bound} bytes");
        }
    }
}

//! This node's part in a seal: freeze, commit, sealed; or drop.
//!
//! Freezing waits in a thread of its own until nobody can write; its bound is the job's seal
//! time-out. What was frozen is recorded before the lead hears of it, so that a restarted worker
//! freezes it again. COMPLETE is one commit of one file.
//!
//! Fault points: `seal.begun`, `seal.quiet`, `seal.frozen`, `commit.begun`, `commit.recorded`,
//! `commit.listed`.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::control::loose::Age;
use crate::control::{Event, FrozenPart, HeldState, Reason};
use crate::dataset::lifecycle::{Files, Step};
use crate::dataset::{Catalog, CatalogIndex, EntryKind, FileCopy};
use crate::faults;
use crate::ids::{DatasetId, Member};
use crate::path::RelPath;
use crate::store::beneath;
use crate::transfer::Monitor;

use super::disk;
use super::links::{Link, Linked};
use super::listing::{Lost, entry_of, walk};
use super::logs::Logs;
use super::node::Node;
use super::priority::seal_waited_for;
use super::promise::Settling;
use super::quiet::Bell;
use super::remedies;
use super::state::{Dataset, Freezing, Origin, Part};
use crate::boundary::Generation;
use crate::record::catalog_file;

/// The name of the threads that freeze, one for each seal.
const FREEZES: &str = "scrfs-freeze";
/// How long a given up seal may take to thaw.
const THAW_MAX: Duration = Duration::from_secs(5);

pub(super) const GIVEN_UP: &str = "the seal was given up";

impl Node {
    /// Starts freezing. In the records' thread.
    pub(super) fn freeze(&self, id: DatasetId, name: Vec<u8>, member: Member, base: Option<DatasetId>) {
        let waited = {
            let mut state = self.state.lock();
            state.seals.insert(id, name.clone());
            seal_waited_for(&state, Some(id))
        };
        // What was preferred for the order may have been given back while this waited for the
        // records' thread.
        if waited {
            self.hurry();
        }
        if let Err(reason) = self.begin_freeze(id, &name, base) {
            let (shown, remedy) =
                (String::from_utf8_lossy(&name), remedies::of_cache(&reason, &self.config.host));
            self.events.error(Some(id), &format!("{shown}: cannot be frozen: {reason}{remedy}"));
            return self.state.lock().send(Event::Frozen { id, result: Err(reason) });
        }
        let (cancelled, bell) = (Monitor::default(), Arc::new(Bell::default()));
        let ringing = Arc::clone(&bell);
        let ring = Arc::new(move || ringing.ring());
        let freezing = Freezing { name: name.clone(), cancelled: cancelled.clone(), ring };
        self.state.lock().freezing.insert(id, freezing);
        let me = self.me.clone();
        let spawned = self.config.hands.begin(FREEZES, move || {
            if let Some(node) = me.upgrade() {
                node.freeze_and_tell(id, &name, (member, base), (&cancelled, &bell));
            }
        });
        if let Err(error) = spawned {
            self.state.lock().freezing.remove(&id);
            self.state.lock().send(Event::Frozen { id, result: Err(format!("no thread: {error}").into()) });
        }
    }

    fn begin_freeze(&self, id: DatasetId, name: &[u8], base: Option<DatasetId>) -> Result<(), Reason> {
        catalog_file::validate_name(name)?;
        self.config.hands.finish(FREEZES);
        {
            let mut state = self.state.lock();
            // A seal of the name that was given up may still be thawing.
            let until = Instant::now() + THAW_MAX;
            let thawing = |state: &mut super::state::State| {
                state.freezing.values().any(|other| other.name == name && other.cancelled.is_cancelled())
            };
            self.thawed.wait_while_until(&mut state, thawing, until);
            let is_base = |dataset: &Dataset| dataset.life.is_complete() && Some(dataset.id) == base;
            let here = state.by_name(name);
            if here.is_none() && base.is_some() {
                return Err("the generation before it is not here".into());
            }
            if let Some(dataset) = here.filter(|dataset| !is_base(dataset)) {
                return Err(format!(
                    "its name is that of dataset {}, {:?} here",
                    dataset.id,
                    dataset.state()
                )
                .into());
            }
            if state.table.datasets.contains_key(&id)
                || state.freezing.values().any(|other| other.name == name)
            {
                return Err("it is being sealed already".into());
            }
        }
        faults::hit("seal.begun")?;
        let seen =
            self.disk.lock().change(&self.state, |table| table.highest_id = table.highest_id.max(id.0));
        seen.map_err(Reason::from)
    }

    /// Freezes the dataset and answers the lead. The whole of a freezing thread.
    fn freeze_and_tell(
        &self,
        id: DatasetId,
        name: &[u8],
        (member, base): (Member, Option<DatasetId>),
        signals: (&Monitor, &Arc<Bell>),
    ) {
        self.tree.freeze(name);
        let cancelled = signals.0;
        let mut result = self.freeze_quiet(id, name, (member, base), signals);
        if cancelled.is_cancelled() && !self.state.lock().table.datasets.contains_key(&id) {
            result = Err(GIVEN_UP.into());
        }
        let shown = String::from_utf8_lossy(name).into_owned();
        match &result {
            Ok(part) => {
                let bytes: u64 = part.files.iter().map(|file| file.size).sum();
                let (files, carried) = (part.files.len(), part.carried.len());
                let text = format!(
                    "{shown}: frozen as member {member}, {files} files, {bytes} bytes, and {carried} carried on"
                );
                self.events.info(Some(id), &text);
            }
            Err(reason) => {
                if !cancelled.is_cancelled() || !self.state.lock().table.background.contains_key(name) {
                    self.tree.thaw(name);
                }
                self.drop_copies(id);
                let remedy = remedies::of_cache(reason, &self.config.host);
                self.events.error(Some(id), &format!("{shown}: cannot be frozen: {reason}{remedy}"));
            }
        }
        let mut state = self.state.lock();
        state.freezing.remove(&id);
        self.thawed.notify_all();
        if !cancelled.is_cancelled() {
            state.send(Event::Frozen { id, result });
        }
    }

    /// Waits until the frozen dataset is quiet, then records this node's part. In the freezing
    /// thread.
    fn freeze_quiet(
        &self,
        id: DatasetId,
        name: &[u8],
        (member, base): (Member, Option<DatasetId>),
        (cancelled, bell): (&Monitor, &Arc<Bell>),
    ) -> Result<FrozenPart, Reason> {
        if self.tree.is_invalid(name) {
            return Err(".invalid is in it".into());
        }
        let logs = self.wait_quiet(name, cancelled, bell)?;
        faults::hit("seal.quiet")?;
        if let Some(base) = base {
            // Its sealed files leave the tree also where nothing was changed: the tree is the new
            // generation's.
            self.open_generation(base, self.presentations())?;
        }
        self.cache.settle(id, name, &[])?;
        let logs = self.copy_logs(id, name, &logs, cancelled)?;
        let mut frozen = self.tree.files(name)?;
        for file in &mut frozen {
            if let Some(log) = logs.get(&file.path) {
                file.size = log.size;
            }
        }
        let limit = self.state.lock().settings.as_ref().map_or(u64::MAX, |settings| settings.list_max);
        if frozen.len() as u64 > limit {
            return Err(format!("{} files, more than SCRFS_LIST_MAX ({limit})", frozen.len()).into());
        }
        let base = base.map(|base| self.dataset(base)).transpose()?;
        let told = match &base {
            Some(base) => self.part_over(base, frozen)?.0,
            None => FrozenPart { files: frozen, ..FrozenPart::default() },
        };
        let told = FrozenPart { begun_us: self.begun_at(name), ..told };
        let (part, links) = self.describe((id, name, member), &told, base.as_ref(), &logs)?;
        let bytes = part.files.iter().map(|(_, copy)| copy.size).sum();
        self.copy_links(id, name, (links, bytes), cancelled)?;
        self.record_frozen(id, name, member, part, cancelled)?;
        faults::hit("seal.frozen")?;
        Ok(told)
    }

    /// The member's files with their attributes and ranks, and the links and directories beside
    /// them; also the names that are to be files of their own.
    fn describe(
        &self,
        (id, name, member): (DatasetId, &[u8], Member),
        told: &FrozenPart,
        base: Option<&Dataset>,
        logs: &Logs,
    ) -> Result<(Part, Vec<Link>), Reason> {
        let top = self.tree.backing_directory(name)?;
        let at = |path: &RelPath, error: io::Error| format!("{path}: {error}");
        let name = RelPath::new(name)?;
        let mut files = Vec::with_capacity(told.files.len() + told.carried.len());
        let carried: BTreeSet<RelPath> = told.carried.iter().map(|file| file.path.clone()).collect();
        let mut linked = Linked::default();
        for file in told.carried.iter().chain(&told.files) {
            let log = logs.get(&file.path);
            let stat = match log {
                Some(log) => log.stat,
                None => beneath::open_file(top.as_fd(), &file.path)
                    .and_then(|fd| Ok(rustix::fs::fstat(&fd)?))
                    .map_err(|e| at(&file.path, e))?,
            };
            if stat.st_size.cast_unsigned() != file.size {
                return Err(format!("{}: changed its size while frozen", file.path).into());
            }
            if let Some(why) = self.cache.lost_writes.why_not(&stat) {
                return Err(format!("{}: {why}", file.path).into());
            }
            if log.is_none() {
                linked.add(&file.path, &stat, carried.contains(&file.path));
            }
            let rank = name.concat(&file.path).ok().and_then(|path| self.journal.lock().rank_of(&path));
            let crc = log.map_or(0, |log| log.crc);
            let mut copy = FileCopy { size: file.size, crc, member, program_rank: rank };
            let sealed = base.filter(|_| carried.contains(&file.path));
            if let Some((_, sealed)) = sealed.and_then(|base| base.file(&file.path)) {
                (copy.crc, copy.program_rank) = (sealed.crc, sealed.program_rank);
            }
            files.push((entry_of(file.path.clone(), EntryKind::File(copy.clone()), &stat), copy));
        }
        let (mut others, mut lost) = (Vec::new(), Lost::default());
        walk(top.as_fd(), &RelPath::root(), &mut others, &mut lost)
            .map_err(|error| Reason::from(error).on("cannot be listed"))?;
        if let Some(text) = lost.told(&name) {
            self.events.warning(Some(id), &text);
        }
        let mut part = Part::new(Origin::Here, files, others);
        part.carried = Arc::new(carried);
        Ok((part, self.links_of(name.as_bytes(), linked)?))
    }

    fn record_frozen(
        &self,
        id: DatasetId,
        name: &[u8],
        member: Member,
        part: Part,
        cancelled: &Monitor,
    ) -> Result<(), Reason> {
        let part = Arc::new(part);
        let mut disk = self.disk.lock();
        // A thread that cancels a seal takes this lock before it looks at the table.
        if cancelled.is_cancelled() {
            return Err(GIVEN_UP.into());
        }
        let epoch = self.state.lock().table.epoch;
        let recorded = disk.change(&self.state, |table| {
            let mut dataset = Dataset::new(id, epoch, name.to_vec(), Files::InTree);
            dataset.parts.insert(member, Arc::clone(&part));
            table.datasets.insert(id, dataset);
            // When all nodes are frozen, markers may be answered: from here on it stays as it is
            // until the outcome.
            table.background.insert(name.to_vec(), id);
        });
        recorded.map_err(Reason::from)
    }

    /// Drops a seal. `settling` says what becomes of the frozen dataset and of its markers. In the
    /// records' thread.
    pub(super) fn drop_seal(&self, id: DatasetId, reason: &Reason, settling: Settling) {
        let begun = {
            let mut state = self.state.lock();
            if let Some(freezing) = state.freezing.get(&id) {
                freezing.cancel();
            }
            state.seals.remove(&id)
        };
        let name = self.take_seal_back(id, settling).or(begun);
        match name.as_deref().map(String::from_utf8_lossy) {
            Some(shown) => {
                let remedy = remedies::of_cache(reason, "the node that is named");
                self.events.error(Some(id), &format!("{shown}: not sealed: {reason}{remedy}"));
            }
            None => self.events.info(Some(id), &format!("no seal of it is under way here: {reason}")),
        }
        if let Some(name) = name.as_ref().filter(|_| settling != Settling::Kept) {
            self.give_up_background(std::slice::from_ref(name), reason.words());
        }
        self.state.lock().send(Event::Dropped(id));
    }

    /// Forgets a seal and thaws its dataset, whose name it returns.
    fn take_seal_back(&self, id: DatasetId, settling: Settling) -> Option<Vec<u8>> {
        let mut disk = self.disk.lock();
        let dataset = self.state.lock().table.datasets.get(&id).cloned()?;
        if dataset.life.is_complete() {
            // Complete stays complete; only what was begun on top of it goes.
            self.forget_unrecorded(&mut disk, id);
            return None;
        }
        // Under a restart all that is not presented is given up; it may also be one that is being
        // fetched.
        let later = self.state.lock().attached.as_ref().is_some_and(super::state::Attached::presents_later);
        if !later {
            self.unbind_loose(Age { epoch: dataset.epoch, id }, &dataset.name);
        }
        if let Err(error) = disk.change(&self.state, |table| drop(table.datasets.remove(&id))) {
            self.events.error(Some(id), &format!("the dropped seal cannot be forgotten: {error}"));
        }
        drop(disk);
        let keeps =
            settling == Settling::Kept && self.state.lock().table.background.contains_key(&dataset.name);
        if dataset.life.is_in_tree() && !keeps {
            self.tree.thaw(&dataset.name);
        }
        if let Err(error) = self.cache.remove_own(id) {
            self.events.warning(Some(id), &format!("its redundancy data cannot be removed: {error}"));
        }
        (dataset.life.is_in_tree()).then_some(dataset.name)
    }

    fn forget_unrecorded(&self, disk: &mut disk::Disk, id: DatasetId) {
        let forgotten = disk.change(&self.state, |table| {
            if let Some(dataset) = table.datasets.get_mut(&id) {
                dataset.rebuilding.clear();
                dataset.parts.retain(|_, part| part.recorded);
            }
        });
        let forgotten = forgotten.map_err(Reason::from);
        let removed = self.cache.discard_staged(id, None).map_err(Reason::from);
        if let Err(error) = forgotten.and(removed) {
            self.events.warning(Some(id), &format!("unfinished members cannot be forgotten: {error}"));
        }
    }

    /// Records COMPLETE, or a later revision of the catalog. In the records' thread.
    pub(super) fn commit(&self, catalog: Catalog) {
        let (id, name) = (catalog.id, catalog.name.clone());
        let mut decided = false;
        let result = self.record_complete(catalog, &mut decided);
        match &result {
            Ok(()) => {
                self.no_more_comes(&name);
                self.events.info(Some(id), "COMPLETE is recorded");
            }
            Err(reason) => {
                let remedy = remedies::of_control(reason, &self.config.host);
                let what = if decided {
                    "COMPLETE is recorded, and what follows from it is not done"
                } else {
                    "COMPLETE cannot be recorded"
                };
                let text = format!(
                    "{what}: {reason}{remedy}; this is tried again, and its marker waits for it no longer than SCRFS_SEAL_TIMEOUT"
                );
                self.events.error(Some(id), &text);
            }
        }
        self.state.lock().send(Event::Committed { id, result, decided });
    }

    /// Sets `decided` when COMPLETE is on storage.
    fn record_complete(&self, mut catalog: Catalog, decided: &mut bool) -> Result<(), Reason> {
        catalog.sort();
        catalog_file::validate(&catalog)?;
        let id = catalog.id;
        let mut disk = self.disk.lock();
        let known = self.state.lock().table.datasets.get(&id).cloned();
        if let Some(known) = &known {
            fits(known, &catalog)?;
            let newer = known.life.catalog().is_some_and(|have| have.catalog().revision > catalog.revision);
            // A record that could not be written anew is there all the same.
            *decided = known.life.is_complete();
            if newer {
                return Ok(());
            }
        }
        faults::hit("commit.begun")?;
        let recorded = disk.record_complete(&catalog);
        // One that failed in its last step may be there.
        *decided |= recorded.is_ok() || disk.may_have_complete(id);
        recorded?;
        faults::hit("commit.recorded")?;
        let index = Arc::new(CatalogIndex::new(catalog));
        let settled = self.cache.settle(id, &index.catalog().name, &index.catalog().entries);
        settled.map_err(|error| Reason::from(error).on("its own directory cannot be made"))?;
        let later = self.state.lock().attached.as_ref().is_some_and(super::state::Attached::presents_later);
        // A dataset that was never here has its place in the tree, where files are brought; under a
        // restart it gets it when it is presented.
        let home = if later { Files::Aside } else { Files::InTree };
        let changed = disk.change(&self.state, |table| {
            let catalog = index.catalog();
            table.highest_id = table.highest_id.max(id.0);
            let dataset = table
                .datasets
                .entry(id)
                .or_insert_with(|| Dataset::new(id, catalog.epoch, catalog.name.clone(), home));
            dataset.epoch = catalog.epoch;
            dataset.complete(&index);
            dataset.forget_encodings();
            dataset.failed = None;
            table.background.remove(&catalog.name);
            table.removed.is_back(&catalog.name, catalog.epoch, id);
        });
        // COMPLETE is there; what the other files tell of it is written again at the next change,
        // or at start.
        if let Err(error) = changed {
            self.events.error(Some(id), &format!("complete, but the node's record lags: {error}"));
            return Err(error.into());
        }
        if index.catalog().revision > 0 {
            self.remove_former_redundancy(id);
        }
        drop(disk);
        let fresh = |dataset: &Dataset| dataset.life.is_in_tree() && !dataset.life.is_listed();
        let fresh = self.state.lock().table.datasets.get(&id).is_some_and(fresh);
        // Before programs can change it, so that nothing of theirs is forgotten.
        if fresh && !self.supersede(&index)? {
            let top = RelPath::new(index.catalog().name.clone())?;
            self.journal
                .lock()
                .forget(&top)
                .map_err(|error| Reason::from(error).on("the filemap's journal"))?;
        }
        self.place_links(id);
        let begun = self.place_logs(id)?;
        self.list(id, later, begun);
        faults::hit("commit.listed").map_err(Reason::from)
    }

    /// Removes the redundancy files of encodings that do not count, also those of which a crash
    /// left no record.
    fn remove_former_redundancy(&self, id: DatasetId) {
        let parts = self.state.lock().table.datasets.get(&id).map(|dataset| dataset.parts.clone());
        let counts: BTreeSet<&str> = parts
            .iter()
            .flat_map(BTreeMap::values)
            .flat_map(|part| part.redundancy.values())
            .map(|file| file.name.as_str())
            .collect();
        if let Err(error) = self.cache.remove_redundancy_but(id, &counts) {
            self.events.warning(Some(id), &format!("former redundancy data cannot be removed: {error}"));
        }
    }

    /// Tells the tree of a complete dataset that has its files there, and of its next generation if
    /// that has `begun`.
    fn list(&self, id: DatasetId, later: bool, begun: Option<Generation>) {
        let listed = {
            let mut state = self.state.lock();
            match state.table.datasets.get_mut(&id) {
                Some(dataset) if dataset.life.is_listed() || !later => {
                    dataset.step(&Step::Listed).ok().and_then(|()| dataset.life.catalog().cloned())
                }
                _ => None,
            }
        };
        match (listed, begun) {
            (Some(catalog), Some(generation)) => self.tell_begun(id, catalog, generation),
            (Some(catalog), None) => self.tree.sealed(catalog),
            (None, _) => {}
        }
    }

    /// Every member has recorded COMPLETE.
    pub(super) fn sealed(&self, id: DatasetId) {
        let name = {
            let mut state = self.state.lock();
            let Some(dataset) = state.table.datasets.get_mut(&id).filter(|d| d.life.is_complete()) else {
                return;
            };
            // One that a program has removed meanwhile was sealed all the same.
            drop(dataset.step(&Step::Settled));
            let name = dataset.name.clone();
            state.seals.remove(&id);
            state.askers.forget();
            name
        };
        let shown = String::from_utf8_lossy(&name).into_owned();
        self.events.info(Some(id), &format!("{shown}: sealed, all members have recorded COMPLETE"));
        if let Some(weak) = self.unprotected(id) {
            self.events.warning(Some(id), &format!("{shown}: {weak}"));
        }
    }

    /// In which way a dataset is protected less than was asked for.
    fn unprotected(&self, id: DatasetId) -> Option<String> {
        let state = self.state.lock();
        let layout = &state.table.datasets.get(&id)?.life.catalog()?.catalog().layout;
        let smallest = layout.sets.iter().map(Vec::len).min().unwrap_or(0);
        let (survived, asked) = (layout.scheme().losses(smallest), layout.scheme().failures().unwrap_or(0));
        if smallest <= 1 {
            Some("a redundancy set has one member only: nothing protects it but the PFS".to_owned())
        } else if survived < asked.into() {
            Some(format!(
                "a redundancy set has {smallest} members only: it survives {survived} losses, not {asked}"
            ))
        } else {
            None
        }
    }
}

/// The catalog must speak of the bytes that are here.
fn fits(known: &Dataset, catalog: &Catalog) -> Result<(), Reason> {
    if known.is_other_than(&catalog.name, catalog.epoch) {
        return Err(format!("another dataset has this id here: {:?}", known.shown_name()).into());
    }
    if known.state() == HeldState::Frozen && known.life.is_in_tree() && !known.life.is_complete() {
        return Err("this node has not recorded its member".into());
    }
    for (member, part) in known.parts.iter().filter(|(_, part)| part.recorded) {
        let ours = part.files.iter().map(|(entry, copy)| (&entry.path, copy.size, copy.crc));
        let theirs = catalog.files_of(*member).map(|(entry, copy)| (&entry.path, copy.size, copy.crc));
        if !ours.eq(theirs) {
            return Err(format!("member {member} has other files here than in the catalog").into());
        }
    }
    Ok(())
}

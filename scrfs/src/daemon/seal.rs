//! The end of this node's part in a seal: commit, sealed; or drop. [`super::freeze`] is its
//! beginning.
//!
//! COMPLETE is one commit of one file.
//!
//! Fault points: `commit.begun`, `commit.recorded`, `commit.listed`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::boundary::Generation;
use crate::control::loose::Age;
use crate::control::{Event, HeldState, Reason};
use crate::dataset::lifecycle::{Files, Step};
use crate::dataset::{Catalog, CatalogIndex, Revision};
use crate::faults;
use crate::ids::DatasetId;
use crate::path::RelPath;
use crate::record::catalog_file;

use super::core::seals::{Ending, Settling};
use super::disk;
use super::node::Node;
use super::remedies;
use super::state::{Attached, Dataset};

impl Node {
    /// Drops a seal. `settling` says what becomes of the frozen dataset and of its markers. In the
    /// records' thread.
    pub(super) fn drop_seal(&self, id: DatasetId, reason: &Reason, settling: Settling) {
        let begun = {
            let mut state = self.state.lock();
            let begun = state.seals.dropped(id);
            self.freezes.end_given_up(&state.seals);
            begun
        };
        let name = self.take_seal_back(id, settling).or(begun);
        match name.as_deref().map(String::from_utf8_lossy) {
            Some(shown) => {
                let remedy = remedies::of_cache(reason, "the node that is named");
                self.events.error(Some(id), &format!("{shown}: not sealed: {reason}{remedy}"));
            }
            None => self.events.info(Some(id), &format!("no seal of it is under way here: {reason}")),
        }
        if let Some(name) = name.filter(|name| !self.keeps_frozen(name, settling)) {
            self.give_up_owed(&[name], reason.words());
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
        let later = self.state.lock().attached.as_ref().is_some_and(Attached::presents_later);
        if !later {
            self.unbind_loose(Age { epoch: dataset.epoch, id }, &dataset.name);
        }
        if let Err(error) = disk.change(&self.state, |table| drop(table.datasets.remove(&id))) {
            self.events.error(Some(id), &format!("the dropped seal cannot be forgotten: {error}"));
        }
        drop(disk);
        if dataset.life.is_in_tree() && !self.keeps_frozen(&dataset.name, settling) {
            self.tree.thaw(&dataset.name);
        }
        if let Err(error) = self.cache.remove_own(id) {
            self.events.warning(Some(id), &format!("its redundancy data cannot be removed: {error}"));
        }
        (dataset.life.is_in_tree()).then_some(dataset.name)
    }

    fn keeps_frozen(&self, name: &[u8], settling: Settling) -> bool {
        self.state.lock().table.owed.keeps(name, Ending::Dropped(settling))
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
                self.may_recycle();
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

    /// Records what a later revision makes of the catalog that is here. In the records' thread.
    pub(super) fn revise(&self, revision: &Revision) {
        let id = revision.id;
        let here = self.state.lock().table.datasets.get(&id).and_then(|known| known.life.catalog().cloned());
        if let Some(catalog) = here.and_then(|index| revision.applied_to(index.catalog())) {
            return self.commit(catalog);
        }
        let reason = format!("the catalog of revision {} is not here", revision.of);
        let result = Err(Reason::from(reason));
        self.state.lock().send(Event::Committed { id, result, decided: false });
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
        let later = self.state.lock().attached.as_ref().is_some_and(Attached::presents_later);
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
            table.owed.sealed(&catalog.name, id);
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
            state.seals.sealed(id);
            let Some(dataset) = state.table.datasets.get_mut(&id).filter(|d| d.life.is_complete()) else {
                return;
            };
            // One that a program has removed meanwhile was sealed all the same.
            drop(dataset.step(&Step::Settled));
            let name = dataset.name.clone();
            state.advised.askers.forget();
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

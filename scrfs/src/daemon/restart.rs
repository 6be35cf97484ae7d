//! What a start of the coordinators asks for: the inventory, catalogs, and presenting datasets.
//! These commands are carried out in the records' thread (`scrfs-records`), save
//! [`Node::mark_absent`], which is in the link's (`scrfs-control`).
//!
//! Fault points: `present.begun`, `present.aside`, `present.back`, `present.listed`.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};

use crate::control::{Event, HeldDataset, HeldState, Inventory, Reason, sum_of_paths};
use crate::dataset::lifecycle::Step;
use crate::faults;
use crate::ids::{DatasetId, Member};
use crate::path::RelPath;
use crate::status::people::bytes_for_people;
use crate::store::beneath;

use super::members::{file_name, make_others, size_of};
use super::node::Node;
use super::state::{Dataset, Origin, Part, RedundancyFile, Trust};

/// Names whose files that are not sealed are told one by one.
const UNSEALED_TOLD: usize = 16;

impl Node {
    /// In the records' thread: all that was commanded before is in it.
    pub(super) fn send_inventory(&self) {
        let inventory = self.inventory();
        self.state.lock().send(Event::Inventory(Box::new(inventory)));
    }

    pub(super) fn inventory(&self) -> Inventory {
        let directories = self.tree.directories().unwrap_or_else(|error| {
            self.events.error(None, &format!("the tree's directories cannot be listed: {error}"));
            Vec::new()
        });
        let unfinished = self.rounds.lock().unfinished();
        let (epoch, table, datasets, advice) = {
            let state = self.state.lock();
            let datasets: Vec<Dataset> = state.present().cloned().collect();
            let table = (state.table.served, state.table.highest_id, state.table.removed.all());
            (state.former_epoch, table, datasets, state.advised.advice)
        };
        let datasets = datasets.iter().map(|dataset| self.held(dataset)).collect();
        let (served, highest_id, removed) = table;
        Inventory { epoch, served, highest_id, directories, unfinished, datasets, removed, advice }
    }

    fn held(&self, dataset: &Dataset) -> HeldDataset {
        let whole = |part: &Part| match self.first_missing(dataset, part) {
            None => true,
            Some(what) => {
                self.events.warning(Some(dataset.id), &format!("a member here is not whole: {what}"));
                false
            }
        };
        let here =
            |part: &Part| part.recorded || (part.origin == Origin::Here && !dataset.life.is_complete());
        let parts: Vec<(Member, &Part)> = dataset
            .parts
            .iter()
            .map(|(member, part)| (*member, &**part))
            .filter(|(_, part)| here(part) && whole(part))
            .collect();
        let encoded = |(member, part): &(Member, &Part)| {
            let there = |file: &&RedundancyFile| self.missing_redundancy(dataset.id, file).is_none();
            let files = part.redundancy.values().filter(there);
            files.map(|file| (*member, file.encoding())).collect::<Vec<_>>()
        };
        let paths = |(member, part): &(Member, &Part)| {
            (*member, sum_of_paths(part.files.iter().map(|(entry, _)| &entry.path)))
        };
        let in_doubt = parts.iter().filter(|_| dataset.state() != HeldState::Complete);
        HeldDataset {
            id: dataset.id,
            epoch: dataset.epoch,
            revision: dataset.life.catalog().map_or(0, |index| index.catalog().revision),
            name: dataset.name.clone(),
            state: dataset.state(),
            members: parts.iter().map(|(member, _)| *member).collect(),
            encoded: parts.iter().flat_map(encoded).collect(),
            paths: in_doubt.map(paths).collect(),
            flushed: dataset.flushed,
            listed: dataset.life.is_listed(),
            failed: dataset.failed.is_some(),
        }
    }

    /// The first of a member's files that is not there with its size.
    pub(super) fn first_missing(&self, dataset: &Dataset, part: &Part) -> Option<String> {
        let home = match self.cache.home(dataset, self.tree.as_ref()) {
            Ok(home) => home,
            Err(error) => return Some(format!("its directory: {error}")),
        };
        part.files.iter().find_map(|(entry, copy)| {
            wrong_size(self.open_sealed(dataset, &home, &entry.path), &entry.path, copy.size)
        })
    }

    /// A redundancy file that is not there with its size.
    fn missing_redundancy(&self, id: DatasetId, file: &RedundancyFile) -> Option<String> {
        let name = file_name(id, &file.name).ok()?;
        let own = self.cache.own(id).ok()?;
        wrong_size(beneath::open_file(own.as_fd(), &name), &name, file.size)
    }

    pub(super) fn send_catalog(&self, id: DatasetId) {
        let state = self.state.lock();
        let index = state
            .table
            .datasets
            .get(&id)
            .filter(|d| !d.life.is_leaving())
            .and_then(|d| d.life.catalog().cloned());
        let catalog = index.map(|index| index.shared());
        state.send(Event::Catalog { id, catalog });
    }

    /// Which members no node has yet.
    pub(super) fn mark_absent(&self, id: DatasetId, members: Vec<Member>) {
        if let Some(dataset) = self.state.lock().table.datasets.get_mut(&id) {
            dataset.told.absent = members.into_iter().collect();
        }
    }

    /// Lists exactly `datasets`; everything else in the checkpoint path goes. In the records'
    /// thread.
    pub(super) fn present(&self, datasets: &[DatasetId]) {
        let result = self.try_present(datasets);
        match &result {
            Ok(()) if datasets.is_empty() => self.events.info(None, "no dataset is presented"),
            Ok(()) => {
                let current = datasets.first().copied();
                self.events.info(current, &format!("presented: {}", self.names_of(datasets)));
            }
            Err(reason) => self.events.error(None, &format!("datasets cannot be presented: {reason}")),
        }
        self.state.lock().send(Event::Presented { result });
    }

    fn names_of(&self, datasets: &[DatasetId]) -> String {
        let state = self.state.lock();
        let names: Vec<String> =
            datasets.iter().filter_map(|id| Some(state.table.datasets.get(id)?.shown_name())).collect();
        names.join(", ")
    }

    fn try_present(&self, wanted: &[DatasetId]) -> Result<(), Reason> {
        faults::hit("present.begun")?;
        self.begin_presentation();
        let owed: Vec<Vec<u8>> = self.state.lock().table.owed.names().cloned().collect();
        self.give_up_owed(&owed, "the job was started again");
        self.find_files()?;
        self.hide_leaving()?;
        let held: Vec<Dataset> = self.state.lock().present().cloned().collect();
        let keep = self.tell_unsealed();
        for id in wanted {
            if !held.iter().any(|dataset| dataset.id == *id && dataset.life.is_complete()) {
                return Err(format!("dataset {id} is not complete here").into());
            }
        }
        for dataset in &held {
            match (dataset.state(), wanted.contains(&dataset.id)) {
                (HeldState::Complete, true) => {}
                (HeldState::Complete, false) => self.hide(dataset)?,
                // In doubt no more: the lead has settled all that can be complete.
                _ => self.forget_seal(dataset)?,
            }
        }
        let is_read = |dataset: &Dataset| dataset.trust == Trust::Verified || !self.restarts_lazily();
        for dataset in held.iter().filter(|dataset| wanted.contains(&dataset.id)) {
            if is_read(dataset) {
                self.drop_bad_copies(dataset)?;
            } else {
                self.drop_brought_copies(dataset)?;
            }
        }
        // No program runs: what they changed in sealed datasets is given up, and the tree has no
        // part of these.
        for dataset in held.iter().filter(|d| wanted.contains(&d.id) && d.life.is_overwritten()) {
            self.hide(dataset)?;
        }
        // Those in the tree already must be known to it before everything else there goes.
        for dataset in held.iter().filter(|d| wanted.contains(&d.id) && d.life.is_in_tree()) {
            // As it was sealed: what programs hid of it, and the modes that they gave it here, are
            // given up too.
            if dataset.life.is_listed() {
                self.tree.unlisted(dataset.id);
            }
            self.show(dataset)?;
        }
        faults::hit("present.aside")?;
        self.tree
            .remove_junk(keep.as_deref())
            .map_err(|error| Reason::from(error).on("junk cannot be removed"))?;
        self.journal
            .lock()
            .forget(&RelPath::root())
            .map_err(|error| Reason::from(error).on("the filemap's journal"))?;
        for dataset in held.iter().filter(|d| wanted.contains(&d.id) && !d.life.is_in_tree()) {
            self.show(dataset)?;
        }
        self.show_loose()?;
        faults::hit("present.listed").map_err(Reason::from)
    }

    /// Where files are after a try to present them that failed in the middle: else the next try
    /// would take what is at a dataset's name for its sealed files.
    fn find_files(&self) -> Result<(), Reason> {
        let held: Vec<Dataset> = self.state.lock().present().cloned().collect();
        for dataset in held {
            let aside = self.cache.is_aside(dataset.id);
            if dataset.life.found(aside).files() != dataset.life.files() {
                self.step(dataset.id, &Step::Found { aside })?;
            }
        }
        Ok(())
    }

    /// What is not sealed takes the room of what is to be presented, and goes before that. In the
    /// records' thread.
    pub(super) fn remove_unsealed(&self) {
        let removed = self.try_remove_unsealed();
        let names = removed.unwrap_or_else(|reason| {
            self.events.error(None, &format!("what is not sealed cannot be removed: {reason}"));
            0
        });
        self.state.lock().send(Event::UnsealedRemoved { names });
    }

    /// Nobody knows yet which datasets are presented: what is at the place of one stays.
    fn try_remove_unsealed(&self) -> Result<u64, Reason> {
        let mut unsealed = self.unsealed();
        {
            let state = self.state.lock();
            let in_tree: BTreeSet<&[u8]> =
                state.present().filter(|d| d.life.is_in_tree()).map(|d| d.name.as_slice()).collect();
            unsealed.retain(|(name, ..)| !in_tree.contains(name.as_slice()));
        }
        self.tell(&unsealed, "is removed, as a dataset needs its room");
        let names: Vec<&[u8]> = unsealed.iter().map(|(name, ..)| name.as_slice()).collect();
        self.tree.remove_unsealed(&names).map_err(Reason::from)?;
        for name in names {
            let path = RelPath::new(name).map_err(|error| error.to_string())?;
            self.journal.lock().forget(&path).map_err(|e| Reason::from(e).on("the filemap's journal"))?;
        }
        Ok(unsealed.len() as u64)
    }

    /// What is not sealed goes now, or is put aside under the label that is given: says what it is.
    fn tell_unsealed(&self) -> Option<String> {
        let keep = {
            let state = self.state.lock();
            let keeps = state.settings.as_ref().is_some_and(|settings| settings.restart.keep_unsealed);
            keeps.then(|| state.table.epoch.to_string())
        };
        let what = match &keep {
            Some(label) => format!("is put aside, into .scrfs/kept.{label} below the tree of the cache"),
            None => "is removed".to_owned(),
        };
        self.tell(&self.unsealed(), &what);
        keep
    }

    fn tell(&self, unsealed: &[(Vec<u8>, usize, u64)], what: &str) {
        for (name, files, bytes) in unsealed.iter().take(UNSEALED_TOLD) {
            let (name, bytes) = (String::from_utf8_lossy(name), bytes_for_people(*bytes));
            self.events.warning(None, &format!("{name}: what is not sealed {what}: {files} files, {bytes}"));
        }
        if unsealed.len() > UNSEALED_TOLD {
            let more = unsealed.len() - UNSEALED_TOLD;
            self.events.warning(None, &format!("{more} more: what is not sealed {what}"));
        }
    }

    /// Names in the checkpoint path below which files were made or changed since they were sealed,
    /// and how many.
    fn unsealed(&self) -> Vec<(Vec<u8>, usize, u64)> {
        let names = self.journal.lock().names();
        let mut found = Vec::new();
        for name in names {
            let (Ok(files), Ok(top)) = (self.tree.files(&name), RelPath::new(name.clone())) else { continue };
            let journal = self.journal.lock();
            let new = |path: &RelPath| top.concat(path).is_ok_and(|path| journal.has(&path));
            let sizes: Vec<u64> = files.iter().filter(|file| new(&file.path)).map(|file| file.size).collect();
            if !sizes.is_empty() {
                found.push((name, sizes.len(), sizes.iter().sum()));
            }
        }
        found
    }

    /// Takes a complete dataset out of the mount; its bytes stay.
    fn hide(&self, dataset: &Dataset) -> Result<(), Reason> {
        let id = dataset.id;
        if dataset.life.is_in_tree() {
            if dataset.life.is_listed() {
                self.tree.unlisted(id);
            } else {
                self.tree.thaw(&dataset.name);
            }
            self.cache
                .put_aside(id, &dataset.name)
                .map_err(|error| Reason::from(error).on(format_args!("dataset {id} cannot be put aside")))?;
        }
        let hidden = if dataset.life.is_overwritten() {
            self.tree.unlisted(id);
            self.hide_generation(id)
        } else {
            self.step(id, &Step::Hidden)
        };
        // One that is being evicted by now is out of the mount too.
        let leaves = self.state.lock().table.datasets.get(&id).is_none_or(|now| now.life.is_leaving());
        if leaves { Ok(()) } else { hidden }
    }

    /// Puts a complete dataset into the mount, with all its directories and links.
    fn show(&self, dataset: &Dataset) -> Result<(), Reason> {
        let id = dataset.id;
        let Some(catalog) = dataset.life.catalog() else { return Ok(()) };
        let failed = |error: std::io::Error| format!("dataset {id} cannot be put in place: {error}");
        if !dataset.life.is_in_tree() {
            // Recorded first: a home in the tree with files aside is put right at start.
            self.step(id, &Step::PutBack)?;
            faults::hit("present.back").map_err(failed)?;
            self.cache.put_back(id, &dataset.name).map_err(failed)?;
            let here = self.dataset(id)?;
            let home = self.cache.home(&here, self.tree.as_ref()).map_err(failed)?;
            make_others(&home, &catalog.catalog().entries).map_err(failed)?;
        }
        self.list_unread(&self.dataset(id)?, catalog)?;
        self.step(id, &Step::Presented)
    }

    fn step(&self, id: DatasetId, step: &Step) -> Result<(), Reason> {
        self.disk.lock().step(&self.state, id, step).map_err(Reason::from)
    }

    fn forget_seal(&self, dataset: &Dataset) -> Result<(), Reason> {
        let id = dataset.id;
        self.disk.lock().change(&self.state, |table| drop(table.datasets.remove(&id)))?;
        if dataset.life.is_in_tree() {
            self.tree.thaw(&dataset.name);
        }
        self.cache.remove_own(id).map_err(|error| Reason::from(error).on(format_args!("dataset {id}")))
    }
}

fn wrong_size(file: std::io::Result<OwnedFd>, path: &RelPath, expected: u64) -> Option<String> {
    match file.and_then(|fd| size_of(&fd)) {
        Ok(size) if size == expected => None,
        Ok(size) => Some(format!("{path} has {size} bytes, recorded are {expected}")),
        Err(error) => Some(format!("{path}: {error}")),
    }
}

//! What the node knows, in memory: the dataset table, the attached coordinator, seals under way.
//!
//! All of it is behind one lock that is never held over a system call that can take long. What must
//! survive a restart of the worker is in [`super::disk`]; it is written first, then the table
//! changes. [`Table`] says what changes in memory alone.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::control::server::{Greeting, LinkHandle};
use crate::control::{HeldState, Settings, Start};
use crate::dataset::lifecycle::{Files, Life, Refused, Step};
use crate::dataset::{CatalogIndex, Entry, EntryKind, FileCopy};
use crate::ids::{DatasetId, Epoch, Member};
use crate::path::RelPath;
use crate::record::RedundancyFileName;
use crate::status::{FlushFailure, Scrubbed};
use crate::transfer::Monitor;
use crate::transfer::user::Identity;

use super::core::desk::Desk;
use super::core::seals::{Ending, OnRecord, Owed, Seals};
use super::eyes::Advised;
use super::late::Late;
use super::losses::Losses;
use super::removals::Removals;
use super::room::Shortage;
use super::wishes::Wishes;

/// Until a coordinator says otherwise.
const SEAL_TIMEOUT: Duration = Duration::from_secs(30);

/// A member's redundancy file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RedundancyFile {
    /// [`crate::record::RedundancyFileName`].
    pub(super) name: String,
    pub(super) size: u64,
    pub(super) crc: u32,
}

/// How a member came here; decides where its files are until it is recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    /// Its files are in place: frozen, fetched, or rebuilt and finished here.
    Here,
    /// Its files are staged and put in place when it is finished (rebuilt here).
    Staged,
}

/// One try to bring a member here, apart from all others of this worker: a thread of a former try
/// may still be at work while the next one writes files of the same names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Arrival(u64);

impl Arrival {
    fn next() -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        Self(COUNT.fetch_add(1, Ordering::Relaxed))
    }
}

impl fmt::Display for Arrival {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A member's part of a dataset on this node: a piece of the filemap.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Part {
    /// What is staged for it has its place by this.
    pub(super) arrival: Arrival,
    pub(super) origin: Origin,
    /// Regular files in the order of the logical file, which is that of their paths. Their CRCs
    /// count once `recorded`, and before that where they come with the files (rebuilt, fetched).
    pub(super) files: Vec<(Entry, FileCopy)>,
    /// The other names that this member adds: links and directories.
    pub(super) others: Vec<Entry>,
    /// The CRCs in `files` are known before the member is finished.
    pub(super) crcs_known: bool,
    /// Files of the generation before, with their CRCs from there; only while it is being sealed.
    pub(super) carried: Arc<BTreeSet<RelPath>>,
    /// By [`crate::dataset::Layout::encoding`]: while a dataset is encoded anew, the former ones
    /// count until its catalog says otherwise.
    pub(super) redundancy: BTreeMap<u32, RedundancyFile>,
    /// Its redundancy set in ring order; empty until recorded.
    pub(super) set: Vec<Member>,
    /// Members of the dataset altogether; 0 until recorded.
    pub(super) members: u32,
    /// Files, redundancy data and filemap are on storage.
    pub(super) recorded: bool,
}

impl Part {
    /// A member whose files are there and not yet read.
    pub(super) fn new(origin: Origin, mut files: Vec<(Entry, FileCopy)>, others: Vec<Entry>) -> Self {
        files.sort_by(|(a, _), (b, _)| a.path.cmp(&b.path));
        let (crcs_known, carried) = (false, Arc::default());
        let (redundancy, set, members, recorded) = (BTreeMap::new(), Vec::new(), 0, false);
        let arrival = Arrival::next();
        Self { arrival, origin, files, others, crcs_known, carried, redundancy, set, members, recorded }
    }

    pub(super) fn file(&self, path: &RelPath) -> Option<&(Entry, FileCopy)> {
        let at = self.files.binary_search_by(|(entry, _)| entry.path.cmp(path)).ok()?;
        Some(&self.files[at])
    }

    pub(super) fn bytes(&self) -> u64 {
        self.files.iter().map(|(_, copy)| copy.size).sum()
    }

    /// Entries for the catalog: files in order, then links and directories.
    pub(super) fn entries(&self) -> Vec<Entry> {
        let files = self
            .files
            .iter()
            .map(|(entry, copy)| Entry { kind: EntryKind::File(copy.clone()), ..entry.clone() });
        files.chain(self.others.iter().cloned()).collect()
    }
}

/// What the lead says of a dataset, beside its catalog.
#[derive(Debug, Clone, Default)]
pub(super) struct Told {
    /// The last try to flush it that failed.
    pub(super) flush_failed: Option<FlushFailure>,
    /// How its last scrub ended.
    pub(super) scrubbed: Option<Scrubbed>,
    /// Members that no node has yet.
    pub(super) absent: BTreeSet<Member>,
}

/// One dataset.
#[derive(Debug, Clone)]
pub(super) struct Dataset {
    pub(super) id: DatasetId,
    /// The epoch that sealed it, or tries to.
    pub(super) epoch: Epoch,
    pub(super) name: Vec<u8>,
    pub(super) life: Life,
    pub(super) parts: BTreeMap<Member, Arc<Part>>,
    /// Members of `parts` that are being rebuilt here, as they will be. Not on storage: until one
    /// is finished, what `parts` says of it is true, and what has arrived for it is forgotten with
    /// its coordinator.
    pub(super) rebuilding: BTreeMap<Member, Arc<Part>>,
    pub(super) flushed: bool,
    /// Not on storage.
    pub(super) told: Told,
    /// A transfer of it that runs: what, and how far. Not on storage.
    pub(super) transfer: Option<(&'static str, Monitor)>,
    /// Bytes of its files here that were read to be encoded, and all of them. Not on storage.
    pub(super) encoded: Option<(u64, u64)>,
    /// Why its bytes are not to be trusted, if so.
    pub(super) failed: Option<String>,
    pub(super) trust: Trust,
}

/// What is known of a dataset's bytes here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trust {
    /// Nobody has compared them with their checksums since the coordinators of this epoch came, and
    /// nobody has to. Not on storage.
    Given,
    /// A restart has presented it before they were compared, and not all of them are by now
    /// ([`super::verification`]).
    Unread,
    /// They were compared, since the coordinators of this epoch came. Not on storage.
    Verified,
}

impl RedundancyFile {
    /// The encoding that its name tells.
    pub(super) fn encoding(&self) -> u32 {
        RedundancyFileName::parse(self.name.as_bytes()).map_or(0, |name| name.encoding)
    }
}

impl Dataset {
    /// It has only the id in common with the dataset of that name that `epoch` has sealed: ids are
    /// given again where nobody knows of the former one, and a node that was away brings that back.
    pub(super) fn is_other_than(&self, name: &[u8], epoch: Epoch) -> bool {
        self.name != name || self.life.catalog().is_some_and(|index| index.catalog().epoch != epoch)
    }

    /// The catalog has this member on node `host`. Another node's copy of the member is of the time
    /// before it was rebuilt elsewhere, and nobody mends that copy.
    pub(super) fn is_on(&self, host: &str, member: Member) -> bool {
        let place = |index: &Arc<CatalogIndex>| {
            index.catalog().layout.members.get(member.0 as usize).is_some_and(|place| place.host == host)
        };
        self.life.catalog().is_none_or(place)
    }

    /// A scrub has found bytes that it could not mend, and the PFS has no others.
    pub(super) fn is_bad(&self) -> bool {
        self.has_bad_bytes() && !self.flushed
    }

    /// A scrub has found bytes that it could not mend.
    pub(super) fn has_bad_bytes(&self) -> bool {
        self.told.scrubbed.as_ref().is_some_and(|scrubbed| scrubbed.left.is_some())
    }

    /// The redundancy file of a member here that counts.
    pub(super) fn redundancy<'a>(&self, part: &'a Part) -> Option<&'a RedundancyFile> {
        part.redundancy.get(&self.encoding())
    }

    /// What encoding its sets have.
    fn encoding(&self) -> u32 {
        self.life.catalog().map_or(0, |index| index.catalog().layout.encoding)
    }

    /// Forgets the redundancy files of other encodings than the one that counts.
    pub(super) fn forget_encodings(&mut self) {
        let counts = self.encoding();
        for part in self.parts.values_mut() {
            if part.redundancy.keys().any(|encoding| *encoding != counts) {
                Arc::make_mut(part).redundancy.retain(|encoding, _| *encoding == counts);
            }
        }
    }

    /// `files`: where they are while it is not complete.
    pub(super) fn new(id: DatasetId, epoch: Epoch, name: Vec<u8>, files: Files) -> Self {
        Self {
            id,
            epoch,
            name,
            life: Life::begin(files),
            parts: BTreeMap::new(),
            rebuilding: BTreeMap::new(),
            flushed: false,
            told: Told::default(),
            transfer: None,
            encoded: None,
            failed: None,
            // What comes here is compared as it comes.
            trust: Trust::Verified,
        }
    }

    pub(super) fn state(&self) -> HeldState {
        if self.life.is_complete() {
            HeldState::Complete
        } else if !self.parts.is_empty() && self.parts.values().all(|part| part.recorded) {
            HeldState::Recorded
        } else {
            HeldState::Frozen
        }
    }

    pub(super) fn on_record(&self) -> OnRecord {
        OnRecord { id: self.id, state: self.state() }
    }

    /// COMPLETE is recorded.
    pub(super) fn complete(&mut self, catalog: &Arc<CatalogIndex>) {
        self.life = self.life.completed(catalog);
    }

    /// The next state; a step that this one does not have changes nothing.
    pub(super) fn step(&mut self, step: &Step) -> Result<(), Refused> {
        self.life = self.life.after(step)?;
        Ok(())
    }

    /// Of all members, once that is known; until then of those here.
    pub(super) fn bytes(&self) -> u64 {
        match self.life.catalog() {
            Some(index) => index.catalog().bytes(),
            None => self.parts.values().map(|part| part.bytes()).sum(),
        }
    }

    pub(super) fn shown_name(&self) -> String {
        String::from_utf8_lossy(&self.name).into_owned()
    }

    /// The record of a file: a member's here, else the catalog's.
    pub(super) fn file(&self, path: &RelPath) -> Option<(Entry, FileCopy)> {
        if let Some(found) = self.parts.values().find_map(|part| part.file(path)) {
            return Some(found.clone());
        }
        let entry = self.life.catalog()?.entry(path)?;
        match &entry.kind {
            EntryKind::File(copy) => Some((entry.clone(), copy.clone())),
            _ => None,
        }
    }
}

/// The attached coordinator.
pub(super) struct Attached {
    pub(super) link: LinkHandle,
    pub(super) greeting: Greeting,
    pub(super) pid: i32,
    /// Settling is over: requests are sent.
    pub(super) served: bool,
    /// Transfers that it asked for.
    pub(super) transfers: Vec<Monitor>,
}

impl Attached {
    /// It restarts and has not yet presented a dataset: nothing is listed meanwhile.
    pub(super) fn presents_later(&self) -> bool {
        self.greeting.start == Start::Restart && !self.served
    }
}

/// What is on storage too. [`super::disk::Disk::change`] changes it. In memory alone change: fields
/// that say so; `listed` and `settled` of `life`; and the steps Found (at a worker's start) and
/// Removed, whose outcome a worker reads from the files. Leaves does where it cannot be recorded.
#[derive(Debug, Clone, Default)]
pub(super) struct Table {
    /// The highest epoch seen.
    pub(super) epoch: Epoch,
    /// The last epoch in which programs were served here, or the first one with this prefix.
    pub(super) served: Epoch,
    /// The highest dataset id seen.
    pub(super) highest_id: u64,
    pub(super) datasets: BTreeMap<DatasetId, Dataset>,
    pub(super) owed: Owed,
    /// What programs have removed.
    pub(super) removed: Removals,
}

impl Table {
    /// A step in the life of dataset `id`, if that is here.
    pub(super) fn step(&mut self, id: DatasetId, step: &Step) -> Result<(), Refused> {
        self.datasets.get_mut(&id).map_or(Ok(()), |dataset| dataset.step(step))
    }

    /// Coordinators of `epoch` have come; `elsewhere`: with another prefix than the last ones.
    /// They try anew what the former ones gave up. What is on the PFS under the former prefix is
    /// not where this job looks for it.
    pub(super) fn begin_epoch(&mut self, epoch: Epoch, elsewhere: bool) {
        self.epoch = self.epoch.max(epoch);
        if elsewhere {
            // Another prefix counts its epochs by itself, and nothing that is here was here when
            // its programs removed anything.
            self.served = epoch;
            self.removed = Removals::default();
        }
        for dataset in self.datasets.values_mut() {
            if dataset.trust == Trust::Verified {
                dataset.trust = Trust::Given;
            }
            dataset.told.scrubbed = None;
            dataset.told.absent.clear();
            if elsewhere {
                dataset.flushed = false;
                dataset.told.flush_failed = None;
            } else if let Some(failure) = &mut dataset.told.flush_failed {
                failure.given_up = false;
            }
        }
    }
}

/// Everything.
pub(super) struct State {
    pub(super) table: Table,
    /// The highest epoch obeyed before the present one.
    pub(super) former_epoch: Epoch,
    pub(super) attached: Option<Attached>,
    /// Of the last coordinator; kept after it is gone.
    pub(super) settings: Option<Settings>,
    /// With whose rights work on the PFS is done: the last coordinator's, as long as this worker
    /// lives.
    pub(super) identity: Option<Identity>,
    /// The job whose coordinators had this epoch has ended.
    pub(super) ended: Option<Epoch>,
    pub(super) seals: Seals,
    pub(super) wishes: Wishes,
    pub(super) desk: Desk,
    pub(super) advised: Advised,
    pub(super) shortage: Shortage,
    pub(super) losses: Losses,
    pub(super) late: Late,
    pub(super) stopping: bool,
}

impl State {
    /// Until a coordinator brings the job's, the default.
    pub(super) fn seal_timeout(&self) -> Duration {
        self.settings.as_ref().map_or(SEAL_TIMEOUT, |s| Duration::from_millis(s.seal_timeout_ms))
    }

    pub(super) fn send(&self, event: crate::control::Event) {
        if let Some(attached) = &self.attached {
            attached.link.send(event);
        }
    }

    /// Sends only while settling is over; else [`crate::control::Command::Serve`] will.
    pub(super) fn send_request(&self, event: crate::control::Event) {
        if let Some(attached) = self.attached.as_ref().filter(|attached| attached.served) {
            attached.link.send(event);
        }
    }

    /// A coordinator may attach soon: the last one is gone, or this worker is new.
    pub(super) fn awaits(&self) -> bool {
        self.attached.is_none() && self.desk.awaits_successor() && !self.job_has_ended()
    }

    /// No job is known to run here: it has ended, or none has begun in this mount.
    pub(super) fn job_has_ended(&self) -> bool {
        self.attached.is_none() && (!self.desk.was_attached() || self.ended == Some(self.table.epoch))
    }

    pub(super) fn served(&self) -> bool {
        self.attached.as_ref().is_some_and(|attached| attached.served)
    }

    /// The coordinator of this link is.
    pub(super) fn is_attached(&self, link: u64) -> bool {
        self.attached.as_ref().is_some_and(|attached| attached.link.id() == link)
    }

    /// Datasets that are not on their way out.
    pub(super) fn present(&self) -> impl Iterator<Item = &Dataset> {
        self.table.datasets.values().filter(|dataset| !dataset.life.is_leaving())
    }

    /// The sealed or half-sealed dataset that has `name` in the tree.
    pub(super) fn by_name(&self, name: &[u8]) -> Option<&Dataset> {
        self.present().filter(|dataset| dataset.life.has_name() && dataset.name == name).last()
    }

    /// The newest dataset of `name` is not recorded as complete here, and may be elsewhere.
    pub(super) fn is_in_doubt(&self, name: &[u8]) -> bool {
        self.by_name(name).is_some_and(|dataset| !dataset.life.is_complete())
    }

    /// Seals that this node has not voted for: nobody can have recorded them as complete.
    pub(super) fn never_voted(&self) -> Vec<DatasetId> {
        let frozen = self.present().filter(|dataset| dataset.state() == HeldState::Frozen);
        frozen.map(|dataset| dataset.id).collect()
    }

    /// No seal of `name` comes: the dataset stays frozen all the same.
    pub(super) fn stays_frozen(&self, name: &[u8]) -> bool {
        self.table.owed.keeps(name, Ending::NoneComes { in_doubt: self.is_in_doubt(name) })
    }

    /// The complete dataset that programs see under `name`, changed or not: the base of its next
    /// generation.
    pub(super) fn base(&self, name: &[u8]) -> Option<&Dataset> {
        let presented = |dataset: &&Dataset| dataset.life.is_complete() && dataset.life.has_name();
        self.present().filter(presented).filter(|dataset| dataset.name == name).last()
    }

    /// What the mount presents: a dataset that the last restart hid is not it, however new.
    pub(super) fn current_now(&self) -> Option<DatasetId> {
        self.newest_that(|_| true)
    }

    /// What a restart would present, as far as is known here.
    pub(super) fn presented_now(&self) -> Option<DatasetId> {
        self.newest_that(|dataset| !dataset.is_bad())
    }

    fn newest_that(&self, counts: impl Fn(&Dataset) -> bool) -> Option<DatasetId> {
        self.present()
            .filter(|dataset| dataset.life.is_complete() && !dataset.life.is_hidden())
            .filter(|dataset| dataset.failed.is_none() && counts(dataset))
            .max_by_key(|dataset| (dataset.epoch, dataset.id))
            .map(|dataset| dataset.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_s_files_are_found_whatever_order_they_come_in() {
        let path = |n: u32| RelPath::new(format!("d{}/f{n}", n % 7)).unwrap();
        let catalog = crate::record::catalog_file::tests::example();
        let (entry, copy) = catalog.files_of(Member(0)).next().unwrap();
        let file = |n: u32| {
            let copy = FileCopy { size: n.into(), ..copy.clone() };
            (Entry { path: path(n), kind: EntryKind::File(copy.clone()), ..entry.clone() }, copy)
        };
        let part = Part::new(Origin::Here, (0..100).rev().map(file).collect(), Vec::new());
        for n in 0..100 {
            assert_eq!(part.file(&path(n)).map(|(_, copy)| copy.size), Some(n.into()));
        }
        assert!(part.file(&path(100)).is_none() && part.file(&RelPath::root()).is_none());
        assert!(part.files.is_sorted_by(|(a, _), (b, _)| a.path < b.path), "the logical file's order");
    }
}

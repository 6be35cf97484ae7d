//! Work on all bytes of a dataset here: flush, verify, fetch.
//!
//! One at a time, in a thread of their own; a transfer ends when the coordinator that wanted it is
//! gone.
//!
//! Fault points: those of [`crate::transfer`], and `fetch.staged`.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{AtFlags, OFlags};

use crate::control::{Event, FetchFailure, FrozenFile, NoRoom, Reason, VerifiedMember};
use crate::dataset::lifecycle::Files;
use crate::dataset::{CatalogIndex, Entry, EntryKind, FileCopy};
use crate::faults;
use crate::ids::{DatasetId, Epoch, Member};
use crate::path::RelPath;
use crate::store::beneath;
use crate::transfer::pfs::{PfsDirectory, compare, restore_attributes};
use crate::transfer::user::Identity;
use crate::transfer::{Monitor, TransferError, copy};

use super::cache::{self, Staged};
use super::members::{file_name, make_others};
use super::node::Node;
use super::state::{Dataset, Origin, Part, Trust};
use crate::record::catalog_file;

/// What [`crate::control::Command::FetchMember`] says.
pub(super) struct FetchOrder {
    pub(super) id: DatasetId,
    pub(super) epoch: Epoch,
    pub(super) name: Vec<u8>,
    pub(super) member: Member,
    pub(super) directory: Vec<u8>,
    pub(super) entries: Vec<Entry>,
}

impl Node {
    /// A monitor of a transfer of the attached coordinator, and with whose rights it works on the
    /// PFS.
    pub(super) fn begin_transfer(
        &self,
        id: DatasetId,
        what: &'static str,
        bytes: u64,
    ) -> Option<(Monitor, Identity)> {
        let mut state = self.state.lock();
        let monitor = Monitor::new(bytes);
        let attached = state.attached.as_mut()?;
        attached.transfers.retain(|transfer| transfer.progress().0 < transfer.progress().1);
        attached.transfers.push(monitor.clone());
        let identity = state.identity.clone()?;
        if let Some(dataset) = state.table.datasets.get_mut(&id) {
            dataset.transfer = Some((what, monitor.clone()));
        }
        Some((monitor, identity))
    }

    pub(super) fn end_transfer(&self, id: DatasetId) {
        if let Some(dataset) = self.state.lock().table.datasets.get_mut(&id) {
            dataset.transfer = None;
        }
    }

    /// For the coordinator of `link`: an answer that a former one asked for would be taken for that
    /// of another try.
    pub(super) fn flush_member(&self, link: u64, id: DatasetId, directory: &[u8]) {
        let mut bad = Vec::new();
        let result = self.try_flush(id, directory, &mut bad);
        self.end_transfer(id);
        match &result {
            Ok(bytes) => {
                self.events.info(Some(id), &format!("{bytes} bytes of this node are copied to the PFS"));
            }
            Err(reason) => self.events.error(Some(id), &format!("flush: {reason}")),
        }
        self.send_to(link, Event::FlushedMember { id, result: result.map(drop), bad });
    }

    /// `bad`: members here whose bytes turn out not to be those that were sealed.
    fn try_flush(&self, id: DatasetId, directory: &[u8], bad: &mut Vec<Member>) -> Result<u64, Reason> {
        let dataset = self.dataset(id)?;
        let index = dataset.life.catalog().cloned().ok_or("it is not complete")?;
        // Of equal files of two members the lower member's is copied.
        let visible = |entry: &Entry, copy: &FileCopy| match index.entry(&entry.path).map(|e| &e.kind) {
            Some(EntryKind::File(first)) => first.member == copy.member,
            _ => false,
        };
        // A member that was rebuilt on another node is copied there.
        let copied_here = |member: &Member| {
            dataset.is_on(&self.config.host, *member) || dataset.told.absent.contains(member)
        };
        let recorded = dataset.parts.iter().filter(|(member, part)| part.recorded && copied_here(member));
        let files: Vec<_> =
            recorded.flat_map(|(_, part)| &part.files).filter(|(entry, copy)| visible(entry, copy)).collect();
        let total = files.iter().map(|(_, copy)| copy.size).sum();
        let gone = "the coordinator is gone";
        let (monitor, identity) = self.begin_transfer(id, "flushing", total).ok_or(gone)?;
        let pfs = PfsDirectory::open(&identity, directory)?;
        for (entry, copy) in &files {
            let put = self.copy_out(id, &entry.path, |local| pfs.put(local, entry, copy, &monitor));
            let Err(error) = put else { continue };
            if monitor.is_cancelled() || error.is_shortage_of_room() || error.is_refusal_to_write() {
                return Err(error);
            }
            // The PFS's fault, or this cache's?
            let reason = self.bad_file(id, entry, copy, &monitor);
            bad.extend(reason.as_ref().map(|_| copy.member));
            return Err(reason.unwrap_or(error));
        }
        pfs.sync_directories(files.iter().map(|(entry, _)| entry.path.clone()).collect())?;
        Ok(total)
    }

    /// Has `put` copy one file. A program may begin the next generation meanwhile and change the
    /// file that was opened: then its sealed bytes are in a copy, which is opened instead.
    pub(super) fn copy_out(
        &self,
        id: DatasetId,
        path: &RelPath,
        put: impl Fn(OwnedFd) -> Result<(), TransferError>,
    ) -> Result<(), Reason> {
        let open = || {
            let dataset = self.dataset(id)?;
            let home = self.cache.home(&dataset, self.tree.as_ref())?;
            self.open_sealed(&dataset, &home, path)
                .and_then(|local| Ok((rustix::fs::fstat(&local)?.st_ino, local)))
                .map_err(|error| Reason::from(error).on(format_args!("{path}")))
        };
        let (inode, local) = open()?;
        match put(local) {
            Ok(()) => Ok(()),
            Err(mismatch @ TransferError::Mismatch { .. }) => {
                let (again, local) = open()?;
                if again == inode {
                    return Err(mismatch.into());
                }
                put(local).map_err(Reason::from)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// For the coordinator of `link`.
    pub(super) fn verify(&self, link: u64, id: DatasetId) {
        let members = self.verify_members(id);
        self.end_transfer(id);
        {
            let mut state = self.state.lock();
            let is_attached = state.is_attached(link);
            let parts = state.table.datasets.get(&id).map_or(0, |dataset| dataset.parts.len());
            let is_all = members.len() == parts && members.iter().all(|member| member.files.is_ok());
            if let Some(dataset) = state.table.datasets.get_mut(&id).filter(|_| is_attached && is_all) {
                dataset.trust = Trust::Verified;
            }
        }
        self.note_verified(id, &members);
        self.send_to(link, Event::Verified { id, members });
    }

    pub(super) fn note_verified(&self, id: DatasetId, members: &[VerifiedMember]) {
        for verified in members {
            let member = verified.member;
            match verified.bad() {
                None => self.events.info(Some(id), &format!("member {member} is verified")),
                Some(reason) => self.events.error(Some(id), &format!("member {member} is bad: {reason}")),
            }
        }
    }

    fn verify_members(&self, id: DatasetId) -> Vec<VerifiedMember> {
        let Ok(dataset) = self.dataset(id) else { return Vec::new() };
        let total = dataset.parts.values().map(|part| part.bytes()).sum();
        let Some((monitor, _)) = self.begin_transfer(id, "verifying", total) else { return Vec::new() };
        let recorded = dataset.parts.iter().filter(|(_, part)| part.recorded);
        let verified = |(member, part): (&Member, &Arc<Part>)| VerifiedMember {
            member: *member,
            files: self.verify_files(&dataset, part, &monitor),
            redundancy: self.verify_redundancy(&dataset, *member, part, &monitor),
        };
        recorded.map(verified).collect()
    }

    /// Files that were brought here to be read are a member's on another node, which verifies its
    /// own: what is bad of them goes, and is brought again when it is opened.
    pub(super) fn drop_bad_copies(&self, dataset: &Dataset) -> Result<(), Reason> {
        let Some(catalog) = dataset.life.catalog() else { return Ok(()) };
        let home = self.cache.home(dataset, self.tree.as_ref())?;
        let here: Vec<_> = copies(dataset, catalog)
            .filter(|(path, _)| beneath::open_file(home.as_fd(), path).is_ok())
            .collect();
        let bytes = here.iter().map(|(_, copy)| copy.size).sum();
        let Some((monitor, _)) = self.begin_transfer(dataset.id, "verifying", bytes) else { return Ok(()) };
        let mut verified = here.iter().map(|(path, copy)| verify_file(&home, path, copy, &monitor));
        let outcome = verified.try_for_each(|outcome| match outcome {
            Err(error @ TransferError::Mismatch { .. }) => {
                self.events.warning(Some(dataset.id), &format!("a copy was bad and is removed: {error}"));
                Ok(())
            }
            other => other,
        });
        self.end_transfer(dataset.id);
        outcome.map_err(Reason::from)
    }

    /// The same before anything is read: all of them go, and are brought again when they are
    /// opened.
    pub(super) fn drop_brought_copies(&self, dataset: &Dataset) -> Result<(), Reason> {
        let Some(catalog) = dataset.life.catalog() else { return Ok(()) };
        let home = self.cache.home(dataset, self.tree.as_ref())?;
        for path in copies(dataset, catalog).map(|(path, _)| path) {
            if beneath::open_file(home.as_fd(), path).is_ok() {
                beneath::remove_tree(home.as_fd(), path)
                    .map_err(|e| Reason::from(e).on(format_args!("{path}")))?;
            }
        }
        Ok(())
    }

    /// Reads all files of a member. A bad one is removed: it must not be read here, and counts as
    /// missing.
    fn verify_files(&self, dataset: &Dataset, part: &Part, monitor: &Monitor) -> Result<(), Reason> {
        let home = self.cache.home(dataset, self.tree.as_ref())?;
        let mut problems = Vec::new();
        for (entry, recorded) in &part.files {
            match verify_file(&home, &entry.path, recorded, monitor) {
                Ok(()) => {}
                Err(TransferError::Cancelled) => return Err(TransferError::Cancelled.into()),
                Err(error) => problems.push(Reason::from(error)),
            }
        }
        Reason::all(problems).map_or(Ok(()), Err)
    }

    /// The same of its redundancy file.
    pub(super) fn verify_redundancy(
        &self,
        dataset: &Dataset,
        member: Member,
        part: &Part,
        monitor: &Monitor,
    ) -> Result<(), Reason> {
        let Some(redundancy) = dataset.redundancy(part) else {
            let layout = dataset.life.catalog().map(|index| &index.catalog().layout);
            let lacks = layout.is_some_and(|layout| layout.has_redundancy_file(member));
            return if lacks { Err("its redundancy file is not here".into()) } else { Ok(()) };
        };
        let name = file_name(dataset.id, &redundancy.name)?;
        let own = self.cache.own(dataset.id)?;
        let recorded = FileCopy { size: redundancy.size, crc: redundancy.crc, member, program_rank: None };
        Ok(verify_file(&own, &name, &recorded, monitor)?)
    }

    /// For the coordinator of `link`: nobody else awaits the answer.
    pub(super) fn fetch_member(&self, link: u64, order: &FetchOrder) {
        let id = order.id;
        let result = self.try_fetch(order);
        self.end_transfer(id);
        match &result {
            Ok(files) => {
                let text = format!("fetched from the PFS as member {}, {} files", order.member, files.len());
                self.events.info(Some(id), &text);
                let files: Vec<RelPath> = files.iter().map(|file| file.path.clone()).collect();
                self.files_replaced(id, &files);
            }
            Err(failure) => {
                self.events.error(Some(id), &format!("fetch from the PFS: {}", failure.reason));
                self.forget_fetched(order);
            }
        }
        let state = self.state.lock();
        if state.is_attached(link) {
            state.send(Event::FetchedMember { id, result });
        }
    }

    fn try_fetch(&self, order: &FetchOrder) -> Result<Vec<FrozenFile>, FetchFailure> {
        let (id, member) = (order.id, order.member);
        catalog_file::validate_name(&order.name).map_err(here)?;
        let mut files: Vec<(Entry, FileCopy)> = Vec::new();
        for entry in &order.entries {
            if let EntryKind::File(copy) = &entry.kind {
                let copy = FileCopy { member, ..copy.clone() };
                files.push((Entry { kind: EntryKind::File(copy.clone()), ..entry.clone() }, copy));
            }
        }
        let others =
            order.entries.iter().filter(|e| !matches!(e.kind, EntryKind::File(_))).cloned().collect();
        let mut part = Part::new(Origin::Staged, files, others);
        part.crcs_known = true;
        let wanted = part.bytes();
        let failed = |reason: Reason| self.fetch_failed(id, wanted, reason);
        let listed = |part: &Part| {
            let file =
                |(entry, copy): &(Entry, FileCopy)| FrozenFile { path: entry.path.clone(), size: copy.size };
            part.files.iter().map(file).collect()
        };
        if self.has_member(id, member, &part) {
            return Ok(listed(&part));
        }
        self.begin_fetch(order, &part).map_err(failed)?;
        let (monitor, identity) = self
            .begin_transfer(id, "fetching", part.bytes())
            .ok_or("the coordinator is gone")
            .map_err(here)?;
        let pfs = PfsDirectory::open(&identity, &order.directory).map_err(there)?;
        for (entry, copy) in &part.files {
            let staged = Staged::File(member, part.arrival, entry.path.clone());
            self.fetch_file(&pfs, id, &staged, entry, copy, &monitor).map_err(|(failure, errno)| {
                let is_full = errno == libc::ENOSPC || errno == libc::EDQUOT;
                let full = is_full.then(|| NoRoom { wanted, room: self.room_for_copies(id) });
                FetchFailure { full, ..failure }
            })?;
        }
        let of = (&*order.name, order.epoch);
        let placed = self.place_member(id, of, (member, part.arrival), &part.files);
        let home = placed.map_err(|error| failed(error.into()))?;
        // Where there is a catalog, they have been made with the files.
        if !self.dataset(id).map_err(|error| failed(error.into()))?.life.is_complete() {
            make_others(&home, &part.others).map_err(|error| failed(error.into()))?;
        }
        let synced = cache::sync_directories(home.as_fd(), part.files.iter().map(|(entry, _)| &entry.path));
        synced.map_err(|error| failed(error.into()))?;
        part.origin = Origin::Here;
        self.put_part(id, member, &part, &monitor).map_err(failed)?;
        Ok(listed(&part))
    }

    /// An earlier fetch has brought this member, and that of another one has failed; or that one
    /// has gone bad. This one is read, as bytes that go bad here must not be counted on for ever.
    fn has_member(&self, id: DatasetId, member: Member, wanted: &Part) -> bool {
        let Ok(dataset) = self.dataset(id) else { return false };
        if !dataset.life.is_complete() {
            return false;
        }
        let is_there = |part: &&Arc<Part>| part.recorded || part.origin == Origin::Here && part.crcs_known;
        let same = |part: &&Arc<Part>| is_there(part) && part.files == wanted.files;
        let Some(part) = dataset.parts.get(&member).filter(same) else { return false };
        if self.first_missing(&dataset, part).is_some() {
            return false;
        }
        let Some((monitor, _)) = self.begin_transfer(id, "verifying", part.bytes()) else { return false };
        let is_intact = |(entry, recorded): &(Entry, FileCopy)| {
            let read = |local: OwnedFd| {
                let seen = copy::checksum(&mut std::fs::File::from(local), recorded.size, &monitor)
                    .map_err(TransferError::io(&entry.path, "read"))?;
                compare(&entry.path, seen, recorded)
            };
            self.copy_out(id, &entry.path, read).is_ok()
        };
        part.files.iter().all(is_intact)
    }

    /// Not the PFS's fault; the cache may have no room, or no inodes.
    fn fetch_failed(&self, id: DatasetId, wanted: u64, reason: Reason) -> FetchFailure {
        let full = reason.is_shortage_of_room().then(|| NoRoom { wanted, room: self.room_for_copies(id) });
        FetchFailure { full, ..here(reason) }
    }

    /// The filemap's entry is there before the first byte.
    fn begin_fetch(&self, order: &FetchOrder, part: &Part) -> Result<(), Reason> {
        let (id, member) = (order.id, order.member);
        let mut disk = self.disk.lock();
        {
            let state = self.state.lock();
            let restarts = state.attached.as_ref().is_some_and(super::state::Attached::presents_later);
            match state.table.datasets.get(&id) {
                None if !restarts => return Err("the dataset was removed here".into()),
                Some(have) if have.is_other_than(&order.name, order.epoch) || have.life.is_leaving() => {
                    let shown = have.shown_name();
                    let text = format!("dataset {id} is another one here ({shown}), or is being removed");
                    return Err(text.into());
                }
                Some(have) if !have.life.is_complete() && have.life.is_in_tree() => {
                    return Err("it is being sealed here".into());
                }
                _ => {}
            }
        }
        self.cache.settle(id, &order.name, &order.entries)?;
        let part = Arc::new(part.clone());
        disk.change(&self.state, |table| {
            table.highest_id = table.highest_id.max(id.0);
            let dataset = table
                .datasets
                .entry(id)
                .or_insert_with(|| Dataset::new(id, order.epoch, order.name.clone(), Files::Aside));
            dataset.flushed = true;
            // One that has gone bad is what there is until all is brought anew.
            let known = dataset.parts.get(&member);
            if known.is_none_or(|known| !known.recorded || known.files != part.files) {
                dataset.parts.insert(member, Arc::clone(&part));
            }
        })?;
        Ok(())
    }

    fn put_part(&self, id: DatasetId, member: Member, part: &Part, monitor: &Monitor) -> Result<(), Reason> {
        let part = Arc::new(part.clone());
        let mut disk = self.disk.lock();
        // Its coordinator is gone; a successor attaches with this lock.
        if monitor.is_cancelled() {
            return Err("the coordinator is gone".into());
        }
        let put = disk.change(&self.state, |table| {
            if let Some(dataset) = table.datasets.get_mut(&id) {
                dataset.parts.insert(member, Arc::clone(&part));
            }
        });
        put.map_err(Reason::from)
    }

    /// Brings a file's bytes here, whole; they have no place yet. A failure comes with its errno.
    pub(super) fn fetch_file(
        &self,
        pfs: &PfsDirectory,
        id: DatasetId,
        staged: &Staged,
        entry: &Entry,
        copy: &FileCopy,
        monitor: &Monitor,
    ) -> Result<(), (FetchFailure, i32)> {
        let at = |error: io::Error| {
            let errno = error.raw_os_error().unwrap_or(0);
            (here(format!("{}: {error}", entry.path)), errno)
        };
        let local = self.cache.stage(id, staged, OFlags::WRONLY).map_err(at)?;
        let kept = local.try_clone().map_err(at)?;
        pfs.get(local, entry, copy, monitor).map_err(|error| {
            let errno = error.errno();
            (there_in(pfs, error), errno)
        })?;
        faults::hit("fetch.staged").map_err(at)?;
        restore_attributes(&kept, entry).map_err(at)?;
        rustix::fs::fdatasync(&kept).map_err(|errno| at(errno.into()))?;
        Ok(())
    }

    fn forget_fetched(&self, order: &FetchOrder) {
        let (id, member) = (order.id, order.member);
        let forgotten = self.disk.lock().change(&self.state, |table| {
            if let Some(dataset) = table.datasets.get_mut(&id) {
                dataset.parts.retain(|m, part| *m != member || part.recorded);
                if !dataset.life.is_complete() && dataset.parts.is_empty() {
                    table.datasets.remove(&id);
                }
            }
        });
        let gone = !self.state.lock().table.datasets.contains_key(&id);
        let removed =
            if gone { self.cache.remove_own(id) } else { self.cache.discard_staged(id, Some(member)) };
        if let Err(error) = forgotten.map_err(Reason::from).and(removed.map_err(Reason::from)) {
            self.events.warning(Some(id), &format!("a failed fetch cannot be forgotten: {error}"));
        }
    }
}

/// Not the PFS's fault.
pub(super) fn here(reason: impl std::fmt::Display) -> FetchFailure {
    FetchFailure { reason: reason.to_string(), corrupt: false, full: None }
}

/// Files of members that are not here.
fn copies<'a>(
    dataset: &'a Dataset,
    catalog: &'a CatalogIndex,
) -> impl Iterator<Item = (&'a RelPath, &'a FileCopy)> {
    let is_member = |member: &Member| dataset.parts.get(member).is_some_and(|part| part.recorded);
    catalog.catalog().entries.iter().filter_map(move |entry| match &entry.kind {
        EntryKind::File(copy) if !is_member(&copy.member) => Some((&entry.path, copy)),
        _ => None,
    })
}

/// The PFS's fault when what it has is not what is recorded.
#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
pub(super) fn there(error: TransferError) -> FetchFailure {
    let missing = |source: &io::Error| source.kind() == io::ErrorKind::NotFound;
    let corrupt = match &error {
        TransferError::Mismatch { .. } => true,
        TransferError::Io { step, source, .. } => *step == "open on the PFS" && missing(source),
        TransferError::Cancelled | TransferError::Identity { .. } => false,
    };
    FetchFailure { reason: error.to_string(), corrupt, full: None }
}

/// The same of a file in the dataset's directory, which may be empty where the PFS is not mounted:
/// what is not there is missing only where the dataset can be seen.
pub(super) fn there_in(pfs: &PfsDirectory, error: TransferError) -> FetchFailure {
    let is_missing = error.errno() == libc::ENOENT;
    let failure = there(error);
    let corrupt = failure.corrupt && (!is_missing || pfs.has_summary());
    FetchFailure { corrupt, ..failure }
}

pub(super) fn verify_file(
    directory: &OwnedFd,
    path: &RelPath,
    recorded: &FileCopy,
    monitor: &Monitor,
) -> Result<(), TransferError> {
    let fd = beneath::open_file(directory.as_fd(), path).map_err(TransferError::io(path, "open"))?;
    let mut file = std::fs::File::from(fd);
    let seen = copy::checksum(&mut file, recorded.size, monitor).map_err(TransferError::io(path, "read"))?;
    let compared = compare(path, seen, recorded);
    // It is still open, so that no other file has its number.
    let inode = |file: BorrowedFd<'_>| rustix::fs::fstat(file).map(|stat| stat.st_ino).ok();
    let there = || beneath::open_file(directory.as_fd(), path).ok().and_then(|now| inode(now.as_fd()));
    if compared.is_err()
        && there() == inode(file.as_fd())
        && let Ok((parent, name)) = beneath::parent_of(directory.as_fd(), path, false)
    {
        let _ = rustix::fs::unlinkat(&parent, name.as_path(), AtFlags::empty());
    }
    compared
}

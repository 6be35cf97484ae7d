//! Data connections: a coordinator's workers read and write a dataset's bytes through descriptors
//! that are opened here, and hand over what they made. Each request is carried out in the thread of
//! its connection, one of those called `scrfs-control` (`scrfs/src/control/server.rs`).
//!
//! What arrives is staged and gets its place only when it is whole and checked. `FinishMember` is
//! the member's vote: when it is answered, files, redundancy data and filemap are on storage. A
//! member that is here and is rebuilt, because its bytes are bad, counts as it is until then; each
//! of its files is replaced by a rename, so that a program that has the old one open keeps it.
//!
//! Fault points: `rebuild.begun`, `seal.synced`, `seal.placed`, `seal.recorded`.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{OFlags, Stat};

use crate::control::{DataReply, DataRequest, MemberPart, Reason};
use crate::dataset::lifecycle::Files;
use crate::dataset::{Catalog, CatalogIndex, Entry, EntryKind, FileCopy};
use crate::faults;
use crate::ids::{DatasetId, Epoch, Member};
use crate::path::RelPath;
use crate::store::StoreError;
use crate::store::beneath;
use crate::transfer::pfs::restore_attributes;

use super::cache::{self, Staged};
use super::node::Node;
use super::state::{Arrival, Dataset, Origin, Part, RedundancyFile};
use crate::record::catalog_file;

/// Why a worker's request failed.
#[derive(Debug, thiserror::Error)]
#[error("dataset {id}{}: {reason}", .at.as_ref().map(|at| format!(", {at}")).unwrap_or_default())]
pub(super) struct DataError {
    id: DatasetId,
    /// Path or member.
    at: Option<String>,
    errno: i32,
    reason: String,
}

impl From<DataError> for Reason {
    fn from(error: DataError) -> Self {
        Self::with_errno(error.to_string(), error.errno)
    }
}

impl DataError {
    pub(super) fn new(id: DatasetId, errno: i32, reason: impl Into<String>) -> Self {
        Self { id, at: None, errno, reason: reason.into() }
    }

    pub(super) fn at(mut self, at: impl std::fmt::Display) -> Self {
        self.at = Some(at.to_string());
        self
    }

    pub(super) fn io(id: DatasetId, at: impl std::fmt::Display) -> impl FnOnce(io::Error) -> Self {
        move |error| Self::new(id, error.raw_os_error().unwrap_or(libc::EIO), error.to_string()).at(at)
    }

    pub(super) fn errno(&self) -> i32 {
        self.errno
    }

    fn store(id: DatasetId) -> impl FnOnce(StoreError) -> Self {
        move |error| Self::new(id, error.errno(), error.to_string())
    }
}

type Outcome = Result<(DataReply, Option<OwnedFd>), DataError>;

/// What [`DataRequest::FinishMember`] says.
struct Finish {
    id: DatasetId,
    member: Member,
    crcs: Vec<u32>,
    redundancy: Option<(String, u64, u32)>,
    set: Vec<Member>,
    members: u32,
}

impl Node {
    pub(super) fn data_request(&self, epoch: Epoch, request: DataRequest) -> (DataReply, Option<OwnedFd>) {
        let outcome = if self.is_epoch(epoch) {
            self.serve_data(epoch, request)
        } else {
            Err(DataError::new(DatasetId(0), libc::ESTALE, format!("epoch {epoch} is over")))
        };
        outcome.unwrap_or_else(|error| {
            self.events.warning(
                Some(error.id).filter(|id| id.0 != 0),
                &format!("a worker's request failed: {error}"),
            );
            (DataReply::Failed { errno: error.errno, reason: error.to_string() }, None)
        })
    }

    fn is_epoch(&self, epoch: Epoch) -> bool {
        self.state.lock().attached.as_ref().is_some_and(|attached| attached.greeting.epoch == epoch)
    }

    fn serve_data(&self, epoch: Epoch, request: DataRequest) -> Outcome {
        let descriptor = |fd| Ok((DataReply::Descriptor, Some(fd)));
        let done = |()| Ok((DataReply::Done, None));
        match request {
            DataRequest::OpenFile { id, path } => descriptor(self.open_member_file(id, &path)?),
            DataRequest::OpenRedundancy { id, member } => {
                let (fd, crc) = self.open_redundancy(id, member)?;
                Ok((DataReply::Redundancy { crc }, Some(fd)))
            }
            DataRequest::CreateRedundancy { id, member, name } => {
                descriptor(self.create_redundancy(id, member, &name)?)
            }
            DataRequest::BeginMember { catalog, member } => {
                done(self.begin_member(epoch, Arc::unwrap_or_clone(catalog), member)?)
            }
            DataRequest::CreateFile { id, member, path } => {
                descriptor(self.create_member_file(id, member, &path)?)
            }
            DataRequest::FinishMember { id, member, crcs, redundancy, set, members } => {
                let finish = Finish { id, member, crcs, redundancy, set, members };
                let (entries, taken) = self.finish_member(epoch, finish)?;
                Ok((DataReply::Part(Box::new(MemberPart { member, entries, taken })), None))
            }
            DataRequest::AbandonMember { id, member } => done(self.abandon_member(id, member)?),
            DataRequest::CreateCopy { file, takes } => descriptor(self.create_copy(&file, takes)?),
            DataRequest::AbandonCopy(file) => done(self.abandon_copy(&file)?),
            DataRequest::Room(id) => Ok((DataReply::Room(self.room_for_copies(id)), None)),
            DataRequest::Progress { id, done: read, total } => {
                if let Some(dataset) = self.state.lock().table.datasets.get_mut(&id) {
                    dataset.encoded = Some((read, total));
                }
                done(())
            }
            // The node has hurried already, when the request came.
            DataRequest::Waited => done(()),
            DataRequest::InstallCopy { file, size, crc } => done(self.install_copy(&file, size, crc)?),
        }
    }

    pub(super) fn dataset(&self, id: DatasetId) -> Result<Dataset, DataError> {
        let found =
            self.state.lock().table.datasets.get(&id).filter(|dataset| !dataset.life.is_leaving()).cloned();
        // Not ENOENT: nothing of it is bad, it was removed.
        found.ok_or_else(|| DataError::new(id, libc::ESTALE, "is not on this node"))
    }

    fn part(dataset: &Dataset, member: Member) -> Result<Arc<Part>, DataError> {
        let missing =
            || DataError::new(dataset.id, libc::ENOENT, "is not on this node").at(format!("member {member}"));
        dataset.rebuilding.get(&member).or_else(|| dataset.parts.get(&member)).cloned().ok_or_else(missing)
    }

    fn open_member_file(&self, id: DatasetId, path: &RelPath) -> Result<OwnedFd, DataError> {
        let dataset = self.dataset(id)?;
        let recorded = dataset
            .file(path)
            .ok_or_else(|| DataError::new(id, libc::ENOENT, "is not a file of the dataset").at(path))?;
        let open = |dataset: &Dataset| {
            let home = self.cache.home(dataset, self.tree.as_ref())?;
            let file = self.open_sealed(dataset, &home, path)?;
            Ok((size_of(&file)?, file))
        };
        let (mut size, mut file) = open(&dataset).map_err(DataError::io(id, path))?;
        if size != recorded.1.size {
            // A program may have begun to change it meanwhile: its sealed bytes are elsewhere then.
            (size, file) = open(&self.dataset(id)?).map_err(DataError::io(id, path))?;
        }
        if size != recorded.1.size {
            let text = format!("has {size} bytes here, recorded are {}", recorded.1.size);
            return Err(DataError::new(id, libc::EIO, text).at(path));
        }
        Ok(file)
    }

    /// With the CRC that it had when the member was finished.
    fn open_redundancy(&self, id: DatasetId, member: Member) -> Result<(OwnedFd, u32), DataError> {
        let dataset = self.dataset(id)?;
        let redundancy = dataset.parts.get(&member).and_then(|part| dataset.redundancy(part));
        let redundancy = redundancy.ok_or_else(|| {
            DataError::new(id, libc::ENOENT, "has no redundancy file").at(format!("member {member}"))
        })?;
        let name = file_name(id, &redundancy.name)?;
        let own = self.cache.own(id).map_err(DataError::io(id, &name))?;
        let file = beneath::open_file(own.as_fd(), &name).map_err(DataError::io(id, &name))?;
        Ok((file, redundancy.crc))
    }

    fn create_redundancy(&self, id: DatasetId, member: Member, name: &str) -> Result<OwnedFd, DataError> {
        let arrival = Self::part(&self.dataset(id)?, member)?.arrival;
        let name = file_name(id, name)?;
        let staged = Staged::Redundancy(member, arrival, name.clone());
        self.cache.stage_redundancy(id, &staged).map_err(DataError::io(id, name))
    }

    /// A lost member comes here: its catalog and its filemap entry are here before its first byte.
    fn begin_member(&self, epoch: Epoch, catalog: Catalog, member: Member) -> Result<(), DataError> {
        let id = catalog.id;
        let wrong = |reason: String| DataError::new(id, libc::EINVAL, reason).at(format!("member {member}"));
        catalog_file::validate(&catalog).map_err(|error| wrong(error.to_string()))?;
        if catalog.layout.members.len() <= member.0 as usize {
            return Err(wrong("the catalog has no such member".into()));
        }
        let mut disk = self.disk.lock();
        self.check_epoch(id, epoch)?;
        let (have, restarts) = {
            let state = self.state.lock();
            let restarts = state.attached.as_ref().is_some_and(super::state::Attached::presents_later);
            (state.table.datasets.get(&id).cloned(), restarts)
        };
        match &have {
            None if !restarts => return Err(wrong("the dataset was removed here".into())),
            Some(dataset) if dataset.life.is_leaving() => {
                return Err(wrong("the dataset is being removed here".into()));
            }
            Some(dataset) if dataset.is_other_than(&catalog.name, catalog.epoch) => {
                return Err(wrong("another dataset has this id".into()));
            }
            _ => {}
        }
        let index = match have.as_ref().and_then(|dataset| dataset.life.catalog().cloned()) {
            Some(index) if index.catalog().revision >= catalog.revision => index,
            _ => {
                disk.record_complete(&catalog).map_err(DataError::store(id))?;
                Arc::new(CatalogIndex::new(catalog))
            }
        };
        let files: Vec<_> =
            index.catalog().files_of(member).map(|(entry, copy)| (entry.clone(), copy.clone())).collect();
        let mut part = Part::new(Origin::Staged, files, Vec::new());
        part.crcs_known = true;
        let part = Arc::new(part);
        self.cache.discard_staged(id, Some(member)).map_err(DataError::io(id, member))?;
        let catalog = index.catalog();
        self.cache.settle(id, &catalog.name, &catalog.entries).map_err(DataError::io(id, member))?;
        let here = have.as_ref().and_then(|dataset| dataset.parts.get(&member));
        if here.is_some_and(|here| here.recorded && here.files == part.files) {
            // With its store its directory may be gone, too.
            if have.as_ref().is_some_and(|dataset| dataset.life.is_in_tree()) {
                self.cache.tree(id, &catalog.name).map_err(DataError::io(id, member))?;
            }
            if let Some(dataset) = self.state.lock().table.datasets.get_mut(&id) {
                dataset.complete(&index);
                dataset.rebuilding.insert(member, part);
            }
            return faults::hit("rebuild.begun").map_err(DataError::io(id, member));
        }
        disk.change(&self.state, |table| {
            let catalog = index.catalog();
            table.highest_id = table.highest_id.max(id.0);
            table.removed.is_back(&catalog.name, catalog.epoch, id);
            let dataset = table
                .datasets
                .entry(id)
                .or_insert_with(|| Dataset::new(id, catalog.epoch, catalog.name.clone(), Files::Aside));
            dataset.complete(&index);
            dataset.epoch = catalog.epoch;
            dataset.parts.insert(member, Arc::clone(&part));
        })
        .map_err(DataError::store(id))?;
        faults::hit("rebuild.begun").map_err(DataError::io(id, member))
    }

    fn create_member_file(
        &self,
        id: DatasetId,
        member: Member,
        path: &RelPath,
    ) -> Result<OwnedFd, DataError> {
        let dataset = self.dataset(id)?;
        let unfinished =
            || dataset.parts.get(&member).filter(|part| part.origin == Origin::Staged && !part.recorded);
        let begun = dataset.rebuilding.get(&member).or_else(unfinished);
        let Some(begun) = begun.filter(|part| part.file(path).is_some()) else {
            let reason = format!("belongs to no member {member} that is rebuilt here");
            return Err(DataError::new(id, libc::ENOENT, reason).at(path));
        };
        let staged = Staged::File(member, begun.arrival, path.clone());
        self.cache.stage(id, &staged, OFlags::WRONLY).map_err(DataError::io(id, path))
    }

    /// The member's names, and what its files take of the cache.
    fn finish_member(&self, epoch: Epoch, finish: Finish) -> Result<(Vec<Entry>, u64), DataError> {
        let (id, member) = (finish.id, finish.member);
        let dataset = self.dataset(id)?;
        let part = Self::part(&dataset, member)?;
        let files = checked_files(id, &part, &finish.crcs)?;
        if !finish.set.contains(&member) {
            return Err(DataError::new(id, libc::EINVAL, "is not in its set").at(format!("member {member}")));
        }
        let (redundancy, mut taken) = self.check_redundancy(&finish, &part)?;
        let mut home = self.cache.home(&dataset, self.tree.as_ref()).map_err(DataError::io(id, member))?;
        let staged = part.origin == Origin::Staged && !part.recorded;
        for (entry, copy) in &files {
            let fd = if staged {
                self.cache.staged(id, &Staged::File(member, part.arrival, entry.path.clone()))
            } else {
                self.open_sealed(&dataset, &home, &entry.path)
            };
            let fd = fd.map_err(DataError::io(id, &entry.path))?;
            if staged {
                settle_file(id, &fd, entry, copy)?;
            } else {
                self.settle_in_place(id, &fd, entry, copy)?;
            }
            taken += taken_by(&fd).map_err(DataError::io(id, &entry.path))?;
        }
        faults::hit("seal.synced").map_err(DataError::io(id, member))?;
        if staged {
            let of = (&*dataset.name, dataset.epoch);
            home = self.place_member(id, of, (member, part.arrival), &files)?;
        }
        cache::sync_directories(home.as_fd(), files.iter().map(|(entry, _)| &entry.path))
            .map_err(DataError::io(id, member))?;
        if let Some(redundancy) = &redundancy {
            self.place_redundancy(id, (member, part.arrival), redundancy)?;
        }
        faults::hit("seal.placed").map_err(DataError::io(id, member))?;
        let mut finished = Part::clone(&part);
        (finished.files, finished.set) = (files, finish.set);
        finished.redundancy.extend(redundancy.map(|file| (file.encoding(), file)));
        (finished.members, finished.recorded, finished.crcs_known) = (finish.members, true, true);
        (finished.origin, finished.carried) = (Origin::Here, Arc::default());
        let entries = finished.entries();
        self.record_member(epoch, id, member, finished)?;
        faults::hit("seal.recorded").map_err(DataError::io(id, member))?;
        self.cache.discard_arrival(id, member, part.arrival).map_err(DataError::io(id, member))?;
        if staged {
            let files: Vec<RelPath> = part.files.iter().map(|(entry, _)| entry.path.clone()).collect();
            self.files_replaced(id, &files);
        }
        Ok((entries, taken))
    }

    /// A file that is sealed where programs wrote it is on storage, or no later try seals it.
    fn settle_in_place(
        &self,
        id: DatasetId,
        fd: &OwnedFd,
        entry: &Entry,
        copy: &FileCopy,
    ) -> Result<(), DataError> {
        check_size(id, fd, entry, copy)?;
        let synced = faults::hit("seal.sync").and_then(|()| Ok(rustix::fs::fdatasync(fd)?));
        synced.map_err(|error| {
            self.cache.lost_writes.add(fd);
            DataError::io(id, &entry.path)(error)
        })
    }

    fn record_member(
        &self,
        epoch: Epoch,
        id: DatasetId,
        member: Member,
        part: Part,
    ) -> Result<(), DataError> {
        let bytes = part.bytes();
        let part = Arc::new(part);
        let mut disk = self.disk.lock();
        self.check_epoch(id, epoch)?;
        let is_same =
            |dataset: &Dataset| Self::part(dataset, member).is_ok_and(|known| known.arrival == part.arrival);
        if !self.state.lock().table.datasets.get(&id).is_some_and(is_same) {
            return Err(DataError::new(id, libc::ECANCELED, "was dropped meanwhile, or is begun anew"));
        }
        disk.change(&self.state, |table| {
            if let Some(dataset) = table.datasets.get_mut(&id) {
                dataset.rebuilding.remove(&member);
                dataset.parts.insert(member, Arc::clone(&part));
            }
        })
        .map_err(DataError::store(id))?;
        drop(disk);
        self.events.info(Some(id), &format!("member {member} is on storage here, {bytes} bytes"));
        Ok(())
    }

    fn check_epoch(&self, id: DatasetId, epoch: Epoch) -> Result<(), DataError> {
        if self.is_epoch(epoch) {
            Ok(())
        } else {
            Err(DataError::new(id, libc::ESTALE, format!("epoch {epoch} is over")))
        }
    }

    /// The redundancy file that has arrived, if there is one, and what it takes of the cache.
    fn check_redundancy(
        &self,
        finish: &Finish,
        part: &Part,
    ) -> Result<(Option<RedundancyFile>, u64), DataError> {
        let Some((name, size, crc)) = &finish.redundancy else { return Ok((None, 0)) };
        let id = finish.id;
        let path = file_name(id, name)?;
        // The filemap has one entry for a name.
        if part.file(&path).is_some() {
            let reason = "a file of the program's has the name that its redundancy data needs here";
            return Err(DataError::new(id, libc::EEXIST, reason).at(name));
        }
        let staged = Staged::Redundancy(finish.member, part.arrival, path);
        let fd = self.cache.staged(id, &staged).map_err(DataError::io(id, name))?;
        let found = size_of(&fd).map_err(DataError::io(id, name))?;
        if found != *size {
            return Err(
                DataError::new(id, libc::EIO, format!("{found} bytes arrived, told were {size}")).at(name)
            );
        }
        rustix::fs::fdatasync(&fd).map_err(|errno| DataError::io(id, name)(errno.into()))?;
        let taken = taken_by(&fd).map_err(DataError::io(id, name))?;
        Ok((Some(RedundancyFile { name: name.clone(), size: *size, crc: *crc }), taken))
    }

    fn place_redundancy(
        &self,
        id: DatasetId,
        (member, arrival): (Member, Arrival),
        file: &RedundancyFile,
    ) -> Result<(), DataError> {
        let name = file_name(id, &file.name)?;
        let placed = self.cache.own(id).and_then(|own| {
            let staged = Staged::Redundancy(member, arrival, name.clone());
            self.cache.put_in_place(id, &staged, own.as_fd(), &name)?;
            Ok(rustix::fs::fsync(&own)?)
        });
        placed.map_err(DataError::io(id, &file.name))
    }

    /// Checked files of a rebuilt member get their places; links and directories of the dataset are
    /// made too.
    pub(super) fn place_files(
        &self,
        dataset: &Dataset,
        (member, arrival): (Member, Arrival),
        home: &OwnedFd,
        files: &[(Entry, FileCopy)],
    ) -> Result<(), DataError> {
        let id = dataset.id;
        for (entry, _) in files {
            self.cache
                .put_in_place(
                    id,
                    &Staged::File(member, arrival, entry.path.clone()),
                    home.as_fd(),
                    &entry.path,
                )
                .map_err(DataError::io(id, &entry.path))?;
        }
        let Some(catalog) = dataset.life.catalog() else { return Ok(()) };
        make_others(home, &catalog.catalog().entries).map_err(DataError::io(id, member))
    }

    fn abandon_member(&self, id: DatasetId, member: Member) -> Result<(), DataError> {
        let mut disk = self.disk.lock();
        disk.change(&self.state, |table| {
            if let Some(dataset) = table.datasets.get_mut(&id) {
                dataset.rebuilding.remove(&member);
                dataset.parts.retain(|m, part| *m != member || part.recorded || part.origin == Origin::Here);
            }
        })
        .map_err(DataError::store(id))?;
        drop(disk);
        self.cache.discard_staged(id, Some(member)).map_err(DataError::io(id, member))
    }
}

/// The member's files with the CRCs that the worker saw; known ones must be the same.
fn checked_files(id: DatasetId, part: &Part, crcs: &[u32]) -> Result<Vec<(Entry, FileCopy)>, DataError> {
    if crcs.len() != part.files.len() {
        let text = format!("{} CRCs for {} files", crcs.len(), part.files.len());
        return Err(DataError::new(id, libc::EINVAL, text));
    }
    let mut files = part.files.clone();
    for ((entry, copy), &crc) in files.iter_mut().zip(crcs) {
        let carried = part.carried.contains(&entry.path);
        // Before the encode, a frozen file that was not carried on has a CRC only if it is a log:
        // that of the log's copy.
        let known = part.crcs_known || part.recorded || carried || copy.crc != 0;
        if known && copy.crc != crc {
            let text = format!("its bytes have CRC {crc:#x}, recorded is {:#x}", copy.crc);
            return Err(DataError::new(id, libc::EBADMSG, text).at(&entry.path));
        }
        copy.crc = crc;
        entry.kind = EntryKind::File(copy.clone());
    }
    Ok(files)
}

/// A file that was made here: right size, attributes, and on storage.
pub(super) fn settle_file(
    id: DatasetId,
    fd: &OwnedFd,
    entry: &Entry,
    copy: &FileCopy,
) -> Result<(), DataError> {
    check_size(id, fd, entry, copy)?;
    let failed = || DataError::io(id, &entry.path);
    restore_attributes(fd, entry).map_err(failed())?;
    rustix::fs::fdatasync(fd).map_err(|errno| failed()(errno.into()))
}

fn check_size(id: DatasetId, fd: &OwnedFd, entry: &Entry, copy: &FileCopy) -> Result<(), DataError> {
    let size = size_of(fd).map_err(DataError::io(id, &entry.path))?;
    if size != copy.size {
        let text = format!("{size} bytes are here, recorded are {}", copy.size);
        return Err(DataError::new(id, libc::EIO, text).at(&entry.path));
    }
    Ok(())
}

/// Makes the directories and links of `entries` that are missing below `home`. Attributes of
/// directories are set last, the deepest first: making something in one changes its times.
pub(super) fn make_others(home: &OwnedFd, entries: &[Entry]) -> io::Result<()> {
    for entry in entries {
        match &entry.kind {
            EntryKind::Directory => drop(beneath::make_directories(home.as_fd(), &entry.path)?),
            EntryKind::Symlink(target) => {
                let (parent, name) = beneath::parent_of(home.as_fd(), &entry.path, true)?;
                let target: &std::ffi::OsStr = std::os::unix::ffi::OsStrExt::from_bytes(target.as_slice());
                match rustix::fs::symlinkat(target, &parent, name.as_path()) {
                    Ok(()) | Err(rustix::io::Errno::EXIST) => {}
                    Err(errno) => return Err(errno.into()),
                }
            }
            EntryKind::File(_) => {}
        }
    }
    for entry in entries.iter().rev().filter(|entry| entry.kind == EntryKind::Directory) {
        restore_attributes(beneath::open_directory(home.as_fd(), &entry.path)?, entry)?;
    }
    Ok(())
}

pub(super) fn size_of(fd: &OwnedFd) -> io::Result<u64> {
    Ok(rustix::fs::fstat(fd)?.st_size.cast_unsigned())
}

/// Bytes that a file takes of its file system; holes take none.
pub(super) fn taken_by(fd: &OwnedFd) -> io::Result<u64> {
    Ok(taken(&rustix::fs::fstat(fd)?))
}

/// The same.
pub(super) fn taken(stat: &Stat) -> u64 {
    u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512)
}

/// A redundancy file's name: one component.
pub(super) fn file_name(id: DatasetId, name: &str) -> Result<RelPath, DataError> {
    match RelPath::new(name) {
        Ok(path) if path.names().count() == 1 && !["staged", "aside"].contains(&name) => Ok(path),
        _ => Err(DataError::new(id, libc::EINVAL, "is no name of a redundancy file").at(format!("{name:?}"))),
    }
}

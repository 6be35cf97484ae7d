//! Sealed files that are on other nodes, or on the PFS, and are brought here because a program
//! opens them.
//!
//! Before a byte of one is written there is room for all of it: nothing is to be filled up, and
//! nothing removed, for a file that cannot come. What others write meanwhile may take that room all
//! the same; then the copy is given up.
//!
//! Fault points: those of [`crate::transfer`], `fetch.staged`, `fetch.placed`.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::OFlags;

use crate::control::{Event, FetchFailure, HeldState, NoRoom, Room, SealedFile};
use crate::dataset::{Entry, EntryKind, FileCopy};
use crate::faults;
use crate::ids::{DatasetId, RequestId};
use crate::lock::{Mutex, Rank};
use crate::transfer::Monitor;
use crate::transfer::pfs::PfsDirectory;

use super::cache::Staged;
use super::members::{DataError, settle_file, taken_by};
use super::node::Node;
use super::room::free_for_file;
use super::state::Dataset;
use super::transfers::{here, there, there_in};

/// Files on their way here, and the bytes that each will take.
#[derive(Debug)]
pub(super) struct Arriving(Mutex<HashMap<SealedFile, u64>>);

impl Default for Arriving {
    fn default() -> Self {
        Self(Mutex::new(Rank::Arriving, HashMap::new()))
    }
}

impl Arriving {
    /// No file is on its way any more.
    pub(super) fn forget_all(&self) {
        self.0.lock().clear();
    }
}

fn staged(file: &SealedFile) -> Staged {
    Staged::Copy(file.path.clone())
}

impl Node {
    pub(super) fn create_copy(&self, file: &SealedFile, takes: u64) -> Result<OwnedFd, DataError> {
        self.copy_record(file)?;
        self.expect_copy(file, takes)?;
        let made = self.cache.stage(file.id, &staged(file), OFlags::WRONLY);
        made.map_err(|error| {
            self.forget_copy(file);
            DataError::io(file.id, &file.path)(error)
        })
    }

    /// Holds the room that a file will take; ENOSPC if there is not enough.
    fn expect_copy(&self, file: &SealedFile, takes: u64) -> Result<(), DataError> {
        let mut arriving = self.arriving.0.lock();
        arriving.remove(file);
        let free = || {
            let free = self.cache.store_of(file.id).and_then(|store| self.free_beside(&arriving, store));
            free.map_err(DataError::io(file.id, &file.path))
        };
        let mut there = free()?;
        if takes > there && self.cache.give_pages_back() {
            there = free()?;
        }
        if takes > there {
            let text = format!("it takes {takes} bytes of the cache, and {there} are free");
            return Err(DataError::new(file.id, libc::ENOSPC, text).at(&file.path));
        }
        arriving.insert(file.clone(), takes);
        Ok(())
    }

    /// Bytes that are free in a store, less what is on its way there. `SCRFS_CACHE_BYTES` keeps no
    /// program from reading.
    fn free_beside(&self, arriving: &HashMap<SealedFile, u64>, store: usize) -> io::Result<u64> {
        let room = self.cache.room_of(store)?;
        let to_come = arriving.iter().filter(|(file, _)| self.is_in(file.id, store)).map(|(file, takes)| {
            let here = self.cache.staged(file.id, &staged(file)).and_then(|fd| taken_by(&fd));
            takes.saturating_sub(here.unwrap_or(0))
        });
        Ok(free_for_file(&room).saturating_sub(to_come.sum()))
    }

    /// The dataset's files are in that store, or will be.
    fn is_in(&self, id: DatasetId, store: usize) -> bool {
        self.cache.store_of(id).is_ok_and(|at| at == store)
    }

    /// What there is room for in the store of `wanted`, and would be without the datasets there.
    /// When it cannot be told, nothing has to go.
    pub(super) fn room_for_copies(&self, wanted: DatasetId) -> Room {
        self.cache.give_pages_back();
        let room = self.cache.store_of(wanted).and_then(|store| {
            let complete: Vec<Dataset> = {
                let state = self.state.lock();
                let complete = state.present().filter(|dataset| dataset.state() == HeldState::Complete);
                complete.cloned().collect()
            };
            let open = self.tree.open_files();
            let held = |dataset: &Dataset| (dataset.id, self.cache.bytes_of(dataset, &open).unwrap_or(0));
            let free = self.free_beside(&self.arriving.0.lock(), store)?;
            let there = complete.iter().filter(|dataset| self.is_in(dataset.id, store));
            Ok(Room { free, held: there.map(held).collect() })
        });
        match room {
            Ok(room) => room,
            Err(error) => {
                self.events.warning(None, &format!("the cache does not tell its room: {error}"));
                Room::default()
            }
        }
    }

    /// It is in place, or will not come.
    fn forget_copy(&self, file: &SealedFile) {
        self.arriving.0.lock().remove(file);
    }

    pub(super) fn abandon_copy(&self, file: &SealedFile) -> Result<(), DataError> {
        let discarded = self.cache.discard(file.id, &staged(file));
        self.forget_copy(file);
        discarded.map_err(DataError::io(file.id, &file.path))
    }

    /// The catalog's word on a file that is copied here to be read.
    fn copy_record(&self, file: &SealedFile) -> Result<(Dataset, Entry, FileCopy), DataError> {
        let dataset = self.dataset(file.id)?;
        let missing = || DataError::new(file.id, libc::ENOENT, "is not a sealed file").at(&file.path);
        let index = dataset.life.catalog().cloned().ok_or_else(missing)?;
        match index.entry(&file.path) {
            Some(entry @ Entry { kind: EntryKind::File(copy), .. }) => {
                Ok((dataset, entry.clone(), copy.clone()))
            }
            _ => Err(missing()),
        }
    }

    pub(super) fn install_copy(&self, file: &SealedFile, size: u64, crc: u32) -> Result<(), DataError> {
        let (id, path) = (file.id, &file.path);
        let (_, entry, copy) = self.copy_record(file)?;
        if (size, crc) != (copy.size, copy.crc) {
            let text = format!(
                "{size} bytes with CRC {crc:#x} arrived, sealed were {} with {:#x}",
                copy.size, copy.crc
            );
            return Err(DataError::new(id, libc::EIO, text).at(path));
        }
        let fd = self.cache.staged(id, &staged(file)).map_err(DataError::io(id, path))?;
        settle_file(id, &fd, &entry, &copy)?;
        self.place_copy(id, &staged(file), path).map_err(DataError::io(id, path))?;
        self.forget_copy(file);
        faults::hit("fetch.placed").map_err(DataError::io(id, path))
    }

    pub(super) fn copy_from_prefix(&self, request: RequestId, file: &SealedFile, directory: &[u8]) {
        let result = self.try_copy_from_prefix(file, directory);
        if let Err(failure) = &result {
            let text = format!("{}: copy from the PFS: {}", file.path, failure.reason);
            self.events.error(Some(file.id), &text);
        }
        self.state.lock().send(Event::CopiedFromPrefix { request, result });
    }

    fn try_copy_from_prefix(&self, file: &SealedFile, directory: &[u8]) -> Result<(), FetchFailure> {
        let (_, entry, copy) = self.copy_record(file).map_err(here)?;
        let (monitor, identity) = {
            let mut state = self.state.lock();
            let identity = state.identity.clone();
            let attached = state.attached.as_mut().zip(identity).ok_or("the coordinator is gone");
            let (attached, identity) = attached.map_err(here)?;
            let monitor = Monitor::new(copy.size);
            attached.transfers.push(monitor.clone());
            (monitor, identity)
        };
        let pfs = PfsDirectory::open(&identity, directory).map_err(there)?;
        // The PFS may tell too little; if there is too little room then, all of it is asked for.
        let takes = pfs.taken(&entry.path).map_err(|error| there_in(&pfs, error))?;
        self.expect_copy(file, takes)
            .map_err(|error| self.without_room(file.id, here(&error), error.errno(), takes))?;
        let brought = self.fetch_file(&pfs, file.id, &staged(file), &entry, &copy, &monitor).and_then(|()| {
            let placed = self.place_copy(file.id, &staged(file), &entry.path);
            placed.map_err(|error| {
                (here(format!("{}: {error}", entry.path)), error.raw_os_error().unwrap_or(0))
            })
        });
        let brought = brought.map_err(|(failure, errno)| {
            if let Err(error) = self.abandon_copy(file) {
                self.events.warning(Some(file.id), &format!("a copy cannot be given up: {error}"));
            }
            self.without_room(file.id, failure, errno, copy.size)
        });
        self.forget_copy(file);
        brought
    }

    /// If it failed for want of room: with figures.
    fn without_room(&self, id: DatasetId, failure: FetchFailure, errno: i32, wanted: u64) -> FetchFailure {
        let full = [libc::ENOSPC, libc::EDQUOT].contains(&errno);
        FetchFailure { full: full.then(|| NoRoom { wanted, room: self.room_for_copies(id) }), ..failure }
    }
}

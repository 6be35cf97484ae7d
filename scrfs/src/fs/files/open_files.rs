//! All open files and directories, and what is known of them for a successor.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::handles::{DirHandle, Handle};
use super::meter::Meters;
use super::pages::Pages;
use super::snapshot::{DirEntry, Listings, Snapshot};
use crate::boundary::IoRecord;
use crate::caller::Caller;
use crate::errno::Errno;
use crate::fs::attr::{key_of, stat_of};
use crate::fs::bound::Bound;
use crate::fs::inodes::{Inode, Key};
use crate::keep::Keep;
use crate::keep::intents::{is_resent, number_of};
use crate::keep::records::{KeptFd, KeptFile};
use crate::lock::{Mutex, Rank, RwLock};

/// An entry of a table with its record and the request that made it.
#[derive(Debug)]
struct Slot<T> {
    value: Arc<T>,
    record: Option<u32>,
    unique: u64,
}

/// Where a handle's number tells which worker opened it.
const GENERATION_SHIFT: u32 = 40;

type Slots<T> = RwLock<HashMap<u64, Slot<T>>>;

/// What an open file is served by, for the adapter: its inode and the kernel's number for the
/// backing file.
#[derive(Debug, Clone)]
pub struct Registered {
    /// The open file.
    pub handle: Arc<Handle>,
    /// The kernel's number.
    pub id: u32,
}

/// What was open until now.
pub(crate) struct Closed {
    pub(crate) inode: u64,
    /// It could be written.
    pub(crate) writable: bool,
    /// The names of its inode went with their dataset.
    pub(crate) let_go: bool,
    /// What programs did with the file, if that is wanted.
    pub(crate) record: Option<IoRecord>,
}

/// All open files and directories.
#[derive(Debug)]
pub(crate) struct OpenFiles {
    keep: Arc<Keep>,
    next: AtomicU64,
    files: Slots<Handle>,
    directories: Slots<DirHandle>,
    listings: Listings,
    /// What the daemon opens for them and keeps has numbers below it.
    pub(super) bound: Bound,
    pub(super) meters: Meters,
    pages: Pages,
    /// Taken over from a predecessor and not yet fetched by the adapter.
    registered: Mutex<Vec<Registered>>,
}

/// The handle that request `unique` opened.
fn opened_by<T>(slots: &Slots<T>, unique: u64) -> Option<u64> {
    let unique = number_of(unique);
    slots.read().iter().find(|(_, slot)| slot.unique == unique && unique != 0).map(|(handle, _)| *handle)
}

impl OpenFiles {
    /// Numbers begin in a range of this worker's own: a successor never takes an old number for a
    /// new handle.
    pub(crate) fn new(keep: Arc<Keep>) -> Self {
        let next = AtomicU64::new(keep.begin_generation() << GENERATION_SHIFT | 1);
        Self {
            keep,
            next,
            files: RwLock::default(),
            directories: RwLock::default(),
            listings: Listings::default(),
            bound: Bound::default(),
            meters: Meters::default(),
            pages: Pages::default(),
            registered: Mutex::default(),
        }
    }

    /// How many workers this mount has had, this one included.
    pub(crate) fn generation(&self) -> u64 {
        self.next.load(Ordering::Relaxed) >> GENERATION_SHIFT
    }

    /// What listings, and texts that are kept beside them, take of the memory.
    pub(crate) fn listings(&self) -> &Listings {
        &self.listings
    }

    fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Adds what `caller` has opened. `path` tells the file's name, if it is wanted.
    pub(crate) fn open(
        &self,
        handle: Handle,
        caller: Caller,
        path: impl FnOnce() -> Option<String>,
    ) -> (u64, Arc<Handle>) {
        let handle = Arc::new(handle);
        handle.can_map();
        self.meters.opened(&handle, caller.uid, path);
        (self.add(Arc::clone(&handle), caller.unique), handle)
    }

    fn add(&self, handle: Arc<Handle>, unique: u64) -> u64 {
        let (fh, unique) = (self.number(), number_of(unique));
        let data = handle
            .file
            .as_ref()
            .and_then(|file| Some(KeptFd { number: file.as_raw_fd(), key: key_of(&stat_of(file).ok()?) }));
        let record = self.keep.add_file(&KeptFile {
            handle: fh,
            inode: handle.inode.id,
            unique,
            flags: handle.flags,
            data,
            pid: handle.process.pid,
            rank: handle.process.rank,
            command: handle.process.command.clone(),
        });
        self.files.write().insert(fh, Slot { value: handle, record, unique });
        fh
    }

    /// A file that a predecessor left open.
    pub(crate) fn take_in(&self, fh: u64, handle: Handle, record: u32, unique: u64) {
        handle.can_map();
        self.files.write().insert(fh, Slot { value: Arc::new(handle), record: Some(record), unique });
    }

    pub(crate) fn get(&self, fh: u64) -> Result<Arc<Handle>, Errno> {
        self.files.read().get(&fh).map(|slot| Arc::clone(&slot.value)).ok_or(Errno(libc::EBADF))
    }

    /// The last descriptor of a handle is gone. What kept the backing file open is so too when this
    /// returns.
    pub(crate) fn close(&self, fh: u64) -> Option<Closed> {
        let slot = self.files.write().remove(&fh)?;
        if let Some(record) = slot.record {
            self.keep.remove_file(record);
        }
        let handle = slot.value;
        let record = self.meters.closed(&handle);
        if handle.mappable() {
            handle.inode.mappable.fetch_sub(1, Ordering::Relaxed);
        }
        let inode = handle.inode.id;
        if handle.paged
            && let Some(file) = &handle.file
        {
            self.pages.closed(inode, file);
        }
        let let_go = handle.inode.let_go.load(Ordering::Relaxed);
        Some(Closed { inode, writable: handle.writable(), let_go, record })
    }

    /// What the kernel has in memory of `inode` is good for `file`, which was opened now.
    pub(crate) fn keeps_pages(&self, inode: u64, file: &File) -> bool {
        self.pages.may_stay(inode, file)
    }

    /// Shall there be records of what programs do with each file?
    pub(crate) fn record_io(&self, on: bool) {
        self.meters.switch(on);
    }

    /// Open files that the kernel serves, taken over from a predecessor.
    pub(crate) fn register(&self, registered: Vec<Registered>) {
        *self.registered.lock() = registered;
    }

    /// The same; once.
    pub(crate) fn registered(&self) -> Vec<Registered> {
        std::mem::take(&mut *self.registered.lock())
    }

    /// The file that request `unique` opened for a predecessor, who did not live to say so.
    pub(crate) fn file_opened_by(&self, unique: u64) -> Option<u64> {
        opened_by(&self.files, unique)
    }

    /// Some process runs the program with that inode number. /proc/PID/exe tells too, but waits for
    /// execve(2) to go on (see [`crate::fs::caller::Sought::is_written_by`]).
    pub(crate) fn is_executed(&self, inode: u64) -> bool {
        self.files.read().values().any(|slot| slot.value.inode.id == inode && slot.value.is_program())
    }

    /// Some handle is open on that inode.
    pub(crate) fn has(&self, inode: u64) -> bool {
        self.files.read().values().any(|slot| slot.value.inode.id == inode)
    }

    /// A program can write the file at places of its choice, so that a seal waits for it.
    pub(crate) fn has_writer_to_wait_for(&self, key: Key) -> bool {
        let writes = |handle: &Handle| handle.writable() && !handle.appends() && !handle.is_marking();
        self.all().iter().any(|handle| handle.inode.key() == Some(key) && writes(handle))
    }

    /// A handle that may write at places of its choice. A seal waits for it, so what comes through
    /// it must not wait for the seal.
    pub(crate) fn is_waited_for(&self, fh: u64) -> bool {
        self.get(fh).is_ok_and(|handle| handle.writable() && !handle.appends())
    }

    /// Handles that may write, by the file behind them.
    pub(crate) fn writable(&self) -> HashMap<Key, Vec<Arc<Handle>>> {
        let mut found: HashMap<Key, Vec<Arc<Handle>>> = HashMap::new();
        for handle in self.all().into_iter().filter(|handle| handle.writable()) {
            if let Some(backing) = handle.inode.backing() {
                found.entry(backing.key).or_default().push(handle);
            }
        }
        found
    }

    pub(crate) fn all(&self) -> Vec<Arc<Handle>> {
        self.files.read().values().map(|slot| Arc::clone(&slot.value)).collect()
    }

    pub(crate) fn add_directory(&self, inode: Arc<Inode>, unique: u64) -> u64 {
        if is_resent(unique)
            && let Some(former) = opened_by(&self.directories, unique)
        {
            self.remove_directory(former);
        }
        let (fh, unique) = (self.number(), number_of(unique));
        let record = self.keep.add_directory(fh, inode.id, unique);
        self.insert_directory(fh, inode, (0, None), record, unique);
        fh
    }

    /// A directory that a predecessor left open, with the number of names that it had listed, and
    /// these, if they were kept.
    pub(crate) fn take_in_directory(
        &self,
        fh: u64,
        inode: Arc<Inode>,
        listing: (u32, Option<(Arc<Snapshot>, OwnedFd)>),
        record: u32,
        unique: u64,
    ) {
        self.insert_directory(fh, inode, listing, Some(record), unique);
    }

    fn insert_directory(
        &self,
        fh: u64,
        inode: Arc<Inode>,
        (end, listing): (u32, Option<(Arc<Snapshot>, OwnedFd)>),
        record: Option<u32>,
        unique: u64,
    ) {
        let (snapshot, kept) = listing.unzip();
        let value = Arc::new(DirHandle {
            inode,
            end,
            snapshot: Mutex::new(Rank::Listing, snapshot),
            kept: Mutex::leaf(kept),
            record,
        });
        self.directories.write().insert(fh, Slot { value, record, unique });
    }

    pub(crate) fn directory(&self, fh: u64) -> Result<Arc<DirHandle>, Errno> {
        let directories = self.directories.read();
        directories.get(&fh).map(|slot| Arc::clone(&slot.value)).ok_or(Errno(libc::EBADF))
    }

    /// A listing of `entries`; ENOMEM where there is no room for it.
    pub(crate) fn listing(&self, entries: Vec<DirEntry>) -> Result<Snapshot, Errno> {
        self.listings.keep(entries)
    }

    /// Keeps the listing of a directory whose reader comes back for the rest.
    pub(crate) fn keep_listing(&self, handle: &DirHandle, snapshot: &Snapshot) {
        let Some(record) = handle.record else { return };
        let mut kept = handle.kept.lock();
        if kept.is_some() {
            return;
        }
        match snapshot.write() {
            // The reader of one of very many has to begin anew when this worker dies.
            Ok((fd, _)) if !self.bound.admits(&fd) => {}
            Ok((fd, key)) => {
                let listing = Some(KeptFd { number: fd.as_raw_fd(), key });
                self.keep.set_listing(record, snapshot.end(), listing);
                *kept = Some(fd);
            }
            Err(error) => tracing::warn!(%error, "a listing cannot be kept for a successor"),
        }
    }

    /// The directory is read from its begin again.
    pub(crate) fn drop_listing(&self, handle: &DirHandle) {
        let mut kept = handle.kept.lock();
        if let (Some(record), Some(_)) = (handle.record, &*kept) {
            self.keep.set_listing(record, 0, None);
        }
        *kept = None;
    }

    /// That is its listing from now on: a successor that lacks it knows where it ends.
    pub(crate) fn begin_listing(&self, handle: &DirHandle, snapshot: &Snapshot) {
        if let Some(record) = handle.record {
            self.keep.set_listing(record, snapshot.end(), None);
        }
    }

    pub(crate) fn remove_directory(&self, fh: u64) {
        let slot = self.directories.write().remove(&fh);
        if let Some(record) = slot.as_ref().and_then(|slot| slot.record) {
            self.keep.remove_directory(record);
        }
    }
}

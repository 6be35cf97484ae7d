//! What a number of the mount stands for below: an inode, and the file behind it.

use std::any::Any;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Arc, Weak};

use super::nodes::Nodes;
use super::parked;
use crate::errno::Errno;
use crate::keep::records::KeptFd;
use crate::lock::{Mutex, Rank, RwLock};

/// Device and inode number of a backing inode.
pub(crate) type Key = (u64, u64);

/// A file below the mount, as the tree holds it.
#[derive(Debug, Clone)]
pub(crate) struct Backing {
    /// Opened with O_PATH and O_NOFOLLOW.
    pub(crate) fd: Arc<OwnedFd>,
    /// What it is known by.
    pub(crate) key: Key,
}

/// The descriptor pins the inode, so that its number is no other's.
impl PartialEq for Backing {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl Eq for Backing {}

impl Backing {
    /// As the state memory has it.
    pub(crate) fn kept(&self) -> KeptFd {
        KeptFd { number: self.fd.as_raw_fd(), key: self.key }
    }
}

/// The file that an inode stands for. Without a descriptor it is parked.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) key: Key,
    pub(super) fd: Option<Arc<OwnedFd>>,
}

impl Known {
    /// Without a descriptor.
    pub(super) fn parked(key: Key) -> Self {
        Self { key, fd: None }
    }
}

impl From<Backing> for Known {
    fn from(backing: Backing) -> Self {
        Self { key: backing.key, fd: Some(backing.fd) }
    }
}

/// One inode, for as long as somebody uses it or its descriptor is open. Without backing it is a
/// sealed name whose bytes were not asked for yet, or are on another node.
#[derive(Debug)]
pub struct Inode {
    /// Its number.
    pub id: u64,
    /// Its record in the state memory.
    pub(crate) record: Option<u32>,
    pub(super) backing: RwLock<Option<Known>>,
    pub(super) table: Weak<Mutex<Nodes>>,
    /// Open handles through which a program may map it and store: of what it does then the kernel
    /// tells nobody.
    pub(crate) mappable: AtomicU32,
    /// Its names went with its dataset: what is not open has no bytes here any more.
    pub(crate) let_go: AtomicBool,
    /// The adapter's passthrough registration, shared by all open handles.
    pub(crate) passthrough: Mutex<Option<Weak<dyn Any + Send + Sync>>>,
}

impl Inode {
    pub(super) fn new(
        id: u64,
        record: Option<u32>,
        known: Option<Known>,
        table: Weak<Mutex<Nodes>>,
    ) -> Arc<Self> {
        Arc::new(Self {
            id,
            record,
            backing: RwLock::leaf(known),
            table,
            mappable: AtomicU32::new(0),
            let_go: AtomicBool::new(false),
            passthrough: Mutex::new(Rank::Served, None),
        })
    }

    /// One that is in no table, and has no file behind it.
    pub(crate) fn nowhere(id: u64) -> Arc<Self> {
        Self::new(id, None, None, Weak::new())
    }

    /// The backing, if it has one now.
    pub(crate) fn backing(&self) -> Option<Backing> {
        self.open().ok()
    }

    /// Its O_PATH descriptor; ESTALE without backing.
    pub(crate) fn fd(&self) -> Result<Arc<OwnedFd>, Errno> {
        self.open().map(|backing| backing.fd)
    }

    /// Its backing with a descriptor; ESTALE without backing.
    pub(crate) fn opened(&self) -> Result<Backing, Errno> {
        self.open()
    }

    fn open(&self) -> Result<Backing, Errno> {
        match &*self.backing.read() {
            None => return Err(Errno(libc::ESTALE)),
            Some(Known { key, fd: Some(fd) }) => return Ok(Backing { fd: Arc::clone(fd), key: *key }),
            Some(Known { fd: None, .. }) => {}
        }
        parked::open(self)
    }

    pub(crate) fn key(&self) -> Option<Key> {
        self.backing.read().as_ref().map(|known| known.key)
    }

    /// It has a file below, of which no descriptor is open.
    pub(super) fn is_parked(&self) -> bool {
        self.backing.read().as_ref().is_some_and(|known| known.fd.is_none())
    }

    /// Somebody uses the descriptor.
    pub(super) fn is_used_below(&self) -> bool {
        let backing = self.backing.read();
        backing.as_ref().and_then(|known| known.fd.as_ref()).is_some_and(|fd| Arc::strong_count(fd) > 1)
    }

    /// Some handle of it is served by the kernel alone.
    pub(crate) fn passthrough_in_use(&self) -> bool {
        self.passthrough.lock().as_ref().is_some_and(|weak| weak.strong_count() > 0)
    }
}

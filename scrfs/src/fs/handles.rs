//! Open files and directories.

use std::any::Any;
use std::collections::HashMap;
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};

use super::caller::Process;
use super::listing::Snapshot;
use super::table::Inode;
use crate::daemon::boundary::Errno;

/// An open file.
#[derive(Debug)]
pub struct Handle {
    /// What it is open on.
    pub inode: Arc<Inode>,
    /// open(2) flags as the kernel sent them.
    pub(crate) flags: i32,
    /// The backing file, where the daemon itself reads and writes.
    pub(crate) file: Option<File>,
    /// Opened on the first fsync, fallocate or the like of a passthrough handle.
    pub(crate) side: Mutex<Option<Arc<File>>>,
    /// Who opened it.
    pub(crate) process: Process,
    /// The adapter's passthrough registration: lives as long as the handle.
    #[cfg_attr(not(feature = "fuse"), expect(dead_code, reason = "the adapter's"))]
    pub(crate) registration: Mutex<Option<Arc<dyn Any + Send + Sync>>>,
}

impl Handle {
    /// Opened for writing.
    pub(crate) fn writable(&self) -> bool {
        self.flags & libc::O_ACCMODE != libc::O_RDONLY
    }
}

/// An open directory: what it listed when it was opened or rewound.
#[derive(Debug)]
pub(crate) struct DirHandle {
    pub(crate) inode: Arc<Inode>,
    pub(crate) snapshot: Mutex<Option<Arc<Snapshot>>>,
}

/// All open files and directories.
#[derive(Debug)]
pub(crate) struct Handles {
    next: AtomicU64,
    files: RwLock<HashMap<u64, Arc<Handle>>>,
    directories: RwLock<HashMap<u64, Arc<DirHandle>>>,
}

impl Handles {
    /// Numbers begin in a range of this process's own: a successor never takes an old number for a new handle.
    pub(crate) fn new() -> Self {
        Self {
            next: AtomicU64::new((u64::from(std::process::id()) << 32) | 1),
            files: RwLock::default(),
            directories: RwLock::default(),
        }
    }

    fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn add(&self, handle: Arc<Handle>) -> u64 {
        let fh = self.number();
        self.files.write().insert(fh, handle);
        fh
    }

    pub(crate) fn get(&self, fh: u64) -> Result<Arc<Handle>, Errno> {
        self.files.read().get(&fh).cloned().ok_or(Errno(libc::EBADF))
    }

    pub(crate) fn remove(&self, fh: u64) -> Option<Arc<Handle>> {
        self.files.write().remove(&fh)
    }

    pub(crate) fn all(&self) -> Vec<Arc<Handle>> {
        self.files.read().values().cloned().collect()
    }

    pub(crate) fn add_directory(&self, handle: DirHandle) -> u64 {
        let fh = self.number();
        self.directories.write().insert(fh, Arc::new(handle));
        fh
    }

    pub(crate) fn directory(&self, fh: u64) -> Result<Arc<DirHandle>, Errno> {
        self.directories.read().get(&fh).cloned().ok_or(Errno(libc::EBADF))
    }

    pub(crate) fn remove_directory(&self, fh: u64) {
        self.directories.write().remove(&fh);
    }
}

//! One open file, or directory.

use std::any::Any;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::snapshot::Snapshot;
use crate::fs::caller::Process;
use crate::fs::inodes::Inode;
use crate::lock::{Mutex, Rank};

/// The kernel's flag for an open that execve(2) makes (`include/linux/fs.h`); FUSE_OPEN has it
/// among open(2)'s.
const FMODE_EXEC: i32 = 0x20;

/// An open file.
#[derive(Debug)]
pub struct Handle {
    /// What it is open on.
    pub inode: Arc<Inode>,
    /// open(2) flags as the kernel sent them.
    pub(crate) flags: i32,
    /// The backing file, where the daemon itself reads and writes.
    pub(crate) file: Option<File>,
    /// All that the daemon reads and writes for it goes through the kernel's pages.
    pub(crate) paged: bool,
    /// Opened on the first fsync, fallocate or the like of a passthrough handle.
    pub(crate) side: Mutex<Option<Arc<File>>>,
    /// Who opened it.
    pub(crate) process: Arc<Process>,
    /// It was opened under a name that marks a dataset.
    pub(crate) marks: bool,
    /// Closes of it that have set a marker and wait.
    pub(crate) marking: AtomicU32,
    /// A predecessor opened it, and may have heard of its close.
    pub(crate) inherited: bool,
    /// The adapter's passthrough registration: lives as long as the handle.
    #[cfg_attr(not(feature = "fuse"), expect(dead_code, reason = "the adapter's"))]
    pub(crate) registration: Mutex<Option<Arc<dyn Any + Send + Sync>>>,
}

impl Handle {
    /// Of an inode without a file behind it.
    pub(crate) fn nowhere(inode: Arc<Inode>, flags: i32) -> Self {
        let (file, side, registration) = (None, Mutex::new(Rank::Served, None), Mutex::default());
        let marking = AtomicU32::new(0);
        let (paged, marks, inherited, process) = (false, false, false, Arc::default());
        Self { inode, flags, file, paged, side, process, marks, marking, inherited, registration }
    }

    /// Opened so that a shared mapping of it can be stored to.
    pub(super) fn mappable(&self) -> bool {
        self.flags & libc::O_ACCMODE == libc::O_RDWR
    }

    /// Counts it, if it can be mapped so.
    pub(super) fn can_map(&self) {
        if self.mappable() {
            self.inode.mappable.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A close of this handle has set the marker and waits: no seal waits for this handle.
    pub(crate) fn is_marking(&self) -> bool {
        self.marking.load(Ordering::Acquire) > 0
    }

    /// Opened so that it can write at the file's end only, and not be mapped for storing.
    pub(crate) fn appends(&self) -> bool {
        self.flags & (libc::O_ACCMODE | libc::O_APPEND) == libc::O_WRONLY | libc::O_APPEND
    }

    /// Opened by execve(2), and open as long as a process runs the program.
    pub(super) fn is_program(&self) -> bool {
        self.flags & FMODE_EXEC != 0
    }

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
    /// Where the listing ended that a predecessor had; 0: it had none.
    pub(crate) end: u32,
    /// The listing for a successor, and the handle's record.
    pub(super) kept: Mutex<Option<OwnedFd>>,
    pub(super) record: Option<u32>,
}

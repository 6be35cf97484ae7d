//! Moving a dataset's bytes between this node's cache and the PFS, and checking them.
//!
//! Bytes are read once; their CRC32 is taken in the same pass and compared with what the dataset's
//! records say. Memory is one block, whatever the file. Zeros are not written ([`sparse`]). Work on
//! the PFS is done with the job user's ids and groups, in a thread that has no others
//! ([`user::UserThread`]).
//!
//! Fault points: `flush.block`, `flush.copied`, `fetch.block`, `verify.block`.

pub mod copy;
pub mod pfs;
pub mod sparse;
pub mod user;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::path::RelPath;

/// Why bytes could not be moved, or may not be used.
#[derive(Debug, thiserror::Error)]
pub enum TransferError {
    /// A system call failed.
    #[error("{path}: {step}: {source}")]
    Io {
        /// The file, relative to its dataset.
        path: RelPath,
        /// What was done.
        step: &'static str,
        /// The reason.
        source: io::Error,
    },
    /// The bytes are not those that the records speak of.
    #[error("{path}: {size} bytes with CRC {crc:#x}, recorded are {expected_size} with {expected_crc:#x}")]
    Mismatch {
        /// The file, relative to its dataset.
        path: RelPath,
        /// Bytes read.
        size: u64,
        /// CRC32 of them.
        crc: u32,
        /// Bytes recorded.
        expected_size: u64,
        /// CRC32 recorded.
        expected_crc: u32,
    },
    /// The coordinator that wanted it is gone.
    #[error("given up, its coordinator is gone")]
    Cancelled,
    /// The thread with the user's rights could not be had.
    #[error("cannot work with the rights of uid {uid}: {source}")]
    Identity {
        /// Whose.
        uid: u32,
        /// The reason.
        source: io::Error,
    },
}

crate::control::are_reasons!(TransferError);

impl TransferError {
    /// The errno to answer a program with.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Io { source, .. } | Self::Identity { source, .. } => {
                source.raw_os_error().unwrap_or(libc::EIO)
            }
            Self::Mismatch { .. } | Self::Cancelled => libc::EIO,
        }
    }

    /// The bytes that were read from are gone or wrong; not so where they only cannot be had now.
    pub fn is_loss(&self) -> bool {
        match self {
            Self::Mismatch { .. } => true,
            Self::Io { source, .. } => {
                matches!(source.raw_os_error(), Some(libc::ENOENT | libc::EIO | libc::ENODATA))
            }
            Self::Cancelled | Self::Identity { .. } => false,
        }
    }

    pub(crate) fn io(path: &RelPath, step: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| match source.kind() {
            io::ErrorKind::Interrupted => Self::Cancelled,
            _ => Self::Io { path: path.clone(), step, source },
        }
    }
}

/// How far a transfer is, and the wish that it ends; shared with those who show it or end it.
#[derive(Debug, Clone, Default)]
pub struct Monitor(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    done: AtomicU64,
    total: AtomicU64,
    cancelled: AtomicBool,
}

impl Monitor {
    /// Nothing done of `total` bytes.
    pub fn new(total: u64) -> Self {
        let monitor = Self::default();
        monitor.0.total.store(total, Ordering::Relaxed);
        monitor
    }

    /// Bytes done and to do.
    pub fn progress(&self) -> (u64, u64) {
        (self.0.done.load(Ordering::Relaxed), self.0.total.load(Ordering::Relaxed))
    }

    /// The transfer ends at its next block.
    pub fn cancel(&self) {
        self.0.cancelled.store(true, Ordering::SeqCst);
    }

    /// True once [`Monitor::cancel`] was called.
    pub fn is_cancelled(&self) -> bool {
        self.0.cancelled.load(Ordering::SeqCst)
    }

    /// `bytes` more are done; an [`io::ErrorKind::Interrupted`] error when it is to end.
    pub(crate) fn advance(&self, bytes: u64) -> io::Result<()> {
        self.0.done.fetch_add(bytes, Ordering::Relaxed);
        if self.is_cancelled() { Err(io::ErrorKind::Interrupted.into()) } else { Ok(()) }
    }
}

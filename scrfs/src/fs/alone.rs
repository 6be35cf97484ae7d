//! A mount without a node: directories change here at once, markers fail, nothing can be fetched.
//! For tests, and for looking at the file system by itself.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use super::FileSystem;
use crate::boundary::{Completion, GlobalRequests, Marking, MountedTree};
use crate::caller::Caller;
use crate::control::DirOp;
use crate::errno::Errno;
use crate::ids::{DatasetId, RequestId};
use crate::path::RelPath;

/// See the module.
#[derive(Debug)]
pub struct Alone {
    tree: Weak<FileSystem>,
    serial: AtomicU64,
}

impl Alone {
    /// Acts on `tree`, which does not outlive it.
    pub fn new(tree: &Arc<FileSystem>) -> Arc<Self> {
        Arc::new(Self { tree: Arc::downgrade(tree), serial: AtomicU64::new(1) })
    }
}

impl GlobalRequests for Alone {
    fn new_request(&self) -> RequestId {
        let serial = self.serial.fetch_add(1, Ordering::Relaxed);
        RequestId { origin: std::process::id().into(), serial }
    }

    fn directory(&self, request: RequestId, op: DirOp, _caller: Caller, done: Completion) {
        let Some(tree) = self.tree.upgrade() else { return done(Err(Errno(libc::ENOTCONN))) };
        let voted = tree.prepare(&op);
        if voted.is_ok() {
            tree.going_alone(request);
        }
        done(voted.and_then(|()| tree.apply(&op)));
    }

    fn marker(&self, name: &[u8], _marking: Marking, _caller: Caller, done: Completion) {
        self.note(format!("{}: nobody to seal it", String::from_utf8_lossy(name)));
        done(Err(Errno(libc::EIO)));
    }

    fn invalid(&self, _name: &[u8]) {}

    fn fetch(&self, _id: DatasetId, _path: &RelPath, _caller: Caller, done: Completion) {
        done(Err(Errno(libc::EIO)));
    }

    fn creating(&self, _path: &RelPath, _program_rank: Option<u32>) -> Result<(), Errno> {
        Ok(())
    }

    fn open_generation(&self, _id: DatasetId, done: Completion) {
        done(Err(Errno(libc::EROFS)));
    }

    fn keep_sealed(&self, _id: DatasetId, _path: &RelPath, _file: (u64, u64), done: Completion) {
        done(Err(Errno(libc::EROFS)));
    }

    fn changing(&self, _id: DatasetId, _path: &RelPath, _program_rank: Option<u32>) -> Result<(), Errno> {
        Ok(())
    }

    fn removing(&self, _id: DatasetId, _path: &RelPath) -> Result<(), Errno> {
        Ok(())
    }

    fn staying(&self, _id: DatasetId, _path: &RelPath, _program_rank: Option<u32>) -> Result<(), Errno> {
        Ok(())
    }

    fn decides(&self) -> bool {
        false
    }

    fn lost_writes(&self, _file: BorrowedFd<'_>) {}

    fn note(&self, text: String) {
        tracing::warn!("{text}");
    }
}

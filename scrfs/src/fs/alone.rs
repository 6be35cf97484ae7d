//! A mount without a node: directories change here at once, markers fail, nothing can be fetched. For tests, and for
//! looking at the file system by itself.

use std::sync::{Arc, Weak};

use super::FileSystem;
use crate::control::DirOp;
use crate::daemon::boundary::{Caller, Completion, Errno, GlobalRequests, MountedTree};
use crate::ids::DatasetId;
use crate::path::RelPath;

/// See the module.
#[derive(Debug)]
pub struct Alone {
    tree: Weak<FileSystem>,
}

impl Alone {
    /// Acts on `tree`, which does not outlive it.
    pub fn new(tree: &Arc<FileSystem>) -> Arc<Self> {
        Arc::new(Self { tree: Arc::downgrade(tree) })
    }
}

impl GlobalRequests for Alone {
    fn directory(&self, op: DirOp, _caller: Caller, done: Completion) {
        let Some(tree) = self.tree.upgrade() else { return done(Err(Errno(libc::ENOTCONN))) };
        done(tree.prepare(&op).and_then(|()| tree.apply(&op)));
    }

    fn marker(&self, name: &[u8], _caller: Caller, done: Completion) {
        self.note(format!("{}: nobody to seal it", String::from_utf8_lossy(name)));
        done(Err(Errno(libc::EIO)));
    }

    fn fetch(&self, _id: DatasetId, _path: &RelPath, _caller: Caller, done: Completion) {
        done(Err(Errno(libc::EIO)));
    }

    fn creating(&self, _path: &RelPath, _program_rank: Option<u32>) -> Result<(), Errno> {
        Ok(())
    }

    fn note(&self, text: String) {
        tracing::warn!("{text}");
    }
}

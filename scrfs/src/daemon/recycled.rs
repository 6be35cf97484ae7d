//! Pages of memory that are used again: the next redundancy file is written into those of one whose
//! dataset has left.
//!
//! In a file system of memory a fresh page costs more than what is written into it. So the largest
//! redundancy file of a dataset that leaves is not removed at once. It becomes `recycled` in the
//! cache directory of its store, and the redundancy file that is made there next.
//!
//! Nothing that needs room is to miss these pages. A file is kept only while as much is free beside
//! it as its dataset took on this node, and while another dataset is in the cache; not where
//! `SCRFS_CACHE_BYTES` is set; and neither before a dataset was sealed since coordinators attached,
//! nor after room was short until the next one is. A worker begins without one.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::control::HeldState;
use crate::ids::DatasetId;
use crate::path::RelPath;
use crate::record::RedundancyFileName;
use crate::store::{beneath, lease};

use super::cache::{Cache, Staged, invalid};
use super::node::Node;
use super::room::bytes_free;
use super::state::{Attached, Dataset};

/// In the cache directory of a store.
const NAME: &str = "recycled";

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Recycled {
    /// A dataset was sealed, and room was not short since.
    pub(super) allowed: AtomicBool,
    /// Bytes that have to be free beside what is kept; 0: nothing is.
    pub(super) beside: AtomicU64,
}

impl Cache {
    /// Keeps the largest redundancy file of a dataset, which leaves, in place of what was kept
    /// before; false if there is none.
    fn keep_pages(&self, id: DatasetId) -> io::Result<bool> {
        let root = self.root(self.store_of(id)?);
        let own = match beneath::open_directory(root, &Self::own_path(id)?) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            other => other?,
        };
        let mut largest: Option<(i64, Vec<u8>)> = None;
        for name in beneath::names(&own)? {
            if RedundancyFileName::parse(&name).is_none() {
                continue;
            }
            let stat = rustix::fs::statat(&own, name.as_slice(), AtFlags::SYMLINK_NOFOLLOW)?;
            let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
            if is_file && largest.as_ref().is_none_or(|(blocks, _)| *blocks < stat.st_blocks) {
                largest = Some((stat.st_blocks, name));
            }
        }
        let Some((_, name)) = largest else { return Ok(false) };
        rustix::fs::renameat(&own, name.as_slice(), root, NAME)?;
        Ok(true)
    }

    /// A file for redundancy data that arrives. It may have bytes of another one: all of it has to
    /// be written, and its size to be set.
    pub(super) fn stage_redundancy(&self, id: DatasetId, what: &Staged) -> io::Result<OwnedFd> {
        match self.recycled_for(id, what) {
            Ok(Some(file)) => return Ok(file),
            Ok(None) => {}
            Err(error) => tracing::debug!(%id, %error, "no pages are used again"),
        }
        self.stage(id, what, OFlags::RDWR)
    }

    fn recycled_for(&self, id: DatasetId, what: &Staged) -> io::Result<Option<OwnedFd>> {
        if self.recycled.beside.swap(0, Ordering::Relaxed) == 0 {
            return Ok(None);
        }
        let root = self.root(self.store_of(id)?);
        let name = RelPath::new(NAME).map_err(invalid)?;
        let file = match beneath::open(root, &name, OFlags::RDWR | OFlags::NOFOLLOW, Mode::empty()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            other => other?,
        };
        // Who reads it still, for a rebuild that has become needless, is to read what it was.
        if lease::is_open_elsewhere(file.as_fd())? {
            self.remove_recycled();
            return Ok(None);
        }
        beneath::put_in_place(root, &name, self.own(id)?.as_fd(), &what.path()?)?;
        Ok(Some(file))
    }

    /// Frees what is kept, in all stores; true if there was something.
    fn remove_recycled(&self) -> bool {
        self.recycled.beside.store(0, Ordering::Relaxed);
        let remove = |root: &OwnedFd| match rustix::fs::unlinkat(root, NAME, AtFlags::empty()) {
            Ok(()) => true,
            Err(Errno::NOENT) => false,
            Err(error) => {
                tracing::warn!(%error, "{NAME}, in the cache, cannot be removed");
                false
            }
        };
        // Each of them.
        self.roots.iter().map(remove).fold(false, |any, gone| any | gone)
    }

    /// Nothing is kept any more, or until [`Node::may_recycle`]; true if that gave room.
    pub(super) fn give_pages_back(&self) -> bool {
        self.recycled.allowed.store(false, Ordering::Relaxed);
        self.remove_recycled()
    }

    /// A file is kept.
    pub(super) fn has_recycled(&self) -> bool {
        self.recycled.beside.load(Ordering::Relaxed) > 0
    }
}

impl Node {
    /// A dataset was sealed: the next one will want as many pages.
    pub(super) fn may_recycle(&self) {
        let restarts = self.state.lock().attached.as_ref().is_none_or(Attached::presents_later);
        if !restarts && self.bound.limit() == 0 {
            self.cache.recycled.allowed.store(true, Ordering::Relaxed);
        }
    }

    /// A dataset leaves: keeps the pages of its redundancy file, if there is room enough.
    pub(super) fn recycle(&self, dataset: &Dataset) {
        let goes_on = || {
            let state = self.state.lock();
            state.present().any(|other| other.id != dataset.id && other.state() == HeldState::Complete)
        };
        if !self.cache.recycled.allowed.load(Ordering::Relaxed) || !goes_on() {
            self.cache.remove_recycled();
            return;
        }
        let Some(index) = dataset.life.catalog() else { return };
        let beside = index.catalog().layout.bytes_on(&self.config.host).max(1);
        let kept = if self.is_free(beside) { self.cache.keep_pages(dataset.id) } else { Ok(false) };
        match kept {
            Ok(true) => self.cache.recycled.beside.store(beside, Ordering::Relaxed),
            Ok(false) => drop(self.cache.remove_recycled()),
            Err(error) => {
                tracing::debug!(id = %dataset.id, %error, "no pages are kept");
                self.cache.remove_recycled();
            }
        }
    }

    /// What is kept goes where too little is free beside it.
    pub(super) fn look_at_recycled(&self) {
        let beside = self.cache.recycled.beside.load(Ordering::Relaxed);
        if beside > 0 && !self.is_free(beside) {
            self.cache.give_pages_back();
        }
    }

    /// Each store has so many bytes free.
    fn is_free(&self, bytes: u64) -> bool {
        let mut rooms = (0..self.cache.roots.len()).map(|store| self.cache.room_of(store));
        rooms.all(|room| room.is_ok_and(|room| bytes_free(&room) >= bytes))
    }
}

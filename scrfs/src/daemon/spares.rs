//! Spares: the redundancy file of a dataset that leaves stays in its store under another name, and
//! the next redundancy file is written into its pages. To get fresh ones from the kernel, which
//! clears them first, takes longer than to write them.
//!
//! A store has at most one. It takes room from nobody: the next dataset's redundancy will take as
//! much, and the spare goes as soon as free room is short, with the coordinator, and where
//! `SCRFS_CACHE_BYTES` counts. Only a file that its member's record names becomes one: whoever wrote
//! it has ended.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{AtFlags, Mode, OFlags, StatVfs};
use rustix::io::Errno;

use crate::ids::DatasetId;
use crate::path::RelPath;
use crate::store::beneath;

use super::cache::{Cache, Staged, invalid};
use super::members::{file_name, taken};
use super::node::Node;
use super::room::Moment;
use super::state::Dataset;

/// Its name in a store's cache directory.
const NAME: &str = "spare";

/// Whether some store may have one.
#[derive(Debug, Default)]
pub(super) struct Spares(AtomicBool);

impl Cache {
    /// Makes the redundancy file `name` of a dataset its store's spare. A former one goes.
    fn keep_spare(&self, id: DatasetId, name: &RelPath) -> io::Result<()> {
        let root = self.root(self.store_of(id)?);
        let path = Self::own_path(id)?.concat(name).map_err(invalid)?;
        // Before there is one: none is ever overlooked.
        self.spares.0.store(true, Ordering::Relaxed);
        Ok(rustix::fs::renameat(root, path.as_path(), root, NAME)?)
    }

    /// The spare of a dataset's store, staged in place of a new file. It has the bytes that were in
    /// it. `None` where there is none.
    pub(super) fn take_spare(&self, id: DatasetId, what: &Staged) -> io::Result<Option<OwnedFd>> {
        if !self.may_have_spares() {
            return Ok(None);
        }
        let (root, own) = (self.root(self.store_of(id)?), self.own(id)?);
        let (parent, name) = beneath::parent_of(own.as_fd(), &what.path()?, true)?;
        match rustix::fs::renameat(root, NAME, &parent, name.as_path()) {
            Ok(()) => {}
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        }
        beneath::open(parent.as_fd(), &name, OFlags::RDWR | OFlags::NOFOLLOW, Mode::empty()).map(Some)
    }

    /// False where no store has one.
    pub(super) fn may_have_spares(&self) -> bool {
        self.spares.0.load(Ordering::Relaxed)
    }

    /// Gives the room of all spares back; false where there were none.
    pub(super) fn drop_spares(&self) -> bool {
        if !self.spares.0.swap(false, Ordering::Relaxed) {
            return false;
        }
        let dropped =
            self.roots.iter().filter(|root| rustix::fs::unlinkat(root, NAME, AtFlags::empty()).is_ok());
        dropped.count() > 0
    }

    /// Spares of a former worker go.
    pub(super) fn find_spares(&self) -> bool {
        self.spares.0.store(true, Ordering::Relaxed);
        self.drop_spares()
    }

    /// Bytes of a store's spare.
    fn bytes_of_spare(&self, store: usize) -> u64 {
        rustix::fs::statat(self.root(store), NAME, AtFlags::SYMLINK_NOFOLLOW).map_or(0, |stat| taken(&stat))
    }
}

impl Node {
    /// Of a dataset that leaves, just before the rest of it goes.
    pub(super) fn keep_spare_of(&self, dataset: &Dataset) {
        if self.bound.limit() > 0 || !self.state.lock().served() {
            return;
        }
        let recorded = dataset.parts.values().filter(|part| part.recorded);
        let largest = recorded.flat_map(|part| part.redundancy.values()).max_by_key(|file| file.size);
        let name = largest.and_then(|file| file_name(dataset.id, &file.name).ok());
        // One that cannot be kept goes with the rest.
        let kept = name.map(|name| self.cache.keep_spare(dataset.id, &name));
        if kept.is_some_and(|kept| kept.is_ok()) {
            // The watching thread has something to look at.
            drop(self.state.lock());
            self.wake.notify_all();
        }
    }

    /// The room of a store, where `wanted` bytes are to be free; spares go if these are not.
    pub(super) fn room_without_spares(
        &self,
        store: usize,
        moment: Moment,
        wanted: u64,
    ) -> io::Result<StatVfs> {
        let room = self.cache.room_of(store)?;
        let free = room.f_bavail.saturating_mul(room.f_frsize);
        let stays = moment != Moment::Refused && free >= wanted.max(self.cache.bytes_of_spare(store));
        if !self.cache.may_have_spares() || stays || !self.cache.drop_spares() {
            return Ok(room);
        }
        self.cache.room_of(store)
    }
}

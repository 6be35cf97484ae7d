//! In which store what is: the cache directories of a mount over several stores (`crate::stores`).
//!
//! `dataset.<id>` is where the dataset's directory in the tree is. It is made there when the node
//! first hears of the dataset ([`Cache::settle`]), and found by looking for it after that: nothing
//! else records it. With one store nothing is looked for.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, StatVfs};
use rustix::io::Errno;

use crate::dataset::Entry;
use crate::dataset::FLAT;
use crate::ids::DatasetId;
use crate::path::RelPath;
use crate::store::beneath;
use crate::stores::{PRIMARY, Place};

use super::cache::{Cache, invalid};

impl Cache {
    /// There is no other store than the primary.
    pub(super) fn is_one(&self) -> bool {
        self.roots.len() < 2
    }

    /// Cache directory of a store.
    pub(super) fn root(&self, store: usize) -> BorrowedFd<'_> {
        self.roots[store].as_fd()
    }

    fn find(&self, path: &RelPath) -> Option<usize> {
        let there =
            |root: &OwnedFd| rustix::fs::statat(root, path.as_path(), AtFlags::SYMLINK_NOFOLLOW).is_ok();
        self.roots.iter().position(there)
    }

    /// The store of a dataset: where its own directory is, or would be made.
    pub(super) fn store_of(&self, id: DatasetId) -> io::Result<usize> {
        if self.is_one() {
            return Ok(PRIMARY);
        }
        Ok(self.find(&Self::own_path(id)?).unwrap_or_else(|| self.stores.of(id.0)))
    }

    /// For records: the store of a dataset.
    pub(super) fn place_of(&self, id: DatasetId) -> &Place {
        &self.stores.places()[self.store_of(id).unwrap_or(PRIMARY)]
    }

    /// The store in whose tree `name` is.
    pub(super) fn tree_store(&self, name: &[u8]) -> io::Result<Option<usize>> {
        if self.is_one() {
            return Ok(Some(PRIMARY));
        }
        Ok(self.find(&self.in_tree(name)?))
    }

    /// Dataset `id` of that name is here from now on, or will be: where its directory is, all else
    /// of it will be too. Of one that was never here the descriptors decide; flat ones are in the
    /// primary store (of which the top of `entries` tells).
    pub(super) fn settle(&self, id: DatasetId, name: &[u8], entries: &[Entry]) -> io::Result<()> {
        if self.is_one() || self.find(&Self::own_path(id)?).is_some() {
            return Ok(());
        }
        let flat = || {
            let top = entries.iter().find(|entry| entry.path.is_root());
            top.is_some_and(|top| top.mode & FLAT == FLAT)
        };
        let store = match self.tree_store(name)? {
            Some(store) => store,
            None if flat() => PRIMARY,
            None => self.stores.of(id.0),
        };
        self.own_in(store, id).map(drop)
    }

    /// `dataset.<id>` in that store, made if it is not there.
    pub(super) fn own_in(&self, store: usize, id: DatasetId) -> io::Result<OwnedFd> {
        beneath::make_directories(self.root(store), &Self::own_path(id)?)
    }

    /// The store in which `below` is in a dataset's own directory.
    pub(super) fn store_with(&self, id: DatasetId, below: &str) -> io::Result<Option<usize>> {
        let path = Self::own_path(id)?.join(below.as_bytes()).map_err(invalid)?;
        Ok(self.find(&path))
    }

    /// Removes `below` from a dataset's own directory, wherever it is.
    pub(super) fn remove_below(&self, id: DatasetId, below: &RelPath) -> io::Result<()> {
        let path = Self::own_path(id)?.concat(below).map_err(invalid)?;
        self.roots.iter().try_for_each(|root| beneath::remove_tree(root.as_fd(), &path))
    }

    /// Own directories of datasets that are not `known` and have nothing in them go: a worker died
    /// before it recorded them.
    pub(super) fn drop_empty(&self, known: &BTreeSet<DatasetId>) -> io::Result<()> {
        let mut unknown = self.own_directories()?.into_iter().filter(|id| !known.contains(id));
        unknown.try_for_each(|id| self.drop_if_empty(id))
    }

    /// Takes back what [`Cache::settle`] made, unless there is something in it.
    pub(super) fn drop_if_empty(&self, id: DatasetId) -> io::Result<()> {
        let path = Self::own_path(id)?;
        for root in &self.roots {
            match rustix::fs::unlinkat(root, path.as_path(), AtFlags::REMOVEDIR) {
                Ok(()) | Err(Errno::NOENT | Errno::NOTEMPTY | Errno::EXIST) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    /// Room of a store's file system.
    pub(super) fn room_of(&self, store: usize) -> io::Result<StatVfs> {
        Ok(rustix::fs::fstatvfs(self.root(store))?)
    }

    /// Free bytes and inodes of all file systems together.
    pub(super) fn free(&self) -> io::Result<(u64, u64)> {
        let mut rooms = BTreeMap::new();
        for root in &self.roots {
            rooms.insert(rustix::fs::fstat(root)?.st_dev, rustix::fs::fstatvfs(root)?);
        }
        let add = |(bytes, inodes): (u64, u64), room: &StatVfs| {
            let free = room.f_bfree.saturating_mul(room.f_frsize);
            (bytes.saturating_add(free), inodes.saturating_add(room.f_ffree))
        };
        Ok(rooms.values().fold((0, 0), add))
    }
}

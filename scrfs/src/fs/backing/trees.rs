//! The backing trees of a mount over several stores, seen as one.
//!
//! Each store has a tree with the checkpoint path in it; all else is in the primary's alone. A name
//! of the checkpoint path is in one tree: a dataset's directory in any, what is no directory in the
//! primary's. Which one nobody records: it is looked for, in the primary's first. A mount over one
//! store asks nobody anything.
//!
//! Where a rename takes the place of an empty directory in another store, that one is removed after
//! the rename; if a worker dies in between, its successor removes it before it does anything else
//! ([`Trees::drop_doubles`]).
//!
//! Fault point: `rename.placed`, between the two.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, Mode, OFlags, Stat, StatVfs};

use super::roots::{Root, open_below};
use crate::dataset::FLAT;
use crate::errno::Errno;
use crate::fs::attr::stat_of;
use crate::fs::errno::fail;
use crate::fs::node::NodeLink;
use crate::fs::view::{Namespace, Place};
use crate::path::RelPath;
use crate::store::beneath;
use crate::stores::{PRIMARY, Stores};

/// See the module.
pub(crate) struct Trees {
    /// One for each store, of which there is at least one.
    all: Vec<Root>,
    /// Directories of the checkpoint path that are in each tree.
    own: u64,
    pub(super) names: Namespace,
    stores: Arc<Stores>,
    /// Runs as root: may give files to their makers, and needs no permission bits.
    pub(super) privileged: bool,
    node: Arc<NodeLink>,
}

impl Trees {
    /// Opens the trees at `paths`, of which there is one for each of `stores`. What is odd in them
    /// is told to `node`.
    pub(crate) fn over(
        paths: &[PathBuf],
        names: Namespace,
        stores: Arc<Stores>,
        node: Arc<NodeLink>,
    ) -> Result<Self, Errno> {
        let open = |path: &PathBuf| Root::open(path, names.checkpoint());
        let all = paths.iter().map(open).collect::<Result<Vec<_>, _>>()?;
        if all.is_empty() {
            return fail(libc::ENOENT);
        }
        // What is to be deleted has one at the root.
        let own = u64::from(names.checkpoint().is_root());
        Ok(Self { all, own, names, stores, privileged: rustix::process::geteuid().is_root(), node })
    }

    pub(crate) fn all(&self) -> &[Root] {
        &self.all
    }

    pub(crate) fn primary(&self) -> &Root {
        &self.all[PRIMARY]
    }

    pub(crate) fn paths(&self) -> Vec<&Path> {
        self.all.iter().map(|root| root.path.as_path()).collect()
    }

    pub(crate) fn is_one(&self) -> bool {
        self.all.len() < 2
    }

    /// Runs as root.
    pub(crate) fn privileged(&self) -> bool {
        self.privileged
    }

    pub(crate) fn stores(&self) -> &Stores {
        &self.stores
    }

    /// Where `name` of the checkpoint path is.
    fn with(&self, name: &[u8]) -> Option<usize> {
        self.all.iter().position(|root| root.has(name))
    }

    /// The checkpoint path's attributes, over all trees.
    pub(crate) fn widen(&self, stat: &mut Stat) {
        for root in self.all.iter().skip(1) {
            let Ok(other) = stat_of(&root.checkpoint) else { continue };
            // A file system that does not count directories has 1.
            stat.st_nlink = match (stat.st_nlink, other.st_nlink) {
                (1, _) | (_, 1) => 1,
                (one, other) => one + other.saturating_sub(2 + self.own),
            };
            if (other.st_mtime, other.st_mtime_nsec) > (stat.st_mtime, stat.st_mtime_nsec) {
                (stat.st_mtime, stat.st_mtime_nsec) = (other.st_mtime, other.st_mtime_nsec);
            }
            if (other.st_ctime, other.st_ctime_nsec) > (stat.st_ctime, stat.st_ctime_nsec) {
                (stat.st_ctime, stat.st_ctime_nsec) = (other.st_ctime, other.st_ctime_nsec);
            }
        }
    }

    /// Opens `path` of the tree; no symlink on the way is followed, and none at its end unless
    /// `flags` allows it.
    pub(crate) fn open(&self, path: &RelPath, flags: OFlags) -> Result<OwnedFd, Errno> {
        self.open_in_store(path, flags).map(|(_, fd)| fd)
    }

    /// The same, with the store that it is in.
    pub(crate) fn open_in_store(&self, path: &RelPath, flags: OFlags) -> Result<(usize, OwnedFd), Errno> {
        match open_below(&self.primary().tree, path, flags) {
            Err(Errno(libc::ENOENT)) if self.may_be_elsewhere(path) => {}
            other => return other.map(|fd| (PRIMARY, fd)),
        }
        for (at, root) in self.all.iter().enumerate().skip(1) {
            match open_below(&root.tree, path, flags) {
                Err(Errno(libc::ENOENT)) => {}
                other => return other.map(|fd| (at, fd)),
            }
        }
        Err(Errno(libc::ENOENT))
    }

    fn may_be_elsewhere(&self, path: &RelPath) -> bool {
        !self.is_one() && path.strip(self.names.checkpoint()).is_some_and(|below| !below.is_root())
    }

    /// O_PATH descriptor of a directory of the tree.
    pub(crate) fn open_directory(&self, path: &RelPath) -> Result<OwnedFd, Errno> {
        self.open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW)
    }

    /// The directory that `path` is in, or would be made in, and its store.
    pub(crate) fn open_above(&self, path: &RelPath) -> Result<(usize, OwnedFd), Errno> {
        let (above, name) = path.split_last().ok_or(Errno(libc::EBUSY))?;
        if !self.is_one()
            && above == *self.names.checkpoint()
            && let Some(at) = self.with(name)
        {
            return Ok((at, self.all[at].checkpoint.try_clone()?));
        }
        self.open_in_store(&above, OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW)
    }

    /// Where the directory `path` is to be made: a dataset's in the store that it shall have.
    pub(crate) fn open_to_make(&self, path: &RelPath, mode: u32) -> Result<OwnedFd, Errno> {
        let is_new = |name: &[u8]| self.with(name).is_none();
        let at = match self.names.place(path) {
            Place::Entry(name) if !self.is_one() && mode & FLAT != FLAT && is_new(&name) => {
                self.stores.next()
            }
            _ => PRIMARY,
        };
        if at == PRIMARY {
            return self.open_above(path).map(|(_, directory)| directory);
        }
        if let Err(error) = self.all[at].liken(self.primary()) {
            let store = self.all[at].path.display().to_string();
            self.node
                .note(format!("{path}: is made in the first store, for {store} cannot take it: {error}"));
            return self.open_above(path).map(|(_, directory)| directory);
        }
        Ok(self.all[at].checkpoint.try_clone()?)
    }

    /// Where a directory at `from` gets the name `to`: its own store, if `to` may be in any.
    pub(crate) fn open_to_move(&self, (store, to): (usize, &RelPath)) -> Result<(usize, OwnedFd), Errno> {
        let above = to.split_last().map(|(above, _)| above);
        if !self.is_one() && above.as_ref() == Some(self.names.checkpoint()) {
            return Ok((store, self.all[store].checkpoint.try_clone()?));
        }
        self.open_above(to)
    }

    /// After a directory got the name `to` in `store`: the empty one that had it in another store
    /// goes.
    pub(crate) fn remove_replaced(&self, (store, to): (usize, &RelPath)) -> Result<(), Errno> {
        let Place::Entry(name) = self.names.place(to) else { return Ok(()) };
        for (at, root) in self.all.iter().enumerate() {
            if at != store && !self.is_one() && root.has(&name) {
                crate::faults::hit("rename.placed")?;
                self.as_owner(&root.checkpoint, || {
                    Ok(rustix::fs::unlinkat(&root.checkpoint, &*name, AtFlags::REMOVEDIR)?)
                })?;
            }
        }
        Ok(())
    }

    /// Of names that are in several stores the empty directories go, but for one. What a rename
    /// left that was interrupted is such a one; anything else is told.
    pub(crate) fn drop_doubles(&self) -> Result<(), Errno> {
        if self.is_one() {
            return Ok(());
        }
        for (at, root) in self.all.iter().enumerate().skip(1) {
            let directory = beneath::names(reopened(&root.checkpoint)?)?;
            for name in directory {
                let Ok(path) = self.names.dataset_path(&name) else { continue };
                if self.names.reserved(&path) {
                    continue;
                }
                let before = &self.all[..at];
                let empty =
                    |root: &Root| rustix::fs::unlinkat(&root.checkpoint, &*name, AtFlags::REMOVEDIR).is_ok();
                for other in before.iter().filter(|other| other.has(&name)) {
                    if !empty(other) && !empty(root) {
                        let (one, two) = (other.path.display(), root.path.display());
                        self.node.note(format!("{path} is in {one} and in {two}: the first is what is seen"));
                    }
                }
            }
        }
        Ok(())
    }

    /// Room of the file system in which what is at `place` is. Of the checkpoint path: of the store
    /// to which the next dataset goes.
    pub(crate) fn room(&self, place: Option<&Place>) -> Result<StatVfs, Errno> {
        let at = match place {
            _ if self.is_one() => PRIMARY,
            None | Some(Place::Outside) => PRIMARY,
            Some(Place::Top) => self.stores.next(),
            Some(Place::Entry(name) | Place::Inside { dataset: name, .. }) => {
                self.with(name).unwrap_or(PRIMARY)
            }
        };
        Ok(rustix::fs::fstatvfs(&self.all.get(at).unwrap_or(self.primary()).tree)?)
    }

    /// The directory of the checkpoint path in which `name` is, if that is not the primary's.
    pub(crate) fn checkpoint_with(&self, name: &[u8]) -> Option<Arc<OwnedFd>> {
        self.with(name).map(|at| Arc::clone(&self.all[at].checkpoint))
    }

    /// Trees beside the primary's, of which each has names of the checkpoint path.
    pub(crate) fn others(&self) -> &[Root] {
        &self.all[PRIMARY + 1..]
    }

    /// Trees beside the primary's in which names of directory `path` are.
    pub(crate) fn others_at(&self, path: &RelPath) -> &[Root] {
        if !self.is_one() && path == self.names.checkpoint() { &self.all[1..] } else { &[] }
    }

    /// A regular file on the file system of each store, to try passthrough with.
    pub(crate) fn probe_files(&self) -> Result<Vec<OwnedFd>, Errno> {
        let probe = |root: &Root| {
            let dir = root.path.parent().unwrap_or(&root.path);
            let path = dir.join(format!(".probe.{}", std::process::id()));
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
            let fd = rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR)?;
            rustix::fs::unlink(&path)?;
            Ok(fd)
        };
        self.all.iter().map(probe).collect()
    }
}

fn reopened(directory: &OwnedFd) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(directory, ".", flags, Mode::empty())?)
}

//! The backing trees of a mount over several stores, seen as one.
//!
//! Each store has a tree with the checkpoint path in it; all else is in the primary's alone. A name
//! of the checkpoint path is in one tree: a dataset's directory in any, what is no directory in the
//! primary's. Which one nobody records: it is looked for, in the primary's first. A mount over one
//! store asks nobody anything.
//!
//! Where a rename takes the place of an empty directory in another store, that one is removed after
//! the rename; if a worker dies in between, its successor removes it before it does anything else
//! ([`FileSystem::drop_doubles`]).
//!
//! Fault point: `rename.placed`, between the two.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, Gid, Mode, OFlags, ResolveFlags, Stat, Uid};

use crate::dataset::FLAT;
use crate::errno::Errno;
use crate::fs::attr::{key_of, stat_of};
use crate::fs::inodes::Backing;
use crate::fs::view::Place;
use crate::fs::{FileSystem, proc_path};
use crate::path::RelPath;
use crate::store::beneath;
use crate::stores::{PRIMARY, Stores};

/// Whom directories that are made in the checkpoint path let in beside what their modes say.
const DEFAULT_ACL: &str = "system.posix_acl_default";
/// Longest value of that.
const ACL_MAX: usize = 1 << 16;

/// One store's tree.
#[derive(Debug)]
pub(crate) struct Root {
    /// Opened with O_PATH.
    pub(crate) tree: Arc<OwnedFd>,
    pub(crate) path: PathBuf,
    /// The checkpoint path in it.
    checkpoint: Arc<OwnedFd>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Roots {
    all: Vec<Root>,
    /// Directories of the checkpoint path that are in each tree.
    own: u64,
    pub(crate) stores: Arc<Stores>,
}

impl Root {
    fn open(path: &Path, checkpoint: &RelPath) -> Result<Self, Errno> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let tree = rustix::fs::open(path, flags, Mode::empty())?;
        make_below(&tree, checkpoint)?;
        let checkpoint = open_below(&tree, checkpoint, flags)?;
        Ok(Self { tree: Arc::new(tree), path: path.to_owned(), checkpoint: Arc::new(checkpoint) })
    }

    pub(crate) fn backing(&self) -> Result<Backing, Errno> {
        Ok(Backing { fd: Arc::clone(&self.tree), key: key_of(&stat_of(&self.tree)?) })
    }

    /// Opens a directory of this tree for reading.
    pub(crate) fn read(&self, path: &RelPath) -> Result<OwnedFd, Errno> {
        open_below(&self.tree, path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW)
    }

    fn has(&self, name: &[u8]) -> bool {
        rustix::fs::statat(&self.checkpoint, name, AtFlags::SYMLINK_NOFOLLOW).is_ok()
    }
}

impl Roots {
    /// Opens the trees at `paths`, of which there is one for each of `stores`.
    pub(crate) fn open(paths: &[PathBuf], checkpoint: &RelPath, stores: Arc<Stores>) -> Result<Self, Errno> {
        let all = paths.iter().map(|path| Root::open(path, checkpoint)).collect::<Result<Vec<_>, _>>()?;
        // What is to be deleted has one at the root.
        let own = u64::from(checkpoint.is_root());
        Ok(Self { all, own, stores })
    }

    pub(crate) fn all(&self) -> &[Root] {
        &self.all
    }

    pub(crate) fn is_one(&self) -> bool {
        self.all.len() < 2
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

    /// Gives the checkpoint path in a store the owner, mode and default ACL that it has in the
    /// primary, for that is what programs see and what decides about what they make.
    fn liken(&self, at: usize) -> Result<(), Errno> {
        let (model, other) = (&self.all[PRIMARY].checkpoint, &self.all[at].checkpoint);
        let (wanted, has) = (stat_of(model)?, stat_of(other)?);
        if (wanted.st_uid, wanted.st_gid) != (has.st_uid, has.st_gid) {
            let (uid, gid) = (Uid::from_raw(wanted.st_uid), Gid::from_raw(wanted.st_gid));
            rustix::fs::chownat(other, "", Some(uid), Some(gid), AtFlags::EMPTY_PATH)?;
        }
        if wanted.st_mode & 0o7777 != stat_of(other)?.st_mode & 0o7777 {
            super::rights::change_mode(other, wanted.st_mode & 0o7777, rustix::process::geteuid().is_root())?;
        }
        let (model, other) = (proc_path(model), proc_path(other));
        let (wanted, has) = (acl(&model), acl(&other));
        if wanted == has {
            return Ok(());
        }
        Ok(match wanted {
            Some(acl) => rustix::fs::setxattr(other, DEFAULT_ACL, &acl, rustix::fs::XattrFlags::empty()),
            None => rustix::fs::removexattr(other, DEFAULT_ACL),
        }?)
    }
}

/// Makes the directories of `path` that are missing in `tree`. They belong to the owner of the
/// tree, the job's user.
fn make_below(tree: &OwnedFd, path: &RelPath) -> Result<(), Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let owner = stat_of(tree)?;
    let mut above = tree.try_clone()?;
    for name in path.names() {
        let is_new = match rustix::fs::mkdirat(&above, name, Mode::from_raw_mode(0o755)) {
            Err(rustix::io::Errno::EXIST) => false,
            other => other.map(|()| true)?,
        };
        let directory = rustix::fs::openat(&above, name, flags, Mode::empty())?;
        if is_new && rustix::process::geteuid().is_root() {
            let (uid, gid) = (Uid::from_raw(owner.st_uid), Gid::from_raw(owner.st_gid));
            rustix::fs::chownat(&directory, "", Some(uid), Some(gid), AtFlags::EMPTY_PATH)?;
        }
        above = directory;
    }
    Ok(())
}

/// `None` where there is none, or where there can be none.
fn acl(path: &str) -> Option<Vec<u8>> {
    let mut bytes = vec![0; ACL_MAX];
    let length = rustix::fs::getxattr(path, DEFAULT_ACL, &mut bytes[..]).ok()?;
    bytes.truncate(length);
    Some(bytes)
}

/// Opens `path` below `root`; no symlink on the way is followed, and none at its end unless `flags`
/// allows it.
fn open_below(root: &OwnedFd, path: &RelPath, flags: OFlags) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let flags = flags | OFlags::CLOEXEC;
    match rustix::fs::openat2(root, path.as_path(), flags, Mode::empty(), resolve) {
        Ok(fd) => Ok(fd),
        // A symlink itself may be opened with O_PATH, and openat2 refuses it: go by its directory.
        Err(rustix::io::Errno::LOOP) if flags.contains(OFlags::PATH | OFlags::NOFOLLOW) => {
            let (dir, name) = path.split_last().ok_or(Errno(libc::ELOOP))?;
            let above = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let dir = rustix::fs::openat2(root, dir.as_path(), above, Mode::empty(), resolve)?;
            Ok(rustix::fs::openat(dir, name, flags, Mode::empty())?)
        }
        Err(error) => Err(error.into()),
    }
}

impl FileSystem {
    /// Opens `path` of the tree; no symlink on the way is followed, and none at its end unless
    /// `flags` allows it.
    pub(crate) fn open_in_tree(&self, path: &RelPath, flags: OFlags) -> Result<OwnedFd, Errno> {
        self.open_in_store(path, flags).map(|(_, fd)| fd)
    }

    /// The same, with the store that it is in.
    pub(crate) fn open_in_store(&self, path: &RelPath, flags: OFlags) -> Result<(usize, OwnedFd), Errno> {
        match open_below(&self.root, path, flags) {
            Err(Errno(libc::ENOENT)) if self.may_be_elsewhere(path) => {}
            other => return other.map(|fd| (PRIMARY, fd)),
        }
        for (at, root) in self.roots.all().iter().enumerate().skip(1) {
            match open_below(&root.tree, path, flags) {
                Err(Errno(libc::ENOENT)) => {}
                other => return other.map(|fd| (at, fd)),
            }
        }
        Err(Errno(libc::ENOENT))
    }

    fn may_be_elsewhere(&self, path: &RelPath) -> bool {
        !self.roots.is_one() && path.strip(self.names.checkpoint()).is_some_and(|below| !below.is_root())
    }

    /// O_PATH descriptor of a directory of the tree.
    pub(crate) fn open_directory(&self, path: &RelPath) -> Result<OwnedFd, Errno> {
        self.open_in_tree(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW)
    }

    /// The directory that `path` is in, or would be made in, and its store.
    pub(crate) fn open_above(&self, path: &RelPath) -> Result<(usize, OwnedFd), Errno> {
        let (above, name) = path.split_last().ok_or(Errno(libc::EBUSY))?;
        if !self.roots.is_one()
            && above == *self.names.checkpoint()
            && let Some(at) = self.roots.with(name)
        {
            return Ok((at, self.roots.all()[at].checkpoint.try_clone()?));
        }
        self.open_in_store(&above, OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW)
    }

    /// The backing directory in which `name` of inode `parent` is, or would be made.
    pub(crate) fn directory_of(&self, parent: u64, name: &[u8]) -> Result<Arc<OwnedFd>, Errno> {
        let directory = self.table.get(parent)?.fd()?;
        if self.roots.is_one() || !self.is_checkpoint(parent) {
            return Ok(directory);
        }
        Ok(self.roots.with(name).map_or(directory, |at| Arc::clone(&self.roots.all()[at].checkpoint)))
    }

    fn is_checkpoint(&self, inode: u64) -> bool {
        self.table.find(self.names.checkpoint()) == Some(inode)
    }

    /// Backing directories beside its own in which names of inode `id` are.
    pub(crate) fn other_directories(&self, id: u64) -> &[Root] {
        if !self.roots.is_one() && self.is_checkpoint(id) { &self.roots.all()[1..] } else { &[] }
    }

    /// The same for a path.
    pub(crate) fn other_directories_at(&self, path: &RelPath) -> &[Root] {
        if !self.roots.is_one() && path == self.names.checkpoint() { &self.roots.all()[1..] } else { &[] }
    }

    /// The tree of the store that an inode is in; `None` for the primary's.
    pub(crate) fn store_of(&self, id: u64) -> Option<&OwnedFd> {
        if self.roots.is_one() {
            return None;
        }
        let at = match self.place_of(id)?.1 {
            Place::Outside => PRIMARY,
            Place::Top => self.roots.stores.next(),
            Place::Entry(name) | Place::Inside { dataset: name, .. } => self.roots.with(&name)?,
        };
        Some(&self.roots.all().get(at)?.tree)
    }

    /// Where the directory `path` is to be made: a dataset's in the store that it shall have.
    pub(crate) fn open_to_make(&self, path: &RelPath, mode: u32) -> Result<OwnedFd, Errno> {
        let is_new = |name: &[u8]| self.roots.with(name).is_none();
        let at = match self.names.place(path) {
            Place::Entry(name) if !self.roots.is_one() && mode & FLAT != FLAT && is_new(&name) => {
                self.roots.stores.next()
            }
            _ => PRIMARY,
        };
        if at == PRIMARY {
            return self.open_above(path).map(|(_, directory)| directory);
        }
        if let Err(error) = self.roots.liken(at) {
            let store = self.roots.all()[at].path.display().to_string();
            self.node
                .note(format!("{path}: is made in the first store, for {store} cannot take it: {error}"));
            return self.open_above(path).map(|(_, directory)| directory);
        }
        Ok(self.roots.all()[at].checkpoint.try_clone()?)
    }

    /// Where a directory at `from` gets the name `to`: its own store, if `to` may be in any.
    pub(crate) fn open_to_move(&self, (store, to): (usize, &RelPath)) -> Result<(usize, OwnedFd), Errno> {
        let above = to.split_last().map(|(above, _)| above);
        if !self.roots.is_one() && above.as_ref() == Some(self.names.checkpoint()) {
            return Ok((store, self.roots.all()[store].checkpoint.try_clone()?));
        }
        self.open_above(to)
    }

    /// After a directory got the name `to` in `store`: the empty one that had it in another store
    /// goes.
    pub(crate) fn remove_replaced(&self, (store, to): (usize, &RelPath)) -> Result<(), Errno> {
        let Place::Entry(name) = self.names.place(to) else { return Ok(()) };
        for (at, root) in self.roots.all().iter().enumerate() {
            if at != store && !self.roots.is_one() && root.has(&name) {
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
        if self.roots.is_one() {
            return Ok(());
        }
        for (at, root) in self.roots.all().iter().enumerate().skip(1) {
            let directory = beneath::names(reopened(&root.checkpoint)?)?;
            for name in directory {
                let Ok(path) = self.names.dataset_path(&name) else { continue };
                if self.names.reserved(&path) {
                    continue;
                }
                let before = &self.roots.all()[..at];
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
}

impl Root {
    /// Opened for reading.
    pub(crate) fn read_checkpoint(&self, quiet: bool) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let flags = if quiet { flags | OFlags::NOATIME } else { flags };
        Ok(rustix::fs::openat(&self.checkpoint, ".", flags, Mode::empty())?)
    }
}

fn reopened(directory: &OwnedFd) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(directory, ".", flags, Mode::empty())?)
}

//! One store's tree.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, Gid, Mode, OFlags, ResolveFlags, Uid};

use crate::errno::Errno;
use crate::fs::attr::{key_of, stat_of};
use crate::fs::inodes::Backing;
use crate::fs::proc_path;
use crate::path::RelPath;

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
    pub(super) checkpoint: Arc<OwnedFd>,
}

impl Root {
    pub(super) fn open(path: &Path, checkpoint: &RelPath) -> Result<Self, Errno> {
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

    pub(super) fn has(&self, name: &[u8]) -> bool {
        rustix::fs::statat(&self.checkpoint, name, AtFlags::SYMLINK_NOFOLLOW).is_ok()
    }

    /// Opened for reading.
    pub(crate) fn read_checkpoint(&self, quiet: bool) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let flags = if quiet { flags | OFlags::NOATIME } else { flags };
        Ok(rustix::fs::openat(&self.checkpoint, ".", flags, Mode::empty())?)
    }

    /// Gives the checkpoint path the owner, mode and default ACL that it has in the primary's tree,
    /// for that is what programs see and what decides about what they make.
    pub(super) fn liken(&self, primary: &Self) -> Result<(), Errno> {
        let (model, other) = (&primary.checkpoint, &self.checkpoint);
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
pub(super) fn open_below(root: &OwnedFd, path: &RelPath, flags: OFlags) -> Result<OwnedFd, Errno> {
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

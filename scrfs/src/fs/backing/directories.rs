//! Changes of the trees' directories.

use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags};

use super::trees::Trees;
use crate::caller::Caller;
use crate::errno::Errno;
use crate::fs::errno::fail;
use crate::path::RelPath;
use crate::store::beneath;

impl Trees {
    /// What cannot be made here is to be made nowhere. (Some file systems do not count inodes.)
    pub(crate) fn has_inode(&self, above: &OwnedFd) -> Result<(), Errno> {
        let counts = rustix::fs::fstatvfs(above)?;
        let free = if self.privileged { counts.f_ffree } else { counts.f_favail };
        if counts.f_files > 0 && free == 0 { fail(libc::ENOSPC) } else { Ok(()) }
    }

    /// Makes a directory with exactly this owner and mode.
    pub(crate) fn make_directory(&self, path: &RelPath, owner: Caller, mode: u32) -> Result<(), Errno> {
        let (_, name) = path.split_last().ok_or(Errno(libc::EEXIST))?;
        let above = self.open_to_make(path, mode)?;
        self.make_directory_in(&above, name, owner, mode).map(drop)
    }

    /// Makes `name` in `above`; a sgid bit of `above` is inherited.
    pub(crate) fn make_directory_in(
        &self,
        above: &OwnedFd,
        name: &[u8],
        owner: Caller,
        mode: u32,
    ) -> Result<OwnedFd, Errno> {
        let bits = Mode::from_raw_mode(mode & 0o1777);
        self.made_by(owner, 0, || rustix::fs::mkdirat(above, name, bits))?;
        let made = open_path(above, name)?;
        self.complete_mode(&made, mode)?;
        Ok(made)
    }

    /// Removes an empty directory; that it is not there is no error.
    pub(crate) fn remove_empty(&self, path: &RelPath) -> Result<(), Errno> {
        let (_, name) = path.split_last().ok_or(Errno(libc::EBUSY))?;
        let removed = self.open_above(path).and_then(|(_, dir)| {
            self.as_owner(&dir, || Ok(rustix::fs::unlinkat(&dir, name, AtFlags::REMOVEDIR)?))
        });
        match removed {
            Err(Errno(libc::ENOENT)) => Ok(()),
            outcome => outcome,
        }
    }

    /// The directories that a directory moves between, or two are exchanged in, and their store;
    /// EXDEV if there is not one store for both.
    pub(crate) fn open_both(
        &self,
        from: &RelPath,
        to: &RelPath,
        exchange: bool,
    ) -> Result<(usize, OwnedFd, OwnedFd), Errno> {
        let (store, from_dir) = self.open_above(from)?;
        let (other, to_dir) = if exchange { self.open_above(to)? } else { self.open_to_move((store, to))? };
        if store == other { Ok((store, from_dir, to_dir)) } else { fail(libc::EXDEV) }
    }

    /// Renames a directory, or exchanges two. False when a predecessor did that and nobody can tell
    /// any more where it was.
    pub(crate) fn rename_directory(
        &self,
        from: &RelPath,
        to: &RelPath,
        exchange: bool,
    ) -> Result<bool, Errno> {
        let ((_, from_name), (_, to_name)) =
            from.split_last().zip(to.split_last()).ok_or(Errno(libc::EBUSY))?;
        let (store, from_dir, to_dir) = match self.open_both(from, to, exchange) {
            Err(Errno(libc::EXDEV)) if !exchange && self.was_renamed(from, to) => return Ok(false),
            opened => opened?,
        };
        let flags = if exchange { RenameFlags::EXCHANGE } else { RenameFlags::empty() };
        match rustix::fs::renameat_with(&from_dir, from_name, &to_dir, to_name, flags) {
            Ok(()) if exchange => {}
            Ok(()) => self.remove_replaced((store, to))?,
            Err(rustix::io::Errno::NOENT) if !exchange && self.open_directory(to).is_ok() => {}
            Err(error) => return Err(error.into()),
        }
        Ok(true)
    }

    /// `from` has got the name `to`.
    fn was_renamed(&self, from: &RelPath, to: &RelPath) -> bool {
        matches!(self.open_directory(from), Err(Errno(libc::ENOENT))) && self.open_directory(to).is_ok()
    }

    /// Changes a directory of the backing tree whose modes may keep a daemon without privileges
    /// from it: what programs may, the kernel has decided by the modes that they see.
    pub(crate) fn as_owner<T>(
        &self,
        dir: &OwnedFd,
        change: impl Fn() -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        match change() {
            Err(Errno(libc::EACCES)) if !self.privileged => {
                let mode = beneath::open_up(dir)?;
                let changed = change();
                beneath::close_again(dir, mode)?;
                changed
            }
            outcome => outcome,
        }
    }

    /// Gives a file that was just made, with more bits than its maker asked for, those of `mode`.
    pub(crate) fn restrict(&self, made: &OwnedFd, mode: u32) -> Result<(), Errno> {
        if self.privileged || mode & 0o600 == 0o600 && mode & 0o7000 == 0 {
            return Ok(());
        }
        super::rights::change_mode(made, mode & 0o7777, false)
    }
}

/// A name of `dir`, to be looked at.
pub(crate) fn open_path(dir: &OwnedFd, name: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(dir, name, flags, Mode::empty())?)
}

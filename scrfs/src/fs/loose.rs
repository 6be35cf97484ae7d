//! Pointer files as the mount has them: loose files and symbolic links directly in the checkpoint
//! path, which the node brings to all other nodes when they are closed or their names change.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Stat, Timespec, Timestamps, Uid};

use super::attr::stat_of;
use super::caller::dying_by_signal;
use super::errno::fail;
use super::view::Place;
use super::wait::Done;
use super::{FileSystem, proc_path};
use crate::boundary::Look;
use crate::caller::Caller;
use crate::control::loose::{LooseEntry, LooseKind};
use crate::dataset::Stamp;
use crate::errno::Errno;
use crate::store::lease;
use crate::stores::PRIMARY;

impl FileSystem {
    /// `done`, after all other nodes have what these names (of directories and names in them) are
    /// by then. Only names directly in the checkpoint path count. `failed` takes what was done here
    /// if the others do not get it.
    pub(crate) fn after_loose<T: Send + 'static>(
        self: &Arc<Self>,
        caller: Caller,
        names: &[(u64, &[u8])],
        failed: impl FnOnce(&Self, T) + Send + 'static,
        done: Done<T>,
    ) -> Done<T> {
        let loose =
            |(parent, name): &(u64, &[u8])| match self.view.place(&self.table.path_in(*parent, name).ok()?) {
                Place::Entry(loose) if !self.is_flat_name(*parent, name) => Some(loose),
                _ => None,
            };
        let names: Vec<Vec<u8>> = names.iter().filter_map(loose).collect();
        if names.is_empty() {
            return done;
        }
        let fs = Arc::clone(self);
        Box::new(move |outcome| match (outcome, fs.node.get()) {
            (Ok(value), Ok(requests)) => {
                let after = Arc::clone(&fs);
                let answer = move |all: Result<(), Errno>| match all {
                    Ok(()) => done(Ok(value)),
                    Err(error) => {
                        failed(&after, value);
                        done(Err(error));
                    }
                };
                requests.loose(names, caller, Box::new(answer));
            }
            (outcome, _) => done(outcome),
        })
    }

    /// A descriptor of a writable handle of loose file `name` was closed. What a process that dies
    /// by a signal leaves is not its last word, nor is what it closes while it has another
    /// descriptor for writing (`echo > latest` does).
    pub(crate) fn loose_closed(&self, name: Vec<u8>, nodeid: u64, caller: Caller, done: Done<()>) {
        if self.processes.sought(nodeid, &name).is_written_by(caller) || dying_by_signal(caller) {
            return done(Ok(()));
        }
        match self.node.get() {
            Ok(requests) => requests.loose(vec![name], caller, done),
            Err(_) => done(Ok(())),
        }
    }

    /// Regular files and symbolic links directly in the checkpoint path.
    pub(crate) fn list_loose(&self) -> Result<Vec<Vec<u8>>, Errno> {
        let (world, rules) = (self.view.world(), self.view.rules());
        let mut found = Vec::new();
        for (path, kind) in self.trees.names_below(self.view.names().checkpoint())? {
            if matches!(kind, FileType::RegularFile | FileType::Symlink)
                && let Place::Entry(name) = self.view.place(&path)
                && world.named(&name).is_none()
                && !matches!(rules.flat(&name), Some(Ok(_)))
            {
                found.push(name);
            }
        }
        Ok(found)
    }

    /// What a loose name is now. Files of more than `max` bytes are no pointers.
    pub(crate) fn look_loose(&self, name: &[u8], max: u64) -> Result<Look, Errno> {
        let world = self.view.world();
        if world.named(name).is_some() || matches!(self.view.rules().flat(name), Some(Ok(_))) {
            return Ok(Look::Dataset);
        }
        let path = self.view.names().dataset_path(name)?;
        let fd = match self.trees.open(&path, OFlags::PATH | OFlags::NOFOLLOW) {
            Ok(fd) => fd,
            Err(Errno(libc::ENOENT)) => return Ok(Look::Pointer(LooseEntry::gone(name.to_vec()))),
            Err(error) => return Err(error),
        };
        let stat = stat_of(&fd)?;
        let kind = match FileType::from_raw_mode(stat.st_mode) {
            FileType::Symlink => {
                LooseKind::Symlink(rustix::fs::readlinkat(&fd, "", Vec::new())?.into_bytes())
            }
            // What is too large is not read to find that out.
            FileType::RegularFile if is_beyond(&stat, max) => return Ok(Look::Stays),
            FileType::RegularFile => LooseKind::File { size: 0, crc: 0 },
            FileType::Directory => return Ok(Look::Dataset),
            _ => return Ok(Look::Stays),
        };
        let mut entry = entry_of(name, kind, &stat);
        if let LooseKind::File { size, crc } = &mut entry.kind {
            let mut bytes = Vec::new();
            let quiet = if self.trees.privileged() { OFlags::NOATIME } else { OFlags::empty() };
            let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | quiet;
            let file = File::from(rustix::fs::open(proc_path(&fd), flags, Mode::empty())?);
            file.take(max.saturating_add(1)).read_to_end(&mut bytes)?;
            if bytes.len() as u64 > max {
                return Ok(Look::Stays);
            }
            (*size, *crc) = (bytes.len() as u64, crc32fast::hash(&bytes));
            entry.bytes = bytes;
        }
        Ok(Look::Pointer(entry))
    }

    /// Makes a loose name what another node made it, in one step. False when somebody may write it
    /// here, its name is about to change, or what is there stays on this node.
    pub(crate) fn put_loose(&self, entry: &LooseEntry, max: u64) -> Result<bool, Errno> {
        let fresh = self.make_aside(entry)?;
        let placed = self.swap_in(entry, fresh.as_ref(), max);
        if let Some((aside, name)) = &fresh
            && !matches!(placed, Ok(true))
        {
            let _ = rustix::fs::unlinkat(aside, name, AtFlags::empty());
        }
        placed
    }

    fn swap_in(
        &self,
        entry: &LooseEntry,
        fresh: Option<&(OwnedFd, String)>,
        max: u64,
    ) -> Result<bool, Errno> {
        let path = self.view.names().dataset_path(&entry.name)?;
        let world = self.view.change();
        if world.held(&path) {
            return Ok(false);
        }
        if world.base(&Place::Entry(entry.name.clone())).is_some() {
            return fail(libc::EISDIR);
        }
        match self.trees.open(&path, OFlags::PATH | OFlags::NOFOLLOW) {
            Ok(there) => {
                let stat = stat_of(&there)?;
                match FileType::from_raw_mode(stat.st_mode) {
                    FileType::Directory => return fail(libc::EISDIR),
                    // These bytes are nowhere else.
                    FileType::RegularFile if is_beyond(&stat, max) => return Ok(false),
                    FileType::RegularFile if self.is_written(&path, &there)? => return Ok(false),
                    FileType::RegularFile | FileType::Symlink => {}
                    _ => return Ok(false),
                }
            }
            Err(Errno(libc::ENOENT)) => {}
            Err(error) => return Err(error),
        }
        let (above, name) = path.split_last().ok_or(Errno(libc::EBUSY))?;
        let dir = self.trees.open_directory(&above)?;
        match fresh {
            Some((aside, made)) => rustix::fs::renameat(aside, made.as_str(), &dir, name)?,
            None => match rustix::fs::unlinkat(&dir, name, AtFlags::empty()) {
                Ok(()) | Err(rustix::io::Errno::NOENT) => {}
                Err(error) => return Err(error.into()),
            },
        }
        self.table.cut_path(&path);
        drop(world);
        self.changed();
        Ok(true)
    }

    /// Some process here can write it: by a handle or by a mapping.
    fn is_written(&self, path: &crate::path::RelPath, there: &OwnedFd) -> Result<bool, Errno> {
        let id = self.table.find(path);
        let open = |handle: &Arc<super::Handle>| handle.writable() && Some(handle.inode.id) == id;
        if self.files.all().iter().any(open) {
            return Ok(true);
        }
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let read = match rustix::fs::open(proc_path(there), flags, Mode::empty()) {
            Ok(read) => read,
            // Its mode keeps a daemon without privileges out: the handles must do.
            Err(rustix::io::Errno::ACCESS) => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        match lease::has_writer(read.as_fd()) {
            Err(error) if error.raw_os_error() == Some(libc::EACCES) => Ok(false),
            other => Ok(other?),
        }
    }

    /// Makes it where no program sees it; `None` for a name that is gone.
    fn make_aside(&self, entry: &LooseEntry) -> Result<Option<(OwnedFd, String)>, Errno> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let aside = self.removals.aside(PRIMARY)?.try_clone_to_owned()?;
        let name = format!("loose.{}.{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let made = match &entry.kind {
            LooseKind::Gone => return Ok(None),
            LooseKind::Symlink(target) => {
                rustix::fs::symlinkat(target.as_slice(), &aside, &name).map_err(Errno::from)
            }
            LooseKind::File { .. } => write_file(&aside, &name, &entry.bytes),
        };
        let made = made.and_then(|()| {
            let open = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let file = rustix::fs::openat(&aside, &name, open, Mode::empty())?;
            self.dress(&file, entry)
        });
        if let Err(error) = made {
            let _ = rustix::fs::unlinkat(&aside, &name, AtFlags::empty());
            return Err(error);
        }
        Ok(Some((aside, name)))
    }

    /// Owner, mode and times.
    fn dress(&self, file: &OwnedFd, entry: &LooseEntry) -> Result<(), Errno> {
        if self.trees.privileged() {
            let (uid, gid) = (Uid::from_raw(entry.uid), Gid::from_raw(entry.gid));
            rustix::fs::chownat(file, "", Some(uid), Some(gid), AtFlags::EMPTY_PATH)?;
        }
        if matches!(entry.kind, LooseKind::File { .. }) {
            super::backing::change_mode(file, entry.mode & 0o7777, self.trees.privileged())?;
            let of =
                |stamp: Stamp| Timespec { tv_sec: stamp.secs, tv_nsec: stamp.nsecs.min(999_999_999).into() };
            let times = Timestamps { last_access: of(entry.atime), last_modification: of(entry.mtime) };
            rustix::fs::utimensat(rustix::fs::CWD, proc_path(file), &times, AtFlags::empty())?;
        }
        Ok(())
    }
}

/// More bytes than a pointer may have.
fn is_beyond(stat: &Stat, max: u64) -> bool {
    u64::try_from(stat.st_size).is_ok_and(|size| size > max)
}

fn write_file(aside: &OwnedFd, name: &str, bytes: &[u8]) -> Result<(), Errno> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let mut file = File::from(rustix::fs::openat(aside, name, flags, Mode::RUSR | Mode::WUSR)?);
    Ok(file.write_all(bytes)?)
}

fn entry_of(name: &[u8], kind: LooseKind, stat: &Stat) -> LooseEntry {
    let [atime, mtime, _] = Stamp::times_of(stat);
    LooseEntry {
        name: name.to_vec(),
        kind,
        mode: stat.st_mode & 0o7777,
        uid: stat.st_uid,
        gid: stat.st_gid,
        atime,
        mtime,
        bytes: Vec::new(),
    }
}

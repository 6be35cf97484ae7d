//! Changing attributes; extended attributes; room.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{
    AtFlags, CWD, Gid, Mode, OFlags, StatVfs, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, Uid, XattrFlags,
};

use super::attr::{Attr, Changes, SetTime, now};
use super::data::MARKER_BYTES_MAX;
use super::errno::{Stop, fail};
use super::inodes::{Inode, is_eye};
use super::view::{Place, World};
use super::wait::Done;
use super::{FileSystem, proc_path};
use crate::caller::Caller;
use crate::dataset::FLAT;
use crate::errno::Errno;
use crate::keep::decide::{Intent, Now};

/// The kernel's own bound on a value and on a list of names (XATTR_SIZE_MAX).
const XATTR_BYTES_MAX: u32 = 65536;

/// Extended attributes that tell what the daemon knows of a file or dataset. They are not on the
/// backing file, and not listed: what copies attributes must not try to set them elsewhere.
const OURS: &[u8] = b"user.scrfs.";

/// What is told of an extended attribute, or of all their names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// How long it is.
    Length(usize),
    /// It.
    Bytes(Vec<u8>),
}

impl Value {
    fn of(bytes: Vec<u8>, room: u32) -> Self {
        if room == 0 { Self::Length(bytes.len()) } else { Self::Bytes(bytes) }
    }
}

impl FileSystem {
    /// chmod, chown, truncate, utimensat: whatever of it is asked for at once.
    pub fn setattr(
        self: &Arc<Self>,
        caller: Caller,
        id: u64,
        changes: Changes,
        done: Done<(Attr, Duration)>,
    ) {
        if is_eye(id) {
            return done(self.eyes.set_attr(id, &changes).map(|attr| (attr, Duration::ZERO)));
        }
        let fs = Arc::clone(self);
        let finish = move |changed: Result<(), Errno>| done(changed.and_then(|()| fs.getattr(id)));
        let since = self.table.moment();
        let step = move |fs: &Self, world: &World| {
            // A handle is of the file that was opened.
            if changes.handle.is_none() {
                fs.table.check(id, since)?;
            }
            fs.setattr_now(world, caller, id, &changes)
        };
        self.attempt(caller, step, Box::new(finish));
    }

    fn setattr_now(&self, world: &World, caller: Caller, id: u64, changes: &Changes) -> Result<(), Stop> {
        let inode = self.table.get(id)?;
        let _change = if changes.size.is_some() { self.gate_of_owned(world, id) } else { None };
        let place = self.place_of(id);
        let nothing = *changes == Changes { handle: changes.handle, ..Changes::default() };
        if let Some((path, place)) = &place {
            // What the kernel wants before a write, it wants with the writer's lock.
            if !nothing && !changes.handle.is_some_and(|fh| self.files.is_waited_for(fh)) {
                let written = || inode.key().is_some_and(|key| self.files.has_writer_to_wait_for(key));
                match changes.size {
                    Some(_) => world.may_resize(path, place, written)?,
                    // As long as the seal waits for writers they go on: the kernel holds a lock
                    // here that one of them may need, and what a file is like is asked afterwards.
                    None => world.may_describe(place, || true)?,
                }
            }
            if matches!(place, Place::Entry(_)) && self.view.has_pattern() && marks(&inode, changes)? {
                return fail(libc::EPERM);
            }
            if world.open(place).is_some() && !place.is_marker() {
                self.ready_to_set(world, (path, place), &inode, changes, caller)?;
            }
            if let Some(sealed) = world.sealed(place) {
                let written = place.is_marker() && inode.backing().is_some();
                if changes.size.is_none() && !written {
                    return Ok(sealed.change(&place.inner(), changes, now())?);
                }
                if !place.is_marker() {
                    world.need_open(place)?;
                }
                if !written {
                    self.write_marker(sealed, &inode)?;
                }
            }
            if place.is_marker() && changes.size.is_some_and(|size| size > MARKER_BYTES_MAX) {
                return fail(libc::EFBIG);
            }
        }
        if place.is_none() && changes.size.is_some() {
            let by_name = changes.handle.is_none();
            Self::own_nameless(world, &inode, if by_name { libc::ESTALE } else { libc::EROFS })?;
        }
        let fd = inode.fd()?;
        if let Some(size) = changes.size {
            self.trees.changed_by(caller, &fd, || self.truncate(&inode, changes.handle, size))?;
        }
        if changes.uid.is_some() || changes.gid.is_some() || nothing {
            // Without ids it is a chown(2) of -1 and -1, or the kernel's wish that suid and sgid
            // bits go.
            let (uid, gid) = (changes.uid.map(Uid::from_raw), changes.gid.map(Gid::from_raw));
            let chown = || Ok(rustix::fs::chownat(&fd, "", uid, gid, AtFlags::EMPTY_PATH)?);
            if !nothing || self.trees.may_clear(caller, &fd)? {
                self.trees.changed_by(caller, &fd, chown)?;
            }
        }
        if let Some(mode) = changes.mode {
            super::backing::change_mode(&fd, mode & 0o7777, self.trees.privileged())?;
        }
        if changes.atime.is_some() || changes.mtime.is_some() {
            let times = Timestamps {
                last_access: timespec(changes.atime),
                last_modification: timespec(changes.mtime),
            };
            rustix::fs::utimensat(CWD, proc_path(&fd), &times, AtFlags::empty())?;
        }
        Ok(())
    }

    /// A change of attributes is one of the next generation; it leaves the bytes shared.
    fn ready_to_set(
        &self,
        world: &World,
        (path, place): (&crate::path::RelPath, &Place),
        inode: &Inode,
        changes: &Changes,
        caller: Caller,
    ) -> Result<(), Stop> {
        if let Some(size) = changes.size {
            return self.own(world, (path, place), inode, caller, size == 0);
        }
        let Some(open) = world.open(place) else { return Ok(()) };
        self.here(world, path, place, inode)?;
        let kind = rustix::fs::FileType::from_raw_mode(super::attr::stat_of(inode.fd()?)?.st_mode);
        if kind == rustix::fs::FileType::RegularFile {
            self.changes(open, place.inner(), caller)?;
        }
        Ok(())
    }

    /// ftruncate(2) always sets the times, truncate(2) only when the size changes.
    fn truncate(&self, inode: &Inode, handle: Option<u64>, size: u64) -> Result<(), Errno> {
        let fd = inode.fd()?;
        let Some(handle) = handle.and_then(|fh| self.files.get(fh).ok()) else {
            let size = i64::try_from(size).map_err(|_| Errno(libc::EFBIG))?;
            return nix::unistd::truncate(&*proc_path(&fd), size).map_err(|error| Errno(error as i32));
        };
        // A handle may write where the mode no longer lets its owner open.
        if let Some(file) = handle.file.as_ref().filter(|_| handle.writable()) {
            return Ok(rustix::fs::ftruncate(file, size)?);
        }
        let file = rustix::fs::open(proc_path(&fd), OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(rustix::fs::ftruncate(&file, size)?)
    }

    /// Room of the file system in which inode `id` is, as far as programs may use it. Of the
    /// checkpoint path: of the store to which the next dataset goes.
    pub fn statfs(&self, id: u64) -> Result<StatVfs, Errno> {
        let room = self.trees.room(self.place_of(id).map(|(_, place)| place).as_ref())?;
        Ok(match self.node.get().ok() {
            Some(node) => node.room(room),
            None => room,
        })
    }

    /// An extended attribute's value, at most `room` bytes of it or ERANGE; its length alone when
    /// `room` is 0.
    pub fn getxattr(&self, id: u64, name: &[u8], room: u32) -> Result<Value, Errno> {
        if let Some(asked) = name.strip_prefix(OURS) {
            let value = self.told(id, asked)?.ok_or(Errno(libc::ENODATA))?.into_bytes();
            let fits = room == 0 || value.len() <= room as usize;
            return if fits { Ok(Value::of(value, room)) } else { fail(libc::ERANGE) };
        }
        let Some(fd) = self.xattr_file(id, name)? else { return fail(libc::ENODATA) };
        let most = if room == 0 { XATTR_BYTES_MAX } else { room.min(XATTR_BYTES_MAX) };
        let mut value = vec![0; most as usize];
        let length = rustix::fs::getxattr(proc_path(&fd), name, &mut value[..])?;
        if room == 0 {
            return Ok(Value::Length(length));
        }
        value.truncate(length);
        Ok(Value::Bytes(value))
    }

    /// Names of all extended attributes, each ended by a NUL; `room` as with
    /// [`FileSystem::getxattr`].
    pub fn listxattr(&self, caller: Caller, id: u64, room: u32) -> Result<Value, Errno> {
        let Some(fd) = self.xattr_file(id, b"user.")? else { return Ok(Value::of(Vec::new(), room)) };
        let mut names = vec![0_u8; XATTR_BYTES_MAX as usize];
        let length = rustix::fs::listxattr(proc_path(&fd), &mut names[..])?;
        names.truncate(length);
        let is = |name: &[u8], prefix: &str| name.starts_with(prefix.as_bytes());
        // What programs cannot use through the mount is not shown either; nor to all what is the
        // administrator's.
        let trusted = !names.split_inclusive(|&b| b == 0).any(|name| is(name, "trusted."))
            || super::backing::administers(caller);
        let shown = names
            .split_inclusive(|&b| b == 0)
            .filter(|name| !is(name, "system.") && (trusted || !is(name, "trusted.")));
        let names: Vec<u8> = shown.flatten().copied().collect();
        if room > 0 && names.len() > room as usize {
            return fail(libc::ERANGE);
        }
        Ok(Value::of(names, room))
    }

    /// Sets an extended attribute; `flags` are XATTR_CREATE and XATTR_REPLACE.
    pub fn setxattr(
        &self,
        caller: Caller,
        id: u64,
        name: &[u8],
        value: &[u8],
        flags: i32,
    ) -> Result<(), Errno> {
        self.may_set_xattr(id, name)?;
        let Some(fd) = self.xattr_file(id, name)? else { return fail(libc::EROFS) };
        let flags = XattrFlags::from_bits_retain(flags.cast_unsigned());
        if flags.contains(XattrFlags::CREATE) {
            let present = has_xattr(&fd, name);
            if self.intents.had_effect(caller.unique, || Ok(Now { present, ..Now::default() }))? {
                return Ok(());
            }
            if !present {
                self.intents.begin(caller.unique, Intent::SetAttribute);
            }
        }
        Ok(rustix::fs::setxattr(proc_path(&fd), name, value, flags)?)
    }

    /// Removes an extended attribute.
    pub fn removexattr(&self, caller: Caller, id: u64, name: &[u8]) -> Result<(), Errno> {
        self.may_set_xattr(id, name)?;
        let Some(fd) = self.xattr_file(id, name)? else { return fail(libc::EROFS) };
        let present = has_xattr(&fd, name);
        if self.intents.had_effect(caller.unique, || Ok(Now { present, ..Now::default() }))? {
            return Ok(());
        }
        if present {
            self.intents.begin(caller.unique, Intent::RemoveAttribute);
        }
        Ok(rustix::fs::removexattr(proc_path(&fd), name)?)
    }

    /// What `user.scrfs.<asked>` says of an inode; `None` where there is nothing to say.
    fn told(&self, id: u64, asked: &[u8]) -> Result<Option<String>, Errno> {
        let Some((_, place)) = self.place_of(id) else { return Ok(None) };
        let (Place::Inside { dataset, .. } | Place::Entry(dataset)) = &place else { return Ok(None) };
        let inner = place.inner();
        // A loose file is of no dataset.
        if inner.is_root() {
            let (found, _) = self.getattr(id)?;
            if found.kind != super::attr::Kind::Directory {
                return Ok(None);
            }
        }
        let facts = self.node.get()?.describe(dataset, &inner);
        Ok(facts.into_iter().find(|(name, _)| name.as_bytes() == asked).map(|(_, value)| value))
    }

    fn may_set_xattr(&self, id: u64, name: &[u8]) -> Result<(), Errno> {
        if name.starts_with(OURS) || is_eye(id) {
            return fail(libc::EPERM);
        }
        let world = self.view.world();
        match self.place_of(id) {
            // They are not sealed, so what the tree has may change; what is on another node is not
            // reached.
            Some((_, place)) if world.base(&place).is_some() && self.table.get(id)?.backing().is_none() => {
                fail(libc::EROFS)
            }
            _ => Ok(()),
        }
    }

    /// The file whose attributes these are; `None` when it is on another node, where its attributes
    /// stay. ACLs are refused: the kernel checks mode bits only, so they would not protect.
    fn xattr_file(&self, id: u64, name: &[u8]) -> Result<Option<Arc<OwnedFd>>, Errno> {
        if name.starts_with(b"system.") {
            return fail(libc::EOPNOTSUPP);
        }
        if is_eye(id) {
            return Ok(None);
        }
        let inode = self.table.get(id)?;
        Ok(inode.backing().map(|backing| backing.fd))
    }
}

fn has_xattr(fd: &OwnedFd, name: &[u8]) -> bool {
    let mut nothing: [u8; 0] = [];
    rustix::fs::getxattr(proc_path(fd), name, &mut nothing[..]).is_ok()
}

/// It would be taken for a flat dataset's directory.
fn marks(inode: &Inode, changes: &Changes) -> Result<bool, Errno> {
    if changes.mode.is_none_or(|mode| mode & FLAT != FLAT) {
        return Ok(false);
    }
    let mode = super::attr::stat_of(inode.fd()?)?.st_mode;
    Ok(rustix::fs::FileType::from_raw_mode(mode) == rustix::fs::FileType::Directory)
}

fn timespec(time: Option<SetTime>) -> Timespec {
    match time {
        None => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        Some(SetTime::Now) => Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
        Some(SetTime::At(at)) => Timespec { tv_sec: at.secs, tv_nsec: at.nsecs.into() },
    }
}

/// Gives a backing inode the owner, mode and times of `attr`.
pub(crate) fn give_all(fd: impl AsFd, attr: &Attr, privileged: bool) -> Result<(), Errno> {
    if privileged {
        let (uid, gid) = (Some(Uid::from_raw(attr.uid)), Some(Gid::from_raw(attr.gid)));
        rustix::fs::chownat(&fd, "", uid, gid, AtFlags::EMPTY_PATH)?;
    }
    super::backing::change_mode(&fd, attr.perm, privileged)?;
    let times = Timestamps {
        last_access: timespec(Some(SetTime::At(attr.atime))),
        last_modification: timespec(Some(SetTime::At(attr.mtime))),
    };
    Ok(rustix::fs::utimensat(CWD, proc_path(&fd), &times, AtFlags::empty())?)
}

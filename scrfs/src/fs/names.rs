//! Looking names up.

use std::collections::HashSet;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};

use super::FileSystem;
use super::attr::{Attr, Kind, key_of, stat_of};
use super::backing::Root;
use super::errno::{Stop, fail};
use super::inodes::{Backing, Inode, Key, is_eye};
use super::intent::key_at;
use super::view::{LOCAL, Lifetimes, Place, Sealed, World};
use super::wait::Done;
use crate::dataset::{self, EntryKind};
use crate::errno::Errno;
use crate::path::RelPath;

/// What [`FileSystem::let_unknown_go`] has seen.
#[derive(Debug, Default)]
pub struct Suspects {
    nameless: HashSet<u64>,
    unknown: HashSet<u64>,
}

/// A name that was found; the kernel's lookup of it is counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Attributes.
    pub attr: Attr,
    /// How long the kernel may keep the name.
    pub entry_ttl: Duration,
    /// How long the kernel may keep the attributes.
    pub attr_ttl: Duration,
    /// Another node may change what the name stands for.
    pub shared: bool,
}

impl Entry {
    fn new(attr: Attr, lifetimes: Lifetimes) -> Self {
        Self { attr, entry_ttl: lifetimes.entry, attr_ttl: lifetimes.attr, shared: lifetimes.shared }
    }
}

impl FileSystem {
    /// Looks `name` up and counts that.
    pub fn lookup(&self, parent: u64, name: &[u8]) -> Result<Entry, Errno> {
        if let Some(eye) = self.eyes.look_up(parent, name) {
            return eye;
        }
        let world = self.view.world();
        let spot = self.spot(&world, parent, name)?;
        let _still = self.table.look(spot.parent);
        self.lookup_in(&world, spot.parent, &spot.name)
    }

    /// The kernel gives back `count` lookups.
    pub fn forget(&self, id: u64, count: u64) {
        self.table.forget(id, count);
    }

    /// Lets go inodes that had no name at this call and at the two before it, and that the kernel
    /// knew neither at this call nor at the one before it. Then no answer that names such an inode
    /// is on its way, and no forget.
    ///
    /// A worker that was killed may have taken the kernel's word that it forgets an inode, and told
    /// nobody, or counted a lookup and not answered it. The bytes of a removed file would stay for
    /// as long as the mount.
    ///
    /// # Errors
    /// Of `knows`.
    pub fn let_unknown_go(
        &self,
        before: &mut Suspects,
        knows: impl Fn(u64) -> io::Result<bool>,
    ) -> io::Result<()> {
        let nameless = self.table.nameless();
        let mut unknown = HashSet::new();
        for &id in nameless.intersection(&before.nameless) {
            if knows(id)? {
                continue;
            }
            if before.unknown.contains(&id) {
                self.table.unknown(id);
            } else {
                unknown.insert(id);
            }
        }
        *before = Suspects { nameless, unknown };
        Ok(())
    }

    /// Looks up after a global operation, when the reply is due.
    pub(crate) fn lookup_for(&self, parent: u64, name: &[u8], done: Done<Entry>) {
        done(self.lookup(parent, name));
    }

    pub(crate) fn lookup_in(&self, world: &World, parent: u64, name: &[u8]) -> Result<Entry, Errno> {
        let path = self.table.path_in(parent, name)?;
        let place = self.view.place(&path);
        if self.view.names().reserved(&path) || self.hides(world, &place) {
            return fail(libc::ENOENT);
        }
        self.lookup_at(world, &place, parent, name)
    }

    /// The directory of a flat dataset too.
    pub(crate) fn lookup_hidden(&self, world: &World, parent: u64, name: &[u8]) -> Result<Entry, Errno> {
        let place = self.view.place(&self.table.path_in(parent, name)?);
        self.lookup_at(world, &place, parent, name)
    }

    fn lookup_at(&self, world: &World, place: &Place, parent: u64, name: &[u8]) -> Result<Entry, Errno> {
        if let Some(sealed) = world.sealed(place) {
            return self.lookup_sealed(sealed, place, parent, name);
        }
        if place.is_marker() {
            // Not sealed: there is no marker yet, whatever was written.
            return fail(libc::ENOENT);
        }
        if let Some(open) = world.open(place).filter(|_| matches!(place, Place::Inside { .. })) {
            return self.lookup_open(open, place, parent, name);
        }
        self.lookup_backed(place, parent, name)
    }

    /// Looks up in the backing directory.
    pub(crate) fn lookup_backed(&self, place: &Place, parent: u64, name: &[u8]) -> Result<Entry, Errno> {
        let dir = self.directory_of(parent, name)?;
        if self.table.known(parent, name).is_some() {
            let stat = rustix::fs::statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
            if let Some(inode) = self.table.enter_known(parent, name, key_of(&stat)) {
                return Ok(self.entry_of(place, &inode, &stat));
            }
        }
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = self.table.opening(|| Ok(rustix::fs::openat(&dir, name, flags, Mode::empty())?))?;
        let stat = stat_of(&fd)?;
        let inode = self.table.enter(parent, name, Backing { fd: Arc::new(fd), key: key_of(&stat) })?;
        Ok(self.entry_of(place, &inode, &stat))
    }

    fn lookup_sealed(
        &self,
        sealed: &Sealed,
        place: &Place,
        parent: u64,
        name: &[u8],
    ) -> Result<Entry, Errno> {
        let inner = place.inner();
        if place.is_marker() {
            if !sealed.shows_marker() {
                return fail(libc::ENOENT);
            }
            let inode = self.enter_marker(sealed, place, parent, name)?;
            let attr = marker_attr(sealed, &inner, &inode)?;
            return Ok(Entry { attr, entry_ttl: Duration::ZERO, attr_ttl: Duration::ZERO, shared: true });
        }
        let entry = sealed.entry(&inner).ok_or(Errno(libc::ENOENT))?;
        let inode = match self.still_in_tree(entry, parent, name) {
            Some(backing) => self.table.enter(parent, name, backing)?,
            None => self.table.enter_sealed(parent, name, sealed.mark(&place.inner()))?,
        };
        let attr = sealed.attr(inode.id, &inner).ok_or(Errno(libc::ENOENT))?;
        let lifetimes = Lifetimes::of_sealed(&attr, self.kernel.shared_ttl());
        Ok(Entry::new(attr, lifetimes))
    }

    /// What a sealed name that the kernel has forgotten stands for in the tree, if it is here: so
    /// it has its number again.
    fn still_in_tree(&self, entry: &dataset::Entry, parent: u64, name: &[u8]) -> Option<Backing> {
        if self.table.known(parent, name).is_some() {
            return None;
        }
        let dir = self.directory_of(parent, name).ok()?;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&dir, name, flags, Mode::empty()).ok()?;
        let stat = stat_of(&fd).ok()?;
        let same = match &entry.kind {
            EntryKind::File(copy) => u64::try_from(stat.st_size) == Ok(copy.size),
            EntryKind::Directory | EntryKind::Symlink(_) => true,
        };
        let same = same && Kind::of(FileType::from_raw_mode(stat.st_mode)) == Kind::of_entry(entry);
        same.then(|| Backing { fd: Arc::new(fd), key: key_of(&stat) })
    }

    /// The marker's inode: on its file when one was written here.
    fn enter_marker(
        &self,
        sealed: &Sealed,
        place: &Place,
        parent: u64,
        name: &[u8],
    ) -> Result<Arc<Inode>, Errno> {
        let written = self.table.get(parent)?.fd().ok().and_then(|dir| {
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let fd = rustix::fs::openat(&dir, name, flags, Mode::empty()).ok()?;
            let key = key_of(&stat_of(&fd).ok()?);
            Some(Backing { fd: Arc::new(fd), key })
        });
        match written {
            Some(backing) => {
                if let Some(id) = self.table.known(parent, name)
                    && let Ok(inode) = self.table.get(id)
                    && inode.backing().is_none()
                {
                    self.table.attach(&inode, backing.clone());
                }
                self.table.enter(parent, name, backing)
            }
            None => self.table.enter_sealed(parent, name, sealed.mark(&place.inner())),
        }
    }

    /// The backing directory in which `name` of inode `parent` is, or would be made.
    pub(crate) fn directory_of(&self, parent: u64, name: &[u8]) -> Result<Arc<OwnedFd>, Errno> {
        let directory = self.table.get(parent)?.fd()?;
        let checkpoint = if self.is_spread(parent) { self.trees.checkpoint_with(name) } else { None };
        Ok(checkpoint.unwrap_or(directory))
    }

    /// Inode `id` is the checkpoint path, and there are several stores.
    fn is_spread(&self, id: u64) -> bool {
        !self.trees.is_one() && self.table.find(self.view.names().checkpoint()) == Some(id)
    }

    /// Trees beside the primary's in which names of inode `id` are.
    pub(crate) fn other_directories(&self, id: u64) -> &[Root] {
        if self.is_spread(id) { self.trees.others() } else { &[] }
    }

    /// The inode's path and place; `None` when it has no name any more.
    pub(crate) fn place_of(&self, inode: u64) -> Option<(RelPath, Place)> {
        let path = self.table.path(inode)?;
        let place = self.view.place(&path);
        Some((path, place))
    }

    /// Attributes of an inode.
    pub fn getattr(&self, id: u64) -> Result<(Attr, Duration), Errno> {
        if is_eye(id) {
            return Ok((self.eyes.attr(id)?, LOCAL));
        }
        let inode = self.table.get(id)?;
        let world = self.view.world();
        if let Some((_, place)) = self.place_of(id) {
            if let Some(sealed) = world.sealed(&place) {
                let inner = place.inner();
                if place.is_marker() {
                    return Ok((marker_attr(sealed, &inner, &inode)?, Duration::ZERO));
                }
                let attr = sealed.attr(id, &inner).ok_or(Errno(libc::ENOENT))?;
                let lifetimes = Lifetimes::of_sealed(&attr, self.kernel.shared_ttl());
                return Ok((attr, lifetimes.attr));
            }
            let inner = place.inner();
            if let Some(open) = world.open(&place)
                && inode.backing().is_none()
                && open.file(&inner).is_some()
            {
                let attr = open.attr(id, &inner).ok_or(Errno(libc::ENOENT))?;
                return Ok((attr, self.kernel.shared_ttl()));
            }
            let entry = self.entry_of(&place, &inode, &stat_of(inode.fd()?)?);
            return Ok((entry.attr, entry.attr_ttl));
        }
        let entry = self.entry_of(&Place::Outside, &inode, &stat_of(inode.fd()?)?);
        Ok((entry.attr, entry.attr_ttl))
    }

    /// The target of a symbolic link.
    pub fn readlink(&self, id: u64) -> Result<Vec<u8>, Errno> {
        let inode = self.table.get(id)?;
        let world = self.view.world();
        if let Some((_, place)) = self.place_of(id)
            && let Some(sealed) = world.sealed(&place)
        {
            return match sealed.entry(&place.inner()).map(|entry| &entry.kind) {
                Some(EntryKind::Symlink(target)) => Ok(target.clone()),
                Some(_) => fail(libc::EINVAL),
                None => fail(libc::ENOENT),
            };
        }
        Ok(rustix::fs::readlinkat(inode.fd()?, "", Vec::new())?.into_bytes())
    }

    /// May `name` be made, replaced or removed in `parent` now? Its path and place. What is sealed
    /// is the caller's to decide.
    pub(crate) fn may_change(
        &self,
        world: &World,
        parent: u64,
        name: &[u8],
    ) -> Result<(RelPath, Place), Stop> {
        self.may_change_with(world, parent, name, None)
    }

    /// As [`FileSystem::may_change`] in an operation for which the kernel has locked the file
    /// `other` as well.
    pub(crate) fn may_change_with(
        &self,
        world: &World,
        parent: u64,
        name: &[u8],
        other: Option<Key>,
    ) -> Result<(RelPath, Place), Stop> {
        let path = self.table.path_in(parent, name)?;
        if self.view.names().reserved(&path) {
            return fail(libc::EPERM);
        }
        let place = self.view.place(&path);
        if world.held(&path) {
            return Err(Stop::Wait);
        }
        if self.refuses(world, &path, &place) {
            return fail(libc::EEXIST);
        }
        // The marker is what ends a freeze, or repeats it. A loose file freezes with no dataset.
        let inside = matches!(place, Place::Inside { .. });
        let written = || {
            let named = self.directory_of(parent, name).and_then(|dir| key_at(dir, name)).ok().flatten();
            [named, other].into_iter().flatten().any(|key| self.files.has_writer_to_wait_for(key))
        };
        if inside && !place.is_marker() && world.stops(&place, written) {
            if let (true, Some(dataset)) = (place.is_invalid(), place.dataset()) {
                self.node.get()?.invalid(dataset);
            }
            return Err(Stop::Frozen);
        }
        Ok((path, place))
    }
}

/// How long the kernel may keep what it was told.
impl FileSystem {
    /// An entry with the times that the kernel may keep it.
    pub(crate) fn entry_of(&self, place: &Place, inode: &Inode, stat: &Stat) -> Entry {
        let attr = match place {
            Place::Top if !self.trees.is_one() => {
                let mut stat = *stat;
                self.trees.widen(&mut stat);
                Attr::of(inode.id, &stat)
            }
            _ => Attr::of(inode.id, stat),
        };
        let stored = inode.mappable.load(Ordering::Relaxed) > 0;
        let lifetimes = Lifetimes::of(place, &attr, stored, self.kernel.shared_ttl());
        Entry::new(attr, lifetimes)
    }
}

/// The marker's attributes: its file's, where one was written here.
fn marker_attr(sealed: &Sealed, inner: &RelPath, inode: &Inode) -> Result<Attr, Errno> {
    if let Some(stat) = inode.fd().ok().and_then(|fd| stat_of(&fd).ok()) {
        return Ok(Attr::of(inode.id, &stat));
    }
    sealed.attr(inode.id, inner).ok_or(Errno(libc::ENOENT))
}

//! New names: files, nodes, symbolic and hard links. What is made belongs to the caller.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat};

use super::attr::{Kind, key_of, stat_of};
use super::errno::{Stop, fail};
use super::inodes::{Backing, Key};
use super::names::Entry;
use super::open::Opened;
use super::view::{Place, World};
use super::wait::Done;
use super::{FileSystem, proc_path};
use crate::caller::Caller;
use crate::errno::Errno;
use crate::path::RelPath;

/// What mknod or symlink makes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NewNode {
    /// mknod(2): type and permission bits as in st_mode, device number.
    Node {
        /// st_mode.
        mode: u32,
        /// st_rdev.
        device: u64,
    },
    /// symlink(2) with this target.
    Symlink(Vec<u8>),
}

/// Does what gets a name take room that nothing took before? A full cache refuses that alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Grows {
    Yes,
    No,
}

impl FileSystem {
    /// mknod(2) and symlink(2).
    pub fn make_node(
        self: &Arc<Self>,
        caller: Caller,
        parent: u64,
        name: &[u8],
        new: NewNode,
        done: Done<Entry>,
    ) {
        let regular = matches!(&new, NewNode::Node { mode, .. } if is_regular(*mode));
        if regular && let Err(error) = self.announce(caller, (parent, name), Grows::Yes) {
            return done(Err(error));
        }
        let link = matches!(new, NewNode::Symlink(_));
        let done = if link {
            self.after_loose(caller, &[(parent, name)], |fs, entry| fs.untold(&entry), done)
        } else {
            done
        };
        let name = name.to_vec();
        let step = move |fs: &Self, world: &World| {
            let spot = fs.spot_to_make(world, parent, &name)?;
            let (parent, name) = (spot.parent, &*spot.name);
            let _change = fs.table.change(parent);
            let (path, place) = fs.may_make(world, parent, name, None)?;
            if place.is_marker() && !regular {
                return fail(libc::EPERM);
            }
            if regular && spot.dataset().is_some() {
                fs.announce_in(world, caller, &path, Grows::Yes)?;
            }
            if let Some(open) = world.open(&place).filter(|_| regular) {
                fs.changes(open, place.inner(), caller)?;
            }
            fs.make_node_now(caller, parent, name, &new)?;
            Ok(fs.lookup_backed(&place, parent, name)?)
        };
        self.attempt(caller, step, done);
    }

    /// open(2) with O_CREAT of a name that the kernel does not know.
    pub fn create(
        self: &Arc<Self>,
        caller: Caller,
        parent: u64,
        name: &[u8],
        mode: u32,
        flags: i32,
        done: Done<(Entry, Opened)>,
    ) {
        self.forget_opened(caller.unique);
        if let Err(error) = self.announce(caller, (parent, name), Grows::Yes) {
            return done(Err(error));
        }
        let name = name.to_vec();
        let step = move |fs: &Self, world: &World| {
            let spot = fs.spot_to_make(world, parent, &name)?;
            if spot.dataset().is_some() {
                fs.announce_in(world, caller, &fs.table.path_in(spot.parent, &spot.name)?, Grows::Yes)?;
            }
            fs.create_now(world, caller, spot.parent, &spot.name, mode, flags)
        };
        self.attempt(caller, step, done);
    }

    /// link(2). Linking to the marker's name sets the marker.
    pub fn link(self: &Arc<Self>, caller: Caller, inode: u64, parent: u64, name: &[u8], done: Done<Entry>) {
        if let Err(error) = self.announce(caller, (parent, name), Grows::No) {
            return done(Err(error));
        }
        let done = self.after_loose(caller, &[(parent, name)], |fs, entry| fs.untold(&entry), done);
        let made = name.to_vec();
        let since = self.table.moment();
        let step = move |fs: &Self, world: &World| {
            fs.table.check(inode, since)?;
            let spot = fs.spot_to_make(world, parent, &made)?;
            let (parent, made) = (spot.parent, &*spot.name);
            let _change = fs.table.change(parent);
            let (path, place) = fs.may_make(world, parent, made, fs.table.get(inode)?.key())?;
            if !place.is_marker() {
                fs.may_link(world, inode, &place)?;
            }
            if spot.dataset().is_some() {
                fs.announce_in(world, caller, &path, Grows::No)?;
            }
            if let Some(open) = world.open(&place).filter(|_| !place.is_marker()) {
                fs.changes(open, place.inner(), caller)?;
            }
            let source = fs.table.get(inode)?.fd()?;
            let dir = fs.directory_of(parent, made)?;
            if place.is_marker() {
                fs.make_marker(caller, &source, &dir, made)?;
            } else if !fs.intents.has_made(caller.unique, &dir, made)? {
                fs.intents.will_make(caller.unique, &dir, made)?;
                rustix::fs::linkat(CWD, proc_path(&source), &dir, made, AtFlags::SYMLINK_FOLLOW)?;
            }
            let entry = fs.lookup_backed(&place, parent, made)?;
            let regular = entry.attr.kind == Kind::File;
            Ok((
                entry,
                (regular && fs.view.is_mark(&place)).then(|| place.dataset().map(<[u8]>::to_vec)).flatten(),
            ))
        };
        let fs = Arc::clone(self);
        let finish = move |outcome: Result<(Entry, Option<Vec<u8>>), Errno>| match outcome {
            Ok((entry, Some(dataset))) => {
                fs.set_marker_by_name(
                    &dataset,
                    super::rename::HOLDS,
                    caller,
                    Box::new(move |()| done(Ok(entry))),
                );
            }
            Ok((entry, None)) => done(Ok(entry)),
            Err(error) => done(Err(error)),
        };
        self.attempt(caller, step, Box::new(finish));
    }

    /// The marker that link(2) makes is an empty file of its own: as another name of `source` it
    /// would be data.
    fn make_marker(&self, caller: Caller, source: &OwnedFd, dir: &OwnedFd, name: &[u8]) -> Result<(), Errno> {
        let stat = stat_of(source)?;
        if !is_regular(stat.st_mode) {
            return fail(libc::EPERM);
        }
        if !self.intents.has_made(caller.unique, dir, name)? {
            remove_stale_marker(dir, name)?;
        }
        self.new_file(caller, dir, name, stat.st_mode & 0o777).map(drop)
    }

    /// An error is told in place of this entry: its lookup does not count.
    fn untold(&self, entry: &Entry) {
        self.forget(entry.attr.nodeid, 1);
    }

    /// Puts a file that is about to be made into the filemap's journal, with no lock held.
    pub(crate) fn announce(
        &self,
        caller: Caller,
        (parent, name): (u64, &[u8]),
        grows: Grows,
    ) -> Result<(), Errno> {
        let path = self.table.path_in(parent, name)?;
        let place = self.view.place(&path);
        if !self.is_announced(&path, &place) || self.view.world().base(&place).is_some() {
            return Ok(());
        }
        self.announce_at(caller, &path, &place, grows)
    }

    /// The same in a flat dataset, once it is known where that is.
    pub(crate) fn announce_in(
        &self,
        world: &World,
        caller: Caller,
        path: &RelPath,
        grows: Grows,
    ) -> Result<(), Errno> {
        let place = self.view.place(path);
        if !self.is_announced(path, &place) || world.base(&place).is_some() {
            return Ok(());
        }
        self.announce_at(caller, path, &place, grows)
    }

    /// A file made at `path` gets an entry in the journal. Callers leave out sealed datasets, whose
    /// entry [`FileSystem::changes`] makes.
    fn is_announced(&self, path: &RelPath, place: &Place) -> bool {
        matches!(place, Place::Inside { .. }) && !place.is_marker() && !self.view.names().reserved(path)
    }

    fn announce_at(&self, caller: Caller, path: &RelPath, place: &Place, grows: Grows) -> Result<(), Errno> {
        if self.view.names().mistaken_marker(path) || self.view.rules().mistaken(place) {
            self.node.note(format!(
                "{path}: a marker counts only at the top of a dataset; this is an ordinary file"
            ));
        }
        let path = path.strip(self.view.names().checkpoint()).ok_or(Errno(libc::EIO))?;
        let rank = self.processes.of(caller).rank;
        match grows {
            Grows::Yes => self.node.get()?.creating(&path, rank),
            Grows::No => self.node.get()?.naming(&path, rank),
        }
    }

    /// May a name be made that is not there?
    /// `other`: a file that the kernel has locked for it.
    pub(crate) fn may_make(
        &self,
        world: &World,
        parent: u64,
        name: &[u8],
        other: Option<Key>,
    ) -> Result<(RelPath, Place), Stop> {
        let (path, place) = self.may_change_with(world, parent, name, other)?;
        if let Some(sealed) = world.sealed(&place) {
            if sealed.entry(&place.inner()).is_some() {
                return fail(libc::EEXIST);
            }
            world.need_open(&place)?;
        }
        if self.elsewhere(world, &path, &place).is_some() {
            return fail(libc::EEXIST);
        }
        Ok((path, place))
    }

    /// Links stay within a dataset: sealing one must not freeze bytes of another.
    fn may_link(&self, world: &World, inode: u64, to: &Place) -> Result<(), Stop> {
        let Some((path, from)) = self.place_of(inode) else { return fail(libc::ENOENT) };
        if world.held(&path) {
            return Err(Stop::Wait);
        }
        world.need_open(&from)?;
        self.here(world, &path, &from, &*self.table.get(inode)?)?;
        let dataset = |place: &Place| match place {
            Place::Inside { dataset, .. } => Some(dataset.clone()),
            Place::Outside | Place::Top | Place::Entry(_) => None,
        };
        if dataset(&from) == dataset(to) { Ok(()) } else { fail(libc::EXDEV) }
    }

    fn make_node_now(&self, caller: Caller, parent: u64, name: &[u8], new: &NewNode) -> Result<(), Errno> {
        let dir = self.directory_of(parent, name)?;
        if self.intents.has_made(caller.unique, &dir, name)? {
            return Ok(());
        }
        self.intents.will_make(caller.unique, &dir, name)?;
        match new {
            NewNode::Node { mode, device } => {
                let kind = FileType::from_raw_mode(*mode);
                let bits = Mode::from_raw_mode(mode & 0o7777);
                self.trees.made_by(caller, *mode, || rustix::fs::mknodat(&dir, name, kind, bits, *device))?;
            }
            NewNode::Symlink(target) => {
                self.trees.made_by(caller, 0, || rustix::fs::symlinkat(&**target, &dir, name))?;
            }
        }
        effect()
    }

    fn create_now(
        &self,
        world: &World,
        caller: Caller,
        parent: u64,
        name: &[u8],
        mode: u32,
        flags: i32,
    ) -> Result<(Entry, Opened), Stop> {
        let _change = self.table.change(parent);
        let (path, place) = self.may_change(world, parent, name)?;
        if let Some(sealed) = world.sealed(&place) {
            if !place.is_marker() {
                let there = sealed.entry(&place.inner()).is_some();
                if there && flags & libc::O_EXCL != 0 {
                    return fail(libc::EEXIST);
                }
                return Err(Stop::Need(super::errno::Need::NextGeneration(sealed.id())));
            }
            // Set anew after it was removed here.
            self.intents.show(sealed, &place.inner());
            let entry = self.lookup_in(world, parent, name)?;
            let opened = self.open_marker(sealed, caller, entry.attr.nodeid, flags);
            return self.opened_or_forget(entry, opened);
        }
        let dir = self.directory_of(parent, name)?;
        let open = world.open(&place).filter(|_| !place.is_marker());
        if let Some(open) =
            open.filter(|_| !matches!(self.intents.has_made(caller.unique, &dir, name), Ok(true)))
        {
            // A name that the kernel did not know; another program's, or another node's, may be
            // there by now.
            if let Ok(entry) = self.lookup_open(open, &place, parent, name) {
                let inode = self.table.get(entry.attr.nodeid)?;
                let opened = if flags & libc::O_EXCL != 0 {
                    fail(libc::EEXIST)
                } else {
                    self.own(world, (&path, &place), &inode, caller, false)
                        .and_then(|()| Ok(self.open_backed(&inode, &place, flags, caller, false)?))
                };
                return match opened {
                    Ok(opened) => Ok((entry, opened)),
                    Err(stop) => {
                        self.forget(entry.attr.nodeid, 1);
                        Err(stop)
                    }
                };
            }
            self.changes(open, place.inner(), caller)?;
        }
        if !place.is_marker() {
            self.table.admit_new(self.kernel.serves_data())?;
        }
        match self.new_file(caller, &dir, name, mode) {
            Ok((made, stat)) => {
                let backing = Backing { fd: Arc::new(made), key: key_of(&stat) };
                let inode = self.table.enter(parent, name, backing)?;
                // The mode asked for must not keep its maker from writing: that is for later opens.
                let opened = self.open_backed(&inode, &place, flags & !libc::O_TRUNC, caller, true);
                let fd = inode.fd()?;
                self.trees.restrict(&fd, mode)?;
                self.opened_or_forget(self.entry_of(&place, &inode, &stat), opened)
            }
            Err(Errno(libc::EEXIST)) if flags & libc::O_EXCL == 0 || place.is_marker() => {
                let entry = self.lookup_backed(&place, parent, name)?;
                if entry.attr.kind != Kind::File {
                    // Made by another program a moment ago; opening it here could wait for a
                    // partner. The kernel is to look the name up.
                    self.forget(entry.attr.nodeid, 1);
                    return fail(libc::ESTALE);
                }
                let opened = self
                    .table
                    .get(entry.attr.nodeid)
                    .and_then(|inode| self.open_backed(&inode, &place, flags, caller, false));
                self.opened_or_forget(entry, opened)
            }
            Err(error) => Err(error.into()),
        }
    }

    fn opened_or_forget(&self, entry: Entry, opened: Result<Opened, Errno>) -> Result<(Entry, Opened), Stop> {
        match opened {
            Ok(opened) => Ok((entry, opened)),
            Err(error) => {
                self.forget(entry.attr.nodeid, 1);
                Err(error.into())
            }
        }
    }

    /// Makes an empty file of the caller's without opening it for data: the inode's own descriptor
    /// must not count as a writer. A daemon without privileges must be able to open it first, so
    /// there the mode comes afterwards.
    pub(crate) fn new_file(
        &self,
        caller: Caller,
        dir: &OwnedFd,
        name: &[u8],
        mode: u32,
    ) -> Result<(OwnedFd, Stat), Errno> {
        if !self.intents.has_made(caller.unique, dir, name)? {
            let first = if self.trees.privileged() { mode & 0o7777 } else { mode & 0o777 | 0o600 };
            let bits = Mode::from_raw_mode(first);
            self.intents.will_make(caller.unique, dir, name)?;
            self.trees
                .made_by(caller, first, || rustix::fs::mknodat(dir, name, FileType::RegularFile, bits, 0))?;
            effect()?;
        }
        let made = self.table.opening(|| open_made(dir, name))?;
        let stat = stat_of(&made)?;
        Ok((made, stat))
    }
}

/// A name that was made a moment ago, to be looked at.
pub(crate) fn open_made(dir: &OwnedFd, name: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(dir, name, flags, Mode::empty())?)
}

/// A marker file of a seal that failed is not listed, so nothing in its place may seem to be there.
pub(crate) fn remove_stale_marker(dir: impl AsFd, name: &[u8]) -> Result<(), Errno> {
    match rustix::fs::unlinkat(dir, name, AtFlags::empty()) {
        Ok(()) | Err(rustix::io::Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Between a change of names and its answer.
pub(crate) fn effect() -> Result<(), Errno> {
    Ok(crate::faults::hit("request.effect")?)
}

fn is_regular(mode: u32) -> bool {
    FileType::from_raw_mode(mode) == FileType::RegularFile
}

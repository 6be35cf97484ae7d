//! The next generation of a sealed dataset, as programs make it (`scrfs/docs/semantics.md`,
//! Generations).
//!
//! Until its first change a sealed dataset is seen as its catalog has it. The first change opens
//! its next generation on this node: the tree is the working copy then, and names of the sealed
//! dataset that are neither in the tree nor removed here are seen as well: their bytes are on other
//! nodes. Files of the working copy share their inode with the sealed dataset, which the node keeps
//! aside, until their bytes change. So before that, [`FileSystem::own`] sees to it that the sealed
//! ones are kept: it hands over the old file where it is emptied and nobody has it open, else it
//! asks the node for a copy.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Stat, Uid};

use super::FileSystem;
use super::attr::{key_of, stat_of};
use super::create::effect;
use super::errno::{Need, Stop, fail};
use super::inodes::{Backing, Inode};
use super::names::Entry;
use super::view::{Place, Sealed, World};
use super::wait::Done;
use crate::boundary::Generation;
use crate::caller::Caller;
use crate::control::DirOp;
use crate::dataset::Entry as CatalogEntry;
use crate::errno::Errno;
use crate::keep::decide::Intent;
use crate::path::RelPath;

/// Counts files that are made out of sight.
static NEW: AtomicU64 = AtomicU64::new(0);

impl FileSystem {
    /// Has the node do what an operation needs that began after so many presentations (`since`).
    pub(crate) fn meet(self: &Arc<Self>, need: Need, caller: Caller, since: u64, done: Done<()>) {
        let requests = match self.node.get() {
            Ok(requests) => requests,
            Err(error) => return done(Err(error)),
        };
        match need {
            Need::NextGeneration(id) => requests.open_generation(id, done),
            Need::Fetch(id, path) => requests.fetch(id, &path, caller, done),
            Need::Flat(name) => self.make_flat(&name, caller, done),
            Need::Gone(path) => {
                // Nothing is lost when it is asked for twice: the request has its own intent.
                let gone = move |gone: Result<(), Errno>| match gone {
                    // It is a file of its own on some node by now.
                    Err(Errno(libc::ENOTDIR)) => done(fail(libc::EEXIST)),
                    other => done(other),
                };
                self.ask_directory(DirOp::Remove { path }, Caller { unique: 0, ..caller }, Box::new(gone));
            }
            Need::Keep(id, path, backing) => {
                let fs = Arc::clone(self);
                let key = backing.key;
                let kept = move |kept: Result<(), Errno>| {
                    if kept == Err(Errno(libc::EAGAIN)) {
                        return done(Ok(()));
                    }
                    let world = fs.view.world();
                    // Not of a dataset that a restart has presented since: its files are sealed.
                    if kept.is_ok()
                        && world.presentations() == since
                        && let Some(sealed) = world.by_id(id)
                    {
                        // What has no name left takes room for nothing.
                        sealed.set_own(backing, |own| stat_of(&own.fd).is_ok_and(|stat| stat.st_nlink > 1));
                    }
                    drop(world);
                    done(kept);
                };
                requests.keep_sealed(id, &path, key, Box::new(kept));
            }
        }
    }

    /// The node's word: the next generation of a dataset has begun, or names of it were removed.
    pub(crate) fn take_generation(&self, world: &World, sealed: &Sealed, generation: Generation) {
        let (opens, begins) = (generation.open && !sealed.has_next(), generation.begins);
        sealed.take_up(generation);
        if !opens {
            return;
        }
        let Ok(top) = self.view.names().dataset_path(sealed.name()) else { return };
        // Removed while it was seen as sealed: the sealed files stayed where they were. Later
        // others may be there.
        for removed in sealed.removed().into_iter().filter(|_| begins) {
            let made_anew = sealed.is_changed(&removed);
            if !made_anew
                && let Ok(path) = top.concat(&removed)
                && let Err(error) = self.removals.take(&self.trees, &path)
            {
                self.node.note(format!("{path}: was removed, and cannot be taken out of the tree: {error}"));
            }
        }
        self.give_attributes(sealed, &top);
        // What the kernel knows of it stood for catalog entries.
        let Some(id) = self.table.find(&top) else { return };
        for id in std::iter::once(id).chain(self.table.below(id)) {
            let (Ok(inode), Some((path, _))) = (self.table.get(id), self.place_of(id)) else { continue };
            if inode.backing().is_none() {
                self.attach_from_tree(&inode, &path);
            }
        }
        debug_assert!(world.by_id(sealed.id()).is_some());
    }

    /// Attributes that programs gave to sealed names are those of the tree's from now on.
    fn give_attributes(&self, sealed: &Sealed, top: &RelPath) {
        for (inner, attr) in sealed.given() {
            let Ok(path) = top.concat(&inner) else { continue };
            let Ok(fd) = self.trees.open(&path, OFlags::PATH | OFlags::NOFOLLOW) else { continue };
            if let Err(error) = super::attrs::give_all(&fd, &attr, self.trees.privileged()) {
                self.node.note(format!("{path}: attributes that were set here cannot be kept: {error}"));
            }
        }
    }

    /// Another generation took a dataset's place: names whose file in the tree is another one now,
    /// or gone, are looked up anew.
    pub(crate) fn forget_replaced(&self, top: &RelPath) {
        let Some(id) = self.table.find(top) else { return };
        for id in self.table.below(id) {
            let (Ok(inode), Some((path, place))) = (self.table.get(id), self.place_of(id)) else { continue };
            let Some(backing) = inode.backing() else { continue };
            if place.is_marker() {
                continue;
            }
            let replaced = self.trees.key(&path) != Ok(backing.key) && self.table.cut_path(&path);
            if replaced && !inode.passthrough_in_use() && !self.files.has(id) {
                self.table.detach(&inode);
            }
        }
    }

    /// A name has got a file of its own: its inode keeps its other names.
    pub(crate) fn forget_parted(&self, path: &RelPath) {
        let Some((parent, name)) = self.table.known_above(path) else { return };
        let known = self.table.known(parent, name).and_then(|id| self.table.get(id).ok());
        let now = self.trees.key(path);
        if let Some(inode) = known.filter(|inode| now != inode.key().ok_or(Errno(libc::ENOENT))) {
            self.table.part(parent, name, inode.id);
        }
    }

    fn attach_from_tree(&self, inode: &Inode, path: &RelPath) -> bool {
        let there = self.trees.backing(path);
        there.is_ok_and(|backing| {
            self.table.attach(inode, backing);
            true
        })
    }

    /// Looks up in a generation that has begun: the tree first, then what is on other nodes.
    pub(crate) fn lookup_open(
        &self,
        sealed: &Sealed,
        place: &Place,
        parent: u64,
        name: &[u8],
    ) -> Result<Entry, Errno> {
        let known = self.table.known(parent, name).and_then(|id| self.table.get(id).ok());
        if let Some(inode) = known.filter(|inode| inode.backing().is_none()) {
            // It may have been brought here since.
            self.attach_from_tree(&inode, &self.table.path_in(parent, name)?);
        }
        let mut entry = match self.lookup_backed(place, parent, name) {
            Err(Errno(libc::ENOENT)) => {
                let inner = place.inner();
                sealed.file(&inner).ok_or(Errno(libc::ENOENT))?;
                let inode = self.table.enter_sealed(parent, name, sealed.mark(&place.inner()))?;
                let attr = sealed.attr(inode.id, &inner).ok_or(Errno(libc::ENOENT))?;
                let ttl = self.kernel.shared_ttl();
                Entry { attr, entry_ttl: ttl, attr_ttl: ttl, shared: true }
            }
            other => other?,
        };
        // Sealed, another node's files may be at these names.
        entry.entry_ttl = entry.entry_ttl.min(self.kernel.shared_ttl());
        entry.shared = true;
        Ok(entry)
    }

    /// A sealed file of a generation that has begun, which is on another node.
    pub(crate) fn elsewhere<'a>(
        &self,
        world: &'a World,
        path: &RelPath,
        place: &Place,
    ) -> Option<&'a CatalogEntry> {
        let entry = world.open(place)?.file(&place.inner())?;
        let there = self.trees.open(path, OFlags::PATH | OFlags::NOFOLLOW).is_ok();
        (!there).then_some(entry)
    }

    /// Sees to it that a file's bytes are in the tree, and as they were sealed; [`Need::Fetch`]
    /// where they are on another node, or still to be verified.
    pub(crate) fn here(
        &self,
        world: &World,
        path: &RelPath,
        place: &Place,
        inode: &Inode,
    ) -> Result<(), Stop> {
        let Some(sealed) = world.open(place) else { return Ok(()) };
        let inner = place.inner();
        if let Some(entry) = sealed.file(&inner).filter(|_| sealed.is_unread(&inner)) {
            return Err(Stop::Need(Need::Fetch(sealed.id(), entry.path.clone())));
        }
        let key = inode.backing().map(|backing| backing.key);
        let now = self.trees.key(path);
        match (now, key) {
            (Ok(now), Some(key)) if now == key || inode.passthrough_in_use() => return Ok(()),
            // Brought here, or rebuilt, since it was looked up.
            (Ok(_), _) if self.attach_from_tree(inode, path) => return Ok(()),
            _ => {}
        }
        match sealed.file(&inner) {
            Some(entry) => Err(Stop::Need(Need::Fetch(sealed.id(), entry.path.clone()))),
            // By this error the kernel looks the name up once more: it may have been made anew.
            None => fail(libc::ESTALE),
        }
    }

    /// The bytes of a file are about to change. In a sealed dataset: its next generation has begun,
    /// the bytes are here, the sealed ones are kept, and the journal has the file. `empties`: what
    /// it holds now is of no use. The caller holds the directory's gate, so that the file has its
    /// name until it is opened.
    pub(crate) fn own(
        &self,
        world: &World,
        (path, place): (&RelPath, &Place),
        inode: &Inode,
        caller: Caller,
        empties: bool,
    ) -> Result<(), Stop> {
        world.need_open(place)?;
        let Some(sealed) = world.open(place) else { return Ok(()) };
        let inner = place.inner();
        if empties
            && let Some(entry) = sealed.file(&inner)
            && self.replace_emptied(sealed, path, &inner, inode, entry, caller)?
        {
            return Ok(());
        }
        self.here(world, path, place, inode)?;
        let Some(backing) = inode.backing() else { return fail(libc::EIO) };
        let stat = stat_of(&backing.fd)?;
        let regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        let named = self.trees.stat_below(path).is_some_and(|now| key_of(&now) == backing.key);
        let is_shared = stat.st_nlink > u64::from(named);
        if regular && is_shared && !sealed.is_own(backing.key) {
            return Err(Stop::Need(Need::Keep(sealed.id(), inner, backing)));
        }
        if regular { Ok(self.changes(sealed, inner, caller)?) } else { Ok(()) }
    }

    /// Puts a file of a generation that has begun into the journal, before it is made or changed.
    pub(crate) fn changes(&self, sealed: &Sealed, inner: RelPath, caller: Caller) -> Result<(), Errno> {
        if !sealed.is_changed(&inner) {
            self.node.get()?.changing(sealed.id(), &inner, self.processes.of(caller).rank)?;
            sealed.set_changed(inner);
        }
        Ok(())
    }

    /// Puts a sealed name into the journal, before it is removed here.
    pub(crate) fn removes(&self, sealed: &Sealed, inner: &RelPath) -> Result<(), Errno> {
        if let Some(entry) = sealed.entry(inner) {
            self.node.get()?.removing(sealed.id(), &entry.path)?;
            sealed.hide(entry.path.clone());
        }
        Ok(())
    }

    /// A removal of this name has failed, and the journal may have it: a file that is there counts
    /// as changed, so that the next seal has it.
    pub(crate) fn stays(&self, world: &World, (path, place): (&RelPath, &Place), caller: Caller) {
        let (Some(sealed), inner) = (world.open(place), place.inner()) else { return };
        let is_regular = |stat: Stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        if !sealed.is_removed_here(&inner)
            || sealed.is_changed(&inner)
            || !self.trees.stat_below(path).is_some_and(is_regular)
        {
            return;
        }
        let rank = self.processes.of(caller).rank;
        match self.node.get().and_then(|node| node.staying(sealed.id(), &inner, rank)) {
            Ok(()) => sealed.set_changed(inner),
            Err(error) => self.node.note(format!(
                "{path}: was not removed, and that cannot be recorded ({error}): the next seal will remove it"
            )),
        }
    }

    /// Gives an unchanged file's name to a new empty file, so that the old one need not be copied;
    /// only where nobody has it open, because who has must go on seeing the same file.
    fn replace_emptied(
        &self,
        sealed: &Sealed,
        path: &RelPath,
        inner: &RelPath,
        inode: &Inode,
        entry: &CatalogEntry,
        caller: Caller,
    ) -> Result<bool, Errno> {
        if sealed.is_changed(inner) || inode.passthrough_in_use() || self.files.has(inode.id) {
            return Ok(false);
        }
        let (mode, uid, gid) = match self.trees.open(path, OFlags::PATH | OFlags::NOFOLLOW) {
            Ok(old) => {
                let stat = stat_of(&old)?;
                // Its name here and the one aside; with more it is a hard link.
                if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || stat.st_nlink != 2 {
                    return Ok(false);
                }
                (stat.st_mode & 0o1777, stat.st_uid, stat.st_gid)
            }
            Err(Errno(libc::ENOENT)) => (entry.mode & 0o1777, entry.uid, entry.gid),
            Err(error) => return Err(error),
        };
        self.changes(sealed, inner.clone(), caller)?;
        let (dir, name) = path.split_last().ok_or(Errno(libc::EISDIR))?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let (store, dir) = self.trees.open_in_store(&dir, flags | OFlags::NOFOLLOW)?;
        let keep = rustix::fs::openat(self.removals.aside(store)?, ".", flags, Mode::empty())?;
        let temporary = format!("new.{}", NEW.fetch_add(1, Ordering::Relaxed));
        // Ours at first: its maker may not write there.
        let (made, stat) = self.new_file(Caller::default(), &keep, temporary.as_bytes(), mode)?;
        let give = || {
            if !self.trees.privileged() {
                return Ok(());
            }
            let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
            rustix::fs::chownat(&made, "", uid, gid, AtFlags::EMPTY_PATH)
        };
        let renamed = give().and_then(|()| rustix::fs::renameat(&keep, temporary.as_str(), &dir, name));
        if let Err(error) = renamed {
            let _ = rustix::fs::unlinkat(&keep, temporary.as_str(), AtFlags::empty());
            return Err(error.into());
        }
        self.table.attach(inode, Backing { fd: Arc::new(made), key: key_of(&stat) });
        Ok(true)
    }

    /// Removes a name in a generation that has begun.
    pub(crate) fn unlink_open(
        &self,
        world: &World,
        sealed: &Sealed,
        (path, place): (&RelPath, &Place),
        caller: Caller,
    ) -> Result<(), Errno> {
        let (inner, unique) = (place.inner(), caller.unique);
        if matches!(self.intents.of(unique), Some(Intent::Hide)) && sealed.entry(&inner).is_none() {
            // A predecessor hid it.
            return Ok(());
        }
        let (dir, name) = path.split_last().ok_or(Errno(libc::EBUSY))?;
        let dir = self.trees.open_directory(&dir)?;
        let here = match rustix::fs::statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Some(stat),
            Err(rustix::io::Errno::NOENT) => None,
            Err(error) => return Err(error.into()),
        };
        if self.intents.will_remove(unique, &dir, name)? {
            return Ok(());
        }
        match &here {
            None if sealed.file(&inner).is_none() => return fail(libc::ENOENT),
            Some(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Directory => {
                return fail(libc::EISDIR);
            }
            _ => {}
        }
        if here.is_none() {
            self.intents.begin(unique, Intent::Hide);
        }
        self.removes(sealed, &inner)?;
        if let Some(stat) = here {
            if let Err(error) = rustix::fs::unlinkat(&dir, name, AtFlags::empty()) {
                self.stays(world, (path, place), caller);
                return Err(error.into());
            }
            effect()?;
            Self::keep_nameless(sealed, &stat);
        }
        Ok(())
    }

    /// The name of a sealed file was hidden, and the file itself stays: nobody who still knows it
    /// may change it.
    pub(crate) fn keep_hidden(&self, sealed: &Sealed, path: &RelPath) {
        if let Some(stat) = self.trees.stat_below(path) {
            sealed.set_kept(key_of(&stat));
        }
    }

    /// A file has lost its name here, and `stat` is from before that: who has it open must not
    /// change it while it is the sealed one.
    pub(crate) fn keep_nameless(sealed: &Sealed, stat: &Stat) {
        if stat.st_nlink > 1 && !sealed.is_own(key_of(stat)) {
            sealed.set_kept(key_of(stat));
        }
        sealed.forget_own(key_of(stat));
    }

    /// May a file without a name be changed? Not where it is still a sealed dataset's; `otherwise`
    /// is the error then.
    pub(crate) fn own_nameless(world: &World, inode: &Inode, otherwise: i32) -> Result<(), Errno> {
        let Some(backing) = inode.backing() else { return fail(libc::ESTALE) };
        // Where no name of any kind is left, its number was a sealed file's before.
        if world.keeps(backing.key) && stat_of(&backing.fd)?.st_nlink > 0 { fail(otherwise) } else { Ok(()) }
    }

    /// A file gets another name, or another file takes its place: what has to be true before.
    /// `to_outside`: it leaves its dataset, and must not take the sealed bytes along.
    pub(crate) fn ready_to_move(
        &self,
        world: &World,
        (path, place): (&RelPath, &Place),
        (parent, name): (u64, &[u8]),
        to_outside: bool,
        caller: Caller,
    ) -> Result<(), Stop> {
        if place.is_marker() {
            return Ok(());
        }
        world.need_open(place)?;
        let Some(sealed) = world.open(place) else { return Ok(()) };
        let inner = place.inner();
        let unread = sealed.file(&inner).filter(|_| sealed.is_unread(&inner));
        if let Some(entry) = self.elsewhere(world, path, place).or(unread) {
            return Err(Stop::Need(Need::Fetch(sealed.id(), entry.path.clone())));
        }
        if !to_outside {
            return Ok(());
        }
        let entry = self.lookup_open(sealed, place, parent, name)?;
        let inode = self.table.get(entry.attr.nodeid);
        let owned =
            inode.map_err(Stop::from).and_then(|inode| self.own(world, (path, place), &inode, caller, false));
        self.forget(entry.attr.nodeid, 1);
        owned
    }

    /// A name goes from `from` to `to`: what the journal must have before.
    pub(crate) fn note_move(
        &self,
        world: &World,
        from: &Place,
        to: &Place,
        file: bool,
        caller: Caller,
    ) -> Result<(), Errno> {
        if let Some(sealed) = world.open(to).filter(|_| !to.is_marker()) {
            if file {
                self.changes(sealed, to.inner(), caller)?;
            } else {
                self.removes(sealed, &to.inner())?;
            }
        }
        match world.open(from) {
            Some(sealed) => self.removes(sealed, &from.inner()),
            None => Ok(()),
        }
    }
}

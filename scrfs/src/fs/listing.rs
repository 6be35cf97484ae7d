//! Reading directories. A listing is taken when the directory is opened or rewound, so offsets stay
//! right while names come and go.

use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::{Mode, OFlags};

use super::FileSystem;
use super::attr::Kind;
use super::errno::fail;
use super::eyes::{Eyes, is_directory_handle};
use super::files::{DirEntry, DirHandle, Snapshot, Taken};
use super::inodes::{Inode, ROOT};
use super::names::Entry;
use super::view::{Name, Place, World};
use crate::caller::Caller;
use crate::errno::Errno;
use crate::path::RelPath;
use crate::store::beneath;

/// For whom a directory is read: a program's reading is an access, which its times tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Looks {
    Program,
    Daemon,
}

/// Marks inode numbers of the file system below: ours never get so high.
const FOREIGN: u64 = 1 << 63;

impl FileSystem {
    /// opendir.
    pub fn opendir(&self, caller: Caller, id: u64) -> Result<u64, Errno> {
        if let Some(eyes) = Eyes::open_directory(id) {
            return eyes;
        }
        let inode = self.table.get(id)?;
        // Sealed directories need none.
        if inode.key().is_some() {
            self.table.admit(&inode)?;
        }
        Ok(self.files.add_directory(inode, caller.unique))
    }

    /// closedir.
    pub fn releasedir(&self, fh: u64) {
        self.files.remove_directory(fh);
    }

    /// Calls `emit` with the entries from `offset` on and the offset after each, until there is no
    /// room. An entry comes with its attributes when `plus`, and is looked up for that: the lookup
    /// of one that `emit` did not take with them is taken back. `.` and `..` come without.
    pub fn readdir(
        &self,
        fh: u64,
        offset: u64,
        plus: bool,
        emit: &mut dyn FnMut(&DirEntry, Option<&Entry>, u64) -> Taken,
    ) -> Result<(), Errno> {
        if is_directory_handle(fh) {
            self.eyes.list(offset, plus, emit);
            return Ok(());
        }
        let handle = self.files.directory(fh)?;
        let snapshot = self.snapshot(&handle, offset)?;
        let (mut whole, mut emitted) = (true, false);
        let first = usize::try_from(offset).unwrap_or(usize::MAX);
        for (at, listed) in snapshot.entries.iter().enumerate().skip(first) {
            let next = at as u64 + 1;
            let dots = listed.name == b"." || listed.name == b"..";
            if !plus || dots {
                if emit(listed, None, next) == Taken::Full {
                    whole = false;
                    break;
                }
                continue;
            }
            match self.lookup(handle.inode.id, &listed.name) {
                Ok(entry) => {
                    let taken = emit(listed, Some(&entry), next);
                    if taken != Taken::Entry {
                        self.forget(entry.attr.nodeid, 1);
                    }
                    if taken == Taken::Full {
                        whole = false;
                        break;
                    }
                    emitted = true;
                }
                // Removed since it was listed.
                Err(Errno(libc::ENOENT)) => {}
                // The kernel gives back no lookup of an answer that is an error: the next one is.
                Err(_) if emitted => {
                    whole = false;
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        if !whole {
            self.files.keep_listing(&handle, &snapshot);
        }
        Ok(())
    }

    fn snapshot(&self, handle: &DirHandle, offset: u64) -> Result<Arc<Snapshot>, Errno> {
        let mut slot = handle.snapshot.lock();
        if offset > 0 {
            return match slot.as_ref() {
                Some(listing) => Ok(Arc::clone(listing)),
                // A predecessor gave out all, but its reader may not have taken all; or it could
                // not keep what was left.
                None if offset < handle.end.into() => fail(libc::ESTALE),
                None => Ok(Arc::new(Snapshot::default())),
            };
        }
        self.files.drop_listing(handle);
        let world = self.view.world();
        let mut entries = self.dots(handle.inode.id);
        entries.extend(self.list(&world, &handle.inode, Looks::Program)?);
        drop(world);
        // The former one of this directory goes first.
        *slot = None;
        let snapshot = Arc::new(self.files.listing(entries)?);
        self.files.begin_listing(handle, &snapshot);
        *slot = Some(Arc::clone(&snapshot));
        Ok(snapshot)
    }

    fn dots(&self, id: u64) -> Vec<DirEntry> {
        let above = self.table.path(id).and_then(|path| path.split_last().map(|(dir, _)| dir));
        let up = above.and_then(|dir| self.table.find(&dir)).unwrap_or(ROOT);
        [(b".".to_vec(), id), (b"..".to_vec(), up)]
            .into_iter()
            .map(|(name, ino)| DirEntry { name, kind: Kind::Directory, ino })
            .collect()
    }

    /// All names that programs see in a directory.
    pub(crate) fn list(&self, world: &World, inode: &Inode, looks: Looks) -> Result<Vec<DirEntry>, Errno> {
        let Some((path, place)) = self.place_of(inode.id) else { return Ok(Vec::new()) };
        if let Some(sealed) = world.sealed(&place) {
            let listed = sealed.children(&place.inner()).into_iter().map(|(name, what)| {
                let (kind, ino) = match what {
                    Name::Entry(entry) => (Kind::of_entry(entry), self.table.known(inode.id, &name)),
                    // The last and of the highest number: who copies in either order copies the
                    // marker last.
                    Name::Marker => (Kind::File, None),
                };
                (name, kind, ino)
            });
            let numbered = listed.enumerate().map(|(at, (name, kind, ino))| {
                let ino = ino.unwrap_or(FOREIGN | inode.id << 24 | at as u64);
                DirEntry { name, kind, ino }
            });
            return Ok(numbered.collect());
        }
        // Only there names are that programs do not see, or not yet.
        let special = path.is_root() || matches!(place, Place::Entry(_));
        let mut entries = self.list_backed(inode, special.then_some(&path), looks)?;
        if let Some(open) = world.open(&place) {
            let tree = entries.iter().map(|entry| entry.name.clone()).collect();
            let names = open.names_elsewhere(&place.inner(), &tree);
            for (at, name) in names.into_iter().enumerate() {
                let ino = self.table.known(inode.id, &name).unwrap_or(FOREIGN | inode.id << 24 | at as u64);
                entries.push(DirEntry { name, kind: Kind::File, ino });
            }
        }
        if place == Place::Top {
            for sealed in world.all_sealed() {
                if !entries.iter().any(|entry| entry.name == sealed.name()) {
                    let known = self.table.known(inode.id, sealed.name());
                    let ino = known.unwrap_or(FOREIGN | sealed.id().0);
                    entries.push(DirEntry { name: sealed.name().to_vec(), kind: Kind::Directory, ino });
                }
            }
            self.list_flat(world, inode, looks, &mut entries)?;
        }
        Ok(entries)
    }

    fn list_backed(
        &self,
        inode: &Inode,
        special: Option<&RelPath>,
        looks: Looks,
    ) -> Result<Vec<DirEntry>, Errno> {
        let mut flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        if looks == Looks::Daemon && self.trees.privileged() {
            flags |= OFlags::NOATIME;
        }
        let fd = inode.fd()?;
        let dir = self.table.opening(|| Ok(rustix::fs::openat(&fd, ".", flags, Mode::empty())?))?;
        let mut entries = Vec::new();
        self.add_backed(&dir, special, &mut entries)?;
        let first: HashSet<Vec<u8>> = match self.other_directories(inode.id) {
            [] => return Ok(entries),
            _ => entries.iter().map(|entry| entry.name.clone()).collect(),
        };
        for other in self.other_directories(inode.id) {
            let quiet = flags.contains(OFlags::NOATIME);
            let mut more = Vec::new();
            self.add_backed(&other.read_checkpoint(quiet)?, special, &mut more)?;
            entries.extend(more.into_iter().filter(|entry| !first.contains(&entry.name)));
        }
        Ok(entries)
    }

    fn add_backed(
        &self,
        dir: &OwnedFd,
        special: Option<&RelPath>,
        entries: &mut Vec<DirEntry>,
    ) -> Result<(), Errno> {
        let device = if self.trees.is_one() { None } else { Some(rustix::fs::fstat(dir)?.st_dev) };
        for entry in beneath::entries(dir)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if let Some(path) = special {
                let here = path.join(name)?;
                // A marker is listed once its dataset is sealed, and then it is not listed from
                // here.
                if self.view.names().reserved(&here) || self.view.place(&here).is_marker() {
                    continue;
                }
            }
            let ino = self.table.number_of(device, entry.ino()).unwrap_or(FOREIGN | entry.ino());
            entries.push(DirEntry { name: name.to_vec(), kind: Kind::of(entry.file_type()), ino });
        }
        Ok(())
    }

    /// ENOTEMPTY when programs see names in the directory.
    pub(crate) fn check_empty(&self, world: &World, id: u64) -> Result<(), Errno> {
        let inode = self.table.get(id)?;
        if self.list(world, &inode, Looks::Daemon)?.is_empty() { Ok(()) } else { fail(libc::ENOTEMPTY) }
    }
}

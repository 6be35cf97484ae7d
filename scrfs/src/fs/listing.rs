//! Reading directories. A listing is taken when the directory is opened or rewound, so offsets stay
//! right while names come and go.

use std::collections::HashSet;
use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::fs::{MemfdFlags, Mode, OFlags};

use super::FileSystem;
use super::attr::{Kind, key_of};
use super::errno::fail;
use super::eyes::is_directory_handle;
use super::handles::DirHandle;
use super::inode::{Inode, Key};
use super::names::{Entry, inner_of};
use super::place::Place;
use super::sealed::Name;
use super::table::ROOT;
use super::world::World;
use crate::caller::Caller;
use crate::errno::Errno;
use crate::path::RelPath;
use crate::store::beneath;

/// One name of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirEntry {
    /// The name; `.` and `..` too.
    pub name: Vec<u8>,
    /// Its type.
    pub kind: Kind,
    /// Its inode number; for a name that nobody looked up yet a number that no other name has.
    pub ino: u64,
}

/// What became of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// There was no room for it.
    Full,
    /// Its name was listed.
    Name,
    /// It was listed with its attributes, for the kernel to remember.
    Entry,
}

/// For whom a directory is read: a program's reading is an access, which its times tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Looks {
    Program,
    Daemon,
}

/// A listing.
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub(crate) entries: Vec<DirEntry>,
    /// Of the memory that all may take.
    _share: Option<Share>,
}

/// Bytes that the listings of open directories may take; a single one may take more.
const LISTINGS_MAX: usize = 512 << 20;

/// Bytes that they take.
#[derive(Debug, Clone, Default)]
pub(crate) struct Listings(Arc<AtomicUsize>);

#[derive(Debug)]
struct Share {
    all: Listings,
    bytes: usize,
}

impl Listings {
    fn take(&self, bytes: usize) -> Result<Share, Errno> {
        let others = self.0.fetch_add(bytes, Ordering::Relaxed);
        // From here on it is given back when it is dropped.
        let share = Share { all: self.clone(), bytes };
        if others > 0 && others.saturating_add(bytes) > LISTINGS_MAX { fail(libc::ENOMEM) } else { Ok(share) }
    }
}

/// In the listing, and in the copy for a successor.
fn bytes_of(entries: &[DirEntry]) -> usize {
    entries.iter().map(|entry| size_of::<DirEntry>() + 2 * entry.name.len() + 16).sum()
}

impl Drop for Share {
    fn drop(&mut self) {
        self.all.0.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Snapshot {
    /// Written to memory that outlives this process: per entry inode number, type, length of the
    /// name, name.
    pub(crate) fn write(&self) -> std::io::Result<(OwnedFd, Key)> {
        let mut bytes = Vec::new();
        for entry in &self.entries {
            let length = u32::try_from(entry.name.len()).map_err(std::io::Error::other)?;
            bytes.extend(entry.ino.to_ne_bytes());
            bytes.push(entry.kind.code());
            bytes.extend(length.to_ne_bytes());
            bytes.extend(&entry.name);
        }
        let fd = rustix::fs::memfd_create("scrfs-listing", MemfdFlags::CLOEXEC)?;
        let mut file = File::from(fd);
        file.write_all(&bytes)?;
        let fd = OwnedFd::from(file);
        let key = key_of(&rustix::fs::fstat(&fd)?);
        Ok((fd, key))
    }

    /// What [`Snapshot::write`] wrote.
    pub(crate) fn read(fd: OwnedFd) -> Option<(Arc<Self>, OwnedFd)> {
        let file = File::from(fd);
        let mut bytes = vec![0; usize::try_from(file.metadata().ok()?.len()).ok()?];
        file.read_exact_at(&mut bytes, 0).ok()?;
        let (mut entries, mut rest) = (Vec::new(), bytes.as_slice());
        while let Some((ino, after)) = rest.split_first_chunk() {
            let (kind, after) = after.split_first()?;
            let (length, after) = after.split_first_chunk()?;
            let (name, after) = after.split_at_checked(u32::from_ne_bytes(*length) as usize)?;
            let kind = Kind::of_code(*kind);
            entries.push(DirEntry { name: name.to_vec(), kind, ino: u64::from_ne_bytes(*ino) });
            rest = after;
        }
        Some((Arc::new(Self { entries, _share: None }), file.into()))
    }
}

/// Marks inode numbers of the file system below: ours never get so high.
const FOREIGN: u64 = 1 << 63;

impl FileSystem {
    /// opendir.
    pub fn opendir(&self, caller: Caller, id: u64) -> Result<u64, Errno> {
        if let Some(eyes) = Self::open_eyes(id) {
            return eyes;
        }
        let inode = self.table.get(id)?;
        // Sealed directories need none.
        if inode.key().is_some() {
            self.admit(&inode)?;
        }
        Ok(self.handles.add_directory(inode, caller.unique))
    }

    /// closedir.
    pub fn releasedir(&self, fh: u64) {
        self.handles.remove_directory(fh);
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
            self.read_eyes(offset, plus, emit);
            return Ok(());
        }
        let handle = self.handles.directory(fh)?;
        let snapshot = self.snapshot(&handle, offset)?;
        let mut whole = true;
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
                }
                // Removed since it was listed.
                Err(Errno(libc::ENOENT)) => {}
                Err(error) => return Err(error),
            }
        }
        if !whole {
            self.handles.keep_listing(&handle, &snapshot, self.descriptors.bound);
        }
        Ok(())
    }

    fn snapshot(&self, handle: &DirHandle, offset: u64) -> Result<Arc<Snapshot>, Errno> {
        let mut slot = handle.snapshot.lock();
        if offset > 0 {
            // None is left only of one whose last entry a predecessor gave out.
            let none = || Arc::new(Snapshot { entries: Vec::new(), _share: None });
            return Ok(slot.as_ref().map_or_else(none, Arc::clone));
        }
        self.handles.drop_listing(handle);
        let world = self.world.read();
        let mut entries = self.dots(handle.inode.id);
        entries.extend(self.list(&world, &handle.inode, Looks::Program)?);
        drop(world);
        // The former one of this directory goes first.
        *slot = None;
        let share = Some(self.handles.listings.take(bytes_of(&entries))?);
        let snapshot = Arc::new(Snapshot { entries, _share: share });
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
            let listed = sealed.children(&inner_of(&place)).into_iter().map(|(name, what)| {
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
            let names = Self::names_elsewhere(open, &inner_of(&place), &tree);
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
        if looks == Looks::Daemon && self.privileged {
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
        let device = if self.roots.is_one() { None } else { Some(rustix::fs::fstat(dir)?.st_dev) };
        for entry in beneath::entries(dir)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if let Some(path) = special {
                let here = path.join(name)?;
                // A marker is listed once its dataset is sealed, and then it is not listed from
                // here.
                if self.names.reserved(&here) || self.names.place(&here).is_marker() {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_directories_take_a_bounded_part_of_memory() {
        let listings = Listings::default();
        let half = LISTINGS_MAX / 2;
        let (one, two) = (listings.take(half).unwrap(), listings.take(half).unwrap());
        assert_eq!(listings.take(1).unwrap_err(), Errno(libc::ENOMEM));
        drop(one);
        let three = listings.take(half).unwrap();
        drop((two, three));
        assert_eq!(listings.0.load(Ordering::Relaxed), 0);
        assert!(listings.take(2 * LISTINGS_MAX).is_ok(), "one directory can always be read");
    }
}

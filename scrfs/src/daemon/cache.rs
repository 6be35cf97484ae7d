//! The node's cache directory: where a dataset's bytes are, and how they move between their places.
//!
//! `tree/<name>/` while it is in the mount; `dataset.<id>/` has its redundancy files, `aside/` its
//! files while it is not presented or is changed there, `staged/` what is arriving and not yet
//! checked, `linking/` and `kept/` what is on its way to `aside/` when its next generation begins
//! and goes on, `logs/` the copies that were sealed of files which programs hold open for append,
//! `links/` those of files' further names until they get their places, `gone/` what was at its name
//! and is to be removed with it. `recycled`: `super::recycled`.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Stat, Timespec, Timestamps, UTIME_OMIT, Uid};
use rustix::io::Errno;

use crate::dataset::lifecycle::Files;
use crate::dataset::{Entry, EntryKind, Stamp};
use crate::faults;
use crate::ids::{DatasetId, Member};
use crate::path::RelPath;
use crate::record::RedundancyFileName;
use crate::store::beneath;
use crate::stores::{Place, Stores};

use super::listing::regular_files;
use super::lost_writes::LostWrites;
use super::members::taken;
use super::recycled::Recycled;
use super::state::{Arrival, Dataset};
use crate::boundary::MountedTree;

/// Inode numbers of the cache's file system, and the names that each has in a dataset.
pub(super) type Inodes = HashMap<u64, Vec<RelPath>>;

/// See the module.
pub(super) struct Cache {
    /// The job's directory in each store.
    pub(super) roots: Vec<OwnedFd>,
    pub(super) stores: Arc<Stores>,
    /// Where datasets are in the mounted tree.
    checkpoint: RelPath,
    pub(super) lost_writes: LostWrites,
    pub(super) recycled: Recycled,
}

/// What is arriving.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Staged {
    /// The files of a member that is rebuilt here.
    File(Member, Arrival, RelPath),
    /// A member's redundancy file.
    Redundancy(Member, Arrival, RelPath),
    /// A sealed file that is copied here to be read.
    Copy(RelPath),
    /// The sealed bytes of a file that is about to be changed.
    Kept(RelPath),
    /// What is sealed in place of a file of the tree.
    Instead(Instead, RelPath),
}

/// Why a copy is sealed, and not the file in the tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Instead {
    /// It goes on growing.
    Log,
    /// It has another name that is sealed.
    Link,
}

impl Instead {
    /// In the dataset's own directory.
    fn directory(self) -> &'static str {
        match self {
            Self::Log => "logs",
            Self::Link => "links",
        }
    }
}

impl Staged {
    /// Below the dataset's own directory.
    pub(super) fn path(&self) -> io::Result<RelPath> {
        let (directory, inner) = match self {
            Self::File(member, arrival, path) => (format!("{}/files", of_arrival(*member, *arrival)), path),
            Self::Redundancy(member, arrival, name) => {
                (format!("{}/redundancy", of_arrival(*member, *arrival)), name)
            }
            Self::Copy(path) => ("staged/copy".to_owned(), path),
            Self::Kept(path) => ("kept".to_owned(), path),
            Self::Instead(why, path) => (why.directory().to_owned(), path),
        };
        RelPath::new(directory).and_then(|directory| directory.concat(inner)).map_err(invalid)
    }
}

/// Where all that is arriving for a member has its place, below the dataset's own directory.
fn of_member(member: Member) -> String {
    format!("staged/member.{member}")
}

fn of_arrival(member: Member, arrival: Arrival) -> String {
    format!("{}/{arrival}", of_member(member))
}

/// A regular file that has not the owner, mode and time with which it was sealed gets them: a next
/// generation that was not sealed may have left it others.
fn put_right(dir: BorrowedFd<'_>, file: &[u8], entry: &Entry, stat: &Stat) -> io::Result<()> {
    if (stat.st_uid, stat.st_gid) != (entry.uid, entry.gid) {
        let (uid, gid) = (Uid::from_raw(entry.uid), Gid::from_raw(entry.gid));
        match rustix::fs::chownat(dir, file, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW) {
            // A daemon that is not root has its own user's files.
            Err(Errno::PERM) if !rustix::process::geteuid().is_root() => {}
            other => other?,
        }
    }
    // An owner's change has cleared some bits.
    if stat.st_mode & 0o7777 != entry.mode & 0o7777 || stat.st_uid != entry.uid || stat.st_gid != entry.gid {
        rustix::fs::chmodat(dir, file, Mode::from_raw_mode(entry.mode & 0o7777), AtFlags::empty())?;
    }
    let [_, modified, _] = Stamp::times_of(stat);
    if modified != entry.mtime {
        let time = Timespec { tv_sec: entry.mtime.secs, tv_nsec: i64::from(entry.mtime.nsecs) };
        let keep = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
        let times = Timestamps { last_access: keep, last_modification: time };
        rustix::fs::utimensat(dir, file, &times, AtFlags::SYMLINK_NOFOLLOW)?;
    }
    Ok(())
}

fn is_directory(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
}

/// A dataset's files have moved within the cache, and are to be on storage there. Where that fails
/// they have moved all the same, and the record has to say so.
fn moved(id: DatasetId, synced: &io::Result<()>) {
    if let Err(error) = synced {
        tracing::error!(%id, %error, "the new place of a dataset's files may not survive a power loss");
    }
}

pub(super) fn invalid(error: crate::path::PathError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, error)
}

impl Cache {
    pub(super) fn open(stores: Arc<Stores>, checkpoint: RelPath) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let open = |place: &Place| Ok(rustix::fs::open(&place.cache, flags, Mode::empty())?);
        let roots = stores.places().iter().map(open).collect::<io::Result<_>>()?;
        let (lost_writes, recycled) = Default::default();
        Ok(Self { roots, stores, checkpoint, lost_writes, recycled })
    }

    /// Bytes of all that is in it. What is not to be seen, or goes meanwhile, does not count.
    pub(super) fn bytes(&self) -> io::Result<u64> {
        let mut sum: u64 = 0;
        for root in &self.roots {
            let mut linked = HashSet::new();
            Self::walk(root, vec![RelPath::root()], |stat| {
                if is_directory(stat) || stat.st_nlink < 2 || linked.insert(stat.st_ino) {
                    sum = sum.saturating_add(taken(stat));
                }
            })?;
        }
        Ok(sum)
    }

    /// Bytes that are free once a dataset has left: files that have another name elsewhere stay,
    /// and those that are open.
    pub(super) fn bytes_of(&self, dataset: &Dataset, open: &HashSet<(u64, u64)>) -> io::Result<u64> {
        let mut below = vec![Self::own_path(dataset.id)?];
        if dataset.life.has_name() {
            below.push(self.in_tree(&dataset.name)?);
        }
        let mut sum: u64 = 0;
        for root in &self.roots {
            let mut linked: HashMap<u64, u64> = HashMap::new();
            Self::walk(root, below.clone(), |stat| {
                let names = linked.entry(stat.st_ino).or_default();
                *names += 1;
                let goes = *names == stat.st_nlink && !open.contains(&(stat.st_dev, stat.st_ino));
                if is_directory(stat) || goes {
                    sum = sum.saturating_add(taken(stat));
                }
            })?;
        }
        Ok(sum)
    }

    /// Goes to all that is in these directories of a store, them too.
    fn walk(root: &OwnedFd, mut pending: Vec<RelPath>, mut each: impl FnMut(&Stat)) -> io::Result<()> {
        while let Some(path) = pending.pop() {
            let Ok(directory) = beneath::open_directory(root.as_fd(), &path) else { continue };
            each(&rustix::fs::fstat(&directory)?);
            for name in beneath::names(directory.as_fd())? {
                let Ok(stat) = rustix::fs::statat(&directory, &*name, AtFlags::SYMLINK_NOFOLLOW) else {
                    continue;
                };
                if is_directory(&stat) {
                    pending.extend(path.join(&name));
                } else {
                    each(&stat);
                }
            }
        }
        Ok(())
    }

    pub(super) fn own_path(id: DatasetId) -> io::Result<RelPath> {
        RelPath::new(format!("dataset.{id}")).map_err(invalid)
    }

    /// `dataset.<id>`, made if it is not there.
    pub(super) fn own(&self, id: DatasetId) -> io::Result<OwnedFd> {
        self.own_in(self.store_of(id)?, id)
    }

    /// The directory that a dataset's files are in.
    pub(super) fn home(&self, dataset: &Dataset, tree: &dyn MountedTree) -> io::Result<OwnedFd> {
        match dataset.life.files() {
            Files::InTree => {
                tree.backing_directory(&dataset.name).map_err(|e| io::Error::from_raw_os_error(e.0))
            }
            Files::Aside => match self.aside(dataset.id) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => self.nothing(dataset.id),
                other => other,
            },
            Files::Beneath => self.aside(dataset.id),
        }
    }

    /// As [`Cache::home`], for files that arrive: one that is aside is made where it is not there.
    pub(super) fn home_to_fill(&self, dataset: &Dataset, tree: &dyn MountedTree) -> io::Result<OwnedFd> {
        let id = dataset.id;
        if dataset.life.files() == Files::Aside && self.store_with(id, "aside")?.is_none() {
            return beneath::make_directories(
                self.own(id)?.as_fd(),
                &RelPath::new("aside").map_err(invalid)?,
            );
        }
        self.home(dataset, tree)
    }

    /// Where a dataset's files are aside; never made here. The caller may have seen the dataset
    /// before a restart presented it: a new directory would hide the files in the tree from the
    /// next worker.
    pub(super) fn aside(&self, id: DatasetId) -> io::Result<OwnedFd> {
        let path = Self::own_path(id)?.join(b"aside").map_err(invalid)?;
        let store = self.store_with(id, "aside")?.ok_or(Errno::NOENT)?;
        beneath::open_directory(self.root(store), &path)
    }

    /// A directory with nothing in it, and without a name: nobody can put anything there.
    fn nothing(&self, id: DatasetId) -> io::Result<OwnedFd> {
        static SERIAL: AtomicU64 = AtomicU64::new(0);
        let own = self.own(id)?;
        let name = format!("nothing.{}", SERIAL.fetch_add(1, Ordering::Relaxed));
        let path = RelPath::new(name).map_err(invalid)?;
        let directory = beneath::make_directories(own.as_fd(), &path)?;
        rustix::fs::unlinkat(&own, path.as_path(), AtFlags::REMOVEDIR)?;
        Ok(directory)
    }

    /// Are its files aside?
    pub(super) fn is_aside(&self, id: DatasetId) -> bool {
        self.store_with(id, "aside").is_ok_and(|store| store.is_some())
    }

    /// Links the regular files of `entries` that are in the tree, so that they can be taken aside:
    /// each inode and its names. Files that are elsewhere are left out; of `logs` their copies are
    /// linked.
    pub(super) fn link(
        &self,
        id: DatasetId,
        name: &[u8],
        entries: &[Entry],
        logs: &BTreeSet<RelPath>,
    ) -> io::Result<Inodes> {
        let tree = self.tree(id, name)?;
        // They are links: in the tree's file system.
        let own = match self.tree_store(name)? {
            Some(store) => self.own_in(store, id)?,
            None => self.own(id)?,
        };
        let linking = RelPath::new("linking").map_err(invalid)?;
        beneath::remove_tree(own.as_fd(), &linking)?;
        let to = beneath::make_directories(own.as_fd(), &linking)?;
        let mut inodes = Inodes::new();
        // Entries are sorted: files of one directory come together.
        let mut at: Option<(RelPath, OwnedFd, OwnedFd)> = None;
        let in_tree =
            |entry: &&Entry| matches!(entry.kind, EntryKind::File(_)) && !logs.contains(&entry.path);
        for entry in entries.iter().filter(in_tree) {
            let Some((directory, file)) = entry.path.split_last() else { continue };
            if at.as_ref().is_none_or(|(opened, ..)| *opened != directory) {
                let from = match beneath::open_directory(tree.as_fd(), &directory) {
                    Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                    other => other?,
                };
                let to = beneath::make_directories(to.as_fd(), &directory)?;
                at = Some((directory, from, to));
            }
            let Some((_, from, to)) = &at else { continue };
            match rustix::fs::linkat(from, file, to, file, AtFlags::empty()) {
                // Equal files of two members are one name.
                Ok(()) | Err(Errno::EXIST) => {}
                Err(Errno::NOENT) => continue,
                Err(errno) => return Err(errno.into()),
            }
            let stat = rustix::fs::statat(to, file, AtFlags::SYMLINK_NOFOLLOW)?;
            put_right(to.as_fd(), file, entry, &stat)?;
            let names: &mut Vec<RelPath> = inodes.entry(stat.st_ino).or_default();
            if names.last() != Some(&entry.path) {
                names.push(entry.path.clone());
            }
        }
        for log in logs {
            let (from, file) =
                beneath::parent_of(own.as_fd(), &Staged::Instead(Instead::Log, log.clone()).path()?, false)?;
            let (to, _) = beneath::parent_of(to.as_fd(), log, true)?;
            rustix::fs::linkat(&from, file.as_path(), &to, file.as_path(), AtFlags::empty())?;
        }
        sync_directories(to.as_fd(), inodes.values().flatten().chain(logs))?;
        Ok(inodes)
    }

    /// What was linked is aside from now on.
    pub(super) fn take_linked_aside(&self, id: DatasetId) -> io::Result<()> {
        let own = match self.store_with(id, "linking")? {
            Some(store) => self.own_in(store, id)?,
            None => self.own(id)?,
        };
        let path = |text| RelPath::new(text).map_err(invalid);
        beneath::put_in_place(own.as_fd(), &path("linking")?, own.as_fd(), &path("aside")?)?;
        moved(id, &faults::hit("generation.aside").and_then(|()| Ok(rustix::fs::fsync(&own)?)));
        Ok(())
    }

    /// Which inode has which names aside; only those of `entries` are looked at.
    pub(super) fn inodes_aside(&self, id: DatasetId, entries: &[Entry]) -> io::Result<Inodes> {
        let aside = self.aside(id)?;
        let mut inodes = Inodes::new();
        for entry in entries.iter().filter(|entry| matches!(entry.kind, EntryKind::File(_))) {
            match beneath::open(aside.as_fd(), &entry.path, OFlags::PATH | OFlags::NOFOLLOW, Mode::empty()) {
                Ok(file) => {
                    let names = inodes.entry(rustix::fs::fstat(&file)?.st_ino).or_default();
                    if names.last() != Some(&entry.path) {
                        names.push(entry.path.clone());
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                Err(e) => return Err(e),
            }
        }
        Ok(inodes)
    }

    /// The sealed bytes that are kept at the first of `names` get the places of all of them aside.
    pub(super) fn place_kept(&self, id: DatasetId, names: &[RelPath]) -> io::Result<()> {
        let (own, aside) = (self.own(id)?, self.aside(id)?);
        let Some((first, others)) = names.split_first() else { return Ok(()) };
        let kept = |path: &RelPath| Staged::Kept(path.clone()).path();
        for other in others {
            let (from, from_name) = beneath::parent_of(own.as_fd(), &kept(first)?, false)?;
            let (to, to_name) = beneath::parent_of(own.as_fd(), &kept(other)?, true)?;
            match rustix::fs::linkat(&from, from_name.as_path(), &to, to_name.as_path(), AtFlags::empty()) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        for name in names {
            beneath::put_in_place(own.as_fd(), &kept(name)?, aside.as_fd(), name)?;
        }
        sync_directories(aside.as_fd(), names.iter())
    }

    /// A file that is aside is also the one of this name of another dataset that is aside, in place
    /// of what that has.
    pub(super) fn share_kept(
        &self,
        (id, from): (DatasetId, &RelPath),
        (former, name): (DatasetId, &RelPath),
    ) -> io::Result<()> {
        let (own, aside) = (self.own(former)?, self.aside(former)?);
        let kept = Staged::Kept(name.clone()).path()?;
        let (from, file) = beneath::parent_of(self.aside(id)?.as_fd(), from, false)?;
        let (to, linked) = beneath::parent_of(own.as_fd(), &kept, true)?;
        match rustix::fs::linkat(&from, file.as_path(), &to, linked.as_path(), AtFlags::empty()) {
            Ok(()) => {}
            Err(Errno::EXIST) => {
                // Of a try that was interrupted.
                rustix::fs::unlinkat(&to, linked.as_path(), AtFlags::empty())?;
                rustix::fs::linkat(&from, file.as_path(), &to, linked.as_path(), AtFlags::empty())?;
            }
            Err(errno) => return Err(errno.into()),
        }
        beneath::put_in_place(own.as_fd(), &kept, aside.as_fd(), name)?;
        sync_directories(aside.as_fd(), std::iter::once(name))
    }

    /// Links a file that is aside to its place in the tree, unless the tree has that name.
    pub(super) fn link_back(&self, id: DatasetId, name: &[u8], path: &RelPath) -> io::Result<()> {
        let (from, file) = beneath::parent_of(self.aside(id)?.as_fd(), path, false)?;
        let (to, _) = beneath::parent_of(self.tree(id, name)?.as_fd(), path, true)?;
        match rustix::fs::linkat(&from, file.as_path(), &to, file.as_path(), AtFlags::empty()) {
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// The directory of dataset `id` in the tree, made if it is not there.
    pub(super) fn tree(&self, id: DatasetId, name: &[u8]) -> io::Result<OwnedFd> {
        let store = match self.tree_store(name)? {
            Some(store) => store,
            None => self.store_of(id)?,
        };
        beneath::make_directories(self.root(store), &self.in_tree(name)?)
    }

    /// Takes what is at a dataset's name in the tree out of it, to be removed with the dataset's
    /// own directory.
    pub(super) fn put_away(&self, id: DatasetId, name: &[u8]) -> io::Result<()> {
        let Some(store) = self.tree_store(name)? else { return Ok(()) };
        let own = self.own_in(store, id)?;
        let gone = RelPath::new("gone").map_err(invalid)?;
        beneath::remove_tree(own.as_fd(), &gone)?;
        match beneath::put_in_place(self.root(store), &self.in_tree(name)?, own.as_fd(), &gone) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }

    /// Forgets a file that did not arrive.
    pub(super) fn discard(&self, id: DatasetId, what: &Staged) -> io::Result<()> {
        self.remove_below(id, &what.path()?)
    }

    /// Forgets what was on its way aside when the worker died.
    pub(super) fn discard_half_kept(&self, id: DatasetId) -> io::Result<()> {
        for below in ["linking", "kept"] {
            self.remove_below(id, &RelPath::new(below).map_err(invalid)?)?;
        }
        Ok(())
    }

    /// A new file for what arrives.
    pub(super) fn stage(&self, id: DatasetId, what: &Staged, flags: OFlags) -> io::Result<OwnedFd> {
        beneath::create_file(self.own(id)?.as_fd(), &what.path()?, flags)
    }

    /// What has arrived.
    pub(super) fn staged(&self, id: DatasetId, what: &Staged) -> io::Result<OwnedFd> {
        beneath::open_file(self.own(id)?.as_fd(), &what.path()?)
    }

    /// What has arrived and was checked gets its place below `to`.
    pub(super) fn put_in_place(
        &self,
        id: DatasetId,
        what: &Staged,
        to: BorrowedFd<'_>,
        path: &RelPath,
    ) -> io::Result<()> {
        beneath::put_in_place(self.own(id)?.as_fd(), &what.path()?, to, path)
    }

    /// Forgets what was arriving for one member (`None`: for all, and copies).
    pub(super) fn discard_staged(&self, id: DatasetId, member: Option<Member>) -> io::Result<()> {
        let below = member.map_or_else(|| "staged".to_owned(), of_member);
        self.remove_below(id, &RelPath::new(below).map_err(invalid)?)
    }

    /// Forgets one arrival of a member.
    pub(super) fn discard_arrival(&self, id: DatasetId, member: Member, arrival: Arrival) -> io::Result<()> {
        self.remove_below(id, &RelPath::new(of_arrival(member, arrival)).map_err(invalid)?)
    }

    /// The copy that is sealed in place of a file of the tree, if there is one.
    pub(super) fn instead(&self, id: DatasetId, path: &RelPath) -> io::Result<Option<OwnedFd>> {
        let root = self.root(self.store_of(id)?);
        for why in [Instead::Log, Instead::Link] {
            let copy = Self::own_path(id)?.concat(&Staged::Instead(why, path.clone()).path()?);
            match beneath::open_file(root, &copy.map_err(invalid)?) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                other => return other.map(Some),
            }
        }
        Ok(None)
    }

    /// Files of which there are such copies.
    pub(super) fn copies(&self, id: DatasetId, why: Instead) -> io::Result<BTreeSet<RelPath>> {
        match beneath::open_directory(self.root(self.store_of(id)?), &Self::copies_path(id, why)?) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(BTreeSet::new()),
            other => Ok(regular_files(&other?, &RelPath::root())?.into_iter().collect()),
        }
    }

    /// The copies have their names on storage.
    pub(super) fn sync_copies(
        &self,
        id: DatasetId,
        why: Instead,
        paths: &BTreeSet<RelPath>,
    ) -> io::Result<()> {
        let root = self.root(self.store_of(id)?);
        let copies = beneath::open_directory(root, &Self::copies_path(id, why)?)?;
        sync_directories(copies.as_fd(), paths.iter())?;
        rustix::fs::fsync(self.own(id)?)?;
        Ok(rustix::fs::fsync(root)?)
    }

    pub(super) fn discard_copies(&self, id: DatasetId, why: Instead) -> io::Result<()> {
        self.remove_below(id, &RelPath::new(why.directory()).map_err(invalid)?)
    }

    fn copies_path(id: DatasetId, why: Instead) -> io::Result<RelPath> {
        Self::own_path(id)?.join(why.directory().as_bytes()).map_err(invalid)
    }

    /// Ids of which there is a directory of their own.
    pub(super) fn own_directories(&self) -> io::Result<Vec<DatasetId>> {
        let id = |name: &[u8]| std::str::from_utf8(name).ok()?.strip_prefix("dataset.")?.parse().ok();
        let mut found = BTreeSet::new();
        for root in &self.roots {
            found.extend(beneath::names(root)?.iter().filter_map(|name| id(name)).map(DatasetId));
        }
        Ok(found.into_iter().collect())
    }

    /// Removes the redundancy files of a dataset but those of these names.
    pub(super) fn remove_redundancy_but(&self, id: DatasetId, names: &BTreeSet<&str>) -> io::Result<()> {
        let own = self.own(id)?;
        for name in beneath::names(&own)? {
            let counts = std::str::from_utf8(&name).is_ok_and(|name| names.contains(name));
            if RedundancyFileName::parse(&name).is_none() || counts {
                continue;
            }
            match rustix::fs::unlinkat(&own, name.as_slice(), AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    /// Removes a dataset's own directory with all in it.
    pub(super) fn remove_own(&self, id: DatasetId) -> io::Result<()> {
        let path = Self::own_path(id)?;
        self.roots.iter().try_for_each(|root| beneath::remove_tree(root.as_fd(), &path))
    }

    pub(super) fn in_tree(&self, name: &[u8]) -> io::Result<RelPath> {
        let tree = RelPath::new("tree").and_then(|tree| tree.concat(&self.checkpoint));
        tree.and_then(|tree| tree.join(name)).map_err(invalid)
    }

    /// Moves a dataset's files out of the mounted tree; none there is no error.
    pub(super) fn put_aside(&self, id: DatasetId, name: &[u8]) -> io::Result<()> {
        let Some(store) = self.tree_store(name)? else { return Ok(()) };
        let own = self.own_in(store, id)?;
        let aside = RelPath::new("aside").map_err(invalid)?;
        match beneath::open_directory(self.root(store), &self.in_tree(name)?) {
            Ok(_) => {}
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(e) => return Err(e),
        }
        self.remove_below(id, &aside)?;
        let place = self.in_tree(name)?;
        beneath::put_in_place(self.root(store), &place, own.as_fd(), &aside)?;
        // Before a record says so.
        let synced = || {
            rustix::fs::fsync(&own)?;
            let (parent, _) = beneath::parent_of(self.root(store), &place, false)?;
            Ok(rustix::fs::fsync(parent)?)
        };
        moved(id, &synced());
        Ok(())
    }

    /// Moves a dataset's files into the mounted tree; an empty directory of that name there is
    /// replaced.
    pub(super) fn put_back(&self, id: DatasetId, name: &[u8]) -> io::Result<()> {
        let aside = RelPath::new("aside").map_err(invalid)?;
        // What was sealed of them is what programs see now.
        self.discard_copies(id, Instead::Log)?;
        let Some(store) = self.store_with(id, "aside")? else { return self.tree(id, name).map(drop) };
        for other in (0..self.roots.len()).filter(|other| *other != store) {
            match rustix::fs::unlinkat(self.root(other), self.in_tree(name)?.as_path(), AtFlags::REMOVEDIR) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        beneath::put_in_place(self.own_in(store, id)?.as_fd(), &aside, self.root(store), &self.in_tree(name)?)
    }
}

/// Puts the directories on storage that lead to `paths` below `home`, `home` itself too.
pub(super) fn sync_directories<'a>(
    home: BorrowedFd<'_>,
    paths: impl Iterator<Item = &'a RelPath>,
) -> io::Result<()> {
    let mut directories = BTreeSet::from([RelPath::root()]);
    for path in paths {
        let mut at = path.split_last().map(|(parent, _)| parent);
        while let Some(directory) = at {
            at = directory.split_last().map(|(parent, _)| parent);
            if !directories.insert(directory) {
                break;
            }
        }
    }
    for directory in &directories {
        rustix::fs::fsync(beneath::open_directory(home, directory)?)?;
    }
    Ok(())
}

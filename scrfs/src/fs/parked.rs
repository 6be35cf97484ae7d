//! More inodes than descriptors.
//!
//! The kernel may know any number of inodes, and a process may have only so many descriptors. Those of inodes that were
//! not asked for lately and that nobody has open are closed. What is needed again is opened by its name, and must be the
//! same file: by device and inode number. An inode that loses its last name meanwhile is lost to those who know it
//! without having it open.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::process::{Resource, getrlimit};

use super::attr::{key_of, stat_of};
use super::table::{Backing, Inner, Inode, Key};
use crate::daemon::boundary::Errno;

/// Descriptors of inodes at most; and of what a process may have, this part: the rest is for open files.
const OPEN_MAX: usize = 1 << 14;
const OPEN_PART: usize = 2;
/// Inodes that are in use and therefore passed over, each time another is opened.
const PASSED_MAX: u32 = 8;
/// Renames may come between the look at a name and its use.
const TRIES: u32 = 8;

/// Inodes with a descriptor, the one opened first in front; some are known no longer.
#[derive(Debug)]
pub(super) struct Pool {
    open: VecDeque<u64>,
    most: usize,
}

impl Pool {
    /// As many as this process may have.
    pub(super) fn new() -> Self {
        let limit = getrlimit(Resource::Nofile).current.and_then(|limit| usize::try_from(limit).ok());
        Self::of(limit.map_or(OPEN_MAX, |limit| (limit / OPEN_PART).min(OPEN_MAX)))
    }

    pub(super) fn of(most: usize) -> Self {
        Self { open: VecDeque::new(), most }
    }
}

impl Inner {
    /// Inode `id` got a descriptor: others may have to give theirs.
    pub(super) fn opened(&mut self, id: u64) {
        self.pool.open.push_back(id);
        for _ in 0..PASSED_MAX {
            if self.pool.open.len() <= self.pool.most {
                return;
            }
            let Some(first) = self.pool.open.pop_front() else { return };
            if !self.park(first) {
                self.pool.open.push_back(first);
            }
        }
    }

    /// Closes an inode's descriptor; false when it is in use, or has no name to be found by.
    fn park(&self, id: u64) -> bool {
        let Some(node) = self.nodes.get(&id) else { return true };
        let mut slot = node.inode.backing.write();
        let Some(known) = slot.as_mut() else { return true };
        let Some(fd) = &known.fd else { return true };
        if Arc::strong_count(&node.inode) > 1 || Arc::strong_count(fd) > 1 || node.links.is_empty() {
            return false;
        }
        // The state memory never names a descriptor that is closed.
        if let Some(record) = node.inode.record {
            self.keep.park(record);
        }
        known.fd = None;
        true
    }

    /// The inode that is parked, has this key, and is not known by this name.
    pub(super) fn parked_elsewhere(&self, parent: u64, name: &[u8], key: Key) -> Option<Arc<Inode>> {
        let node = self.nodes.get(self.keys.get(&key)?)?;
        let here = node.links.iter().any(|(dir, other)| *dir == parent && **other == *name);
        (!here && is_parked(&node.inode)).then(|| Arc::clone(&node.inode))
    }

    /// Inode `id` has lost a name; if it was the last, it cannot be opened again.
    pub(super) fn gone(&mut self, id: u64) {
        if self.nodes.get(&id).is_some_and(|node| node.links.is_empty()) {
            self.give_up(id);
        }
    }

    /// What inode `id` stood for is gone, if it is parked.
    pub(super) fn give_up(&mut self, id: u64) {
        let Some(node) = self.nodes.get(&id).filter(|node| is_parked(&node.inode)) else { return };
        if let Some(record) = node.inode.record {
            self.keep.clear_backing(record);
        }
        let known = node.inode.backing.write().take();
        if let Some(known) = known
            && self.keys.get(&known.key) == Some(&id)
        {
            self.keys.remove(&known.key);
        }
    }
}

fn is_parked(inode: &Inode) -> bool {
    inode.backing.read().as_ref().is_some_and(|known| known.fd.is_none())
}

/// Opens a parked inode again.
pub(super) fn open(inode: &Inode) -> Result<Backing, Errno> {
    let table = inode.table.upgrade().ok_or(Errno(libc::ESTALE))?;
    for _ in 0..TRIES {
        let (roots, path) = {
            let inner = table.lock();
            (inner.roots.clone(), inner.path(inode.id))
        };
        let path = path.ok_or(Errno(libc::ESTALE))?;
        let found = open_in(&roots, &path, inode);
        let mut inner = table.lock();
        let mut slot = inode.backing.write();
        let known = slot.as_mut().ok_or(Errno(libc::ESTALE))?;
        if let Some(fd) = &known.fd {
            return Ok(Backing { fd: Arc::clone(fd), key: known.key });
        }
        match found {
            Ok(backing) if backing.key == known.key => {
                if let Some(record) = inode.record {
                    inner.keep.set_backing(record, backing.kept());
                }
                known.fd = Some(Arc::clone(&backing.fd));
                drop(slot);
                inner.opened(inode.id);
                return Ok(backing);
            }
            Ok(_) | Err(Errno(libc::ENOENT | libc::ENOTDIR)) => {}
            Err(error) => return Err(error),
        }
    }
    Err(Errno(libc::ESTALE))
}

/// In the store in which it is; there is one nearly always.
fn open_in(
    roots: &[Arc<std::os::fd::OwnedFd>],
    path: &crate::path::RelPath,
    inode: &Inode,
) -> Result<Backing, Errno> {
    let key = inode.backing.read().as_ref().map(|known| known.key);
    let mut found = Err(Errno(libc::ENOENT));
    for root in roots {
        found = open_path(root, path);
        if found.as_ref().is_ok_and(|backing| Some(backing.key) == key) {
            break;
        }
    }
    found
}

fn open_path(root: &std::os::fd::OwnedFd, path: &crate::path::RelPath) -> Result<Backing, Errno> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let (dir, name) = path.split_last().ok_or(Errno(libc::ESTALE))?;
    let fd = if dir.is_root() {
        rustix::fs::openat(root, name, flags, Mode::empty())?
    } else {
        let above = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let above = rustix::fs::openat2(root, dir.as_path(), above, Mode::empty(), resolve)?;
        rustix::fs::openat(above, name, flags, Mode::empty())?
    };
    let key = key_of(&stat_of(&fd)?);
    Ok(Backing { fd: Arc::new(fd), key })
}

/// Names in a directory; small where there are none.
#[derive(Debug, Default)]
#[expect(clippy::box_collection, reason = "most inodes have none, and a map takes room even then")]
pub(super) struct Names(Option<Box<HashMap<Arc<[u8]>, u64>>>);

impl Names {
    pub(super) fn get(&self, name: &[u8]) -> Option<&u64> {
        self.0.as_ref()?.get(name)
    }

    pub(super) fn insert(&mut self, name: Arc<[u8]>, id: u64) -> Option<u64> {
        self.0.get_or_insert_default().insert(name, id)
    }

    pub(super) fn remove(&mut self, name: &[u8]) -> Option<u64> {
        let names = self.0.as_mut()?;
        let id = names.remove(name);
        if names.is_empty() {
            self.0 = None;
        }
        id
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Arc<[u8]>, &u64)> {
        self.0.iter().flat_map(|names| names.iter())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_none()
    }
}

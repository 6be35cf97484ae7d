//! More inodes than descriptors and memory.
//!
//! The kernel may know any number of inodes, and a process may have only so many descriptors. Of
//! inodes that were not asked for lately and that nobody has open the descriptor is closed, and
//! little is kept. What is needed again is opened by its name, and must be the same file: by device
//! and inode number. An inode that loses its last name meanwhile is lost to those who know it
//! without having it open.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::process::{Resource, getrlimit};

use super::inode::{Backing, Inode, Key};
use super::nodes::{Held, Nodes};
use crate::errno::Errno;
use crate::fs::attr::{key_of, stat_of};
use crate::fs::bound::Bound;

/// Descriptors of inodes at most; and of what a process may have, this part: the rest is for open
/// files.
const OPEN_MAX: usize = 1 << 14;
const OPEN_PART: usize = 2;
/// Inodes that are in use and therefore passed over, each time another is needed.
const PASSED_MAX: u32 = 8;
/// Descriptors that are closed at most, and inodes passed over, each time one got a number that is
/// kept back.
const SHORT_CLOSED_MAX: u32 = 32;
const SHORT_PASSED_MAX: u32 = 64;
/// Renames may come between the look at a name and its use.
const TRIES: u32 = 8;

/// Inodes that are in use or were lately, the one used first in front; some are known no longer.
#[derive(Debug)]
pub(super) struct Pool {
    used: VecDeque<u64>,
    most: usize,
    bound: Bound,
}

impl Pool {
    /// As many as this process may have descriptors for.
    pub(super) fn new() -> Self {
        let limit = getrlimit(Resource::Nofile).current.and_then(|limit| usize::try_from(limit).ok());
        Self::of(limit.map_or(OPEN_MAX, |limit| (limit / OPEN_PART).min(OPEN_MAX)))
    }

    pub(super) fn of(most: usize) -> Self {
        Self { used: VecDeque::new(), most, bound: Bound::default() }
    }

    /// It is in use, and nothing is asked of others for that.
    pub(super) fn enter(&mut self, id: u64) {
        self.used.push_back(id);
    }
}

/// There are no more descriptors for this process.
pub(super) fn too_many(error: Errno) -> bool {
    matches!(error, Errno(libc::EMFILE | libc::ENFILE))
}

impl Nodes {
    /// Inode `id` is in use, or soon: others may have to give up what they have.
    pub(super) fn used(&mut self, id: u64) {
        self.pool.enter(id);
        self.rest_some();
    }

    /// All that nobody uses give up what they have.
    pub(super) fn rest_all(&mut self) {
        for _ in 0..self.pool.used.len() {
            let Some(first) = self.pool.used.pop_front() else { return };
            if !self.rest(first) {
                self.pool.enter(first);
            }
        }
    }

    /// Those above the number that may be open give up what they have, where few are in use.
    pub(super) fn rest_some(&mut self) {
        let mut passed = 0;
        while self.pool.used.len() > self.pool.most && passed < PASSED_MAX {
            let Some(first) = self.pool.used.pop_front() else { return };
            if !self.rest(first) {
                self.pool.enter(first);
                passed += 1;
            }
        }
    }

    /// `fd` was opened for an inode. If its number is one that is kept back, all lower ones are
    /// taken: some that nobody uses are closed, so that what a request opens for itself finds room.
    pub(super) fn opened(&mut self, fd: &Arc<OwnedFd>) {
        let (mut closed, mut passed) = (0, 0);
        while !self.pool.bound.admits(fd) && closed < SHORT_CLOSED_MAX && passed < SHORT_PASSED_MAX {
            let Some(first) = self.pool.used.pop_front() else { return };
            if self.rest(first) {
                closed += 1;
            } else {
                self.pool.enter(first);
                passed += 1;
            }
        }
    }

    /// Leaves of an inode only what it takes to make it anew; false when it is in use, or has no
    /// name to be found by.
    fn rest(&mut self, id: u64) -> bool {
        let Some(node) = self.get_mut(id) else { return true };
        let Held::Used(inode) = &node.held else { return true };
        if Arc::strong_count(inode) > 1 || inode.is_used_below() {
            return false;
        }
        let (record, parked, key) = (inode.record, inode.is_parked(), inode.key());
        let is_open = key.is_some() && !parked;
        if is_open && node.links.is_empty() {
            return false;
        }
        let idle = Held::Idle { record, key };
        // Closed when this returns: the state memory never names a descriptor that is.
        let _used = std::mem::replace(&mut node.held, idle);
        if is_open && let Some(record) = record {
            self.keep.park(record);
        }
        true
    }

    /// The inode that is parked, has this key, and is not known by this name.
    pub(super) fn parked_elsewhere(&mut self, parent: u64, name: &[u8], key: Key) -> Option<Arc<Inode>> {
        let id = self.number(key)?;
        let node = self.get(id)?;
        let here = node.links.iter().any(|(dir, other)| *dir == parent && **other == *name);
        if here || !node.is_parked() {
            return None;
        }
        self.inode(id)
    }

    /// Inode `id` has lost a name; if it was the last, it cannot be opened again.
    pub(super) fn gone(&mut self, id: u64) {
        if self.get(id).is_some_and(|node| node.links.is_empty()) {
            self.give_up(id);
        }
    }

    /// What inode `id` stood for is gone, if it is parked.
    pub(super) fn give_up(&mut self, id: u64) {
        let Some(node) = self.get_mut(id).filter(|node| node.is_parked()) else { return };
        let key = node.key();
        let record = match &mut node.held {
            Held::Used(inode) => {
                *inode.backing.write() = None;
                inode.record
            }
            Held::Idle { record, key } => {
                *key = None;
                *record
            }
        };
        if let Some(record) = record {
            self.keep.clear_backing(record);
        }
        if let Some(key) = key {
            self.stood_for(id, key);
        }
    }
}

/// Opens a parked inode again.
pub(super) fn open(inode: &Inode) -> Result<Backing, Errno> {
    let table = inode.table.upgrade().ok_or(Errno(libc::ESTALE))?;
    let mut last = Errno(libc::ESTALE);
    for _ in 0..TRIES {
        let (roots, path) = {
            let inner = table.lock();
            (inner.roots.clone(), inner.path(inode.id))
        };
        let path = path.ok_or(Errno(libc::ESTALE))?;
        let found = open_in(&roots, &path, inode);
        let mut inner = table.lock();
        match &found {
            Ok(backing) => inner.opened(&backing.fd),
            Err(error) if too_many(*error) => inner.rest_all(),
            Err(_) => {}
        }
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
                return Ok(backing);
            }
            Ok(_) | Err(Errno(libc::ENOENT | libc::ENOTDIR)) => {}
            Err(error) if too_many(error) => last = error,
            Err(error) => return Err(error),
        }
    }
    Err(last)
}

/// In the store in which it is; there is one nearly always.
fn open_in(roots: &[Arc<OwnedFd>], path: &crate::path::RelPath, inode: &Inode) -> Result<Backing, Errno> {
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

fn open_path(root: &OwnedFd, path: &crate::path::RelPath) -> Result<Backing, Errno> {
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

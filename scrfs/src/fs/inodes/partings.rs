//! Inodes whose names have become files of their own, and when. A request names an inode, not a
//! name: one that came before cannot be carried out on what the inode stands for now. ESTALE has
//! the kernel look its name up again, and ask anew.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::errno::Errno;
use crate::lock::Mutex;

/// Inodes that are remembered. Requests are answered within minutes, so old ones may be forgotten,
/// if nothing is taken for newer than it is by that.
const INODES_MAX: usize = 4096;

/// A moment between two partings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment(u64);

#[derive(Debug, Default)]
struct Parted {
    /// The last parting of each.
    last: HashMap<u64, u64>,
    /// Those of inodes that are forgotten were not after this one.
    forgotten: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Partings {
    /// Beside the lock: each open asks for it, and nearly always nothing was parted meanwhile.
    now: AtomicU64,
    parted: Mutex<Parted>,
}

impl Partings {
    pub(crate) fn now(&self) -> Moment {
        Moment(self.now.load(Ordering::Acquire))
    }

    /// A name of inode `id` stands for another one from now on.
    pub(crate) fn part(&self, id: u64) {
        let mut parted = self.parted.lock();
        let before = self.now.load(Ordering::Acquire);
        if parted.last.len() >= INODES_MAX {
            parted.last.clear();
            parted.forgotten = before;
        }
        parted.last.insert(id, before + 1);
        self.now.store(before + 1, Ordering::Release);
    }

    /// ESTALE if a name of inode `id` was taken from it after `since`.
    pub(crate) fn check(&self, id: u64, since: Moment) -> Result<(), Errno> {
        if self.now() == since {
            return Ok(());
        }
        let parted = self.parted.lock();
        let last = parted.last.get(&id).copied().unwrap_or(parted.forgotten);
        if last > since.0 { Err(Errno(libc::ESTALE)) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_of_before_are_stale() {
        let partings = Partings::default();
        let before = partings.now();
        partings.part(7);
        let after = partings.now();
        assert_eq!(partings.check(7, before), Err(Errno(libc::ESTALE)));
        assert_eq!((partings.check(7, after), partings.check(8, before)), (Ok(()), Ok(())));
        for id in 100..100 + INODES_MAX as u64 {
            partings.part(id);
        }
        assert_eq!(partings.check(7, before), Err(Errno(libc::ESTALE)), "also when it is forgotten");
        assert_eq!(partings.check(7, partings.now()), Ok(()));
    }
}

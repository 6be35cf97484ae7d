//! Descriptors that are kept back: what programs hold open has numbers below a bound, so that
//! names, removals, seals and control connections always find some.
//!
//! The kernel gives the lowest number that is free: a number tells whether there are lower ones.

use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::fcntl_dupfd_cloexec;
use rustix::process::{Resource, getrlimit};

use super::FileSystem;
use super::inodes::{Backing, Inode};
use crate::errno::Errno;
use crate::lock::Mutex;

/// This part of what the process may have is kept back, within bounds.
const PART: u64 = 8;
const LEAST: u64 = 16;
const MOST: u64 = 1024;
/// Between two events.
const CALM: Duration = Duration::from_mins(1);

/// The lowest number that is kept back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bound(RawFd);

/// By what this process may have now.
impl Default for Bound {
    fn default() -> Self {
        Self::of(getrlimit(Resource::Nofile).current)
    }
}

impl Bound {
    fn of(limit: Option<u64>) -> Self {
        let limit = limit.unwrap_or(u64::MAX);
        let bound = limit.saturating_sub((limit / PART).clamp(LEAST, MOST));
        Self(RawFd::try_from(bound).unwrap_or(RawFd::MAX))
    }

    /// A program may hold it.
    pub(crate) fn admits(self, fd: &impl AsRawFd) -> bool {
        fd.as_raw_fd() < self.0
    }
}

/// When programs were refused last, for the events.
#[derive(Debug, Default)]
pub(crate) struct Descriptors {
    pub(crate) bound: Bound,
    told: Mutex<Option<Instant>>,
}

impl FileSystem {
    /// A program is about to make and open a file: nothing is made when it cannot be opened.
    /// EMFILE.
    pub(crate) fn admit_new(&self) -> Result<(), Errno> {
        if self.has_descriptors() {
            return Ok(());
        }
        self.table.rest_all();
        if self.has_descriptors() { Ok(()) } else { self.too_many_open() }
    }

    /// One for the inode, and where the daemon serves data one for the handle.
    fn has_descriptors(&self) -> bool {
        let bound = self.descriptors.bound;
        let another =
            || fcntl_dupfd_cloexec(&self.trees.primary().tree, 0).ok().filter(|fd| bound.admits(fd));
        let one = self.kernel.serves_data();
        another().is_some_and(|_held| one || another().is_some())
    }

    /// A program is about to hold this inode open: EMFILE when only what is kept back is left.
    pub(crate) fn admit(&self, inode: &Inode) -> Result<(), Errno> {
        let Backing { fd, key } = inode.opened()?;
        if self.descriptors.bound.admits(&fd) {
            return Ok(());
        }
        self.table.rest_all();
        match fcntl_dupfd_cloexec(&fd, 0) {
            Ok(lower) if self.descriptors.bound.admits(&lower) => {
                self.table.attach(inode, Backing { fd: Arc::new(lower), key });
                Ok(())
            }
            _ => self.too_many_open(),
        }
    }

    /// The same of what was opened for a program.
    pub(crate) fn admitted<T: AsRawFd>(&self, open: impl Fn() -> Result<T, Errno>) -> Result<T, Errno> {
        let file = self.table.opening(&open)?;
        if self.descriptors.bound.admits(&file) {
            return Ok(file);
        }
        drop(file);
        self.table.rest_all();
        let file = open()?;
        if self.descriptors.bound.admits(&file) { Ok(file) } else { self.too_many_open() }
    }

    fn too_many_open<T>(&self) -> Result<T, Errno> {
        let now = Instant::now();
        let mut told = self.descriptors.told.lock();
        if told.is_none_or(|last| now.duration_since(last) >= CALM) {
            *told = Some(now);
            drop(told);
            self.node.note(format!(
                "programs have all files open that this daemon has descriptors for ({}): further opens get EMFILE, all else \
                 goes on; close files, or mount with a higher limit of open files (ulimit -n)",
                self.descriptors.bound.0
            ));
        }
        Err(Errno(libc::EMFILE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_many_are_kept_back() {
        for (limit, bound) in [
            (Some(10), 0),
            (Some(64), 48),
            (Some(256), 224),
            (Some(1024), 896),
            (Some(1 << 20), (1 << 20) - 1024),
            (None, RawFd::MAX),
        ] {
            assert_eq!(Bound::of(limit), Bound(bound), "{limit:?}");
        }
    }
}

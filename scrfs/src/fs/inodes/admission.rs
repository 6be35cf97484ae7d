//! What programs may hold open: numbers of descriptors that are kept back are not for them.

use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::fcntl_dupfd_cloexec;

use super::inode::{Backing, Inode};
use super::table::Table;
use crate::errno::Errno;

/// Between two events.
const CALM: Duration = Duration::from_mins(1);

impl Table {
    /// A program is about to make and open a file, whose data the kernel serves or not (`served`):
    /// nothing is made when it cannot be opened. EMFILE.
    pub(crate) fn admit_new(&self, served: bool) -> Result<(), Errno> {
        if self.has_descriptors(served) {
            return Ok(());
        }
        self.rest_all();
        if self.has_descriptors(served) { Ok(()) } else { self.too_many_open() }
    }

    /// One for the inode, and where the daemon serves data one for the handle.
    fn has_descriptors(&self, served: bool) -> bool {
        let Some(any) = self.nodes.lock().roots.first().cloned() else { return false };
        let another = || fcntl_dupfd_cloexec(&any, 0).ok().filter(|fd| self.bound.admits(fd));
        another().is_some_and(|_held| served || another().is_some())
    }

    /// A program is about to hold this inode open: EMFILE when only what is kept back is left.
    pub(crate) fn admit(&self, inode: &Inode) -> Result<(), Errno> {
        let Backing { fd, key } = inode.opened()?;
        if self.bound.admits(&fd) {
            return Ok(());
        }
        self.rest_all();
        match fcntl_dupfd_cloexec(&fd, 0) {
            Ok(lower) if self.bound.admits(&lower) => {
                self.attach(inode, Backing { fd: Arc::new(lower), key });
                Ok(())
            }
            _ => self.too_many_open(),
        }
    }

    /// The same of what was opened for a program.
    pub(crate) fn admitted<T: AsRawFd>(&self, open: impl Fn() -> Result<T, Errno>) -> Result<T, Errno> {
        let file = self.opening(&open)?;
        if self.bound.admits(&file) {
            return Ok(file);
        }
        drop(file);
        self.rest_all();
        let file = open()?;
        if self.bound.admits(&file) { Ok(file) } else { self.too_many_open() }
    }

    fn too_many_open<T>(&self) -> Result<T, Errno> {
        let now = Instant::now();
        let mut told = self.told.lock();
        if told.is_none_or(|last| now.duration_since(last) >= CALM) {
            *told = Some(now);
            drop(told);
            self.node.note(format!(
                "programs have all files open that this daemon has descriptors for ({}): further opens get EMFILE, all else \
                 goes on; close files, or mount with a higher limit of open files (ulimit -n)",
                self.bound.number()
            ));
        }
        Err(Errno(libc::EMFILE))
    }
}

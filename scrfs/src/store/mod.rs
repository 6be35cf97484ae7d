//! Putting small state on storage so that a crash at any instant leaves the former or the new
//! version, whole.
//!
//! * [`Store::commit`] replaces a file: temporary, fsync, rename, fsync of the directory. Every
//!   metadata file of the daemon is written by it.
//! * [`log::Log`] appends records; a torn last one is dropped when it is read again.
//! * [`reserve`] keeps room back for both where others may fill the file system.
//! * [`beneath`] opens, makes and removes things in a directory that paths cannot leave; `lease`
//!   tells who else has a file open.
//!
//! Fault points: `store.write`, `store.sync`, `store.rename`, `store.directory`.

pub mod beneath;
pub(crate) mod lease;
pub mod log;
pub mod private;
pub mod reserve;

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, Mode, OFlags};

use self::reserve::{Reserve, Use};
use crate::faults;
use crate::lock::Mutex;

/// Why state did not reach storage, or cannot be read from it.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Nothing has changed: the former version stands.
    #[error("{}: {step}: {source}", path.display())]
    Failed {
        /// The file.
        path: PathBuf,
        /// What was done.
        step: &'static str,
        /// The reason.
        source: io::Error,
    },
    /// The new version is in place, but whether it would survive a power loss is not known. Only a
    /// whole commit of the same file ends the doubt.
    #[error("{}: replaced, but its directory could not be written: {source}", path.display())]
    InDoubt {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// More bytes than such a file can have.
    #[error("{}: {size} bytes are more than the {limit} that it may have", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Bytes.
        size: u64,
        /// Bytes allowed.
        limit: u64,
    },
}

impl StoreError {
    /// The errno behind it, EIO where there is none.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Failed { source, .. } | Self::InDoubt { source, .. } => {
                source.raw_os_error().unwrap_or(libc::EIO)
            }
            Self::TooLarge { .. } => libc::EFBIG,
        }
    }
}

/// A directory of small files that are replaced as wholes.
#[derive(Debug)]
pub struct Store {
    path: PathBuf,
    directory: OwnedFd,
    /// Files whose last commit ended [`StoreError::InDoubt`].
    in_doubt: Mutex<BTreeSet<String>>,
    reserve: Option<Arc<Reserve>>,
    #[cfg(test)]
    pub(crate) crash: crash::Crash,
}

impl Store {
    /// Opens `path`, which exists.
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self {
            path: path.to_owned(),
            directory: rustix::fs::open(path, flags, Mode::empty())?,
            in_doubt: Mutex::default(),
            reserve: None,
            #[cfg(test)]
            crash: crash::Crash::default(),
        })
    }

    /// From now on what is kept back there serves this store too.
    #[must_use]
    pub fn with_reserve(mut self, reserve: Option<Arc<Reserve>>) -> Self {
        self.reserve = reserve;
        self
    }

    /// Does what needs about `bytes` of room; when there is none, with what is kept back.
    fn with_room<T, E>(
        &self,
        bytes: usize,
        errno: impl Fn(&E) -> i32,
        mut work: impl FnMut() -> Result<T, E>,
    ) -> Result<T, E> {
        match &self.reserve {
            Some(reserve) => reserve.help(Use::Record, bytes, errno, work),
            None => work(),
        }
    }

    /// The directory's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The directory.
    pub fn directory(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }

    /// Files of which it is not known whether their last version is on storage.
    pub fn in_doubt(&self) -> Vec<String> {
        self.in_doubt.lock().iter().cloned().collect()
    }

    /// Replaces file `name` (mode 0600) by `bytes`; when this returns, they are on storage.
    pub fn commit(&self, name: &str, bytes: &[u8]) -> Result<(), StoreError> {
        self.with_room(bytes.len(), StoreError::errno, || self.replace(name, bytes))
    }

    fn replace(&self, name: &str, bytes: &[u8]) -> Result<(), StoreError> {
        let temporary = temporary(name);
        if let Err(error) = self.write_temporary(&temporary, bytes) {
            self.discard(&temporary);
            return Err(error);
        }
        let renamed = self
            .step("store.rename")
            .and_then(|()| Ok(rustix::fs::renameat(&self.directory, &temporary, &self.directory, name)?));
        if let Err(source) = renamed {
            self.discard(&temporary);
            return Err(self.failed(name, "rename", source));
        }
        self.sync_directory(name)
    }

    /// Removes file `name`; it is no error when there is none.
    pub fn remove(&self, name: &str) -> Result<(), StoreError> {
        let removed = self
            .step("store.remove")
            .and_then(|()| Ok(rustix::fs::unlinkat(&self.directory, name, AtFlags::empty())?));
        match removed {
            Ok(()) => self.sync_directory(name),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                if self.in_doubt.lock().contains(name) {
                    self.sync_directory(name)
                } else {
                    Ok(())
                }
            }
            Err(source) => Err(self.failed(name, "unlink", source)),
        }
    }

    /// The bytes of file `name`, `None` if there is none.
    pub fn read(&self, name: &str, limit: u64) -> Result<Option<Vec<u8>>, StoreError> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(&self.directory, name, flags, Mode::empty()) {
            Ok(fd) => File::from(fd),
            Err(rustix::io::Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(self.failed(name, "open", errno.into())),
        };
        read_bounded(file, limit).map(Some).map_err(|problem| match problem {
            Bounded::Io(source) => self.failed(name, "read", source),
            Bounded::Size(size) => StoreError::TooLarge { path: self.path.join(name), size, limit },
        })
    }

    fn write_temporary(&self, temporary: &str, bytes: &[u8]) -> Result<(), StoreError> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let mut file = rustix::fs::openat(&self.directory, temporary, flags, mode)
            .map(File::from)
            .map_err(|errno| self.failed(temporary, "create", errno.into()))?;
        self.step("store.write")
            .and_then(|()| file.write_all(bytes))
            .map_err(|source| self.failed(temporary, "write", source))?;
        self.step("store.sync")
            .and_then(|()| file.sync_all())
            .map_err(|source| self.failed(temporary, "fsync", source))
    }

    fn sync_directory(&self, name: &str) -> Result<(), StoreError> {
        match self.step("store.directory").and_then(|()| Ok(rustix::fs::fsync(&self.directory)?)) {
            Ok(()) => {
                self.in_doubt.lock().remove(name);
                Ok(())
            }
            Err(source) => {
                self.in_doubt.lock().insert(name.to_owned());
                Err(StoreError::InDoubt { path: self.path.join(name), source })
            }
        }
    }

    fn discard(&self, temporary: &str) {
        #[cfg(test)]
        if self.crash.is_down() {
            return;
        }
        let _ = rustix::fs::unlinkat(&self.directory, temporary, AtFlags::empty());
    }

    #[cfg_attr(not(test), expect(clippy::unused_self, reason = "tests crash a store at a step"))]
    fn step(&self, point: &'static str) -> io::Result<()> {
        #[cfg(test)]
        self.crash.step()?;
        faults::hit(point)
    }

    fn failed(&self, name: &str, step: &'static str, source: io::Error) -> StoreError {
        StoreError::Failed { path: self.path.join(name), step, source }
    }
}

fn temporary(name: &str) -> String {
    format!(".{name}.new")
}

enum Bounded {
    Io(io::Error),
    Size(u64),
}

fn read_bounded(mut file: File, limit: u64) -> Result<Vec<u8>, Bounded> {
    let size = file.metadata().map_err(Bounded::Io)?.len();
    if size > limit {
        return Err(Bounded::Size(size));
    }
    let mut bytes = Vec::new();
    Read::by_ref(&mut file).take(limit).read_to_end(&mut bytes).map_err(Bounded::Io)?;
    Ok(bytes)
}

#[cfg(test)]
pub(crate) mod crash {
    //! A crash after a given number of steps: from then on nothing reaches the disk.

    use std::io;
    use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

    #[derive(Debug)]
    pub(crate) struct Crash {
        steps_left: AtomicI64,
        down: AtomicBool,
    }

    impl Default for Crash {
        fn default() -> Self {
            Self { steps_left: AtomicI64::new(i64::MAX), down: AtomicBool::new(false) }
        }
    }

    impl Crash {
        /// `steps` more steps succeed.
        pub(crate) fn after(&self, steps: i64) {
            self.steps_left.store(steps, Ordering::SeqCst);
        }

        pub(crate) fn is_down(&self) -> bool {
            self.down.load(Ordering::SeqCst)
        }

        pub(crate) fn step(&self) -> io::Result<()> {
            if self.steps_left.fetch_sub(1, Ordering::SeqCst) <= 0 {
                self.down.store(true, Ordering::SeqCst);
                return Err(io::Error::other("crashed"));
            }
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crash_at_any_step_leaves_one_whole_version() {
        // Steps of a commit: write, sync, rename, directory.
        for steps in 0..=4 {
            let dir = tempfile::tempdir().unwrap();
            let store = Store::open(dir.path()).unwrap();
            store.commit("state", b"old").unwrap();
            store.crash.after(steps);
            let outcome = store.commit("state", b"new and longer");
            let expected: &[u8] = if steps < 3 { b"old" } else { b"new and longer" };
            assert_eq!(outcome.is_ok(), steps == 4);
            let after = Store::open(dir.path()).unwrap();
            assert_eq!(after.read("state", 100).unwrap().unwrap(), expected, "after {steps} steps");
            after.commit("state", b"next").unwrap();
            assert_eq!(after.read("state", 100).unwrap().unwrap(), b"next");
        }
    }

    #[test]
    fn doubt_is_named_and_ends_with_a_whole_commit() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        store.crash.after(3);
        assert!(matches!(store.commit("a", b"1"), Err(StoreError::InDoubt { .. })));
        assert_eq!(store.in_doubt(), ["a"]);
        store.crash.after(100);
        store.commit("b", b"1").unwrap();
        assert_eq!(store.in_doubt(), ["a"]);
        store.commit("a", b"2").unwrap();
        assert!(store.in_doubt().is_empty());
    }

    #[test]
    fn reading_is_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        store.commit("a", &[7; 50]).unwrap();
        assert!(matches!(store.read("a", 49), Err(StoreError::TooLarge { size: 50, .. })));
        assert!(store.read("none", 49).unwrap().is_none());
        store.remove("a").unwrap();
        store.remove("a").unwrap();
        assert!(store.read("a", 50).unwrap().is_none());
    }
}

//! Deleting trees: out of sight at once, by one rename; the bytes go in a thread of their own, so
//! that the daemon serves everything else while a big tree is deleted.
//!
//! A tree is deleted only when its rename is on storage, so that no half of it comes back after a
//! power loss. What a crash left is deleted at the next start. Who removed a directory is answered
//! when its bytes are gone: the room that statfs then tells of can be written to.
//!
//! Fault points: `remove.aside`, `remove.synced`.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, Mode, OFlags};

use crate::errno::Errno;
use crate::faults;
use crate::fs::view::RESERVED_AT_ROOT;
use crate::lane::{Hands, Lane};
use crate::lock::{Condvar, Mutex};
use crate::path::RelPath;
use crate::store::beneath;

/// Names that begin so are not deleted: unsealed files that `--keep-unsealed` keeps.
const KEPT: &[u8] = b"kept.";

/// What deletes.
const DELETES: &str = "scrfs-delete";

/// What is being deleted.
pub(crate) struct Doomed {
    lane: Lane,
    hands: Hands,
    shared: Arc<Shared>,
}

struct Shared {
    /// `.scrfs` in the backing tree of each store: what is in it is to be deleted.
    trash: Vec<OwnedFd>,
    count: Mutex<Count>,
    gone: Condvar,
}

struct Count {
    /// Name and number of the next.
    next: u64,
    /// All before this one are gone, or could not be deleted.
    gone: u64,
}

/// Out of sight, not yet being deleted.
#[derive(Debug)]
#[must_use]
pub(crate) struct Aside {
    store: usize,
    number: u64,
    /// Where it was, opened for nothing but its path.
    from: OwnedFd,
}

impl Doomed {
    /// In the backing tree of each store; goes on with what a former process left.
    pub(crate) fn open(trees: &[&Path], hands: Hands) -> io::Result<Self> {
        let reserved =
            RelPath::new(RESERVED_AT_ROOT).map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e))?;
        let (mut trash, mut left) = (Vec::new(), Vec::new());
        for (store, tree) in trees.iter().enumerate() {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let tree = rustix::fs::open(*tree, flags, Mode::empty())?;
            let keep = beneath::make_directories(tree.as_fd(), &reserved)?;
            let names = beneath::names(keep.as_fd())?.into_iter();
            left.extend(names.filter(|name| !name.starts_with(KEPT)).map(|name| (store, name)));
            trash.push(keep);
        }
        let number = |(_, name): &(usize, Vec<u8>)| std::str::from_utf8(name).ok()?.parse::<u64>().ok();
        let next = left.iter().filter_map(number).max().map_or(0, |last| last.saturating_add(1));
        let shared = Arc::new(Shared {
            trash,
            count: Mutex::leaf(Count { next, gone: next }),
            gone: Condvar::default(),
        });
        let doomed = Self { lane: Lane::start(&hands, DELETES)?, hands, shared };
        for (store, name) in left {
            let shared = Arc::clone(&doomed.shared);
            doomed.lane.run(move || shared.delete(store, &name));
        }
        Ok(doomed)
    }

    /// Where things of a store are that programs do not see; what is left there is deleted at the
    /// next start.
    pub(crate) fn directory(&self, store: usize) -> BorrowedFd<'_> {
        self.shared.trash[store].as_fd()
    }

    /// Takes `name` out of directory `from` of a store, which is opened with O_PATH. One that is
    /// empty, or no directory, is gone by that.
    pub(crate) fn take(&self, store: usize, from: OwnedFd, name: &[u8]) -> Result<Option<Aside>, Errno> {
        match rustix::fs::unlinkat(&from, name, AtFlags::REMOVEDIR) {
            Ok(()) => return Ok(None),
            Err(rustix::io::Errno::NOTDIR) => {
                rustix::fs::unlinkat(&from, name, AtFlags::empty())?;
                return Ok(None);
            }
            // EEXIST is another way to say ENOTEMPTY.
            Err(rustix::io::Errno::NOTEMPTY | rustix::io::Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        let number = {
            let mut count = self.shared.count.lock();
            count.next += 1;
            count.next - 1
        };
        let path = RelPath::new(name)?;
        let moved = beneath::rename(from.as_fd(), &path, self.directory(store), &named(number)?);
        if let Err(error) = moved {
            self.queue(number, |_| {}, || {});
            return Err(error.into());
        }
        Ok(Some(Aside { store, number, from }))
    }

    /// Puts `name` of directory `from` of a store, which is opened with O_PATH, into
    /// `kept.<label>`, out of the programs' sight. It is not deleted.
    pub(crate) fn keep(&self, store: usize, from: &OwnedFd, name: &[u8], label: &str) -> Result<(), Errno> {
        let kept = RelPath::new(format!("kept.{label}"))?;
        let directory = beneath::make_directories(self.directory(store), &kept)?;
        let name = RelPath::new(name)?;
        Ok(beneath::rename(from.as_fd(), &name, directory.as_fd(), &name)?)
    }

    /// Deletes it by and by; `after` runs in the deleting thread. Its number is for
    /// [`Doomed::is_gone`].
    pub(crate) fn delete(&self, aside: Aside, after: impl FnOnce() + Send + 'static) -> u64 {
        let Aside { store, number, from } = aside;
        self.queue(number, move |shared| shared.delete_safely(store, &from, number), after);
        number
    }

    fn queue(
        &self,
        number: u64,
        work: impl FnOnce(&Shared) + Send + 'static,
        after: impl FnOnce() + Send + 'static,
    ) {
        let shared = Arc::clone(&self.shared);
        self.lane.run(move || {
            work(&shared);
            {
                let mut count = shared.count.lock();
                count.gone = count.gone.max(number + 1);
            }
            shared.gone.notify_all();
            after();
        });
    }

    /// Have its bytes gone?
    pub(crate) fn is_gone(&self, number: u64) -> bool {
        number < self.shared.count.lock().gone
    }

    /// Waits until all that was taken so far is gone; false when that takes longer.
    pub(crate) fn wait(&self, at_most: Duration) -> bool {
        self.hands.finish(DELETES);
        let mut count = self.shared.count.lock();
        let last = count.next;
        self.shared.gone.wait_while_until(&mut count, |count| count.gone < last, Instant::now() + at_most);
        count.gone >= last
    }
}

impl Shared {
    fn delete_safely(&self, store: usize, from: &OwnedFd, number: u64) {
        let synced = faults::hit("remove.aside")
            .and_then(|()| self.sync(store, from))
            .and_then(|()| faults::hit("remove.synced"));
        match synced {
            Ok(()) => self.delete(store, number.to_string().as_bytes()),
            Err(error) => tracing::warn!(%error, number, "a removed tree stays until the next start"),
        }
    }

    fn sync(&self, store: usize, from: &OwnedFd) -> io::Result<()> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::fsync(&self.trash[store])?;
        Ok(rustix::fs::fsync(rustix::fs::openat(from, ".", flags, Mode::empty())?)?)
    }

    /// It is out of sight, so an error costs room, not correctness.
    fn delete(&self, store: usize, name: &[u8]) {
        let removed = RelPath::new(name)
            .map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e))
            .and_then(|path| beneath::remove_tree(self.trash[store].as_fd(), &path));
        if let Err(error) = removed {
            tracing::warn!(name = %String::from_utf8_lossy(name), %error, "a removed tree cannot be deleted");
        }
    }
}

fn named(number: u64) -> Result<RelPath, Errno> {
    Ok(RelPath::new(number.to_string())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(fd: &OwnedFd) -> String {
        crate::fs::proc_path(fd)
    }

    #[test]
    fn what_a_crash_left_is_deleted_and_numbers_are_not_given_twice() {
        let dir = tempfile::tempdir().unwrap();
        let keep = dir.path().join(".scrfs");
        std::fs::create_dir_all(keep.join("7/deep/er")).unwrap();
        std::fs::write(keep.join("7/deep/file"), b"x").unwrap();
        std::fs::write(keep.join("odd"), b"x").unwrap();
        std::fs::create_dir_all(dir.path().join("d/below")).unwrap();
        let doomed = Doomed::open(&[dir.path()], Hands::Threads).unwrap();
        let from = || rustix::fs::open(dir.path(), OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let aside = doomed.take(0, from(), b"d").unwrap().unwrap();
        assert!(!dir.path().join("d").exists() && !doomed.is_gone(aside.number));
        let (told, after) = std::sync::mpsc::channel();
        let number = doomed.delete(aside, move || told.send(()).unwrap());
        assert_eq!(number, 8);
        after.recv_timeout(Duration::from_mins(1)).unwrap();
        assert!(doomed.is_gone(number) && doomed.wait(Duration::from_mins(1)));
        assert_eq!(std::fs::read_dir(path(&doomed.shared.trash[0])).unwrap().count(), 0);
    }

    #[test]
    fn what_is_kept_is_there_after_the_next_start() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("ck")).unwrap();
        std::fs::write(dir.path().join("ck/file"), b"x").unwrap();
        let doomed = Doomed::open(&[dir.path()], Hands::Threads).unwrap();
        let from = rustix::fs::open(dir.path(), OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
        doomed.keep(0, &from, b"ck", "7").unwrap();
        assert_eq!(doomed.keep(0, &from, b"ck", "7").unwrap_err(), Errno(libc::ENOENT));
        drop(doomed);
        let next = Doomed::open(&[dir.path()], Hands::Threads).unwrap();
        assert!(next.wait(Duration::from_mins(1)));
        drop(next);
        assert_eq!(std::fs::read(dir.path().join(".scrfs/kept.7/ck/file")).unwrap(), b"x");
        assert!(!dir.path().join("ck").exists());
    }

    #[test]
    fn what_holds_nothing_goes_at_once() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("empty")).unwrap();
        std::fs::write(dir.path().join("file"), b"x").unwrap();
        let doomed = Doomed::open(&[dir.path()], Hands::Threads).unwrap();
        for name in ["empty", "file"] {
            let from = rustix::fs::open(dir.path(), OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
            assert!(doomed.take(0, from, name.as_bytes()).unwrap().is_none());
            assert!(!dir.path().join(name).exists());
        }
        let from = rustix::fs::open(dir.path(), OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
        assert_eq!(doomed.take(0, from, b"none").unwrap_err(), Errno(libc::ENOENT));
    }
}

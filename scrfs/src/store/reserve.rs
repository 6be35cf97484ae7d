//! Room that is kept back for the daemon's records, on a file system that programs or others may
//! fill: a file that takes room and holds nothing. Of it a record gets what it needs when there is
//! no other room, and it is filled up again when there is. So are inodes, where the file system has
//! only so many: empty files, of which one is removed for each that a record's new version, or a
//! socket, needs.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, FallocateFlags, Mode, OFlags};

use super::Store;
use crate::lock::Mutex;

/// The file.
const NAME: &str = "reserve";
/// Inodes kept back: each in a file of that name and its number.
const INODES: u32 = 8;
/// Bytes kept back, and at most this part of the file system.
const LEAST: u64 = 4 << 20;
const PART: u64 = 32;
/// Versions of the largest record that it is for.
const VERSIONS: u64 = 4;
/// What a file takes beside its bytes: its last block, and what the file system needs itself.
const BESIDE: u64 = 16 << 10;
/// Somebody else may be faster and take what is given; so often it is tried.
const TRIES: u32 = 16;

/// For what room is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// What the daemon must not lose.
    Record,
    /// What can be done without: it leaves half of the reserve.
    Event,
}

/// How much is kept back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Level {
    /// Bytes that there are.
    pub held: u64,
    /// Bytes that there should be.
    pub wanted: u64,
    /// Inodes that there are.
    pub inodes: u32,
    /// Inodes that there should be; 0 where the file system has as many as are asked for.
    pub inodes_wanted: u32,
}

impl Level {
    /// Some of it is in use.
    pub fn is_short(self) -> bool {
        self.held < self.wanted || self.inodes < self.inodes_wanted
    }
}

/// What there is none left of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Missing {
    bytes: bool,
    inodes: bool,
}

impl Missing {
    /// For `bytes` more in a file system with this `room`. One that is full and says otherwise has
    /// its reasons: then bytes are what may help.
    fn of(room: &rustix::fs::StatVfs, bytes: u64) -> Self {
        let inodes = room.f_files > 0 && room.f_ffree == 0;
        let free = room.f_bfree.saturating_mul(room.f_frsize);
        Self { bytes: !inodes || free < bytes.saturating_add(BESIDE), inodes }
    }
}

type Told = Arc<dyn Fn() + Send + Sync>;

/// See the module.
pub struct Reserve {
    path: PathBuf,
    directory: OwnedFd,
    file: File,
    /// Bytes of the file system.
    whole: u64,
    level: Mutex<Level>,
    told: Mutex<Option<Told>>,
}

impl std::fmt::Debug for Reserve {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reserve")
            .field("path", &self.path)
            .field("level", &self.level())
            .finish_non_exhaustive()
    }
}

impl Reserve {
    /// Keeps room back beside the files of `store`; how much there was room for, [`Reserve::level`]
    /// tells.
    pub fn open(store: &Store) -> io::Result<Self> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(store.directory(), NAME, flags, Mode::RUSR | Mode::WUSR)?;
        let room = rustix::fs::fstatvfs(&file)?;
        let whole = room.f_blocks.saturating_mul(room.f_frsize);
        // What a predecessor has left of it.
        let left = rustix::fs::fstat(&file)?;
        let held = left.st_size.min(left.st_blocks.saturating_mul(512)).cast_unsigned();
        let inodes_wanted = if room.f_files > 0 { INODES } else { 0 };
        let directory = store.directory().try_clone_to_owned()?;
        let inodes = (0..inodes_wanted).take_while(|nth| is_there(&directory, *nth)).count();
        let inodes = u32::try_from(inodes).unwrap_or(0);
        let level = Level { held, wanted: wanted(whole, 0).max(held), inodes, inodes_wanted };
        let (path, level) = (store.path().to_owned(), Mutex::leaf(level));
        let reserve = Self { path, directory, file: file.into(), whole, level, told: Mutex::default() };
        if let Err(error) = reserve.fill(&mut reserve.level.lock())
            && error.raw_os_error() != Some(libc::ENOSPC)
        {
            return Err(error);
        }
        Ok(reserve)
    }

    /// The directory that it is in.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How much there is.
    pub fn level(&self) -> Level {
        *self.level.lock()
    }

    /// `told` runs each time after some was taken. It must not block, and not write to the store.
    pub fn when_taken(&self, told: impl Fn() + Send + Sync + 'static) {
        *self.told.lock() = Some(Arc::new(told));
    }

    /// What is missing is kept back again, if there is room now.
    pub fn refill(&self) -> bool {
        let mut level = self.level.lock();
        !level.is_short() || self.fill(&mut level).is_ok()
    }

    fn fill(&self, level: &mut Level) -> io::Result<()> {
        let bytes = self.fill_bytes(level);
        while level.inodes < level.inodes_wanted {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let mode = Mode::RUSR | Mode::WUSR;
            rustix::fs::openat(&self.directory, spare(level.inodes), flags, mode)?;
            level.inodes += 1;
        }
        bytes
    }

    fn fill_bytes(&self, level: &mut Level) -> io::Result<()> {
        if level.held >= level.wanted {
            return Ok(());
        }
        if let Err(error) = rustix::fs::fallocate(&self.file, FallocateFlags::empty(), 0, level.wanted) {
            // Some file systems keep what they have got.
            let _ = rustix::fs::ftruncate(&self.file, level.held);
            return Err(error.into());
        }
        level.held = level.wanted;
        Ok(())
    }

    /// Does what needs about `bytes` of room; when there is none, with what is kept back.
    pub(crate) fn help<T, E>(
        &self,
        purpose: Use,
        bytes: usize,
        errno: impl Fn(&E) -> i32,
        mut work: impl FnMut() -> Result<T, E>,
    ) -> Result<T, E> {
        let mut taken = false;
        let mut outcome = work();
        for _ in 0..TRIES {
            let full =
                outcome.as_ref().is_err_and(|error| matches!(errno(error), libc::ENOSPC | libc::EDQUOT));
            if !full || !self.give(purpose, bytes as u64) {
                break;
            }
            taken = true;
            outcome = work();
        }
        if purpose == Use::Record && outcome.is_ok() {
            self.want(wanted(self.whole, bytes as u64));
        }
        let told = self.told.lock().clone().filter(|_| taken);
        if let Some(told) = told {
            told();
        }
        outcome
    }

    /// From now on `bytes` are to be kept back, if that is more than before.
    fn want(&self, bytes: u64) {
        let mut level = self.level.lock();
        if bytes <= level.wanted {
            return;
        }
        let whole = level.held >= level.wanted;
        level.wanted = bytes;
        // Else what was never kept back would pass for used.
        if whole && let Err(error) = self.fill(&mut level) {
            tracing::debug!(%error, "no more room can be kept back for larger records");
        }
    }

    fn give(&self, purpose: Use, bytes: u64) -> bool {
        let mut level = self.level.lock();
        let missing = rustix::fs::fstatvfs(&self.file).map(|room| Missing::of(&room, bytes));
        let missing = missing.unwrap_or(Missing { bytes: true, inodes: false });
        // What one of them needs is of no use without the other.
        (!missing.inodes || self.give_inode(&mut level, purpose))
            && (!missing.bytes || self.give_bytes(&mut level, purpose, bytes))
    }

    fn give_inode(&self, level: &mut Level, purpose: Use) -> bool {
        let floor = match purpose {
            Use::Record => 0,
            Use::Event => level.inodes_wanted / 2,
        };
        if level.inodes <= floor {
            return false;
        }
        match rustix::fs::unlinkat(&self.directory, spare(level.inodes - 1), AtFlags::empty()) {
            Ok(()) | Err(rustix::io::Errno::NOENT) => level.inodes -= 1,
            Err(error) => {
                tracing::error!(%error, "an inode of the reserve cannot be used");
                return false;
            }
        }
        true
    }

    fn give_bytes(&self, level: &mut Level, purpose: Use, bytes: u64) -> bool {
        let Some(left) = left(*level, purpose, bytes) else { return false };
        if let Err(error) = rustix::fs::ftruncate(self.file.as_fd(), left) {
            tracing::error!(%error, "the reserve cannot be used");
            return false;
        }
        level.held = left;
        true
    }
}

/// The name of a file that keeps an inode.
fn spare(nth: u32) -> String {
    format!("{NAME}.{nth}")
}

fn is_there(directory: &OwnedFd, nth: u32) -> bool {
    rustix::fs::statat(directory, spare(nth), AtFlags::SYMLINK_NOFOLLOW).is_ok()
}

/// Bytes to keep back in a file system of `whole` bytes, when the largest record has `largest`.
fn wanted(whole: u64, largest: u64) -> u64 {
    largest.saturating_mul(VERSIONS).max(LEAST).min(whole / PART)
}

/// Bytes of the reserve after `bytes` were given; `None`: there is nothing for that.
fn left(level: Level, purpose: Use, bytes: u64) -> Option<u64> {
    let floor = match purpose {
        Use::Record => 0,
        Use::Event => level.wanted / 2,
    };
    (level.held > floor).then(|| level.held.saturating_sub(bytes.saturating_add(BESIDE)).max(floor))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_much_is_kept_back() {
        let mib = |n: u64| n << 20;
        for (whole, largest, expected) in [
            (mib(256), 0, mib(4)),
            (mib(64), 0, mib(2)),
            (mib(1 << 20), 0, mib(4)),
            (mib(1 << 20), mib(10), mib(40)),
            (mib(256), mib(10), mib(8)),
            (mib(256), u64::MAX, mib(8)),
        ] {
            assert_eq!(wanted(whole, largest), expected, "{whole} {largest}");
        }
    }

    #[test]
    fn events_leave_half_of_it() {
        let level = |held| Level { held, wanted: 100 << 10, inodes: 0, inodes_wanted: 0 };
        assert_eq!(left(level(100 << 10), Use::Record, 1 << 10), Some(83 << 10));
        assert_eq!(left(level(60 << 10), Use::Event, 1 << 10), Some(50 << 10));
        assert_eq!(left(level(50 << 10), Use::Event, 1), None);
        assert_eq!(left(level(50 << 10), Use::Record, u64::MAX), Some(0));
        assert_eq!(left(level(0), Use::Record, 1), None);
    }

    #[test]
    fn only_what_is_missing_is_given() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let mut room = rustix::fs::statvfs(dir.path()).unwrap();
        room.f_frsize = 4096;
        // Free blocks and inodes, inodes in all; which of bytes and inodes are to be given for
        // 100,000 bytes.
        for (blocks, free, files, bytes, inodes) in [
            (1000, 0, 10, false, true),
            (20, 0, 10, true, true),
            (0, 5, 10, true, false),
            (0, 0, 0, true, false),
            // A quota, or a file system of its own mind.
            (1000, 5, 10, true, false),
        ] {
            (room.f_bfree, room.f_ffree, room.f_files) = (blocks, free, files);
            let missing = Missing::of(&room, 100_000);
            assert_eq!(missing, Missing { bytes, inodes }, "{blocks} {free} of {files}");
        }
    }

    #[test]
    fn inodes_are_given_one_by_one_and_kept_back_again() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let store = Store::open(dir.path()).unwrap();
        let reserve = Reserve::open(&store).unwrap();
        let names = || std::fs::read_dir(dir.path()).unwrap().count();
        assert_eq!((names(), reserve.level().inodes), (1 + INODES as usize, INODES));
        let give = |purpose| reserve.give_inode(&mut reserve.level.lock(), purpose);
        for _ in 0..INODES / 2 {
            assert!(give(Use::Event));
        }
        assert!(!give(Use::Event) && give(Use::Record));
        assert!(reserve.level().is_short());
        drop(reserve);
        let reserve = Reserve::open(&store).unwrap();
        assert!(!reserve.level().is_short());
        assert_eq!(names(), 1 + INODES as usize);
    }

    #[test]
    fn a_file_system_without_room_takes_records_all_the_same() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let store = Store::open(dir.path()).unwrap();
        let reserve = Reserve::open(&store).unwrap();
        let level = reserve.level();
        assert!(level.wanted > 0 && !level.is_short());
        let told = Arc::new(std::sync::atomic::AtomicU32::new(0));
        let count = Arc::clone(&told);
        reserve.when_taken(move || {
            count.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        });
        // Others take what is given, three times.
        let mut refusals = 4;
        let written = reserve.help(
            Use::Record,
            100_000,
            |errno: &i32| *errno,
            || {
                refusals -= 1;
                if refusals > 0 { Err(libc::ENOSPC) } else { Ok(()) }
            },
        );
        assert_eq!(written, Ok(()));
        let size = || std::fs::metadata(dir.path().join(NAME)).unwrap().len();
        assert_eq!(reserve.level().held, level.held - 3 * (100_000 + BESIDE));
        assert_eq!(size(), reserve.level().held);
        assert_eq!(told.load(std::sync::atomic::Ordering::SeqCst), 1);
        assert!(reserve.refill());
        // More is kept back for larger records, and that is no use of it.
        let large = usize::try_from(reserve.level().wanted / 2).unwrap();
        assert_eq!(reserve.help(Use::Record, large, |e: &i32| *e, || Ok(())), Ok(()));
        assert!(reserve.level().wanted > level.wanted && !reserve.level().is_short());
        assert_eq!(told.load(std::sync::atomic::Ordering::SeqCst), 1);
        // Never without end, and other errors are none of its business.
        let full: Result<(), i32> = reserve.help(Use::Record, 1 << 20, |e| *e, || Err(libc::ENOSPC));
        assert_eq!((full, reserve.level().held), (Err(libc::ENOSPC), 0));
        assert!(reserve.refill());
        let other: Result<(), i32> = reserve.help(Use::Record, 1, |e| *e, || Err(libc::EIO));
        assert_eq!((other, size()), (Err(libc::EIO), reserve.level().wanted));
        reserve.give(Use::Record, 1 << 20);
        let former = reserve.level();
        drop(reserve);
        let next = Reserve::open(&store).unwrap();
        assert!(former.is_short() && !next.level().is_short());
    }
}

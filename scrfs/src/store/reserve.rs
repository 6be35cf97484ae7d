//! Room that is kept back for the daemon's records, on a file system that programs or others may fill: a file that takes
//! room and holds nothing. Of it a record gets what it needs when there is no other room, and it is filled up again when
//! there is.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use rustix::fs::{FallocateFlags, Mode, OFlags};

use super::Store;

/// The file.
const NAME: &str = "reserve";
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
}

impl Level {
    /// Some of it is in use.
    pub fn is_short(self) -> bool {
        self.held < self.wanted
    }
}

type Told = Box<dyn Fn() + Send + Sync>;

/// See the module.
pub struct Reserve {
    path: PathBuf,
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
    /// Keeps room back beside the files of `store`; how much there was room for, [`Reserve::level`] tells.
    pub fn open(store: &Store) -> io::Result<Self> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(store.directory(), NAME, flags, Mode::RUSR | Mode::WUSR)?;
        let room = rustix::fs::fstatvfs(&file)?;
        let whole = room.f_blocks.saturating_mul(room.f_frsize);
        // What a predecessor has left of it.
        let left = rustix::fs::fstat(&file)?;
        let held = left.st_size.min(left.st_blocks.saturating_mul(512)).cast_unsigned();
        let level = Mutex::new(Level { held, wanted: wanted(whole, 0).max(held) });
        let path = store.path().to_owned();
        let reserve = Self { path, file: file.into(), whole, level, told: Mutex::default() };
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
        *self.told.lock() = Some(Box::new(told));
    }

    /// What is missing is kept back again, if there is room now.
    pub fn refill(&self) -> bool {
        let mut level = self.level.lock();
        !level.is_short() || self.fill(&mut level).is_ok()
    }

    fn fill(&self, level: &mut Level) -> io::Result<()> {
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
        if taken && let Some(told) = &*self.told.lock() {
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
        let whole = !level.is_short();
        level.wanted = bytes;
        // Else what was never kept back would pass for used.
        if whole && let Err(error) = self.fill(&mut level) {
            tracing::debug!(%error, "no more room can be kept back for larger records");
        }
    }

    fn give(&self, purpose: Use, bytes: u64) -> bool {
        let mut level = self.level.lock();
        let Some(left) = left(*level, purpose, bytes) else { return false };
        if let Err(error) = rustix::fs::ftruncate(self.file.as_fd(), left) {
            tracing::error!(%error, "the reserve cannot be used");
            return false;
        }
        level.held = left;
        true
    }
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
        let level = |held| Level { held, wanted: 100 << 10 };
        assert_eq!(left(level(100 << 10), Use::Record, 1 << 10), Some(83 << 10));
        assert_eq!(left(level(60 << 10), Use::Event, 1 << 10), Some(50 << 10));
        assert_eq!(left(level(50 << 10), Use::Event, 1), None);
        assert_eq!(left(level(50 << 10), Use::Record, u64::MAX), Some(0));
        assert_eq!(left(level(0), Use::Record, 1), None);
    }

    #[test]
    fn a_file_system_without_room_takes_records_all_the_same() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let store = Store::open(dir.path()).unwrap();
        let reserve = Reserve::open(&store).unwrap();
        let level = reserve.level();
        assert!(level.wanted > 0 && !level.is_short());
        let told = std::sync::Arc::new(std::sync::atomic::AtomicU32::new(0));
        let count = std::sync::Arc::clone(&told);
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

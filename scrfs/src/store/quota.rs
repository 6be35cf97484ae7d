//! How much of its file system a control directory may take (`SCRFS_CONTROL_BYTES`).
//!
//! What programs make has records there, and pointer files are there as a whole: how many and how large they are is the
//! job's user's choice. What is kept back there ([`super::reserve`]) is bounded by itself, and so are the logs. The file system is root's `/run`, or one that all jobs share. So what is there is counted: by a walk
//! over the directory, and between two walks by what is added. Near the bound what would add more for a program is refused
//! (ENOSPC); what is left above that is for the records of what has been made already.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::reserve;

/// A control directory that is bounded may take this part of its file system's inodes, and at least so many, but never more
/// than half.
const PART: u64 = 4;
const LEAST_FILES: u64 = 4096;
/// This part of the bound is for records of what has been made.
const RECORDS: u64 = 8;
/// Between two walks.
const WALK_PAUSE: Duration = Duration::from_secs(1);
/// Between two events: large and small things may be refused and granted by turns.
const TELL_PAUSE: Duration = Duration::from_mins(1);
/// What a file takes beside its bytes, and the least that it takes.
const BLOCK: u64 = 4096;
/// Logs, as their names begin; some are not the daemon's alone.
const LOGS: [&[u8]; 3] = [b"daemon.log", b"coordinator.log", b"events"];

/// Bytes and files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Amount {
    /// Bytes.
    pub bytes: u64,
    /// Files.
    pub files: u64,
}

impl Amount {
    fn plus(self, other: Self) -> Self {
        Self { bytes: self.bytes.saturating_add(other.bytes), files: self.files.saturating_add(other.files) }
    }

    fn fits(self, limit: Self) -> bool {
        self.bytes <= limit.bytes && self.files <= limit.files
    }

    fn part(self, part: u64) -> Self {
        Self { bytes: self.bytes / part, files: self.files / part }
    }
}

#[derive(Debug, Default)]
struct Counted {
    /// At the last walk, and what was added since.
    taken: Amount,
    at: Option<Instant>,
    /// Something was refused since something was granted.
    refusing: bool,
    /// And that has not been told.
    news: bool,
    /// When it was, or was to be, for the last time.
    told: Option<Instant>,
}

/// See the module.
#[derive(Debug)]
pub struct Quota {
    path: PathBuf,
    /// Directories in it that count. The cache may be in others.
    below: &'static [&'static str],
    limit: Amount,
    counted: Mutex<Counted>,
}

impl Quota {
    /// For the control directory `path`, of which files in `below` count too; `bytes`: the administrator's
    /// bound.
    pub fn new(path: &Path, below: &'static [&'static str], bytes: u64) -> io::Result<Self> {
        let room = rustix::fs::statvfs(path)?;
        let (path, limit) = (path.to_owned(), limit(room.f_files, bytes));
        let quota = Self { path, below, limit, counted: Mutex::default() };
        quota.walk(&mut quota.counted.lock());
        Ok(quota)
    }

    /// The bound.
    pub fn limit(&self) -> Amount {
        self.limit
    }

    /// Counts what was written whatever the bound says, in place of so many `former` bytes.
    pub(super) fn count(&self, former: u64, bytes: u64) {
        let mut counted = self.counted.lock();
        counted.taken.bytes = counted.taken.bytes.saturating_add(bytes).saturating_sub(former);
    }

    /// A program's doing is about to take so many bytes, which count from now on: ENOSPC when that is too much.
    pub(super) fn take(&self, bytes: u64) -> io::Result<()> {
        let more = Amount { bytes, files: 0 };
        self.grant(more, self.for_programs(), more)
    }

    /// The same of a file, whose bytes count when they have been written.
    pub(super) fn take_file(&self, bytes: u64) -> io::Result<()> {
        let more = Amount { bytes: in_blocks(bytes.max(1)), files: 1 };
        self.grant(more, self.for_programs(), Amount { bytes: 0, files: 1 })
    }

    fn for_programs(&self) -> Amount {
        let records = self.limit.part(RECORDS);
        Amount { bytes: self.limit.bytes - records.bytes, files: self.limit.files - records.files }
    }

    /// Records of what has been made are about to be written: ENOSPC when there is no room for them either.
    pub fn may_record(&self) -> io::Result<()> {
        self.grant(Amount::default(), self.limit, Amount::default())
    }

    fn grant(&self, more: Amount, limit: Amount, counts: Amount) -> io::Result<()> {
        let mut counted = self.counted.lock();
        if !counted.taken.plus(more).fits(limit) && counted.at.is_none_or(|at| at.elapsed() >= WALK_PAUSE) {
            self.walk(&mut counted);
        }
        if counted.taken.plus(more).fits(limit) {
            counted.taken = counted.taken.plus(counts);
            counted.refusing = false;
            return Ok(());
        }
        let begins = !std::mem::replace(&mut counted.refusing, true);
        if begins && counted.told.is_none_or(|told| told.elapsed() >= TELL_PAUSE) {
            (counted.news, counted.told) = (true, Some(Instant::now()));
        }
        Err(io::Error::from_raw_os_error(libc::ENOSPC))
    }

    /// For the events, when it begins to refuse, and not too often.
    pub fn news(&self) -> Option<String> {
        if !std::mem::take(&mut self.counted.lock().news) {
            return None;
        }
        let (at, Amount { bytes, files }) = (self.path.display(), self.limit);
        Some(format!(
            "the control directory {at} has reached what it may take ({bytes} bytes, {files} files; SCRFS_CONTROL_BYTES): \
             what needs more records is refused; remove files, datasets or pointer files, lower SCR_CACHE_SIZE or \
             SCRFS_LOOSE_MAX, or have the administrator raise SCRFS_CONTROL_BYTES"
        ))
    }

    fn walk(&self, counted: &mut Counted) {
        let below = self.below.iter().map(|name| amount(&self.path.join(name)));
        counted.taken = below.fold(amount(&self.path), Amount::plus);
        counted.at = Some(Instant::now());
    }
}

/// The files of a directory. What cannot be seen goes, or is not ours.
fn amount(directory: &Path) -> Amount {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let of = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(_) if is_bounded(&entry.file_name()) => Amount::default(),
        Ok(meta) if meta.is_dir() => Amount::default(),
        Ok(meta) => Amount { bytes: (meta.blocks() * 512).max(BLOCK), files: 1 },
        Err(_) => Amount::default(),
    };
    entries.map(of).fold(Amount::default(), Amount::plus)
}

/// What so many bytes of a file take.
pub(super) fn in_blocks(bytes: u64) -> u64 {
    bytes.div_ceil(BLOCK).saturating_mul(BLOCK)
}

/// Has a bound of its own.
fn is_bounded(name: &OsStr) -> bool {
    reserve::is_name_of_it(name) || LOGS.iter().any(|log| name.as_bytes().starts_with(log))
}

/// What a control directory may take in a file system with so many inodes (0: as many as there is room for).
fn limit(files: u64, bytes: u64) -> Amount {
    let part = |whole: u64| (whole / PART).max(LEAST_FILES).min(whole / 2);
    Amount { bytes, files: if files > 0 { part(files) } else { u64::MAX } }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_much_it_may_take() {
        for (files, expected) in [(800_000, 200_000), (10_000, 4096), (500, 250), (0, u64::MAX)] {
            assert_eq!(limit(files, 9), Amount { bytes: 9, files: expected }, "{files}");
        }
    }

    #[test]
    fn what_is_too_much_is_refused_and_told_once() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("loose")).unwrap();
        std::fs::write(dir.path().join("loose/1.1"), vec![1; 1 << 20]).unwrap();
        std::fs::write(dir.path().join("daemon.log.1"), vec![1; 8 << 20]).unwrap();
        // The cache.
        std::fs::create_dir(dir.path().join("tree")).unwrap();
        std::fs::write(dir.path().join("tree/f"), vec![1; 8 << 20]).unwrap();
        let quota = Quota::new(dir.path(), &["loose"], 8 << 20).unwrap();
        // No walk before the test wants one, however slow the machine is.
        quota.counted.lock().at = Some(Instant::now() + Duration::from_hours(1));
        let full = |granted: io::Result<()>| granted.unwrap_err().raw_os_error() == Some(libc::ENOSPC);
        // A part is for records.
        assert!(full(quota.take(7 << 20)));
        quota.take(5 << 20).unwrap();
        assert!(quota.news().is_some_and(|text| text.contains("SCRFS_CONTROL_BYTES")));
        assert!(full(quota.take(2 << 20)) && full(quota.take(2 << 20)));
        assert!(quota.news().is_none(), "it was said a moment ago");
        quota.may_record().unwrap();
        quota.count(1 << 20, 4 << 20);
        assert!(full(quota.may_record()));
        // Small files take a block each.
        quota.counted.lock().taken = Amount::default();
        let granted =
            (0..2000).filter(|_| quota.take_file(2).map(|()| quota.count(0, BLOCK)).is_ok()).count();
        assert_eq!(granted as u64, (7 << 20) / BLOCK);
        // What was never written, or has gone, counts no more at the next look.
        quota.counted.lock().at = None;
        quota.may_record().unwrap();
        quota.take(5 << 20).unwrap();
    }
}

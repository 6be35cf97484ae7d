//! Which files' pages the kernel may keep from one open to the next, where the daemon serves file
//! data.
//!
//! A file that is opened loses its pages unless the answer says that they may stay. They are good
//! as long as nothing but the kernel's own requests has changed the file: when it is the very file,
//! of the size and times, that it was when a handle of it was last closed. Reads that the kernel
//! answers from them leave no access time, so pages stay only where a read would leave none anyway
//! (`relatime`, `noatime`; mount(8)).

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::fs::{Stat, StatVfsMountFlags};

use crate::dataset::Stamp;
use crate::fs::attr::{key_of, now, stat_of};
use crate::lock::Mutex;

/// Files that are remembered; past that all are forgotten, which costs each one reading.
const FILES_MAX: usize = 4096;
/// A file that was changed this short a time ago may change again without a change of its times:
/// file systems take them from a clock that ticks every 1 to 10 ms.
const TICK_MAX: Duration = Duration::from_millis(100);
/// With `relatime` a read sets an access time that is older than this.
const RELATIME: Duration = Duration::from_hours(24);

/// What a file was when it was closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Seen {
    key: (u64, u64),
    size: i64,
    mtime: Stamp,
    ctime: Stamp,
}

impl Seen {
    fn of(stat: &Stat) -> Self {
        let [_, mtime, ctime] = Stamp::times_of(stat);
        Self { key: key_of(stat), size: stat.st_size, mtime, ctime }
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Pages {
    closed: Mutex<HashMap<u64, Seen>>,
}

impl Pages {
    /// A handle of `inode` is closed, and all that was written through it went through the kernel's
    /// pages.
    pub(crate) fn closed(&self, inode: u64, file: impl AsFd) {
        self.closed_at(now(), inode, file);
    }

    fn closed_at(&self, now: Stamp, inode: u64, file: impl AsFd) {
        let seen = stat_of(file).ok().map(|stat| Seen::of(&stat));
        let settled = seen.filter(|seen| seen.ctime < before(TICK_MAX, now));
        let mut closed = self.closed.lock();
        match settled {
            Some(seen) => {
                if closed.len() >= FILES_MAX {
                    closed.clear();
                }
                closed.insert(inode, seen);
            }
            None => drop(closed.remove(&inode)),
        }
    }

    /// `file`, opened now, is what the kernel's pages of `inode` hold, and a read would not set its
    /// access time.
    pub(crate) fn may_stay(&self, inode: u64, file: impl AsFd) -> bool {
        let Some(seen) = self.closed.lock().get(&inode).copied() else { return false };
        let Ok(stat) = stat_of(&file) else { return false };
        Seen::of(&stat) == seen && !sets_access_time(&file, &stat)
    }
}

/// A read of it now would set its access time.
fn sets_access_time(file: impl AsFd, stat: &Stat) -> bool {
    let Ok(mount) = rustix::fs::fstatvfs(file) else { return true };
    if mount.f_flag.contains(StatVfsMountFlags::NOATIME) {
        return false;
    }
    let [atime, mtime, ctime] = Stamp::times_of(stat);
    let relatime = mount.f_flag.contains(StatVfsMountFlags::RELATIME);
    !relatime || atime <= mtime || atime <= ctime || atime <= before(RELATIME, now())
}

fn before(span: Duration, now: Stamp) -> Stamp {
    let since = Duration::new(now.secs.unsigned_abs(), now.nsecs).saturating_sub(span);
    Stamp { secs: since.as_secs().cast_signed(), nsecs: since.subsec_nanos() }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::time::SystemTime;

    use super::*;

    fn set_times(file: &std::fs::File, accessed: u64, changed: u64) {
        let ago = |seconds| SystemTime::now() - Duration::from_secs(seconds);
        let times = std::fs::FileTimes::new().set_accessed(ago(accessed)).set_modified(ago(changed));
        file.set_times(times).unwrap();
    }

    /// So long after the inode of `file` was changed.
    fn after(file: &std::fs::File, span: Duration) -> Stamp {
        let [_, _, changed] = Stamp::times_of(&stat_of(file).unwrap());
        let then = Duration::new(changed.secs.unsigned_abs(), changed.nsecs) + span;
        Stamp { secs: then.as_secs().cast_signed(), nsecs: then.subsec_nanos() }
    }

    #[test]
    fn pages_stay_until_the_file_changes() {
        let mut file = tempfile::tempfile().unwrap();
        let pages = Pages::default();
        file.write_all(b"one").unwrap();
        // Where reads leave their time, one has been left after the last change.
        file.set_times(std::fs::FileTimes::new().set_accessed(SystemTime::now() + RELATIME)).unwrap();
        pages.closed_at(after(&file, TICK_MAX), 1, &file);
        assert!(!pages.may_stay(1, &file), "it was changed within the clock's tick");
        let settled = TICK_MAX + Duration::from_nanos(1);
        pages.closed_at(after(&file, settled), 1, &file);
        assert_eq!(pages.may_stay(1, &file), !sets_access_time(&file, &stat_of(&file).unwrap()));
        assert!(!pages.may_stay(2, &file), "another file's");
        file.write_all(b"two").unwrap();
        assert!(!pages.may_stay(1, &file), "it is longer");
        assert!(!pages.may_stay(1, tempfile::tempfile().unwrap()), "it is another file");
    }

    #[test]
    fn a_read_that_would_leave_its_time_reaches_the_file() {
        let file = tempfile::tempfile().unwrap();
        set_times(&file, 5, 10);
        let stat = stat_of(&file).unwrap();
        assert!(sets_access_time(&file, &stat), "its inode was changed after it was read");
        set_times(&file, 25 * 3600, 26 * 3600);
        assert!(sets_access_time(&file, &stat_of(&file).unwrap()), "it was read a day ago");
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let file = tempfile::tempfile().unwrap();
        let (pages, later) = (Pages::default(), after(&file, 2 * TICK_MAX));
        (0..=FILES_MAX as u64).for_each(|inode| pages.closed_at(later, inode, &file));
        assert_eq!(pages.closed.lock().len(), 1);
    }
}

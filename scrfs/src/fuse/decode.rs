//! fuser's types to ours and back.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{FileAttr, FileType, INodeNo, Request, TimeOrNow};

use crate::caller::Caller;
use crate::dataset::Stamp;
use crate::errno::Errno;
use crate::fs::{Attr, DirEntry, Kind, SetTime};

pub(super) fn caller(request: &Request) -> Caller {
    Caller { tid: request.pid(), uid: request.uid(), gid: request.gid(), unique: request.unique().0 }
}

pub(super) fn errno(error: Errno) -> fuser::Errno {
    fuser::Errno::from_i32(error.0)
}

pub(super) fn kind(kind: Kind) -> FileType {
    match kind {
        Kind::File => FileType::RegularFile,
        Kind::Directory => FileType::Directory,
        Kind::Symlink => FileType::Symlink,
        Kind::Fifo => FileType::NamedPipe,
        Kind::Socket => FileType::Socket,
        Kind::CharDevice => FileType::CharDevice,
        Kind::BlockDevice => FileType::BlockDevice,
    }
}

fn time(stamp: Stamp) -> SystemTime {
    let nanos = Duration::from_nanos(stamp.nsecs.into());
    match u64::try_from(stamp.secs) {
        Ok(secs) => UNIX_EPOCH + Duration::from_secs(secs) + nanos,
        Err(_) => UNIX_EPOCH - Duration::from_secs(stamp.secs.unsigned_abs()) + nanos,
    }
}

pub(super) fn set_time(time: TimeOrNow) -> SetTime {
    let time = match time {
        TimeOrNow::Now => return SetTime::Now,
        TimeOrNow::SpecificTime(time) => time,
    };
    SetTime::At(match time.duration_since(UNIX_EPOCH) {
        Ok(after) => {
            Stamp { secs: 0_i64.saturating_add_unsigned(after.as_secs()), nsecs: after.subsec_nanos() }
        }
        // fuser 0.18 takes the nanoseconds off a time before the epoch instead of adding them:
        // taken back here.
        Err(before) => {
            let before = before.duration();
            Stamp { secs: 0_i64.saturating_sub_unsigned(before.as_secs()), nsecs: before.subsec_nanos() }
        }
    })
}

/// Device numbers travel in 32 bits: 12 of major, 20 of minor.
fn device(rdev: u64) -> u32 {
    let (major, minor) = (rustix::fs::major(rdev), rustix::fs::minor(rdev));
    (minor & 0xff) | ((major & 0xfff) << 8) | ((minor & !0xff) << 12)
}

pub(super) fn device_of(rdev: u32) -> u64 {
    rustix::fs::makedev((rdev >> 8) & 0xfff, (rdev & 0xff) | ((rdev >> 12) & !0xff))
}

pub(super) fn attr(attr: &Attr) -> FileAttr {
    FileAttr {
        ino: INodeNo(attr.nodeid),
        size: attr.size,
        blocks: attr.blocks,
        atime: time(attr.atime),
        mtime: time(attr.mtime),
        ctime: time(attr.ctime),
        crtime: UNIX_EPOCH,
        kind: kind(attr.kind),
        perm: u16::try_from(attr.perm & 0o7777).unwrap_or(0),
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: device(attr.rdev),
        blksize: attr.blksize,
        flags: 0,
    }
}

/// What stands in for the attributes of `.` and `..`.
pub(super) fn dots(listed: &DirEntry) -> FileAttr {
    let file = Attr::of_empty_file(listed.ino, (0, 0), Stamp::default());
    attr(&Attr { kind: listed.kind, perm: 0o755, nlink: 2, ..file })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_survive() {
        for (major, minor) in [(1, 3), (8, 255), (259, 70_000), (4095, 1_048_575)] {
            let rdev = rustix::fs::makedev(major, minor);
            assert_eq!(device_of(device(rdev)), rdev, "{major}:{minor}");
        }
    }

    #[test]
    fn times_before_the_epoch_are_put_right() {
        let times = [(-2_i64, 800_000_000), (-1, 0), (5, 7), (i64::MIN, 0), (i64::MIN + 1, 5), (i64::MAX, 9)];
        for (secs, nsecs) in times {
            let nanos = Duration::from_nanos(u64::from(nsecs));
            let decoded = match u64::try_from(secs) {
                Ok(secs) => UNIX_EPOCH + Duration::from_secs(secs) + nanos,
                // As fuser 0.18 does it.
                Err(_) => UNIX_EPOCH - (Duration::from_secs(secs.unsigned_abs()) + nanos),
            };
            assert_eq!(set_time(TimeOrNow::SpecificTime(decoded)), SetTime::At(Stamp { secs, nsecs }));
        }
        assert!(
            time(Stamp { secs: i64::MIN, nsecs: 0 }) < time(Stamp { secs: i64::MAX, nsecs: 999_999_999 })
        );
        let shown = time(Stamp { secs: -2, nsecs: 800_000_000 });
        assert_eq!(UNIX_EPOCH.duration_since(shown).unwrap(), Duration::from_millis(1200));
    }
}

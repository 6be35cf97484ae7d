//! Records of what programs did with each file, told at its last close, while an operator wants
//! them.
//!
//! The daemon sees every byte of a file that it serves itself. Of one that the kernel serves it
//! sees size and times when it is opened and when it is closed: bytes are then the growth, and the
//! record says that it is so.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::boundary::IoRecord;

use super::handles::Handle;
use crate::dataset::Stamp;
use crate::fs::attr::stat_of;
use crate::lock::Mutex;

/// Files open at once of which there is a record; of more there is none.
const FILES_MAX: usize = 65_536;

/// What failed: bits of a record's error mask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failing {
    /// read(2).
    Read = 1,
    /// write(2).
    Write = 2,
    /// fsync(2), fdatasync(2).
    Sync = 4,
    /// fallocate(2), copy_file_range(2).
    Allocate = 8,
}

#[derive(Debug)]
struct Meter {
    path: String,
    uid: u32,
    opens: u32,
    open: u32,
    since: Instant,
    passthrough: bool,
    before: (u64, Stamp),
    read: u64,
    written: u64,
    errors: u32,
}

/// All records that are being taken.
#[derive(Debug, Default)]
pub(crate) struct Meters {
    on: AtomicBool,
    /// Some file has a meter: only then it is looked for.
    running: AtomicU64,
    files: Mutex<HashMap<u64, Meter>>,
}

impl Meters {
    pub(super) fn switch(&self, on: bool) {
        self.on.store(on, Ordering::Relaxed);
    }

    /// A file is open; `path` tells its name if it is wanted.
    pub(crate) fn opened(&self, handle: &Handle, uid: u32, path: impl FnOnce() -> Option<String>) {
        if !self.on.load(Ordering::Relaxed) {
            return;
        }
        let (Some(before), path) = (size_and_time(handle), path()) else { return };
        let mut files = self.files.lock();
        if let Some(meter) = files.get_mut(&handle.inode.id) {
            (meter.opens, meter.open) = (meter.opens.saturating_add(1), meter.open + 1);
            return;
        }
        let Some(path) = path.filter(|_| files.len() < FILES_MAX) else { return };
        let passthrough = handle.file.is_none();
        let meter = Meter {
            path,
            uid,
            opens: 1,
            open: 1,
            since: Instant::now(),
            passthrough,
            before,
            read: 0,
            written: 0,
            errors: 0,
        };
        files.insert(handle.inode.id, meter);
        self.running.fetch_add(1, Ordering::Relaxed);
    }

    /// The daemon has read or written, or could not.
    pub(crate) fn moved<E>(&self, handle: &Handle, what: Failing, outcome: &Result<usize, E>) {
        self.change(handle, |meter| match (outcome, what) {
            (Ok(bytes), Failing::Read) => meter.read += *bytes as u64,
            (Ok(bytes), Failing::Write) => meter.written += *bytes as u64,
            (Ok(_), _) => {}
            (Err(_), what) => meter.errors |= what as u32,
        });
    }

    fn change(&self, handle: &Handle, change: impl FnOnce(&mut Meter)) {
        if self.running.load(Ordering::Relaxed) > 0
            && let Some(meter) = self.files.lock().get_mut(&handle.inode.id)
        {
            change(meter);
        }
    }

    /// A handle is gone; the record, if it was the last.
    pub(crate) fn closed(&self, handle: &Handle) -> Option<IoRecord> {
        if self.running.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let meter = {
            let mut files = self.files.lock();
            let meter = files.get_mut(&handle.inode.id)?;
            meter.open -= 1;
            if meter.open > 0 {
                return None;
            }
            files.remove(&handle.inode.id)?
        };
        self.running.fetch_sub(1, Ordering::Relaxed);
        Some(meter.record(size_and_time(handle)))
    }
}

impl Meter {
    fn record(self, after: Option<(u64, Stamp)>) -> IoRecord {
        let seconds = self.since.elapsed();
        let (read, written) = if self.passthrough {
            (None, after.and_then(|after| grown(self.before, after)))
        } else {
            (Some(self.read), Some(self.written))
        };
        IoRecord {
            path: self.path,
            uid: self.uid,
            opens: self.opens,
            bytes_read: read,
            bytes_written: written,
            measured: if self.passthrough { "size" } else { "daemon" },
            seconds_open: seconds.as_secs_f64(),
            bytes_per_second: rate(read.unwrap_or(0) + written.unwrap_or(0), seconds),
            errors: self.errors,
        }
    }
}

fn grown((before, then): (u64, Stamp), (after, now): (u64, Stamp)) -> Option<u64> {
    if after > before {
        Some(after - before)
    } else if then == now {
        Some(0)
    } else {
        None
    }
}

fn rate(bytes: u64, time: Duration) -> u64 {
    let micros = time.as_micros().max(1);
    u64::try_from(u128::from(bytes) * 1_000_000 / micros).unwrap_or(u64::MAX)
}

fn size_and_time(handle: &Handle) -> Option<(u64, Stamp)> {
    let attr = crate::fs::attr::Attr::of(0, &stat_of(handle.inode.fd().ok()?).ok()?);
    Some((attr.size, attr.mtime))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_is_what_size_and_time_tell() {
        let at = |secs| Stamp { secs, nsecs: 0 };
        assert_eq!(grown((0, at(1)), (10, at(2))), Some(10));
        assert_eq!(grown((10, at(1)), (10, at(1))), Some(0));
        assert_eq!(grown((10, at(1)), (10, at(2))), None);
        assert_eq!(rate(1000, Duration::from_millis(500)), 2000);
        assert_eq!(rate(u64::MAX, Duration::ZERO), u64::MAX);
    }
}

//! A log file that is bounded: a full `daemon.log` becomes `daemon.log.1`, in place of the former
//! one.
//!
//! Several processes append to one file, each through its standard error, and any of them may put
//! it by; a lock on the file keeps the others away meanwhile. Whoever still appends to one that was
//! put by goes on with the new one.

use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;

/// Bytes of one file; there are at most two.
const FILE_MAX: u64 = 2 << 20;

/// See the module.
#[derive(Debug)]
pub(super) struct Rotation {
    path: PathBuf,
    most: u64,
}

impl Rotation {
    /// Of the file at `path`; `None` when `log` is another one.
    pub(super) fn of(path: &Path, log: BorrowedFd<'_>) -> Option<Self> {
        let ours = rustix::fs::fstat(log).ok()?;
        let named = std::fs::metadata(path).ok()?;
        let same = (named.dev(), named.ino()) == (ours.st_dev, ours.st_ino);
        same.then(|| Self { path: path.to_owned(), most: FILE_MAX })
    }

    /// What to append to in place of `log`, when that is full.
    pub(super) fn next(&self, log: BorrowedFd<'_>) -> Option<File> {
        let full = rustix::fs::fstat(log).is_ok_and(|stat| stat.st_size.cast_unsigned() >= self.most);
        if !full {
            return None;
        }
        let file = self.open().ok()?;
        // Another process puts it by.
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).ok()?;
        let is_full = file.metadata().ok()?.len() >= self.most;
        if is_full && self.is(file.as_fd()) {
            std::fs::rename(&self.path, self.path.with_extension("log.1")).ok()?;
            return self.open().ok();
        }
        // Put by already. Who appends must not go on holding the lock.
        rustix::fs::flock(&file, FlockOperation::Unlock).ok()?;
        (!is_full).then_some(file)
    }

    fn is(&self, file: BorrowedFd<'_>) -> bool {
        Self::of(&self.path, file).is_some()
    }

    fn open(&self) -> std::io::Result<File> {
        let no_link = rustix::fs::OFlags::NOFOLLOW.bits().cast_signed();
        OpenOptions::new().append(true).create(true).mode(0o600).custom_flags(no_link).open(&self.path)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn two_who_append_never_have_more_than_two_files() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("daemon.log");
        let open = || OpenOptions::new().append(true).create(true).open(&path).unwrap();
        let mut logs = [open(), open()];
        let rotation = Rotation { most: 1000, ..Rotation::of(&path, logs[0].as_fd()).unwrap() };
        assert!(Rotation::of(&path, File::open(dir.path()).unwrap().as_fd()).is_none());
        for line in 0..500 {
            // Now the one, now the other, and several of one in a row.
            let log = &mut logs[usize::from(line % 7 < 3)];
            if let Some(next) = rotation.next(log.as_fd()) {
                *log = next;
            }
            writeln!(log, "line {line:05}").unwrap();
            let sizes: Vec<u64> = std::fs::read_dir(dir.path())
                .unwrap()
                .map(|e| e.unwrap().metadata().unwrap().len())
                .collect();
            assert!(sizes.len() <= 2 && sizes.iter().all(|size| *size <= 1011), "{sizes:?}");
        }
        let newest = std::fs::read_to_string(&path).unwrap();
        let former = std::fs::read_to_string(dir.path().join("daemon.log.1")).unwrap();
        let mut lines: Vec<_> = former.lines().chain(newest.lines()).collect();
        lines.sort_unstable();
        let count = lines.len();
        assert!(count > 50 && lines[count - 1] == "line 00499");
        // Nothing between them is missing.
        assert_eq!(lines[0], format!("line {:05}", 500 - count));
    }
}

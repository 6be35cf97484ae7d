//! Files of which storage may have lost bytes: an fsync of them has failed, by a program or by a
//! seal.
//!
//! Linux marks the pages of such a file clean, so the next fsync succeeds though the bytes are not
//! on storage, and a later read may give older ones. (Rebello and others, "Can Applications Recover
//! from fsync Failures?", USENIX ATC 2020.) No later try seals such a file: only another file at
//! its name is sealed. This worker remembers; its successor does not.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags, Stat};

use crate::lock::Mutex;

/// Files that are remembered, each with a descriptor: its number is no other file's so long. With
/// more the whole store is broken, and no file of it is sealed.
const FILES_MAX: usize = 256;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct LostWrites(Mutex<Lost>);

#[derive(Debug, Default)]
struct Lost {
    /// Opened as paths only, which makes nobody a reader or writer.
    files: Vec<OwnedFd>,
    /// There were more than can be remembered, or one could not be.
    all: bool,
}

impl LostWrites {
    /// An fsync of this file has failed.
    pub(super) fn add(&self, file: impl AsFd) {
        let mut lost = self.0.lock();
        lost.forget_removed();
        let path = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
        let opened = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
        match opened {
            Ok(opened) if lost.files.len() < FILES_MAX => lost.files.push(opened),
            _ => lost.all = true,
        }
    }

    /// Why this file may not be sealed, if so.
    pub(super) fn why_not(&self, file: &Stat) -> Option<&'static str> {
        let mut lost = self.0.lock();
        if lost.all {
            return Some("fsyncs of many files have failed: the cache's storage is broken");
        }
        lost.forget_removed();
        let is_lost = lost.files.iter().filter_map(|fd| stat(fd).ok()).any(|stat| is_same(&stat, file));
        is_lost.then_some(
            "an fsync of it has failed, so its bytes may not be on storage; write them to a new file of that name",
        )
    }
}

impl Lost {
    /// Their room is to be free.
    fn forget_removed(&mut self) {
        self.files.retain(|fd| stat(fd).is_ok_and(|stat| stat.st_nlink > 0));
    }
}

fn stat(fd: &OwnedFd) -> io::Result<Stat> {
    Ok(rustix::fs::fstat(fd)?)
}

fn is_same(one: &Stat, other: &Stat) -> bool {
    (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn a_file_is_known_by_itself_until_it_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let make = |name: &str| File::create(dir.path().join(name)).unwrap();
        let stat = |file: &File| rustix::fs::fstat(file).unwrap();
        let (lost, bad, good) = (LostWrites::default(), make("bad"), make("good"));
        lost.add(&bad);
        std::fs::rename(dir.path().join("bad"), dir.path().join("moved")).unwrap();
        assert!(lost.why_not(&stat(&bad)).is_some() && lost.why_not(&stat(&good)).is_none());
        std::fs::remove_file(dir.path().join("moved")).unwrap();
        assert!(lost.why_not(&stat(&good)).is_none() && lost.0.lock().files.is_empty());
        let many: Vec<File> = (0..=FILES_MAX).map(|n| make(&n.to_string())).collect();
        for file in &many {
            lost.add(file);
        }
        assert!(lost.why_not(&stat(&good)).unwrap().contains("broken"));
    }
}

//! What is in a dataset's directory in the cache.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{AtFlags, FileType};

use crate::dataset::{Entry, EntryKind, Stamp};
use crate::path::RelPath;
use crate::store::beneath;

/// An entry of the catalog for what `stat` was told of.
pub(super) fn entry_of(path: RelPath, kind: EntryKind, stat: &rustix::fs::Stat) -> Entry {
    let [atime, mtime, _] = Stamp::times_of(stat);
    Entry { path, kind, mode: stat.st_mode & 0o7777, uid: stat.st_uid, gid: stat.st_gid, atime, mtime }
}

/// What cannot be part of a checkpoint.
#[derive(Default)]
pub(super) struct Lost {
    names: Vec<String>,
    count: usize,
}

impl Lost {
    /// How many are named.
    const NAMED_MAX: usize = 8;

    fn add(&mut self, path: &RelPath, kind: FileType) {
        self.count += 1;
        if self.names.len() < Self::NAMED_MAX {
            let word = match kind {
                FileType::Fifo => "a FIFO",
                FileType::Socket => "a socket",
                _ => "a device",
            };
            self.names.push(format!("{path} ({word})"));
        }
    }

    pub(super) fn told(&self, dataset: &RelPath) -> Option<String> {
        let more = self.count - self.names.len();
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        (self.count > 0).then(|| {
            format!(
                "{dataset}: no part of the checkpoint, and gone once it is sealed: {}{more}",
                self.names.join(", ")
            )
        })
    }
}

/// Collects the directories and links at and below `path`, and what is lost.
pub(super) fn walk(
    top: BorrowedFd<'_>,
    path: &RelPath,
    found: &mut Vec<Entry>,
    lost: &mut Lost,
) -> io::Result<()> {
    let directory = beneath::open_directory(top, path)?;
    let stat = rustix::fs::fstat(&directory)?;
    found.push(entry_of(path.clone(), EntryKind::Directory, &stat));
    let mut names = beneath::names(directory.as_fd())?;
    names.sort_unstable();
    for name in names {
        let inner = path.join(&name).map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e))?;
        let name = RelPath::new(name).map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e))?;
        let stat = rustix::fs::statat(&directory, name.as_path(), AtFlags::SYMLINK_NOFOLLOW)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => walk(top, &inner, found, lost)?,
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(&directory, name.as_path(), Vec::new())?.into_bytes();
                found.push(entry_of(inner, EntryKind::Symlink(target), &stat));
            }
            FileType::RegularFile => {}
            kind => lost.add(&inner, kind),
        }
    }
    Ok(())
}

/// Regular files at and below `path`, relative to `top`.
pub(super) fn regular_files(top: &impl AsFd, path: &RelPath) -> io::Result<Vec<RelPath>> {
    let mut found = Vec::new();
    let mut pending = vec![path.clone()];
    while let Some(directory) = pending.pop() {
        let opened = beneath::open_directory(top.as_fd(), &directory)?;
        for name in beneath::names(opened.as_fd())? {
            let path = directory.join(&name).map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e))?;
            let name = std::os::unix::ffi::OsStrExt::from_bytes(name.as_slice());
            let name: &std::ffi::OsStr = name;
            let stat = rustix::fs::statat(&opened, name, AtFlags::SYMLINK_NOFOLLOW)?;
            match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory => pending.push(path),
                FileType::RegularFile => found.push(path),
                _ => {}
            }
        }
    }
    Ok(found)
}

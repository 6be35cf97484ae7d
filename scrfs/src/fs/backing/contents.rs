//! What is in the trees.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::{FileType, OFlags, Stat};

use super::trees::Trees;
use crate::errno::Errno;
use crate::fs::attr::{Kind, key_of, stat_of};
use crate::fs::errno::fail;
use crate::fs::inodes::{Backing, Key};
use crate::path::RelPath;
use crate::store::beneath;

impl Trees {
    /// What `path` is in the tree, if it is there.
    pub(crate) fn stat_below(&self, path: &RelPath) -> Option<Stat> {
        stat_of(self.open(path, OFlags::PATH | OFlags::NOFOLLOW).ok()?).ok()
    }

    /// What `path` is known by; an error where it is not there.
    pub(crate) fn key(&self, path: &RelPath) -> Result<Key, Errno> {
        Ok(key_of(&stat_of(self.open(path, OFlags::PATH | OFlags::NOFOLLOW)?)?))
    }

    /// `path`, for an inode to stand for it.
    pub(crate) fn backing(&self, path: &RelPath) -> Result<Backing, Errno> {
        let fd = self.open(path, OFlags::PATH | OFlags::NOFOLLOW)?;
        let key = key_of(&stat_of(&fd)?);
        Ok(Backing { fd: Arc::new(fd), key })
    }

    /// What kind of file `path` is.
    pub(crate) fn kind_of(&self, path: &RelPath) -> Result<Kind, Errno> {
        let stat = stat_of(self.open(path, OFlags::PATH | OFlags::NOFOLLOW)?)?;
        Ok(Kind::of(FileType::from_raw_mode(stat.st_mode)))
    }

    /// The directory `path` has no names.
    pub(crate) fn is_empty(&self, path: &RelPath) -> Result<bool, Errno> {
        let quiet = if self.privileged { OFlags::NOATIME } else { OFlags::empty() };
        let dir = self.open(path, OFlags::RDONLY | OFlags::DIRECTORY | quiet)?;
        Ok(beneath::entries(&dir)?.next().is_none())
    }

    /// Names directly in a directory of the tree, without reserved ones.
    pub(crate) fn names_below(&self, dir: &RelPath) -> Result<Vec<(RelPath, FileType)>, Errno> {
        let fd = self.open(dir, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW)?;
        let mut found = Vec::new();
        self.add_names_below(dir, &fd, &mut found)?;
        let first = found.len();
        for other in self.others_at(dir) {
            self.add_names_below(dir, &other.read_checkpoint(false)?, &mut found)?;
        }
        if found.len() > first {
            found.sort_by(|a, b| a.0.cmp(&b.0));
            found.dedup_by(|a, b| a.0 == b.0);
        }
        Ok(found)
    }

    fn add_names_below(
        &self,
        dir: &RelPath,
        fd: &OwnedFd,
        found: &mut Vec<(RelPath, FileType)>,
    ) -> Result<(), Errno> {
        for entry in beneath::entries(fd)? {
            let entry = entry?;
            let path = dir.join(entry.file_name().to_bytes())?;
            if self.names.reserved(&path) {
                continue;
            }
            let kind = match entry.file_type() {
                FileType::Unknown => {
                    let fd = self.open(&path, OFlags::PATH | OFlags::NOFOLLOW)?;
                    FileType::from_raw_mode(stat_of(&fd)?.st_mode)
                }
                known => known,
            };
            found.push((path, kind));
        }
        Ok(())
    }

    /// Regular files of a dataset with their sizes, sorted by path; without the marker, which is no
    /// data.
    pub(crate) fn regular_files(&self, name: &[u8]) -> Result<Vec<(RelPath, u64)>, Errno> {
        let top = self.names.dataset_path(name)?;
        let mut found = Vec::new();
        let mut pending = vec![top.clone()];
        while let Some(dir) = pending.pop() {
            for (path, kind) in self.names_below(&dir)? {
                if kind == FileType::Directory {
                    pending.push(path);
                    continue;
                }
                if kind != FileType::RegularFile || self.names.place(&path).is_marker() {
                    continue;
                }
                let stat = stat_of(self.open(&path, OFlags::PATH | OFlags::NOFOLLOW)?)?;
                let Some(inner) = path.strip(&top) else { return fail(libc::EIO) };
                found.push((inner, u64::try_from(stat.st_size).unwrap_or(0)));
            }
        }
        found.sort();
        Ok(found)
    }
}

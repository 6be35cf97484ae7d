//! Where files are of which only the descriptor or the number is known.

use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;

use rustix::fs::{AtFlags, Dir, FileType, Stat};

use super::trees::Trees;
use crate::errno::Errno;
use crate::fs::attr::key_of;
use crate::fs::inodes::{Backing, Key};
use crate::fs::proc_path;
use crate::path::RelPath;

/// The kernel's text for a path whose last name is gone.
const GONE: &[u8] = b" (deleted)";

impl Trees {
    /// The path at which the kernel sees a descriptor's file, relative to its store's tree.
    pub(crate) fn path_of(
        &self,
        backing: &Backing,
        stat: &Stat,
        trees: &[Vec<u8>],
    ) -> Result<Option<RelPath>, Errno> {
        if stat.st_nlink == 0 {
            return Ok(None);
        }
        let text = path_text(&backing.fd)?;
        let below = |tree: &Vec<u8>| text.strip_prefix(&**tree)?.strip_prefix(b"/");
        let found = trees.iter().enumerate().find_map(|(store, tree)| Some((store, below(tree)?)));
        let Some((store, path)) = found else { return Ok(None) };
        let Ok(path) = RelPath::new(path) else { return Ok(None) };
        if path.as_bytes().ends_with(GONE) {
            // A name may end so.
            let tree = &self.all()[store].tree;
            let there = rustix::fs::statat(tree, path.as_path(), AtFlags::SYMLINK_NOFOLLOW);
            return Ok(there.is_ok_and(|there| key_of(&there) == backing.key).then_some(path));
        }
        Ok(Some(path))
    }

    /// Where the trees are in the kernel's eyes.
    pub(crate) fn kernel_paths(&self) -> Result<Vec<Vec<u8>>, Errno> {
        self.all().iter().map(|root| path_text(&root.tree)).collect()
    }

    /// All names in the trees of the inodes in `wanted`.
    pub(crate) fn find_all(&self, wanted: &HashMap<Key, u64>) -> Result<Vec<(RelPath, u64)>, Errno> {
        let numbers: HashSet<u64> = wanted.keys().map(|key| key.1).collect();
        let mut found = Vec::new();
        let mut pending: Vec<(usize, RelPath)> =
            (0..self.all().len()).map(|store| (store, RelPath::root())).collect();
        while let Some((store, dir)) = pending.pop() {
            let Ok(fd) = self.all()[store].read(&dir) else { continue };
            for entry in Dir::read_from(&fd)? {
                let entry = entry?;
                let name = entry.file_name().to_bytes();
                if name == b"." || name == b".." {
                    continue;
                }
                let path = dir.join(name)?;
                let directory = matches!(entry.file_type(), FileType::Directory | FileType::Unknown);
                if numbers.contains(&entry.ino())
                    && let Ok(stat) = rustix::fs::statat(&fd, name, AtFlags::SYMLINK_NOFOLLOW)
                    && let Some(id) = wanted.get(&key_of(&stat))
                {
                    found.push((path.clone(), *id));
                }
                if directory {
                    pending.push((store, path));
                }
            }
        }
        Ok(found)
    }
}

fn path_text(fd: &OwnedFd) -> Result<Vec<u8>, Errno> {
    Ok(std::fs::read_link(proc_path(fd))?.into_os_string().into_vec())
}

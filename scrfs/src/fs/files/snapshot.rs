//! What an open directory has listed.

use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::fs::MemfdFlags;

use crate::errno::Errno;
use crate::fs::attr::{Kind, key_of};
use crate::fs::errno::fail;
use crate::fs::inodes::Key;

/// One name of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirEntry {
    /// The name; `.` and `..` too.
    pub name: Vec<u8>,
    /// Its type.
    pub kind: Kind,
    /// Its inode number; for a name that nobody looked up yet a number that no other name has.
    pub ino: u64,
}

/// What became of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// There was no room for it.
    Full,
    /// Its name was listed.
    Name,
    /// It was listed with its attributes, for the kernel to remember.
    Entry,
}

/// A listing.
#[derive(Debug, Default)]
pub(crate) struct Snapshot {
    pub(crate) entries: Vec<DirEntry>,
    /// Of the memory that all may take.
    _share: Option<Share>,
}

/// Bytes that the listings of open directories may take, and what is kept beside them; a single one
/// may take more.
pub(crate) const LISTINGS_MAX: usize = 512 << 20;

/// Bytes that they take.
#[derive(Debug, Clone, Default)]
pub(crate) struct Listings(Arc<AtomicUsize>);

/// What one of them takes.
#[derive(Debug)]
pub(crate) struct Share {
    all: Listings,
    bytes: usize,
}

impl Listings {
    /// A listing of `entries`; ENOMEM where there is no room for it.
    pub(crate) fn keep(&self, entries: Vec<DirEntry>) -> Result<Snapshot, Errno> {
        let share = self.take(bytes_of(&entries))?;
        Ok(Snapshot { entries, _share: Some(share) })
    }

    /// Room for one of `bytes`; ENOMEM where there is none.
    pub(crate) fn take(&self, bytes: usize) -> Result<Share, Errno> {
        let others = self.0.fetch_add(bytes, Ordering::Relaxed);
        // From here on it is given back when it is dropped.
        let share = Share { all: self.clone(), bytes };
        if others > 0 && others.saturating_add(bytes) > LISTINGS_MAX { fail(libc::ENOMEM) } else { Ok(share) }
    }
}

/// In the listing, and in the copy for a successor.
fn bytes_of(entries: &[DirEntry]) -> usize {
    entries.iter().map(|entry| size_of::<DirEntry>() + 2 * entry.name.len() + 16).sum()
}

impl Drop for Share {
    fn drop(&mut self) {
        self.all.0.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Snapshot {
    /// The offset behind its last entry.
    pub(crate) fn end(&self) -> u32 {
        u32::try_from(self.entries.len()).unwrap_or(u32::MAX)
    }

    /// Written to memory that outlives this process: per entry inode number, type, length of the
    /// name, name.
    pub(crate) fn write(&self) -> std::io::Result<(OwnedFd, Key)> {
        let mut bytes = Vec::new();
        for entry in &self.entries {
            let length = u32::try_from(entry.name.len()).map_err(std::io::Error::other)?;
            bytes.extend(entry.ino.to_ne_bytes());
            bytes.push(entry.kind.code());
            bytes.extend(length.to_ne_bytes());
            bytes.extend(&entry.name);
        }
        let fd = rustix::fs::memfd_create("scrfs-listing", MemfdFlags::CLOEXEC)?;
        let mut file = File::from(fd);
        file.write_all(&bytes)?;
        let fd = OwnedFd::from(file);
        let key = key_of(&rustix::fs::fstat(&fd)?);
        Ok((fd, key))
    }

    /// What [`Snapshot::write`] wrote.
    pub(crate) fn read(fd: OwnedFd) -> Option<(Arc<Self>, OwnedFd)> {
        let file = File::from(fd);
        let mut bytes = vec![0; usize::try_from(file.metadata().ok()?.len()).ok()?];
        file.read_exact_at(&mut bytes, 0).ok()?;
        let (mut entries, mut rest) = (Vec::new(), bytes.as_slice());
        while let Some((ino, after)) = rest.split_first_chunk() {
            let (kind, after) = after.split_first()?;
            let (length, after) = after.split_first_chunk()?;
            let (name, after) = after.split_at_checked(u32::from_ne_bytes(*length) as usize)?;
            let kind = Kind::of_code(*kind);
            entries.push(DirEntry { name: name.to_vec(), kind, ino: u64::from_ne_bytes(*ino) });
            rest = after;
        }
        Some((Arc::new(Self { entries, _share: None }), file.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_directories_take_a_bounded_part_of_memory() {
        let listings = Listings::default();
        let half = LISTINGS_MAX / 2;
        let (one, two) = (listings.take(half).unwrap(), listings.take(half).unwrap());
        assert_eq!(listings.take(1).unwrap_err(), Errno(libc::ENOMEM));
        drop(one);
        let three = listings.take(half).unwrap();
        drop((two, three));
        assert_eq!(listings.0.load(Ordering::Relaxed), 0);
        assert!(listings.take(2 * LISTINGS_MAX).is_ok(), "one directory can always be read");
    }
}

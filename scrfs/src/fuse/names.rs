//! Listings of names that the kernel is not to remember from them.
//!
//! What comes with its attributes the kernel enters as known from the moment at which it has read
//! the answer. For a name that another node changes that is too late: it may have been told of the
//! change before it gets there. Number 0 says that a name comes without, and fuser has no such
//! entry.

use std::os::fd::OwnedFd;

use fuser::ReplyDirectoryPlus;

use crate::fs::{DirEntry, Kind};

/// Bytes of an answer that every request has room for.
const ROOM: usize = 4096;
/// struct fuse_out_header, struct fuse_entry_out; and what an entry is aligned to.
const HEADER: usize = 16;
const ATTRIBUTES: usize = 128;
const ALIGNED: usize = 8;

/// The entries of one answer.
#[derive(Debug, Default)]
pub(super) struct Names(Vec<u8>);

impl Names {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds an entry; false when there is no room for it.
    pub(super) fn add(&mut self, listed: &DirEntry, next: u64) -> bool {
        let Ok(length) = u32::try_from(listed.name.len()) else { return true };
        let mut entry = vec![0; ATTRIBUTES];
        entry.extend(listed.ino.to_ne_bytes());
        entry.extend(next.to_ne_bytes());
        entry.extend(length.to_ne_bytes());
        entry.extend(type_of(listed.kind).to_ne_bytes());
        entry.extend(&listed.name);
        entry.resize(entry.len().next_multiple_of(ALIGNED), 0);
        let fits = self.0.len() + entry.len() <= ROOM;
        if fits {
            self.0.extend(entry);
        }
        fits
    }

    /// Answers request `unique`, which `reply` is for.
    pub(super) fn answer(self, device: &OwnedFd, unique: u64, reply: ReplyDirectoryPlus) {
        let length = u32::try_from(HEADER + self.0.len()).unwrap_or(0);
        let mut bytes = Vec::with_capacity(HEADER + self.0.len());
        bytes.extend(length.to_ne_bytes());
        bytes.extend(0_i32.to_ne_bytes());
        bytes.extend(unique.to_ne_bytes());
        bytes.extend(self.0);
        match rustix::io::write(device, &bytes) {
            // Dropped, it would answer that there was no answer.
            Ok(_) => std::mem::forget(reply),
            Err(error) => reply.error(std::io::Error::from(error).into()),
        }
    }
}

/// As in d_type.
fn type_of(kind: Kind) -> u32 {
    match kind {
        Kind::Fifo => 1,
        Kind::CharDevice => 2,
        Kind::Directory => 4,
        Kind::BlockDevice => 6,
        Kind::File => 8,
        Kind::Symlink => 10,
        Kind::Socket => 12,
    }
}

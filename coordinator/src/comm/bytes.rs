//! Bytes that are sent: they stay where they are, as they are, until the transport is done with
//! them.
#![expect(unsafe_code, reason = "a mapping is only as constant as its file")]

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::sync::Arc;

use memmap2::{Advice, MmapMut, MmapOptions};

/// Bytes on their way. Clones are the same bytes, which can be on their way to others too.
#[derive(Debug, Clone)]
pub enum Bytes {
    /// In a buffer.
    Buffer(Arc<Vec<u8>>),
    /// Where the file system has them.
    Mapped(Arc<Mapping>),
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Buffer(buffer) => buffer,
            Self::Mapped(mapping) => &mapping.0,
        }
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(buffer: Vec<u8>) -> Self {
        Self::Buffer(Arc::new(buffer))
    }
}

impl From<Arc<Vec<u8>>> for Bytes {
    fn from(buffer: Arc<Vec<u8>>) -> Self {
        Self::Buffer(buffer)
    }
}

impl PartialEq for Bytes {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Bytes {}

/// A part of a file that nobody changes, in memory without a copy of ours.
#[derive(Debug)]
pub struct Mapping(MmapMut);

impl Mapping {
    /// The `len` bytes from `offset`, all of them read by then: an error of the device is reported
    /// here and not by a signal when they are looked at. The file must be one that stays as it is,
    /// as a member's are while its dataset is frozen.
    ///
    /// # Errors
    /// The file system cannot do so, or the kernel is older than Linux 5.14, or the bytes cannot be
    /// read. Whoever reads the file in the ordinary way learns which.
    pub fn of(file: &File, offset: u64, len: usize) -> io::Result<Self> {
        // Private and writable: what it takes for a network adapter to be shown these pages by an
        // MPI that asks for the right to write whatever it sends. Nobody writes.
        // SAFETY: nobody changes the bytes, nor cuts them off: the daemon gives descriptors of
        // frozen files alone, of which it has made sure that no program can write to them. If a
        // node's own root does it all the same, readers see other bytes, or the process ends by
        // SIGBUS, and no more than this epoch of the coordinators with it.
        let mapping = unsafe { MmapOptions::new().offset(offset).len(len).map_copy(file)? };
        mapping.advise(Advice::PopulateRead)?;
        Ok(Self(mapping))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn any_part_of_a_file_is_mapped_and_nothing_behind_its_end() {
        let mut file = tempfile::tempfile_in("/dev/shm").unwrap();
        let bytes: Vec<u8> = (0..20_000_u32).map(|at| (at % 251) as u8).collect();
        file.write_all(&bytes).unwrap();
        for (offset, len) in [(0, 1), (1, 5000), (4095, 2), (4096, 4096), (8191, 11_809)] {
            let mapped = Bytes::Mapped(Arc::new(Mapping::of(&file, offset as u64, len).unwrap()));
            assert_eq!(*mapped, bytes[offset..offset + len]);
        }
        let error = Mapping::of(&file, 16_384, 8192).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EFAULT));
    }
}

//! A shared mapping, as words that are read and written one at a time.
//!
//! Its size is that of all bounds together; pages that were never written take no room.
#![expect(
    unsafe_code,
    reason = "mmap gives memory that the language knows nothing of; the allocator is asked to give some back"
)]

use std::io;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::lock::Mutex;
use rustix::fs::MemfdFlags;
use rustix::mm::{MapFlags, ProtFlags};

/// Makes state memory. It is inherited by processes that this one starts.
///
/// # Errors
/// No memory, no descriptor.
pub fn create() -> io::Result<OwnedFd> {
    Ok(rustix::fs::memfd_create("scrfs-state", MemfdFlags::empty())?)
}

/// Gives memory that was used for a while back to the system.
pub fn trim() {
    // SAFETY: the allocator's own; it takes its locks.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Mapped words.
#[derive(Debug)]
pub struct Memory {
    at: NonNull<AtomicU64>,
    words: usize,
}

// SAFETY: the mapping belongs to this value until it is dropped, and is only accessed through
// atomics.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Maps `words` words of `file`, which becomes at least so long.
    ///
    /// # Errors
    /// It cannot be made longer or mapped.
    pub fn map(file: &OwnedFd, words: usize) -> io::Result<Self> {
        let bytes = words * size_of::<u64>();
        let length = u64::try_from(bytes).map_err(io::Error::other)?;
        if std::fs::File::from(file.try_clone()?).metadata()?.len() < length {
            rustix::fs::ftruncate(file, length)?;
        }
        // SAFETY: a new mapping at an address that the kernel chooses overlaps nothing; the file is
        // that long and is never made shorter.
        let at = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::NORESERVE,
                file,
                0,
            )?
        };
        let at = NonNull::new(at.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { at, words })
    }

    /// Word `index`; the last one stands for all beyond.
    pub(crate) fn word(&self, index: usize) -> &AtomicU64 {
        debug_assert!(index < self.words, "{index}");
        // SAFETY: within the mapping, which lives as long as `self`; page-aligned at its begin;
        // zeroes are valid.
        unsafe { self.at.add(index.min(self.words - 1)).as_ref() }
    }

    /// Its value, and with it all that was stored before it.
    pub(crate) fn get(&self, index: usize) -> u64 {
        self.word(index).load(Ordering::Acquire)
    }

    /// Stores after all that was stored before.
    pub(crate) fn set(&self, index: usize, value: u64) {
        self.word(index).store(value, Ordering::Release);
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: mapped in `map` with this length; no reference into it outlives `self`.
        let _ = unsafe { rustix::mm::munmap(self.at.as_ptr().cast(), self.words * size_of::<u64>()) };
    }
}

/// Records of one kind. The first word of a record is 0 while it is free.
#[derive(Debug)]
pub(crate) struct Region {
    base: usize,
    words: usize,
    count: usize,
    /// The header's word that tells how many were ever in use.
    used: usize,
    free: Mutex<Vec<u32>>,
}

impl Region {
    pub(crate) fn new(base: usize, words: usize, count: usize, used: usize) -> Self {
        Self { base, words, count, used, free: Mutex::default() }
    }

    /// Finds what is free of a predecessor's.
    pub(crate) fn take_up(&self, memory: &Memory) {
        *self.free.lock() = self.all(memory).filter(|&record| memory.get(self.at(record, 0)) == 0).collect();
    }

    /// All that were ever in use.
    pub(crate) fn all(&self, memory: &Memory) -> std::ops::Range<u32> {
        0..u32::try_from(memory.get(self.used)).unwrap_or(0).min(u32::try_from(self.count).unwrap_or(0))
    }

    /// A free record; the caller makes it valid by storing its first word last.
    pub(crate) fn take(&self, memory: &Memory) -> Option<u32> {
        let mut free = self.free.lock();
        if let Some(record) = free.pop() {
            return Some(record);
        }
        let next = self.all(memory).end;
        if next as usize >= self.count {
            return None;
        }
        memory.set(self.used, u64::from(next) + 1);
        Some(next)
    }

    /// Makes a record free.
    pub(crate) fn give_back(&self, memory: &Memory, record: u32) {
        memory.set(self.at(record, 0), 0);
        self.free.lock().push(record);
    }

    /// The index of a record's word.
    pub(crate) fn at(&self, record: u32, word: usize) -> usize {
        self.base + record as usize * self.words + word
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_mapping_sees_what_the_first_stored() {
        let file = create().unwrap();
        let one = Memory::map(&file, 1024).unwrap();
        let region = Region::new(512, 4, 3, 16);
        let records: Vec<u32> = std::iter::from_fn(|| region.take(&one)).collect();
        assert_eq!(records, [0, 1, 2]);
        for record in records {
            one.set(region.at(record, 0), 7);
        }
        region.give_back(&one, 1);
        drop(one);
        let two = Memory::map(&file, 1024).unwrap();
        let region = Region::new(512, 4, 3, 16);
        region.take_up(&two);
        assert_eq!((two.get(region.at(2, 0)), region.take(&two), region.take(&two)), (7, Some(1), None));
    }
}

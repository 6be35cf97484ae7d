//! The calls that have no safe wrapper.
#![expect(unsafe_code, reason = "mmap, pwritev2, readdir positions")]

use std::ffi::CStr;
use std::fs::File;
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd};

fn checked(result: libc::c_long) -> Result<i64, i32> {
    if result < 0 {
        Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
    } else {
        Ok(result)
    }
}

/// A mapping of a file's first bytes.
pub struct Map {
    at: *mut libc::c_void,
    length: usize,
}

impl Map {
    pub fn new(file: BorrowedFd<'_>, length: usize, protection: i32, flags: i32) -> Result<Self, i32> {
        // SAFETY: a fresh mapping at an address of the kernel's choice; freed by `drop` alone.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), length, protection, flags, file.as_raw_fd(), 0) };
        if at == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO));
        }
        Ok(Self { at, length })
    }

    /// `at` must lie in the file, else the kernel ends the test with SIGBUS.
    pub fn store(&self, at: usize, byte: u8) {
        assert!(at < self.length);
        // SAFETY: inside the mapping, which is writable by the test's choice.
        unsafe { self.at.cast::<u8>().add(at).write_volatile(byte) };
    }

    pub fn load(&self, at: usize) -> u8 {
        assert!(at < self.length);
        // SAFETY: inside the mapping.
        unsafe { self.at.cast::<u8>().add(at).read_volatile() }
    }

    pub fn sync(&self) -> Result<i64, i32> {
        // SAFETY: this mapping.
        checked(unsafe { libc::msync(self.at, self.length, libc::MS_SYNC) }.into())
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: this mapping, once.
        unsafe { libc::munmap(self.at, self.length) };
    }
}

/// pwritev2(2) with `flags`.
pub fn pwritev2(file: BorrowedFd<'_>, bytes: &[u8], offset: i64, flags: i32) -> Result<i64, i32> {
    let vector =
        libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast::<libc::c_void>(), iov_len: bytes.len() };
    // SAFETY: one vector over a live slice that the call only reads.
    checked(unsafe { libc::pwritev2(file.as_raw_fd(), &raw const vector, 1, offset, flags) } as i64)
}

/// A directory stream with positions.
pub struct Stream(*mut libc::DIR);

impl Stream {
    pub fn open(dir: File) -> Self {
        // SAFETY: the stream takes the descriptor over.
        let stream = unsafe { libc::fdopendir(dir.into_raw_fd()) };
        assert!(!stream.is_null());
        Self(stream)
    }

    /// Name, inode number and type.
    pub fn next(&mut self) -> Option<(Vec<u8>, u64, u8)> {
        // SAFETY: the entry is copied before the next call on this stream.
        unsafe {
            let entry = libc::readdir64(self.0);
            if entry.is_null() {
                return None;
            }
            let name = CStr::from_ptr((*entry).d_name.as_ptr()).to_bytes().to_vec();
            Some((name, (*entry).d_ino, (*entry).d_type))
        }
    }

    pub fn tell(&mut self) -> i64 {
        // SAFETY: an open stream.
        unsafe { libc::telldir(self.0) }
    }

    pub fn seek(&mut self, position: i64) {
        // SAFETY: a position of this stream.
        unsafe { libc::seekdir(self.0, position) };
    }

    pub fn rewind(&mut self) {
        // SAFETY: an open stream.
        unsafe { libc::rewinddir(self.0) };
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: once.
        unsafe { libc::closedir(self.0) };
    }
}

/// A lock of this open file (OFD) on bytes; `kind` F_RDLCK, F_WRLCK, F_UNLCK. Not waited for unless
/// `wait`.
pub fn lock_bytes(file: BorrowedFd<'_>, kind: i32, start: i64, length: i64, wait: bool) -> Result<i64, i32> {
    // SAFETY: all zero is a valid flock.
    let mut lock: libc::flock64 = unsafe { std::mem::zeroed() };
    lock.l_type = i16::try_from(kind).unwrap();
    lock.l_start = start;
    lock.l_len = length;
    let command = if wait { libc::F_OFD_SETLKW } else { libc::F_OFD_SETLK };
    // SAFETY: the structure outlives the call.
    checked(unsafe { libc::fcntl(file.as_raw_fd(), command, &raw mut lock) }.into())
}

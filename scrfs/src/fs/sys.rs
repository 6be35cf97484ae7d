//! The one system call that no wrapper crate has: leases.
#![expect(unsafe_code, reason = "fcntl(F_SETLEASE) has no safe wrapper")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// True when some process can write the file: it has a writable descriptor or a shared writable
/// mapping.
///
/// The kernel grants a read lease exactly when none is left. `file` must be opened read-only. The
/// lease is given back at once; a writer that opens meanwhile waits for that and the kernel tells
/// this process with SIGIO, which the daemon must not die of.
pub(crate) fn has_writer(file: BorrowedFd<'_>) -> io::Result<bool> {
    let set = |kind: libc::c_int| {
        // SAFETY: F_SETLEASE takes an int and touches no memory of ours; the descriptor is open.
        let result = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, kind) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    };
    match set(libc::F_RDLCK) {
        Ok(()) => {
            set(libc::F_UNLCK)?;
            Ok(false)
        }
        Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => Ok(true),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{File, OpenOptions};
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_writer_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let writer = File::create(&path).unwrap();
        let reader = OpenOptions::new().read(true).open(&path).unwrap();
        assert!(has_writer(reader.as_fd()).unwrap());
        drop(writer);
        assert!(!has_writer(reader.as_fd()).unwrap());
    }
}

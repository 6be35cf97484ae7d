//! Leases: who else has a file open.
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
    is_refused(file, libc::F_RDLCK)
}

/// True when the file has been opened besides `file`, here or by another process, and that is not
/// closed yet.
///
/// The kernel grants a write lease exactly when nobody else has it open. As [`has_writer`].
pub(crate) fn is_open_elsewhere(file: BorrowedFd<'_>) -> io::Result<bool> {
    is_refused(file, libc::F_WRLCK)
}

fn is_refused(file: BorrowedFd<'_>, lease: libc::c_int) -> io::Result<bool> {
    let set = |kind: libc::c_int| {
        // SAFETY: F_SETLEASE takes an int and touches no memory of ours; the descriptor is open.
        let result = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, kind) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    };
    match set(lease) {
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

    /// A copy of the descriptor is none that was opened.
    #[test]
    fn who_else_has_opened_it_is_seen() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = dir.path().join("f");
        let ours = File::create_new(&path).unwrap();
        let copy = ours.try_clone().unwrap();
        assert!(!is_open_elsewhere(ours.as_fd()).unwrap());
        drop(copy);
        for writes in [false, true] {
            let other = OpenOptions::new().read(!writes).write(writes).open(&path).unwrap();
            assert!(is_open_elsewhere(ours.as_fd()).unwrap());
            drop(other);
            assert!(!is_open_elsewhere(ours.as_fd()).unwrap());
        }
    }
}

//! What a person can do about an error of the system: a line for `hint:`.

use std::io::{self, ErrorKind};

/// For an error on a path, a process or a socket. Always something that can be done.
pub fn of(error: &io::Error) -> &'static str {
    match error.kind() {
        ErrorKind::NotFound => "see that the path is right",
        ErrorKind::PermissionDenied => "do this as its owner or as root, or name one of your own",
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => "make room there, or name another directory",
        ErrorKind::ReadOnlyFilesystem => "have it mounted for writing, or name another directory",
        ErrorKind::NotADirectory | ErrorKind::IsADirectory | ErrorKind::AlreadyExists => {
            "name another path, or move away what is there"
        }
        // A pipe, a directory, a file of a length that nothing of scrfs has.
        ErrorKind::InvalidData => "scrfs has not made this: move it away, or name another path",
        ErrorKind::CrossesDevices => {
            "unmount what is mounted there, or remove the link, or name another path: /proc/self/mountinfo says whose a mount is"
        }
        ErrorKind::TimedOut => "see that the file system there answers: `stat` on the path; then try again",
        ErrorKind::NotConnected => "nobody serves that mount any more: `scrfs umount` clears it up",
        ErrorKind::OutOfMemory => {
            "make memory free on this node, or raise the limit of this process (ulimit -v)"
        }
        _ => match error.raw_os_error() {
            Some(libc::EMFILE | libc::ENFILE | libc::EAGAIN) => {
                "a limit on descriptors or processes is met: raise it (ulimit -n, ulimit -u)"
            }
            Some(libc::ELOOP) => "a link stands where none is followed: move it away, or name another path",
            Some(libc::ENXIO) => "a pipe or a socket stands where a file is to be: move it away",
            Some(libc::EFBIG) => "a limit on the size of files is met: raise it (ulimit -f)",
            _ => "the kernel's log may say more: dmesg",
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_the_system_have_remedies() {
        for (errno, word) in [
            (libc::ENOENT, "path is right"),
            (libc::EACCES, "as root"),
            (libc::EPERM, "as root"),
            (libc::ENOSPC, "make room"),
            (libc::EDQUOT, "make room"),
            (libc::EROFS, "for writing"),
            (libc::ENOTDIR, "another path"),
            (libc::EMFILE, "ulimit -n"),
            (libc::EAGAIN, "ulimit -u"),
            (libc::ENOTCONN, "scrfs umount"),
            (libc::ELOOP, "link"),
            (libc::EFBIG, "ulimit -f"),
            (libc::EIO, "dmesg"),
        ] {
            let hint = of(&io::Error::from_raw_os_error(errno));
            assert!(hint.contains(word), "{errno}: {hint}");
        }
        assert!(of(&ErrorKind::TimedOut.into()).contains("answers"));
        assert!(of(&io::Error::new(ErrorKind::InvalidData, "no regular file")).contains("move it away"));
        assert!(of(&ErrorKind::CrossesDevices.into()).contains("unmount"));
    }
}

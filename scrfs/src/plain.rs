//! Files in places that others may write to: what is no regular file is refused. Opening a pipe
//! there would wait for somebody who writes.

use std::fs::File;
use std::io;
use std::path::Path;

use rustix::fs::{Mode, OFlags};

/// Whether a link in the place of the file is followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Links {
    Follow,
    /// Opening one fails with `ELOOP`.
    Refuse,
}

/// Opens a regular file for reading.
///
/// # Errors
/// Those of the system call; it is no regular file (`InvalidData`).
pub(crate) fn open(path: &Path, links: Links) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let flags = if links == Links::Refuse { flags | OFlags::NOFOLLOW } else { flags };
    let file = match rustix::fs::open(path, flags, Mode::empty()) {
        // So a socket answers.
        Err(rustix::io::Errno::NXIO) => return Err(not_regular()),
        opened => File::from(opened?),
    };
    check(&file)?;
    Ok(file)
}

fn not_regular() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "it is no regular file")
}

/// Whether it is a regular file.
fn check(file: &File) -> io::Result<()> {
    let is_file = file.metadata()?.is_file();
    is_file.then_some(()).ok_or_else(not_regular)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_is_not_waited_for_and_a_link_is_refused_where_it_is_to_be() {
        let place = tempfile::tempdir().unwrap();
        let [file, pipe, link, socket] =
            ["file", "pipe", "link", "socket"].map(|name| place.path().join(name));
        std::fs::write(&file, "x").unwrap();
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let _bound = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        for links in [Links::Follow, Links::Refuse] {
            assert!(open(&file, links).is_ok());
            for other in [pipe.as_path(), place.path(), &socket] {
                assert_eq!(open(other, links).unwrap_err().kind(), io::ErrorKind::InvalidData, "{other:?}");
            }
        }
        assert!(open(&link, Links::Follow).is_ok());
        assert_eq!(open(&link, Links::Refuse).unwrap_err().raw_os_error(), Some(libc::ELOOP));
    }
}

//! Files in places that others may write to: what is no regular file is refused. Opening a pipe
//! there would wait for somebody who writes.

use std::fs::{File, Metadata};
use std::io;
use std::path::Path;

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

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
    regular(rustix::fs::open(path, flags, Mode::empty()).map(File::from).map_err(io::Error::from))
}

/// Opens a regular file of the prefix for reading.
///
/// # Errors
/// Those of [`open_unmounted`]; it is no regular file (`InvalidData`).
pub(crate) fn read_unmounted(path: &Path) -> io::Result<File> {
    regular(open_unmounted(path, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty()))
}

/// Opens a file in a directory where others may make names. What a user has mounted at that name
/// may say what is not so, or never answer: it is not asked. A relative link is followed on the
/// same file system.
///
/// # Errors
/// Those of the system calls; something is mounted there (`CrossesDevices`).
pub(crate) fn open_unmounted(path: &Path, flags: OFlags, mode: Mode) -> io::Result<File> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let above = path.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let to_it = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::open(above, to_it, Mode::empty())?;
    let flags = flags | OFlags::CLOEXEC;
    rustix::fs::openat2(directory, name, flags, mode, ResolveFlags::NO_XDEV).map(File::from).map_err(mounted)
}

/// What is said of an error of [`rustix::fs::openat2`] that comes of a mount.
pub(crate) fn mounted(error: Errno) -> io::Error {
    match error {
        Errno::XDEV => io::Error::new(io::ErrorKind::CrossesDevices, "something is mounted there"),
        other => other.into(),
    }
}

/// What the file or link at this name is.
///
/// # Errors
/// As [`open_unmounted`].
pub(crate) fn look(path: &Path) -> io::Result<Metadata> {
    open_unmounted(path, OFlags::PATH | OFlags::NOFOLLOW, Mode::empty())?.metadata()
}

fn regular(opened: io::Result<File>) -> io::Result<File> {
    let file = opened.map_err(|error| match error.raw_os_error() {
        // So a socket answers.
        Some(libc::ENXIO) => not_regular(),
        _ => error,
    })?;
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
        std::os::unix::fs::symlink("file", &link).unwrap();
        let _bound = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        for links in [Links::Follow, Links::Refuse] {
            assert!(open(&file, links).is_ok());
            for other in [pipe.as_path(), place.path(), &socket] {
                assert_eq!(open(other, links).unwrap_err().kind(), io::ErrorKind::InvalidData, "{other:?}");
            }
        }
        assert!(open(&link, Links::Follow).is_ok() && read_unmounted(&link).is_ok());
        assert!(look(&link).unwrap().is_symlink() && look(&file).unwrap().is_file());
        assert_eq!(open(&link, Links::Refuse).unwrap_err().raw_os_error(), Some(libc::ELOOP));
        for other in [pipe.as_path(), place.path(), &socket] {
            assert_eq!(read_unmounted(other).unwrap_err().kind(), io::ErrorKind::InvalidData, "{other:?}");
        }
    }

    #[test]
    fn what_is_mounted_at_a_name_is_not_asked() {
        let flags = OFlags::RDWR | OFlags::CREATE;
        for mounted in ["/proc", "/sys"].map(Path::new) {
            let opened = open_unmounted(mounted, flags, Mode::RUSR);
            for asked in [opened.map(drop), read_unmounted(mounted).map(drop), look(mounted).map(drop)] {
                assert_eq!(asked.unwrap_err().kind(), io::ErrorKind::CrossesDevices, "{mounted:?}");
            }
        }
    }
}

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
pub(crate) fn read_unmounted(path: &Path, links: Links) -> io::Result<File> {
    let (above, name) = split(path)?;
    read_below(above, name, links)
}

/// Opens a regular file below a directory in which others may make names for reading. Nothing that
/// a user has mounted on the way is asked.
///
/// # Errors
/// Those of [`open_unmounted`]; it is no regular file (`InvalidData`).
pub(crate) fn read_below(above: &Path, inner: &Path, links: Links) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK;
    let flags = if links == Links::Refuse { flags | OFlags::NOFOLLOW } else { flags };
    regular(open_below(above, inner, flags, Mode::empty()))
}

/// Opens a file in a directory where others may make names. What a user has mounted at that name
/// may say what is not so, or never answer: it is not asked. A relative link is followed on the
/// same file system.
///
/// # Errors
/// Those of the system calls; something is mounted there (`CrossesDevices`).
pub(crate) fn open_unmounted(path: &Path, flags: OFlags, mode: Mode) -> io::Result<File> {
    let (above, name) = split(path)?;
    open_below(above, name, flags, mode)
}

/// The directory that has the name, and the name.
fn split(path: &Path) -> io::Result<(&Path, &Path)> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let above = path.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Ok((above, Path::new(name)))
}

fn open_below(above: &Path, inner: &Path, flags: OFlags, mode: Mode) -> io::Result<File> {
    let to_it = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::open(above, to_it, Mode::empty())?;
    let open = |flags, mode| {
        rustix::fs::openat2(&directory, inner, flags | OFlags::CLOEXEC, mode, ResolveFlags::NO_XDEV)
    };
    open(flags, mode).map(File::from).map_err(|error| match error {
        // The link itself is of this file system.
        Errno::XDEV if open(OFlags::PATH | OFlags::NOFOLLOW, Mode::empty()).is_ok() => io::Error::new(
            io::ErrorKind::CrossesDevices,
            "it is a link with an absolute path, or to another file system",
        ),
        other => mounted(other),
    })
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
        assert!(open(&link, Links::Follow).is_ok() && read_unmounted(&link, Links::Follow).is_ok());
        assert!(look(&link).unwrap().is_symlink() && look(&file).unwrap().is_file());
        for refused in [open(&link, Links::Refuse), read_unmounted(&link, Links::Refuse)] {
            assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::ELOOP));
        }
        for other in [pipe.as_path(), place.path(), &socket] {
            let error = read_unmounted(other, Links::Follow).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{other:?}");
        }
        let away = place.path().join("away");
        std::os::unix::fs::symlink("/proc/version", &away).unwrap();
        let made = open_unmounted(&away, OFlags::WRONLY | OFlags::CREATE, Mode::RUSR);
        for refused in [read_unmounted(&away, Links::Follow), made] {
            let error = refused.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::CrossesDevices);
            assert!(error.to_string().contains("a link"), "{error}");
        }
    }

    #[test]
    fn what_is_mounted_at_a_name_is_not_asked() {
        let flags = OFlags::RDWR | OFlags::CREATE;
        for mounted in ["/proc", "/sys"].map(Path::new) {
            let opened = open_unmounted(mounted, flags, Mode::RUSR);
            let read = read_unmounted(mounted, Links::Refuse);
            for asked in [opened.map(drop), read.map(drop), look(mounted).map(drop)] {
                let error = asked.unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::CrossesDevices, "{mounted:?}");
                assert!(error.to_string().contains("mounted"), "{error}");
            }
        }
        // Nor on the way.
        let below = read_below(Path::new("/"), Path::new("proc/version"), Links::Follow);
        assert_eq!(below.unwrap_err().kind(), io::ErrorKind::CrossesDevices);
    }
}

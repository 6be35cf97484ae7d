//! Files in places that others may write to: what is no regular file is refused. Opening a pipe
//! there would wait for somebody who writes.

use std::ffi::OsString;
use std::fs::{DirBuilder, File, Metadata, OpenOptions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

/// The directory of a prefix that has scrfs's state, and SCR's. Where others may make names in the
/// prefix, a user may have mounted something there.
pub(crate) const STATE: &str = ".scr";

/// Of new directories and files of a prefix, less the umask.
const DIRECTORY_MODE: u32 = 0o775;
pub(crate) const FILE_MODE: u32 = 0o664;

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
    let flags = OFlags::RDONLY | OFlags::NONBLOCK;
    let flags = if links == Links::Refuse { flags | OFlags::NOFOLLOW } else { flags };
    regular(open_unmounted(path, flags, Mode::empty()))
}

/// Opens a dataset's directory, to reach what is in it. Its user, or the owner of the directory
/// above, may have moved it away with a link. What is mounted there is not asked.
///
/// # Errors
/// Those of the system calls; something is mounted there, or another's link leads to another file
/// system (`CrossesDevices`).
pub(crate) fn open_moved(directory: &Path) -> io::Result<OwnedFd> {
    let (above, name) = split(directory)?;
    let above = rustix::fs::open(above, TO_IT, Mode::empty())?;
    let found = named_below(&above, name).and_then(|link| follow(&above, name, &link));
    found.map_err(|error| in_words(directory, error))
}

/// Opens a regular file below `top`, which is the directory `shown`, for reading: by directories
/// that not anybody can have made in one another.
///
/// # Errors
/// Anybody can have made one, or the file (`PermissionDenied`); something is mounted there
/// (`CrossesDevices`); it is no regular file (`InvalidData`); those of the system calls.
pub(crate) fn read_inside(top: impl AsFd, shown: &Path, inner: &Path) -> io::Result<File> {
    let mut directory = top.as_fd().try_clone_to_owned()?;
    let mut shown = shown.to_owned();
    for name in inner.parent().into_iter().flatten() {
        let link = unplanted(&directory, &shown, Path::new(name))?;
        let next =
            follow(&directory, Path::new(name), &link).map_err(|error| in_words(&shown.join(name), error))?;
        check_planted(&directory, &shown, Path::new(name), &File::from(next.try_clone()?).metadata()?)?;
        directory = next;
        shown.push(name);
    }
    let name = Path::new(inner.file_name().ok_or(io::ErrorKind::InvalidInput)?);
    unplanted(&directory, &shown, name)?;
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let opened = rustix::fs::openat2(&directory, name, flags, Mode::empty(), ResolveFlags::NO_XDEV);
    let file = regular(opened.map(File::from).map_err(mounted))?;
    check_planted(&directory, &shown, name, &file.metadata()?)?;
    Ok(file)
}

/// Opens the directory at `name`, where `link` was found. Only a link that is this user's, root's
/// or of the owner of `above` is followed to another file system.
fn follow(above: &OwnedFd, name: &Path, link: &Metadata) -> io::Result<OwnedFd> {
    let resolve = match link.is_symlink() {
        true if !is_theirs(link) || link.uid() == File::from(above.try_clone()?).metadata()?.uid() => {
            ResolveFlags::empty()
        }
        true => ResolveFlags::NO_XDEV,
        false => ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS,
    };
    let opened = rustix::fs::openat2(above, name, TO_IT, Mode::empty(), resolve);
    opened.map_err(|error| if link.is_symlink() { led_away(error) } else { mounted(error) })
}

/// What has the name in the directory `above`, which is `shown`: not anybody can have made it.
fn unplanted(above: &OwnedFd, shown: &Path, name: &Path) -> io::Result<Metadata> {
    let found = named_below(above, name).map_err(|error| in_words(&shown.join(name), error))?;
    check_planted(above, shown, name, &found)?;
    Ok(found)
}

fn check_planted(above: &OwnedFd, shown: &Path, name: &Path, found: &Metadata) -> io::Result<()> {
    if is_planted(found, &File::from(above.try_clone()?).metadata()?) {
        return Err(named(&shown.join(name), &planted(found.uid(), shown)));
    }
    Ok(())
}

/// The error, which is about `path`; the system's own are left as they are.
fn in_words(path: &Path, error: io::Error) -> io::Error {
    if error.raw_os_error().is_some() { error } else { named(path, &error) }
}

/// What has the name `name` in a directory.
fn named_below(above: &OwnedFd, name: &Path) -> io::Result<Metadata> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let found =
        rustix::fs::openat2(above, name, flags, Mode::empty(), ResolveFlags::NO_XDEV).map_err(mounted)?;
    File::from(found).metadata()
}

const TO_IT: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

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
    if above.file_name().is_some_and(|name| name == STATE) {
        let refused = match look(above) {
            Err(error) => Some(error).filter(is_of_strangers),
            Ok(link) if link.is_symlink() => refuse_planted(&link, above).err().filter(is_of_strangers),
            Ok(_) => None,
        };
        if let Some(error) = refused {
            return Err(named(above, &error));
        }
    }
    let directory = rustix::fs::open(above, TO_IT, Mode::empty())?;
    let open = |flags, mode| {
        rustix::fs::openat2(&directory, inner, flags | OFlags::CLOEXEC, mode, ResolveFlags::NO_XDEV)
    };
    open(flags, mode).map(File::from).map_err(|error| match error {
        // The link itself is of this file system.
        Errno::XDEV if open(OFlags::PATH | OFlags::NOFOLLOW, Mode::empty()).is_ok() => led_away(error),
        other => mounted(other),
    })
}

/// What is said of an error of [`rustix::fs::openat2`] that comes of a link.
fn led_away(error: Errno) -> io::Error {
    match error {
        Errno::XDEV => io::Error::new(
            io::ErrorKind::CrossesDevices,
            "it is a link with an absolute path, or to another file system",
        ),
        other => other.into(),
    }
}

/// What is said of an error of [`rustix::fs::openat2`] that comes of a mount.
pub(crate) fn mounted(error: Errno) -> io::Error {
    match error {
        Errno::XDEV => io::Error::new(io::ErrorKind::CrossesDevices, "something is mounted there"),
        other => other.into(),
    }
}

/// Where the link at this name leads to.
///
/// # Errors
/// As [`open_unmounted`]; it is no link (`NotFound`).
pub(crate) fn read_link(path: &Path) -> io::Result<PathBuf> {
    let link = open_unmounted(path, OFlags::PATH | OFlags::NOFOLLOW, Mode::empty())?;
    let target = rustix::fs::readlinkat(&link, c"", Vec::new())?;
    Ok(PathBuf::from(OsString::from_vec(target.into_bytes())))
}

/// What the file or link at this name is.
///
/// # Errors
/// As [`open_unmounted`].
pub(crate) fn look(path: &Path) -> io::Result<Metadata> {
    open_unmounted(path, OFlags::PATH | OFlags::NOFOLLOW, Mode::empty())?.metadata()
}

/// Makes a directory of the prefix. Whatever the umask, not everybody may make names in it.
///
/// # Errors
/// Those of mkdir(2).
pub(crate) fn make_directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(DIRECTORY_MODE).create(path)
}

/// Makes a new file of the prefix, to be written. Whatever the umask, not everybody may write to
/// it.
///
/// # Errors
/// Those of open(2): something has the name.
pub fn make_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(path)
}

/// Refuses what is no regular file. Opened with `NONBLOCK`, a pipe waits for nobody.
///
/// # Errors
/// It could not be opened; it is no regular file (`InvalidData`).
pub(crate) fn regular(opened: io::Result<File>) -> io::Result<File> {
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

/// User and group of what this thread makes: the job's also in a thread of root's daemon.
pub(crate) fn acting() -> (u32, u32) {
    // There are no such ids: nothing changes, and those that are set come back.
    let user = nix::unistd::setfsuid(nix::unistd::Uid::from_raw(u32::MAX)).as_raw();
    (user, nix::unistd::setfsgid(nix::unistd::Gid::from_raw(u32::MAX)).as_raw())
}

/// Neither root nor the user who acts in this thread ([`acting`]) has made this file.
pub(crate) fn is_theirs(file: &Metadata) -> bool {
    ![0, acting().0].contains(&file.uid())
}

/// Anybody can have made this file in the directory `above`: nor has the directory's owner, and
/// everybody may make files there.
pub(crate) fn is_planted(file: &Metadata, above: &Metadata) -> bool {
    is_theirs(file) && above.mode() & 0o002 != 0 && above.uid() != file.uid()
}

/// Fails if anybody can have made this file, which is at `path`.
///
/// # Errors
/// So it is (`PermissionDenied`); those of the system calls.
pub(crate) fn refuse_planted(file: &Metadata, path: &Path) -> io::Result<()> {
    if is_theirs(file)
        && let Some(above) = path.parent()
        && is_planted(file, &std::fs::metadata(above)?)
    {
        return Err(planted(file.uid(), above));
    }
    Ok(())
}

fn planted(user: u32, above: &Path) -> io::Error {
    let text = format!("it belongs to user {user}, and everybody may make names in {}", above.display());
    io::Error::new(io::ErrorKind::PermissionDenied, text)
}

/// Whether an error says that somebody else may have put there, or has mounted there, what was
/// looked at.
pub fn is_of_strangers(error: &io::Error) -> bool {
    // The system's own have a number.
    error.kind() == io::ErrorKind::CrossesDevices
        || error.kind() == io::ErrorKind::PermissionDenied && error.raw_os_error().is_none()
}

/// The error, which is about `path`.
pub(crate) fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
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
        let top = File::open("/").unwrap();
        let below = read_inside(&top, Path::new("/"), Path::new("proc/version"));
        assert_eq!(below.unwrap_err().kind(), io::ErrorKind::CrossesDevices);
    }
}

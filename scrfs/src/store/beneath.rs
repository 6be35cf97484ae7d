//! Opening, making, moving and removing below a directory that paths cannot leave: no symbolic link
//! is followed, whoever put it there, and what is mounted below it is not asked.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{AtFlags, Dir, DirEntry, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::path::RelPath;
use crate::plain::mounted;

/// Directories below one another that [`remove_tree`] descends; PATH_MAX cannot hold more.
const DEPTH_MAX: usize = 2048;

/// Opens `path` below `directory`.
pub fn open(directory: BorrowedFd<'_>, path: &RelPath, flags: OFlags, mode: Mode) -> io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH
        | ResolveFlags::NO_SYMLINKS
        | ResolveFlags::NO_MAGICLINKS
        | ResolveFlags::NO_XDEV;
    // EAGAIN: something was renamed meanwhile, so the kernel cannot tell; it says to try again.
    for _ in 0..100 {
        match rustix::fs::openat2(directory, path.as_path(), flags | OFlags::CLOEXEC, mode, resolve) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            other => return other.map_err(mounted),
        }
    }
    Err(Errno::AGAIN.into())
}

/// Opens the file `path` for reading; anything but a regular file is refused.
pub fn open_file(directory: BorrowedFd<'_>, path: &RelPath) -> io::Result<OwnedFd> {
    // NONBLOCK: a fifo must not hold us.
    let fd = open(directory, path, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty())?;
    let stat = rustix::fs::fstat(&fd)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    Ok(fd)
}

/// Opens the directory `path`.
pub fn open_directory(directory: BorrowedFd<'_>, path: &RelPath) -> io::Result<OwnedFd> {
    open(directory, path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())
}

/// Makes directory `path` and those above it that are missing (0700), and opens it.
pub fn make_directories(directory: BorrowedFd<'_>, path: &RelPath) -> io::Result<OwnedFd> {
    match open_directory(directory, path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        other => return other,
    }
    let mut at = open_directory(directory, &RelPath::root())?;
    for name in path.names() {
        let next = RelPath::new(name).map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e))?;
        match rustix::fs::mkdirat(&at, next.as_path(), Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno.into()),
        }
        at = open_directory(at.as_fd(), &next)?;
    }
    Ok(at)
}

/// Makes the new file `path` (0600) and the directories above it; a former file of that name is
/// removed first.
pub fn create_file(directory: BorrowedFd<'_>, path: &RelPath, flags: OFlags) -> io::Result<OwnedFd> {
    let (parent, name) = parent_of(directory, path, true)?;
    match rustix::fs::unlinkat(&parent, name.as_path(), AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(errno) => return Err(errno.into()),
    }
    let flags = flags | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(&parent, name.as_path(), flags, Mode::RUSR | Mode::WUSR)?)
}

/// The directory of `path`, made if wished, and its last name.
pub fn parent_of(directory: BorrowedFd<'_>, path: &RelPath, make: bool) -> io::Result<(OwnedFd, RelPath)> {
    let invalid = || io::Error::from_raw_os_error(libc::EINVAL);
    let (parent, name) = path.split_last().ok_or_else(invalid)?;
    let name = RelPath::new(name).map_err(|_| invalid())?;
    let parent =
        if make { make_directories(directory, &parent)? } else { open_directory(directory, &parent)? };
    Ok((parent, name))
}

/// Moves `from` below one directory to `to` below another of the same file system, making the
/// directories above `to`; a former file there is replaced.
pub fn put_in_place(
    from_directory: BorrowedFd<'_>,
    from: &RelPath,
    to_directory: BorrowedFd<'_>,
    to: &RelPath,
) -> io::Result<()> {
    let (from_parent, from_name) = parent_of(from_directory, from, false)?;
    let (to_parent, to_name) = parent_of(to_directory, to, true)?;
    rename(from_parent.as_fd(), &from_name, to_parent.as_fd(), &to_name)
}

/// rename(2). A directory's own mode may keep a process without privileges from giving it another
/// parent: it is its owner's to move all the same.
pub fn rename(
    from_directory: BorrowedFd<'_>,
    from: &RelPath,
    to_directory: BorrowedFd<'_>,
    to: &RelPath,
) -> io::Result<()> {
    let renamed = || rustix::fs::renameat(from_directory, from.as_path(), to_directory, to.as_path());
    match renamed() {
        Err(Errno::ACCESS) => {
            let moved = open_path(from_directory, from.as_path().as_os_str())?;
            let mode = open_up(&moved)?;
            let outcome = renamed();
            close_again(&moved, mode)?;
            Ok(outcome?)
        }
        outcome => Ok(outcome?),
    }
}

fn open_path(parent: BorrowedFd<'_>, name: &OsStr) -> io::Result<OwnedFd> {
    Ok(open_unmounted(parent, name, OFlags::PATH)?)
}

/// A directory, and nothing that is mounted there.
fn open_unmounted(parent: BorrowedFd<'_>, name: &OsStr, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let flags = flags | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat2(parent, name, flags, Mode::empty(), ResolveFlags::NO_XDEV)
}

/// Gives its owner all rights on a directory, which may be opened with O_PATH; returns its mode
/// until now.
pub fn open_up(directory: impl AsFd) -> io::Result<Mode> {
    let mode = Mode::from_raw_mode(rustix::fs::fstat(&directory)?.st_mode & 0o7777);
    close_again(directory, mode | Mode::RWXU)?;
    Ok(mode)
}

/// Sets the mode of a directory, which may be opened with O_PATH.
pub fn close_again(directory: impl AsFd, mode: Mode) -> io::Result<()> {
    let path = format!("/proc/self/fd/{}", directory.as_fd().as_raw_fd());
    Ok(rustix::fs::chmodat(rustix::fs::CWD, path, mode, AtFlags::empty())?)
}

/// Removes `path` with all that is below it, whatever the modes of its directories; it is no error
/// when there is none. What is mounted below it stays, and with it the directories above.
pub fn remove_tree(directory: BorrowedFd<'_>, path: &RelPath) -> io::Result<()> {
    let (parent, name) = match parent_of(directory, path, false) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other?,
    };
    remove_name(parent.as_fd(), name.as_path().as_os_str(), 0)
}

/// Removes everything in `directory`.
pub fn empty(directory: BorrowedFd<'_>) -> io::Result<()> {
    empty_at(directory, 0)
}

fn empty_at(directory: BorrowedFd<'_>, depth: usize) -> io::Result<()> {
    for name in names(directory)? {
        let name = OsStr::from_bytes(&name);
        match remove_name(directory, name, depth) {
            Err(error) if error.raw_os_error() == Some(libc::EACCES) => {
                open_up(directory)?;
                remove_name(directory, name, depth)?;
            }
            removed => removed?,
        }
    }
    Ok(())
}

fn remove_name(parent: BorrowedFd<'_>, name: &OsStr, depth: usize) -> io::Result<()> {
    if depth > DEPTH_MAX {
        return Err(io::Error::from_raw_os_error(libc::ELOOP));
    }
    match rustix::fs::unlinkat(parent, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        // A directory: EISDIR, or EPERM as POSIX has it.
        Err(Errno::ISDIR | Errno::PERM) => {}
        Err(errno) => return Err(errno.into()),
    }
    let directory = match open_unmounted(parent, name, OFlags::RDONLY) {
        Err(Errno::ACCESS) => {
            open_up(open_path(parent, name)?)?;
            open_unmounted(parent, name, OFlags::RDONLY)
        }
        opened => opened,
    };
    let directory = directory.map_err(mounted)?;
    empty_at(directory.as_fd(), depth + 1)?;
    match rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// The names in a directory, without `.` and `..`.
pub fn names(directory: impl AsFd) -> io::Result<Vec<Vec<u8>>> {
    entries(directory)?.map(|entry| Ok(entry?.file_name().to_bytes().to_vec())).collect()
}

/// What is in a directory, without `.` and `..`.
pub fn entries(directory: impl AsFd) -> io::Result<impl Iterator<Item = io::Result<DirEntry>>> {
    let dots = |entry: &DirEntry| matches!(entry.file_name().to_bytes(), b"." | b"..");
    let all = Dir::read_from(directory)?;
    Ok(all.filter(move |entry| !entry.as_ref().is_ok_and(dots)).map(|entry| Ok(entry?)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn path(text: &str) -> RelPath {
        RelPath::new(text).unwrap()
    }

    fn handle(dir: &std::path::Path) -> OwnedFd {
        rustix::fs::open(dir, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap()
    }

    #[test]
    fn what_is_mounted_below_is_not_asked() {
        let root = handle(std::path::Path::new("/"));
        for below in ["proc/version", "proc"].map(path) {
            let error = open(root.as_fd(), &below, OFlags::RDONLY, Mode::empty()).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::CrossesDevices);
            assert_eq!(error.to_string(), "something is mounted there");
        }
    }

    #[test]
    fn symbolic_links_lead_nowhere() {
        let dir = tempfile::tempdir().unwrap();
        let outside = tempfile::tempdir().unwrap();
        std::fs::write(outside.path().join("secret"), b"x").unwrap();
        symlink(outside.path(), dir.path().join("out")).unwrap();
        symlink(outside.path().join("secret"), dir.path().join("file")).unwrap();
        let root = handle(dir.path());
        assert!(open_file(root.as_fd(), &path("out/secret")).is_err());
        assert!(open_file(root.as_fd(), &path("file")).is_err());
        assert!(create_file(root.as_fd(), &path("out/new"), OFlags::WRONLY).is_err());
        remove_tree(root.as_fd(), &path("out")).unwrap();
        assert!(outside.path().join("secret").exists());
        // A link of the name is replaced, not followed.
        create_file(root.as_fd(), &path("file"), OFlags::WRONLY).unwrap();
        assert_eq!(std::fs::read(outside.path().join("secret")).unwrap(), b"x");
    }

    #[test]
    fn modes_do_not_keep_an_owner_without_privileges_from_moving_and_removing() {
        use std::os::unix::fs::{PermissionsExt, chown};

        let dir = tempfile::tempdir().unwrap();
        let user = rustix::process::geteuid().as_raw();
        let user = if user == 0 { 12345 } else { user };
        for at in ["", "from", "from/d", "from/d/closed", "from/d/closed/deep", "to"] {
            std::fs::create_dir_all(dir.path().join(at)).unwrap();
            chown(dir.path().join(at), Some(user), None).unwrap();
        }
        std::fs::write(dir.path().join("from/d/closed/deep/f"), b"x").unwrap();
        for (at, mode) in [("from/d/closed/deep", 0o500), ("from/d/closed", 0), ("from/d", 0o500)] {
            std::fs::set_permissions(dir.path().join(at), PermissionsExt::from_mode(mode)).unwrap();
        }
        let identity = crate::transfer::user::Identity { uid: user, gid: user, groups: vec![user], umask: 0 };
        let owner = crate::transfer::user::UserThread::start(&identity).unwrap();
        let (root, to) = (handle(dir.path()), dir.path().join("to/moved"));
        let moved = to.clone();
        owner
            .run(move || {
                put_in_place(root.as_fd(), &path("from/d"), root.as_fd(), &path("to/moved")).unwrap();
                assert_eq!(std::fs::metadata(&moved).unwrap().permissions().mode() & 0o777, 0o500);
                remove_tree(root.as_fd(), &path("to/moved")).unwrap();
            })
            .unwrap();
        assert!(!to.exists());
    }

    #[test]
    fn making_moving_and_removing() {
        let dir = tempfile::tempdir().unwrap();
        let root = handle(dir.path());
        create_file(root.as_fd(), &path("a/b/c"), OFlags::WRONLY).unwrap();
        put_in_place(root.as_fd(), &path("a/b/c"), root.as_fd(), &path("x/y")).unwrap();
        open_file(root.as_fd(), &path("x/y")).unwrap();
        assert!(open_file(root.as_fd(), &path("x")).is_err());
        remove_tree(root.as_fd(), &path("x")).unwrap();
        remove_tree(root.as_fd(), &path("x")).unwrap();
        remove_tree(root.as_fd(), &path("nothing/here")).unwrap();
        assert_eq!(names(root.as_fd()).unwrap(), [b"a".to_vec()]);
        empty(root.as_fd()).unwrap();
        assert!(names(root.as_fd()).unwrap().is_empty());
    }
}

//! A dataset's directory on the PFS, worked on with the job user's rights.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::Arc;

use rustix::fs::{FileType, Mode, OFlags, Timespec, Timestamps};

use super::copy::{self, Seen};
use super::user::{Identity, UserThread};
use super::{Monitor, TransferError, sparse};
use crate::dataset::{Entry, EntryKind, FileCopy, Stamp};
use crate::faults;
use crate::path::RelPath;
use crate::plain;
use crate::store::beneath;

/// The directory, open, and the thread that may use it.
#[derive(Debug)]
pub struct PfsDirectory {
    user: UserThread,
    directory: Arc<OwnedFd>,
}

impl PfsDirectory {
    /// Opens `path`, absolute.
    pub fn open(identity: &Identity, path: &[u8]) -> Result<Self, TransferError> {
        let failed = |source| TransferError::Identity { uid: identity.uid, source };
        Self::of_user(UserThread::start(identity).map_err(failed)?, path)
    }

    /// The same in a thread that has the user's rights.
    pub fn of_user(user: UserThread, path: &[u8]) -> Result<Self, TransferError> {
        let path = PathBuf::from(OsString::from_vec(path.to_vec()));
        let opened = user
            .run(move || {
                if !path.is_absolute() {
                    return Err(io::Error::from_raw_os_error(libc::EINVAL));
                }
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
                rustix::fs::open(&path, flags, Mode::empty()).map_err(|errno| {
                    io::Error::new(io::Error::from(errno).kind(), format!("{}: {errno}", path.display()))
                })
            })
            .and_then(|opened| opened);
        let directory = opened.map_err(TransferError::io(&RelPath::root(), "find on the PFS"))?;
        Ok(Self { user, directory: Arc::new(directory) })
    }

    /// Copies a file of the cache to its path here: one pass, compared with its record, on storage
    /// when this returns.
    pub fn put(
        &self,
        local: OwnedFd,
        entry: &Entry,
        recorded: &FileCopy,
        monitor: &Monitor,
    ) -> Result<(), TransferError> {
        let (directory, entry, recorded) = (Arc::clone(&self.directory), entry.clone(), recorded.clone());
        let monitor = monitor.clone();
        self.in_thread(move || put(&directory, local, &entry, &recorded, &monitor))
    }

    /// The same where others may do so at the same time: it is written as `temporary` below the
    /// directory, and gets its place there, `place`, when it is whole and on storage.
    pub fn put_whole(
        &self,
        local: OwnedFd,
        file: (&Entry, &FileCopy),
        (temporary, place): (&RelPath, &RelPath),
        monitor: &Monitor,
    ) -> Result<(), TransferError> {
        let entry = Entry { path: temporary.clone(), ..file.0.clone() };
        let (recorded, place) = (file.1.clone(), place.clone());
        let (directory, monitor) = (Arc::clone(&self.directory), monitor.clone());
        self.in_thread(move || {
            put(&directory, local, &entry, &recorded, &monitor)?;
            beneath::put_in_place(directory.as_fd(), &entry.path, directory.as_fd(), &place)
                .map_err(TransferError::io(&place, "rename on the PFS"))
        })
    }

    /// Does other work with the user's rights.
    pub fn run<R: Send + 'static>(
        &self,
        work: impl FnOnce() -> R + Send + 'static,
    ) -> Result<R, TransferError> {
        self.user.run(work).map_err(TransferError::io(&RelPath::root(), "work on the PFS"))
    }

    /// The directory has a saved dataset's summary: this node sees what was saved, and not an empty
    /// directory below which nothing is mounted.
    pub fn has_summary(&self) -> bool {
        let directory = Arc::clone(&self.directory);
        let found = self.in_thread(move || {
            let is_there = |path: &str| {
                RelPath::new(path).is_ok_and(|path| beneath::open_file(directory.as_fd(), &path).is_ok())
            };
            Ok([".scr/summary.scr", "summary.scr"].into_iter().any(is_there))
        });
        found.unwrap_or(false)
    }

    /// Bytes that a file here takes, as far as the PFS tells; no more than its size, in whole
    /// pages.
    pub fn taken(&self, path: &RelPath) -> Result<u64, TransferError> {
        let (directory, path) = (Arc::clone(&self.directory), path.clone());
        self.in_thread(move || {
            let file = beneath::open_file(directory.as_fd(), &path)
                .map_err(TransferError::io(&path, "open on the PFS"))?;
            let meta = File::from(file).metadata().map_err(TransferError::io(&path, "stat on the PFS"))?;
            Ok(sparse::room_of(&meta))
        })
    }

    /// Copies the file of `entry` here into `local`, an empty file of the cache; one pass, compared
    /// with its record.
    pub fn get(
        &self,
        local: OwnedFd,
        entry: &Entry,
        recorded: &FileCopy,
        monitor: &Monitor,
    ) -> Result<(), TransferError> {
        let (directory, path, recorded) = (Arc::clone(&self.directory), entry.path.clone(), recorded.clone());
        let monitor = monitor.clone();
        self.in_thread(move || get(&directory, local, &path, &recorded, &monitor))
    }

    /// Puts the names of files below here on storage, as far as the PFS knows how to.
    pub fn sync_directories(&self, files: Vec<RelPath>) -> Result<(), TransferError> {
        let directory = Arc::clone(&self.directory);
        self.in_thread(move || {
            let mut seen = std::collections::BTreeSet::from([RelPath::root()]);
            seen.extend(files.iter().filter_map(|path| path.split_last().map(|(parent, _)| parent)));
            for path in &seen {
                let synced = beneath::open_directory(directory.as_fd(), path)
                    .and_then(|opened| Ok(rustix::fs::fsync(opened)?));
                match synced {
                    // Some file systems sync no directories.
                    Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {}
                    other => other.map_err(TransferError::io(path, "fsync on the PFS"))?,
                }
            }
            Ok(())
        })
    }

    fn in_thread<R: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<R, TransferError> + Send + 'static,
    ) -> Result<R, TransferError> {
        self.user.run(work).map_err(TransferError::io(&RelPath::root(), "work on the PFS"))?
    }
}

fn put(
    directory: &OwnedFd,
    local: OwnedFd,
    entry: &Entry,
    recorded: &FileCopy,
    monitor: &Monitor,
) -> Result<(), TransferError> {
    let path = &entry.path;
    let to = beneath::create_file(directory.as_fd(), path, OFlags::WRONLY)
        .map(File::from)
        .map_err(TransferError::io(path, "create on the PFS"))?;
    let written = write(&to, &mut File::from(local), entry, recorded, monitor);
    if written.is_err() {
        // What is short may be room, and then the next dataset needs that of this one.
        let _ = rustix::fs::ftruncate(&to, 0);
        let _ = beneath::remove_tree(directory.as_fd(), path);
    }
    written
}

fn write(
    to: &File,
    from: &mut File,
    entry: &Entry,
    recorded: &FileCopy,
    monitor: &Monitor,
) -> Result<(), TransferError> {
    let path = &entry.path;
    let seen = copy::copy(from, recorded.size, "flush.block", monitor, Some(to))
        .map_err(TransferError::io(path, "copy to the PFS"))?;
    compare(path, seen, recorded)?;
    keep_attributes(to, entry);
    to.sync_all().map_err(TransferError::io(path, "fsync on the PFS"))?;
    faults::hit("flush.copied").map_err(TransferError::io(path, "copy to the PFS"))
}

fn get(
    directory: &OwnedFd,
    local: OwnedFd,
    path: &RelPath,
    recorded: &FileCopy,
    monitor: &Monitor,
) -> Result<(), TransferError> {
    let mut from = beneath::open_file(directory.as_fd(), path)
        .map(File::from)
        .map_err(TransferError::io(path, "open on the PFS"))?;
    let to = File::from(local);
    let seen = copy::copy(&mut from, recorded.size, "fetch.block", monitor, Some(&to))
        .map_err(TransferError::io(path, "copy from the PFS"))?;
    compare(path, seen, recorded)
}

/// Are these the recorded bytes?
pub fn compare(path: &RelPath, seen: Seen, recorded: &FileCopy) -> Result<(), TransferError> {
    if (seen.size, seen.crc) == (recorded.size, recorded.crc) {
        return Ok(());
    }
    Err(TransferError::Mismatch {
        path: path.clone(),
        size: seen.size,
        crc: seen.crc,
        expected_size: recorded.size,
        expected_crc: recorded.crc,
    })
}

/// The bits of a mode that a file or directory of the prefix may have. Others reach the prefix, and
/// not the mount: a program with a umask of 0 must not let them write there.
const MODE_MAX: u32 = 0o7775;

/// Owner, mode and times of a file or directory of the prefix, as far as the user may: the PFS may
/// not let them. The sealed mode is in the records; here its owner can always read a file, which is
/// checked and fetched with the owner's rights, and move and remove a directory. A directory that
/// passes its group on (set-group-ID) does so where the recorded group is only the user's own.
pub(crate) fn keep_attributes(to: impl AsFd, entry: &Entry) {
    let (actor, own) = plain::acting();
    let _ = rustix::fs::fchown(&to, Some(rustix::fs::Uid::from_raw(entry.uid)), None);
    if entry.gid != own {
        let _ = rustix::fs::fchown(&to, None, Some(rustix::fs::Gid::from_raw(entry.gid)));
    }
    let Ok(stat) = rustix::fs::fstat(&to) else { return };
    let mode = match entry.kind {
        EntryKind::Directory => entry.mode | 0o700 | stat.st_mode & 0o2000,
        // Nobody else gets a program's rights; nor does a program get root's, as others than root
        // may have written the records.
        _ if actor == 0 || (stat.st_uid, stat.st_gid) != (entry.uid, entry.gid) => {
            entry.mode & 0o1777 | 0o400
        }
        _ => entry.mode | 0o400,
    };
    let _ = rustix::fs::fchmod(&to, Mode::from_raw_mode(mode & MODE_MAX));
    let _ = rustix::fs::futimens(&to, &times(entry));
}

/// Gives a file or directory of the cache the owner, mode and times of its entry.
pub fn restore_attributes(fd: impl AsFd, entry: &Entry) -> io::Result<()> {
    let stat = rustix::fs::fstat(&fd)?;
    if (stat.st_uid, stat.st_gid) != (entry.uid, entry.gid) {
        let uid = rustix::fs::Uid::from_raw(entry.uid);
        let gid = rustix::fs::Gid::from_raw(entry.gid);
        match rustix::fs::fchown(&fd, Some(uid), Some(gid)) {
            // A daemon that is not root restores only its own user's files.
            Err(rustix::io::Errno::PERM) if !rustix::process::geteuid().is_root() => {}
            other => other?,
        }
    }
    rustix::fs::fchmod(&fd, Mode::from_raw_mode(entry.mode & 0o7777))?;
    debug_assert!(FileType::from_raw_mode(stat.st_mode) != FileType::Symlink);
    Ok(rustix::fs::futimens(&fd, &times(entry))?)
}

fn times(entry: &Entry) -> Timestamps {
    let of =
        |stamp: &Stamp| Timespec { tv_sec: stamp.secs, tv_nsec: i64::from(stamp.nsecs.min(999_999_999)) };
    Timestamps { last_access: of(&entry.atime), last_modification: of(&entry.mtime) }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::ids::Member;

    fn entry(path: &str, bytes: &[u8]) -> (Entry, FileCopy) {
        let copy = FileCopy {
            size: bytes.len() as u64,
            crc: crc32fast::hash(bytes),
            member: Member(0),
            program_rank: None,
        };
        let stamp = Stamp { secs: 1_000_000_000, nsecs: 5 };
        let entry = Entry {
            path: RelPath::new(path).unwrap(),
            kind: EntryKind::File(copy.clone()),
            mode: 0o640,
            uid: rustix::process::getuid().as_raw(),
            gid: rustix::process::getgid().as_raw(),
            atime: stamp,
            mtime: stamp,
        };
        (entry, copy)
    }

    fn me() -> Identity {
        Identity::of(rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw())
    }

    #[test]
    fn there_and_back_with_attributes() {
        let dir = tempfile::tempdir().unwrap();
        let pfs = PfsDirectory::open(&me(), dir.path().as_os_str().as_bytes()).unwrap();
        let (entry, copy) = entry("sub/with blank", b"some bytes");
        let local = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(local.path(), b"some bytes").unwrap();
        let open = |write| OwnedFd::from(File::options().read(true).write(write).open(local.path()).unwrap());
        pfs.put(open(false), &entry, &copy, &Monitor::default()).unwrap();
        let meta = std::fs::metadata(dir.path().join("sub/with blank")).unwrap();
        assert_eq!(meta.permissions().mode() & 0o7777, 0o640);
        assert_eq!(std::os::unix::fs::MetadataExt::mtime(&meta), 1_000_000_000);

        std::fs::write(local.path(), b"").unwrap();
        pfs.get(open(true), &entry, &copy, &Monitor::default()).unwrap();
        assert_eq!(std::fs::read(local.path()).unwrap(), b"some bytes");
    }

    #[test]
    fn a_file_that_its_owner_may_not_read_stays_readable_for_checks_and_fetches() {
        let dir = tempfile::tempdir().unwrap();
        let pfs = PfsDirectory::open(&me(), dir.path().as_os_str().as_bytes()).unwrap();
        let (mut entry, copy) = entry("f", b"some bytes");
        entry.mode = 0o020;
        let local = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(local.path(), b"some bytes").unwrap();
        pfs.put(File::open(local.path()).unwrap().into(), &entry, &copy, &Monitor::default()).unwrap();
        let meta = std::fs::metadata(dir.path().join("f")).unwrap();
        assert_eq!(meta.permissions().mode() & 0o7777, 0o420);
    }

    #[test]
    fn who_writes_the_records_makes_no_program_of_roots() {
        let dir = tempfile::tempdir().unwrap();
        let pfs = PfsDirectory::open(&me(), dir.path().as_os_str().as_bytes()).unwrap();
        let (mut entry, copy) = entry("f", b"some bytes");
        entry.mode = 0o6755;
        let local = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(local.path(), b"some bytes").unwrap();
        pfs.put(File::open(local.path()).unwrap().into(), &entry, &copy, &Monitor::default()).unwrap();
        let mode = std::fs::metadata(dir.path().join("f")).unwrap().permissions().mode() & 0o7777;
        assert_eq!(mode, if rustix::process::geteuid().is_root() { 0o755 } else { 0o6755 });
    }

    const TEAM: u32 = 54_323;

    #[test]
    fn not_everybody_can_write_there_and_a_directory_passes_its_group_on() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        let shown = |name: &str| {
            let meta = std::fs::metadata(dir.path().join(name)).unwrap();
            (meta.permissions().mode() & 0o7777, std::os::unix::fs::MetadataExt::gid(&meta))
        };
        for (group, set_gid) in [(0, 0), (TEAM, 0o2000)] {
            std::os::unix::fs::chown(dir.path(), None, Some(group)).unwrap();
            std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o777 | set_gid)).unwrap();
            let (mut entry, copy) = entry("sub/f", b"");
            entry.mode = 0o666;
            let pfs = PfsDirectory::open(&me(), dir.path().as_os_str().as_bytes()).unwrap();
            pfs.put(file.reopen().unwrap().into(), &entry, &copy, &Monitor::default()).unwrap();
            let sub = File::open(dir.path().join("sub")).unwrap();
            keep_attributes(&sub, &Entry { kind: EntryKind::Directory, mode: 0o777, ..entry });
            assert_eq!((shown("sub/f"), shown("sub")), ((0o664, group), (0o775 | set_gid, group)));
            std::fs::remove_dir_all(dir.path().join("sub")).unwrap();
        }
    }

    #[test]
    fn wrong_bytes_are_told_in_both_directions() {
        let dir = tempfile::tempdir().unwrap();
        let pfs = PfsDirectory::open(&me(), dir.path().as_os_str().as_bytes()).unwrap();
        let (entry, copy) = entry("f", b"right");
        let mut local = tempfile::tempfile().unwrap();
        io::Write::write_all(&mut local, b"wrong").unwrap();
        io::Seek::rewind(&mut local).unwrap();
        let error = pfs.put(local.into(), &entry, &copy, &Monitor::default()).unwrap_err();
        assert!(matches!(error, TransferError::Mismatch { .. }));
        assert!(!dir.path().join("f").exists(), "it takes no room");
        std::fs::write(dir.path().join("f"), b"longer than recorded").unwrap();
        let to = tempfile::tempfile().unwrap();
        let error = pfs.get(to.into(), &entry, &copy, &Monitor::default()).unwrap_err();
        assert!(matches!(error, TransferError::Mismatch { size: 6, .. }), "{error}");
    }
}

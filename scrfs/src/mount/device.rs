//! The fuse device and mount(2): done here and not by fuser, so that mount and descriptor are the
//! supervisor's.

use std::ffi::OsStr;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::FdFlags;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType, recvmsg,
    socketpair,
};

use super::table::{self, FS_TYPE, Mounted, TABLE};
use super::{MountError, failed};

const DEVICE: &str = "/dev/fuse";

/// Mounts at `mount_point` with `control` in its source; the descriptor is the connection.
/// `noexec`: nothing there can be executed.
pub fn mount(mount_point: &Path, control: &Path, noexec: bool) -> Result<OwnedFd, MountError> {
    let source = table::source_of(control);
    if !rustix::process::geteuid().is_root() {
        return mount_by_helper(mount_point, &source, noexec);
    }
    let device = rustix::fs::open(DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .map_err(|e| failed("cannot open", DEVICE)(e.into()))?;
    // S_IFDIR as octal digits: the root is a directory.
    let options = format!(
        "fd={},rootmode=40000,user_id={},group_id={},default_permissions,allow_other",
        device.as_raw_fd(),
        rustix::process::geteuid().as_raw(),
        rustix::process::getegid().as_raw(),
    );
    let data =
        std::ffi::CString::new(options).map_err(|e| failed("cannot mount at", mount_point)(e.into()))?;
    let mut flags = MountFlags::NOSUID | MountFlags::NODEV;
    flags.set(MountFlags::NOEXEC, noexec);
    // What is opened stays what it is, whatever is renamed meanwhile.
    let target = open_path(mount_point).map_err(|e| failed("cannot mount at", mount_point)(e.into()))?;
    rustix::mount::mount(&source, named(&target), FS_TYPE, flags, Some(data.as_c_str()))
        .map_err(|e| failed("cannot mount at", mount_point)(e.into()))?;
    Ok(device)
}

/// A mount that is held. Its number goes to no other mount meanwhile, so one that takes its place
/// is told apart. A plain unmount of it says that it is in use: it is held for moments, and only
/// where nobody serves it.
#[derive(Debug)]
pub struct Held {
    root: OwnedFd,
    /// Its line of the table.
    pub mount: Mounted,
}

impl Held {
    /// The uppermost mount at `mount_point`, if that is one. What is mounted there is not asked.
    pub fn at(mount_point: &Path) -> io::Result<Option<Self>> {
        let root = open_path(mount_point)?;
        let info = std::fs::read_to_string(format!("/proc/thread-self/fdinfo/{}", root.as_raw_fd()))?;
        let id = info.lines().find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse::<u64>().ok());
        let mut mounts = table::all()?.into_iter();
        let mount = mounts.find(|mount| Some(mount.id) == id && mount.mount_point == mount_point);
        Ok(mount.map(|mount| Self { root, mount }))
    }

    /// Whether nobody serves it. If somebody does, this waits for the answer.
    pub fn is_dead(&self) -> bool {
        is_dead(&rustix::fs::fstatfs(&self.root))
    }

    /// Unmounts it, though files are open; that somebody else has done so is no error.
    ///
    /// # Errors
    /// Those of the unmount; [`MountError::InUse`]: something is mounted on top of it, which would
    /// go in its place.
    pub fn detach(self) -> Result<(), MountError> {
        let point = &self.mount.mount_point;
        let at_point = || -> Result<Vec<Mounted>, MountError> {
            let mut mounts = table::all().map_err(failed("cannot read", TABLE))?;
            mounts.retain(|mount| mount.mount_point == *point);
            Ok(mounts)
        };
        let is_there = |mounts: &[Mounted]| mounts.iter().any(|mount| mount.id == self.mount.id);
        let mounts = at_point()?;
        if !is_there(&mounts) {
            return Ok(());
        }
        if mounts.last().is_some_and(|uppermost| uppermost.id != self.mount.id) {
            return Err(MountError::InUse(point.clone()));
        }
        // What is mounted on top from now on would go in its place; and what takes its place, too,
        // where the helper unmounts, which knows paths alone.
        if !rustix::process::geteuid().is_root() {
            return unmount_by_helper(point, true);
        }
        match rustix::mount::unmount(named(&self.root), UnmountFlags::DETACH) {
            Err(error) if is_there(&at_point()?) => Err(failed("cannot unmount", point)(error.into())),
            _ => Ok(()),
        }
    }
}

/// A path to what is open, whatever is renamed meanwhile.
fn named(opened: &OwnedFd) -> PathBuf {
    Path::new("/proc/thread-self/fd").join(opened.as_raw_fd().to_string())
}

/// A directory, on the way to which no link is followed.
fn open_path(path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat2(rustix::fs::CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)
}

/// Without privileges: fusermount3 mounts and sends the descriptor over a socket. Other users see
/// the mount only where /etc/fuse.conf has `user_allow_other`, so that is not asked for.
fn mount_by_helper(mount_point: &Path, source: &OsStr, noexec: bool) -> Result<OwnedFd, MountError> {
    let io = |doing| failed(doing, mount_point);
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
        .map_err(|e| io("no socket to mount")(e.into()))?;
    rustix::io::fcntl_setfd(&theirs, FdFlags::empty()).map_err(|e| io("no socket to mount")(e.into()))?;
    let mut options = std::ffi::OsString::from("subtype=scrfs,default_permissions,nosuid,nodev,");
    options.push(if noexec { "noexec,fsname=" } else { "fsname=" });
    // A comma or backslash in the name would end it.
    options.push(source.to_string_lossy().replace('\\', "\\\\").replace(',', "\\,"));
    let mut command = Command::new("fusermount3");
    command.arg("-o").arg(options).env("_FUSE_COMMFD", theirs.as_raw_fd().to_string());
    help(&mut command, "mount at", mount_point)?;
    drop(theirs);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0_u8; 1];
    recvmsg(&ours, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)
        .map_err(|e| io("no descriptor for")(e.into()))?;
    ancillary
        .drain()
        .find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
            _ => None,
        })
        .ok_or_else(|| io("no descriptor for")(io::Error::from_raw_os_error(libc::EPROTO)))
}

/// Unmounts. `detach`: at once, though files are open; else [`MountError::InUse`] then.
pub fn unmount(mount_point: &Path, detach: bool) -> Result<(), MountError> {
    if !rustix::process::geteuid().is_root() {
        return unmount_by_helper(mount_point, detach);
    }
    let flags = UnmountFlags::NOFOLLOW | if detach { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    let unmounted = match (mount_point.parent(), mount_point.file_name()) {
        // The directory is opened first: on the way there nothing may be exchanged.
        (Some(above), Some(name)) => {
            open_path(above).and_then(|above| rustix::mount::unmount(named(&above).join(name), flags))
        }
        _ => rustix::mount::unmount(mount_point, flags),
    };
    match unmounted {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::BUSY) => Err(MountError::InUse(mount_point.to_owned())),
        Err(error) => Err(failed("cannot unmount", mount_point)(error.into())),
    }
}

fn unmount_by_helper(mount_point: &Path, detach: bool) -> Result<(), MountError> {
    let mut command = Command::new("fusermount3");
    command.arg("-u");
    if detach {
        command.arg("-z");
    }
    match help(&mut command, "unmount", mount_point) {
        Err(MountError::Helper { path, words, .. }) if words.ends_with("Device or resource busy") => {
            Err(MountError::InUse(path))
        }
        other => other,
    }
}

/// Runs fusermount3; its exit code tells nothing, so an error has what it says.
fn help(command: &mut Command, doing: &'static str, mount_point: &Path) -> Result<(), MountError> {
    let failed = |words: String| MountError::Helper { doing, path: mount_point.to_owned(), words };
    let output = command.arg("--").arg(mount_point).env("LC_ALL", "C").stdin(Stdio::null()).output();
    let output = output.map_err(|e| failed(format!("cannot run it: {e}")))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let lines = said.lines().map(|line| line.trim_start_matches("fusermount3: ").trim());
    let words = lines.filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ");
    Err(failed(if words.is_empty() { output.status.to_string() } else { words }))
}

/// The mount is there but nobody serves it.
pub fn is_dead_at(mount_point: &Path) -> bool {
    is_dead(&rustix::fs::statfs(mount_point))
}

fn is_dead<T>(answer: &rustix::io::Result<T>) -> bool {
    matches!(answer, Err(rustix::io::Errno::NOTCONN | rustix::io::Errno::CONNABORTED))
}

#[cfg(test)]
mod tests {
    use nix::mount::{MntFlags, MsFlags, mount, umount2};
    use nix::sched::{CloneFlags, unshare};

    use super::*;

    #[test]
    fn what_took_the_place_of_a_mount_stays() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let point = dir.path().canonicalize().unwrap();
        // The mount namespace is the thread's.
        let test = move || {
            unshare(CloneFlags::CLONE_NEWNS).unwrap();
            let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
            mount(None::<&str>, "/", None::<&str>, private, None::<&str>).unwrap();
            let tmpfs = |name: &str| mount(Some(name), &point, Some("tmpfs"), MsFlags::empty(), None::<&str>);
            let there = || table::mounted_at(&point).unwrap().map(|mount| mount.source);
            assert!(Held::at(&point).unwrap().is_none());
            tmpfs("first").unwrap();
            let held = Held::at(&point).unwrap().unwrap();
            assert_eq!(Some(&held.mount.source), there().as_ref());
            assert!(!held.is_dead());
            umount2(&point, MntFlags::MNT_DETACH).unwrap();
            tmpfs("second").unwrap();
            held.detach().unwrap();
            assert_eq!(there().unwrap(), "second");
            // What is mounted on top of it stays too.
            let held = Held::at(&point).unwrap().unwrap();
            tmpfs("third").unwrap();
            assert!(matches!(held.detach(), Err(MountError::InUse(_))));
            assert_eq!(there().unwrap(), "third");
            umount2(&point, MntFlags::MNT_DETACH).unwrap();
            // What is open does not keep it.
            let open = std::fs::File::create(point.join("f")).unwrap();
            Held::at(&point).unwrap().unwrap().detach().unwrap();
            assert_eq!(there(), None);
            drop(open);
        };
        std::thread::spawn(test).join().unwrap();
    }
}

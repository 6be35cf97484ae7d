//! `scrfs-loopback BELOW POINT`: the peer of `scrfs-perf`. A loopback over FUSE with kernel
//! passthrough that does as little as it can: no journal, no datasets, one thread. Prints "ready"
//! when it serves; ends with its unmount.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "nothing of scrfs itself")]

use std::collections::HashMap;
use std::ffi::{CString, OsStr};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Parser;
use fuser::{
    BackingId, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    InitFlags, KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyCreate, ReplyEmpty, ReplyEntry, ReplyOpen,
    Request, Session, SessionACL,
};
use parking_lot::Mutex;
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::mount::MountFlags;

const TTL: Duration = Duration::from_secs(1);
const GENERATION: Generation = Generation(0);
const ROOT: u64 = 1;

#[derive(Parser)]
#[command(about = "The peer of scrfs-perf: a bare loopback over FUSE with passthrough")]
struct Arguments {
    /// The directory that is shown.
    below: PathBuf,
    /// Where it is shown.
    point: PathBuf,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match serve(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("scrfs-loopback: {error}");
            ExitCode::from(1)
        }
    }
}

fn serve(arguments: &Arguments) -> io::Result<()> {
    let device = rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    let options = format!(
        "fd={},rootmode=40000,user_id=0,group_id=0,default_permissions,allow_other",
        device.as_raw_fd()
    );
    let options = CString::new(options)?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    rustix::mount::mount("loopback", &arguments.point, "fuse.loopback", flags, Some(options.as_c_str()))?;
    let mut config = Config::default();
    config.acl = SessionACL::All;
    let session = Session::from_fd(Loopback::new(&arguments.below)?, device, SessionACL::All, config)?;
    println!("ready");
    session.run()
}

struct Node {
    fd: Arc<OwnedFd>,
    lookups: u64,
    backing: Weak<BackingId>,
}

#[derive(Default)]
struct Tables {
    nodes: HashMap<u64, Node>,
    open: HashMap<u64, Arc<BackingId>>,
    last_handle: u64,
}

struct Loopback {
    tables: Mutex<Tables>,
}

impl Loopback {
    fn new(below: &Path) -> io::Result<Self> {
        let fd = rustix::fs::open(below, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let mut tables = Tables::default();
        tables.nodes.insert(ROOT, Node { fd: Arc::new(fd), lookups: 1, backing: Weak::new() });
        Ok(Self { tables: Mutex::new(tables) })
    }

    fn fd(&self, ino: INodeNo) -> Result<Arc<OwnedFd>, Errno> {
        self.tables.lock().nodes.get(&ino.0).map(|node| Arc::clone(&node.fd)).ok_or(Errno::ESTALE)
    }

    /// One more lookup of `name`, whose attributes are the answer.
    fn found(&self, parent: &OwnedFd, name: &OsStr) -> io::Result<FileAttr> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(parent, name, flags, Mode::empty())?;
        let found = attr_of(&fd)?;
        let mut tables = self.tables.lock();
        let fresh = || Node { fd: Arc::new(fd), lookups: 0, backing: Weak::new() };
        tables.nodes.entry(found.ino.0).or_insert_with(fresh).lookups += 1;
        Ok(found)
    }

    /// A handle of `ino` with its backing, which all handles of a file share.
    fn handle(
        &self,
        ino: INodeNo,
        register: impl FnOnce(&OwnedFd) -> io::Result<BackingId>,
    ) -> io::Result<(FileHandle, Arc<BackingId>)> {
        let mut tables = self.tables.lock();
        let node = tables.nodes.get_mut(&ino.0).ok_or(io::ErrorKind::NotFound)?;
        let backing = if let Some(backing) = node.backing.upgrade() {
            backing
        } else {
            let backing = Arc::new(register(&node.fd)?);
            node.backing = Arc::downgrade(&backing);
            backing
        };
        tables.last_handle += 1;
        let number = tables.last_handle;
        tables.open.insert(number, Arc::clone(&backing));
        Ok((FileHandle(number), backing))
    }
}

fn attr_of(fd: &OwnedFd) -> io::Result<FileAttr> {
    let found = std::fs::metadata(format!("/proc/self/fd/{}", fd.as_raw_fd()))?;
    let kind = if found.is_dir() { FileType::Directory } else { FileType::RegularFile };
    Ok(FileAttr {
        ino: INodeNo(found.ino()),
        size: found.size(),
        blocks: found.blocks(),
        atime: found.accessed()?,
        mtime: found.modified()?,
        ctime: changed(found.ctime(), found.ctime_nsec()),
        crtime: UNIX_EPOCH,
        kind,
        perm: u16::try_from(found.permissions().mode() & 0o7777).unwrap_or(0),
        nlink: u32::try_from(found.nlink()).unwrap_or(u32::MAX),
        uid: found.uid(),
        gid: found.gid(),
        rdev: 0,
        blksize: 4096,
        flags: 0,
    })
}

fn changed(seconds: i64, nanoseconds: i64) -> SystemTime {
    UNIX_EPOCH + Duration::new(u64::try_from(seconds).unwrap_or(0), u32::try_from(nanoseconds).unwrap_or(0))
}

fn errno(error: impl Into<io::Error>) -> Errno {
    Errno::from(error.into())
}

impl Filesystem for Loopback {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let flags = InitFlags::FUSE_PASSTHROUGH | InitFlags::FUSE_HANDLE_KILLPRIV_V2;
        config.add_capabilities(flags).map_err(|_| io::ErrorKind::Unsupported)?;
        config.set_max_stack_depth(1).map_err(|_| io::ErrorKind::Unsupported)?;
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.fd(parent).and_then(|fd| self.found(&fd, name).map_err(errno)) {
            Ok(attr) => reply.entry(&TTL, &attr, GENERATION),
            Err(error) => reply.error(error),
        }
    }

    fn forget(&self, _request: &Request, ino: INodeNo, nlookup: u64) {
        let mut tables = self.tables.lock();
        let Some(node) = tables.nodes.get_mut(&ino.0) else { return };
        node.lookups = node.lookups.saturating_sub(nlookup);
        if node.lookups == 0 && ino.0 != ROOT {
            tables.nodes.remove(&ino.0);
        }
    }

    fn getattr(&self, _request: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        match self.fd(ino).and_then(|fd| attr_of(&fd).map_err(errno)) {
            Ok(attr) => reply.attr(&TTL, &FileAttr { ino, ..attr }),
            Err(error) => reply.error(error),
        }
    }

    fn create(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let made = self.fd(parent).and_then(|fd| {
            let flags = OFlags::from_bits_truncate(u32::try_from(flags).unwrap_or(0));
            let flags = flags | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            rustix::fs::openat(&fd, name, flags, Mode::from_raw_mode(mode)).map_err(errno)?;
            let attr = self.found(&fd, name).map_err(errno)?;
            let opened = self.handle(attr.ino, |fd| reply.open_backing(fd.as_fd())).map_err(errno)?;
            Ok((attr, opened))
        });
        match made {
            Ok((attr, (fh, backing))) => {
                reply.created_passthrough(&TTL, &attr, GENERATION, fh, FopenFlags::empty(), &backing);
            }
            Err(error) => reply.error(error),
        }
    }

    fn open(&self, _request: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        match self.handle(ino, |fd| reply.open_backing(fd.as_fd())) {
            Ok((fh, backing)) => reply.opened_passthrough(fh, FopenFlags::empty(), &backing),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn flush(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }

    fn release(
        &self,
        _request: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.tables.lock().open.remove(&fh.0);
        reply.ok();
    }

    fn unlink(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let gone =
            self.fd(parent).and_then(|fd| rustix::fs::unlinkat(&fd, name, AtFlags::empty()).map_err(errno));
        match gone {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(error),
        }
    }
}

//! Asks one of the two file systems, and looks at what came of it.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;

use rustix::fs::{
    Access, AtFlags, CWD, Dir, FallocateFlags, FileType, FlockOperation, Gid, Mode, OFlags, RenameFlags,
    SeekFrom, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, Uid, XattrFlags,
};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

use super::fence;
use super::op::{Op, Time, User};

/// What an operation gave: text for what was learnt, or an errno.
pub type Outcome = Result<String, i32>;

pub const SLOTS: usize = 4;

/// One directory under test, and the files open in it.
pub struct Side {
    root: OwnedFd,
    pub slots: [Option<File>; SLOTS],
}

/// Attributes that both sides must agree on, and the three times.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub nlink: u64,
    pub size: i64,
    pub rdev: u64,
    pub blocks: i64,
    pub ino: u64,
    pub atime: (i64, u64),
    pub mtime: (i64, u64),
    pub ctime: (i64, u64),
}

#[expect(clippy::unnecessary_cast, reason = "as the C library has them")]
fn seen(stat: &rustix::fs::Stat) -> Seen {
    Seen {
        mode: stat.st_mode,
        uid: stat.st_uid,
        gid: stat.st_gid,
        nlink: stat.st_nlink as u64,
        size: stat.st_size,
        rdev: stat.st_rdev,
        blocks: stat.st_blocks,
        ino: stat.st_ino,
        atime: (stat.st_atime, stat.st_atime_nsec as u64),
        mtime: (stat.st_mtime, stat.st_mtime_nsec as u64),
        ctime: (stat.st_ctime, stat.st_ctime_nsec as u64),
    }
}

/// This thread acts as `user` until the guard goes.
pub struct As;

impl As {
    pub fn user(user: User) -> Self {
        let (uid, gid, groups) = user.ids();
        if user != User::Root {
            let groups: Vec<Gid> = groups.iter().map(|&g| Gid::from_raw(g)).collect();
            set_thread_groups(&groups).unwrap();
            set_thread_res_gid(None, Gid::from_raw(gid), None).unwrap();
            set_thread_res_uid(None, Uid::from_raw(uid), None).unwrap();
        }
        Self
    }
}

impl Drop for As {
    fn drop(&mut self) {
        set_thread_res_uid(None, Uid::ROOT, None).unwrap();
        set_thread_res_gid(None, Gid::ROOT, None).unwrap();
        set_thread_groups(&[]).unwrap();
    }
}

fn os(error: &std::io::Error) -> i32 {
    error.raw_os_error().unwrap_or(-1)
}

fn times(atime: Time, mtime: Time) -> Timestamps {
    let spec = |time| match time {
        Time::Now => Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
        Time::Omit => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        Time::At(tv_sec, tv_nsec) => Timespec { tv_sec, tv_nsec },
    };
    Timestamps { last_access: spec(atime), last_modification: spec(mtime) }
}

fn id_of(id: u32) -> (Option<Uid>, Option<Gid>) {
    if id == u32::MAX { (None, None) } else { (Some(Uid::from_raw(id)), Some(Gid::from_raw(id))) }
}

fn digest(bytes: &[u8]) -> String {
    format!("{} bytes, crc {:08x}", bytes.len(), crc32fast::hash(bytes))
}

/// Names and types, sorted.
pub fn list(dir: impl AsFd) -> Result<Vec<(Vec<u8>, FileType)>, i32> {
    let mut names = Vec::new();
    for entry in Dir::read_from(dir).map_err(rustix::io::Errno::raw_os_error)? {
        let entry = entry.map_err(rustix::io::Errno::raw_os_error)?;
        names.push((entry.file_name().to_bytes().to_vec(), entry.file_type()));
    }
    names.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(names)
}

impl Side {
    pub fn new(root: &std::path::Path) -> Self {
        Self { root: File::open(root).unwrap().into(), slots: Default::default() }
    }

    /// Makes this directory the thread's working directory: paths of operations are relative to it.
    pub fn enter(&self) {
        rustix::process::fchdir(&self.root).unwrap();
    }

    /// Attributes, not following; as root.
    pub fn see(path: &[u8]) -> Result<Seen, i32> {
        let stat = rustix::fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW);
        stat.map(|s| seen(&s)).map_err(rustix::io::Errno::raw_os_error)
    }

    pub fn see_slot(&self, slot: usize) -> Option<Seen> {
        self.slots[slot].as_ref().map(|file| seen(&rustix::fs::fstat(file).unwrap()))
    }

    /// Does `op` in the working directory.
    pub fn perform(&mut self, op: &Op) -> Outcome {
        match op {
            Op::Open(slot, path, flags, mode) => {
                self.slots[*slot] = None;
                let flags =
                    OFlags::from_bits_retain((flags | libc::O_NONBLOCK | libc::O_CLOEXEC).cast_unsigned());
                let fd = rustix::fs::openat(CWD, &**path, flags, Mode::from_raw_mode(*mode))
                    .map_err(rustix::io::Errno::raw_os_error)?;
                self.slots[*slot] = Some(fd.into());
                Ok(String::new())
            }
            Op::Close(slot) => {
                self.slots[*slot] = None;
                Ok(String::new())
            }
            Op::CopyRange(from, from_at, to, to_at, length) => {
                let source = self.slots[*from].as_ref().ok_or(libc::EBADF)?;
                let target = self.slots[*to].as_ref().ok_or(libc::EBADF)?;
                let (mut a, mut b) = (*from_at, *to_at);
                let copied = rustix::fs::copy_file_range(source, Some(&mut a), target, Some(&mut b), *length)
                    .map_err(rustix::io::Errno::raw_os_error)?;
                Ok(copied.to_string())
            }
            _ => match op.slot() {
                Some(slot) => on_file(self.slots[slot].as_ref().ok_or(libc::EBADF)?, op),
                None => on_path(op).map_err(rustix::io::Errno::raw_os_error),
            },
        }
    }
}

fn on_path(op: &Op) -> rustix::io::Result<String> {
    use rustix::fs as call;
    let mode = |bits: u32| Mode::from_raw_mode(bits & 0o7777);
    let follow = |follow: bool| if follow { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW };
    match op {
        Op::Mkdir(path, bits) => call::mkdirat(CWD, &**path, mode(*bits))?,
        Op::Rmdir(path) => call::unlinkat(CWD, &**path, AtFlags::REMOVEDIR)?,
        Op::Unlink(path) => call::unlinkat(CWD, &**path, AtFlags::empty())?,
        Op::Mknod(path, bits, device) => {
            call::mknodat(CWD, &**path, FileType::from_raw_mode(*bits), mode(*bits), *device)?;
        }
        Op::Symlink(target, path) => call::symlinkat(&**target, CWD, &**path)?,
        Op::Link(from, to, followed) => {
            let flags = if *followed { AtFlags::SYMLINK_FOLLOW } else { AtFlags::empty() };
            call::linkat(CWD, &**from, CWD, &**to, flags)?;
        }
        Op::Rename(from, to, flags) => {
            call::renameat_with(CWD, &**from, CWD, &**to, RenameFlags::from_bits_retain(*flags))?;
        }
        Op::Chmod(path, bits) => call::chmodat(CWD, &**path, mode(*bits), AtFlags::empty())?,
        Op::Chown(path, uid, gid, followed) => {
            call::chownat(CWD, &**path, id_of(*uid).0, id_of(*gid).1, follow(*followed))?;
        }
        Op::Truncate(path, size) => nix::unistd::truncate(&**path, *size)
            .map_err(|error| rustix::io::Errno::from_raw_os_error(error as i32))?,
        Op::Utimens(path, atime, mtime, followed) => {
            call::utimensat(CWD, &**path, &times(*atime, *mtime), follow(*followed))?;
        }
        Op::Access(path, bits) => {
            call::accessat(CWD, &**path, Access::from_bits_retain(*bits), AtFlags::EACCESS)?;
        }
        Op::Readlink(path) => {
            let target = call::readlinkat(CWD, &**path, Vec::new())?;
            return Ok(format!("{target:?}"));
        }
        Op::Stat(path, followed) => {
            let stat = seen(&call::statat(CWD, &**path, follow(*followed))?);
            return Ok(format!("{:o} {} {} {}", stat.mode, stat.uid, stat.gid, stat.nlink));
        }
        Op::List(path) => {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let dir = call::openat(CWD, &**path, flags, Mode::empty())?;
            return list(&dir)
                .map(|names| format!("{names:?}"))
                .map_err(rustix::io::Errno::from_raw_os_error);
        }
        Op::SetXattr(path, name, value, flags) => {
            call::lsetxattr(&**path, *name, value, XattrFlags::from_bits_retain(*flags))?;
        }
        Op::GetXattr(path, name) => {
            let mut value = vec![0; 65536];
            let length = call::lgetxattr(&**path, *name, &mut value[..])?;
            return Ok(format!("{:?}", &value[..length]));
        }
        Op::ListXattr(path) => return xattrs(path).map(|names| format!("{names:?}")),
        Op::RemoveXattr(path, name) => call::lremovexattr(&**path, *name)?,
        Op::Umask(bits) => {
            rustix::process::umask(mode(*bits));
        }
        other => unreachable!("{other:?}"),
    }
    Ok(String::new())
}

/// Names of extended attributes, sorted.
pub fn xattrs(path: &[u8]) -> rustix::io::Result<Vec<Vec<u8>>> {
    let mut names = vec![0; 65536];
    let length = rustix::fs::llistxattr(path, &mut names[..])?;
    let mut names: Vec<Vec<u8>> = names[..length].split_inclusive(|&b| b == 0).map(<[u8]>::to_vec).collect();
    names.sort();
    Ok(names)
}

fn on_file(mut file: &File, op: &Op) -> Outcome {
    let raw = rustix::io::Errno::raw_os_error;
    let io = |error: std::io::Error| os(&error);
    match op {
        Op::Fstat(_) => {
            let stat = seen(&rustix::fs::fstat(file).map_err(raw)?);
            return Ok(format!("{:o} {} {}", stat.mode, stat.size, stat.nlink));
        }
        Op::Read(_, length) => {
            let mut bytes = vec![0; *length];
            let got = file.read(&mut bytes).map_err(io)?;
            return Ok(digest(&bytes[..got]));
        }
        Op::Pread(_, at, length) => {
            let mut bytes = vec![0; *length];
            let got = file.read_at(&mut bytes, *at).map_err(io)?;
            return Ok(digest(&bytes[..got]));
        }
        Op::Write(_, length, fill) => {
            return file.write(&vec![*fill; *length]).map(|n| n.to_string()).map_err(io);
        }
        Op::Pwrite(_, at, length, fill) => {
            return file.write_at(&vec![*fill; *length], *at).map(|n| n.to_string()).map_err(io);
        }
        Op::PwriteAppend(_, length, fill) => {
            let bytes = vec![*fill; *length];
            return fence::pwritev2(file.as_fd(), &bytes, 0, libc::RWF_APPEND).map(|n| n.to_string());
        }
        Op::Ftruncate(_, size) => rustix::fs::ftruncate(file, *size).map_err(raw)?,
        Op::Fchmod(_, bits) => {
            rustix::fs::fchmod(file, Mode::from_raw_mode(bits & 0o7777)).map_err(raw)?;
        }
        Op::Fchown(_, uid, gid) => {
            rustix::fs::fchown(file, id_of(*uid).0, id_of(*gid).1).map_err(raw)?;
        }
        Op::Futimens(_, atime, mtime) => {
            rustix::fs::futimens(file, &times(*atime, *mtime)).map_err(raw)?;
        }
        Op::Fallocate(_, mode, at, length) => {
            let mode = FallocateFlags::from_bits_retain(*mode);
            rustix::fs::fallocate(file, mode, *at, *length).map_err(raw)?;
        }
        Op::Seek(_, whence, at) => {
            let to = match *whence {
                libc::SEEK_CUR => SeekFrom::Current(*at),
                libc::SEEK_END => SeekFrom::End(*at),
                libc::SEEK_DATA => SeekFrom::Data(at.unsigned_abs()),
                libc::SEEK_HOLE => SeekFrom::Hole(at.unsigned_abs()),
                _ => SeekFrom::Start(at.unsigned_abs()),
            };
            return rustix::fs::seek(file, to).map(|n| n.to_string()).map_err(raw);
        }
        Op::Fsync(_, data) => if *data { file.sync_data() } else { file.sync_all() }.map_err(io)?,
        Op::Store(_, at, byte) => {
            let size = rustix::fs::fstat(file).map_err(raw)?.st_size;
            if !i64::try_from(*at).is_ok_and(|at| at < size) {
                return Err(libc::ERANGE);
            }
            let at = usize::try_from(*at).unwrap();
            let both = libc::PROT_READ | libc::PROT_WRITE;
            let map = fence::Map::new(file.as_fd(), at + 1, both, libc::MAP_SHARED)?;
            map.store(at, *byte);
            map.sync()?;
        }
        Op::Flock(_, operation) => {
            let operation = match *operation {
                libc::LOCK_SH => FlockOperation::NonBlockingLockShared,
                libc::LOCK_EX => FlockOperation::NonBlockingLockExclusive,
                _ => FlockOperation::NonBlockingUnlock,
            };
            rustix::fs::flock(file, operation).map_err(raw)?;
        }
        other => unreachable!("{other:?}"),
    }
    Ok(String::new())
}

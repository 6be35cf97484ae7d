//! Attributes of a file as a program sees them, and the changes it asks for.

use std::os::fd::AsFd;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{FileType, Stat};

use crate::dataset::{Entry as CatalogEntry, EntryKind, Stamp};
use crate::errno::Errno;

/// What a name stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Regular file.
    File,
    /// Directory.
    Directory,
    /// Symbolic link.
    Symlink,
    /// Named pipe.
    Fifo,
    /// Unix socket.
    Socket,
    /// Character device.
    CharDevice,
    /// Block device.
    BlockDevice,
}

impl Kind {
    /// From a directory entry's or an inode's type; a type that Linux does not know is taken for a
    /// file.
    pub(crate) fn of(kind: FileType) -> Self {
        match kind {
            FileType::Directory => Self::Directory,
            FileType::Symlink => Self::Symlink,
            FileType::Fifo => Self::Fifo,
            FileType::Socket => Self::Socket,
            FileType::CharacterDevice => Self::CharDevice,
            FileType::BlockDevice => Self::BlockDevice,
            FileType::RegularFile | FileType::Unknown => Self::File,
        }
    }

    /// A number for a listing that is kept; see [`Kind::of_code`].
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::File => 0,
            Self::Directory => 1,
            Self::Symlink => 2,
            Self::Fifo => 3,
            Self::Socket => 4,
            Self::CharDevice => 5,
            Self::BlockDevice => 6,
        }
    }

    /// The type with that number.
    pub(crate) fn of_code(code: u8) -> Self {
        let kinds =
            [Self::Directory, Self::Symlink, Self::Fifo, Self::Socket, Self::CharDevice, Self::BlockDevice];
        kinds.into_iter().find(|kind| kind.code() == code).unwrap_or(Self::File)
    }

    pub(crate) fn of_entry(entry: &CatalogEntry) -> Self {
        match entry.kind {
            EntryKind::Directory => Self::Directory,
            EntryKind::File(_) => Self::File,
            EntryKind::Symlink(_) => Self::Symlink,
        }
    }
}

/// Attributes for stat(2).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attr {
    /// The daemon's own number of the inode; `st_ino` too.
    pub nodeid: u64,
    /// Type.
    pub kind: Kind,
    /// Permission bits (07777).
    pub perm: u32,
    /// Hard links.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number as st_rdev has it.
    pub rdev: u64,
    /// Bytes.
    pub size: u64,
    /// 512-byte blocks.
    pub blocks: u64,
    /// Preferred block size.
    pub blksize: u32,
    /// Last access.
    pub atime: Stamp,
    /// Last change of the bytes.
    pub mtime: Stamp,
    /// Last change of the inode.
    pub ctime: Stamp,
}

pub(crate) fn now() -> Stamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Stamp { secs: i64::try_from(since.as_secs()).unwrap_or(i64::MAX), nsecs: since.subsec_nanos() }
}

impl Attr {
    /// Attributes of backing inode `stat` under our number.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the kernel's values fit")]
    pub(crate) fn of(nodeid: u64, stat: &Stat) -> Self {
        let [atime, mtime, ctime] = Stamp::times_of(stat);
        Self {
            nodeid,
            kind: Kind::of(FileType::from_raw_mode(stat.st_mode)),
            perm: stat.st_mode & 0o7777,
            nlink: stat.st_nlink as u32,
            uid: stat.st_uid,
            gid: stat.st_gid,
            rdev: stat.st_rdev,
            size: stat.st_size as u64,
            blocks: stat.st_blocks as u64,
            blksize: stat.st_blksize as u32,
            atime,
            mtime,
            ctime,
        }
    }

    /// Attributes of an empty file of `owner` (user and group) that was made `at` that time.
    pub(crate) fn of_empty_file(nodeid: u64, (uid, gid): (u32, u32), at: Stamp) -> Self {
        Self {
            nodeid,
            kind: Kind::File,
            perm: 0o644,
            nlink: 1,
            uid,
            gid,
            rdev: 0,
            size: 0,
            blocks: 0,
            blksize: 4096,
            atime: at,
            mtime: at,
            ctime: at,
        }
    }

    /// Attributes of a sealed name; `sealed_at` stands in for the time of the inode's last change.
    pub(crate) fn of_entry(nodeid: u64, entry: &CatalogEntry, sealed_at: Stamp) -> Self {
        let (size, nlink) = match &entry.kind {
            EntryKind::Directory => (4096, 2),
            EntryKind::File(copy) => (copy.size, 1),
            EntryKind::Symlink(target) => (target.len() as u64, 1),
        };
        Self {
            nodeid,
            kind: Kind::of_entry(entry),
            perm: entry.mode & 0o7777,
            nlink,
            uid: entry.uid,
            gid: entry.gid,
            rdev: 0,
            size,
            blocks: size.div_ceil(512),
            blksize: 4096,
            atime: entry.atime,
            mtime: entry.mtime,
            ctime: sealed_at,
        }
    }
}

impl Attr {
    /// Follows chmod, chown and utimensat, as a file system does.
    pub(crate) fn change(&mut self, changes: &Changes, now: Stamp) {
        let owned = changes.uid.is_some() || changes.gid.is_some();
        if owned && self.kind != Kind::Directory {
            // A new owner does not get to lend out his rights unknowingly.
            let group = if self.perm & libc::S_IXGRP == 0 { 0 } else { libc::S_ISGID };
            self.perm &= !(libc::S_ISUID | group);
        }
        self.perm = changes.mode.map_or(self.perm, |mode| mode & 0o7777);
        self.uid = changes.uid.unwrap_or(self.uid);
        self.gid = changes.gid.unwrap_or(self.gid);
        for (time, to) in [(&mut self.atime, changes.atime), (&mut self.mtime, changes.mtime)] {
            *time = match to {
                None => *time,
                Some(SetTime::Now) => now,
                Some(SetTime::At(at)) => at,
            };
        }
        self.ctime = now;
    }
}

/// A time that a program sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetTime {
    /// This moment.
    Now,
    /// That one.
    At(Stamp),
}

/// What setattr is to change; `None` = leave.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    /// Permission bits.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Bytes.
    pub size: Option<u64>,
    /// Last access.
    pub atime: Option<SetTime>,
    /// Last change.
    pub mtime: Option<SetTime>,
    /// The handle through which it was asked.
    pub handle: Option<u64>,
}

/// fstat(2); also for descriptors opened with O_PATH.
pub(crate) fn stat_of(fd: impl AsFd) -> Result<Stat, Errno> {
    Ok(rustix::fs::fstat(fd)?)
}

/// Device and inode number: what a backing inode is known by.
pub(crate) fn key_of(stat: &Stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}

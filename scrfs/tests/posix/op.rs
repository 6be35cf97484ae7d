//! What a program can ask of a file system, as data: so that the same thing can be asked of two of
//! them.

/// Who asks. Ids that no account of the machine has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum User {
    Root,
    /// 4001:4001, also in 5000.
    Ann,
    /// 4002:4002, also in 5000 and 5001.
    Bob,
    /// 4003 in Ann's group.
    Cy,
}

pub const USERS: [User; 4] = [User::Root, User::Ann, User::Bob, User::Cy];

impl User {
    pub fn ids(self) -> (u32, u32, &'static [u32]) {
        match self {
            Self::Root => (0, 0, &[]),
            Self::Ann => (4001, 4001, &[5000]),
            Self::Bob => (4002, 4002, &[5000, 5001]),
            Self::Cy => (4003, 4001, &[]),
        }
    }
}

/// A path relative to the directory under test; not always text.
#[derive(Clone, PartialEq, Eq)]
pub struct Path(Vec<u8>);

impl<T: Into<Vec<u8>>> From<T> for Path {
    fn from(bytes: T) -> Self {
        Self(bytes.into())
    }
}

impl std::ops::Deref for Path {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl std::fmt::Debug for Path {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = String::from_utf8_lossy(&self.0);
        let short: String = text.chars().take(20).collect();
        if self.0.len() < 60 { write!(f, "{text:?}") } else { write!(f, "{short:?}..[{}]", self.0.len()) }
    }
}

/// A time to set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Time {
    Now,
    Omit,
    At(i64, i64),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    Mkdir(Path, u32),
    Rmdir(Path),
    Unlink(Path),
    /// With S_IFMT in the mode.
    Mknod(Path, u32, u64),
    Symlink(Path, Path),
    /// Old, new, AT_SYMLINK_FOLLOW.
    Link(Path, Path, bool),
    /// RENAME_ flags.
    Rename(Path, Path, u32),
    Chmod(Path, u32),
    /// `u32::MAX` leaves an id; follow.
    Chown(Path, u32, u32, bool),
    Truncate(Path, i64),
    Utimens(Path, Time, Time, bool),
    Access(Path, u32),
    Readlink(Path),
    Stat(Path, bool),
    List(Path),
    /// Name, value, XATTR_ flags.
    SetXattr(Path, &'static str, Path, u32),
    GetXattr(Path, &'static str),
    ListXattr(Path),
    RemoveXattr(Path, &'static str),
    Open(usize, Path, i32, u32),
    Close(usize),
    Fstat(usize),
    Read(usize, usize),
    Pread(usize, u64, usize),
    Write(usize, usize, u8),
    Pwrite(usize, u64, usize, u8),
    /// RWF_APPEND.
    PwriteAppend(usize, usize, u8),
    Ftruncate(usize, u64),
    Fchmod(usize, u32),
    Fchown(usize, u32, u32),
    Futimens(usize, Time, Time),
    Fallocate(usize, u32, u64, u64),
    Seek(usize, i32, i64),
    CopyRange(usize, u64, usize, u64, usize),
    Fsync(usize, bool),
    /// A store through a shared mapping, and msync.
    Store(usize, u64, u8),
    Flock(usize, i32),
    Umask(u32),
}

impl Op {
    /// Paths whose attributes it may change, or depend on.
    pub fn paths(&self) -> Vec<&[u8]> {
        match self {
            Self::Mkdir(p, _)
            | Self::Rmdir(p)
            | Self::Unlink(p)
            | Self::Mknod(p, ..)
            | Self::Symlink(_, p)
            | Self::Chmod(p, _)
            | Self::Chown(p, ..)
            | Self::Truncate(p, _)
            | Self::Utimens(p, ..)
            | Self::Access(p, _)
            | Self::Readlink(p)
            | Self::Stat(p, _)
            | Self::List(p)
            | Self::SetXattr(p, ..)
            | Self::GetXattr(p, _)
            | Self::ListXattr(p)
            | Self::RemoveXattr(p, _)
            | Self::Open(_, p, ..) => vec![&**p],
            Self::Link(a, b, _) | Self::Rename(a, b, _) => vec![&**a, &**b],
            _ => Vec::new(),
        }
    }

    /// The open file that it changes.
    pub fn slot(&self) -> Option<usize> {
        match self {
            Self::Open(s, ..)
            | Self::Close(s)
            | Self::Fstat(s)
            | Self::Read(s, _)
            | Self::Pread(s, ..)
            | Self::Write(s, ..)
            | Self::Pwrite(s, ..)
            | Self::PwriteAppend(s, ..)
            | Self::Ftruncate(s, _)
            | Self::Fchmod(s, _)
            | Self::Fchown(s, ..)
            | Self::Futimens(s, ..)
            | Self::Fallocate(s, ..)
            | Self::Seek(s, ..)
            | Self::CopyRange(_, _, s, ..)
            | Self::Fsync(s, _)
            | Self::Store(s, ..)
            | Self::Flock(s, _) => Some(*s),
            _ => None,
        }
    }

    /// Puts bytes into an open file by way of the kernel alone.
    pub fn writes(&self) -> bool {
        matches!(self, Self::Write(..) | Self::Pwrite(..) | Self::PwriteAppend(..) | Self::Store(..))
    }
}

//! Paths that cannot leave the directory they are relative to.
//!
//! A [`RelPath`] names something below the mount's root or below a dataset's directory. It is
//! checked when it is made, also when it is decoded from disk or wire: no `..`, no absolute path,
//! no empty component.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// Longest path that is accepted, in bytes (PATH_MAX less the terminating NUL).
pub const PATH_BYTES_MAX: usize = 4095;
/// Longest single name, in bytes (NAME_MAX).
pub const NAME_BYTES_MAX: usize = 255;

/// A relative path of ordinary components; the empty path is the directory itself. Bytes, not text.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(try_from = "Vec<u8>", into = "Vec<u8>")]
pub struct RelPath(Vec<u8>);

/// Why bytes are not a [`RelPath`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// Starts with `/`.
    #[error("path {0:?} is absolute")]
    Absolute(String),
    /// Has a component that is empty, `.` or `..`.
    #[error("path {0:?} has an empty, `.` or `..` component")]
    Component(String),
    /// Has a NUL byte.
    #[error("path {0:?} has a NUL byte")]
    Nul(String),
    /// The path or one of its names is longer than the file system takes.
    #[error("path or name of {0} bytes is too long")]
    TooLong(usize),
}

impl RelPath {
    /// The directory itself.
    pub fn root() -> Self {
        Self::default()
    }

    /// Checks `bytes` and makes them a path.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Result<Self, PathError> {
        let bytes = bytes.into();
        let shown = || String::from_utf8_lossy(&bytes[..bytes.len().min(256)]).into_owned();
        if bytes.len() > PATH_BYTES_MAX {
            return Err(PathError::TooLong(bytes.len()));
        }
        if bytes.is_empty() {
            return Ok(Self(bytes));
        }
        if bytes[0] == b'/' {
            return Err(PathError::Absolute(shown()));
        }
        if bytes.contains(&0) {
            return Err(PathError::Nul(shown()));
        }
        for name in bytes.split(|&b| b == b'/') {
            if name.is_empty() || name == b"." || name == b".." {
                return Err(PathError::Component(shown()));
            }
            if name.len() > NAME_BYTES_MAX {
                return Err(PathError::TooLong(name.len()));
            }
        }
        Ok(Self(bytes))
    }

    /// True for the directory itself.
    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// The bytes, `/` between components.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// For system calls relative to a directory descriptor; the root is `.`.
    pub fn as_path(&self) -> &Path {
        if self.0.is_empty() { Path::new(".") } else { Path::new(OsStr::from_bytes(&self.0)) }
    }

    /// The path of `name` in this directory.
    pub fn join(&self, name: &[u8]) -> Result<Self, PathError> {
        let mut bytes = Vec::with_capacity(self.0.len() + 1 + name.len());
        bytes.extend_from_slice(&self.0);
        if !bytes.is_empty() {
            bytes.push(b'/');
        }
        bytes.extend_from_slice(name);
        Self::new(bytes)
    }

    /// This path with `inner` appended.
    pub fn concat(&self, inner: &Self) -> Result<Self, PathError> {
        if inner.is_root() { Ok(self.clone()) } else { self.join(&inner.0) }
    }

    /// Directory and last name; `None` for the root.
    pub fn split_last(&self) -> Option<(Self, &[u8])> {
        if self.0.is_empty() {
            return None;
        }
        match self.0.iter().rposition(|&b| b == b'/') {
            Some(at) => Some((Self(self.0[..at].to_vec()), &self.0[at + 1..])),
            None => Some((Self::root(), &self.0)),
        }
    }

    /// First name and the rest below it; `None` for the root.
    pub fn split_first(&self) -> Option<(&[u8], Self)> {
        if self.0.is_empty() {
            return None;
        }
        match self.0.iter().position(|&b| b == b'/') {
            Some(at) => Some((&self.0[..at], Self(self.0[at + 1..].to_vec()))),
            None => Some((&self.0, Self::root())),
        }
    }

    /// What is left of this path below `dir`; `None` when it is not `dir` or below it.
    pub fn strip(&self, dir: &Self) -> Option<Self> {
        if dir.is_root() {
            return Some(self.clone());
        }
        let rest = self.0.strip_prefix(dir.0.as_slice())?;
        match rest {
            [] => Some(Self::root()),
            [b'/', inner @ ..] => Some(Self(inner.to_vec())),
            _ => None,
        }
    }

    /// The components, first to last.
    pub fn names(&self) -> impl Iterator<Item = &[u8]> {
        self.0.split(|&b| b == b'/').filter(|name| !name.is_empty())
    }
}

impl TryFrom<Vec<u8>> for RelPath {
    type Error = PathError;
    fn try_from(bytes: Vec<u8>) -> Result<Self, PathError> {
        Self::new(bytes)
    }
}

impl From<RelPath> for Vec<u8> {
    fn from(path: RelPath) -> Self {
        path.0
    }
}

impl fmt::Debug for RelPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", String::from_utf8_lossy(&self.0))
    }
}

impl fmt::Display for RelPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        String::from_utf8_lossy(&self.0).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_paths_are_refused() {
        for bad in ["/a", "a//b", "../x", "a/..", "a/./b", "a/", "a\0b"] {
            assert!(RelPath::new(bad).is_err(), "{bad:?}");
        }
        assert!(RelPath::new(vec![b'x'; 256]).is_err());
        assert!(RelPath::new(b"ck 1/\xff/rank.0".to_vec()).is_ok());
    }

    #[test]
    fn decoding_checks_too() {
        let bytes = postcard::to_stdvec(&b"../../etc/passwd".to_vec()).unwrap();
        assert!(postcard::from_bytes::<RelPath>(&bytes).is_err());
    }

    #[test]
    fn parts() {
        let p = RelPath::new("ck/a/b").unwrap();
        assert_eq!(p.split_last().unwrap().1, b"b");
        assert_eq!(p.split_first().unwrap().1, RelPath::new("a/b").unwrap());
        assert_eq!(p.strip(&RelPath::new("ck").unwrap()).unwrap(), RelPath::new("a/b").unwrap());
        assert!(p.strip(&RelPath::new("c").unwrap()).is_none());
        assert_eq!(RelPath::root().join(b"x").unwrap().as_bytes(), b"x");
    }
}

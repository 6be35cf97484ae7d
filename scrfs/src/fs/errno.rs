//! Errors of system calls keep their number on the way to the program.

use super::inodes::Backing;
use crate::errno::Errno;
use crate::ids::DatasetId;
use crate::path::{PathError, RelPath};

impl From<rustix::io::Errno> for Errno {
    fn from(error: rustix::io::Errno) -> Self {
        Self(error.raw_os_error())
    }
}

impl From<std::io::Error> for Errno {
    fn from(error: std::io::Error) -> Self {
        Self(error.raw_os_error().unwrap_or(libc::EIO))
    }
}

impl From<PathError> for Errno {
    fn from(error: PathError) -> Self {
        match error {
            PathError::TooLong(_) => Self(libc::ENAMETOOLONG),
            PathError::Absolute(_) | PathError::Component(_) | PathError::Nul(_) => Self(libc::EINVAL),
        }
    }
}

/// Why a step of an operation did not finish.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Stop {
    /// It failed.
    Errno(Errno),
    /// A name is held: try again when that has changed.
    Wait,
    /// A dataset is frozen: try again when its seal is decided.
    Frozen,
    /// The node has to do this first.
    Need(Need),
}

/// What the node does before an operation can go on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Need {
    /// Begin its next generation.
    NextGeneration(DatasetId),
    /// Bring a sealed file here (relative to the dataset's directory).
    Fetch(DatasetId, RelPath),
    /// Let the sealed dataset have its own copy of a file whose bytes are about to change.
    Keep(DatasetId, RelPath, Backing),
    /// Make a flat dataset's directory.
    Flat(Vec<u8>),
    /// Tell all nodes that a sealed file, which was removed here, is gone.
    Gone(RelPath),
}

impl Need {
    /// It is of an operation that changes a sealed dataset.
    pub(crate) fn changes(&self) -> bool {
        matches!(self, Self::NextGeneration(_) | Self::Keep(..))
    }
}

impl<E: Into<Errno>> From<E> for Stop {
    fn from(error: E) -> Self {
        Self::Errno(error.into())
    }
}

/// Shorthand for `Err` with a number of libc's.
pub(crate) fn fail<T, E: From<Errno>>(number: i32) -> Result<T, E> {
    Err(E::from(Errno(number)))
}

//! Errors of system calls keep their number on the way to the program.

use crate::daemon::boundary::Errno;
use crate::path::PathError;

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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    /// It failed.
    Errno(Errno),
    /// A name is held or a dataset is frozen: try again when that has changed.
    Wait,
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

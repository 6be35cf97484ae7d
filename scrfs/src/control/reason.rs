//! Why something was not done: in words for an operator, as a number for what is decided by it.

use std::error::Error;
use std::fmt;
use std::io;

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

/// Why an order of the lead was not carried out. Words name path, dataset and member; nothing is
/// decided by them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{words}")]
pub struct Reason {
    words: String,
    /// Of the system call at the bottom of it, if that was the cause.
    errno: Option<i32>,
}

impl Reason {
    /// An error, with the number of the system call that is at the bottom of it.
    pub fn of(error: &(dyn Error + 'static)) -> Self {
        Self { words: error.to_string(), errno: errno_of(error) }
    }

    /// Words, and the number of an errno that they tell of; 0: of none.
    pub fn with_errno(words: impl Into<String>, errno: i32) -> Self {
        Self { words: words.into(), errno: Some(errno).filter(|errno| *errno != 0) }
    }

    /// An error, with what it was about before it.
    #[must_use]
    pub fn on(self, what: impl fmt::Display) -> Self {
        Self { words: format!("{what}: {}", self.words), ..self }
    }

    /// Several, of which the first with a number says what to do.
    pub fn all(reasons: impl IntoIterator<Item = Self>) -> Option<Self> {
        reasons.into_iter().reduce(|first, next| Self {
            words: format!("{}; {}", first.words, next.words),
            errno: first.errno.or(next.errno),
        })
    }

    /// For an operator.
    pub fn words(&self) -> &str {
        &self.words
    }

    /// A store has no room for it, or the user may have no more of it.
    pub fn is_shortage_of_room(&self) -> bool {
        self.is(&[Errno::NOSPC, Errno::DQUOT])
    }

    /// It may not be written there.
    pub fn is_refusal_to_write(&self) -> bool {
        self.is(&[Errno::ROFS, Errno::ACCESS])
    }

    fn is(&self, numbers: &[Errno]) -> bool {
        self.errno.is_some_and(|errno| numbers.iter().any(|number| number.raw_os_error() == errno))
    }
}

/// The first number in an error and its causes.
fn errno_of(error: &(dyn Error + 'static)) -> Option<i32> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(io) = error.downcast_ref::<io::Error>() {
            let inner = || io.get_ref().and_then(|inner| errno_of(inner));
            return io.raw_os_error().or_else(inner);
        }
        if let Some(errno) = error.downcast_ref::<Errno>() {
            return Some(errno.raw_os_error());
        }
        next = error.source();
    }
    None
}

impl From<String> for Reason {
    fn from(words: String) -> Self {
        Self { words, errno: None }
    }
}

impl From<&str> for Reason {
    fn from(words: &str) -> Self {
        words.to_owned().into()
    }
}

/// These errors are reasons as they are.
macro_rules! are_reasons {
    ($($error:ty),+ $(,)?) => {
        $(impl From<$error> for $crate::control::Reason {
            fn from(error: $error) -> Self {
                Self::of(&error)
            }
        })+
    };
}

pub(crate) use are_reasons;

are_reasons!(
    io::Error,
    Errno,
    crate::path::PathError,
    crate::store::StoreError,
    crate::control::client::ClientError,
    crate::record::catalog_file::CatalogError,
);

impl From<crate::errno::Errno> for Reason {
    fn from(errno: crate::errno::Errno) -> Self {
        Self::with_errno(errno.to_string(), errno.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transfer::TransferError;

    #[test]
    fn the_number_is_that_of_the_system_call_at_the_bottom() {
        let full = || io::Error::from_raw_os_error(libc::ENOSPC);
        let path = crate::path::RelPath::new(b"d/f").unwrap();
        let wrapped = Reason::from(TransferError::io(&path, "write")(full()));
        assert!(wrapped.is_shortage_of_room(), "{wrapped}");
        let told = wrapped.on("n3");
        assert!(told.is_shortage_of_room() && told.to_string().starts_with("n3: d/f"), "{told}");
        assert!(Reason::from(io::Error::other(full())).is_shortage_of_room());
        assert!(Reason::from(Errno::DQUOT).is_shortage_of_room());
        assert!(Reason::from(Errno::ROFS).is_refusal_to_write());
        // Whatever a file is called.
        let named = Reason::from(format!("/k/{}: CRC is wrong", full()));
        assert!(!named.is_shortage_of_room(), "{named}");
        let all = Reason::all([named, Reason::from(Errno::DQUOT)]).unwrap();
        assert!(all.is_shortage_of_room() && all.to_string().contains("; "), "{all}");
        assert_eq!(Reason::all([]), None);
    }
}

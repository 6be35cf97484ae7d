//! Descriptors that are kept back: what programs hold open has numbers below a bound, so that
//! names, removals, seals and control connections always find some.
//!
//! The kernel gives the lowest number that is free: a number tells whether there are lower ones.

use std::os::fd::{AsRawFd, RawFd};

use rustix::process::{Resource, getrlimit};

/// This part of what the process may have is kept back, within bounds.
const PART: u64 = 8;
const LEAST: u64 = 16;
const MOST: u64 = 1024;
/// The lowest number that is kept back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bound(RawFd);

/// By what this process may have now.
impl Default for Bound {
    fn default() -> Self {
        Self::of(getrlimit(Resource::Nofile).current)
    }
}

impl Bound {
    fn of(limit: Option<u64>) -> Self {
        let limit = limit.unwrap_or(u64::MAX);
        let bound = limit.saturating_sub((limit / PART).clamp(LEAST, MOST));
        Self(RawFd::try_from(bound).unwrap_or(RawFd::MAX))
    }

    /// The number itself, for people.
    pub(crate) fn number(self) -> RawFd {
        self.0
    }

    /// A program may hold it.
    pub(crate) fn admits(self, fd: &impl AsRawFd) -> bool {
        fd.as_raw_fd() < self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_many_are_kept_back() {
        for (limit, bound) in [
            (Some(10), 0),
            (Some(64), 48),
            (Some(256), 224),
            (Some(1024), 896),
            (Some(1 << 20), (1 << 20) - 1024),
            (None, RawFd::MAX),
        ] {
            assert_eq!(Bound::of(limit), Bound(bound), "{limit:?}");
        }
    }
}

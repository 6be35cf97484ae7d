//! Two that publish the same dataset at once: coordinators that start, persons, nodes.
//!
//! None keeps another out, since one that has died must hold up nobody. What they write is the
//! same, and gets its place by renames; the index has its lock. One takes `dataset/` away,
//! announces that before, and has the lock until the index entry is there. Under the hands of the
//! others files are gone then, which says nothing about what was saved: they look again. That
//! waits for the lock first, and goes on with the swap of one that is gone
//! ([`super::super::lock`]).

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use crate::plain;

use super::super::directory::{PfsError, Prefix, Result};
use super::super::flush;
use super::adopt::{By, Outcome};
use super::{Collection, DATASET};

/// Looks at one dataset, before what is found is told; more while the prefix's patience lasts.
const LOOKS: u32 = 8;
/// Before the second look, about; then twice as long before each, up to `PAUSE_MAX`: another node,
/// of which no event tells, is about to put back what it has taken away. Two that disturb each
/// other draw other pauses.
const PAUSE: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// `dataset/`, told from one that has its name later.
#[derive(Debug, Clone, Copy)]
pub(super) struct Identity {
    file: Option<(u64, u64)>,
    /// Of the inode: another time when it was away in between, or names in it have changed.
    changed: (i64, i64),
}

impl Collection {
    /// Finishes or undoes what others have left half done; waits for those that are at it.
    pub(super) fn settle(&self, prefix: &Prefix) -> Result<()> {
        flush::settle(prefix, self.age.id)?;
        flush::bring_back(prefix, self.age.epoch, self.age.id)
    }

    /// Which `dataset/` is there.
    pub(super) fn identity(&self) -> Result<Identity> {
        let path = self.directory.join(DATASET);
        match plain::look(&path) {
            Ok(found) => {
                let changed = (found.ctime(), found.ctime_nsec());
                Ok(Identity { file: Some((found.dev(), found.ino())), changed })
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Ok(Identity { file: None, changed: (0, 0) })
            }
            Err(error) => Err(PfsError::io(&path, "stat")(error)),
        }
    }

    /// Another has taken `dataset/` away since, or is about to.
    pub(super) fn is_moving(&self, prefix: &Prefix, seen: Identity) -> Result<bool> {
        Ok(self.identity()?.file != seen.file || flush::is_swapped(prefix, self.age.epoch, self.age.id)?)
    }

    /// What was found may be of a moment at which another was publishing.
    pub(super) fn is_disturbed(
        &self,
        prefix: &Prefix,
        seen: Option<Identity>,
        found: &Result<Outcome>,
    ) -> bool {
        let is_moving = || seen.is_some_and(|seen| self.is_moving(prefix, seen).unwrap_or(false));
        let has_changed =
            || seen.is_some_and(|seen| self.identity().is_ok_and(|now| now.changed != seen.changed));
        match found {
            Ok(Outcome::Published(_) | Outcome::Stored | Outcome::Superseded { .. })
            | Err(PfsError::Superseded(..)) => false,
            Err(PfsError::Locked { .. }) => true,
            Err(PfsError::Io { source, .. }) if is_gone(source) => true,
            // Nothing was made by then: whatever has changed, another has changed it. Who was about
            // to publish and gave way has taken it away and put it back.
            Ok(Outcome::Waits { .. }) => is_moving() || has_changed(),
            Ok(Outcome::Hindered(_)) | Err(_) => is_moving(),
        }
    }
}

/// A name is gone, or a file behind a name.
fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESTALE)
}

/// Whether there is time for another look after so many, of which the first began then; waits a
/// little before it. A second one is had in any case.
pub(super) fn may_look(prefix: &Prefix, (looks, begun): (u32, Instant), by: By<'_>) -> bool {
    let is_late = match by {
        By::Start(_, until) => until.is_some_and(|until| Instant::now() >= until),
        By::Node | By::Person(_) => false,
    };
    let has_time = || looks < LOOKS || begun.elapsed() < prefix.patience;
    let may = if is_late { looks < 2 } else { has_time() };
    if may {
        let pause = (PAUSE * 2_u32.saturating_pow(looks.min(16) - 1)).min(PAUSE_MAX);
        let drawn = u32::try_from(RandomState::new().hash_one(looks) % 1000).unwrap_or(0);
        std::thread::sleep(pause / 2 + pause * drawn / 1000);
    }
    may
}

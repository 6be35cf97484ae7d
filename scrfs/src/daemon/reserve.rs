//! What the node does with the room that is kept back for its records ([`Reserve`]): tells that it
//! is in use, and fills it up again.

use std::io;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crate::lock::Mutex;
use crate::store::Store;
use crate::store::reserve::{Level, Reserve, Use};

use super::node::Node;

/// So long there must have been room before it is said that there is.
const CALM: Duration = Duration::from_mins(1);

/// What the events have said.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Told {
    /// The reserve was in use then for the last time; `None`: it is whole, and that is known.
    used: Option<Instant>,
}

#[derive(Debug, PartialEq, Eq)]
enum News {
    InUse,
    Whole,
}

impl Told {
    fn look(&mut self, level: Level, now: Instant) -> Option<News> {
        match (self.used, level.is_short()) {
            (None, false) => None,
            (former, true) => {
                self.used = Some(now);
                former.is_none().then_some(News::InUse)
            }
            (Some(used), false) if now.duration_since(used) < CALM => None,
            (Some(_), false) => {
                self.used = None;
                Some(News::Whole)
            }
        }
    }
}

/// Room kept back in a store, and what was said of it.
pub(super) struct KeptBack {
    reserve: Option<Arc<Reserve>>,
    /// Why there is none.
    refused: Option<io::Error>,
    told: Mutex<Told>,
}

impl KeptBack {
    /// For `store`, which draws on it from now on.
    pub(super) fn of(store: Store) -> (Store, Self) {
        let (reserve, refused) = match Reserve::open(&store) {
            Ok(reserve) => (Some(Arc::new(reserve)), None),
            Err(error) => (None, Some(error)),
        };
        let store = store.with_reserve(reserve.clone());
        (store, Self { reserve, refused, told: Mutex::default() })
    }

    /// For the events, if nothing can be kept back in `directory`.
    pub(super) fn problem(&self, directory: &Path) -> Option<String> {
        let (error, at) = (self.refused.as_ref()?, directory.display());
        Some(format!(
            "no room can be kept back for the daemon's records in {at}: {error}; should its file system become full, seals \
             fail: keep room there, or mount with the control directory elsewhere (SCR_CNTL_BASE)"
        ))
    }

    /// Does what needs an inode, or some bytes; when there are none, with what is kept back.
    pub(super) fn with_room<T>(&self, mut work: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        let errno = |error: &io::Error| error.raw_os_error().unwrap_or(libc::EIO);
        match &self.reserve {
            Some(reserve) => reserve.help(Use::Record, 0, errno, work),
            None => work(),
        }
    }

    pub(super) fn reserve(&self) -> Option<&Arc<Reserve>> {
        self.reserve.as_ref()
    }

    /// How much is left, when some of it is in use.
    pub(super) fn shortage(&self) -> Option<Level> {
        self.reserve.as_ref().map(|reserve| reserve.level()).filter(|level| level.is_short())
    }

    /// It has to be looked at again.
    pub(super) fn is_restless(&self) -> bool {
        self.told.lock().used.is_some() || self.shortage().is_some()
    }
}

impl Node {
    /// `me` learns of it each time the reserve was used.
    pub(super) fn watch_reserve(&self, me: Weak<Self>) {
        let Some(reserve) = self.kept_back.reserve() else { return };
        reserve.when_taken(move || {
            let Some(node) = me.upgrade() else { return };
            let looking = Arc::clone(&node);
            // Not here: whoever used it holds locks.
            node.lanes.room.run(move || looking.look_at_reserve());
        });
        if self.kept_back.shortage().is_some() {
            self.look_at_reserve();
        }
    }

    /// Fills it up if there is room, and says what has changed.
    pub(super) fn look_at_reserve(&self) {
        let Some(reserve) = self.kept_back.reserve() else { return };
        // Before it is whole again, else nobody would hear of it.
        let level = reserve.level();
        let before = self.kept_back.told.lock().look(level, Instant::now());
        reserve.refill();
        let level @ Level { held, wanted, inodes, inodes_wanted } = reserve.level();
        let after = self.kept_back.told.lock().look(level, Instant::now());
        let at = reserve.path().display();
        match before.or(after) {
            None => return,
            Some(News::InUse) => self.events.warning(
                None,
                &format!(
                    "the file system of the control directory {at} is full: records go on with the room kept back for them \
                     ({held} of {wanted} bytes and {inodes} of {inodes_wanted} inodes are left); remove files there, or \
                     datasets (rm -r, SCR_CACHE_SIZE)"
                ),
            ),
            Some(News::Whole) => self.events.info(
                None,
                &format!(
                    "the control directory {at} has room again: {wanted} bytes and {inodes_wanted} inodes are kept back \
                     for records"
                ),
            ),
        }
        // The watching thread looks more often now, or less.
        drop(self.state.lock());
        self.wake.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_said_once_that_there_is_no_room_and_once_that_there_is() {
        let whole = Level { held: 4, wanted: 4, inodes: 2, inodes_wanted: 2 };
        let short = Level { held: 3, ..whole };
        let (begun, mut told) = (Instant::now(), Told::default());
        let mut look = |level, seconds| told.look(level, begun + Duration::from_secs(seconds));
        assert_eq!(look(whole, 0), None);
        assert_eq!(look(short, 1), Some(News::InUse));
        assert_eq!(look(short, 2), None);
        // There is room and there is none, by turns.
        assert_eq!(look(whole, 3), None);
        assert_eq!(look(short, 50), None);
        assert_eq!(look(whole, 100), None);
        assert_eq!(look(whole, 110), Some(News::Whole));
        assert_eq!(look(whole, 111), None);
        let short = Level { inodes: 1, ..whole };
        assert_eq!(look(short, 112), Some(News::InUse));
    }
}

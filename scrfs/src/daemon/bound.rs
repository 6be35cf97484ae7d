//! `SCRFS_CACHE_BYTES`: how much of its file system the cache may take (`scrfs/docs/semantics.md`,
//! When the cache is full).
//!
//! What it has taken is counted by a walk over the cache directory: a file system does not tell it
//! of a directory. Between two walks, what there is less room than at the last one counts as taken
//! by the cache: nobody is told of room that is not there, and who else writes to the file system
//! is told apart within a second or so. While nothing on the file system changes there are no
//! walks, and where they take long they are rare.
//!
//! With passthrough nobody can stop a file's growth at the bound: the kernel writes, and the daemon
//! is not asked. New files of datasets are refused, as the next generation's are, once it has been
//! reached and nothing may leave the cache. What protects datasets, and what brings them back, is
//! never refused.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::StatVfs;

use crate::control::Settings;
use crate::lock::{Mutex, Rank};

use super::cache::Cache;
use super::node::{Node, NodeConfig};
use super::room::Moment;
use crate::errno::Errno;

/// A walk may take this part of the time.
const WALKS: u32 = 20;
/// A walk that takes no longer may be waited for by a program.
const QUICK: Duration = Duration::from_millis(20);

/// See the module.
pub(super) struct Bound {
    /// Bytes; 0: none.
    limit: AtomicU64,
    counted: Mutex<Counted>,
    /// One walk at a time.
    walking: Mutex<()>,
    /// Files are being refused, and the events say so.
    refusing: AtomicBool,
}

/// What the last walk found.
#[derive(Default)]
struct Counted {
    bytes: u64,
    /// Free bytes and inodes of the stores' file systems when it began.
    free: (u64, u64),
    ended: Option<Instant>,
    took: Duration,
}

/// The bound of a mount whose job has these settings; 0: none. What the administrator gave is not
/// the user's to raise.
pub(super) fn bound_of(config: &NodeConfig, settings: Option<&Settings>) -> u64 {
    let bounds = [config.cache_bytes, settings.map_or(0, |settings| settings.cache_bytes)];
    bounds.into_iter().filter(|bound| *bound > 0).min().unwrap_or(0)
}

fn free_of(room: &StatVfs) -> (u64, u64) {
    (room.f_bfree.saturating_mul(room.f_frsize), room.f_ffree)
}

impl Bound {
    pub(super) fn new(limit: u64) -> Self {
        let limit = AtomicU64::new(limit);
        let (walking, refusing) = (Mutex::new(Rank::Walk, ()), AtomicBool::new(false));
        Self { limit, counted: Mutex::default(), walking, refusing }
    }

    /// 0: none.
    pub(super) fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Counts what the cache has taken.
    fn count(&self, cache: &Cache) -> io::Result<()> {
        let Some(_walking) = self.walking.try_lock() else { return Ok(()) };
        let began = Instant::now();
        let free = cache.free()?;
        let bytes = cache.bytes()?;
        *self.counted.lock() = Counted { bytes, free, ended: Some(Instant::now()), took: began.elapsed() };
        Ok(())
    }

    /// Something has changed since the last walk, and another one may be made.
    fn is_due(&self, free: (u64, u64)) -> bool {
        let counted = self.counted.lock();
        counted
            .ended
            .is_none_or(|ended| counted.free != free && ended.elapsed() >= counted.took.saturating_mul(WALKS))
    }

    /// Another walk may be made while a program waits.
    fn is_quick(&self) -> bool {
        let counted = self.counted.lock();
        counted.ended.is_some() && counted.took <= QUICK
    }

    /// Bytes that the cache has taken, when so much is `free` in its file systems.
    pub(super) fn taken(&self, free: (u64, u64)) -> u64 {
        let counted = self.counted.lock();
        if counted.ended.is_none() {
            return 0;
        }
        let (then, now) = (counted.free.0, free.0);
        counted.bytes.saturating_add(then.saturating_sub(now)).saturating_sub(now.saturating_sub(then))
    }

    fn is_reached(&self, free: (u64, u64)) -> bool {
        self.limit() > 0 && self.taken(free) >= self.limit()
    }

    /// The `room` of a store's file system as far as the bound lets it be used, when so much is
    /// `free` in all.
    pub(super) fn narrow(&self, mut room: StatVfs, free: (u64, u64)) -> StatVfs {
        let limit = self.limit();
        if limit > 0 {
            let block = room.f_frsize.max(1);
            let left = limit.saturating_sub(self.taken(free)) / block;
            room.f_blocks = room.f_blocks.min(limit / block);
            room.f_bfree = room.f_bfree.min(left);
            room.f_bavail = room.f_bavail.min(left);
        }
        room
    }
}

impl Node {
    /// The job's bound, from a coordinator that attaches.
    pub(super) fn follow_bound(&self, limit: u64) {
        if self.bound.limit.swap(limit, Ordering::Relaxed) != limit {
            self.count_in_background();
        }
    }

    /// Counts what the cache has taken, if that may have changed, and looks at the room then.
    pub(super) fn count_in_background(&self) {
        if self.bound.limit() == 0 {
            return;
        }
        let me = self.me.clone();
        self.lanes.room.run(move || {
            let Some(node) = me.upgrade() else { return };
            node.count_if_due();
            node.look_at_room(Moment::Meanwhile);
        });
    }

    fn count_if_due(&self) {
        let counted = self
            .cache
            .free()
            .and_then(|free| if self.bound.is_due(free) { self.bound.count(&self.cache) } else { Ok(()) });
        if let Err(error) = counted {
            self.events.warning(None, &format!("the cache's bytes cannot be counted: {error}"));
        }
    }

    /// Room that programs have in a store.
    pub(super) fn room_in(&self, store: usize) -> io::Result<StatVfs> {
        Ok(self.narrowed(self.cache.room_of(store)?))
    }

    /// What of a store's room programs may use.
    pub(super) fn narrowed(&self, room: StatVfs) -> StatVfs {
        if self.bound.limit() == 0 {
            return room;
        }
        let free = if self.cache.is_one() { Ok(free_of(&room)) } else { self.cache.free() };
        match free {
            Ok(free) => self.bound.narrow(room, free),
            Err(_) => room,
        }
    }

    /// A file of a dataset is to be made, or a sealed one to be changed: ENOSPC if the bound has
    /// been reached and nothing may leave the cache.
    pub(super) fn may_grow(&self) -> Result<(), Errno> {
        let reached = || self.cache.free().is_ok_and(|free| self.bound.is_reached(free));
        if self.bound.limit() == 0 || !reached() {
            self.bound.refusing.store(false, Ordering::Relaxed);
            return Ok(());
        }
        if self.bound.is_quick() {
            // Others may have taken what seems to be ours.
            self.count_if_due();
        }
        if !reached() || self.may_get_room() {
            return Ok(());
        }
        if !self.bound.refusing.swap(true, Ordering::Relaxed) {
            let limit = self.bound.limit();
            self.events.warning(None, &format!(
                "SCRFS_CACHE_BYTES: the cache has reached {limit} bytes, and nothing may leave it; new files are refused"
            ));
        }
        Err(Errno(libc::ENOSPC))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::RelPath;
    use crate::stores::Stores;
    use std::sync::Arc;

    fn cache(directory: &std::path::Path) -> Cache {
        Cache::open(Arc::new(Stores::one(directory)), RelPath::root()).unwrap()
    }

    #[test]
    fn bytes_are_counted_once_and_room_is_what_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let cache = cache(dir.path());
        std::fs::create_dir_all(dir.path().join("tree/d")).unwrap();
        std::fs::write(dir.path().join("tree/d/f"), vec![1; 300_000]).unwrap();
        std::fs::hard_link(dir.path().join("tree/d/f"), dir.path().join("aside")).unwrap();
        let sparse = std::fs::File::create(dir.path().join("sparse")).unwrap();
        sparse.set_len(1 << 30).unwrap();
        let bytes = cache.bytes().unwrap();
        assert!((300_000..400_000).contains(&bytes), "{bytes}");

        let bound = Bound::new(1 << 20);
        let (room, free) = (cache.room_of(0).unwrap(), cache.free().unwrap());
        let block = room.f_frsize;
        assert_eq!(bound.taken(free), 0, "not known yet");
        assert!(bound.is_due(free));
        bound.count(&cache).unwrap();
        // As it was when it was counted, less `bytes`: others' files are no matter of this test.
        let less = |bytes: u64| {
            let mut room = cache.room_of(0).unwrap();
            room.f_bfree = (bound.counted.lock().free.0 - bytes) / block;
            room.f_bavail = room.f_bfree;
            room
        };
        let narrow = |room: StatVfs| {
            let free = free_of(&room);
            bound.narrow(room, free)
        };
        let narrowed = narrow(less(0));
        assert_eq!(narrowed.f_blocks, (1 << 20) / block);
        assert_eq!(narrowed.f_bavail, ((1 << 20) - bytes) / block);
        assert!(!bound.is_reached(free_of(&less(0))));
        assert_eq!(narrow(less(1 << 20)).f_bavail, 0);
        assert!(bound.is_reached(free_of(&less(1 << 20))));
        bound.limit.store(0, Ordering::Relaxed);
        assert_eq!(narrow(less(1 << 20)).f_bfree, less(1 << 20).f_bfree);
        assert!(!bound.is_reached(free_of(&less(1 << 20))));
    }
}

//! The stores of one mount: cache directories in several file systems (`scrfs/docs/semantics.md`,
//! Stores).
//!
//! A dataset, that is, a directory of the checkpoint path with all that belongs to it, is in one
//! store. Which one is decided when the directory is made, or when a dataset comes to a node that
//! never had its directory: the store that the descriptor with the longest interval names which
//! divides the checkpoint id; where that names none, or none that this mount has, the store with
//! most room. After that the file systems themselves tell: the directory is where it is.
//!
//! The first store is the *primary*. Loose files, flat datasets and scratch are there, and all that
//! has no better place.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::dataset::Protections;
use crate::lock::RwLock;

/// Position of the primary store.
pub const PRIMARY: usize = 0;

/// One store of a mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Its entry in `SCR_CACHE_BASE`.
    pub base: PathBuf,
    /// The job's cache directory in it.
    pub cache: PathBuf,
}

impl Place {
    /// What programs see of it.
    pub fn tree(&self) -> PathBuf {
        self.cache.join("tree")
    }
}

/// See the module. Shared by the tree and the node.
#[derive(Debug)]
pub struct Stores {
    places: Vec<Place>,
    protections: RwLock<Protections>,
    /// The highest id that was given so far.
    seen: AtomicU64,
}

impl Stores {
    /// A mount over `primary` and `others`.
    pub fn new(primary: Place, others: Vec<Place>, protections: Protections) -> Self {
        let places = std::iter::once(primary).chain(others).collect();
        Self { places, protections: RwLock::leaf(protections), seen: AtomicU64::new(0) }
    }

    /// A mount over one.
    pub fn one(cache: &Path) -> Self {
        let base = cache.ancestors().nth(2).unwrap_or(cache).to_owned();
        let protections = Protections::default();
        Self::new(Place { base, cache: cache.to_owned() }, Vec::new(), protections)
    }

    /// All of them, the primary first.
    pub fn places(&self) -> &[Place] {
        &self.places
    }

    /// There is no other than the primary.
    pub fn is_one(&self) -> bool {
        self.places.len() == 1
    }

    /// The job's descriptors.
    pub fn follow(&self, protections: &Protections) {
        if *self.protections.read() != *protections {
            *self.protections.write() = protections.clone();
        }
    }

    /// Dataset `id` has its id.
    pub fn seen(&self, id: u64) {
        self.seen.fetch_max(id, Ordering::Relaxed);
    }

    /// Where the directory goes that is made next.
    pub fn next(&self) -> usize {
        self.of(self.seen.load(Ordering::Relaxed).saturating_add(1))
    }

    /// Where dataset `id` goes if nothing of it is anywhere.
    pub fn of(&self, id: u64) -> usize {
        if self.is_one() {
            return PRIMARY;
        }
        let named = {
            let protections = self.protections.read();
            protections.of(id).store.as_deref().and_then(|store| self.position(store))
        };
        named.unwrap_or_else(|| most(self.places.iter().map(|place| room(&place.cache))))
    }

    fn position(&self, base: &[u8]) -> Option<usize> {
        use std::os::unix::ffi::OsStrExt;
        let base = Path::new(std::ffi::OsStr::from_bytes(base));
        self.places.iter().position(|place| place.base == base)
    }
}

/// Of equal ones the first.
fn most(rooms: impl Iterator<Item = u64>) -> usize {
    let best = rooms.enumerate().max_by_key(|(at, room)| (*room, std::cmp::Reverse(*at)));
    best.map_or(PRIMARY, |(at, _)| at)
}

/// Bytes that can be written there; of what cannot be asked none.
fn room(cache: &Path) -> u64 {
    rustix::fs::statvfs(cache).map_or(0, |room| room.f_bavail.saturating_mul(room.f_frsize))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::protection::to_stores;

    fn stores(named: &[(u32, &str)]) -> Stores {
        let place = |base: &str| Place { base: base.into(), cache: "/none/such/directory".into() };
        Stores::new(place("/dev/shm"), vec![place("/ssd"), place("/hdd")], to_stores(named))
    }

    #[test]
    fn the_store_that_a_datasets_protection_names_has_it() {
        let stores = stores(&[(1, "/dev/shm"), (4, "/ssd"), (12, "/hdd"), (4, "/hdd")]);
        let chosen: Vec<usize> = (1..=12).map(|id| stores.of(id)).collect();
        assert_eq!(chosen, [0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 2]);
        stores.seen(7);
        stores.seen(3);
        assert_eq!(stores.next(), 1, "the directory for 8");
        // No rule for it, one without a store, one whose store is not here: room decides, of equal
        // ones the first.
        stores.follow(&to_stores(&[(2, "/ssd"), (3, ""), (5, "/nvme")]));
        assert_eq!([1, 2, 3, 5, 6].map(|id| stores.of(id)), [0, 1, 0, 0, 0]);
    }

    #[test]
    fn most_room_wins_and_of_equal_ones_the_first() {
        assert_eq!(most([1, 3, 3].into_iter()), 1);
        assert_eq!(most([3, 3, 1].into_iter()), 0);
        assert_eq!(most(std::iter::empty()), 0);
        let dir = tempfile::tempdir().unwrap();
        let here = Place { base: "/here".into(), cache: dir.path().to_owned() };
        let away = Place { base: "/away".into(), cache: dir.path().join("none") };
        assert_eq!(Stores::new(away, vec![here], to_stores(&[])).next(), 1);
        assert_eq!(Stores::one(Path::new("/x/user/scr.1")).places()[0].base, Path::new("/x"));
    }
}

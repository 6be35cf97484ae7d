//! What programs see, and what they may do now.
//!
//! In reading order: `place` says what a path means, `rules` what the job's settings make of names;
//! `sealed` is how one sealed dataset is seen, and `world` all that an operation must respect at
//! the moment; `votes` and `moves` are the rules for directory operations and for rename(2),
//! `lifetimes` how long the kernel may keep what it is told. What decides opens no file and asks no
//! clock: what is in the trees, or in /proc, is handed in. [`View`] is what threads share of it.

mod lifetimes;
mod moves;
mod place;
mod rules;
mod sealed;
#[cfg(test)]
mod tests;
mod votes;
mod world;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

pub(crate) use self::lifetimes::{LOCAL, Lifetimes};
pub(crate) use self::moves::{Move, Scope};
pub(crate) use self::place::{Namespace, Place, RESERVED_AT_ROOT};
pub(crate) use self::rules::{FlatName, Rules};
pub(crate) use self::sealed::{Name, Sealed};
pub(crate) use self::votes::Target;
pub(crate) use self::world::{World, paths_of};
use crate::lock::{Rank, ReadGuard, RwLock, WriteGuard};
use crate::path::RelPath;

/// What is seen through one mount.
pub(crate) struct View {
    names: Namespace,
    /// The job's, as they are now.
    rules: RwLock<Arc<Rules>>,
    /// They have a pattern: beside the lock, for each name that is looked up asks.
    has_pattern: AtomicBool,
    world: RwLock<World>,
}

impl View {
    pub(crate) fn new(names: Namespace) -> Self {
        let world = RwLock::new(Rank::World, World::default());
        Self { names, rules: RwLock::default(), has_pattern: AtomicBool::new(false), world }
    }

    pub(crate) fn names(&self) -> &Namespace {
        &self.names
    }

    /// Where `path` is.
    pub(crate) fn place(&self, path: &RelPath) -> Place {
        self.names.place(path)
    }

    /// Held from a check to the last system call that rests on it.
    pub(crate) fn world(&self) -> ReadGuard<'_, World> {
        self.world.read()
    }

    /// Waits for all operations that are under way.
    pub(crate) fn change(&self) -> WriteGuard<'_, World> {
        self.world.write()
    }

    pub(crate) fn rules(&self) -> Arc<Rules> {
        Arc::clone(&self.rules.read())
    }

    /// There is a pattern that says which files of the checkpoint path are of which dataset.
    pub(crate) fn has_pattern(&self) -> bool {
        self.has_pattern.load(Ordering::Relaxed)
    }

    /// Other rules hold from now on; those of before.
    pub(crate) fn follow(&self, rules: Arc<Rules>) -> Arc<Rules> {
        let has_pattern = rules.dataset_pattern.is_some();
        let before = std::mem::replace(&mut *self.rules.write(), rules);
        self.has_pattern.store(has_pattern, Ordering::Relaxed);
        before
    }

    /// A regular file that gets this name marks its dataset.
    pub(crate) fn is_mark(&self, place: &Place) -> bool {
        place.is_marker() || self.rules().marks(place)
    }

    /// `path` is the top of a sealed dataset that programs see.
    pub(crate) fn is_listed(&self, path: &RelPath) -> bool {
        let place = self.place(path);
        matches!(place, Place::Entry(_)) && self.world().base(&place).is_some()
    }
}

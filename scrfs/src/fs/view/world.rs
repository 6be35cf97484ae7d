//! What the mounted tree must respect at the moment: held names, frozen datasets, sealed datasets
//! and those of which the next generation has begun.
//!
//! Every operation reads this under one lock from its check to its last system call, and who
//! changes it takes the lock for writing; so nothing slips in between a freeze, or a vote, and what
//! follows from it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::place::Place;
use super::sealed::Sealed;
use crate::control::DirOp;
use crate::ids::DatasetId;
use crate::path::RelPath;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct World {
    holds: Vec<DirOp>,
    frozen: HashSet<Vec<u8>>,
    /// Frozen datasets whose seal still waits for writers; and whether operations went on there.
    awaiting: HashMap<Vec<u8>, AtomicBool>,
    sealed: HashMap<Vec<u8>, Arc<Sealed>>,
    presentations: u64,
}

/// Paths that an operation concerns.
pub(crate) fn paths_of(op: &DirOp) -> impl Iterator<Item = &RelPath> {
    let (one, two) = match op {
        DirOp::Make { path, .. } | DirOp::Remove { path } => (path, None),
        DirOp::Rename { from, to, .. } => (from, Some(to)),
    };
    std::iter::once(one).chain(two)
}

impl World {
    /// A prepared directory operation concerns `path` or a directory above it.
    pub(crate) fn held(&self, path: &RelPath) -> bool {
        self.holds.iter().flat_map(paths_of).any(|held| path.strip(held).is_some())
    }

    pub(crate) fn hold(&mut self, op: DirOp) {
        if !self.holds.contains(&op) {
            self.holds.push(op);
        }
    }

    pub(crate) fn release(&mut self, op: &DirOp) {
        self.holds.retain(|held| held != op);
    }

    /// A restart presents datasets.
    pub(crate) fn present(&mut self) {
        self.presentations += 1;
    }

    /// How often one has done so.
    pub(crate) fn presentations(&self) -> u64 {
        self.presentations
    }

    pub(crate) fn freeze(&mut self, name: &[u8]) {
        self.frozen.insert(name.to_vec());
    }

    pub(crate) fn thaw(&mut self, name: &[u8]) {
        self.frozen.remove(name);
        self.awaiting.remove(name);
    }

    /// The seal of a frozen dataset waits for writers. True when operations that wait may go on
    /// now: the wait begins, or one of them went on and may have moved a file with a writer.
    pub(crate) fn begin_wait(&mut self, name: &[u8]) -> bool {
        if !self.frozen.contains(name) {
            return false;
        }
        match self.awaiting.get_mut(name) {
            Some(went_on) => std::mem::take(went_on.get_mut()),
            None => self.awaiting.insert(name.to_vec(), AtomicBool::new(false)).is_none(),
        }
    }

    /// It waits no longer. True when operations went on since [`World::begin_wait`].
    pub(crate) fn end_wait(&mut self, name: &[u8]) -> bool {
        self.awaiting.remove(name).is_some_and(AtomicBool::into_inner)
    }

    /// An operation has to wait until the frozen dataset of `place` is sealed. Not one on a file
    /// whose writer the seal itself waits for (`written`): the kernel has locked the file for the
    /// operation, and the writer needs that lock to get on.
    pub(crate) fn stops(&self, place: &Place, written: impl FnOnce() -> bool) -> bool {
        if !self.frozen(place) {
            return false;
        }
        let awaiting = place.dataset().and_then(|name| self.awaiting.get(name)).filter(|_| written());
        if let Some(went_on) = awaiting {
            went_on.store(true, Ordering::Relaxed);
        }
        awaiting.is_none()
    }

    /// `place` is in a frozen dataset, or is its directory.
    pub(crate) fn frozen(&self, place: &Place) -> bool {
        !self.frozen.is_empty() && place.dataset().is_some_and(|name| self.frozen.contains(name))
    }

    /// The sealed dataset that `place` names or is in, if it is seen as it was sealed.
    pub(crate) fn sealed(&self, place: &Place) -> Option<&Arc<Sealed>> {
        self.base(place).filter(|sealed| !sealed.has_next())
    }

    /// The sealed dataset that `place` names or is in, if its next generation has begun: the tree's
    /// names come first.
    pub(crate) fn open(&self, place: &Place) -> Option<&Arc<Sealed>> {
        self.base(place).filter(|sealed| sealed.has_next())
    }

    /// The sealed dataset that `place` names or is in.
    pub(crate) fn base(&self, place: &Place) -> Option<&Arc<Sealed>> {
        self.named(place.dataset()?)
    }

    /// The sealed dataset of that name.
    pub(crate) fn named(&self, name: &[u8]) -> Option<&Arc<Sealed>> {
        self.sealed.get(name)
    }

    pub(crate) fn by_id(&self, id: DatasetId) -> Option<&Arc<Sealed>> {
        self.sealed.values().find(|sealed| sealed.id() == id)
    }

    /// All sealed datasets.
    pub(crate) fn all_sealed(&self) -> impl Iterator<Item = &Arc<Sealed>> {
        self.sealed.values()
    }

    pub(crate) fn seal(&mut self, sealed: Arc<Sealed>) {
        self.thaw(sealed.name());
        self.sealed.insert(sealed.name().to_vec(), sealed);
    }

    pub(crate) fn unlist(&mut self, id: DatasetId) -> Option<Arc<Sealed>> {
        let name = self.sealed.values().find(|sealed| sealed.id() == id)?.name().to_vec();
        self.sealed.remove(&name)
    }
}

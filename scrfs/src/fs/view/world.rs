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
use crate::fs::errno::{Need, Stop};
use crate::fs::inodes::Key;
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

    /// A change is about to be made at `place`: if its dataset is sealed, the next generation has
    /// to begin first.
    pub(crate) fn need_open(&self, place: &Place) -> Result<(), Stop> {
        match self.sealed(place) {
            Some(sealed) => Err(Stop::Need(Need::NextGeneration(sealed.id()))),
            None => Ok(()),
        }
    }

    /// A directory gets the name of a sealed file that was removed on this node: all others have to
    /// hear of that first.
    pub(crate) fn need_gone(&self, path: &RelPath, place: &Place) -> Result<(), Stop> {
        match self.base(place) {
            Some(sealed) if !place.is_marker() && sealed.is_removed_here(&place.inner()) => {
                Err(Stop::Need(Need::Gone(path.clone())))
            }
            _ => Ok(()),
        }
    }

    /// May a file be resized now? `written` as for [`World::stops`].
    pub(crate) fn may_resize(
        &self,
        path: &RelPath,
        place: &Place,
        written: impl FnOnce() -> bool,
    ) -> Result<(), Stop> {
        if !place.is_marker() && self.held(path) {
            return Err(Stop::Wait);
        }
        if matches!(place, Place::Inside { .. }) { self.may_describe(place, written) } else { Ok(()) }
    }

    /// May a name get another mode, owner or times now? A seal takes those, too. `written` as for
    /// [`World::stops`].
    pub(crate) fn may_describe(&self, place: &Place, written: impl FnOnce() -> bool) -> Result<(), Stop> {
        if !place.is_marker() && self.stops(place, written) { Err(Stop::Frozen) } else { Ok(()) }
    }

    /// The file without a name is still a sealed dataset's.
    pub(crate) fn keeps(&self, key: Key) -> bool {
        self.all_sealed().any(|sealed| sealed.is_kept(key))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::view::tests::{at, path, world};

    #[test]
    fn what_is_frozen_waits_save_for_files_that_the_seal_waits_for() {
        let mut world = world();
        let place = at("ck/a");
        assert!(!world.stops(&place, || false) && !world.begin_wait(b"ck"));
        world.freeze(b"ck");
        assert!(world.stops(&place, || true), "nobody waits for writers yet");
        assert!(world.begin_wait(b"ck"));
        assert!(world.stops(&place, || false) && !world.stops(&place, || true));
        assert!(!world.stops(&at("other/a"), || false));
        assert!(world.begin_wait(b"ck"), "one has gone on");
        assert!(!world.begin_wait(b"ck"));
        assert!(!world.end_wait(b"ck"));
        world.thaw(b"ck");
        assert!(!world.stops(&place, || false));
    }

    #[test]
    fn what_is_below_a_held_name_is_held() {
        let mut world = world();
        let op = DirOp::Remove { path: path("d") };
        world.hold(op.clone());
        assert!(world.held(&path("d")) && world.held(&path("d/a")) && !world.held(&path("da")));
        assert_eq!(world.may_resize(&path("d/a"), &at("d/a"), || false), Err(Stop::Wait));
        world.release(&op);
        assert_eq!(world.may_resize(&path("d/a"), &at("d/a"), || false), Ok(()));
    }

    #[test]
    fn a_sealed_dataset_is_not_changed_before_its_next_generation_has_begun() {
        let world = world();
        let next = Err(Stop::Need(Need::NextGeneration(DatasetId(1))));
        assert_eq!(
            [at("sealed/a"), at("open/a"), at("new")].map(|place| world.need_open(&place)),
            [next, Ok(()), Ok(())]
        );
        world.named(b"open").unwrap().hide(path("a"));
        let gone = Err(Stop::Need(Need::Gone(path("open/a"))));
        assert_eq!(world.need_gone(&path("open/a"), &at("open/a")), gone);
        assert_eq!(world.need_gone(&path("open/here"), &at("open/here")), Ok(()));
    }

    #[test]
    fn names_on_other_nodes_are_those_that_the_tree_lacks() {
        let world = world();
        let open = world.named(b"open").unwrap();
        open.hide(path("a"));
        let tree = HashSet::from([b"here".to_vec(), b"new".to_vec()]);
        assert_eq!(open.names_elsewhere(&RelPath::root(), &tree), [b"changed".to_vec()]);
    }
}

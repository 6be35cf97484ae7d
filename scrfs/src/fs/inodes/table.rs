//! The inode table: the daemon's own numbers, what they stand for, and under which names they are
//! known.
//!
//! A number lives as long as the kernel knows it (its lookup count) or a child does, and is given
//! to nothing else. One lock guards the whole table, so that a lookup and a forget of one inode
//! cannot miss each other; no system call is made under it but for closing. A backing inode is
//! known by device and inode number; its descriptor is held open (O_PATH), so the file system below
//! cannot give that number to another file meanwhile. Of the many that nobody uses the descriptors
//! are closed, and opened again when they are needed: see `parked.rs`. `nodes.rs` is what the lock
//! guards, `inode.rs` what the others are given.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use super::gates::{Change, Gates};
use super::inode::{Backing, Inode, Key};
use super::nodes::Nodes;
use super::numbers::{ROOT, is_eye};
use super::parked::{Pool, too_many};
use super::partings::{Moment, Partings};
use crate::errno::Errno;
use crate::fs::bound::Bound;
use crate::fs::errno::fail;
use crate::fs::node::NodeLink;
use crate::keep::Keep;
use crate::keep::records::{KeptInode, SealedMark};
use crate::lock::{Mutex, Rank, ReadGuard};
use crate::path::RelPath;

/// All inodes that the kernel may ask about.
pub(crate) struct Table {
    pub(super) nodes: Arc<Mutex<Nodes>>,
    gates: Gates,
    partings: Partings,
    /// What programs may hold open has numbers below it.
    pub(super) bound: Bound,
    /// When programs were refused last, for the events.
    pub(super) told: Mutex<Option<Instant>>,
    pub(super) node: Arc<NodeLink>,
}

impl Table {
    /// A table with the root, kept in `keep` from now on.
    #[cfg(test)]
    pub(crate) fn new(root: Backing, keep: Arc<Keep>) -> Self {
        Self::over(vec![root], keep, Arc::default())
    }

    /// The same over the trees of several stores, of which there is at least one.
    pub(crate) fn over(roots: Vec<Backing>, keep: Arc<Keep>, node: Arc<NodeLink>) -> Self {
        Self::with_pool(roots, keep, Pool::new(), node)
    }

    fn with_pool(backings: Vec<Backing>, keep: Arc<Keep>, pool: Pool, node: Arc<NodeLink>) -> Self {
        let nodes = Arc::new_cyclic(|me| Mutex::new(Rank::Inodes, Nodes::new(backings, keep, pool, me)));
        let (gates, partings, bound) = (Gates::default(), Partings::default(), Bound::default());
        Self { nodes, gates, partings, bound, told: Mutex::default(), node }
    }

    /// See [`Gates::look`].
    pub(crate) fn look(&self, directory: u64) -> ReadGuard<'_, ()> {
        self.gates.look(directory)
    }

    /// See [`Gates::change`].
    pub(crate) fn change(&self, directory: u64) -> Change<'_> {
        self.gates.change(directory)
    }

    /// See [`Gates::change_two`].
    pub(crate) fn change_two(&self, one: u64, two: u64) -> Change<'_> {
        self.gates.change_two(one, two)
    }

    /// For [`Table::check`], from when a request comes.
    pub(crate) fn moment(&self) -> Moment {
        self.partings.now()
    }

    /// ESTALE if a name of inode `id` has got a file of its own after `since`.
    pub(crate) fn check(&self, id: u64, since: Moment) -> Result<(), Errno> {
        self.partings.check(id, since)
    }

    /// `name` has got a file of its own: inode `id` keeps its other names.
    pub(crate) fn part(&self, parent: u64, name: &[u8], id: u64) {
        self.cut(parent, name);
        self.partings.part(id);
    }

    /// The inode of that number; ESTALE when it is not known. What is not on the tree does not
    /// change: EPERM.
    pub(crate) fn get(&self, id: u64) -> Result<Arc<Inode>, Errno> {
        let unknown = || Errno(if is_eye(id) { libc::EPERM } else { libc::ESTALE });
        self.nodes.lock().inode(id).ok_or_else(unknown)
    }

    /// The number that `name` has now, if it is known.
    pub(crate) fn known(&self, parent: u64, name: &[u8]) -> Option<u64> {
        self.nodes.lock().named(parent, name)
    }

    /// The number that backing inode `number` of a store's device (`None`: the primary's) has, or
    /// would be given.
    pub(crate) fn number_of(&self, device: Option<u64>, number: u64) -> Option<u64> {
        let nodes = self.nodes.lock();
        let key = (device.or_else(|| nodes.devices.first().copied())?, number);
        nodes.number(key).or_else(|| nodes.own_number(key))
    }

    /// Counts a lookup of a name that is known to stand for backing inode `key`.
    pub(crate) fn enter_known(&self, parent: u64, name: &[u8], key: Key) -> Option<Arc<Inode>> {
        let mut nodes = self.nodes.lock();
        let id = nodes.named(parent, name)?;
        if nodes.number(key) != Some(id) {
            return None;
        }
        nodes.count(id).ok()
    }

    /// Counts a lookup of `name`, which stands for `backing`; a new inode unless the backing is
    /// known already.
    pub(crate) fn enter(&self, parent: u64, name: &[u8], backing: Backing) -> Result<Arc<Inode>, Errno> {
        self.verify(parent, name, backing.key);
        let mut nodes = self.nodes.lock();
        let known = nodes.number(backing.key);
        let id = known.unwrap_or_else(|| nodes.add(Some(backing), SealedMark::default()));
        nodes.link(parent, name, id)?;
        nodes.count(id)
    }

    /// A parked inode's file may be gone, and its number another file's. When the number is found
    /// under a new name, the parked inode is opened by its old name; if that says ESTALE, the inode
    /// gives the number up.
    fn verify(&self, parent: u64, name: &[u8], key: Key) {
        let parked = self.nodes.lock().parked_elsewhere(parent, name, key);
        if let Some(inode) = parked
            && inode.fd().is_err_and(|error| error == Errno(libc::ESTALE))
        {
            self.nodes.lock().give_up(inode.id);
        }
    }

    /// Counts a lookup of a sealed `name`, which is `mark`: the inode it has, else a new one
    /// without backing.
    pub(crate) fn enter_sealed(
        &self,
        parent: u64,
        name: &[u8],
        mark: SealedMark,
    ) -> Result<Arc<Inode>, Errno> {
        let mut nodes = self.nodes.lock();
        let known = nodes.named(parent, name);
        let id = known.unwrap_or_else(|| nodes.add(None, mark));
        nodes.link(parent, name, id)?;
        nodes.count(id)
    }

    /// Gives an inode its backing, or another one. The number stays.
    pub(crate) fn attach(&self, inode: &Inode, backing: Backing) {
        let mut nodes = self.nodes.lock();
        if let Some(record) = inode.record {
            nodes.keep.set_backing(record, backing.kept());
        }
        let key = backing.key;
        nodes.stands_for(inode.id, key);
        let old = inode.backing.write().replace(backing.into());
        if let Some(old) = old.filter(|old| old.key != key) {
            nodes.stood_for(inode.id, old.key);
        }
    }

    /// Takes an inode's backing: it is not what its name stands for any more, and nobody has it
    /// open. The kernel, which may still know that name, looks it up again when it is told so
    /// (ESTALE).
    pub(crate) fn detach(&self, inode: &Inode) {
        let mut nodes = self.nodes.lock();
        let old = inode.backing.write().take();
        if let Some(record) = inode.record {
            nodes.keep.clear_backing(record);
        }
        if let Some(old) = old {
            nodes.stood_for(inode.id, old.key);
        }
    }

    /// The kernel forgets `count` lookups.
    pub(crate) fn forget(&self, id: u64, count: u64) {
        self.nodes.lock().forget(id, count);
    }

    /// See [`Nodes::nameless`].
    pub(crate) fn nameless(&self) -> HashSet<u64> {
        self.nodes.lock().nameless()
    }

    /// See [`Nodes::unknown`].
    pub(crate) fn unknown(&self, id: u64) {
        self.nodes.lock().unknown(id);
    }

    /// `name` is gone.
    pub(crate) fn cut(&self, parent: u64, name: &[u8]) {
        self.nodes.lock().cut(parent, name);
    }

    /// The names at and below `path` are gone, and the kernel may go on knowing what they stood
    /// for: bytes of it are held only where somebody has it open.
    pub(crate) fn let_tree_go(&self, path: &RelPath) {
        let top = self.find(path);
        self.let_below_go(path);
        if let Some(top) = top {
            self.nodes.lock().let_go(top);
        }
    }

    /// The same of a directory. It has no bytes itself, and who is in it or knows it may still ask
    /// about it.
    pub(crate) fn let_below_go(&self, path: &RelPath) {
        let Some((parent, name)) = self.known_above(path) else { return };
        let ids: Vec<u64> = {
            let nodes = self.nodes.lock();
            nodes.named(parent, name).into_iter().flat_map(|top| nodes.below(top)).collect()
        };
        self.nodes.lock().cut_tree(parent, name);
        for id in ids {
            self.nodes.lock().let_go(id);
        }
    }

    /// The number of the directory of `path`, if it is known, and the name there.
    pub(crate) fn known_above<'a>(&self, path: &'a RelPath) -> Option<(u64, &'a [u8])> {
        let (above, name) = path.split_last()?;
        Some((self.find(&above)?, name))
    }

    /// `path` stands for something else, or for nothing; false when its directory is not known.
    pub(crate) fn cut_path(&self, path: &RelPath) -> bool {
        self.known_above(path).is_some_and(|(parent, name)| {
            self.cut(parent, name);
            true
        })
    }

    /// Follows a rename below the mount. Under a parent that the kernel does not know nothing is
    /// known: what moved there is found again by its next lookup.
    pub(crate) fn move_names(&self, from: (&RelPath, &[u8]), to: (&RelPath, &[u8]), exchange: bool) {
        match (self.find(from.0), self.find(to.0)) {
            (Some(one), Some(two)) => self.rename((one, from.1), (two, to.1), exchange),
            (Some(one), None) => self.cut_tree(one, from.1),
            (None, Some(two)) => self.cut_tree(two, to.1),
            (None, None) => {}
        }
    }

    /// What `open` opens. Should there be no descriptor left for it, those that nobody uses are
    /// closed first.
    pub(crate) fn opening<T>(&self, open: impl Fn() -> Result<T, Errno>) -> Result<T, Errno> {
        open().or_else(|error| {
            if !too_many(error) {
                return Err(error);
            }
            self.nodes.lock().rest_all();
            open()
        })
    }

    /// All that nobody uses give up their descriptors.
    pub(crate) fn rest_all(&self) {
        self.nodes.lock().rest_all();
    }

    /// Something was closed: of the many that were in use some may not be any more.
    pub(crate) fn rest(&self) {
        self.nodes.lock().rest_some();
    }

    /// Nobody has it open any more, perhaps.
    pub(crate) fn closed(&self, id: u64) {
        self.nodes.lock().let_go(id);
    }

    /// `name` is gone with everything below it.
    pub(crate) fn cut_tree(&self, parent: u64, name: &[u8]) {
        self.nodes.lock().cut_tree(parent, name);
    }

    /// rename(2) succeeded.
    pub(crate) fn rename(&self, from: (u64, &[u8]), to: (u64, &[u8]), exchange: bool) {
        self.nodes.lock().rename(from, to, exchange);
    }

    /// The path of an inode, by its first name; `None` when it has none any more.
    pub(crate) fn path(&self, id: u64) -> Option<RelPath> {
        self.nodes.lock().path(id)
    }

    /// The path of `name` in directory `parent`; ENOENT when the directory was removed.
    pub(crate) fn path_in(&self, parent: u64, name: &[u8]) -> Result<RelPath, Errno> {
        if is_eye(parent) {
            return fail(libc::EPERM);
        }
        let dir = self.path(parent).ok_or(Errno(libc::ENOENT))?;
        Ok(dir.join(name)?)
    }

    /// Takes in inodes that a predecessor left, without names; [`Table::link_kept`] gives them
    /// those.
    pub(crate) fn take_in(&self, kept: Vec<(KeptInode, Option<Backing>)>) -> Vec<Arc<Inode>> {
        let mut nodes = self.nodes.lock();
        kept.into_iter().map(|(kept, backing)| nodes.take_in(&kept, backing)).collect()
    }

    /// Inode `id` is at `path`, as far as the directories on the way are known.
    pub(crate) fn link_kept(&self, path: &RelPath, id: u64) {
        if let Some((parent, name)) = self.known_above(path) {
            let _ = self.nodes.lock().link(parent, name, id);
        }
    }

    /// Drops what a predecessor had begun to enter.
    pub(crate) fn drop_idle(&self) {
        let mut nodes = self.nodes.lock();
        for id in nodes.ids() {
            nodes.linger(id);
        }
    }

    /// The numbers of all known inodes below directory `id`.
    pub(crate) fn below(&self, id: u64) -> Vec<u64> {
        self.nodes.lock().below(id)
    }

    /// The number of the inode at `path`, if all names on the way are known.
    pub(crate) fn find(&self, path: &RelPath) -> Option<u64> {
        let nodes = self.nodes.lock();
        path.names().try_fold(ROOT, |dir, name| nodes.named(dir, name))
    }
}

#[cfg(test)]
mod tests {
    use super::super::nodes::Held;
    use super::super::numbers::{OWN_BOUND, STORE_SHIFT};
    use super::*;

    fn backing(n: u64) -> Backing {
        let fd = std::fs::File::open("/dev/null").unwrap();
        Backing { fd: Arc::new(fd.into()), key: (7, n) }
    }

    fn table() -> Table {
        Table::new(backing(1), Arc::new(Keep::alone().unwrap()))
    }

    fn path(text: &str) -> Option<RelPath> {
        RelPath::new(text).ok()
    }

    fn opened(path: &std::path::Path) -> Backing {
        let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::NOFOLLOW;
        let fd = rustix::fs::open(path, flags, rustix::fs::Mode::empty()).unwrap();
        let stat = rustix::fs::fstat(&fd).unwrap();
        Backing { fd: Arc::new(fd), key: (stat.st_dev, stat.st_ino) }
    }

    #[test]
    fn descriptors_that_nobody_uses_are_closed_and_opened_again() {
        let dir = tempfile::tempdir().unwrap();
        let keep = Arc::new(Keep::alone().unwrap());
        let table =
            Table::with_pool(vec![opened(dir.path())], Arc::clone(&keep), Pool::of(2), Arc::default());
        let enter = |name: &str| {
            std::fs::write(dir.path().join(name), name).unwrap();
            table.enter(ROOT, name.as_bytes(), opened(&dir.path().join(name))).unwrap()
        };
        let is_open = |id| match &table.nodes.lock().get(id).unwrap().held {
            Held::Used(inode) => inode.key().is_some() && !inode.is_parked(),
            Held::Idle { .. } => false,
        };
        let used = enter("used");
        let ids: Vec<u64> = ["a", "b", "c", "d"].into_iter().map(|name| enter(name).id).collect();
        assert_eq!(ids.iter().filter(|&&id| is_open(id)).count(), 1);
        assert!(is_open(used.id) && !is_open(ids[0]));
        assert_eq!(keep.inodes().filter(|kept| kept.backing.is_none()).count(), 3);

        // It moves, gets another name, is opened again.
        std::fs::rename(dir.path().join("a"), dir.path().join("z")).unwrap();
        table.rename((ROOT, b"a"), (ROOT, b"z"), false);
        std::fs::hard_link(dir.path().join("z"), dir.path().join("y")).unwrap();
        assert_eq!(table.enter(ROOT, b"y", opened(&dir.path().join("y"))).unwrap().id, ids[0]);
        assert!(table.get(ids[0]).unwrap().fd().is_ok());
        assert!(is_open(ids[0]));

        // It is removed, with and without the table's knowledge.
        std::fs::remove_file(dir.path().join("b")).unwrap();
        table.cut(ROOT, b"b");
        assert_eq!(table.get(ids[1]).unwrap().fd().unwrap_err(), Errno(libc::ESTALE));
        let inode = table.get(ids[2]).unwrap();
        let key = inode.key().unwrap();
        assert!(!is_open(ids[2]));
        std::fs::remove_file(dir.path().join("c")).unwrap();
        let other = Backing { key, ..opened(&dir.path().join("d")) };
        assert_ne!(table.enter(ROOT, b"e", other).unwrap().id, ids[2], "its number is another's");
        assert!(inode.backing().is_none());
    }

    #[test]
    fn numbers_of_two_stores_differ_and_are_found_again() {
        let other = Backing { key: (9, 1), ..backing(1) };
        let table = Table::over(vec![backing(1), other], Arc::new(Keep::alone().unwrap()), Arc::default());
        let in_other = |n| Backing { key: (9, n), ..backing(n) };
        let one = table.enter(ROOT, b"one", backing(5)).unwrap();
        let two = table.enter(ROOT, b"two", in_other(5)).unwrap();
        assert_eq!(one.id, 5);
        assert_ne!(two.id, one.id);
        assert!(!is_eye(two.id));
        assert_eq!(table.number_of(Some(9), 5), Some(two.id), "as a listing tells it");
        let number = two.id;
        drop(two);
        table.forget(number, 1);
        table.nodes.lock().let_lingering_go();
        assert!(table.get(number).is_err());
        assert_eq!(table.enter(ROOT, b"two", in_other(5)).unwrap().id, number, "it is the same file");
        // A third file system's are counted.
        let third = table.enter(ROOT, b"three", Backing { key: (10, 5), ..backing(5) }).unwrap();
        assert!(third.id >= OWN_BOUND && third.id < 1 << STORE_SHIFT);
    }

    #[test]
    fn a_number_that_the_kernel_still_knows_is_given_to_nothing_else() {
        let table = table();
        let key = (7, 5);
        let old = table.enter(ROOT, b"d", backing(5)).unwrap().id;
        table.let_tree_go(&RelPath::new("d").unwrap());
        let new = table.enter(ROOT, b"d", backing(5)).unwrap().id;
        assert_ne!(new, old);
        let is_new = || {
            assert_eq!(table.known(ROOT, b"d"), Some(new));
            assert_eq!(table.number_of(None, 5), Some(new));
            assert_eq!(table.enter_known(ROOT, b"d", key).unwrap().id, new);
            assert_eq!(table.enter(ROOT, b"d", backing(5)).unwrap().id, new);
        };
        is_new();
        table.closed(old);
        is_new();
        table.forget(old, 1);
        is_new();
        table.closed(new);
        is_new();
    }

    #[test]
    fn numbers_live_with_their_lookups_and_children() {
        let table = table();
        let dir = table.enter(ROOT, b"d", backing(2)).unwrap();
        let file = table.enter(dir.id, b"f", backing(3)).unwrap();
        assert!(table.enter_known(dir.id, b"f", (7, 3)).is_some());
        assert!(table.enter_known(dir.id, b"f", (7, 4)).is_none());
        table.forget(dir.id, 1);
        assert_eq!(table.path(file.id), path("d/f"), "a child keeps its parents");
        table.forget(file.id, 2);
        assert!(table.get(file.id).is_ok(), "for a while");
        table.nodes.lock().let_lingering_go();
        assert!(table.get(file.id).is_err() && table.get(dir.id).is_err());
        assert_eq!(table.enter(ROOT, b"d", backing(2)).unwrap().id, dir.id, "it is the same file");
    }

    #[test]
    fn hard_links_share_and_renames_move() {
        let table = table();
        let a = table.enter(ROOT, b"a", backing(2)).unwrap();
        assert_eq!(table.enter(ROOT, b"b", backing(2)).unwrap().id, a.id);
        table.cut(ROOT, b"a");
        assert_eq!(table.path(a.id), path("b"));
        let c = table.enter(ROOT, b"c", backing(3)).unwrap();
        table.rename((ROOT, b"b"), (ROOT, b"c"), true);
        assert_eq!((table.path(a.id), table.path(c.id)), (path("c"), path("b")));
        table.rename((ROOT, b"c"), (ROOT, b"b"), false);
        assert_eq!((table.path(a.id), table.path(c.id)), (path("b"), None));
    }

    #[test]
    fn a_name_that_changed_below_is_another_inode() {
        let table = table();
        let old = table.enter(ROOT, b"x", backing(2)).unwrap();
        let new = table.enter(ROOT, b"x", backing(9)).unwrap();
        assert_ne!(old.id, new.id);
        assert_eq!((table.path(old.id), table.path(new.id)), (None, path("x")));
    }

    #[test]
    fn a_sealed_name_keeps_its_number_when_its_bytes_come() {
        let table = table();
        let remote = table.enter_sealed(ROOT, b"s", SealedMark::default()).unwrap();
        assert!(remote.fd().is_err());
        table.attach(&remote, backing(5));
        assert_eq!(table.enter(ROOT, b"s", backing(5)).unwrap().id, remote.id);
        table.attach(&remote, backing(6));
        assert_ne!(table.enter(ROOT, b"other", backing(5)).unwrap().id, remote.id);
    }

    #[test]
    fn a_cut_tree_leaves_no_paths() {
        let table = table();
        let d = table.enter(ROOT, b"d", backing(2)).unwrap();
        let e = table.enter(d.id, b"e", backing(3)).unwrap();
        let f = table.enter(e.id, b"f", backing(4)).unwrap();
        table.cut_tree(ROOT, b"d");
        assert!([d.id, e.id, f.id].iter().all(|&id| table.path(id).is_none()));
        assert!(table.get(f.id).is_ok(), "the kernel still knows it");
    }
}

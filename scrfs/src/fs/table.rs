//! The inode table: the daemon's own numbers, what they stand for, and under which names they are known.
//!
//! A number lives as long as the kernel knows it (its lookup count) or a child does, and is given to nothing else. One
//! lock guards the whole table, so that a lookup and a forget of one inode cannot miss each other; no system call is
//! made under it but for closing. A backing inode is known by device and inode number; its descriptor is held open
//! (O_PATH), so the file system below cannot give that number to another file meanwhile. Of the many that nobody uses the
//! descriptors are closed, and opened again when they are needed: see `parked.rs`.

use std::any::Any;
use std::collections::HashMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, RwLock};

use super::eyes::is_eye;
use super::parked::{self, Names, Pool};
use crate::daemon::boundary::Errno;
use crate::keep::Keep;
use crate::keep::records::{KeptFd, KeptInode, SealedMark};
use crate::path::{PATH_BYTES_MAX, RelPath};

/// The root's number, as FUSE wants it.
pub const ROOT: u64 = 1;

/// Numbers from here on are not those of backing inodes. (xfs comes near it on file systems of an exbibyte.)
const OWN_BOUND: u64 = 1 << 56;

/// Where a number says in which other store its inode is: above those that are counted up from [`OWN_BOUND`], and below
/// those of files that are not there ([`super::eyes`]).
const STORE_SHIFT: u32 = 57;
const STORES_MAX: u64 = 1 << 5;

/// The number of a backing inode in the file system of a store, where it can be ours too.
fn own_number(devices: &[u64], key: Key) -> Option<u64> {
    let store = devices.iter().position(|device| *device == key.0)? as u64;
    let fits = key.1 > ROOT && key.1 < OWN_BOUND && store < STORES_MAX;
    fits.then_some(store << STORE_SHIFT | key.1)
}

/// Device and inode number of a backing inode.
pub(crate) type Key = (u64, u64);

/// A file below the mount, as the tree holds it.
#[derive(Debug, Clone)]
pub(crate) struct Backing {
    /// Opened with O_PATH and O_NOFOLLOW.
    pub(crate) fd: Arc<OwnedFd>,
    /// What it is known by.
    pub(crate) key: Key,
}

impl Backing {
    /// As the state memory has it.
    pub(crate) fn kept(&self) -> KeptFd {
        KeptFd { number: self.fd.as_raw_fd(), key: self.key }
    }
}

/// What an inode stands for below. Without a descriptor it is parked.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) key: Key,
    pub(super) fd: Option<Arc<OwnedFd>>,
}

impl From<Backing> for Known {
    fn from(backing: Backing) -> Self {
        Self { key: backing.key, fd: Some(backing.fd) }
    }
}

/// One inode. Without backing it is a sealed name whose bytes were not asked for yet, or are on another node.
#[derive(Debug)]
pub struct Inode {
    /// Its number.
    pub id: u64,
    /// Its record in the state memory.
    pub(crate) record: Option<u32>,
    pub(super) backing: RwLock<Option<Known>>,
    pub(super) table: Weak<Mutex<Inner>>,
    /// Open handles through which a program may map it and store: of what it does then the kernel tells nobody.
    pub(crate) mappable: AtomicU32,
    /// Its names went with its dataset: what is not open has no bytes here any more.
    pub(crate) let_go: AtomicBool,
    /// The adapter's passthrough registration, shared by all open handles.
    pub(crate) passthrough: Mutex<Option<Weak<dyn Any + Send + Sync>>>,
}

impl Inode {
    fn new(id: u64, record: Option<u32>, known: Option<Known>, table: Weak<Mutex<Inner>>) -> Arc<Self> {
        Arc::new(Self {
            id,
            record,
            backing: RwLock::new(known),
            table,
            mappable: AtomicU32::new(0),
            let_go: AtomicBool::new(false),
            passthrough: Mutex::new(None),
        })
    }

    /// One that is in no table, and has no file behind it.
    pub(crate) fn nowhere(id: u64) -> Arc<Self> {
        Self::new(id, None, None, Weak::new())
    }

    /// The backing, if it has one now.
    pub(crate) fn backing(&self) -> Option<Backing> {
        self.open().ok()
    }

    /// Its O_PATH descriptor; ESTALE without backing.
    pub(crate) fn fd(&self) -> Result<Arc<OwnedFd>, Errno> {
        self.open().map(|backing| backing.fd)
    }

    fn open(&self) -> Result<Backing, Errno> {
        match &*self.backing.read() {
            None => return Err(Errno(libc::ESTALE)),
            Some(Known { key, fd: Some(fd) }) => return Ok(Backing { fd: Arc::clone(fd), key: *key }),
            Some(Known { fd: None, .. }) => {}
        }
        parked::open(self)
    }

    pub(crate) fn key(&self) -> Option<Key> {
        self.backing.read().as_ref().map(|known| known.key)
    }

    /// Some handle of it is served by the kernel alone.
    pub(crate) fn passthrough_in_use(&self) -> bool {
        self.passthrough.lock().as_ref().is_some_and(|weak| weak.strong_count() > 0)
    }
}

#[derive(Debug)]
pub(super) struct Node {
    pub(super) inode: Arc<Inode>,
    lookups: u64,
    /// Parent and name, more than one for hard links.
    pub(super) links: Vec<(u64, Arc<[u8]>)>,
    /// Known names in this directory.
    names: Names,
}

impl Node {
    fn new(inode: Arc<Inode>, lookups: u64) -> Self {
        Self { inode, lookups, links: Vec::new(), names: Names::default() }
    }
}

/// The table, for those who hold its lock.
#[derive(Debug)]
pub(super) struct Inner {
    pub(super) keep: Arc<Keep>,
    /// The root of each store's tree, the primary's first.
    pub(super) roots: Vec<Arc<OwnedFd>>,
    /// Theirs.
    devices: Vec<u64>,
    pub(super) nodes: HashMap<u64, Node>,
    pub(super) keys: HashMap<Key, u64>,
    pub(super) pool: Pool,
    me: Weak<Mutex<Inner>>,
}

/// All inodes that the kernel may ask about.
#[derive(Debug)]
pub(crate) struct Table {
    inner: Arc<Mutex<Inner>>,
}

impl Table {
    /// A table with the root, kept in `keep` from now on.
    #[cfg(test)]
    pub(crate) fn new(root: Backing, keep: Arc<Keep>) -> Self {
        Self::over(vec![root], keep)
    }

    /// The same over the trees of several stores, of which there is at least one.
    pub(crate) fn over(roots: Vec<Backing>, keep: Arc<Keep>) -> Self {
        Self::with_pool(roots, keep, Pool::new())
    }

    fn with_pool(backings: Vec<Backing>, keep: Arc<Keep>, pool: Pool) -> Self {
        let new = |me: &Weak<Mutex<Inner>>| {
            let roots = backings.iter().map(|root| Arc::clone(&root.fd)).collect();
            let devices = backings.iter().map(|root| root.key.0).collect();
            let keys = backings.first().map(|root| (root.key, ROOT)).into_iter().collect();
            let root = backings.into_iter().next().map(Known::from);
            let inode = Inode::new(ROOT, None, root, Weak::clone(me));
            let nodes = HashMap::from([(ROOT, Node::new(inode, 1))]);
            Mutex::new(Inner { keep, roots, devices, nodes, keys, pool, me: Weak::clone(me) })
        };
        Self { inner: Arc::new_cyclic(new) }
    }

    /// The inode of that number; ESTALE when it is not known. What is not on the tree does not change: EPERM.
    pub(crate) fn get(&self, id: u64) -> Result<Arc<Inode>, Errno> {
        let unknown = || Errno(if is_eye(id) { libc::EPERM } else { libc::ESTALE });
        self.inner.lock().nodes.get(&id).map(|node| Arc::clone(&node.inode)).ok_or_else(unknown)
    }

    /// The number that `name` has now, if it is known.
    pub(crate) fn known(&self, parent: u64, name: &[u8]) -> Option<u64> {
        self.inner.lock().nodes.get(&parent)?.names.get(name).copied()
    }

    /// The number that backing inode `number` of a store's device (`None`: the primary's) has, or would be given.
    pub(crate) fn number_of(&self, device: Option<u64>, number: u64) -> Option<u64> {
        let inner = self.inner.lock();
        let key = (device.or_else(|| inner.devices.first().copied())?, number);
        inner.keys.get(&key).copied().or_else(|| inner.own_number(key))
    }

    /// Counts a lookup of a name that is known to stand for backing inode `key`.
    pub(crate) fn enter_known(&self, parent: u64, name: &[u8], key: Key) -> Option<Arc<Inode>> {
        let mut inner = self.inner.lock();
        let id = *inner.nodes.get(&parent)?.names.get(name)?;
        if inner.keys.get(&key) != Some(&id) {
            return None;
        }
        let node = inner.nodes.get(&id)?;
        let inode = Arc::clone(&node.inode);
        inner.count(id).ok()?;
        Some(inode)
    }

    /// Counts a lookup of `name`, which stands for `backing`; a new inode unless the backing is known already.
    pub(crate) fn enter(&self, parent: u64, name: &[u8], backing: Backing) -> Result<Arc<Inode>, Errno> {
        self.verify(parent, name, backing.key);
        let mut inner = self.inner.lock();
        let id = match inner.keys.get(&backing.key) {
            Some(&id) => id,
            None => inner.add(Some(backing), SealedMark::default()),
        };
        inner.link(parent, name, id)?;
        inner.count(id)
    }

    /// A backing inode without a descriptor here can be gone, and its number another's, if it is found under a name that
    /// is new. What had the number then gives it up.
    fn verify(&self, parent: u64, name: &[u8], key: Key) {
        let parked = self.inner.lock().parked_elsewhere(parent, name, key);
        if let Some(inode) = parked
            && inode.open().is_err_and(|error| error == Errno(libc::ESTALE))
        {
            self.inner.lock().give_up(inode.id);
        }
    }

    /// Counts a lookup of a sealed `name`, which is `mark`: the inode it has, else a new one without backing.
    pub(crate) fn enter_sealed(
        &self,
        parent: u64,
        name: &[u8],
        mark: SealedMark,
    ) -> Result<Arc<Inode>, Errno> {
        let mut inner = self.inner.lock();
        let known = inner.nodes.get(&parent).and_then(|node| node.names.get(name).copied());
        let id = match known {
            Some(id) => id,
            None => inner.add(None, mark),
        };
        inner.link(parent, name, id)?;
        inner.count(id)
    }

    /// Gives an inode its backing, or another one. The number stays.
    pub(crate) fn attach(&self, inode: &Inode, backing: Backing) {
        let mut inner = self.inner.lock();
        let mut slot = inode.backing.write();
        if let Some(old) = slot.take()
            && inner.keys.get(&old.key) == Some(&inode.id)
        {
            inner.keys.remove(&old.key);
        }
        inner.keys.entry(backing.key).or_insert(inode.id);
        if let Some(record) = inode.record {
            inner.keep.set_backing(record, backing.kept());
        }
        *slot = Some(backing.into());
        drop(slot);
        inner.opened(inode.id);
    }

    /// Takes an inode's backing: it is not what its name stands for any more, and nobody has it open. The kernel, which
    /// may still know that name, looks it up again when it is told so (ESTALE).
    pub(crate) fn detach(&self, inode: &Inode) {
        let mut inner = self.inner.lock();
        if let Some(old) = inode.backing.write().take()
            && inner.keys.get(&old.key) == Some(&inode.id)
        {
            inner.keys.remove(&old.key);
        }
        if let Some(record) = inode.record {
            inner.keep.clear_backing(record);
        }
    }

    /// The kernel forgets `count` lookups.
    pub(crate) fn forget(&self, id: u64, count: u64) {
        let mut inner = self.inner.lock();
        if let Some(node) = inner.nodes.get_mut(&id) {
            node.lookups = node.lookups.saturating_sub(count);
            inner.keep_lookups(id);
            inner.collect(id);
        }
    }

    /// `name` is gone.
    pub(crate) fn cut(&self, parent: u64, name: &[u8]) {
        self.inner.lock().cut(parent, name);
    }

    /// `name` is gone with everything below it, and the kernel may go on knowing what it stood for: bytes of it are held
    /// only where somebody has it open.
    pub(crate) fn let_tree_go(&self, parent: u64, name: &[u8]) {
        let ids: Vec<u64> = {
            let inner = self.inner.lock();
            let top = inner.nodes.get(&parent).and_then(|node| node.names.get(name).copied());
            top.into_iter().chain(top.into_iter().flat_map(|top| inner.below(top))).collect()
        };
        self.cut_tree(parent, name);
        for id in ids {
            self.inner.lock().let_go(id);
        }
    }

    /// Nobody has it open any more, perhaps.
    pub(crate) fn closed(&self, id: u64) {
        self.inner.lock().let_go(id);
    }

    /// `name` is gone with everything below it.
    pub(crate) fn cut_tree(&self, parent: u64, name: &[u8]) {
        let mut inner = self.inner.lock();
        let mut below: Vec<u64> =
            inner.nodes.get(&parent).and_then(|n| n.names.get(name).copied()).into_iter().collect();
        while let Some(dir) = below.pop() {
            let names: Vec<(Arc<[u8]>, u64)> = inner
                .nodes
                .get(&dir)
                .map(|n| n.names.iter().map(|(k, v)| (Arc::clone(k), *v)).collect())
                .unwrap_or_default();
            for (name, id) in names {
                below.push(id);
                inner.cut(dir, &name);
            }
        }
        inner.cut(parent, name);
    }

    /// rename(2) succeeded.
    pub(crate) fn rename(&self, from: (u64, &[u8]), to: (u64, &[u8]), exchange: bool) {
        let mut inner = self.inner.lock();
        let one = inner.cut_keep(from.0, from.1);
        let two = inner.cut_keep(to.0, to.1);
        // Relinking cannot fail: both parents are nodes, else there is nothing to keep track of.
        if let Some(id) = one {
            let _ = inner.link(to.0, to.1, id);
        }
        if let Some(id) = two {
            if exchange {
                let _ = inner.link(from.0, from.1, id);
            }
            inner.gone(id);
            inner.collect(id);
        }
    }

    /// The path of an inode, by its first name; `None` when it has none any more.
    pub(crate) fn path(&self, id: u64) -> Option<RelPath> {
        self.inner.lock().path(id)
    }

    /// Takes in inodes that a predecessor left, without names; [`Table::link_kept`] gives them those.
    pub(crate) fn take_in(&self, kept: Vec<(KeptInode, Option<Backing>)>) -> Vec<Arc<Inode>> {
        let mut inner = self.inner.lock();
        let mut taken = Vec::with_capacity(kept.len());
        for (kept, backing) in kept {
            let parked = kept.key().map(|key| Known { key, fd: None });
            let open = backing.is_some();
            let known = backing.map(Known::from).or(parked);
            if let Some(known) = &known {
                inner.keys.entry(known.key).or_insert(kept.number);
            }
            let inode = Inode::new(kept.number, Some(kept.record), known, Weak::clone(&inner.me));
            taken.push(Arc::clone(&inode));
            inner.nodes.insert(kept.number, Node::new(inode, kept.lookups));
            if open {
                inner.opened(kept.number);
            }
        }
        taken
    }

    /// Inode `id` is at `path`, as far as the directories on the way are known.
    pub(crate) fn link_kept(&self, path: &RelPath, id: u64) {
        let Some((dir, name)) = path.split_last() else { return };
        if let Some(parent) = self.find(&dir) {
            let _ = self.inner.lock().link(parent, name, id);
        }
    }

    /// Drops what a predecessor had begun to enter.
    pub(crate) fn drop_idle(&self) {
        let mut inner = self.inner.lock();
        let ids: Vec<u64> = inner.nodes.keys().copied().collect();
        for id in ids {
            inner.collect(id);
        }
    }

    /// The numbers of all known inodes below directory `id`.
    pub(crate) fn below(&self, id: u64) -> Vec<u64> {
        self.inner.lock().below(id)
    }

    /// The number of the inode at `path`, if all names on the way are known.
    pub(crate) fn find(&self, path: &RelPath) -> Option<u64> {
        let inner = self.inner.lock();
        path.names().try_fold(ROOT, |dir, name| inner.nodes.get(&dir)?.names.get(name).copied())
    }
}

impl Inner {
    fn below(&self, id: u64) -> Vec<u64> {
        let mut found = Vec::new();
        let mut pending = vec![id];
        while let Some(dir) = pending.pop() {
            let names = self.nodes.get(&dir).into_iter().flat_map(|node| node.names.iter());
            let first = found.len();
            found.extend(names.map(|(_, id)| *id));
            pending.extend_from_slice(&found[first..]);
        }
        found
    }

    /// Closes the descriptor of an inode that has no name, if nobody uses it; else that is done when it is closed.
    fn let_go(&mut self, id: u64) {
        let Some(node) = self.nodes.get(&id).filter(|node| node.links.is_empty()) else { return };
        node.inode.let_go.store(true, Ordering::Relaxed);
        let mut slot = node.inode.backing.write();
        let used =
            slot.as_ref().and_then(|known| known.fd.as_ref()).is_some_and(|fd| Arc::strong_count(fd) > 1);
        if used || Arc::strong_count(&node.inode) > 1 {
            return;
        }
        if let Some(record) = node.inode.record {
            self.keep.clear_backing(record);
        }
        if let Some(known) = slot.take()
            && self.keys.get(&known.key) == Some(&id)
        {
            self.keys.remove(&known.key);
        }
    }

    fn add(&mut self, backing: Option<Backing>, mark: SealedMark) -> u64 {
        let own = backing.as_ref().and_then(|backing| self.own_number(backing.key));
        let id = own.unwrap_or_else(|| self.keep.next_inode(OWN_BOUND));
        let record = self.keep.add_inode(id, backing.as_ref().map(Backing::kept), mark);
        if let Some(backing) = &backing {
            self.keys.insert(backing.key, id);
        }
        let open = backing.is_some();
        let inode = Inode::new(id, record, backing.map(Known::from), Weak::clone(&self.me));
        self.nodes.insert(id, Node::new(inode, 0));
        if open {
            self.opened(id);
        }
        id
    }

    /// The number that a backing inode shall have: its own, so that it keeps it when the kernel forgets it for a while.
    /// `None` when that is another's at the moment (a path keeps its number when its backing is replaced), or is on
    /// another device.
    fn own_number(&self, key: Key) -> Option<u64> {
        let number = own_number(&self.devices, key)?;
        (!self.nodes.contains_key(&number)).then_some(number)
    }

    fn count(&mut self, id: u64) -> Result<Arc<Inode>, Errno> {
        let node = self.nodes.get_mut(&id).ok_or(Errno(libc::ESTALE))?;
        node.lookups += 1;
        let inode = Arc::clone(&node.inode);
        self.keep_lookups(id);
        Ok(inode)
    }

    fn keep_lookups(&self, id: u64) {
        if let Some(node) = self.nodes.get(&id)
            && let Some(record) = node.inode.record
        {
            self.keep.set_lookups(record, node.lookups);
        }
    }

    /// Makes `name` stand for `id` and for nothing else.
    fn link(&mut self, parent: u64, name: &[u8], id: u64) -> Result<(), Errno> {
        let Some(dir) = self.nodes.get_mut(&parent) else {
            self.collect(id);
            return Err(Errno(libc::ESTALE));
        };
        let shared: Arc<[u8]> = name.into();
        let old = dir.names.insert(Arc::clone(&shared), id);
        if old == Some(id) {
            return Ok(());
        }
        if let Some(node) = self.nodes.get_mut(&id) {
            node.links.reserve_exact(1);
            node.links.push((parent, shared));
        }
        if let Some(old) = old {
            self.unlink(old, parent, name);
            self.gone(old);
            self.collect(old);
        }
        Ok(())
    }

    fn unlink(&mut self, id: u64, parent: u64, name: &[u8]) {
        if let Some(node) = self.nodes.get_mut(&id) {
            node.links.retain(|(p, n)| *p != parent || &**n != name);
        }
    }

    fn cut_keep(&mut self, parent: u64, name: &[u8]) -> Option<u64> {
        let id = self.nodes.get_mut(&parent)?.names.remove(name)?;
        self.unlink(id, parent, name);
        Some(id)
    }

    fn cut(&mut self, parent: u64, name: &[u8]) {
        if let Some(id) = self.cut_keep(parent, name) {
            self.gone(id);
            self.collect(id);
        }
        self.collect(parent);
    }

    /// Drops an inode that neither the kernel nor a child needs, then its parents likewise.
    fn collect(&mut self, id: u64) {
        let mut pending = vec![id];
        while let Some(id) = pending.pop() {
            let idle = self.nodes.get(&id).is_some_and(|n| n.lookups == 0 && n.names.is_empty());
            if !idle || id == ROOT {
                continue;
            }
            let Some(node) = self.nodes.remove(&id) else { continue };
            if let Some(key) = node.inode.key()
                && self.keys.get(&key) == Some(&id)
            {
                self.keys.remove(&key);
            }
            if let Some(record) = node.inode.record {
                self.keep.remove_inode(record);
            }
            for (parent, name) in node.links {
                if let Some(dir) = self.nodes.get_mut(&parent) {
                    dir.names.remove(&name);
                    pending.push(parent);
                }
            }
        }
    }

    pub(super) fn path(&self, mut id: u64) -> Option<RelPath> {
        let mut parts: Vec<&[u8]> = Vec::new();
        let mut bytes = 0;
        while id != ROOT {
            let (parent, name) = self.nodes.get(&id)?.links.first()?;
            bytes += name.len() + 1;
            if bytes > PATH_BYTES_MAX + 1 {
                return None;
            }
            parts.push(name);
            id = *parent;
        }
        parts.reverse();
        RelPath::new(parts.join(&b'/')).ok()
    }
}

#[cfg(test)]
mod tests {
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
        let table = Table::with_pool(vec![opened(dir.path())], Arc::clone(&keep), Pool::of(2));
        let enter = |name: &str| {
            std::fs::write(dir.path().join(name), name).unwrap();
            table.enter(ROOT, name.as_bytes(), opened(&dir.path().join(name))).unwrap()
        };
        let is_open = |id| table.get(id).unwrap().backing.read().as_ref().is_some_and(|k| k.fd.is_some());
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
        let table = Table::over(vec![backing(1), other], Arc::new(Keep::alone().unwrap()));
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
        assert!(table.get(number).is_err());
        assert_eq!(table.enter(ROOT, b"two", in_other(5)).unwrap().id, number, "it is the same file");
        // A third file system's are counted.
        let third = table.enter(ROOT, b"three", Backing { key: (10, 5), ..backing(5) }).unwrap();
        assert!(third.id >= OWN_BOUND && third.id < 1 << STORE_SHIFT);
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

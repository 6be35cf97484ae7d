//! What the inode table knows, for those who hold its lock: numbers, what they stand for, and their
//! names.

use std::collections::{HashMap, HashSet, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use smallvec::SmallVec;

use super::inode::{Backing, Inode, Key, Known};
use super::numbers::{OWN_BOUND, ROOT, own_number};
use super::parked::Pool;
use crate::errno::Errno;
use crate::keep::Keep;
use crate::keep::records::{KeptInode, SealedMark};
use crate::lock::Mutex;
use crate::path::{PATH_BYTES_MAX, RelPath};

/// Inodes that are kept a while longer than the kernel knows them. When it is told to forget all
/// names it forgets inodes that it looks up again at once, and those of sealed files have no other
/// number to be found by.
const LINGERING_MAX: usize = 1024;

/// A known number.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) held: Held,
    lookups: u64,
    /// Parent and name, more than one for hard links.
    pub(super) links: SmallVec<[(u64, Arc<[u8]>); 1]>,
    /// Known names in this directory.
    names: Names,
}

/// An inode, or of one that nobody uses what it takes to make it anew: the kernel may know very
/// many.
#[derive(Debug)]
pub(super) enum Held {
    Used(Arc<Inode>),
    Idle { record: Option<u32>, key: Option<Key> },
}

impl Node {
    pub(super) fn new(inode: Arc<Inode>, lookups: u64) -> Self {
        Self { held: Held::Used(inode), lookups, links: SmallVec::new(), names: Names::default() }
    }

    /// Neither the kernel nor a name below it needs it.
    fn is_idle(&self) -> bool {
        self.lookups == 0 && self.names.is_empty()
    }

    /// Of its file below, if it has one.
    pub(super) fn key(&self) -> Option<Key> {
        match &self.held {
            Held::Used(inode) => inode.key(),
            Held::Idle { key, .. } => *key,
        }
    }

    /// In the state memory.
    fn record(&self) -> Option<u32> {
        match &self.held {
            Held::Used(inode) => inode.record,
            Held::Idle { record, .. } => *record,
        }
    }

    /// It has a file below, of which no descriptor is open.
    pub(super) fn is_parked(&self) -> bool {
        match &self.held {
            Held::Used(inode) => inode.is_parked(),
            Held::Idle { key, .. } => key.is_some(),
        }
    }
}

/// Names in a directory; small where there are none.
#[derive(Debug, Default)]
#[expect(clippy::box_collection, reason = "most inodes have none, and a map takes room even then")]
struct Names(Option<Box<HashMap<Arc<[u8]>, u64>>>);

impl Names {
    fn get(&self, name: &[u8]) -> Option<u64> {
        self.0.as_ref()?.get(name).copied()
    }

    fn insert(&mut self, name: Arc<[u8]>, id: u64) -> Option<u64> {
        self.0.get_or_insert_default().insert(name, id)
    }

    fn remove(&mut self, name: &[u8]) -> Option<u64> {
        let names = self.0.as_mut()?;
        let id = names.remove(name);
        if names.is_empty() {
            self.0 = None;
        }
        id
    }

    fn iter(&self) -> impl Iterator<Item = (&Arc<[u8]>, u64)> {
        self.0.iter().flat_map(|names| names.iter().map(|(name, id)| (name, *id)))
    }

    fn is_empty(&self) -> bool {
        self.0.is_none()
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Nodes {
    pub(super) keep: Arc<Keep>,
    /// The root of each store's tree, the primary's first.
    pub(super) roots: Vec<Arc<OwnedFd>>,
    /// Theirs.
    pub(super) devices: Vec<u64>,
    /// Boxed: a table of many has room for twice as many.
    known: HashMap<u64, Box<Node>>,
    /// Numbers by their backing inodes, where they are not [`own_number`] of these.
    others: HashMap<Key, u64>,
    pub(super) pool: Pool,
    /// Inodes with names that the kernel has forgotten, the last one at the end; some are known to
    /// it again, or gone.
    lingering: VecDeque<u64>,
    /// Inodes without a name, which the kernel knows.
    nameless: HashSet<u64>,
    me: Weak<Mutex<Nodes>>,
}

impl Nodes {
    /// With the root, which is in the first store; there is at least one.
    pub(super) fn new(backings: Vec<Backing>, keep: Arc<Keep>, pool: Pool, me: &Weak<Mutex<Self>>) -> Self {
        let roots = backings.iter().map(|root| Arc::clone(&root.fd)).collect();
        let devices = backings.iter().map(|root| root.key.0).collect();
        let others = backings.first().map(|root| (root.key, ROOT)).into_iter().collect();
        let root = backings.into_iter().next().map(Known::from);
        let inode = Inode::new(ROOT, None, root, Weak::clone(me));
        let known = HashMap::from([(ROOT, Box::new(Node::new(inode, 1)))]);
        let (lingering, nameless) = (VecDeque::new(), HashSet::new());
        Self { keep, roots, devices, known, others, pool, lingering, nameless, me: Weak::clone(me) }
    }

    pub(super) fn get(&self, id: u64) -> Option<&Node> {
        self.known.get(&id).map(Box::as_ref)
    }

    pub(super) fn get_mut(&mut self, id: u64) -> Option<&mut Node> {
        self.known.get_mut(&id).map(Box::as_mut)
    }

    pub(super) fn ids(&self) -> Vec<u64> {
        self.known.keys().copied().collect()
    }

    /// What `name` in a directory is known as.
    pub(super) fn named(&self, parent: u64, name: &[u8]) -> Option<u64> {
        self.get(parent)?.names.get(name)
    }

    /// The inode, made anew if nobody used it.
    pub(super) fn inode(&mut self, id: u64) -> Option<Arc<Inode>> {
        let me = Weak::clone(&self.me);
        let node = self.get_mut(id)?;
        let (record, key) = match &node.held {
            Held::Used(inode) => return Some(Arc::clone(inode)),
            Held::Idle { record, key } => (*record, *key),
        };
        let inode = Inode::new(id, record, key.map(Known::parked), me);
        node.held = Held::Used(Arc::clone(&inode));
        self.used(id);
        Some(inode)
    }

    /// The number that stands for a backing inode.
    pub(super) fn number(&self, key: Key) -> Option<u64> {
        let own = || {
            let own = own_number(&self.devices, key)?;
            (self.get(own)?.key() == Some(key)).then_some(own)
        };
        self.others.get(&key).copied().or_else(own)
    }

    /// `id`, whose backing `key` becomes, stands for it, unless another does.
    pub(super) fn stands_for(&mut self, id: u64, key: Key) {
        if own_number(&self.devices, key) != Some(id) && self.number(key).is_none() {
            self.others.insert(key, id);
        }
    }

    /// `key` is not what `id` stands for any more.
    pub(super) fn stood_for(&mut self, id: u64, key: Key) {
        if self.others.get(&key) == Some(&id) {
            self.others.remove(&key);
        }
    }

    /// Enters an inode without a name.
    pub(super) fn add(&mut self, backing: Option<Backing>, mark: SealedMark) -> u64 {
        let own = backing.as_ref().and_then(|backing| self.own_number(backing.key));
        let id = own.unwrap_or_else(|| self.keep.next_inode(OWN_BOUND));
        let record = self.keep.add_inode(id, backing.as_ref().map(Backing::kept), mark);
        if let Some(backing) = &backing {
            self.stands_for(id, backing.key);
        }
        let fd = backing.as_ref().map(|backing| Arc::clone(&backing.fd));
        let inode = Inode::new(id, record, backing.map(Known::from), Weak::clone(&self.me));
        self.known.insert(id, Box::new(Node::new(inode, 0)));
        self.used(id);
        if let Some(fd) = fd {
            self.opened(&fd);
        }
        id
    }

    /// Enters an inode that a predecessor left, without a name.
    pub(super) fn take_in(&mut self, kept: &KeptInode, backing: Option<Backing>) -> Arc<Inode> {
        let known = backing.map(Known::from).or(kept.key().map(Known::parked));
        if let Some(known) = &known {
            self.stands_for(kept.number, known.key);
        }
        let inode = Inode::new(kept.number, Some(kept.record), known, Weak::clone(&self.me));
        self.known.insert(kept.number, Box::new(Node::new(Arc::clone(&inode), kept.lookups)));
        self.nameless.insert(kept.number);
        self.pool.enter(kept.number);
        inode
    }

    /// The number that a backing inode shall have: its own, so that it keeps it when the kernel
    /// forgets it for a while. `None` when that is another's at the moment (a path keeps its number
    /// when its backing is replaced), or is on another device.
    pub(super) fn own_number(&self, key: Key) -> Option<u64> {
        let number = own_number(&self.devices, key)?;
        (!self.known.contains_key(&number)).then_some(number)
    }

    /// Counts a lookup.
    pub(super) fn count(&mut self, id: u64) -> Result<Arc<Inode>, Errno> {
        let node = self.get_mut(id).ok_or(Errno(libc::ESTALE))?;
        node.lookups += 1;
        self.keep_lookups(id);
        self.inode(id).ok_or(Errno(libc::ESTALE))
    }

    /// The kernel forgets `count` lookups.
    pub(super) fn forget(&mut self, id: u64, count: u64) {
        if let Some(node) = self.get_mut(id) {
            node.lookups = node.lookups.saturating_sub(count);
            self.keep_lookups(id);
            self.linger(id);
        }
    }

    /// Inodes without a name, which the kernel knows as far as it has been heard.
    pub(super) fn nameless(&self) -> HashSet<u64> {
        self.nameless.clone()
    }

    /// The kernel does not know an inode, and cannot find it again if it has no name.
    pub(super) fn unknown(&mut self, id: u64) {
        if self.nameless.contains(&id)
            && let Some(node) = self.get_mut(id)
        {
            node.lookups = 0;
            self.keep_lookups(id);
            self.collect(id);
        }
    }

    /// Nobody needs an inode any more: it goes when many have come after it, or with its last name.
    pub(super) fn linger(&mut self, id: u64) {
        if !self.get(id).is_some_and(|node| node.is_idle() && !node.links.is_empty()) {
            return self.collect(id);
        }
        self.lingering.push_back(id);
        self.linger_at_most(LINGERING_MAX);
    }

    fn linger_at_most(&mut self, most: usize) {
        while self.lingering.len() > most
            && let Some(first) = self.lingering.pop_front()
        {
            self.collect(first);
        }
    }

    #[cfg(test)]
    pub(super) fn let_lingering_go(&mut self) {
        self.linger_at_most(0);
    }

    fn keep_lookups(&self, id: u64) {
        if let Some(node) = self.get(id)
            && let Some(record) = node.record()
        {
            self.keep.set_lookups(record, node.lookups);
        }
    }

    /// Makes `name` stand for `id` and for nothing else.
    pub(super) fn link(&mut self, parent: u64, name: &[u8], id: u64) -> Result<(), Errno> {
        let Some(dir) = self.get_mut(parent) else {
            self.collect(id);
            return Err(Errno(libc::ESTALE));
        };
        let shared: Arc<[u8]> = name.into();
        let old = dir.names.insert(Arc::clone(&shared), id);
        if old == Some(id) {
            return Ok(());
        }
        if let Some(node) = self.get_mut(id) {
            node.links.push((parent, shared));
            self.nameless.remove(&id);
        }
        if let Some(old) = old {
            self.unlink(old, parent, name);
            self.gone(old);
            self.collect(old);
        }
        Ok(())
    }

    fn unlink(&mut self, id: u64, parent: u64, name: &[u8]) {
        if let Some(node) = self.get_mut(id) {
            node.links.retain(|(p, n)| *p != parent || &**n != name);
            if node.links.is_empty() {
                self.nameless.insert(id);
            }
        }
    }

    /// `name` is gone; tells what it stood for, which stays.
    pub(super) fn cut_keep(&mut self, parent: u64, name: &[u8]) -> Option<u64> {
        let id = self.get_mut(parent)?.names.remove(name)?;
        self.unlink(id, parent, name);
        Some(id)
    }

    /// `name` is gone.
    pub(super) fn cut(&mut self, parent: u64, name: &[u8]) {
        if let Some(id) = self.cut_keep(parent, name) {
            self.gone(id);
            self.collect(id);
        }
        self.collect(parent);
    }

    /// `name` is gone with everything below it.
    pub(super) fn cut_tree(&mut self, parent: u64, name: &[u8]) {
        let mut below: Vec<u64> = self.named(parent, name).into_iter().collect();
        while let Some(dir) = below.pop() {
            let names = self.get(dir).into_iter().flat_map(|node| node.names.iter());
            let names: Vec<_> = names.map(|(name, id)| (Arc::clone(name), id)).collect();
            for (name, id) in names {
                below.push(id);
                self.cut(dir, &name);
            }
        }
        self.cut(parent, name);
    }

    /// rename(2) succeeded.
    pub(super) fn rename(&mut self, from: (u64, &[u8]), to: (u64, &[u8]), exchange: bool) {
        let one = self.cut_keep(from.0, from.1);
        let two = self.cut_keep(to.0, to.1);
        // Relinking cannot fail: both parents are nodes, else there is nothing to keep track of.
        if let Some(id) = one {
            let _ = self.link(to.0, to.1, id);
        }
        if let Some(id) = two {
            if exchange {
                let _ = self.link(from.0, from.1, id);
            }
            self.gone(id);
            self.collect(id);
        }
    }

    /// The numbers of all known inodes below directory `id`.
    pub(super) fn below(&self, id: u64) -> Vec<u64> {
        let mut found = Vec::new();
        let mut pending = vec![id];
        while let Some(dir) = pending.pop() {
            let names = self.get(dir).into_iter().flat_map(|node| node.names.iter());
            let first = found.len();
            found.extend(names.map(|(_, id)| id));
            pending.extend_from_slice(&found[first..]);
        }
        found
    }

    /// Closes the descriptor of an inode that has no name, if nobody uses it; else that is done
    /// when it is closed.
    pub(super) fn let_go(&mut self, id: u64) {
        let Some(node) = self.get(id).filter(|node| node.links.is_empty()) else { return };
        // One that nobody uses has lost its file with its last name.
        let Held::Used(inode) = &node.held else { return };
        inode.let_go.store(true, Ordering::Relaxed);
        if Arc::strong_count(inode) > 1 || inode.is_used_below() {
            return;
        }
        let (record, known) = (inode.record, inode.backing.write().take());
        if let Some(record) = record {
            self.keep.clear_backing(record);
        }
        if let Some(known) = known {
            self.stood_for(id, known.key);
        }
    }

    /// Drops an inode that neither the kernel nor a child needs, then its parents likewise.
    pub(super) fn collect(&mut self, id: u64) {
        let mut pending = vec![id];
        while let Some(id) = pending.pop() {
            let idle = self.get(id).is_some_and(Node::is_idle);
            if !idle || id == ROOT {
                continue;
            }
            let Some(node) = self.known.remove(&id) else { continue };
            self.nameless.remove(&id);
            if let Some(key) = node.key() {
                self.stood_for(id, key);
            }
            if let Some(record) = node.record() {
                self.keep.remove_inode(record);
            }
            for (parent, name) in node.links {
                if let Some(dir) = self.get_mut(parent) {
                    dir.names.remove(&name);
                    pending.push(parent);
                }
            }
        }
    }

    /// The path of an inode, by its first name; `None` when it has none any more.
    pub(super) fn path(&self, mut id: u64) -> Option<RelPath> {
        let mut parts: Vec<&[u8]> = Vec::new();
        let mut bytes = 0;
        while id != ROOT {
            let (parent, name) = self.get(id)?.links.first()?;
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

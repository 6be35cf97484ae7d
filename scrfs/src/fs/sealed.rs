//! How a sealed dataset is seen: names and attributes from its catalog, less the names that were removed here, and with
//! the attributes that were given here. Both are this mount's view of it and end with the worker: what was sealed, and
//! what other nodes see, does not change.
//!
//! Once the next generation has begun, directories can have moved. Paths here are those that programs see, unless they are
//! called sealed names: what is hidden or given is noted by those, and stays so wherever a directory takes it.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, RwLock};

use super::attr::{Attr, Changes};
use super::inode::Key;
use super::place::MARKER;
use crate::daemon::boundary::{Errno, Generation};
use crate::dataset::{CatalogIndex, Entry, EntryKind, Moves, Stamp};
use crate::ids::DatasetId;
use crate::path::RelPath;

/// A sealed, listed dataset.
#[derive(Debug)]
pub(crate) struct Sealed {
    index: Arc<CatalogIndex>,
    /// Directories that no entry of the catalog names: their attributes are those of the dataset's directory.
    implied: BTreeMap<RelPath, Entry>,
    /// Sealed names.
    hidden: RwLock<BTreeSet<RelPath>>,
    /// By sealed names.
    given: RwLock<BTreeMap<RelPath, Attr>>,
    next: Next,
    /// By which rules it was asked last whether it is flat, and what was found.
    flat: Mutex<Option<(u64, bool)>>,
}

/// What is known here of its next generation.
#[derive(Debug, Default)]
struct Next {
    /// It has begun: the tree is the working copy.
    open: AtomicBool,
    /// Files that have their entry in the journal.
    changed: RwLock<HashSet<RelPath>>,
    /// Where directories have moved to.
    moves: RwLock<Moves>,
    /// Backing inodes that share no bytes with the sealed files.
    own: RwLock<HashSet<Key>>,
    /// Backing inodes that lost their name here and are still the sealed files'.
    kept: RwLock<HashSet<Key>>,
}

impl Clone for Next {
    fn clone(&self) -> Self {
        Self {
            open: AtomicBool::new(self.open.load(Ordering::Acquire)),
            changed: RwLock::new(self.changed.read().clone()),
            moves: RwLock::new(self.moves.read().clone()),
            own: RwLock::new(self.own.read().clone()),
            kept: RwLock::new(self.kept.read().clone()),
        }
    }
}

/// One name of a sealed directory.
#[derive(Debug)]
pub(crate) enum Name<'a> {
    /// From the catalog.
    Entry(&'a Entry),
    /// The marker, which is no data.
    Marker,
}

impl Sealed {
    /// The dataset of `index`; what was hidden and given in `before` (an earlier revision of it) stays so.
    pub(crate) fn new(index: Arc<CatalogIndex>, before: Option<&Sealed>) -> Self {
        let hidden = before.map(|sealed| sealed.hidden.read().clone()).unwrap_or_default();
        let given = before.map(|sealed| sealed.given.read().clone()).unwrap_or_default();
        let next = before.map(|sealed| sealed.next.clone()).unwrap_or_default();
        let mut implied = BTreeMap::new();
        let model = index.entry(&RelPath::root());
        for entry in &index.catalog().entries {
            let mut path = entry.path.clone();
            while let Some((dir, _)) = path.split_last() {
                if index.entry(&dir).is_some() || implied.contains_key(&dir) {
                    break;
                }
                implied.insert(dir.clone(), directory(&dir, model, index.catalog().created_us));
                path = dir;
            }
        }
        implied.entry(RelPath::root()).or_insert_with(|| {
            model.cloned().unwrap_or_else(|| directory(&RelPath::root(), None, index.catalog().created_us))
        });
        let (hidden, given) = (RwLock::new(hidden), RwLock::new(given));
        Self { index, implied, hidden, given, next, flat: Mutex::default() }
    }

    /// Whether all names that were sealed are as `fits` wants them, by the rules of that number.
    pub(crate) fn is_flat(&self, rules: u64, fits: impl Fn(&RelPath) -> bool) -> bool {
        let mut flat = self.flat.lock();
        if let Some((by, found)) = *flat
            && by == rules
        {
            return found;
        }
        let found =
            self.index.catalog().entries.iter().all(|entry| entry.path.is_root() || fits(&entry.path));
        *flat = Some((rules, found));
        found
    }

    /// What programs have done to it is known from elsewhere.
    pub(crate) fn take_up(&self, generation: Generation) {
        self.hidden.write().extend(generation.removed);
        self.next.changed.write().extend(generation.changed);
        *self.next.moves.write() = generation.moves;
        self.next.open.store(generation.open, Ordering::Release);
    }

    /// Its next generation has begun.
    pub(crate) fn is_open(&self) -> bool {
        self.next.open.load(Ordering::Acquire)
    }

    /// The sealed file of that path, unless it was removed here.
    pub(crate) fn file(&self, path: &RelPath) -> Option<&Entry> {
        self.entry(path).filter(|entry| matches!(entry.kind, EntryKind::File(_)))
    }

    /// All names that are gone, where they were sealed.
    pub(crate) fn removed(&self) -> Vec<RelPath> {
        let moves = self.next.moves.read();
        let gone = moves.iter().filter(|(_, sealed)| sealed.is_none()).map(|(path, _)| path.clone());
        gone.chain(self.hidden.read().iter().cloned()).collect()
    }

    /// The sealed name that `path` stands for.
    pub(crate) fn origin(&self, path: &RelPath) -> Option<RelPath> {
        self.next.moves.read().origin(path)
    }

    /// Where a sealed name is now.
    pub(crate) fn present(&self, sealed: &RelPath) -> Option<RelPath> {
        self.next.moves.read().present(sealed)
    }

    /// A directory was renamed.
    pub(crate) fn renamed(&self, from: &RelPath, to: &RelPath, exchange: bool) {
        let moved = |path: RelPath| match (path.strip(from), path.strip(to)) {
            (Some(below), _) => to.concat(&below).ok(),
            (None, Some(below)) => from.concat(&below).ok().filter(|_| exchange),
            (None, None) => Some(path),
        };
        let mut changed = self.next.changed.write();
        *changed = std::mem::take(&mut *changed).into_iter().filter_map(moved).collect();
        let mut moves = self.next.moves.write();
        moves.rename(from, to, exchange);
        moves.prune([from, to], |sealed| self.index.has(sealed));
    }

    /// What is at `path` and below it is gone, or was put in the place of something that is.
    pub(crate) fn gone(&self, path: &RelPath) {
        self.next.changed.write().retain(|file| file.strip(path).is_none());
        let mut moves = self.next.moves.write();
        moves.remove(path);
        moves.prune([path], |sealed| self.index.has(sealed));
    }

    /// A name that was removed on this node, and perhaps nowhere else: other nodes go on seeing it.
    pub(crate) fn is_removed_here(&self, path: &RelPath) -> bool {
        let sealed = self.origin(path);
        sealed.is_some_and(|sealed| self.index.entry(&sealed).is_some() && self.is_hidden(&sealed))
    }

    pub(crate) fn is_changed(&self, path: &RelPath) -> bool {
        self.next.changed.read().contains(path)
    }

    pub(crate) fn set_changed(&self, path: RelPath) {
        self.next.changed.write().insert(path);
    }

    pub(crate) fn is_own(&self, key: Key) -> bool {
        self.next.own.read().contains(&key)
    }

    pub(crate) fn set_own(&self, key: Key) {
        self.next.own.write().insert(key);
    }

    pub(crate) fn is_kept(&self, key: Key) -> bool {
        self.next.kept.read().contains(&key)
    }

    pub(crate) fn set_kept(&self, key: Key) {
        self.next.kept.write().insert(key);
    }

    pub(crate) fn id(&self) -> DatasetId {
        self.index.catalog().id
    }

    pub(crate) fn name(&self) -> &[u8] {
        &self.index.catalog().name
    }

    /// When it was sealed.
    pub(crate) fn sealed_at(&self) -> Stamp {
        stamp_of(self.index.catalog().created_us)
    }

    /// The entry of `path`, unless it is hidden.
    pub(crate) fn entry(&self, path: &RelPath) -> Option<&Entry> {
        let sealed = self.origin(path)?;
        if self.is_hidden(&sealed) {
            return None;
        }
        self.index.entry(&sealed).or_else(|| self.implied.get(&sealed))
    }

    /// The attributes of `path` under number `nodeid`, unless it is hidden. The marker's are those of an empty file.
    pub(crate) fn attr(&self, nodeid: u64, path: &RelPath) -> Option<Attr> {
        let marker = path.as_bytes() == MARKER && self.shows_marker();
        let entry = self.entry(path);
        if entry.is_none() && !marker {
            return None;
        }
        if let Some(given) = self.origin(path).and_then(|sealed| self.given.read().get(&sealed).cloned()) {
            return Some(Attr { nodeid, ..given });
        }
        let Some(entry) = entry else {
            let owner = self.top().map_or((0, 0), |top| (top.uid, top.gid));
            return Some(Attr::of_empty_file(nodeid, owner, self.sealed_at()));
        };
        Some(Attr::of_entry(nodeid, entry, self.sealed_at()))
    }

    /// chmod, chown and utimensat, in this view.
    pub(crate) fn change(&self, path: &RelPath, changes: &Changes) -> Result<(), Errno> {
        let mut attr = self.attr(0, path).ok_or(Errno(libc::ENOENT))?;
        attr.change(changes);
        let sealed = self.origin(path).ok_or(Errno(libc::ENOENT))?;
        self.given.write().insert(sealed, attr);
        Ok(())
    }

    /// All attributes that were given here, by sealed names.
    pub(crate) fn given(&self) -> Vec<(RelPath, Attr)> {
        self.given.read().iter().map(|(path, attr)| (path.clone(), attr.clone())).collect()
    }

    /// The dataset's own directory.
    pub(crate) fn top(&self) -> Option<&Entry> {
        self.entry(&RelPath::root())
    }

    /// The marker is listed until it is removed here.
    pub(crate) fn shows_marker(&self) -> bool {
        !self.hidden.read().iter().any(|path| path.as_bytes() == MARKER)
    }

    /// Names directly in `dir`; empty when it is no directory. The marker comes last.
    pub(crate) fn children(&self, dir: &RelPath) -> Vec<(Vec<u8>, Name<'_>)> {
        let mut names: BTreeMap<Vec<u8>, Name<'_>> = BTreeMap::new();
        let Some(sealed) = self.origin(dir).filter(|sealed| !self.is_hidden(sealed)) else {
            return Vec::new();
        };
        let implied =
            self.implied.values().filter(|e| e.path.split_last().is_some_and(|(up, _)| up == sealed));
        for entry in self.index.children(&sealed).into_iter().flatten().chain(implied) {
            if let Some((_, name)) = entry.path.split_last()
                && !self.hidden.read().contains(&entry.path)
                && dir.join(name).ok().and_then(|path| self.origin(&path)).as_ref() == Some(&entry.path)
            {
                names.insert(name.to_vec(), Name::Entry(entry));
            }
        }
        let marker = (dir.is_root() && self.shows_marker()).then(|| (MARKER.to_vec(), Name::Marker));
        names.into_iter().chain(marker).collect()
    }

    /// All sealed names that programs may have seen.
    pub(crate) fn all_paths(&self) -> Vec<RelPath> {
        let entries = self.index.catalog().entries.iter().map(|entry| entry.path.clone());
        entries.chain(self.implied.keys().cloned()).chain(RelPath::new(MARKER)).collect()
    }

    /// Hides a sealed name and what is below it.
    pub(crate) fn hide(&self, path: RelPath) {
        self.hidden.write().insert(path);
    }

    /// Shows a name again (the marker, set anew).
    pub(crate) fn show(&self, path: &RelPath) {
        self.hidden.write().remove(path);
    }

    fn is_hidden(&self, path: &RelPath) -> bool {
        let hidden = self.hidden.read();
        if hidden.is_empty() {
            return false;
        }
        let mut path = path.clone();
        loop {
            if hidden.contains(&path) {
                return true;
            }
            match path.split_last() {
                Some((dir, _)) => path = dir,
                None => return false,
            }
        }
    }
}

fn stamp_of(micros: u64) -> Stamp {
    let secs = i64::try_from(micros / 1_000_000).unwrap_or(i64::MAX);
    Stamp { secs, nsecs: u32::try_from(micros % 1_000_000).unwrap_or(0) * 1000 }
}

fn directory(path: &RelPath, model: Option<&Entry>, created_us: u64) -> Entry {
    let at = stamp_of(created_us);
    match model {
        Some(model) => Entry { path: path.clone(), ..model.clone() },
        None => Entry {
            path: path.clone(),
            kind: EntryKind::Directory,
            mode: 0o755,
            uid: 0,
            gid: 0,
            atime: at,
            mtime: at,
        },
    }
}

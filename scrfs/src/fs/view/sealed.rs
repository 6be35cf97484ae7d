//! How a sealed dataset is seen: names and attributes from its catalog, less the names that were
//! removed here, and with the attributes that were given here. Both are this mount's view of it and
//! end with the worker: what was sealed, and what other nodes see, does not change.
//!
//! What directory operations have removed is gone on all nodes, and another file or directory may
//! have its name.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::Arc;

use crate::boundary::Generation;
use crate::dataset::MARKER;
use crate::dataset::{CatalogIndex, Entry, EntryKind, Names, Stamp};
use crate::errno::Errno;
use crate::fs::attr::{Attr, Changes, Kind};
use crate::fs::inodes::{Backing, Key};
use crate::ids::DatasetId;
use crate::keep::records::{SealedMark, mark_of};
use crate::lock::{Mutex, RwLock};
use crate::path::RelPath;

/// How many files [`View::own`] has at most.
const OWN_MAX: usize = 64;

/// A sealed, listed dataset.
#[derive(Debug)]
pub(crate) struct Sealed {
    index: Arc<CatalogIndex>,
    /// Directories that no entry of the catalog names: their attributes are those of the dataset's
    /// directory.
    implied: BTreeMap<RelPath, Entry>,
    view: RwLock<View>,
    /// By which rules it was asked last whether it is flat, and what was found.
    flat: Mutex<Option<(u64, bool)>>,
}

/// How this mount sees it, and what is known here of its next generation.
#[derive(Debug, Clone, Default)]
struct View {
    /// Names that were removed here, of which other nodes need not know.
    hidden: Names,
    /// Attributes that were given here.
    given: BTreeMap<RelPath, Attr>,
    /// The next generation has begun: the tree is the working copy.
    open: bool,
    /// Its files that have their entry in the journal.
    changed: HashSet<RelPath>,
    /// Sealed names that are gone on all nodes.
    gone: Names,
    /// Files with several names that share no bytes with the sealed files, the last that were asked
    /// for: the node tells it of each. Their descriptors pin them: a file system gives the number
    /// of a file that is gone to the next one, and that may be a sealed file.
    own: VecDeque<Backing>,
    /// Backing inodes that lost their name here and are still the sealed files', which pin them.
    kept: HashSet<Key>,
    /// Files here whose bytes nobody has compared with their checksums since a restart.
    unread: HashSet<RelPath>,
}

impl View {
    fn has_removed(&self, path: &RelPath) -> bool {
        self.gone.cover(path) || self.hidden.cover(path)
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
    /// The dataset of `index`, with nothing hidden or given.
    pub(crate) fn new(index: Arc<CatalogIndex>) -> Self {
        let mut implied = BTreeMap::new();
        let model = index.entry(&RelPath::root());
        for dir in index.directories() {
            let mut next = Some(dir.clone());
            while let Some(dir) = next.filter(|dir| index.entry(dir).is_none() && !implied.contains_key(dir))
            {
                next = dir.split_last().map(|(above, _)| above);
                let entry = directory(&dir, model, index.catalog().created_us);
                implied.insert(dir, entry);
            }
        }
        implied.entry(RelPath::root()).or_insert_with(|| {
            model.cloned().unwrap_or_else(|| directory(&RelPath::root(), None, index.catalog().created_us))
        });
        Self { index, implied, view: RwLock::leaf(View::default()), flat: Mutex::default() }
    }

    /// What was hidden and given in an earlier revision of it stays so.
    pub(crate) fn see_as(&self, before: &Self) {
        let view = before.view.read().clone();
        *self.view.write() = view;
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
        let mut view = self.view.write();
        view.hidden.extend(generation.removed);
        view.changed.extend(generation.changed);
        view.gone = generation.gone;
        view.open = generation.open;
    }

    /// Its next generation has begun.
    pub(crate) fn has_next(&self) -> bool {
        self.view.read().open
    }

    /// The sealed file of that path, unless it was removed here.
    pub(crate) fn file(&self, path: &RelPath) -> Option<&Entry> {
        self.entry(path).filter(|entry| matches!(entry.kind, EntryKind::File(_)))
    }

    /// All names that were removed, here or on all nodes.
    pub(crate) fn removed(&self) -> Vec<RelPath> {
        let view = self.view.read();
        view.gone.iter().chain(view.hidden.iter()).cloned().collect()
    }

    /// What was sealed at `path` is gone on all nodes.
    pub(crate) fn is_gone(&self, path: &RelPath) -> bool {
        self.view.read().gone.cover(path)
    }

    /// What is at `path` and below it is gone, or was put in the place of something that is.
    pub(crate) fn set_gone(&self, path: &RelPath) {
        let mut view = self.view.write();
        view.changed.retain(|file| file.strip(path).is_none());
        if self.index.has(path) {
            view.gone.insert(path.clone());
        }
    }

    /// A name that was removed on this node, and perhaps nowhere else: other nodes go on seeing it.
    pub(crate) fn is_removed_here(&self, path: &RelPath) -> bool {
        let view = self.view.read();
        self.index.entry(path).is_some() && !view.gone.cover(path) && view.hidden.cover(path)
    }

    pub(crate) fn is_changed(&self, path: &RelPath) -> bool {
        self.view.read().changed.contains(path)
    }

    pub(crate) fn set_changed(&self, path: RelPath) {
        self.view.write().changed.insert(path);
    }

    pub(crate) fn is_own(&self, key: Key) -> bool {
        self.view.read().own.iter().any(|backing| backing.key == key)
    }

    /// A file shares no bytes with the sealed ones. What is not `wanted` any more is forgotten.
    pub(crate) fn set_own(&self, backing: Backing, wanted: impl Fn(&Backing) -> bool) {
        let mut view = self.view.write();
        view.kept.remove(&backing.key);
        view.own.retain(|own| own.key != backing.key && wanted(own));
        view.own.truncate(OWN_MAX - 1);
        view.own.push_front(backing);
    }

    /// A name of this file has gone.
    pub(crate) fn forget_own(&self, key: Key) {
        self.view.write().own.retain(|own| own.key != key);
    }

    pub(crate) fn is_kept(&self, key: Key) -> bool {
        self.view.read().kept.contains(&key)
    }

    pub(crate) fn set_kept(&self, key: Key) {
        self.view.write().kept.insert(key);
    }

    /// The file at `path` is a sealed one whose bytes are still to be compared with their checksum.
    pub(crate) fn is_unread(&self, path: &RelPath) -> bool {
        let view = self.view.read();
        view.unread.contains(path) && !view.changed.contains(path) && !view.has_removed(path)
    }

    pub(crate) fn set_unread(&self, files: Vec<RelPath>) {
        self.view.write().unread = files.into_iter().collect();
    }

    pub(crate) fn set_verified(&self, files: &[RelPath]) {
        let mut view = self.view.write();
        for file in files {
            view.unread.remove(file);
        }
        if view.unread.is_empty() {
            view.unread = HashSet::new();
        }
    }

    /// By what the state memory knows `path` of it.
    pub(crate) fn mark(&self, path: &RelPath) -> SealedMark {
        SealedMark { dataset: self.id().0, name: mark_of(path.as_bytes()) }
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
        if self.view.read().has_removed(path) {
            return None;
        }
        self.index.entry(path).or_else(|| self.implied.get(path))
    }

    /// What `path` is, unless it is hidden.
    pub(crate) fn kind(&self, path: &RelPath) -> Option<Kind> {
        self.entry(path).map(Kind::of_entry)
    }

    /// The attributes of `path` under number `nodeid`, unless it is hidden. The marker's are those
    /// of an empty file.
    pub(crate) fn attr(&self, nodeid: u64, path: &RelPath) -> Option<Attr> {
        let marker = path.as_bytes() == MARKER && self.shows_marker();
        let entry = self.entry(path);
        if entry.is_none() && !marker {
            return None;
        }
        let view = self.view.read();
        if let Some(given) = view.given.get(path).filter(|_| !view.gone.cover(path)) {
            return Some(Attr { nodeid, ..given.clone() });
        }
        drop(view);
        let Some(entry) = entry else {
            let owner = self.top().map_or((0, 0), |top| (top.uid, top.gid));
            return Some(Attr::of_empty_file(nodeid, owner, self.sealed_at()));
        };
        Some(Attr::of_entry(nodeid, entry, self.sealed_at()))
    }

    /// chmod, chown and utimensat, in this view.
    pub(crate) fn change(&self, path: &RelPath, changes: &Changes, now: Stamp) -> Result<(), Errno> {
        let mut attr = self.attr(0, path).ok_or(Errno(libc::ENOENT))?;
        attr.change(changes, now);
        self.view.write().given.insert(path.clone(), attr);
        Ok(())
    }

    /// All attributes that were given here.
    pub(crate) fn given(&self) -> Vec<(RelPath, Attr)> {
        self.view.read().given.iter().map(|(path, attr)| (path.clone(), attr.clone())).collect()
    }

    /// The dataset's own directory.
    pub(crate) fn top(&self) -> Option<&Entry> {
        self.entry(&RelPath::root())
    }

    /// The marker is listed until it is removed here.
    pub(crate) fn shows_marker(&self) -> bool {
        !self.view.read().hidden.iter().any(|path| path.as_bytes() == MARKER)
    }

    /// Names directly in `dir`; empty when it is no directory. The marker comes last.
    pub(crate) fn children(&self, dir: &RelPath) -> Vec<(Vec<u8>, Name<'_>)> {
        let mut names: BTreeMap<Vec<u8>, Name<'_>> = BTreeMap::new();
        let view = self.view.read();
        if view.has_removed(dir) {
            return Vec::new();
        }
        let implied = self.implied.values().filter(|e| e.path.split_last().is_some_and(|(up, _)| up == *dir));
        for entry in self.index.children(dir).into_iter().flatten().chain(implied) {
            if let Some((_, name)) = entry.path.split_last()
                && !view.hidden.contains(&entry.path)
                && !view.gone.contains(&entry.path)
            {
                names.insert(name.to_vec(), Name::Entry(entry));
            }
        }
        drop(view);
        let marker = (dir.is_root() && self.shows_marker()).then(|| (MARKER.to_vec(), Name::Marker));
        names.into_iter().chain(marker).collect()
    }

    /// Files directly in `dir` that are on other nodes, where `tree` are the names in the tree.
    pub(crate) fn names_elsewhere(&self, dir: &RelPath, tree: &HashSet<Vec<u8>>) -> Vec<Vec<u8>> {
        let is_file =
            |what: &Name<'_>| matches!(what, Name::Entry(entry) if matches!(entry.kind, EntryKind::File(_)));
        let names = self.children(dir).into_iter();
        names.filter(|(name, what)| is_file(what) && !tree.contains(name)).map(|(name, _)| name).collect()
    }

    /// All sealed names that programs may have seen.
    pub(crate) fn all_paths(&self) -> Vec<RelPath> {
        let entries = self.index.catalog().entries.iter().map(|entry| entry.path.clone());
        entries.chain(self.implied.keys().cloned()).chain(RelPath::new(MARKER)).collect()
    }

    /// Hides a name and what is below it.
    pub(crate) fn hide(&self, path: RelPath) {
        self.view.write().hidden.insert(path);
    }

    /// Shows a name again (the marker, set anew).
    pub(crate) fn show(&self, path: &RelPath) {
        self.view.write().hidden.remove(path);
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

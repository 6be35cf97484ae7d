//! What programs here have changed in a sealed dataset, and removed from it: this node's word on its next generation
//! (DESIGN 4.6). The journal has it, before it is done.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::fs::{Mode, OFlags};

use crate::control::{CarriedFile, DirOp, Event, FrozenFile, FrozenPart};
use crate::dataset::{CatalogIndex, Entry, EntryKind, Moves};
use crate::ids::DatasetId;
use crate::path::RelPath;
use crate::store::beneath;

use super::generation::{text, top_of};
use super::journal::Moving;
use super::listing::{Lost, walk};
use super::node::Node;
use super::state::{Dataset, Home};

impl Node {
    /// Says whether anything was changed here. In the records' thread.
    pub(super) fn send_changes(&self, id: DatasetId) {
        // The answer speaks of all that was changed before the markers that wait now: whatever is sealed, or found to be
        // sealed, after it is what these asked for.
        self.state.lock().waiting.covered(id);
        let changed = self.changed_here(id).unwrap_or_else(|reason| {
            self.events.error(Some(id), &format!("its changes cannot be listed: {reason}"));
            // The freeze will say why.
            true
        });
        self.state.lock().send(Event::Changes { id, changed });
    }

    fn changed_here(&self, id: DatasetId) -> Result<bool, String> {
        let dataset = self.dataset(id).map_err(text)?;
        let top = top_of(&dataset.name)?;
        if self.journal.lock().is_rearranged(&top, id) {
            return Ok(true);
        }
        if dataset.home != Home::Under {
            return Ok(false);
        }
        let files = self.tree.files(&dataset.name).map_err(text)?;
        let (mut part, others) = self.survey(&dataset, files)?;
        let index = dataset.catalog.as_ref().ok_or("it is not complete")?;
        self.leave_out_logs(&dataset, index, &mut part.files).map_err(text)?;
        // What was removed, or has moved, was looked at above.
        let made = others.iter().any(|entry| {
            entry.kind == EntryKind::Directory
                && !entry.path.is_root()
                && index.children(&entry.path).is_none()
        });
        Ok(made || !part.files.is_empty() || !part.links.is_empty())
    }

    /// A marker of `name` set now asks for what comes after this generation: that all have sealed it may be heard here
    /// after programs on other nodes have changed it.
    pub(super) fn marker_base(&self, name: &[u8]) -> Option<DatasetId> {
        self.state.lock().base(name).map(|dataset| dataset.id)
    }

    /// Programs have changed sealed dataset `id` here.
    pub(super) fn is_changed(&self, name: &[u8], id: DatasetId) -> bool {
        let under = self.state.lock().base(name).is_some_and(|dataset| dataset.home == Home::Under);
        under || top_of(name).is_ok_and(|top| self.journal.lock().is_rearranged(&top, id))
    }

    /// The dataset of that name is complete, and on this node alone: no other one can have changed it.
    pub(super) fn is_sealed_alone(&self, name: &[u8]) -> bool {
        let state = self.state.lock();
        let sealed = state.base(name).filter(|dataset| dataset.settled && dataset.failed.is_none());
        sealed.and_then(|dataset| dataset.catalog.as_ref()).is_some_and(|index| {
            index.catalog().layout.members.iter().all(|place| place.host == self.config.host)
        })
    }

    /// What this node has of the next generation over `base`, whose `files` are in the tree, and its directories and
    /// links.
    pub(super) fn survey(
        &self,
        base: &Dataset,
        files: Vec<FrozenFile>,
    ) -> Result<(FrozenPart, Vec<Entry>), String> {
        let index = base.catalog.as_ref().ok_or("its base is not complete")?;
        let top = top_of(&base.name)?;
        let mut part = FrozenPart::default();
        let moves = self.moves_of(base);
        {
            let journal = self.journal.lock();
            part.removed = journal.removed_of(&top, base.id);
            let removed = Names::new(part.removed.iter().cloned());
            part.removed.extend(gone(index, &moves));
            let member_parts = || base.parts.values().filter(|part| part.recorded);
            let own: HashMap<&RelPath, u64> = member_parts()
                .flat_map(|part| &part.files)
                .map(|(entry, copy)| (&entry.path, copy.size))
                .collect();
            for file in files {
                let sealed = moves.origin(&file.path).and_then(|name| index.entry(&name));
                let touched = top.concat(&file.path).is_ok_and(|path| journal.has(&path));
                match sealed {
                    Some(Entry { path: sealed, kind: EntryKind::File(_), .. }) if !touched => {
                        if own.get(sealed) == Some(&file.size) && !removed.cover(sealed) {
                            part.carried.push(CarriedFile { file, sealed: sealed.clone() });
                        }
                    }
                    sealed => {
                        part.removed.extend(sealed.map(|entry| entry.path.clone()));
                        part.files.push(file);
                    }
                }
            }
        }
        let tree = self.cache.tree(base.id, &base.name).map_err(text)?;
        let mut others = Vec::new();
        walk(tree.as_fd(), &RelPath::root(), &mut others, &mut Lost::default())
            .map_err(|e| format!("cannot be listed: {e}"))?;
        for link in others.iter().filter(|entry| matches!(entry.kind, EntryKind::Symlink(_))) {
            let sealed = moves.origin(&link.path).and_then(|name| index.entry(&name));
            if sealed.is_none_or(|sealed| sealed.kind != link.kind) {
                part.removed.extend(sealed.map(|entry| entry.path.clone()));
                part.links.push(link.path.clone());
            }
        }
        Ok((part, others))
    }

    /// Takes names of the base out of this node's frozen part. In the records' thread.
    pub(super) fn carry(&self, id: DatasetId, dropped: &[RelPath]) {
        let result = self.try_carry(id, dropped);
        if let Err(reason) = &result {
            self.events.error(Some(id), &format!("what it carries on cannot be told: {reason}"));
        }
        self.state.lock().send(Event::Carried { id, result });
    }

    fn try_carry(&self, id: DatasetId, dropped: &[RelPath]) -> Result<(), String> {
        if dropped.is_empty() {
            return Ok(());
        }
        let dataset = self.dataset(id).map_err(text)?;
        let base = self.state.lock().base(&dataset.name).cloned().ok_or("its base is gone")?;
        let index = base.catalog.as_ref().ok_or("its base is not complete")?;
        let removed = Names::new(self.journal.lock().removed_of(&top_of(&base.name)?, base.id));
        let dropped = Names::new(dropped.iter().cloned());
        let moves = self.moves_of(&base);
        // A name that was removed here and is there was made anew, here.
        let goes = |sealed: &RelPath| dropped.cover(sealed) && !removed.cover(sealed);
        let mut disk = self.disk.lock();
        let changed = disk.change(&self.state, |table| {
            let Some(dataset) = table.datasets.get_mut(&id) else { return };
            for part in dataset.parts.values_mut() {
                let part = Arc::make_mut(part);
                let carried = Arc::clone(&part.carried);
                part.files.retain(|(entry, _)| !carried.get(&entry.path).is_some_and(goes));
                part.others.retain(|entry| {
                    let sealed = moves.origin(&entry.path).and_then(|name| index.entry(&name));
                    !sealed.is_some_and(|sealed| sealed.kind == entry.kind && goes(&sealed.path))
                });
            }
        });
        changed.map_err(text)
    }

    /// A directory operation below the top of a sealed dataset that makes names begins its next generation.
    pub(super) fn open_for(&self, op: &DirOp) -> Result<(), i32> {
        let path = match op {
            DirOp::Make { path, .. } => path,
            DirOp::Rename { from, .. } => from,
            DirOp::Remove { .. } => return Ok(()),
        };
        let Some((id, _)) = self.inside(path) else { return Ok(()) };
        self.change(id).map_err(|reason| {
            self.events.error(Some(id), &format!("its next generation cannot begin: {reason}"));
            libc::EIO
        })
    }

    /// The sealed dataset that `path` is below, and the path in it.
    fn inside(&self, path: &RelPath) -> Option<(DatasetId, RelPath)> {
        let (name, inner) = path.split_first().filter(|(_, inner)| !inner.is_root())?;
        let id = self.state.lock().base(name)?.id;
        Some((id, inner))
    }

    /// The sealed dataset below whose top an operation is.
    pub(super) fn operates_in(&self, op: &DirOp) -> Option<DatasetId> {
        let (DirOp::Make { path, .. } | DirOp::Remove { path } | DirOp::Rename { from: path, .. }) = op;
        self.inside(path).map(|(id, _)| id)
    }

    /// Records what an operation below the top of sealed dataset `id` is about to remove or to move.
    pub(super) fn note_operation(&self, id: DatasetId, op: &DirOp) -> io::Result<()> {
        match op {
            DirOp::Make { path, .. } => {
                // What was sealed there was removed; it is not to be seen below the new directory.
                if self.was_sealed_at(id, path) { self.journal.lock().going(path, id) } else { Ok(()) }
            }
            DirOp::Remove { path } => self.journal.lock().going(path, id),
            DirOp::Rename { from, to, exchange, .. } => {
                let inode = self.inode_at(id, from)?.ok_or(io::ErrorKind::NotFound)?;
                let (from, to) = (from.clone(), to.clone());
                self.journal.lock().moving(Moving { id, from, to, exchange: *exchange, inode })
            }
        }
    }

    fn was_sealed_at(&self, id: DatasetId, path: &RelPath) -> bool {
        let index = self.state.lock().table.datasets.get(&id).and_then(|dataset| dataset.catalog.clone());
        let (Some(index), Some((name, inner))) = (index, path.split_first()) else { return false };
        let Ok(top) = RelPath::new(name) else { return false };
        self.journal.lock().moves(&top, id).origin(&inner).is_some_and(|sealed| index.has(&sealed))
    }

    /// The inode number of what is in the tree at `path`.
    fn inode_at(&self, id: DatasetId, path: &RelPath) -> io::Result<Option<u64>> {
        let Some((name, inner)) = path.split_first() else { return Ok(None) };
        let tree = self.cache.tree(id, name)?;
        match beneath::open(tree.as_fd(), &inner, OFlags::PATH | OFlags::NOFOLLOW, Mode::empty()) {
            Ok(found) => Ok(Some(rustix::fs::fstat(&found)?.st_ino)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// What [`Node::note_operation`] recorded was done, or was not.
    pub(super) fn note_done(&self, id: DatasetId, op: &DirOp, done: bool) -> io::Result<()> {
        let index = self.state.lock().table.datasets.get(&id).and_then(|dataset| dataset.catalog.clone());
        let mut journal = self.journal.lock();
        let moved = match op {
            DirOp::Rename { .. } => journal.moved(done),
            DirOp::Make { .. } | DirOp::Remove { .. } => Ok(()),
        };
        // Only what this operation touched: others' number must not make it slower.
        let touched = match op {
            DirOp::Rename { from, to, .. } => vec![from, to],
            DirOp::Make { path, .. } | DirOp::Remove { path } => vec![path],
        };
        let inner: Vec<RelPath> = touched.iter().filter_map(|path| Some(path.split_first()?.1)).collect();
        if let (Some(index), Some((name, _))) = (index, touched.first().and_then(|path| path.split_first()))
            && let Ok(top) = RelPath::new(name)
        {
            journal.prune(&top, id, Some(&inner), |sealed| index.has(sealed));
        }
        moved
    }

    /// A worker died while it moved a directory: the directory tells whether it had.
    pub(super) fn settle_move(&self) {
        let Some(moving) = self.journal.lock().is_moving().cloned() else { return };
        let moved = self.inode_at(moving.id, &moving.to).map(|inode| inode == Some(moving.inode));
        if let Err(error) = moved.and_then(|moved| self.journal.lock().moved(moved)) {
            let text = format!("where {} is cannot be recorded: {error}", moving.from);
            self.events.error(Some(moving.id), &text);
        }
    }
}

/// What the directories' operations have removed of a dataset: names that stand for all that was sealed below them.
fn gone(index: &CatalogIndex, moves: &Moves) -> BTreeSet<RelPath> {
    if moves.is_empty() {
        return BTreeSet::new();
    }
    let entries = &index.catalog().entries;
    let (there, lost): (Vec<&Entry>, Vec<&Entry>) =
        entries.iter().partition(|entry| moves.present(&entry.path).is_some());
    let above = |path: &RelPath| {
        std::iter::successors(Some(path.clone()), |path| path.split_last().map(|(above, _)| above))
    };
    let mut kept: HashSet<RelPath> = HashSet::new();
    for entry in there {
        for path in above(&entry.path) {
            if !kept.insert(path) {
                break;
            }
        }
    }
    // The highest name below which nothing is left.
    lost.iter()
        .filter_map(|entry| above(&entry.path).take_while(|path| !kept.contains(path)).last())
        .collect()
}

/// Names that stand for themselves and all that is below them.
pub(super) struct Names(HashSet<RelPath>);

impl Names {
    pub(super) fn new(names: impl IntoIterator<Item = RelPath>) -> Self {
        Self(names.into_iter().collect())
    }

    pub(super) fn cover(&self, path: &RelPath) -> bool {
        let mut at = (!self.0.is_empty()).then(|| path.clone());
        while let Some(path) = at {
            if self.0.contains(&path) {
                return true;
            }
            at = path.split_last().map(|(above, _)| above);
        }
        false
    }
}

//! What programs here have changed in a sealed dataset, and removed from it: this node's word on its next generation
//! (DESIGN 4.6). The journal has it, before it is done.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use crate::control::{DirOp, Event, FrozenFile, FrozenPart};
use crate::dataset::{Entry, EntryKind};
use crate::ids::DatasetId;
use crate::path::RelPath;

use super::generation::{text, top_of};
use super::listing::{Lost, regular_files, walk};
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
        if !self.journal.lock().removed_of(&top, id).is_empty() {
            return Ok(true);
        }
        if dataset.home != Home::Under {
            return Ok(false);
        }
        let files = self.tree.files(&dataset.name).map_err(text)?;
        let (mut part, others) = self.survey(&dataset, files)?;
        let index = dataset.catalog.as_ref().ok_or("it is not complete")?;
        self.leave_out_logs(&dataset, index, &mut part.files).map_err(text)?;
        let made = others.iter().any(|entry| {
            entry.kind == EntryKind::Directory
                && !entry.path.is_root()
                && index.children(&entry.path).is_none()
        });
        Ok(made || !part.files.is_empty() || !part.removed.is_empty() || !part.links.is_empty())
    }

    /// A marker of `name` set now asks for what comes after this generation: that all have sealed it may be heard here
    /// after programs on other nodes have changed it.
    pub(super) fn marker_base(&self, name: &[u8]) -> Option<DatasetId> {
        self.state.lock().base(name).map(|dataset| dataset.id)
    }

    /// Programs have changed sealed dataset `id` here.
    pub(super) fn is_changed(&self, name: &[u8], id: DatasetId) -> bool {
        let under = self.state.lock().base(name).is_some_and(|dataset| dataset.home == Home::Under);
        under || top_of(name).is_ok_and(|top| !self.journal.lock().removed_of(&top, id).is_empty())
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
        {
            let journal = self.journal.lock();
            part.removed = journal.removed_of(&top, base.id);
            let removed = Names::new(part.removed.iter().cloned());
            let member_parts = || base.parts.values().filter(|part| part.recorded);
            let own: HashMap<&RelPath, u64> = member_parts()
                .flat_map(|part| &part.files)
                .map(|(entry, copy)| (&entry.path, copy.size))
                .collect();
            for file in files {
                let sealed = matches!(index.entry(&file.path).map(|e| &e.kind), Some(EntryKind::File(_)));
                let touched = top.concat(&file.path).is_ok_and(|path| journal.has(&path));
                if !sealed || touched {
                    part.files.push(file);
                } else if own.get(&file.path) == Some(&file.size) && !removed.cover(&file.path) {
                    part.carried.push(file);
                }
            }
        }
        let tree = self.cache.tree(base.id, &base.name).map_err(text)?;
        let mut others = Vec::new();
        walk(tree.as_fd(), &RelPath::root(), &mut others, &mut Lost::default())
            .map_err(|e| format!("cannot be listed: {e}"))?;
        let new_link = |entry: &&Entry| {
            matches!(entry.kind, EntryKind::Symlink(_))
                && index.entry(&entry.path).is_none_or(|base| base.kind != entry.kind)
        };
        part.links = others.iter().filter(new_link).map(|entry| entry.path.clone()).collect();
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
        // A name that was removed here and is there was made anew, here.
        let goes = |path: &RelPath| dropped.cover(path) && !removed.cover(path);
        let mut disk = self.disk.lock();
        let changed = disk.change(&self.state, |table| {
            let Some(dataset) = table.datasets.get_mut(&id) else { return };
            for part in dataset.parts.values_mut() {
                let part = Arc::make_mut(part);
                let carried = Arc::clone(&part.carried);
                part.files.retain(|(entry, _)| !(carried.contains(&entry.path) && goes(&entry.path)));
                part.others.retain(|entry| {
                    let same = index.entry(&entry.path).is_some_and(|base| base.kind == entry.kind);
                    !(same && goes(&entry.path))
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

    /// Records what an operation below the top of a sealed dataset is about to remove, and which files move.
    pub(super) fn note_operation(&self, op: &DirOp) -> io::Result<()> {
        match op {
            DirOp::Make { .. } => Ok(()),
            DirOp::Remove { path } => match self.inside(path) {
                Some((id, _)) => self.journal.lock().removing(path, id),
                None => Ok(()),
            },
            DirOp::Rename { from, to, exchange, .. } => {
                let Some((id, _)) = self.inside(from) else { return Ok(()) };
                let ways = [(from, to), (to, from)];
                for (from, to) in ways.iter().take(if *exchange { 2 } else { 1 }) {
                    self.note_moved(id, from, to)?;
                }
                Ok(())
            }
        }
    }

    fn note_moved(&self, id: DatasetId, from: &RelPath, to: &RelPath) -> io::Result<()> {
        let Some((name, inner)) = from.split_first() else { return Ok(()) };
        let top = self.cache.tree(id, name)?;
        for path in regular_files(&top, &inner)? {
            let moved = path.strip(&inner).and_then(|below| to.concat(&below).ok());
            if let Some(moved) = moved {
                self.journal.lock().changing(&moved, None)?;
            }
        }
        self.journal.lock().removing(from, id)
    }
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

//! What programs here have changed in a sealed dataset, and removed from it: this node's word on
//! its next generation. The journal has it, before it is done.

use std::collections::HashMap;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use crate::control::{DirOp, Event, FrozenFile, FrozenPart, Reason};
use crate::dataset::{Entry, EntryKind, FileCopy, Names};
use crate::ids::DatasetId;
use crate::path::RelPath;

use super::generation::{Generations, top_of};
use super::listing::{Lost, walk};
use super::node::Node;
use super::state::Dataset;
use crate::errno::Errno;

impl Node {
    /// Says whether anything was changed here. In the records' thread.
    pub(super) fn send_changes(&self, id: DatasetId) {
        let changed = self.changed_here(id).unwrap_or_else(|reason| {
            self.events.error(Some(id), &format!("its changes cannot be listed: {reason}"));
            // The freeze will say why.
            true
        });
        self.state.lock().send(Event::Changes { id, changed });
    }

    fn changed_here(&self, id: DatasetId) -> Result<bool, Reason> {
        let dataset = self.dataset(id)?;
        let top = top_of(&dataset.name)?;
        if self.journal.lock().has_removed(&top, id) {
            return Ok(true);
        }
        if !dataset.life.is_overwritten() {
            return Ok(false);
        }
        let files = self.tree.files(&dataset.name)?;
        let (mut part, others) = self.part_over(&dataset, files)?;
        let index = dataset.life.catalog().ok_or("it is not complete")?;
        self.leave_out_logs(&dataset, index, &mut part.files)?;
        // What was removed was looked at above.
        let made = others.iter().any(|entry| {
            entry.kind == EntryKind::Directory
                && !entry.path.is_root()
                && index.children(&entry.path).is_none()
        });
        Ok(made || !part.files.is_empty() || !part.links.is_empty())
    }

    /// The base of a marker that is set now: the complete dataset of that name here, also before
    /// this node has heard `Sealed`.
    pub(super) fn marker_base(&self, name: &[u8]) -> Option<DatasetId> {
        self.state.lock().base(name).map(|dataset| dataset.id)
    }

    /// Programs have changed sealed dataset `id` here.
    pub(super) fn is_changed(&self, name: &[u8], id: DatasetId) -> bool {
        let under = self.state.lock().base(name).is_some_and(|dataset| dataset.life.is_overwritten());
        under || top_of(name).is_ok_and(|top| self.journal.lock().has_removed(&top, id))
    }

    /// The dataset of that name is complete, and on this node alone: no other one can have changed
    /// it.
    pub(super) fn is_sealed_alone(&self, name: &[u8]) -> bool {
        let state = self.state.lock();
        let sealed = state.base(name).filter(|dataset| dataset.life.is_settled() && dataset.failed.is_none());
        sealed.and_then(|dataset| dataset.life.catalog()).is_some_and(|index| {
            index.catalog().layout.members.iter().all(|place| place.host == self.config.host)
        })
    }

    /// What this node has of the next generation over `base`, whose `files` are in the tree, and
    /// its directories and links.
    pub(super) fn part_over(
        &self,
        base: &Dataset,
        files: Vec<FrozenFile>,
    ) -> Result<(FrozenPart, Vec<Entry>), Reason> {
        let index = base.life.catalog().ok_or("its base is not complete")?;
        let top = top_of(&base.name)?;
        let mut part = FrozenPart::default();
        let gone = self.gone_of(base);
        let sealed_at = |path: &RelPath| index.entry(path).filter(|_| !gone.cover(path));
        {
            let journal = self.journal.lock();
            part.removed = journal.removed_of(&top, base.id);
            let removed: Names = part.removed.iter().cloned().collect();
            part.removed.extend(gone.iter().cloned());
            let member_parts = || base.parts.values().filter(|part| part.recorded);
            let own: HashMap<&RelPath, u64> = member_parts()
                .flat_map(|part| &part.files)
                .map(|(entry, copy)| (&entry.path, copy.size))
                .collect();
            for file in files {
                let sealed = sealed_at(&file.path);
                let touched = top.concat(&file.path).is_ok_and(|path| journal.has(&path));
                match sealed {
                    Some(Entry { path: sealed, kind: EntryKind::File(_), .. }) if !touched => {
                        if own.get(sealed) == Some(&file.size) && !removed.cover(sealed) {
                            part.carried.push(file);
                        }
                    }
                    sealed => {
                        part.removed.extend(sealed.map(|entry| entry.path.clone()));
                        part.files.push(file);
                    }
                }
            }
        }
        let tree = self.cache.tree(base.id, &base.name)?;
        let mut others = Vec::new();
        walk(tree.as_fd(), &RelPath::root(), &mut others, &mut Lost::default())
            .map_err(|e| Reason::from(e).on("cannot be listed"))?;
        for link in others.iter().filter(|entry| matches!(entry.kind, EntryKind::Symlink(_))) {
            let sealed = sealed_at(&link.path);
            if sealed.is_none_or(|sealed| sealed.kind != link.kind) {
                part.removed.extend(sealed.map(|entry| entry.path.clone()));
                part.links.push(link.path.clone());
            }
        }
        Ok((part, others))
    }

    /// Former generations that are still here, as their flushes have not ended, share the inode of
    /// a file that nobody has changed since: they get the same copy.
    pub(super) fn keep_for_former(
        &self,
        generations: &mut Generations,
        dataset: &Dataset,
        inode: u64,
        (names, sealed): (&[RelPath], &FileCopy),
    ) -> io::Result<()> {
        let Some(from) = names.first() else { return Ok(()) };
        let is_former = |other: &&Dataset| other.life.is_hidden() && other.name == dataset.name;
        let formers: Vec<Dataset> = self.state.lock().present().filter(is_former).cloned().collect();
        for former in formers {
            let Some(index) = former.life.catalog() else { continue };
            let inodes = generations.inodes(&self.cache, former.id, index)?;
            let shared = inodes.get(&inode).cloned().unwrap_or_default();
            let is_same = |name: &&RelPath| match index.entry(name).map(|entry| &entry.kind) {
                Some(EntryKind::File(copy)) => (copy.size, copy.crc) == (sealed.size, sealed.crc),
                _ => false,
            };
            for name in shared.iter().filter(is_same) {
                self.cache.share_kept((dataset.id, from), (former.id, name))?;
            }
            // Not before: a try that has failed is made again.
            inodes.remove(&inode);
        }
        Ok(())
    }

    /// Takes names of the base out of this node's frozen part. In the records' thread.
    pub(super) fn carry(&self, id: DatasetId, dropped: &[RelPath]) {
        let result = self.try_carry(id, dropped);
        if let Err(reason) = &result {
            self.events.error(Some(id), &format!("what it carries on cannot be told: {reason}"));
        }
        self.state.lock().send(Event::Carried { id, result });
    }

    fn try_carry(&self, id: DatasetId, dropped: &[RelPath]) -> Result<(), Reason> {
        if dropped.is_empty() {
            return Ok(());
        }
        let dataset = self.dataset(id)?;
        let base = self.state.lock().base(&dataset.name).cloned().ok_or("its base is gone")?;
        let index = base.life.catalog().ok_or("its base is not complete")?;
        let removed: Names =
            self.journal.lock().removed_of(&top_of(&base.name)?, base.id).into_iter().collect();
        let dropped: Names = dropped.iter().cloned().collect();
        let gone = self.gone_of(&base);
        // A name that was removed here and is there was made anew, here.
        let goes = |sealed: &RelPath| dropped.cover(sealed) && !removed.cover(sealed);
        let mut disk = self.disk.lock();
        let changed = disk.change(&self.state, |table| {
            let Some(dataset) = table.datasets.get_mut(&id) else { return };
            for part in dataset.parts.values_mut() {
                let part = Arc::make_mut(part);
                let carried = Arc::clone(&part.carried);
                part.files.retain(|(entry, _)| !(carried.contains(&entry.path) && goes(&entry.path)));
                part.others.retain(|entry| {
                    let sealed = index.entry(&entry.path).filter(|_| !gone.cover(&entry.path));
                    !sealed.is_some_and(|sealed| sealed.kind == entry.kind && goes(&sealed.path))
                });
            }
        });
        changed.map_err(Reason::from)
    }

    /// A directory that is made below the top of a sealed dataset begins its next generation.
    pub(super) fn open_for(&self, op: &DirOp) -> Result<(), i32> {
        let DirOp::Make { path, .. } = op else { return Ok(()) };
        let Some((id, _)) = self.inside(path) else { return Ok(()) };
        self.change_for_program(id, self.presentations()).map_err(|errno| errno.0)
    }

    /// As [`Node::change`]; an event tells why it cannot be, and the program gets an errno.
    pub(super) fn change_for_program(&self, id: DatasetId, asked: u64) -> Result<(), Errno> {
        self.change(id, asked).map_err(|reason| {
            self.events.error(Some(id), &format!("its next generation cannot begin: {reason}"));
            Errno(if reason.is_shortage_of_room() { libc::ENOSPC } else { libc::EIO })
        })
    }

    /// The sealed dataset that `path` is below, and the path in it.
    fn inside(&self, path: &RelPath) -> Option<(DatasetId, RelPath)> {
        let (name, inner) = path.split_first().filter(|(_, inner)| !inner.is_root())?;
        let id = self.state.lock().base(name)?.id;
        Some((id, inner))
    }

    /// The sealed dataset below whose top an operation is. Directories there are not renamed.
    pub(super) fn operates_in(&self, op: &DirOp) -> Option<DatasetId> {
        match op {
            DirOp::Make { path, .. } | DirOp::Remove { path } => self.inside(path).map(|(id, _)| id),
            DirOp::Rename { .. } => None,
        }
    }

    /// Records that an operation below the top of sealed dataset `id` is about to remove what was
    /// sealed at its path, or to make a directory where that was removed on some node.
    pub(super) fn note_operation(&self, id: DatasetId, op: &DirOp) -> io::Result<()> {
        match op {
            DirOp::Make { path, .. } | DirOp::Remove { path } if self.is_sealed_at(id, path) => {
                self.journal.lock().going(path, id)
            }
            _ => Ok(()),
        }
    }

    fn is_sealed_at(&self, id: DatasetId, path: &RelPath) -> bool {
        let index =
            self.state.lock().table.datasets.get(&id).and_then(|dataset| dataset.life.catalog().cloned());
        let (Some(index), Some((name, inner))) = (index, path.split_first()) else { return false };
        let Ok(top) = RelPath::new(name) else { return false };
        index.has(&inner) && !self.journal.lock().gone(&top, id).cover(&inner)
    }

    /// Names of a sealed dataset that directory operations have removed on all nodes.
    pub(super) fn gone_of(&self, dataset: &Dataset) -> Names {
        top_of(&dataset.name)
            .map_or_else(|_| Names::new(), |top| self.journal.lock().gone(&top, dataset.id).clone())
    }
}

//! Directories: votes and changes.

use std::collections::BTreeSet;

use scrfs::control::{DirOp, Event, HeldState};
use scrfs::dataset::{Catalog, EntryKind};
use scrfs::ids::RequestId;
use scrfs::path::RelPath;

use super::{Daemon, Dataset, EBUSY, EEXIST, ENOENT, ENOTEMPTY, EROFS};

pub(crate) fn top_of(path: &RelPath) -> &[u8] {
    path.split_first().map_or(b"", |(top, _)| top)
}

pub(crate) fn op_paths(op: &DirOp) -> Vec<&RelPath> {
    match op {
        DirOp::Make { path, .. } | DirOp::Remove { path } => vec![path],
        DirOp::Rename { from, to, .. } => vec![from, to],
    }
}

/// Renames a directory in a set of directories.
pub(crate) fn rename(directories: &mut BTreeSet<RelPath>, from: &RelPath, to: &RelPath) {
    let moved: Vec<RelPath> = directories.iter().filter(|dir| dir.strip(from).is_some()).cloned().collect();
    for dir in moved {
        directories.remove(&dir);
        let inner = dir.strip(from).expect("below");
        directories.insert(to.concat(&inner).expect("short"));
    }
}

impl Daemon {
    pub(crate) fn is_held(&self, path: &RelPath) -> bool {
        let touches = |op: &DirOp| {
            op_paths(op).iter().any(|held| held.strip(path).is_some() || path.strip(held).is_some())
        };
        self.prepared.iter().flat_map(|(_, ops)| ops).any(|(_, op)| touches(op))
    }

    /// A sealed dataset goes when it is empty as the node lists it where the request was made.
    pub(super) fn vote(&self, id: RequestId, op: &DirOp) -> i32 {
        let exists = |path: &RelPath| self.directories.contains(path);
        let parent_errno = |path: &RelPath| match path.split_last() {
            None => EEXIST,
            Some((parent, _)) if !parent.is_root() && !exists(&parent) => ENOENT,
            Some((parent, _)) if !parent.is_root() && self.listed(top_of(&parent)).is_some() => EROFS,
            Some(_) => 0,
        };
        let empty = |path: &RelPath| {
            let below = |other: &RelPath| other != path && other.strip(path).is_some();
            let invalid = self.invalid.contains(path.as_bytes());
            !invalid && !self.directories.iter().any(below) && !self.files.keys().any(below)
        };
        // Not yet asked for again: it stays frozen.
        let stays = |path: &RelPath| self.background.contains(top_of(path)) && !self.is_sealing(top_of(path));
        if op_paths(op).into_iter().any(stays) {
            return if matches!(op, DirOp::Make { path, .. } if exists(path)) { EEXIST } else { EBUSY };
        }
        match op {
            DirOp::Make { path, .. } if exists(path) => EEXIST,
            DirOp::Make { path, .. } => parent_errno(path),
            DirOp::Remove { path } if !exists(path) => ENOENT,
            DirOp::Remove { path } if self.listed(top_of(path)).is_some() => {
                let emptied = self.listed(path.as_bytes()).is_some_and(|(id, _)| self.emptied.contains(&id));
                match path.names().count() {
                    1 if id.origin == self.origin && !emptied => ENOTEMPTY,
                    1 => 0,
                    _ => EROFS,
                }
            }
            DirOp::Remove { path } if !empty(path) => ENOTEMPTY,
            DirOp::Remove { .. } => 0,
            DirOp::Rename { from, to, .. } => {
                if !exists(from) {
                    ENOENT
                } else if self.listed(top_of(from)).is_some() {
                    EROFS
                } else if exists(to) {
                    EEXIST
                } else if to.strip(from).is_some() {
                    22
                } else {
                    parent_errno(to)
                }
            }
        }
    }

    pub(super) fn apply(&mut self, op: &DirOp, events: &mut Vec<Event>) {
        match op {
            DirOp::Make { path, .. } => {
                self.directories.insert(path.clone());
            }
            DirOp::Remove { path } => {
                if let Some((id, dataset)) = self.listed(path.as_bytes()) {
                    let key = (dataset.epoch, id);
                    self.removed.insert(path.as_bytes().to_vec(), (key, self.served));
                    // All generations, also those that are not listed.
                    let complete = |dataset: &Dataset| dataset.state == HeldState::Complete;
                    let goes = |dataset: &Dataset| dataset.name == path.as_bytes() && complete(dataset);
                    for (id, _) in self.datasets.extract_if(.., |_, dataset| goes(dataset)) {
                        self.copies.retain(|(of, _), _| *of != id);
                        events.push(Event::Removed(id));
                    }
                    self.invalid.remove(path.as_bytes());
                    self.directories.retain(|dir| dir.strip(path).is_none());
                }
                assert!(!self.files.keys().any(|file| file.strip(path).is_some()), "files lost by rmdir");
                self.directories.remove(path);
                if path.names().count() == 1 {
                    self.forget_begun(path.as_bytes());
                }
            }
            DirOp::Rename { from, to, .. } => {
                for path in [from, to] {
                    assert!(!self.is_frozen(top_of(path)), "a frozen dataset's directory was renamed");
                }
                if self.directories.contains(from) {
                    if self.invalid.remove(from.as_bytes()) && to.names().count() == 1 {
                        self.invalid.insert(to.as_bytes().to_vec());
                    }
                    rename(&mut self.directories, from, to);
                    self.renamed_begun(from, to);
                    let moved: Vec<RelPath> =
                        self.files.keys().filter(|file| file.strip(from).is_some()).cloned().collect();
                    for file in moved {
                        let content = self.files.remove(&file).expect("there");
                        let inner = file.strip(from).expect("below");
                        self.files.insert(to.concat(&inner).expect("short"), content);
                    }
                }
            }
        }
    }

    pub(super) fn list_directories(&mut self, catalog: &Catalog) {
        let top = RelPath::new(catalog.name.clone()).expect("a name");
        for entry in catalog.entries.iter().filter(|entry| entry.kind == EntryKind::Directory) {
            self.directories.insert(top.concat(&entry.path).expect("short"));
        }
    }
}

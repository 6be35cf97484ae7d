//! Directories: votes and changes.

use std::collections::BTreeSet;

use scrfs::control::{DirOp, Event, HeldState};
use scrfs::dataset::{Catalog, EntryKind};
use scrfs::ids::RequestId;
use scrfs::path::RelPath;

use super::{Daemon, Dataset, EBUSY, EEXIST, EINVAL, ENOENT, ENOTEMPTY, EROFS};

pub(crate) fn top_of(path: &RelPath) -> &[u8] {
    path.split_first().map_or(b"", |(top, _)| top)
}

pub(crate) fn op_paths(op: &DirOp) -> Vec<&RelPath> {
    match op {
        DirOp::Make { path, .. } | DirOp::Remove { path } => vec![path],
        DirOp::Rename { from, to, .. } => vec![from, to],
    }
}

/// Where a path is once a directory has another name, and perhaps another directory has that one's.
fn moved(path: &RelPath, from: &RelPath, to: &RelPath, exchange: bool) -> RelPath {
    let below = |above: &RelPath, other: &RelPath| {
        path.strip(above).map(|inner| other.concat(&inner).expect("short"))
    };
    let back = || if exchange { below(to, from) } else { None };
    below(from, to).or_else(back).unwrap_or_else(|| path.clone())
}

/// Renames a directory in a set of directories, or exchanges two.
pub(crate) fn rename(directories: &mut BTreeSet<RelPath>, from: &RelPath, to: &RelPath, exchange: bool) {
    *directories = directories.iter().map(|path| moved(path, from, to, exchange)).collect();
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
            DirOp::Rename { from, to, no_replace, exchange } => {
                if !exists(from) {
                    ENOENT
                } else if self.listed(top_of(from)).is_some() {
                    EROFS
                } else if exists(to) && *no_replace {
                    EEXIST
                } else if to.strip(from).is_some() || *exchange && from.strip(to).is_some() {
                    EINVAL
                } else if !exists(to) {
                    if *exchange { ENOENT } else { parent_errno(to) }
                } else if self.listed(top_of(to)).is_some() {
                    EROFS
                } else if !exchange && !empty(to) {
                    ENOTEMPTY
                } else {
                    0
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
            DirOp::Rename { from, to, exchange, .. } => {
                for path in [from, to] {
                    assert!(!self.is_frozen(top_of(path)), "a frozen dataset's directory was renamed");
                }
                if self.directories.contains(from) {
                    let is_top = to.names().count() == 1;
                    let had = self.invalid.remove(from.as_bytes()) && is_top;
                    if *exchange && self.invalid.remove(to.as_bytes()) {
                        self.invalid.insert(from.as_bytes().to_vec());
                    }
                    if had {
                        self.invalid.insert(to.as_bytes().to_vec());
                    }
                    rename(&mut self.directories, from, to, *exchange);
                    if *exchange {
                        self.exchanged_begun(from, to);
                    } else {
                        self.renamed_begun(from, to);
                    }
                    let files = std::mem::take(&mut self.files).into_iter();
                    self.files =
                        files.map(|(file, bytes)| (moved(&file, from, to, *exchange), bytes)).collect();
                }
            }
        }
    }

    /// Done once more it would be undone.
    pub(super) fn note_exchange(&mut self, id: RequestId, op: &DirOp) {
        if matches!(op, DirOp::Rename { exchange: true, .. }) {
            self.exchanged.insert(id);
        }
    }

    pub(super) fn list_directories(&mut self, catalog: &Catalog) {
        let top = RelPath::new(catalog.name.clone()).expect("a name");
        for entry in catalog.entries.iter().filter(|entry| entry.kind == EntryKind::Directory) {
            self.directories.insert(top.concat(&entry.path).expect("short"));
        }
    }
}

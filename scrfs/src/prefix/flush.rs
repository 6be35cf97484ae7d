//! A flush as the lead sees it: a place to copy to, then the swap and the index entry.
//!
//! `swap.<id>`, a link that holds the dataset's name, stands from before the first rename until after the index entry. A
//! successor that finds it finishes the swap when the copy or the swapped dataset is there, and undoes it when neither is.

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::dataset::{Catalog, Entry, EntryKind};
use crate::ids::{DatasetId, Epoch};
use crate::path::RelPath;
use crate::record::Summary;
use crate::store::beneath;
use crate::transfer::pfs::restore_attributes;
use rustix::fs::{Mode, OFlags};

use super::catalog::Published;
use super::directory::{
    PfsError, Prefix, Result, exists, is_name, read_record, remove_file, remove_tree, rename, replace,
    sync_directory, sync_parent,
};
use super::index;
use super::lock::Lock;

/// Makes the directory that daemons copy into, with the dataset's directories and links.
pub(super) fn begin(prefix: &Prefix, catalog: &Catalog) -> Result<Vec<u8>> {
    if !is_name(&catalog.name) {
        return Err(refused(catalog, "this name cannot be used in the prefix"));
    }
    prefix.make()?;
    let directory = prefix.flush(catalog.id);
    remove_tree(&directory)?;
    fs::create_dir(&directory).map_err(PfsError::io(&directory, "mkdir"))?;
    make_names(&directory, catalog)?;
    Ok(directory.as_os_str().as_bytes().to_vec())
}

/// Makes the dataset's directories and links in `directory`, as far as they are missing.
pub(super) fn make_names(directory: &Path, catalog: &Catalog) -> Result<()> {
    let top = open(directory)?;
    for entry in &catalog.entries {
        let made = match &entry.kind {
            EntryKind::Directory => beneath::make_directories(top.as_fd(), &entry.path).map(drop),
            EntryKind::Symlink(target) => link(top.as_fd(), &entry.path, target),
            EntryKind::File(_) => Ok(()),
        };
        made.map_err(PfsError::io(&directory.join(entry.path.as_path()), "make"))?;
    }
    Ok(())
}

fn link(top: std::os::fd::BorrowedFd<'_>, path: &RelPath, target: &[u8]) -> io::Result<()> {
    let (parent, name) = beneath::parent_of(top, path, true)?;
    match rustix::fs::symlinkat(target, &parent, name.as_path()) {
        Err(rustix::io::Errno::EXIST) => Ok(()),
        other => Ok(other?),
    }
}

/// All members have copied: gives the dataset its name and its index entry. Again after a crash: finishes what is left.
pub(super) fn publish(prefix: &Prefix, catalog: &Catalog) -> Result<()> {
    let copied = prefix.flush(catalog.id);
    if exists(&copied)? {
        finish_copy(prefix, &copied, catalog)?;
    }
    let lock = Lock::take(prefix)?;
    announce(prefix, catalog)?;
    finish_swap(prefix, &lock, catalog.id)
}

/// All files are in `copied`: checks that, and adds the records.
pub(super) fn finish_copy(prefix: &Prefix, copied: &Path, catalog: &Catalog) -> Result<()> {
    check_copies(copied, catalog)?;
    write_records(prefix, copied, catalog)?;
    put_on_storage(copied, catalog)
}

/// The link that stands until the index entry is written.
fn announce(prefix: &Prefix, catalog: &Catalog) -> Result<()> {
    let swap = prefix.swap(catalog.id);
    if !exists(&swap)? {
        let name = Path::new(std::ffi::OsStr::from_bytes(&catalog.name));
        std::os::unix::fs::symlink(name, &swap).map_err(PfsError::io(&swap, "symlink"))?;
        sync_directory(&prefix.state(""))?;
    }
    Ok(())
}

/// Publishes the dataset that is whole, with its records, in `from`, a directory of `.scr`. A flush of it that nobody
/// finishes goes.
pub(super) fn swap_in(prefix: &Prefix, lock: &Lock, catalog: &Catalog, from: &Path) -> Result<()> {
    if !exists(from)? {
        return Err(PfsError::io(from, "open")(io::ErrorKind::NotFound.into()));
    }
    prefix.newest()?;
    settle_swap(prefix, lock, catalog.id)?;
    let copied = prefix.flush(catalog.id);
    remove_tree(&copied)?;
    announce(prefix, catalog)?;
    prefix.step("scavenge.swap")?;
    rename(from, &copied)?;
    sync_parent(from)?;
    sync_directory(&prefix.state(""))?;
    finish_swap(prefix, lock, catalog.id)
}

/// Finishes or undoes the swap of dataset `id`, if a crash has left it half done.
pub(super) fn settle(prefix: &Prefix, id: DatasetId) -> Result<()> {
    if !exists(&prefix.swap(id))? {
        return Ok(());
    }
    let lock = Lock::take(prefix)?;
    settle_swap(prefix, &lock, id)
}

fn settle_swap(prefix: &Prefix, lock: &Lock, id: DatasetId) -> Result<()> {
    if !exists(&prefix.swap(id))? {
        return Ok(());
    }
    match finish_swap(prefix, lock, id) {
        Err(error @ (PfsError::Dataset { .. } | PfsError::Content { .. } | PfsError::Unusable { .. })) => {
            tracing::warn!(dataset = id.0, %error, "a half-done swap cannot be finished");
            remove_file(&prefix.swap(id))
        }
        other => other,
    }
}

/// Finishes or undoes the swaps that a crash left half done, and removes copies that were never finished.
pub(super) fn recover(prefix: &Prefix) -> Result<()> {
    // A dataset that is swapped in has its link before its copy: a copy of which there was no link afterwards is none.
    let [flushes, olds, swaps] = ["flush.", "old.", "swap."].map(|word| prefix.numbered(word));
    let (flushes, olds, swaps) = (flushes?, olds?, swaps?);
    if swaps.is_empty() && flushes.is_empty() && olds.is_empty() {
        return Ok(());
    }
    let lock = Lock::take(prefix)?;
    for id in swaps.into_iter().map(DatasetId) {
        settle_swap(prefix, &lock, id)?;
    }
    for id in flushes.into_iter().map(DatasetId) {
        remove_tree(&prefix.flush(id))?;
    }
    for id in olds.into_iter().map(DatasetId) {
        remove_tree(&prefix.old(id))?;
    }
    Ok(())
}

/// Does what is left of the swap that `swap.<id>` announces.
fn finish_swap(prefix: &Prefix, lock: &Lock, id: DatasetId) -> Result<()> {
    let swap = prefix.swap(id);
    let target = fs::read_link(&swap).map_err(PfsError::io(&swap, "readlink"))?;
    let name = target.as_os_str().as_bytes();
    if !is_name(name) {
        return Err(PfsError::content(&swap, "names no dataset"));
    }
    let (copied, place, old) = (prefix.flush(id), prefix.dataset(name), prefix.old(id));
    if exists(&copied)? && summary_of(&copied)?.is_some() {
        if exists(&place)? {
            if !is_dataset(&place)? {
                remove_file(&swap)?;
                let reason = "something that is no dataset has this name in the prefix".to_owned();
                return Err(PfsError::Dataset { id, name: name.to_vec(), reason });
            }
            prefix.step("flush.swap")?;
            remove_tree(&old)?;
            rename(&place, &old)?;
        }
        prefix.step("flush.swapping")?;
        rename(&copied, &place)?;
        sync_directory(prefix.root())?;
        sync_directory(&prefix.state(""))?;
    }
    prefix.step("flush.swapped")?;
    match summary_of(&place)? {
        Some((found, epoch, summary)) if found == id => {
            index::add(prefix, lock, id, epoch, summary.dataset.unwrap_or_default())?;
        }
        _ if exists(&old)? && !exists(&place)? => rename(&old, &place)?,
        _ => {}
    }
    prefix.step("flush.cleanup")?;
    remove_tree(&old)?;
    remove_file(&swap)?;
    sync_directory(&prefix.state(""))
}

/// Whether a directory is a complete dataset, or was one before its summary was damaged: such a one may be replaced too.
fn is_dataset(directory: &Path) -> Result<bool> {
    match read_summary(directory) {
        Err(PfsError::Record { .. }) => Ok(true),
        Err(error) => Err(error),
        Ok(_) => Ok(summary_of(directory)?.is_some()),
    }
}

/// Which dataset a directory is; `None` when it is none, or not a complete one, or its summary is damaged.
fn summary_of(directory: &Path) -> Result<Option<(DatasetId, Epoch, Summary)>> {
    let summary = match read_summary(directory) {
        Err(error @ PfsError::Record { .. }) => {
            tracing::warn!(%error, "a summary is damaged: what it is about is no dataset any more");
            return Ok(None);
        }
        other => other?,
    };
    let Some(summary) = summary else { return Ok(None) };
    let id = summary.dataset.as_ref().and_then(|dataset| dataset.id);
    let epoch = Epoch(summary.epoch.unwrap_or(0));
    Ok(id.filter(|_| summary.is_complete()).map(|id| (id, epoch, summary)))
}

/// `None` when there is none; a file in the directory's place has none either.
fn read_summary(directory: &Path) -> Result<Option<Summary>> {
    match read_record(&directory.join(".scr/summary.scr")) {
        Err(PfsError::Io { source, .. }) if source.kind() == io::ErrorKind::NotADirectory => Ok(None),
        other => other,
    }
}

/// Every file is there with its size; the daemons have compared CRCs when they copied.
fn check_copies(copied: &Path, catalog: &Catalog) -> Result<()> {
    let top = open(copied)?;
    for entry in &catalog.entries {
        let EntryKind::File(file) = &entry.kind else { continue };
        let path = || copied.join(entry.path.as_path());
        let found = beneath::open_file(top.as_fd(), &entry.path).map_err(PfsError::io(&path(), "open"))?;
        let size = rustix::fs::fstat(&found).map_err(|e| PfsError::io(&path(), "stat")(e.into()))?.st_size;
        if u64::try_from(size) != Ok(file.size) {
            return Err(PfsError::content(&path(), format!("{size} bytes, sealed with {}", file.size)));
        }
    }
    Ok(())
}

/// rank2file first, the summary last: with it the copy is whole.
fn write_records(prefix: &Prefix, copied: &Path, catalog: &Catalog) -> Result<()> {
    let directory = copied.join(".scr");
    match fs::create_dir(&directory) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
            return Err(PfsError::io(&directory, "mkdir")(e));
        }
        _ => {}
    }
    let published = Published::of(catalog).map_err(|reason| refused(catalog, &reason))?;
    replace(&directory.join("rank2file.0.0.scr"), &published.leaf)?;
    replace(&directory.join("rank2file.scr"), &published.root)?;
    prefix.step("flush.summary")?;
    replace(&directory.join("summary.scr"), &published.summary)
}

/// Modes and times of directories, deepest first, now that nothing is written into them any more; and their names.
fn put_on_storage(copied: &Path, catalog: &Catalog) -> Result<()> {
    let top = open(copied)?;
    let mut directories: Vec<&Entry> =
        catalog.entries.iter().filter(|e| matches!(e.kind, EntryKind::Directory)).collect();
    directories.sort_by(|a, b| b.path.cmp(&a.path));
    for entry in directories {
        let path = copied.join(entry.path.as_path());
        let directory =
            beneath::open_directory(top.as_fd(), &entry.path).map_err(PfsError::io(&path, "open"))?;
        // Its owner can go on moving and removing it; the sealed mode is in the records.
        let open_to_owner = Entry { mode: entry.mode | 0o700, ..entry.clone() };
        if let Err(error) = restore_attributes(&directory, &open_to_owner) {
            tracing::debug!(path = %path.display(), %error, "a directory on the PFS keeps other attributes");
        }
        rustix::fs::fsync(&directory).map_err(|e| PfsError::io(&path, "fsync")(e.into()))?;
    }
    for entry in &catalog.entries {
        if let EntryKind::File(_) = entry.kind
            && let Some((parent, _)) = entry.path.split_last()
            && catalog.entry(&parent).is_none()
        {
            let path = copied.join(parent.as_path());
            let directory =
                beneath::open_directory(top.as_fd(), &parent).map_err(PfsError::io(&path, "open"))?;
            rustix::fs::fsync(&directory).map_err(|e| PfsError::io(&path, "fsync")(e.into()))?;
        }
    }
    sync_directory(copied)
}

fn open(directory: &Path) -> Result<std::os::fd::OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat(rustix::fs::CWD, directory, flags, Mode::empty())
        .map_err(|e| PfsError::io(directory, "open")(e.into()))
}

fn refused(catalog: &Catalog, reason: &str) -> PfsError {
    PfsError::Dataset { id: catalog.id, name: catalog.name.clone(), reason: reason.to_owned() }
}

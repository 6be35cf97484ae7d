//! The index of the prefix, and `scr.current` beside it.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::hash::Text;
use crate::ids::{DatasetId, Epoch};
use crate::plain;
use crate::record::{DatasetDescriptor, Index, IndexEntry, IndexView, Record, Words};

use super::StoredDataset;
use super::directory::{
    EPOCH_MAX, PfsError, Prefix, Result, exists, is_kept, is_name, read_record, read_summary, remove_file,
    rename, replace, sync_parent,
};
use super::lock::Lock;
use super::strangers;

/// The link that a person may change.
const CURRENT: &str = "scr.current";

/// The datasets of the prefix, newest first.
pub(super) fn survey(prefix: &Prefix) -> Result<Vec<StoredDataset>> {
    let index = read(prefix)?;
    let path = prefix.state("index.scr");
    if index.entries().next().is_some() && !exists(&path)? {
        let path = path.display();
        tracing::warn!(%path, "the index is missing: the datasets' own summaries are read instead");
    }
    let current = current(prefix, &index)?;
    let mut stored = Vec::new();
    for view in index.entries() {
        let Some(name) = view.name else { continue };
        let directory = prefix.dataset(name);
        let usable = view.complete && view.failed.is_empty() && is_name(name) && is_kept(&directory)?;
        stored.push(StoredDataset {
            id: view.id,
            epoch: Epoch(view.epoch.unwrap_or(0)),
            name: name.to_vec(),
            directory: directory.as_os_str().as_bytes().to_vec(),
            created_us: view.dataset.and_then(|dataset| dataset.created_us),
            usable,
            current: current.as_ref() == Some(name),
        });
    }
    stored.sort_by_key(|dataset| std::cmp::Reverse((dataset.epoch, dataset.id)));
    // A name may have entries of several ids; the newest is the one that is there.
    let mut seen = false;
    for dataset in stored.iter_mut().filter(|dataset| dataset.current) {
        dataset.current = !std::mem::replace(&mut seen, true);
    }
    Ok(stored)
}

/// Adds a dataset that is in place; other entries of its name go with the files that they were
/// about. This is the commit point of a flush.
pub(super) fn add(
    prefix: &Prefix,
    lock: &Lock,
    id: DatasetId,
    epoch: Epoch,
    about: DatasetDescriptor,
) -> Result<()> {
    let mut index = read(prefix)?;
    let Some(name) = about.name.clone() else {
        return Err(PfsError::content(&prefix.state("index.scr"), format!("dataset {id} has no name")));
    };
    if let Some(newer) = newer_in(&index, name.as_bytes(), (epoch, id), None) {
        return Err(PfsError::Newer { id, name: name.as_bytes().to_vec(), epoch, newer });
    }
    let replaced: Vec<_> =
        index.entries().filter(|v| v.name == Some(&name) && v.id != id).map(|v| v.id).collect();
    for other in replaced {
        index.remove_entry(&name, other);
    }
    let entry = IndexEntry {
        complete: Some(true),
        dataset: Some(about),
        flushed: now(),
        epoch: Some(epoch.0),
        ..IndexEntry::default()
    };
    let newer_is_current = index
        .entries()
        .filter(|v| v.name.is_some() && v.name == index.current.as_ref() && v.complete && v.failed.is_empty())
        .any(|v| age(&v) > (epoch, id));
    index.set_entry(name.clone(), id, entry);
    if !newer_is_current {
        index.current = Some(name);
    }
    index.linked.clone_from(&index.current);
    // Or the link would stay, and be another holder's.
    lock.is_held()?;
    make_link(prefix, &index)?;
    write(prefix, lock, &index)?;
    prefix.step("flush.current")?;
    place_link(prefix)
}

/// The epoch of a dataset of this name that is newer than one of age `than`: of one in the index,
/// or of `there`, which has the name in the prefix. Those that are marked FAILED may be replaced.
pub(super) fn newer(
    prefix: &Prefix,
    name: &[u8],
    than: (Epoch, DatasetId),
    there: Option<(Epoch, DatasetId)>,
) -> Result<Option<Epoch>> {
    Ok(newer_in(&read(prefix)?, name, than, there))
}

/// The index has a dataset of this name and age, which has not failed; or there is no sound index.
pub(super) fn may_list(prefix: &Prefix, name: &Text, of: (Epoch, DatasetId)) -> Result<bool> {
    match read_record::<Index>(&prefix.state("index.scr")) {
        Ok(Some(index)) => {
            let mut of_name = index.entries().filter(|view| view.name == Some(name));
            Ok(of_name.any(|view| age(&view) == of && view.complete && view.failed.is_empty()))
        }
        Ok(None) | Err(PfsError::Record { .. }) => Ok(true),
        Err(error) => Err(error),
    }
}

fn newer_in(
    index: &Index,
    name: &[u8],
    than: (Epoch, DatasetId),
    there: Option<(Epoch, DatasetId)>,
) -> Option<Epoch> {
    let of_name = || index.entries().filter(|view| view.name.is_some_and(|it| it.as_bytes() == name));
    let has_failed = |found| of_name().any(|view| age(&view) == found && !view.failed.is_empty());
    let listed = of_name().filter(|view| view.complete && view.failed.is_empty()).map(|view| age(&view));
    let all = listed.chain(there.filter(|found| !has_failed(*found)));
    all.filter(|of| *of > than).map(|(epoch, _)| epoch).max()
}

/// Notes that a fetch of this dataset found bad bytes or records.
pub(super) fn mark_failed(prefix: &Prefix, lock: &Lock, stored: &StoredDataset) -> Result<()> {
    let mut index = read(prefix)?;
    let path = prefix.state("index.scr");
    let name = Text::new(stored.name.clone()).map_err(|e| PfsError::content(&path, e.to_string()))?;
    // One that has taken its place meanwhile is another.
    let entry = index.entry_mut(&name, stored.id).filter(|entry| entry.epoch.unwrap_or(0) == stored.epoch.0);
    let Some(entry) = entry else {
        return Err(PfsError::content(&path, format!("no entry of dataset {}", stored.id)));
    };
    entry.failed = now();
    write(prefix, lock, &index)
}

fn age(view: &IndexView<'_>) -> (Epoch, DatasetId) {
    (Epoch(view.epoch.unwrap_or(0)), view.id)
}

/// The highest epoch of a dataset in the prefix, by the index or, without one, by the datasets' own
/// summaries.
pub(super) fn highest_epoch(prefix: &Prefix) -> Result<Epoch> {
    let index = read(prefix)?;
    // The index may be a colleague's.
    let epochs = index.entries().filter_map(|view| view.epoch).filter(|epoch| *epoch < EPOCH_MAX);
    Ok(Epoch(epochs.max().unwrap_or(0)))
}

/// The index; one that is damaged or missing is made anew from the summaries, and replaced by the
/// next write.
fn read(prefix: &Prefix) -> Result<Index> {
    match read_record(&prefix.state("index.scr")) {
        Err(error @ PfsError::Record { .. }) => {
            tracing::warn!(%error, "the index is damaged: the datasets' own summaries are read instead");
            from_summaries(prefix)
        }
        Ok(None) => from_summaries(prefix),
        other => Ok(other?.unwrap_or_else(Index::new)),
    }
}

/// An index of the complete datasets directly in the prefix, the newest as CURRENT.
fn from_summaries(prefix: &Prefix) -> Result<Index> {
    let root = prefix.root();
    let mut index = Index::new();
    let mut newest = None;
    let names = match fs::read_dir(root) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(index),
        other => other.map_err(PfsError::io(root, "list"))?,
    };
    for found in names {
        let found = found.map_err(PfsError::io(root, "list"))?;
        let name = found.file_name();
        // `scr.current` and other links name what is found by itself.
        if !is_name(name.as_bytes()) || !plain::look(&found.path()).is_ok_and(|it| it.is_dir()) {
            continue;
        }
        let summary = match read_summary(&found.path()) {
            // In a directory that everybody may write to there may be many of other users.
            Ok(Some(summary)) if summary.is_complete() && is_kept(&found.path())? => summary,
            Ok(_) => continue,
            Err(error) => {
                tracing::warn!(%error, "a summary cannot be read: its dataset is left out");
                continue;
            }
        };
        let Some(id) = summary.dataset.as_ref().and_then(|about| about.id) else { continue };
        let Ok(name) = Text::new(name.as_bytes()) else { continue };
        let age = (summary.epoch.unwrap_or(0), id);
        if newest.is_none_or(|newest| age > newest) {
            newest = Some(age);
            index.current = Some(name.clone());
        }
        let entry = IndexEntry {
            complete: Some(true),
            dataset: summary.dataset,
            epoch: summary.epoch,
            ..IndexEntry::default()
        };
        index.set_entry(name, id, entry);
    }
    Ok(index)
}

fn write(prefix: &Prefix, lock: &Lock, index: &Index) -> Result<()> {
    prefix.newest()?;
    prefix.step("flush.index")?;
    lock.is_held()?;
    replace(&prefix.state("index.scr"), &index.encode())
}

/// The dataset that a restart presents: what the link says where a person changed the link, else
/// CURRENT, which `scr_index --current` sets and leaves the link.
fn current(prefix: &Prefix, index: &Index) -> Result<Option<Text>> {
    let linked = target(&prefix.root().join(CURRENT))?;
    // A flush that ended before it could place the new link leaves the former one.
    let is_unchanged =
        index.linked.is_some() && (linked == index.linked || target(&new_link(prefix))? == index.linked);
    let known = |name: &Text| index.entries().any(|view| view.name == Some(name));
    Ok(linked.filter(|name| !is_unchanged && known(name)).or_else(|| index.current.clone()))
}

/// The last name that a link has; `None` where there is none, or something else of its name, or a
/// stranger's.
fn target(link: &Path) -> Result<Option<Text>> {
    match strangers::look(link).and_then(|_| plain::read_link(link)) {
        Err(error) if strangers::is_of_strangers(&error) => Ok(None),
        Ok(target) => Ok(target.file_name().and_then(|name| Text::new(name.as_bytes()).ok())),
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidInput) => Ok(None),
        Err(e) => Err(PfsError::io(link, "readlink")(e)),
    }
}

/// Where the next link waits until the index is written.
fn new_link(prefix: &Prefix) -> PathBuf {
    prefix.state("current.new")
}

/// Makes the link that says what CURRENT says.
fn make_link(prefix: &Prefix, index: &Index) -> Result<()> {
    let link = new_link(prefix);
    remove_file(&link)?;
    let Some(name) = &index.current else { return Ok(()) };
    std::os::unix::fs::symlink(name.as_path(), &link).map_err(PfsError::io(&link, "symlink"))
}

/// Puts the new link in the place of the former one. A person's own file or directory of that name
/// stays, and so does whatever a stranger has there.
fn place_link(prefix: &Prefix) -> Result<()> {
    let (new, link) = (new_link(prefix), prefix.root().join(CURRENT));
    match strangers::look(&link) {
        Ok(found) if !found.is_symlink() => return remove_file(&new),
        Err(error) if strangers::is_of_strangers(&error) => return remove_file(&new),
        _ => {}
    }
    rename(&new, &link)?;
    sync_parent(&link)
}

/// This moment as the index has it; UTC, as the library keeps no time zone.
fn now() -> Words {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let text = Text::new(stamp(seconds)).unwrap_or_default();
    std::iter::once((text, ())).collect()
}

/// `YYYY-MM-DDTHH:MM:SS` of seconds since 1970 (days to civil date in the proleptic Gregorian
/// calendar).
pub(crate) fn stamp(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Years from 1 March 0000, so that the leap day is the last of its year.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let date = day - (153 * month + 2) / 5 + 1;
    let (month, carry) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let year = era * 400 + year + carry;
    format!("{year:04}-{month:02}-{date:02}T{:02}:{:02}:{:02}", rest / 3600, rest / 60 % 60, rest % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_are_dates() {
        assert_eq!(stamp(0), "1970-01-01T00:00:00");
        assert_eq!(stamp(951_782_399), "2000-02-28T23:59:59");
        assert_eq!(stamp(951_827_696), "2000-02-29T12:34:56");
        assert_eq!(stamp(1_795_241_159), "2026-11-21T06:05:59");
    }
}

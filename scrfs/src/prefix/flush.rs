//! A flush as the lead sees it: a place to copy to, then the swap and the index entry.
//!
//! `swap.<epoch>.<id>`, a link that holds the dataset's name, stands from before the first rename
//! until after the index entry. A successor that finds it finishes the swap when the copy or the
//! swapped dataset is there, and undoes it when neither is. The copy is `flush.<epoch>.<id>`, and
//! what it replaces waits in `old.<epoch>.<id>`; former releases left out the epoch.
//!
//! Two jobs may use a prefix at once, with the same ids and names. Each epoch copies into a
//! directory of its own, and a dataset never takes the place of one that a newer epoch has sealed.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::dataset::{Catalog, Entry, EntryKind};
use crate::ids::{DatasetId, Epoch};
use crate::path::RelPath;
use crate::plain;
use crate::record::Summary;
use crate::store::beneath;
use crate::transfer::pfs::keep_attributes;
use rustix::fs::{Mode, OFlags};

use super::catalog::Published;
use super::directory::{
    Arrival, PfsError, Prefix, Result, exists, is_kept, is_name, read_summary, remove_file, remove_tree,
    rename, replace, replace_from, sync_directory, sync_parent,
};
use super::index;
use super::lock::Lock;
use super::scavenge::{DATASET, WORD};
use super::strangers;

/// Makes the directory that daemons copy into, with the dataset's directories and links.
pub(super) fn begin(prefix: &Prefix, catalog: &Catalog) -> Result<Vec<u8>> {
    if !is_name(&catalog.name) {
        return Err(refused(catalog, "this name cannot be used in the prefix"));
    }
    prefix.make()?;
    prefix.newest()?;
    if let Some(newer) = index::newer(prefix, &catalog.name, (catalog.epoch, catalog.id), None)? {
        let (id, name, epoch) = (catalog.id, catalog.name.clone(), catalog.epoch);
        return Err(PfsError::Newer { id, name, epoch, newer });
    }
    discard_others(prefix, catalog.id)?;
    let directory = prefix.flush(prefix.arrival(catalog.id));
    remove_tree(&directory)?;
    plain::make_directory(&directory).map_err(PfsError::io(&directory, "mkdir"))?;
    make_names(&directory, catalog, &|| {})?;
    Ok(directory.as_os_str().as_bytes().to_vec())
}

/// An epoch has one flush at a time: its other copies are of flushes that were given up, or that
/// begin anew when they are tried again. They take room that this one may need.
fn discard_others(prefix: &Prefix, id: DatasetId) -> Result<()> {
    let mut others = prefix.arrivals("flush.")?;
    others.retain(|other| other.epoch == Some(prefix.epoch) && other.id != id);
    for other in others {
        if !exists(&prefix.swap(other))? && !is_astray(prefix, other)? {
            discard(&prefix.flush(other));
        }
    }
    Ok(())
}

/// Makes the dataset's directories and links in `directory`, as far as they are missing; `goes` is
/// told for each.
pub(super) fn make_names(directory: &Path, catalog: &Catalog, goes: &dyn Fn()) -> Result<()> {
    let top = open(directory)?;
    for entry in &catalog.entries {
        goes();
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

/// All members have copied: gives the dataset its name and its index entry. Again after a crash:
/// finishes what is left.
pub(super) fn publish(prefix: &Prefix, catalog: &Catalog) -> Result<()> {
    prefix.newest()?;
    let arrival = prefix.arrival(catalog.id);
    let copied = prefix.flush(arrival);
    if exists(&copied)? {
        finish_copy(prefix, &copied, catalog, None, &|| {})?;
    }
    let lock = Lock::take(prefix)?;
    announce(prefix, arrival, &catalog.name)?;
    let swapped = finish_swap(prefix, &lock, arrival);
    if let Err(PfsError::Newer { .. }) = swapped {
        // There is no use for it any more.
        discard(&copied);
        remove_file(&prefix.swap(arrival))?;
    }
    is_this(swapped?, catalog, &copied)
}

/// What was swapped in, or was in place already, is not a dataset of the same id and another epoch.
fn is_this(published: Option<Epoch>, catalog: &Catalog, copied: &Path) -> Result<()> {
    match published {
        Some(epoch) if epoch == catalog.epoch => Ok(()),
        _ => Err(PfsError::io(copied, "open")(io::ErrorKind::NotFound.into())),
    }
}

/// All files are in `copied`: checks that, and adds the records. Where others may do so at the same
/// time, or take `copied` away to publish it, the records are written in the directory `aside`.
pub(super) fn finish_copy(
    prefix: &Prefix,
    copied: &Path,
    catalog: &Catalog,
    aside: Option<&Path>,
    goes: &dyn Fn(),
) -> Result<()> {
    check_copies(copied, catalog, goes)?;
    write_records(prefix, copied, catalog, aside)?;
    put_on_storage(copied, catalog, goes)
}

/// The link that stands until the index entry is written.
fn announce(prefix: &Prefix, arrival: Arrival, name: &[u8]) -> Result<()> {
    let swap = prefix.swap(arrival);
    if !exists(&swap)? {
        let name = Path::new(std::ffi::OsStr::from_bytes(name));
        std::os::unix::fs::symlink(name, &swap).map_err(PfsError::io(&swap, "symlink"))?;
        sync_directory(&prefix.state(""))?;
    }
    Ok(())
}

/// Publishes the dataset that is whole, with its records, in `from`, a directory of `.scr`. Flushes
/// of it that nobody finishes go.
pub(super) fn swap_in(prefix: &Prefix, lock: &Lock, catalog: &Catalog, from: &Path) -> Result<()> {
    if !exists(from)? {
        return Err(PfsError::io(from, "open")(io::ErrorKind::NotFound.into()));
    }
    prefix.newest()?;
    settle_swaps(prefix, lock, catalog.id)?;
    // Not of this epoch: its coordinators may be about to flush another dataset of this id.
    let arrival = Arrival { epoch: Some(catalog.epoch), id: catalog.id };
    remove_tree(&prefix.flush(arrival))?;
    for left in of_id(prefix, "flush.", catalog.id)? {
        if left.epoch < Some(prefix.epoch) {
            discard(&prefix.flush(left));
        }
    }
    announce(prefix, arrival, &catalog.name)?;
    prefix.step("scavenge.swap")?;
    lock.is_held()?;
    rename(from, &prefix.flush(arrival))?;
    sync_parent(from)?;
    sync_directory(&prefix.state(""))?;
    is_this(finish_swap(prefix, lock, arrival)?, catalog, from)
}

fn of_id(prefix: &Prefix, word: &str, id: DatasetId) -> Result<Vec<Arrival>> {
    let mut found = prefix.arrivals(word)?;
    found.retain(|arrival| arrival.id == id);
    Ok(found)
}

/// Finishes or undoes the swaps of datasets `id`, where a crash has left one half done.
pub(super) fn settle(prefix: &Prefix, id: DatasetId) -> Result<()> {
    if of_id(prefix, "swap.", id)?.is_empty() {
        return Ok(());
    }
    let lock = Lock::take(prefix)?;
    settle_swaps(prefix, &lock, id)
}

fn settle_swaps(prefix: &Prefix, lock: &Lock, id: DatasetId) -> Result<()> {
    of_id(prefix, "swap.", id)?.into_iter().try_for_each(|arrival| settle_swap(prefix, lock, arrival))
}

fn settle_swap(prefix: &Prefix, lock: &Lock, arrival: Arrival) -> Result<()> {
    if !exists(&prefix.swap(arrival))? {
        return Ok(());
    }
    match finish_swap(prefix, lock, arrival).map(drop) {
        Err(
            error @ (PfsError::Dataset { .. }
            | PfsError::Content { .. }
            | PfsError::Unusable { .. }
            | PfsError::Newer { .. }),
        ) => {
            tracing::warn!(dataset = arrival.id.0, %error, "a half-done swap cannot be finished");
            give_up(prefix, arrival)
        }
        other => other,
    }
}

/// Undoes a swap that cannot be finished now. Coordinators' copies stay until [`recover`] removes
/// them: the caches have the dataset.
fn give_up(prefix: &Prefix, arrival: Arrival) -> Result<()> {
    take_back(prefix, arrival)?;
    remove_file(&prefix.swap(arrival))
}

/// What nodes have saved goes back to the directory where they saved it, since no cache may have it
/// any more. A copy that is whole counts more than what a late node has begun there.
fn take_back(prefix: &Prefix, arrival: Arrival) -> Result<()> {
    let (copied, saved) = (prefix.flush(arrival), prefix.state(format!("{WORD}{arrival}")));
    let dataset = saved.join(DATASET);
    if !is_kept(&copied)? || !is_kept(&saved)? || exists(&dataset)? && summary_of(&copied)?.is_none() {
        return Ok(());
    }
    remove_tree(&dataset)?;
    rename(&copied, &dataset)?;
    sync_directory(&saved)?;
    sync_directory(&prefix.state(""))
}

/// What nodes have saved was on its way to its name, and nobody has announced that any more: who
/// took the lock over undid the swap before the one that had it was stopped.
fn is_astray(prefix: &Prefix, arrival: Arrival) -> Result<bool> {
    let (copied, saved) = (prefix.flush(arrival), prefix.state(format!("{WORD}{arrival}")));
    let is_taken = is_kept(&saved)? && !exists(&saved.join(DATASET))? && !exists(&prefix.swap(arrival))?;
    Ok(is_taken && is_kept(&copied)? && summary_of(&copied)?.is_some())
}

/// Takes it back then.
pub(super) fn bring_back(prefix: &Prefix, epoch: Epoch, id: DatasetId) -> Result<()> {
    let arrival = Arrival { epoch: Some(epoch), id };
    if is_astray(prefix, arrival)? {
        let _lock = Lock::take(prefix)?;
        if is_astray(prefix, arrival)? {
            take_back(prefix, arrival)?;
        }
    }
    Ok(())
}

/// A swap of this dataset is under way, or half done.
pub(super) fn is_swapped(prefix: &Prefix, epoch: Epoch, id: DatasetId) -> Result<bool> {
    exists(&prefix.swap(Arrival { epoch: Some(epoch), id }))
}

/// Finishes or undoes the swaps that a crash left half done, and removes copies that were never
/// finished: those of this epoch and of all before it.
pub(super) fn recover(prefix: &Prefix) -> Result<()> {
    // A dataset that is swapped in has its link before its copy: a copy of which there was no link
    // afterwards is none.
    let [flushes, olds, swaps] = ["flush.", "old.", "swap."].map(|word| prefix.arrivals(word));
    let (flushes, olds, swaps) = (flushes?, olds?, swaps?);
    if swaps.is_empty() && flushes.is_empty() && olds.is_empty() {
        return Ok(());
    }
    let lock = Lock::take(prefix)?;
    let mut unsettled = BTreeMap::new();
    for arrival in swaps {
        match settle_swap(prefix, &lock, arrival) {
            Err(error @ (PfsError::Superseded(..) | PfsError::Locked { .. })) => return Err(error),
            Err(error) => drop(unsettled.insert(arrival, error)),
            Ok(()) => {}
        }
    }
    // What belongs to a swap that is not settled may be all that there is of a dataset.
    let is_settled = |arrival: &Arrival| !unsettled.contains_key(arrival);
    for arrival in flushes.into_iter().filter(is_settled) {
        if is_astray(prefix, arrival)? {
            take_back(prefix, arrival)?;
        }
        discard(&prefix.flush(arrival));
    }
    for arrival in olds.into_iter().filter(is_settled) {
        discard_old(prefix, &lock, arrival)?;
    }
    unsettled.into_values().next().map_or(Ok(()), Err)
}

/// Removes what is of no use any more. What others still write to, or have open, stays for the next
/// start.
fn discard(directory: &Path) {
    if let Err(error) = remove_tree(directory) {
        tracing::warn!(%error, "what is of no use any more stays for now");
    }
}

/// Removes what a swap has replaced. A PFS may carry out the rename of coordinators that are long
/// dead, which puts there what has been published since: that gets its name back.
fn discard_old(prefix: &Prefix, lock: &Lock, arrival: Arrival) -> Result<()> {
    let old = prefix.old(arrival);
    let place = match hidden_place(prefix, &old) {
        Ok(Some(place)) => place,
        Ok(None) => {
            discard(&old);
            return Ok(());
        }
        Err(error) => {
            tracing::warn!(path = %old.display(), %error, "what it has is not known: it stays for now");
            return Ok(());
        }
    };
    tracing::warn!(from = %old.display(), to = %place.display(), "a published dataset gets its name back");
    prefix.newest()?;
    lock.is_held()?;
    rename(&old, &place)?;
    sync_directory(prefix.root())?;
    sync_directory(&prefix.state(""))
}

/// Where the dataset in `old` belongs: its name is free, and the index lists it, or there is no
/// index that could say otherwise.
fn hidden_place(prefix: &Prefix, old: &Path) -> Result<Option<PathBuf>> {
    let Some((id, epoch, summary)) = (if is_kept(old)? { summary_of(old)? } else { None }) else {
        return Ok(None);
    };
    let Some(name) = summary.dataset.and_then(|about| about.name).filter(|name| is_name(name.as_bytes()))
    else {
        return Ok(None);
    };
    let place = prefix.dataset(name.as_bytes());
    let is_hidden = !exists(&place)? && index::may_list(prefix, &name, (epoch, id))?;
    Ok(is_hidden.then_some(place))
}

/// Does what is left of the swap that `swap.<arrival>` announces. The epoch that sealed the dataset
/// of this id that is published then; `None`: there is none.
fn finish_swap(prefix: &Prefix, lock: &Lock, arrival: Arrival) -> Result<Option<Epoch>> {
    let swap = Swap::announced(prefix, lock, arrival)?;
    // While a stranger has the dataset's name, nothing is lost: all stays where it is.
    strangers::has(&swap.place).map_err(PfsError::io(&swap.place, "look at"))?;
    if is_kept(&swap.copied)?
        && let Some((_, epoch, _)) = summary_of(&swap.copied)?
    {
        swap.exchange(epoch)?;
    }
    prefix.step("flush.swapped")?;
    let published = match summary_of(&swap.place)? {
        Some((found, epoch, summary)) if found == arrival.id => {
            index::add(prefix, lock, found, epoch, summary.dataset.unwrap_or_default())?;
            Some(epoch)
        }
        _ => {
            swap.put_back()?;
            take_back(prefix, arrival)?;
            None
        }
    };
    prefix.step("flush.cleanup")?;
    // It is published, whatever becomes of the former one: its files may still be open somewhere.
    discard_old(prefix, lock, arrival)?;
    remove_file(&swap.link)?;
    sync_directory(&prefix.state(""))?;
    Ok(published)
}

/// The paths of one swap.
struct Swap<'a> {
    prefix: &'a Prefix,
    lock: &'a Lock,
    arrival: Arrival,
    name: Vec<u8>,
    link: PathBuf,
    copied: PathBuf,
    place: PathBuf,
    old: PathBuf,
}

impl<'a> Swap<'a> {
    fn announced(prefix: &'a Prefix, lock: &'a Lock, arrival: Arrival) -> Result<Self> {
        let link = prefix.swap(arrival);
        strangers::look(&link).map_err(PfsError::io(&link, "look at"))?;
        let target = fs::read_link(&link).map_err(PfsError::io(&link, "readlink"))?;
        let name = target.as_os_str().as_bytes().to_vec();
        if !is_name(&name) {
            return Err(PfsError::content(&link, "names no dataset"));
        }
        let (copied, place, old) = (prefix.flush(arrival), prefix.dataset(&name), prefix.old(arrival));
        Ok(Self { prefix, lock, arrival, name, link, copied, place, old })
    }

    /// Puts the copy, sealed by `epoch`, in place of what has its name.
    fn exchange(&self, epoch: Epoch) -> Result<()> {
        let prefix = self.prefix;
        if exists(&self.place)? {
            self.make_way(epoch)?;
        }
        prefix.step("flush.swapping")?;
        if let Err(error) = self.may_replace(&self.old, epoch) {
            self.put_back()?;
            return Err(error);
        }
        // Another may have been faster, whose dataset is the former one then.
        rename(&self.copied, &self.place).or_else(|error| self.put_back().and(Err(error)))?;
        sync_directory(prefix.root())?;
        sync_directory(&prefix.state(""))
    }

    fn make_way(&self, epoch: Epoch) -> Result<()> {
        if let Some(reason) = no_dataset(&self.place)? {
            give_up(self.prefix, self.arrival)?;
            return Err(PfsError::Dataset { id: self.arrival.id, name: self.name.clone(), reason });
        }
        self.prefix.step("flush.swap")?;
        remove_tree(&self.old)?;
        self.may_replace(&self.place, epoch)?;
        rename(&self.place, &self.old)
    }

    /// Fails unless the lock is still ours, and a dataset of `epoch` may take the place of the one
    /// that is in `former`, or was until now, and of what the index has under this name.
    fn may_replace(&self, former: &Path, epoch: Epoch) -> Result<()> {
        self.prefix.newest()?;
        self.lock.is_held()?;
        let former = if is_kept(former)? { summary_of(former)? } else { None };
        let there = former.map(|(id, epoch, _)| (epoch, id));
        match index::newer(self.prefix, &self.name, (epoch, self.arrival.id), there)? {
            Some(newer) => {
                Err(PfsError::Newer { id: self.arrival.id, name: self.name.clone(), epoch, newer })
            }
            None => Ok(()),
        }
    }

    /// The former dataset gets its name back, unless something has it.
    fn put_back(&self) -> Result<()> {
        if is_kept(&self.old)? && !exists(&self.place)? { rename(&self.old, &self.place) } else { Ok(()) }
    }
}

/// Why what is at this place is not replaced; `None` where it is a complete dataset, or was one
/// before its summary was damaged.
fn no_dataset(place: &Path) -> Result<Option<String>> {
    let top = plain::open_moved(place);
    let found = top.and_then(|top| plain::read_inside(top, place, Path::new(".scr/summary.scr")));
    if let Err(error) = found
        && strangers::is_of_strangers(&error)
    {
        return Ok(Some(error.to_string()));
    }
    let is_dataset = match read_summary(place) {
        Err(PfsError::Record { .. }) => true,
        Err(error) => return Err(error),
        Ok(summary) => summary.and_then(complete).is_some(),
    };
    Ok((!is_dataset).then(|| "something that is no dataset has this name in the prefix".to_owned()))
}

/// Which dataset a directory is; `None` when it is none, or not a complete one, or its summary is
/// damaged.
fn summary_of(directory: &Path) -> Result<Option<(DatasetId, Epoch, Summary)>> {
    let summary = match read_summary(directory) {
        Err(error @ PfsError::Record { .. }) => {
            tracing::warn!(%error, "a summary is damaged: what it is about is no dataset any more");
            return Ok(None);
        }
        other => other?,
    };
    Ok(summary.and_then(complete))
}

/// Which dataset a summary is of, if it is complete.
fn complete(summary: Summary) -> Option<(DatasetId, Epoch, Summary)> {
    let id = summary.dataset.as_ref().and_then(|dataset| dataset.id)?;
    let epoch = Epoch(summary.epoch.unwrap_or(0));
    summary.is_complete().then_some((id, epoch, summary))
}

/// Every file is there with its size; the daemons have compared CRCs when they copied.
fn check_copies(copied: &Path, catalog: &Catalog, goes: &dyn Fn()) -> Result<()> {
    let top = open(copied)?;
    for entry in &catalog.entries {
        goes();
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
fn write_records(prefix: &Prefix, copied: &Path, catalog: &Catalog, aside: Option<&Path>) -> Result<()> {
    let directory = copied.join(".scr");
    match plain::make_directory(&directory) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
            return Err(PfsError::io(&directory, "mkdir")(e));
        }
        _ => {}
    }
    let published = Published::of(catalog).map_err(|reason| refused(catalog, &reason))?;
    let put = |name: &str, bytes: &[u8]| match aside {
        None => replace(&directory.join(name), bytes),
        Some(aside) => {
            // Of former versions, which wrote it there.
            remove_file(&directory.join(format!("{name}.new")))?;
            let temporary = aside.join(format!("copy.{name}.{}", prefix.token()));
            replace_from(&directory.join(name), bytes, &temporary)
        }
    };
    put("rank2file.0.0.scr", &published.leaf)?;
    put("rank2file.scr", &published.root)?;
    prefix.step("flush.summary")?;
    put("summary.scr", &published.summary)
}

/// Modes and times of directories, deepest first, now that nothing is written into them any more;
/// and their names.
fn put_on_storage(copied: &Path, catalog: &Catalog, goes: &dyn Fn()) -> Result<()> {
    let top = open(copied)?;
    let mut directories: Vec<&Entry> =
        catalog.entries.iter().filter(|e| matches!(e.kind, EntryKind::Directory)).collect();
    directories.sort_by(|a, b| b.path.cmp(&a.path));
    for entry in directories {
        goes();
        let path = copied.join(entry.path.as_path());
        let directory =
            beneath::open_directory(top.as_fd(), &entry.path).map_err(PfsError::io(&path, "open"))?;
        keep_attributes(&directory, entry);
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

//! Which stores a mount uses, of the directories that `SCR_CACHE_BASE` names, and which of them is
//! the primary (`crate::stores`).
//!
//! All are used that can be. The choice is made once, when it is mounted, by the supervisor, under
//! its lock; the primary is:
//!
//! 1. The store that has files of this job; of several the one that was the last mount's primary,
//!    else the one with most of the datasets that the control directory knows.
//! 2. Where none has any, the one with most room; of equal ones the first of the list.
//!
//! An entry that cannot be used is passed over and told of. What must not be passed over is a store
//! with files of this job: if it cannot be used, or is not in the list any more, nothing is
//! mounted. [`RECORD`] in the control directory keeps what was chosen: workers go by it.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{Access, AtFlags, CWD, StatVfsMountFlags};

use super::places::Places;
use super::{MountError, Options, failed, records};
use crate::checkpoint_path;
use crate::daemon::CacheStore;
use crate::store::private::{self, Whose};
use crate::store::reserve::Reserve;
use crate::store::{Store, StoreError};
use crate::stores::{Place, Stores};

/// What was chosen last, and why, as JSON; in the control directory.
pub const RECORD: &str = "stores.json";
/// Largest record that is read; bytes.
const RECORD_MAX: u64 = 1 << 20;
/// Directories below one another that are looked into for files.
const DEPTH_MAX: usize = 256;

/// Why an entry of the list is not used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum Problem {
    #[error("no such directory")]
    Missing,
    #[error("not a directory")]
    NotDirectory,
    #[error("its file system is read-only")]
    ReadOnly,
    #[error("not writable")]
    NotWritable,
    #[error("the same directory as {}", .0.display())]
    Duplicate(PathBuf),
    #[error("nested in {}", .0.display())]
    Nested(PathBuf),
    #[error("{0}")]
    Other(String),
}

impl Problem {
    fn of(error: &io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::ENOENT) => Self::Missing,
            Some(libc::ENOTDIR) => Self::NotDirectory,
            Some(libc::EROFS) => Self::ReadOnly,
            Some(libc::EACCES | libc::EPERM) => Self::NotWritable,
            _ => Self::Other(error.to_string()),
        }
    }

    /// Files that are there can be used all the same.
    fn is_of_the_list(&self) -> bool {
        matches!(self, Self::Nested(_))
    }
}

/// One entry of the list.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    base: PathBuf,
    problem: Option<Problem>,
    /// Files of this job are in it.
    holds: bool,
    /// Datasets of this job that are in it and that the control directory knows.
    datasets: BTreeSet<u64>,
    /// Bytes that can be written to it.
    free: u64,
}

/// What of the job was there before.
#[derive(Debug, Default)]
struct Former {
    /// The base of the last mount's primary store.
    primary: Option<PathBuf>,
    /// Bases of all that it used.
    used: Vec<PathBuf>,
    /// The datasets that the control directory knows.
    datasets: BTreeSet<u64>,
}

/// Chooses the stores and makes the job's directories in them, and decides on the checkpoint path;
/// `control` is there and locked. The options that come back name the primary first.
pub fn settle(options: &Options, control: &Path) -> Result<(Options, Places), MountError> {
    let store = Store::open(control).map_err(failed("cannot open", control))?;
    // A job that is mounted again may find its directory's file system full.
    let reserve = Reserve::open(&store).ok().map(Arc::new);
    let store = store.with_reserve(reserve);
    let former = Former::of(&store)?;
    let mut entries = look(options, &former, control)?;
    former.is_listed(options, &entries)?;
    let (primary, places, why) = choose(options, &former, &mut entries)?;
    let others = add_others(options, primary, &former, &mut entries)?;
    let chosen = &entries[primary].base;
    let stores: Vec<CacheStore> =
        (0..entries.len()).map(|at| told(&entries[at], at == primary, others.contains(&at), why)).collect();
    let text = serde_json::to_vec_pretty(&stores)
        .map_err(|e| failed(super::RECORD, control.join(RECORD))(e.into()))?;
    let kept = store.commit(RECORD, &text);
    let refused = |e: StoreError| failed(super::RECORD, control.join(RECORD))(errno(&e));
    kept.map_err(refused)?;
    // Datasets that are here are found by the path that they were made in.
    checkpoint_path::settle(&store, &options.checkpoint_path, !former.datasets.is_empty())
        .map_err(|error| MountError::Node(error.into()))?;
    let warnings: Vec<String> = stores.iter().filter_map(CacheStore::warning).collect();
    let more: Vec<&Path> = others.iter().map(|at| entries[*at].base.as_path()).collect();
    crate::daemon::tell_of_stores(control, stores.len(), (chosen, &more), why, &warnings);
    // Of the same directory by two names the other one may come first.
    let rest =
        entries.iter().enumerate().filter(|(at, _)| *at != primary).map(|(_, entry)| entry.base.clone());
    let cache_bases = std::iter::once(chosen.clone()).chain(rest).collect();
    Ok((Options { cache_bases, ..options.clone() }, places))
}

/// The system's own error, which has a remedy of its own.
fn errno(error: &StoreError) -> io::Error {
    io::Error::from_raw_os_error(error.errno())
}

/// What the supervisor has chosen, for a worker whose `options` it gave.
pub fn in_use(options: &Options, control: &Path) -> Result<Arc<Stores>, MountError> {
    let store = Store::open(control).map_err(failed("cannot open", control))?;
    let place = |base: &Path| Place { base: base.to_owned(), cache: Places::cache_of(options, base) };
    let primary = options.cache_base();
    let record = read_record(&store)?;
    let others = record.iter().filter(|store| store.used && store.base != primary);
    let others = others.map(|store| place(&store.base)).collect();
    Ok(Arc::new(Stores::new(place(primary), others, options.protections.clone())))
}

fn read_record(store: &Store) -> Result<Vec<CacheStore>, MountError> {
    let problem = |problem: String| MountError::Record { path: store.path().join(RECORD), problem };
    let record = store.read(RECORD, RECORD_MAX).map_err(|error| problem(error.to_string()))?;
    record.map_or(Ok(Vec::new()), |record| {
        serde_json::from_slice(&record).map_err(|error| problem(error.to_string()))
    })
}

/// What the record in the control directory says; nothing if there is none that can be read.
pub fn recorded(control: &Path) -> Vec<CacheStore> {
    let read = Store::open(control).ok().and_then(|store| store.read(RECORD, RECORD_MAX).ok().flatten());
    read.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default()
}

/// A store that the job's last mount used, whose directory is missing or cannot be read, and in
/// which there may be datasets that are nowhere else here; and why. `cache_of`: the job's directory
/// in a store.
pub(super) fn away(
    control: &Path,
    cache_of: impl Fn(&Path) -> Option<PathBuf>,
) -> Result<Option<(PathBuf, String)>, MountError> {
    let store = Store::open(control).map_err(failed("cannot open", control))?;
    let former = Former::of(&store)?;
    let found = former.used.iter().filter_map(|base| cache_of(base));
    let found = found.flat_map(|cache| datasets_in(&cache)).collect();
    let mut used = former.used.iter().filter(|base| former.needs(base, &found));
    Ok(used.find_map(|base| Some((base.clone(), is_readable(base).err()?.to_string()))))
}

/// The names in a store can be known. Its owner may have closed it to those who list it, and not
/// to those who go through.
fn is_readable(base: &Path) -> Result<(), Problem> {
    let problem = |error: io::Error| Problem::of(&error);
    if !fs::metadata(base).map_err(problem)?.is_dir() {
        return Err(Problem::NotDirectory);
    }
    match fs::read_dir(base) {
        Err(error) if error.kind() != io::ErrorKind::PermissionDenied => Err(problem(error)),
        _ => Ok(()),
    }
}

impl Former {
    fn of(store: &Store) -> Result<Self, MountError> {
        let stores = read_record(store)?;
        let used: Vec<PathBuf> =
            stores.iter().filter(|store| store.used).map(|store| store.base.clone()).collect();
        // Versions that used one store marked no primary.
        let primary = stores.into_iter().find(|store| store.primary).map(|store| store.base);
        let primary = primary.or_else(|| used.first().cloned());
        let datasets = records::datasets(store)?.into_iter().map(|dataset| dataset.id).collect();
        Ok(Self { primary, used, datasets })
    }

    fn was_primary(&self, base: &Path) -> bool {
        self.primary.as_deref().is_some_and(|former| same(former, base))
    }

    /// Something may be missing without the store `base`, where all others have `found` these
    /// datasets.
    fn needs(&self, base: &Path, found: &BTreeSet<u64>) -> bool {
        let missing = || !self.datasets.is_subset(found);
        if self.was_primary(base) { !self.datasets.is_empty() } else { self.used(base) && missing() }
    }

    fn used(&self, base: &Path) -> bool {
        self.used.iter().any(|former| same(former, base))
    }

    /// The stores with the job's files are in the list.
    fn is_listed(&self, options: &Options, entries: &[Entry]) -> Result<(), MountError> {
        let found = entries.iter().flat_map(|entry| entry.datasets.iter().copied()).collect();
        for base in self.used.iter().chain(&self.primary) {
            if entries.iter().any(|entry| same(&entry.base, base)) {
                continue;
            }
            let cache = Places::cache_of(options, base);
            let seen = fs::metadata(base).is_ok();
            if holds(base, &cache) || (!seen && self.needs(base, &found)) {
                return Err(MountError::StoreLeft { base: base.clone(), cache });
            }
        }
        Ok(())
    }
}

fn same(one: &Path, other: &Path) -> bool {
    one == other || matches!((one.canonicalize(), other.canonicalize()), (Ok(a), Ok(b)) if a == b)
}

/// Looks at all entries of the list. One with files of the job that cannot be used is an error.
fn look(options: &Options, former: &Former, control: &Path) -> Result<Vec<Entry>, MountError> {
    let bases = &options.cache_bases;
    let real: Vec<Option<PathBuf>> = bases.iter().map(|base| base.canonicalize().ok()).collect();
    let known = |base: &PathBuf| -> BTreeSet<u64> {
        let cache = Places::cache_of(options, base);
        let found = if private::is_ours_below(base, &cache) { datasets_in(&cache) } else { BTreeSet::new() };
        found.intersection(&former.datasets).copied().collect()
    };
    let datasets: Vec<BTreeSet<u64>> = bases.iter().map(known).collect();
    let mut entries = Vec::new();
    for (at, base) in bases.iter().enumerate() {
        let cache = Places::cache_of(options, base);
        let elsewhere = datasets.iter().enumerate().filter(|(other, _)| *other != at);
        let elsewhere = elsewhere.flat_map(|(_, found)| found.iter().copied()).collect();
        let problem = usable(base, &cache).err().map(|error| Problem::of(&error));
        let problem = problem.or_else(|| overlap(bases, &real, at));
        let away = if !datasets[at].is_empty() || former.needs(base, &elsewhere) {
            Some("datasets")
        } else {
            // A directory of which nothing can be seen has files of the job only if the last mount
            // used it.
            let known = || former.used(base) || private::is_ours_below(base, &cache);
            (holds(base, &cache) && known()).then_some("files")
        };
        if let (Some(problem), Some(what)) = (problem.as_ref(), away)
            && !matches!(problem, Problem::Nested(_) | Problem::Duplicate(_))
        {
            let (base, control) = (base.clone(), control.to_owned());
            return Err(MountError::StoreAway { base, what, reason: problem.to_string(), control });
        }
        // The only one is made.
        let problem = problem.filter(|problem| bases.len() > 1 || *problem != Problem::Missing);
        entries.push(Entry {
            holds: holds(base, &cache),
            free: free(base).unwrap_or(0),
            base: base.clone(),
            problem,
            datasets: datasets[at].clone(),
        });
    }
    Ok(entries)
}

/// The entry is another one's directory, or within it.
fn overlap(bases: &[PathBuf], real: &[Option<PathBuf>], at: usize) -> Option<Problem> {
    let mine = real[at].as_ref()?;
    let others = || real.iter().enumerate().filter(|(other, _)| *other != at);
    if let Some((first, _)) = others().find(|(other, path)| *other < at && path.as_ref() == Some(mine)) {
        return Some(Problem::Duplicate(bases[first].clone()));
    }
    let outer = |path: &Option<PathBuf>| path.as_ref().is_some_and(|p| p != mine && mine.starts_with(p));
    others().find(|(_, path)| outer(path)).map(|(other, _)| Problem::Nested(bases[other].clone()))
}

/// The job's cache can be made and written there.
fn usable(base: &Path, cache: &Path) -> io::Result<()> {
    if !fs::metadata(base)?.is_dir() {
        return Err(io::Error::from_raw_os_error(libc::ENOTDIR));
    }
    if rustix::fs::statvfs(base)?.f_flag.contains(StatVfsMountFlags::RDONLY) {
        return Err(io::Error::from_raw_os_error(libc::EROFS));
    }
    // A name that somebody else has is not in the way.
    let there = cache.ancestors().take(3).find(|path| private::is_ours_below(base, path)).unwrap_or(base);
    let access = Access::WRITE_OK | Access::EXEC_OK;
    Ok(rustix::fs::accessat(CWD, there, access, AtFlags::EACCESS)?)
}

fn free(base: &Path) -> io::Result<u64> {
    let room = rustix::fs::statvfs(base)?;
    Ok(room.f_bavail.saturating_mul(room.f_frsize))
}

/// The ids of datasets of which there is something in a cache directory that is ours.
pub(super) fn datasets_in(cache: &Path) -> BTreeSet<u64> {
    let names = fs::read_dir(cache).into_iter().flatten().flatten().map(|entry| entry.file_name());
    names.filter_map(|name| name.to_str()?.strip_prefix("dataset.")?.parse().ok()).collect()
}

/// Something is in the cache directory in `base` that is not to be left behind: of a dataset, or a
/// program's; also if that cannot be seen.
fn holds(base: &Path, cache: &Path) -> bool {
    match private::whose_below(base, cache) {
        Whose::Ours => has_something(cache),
        Whose::Unknown => true,
        Whose::Others | Whose::Nobody => false,
    }
}

fn has_something(cache: &Path) -> bool {
    !datasets_in(cache).is_empty() || has_tree(cache)
}

/// There are files of programs in a cache directory.
pub(super) fn has_tree(cache: &Path) -> bool {
    has_files(&cache.join("tree"), DEPTH_MAX)
}

/// There is something but directories; also if that cannot be seen.
fn has_files(directory: &Path, depth: usize) -> bool {
    let names = match fs::read_dir(directory) {
        Ok(names) => names,
        Err(error) => return !matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR)),
    };
    let is_file = |entry: io::Result<fs::DirEntry>| match entry {
        Ok(entry) if entry.file_type().is_ok_and(|kind| kind.is_dir()) => {
            depth == 0 || has_files(&entry.path(), depth - 1)
        }
        _ => true,
    };
    names.into_iter().any(is_file)
}

/// Why a store was chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Why {
    Only,
    Holds,
    Room,
}

impl std::fmt::Display for Why {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Only => "the only one",
            Self::Holds => "it has files of this job",
            Self::Room => "it had most room",
        })
    }
}

/// Positions of the entries in the order in which they are to be tried.
fn order(former: &Former, entries: &[Entry]) -> (Why, Vec<usize>) {
    let all = || 0..entries.len();
    if entries.len() == 1 && entries[0].problem.is_none() {
        return (Why::Only, vec![0]);
    }
    let may_stay = |entry: &Entry| entry.problem.as_ref().is_none_or(Problem::is_of_the_list);
    let rank = |at: &usize| {
        let entry = &entries[*at];
        (!former.was_primary(&entry.base), std::cmp::Reverse(entry.datasets.len()), *at)
    };
    if let Some(at) = all().filter(|&at| entries[at].holds && may_stay(&entries[at])).min_by_key(rank) {
        return (Why::Holds, vec![at]);
    }
    let mut usable: Vec<usize> = all().filter(|&at| entries[at].problem.is_none()).collect();
    // Stable: of equal ones the first.
    usable.sort_by_key(|&at| std::cmp::Reverse(entries[at].free));
    (Why::Room, usable)
}

/// The primary: the first in order of which the directories can be made.
fn choose(
    options: &Options,
    former: &Former,
    entries: &mut [Entry],
) -> Result<(usize, Places, Why), MountError> {
    let (why, order) = order(former, entries);
    for at in order {
        let options = Options { cache_bases: vec![entries[at].base.clone()], ..options.clone() };
        match Places::make_cache(&options) {
            Ok(places) => return Ok((at, places, why)),
            // Of one with files no other may take the place.
            Err(error) if why == Why::Room && entries.len() > 1 => {
                entries[at].problem = Some(Problem::Other(error.to_string()));
            }
            Err(error) => return Err(error),
        }
    }
    let problem = |entry: &Entry| entry.problem.as_ref().map(|p| format!("{}: {p}", entry.base.display()));
    let problems: Vec<String> = entries.iter().filter_map(problem).collect();
    Err(MountError::NoStore { problems: problems.join("; ") })
}

/// The others that can be used, and of which the directories can be made.
fn add_others(
    options: &Options,
    primary: usize,
    former: &Former,
    entries: &mut [Entry],
) -> Result<Vec<usize>, MountError> {
    let mut others = Vec::new();
    let usable: Vec<usize> =
        (0..entries.len()).filter(|&at| at != primary && entries[at].problem.is_none()).collect();
    for at in usable {
        let found = (0..entries.len()).filter(|&other| other != at);
        let found = found.flat_map(|other| entries[other].datasets.iter().copied()).collect();
        let needed = entries[at].holds || former.needs(&entries[at].base, &found);
        let entry = &mut entries[at];
        let options = Options { cache_bases: vec![entry.base.clone()], ..options.clone() };
        match Places::make_cache(&options) {
            Ok(_) => others.push(at),
            Err(error) if needed => return Err(error),
            Err(error) => entry.problem = Some(Problem::Other(error.to_string())),
        }
    }
    Ok(others)
}

/// For the record.
fn told(entry: &Entry, primary: bool, other: bool, why: Why) -> CacheStore {
    let used = primary || other;
    let (problem, note) = match &entry.problem {
        Some(problem) if !used => (true, problem.to_string()),
        _ if primary => (false, why.to_string()),
        _ if entry.holds && !used => (true, "has files of this job too, which are not seen".to_owned()),
        _ => (false, String::new()),
    };
    CacheStore { base: entry.base.clone(), used, primary, problem, note }
}

#[cfg(test)]
pub(super) mod tests;

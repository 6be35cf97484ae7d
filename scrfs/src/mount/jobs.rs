//! Jobs by their ids: unmounting one, and removing what it has left on this node.
//!
//! Only what belongs to this process's user counts, in directories into which nobody else can
//! write: names that others have made are not seen. Links are not followed, and other file systems
//! not entered.

mod purge;
mod save;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use self::purge::purge;
use self::save::{has_nothing_to_save, is_saved, save};
use super::places::{Places, directory_of};
use super::table::{self, Mounted, TABLE};
use super::unmount::Despite;
use super::{MountError, failed, mount_point, server, stores, unmount};
use crate::bounded;
use crate::control::directory::{JOB_PREFIX, WORKER_LOCK, holder, is_stopped, supervisor_of, was_killed};
use crate::store::private;

pub use super::sweep::{Alive, Manner, sweep};

/// A store that does not answer in this time may have anything.
const STORE_LIMIT: Duration = Duration::from_secs(5);

/// Where jobs' directories are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bases {
    /// `SCR_CNTL_BASE`.
    pub control: PathBuf,
    /// `SCR_CACHE_BASE`.
    pub caches: Vec<PathBuf>,
}

/// What `scrfs umount --job-id` was told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order {
    /// The job.
    pub job_id: String,
    /// Whose; `None`: whoever's, if there is one only.
    pub user: Option<String>,
    /// Only a mount there.
    pub mount_point: Option<PathBuf>,
    /// What comes first.
    pub unsaved: Unsaved,
    /// Remove caches and control directory.
    pub purge: bool,
    /// What does not keep it from being unmounted.
    pub despite: Despite,
}

/// What is done about datasets that are here and not on the PFS, before anything is unmounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unsaved {
    /// They are given up.
    GiveUp,
    /// This node's part of the newest is saved, within so long; if it is not, nothing is done.
    Save(Duration),
    /// Where there are any, nothing is done.
    Keep,
}

/// A job of which there is something on this node.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Job {
    pub(super) user: String,
    pub(super) id: String,
}

impl Job {
    /// Its directory in `base`, if it has one.
    fn directory(&self, base: &Path) -> Option<PathBuf> {
        let path = private::find(base, &self.user)?.join(directory_of(&self.id));
        private::is_ours(&path).then_some(path)
    }

    fn owns(&self, mount: &Mounted) -> bool {
        let named = |control: PathBuf| of_directory(&control).is_some_and(|job| job == *self);
        mount.is_ours() && mount.control_directory().is_some_and(named)
    }
}

/// Whose directory `<base>/<user>/scr.<id>` is.
fn of_directory(path: &Path) -> Option<Job> {
    let id = path.file_name()?.to_str()?.strip_prefix(JOB_PREFIX)?.to_owned();
    let home = path.parent()?.file_name()?.to_str()?;
    // Without the digits of a name that somebody else had.
    let plain = home
        .rsplit_once('.')
        .map(|(plain, _)| plain)
        .filter(|plain| private::is_name_of(home.as_bytes(), plain));
    Some(Job { user: plain.unwrap_or(home).to_owned(), id })
}

/// All jobs that have directories or mounts here.
pub(super) fn all(bases: &Bases) -> Result<BTreeSet<Job>, MountError> {
    let mut jobs = with_directories(bases);
    let mounts = table::all().map_err(failed("cannot read", TABLE))?;
    let controls = mounts.iter().filter(|mount| mount.is_ours()).filter_map(Mounted::control_directory);
    jobs.extend(controls.filter_map(|control| of_directory(&control)));
    Ok(jobs)
}

/// All jobs that have directories in `bases`, as far as those can be read.
pub(super) fn with_directories(bases: &Bases) -> BTreeSet<Job> {
    let bases = std::iter::once(&bases.control).chain(&bases.caches);
    let found = bases.filter(|base| private::safe(base).is_ok()).flat_map(|base| directories(base));
    found.flatten().map(|(job, _)| job).collect()
}

/// The jobs' directories in `base`, or why some cannot be told.
fn directories(base: &Path) -> Vec<io::Result<(Job, PathBuf)>> {
    let of_jobs = |home: PathBuf| match ours(&home) {
        Ok(paths) => paths.into_iter().filter_map(|path| Some(Ok((of_directory(&path)?, path)))).collect(),
        Err(error) => vec![Err(error)],
    };
    ours(base).map_or_else(|error| vec![Err(error)], |homes| homes.into_iter().flat_map(of_jobs).collect())
}

/// This process's user's directories in `path`. What others have mounted there is not looked at;
/// what another process removes meanwhile is not there.
fn ours(path: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let paths = entries.map(|entry| Ok(entry?.path()));
    paths.filter(|path| path.as_ref().map_or(true, |path| private::is_ours(path))).collect()
}

/// Ids and control directories of this process's user's jobs whose ids begin with `start`, in the
/// control base. Those that are mounted here are not among them.
pub fn unmounted(control_base: &Path, start: &str) -> Vec<(String, PathBuf)> {
    let (Ok(_), Ok(mounts)) = (private::safe(control_base), table::all()) else { return Vec::new() };
    let is_mounted = |control: &Path| mounts.iter().any(|mount| mount.names(control));
    let found = directories(control_base).into_iter().flatten();
    let found = found.filter(|(job, control)| job.id.starts_with(start) && !is_mounted(control));
    found.map(|(job, control)| (job.id, control)).collect()
}

/// No daemon that does its work has this control directory, whose mount is not here: it has ended,
/// or was stopped and has to be ended. One whose mount was unmounted a moment ago is about to end,
/// and is waited for. One that goes on serves a mount in another mount namespace.
pub fn is_unserved(control: &Path) -> bool {
    let Some(pid) = supervisor_of(control).filter(|pid| !was_killed(*pid)) else { return true };
    let stopped = [Some(pid), holder(control, WORKER_LOCK)].into_iter().flatten().any(is_stopped);
    stopped || server::is_here(control, pid).is_ok() && unmount::ends_soon(pid)
}

/// What a job has in the stores.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cache {
    /// Its id.
    pub job: String,
    /// Whose it is.
    pub user: String,
    /// Datasets that are there, in all stores together.
    pub datasets: usize,
}

/// What jobs have in the stores of `bases`; of one that is missing nothing is told.
///
/// # Errors
/// A store that does not answer, or cannot be read: it may have something.
pub fn in_stores(bases: &Bases) -> Result<Vec<Cache>, MountError> {
    let mut found: BTreeMap<Job, Vec<PathBuf>> = BTreeMap::new();
    for base in bases.caches.iter().collect::<BTreeSet<_>>() {
        let read = || failed("cannot read the store", base);
        let store = base.clone();
        let in_store = bounded::within(STORE_LIMIT, move || in_store(&store)).map_err(read())?;
        for (job, cache) in in_store {
            found.entry(job).or_default().push(cache);
        }
    }
    let counted = |(job, caches): (Job, Vec<PathBuf>)| {
        let datasets = save::count(&job, &caches, bases);
        Cache { job: job.id, user: job.user, datasets }
    };
    Ok(found.into_iter().map(counted).collect())
}

/// Each job that has a directory there, and that directory, which can be read.
fn in_store(base: &Path) -> io::Result<Vec<(Job, PathBuf)>> {
    private::passable(base).map_err(io::Error::other)?;
    let readable = |found: io::Result<(Job, PathBuf)>| {
        let (job, cache) = found?;
        ours(&cache)?;
        Ok((job, cache))
    };
    directories(base).into_iter().map(readable).collect()
}

/// Unmounts what `order` says, and removes what it says; nothing to do is no error. Lines for
/// people.
pub fn unmount(order: &Order, bases: &Bases) -> Result<Vec<String>, MountError> {
    let found: Vec<Job> = all(bases)?
        .into_iter()
        .filter(|job| job.id == order.job_id && order.user.as_ref().is_none_or(|user| *user == job.user))
        .collect();
    match &found[..] {
        [] => {
            let whose = if rustix::process::geteuid().is_root() { "" } else { " that this user has mounted" };
            Ok(vec![format!("job {}: nothing is here{whose}", order.job_id)])
        }
        [job] => end(job, order, bases),
        several => {
            let users = several.iter().map(|job| job.user.as_str()).collect::<Vec<_>>().join(", ");
            Err(MountError::WhoseJob { job_id: order.job_id.clone(), users })
        }
    }
}

pub(super) fn end(job: &Job, order: &Order, bases: &Bases) -> Result<Vec<String>, MountError> {
    order.mount_point.as_deref().map_or(Ok(()), mount_point::is_reached)?;
    let only = order.mount_point.as_ref().map(|point| mount_point::without_symlinks(point));
    let mut lines = Vec::new();
    if let (Some(named), Some(only)) = (&order.mount_point, &only)
        && (order.purge || order.unsaved != Unsaved::GiveUp)
    {
        is_nowhere_else(job, only.as_ref().unwrap_or(named))?;
    }
    if order.unsaved != Unsaved::GiveUp {
        let served = served(job, only.as_ref(), bases)?;
        if served.is_empty() {
            has_nothing_to_save(job, bases)?;
        }
        for control in served {
            match order.unsaved {
                Unsaved::Save(limit) => lines.extend(save(job, &control, limit)?),
                _ => is_saved(job, &control)?,
            }
        }
    }
    for mount in table::all().map_err(failed("cannot read", TABLE))?.iter().filter(|mount| job.owns(mount)) {
        let point = &mount.mount_point;
        if only.as_ref().is_some_and(|only| only.as_ref().ok() != Some(point)) {
            lines.push(format!("{} is this job's too, and stays mounted", point.display()));
            continue;
        }
        match unmount::unmount(point, order.despite) {
            // It ended at this moment, by itself or by another command.
            Ok(()) | Err(MountError::NotMounted(_)) => {}
            Err(MountError::Io { source, .. })
                if source.kind() == io::ErrorKind::NotFound && !is_there(mount)? => {}
            Err(error) => return Err(error),
        }
        lines.push(format!("{} is unmounted", point.display()));
    }
    let control = job.directory(&bases.control);
    if let Some(pid) = control.as_deref().and_then(supervisor_of).filter(|pid| !was_killed(*pid)) {
        let control = control.as_deref().unwrap_or(Path::new("/"));
        if order.despite == Despite::Use && only.is_none() {
            unmount::end_elsewhere(control, pid)?;
        } else {
            unmount::await_end(control, pid, order.despite == Despite::Use)?;
        }
    } else if let Some(control) = &control {
        // Of a supervisor that was killed.
        unmount::end_lone_worker(control, order.despite == Despite::Use)?;
        mount_point::remove_made(control);
    }
    if order.purge {
        lines.extend(purge(job, bases)?);
    }
    Ok(lines)
}

/// This very mount is there still.
fn is_there(mount: &Mounted) -> Result<bool, MountError> {
    Ok(table::all().map_err(failed("cannot read", TABLE))?.iter().any(|other| other.id == mount.id))
}

/// If the job is mounted, then at `point` too: who names another place means that one.
fn is_nowhere_else(job: &Job, point: &Path) -> Result<(), MountError> {
    let mounts = table::all().map_err(failed("cannot read", TABLE))?;
    let mut points = mounts.iter().filter(|mount| job.owns(mount)).map(|mount| &mount.mount_point).peekable();
    match points.peek().map(|first| (*first).clone()) {
        Some(at) if points.all(|there| there != point) => {
            Err(MountError::MountedAt { job_id: job.id.clone(), at, named: point.to_owned() })
        }
        _ => Ok(()),
    }
}

/// Control directories of what is mounted for the job, in whatever mount namespace.
fn served(
    job: &Job,
    only: Option<&io::Result<PathBuf>>,
    bases: &Bases,
) -> Result<BTreeSet<PathBuf>, MountError> {
    let named = |mount: &Mounted| only.is_none_or(|only| only.as_ref().ok() == Some(&mount.mount_point));
    let mounts = table::all().map_err(failed("cannot read", TABLE))?;
    let mounts = mounts.iter().filter(|mount| job.owns(mount) && named(mount));
    let mut controls: BTreeSet<PathBuf> = mounts.filter_map(Mounted::control_directory).collect();
    let supervised = job.directory(&bases.control).filter(|control| supervisor_of(control).is_some());
    controls.extend(supervised.filter(|_| only.is_none()));
    Ok(controls)
}

/// The job's caches in the stores of `bases` and in those that it has used.
fn caches(job: &Job, bases: &Bases) -> BTreeSet<PathBuf> {
    let control = job.directory(&bases.control);
    let recorded = control.as_deref().map(stores::recorded).unwrap_or_default();
    let used = recorded.into_iter().filter(|store| store.used).map(|store| store.base);
    let stores: BTreeSet<PathBuf> = bases.caches.iter().cloned().chain(used).collect();
    stores.iter().filter_map(|base| cache(job, base, control.as_deref())).collect()
}

/// The job's cache in the store `base`, if there is one.
fn cache(job: &Job, base: &Path, control: Option<&Path>) -> Option<PathBuf> {
    let directory = job.directory(base)?;
    if Some(directory.as_path()) != control {
        return Some(directory);
    }
    Some(Places::cache_in(&directory)).filter(|cache| private::is_ours(cache))
}

#[cfg(test)]
mod tests;

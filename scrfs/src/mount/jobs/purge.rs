//! What a job has left on this node is removed, also while another command does the same.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::super::lock::Lock;
use super::super::server::open_process;
use super::super::supervisor::readable;
use super::super::unmount::END_SECONDS;
use super::super::{MountError, failed};
use super::{Bases, Job, caches};
use crate::control::directory::{SUPERVISOR_LOCK, WORKER_LOCK, holder, was_killed};
use crate::path::RelPath;
use crate::store::beneath;

/// Between taking a lock and writing there who has it.
const UNKNOWN: Duration = Duration::from_secs(1);
/// Tries to remove a directory in which others make files.
const REMOVALS: u32 = 10;

/// Removes caches and control directory of `job`, of which nothing runs.
pub(super) fn purge(job: &Job, bases: &Bases) -> Result<Vec<String>, MountError> {
    let control = job.directory(&bases.control);
    // Nobody mounts meanwhile.
    let until = Instant::now() + Duration::from_secs(END_SECONDS);
    let locks = [SUPERVISOR_LOCK, WORKER_LOCK].map(|name| lock_to_purge(control.as_deref()?, name, until));
    let _held = locks.into_iter().flatten().collect::<Result<Vec<_>, _>>()?;
    // The control directory knows of the caches: it goes last.
    let mut lines = Vec::new();
    let in_control = |cache: &&PathBuf| control.as_ref().is_some_and(|control| cache.starts_with(control));
    for directory in caches(job, bases).iter().filter(|cache| !in_control(cache)).chain(&control) {
        if remove(directory)? {
            lines.push(format!("{} is removed", directory.display()));
        }
    }
    Ok(lines)
}

/// `None`: nobody can take that lock, or there is nothing that it would guard.
fn lock_to_purge(control: &Path, name: &str, until: Instant) -> Option<Result<Lock, MountError>> {
    // Who has just taken it has not said so yet.
    let unknown_until = Instant::now() + UNKNOWN;
    loop {
        let busy = match Lock::take(control, name) {
            Err(busy @ MountError::Busy { .. }) => busy,
            Err(_) if !control.exists() => return None,
            taken => return Some(taken),
        };
        let other = holder(control, name);
        // Nobody does while that one has it.
        if other.is_some_and(was_killed) {
            return None;
        }
        // Another command that purges ends soon, and has ended where it cannot be found any more.
        let ends = |pid| open_process(pid).is_none_or(|process| readable(process.as_fd(), until));
        match other {
            Some(pid) if purges(pid) && ends(pid) => {}
            None if Instant::now() < unknown_until => std::thread::sleep(UNKNOWN / 100),
            _ => return Some(Err(busy)),
        }
    }
}

/// A process is a command that purges, and no daemon.
fn purges(pid: u32) -> bool {
    let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    words.split(|byte| *byte == 0).any(|word| [&b"umount"[..], b"sweep"].contains(&word))
}

fn is_of_others(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::NotFound)
}

/// False where it is gone: another command purges at the same moment.
fn remove(directory: &Path) -> Result<bool, MountError> {
    let problem = |doing| failed(doing, directory);
    let (Some(home), Some(name)) = (directory.parent(), directory.file_name()) else { return Ok(false) };
    let opened = match File::open(home) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        opened => opened.map_err(problem("cannot open what is above"))?,
    };
    let name =
        RelPath::new(name.as_encoded_bytes()).map_err(|e| problem("cannot name")(io::Error::other(e)))?;
    for tries_left in (0..REMOVALS).rev() {
        match beneath::remove_tree(opened.as_fd(), &name) {
            // Another command that purges has made its lock there, or removed something first.
            Err(error) if tries_left > 0 && is_of_others(&error) => {}
            removed => {
                removed.map_err(problem("cannot remove"))?;
                break;
            }
        }
    }
    // Of the user's last job.
    let _ = fs::remove_dir(home);
    Ok(true)
}

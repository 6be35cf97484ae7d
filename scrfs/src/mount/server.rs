//! Who serves a mount: its supervisor, a worker that has lost it, or nobody.

use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::process::{Pid, PidfdFlags};

use super::device::Held;
use super::table::{self, Mounted, TABLE};
use super::{MountError, failed};
use crate::control::directory::{WORKER_LOCK, holder, supervisor_of, was_killed};

/// The supervisor of a mount with this control directory, if it serves that mount.
pub(super) fn server_of(mount: &Mounted, control: &Path) -> Option<u32> {
    supervisor_of(control).filter(|pid| serves(*pid, mount, control))
}

/// Supervisor `pid` of a control directory serves this mount. One that has mounted afresh does not
/// serve the dead mount of which another mount namespace has a copy still.
fn serves(pid: u32, mount: &Mounted, control: &Path) -> bool {
    // Others may call a mount of theirs by that name.
    let is_its = |its: &Mounted| its.names(control) && its.owner == mount.owner;
    let mut its = table::of_process(pid).into_iter().filter(is_its).peekable();
    // Gone in its own namespace: it serves for another.
    its.peek().is_none() || its.any(|its| its.device == mount.device)
}

/// Nobody serves a mount with this control directory any more. One whose worker was killed, and
/// cannot end, is not asked by `is_dead`: it would not answer.
pub(super) fn is_left(mount: &Mounted, control: &Path, is_dead: impl FnOnce() -> bool) -> bool {
    match (supervisor_of(control), holder(control, WORKER_LOCK)) {
        (None, None) => is_dead(),
        (None, Some(worker)) => was_killed(worker),
        (Some(supervisor), worker) => {
            let killed = was_killed(supervisor) && worker.is_none_or(was_killed);
            killed || !serves(supervisor, mount, control)
        }
    }
}

/// The mount that supervisor `pid` of a control directory holds is not only in another mount
/// namespace, as far as this user may look.
pub(super) fn is_here(control: &Path, pid: u32) -> Result<(), MountError> {
    if is_mounted(control)? {
        return Ok(());
    }
    match table::elsewhere(|mount| is_of(mount, control)) {
        Some((holder, mount)) => {
            Err(MountError::Elsewhere { mount_point: mount.mount_point, pid, holder: Some(holder) })
        }
        None => Ok(()),
    }
}

/// The mount of a control directory is in this mount namespace.
pub(super) fn is_mounted(control: &Path) -> Result<bool, MountError> {
    Ok(table::all().map_err(failed("cannot read", TABLE))?.iter().any(|mount| is_of(mount, control)))
}

/// Others may call a mount of theirs by that name.
fn is_of(mount: &Mounted, control: &Path) -> bool {
    let is_owners = || control.symlink_metadata().is_ok_and(|meta| mount.owner == Some(meta.uid()));
    mount.names(control) && is_owners()
}

/// The mount at `point`, if its control directory is `control`: what else is mounted there by now
/// stays.
pub(super) fn held(point: &Path, control: &Path) -> Result<Option<Held>, MountError> {
    let held = Held::at(point).map_err(failed("cannot open", point))?;
    Ok(held.filter(|held| held.mount.control_directory_asked_for().as_deref() == Some(control)))
}

pub(super) fn open_process(pid: u32) -> Option<OwnedFd> {
    let pid = Pid::from_raw(i32::try_from(pid).ok()?)?;
    rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok()
}

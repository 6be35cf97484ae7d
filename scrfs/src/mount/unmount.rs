//! `scrfs umount`: ends a mount and the processes that serve it, or says why not.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::device::Held;
use super::server::{held, is_here, is_left, is_mounted, open_process, server_of};
use super::supervisor::readable;
use super::table::{self, Mounted, TABLE};
use super::{MountError, device, failed, mount_point};
use crate::control::directory::{
    SUPERVISOR_LOCK, WORKER_LOCK, holder, is_stopped, options_of, supervisor_of, was_killed,
};
use crate::control::question::{self, COORDINATOR_RETURN, QuestionError, is_late};
use crate::control::{Answer, Ask};
use crate::store::private;

/// A supervisor that was told to end and has not by then is killed: it gives its worker ten
/// seconds, and takes no longer itself unless it is frozen.
const FROZEN_SECONDS: u64 = 15;
/// Between KILL and the end of a process.
pub(super) const KILL_BOUND: Duration = Duration::from_secs(5);
/// For the daemon's answer whether a coordinator is attached.
const ANSWER_BOUND: Duration = Duration::from_secs(5);
/// For the end of one that is about to end.
const COORDINATOR_END: Duration = Duration::from_secs(2);
/// An unmount after which the supervisor lives longer than this has left a copy elsewhere.
const COPY_SECONDS: u64 = 3;
/// Two commands that unmount keep each other from it no longer than this.
const MEETING: Duration = Duration::from_millis(200);
/// Bound on the end of supervisor and worker after an unmount.
pub(super) const END_SECONDS: u64 = 20;

/// What does not keep a mount from being unmounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Despite {
    /// No job runs, and nobody uses the mount.
    Nothing,
    /// A coordinator may be attached; whoever uses the mount keeps it.
    Coordinator,
    /// Whatever is open fails from then on.
    Use,
}

/// Unmounts and waits until the daemon has ended.
pub fn unmount(mount_point: &Path, despite: Despite) -> Result<(), MountError> {
    let (mount, control) = mounted(mount_point)?;
    let point = mount.mount_point.clone();
    if despite == Despite::Nothing {
        is_not_served(&point, &control)?;
    }
    let force = despite == Despite::Use;
    let pid = server_of(&mount, &control);
    let supervisor = pid.and_then(open_process);
    match &supervisor {
        Some(process) if force => {
            rustix::process::pidfd_send_signal(process, Signal::TERM)
                .map_err(|e| failed("cannot stop the daemon of", &point)(e.into()))?;
        }
        // It is served, and a daemon that is frozen answers no question.
        Some(_) => unmount_beside_others(&point, &control)?,
        None => {
            let held = held(&point, &control)?.ok_or_else(|| MountError::NotMounted(point.clone()))?;
            if force || is_left(&held.mount, &control, || held.is_dead()) {
                held.detach()?;
            } else {
                drop(held);
                unmount_beside_others(&point, &control)?;
            }
        }
    }
    let (Some(process), Some(pid)) = (supervisor, pid) else { return end_lone_worker(&control, force) };
    let ends_within = |seconds| readable(process.as_fd(), Instant::now() + Duration::from_secs(seconds));
    if ends_within(COPY_SECONDS) {
        return Ok(());
    }
    // One that was told to end does so whoever has copies.
    if force {
        return if ends_within(FROZEN_SECONDS - COPY_SECONDS) {
            Ok(())
        } else {
            kill(&point, &control, (pid, &process))
        };
    }
    is_here(&control, pid)?;
    if ends_within(END_SECONDS - COPY_SECONDS) {
        return Ok(());
    }
    let worker = holder(&control, WORKER_LOCK);
    let is_stopped = [Some(pid), worker].into_iter().flatten().any(is_stopped);
    // Root has seen all namespaces.
    Err(if is_stopped || rustix::process::geteuid().is_root() {
        MountError::Lives { process: "daemon", seconds: END_SECONDS, job: Some(options_of(&control)) }
    } else {
        MountError::Elsewhere { mount_point: point, pid, holder: None }
    })
}

/// Another command may unmount it at the same moment, and does not keep it in use for long.
fn unmount_beside_others(point: &Path, control: &Path) -> Result<(), MountError> {
    let begun = Instant::now();
    loop {
        match device::unmount(point, false) {
            Ok(()) => return Ok(()),
            Err(_) if !is_mounted(control)? => return Ok(()),
            Err(MountError::InUse(_)) if begun.elapsed() < MEETING => std::thread::sleep(MEETING / 10),
            Err(error) => return Err(error),
        }
    }
}

/// Waits for supervisor `pid` of a control directory, whose mount was unmounted before; with
/// `force` ends it. One that is mounted here still is left alone.
pub(super) fn await_end(control: &Path, pid: u32, force: bool) -> Result<(), MountError> {
    is_here(control, pid)?;
    if is_mounted(control)? {
        return Ok(());
    }
    if force {
        return end_elsewhere(control, pid);
    }
    let Some(process) = open_process(pid) else { return Ok(()) };
    let ends = readable(process.as_fd(), Instant::now() + Duration::from_secs(END_SECONDS));
    // One that was about to begin is mounted by now.
    if ends || is_mounted(control)? {
        return Ok(());
    }
    Err(MountError::Lives { process: "daemon", seconds: END_SECONDS, job: Some(options_of(control)) })
}

/// Supervisor `pid`, whose mount is gone here, ends: it has no copy elsewhere.
pub(super) fn ends_soon(pid: u32) -> bool {
    let until = Instant::now() + Duration::from_secs(COPY_SECONDS);
    open_process(pid).is_none_or(|process| readable(process.as_fd(), until))
}

/// Ends supervisor `pid` of a control directory, which is mounted in other mount namespaces only,
/// whoever holds these.
pub(super) fn end_elsewhere(control: &Path, pid: u32) -> Result<(), MountError> {
    let Some(process) = open_process(pid) else { return Ok(()) };
    // It may have ended meanwhile.
    let _ = rustix::process::pidfd_send_signal(&process, Signal::TERM);
    if readable(process.as_fd(), Instant::now() + Duration::from_secs(FROZEN_SECONDS)) {
        return Ok(());
    }
    kill(Path::new("/"), control, (pid, &process))
}

/// A worker that has lost its supervisor ends when its mount is gone. With `force` one that does
/// not is killed.
pub(super) fn end_lone_worker(control: &Path, force: bool) -> Result<(), MountError> {
    // Of a mount that is left alone it serves that one still.
    let names = |mount: &Mounted| mount.names(control);
    if table::all().map_err(failed("cannot read", TABLE))?.iter().any(names) {
        return Ok(());
    }
    let is_lone = |_: &u32| supervisor_of(control).is_none();
    let worker = holder(control, WORKER_LOCK).filter(is_lone).filter(|pid| !was_killed(*pid));
    let Some((pid, process)) = worker.and_then(|pid| Some((pid, open_process(pid)?))) else { return Ok(()) };
    let ends_within = |bound| readable(process.as_fd(), Instant::now() + bound);
    let seconds = if force { FROZEN_SECONDS } else { END_SECONDS };
    if ends_within(Duration::from_secs(seconds)) {
        return Ok(());
    }
    let job = (!force).then(|| options_of(control));
    let late = MountError::Lives { process: "worker", seconds, job };
    if !force {
        return Err(late);
    }
    tracing::warn!(control = %control.display(), "the worker does not end; killed");
    // It may have ended meanwhile.
    let _ = rustix::process::pidfd_send_signal(&process, Signal::KILL);
    if ends_within(KILL_BOUND) || was_killed(pid) { Ok(()) } else { Err(late) }
}

/// Ends a daemon that was told to end, does not, and so may be frozen. Its keepers go with it. One
/// that is killed and cannot end, since the PFS does not answer it, is not waited for.
fn kill(point: &Path, control: &Path, supervisor: (u32, &OwnedFd)) -> Result<(), MountError> {
    tracing::warn!(control = %control.display(), "the daemon does not end; killed");
    let ended = |(pid, process): (u32, &OwnedFd)| {
        // It may have ended meanwhile.
        let _ = rustix::process::pidfd_send_signal(process, Signal::KILL);
        readable(process.as_fd(), Instant::now() + KILL_BOUND) || was_killed(pid)
    };
    // In this order: a supervisor would replace its worker.
    let mut all = ended(supervisor);
    if let Some(pid) = holder(control, WORKER_LOCK).filter(|_| all)
        && let Some(worker) = open_process(pid)
    {
        all = ended((pid, &worker));
    }
    if let Ok(Some(held)) = held(point, control) {
        held.detach()?;
    }
    if !all {
        return Err(MountError::Lives { process: "daemon", seconds: FROZEN_SECONDS, job: None });
    }
    // What another user's directory says was made is not believed.
    if private::is_of(control, rustix::process::geteuid().as_raw()) {
        mount_point::remove_made(control);
    }
    Ok(())
}

/// No coordinator is attached to the daemon of this control directory, and no job is known to run:
/// the end of a coordinator may be its job's, or it has a successor. A daemon that is stopped, very
/// busy, or between two workers may have one.
fn is_not_served(mount_point: &Path, control: &Path) -> Result<(), MountError> {
    let begun = Instant::now();
    loop {
        let is_over = begun.elapsed() >= COORDINATOR_RETURN;
        let status = match question::ask(control, &Ask::Status, ANSWER_BOUND) {
            Ok(Answer::Status(status)) => status,
            Err(QuestionError::Living(living)) => return Err(living.into()),
            Err(QuestionError::Client(error)) if lives(control) && is_late(&error) => {
                let (mount_point, seconds) = (mount_point.to_owned(), ANSWER_BOUND.as_secs());
                return Err(MountError::Silent { mount_point, seconds });
            }
            _ => return Ok(()),
        };
        match status.coordinator {
            Some(coordinator) => {
                // One of another namespace has the number 0 here.
                let pid = u32::try_from(coordinator.pid).unwrap_or_default();
                if !ends_now(pid) {
                    return Err(MountError::Served { mount_point: mount_point.to_owned(), pid });
                }
                // Its daemon hears of that at once.
                if is_over {
                    return Ok(());
                }
            }
            None if status.job_ended => return Ok(()),
            None if status.awaited && !is_over => {}
            None => return Err(MountError::MayRun { mount_point: mount_point.to_owned() }),
        }
        std::thread::sleep(MEETING);
    }
}

/// A coordinator ends, or has ended.
fn ends_now(pid: u32) -> bool {
    let until = Instant::now() + COORDINATOR_END;
    match open_process(pid) {
        Some(process) => readable(process.as_fd(), until),
        None => pid > 0,
    }
}

/// A process of this daemon was not killed.
fn lives(control: &Path) -> bool {
    let holders = [SUPERVISOR_LOCK, WORKER_LOCK].map(|name| holder(control, name));
    holders.into_iter().flatten().any(|pid| !was_killed(pid))
}

/// The mount that `path` names, and its control directory; it is this user's to change.
pub(super) fn mounted(path: &Path) -> Result<(Mounted, PathBuf), MountError> {
    // Another user's file system is not asked.
    mount_point::is_reached(path).map_err(|_| MountError::NotMounted(path.to_owned()))?;
    let point = mount_point::without_symlinks(path).map_err(failed("cannot find", path))?;
    let point = mount_point::trusted(path, point)?;
    let mount = table::mounted_at(&point).map_err(failed("cannot read", TABLE))?;
    let Some(mount) = mount.filter(Mounted::is_scrfs) else {
        is_not_elsewhere(&point)?;
        return Err(MountError::NotMounted(path.to_owned()));
    };
    let me = rustix::process::geteuid();
    match mount.owner {
        Some(uid) if !me.is_root() && me.as_raw() != uid => {
            let user = nix::unistd::User::from_uid(uid.into()).ok().flatten();
            let owner = user.map_or_else(|| format!("user {uid}"), |user| user.name);
            Err(MountError::NotYours { path: point, owner })
        }
        _ => match mount.control_directory_asked_for() {
            Some(control) => Ok((mount, control)),
            None => Err(MountError::NotMounted(path.to_owned())),
        },
    }
}

/// No mount of this user's at `point` is in another mount namespace, while it is gone here.
fn is_not_elsewhere(point: &Path) -> Result<(), MountError> {
    let same = |mount: &Mounted| mount.mount_point == point && mount.control_directory().is_some();
    let control = table::elsewhere(same).and_then(|(_, mount)| mount.control_directory());
    // In a namespace of a user's own that user mounts as its root, and calls it what he likes.
    let control = control.filter(|control| private::is_of(control, rustix::process::geteuid().as_raw()));
    match control.and_then(|control| Some((supervisor_of(&control)?, control))) {
        Some((pid, control)) => is_here(&control, pid),
        None => Ok(()),
    }
}

/// Unmounts what a dead supervisor of this user has left anywhere and nobody serves.
pub(super) fn clean_stale() {
    let Ok(mounts) = table::all() else { return };
    let is_left_unless_alive = |mount: &Mounted, is_dead: &dyn Fn() -> bool| {
        let control = mount.control_directory().filter(|_| mount.is_ours());
        control.is_some_and(|control| is_left(mount, &control, is_dead))
    };
    // A mount that is served must not be held.
    for mount in mounts.iter().filter(|mount| is_left_unless_alive(mount, &|| true)) {
        let Ok(Some(held)) = Held::at(&mount.mount_point) else { continue };
        // By now another job's mount may be there.
        if is_left_unless_alive(&held.mount, &|| held.is_dead()) {
            tracing::info!(mount_point = %mount.mount_point.display(), "a stale mount is unmounted");
            if let Err(error) = held.detach() {
                tracing::warn!(%error, "a stale mount stays");
            }
        }
    }
}

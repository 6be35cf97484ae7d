//! What a person starts: `scrfs mount`, `scrfs umount`.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal};

use super::device::Held;
use super::lock::{SUPERVISOR_LOCK, WORKER_LOCK, holder, supervisor_of, was_killed};
use super::places::Places;
use super::supervisor::{READY, first_line, readable, say};
use super::table::{self, Mounted, TABLE};
use super::{MountError, Options, device, failed, mount_point, stores, supervisor};
use crate::checkpoint_path;
use crate::control::{Answer, Ask, client};
use crate::daemon::CacheStore;
use crate::store::private;

/// Bound on a mount's start: the worker's and some more.
const START_SECONDS: u64 = 60;
/// Bound on the end of supervisor and worker after an unmount.
const END_SECONDS: u64 = 20;
/// A supervisor that was told to end and has not by then is killed: it gives its worker ten
/// seconds, and takes no longer itself unless it is frozen.
const FROZEN_SECONDS: u64 = 15;
/// Between KILL and the end of a process.
const KILL_BOUND: Duration = Duration::from_secs(5);
/// For the daemon's answer whether a coordinator is attached.
const ANSWER_BOUND: Duration = Duration::from_secs(5);
/// For the end of one that is about to end.
const COORDINATOR_END: Duration = Duration::from_secs(2);
/// An unmount after which the supervisor lives longer than this has left a copy elsewhere.
const COPY_SECONDS: u64 = 3;

/// Mounts, and returns when the mount answers; with `foreground` when it is gone again, and that
/// runs when it answers.
pub fn mount<F: FnOnce()>(mut options: Options, foreground: Option<F>) -> Result<(), MountError> {
    clean_stale();
    mount_point::is_passable(&options.mount_point)?;
    let made = mount_point::make(&options.mount_point)?;
    let prepared = prepare(&mut options, &made);
    let places = match prepared {
        Ok(Prepared::Fresh(places)) => places,
        Ok(Prepared::Mounted) => {
            tracing::info!(mount_point = %options.mount_point.display(), "this job is mounted there already");
            return Ok(());
        }
        Err(error) => {
            mount_point::remove(made);
            return Err(error);
        }
    };
    if let Some(ready) = foreground {
        return supervisor::run(&options, &places.control, ready);
    }
    start(&options, &places)
}

enum Prepared {
    Fresh(Places),
    /// A prolog that runs again finds its work done.
    Mounted,
}

/// The mount point is real and free, the control directory there.
fn prepare(options: &mut Options, made: &[PathBuf]) -> Result<Prepared, MountError> {
    options.mount_point = mount_point::find(&options.mount_point)?;
    Places::are_reached(options)?;
    let places = Places::of(options)?;
    Places::are_apart(options)?;
    let is_ours = private::is_ours_below(&options.control_base, &places.control);
    if is_ours {
        killed_have_ended(&places.control)?;
    }
    // A worker that has lost its supervisor serves all the same.
    let server = || supervisor_of(&places.control).or_else(|| holder(&places.control, WORKER_LOCK));
    if let Some(pid) = is_ours.then(server).flatten() {
        return served(options, places, pid);
    }
    mount_point::check(&options.mount_point)?;
    let places = Places::make_control(options)?;
    mount_point::remember_made(&places.control, made)?;
    Ok(Prepared::Fresh(places))
}

/// A daemon, process `pid`, has the control directory.
fn served(options: &Options, places: Places, pid: u32) -> Result<Prepared, MountError> {
    let all = table::all().map_err(failed("cannot read", TABLE))?;
    let of_this_job = |mount: &&Mounted| mount.is_ours() && mount.names(&places.control);
    let uppermost = all.iter().rfind(|mount| mount.mount_point == options.mount_point);
    if uppermost.as_ref().is_some_and(of_this_job) {
        if supervisor_of(&places.control).is_none() {
            tracing::warn!(pid, "its supervisor was killed: no other worker takes over if this one dies");
        }
        return Ok(Prepared::Mounted);
    }
    is_here(&places.control, pid)?;
    Err(match all.iter().find(of_this_job) {
        Some(mount) => MountError::MountedElsewhere {
            job_id: options.job_id.clone(),
            user: options.user.clone(),
            at: mount.mount_point.clone(),
        },
        None => MountError::Busy { directory: places.control, pid },
    })
}

/// A killed process has the job's locks until it has ended, which a file system that does not
/// answer can delay.
fn killed_have_ended(control: &Path) -> Result<(), MountError> {
    let until = Instant::now() + KILL_BOUND;
    let holders = [SUPERVISOR_LOCK, WORKER_LOCK].map(|name| holder(control, name));
    for pid in holders.into_iter().flatten().filter(|pid| was_killed(*pid)) {
        if open_process(pid).is_some_and(|process| !readable(process.as_fd(), until)) {
            return Err(MountError::Stuck { directory: control.to_owned(), pid });
        }
    }
    Ok(())
}

fn start(options: &Options, places: &Places) -> Result<(), MountError> {
    let log = places.log();
    let log = OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW)
        .open(&log)
        .map_err(failed("cannot open", &log))?;
    let io = |doing| failed(doing, "/proc/self/exe");
    let mut child = Command::new(program())
        .arg("supervise")
        .args(arguments(options))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::from(log))
        .current_dir("/")
        .spawn()
        .map_err(io("cannot start"))?;
    let said = match child.stdout.take() {
        Some(out) => first_line(out.into(), Duration::from_secs(START_SECONDS)),
        None => String::new(),
    };
    match said.trim_end() {
        READY => {
            for warning in stores::recorded(&places.control).iter().filter_map(CacheStore::warning) {
                tracing::warn!("{warning}");
            }
            warn_of_path(options, places);
            answers(&options.mount_point)
        }
        "" => {
            let ended = child.try_wait().ok().flatten().is_some();
            let _ = child.kill();
            let _ = child.wait();
            let log = places.log();
            Err(if ended {
                MountError::told("", "the daemon ended at its start", &log)
            } else {
                MountError::Timeout { what: "the start of the daemon", seconds: START_SECONDS }
            })
        }
        reason => {
            let _ = child.wait();
            Err(MountError::told(reason, "", &places.log()))
        }
    }
}

/// Who names another path than the one that holds hears of that one.
fn warn_of_path(options: &Options, places: &Places) {
    let wanted = &options.checkpoint_path;
    if let Ok(chosen) = checkpoint_path::in_force(&places.control, wanted)
        && chosen.path != *wanted
        && !wanted.is_root()
    {
        let (path, job) = (checkpoint_path::shown(&chosen.path), &options.job_id);
        tracing::warn!("job {job}: its datasets are in {path}, which holds, not {wanted}");
    }
}

fn answers(mount_point: &Path) -> Result<(), MountError> {
    rustix::fs::statfs(mount_point).map(drop).map_err(|e| failed("no answer from", mount_point)(e.into()))
}

/// The supervisor's own process: leaves the session of who started it, and tells how the start
/// went.
pub fn supervise(options: &Options) -> Result<(), MountError> {
    let started = (|| {
        // Fails only for the leader of a process group, which is left alone already.
        let _ = rustix::process::setsid();
        let places = Places::of(options)?;
        crate::log::keep_bounded(&places.log());
        supervisor::run(options, &places.control, || {
            say(READY);
            if let Ok(null) = File::options().write(true).open("/dev/null") {
                let _ = rustix::stdio::dup2_stdout(&null);
            }
        })
    })();
    if let Err(error) = &started {
        say(&error.line());
    }
    started
}

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
        Some(_) => device::unmount(&point, false)?,
        None => {
            let held = held(&point, &control)?.ok_or_else(|| MountError::NotMounted(point.clone()))?;
            if force || is_left(&held.mount, &control, || held.is_dead()) {
                held.detach()?;
            } else {
                drop(held);
                device::unmount(&point, false)?;
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
    // Root has seen all namespaces.
    Err(if rustix::process::geteuid().is_root() {
        MountError::Timeout { what: "the end of the daemon", seconds: END_SECONDS }
    } else {
        MountError::Elsewhere { mount_point: point, pid, holder: None }
    })
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
    let late = MountError::Timeout { what: "the end of the worker", seconds };
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
        return Err(MountError::Timeout { what: "the end of the daemon", seconds: FROZEN_SECONDS });
    }
    // What another user's directory says was made is not believed.
    if private::is_of(control, rustix::process::geteuid().as_raw()) {
        mount_point::remove_made(control);
    }
    Ok(())
}

/// No coordinator is attached to the daemon of this control directory, or the one that is ends now.
/// A daemon that does not answer has none.
fn is_not_served(mount_point: &Path, control: &Path) -> Result<(), MountError> {
    let Ok(Answer::Status(status)) = client::ask(control, &Ask::Status, ANSWER_BOUND) else { return Ok(()) };
    let Some(coordinator) = status.coordinator else { return Ok(()) };
    let until = Instant::now() + COORDINATOR_END;
    // One of another namespace has the number 0 here.
    let pid = u32::try_from(coordinator.pid).unwrap_or_default();
    match open_process(pid) {
        // It has ended meanwhile.
        None if pid > 0 => Ok(()),
        Some(process) if readable(process.as_fd(), until) => Ok(()),
        _ => Err(MountError::Served { mount_point: mount_point.to_owned(), pid }),
    }
}

/// The mount that supervisor `pid` of a control directory holds is not only in another mount
/// namespace, as far as this user may look.
pub(super) fn is_here(control: &Path, pid: u32) -> Result<(), MountError> {
    // Others may call a mount of theirs by that name.
    let owner = control.symlink_metadata().map(|meta| meta.uid()).ok();
    let ours = |mount: &Mounted| mount.names(control) && mount.owner == owner;
    if table::all().map_err(failed("cannot read", TABLE))?.iter().any(ours) {
        return Ok(());
    }
    match table::elsewhere(ours) {
        Some((holder, mount)) => {
            Err(MountError::Elsewhere { mount_point: mount.mount_point, pid, holder: Some(holder) })
        }
        None => Ok(()),
    }
}

/// The mount that `path` names, and its control directory; it is this user's to change.
fn mounted(path: &Path) -> Result<(Mounted, PathBuf), MountError> {
    let point = mount_point::without_symlinks(path).map_err(failed("cannot find", path))?;
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

/// The supervisor of a mount with this control directory, if it serves that mount.
fn server_of(mount: &Mounted, control: &Path) -> Option<u32> {
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

/// The mount at `point`, if its control directory is `control`: what else is mounted there by now
/// stays.
fn held(point: &Path, control: &Path) -> Result<Option<Held>, MountError> {
    let held = Held::at(point).map_err(failed("cannot open", point))?;
    Ok(held.filter(|held| held.mount.control_directory_asked_for().as_deref() == Some(control)))
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

/// Has the supervisor replace its worker by one from the program file that is there now; returns
/// when that answers.
pub fn reload(mount_point: &Path) -> Result<(), MountError> {
    let (mount, control) = mounted(mount_point)?;
    let point = mount.mount_point.clone();
    let nobody = || MountError::Start {
        reason: "its supervisor is gone".into(),
        hint: format!("unmount it and mount it again: scrfs umount --force {}", point.display()),
    };
    let supervisor = server_of(&mount, &control).and_then(open_process).ok_or_else(nobody)?;
    let worker = holder(&control, WORKER_LOCK).and_then(open_process);
    rustix::process::pidfd_send_signal(&supervisor, Signal::HUP)
        .map_err(|e| failed("cannot reload", &point)(e.into()))?;
    if let Some(worker) = worker
        && !readable(worker.as_fd(), Instant::now() + Duration::from_secs(END_SECONDS))
    {
        return Err(MountError::Timeout { what: "the end of the worker", seconds: END_SECONDS });
    }
    // Asked while there is no worker, this waits for the new one.
    answers(&point)
}

/// Unmounts what a dead supervisor of this user has left anywhere and nobody serves.
fn clean_stale() {
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

/// Nobody serves a mount with this control directory any more. One whose worker was killed, and
/// cannot end, is not asked by `is_dead`: it would not answer.
fn is_left(mount: &Mounted, control: &Path, is_dead: impl FnOnce() -> bool) -> bool {
    match (supervisor_of(control), holder(control, WORKER_LOCK)) {
        (None, None) => is_dead(),
        (None, Some(worker)) => was_killed(worker),
        (Some(supervisor), worker) => {
            let killed = was_killed(supervisor) && worker.is_none_or(was_killed);
            killed || !serves(supervisor, mount, control)
        }
    }
}

fn open_process(pid: u32) -> Option<OwnedFd> {
    let pid = Pid::from_raw(i32::try_from(pid).ok()?)?;
    rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok()
}

/// This program, by its name where that still leads to it: `ps` then shows what it is.
pub(super) fn program() -> PathBuf {
    std::env::current_exe().ok().filter(|path| path.exists()).unwrap_or_else(|| "/proc/self/exe".into())
}

/// Command-line arguments that give another process of this program the same options.
pub(super) fn arguments(options: &Options) -> Vec<OsString> {
    let text = |text: &str| OsString::from(text);
    let path = |path: &Path| path.as_os_str().to_owned();
    let mut arguments = vec![
        text("--user"),
        text(&options.user),
        text("--uid"),
        options.uid.to_string().into(),
        text("--gid"),
        options.gid.to_string().into(),
        text("--job-id"),
        text(&options.job_id),
        text("--control-base"),
        path(&options.control_base),
        text("--cache-base"),
        options.cache_bases.iter().map(|base| base.as_os_str()).collect::<Vec<_>>().join(&text(",")),
    ];
    if !options.checkpoint_path.is_root() {
        arguments.push(text("--checkpoint-path"));
        arguments.push(OsString::from_vec(options.checkpoint_path.as_bytes().to_vec()));
    }
    if !options.passthrough {
        arguments.push(text("--no-passthrough"));
    }
    arguments.push(path(&options.mount_point));
    arguments
}

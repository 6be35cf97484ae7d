//! What a person starts: `scrfs mount`, `scrfs umount`.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal};

use super::places::{Places, SUPERVISOR_LOCK, WORKER_LOCK, holder, supervisor_of};
use super::supervisor::{READY, first_line, readable, say};
use super::table::{self, Mounted};
use super::{MountError, Options, device, failed, stores, supervisor};
use crate::daemon::CacheStore;

/// Bound on a mount's start: the worker's and some more.
const START_SECONDS: u64 = 60;
/// Bound on the end of supervisor and worker after an unmount.
const END_SECONDS: u64 = 20;
/// An unmount after which the supervisor lives longer than this has left a copy elsewhere.
const COPY_SECONDS: u64 = 3;
/// Dead mounts that may lie on one another.
const DEAD_MAX: usize = 16;
const TABLE: &str = "/proc/self/mountinfo";
/// Between an error's text and its hint, on the supervisor's standard output.
const HINT: char = '\u{1f}';

/// Mounts, and returns when the mount answers; with `foreground` when it is gone again, and that runs when it answers.
pub fn mount<F: FnOnce()>(mut options: Options, foreground: Option<F>) -> Result<(), MountError> {
    clean_stale();
    options.mount_point = mount_point(&options.mount_point)?;
    let places = Places::of(&options)?;
    Places::are_apart(&options)?;
    if let Some(pid) = supervisor_of(&places.control) {
        is_here(&places.control, pid)?;
        return Err(MountError::Busy { directory: places.control, pid });
    }
    places.make_control()?;
    if let Some(ready) = foreground {
        return supervisor::run(&options, &places.control, ready);
    }
    let log = places.log();
    let log = OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .open(&log)
        .map_err(failed("cannot open", &log))?;
    let io = |doing| failed(doing, "/proc/self/exe");
    let mut child = Command::new(program())
        .arg("supervise")
        .args(arguments(&options))
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
            answers(&options.mount_point)
        }
        "" => {
            let ended = child.try_wait().ok().flatten().is_some();
            let _ = child.kill();
            let _ = child.wait();
            let log = places.log();
            Err(if ended {
                MountError::Start(format!("the daemon ended at its start; see {}", log.display()))
            } else {
                MountError::Timeout { what: "the start of the daemon", seconds: START_SECONDS }
            })
        }
        reason => {
            let _ = child.wait();
            Err(MountError::Start(reason.replace(HINT, "\nhint: ")))
        }
    }
}

fn answers(mount_point: &Path) -> Result<(), MountError> {
    rustix::fs::statfs(mount_point).map(drop).map_err(|e| failed("no answer from", mount_point)(e.into()))
}

/// The supervisor's own process: leaves the session of who started it, and tells how the start went.
pub fn supervise(options: &Options) -> Result<(), MountError> {
    let started = (|| {
        // Fails only for the leader of a process group, which is left alone already.
        let _ = rustix::process::setsid();
        let places = Places::of(options)?;
        supervisor::run(options, &places.control, || {
            say(READY);
            if let Ok(null) = File::options().write(true).open("/dev/null") {
                let _ = rustix::stdio::dup2_stdout(&null);
            }
        })
    })();
    if let Err(error) = &started {
        let hint = error.hint().map(|hint| format!("{HINT}{hint}")).unwrap_or_default();
        say(&format!("{error}{hint}"));
    }
    started
}

/// Unmounts and waits until the daemon has ended. `force`: even if the mount is in use.
pub fn unmount(mount_point: &Path, force: bool) -> Result<(), MountError> {
    let (point, control) = mounted(mount_point)?;
    let pid = supervisor_of(&control);
    let supervisor = pid.and_then(open_process);
    match &supervisor {
        Some(process) if force => {
            rustix::process::pidfd_send_signal(process, Signal::TERM)
                .map_err(|e| failed("cannot stop the daemon of", &point)(e.into()))?;
        }
        _ => device::unmount(&point, force || device::is_dead(&point))?,
    }
    let (Some(process), Some(pid)) = (supervisor, pid) else { return Ok(()) };
    let ends_within = |seconds| readable(process.as_fd(), Instant::now() + Duration::from_secs(seconds));
    if ends_within(COPY_SECONDS) {
        return Ok(());
    }
    // One that was told to end does so whoever has copies.
    if !force {
        is_here(&control, pid)?;
    }
    if ends_within(END_SECONDS - COPY_SECONDS) {
        return Ok(());
    }
    // Root has seen all namespaces.
    Err(if force || rustix::process::geteuid().is_root() {
        MountError::Timeout { what: "the end of the daemon", seconds: END_SECONDS }
    } else {
        MountError::Elsewhere { mount_point: point, pid, holder: None }
    })
}

/// The mount that supervisor `pid` of a control directory holds is not only in another mount namespace, as far as this
/// user may look.
fn is_here(control: &Path, pid: u32) -> Result<(), MountError> {
    let ours = |mount: &Mounted| mount.control_directory().is_some_and(|path| path == control);
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

/// Where exactly the mount is that `mount_point` names, and its control directory; it is this user's to change.
fn mounted(mount_point: &Path) -> Result<(PathBuf, PathBuf), MountError> {
    let point = without_symlinks(mount_point).map_err(failed("cannot find", mount_point))?;
    let mount = table::mounted_at(&point).map_err(failed("cannot read", TABLE))?;
    let Some((control, mount)) = mount.and_then(|mount| Some((mount.control_directory()?, mount))) else {
        let same = |mount: &Mounted| mount.mount_point == point && mount.control_directory().is_some();
        let control = table::elsewhere(same).and_then(|(_, mount)| mount.control_directory());
        if let Some((pid, control)) = control.and_then(|control| Some((supervisor_of(&control)?, control))) {
            is_here(&control, pid)?;
        }
        return Err(MountError::NotMounted(mount_point.to_owned()));
    };
    let me = rustix::process::geteuid();
    match mount.owner {
        Some(uid) if !me.is_root() && me.as_raw() != uid => {
            let user = nix::unistd::User::from_uid(uid.into()).ok().flatten();
            let owner = user.map_or_else(|| format!("user {uid}"), |user| user.name);
            Err(MountError::NotYours { path: point, owner })
        }
        _ => Ok((point, control)),
    }
}

/// Has the supervisor replace its worker by one from the program file that is there now; returns when that answers.
pub fn reload(mount_point: &Path) -> Result<(), MountError> {
    let (point, control) = mounted(mount_point)?;
    let nobody = || MountError::Start("its supervisor is gone; unmount it and mount it again".into());
    let supervisor = supervisor_of(&control).and_then(open_process).ok_or_else(nobody)?;
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

/// Unmounts what a dead supervisor has left anywhere and nobody serves.
fn clean_stale() {
    let Ok(mounts) = table::all() else { return };
    for mount in mounts {
        let Some(control) = mount.control_directory() else { continue };
        let served = [SUPERVISOR_LOCK, WORKER_LOCK].iter().any(|lock| holder(&control, lock).is_some());
        if !served && device::is_dead(&mount.mount_point) {
            tracing::info!(mount_point = %mount.mount_point.display(), "a stale mount is unmounted");
            if let Err(error) = device::unmount(&mount.mount_point, true) {
                tracing::warn!(%error, "a stale mount stays");
            }
        }
    }
}

fn open_process(pid: u32) -> Option<OwnedFd> {
    let pid = Pid::from_raw(i32::try_from(pid).ok()?)?;
    rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok()
}

/// Absolute, without symlinks; the last name may be a mount that nobody serves, or one that lets nobody but its user in,
/// so it is not looked into.
fn without_symlinks(path: &Path) -> io::Result<PathBuf> {
    match path.canonicalize() {
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOTCONN | libc::EACCES)) => {
            let name = path.file_name().ok_or(error)?;
            let above = match path.parent() {
                Some(above) if !above.as_os_str().is_empty() => above,
                _ => Path::new("."),
            };
            Ok(above.canonicalize()?.join(name))
        }
        found => found,
    }
}

/// Checks the mount point; dead mounts on it are unmounted.
fn mount_point(path: &Path) -> Result<PathBuf, MountError> {
    let find = || {
        let bad =
            |error: io::Error| MountError::MountPoint { path: path.to_owned(), reason: error.to_string() };
        without_symlinks(path).map_err(bad)
    };
    for _ in 0..DEAD_MAX {
        let point = find()?;
        if !device::is_dead(&point) {
            break;
        }
        device::unmount(&point, true)?;
    }
    let point = find()?;
    if !point.is_dir() {
        return Err(MountError::MountPoint { path: path.to_owned(), reason: "not a directory".into() });
    }
    let mounted = table::mounted_at(&point).map_err(failed("cannot read", TABLE))?;
    if let Some(mount) = mounted.filter(|mount| mount.control_directory().is_some()) {
        let source_name = mount.source.to_string_lossy().into_owned();
        return Err(MountError::Mounted { path: point, source_name });
    }
    let mut names = std::fs::read_dir(&point).map_err(failed("cannot list", &point))?;
    if names.next().is_some() {
        let reason = "not empty: its files would be out of sight".into();
        return Err(MountError::MountPoint { path: path.to_owned(), reason });
    }
    Ok(point)
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

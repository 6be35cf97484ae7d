//! What a person starts: `scrfs mount`, `scrfs umount`.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal};

use super::places::{Places, SUPERVISOR_LOCK, WORKER_LOCK, holder, supervisor_of};
use super::supervisor::{READY, first_line, readable, say};
use super::{MountError, Options, device, failed, stores, supervisor, table};
use crate::daemon::CacheStore;

/// Bound on a mount's start: the worker's and some more.
const START_SECONDS: u64 = 60;
/// Bound on the end of supervisor and worker after an unmount.
const END_SECONDS: u64 = 20;
/// Dead mounts that may lie on one another.
const DEAD_MAX: usize = 16;
/// Between an error's text and its hint, on the supervisor's standard output.
const HINT: char = '\u{1f}';

/// Mounts, and returns when the mount answers; with `foreground` when it is gone again.
pub fn mount(mut options: Options, foreground: bool) -> Result<(), MountError> {
    clean_stale();
    options.mount_point = mount_point(&options.mount_point)?;
    let places = Places::of(&options)?;
    if let Some(pid) = supervisor_of(&places.control) {
        return Err(MountError::Busy { directory: places.control, pid });
    }
    places.make_control()?;
    if foreground {
    Places::are_apart(&options)?;
        return supervisor::run(&options, &places.control, || ());
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
    let point = without_symlinks(mount_point)?;
    let mounted = table::mounted_at(&point).map_err(failed("cannot read", "/proc/self/mountinfo"))?;
    let control = mounted
        .and_then(|mount| mount.control_directory())
        .ok_or_else(|| MountError::NotMounted(mount_point.to_owned()))?;
    let supervisor = supervisor_of(&control).and_then(open_process);
    match &supervisor {
        Some(process) if force => {
            rustix::process::pidfd_send_signal(process, Signal::TERM)
                .map_err(|e| failed("cannot stop the daemon of", &point)(e.into()))?;
        }
        _ => device::unmount(&point, force || device::is_dead(&point))?,
    }
    let Some(process) = supervisor else { return Ok(()) };
    if readable(process.as_fd(), Instant::now() + Duration::from_secs(END_SECONDS)) {
        return Ok(());
    }
    Err(MountError::Timeout { what: "the end of the daemon", seconds: END_SECONDS })
}

/// Has the supervisor replace its worker by one from the program file that is there now; returns when that answers.
pub fn reload(mount_point: &Path) -> Result<(), MountError> {
    let point = without_symlinks(mount_point)?;
    let mounted = table::mounted_at(&point).map_err(failed("cannot read", "/proc/self/mountinfo"))?;
    let control = mounted
        .and_then(|mount| mount.control_directory())
        .ok_or_else(|| MountError::NotMounted(mount_point.to_owned()))?;
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

/// Absolute, without symlinks; the last name may be a mount that nobody serves, so it is not looked into.
fn without_symlinks(path: &Path) -> Result<PathBuf, MountError> {
    let bad = |reason: String| MountError::MountPoint { path: path.to_owned(), reason };
    match path.canonicalize() {
        Ok(found) => Ok(found),
        Err(error) if error.raw_os_error() == Some(libc::ENOTCONN) => {
            let name = path.file_name().ok_or_else(|| bad("has no name".into()))?;
            let above = match path.parent() {
                Some(above) if !above.as_os_str().is_empty() => above,
                _ => Path::new("."),
            };
            Ok(above.canonicalize().map_err(|e| bad(e.to_string()))?.join(name))
        }
        Err(error) => Err(bad(error.to_string())),
    }
}

/// Checks the mount point; dead mounts on it are unmounted.
fn mount_point(path: &Path) -> Result<PathBuf, MountError> {
    for _ in 0..DEAD_MAX {
        let point = without_symlinks(path)?;
        if !device::is_dead(&point) {
            break;
        }
        device::unmount(&point, true)?;
    }
    let point = without_symlinks(path)?;
    if !point.is_dir() {
        return Err(MountError::MountPoint { path: path.to_owned(), reason: "not a directory".into() });
    }
    let mounted = table::mounted_at(&point).map_err(failed("cannot read", "/proc/self/mountinfo"))?;
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

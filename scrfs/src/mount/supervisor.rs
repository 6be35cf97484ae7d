//! Holds the mount, and has a worker serve it.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal};

use super::places::{Lock, Places, SUPERVISOR_LOCK};
use super::{MountError, Options, device, failed};

/// Bound on a worker's start, and on its end when it is told to.
const WORKER_BOUND: Duration = Duration::from_secs(30);
const END_BOUND: Duration = Duration::from_secs(5);
/// A worker that dies sooner than this was not started well.
const SHORT_LIFE: Duration = Duration::from_secs(10);
/// So many short lives in a row are the end.
const SHORT_LIVES_MAX: u32 = 5;
/// What a worker says when it is ready.
pub(super) const READY: &str = "ready";

/// What the mount is served through. The supervisor's copy keeps the connection alive when a worker dies.
#[derive(Debug)]
struct Device {
    connection: OwnedFd,
}

impl Device {
    fn mount(options: &Options, places: &Places) -> Result<Self, MountError> {
        Ok(Self { connection: device::mount(&options.mount_point, &places.control)? })
    }
}

enum Ended {
    /// The worker did; how.
    Worker(ExitStatus),
    /// SIGTERM or SIGINT came.
    Told,
}

/// Mounts and supervises until the mount is gone. `ready` runs once, when the first worker serves.
pub fn run(options: &Options, places: &Places, ready: impl FnOnce()) -> Result<(), MountError> {
    let _lock = Lock::take(&places.control, SUPERVISOR_LOCK)?;
    let signals = signals()?;
    let mut device = Device::mount(options, places)?;
    let mut ready = Some(ready);
    let mut short_lives = 0;
    loop {
        let started = Instant::now();
        let outcome = start_worker(&device, options).and_then(|worker| {
            if let Some(ready) = ready.take() {
                ready();
            }
            wait(worker, &signals, &options.mount_point)
        });
        match outcome {
            Ok(Ended::Told) => return Ok(()),
            Ok(Ended::Worker(status)) if status.success() => {
                tracing::info!(mount_point = %options.mount_point.display(), "unmounted");
                return Ok(());
            }
            Ok(Ended::Worker(status)) => tracing::error!(%status, "the worker died"),
            Err(error) if ready.is_some() => {
                drop(device);
                sweep(&options.mount_point);
                return Err(error);
            }
            Err(error) => tracing::error!(%error, "the worker does not start"),
        }
        short_lives = if started.elapsed() < SHORT_LIFE { short_lives + 1 } else { 0 };
        if short_lives >= SHORT_LIVES_MAX {
            drop(device);
            sweep(&options.mount_point);
            return Err(MountError::Start("workers keep dying; giving up".into()));
        }
        // Requests in flight and open handles are lost to their programs; names and files are not.
        drop(device);
        sweep(&options.mount_point);
        device = Device::mount(options, places)?;
    }
}

/// A descriptor that is readable once SIGTERM or SIGINT came.
fn signals() -> Result<OwnedFd, MountError> {
    let pipe = || -> std::io::Result<OwnedFd> {
        let (read, write) = std::os::unix::net::UnixStream::pair()?;
        for signal in [libc::SIGTERM, libc::SIGINT] {
            signal_hook::low_level::pipe::register(signal, write.try_clone()?)?;
        }
        Ok(read.into())
    };
    pipe().map_err(failed("cannot watch for signals", "/proc/self"))
}

struct Worker {
    child: Child,
    pidfd: OwnedFd,
}

/// Starts a worker and waits until it serves. Its standard input is the device.
fn start_worker(device: &Device, options: &Options) -> Result<Worker, MountError> {
    let io = |doing| failed(doing, "/proc/self/exe");
    let connection = device.connection.try_clone().map_err(io("cannot share the device with"))?;
    let mut child = Command::new(super::launch::program())
        .arg("worker")
        .args(super::launch::arguments(options))
        .stdin(Stdio::from(connection))
        .stdout(Stdio::piped())
        .spawn()
        .map_err(io("cannot start"))?;
    let pidfd = pidfd_of(&child);
    let said = child.stdout.take().map(|out| first_line(out.into(), WORKER_BOUND)).unwrap_or_default();
    let pidfd = pidfd.map_err(io("cannot watch"))?;
    if said.trim() == READY {
        return Ok(Worker { child, pidfd });
    }
    let _ = child.kill();
    let _ = child.wait();
    Err(MountError::Start(if said.trim().is_empty() { "the worker ended at its start".into() } else { said }))
}

fn pidfd_of(child: &Child) -> std::io::Result<OwnedFd> {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| std::io::Error::from_raw_os_error(libc::ESRCH))?;
    Ok(rustix::process::pidfd_open(pid, PidfdFlags::empty())?)
}

/// The first line that comes, within `bound`; empty when none does.
pub(super) fn first_line(from: OwnedFd, bound: Duration) -> String {
    let until = Instant::now() + bound;
    let mut lines = BufReader::new(File::from(from));
    loop {
        if !readable(lines.get_ref().as_fd(), until) {
            return String::new();
        }
        // A line is written in one piece, so once something is there the rest is too.
        let mut line = String::new();
        return match lines.read_line(&mut line) {
            Ok(_) => line,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(_) => String::new(),
        };
    }
}

pub(super) fn readable(fd: rustix::fd::BorrowedFd<'_>, until: Instant) -> bool {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let Ok(left) = Timespec::try_from(left) else { return false };
        match poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&left)) {
            Ok(0) => return false,
            Ok(_) => return true,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return false,
        }
    }
}

/// Waits for the worker's end, or for a signal: then unmounts and has the worker end.
fn wait(mut worker: Worker, signals: &OwnedFd, mount_point: &Path) -> Result<Ended, MountError> {
    loop {
        let mut fds = [PollFd::new(&worker.pidfd, PollFlags::IN), PollFd::new(signals, PollFlags::IN)];
        match poll(&mut fds, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(failed("cannot wait for", "the worker")(error.into())),
        }
        let (ended, told) = (!fds[0].revents().is_empty(), !fds[1].revents().is_empty());
        if ended {
            return Ok(Ended::Worker(reap(&mut worker)?));
        }
        if told {
            tracing::info!(mount_point = %mount_point.display(), "told to unmount");
            end(&mut worker, mount_point)?;
            return Ok(Ended::Told);
        }
    }
}

/// Unmounts, at once even if the mount is in use. A worker ends when its connection does; where files are still open
/// that is not now, so it is told, and at last killed.
fn end(worker: &mut Worker, mount_point: &Path) -> Result<(), MountError> {
    if let Err(error) = device::unmount(mount_point, false) {
        tracing::warn!(%error, "detached while in use");
        device::unmount(mount_point, true)?;
    }
    if !readable(worker.pidfd.as_fd(), Instant::now() + END_BOUND) {
        let _ = rustix::process::pidfd_send_signal(&worker.pidfd, Signal::TERM);
    }
    if !readable(worker.pidfd.as_fd(), Instant::now() + END_BOUND) {
        tracing::warn!("the worker does not end; killed");
        let _ = worker.child.kill();
    }
    reap(worker).map(drop)
}

fn reap(worker: &mut Worker) -> Result<ExitStatus, MountError> {
    worker.child.wait().map_err(failed("cannot wait for", "the worker"))
}

/// Says one line on standard output, for the process that started this one.
pub(super) fn say(line: &str) {
    let mut out = std::io::stdout();
    // Nobody listens any more: nothing to do about it.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// Unmounts what nobody serves any more. The connection must be closed before.
pub(super) fn sweep(mount_point: &Path) {
    if device::is_dead(mount_point)
        && let Err(error) = device::unmount(mount_point, true)
    {
        tracing::warn!(%error, "a dead mount stays");
    }
}

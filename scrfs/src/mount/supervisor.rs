//! Holds the mount, and has a worker serve it.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions};

use super::lives::{Life, Lives, Next, SHORT_LIFE};
use super::lock::Lock;
use super::places::Places;
use super::table::Mounted;
use super::terms::Terms;
use super::{MountError, Options, device, failed, limits, mount_point, read_ahead, rights, stores, table};
use crate::control::directory::SUPERVISOR_LOCK;
use crate::control::stream::SOCKET_NAME;
use crate::keep::{Keep, Mode, memory};

/// Bound on a worker's start, and on its end when it is told to.
const WORKER_BOUND: Duration = Duration::from_secs(30);
/// Between the end of a worker's output and its own end.
const PIPE_BOUND: Duration = Duration::from_secs(1);
const END_BOUND: Duration = Duration::from_secs(5);
/// Until it is tried again to wait for a worker.
const POLL_PAUSE: Duration = Duration::from_millis(100);
/// A worker's exit code when the node was short of what its start needs (`EX_TEMPFAIL`).
pub const SHORTAGE: u8 = 75;
/// What a worker says when it is ready.
pub(super) const READY: &str = "ready";

/// What a worker says when it has what its predecessor's keeper held.
pub(super) const TAKEN: &str = "taken";

/// What the mount is served through. The supervisor's copy keeps the connection alive when a worker
/// dies.
#[derive(Debug)]
struct Device {
    connection: OwnedFd,
    /// The state memory, which workers inherit.
    state: OwnedFd,
    keep: Keep,
}

impl Device {
    fn mount(options: &Options, places: &Places, noexec: bool) -> Result<Self, MountError> {
        let io = || failed("cannot make", "the state memory");
        let state = memory::create().map_err(io())?;
        let keep = Keep::map(&state).map_err(io())?;
        Ok(Self { connection: device::mount(&options.mount_point, &places.control, noexec)?, state, keep })
    }

    /// The kernel has ended the connection: it was unmounted, or aborted.
    fn is_gone(&self) -> bool {
        let mut fds = [PollFd::new(&self.connection, PollFlags::empty())];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut fds, Some(&now)).is_ok() && fds[0].revents().contains(PollFlags::ERR)
    }

    /// Ends keepers, which are children of this process.
    fn end_keepers(&self, pids: &[i32]) {
        for &id in pids {
            let Some(pid) = Pid::from_raw(id) else { continue };
            let _ = rustix::process::kill_process(pid, Signal::KILL);
            while let Err(rustix::io::Errno::INTR) = rustix::process::waitpid(Some(pid), WaitOptions::empty())
            {
            }
            self.keep.keeper_ended(id);
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.end_keepers(&self.keep.keepers());
    }
}

enum Ended {
    /// The worker did; how.
    Worker(ExitStatus),
    /// It did before it served: somebody killed it.
    Early(ExitStatus),
    /// SIGTERM or SIGINT came.
    Told,
    /// SIGHUP came: a new worker is to take over.
    Replaced,
}

/// Mounts and supervises until the mount is gone; `control` is there. `ready` runs once, when the
/// first worker serves.
pub fn run(options: &Options, control: &Path, ready: impl FnOnce()) -> Result<(), MountError> {
    let _lock = Lock::take(control, SUPERVISOR_LOCK)?;
    // The state memory is a file, too.
    limits::raise();
    limits::be_spared(limits::Part::Supervisor);
    rights::give_up(rights::Process::Supervisor);
    let outcome = hold(options, control, ready);
    mount_point::remove_made(control);
    // A worker that was killed, as by the terminal that ends the mount, has left it.
    let _ = std::fs::remove_file(control.join(SOCKET_NAME));
    outcome
}

fn hold(options: &Options, control: &Path, ready: impl FnOnce()) -> Result<(), MountError> {
    let (options, places) = &stores::settle(options, control)?;
    let signals = Signals::watch()?;
    let mut programs = Programs::new();
    let mut device = Device::mount(options, places, false)?;
    let mut ready = Some(ready);
    let mut lives = Lives::default();
    loop {
        let started = Instant::now();
        let outcome = serve(&device, options, places, (&signals, &programs), || {
            if let Some(ready) = ready.take() {
                ready();
            }
        });
        let life = match outcome {
            Ok(Ended::Told) => return Ok(()),
            Ok(Ended::Worker(status)) if status.success() => {
                tracing::info!(mount_point = %options.mount_point.display(), "unmounted");
                return Ok(());
            }
            Ok(Ended::Worker(status)) => {
                tracing::error!(%status, "the worker died; another takes over");
                let short = status.signal() != Some(libc::SIGKILL) && started.elapsed() < SHORT_LIFE;
                if short { Life::Short } else { Life::Served }
            }
            Ok(Ended::Early(status)) => {
                tracing::error!(%status, "the worker was killed before it served; another takes over");
                Life::Killed
            }
            Ok(Ended::Replaced) => {
                tracing::info!("told to reload");
                programs.reload();
                Life::Served
            }
            Err(error) if ready.is_some() => {
                drop(device);
                sweep(&options.mount_point);
                return Err(error);
            }
            Err(error) if error.is_shortage() => {
                tracing::error!(%error, "the worker cannot start, as the node is short of something; tried again");
                // Or a new program hangs at its start.
                if matches!(error, MountError::Timeout { .. }) {
                    programs.fall_back();
                }
                Life::Shortage
            }
            Err(error) => {
                tracing::error!(%error, "the worker does not start");
                programs.fall_back();
                Life::Short
            }
        };
        let next = lives.ended(life, Instant::now());
        let gone = device.is_gone();
        let rest = match next {
            _ if gone && !is_mounted(options, places) => {
                tracing::info!("unmounted when there was no worker");
                return Ok(());
            }
            Next::Worker(pause) if !gone => signals.rest(pause),
            Next::GiveUp => {
                drop(device);
                sweep(&options.mount_point);
                return Err(MountError::Start {
                    reason: "no worker has lived for minutes; giving up".into(),
                    hint: format!("the log says why: {}", places.log().display()),
                });
            }
            Next::Worker(pause) | Next::Afresh(pause) => {
                let noexec = this_mount(options, places).is_some_and(|mount| mount.noexec);
                drop(device);
                sweep(&options.mount_point);
                // Requests in flight and open handles are lost to their programs; names and files
                // are not.
                tracing::error!("no worker can take over: mounting afresh");
                let rest = signals.rest(pause);
                device = match mount_afresh(options, places, noexec, (&signals, &mut lives))? {
                    Some(device) => device,
                    None => return Ok(()),
                };
                rest
            }
        };
        match rest {
            Rest::Over => {}
            Rest::Reload => programs.reload(),
            Rest::Told => {
                end_mount(options, places);
                return Ok(());
            }
        }
    }
}

/// Has a worker serve, and waits for its end, or for a signal. `serves` runs when it does.
fn serve(
    device: &Device,
    options: &Options,
    places: &Places,
    (signals, programs): (&Signals, &Programs),
    serves: impl FnOnce(),
) -> Result<Ended, MountError> {
    let worker = match start_worker(device, options, places, programs.next())? {
        Started::Serves(worker) => worker,
        Started::Killed(status) => return Ok(Ended::Early(status)),
    };
    if device.keep.mode() == Some(Mode::Plain) {
        read_ahead::widen(&options.mount_point);
    }
    serves();
    wait(worker, signals, || end_mount(options, places))
}

/// `None`: told to end before that was possible. `noexec`: as the former mount was, which whoever
/// had it made may have changed since.
fn mount_afresh(
    options: &Options,
    places: &Places,
    noexec: bool,
    (signals, lives): (&Signals, &mut Lives),
) -> Result<Option<Device>, MountError> {
    loop {
        let error = match Device::mount(options, places, noexec) {
            Ok(device) => return Ok(Some(device)),
            Err(error) => error,
        };
        let Some(pause) = lives.not_mounted(error.is_shortage(), Instant::now()) else { return Err(error) };
        tracing::error!(%error, "cannot be mounted afresh; tried again");
        if matches!(signals.rest(pause), Rest::Told) {
            return Ok(None);
        }
    }
}

/// This job's mount is where it was.
fn is_mounted(options: &Options, places: &Places) -> bool {
    this_mount(options, places).is_some()
}

/// This job's mount, if it is where it was.
fn this_mount(options: &Options, places: &Places) -> Option<Mounted> {
    let mounted = table::mounted_at(&options.mount_point).ok().flatten();
    mounted.filter(|mount| mount.is_ours() && mount.names(&places.control))
}

/// Descriptors that are readable once a signal came.
struct Signals {
    /// SIGTERM or SIGINT.
    end: OwnedFd,
    /// SIGHUP.
    reload: UnixStream,
}

impl Signals {
    fn watch() -> Result<Self, MountError> {
        let pipe = |signals: &[i32]| -> std::io::Result<UnixStream> {
            let (read, write) = UnixStream::pair()?;
            for signal in signals {
                signal_hook::low_level::pipe::register(*signal, write.try_clone()?)?;
            }
            read.set_nonblocking(true)?;
            Ok(read)
        };
        let watch =
            || Ok(Self { end: pipe(&[libc::SIGTERM, libc::SIGINT])?.into(), reload: pipe(&[libc::SIGHUP])? });
        watch().map_err(failed("cannot watch for signals", "/proc/self"))
    }

    /// Waits so long, or until a signal comes.
    fn rest(&self, pause: Duration) -> Rest {
        if !any_readable(&[self.end.as_fd(), self.reload.as_fd()], Instant::now() + pause) {
            Rest::Over
        } else if readable(self.end.as_fd(), Instant::now()) {
            Rest::Told
        } else {
            self.take_reload();
            Rest::Reload
        }
    }

    /// Several at once are one.
    fn take_reload(&self) {
        while (&self.reload).read(&mut [0; 64]).is_ok_and(|bytes| bytes > 0) {}
    }
}

/// How a pause went.
enum Rest {
    Over,
    /// SIGTERM or SIGINT came.
    Told,
    /// SIGHUP came.
    Reload,
}

/// Which program file a worker is started from: the one that is now where this one was started
/// from, and this one itself if that does not serve.
struct Programs {
    path: PathBuf,
    own: bool,
}

impl Programs {
    fn new() -> Self {
        Self { path: super::launch::program(), own: false }
    }

    fn next(&self) -> &Path {
        if self.own || !self.path.exists() { Path::new("/proc/self/exe") } else { &self.path }
    }

    fn reload(&mut self) {
        self.own = false;
    }

    fn fall_back(&mut self) {
        self.own = true;
    }
}

struct Worker {
    child: Child,
    pidfd: OwnedFd,
}

enum Started {
    Serves(Worker),
    /// By somebody else, before it did.
    Killed(ExitStatus),
}

/// Starts a worker and waits until it serves. Its standard input is the device.
fn start_worker(
    device: &Device,
    options: &Options,
    places: &Places,
    program: &Path,
) -> Result<Started, MountError> {
    let io = |doing| failed(doing, program);
    let keepers = device.keep.keepers();
    crate::faults::hit("worker.spawn").map_err(io("cannot start"))?;
    let connection = device.connection.try_clone().map_err(io("cannot share the device with"))?;
    let terms = Terms::of(options).text().map_err(io("cannot write settings for"))?;
    let mut child = Command::new(program)
        .arg("worker")
        .arg(format!("--terms={terms}"))
        .arg("--state")
        .arg(device.state.as_raw_fd().to_string())
        .args(super::launch::arguments(options))
        .stdin(Stdio::from(connection))
        .stdout(Stdio::piped())
        .spawn()
        .map_err(io("cannot start"))?;
    let pidfd = match pidfd_of(&child) {
        Ok(pidfd) => pidfd,
        Err(error) => {
            let _ = child.kill();
            let _ = child.wait();
            return Err(io("cannot watch")(error));
        }
    };
    let mut lines = child.stdout.take().map(|out| Lines::new(out.into()));
    let until = Instant::now() + WORKER_BOUND;
    let mut next = || lines.as_mut().map(|lines| lines.next(until, Some(&pidfd))).unwrap_or_default();
    let mut said = next();
    if said.trim() == TAKEN {
        device.end_keepers(&keepers);
        said = next();
    }
    if said.trim() == READY {
        return Ok(Started::Serves(Worker { child, pidfd }));
    }
    // Its pipe closes a moment before it has ended.
    let _ = readable(pidfd.as_fd(), until.min(Instant::now() + PIPE_BOUND));
    let ended = child.try_wait().ok().flatten();
    let _ = child.kill();
    let _ = child.wait();
    match ended {
        Some(status) if status.signal() == Some(libc::SIGKILL) => Ok(Started::Killed(status)),
        Some(status) if status.code() == Some(SHORTAGE.into()) => {
            Err(MountError::Short { log: places.log() })
        }
        None if said.trim().is_empty() => {
            Err(MountError::Timeout { what: "the start of a worker", seconds: WORKER_BOUND.as_secs() })
        }
        _ => Err(MountError::told(&said, "the worker ended at its start", &places.log())),
    }
}

fn pidfd_of(child: &Child) -> std::io::Result<OwnedFd> {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| std::io::Error::from_raw_os_error(libc::ESRCH))?;
    Ok(rustix::process::pidfd_open(pid, PidfdFlags::empty())?)
}

/// The first line that comes, within `bound`; empty when none does.
pub(super) fn first_line(from: OwnedFd, bound: Duration) -> String {
    Lines::new(from).next(Instant::now() + bound, None)
}

/// What a child says.
struct Lines {
    from: BufReader<File>,
}

impl Lines {
    fn new(from: OwnedFd) -> Self {
        Self { from: BufReader::new(File::from(from)) }
    }

    /// Empty when there is none within the time, or when `speaker` has ended before: a keeper holds
    /// the other end of the pipe too, so that says nothing.
    fn next(&mut self, until: Instant, speaker: Option<&OwnedFd>) -> String {
        loop {
            let from = self.from.get_ref().as_fd();
            if self.from.buffer().is_empty() {
                let some = match speaker {
                    Some(speaker) => any_readable(&[from, speaker.as_fd()], until),
                    None => readable(from, until),
                };
                if !some || !readable(from, Instant::now()) {
                    return String::new();
                }
            }
            // A line is written in one piece, so once something is there the rest is too.
            let mut line = String::new();
            return match self.from.read_line(&mut line) {
                Ok(_) => line,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(_) => String::new(),
            };
        }
    }
}

pub(super) fn readable(fd: BorrowedFd<'_>, until: Instant) -> bool {
    any_readable(&[fd], until)
}

fn any_readable(fds: &[BorrowedFd<'_>], until: Instant) -> bool {
    let mut fds: Vec<_> = fds.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let Ok(left) = Timespec::try_from(left) else { return false };
        match poll(&mut fds, Some(&left)) {
            Ok(0) => return false,
            Ok(_) => return true,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return false,
        }
    }
}

/// Waits for the worker's end, or for a signal: then unmounts by `end_mount` and has the worker
/// end.
fn wait(mut worker: Worker, signals: &Signals, end_mount: impl FnOnce()) -> Result<Ended, MountError> {
    loop {
        let mut fds = [&worker.pidfd.as_fd(), &signals.end.as_fd(), &signals.reload.as_fd()]
            .map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN));
        if let Err(error) = poll(&mut fds, None)
            && error != rustix::io::Errno::INTR
        {
            // Short of memory, which passes: the worker serves meanwhile.
            tracing::warn!(%error, "cannot wait for the worker; tried again");
            std::thread::sleep(POLL_PAUSE);
            continue;
        }
        let [ended, told, reload] = fds.map(|fd| !fd.revents().is_empty());
        if ended {
            return Ok(Ended::Worker(reap(&mut worker)?));
        }
        if told {
            tracing::info!("told to unmount");
            end(&mut worker, end_mount)?;
            return Ok(Ended::Told);
        }
        if reload {
            signals.take_reload();
            let _ = worker.child.kill();
            reap(&mut worker)?;
            return Ok(Ended::Replaced);
        }
    }
}

/// Unmounts, at once even if the mount is in use. What else is mounted there by now stays: this one
/// may be gone here, and be served for another mount namespace only.
fn end_mount(options: &Options, places: &Places) {
    let mount_point = &options.mount_point;
    if !is_mounted(options, places) {
        tracing::warn!(mount_point = %mount_point.display(), "nothing to unmount here");
    } else if let Err(error) = device::unmount(mount_point, false) {
        tracing::warn!(%error, "detached while in use");
        if let Err(error) = device::unmount(mount_point, true) {
            tracing::warn!(%error, "it stays mounted");
        }
    }
}

/// A worker ends when its connection does; where files are still open that is not now, so it is
/// told, and at last killed.
fn end(worker: &mut Worker, end_mount: impl FnOnce()) -> Result<(), MountError> {
    end_mount();
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
    if device::is_dead_at(mount_point)
        && let Err(error) = device::unmount(mount_point, true)
    {
        tracing::warn!(%error, "a dead mount stays");
    }
}

//! `scrfs try DIR`: a mount and the coordinator of one node, for a person who wants to see what it
//! is like. No root, no scheduler, no launcher: the coordinator begins MPI by itself, as an MPI
//! program that was started alone.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use scrfs::bounded;
use scrfs::control::client::{self, ClientError};
use scrfs::control::ready::{LINE_BYTES_MAX, Ready};
use scrfs::mount::jobs;
use scrfs::remedy;
use scrfs::store::private::OPEN_MPI_PLACES;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// Begins the job id of every trial; `--stop` ends no other mount.
const JOB: &str = "try.";
/// In its control directory: where it is mounted.
const RECORD: &str = "trial";
/// What runs on each node of a job.
const COORDINATOR: &str = "scrfs-coordinator";
/// What a hint names that is in the control directory.
const DAEMON_LOG: &str = "daemon.log";
/// What is being done when the directory cannot be had.
const MAKE: &str = "cannot make";
/// MPI and the coordinator are up within this time.
const START: Duration = Duration::from_mins(1);
/// The coordinator and the daemon answer and end within this time.
const END: Duration = Duration::from_secs(10);
/// Of the coordinator's log, this much is shown when it fails.
const LOG_SHOWN: usize = 5;

/// Why a trial does not begin or end.
#[derive(Debug, thiserror::Error)]
pub(super) enum TrialError {
    /// The coordinator's program is missing.
    #[error("there is no {COORDINATOR}, neither beside this program nor in PATH")]
    NoCoordinator,
    /// A command of ours failed; its own words.
    #[error("{reason}")]
    Command {
        /// What is wrong.
        reason: String,
        /// What to do about it.
        hint: String,
    },
    /// It is not this user's, though this user may be root.
    #[error("{} is a trial of user {owner}", .directory.display())]
    Anothers {
        /// Where.
        directory: PathBuf,
        /// Whose.
        owner: u32,
    },
    /// The coordinator ended, or did not begin to serve.
    #[error("{COORDINATOR} did not come up: {reason}{log}")]
    Coordinator {
        /// What happened.
        reason: String,
        /// The end of its log.
        log: String,
    },
    /// It ended while the trial ran.
    #[error("{COORDINATOR} has ended")]
    Ended,
    /// Another trial begins in the same place.
    #[error("another `scrfs try` begins on {0}")]
    Begins(PathBuf),
    /// The mount is a real job's.
    #[error("{0} was not mounted by `scrfs try`")]
    NoTrial(PathBuf),
    /// The daemon cannot be asked.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// A signal came before it was there.
    #[error("interrupted before it was there: nothing of it is left")]
    Interrupted,
    /// A system call failed.
    #[error("{doing} {path}: {source}")]
    Io {
        /// What was being done.
        doing: &'static str,
        /// To what.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
}

impl TrialError {
    pub(super) fn hint(&self) -> String {
        match self {
            Self::NoCoordinator => {
                "install it beside `scrfs`; it needs Open MPI (Debian: libopenmpi3). `scrfs mount DIR` works without it"
                    .to_owned()
            }
            Self::Begins(path) => format!(
                "use that one, or end it when it is there: scrfs try --stop {}",
                path.display()
            ),
            Self::Anothers { directory, .. } => {
                format!("end it as that user: scrfs try --stop {}", directory.display())
            }
            Self::NoTrial(path) => format!("unmount it with `scrfs umount {}`", path.display()),
            Self::Client(ClientError::NotMounted(_)) => "see what is mounted: scrfs-ctl jobs".to_owned(),
            Self::Client(_) => "end it by force: scrfs umount --force DIR; its log, daemon.log, may say why".to_owned(),
            Self::Coordinator { .. } => {
                "an MPI program must run here when it is started alone; `scrfs doctor` may say what is missing".to_owned()
            }
            Self::Command { hint, .. } => hint.clone(),
            Self::Ended => "begin again: scrfs try DIR; `scrfs doctor` may say what is missing".to_owned(),
            Self::Interrupted => "begin again: scrfs try DIR".to_owned(),
            Self::Io { doing: MAKE, source, .. } if source.kind() != io::ErrorKind::StorageFull => {
                "name a directory that you may make, or an empty one of your own: scrfs try ~/scr".to_owned()
            }
            Self::Io { source, .. } => remedy::of(source).to_owned(),
        }
    }
}

type Outcome<T = ()> = Result<T, TrialError>;

fn failed(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> TrialError {
    let path = path.to_owned();
    move |source| TrialError::Io { doing, path, source }
}

/// Mounts on `directory` and starts a coordinator; with `foreground` until a signal comes, which
/// ends it all.
pub(super) fn start(control_base: &Path, directory: &Path, foreground: bool) -> Outcome {
    let program = coordinator_program().ok_or(TrialError::NoCoordinator)?;
    let (tell, told) = channel();
    end_on_signal(tell.clone()).map_err(failed("no thread for", Path::new("signals")))?;
    let is_new = match fs::create_dir(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(failed(MAKE, directory)(error));
        }
        made => made.is_ok(),
    };
    // Where a dead mount is, it cannot be resolved.
    let resolved = directory.canonicalize().or_else(|_| std::path::absolute(directory));
    let directory = resolved.map_err(failed("cannot find", directory))?;
    let only = hold(&directory)?;
    let made = is_new.then_some(&directory);
    let stop = |directory: &Path| stop(control_base, directory);
    // No other trial's, however long ago that began, and in whatever namespace.
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let job = format!("{JOB}{}.{:x}", std::process::id(), since.as_micros());
    scrfs_itself(&["mount", "--job-id", &job], Some(&directory)).inspect_err(|error| {
        // What the daemon has said stays where that is named.
        if !error.hint().contains(DAEMON_LOG) {
            purge(&job);
        }
        remove(made);
    })?;
    // Those that were killed take room.
    for job in left_of(control_base, &directory).iter().filter(|left| **left != job) {
        let _ = scrfs_itself(&["umount", "--served", "--purge", "--job-id", job], None);
    }
    // In the foreground a signal is the way to end it, at any time.
    let interrupted = || if foreground { Ok(()) } else { Err(TrialError::Interrupted) };
    if told.try_recv().is_ok() {
        let ended = stop(&directory);
        remove(made);
        return ended.and(interrupted());
    }
    let served = record(&directory).and_then(|()| serve(&program, &directory, &job));
    drop(only);
    // A signal that came meanwhile, or a failure, leaves nothing behind.
    let mut coordinator = match (served, told.try_recv()) {
        (Ok(coordinator), Err(_)) => coordinator,
        (served, _) => {
            let ended = stop(&directory);
            remove(made);
            return served.map(drop).and(ended).and(interrupted());
        }
    };
    let mut output = io::stdout();
    // Nobody reads it: the mount is there.
    let _ = output.write_all(welcome(&directory).as_bytes()).and_then(|()| output.flush());
    if !foreground {
        return Ok(());
    }
    std::thread::spawn(move || {
        let _ = coordinator.wait();
        let _ = tell.send(Told::Coordinator);
    });
    match told.recv() {
        // It was ended by `--stop`, or by itself.
        Ok(Told::Coordinator) if client::find_control_directory(&directory).is_ok() => {
            stop(&directory).and(Err(TrialError::Ended))
        }
        Ok(Told::Coordinator) => Ok(()),
        Ok(Told::Signal) | Err(_) => stop(&directory),
    }
}

/// Nothing of a trial that could not be mounted stays. Why it could not is told, whatever becomes
/// of this.
fn purge(job: &str) {
    if let Ok(exe) = std::env::current_exe() {
        let mut command = Command::new(exe);
        command.args(["umount", "--purge", "--force", "--job-id", job]).process_group(0);
        let _ = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    }
}

/// The directory of a trial that has failed, if that has made it.
fn remove(made: Option<&PathBuf>) {
    if let Some(made) = made {
        let _ = fs::remove_dir(made);
    }
}

/// Nobody else begins there as long as this is kept. What cannot be locked is not a directory that
/// can be mounted on.
fn hold(directory: &Path) -> Outcome<Option<File>> {
    let Ok(file) = File::open(directory) else { return Ok(None) };
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => Err(TrialError::Begins(directory.to_owned())),
        Ok(()) | Err(_) => Ok(Some(file)),
    }
}

/// What a trial in the foreground waits for.
enum Told {
    Signal,
    Coordinator,
}

fn end_on_signal(tell: Sender<Told>) -> io::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    let watch = move || {
        for _ in signals.forever() {
            let _ = tell.send(Told::Signal);
        }
    };
    std::thread::Builder::new().name("signals".to_owned()).spawn(watch).map(drop)
}

/// Another user has mounted there: what refuses to unmount it says who.
fn is_anothers(directory: &Path) -> bool {
    let mounted = scrfs::mounted::mounted_at(directory).ok().flatten();
    mounted.is_some_and(|mount| mount.is_scrfs() && !mount.is_trusted())
}

/// What tells later where this is mounted.
fn record(directory: &Path) -> Outcome {
    let path = client::find_control_directory(directory)?.join(RECORD);
    fs::write(&path, directory.as_os_str().as_bytes()).map_err(failed("cannot write", &path))
}

/// The job ids of trials that were mounted on `directory`, and are not mounted now. One that is
/// served in another mount namespace is another trial, even if it is on a directory of that name.
fn left_of(control_base: &Path, directory: &Path) -> Vec<String> {
    let resolved = directory.canonicalize().or_else(|_| std::path::absolute(directory));
    let directory = resolved.unwrap_or_else(|_| directory.to_owned());
    let is_of = |control: &Path| {
        let told = fs::read(control.join(RECORD));
        told.is_ok_and(|told| told == directory.as_os_str().as_bytes())
    };
    let trials = jobs::unmounted(control_base, JOB).into_iter();
    let left = trials.filter(|(_, control)| is_of(control) && jobs::is_unserved(control));
    left.map(|(job, _)| job).collect()
}

/// Ends the coordinator, unmounts, and removes what was written there; also what is left of one
/// that was unmounted without this.
pub(super) fn stop(control_base: &Path, directory: &Path) -> Outcome {
    let control = match client::find_control_directory(directory) {
        Ok(control) => control,
        Err(ClientError::NotMounted(at)) if is_anothers(&at) => {
            return scrfs_itself(&["umount"], Some(directory));
        }
        Err(error) => {
            let left = left_of(control_base, directory);
            if left.is_empty() {
                return Err(error.into());
            }
            return left.iter().try_for_each(|job| {
                end_coordinator(job);
                scrfs_itself(&["umount", "--served", "--purge", "--job-id", job], None)
            });
        }
    };
    let job = control.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_prefix("scr."));
    let Some(job) = job.filter(|job| job.starts_with(JOB)) else {
        return Err(TrialError::NoTrial(directory.to_owned()));
    };
    let owner = fs::symlink_metadata(&control).map(|meta| meta.uid());
    if let Ok(owner) = owner
        && owner != rustix::process::geteuid().as_raw()
    {
        return Err(TrialError::Anothers { directory: directory.to_owned(), owner });
    }
    // First: a mount that is in use goes on with its coordinator.
    scrfs_itself(&["umount", "--served"], Some(directory))?;
    end_coordinator(job);
    // Its records tell where its stores are, whatever has become of its daemon.
    scrfs_itself(&["umount", "--served", "--purge", "--job-id", job], None)
}

/// Ends the coordinator of a trial, which may not be known to the daemon: that has died, or the
/// coordinator has just begun.
fn end_coordinator(job: &str) {
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    for pid in pids.filter_map(Pid::from_raw) {
        // Once it is open, its number is no other process's.
        if let Ok(process) = pidfd_open(pid, PidfdFlags::empty())
            && is_coordinator(pid, job)
        {
            end(&process);
        }
    }
}

/// It was started by [`serve`], for this job.
fn is_coordinator(pid: Pid, job: &str) -> bool {
    let line = fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).unwrap_or_default();
    let words: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
    let is_of_job = words.windows(2).any(|pair| pair == [b"--job-id", job.as_bytes()]);
    is_of_job && words.first().is_some_and(|program| program.ends_with(COORDINATOR.as_bytes()))
}

/// Asks a process to end, and ends it when it does not.
fn end(process: &OwnedFd) {
    for signal in [Signal::TERM, Signal::KILL] {
        let _ = pidfd_send_signal(process, signal);
        let limit = Timespec { tv_sec: END.as_secs().try_into().unwrap_or(10), tv_nsec: 0 };
        let mut fds = [PollFd::new(process, PollFlags::IN)];
        if poll(&mut fds, Some(&limit)).is_ok_and(|ready| ready > 0) {
            return;
        }
    }
}

/// Beside this program, as they are installed, else in PATH.
fn coordinator_program() -> Option<PathBuf> {
    let beside = std::env::current_exe().ok().and_then(|exe| exe.parent().map(Path::to_owned));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let all: Vec<PathBuf> = beside.into_iter().chain(std::env::split_paths(&path)).collect();
    all.into_iter().map(|directory| directory.join(COORDINATOR)).find(|program| program.is_file())
}

/// Runs a command of this program, for `directory` if one is given; its error is ours.
fn scrfs_itself(arguments: &[&str], directory: Option<&Path>) -> Outcome {
    let exe = std::env::current_exe().map_err(failed("cannot find", Path::new("this program")))?;
    let mut command = Command::new(&exe);
    // The terminal's signals are for who started this: half a mount could not be ended.
    command.process_group(0);
    let output = command.args(arguments).args(directory).stdin(Stdio::null()).output();
    let output = output.map_err(failed("cannot start", &exe))?;
    if output.status.success() {
        return Ok(());
    }
    let words = String::from_utf8_lossy(&output.stderr);
    let words = words.trim_end();
    if words.is_empty() {
        let reason = format!("`scrfs {}` ended without a word ({})", arguments.join(" "), output.status);
        return Err(TrialError::Command {
            reason,
            hint: "`scrfs doctor` may say what is missing".to_owned(),
        });
    }
    let (reason, hint) =
        words.rsplit_once("\nhint: ").unwrap_or((words, "`scrfs doctor` may say what is missing"));
    let reason = reason.strip_prefix("scrfs: ").unwrap_or(reason).to_owned();
    Err(TrialError::Command { reason, hint: hint.to_owned() })
}

/// Starts the coordinator, and waits until the mount is served.
fn serve(program: &Path, directory: &Path, job: &str) -> Outcome<Child> {
    let control = client::find_control_directory(directory)?;
    let log = control.join("coordinator.log");
    // Appended to, as the coordinator keeps it small.
    let file = File::options().append(true).create_new(true).mode(0o600).open(&log);
    let file = file.map_err(failed("cannot make", &log))?;
    let mut command = Command::new(program);
    // What another launcher has told this shell is about other programs.
    for (name, _) in std::env::vars_os() {
        let foreign = ["OMPI_", "PMIX_", "PMI_", "SLURM_", "SCR_NODELIST", "SCR_JOB_ID", "SCR_PREFIX"];
        if name.to_str().is_some_and(|name| foreign.iter().any(|start| name.starts_with(start))) {
            command.env_remove(name);
        }
    }
    command
        .args(["--restart", "--job-id", job, "--mount"])
        .arg(directory)
        .arg("--prefix")
        .arg(control.join("prefix"))
        .arg("--log")
        .arg(&log)
        .env("OMPI_MCA_ess_singleton_isolated", "1")
        .envs(OPEN_MPI_PLACES.map(|name| (name, &control)))
        .current_dir("/")
        // The terminal's signals are for who started this.
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(file);
    let mut child = command.spawn().map_err(failed("cannot start", program))?;
    let out = child.stdout.take();
    let ready = bounded::within(START, move || await_ready(out));
    let Err(error) = ready else { return Ok(child) };
    let _ = child.kill();
    let ended = child.wait().map(|status| status.to_string()).unwrap_or_default();
    let reason = if error.kind() == io::ErrorKind::UnexpectedEof { ended } else { error.to_string() };
    let text = fs::read_to_string(&log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    let last = lines[lines.len().saturating_sub(LOG_SHOWN)..].join("\n  ");
    let log = if last.is_empty() { last } else { format!("\n  {last}") };
    Err(TrialError::Coordinator { reason, log })
}

fn await_ready(out: Option<ChildStdout>) -> io::Result<()> {
    let mut lines = BufReader::new(out.ok_or(io::ErrorKind::BrokenPipe)?);
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = Read::by_ref(&mut lines).take(LINE_BYTES_MAX as u64).read_until(b'\n', &mut line)?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if Ready::find(&line).is_some() {
            return Ok(());
        }
    }
}

fn welcome(directory: &Path) -> String {
    let at = directory.display();
    format!(
        "scrfs is mounted on {at}: one node, and nothing more\n\
         \x20 mkdir {at}/ck.1                    a checkpoint is a directory\n\
         \x20 echo state > {at}/ck.1/rank0       with any files, written by any program\n\
         \x20 touch {at}/ck.1/.complete          seals it: whole, checked, unchanged from here on\n\
         \x20 scrfs-ctl status --mount {at}      says what there is\n\
         \x20 scrfs try --stop {at}              ends this, and removes all that was written there\n\
         One node protects nothing: with two or more, what is sealed survives the loss of one.\n"
    )
}

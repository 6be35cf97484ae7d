//! Asks a job's daemon. A question that meets the time between two workers waits for the next one.

use std::fmt;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{Access, AtFlags, CWD, accessat};
use rustix::io::Errno;

use super::client::{self, ClientError};
use super::directory::{
    LOG, SUPERVISOR_LOCK, WORKER_LOCK, holder, is_stopped, options_of, parent_of, supervisor_of, was_killed,
};
use super::stream::StreamError;
use super::{Answer, Ask};

/// Between two tries to reach the next worker.
const AGAIN: Duration = Duration::from_millis(50);
/// Most workers follow their predecessors sooner. For callers that may not see whether there is a
/// supervisor that starts one.
const SUCCESSION: Duration = Duration::from_secs(3);
/// A tool waits no longer for the coordinator that a daemon awaits; `SCRFS_COORDINATOR_WAIT` may be
/// more.
pub const COORDINATOR_RETURN: Duration = Duration::from_secs(20);
/// So often a worker may die while it is asked. A question that ends every worker is not asked for
/// ever.
const DEATHS_MAX: u32 = 3;

/// Why a question has no answer.
#[derive(Debug, thiserror::Error)]
pub enum QuestionError {
    /// Of a daemon that has a worker, or of which nothing is left.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The daemon lives.
    #[error(transparent)]
    Living(#[from] Living),
}

/// Why a daemon that lives does not answer.
#[derive(Debug, thiserror::Error)]
pub enum Living {
    /// The supervisor's next worker does not serve yet.
    #[error(
        "no worker serves {directory}: its supervisor, process {supervisor}, has started none within {seconds} s"
    )]
    NoWorker {
        /// The control directory.
        directory: PathBuf,
        /// The supervisor.
        supervisor: u32,
        /// How long one was waited for.
        seconds: u64,
    },
    /// Processes of the daemon are stopped, as by SIGSTOP.
    #[error("the daemon of {directory} is stopped: {stopped}")]
    Stopped {
        /// The control directory.
        directory: PathBuf,
        /// Which.
        stopped: Stopped,
    },
}

/// Worker, supervisor, or both; one of them there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stopped {
    worker: Option<u32>,
    supervisor: Option<u32>,
}

impl Stopped {
    /// `None`: neither process is stopped.
    fn among(worker: Option<u32>, supervisor: Option<u32>) -> Option<Self> {
        let stopped = |process: Option<u32>| process.filter(|pid| is_stopped(*pid));
        let (worker, supervisor) = (stopped(worker), stopped(supervisor));
        (worker.is_some() || supervisor.is_some()).then_some(Self { worker, supervisor })
    }

    fn pids(self) -> impl Iterator<Item = u32> {
        // The worker last: it is replaced if it cannot go on.
        [self.supervisor, self.worker].into_iter().flatten()
    }

    fn are_of_others(self) -> bool {
        let me = rustix::process::geteuid();
        let is_of_others = |pid| {
            let process = std::fs::metadata(format!("/proc/{pid}"));
            process.is_ok_and(|process| process.uid() != me.as_raw())
        };
        !me.is_root() && self.pids().any(is_of_others)
    }
}

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.worker, self.supervisor) {
            (Some(worker), Some(supervisor)) => {
                write!(f, "its worker, process {worker}, and its supervisor, process {supervisor}")
            }
            (Some(pid), None) => write!(f, "its worker, process {pid}"),
            (None, Some(pid)) => write!(f, "its supervisor, process {pid}"),
            (None, None) => Ok(()),
        }
    }
}

impl Living {
    /// What can be done.
    pub fn hint(&self) -> String {
        match self {
            Self::NoWorker { directory, .. } => {
                let (log, job) = (directory.join(LOG), options_of(directory));
                let log = log.display();
                format!(
                    "ask again; {log} says why none starts; the mount is ended by: scrfs umount --force {job}"
                )
            }
            Self::Stopped { directory, stopped } => {
                let pids: Vec<String> = stopped.pids().map(|pid| pid.to_string()).collect();
                let (pids, job) = (pids.join(" "), options_of(directory));
                let who = if stopped.are_of_others() { "an administrator can " } else { "" };
                format!(
                    "{who}let it go on: kill -CONT {pids}; or end it and its mount: scrfs umount --force {job}"
                )
            }
        }
    }
}

/// Asks the daemon of a control directory, and waits for an answer, at most for `timeout`. A worker
/// that dies before it answers is followed by another, and that one is asked again: no question
/// does harm when it comes twice.
pub fn ask(control: &Path, question: &Ask, timeout: Duration) -> Result<Answer, QuestionError> {
    let begun = Instant::now();
    let mut deaths = 0;
    loop {
        let left = timeout.saturating_sub(begun.elapsed()).max(AGAIN);
        let error = match client::ask(control, question, left) {
            Ok(answer) => return Ok(answer),
            Err(error) => error,
        };
        if is_silence(&error) {
            is_not_stopped(control)?;
        }
        deaths += u32::from(matches!(error, ClientError::Stream(_)));
        // A dead worker's keeper holds its socket: that keeps who asks waiting.
        let is_left = is_late(&error) && holder(control, WORKER_LOCK).is_none();
        let successor = successor(control);
        let bound = match successor {
            _ if !is_end(&error) && !is_left || deaths > DEATHS_MAX => return Err(error.into()),
            Successor::None => return Err(error.into()),
            Successor::OfSupervisor(_) => timeout,
            Successor::Unknown => timeout.min(SUCCESSION),
        };
        if begun.elapsed() >= bound {
            return Err(match successor {
                Successor::OfSupervisor(supervisor) => {
                    let (directory, seconds) = (control.to_owned(), bound.as_secs());
                    Living::NoWorker { directory, supervisor, seconds }.into()
                }
                _ => error.into(),
            });
        }
        std::thread::sleep(AGAIN);
    }
}

/// Nothing came for the whole time, or there was no worker.
fn is_silence(error: &ClientError) -> bool {
    is_late(error) || is_end(error)
}

pub(crate) fn is_late(error: &ClientError) -> bool {
    matches!(error, ClientError::Stream(StreamError::TimedOut(_)))
}

/// No worker listened, or the one that did has ended.
fn is_end(error: &ClientError) -> bool {
    use ErrorKind::{BrokenPipe, ConnectionRefused, ConnectionReset, NotFound};
    match error {
        ClientError::Connect { source, .. } => {
            matches!(source.kind(), ConnectionRefused | ConnectionReset | NotFound)
        }
        ClientError::Stream(StreamError::Closed | StreamError::Torn) => true,
        ClientError::Stream(StreamError::Io(source)) => {
            matches!(source.kind(), BrokenPipe | ConnectionReset)
        }
        _ => false,
    }
}

/// No process of the daemon is stopped: a stopped supervisor starts no worker.
pub(crate) fn is_not_stopped(control: &Path) -> Result<(), Living> {
    let (worker, supervisor) = if is_hidden(control) {
        // Who may not see the locks of another user's daemon sees who listens.
        let worker = client::listener(control);
        (worker, worker.and_then(parent_of))
    } else {
        (holder(control, WORKER_LOCK), supervisor_of(control))
    };
    match Stopped::among(worker, supervisor) {
        Some(stopped) => Err(Living::Stopped { directory: control.to_owned(), stopped }),
        None => Ok(()),
    }
}

/// This user may not see the locks.
fn is_hidden(control: &Path) -> bool {
    let seen = accessat(CWD, control.join(SUPERVISOR_LOCK), Access::READ_OK, AtFlags::EACCESS);
    seen == Err(Errno::ACCESS)
}

/// Who starts the next worker.
enum Successor {
    OfSupervisor(u32),
    /// This user may not see the lock.
    Unknown,
    None,
}

fn successor(control: &Path) -> Successor {
    if let Some(pid) = supervisor_of(control).filter(|pid| !was_killed(*pid)) {
        return Successor::OfSupervisor(pid);
    }
    if is_hidden(control) { Successor::Unknown } else { Successor::None }
}

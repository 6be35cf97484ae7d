//! Asks a job's daemon. A question that meets the time between two workers waits for the next one.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{Access, AtFlags, CWD, accessat};
use rustix::io::Errno;

use super::client::{self, ClientError};
use super::directory::{
    LOG, SUPERVISOR_LOCK, WORKER_LOCK, holder, is_stopped, options_of, supervisor_of, was_killed,
};
use super::stream::StreamError;
use super::{Answer, Ask};

/// Between two tries to reach the next worker.
const AGAIN: Duration = Duration::from_millis(50);
/// Most workers follow their predecessors sooner. For callers that may not see whether there is a
/// supervisor that starts one.
const SUCCESSION: Duration = Duration::from_secs(3);

/// A coordinator finds the worker that follows another sooner.
const COORDINATOR_RETURN: Duration = Duration::from_secs(5);
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
    /// A process of the daemon is stopped, as by SIGSTOP.
    #[error("the daemon of {directory} is stopped: its {process}, process {pid}")]
    Stopped {
        /// The control directory.
        directory: PathBuf,
        /// Worker or supervisor.
        process: &'static str,
        /// The process.
        pid: u32,
    },
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
            Self::Stopped { directory, pid, .. } => format!(
                "let it go on: kill -CONT {pid}; or end it and its mount: scrfs umount --force {}",
                options_of(directory)
            ),
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

/// The worker of this control directory serves for a few seconds only: the coordinator of the one
/// before may not have come back yet.
pub fn is_young(control: &Path) -> bool {
    let taken = control.join(WORKER_LOCK).symlink_metadata().and_then(|meta| meta.modified());
    taken.is_ok_and(|taken| taken.elapsed().is_ok_and(|ago| ago < COORDINATOR_RETURN))
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
    for (name, process) in [(WORKER_LOCK, "worker"), (SUPERVISOR_LOCK, "supervisor")] {
        if let Some(pid) = holder(control, name).filter(|pid| is_stopped(*pid)) {
            return Err(Living::Stopped { directory: control.to_owned(), process, pid });
        }
    }
    Ok(())
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
    match accessat(CWD, control.join(SUPERVISOR_LOCK), Access::READ_OK, AtFlags::EACCESS) {
        Err(Errno::ACCESS) => Successor::Unknown,
        _ => Successor::None,
    }
}

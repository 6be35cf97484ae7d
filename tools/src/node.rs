//! Asks the daemon of this node.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use scrfs::config::{self, Config, Sources};
use scrfs::control::client::{self, ClientError};
use scrfs::control::question::{self, QuestionError};
use scrfs::control::{Answer, Ask, Flushable};
use scrfs::ids::Epoch;
use scrfs::status::NodeStatus;

use crate::{Failure, Outcome};

/// Where scrfs is mounted for this job and user: `given`, else `SCRFS_MOUNT`, else `/scr`.
///
/// # Errors
/// A parameter cannot be read.
pub fn mount_point(given: Option<PathBuf>) -> Outcome<PathBuf> {
    if let Some(given) = given {
        return Ok(given);
    }
    let sources = Sources::of_process(std::env::vars_os()).map_err(|e| {
        Failure::new(format!("this process's user or working directory: {e}")).hint(config::PROCESS_HINT)
    })?;
    Config::mount_point(&sources, config::read_file).map_err(|e| Failure::new(&e).hint(e.hint()).code(2))
}

/// A daemon that does not answer in this time has a problem.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Between two questions to a daemon whose worker is being replaced, or was a moment ago.
const AGAIN: Duration = Duration::from_millis(20);

/// The daemon of one mount.
#[derive(Debug, Clone)]
pub struct Node {
    mount: PathBuf,
    control: PathBuf,
    timeout: Duration,
}

impl Node {
    /// Finds the daemon behind the mount at `mount`.
    pub fn at(mount: &Path) -> Outcome<Self> {
        let control = client::find_control_directory(mount).map_err(|e| explain(mount, &e))?;
        Ok(Self { mount: mount.to_owned(), control, timeout: TIMEOUT })
    }

    /// The daemon of a control directory, whose mount may be in another mount namespace.
    pub fn of(mount: PathBuf, control: PathBuf) -> Self {
        Self { mount, control, timeout: TIMEOUT }
    }

    /// Where it is mounted.
    pub fn mount(&self) -> &Path {
        &self.mount
    }

    /// Its control directory.
    pub fn control(&self) -> &Path {
        &self.control
    }

    /// The same with another limit for each answer.
    #[must_use]
    pub fn within(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Everything it knows of itself.
    pub fn status(&self) -> Outcome<NodeStatus> {
        match self.ask(&Ask::Status)? {
            Answer::Status(status) => Ok(*status),
            other => Err(self.unexpected(&other)),
        }
    }

    /// Its newest events, oldest first, a JSON line each.
    pub fn events(&self, most: u32) -> Outcome<Vec<String>> {
        match self.ask(&Ask::Events(most))? {
            Answer::Events(lines) => Ok(lines),
            other => Err(self.unexpected(&other)),
        }
    }

    /// Begins or ends the records of what programs do with each file.
    pub fn record_io(&self, on: bool) -> Outcome {
        match self.ask(&Ask::RecordIo(on))? {
            Answer::Done => Ok(()),
            other => Err(self.unexpected(&other)),
        }
    }

    /// Has a dataset flushed; the newest protected one where none is named.
    pub fn flush(&self, name: Option<&[u8]>) -> Outcome<Flushable> {
        self.wish(&Ask::Flush(name.map(<[u8]>::to_vec)))
    }

    /// Has the cached bytes of a dataset compared with their checksums.
    pub fn scrub(&self, name: &[u8]) -> Outcome<Flushable> {
        self.wish(&Ask::Scrub(name.to_vec()))
    }

    /// The job whose coordinators had this epoch has ended.
    pub fn job_ended(&self, epoch: Epoch) -> Outcome {
        match self.ask(&Ask::JobEnded(epoch))? {
            Answer::Done => Ok(()),
            other => Err(self.unexpected(&other)),
        }
    }

    /// Has datasets in the directory that `SCRFS_CHECKPOINT_PATH` names as `path`. A mount that was
    /// made with another one goes on with a new worker; returns when that serves, at most after
    /// `limit`.
    pub fn choose_checkpoint_path(&self, path: &[u8], limit: Duration) -> Outcome {
        let begun = Instant::now();
        let question = Ask::CheckpointPath(path.to_vec());
        loop {
            // Right after the end of a coordinator the daemon may not know of it.
            let failure = match self.ask(&question) {
                Ok(Answer::Done) => return Ok(()),
                Ok(Answer::Reloading) => Failure::new(format!(
                    "no new worker serves {} in {} s",
                    self.mount.display(),
                    limit.as_secs()
                ))
                .hint("its log is daemon.log in the control directory, which `scrfs-ctl status` names"),
                Ok(other) => self.unexpected(&other),
                Err(failure) => failure,
            };
            if begun.elapsed() >= limit {
                return Err(failure);
            }
            std::thread::sleep(AGAIN);
        }
    }

    /// What a coordinator carries out. One that the daemon awaits is waited for, and so is one that
    /// has attached and settles what is in doubt.
    fn wish(&self, asked: &Ask) -> Outcome<Flushable> {
        let begun = Instant::now();
        loop {
            match self.ask(asked)? {
                Answer::Flush(Flushable::NoCoordinator(_)) | Answer::Scrub(Flushable::NoCoordinator(_))
                    if begun.elapsed() < question::COORDINATOR_RETURN && self.is_to_serve()? =>
                {
                    std::thread::sleep(AGAIN);
                }
                Answer::Flush(what) | Answer::Scrub(what) => return Ok(what),
                other => return Err(self.unexpected(&other)),
            }
        }
    }

    fn is_to_serve(&self) -> Outcome<bool> {
        let status = self.status()?;
        Ok(status.awaited || status.coordinator.is_some())
    }

    fn ask(&self, asked: &Ask) -> Outcome<Answer> {
        question::ask(&self.control, asked, self.timeout).map_err(|error| match error {
            QuestionError::Client(error) => explain(&self.mount, &error),
            QuestionError::Living(living) => Failure::new(&living).hint(living.hint()),
        })
    }

    fn unexpected(&self, answer: &Answer) -> Failure {
        match answer {
            Answer::Failed(reason) => {
                Failure::new(format!("the daemon of {}: {reason}", self.mount.display())).hint(
                    "its log, daemon.log in its control directory, may say more; so may `scrfs-ctl events`",
                )
            }
            _ => Failure::new(format!(
                "the daemon of {} gave an answer of the wrong kind",
                self.mount.display()
            ))
            .hint("tool and daemon may be of different versions"),
        }
    }
}

/// It says nothing of who was to be reached.
fn is_of_this_process(error: &std::io::Error) -> bool {
    let own = [Errno::MFILE, Errno::NFILE, Errno::NOMEM].map(Errno::raw_os_error);
    error.raw_os_error().is_some_and(|errno| own.contains(&errno))
}

fn explain(mount: &Path, error: &ClientError) -> Failure {
    let (failure, at) = (Failure::new(error), mount.display());
    match error {
        ClientError::NotMounted(_) => failure.hint(format!(
            "mount it with `scrfs mount {at}` (`scrfs try DIR` needs no root); `scrfs-ctl jobs` shows what is mounted, \
             --mount DIR names another, --prefix DIR and --job ID ask without a mount"
        )),
        ClientError::Connect { source, .. } if source.kind() == std::io::ErrorKind::PermissionDenied => {
            failure.hint("only the job's user and root may ask; --prefix DIR needs no daemon")
        }
        ClientError::Refused { lasting: true, .. } => failure.hint(format!(
            "mount it anew: `scrfs umount {at}`, `scrfs mount {at}`; or, as root: `scrfs reload {at}`"
        )),
        ClientError::Refused { .. } => failure.hint("only the job's user and root may ask; --prefix DIR needs no daemon"),
        ClientError::Connect { source, .. } if is_of_this_process(source) => {
            failure.hint(scrfs::remedy::of(source))
        }
        ClientError::Connect { .. } => {
            failure.hint(format!(
                "its daemon has died: who mounted it can do so anew for the same job: `scrfs umount {at}`, then `scrfs mount {at}`; \
                 files of the cache are kept"
            ))
        }
        ClientError::Stream(_) => failure.hint(format!(
            "its daemon is stopped (see `ps`), the node is very busy, or they are of different versions: `scrfs reload {at}`, \
             as who mounted it, starts the installed one"
        )),
        ClientError::MountTable(error) => failure.hint(scrfs::remedy::of(error)),
        ClientError::Failed { .. } | ClientError::Unexpected => {
            failure.hint("tool and daemon may be of different versions: `scrfs reload` starts the installed one")
        }
    }
}

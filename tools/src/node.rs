//! Asks the daemon of this node.

use std::path::{Path, PathBuf};
use std::time::Duration;

use scrfs::control::client::{self, ClientError};
use scrfs::control::{Answer, Ask, Flushable};
use scrfs::status::NodeStatus;

use crate::{Failure, Outcome};

/// Where scrfs is mounted when nobody says otherwise.
pub const MOUNT: &str = "/scr";
/// A daemon that does not answer in this time has a problem.
const TIMEOUT: Duration = Duration::from_secs(10);

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
        match self.ask(&Ask::Flush(name.map(<[u8]>::to_vec)))? {
            Answer::Flush(what) => Ok(what),
            other => Err(self.unexpected(&other)),
        }
    }

    fn ask(&self, question: &Ask) -> Outcome<Answer> {
        client::ask(&self.control, question, self.timeout).map_err(|e| explain(&self.mount, &e))
    }

    fn unexpected(&self, answer: &Answer) -> Failure {
        match answer {
            Answer::Failed(reason) => {
                Failure::new(format!("the daemon of {}: {reason}", self.mount.display()))
            }
            _ => Failure::new(format!(
                "the daemon of {} gave an answer of the wrong kind",
                self.mount.display()
            ))
            .hint("tool and daemon may be of different versions"),
        }
    }
}

fn explain(mount: &Path, error: &ClientError) -> Failure {
    let failure = Failure::new(error);
    match error {
        ClientError::NotMounted(_) => failure.hint(format!(
            "mount it with `scrfs mount {}`, or name another with --mount DIR",
            mount.display()
        )),
        ClientError::Connect { source, .. } if source.kind() == std::io::ErrorKind::PermissionDenied => {
            failure.hint("only the job's user and root may ask")
        }
        ClientError::Connect { .. } => {
            failure.hint(format!("its daemon has died; `scrfs umount {}` and mount again", mount.display()))
        }
        _ => failure,
    }
}

//! This node's daemon as its coordinator sees it: wait for the mount, greet, pass commands down and
//! events up.
//!
//! Two threads serve the link, so that the transport's thread never waits for the daemon.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{RecvTimeoutError, Sender, unbounded};
use scrfs::control::client::{self, ClientError, DataConnection, Link};
use scrfs::control::{Answer, Ask, Command, DataReply, DataRequest, Event, Reason, Role};
use scrfs::ids::Epoch;
use scrfs::prefix::status::Source;
use scrfs::status::NodeStatus;

use crate::jobs::link::{Connector, DataLink};

/// How long a mount may take to come up.
pub const MOUNT_LIMIT: Duration = Duration::from_mins(1);
/// And a worker's successor, where the epoch is opened anew: a mount that stays dead is found out
/// by who starts coordinators.
pub const SUCCESSOR_LIMIT: Duration = Duration::from_secs(5);
/// How long a mount may be closed to the job's user while it comes up.
const CLOSED_LIMIT: Duration = Duration::from_secs(5);
/// Between two looks at a mount that is coming up: nothing tells of it.
const MOUNT_RETRY: Duration = Duration::from_millis(50);
/// Between two questions whether the daemon is there.
const PING: Duration = Duration::from_secs(1);
/// Who has not answered for so long may hang; [`crate::watch`] says when it counts as that.
const UNHEARD: Duration = Duration::from_millis(2500);
/// One question or the greeting.
const ASK_LIMIT: Duration = Duration::from_secs(30);
/// One request of a job; finishing a member puts all its bytes on storage within it.
const DATA_LIMIT: Duration = Duration::from_mins(10);

/// Why there is no daemon to work with.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The mount did not come up.
    #[error("no daemon at {mount} within {limit} s: {source}")]
    Absent {
        /// Mount point.
        mount: PathBuf,
        /// Seconds waited.
        limit: u64,
        /// The last try's error.
        source: ClientError,
    },
    /// It is there, and of another version: waiting for it is of no use.
    #[error("the daemon at {mount} and this coordinator are of different versions: {reason}")]
    Version {
        /// Mount point.
        mount: PathBuf,
        /// In the daemon's words.
        reason: String,
    },
    /// It answered with something else.
    #[error("the daemon in {0} does not tell its status: {1}")]
    Status(PathBuf, String),
    /// It refused or broke.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// A thread could not be started.
    #[error("no thread for the link: {0}")]
    Thread(std::io::Error),
}

/// What the daemon's link gives.
#[derive(Debug)]
pub enum FromDaemon {
    /// An event for the lead.
    Event(Event),
    /// The link is over; the reason.
    Lost(String),
}

/// A daemon that was found, not yet greeted.
pub struct Found {
    directory: PathBuf,
    /// The highest epoch that it has seen.
    pub epoch: Epoch,
}

/// Waits until a daemon answers at `mount`, at most for `limit`; where another user's is mounted,
/// 5 s. A daemon of another version is not waited for, and none by whoever `is_to_end`.
pub fn find(mount: &Path, limit: Duration, is_to_end: impl Fn() -> bool) -> Result<Found, NodeError> {
    find_by(mount, limit, is_to_end, try_find)
}

fn find_by<T>(
    mount: &Path,
    limit: Duration,
    is_to_end: impl Fn() -> bool,
    look: impl Fn(&Path) -> Result<T, NodeError>,
) -> Result<T, NodeError> {
    let begun = Instant::now();
    let mut closed: Option<Instant> = None;
    let mut is_told = false;
    loop {
        let error = match look(mount) {
            Ok(found) => return Ok(found),
            // So far nothing but the version was compared.
            Err(NodeError::Client(ClientError::Refused { reason, lasting: true, .. })) => {
                return Err(NodeError::Version { mount: mount.to_owned(), reason });
            }
            Err(NodeError::Client(error)) => error,
            Err(other) => return Err(other),
        };
        closed = is_closed(&error).then(|| closed.unwrap_or_else(Instant::now));
        let stays_closed = closed.is_some_and(|since| since.elapsed() >= CLOSED_LIMIT);
        if stays_closed || is_to_end() || begun.elapsed() >= limit {
            let (mount, limit) = (mount.to_owned(), begun.elapsed().as_secs());
            return Err(NodeError::Absent { mount, limit, source: error });
        }
        if !std::mem::replace(&mut is_told, true) {
            tracing::info!(%error, ?limit, "no daemon answers at {} yet; it is waited for", mount.display());
        }
        std::thread::sleep(MOUNT_RETRY);
    }
}

/// This user may not speak to the daemon.
pub fn is_closed(error: &ClientError) -> bool {
    matches!(error, ClientError::Connect { source, .. } if source.kind() == std::io::ErrorKind::PermissionDenied)
}

fn try_find(mount: &Path) -> Result<Found, NodeError> {
    let directory = client::find_control_directory(mount)?;
    match client::ask(&directory, &Ask::Status, ASK_LIMIT)? {
        Answer::Status(status) => Ok(Found { directory, epoch: Epoch(status.epoch) }),
        Answer::Failed(reason) => Err(NodeError::Status(directory, reason)),
        Answer::Events(_)
        | Answer::Done
        | Answer::Reloading
        | Answer::Flush(_)
        | Answer::Scrub(_)
        | Answer::Scavenged(_)
        | Answer::Stopping => Err(NodeError::Status(directory, "wrong answer".to_owned())),
    }
}

/// The greeted daemon. The link ends with this.
pub struct Node {
    commands: Sender<Command>,
}

/// When the daemon was heard last, in whatever session. One that is stopped, or hangs, says
/// nothing.
#[derive(Debug)]
pub struct Pulse {
    begun: Instant,
    /// Milliseconds after that.
    heard: AtomicU64,
    /// It was there, and nobody asks it now.
    is_paused: AtomicBool,
}

impl Default for Pulse {
    /// It was heard just now.
    fn default() -> Self {
        Self { begun: Instant::now(), heard: AtomicU64::new(0), is_paused: AtomicBool::new(false) }
    }
}

impl Pulse {
    fn beat(&self) {
        let now = u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.heard.store(now, Ordering::Relaxed);
    }

    /// The daemon is there, and is asked nothing until [`Pulse::resume`]: other nodes may keep this
    /// one waiting for that long.
    pub fn pause(&self) {
        self.is_paused.store(true, Ordering::Relaxed);
    }

    /// It is asked again, from now on.
    pub fn resume(&self) {
        self.beat();
        self.is_paused.store(false, Ordering::Relaxed);
    }

    /// The daemon has said something since its last questions, or is not asked.
    pub fn is_felt(&self) -> bool {
        if self.is_paused.load(Ordering::Relaxed) {
            return true;
        }
        let heard = Duration::from_millis(self.heard.load(Ordering::Relaxed));
        self.begun.elapsed().saturating_sub(heard) < UNHEARD
    }
}

impl Found {
    /// Greets as `role`; from now on every event and the end of the link go to `up`, and `pulse`
    /// beats.
    pub fn attach(
        self,
        role: Role,
        pulse: Arc<Pulse>,
        up: impl Fn(FromDaemon) + Clone + Send + 'static,
    ) -> Result<Node, NodeError> {
        let Link { commands: mut down, mut events } = Link::connect(&self.directory, role, ASK_LIMIT)?;
        let (commands, waiting) = unbounded::<Command>();
        let closer = down.closer();
        let lost = up.clone();
        let writer = move || {
            let mut asked = Instant::now();
            loop {
                let command = match waiting.recv_timeout(PING.saturating_sub(asked.elapsed())) {
                    Ok(command) => command,
                    Err(RecvTimeoutError::Timeout) => {
                        asked = Instant::now();
                        Command::Ping
                    }
                    Err(RecvTimeoutError::Disconnected) => return closer.close(),
                };
                if let Err(error) = down.send(&command) {
                    lost(FromDaemon::Lost(error.to_string()));
                    return;
                }
            }
        };
        let reader = move || {
            loop {
                let heard = events.receive(None);
                pulse.beat();
                match heard {
                    Ok(Some(Event::Pong) | None) => {}
                    Ok(Some(event)) => up(FromDaemon::Event(event)),
                    Err(error) => return up(FromDaemon::Lost(error.to_string())),
                }
            }
        };
        spawn("link-down", writer)?;
        spawn("link-up", reader)?;
        Ok(Node { commands })
    }

    /// Asks it as an operator does.
    pub fn questions(&self) -> Questions {
        Questions(self.directory.clone())
    }

    /// Makes data connections for the workers of `epoch`.
    pub fn connector(&self, epoch: Epoch) -> Connector {
        let directory = self.directory.clone();
        Arc::new(move || {
            let connection = DataConnection::connect(&directory, epoch, DATA_LIMIT)?;
            Ok(Box::new(connection) as Box<dyn DataLink>)
        })
    }
}

/// A daemon that is asked for its status and events.
#[derive(Debug, Clone)]
pub struct Questions(PathBuf);

impl Source for Questions {
    fn status(&self) -> Result<NodeStatus, Reason> {
        match client::ask(&self.0, &Ask::Status, ASK_LIMIT)? {
            Answer::Status(status) => Ok(*status),
            _ => Err("the daemon gave a wrong answer".into()),
        }
    }

    fn events(&self, most: u32) -> Result<Vec<String>, Reason> {
        match client::ask(&self.0, &Ask::Events(most), ASK_LIMIT)? {
            Answer::Events(lines) => Ok(lines),
            _ => Err("the daemon gave a wrong answer".into()),
        }
    }
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<(), NodeError> {
    std::thread::Builder::new().name(name.to_owned()).spawn(body).map(drop).map_err(NodeError::Thread)
}

impl Node {
    /// Passes a command on, in order. A lost link is told by [`FromDaemon::Lost`].
    pub fn send(&self, command: Command) {
        // The writer is gone only after it told of the lost link.
        drop(self.commands.send(command));
    }
}

impl DataLink for DataConnection {
    fn request(&mut self, request: &DataRequest) -> Result<(DataReply, Option<OwnedFd>), Reason> {
        match self.exchange(request) {
            Ok(answer) => Ok(answer),
            Err(ClientError::Failed { errno, reason }) => Ok((DataReply::Failed { errno, reason }, None)),
            Err(other) => Err(other.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// As while others are waited for before an epoch opens, which may take minutes.
    #[test]
    fn a_daemon_that_is_asked_nothing_lives_and_has_its_time_when_it_is_asked_again() {
        let begun = Instant::now().checked_sub(2 * UNHEARD).unwrap();
        let pulse = Pulse { begun, ..Pulse::default() };
        assert!(!pulse.is_felt());
        pulse.pause();
        assert!(pulse.is_felt());
        pulse.resume();
        assert!(pulse.is_felt());
        let silent = Pulse { begun: begun.checked_sub(UNHEARD).unwrap(), ..pulse };
        assert!(!silent.is_felt(), "it was heard when it was asked again, and not since");
    }

    #[test]
    fn a_daemon_of_another_version_is_not_waited_for() {
        let asked = Cell::new(0);
        let refused = |lasting| {
            let reason = "protocol 1 here, 2 there".to_owned();
            NodeError::Client(ClientError::Refused { reason, highest: Epoch(0), lasting })
        };
        // The first refusal may be over soon.
        let look = |_: &Path| {
            asked.set(asked.get() + 1);
            Err::<(), _>(refused(asked.get() > 1))
        };
        let begun = Instant::now();
        let error = find_by(Path::new("/scr"), MOUNT_LIMIT, || false, look).unwrap_err();
        assert!(begun.elapsed() < MOUNT_LIMIT / 2 && asked.get() == 2, "{error}");
        let told =
            "the daemon at /scr and this coordinator are of different versions: protocol 1 here, 2 there";
        assert_eq!(error.to_string(), told);
    }

    #[test]
    fn who_is_to_end_waits_for_no_daemon() {
        let look = |_: &Path| Err::<(), _>(NodeError::Client(ClientError::NotMounted("/scr".into())));
        let asked = Cell::new(0);
        let is_to_end = || asked.replace(asked.get() + 1) == 2;
        let error = find_by(Path::new("/scr"), MOUNT_LIMIT, is_to_end, look).unwrap_err();
        assert_eq!(asked.get(), 3);
        assert!(error.to_string().starts_with("no daemon at /scr within 0 s"), "{error}");
    }
}

//! The caller's side of the control protocol: coordinators, their workers and tools find a daemon
//! and talk to it.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::codec::FRAME_MAX;
use super::stream::{self, Closer, Receiver, Sender, StreamError};
use super::{Answer, Ask, Command, DataReply, DataRequest, Event, Hello, PROTOCOL, Role, Welcome};
use crate::ids::Epoch;
use crate::mounted::{self, Mounted};

/// Links that are followed, one after the other; the kernel follows as many.
const LINKS_MAX: usize = 40;
/// How long a daemon may take to accept a connection.
pub const GREETING_TIMEOUT: Duration = Duration::from_secs(30);
/// For a connection to who listens, whether that answers or not.
const AT_ONCE: Duration = Duration::from_secs(1);

fn silent(directory: &Path, error: &std::io::Error) -> String {
    let directory = directory.display();
    if error.kind() == std::io::ErrorKind::PermissionDenied {
        return format!("the daemon of {directory} answers the job's user and root only");
    }
    format!("no daemon answers in {directory}: {error}")
}

/// Why the daemon could not be asked.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No scrfs mount there.
    #[error("{0} is not an scrfs mount")]
    NotMounted(PathBuf),
    /// /proc/self/mountinfo cannot be read.
    #[error("cannot read /proc/self/mountinfo: {0}")]
    MountTable(#[source] std::io::Error),
    /// Nobody listens in the control directory.
    #[error("{}", silent(directory, source))]
    Connect {
        /// The control directory.
        directory: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The daemon does not want this connection.
    #[error("the daemon refused: {reason} (highest epoch seen there: {highest})")]
    Refused {
        /// In its words.
        reason: String,
        /// The highest epoch that it has seen.
        highest: Epoch,
        /// Asking again is of no use.
        lasting: bool,
    },
    /// The daemon carried the request out, with this failure.
    #[error("{reason}")]
    Failed {
        /// errno, 0 if none.
        errno: i32,
        /// With path, dataset, member.
        reason: String,
    },
    /// An answer of the wrong kind.
    #[error("the daemon gave an answer that does not fit the question")]
    Unexpected,
    /// The connection broke.
    #[error(transparent)]
    Stream(#[from] StreamError),
}

/// The control directory of the mount at `mount_point`, from its mount source. A link in the place
/// of the mount point is followed.
pub fn find_control_directory(mount_point: &Path) -> Result<PathBuf, ClientError> {
    let wanted = std::path::absolute(mount_point).map_err(ClientError::MountTable)?;
    let table = std::fs::read("/proc/self/mountinfo").map_err(ClientError::MountTable)?;
    find_in(&table, &wanted).ok_or(ClientError::NotMounted(wanted))
}

fn find_in(table: &[u8], wanted: &Path) -> Option<PathBuf> {
    let mut next = wanted.to_owned();
    for _ in 0..LINKS_MAX {
        let resolved = resolved_above(&next);
        if let Some(found) = control_directory_in(table, &resolved) {
            return Some(found);
        }
        // What is no mount of scrfs is not a dead one.
        let target = std::fs::read_link(&resolved).ok()?;
        next = resolved.parent().unwrap_or(Path::new("/")).join(target);
    }
    None
}

/// The mount itself may be dead, so its path is resolved only up to the parent.
fn resolved_above(path: &Path) -> PathBuf {
    match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => {
            parent.canonicalize().map_or_else(|_| path.to_owned(), |dir| dir.join(name))
        }
        _ => path.to_owned(),
    }
}

/// The control directory of the topmost scrfs mount at `mount_point` in the text of a mountinfo
/// file.
pub fn control_directory_in(mountinfo: &[u8], mount_point: &Path) -> Option<PathBuf> {
    let at = mounted::parse(mountinfo).filter(|mount| mount.mount_point == mount_point);
    at.last().and_then(|mount| mount.control_directory_asked_for())
}

/// The scrfs mounts of root and of this user in the text of a mountinfo file: mount point and
/// control directory.
pub fn scrfs_mounts(mountinfo: &[u8]) -> Vec<(PathBuf, PathBuf)> {
    let named = |mount: Mounted| Some((mount.control_directory()?, mount.mount_point));
    mounted::parse(mountinfo).filter_map(named).map(|(control, point)| (point, control)).collect()
}

/// Who listens is root or this user: the directory's name came from the table of mounts, where
/// users who mount write what they like.
fn is_believable(socket: &std::os::unix::net::UnixStream) -> std::io::Result<()> {
    let me = rustix::process::geteuid();
    let listens = rustix::net::sockopt::socket_peercred(socket)?.uid;
    if me.is_root() || listens.is_root() || listens == me {
        return Ok(());
    }
    let why = format!("user {} listens there", listens.as_raw());
    Err(std::io::Error::new(std::io::ErrorKind::PermissionDenied, why))
}

/// The worker that listens in a control directory, or did when it died, if its keeper lives.
pub(super) fn listener(directory: &Path) -> Option<u32> {
    let socket = stream::connect(directory, AT_ONCE).ok()?;
    is_believable(&socket).ok()?;
    let pid = rustix::net::sockopt::socket_peercred(&socket).ok()?.pid;
    Some(pid.as_raw_nonzero().get().cast_unsigned())
}

fn greet(directory: &Path, role: Role, timeout: Duration) -> Result<(Sender, Receiver), ClientError> {
    let socket = stream::connect(directory, timeout)
        .map_err(|source| ClientError::Connect { directory: directory.to_owned(), source })?;
    is_believable(&socket)
        .map_err(|source| ClientError::Connect { directory: directory.to_owned(), source })?;
    let (mut sender, mut receiver) = stream::split(socket, FRAME_MAX);
    // A daemon that refuses before it reads the greeting closes its end: its reason is still there
    // to be read.
    match sender.send(&Hello { protocol: PROTOCOL, role }) {
        Ok(()) | Err(StreamError::Closed) => {}
        Err(other) => return Err(other.into()),
    }
    match receiver.receive(Some(timeout))? {
        Welcome::Accepted => Ok((sender, receiver)),
        Welcome::Refused { reason, highest, lasting } => {
            Err(ClientError::Refused { reason, highest, lasting })
        }
    }
}

/// One question of a tool.
pub fn ask(directory: &Path, question: &Ask, timeout: Duration) -> Result<Answer, ClientError> {
    let (mut sender, mut receiver) = greet(directory, Role::Operator, timeout.min(GREETING_TIMEOUT))?;
    sender.send(question)?;
    Ok(receiver.receive(Some(timeout))?)
}

/// A coordinator's link: two halves for two threads.
pub struct Link {
    /// Sends commands down.
    pub commands: CommandSender,
    /// Receives events.
    pub events: EventReceiver,
}

impl Link {
    /// Says hello as `role` ([`Role::Coordinator`]) and waits to be accepted.
    pub fn connect(directory: &Path, role: Role, timeout: Duration) -> Result<Self, ClientError> {
        let (sender, receiver) = greet(directory, role, timeout)?;
        sender.set_timeout(Some(timeout)).map_err(StreamError::from)?;
        Ok(Self { commands: CommandSender(sender), events: EventReceiver(receiver) })
    }
}

/// The half of a [`Link`] that sends.
pub struct CommandSender(Sender);

impl CommandSender {
    /// Sends one command.
    pub fn send(&mut self, command: &Command) -> Result<(), ClientError> {
        Ok(self.0.send(command)?)
    }

    /// Something that ends the link from any thread.
    pub fn closer(&self) -> Closer {
        self.0.closer()
    }
}

/// The half of a [`Link`] that receives.
pub struct EventReceiver(Receiver);

impl EventReceiver {
    /// The next event; `None` when none came within `timeout`. `timeout` `None`: until one comes or
    /// the link ends.
    pub fn receive(&mut self, timeout: Option<Duration>) -> Result<Option<Event>, ClientError> {
        match self.0.receive(timeout) {
            Ok(event) => Ok(Some(event)),
            Err(StreamError::TimedOut(_)) => Ok(None),
            Err(other) => Err(other.into()),
        }
    }
}

/// A data connection of one worker: one request, one reply.
pub struct DataConnection {
    sender: Sender,
    receiver: Receiver,
    timeout: Duration,
}

impl DataConnection {
    /// Connects as a worker of the coordinator of `epoch`. `timeout` bounds each request; a
    /// [`DataRequest::FinishMember`] puts all of a member's bytes on storage within it.
    pub fn connect(directory: &Path, epoch: Epoch, timeout: Duration) -> Result<Self, ClientError> {
        let (sender, receiver) = greet(directory, Role::Data { epoch }, timeout.min(GREETING_TIMEOUT))?;
        sender.set_timeout(Some(timeout)).map_err(StreamError::from)?;
        Ok(Self { sender, receiver: receiver.with_descriptors(), timeout })
    }

    /// One request; a failure at the daemon is [`ClientError::Failed`]. After any other error the
    /// connection is of no more use.
    pub fn request(&mut self, request: &DataRequest) -> Result<DataReply, ClientError> {
        self.sender.send(request)?;
        match self.receiver.receive(Some(self.timeout))? {
            DataReply::Failed { errno, reason } => Err(ClientError::Failed { errno, reason }),
            reply => Ok(reply),
        }
    }

    /// The same, with the descriptor that comes with some answers.
    pub fn exchange(&mut self, request: &DataRequest) -> Result<(DataReply, Option<OwnedFd>), ClientError> {
        let reply = self.request(request)?;
        let descriptor = match reply {
            DataReply::Descriptor | DataReply::Redundancy { .. } => Some(self.receiver.take_descriptor()?),
            _ => None,
        };
        Ok((reply, descriptor))
    }

    /// A request that is answered by a descriptor.
    pub fn descriptor(&mut self, request: &DataRequest) -> Result<OwnedFd, ClientError> {
        self.exchange(request)?.1.ok_or(ClientError::Unexpected)
    }

    /// A request that is answered by [`DataReply::Done`].
    pub fn done(&mut self, request: &DataRequest) -> Result<(), ClientError> {
        match self.request(request)? {
            DataReply::Done => Ok(()),
            _ => Err(ClientError::Unexpected),
        }
    }

    /// Something that ends the connection from any thread.
    pub fn closer(&self) -> Closer {
        self.sender.closer()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_control_directory_is_in_the_mount_source() {
        let table = b"22 1 8:1 / / rw - ext4 /dev/sda rw\n\
            90 22 0:50 / /scr rw,relatime shared:1 master:2 - fuse.scrfs scrfs@/dev/shm/u/scr.old rw\n\
            91 90 0:51 / /scr rw,relatime shared:1 - fuse.scrfs scrfs@/dev/shm/a\\040b/scr.7 rw,user_id=0\n\
            92 22 0:52 / /with\\134slash rw - fuse.scrfs scrfs@/c rw\n\
            broken line\n93 22 0:53 / /rel rw - fuse.scrfs scrfs@relative rw\n";
        let of = |point: &str| control_directory_in(table, Path::new(point));
        assert_eq!(of("/scr"), Some(PathBuf::from("/dev/shm/a b/scr.7")));
        assert_eq!(of("/with\\slash"), Some(PathBuf::from("/c")));
        assert_eq!(of("/"), None);
        assert_eq!(of("/rel"), None);
        assert_eq!(of("/scr/ck"), None);
        assert_eq!(scrfs_mounts(table).len(), 3);
    }

    #[test]
    fn a_link_to_a_mount_names_it() {
        let place = tempfile::tempdir().unwrap();
        let above = place.path().canonicalize().unwrap();
        let table = format!("91 90 0:51 / {}/scr rw - fuse.scrfs scrfs@/c rw\n", above.display());
        let link = |name: &str, to: &str| std::os::unix::fs::symlink(to, above.join(name)).unwrap();
        std::fs::create_dir(above.join("inner")).unwrap();
        link("one", "scr");
        link("inner/two", "../one");
        link("around", "inner");
        for path in ["scr", "one", "inner/two", "around/two"] {
            assert_eq!(find_in(table.as_bytes(), &above.join(path)), Some("/c".into()), "{path}");
        }
        for path in ["around", "inner", "none"] {
            assert_eq!(find_in(table.as_bytes(), &above.join(path)), None, "{path}");
        }
    }

    #[test]
    fn a_directory_that_is_no_mount_is_named() {
        // A link, and one to itself.
        let place = tempfile::tempdir().unwrap();
        let link = place.path().join("link");
        std::os::unix::fs::symlink("link", &link).unwrap();
        for path in [Path::new("/proc/self"), &link] {
            let error = find_control_directory(path).unwrap_err();
            assert!(error.to_string().starts_with(&*path.to_string_lossy()), "{error}");
        }
    }

    #[test]
    fn nobody_listening_is_an_error_with_the_directory() {
        let dir = tempfile::tempdir().unwrap();
        let error = ask(dir.path(), &Ask::Status, Duration::from_secs(1)).unwrap_err();
        assert!(matches!(error, ClientError::Connect { .. }), "{error}");
    }
}

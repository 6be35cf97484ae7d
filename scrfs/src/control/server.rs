//! The daemon's side of the control protocol: the socket, who may speak, and a thread per
//! connection.
//!
//! What is said goes to a [`Service`]. Only the job's user, root, the daemon's own user and the
//! operators' group may connect: the socket's owner and mode say so, so that others cannot even
//! wait in its queue. The kernel tells who did connect. Operators may only ask what changes
//! nothing. Connections are bounded in number, operators' apart.

use std::fs::Permissions;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use crossbeam_channel::{Receiver as Inbox, Sender as Outbox, TrySendError};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::codec::{FRAME_MAX, HELLO_MAX};
pub use super::peer::Peer;
use super::stream::{self, Budget, Closer, Receiver, SOCKET_NAME, Sender, StreamError};
use super::{
    Answer, Ask, Command, DataReply, DataRequest, Event, Hello, PROTOCOL, Role, Settings, Start, Welcome,
};
use crate::ids::{Epoch, NodeRank};

/// Connections at one time.
const CONNECTIONS_MAX: usize = 128;
/// Of them those of operators.
const OPERATORS_MAX: usize = 16;
/// Events that may wait for a coordinator that does not read; after that its link is closed.
const EVENTS_MAX: usize = 1 << 16;
/// Bytes of the large frames that are on their way on all connections: the daemon's memory is not
/// the job's, and other jobs' would be taken.
const LARGE_BYTES_MAX: usize = 2 * FRAME_MAX;
/// How long a peer may take to say hello, and an operator to ask.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a peer may take none of what is sent to it.
const SEND_TIMEOUT: Duration = Duration::from_mins(1);
/// Connections that the kernel queues before they are accepted.
const BACKLOG: i32 = 64;

/// A coordinator's hello.
#[derive(Debug, Clone, PartialEq)]
pub struct Greeting {
    /// Its epoch.
    pub epoch: Epoch,
    /// Its rank.
    pub rank: NodeRank,
    /// Host names by rank.
    pub hosts: Vec<String>,
    /// How it starts.
    pub start: Start,
    /// The job's settings.
    pub settings: Settings,
}

/// Why a connection is not accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// For the peer's log.
    pub reason: String,
    /// The highest epoch seen here.
    pub highest: Epoch,
    /// Asking again is of no use.
    pub lasting: bool,
}

/// Where events for one coordinator go.
#[derive(Clone)]
pub struct LinkHandle {
    id: u64,
    outbox: Outbox<Event>,
    /// None: in a simulation.
    closer: Option<Closer>,
}

impl LinkHandle {
    /// A link without a socket, for simulations, and where its events arrive.
    pub fn simulated(id: u64) -> (Self, Inbox<Event>) {
        let (outbox, events) = crossbeam_channel::unbounded();
        (Self { id, outbox, closer: None }, events)
    }

    /// Tells this link from all others of this daemon.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Sends an event, in order; never waits.
    pub fn send(&self, event: Event) {
        match self.outbox.try_send(event) {
            Ok(()) | Err(TrySendError::Disconnected(_)) => {}
            Err(TrySendError::Full(_)) => {
                tracing::error!(link = self.id, "coordinator does not read its events, closing its link");
                self.close();
            }
        }
    }

    /// Ends the link; [`Service::detached`] follows.
    pub fn close(&self) {
        if let Some(closer) = &self.closer {
            closer.close();
        }
    }
}

/// What the daemon does with what is said. Called from the connections' threads.
pub trait Service: Send + Sync + 'static {
    /// A coordinator says hello. On `Ok` the link is the daemon's only one, the epoch is on
    /// storage.
    fn attach(&self, greeting: Greeting, peer: &Peer, link: &LinkHandle) -> Result<(), Refusal>;

    /// A command of the link `link`, in order.
    fn command(&self, link: u64, command: Command);

    /// The link has ended. Called once after each successful attach.
    fn detached(&self, link: u64, why: &str);

    /// May a worker of the coordinator of `epoch` connect?
    fn admit_worker(&self, epoch: Epoch) -> Result<(), Refusal>;

    /// A worker's request; the descriptor goes with [`DataReply::Descriptor`].
    fn request(&self, epoch: Epoch, request: DataRequest) -> (DataReply, Option<OwnedFd>);

    /// A tool's question.
    fn answer(&self, question: Ask, peer: &Peer) -> Answer;
}

/// Who is heard, beside root and the daemon's own user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heard {
    /// The job's user: in everything.
    pub job_uid: u32,
    /// A group: in questions that change nothing.
    pub operators: Option<u32>,
}

/// The listening socket with its threads.
pub struct Server {
    shared: Arc<Shared>,
    accepting: Option<JoinHandle<()>>,
}

struct Shared {
    listener: UnixListener,
    socket_path: PathBuf,
    allowed: Vec<u32>,
    operators: Option<u32>,
    connections: AtomicUsize,
    operators_connections: AtomicUsize,
    next_link: AtomicU64,
    large: Arc<Budget>,
    stopping: AtomicBool,
}

impl Server {
    /// Listens in `directory`, in place of a socket that a predecessor left.
    pub fn start(directory: &Path, heard: Heard, service: Arc<dyn Service>) -> io::Result<Self> {
        let own = rustix::process::geteuid().as_raw();
        let shared = Arc::new(Shared {
            listener: listen(directory, heard)?,
            socket_path: directory.join(SOCKET_NAME),
            allowed: vec![0, own, heard.job_uid],
            operators: heard.operators,
            connections: AtomicUsize::new(0),
            operators_connections: AtomicUsize::new(0),
            next_link: AtomicU64::new(1),
            large: Budget::of(LARGE_BYTES_MAX),
            stopping: AtomicBool::new(false),
        });
        let accepting = {
            let shared = Arc::clone(&shared);
            Builder::new().name("scrfs-accept".into()).spawn(move || accept_all(&shared, &service))?
        };
        Ok(Self { shared, accepting: Some(accepting) })
    }

    /// Accepts no more connections and removes the socket. Links are the service's to close.
    pub fn stop(&mut self) {
        if self.shared.stopping.swap(true, Ordering::SeqCst) {
            return;
        }
        let _ = std::fs::remove_file(&self.shared.socket_path);
        let _ = rustix::net::shutdown(&self.shared.listener, rustix::net::Shutdown::Both);
        if let Some(thread) = self.accepting.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Under a name beside it first, so that there is a socket of this name at any time, and at last in
/// its place.
fn listen(directory: &Path, heard: Heard) -> io::Result<UnixListener> {
    let name = format!("{SOCKET_NAME}.new");
    let path = directory.join(&name);
    match std::fs::remove_file(&path) {
        Ok(()) => {}
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        Err(e) => return Err(e),
    }
    let (handle, address) = stream::address_in(directory, &name)?;
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    rustix::net::bind(&socket, &address)?;
    let mut mode = 0o600;
    // Others cannot give files away, and need not: the job's user is their own.
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(&path, Some(heard.job_uid), heard.operators)?;
        mode |= if heard.operators.is_some() { 0o060 } else { 0 };
    }
    std::fs::set_permissions(&path, Permissions::from_mode(mode))?;
    rustix::net::listen(&socket, BACKLOG)?;
    std::fs::rename(&path, directory.join(SOCKET_NAME))?;
    drop(handle);
    Ok(UnixListener::from(socket))
}

fn accept_all(shared: &Arc<Shared>, service: &Arc<dyn Service>) {
    let mut is_short = false;
    loop {
        let accepted = shared.listener.accept();
        if shared.stopping.load(Ordering::SeqCst) {
            return;
        }
        match accepted {
            Ok((socket, _)) => {
                is_short = false;
                admit(shared, service, socket);
            }
            Err(e) if transient(&e) => {
                // Once for as long as that lasts.
                if !std::mem::replace(&mut is_short, true) {
                    tracing::warn!(error = %e, "cannot accept control connections");
                }
                // Out of descriptors or memory: nothing tells when there are some again.
                std::thread::sleep(Duration::from_millis(50));
            }
            Err(e) => {
                tracing::error!(error = %e, "the control socket is lost");
                return;
            }
        }
    }
}

fn transient(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let errno = Errno::from_io_error(error);
    matches!(
        errno,
        Some(Errno::INTR | Errno::CONNABORTED | Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS)
    )
}

fn admit(shared: &Arc<Shared>, service: &Arc<dyn Service>, socket: UnixStream) {
    let peer = match Peer::of(&socket) {
        Ok(peer) => peer,
        Err(error) => {
            tracing::warn!(%error, "cannot tell who connects");
            return;
        }
    };
    let refuse = |reason: String| {
        let (mut sender, _) = stream::split(socket.try_clone()?, HELLO_MAX);
        sender.set_timeout(Some(Duration::from_millis(100)))?;
        sender.send(&Welcome::Refused { reason, highest: Epoch(0), lasting: false })
    };
    let Some(rights) = shared.rights(&peer) else {
        tracing::warn!(peer.uid, peer.pid, "control connection of a user who may not");
        let _ = refuse(format!("user {} may not control this daemon", peer.uid));
        return;
    };
    let Some(place) = Occupied::one(shared, rights) else {
        let _ = refuse("too many connections".to_owned());
        return;
    };
    let (for_thread, service) = (Arc::clone(shared), Arc::clone(service));
    let spawned = Builder::new().name("scrfs-control".into()).spawn(move || {
        let _place = place;
        if let Err(error) = serve(&for_thread, &service, socket, &peer, rights) {
            tracing::debug!(peer.pid, %error, "control connection ended");
        }
    });
    if let Err(error) = spawned {
        tracing::error!(%error, "cannot start a thread for a control connection");
    }
}

/// What a peer may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rights {
    All,
    /// An operator's.
    Questions,
}

impl Shared {
    fn rights(&self, peer: &Peer) -> Option<Rights> {
        if self.allowed.contains(&peer.uid) {
            return Some(Rights::All);
        }
        let group = self.operators?;
        let among = peer.gid == group || peer.groups.iter().flatten().any(|one| *one == group);
        among.then_some(Rights::Questions)
    }

    fn counter(&self, rights: Rights) -> (&AtomicUsize, usize) {
        match rights {
            Rights::All => (&self.connections, CONNECTIONS_MAX),
            Rights::Questions => (&self.operators_connections, OPERATORS_MAX),
        }
    }
}

/// One of the connections that there may be, as long as it lives.
struct Occupied {
    shared: Arc<Shared>,
    rights: Rights,
}

impl Occupied {
    fn one(shared: &Arc<Shared>, rights: Rights) -> Option<Self> {
        let place = Self { shared: Arc::clone(shared), rights };
        let (counter, most) = shared.counter(rights);
        (counter.fetch_add(1, Ordering::SeqCst) < most).then_some(place)
    }
}

impl Drop for Occupied {
    fn drop(&mut self) {
        self.shared.counter(self.rights).0.fetch_sub(1, Ordering::SeqCst);
    }
}

fn serve(
    shared: &Shared,
    service: &Arc<dyn Service>,
    socket: UnixStream,
    peer: &Peer,
    rights: Rights,
) -> Result<(), StreamError> {
    let (mut sender, receiver) = stream::split(socket, HELLO_MAX);
    let mut receiver = receiver.within(&shared.large);
    sender.set_timeout(Some(SEND_TIMEOUT))?;
    let hello: Hello = receiver.receive(Some(HELLO_TIMEOUT))?;
    if hello.protocol != PROTOCOL {
        let reason = format!("protocol {} here, {} there", PROTOCOL, hello.protocol);
        return sender.send(&Welcome::Refused { reason, highest: Epoch(0), lasting: true });
    }
    if rights == Rights::Questions && hello.role != Role::Operator {
        let reason = format!("user {} may only ask", peer.uid);
        return sender.send(&Welcome::Refused { reason, highest: Epoch(0), lasting: false });
    }
    match hello.role {
        Role::Operator => {
            sender.send(&Welcome::Accepted)?;
            let question: Ask = receiver.receive(Some(HELLO_TIMEOUT))?;
            if rights == Rights::All || question.only_reads() {
                return sender.send(&service.answer(question, peer));
            }
            sender.send(&Answer::Failed(format!("user {} may only ask for status and events", peer.uid)))
        }
        Role::Coordinator { epoch, rank, hosts, start, settings } => {
            receiver.set_limit(FRAME_MAX);
            let greeting = Greeting { epoch, rank, hosts, start, settings: *settings };
            serve_coordinator(shared, service, greeting, peer, sender, receiver)
        }
        Role::Data { epoch } => {
            receiver.set_limit(FRAME_MAX);
            serve_worker(service, epoch, sender, receiver)
        }
    }
}

fn refused(sender: &mut Sender, refusal: Refusal) -> Result<(), StreamError> {
    let Refusal { reason, highest, lasting } = refusal;
    sender.send(&Welcome::Refused { reason, highest, lasting })
}

fn serve_coordinator(
    shared: &Shared,
    service: &Arc<dyn Service>,
    greeting: Greeting,
    peer: &Peer,
    mut sender: Sender,
    mut receiver: Receiver,
) -> Result<(), StreamError> {
    let (outbox, inbox) = crossbeam_channel::bounded(EVENTS_MAX);
    let id = shared.next_link.fetch_add(1, Ordering::SeqCst);
    let closer = sender.closer();
    let link = LinkHandle { id, outbox, closer: Some(closer.clone()) };
    if let Err(refusal) = service.attach(greeting, peer, &link) {
        return refused(&mut sender, refusal);
    }
    // From here on the service knows the link, so its end must be told whatever happens.
    let mut ended = sender.send(&Welcome::Accepted);
    if ended.is_ok() {
        drop(link);
        let writing = Builder::new()
            .name("scrfs-events".into())
            .spawn(move || send_events(&mut sender, &inbox))
            .map_err(StreamError::from);
        ended = match writing {
            Ok(_) => take_commands(service.as_ref(), id, &mut receiver),
            Err(error) => Err(error),
        };
        closer.close();
    }
    let why = match &ended {
        Ok(()) => "closed".to_owned(),
        Err(error) => error.to_string(),
    };
    service.detached(id, &why);
    ended
}

fn take_commands(service: &dyn Service, link: u64, receiver: &mut Receiver) -> Result<(), StreamError> {
    loop {
        match receiver.receive(None) {
            Ok(command) => service.command(link, command),
            Err(StreamError::Closed) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

/// Ends when the service has dropped the link, or the coordinator is gone.
fn send_events(sender: &mut Sender, inbox: &Inbox<Event>) {
    for event in inbox {
        if let Err(error) = sender.send(&event) {
            tracing::debug!(%error, "cannot send an event to the coordinator");
            sender.close();
            return;
        }
    }
}

fn serve_worker(
    service: &Arc<dyn Service>,
    epoch: Epoch,
    mut sender: Sender,
    mut receiver: Receiver,
) -> Result<(), StreamError> {
    if let Err(refusal) = service.admit_worker(epoch) {
        return refused(&mut sender, refusal);
    }
    sender.send(&Welcome::Accepted)?;
    loop {
        let request = match receiver.receive(None) {
            Ok(request) => request,
            Err(StreamError::Closed) => return Ok(()),
            Err(error) => return Err(error),
        };
        let (reply, descriptor) = service.request(epoch, request);
        match descriptor {
            Some(descriptor) => sender.send_with(&reply, descriptor.as_fd())?,
            None => sender.send(&reply)?,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use parking_lot::Mutex;

    use super::*;
    use crate::control::client::{self, ClientError, DataConnection, Link};
    use crate::control::test_settings;
    use crate::ids::DatasetId;

    /// Remembers what it is told; accepts epochs that do not go back.
    #[derive(Default)]
    struct Echo {
        highest: Mutex<Epoch>,
        link: Mutex<Option<LinkHandle>>,
        ended: Mutex<Vec<u64>>,
        peer: Mutex<Option<Peer>>,
    }

    impl Service for Echo {
        fn attach(&self, greeting: Greeting, peer: &Peer, link: &LinkHandle) -> Result<(), Refusal> {
            *self.peer.lock() = Some(peer.clone());
            let mut highest = self.highest.lock();
            if greeting.epoch < *highest {
                return Err(Refusal { reason: "old".into(), highest: *highest, lasting: false });
            }
            *highest = greeting.epoch;
            if let Some(former) = self.link.lock().replace(link.clone()) {
                former.close();
            }
            Ok(())
        }

        fn command(&self, _: u64, command: Command) {
            if let (Command::Evict(id), Some(link)) = (command, &*self.link.lock()) {
                link.send(Event::Evicted(id));
            }
        }

        fn detached(&self, link: u64, _: &str) {
            self.ended.lock().push(link);
        }

        fn admit_worker(&self, epoch: Epoch) -> Result<(), Refusal> {
            let highest = *self.highest.lock();
            if epoch == highest {
                Ok(())
            } else {
                Err(Refusal { reason: "other epoch".into(), highest, lasting: false })
            }
        }

        fn request(&self, _: Epoch, request: DataRequest) -> (DataReply, Option<OwnedFd>) {
            match request {
                DataRequest::OpenRedundancy { .. } => {
                    let mut file = tempfile::tempfile().unwrap();
                    file.write_all(b"parity").unwrap();
                    (DataReply::Descriptor, Some(file.into()))
                }
                _ => (DataReply::Failed { errno: 2, reason: "nothing".into() }, None),
            }
        }

        fn answer(&self, _: Ask, peer: &Peer) -> Answer {
            Answer::Failed(format!("pid {}", peer.pid))
        }
    }

    fn coordinator(epoch: u64) -> Role {
        Role::Coordinator {
            epoch: Epoch(epoch),
            rank: NodeRank(0),
            hosts: vec!["n0".into()],
            start: Start::Attach,
            settings: Box::new(test_settings()),
        }
    }

    const WAIT: Duration = Duration::from_mins(1);

    #[test]
    fn three_kinds_of_connections() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(SOCKET_NAME), b"left over").unwrap();
        let echo = Arc::new(Echo::default());
        let service: Arc<dyn Service> = echo.clone();
        let mut server = Server::start(dir.path(), hears(0), service).unwrap();

        let mut first = Link::connect(dir.path(), coordinator(3), WAIT).unwrap();
        first.commands.send(&Command::Evict(DatasetId(4))).unwrap();
        assert_eq!(first.events.receive(Some(WAIT)).unwrap(), Some(Event::Evicted(DatasetId(4))));

        let mut data = DataConnection::connect(dir.path(), Epoch(3), WAIT).unwrap();
        let member = crate::ids::Member(0);
        let got = data.descriptor(&DataRequest::OpenRedundancy { id: DatasetId(1), member }).unwrap();
        assert_eq!(rustix::fs::fstat(&got).unwrap().st_size, 6);
        let error = data.done(&DataRequest::AbandonMember { id: DatasetId(1), member }).unwrap_err();
        assert!(matches!(error, ClientError::Failed { errno: 2, .. }));
        assert!(matches!(
            DataConnection::connect(dir.path(), Epoch(2), WAIT),
            Err(ClientError::Refused { highest: Epoch(3), .. })
        ));

        let answer = client::ask(dir.path(), &Ask::Status, WAIT).unwrap();
        assert_eq!(answer, Answer::Failed(format!("pid {}", std::process::id())));

        assert!(matches!(
            Link::connect(dir.path(), coordinator(2), WAIT),
            Err(ClientError::Refused { highest: Epoch(3), .. })
        ));
        let second = Link::connect(dir.path(), coordinator(4), WAIT).unwrap();
        assert!(first.events.receive(Some(WAIT)).is_err(), "the former link is closed");
        second.commands.closer().close();
        server.stop();
        assert!(matches!(client::ask(dir.path(), &Ask::Status, WAIT), Err(ClientError::Connect { .. })));
    }

    /// Runs `work` as another user, who has only these groups.
    fn as_user<T: Send>(uid: u32, groups: &[u32], work: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let groups: Vec<_> = groups.iter().map(|&gid| rustix::fs::Gid::from_raw(gid)).collect();
                rustix::thread::set_thread_groups(&groups).unwrap();
                // This thread's ids only: the rest of the process stays root's.
                let (uid, gid) = (rustix::fs::Uid::from_raw(uid), rustix::fs::Gid::from_raw(uid));
                rustix::thread::set_thread_res_gid(gid, gid, gid).unwrap();
                rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
                work()
            });
            thread.join().unwrap()
        })
    }

    fn hears(job_uid: u32) -> Heard {
        Heard { job_uid, operators: None }
    }

    #[test]
    fn only_the_jobs_user_and_root_are_heard() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let (job, other) = (12_345, 54_321);
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), Permissions::from_mode(0o711)).unwrap();
        let echo = Arc::new(Echo::default());
        let _server = Server::start(dir.path(), hears(job), echo.clone()).unwrap();
        let of_job: Vec<u32> = (20_000..20_100).collect();
        let link = as_user(job, &of_job, || Link::connect(dir.path(), coordinator(1), WAIT).unwrap());
        let peer = echo.peer.lock().clone().unwrap();
        assert_eq!((peer.uid, peer.gid, peer.groups), (job, job, Some(of_job)));
        as_user(other, &[job], || {
            let refused = |outcome: Result<(), ClientError>| match outcome {
                Err(ClientError::Connect { source, .. }) => {
                    assert_eq!(source.kind(), io::ErrorKind::PermissionDenied);
                }
                outcome => panic!("{outcome:?}"),
            };
            refused(client::ask(dir.path(), &Ask::Status, WAIT).map(drop));
            refused(client::ask(dir.path(), &Ask::Stop, WAIT).map(drop));
            refused(Link::connect(dir.path(), coordinator(2), WAIT).map(drop));
            refused(DataConnection::connect(dir.path(), Epoch(1), WAIT).map(drop));
        });
        // Should the file's mode not keep them out, what the kernel tells of them does.
        std::fs::set_permissions(dir.path().join(SOCKET_NAME), Permissions::from_mode(0o666)).unwrap();
        let outcome = as_user(other, &[job], || client::ask(dir.path(), &Ask::Status, WAIT));
        assert!(matches!(outcome, Err(ClientError::Refused { reason, .. }) if reason.contains("54321")));
        assert_eq!(*echo.highest.lock(), Epoch(1), "a stranger's epoch counts for nothing");
        drop(link);
    }

    #[test]
    fn operators_ask_and_change_nothing_and_cannot_take_the_jobs_connections() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let (job, operator, group) = (12_345, 54_321, 777);
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), Permissions::from_mode(0o711)).unwrap();
        let heard = Heard { job_uid: job, operators: Some(group) };
        let _server = Server::start(dir.path(), heard, Arc::new(Echo::default())).unwrap();
        as_user(operator, &[5, group], || {
            let told = |question| client::ask(dir.path(), &question, WAIT).unwrap();
            let answered = format!("pid {}", std::process::id());
            assert_eq!(told(Ask::Status), Answer::Failed(answered.clone()));
            assert_eq!(told(Ask::Events(5)), Answer::Failed(answered));
            for question in [Ask::Stop, Ask::RecordIo(true)] {
                assert!(matches!(told(question), Answer::Failed(why) if why.contains("54321 may only")));
            }
            let refused = |outcome: Result<(), ClientError>| {
                assert!(
                    matches!(outcome, Err(ClientError::Refused { reason, .. }) if reason.contains("only ask"))
                );
            };
            refused(Link::connect(dir.path(), coordinator(2), WAIT).map(drop));
            refused(DataConnection::connect(dir.path(), Epoch(1), WAIT).map(drop));
        });
        // Connections that say nothing. The server may take some time until it has ended those from
        // above.
        let held = as_user(operator, &[group], || {
            let mut held = Vec::new();
            loop {
                held.push(stream::connect(dir.path(), WAIT).unwrap());
                match client::ask(dir.path(), &Ask::Status, WAIT) {
                    Ok(_) => assert!(held.len() < 100 * OPERATORS_MAX, "one user takes them all"),
                    Err(ClientError::Refused { reason, .. }) if reason.contains("too many") => return held,
                    Err(other) => panic!("{other:?}"),
                }
            }
        });
        as_user(job, &[], || client::ask(dir.path(), &Ask::Status, WAIT).unwrap());
        drop(held);
    }

    #[test]
    fn hostile_greetings_end_only_their_own_connection() {
        let dir = tempfile::tempdir().unwrap();
        let _server = Server::start(dir.path(), hears(0), Arc::new(Echo::default())).unwrap();
        for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0, 0, 0, 2, 9, 9], &[0xff; 64], &[0, 0, 0, 0]] {
            let mut socket = stream::connect(dir.path(), WAIT).unwrap();
            socket.write_all(garbage).unwrap();
            let (_keep, mut receiver) = stream::split(socket, HELLO_MAX);
            assert!(receiver.receive::<Welcome>(Some(WAIT)).is_err());
        }
        let mut socket = stream::connect(dir.path(), WAIT).unwrap();
        let hello = Hello { protocol: 99, role: Role::Operator };
        socket.write_all(&super::super::codec::encode(&hello).unwrap()).unwrap();
        let (_keep, mut receiver) = stream::split(socket, HELLO_MAX);
        assert!(matches!(receiver.receive(Some(WAIT)).unwrap(), Welcome::Refused { .. }));
        assert!(client::ask(dir.path(), &Ask::Status, WAIT).is_ok());
    }
}

//! The connections on which nodes watch one another, and the thread that serves them.
//!
//! A node listens on a port that the opening tells the others, with a secret. Who connects and says
//! that first is sent a byte every [`BEAT`], and another one when scrfs-run is gone; nothing else
//! that it sends is read. Who does not say the secret soon is cut off, so that strangers take
//! nobody's place. The watcher's kernel asks a connection that is quiet whether it still has
//! another end, and gives it up after [`UNANSWERED`].

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Read, Write};
use std::net::{Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt;
use scrfs::control::lost::Lost;
use scrfs::ids::NodeRank;

use super::{BEAT, Noticed, Watch, watched_by};
use crate::message::{EpochSecret, Opening};

/// A network that is silent for so long is gone. Below what launchers allow, above what a busy
/// switch takes.
const UNANSWERED: Duration = Duration::from_secs(3);
/// A node that has just been told to be there answers sooner.
const CONNECT: Duration = Duration::from_secs(2);
/// So soon a watcher has said the secret.
const SECRET_LIMIT: Duration = Duration::from_secs(2);
/// Connections of watchers: whoever needs more does not watch. And of those that have not said it
/// yet: the oldest makes room.
const WATCHERS_MAX: usize = 64;
const STRANGERS_MAX: usize = 64;
/// Connections that are taken before something else is done.
const TURN: usize = 256;
/// What a watcher is sent: this node lives; scrfs-run is gone.
const ALIVE: &[u8] = b".";
const GONE: &[u8] = b"!";
/// More beats than can have come.
const READ_BYTES: usize = 256;

/// This node, where others can watch it.
#[derive(Debug)]
pub struct Watched {
    listener: TcpListener,
    port: u16,
}

impl Watched {
    /// Opens a port.
    pub fn begin() -> io::Result<Self> {
        let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0));
        let listener = TcpListener::bind(any).or_else(|_| TcpListener::bind(("0.0.0.0", 0)))?;
        listener.set_nonblocking(true)?;
        let port = listener.local_addr()?.port();
        Ok(Self { listener, port })
    }

    /// Where.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Watches others from now on, in a thread, to the process's end. Who is lost is printed. Those
    /// that watch this node hear of it only while `lives` says so. When `run_host`, where scrfs-run
    /// is, was lost and nobody has ended this process, that gets a SIGTERM.
    pub fn watch(
        self,
        me: NodeRank,
        opening: &Opening,
        run_host: Option<&str>,
        silence: Duration,
        lives: impl Fn() -> bool + Send + 'static,
    ) -> io::Result<()> {
        let size = u32::try_from(opening.hosts.len()).unwrap_or(u32::MAX);
        let others = watched_by(me.0, size).into_iter().filter_map(|rank| {
            let at = usize::try_from(rank).ok()?;
            Some((rank, opening.hosts.get(at)?.clone(), *opening.watch_ports.get(at)?))
        });
        let (others, secret) = (others.collect::<Vec<_>>(), opening.secret);
        let run = others.iter().find(|(_, host, _)| Some(host.as_str()) == run_host).map(|(rank, ..)| *rank);
        let thread = std::thread::Builder::new().name("watch".to_owned());
        let serve = move || {
            let mut links = Links::new(self.listener, others, secret, silence, Box::new(lives));
            links.watch = links.watch.with_run(run);
            links.run();
        };
        thread.spawn(serve).map(drop)
    }
}

/// Who has connected, and what it has said.
struct Stranger {
    link: TcpStream,
    since: Instant,
    said: Vec<u8>,
}

/// What comes of a stranger.
#[derive(Debug, PartialEq, Eq)]
enum Heard {
    Watcher,
    /// Nothing yet, or a part.
    More,
    Nobody,
}

impl Stranger {
    fn hear(&mut self, secret: EpochSecret, now: Instant) -> Heard {
        let mut buffer = [0; size_of::<EpochSecret>()];
        let Some(missing) = buffer.get_mut(self.said.len()..) else { return Heard::Nobody };
        match self.link.read(missing) {
            Ok(0) => return Heard::Nobody,
            Ok(bytes) => self.said.extend_from_slice(&missing[..bytes]),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(_) => return Heard::Nobody,
        }
        if self.said.len() == secret.0.len() {
            return if secret.is_said(&self.said) { Heard::Watcher } else { Heard::Nobody };
        }
        if now.saturating_duration_since(self.since) < SECRET_LIMIT { Heard::More } else { Heard::Nobody }
    }
}

struct Links {
    listener: TcpListener,
    secret: EpochSecret,
    /// Those that watch this node.
    watchers: Vec<TcpStream>,
    /// Those that have yet to say the secret, oldest first.
    strangers: VecDeque<Stranger>,
    /// Those that this node watches.
    watched: BTreeMap<u32, TcpStream>,
    hosts: BTreeMap<u32, String>,
    watch: Watch,
    /// This node's daemon answers.
    lives: Box<dyn Fn() -> bool + Send>,
    begun: Instant,
    beaten: Instant,
    /// The others were told that scrfs-run is gone.
    is_forsaken: bool,
}

impl Links {
    fn new(
        listener: TcpListener,
        others: Vec<(u32, String, u16)>,
        secret: EpochSecret,
        silence: Duration,
        lives: Box<dyn Fn() -> bool + Send>,
    ) -> Self {
        let begun = Instant::now();
        let mut watched = BTreeMap::new();
        let mut hosts = BTreeMap::new();
        for (rank, host, port) in others {
            match connect(&host, port, secret) {
                Ok(link) => drop(watched.insert(rank, link)),
                Err(error) => tracing::warn!("{host} cannot be watched from here: {error}"),
            }
            hosts.insert(rank, host);
        }
        let watch = Watch::new(watched.keys().copied(), silence, begun.elapsed());
        let (watchers, strangers) = (Vec::new(), VecDeque::new());
        let (beaten, is_forsaken) = (begun, false);
        Self {
            listener,
            secret,
            watchers,
            strangers,
            watched,
            hosts,
            watch,
            lives,
            begun,
            beaten,
            is_forsaken,
        }
    }

    fn run(mut self) {
        loop {
            let noticed = self.wait();
            for one in noticed.into_iter().chain([Noticed::Tick]) {
                for (rank, why) in self.watch.step(self.begun.elapsed(), one) {
                    self.watched.remove(&rank);
                    let host = self.hosts.get(&rank).cloned().unwrap_or_default();
                    let line = format!("{}\n", Lost { host, why });
                    // Whoever would read it is gone, or never was: the launcher may still notice.
                    drop(io::stdout().lock().write_all(line.as_bytes()));
                }
            }
            if !self.is_forsaken && self.watch.is_forsaken(self.begun.elapsed()) {
                self.is_forsaken = true;
                self.tell(GONE);
                tracing::warn!("the node of scrfs-run is lost, and nobody ends this coordinator: it ends");
                if let Err(error) = nix::sys::signal::raise(Signal::SIGTERM) {
                    tracing::warn!(%error, "it cannot end itself");
                }
            }
        }
    }

    /// Says a sign to all that watch this node.
    fn tell(&mut self, sign: &[u8]) {
        self.watchers.retain_mut(|watcher| match watcher.write(sign) {
            Ok(_) => true,
            Err(error) => error.kind() == io::ErrorKind::WouldBlock,
        });
    }

    /// Until something comes, or the next beat is due.
    fn wait(&mut self) -> Vec<Noticed> {
        let left = BEAT.saturating_sub(self.beaten.elapsed());
        let left = Timespec::try_from(left).unwrap_or_default();
        {
            let mut wanted = vec![PollFd::new(&self.listener, PollFlags::IN)];
            wanted.extend(self.watched.values().map(|link| PollFd::new(link, PollFlags::IN)));
            wanted.extend(self.strangers.iter().map(|stranger| PollFd::new(&stranger.link, PollFlags::IN)));
            if poll(&mut wanted, Some(&left)).is_err() {
                std::thread::sleep(BEAT);
            }
        }
        self.accept(Instant::now());
        if self.beaten.elapsed() >= BEAT {
            self.beaten = Instant::now();
            let sign = if (self.lives)() { ALIVE } else { b"" };
            self.tell(sign);
        }
        let mut noticed = Vec::new();
        for (&rank, link) in &mut self.watched {
            noticed.extend(read(rank, link));
        }
        for one in &noticed {
            if let Noticed::Closed(rank) | Noticed::Dead(rank) = one {
                self.watched.remove(rank);
            }
        }
        noticed
    }

    /// Takes who has connected, and hears who has not said the secret yet.
    fn accept(&mut self, now: Instant) {
        for mut stranger in std::mem::take(&mut self.strangers) {
            match stranger.hear(self.secret, now) {
                Heard::More => self.strangers.push_back(stranger),
                Heard::Watcher => self.begins(stranger),
                Heard::Nobody => {}
            }
        }
        for _ in 0..TURN {
            let Ok((link, _)) = self.listener.accept() else { break };
            if link.set_nonblocking(true).is_err() {
                continue;
            }
            let mut stranger = Stranger { link, since: now, said: Vec::new() };
            match stranger.hear(self.secret, now) {
                Heard::More => self.strangers.push_back(stranger),
                Heard::Watcher => self.begins(stranger),
                Heard::Nobody => {}
            }
            if self.strangers.len() > STRANGERS_MAX {
                self.strangers.pop_front();
            }
        }
    }

    fn begins(&mut self, watcher: Stranger) {
        if self.watchers.len() < WATCHERS_MAX {
            self.watchers.push(watcher.link);
        }
    }
}

fn read(rank: u32, link: &mut TcpStream) -> Option<Noticed> {
    let mut buffer = [0; READ_BYTES];
    match link.read(&mut buffer) {
        // The other end is gone, or was started anew.
        Ok(0) => Some(Noticed::Closed(rank)),
        Ok(bytes) if buffer[..bytes].windows(GONE.len()).any(|sign| sign == GONE) => Some(Noticed::Forsaken),
        Ok(_) => Some(Noticed::Beat(rank)),
        Err(error) => match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => None,
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => Some(Noticed::Closed(rank)),
            _ => Some(Noticed::Dead(rank)),
        },
    }
}

fn connect(host: &str, port: u16, secret: EpochSecret) -> io::Result<TcpStream> {
    let mut last = io::Error::other("it has no port for it");
    let addresses = if port == 0 { Vec::new() } else { (host, port).to_socket_addrs()?.take(4).collect() };
    for address in addresses {
        match TcpStream::connect_timeout(&address, CONNECT) {
            Ok(mut link) => {
                ask_when_quiet(&link)?;
                // Few enough bytes for any socket's buffer.
                link.write_all(&secret.0)?;
                link.set_nonblocking(true)?;
                return Ok(link);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn ask_when_quiet(link: &impl AsFd) -> io::Result<()> {
    sockopt::set_socket_keepalive(link, true)?;
    sockopt::set_tcp_keepidle(link, Duration::from_secs(1))?;
    sockopt::set_tcp_keepintvl(link, Duration::from_secs(1))?;
    sockopt::set_tcp_keepcnt(link, 2)?;
    let limit = u32::try_from(UNANSWERED.as_millis()).unwrap_or(u32::MAX);
    Ok(sockopt::set_tcp_user_timeout(link, limit)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: EpochSecret = EpochSecret([7; 16]);
    const SILENCE: Duration = Duration::from_secs(30);

    #[test]
    fn a_watched_process_beats_and_its_end_is_seen() {
        let watched = Watched::begin().unwrap();
        let port = watched.port();
        let mut link = connect("127.0.0.1", port, SECRET).unwrap();
        link.set_nonblocking(false).unwrap();
        let mut links = Links::new(watched.listener, Vec::new(), SECRET, SILENCE, Box::new(|| true));
        let beating = std::thread::spawn(move || {
            for _ in 0..4 {
                assert_eq!(links.wait(), []);
            }
        });
        assert_eq!(read(1, &mut link), Some(Noticed::Beat(1)));
        beating.join().unwrap();
        let mut last = Some(Noticed::Beat(1));
        while last == Some(Noticed::Beat(1)) {
            last = read(1, &mut link);
        }
        assert_eq!(last, Some(Noticed::Closed(1)));
        assert!(connect("127.0.0.1", port, SECRET).is_err() && connect("127.0.0.1", 0, SECRET).is_err());
    }

    #[test]
    fn watchers_hear_that_the_run_is_gone() {
        let watched = Watched::begin().unwrap();
        let mut link = connect("127.0.0.1", watched.port(), SECRET).unwrap();
        link.set_nonblocking(false).unwrap();
        let mut links = Links::new(watched.listener, Vec::new(), SECRET, SILENCE, Box::new(|| true));
        while links.watchers.is_empty() {
            links.accept(Instant::now());
        }
        links.tell(GONE);
        links.tell(ALIVE);
        assert_eq!(read(1, &mut link), Some(Noticed::Forsaken));
    }

    #[test]
    fn without_its_daemon_a_node_is_silent() {
        let watched = Watched::begin().unwrap();
        let mut link = connect("127.0.0.1", watched.port(), SECRET).unwrap();
        let mut links = Links::new(watched.listener, Vec::new(), SECRET, SILENCE, Box::new(|| false));
        while links.watchers.is_empty() {
            links.accept(Instant::now());
        }
        links.beaten = Instant::now().checked_sub(BEAT).unwrap();
        assert_eq!(links.wait(), []);
        assert_eq!((links.watchers.len(), read(1, &mut link)), (1, None));
    }

    #[test]
    fn strangers_take_nobodys_place() {
        let watched = Watched::begin().unwrap();
        let port = watched.port();
        let mut links = Links::new(watched.listener, Vec::new(), SECRET, SILENCE, Box::new(|| true));
        let now = Instant::now();
        let mut many = Vec::new();
        for nth in 0..3 * STRANGERS_MAX {
            let mut stranger = TcpStream::connect(("127.0.0.1", port)).unwrap();
            match nth % 3 {
                0 => {}
                1 => stranger.write_all(b"half of it").unwrap(),
                _ => stranger.write_all(&[8; 300]).unwrap(),
            }
            many.push(stranger);
            links.accept(now);
        }
        assert!(links.strangers.len() <= STRANGERS_MAX && links.watchers.is_empty());
        // From the same address, while they hold what they have.
        let mut watcher = connect("127.0.0.1", port, SECRET).unwrap();
        while links.watchers.is_empty() {
            links.accept(now);
        }
        links.beaten = now.checked_sub(BEAT).unwrap();
        assert_eq!(links.wait(), []);
        watcher.set_nonblocking(false).unwrap();
        assert_eq!(read(1, &mut watcher), Some(Noticed::Beat(1)));
        // And they do not hold it for long.
        links.accept(now + SECRET_LIMIT);
        assert!(links.strangers.is_empty() && links.watchers.len() == 1);
        drop(many);
    }
}

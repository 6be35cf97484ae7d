//! The bell of a coordinator: who is about to send something to one that may be asleep rings first.
//!
//! A look at the transport costs a processor some 70 microseconds, so a coordinator to which
//! nothing happens looks rarely. A datagram with the epoch's secret has it look at once. A datagram
//! can be lost, and a firewall may drop all of them: a message that was not rung for is found by
//! the next look, and [`Trust`] keeps looks close where that happens.

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use scrfs::ids::NodeRank;
use scrfs::lock::Mutex;

use crate::inbox::Inbox;
use crate::message::{EpochSecret, Opening};

/// Who sent or received something so recently looks often by itself.
pub const QUIET: Duration = Duration::from_millis(50);
/// Messages that nobody rang for, one after the other, until looks are close again.
const MISSED_MAX: u32 = 3;
/// The secret, and the rank of who rings.
const DATAGRAM: usize = size_of::<EpochSecret>() + size_of::<u32>();
/// The thread that rings has nothing else to do.
const WAIT: Duration = Duration::from_hours(1);
/// After an error that may come again at once.
const PAUSE: Duration = Duration::from_millis(100);

/// Whether a coordinator may rely on being rung.
#[derive(Debug, Default)]
pub struct Trust {
    was_rung: bool,
    missed: u32,
}

impl Trust {
    /// The bell rang.
    pub fn rung(&mut self) {
        (self.was_rung, self.missed) = (true, 0);
    }

    /// A look found a message when nothing had happened for long.
    pub fn missed(&mut self) {
        self.missed = self.missed.saturating_add(1);
    }

    /// It may.
    pub fn holds(&self) -> bool {
        self.was_rung && self.missed < MISSED_MAX
    }
}

/// Who has to be rung.
#[derive(Debug)]
struct Contacts(Vec<Option<Instant>>);

impl Contacts {
    /// Something passed between this node and `other`; true if both may have been asleep before.
    fn touch(&mut self, other: NodeRank, now: Instant) -> bool {
        let Some(last) = usize::try_from(other.0).ok().and_then(|at| self.0.get_mut(at)) else {
            return false;
        };
        let before = last.replace(now);
        before.is_none_or(|before| now.saturating_duration_since(before) > QUIET)
    }
}

/// A socket that others can ring at.
#[derive(Debug)]
pub struct Bell {
    socket: UdpSocket,
    port: u16,
}

impl Bell {
    /// Opens it at any port that is free.
    ///
    /// # Errors
    /// There is no such socket.
    pub fn begin() -> io::Result<Self> {
        let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0));
        let socket = UdpSocket::bind(any).or_else(|_| UdpSocket::bind(("0.0.0.0", 0)))?;
        let port = socket.local_addr()?.port();
        Ok(Self { socket, port })
    }

    /// Where.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Calls `rung` at each ring from now on, in a thread, to the process's end.
    ///
    /// # Errors
    /// There is no socket or thread for it.
    pub fn hang(
        self,
        me: NodeRank,
        opening: &Opening,
        rung: impl Fn() + Send + 'static,
    ) -> io::Result<Ringer> {
        let doors = Arc::new(Doors {
            socket: self.socket.try_clone()?,
            hosts: opening.hosts.iter().cloned().zip(opening.bell_ports.iter().copied()).collect(),
            known: Mutex::leaf(vec![Door::Unknown; opening.hosts.len()]),
        });
        let (wanted, contacts) = (Inbox::new(), Contacts(vec![None; opening.hosts.len()]));
        let thread = |name: &str| std::thread::Builder::new().name(name.to_owned());
        let (learnt, secret) = (Arc::clone(&doors), opening.secret);
        thread("bell").spawn(move || listen(&self.socket, secret, &learnt, &rung))?;
        let (asked, datagram) = (Inbox::clone(&wanted), datagram(secret, me));
        thread("ringer").spawn(move || {
            loop {
                if let Some(to) = asked.wait(WAIT) {
                    doors.ring(to, &datagram);
                }
            }
        })?;
        Ok(Ringer { wanted, contacts })
    }
}

/// Rings at others.
pub struct Ringer {
    wanted: Inbox<NodeRank>,
    contacts: Contacts,
}

impl Ringer {
    /// One that knows of nobody, and never rings.
    pub fn silent() -> Self {
        Self { wanted: Inbox::new(), contacts: Contacts(Vec::new()) }
    }

    /// A message is about to be sent to `to`: rings if that node may be asleep. Never blocks.
    pub fn sends(&mut self, to: NodeRank) {
        if self.contacts.touch(to, Instant::now()) {
            self.wanted.send(to);
        }
    }

    /// A message has come from there.
    pub fn received(&mut self, from: NodeRank) {
        self.contacts.touch(from, Instant::now());
    }
}

/// Where each node's bell is.
struct Doors {
    socket: UdpSocket,
    hosts: Vec<(String, u16)>,
    /// By rank.
    known: Mutex<Vec<Door>>,
}

/// Where one node's bell is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Door {
    Unknown,
    /// From where it has rung, or by its name.
    At(SocketAddr),
    /// Its name says nothing: it is not asked again, as that may take long and keeps others
    /// waiting.
    Nowhere,
}

impl Doors {
    fn ring(&self, to: NodeRank, datagram: &[u8]) {
        let Ok(at) = usize::try_from(to.0) else { return };
        let known = self.known.lock().get(at).copied();
        let address = match known {
            Some(Door::At(address)) => Some(address),
            Some(Door::Unknown) => self.look_up(at),
            Some(Door::Nowhere) | None => None,
        };
        let Some(address) = address else { return };
        if let Err(error) = self.socket.send_to(datagram, address) {
            tracing::debug!(%to, %error, "its bell cannot be rung");
        }
    }

    fn look_up(&self, at: usize) -> Option<SocketAddr> {
        let (host, port) = self.hosts.get(at).filter(|(_, port)| *port != 0)?;
        let is_v6 = self.socket.local_addr().is_ok_and(|own| own.is_ipv6());
        let mut addresses = (host.as_str(), *port).to_socket_addrs().into_iter().flatten();
        let address = addresses.find_map(|address| reachable(address, is_v6));
        self.learn(at, address.map_or(Door::Nowhere, Door::At));
        address
    }

    fn learn(&self, at: usize, door: Door) {
        if let Some(known) = self.known.lock().get_mut(at) {
            *known = door;
        }
    }
}

/// The address as a socket of that family sends to it.
fn reachable(address: SocketAddr, is_v6: bool) -> Option<SocketAddr> {
    match address.ip() {
        IpAddr::V4(ip) if is_v6 => Some(SocketAddr::from((ip.to_ipv6_mapped(), address.port()))),
        IpAddr::V6(_) if !is_v6 => None,
        _ => Some(address),
    }
}

fn datagram(secret: EpochSecret, me: NodeRank) -> [u8; DATAGRAM] {
    let mut bytes = [0; DATAGRAM];
    let (first, last) = bytes.split_at_mut(size_of::<EpochSecret>());
    first.copy_from_slice(&secret.0);
    last.copy_from_slice(&me.0.to_le_bytes());
    bytes
}

/// Who rang; `None`: a stranger.
fn rank_in(datagram: &[u8], secret: EpochSecret) -> Option<NodeRank> {
    let (said, rank) = datagram.split_at_checked(size_of::<EpochSecret>())?;
    let rank = NodeRank(u32::from_le_bytes(rank.try_into().ok()?));
    secret.is_said(said).then_some(rank)
}

fn listen(socket: &UdpSocket, secret: EpochSecret, doors: &Doors, rung: &impl Fn()) {
    // One byte more, so that a longer datagram is none of ours.
    let mut buffer = [0; DATAGRAM + 1];
    loop {
        match socket.recv_from(&mut buffer) {
            Ok((bytes, from)) => {
                let said = buffer.get(..bytes).unwrap_or_default();
                if let Some(rank) = rank_in(said, secret) {
                    doors.learn(usize::try_from(rank.0).unwrap_or(usize::MAX), Door::At(from));
                    rung();
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => {
                tracing::debug!(%error, "the bell is deaf for a moment");
                std::thread::sleep(PAUSE);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use scrfs::control::Start;
    use scrfs::ids::Epoch;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(20);

    #[test]
    fn looks_are_rare_only_while_the_bell_is_heard() {
        let mut trust = Trust::default();
        assert!(!trust.holds(), "nobody has ever rung");
        trust.rung();
        trust.missed();
        trust.missed();
        assert!(trust.holds());
        trust.missed();
        assert!(!trust.holds());
        trust.rung();
        assert!(trust.holds());
    }

    #[test]
    fn nobody_is_rung_who_is_awake() {
        let mut contacts = Contacts(vec![None; 2]);
        let (now, ms) = (Instant::now(), Duration::from_millis);
        let steps = [(0, 0, true), (0, 50, false), (1, 50, true), (0, 100, false), (0, 151, true)];
        for (rank, at, rings) in steps {
            assert_eq!(contacts.touch(NodeRank(rank), now + ms(at)), rings, "{rank} at {at}");
        }
        assert!(!contacts.touch(NodeRank(7), now), "there is no such node");
    }

    #[test]
    fn a_ring_is_heard_and_a_strangers_is_not() {
        let bells = [Bell::begin().unwrap(), Bell::begin().unwrap()];
        let opening = Opening {
            epoch: Epoch(1),
            hosts: vec!["127.0.0.1".to_owned(), "127.0.0.1".to_owned()],
            groups: crate::groups::FailureGroups::default(),
            watch_ports: vec![0, 0],
            bell_ports: bells.iter().map(Bell::port).collect(),
            secret: EpochSecret([7; 16]),
            start: Start::Attach,
            fanout: 16,
            settings: crate::settings::tests::settings(),
            notes: Vec::new(),
        };
        let port = opening.bell_ports[1];
        let mut hung = bells.into_iter().zip(0..).map(|(bell, rank)| {
            let (tell, told) = mpsc::channel();
            let rung = move || tell.send(()).unwrap();
            (bell.hang(NodeRank(rank), &opening, rung).unwrap(), told)
        });
        let ((mut first, told_first), (mut second, told_second)) =
            (hung.next().unwrap(), hung.next().unwrap());
        let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
        let own = datagram(opening.secret, NodeRank(0));
        let guessed = datagram(EpochSecret([8; 16]), NodeRank(0));
        for said in [&[][..], &own[..19], &[&own[..], &[0]].concat(), &guessed] {
            stranger.send_to(said, ("127.0.0.1", port)).unwrap();
        }
        first.sends(NodeRank(1));
        told_second.recv_timeout(LIMIT).unwrap();
        // The second has learnt from where it was rung.
        second.sends(NodeRank(0));
        told_first.recv_timeout(LIMIT).unwrap();
        assert!(told_second.try_recv().is_err(), "strangers have not been heard");
    }
}

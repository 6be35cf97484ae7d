//! Ranks of one process over channels: the transport of tests.
//!
//! Each message is late by a time drawn from the seed; order within a lane between two ranks holds.
//! A killed rank gets [`CommError::Killed`], the others [`CommError::PeerLost`], as MPI's launcher
//! would end them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, unbounded};
use scrfs::ids::NodeRank;

use super::buffers::Buffers;
use super::{BULK_BYTES_MAX, CommError, Lane, Received, Transport, check};

/// Sessions are counted modulo this.
const SESSIONS: u32 = 4;
/// No rank was killed.
const NONE: u32 = u32::MAX;

struct Flying {
    due: Instant,
    session: u32,
    message: Received,
}

#[derive(Default)]
struct Shared {
    /// Bulk bytes on their way, by sending rank.
    flying: Vec<AtomicUsize>,
    /// The most that `flying` ever was, over all ranks.
    peak: AtomicUsize,
    killed: AtomicU32,
    /// The rank that is killed by its next bulk message once it has sent so many bytes of them.
    doomed: AtomicU32,
    sent_at_death: AtomicUsize,
}

/// One simulated rank.
pub struct SimTransport {
    rank: NodeRank,
    to: Vec<Sender<Flying>>,
    arriving: Receiver<Flying>,
    /// By sender and lane, in order of sending.
    waiting: BTreeMap<(NodeRank, bool), VecDeque<Flying>>,
    /// Latest due time by receiver and lane, so that delays keep the order.
    last_due: BTreeMap<(NodeRank, bool), Instant>,
    shared: Arc<Shared>,
    random: u64,
    max_delay: Duration,
    /// Bulk bytes so far.
    sent: usize,
    buffers: Buffers,
    session: u32,
    /// Of who is in the next session already.
    ahead: VecDeque<Received>,
    here: VecDeque<Received>,
}

/// Kills one rank of a world, and looks at it.
#[derive(Clone)]
pub struct SimControl {
    shared: Arc<Shared>,
}

impl SimControl {
    /// Ends `rank`: its next call fails, those of the others soon after.
    pub fn kill(&self, rank: NodeRank) {
        self.shared.killed.store(rank.0, Ordering::SeqCst);
    }

    /// Ends `rank` by itself with the bulk message after its first `bytes`: at the same step of its
    /// job in each run.
    pub fn kill_when_sent(&self, rank: NodeRank, bytes: usize) {
        self.shared.sent_at_death.store(bytes, Ordering::SeqCst);
        self.shared.doomed.store(rank.0, Ordering::SeqCst);
    }

    /// The most bulk bytes that one rank ever had on their way.
    pub fn peak_bytes(&self) -> usize {
        self.shared.peak.load(Ordering::SeqCst)
    }
}

/// Makes `size` connected ranks. Messages take up to `max_delay`, drawn from `seed`.
pub fn world(size: u32, seed: u64, max_delay: Duration) -> (Vec<SimTransport>, SimControl) {
    let shared = Arc::new(Shared {
        flying: (0..size).map(|_| AtomicUsize::new(0)).collect(),
        peak: AtomicUsize::new(0),
        killed: AtomicU32::new(NONE),
        doomed: AtomicU32::new(NONE),
        sent_at_death: AtomicUsize::new(0),
    });
    let (senders, receivers): (Vec<_>, Vec<_>) = (0..size).map(|_| unbounded()).unzip();
    let ranks = receivers
        .into_iter()
        .zip(0..)
        .map(|(arriving, rank)| SimTransport {
            rank: NodeRank(rank),
            to: senders.clone(),
            arriving,
            waiting: BTreeMap::new(),
            last_due: BTreeMap::new(),
            shared: Arc::clone(&shared),
            random: (seed ^ (u64::from(rank) << 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            max_delay,
            sent: 0,
            buffers: Buffers::default(),
            session: 0,
            ahead: VecDeque::new(),
            here: VecDeque::new(),
        })
        .collect();
    (ranks, SimControl { shared })
}

impl SimTransport {
    fn delay(&mut self) -> Duration {
        // xorshift64: any spread will do, as long as the seed decides it.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let micros = u64::try_from(self.max_delay.as_micros()).unwrap_or(u64::MAX);
        Duration::from_micros(self.random % micros.saturating_add(1).max(1))
    }

    fn alive(&self) -> Result<(), CommError> {
        match self.shared.killed.load(Ordering::SeqCst) {
            NONE => Ok(()),
            rank if rank == self.rank.0 => Err(CommError::Killed),
            rank => Err(CommError::PeerLost(NodeRank(rank))),
        }
    }

    fn die_if_doomed(&self) {
        let doomed = self.shared.doomed.load(Ordering::SeqCst) == self.rank.0;
        if doomed && self.sent >= self.shared.sent_at_death.load(Ordering::SeqCst) {
            self.shared.killed.store(self.rank.0, Ordering::SeqCst);
        }
    }

    fn sent_by(&self, rank: NodeRank) -> Option<&AtomicUsize> {
        self.shared.flying.get(rank.0 as usize)
    }
}

impl Transport for SimTransport {
    fn rank(&self) -> NodeRank {
        self.rank
    }

    fn size(&self) -> u32 {
        u32::try_from(self.to.len()).unwrap_or(u32::MAX)
    }

    fn send(&mut self, to: NodeRank, lane: Lane, bytes: impl Into<Arc<Vec<u8>>>) -> Result<(), CommError> {
        let bytes = Arc::unwrap_or_clone(bytes.into());
        check(to, self.size(), bytes.len())?;
        if lane == Lane::Bulk {
            self.die_if_doomed();
            self.sent += bytes.len();
        }
        self.alive()?;
        let mut due = Instant::now() + self.delay();
        if let Some(last) = self.last_due.get(&(to, lane == Lane::Bulk)) {
            due = due.max(*last);
        }
        self.last_due.insert((to, lane == Lane::Bulk), due);
        if lane == Lane::Bulk
            && let Some(flying) = self.sent_by(self.rank)
        {
            let now = flying.fetch_add(bytes.len(), Ordering::SeqCst) + bytes.len();
            self.shared.peak.fetch_max(now, Ordering::SeqCst);
        }
        let message = Received { from: self.rank, lane, bytes };
        let Some(sender) = self.to.get(to.0 as usize) else { return Err(CommError::NoSuchRank(to)) };
        sender.send(Flying { due, session: self.session, message }).map_err(|_| CommError::PeerLost(to))
    }

    fn poll(&mut self) -> Result<Option<Received>, CommError> {
        self.alive()?;
        if let Some(message) = self.here.pop_front() {
            return Ok(Some(message));
        }
        while let Ok(flying) = self.arriving.try_recv() {
            let key = (flying.message.from, flying.message.lane == Lane::Bulk);
            self.waiting.entry(key).or_default().push_back(flying);
        }
        let now = Instant::now();
        let due = |queue: &VecDeque<Flying>| queue.front().is_some_and(|f| f.due <= now);
        let pick = |bulk: bool| {
            self.waiting.iter().filter(|((_, b), _)| *b == bulk).find(|(_, q)| due(q)).map(|(key, _)| *key)
        };
        let Some(key) = pick(false).or_else(|| pick(true)) else { return Ok(None) };
        let Some(flying) = self.waiting.get_mut(&key).and_then(VecDeque::pop_front) else { return Ok(None) };
        if flying.message.lane == Lane::Bulk
            && let Some(counter) = self.sent_by(flying.message.from)
        {
            counter.fetch_sub(flying.message.bytes.len(), Ordering::SeqCst);
        }
        match super::compare(flying.session, self.session, SESSIONS) {
            std::cmp::Ordering::Equal => return Ok(Some(flying.message)),
            std::cmp::Ordering::Greater => self.ahead.push_back(flying.message),
            std::cmp::Ordering::Less => {}
        }
        self.poll()
    }

    fn next_session(&mut self) {
        self.session = (self.session + 1) % SESSIONS;
        self.here = std::mem::take(&mut self.ahead);
    }

    fn buffers(&self) -> &Buffers {
        &self.buffers
    }

    fn has_room(&self) -> bool {
        self.sent_by(self.rank).is_none_or(|bytes| bytes.load(Ordering::SeqCst) < BULK_BYTES_MAX)
    }

    fn is_drained(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait(t: &mut SimTransport) -> Received {
        let end = Instant::now() + Duration::from_mins(1);
        while Instant::now() < end {
            if let Some(message) = t.poll().unwrap() {
                return message;
            }
            std::thread::yield_now();
        }
        panic!("nothing came");
    }

    #[test]
    fn order_holds_within_a_lane_whatever_the_delays() {
        let (mut ranks, _) = world(2, 7, Duration::from_millis(2));
        let mut receiver = ranks.pop().unwrap();
        let mut sender = ranks.pop().unwrap();
        for n in 0..100u8 {
            sender.send(NodeRank(1), if n % 2 == 0 { Lane::Control } else { Lane::Bulk }, vec![n]).unwrap();
        }
        let got: Vec<_> = (0..100).map(|_| wait(&mut receiver)).collect();
        let lane = |l| got.iter().filter(|m| m.lane == l).map(|m| m.bytes[0]).collect::<Vec<_>>();
        assert!(lane(Lane::Control).is_sorted() && lane(Lane::Bulk).is_sorted());
    }

    #[test]
    fn a_killed_rank_is_noticed_by_all() {
        let (mut ranks, control) = world(3, 1, Duration::ZERO);
        control.kill(NodeRank(1));
        assert_eq!(ranks[1].poll(), Err(CommError::Killed));
        assert_eq!(ranks[2].poll(), Err(CommError::PeerLost(NodeRank(1))));
        assert_eq!(
            ranks[0].send(NodeRank(9), Lane::Control, vec![]),
            Err(CommError::NoSuchRank(NodeRank(9)))
        );
    }

    #[test]
    fn no_message_comes_in_another_session_than_its_own() {
        let (mut ranks, _) = world(2, 3, Duration::ZERO);
        let mut receiver = ranks.pop().unwrap();
        let mut sender = ranks.pop().unwrap();
        for session in 0..10_u8 {
            sender.send(NodeRank(1), Lane::Control, vec![session]).unwrap();
            sender.send(NodeRank(1), Lane::Bulk, vec![session]).unwrap();
            assert_eq!(wait(&mut receiver).bytes, [session], "of the bulk lane it is never taken");
            sender.next_session();
            if session % 2 == 0 {
                // It waits until the receiver is there too.
                sender.send(NodeRank(1), Lane::Control, vec![100 + session]).unwrap();
                assert_eq!(receiver.poll().unwrap().map(|late| late.lane), Some(Lane::Bulk));
                assert_eq!(receiver.poll(), Ok(None));
                receiver.next_session();
                assert_eq!(wait(&mut receiver).bytes, [100 + session]);
            } else {
                receiver.next_session();
            }
            assert_eq!(receiver.poll(), Ok(None));
        }
    }
}

//! Blocks between the shares of one job, with bounded credits.
//!
//! A worker sends and receives by blocking calls on its [`Peers`]; the transport's thread moves
//! blocks and credits between [`Exchange`]s and never blocks. A sender may be [`WINDOW`] blocks
//! ahead of its receiver's consumption, or fewer ([`Peers::within`]), so that memory is bounded
//! whatever the data. When one share fails, every wait of every share of the job ends.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use scrfs::control::Reason;
use scrfs::ids::NodeRank;
use scrfs::lock::{Condvar, Mutex};
use scrfs::priority::threads::give_way;

use super::block::{Address, Block, Outgoing, Stream};
use super::error::JobError;
use crate::comm::buffers::Buffers;
use crate::job::JobId;

/// Blocks that one stream may have on their way or unread: enough to cover the transport's latency.
pub const WINDOW: u32 = 8;

/// A wait for a peer that is longer than this without any block or credit ends the job. Far above
/// the slowest disk's hiccup: a frozen peer, not a slow one.
pub const STALL_LIMIT: Duration = Duration::from_mins(2);

/// Hands something to the transport's thread. Never blocks.
pub type Emit = Arc<dyn Fn(Outgoing) + Send + Sync>;

#[derive(Default)]
struct State {
    arrived: BTreeMap<Stream, VecDeque<Block>>,
    /// Blocks sent and not yet consumed.
    ahead: BTreeMap<Stream, u32>,
    failure: Option<Reason>,
    /// It was ended from elsewhere: by another node's share, or with the coordinator.
    aborted: bool,
}

/// All streams of one job at one node.
pub struct Exchange {
    job: JobId,
    /// Where each share runs, by position.
    nodes: Vec<NodeRank>,
    state: Mutex<State>,
    changed: Condvar,
    emit: Emit,
    buffers: Buffers,
}

impl Exchange {
    /// The streams of `job`, whose shares run on `nodes`.
    pub fn new(job: JobId, nodes: Vec<NodeRank>, emit: Emit, buffers: Buffers) -> Arc<Self> {
        Arc::new(Self { job, nodes, state: Mutex::default(), changed: Condvar::default(), emit, buffers })
    }

    /// A block came.
    pub fn arrived(&self, stream: Stream, block: Block) {
        let mut state = self.state.lock();
        let queue = state.arrived.entry(stream).or_default();
        if queue.len() >= WINDOW as usize {
            state
                .failure
                .get_or_insert_with(|| format!("share {} sent more than its credit", stream.from).into());
        } else {
            queue.push_back(block);
        }
        self.changed.notify_all();
    }

    /// A block that was sent from here was consumed.
    pub fn credited(&self, stream: Stream) {
        let mut state = self.state.lock();
        let ahead = state.ahead.entry(stream).or_default();
        *ahead = ahead.saturating_sub(1);
        self.changed.notify_all();
    }

    /// Ends every wait, now and later. The first reason stays.
    pub fn fail(&self, reason: Reason) {
        self.state.lock().failure.get_or_insert(reason);
        self.changed.notify_all();
    }

    /// The same, told by another node or at the coordinator's end.
    pub fn abort(&self, reason: Reason) {
        self.state.lock().aborted = true;
        self.fail(reason);
    }

    /// Why the job was ended, if it was.
    pub fn failure(&self) -> Option<Reason> {
        self.state.lock().failure.clone()
    }

    /// Waits until the job is ended from elsewhere, whatever has failed here, or `limit` has
    /// passed.
    pub fn await_abort(&self, limit: Duration) {
        let mut state = self.state.lock();
        let end = Instant::now() + limit;
        while !state.aborted && self.changed.wait_until(&mut state, end) {}
    }

    fn node(&self, position: u32) -> Result<NodeRank, JobError> {
        let missing = || JobError::Protocol { from: position, what: "nothing: it does not exist".to_owned() };
        self.nodes.get(position as usize).copied().ok_or_else(missing)
    }

    /// Waits until `take` gives something; ends with the job's failure or when nothing changes for
    /// [`STALL_LIMIT`].
    fn wait<T>(&self, peer: u32, mut take: impl FnMut(&mut State) -> Option<T>) -> Result<T, JobError> {
        let mut state = self.state.lock();
        let mut end = Instant::now() + STALL_LIMIT;
        loop {
            if let Some(reason) = &state.failure {
                return Err(JobError::Aborted(reason.clone()));
            }
            if let Some(taken) = take(&mut state) {
                return Ok(taken);
            }
            if !self.changed.wait_until(&mut state, end) {
                return Err(JobError::Stalled(peer, STALL_LIMIT.as_secs()));
            }
            end = Instant::now() + STALL_LIMIT;
        }
    }
}

/// One share's end of the streams.
#[derive(Clone)]
pub struct Peers {
    exchange: Arc<Exchange>,
    me: u32,
    strip: u32,
    window: u32,
}

impl Peers {
    /// The end of the share at position `me`.
    pub fn new(exchange: Arc<Exchange>, me: u32) -> Self {
        Self { exchange, me, strip: 0, window: WINDOW }
    }

    /// The same, with fewer blocks on their way to each of the others; at least one.
    #[must_use]
    pub fn within(&self, window: u32) -> Self {
        Self { window: window.clamp(1, WINDOW), ..self.clone() }
    }

    /// The same for another strip: with streams of its own.
    #[must_use]
    pub fn of_strip(&self, strip: u32) -> Self {
        Self { strip, ..self.clone() }
    }

    /// This share's position.
    pub fn me(&self) -> u32 {
        self.me
    }

    /// Sends a block to share `to`, when there is credit.
    pub fn send(&self, to: u32, block: impl Into<Arc<Vec<u8>>>) -> Result<(), JobError> {
        let stream = Stream { from: self.me, to, strip: self.strip };
        let node = self.exchange.node(to)?;
        self.exchange.wait(to, |state| {
            let ahead = state.ahead.entry(stream).or_default();
            (*ahead < self.window).then(|| *ahead += 1)
        })?;
        let address = Address { job: self.exchange.job, stream };
        (self.exchange.emit)(Outgoing::Block { node, address, bytes: block.into() });
        give_way();
        Ok(())
    }

    /// The next block of share `from`; it must have `len` bytes.
    pub fn recv(&self, from: u32, len: usize) -> Result<Block, JobError> {
        let stream = Stream { from, to: self.me, strip: self.strip };
        let node = self.exchange.node(from)?;
        let block = self.exchange.wait(from, |state| state.arrived.get_mut(&stream)?.pop_front())?;
        if block.payload().len() != len {
            let what = format!("a block of {} bytes where {len} were due", block.payload().len());
            return Err(JobError::Protocol { from, what });
        }
        (self.exchange.emit)(Outgoing::Credit { node, job: self.exchange.job, stream });
        give_way();
        Ok(block)
    }

    /// What blocks are made of.
    pub fn buffers(&self) -> &Buffers {
        &self.exchange.buffers
    }

    /// Ends every wait of the job at this node.
    pub fn fail(&self, reason: Reason) {
        self.exchange.fail(reason);
    }

    /// Fails when the job was ended: for long work that does not wait for peers.
    pub fn check(&self) -> Result<(), JobError> {
        self.exchange.failure().map_or(Ok(()), |reason| Err(JobError::Aborted(reason)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sender_stops_at_its_window_and_goes_on_with_credit() {
        let (out, sent) = crossbeam_channel::unbounded();
        let emit: Emit = Arc::new(move |o| drop(out.send(o)));
        let exchange = Exchange::new(JobId(1), vec![NodeRank(0), NodeRank(1)], emit, Buffers::default());
        let peers = Peers::new(Arc::clone(&exchange), 0);
        let worker = std::thread::spawn(move || {
            (0..=WINDOW).try_for_each(|_| peers.send(1, Block::zeroed(1)))?;
            peers.recv(1, 1)
        });
        let stream = Stream { from: 0, to: 1, strip: 0 };
        for _ in 0..WINDOW {
            sent.recv_timeout(Duration::from_mins(1)).unwrap();
        }
        assert!(sent.recv_timeout(Duration::from_millis(50)).is_err(), "beyond its window");
        exchange.credited(stream);
        sent.recv_timeout(Duration::from_mins(1)).unwrap();
        exchange.fail("the link is lost".into());
        let error = worker.join().unwrap().unwrap_err();
        assert_eq!(error.to_string(), "ended by others: the link is lost");
    }

    #[test]
    fn more_than_the_window_ends_the_job() {
        let exchange =
            Exchange::new(JobId(1), vec![NodeRank(0), NodeRank(1)], Arc::new(|_| ()), Buffers::default());
        let stream = Stream { from: 1, to: 0, strip: 0 };
        for _ in 0..=WINDOW {
            exchange.arrived(stream, Block::zeroed(1));
        }
        assert!(exchange.failure().is_some());
        assert!(Peers::new(exchange, 0).recv(1, 1).is_err());
    }
}

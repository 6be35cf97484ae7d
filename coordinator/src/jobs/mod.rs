//! Jobs at one node: each share runs in worker threads, its blocks travel through the transport's
//! thread.
//!
//! [`Jobs`] is that thread's side: it starts shares, sorts blocks and credits to them, tells them
//! when others failed. The worker's side in reading order: [`streams`] (blocks with credits),
//! [`link`] (the daemon's descriptors), [`files`] (members' files as one logical file), [`header`]
//! (a set's record), `redundancy_file`, [`plan`] (how blocks are cut), [`encode`], `target`
//! (a member that is rebuilt), [`rebuild`], `copies` (the same with PARTNER), [`send`].

pub mod block;
mod copies;
pub mod encode;
pub mod error;
pub mod files;
pub mod header;
pub mod link;
pub mod plan;
pub mod rebuild;
mod redundancy_file;
pub mod send;
pub mod streams;
mod target;

#[cfg(test)]
mod testbed;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::thread::ScopedJoinHandle;
use std::time::Duration;

use scrfs::control::{JobRules, Reason};
use scrfs::ids::NodeRank;

use self::block::{Block, Outgoing, Stream};
use self::error::JobError;
use self::link::{Connector, Daemon};
use self::streams::{Emit, Exchange, Peers};
pub use self::streams::{STALL_LIMIT, WINDOW};
use crate::comm::buffers::Buffers;
use crate::job::{Job, JobFailure, JobId, JobOutput, JobResult};

/// Largest block. With [`WINDOW`] it bounds a job's memory; an encode has a bound of its own
/// ([`plan::Pace`]).
const BLOCK_BYTES_MAX: usize = 16 << 20;
/// Ended jobs that are remembered, so that their late messages are dropped and not kept for a start
/// that never comes.
const ENDED_MAX: usize = 4096;
/// Messages kept for jobs whose start has not come yet: more than come to a member of the largest
/// set before its others wait for it.
const EARLY_MAX: usize = 16_384;

/// A daemon that is gone is known to the coordinator's own thread by then, which ends the epoch
/// with all its jobs.
const LOST_LINK_HOLD: Duration = Duration::from_secs(5);

/// A message that overtook the start of its job: peers may be faster than the lead.
enum Early {
    Block(Stream, Block),
    Abort(Reason),
}

/// The jobs that have a share at this node.
pub struct Jobs {
    me: NodeRank,
    rules: JobRules,
    connect: Connector,
    emit: Emit,
    buffers: Buffers,
    running: BTreeMap<JobId, Arc<Exchange>>,
    early: BTreeMap<JobId, Vec<Early>>,
    ended: VecDeque<JobId>,
}

impl Jobs {
    /// None yet. `rules` are the job's settings, the same on all nodes.
    pub fn new(me: NodeRank, rules: JobRules, connect: Connector, emit: Emit, buffers: Buffers) -> Self {
        let (running, early, ended) = Default::default();
        Self { me, rules, connect, emit, buffers, running, early, ended }
    }

    /// True while a share runs here.
    pub fn busy(&self) -> bool {
        !self.running.is_empty()
    }

    /// Starts this node's shares of a job; each start is answered by one [`Outgoing::Ended`].
    pub fn start(&mut self, id: JobId, job: Job) {
        let nodes = job.nodes();
        let exchange = Exchange::new(id, nodes.clone(), Arc::clone(&self.emit), self.buffers.clone());
        for early in self.early.remove(&id).unwrap_or_default() {
            match early {
                Early::Block(stream, block) => exchange.arrived(stream, block),
                Early::Abort(reason) => exchange.abort(reason),
            }
        }
        self.running.insert(id, Arc::clone(&exchange));
        let mut peers: Vec<_> = nodes.iter().copied().filter(|n| *n != self.me).collect();
        peers.sort_unstable();
        peers.dedup();
        let here = (0..).zip(nodes).filter(|(_, node)| *node == self.me).map(|(at, _)| at).collect();
        let shares = Shares { here, job, exchange, connect: Arc::clone(&self.connect), rules: self.rules };
        let emit = Arc::clone(&self.emit);
        let ended = peers.clone();
        let spawned = std::thread::Builder::new().name(format!("job-{}", id.0)).spawn(move || {
            let result = shares.run();
            emit(Outgoing::Ended { job: id, result, peers });
        });
        if let Err(error) = spawned {
            let result = Err(JobFailure::passing(format!("no thread for job {}: {error}", id.0)));
            (self.emit)(Outgoing::Ended { job: id, result, peers: ended });
        }
    }

    /// A block came.
    pub fn arrived(&mut self, id: JobId, stream: Stream, block: Block) {
        match self.running.get(&id) {
            Some(exchange) => exchange.arrived(stream, block),
            None => self.keep(id, Early::Block(stream, block)),
        }
    }

    /// A block that a share here sent was consumed.
    pub fn credited(&mut self, id: JobId, stream: Stream) {
        if let Some(exchange) = self.running.get(&id) {
            exchange.credited(stream);
        }
    }

    /// A share elsewhere failed.
    pub fn abort(&mut self, id: JobId, reason: Reason) {
        match self.running.get(&id) {
            Some(exchange) => exchange.abort(reason),
            None => self.keep(id, Early::Abort(reason)),
        }
    }

    /// Ends all shares here.
    pub fn abort_all(&self, reason: &str) {
        self.running.values().for_each(|exchange| exchange.abort(reason.into()));
    }

    /// An [`Outgoing::Ended`] was taken note of.
    pub fn ended(&mut self, id: JobId) {
        self.running.remove(&id);
        self.ended.push_back(id);
        if self.ended.len() > ENDED_MAX {
            self.ended.pop_front();
        }
    }

    fn keep(&mut self, id: JobId, message: Early) {
        if self.ended.contains(&id) {
            return;
        }
        if self.early.values().map(Vec::len).sum::<usize>() >= EARLY_MAX {
            tracing::warn!(job = id.0, "too many messages for jobs that were not started; one is dropped");
            return;
        }
        self.early.entry(id).or_default().push(message);
    }
}

/// The shares of one job at this node. There are several in a rebuild onto a node that has, or
/// gets, other members of the set, and in a send whose holder is the asker.
struct Shares {
    here: Vec<u32>,
    job: Job,
    exchange: Arc<Exchange>,
    connect: Connector,
    rules: JobRules,
}

impl Shares {
    fn run(&self) -> JobResult {
        let mut output = JobOutput::Done;
        let mut failure: Option<JobError> = None;
        let (mut bad, mut moved) = (Vec::new(), false);
        for (at, result) in self.results() {
            moved |= result.as_ref().is_err_and(JobError::is_moved);
            bad.extend(result.as_ref().is_err_and(|error| self.is_bad(at, error)).then_some(at));
            match result {
                Ok(part @ JobOutput::Part(_)) => output = part,
                // The share that failed by itself says why, not the one that it took along.
                Err(error) if matches!(failure, None | Some(JobError::Aborted(_))) => failure = Some(error),
                Ok(JobOutput::Done) | Err(_) => {}
            }
        }
        failure.map_or(Ok(output), |error| {
            Err(JobFailure { reason: error.reason(), bad, moved, full: error.no_room() })
        })
    }

    /// How each share has ended. They run at the same time; a single one in this thread.
    fn results(&self) -> Vec<(u32, Result<JobOutput, JobError>)> {
        if let [at] = self.here[..] {
            return vec![(at, self.share(at))];
        }
        std::thread::scope(|scope| {
            let begun = |at: &u32| {
                let at = *at;
                let thread = encode::begin(scope, move || self.share(at));
                // All others wait for this one.
                thread.inspect_err(|error| self.peers(at).fail(error.reason()))
            };
            let threads: Vec<_> = self.here.iter().map(|at| (*at, begun(at))).collect();
            let ended = |thread: ScopedJoinHandle<'_, _>| thread.join().unwrap_or_else(|_| Err(panicked()));
            threads.into_iter().map(|(at, thread)| (at, thread.and_then(ended))).collect()
        })
    }

    /// The share at this position failed because sealed data is gone or wrong.
    fn is_bad(&self, at: u32, error: &JobError) -> bool {
        match &self.job {
            // What the survivors gave was as sealed, so what is wrong is the parity.
            Job::Rebuild { lost, .. } if lost.contains(&at) => matches!(error, JobError::Crc { .. }),
            Job::Encode { .. } => error.is_not_as_sealed(),
            Job::Rebuild { .. } => error.is_bad_data(),
            Job::Send { .. } => at == send::HOLDER && error.is_bad_data(),
        }
    }

    /// Bytes of a block, at most.
    fn block(&self) -> usize {
        let bytes = usize::try_from(self.rules.block_bytes).unwrap_or(BLOCK_BYTES_MAX);
        bytes.clamp(1, BLOCK_BYTES_MAX)
    }

    fn peers(&self, at: u32) -> Peers {
        Peers::new(Arc::clone(&self.exchange), at)
    }

    fn share(&self, at: u32) -> Result<JobOutput, JobError> {
        let peers = self.peers(at);
        let result = peers.check().and_then(|()| {
            let daemon = Daemon::connect(&self.connect)?;
            match &self.job {
                Job::Encode { .. } => {
                    let most = encode::Most { block: self.block(), strips: self.rules.encode_threads };
                    encode::run(&self.job, most, &daemon, &peers)
                }
                Job::Rebuild { catalog, set, lost } => {
                    rebuild::run(&rebuild::Task { catalog, set, lost }, self.block(), &daemon, &peers)
                }
                Job::Send { file, size, crc, .. } => {
                    let parcel = send::Parcel { file, size: *size, crc: *crc, block: self.block() };
                    send::run(&parcel, &daemon, &peers)
                }
            }
        });
        if matches!(result, Err(JobError::Link(_))) {
            // The lead must not take the job for one that failed by itself: after the next attach
            // it goes on. The share's own threads have ended one another by now, of which nobody
            // else has heard.
            self.exchange.await_abort(LOST_LINK_HOLD);
        }
        if let Err(error) = &result {
            peers.fail(error.reason());
        }
        result
    }
}

fn panicked() -> JobError {
    JobError::Aborted("a worker thread panicked".into())
}

//! Jobs as coordinators do them: the real shares over the real bytes, from the start to the end of
//! all of them at once, or to the death of a worker or of the coordinators.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crossbeam_channel::{Sender, unbounded};
use scrfs::control::server::Service;
use scrfs::control::{DataReply, DataRequest, JobRules, Reason};
use scrfs::daemon::Node;
use scrfs::faults::{self, Died, Fault};
use scrfs::ids::{Epoch, NodeRank};
use scrfs_coordinator::comm::buffers::Buffers;
use scrfs_coordinator::job::{Job, JobId, JobResult};
use scrfs_coordinator::jobs::Jobs;
use scrfs_coordinator::jobs::block::{Address, Block, Outgoing};
use scrfs_coordinator::jobs::link::{Connector, DataLink};

/// Longer than any job here takes.
const LIMIT: Duration = Duration::from_mins(1);

/// What happens in the middle of a job.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Hazard {
    None,
    /// In the first request from this one on, of that node, that passes so many fault points.
    Fault {
        rank: NodeRank,
        request: usize,
        points: u32,
        fault: Fault,
    },
    /// The coordinators die at this message.
    Stop(usize),
}

/// How it ended.
pub(crate) enum End {
    Over(BTreeMap<NodeRank, JobResult>),
    /// A worker has died, at this fault point.
    Died(NodeRank, &'static str),
    /// The coordinators have.
    Stopped,
}

/// What the threads of a job tell.
enum Told {
    Out(NodeRank, Outgoing),
    Died(NodeRank, &'static str),
}

/// A node as the job's threads there meet it.
struct Line {
    rank: NodeRank,
    node: Arc<Node>,
    epoch: Epoch,
    /// Requests to come before those that may meet the fault, with that.
    armed: Option<(AtomicUsize, u32, Fault)>,
    /// Nobody is asked any more: the worker is dead, or the coordinators are.
    gone: AtomicBool,
    tell: Sender<Told>,
}

/// A data connection without a socket.
struct Direct(Arc<Line>);

impl Line {
    fn arm(&self) {
        let Some((left, points, fault)) = &self.armed else { return };
        let next = |left: usize| Some(left.saturating_sub(1));
        let before = left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, next).unwrap_or_default();
        if before <= 1 {
            faults::arm(*points, *fault);
        }
    }
}

impl DataLink for Direct {
    fn request(&mut self, request: &DataRequest) -> Result<(DataReply, Option<OwnedFd>), Reason> {
        let line = &self.0;
        if line.gone.load(Ordering::SeqCst) {
            return Err("nobody is there any more".into());
        }
        line.arm();
        let outcome = catch_unwind(AssertUnwindSafe(|| line.node.request(line.epoch, request.clone())));
        let is_deadly = line.armed.as_ref().is_some_and(|(.., fault)| *fault == Fault::Death);
        // What fails may also be a step of the coordinator's own in this thread, later on.
        if is_deadly {
            faults::arm(0, Fault::Death);
        }
        outcome.or_else(|panic| match panic.downcast::<Died>() {
            Ok(died) => {
                line.gone.store(true, Ordering::SeqCst);
                let _ = line.tell.send(Told::Died(line.rank, died.0));
                Err("the worker has died".into())
            }
            Err(panic) => resume_unwind(panic),
        })
    }
}

/// Runs a job on its nodes; how each one's shares ended.
pub(crate) fn run(
    id: JobId,
    job: &Job,
    (nodes, epoch): (&[Arc<Node>], Epoch),
    rules: JobRules,
    hazard: Hazard,
) -> End {
    let ranks: BTreeSet<NodeRank> = job.nodes().into_iter().collect();
    let (tell, told) = unbounded();
    let (mut all, mut lines) = (BTreeMap::new(), Vec::new());
    for &rank in &ranks {
        let armed = match hazard {
            Hazard::Fault { rank: of, request, points, fault } if of == rank => {
                Some((AtomicUsize::new(request), points, fault))
            }
            _ => None,
        };
        let (node, gone) = (Arc::clone(&nodes[rank.0 as usize]), AtomicBool::new(false));
        let line = Arc::new(Line { rank, node, epoch, armed, gone, tell: tell.clone() });
        lines.push(Arc::clone(&line));
        let connect: Connector =
            Arc::new(move || Ok(Box::new(Direct(Arc::clone(&line))) as Box<dyn DataLink>));
        let tell = tell.clone();
        let emit = Arc::new(move |out: Outgoing| drop(tell.send(Told::Out(rank, out))));
        let mut jobs = Jobs::new(rank, rules, connect, emit, Buffers::default());
        jobs.start(id, job.clone());
        all.insert(rank, jobs);
    }
    let mut results = BTreeMap::new();
    let (mut messages, mut end) = (0, None);
    while results.len() < ranks.len() {
        let told = told.recv_timeout(LIMIT).expect("a share that ends");
        messages += 1;
        if matches!(hazard, Hazard::Stop(at) if at == messages) {
            for line in &lines {
                line.gone.store(true, Ordering::SeqCst);
            }
            end = Some(End::Stopped);
            for jobs in all.values() {
                jobs.abort_all("the coordinators are gone");
            }
        }
        match told {
            Told::Died(rank, point) => {
                end = Some(End::Died(rank, point));
                for jobs in all.values() {
                    jobs.abort_all("a worker is gone");
                }
            }
            Told::Out(_, Outgoing::Block { node, address: Address { job, stream }, bytes }) => {
                let block = Block::received(bytes.to_vec());
                all.get_mut(&node).expect("takes part").arrived(job, stream, block);
            }
            Told::Out(_, Outgoing::Credit { node, job, stream }) => {
                all.get_mut(&node).expect("takes part").credited(job, stream);
            }
            Told::Out(from, Outgoing::Ended { job, result, peers }) => {
                if let Err(failure) = &result {
                    for peer in peers {
                        all.get_mut(&peer).expect("takes part").abort(job, failure.reason.clone());
                    }
                }
                results.insert(from, result);
            }
        }
    }
    end.unwrap_or(End::Over(results))
}

//! Jobs as coordinators do them: the real shares over the real bytes, from the start to the end of
//! all of them at once.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::unbounded;
use scrfs::control::server::Service;
use scrfs::control::{DataReply, DataRequest, JobRules, Reason};
use scrfs::daemon::Node;
use scrfs::ids::{Epoch, NodeRank};
use scrfs_coordinator::comm::buffers::Buffers;
use scrfs_coordinator::job::{Job, JobId, JobResult};
use scrfs_coordinator::jobs::Jobs;
use scrfs_coordinator::jobs::block::{Address, Block, Outgoing};
use scrfs_coordinator::jobs::link::{Connector, DataLink};

/// Longer than any job here takes.
const LIMIT: Duration = Duration::from_mins(1);

/// A data connection without a socket.
struct Direct {
    node: Arc<Node>,
    epoch: Epoch,
}

impl DataLink for Direct {
    fn request(&mut self, request: &DataRequest) -> Result<(DataReply, Option<OwnedFd>), Reason> {
        Ok(self.node.request(self.epoch, request.clone()))
    }
}

/// Runs a job on its nodes; how each one's shares ended.
pub(crate) fn run(
    id: JobId,
    job: &Job,
    (nodes, epoch): (&[Arc<Node>], Epoch),
    rules: JobRules,
) -> BTreeMap<NodeRank, JobResult> {
    let ranks: BTreeSet<NodeRank> = job.nodes().into_iter().collect();
    let (tell, told) = unbounded();
    let mut all = BTreeMap::new();
    for rank in &ranks {
        let node = Arc::clone(&nodes[rank.0 as usize]);
        let connect: Connector =
            Arc::new(move || Ok(Box::new(Direct { node: Arc::clone(&node), epoch }) as Box<dyn DataLink>));
        let (tell, from) = (tell.clone(), *rank);
        let emit = Arc::new(move |out: Outgoing| drop(tell.send((from, out))));
        let mut jobs = Jobs::new(*rank, rules, connect, emit, Buffers::default());
        jobs.start(id, job.clone());
        all.insert(*rank, jobs);
    }
    let mut results = BTreeMap::new();
    while results.len() < ranks.len() {
        let (from, out) = told.recv_timeout(LIMIT).expect("a share that ends");
        match out {
            Outgoing::Block { node, address: Address { job, stream }, bytes } => {
                let block = Block::received(bytes.to_vec());
                all.get_mut(&node).expect("takes part").arrived(job, stream, block);
            }
            Outgoing::Credit { node, job, stream } => {
                all.get_mut(&node).expect("takes part").credited(job, stream);
            }
            Outgoing::Ended { job, result, peers } => {
                if let Err(failure) = &result {
                    for peer in peers {
                        all.get_mut(&peer).expect("takes part").abort(job, failure.reason.clone());
                    }
                }
                results.insert(from, result);
            }
        }
    }
    results
}

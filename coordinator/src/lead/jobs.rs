//! Jobs that run for one purpose, and what their shares ended with.

use std::collections::{BTreeMap, BTreeSet};

use scrfs::control::Reason;
use scrfs::ids::NodeRank;

use super::answers::Answers;
use super::cluster::Cluster;
use crate::job::{Job, JobId, JobOutput, JobResult};

/// The end of one node's share of a job.
#[derive(Debug, Clone)]
pub(super) struct ShareEnd {
    pub(super) node: NodeRank,
    pub(super) job: JobId,
    pub(super) result: JobResult,
}

impl ShareEnd {
    /// What it ended with, for a caller that does not wait for the others with it.
    pub(super) fn take_output(&mut self) -> Option<JobOutput> {
        self.result.as_mut().ok().map(|output| std::mem::replace(output, JobOutput::Done))
    }
}

/// The jobs, of which all shares are awaited.
#[derive(Debug, Default)]
pub(super) struct Jobs {
    running: BTreeMap<JobId, Answers<()>>,
    /// Jobs of which shares are awaited.
    open: usize,
    outputs: Vec<(NodeRank, JobOutput)>,
    /// The first, with its host.
    failure: Option<Reason>,
    /// Nodes whose cache had no room.
    full: BTreeSet<NodeRank>,
}

/// How far the jobs are.
#[derive(Debug)]
pub(super) enum Ended {
    /// Shares are awaited.
    Running,
    /// They are, but one has failed.
    Failing(Reason),
    /// None is awaited, one had failed.
    Failed(Reason),
    /// All shares, by the order in which they ended.
    Done(Vec<(NodeRank, JobOutput)>),
}

impl Jobs {
    /// Starts one more.
    pub(super) fn start(&mut self, cluster: &mut Cluster, job: Job) -> JobId {
        let answers = Answers::of(job.nodes());
        self.open += usize::from(!answers.all());
        let id = cluster.start(job);
        self.running.insert(id, answers);
        id
    }

    /// It is one of these.
    pub(super) fn has(&self, job: JobId) -> bool {
        self.running.contains_key(&job)
    }

    /// Nodes whose cache had no room for what was to come there.
    pub(super) fn full(&self) -> &BTreeSet<NodeRank> {
        &self.full
    }

    /// Ends the shares that are awaited: those of other jobs hear of the failure from nobody else.
    pub(super) fn abort(&self, cluster: &mut Cluster, reason: &Reason) {
        for (job, answers) in self.running.iter().filter(|(_, answers)| !answers.all()) {
            cluster.abort(*job, answers.missing().collect(), reason.clone());
        }
    }

    /// A share ended; `None` when it is no share of these jobs.
    pub(super) fn ended(&mut self, cluster: &Cluster, share: ShareEnd) -> Option<Ended> {
        let ShareEnd { node, job, result } = share;
        if self.running.get_mut(&job)?.answered(node, ())? {
            self.open -= 1;
        }
        match result {
            Ok(output) => self.outputs.push((node, output)),
            Err(failure) => {
                if failure.full.is_some() || failure.reason.is_shortage_of_room() {
                    self.full.insert(node);
                }
                self.failure.get_or_insert_with(|| failure.reason.on(cluster.host(node)));
            }
        }
        let all = self.open == 0;
        Some(match &self.failure {
            Some(reason) if all => Ended::Failed(reason.clone()),
            Some(reason) => Ended::Failing(reason.clone()),
            None if all => Ended::Done(std::mem::take(&mut self.outputs)),
            None => Ended::Running,
        })
    }
}

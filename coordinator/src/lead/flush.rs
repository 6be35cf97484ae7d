//! Flushes, one at a time, oldest first: begin, members copy, publish (DESIGN 7). A failure is tried again after a
//! growing delay, in which newer datasets wait too; after the last try the next dataset becomes due.

use std::collections::{BTreeSet, VecDeque};

use scrfs::control::Command;
use scrfs::ids::{DatasetId, NodeRank};

use super::answers::Answers;
use super::cluster::Cluster;
use super::policy::{MS, delay, flush_due};
use crate::pfs::PfsTask;

/// Tries for one dataset.
const TRIES: u32 = 6;

#[derive(Debug)]
enum Step {
    Beginning,
    Copying(Answers<Result<(), String>>),
    Publishing,
    /// Again at this time.
    Waiting(u64),
}

#[derive(Debug)]
struct Flush {
    id: DatasetId,
    tries: u32,
    step: Step,
}

/// The running flush and those that wait.
#[derive(Debug, Default)]
pub(super) struct Flushes {
    queue: VecDeque<DatasetId>,
    current: Option<Flush>,
    /// Not tried again in this epoch.
    given_up: BTreeSet<DatasetId>,
    /// What the prefix has is known, or cannot be known.
    surveyed: bool,
}

impl Flushes {
    /// What the prefix has is known now (or cannot be known): flushes can be chosen.
    pub(super) fn surveyed(&mut self) {
        self.surveyed = true;
    }

    /// Queues what is due, oldest first.
    pub(super) fn choose(&mut self, cluster: &Cluster) {
        if !self.surveyed {
            return;
        }
        for known in cluster.datasets.newest_first().iter().rev() {
            let id = known.catalog.id;
            let last = self.queue.iter().chain(self.current.iter().map(|flush| &flush.id)).max();
            let last = last.map_or(0, |id| id.0).max(cluster.datasets.highest_flushed);
            let new = !known.flushed && !self.given_up.contains(&id);
            if new && flush_due(id, last, cluster.settings.flush_every) {
                self.queue.push_back(id);
            }
        }
    }

    /// A flush of it runs or waits, or it is not known yet whether one is due.
    pub(super) fn busy(&self, id: DatasetId) -> bool {
        !self.surveyed
            || self.queue.contains(&id)
            || self.current.as_ref().is_some_and(|flush| flush.id == id)
    }

    /// A program removed it.
    pub(super) fn removed(&mut self, id: DatasetId) {
        self.queue.retain(|queued| *queued != id);
        if self.current.as_ref().is_some_and(|flush| flush.id == id) {
            self.current = None;
        }
    }

    /// Begins the next flush, or the next try, if it is time.
    pub(super) fn begin(&mut self, cluster: &mut Cluster) {
        match &mut self.current {
            Some(Flush { step: step @ Step::Waiting(_), id, .. }) => {
                if !matches!(step, Step::Waiting(until) if *until <= cluster.now) {
                    return;
                }
                if let Some(known) = cluster.datasets.get(*id) {
                    let task = PfsTask::BeginFlush(Box::new(known.catalog.clone()));
                    *step = Step::Beginning;
                    cluster.pfs(task);
                } else {
                    self.current = None;
                }
            }
            Some(_) => {}
            None => {
                while let Some(id) = self.queue.pop_front() {
                    if let Some(known) = cluster.datasets.get(id) {
                        let task = PfsTask::BeginFlush(Box::new(known.catalog.clone()));
                        self.current = Some(Flush { id, tries: 0, step: Step::Beginning });
                        cluster.pfs(task);
                        return;
                    }
                }
            }
        }
    }

    /// The directory is there: the members copy. False when that is not awaited.
    pub(super) fn begun(&mut self, cluster: &mut Cluster, id: DatasetId, directory: &[u8]) -> bool {
        let Some(flush) = self.current.as_mut().filter(|flush| flush.id == id) else { return false };
        if !matches!(flush.step, Step::Beginning) {
            return false;
        }
        flush.step = Step::Copying(Answers::of(cluster.nodes()));
        cluster.send_all(&Command::FlushMember { id, directory: directory.to_vec() });
        true
    }

    /// A node has copied its files, or could not. False when that is not awaited.
    pub(super) fn copied(
        &mut self,
        cluster: &mut Cluster,
        node: NodeRank,
        id: DatasetId,
        result: Result<(), String>,
    ) -> bool {
        let Some(flush) = self.current.as_mut().filter(|flush| flush.id == id) else { return false };
        let Step::Copying(answers) = &mut flush.step else { return false };
        if !answers.put(node, result) {
            return false;
        }
        // Also after a failure all are awaited: the next try must not meet this one's writers.
        if answers.all() {
            let failures: Vec<String> = answers
                .iter()
                .filter_map(|(node, result)| {
                    result.as_ref().err().map(|why| format!("{}: {why}", cluster.host(node)))
                })
                .collect();
            if !failures.is_empty() {
                self.failed(cluster, id, &failures.join("; "));
            } else if let Some(known) = cluster.datasets.get(id) {
                flush.step = Step::Publishing;
                let task = PfsTask::Publish(Box::new(known.catalog.clone()));
                cluster.pfs(task);
            } else {
                self.current = None;
            }
        }
        true
    }

    /// It is in the index.
    pub(super) fn published(&mut self, cluster: &mut Cluster, id: DatasetId) {
        cluster.datasets.flushed(id);
        if cluster.datasets.get(id).is_some() {
            cluster.send_all(&Command::MarkFlushed(id));
        }
        if self.current.as_ref().is_some_and(|flush| flush.id == id) {
            self.current = None;
        }
    }

    /// A try failed. False when no such flush runs.
    pub(super) fn failed(&mut self, cluster: &mut Cluster, id: DatasetId, reason: &str) -> bool {
        let Some(flush) = self.current.as_mut().filter(|flush| flush.id == id) else { return false };
        flush.tries += 1;
        if flush.tries < TRIES {
            flush.step = Step::Waiting(cluster.now + delay(flush.tries, 1_000 * MS, 60_000 * MS));
            cluster.note(format!("flush of dataset {id} failed, it will be tried again: {reason}"));
        } else {
            self.given_up.insert(id);
            self.current = None;
            cluster.note(format!("flush of dataset {id} failed {TRIES} times, it is given up: {reason}"));
        }
        true
    }
}

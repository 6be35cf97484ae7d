//! Restart: one candidate that some nodes have saved in the prefix and purged, when their job had
//! ended without its coordinators, while others have their parts in the caches still. The others
//! save theirs; then the prefix is asked again, which publishes what is whole by then.

use scrfs::control::{Command, Reason};
use scrfs::ids::{DatasetId, NodeRank};

use super::answers::Answers;
use super::cluster::Cluster;
use super::held::Held;
use super::policy::MS;

/// A PFS that lets no node finish must not keep what caches have from being presented.
const SILENCE_LIMIT: u64 = 15 * 60_000 * MS;

#[derive(Debug)]
enum Step {
    /// And until when the next answer has to come.
    Copying(Answers<Result<(), Reason>>, u64),
    Surveying,
}

/// One candidate on its way into the prefix.
#[derive(Debug)]
pub(super) struct Saving {
    id: DatasetId,
    step: Step,
}

impl Saving {
    /// `held`: what caches have of it.
    pub(super) fn begin(cluster: &mut Cluster, id: DatasetId, held: &Held) -> Self {
        let nodes: Vec<NodeRank> = held.nodes.keys().copied().collect();
        cluster.note(format!(
            "dataset {id}: parts of it are in the prefix only, saved when a job ended: {} of {} nodes save theirs too",
            nodes.len(),
            cluster.nodes().count()
        ));
        for &node in &nodes {
            cluster.send(node, Command::Save(id));
        }
        Self { id, step: Step::Copying(Answers::of(nodes), cluster.now + SILENCE_LIMIT) }
    }

    /// A node has saved its part, or could not; `None` when that is not awaited, true when it was
    /// the last one. The prefix may give back the part of one that could not.
    pub(super) fn saved(
        &mut self,
        cluster: &mut Cluster,
        node: NodeRank,
        result: Result<(), Reason>,
    ) -> Option<bool> {
        let Step::Copying(answers, until) = &mut self.step else { return None };
        *until = cluster.now + SILENCE_LIMIT;
        let failure = result.as_ref().err().map(|reason| {
            format!("dataset {}: {} has not saved its part: {reason}", self.id, cluster.host(node))
        });
        let is_last = answers.answered(node, result)?;
        if let Some(text) = failure {
            cluster.warn(text);
        }
        if is_last {
            self.step = Step::Surveying;
        }
        Some(is_last)
    }

    /// The nodes that are left have said nothing for too long.
    pub(super) fn is_silent(&self, cluster: &mut Cluster) -> bool {
        let silent = matches!(self.step, Step::Copying(_, until) if until <= cluster.now);
        if silent {
            cluster.warn(format!("dataset {}: the PFS does not take what nodes save of it", self.id));
        }
        silent
    }

    /// All have answered: what the prefix has now counts.
    pub(super) fn is_surveying(&self) -> bool {
        matches!(self.step, Step::Surveying)
    }
}

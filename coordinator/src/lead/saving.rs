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
/// A PFS that fails for a moment is no reason for an older dataset: so often are nodes that have
/// failed told to save again.
const RETRIES_MAX: u32 = 2;

#[derive(Debug)]
enum Step {
    /// And until when the next answer has to come.
    Copying(Answers<Result<(), Reason>>, u64),
    Surveying,
}

impl Step {
    fn copying(cluster: &mut Cluster, id: DatasetId, nodes: Vec<NodeRank>) -> Self {
        for &node in &nodes {
            cluster.send(node, Command::Save(id));
        }
        Self::Copying(Answers::of(nodes), cluster.now + SILENCE_LIMIT)
    }
}

/// One candidate on its way into the prefix.
#[derive(Debug)]
pub(super) struct Saving {
    id: DatasetId,
    step: Step,
    retries: u32,
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
        Self { id, step: Step::copying(cluster, id, nodes), retries: 0 }
    }

    /// A node has saved its part, or could not; `None` when that is not awaited, true when no more
    /// is. The prefix may give back the part of one that could not.
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
        if !is_last {
            return Some(false);
        }
        let failed = answers.iter().filter(|(_, result)| result.is_err()).map(|(node, _)| node);
        let failed: Vec<NodeRank> = failed.collect();
        let goes_on = !failed.is_empty() && self.retries < RETRIES_MAX;
        self.step = if goes_on {
            self.retries += 1;
            Step::copying(cluster, self.id, failed)
        } else {
            Step::Surveying
        };
        Some(!goes_on)
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use scrfs::control::HeldState;
    use scrfs::ids::Epoch;

    use super::*;
    use crate::lead::Output;
    use crate::lead::held::Holding;
    use crate::settings::tests::settings;

    /// Two nodes, `a` and `b`, have something of it.
    #[test]
    fn who_cannot_save_its_part_tries_again_a_few_times() {
        let holding = |node| {
            let (members, encoded, paths) = (BTreeSet::new(), BTreeSet::new(), Vec::new());
            let (state, flushed, listed, failed) = (HeldState::Complete, false, false, false);
            let held = Holding { revision: 0, state, members, encoded, paths, flushed, listed, failed };
            (NodeRank(node), held)
        };
        let nodes = [0, 1].map(holding).into();
        let held = Held { epoch: Epoch(1), name: b"ck".to_vec(), nodes, strangers: Vec::new() };
        let hosts = ["a", "b"].map(str::to_owned).into();
        let mut cluster = Cluster::new(Epoch(2), hosts, settings(), 0);
        let mut saving = Saving::begin(&mut cluster, DatasetId(1), &held);
        let told = |cluster: &mut Cluster| -> Vec<u32> {
            let outputs = cluster.take_outputs().into_iter();
            let nodes = outputs.filter_map(|output| match output {
                Output::Command(nodes, Command::Save(_)) => Some(nodes[0].0),
                _ => None,
            });
            nodes.collect()
        };
        assert_eq!(told(&mut cluster), [0, 1]);
        assert_eq!(saving.saved(&mut cluster, NodeRank(0), Ok(())), Some(false));
        for _ in 0..RETRIES_MAX {
            assert_eq!(saving.saved(&mut cluster, NodeRank(1), Err("EIO".into())), Some(false));
            assert_eq!(told(&mut cluster), [1]);
        }
        assert_eq!(saving.saved(&mut cluster, NodeRank(1), Err("EIO".into())), Some(true));
        assert!(told(&mut cluster).is_empty() && saving.is_surveying());
    }
}

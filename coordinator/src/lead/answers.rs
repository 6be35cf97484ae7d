//! One answer from each of some nodes.

use std::collections::BTreeMap;

use scrfs::ids::NodeRank;

/// Collects the answers to a command; each node's first answer counts.
#[derive(Debug)]
pub(super) struct Answers<T> {
    from: BTreeMap<NodeRank, Option<T>>,
    /// Of `from`, those that have not answered: no step of the lead looks at all nodes.
    missing: usize,
}

impl<T> Answers<T> {
    /// One answer of each of `nodes` is awaited.
    pub(super) fn of(nodes: impl IntoIterator<Item = NodeRank>) -> Self {
        let from: BTreeMap<_, _> = nodes.into_iter().map(|node| (node, None)).collect();
        let missing = from.len();
        Self { from, missing }
    }

    /// Takes an answer; false when none of that node is awaited.
    pub(super) fn put(&mut self, node: NodeRank, answer: T) -> bool {
        match self.from.get_mut(&node) {
            Some(slot @ None) => {
                *slot = Some(answer);
                self.missing -= 1;
                true
            }
            _ => false,
        }
    }

    /// Takes an answer; true when it was the last one, `None` when none of that node is awaited.
    pub(super) fn answered(&mut self, node: NodeRank, answer: T) -> Option<bool> {
        self.put(node, answer).then(|| self.all())
    }

    /// Nothing is awaited any more.
    pub(super) fn all(&self) -> bool {
        self.missing == 0
    }

    /// This node has answered.
    pub(super) fn has(&self, node: NodeRank) -> bool {
        matches!(self.from.get(&node), Some(Some(_)))
    }

    /// Those whose answers are awaited, by rank.
    pub(super) fn missing(&self) -> impl Iterator<Item = NodeRank> {
        self.from.iter().filter(|(_, answer)| answer.is_none()).map(|(node, _)| *node)
    }

    /// The answers so far, by rank.
    pub(super) fn iter(&self) -> impl Iterator<Item = (NodeRank, &T)> {
        self.from.iter().filter_map(|(node, answer)| answer.as_ref().map(|answer| (*node, answer)))
    }

    /// The answers, by rank.
    pub(super) fn into_answers(self) -> impl Iterator<Item = (NodeRank, T)> {
        self.from.into_iter().filter_map(|(node, answer)| answer.map(|answer| (node, answer)))
    }
}

//! A catalog on its way to COMPLETE on every node.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use scrfs::control::{Command, Reason};
use scrfs::dataset::{Catalog, Revision};
use scrfs::ids::NodeRank;

use super::cluster::Cluster;
use super::policy::{MS, delay};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    Sent,
    Done,
    /// It failed; again at this time.
    Again(u64),
}

/// Who has recorded COMPLETE, and who is still to.
#[derive(Debug)]
pub(super) struct Committing {
    pub(super) catalog: Arc<Catalog>,
    nodes: BTreeMap<NodeRank, (At, u32)>,
    /// Nodes whose answer is awaited.
    sent: usize,
    /// Nodes that failed and are asked again later.
    failed: usize,
    /// Somebody had recorded COMPLETE before.
    decided: bool,
    /// When a node failed first, microseconds, and the latest failure in words.
    trouble: Option<(u64, String)>,
}

/// How far it is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Committed {
    Running,
    Done,
    /// Nobody recorded COMPLETE: all nodes failed.
    Failed(Reason),
}

impl Committing {
    /// Sends it to `nodes`; `decided` when another node has it already.
    pub(super) fn start(
        cluster: &mut Cluster,
        catalog: Arc<Catalog>,
        nodes: impl IntoIterator<Item = NodeRank>,
        decided: bool,
    ) -> Self {
        let this = Self::awaiting(catalog, nodes, decided);
        let nodes = this.nodes.keys().copied().collect();
        cluster.send_to(nodes, Command::Commit(Arc::clone(&this.catalog)));
        this
    }

    fn awaiting(catalog: Arc<Catalog>, nodes: impl IntoIterator<Item = NodeRank>, decided: bool) -> Self {
        let nodes: BTreeMap<_, _> = nodes.into_iter().map(|node| (node, (At::Sent, 0))).collect();
        Self { catalog, sent: nodes.len(), nodes, failed: 0, decided, trouble: None }
    }

    /// A later revision for all nodes, complete somewhere. It changes places and sets only of the
    /// revision `of`, which some `have`: these are told no more than that. One that cannot take it
    /// gets the whole catalog.
    pub(super) fn revise(
        cluster: &mut Cluster,
        catalog: Arc<Catalog>,
        of: u32,
        have: &BTreeSet<NodeRank>,
    ) -> Self {
        let (some, others): (Vec<_>, Vec<_>) = cluster.nodes().partition(|node| have.contains(node));
        if !some.is_empty() {
            cluster.send_to(some, Command::Revise(Revision::new(of, &catalog).into()));
        }
        if !others.is_empty() {
            cluster.send_to(others, Command::Commit(Arc::clone(&catalog)));
        }
        Self::awaiting(catalog, cluster.nodes(), true)
    }

    /// A node's answer; `None` when none is awaited. `decided`: COMPLETE is on its storage, also
    /// where what follows from that has failed.
    pub(super) fn committed(
        &mut self,
        cluster: &mut Cluster,
        node: NodeRank,
        result: Result<(), Reason>,
        decided: bool,
    ) -> Option<Committed> {
        self.decided |= decided || result.is_ok();
        let (at, tries) = self.nodes.get_mut(&node).filter(|(at, _)| *at == At::Sent)?;
        self.sent -= 1;
        let Err(reason) = result else {
            *at = At::Done;
            let all = self.sent + self.failed == 0;
            return Some(if all { Committed::Done } else { Committed::Running });
        };
        self.failed += 1;
        *tries += 1;
        *at = At::Again(cluster.now + delay(*tries, 100 * MS, 10_000 * MS));
        let what = format_args!("{} cannot record dataset {}", cluster.host(node), self.catalog.id);
        let reason = reason.on(what);
        cluster.log(reason.to_string());
        let since = self.trouble.take().map_or(cluster.now, |(since, _)| since);
        self.trouble = Some((since, reason.to_string()));
        let none = !self.decided && self.failed == self.nodes.len();
        Some(if none { Committed::Failed(reason) } else { Committed::Running })
    }

    /// Some node has recorded COMPLETE: it does not come to nothing any more.
    pub(super) fn is_decided(&self) -> bool {
        self.decided
    }

    /// Why it is not done, when a node has failed to record it for `limit` microseconds.
    pub(super) fn stuck(&self, now: u64, limit: u64) -> Option<&str> {
        let (since, failure) = self.trouble.as_ref()?;
        let failing = |&(at, tries): &(At, u32)| tries > 0 && at != At::Done;
        let late = since.saturating_add(limit) <= now && self.nodes.values().any(failing);
        late.then_some(failure)
    }

    /// Sends again where it is time.
    pub(super) fn tick(&mut self, cluster: &mut Cluster) {
        if self.failed == 0 {
            return;
        }
        let is_due = |at: &At| matches!(at, At::Again(when) if *when <= cluster.now);
        let due = self.nodes.iter_mut().filter(|(_, (at, _))| is_due(at));
        let again: Vec<NodeRank> = due
            .map(|(&node, (at, _))| {
                *at = At::Sent;
                node
            })
            .collect();
        if !again.is_empty() {
            self.failed -= again.len();
            self.sent += again.len();
            cluster.send_to(again, Command::Commit(Arc::clone(&self.catalog)));
        }
    }
}

#[cfg(test)]
mod tests {
    use scrfs::ids::Epoch;

    use super::*;
    use crate::lead::Output;
    use crate::lead::flush::tests::catalog;
    use crate::settings::tests::settings;

    /// The nodes of each command, which all are the catalog's.
    fn sent(cluster: &mut Cluster) -> Vec<Vec<u32>> {
        let outputs = cluster.take_outputs().into_iter();
        let commands = outputs.filter_map(|output| match output {
            Output::Command(nodes, command) => {
                assert!(matches!(command, Command::Commit(_)), "{command:?}");
                Some(nodes.into_iter().map(|node| node.0).collect())
            }
            _ => None,
        });
        commands.collect()
    }

    #[test]
    fn a_catalog_is_one_command_for_all_who_need_it() {
        let hosts = ["a", "b", "c", "d"].map(str::to_owned).to_vec();
        let mut cluster = Cluster::new(Epoch(1), hosts, settings(), 100);
        let nodes = cluster.nodes();
        let mut committing = Committing::start(&mut cluster, Arc::new(catalog(1)), nodes, false);
        assert_eq!(sent(&mut cluster), [[0, 1, 2, 3]]);
        let full = || Err("full".into());
        for (node, result) in [(0, Ok(())), (1, full()), (2, Ok(())), (3, full())] {
            let state = committing.committed(&mut cluster, NodeRank(node), result, false);
            assert_eq!(state, Some(Committed::Running));
        }
        committing.tick(&mut cluster);
        assert!(sent(&mut cluster).is_empty(), "it is too early");
        cluster.now += 10_000 * MS;
        committing.tick(&mut cluster);
        assert_eq!(sent(&mut cluster), [[1, 3]]);
        committing.committed(&mut cluster, NodeRank(3), Ok(()), true);
        assert_eq!(committing.stuck(cluster.now, 10_001 * MS), None, "it is too early");
        let failure = committing.stuck(cluster.now, 10_000 * MS).expect("b has failed that long");
        assert!(failure.contains("d cannot record dataset 1: full"), "{failure}");
        assert_eq!(committing.committed(&mut cluster, NodeRank(1), Ok(()), true), Some(Committed::Done));
    }

    #[test]
    fn who_has_the_revision_before_hears_what_has_changed() {
        let hosts = ["a", "b", "c"].map(str::to_owned).to_vec();
        let mut cluster = Cluster::new(Epoch(1), hosts, settings(), 100);
        let later = Arc::new(Catalog { revision: 256, ..catalog(1) });
        let have = [NodeRank(0), NodeRank(2)].into();
        let mut committing = Committing::revise(&mut cluster, Arc::clone(&later), 0, &have);
        let [told, whole] = &cluster.take_outputs()[..] else { panic!("two commands") };
        let revision = Revision::new(0, &later).into();
        assert_eq!(*told, Output::Command(vec![NodeRank(0), NodeRank(2)], Command::Revise(revision)));
        assert_eq!(*whole, Output::Command(vec![NodeRank(1)], Command::Commit(Arc::clone(&later))));
        // It has lost it meanwhile.
        committing.committed(&mut cluster, NodeRank(2), Err("it is not here".into()), false);
        cluster.now += 1_000 * MS;
        committing.tick(&mut cluster);
        assert_eq!(sent(&mut cluster), [[2]], "the whole catalog");
        for (node, state) in [(0, Committed::Running), (1, Committed::Running), (2, Committed::Done)] {
            assert_eq!(committing.committed(&mut cluster, NodeRank(node), Ok(()), true), Some(state));
        }
    }

    /// What follows from COMPLETE needs room too.
    #[test]
    fn where_one_node_has_recorded_it_none_forgets_it_though_all_have_failed() {
        let mut cluster = Cluster::new(Epoch(1), vec!["a".into(), "b".into()], settings(), 100);
        for decided in [false, true] {
            let nodes = cluster.nodes();
            let mut committing = Committing::start(&mut cluster, Arc::new(catalog(1)), nodes, false);
            let mut full = |node, decided| {
                committing.committed(&mut cluster, NodeRank(node), Err("full".into()), decided)
            };
            assert_eq!(full(0, decided), Some(Committed::Running));
            let last = full(1, false);
            assert_eq!(matches!(last, Some(Committed::Failed(_))), !decided, "{last:?}");
        }
    }
}

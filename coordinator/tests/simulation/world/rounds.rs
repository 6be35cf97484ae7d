//! Operations on directories: nobody is told of a failure that no node has voted for, and all nodes
//! have done what succeeds.

use scrfs::control::DirOp;
use scrfs::ids::RequestId;
use scrfs::path::RelPath;

use super::World;
use crate::daemon::{Daemon, EBUSY, EEXIST, op_paths, rename};

impl World {
    /// A node has voted on the operations of the round.
    pub(super) fn voted(&mut self, at: usize, votes: &[i32]) {
        let (_, ops) = self.nodes[at].prepared.as_ref().expect("a round is prepared");
        for ((id, _), vote) in ops.iter().zip(votes) {
            self.votes.entry(*id).or_default().insert(*vote);
        }
    }

    /// Some node has voted so on this request, or on an equal one that stands for it.
    fn has_vote(&self, id: RequestId, errno: i32) -> bool {
        let equal = |other: RequestId| match (&self.ops[&id], &self.ops[&other]) {
            (DirOp::Make { path, .. }, DirOp::Make { path: other, .. }) => path == other,
            _ => id == other,
        };
        self.votes.iter().any(|(other, votes)| equal(*other) && votes.contains(&errno))
    }

    /// A dataset that gets or loses its name is being sealed, or was right now.
    fn is_busy(&self, op: &DirOp) -> bool {
        let seals = |path: &RelPath, node: &Daemon| {
            let name = path.as_bytes();
            node.is_frozen(name) || node.markers.contains_key(name) || node.listed(name).is_some()
        };
        // All nodes may have dropped it, and the lead has yet to hear so.
        let was_sealed = |path: &RelPath| self.seals.values().any(|name| name == path.as_bytes());
        let is_top = |path: &&RelPath| path.names().count() == 1;
        let mut tops = op_paths(op).into_iter().filter(is_top);
        matches!(op, DirOp::Rename { .. })
            && tops.any(|path| was_sealed(path) || self.nodes.iter().any(|node| seals(path, node)))
    }

    pub(super) fn finished(&mut self, results: &[(RequestId, i32)]) {
        for &(id, errno) in results {
            let former = self.finished.insert(id, errno);
            if former == Some(0) {
                assert_eq!(errno, 0, "a request that took effect fails");
            } else if errno == 0 {
                let refused = self.votes.get(&id).is_some_and(|votes| votes.iter().any(|vote| *vote != 0));
                assert!(!refused, "{:?} succeeds, and the votes are {:?}", self.ops[&id], self.votes[&id]);
                // Or it failed, its program never heard of that and asked the next coordinators
                // again.
                self.took_effect(id);
            } else if former != Some(errno) {
                self.check_refused(id, errno);
            }
        }
    }

    fn check_refused(&mut self, id: RequestId, errno: i32) {
        let op = &self.ops[&id];
        if let (DirOp::Make { path, .. }, EEXIST) = (op, errno) {
            let exists = self.oracle.contains(path) || self.prepared.contains(path);
            assert!(exists, "EEXIST, but {path} does not exist");
        } else {
            let has_cause = self.has_vote(id, errno) || errno == EBUSY && self.is_busy(op);
            assert!(
                has_cause,
                "{op:?} fails with {errno}, and no node has said so: {:?}",
                self.votes.get(&id)
            );
        }
        self.counts.refused += 1;
    }

    fn took_effect(&mut self, id: RequestId) {
        match self.ops.get(&id).expect("a known request") {
            DirOp::Make { path, .. } => {
                assert!(self.oracle.insert(path.clone()) || !self.ready, "{path} was made twice");
            }
            DirOp::Remove { path } => {
                let exists = self.oracle.contains(path) || self.prepared.contains(path);
                assert!(exists || !self.ready, "{path} was removed twice");
                self.oracle.retain(|dir| dir.strip(path).is_none());
            }
            DirOp::Rename { from, to, exchange, .. } => {
                assert!(self.oracle.contains(from) || !self.ready, "{from} was renamed twice");
                self.counts.replaced += u64::from(!exchange && self.oracle.contains(to));
                rename(&mut self.oracle, from, to, *exchange);
            }
        }
    }

    /// A program hears that its operation succeeded: so it has on all nodes.
    pub(super) fn check_directory(&mut self, at: usize, op: &DirOp) {
        let on_all = |path: &RelPath, there: bool| {
            for node in &self.nodes {
                let is = if there { "not" } else { "still" };
                assert_eq!(node.directories.contains(path), there, "{path} is {is} on {}", node.host);
            }
        };
        match op {
            DirOp::Make { path, .. } => {
                on_all(path, true);
                self.counts.made += 1;
            }
            DirOp::Remove { path } => {
                on_all(path, false);
                self.check_removal(at, path);
                self.counts.unmade += 1;
            }
            DirOp::Rename { from, to, exchange, .. } => {
                on_all(to, true);
                on_all(from, *exchange);
                self.counts.renamed += u64::from(!exchange);
                self.counts.exchanged += u64::from(*exchange);
            }
        }
    }
}

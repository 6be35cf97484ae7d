//! Directory operations, ordered in rounds (`scrfs/docs/protocol.md`, Directories): prepare, vote,
//! apply, finish.
//!
//! All requests that arrived while a round ran go together into the next one, in order of arrival,
//! as far as they do not depend on one another; of several equal `Make`s the first stands for all,
//! and when it succeeds the others get EEXIST.

use std::collections::{HashMap, HashSet, VecDeque};

use nix::errno::Errno;
use scrfs::control::{Command, DirOp};
use scrfs::ids::{NodeRank, RequestId};
use scrfs::path::RelPath;

use super::answers::Answers;
use super::cluster::Cluster;
use super::requests::Requests;

/// Operations of one round, so that a message stays well below the bound of a frame.
const ROUND_MAX: usize = 1024;

const FULL: i32 = Errno::ENOSPC as i32;
const OVER_QUOTA: i32 = Errno::EDQUOT as i32;

/// What a running seal means for an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hold {
    /// Nothing.
    Free,
    /// It waits until the seal is over.
    Wait,
    /// It fails at once.
    Refuse(i32),
}

#[derive(Debug)]
struct Request {
    id: RequestId,
    op: DirOp,
}

/// An operation of the round and the equal ones that it stands for.
#[derive(Debug)]
struct Lot {
    id: RequestId,
    op: DirOp,
    followers: Vec<RequestId>,
}

#[derive(Debug)]
enum Step {
    Preparing(Tally),
    Applying { verdicts: Vec<i32>, applied: Tally },
}

/// What nodes say of the operations of a round, put together as they say it: no step of the lead
/// goes through the answers of all.
#[derive(Debug)]
struct Tally {
    nodes: Answers<()>,
    /// Per operation: of those that failed, the node of the lowest rank, and its errno.
    failures: Vec<Option<(NodeRank, i32)>>,
}

impl Tally {
    fn of(cluster: &Cluster, operations: usize) -> Self {
        Self { nodes: Answers::of(cluster.nodes()), failures: vec![None; operations] }
    }

    /// A node's answers, one for each operation: whether it was the last node; `None` when it is
    /// not awaited. Answers of another number count as EIO for all.
    fn add(&mut self, cluster: &mut Cluster, node: NodeRank, answers: &[i32]) -> Option<bool> {
        let is_last = self.nodes.answered(node, ())?;
        let (got, wanted) = (answers.len(), self.failures.len());
        if got != wanted {
            let text = format!("{} answered {got} of {wanted} directory operations", cluster.host(node));
            cluster.warn(text);
        }
        for (at, failure) in self.failures.iter_mut().enumerate() {
            let errno = if got == wanted { answers[at] } else { Errno::EIO as i32 };
            if errno != 0 && failure.is_none_or(|(lowest, _)| node < lowest) {
                *failure = Some((node, errno));
            }
        }
        Some(is_last)
    }

    /// Per operation 0 or an errno.
    fn outcome(&self) -> Vec<i32> {
        self.failures.iter().map(|failure| failure.map_or(0, |(_, errno)| errno)).collect()
    }
}

#[derive(Debug)]
struct Round {
    number: u64,
    lots: Vec<Lot>,
    step: Step,
}

/// The queue and the running round.
#[derive(Debug, Default)]
pub(super) struct Directories {
    queue: VecDeque<Request>,
    /// The open ones are those in the queue and in the round.
    requests: Requests,
    round: Option<Round>,
}

impl Directories {
    /// A program's request. One that came before is not carried out again.
    pub(super) fn request(&mut self, cluster: &mut Cluster, node: NodeRank, id: RequestId, op: DirOp) {
        if let Some(errno) = self.requests.answer(id) {
            cluster.send(node, Command::DirFinish { results: vec![(id, errno)] });
        } else if self.requests.open(id) {
            self.queue.push_back(Request { id, op });
        }
    }

    /// The running round has an operation in dataset `name` or on it.
    pub(super) fn round_touches(&self, name: &[u8]) -> bool {
        let touches = |path: &RelPath| path.split_first().is_some_and(|(top, _)| top == name);
        self.round.iter().flat_map(|round| &round.lots).any(|lot| paths(&lot.op).any(touches))
    }

    /// The running round removes dataset `name`, or gives its name to another.
    pub(super) fn round_removes(&self, name: &[u8]) -> bool {
        let is_it = |path: &RelPath| path.as_bytes() == name;
        let removes = |op: &DirOp| match op {
            DirOp::Remove { path } => is_it(path),
            DirOp::Rename { to, exchange, .. } => !exchange && is_it(to),
            DirOp::Make { .. } => false,
        };
        self.round.iter().flat_map(|round| &round.lots).any(|lot| removes(&lot.op))
    }

    /// The running round changes the name of a dataset.
    pub(super) fn renames_datasets(&self) -> bool {
        self.round.iter().flat_map(|round| &round.lots).any(|lot| renames_dataset(&lot.op))
    }

    /// Begins the next round if none runs and something can go.
    pub(super) fn begin(&mut self, cluster: &mut Cluster, hold: impl Fn(&DirOp) -> Hold) {
        if self.round.is_some() || self.queue.is_empty() {
            return;
        }
        let (lots, refused) = self.take(hold);
        if !refused.is_empty() {
            self.finish(cluster, refused);
        }
        if lots.is_empty() {
            return;
        }
        let number = cluster.next_round();
        let ops = lots.iter().map(|lot| (lot.id, lot.op.clone())).collect();
        cluster.send_all(Command::DirPrepare { round: number, ops });
        let step = Step::Preparing(Tally::of(cluster, lots.len()));
        self.round = Some(Round { number, lots, step });
    }

    /// What goes now, and what fails at once; the rest stays in order.
    fn take(&mut self, hold: impl Fn(&DirOp) -> Hold) -> (Vec<Lot>, Vec<(RequestId, i32)>) {
        let mut lots: Vec<Lot> = Vec::new();
        let mut later: VecDeque<Request> = VecDeque::new();
        let (mut now, mut then) = (Touched::default(), Touched::default());
        let mut refused = Vec::new();
        for request in std::mem::take(&mut self.queue) {
            let waits = lots.len() == ROUND_MAX || then.meets(&request.op);
            let equal = now.by(&request.op).filter(|at| equal_makes(&lots[*at].op, &request.op));
            match (waits, now.meets(&request.op), hold(&request.op)) {
                (false, true, Hold::Free | Hold::Refuse(_)) if let Some(at) = equal => {
                    lots[at].followers.push(request.id);
                }
                (true, _, _) | (_, true, _) | (_, _, Hold::Wait) => {
                    then.add(&request.op, later.len());
                    later.push_back(request);
                }
                (false, false, Hold::Refuse(errno)) => refused.push((request.id, errno)),
                (false, false, Hold::Free) => {
                    now.add(&request.op, lots.len());
                    lots.push(Lot { id: request.id, op: request.op, followers: Vec::new() });
                }
            }
        }
        self.queue = later;
        (lots, refused)
    }

    /// A node's votes; false when no such round waits for them.
    pub(super) fn prepared(
        &mut self,
        cluster: &mut Cluster,
        node: NodeRank,
        round: u64,
        votes: &[i32],
    ) -> bool {
        let Some(running) = self.round.as_mut().filter(|running| running.number == round) else {
            return false;
        };
        let Step::Preparing(tally) = &mut running.step else { return false };
        let Some(is_last) = tally.add(cluster, node, votes) else { return false };
        if is_last {
            let verdicts = tally.outcome();
            for (lot, failure) in running.lots.iter().zip(&tally.failures) {
                if let Some((node, full @ (FULL | OVER_QUOTA))) = failure {
                    let (host, text) = (cluster.host(*node), std::io::Error::from_raw_os_error(*full));
                    let text = format!(
                        "{} is refused: {host} has no room for it ({text}); make room there, bytes and inodes",
                        lot.op
                    );
                    cluster.warn(text);
                }
            }
            let applied = Tally::of(cluster, verdicts.len());
            cluster.send_all(Command::DirApply { round, verdicts: verdicts.clone() });
            running.step = Step::Applying { verdicts, applied };
        }
        true
    }

    /// A node has applied; false when no such round waits for it. When all have, the operations
    /// that succeeded.
    pub(super) fn applied(
        &mut self,
        cluster: &mut Cluster,
        node: NodeRank,
        round: u64,
        results: &[i32],
    ) -> (bool, Vec<DirOp>) {
        let Some(running) = self.round.as_mut().filter(|running| running.number == round) else {
            return (false, Vec::new());
        };
        let Step::Applying { applied, .. } = &mut running.step else { return (false, Vec::new()) };
        let answered = applied.add(cluster, node, results);
        if answered != Some(true) {
            return (answered.is_some(), Vec::new());
        }
        let Some(Round { lots, step: Step::Applying { verdicts, applied }, .. }) = self.round.take() else {
            return (true, Vec::new());
        };
        let failures = applied.outcome();
        let mut results = Vec::new();
        let mut done = Vec::new();
        for ((lot, verdict), failure) in lots.into_iter().zip(verdicts).zip(failures) {
            let errno = if verdict == 0 { failure } else { verdict };
            if verdict == 0 && failure != 0 {
                let text = std::io::Error::from_raw_os_error(failure);
                cluster.warn(format!("{} failed on some node after all had agreed: {text}", lot.op));
            }
            results.push((lot.id, errno));
            let follow = if errno == 0 { Errno::EEXIST as i32 } else { errno };
            results.extend(lot.followers.into_iter().map(|id| (id, follow)));
            if errno == 0 {
                done.push(lot.op);
            }
        }
        self.finish(cluster, results);
        (true, done)
    }

    fn finish(&mut self, cluster: &mut Cluster, results: Vec<(RequestId, i32)>) {
        self.requests.close(&results);
        cluster.send_all(Command::DirFinish { results });
    }
}

pub(super) fn paths(op: &DirOp) -> impl Iterator<Item = &RelPath> {
    let (one, two) = match op {
        DirOp::Make { path, .. } | DirOp::Remove { path } => (path, None),
        DirOp::Rename { from, to, .. } => (from, Some(to)),
    };
    std::iter::once(one).chain(two)
}

/// A directory directly in the checkpoint path gets, or loses, its name.
pub(super) fn renames_dataset(op: &DirOp) -> bool {
    matches!(op, DirOp::Rename { from, to, .. } if [from, to].iter().any(|path| path.names().count() == 1))
}

/// The paths of operations, to find those on which another one depends: some path of the one is
/// equal to a path of the other, or above it.
#[derive(Debug, Default)]
struct Touched {
    /// With the number of the operation that touched it first.
    paths: HashMap<RelPath, usize>,
    above: HashSet<RelPath>,
}

impl Touched {
    fn add(&mut self, op: &DirOp, number: usize) {
        for path in paths(op) {
            self.paths.entry(path.clone()).or_insert(number);
            self.above.extend(directories_above(path));
        }
    }

    /// One of them depends on this one, or this one on them.
    fn meets(&self, op: &DirOp) -> bool {
        let meets = |path: &RelPath| {
            self.paths.contains_key(path)
                || self.above.contains(path)
                || directories_above(path).any(|above| self.paths.contains_key(&above))
        };
        paths(op).any(meets)
    }

    /// The operation with the same first path.
    fn by(&self, op: &DirOp) -> Option<usize> {
        paths(op).next().and_then(|path| self.paths.get(path)).copied()
    }
}

fn directories_above(path: &RelPath) -> impl Iterator<Item = RelPath> {
    let above = |path: &RelPath| path.split_last().map(|(above, _)| above);
    std::iter::successors(above(path), above)
}

fn equal_makes(one: &DirOp, other: &DirOp) -> bool {
    matches!((one, other), (DirOp::Make { path: a, .. }, DirOp::Make { path: b, .. }) if a == b)
}

#[cfg(test)]
mod tests {
    use scrfs::ids::Epoch;

    use super::*;
    use crate::settings::tests::settings;

    fn path(text: &str) -> RelPath {
        RelPath::new(text).unwrap()
    }

    /// `+a` makes, `-a` removes, `a>b` renames.
    fn op(text: &str) -> DirOp {
        if let Some(made) = text.strip_prefix('+') {
            DirOp::Make { path: path(made), mode: 0o755, uid: 0, gid: 0 }
        } else if let Some(removed) = text.strip_prefix('-') {
            DirOp::Remove { path: path(removed) }
        } else {
            let (from, to) = text.split_once('>').unwrap();
            DirOp::Rename { from: path(from), to: path(to), no_replace: false, exchange: false }
        }
    }

    /// Arrivals in order, then per round the operations and, after `=`, the number of followers.
    #[test]
    fn rounds() {
        let table: &[(&[&str], &[&[&str]])] = &[
            (&["+a", "+b"], &[&["+a=0", "+b=0"]]),
            (&["+a", "+a", "+a"], &[&["+a=2"]]),
            (&["+a", "+a/b"], &[&["+a=0"], &["+a/b=0"]]),
            (&["+a", "-a", "+a"], &[&["+a=0"], &["-a=0"], &["+a=0"]]),
            (&["a>b", "+b/c", "+d"], &[&["a>b=0", "+d=0"], &["+b/c=0"]]),
            (&["-a", "-a"], &[&["-a=0"], &["-a=0"]]),
            (&["+ab", "+a"], &[&["+ab=0", "+a=0"]]),
            (&["a>b", "b>c", "+c", "+e/f", "+e/g"], &[&["a>b=0", "+e/f=0", "+e/g=0"], &["b>c=0"], &["+c=0"]]),
        ];
        for (arrivals, rounds) in table {
            let mut directories = Directories::default();
            for (serial, text) in (1..).zip(*arrivals) {
                let id = RequestId { origin: 1, serial };
                directories.requests.open(id);
                directories.queue.push_back(Request { id, op: op(text) });
            }
            for round in *rounds {
                let (lots, refused) = directories.take(|_| Hold::Free);
                assert!(refused.is_empty());
                let got: Vec<(DirOp, usize)> = lots.into_iter().map(|l| (l.op, l.followers.len())).collect();
                let want: Vec<(DirOp, usize)> = round
                    .iter()
                    .map(|text| text.split_once('=').unwrap())
                    .map(|(text, followers)| (op(text), followers.parse().unwrap()))
                    .collect();
                assert_eq!(got, want, "{arrivals:?}");
            }
            assert!(directories.queue.is_empty(), "{arrivals:?}");
        }
    }

    #[test]
    fn of_several_failures_that_of_the_lowest_rank_counts() {
        let hosts = ["a", "b", "c"].map(str::to_owned).to_vec();
        let mut cluster = Cluster::new(Epoch(1), hosts, settings(), 100);
        let mut tally = Tally::of(&cluster, 3);
        assert_eq!(tally.add(&mut cluster, NodeRank(2), &[0, 17, 13]), Some(false));
        assert_eq!(tally.add(&mut cluster, NodeRank(0), &[0, 0, 39]), Some(false));
        assert_eq!(tally.add(&mut cluster, NodeRank(0), &[1, 1, 1]), None, "it has answered");
        assert_eq!(tally.add(&mut cluster, NodeRank(1), &[0, 2, 0]), Some(true));
        assert_eq!(tally.outcome(), [0, 2, 39]);
        let mut tally = Tally::of(&cluster, 2);
        assert_eq!(tally.add(&mut cluster, NodeRank(1), &[0]), Some(false));
        assert_eq!(tally.outcome(), [Errno::EIO as i32; 2], "an answer of another length");
    }

    #[test]
    fn what_a_seal_holds_keeps_its_order() {
        let mut directories = Directories::default();
        for (serial, text) in (1..).zip(["+s/a", "-s/a", "+t", "s>u"]) {
            directories.queue.push_back(Request { id: RequestId { origin: 1, serial }, op: op(text) });
        }
        let hold = |op: &DirOp| match op {
            DirOp::Make { path, .. } if path.as_bytes().starts_with(b"s/") => Hold::Wait,
            _ => Hold::Free,
        };
        let (lots, _) = directories.take(hold);
        assert_eq!(lots.len(), 1);
        assert_eq!(lots[0].op, op("+t"));
        assert_eq!(directories.queue.len(), 3);
    }
}

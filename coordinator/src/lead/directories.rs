//! Directory operations, ordered in rounds (DESIGN 4.4): prepare, vote, apply, finish.
//!
//! All requests that arrived while a round ran go together into the next one, in order of arrival,
//! as far as they do not depend on one another; of several equal `Make`s the first stands for all,
//! and when it succeeds the others get EEXIST.

use std::collections::VecDeque;

use nix::errno::Errno;
use scrfs::control::{Command, DirOp};
use scrfs::ids::{NodeRank, RequestId};
use scrfs::path::RelPath;

use super::answers::Answers;
use super::cluster::Cluster;
use super::requests::Requests;

/// Operations of one round, so that a message stays well below the bound of a frame.
const ROUND_MAX: usize = 1024;

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
    Preparing(Answers<Vec<i32>>),
    Applying { verdicts: Vec<i32>, applied: Answers<Vec<i32>> },
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
        let step = Step::Preparing(Answers::of(cluster.nodes()));
        self.round = Some(Round { number, lots, step });
    }

    /// What goes now, and what fails at once; the rest stays in order.
    fn take(&mut self, hold: impl Fn(&DirOp) -> Hold) -> (Vec<Lot>, Vec<(RequestId, i32)>) {
        let mut lots: Vec<Lot> = Vec::new();
        let mut later: VecDeque<Request> = VecDeque::new();
        let mut refused = Vec::new();
        for request in std::mem::take(&mut self.queue) {
            let waits = lots.len() == ROUND_MAX || later.iter().any(|other| depend(&other.op, &request.op));
            let first = lots.iter_mut().find(|lot| depend(&lot.op, &request.op));
            match (waits, first, hold(&request.op)) {
                (true, _, _) | (_, _, Hold::Wait) => later.push_back(request),
                (_, Some(lot), _) if equal_makes(&lot.op, &request.op) => lot.followers.push(request.id),
                (_, Some(_), _) => later.push_back(request),
                (_, None, Hold::Refuse(errno)) => refused.push((request.id, errno)),
                (_, None, Hold::Free) => {
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
        votes: Vec<i32>,
    ) -> bool {
        let Some(running) = self.round.as_mut().filter(|running| running.number == round) else {
            return false;
        };
        let Step::Preparing(answers) = &mut running.step else { return false };
        if !answers.put(node, checked(cluster, node, votes, running.lots.len())) {
            return false;
        }
        if answers.all() {
            let verdicts = outcome(answers, running.lots.len());
            cluster.send_all(Command::DirApply { round, verdicts: verdicts.clone() });
            running.step = Step::Applying { verdicts, applied: Answers::of(cluster.nodes()) };
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
        results: Vec<i32>,
    ) -> (bool, Vec<DirOp>) {
        let Some(running) = self.round.as_mut().filter(|running| running.number == round) else {
            return (false, Vec::new());
        };
        let Step::Applying { applied, .. } = &mut running.step else { return (false, Vec::new()) };
        let accepted = applied.put(node, checked(cluster, node, results, running.lots.len()));
        if !accepted || !applied.all() {
            return (accepted, Vec::new());
        }
        let Some(Round { lots, step: Step::Applying { verdicts, applied }, .. }) = self.round.take() else {
            return (accepted, Vec::new());
        };
        let failures = outcome(&applied, lots.len());
        let mut results = Vec::new();
        let mut done = Vec::new();
        for ((lot, verdict), failure) in lots.into_iter().zip(verdicts).zip(failures) {
            let errno = if verdict == 0 { failure } else { verdict };
            if verdict == 0 && failure != 0 {
                let text = std::io::Error::from_raw_os_error(failure);
                cluster.warn(format!("{:?} failed on some node after all had agreed: {text}", lot.op));
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

/// The node's answers, one for each operation; an answer of another length counts as EIO for all.
fn checked(cluster: &mut Cluster, node: NodeRank, answers: Vec<i32>, wanted: usize) -> Vec<i32> {
    if answers.len() == wanted {
        return answers;
    }
    let text = format!("{} answered {} of {wanted} directory operations", cluster.host(node), answers.len());
    cluster.warn(text);
    vec![Errno::EIO as i32; wanted]
}

/// Per operation the first errno of any node, by rank, or 0.
fn outcome(answers: &Answers<Vec<i32>>, wanted: usize) -> Vec<i32> {
    (0..wanted)
        .map(|at| answers.iter().map(|(_, errnos)| errnos[at]).find(|&errno| errno != 0).unwrap_or(0))
        .collect()
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

/// Some path of the one is equal to a path of the other, or above it.
fn depend(one: &DirOp, other: &DirOp) -> bool {
    paths(one).any(|a| paths(other).any(|b| a.strip(b).is_some() || b.strip(a).is_some()))
}

fn equal_makes(one: &DirOp, other: &DirOp) -> bool {
    matches!((one, other), (DirOp::Make { path: a, .. }, DirOp::Make { path: b, .. }) if a == b)
}

#[cfg(test)]
mod tests {
    use super::*;

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

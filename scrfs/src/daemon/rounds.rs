//! Directory operations in rounds: vote and hold, apply, finish (`scrfs/docs/protocol.md`).
//!
//! What is about to be applied is written to a small log first, so that a restarted worker still
//! tells the next lead of operations that other nodes may not have applied. The log is not synced:
//! it is for the death of the process; after a power loss the directories are united anyway.
//!
//! Rounds run in the link's thread. What this node does alone, and directories that it still owes,
//! are done in the thread for local work ([`super::node::Lanes`]).
//!
//! Fault points: `round.prepared`, `round.recorded`, `round.applied`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde::{Deserialize, Serialize};

use crate::control::{DirHeld, DirOp, Event, HeldState, Reason};
use crate::faults;
use crate::ids::{DatasetId, RequestId};
use crate::path::RelPath;
use crate::store::log::Log;
use crate::store::{Store, StoreError};

use super::core::desk::Input;
use super::node::Node;
use super::remedies;
use crate::boundary::Completion;
use crate::errno::Errno;

const NAME: &str = "rounds.journal";

#[derive(Debug, Clone, Serialize, Deserialize)]
enum Record {
    /// Decided by all, about to be applied.
    Applying(RequestId, DirOp),
    /// All nodes have applied it.
    Finished(RequestId),
    /// This node has applied it: an exchange of two directories, which nothing else shows.
    Exchanged(RequestId),
}

/// Operations that were voted for and whose names are held.
struct Held {
    round: u64,
    ops: Vec<(RequestId, DirOp)>,
    votes: Vec<i32>,
}

/// See the module.
pub(super) struct Rounds {
    held: Option<Held>,
    /// Applied here and not known to be applied everywhere.
    unfinished: BTreeMap<RequestId, DirOp>,
    /// Exchanges of the last round that were done: done once more they would be undone. Also
    /// finished ones, as a node that has not heard so has them replayed everywhere.
    exchanged: BTreeSet<RequestId>,
    /// Of `unfinished`, what a program here waited for when it was applied: nothing else tells the
    /// kernel of it.
    asked: BTreeSet<RequestId>,
    /// Applied here when the last wait for a successor of the coordinators was in vain: programs
    /// that still ask for it are told that it is done.
    given_up: BTreeSet<RequestId>,
    /// Directories that all nodes have decided to make, and that could not be made here.
    owed: BTreeMap<RelPath, DirOp>,
    log: Log<Record>,
}

impl Rounds {
    /// Reads the log; also tells the bytes of a torn tail.
    pub(super) fn load(store: &Arc<Store>) -> Result<(Self, u64), StoreError> {
        let (log, records, torn) = Log::open(store, NAME)?;
        let (mut unfinished, mut exchanged) = (BTreeMap::new(), BTreeSet::new());
        for record in records {
            match record {
                Record::Applying(request, op) => drop(unfinished.insert(request, op)),
                Record::Finished(request) => drop(unfinished.remove(&request)),
                Record::Exchanged(request) => drop(exchanged.insert(request)),
            }
        }
        let (asked, given_up, owed) = (BTreeSet::new(), BTreeSet::new(), BTreeMap::new());
        Ok((Self { held: None, unfinished, exchanged, asked, given_up, owed, log }, torn))
    }

    pub(super) fn unfinished(&self) -> Vec<(RequestId, DirOp)> {
        self.unfinished.iter().map(|(request, op)| (*request, op.clone())).collect()
    }

    fn record(&mut self, request: RequestId, op: &DirOp) -> Result<(), i32> {
        let errno = |error: std::io::Error| error.raw_os_error().unwrap_or(libc::EIO);
        // Directories are removed because there is no room.
        self.log.append_surely(&Record::Applying(request, op.clone())).map_err(errno)?;
        self.unfinished.insert(request, op.clone());
        faults::hit("round.recorded").map_err(errno)
    }

    /// An exchange was done. A worker that dies right before this leaves one that is done again.
    fn exchanged(&mut self, request: RequestId) -> std::io::Result<()> {
        self.exchanged.insert(request);
        self.log.append_surely(&Record::Exchanged(request))
    }

    /// The next round is decided: all nodes have finished the one before, which nobody replays.
    fn forget_exchanges(&mut self) -> std::io::Result<()> {
        if self.exchanged.is_empty() || !self.unfinished.is_empty() {
            return Ok(());
        }
        self.exchanged.clear();
        self.log.clear()
    }

    /// What became of an operation that all nodes have decided.
    fn owe(&mut self, op: &DirOp, errno: i32) {
        match op {
            DirOp::Make { path, .. } if errno != 0 => drop(self.owed.insert(path.clone(), op.clone())),
            DirOp::Make { .. } => {}
            DirOp::Remove { path } | DirOp::Rename { from: path, .. } => {
                self.owed.retain(|owed, _| owed.strip(path).is_none());
            }
        }
    }

    fn finish(&mut self, request: RequestId) -> std::io::Result<()> {
        if self.unfinished.remove(&request).is_none() {
            return Ok(());
        }
        if self.unfinished.is_empty() && self.exchanged.is_empty() {
            self.log.clear()
        } else {
            self.log.append_surely(&Record::Finished(request))
        }
    }
}

impl Node {
    pub(super) fn dir_prepare(&self, round: u64, ops: Vec<(RequestId, DirOp)>) {
        let mut rounds = self.rounds.lock();
        // A lead prepares the next round only when the former is applied: what is still held is
        // another lead's.
        self.release(&mut rounds);
        let votes: Vec<i32> = ops.iter().map(|(_, op)| self.vote(op).err().unwrap_or(0)).collect();
        rounds.held = Some(Held { round, ops, votes: votes.clone() });
        drop(rounds);
        if let Err(error) = faults::hit("round.prepared") {
            self.events.error(None, &format!("round {round}: {error}"));
        }
        self.state.lock().send(Event::DirPrepared { round, votes });
    }

    fn vote(&self, op: &DirOp) -> Result<(), i32> {
        self.records_allow(op)?;
        self.prepare_in_tree(op).map_err(|errno| errno.0)
    }

    fn prepare_in_tree(&self, op: &DirOp) -> Result<(), Errno> {
        self.tree.prepare(op)?;
        self.open_for(op).map_err(|errno| {
            self.tree.release(op);
            Errno(errno)
        })
    }

    /// Does what is sealed, or being sealed, allow it?
    fn records_allow(&self, op: &DirOp) -> Result<(), i32> {
        let state = self.state.lock();
        let top = |path: &RelPath| match path.split_first() {
            Some((name, rest)) if rest.is_root() => state.by_name(name),
            _ => None,
        };
        match op {
            DirOp::Make { .. } => Ok(()),
            DirOp::Remove { path } => match top(path) {
                Some(dataset) if dataset.state() != HeldState::Complete => Err(libc::EBUSY),
                _ => Ok(()),
            },
            // Records name datasets by their directory, and files by where they were sealed.
            DirOp::Rename { from, to, exchange, .. } => {
                let sealed_target = *exchange && top(to).is_some();
                let below = |path: &RelPath| {
                    let inside = path.split_first().filter(|(_, inner)| !inner.is_root());
                    inside.is_some_and(|(name, _)| state.base(name).is_some())
                };
                let sealed = top(from).is_some() || sealed_target || below(from) || below(to);
                if sealed { Err(libc::EXDEV) } else { Ok(()) }
            }
        }
    }

    pub(super) fn dir_apply(&self, round: u64, verdicts: &[i32]) {
        let mut rounds = self.rounds.lock();
        let held = rounds.held.take_if(|held| held.round == round && held.ops.len() == verdicts.len());
        let Some(held) = held else {
            drop(rounds);
            self.events.error(None, &format!("round {round} is to be applied but was not prepared so"));
            let results = vec![libc::EPROTO; verdicts.len()];
            return self.state.lock().send(Event::DirApplied { round, results });
        };
        if let Err(error) = rounds.forget_exchanges() {
            self.events.warning(None, &format!("the log of directory operations: {error}"));
        }
        let mut results = Vec::with_capacity(verdicts.len());
        for ((request, op), (&verdict, &vote)) in held.ops.iter().zip(verdicts.iter().zip(&held.votes)) {
            if verdict == 0 && vote == 0 {
                let errno = self.apply_recorded(&mut rounds, *request, op);
                rounds.owe(op, errno);
                results.push(errno);
            } else {
                if vote == 0 {
                    self.tree.release(op);
                }
                // Nobody decides for an operation against this node's vote.
                results.push(if verdict == 0 { vote } else { verdict });
            }
        }
        let owes = !rounds.owed.is_empty();
        self.owes.store(owes, Ordering::Relaxed);
        drop(rounds);
        if let Err(error) = faults::hit("round.applied") {
            self.events.error(None, &format!("round {round}: {error}"));
        }
        self.state.lock().send(Event::DirApplied { round, results });
        if owes {
            // Who looks at the room has seen it, or waits, as the state was locked since.
            self.wake.notify_all();
        }
    }

    /// Records, then applies an operation whose names are held.
    fn apply_recorded(&self, rounds: &mut Rounds, request: RequestId, op: &DirOp) -> i32 {
        if let Err(errno) = rounds.record(request, op) {
            self.tree.release(op);
            self.tell_failure(op, errno);
            return errno;
        }
        let asked = self.state.lock().desk.waiting().has(request);
        if asked {
            rounds.asked.insert(request);
        }
        let errno = self.apply(op, asked);
        if errno == 0
            && matches!(op, DirOp::Rename { exchange: true, .. })
            && let Err(error) = rounds.exchanged(request)
        {
            self.events.warning(None, &format!("the log of directory operations: {error}"));
        }
        errno
    }

    /// Applies an operation whose names are held, with all that follows on this node. `asked`: a
    /// program here waits for it.
    fn apply(&self, op: &DirOp, asked: bool) -> i32 {
        let inside = self.operates_in(op);
        // What is brought to a sealed dataset meanwhile finds its place before, or after.
        let _places = inside.map(|_| self.generations.lock());
        if let Err(error) = inside.map_or(Ok(()), |id| self.note_operation(id, op)) {
            let errno = error.raw_os_error().unwrap_or(libc::EIO);
            self.tell_failure(op, errno);
            self.tree.release(op);
            return errno;
        }
        let applied = if asked { self.tree.apply_asked(op) } else { self.tree.apply(op) };
        if let Err(errno) = applied {
            self.tell_failure(op, errno.0);
            return errno.0;
        }
        let journal = match op {
            DirOp::Make { path, .. } => {
                if let Some((name, rest)) = path.split_first()
                    && rest.is_root()
                {
                    self.begins(name);
                }
                Ok(())
            }
            DirOp::Rename { from, to, exchange: true, .. } => self.journal.lock().exchanged(from, to),
            DirOp::Rename { from, to, .. } => self.journal.lock().renamed(from, to),
            DirOp::Remove { path } => {
                if let Some(id) = self.removed_dataset(path) {
                    self.remove_dataset(id);
                }
                self.journal.lock().forget(path)
            }
        };
        if let Err(error) = journal {
            self.events.warning(None, &format!("{op:?}: the filemap's journal cannot follow: {error}"));
        }
        0
    }

    /// An operation that all nodes have decided cannot be done on this one.
    fn tell_failure(&self, op: &DirOp, errno: i32) {
        let reason =
            Reason::with_errno(format!("{op}: done on other nodes, and not here: {}", Errno(errno)), errno);
        let remedy = remedies::of_directories(&reason, &self.config.host);
        self.events.error(None, &format!("{reason}{remedy}"));
    }

    /// Makes what is owed, as far as that is possible by now. Names that a round holds wait.
    pub(super) fn make_owed(&self) {
        let mut rounds = self.rounds.lock();
        if rounds.held.is_some() {
            return;
        }
        let made: Vec<RelPath> = rounds.owed.values().filter_map(|op| self.make_one_owed(op)).collect();
        for path in made {
            self.events.info(None, &format!("mkdir {path}: done here too"));
            rounds.owed.remove(&path);
        }
        self.owes.store(!rounds.owed.is_empty(), Ordering::Relaxed);
    }

    fn make_one_owed(&self, op: &DirOp) -> Option<RelPath> {
        let DirOp::Make { path, .. } = op else { return None };
        let made = match self.prepare_in_tree(op) {
            Ok(()) => self.tree.apply(op),
            Err(Errno(libc::EEXIST)) => Ok(()),
            Err(errno) => Err(errno),
        };
        made.is_ok().then(|| path.clone())
    }

    fn removed_dataset(&self, path: &RelPath) -> Option<DatasetId> {
        let (name, rest) = path.split_first()?;
        if !rest.is_root() {
            return None;
        }
        self.state.lock().by_name(name).filter(|dataset| dataset.life.is_complete()).map(|dataset| dataset.id)
    }

    pub(super) fn dir_replay(&self, round: u64, ops: &[(RequestId, DirOp)]) {
        let mut rounds = self.rounds.lock();
        // Names held for the former lead: those decided are in `ops`, the others were never
        // decided.
        self.release(&mut rounds);
        let results = ops.iter().map(|(request, op)| self.replay(&mut rounds, *request, op)).collect();
        drop(rounds);
        self.state.lock().send(Event::DirApplied { round, results });
    }

    fn replay(&self, rounds: &mut Rounds, request: RequestId, op: &DirOp) -> i32 {
        if rounds.exchanged.contains(&request) {
            return 0;
        }
        match self.prepare_in_tree(op) {
            Ok(()) => self.apply_recorded(rounds, request, op),
            // It was done before the former lead went.
            Err(Errno(libc::EEXIST)) if matches!(op, DirOp::Make { .. }) => 0,
            Err(Errno(libc::ENOENT)) if !matches!(op, DirOp::Make { .. }) => 0,
            Err(errno) => {
                // Decided by all, so the other nodes have it; this one does not.
                self.tell_failure(op, errno.0);
                errno.0
            }
        }
    }

    pub(super) fn dir_finish(&self, results: &[(RequestId, i32)]) {
        for &(request, errno) in results {
            self.tree.decided(request, errno);
        }
        {
            let mut rounds = self.rounds.lock();
            for (request, _) in results {
                if let Err(error) = rounds.finish(*request) {
                    self.events.warning(None, &format!("the log of directory operations: {error}"));
                }
            }
        }
        for &(request, errno) in results {
            let asked = self.rounds.lock().asked.remove(&request);
            let answers = self.desk_step(&mut self.state.lock(), Input::Directory(request, errno));
            // It was applied here, and its program hears something else, or nothing.
            if asked && (errno != 0 || answers.is_empty()) {
                self.tree.names_changed();
            }
            self.carry_out_effects(answers);
        }
    }

    pub(super) fn dir_unite(&self, directories: Vec<DirHeld>) {
        for DirHeld { path, mode, uid, gid } in directories {
            let op = DirOp::Make { path, mode, uid, gid };
            let made = match self.prepare_in_tree(&op) {
                Ok(()) => self.tree.apply(&op),
                Err(Errno(libc::EEXIST)) => Ok(()),
                Err(errno) => Err(errno),
            };
            if let Err(errno) = made {
                self.events.warning(None, &format!("{op:?}: cannot be united: {errno}"));
            }
        }
        self.state.lock().send(Event::DirUnited);
    }

    /// No successor of the coordinators came, and programs act on this node alone from now on: what
    /// other nodes may not have applied is not applied there later, over what programs have made
    /// since. An attach unites the directories.
    pub(super) fn give_up_unfinished(&self) {
        let mut rounds = self.rounds.lock();
        if self.state.lock().attached.is_some() {
            return;
        }
        rounds.given_up = rounds.unfinished.keys().copied().collect();
        for (request, op) in rounds.unfinished() {
            // Also to a program that a later worker is asked by.
            self.tree.decided(request, 0);
            match rounds.finish(request) {
                Ok(()) => self.events.info(None, &format!("{op}: is not told to later coordinators")),
                Err(error) => self.events.warning(None, &format!("the log of directory operations: {error}")),
            }
        }
    }

    /// Lets the names go that are held for a round.
    pub(super) fn release_held(&self) {
        self.release(&mut self.rounds.lock());
    }

    fn release(&self, rounds: &mut Rounds) {
        let Some(held) = rounds.held.take() else { return };
        for ((_, op), vote) in held.ops.iter().zip(&held.votes) {
            if *vote == 0 {
                self.tree.release(op);
            }
        }
    }

    /// Does it on this node alone, in its own thread: the caller may hold the tree's locks.
    /// `request` may have waited for a lead before.
    pub(super) fn act_alone(&self, op: DirOp, request: RequestId, done: Completion) {
        let me = self.me.clone();
        let answer = Answer::new(done);
        self.lanes.local.run(move || {
            let Some(node) = me.upgrade() else { return };
            let applied = {
                let mut rounds = node.rounds.lock();
                node.release(&mut rounds);
                // Its round was applied here before the lead went: it is done.
                rounds.unfinished.contains_key(&request) || rounds.given_up.contains(&request)
            };
            let act = || match node.vote(&op) {
                Ok(()) => {
                    node.tree.going_alone(request);
                    node.apply(&op, true)
                }
                Err(errno) => errno,
            };
            let errno = if applied { 0 } else { act() };
            answer.give(if errno == 0 { Ok(()) } else { Err(Errno(errno)) });
        });
    }
}

/// A completion that runs also when the work that should have run it is thrown away (EIO).
pub(super) struct Answer(Option<Completion>);

impl Answer {
    pub(super) fn new(done: Completion) -> Self {
        Self(Some(done))
    }

    pub(super) fn give(mut self, result: Result<(), Errno>) {
        if let Some(done) = self.0.take() {
            done(result);
        }
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        if let Some(done) = self.0.take() {
            done(Err(Errno(libc::EIO)));
        }
    }
}

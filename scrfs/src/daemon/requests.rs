//! Programs that wait for an answer that needs other nodes: what [`super::core::desk`] decides is
//! carried out here.
//!
//! The watching thread (`scrfs-waiting`) looks every 50 ms while anything waits, whether a waiter's
//! process is about to die by a signal (then EINTR; what it asked for goes on), and tells the desk
//! that time has passed. While there is anything to look at it also looks once a second at the
//! room, at the reserve and at directories that this node owes ([`Node::look_now_and_then`]), and
//! gives back what was preferred ([`Node::ease`]).

use std::hash::{BuildHasher, Hasher, RandomState};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::control::{DirOp, Event, SealedFile};
use crate::ids::{DatasetId, RequestId};
use crate::lock::MutexGuard;
use crate::path::RelPath;

use super::core::desk::{Effect, Input, Lead, Outcome, Terms};
use super::core::seals::Settling;
use super::core::waiting::{DIRECTORY_MAX, Marker, Waiter, Wanted};
use super::node::Node;
use super::room::LOOK;
use super::state::State;
use crate::boundary::{Completion, Eye, GlobalRequests, IoRecord, Marking};
use crate::caller;
use crate::caller::Caller;
use crate::errno::Errno;

/// How often callers are looked at while any waits.
const TICK: Duration = Duration::from_millis(50);

/// The ids of what this worker asks for.
pub(super) struct RequestIds {
    /// Tells them from those of any other daemon, and of this one's former workers.
    origin: u64,
    serial: AtomicU64,
}

impl RequestIds {
    pub(super) fn new() -> Self {
        // Seeded from the system's randomness by the standard library.
        let mut hasher = RandomState::new().build_hasher();
        hasher.write_u32(std::process::id());
        Self { origin: hasher.finish(), serial: AtomicU64::new(1) }
    }

    pub(super) fn next(&self) -> RequestId {
        RequestId { origin: self.origin, serial: self.serial.fetch_add(1, Ordering::Relaxed) }
    }

    /// This worker has asked for it.
    pub(super) fn has(&self, request: RequestId) -> bool {
        request.origin == self.origin
    }
}

impl Node {
    /// Gives the desk an input, and asks the lead for what it wants. The other effects are to be
    /// carried out ([`Node::carry_out_effects`]) when the state's lock is let go.
    pub(super) fn desk_step(&self, state: &mut State, input: Input) -> Vec<Effect> {
        let lead = match &state.attached {
            None => Lead::Nobody,
            Some(attached) if attached.served => Lead::Serves,
            Some(_) => Lead::Settles,
        };
        let coordinator_wait = self.coordinator_wait(state);
        let terms = Terms { now: self.now(), lead, coordinator_wait, seal_timeout: state.seal_timeout() };
        let Outcome { questions, effects } = state.desk.step(&terms, input);
        for question in questions {
            state.send_request(question);
        }
        effects
    }

    /// Gives the desk an input, and does what follows. Not to be called with a lock held.
    pub(super) fn at_desk(&self, input: Input) {
        let effects = self.desk_step(&mut self.state.lock(), input);
        self.carry_out_effects(effects);
    }

    /// A program asks for something; answered with EIO where the daemon ends.
    pub(super) fn ask(&self, request: RequestId, wanted: Wanted, caller: Caller, done: Completion) {
        let now = self.now();
        let waiter = Waiter { request, wanted, caller, done, since: now, deadline: now };
        let effects = {
            let mut state = self.state.lock();
            if state.stopping {
                vec![Effect::Answer(waiter, libc::EIO)]
            } else {
                self.desk_step(&mut state, Input::Asks(waiter))
            }
        };
        self.wake.notify_all();
        self.carry_out_effects(effects);
    }

    /// Not to be called with a lock held: programs' answers take others.
    pub(super) fn carry_out_effects(&self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Answer(waiter, errno) => waiter.answer(errno),
                Effect::Alone(waiter) => self.do_alone(waiter),
                Effect::TimedOut { waiter, led } => self.timed_out(waiter, led),
                Effect::Isolated(wait) => self.events.warning(
                    None,
                    &format!("no coordinator came within {wait:?}: directory operations act on this node alone from now on"),
                ),
                Effect::NoSuccessor => self.successor_did_not_come(),
                // Who has told the desk of the markers goes on with it.
                Effect::OwedEnded => {}
            }
        }
    }

    /// There is no lead to ask.
    fn do_alone(&self, waiter: Waiter) {
        match waiter.wanted {
            Wanted::Directory(op) => self.act_alone(op, waiter.request, waiter.done),
            Wanted::Marker(Marker { name, base, .. }) => {
                if !base.is_some_and(|id| self.is_changed(&name, id)) && self.is_sealed_alone(&name) {
                    return (waiter.done)(Ok(()));
                }
                let shown = String::from_utf8_lossy(&name);
                let text = format!("{shown}: not sealed, no coordinator; nothing protects it");
                self.events.error(None, &text);
                (waiter.done)(Err(Errno(libc::EIO)));
            }
            Wanted::Fetch(SealedFile { id, path }) => {
                let text = format!("{path} is on another node, and there is no coordinator to bring it");
                self.events.error(Some(id), &text);
                (waiter.done)(Err(Errno(libc::EIO)));
            }
            Wanted::Loose(_) => {
                // The next coordinator that attaches is told.
                self.forget_pending(waiter.request);
                (waiter.done)(Ok(()));
            }
        }
    }

    /// Sends what waits, again (Serve).
    pub(super) fn send_waiting(&self) {
        let mut state = self.state.lock();
        let owed = state.table.owed.in_order().into_iter().map(|name| (self.ids.next(), name)).collect();
        // Nothing but questions follows.
        drop(self.desk_step(&mut state, Input::Serves(owed)));
        let overwritten = state
            .table
            .datasets
            .values()
            .filter(|dataset| dataset.life.is_overwritten() && dataset.life.is_listed());
        let overwritten: Vec<Event> = overwritten.map(|dataset| Event::Overwritten(dataset.id)).collect();
        for event in overwritten {
            state.send_request(event);
        }
    }

    /// The watching thread.
    pub(super) fn watch(&self) {
        let mut looked = self.now();
        let mut state = self.state.lock();
        while !state.stopping {
            let until_look = self.look_now_and_then(&mut state, &mut looked);
            let until_look = self.ease(&state).map_or(until_look, |raised| until_look.min(raised));
            let has_openers = self.comparisons.unread.lock().is_waited_for();
            if state.desk.is_idle() && !has_openers {
                self.wake.wait_for(&mut state, until_look);
                continue;
            }
            self.wake.wait_for(&mut state, TICK);
            if has_openers {
                MutexGuard::unlocked(&mut state, || self.end_dying_openers());
            }
            self.look_at_waiters(&mut state);
        }
    }

    /// For simulations: what the watching thread does when it has waited.
    pub fn look(&self) {
        let now = self.now();
        let mut looked = now.checked_sub(LOOK).unwrap_or(now);
        let mut state = self.state.lock();
        self.look_now_and_then(&mut state, &mut looked);
        self.look_at_waiters(&mut state);
    }

    /// Ends the waits of those who die, and those whose bound has passed.
    fn look_at_waiters(&self, state: &mut MutexGuard<'_, State>) {
        let callers: Vec<_> = state
            .desk
            .waiting()
            .iter()
            .filter(|waiter| waiter.caller.tid != 0)
            .map(|waiter| (waiter.request, waiter.caller.tid))
            .collect();
        MutexGuard::unlocked(state, || {
            let dying = callers.into_iter().filter(|(_, tid)| caller::is_dying(*tid));
            let dying: Vec<RequestId> = dying.map(|(request, _)| request).collect();
            if !dying.is_empty() {
                self.at_desk(Input::Die(dying));
            }
        });
        let progress = state.seals.freezing().next().is_some()
            || state.present().any(|dataset| !dataset.life.is_settled());
        let effects = self.desk_step(state, Input::Look { progress });
        if !effects.is_empty() {
            MutexGuard::unlocked(state, || self.carry_out_effects(effects));
        }
    }

    /// A program has waited for as long as it may; `led`: while a coordinator was attached.
    fn timed_out(&self, waiter: Waiter, led: bool) {
        match waiter.wanted.clone() {
            Wanted::Directory(op) if !led => self.act_alone(op, waiter.request, waiter.done),
            Wanted::Directory(op) => {
                self.events.error(None, &format!("{op:?} had no answer within {DIRECTORY_MAX:?}"));
                waiter.answer(libc::EIO);
            }
            Wanted::Marker(marker) => {
                let (id, text) = self.why_no_seal(&marker.name);
                self.events.error(id, &text);
                waiter.answer(libc::EIO);
            }
            Wanted::Loose(_) if !led => self.do_alone(waiter),
            Wanted::Loose(_) => {
                self.forget_pending(waiter.request);
                self.events.error(None, &format!("pointer files had no answer within {DIRECTORY_MAX:?}"));
                waiter.answer(libc::EIO);
            }
            Wanted::Fetch(file) => {
                let text = format!("{} is on another node and was not brought here in time", file.path);
                self.events.error(Some(file.id), &text);
                waiter.answer(libc::EIO);
            }
        }
    }

    /// Why a marker's wait ends without an outcome.
    fn why_no_seal(&self, name: &[u8]) -> (Option<DatasetId>, String) {
        let state = self.state.lock();
        let shown = String::from_utf8_lossy(name);
        let attached =
            if state.attached.is_some() { "the coordinator did not end it" } else { "no coordinator" };
        match state.by_name(name) {
            Some(dataset) if dataset.life.is_complete() => {
                (Some(dataset.id), format!("{shown}: undecided, recorded as complete here ({attached})"))
            }
            Some(dataset) => (
                Some(dataset.id),
                format!(
                    "{shown}: undecided, it may later turn out complete ({attached} while it was being sealed)"
                ),
            ),
            None => (None, format!("{shown}: not sealed, {attached}; close the marker again to retry")),
        }
    }

    /// The wait for a successor is over: names that a round held are free again, and seals that
    /// this node has not voted for are dropped (nobody can have recorded them as complete).
    fn successor_did_not_come(&self) {
        let (dropped, given_up) = {
            let state = self.state.lock();
            let owed = state.table.owed.names();
            let given_up: Vec<Vec<u8>> = owed.filter(|name| !state.stays_frozen(name)).cloned().collect();
            (state.never_voted(), given_up)
        };
        let me = self.me.clone();
        self.lanes.local.run(move || {
            if let Some(node) = me.upgrade() {
                node.release_held();
                node.give_up_unfinished();
            }
        });
        let me = self.me.clone();
        self.lanes.records.run(move || {
            let Some(node) = me.upgrade() else { return };
            for id in dropped {
                if node.state.lock().attached.is_none() {
                    node.drop_seal(id, &"the coordinators are gone".into(), Settling::Given);
                }
            }
            if node.state.lock().attached.is_none() {
                node.give_up_owed(&given_up, "the coordinators are gone");
            }
        });
    }
}

impl GlobalRequests for Node {
    fn new_request(&self) -> RequestId {
        self.ids.next()
    }

    fn directory(&self, request: RequestId, op: DirOp, caller: Caller, done: Completion) {
        self.hurry();
        self.ask(request, Wanted::Directory(op), caller, done);
        // Asked again, it may have been decided before it waited here.
        if let Some(errno) = self.tree.decision(request) {
            self.at_desk(Input::Directory(request, errno));
        }
    }

    fn marker(&self, name: &[u8], marking: Marking, caller: Caller, done: Completion) {
        self.hurry();
        // Set on a sealed dataset it asks for the next generation, if any node has changed
        // anything: the lead finds out.
        let base = self.marker_base(name);
        let wanted = Wanted::Marker(Marker { name: name.to_vec(), base, marking });
        self.ask(self.ids.next(), wanted, caller, done);
    }

    fn invalid(&self, name: &[u8]) {
        self.state.lock().send_request(Event::Invalid { name: name.to_vec() });
    }

    fn fetch(&self, id: DatasetId, path: &RelPath, caller: Caller, done: Completion) {
        self.hurry();
        self.verify_or_bring(SealedFile { id, path: path.clone() }, caller, done);
    }

    fn creating(&self, path: &RelPath, program_rank: Option<u32>) -> Result<(), Errno> {
        self.may_grow()?;
        let added = self.journal.lock().creating(path, program_rank);
        added.map_err(|error| self.not_entered(path, &error))
    }

    fn naming(&self, path: &RelPath, program_rank: Option<u32>) -> Result<(), Errno> {
        let added = self.journal.lock().naming(path, program_rank);
        added.map_err(|error| self.not_entered(path, &error))
    }

    fn open_generation(&self, id: DatasetId, done: Completion) {
        self.in_generations(done, move |node, asked| node.change_for_program(id, asked));
    }

    fn keep_sealed(&self, id: DatasetId, path: &RelPath, file: (u64, u64), done: Completion) {
        let path = path.clone();
        self.in_generations(done, move |node, _| node.keep_sealed_file(id, &path, file));
    }

    fn changing(&self, id: DatasetId, path: &RelPath, program_rank: Option<u32>) -> Result<(), Errno> {
        self.may_grow()?;
        self.tell_late(id, path);
        self.in_journal(id, path, |journal, path| journal.changing(path, program_rank))
    }

    fn removing(&self, id: DatasetId, path: &RelPath) -> Result<(), Errno> {
        self.in_journal(id, path, |journal, path| journal.removing(path, id))
    }

    fn staying(&self, id: DatasetId, path: &RelPath, program_rank: Option<u32>) -> Result<(), Errno> {
        self.in_journal(id, path, |journal, path| journal.changing(path, program_rank))
    }

    fn decides(&self) -> bool {
        let state = self.state.lock();
        state.attached.is_some() || state.desk.awaits_successor()
    }

    fn loose(&self, names: Vec<Vec<u8>>, caller: Caller, done: Completion) {
        self.hurry();
        self.loose_changed(&names, caller, done);
    }

    fn loose_closed(&self, name: &[u8]) {
        self.loose_name_closed(name);
    }

    fn room(&self, room: rustix::fs::StatVfs) -> rustix::fs::StatVfs {
        self.narrowed(room)
    }

    fn lost_writes(&self, file: BorrowedFd<'_>) {
        self.cache.lost_writes.add(file);
    }

    fn note(&self, text: String) {
        self.events.info(None, &text);
    }

    fn look(&self, eye: Eye, caller: Caller) -> Result<Vec<u8>, Errno> {
        self.look_at(eye, caller)
    }

    fn post(&self, caller: Caller, text: &str) {
        self.take_message(caller, text);
    }

    fn record(&self, record: &IoRecord) {
        self.events.io(record);
    }

    fn describe(&self, name: &[u8], path: &RelPath) -> Vec<(&'static str, String)> {
        self.facts(name, path)
    }
}

impl Node {
    /// Changes the journal's word on a path of dataset `id`.
    fn in_journal(
        &self,
        id: DatasetId,
        path: &RelPath,
        change: impl FnOnce(&mut super::journal::Journal, &RelPath) -> std::io::Result<()>,
    ) -> Result<(), Errno> {
        let name = self.state.lock().table.datasets.get(&id).map(|dataset| dataset.name.clone());
        let full = name.ok_or(Errno(libc::ESTALE)).and_then(|name| Ok(RelPath::new(name)?.concat(path)?))?;
        change(&mut self.journal.lock(), &full).map_err(|error| {
            self.events.error(Some(id), &format!("{path}: the filemap's journal cannot be written: {error}"));
            Errno(error.raw_os_error().unwrap_or(libc::EIO))
        })
    }

    /// Runs `work` in the records' thread, unless its link is gone by then.
    pub(super) fn in_records(&self, link: u64, work: impl FnOnce(&Self) + Send + 'static) {
        let me = self.me.clone();
        self.lanes.records.run(move || with_link(&me, link, work));
    }
}

/// Runs `work` if the node is there and `link` is attached.
pub(super) fn with_link(node: &std::sync::Weak<Node>, link: u64, work: impl FnOnce(&Node)) {
    let Some(node): Option<Arc<Node>> = node.upgrade() else { return };
    let attached = node.state.lock().is_attached(link);
    if attached {
        work(&node);
    }
}

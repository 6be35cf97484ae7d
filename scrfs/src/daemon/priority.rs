//! Prefers this daemon and its coordinator while somebody waits for them, and gives that back.

use std::time::{Duration, Instant};

use crate::control::server::Peer;
use crate::control::{Command, DataRequest};
use crate::ids::DatasetId;
use crate::lock::Mutex;
use crate::priority::budget::Budget;
use crate::priority::threads::{Reach, Threads};
use crate::priority::{LINGER, Wait, due};
use crate::status::PriorityStatus;

use super::core::waiting::Wanted;
use super::node::Node;
use super::state::State;

/// Of this node's processes. Its lock is taken last, and nothing is waited for under it save system
/// calls.
#[derive(Default)]
pub(super) struct Priority(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    own: Option<Threads>,
    /// The attached coordinator's.
    coordinator: Option<Threads>,
    /// One for all coordinators that attach.
    budget: Option<Budget>,
    /// The last order of the lead, or a program's request, that somebody waits for.
    ordered: Option<Instant>,
    raised: Option<Reach>,
    /// How it is done, or why it cannot be.
    how: String,
    able: bool,
    /// For the events, which have not said it yet.
    news: Option<String>,
    /// They have said it since a coordinator attached.
    told: bool,
}

impl Inner {
    fn raise(&mut self, reach: Reach) {
        let own = self.own.as_mut().map(|threads| threads.raise(reach));
        let coordinator = self.coordinator.as_mut().map(|threads| threads.raise(reach));
        match own.into_iter().chain(coordinator).collect::<Result<Vec<_>, _>>() {
            Ok(means) => {
                self.raised = Some(reach);
                if let Some(means) = means.last() {
                    means.word().clone_into(&mut self.how);
                }
            }
            Err(error) => {
                self.give_back(Instant::now());
                // The next coordinator is another chance.
                self.able = false;
                self.cannot(&error.to_string());
            }
        }
    }

    fn cannot(&mut self, why: &str) {
        self.how = format!("cannot be raised: {why}");
        self.say(format!(
            "daemon and coordinator cannot go before programs that spin: {why}; markers and directories may take \
             longer on a full node: mount as root, with CAP_SYS_NICE, and use root's scrfs-coordinator"
        ));
    }

    fn say(&mut self, text: String) {
        if !std::mem::replace(&mut self.told, true) {
            self.news = Some(text);
        }
    }

    fn budget(&mut self, now: Instant) -> &mut Budget {
        let processors = || std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        self.budget.get_or_insert_with(|| Budget::new(processors(), now))
    }

    /// Counts what raised threads have taken, and steps back when it was too much.
    fn take_stock(&mut self, now: Instant) {
        let used =
            self.own.iter_mut().chain(&mut self.coordinator).map(|threads| threads.take_stock(now)).sum();
        if self.budget(now).spend(used, now) {
            self.step_back();
            "stepped back: their share of the processors is used up".clone_into(&mut self.how);
            self.say(
                "daemon and coordinator have had their share of the processors before all others: for a while they are \
                 processes like any other; if checkpoints take so long on this node, leave one processor to them"
                    .into(),
            );
        }
    }

    fn give_back(&mut self, now: Instant) {
        if self.raised.is_some() {
            self.take_stock(now);
        }
        self.step_back();
    }

    fn step_back(&mut self) {
        self.raised = None;
        self.own.iter_mut().chain(&mut self.coordinator).for_each(Threads::give_back);
    }
}

impl Priority {
    /// A coordinator is attached.
    pub(super) fn attached(&self, peer: &Peer) {
        let taken = peer.held().ok_or_else(|| std::io::Error::other("the kernel does not tell its process"));
        let threads = taken.and_then(|held| Threads::of_coordinator(peer.pid, held));
        let mut inner = self.0.lock();
        inner.give_back(Instant::now());
        inner.ordered = None;
        inner.own = Threads::own().ok();
        inner.able = true;
        inner.told = false;
        inner.how = String::new();
        inner.coordinator = match threads {
            Ok(threads) => Some(threads),
            Err(error) => {
                inner.able = false;
                inner.cannot(&format!("the coordinator: {error}"));
                None
            }
        };
    }

    /// What the events are to say.
    fn news(&self) -> Option<String> {
        self.0.lock().news.take()
    }

    /// The coordinator is gone, or this daemon ends.
    pub(super) fn detached(&self) {
        let mut inner = self.0.lock();
        inner.give_back(Instant::now());
        inner.able = false;
        inner.coordinator = None;
    }

    /// Somebody waits for what comes next; true when that is news, and what is raised has to be
    /// given back some time.
    fn hurry(&self, now: Instant, reach: Reach) -> bool {
        let mut inner = self.0.lock();
        if !inner.able {
            return false;
        }
        inner.ordered = Some(now);
        let before = inner.raised;
        if before >= Some(reach) || before.is_none() && !inner.budget(now).may(now) {
            return false;
        }
        inner.raise(reach);
        before.is_none() && inner.raised.is_some()
    }

    /// Threads have come that are to be raised with the others.
    pub(super) fn joined(&self) {
        let mut inner = self.0.lock();
        if let Some(reach) = inner.raised {
            inner.raise(reach);
        }
    }

    fn ordered(&self) -> Option<Instant> {
        let inner = self.0.lock();
        inner.raised.and(inner.ordered)
    }

    /// For status; `wait` is what waits, if anything does.
    fn status(&self, wait: Option<Wait>) -> PriorityStatus {
        let inner = self.0.lock();
        let raised = inner.raised.is_some();
        let why = wait.filter(|_| raised).map_or_else(String::new, |wait| wait.word().to_owned());
        PriorityStatus { raised, why, how: inner.how.clone() }
    }
}

impl Node {
    /// A program waits for what comes next, here or elsewhere. Not to be called with the state's
    /// lock held: it makes some system calls for each thread, once until it is given back.
    pub(super) fn hurry(&self) {
        let encodes = seal_waited_for(&self.state.lock(), None);
        self.raise(if encodes { Reach::All } else { Reach::Answers });
    }

    fn raise(&self, reach: Reach) {
        if self.priority.hurry(Instant::now(), reach) {
            // The watching thread gives it back.
            self.wake.notify_all();
        }
        self.tell_priority();
    }

    /// Says what there is to be said of it, once for each coordinator. Not with the state's lock
    /// held.
    pub(super) fn tell_priority(&self) {
        let Some(text) = self.priority.news() else { return };
        if rustix::process::geteuid().is_root() {
            self.events.warning(None, &text);
        } else {
            // Without root it is never otherwise.
            self.events.info(None, &text);
        }
    }

    /// A worker of the coordinator asks for something: its threads are new. Programs wait for files
    /// that come from other nodes, or go there, and for the encoding that makes progress.
    pub(super) fn attend(&self, request: &DataRequest) {
        let waited = is_asked_for(request, &self.state.lock());
        if waited {
            self.raise(Reach::All);
        }
        self.priority.joined();
    }

    /// Gives back what nobody needs any more; when to look again, if anything is raised.
    pub(super) fn ease(&self, state: &State) -> Option<Duration> {
        let ordered = self.priority.ordered()?;
        let now = Instant::now();
        let due = due(waits(state, ordered), now).is_some();
        let mut inner = self.priority.0.lock();
        if due {
            inner.take_stock(now);
        } else {
            inner.give_back(now);
        }
        let (raised, news) = (inner.raised.is_some(), inner.news.is_some());
        drop(inner);
        if news {
            let me = self.me.clone();
            self.lanes.room.run(move || {
                if let Some(node) = me.upgrade() {
                    node.tell_priority();
                }
            });
        }
        raised.then_some(LINGER)
    }

    pub(super) fn priority_status(&self, state: &State) -> PriorityStatus {
        let wait = self.priority.ordered().and_then(|ordered| due(waits(state, ordered), Instant::now()));
        self.priority.status(wait.map(|(wait, _)| wait))
    }
}

/// A seal is under way, this one or any, and programs wait for its end.
pub(super) fn seal_waited_for(state: &State, id: Option<DatasetId>) -> bool {
    let background = state.settings.as_ref().is_some_and(|settings| settings.sealing.background);
    state.seals.is_under_way(id) && !background
}

/// Whether a program waits for what a worker of the coordinator asks for, or tells.
pub(super) fn is_asked_for(request: &DataRequest, state: &State) -> bool {
    match request {
        DataRequest::CreateCopy { .. } | DataRequest::Waited => true,
        DataRequest::Progress { id, .. } => seal_waited_for(state, Some(*id)),
        _ => false,
    }
}

/// All that makes this node urgent.
fn waits(state: &State, ordered: Instant) -> Vec<(Wait, Instant)> {
    let waiters = state.desk.waiting().iter().map(|waiter| {
        let wait = match &waiter.wanted {
            Wanted::Marker(_) => Wait::Marker,
            Wanted::Directory(_) | Wanted::Loose(_) => Wait::Directory,
            Wanted::Fetch(_) => Wait::Open,
        };
        (wait, waiter.since)
    });
    // Each order for a seal, and each word of its encoding, shows that it goes on.
    let seal = seal_waited_for(state, None).then_some((Wait::Seal, ordered));
    waiters.chain(seal).chain([(Wait::Order, ordered)]).collect()
}

/// Whether a program waits for what the lead orders with it.
pub(super) fn is_waited_for(command: &Command) -> bool {
    match command {
        Command::DirPrepare { .. }
        | Command::DirApply { .. }
        | Command::DirFinish { .. }
        | Command::AskChanges(_)
        | Command::Freeze { .. }
        | Command::Carry { .. }
        | Command::AllFrozen(_)
        | Command::Drop { .. }
        | Command::Commit(_)
        | Command::Revise(_)
        | Command::Sealed(_)
        | Command::MarkersEnd { .. }
        | Command::Fetched { .. }
        | Command::CopyFromPrefix { .. }
        | Command::LooseAsk { .. }
        | Command::LooseStore { .. }
        | Command::LooseFinish { .. } => true,
        Command::Inventory
        | Command::ReadCatalog(_)
        | Command::Serve
        | Command::DirReplay { .. }
        | Command::DirUnite { .. }
        | Command::Evict(_)
        | Command::FlushMember { .. }
        | Command::MarkFlushed(_)
        | Command::UnmarkFlushed(_)
        | Command::FlushFailed { .. }
        | Command::MarkFailed { .. }
        | Command::Verify(_)
        | Command::RemoveUnsealed
        | Command::Scrub { .. }
        | Command::MarkScrubbed { .. }
        | Command::MarkAbsent { .. }
        | Command::Ping
        | Command::FetchMember { .. }
        | Command::Save(_)
        | Command::Present { .. }
        | Command::Advise(_)
        | Command::LooseInventory
        | Command::ReadLoose(_)
        | Command::LooseBind { .. }
        | Command::LooseForget { .. }
        | Command::LooseShow { .. }
        | Command::Note { .. } => false,
    }
}

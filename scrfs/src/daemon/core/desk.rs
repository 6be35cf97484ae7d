//! The desk: programs that wait for an answer that needs other nodes, from the request to the
//! answer.
//!
//! Each request has a bound. While a coordinator is attached, its lead is asked, and decides.
//! Without one: where none has ever been attached, the node acts alone at once; where one is gone,
//! requests wait for its successor; after one such wait was in vain, the node acts alone at once
//! until a coordinator attaches.

use std::time::{Duration, Instant};

use crate::control::Event;
use crate::ids::{DatasetId, RequestId};

use super::waiting::{Waiter, Waiting, Wanted, attached_bound};

/// A marker while its seal, or one before it, goes on.
const MARKER_MAX: Duration = Duration::from_hours(1);
/// How much a marker's bound moves while there is progress.
const EXTENSION: Duration = Duration::from_secs(5);

/// What the desk decides by, beside what it remembers.
#[derive(Debug, Clone, Copy)]
pub(in crate::daemon) struct Terms {
    /// The node's clock.
    pub(in crate::daemon) now: Instant,
    pub(in crate::daemon) lead: Lead,
    /// How long a successor of the coordinator is awaited.
    pub(in crate::daemon) coordinator_wait: Duration,
    /// How long a seal waits for programs that write.
    pub(in crate::daemon) seal_timeout: Duration,
}

/// Who decides what is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::daemon) enum Lead {
    /// No coordinator is attached.
    Nobody,
    /// One is, and settles: it is asked when it serves.
    Settles,
    /// One is, and is asked.
    Serves,
}

/// What happens.
pub(in crate::daemon) enum Input {
    /// A program asks. Its bound is set here.
    Asks(Waiter),
    /// A coordinator has attached.
    Attached,
    /// The coordinator is gone, or a former worker's is.
    Gone,
    /// The lead serves. Seals whose markers were answered, and that have come to no end, are asked
    /// for with these requests.
    Serves(Vec<(RequestId, Vec<u8>)>),
    /// A directory operation is done on all nodes, or on none (an errno).
    Directory(RequestId, i32),
    /// Pointer files are stored on all nodes, or not (an errno).
    Loose(RequestId, i32),
    /// The file of this request is here, or cannot be had (an errno).
    Fetched(RequestId, i32),
    /// All nodes are frozen for seal `id` of `name`; `background`: no marker waits for more.
    Frozen { name: Vec<u8>, id: DatasetId, background: bool },
    /// The lead has decided on these markers.
    Markers(Vec<RequestId>, i32),
    /// Their processes are about to die.
    Die(Vec<RequestId>),
    /// Time has passed. `progress`: a seal goes on.
    Look { progress: bool },
    /// The daemon ends.
    Stops,
}

/// What follows from an input.
#[derive(Default)]
pub(in crate::daemon) struct Outcome {
    /// What the lead is asked, in this order, before the desk has another input.
    pub(in crate::daemon) questions: Vec<Event>,
    /// What is to be done, in this order.
    pub(in crate::daemon) effects: Vec<Effect>,
}

impl From<Vec<Effect>> for Outcome {
    fn from(effects: Vec<Effect>) -> Self {
        Self { effects, ..Self::default() }
    }
}

/// One thing that is to be done.
pub(in crate::daemon) enum Effect {
    /// The program is answered: 0 or an errno.
    Answer(Waiter, i32),
    /// Nobody leads: this node alone does what it can.
    Alone(Waiter),
    /// The bound has passed, with a coordinator attached or without.
    TimedOut { waiter: Waiter, led: bool },
    /// No successor came in this time: from now on the node acts alone.
    Isolated(Duration),
    /// No successor came: what was kept for it is given up.
    NoSuccessor,
    /// With these markers a seal that was owed has come to its end.
    OwedEnded,
}

/// See the module.
#[derive(Default)]
pub(in crate::daemon) struct Desk {
    waiting: Waiting,
    /// A coordinator was attached, to this worker or to a former one.
    was_attached: bool,
    /// A wait for a successor was in vain.
    is_isolated: bool,
    /// The last coordinator was lost then, and what waits for its successor has not been settled.
    lost_at: Option<Instant>,
}

impl Desk {
    /// At a worker's start.
    pub(in crate::daemon) fn new(was_attached: bool) -> Self {
        Self { was_attached, ..Self::default() }
    }

    pub(in crate::daemon) fn was_attached(&self) -> bool {
        self.was_attached
    }

    /// A coordinator is gone, and its successor is still awaited.
    pub(in crate::daemon) fn awaits_successor(&self) -> bool {
        self.lost_at.is_some()
    }

    /// Nothing changes with time.
    pub(in crate::daemon) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.lost_at.is_none()
    }

    pub(in crate::daemon) fn waiting(&self) -> &Waiting {
        &self.waiting
    }

    /// Takes an input; what follows from it is to be done.
    pub(in crate::daemon) fn step(&mut self, terms: &Terms, input: Input) -> Outcome {
        match input {
            Input::Asks(waiter) => self.asks(terms, waiter),
            Input::Attached => {
                (self.was_attached, self.is_isolated, self.lost_at) = (true, false, None);
                self.waiting.restart_clocks(terms.now, terms.seal_timeout);
                Outcome::default()
            }
            Input::Gone => {
                self.lost_at = Some(terms.now);
                self.waiting.bound_all(terms.now + terms.coordinator_wait);
                Outcome::default()
            }
            Input::Serves(owed) => {
                let owed = self.waiting.owe(owed);
                let questions = owed.into_iter().chain(self.waiting.events()).collect();
                Outcome { questions, ..Outcome::default() }
            }
            Input::Directory(request, errno) => {
                let is_that = |waiter: &Waiter| matches!(waiter.wanted, Wanted::Directory(_));
                answered(self.waiting.take_if(request, is_that), errno).into()
            }
            Input::Loose(request, errno) => {
                let is_that = |waiter: &Waiter| matches!(waiter.wanted, Wanted::Loose(_));
                answered(self.waiting.take_if(request, is_that), errno).into()
            }
            Input::Fetched(request, errno) => answered(self.waiting.take_fetch(request), errno).into(),
            Input::Frozen { name, id, background } => {
                answered(self.waiting.take_unhurried(&name, id, background), 0).into()
            }
            Input::Markers(requests, errno) => {
                let (waiters, owed) = self.waiting.end_markers(&requests);
                let ended = owed.then_some(Effect::OwedEnded);
                answered(waiters, errno).into_iter().chain(ended).collect::<Vec<_>>().into()
            }
            Input::Die(requests) => {
                let waiters = requests.into_iter().filter_map(|request| self.waiting.take(request));
                answered(waiters, libc::EINTR).into()
            }
            Input::Look { progress } => self.look(terms, progress).into(),
            Input::Stops => answered(self.waiting.take_all(), libc::EIO).into(),
        }
    }

    fn asks(&mut self, terms: &Terms, mut waiter: Waiter) -> Outcome {
        let is_led = terms.lead != Lead::Nobody;
        if !is_led && (!self.was_attached || self.is_isolated) {
            return vec![Effect::Alone(waiter)].into();
        }
        let bound =
            if is_led { attached_bound(&waiter.wanted, terms.seal_timeout) } else { terms.coordinator_wait };
        (waiter.since, waiter.deadline) = (terms.now, terms.now + bound);
        // A lead that settles, or comes later, is asked at `Serve`.
        let question = self.waiting.begins(waiter).filter(|_| terms.lead == Lead::Serves);
        Outcome { questions: question.into_iter().collect(), ..Outcome::default() }
    }

    /// Ends the waits whose bound has passed, and the wait for a successor.
    fn look(&mut self, terms: &Terms, progress: bool) -> Vec<Effect> {
        let mut effects = Vec::new();
        let led = terms.lead != Lead::Nobody;
        let goes_on = led && (progress || terms.lead != Lead::Serves);
        let mut over = self.waiting.expired(terms.now, |waiter| {
            let more = goes_on && matches!(waiter.wanted, Wanted::Marker(_));
            (more && terms.now < waiter.since + MARKER_MAX).then(|| terms.now + EXTENSION)
        });
        if !over.is_empty() && !led {
            if !std::mem::replace(&mut self.is_isolated, true) {
                effects.push(Effect::Isolated(terms.coordinator_wait));
                // Everyone else need not wait for what did not come.
                over.extend(self.waiting.take_all());
            }
            self.waiting.forget_fetches();
        }
        let waited = |lost: &mut Instant| terms.now.duration_since(*lost) >= terms.coordinator_wait;
        if !led && self.lost_at.take_if(waited).is_some() {
            effects.push(Effect::NoSuccessor);
        }
        effects.extend(over.into_iter().map(|waiter| Effect::TimedOut { waiter, led }));
        effects
    }
}

fn answered(waiters: impl IntoIterator<Item = Waiter>, errno: i32) -> Vec<Effect> {
    waiters.into_iter().map(|waiter| Effect::Answer(waiter, errno)).collect()
}

#[cfg(test)]
mod tests;

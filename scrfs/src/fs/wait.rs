//! Trying operations: at once, and again after each change of what they wait for
//! ([`super::waits::Waits`]).

use std::sync::{Arc, Weak};
use std::time::Instant;

use super::FileSystem;
use super::caller::fatal_signal_pending;
use super::errno::Stop;
use super::view::World;
use super::waits::{Again, SEAL_MAX, Waiter, Wanted};
use crate::caller::Caller;
use crate::errno::Errno;

/// What the node may have to do for one operation, time after time, before it is given up: files
/// that were brought can be gone again, datasets sealed.
const NEEDS_MAX: u32 = 16;

/// Takes the outcome of an operation, once.
pub type Done<T> = Box<dyn FnOnce(Result<T, Errno>) + Send>;

/// How an operation is tried.
#[derive(Clone, Copy)]
struct Trial {
    /// When it began.
    begun: Instant,
    /// The bound of its waits for others.
    until: Instant,
    /// It has waited for a seal last, which has a bound of its own.
    frozen: bool,
    /// What the node has done for it.
    needs: u32,
    /// How often restarts had presented datasets when it began.
    since: u64,
    /// It changes a sealed dataset.
    changes: bool,
}

impl FileSystem {
    /// Does `step` when nothing it touches is held or frozen, and hands its outcome to `done`.
    /// `step` may run several times; it must not have changed anything when it returns
    /// [`Stop::Wait`], [`Stop::Frozen`] or [`Stop::Need`].
    pub(crate) fn attempt<T, F>(self: &Arc<Self>, caller: Caller, step: F, done: Done<T>)
    where
        T: 'static,
        F: Fn(&Self, &World) -> Result<T, Stop> + Send + 'static,
    {
        let (begun, until) = (self.waits.hands().now(), self.waits.deadline());
        let since = self.view.world().presentations();
        let trial = Trial { begun, until, frozen: false, needs: 0, since, changes: false };
        self.attempt_until(caller, trial, step, done);
    }

    fn attempt_until<T, F>(self: &Arc<Self>, caller: Caller, trial: Trial, step: F, done: Done<T>)
    where
        T: 'static,
        F: Fn(&Self, &World) -> Result<T, Stop> + Send + 'static,
    {
        let world = self.view.world();
        // A restart has presented the dataset: its program has ended, and would change what the
        // next one reads.
        let is_over = trial.since != world.presentations();
        let outcome = match step_unless(is_over && trial.changes, || step(self, &world)) {
            Ok(value) => Ok(value),
            Err(Stop::Errno(error)) => Err(error),
            Err(Stop::Need(need)) if is_over && need.changes() => Err(Errno(libc::EINTR)),
            Err(Stop::Need(_)) if trial.needs >= NEEDS_MAX => Err(Errno(libc::EIO)),
            Err(Stop::Need(need)) => {
                drop(world);
                let begun = self.waits.hands().now();
                let changes = need.changes();
                let again: Again<Self> = Box::new(move |fs, stop| {
                    if let Some(error) = stop {
                        return done(Err(error));
                    }
                    // The bound is that of waits for others, not of what is done for this one.
                    let until = trial.until + fs.waits.hands().now().duration_since(begun);
                    let needs = trial.needs + 1;
                    let next = Trial { until, needs, changes: trial.changes || changes, ..trial };
                    fs.attempt_until(caller, next, step, done);
                });
                let fs = Arc::clone(self);
                if changes {
                    // Queued before it is asked for: it may be met at once.
                    let number = self.queue_for_node(caller, again);
                    let met = move |met: Result<(), Errno>| fs.met(number, met);
                    return self.meet(need, caller, trial.since, Box::new(met));
                }
                // The node itself looks whether these callers die.
                let met = move |met: Result<(), Errno>| again(&fs, met.err());
                return self.meet(need, caller, trial.since, Box::new(met));
            }
            Err(stop @ (Stop::Wait | Stop::Frozen)) => {
                let frozen = stop == Stop::Frozen;
                let until = if trial.frozen && !frozen { self.waits.deadline() } else { trial.until };
                let trial = Trial { until, frozen, ..trial };
                let wanted = if frozen {
                    Wanted::Seal { until, at_most: trial.begun + SEAL_MAX }
                } else {
                    Wanted::Change(until)
                };
                let again: Again<Self> = Box::new(move |fs, stop| match stop {
                    Some(error) => done(Err(error)),
                    None => fs.attempt_until(caller, trial, step, done),
                });
                // Queued before the lock goes: who changes the world after this finds it in the
                // queue.
                self.queue(Waiter { caller, wanted, again });
                return;
            }
        };
        drop(world);
        done(outcome);
    }

    /// The number of what the node is asked to do for `again`.
    fn queue_for_node(self: &Arc<Self>, caller: Caller, again: Again<Self>) -> u64 {
        let number = self.waits.number();
        self.queue(Waiter { caller, wanted: Wanted::Met(number), again });
        number
    }

    /// The node has done what it was asked for under that number. Who waited for it may have had an
    /// answer by now.
    fn met(self: &Arc<Self>, number: u64, met: Result<(), Errno>) {
        let Some(waiter) = self.waits.take(number) else { return };
        let dying = fatal_signal_pending(waiter.caller).then_some(Errno(libc::EINTR));
        (waiter.again)(self, dying.or(met.err()));
    }

    fn queue(self: &Arc<Self>, waiter: Waiter<Self>) {
        let fs = Arc::downgrade(self);
        let start = || std::thread::Builder::new().name("scrfs-held".into()).spawn(move || watch(&fs));
        for refused in self.waits.queue(waiter, || start().map(drop)) {
            (refused.again)(self, Some(Errno(libc::EAGAIN)));
        }
    }

    /// Operations that wait now.
    pub fn waiting(&self) -> usize {
        self.waits.count()
    }

    /// Tries all again if something has changed, and ends the waits that are over. For the thread
    /// that does so, and for simulations.
    pub fn look(self: &Arc<Self>) {
        for waiter in self.waits.changed() {
            (waiter.again)(self, None);
        }
        let decided = self.node.get().is_ok_and(|node| node.decides());
        for (waiter, error) in self.waits.overdue(decided) {
            (waiter.again)(self, Some(error));
        }
    }
}

/// Does a step of an operation, unless that `is_over`.
fn step_unless<T>(is_over: bool, step: impl FnOnce() -> Result<T, Stop>) -> Result<T, Stop> {
    if is_over { super::errno::fail(libc::EINTR) } else { step() }
}

/// Ends with the file system, which it keeps alive only for one look.
fn watch(fs: &Weak<FileSystem>) {
    while let Some(fs) = fs.upgrade() {
        fs.waits.sleep();
        fs.look();
    }
}

//! Operations that wait for a held name or a frozen dataset, or for what the node does before a
//! sealed dataset is changed. They occupy no session thread: what is left to do is kept here. One
//! thread runs again what waits for a change, when something has changed (never the thread that
//! changed it, which may hold locks of the node's), answers EINTR for a caller who has a fatal
//! signal pending, and ETIMEDOUT when the bound of a wait has passed. What waits for the node goes
//! on in the node's thread that answers.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::FileSystem;
use super::caller::fatal_signal_pending;
use super::errno::Stop;
use super::view::World;
use crate::caller::Caller;
use crate::errno::Errno;
use crate::lane::Hands;
use crate::lock::{Condvar, Mutex};

/// How often callers are looked at for fatal signals, of which no event tells.
const LOOK: Duration = Duration::from_millis(100);
/// How long the thread may keep a file system alive that is not used any more.
const IDLE: Duration = Duration::from_secs(5);

/// What the node may have to do for one operation, time after time, before it is given up: files
/// that were brought can be gone again, datasets sealed.
const NEEDS_MAX: u32 = 16;

/// Takes the outcome of an operation, once.
pub type Done<T> = Box<dyn FnOnce(Result<T, Errno>) + Send>;

type Again = Box<dyn FnOnce(&Arc<FileSystem>, Option<Errno>) + Send>;

/// How an operation is tried.
#[derive(Clone, Copy)]
struct Trial {
    /// The bound of its waits for others.
    until: Instant,
    /// What the node has done for it.
    needs: u32,
    /// How often restarts had presented datasets when it began.
    since: u64,
    /// It changes a sealed dataset.
    changes: bool,
}

/// What a waiter waits for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wanted {
    /// A change of the world, until then at most.
    Change(Instant),
    /// The end of what the node does for it, which has this number.
    Met(u64),
}

struct Waiter {
    caller: Caller,
    wanted: Wanted,
    again: Again,
}

#[derive(Default)]
struct List {
    waiters: Vec<Waiter>,
    /// How much the node was asked to do for them.
    asked: u64,
    /// The world has changed since they were tried.
    changed: bool,
    watched: bool,
}

/// The waiting operations of one file system.
pub(crate) struct Waiters {
    hands: Hands,
    list: Mutex<List>,
    some: Condvar,
}

impl Waiters {
    pub(crate) fn new(hands: Hands) -> Self {
        Self { hands, list: Mutex::default(), some: Condvar::default() }
    }

    /// Who does what this file system puts off.
    pub(crate) fn hands(&self) -> &Hands {
        &self.hands
    }
}

impl std::fmt::Debug for Waiters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Waiters({})", self.list.lock().waiters.len())
    }
}

impl FileSystem {
    /// Does `step` when nothing it touches is held or frozen, and hands its outcome to `done`.
    /// `step` may run several times; it must not have changed anything when it returns
    /// [`Stop::Wait`] or [`Stop::Need`].
    pub(crate) fn attempt<T, F>(self: &Arc<Self>, caller: Caller, step: F, done: Done<T>)
    where
        T: 'static,
        F: Fn(&Self, &World) -> Result<T, Stop> + Send + 'static,
    {
        let until = self.waiters.hands.now() + *self.wait_bound.read();
        let since = self.world.read().presentations();
        self.attempt_until(caller, Trial { until, needs: 0, since, changes: false }, step, done);
    }

    fn attempt_until<T, F>(self: &Arc<Self>, caller: Caller, trial: Trial, step: F, done: Done<T>)
    where
        T: 'static,
        F: Fn(&Self, &World) -> Result<T, Stop> + Send + 'static,
    {
        let world = self.world.read();
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
                let begun = self.waiters.hands.now();
                let changes = need.changes();
                let again: Again = Box::new(move |fs, stop| {
                    if let Some(error) = stop {
                        return done(Err(error));
                    }
                    // The bound is that of waits for others, not of what is done for this one.
                    let until = trial.until + fs.waiters.hands.now().duration_since(begun);
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
            Err(Stop::Wait) => {
                let wanted = Wanted::Change(trial.until);
                let again: Again = Box::new(move |fs, stop| match stop {
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
    fn queue_for_node(self: &Arc<Self>, caller: Caller, again: Again) -> u64 {
        let number = {
            let mut list = self.waiters.list.lock();
            list.asked += 1;
            list.asked
        };
        self.queue(Waiter { caller, wanted: Wanted::Met(number), again });
        number
    }

    /// The node has done what it was asked for under that number. Who waited for it may have had an
    /// answer by now.
    fn met(self: &Arc<Self>, number: u64, met: Result<(), Errno>) {
        let waiter = {
            let mut list = self.waiters.list.lock();
            let at = list.waiters.iter().position(|waiter| waiter.wanted == Wanted::Met(number));
            at.map(|at| list.waiters.remove(at))
        };
        let Some(waiter) = waiter else { return };
        let dying = fatal_signal_pending(waiter.caller).then_some(Errno(libc::EINTR));
        (waiter.again)(self, dying.or(met.err()));
    }

    fn queue(self: &Arc<Self>, waiter: Waiter) {
        let mut list = self.waiters.list.lock();
        list.waiters.push(waiter);
        if !list.watched && matches!(self.waiters.hands, Hands::Threads) {
            let fs = Arc::downgrade(self);
            let spawned = std::thread::Builder::new().name("scrfs-held".into()).spawn(move || watch(&fs));
            match spawned {
                Ok(_) => list.watched = true,
                Err(error) => {
                    tracing::error!(%error, "no thread for waiting requests");
                    let refused: Vec<Waiter> = list.waiters.drain(..).collect();
                    drop(list);
                    for waiter in refused {
                        (waiter.again)(self, Some(Errno(libc::EAGAIN)));
                    }
                    return;
                }
            }
        }
        self.waiters.some.notify_one();
    }

    /// Has every waiter tried again; after each change of the world.
    pub(crate) fn wake_waiters(&self) {
        self.waiters.list.lock().changed = true;
        self.waiters.some.notify_one();
    }

    /// Operations that wait now.
    pub fn waiting(&self) -> usize {
        self.waiters.list.lock().waiters.len()
    }

    /// Tries all again if something has changed, and ends the waits that are over. For the thread
    /// that does so, and for simulations.
    pub fn look(self: &Arc<Self>) {
        let again = {
            let mut list = self.waiters.list.lock();
            let changed = std::mem::take(&mut list.changed);
            let tries = |waiter: &mut Waiter| changed && matches!(waiter.wanted, Wanted::Change(_));
            list.waiters.extract_if(.., tries).collect::<Vec<_>>()
        };
        for waiter in again {
            (waiter.again)(self, None);
        }
        self.end_overdue();
    }

    fn end_overdue(self: &Arc<Self>) {
        let now = self.waiters.hands.now();
        let mut ended = Vec::new();
        {
            let mut list = self.waiters.list.lock();
            let mut kept = Vec::with_capacity(list.waiters.len());
            for waiter in list.waiters.drain(..) {
                if fatal_signal_pending(waiter.caller) {
                    ended.push((waiter, libc::EINTR));
                } else if matches!(waiter.wanted, Wanted::Change(until) if now >= until) {
                    ended.push((waiter, libc::ETIMEDOUT));
                } else {
                    kept.push(waiter);
                }
            }
            list.waiters = kept;
        }
        for (waiter, errno) in ended {
            (waiter.again)(self, Some(Errno(errno)));
        }
    }
}

/// Does a step of an operation, unless that `is_over`.
fn step_unless<T>(is_over: bool, step: impl FnOnce() -> Result<T, Stop>) -> Result<T, Stop> {
    if is_over { super::errno::fail(libc::EINTR) } else { step() }
}

/// Ends with the file system, which it keeps alive only for one look.
fn watch(fs: &Weak<FileSystem>) {
    loop {
        let Some(fs) = fs.upgrade() else { return };
        let mut list = fs.waiters.list.lock();
        if !list.changed {
            let at_most = if list.waiters.is_empty() { IDLE } else { LOOK };
            fs.waiters.some.wait_for(&mut list, at_most);
        }
        drop(list);
        fs.look();
    }
}

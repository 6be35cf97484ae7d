//! Who waits: operations for a held name, a frozen dataset or the node, and seals for a dataset to
//! be quiet.
//!
//! A waiting operation occupies no session thread: what is left to do is kept here. One thread runs
//! again what waits for a change, when something has changed (never the thread that changed it,
//! which may hold locks of the node's), answers EINTR for a caller who has a fatal signal pending,
//! and ETIMEDOUT when the bound of a wait has passed. What waits for the node goes on in the node's
//! thread that answers.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::caller::fatal_signal_pending;
use crate::caller::Caller;
use crate::errno::Errno;
use crate::lane::Hands;
use crate::lock::{Condvar, Mutex, RwLock};

/// How often callers are looked at for fatal signals, of which no event tells.
const LOOK: Duration = Duration::from_millis(100);
/// How long the thread may keep a file system alive that is not used any more.
const IDLE: Duration = Duration::from_secs(5);
/// Bound of a wait for a seal or a directory round, until the job's settings are known:
/// `SCRFS_SEAL_TIMEOUT` and `SCRFS_COORDINATOR_WAIT` together.
const WAIT_BOUND: Duration = Duration::from_secs(40);

/// How long an operation waits for a seal that goes on: as a marker may.
pub(crate) const SEAL_MAX: Duration = Duration::from_hours(1);

/// Tries an operation of file system `F` again, or ends it with an error.
pub(crate) type Again<F> = Box<dyn FnOnce(&Arc<F>, Option<Errno>) + Send>;

type Wake = Arc<dyn Fn() + Send + Sync>;

/// What a waiter waits for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// A change of the world, until then at most.
    Change(Instant),
    /// The end of a seal: until then, and while seals are decided until `at_most`.
    Seal { until: Instant, at_most: Instant },
    /// The end of what the node does for it, which has this number.
    Met(u64),
}

/// An operation that waits.
pub(crate) struct Waiter<F> {
    pub(crate) caller: Caller,
    pub(crate) wanted: Wanted,
    pub(crate) again: Again<F>,
}

struct List<F> {
    waiters: Vec<Waiter<F>>,
    /// How much the node was asked to do for them.
    asked: u64,
    /// The world has changed since they were tried.
    changed: bool,
    watched: bool,
}

/// See the module.
pub(crate) struct Waits<F> {
    hands: Hands,
    bound: RwLock<Duration>,
    list: Mutex<List<F>>,
    some: Condvar,
    /// What is to be called when a writable handle of a dataset is released.
    quiet: Mutex<Vec<(Vec<u8>, Wake)>>,
}

impl<F> Waits<F> {
    pub(crate) fn new(hands: Hands) -> Self {
        let list = List { waiters: Vec::new(), asked: 0, changed: false, watched: false };
        Self {
            hands,
            bound: RwLock::leaf(WAIT_BOUND),
            list: Mutex::leaf(list),
            some: Condvar::default(),
            quiet: Mutex::default(),
        }
    }

    /// Who does what this file system puts off.
    pub(crate) fn hands(&self) -> &Hands {
        &self.hands
    }

    pub(crate) fn set_bound(&self, bound: Duration) {
        *self.bound.write() = bound;
    }

    /// When a wait that begins now has to end.
    pub(crate) fn deadline(&self) -> Instant {
        self.hands.now() + *self.bound.read()
    }

    /// A number for what the node is about to be asked to do for a waiter.
    pub(crate) fn number(&self) -> u64 {
        let mut list = self.list.lock();
        list.asked += 1;
        list.asked
    }

    /// Keeps a waiter. `watch` starts the thread that calls [`Waits::sleep`], if there is none;
    /// when it cannot, it is all waiters' end: they are given back.
    pub(crate) fn queue(&self, waiter: Waiter<F>, watch: impl FnOnce() -> io::Result<()>) -> Vec<Waiter<F>> {
        let mut list = self.list.lock();
        list.waiters.push(waiter);
        if !list.watched && matches!(self.hands, Hands::Threads) {
            if let Err(error) = watch() {
                tracing::error!(%error, "no thread for waiting requests");
                return std::mem::take(&mut list.waiters);
            }
            list.watched = true;
        }
        self.some.notify_one();
        Vec::new()
    }

    /// The waiter for whom the node was asked under that number, unless it has had an answer.
    pub(crate) fn take(&self, number: u64) -> Option<Waiter<F>> {
        let mut list = self.list.lock();
        let at = list.waiters.iter().position(|waiter| waiter.wanted == Wanted::Met(number))?;
        Some(list.waiters.remove(at))
    }

    /// Has every waiter tried again; after each change of the world.
    pub(crate) fn wake(&self) {
        self.list.lock().changed = true;
        self.some.notify_one();
    }

    /// Operations that wait now.
    pub(crate) fn count(&self) -> usize {
        self.list.lock().waiters.len()
    }

    /// Returns when something has changed, or callers are to be looked at.
    pub(crate) fn sleep(&self) {
        let mut list = self.list.lock();
        if !list.changed {
            let at_most = if list.waiters.is_empty() { IDLE } else { LOOK };
            self.some.wait_for(&mut list, at_most);
        }
    }

    /// Those who wait for a change, if there was one.
    pub(crate) fn changed(&self) -> Vec<Waiter<F>> {
        let mut list = self.list.lock();
        let changed = std::mem::take(&mut list.changed);
        let tries = |waiter: &mut Waiter<F>| changed && !matches!(waiter.wanted, Wanted::Met(_));
        list.waiters.extract_if(.., tries).collect()
    }

    /// Those whose wait is over, with their errors. `decided`: seals that go on come to their end.
    pub(crate) fn overdue(&self, decided: bool) -> Vec<(Waiter<F>, Errno)> {
        let now = self.hands.now();
        let is_over = |wanted| match wanted {
            Wanted::Change(until) => now >= until,
            Wanted::Seal { until, at_most } => now >= until && (!decided || now >= at_most),
            Wanted::Met(_) => false,
        };
        let end = |waiter: &Waiter<F>| {
            if fatal_signal_pending(waiter.caller) {
                Some(Errno(libc::EINTR))
            } else {
                is_over(waiter.wanted).then_some(Errno(libc::ETIMEDOUT))
            }
        };
        let mut list = self.list.lock();
        let (mut ended, mut kept) = (Vec::new(), Vec::with_capacity(list.waiters.len()));
        for waiter in list.waiters.drain(..) {
            match end(&waiter) {
                Some(error) => ended.push((waiter, error)),
                None => kept.push(waiter),
            }
        }
        list.waiters = kept;
        ended
    }

    /// Calls `wake` at each release of a writable handle in `dataset`, until
    /// [`Waits::end_releases`].
    pub(crate) fn on_release(&self, dataset: &[u8], wake: Wake) {
        self.quiet.lock().push((dataset.to_vec(), wake));
    }

    /// A writable handle in `dataset` is gone.
    pub(crate) fn released(&self, dataset: &[u8]) {
        let wakes: Vec<Wake> = {
            let quiet = self.quiet.lock();
            quiet.iter().filter(|(name, _)| name == dataset).map(|(_, wake)| Arc::clone(wake)).collect()
        };
        for wake in wakes {
            wake();
        }
    }

    /// The seal of `dataset` has ended.
    pub(crate) fn end_releases(&self, dataset: &[u8]) {
        self.quiet.lock().retain(|(name, _)| name != dataset);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lane::Agenda;

    fn waiter(wanted: Wanted) -> Waiter<()> {
        Waiter { caller: Caller::default(), wanted, again: Box::new(|_, _| {}) }
    }

    #[test]
    fn a_wait_ends_by_a_change_by_its_bound_or_by_the_node() {
        let agenda = Arc::new(Agenda::default());
        let waits = Waits::new(Hands::Agenda(Arc::clone(&agenda)));
        let queue = |wanted| waits.queue(waiter(wanted), || Err(io::Error::other("nobody watches")));
        let (bound, number) = (Wanted::Change(waits.deadline()), waits.number());
        assert!(queue(bound).is_empty() && queue(Wanted::Met(number)).is_empty());
        assert!(waits.changed().is_empty() && waits.overdue(true).is_empty() && waits.count() == 2);
        waits.wake();
        assert_eq!((waits.changed().len(), waits.changed().len(), waits.count()), (1, 0, 1));
        queue(bound);
        agenda.pass(WAIT_BOUND);
        let ended: Vec<Errno> = waits.overdue(true).into_iter().map(|(_, error)| error).collect();
        assert_eq!(ended, [Errno(libc::ETIMEDOUT)]);
        let seal = || Wanted::Seal { until: waits.deadline(), at_most: waits.hands.now() + SEAL_MAX };
        queue(seal());
        agenda.pass(WAIT_BOUND);
        assert_eq!((waits.overdue(true).len(), waits.overdue(false).len()), (0, 1), "nobody decides it");
        queue(seal());
        agenda.pass(SEAL_MAX);
        assert_eq!(waits.overdue(true).len(), 1);
        assert!(waits.take(number).is_some() && waits.take(number).is_none());
    }

    #[test]
    fn without_a_thread_that_watches_all_waiters_are_given_back() {
        let waits = Waits::new(Hands::Threads);
        let refused = waits.queue(waiter(Wanted::Met(1)), || Err(io::Error::other("none")));
        assert_eq!((refused.len(), waits.count()), (1, 0));
    }
}

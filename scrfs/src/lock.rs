//! Locks that have a rank: a thread takes them in the order of [`Rank`], so that no two threads can
//! wait for each other. Builds with debug assertions check that at every lock, before they wait;
//! other builds pay nothing.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

/// The order. A thread that holds a lock takes none of the same or of an earlier rank, save for
/// [`Rank::Gate`], of which it may hold two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rank {
    /// A coordinator's connection to its daemon, until that has answered.
    Link,
    /// Directory rounds of the node.
    Rounds,
    /// Next generations of sealed datasets.
    Generations,
    /// The node's records on storage.
    Disk,
    /// Pointer files of the node.
    Loose,
    /// What a reader of a directory has been shown.
    Listing,
    /// What programs see.
    World,
    /// Names in a directory: see [`crate::fs`].
    Gate,
    /// The filemap's journal.
    Journal,
    /// What the node knows, in memory.
    State,
    /// By what an inode, or an open file, is served: the kernel's registration, the daemon's own
    /// descriptor.
    Served,
    /// Inodes that the kernel knows.
    Inodes,
    /// Sealed files on their way into the cache.
    Arriving,
    /// The events' file and what of them is in memory.
    Events,
    /// Which records have intents of requests.
    Intents,
    /// The walk that counts what a cache has taken.
    Walk,
    /// Locks under which no other is taken, save for those that follow here.
    Leaf,
    /// Counters of faults that tests ask for: at every call of a store.
    Faults,
    /// The process's log.
    Log,
    /// The file in which it is.
    LogFile,
}

#[cfg(debug_assertions)]
thread_local! {
    /// Ranks of the locks that this thread holds, in the order in which it took them.
    static HELD: std::cell::RefCell<Vec<Rank>> = const { std::cell::RefCell::new(Vec::new()) };
}

/// A lock of this rank is held, or waited for, by this thread.
#[derive(Debug)]
struct Held(#[cfg(debug_assertions)] Rank);

impl Held {
    #[cfg_attr(not(debug_assertions), expect(unused_variables, reason = "nothing is checked"))]
    fn new(rank: Rank) -> Self {
        #[cfg(debug_assertions)]
        enter(rank);
        Self(
            #[cfg(debug_assertions)]
            rank,
        )
    }

    /// Calls `free` while the lock is not held.
    fn without<R>(&self, free: impl FnOnce() -> R) -> R {
        #[cfg(debug_assertions)]
        leave(self.0);
        let result = free();
        #[cfg(debug_assertions)]
        enter(self.0);
        result
    }
}

#[cfg(debug_assertions)]
impl Drop for Held {
    fn drop(&mut self) {
        leave(self.0);
    }
}

#[cfg(debug_assertions)]
fn enter(rank: Rank) {
    HELD.with_borrow_mut(|held| {
        let in_order = |before: &Rank| *before < rank || (rank == Rank::Gate && *before == rank);
        // Not while this thread panics already: that would hide the reason.
        assert!(
            held.iter().all(in_order) || std::thread::panicking(),
            "the lock of rank {rank:?} is taken while {held:?} are held"
        );
        held.push(rank);
    });
}

#[cfg(debug_assertions)]
fn leave(rank: Rank) {
    HELD.with_borrow_mut(|held| {
        if let Some(at) = held.iter().rposition(|before| *before == rank) {
            held.remove(at);
        }
    });
}

/// A [`parking_lot::Mutex`] with a rank.
#[derive(Debug)]
pub struct Mutex<T> {
    rank: Rank,
    lock: parking_lot::Mutex<T>,
}

/// The lock is held as long as this lives.
#[derive(Debug)]
pub struct Guard<G> {
    guard: G,
    held: Held,
}

/// What [`Mutex::lock`] gives.
pub type MutexGuard<'a, T> = Guard<parking_lot::MutexGuard<'a, T>>;
/// What [`RwLock::read`] gives.
pub type ReadGuard<'a, T> = Guard<parking_lot::RwLockReadGuard<'a, T>>;
/// What [`RwLock::write`] gives.
pub type WriteGuard<'a, T> = Guard<parking_lot::RwLockWriteGuard<'a, T>>;

impl<G: Deref> Deref for Guard<G> {
    type Target = G::Target;

    fn deref(&self) -> &G::Target {
        &self.guard
    }
}

impl<G: DerefMut> DerefMut for Guard<G> {
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.guard
    }
}

impl<T> Mutex<T> {
    /// One of this rank.
    pub const fn new(rank: Rank, value: T) -> Self {
        Self { rank, lock: parking_lot::Mutex::new(value) }
    }

    /// One of [`Rank::Leaf`].
    pub const fn leaf(value: T) -> Self {
        Self::new(Rank::Leaf, value)
    }

    /// Waits for it.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        let held = Held::new(self.rank);
        MutexGuard { guard: self.lock.lock(), held }
    }

    /// `None` when another thread has it.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let held = Held::new(self.rank);
        Some(MutexGuard { guard: self.lock.try_lock()?, held })
    }
}

impl<T: Default> Default for Mutex<T> {
    /// One of [`Rank::Leaf`].
    fn default() -> Self {
        Self::leaf(T::default())
    }
}

impl<T> MutexGuard<'_, T> {
    /// Calls `free` while the lock is not held.
    pub fn unlocked<R>(this: &mut Self, free: impl FnOnce() -> R) -> R {
        let Self { guard, held } = this;
        // Its thread holds no later lock, so that taking it again is in order.
        held.without(|| parking_lot::MutexGuard::unlocked(guard, free))
    }
}

/// A [`parking_lot::Condvar`] for these locks. A thread that waits holds nothing else that others
/// would wait for, so its lock keeps its place meanwhile.
#[derive(Debug, Default)]
pub struct Condvar(parking_lot::Condvar);

impl Condvar {
    /// Wakes one thread that waits.
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Wakes all threads that wait.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }

    /// Waits to be notified.
    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        self.0.wait(&mut guard.guard);
    }

    /// Waits to be notified, for `at_most`.
    pub fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, at_most: Duration) {
        let _ = self.0.wait_for(&mut guard.guard, at_most);
    }

    /// Waits to be notified, until `end`; false when that has come.
    pub fn wait_until<T>(&self, guard: &mut MutexGuard<'_, T>, end: std::time::Instant) -> bool {
        !self.0.wait_until(&mut guard.guard, end).timed_out()
    }

    /// Waits as long as `holds`, until `end`.
    pub fn wait_while_until<T>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        holds: impl FnMut(&mut T) -> bool,
        end: std::time::Instant,
    ) {
        let _ = self.0.wait_while_until(&mut guard.guard, holds, end);
    }
}

/// A [`parking_lot::RwLock`] with a rank.
#[derive(Debug)]
pub struct RwLock<T> {
    rank: Rank,
    lock: parking_lot::RwLock<T>,
}

impl<T> RwLock<T> {
    /// One of this rank.
    pub const fn new(rank: Rank, value: T) -> Self {
        Self { rank, lock: parking_lot::RwLock::new(value) }
    }

    /// One of [`Rank::Leaf`].
    pub const fn leaf(value: T) -> Self {
        Self::new(Rank::Leaf, value)
    }

    /// Waits until nobody writes.
    pub fn read(&self) -> ReadGuard<'_, T> {
        let held = Held::new(self.rank);
        ReadGuard { guard: self.lock.read(), held }
    }

    /// Waits until nobody reads or writes.
    pub fn write(&self) -> WriteGuard<'_, T> {
        let held = Held::new(self.rank);
        WriteGuard { guard: self.lock.write(), held }
    }

    /// For tests: nobody holds it for writing.
    #[cfg(test)]
    pub fn can_be_read(&self) -> bool {
        self.lock.try_read().is_some()
    }

    /// For tests: nobody holds it.
    #[cfg(test)]
    pub fn can_be_written(&self) -> bool {
        self.lock.try_write().is_some()
    }
}

impl<T: Default> Default for RwLock<T> {
    /// One of [`Rank::Leaf`].
    fn default() -> Self {
        Self::leaf(T::default())
    }
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    fn is_refused(take: impl FnOnce()) -> bool {
        catch_unwind(AssertUnwindSafe(take)).is_err()
    }

    #[test]
    fn locks_are_taken_in_one_order() {
        let (disk, state) = (Mutex::new(Rank::Disk, 1), Mutex::new(Rank::State, 2));
        let first = disk.lock();
        assert_eq!(*first + *state.lock(), 3);
        drop(first);
        let late = state.lock();
        assert!(is_refused(|| drop(disk.lock())));
        drop(late);
        drop(disk.lock());
    }

    #[test]
    fn none_is_taken_twice_save_for_gates() {
        let world = RwLock::new(Rank::World, ());
        let read = world.read();
        assert!(is_refused(|| drop(world.read())) && is_refused(|| drop(world.write())));
        drop(read);
        drop(world.write());
        let gates = [RwLock::new(Rank::Gate, ()), RwLock::new(Rank::Gate, ())];
        let both = (gates[0].write(), gates[1].write());
        assert!(!gates[0].can_be_read() && !gates[1].can_be_written());
        drop(both);
    }

    #[test]
    fn while_one_is_let_go_earlier_ones_may_be_taken() {
        let (disk, state) = (Mutex::new(Rank::Disk, ()), Mutex::new(Rank::State, 0));
        let mut guard = state.lock();
        MutexGuard::unlocked(&mut guard, || {
            drop(disk.lock());
            *state.lock() += 1;
        });
        assert_eq!(*guard, 1);
        assert!(is_refused(|| drop(disk.lock())));
        // In whatever order they are let go.
        drop(guard);
        let (first, second) = (disk.lock(), state.lock());
        drop(first);
        assert!(is_refused(|| drop(disk.lock())));
        drop(second);
        drop(disk.lock());
    }
}

//! Operations that wait for a held name or a frozen dataset. They occupy no thread: what is left to do is kept here
//! and runs again when something has changed; a waiter whose caller has a fatal signal pending is answered EINTR, and
//! one that has waited its bound ETIMEDOUT.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::FileSystem;
use super::caller::fatal_signal_pending;
use super::errno::Stop;
use super::world::World;
use crate::daemon::boundary::{Caller, Errno};

/// How often callers are looked at for fatal signals, of which no event tells.
const LOOK: Duration = Duration::from_millis(100);

/// Takes the outcome of an operation, once.
pub type Done<T> = Box<dyn FnOnce(Result<T, Errno>) + Send>;

type Again = Box<dyn FnOnce(&Arc<FileSystem>, Option<Errno>) + Send>;

struct Waiter {
    caller: Caller,
    until: Instant,
    again: Again,
}

/// The waiting operations of one file system.
#[derive(Default)]
pub(crate) struct Waiters {
    list: Mutex<Vec<Waiter>>,
    some: Condvar,
    watched: Mutex<bool>,
}

impl std::fmt::Debug for Waiters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Waiters({})", self.list.lock().len())
    }
}

impl FileSystem {
    /// Does `step` when nothing it touches is held or frozen, and hands its outcome to `done`. `step` may run several
    /// times; it must not have changed anything when it returns [`Stop::Wait`].
    pub(crate) fn attempt<T, F>(self: &Arc<Self>, caller: Caller, step: F, done: Done<T>)
    where
        T: 'static,
        F: Fn(&Self, &World) -> Result<T, Stop> + Send + 'static,
    {
        let until = Instant::now() + *self.wait_bound.read();
        self.attempt_until(caller, until, step, done);
    }

    fn attempt_until<T, F>(self: &Arc<Self>, caller: Caller, until: Instant, step: F, done: Done<T>)
    where
        T: 'static,
        F: Fn(&Self, &World) -> Result<T, Stop> + Send + 'static,
    {
        let world = self.world.read();
        let outcome = match step(self, &world) {
            Ok(value) => Ok(value),
            Err(Stop::Errno(error)) => Err(error),
            Err(Stop::Wait) => {
                let again: Again = Box::new(move |fs, stop| match stop {
                    Some(error) => done(Err(error)),
                    None => fs.attempt_until(caller, until, step, done),
                });
                // Queued before the lock goes: who changes the world after this finds it in the queue.
                self.queue(Waiter { caller, until, again });
                return;
            }
        };
        drop(world);
        done(outcome);
    }

    fn queue(self: &Arc<Self>, waiter: Waiter) {
        self.waiters.list.lock().push(waiter);
        self.waiters.some.notify_one();
        let mut watched = self.waiters.watched.lock();
        if !*watched {
            let fs = Arc::downgrade(self);
            let spawned = std::thread::Builder::new().name("waiters".into()).spawn(move || watch(&fs));
            match spawned {
                Ok(_) => *watched = true,
                // Waiters still end when what they wait for does.
                Err(error) => tracing::error!(%error, "cannot watch waiting requests for signals and time"),
            }
        }
    }

    /// Runs every waiter again; after each change of the world, without its lock.
    pub(crate) fn wake_waiters(self: &Arc<Self>) {
        let all = std::mem::take(&mut *self.waiters.list.lock());
        for waiter in all {
            (waiter.again)(self, None);
        }
    }

    /// Operations that wait now.
    pub fn waiting(&self) -> usize {
        self.waiters.list.lock().len()
    }

    fn end_overdue(self: &Arc<Self>) {
        let now = Instant::now();
        let mut ended = Vec::new();
        {
            let mut list = self.waiters.list.lock();
            let mut kept = Vec::with_capacity(list.len());
            for waiter in list.drain(..) {
                if fatal_signal_pending(waiter.caller) {
                    ended.push((waiter, libc::EINTR));
                } else if now >= waiter.until {
                    ended.push((waiter, libc::ETIMEDOUT));
                } else {
                    kept.push(waiter);
                }
            }
            *list = kept;
        }
        for (waiter, errno) in ended {
            (waiter.again)(self, Some(Errno(errno)));
        }
    }
}

/// Ends with the file system: it holds it only while it looks.
fn watch(fs: &Weak<FileSystem>) {
    loop {
        let Some(fs) = fs.upgrade() else { return };
        let mut list = fs.waiters.list.lock();
        if list.is_empty() {
            fs.waiters.some.wait_for(&mut list, Duration::from_secs(10));
        } else {
            fs.waiters.some.wait_for(&mut list, LOOK);
        }
        drop(list);
        fs.end_overdue();
    }
}

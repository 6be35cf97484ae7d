//! Work in a thread of its own, or in the caller's where no thread can be made (RLIMIT_NPROC, short
//! memory): what then comes one after the other comes late, and comes.

use std::sync::mpsc::{Receiver, channel};
use std::thread::{Builder, Scope, ScopedJoinHandle};

/// Work that was begun. It must not wait for what its starter does later.
#[derive(Debug)]
pub enum Beside<'scope, T> {
    /// In this thread.
    Thread(ScopedJoinHandle<'scope, Option<T>>),
    /// Done already.
    Done(T),
}

/// Begins `work` in a thread of `scope`; where there is none, does it before this returns.
pub fn beside<'scope, T: Send + 'scope, W: FnOnce() -> T + Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    work: W,
) -> Beside<'scope, T> {
    begin(work, |given| Builder::new().spawn_scoped(scope, move || do_given(&given)).ok())
}

fn do_given<T, W: FnOnce() -> T>(given: &Receiver<W>) -> Option<T> {
    given.recv().ok().map(|work| work())
}

/// A thread that cannot be made would take its work with it: it gets that when it is there.
fn begin<'scope, T, W: FnOnce() -> T>(
    work: W,
    spawn: impl FnOnce(Receiver<W>) -> Option<ScopedJoinHandle<'scope, Option<T>>>,
) -> Beside<'scope, T> {
    let (give, given) = channel();
    match spawn(given) {
        Some(thread) => {
            // It is there, and takes it.
            let _ = give.send(work);
            Beside::Thread(thread)
        }
        None => Beside::Done(work()),
    }
}

impl<T> Beside<'_, T> {
    /// Its result; `None`: it panicked in its thread.
    pub fn join(self) -> Option<T> {
        match self {
            Self::Thread(thread) => thread.join().ok().flatten(),
            Self::Done(result) => Some(result),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_done_once_with_a_thread_and_without() {
        let mut done = [0, 0];
        let [one, other] = &mut done;
        let count = |done: &mut u32| {
            *done += 1;
            *done
        };
        std::thread::scope(|scope| {
            let thread = beside(scope, move || count(one));
            let none = begin(move || count(other), |_| None);
            assert!(matches!(none, Beside::Done(1)));
            assert_eq!((thread.join(), none.join()), (Some(1), Some(1)));
        });
        assert_eq!(done, [1, 1]);
    }
}

//! Work in a thread of its own, or in the caller's where no thread can be made (RLIMIT_NPROC, short
//! memory): what then comes one after the other comes late, and comes.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, Scope, ScopedJoinHandle};

/// Work that was begun. It must not wait for what its starter does later.
#[derive(Debug)]
pub enum Beside<'scope, T> {
    /// In this thread.
    Thread(ScopedJoinHandle<'scope, Option<T>>),
    /// Done already.
    Done(Option<T>),
}

/// Begins `work` in a thread of `scope`; where there is none, does it before this returns.
pub fn beside<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    work: impl FnOnce() -> T + Send + 'scope,
) -> Beside<'scope, T> {
    begin(work, |work| Builder::new().spawn_scoped(scope, work).ok())
}

fn begin<'scope, T: Send + 'scope, W: FnOnce() -> T + Send + 'scope>(
    work: W,
    spawn: impl FnOnce(
        Box<dyn FnOnce() -> Option<T> + Send + 'scope>,
    ) -> Option<ScopedJoinHandle<'scope, Option<T>>>,
) -> Beside<'scope, T> {
    // A thread that cannot be made takes its work with it.
    let work = Arc::new(Mutex::new(Some(work)));
    let its = Arc::clone(&work);
    let once = move |work: &Mutex<Option<W>>| {
        let work = work.lock().unwrap_or_else(PoisonError::into_inner).take();
        work.map(|work| work())
    };
    match spawn(Box::new(move || once(&its))) {
        Some(thread) => Beside::Thread(thread),
        None => Beside::Done(once(&work)),
    }
}

impl<T> Beside<'_, T> {
    /// Its result; `None`: it panicked.
    pub fn join(self) -> Option<T> {
        match self {
            Self::Thread(thread) => thread.join().ok().flatten(),
            Self::Done(result) => result,
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
            assert!(matches!(none, Beside::Done(Some(1))));
            assert_eq!((thread.join(), none.join()), (Some(1), Some(1)));
        });
        assert_eq!(done, [1, 1]);
    }
}

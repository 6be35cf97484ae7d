//! One queue for all that wakes a coordinator's loop.
//!
//! The loop sleeps as soon as nothing is there. A channel of crossbeam spins and yields first,
//! which would be in vain: the loop wakes many times a second to look at the transport, and where
//! a program's ranks poll, each yield gives a processor to one of them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use scrfs::lock::{Condvar, Mutex};

/// A queue. Clones are the same one.
pub struct Inbox<T>(Arc<Shared<T>>);

struct Shared<T> {
    queue: Mutex<VecDeque<T>>,
    came: Condvar,
}

impl<T> Inbox<T> {
    /// An empty one.
    pub fn new() -> Self {
        Self(Arc::new(Shared { queue: Mutex::leaf(VecDeque::new()), came: Condvar::default() }))
    }

    /// Puts something in. Never blocks.
    pub fn send(&self, item: T) {
        self.0.queue.lock().push_back(item);
        self.0.came.notify_one();
    }

    /// What was put in first, if anything is there.
    pub fn take(&self) -> Option<T> {
        self.0.queue.lock().pop_front()
    }

    /// The same; waits until something is there, for `limit` at most.
    pub fn wait(&self, limit: Duration) -> Option<T> {
        let end = Instant::now() + limit;
        let mut queue = self.0.queue.lock();
        loop {
            let first = queue.pop_front();
            if first.is_some() || !self.0.came.wait_until(&mut queue, end) {
                return first.or_else(|| queue.pop_front());
            }
        }
    }
}

impl<T> Clone for Inbox<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Default for Inbox<T> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_put_in_is_taken_in_order_and_wakes_who_waits() {
        let inbox = Inbox::new();
        assert_eq!(inbox.wait(Duration::from_millis(1)), None::<u8>);
        inbox.send(1);
        inbox.send(2);
        assert_eq!((inbox.take(), inbox.wait(Duration::ZERO), inbox.take()), (Some(1), Some(2), None));
        let other = inbox.clone();
        let waits = std::thread::spawn(move || other.wait(Duration::from_mins(1)));
        inbox.send(3);
        assert_eq!(waits.join().ok(), Some(Some(3)));
    }
}

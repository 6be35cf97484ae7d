//! One queue for all that wakes a coordinator's loop.
//!
//! The loop sleeps as soon as nothing is there. A channel of crossbeam spins and yields first,
//! which would be in vain: the loop wakes many times a second to look at the transport, and where
//! a program's ranks poll, each yield gives a processor to one of them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use scrfs::lock::{Condvar, Mutex};

/// A queue. Clones are the same one, and what they put in is of the same session.
pub struct Inbox<T> {
    shared: Arc<Shared<T>>,
    /// What is put in here is dropped once this session is over; `None`: never.
    session: Option<u32>,
}

struct Shared<T> {
    queue: Mutex<Queue<T>>,
    came: Condvar,
}

struct Queue<T> {
    session: u32,
    items: VecDeque<(Option<u32>, T)>,
}

impl<T> Queue<T> {
    fn pop(&mut self) -> Option<T> {
        self.items.pop_front().map(|(_, item)| item)
    }
}

impl<T> Inbox<T> {
    /// An empty one, in its first session.
    pub fn new() -> Self {
        let queue = Queue { session: 0, items: VecDeque::new() };
        let shared = Shared { queue: Mutex::leaf(queue), came: Condvar::default() };
        Self { shared: Arc::new(shared), session: Some(0) }
    }

    /// The same queue for what outlives sessions.
    #[must_use]
    pub fn lasting(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), session: None }
    }

    /// The same queue in its next session: what others of former ones have put in, or will, is
    /// dropped.
    #[must_use]
    pub fn next_session(&self) -> Self {
        let mut queue = self.shared.queue.lock();
        queue.session = queue.session.wrapping_add(1);
        queue.items.retain(|(session, _)| session.is_none());
        Self { shared: Arc::clone(&self.shared), session: Some(queue.session) }
    }

    /// Puts something in. Never blocks.
    pub fn send(&self, item: T) {
        let mut queue = self.shared.queue.lock();
        if self.session.is_none_or(|session| session == queue.session) {
            queue.items.push_back((self.session, item));
            drop(queue);
            self.shared.came.notify_one();
        }
    }

    /// What was put in first, if anything is there.
    pub fn take(&self) -> Option<T> {
        self.shared.queue.lock().pop()
    }

    /// The same; waits until something is there, for `limit` at most.
    pub fn wait(&self, limit: Duration) -> Option<T> {
        let end = Instant::now() + limit;
        let mut queue = self.shared.queue.lock();
        loop {
            let first = queue.pop();
            if first.is_some() || !self.shared.came.wait_until(&mut queue, end) {
                return first.or_else(|| queue.pop());
            }
        }
    }
}

impl<T> Clone for Inbox<T> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), session: self.session }
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

    #[test]
    fn what_is_of_a_former_session_is_dropped() {
        let first = Inbox::new();
        let lasting = first.lasting();
        first.send(1);
        lasting.send(2);
        let second = first.next_session();
        first.send(3);
        second.send(4);
        lasting.send(5);
        let all: Vec<u8> = std::iter::from_fn(|| second.take()).collect();
        assert_eq!(all, [2, 4, 5]);
    }
}

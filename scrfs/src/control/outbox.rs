//! Messages to one peer, in order.
//!
//! A short message is sent by the thread that has it, if the socket takes it at once: a request and
//! its answer pass through a dozen threads, and each that need not be woken saves its time. What is
//! long, or comes while something waits, is sent by the connection's own thread.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::codec;
use super::stream::{Sender, StreamError};
use crate::lock::{Condvar, Mutex};

/// Without a beat the connection's thread has nothing to do but to wait.
const NO_BEAT: Duration = Duration::from_hours(1);

/// What an [`Outbox`] takes.
pub trait Message: Serialize {
    /// It is encoded in no time, whatever its sender holds meanwhile.
    fn is_short(&self) -> bool;
}

/// The sending end. Clones share it; with the last one the connection's thread ends, when it has
/// sent all.
pub struct Outbox<T>(Arc<Open<T>>);

impl<T> Clone for Outbox<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

/// Ends the queue when it is dropped.
struct Open<T>(Arc<Shared<T>>);

impl<T> Drop for Open<T> {
    fn drop(&mut self) {
        self.0.queue.lock().is_ending = true;
        self.0.changed.notify_one();
    }
}

struct Shared<T> {
    queue: Mutex<Queue<T>>,
    changed: Condvar,
    /// Messages that may wait.
    most: usize,
}

struct Queue<T> {
    /// `None`: the connection's thread has it, or the connection has not begun.
    sender: Option<Sender>,
    /// The end of a frame of which the socket took the beginning; it goes before what waits.
    rest: Vec<u8>,
    waiting: VecDeque<T>,
    /// No more will come.
    is_ending: bool,
    /// The connection is of no use any more.
    is_broken: bool,
}

/// A message that is sent again and again.
pub struct Beat<T> {
    /// How often.
    pub every: Duration,
    /// It.
    pub message: fn() -> T,
}

/// The connection's thread.
pub struct Carrier<T>(Arc<Shared<T>>);

/// An outbox in which at most `most` messages wait, and who carries them: from
/// [`Carrier::begin`] on.
pub fn outbox<T: Message>(most: usize) -> (Outbox<T>, Carrier<T>) {
    let (sender, rest, waiting) = (None, Vec::new(), VecDeque::new());
    let queue = Queue { sender, rest, waiting, is_ending: false, is_broken: false };
    let shared = Arc::new(Shared { queue: Mutex::leaf(queue), changed: Condvar::default(), most });
    (Outbox(Arc::new(Open(Arc::clone(&shared)))), Carrier(shared))
}

impl<T: Message> Outbox<T> {
    /// Sends a message. Never waits; false when too many wait already.
    pub fn send(&self, message: T) -> bool {
        let shared = &self.0.0;
        // One that cannot be encoded is the thread's to find.
        let frame = if message.is_short() { codec::encode(&message).ok() } else { None };
        let mut queue = shared.queue.lock();
        if queue.is_broken {
            return true;
        }
        if let Some(frame) = frame
            && queue.rest.is_empty()
            && queue.waiting.is_empty()
            && let Some(sender) = &mut queue.sender
        {
            match sender.send_at_once(&frame) {
                Ok(sent) if sent == frame.len() => return true,
                Ok(0) => queue.waiting.push_back(message),
                Ok(sent) => queue.rest = frame[sent..].to_vec(),
                Err(error) => {
                    tracing::debug!(%error, "a control connection is lost");
                    // Who receives from this peer sees it, and tells.
                    sender.close();
                    queue.is_broken = true;
                }
            }
        } else if queue.waiting.len() < shared.most {
            queue.waiting.push_back(message);
        } else {
            return false;
        }
        drop(queue);
        shared.changed.notify_one();
        true
    }
}

impl<T: Message> Carrier<T> {
    /// The connection is ready for messages.
    pub fn begin(&self, sender: Sender) {
        self.0.queue.lock().sender = Some(sender);
    }

    /// Sends what waits, until there is no outbox any more, or the connection is lost.
    ///
    /// # Errors
    /// It is lost.
    pub fn run(&self, beat: Option<&Beat<T>>) -> Result<(), StreamError> {
        let every = beat.map_or(NO_BEAT, |beat| beat.every);
        let mut due = Instant::now() + every;
        while let Some((mut sender, rest, message)) = self.next(due) {
            let due_now = message.is_none() && rest.is_empty();
            let message = message.or_else(|| beat.filter(|_| due_now).map(|beat| (beat.message)()));
            if due_now {
                due = Instant::now() + every;
            }
            let sent = sender.send_rest(&rest).and_then(|()| match &message {
                Some(message) => sender.send(message),
                None => Ok(()),
            });
            let mut queue = self.0.queue.lock();
            if let Err(error) = sent {
                sender.close();
                queue.is_broken = true;
                return Err(error);
            }
            queue.sender = Some(sender);
        }
        Ok(())
    }

    /// What is to be sent next, with the means to send it; nothing but these when the time is due.
    /// `None`: all has been sent, or nothing can be.
    fn next(&self, due: Instant) -> Option<(Sender, Vec<u8>, Option<T>)> {
        let mut queue = self.0.queue.lock();
        loop {
            if queue.is_broken {
                return None;
            }
            let is_due = Instant::now() >= due;
            let has_some = !queue.rest.is_empty() || !queue.waiting.is_empty();
            if has_some || (is_due && !queue.is_ending) {
                let message = if queue.rest.is_empty() { queue.waiting.pop_front() } else { None };
                let (rest, sender) = (std::mem::take(&mut queue.rest), queue.sender.take()?);
                return Some((sender, rest, message));
            }
            if queue.is_ending {
                return None;
            }
            self.0.changed.wait_until(&mut queue, due);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::super::codec::FRAME_MAX;
    use super::super::stream::{self, Receiver};
    use super::*;

    #[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
    struct Text(String);

    impl Message for Text {
        fn is_short(&self) -> bool {
            self.0.len() < 1010
        }
    }

    const LIMIT: Option<Duration> = Some(Duration::from_mins(1));

    fn text(number: usize, len: usize) -> Text {
        Text(format!("{number} {}", "x".repeat(len)))
    }

    fn pair() -> (Outbox<Text>, Carrier<Text>, Receiver) {
        let (here, there) = UnixStream::pair().unwrap();
        let (outbox, carrier) = outbox(10_000);
        carrier.begin(stream::split(here, FRAME_MAX).0);
        (outbox, carrier, stream::split(there, FRAME_MAX).1)
    }

    #[test]
    fn what_is_short_is_sent_by_who_has_it() {
        let (outbox, _carrier, mut receiver) = pair();
        // Nobody runs the carrier.
        for number in 0..3 {
            assert!(outbox.send(text(number, 5)));
        }
        for number in 0..3 {
            assert_eq!(receiver.receive::<Text>(LIMIT).unwrap(), text(number, 5));
        }
    }

    #[test]
    fn all_come_in_order_whatever_their_length_and_however_slowly_they_are_read() {
        let (outbox, carrier, mut receiver) = pair();
        let carrying = std::thread::spawn(move || carrier.run(None));
        let lengths = [5, 5, 50_000, 7, 900, 300_000, 999, 4];
        let all: Vec<Text> = (0..4_000).map(|n| text(n, lengths[n % 8] / (1 + n / 100))).collect();
        let sent = all.clone();
        let sending = std::thread::spawn(move || sent.into_iter().all(|message| outbox.send(message)));
        for message in all {
            assert_eq!(receiver.receive::<Text>(LIMIT).unwrap(), message);
        }
        assert!(sending.join().unwrap());
        // The outbox is gone, and so the carrier ends.
        carrying.join().unwrap().unwrap();
        assert!(matches!(receiver.receive::<Text>(LIMIT), Err(StreamError::Closed)));
    }

    #[test]
    fn a_message_of_which_the_socket_takes_a_part_is_ended_by_the_carrier() {
        let (outbox, carrier, mut receiver) = pair();
        // More than any socket's buffer.
        let all: Vec<Text> = (0..9_000).map(|n| text(n, 990)).collect();
        assert!(all.iter().cloned().all(|message| outbox.send(message)));
        let carrying = std::thread::spawn(move || carrier.run(None));
        for message in all {
            assert_eq!(receiver.receive::<Text>(LIMIT).unwrap(), message);
        }
        drop(outbox);
        carrying.join().unwrap().unwrap();
    }

    #[test]
    fn a_peer_that_is_gone_ends_the_carrier_and_too_many_messages_are_refused() {
        let (outbox, carrier, receiver) = pair();
        assert!((0..20_000).any(|n| !outbox.send(text(n, 5_000))), "there is a bound");
        drop(receiver);
        carrier.run(None).unwrap_err();
        assert!(outbox.send(text(1, 5)), "and nothing waits for a connection that is lost");
        let (outbox, carrier, receiver) = pair();
        drop(receiver);
        assert!(outbox.send(text(1, 5)));
        carrier.run(None).unwrap();
    }

    #[test]
    fn a_beat_comes_by_itself_and_between_messages() {
        let (outbox, carrier, mut receiver) = pair();
        let beat = Beat { every: Duration::from_millis(5), message: || Text("beat".into()) };
        let carrying = std::thread::spawn(move || carrier.run(Some(&beat)));
        assert_eq!(receiver.receive::<Text>(LIMIT).unwrap(), Text("beat".into()));
        assert!(outbox.send(text(7, 5)));
        while receiver.receive::<Text>(LIMIT).unwrap() != text(7, 5) {}
        assert_eq!(receiver.receive::<Text>(LIMIT).unwrap(), Text("beat".into()));
        drop(outbox);
        carrying.join().unwrap().unwrap();
    }
}

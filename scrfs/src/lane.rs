//! Work that is put off: each lane does its own one after another, so that what takes long holds up
//! only its own kind. In a daemon a lane is a thread; in a simulation it is a queue of an
//! [`Agenda`], and whoever simulates says which lane does its next piece of work.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use crate::lock::Mutex;
use crossbeam_channel::Sender;

type Work = Box<dyn FnOnce() + Send>;

/// Who does what a node puts off, and what time it is there.
#[derive(Debug, Clone, Default)]
pub enum Hands {
    /// Threads, by the system's clock.
    #[default]
    Threads,
    /// Whoever simulates this node.
    Agenda(Arc<Agenda>),
}

/// Work that a simulated node has put off, and its clock. Nothing is done, and no time passes, by
/// itself.
#[derive(Debug)]
pub struct Agenda {
    inner: Mutex<Inner>,
}

struct Inner {
    lanes: BTreeMap<&'static str, VecDeque<Work>>,
    now: Instant,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let lengths: BTreeMap<_, _> = self.lanes.iter().map(|(name, queue)| (name, queue.len())).collect();
        write!(f, "{lengths:?}")
    }
}

impl Default for Agenda {
    fn default() -> Self {
        let inner = Inner { lanes: BTreeMap::new(), now: Instant::now() };
        Self { inner: Mutex::leaf(inner) }
    }
}

impl Agenda {
    /// Names of the lanes that have something to do.
    pub fn lanes(&self) -> Vec<&'static str> {
        self.inner.lock().lanes.keys().copied().collect()
    }

    /// Does the first piece of work of this lane; false when it has none.
    pub fn work(&self, lane: &str) -> bool {
        let work = {
            let mut inner = self.inner.lock();
            let Some(queue) = inner.lanes.get_mut(lane) else { return false };
            let work = queue.pop_front();
            if queue.is_empty() {
                inner.lanes.remove(lane);
            }
            work
        };
        work.is_some_and(|work| {
            work();
            true
        })
    }

    /// Time passes.
    pub fn pass(&self, time: Duration) {
        self.inner.lock().now += time;
    }

    fn put(&self, lane: &'static str, work: Work) {
        self.inner.lock().lanes.entry(lane).or_default().push_back(work);
    }
}

impl Hands {
    /// What time it is.
    pub(crate) fn now(&self) -> Instant {
        match self {
            Self::Threads => Instant::now(),
            Self::Agenda(agenda) => agenda.inner.lock().now,
        }
    }

    /// Does `work` beside everything else.
    pub(crate) fn begin(&self, name: &'static str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
        match self {
            Self::Threads => Builder::new().name(name.into()).spawn(work).map(drop),
            Self::Agenda(agenda) => {
                agenda.put(name, Box::new(work));
                Ok(())
            }
        }
    }

    /// Before a wait for what `lane` does: where nobody else goes on meanwhile, all of it is done
    /// now. Not to be called with a lock held.
    pub(crate) fn finish(&self, lane: &str) {
        if let Self::Agenda(agenda) = self {
            while agenda.work(lane) {}
        }
    }
}

/// One queue, and the thread that works it off.
pub(crate) struct Lane(Kind);

enum Kind {
    Thread { queue: Mutex<Option<Sender<Work>>>, thread: Mutex<Option<JoinHandle<()>>> },
    Agenda(Arc<Agenda>, &'static str),
}

impl Lane {
    pub(crate) fn start(hands: &Hands, name: &'static str) -> io::Result<Self> {
        if let Hands::Agenda(agenda) = hands {
            return Ok(Self(Kind::Agenda(Arc::clone(agenda), name)));
        }
        // The lead bounds what it asks for; programs' requests are bounded by their number.
        let (queue, work) = crossbeam_channel::unbounded::<Work>();
        let thread = Builder::new().name(name.into()).spawn(move || work.iter().for_each(|work| work()))?;
        Ok(Self(Kind::Thread { queue: Mutex::leaf(Some(queue)), thread: Mutex::leaf(Some(thread)) }))
    }

    /// For background work: programs and what they wait for come first.
    pub(crate) fn start_nice(hands: &Hands, name: &'static str) -> io::Result<Self> {
        let lane = Self::start(hands, name)?;
        if matches!(lane.0, Kind::Thread { .. }) {
            lane.run(crate::priority::threads::be_nice);
        }
        Ok(lane)
    }

    /// Queues `work`; after [`Lane::stop`] it is dropped.
    pub(crate) fn run(&self, work: impl FnOnce() + Send + 'static) {
        match &self.0 {
            Kind::Thread { queue, .. } => {
                if let Some(queue) = &*queue.lock() {
                    let _ = queue.send(Box::new(work));
                }
            }
            Kind::Agenda(agenda, name) => agenda.put(name, Box::new(work)),
        }
    }

    /// Waits until all queued work is done, and ends the thread.
    pub(crate) fn stop(&self) {
        match &self.0 {
            Kind::Thread { queue, thread } => {
                *queue.lock() = None;
                if let Some(thread) = thread.lock().take()
                    && thread.thread().id() != std::thread::current().id()
                {
                    let _ = thread.join();
                }
            }
            Kind::Agenda(agenda, name) => while agenda.work(name) {},
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn an_agenda_does_one_piece_at_a_time_and_lets_no_time_pass() {
        let agenda = Arc::new(Agenda::default());
        let hands = Hands::Agenda(Arc::clone(&agenda));
        let lane = Lane::start(&hands, "one").unwrap();
        let done = Arc::new(AtomicUsize::new(0));
        for _ in 0..3 {
            let done = Arc::clone(&done);
            lane.run(move || {
                done.fetch_add(1, Ordering::Relaxed);
            });
        }
        hands.begin("two", || {}).unwrap();
        assert_eq!((agenda.lanes(), done.load(Ordering::Relaxed)), (vec!["one", "two"], 0));
        assert!(agenda.work("one") && agenda.work("two") && !agenda.work("two"));
        assert_eq!((agenda.lanes(), done.load(Ordering::Relaxed)), (vec!["one"], 1));
        hands.finish("one");
        assert_eq!((agenda.lanes(), done.load(Ordering::Relaxed)), (vec![], 3));
        let before = hands.now();
        agenda.pass(Duration::from_secs(5));
        assert_eq!(hands.now() - before, Duration::from_secs(5));
    }
}

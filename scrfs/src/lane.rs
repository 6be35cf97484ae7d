//! Threads that work one thing off after another, so that what takes long holds up only its own
//! kind.

use std::io;
use std::thread::{Builder, JoinHandle};

use crate::lock::Mutex;
use crossbeam_channel::Sender;

type Work = Box<dyn FnOnce() + Send>;

/// One thread and its queue.
pub(crate) struct Lane {
    queue: Mutex<Option<Sender<Work>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Lane {
    pub(crate) fn start(name: &str) -> io::Result<Self> {
        // The lead bounds what it asks for; programs' requests are bounded by their number.
        let (queue, work) = crossbeam_channel::unbounded::<Work>();
        let thread = Builder::new().name(name.into()).spawn(move || work.iter().for_each(|work| work()))?;
        Ok(Self { queue: Mutex::leaf(Some(queue)), thread: Mutex::leaf(Some(thread)) })
    }

    /// For background work: programs and what they wait for come first.
    pub(crate) fn start_nice(name: &str) -> io::Result<Self> {
        let lane = Self::start(name)?;
        lane.run(crate::priority::threads::be_nice);
        Ok(lane)
    }

    /// Queues `work`; after [`Lane::stop`] it is dropped.
    pub(crate) fn run(&self, work: impl FnOnce() + Send + 'static) {
        if let Some(queue) = &*self.queue.lock() {
            let _ = queue.send(Box::new(work));
        }
    }

    /// Waits until all queued work is done, and ends the thread.
    pub(crate) fn stop(&self) {
        *self.queue.lock() = None;
        if let Some(thread) = self.thread.lock().take()
            && thread.thread().id() != std::thread::current().id()
        {
            let _ = thread.join();
        }
    }
}

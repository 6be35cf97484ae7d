//! The thread of rank 0 that works in the prefix, one task at a time. A PFS that hangs holds up
//! this thread and no other; the lead waits for none of its outcomes without a limit.

use std::cell::Cell;
use std::io;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded, unbounded};

use crate::control::Reason;

use super::directory::{Arrival, PfsError, Prefix, Result, exists};
use super::lock::Lock;
use super::scavenge::{self, Adoption, Outcome, Progress};
use super::{
    Contents, PfsCause, PfsFailure, PfsOutcome, PfsTask, catalog, flush, halt, index, loose, strangers,
};

/// Between two signs of life of a task that takes long.
const ALIVE: Duration = Duration::from_secs(1);

/// The worker, for the coordinator's loop. It ends with this.
#[derive(Debug)]
pub struct Worker {
    tasks: Sender<PfsTask>,
    ended: Receiver<()>,
}

impl Worker {
    /// Does `task` after those before it.
    pub fn send(&self, task: PfsTask) {
        // The worker lives as long as this sender.
        drop(self.tasks.send(task));
    }

    /// Ends it; false when what it is at takes longer than `limit`.
    pub fn stop(self, limit: Duration) -> bool {
        drop(self.tasks);
        self.ended.recv_timeout(limit) == Err(RecvTimeoutError::Disconnected)
    }
}

/// Starts the worker: it takes tasks in order and tells `done` each one's outcome.
///
/// # Errors
/// No thread can be had.
pub fn start(prefix: Prefix, done: impl Fn(PfsOutcome) + Send + 'static) -> io::Result<Worker> {
    let (tasks, waiting) = unbounded::<PfsTask>();
    let (tell_end, ended) = bounded(1);
    let work = move || {
        let _tells_end: Sender<()> = tell_end;
        crate::priority::threads::be_nice();
        for what in strangers::made(prefix.root(), rustix::process::geteuid().as_raw()) {
            tracing::warn!("{what}: others can read or exchange what the job keeps there");
        }
        for task in waiting {
            done(outcome(&prefix, task, &done));
        }
    };
    std::thread::Builder::new().name("pfs".to_owned()).spawn(work)?;
    Ok(Worker { tasks, ended })
}

/// Does one task now, as the worker does; `busy` is told while it takes long.
pub fn outcome(prefix: &Prefix, task: PfsTask, busy: &dyn Fn(PfsOutcome)) -> PfsOutcome {
    carry_out(prefix, &task, busy).unwrap_or_else(|error| {
        tracing::debug!(%error, "a task on the PFS failed");
        let cause = cause(prefix, &task, &error);
        PfsOutcome::Failed(task, PfsFailure { cause, reason: Reason::of(&error) })
    })
}

/// Whether the dataset is to blame. Not while the prefix as a whole is away: then every file of it
/// seems to be missing. Nor in a swap that could not be settled: then another dataset may be at its
/// place for now.
pub(super) fn cause(prefix: &Prefix, task: &PfsTask, error: &PfsError) -> PfsCause {
    let there = || exists(&prefix.state("index.scr")).unwrap_or(false);
    let settled = || prefix.named("swap.", Arrival::parse).is_ok_and(|swaps| swaps.is_empty());
    if matches!(task, PfsTask::ReadCatalog(_)) && error.is_damage() && there() && settled() {
        PfsCause::Damaged
    } else {
        PfsCause::Unavailable
    }
}

/// Does one task; `busy` is told while it takes long.
pub(super) fn carry_out(prefix: &Prefix, task: &PfsTask, busy: &dyn Fn(PfsOutcome)) -> Result<PfsOutcome> {
    prefix.is_ours()?;
    Ok(match task {
        PfsTask::Survey => {
            match flush::recover(prefix) {
                Err(error @ (PfsError::Superseded(..) | PfsError::Locked { .. })) => return Err(error),
                // What is left over on a PFS that is full or read-only must not hide the datasets
                // that are there.
                Err(error) => tracing::warn!(%error, "what a crash left in the prefix stays for now"),
                Ok(()) => {}
            }
            let saved = adopt(prefix, busy)?;
            PfsOutcome::Surveyed(Contents { datasets: index::survey(prefix)?, ..saved })
        }
        PfsTask::BeginFlush(catalog) => PfsOutcome::FlushBegun(catalog.id, flush::begin(prefix, catalog)?),
        PfsTask::Publish(catalog) => {
            flush::publish(prefix, catalog)?;
            PfsOutcome::Published(catalog.id)
        }
        PfsTask::ReadCatalog(stored) => {
            PfsOutcome::Catalog(stored.clone(), Box::new(catalog::read(prefix, stored)?))
        }
        PfsTask::MarkFailed(stored) => {
            let lock = Lock::take(prefix)?;
            index::mark_failed(prefix, &lock, stored)?;
            PfsOutcome::Marked(stored.id)
        }
        PfsTask::Halt { sealed } => PfsOutcome::Halt(Box::new(halt::count(prefix, *sealed)?)),
        PfsTask::Post { host, text } => {
            halt::post(prefix, host, text)?;
            PfsOutcome::Posted
        }
        PfsTask::PutLoose(set) => {
            prefix.newest()?;
            loose::put(prefix, set)?;
            PfsOutcome::LoosePut(set.age)
        }
        PfsTask::ReadLoose(age) => PfsOutcome::Loose(*age, loose::read(prefix, *age)?.map(Box::new)),
    })
}

/// What nodes have saved when a former job ended without its coordinators, and is not published.
fn adopt(prefix: &Prefix, busy: &dyn Fn(PfsOutcome)) -> Result<Contents> {
    let said = Cell::new(Instant::now());
    let tell = |progress: Progress<'_>| match progress {
        // The lead writes it to the log.
        Progress::Said(text) => busy(PfsOutcome::Busy(Some(text.to_owned()))),
        Progress::Goes if said.get().elapsed() < ALIVE => {}
        Progress::Goes => {
            said.set(Instant::now());
            busy(PfsOutcome::Busy(None));
        }
    };
    match scavenge::adopt_all(prefix, &tell) {
        Ok(adoptions) => {
            for adoption in &adoptions {
                tell(Progress::Said(&format!("scavenged: {adoption}")));
            }
            let mut contents = Contents::default();
            for Adoption { age, outcome, .. } in adoptions {
                match outcome {
                    Outcome::Waits { .. } => contents.partial.push(age),
                    Outcome::Hindered(_) => contents.hindered.push(age),
                    Outcome::Published(_) | Outcome::Stored | Outcome::Superseded { .. } => {}
                }
            }
            Ok(contents)
        }
        Err(error @ (PfsError::Superseded(..) | PfsError::Locked { .. })) => Err(error),
        Err(error) => {
            tracing::warn!(%error, "what nodes have saved stays for now");
            Ok(Contents::default())
        }
    }
}

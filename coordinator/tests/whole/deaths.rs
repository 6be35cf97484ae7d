//! Work in which workers and coordinators may die, and steps of which may fail: a piece of a
//! worker's own, a job, a task on the PFS.
//!
//! Which message of a job a death comes with is the seed's. How far the job's threads are by then
//! is not: a seed that fails there may need several runs.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use scrfs::control::Start;
use scrfs::faults::{self, Died, Fault};
use scrfs::ids::NodeRank;
use scrfs::prefix::{self, PfsOutcome, PfsTask, Prefix};
use scrfs_coordinator::job::Job;
use scrfs_coordinator::lead::Input;

use crate::machine::Machine;
use crate::shares::{self, End, Hazard};
use crate::world::World;

/// Fault points that a worker which is to die passes at most before it does.
const POINTS: usize = 12;
/// Requests of a job's share to its daemon before the one in which something happens.
const REQUESTS: usize = 8;
/// Messages of a job before the one at which its coordinators die.
const MESSAGES: usize = 12;

impl World {
    fn some_errno(&mut self) -> i32 {
        *self.rng.pick(&[libc::EIO, libc::ENOSPC]).expect("some")
    }

    fn some_points(&mut self) -> u32 {
        1 + u32::try_from(self.rng.below(POINTS)).expect("few")
    }

    /// A piece of a worker's work, in which it may die, and which programs may interrupt.
    pub(crate) fn mortal(&mut self, at: usize, is_flush: bool, work: impl FnOnce(&Machine)) {
        let dies = self.deadly && self.rng.rarely(15);
        // A restart takes a file that cannot be read for lost.
        let fails = !dies && self.failing && self.ready && self.rng.rarely(60);
        let points = self.some_points();
        let errno = self.some_errno();
        let fault = if dies { Fault::Death } else { Fault::Error(errno) };
        if is_flush && !dies && self.rng.chance(50) {
            let interruption = self.interruption();
            faults::interrupt("flush", 1 + u32::try_from(self.rng.below(6)).expect("few"), interruption);
            self.counts.interrupted += 1;
        }
        faults::arm(if dies || fails { points } else { 0 }, fault);
        let machine = &self.machines[at];
        let outcome = catch_unwind(AssertUnwindSafe(|| work(machine)));
        faults::arm(0, Fault::Death);
        if let Some(late) = faults::uninterrupted() {
            self.counts.interrupted -= 1;
            late();
        }
        match outcome {
            Ok(()) if dies && self.rng.chance(50) => self.replace_worker(at),
            Ok(()) => {}
            Err(panic) => match panic.downcast::<Died>() {
                Ok(died) => {
                    self.counts.within += 1;
                    self.say(|| format!("  rank {at} dies at {}", died.0));
                    self.replace_worker(at);
                }
                Err(panic) => resume_unwind(panic),
            },
        }
    }

    /// What happens in a job, if anything does. Files are sent often, all else seldom.
    fn hazard(&mut self, job: &Job) -> Hazard {
        let often = if matches!(job, Job::Send { .. }) { 60 } else { 600 };
        let dies = self.deadly && self.rng.rarely(often);
        let fails = !dies && self.failing && self.ready && self.rng.rarely(often);
        if !dies && !fails {
            return Hazard::None;
        }
        if dies && self.rng.chance(50) {
            return Hazard::Stop(1 + self.rng.below(MESSAGES));
        }
        let nodes = job.nodes();
        let rank = *self.rng.pick(&nodes).expect("some");
        let fault = if dies { Fault::Death } else { Fault::Error(self.some_errno()) };
        self.counts.failing += u64::from(fails);
        Hazard::Fault {
            rank,
            request: 1 + self.rng.below(REQUESTS),
            points: self.some_points() / 3 + 1,
            fault,
        }
    }

    /// A job, from its start to its end or to a death in its middle.
    pub(crate) fn run_job(&mut self, at: usize) {
        let (id, job) = self.jobs.swap_remove(at);
        self.counts.rebuilds += u64::from(matches!(job, Job::Rebuild { .. }));
        self.counts.elsewhere += u64::from(matches!(job, Job::Send { .. }));
        let nodes: Vec<_> = self.machines.iter().map(|machine| Arc::clone(&machine.worker.node)).collect();
        let hazard = self.hazard(&job);
        match shares::run(id, &job, (&nodes, self.epoch), self.settings.jobs, hazard) {
            End::Over(results) => {
                self.results.extend(results.into_iter().map(|(rank, result)| (rank, id, result)));
            }
            End::Died(NodeRank(rank), point) => {
                self.counts.in_jobs += 1;
                self.say(|| format!("  rank {rank} dies in {id:?} at {point}"));
                drop(nodes);
                self.replace_worker(rank as usize);
            }
            End::Stopped => {
                self.counts.stopped += 1;
                self.say(|| format!("  coordinators die in {id:?}"));
                self.succeed();
            }
        }
    }

    /// A task on the PFS, in which the coordinator may die.
    pub(crate) fn run_task(&mut self, task: PfsTask) {
        let is_asked_for_ever = matches!(task, PfsTask::Halt { .. });
        let often = if matches!(task, PfsTask::Publish(_)) { 20 } else { 2 };
        let dies = !is_asked_for_ever && self.deadly && self.rng.chance(often);
        let fails = !is_asked_for_ever && !dies && self.failing && self.ready && self.rng.chance(5);
        let (points, errno) = (self.some_points(), self.some_errno());
        self.counts.failing += u64::from(fails);
        let shown = if self.is_traced() { format!("{task:?}") } else { String::new() };
        let prefix = Prefix::new(&self.settings.prefix, self.epoch, "n");
        let fault = if dies { Fault::Death } else { Fault::Error(errno) };
        faults::arm(if dies || fails { points } else { 0 }, fault);
        let outcome = catch_unwind(AssertUnwindSafe(|| prefix::outcome(&prefix, task, &|_| {})));
        faults::arm(0, Fault::Death);
        self.check_published();
        match outcome {
            Ok(outcome) => {
                if let PfsOutcome::Published(id) = &outcome {
                    self.note_published(*id);
                }
                self.feed(Input::Pfs(outcome));
            }
            Err(panic) => match panic.downcast::<Died>() {
                Ok(died) => {
                    self.counts.in_tasks += 1;
                    self.say(|| format!("  the coordinator dies in {shown} at {}", died.0));
                    self.succeed();
                }
                Err(panic) => resume_unwind(panic),
            },
        }
    }

    /// The coordinators die, and others are started at once.
    fn succeed(&mut self) {
        self.kill();
        self.start_again();
    }

    /// Coordinators that died alone are started again.
    pub(crate) fn start_again(&mut self) {
        let restarts = self.start == Start::Restart && !self.ready;
        self.start(if restarts { Start::Restart } else { Start::Attach });
    }
}

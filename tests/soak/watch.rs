//! A job whose program saves checkpoint after checkpoint, and how it loses nodes.

use scrfs_harness::job::{Job, Running};
use scrfs_harness::{Cluster, wait};

use crate::LIMIT;

/// Checkpoints between two losses, so that the node that was rebuilt is protected again.
const BETWEEN: usize = 2;

/// How a node is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Loss {
    /// It crashes, and its peers are told.
    Crash,
    PowerOff,
    /// Its network is gone, and all on it goes on.
    Cut,
    /// It hangs, and its network answers.
    Hang,
}

pub(crate) const LOSSES: [Loss; 4] = [Loss::Crash, Loss::PowerOff, Loss::Cut, Loss::Hang];

impl Loss {
    pub(crate) fn befall(self, cluster: &Cluster, node: usize) {
        match self {
            Self::Crash => cluster.kill(node),
            Self::PowerOff => cluster.poweroff(node),
            Self::Cut => cluster.cut(node),
            Self::Hang => cluster.freeze(node),
        }
    }

    /// The node comes back: with what it had, or empty.
    pub(crate) fn undo(self, job: &Job<'_>, cluster: &Cluster, node: usize) {
        match self {
            Self::Cut => cluster.uncut(node),
            Self::Hang => cluster.thaw(node),
            Self::Crash | Self::PowerOff => {
                cluster.boot(node).expect("it boots");
                job.mount([node]);
            }
        }
    }
}

/// What the log of the job's program tells.
pub(crate) struct Watch<'a> {
    pub(crate) cluster: &'a Cluster,
    pub(crate) job: Job<'a>,
}

impl Watch<'_> {
    pub(crate) fn starts(&self) -> usize {
        self.job.log().iter().filter(|line| line.starts_with("start after ")).count()
    }

    pub(crate) fn newest(&self) -> u64 {
        self.job.sealed().last().copied().unwrap_or(0)
    }

    /// The dataset of the newest start, of which there is one more than `before`.
    pub(crate) fn await_start(&self, run: &mut Running, before: usize) -> u64 {
        let begun = |run: &mut Running| {
            assert_eq!(run.try_code(), None, "{}\n{:?}", run.output(), self.tail());
            (self.starts() > before).then_some(())
        };
        let seen = wait::poll(LIMIT, || begun(run));
        assert!(seen.is_some(), "no start: {}\n{:?}", run.output(), self.tail());
        let log = self.job.log();
        let mut starts = log.iter().filter_map(|line| line.strip_prefix("start after ")?.parse().ok());
        starts.next_back().expect("a start")
    }

    /// It goes on from the newest checkpoint, or the one that was being sealed.
    pub(crate) fn goes_on(&self, run: &mut Running, starts: usize, newest: u64) {
        let from = self.await_start(run, starts);
        let fits = from == newest || from == newest + 1;
        assert!(fits, "from {from}, but {newest} was sealed: {}\n{:?}", run.output(), self.tail());
    }

    pub(crate) fn tail(&self) -> Vec<String> {
        let log = self.job.log();
        log[log.len().saturating_sub(20)..].to_vec()
    }

    pub(crate) fn await_checkpoints(&self, run: &mut Running) {
        let before = self.job.sealed().len();
        let sealed = wait::poll(LIMIT, || {
            assert_eq!(run.try_code(), None, "{}\n{:?}", run.output(), self.tail());
            (self.job.sealed().len() >= before + BETWEEN).then_some(())
        });
        assert!(sealed.is_some(), "no checkpoints: {}\n{:?}", run.output(), self.tail());
    }
}

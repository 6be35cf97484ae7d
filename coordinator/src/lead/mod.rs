//! The lead: orders directory operations, drives seals, flushes and recovery. A state machine: inputs in, outputs out;
//! no file, socket, clock, thread or MPI.

use scrfs::control::{Command, Event, Settings, Start};
use scrfs::ids::{Epoch, NodeRank};

use crate::job::{Job, JobId, JobResult};
use crate::pfs::{PfsOutcome, PfsTask};

/// What the lead is told.
#[derive(Debug, Clone, PartialEq)]
pub enum Input {
    /// Once, first: the epoch begins, all daemons have accepted it.
    Begin {
        /// This epoch.
        epoch: Epoch,
        /// Host names by rank.
        hosts: Vec<String>,
        /// How it starts.
        start: Start,
        /// The job's settings.
        settings: Settings,
    },
    /// A daemon said something.
    Daemon(NodeRank, Event),
    /// A node's share of a job ended.
    Job(NodeRank, JobId, JobResult),
    /// A PFS task ended.
    Pfs(PfsOutcome),
    /// Time passed: microseconds since 1970, never going back.
    Now(u64),
}

/// What the lead wants.
#[derive(Debug, Clone, PartialEq)]
pub enum Output {
    /// To one node's daemon.
    Command(NodeRank, Command),
    /// To every node that [`Job::nodes`] names.
    Start(JobId, Job),
    /// To the PFS worker; one at a time, in order.
    Pfs(PfsTask),
    /// The mounts present their dataset, programs may start (the name of current, if any): scrfs-run waits for this.
    Ready(Option<Vec<u8>>),
    /// For the log.
    Note(String),
}

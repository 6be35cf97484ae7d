//! The first frame of each connection and its answer, and what operators ask.

use serde::{Deserialize, Serialize};

use super::{Reason, Settings};
use crate::ids::{DatasetId, Epoch, NodeRank};

/// Version of this protocol; both ends must have the same.
pub const PROTOCOL: u32 = 27;

/// First frame of every connection.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Hello {
    /// [`PROTOCOL`] of the caller.
    pub protocol: u32,
    /// What kind of connection this is.
    pub role: Role,
}

/// Who connects.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Role {
    /// The node's coordinator. Refused when its epoch is below the highest seen.
    Coordinator {
        /// Its epoch.
        epoch: Epoch,
        /// Its rank.
        rank: NodeRank,
        /// Host names of all coordinators, indexed by rank.
        hosts: Vec<String>,
        /// How it starts.
        start: Start,
        /// The job's settings, the lead's values.
        settings: Box<Settings>,
    },
    /// A worker of the coordinator of `epoch`.
    Data {
        /// Refused unless it is the attached coordinator's.
        epoch: Epoch,
    },
    /// A tool.
    Operator,
}

/// The two ways coordinators start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Start {
    /// No program runs: choose a dataset, rebuild, present it, remove junk.
    Restart,
    /// Programs run: settle what is in doubt; present, hide and remove nothing.
    Attach,
}

/// The daemon's answer to [`Hello`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Welcome {
    /// Go on.
    Accepted,
    /// Closed after this, with the reason (and the highest epoch seen).
    Refused {
        /// For the log.
        reason: String,
        /// The highest epoch that this daemon has seen.
        highest: Epoch,
        /// Asking again is of no use.
        lasting: bool,
    },
}

/// An operator's question.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ask {
    /// Everything `scrfs-ctl status` shows.
    Status,
    /// The newest events, at most this many.
    Events(u32),
    /// Begin or end the records of what programs do with each file.
    RecordIo(bool),
    /// Have a dataset flushed; `None`: the newest protected one.
    Flush(Option<Vec<u8>>),
    /// Have the cached bytes of the dataset of this name compared with their checksums.
    Scrub(Vec<u8>),
    /// Datasets are in this directory, as `SCRFS_CHECKPOINT_PATH` says it; to be asked again while
    /// another worker takes over.
    CheckpointPath(Vec<u8>),
    /// The job whose coordinators had this epoch has ended: its `scrfs-run` says so when nothing of
    /// it runs any more.
    JobEnded(Epoch),
    /// Unmount and end, as SIGTERM does.
    Stop,
    /// The job has ended: save this node's part of the newest dataset in the prefix, if it is not
    /// on the PFS.
    Scavenge {
        /// Give up after so many milliseconds.
        limit_ms: u64,
    },
}

impl Ask {
    /// It changes nothing: operators may ask it of every job.
    pub fn only_reads(&self) -> bool {
        matches!(self, Self::Status | Self::Events(_))
    }
}

/// The daemon's answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Answer {
    /// To [`Ask::Status`].
    Status(Box<crate::status::NodeStatus>),
    /// To [`Ask::Events`], oldest first, a JSON line each.
    Events(Vec<String>),
    /// To [`Ask::RecordIo`], [`Ask::CheckpointPath`] and [`Ask::JobEnded`].
    Done,
    /// To [`Ask::CheckpointPath`]: another worker is about to take over, and serves by it.
    Reloading,
    /// To [`Ask::Flush`].
    Flush(Flushable),
    /// To [`Ask::Scrub`].
    Scrub(Flushable),
    /// To [`Ask::Stop`].
    Stopping,
    /// To [`Ask::Scavenge`].
    Scavenged(Scavenged),
    /// Not allowed or not possible.
    Failed(String),
}

/// What becomes of the wish that a dataset be flushed, or scrubbed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Flushable {
    /// No dataset is protected, so there is none to be flushed.
    None,
    /// There is no dataset of that name here.
    Unknown,
    /// It is not sealed.
    Unsealed,
    /// Its bytes are not to be trusted, for this reason.
    Failed(String),
    /// It is on the PFS.
    Done(Named),
    /// The lead was asked to do so.
    Asked(Named),
    /// No coordinator serves, and it is not on the PFS for which it is wanted.
    NoCoordinator(Named),
}

/// What became of the wish that this node's part of the newest dataset be saved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Scavenged {
    /// There is nothing to be saved here, for this reason.
    Nothing(Reason),
    /// A coordinator is attached: it flushes, nobody else.
    Attached,
    /// Each dataset that was to be saved, and how it stands; or why it is not saved.
    Tried(Vec<(Named, Result<String, Reason>)>),
}

/// A dataset and its id.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Named {
    /// Its id.
    pub id: DatasetId,
    /// Its directory's name.
    pub name: Vec<u8>,
}

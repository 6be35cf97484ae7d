//! What coordinators say to one another, beside blocks ([`crate::jobs::block`]).

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read};

use scrfs::control::{Command, Event, Reason, Settings, Start};
use scrfs::ids::Epoch;
use serde::{Deserialize, Serialize};

use crate::fold::Fold;
use crate::groups::FailureGroups;
use crate::job::{Job, JobId, JobResult};
use crate::jobs::block::Stream;
use crate::tree::Ranks;

/// A control message between coordinators.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum PeerMessage {
    /// To the lead, first: this node is there.
    Greeting(Box<Greeting>),
    /// From the lead, through the tree: greet your daemon with this.
    Begin(Box<Opening>),
    /// To the lead: the daemon has accepted.
    Attached,
    /// From the node above in the tree: the next control message from there is the lead's, for
    /// these nodes.
    Pass(Ranks),
    /// From a node below in the tree: what nodes there say to the lead.
    Fold(Fold),
    /// From the lead, for the daemon.
    Relay(Command),
    /// From the daemon, for the lead.
    Report(Event),
    /// From the lead: run your share.
    StartJob(JobId, Box<Job>),
    /// To the lead: the shares here have ended.
    JobDone(JobId, JobResult),
    /// To the sender of a block: it was consumed.
    Credit {
        /// Which job.
        job: JobId,
        /// Between which shares.
        stream: Stream,
    },
    /// To the other nodes of a job: a share failed here, do not wait for it. From the lead: what
    /// the job is for has failed.
    JobAbort {
        /// Which job.
        job: JobId,
        /// Why.
        reason: Reason,
    },
    /// To the lead: the link to the daemon here is lost. From the lead: the epoch is opened anew,
    /// with greetings in the next session.
    Reopen,
    /// The coordinators end.
    Leave,
}

impl PeerMessage {
    /// Many nodes say such a thing at the same time, and no program waits for this one alone.
    pub fn is_one_of_many(&self) -> bool {
        match self {
            Self::Report(event) => event.is_one_of_many(),
            Self::JobDone(..) => true,
            Self::Greeting(_)
            | Self::Begin(_)
            | Self::Attached
            | Self::Pass(_)
            | Self::Fold(_)
            | Self::Relay(_)
            | Self::StartJob(..)
            | Self::Credit { .. }
            | Self::JobAbort { .. }
            | Self::Reopen
            | Self::Leave => false,
        }
    }
}

/// A node introduces itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Greeting {
    /// Its host's name.
    pub host: String,
    /// The highest epoch that its daemon has seen.
    pub epoch: Epoch,
    /// Where it is watched ([`crate::watch`]); 0: nowhere.
    pub watch_port: u16,
    /// Where it is rung at ([`crate::bell`]); 0: nowhere.
    pub bell_port: u16,
    /// Of which failure groups it is, by their kind.
    pub groups: BTreeMap<String, String>,
    /// Its settings.
    pub settings: Settings,
    /// Which of them were set there by hand.
    pub by_hand: BTreeSet<String>,
}

/// What coordinators of one epoch know one another by.
#[derive(Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct EpochSecret(pub [u8; 16]);

impl EpochSecret {
    /// A new one.
    pub fn random() -> io::Result<Self> {
        let mut bytes = [0; 16];
        File::open("/dev/urandom")?.read_exact(&mut bytes)?;
        Ok(Self(bytes))
    }

    /// Somebody said this secret. The time that the answer takes tells nothing about it.
    pub fn is_said(&self, said: &[u8]) -> bool {
        let differs = said.iter().zip(self.0).fold(0, |differs, (said, byte)| differs | (said ^ byte));
        said.len() == self.0.len() && differs == 0
    }
}

impl std::fmt::Debug for EpochSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("EpochSecret")
    }
}

/// How the epoch opens.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Opening {
    /// The epoch.
    pub epoch: Epoch,
    /// Host names by rank.
    pub hosts: Vec<String>,
    /// Of which failure groups they are; for the lead only, others are told none.
    pub groups: FailureGroups,
    /// Where each of them is watched.
    pub watch_ports: Vec<u16>,
    /// And rung at.
    pub bell_ports: Vec<u16>,
    /// What is said there first; strangers do not know it.
    pub secret: EpochSecret,
    /// How the coordinators start.
    pub start: Start,
    /// The fan-out of the tree in which the lead's messages travel ([`crate::tree`]).
    pub fanout: u32,
    /// The lead's settings.
    pub settings: Settings,
    /// For every node's events: what went wrong in the opening.
    pub notes: Vec<String>,
}

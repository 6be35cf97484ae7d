//! The opening of an epoch: who is there, which epoch, whose settings; then every daemon is
//! greeted.
//!
//! Every wait here is bounded; whoever cannot go on ends the coordinators' job with the reason.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

use scrfs::control::{Settings, Start};
use scrfs::ids::NodeRank;

use crate::comm::{CommError, Lane, Received, Transport};
use crate::groups::FailureGroups;
use crate::message::{Greeting, Opening, PeerMessage, WatchSecret};
use crate::{epoch, settings};

/// The others' mounts may be late by [`crate::node::MOUNT_LIMIT`]; starting them and making the
/// epoch takes time too.
const PEERS_LIMIT: Duration = Duration::from_mins(2);
/// A PFS that does not answer must not keep the job from starting.
const PREFIX_LIMIT: Duration = Duration::from_secs(20);
/// Between two polls while nothing comes.
const POLL: Duration = Duration::from_millis(2);

/// Why coordinators cannot open an epoch.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The transport failed.
    #[error(transparent)]
    Comm(#[from] CommError),
    /// Not everybody answered.
    #[error("no {what} from rank(s) {missing} within {limit} s")]
    Missing {
        /// What was awaited.
        what: &'static str,
        /// Ranks, comma separated.
        missing: String,
        /// Seconds.
        limit: u64,
    },
    /// Nodes were given different settings.
    #[error("settings differ: {0}")]
    Settings(String),
    /// Nodes have no failure group of the kind that is asked for.
    #[error("{0}")]
    Groups(String),
    /// Two coordinators on one node would protect nothing.
    #[error("{0} has more than one coordinator")]
    SameHost(String),
    /// A message that is none.
    #[error("rank {0} sent something that is no message: {1}")]
    Message(NodeRank, String),
    /// A peer ended before the epoch began.
    #[error("rank {0} ended before the epoch began")]
    Ended(NodeRank),
}

/// What came out of turn and belongs to the loop.
pub type Early = Vec<Received>;

/// Encodes a control message of rank `me`.
pub fn encode(me: NodeRank, message: &PeerMessage) -> Result<Vec<u8>, OpenError> {
    postcard::to_stdvec(message).map_err(|e| OpenError::Message(me, e.to_string()))
}

/// Encodes and sends a control message.
pub fn send(transport: &mut impl Transport, to: NodeRank, message: &PeerMessage) -> Result<(), OpenError> {
    let bytes = encode(transport.rank(), message)?;
    Ok(transport.send(to, Lane::Control, bytes)?)
}

/// Decodes a control message.
pub fn decode(from: NodeRank, bytes: &[u8]) -> Result<PeerMessage, OpenError> {
    postcard::from_bytes(bytes).map_err(|e| OpenError::Message(from, e.to_string()))
}

/// Introduces this node to the lead and learns how the epoch opens. What else comes meanwhile is
/// put into `early`.
pub fn introduce(
    transport: &mut impl Transport,
    greeting: Greeting,
    start: Start,
    early: &mut Early,
) -> Result<Opening, OpenError> {
    let me = transport.rank();
    send(transport, NodeRank(0), &PeerMessage::Greeting(Box::new(greeting)))?;
    if me == NodeRank(0) {
        let opening = open(transport, start, early)?;
        // Only the lead lays out sets.
        let told = Opening { groups: FailureGroups::default(), ..opening.clone() };
        for rank in (1..transport.size()).map(NodeRank) {
            send(transport, rank, &PeerMessage::Begin(Box::new(told.clone())))?;
        }
        return Ok(opening);
    }
    let mut begun = None;
    gather(transport, "opening", &[NodeRank(0)], early, |_, message| match message {
        PeerMessage::Begin(opening) => {
            begun = Some(*opening);
            Ok(())
        }
        other => Err(other),
    })?;
    begun.ok_or(OpenError::Ended(NodeRank(0)))
}

/// The lead's part: hears all, makes the epoch.
fn open(transport: &mut impl Transport, start: Start, early: &mut Early) -> Result<Opening, OpenError> {
    let everybody: Vec<_> = (0..transport.size()).map(NodeRank).collect();
    let mut greetings = BTreeMap::new();
    gather(transport, "greeting", &everybody, early, |from, message| match message {
        PeerMessage::Greeting(greeting) => {
            greetings.insert(from, *greeting);
            Ok(())
        }
        other => Err(other),
    })?;
    let mine = greetings.get(&NodeRank(0)).map(|g| (g.settings.clone(), g.host.clone()));
    let Some((settings, host)) = mine else { return Err(OpenError::Ended(NodeRank(0))) };
    let hosts = agreed_hosts(&greetings, &settings)?;
    let nodes = greetings.values().map(|greeting| (greeting.host.as_str(), &greeting.groups));
    let groups = FailureGroups::of(&settings, &nodes.collect::<Vec<_>>()).map_err(OpenError::Groups)?;
    let seen = greetings.values().map(|g| g.epoch).max().unwrap_or_default();
    let prefix = Path::new(std::ffi::OsStr::from_bytes(&settings.prefix));
    let limit = match start {
        Start::Restart => PREFIX_LIMIT,
        // Programs wait for us, and go on alone when that takes too long.
        Start::Attach => PREFIX_LIMIT.min(Duration::from_millis(settings.coordinator_wait_ms) / 2),
    };
    let (epoch, problem) = epoch::begin(prefix, seen, &settings.job_id, &host, limit);
    let note = |error| {
        let prefix = prefix.display();
        format!(
            "{prefix} cannot be written ({error}): epoch {epoch} follows what can be known without, nothing is flushed"
        )
    };
    let notes = problem.map(note).into_iter().collect();
    let watch_ports = greetings.values().map(|g| g.watch_port).collect();
    // Without one all the same: then whoever asks may watch.
    let watch_secret = WatchSecret::random().unwrap_or_else(|error| {
        tracing::warn!(%error, "no secret for those who watch one another");
        WatchSecret::default()
    });
    Ok(Opening { epoch, hosts, groups, watch_ports, watch_secret, start, settings, notes })
}

fn agreed_hosts(
    greetings: &BTreeMap<NodeRank, Greeting>,
    settings: &Settings,
) -> Result<Vec<String>, OpenError> {
    let mut hosts = Vec::with_capacity(greetings.len());
    let mut differing = Vec::new();
    for greeting in greetings.values() {
        if hosts.contains(&greeting.host) {
            return Err(OpenError::SameHost(greeting.host.clone()));
        }
        if let Err(text) = settings::agree(&greeting.host, &greeting.settings, &greeting.by_hand, settings) {
            differing.push(text);
        }
        hosts.push(greeting.host.clone());
    }
    if differing.is_empty() { Ok(hosts) } else { Err(OpenError::Settings(differing.join("; "))) }
}

/// This node's daemon has accepted: the lead waits until all have.
pub fn attached(transport: &mut impl Transport, early: &mut Early) -> Result<(), OpenError> {
    send(transport, NodeRank(0), &PeerMessage::Attached)?;
    if transport.rank() != NodeRank(0) {
        return Ok(());
    }
    let everybody: Vec<_> = (0..transport.size()).map(NodeRank).collect();
    gather(transport, "word that its daemon accepted", &everybody, early, |_, message| match message {
        PeerMessage::Attached => Ok(()),
        other => Err(other),
    })
}

/// Waits for one fitting message of each of `from`. `take` gives back what does not fit; that goes
/// to `early`.
fn gather(
    transport: &mut impl Transport,
    what: &'static str,
    from: &[NodeRank],
    early: &mut Early,
    mut take: impl FnMut(NodeRank, PeerMessage) -> Result<(), PeerMessage>,
) -> Result<(), OpenError> {
    let mut missing: Vec<_> = from.to_vec();
    let end = Instant::now() + PEERS_LIMIT;
    while !missing.is_empty() {
        let Some(received) = transport.poll()? else {
            if Instant::now() >= end {
                let missing = missing.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
                return Err(OpenError::Missing { what, missing, limit: PEERS_LIMIT.as_secs() });
            }
            std::thread::sleep(POLL);
            continue;
        };
        if received.lane == Lane::Bulk {
            early.push(received);
            continue;
        }
        match decode(received.from, &received.bytes)? {
            PeerMessage::Leave => return Err(OpenError::Ended(received.from)),
            message => match take(received.from, message) {
                Ok(()) => missing.retain(|rank| *rank != received.from),
                Err(_) => early.push(received),
            },
        }
    }
    Ok(())
}

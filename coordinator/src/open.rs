//! The opening of an epoch: who is there, which epoch, whose settings; then every daemon is
//! greeted.
//!
//! Every wait here is bounded; whoever cannot go on ends the coordinators' job with the reason.

use std::collections::{BTreeMap, HashSet};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use scrfs::control::{Settings, Start};
use scrfs::ids::{Epoch, NodeRank};

use crate::comm::{CommError, Lane, Received, Transport};
use crate::groups::FailureGroups;
use crate::message::{EpochSecret, Greeting, Opening, PeerMessage};
use crate::tree::{FANOUT, Place};
use crate::{epoch, settings};

/// The others' mounts may be late by [`crate::node::MOUNT_LIMIT`]; starting them and making the
/// epoch takes time too.
const PEERS_LIMIT: Duration = Duration::from_mins(2);
/// A PFS that does not answer must not keep the job from starting.
const PREFIX_LIMIT: Duration = Duration::from_secs(20);
/// Who is slow to hear of the opening hears of it later.
const PASS_LIMIT: Duration = Duration::from_secs(5);
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
    /// These coordinators are not to take the nodes from those.
    #[error("coordinators of epoch {0} have begun, which is newer than {1}")]
    Superseded(Epoch, Epoch),
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

/// How this coordinator was asked to begin; what rank 0 was asked holds.
#[derive(Debug, Clone, Copy)]
pub struct Asked {
    /// How to start.
    pub start: Start,
    /// `SCRFS_FANOUT`.
    pub fanout: u32,
    /// The opening before this one, where these coordinators open anew: its epoch and secret. An
    /// epoch above that is of others, which have begun since.
    pub before: Option<(Epoch, EpochSecret)>,
}

/// Introduces this node to the lead and learns how the epoch opens. What else comes meanwhile is
/// put into `early`.
///
/// # Errors
/// The transport failed, or somebody did not answer in time or cannot take part.
pub fn introduce(
    transport: &mut impl Transport,
    greeting: Greeting,
    asked: Asked,
    early: &mut Early,
) -> Result<Opening, OpenError> {
    send(transport, NodeRank(0), &PeerMessage::Greeting(Box::new(greeting)))?;
    // Settings are not agreed upon yet: the fan-out is the usual one.
    let place = Place::new(transport.rank(), transport.size(), FANOUT);
    let Some(parent) = place.parent() else {
        let opening = open(transport, asked, early)?;
        // Only the lead lays out sets.
        let told = Opening { groups: FailureGroups::default(), ..opening.clone() };
        pass_on(transport, place, told, early)?;
        return Ok(opening);
    };
    let mut begun = None;
    gather(transport, "opening", &[parent], early, |_, message| match message {
        PeerMessage::Begin(opening) => {
            begun = Some(*opening);
            Ok(())
        }
        other => Err(other),
    })?;
    let opening = begun.ok_or(OpenError::Ended(parent))?;
    pass_on(transport, place, opening.clone(), early)?;
    Ok(opening)
}

/// Returns when it has left: this node's daemon, which is greeted next, may take its time.
fn pass_on(
    transport: &mut impl Transport,
    place: Place,
    opening: Opening,
    early: &mut Early,
) -> Result<(), OpenError> {
    let bytes = Arc::new(encode(transport.rank(), &PeerMessage::Begin(Box::new(opening)))?);
    for child in place.children() {
        transport.send(child, Lane::Control, Arc::clone(&bytes))?;
    }
    let end = Instant::now() + PASS_LIMIT;
    while !transport.is_drained() && Instant::now() < end {
        match transport.poll()? {
            Some(received) => early.push(received),
            None => std::thread::sleep(POLL),
        }
    }
    Ok(())
}

/// The lead's part: hears all, makes the epoch.
fn open(transport: &mut impl Transport, asked: Asked, early: &mut Early) -> Result<Opening, OpenError> {
    let Asked { start, fanout, before } = asked;
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
    if let Some((mine, _)) = before {
        let newest = epoch::newest(prefix, limit / 2).unwrap_or_default().max(seen);
        if newest > mine {
            return Err(OpenError::Superseded(newest, mine));
        }
    }
    let (epoch, problem) = epoch::begin(prefix, seen, &settings.job_id, &host, limit);
    let note = |error| {
        let prefix = prefix.display();
        format!(
            "{prefix} cannot be written ({error}): epoch {epoch} follows what can be known without, nothing is flushed"
        )
    };
    let notes = problem.map(note).into_iter().collect();
    let (watch_ports, bell_ports) = greetings.values().map(|g| (g.watch_port, g.bell_port)).unzip();
    // Who watches and who rings goes on from one session to the next. Without one all the same:
    // then whoever asks may.
    let secret = before.map_or_else(EpochSecret::random, |(_, secret)| Ok(secret));
    let secret = secret.unwrap_or_else(|error| {
        tracing::warn!(%error, "no secret for those who watch one another and ring");
        EpochSecret::default()
    });
    Ok(Opening { epoch, hosts, groups, watch_ports, bell_ports, secret, start, fanout, settings, notes })
}

fn agreed_hosts(
    greetings: &BTreeMap<NodeRank, Greeting>,
    settings: &Settings,
) -> Result<Vec<String>, OpenError> {
    let mut hosts = Vec::with_capacity(greetings.len());
    let mut seen = HashSet::with_capacity(greetings.len());
    let mut differing = Vec::new();
    for greeting in greetings.values() {
        if !seen.insert(&greeting.host) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comm::sim;

    /// More than the lead has children: some hear of the opening from others.
    #[test]
    fn an_epoch_opens_for_all_nodes_through_the_tree() {
        const SIZE: u32 = 40;
        let place = tempfile::tempdir().unwrap();
        let prefix = place.path().as_os_str().as_bytes().to_vec();
        let (transports, _) = sim::world(SIZE, 7, Duration::from_micros(500));
        let opened: Vec<_> = std::thread::scope(|scope| {
            let ranks = transports.into_iter().map(|mut transport| {
                let settings = Settings { prefix: prefix.clone(), ..settings::tests::settings() };
                scope.spawn(move || {
                    let rank = transport.rank();
                    let greeting = Greeting {
                        host: format!("n{rank}"),
                        epoch: Epoch(u64::from(rank.0)),
                        watch_port: 1,
                        bell_port: u16::try_from(rank.0).unwrap(),
                        groups: BTreeMap::new(),
                        settings,
                        by_hand: std::collections::BTreeSet::new(),
                    };
                    let (asked, mut early) =
                        (Asked { start: Start::Restart, fanout: 3, before: None }, Early::new());
                    let opening = introduce(&mut transport, greeting, asked, &mut early).unwrap();
                    attached(&mut transport, &mut early).unwrap();
                    assert!(early.is_empty());
                    opening
                })
            });
            let ranks: Vec<_> = ranks.collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        });
        assert_eq!((opened[0].hosts.len(), opened[0].bell_ports[39], opened[0].fanout), (40, 39, 3));
        assert!(opened[0].epoch > Epoch(39));
        assert!(opened.iter().all(|opening| *opening == opened[0]));
    }
}

//! The transport between coordinators: ranks, owned messages, polling.
//!
//! Nothing here blocks. One thread owns the transport: it hands over owned buffers with
//! [`Transport::send`] and takes what came with [`Transport::poll`]. A dead peer is an error, and
//! every error is fatal: the coordinators' job ends and new ones are started.
//!
//! Coordinators may open their epochs anew without new processes: each time is a session of its
//! own, and no message reaches one in another ([`Transport::next_session`]).
//!
//! * [`buffers`]: what bulk messages are in
//! * [`sim`]: ranks in one process over channels, with seeded delays and kill, for tests
//! * `mpi` (feature `mpi`): the real one

pub mod buffers;
#[cfg(feature = "mpi")]
pub mod mpi;
pub mod sim;

use std::cmp::Ordering;
use std::sync::Arc;

use scrfs::ids::NodeRank;

use self::buffers::Buffers;

/// Longest message in bytes. MPI counts are 32-bit; a catalog of
/// [`scrfs::control::Settings::list_max`] names stays far below.
pub const MESSAGE_BYTES_MAX: usize = 1 << 30;

/// Bytes of bulk messages that may be on their way from one rank before [`Transport::has_room`]
/// says no.
pub const BULK_BYTES_MAX: usize = 32 << 20;

/// How a session of `theirs` is to this rank in `mine`: `Equal` now, `Greater` later, `Less` never.
/// Sessions are counted modulo `count`.
fn compare(theirs: u32, mine: u32, count: u32) -> Ordering {
    match (theirs + count - mine) % count {
        0 => Ordering::Equal,
        1 => Ordering::Greater,
        _ => Ordering::Less,
    }
}

/// Two queues, so that a directory round never waits behind checkpoint data. Order holds within a
/// lane between two ranks, not between lanes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lane {
    /// Commands, events, credits.
    Control,
    /// Blocks of jobs.
    Bulk,
}

/// A message that came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Received {
    /// Who sent it.
    pub from: NodeRank,
    /// In which queue.
    pub lane: Lane,
    /// What.
    pub bytes: Vec<u8>,
}

/// Why a transport cannot go on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CommError {
    /// Larger than [`MESSAGE_BYTES_MAX`].
    #[error("message of {0} bytes to rank {1} is too long")]
    TooLong(usize, NodeRank),
    /// No such rank.
    #[error("rank {0} does not exist")]
    NoSuchRank(NodeRank),
    /// A peer is gone.
    #[error("rank {0} is gone")]
    PeerLost(NodeRank),
    /// This rank was killed (simulation).
    #[error("this rank was killed")]
    Killed,
    /// The library below reports a code.
    #[error("{call} failed with code {code}")]
    Library {
        /// Name of the call.
        call: &'static str,
        /// What it returned.
        code: i32,
    },
    /// The library below cannot be used as needed.
    #[error("{0}")]
    Unusable(String),
}

/// Ranks that exchange owned messages.
pub trait Transport {
    /// This rank.
    fn rank(&self) -> NodeRank;

    /// How many ranks there are.
    fn size(&self) -> u32;

    /// Takes `bytes`, which may be on their way to others too, and sends them in the background.
    /// Sending to oneself works.
    fn send(&mut self, to: NodeRank, lane: Lane, bytes: impl Into<Arc<Vec<u8>>>) -> Result<(), CommError>;

    /// Moves sends on and returns a message that has come, control before bulk.
    fn poll(&mut self) -> Result<Option<Received>, CommError>;

    /// Where the buffers of bulk messages are taken from when they come, and go to when they were
    /// sent.
    fn buffers(&self) -> &Buffers;

    /// False while [`BULK_BYTES_MAX`] or more bytes are on their way: hold bulk messages back,
    /// control may go.
    fn has_room(&self) -> bool;

    /// True when nothing that was sent is still in this rank's hands.
    fn is_drained(&self) -> bool;

    /// The next session begins for this rank: of messages that others sent in former ones none is
    /// given any more, and those that others have sent in theirs come now. Nobody may be ahead by
    /// more than one.
    fn next_session(&mut self);

    /// A message is on its way here, and moves on with polls.
    fn is_receiving(&self) -> bool {
        false
    }
}

/// The checks that every transport makes before it takes a message.
fn check(to: NodeRank, size: u32, bytes: usize) -> Result<(), CommError> {
    if to.0 >= size {
        return Err(CommError::NoSuchRank(to));
    }
    if bytes > MESSAGE_BYTES_MAX {
        return Err(CommError::TooLong(bytes, to));
    }
    Ok(())
}

//! A block of bytes on its way between two shares of a job, with room in front for its address: it
//! is filled, combined, sent and received in one buffer.

use scrfs::ids::NodeRank;

use crate::comm::buffers::Buffers;
use crate::job::JobId;

/// Bytes in front of the payload: job (8), stream's source and target position (4 each). Keeps the
/// payload aligned for wide XOR.
const HEADER: usize = 16;

/// One direction between two shares of a job, by their positions in the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stream {
    /// The share that sends.
    pub from: u32,
    /// The share that receives.
    pub to: u32,
}

/// A payload and the room for its address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block(Vec<u8>);

impl Block {
    /// A payload of `len` zero bytes.
    pub fn zeroed(len: usize) -> Self {
        Self(vec![0; HEADER + len])
    }

    /// A payload of `len` bytes that somebody else has used: whatever is in them.
    pub fn used(len: usize, buffers: &Buffers) -> Self {
        Self(buffers.take(HEADER + len))
    }

    /// One that carries these bytes.
    pub fn of(payload: &[u8], buffers: &Buffers) -> Self {
        let mut block = Self::used(payload.len(), buffers);
        block.payload_mut().copy_from_slice(payload);
        block
    }

    /// It was read, and another block may have its buffer.
    pub fn free(self, buffers: &Buffers) {
        buffers.give(self.0);
    }

    /// Takes the last `len` bytes of it away; `None` where it has no more than these.
    pub fn split_last(&mut self, len: usize, buffers: &Buffers) -> Option<Self> {
        let rest = self.payload().len().checked_sub(len).filter(|rest| *rest > 0)?;
        let last = Self::of(&self.payload()[rest..], buffers);
        self.0.truncate(HEADER + rest);
        Some(last)
    }

    /// The bytes it carries.
    pub fn payload(&self) -> &[u8] {
        &self.0[HEADER..]
    }

    /// The bytes it carries.
    pub fn payload_mut(&mut self) -> &mut [u8] {
        &mut self.0[HEADER..]
    }

    /// The message for the transport.
    pub fn into_message(mut self, job: JobId, stream: Stream) -> Vec<u8> {
        self.0[..8].copy_from_slice(&job.0.to_le_bytes());
        self.0[8..12].copy_from_slice(&stream.from.to_le_bytes());
        self.0[12..HEADER].copy_from_slice(&stream.to.to_le_bytes());
        self.0
    }

    /// Reads a message of the transport; `None` when it is too short to be one.
    pub fn from_message(bytes: Vec<u8>) -> Option<(JobId, Stream, Self)> {
        let job = u64::from_le_bytes(bytes.get(..8)?.try_into().ok()?);
        let from = u32::from_le_bytes(bytes.get(8..12)?.try_into().ok()?);
        let to = u32::from_le_bytes(bytes.get(12..HEADER)?.try_into().ok()?);
        Some((JobId(job), Stream { from, to }, Self(bytes)))
    }
}

/// What a job's workers hand to the transport's thread.
#[derive(Debug, PartialEq)]
pub enum Outgoing {
    /// A block for the node of `stream.to`.
    Block {
        /// Where that share runs.
        node: NodeRank,
        /// The job.
        job: JobId,
        /// Between which shares.
        stream: Stream,
        /// The bytes.
        block: Block,
    },
    /// One block of `stream` was consumed: its sender may send another.
    Credit {
        /// Where the sending share runs.
        node: NodeRank,
        /// The job.
        job: JobId,
        /// Between which shares.
        stream: Stream,
    },
    /// All shares of this node have ended.
    Ended {
        /// The job.
        job: JobId,
        /// How.
        result: crate::job::JobResult,
        /// The other nodes that take part: on failure they are told, so that nobody waits for this
        /// node.
        peers: Vec<NodeRank>,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_keeps_its_address_and_payload() {
        let mut block = Block::zeroed(3);
        block.payload_mut().copy_from_slice(b"abc");
        let stream = Stream { from: 3, to: 700 };
        let bytes = block.clone().into_message(JobId(9), stream);
        let (job, s, b) = Block::from_message(bytes).unwrap();
        assert_eq!((job, s, b.payload()), (JobId(9), stream, &b"abc"[..]));
        assert!(Block::from_message(vec![0; 15]).is_none());
    }

    #[test]
    fn the_last_bytes_are_taken_away() {
        let buffers = Buffers::default();
        let mut block = Block::of(b"abcdef", &buffers);
        let last = block.split_last(2, &buffers).unwrap();
        assert_eq!((block.payload(), last.payload()), (&b"abcd"[..], &b"ef"[..]));
        assert_eq!(block.split_last(4, &buffers), None);
    }
}

//! A block of bytes on its way between two shares of a job. Its address goes before it as a message
//! of its own, so that one block can be sent to many.

use std::collections::BTreeMap;
use std::sync::Arc;

use scrfs::ids::NodeRank;
use serde::{Deserialize, Serialize};

use crate::comm::buffers::Buffers;
use crate::job::JobId;

/// One direction between two shares of a job, by their positions in the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Stream {
    /// The share that sends.
    pub from: u32,
    /// The share that receives.
    pub to: u32,
    /// Of which strip of the set, where that is encoded; else 0.
    pub strip: u32,
}

/// Bytes of a job that one share fills, combines or receives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block(Vec<u8>);

impl Block {
    /// `len` zero bytes.
    pub fn zeroed(len: usize) -> Self {
        Self(vec![0; len])
    }

    /// `len` bytes that somebody else has used: whatever is in them.
    pub fn used(len: usize, buffers: &Buffers) -> Self {
        Self(buffers.take(len))
    }

    /// One that carries these bytes.
    pub fn of(payload: &[u8], buffers: &Buffers) -> Self {
        let mut block = Self::used(payload.len(), buffers);
        block.payload_mut().copy_from_slice(payload);
        block
    }

    /// One that came.
    pub fn received(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    /// It was read, and another block may have its buffer.
    pub fn free(self, buffers: &Buffers) {
        buffers.give(self.0);
    }

    /// Takes the last `len` bytes of it away; `None` where it has no more than these.
    pub fn split_last(&mut self, len: usize, buffers: &Buffers) -> Option<Self> {
        let rest = self.0.len().checked_sub(len).filter(|rest| *rest > 0)?;
        let last = Self::of(&self.0[rest..], buffers);
        self.0.truncate(rest);
        Some(last)
    }

    /// The bytes it carries.
    pub fn payload(&self) -> &[u8] {
        &self.0
    }

    /// The bytes it carries.
    pub fn payload_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

impl From<Block> for Arc<Vec<u8>> {
    fn from(block: Block) -> Self {
        Self::new(block.0)
    }
}

/// Of which job a block is, and between which of its shares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Address {
    /// The job.
    pub job: JobId,
    /// Between which shares.
    pub stream: Stream,
}

impl Address {
    /// The message that announces a block: job (8 bytes), the stream's source and target position,
    /// and strip (4 each).
    pub fn to_message(self) -> Vec<u8> {
        let Self { job, stream: Stream { from, to, strip } } = self;
        let stream = [from, to, strip].map(u32::to_le_bytes);
        [&job.0.to_le_bytes()[..], stream.as_flattened()].concat()
    }

    fn from_message(bytes: &[u8]) -> Option<Self> {
        let (job, stream) = bytes.split_first_chunk()?;
        let ([from, to, strip], []) = stream.as_chunks() else { return None };
        let [from, to, strip] = [from, to, strip].map(|number| u32::from_le_bytes(*number));
        Some(Self { job: JobId(u64::from_le_bytes(*job)), stream: Stream { from, to, strip } })
    }
}

/// What other nodes have announced; of each node at most one block.
#[derive(Debug, Default)]
pub struct Announced(BTreeMap<NodeRank, Address>);

/// A message between shares.
#[derive(Debug, PartialEq, Eq)]
pub enum Arrival {
    /// A block will come from there.
    Announced,
    /// It came.
    Block(Address, Block),
    /// It is neither.
    Senseless,
}

impl Announced {
    /// Takes the next message of the bulk lane from a node. They come in the order in which they
    /// were sent.
    pub fn take(&mut self, from: NodeRank, bytes: Vec<u8>) -> Arrival {
        if let Some(address) = self.0.remove(&from) {
            return Arrival::Block(address, Block::received(bytes));
        }
        let Some(address) = Address::from_message(&bytes) else { return Arrival::Senseless };
        self.0.insert(from, address);
        Arrival::Announced
    }
}

/// What a job's workers hand to the transport's thread.
#[derive(Debug, PartialEq)]
pub enum Outgoing {
    /// A block for the share at the stream's end.
    Block {
        /// Where that share runs.
        node: NodeRank,
        /// Whose it is.
        address: Address,
        /// What is in it.
        bytes: Arc<Vec<u8>>,
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
    fn a_block_comes_behind_its_address() {
        let address = |to| Address { job: JobId(9 << 40), stream: Stream { from: 3, to, strip: to % 3 } };
        let (mut announced, one, other) = (Announced::default(), NodeRank(1), NodeRank(2));
        assert_eq!(announced.take(one, address(700).to_message()), Arrival::Announced);
        assert_eq!(announced.take(other, address(7).to_message()), Arrival::Announced);
        // Whatever is in it.
        let block = |bytes| Block::received(bytes);
        let looks_like_one = address(8).to_message();
        let came = announced.take(one, looks_like_one.clone());
        assert_eq!(came, Arrival::Block(address(700), block(looks_like_one)));
        assert_eq!(announced.take(other, vec![5]), Arrival::Block(address(7), block(vec![5])));
        for length in [0, 19, 21, 24] {
            assert_eq!(announced.take(one, vec![0; length]), Arrival::Senseless);
        }
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

//! In which order a set's members walk their blocks, so that reading, sending and writing overlap.
//!
//! [`encode_steps`] says what a member does with one block of each column. Here several blocks go
//! round the ring at a time, step by step, so that no member waits for one block's whole way.

use std::ops::Range;

use scrfs::redundancy::geometry::{Geometry, blocks};
use scrfs::redundancy::kernel::{add_multiple, multiply_by};
use scrfs::redundancy::plan::{EncodeStep, encode_steps};

use super::block::Block;
use super::streams::WINDOW;
use crate::comm::buffers::Buffers;

/// Blocks on their way at a time. A member is at most this many ahead of what it has consumed, and
/// so never stopped by its credit for good.
const ABREAST: u32 = 4;
const _: () = assert!(ABREAST <= WINDOW, "credit must cover the blocks on their way");

/// One step with one block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Turn {
    /// What is done.
    pub step: EncodeStep,
    /// Which bytes of the chunk.
    pub block: Range<u64>,
}

/// The turns of `member` when a set is encoded, in order. All members walk the same blocks at the
/// same turn, so what is due from a neighbour was sent by one that is no further than we are.
pub fn encode_turns(geometry: Geometry, member: usize, block: usize) -> impl Iterator<Item = Turn> {
    let block = block.max(1) as u64;
    blocks(geometry.chunk(), block.saturating_mul(ABREAST.into())).flat_map(move |wide| {
        encode_steps(geometry.members(), geometry.parities(), member).flat_map(move |step| {
            blocks(wide.end - wide.start, block)
                .map(move |block| Turn { step, block: wide.start + block.start..wide.start + block.end })
        })
    })
}

/// A member's part of a column in one block, times each of `factors`, added to the sums that came,
/// one for each factor; these are the sums where none came.
pub fn add(mut own: Block, came: Option<Block>, factors: &[u8], buffers: &Buffers) -> Block {
    if let (None, [factor]) = (&came, factors) {
        multiply_by(own.payload_mut(), *factor);
        return own;
    }
    let len = own.payload().len();
    let begins = came.is_none();
    let mut sums = came.unwrap_or_else(|| Block::used(len * factors.len(), buffers));
    for (sum, factor) in sums.payload_mut().chunks_exact_mut(len.max(1)).zip(factors) {
        put(sum, own.payload(), *factor, begins);
    }
    own.free(buffers);
    sums
}

/// Adds `own` times `factor` to a part of a sum, which has no bytes yet where it `begins` with this
/// member.
pub fn put(sum: &mut [u8], own: &[u8], factor: u8, begins: bool) {
    if begins {
        sum.copy_from_slice(own);
        multiply_by(sum, factor);
    } else {
        add_multiple(sum, own, factor);
    }
}

/// Bytes of a block; it is at most what the settings allow, so it fits.
pub fn len(block: &Range<u64>) -> usize {
    usize::try_from(block.end - block.start).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_block_of_every_column_has_its_turn_once() {
        let geometry = Geometry::with_chunk(5, 2, 1000).unwrap();
        for member in 0..5 {
            let turns: Vec<_> = encode_turns(geometry, member, 64).collect();
            assert_eq!(turns.len(), 5 * 16);
            let mut seen: Vec<_> = turns.iter().map(|t| (t.step.column, t.block.start)).collect();
            seen.sort_unstable();
            seen.dedup();
            assert_eq!(seen.len(), turns.len());
            let bytes: usize = turns.iter().map(|t| t.step.send * len(&t.block)).sum();
            assert_eq!(bytes, (3 * 2 + 1) * 1000);
        }
    }

    #[test]
    fn what_a_member_receives_is_what_its_left_neighbour_sends_in_order() {
        let geometry = Geometry::with_chunk(4, 2, 777).unwrap();
        for member in 0..4 {
            let turns = |member| encode_turns(geometry, member, 50);
            let due = turns(member).filter(|t| t.step.receive > 0);
            let due: Vec<_> = due.map(|t| (t.step.column, t.step.receive, t.block)).collect();
            let sent = turns((member + 3) % 4).filter(|t| t.step.send > 0);
            let sent: Vec<_> = sent.map(|t| (t.step.column, t.step.send, t.block)).collect();
            assert_eq!(due, sent);
        }
    }
}

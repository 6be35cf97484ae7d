//! How the blocks of a job are cut, and combined with what came.

use std::ops::Range;

use scrfs::redundancy::kernel::{add_multiple, multiply_by};
use scrfs::redundancy::payload::Payloads;

use super::block::Block;
use super::streams::WINDOW;
use crate::comm::buffers::Buffers;

/// Bytes of blocks on their way to a member that is encoded, or waiting there for what they are
/// added to.
const TAKEN_MAX: usize = 12 << 20;
/// File systems keep data in pages: blocks of whole ones are read and written without a rest.
const PAGE: usize = 4096;

/// How a set is encoded: the same for all its members.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// Bytes of a block, at most.
    pub block: usize,
    /// Blocks that may be on their way from one member to another.
    pub window: u32,
}

impl Pace {
    /// In blocks of `block` bytes, unless so many come at a time that these would take more memory
    /// than one job may have.
    pub fn of(payloads: &Payloads, block: usize) -> Self {
        let (senders, held) = match payloads {
            Payloads::None | Payloads::Copies { .. } => (1, 1),
            Payloads::Parities(geometry, _) => {
                let (n, k) = (geometry.members(), geometry.parities());
                (n - 1, k * (n - k))
            }
        };
        // While one is added the next one comes.
        let most = TAKEN_MAX / (2 * senders + held);
        let most = if most > PAGE { most - most % PAGE } else { most };
        let block = block.min(most).max(1);
        let window = (TAKEN_MAX / block).saturating_sub(held) / senders;
        Self { block, window: u32::try_from(window).unwrap_or(WINDOW).clamp(2, WINDOW) }
    }
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
        if begins {
            sum.copy_from_slice(own.payload());
            multiply_by(sum, *factor);
        } else {
            add_multiple(sum, own.payload(), *factor);
        }
    }
    own.free(buffers);
    sums
}

/// Bytes of a block; it is at most what the settings allow, so it fits.
pub fn len(block: &Range<u64>) -> usize {
    usize::try_from(block.end - block.start).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use scrfs::dataset::Scheme;

    use super::*;

    /// Whatever the set's size, and whatever is set for a block.
    #[test]
    fn what_comes_to_a_member_has_room() {
        let parities = |n: usize, failures| {
            Pace::of(&Payloads::of(Scheme::ReedSolomon { failures }, &vec![1 << 30; n]).unwrap(), 1 << 20)
        };
        assert_eq!(parities(2, 1), Pace { block: 1 << 20, window: 8 });
        assert_eq!(parities(4, 1), Pace { block: 1 << 20, window: 3 });
        assert_eq!(parities(8, 1), Pace { block: (12 << 20) / 21 / PAGE * PAGE, window: 2 });
        assert_eq!(Pace::of(&Payloads::of(Scheme::Partner, &[1, 1]).unwrap(), 1 << 20).window, 8);
        for (n, k) in (2..200).flat_map(|n| (1..n.min(9)).map(move |k| (n, k))) {
            let Pace { block, window } = parities(n, u8::try_from(k).unwrap());
            let blocks = (n - 1) * window as usize + k * (n - k);
            assert!(blocks * block <= TAKEN_MAX, "{n} members, {k} parities");
        }
    }
}

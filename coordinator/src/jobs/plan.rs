//! How the blocks of a job are cut, and combined with what came.

use std::ops::Range;

use scrfs::redundancy::kernel::{add_multiple, multiply_by};
use scrfs::redundancy::payload::Payloads;

use super::block::Block;
use super::streams::WINDOW;
use crate::comm::buffers::Buffers;

/// Bytes of blocks on their way to a member that is encoded, or waiting there for what they are
/// added to; twice as many where it is encoded in several strips.
const TAKEN_MAX: usize = 12 << 20;
/// Strips are not made where their blocks would be smaller: each costs a message of its own.
const STRIP_BLOCK_MIN: usize = 128 << 10;
/// Blocks of a strip, at least: fewer are sooner encoded than threads for them are begun.
const STRIP_BLOCKS_MIN: u64 = 4;
/// Members of more bytes are encoded by several threads each. What is less is encoded sooner than
/// these are begun.
const BRIEF_MAX: u64 = 256 << 10;
/// File systems keep data in pages: blocks of whole ones are read and written without a rest.
const PAGE: usize = 4096;

/// How a set is encoded: the same for all its members.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// Bytes of a block, at most.
    pub block: usize,
    /// Blocks of a strip that may be on their way from one member to another.
    pub window: u32,
    /// Strips that are encoded at a time.
    pub strips: u32,
    /// All that one member gives to another is within the window: one thread may give everything
    /// before it takes anything, and waits for nobody who waits for it.
    pub is_brief: bool,
}

impl Pace {
    /// In blocks of `block` bytes, or in smaller ones where what is on its way to a member would
    /// take too much memory; in up to `threads` strips.
    pub fn of(payloads: &Payloads, block: usize, threads: u32) -> Self {
        // `columns`: of each block of the payload, so many come from one member to another.
        let (senders, held, longest, columns) = match payloads {
            Payloads::None => (1, 1, 0, 1),
            Payloads::Copies { lengths } => (1, 1, lengths.iter().copied().max().unwrap_or(0), 1),
            Payloads::Parities(geometry, _) => {
                let (n, k) = (geometry.members(), geometry.parities());
                (n - 1, k * (n - k), geometry.chunk(), k)
            }
        };
        // While one block of each sender is added the next one comes.
        let at_a_time = 2 * senders + held;
        let with_room = 2 * TAKEN_MAX / at_a_time / block.clamp(1, STRIP_BLOCK_MIN);
        let with_blocks = longest / (block.max(1) as u64).saturating_mul(STRIP_BLOCKS_MIN);
        let strips = threads.min(saturated(with_room as u64)).min(saturated(with_blocks)).max(1);
        let taken = if strips > 1 { 2 * TAKEN_MAX / strips as usize } else { TAKEN_MAX };
        let most = taken / at_a_time;
        let most = if most > PAGE { most - most % PAGE } else { most };
        let block = block.min(most).max(1);
        let window = (taken / block).saturating_sub(held) / senders;
        let window = saturated(window as u64).clamp(2, WINDOW);
        let given = longest.div_ceil(block as u64).saturating_mul(columns as u64);
        let is_brief = strips == 1 && longest <= BRIEF_MAX && given <= u64::from(window);
        Self { block, window, strips, is_brief }
    }
}

fn saturated(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
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
    use scrfs::redundancy::geometry::Strip;
    use scrfs::redundancy::plan::gifts;

    use super::*;

    fn parities(n: usize, failures: u8, threads: u32) -> Pace {
        let set = Payloads::of(Scheme::ReedSolomon { failures }, &vec![1 << 30; n]).unwrap();
        Pace::of(&set, 1 << 20, threads)
    }

    /// In one strip.
    fn long(block: usize, window: u32) -> Pace {
        Pace { block, window, strips: 1, is_brief: false }
    }

    /// Whatever the set's size, and whatever is set for a block.
    #[test]
    fn what_comes_to_a_member_has_room() {
        assert_eq!(parities(2, 1, 1), long(1 << 20, 8));
        assert_eq!(parities(4, 1, 1), long(1 << 20, 3));
        assert_eq!(parities(8, 1, 1), long((12 << 20) / 21 / PAGE * PAGE, 2));
        let copies = Payloads::of(Scheme::Partner, &[1, 1]).unwrap();
        assert_eq!(Pace::of(&copies, 1 << 20, 1).window, 8);
        for (n, k) in (2..200).flat_map(|n| (1..n.min(9)).map(move |k| (n, k))) {
            for threads in [1, 2, 5, 64] {
                let Pace { block, window, strips, .. } = parities(n, u8::try_from(k).unwrap(), threads);
                let blocks = strips as usize * ((n - 1) * window as usize + k * (n - k));
                let most = if strips > 1 { 2 * TAKEN_MAX } else { TAKEN_MAX };
                assert!(blocks * block <= most, "{n} members, {k} parities, {strips} strips");
                assert!(strips == 1 || block >= STRIP_BLOCK_MIN - PAGE, "{block} bytes, {strips} strips");
            }
        }
    }

    #[test]
    fn strips_are_as_many_as_are_worth_their_threads() {
        assert_eq!([1, 2, 4, 64].map(|threads| parities(4, 1, threads).strips), [1, 2, 4, 21]);
        assert_eq!(parities(64, 1, 8).strips, 1);
        let copies = |bytes| Payloads::of(Scheme::Partner, &[bytes, 0, 1]).unwrap();
        let of = |bytes| Pace::of(&copies(bytes), 1 << 20, 8).strips;
        assert_eq!([0, (8 << 20) - 1, 8 << 20, 1 << 30].map(of), [1, 1, 2, 8]);
    }
    /// Else one thread would wait for credit from who waits for what it gives.
    #[test]
    fn who_gives_all_before_it_takes_has_credit_for_all() {
        let tiny = |n: usize, k: u8, bytes: u64, block: usize| {
            let lengths = vec![bytes; n];
            let set = Payloads::of(Scheme::ReedSolomon { failures: k }, &lengths).unwrap();
            let pace = Pace::of(&set, block, 1);
            let most = (0..n).flat_map(|me| {
                let strip = Strip::all(1, pace.block as u64).next().unwrap();
                let mut given = vec![0; n];
                gifts(&set, &lengths, me, strip).flat_map(|gift| gift.to).for_each(|to| given[to] += 1);
                given
            });
            (pace, most.max().unwrap_or(0))
        };
        let mut brief = 0;
        for (n, k) in (2..40).flat_map(|n| (1..n.min(9)).map(move |k| (n, k))) {
            for (bytes, block) in [(0, 1), (1, 1), (100, 7), (4096, 4096), (4096, 100), (1 << 20, 1 << 20)] {
                let (pace, most) = tiny(n, u8::try_from(k).unwrap(), bytes, block);
                assert!(!pace.is_brief || most <= pace.window, "{n} members, {k} parities, {bytes} bytes");
                brief += u32::from(pace.is_brief);
            }
        }
        assert!(brief > 500, "{brief}");
        let copies = |bytes, block| Pace::of(&Payloads::of(Scheme::Partner, &[bytes, 1]).unwrap(), block, 1);
        assert!(copies(8 * 4096, 4096).is_brief && !copies(8 * 4096 + 1, 4096).is_brief);
        assert!(copies(BRIEF_MAX, 1 << 20).is_brief && !copies(BRIEF_MAX + 1, 1 << 20).is_brief);
    }
}

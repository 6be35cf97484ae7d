//! Who sends what to whom, and when.
//!
//! **Encoding**, for each block of the chunk: a member sends its part of a column to the members
//! that hold the column's parities, and each of these adds up what comes to it. With PARTNER that
//! is the right neighbour alone, which keeps what comes. Each data byte is read once and sent once
//! for each of its parities, each parity byte is written once. What a member sends does not depend
//! on what it got, and nobody sends what is only padding.
//!
//! All members go through the *steps* of a block in one order: at step `s` member `r` sends its
//! part of column `r + s`. So a step has at most one block from one member to another, and no
//! member gets more than its `k` at a time. When several members wait for one another, one of those
//! that are at the earliest step of the earliest block can go on. A set may be encoded in several
//! *strips* ([`Strip`]) at a time; what is said here holds for each of them.
//!
//! **Rebuilding** lost members is a chain over the survivors, for each column: each adds its part,
//! times what [`super::code::Recipe`] says, to a sum for each lost member, and passes the sums on;
//! the last one sends each to the node where that member is rebuilt, and it is that member's part
//! of the column. Every survivor reads `n` chunks at most and sends `n` for each lost member,
//! whatever `n` is.
//!
//! **With PARTNER** a lost member gets its files back from its right neighbour's copy, and its own
//! copy anew from the left neighbour's files. Nobody else has a part in it.

use std::ops::Range;

use super::code::Code;
use super::geometry::{Geometry, Part, Strip, blocks};
use super::payload::Payloads;
use super::{left, right};

/// A block of a member's data on its way to who holds its parities.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gift {
    /// Which bytes of the member's logical file; never none.
    pub bytes: Range<u64>,
    /// Positions of those that it is sent to.
    pub to: Vec<usize>,
}

/// A block of each of a member's parities, and what these are the sums of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Intake {
    /// Where the sums are in the payload of the redundancy file. All are of one length.
    pub sums: Vec<Range<u64>>,
    /// In the order in which they are sent.
    pub addends: Vec<Addend>,
}

/// A block that comes from another member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Addend {
    /// Position of who sends it.
    pub from: usize,
    /// To which of the sums it is added, from that one's first byte on.
    pub sum: usize,
    /// Bytes: never 0, and at most those of the sum. Behind them that member has padding.
    pub bytes: u64,
    /// What it is multiplied with.
    pub factor: u8,
}

/// What the member at position `me` sends of a strip when its set is encoded, in order; `lengths`
/// are those of the members' logical files.
pub fn gifts<'a>(
    payloads: &'a Payloads,
    lengths: &'a [u64],
    me: usize,
    strip: Strip,
) -> Box<dyn Iterator<Item = Gift> + 'a> {
    let length = |member: usize| lengths.get(member).copied().unwrap_or(0);
    match payloads {
        Payloads::None => Box::new(std::iter::empty()),
        Payloads::Copies { .. } => {
            let to = vec![right(lengths.len(), me)];
            Box::new(strip.blocks(length(me)).map(move |bytes| Gift { bytes, to: to.clone() }))
        }
        Payloads::Parities(geometry, _) => {
            let (n, k) = (geometry.members(), geometry.parities());
            Box::new(strip.blocks(geometry.chunk()).flat_map(move |range| {
                (k..n).filter_map(move |step| {
                    let column = (me + step) % n;
                    let bytes = data(*geometry, me, column, &range, length(me))?;
                    let to = (0..k).map(|parity| (column + n - parity) % n).collect();
                    Some(Gift { bytes, to })
                })
            }))
        }
    }
}

/// What the member at position `me` gets meanwhile, in order. See [`gifts`].
pub fn intakes<'a>(
    payloads: &'a Payloads,
    lengths: &'a [u64],
    me: usize,
    strip: Strip,
) -> Box<dyn Iterator<Item = Intake> + 'a> {
    match payloads {
        Payloads::None => Box::new(std::iter::empty()),
        Payloads::Copies { .. } => {
            let from = left(lengths.len(), me);
            let copy = move |range: Range<u64>| {
                let addend = Addend { from, sum: 0, bytes: range.end - range.start, factor: 1 };
                Intake { sums: vec![range], addends: vec![addend] }
            };
            Box::new(strip.blocks(payloads.bytes(me)).map(copy))
        }
        Payloads::Parities(geometry, code) => {
            let sum = |parity, range: &Range<u64>| geometry.range(Part::Parity { index: parity }, range);
            Box::new(strip.blocks(geometry.chunk()).map(move |range| Intake {
                sums: (0..geometry.parities()).map(|parity| sum(parity, &range)).collect(),
                addends: addends(*geometry, code, lengths, me, &range).collect(),
            }))
        }
    }
}

/// What comes for the block `range` of the chunk.
fn addends(
    geometry: Geometry,
    code: &Code,
    lengths: &[u64],
    me: usize,
    range: &Range<u64>,
) -> impl Iterator<Item = Addend> {
    let (n, k) = (geometry.members(), geometry.parities());
    (k..n).flat_map(move |step| {
        (0..k).filter_map(move |sum| {
            let column = (me + sum) % n;
            let from = (column + n - step) % n;
            let bytes = data(geometry, from, column, range, lengths.get(from).copied().unwrap_or(0))?;
            let factor = code.coefficient(sum, from);
            Some(Addend { from, sum, bytes: bytes.end - bytes.start, factor })
        })
    })
}

/// Which bytes of its logical file, of `length` bytes, a member has in a block of a column where it
/// has data; `None` where there is only padding.
fn data(
    geometry: Geometry,
    member: usize,
    column: usize,
    block: &Range<u64>,
    length: u64,
) -> Option<Range<u64>> {
    let Range { start, end } = geometry.range(geometry.part(member, column), block);
    (start < end.min(length)).then(|| start..end.min(length))
}

/// The survivors in the order in which they pass blocks on when the members in `lost` are rebuilt:
/// the first only sends, the last sends to the targets. It begins right of the first lost member.
pub fn rebuild_chain(members: usize, lost: &[usize]) -> impl Iterator<Item = usize> + Clone {
    let first = lost.first().copied().unwrap_or(0);
    (0..members).map(move |step| (first + step) % members).filter(|member| !lost.contains(member))
}

/// A part of a member of a PARTNER set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Returned {
    /// Its files, which its right neighbour has a copy of.
    Files,
    /// The copy that it keeps of its left neighbour's files.
    Copy,
}

/// The blocks in which a lost member of a PARTNER set comes back: ranges of its logical file of
/// `files` bytes and of its copy of `copy` bytes. The two take turns, so that neither giver waits
/// long; in a set of two both are the same member.
pub fn returned(files: u64, copy: u64, block: u64) -> impl Iterator<Item = (Returned, Range<u64>)> {
    let (mut of_files, mut of_copy) = (blocks(files, block), blocks(copy, block));
    let mut turn = false;
    std::iter::from_fn(move || {
        turn = !turn;
        let mut files = || of_files.next().map(|range| (Returned::Files, range));
        let mut copy = || of_copy.next().map(|range| (Returned::Copy, range));
        if turn { files().or_else(copy) } else { copy().or_else(files) }
    })
}

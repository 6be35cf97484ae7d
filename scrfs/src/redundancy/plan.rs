//! Who sends what to whom, and when.
//!
//! **Encoding** is a reduce-scatter in a ring of `n` members, done block by block so that a block
//! stays in the cache. At step `s` (1 to `n`) member `r` handles column `(r - s) mod n`. As long as
//! it has data there (steps 1 to `n - k`) it adds its own part to the `k` sums that came from its
//! left neighbour (none came at step 1) and sends them to its right. Then come the members that
//! hold the column's parities, from `k - 1` down to 0: each keeps the last sum, which is its
//! parity, and sends the others on. Each data byte is read once, each parity byte written once, and
//! each member sends `k (n - k) + k (k - 1) / 2` chunks: with XOR the size of its data, else more
//! than `k` times that.
//!
//! **Rebuilding** lost members is a chain over the survivors, for each column: each adds its part,
//! times what [`super::code::Recipe`] says, to a sum for each lost member, and passes the sums on;
//! the last one sends each to the node where that member is rebuilt, and it is that member's part
//! of the column. Every survivor reads `n` chunks at most and sends `n` for each lost member,
//! whatever `n` is.
//!
//! **With PARTNER** each member sends its logical file to its right neighbour, which keeps a copy.
//! A lost member gets its files back from its right neighbour's copy, and its own copy anew from
//! the left neighbour's files. Nobody else has a part in it.

use std::ops::Range;

use super::geometry::blocks;

/// One step of one member's encoding of one block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EncodeStep {
    /// From 1 to the number of members.
    pub step: usize,
    /// The column it is about.
    pub column: usize,
    /// Sums that come from the left neighbour: one for each parity that is not kept yet.
    pub receive: usize,
    /// Sums that go to the right neighbour. One fewer than came means that the last of those is
    /// this member's parity; else its own part is added to all of them.
    pub send: usize,
}

/// The steps of the member at position `member` in a ring of `members`, of which `parities` may be
/// lost, for each block.
pub fn encode_steps(
    members: usize,
    parities: usize,
    member: usize,
) -> impl Iterator<Item = EncodeStep> + Clone {
    debug_assert!(member < members && parities < members);
    (1..=members).map(move |step| EncodeStep {
        step,
        column: (member + members - step) % members,
        receive: if step == 1 { 0 } else { parities.min(members - step + 1) },
        send: parities.min(members - step),
    })
}

impl EncodeStep {
    /// The member has data in this column, and adds it.
    pub fn adds(&self) -> bool {
        self.step == 1 || self.receive == self.send
    }
}

/// The survivors in the order in which they pass blocks on when the members in `lost` are rebuilt:
/// the first only sends, the last sends to the targets. It begins right of the first lost member,
/// so that the ring's links are used in their direction.
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

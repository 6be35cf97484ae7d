//! Who sends what to whom, and when.
//!
//! **Encoding** is a reduce-scatter in a ring of `n` members, done block by block so that a block stays in the cache.
//! At step `s` (1 to `n - 1`) member `r` handles column `(r - s) mod n`: it XORs its own part of that column into what
//! came from its left neighbour (nothing came at step 1) and sends the result to its right. What arrives at step `n` is
//! column `r` with everyone's part but its own: its parity. Each data byte is read once, each parity byte written once,
//! and each member sends `n - 1` chunks, about the size of its data.
//!
//! **Rebuilding** lost member `t` is a chain over the survivors, for each column: each XORs its part into what came and
//! passes it on; the last one's result goes to the node where `t` is rebuilt, and is `t`'s part of that column. Every
//! survivor reads and sends `n` chunks, whatever `n` is.

/// One step of one member's encoding of one block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EncodeStep {
    /// From 1 to the number of members.
    pub step: usize,
    /// The column it is about. At the last step this is the member's own: what was received is its parity.
    pub column: usize,
    /// A block comes from the left neighbour.
    pub receive: bool,
    /// The member's own part of the column is XORed into it, and the result goes to the right neighbour.
    pub send: bool,
}

/// The steps of the member at position `member` in a ring of `members`, for each block.
pub fn encode_steps(members: usize, member: usize) -> impl Iterator<Item = EncodeStep> + Clone {
    debug_assert!(member < members);
    (1..=members).map(move |step| EncodeStep {
        step,
        column: (member + members - step) % members,
        receive: step > 1,
        send: step < members,
    })
}

/// The survivors in the order in which they pass blocks on when member `lost` is rebuilt: the first only sends, the
/// last sends to the target. It begins right of the lost member, so that the ring's links are used in their direction.
pub fn rebuild_chain(members: usize, lost: usize) -> impl Iterator<Item = usize> + Clone {
    debug_assert!(lost < members);
    (1..members).map(move |step| (lost + step) % members)
}

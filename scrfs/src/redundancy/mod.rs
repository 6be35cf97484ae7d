//! Redundancy: who protects whom, and how the bytes of protection come to be. Pure values and arithmetic; reading,
//! sending and writing are the coordinator's.
//!
//! In reading order, with what each offers:
//!
//! - this file: [`Scheme`] and which losses it survives ([`Scheme::survives`]); [`left`] and [`right`] in the ring.
//! - [`sets`]: [`sets::lay_out`] puts members into redundancy sets.
//! - [`xor`]: [`xor::LogicalFile`] (a member's files end to end), [`xor::Geometry`] (chunk size; [`xor::Geometry::part`]
//!   says what member `r` holds of column `c`) and [`xor::blocks`].
//! - [`plan`]: [`plan::encode_steps`], the ring schedule of one member; [`plan::rebuild_chain`], who passes what on
//!   when a member is lost.
//! - [`kernel`]: the inner loop, [`kernel::xor_into`].
//! - [`crc`]: [`crc::SegmentCrcs`], one CRC32 per file from pieces that were read out of order.
//! - [`reference`](mod@reference): all of the above carried out in memory; tests compare with it.
//!
//! The algebra of XOR in one line: for every column `c` of a set, the parts of **all** members XOR to zero, where the
//! part of member `c` is its parity and the part of any other member is a piece of its data. Encoding solves that for
//! the parity, rebuilding for the lost member's part.

pub mod crc;
pub mod kernel;
pub mod plan;
pub mod reference;
pub mod sets;
pub mod xor;

pub use crate::dataset::Scheme;

impl Scheme {
    /// Whether a set of `members` still has all its data after it lost the members at these positions of its ring.
    pub fn survives(self, members: usize, lost: &[usize]) -> bool {
        if lost.is_empty() {
            return true;
        }
        match self {
            Self::Single => false,
            // The copy of a member's files is at its right neighbour.
            Self::Partner => members > 1 && lost.iter().all(|&m| !lost.contains(&right(members, m))),
            Self::Xor => members > 1 && lost.iter().all(|m| *m == lost[0]),
        }
    }

    /// How many members of a set of `members` may be lost, whichever they are.
    pub fn losses(self, members: usize) -> usize {
        match self {
            Self::Single => 0,
            Self::Partner | Self::Xor => usize::from(members > 1),
        }
    }

    /// The scheme's word in the files of SCR 1.x, which knows SINGLE as LOCAL.
    pub fn scr_word(self) -> &'static str {
        if self == Self::Single { "LOCAL" } else { self.word() }
    }

    /// The scheme's word in redundancy descriptors.
    pub fn word(self) -> &'static str {
        match self {
            Self::Single => "SINGLE",
            Self::Partner => "PARTNER",
            Self::Xor => "XOR",
        }
    }

    /// The scheme that a redundancy descriptor or a user names; `LOCAL` is the older word for SINGLE.
    pub fn from_word(word: &[u8]) -> Option<Self> {
        match word {
            b"SINGLE" | b"LOCAL" => Some(Self::Single),
            b"PARTNER" => Some(Self::Partner),
            b"XOR" => Some(Self::Xor),
            _ => None,
        }
    }
}

/// The position right of `member` in a ring of `members`: to whom it sends.
pub fn right(members: usize, member: usize) -> usize {
    (member + 1) % members
}

/// The position left of `member` in a ring of `members`: from whom it receives.
pub fn left(members: usize, member: usize) -> usize {
    (member + members - 1) % members
}

#[cfg(test)]
mod tests;

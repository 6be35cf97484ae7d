//! Redundancy: who protects whom, and how the bytes of protection come to be. Pure values and
//! arithmetic; reading, sending and writing are the coordinator's.
//!
//! In reading order, with what each offers:
//!
//! - this file: [`Scheme`], how many losses it survives ([`Scheme::parities`],
//!   [`Scheme::survives`]); [`left`] and [`right`] in the ring.
//! - [`sets`]: [`sets::lay_out`] puts members into redundancy sets.
//! - [`geometry`]: [`geometry::LogicalFile`] (a member's files end to end), [`geometry::Geometry`]
//!   (chunk size; [`geometry::Geometry::part`] says what member `r` holds of column `c`) and
//!   [`geometry::blocks`].
//! - [`code`]: [`code::Code`], the coefficients of XOR and of Reed-Solomon; [`code::Recipe`], how
//!   lost parts follow from the others.
//! - [`payload`]: [`payload::Payloads`], what the redundancy files of a set hold: copies or
//!   parities.
//! - [`plan`]: [`plan::gifts`] and [`plan::intakes`], what a member sends and gets when its set is
//!   encoded; [`plan::rebuild_chain`], who passes what on when members are lost;
//!   [`plan::returned`], what a partner's copies give back.
//! - [`galois`], [`kernel`]: the arithmetic and the inner loops; the private `vector` has those
//!   that use a processor's vector instructions.
//! - [`crc`]: [`crc::SegmentCrcs`], one CRC32 per file from pieces that were read out of order.
//! - [`reference`](mod@reference): all of the above carried out in memory; tests compare with it.

use std::fmt;

pub mod code;
pub mod crc;
pub mod galois;
pub mod geometry;
pub mod kernel;
pub mod payload;
pub mod plan;
pub mod reference;
pub mod sets;
mod vector;

pub use crate::dataset::Scheme;

/// What `SCR_SET_FAILURES` is where nothing is set.
pub const FAILURES: u8 = 2;

impl Scheme {
    /// Parities of each column in a set of `members`: how many of them may be lost, whichever they
    /// are, if the scheme is made of parities. A set must keep one member; a smaller one than was
    /// asked for survives all losses but of all of it.
    pub fn parities(self, members: usize) -> usize {
        let most = members.saturating_sub(1);
        match self {
            Self::Single | Self::Partner => 0,
            Self::Xor => most.min(1),
            Self::ReedSolomon { failures } => most.min(failures.into()),
        }
    }

    /// Whether a set of `members` still has all its data after it lost the members at these
    /// positions of its ring.
    pub fn survives(self, members: usize, lost: &[usize]) -> bool {
        match self {
            // The copy of a member's files is at its right neighbour.
            Self::Partner => lost.iter().all(|&m| members > 1 && !lost.contains(&right(members, m))),
            Self::Single | Self::Xor | Self::ReedSolomon { .. } => {
                (0..members).filter(|at| lost.contains(at)).count() <= self.parities(members)
            }
        }
    }

    /// How many members of a set of `members` may be lost, whichever they are.
    pub fn losses(self, members: usize) -> usize {
        match self {
            Self::Partner => usize::from(members > 1),
            Self::Single | Self::Xor | Self::ReedSolomon { .. } => self.parities(members),
        }
    }

    /// Losses per set where that is a choice.
    pub fn failures(self) -> Option<u8> {
        match self {
            Self::ReedSolomon { failures } => Some(failures),
            Self::Single | Self::Partner | Self::Xor => None,
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
            Self::ReedSolomon { .. } => "RS",
        }
    }

    /// The scheme that a redundancy descriptor or a user names, with `failures` losses per set
    /// (at least 1) where that is a choice; `LOCAL` is the older word for SINGLE.
    pub fn from_word(word: &[u8], failures: u8) -> Option<Self> {
        match word {
            b"SINGLE" | b"LOCAL" => Some(Self::Single),
            b"PARTNER" => Some(Self::Partner),
            b"XOR" => Some(Self::Xor),
            b"RS" if failures > 0 => Some(Self::ReedSolomon { failures }),
            _ => None,
        }
    }
}

impl fmt::Display for Scheme {
    /// As status shows it: `RS(2)` survives two losses.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ReedSolomon { failures } => write!(f, "{}({failures})", self.word()),
            Self::Single | Self::Partner | Self::Xor => f.write_str(self.word()),
        }
    }
}

/// The position right of `member` in a ring of `members`: with PARTNER, who keeps its copy.
pub fn right(members: usize, member: usize) -> usize {
    (member + 1) % members
}

/// The position left of `member` in a ring of `members`: with PARTNER, whose copy it keeps.
pub fn left(members: usize, member: usize) -> usize {
    (member + members - 1) % members
}

#[cfg(test)]
mod tests;

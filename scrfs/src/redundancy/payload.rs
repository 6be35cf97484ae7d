//! What the redundancy files of a set hold.

use super::code::{Code, TooMany};
use super::geometry::{Geometry, GeometryError};
use super::{Scheme, left};

/// The payloads of a set's redundancy files, one for each member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Payloads {
    /// There are none: SINGLE, and a set of one.
    None,
    /// PARTNER: a copy of the left neighbour's logical file, without padding. The bytes of redset.
    Copies {
        /// Bytes of each member's logical file.
        lengths: Vec<u64>,
    },
    /// XOR and Reed-Solomon: parities.
    Parities(Geometry, Code),
}

/// Why a set cannot be protected so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PayloadError {
    /// The field has too few points.
    #[error(transparent)]
    Code(#[from] TooMany),
    /// The sizes do not fit.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
}

impl Payloads {
    /// Those of a set whose logical files have these lengths, in ring order.
    pub fn of(scheme: Scheme, lengths: &[u64]) -> Result<Self, PayloadError> {
        match scheme {
            Scheme::Partner if lengths.len() > 1 => Ok(Self::Copies { lengths: lengths.to_vec() }),
            Scheme::Single | Scheme::Partner => Ok(Self::None),
            Scheme::Xor | Scheme::ReedSolomon { .. } => match Code::of(scheme, lengths.len())? {
                None => Ok(Self::None),
                Some(code) => Ok(Self::Parities(Geometry::new(lengths, code.parities())?, code)),
            },
        }
    }

    /// Bytes of the payload of the member at position `at`.
    pub fn bytes(&self, at: usize) -> u64 {
        match self {
            Self::None => 0,
            Self::Copies { lengths } => lengths.get(left(lengths.len(), at)).copied().unwrap_or(0),
            Self::Parities(geometry, _) => geometry.payload(),
        }
    }

    /// Bytes of a chunk, where a payload is made of chunks.
    pub fn chunk(&self) -> Option<u64> {
        match self {
            Self::None | Self::Copies { .. } => None,
            Self::Parities(geometry, _) => Some(geometry.chunk()),
        }
    }

    /// Parities of each column, where there are any.
    pub fn parities(&self) -> Option<usize> {
        match self {
            Self::None | Self::Copies { .. } => None,
            Self::Parities(geometry, _) => Some(geometry.parities()),
        }
    }
}

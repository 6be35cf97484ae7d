//! Which sums of the members' data are kept, and how lost parts follow from those that are left.
//!
//! In a set of `n` members of which `k` may be lost, each column ([`super::geometry`]) has a part
//! of every member: `n - k` pieces of data and `k` *parities*. Parity `i` is the sum, over the
//! members `r` with data in the column, of their parts times the coefficient of (`i`, `r`). XOR is
//! `k` = 1 with all coefficients 1.
//!
//! The coefficients of Reed-Solomon are redset's: the Vandermonde matrix whose row `x` is 1, x, x^2
//! and so on, for `x` from 0 to `n + k - 1`, multiplied with the inverse of its first `n` rows.
//! These become the unit matrix; row `n + i` becomes what parity `i` is made of, which is
//! Lagrange's polynomials of the points 0 to `n - 1` at the point `n + i`. Any square part of those
//! rows has an inverse, so any `k` parts of a column can be lost.

use super::Scheme;
use super::galois::{inverse, invert, multiply};
use super::geometry::{Part, role};

/// Points of the field: members and parities of a set together.
pub const POINTS: usize = 256;

/// The coefficients of one set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Code {
    members: usize,
    /// For each parity, the coefficient of each member.
    rows: Vec<Vec<u8>>,
}

/// No code is possible.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a set of {members} members of which {losses} may be lost: together at most {POINTS}")]
pub struct TooMany {
    /// Members of the set.
    pub members: usize,
    /// How many may be lost.
    pub losses: usize,
}

impl Code {
    /// The code of a scheme for a set of `members`; `None` where the scheme makes no parity.
    pub fn of(scheme: Scheme, members: usize) -> Result<Option<Self>, TooMany> {
        let losses = scheme.parities(members);
        match scheme {
            Scheme::Single | Scheme::Partner => Ok(None),
            _ if losses == 0 => Ok(None),
            Scheme::Xor => Ok(Some(Self { members, rows: vec![vec![1; members]] })),
            Scheme::ReedSolomon { .. } => Self::reed_solomon(members, losses).map(Some),
        }
    }

    fn reed_solomon(members: usize, losses: usize) -> Result<Self, TooMany> {
        let too_many = TooMany { members, losses };
        if members + losses > POINTS {
            return Err(too_many);
        }
        let point = |at: usize| u8::try_from(at).map_err(|_| too_many);
        let mut rows = Vec::with_capacity(losses);
        for parity in 0..losses {
            let x = point(members + parity)?;
            let mut row = Vec::with_capacity(members);
            for member in 0..members {
                let mut coefficient = 1;
                for other in (0..members).filter(|other| *other != member) {
                    let apart = inverse(point(member)? ^ point(other)?).ok_or(too_many)?;
                    coefficient = multiply(coefficient, multiply(x ^ point(other)?, apart));
                }
                row.push(coefficient);
            }
            rows.push(row);
        }
        Ok(Self { members, rows })
    }

    /// Members of the set, and columns.
    pub fn members(&self) -> usize {
        self.members
    }

    /// Parities of each column: how many members may be lost.
    pub fn parities(&self) -> usize {
        self.rows.len()
    }

    /// What a member's data is multiplied with for a parity.
    pub fn coefficient(&self, parity: usize, member: usize) -> u8 {
        self.rows[parity][member]
    }

    /// How the parts of the members in `lost` follow from the others', in column `column`; `None`
    /// when too many are lost.
    pub fn recipe(&self, column: usize, lost: &[usize]) -> Option<Recipe> {
        let parity_of = |member| match role(self.members, self.parities(), member, column) {
            Part::Parity { index } => Some(index),
            Part::Data { .. } => None,
        };
        let (mut data, mut parities) = (Vec::new(), vec![None; self.parities()]);
        for member in (0..self.members).filter(|member| !lost.contains(member)) {
            match parity_of(member) {
                Some(index) => parities[index] = Some(member),
                None => data.push(member),
            }
        }
        // As many equations as there are unknown pieces: no more parities are read than needed.
        let unknown: Vec<usize> = lost.iter().copied().filter(|at| parity_of(*at).is_none()).collect();
        let there = parities.iter().enumerate().filter_map(|(index, member)| Some((index, (*member)?)));
        let used: Vec<(usize, usize)> = there.take(unknown.len()).collect();
        if used.len() < unknown.len() {
            return None;
        }
        let equation =
            |(index, _): &(usize, usize)| unknown.iter().map(|at| self.rows[*index][*at]).collect();
        let solved = invert(used.iter().map(equation).collect())?;
        // What each unknown piece is, by survivor.
        let mut pieces = vec![vec![0; self.members]; unknown.len()];
        for (piece, solution) in pieces.iter_mut().zip(&solved) {
            for ((index, holder), factor) in used.iter().zip(solution) {
                piece[*holder] = *factor;
                for member in &data {
                    piece[*member] ^= multiply(*factor, self.rows[*index][*member]);
                }
            }
        }
        let one = |at: &usize| match parity_of(*at) {
            None => unknown.iter().position(|other| other == at).map(|piece| pieces[piece].clone()),
            Some(index) => {
                let mut sum = vec![0; self.members];
                for member in &data {
                    sum[*member] = self.rows[index][*member];
                }
                for (at, piece) in unknown.iter().zip(&pieces) {
                    for (sum, part) in sum.iter_mut().zip(piece) {
                        *sum ^= multiply(self.rows[index][*at], *part);
                    }
                }
                Some(sum)
            }
        };
        Some(Recipe(lost.iter().map(one).collect::<Option<_>>()?))
    }
}

/// For each lost member, what each survivor's part of a column is multiplied with; the products'
/// sum is the lost part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recipe(Vec<Vec<u8>>);

impl Recipe {
    /// The coefficients of a survivor, one for each lost member. All are 0 where its part is not
    /// needed.
    pub fn coefficients_of(&self, survivor: usize) -> Vec<u8> {
        self.0.iter().map(|lost| lost[survivor]).collect()
    }
}

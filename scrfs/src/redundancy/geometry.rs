//! Which byte of which file is in which part of which column.
//!
//! A member's *logical file* is its files end to end, in filemap order, then zeros. In a set of `n`
//! members of which `k` may be lost it is cut into `n - k` pieces of one *chunk* each; chunk = the
//! longest logical file of the set divided by `n - k`, rounded up, at least 1. There are `n`
//! *columns*. Of column `c` members `c`, `c - 1` to `c - k + 1` (round the ring) hold parity 0, 1
//! to `k - 1`, one chunk each; every other member holds a piece of its data, the pieces of a member
//! in the order of the columns. So every member's redundancy file has `k` chunks, parity `i` being
//! of column `m + i`. With `k` = 1 this is XOR's layout, and a set of two is a mirror.

use std::ops::Range;

/// Why there is no geometry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum GeometryError {
    /// Somebody must be left.
    #[error("a set of {members} members cannot lose {losses}")]
    TooFew {
        /// Members of the set.
        members: usize,
        /// How many may be lost.
        losses: usize,
    },
    /// Sizes whose sum no file system can hold.
    #[error("file sizes add up to more than 2^64 bytes")]
    TooLarge,
    /// A chunk is at least one byte.
    #[error("the chunk size is 0")]
    NoChunk,
}

/// How many members, of which how many may be lost, and how large a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    members: usize,
    parities: usize,
    chunk: u64,
}

/// What a member holds of a column: always one chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// A parity of the column: a chunk of the payload of its redundancy file.
    Parity {
        /// Which one, of the column's parities and of the payload's chunks.
        index: usize,
    },
    /// A piece of its logical file; may reach beyond its end, into the zeros.
    Data {
        /// Which piece.
        piece: usize,
    },
}

/// What member `member` holds of column `column`, both positions in a set of `members` of which
/// `parities` may be lost.
pub(super) fn role(members: usize, parities: usize, member: usize, column: usize) -> Part {
    debug_assert!(member < members && column < members && parities < members);
    let ahead = (column + members - member) % members;
    if ahead < parities {
        return Part::Parity { index: ahead };
    }
    // Pieces come in the order of columns. Those of its parities are left out: they begin at its
    // own, and go on with the first column behind the last.
    let left_out = if column > member { parities } else { (member + parities).saturating_sub(members) };
    Part::Data { piece: column - left_out }
}

impl Geometry {
    /// The geometry of a set whose logical files have these lengths, of which `parities` may be
    /// lost.
    pub fn new(lengths: &[u64], parities: usize) -> Result<Self, GeometryError> {
        let pieces = pieces(lengths.len(), parities)?;
        let longest = lengths.iter().copied().max().unwrap_or(0);
        Self::with_chunk(lengths.len(), parities, longest.div_ceil(pieces).max(1))
    }

    /// The geometry that a redundancy file's header names.
    pub fn with_chunk(members: usize, parities: usize, chunk: u64) -> Result<Self, GeometryError> {
        let pieces = pieces(members, parities)?;
        if chunk == 0 {
            return Err(GeometryError::NoChunk);
        }
        chunk.checked_mul(pieces.max(parities as u64)).ok_or(GeometryError::TooLarge)?;
        Ok(Self { members, parities, chunk })
    }

    /// Members of the set, and columns.
    pub fn members(&self) -> usize {
        self.members
    }

    /// Parities of each column, and chunks of each redundancy file.
    pub fn parities(&self) -> usize {
        self.parities
    }

    /// Bytes of a chunk: of every part of every column.
    pub fn chunk(&self) -> u64 {
        self.chunk
    }

    /// Bytes of a redundancy file, without its header.
    pub fn payload(&self) -> u64 {
        self.chunk * self.parities as u64
    }

    /// What member `member` holds of column `column`; both are positions in the set.
    pub fn part(&self, member: usize, column: usize) -> Part {
        role(self.members, self.parities, member, column)
    }

    /// Where `block`, a range within the chunk, of a part is: in the logical file or, of a parity,
    /// in the payload.
    pub fn range(&self, part: Part, block: &Range<u64>) -> Range<u64> {
        let (Part::Parity { index: at } | Part::Data { piece: at }) = part;
        let start = self.chunk * at as u64;
        start + block.start..start + block.end
    }
}

/// Pieces of each logical file in a set of `members`.
fn pieces(members: usize, parities: usize) -> Result<u64, GeometryError> {
    if parities == 0 || parities >= members {
        return Err(GeometryError::TooFew { members, losses: parities });
    }
    Ok((members - parities) as u64)
}

/// The blocks of a chunk: ranges of at most `block` bytes.
pub fn blocks(chunk: u64, block: u64) -> impl Iterator<Item = Range<u64>> {
    Strip::only(block).blocks(chunk)
}

/// One of the strips into which chunks, or copies, are cut. The strips of a set are encoded side by
/// side: each member has threads for each, which wait for no other strip's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Strip {
    /// Which one, from 0 on.
    pub at: u32,
    /// How many there are.
    pub of: u32,
    /// Bytes of a block, at most; at least 1.
    pub block: u64,
}

impl Strip {
    /// The only one.
    pub fn only(block: u64) -> Self {
        Self { at: 0, of: 1, block }
    }

    /// All of them.
    pub fn all(of: u32, block: u64) -> impl Iterator<Item = Self> {
        (0..of).map(move |at| Self { at, of, block })
    }

    /// Its blocks of a chunk of `length` bytes: all strips together have each byte once, and as
    /// many blocks as one another, or one more.
    pub fn blocks(self, length: u64) -> impl Iterator<Item = Range<u64>> {
        let block = self.block.max(1);
        let (count, of) = (length.div_ceil(block), u64::from(self.of.max(1)));
        // Without the product of both, which may not fit.
        let bound = |at: u64| count / of * at + count % of * at / of;
        let at = u64::from(self.at).min(of - 1);
        (bound(at)..bound(at + 1)).map(move |i| i * block..((i + 1).saturating_mul(block)).min(length))
    }
}

/// A member's files end to end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogicalFile {
    /// Where each file begins, then where the last one ends.
    bounds: Vec<u64>,
}

/// A run of a logical file that lies within one file, or in the zeros behind the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Segment {
    /// Bytes of a file.
    File {
        /// Which file, in logical order.
        index: usize,
        /// First byte in that file.
        offset: u64,
        /// How many; never 0.
        len: u64,
    },
    /// Padding: nothing to read, nothing to write.
    Zeros {
        /// How many; never 0.
        len: u64,
    },
}

impl LogicalFile {
    /// The logical file of files with these sizes, in filemap order.
    pub fn new(sizes: impl IntoIterator<Item = u64>) -> Result<Self, GeometryError> {
        let mut end = 0_u64;
        let mut bounds = vec![0];
        for size in sizes {
            end = end.checked_add(size).ok_or(GeometryError::TooLarge)?;
            bounds.push(end);
        }
        Ok(Self { bounds })
    }

    /// Bytes of all files together, without padding.
    pub fn len(&self) -> u64 {
        self.bounds.last().copied().unwrap_or(0)
    }

    /// Whether there is no byte in it.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many files it is made of.
    pub fn files(&self) -> usize {
        self.bounds.len() - 1
    }

    /// The runs that make up `range`, in order. Empty files never appear.
    pub fn segments(&self, range: Range<u64>) -> impl Iterator<Item = Segment> + '_ {
        let mut at = range.start;
        // The last file that begins at or before `at`; those before it that begin there too are
        // empty.
        let mut index = self.bounds.partition_point(|&begin| begin <= at).saturating_sub(1);
        std::iter::from_fn(move || {
            if at >= range.end {
                return None;
            }
            while index < self.files() && self.bounds[index + 1] <= at {
                index += 1;
            }
            let segment = if index < self.files() {
                let len = self.bounds[index + 1].min(range.end) - at;
                Segment::File { index, offset: at - self.bounds[index], len }
            } else {
                Segment::Zeros { len: range.end - at }
            };
            at += segment.len();
            Some(segment)
        })
    }
}

impl Segment {
    /// Bytes; never 0, so there is no `is_empty`.
    #[expect(clippy::len_without_is_empty, reason = "a segment is never empty")]
    pub fn len(&self) -> u64 {
        match *self {
            Self::File { len, .. } | Self::Zeros { len } => len,
        }
    }
}

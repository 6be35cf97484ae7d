//! The geometry of XOR: which byte of which file is in which part of which column.
//!
//! A member's *logical file* is its files end to end, in filemap order, then zeros. With `n` members in the set it is
//! cut into `n - 1` pieces of one *chunk* each; chunk = the longest logical file of the set divided by `n - 1`, rounded
//! up, at least 1. There are `n` *columns*. In column `c` member `c` holds the parity, one chunk; every other member
//! holds a piece of its data: piece `c` if `c < r`, else piece `c - 1`. A set of two is a mirror.

use std::ops::Range;

/// Why there is no geometry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum GeometryError {
    /// A set of one member, or none, protects nothing.
    #[error("a set of {0} members cannot have parity")]
    TooFew(usize),
    /// Sizes whose sum no file system can hold.
    #[error("file sizes add up to more than 2^64 bytes")]
    TooLarge,
    /// A chunk is at least one byte.
    #[error("the chunk size is 0")]
    NoChunk,
}

/// How many members and how large a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    members: usize,
    chunk: u64,
}

/// What a member holds of a column: always one chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Its parity: the payload of its redundancy file.
    Parity,
    /// The chunk of its logical file that starts at this byte; may reach beyond its end, into the zeros.
    Data {
        /// First byte in the logical file.
        start: u64,
    },
}

impl Geometry {
    /// The geometry of a set whose logical files have these lengths.
    pub fn new(lengths: &[u64]) -> Result<Self, GeometryError> {
        let pieces = pieces(lengths.len())?;
        let longest = lengths.iter().copied().max().unwrap_or(0);
        Self::with_chunk(lengths.len(), longest.div_ceil(pieces).max(1))
    }

    /// The geometry that a redundancy file's header names.
    pub fn with_chunk(members: usize, chunk: u64) -> Result<Self, GeometryError> {
        let pieces = pieces(members)?;
        if chunk == 0 {
            return Err(GeometryError::NoChunk);
        }
        chunk.checked_mul(pieces).ok_or(GeometryError::TooLarge)?;
        Ok(Self { members, chunk })
    }

    /// Members of the set, and columns.
    pub fn members(&self) -> usize {
        self.members
    }

    /// Bytes of a chunk: of every part of every column.
    pub fn chunk(&self) -> u64 {
        self.chunk
    }

    /// What member `member` holds of column `column`; both are positions in the set.
    pub fn part(&self, member: usize, column: usize) -> Part {
        debug_assert!(member < self.members && column < self.members);
        match column.cmp(&member) {
            std::cmp::Ordering::Equal => Part::Parity,
            std::cmp::Ordering::Less => Part::Data { start: column as u64 * self.chunk },
            std::cmp::Ordering::Greater => Part::Data { start: (column as u64 - 1) * self.chunk },
        }
    }
}

/// Pieces of each logical file in a set of `members`.
fn pieces(members: usize) -> Result<u64, GeometryError> {
    if members < 2 { Err(GeometryError::TooFew(members)) } else { Ok(members as u64 - 1) }
}

impl Part {
    /// Where `block`, a range within the chunk, is in the logical file; `None` for parity, where the block's own range
    /// counts from the start of the payload.
    pub fn data_range(self, block: &Range<u64>) -> Option<Range<u64>> {
        match self {
            Self::Parity => None,
            Self::Data { start } => Some(start + block.start..start + block.end),
        }
    }
}

/// The blocks of a chunk: ranges of at most `block` bytes.
pub fn blocks(chunk: u64, block: u64) -> impl Iterator<Item = Range<u64>> {
    let block = block.max(1);
    (0..chunk.div_ceil(block)).map(move |i| i * block..((i + 1).saturating_mul(block)).min(chunk))
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
        // The last file that begins at or before `at`; those before it that begin there too are empty.
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

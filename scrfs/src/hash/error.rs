//! What can be wrong with a hash file, and where.

use std::fmt;

use super::Text;
use crate::path::PathError;

/// Bytes that are not a hash file. Every offset counts bytes from the start of the record.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FormatError {
    /// The input ends before the thing that begins at `offset`.
    #[error("truncated at byte {offset}: {needed} more bytes are needed, {left} are left")]
    Truncated {
        /// Where the missing thing begins.
        offset: usize,
        /// Its size in bytes.
        needed: u64,
        /// Bytes that are there.
        left: usize,
    },
    /// Not a hash file at all.
    #[error("byte 0: magic number is {found:#010x}, not 0x951fc3f5")]
    Magic {
        /// What is there.
        found: u32,
    },
    /// Another kind of SCR file.
    #[error("byte 4: file type is {found}, not 1 (hash)")]
    Type {
        /// What is there.
        found: u16,
    },
    /// Written by something newer.
    #[error("byte 6: version is {found}, not 1")]
    Version {
        /// What is there.
        found: u16,
    },
    /// The record's size cannot hold a header, a tree and a CRC.
    #[error("byte 8: record size {found} is less than the least size of a record")]
    Size {
        /// What is there.
        found: u64,
    },
    /// The record's size is more than the reader is ready to load.
    #[error("byte 8: record size {found} is above the limit of {limit}")]
    TooLarge {
        /// What is there.
        found: u64,
        /// The reader's limit.
        limit: u64,
    },
    /// A flag that no release writes, or no CRC: such a record cannot be verified.
    #[error("byte 16: flags are {found:#x}, not 0x1 (CRC32 present)")]
    Flags {
        /// What is there.
        found: u32,
    },
    /// The bytes are not those that were written.
    #[error("byte {offset}: CRC32 is {stored:#010x} in the file but {computed:#010x} of its bytes")]
    Crc {
        /// Where the CRC is.
        offset: usize,
        /// The file's.
        stored: u32,
        /// Ours.
        computed: u32,
    },
    /// More elements than the bytes left could hold.
    #[error("byte {offset}: {count} elements are announced, but {left} bytes are left")]
    Count {
        /// Where the count is.
        offset: usize,
        /// Elements announced.
        count: u32,
        /// Bytes after the count.
        left: usize,
    },
    /// A tree deeper than any record has.
    #[error("byte {offset}: nested more than {limit} deep")]
    Depth {
        /// Where the list begins that is too deep.
        offset: usize,
        /// Deepest that is read.
        limit: usize,
    },
    /// A key without an end.
    #[error("byte {offset}: the key that begins here has no NUL")]
    MissingNul {
        /// Where the key begins.
        offset: usize,
    },
    /// One list has the same key twice.
    #[error("byte {offset}: key {key} is in its list already")]
    EqualKeys {
        /// Where the second one begins.
        offset: usize,
        /// The key.
        key: Text,
    },
    /// A list of numbered values has something else at this place.
    #[error("byte {offset}: not value {number} of a numbered list")]
    NotNumbered {
        /// Where it begins.
        offset: usize,
        /// The number that is due, from 0.
        number: usize,
    },
    /// The tree ends before the record does.
    #[error("byte {offset}: the tree ends here, {extra} bytes before the CRC")]
    Slack {
        /// Where the tree ends.
        offset: usize,
        /// Bytes that belong to nothing.
        extra: usize,
    },
    /// Bytes after the record where the format allows none.
    #[error("byte {offset}: the record ends here, but {extra} bytes follow")]
    Trailing {
        /// Where the record ends.
        offset: usize,
        /// Bytes that follow.
        extra: usize,
    },
}

/// Bytes that cannot be a [`Text`]: NUL ends a key in the packed form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("byte {position} is NUL, which no key can have")]
pub struct NulInText {
    /// Where it is.
    pub position: usize,
}

/// A tree that is well formed but does not say what its reader needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldError {
    /// Keys from the root of the record to the place, outermost first.
    pub path: Vec<Text>,
    /// What is wrong there.
    pub problem: FieldProblem,
}

/// What is wrong with a field.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FieldProblem {
    /// It is not there.
    #[error("is missing")]
    Missing,
    /// It is not one value: none, several, or a value with a tree below it.
    #[error("should have one plain value but has {0} elements")]
    NotOneValue(usize),
    /// It should be a bare word but has a tree below it.
    #[error("should have nothing below it")]
    NotPlain,
    /// Not a decimal number of the right range.
    #[error("{0} is not a number of the right range")]
    NotANumber(Text),
    /// Neither `0` nor `0x` and up to eight hexadecimal digits.
    #[error("{0} is not a CRC32")]
    NotACrc(Text),
    /// Neither 0 nor 1.
    #[error("{0} is neither 0 nor 1")]
    NotABool(Text),
    /// The same number twice in one list, spelled differently.
    #[error("is in its list already")]
    Duplicate,
    /// A path that would leave the dataset's directory.
    #[error(transparent)]
    Path(#[from] PathError),
    /// Something else, in words.
    #[error("{0}")]
    Other(&'static str),
}

impl FieldError {
    /// An error at the place itself; callers add the path with [`FieldError::under`] on the way
    /// out.
    pub fn here(problem: FieldProblem) -> Self {
        Self { path: Vec::new(), problem }
    }

    /// An error at `key`.
    pub fn at(key: impl Into<Text>, problem: FieldProblem) -> Self {
        Self { path: vec![key.into()], problem }
    }

    /// The same error seen from one level further out.
    #[must_use]
    pub fn under(mut self, key: impl Into<Text>) -> Self {
        self.path.insert(0, key.into());
        self
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.path.is_empty() {
            return write!(f, "the record {}", self.problem);
        }
        for (i, key) in self.path.iter().enumerate() {
            let slash = if i == 0 { "" } else { "/" };
            write!(f, "{slash}{key}")?;
        }
        write!(f, ": {}", self.problem)
    }
}

impl std::error::Error for FieldError {}

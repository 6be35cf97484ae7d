//! SCR's records: typed views of hash trees.
//!
//! A record reads every spelling that releases since 2011 have had ([`Record::from_hash`]) and
//! writes the form of 2013 ([`Record::to_hash`]). What was read is written back in its own order
//! and spelling, with the keys of others, so that reading and writing an unchanged file gives the
//! same bytes. Fields are `Option` where a release may lack them; a reader that cannot do without
//! one says so with [`require`].
//!
//! | file | record | module |
//! |---|---|---|
//! | part of most others; `<file>.scr` in 2011 | [`Meta`] | [`meta`] |
//! | part of most others | [`Attributes`] | |
//! | part of others | [`DatasetDescriptor`], [`RedundancyDescriptor`], [`FlushDescriptor`] | [`descriptor`] |
//! | `filemap.scrinfo` | [`FilemapMaster`] | [`filemap`] |
//! | `filemap_<k>.scrinfo` | [`FilemapMember`] | [`filemap`] |
//! | `<rank>.scrfilemap` | [`RankFilemap`] | [`filemap`] |
//! | `<m>_of_<n>_in_<g>.xor`, `.rs`, `.partner` | [`RedundancyHeader`], then the payload; [`RedundancyFileName`] | [`redundancy_header`] |
//! | `summary.scr` | [`Summary`] | [`summary`] |
//! | `rank2file.scr`, `rank2file.0.<i>.scr` | [`Rank2FileNode`], [`Rank2FileLeaf`]; [`Rank2File`] reads either | [`rank2file`] |
//! | `index.scr` | [`Index`] | [`index`] |
//! | `flush.scr`, `halt.scr`, `nodes.scr`, `transfer.scrinfo` | [`FlushFile`], [`Halt`], [`Nodes`], [`Transfer`] | [`state`] |
//! | `dataset.<id>.scrinfo`, which is not SCR's | [`crate::dataset::Catalog`] | [`catalog_file`] |
//!
//! [`detect`] tells which a file is. Maps are [`Ordered`]: their order is the file's, and for a
//! member's files it is the order of its logical file. To make a record:
//!
//! ```
//! use scrfs::ids::{DatasetId, Member};
//! use scrfs::record::{Crc32, FilemapEntry, FilemapMember, FileKind, Meta, Record};
//!
//! let meta = Meta { kind: Some(FileKind::User), size: Some(12), crc: Some(Crc32(0x0898_8129)), ..Meta::default() };
//! let mut entry = FilemapEntry { expected_files: Some(1), ..FilemapEntry::default() };
//! entry.files.set_first("rank 0/a".into(), meta.into());
//! let mut filemap = FilemapMember::default();
//! filemap.set_entry(Member(0), DatasetId(3), entry);
//! assert_eq!(FilemapMember::decode(&filemap.encode()).unwrap(), filemap);
//! ```

mod attributes;
pub mod catalog_file;
pub mod descriptor;
mod field;
pub mod filemap;
pub mod index;
mod kind;
pub mod meta;
mod ordered;
pub mod rank2file;
pub mod redundancy_header;
pub mod state;
pub mod summary;
mod value;

pub use attributes::Attributes;
pub use descriptor::{DatasetDescriptor, FlushDescriptor, RedundancyDescriptor};
pub use field::Shape;
pub(crate) use field::Word;
pub use filemap::{FileEntry, FilemapEntry, FilemapMaster, FilemapMember, RankFilemap};
pub use index::{Index, IndexEntry, IndexView};
pub use kind::{AnyRecord, RecordKind, detect};
pub use meta::{FileKind, Meta};
pub use ordered::{Ordered, Words};
pub use rank2file::{Rank2File, Rank2FileBody, Rank2FileLeaf, Rank2FileNode, RecordPlace};
pub use redundancy_header::{MemberFiles, RedundancyFileName, RedundancyHeader, RedundancyKind, SetMembers};
pub use state::{FlushEntry, FlushFile, Halt, Nodes, Transfer, TransferFile};
pub use summary::{FileOnPfs, NameOnPfs, RankFiles, Summary};
pub use value::{Crc32, Decimal};

use crate::hash::{self, FieldError, FieldProblem, FormatError, Hash};

/// A typed view of a tree.
pub trait Record: Sized {
    /// Reads the tree; unknown keys are kept, wrong values are errors.
    fn from_hash(tree: &Hash) -> Result<Self, FieldError>;

    /// The tree of this record.
    fn to_hash(&self) -> Hash;

    /// Reads the bytes of a file that is this record and nothing else.
    fn decode(bytes: &[u8]) -> Result<Self, RecordError> {
        Ok(Self::from_hash(&hash::decode_file(bytes)?)?)
    }

    /// Reads the record that `bytes` begin with, and tells its size; a payload or another record
    /// may follow.
    fn decode_first(bytes: &[u8]) -> Result<(Self, usize), RecordError> {
        let (tree, size) = hash::decode_record(bytes)?;
        Ok((Self::from_hash(&tree)?, size))
    }

    /// The bytes of a file that is this record.
    fn encode(&self) -> Vec<u8> {
        hash::encode(&self.to_hash())
    }
}

/// Why bytes are not the record that they should be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// They are not a hash file.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// They are one, but a field is wrong.
    #[error(transparent)]
    Field(#[from] FieldError),
}

/// The value of a field that its reader cannot do without; `path` names it, keys joined by `/`.
pub fn require<'a, T>(field: Option<&'a T>, path: &'static str) -> Result<&'a T, FieldError> {
    let words = || path.split('/').map(Into::into).collect();
    field.ok_or_else(|| FieldError { path: words(), problem: FieldProblem::Missing })
}

#[cfg(test)]
mod tests;

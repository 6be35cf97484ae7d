//! Which record a file is.

use super::{
    FilemapMaster, FilemapMember, FlushFile, Halt, Index, Meta, Nodes, Rank2File, RankFilemap, Record,
    RedundancyFileName, RedundancyHeader, Summary, Transfer,
};
use crate::hash::{FieldError, Hash};

macro_rules! kinds {
    ($($(#[$about:meta])* $kind:ident($record:ty),)*) => {
        /// The records that are files of their own.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum RecordKind {
            $($(#[$about])* $kind,)*
        }

        /// A record of any kind.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum AnyRecord {
            $($(#[$about])* $kind($record),)*
        }

        impl RecordKind {
            /// All kinds.
            pub const ALL: &[Self] = &[$(Self::$kind,)*];

            /// Reads `tree` as a record of this kind.
            pub fn read(self, tree: &Hash) -> Result<AnyRecord, FieldError> {
                match self {
                    $(Self::$kind => <$record>::from_hash(tree).map(AnyRecord::$kind),)*
                }
            }
        }

        impl AnyRecord {
            /// The record as a tree.
            pub fn to_hash(&self) -> Hash {
                match self {
                    $(Self::$kind(record) => record.to_hash(),)*
                }
            }
        }
    };
}

kinds! {
    /// `<file>.scr` beside a file (2011).
    Meta(Meta),
    /// `filemap.scrinfo`.
    FilemapMaster(FilemapMaster),
    /// `filemap_<k>.scrinfo`.
    FilemapMember(FilemapMember),
    /// `<rank>.scrfilemap`, later `fmap.<rank>.scr`.
    RankFilemap(RankFilemap),
    /// `<m>_of_<n>_in_<g>.xor`, later `xor.<g>_<m>_of_<n>.scr`; with `.rs` and `.partner` our own.
    RedundancyHeader(RedundancyHeader),
    /// `summary.scr`.
    Summary(Summary),
    /// `rank2file.scr` and its leaves.
    Rank2File(Rank2File),
    /// `index.scr`.
    Index(Index),
    /// `flush.scr`, in 2011 `flush.scrinfo`.
    Flush(FlushFile),
    /// `halt.scr`, in 2011 `halt.scrinfo`.
    Halt(Halt),
    /// `nodes.scr`, in 2011 `nodes.scrinfo`.
    Nodes(Nodes),
    /// `transfer.scrinfo`.
    Transfer(Transfer),
}

/// Which record a file with this name (without directories) and this tree is; `None` where it is
/// none of ours, such as the redundancy files of SCR 3.
pub fn detect(name: &[u8], tree: &Hash) -> Option<RecordKind> {
    let between = |first: &[u8], last: &[u8]| {
        name.len() > first.len() + last.len() && name.starts_with(first) && name.ends_with(last)
    };
    Some(match name {
        b"filemap.scrinfo" => RecordKind::FilemapMaster,
        b"summary.scr" => RecordKind::Summary,
        b"index.scr" => RecordKind::Index,
        b"flush.scr" | b"flush.scrinfo" => RecordKind::Flush,
        b"halt.scr" | b"halt.scrinfo" => RecordKind::Halt,
        b"nodes.scr" | b"nodes.scrinfo" => RecordKind::Nodes,
        b"transfer.scr" | b"transfer.scrinfo" => RecordKind::Transfer,
        _ if between(b"filemap_", b".scrinfo") => RecordKind::FilemapMember,
        _ if between(b"", b".scrfilemap") || between(b"fmap.", b".scr") => RecordKind::RankFilemap,
        _ if between(b"", b".xor")
            || between(b"xor.", b".scr")
            || RedundancyFileName::parse(name).is_some() =>
        {
            RecordKind::RedundancyHeader
        }
        _ if name.starts_with(b"rank2file") => RecordKind::Rank2File,
        // In 2011 every file has one beside it, under the program's own name.
        _ if between(b"", b".scr") && tree.has("FILE") && tree.has("TYPE") => RecordKind::Meta,
        _ => return None,
    })
}

//! What is known of one file.

use super::attributes::Attributes;
use super::field::{Word, record};
use super::value::Crc32;
use crate::hash::{FieldError, FieldProblem, Text};
use crate::ids::{DatasetId, Member};
use crate::path::RelPath;

record! {
    /// A file's meta data: `META` in filemaps, `FILE/<j>` in headers of redundancy files, and in
    /// 2011 a file `<file>.scr`.
    ///
    /// `file` and `name` hold the path relative to the dataset's directory (in SCR's own files the
    /// base name). `program_rank` and `attributes` are scrfs's own; other readers ignore them. A
    /// redundancy file's header has metas without `crc`: they are written before the CRCs are
    /// known.
    Meta {
        /// CRC32 of the bytes.
        crc: Option<Crc32> = ["CRC"],
        /// MPI rank of the process that made the file.
        program_rank: Option<u32> = ["PROGRAM_RANK"],
        /// Mode, owner and times (scrfs).
        attributes: Option<Attributes> = [],
        /// The file was closed in good order.
        complete: Option<bool> = ["COMPLETE"],
        /// Bytes.
        size: Option<u64> = ["SIZE"],
        /// The file's name on the PFS.
        name: Option<Text> = ["NAME"],
        /// The directory that it goes to on the PFS.
        path: Option<Text> = ["PATH"],
        /// The name that the program gave.
        orig: Option<Text> = ["ORIG"],
        /// Members of the dataset.
        ranks: Option<u64> = ["RANKS"],
        /// The member that it belongs to (2011).
        rank: Option<Member> = ["RANK"],
        /// The dataset that it belongs to (2011).
        checkpoint: Option<DatasetId> = ["CKPT"],
        /// What kind of file it is.
        kind: Option<FileKind> = ["TYPE"],
        /// The file's name in the cache.
        file: Option<Text> = ["FILE"],
    }
}

impl Meta {
    /// The file's path within the dataset's directory (`FILE`); an error if it is missing or leads
    /// out of it.
    pub fn path_in_dataset(&self) -> Result<RelPath, FieldError> {
        let file = super::require(self.file.as_ref(), "FILE")?;
        RelPath::new(file.as_bytes()).map_err(|error| FieldError::at("FILE", error.into()))
    }
}

/// What a file is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum FileKind {
    /// The program's data.
    User,
    /// The program's data; the word of 2011.
    Full,
    /// A copy of another member's file.
    Partner,
    /// Redundancy data of XOR.
    Xor,
    /// Redundancy data of Reed-Solomon.
    ReedSolomon,
    /// A word of another release.
    Other(Text),
}

impl Word for FileKind {
    fn from_word(word: &Text) -> Result<Self, FieldProblem> {
        Ok(match word.as_bytes() {
            b"USER" => Self::User,
            b"FULL" => Self::Full,
            b"PARTNER" => Self::Partner,
            b"XOR" => Self::Xor,
            b"RS" => Self::ReedSolomon,
            _ => Self::Other(word.clone()),
        })
    }

    fn to_word(&self) -> Text {
        match self {
            Self::User => "USER".into(),
            Self::Full => "FULL".into(),
            Self::Partner => "PARTNER".into(),
            Self::Xor => "XOR".into(),
            Self::ReedSolomon => "RS".into(),
            Self::Other(word) => word.clone(),
        }
    }
}

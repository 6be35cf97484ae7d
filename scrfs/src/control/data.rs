//! What a coordinator's workers ask of a daemon.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{MemberPart, Room, SealedFile};
use crate::dataset::Catalog;
use crate::ids::{DatasetId, Member};
use crate::path::RelPath;

/// Requests of a coordinator's worker, one at a time on a data connection.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum DataRequest {
    /// Read-only descriptor of a member's file (frozen, recorded or complete).
    OpenFile {
        /// Dataset.
        id: DatasetId,
        /// Path in it.
        path: RelPath,
    },
    /// Read-only descriptor of a member's redundancy file. Answer [`DataReply::Redundancy`].
    OpenRedundancy {
        /// Dataset.
        id: DatasetId,
        /// Whose.
        member: Member,
    },
    /// New, empty redundancy file, read-write. A former one of that name is replaced when the
    /// member is finished.
    CreateRedundancy {
        /// Dataset.
        id: DatasetId,
        /// Whose.
        member: Member,
        /// [`crate::record::RedundancyFileName`].
        name: String,
    },
    /// A lost member will be rebuilt here: these are its names (from the catalog). What is here of
    /// it, and counted so far, stays until it is finished. Refused while programs are served when
    /// the dataset is not here: then it was removed. Answer [`DataReply::Done`].
    BeginMember {
        /// The catalog of the dataset, stored here first if it is not.
        catalog: Arc<Catalog>,
        /// Who.
        member: Member,
    },
    /// New file of a member being rebuilt here, write-only.
    CreateFile {
        /// Dataset.
        id: DatasetId,
        /// Whose: several may have equal files of one path.
        member: Member,
        /// Path in it.
        path: RelPath,
    },
    /// All bytes of the member are written: fsync, check them against `crcs` and sizes, put the
    /// files in place, write the filemap. Answer [`DataReply::Part`].
    FinishMember {
        /// Dataset.
        id: DatasetId,
        /// Who.
        member: Member,
        /// CRC32 of each file, in the order of the logical file.
        crcs: Vec<u32>,
        /// The redundancy file's name, size and CRC32; `None` where the scheme has none.
        redundancy: Option<(String, u64, u32)>,
        /// Position of this member in its set, and the set's members: for the redundancy
        /// descriptor.
        set: Vec<Member>,
        /// Members of the dataset altogether.
        members: u32,
    },
    /// Give up what was created for a member and not finished.
    AbandonMember {
        /// Dataset.
        id: DatasetId,
        /// Who.
        member: Member,
    },
    /// New file for the bytes of a sealed file that is elsewhere, write-only. ENOSPC if there is no
    /// room for them.
    CreateCopy {
        /// The file.
        file: SealedFile,
        /// Bytes that it takes where it is; holes take none.
        takes: u64,
    },
    /// Give up what was created for it.
    AbandonCopy(SealedFile),
    /// What is there room for in the store of this dataset? Answer [`DataReply::Room`].
    Room(DatasetId),
    /// Its bytes are written and had this CRC: check against the catalog, put it in place.
    InstallCopy {
        /// The file.
        file: SealedFile,
        /// Bytes received.
        size: u64,
        /// CRC32 of them.
        crc: u32,
    },
    /// How much of a member's data has been read to be encoded, for the status.
    Progress {
        /// Dataset.
        id: DatasetId,
        /// Bytes read.
        done: u64,
        /// Bytes to be read.
        total: u64,
    },
    /// A program on another node waits for the file that this worker sends. Repeated while it does.
    Waited,
}

/// Answers to [`DataRequest`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum DataReply {
    /// Done.
    Done,
    /// A descriptor comes with this frame.
    Descriptor,
    /// To [`DataRequest::OpenRedundancy`]: a descriptor comes with this frame.
    Redundancy {
        /// CRC32 of the whole file, as it was recorded.
        crc: u32,
    },
    /// The member's part of the catalog.
    Part(Box<MemberPart>),
    /// To [`DataRequest::Room`].
    Room(Room),
    /// It failed: errno and text with path, dataset, member.
    Failed {
        /// errno, 0 if none.
        errno: i32,
        /// For logs and events.
        reason: String,
    },
}

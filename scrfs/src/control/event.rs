//! What a daemon tells the lead. Errors cross as errno numbers where a program will see them, as
//! reasons where an operator will.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

#[cfg(doc)]
use super::Command;
use super::loose::{Begun, LooseEntry, LooseInventory, LooseStamp, LooseVersion};
use super::{DirOp, FrozenFile, FrozenPart, Inventory, Reason, VerifiedMember};
use crate::dataset::Catalog;
use crate::ids::{DatasetId, Member, RequestId};
use crate::path::RelPath;

/// How much a note of the lead matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Severity {
    /// What was decided or done.
    Info,
    /// Something was lost, is unprotected or failed.
    Warning,
}

/// Why a member or a file could not be fetched from the PFS.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FetchFailure {
    /// With path, dataset and member, for the events.
    pub reason: String,
    /// The PFS is at fault: a file is missing there, or its size or CRC is wrong. The lead marks
    /// the dataset FAILED. A full cache or a passing I/O error does not.
    pub corrupt: bool,
    /// The cache here has no room for it.
    pub full: Option<NoRoom>,
}

/// What a node's cache has room for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Room {
    /// Bytes that are free, less what files that are on their way here will take.
    pub free: u64,
    /// The complete datasets here, and how many more bytes would be free without each of them.
    pub held: Vec<(DatasetId, u64)>,
}

/// A cache has no room for what was to come.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NoRoom {
    /// Bytes that it takes.
    pub wanted: u64,
    /// What there is, with nothing of it left behind.
    pub room: Room,
}

/// Names one sealed file.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SealedFile {
    /// Its dataset.
    pub id: DatasetId,
    /// Relative to the dataset's directory.
    pub path: RelPath,
}

/// What a daemon tells the lead.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Event {
    /// Answers [`Command::Ping`].
    Pong,
    /// Answers [`Command::Inventory`].
    Inventory(Box<Inventory>),
    /// Answers [`Command::ReadCatalog`].
    Catalog {
        /// As asked.
        id: DatasetId,
        /// `None`: not here.
        catalog: Option<Arc<Catalog>>,
    },

    /// A program wants a directory operation.
    DirRequest {
        /// Names it over epochs.
        request: RequestId,
        /// What.
        op: DirOp,
    },
    /// Answers [`Command::DirPrepare`].
    DirPrepared {
        /// Which round.
        round: u64,
        /// Per operation: 0 or errno.
        votes: Vec<i32>,
    },
    /// Answers [`Command::DirApply`] and [`Command::DirReplay`].
    DirApplied {
        /// Which round.
        round: u64,
        /// Per operation: 0 or errno.
        results: Vec<i32>,
    },
    /// Answers [`Command::DirUnite`].
    DirUnited,

    /// A marker was set here and its close waits; or it was answered before all was sealed, and the
    /// seal is still owed. [`Command::MarkersEnd`] in the end.
    Marker {
        /// Names this marker over epochs; a successor of this worker gives it another one.
        request: RequestId,
        /// The dataset's name.
        name: Vec<u8>,
        /// The complete dataset of that name here when it was set: the marker asks for a later
        /// generation, or to hear that nothing was changed.
        base: Option<DatasetId>,
        /// By what every node has seen, such as the rename of its directory: it counts as set on
        /// all.
        everywhere: bool,
    },
    /// A program is making `.invalid` in a dataset that is frozen here, and waits: a seal that is
    /// not being committed is to be dropped.
    Invalid {
        /// The dataset's name.
        name: Vec<u8>,
    },
    /// Answers [`Command::AskChanges`].
    Changes {
        /// Which.
        id: DatasetId,
        /// Something was.
        changed: bool,
    },
    /// Answers [`Command::Freeze`].
    Frozen {
        /// Which seal.
        id: DatasetId,
        /// This node's part, or why it cannot be frozen (names who still writes).
        result: Result<FrozenPart, Reason>,
    },
    /// Answers [`Command::Carry`].
    Carried {
        /// Which seal.
        id: DatasetId,
        /// The part is what is to be encoded, or why not.
        result: Result<(), Reason>,
    },
    /// Answers [`Command::Drop`]: markers that were told before fail with that seal.
    Dropped(DatasetId),
    /// Answers [`Command::Commit`].
    Committed {
        /// Which.
        id: DatasetId,
        /// COMPLETE is on storage, and all that follows from it is done; or why not.
        result: Result<(), Reason>,
        /// COMPLETE is on storage, whatever could not be done after that: a restart may find it.
        decided: bool,
    },
    /// Answers [`Command::Evict`].
    Evicted(DatasetId),
    /// A dataset was removed by a program (rmdir of its top); sent before the [`Event::DirApplied`]
    /// of that round.
    Removed(DatasetId),

    /// The next generation of this dataset has begun here: room is not made at its cost, for what
    /// programs have written of that would go with it.
    Overwritten(DatasetId),

    /// The cache here has less room than what programs are about to write takes: a dataset may go
    /// earlier than `SCR_CACHE_SIZE` says.
    RoomShort {
        /// Bytes that programs can still write.
        free: u64,
        /// Bytes that are needed.
        wanted: u64,
        /// For a dataset that begins here. Otherwise one is being written, and may be there for the
        /// most part.
        begins: bool,
        /// Datasets whose removal gives room where it is needed; `None`: all do.
        helps: Option<Vec<DatasetId>>,
    },

    /// Answers [`Command::FlushMember`].
    FlushedMember {
        /// Which.
        id: DatasetId,
        /// All files are on the PFS, or why not.
        result: Result<(), Reason>,
        /// Members here whose bytes are not those that were sealed.
        bad: Vec<Member>,
    },
    /// An operator wants its cached bytes compared with their checksums.
    ScrubWanted(DatasetId),
    /// Answers [`Command::Scrub`].
    Scrubbed {
        /// Which.
        id: DatasetId,
        /// As asked.
        round: u64,
        /// Members here whose bytes are not those that were sealed, with file and reason.
        bad: Vec<(Member, Reason)>,
    },
    /// An operator, or the end of the job, wants it flushed, whatever `SCR_FLUSH` says.
    FlushWanted(DatasetId),
    /// Answers [`Command::Verify`]. Without a question, while programs are served: a restart has
    /// presented it before its bytes were compared (`SCRFS_RESTART=lazy`), and now they are.
    Verified {
        /// Which.
        id: DatasetId,
        /// Members here.
        members: Vec<VerifiedMember>,
    },
    /// Answers [`Command::FetchMember`]: frozen as a member, ready to be encoded.
    FetchedMember {
        /// Which.
        id: DatasetId,
        /// Files in the order of the logical file.
        result: Result<Vec<FrozenFile>, FetchFailure>,
    },
    /// Answers [`Command::RemoveUnsealed`].
    UnsealedRemoved {
        /// Names in the checkpoint path that are gone with all that was below.
        names: u64,
    },
    /// Answers [`Command::Present`].
    Presented {
        /// Or why not.
        result: Result<(), Reason>,
    },

    /// Answers [`Command::LooseInventory`].
    LooseInventory(Box<LooseInventory>),
    /// Answers [`Command::ReadLoose`].
    LooseRead {
        /// As asked.
        stamp: LooseStamp,
        /// `None`: not here, or its bytes are bad.
        version: Option<Box<LooseVersion>>,
    },
    /// A program changed pointer files, and waits until all nodes have them.
    LooseRequest {
        /// Names it over epochs.
        request: RequestId,
        /// What the names are now.
        entries: Vec<LooseEntry>,
    },
    /// Answers [`Command::LooseAsk`].
    LooseBegun {
        /// Which round.
        round: u64,
        /// In no order.
        begun: Vec<Begun>,
    },
    /// Answers [`Command::LooseStore`].
    LooseStored {
        /// Which round.
        round: u64,
        /// 0 or errno.
        errno: i32,
    },

    /// A program opens a sealed file whose bytes are not here.
    Fetch {
        /// Names it.
        request: RequestId,
        /// The file.
        file: SealedFile,
    },
    /// A program has asked whether to write a checkpoint; nobody here has asked as often since the
    /// last seal.
    Asked {
        /// How often.
        times: u32,
    },
    /// A program's message, for the messages in the prefix.
    Posted {
        /// One or more lines.
        text: String,
    },
    /// Answers [`Command::Save`].
    Saved {
        /// Which.
        id: DatasetId,
        /// This node's part is in the prefix, or a newer dataset is; or why not.
        result: Result<(), Reason>,
    },
    /// Answers [`Command::CopyFromPrefix`].
    CopiedFromPrefix {
        /// Which request.
        request: RequestId,
        /// In place, or why not.
        result: Result<(), FetchFailure>,
    },
}

impl Event {
    /// The answer to a command that all nodes have got, or many: others come with it. A request, or
    /// the answer of one node that was asked alone, is not.
    pub fn is_one_of_many(&self) -> bool {
        match self {
            Self::Pong
            | Self::Inventory(_)
            | Self::DirPrepared { .. }
            | Self::DirApplied { .. }
            | Self::DirUnited
            | Self::Changes { .. }
            | Self::Frozen { .. }
            | Self::Carried { .. }
            | Self::Dropped(_)
            | Self::Committed { .. }
            | Self::Evicted(_)
            | Self::Removed(_)
            | Self::FlushedMember { .. }
            | Self::Scrubbed { .. }
            | Self::Verified { .. }
            | Self::FetchedMember { .. }
            | Self::UnsealedRemoved { .. }
            | Self::Presented { .. }
            | Self::LooseInventory(_)
            | Self::LooseBegun { .. }
            | Self::LooseStored { .. }
            | Self::Saved { .. } => true,
            Self::Catalog { .. }
            | Self::DirRequest { .. }
            | Self::Marker { .. }
            | Self::Invalid { .. }
            | Self::Overwritten(_)
            | Self::RoomShort { .. }
            | Self::ScrubWanted(_)
            | Self::FlushWanted(_)
            | Self::LooseRead { .. }
            | Self::LooseRequest { .. }
            | Self::Fetch { .. }
            | Self::Asked { .. }
            | Self::Posted { .. }
            | Self::CopiedFromPrefix { .. } => false,
        }
    }
}

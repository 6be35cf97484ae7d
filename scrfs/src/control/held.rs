//! What a daemon has: directories, datasets, the part of one that was frozen.

use std::fmt;

use serde::{Deserialize, Serialize};

#[cfg(doc)]
use super::Command;
use super::Reason;
#[cfg(doc)]
use crate::dataset::Catalog;
use crate::dataset::Entry;
use crate::ids::{DatasetId, Epoch, Member, RequestId};
use crate::path::RelPath;

/// A directory operation in the checkpoint path; takes effect on every node. Paths are relative to
/// the checkpoint path. The caller's rights were checked by the kernel where the call was made.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum DirOp {
    /// mkdir(2).
    Make {
        /// The new directory.
        path: RelPath,
        /// Permission bits, umask applied.
        mode: u32,
        /// The caller's.
        uid: u32,
        /// The caller's, or the parent's where that is setgid.
        gid: u32,
    },
    /// rmdir(2). At the top of a dataset this removes the dataset, its sealed bytes too.
    Remove {
        /// The directory, empty as the calling node lists it.
        path: RelPath,
    },
    /// rename(2) of a directory.
    Rename {
        /// Old path.
        from: RelPath,
        /// New path.
        to: RelPath,
        /// RENAME_NOREPLACE.
        no_replace: bool,
        /// RENAME_EXCHANGE.
        exchange: bool,
    },
}

impl fmt::Display for DirOp {
    /// For people.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Make { path, .. } => write!(f, "mkdir {path}"),
            Self::Remove { path } => write!(f, "rmdir {path}"),
            Self::Rename { from, to, exchange: true, .. } => write!(f, "exchange of {from} and {to}"),
            Self::Rename { from, to, .. } => write!(f, "rename of {from} to {to}"),
        }
    }
}

/// A directory that a node has, for [`Command::DirUnite`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirHeld {
    /// Relative to the checkpoint path.
    pub path: RelPath,
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

/// A program has removed a dataset's directory: none of the name up to this one is presented again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Removed {
    /// Name of the dataset.
    pub name: Vec<u8>,
    /// Epoch in which its newest generation was sealed.
    pub epoch: Epoch,
    /// That generation.
    pub id: DatasetId,
    /// The epoch in which that was.
    pub during: Epoch,
}

/// What one daemon has, asked for at every start of the coordinators.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Inventory {
    /// The highest epoch it obeyed before this one.
    pub epoch: Epoch,
    /// The last epoch in which it served programs: of what was removed later it has not heard.
    pub served: Epoch,
    /// The highest dataset id it has ever seen; 0 = none.
    pub highest_id: u64,
    /// Directories in the checkpoint path and below that are not part of a complete dataset.
    pub directories: Vec<DirHeld>,
    /// Directory operations that it applied and of which it has not seen [`Command::DirFinish`].
    pub unfinished: Vec<(RequestId, DirOp)>,
    /// Sealed datasets and those on the way.
    pub datasets: Vec<HeldDataset>,
    /// What programs have removed, of each name the newest; not all of long ago.
    pub removed: Vec<Removed>,
    /// What it was told last; `None`: nothing since it was made or a restart began.
    pub advice: Option<Advice>,
}

/// What programs are advised, and what a next lead needs to go on with it as if it were the same
/// (it asks the daemons).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Advice {
    /// Write a checkpoint now.
    pub need_checkpoint: bool,
    /// Write a checkpoint and end.
    pub should_exit: bool,
    /// When programs were served first, microseconds since 1970.
    pub begun_us: u64,
    /// When the last checkpoint was sealed; as `begun_us` until there is one.
    pub sealed_us: u64,
    /// Microseconds that programs have waited at markers.
    pub waited_us: u64,
}

/// How far a dataset is on one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum HeldState {
    /// Frozen for a seal, not recorded.
    Frozen,
    /// Files, redundancy data and filemap are on storage; no COMPLETE yet.
    Recorded,
    /// COMPLETE is recorded.
    Complete,
}

/// A dataset on one node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HeldDataset {
    /// Its id.
    pub id: DatasetId,
    /// The epoch that sealed it.
    pub epoch: Epoch,
    /// [`Catalog::revision`] of the stored catalog; 0 if none.
    pub revision: u32,
    /// The directory's name in the checkpoint path.
    pub name: Vec<u8>,
    /// How far it is here.
    pub state: HeldState,
    /// Members whose files are all here, with their right sizes.
    pub members: Vec<Member>,
    /// Their redundancy files that are here with their right sizes, by
    /// [`crate::dataset::Layout::encoding`].
    pub encoded: Vec<(Member, u32)>,
    /// While it is not complete: of each member what [`sum_of_paths`] gives for its files. They may
    /// have been dealt to members anew while the node was away.
    pub paths: Vec<(Member, u32)>,
    /// It is known to be on the PFS.
    pub flushed: bool,
    /// Programs see it. False: a restart put it aside ([`Command::Present`]), or it is not complete
    /// yet.
    pub listed: bool,
    /// [`Command::MarkFailed`] is recorded here.
    pub failed: bool,
}

/// A sum of the paths of a member's files, which come in their order: with other files it is
/// another one.
pub fn sum_of_paths<'a>(paths: impl Iterator<Item = &'a RelPath>) -> u32 {
    let mut sum = crc32fast::Hasher::new();
    for path in paths {
        sum.update(path.as_bytes());
        sum.update(b"\0");
    }
    sum.finalize()
}

/// A member whose bytes a node has compared with their checksums.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerifiedMember {
    /// Which.
    pub member: Member,
    /// Its files, or what is wrong with them.
    pub files: Result<(), Reason>,
    /// Its redundancy file, or what is wrong with that; good where its layout has none.
    pub redundancy: Result<(), Reason>,
}

impl VerifiedMember {
    /// All that is wrong with it.
    pub fn bad(&self) -> Option<Reason> {
        let problems = [&self.files, &self.redundancy].map(|result| result.as_ref().err().cloned());
        Reason::all(problems.into_iter().flatten())
    }
}

/// A file as it was when its dataset was frozen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrozenFile {
    /// Relative to the dataset's directory.
    pub path: RelPath,
    /// Bytes.
    pub size: u64,
}

/// A node's part of a dataset that was frozen. Of a dataset that was never sealed all is in
/// `files`; else they speak of the next generation over the sealed one, its base.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrozenPart {
    /// New and changed files, in the order of the logical file.
    pub files: Vec<FrozenFile>,
    /// Files of the base whose bytes this node holds as a member, neither changed nor removed here;
    /// in the same order.
    pub carried: Vec<FrozenFile>,
    /// Names of the base that are gone as this node knows, with all that was below them, or in
    /// whose places are some of `files` and `links`.
    pub removed: Vec<RelPath>,
    /// New and changed symbolic links.
    pub links: Vec<RelPath>,
    /// When the first of `files` was made, microseconds since 1970; 0: none, or not known.
    pub begun_us: u64,
}

/// A member's part of the catalog, and its redundancy file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MemberPart {
    /// Whose.
    pub member: Member,
    /// All names that this member adds: its files in the order of its logical file, links,
    /// directories.
    pub entries: Vec<Entry>,
    /// Bytes that its files and the redundancy file take of the cache.
    pub taken: u64,
}

//! Pointer files (`scrfs/docs/protocol.md`, Pointer files): small files and symbolic links directly
//! in the checkpoint path, the same on all nodes.
//!
//! Each closed version has a place in the lead's order and belongs to a dataset: the newest that
//! had begun by then.

use serde::{Deserialize, Serialize};

use crate::dataset::Stamp;
use crate::ids::{DatasetId, Epoch, RequestId};

/// Place in the lead's order, over epochs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct LooseStamp {
    /// The epoch that ordered it.
    pub epoch: Epoch,
    /// Counts versions of that epoch, from 1.
    pub serial: u64,
}

/// Which sealed dataset, in the order of their age; the default is older than all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Age {
    /// The epoch that sealed it.
    pub epoch: Epoch,
    /// Its id.
    pub id: DatasetId,
}

impl Default for Age {
    fn default() -> Self {
        Self { epoch: Epoch(0), id: DatasetId(0) }
    }
}

impl std::fmt::Display for Age {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.epoch, self.id)
    }
}

/// The dataset to which a version belongs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum LooseOwner {
    /// A sealed one; the default age: none had begun.
    Sealed(Age),
    /// One that has begun and is not sealed: later than all that are sealed.
    Begun {
        /// Its directory's name.
        name: Vec<u8>,
        /// When, microseconds since 1970.
        since_us: u64,
        /// The newest that was sealed by then.
        after: Age,
    },
}

/// What a name is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum LooseKind {
    /// Nothing any more.
    Gone,
    /// A regular file.
    File {
        /// Bytes.
        size: u64,
        /// CRC32 of them.
        crc: u32,
    },
    /// A symbolic link and its target.
    Symlink(Vec<u8>),
}

/// What a name directly in the checkpoint path is at some moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LooseEntry {
    /// One component.
    pub name: Vec<u8>,
    /// File, link or nothing.
    pub kind: LooseKind,
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Last access.
    pub atime: Stamp,
    /// Last change of the bytes.
    pub mtime: Stamp,
    /// A file's bytes; empty where a message only tells of it.
    pub bytes: Vec<u8>,
}

impl LooseEntry {
    /// `name` is nothing.
    pub fn gone(name: Vec<u8>) -> Self {
        let (atime, mtime) = (Stamp::default(), Stamp::default());
        Self { name, kind: LooseKind::Gone, mode: 0, uid: 0, gid: 0, atime, mtime, bytes: Vec::new() }
    }

    /// Without its bytes.
    #[must_use]
    pub fn head(&self) -> Self {
        Self {
            name: self.name.clone(),
            kind: self.kind.clone(),
            bytes: Vec::new(),
            atime: self.atime,
            mtime: self.mtime,
            ..*self
        }
    }

    /// Bytes and rights are those of `other`; times do not count.
    pub fn same(&self, other: &Self) -> bool {
        let rights = |entry: &Self| (entry.mode, entry.uid, entry.gid);
        self.kind == other.kind && (self.is_gone() || rights(self) == rights(other))
    }

    /// The name is nothing.
    pub fn is_gone(&self) -> bool {
        self.kind == LooseKind::Gone
    }

    /// The bytes are those that its size and CRC speak of.
    pub fn is_whole(&self) -> bool {
        match self.kind {
            LooseKind::File { size, crc } => {
                self.bytes.len() as u64 == size && crc32fast::hash(&self.bytes) == crc
            }
            LooseKind::Gone | LooseKind::Symlink(_) => self.bytes.is_empty(),
        }
    }
}

/// A version of a name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LooseVersion {
    /// Its place in the order; the newest one stands.
    pub stamp: LooseStamp,
    /// The request that brought it.
    pub request: RequestId,
    /// Whose it is.
    pub owner: LooseOwner,
    /// What it is.
    pub entry: LooseEntry,
}

impl LooseVersion {
    /// Without its bytes.
    #[must_use]
    pub fn head(&self) -> Self {
        Self { owner: self.owner.clone(), entry: self.entry.head(), ..*self }
    }
}

/// What the last restart presented: versions of before that belong to anything later are of a
/// branch that was given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LooseBase {
    /// The epoch of that restart.
    pub epoch: Epoch,
    /// The dataset; the default age: none.
    pub shown: Age,
}

impl LooseBase {
    /// The version is of a branch that this restart gave up.
    pub fn gave_up(&self, version: &LooseVersion) -> bool {
        let later = match &version.owner {
            // When nothing was presented, all that was before is given up.
            LooseOwner::Sealed(age) => *age > self.shown || self.shown == Age::default(),
            LooseOwner::Begun { .. } => true,
        };
        version.stamp.epoch < self.epoch && later
    }

    /// The dataset of `age` is of a branch that this restart gave up.
    pub fn gave_up_dataset(&self, age: Age) -> bool {
        age.epoch < self.epoch && age > self.shown
    }
}

/// What one daemon has of pointer files.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LooseInventory {
    /// By stamp, without bytes.
    pub versions: Vec<LooseVersion>,
    /// What it presented last.
    pub base: Option<LooseBase>,
    /// When the newest sealed datasets began, microseconds since 1970.
    pub began: Vec<(Age, u64)>,
    /// Versions that were bound to a dataset, and whose they were before.
    pub bound: Vec<(LooseStamp, Age, LooseOwner)>,
    /// What has begun there.
    pub begun: Vec<Begun>,
}

/// A dataset that has files on a node and is not sealed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Begun {
    /// Its directory's name.
    pub name: Vec<u8>,
    /// The complete dataset of that name, over which this is the next generation.
    pub base: Option<DatasetId>,
    /// Its first file was made then, microseconds since 1970; 0: not known.
    pub since_us: u64,
}

/// All pointer files that belong to one dataset, as they are kept in the prefix.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LooseSet {
    /// The dataset.
    pub age: Age,
    /// The newest version that was considered.
    pub as_of: LooseStamp,
    /// One of each name.
    pub versions: Vec<LooseVersion>,
}

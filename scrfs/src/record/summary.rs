//! `summary.scr`: what a dataset on the PFS is.

use super::attributes::Attributes;
use super::descriptor::DatasetDescriptor;
use super::field::record;
use super::ordered::Ordered;
use super::value::Crc32;
use crate::hash::Text;
use crate::ids::{DatasetId, Member};

/// The version that is written.
pub const SUMMARY_VERSION: u64 = 6;

record! {
    /// A dataset on the PFS. Version 6 has the descriptor; version 5 (2011) has every file.
    Summary {
        /// The dataset (version 6).
        dataset: Option<DatasetDescriptor> = ["DSET"],
        /// The epoch that sealed it (scrfs).
        epoch: Option<u64> = ["EPOCH"],
        /// Its directories; `.` is its own (scrfs).
        directories: Ordered<Text, NameOnPfs> = ["DIRECTORY"],
        /// Its symbolic links (scrfs).
        links: Ordered<Text, NameOnPfs> = ["LINK"],
        /// All files are there; absent means that they are not.
        complete: Option<bool> = ["COMPLETE"],
        /// 6, or 5 in 2011.
        version: Option<u64> = ["VERSION"],
        /// The checkpoint with its files (version 5).
        checkpoints: Ordered<DatasetId, SummaryCheckpoint> = ["CKPT"],
    }
}

record! {
    /// All files of a checkpoint (version 5).
    SummaryCheckpoint {
        /// All files are there.
        complete: Option<bool> = ["COMPLETE"],
        /// Each member's files.
        by_member: Ordered<Member, RankFiles> = ["RANK"],
        /// Members of the dataset.
        ranks: Option<u64> = ["RANKS"],
    }
}

record! {
    /// The files of one member on the PFS; in version 5 summaries and in rank2file leaves.
    RankFiles {
        /// By path relative to the dataset's directory.
        files: Ordered<Text, FileOnPfs> = ["FILE"],
        /// How many there are; written by index tools only.
        count: Option<u64> = ["FILES"],
    }
}

record! {
    /// One file on the PFS. `program_rank` and `attributes` are scrfs's own; other readers ignore
    /// them.
    FileOnPfs {
        /// MPI rank of the process that made the file.
        program_rank: Option<u32> = ["PROGRAM_RANK"],
        /// Mode, owner and times (scrfs).
        attributes: Option<Attributes> = [],
        /// Bytes.
        size: Option<u64> = ["SIZE"],
        /// CRC32 of them.
        crc: Option<Crc32> = ["CRC"],
        /// It is not fetched: redundancy data, of use to a rebuild on the PFS only.
        no_fetch: bool = ["NOFETCH"],
    }
}

record! {
    /// A directory or symbolic link on the PFS as it was sealed (scrfs).
    NameOnPfs {
        /// What a link points to.
        target: Option<Text> = ["TARGET"],
        /// Mode, owner and times (scrfs).
        attributes: Option<Attributes> = [],
    }
}

impl Summary {
    /// Whether the dataset can be used: complete, in version 6 or in every checkpoint of version 5.
    pub fn is_complete(&self) -> bool {
        if self.checkpoints.is_empty() {
            return self.complete == Some(true);
        }
        self.checkpoints.iter().all(|(_, checkpoint)| checkpoint.complete == Some(true))
    }
}

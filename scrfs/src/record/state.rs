//! The small state files: flush, halt, nodes, transfer. SCR's tools change them in place, under a
//! lock.

use super::descriptor::DatasetDescriptor;
use super::field::record;
use super::ordered::{Ordered, Words};
use super::value::Decimal;
use crate::hash::Text;
use crate::ids::DatasetId;

record! {
    /// `flush.scr`: where each dataset is.
    FlushFile {
        /// By id (`CKPT` in 2011).
        datasets: Ordered<DatasetId, FlushEntry> = ["DATASET", "CKPT"],
    }
}

/// Location: node-local storage.
pub const LOCATION_CACHE: &str = "CACHE";
/// Location: the PFS.
pub const LOCATION_PFS: &str = "PFS";
/// Location: on the way to the PFS.
pub const LOCATION_FLUSHING: &str = "FLUSHING";

record! {
    /// One dataset.
    FlushEntry {
        /// The dataset (SCR 3).
        dataset: Option<DatasetDescriptor> = ["DSETDESC"],
        /// 1 where it can be restarted from (1.2 and later).
        is_checkpoint: Option<u64> = ["CKPT"],
        /// 1 where it is a result to keep (1.2 and later).
        is_output: Option<u64> = ["OUTPUT"],
        /// Where it is: [`LOCATION_CACHE`], [`LOCATION_PFS`], [`LOCATION_FLUSHING`] or a word of
        /// another release.
        locations: Words = ["LOCATION"],
        /// Its name on the PFS (`NAME` in 1.2 and later).
        name: Option<Text> = ["DIR", "NAME"],
    }
}

record! {
    /// `halt.scr`: when the job is to stop. Without any key it goes on.
    Halt {
        /// Why it stopped or is to stop.
        exit_reason: Option<Text> = ["ExitReason"],
        /// Stop after so many more checkpoints.
        checkpoints_left: Option<i64> = ["CheckpointsLeft"],
        /// Stop before this time: seconds since 1970.
        exit_before: Option<i64> = ["ExitBefore"],
        /// Stop at the first checkpoint after this time: seconds since 1970.
        exit_after: Option<i64> = ["ExitAfter"],
        /// Stop so many seconds before the allocation ends, or before `exit_before`.
        halt_seconds: Option<i64> = ["HaltSeconds"],
        /// 1: for `exit_reason` the job stops at once, not at its next checkpoint. SCR's tools
        /// leave it as it is.
        immediate: Option<u64> = ["Immediate"],
    }
}

record! {
    /// `nodes.scr`: how many nodes the last run used.
    Nodes {
        /// Their number.
        nodes: Option<u64> = ["NODES"],
    }
}

record! {
    /// `transfer.scrinfo`: what a node's background copier is to do and has done.
    Transfer {
        /// By source path.
        files: Ordered<Text, TransferFile> = ["FILES"],
        /// Limit in bytes per second.
        bandwidth: Option<Decimal> = ["BW"],
        /// Limit in percent of the time.
        percent: Option<Decimal> = ["PERCENT"],
        /// RUN, STOP or EXIT.
        command: Option<Text> = ["COMMAND"],
        /// RUNNING, STOPPED or EXITING.
        state: Option<Text> = ["STATE"],
        /// DONE when all is copied.
        flags: Words = ["FLAG"],
    }
}

record! {
    /// One file to copy.
    TransferFile {
        /// Where to.
        destination: Option<Text> = ["DESTINATION"],
        /// Bytes to copy.
        size: Option<u64> = ["SIZE"],
        /// Bytes copied.
        written: Option<u64> = ["WRITTEN"],
    }
}

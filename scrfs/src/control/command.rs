//! What the lead tells a daemon. What comes of it is in `scrfs/docs/protocol.md`.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::loose::{Age, LooseOwner, LooseStamp, LooseVersion};
use super::{Advice, DirHeld, DirOp, Reason, SealedFile, Severity};
#[cfg(doc)]
use super::{Event, Inventory, loose::LooseInventory};
use crate::dataset::{Catalog, Entry, Revision};
use crate::ids::{DatasetId, Epoch, Member, RequestId};
use crate::path::RelPath;

/// What becomes of a marker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum MarkerOutcome {
    /// Success: this dataset has what the marker was set for, and is complete on all nodes.
    Sealed(DatasetId),
    /// EIO: this seal failed, and all nodes have dropped it. [`Command::Drop`] said why.
    NotSealed(DatasetId),
    /// EIO: no seal begins for it, or none is waited for; with the reason, for the events.
    Refused(String),
    /// Success, and nothing is sealed (`SCR_ENABLE=0`).
    Waived,
}

/// Commands of the lead to a daemon; the node's coordinator hands them on. Each is answered by the
/// event named in its comment, in any order; "-" means no answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Command {
    /// Say what you have. [`Event::Inventory`].
    Inventory,
    /// Send the catalog of a complete dataset. [`Event::Catalog`].
    ReadCatalog(DatasetId),
    /// Say that you are there. [`Event::Pong`].
    Ping,
    /// Settling is over: send requests, and again those that wait. -
    Serve,

    /// Check each operation and hold its names until the round is applied. [`Event::DirPrepared`].
    DirPrepare {
        /// Counts rounds of this epoch.
        round: u64,
        /// Independent of one another: no path of one is above or equal to a path of another.
        ops: Vec<(RequestId, DirOp)>,
    },
    /// Carry out those with verdict 0, let all names go. [`Event::DirApplied`].
    DirApply {
        /// The prepared round.
        round: u64,
        /// Per operation: 0 or the errno that some node voted.
        verdicts: Vec<i32>,
    },
    /// Carry out what another node has already carried out (attach); skip what is done.
    /// [`Event::DirApplied`].
    DirReplay {
        /// For the answer.
        round: u64,
        /// All were decided in an earlier epoch.
        ops: Vec<(RequestId, DirOp)>,
    },
    /// Every node has applied: answer the programs whose requests these are, forget the record. -
    DirFinish {
        /// Request and 0 or errno.
        results: Vec<(RequestId, i32)>,
    },
    /// Make those that are missing (attach). [`Event::DirUnited`].
    DirUnite {
        /// Parents before children.
        directories: Vec<DirHeld>,
    },

    /// Was anything in this sealed dataset changed here, or removed, since it was sealed?
    /// [`Event::Changes`].
    AskChanges(DatasetId),
    /// Freeze this node's part: wait until it is quiet, then tell names and sizes.
    /// [`Event::Frozen`].
    Freeze {
        /// Given by the lead.
        id: DatasetId,
        /// The directory's name in the checkpoint path.
        name: Vec<u8>,
        /// This node's member index.
        member: Member,
        /// The complete dataset of that name, of which this is the next generation.
        base: Option<DatasetId>,
    },
    /// All are frozen: these names of the base do not belong to this node's part, with all below
    /// them, because another node changed or removed them: files that this node would carry on,
    /// and directories and links, which are not one node's alone. Names that are new here stay.
    /// [`Event::Carried`].
    Carry {
        /// Which seal.
        id: DatasetId,
        /// As they were sealed, relative to the dataset's directory.
        dropped: Vec<RelPath>,
    },
    /// All nodes are frozen, and each knows its part: markers that wait for no more than this
    /// succeed. Again to a node that sets another marker while the seal goes on. -
    AllFrozen(DatasetId),
    /// The seal failed: thaw, delete redundancy data. Before [`Command::Serve`] it settles a seal
    /// of an earlier epoch: what markers promised stays frozen and is asked for again after Serve.
    /// After [`Command::FetchMember`] it deletes what was fetched. [`Event::Dropped`], also when
    /// nothing is here.
    Drop {
        /// Which seal.
        id: DatasetId,
        /// For the events.
        reason: Reason,
    },
    /// All voted yes: store the catalog, record COMPLETE. Also brings a later revision.
    /// [`Event::Committed`].
    Commit(Arc<Catalog>),
    /// The same of a later revision, to a daemon that has recorded the one before: what has
    /// changed. [`Event::Committed`]; a failure where it has not.
    Revise(Arc<Revision>),
    /// Every member has recorded COMPLETE. -
    Sealed(DatasetId),
    /// Answer the programs that have set these markers. -
    MarkersEnd {
        /// The dataset's name.
        name: Vec<u8>,
        /// Those of this node that end so.
        requests: Vec<RequestId>,
        /// How.
        outcome: MarkerOutcome,
    },
    /// Delete a dataset's bytes, redundancy data and records here, however far it is.
    /// [`Event::Evicted`], also when nothing is here.
    Evict(DatasetId),

    /// Copy this node's files of it to the PFS, below `directory`, with CRC check and fsync.
    /// [`Event::FlushedMember`].
    FlushMember {
        /// Which dataset.
        id: DatasetId,
        /// Absolute, on the PFS, made by the lead.
        directory: Vec<u8>,
    },
    /// It is on the PFS now. -
    MarkFlushed(DatasetId),
    /// It is not on the PFS, though a node may have recorded so: its copy there is bad, or gone. -
    UnmarkFlushed(DatasetId),
    /// A try to flush it has failed. -
    FlushFailed {
        /// Which dataset.
        id: DatasetId,
        /// Why, for status.
        reason: String,
        /// Nobody should wait for it: if it is tried again, then only now and then, unless somebody
        /// asks for it.
        given_up: bool,
    },
    /// No source has the right bytes of one of its files: no restart presents it, until a later
    /// revision is committed. -
    MarkFailed {
        /// Which dataset.
        id: DatasetId,
        /// The file and what was wrong with each source, for the events.
        reason: String,
    },

    /// Read the bytes of its members here, while programs run, and compare them with their
    /// checksums. [`Event::Scrubbed`].
    Scrub {
        /// Which.
        id: DatasetId,
        /// Names this reading in the answer.
        round: u64,
        /// With rests; and it ends when another one begins.
        gently: bool,
    },
    /// A scrub has ended so. -
    MarkScrubbed {
        /// Of which.
        id: DatasetId,
        /// What was found.
        report: crate::status::Scrubbed,
    },
    /// No node has these members yet: they are rebuilt while programs run. -
    MarkAbsent {
        /// Of which dataset.
        id: DatasetId,
        /// All of them; empty: each is where the catalog says.
        members: Vec<Member>,
    },
    /// Check size and CRC of all its files and redundancy files here. [`Event::Verified`].
    Verify(DatasetId),
    /// Copy files from the PFS into the cache, with CRC check, and become `member` of it.
    /// [`Event::FetchedMember`].
    FetchMember {
        /// Which dataset.
        id: DatasetId,
        /// The epoch that sealed it.
        epoch: Epoch,
        /// The directory's name in the checkpoint path.
        name: Vec<u8>,
        /// The member this node becomes.
        member: Member,
        /// Absolute path of the dataset on the PFS.
        directory: Vec<u8>,
        /// Directories, links, and this member's files; sizes and CRCs as the PFS records them.
        entries: Vec<Entry>,
    },
    /// Restart: what is to be presented lacks room. Unsealed files go now, in place of at
    /// [`Command::Present`], save where a dataset may be. [`Event::UnsealedRemoved`].
    RemoveUnsealed,
    /// Restart: list exactly these, newest first; the first is current. Everything else in the
    /// checkpoint path goes: unsealed files and directories are removed, complete datasets not
    /// listed are put aside. [`Event::Presented`].
    Present {
        /// Complete here (a catalog is stored), even where no member's data is.
        datasets: Vec<DatasetId>,
    },

    /// Answer to [`Event::Fetch`]: the file is in place (0), or the errno. -
    Fetched {
        /// The request.
        request: RequestId,
        /// 0 or errno.
        errno: i32,
    },
    /// Bring one sealed file from the PFS. [`Event::CopiedFromPrefix`].
    CopyFromPrefix {
        /// The request that waits for it.
        request: RequestId,
        /// The file.
        file: SealedFile,
        /// Absolute path of the dataset on the PFS.
        directory: Vec<u8>,
    },
    /// Copy this node's part to the prefix, beside those that other nodes have saved when their job
    /// ended without coordinators ([`crate::prefix::scavenge`]). [`Event::Saved`].
    Save(DatasetId),
    /// What programs read in `.scrfs`; the same on all nodes. -
    Advise(Advice),
    /// Which versions of pointer files do you have? [`Event::LooseInventory`].
    LooseInventory,
    /// Send a version with its bytes. [`Event::LooseRead`].
    ReadLoose(LooseStamp),
    /// A round of changed pointer files begins: which datasets have begun and are not sealed?
    /// [`Event::LooseBegun`].
    LooseAsk {
        /// Counts rounds of this epoch.
        round: u64,
    },
    /// Put these versions on storage. [`Event::LooseStored`].
    LooseStore {
        /// The round.
        round: u64,
        /// In the lead's order.
        versions: Vec<LooseVersion>,
        /// And in the mount, where nobody has the name open for writing; else when that is over.
        place: bool,
    },
    /// Every node has answered: answer the programs whose requests these are. -
    LooseFinish {
        /// Request and 0 or errno.
        results: Vec<(RequestId, i32)>,
    },
    /// These versions belong to other datasets than was known. Before the [`Command::Commit`] of
    /// the dataset that they belong to from then on. -
    LooseBind {
        /// These versions, and whose they are.
        bound: Vec<(LooseStamp, LooseOwner)>,
        /// Datasets of which everything is here that they are presented with, and when they began,
        /// microseconds since 1970.
        began: Vec<(Age, u64)>,
    },
    /// What is not needed any more. -
    LooseForget {
        /// These versions.
        versions: Vec<LooseStamp>,
        /// Datasets that have left the caches: versions that only they are presented with are not
        /// kept.
        datasets: Vec<Age>,
    },
    /// What the [`Command::Present`] that follows puts in place, beside datasets: one version of
    /// each name. -
    LooseShow {
        /// All are on storage here.
        versions: Vec<LooseStamp>,
        /// The dataset that is presented.
        shown: Age,
    },
    /// Something worth an operator's attention, for the events. -
    Note {
        /// How much it matters.
        severity: Severity,
        /// With dataset, member and host where it is about these.
        text: String,
    },
}

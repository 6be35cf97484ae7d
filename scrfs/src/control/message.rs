//! Every message of the control protocol. Values only; framing is in `codec`, meaning in `scrfs/docs/protocol.md`.
//!
//! Errors cross as errno numbers where a program will see them, as text where an operator will.

use serde::{Deserialize, Serialize};

use super::loose::{Age, Begun, LooseEntry, LooseInventory, LooseOwner, LooseStamp, LooseVersion};
use crate::dataset::{Catalog, Entry, Scheme};
use crate::ids::{DatasetId, Epoch, Member, NodeRank, RequestId};
use crate::path::RelPath;

/// Version of this protocol; both ends must have the same.
pub const PROTOCOL: u32 = 6;

/// First frame of every connection.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Hello {
    /// [`PROTOCOL`] of the caller.
    pub protocol: u32,
    /// What kind of connection this is.
    pub role: Role,
}

/// Who connects.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Role {
    /// The node's coordinator. Refused when its epoch is below the highest seen.
    Coordinator {
        /// Its epoch.
        epoch: Epoch,
        /// Its rank.
        rank: NodeRank,
        /// Host names of all coordinators, indexed by rank.
        hosts: Vec<String>,
        /// How it starts.
        start: Start,
        /// The job's settings, the lead's values.
        settings: Box<Settings>,
    },
    /// A worker of the coordinator of `epoch`.
    Data {
        /// Refused unless it is the attached coordinator's.
        epoch: Epoch,
    },
    /// A tool.
    Operator,
}

/// The two ways coordinators start (DESIGN 3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Start {
    /// No program runs: choose a dataset, rebuild, present it, remove junk.
    Restart,
    /// Programs run: settle what is in doubt; present, hide and remove nothing.
    Attach,
}

/// The daemon's answer to [`Hello`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Welcome {
    /// Go on.
    Accepted,
    /// Closed after this, with the reason (and the highest epoch seen).
    Refused {
        /// For the log.
        reason: String,
        /// The highest epoch that this daemon has seen.
        highest: Epoch,
    },
}

/// The job's settings that daemons follow; they reach them when coordinators attach (DESIGN 8, 10).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// The job's directory on the PFS, absolute.
    pub prefix: Vec<u8>,
    /// The job's user and id, for records.
    pub user: String,
    /// `SCR_JOB_ID`.
    pub job_id: String,
    /// `SCRFS_COORDINATOR_WAIT`, milliseconds.
    pub coordinator_wait_ms: u64,
    /// `SCRFS_SEAL_TIMEOUT`, milliseconds.
    pub seal_timeout_ms: u64,
    /// `SCR_CACHE_SIZE`: sealed datasets kept.
    pub cache_size: u32,
    /// `SCRFS_CACHE_BYTES`: bytes that a node's cache may take; 0 = no limit.
    #[serde(default)]
    pub cache_bytes: u64,
    /// `SCR_COPY_TYPE`.
    pub scheme: Scheme,
    /// `SCR_SET_SIZE`.
    pub set_size: u32,
    /// `SCR_HOP_DISTANCE`.
    pub hop_distance: u32,
    /// `SCR_FLUSH`: every n-th checkpoint is flushed; 0 = none.
    pub flush_every: u32,
    /// `SCR_FETCH`: may fetch from the PFS at restart.
    pub fetch: bool,
    /// `SCR_DISTRIBUTE`: may use the cache at restart.
    pub distribute: bool,
    /// `SCRFS_LIST_MAX`: files of one dataset, and directories.
    pub list_max: u64,
    /// `SCR_MPI_BUF_SIZE`: bytes of one block.
    pub block_bytes: u32,
    /// How datasets are marked and sealed.
    pub sealing: SealRules,
    /// What loose files in the checkpoint path mean.
    pub loose: LooseRules,
    /// When programs are advised to write checkpoints, and to end.
    pub advice: AdviceRules,
    /// `CKPT=` lines: which datasets go to which store.
    #[serde(default)]
    pub stores: Vec<StoreRule>,
}

/// What of a checkpoint descriptor decides where a dataset goes (DESIGN 5).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreRule {
    /// It is for checkpoint ids that this divides; the longest such interval decides.
    pub interval: u32,
    /// Base of the store; `None`: the one with most room.
    pub store: Option<Vec<u8>>,
}

/// How datasets are marked and sealed (DESIGN 4.5).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SealRules {
    /// `SCRFS_MARKER`: names of markers beside `.complete`.
    pub markers: Vec<Vec<u8>>,
    /// `SCRFS_MARKER_SCOPE`.
    pub scope: MarkerScope,
    /// `SCRFS_SEAL=background`: markers wait only until all nodes are frozen.
    pub background: bool,
    /// `SCRFS_COMMIT_ON_RENAME`: a [`crate::pattern::NamePattern`]'s text.
    pub commit_on_rename: Option<String>,
    /// Where scrfs-run started the program; empty: on all nodes.
    pub program_hosts: Vec<String>,
}

/// On which nodes a marker has to be set.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum MarkerScope {
    /// On one of them.
    #[default]
    Any,
    /// On all that run the program.
    All,
}

/// What loose files in the checkpoint path mean (DESIGN 4.7, 10).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LooseRules {
    /// `SCRFS_DATASET_PATTERN`: a capturing [`crate::pattern::NamePattern`]'s text.
    pub pattern: Option<String>,
    /// `SCRFS_LOOSE_MAX`: bytes of a pointer file.
    pub max_bytes: u64,
    /// `SCRFS_LOOSE_FILES`: pointer files.
    pub max_names: u32,
}

impl Default for LooseRules {
    fn default() -> Self {
        Self { pattern: None, max_bytes: 1 << 20, max_names: 64 }
    }
}

/// Rules for what programs are advised; 0 = not set.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdviceRules {
    /// `SCR_CHECKPOINT_INTERVAL`: a checkpoint at every n-th question.
    pub interval: u32,
    /// `SCR_CHECKPOINT_SECONDS`: a checkpoint so long after the last.
    pub seconds: u64,
    /// `SCR_CHECKPOINT_OVERHEAD`: percent of the time that programs may wait at markers.
    pub overhead: u32,
    /// `SCR_HALT_SECONDS`: end so long before the allocation does.
    pub halt_seconds: u64,
    /// `SCRFS_END_TIME`: when the allocation ends, seconds since 1970.
    pub end_time: u64,
}

/// A directory operation in the checkpoint path; takes effect on every node (DESIGN 4.4). Paths are relative to the
/// checkpoint path. The caller's rights were checked by the kernel where the call was made.
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

/// What one daemon has, asked for at every start of the coordinators.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Inventory {
    /// The highest epoch it obeyed before this one.
    pub epoch: Epoch,
    /// The highest dataset id it has ever seen; 0 = none.
    pub highest_id: u64,
    /// Directories in the checkpoint path and below that are not part of a complete dataset.
    pub directories: Vec<DirHeld>,
    /// Directory operations that it applied and of which it has not seen [`Command::DirFinish`].
    pub unfinished: Vec<(RequestId, DirOp)>,
    /// Sealed datasets and those on the way.
    pub datasets: Vec<HeldDataset>,
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
    /// Members whose data is here: all files and the redundancy file are there with their right sizes.
    pub members: Vec<Member>,
    /// It is known to be on the PFS.
    pub flushed: bool,
    /// Programs see it. False: a restart put it aside ([`Command::Present`]), or it is not complete yet.
    pub listed: bool,
    /// [`Command::MarkFailed`] is recorded here.
    pub failed: bool,
}

/// A file as it was when its dataset was frozen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrozenFile {
    /// Relative to the dataset's directory.
    pub path: RelPath,
    /// Bytes.
    pub size: u64,
}

/// A file of the base that goes on as it was sealed. Directories above it may have been renamed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CarriedFile {
    /// What it is and where it is now.
    pub file: FrozenFile,
    /// Its path in the base.
    pub sealed: RelPath,
}

/// A node's part of a dataset that was frozen. Of a dataset that was never sealed all is in `files`; else they speak of
/// the next generation over the sealed one, its base.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrozenPart {
    /// New and changed files, in the order of the logical file.
    pub files: Vec<FrozenFile>,
    /// Files of the base whose bytes this node holds as a member, neither changed nor removed here; in the same order.
    pub carried: Vec<CarriedFile>,
    /// Names of the base, as they were sealed, that are gone as this node knows, with all that was below them, or in whose
    /// places are some of `files` and `links`.
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
    /// All names that this member adds: its files in the order of its logical file, links, directories.
    pub entries: Vec<Entry>,
    /// Bytes that its files and the redundancy file take of the cache.
    pub taken: u64,
}

/// Commands of the lead to a daemon; the node's coordinator hands them on. Each is answered by the event named in
/// its comment, in any order; "-" means no answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Command {
    /// Say what you have. [`Event::Inventory`].
    Inventory,
    /// Send the catalog of a complete dataset. [`Event::Catalog`].
    ReadCatalog(DatasetId),
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
    /// Carry out what another node has already carried out (attach); skip what is done. [`Event::DirApplied`].
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

    /// Was anything in this sealed dataset changed here, or removed, since it was sealed? [`Event::Changes`].
    AskChanges(DatasetId),
    /// Freeze this node's part: wait until it is quiet, then tell names and sizes. [`Event::Frozen`].
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
    /// All are frozen: these names of the base do not belong to this node's part, with all below them, because another
    /// node changed or removed them. Names that are new here stay. [`Event::Carried`].
    Carry {
        /// Which seal.
        id: DatasetId,
        /// As they were sealed, relative to the dataset's directory.
        dropped: Vec<RelPath>,
    },
    /// All nodes are frozen, and each knows its part: markers that wait for no more than this succeed. Again to a node
    /// that sets another marker while the seal goes on. -
    AllFrozen(DatasetId),
    /// The seal failed: thaw, delete redundancy data, fail the markers that wait (EIO). Before [`Command::Serve`] it
    /// settles a seal of an earlier epoch: markers go on waiting and are sent again after Serve. After
    /// [`Command::FetchMember`] it deletes what was fetched. [`Event::Dropped`], also when nothing is here.
    Drop {
        /// Which seal.
        id: DatasetId,
        /// For the events.
        reason: String,
    },
    /// All voted yes: store the catalog, record COMPLETE. Also brings a later revision. [`Event::Committed`].
    Commit(Box<Catalog>),
    /// Every member has recorded COMPLETE: the markers that wait succeed. [`Event::Heard`].
    Sealed(DatasetId),
    /// A marker that cannot be sealed: fail those that wait for `name` (EIO). [`Event::Refused`].
    RefuseMarker {
        /// The dataset's name.
        name: Vec<u8>,
        /// For the events.
        reason: String,
    },
    /// Delete a dataset's bytes, redundancy data and records here, however far it is. [`Event::Evicted`], also when
    /// nothing is here.
    Evict(DatasetId),

    /// Copy this node's files of it to the PFS, below `directory`, with CRC check and fsync. [`Event::FlushedMember`].
    FlushMember {
        /// Which dataset.
        id: DatasetId,
        /// Absolute, on the PFS, made by the lead.
        directory: Vec<u8>,
    },
    /// It is on the PFS now. -
    MarkFlushed(DatasetId),
    /// No source has the right bytes of one of its files: no restart presents it, until a later revision is committed. -
    MarkFailed {
        /// Which dataset.
        id: DatasetId,
        /// The file and what was wrong with each source, for the events.
        reason: String,
    },

    /// Check size and CRC of all its files and redundancy files here. [`Event::Verified`].
    Verify(DatasetId),
    /// Copy files from the PFS into the cache, with CRC check, and become `member` of it. [`Event::FetchedMember`].
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
    /// Restart: list exactly these, newest first; the first is current. Everything else in the checkpoint path goes:
    /// unsealed files and directories are removed, complete datasets not listed are put aside. [`Event::Presented`].
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
    /// What programs read in `.scrfs`; the same on all nodes. -
    Advise {
        /// Write a checkpoint now.
        need_checkpoint: bool,
        /// Write a checkpoint and end.
        should_exit: bool,
    },
    /// Which versions of pointer files do you have? [`Event::LooseInventory`].
    LooseInventory,
    /// Send a version with its bytes. [`Event::LooseRead`].
    ReadLoose(LooseStamp),
    /// A round of changed pointer files begins: which datasets have begun and are not sealed? [`Event::LooseBegun`].
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
    /// These versions belong to other datasets than was known. Before the [`Command::Commit`] of the dataset that they
    /// belong to from then on. -
    LooseBind {
        /// These versions, and whose they are.
        bound: Vec<(LooseStamp, LooseOwner)>,
        /// Datasets of which everything is here that they are presented with, and when they began, microseconds since
        /// 1970.
        began: Vec<(Age, u64)>,
    },
    /// What is not needed any more. -
    LooseForget {
        /// These versions.
        versions: Vec<LooseStamp>,
        /// Datasets that have left the caches: versions that only they are presented with are not kept.
        datasets: Vec<Age>,
    },
    /// What the [`Command::Present`] that follows puts in place, beside datasets: one version of each name. -
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
    /// The PFS is at fault: a file is missing there, or its size or CRC is wrong. The lead marks the dataset FAILED. A
    /// full cache or a passing I/O error does not.
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
    /// Answers [`Command::Inventory`].
    Inventory(Box<Inventory>),
    /// Answers [`Command::ReadCatalog`].
    Catalog {
        /// As asked.
        id: DatasetId,
        /// `None`: not here.
        catalog: Option<Box<Catalog>>,
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

    /// A marker was set here and its close waits. Joins a seal of that name that runs.
    Marker {
        /// The dataset's name.
        name: Vec<u8>,
        /// By what every node has seen, such as the rename of its directory: it counts as set on all.
        everywhere: bool,
    },
    /// A program is making `.invalid` in a dataset that is frozen here, and waits: a seal that is not being committed is
    /// to be dropped.
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
    /// Answers [`Command::Sealed`]: markers that were set here before have succeeded, or are sent again after this.
    Heard(DatasetId),
    /// Answers [`Command::RefuseMarker`]: markers that were set here before have failed.
    Refused {
        /// As commanded.
        name: Vec<u8>,
    },
    /// Answers [`Command::Freeze`].
    Frozen {
        /// Which seal.
        id: DatasetId,
        /// This node's part, or why it cannot be frozen (names who still writes).
        result: Result<FrozenPart, String>,
    },
    /// Answers [`Command::Carry`].
    Carried {
        /// Which seal.
        id: DatasetId,
        /// The part is what is to be encoded, or why not.
        result: Result<(), String>,
    },
    /// Answers [`Command::Drop`].
    Dropped(DatasetId),
    /// Answers [`Command::Commit`].
    Committed {
        /// Which.
        id: DatasetId,
        /// COMPLETE is on storage, or why not.
        result: Result<(), String>,
    },
    /// Answers [`Command::Evict`].
    Evicted(DatasetId),
    /// A dataset was removed by a program (rmdir of its top); sent before the [`Event::DirApplied`] of that round.
    Removed(DatasetId),

    /// The next generation of this dataset has begun here: room is not made at its cost, for what programs have written
    /// of that would go with it.
    Overwritten(DatasetId),

    /// The cache here has less room than what programs are about to write takes: a dataset may go earlier than
    /// `SCR_CACHE_SIZE` says.
    RoomShort {
        /// Bytes that programs can still write.
        free: u64,
        /// Bytes that are needed.
        wanted: u64,
        /// For a dataset that begins here. Otherwise one is being written, and may be there for the most part.
        begins: bool,
        /// Datasets whose removal gives room where it is needed; `None`: all do.
        helps: Option<Vec<DatasetId>>,
    },

    /// Answers [`Command::FlushMember`].
    FlushedMember {
        /// Which.
        id: DatasetId,
        /// All files are on the PFS, or why not.
        result: Result<(), String>,
    },
    /// Answers [`Command::Verify`].
    Verified {
        /// Which.
        id: DatasetId,
        /// Members here and what is wrong with them.
        members: Vec<(Member, Result<(), String>)>,
    },
    /// Answers [`Command::FetchMember`]: frozen as a member, ready to be encoded.
    FetchedMember {
        /// Which.
        id: DatasetId,
        /// Files in the order of the logical file.
        result: Result<Vec<FrozenFile>, FetchFailure>,
    },
    /// Answers [`Command::Present`].
    Presented {
        /// Or why not.
        result: Result<(), String>,
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
    /// A program has asked whether to write a checkpoint; nobody here has asked as often since the last seal.
    Asked {
        /// How often.
        times: u32,
    },
    /// A program's message, for the messages in the prefix.
    Posted {
        /// One or more lines.
        text: String,
    },
    /// Answers [`Command::CopyFromPrefix`].
    CopiedFromPrefix {
        /// Which request.
        request: RequestId,
        /// In place, or why not.
        result: Result<(), FetchFailure>,
    },
}

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
    /// Read-only descriptor of a member's redundancy file.
    OpenRedundancy {
        /// Dataset.
        id: DatasetId,
        /// Whose.
        member: Member,
    },
    /// New, empty redundancy file, read-write. A former one of that name is replaced when the member is finished.
    CreateRedundancy {
        /// Dataset.
        id: DatasetId,
        /// Whose.
        member: Member,
        /// `<m>_of_<n>_in_<g>.xor`.
        name: String,
    },
    /// A lost member will be rebuilt here: these are its names (from the catalog). What is here of it, and counted so
    /// far, stays until it is finished. Refused while programs are served when the dataset is not here: then it was
    /// removed. Answer [`DataReply::Done`].
    BeginMember {
        /// The catalog of the dataset, stored here first if it is not.
        catalog: Box<Catalog>,
        /// Who.
        member: Member,
    },
    /// New file of a member being rebuilt here, write-only.
    CreateFile {
        /// Dataset.
        id: DatasetId,
        /// Path in it.
        path: RelPath,
    },
    /// All bytes of the member are written: fsync, check them against `crcs` and sizes, put the files in place,
    /// write the filemap. Answer [`DataReply::Part`].
    FinishMember {
        /// Dataset.
        id: DatasetId,
        /// Who.
        member: Member,
        /// CRC32 of each file, in the order of the logical file.
        crcs: Vec<u32>,
        /// The redundancy file's name, size and CRC32; `None` where the scheme has none.
        redundancy: Option<(String, u64, u32)>,
        /// Position of this member in its set, and the set's members: for the redundancy descriptor.
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
    /// New file for the bytes of a sealed file that is elsewhere, write-only. ENOSPC if there is no room for them.
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
}

/// Answers to [`DataRequest`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum DataReply {
    /// Done.
    Done,
    /// A descriptor comes with this frame.
    Descriptor,
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

/// An operator's question.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ask {
    /// Everything `scrfs-ctl status` shows.
    Status,
    /// The newest events, at most this many.
    Events(u32),
    /// Begin or end the records of what programs do with each file.
    RecordIo(bool),
    /// Unmount and end, as SIGTERM does.
    Stop,
}

/// The daemon's answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Answer {
    /// To [`Ask::Status`].
    Status(Box<crate::status::NodeStatus>),
    /// To [`Ask::Events`], oldest first, a JSON line each.
    Events(Vec<String>),
    /// To [`Ask::RecordIo`].
    Done,
    /// To [`Ask::Stop`].
    Stopping,
    /// Not allowed or not possible.
    Failed(String),
}

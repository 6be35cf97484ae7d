//! Where the two halves of a daemon meet: the mounted tree (what programs see, [`crate::fs`]) and
//! the node (datasets, filemap, coordinator: [`crate::daemon`]). Each half knows the other by one
//! trait, so that either is tested with a stand-in.

use std::collections::HashSet;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use serde::Serialize;

use crate::caller::Caller;
use crate::control::loose::LooseEntry;
use crate::control::{DirHeld, DirOp, FrozenFile, Settings};
use crate::dataset::{CatalogIndex, Names};
use crate::errno::Errno;
use crate::ids::{DatasetId, RequestId};
use crate::path::RelPath;

/// Called once with the outcome of a request that other nodes take part in. Must not block.
pub type Completion = Box<dyn FnOnce(Result<(), Errno>) + Send>;

/// A file of the mount that is not on the tree (`scrfs/docs/semantics.md`, Eyes).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Eye {
    /// The name of what a restart would present.
    Current,
    /// The newest events, a JSON line each.
    Events,
    /// Numbers for monitoring, in the text format of Prometheus.
    Metrics,
    /// `1`: the program should write a checkpoint now.
    NeedCheckpoint,
    /// Takes messages.
    Post,
    /// `1`: the program should write a checkpoint and end.
    ShouldExit,
    /// As `scrfs-ctl status` shows it.
    Status,
    /// The same as JSON.
    StatusJson,
}

/// What programs did with one file, from its first open to its last close.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct IoRecord {
    /// Relative to the mount's root, as it was called when it was opened first.
    pub path: String,
    /// Who opened it first.
    pub uid: u32,
    /// How often it was opened.
    pub opens: u32,
    /// Bytes read; not known where the kernel serves the file.
    pub bytes_read: Option<u64>,
    /// Bytes written; where the kernel serves the file, what it has grown by. `None`: it was
    /// changed and has not grown.
    pub bytes_written: Option<u64>,
    /// How the bytes are known: `daemon`, or `size`: from size and times.
    pub measured: &'static str,
    /// From the first open to the last close.
    pub seconds_open: f64,
    /// Bytes known, read and written, by seconds.
    pub bytes_per_second: u64,
    /// Bits of what failed as far as the daemon was asked: 1 read, 2 write, 4 sync, 8 allocate.
    pub errors: u32,
}

/// How a marker was set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Marking {
    /// Its request holds a directory: it is answered when all nodes are frozen, whatever the job's
    /// settings say.
    pub holds_directory: bool,
    /// By what every node has seen: it counts as set on all.
    pub everywhere: bool,
}

/// What a name directly in the checkpoint path is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Look {
    /// A pointer, or nothing.
    Pointer(LooseEntry),
    /// A special file, or one that is too large: it stays on its node, whatever others make of the
    /// name.
    Stays,
    /// A directory, or a name of a dataset.
    Dataset,
}

/// What the mounted tree asks of the node. No call blocks; each completion runs exactly once: with
/// the outcome, with EINTR when the caller has a fatal signal pending, or when the wait's bound has
/// passed.
pub trait GlobalRequests: Send + Sync {
    /// A new id for [`GlobalRequests::directory`].
    fn new_request(&self) -> RequestId;

    /// A directory operation in the checkpoint path, asked under `request`: the same when it is
    /// asked again by a successor of the worker that asked first. On success it has been applied
    /// here too (by [`MountedTree::apply`]) before the completion runs.
    fn directory(&self, request: RequestId, op: DirOp, caller: Caller, done: Completion);

    /// The marker of dataset `name` was set by `caller`.
    fn marker(&self, name: &[u8], marking: Marking, caller: Caller, done: Completion);

    /// `.invalid` is to be made in dataset `name`, which is frozen: the request waits for the end
    /// of the seal.
    fn invalid(&self, name: &[u8]);

    /// Bring a sealed file here; on success it is at its path in the tree, and as it was sealed.
    fn fetch(&self, id: DatasetId, path: &RelPath, caller: Caller, done: Completion);

    /// A file is about to be created in an unsealed dataset: put it in the filemap's journal.
    /// `path` is relative to the checkpoint path. Called before the file exists.
    fn creating(&self, path: &RelPath, program_rank: Option<u32>) -> Result<(), Errno>;

    /// As [`GlobalRequests::creating`], of a file that is there and gets this name: it takes no
    /// more room.
    fn naming(&self, path: &RelPath, program_rank: Option<u32>) -> Result<(), Errno>;

    /// Programs are about to change sealed dataset `id` here: its next generation begins. On
    /// success its sealed files are aside, and the tree was told ([`MountedTree::generation`]).
    fn open_generation(&self, id: DatasetId, done: Completion);

    /// The bytes of a file in the next generation of `id` are about to change (`path` is relative
    /// to the dataset's directory): on success the generation before does not share them. EAGAIN
    /// where another file than `file`, a device and inode number, is at the path by now.
    fn keep_sealed(&self, id: DatasetId, path: &RelPath, file: (u64, u64), done: Completion);

    /// As [`GlobalRequests::creating`], in the next generation of `id`: a file is about to be made,
    /// or a sealed one is about to be changed. A caller that asks once for the path of a sealed
    /// file has changed that file.
    fn changing(&self, id: DatasetId, path: &RelPath, program_rank: Option<u32>) -> Result<(), Errno>;

    /// A name of sealed dataset `id` is about to be removed here; its next generation will not have
    /// it.
    fn removing(&self, id: DatasetId, path: &RelPath) -> Result<(), Errno>;

    /// That has failed, and a file is there: it counts as changed. Unlike
    /// [`GlobalRequests::changing`] it needs no room for the file.
    fn staying(&self, id: DatasetId, path: &RelPath, program_rank: Option<u32>) -> Result<(), Errno>;

    /// Coordinators are there, or awaited: who waits for a seal's end waits on.
    fn decides(&self) -> bool;

    /// These loose names directly in the checkpoint path may be something else now (pointer files):
    /// `done` learns when all nodes have what they are.
    fn loose(&self, names: Vec<Vec<u8>>, caller: Caller, done: Completion);

    /// A writable handle of this loose name is gone.
    fn loose_closed(&self, name: &[u8]);

    /// What programs may use of the room of the cache's file system.
    fn room(&self, room: rustix::fs::StatVfs) -> rustix::fs::StatVfs;

    /// An fsync of this file has failed: storage may have lost bytes of it.
    fn lost_writes(&self, file: BorrowedFd<'_>);

    /// For the events: one line of plain words.
    fn note(&self, text: String);

    /// The text of `eye` now, for `caller`.
    fn look(&self, eye: Eye, caller: Caller) -> Result<Vec<u8>, Errno>;

    /// A program's message, for the events here and the job's messages on the PFS.
    fn post(&self, caller: Caller, text: &str);

    /// What programs did with a file; only while it is wanted ([`MountedTree::record_io`]).
    fn record(&self, record: &IoRecord);

    /// What is known of `path` in dataset `name`, of the dataset itself where the path is its root:
    /// names and values.
    fn describe(&self, name: &[u8], path: &RelPath) -> Vec<(&'static str, String)>;
}

/// A writable descriptor or mapping that keeps a dataset from being quiet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Writer {
    /// The file, relative to the dataset's directory.
    pub path: RelPath,
    /// Process that opened it; 0 = unknown (a mapping outlives its descriptor).
    pub pid: u32,
    /// Its command name, for people.
    pub command: String,
    /// It can write nowhere but at the file's end, and cannot map it.
    pub appends: bool,
    /// No process has the descriptor any more: its release is on its way. Looked at where it
    /// appends.
    pub closing: bool,
}

/// The next generation of a sealed dataset on this node. Paths are relative to the dataset's
/// directory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Generation {
    /// The tree's own names are what programs see, and after them those of the dataset.
    pub open: bool,
    /// Names that programs of this node have removed.
    pub removed: Vec<RelPath>,
    /// Files that were made or changed.
    pub changed: Vec<RelPath>,
    /// Sealed names that directory operations have removed on all nodes.
    pub gone: Names,
    /// It begins now: what is gone may still be in the tree.
    pub begins: bool,
}

/// What the node asks of the mounted tree. Paths are relative to the checkpoint path unless said
/// otherwise.
pub trait MountedTree: Send + Sync {
    /// May this operation be done here? Holds its names (local creates, unlinks and renames there
    /// wait) until [`MountedTree::apply`] or [`MountedTree::release`].
    fn prepare(&self, op: &DirOp) -> Result<(), Errno>;

    /// Does it and lets the names go. What a removal leaves is out of sight when this returns, and
    /// is deleted by and by. When the top of a sealed dataset was removed, the tree forgets it; the
    /// node, which passed the operation on, removes its records and redundancy data.
    fn apply(&self, op: &DirOp) -> Result<(), Errno>;

    /// As [`MountedTree::apply`], of what a program here has asked for and waits for: from the
    /// answer the kernel knows what became of the names, as it does after any call of its own.
    fn apply_asked(&self, op: &DirOp) -> Result<(), Errno>;

    /// Names are not what the kernel was, or will be, told.
    fn names_changed(&self);

    /// A coordinator is here: from now on other nodes change names.
    fn attached(&self);

    /// Lets held names go without doing it.
    fn release(&self, op: &DirOp);

    /// Device and inode numbers of the files that programs have open, whose bytes stay when their
    /// names go.
    fn open_files(&self) -> HashSet<(u64, u64)>;

    /// Directories of the checkpoint path that are in the tree and not part of a sealed dataset,
    /// parents first.
    fn directories(&self) -> Result<Vec<DirHeld>, Errno>;

    /// Stops changes to dataset `name`: from now on opens for writing, creates, truncates, renames,
    /// links, unlinks, mkdir and rmdir in it wait until [`MountedTree::thaw`] or
    /// [`MountedTree::sealed`].
    fn freeze(&self, name: &[u8]);

    /// The seal of frozen dataset `name` waits for writers. Until [`MountedTree::end_wait`] what
    /// programs do with the files that these write goes on: the kernel has locked such a file for
    /// the operation, and its writer needs that lock to get on.
    fn begin_wait(&self, name: &[u8]);

    /// From now on all operations wait. True when some went on since the wait began.
    fn end_wait(&self, name: &[u8]) -> bool;

    /// Who still can write, by lease (F_SETLEASE) and handle table. Files of which all writers
    /// append keep nothing from being quiet.
    fn writers(&self, name: &[u8]) -> Result<Vec<Writer>, Errno>;

    /// `.invalid` is there: it is not to be sealed.
    fn is_invalid(&self, name: &[u8]) -> bool;

    /// Calls `wake` whenever a writable handle in `name` was released, until thaw or sealed.
    fn on_release(&self, name: &[u8], wake: Arc<dyn Fn() + Send + Sync>);

    /// The regular files of an unsealed dataset with their sizes now, sorted by path: the logical
    /// file's order.
    fn files(&self, name: &[u8]) -> Result<Vec<FrozenFile>, Errno>;

    /// The backing directory of a dataset, to open its files in and to take attributes from.
    fn backing_directory(&self, name: &[u8]) -> Result<OwnedFd, Errno>;

    /// The seal failed: changes go on, waiting ones first.
    fn thaw(&self, name: &[u8]);

    /// The dataset is complete (or its places changed): its names come from the catalog from now
    /// on; bytes that are in the tree are used, others are fetched on open. The first change asks
    /// for its next generation. A former dataset of that name is forgotten.
    fn sealed(&self, catalog: Arc<CatalogIndex>);

    /// As [`MountedTree::sealed`] and then [`MountedTree::generation`], with nothing of any
    /// program's in between: its next generation has begun with the seal.
    fn sealed_and_changed(&self, catalog: Arc<CatalogIndex>, generation: Generation);

    /// What programs have done to sealed dataset `id` here.
    fn generation(&self, id: DatasetId, generation: Generation);

    /// These files of dataset `name`, which were names of one file with others, are files of their
    /// own from now on.
    fn parted(&self, name: &[u8], files: &[RelPath]);

    /// As [`MountedTree::sealed`], and nobody has compared the bytes of these files of it here with
    /// their checksums yet: an open that wants them fetches the file first
    /// ([`GlobalRequests::fetch`]), until it is said to be verified.
    fn sealed_unread(&self, catalog: Arc<CatalogIndex>, files: Vec<RelPath>);

    /// The same of sealed dataset `id`, which is listed already.
    fn unread(&self, id: DatasetId, files: Vec<RelPath>);

    /// These files of sealed dataset `id` are as they were sealed, or not here any more.
    fn verified(&self, id: DatasetId, files: &[RelPath]);

    /// The dataset is no longer listed; its names are gone. Bytes are the node's business.
    fn unlisted(&self, id: DatasetId);

    /// Regular files and symbolic links directly in the checkpoint path.
    fn loose_names(&self) -> Result<Vec<Vec<u8>>, Errno>;

    /// What a name directly in the checkpoint path is. Files of more than `max` bytes are no
    /// pointers.
    fn loose_entry(&self, name: &[u8], max: u64) -> Result<Look, Errno>;

    /// Makes such a name what another node made it, in one step. False, and nothing is done, while
    /// somebody here may write it, or what is there cannot be a pointer.
    fn place_loose(&self, entry: &LooseEntry, max: u64) -> Result<bool, Errno>;

    /// A restart is about to present datasets: no program has any business left with what is there
    /// until now. A change of a sealed dataset that was asked for before is not made after this.
    fn presenting(&self);

    /// Removes everything in the checkpoint path that is not in a sealed, listed dataset (restart).
    /// `keep`: it is put out of sight instead, under this label.
    fn remove_junk(&self, keep: Option<&str>) -> Result<(), Errno>;

    /// Removes these directories of the checkpoint path, which are no sealed, listed datasets'.
    fn remove_unsealed(&self, names: &[&[u8]]) -> Result<(), Errno>;

    /// The job's settings, from a coordinator that attaches, or kept from the last one.
    fn follow(&self, settings: &Settings);

    /// The lead has decided `request`: kept for its program, also beyond this process's death.
    /// Called before anything is forgotten of it.
    fn decided(&self, request: RequestId, errno: i32);

    /// What the lead decided for a request that was asked again.
    fn decision(&self, request: RequestId) -> Option<i32>;

    /// `request` was allowed and is about to be done on this node alone.
    fn going_alone(&self, request: RequestId);

    /// Shall there be records of what programs do with each file?
    fn record_io(&self, on: bool);

    /// Passthrough or plain, and why.
    fn mode(&self) -> (String, String);
}

//! The mounted tree: what programs see, over the backing trees in the cache.
//!
//! No FUSE in here: the adapter in `crate::fuse` decodes requests and encodes answers. A
//! [`FileSystem`] is its owners, and the operations over them. The owners, in reading order: `view`
//! is what is seen, and decides without I/O; `backing` opens and changes the directories of the
//! cache, in one store or several; `inodes` are those that the kernel knows, `files` what programs
//! have open; `intent` is what a request was about to do; `waits` is who waits; `node` and `kernel`
//! are the two neighbours; `caller` is what /proc tells of programs, `eyes` files that are not
//! there.
//!
//! The operations: `names`, `create`, `rename`, `remove`, `open`, `data`, `attrs` and `listing`,
//! tried by `wait`; `loose` brings pointer files to other nodes; `flat` finds files of datasets in
//! the checkpoint path; `generation` is what changes in sealed datasets need; `directory` and
//! `marker` are those that other nodes take part in; `restore` takes over from a predecessor;
//! `tree` is what the node asks of the mount ([`MountedTree`]).
//!
//! [`MountedTree`]: crate::boundary::MountedTree

pub mod attr;
mod attrs;
mod backing;
mod bound;
pub(crate) mod caller;
mod create;
mod data;
mod directory;
mod errno;
mod eyes;
mod files;
mod flat;
mod generation;
mod inodes;
mod intent;
mod kernel;
mod listing;
mod loose;
mod marker;
mod names;
mod node;
mod open;
mod remove;
mod rename;
mod restore;
#[cfg(test)]
mod tests;
mod tree;
mod view;
mod wait;
mod waits;

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

pub use self::attr::{Attr, Changes, Kind, SetTime};
pub use self::attrs::Value;
use self::backing::{Removals, Root, Trees};
use self::caller::Processes;
pub use self::create::NewNode;
use self::eyes::Eyes;
use self::files::OpenFiles;
pub use self::files::{DirEntry, Handle, Registered, Taken};
pub use self::inodes::ROOT;
use self::inodes::Table;
use self::intent::Intents;
pub use self::kernel::DataMode;
use self::kernel::Kernel;
pub use self::names::{Entry, Suspects};
use self::node::NodeLink;
pub use self::open::{Data, Opened};
use self::view::{Namespace, View};
pub use self::wait::Done;
use self::waits::Waits;
use crate::boundary::GlobalRequests;
use crate::errno::Errno;
use crate::keep::Keep;
use crate::lane::Hands;
use crate::path::RelPath;
use crate::stores::{Place, Stores};

/// The file system. Shared by the adapter's threads and the node.
pub struct FileSystem {
    view: Arc<View>,
    trees: Trees,
    table: Table,
    files: OpenFiles,
    eyes: Eyes,
    removals: Removals,
    intents: Intents,
    waits: Arc<Waits<Self>>,
    processes: Processes,
    node: Arc<NodeLink>,
    kernel: Kernel,
}

impl std::fmt::Debug for FileSystem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FileSystem").field("root", &self.trees.primary().path).finish_non_exhaustive()
    }
}

impl FileSystem {
    /// Opens the backing tree at `tree` (a directory), with datasets in `checkpoint_path` below it,
    /// which is made when it is missing. Nothing global works before [`FileSystem::connect`].
    pub fn new(tree: &Path, checkpoint_path: RelPath) -> Result<Arc<Self>, Errno> {
        let fs = Self::with_keep(tree, checkpoint_path, Arc::new(Keep::alone()?))?;
        fs.begin()?;
        Ok(fs)
    }

    /// As [`FileSystem::new`], with state memory that outlives this process.
    pub fn with_keep(tree: &Path, checkpoint_path: RelPath, keep: Arc<Keep>) -> Result<Arc<Self>, Errno> {
        let stores = Arc::new(Stores::one(tree.parent().unwrap_or(tree)));
        Self::over(&[tree.to_owned()], checkpoint_path, keep, stores, Hands::Threads)
    }

    /// The same over all of `stores`; `hands` do what is put off.
    pub fn with_stores(
        checkpoint_path: RelPath,
        keep: Arc<Keep>,
        stores: Arc<Stores>,
        hands: Hands,
    ) -> Result<Arc<Self>, Errno> {
        let trees: Vec<PathBuf> = stores.places().iter().map(Place::tree).collect();
        Self::over(&trees, checkpoint_path, keep, stores, hands)
    }

    fn over(
        trees: &[PathBuf],
        checkpoint_path: RelPath,
        keep: Arc<Keep>,
        stores: Arc<Stores>,
        hands: Hands,
    ) -> Result<Arc<Self>, Errno> {
        let (names, node) = (Namespace::new(checkpoint_path), Arc::new(NodeLink::default()));
        let trees = Trees::over(trees, names.clone(), stores, Arc::clone(&node))?;
        let backings = trees.all().iter().map(Root::backing).collect::<Result<Vec<_>, _>>()?;
        let root = Arc::clone(&trees.primary().tree);
        let (view, waits) = (Arc::new(View::new(names)), Arc::new(Waits::new(hands)));
        let files = OpenFiles::new(Arc::clone(&keep));
        let removals = Removals::new({
            let (view, waits): (_, Arc<Waits<Self>>) = (Arc::clone(&view), Arc::clone(&waits));
            move || {
                // Who saw the bytes there and began to wait is in the queue when this lock was to
                // be had.
                drop(view.change());
                waits.wake();
            }
        });
        Ok(Arc::new(Self {
            view,
            trees,
            table: Table::over(backings, Arc::clone(&keep), Arc::clone(&node)),
            eyes: Eyes::new(Arc::clone(&node), root, &files),
            files,
            intents: Intents::new(keep),
            waits,
            processes: Processes::default(),
            node,
            kernel: Kernel::default(),
            removals,
        }))
    }

    /// Nobody else uses the tree any more: finishes what a predecessor had begun to delete.
    pub fn begin(&self) -> Result<(), Errno> {
        // A writer that meets a lease test makes the kernel send SIGIO, whose default ends the
        // process.
        signal_hook::flag::register(libc::SIGIO, Arc::new(AtomicBool::new(false)))?;
        self.trees.drop_doubles()?;
        self.removals.begin(&self.trees, self.waits.hands().clone())
    }

    /// Tells whom to ask for what other nodes take part in; once. Whoever serves keeps the node.
    pub fn connect(&self, requests: &Arc<dyn GlobalRequests>) {
        self.node.connect(requests);
    }

    /// Bounds waits for a seal or a directory round, for operations that wait here.
    pub fn set_wait_bound(&self, bound: Duration) {
        self.waits.set_bound(bound);
    }

    /// Tells the device of the mount, `MAJOR:MINOR`, by which descriptors of its files are known
    /// from others; once.
    pub fn set_device(&self, device: String) {
        self.processes.set_device(device);
    }

    /// The state memory.
    pub fn keep(&self) -> &Arc<Keep> {
        self.intents.keep()
    }

    /// Open files that the kernel serves, taken over from a predecessor; once.
    pub fn registered(&self) -> Vec<Registered> {
        self.files.registered()
    }

    /// The adapter's finding about passthrough.
    pub fn set_mode(&self, mode: DataMode) {
        self.kernel.set_mode(mode);
    }

    /// The adapter can make the kernel forget all names at once, and does so when `forget` returns:
    /// then the kernel may remember names that other nodes change.
    pub fn names_are_forgotten_by(&self, forget: impl Fn() + Send + Sync + 'static) {
        self.kernel.forgets_names_by(forget);
    }

    /// A regular file on the file system of each store, to try passthrough with.
    pub fn probe_files(&self) -> Result<Vec<OwnedFd>, Errno> {
        self.trees.probe_files()
    }
}

/// The path by which an O_PATH descriptor is opened, or changed by calls that take no such
/// descriptor.
fn proc_path(fd: impl AsFd) -> String {
    use std::os::fd::AsRawFd;
    format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd())
}

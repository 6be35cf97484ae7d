//! Serves a mount.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use caps::{CapSet, Capability};
use rustix::fs::{Mode, OFlags};
use rustix::process::{Resource, Rlimit};

use super::places::{Lock, Places, WORKER_LOCK};
use super::supervisor::{READY, say};
use super::{MountError, Options, failed};
use crate::daemon::boundary::GlobalRequests;
use crate::fs::FileSystem;
use crate::fuse;

/// Serves the connection on standard input until it is unmounted.
pub fn run(options: &Options) -> Result<(), MountError> {
    let connection = take_connection()?;
    prepare_process();
    let places = Places::of(options)?;
    let _lock = Lock::take(&places.control, WORKER_LOCK)?;
    let tree = places.tree();
    let fs = FileSystem::new(&tree, options.checkpoint_path.clone())
        .map_err(|e| failed("cannot open the tree", &tree)(std::io::Error::from_raw_os_error(e.0)))?;
    fs.connect(start_node(options, &places, &fs)?);
    let options = fuse::Options { passthrough: options.passthrough };
    fuse::serve(&fs, connection, options, || say(READY)).map_err(failed("cannot serve", &tree))
}

/// The node beside this tree.
#[expect(clippy::unnecessary_wraps, reason = "a node that cannot start is an error")]
fn start_node(
    _options: &Options,
    _places: &Places,
    fs: &Arc<FileSystem>,
) -> Result<Arc<dyn GlobalRequests>, MountError> {
    Ok(crate::fs::alone::Alone::new(fs))
}

/// The device came as standard input, the one descriptor that a child gets without further agreement.
fn take_connection() -> Result<OwnedFd, MountError> {
    let io = |doing| failed(doing, "/dev/null");
    let connection = std::io::stdin().as_fd().try_clone_to_owned().map_err(io("cannot keep the device"))?;
    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .map_err(|e| io("cannot open")(e.into()))?;
    rustix::stdio::dup2_stdin(&null).map_err(|e| io("cannot use")(e.into()))?;
    Ok(connection)
}

/// Before any thread is started, for they inherit it.
fn prepare_process() {
    // The kernel has applied the caller's.
    rustix::process::umask(Mode::empty());
    // Every inode that the kernel knows is an open descriptor.
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(error) = rustix::process::setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, "the number of open files stays limited");
    }
    // With it, programs' writes through this process would keep suid and sgid bits.
    if caps::has_cap(None, CapSet::Effective, Capability::CAP_FSETID).unwrap_or(false)
        && let Err(error) = caps::drop(None, CapSet::Effective, Capability::CAP_FSETID)
    {
        tracing::error!(%error, "CAP_FSETID cannot be dropped: writes will not clear suid bits");
    }
}

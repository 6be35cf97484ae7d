//! The adapter to FUSE: the one place that names fuser. Decodes a request, calls the file system, encodes the answer.
//!
//! An answer may be given later, from another thread: the reply travels in the completion, and no session thread
//! waits for other nodes.

mod decode;
mod ops;

use std::any::Any;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};

use fuser::{BackingId, Config, InitFlags, KernelConfig, Session, SessionACL};

use crate::fs::{DataMode, FileSystem, Handle};

/// Bytes of one read or write request; the kernel's own limit unless an administrator raised it.
const REQUEST_BYTES: u32 = 1 << 20;
/// Readahead and other background requests that the kernel may have under way.
const BACKGROUND: u16 = 128;
/// Session threads at most. Metadata needs few; an fsync or a rename on a slow cache must not stop the others.
const THREADS_MAX: usize = 8;

/// How to serve a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Use kernel passthrough where it can be had.
    pub passthrough: bool,
}

struct Adapter {
    fs: Arc<FileSystem>,
    options: Options,
}

/// Serves the connection `device` until it is unmounted. `ready` runs when requests will be answered.
///
/// Kernel and daemon greet each other first; what the kernel offers decides the mode, and one file that is registered
/// for passthrough tells whether this process may do that at all (it takes CAP_SYS_ADMIN, and a cache that is not itself
/// a stacked file system).
pub fn serve(
    fs: &Arc<FileSystem>,
    device: OwnedFd,
    options: Options,
    ready: impl FnOnce(),
) -> io::Result<()> {
    let mut config = Config::default();
    config.acl = SessionACL::All;
    let cores = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
    config.n_threads = Some((cores / 2).clamp(2, THREADS_MAX));
    // Clones of the descriptor lose their requests when the process dies; the shared one does not.
    config.clone_fd = false;
    let adapter = Adapter { fs: Arc::clone(fs), options };
    let session = Session::from_fd(adapter, device, SessionACL::All, config)?;
    if options.passthrough {
        fs.set_mode(probe(fs, session.as_fd()));
    } else {
        fs.set_mode(DataMode { passthrough: false, reason: "switched off".into() });
    }
    ready();
    session.run()
}

/// One registration stays for the connection's life: it holds an empty, unlinked file.
fn probe(fs: &FileSystem, device: BorrowedFd<'_>) -> DataMode {
    let plain = |reason: String| DataMode { passthrough: false, reason };
    let file = match fs.probe_file() {
        Ok(file) => file,
        Err(error) => return plain(format!("no file to try passthrough with: {error}")),
    };
    match BackingId::create_raw(device, &file) {
        Ok(_) => DataMode { passthrough: true, reason: "the kernel serves file data".into() },
        Err(error) => plain(match error.raw_os_error() {
            Some(libc::EPERM) => "passthrough needs CAP_SYS_ADMIN and a kernel from 6.9 on".into(),
            Some(libc::ELOOP) => "the cache is on a stacked file system".into(),
            Some(libc::ENOTTY | libc::EINVAL) => "the kernel has no passthrough".into(),
            _ => format!("passthrough failed: {error}"),
        }),
    }
}

impl Adapter {
    /// Asks for what the kernel offers of what we use. Never: writeback cache (excludes passthrough), locks (the
    /// kernel keeps them itself), DONT_MASK (the kernel applies the caller's umask), SETXATTR_EXT (fuser cannot parse
    /// it).
    fn negotiate(&self, config: &mut KernelConfig) {
        let mut wanted = vec![
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_READDIRPLUS_AUTO,
            InitFlags::FUSE_HANDLE_KILLPRIV_V2,
            InitFlags::FUSE_ATOMIC_O_TRUNC,
            InitFlags::FUSE_ASYNC_DIO,
        ];
        if self.options.passthrough {
            wanted.push(InitFlags::FUSE_PASSTHROUGH);
            // Depth 1: the cache is a plain file system, and the mount may lie under an overlay.
            if let Err(depth) = config.set_max_stack_depth(1) {
                tracing::warn!(depth, "stack depth refused");
            }
        }
        for flag in wanted {
            if let Err(missing) = config.add_capabilities(flag) {
                tracing::info!(?missing, "the kernel lacks it");
            }
        }
        let set = [
            config.set_max_write(REQUEST_BYTES).err().map(|e| ("max_write", e)),
            config.set_max_background(BACKGROUND).err().map(|e| ("max_background", e.into())),
        ];
        for (name, nearest) in set.into_iter().flatten() {
            tracing::warn!(name, nearest, "refused");
        }
    }
}

/// The backing registration of a handle's inode: one per inode while any handle is open, as the kernel demands.
fn register(
    handle: &Handle,
    open_backing: impl FnOnce(BorrowedFd<'_>) -> io::Result<BackingId>,
) -> io::Result<Arc<BackingId>> {
    let mut slot = handle.inode.passthrough.lock();
    let open = slot.as_ref().and_then(Weak::upgrade).and_then(|any| any.downcast::<BackingId>().ok());
    let id = if let Some(id) = open {
        id
    } else {
        let fd = handle.inode.fd().map_err(|e| io::Error::from_raw_os_error(e.0))?;
        let id = Arc::new(open_backing(fd.as_fd())?);
        let any: Arc<dyn Any + Send + Sync> = Arc::clone(&id) as _;
        *slot = Some(Arc::downgrade(&any));
        id
    };
    *handle.registration.lock() = Some(Arc::clone(&id) as _);
    Ok(id)
}

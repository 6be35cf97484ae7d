//! The adapter to FUSE: the one place that names fuser. Decodes a request, calls the file system,
//! encodes the answer.
//!
//! An answer may be given later, from another thread: the reply travels in the completion, and no
//! session thread waits for other nodes.

mod backing;
mod buffers;
mod decode;
mod names;
mod ops;
mod session;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::Duration;

use fuser::{BackingId, Config, InitFlags, KernelConfig, SessionACL};

pub use self::buffers::Allocator;

use self::backing::Registrations;
use crate::fs::{DataMode, FileSystem, Suspects};
use crate::keep::{Greeting, Mode};

/// Bytes of one read or write request; the kernel's own limit unless an administrator raised it.
const REQUEST_BYTES: u32 = 1 << 20;
/// Where the kernel writes by itself: a value of an extended attribute.
const SMALL_REQUEST_BYTES: usize = 64 << 10;
/// What comes before a request's data, at most: headers and names.
const HEAD_BYTES: usize = 8 << 10;
/// Readahead and other background requests that the kernel may have under way.
const BACKGROUND: u16 = 128;
/// Session threads at most. Metadata needs few; an fsync or a rename on a slow cache must not stop
/// the others.
const THREADS_MAX: usize = 8;
/// An answer that was given is with the program by then.
const UNKNOWN_INTERVAL: Duration = Duration::from_secs(10);

/// Capabilities that fuser asks for by itself.
const BASE: InitFlags =
    InitFlags::FUSE_ASYNC_READ.union(InitFlags::FUSE_BIG_WRITES).union(InitFlags::FUSE_MAX_PAGES);

/// How to serve a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Use kernel passthrough where it can be had.
    pub passthrough: bool,
}

struct Adapter {
    fs: Arc<FileSystem>,
    options: Options,
    registrations: Arc<Registrations>,
    device: Arc<OwnedFd>,
}

/// Serves the connection `device` until it is unmounted. `ready` runs when requests will be
/// answered.
///
/// Kernel and daemon greet each other first; what the kernel offers decides the mode, and one file
/// that is registered for passthrough tells whether this process may do that at all (it takes
/// CAP_SYS_ADMIN, and a cache that is not itself a stacked file system).
pub fn serve(
    fs: &Arc<FileSystem>,
    device: &Arc<OwnedFd>,
    options: Options,
    ready: impl FnOnce(),
) -> io::Result<()> {
    let mut config = Config::default();
    config.acl = SessionACL::All;
    let cores = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
    config.n_threads = Some((cores / 2).clamp(2, THREADS_MAX));
    // Clones of the descriptor lose their requests when the process dies; the shared one does not.
    config.clone_fd = false;
    let registrations = Arc::new(Registrations::new(Arc::clone(device), Arc::clone(fs.keep())));
    registrations.take_in(fs.registered());
    let adapter = Adapter { fs: Arc::clone(fs), options, registrations, device: Arc::clone(device) };
    if fs.keep().greeting().is_some() {
        let (fs, device) = (Arc::downgrade(fs), Arc::clone(device));
        std::thread::Builder::new()
            .name("scrfs-unknown".into())
            .spawn(move || let_unknown_go(&fs, &device))?;
    }
    let session = session::open(adapter, device, fs.keep(), config)?;
    let mode = mode(fs, device.as_fd(), options);
    buffers::have(if mode.passthrough { SMALL_REQUEST_BYTES } else { REQUEST_BYTES as usize } + HEAD_BYTES);
    fs.set_mode(mode);
    ready();
    session.run()
}

/// Lets the kernel remember names that other nodes change, if it can be told to forget them. It is
/// told so now where a predecessor may have died between a change of another node's and that,
/// before anybody is told that this daemon has made a change.
pub fn remember_names(fs: &FileSystem, device: &Arc<OwnedFd>) {
    let device = Arc::clone(device);
    let keep = fs.keep();
    let told = match keep.forgets() {
        Some(true) if !keep.shared() => Ok(()),
        _ => session::forget_names(&device),
    };
    keep.set_forgets(told.is_ok());
    keep.set_shared(false);
    match told {
        Ok(()) => fs.names_are_forgotten_by(move || {
            // A connection that is gone remembers nothing.
            if let Err(error) = session::forget_names(&device) {
                tracing::debug!(%error, "the kernel was not told of changed names");
            }
        }),
        Err(error) => tracing::info!(%error, "the kernel asks for every directory's name each time"),
    }
}

/// A successor's: asks the kernel by and by for inodes that it would long have forgotten. Nothing
/// tells of those.
fn let_unknown_go(fs: &Weak<FileSystem>, device: &OwnedFd) {
    let mut suspects = Suspects::default();
    while let Some(fs) = fs.upgrade() {
        if let Err(error) = fs.let_unknown_go(&mut suspects, |id| session::knows(device, id)) {
            return tracing::debug!(%error, "the kernel is not asked what it knows any more");
        }
        drop(fs);
        std::thread::sleep(UNKNOWN_INTERVAL);
    }
}

/// A mode holds for as long as the connection lives: the kernel refuses to mix them on one file.
fn mode(fs: &FileSystem, device: BorrowedFd<'_>, options: Options) -> DataMode {
    let keep = fs.keep();
    let decided = match keep.mode() {
        Some(Mode::Passthrough) => {
            return DataMode { passthrough: true, reason: "the kernel serves file data".into() };
        }
        Some(Mode::Plain) => true,
        None => false,
    };
    let found = if options.passthrough {
        probe(fs, device)
    } else {
        DataMode { passthrough: false, reason: "switched off".into() }
    };
    if decided && found.passthrough {
        return DataMode {
            passthrough: false,
            reason: "there was no passthrough when it was mounted".into(),
        };
    }
    keep.set_mode(if found.passthrough { Mode::Passthrough } else { Mode::Plain });
    found
}

/// One registration per store stays for the connection's life: it holds an empty, unlinked file.
fn probe(fs: &FileSystem, device: BorrowedFd<'_>) -> DataMode {
    let plain = |reason: String| DataMode { passthrough: false, reason };
    let files = match fs.probe_files() {
        Ok(files) => files,
        Err(error) => return plain(format!("no file to try passthrough with: {error}")),
    };
    match files.iter().try_for_each(|file| BackingId::create_raw(device, file).map(drop)) {
        Ok(()) => DataMode { passthrough: true, reason: "the kernel serves file data".into() },
        Err(error) => plain(match error.raw_os_error() {
            Some(libc::EPERM) => "passthrough needs CAP_SYS_ADMIN and a kernel from 6.9 on".into(),
            Some(libc::ELOOP) => "the cache is on a stacked file system".into(),
            Some(libc::ENOTTY | libc::EINVAL) => "the kernel has no passthrough".into(),
            _ => format!("passthrough failed: {error}"),
        }),
    }
}

impl Adapter {
    /// Asks for what the kernel offers of what we use. Never: writeback cache (excludes
    /// passthrough), locks (the kernel keeps them itself), DONT_MASK (the kernel applies the
    /// caller's umask), SETXATTR_EXT (fuser cannot parse it), ASYNC_DIO (the kernel leaves what
    /// others have read before an asynchronous direct write in its pages).
    fn negotiate(&self, config: &mut KernelConfig) {
        let mut wanted = vec![
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_READDIRPLUS_AUTO,
            InitFlags::FUSE_HANDLE_KILLPRIV_V2,
            InitFlags::FUSE_ATOMIC_O_TRUNC,
        ];
        if self.options.passthrough {
            wanted.push(InitFlags::FUSE_PASSTHROUGH);
            // Depth 1: the cache is a plain file system, and the mount may lie under an overlay.
            if let Err(depth) = config.set_max_stack_depth(1) {
                tracing::warn!(depth, "stack depth refused");
            }
        }
        let mut granted = config.capabilities() & BASE;
        for flag in wanted {
            match config.add_capabilities(flag) {
                Ok(()) => granted |= flag,
                Err(missing) => tracing::info!(?missing, "the kernel lacks it"),
            }
        }
        if self.fs.keep().greeting().is_none() {
            self.fs.keep().set_greeting(Greeting { offered: granted.bits(), minor: config.kernel_abi().1 });
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

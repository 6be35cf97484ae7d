//! What the system allows a daemon's process, and what it does to it when memory is short.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use rustix::fs::{Mode, OFlags, open};
use rustix::process::{Resource, Rlimit};

/// Descriptors that a worker has left when it begins to serve: for those who ask it, and for files
/// beyond the kernel's passthrough.
const DESCRIPTORS_MIN: usize = 32;

/// A process of ours when memory is short.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// It holds the mount: it is never chosen.
    Supervisor,
    /// Another takes over when it dies: it is chosen only if nearly all memory is its own.
    Worker,
}

/// Programs are ended before this process, as far as it may say so (CAP_SYS_RESOURCE); without that
/// right it is at least not ended before others, whatever it was started with.
pub(super) fn be_spared(part: Part) {
    let score = match part {
        Part::Supervisor => "-1000",
        Part::Worker => "-900",
    };
    let set = |score: &str| std::fs::write("/proc/self/oom_score_adj", score);
    if let Err(error) = set(score).or_else(|_| set("0")) {
        tracing::debug!(%error, "it can be this process that is ended when memory is short");
    }
}

/// As many descriptors as can be had: every inode that the kernel knows may need one. And files of
/// any size.
pub(super) fn raise() {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let all = std::fs::read_to_string("/proc/sys/fs/nr_open").ok().and_then(|text| text.trim().parse().ok());
    let to = |resource, maximum| rustix::process::setrlimit(resource, Rlimit { current: maximum, maximum });
    // Beyond the limit that it was started with only with CAP_SYS_RESOURCE.
    let beyond = all.filter(|&all| limit.maximum.is_some_and(|maximum| maximum < all));
    if beyond.is_none_or(|all| to(Resource::Nofile, Some(all)).is_err())
        && let Err(error) = to(Resource::Nofile, limit.maximum)
    {
        tracing::warn!(%error, "the number of open files stays limited");
    }
    let size = rustix::process::getrlimit(Resource::Fsize);
    if size.current.is_some() && to(Resource::Fsize, None).is_err() {
        let _ = to(Resource::Fsize, size.maximum);
        // What is left is an error of the write, and not the end.
        if let Err(error) = signal_hook::flag::register(libc::SIGXFSZ, Arc::new(AtomicBool::new(false))) {
            tracing::warn!(%error, "a file that grows too large may end the daemon");
        }
    }
}

/// There are descriptors left to serve with. A worker without them would hold the mount and answer
/// nobody.
pub(super) fn has_descriptors() -> std::io::Result<()> {
    let null = || open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    let tried: Result<Vec<OwnedFd>, _> = (0..DESCRIPTORS_MIN).map(|_| null()).collect();
    tried.map(drop).map_err(std::io::Error::from)
}

//! The keeper: a process that shares the worker's table of descriptors and sleeps.
//!
//! A descriptor table lives as long as one process that uses it. So whatever the worker opens is
//! there when it has been killed, at no cost while it lives. The worker's successor takes what the
//! records name, puts it under the same numbers into a table of its own, starts a keeper for that,
//! and the supervisor ends the old one. A successor that is killed half-way has changed nothing.
//!
//! The keeper is made before the worker has threads or much memory, by clone(2) without sharing
//! memory. It runs no code but a few system calls, and has no heap: what locks or buffers it has
//! inherited a copy of does not matter.
#![expect(
    unsafe_code,
    reason = "clone(2) with a shared descriptor table, and descriptors under chosen numbers"
)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::AtomicU64;

use rustix::mm::Advice;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags};

use super::records::KeptFd;
use super::{KEEPERS_MAX, Keep, word};

/// What `ps` shows, and the name of the process.
const NAME: &[u8] = b"scrfs-keeper\0";

/// Starts a keeper of this process's descriptors, a child of `supervisor`, which is this one's
/// parent; its id is in the state memory before this process goes on. Before there are threads.
///
/// # Errors
/// No process can be made.
pub fn start(keep: &Keep, supervisor: u32) -> io::Result<()> {
    let id = (0..KEEPERS_MAX).find(|&slot| keep.keeper_in(slot) == 0);
    let id: &AtomicU64 =
        id.map(|slot| keep.memory.word(word::KEEPERS + slot)).ok_or(io::ErrorKind::ResourceBusy)?;
    let arguments = arguments()?;
    let left_out = LeftOut::new()?;
    let flags = libc::CLONE_FILES | libc::CLONE_PARENT | libc::CLONE_PARENT_SETTID | libc::SIGCHLD;
    // SAFETY: like fork(2): no stack is given and no memory is shared, so the child has a copy of
    // this one's. The kernel writes four bytes at `id`, which is a mapped word of eight. There is
    // one thread only.
    let pid = unsafe {
        libc::syscall(
            libc::SYS_clone,
            libc::c_long::from(flags),
            0_usize,
            std::ptr::from_ref(id),
            0_usize,
            0_usize,
        )
    };
    let error = io::Error::last_os_error();
    if pid != 0 {
        drop(left_out);
    }
    match pid {
        -1 => Err(error),
        0 => sleep(supervisor, arguments),
        _ => Ok(()),
    }
}

/// Memory that a child does not get: what the records were made into. The child would hold a copy
/// of it as soon as this process changes it.
struct LeftOut {
    ranges: Vec<(usize, usize)>,
}

impl LeftOut {
    /// Less is not worth it; and the smallest mappings hold what the child's few calls need.
    const BYTES_MIN: usize = 1 << 18;

    fn new() -> io::Result<Self> {
        let maps = std::fs::read_to_string("/proc/self/maps")?;
        let ranges = maps.lines().filter_map(Self::range).collect();
        let this = Self { ranges };
        this.advise(Advice::LinuxDontFork);
        Ok(this)
    }

    /// Of a line that tells of private memory without a file; not the stack.
    fn range(line: &str) -> Option<(usize, usize)> {
        let mut fields = line.split_ascii_whitespace();
        let (from, to) = fields.next()?.split_once('-')?;
        let private = fields.next()? == "rw-p";
        let name = fields.nth(3);
        let address = |text| usize::from_str_radix(text, 16).ok();
        let range = (address(from)?, address(to)?);
        let wanted = private && name.is_none_or(|name| name == "[heap]");
        (wanted && range.1 - range.0 >= Self::BYTES_MIN).then_some(range)
    }

    fn advise(&self, advice: Advice) {
        for &(from, to) in &self.ranges {
            // SAFETY: says what a child gets of this process's memory; changes none of it.
            let done = unsafe {
                rustix::mm::madvise(std::ptr::with_exposed_provenance_mut(from), to - from, advice)
            };
            if let Err(error) = done {
                tracing::debug!(%error, "the keeper gets a copy of this process's memory");
            }
        }
    }
}

impl Drop for LeftOut {
    fn drop(&mut self) {
        self.advise(Advice::LinuxDoFork);
    }
}

/// The keeper's life. It ends with the supervisor, whose child it is, or by its hand.
fn sleep(supervisor: u32, arguments: (usize, usize)) -> ! {
    // SAFETY: system calls on this process itself, and stores into its own copy of the memory that
    // holds its arguments, which nothing else reads in this process.
    unsafe {
        libc::syscall(libc::SYS_prctl, libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        libc::syscall(libc::SYS_prctl, libc::PR_SET_NAME, NAME.as_ptr());
        // A successor is not this process's ancestor; without privileges that would matter.
        libc::syscall(libc::SYS_prctl, libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY);
        let mut name = NAME.iter();
        for at in arguments.0..arguments.1 {
            std::ptr::with_exposed_provenance_mut::<u8>(at).write_volatile(name.next().copied().unwrap_or(0));
        }
        if libc::syscall(libc::SYS_getppid) == libc::c_long::from(supervisor) {
            loop {
                libc::syscall(libc::SYS_ppoll, 0_usize, 0_usize, 0_usize, 0_usize, 0_usize);
            }
        }
        loop {
            libc::syscall(libc::SYS_exit_group, 0);
        }
    }
}

/// Where this process's arguments are: fields 48 and 49 of its stat line.
fn arguments() -> io::Result<(usize, usize)> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let fields = stat.rsplit(')').next().unwrap_or_default();
    let mut fields = fields.split_ascii_whitespace().skip(48 - 3).map(|field| field.parse().unwrap_or(0));
    let (from, to) = (fields.next().unwrap_or(0), fields.next().unwrap_or(0));
    Ok(if from < to { (from, to) } else { (0, 0) })
}

/// The keepers of predecessors.
#[derive(Debug)]
pub struct Keepers {
    processes: Vec<OwnedFd>,
}

impl Keepers {
    /// Finds them. Descriptors of this process itself keep out of the way of those that are to
    /// come.
    ///
    /// # Errors
    /// No descriptor.
    pub fn find(keep: &Keep) -> io::Result<Self> {
        let highest = keep
            .inodes()
            .filter_map(|inode| inode.backing)
            .chain(keep.open_files().iter().filter_map(|(_, file)| file.data))
            .chain(keep.open_directories().iter().filter_map(|(_, directory)| directory.listing))
            .map(|kept| kept.number)
            .max()
            .unwrap_or(0);
        let mut processes = Vec::new();
        for pid in keep.keepers().into_iter().filter_map(Pid::from_raw) {
            if let Ok(process) = rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
                let aside = rustix::io::fcntl_dupfd_cloexec(&process, highest.saturating_add(1));
                processes.push(aside.unwrap_or(process));
            }
        }
        Ok(Self { processes })
    }

    /// A kept descriptor, under its number unless that is taken; `None` when nobody has it any
    /// more.
    pub fn take(&self, kept: KeptFd) -> Option<OwnedFd> {
        self.processes.iter().find_map(|process| {
            let fd = rustix::process::pidfd_getfd(process, kept.number, PidfdGetfdFlags::empty()).ok()?;
            let stat = rustix::fs::fstat(&fd).ok()?;
            ((stat.st_dev, stat.st_ino) == kept.key).then(|| place(fd, kept.number))
        })
    }

    /// Waits until they have ended, which somebody else sees to.
    pub fn wait(&self, bound: std::time::Duration) -> bool {
        let until = std::time::Instant::now() + bound;
        self.processes.iter().all(|process| {
            let left = until.saturating_duration_since(std::time::Instant::now());
            let left = rustix::event::Timespec::try_from(left).ok();
            let fd = process.as_fd();
            let mut fds = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
            rustix::event::poll(&mut fds, left.as_ref()).is_ok_and(|ready| ready > 0)
        })
    }
}

/// Moves a descriptor to `number`, if that is free.
fn place(fd: OwnedFd, number: RawFd) -> OwnedFd {
    if fd.as_raw_fd() == number {
        return fd;
    }
    // SAFETY: asks for flags; touches no memory. There is one thread only, so a free number stays
    // free.
    let free = unsafe { libc::fcntl(number, libc::F_GETFD) } == -1;
    if !free {
        return fd;
    }
    // SAFETY: `number` is no descriptor of this process, so nobody owns it; on success this value
    // does.
    unsafe {
        match libc::dup3(fd.as_raw_fd(), number, libc::O_CLOEXEC) {
            -1 => fd,
            placed => OwnedFd::from_raw_fd(placed),
        }
    }
}

//! Who is at the other end of a socket, as the kernel tells.
#![expect(unsafe_code, reason = "a peer's groups have no safe wrapper")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::sockopt;
use rustix::process::{PidfdFlags, pidfd_open};

/// Groups that a process can have (NGROUPS_MAX).
const GROUPS_MAX: usize = 65_536;
/// Room for most users at the first try.
const GROUPS_USUAL: usize = 64;

/// Who is at the other end, when it connected.
#[derive(Debug, Clone)]
pub struct Peer {
    /// Process that connected.
    pub pid: i32,
    /// Its user.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Its supplementary groups; `None`: the kernel does not tell (before 4.13).
    pub groups: Option<Vec<u32>>,
    /// Holds the process itself, whose number may be another's some day.
    pub(crate) process: Option<Arc<OwnedFd>>,
}

impl Peer {
    /// This process and its user, for simulations.
    pub fn own() -> Self {
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        Self { pid: std::process::id().cast_signed(), uid, gid, groups: Some(vec![gid]), process: None }
    }

    /// Of a connected socket.
    pub(super) fn of(socket: impl AsFd) -> io::Result<Self> {
        let cred = sockopt::socket_peercred(&socket)?;
        let groups = match groups_of(&socket) {
            Ok(groups) => Some(groups),
            Err(error) => {
                tracing::warn!(%error, "a peer's groups are not told");
                None
            }
        };
        let (pid, uid, gid) = (cred.pid.as_raw_nonzero().get(), cred.uid.as_raw(), cred.gid.as_raw());
        let process = process_of(&socket).or_else(|_| Ok(pidfd_open(cred.pid, PidfdFlags::empty())?));
        let process =
            process.map_err(|error: io::Error| tracing::debug!(%error, "a peer's process is not held"));
        Ok(Self { pid, uid, gid, groups, process: process.ok().map(Arc::new) })
    }

    /// The umask that it has now; `None`: it has ended, or the kernel does not tell.
    pub fn umask(&self) -> Option<u32> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid)).ok()?;
        let told = status.lines().find_map(|line| line.strip_prefix("Umask:"))?;
        let umask = u32::from_str_radix(told.trim(), 8).ok().filter(|umask| *umask <= 0o777)?;
        // So the number was its.
        lives(self.held()?).ok()?.then_some(umask)
    }

    /// A pidfd of the process.
    pub fn held(&self) -> Option<BorrowedFd<'_>> {
        self.process.as_ref().map(|process| process.as_fd())
    }
}

/// Whether the process of this pidfd has not ended.
pub(crate) fn lives(process: BorrowedFd<'_>) -> io::Result<bool> {
    let mut end = [PollFd::from_borrowed_fd(process, PollFlags::IN)];
    Ok(rustix::event::poll(&mut end, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))? == 0)
}

/// A pidfd of the process that connected (from kernel 6.5 on).
fn process_of(socket: &impl AsFd) -> io::Result<OwnedFd> {
    let mut fd: libc::c_int = -1;
    let mut bytes = libc::socklen_t::try_from(size_of_val(&fd)).map_err(io::Error::other)?;
    // SAFETY: `fd` is a live integer of `bytes` bytes for this call, and any bytes are valid in it.
    let got = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERPIDFD,
            (&raw mut fd).cast(),
            &raw mut bytes,
        )
    };
    if got != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor for us, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn groups_of(socket: impl AsFd) -> io::Result<Vec<u32>> {
    let mut groups: Vec<libc::gid_t> = vec![0; GROUPS_USUAL];
    loop {
        let mut bytes = libc::socklen_t::try_from(size_of_val(&groups[..])).map_err(io::Error::other)?;
        // SAFETY: `groups` is a live buffer of `bytes` bytes for this call, and any bytes are valid
        // in it; `bytes` is where the kernel puts how many it wrote, or would have.
        let got = unsafe {
            libc::getsockopt(
                socket.as_fd().as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut bytes,
            )
        };
        let told = bytes as usize / size_of::<libc::gid_t>();
        if got == 0 {
            groups.truncate(told);
            return Ok(groups);
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::ERANGE) || told <= groups.len() || told > GROUPS_MAX {
            return Err(error);
        }
        groups.resize(told, 0);
    }
}

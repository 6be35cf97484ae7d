//! A session on a connection that may have been served before.
//!
//! fuser begins every session with the kernel's greeting, which comes once in a connection's life.
//! A successor gives it one through a socket, with what was agreed then, and puts the connection in
//! the socket's place afterwards. Then it asks the kernel to send again what the predecessor took
//! and did not answer.
#![expect(unsafe_code, reason = "dup3 onto a descriptor that fuser owns")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use fuser::{Config, Filesystem, InitFlags, Session, SessionACL};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use crate::keep::{Greeting, Keep};

/// FUSE_INIT and its size; FUSE_NOTIFY_INVAL_INODE, FUSE_NOTIFY_RESEND and FUSE_NOTIFY_INC_EPOCH.
const INIT: u32 = 26;
const INIT_BYTES: u32 = 104;
const INVAL_INODE: u32 = 2;
const RESEND: u32 = 7;
const INC_EPOCH: u32 = 8;
/// Of a notification's header.
const NOTIFY_BYTES: u32 = 16;
/// The protocol's major version.
const MAJOR: u32 = 7;
/// Nobody looks at it after the first greeting.
const READAHEAD: u32 = 1 << 17;

/// Begins or continues.
pub(super) fn open<F: Filesystem>(
    adapter: F,
    device: &OwnedFd,
    keep: &Keep,
    config: Config,
) -> io::Result<Session<F>> {
    let Some(greeting) = keep.greeting() else {
        return Session::from_fd(adapter, device.try_clone()?, SessionACL::All, config);
    };
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    rustix::io::write(&ours, &message(greeting))?;
    let session = Session::from_fd(adapter, theirs, SessionACL::All, config)?;
    // SAFETY: the session's descriptor stays open and its own; what it refers to becomes the
    // connection. No other thread has it yet.
    if unsafe { libc::dup3(device.as_raw_fd(), session.as_fd().as_raw_fd(), libc::O_CLOEXEC) } == -1 {
        return Err(io::Error::last_os_error());
    }
    resend(device)?;
    Ok(session)
}

/// The kernel's greeting, with nothing on offer that was not agreed on.
fn message(greeting: Greeting) -> Vec<u8> {
    let flags = greeting.offered | InitFlags::FUSE_INIT_EXT.bits();
    let low = |word: u64| u32::try_from(word & u64::from(u32::MAX)).unwrap_or(0);
    let mut bytes = Vec::with_capacity(INIT_BYTES as usize);
    bytes.extend(INIT_BYTES.to_ne_bytes());
    bytes.extend(INIT.to_ne_bytes());
    // Its number; and all else of the header is nothing.
    bytes.extend(2_u64.to_ne_bytes());
    bytes.resize(40, 0);
    for word in [MAJOR, greeting.minor, READAHEAD, low(flags), low(flags >> 32)] {
        bytes.extend(word.to_ne_bytes());
    }
    bytes.resize(INIT_BYTES as usize, 0);
    bytes
}

/// Since Linux 6.9.
fn resend(device: &OwnedFd) -> io::Result<()> {
    notify(device, RESEND, &[])
}

/// Makes the kernel look up every name anew that it learnt before this call, also from an answer
/// that is on its way. Since Linux 6.16.
pub(super) fn forget_names(device: &OwnedFd) -> io::Result<()> {
    notify(device, INC_EPOCH, &[])
}

/// Does the kernel know inode `id`? If so it asks for its attributes anew.
pub(super) fn knows(device: &OwnedFd, id: u64) -> io::Result<bool> {
    // An offset below 0: its pages stay.
    let body = [id.to_ne_bytes(), (-1_i64).to_ne_bytes(), 0_i64.to_ne_bytes()].concat();
    match notify(device, INVAL_INODE, &body) {
        Ok(()) => Ok(true),
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(false),
        Err(error) => Err(error),
    }
}

fn notify(device: &OwnedFd, code: u32, body: &[u8]) -> io::Result<()> {
    let length = NOTIFY_BYTES + u32::try_from(body.len()).map_err(io::Error::other)?;
    let mut bytes = Vec::with_capacity(length as usize);
    bytes.extend(length.to_ne_bytes());
    bytes.extend(code.to_ne_bytes());
    bytes.resize(NOTIFY_BYTES as usize, 0);
    bytes.extend(body);
    rustix::io::write(device, &bytes)?;
    Ok(())
}

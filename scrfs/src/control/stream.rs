//! Frames over a blocking unix stream socket, with descriptors riding along (SCM_RIGHTS).
//!
//! A connection has two halves that two threads may use at once: [`Receiver`] and [`Sender`].
//! Descriptors that arrive are close-on-exec from the start.

use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, sockopt,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::codec::{self, CodecError, Decoder};

/// Name of the daemon's socket in its control directory.
pub const SOCKET_NAME: &str = "socket";
/// Bytes asked for in one receive.
const BLOCK: usize = 64 << 10;
/// Bytes of a frame that count towards no [`Budget`].
const SMALL: usize = 1 << 20;
/// Descriptors that may wait to be taken from one connection; more than one is never sent at a
/// time.
const DESCRIPTORS_MAX: usize = 4;

/// Why a connection does not go on.
#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    /// The peer closed it between two frames.
    #[error("the connection was closed")]
    Closed,
    /// The peer closed it inside a frame.
    #[error("the connection was closed inside a frame")]
    Torn,
    /// Nothing happened for too long. The connection can still be used for receiving.
    #[error("no answer within {:.0} s", .0.as_secs_f64().max(1.0))]
    TimedOut(Duration),
    /// What arrived is not this protocol.
    #[error(transparent)]
    Codec(#[from] CodecError),
    /// A descriptor was announced and none came, or more came than can be.
    #[error("{0}")]
    Descriptor(&'static str),
    /// Other connections have begun large frames too.
    #[error("the large messages that are on their way here take more than {0} bytes")]
    TooMuch(usize),
    /// A system call failed.
    #[error("control socket: {0}")]
    Io(#[from] std::io::Error),
}

impl From<Errno> for StreamError {
    fn from(errno: Errno) -> Self {
        Self::Io(errno.into())
    }
}

/// Connects to the socket in `directory`. Its path may be longer than a socket address takes.
pub fn connect(directory: &Path, timeout: Duration) -> std::io::Result<UnixStream> {
    let (handle, address) = address_in(directory, SOCKET_NAME)?;
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(timeout))?;
    rustix::io::retry_on_intr(|| rustix::net::connect(&socket, &address))?;
    drop(handle);
    Ok(UnixStream::from(socket))
}

/// The address of `directory`'s socket `name` by way of an open directory, and that directory, to
/// be kept until used.
pub(super) fn address_in(directory: &Path, name: &str) -> std::io::Result<(OwnedFd, SocketAddrUnix)> {
    use rustix::fs::{Mode, OFlags};
    use std::os::fd::AsRawFd;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let handle = rustix::fs::open(directory, flags, Mode::empty())?;
    // A thread may have a table of descriptors of its own.
    let address = SocketAddrUnix::new(format!("/proc/thread-self/fd/{}/{name}", handle.as_raw_fd()))?;
    Ok((handle, address))
}

/// Both halves of a connection; frames received are at most `limit` bytes, and no descriptors are
/// taken ([`Receiver::with_descriptors`]).
pub fn split(stream: UnixStream, limit: usize) -> (Sender, Receiver) {
    let stream = Arc::new(stream);
    let (decoder, descriptors, taken, block) = (Decoder::new(limit), None, None, vec![0; BLOCK].into());
    let receiver = Receiver { stream: Arc::clone(&stream), decoder, descriptors, taken, block };
    (Sender { stream }, receiver)
}

/// The half that sends. Frames of several threads would mix: one owner at a time.
#[derive(Debug)]
pub struct Sender {
    stream: Arc<UnixStream>,
}

impl Sender {
    /// How long a send may make no progress before it fails; the connection is of no use after
    /// that.
    pub fn set_timeout(&self, timeout: Option<Duration>) -> std::io::Result<()> {
        self.stream.set_write_timeout(timeout)
    }

    /// Sends one message.
    pub fn send<T: Serialize + ?Sized>(&mut self, message: &T) -> Result<(), StreamError> {
        self.send_frame(&codec::encode(message)?, None)
    }

    /// Sends one message and a descriptor with it.
    pub fn send_with<T: Serialize + ?Sized>(
        &mut self,
        message: &T,
        descriptor: BorrowedFd<'_>,
    ) -> Result<(), StreamError> {
        self.send_frame(&codec::encode(message)?, Some(descriptor))
    }

    fn send_frame(&mut self, frame: &[u8], descriptor: Option<BorrowedFd<'_>>) -> Result<(), StreamError> {
        let mut sent = 0;
        while sent < frame.len() {
            // The descriptor rides on the first byte.
            let riding = descriptor.filter(|_| sent == 0);
            match send_some(self.stream.as_fd(), &frame[sent..], riding) {
                Ok(count) => sent += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    return Err(StreamError::TimedOut(self.stream.write_timeout()?.unwrap_or_default()));
                }
                Err(Errno::PIPE | Errno::CONNRESET) => return Err(StreamError::Closed),
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    /// Ends the connection in both directions; a peer or thread that receives sees the end at once.
    pub fn close(&self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    /// Something that can end this connection from another thread.
    pub fn closer(&self) -> Closer {
        Closer(Arc::clone(&self.stream))
    }
}

/// Ends a connection from any thread.
#[derive(Debug, Clone)]
pub struct Closer(Arc<UnixStream>);

impl Closer {
    /// As [`Sender::close`].
    pub fn close(&self) {
        let _ = self.0.shutdown(Shutdown::Both);
    }
}

fn send_some(socket: BorrowedFd<'_>, bytes: &[u8], riding: Option<BorrowedFd<'_>>) -> Result<usize, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let carried = riding.map(|descriptor| [descriptor]);
    if let Some(carried) = &carried
        && !ancillary.push(SendAncillaryMessage::ScmRights(carried))
    {
        return Err(Errno::NOBUFS);
    }
    rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL)
}

/// What the large frames of several connections may take together.
#[derive(Debug)]
pub struct Budget {
    most: usize,
    taken: AtomicUsize,
}

impl Budget {
    /// At most so many bytes.
    pub fn of(most: usize) -> Arc<Self> {
        Arc::new(Self { most, taken: AtomicUsize::new(0) })
    }
}

/// One connection's part of a budget.
#[derive(Debug)]
struct Taken {
    budget: Arc<Budget>,
    bytes: usize,
}

impl Taken {
    /// It takes `bytes` from now on.
    fn set(&mut self, bytes: usize) -> Result<(), StreamError> {
        if bytes > self.bytes {
            let more = bytes - self.bytes;
            let before = self.budget.taken.fetch_add(more, Ordering::SeqCst);
            if before + more > self.budget.most {
                self.budget.taken.fetch_sub(more, Ordering::SeqCst);
                return Err(StreamError::TooMuch(self.budget.most));
            }
        } else {
            self.budget.taken.fetch_sub(self.bytes - bytes, Ordering::SeqCst);
        }
        self.bytes = bytes;
        Ok(())
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.budget.taken.fetch_sub(self.bytes, Ordering::SeqCst);
    }
}

/// The half that receives.
#[derive(Debug)]
pub struct Receiver {
    stream: Arc<UnixStream>,
    decoder: Decoder,
    /// `None`: the kernel is given no room for any. One that nobody asked for may be of a file
    /// system whose server never answers, and then closing it never ends.
    descriptors: Option<VecDeque<OwnedFd>>,
    /// What it takes for large frames; `None`: its limit is all that bounds it.
    taken: Option<Taken>,
    /// What has just come; used again and again, as a fresh one would be cleared first.
    block: Box<[u8]>,
}

impl Receiver {
    /// Takes descriptors too, from a peer that is trusted with what closing them does.
    #[must_use]
    pub fn with_descriptors(self) -> Self {
        Self { descriptors: Some(VecDeque::new()), ..self }
    }

    /// What large frames take counts together with that of other connections.
    #[must_use]
    pub fn within(self, budget: &Arc<Budget>) -> Self {
        let taken = Taken { budget: Arc::clone(budget), bytes: 0 };
        Self { taken: Some(taken), ..self }
    }

    /// Takes frames of at most `limit` bytes from now on.
    pub fn set_limit(&mut self, limit: usize) {
        self.decoder.set_limit(limit);
    }

    /// The next message; waits at most `timeout` in all (`None`: until it comes or the connection
    /// ends). After [`StreamError::TimedOut`] it can be called again.
    pub fn receive<T: DeserializeOwned>(&mut self, timeout: Option<Duration>) -> Result<T, StreamError> {
        let deadline = timeout.and_then(|wait| Instant::now().checked_add(wait));
        loop {
            if let Some(body) = self.decoder.next_frame()? {
                let message = codec::decode(body);
                self.decoder.shrink();
                self.count()?;
                return Ok(message?);
            }
            let remaining = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            if remaining.is_some_and(|left| left.is_zero()) {
                return Err(StreamError::TimedOut(timeout.unwrap_or_default()));
            }
            match self.fill(remaining) {
                Ok(0) if self.decoder.is_empty() => return Err(StreamError::Closed),
                Ok(0) => return Err(StreamError::Torn),
                Ok(_) => {}
                Err(StreamError::Io(e)) if e.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(other) => return Err(other),
            }
        }
    }

    /// The descriptor that came with the last message.
    pub fn take_descriptor(&mut self) -> Result<OwnedFd, StreamError> {
        let arrived = self.descriptors.as_mut().and_then(VecDeque::pop_front);
        arrived.ok_or(StreamError::Descriptor("a descriptor was announced but none came"))
    }

    fn count(&mut self) -> Result<(), StreamError> {
        let large = self.decoder.waiting().saturating_sub(SMALL);
        self.taken.as_mut().map_or(Ok(()), |taken| taken.set(large))
    }

    fn fill(&mut self, timeout: Option<Duration>) -> Result<usize, StreamError> {
        // A timeout of zero would mean none.
        self.stream.set_read_timeout(timeout.map(|t| t.max(Duration::from_millis(1))))?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let room = if self.descriptors.is_some() { &mut space[..] } else { &mut [] };
        let mut ancillary = RecvAncillaryBuffer::new(room);
        let received = rustix::net::recvmsg(
            &self.stream,
            &mut [IoSliceMut::new(&mut self.block)],
            &mut ancillary,
            RecvFlags::CMSG_CLOEXEC,
        );
        let message = match received {
            Ok(message) => message,
            Err(Errno::INTR) => return Err(StreamError::Io(std::io::ErrorKind::WouldBlock.into())),
            Err(Errno::CONNRESET) => return Ok(0),
            Err(errno) => return Err(errno.into()),
        };
        let mut waiting = 0;
        if let Some(descriptors) = &mut self.descriptors {
            for part in ancillary.drain() {
                if let RecvAncillaryMessage::ScmRights(arrived) = part {
                    descriptors.extend(arrived);
                }
            }
            waiting = descriptors.len();
        }
        if message.flags.contains(ReturnFlags::CTRUNC) || waiting > DESCRIPTORS_MAX {
            return Err(StreamError::Descriptor("more descriptors came than can be"));
        }
        self.decoder.push(&self.block[..message.bytes]);
        self.count()?;
        Ok(message.bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;
    use crate::control::{Command, DataReply, Severity};

    #[test]
    fn a_descriptor_rides_along_and_is_close_on_exec() {
        let (a, b) = UnixStream::pair().unwrap();
        let (mut sender, _keep) = split(a, codec::FRAME_MAX);
        let (_other, receiver) = split(b, codec::FRAME_MAX);
        let mut receiver = receiver.with_descriptors();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"bytes").unwrap();
        sender.send_with(&DataReply::Descriptor, file.as_fd()).unwrap();
        assert_eq!(receiver.receive::<DataReply>(None).unwrap(), DataReply::Descriptor);
        let got = receiver.take_descriptor().unwrap();
        let flags = rustix::io::fcntl_getfd(&got).unwrap();
        assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
        let mut text = String::new();
        let mut got = std::fs::File::from(got);
        std::io::Seek::rewind(&mut got).unwrap();
        got.read_to_string(&mut text).unwrap();
        assert_eq!(text, "bytes");
        assert!(receiver.take_descriptor().is_err());
    }

    /// The other end of a pipe tells that nobody has its descriptor any more.
    #[test]
    fn one_that_nobody_asked_for_is_never_installed() {
        let (a, b) = UnixStream::pair().unwrap();
        let (mut sender, _keep) = split(a, codec::FRAME_MAX);
        let (_other, mut receiver) = split(b, codec::FRAME_MAX);
        let (reads, writes) = std::io::pipe().unwrap();
        sender.send_with(&DataReply::Descriptor, writes.as_fd()).unwrap();
        drop(writes);
        assert!(matches!(receiver.receive::<DataReply>(None), Err(StreamError::Descriptor(_))));
        assert_eq!({ reads }.read(&mut [0]).unwrap(), 0);
    }

    /// A peer that begins one on each of its connections takes no more than that.
    #[test]
    fn large_frames_of_several_connections_have_one_budget() {
        let budget = Budget::of(3 << 20);
        let connect = || {
            let (mut peer, own) = UnixStream::pair().unwrap();
            let receiver = split(own, codec::FRAME_MAX).1.within(&budget);
            let writer = std::thread::spawn(move || {
                peer.write_all(&(8_u32 << 20).to_be_bytes()).unwrap();
                let _ = peer.write_all(&vec![0; 3 << 20]);
                peer
            });
            (receiver, writer)
        };
        let wait = Some(Duration::from_secs(1));
        let (mut first, _first) = connect();
        assert!(matches!(first.receive::<Command>(wait), Err(StreamError::TimedOut(_))));
        let (mut second, _second) = connect();
        assert!(matches!(second.receive::<Command>(None), Err(StreamError::TooMuch(_))));
        drop(second);
        assert_eq!(budget.taken.load(Ordering::SeqCst), (2 << 20) + 4);
        drop(first);
        assert_eq!(budget.taken.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn waiting_is_bounded_and_can_go_on() {
        let (a, b) = UnixStream::pair().unwrap();
        let (mut sender, _keep) = split(a, codec::FRAME_MAX);
        let (_other, mut receiver) = split(b, codec::FRAME_MAX);
        let wait = Some(Duration::from_millis(5));
        assert!(matches!(receiver.receive::<Command>(wait), Err(StreamError::TimedOut(_))));
        sender.send(&Command::Serve).unwrap();
        assert_eq!(receiver.receive::<Command>(wait).unwrap(), Command::Serve);
    }

    #[test]
    fn the_end_is_seen_also_inside_a_frame() {
        let (mut a, b) = UnixStream::pair().unwrap();
        let (_keep, mut receiver) = split(b, codec::FRAME_MAX);
        a.write_all(&[0, 0, 0, 9, 1]).unwrap();
        drop(a);
        assert!(matches!(receiver.receive::<Command>(None), Err(StreamError::Torn)));
        let (a, b) = UnixStream::pair().unwrap();
        let (mut sender, mut receiver) = split(b, codec::FRAME_MAX);
        drop(a);
        assert!(matches!(receiver.receive::<Command>(None), Err(StreamError::Closed)));
        assert!(matches!(sender.send(&Command::Serve), Err(StreamError::Closed)));
    }

    #[test]
    fn large_frames_pass_both_ways() {
        let (a, b) = UnixStream::pair().unwrap();
        let (mut sender, _keep) = split(a, codec::FRAME_MAX);
        let (_other, mut receiver) = split(b, codec::FRAME_MAX);
        let text = "n".repeat(3 << 20);
        let sent = Command::Note { severity: Severity::Warning, text };
        let expected = sent.clone();
        let writer = std::thread::spawn(move || sender.send(&sent).unwrap());
        assert_eq!(receiver.receive::<Command>(None).unwrap(), expected);
        writer.join().unwrap();
    }
}

//! The door and its bell: a remote shell without keys. The server knows by the socket who asks, and
//! runs the command in the node as that user, on the caller's own standard input, output and error.
//!
//! It behaves as ssh does where launchers can tell: a cut-off node is not reached (255 after a
//! while), a node that is down refuses (255 at once), and when a node loses power in the middle,
//! nothing is heard.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};

use super::{Outcome, While};
use crate::place::{BIN, INSIDE, Place, State};
use crate::shell::{code, environment};

/// A request is not longer than this; mpirun's are a few KiB.
const REQUEST_MAX: u64 = 1 << 20;
/// How long a caller waits in vain for a node that is cut off.
const UNREACHABLE: Duration = Duration::from_secs(3);

/// Serves requests for ever; runs in the head.
pub(super) fn serve() -> Outcome<u8> {
    let path = State::inside().door();
    let listener = UnixListener::bind(&path).during("the door's socket")?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).during("the door's socket")?;
    writeln!(io::stdout(), "open").during("telling the head")?;
    for stream in listener.incoming() {
        let stream = stream.during("waiting at the door")?;
        thread::spawn(move || {
            if let Err(why) = answer(&stream) {
                eprintln!("scrfs-simnode door: {why}");
            }
        });
    }
    Ok(0)
}

/// Asks for a command on a node: `[options] HOST COMMAND…`, as ssh takes it.
pub(super) fn ask(words: &[&str]) -> Outcome<u8> {
    let mut words = words.iter().copied();
    let host = loop {
        match words.next().ok_or("no host")? {
            "-l" | "-p" | "-o" | "-i" => drop(words.next()),
            option if option.starts_with('-') => {}
            host => break host,
        }
    };
    let line = words.collect::<Vec<_>>().join(" ");
    let mut stream = UnixStream::connect(State::inside().door()).during("the door")?;
    let (input, output, error) = (io::stdin(), io::stdout(), io::stderr());
    let fds = [input.as_fd(), output.as_fd(), error.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    ancillary.push(SendAncillaryMessage::ScmRights(&fds));
    rustix::net::sendmsg(&stream, &[IoSlice::new(b"!")], &mut ancillary, SendFlags::empty())
        .during("the door")?;
    stream.write_all(format!("{host}\0{line}").as_bytes()).during("the door")?;
    stream.shutdown(std::net::Shutdown::Write).during("the door")?;
    let mut status = [255];
    stream.read_exact(&mut status).during("the door closed")?;
    Ok(status[0])
}

fn answer(mut stream: &UnixStream) -> Outcome<()> {
    let fds = receive(stream)?;
    let caller = rustix::net::sockopt::socket_peercred(stream).during("who asks")?;
    let mut request = String::new();
    stream.take(REQUEST_MAX).read_to_string(&mut request).during("the request")?;
    let (host, line) = request.split_once('\0').ok_or("half a request")?;
    let Ok([input, output, error]) = <[OwnedFd; 3]>::try_from(fds) else {
        return Err("not three descriptors".to_owned());
    };
    let Some(place) = Place::parse(host) else {
        let _ = writeln!(std::fs::File::from(error), "rsh: cannot resolve host {host}");
        return stream.write_all(&[255]).during("answering");
    };
    let state = State::inside();
    if state.cut(place).exists() {
        thread::sleep(UNREACHABLE);
        let _ = writeln!(std::fs::File::from(error), "rsh: connect to host {host}: Connection timed out");
        return stream.write_all(&[255]).during("answering");
    }
    let uid = caller.uid.as_raw();
    let mut command = Command::new(format!("{BIN}/scrfs-simnode"));
    environment(&mut command, uid);
    command.args(["enter", INSIDE, host]).arg(uid.to_string()).args(["/bin/sh", "-c", line]);
    command.current_dir("/").stdin(Stdio::from(input)).stdout(Stdio::from(output)).stderr(Stdio::from(error));
    let status = command.spawn().and_then(|mut child| child.wait()).during("running the command")?;
    if code(status) > 128 && state.cut(place).exists() {
        // The node lost its power: no word of that travels. Wait until the caller gives up.
        let mut caller = [PollFd::new(stream, PollFlags::empty())];
        return rustix::event::poll(&mut caller, None).map(drop).during("waiting for the caller to go");
    }
    stream.write_all(&[u8::try_from(code(status)).unwrap_or(255)]).during("answering")
}

/// The first byte and the descriptors that come with it.
fn receive(stream: &UnixStream) -> Outcome<Vec<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let flags = RecvFlags::CMSG_CLOEXEC;
    rustix::net::recvmsg(stream, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, flags)
        .during("a request")?;
    let mut fds = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    Ok(fds)
}

//! The log as syslog's datagrams; the journal listens at the same socket. A message that is not
//! taken at once is lost, and counted: the next one that is taken says how many were. Nothing
//! waits, and nothing fails.

use std::io::{self, Write};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tracing::{Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;

/// Where it listens.
pub const SOCKET: &str = "/dev/log";
/// `LOG_DAEMON`.
const FACILITY: u8 = 3;
/// Bytes of one message; daemons take at least so many.
const MESSAGE_MAX: usize = 8000;

/// A log's destination.
#[derive(Debug, Clone)]
pub struct Syslog(Arc<Sender>);

#[derive(Debug)]
struct Sender {
    name: &'static str,
    socket: UnixDatagram,
    to: PathBuf,
    lost: AtomicU64,
}

impl Syslog {
    /// For program `name`, to the socket at `to`, which need not be there yet.
    ///
    /// # Errors
    /// No socket of our own.
    pub fn new(name: &'static str, to: &Path) -> io::Result<Self> {
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        Ok(Self(Arc::new(Sender { name, socket, to: to.to_owned(), lost: AtomicU64::new(0) })))
    }
}

impl Sender {
    fn send(&self, severity: u8, message: &[u8]) {
        let lost = self.lost.load(Ordering::Relaxed);
        let note = if lost > 0 { format!("(log lines lost here: {lost}) ") } else { String::new() };
        let (name, pid, priority) = (self.name, std::process::id(), FACILITY * 8 + severity);
        let message = message.trim_ascii_end();
        let message = &message[..message.len().min(MESSAGE_MAX)];
        let packet = [format!("<{priority}>{name}[{pid}]: {note}").as_bytes(), message].concat();
        // By name each time: whoever listens may have been started anew.
        match self.socket.send_to(&packet, &self.to) {
            Ok(_) => drop(self.lost.fetch_sub(lost, Ordering::Relaxed)),
            Err(_) => drop(self.lost.fetch_add(1, Ordering::Relaxed)),
        }
    }
}

/// Takes one message.
#[derive(Debug)]
pub struct Message<'a> {
    sender: &'a Sender,
    severity: u8,
}

impl Write for Message<'_> {
    fn write(&mut self, message: &[u8]) -> io::Result<usize> {
        self.sender.send(self.severity, message);
        Ok(message.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Syslog {
    type Writer = Message<'a>;

    fn make_writer(&'a self) -> Message<'a> {
        Message { sender: &self.0, severity: severity(Level::INFO) }
    }

    fn make_writer_for(&'a self, about: &Metadata<'_>) -> Message<'a> {
        Message { sender: &self.0, severity: severity(*about.level()) }
    }
}

fn severity(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        _ => 7,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(listener: &UnixDatagram) -> String {
        let mut bytes = vec![0; 2 * MESSAGE_MAX];
        let length = listener.recv(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    }

    #[test]
    fn messages_have_their_priority_and_those_that_are_lost_are_counted() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let log = Syslog::new("scrfs", &path).unwrap();
        for _ in 0..3 {
            assert_eq!(log.make_writer().write(b"nobody listens\n").unwrap(), 15);
        }
        let listener = UnixDatagram::bind(&path).unwrap();
        let pid = std::process::id();
        log.make_writer().write_all(b"first\n").unwrap();
        assert_eq!(received(&listener), format!("<30>scrfs[{pid}]: (log lines lost here: 3) first"));

        let subscriber = tracing_subscriber::fmt()
            .without_time()
            .with_level(false)
            .with_target(false)
            .with_ansi(false)
            .with_writer(log.clone())
            .finish();
        tracing::subscriber::with_default(subscriber, || tracing::error!(code = 7, "it broke"));
        assert_eq!(received(&listener), format!("<27>scrfs[{pid}]: it broke code=7"));

        log.make_writer().write_all(&vec![b'x'; 1 << 20]).unwrap();
        assert!(received(&listener).len() < MESSAGE_MAX + 100);
    }

    #[test]
    fn one_that_listens_no_more_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let _full = UnixDatagram::bind(&path).unwrap();
        let log = Syslog::new("scrfs", &path).unwrap();
        for _ in 0..10_000 {
            log.make_writer().write_all(b"nobody reads\n").unwrap();
        }
        assert!(log.0.lost.load(Ordering::Relaxed) > 0);
    }
}

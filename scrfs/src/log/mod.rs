//! The log of a process, on its standard error. A log that cannot be written is no reason for
//! anything to fail: what is lost is counted, and the log says how much it was once it can be
//! written again.
//!
//! A daemon's standard error is a file, which is bounded: [`keep_bounded`]. So is that of a
//! coordinator of `scrfs try`.

mod outlet;
mod rotation;

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;

use crate::lock::{Mutex, Rank};
use tracing_subscriber::fmt::format::{DefaultFields, Format};
use tracing_subscriber::fmt::{MakeWriter, SubscriberBuilder};

use self::outlet::Outlet;
use self::rotation::Rotation;

/// Standard error is the process's, so this is too.
static BOUNDED: Mutex<Option<Rotation>> = Mutex::new(Rank::LogFile, None);

/// What a process's log is built on; each line begins with `prefix`.
pub fn builder(
    prefix: String,
) -> SubscriberBuilder<DefaultFields, Format, tracing_subscriber::filter::LevelFilter, Log> {
    let log = Log { prefix: prefix.into(), outlet: Arc::new(Mutex::new(Rank::Log, Outlet::default())) };
    // It reports its own errors where it could not write before, and panics when it cannot.
    tracing_subscriber::fmt().log_internal_errors(false).with_writer(log)
}

/// From now on the file at `path` is kept small, if standard error is that file.
pub fn keep_bounded(path: &Path) {
    let rotation = Rotation::of(path, io::stderr().as_fd());
    *BOUNDED.lock() = rotation;
}

/// Standard error, which takes what it can.
#[derive(Debug, Clone)]
pub struct Log {
    prefix: Arc<str>,
    outlet: Arc<Mutex<Outlet>>,
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = &'a Self;

    fn make_writer(&'a self) -> Self::Writer {
        self
    }
}

impl Write for &Log {
    /// A whole message.
    fn write(&mut self, message: &[u8]) -> io::Result<usize> {
        let mut outlet = self.outlet.lock();
        if let Some(rotation) = &*BOUNDED.lock()
            && let Some(fresh) = rotation.next(io::stderr().as_fd())
        {
            // As it was, when that fails.
            let _ = rustix::stdio::dup2_stderr(&fresh);
        }
        let line = [self.prefix.as_bytes(), message].concat();
        outlet.put(&line, &mut io::stderr().lock());
        Ok(message.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_always_taken() {
        let log =
            Log { prefix: "[0 node0] ".into(), outlet: Arc::new(Mutex::new(Rank::Log, Outlet::default())) };
        assert_eq!(log.make_writer().write(b"a line\n").unwrap(), 7);
    }
}

//! The program's standard input, the same at each of its runs.
//!
//! A file is read from where it stood when this program began. A pipe is kept as it is read, in a
//! file without a name: each run is given what came so far, then what comes. Of a pipe [`KEPT_MAX`]
//! bytes are kept; one that is longer serves one run. A terminal is not given on: who reads it in
//! the background is stopped.

use std::fs::File;
use std::io::{self, IsTerminal, PipeWriter, Read, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::process::Stdio;
use std::sync::Arc;

use rustix::fs::FileType;
use scrfs::lock::{Condvar, Mutex};

use crate::launcher::Refusal;

/// Bytes of a pipe that are kept.
const KEPT_MAX: u64 = 256 << 20;
const READ_BYTES: usize = 64 << 10;
/// What to do where it cannot be given.
const AS_A_FILE: &str = "give it as a file: scrfs-run ... -- PROGRAM < FILE";

/// Where each run's input comes from.
#[derive(Debug)]
pub(crate) enum Input {
    /// Nowhere: a terminal, or closed.
    None,
    /// As it is: a device.
    Same,
    /// A file, from this offset on.
    File(u64),
    Pipe(Arc<Spool>),
}

impl Input {
    /// Of this process.
    pub(crate) fn of_process() -> Self {
        let stdin = io::stdin();
        let Ok(stat) = rustix::fs::fstat(stdin.as_fd()) else { return Self::None };
        match FileType::from_raw_mode(stat.st_mode) {
            _ if stdin.is_terminal() => Self::None,
            FileType::RegularFile => {
                Self::File(rustix::fs::seek(stdin.as_fd(), rustix::fs::SeekFrom::Current(0)).unwrap_or(0))
            }
            FileType::Fifo | FileType::Socket => Self::pipe(),
            _ => Self::Same,
        }
    }

    fn pipe() -> Self {
        let source = io::stdin().as_fd().try_clone_to_owned().map(File::from);
        match (source, tempfile::tempfile()) {
            (Ok(source), Ok(kept)) => Self::Pipe(Spool::of(source, kept, KEPT_MAX)),
            // For one run it is as good.
            _ => Self::Same,
        }
    }

    /// For one run.
    pub(crate) fn give(&self) -> Result<Stdio, Refusal> {
        let failed =
            |e: io::Error| Refusal { what: format!("the program's standard input: {e}"), hint: AS_A_FILE };
        match self {
            Self::None => Ok(Stdio::null()),
            Self::Same => Ok(Stdio::inherit()),
            Self::File(from) => reopen(*from).map(Stdio::from).map_err(failed),
            Self::Pipe(spool) => {
                if spool.is_used_up() {
                    let what = format!(
                        "the program's standard input was longer than {} MiB, and cannot be given to it again",
                        KEPT_MAX >> 20
                    );
                    return Err(Refusal { what, hint: AS_A_FILE });
                }
                let (reader, writer) = io::pipe().map_err(failed)?;
                let spool = Arc::clone(spool);
                crate::drive::spawn("input", move || spool.feed(writer))
                    .map_err(|failure| Refusal { what: failure.message, hint: AS_A_FILE })?;
                Ok(reader.into())
            }
        }
    }
}

/// An offset of its own, where the file may be opened; else the one that this process has.
fn reopen(from: u64) -> io::Result<File> {
    let own = File::open("/proc/self/fd/0");
    let mut file = own.or_else(|_| io::stdin().as_fd().try_clone_to_owned().map(File::from))?;
    file.seek(SeekFrom::Start(from))?;
    Ok(file)
}

/// What came through a pipe.
#[derive(Debug)]
pub(crate) struct Spool {
    kept: File,
    progress: Mutex<Progress>,
    moved: Condvar,
    source: File,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Progress {
    bytes: u64,
    /// Nothing more is kept: the pipe has come to its end, or to the limit.
    stopped: bool,
    /// At the limit: there may be more in the pipe.
    full: bool,
    /// A run has read beyond what is kept.
    beyond: bool,
}

impl Spool {
    fn of(source: File, kept: File, most: u64) -> Arc<Self> {
        let spool = Arc::new(Self { kept, progress: Mutex::default(), moved: Condvar::default(), source });
        let reading = Arc::clone(&spool);
        let started = std::thread::Builder::new().name("spool".to_owned()).spawn(move || reading.keep(most));
        if started.is_err() {
            spool.note(|progress| (progress.stopped, progress.full) = (true, true));
        }
        spool
    }

    fn note(&self, change: impl FnOnce(&mut Progress)) {
        change(&mut self.progress.lock());
        self.moved.notify_all();
    }

    fn is_used_up(&self) -> bool {
        self.progress.lock().beyond
    }

    /// Reads the pipe until its end, the limit, or a full disk.
    fn keep(&self, most: u64) {
        let mut buffer = vec![0; READ_BYTES];
        let mut at = 0;
        while at < most {
            let room = usize::try_from(most - at).unwrap_or(usize::MAX).min(READ_BYTES);
            match (&self.source).read(&mut buffer[..room]) {
                Ok(0) => return self.note(|progress| progress.stopped = true),
                Ok(read) => {
                    if self.kept.write_all_at(&buffer[..read], at).is_err() {
                        // What was read and is not kept is lost to every run: none may take the
                        // rest for all.
                        return self.note(|progress| (progress.stopped, progress.beyond) = (true, true));
                    }
                    at += read as u64;
                    self.note(|progress| progress.bytes = at);
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return self.note(|progress| progress.stopped = true),
            }
        }
        self.note(|progress| (progress.stopped, progress.full) = (true, true));
    }

    /// Gives all of it to one run, which may end before.
    fn feed(&self, mut to: PipeWriter) {
        let mut buffer = vec![0; READ_BYTES];
        let mut at = 0;
        loop {
            let progress = self.await_more(at);
            if at == progress.bytes {
                if progress.full {
                    self.note(|progress| progress.beyond = true);
                    drop(io::copy(&mut &self.source, &mut to));
                }
                return;
            }
            let here = usize::try_from(progress.bytes - at).unwrap_or(usize::MAX).min(READ_BYTES);
            if self.kept.read_exact_at(&mut buffer[..here], at).is_err()
                || to.write_all(&buffer[..here]).is_err()
            {
                return;
            }
            at += here as u64;
        }
    }

    /// Until there is more than `at`, or nothing more comes.
    fn await_more(&self, at: u64) -> Progress {
        let mut progress = self.progress.lock();
        while progress.bytes == at && !progress.stopped {
            self.moved.wait(&mut progress);
        }
        *progress
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use super::*;

    fn spool(most: u64) -> (Arc<Spool>, PipeWriter) {
        let (reader, writer) = io::pipe().unwrap();
        (Spool::of(File::from(OwnedFd::from(reader)), tempfile::tempfile().unwrap(), most), writer)
    }

    fn run(spool: &Arc<Spool>) -> (io::PipeReader, std::thread::JoinHandle<()>) {
        let (reader, writer) = io::pipe().unwrap();
        let spool = Arc::clone(spool);
        (reader, std::thread::spawn(move || spool.feed(writer)))
    }

    #[test]
    fn a_pipe_is_the_same_again_and_comes_while_it_comes() {
        let (spool, mut writer) = spool(1 << 20);
        let (mut first, feeding) = run(&spool);
        writer.write_all(b"one ").unwrap();
        let mut got = [0; 4];
        first.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"one ");
        // It dies; the pipe goes on.
        drop(first);
        writer.write_all(b"two").unwrap();
        drop(writer);
        feeding.join().unwrap();
        for _ in 0..2 {
            let (mut next, feeding) = run(&spool);
            let mut text = String::new();
            next.read_to_string(&mut text).unwrap();
            feeding.join().unwrap();
            assert_eq!(text, "one two");
        }
        assert!(!spool.is_used_up());
    }

    #[test]
    fn what_is_not_kept_serves_one_run_and_no_other() {
        let (spool, mut writer) = spool(4);
        let (mut first, feeding) = run(&spool);
        writer.write_all(b"0123456789").unwrap();
        drop(writer);
        let mut text = String::new();
        first.read_to_string(&mut text).unwrap();
        feeding.join().unwrap();
        assert_eq!(text, "0123456789");
        assert!(spool.is_used_up());
    }
}

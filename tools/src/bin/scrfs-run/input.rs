//! The program's standard input, the same at each of its runs.
//!
//! A file is read from where it stood when this program began. A pipe is kept as it is read, in a
//! file without a name: each run is given what came so far, then what comes. Of a pipe [`KEPT_MAX`]
//! bytes are kept, and no more than half of what is free there; one that is longer serves one run.
//! A terminal is not given on: who reads it in the background is stopped.

use std::fs::File;
use std::io::{self, IsTerminal, PipeWriter, Read, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::process::Stdio;
use std::sync::{Arc, OnceLock};

use rustix::fs::FileType;
use scrfs::lock::{Condvar, Mutex};

use crate::launcher::Refusal;

/// Bytes of a pipe that are kept.
const KEPT_MAX: u64 = 256 << 20;
const READ_BYTES: usize = 64 << 10;
/// What to do where it cannot be given.
const AS_A_FILE: &str = "give it as a file: scrfs-run ... -- PROGRAM < FILE";
const OR_ROOM: &str =
    "give it as a file: scrfs-run ... -- PROGRAM < FILE; or set TMPDIR to a directory with more room";

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
        match io::stdin().as_fd().try_clone_to_owned() {
            Ok(source) => Self::Pipe(Spool::of(source.into(), tempfile::tempfile(), KEPT_MAX)),
            Err(_) => Self::Same,
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
                if let Some(refusal) = spool.refusal() {
                    return Err(refusal);
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
    kept: Option<File>,
    progress: Mutex<Progress>,
    moved: Condvar,
    source: File,
    rest: OnceLock<Rest>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Progress {
    bytes: u64,
    /// Nothing more is kept: the pipe has come to its end, or [`Spool::rest`] says why.
    stopped: bool,
    /// A run has read beyond what is kept.
    beyond: bool,
}

/// What is not kept: there may be more in the pipe.
#[derive(Debug)]
struct Rest {
    /// What was read of it.
    block: Vec<u8>,
    why: Why,
}

#[derive(Debug)]
enum Why {
    TooLong(u64),
    /// For this reason it cannot be kept.
    NoRoom(String),
}

impl Spool {
    fn of(source: File, kept: io::Result<File>, most: u64) -> Arc<Self> {
        let (kept, failed) = match kept {
            Ok(kept) => (Some(kept), None),
            Err(error) => (None, Some(error)),
        };
        let (progress, moved, rest) = (Mutex::default(), Condvar::default(), OnceLock::new());
        let spool = Arc::new(Self { kept, progress, moved, source, rest });
        let reading = Arc::clone(&spool);
        let started = match failed {
            None => std::thread::Builder::new()
                .name("spool".to_owned())
                .spawn(move || reading.keep(most))
                .map(drop),
            Some(error) => Err(error),
        };
        if let Err(error) = started {
            spool.leave_rest(Vec::new(), Why::NoRoom(error.to_string()));
        }
        spool
    }

    fn note(&self, change: impl FnOnce(&mut Progress)) {
        change(&mut self.progress.lock());
        self.moved.notify_all();
    }

    fn leave_rest(&self, block: Vec<u8>, why: Why) {
        let _ = self.rest.set(Rest { block, why });
        self.note(|progress| progress.stopped = true);
    }

    /// Why no run can be given all of it any more.
    fn refusal(&self) -> Option<Refusal> {
        if !self.progress.lock().beyond {
            return None;
        }
        let (what, hint) = match &self.rest.get()?.why {
            Why::TooLong(most) => (format!("was longer than {} MiB", most >> 20), AS_A_FILE),
            Why::NoRoom(why) => {
                let place = std::env::temp_dir();
                (format!("could not all be kept in {} ({why})", place.display()), OR_ROOM)
            }
        };
        let what = format!("the program's standard input {what}, and cannot be given to it again");
        Some(Refusal { what, hint })
    }

    /// Reads the pipe until its end or the limit, or until there is no room for more.
    fn keep(&self, most: u64) {
        let mut buffer = vec![0; READ_BYTES];
        let mut at = 0;
        while at < most {
            let room = usize::try_from(most - at).unwrap_or(usize::MAX).min(READ_BYTES);
            match (&self.source).read(&mut buffer[..room]) {
                Ok(0) => return self.note(|progress| progress.stopped = true),
                Ok(read) => {
                    let block = &buffer[..read];
                    if let Err(why) = self.add(block, at) {
                        return self.leave_rest(block.to_vec(), Why::NoRoom(why));
                    }
                    at += read as u64;
                    self.note(|progress| progress.bytes = at);
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return self.note(|progress| progress.stopped = true),
            }
        }
        self.leave_rest(Vec::new(), Why::TooLong(most));
    }

    /// Others need room there, too: as much is left free as is taken.
    fn add(&self, block: &[u8], at: u64) -> Result<(), String> {
        let Some(kept) = &self.kept else { return Err("there is no file".to_owned()) };
        // A file system without blocks has no bound.
        let free = rustix::fs::fstatvfs(kept).ok().filter(|fs| fs.f_blocks > 0);
        let free = free.map_or(u64::MAX, |fs| fs.f_bavail.saturating_mul(fs.f_frsize));
        if free < at + block.len() as u64 {
            return Err(format!("{} are free there", scrfs_tools::output::bytes_for_people(free)));
        }
        kept.write_all_at(block, at).map_err(|e| e.to_string())
    }

    /// Gives all of it to one run, which may end before.
    fn feed(&self, mut to: PipeWriter) {
        let mut buffer = vec![0; READ_BYTES];
        let mut at = 0;
        loop {
            let progress = self.await_more(at);
            if at == progress.bytes {
                if let Some(rest) = self.rest.get() {
                    self.note(|progress| progress.beyond = true);
                    if to.write_all(&rest.block).is_ok() {
                        drop(io::copy(&mut &self.source, &mut to));
                    }
                }
                return;
            }
            let here = usize::try_from(progress.bytes - at).unwrap_or(usize::MAX).min(READ_BYTES);
            let Some(kept) = &self.kept else { return };
            if kept.read_exact_at(&mut buffer[..here], at).is_err() || to.write_all(&buffer[..here]).is_err()
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

    fn spool(kept: io::Result<File>, most: u64) -> (Arc<Spool>, PipeWriter) {
        let (reader, writer) = io::pipe().unwrap();
        (Spool::of(File::from(OwnedFd::from(reader)), kept, most), writer)
    }

    fn run(spool: &Arc<Spool>) -> (io::PipeReader, std::thread::JoinHandle<()>) {
        let (reader, writer) = io::pipe().unwrap();
        let spool = Arc::clone(spool);
        (reader, std::thread::spawn(move || spool.feed(writer)))
    }

    #[test]
    fn a_pipe_is_the_same_again_and_comes_while_it_comes() {
        let (spool, mut writer) = spool(tempfile::tempfile(), 1 << 20);
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
        assert!(spool.refusal().is_none());
    }

    /// What the first run is given, and why the second is given nothing.
    fn given_once(kept: io::Result<File>, most: u64, text: &[u8]) -> String {
        let (spool, mut writer) = spool(kept, most);
        assert!(spool.refusal().is_none());
        let (mut first, feeding) = run(&spool);
        let writing = {
            let text = text.to_vec();
            std::thread::spawn(move || writer.write_all(&text).unwrap())
        };
        let mut got = Vec::new();
        first.read_to_end(&mut got).unwrap();
        writing.join().unwrap();
        feeding.join().unwrap();
        assert!(got == text, "{} of {} bytes", got.len(), text.len());
        spool.refusal().unwrap().what
    }

    #[test]
    fn what_is_not_kept_serves_one_run_and_no_other() {
        assert!(given_once(tempfile::tempfile(), 4, b"0123456789").contains("longer than 0 MiB"));
    }

    #[test]
    fn what_there_is_no_room_for_serves_one_run_too() {
        // Nothing can be written; nothing can be made; there is no room from the third block on.
        let full = File::options().write(true).open("/dev/full");
        assert!(given_once(full, 1 << 20, b"0123456789").contains("No space left"));
        let none = Err(io::Error::from(io::ErrorKind::NotFound));
        assert!(given_once(none, 1 << 20, b"0123456789").contains("entity not found"));
        let text: Vec<u8> = (0..300_000_u32).map(|at| at.to_le_bytes()[0]).collect();
        let small =
            File::from(rustix::fs::memfd_create("small", rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap());
        small.set_len(100_000).unwrap();
        rustix::fs::fcntl_add_seals(&small, rustix::fs::SealFlags::GROW).unwrap();
        assert!(given_once(Ok(small), 1 << 20, &text).contains("not permitted"));
    }
}

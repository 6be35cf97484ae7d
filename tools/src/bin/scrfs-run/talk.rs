//! What comes through a launcher's standard error: the program's own words, which go on as they
//! are, and the launcher's, which are understood.
//!
//! What a launcher says while it dies of a lost node (stack traces, hints about firewalls) goes
//! into a log; what it has to say otherwise goes on too. Nothing is held back for longer than
//! [`PATIENCE`].

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use scrfs::lock::Mutex;

use crate::launcher::{Launcher, Refusal, Said};

/// A line or block that is not complete in this time goes on as it is.
const PATIENCE: Duration = Duration::from_millis(300);
/// A block or line that is longer is no launcher's.
const HELD_MAX: usize = 64 << 10;
const READ_BYTES: usize = 4096;
/// A log that is longer is begun anew; the former one is kept.
const LOG_BYTES_MAX: u64 = 1 << 20;
/// What to do about a launcher that waits.
const WAITS: &str = "other steps of the job have what it waits for; `squeue --steps` lists them";
/// Lines for people that wait for who reads them.
const LINES_WAITING_MAX: usize = 1000;
/// And how long at the end.
const LAST_LINES: Duration = Duration::from_secs(2);
/// Pieces that wait for a slow file system; more are dropped.
const LOG_WAITING_MAX: usize = 64;

/// Reads to the end. `pass` gets what is not the launcher's, `said` what is.
pub(crate) fn listen(
    mut errors: impl Read + AsFd,
    launcher: Arc<dyn Launcher>,
    pid: u32,
    mut pass: impl FnMut(&[u8]),
    mut said: impl FnMut(Said, &[u8]),
) {
    let mut sieve = Sieve::new(launcher, pid);
    let mut to = |piece: Piece<'_>| match piece {
        Piece::Pass(bytes) => pass(bytes),
        Piece::Said(what, bytes) => said(what, bytes),
    };
    let mut buffer = vec![0; READ_BYTES];
    loop {
        if sieve.is_holding() && !has_input(&errors, PATIENCE) {
            sieve.release(&mut to);
        }
        match errors.read(&mut buffer) {
            Ok(0) => break,
            Ok(read) => sieve.feed(&buffer[..read], &mut to),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    sieve.end(&mut to);
}

fn has_input(source: &impl AsFd, limit: Duration) -> bool {
    let limit = Timespec::try_from(limit).unwrap_or_default();
    poll(&mut [PollFd::new(source, PollFlags::IN)], Some(&limit)).is_ok_and(|ready| ready > 0)
}

/// A part of what came.
#[derive(Debug, PartialEq, Eq)]
enum Piece<'a> {
    Pass(&'a [u8]),
    Said(Said, &'a [u8]),
}

/// Cuts what comes into lines and blocks, and asks the launcher's driver for their meaning.
#[derive(Debug)]
struct Sieve {
    launcher: Arc<dyn Launcher>,
    pid: u32,
    /// What is not judged yet: the beginning of a line, or of a block.
    held: Vec<u8>,
    /// Where in `held` its last line begins.
    line: usize,
    in_block: bool,
    /// The beginning of this line went on already.
    torn: bool,
}

impl Sieve {
    fn new(launcher: Arc<dyn Launcher>, pid: u32) -> Self {
        Self { launcher, pid, held: Vec::new(), line: 0, in_block: false, torn: false }
    }

    fn is_holding(&self) -> bool {
        !self.held.is_empty()
    }

    fn feed(&mut self, bytes: &[u8], to: &mut impl FnMut(Piece<'_>)) {
        for part in bytes.split_inclusive(|&byte| byte == b'\n') {
            let ends = part.ends_with(b"\n");
            if self.torn {
                to(Piece::Pass(part));
                self.torn = !ends;
                continue;
            }
            self.held.extend_from_slice(part);
            if ends {
                self.line_ends(to);
            }
            if self.held.len() > HELD_MAX {
                self.release(to);
            }
        }
    }

    fn line_ends(&mut self, to: &mut impl FnMut(Piece<'_>)) {
        let line = &self.held[self.line..];
        let is_fence = self.launcher.fence().is_some_and(|fence| line.starts_with(fence.as_bytes()));
        match (self.in_block, is_fence) {
            (false, true) => {
                self.in_block = true;
                self.line = self.held.len();
            }
            (true, false) => self.line = self.held.len(),
            (false, false) | (true, true) => self.judge(to),
        }
    }

    fn judge(&mut self, to: &mut impl FnMut(Piece<'_>)) {
        let text = String::from_utf8_lossy(&self.held);
        let piece = match self.launcher.understand(&text, self.pid) {
            Some(said) => Piece::Said(said, &self.held),
            None => Piece::Pass(&self.held),
        };
        to(piece);
        self.clear();
    }

    fn clear(&mut self) {
        self.held.clear();
        self.line = 0;
        self.in_block = false;
    }

    /// Nobody waits any longer: what is held goes on.
    fn release(&mut self, to: &mut impl FnMut(Piece<'_>)) {
        self.torn = !self.held.ends_with(b"\n");
        to(Piece::Pass(&self.held));
        self.clear();
    }

    /// What is held is all that there is.
    fn end(&mut self, to: &mut impl FnMut(Piece<'_>)) {
        if self.is_holding() {
            self.judge(to);
        }
    }
}

/// What a launcher says about why it could not launch, or what it waits for.
pub(crate) fn refusal_in(launcher: &Arc<dyn Launcher>, output: &str) -> Option<Refusal> {
    let mut sieve = Sieve::new(Arc::clone(launcher), 0);
    let mut found = None;
    let mut to = |piece: Piece<'_>| match piece {
        Piece::Said(Said::Refused(refusal), _) => drop(found.get_or_insert(refusal)),
        Piece::Said(Said::Waits, text) => {
            let what = String::from_utf8_lossy(text).trim_end().to_owned();
            found.get_or_insert(Refusal { what, hint: WAITS });
        }
        Piece::Said(..) | Piece::Pass(_) => {}
    };
    sieve.feed(output.as_bytes(), &mut to);
    sieve.end(&mut to);
    found
}

/// To standard error. `wait`: until somebody reads it, as the program's words do; else it is
/// dropped when there is no room.
pub(crate) fn pass_on(bytes: &[u8], wait: bool) {
    if wait || has_room(Stream::Errors) {
        drop(io::stderr().lock().write_all(bytes));
    }
}

/// What people read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stream {
    Output,
    Errors,
}

/// Whoever writes there does not wait.
pub(crate) fn has_room(stream: Stream) -> bool {
    let (output, errors) = (io::stdout(), io::stderr());
    let stream = match stream {
        Stream::Output => output.as_fd(),
        Stream::Errors => errors.as_fd(),
    };
    let mut wanted = [PollFd::from_borrowed_fd(stream, PollFlags::OUT)];
    poll(&mut wanted, Some(&Timespec::default())).is_ok_and(|found| found > 0)
}

/// Says what people read. Nobody waits for who does not read it: a thread of its own does.
#[derive(Debug)]
struct Speaker {
    /// `None` within: that was all.
    lines: Option<SyncSender<Option<Vec<u8>>>>,
    spoken: Mutex<Receiver<()>>,
}

impl Speaker {
    fn start(write: impl Fn(&[u8]) + Send + 'static) -> Self {
        let (send, lines) = sync_channel::<Option<Vec<u8>>>(LINES_WAITING_MAX);
        let (tell, spoken) = sync_channel(0);
        let speak = move || {
            lines.iter().map_while(|line| line).for_each(|line| write(&line));
            drop(tell);
        };
        let started = std::thread::Builder::new().name("speaker".to_owned()).spawn(speak);
        Self { lines: started.is_ok().then_some(send), spoken: Mutex::leaf(spoken) }
    }

    /// Dropped where too many wait already; where none can wait, when there is no room.
    fn say(&self, text: &[u8]) {
        match &self.lines {
            Some(lines) => drop(lines.try_send(Some(text.to_vec()))),
            None => pass_on(text, false),
        }
    }

    /// What waits is heard by who reads it soon.
    fn finish(&self) {
        if let Some(lines) = &self.lines {
            let _ = lines.try_send(None);
            let _ = self.spoken.lock().recv_timeout(LAST_LINES);
        }
    }
}

static SPEAKER: OnceLock<Speaker> = OnceLock::new();

/// For people, in order; never waits.
pub(crate) fn say(text: &[u8]) {
    SPEAKER.get_or_init(|| Speaker::start(|line| pass_on(line, true))).say(text);
}

/// The same of a line without its line break.
pub(crate) fn line(text: &str) {
    say(format!("{text}\n").as_bytes());
}

/// The same of a line of scrfs-run's own.
pub(crate) fn tell(text: &str) {
    line(&format!("scrfs-run: {text}"));
}

/// Nothing more is said: waits a little for who reads.
pub(crate) fn finish() {
    if let Some(speaker) = SPEAKER.get() {
        speaker.finish();
    }
}

/// The log of what launchers said. Writing never waits.
#[derive(Debug, Clone)]
pub(crate) struct Log(SyncSender<Vec<u8>>);

impl Log {
    /// At this path; the directory is there, or nothing is logged.
    pub(crate) fn at(path: PathBuf) -> Self {
        let (send, pieces) = sync_channel::<Vec<u8>>(LOG_WAITING_MAX);
        let write = move || {
            for piece in pieces {
                if let Err(error) = append(&path, &piece) {
                    tracing::debug!(%error, "the log of the launcher's words");
                }
            }
        };
        drop(std::thread::Builder::new().name("log".to_owned()).spawn(write));
        Self(send)
    }

    pub(crate) fn add(&self, bytes: &[u8]) {
        drop(self.0.try_send(bytes.to_vec()));
    }
}

fn append(path: &Path, piece: &[u8]) -> io::Result<()> {
    let open = || scrfs::prefix::open_log(path);
    let mut file: File = open()?;
    if file.metadata()?.len() > LOG_BYTES_MAX {
        std::fs::rename(path, path.with_extension("log.1"))?;
        file = open()?;
    }
    file.write_all(piece)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launcher::CommandLine;
    use crate::launcher::Task;

    /// Calls blocks and lines with "bad" its own.
    #[derive(Debug)]
    struct Fenced;

    impl Launcher for Fenced {
        fn name(&self) -> &'static str {
            "fenced"
        }
        fn line(&self, _: Task) -> CommandLine {
            unreachable!()
        }
        fn understand(&self, text: &str, _: u32) -> Option<Said> {
            text.contains("bad").then_some(Said::Noise)
        }
        fn fence(&self) -> Option<&'static str> {
            Some("----")
        }
    }

    /// What comes of it when `text` arrives in pieces of `size` bytes; `|` marks where nothing came
    /// for a while.
    fn cut(text: &str, size: usize) -> Vec<String> {
        let mut sieve = Sieve::new(Arc::new(Fenced), 1);
        let mut got: Vec<String> = Vec::new();
        let mut to = |piece: Piece<'_>| match piece {
            Piece::Pass(bytes) => match got.last_mut() {
                Some(last) if !last.starts_with('<') => last.push_str(&String::from_utf8_lossy(bytes)),
                _ => got.push(String::from_utf8_lossy(bytes).into_owned()),
            },
            Piece::Said(_, bytes) => got.push(format!("<{}>", String::from_utf8_lossy(bytes))),
        };
        for part in text.split('|') {
            for piece in part.as_bytes().chunks(size) {
                sieve.feed(piece, &mut to);
            }
            if sieve.is_holding() && part.len() < text.len() {
                sieve.release(&mut to);
            }
        }
        sieve.end(&mut to);
        got
    }

    #[test]
    fn the_launchers_blocks_and_lines_are_told_from_the_programs() {
        for size in [1, 3, 4096] {
            assert_eq!(
                cut("one\n-----\nbad news\nmore\n-----\ntwo\nbad line\nthree", size),
                ["one\n", "<-----\nbad news\nmore\n-----\n>", "two\n", "<bad line\n>", "three"]
            );
            // A table of the program's goes on as it is, a block that does not end too.
            assert_eq!(cut("----\nx y\n----\n1 2\n----\n3 4\n", size), ["----\nx y\n----\n1 2\n----\n3 4\n"]);
            // What is not complete goes on, and so does the rest of that line, whatever is in it.
            assert_eq!(cut("progr|ess bad\nbad\n", size), ["progress bad\n", "<bad\n>"]);
            assert_eq!(cut("----\nhalf|\nbad\n", size), ["----\nhalf\n", "<bad\n>"]);
        }
        let long = format!("----\n{}", "x\n".repeat(HELD_MAX));
        assert_eq!(cut(&long, 1000).concat(), long);
    }

    #[test]
    fn nothing_waits_for_a_line_that_does_not_end() {
        let (reader, mut writer) = io::pipe().unwrap();
        let (tell, told) = std::sync::mpsc::channel();
        let listener = std::thread::spawn(move || {
            listen(reader, Arc::new(Fenced), 1, |bytes| drop(tell.send(bytes.to_vec())), |_, _| ());
        });
        writer.write_all(b"name? ").unwrap();
        assert_eq!(told.recv().unwrap(), b"name? ");
        drop(writer);
        listener.join().unwrap();
    }

    #[test]
    fn nobody_waits_for_who_does_not_read_and_who_reads_hears_all_in_order() {
        let (read, reads) = std::sync::mpsc::channel::<()>();
        let (tell, told) = std::sync::mpsc::channel();
        let speaker = Speaker::start(move |line| {
            let _ = reads.recv();
            drop(tell.send(line.to_vec()));
        });
        // One is being said, the others wait; what comes then is dropped.
        for number in 0..2 * LINES_WAITING_MAX {
            speaker.say(number.to_string().as_bytes());
        }
        drop(read);
        let heard: Vec<Vec<u8>> = told.iter().take(LINES_WAITING_MAX).collect();
        let expected = |count: usize| (0..count).map(|number| number.to_string().into_bytes());
        assert_eq!(heard, expected(LINES_WAITING_MAX).collect::<Vec<_>>());
        speaker.say(b"last");
        speaker.finish();
        assert_eq!(told.iter().last().unwrap(), b"last");
    }

    #[test]
    fn the_log_is_bounded() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("scrfs-run.log");
        let piece = vec![b'x'; 1 << 19];
        for _ in 0..9 {
            append(&path, &piece).unwrap();
        }
        let files: Vec<_> =
            std::fs::read_dir(place.path()).unwrap().flatten().map(|f| f.metadata().unwrap().len()).collect();
        assert!(
            files.len() == 2 && files.iter().all(|&bytes| bytes <= LOG_BYTES_MAX + (1 << 19)),
            "{files:?}"
        );
    }
}

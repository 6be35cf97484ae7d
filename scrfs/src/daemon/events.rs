//! The events: what happened and why, a JSON line each, for operators. Bounded in size: a full file
//! becomes `events.1`.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;

use crate::boundary::IoRecord;
use crate::ids::DatasetId;
use crate::lock::{Mutex, Rank};
use crate::store::reserve::{Reserve, Use};

/// Bytes of one file before it is put by.
const FILE_MAX: u64 = 1 << 20;
/// Lines kept in memory for tools.
const LINES_MAX: usize = 1000;
/// Longest text of one event, bytes.
const TEXT_MAX: usize = 4096;

/// How much it matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Level {
    /// What was decided or done.
    Info,
    /// Something is not as it should be; data is safe.
    Warning,
    /// A checkpoint or a request failed.
    Error,
}

#[derive(Serialize)]
struct Line<'a> {
    /// Microseconds since 1970.
    time_us: u64,
    level: Level,
    #[serde(skip_serializing_if = "Option::is_none")]
    dataset: Option<u64>,
    text: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    io: Option<&'a IoRecord>,
}

/// The events of one node.
pub(super) struct Events {
    counts: Counts,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Counts([AtomicU64; 3]);

struct Inner {
    path: PathBuf,
    /// `None`: it could not be opened; events go to memory and log only.
    file: Option<File>,
    bytes: u64,
    newest: VecDeque<String>,
    reserve: Option<Arc<Reserve>>,
    /// Lines that are not in the file since one last was.
    lost: u64,
}

impl Events {
    /// Goes on in `directory`'s files; where there is no room for them, with `reserve`.
    pub(super) fn open(directory: &Path, reserve: Option<Arc<Reserve>>) -> Self {
        let path = directory.join("events");
        let (file, bytes, newest) = match reopen(&path) {
            Ok((file, bytes, newest)) => (Some(file), bytes, newest),
            Err(error) => {
                tracing::error!(%error, path = %path.display(), "events cannot be kept");
                (None, 0, VecDeque::new())
            }
        };
        let inner = Inner { path, file, bytes, newest, reserve, lost: 0 };
        Self { counts: Counts::default(), inner: Mutex::new(Rank::Events, inner) }
    }

    pub(super) fn info(&self, dataset: Option<DatasetId>, text: &str) {
        tracing::info!(dataset = dataset.map(|id| id.0), "{text}");
        self.add(Level::Info, dataset, text);
    }

    pub(super) fn warning(&self, dataset: Option<DatasetId>, text: &str) {
        tracing::warn!(dataset = dataset.map(|id| id.0), "{text}");
        self.add(Level::Warning, dataset, text);
    }

    pub(super) fn error(&self, dataset: Option<DatasetId>, text: &str) {
        tracing::error!(dataset = dataset.map(|id| id.0), "{text}");
        self.add(Level::Error, dataset, text);
    }

    /// What was done with a file; not for the log.
    pub(super) fn io(&self, record: &IoRecord) {
        self.add_line(Level::Info, None, "a file was closed", Some(record));
    }

    /// How many there were of each level since this process began.
    pub(super) fn counts(&self) -> [(&'static str, u64); 3] {
        let count = |level: Level| self.counts.0[level as usize].load(Ordering::Relaxed);
        [("info", count(Level::Info)), ("warning", count(Level::Warning)), ("error", count(Level::Error))]
    }

    /// The newest lines, at most `count`, oldest first.
    pub(super) fn newest(&self, count: usize) -> Vec<String> {
        let inner = self.inner.lock();
        let skip = inner.newest.len().saturating_sub(count);
        inner.newest.iter().skip(skip).cloned().collect()
    }

    fn add(&self, level: Level, dataset: Option<DatasetId>, text: &str) {
        self.add_line(level, dataset, text, None);
    }

    fn add_line(&self, level: Level, dataset: Option<DatasetId>, text: &str, io: Option<&IoRecord>) {
        self.counts.0[level as usize].fetch_add(1, Ordering::Relaxed);
        let time_us = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| u64::try_from(since.as_micros()).unwrap_or(u64::MAX));
        let text = &text[..text.floor_char_boundary(TEXT_MAX)];
        let line = Line { time_us, level, dataset: dataset.map(|id| id.0), text, io };
        match serde_json::to_string(&line) {
            Ok(line) => self.inner.lock().push(line),
            Err(error) => tracing::error!(%error, "an event cannot be written as JSON"),
        }
    }
}

impl Inner {
    fn push(&mut self, line: String) {
        if self.bytes + line.len() as u64 > FILE_MAX
            && let Err(error) = self.rotate()
        {
            tracing::error!(%error, "the events' file cannot be put by");
        }
        if let Err(error) = self.write(&line) {
            if self.lost == 0 {
                tracing::error!(%error, path = %self.path.display(), "events are not kept");
            }
            self.lost += 1;
        } else if self.lost > 0 {
            tracing::info!(lost = self.lost, "events are kept again");
            self.lost = 0;
        }
        self.newest.push_back(line);
        if self.newest.len() > LINES_MAX {
            self.newest.pop_front();
        }
    }

    fn write(&mut self, line: &str) -> io::Result<()> {
        // A line that is not whole is not the beginning of the next.
        let whole = if self.lost > 0 { format!("\n{line}\n") } else { format!("{line}\n") };
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(open(&self.path)?),
        };
        let errno = |error: &io::Error| error.raw_os_error().unwrap_or(libc::EIO);
        let write = || file.write_all(whole.as_bytes());
        match &self.reserve {
            Some(reserve) => reserve.help(Use::Event, whole.len(), errno, write)?,
            None => file.write_all(whole.as_bytes())?,
        }
        self.bytes += whole.len() as u64;
        Ok(())
    }

    fn rotate(&mut self) -> io::Result<()> {
        std::fs::rename(&self.path, self.path.with_extension("1"))?;
        self.file = None;
        self.file = Some(open(&self.path)?);
        self.bytes = 0;
        Ok(())
    }
}

fn open(path: &Path) -> io::Result<File> {
    File::options().append(true).read(true).create(true).mode(0o600).open(path)
}

fn reopen(path: &Path) -> io::Result<(File, u64, VecDeque<String>)> {
    let mut file = open(path)?;
    let bytes = file.metadata()?.len();
    file.seek(SeekFrom::Start(bytes.saturating_sub(FILE_MAX)))?;
    let mut tail = Vec::new();
    Read::by_ref(&mut file).take(FILE_MAX).read_to_end(&mut tail)?;
    let text = String::from_utf8_lossy(&tail);
    let mut newest: VecDeque<String> =
        text.lines().rev().take(LINES_MAX).map(str::to_owned).collect::<Vec<_>>().into_iter().rev().collect();
    // A line torn by a crash is not shown, and does not run into the next one.
    if !tail.is_empty() && tail.last() != Some(&b'\n') {
        newest.pop_back();
        file.write_all(b"\n")?;
    }
    Ok((file, bytes, newest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_json_and_survive() {
        let dir = tempfile::tempdir().unwrap();
        let events = Events::open(dir.path(), None);
        events.info(Some(DatasetId(3)), "sealed \"ck\"\nand more");
        events.warning(None, "second");
        drop(events);
        let path = dir.path().join("events");
        let mut bytes = std::fs::read(&path).unwrap();
        bytes.extend(b"{\"torn");
        std::fs::write(&path, bytes).unwrap();
        let events = Events::open(dir.path(), None);
        events.error(None, "third");
        let lines = events.newest(10);
        assert_eq!(lines.len(), 3);
        let first: serde_json::Value = serde_json::from_str(&lines[0]).unwrap();
        assert_eq!(first["text"], "sealed \"ck\"\nand more");
        assert_eq!(first["dataset"], 3);
        assert_eq!(events.newest(1), lines[2..]);
    }

    #[test]
    fn size_is_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let events = Events::open(dir.path(), None);
        let text = "x".repeat(3 * TEXT_MAX);
        for _ in 0..600 {
            events.info(None, &text);
        }
        let total: u64 =
            std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().metadata().unwrap().len()).sum();
        assert!(total <= 2 * FILE_MAX);
        assert!(dir.path().join("events.1").exists());
        assert!(events.newest(usize::MAX).len() <= LINES_MAX);
    }
}

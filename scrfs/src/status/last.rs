//! The last status of a job, in its prefix: `<prefix>/.scr/status`, and beside it `events`, both
//! JSON lines. Read on nodes that have no mount, such as the login node, also when the job's own
//! nodes are gone.
//!
//! Whoever may write to the prefix may have written these files: what is read is bounded, and holds
//! no control characters but in names, which are escaped when they are shown.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::NodeStatus;
use crate::bounded;
use crate::plain;
use crate::record::{Index, Record};

/// The status form that this program writes and reads.
pub const VERSION: u32 = 1;
/// While coordinators live the status is written at least this often.
pub const RENEWED: Duration = Duration::from_mins(1);
/// A status of 10,000 nodes takes about a tenth of this.
const BYTES_MAX: u64 = 16 << 20;
/// More of the events than this is not looked at; the newest are at the end.
const EVENTS_MAX: u64 = 4 << 20;
/// A PFS that does not answer within this time is said to be so.
const READ_LIMIT: Duration = Duration::from_secs(10);

/// What the lead coordinator's node was like, and when.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LastStatus {
    /// Microseconds since 1970.
    pub written_us: u64,
    /// The coordinators were asked to end after this, or scrfs-run has ended. `false` too when the
    /// coordinators died and nobody has looked after them.
    pub ended: bool,
    /// The node's own status.
    #[serde(flatten)]
    pub status: NodeStatus,
}

/// Why there is no last status.
#[derive(Debug, thiserror::Error)]
pub enum LastError {
    /// No coordinators have written one there.
    #[error("{0}: no coordinators have left a status there")]
    Absent(PathBuf),
    /// It cannot be read.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is not what scrfs writes.
    #[error("{path}: {reason}")]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
}

/// Where the status of the job in `prefix` is.
pub fn status_path(prefix: &Path) -> PathBuf {
    prefix.join(".scr/status")
}

/// Whether coordinators have kept a status in this prefix.
pub fn is_kept(prefix: &Path) -> bool {
    plain::look(&status_path(prefix)).is_ok_and(|found| found.is_file())
}

/// The same of a directory that a stranger may have made, who may have mounted something there.
pub fn is_kept_below(directory: &Path) -> bool {
    let is_directory = |path: &Path| plain::look(path).is_ok_and(|found| found.is_dir());
    is_directory(directory) && is_directory(&directory.join(plain::STATE)) && is_kept(directory)
}

/// Whether the prefix has a directory for scrfs's state, and SCR's, or a link to one that is no
/// stranger's.
///
/// # Errors
/// A stranger has mounted something there, or made that link.
pub fn has_state(prefix: &Path) -> io::Result<bool> {
    let state = prefix.join(plain::STATE);
    match plain::look(&state) {
        Ok(link) if link.is_symlink() => {
            plain::refuse_planted(&link, &state).map_err(|error| plain::named(&state, &error))?;
            Ok(state.is_dir())
        }
        Err(error) if plain::is_of_strangers(&error) => Err(plain::named(&state, &error)),
        found => Ok(found.is_ok_and(|found| found.is_dir())),
    }
}

/// Where the job's events are.
pub fn events_path(prefix: &Path) -> PathBuf {
    prefix.join(".scr/events")
}

impl LastStatus {
    /// Reads it; waits for the PFS at most ten seconds, and as long for the index. What was brought
    /// to the PFS since it was written, as by the Epilog of a job that was cancelled, is flushed:
    /// the index of the prefix says so.
    pub fn read(prefix: &Path) -> Result<Self, LastError> {
        let mut last = Self::read_written(prefix)?;
        // One that cannot be read says nothing.
        let index = read_within(&prefix.join(".scr/index.scr"), BYTES_MAX, false).ok();
        if let Some(index) = index.and_then(|bytes| Index::decode(&bytes).ok()) {
            mark_saved(&mut last.status, &index);
        }
        Ok(last)
    }

    fn read_written(prefix: &Path) -> Result<Self, LastError> {
        let path = status_path(prefix);
        let bytes = read_within(&path, BYTES_MAX, false)?;
        Self::parse(&bytes).map_err(|reason| LastError::Content { path, reason })
    }

    /// Says that the job of `prefix` has ended, where its coordinators could not say so: they died,
    /// or the PFS was too slow for their last word. The rest of the status stays. Waits for the PFS
    /// as long as that takes.
    ///
    /// # Errors
    /// There is no status, it is not what scrfs writes, or it cannot be replaced.
    pub fn end(prefix: &Path) -> Result<(), LastError> {
        let path = status_path(prefix);
        let last = Self::read_written(prefix)?;
        if last.ended {
            return Ok(());
        }
        let ended = serde_json::to_vec(&Self { ended: true, ..last });
        let text = ended.map_err(|e| LastError::Content { path: path.clone(), reason: e.to_string() })?;
        replace(&path, &text).map_err(|source| LastError::Io { path, source })
    }

    fn parse(bytes: &[u8]) -> Result<Self, String> {
        let value: Value = serde_json::from_slice(bytes).map_err(|e| format!("no JSON object: {e}"))?;
        let version = value.get("version").and_then(Value::as_u64);
        if version != Some(u64::from(VERSION)) {
            let version = version.map_or_else(|| "no".to_owned(), |version| version.to_string());
            return Err(format!("field `version`: {version} form, this program reads form {VERSION}"));
        }
        if let Some(field) = control_characters(&value, "") {
            return Err(format!("field `{field}`: has control characters"));
        }
        serde_json::from_value(value).map_err(|e| e.to_string())
    }

    /// Seconds since it was written, by this node's clock.
    pub fn age(&self, now: Duration) -> Duration {
        now.saturating_sub(Duration::from_micros(self.written_us))
    }
}

/// Datasets that the index has as complete are on the PFS.
fn mark_saved(status: &mut NodeStatus, index: &Index) {
    let saved: HashSet<(u64, &[u8])> = index
        .entries()
        .filter(|view| view.complete && view.failed.is_empty())
        .filter_map(|view| Some((view.id.0, view.name?.as_bytes())))
        .collect();
    for dataset in status.datasets.iter_mut().filter(|dataset| dataset.is_complete() && !dataset.flushed) {
        if saved.contains(&(dataset.id, dataset.name.as_bytes())) {
            "flushed".clone_into(&mut dataset.state);
            (dataset.flushed, dataset.flush_failed, dataset.progress) = (true, None, None);
            dataset.survives.iter_mut().for_each(|(_, survives)| *survives = true);
        }
    }
    status.unsaved.retain(|dataset| !saved.contains(&(dataset.id, dataset.name.as_bytes())));
}

/// The newest events that the coordinators have left in `prefix`, oldest first, at most `most`.
pub fn events(prefix: &Path, most: usize) -> Result<Vec<String>, LastError> {
    let text = read_within(&events_path(prefix), EVENTS_MAX, true)?;
    let text = String::from_utf8_lossy(&text);
    // Of a longer file the first line may be half; what is no JSON was not written by scrfs.
    let is_sound = |line: &&str| {
        !line.contains(char::is_control) && serde_json::from_str::<serde_json::Map<_, Value>>(line).is_ok()
    };
    let sound: Vec<&str> = text.lines().filter(is_sound).collect();
    if sound.is_empty() && !text.is_empty() {
        let (path, reason) = (events_path(prefix), "no line of it is an event".to_owned());
        return Err(LastError::Content { path, reason });
    }
    Ok(sound[sound.len().saturating_sub(most)..].iter().map(|line| (*line).to_owned()).collect())
}

fn read_within(path: &Path, most: u64, tail: bool) -> Result<Vec<u8>, LastError> {
    let read = {
        let path = path.to_owned();
        bounded::within(READ_LIMIT, move || read(&path, most, tail))
    };
    read.map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => LastError::Absent(path.to_owned()),
        _ => LastError::Io { path: path.to_owned(), source },
    })
}

/// Replaces a small file: temporary, fsync, rename, fsync of the directory.
fn replace(path: &Path, text: &[u8]) -> io::Result<()> {
    let temporary = path.with_extension(std::process::id().to_string());
    let mut file = plain::make_file(&temporary)?;
    let written = file.write_all(text).and_then(|()| file.write_all(b"\n")).and_then(|()| file.sync_all());
    if let Err(error) = written.and_then(|()| std::fs::rename(&temporary, path)) {
        let _ = std::fs::remove_file(&temporary);
        return Err(error);
    }
    path.parent().map_or(Ok(()), |directory| File::open(directory)?.sync_all())
}

/// A regular file, and no link to one, nor what a user has mounted there; of a longer one with
/// `tail` the end.
fn read(path: &Path, most: u64, tail: bool) -> io::Result<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let mut file = plain::open_unmounted(path, flags, Mode::empty())?;
    let wrong = |reason: String| io::Error::new(io::ErrorKind::InvalidData, reason);
    let meta = file.metadata()?;
    if !meta.is_file() {
        return Err(wrong("no regular file".to_owned()));
    }
    plain::refuse_planted(&meta, path)?;
    if meta.len() > most && !tail {
        return Err(wrong(format!("{} bytes, at most {most} are read", meta.len())));
    }
    file.seek(SeekFrom::Start(meta.len().saturating_sub(most)))?;
    let mut bytes = Vec::new();
    file.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The first field with characters that a terminal would obey. Names of datasets may hold any: they
/// are shown escaped.
fn control_characters(value: &Value, at: &str) -> Option<String> {
    match value {
        Value::String(text) if at != "name" && text.chars().any(char::is_control) => Some(at.to_owned()),
        Value::Array(all) => all.iter().find_map(|value| control_characters(value, at)),
        Value::Object(all) => all.iter().find_map(|(field, value)| control_characters(value, field)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::ids::DatasetId;
    use crate::record::IndexEntry;

    fn last() -> LastStatus {
        let status = serde_json::json!({
            "written_us": 5_000_000, "ended": false, "version": VERSION, "host": "node0", "mount_point": "/scr",
            "mode": "plain", "mode_reason": "none", "job": "ann 7", "control_directory": "/c",
            "cache_directory": "/k", "stores": [], "cache_bytes": null, "coordinator": null,
            "was_attached": true, "epoch": 3, "flush_every": 10, "enabled": true, "datasets": [], "waiting": 0,
            "priority": { "raised": false, "why": "", "how": "" },
        });
        serde_json::from_value(status).unwrap()
    }

    fn with(text: &str) -> (tempfile::TempDir, PathBuf) {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join(".scr")).unwrap();
        let path = status_path(root.path());
        fs::write(&path, text).unwrap();
        (root, path)
    }

    #[test]
    fn it_goes_both_ways_and_tells_its_age() {
        let text = serde_json::to_string(&last()).unwrap();
        let (root, _) = with(&text);
        let read = LastStatus::read(root.path()).unwrap();
        assert_eq!(read, last());
        assert_eq!(read.age(Duration::from_secs(9)), Duration::from_secs(4));
        assert_eq!(read.age(Duration::ZERO), Duration::ZERO);
    }

    /// The Epilogs of a job that was cancelled have saved it when nobody was there to write so.
    #[test]
    fn what_the_index_has_as_complete_is_on_the_pfs() {
        let dataset = |id: u64, name: &str, state: &str| {
            serde_json::json!({
                "id": id, "name": name, "state": state, "scheme": "XOR", "bytes": 1, "files": 1,
                "hosts": ["n0"], "flushed": false, "flush_failed": { "reason": "away", "given_up": true },
                "restoring": 0, "unread": 0, "scrubbed": null, "changed": null, "current": false, "progress": null,
                "survives": [["n0", false]],
            })
        };
        let mut value = serde_json::to_value(last()).unwrap();
        value["datasets"] = serde_json::json!([
            dataset(4, "ck.4", "protected"),
            dataset(3, "ck.3", "protected"),
            dataset(2, "ck.2", "sealed"),
            dataset(7, "ck.1", "flushing"),
            dataset(0, "ck.5", "open"),
        ]);
        let (root, path) = with(&value.to_string());
        let mut index = Index::new();
        for (id, name, complete) in
            [(4, "ck.4", true), (3, "ck.3", false), (2, "ck.2", true), (1, "ck.1", true), (0, "ck.5", true)]
        {
            let entry = IndexEntry { complete: Some(complete), ..IndexEntry::default() };
            index.set_entry(name.into(), DatasetId(id), entry);
        }
        let at = path.with_file_name("index.scr");
        fs::write(&at, index.encode()).unwrap();
        let states = || {
            let status = LastStatus::read(root.path()).unwrap().status;
            let tell = |d: &crate::status::DatasetStatus| (d.state.clone(), d.flushed, d.survives[0].1);
            status.datasets.iter().map(tell).collect::<Vec<_>>()
        };
        let is = |state: &str, saved| (state.to_owned(), saved, saved);
        let expected = [("flushed", true), ("protected", false), ("flushed", true), ("flushing", false)];
        let expected: Vec<_> =
            expected.into_iter().chain([("open", false)]).map(|(s, is_on)| is(s, is_on)).collect();
        assert_eq!(states(), expected);
        // The end is told of what was written, and of nothing else.
        LastStatus::end(root.path()).unwrap();
        fs::write(&at, "no record").unwrap();
        assert!(states().iter().all(|(_, saved, _)| !saved));
    }

    #[test]
    fn the_end_is_told_where_it_was_not() {
        let (root, path) = with(&serde_json::to_string(&last()).unwrap());
        for _ in 0..2 {
            LastStatus::end(root.path()).unwrap();
            assert_eq!(LastStatus::read(root.path()).unwrap(), LastStatus { ended: true, ..last() });
        }
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "no temporary is left");
        fs::write(&path, "not ours").unwrap();
        assert!(matches!(LastStatus::end(root.path()), Err(LastError::Content { .. })));
        assert_eq!(fs::read_to_string(&path).unwrap(), "not ours");
        fs::remove_file(&path).unwrap();
        assert!(matches!(LastStatus::end(root.path()), Err(LastError::Absent(_))));
        assert!(!path.exists());
    }

    #[test]
    fn what_scrfs_did_not_write_is_refused_by_file_and_field() {
        let sound = serde_json::to_string(&last()).unwrap();
        let escape = sound.replace("\"node0\"", "\"\\u001b[2J\"");
        let version = sound.replace("\"version\":1", "\"version\":7");
        for (text, reason) in [
            ("", "no JSON object"),
            ("[]", "version"),
            (&*"[".repeat(100_000), "recursion"),
            (&escape, "`host`: has control characters"),
            (&version, "`version`: 7 form"),
            (&*sound.replace("\"epoch\":3", "\"epoch\":-3"), "-3"),
        ] {
            let (root, path) = with(text);
            let error = LastStatus::read(root.path()).unwrap_err().to_string();
            assert!(error.contains(reason) && error.contains(&*path.to_string_lossy()), "{error}");
        }
    }

    #[test]
    fn neither_links_nor_pipes_nor_long_files_are_read() {
        let (root, path) = with("");
        File::options().write(true).open(&path).unwrap().set_len(BYTES_MAX + 1).unwrap();
        assert!(LastStatus::read(root.path()).unwrap_err().to_string().contains("at most"));
        fs::remove_file(&path).unwrap();
        assert!(matches!(LastStatus::read(root.path()), Err(LastError::Absent(_))));
        std::os::unix::fs::symlink("/etc/passwd", &path).unwrap();
        assert!(matches!(LastStatus::read(root.path()), Err(LastError::Io { .. })));
        fs::remove_file(&path).unwrap();
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(LastStatus::read(root.path()).unwrap_err().to_string().contains("no regular file"));
    }

    #[test]
    fn of_the_events_the_newest_are_told() {
        let (root, _) = with("");
        let line = |n: u32| format!("{{\"time_us\":{n},\"text\":\"\\u001b\"}}");
        let text = format!("half\":1}}\n{}\n{}\nno JSON\n{}\n", line(1), line(2), line(3));
        fs::write(events_path(root.path()), text).unwrap();
        assert_eq!(events(root.path(), 2).unwrap(), [line(2), line(3)]);
        assert_eq!(events(root.path(), 9).unwrap().len(), 3);
    }
}

//! `<prefix>/.scr/halt.scr` and `<prefix>/.scr/messages`.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{FlockOperation, flock};
use scrfs::record::{Halt, Record};

use super::prefix::{PfsError, Prefix, Result};

/// More than any halt file has.
const BYTES_MAX: u64 = 1 << 16;
/// A file of messages that is longer becomes `messages.1`.
const MESSAGES_MAX: u64 = 16 << 20;

/// Reads the halt file, and counts `sealed` checkpoints in it where it counts them. SCR's tools change it in place under
/// a lock, and so does this.
pub(super) fn count(prefix: &Prefix, sealed: u32) -> Result<Halt> {
    let path = prefix.state("halt.scr");
    let mut file = match OpenOptions::new().read(true).write(sealed > 0).open(&path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Halt::default()),
        other => other.map_err(PfsError::io(&path, "open"))?,
    };
    // Not waited for: a tool that was stopped with the lock must not hold up what else is to be done on the PFS.
    flock(&file, FlockOperation::NonBlockingLockExclusive)
        .map_err(|e| PfsError::io(&path, "lock")(e.into()))?;
    let mut bytes = Vec::new();
    let read = Read::by_ref(&mut file).take(BYTES_MAX + 1).read_to_end(&mut bytes);
    if read.map_err(PfsError::io(&path, "read"))? as u64 > BYTES_MAX {
        return Err(PfsError::unusable(&path, format!("more than {BYTES_MAX} bytes")));
    }
    let mut halt = if bytes.is_empty() {
        Halt::default()
    } else {
        Halt::decode(&bytes).map_err(|source| PfsError::Record { path: path.clone(), source })?
    };
    if let Some(left) = halt.checkpoints_left.filter(|left| sealed > 0 && *left > 0) {
        halt.checkpoints_left = Some(left.saturating_sub(i64::from(sealed)).max(0));
        write_again(&mut file, &halt.encode()).map_err(PfsError::io(&path, "write"))?;
    }
    Ok(halt)
}

fn write_again(file: &mut File, bytes: &[u8]) -> io::Result<()> {
    file.seek(SeekFrom::Start(0))?;
    file.write_all(bytes)?;
    file.set_len(bytes.len() as u64)?;
    file.sync_all()
}

/// Appends a program's message as a JSON line.
pub(super) fn post(prefix: &Prefix, host: &str, text: &str) -> Result<()> {
    prefix.make()?;
    let path = prefix.state("messages");
    if std::fs::metadata(&path).is_ok_and(|meta| meta.len() > MESSAGES_MAX) {
        super::prefix::rename(&path, &prefix.state("messages.1"))?;
    }
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let line = serde_json::json!({ "time_us": u64::try_from(since.as_micros()).unwrap_or(u64::MAX), "host": host, "text": text });
    let mut file =
        OpenOptions::new().append(true).create(true).open(&path).map_err(PfsError::io(&path, "open"))?;
    file.write_all(format!("{line}\n").as_bytes()).map_err(PfsError::io(&path, "write"))
}

#[cfg(test)]
mod tests {
    use scrfs::ids::Epoch;

    use super::*;

    #[test]
    fn checkpoints_are_counted_in_place() {
        let root = tempfile::tempdir().unwrap();
        let prefix = Prefix::new(root.path().as_os_str().as_encoded_bytes(), Epoch(1), "h");
        assert_eq!(count(&prefix, 1).unwrap(), Halt::default());
        prefix.make().unwrap();
        let path = prefix.state("halt.scr");
        let halt = Halt { checkpoints_left: Some(3), exit_before: Some(1 << 40), ..Halt::default() };
        std::fs::write(&path, halt.encode()).unwrap();
        let number = std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(&path).unwrap());
        assert_eq!(count(&prefix, 0).unwrap(), halt);
        assert_eq!(count(&prefix, 2).unwrap().checkpoints_left, Some(1));
        assert_eq!(count(&prefix, 5).unwrap().checkpoints_left, Some(0));
        let left = count(&prefix, 0).unwrap();
        assert_eq!((left.checkpoints_left, left.exit_before), (Some(0), Some(1 << 40)));
        assert_eq!(number, std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(&path).unwrap()));
        std::fs::write(&path, b"junk").unwrap();
        assert!(count(&prefix, 1).unwrap_err().to_string().contains("halt.scr"));
        assert_eq!(std::fs::read(&path).unwrap(), b"junk");
    }

    #[test]
    fn messages_are_lines() {
        let root = tempfile::tempdir().unwrap();
        let prefix = Prefix::new(root.path().as_os_str().as_encoded_bytes(), Epoch(1), "h");
        post(&prefix, "node1", "one\n\"two\"").unwrap();
        post(&prefix, "node2", "three").unwrap();
        let text = std::fs::read_to_string(prefix.state("messages")).unwrap();
        let lines: Vec<serde_json::Value> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
        assert_eq!(
            (lines.len(), &lines[0]["text"], &lines[1]["host"]),
            (2, &"one\n\"two\"".into(), &"node2".into())
        );
    }
}

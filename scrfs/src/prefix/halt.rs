//! `<prefix>/.scr/halt.scr` and `<prefix>/.scr/messages`.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::halt::{Access, HaltError, HaltFile};
use crate::record::Halt;

use super::directory::{PfsError, Prefix, Result};

/// A file of messages that is longer becomes `messages.1`.
const MESSAGES_MAX: u64 = 16 << 20;

/// Reads the halt file, and counts `sealed` checkpoints in it where it counts them. SCR's tools
/// change it in place under a lock, and so does this.
pub(super) fn count(prefix: &Prefix, sealed: u32) -> Result<Halt> {
    let path = crate::halt::path(prefix.root());
    let access = if sealed > 0 { Access::Write } else { Access::Read };
    // The lock is not waited for: a tool that was stopped with it must not hold up what else is to
    // be done on the PFS.
    let Some(mut file) = HaltFile::open(&path, access, Duration::ZERO)? else { return Ok(Halt::default()) };
    if let Some(left) = file.halt.checkpoints_left.filter(|left| sealed > 0 && *left > 0) {
        file.halt.checkpoints_left = Some(left.saturating_sub(i64::from(sealed)).max(0));
        file.store()?;
    }
    Ok(file.halt.clone())
}

impl From<HaltError> for PfsError {
    fn from(error: HaltError) -> Self {
        match error {
            HaltError::Io { path, step, source } => Self::Io { path, step, source },
            HaltError::Record { path, source } => Self::Record { path, source },
            HaltError::Strangers { path } => {
                Self::unusable(&path, "another user has made it, where everybody may make files")
            }
            HaltError::Size { path } => Self::unusable(&path, "it is too large for a halt file"),
        }
    }
}

/// Appends a program's message as a JSON line.
pub(super) fn post(prefix: &Prefix, host: &str, text: &str) -> Result<()> {
    prefix.make()?;
    let path = prefix.state("messages");
    if crate::plain::look(&path).is_ok_and(|meta| meta.len() > MESSAGES_MAX) {
        super::directory::rename(&path, &prefix.state("messages.1"))?;
    }
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let line = serde_json::json!({ "time_us": u64::try_from(since.as_micros()).unwrap_or(u64::MAX), "host": host, "text": text });
    super::directory::append(&path, format!("{line}\n").as_bytes())
}

#[cfg(test)]
mod tests {
    use crate::ids::Epoch;
    use crate::record::Record;

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

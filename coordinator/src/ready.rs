//! The ready file: says that programs may start, and with which dataset.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use scrfs::ids::Epoch;

/// Writes one JSON object: `epoch`, and `current`, the name of the dataset that is presented or an empty string. It
/// appears at once and whole.
pub fn write(path: &Path, epoch: Epoch, current: Option<&[u8]>) -> io::Result<()> {
    let name = String::from_utf8_lossy(current.unwrap_or_default()).into_owned();
    let text = serde_json::json!({ "epoch": epoch.0, "current": name }).to_string();
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(format!(".{}", std::process::id()));
    let mut file = File::create(&temporary)?;
    file.write_all(text.as_bytes())?;
    file.write_all(b"\n")?;
    file.sync_all()?;
    fs::rename(&temporary, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_holds_one_object_and_replaces_a_former_one() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ready");
        write(&path, Epoch(3), Some(b"ck 1")).unwrap();
        write(&path, Epoch(4), None).unwrap();
        let read: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        assert_eq!(read, serde_json::json!({ "epoch": 4, "current": "" }));
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }
}

//! Finding the files.

use std::fs;
use std::path::{Path, PathBuf};

/// Releases, with what SCR's 1.x releases have in common first.
pub(crate) const RELEASES: [&str; 5] = ["scr-2011-04", "scr-2013-08", "scr-1.1.8", "scr-1.2", "scr-3"];

/// One file.
pub(crate) struct Vector {
    pub(crate) path: PathBuf,
    pub(crate) bytes: Vec<u8>,
}

impl Vector {
    /// The file's name, without directories.
    pub(crate) fn name(&self) -> &str {
        self.path.file_name().unwrap().to_str().unwrap()
    }

    /// Whether it is neither a job's data nor plain text.
    pub(crate) fn is_hash_file(&self) -> bool {
        let data =
            self.path.extension().is_some_and(|of| ["ckpt", "data", "empty"].iter().any(|data| of == *data));
        !data && !["scr.current", "app.conf"].contains(&self.name())
    }

    /// Whether it is an XOR file of a 1.x release.
    pub(crate) fn is_xor(&self) -> bool {
        self.path.extension().is_some_and(|extension| extension == "xor") || self.name().starts_with("xor.")
    }

    /// Whether a payload may follow its first record.
    pub(crate) fn has_payload(&self) -> bool {
        self.is_xor() || self.name().contains(".grp_")
    }
}

/// The project's own copy.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden")
}

/// All files below a directory of the golden ones, sorted by path.
pub(crate) fn below(directory: &Path) -> Vec<Vector> {
    let mut found = Vec::new();
    let mut left = vec![directory.to_path_buf()];
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                left.push(path);
            } else {
                found.push(Vector { bytes: fs::read(&path).unwrap(), path });
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

/// All files of a release.
pub(crate) fn release(name: &str) -> Vec<Vector> {
    below(&root().join(name))
}

//! What of the prefix all parts must agree on.

use std::fs;
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};

use crate::plain::{self, Links};
use crate::prefix::strangers;
use crate::record::{Index, Record};

/// An index that is longer is not looked into.
const INDEX_BYTES_MAX: u64 = 256 << 20;

/// Layouts of a prefix that SCR made and that this version cannot read. Nothing is written into
/// such a prefix: SCR would no longer find its datasets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ForeignLayout {
    /// `<prefix>/index.scr`.
    #[error(
        "this prefix has datasets of SCR of 2011, which this version cannot read: nothing is written there"
    )]
    Scr2011,
    /// `<prefix>/.scr/scr.dataset.<id>/rank2file.scr`.
    #[error("this prefix has datasets of SCR 1.2, which this version cannot read: nothing is written there")]
    Scr12,
    /// `<prefix>/.scr/scr.dataset.<id>/rank2file`, and an index of version 2.
    #[error("this prefix has datasets of SCR 3, which this version cannot read: nothing is written there")]
    Scr3,
}

/// The layout of `prefix`, if this version cannot read it.
///
/// # Errors
/// Those of the system calls; a stranger has made `.scr`, or mounted something there. It is no
/// error if something is missing. What else strangers have made is passed over.
pub fn foreign_layout(prefix: &Path) -> io::Result<Option<ForeignLayout>> {
    strangers::check_state(prefix)?;
    let records = prefix.join(".scr");
    let version = index(&records.join("index.scr"))?.and_then(|index| index.version);
    if version.is_some_and(|version| version > crate::record::index::INDEX_VERSION) {
        return Ok(Some(ForeignLayout::Scr3));
    }
    for directory in present(fs::read_dir(&records))?.into_iter().flatten() {
        let directory = directory?;
        let path = directory.path();
        if !directory.file_name().as_encoded_bytes().starts_with(b"scr.dataset.")
            || strangers::look(&path).is_err_and(|error| strangers::is_of_strangers(&error))
        {
            continue;
        }
        for (name, layout) in [("rank2file", ForeignLayout::Scr3), ("rank2file.scr", ForeignLayout::Scr12)] {
            if plain::look(&path.join(name)).is_ok() {
                return Ok(Some(layout));
            }
        }
    }
    let is_2011 = index(&prefix.join("index.scr"))?.is_some();
    Ok(is_2011.then_some(ForeignLayout::Scr2011))
}

/// `None` where there is no sound index: others say what is wrong with it.
fn index(path: &Path) -> io::Result<Option<Index>> {
    let mut file = match plain::read_unmounted(path, Links::Follow) {
        // It is no file, or somebody's mount.
        Err(error) if matches!(error.kind(), ErrorKind::InvalidData | ErrorKind::CrossesDevices) => {
            return Ok(None);
        }
        opened => match present(opened)? {
            Some(file) => file,
            None => return Ok(None),
        },
    };
    let meta = file.metadata()?;
    if meta.len() > INDEX_BYTES_MAX || strangers::refuse_planted(&meta, path).is_err() {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(Index::decode(&bytes).ok())
}

/// `None` for what is not there.
fn present<T>(found: io::Result<T>) -> io::Result<Option<T>> {
    match found {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
        other => other.map(Some),
    }
}

/// Makes `<prefix>/.scr`, where records are kept, and gives its path. At most the last directory of
/// the prefix is made with it: a mistyped one must not become a directory that nobody will look
/// for.
///
/// # Errors
/// Those of the system calls; the prefix's parent is missing; the prefix has a [`ForeignLayout`].
pub fn make(prefix: &Path) -> io::Result<PathBuf> {
    if let Some(layout) = foreign_layout(prefix)? {
        return Err(io::Error::new(ErrorKind::Unsupported, layout));
    }
    let records = prefix.join(".scr");
    let made = make_state(prefix, &records);
    // Who was first?
    made.and_then(|()| strangers::check_state(prefix)).map(|()| records)
}

fn make_state(prefix: &Path, records: &Path) -> io::Result<()> {
    match plain::make_directory(records) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            match plain::make_directory(prefix) {
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    let parent = prefix.parent().unwrap_or(prefix).display();
                    let text =
                        format!("{parent} is missing, and only the last directory of a prefix is made");
                    return Err(io::Error::new(ErrorKind::NotFound, text));
                }
                Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
                _ => {}
            }
            match plain::make_directory(records) {
                Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
                _ => Ok(()),
            }
        }
        // On a PFS that is read only, the error comes although it is there.
        Err(error) if error.kind() == ErrorKind::AlreadyExists || records.is_dir() => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_this_version_cannot_read_is_named_and_left_alone() {
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden");
        for (release, layout) in [
            ("scr-2011-04", Some(ForeignLayout::Scr2011)),
            ("scr-2013-08", None),
            ("scr-1.1.8", None),
            ("scr-1.2", Some(ForeignLayout::Scr12)),
            ("scr-3", Some(ForeignLayout::Scr3)),
        ] {
            let prefix = golden.join(release).join("xor4/prefix");
            assert_eq!(foreign_layout(&prefix).unwrap(), layout, "{release}");
            let made = make(&prefix).map(drop).map_err(|error| error.kind());
            assert_eq!(made, layout.map_or(Ok(()), |_| Err(ErrorKind::Unsupported)), "{release}");
            assert_eq!(prefix.join(".scr").exists(), release != "scr-2011-04");
        }
    }

    #[test]
    fn at_most_the_last_directory_is_made() {
        let place = tempfile::tempdir().unwrap();
        let prefix = place.path().join("job");
        assert_eq!(make(&prefix).unwrap(), prefix.join(".scr"));
        assert_eq!(make(&prefix).unwrap(), prefix.join(".scr"));
        let mistyped = place.path().join("typo/run1");
        let error = make(&mistyped).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(
            error.to_string().contains(&format!("{}/typo is missing", place.path().display())),
            "{error}"
        );
        assert!(!place.path().join("typo").exists());
        fs::write(place.path().join("file"), b"").unwrap();
        assert_eq!(make(&place.path().join("file")).unwrap_err().kind(), ErrorKind::NotADirectory);
    }
}

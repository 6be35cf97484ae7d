//! The job's directory on the PFS, as far as all parts must agree on it.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// Makes `<prefix>/.scr`, where records are kept, and gives its path. At most the last directory of the prefix is made
/// with it: a mistyped one must not become a directory that nobody will look for.
///
/// # Errors
/// Those of the system calls; the prefix's parent is missing.
pub fn make(prefix: &Path) -> io::Result<PathBuf> {
    let records = prefix.join(".scr");
    match fs::create_dir(&records) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            match fs::create_dir(prefix) {
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    let parent = prefix.parent().unwrap_or(prefix).display();
                    let text =
                        format!("{parent} is missing, and only the last directory of a prefix is made");
                    return Err(io::Error::new(ErrorKind::NotFound, text));
                }
                Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
                _ => {}
            }
            match fs::create_dir(&records) {
                Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
                _ => Ok(records),
            }
        }
        // On a PFS that is read only, the error comes although it is there.
        Err(error) if error.kind() == ErrorKind::AlreadyExists || records.is_dir() => Ok(records),
        other => other.map(|()| records),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

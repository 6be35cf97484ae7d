//! Looks whether the prefix can be written, and says so when it cannot: a job does not need it to start or to restart
//! from the caches, but a person who mistyped it wants to know at once.

use std::io;
use std::path::Path;
use std::time::Duration;

use rustix::fs::Access;
use scrfs::bounded;
use scrfs_tools::{Outcome, output};

/// A PFS that takes longer has a problem.
const LIMIT: Duration = Duration::from_secs(10);

/// Returns at once; the warning comes when it is known.
pub(crate) fn look(prefix: &Path) -> Outcome {
    let prefix = prefix.to_owned();
    crate::drive::spawn("prefix", move || {
        let wanted = prefix.clone();
        if let Err(error) = bounded::within(LIMIT, move || make(&wanted)) {
            let prefix = prefix.display();
            output::talk(&format!(
                "scrfs-run: warning: {prefix} cannot be written ({error}): the job goes on with the caches alone"
            ));
            output::talk(
                "hint: name a directory on the parallel file system that you can write, with --prefix or SCR_PREFIX",
            );
        }
    })
}

/// `<prefix>/.scr`, where coordinators keep their records.
fn make(prefix: &Path) -> io::Result<()> {
    let records = scrfs::prefix::make(prefix)?;
    Ok(rustix::fs::access(&records, Access::WRITE_OK | Access::EXEC_OK)?)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn what_can_be_written_is_made_and_what_cannot_is_named() {
        let place = tempfile::tempdir().unwrap();
        make(&place.path().join("job")).unwrap();
        assert!(place.path().join("job/.scr").is_dir());
        assert_eq!(make(&place.path().join("typo/run1")).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(!place.path().join("typo").exists());
        let file = place.path().join("file");
        fs::write(&file, b"").unwrap();
        assert_eq!(make(&file).unwrap_err().kind(), io::ErrorKind::NotADirectory);
    }
}

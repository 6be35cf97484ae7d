//! What scrfs-run looks at in the prefix: the halt file; and whether the prefix can be written. It says so when it cannot: a
//! job does not need it to start or to restart from the caches, but a person who mistyped it wants to know at once.

use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::Access as Right;
use scrfs::bounded;
use scrfs::control::AdviceRules;
use scrfs::halt::{self, Access, HaltFile};
use scrfs::status::last::LastStatus;
use scrfs_tools::{Outcome, output};

/// A PFS that takes longer has a problem.
const LIMIT: Duration = Duration::from_secs(10);
/// Tools hold the halt file's lock no longer.
const LOCK_LIMIT: Duration = Duration::from_secs(2);
/// How long the job's end waits for the PFS to be told of it.
const END_LIMIT: Duration = Duration::from_secs(5);

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

/// Why no program is to be started, by the halt file and by `rules`; what cannot be read says nothing.
pub(crate) fn halt(prefix: &Path, rules: &AdviceRules) -> Option<String> {
    let path = halt::path(prefix);
    let read = move || HaltFile::open(&path, Access::Read, LOCK_LIMIT).map_err(io::Error::other);
    let file = bounded::within(LIMIT, read).ok().flatten();
    let halt = file.map(|file| file.halt.clone()).unwrap_or_default();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    halt::due(&halt, rules, now, 0).map(|stop| stop.reason)
}

/// The coordinators are gone: the status in the prefix says so, if the lead could not. Without it the status only looks
/// older than it should.
pub(crate) fn tell_end(prefix: &Path) {
    let prefix = prefix.to_owned();
    let told = bounded::within(END_LIMIT, move || LastStatus::end(&prefix).map_err(io::Error::other));
    if let Err(error) = told {
        tracing::debug!(%error, "the end of the job is not in the prefix");
    }
}

/// `<prefix>/.scr`, where coordinators keep their records.
fn make(prefix: &Path) -> io::Result<()> {
    let records = scrfs::prefix::make(prefix)?;
    Ok(rustix::fs::access(&records, Right::WRITE_OK | Right::EXEC_OK)?)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_halt_file_says_whether_a_program_is_started() {
        let place = tempfile::tempdir().unwrap();
        let halt = |prefix| halt(prefix, &AdviceRules::default());
        assert_eq!(halt(place.path()), None);
        let records = scrfs::prefix::make(place.path()).unwrap();
        let mut file =
            HaltFile::open(&records.join("halt.scr"), Access::Create, LOCK_LIMIT).unwrap().unwrap();
        file.halt.checkpoints_left = Some(0);
        file.store().unwrap();
        drop(file);
        assert_eq!(halt(place.path()).as_deref(), Some("no checkpoints are left by the halt file"));
        fs::write(records.join("halt.scr"), b"junk").unwrap();
        assert_eq!(halt(place.path()), None);
    }

    #[test]
    fn seconds_before_the_allocations_end_count_before_each_start() {
        let place = tempfile::tempdir().unwrap();
        let end_time = crate::allocation::now() + 300;
        let rules = |halt_seconds| AdviceRules { end_time, halt_seconds, ..AdviceRules::default() };
        assert_eq!(halt(place.path(), &rules(0)), None);
        assert_eq!(halt(place.path(), &rules(100)), None);
        assert_eq!(halt(place.path(), &rules(600)).as_deref(), Some("the allocation ends within 600 s"));
        let records = scrfs::prefix::make(place.path()).unwrap();
        let mut file =
            HaltFile::open(&records.join("halt.scr"), Access::Create, LOCK_LIMIT).unwrap().unwrap();
        file.halt.halt_seconds = Some(400);
        file.store().unwrap();
        drop(file);
        assert_eq!(
            halt(place.path(), &rules(0)).as_deref(),
            Some("the allocation ends within 400 s"),
            "scrfs-ctl halt --seconds"
        );
    }

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

//! What scrfs-run looks at in the prefix: the halt file; and whether the prefix can be written. It
//! says so when it cannot: a job does not need it to start or to restart from the caches, but a
//! person who mistyped it wants to know at once.

use std::io;
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::Access as Right;
use scrfs::bounded;
use scrfs::control::AdviceRules;
use scrfs::halt::{self, Access, HaltFile};
use scrfs::mounted::{self, Mounted};
use scrfs::prefix::strangers;
use scrfs::status::last::{LastStatus, RENEWED};
use scrfs_tools::{Failure, Outcome};

use crate::talk;

const NAME_ANOTHER: &str =
    "hint: name a directory on the parallel file system that you can write, with --prefix or SCR_PREFIX";
const NOT_OURS: &str = "hint: name a directory that nobody else can write to, with --prefix or SCR_PREFIX";
/// A PFS that takes longer has a problem.
const LIMIT: Duration = Duration::from_secs(10);
/// Tools hold the halt file's lock no longer.
const LOCK_LIMIT: Duration = Duration::from_secs(2);
/// How long the job's end waits for the PFS to be told of it.
const END_LIMIT: Duration = Duration::from_secs(5);

/// Returns at once; warnings come when it is known what there is. `job`: as status names it.
pub(crate) fn look(prefix: &Path, job: &str) -> Outcome {
    let (prefix, job) = (prefix.to_owned(), job.to_owned());
    crate::drive::spawn("prefix", move || {
        if let Some(other) = other_job(&prefix, &job) {
            talk::tell(&format!("warning: {other}"));
            talk::line(
                "hint: two jobs at once in one prefix take each other's place there: give each its own, with --prefix or SCR_PREFIX",
            );
        }
        let wanted = prefix.clone();
        if let Err(error) = bounded::within(LIMIT, move || make(&wanted)) {
            let (what, hint) = if strangers::is_of_strangers(&error) {
                (format!("the prefix is not used ({error})"), NOT_OURS)
            } else {
                (format!("{} cannot be written ({error})", prefix.display()), NAME_ANOTHER)
            };
            talk::tell(&format!("warning: {what}: the job goes on with the caches alone"));
            talk::line(hint);
        }
    })
}

/// A prefix in an scrfs mount, here or by its name on the nodes, or in a directory that jobs have
/// in the `bases` of caches and control directories, is refused: it goes with that, and so does all
/// that was flushed to it.
pub(crate) fn is_outside(prefix: &Path, mount: &Path, bases: &[PathBuf]) -> Outcome {
    let mounts = mounted::all().unwrap_or_default();
    let real = real_of(prefix);
    let over = real.as_deref().and_then(|real| mount_of(real, &mounts));
    // A mount that is on the nodes alone.
    let is_here = mounts.iter().any(|here| here.mount_point == mount);
    let plain = without_parents(prefix);
    let named = || (!is_here && plain.starts_with(mount)).then(|| mount.to_owned());
    let inside = if let Some(mount) = over.or_else(named) {
        format!("the scrfs mount {}", mount.display())
    } else if let Some(job) = bases.iter().find_map(|base| job_of(real.as_deref().unwrap_or(&plain), base)) {
        format!("{}, which is a job's of scrfs", job.display())
    } else {
        return Ok(());
    };
    Err(Failure::new(format!("SCR_PREFIX: {} is in {inside}, and would go with it", prefix.display()))
        .hint("name a directory on the parallel file system, with --prefix or SCR_PREFIX")
        .code(2))
}

/// The job's directory in which the resolved `path` is, if it is in one of `base`.
fn job_of(path: &Path, base: &Path) -> Option<PathBuf> {
    let base = real_of(base).unwrap_or_else(|| without_parents(base));
    let below: Vec<_> = path.strip_prefix(&base).ok()?.iter().take(2).collect();
    let [user, job] = below[..] else { return None };
    job.as_encoded_bytes().starts_with(b"scr.").then(|| base.join(user).join(job))
}

/// Where a path is, or will be when it is made. `None`: the file system does not answer.
fn real_of(path: &Path) -> Option<PathBuf> {
    let path = path.to_owned();
    let real = move || {
        let of = |above: &Path| Some(above.canonicalize().ok()?.join(path.strip_prefix(above).ok()?));
        Ok(path.ancestors().find_map(of))
    };
    bounded::within(LIMIT, real).ok()?.map(|real| without_parents(&real))
}

/// The scrfs mount in which a path is.
fn mount_of(real: &Path, mounts: &[Mounted]) -> Option<PathBuf> {
    let above = mounts.iter().filter(|mount| real.starts_with(&mount.mount_point));
    // Of two at one place the later one is seen.
    let mount = above.max_by_key(|mount| mount.mount_point.as_os_str().len())?;
    mount.is_scrfs().then(|| mount.mount_point.clone())
}

fn without_parents(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(plain.pop()),
            part => plain.push(part),
        }
    }
    plain
}

/// Another job that was at work in the prefix a moment ago, and has not said that it has ended.
fn other_job(prefix: &Path, job: &str) -> Option<String> {
    let last = LastStatus::read(prefix).ok().filter(|last| !last.ended && last.status.job != job)?;
    let age = last.age(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default());
    let (other, prefix, age_s) = (&last.status.job, prefix.display(), age.as_secs());
    (age < RENEWED * 2)
        .then(|| format!("job {other} was at work in {prefix} {age_s} s ago, and may still be"))
}

/// Why no program is to be started, by the halt file and by `rules`; what cannot be read says
/// nothing.
pub(crate) fn halt(prefix: &Path, rules: &AdviceRules) -> Option<String> {
    let path = halt::path(prefix);
    let at = prefix.to_owned();
    let read = move || {
        // A stranger's prefix halts nothing.
        strangers::check_state(&at)?;
        HaltFile::open(&path, Access::Read, LOCK_LIMIT).map_err(io::Error::other)
    };
    let file = bounded::within(LIMIT, read).ok().flatten();
    let halt = file.map(|file| file.halt.clone()).unwrap_or_default();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    halt::due(&halt, rules, now, 0).map(|stop| stop.reason)
}

/// The coordinators are gone: the status in the prefix says so, if the lead could not. Without it
/// the status only looks older than it should.
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
    fn a_directory_that_is_a_jobs_is_no_prefix() {
        let base = tempfile::tempdir().unwrap();
        let base = base.path().canonicalize().unwrap();
        let refused = |path: &str| {
            is_outside(&base.join(path), Path::new("/no/mount"), std::slice::from_ref(&base)).err()
        };
        for path in ["ann/scr.7", "ann/scr.7/pfs/new", "x/../ann/scr.7/pfs"] {
            let refused = refused(path).expect(path);
            assert!(
                refused.code == 2 && refused.message.contains("ann/scr.7, which is a job's"),
                "{refused}"
            );
        }
        for path in ["", "ann", "ann/pfs", "ann/pfs/scr.7"] {
            assert!(refused(path).is_none(), "{path}");
        }
        let link = base.join("link");
        std::os::unix::fs::symlink(&base, &link).unwrap();
        for (path, base) in [(&base, &link), (&link, &base), (&link, &link)] {
            let refused =
                is_outside(&path.join("ann/scr.7/pfs"), Path::new("/no/mount"), std::slice::from_ref(base));
            assert!(refused.is_err(), "{} in {}", path.display(), base.display());
        }
    }

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

    #[test]
    fn another_job_that_is_at_work_is_told_of() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join(".scr")).unwrap();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros();
        let write = |age_s: u128, ended: bool| {
            let status = serde_json::json!({
                "written_us": u64::try_from(now - age_s * 1_000_000).unwrap(), "ended": ended, "version": 1,
                "host": "n0", "mount_point": "/scr", "mode": "plain", "mode_reason": "none", "job": "ann 7",
                "control_directory": "/c", "cache_directory": "/k", "stores": [], "cache_bytes": null,
                "coordinator": null, "was_attached": true, "epoch": 3, "flush_every": 10, "enabled": true,
                "waiting": 0, "priority": { "raised": false, "why": "", "how": "" }, "datasets": [],
            });
            fs::write(dir.path().join(".scr/status"), status.to_string()).unwrap();
        };
        assert_eq!(other_job(dir.path(), "ann 8"), None);
        write(30, false);
        let told = other_job(dir.path(), "ann 8").unwrap();
        assert!(told.starts_with("job ann 7 was at work in ") && told.contains(" 30 s ago"), "{told}");
        assert_eq!(other_job(dir.path(), "ann 7"), None, "it starts again");
        write(300, false);
        assert_eq!(other_job(dir.path(), "ann 8"), None);
        write(1, true);
        assert_eq!(other_job(dir.path(), "ann 8"), None);
    }
}

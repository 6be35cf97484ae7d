//! The epoch of a start of the coordinators: the next number whose file this start alone makes in
//! the prefix.
//!
//! `<prefix>/.scr/epoch.<n>` is made by exclusive create, with job, host and process in it for
//! people. Where the prefix cannot be written, the epoch is one above the highest that any daemon
//! has seen, and above what can be read there. Where it cannot even be read, daemons of new nodes
//! may have seen less than the prefix has: the epoch is at least the time then, in units that
//! other starts do not reach by counting. So datasets in the prefix are never newer than what this
//! epoch seals.

use std::fs::{self, File};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use scrfs::bounded;
use scrfs::ids::Epoch;

/// Files kept, the newest ones: enough to see who was last.
const KEPT: usize = 8;
/// Tries against others that start at the same time.
const TRIES: u32 = 64;
/// After so many, numbers are left out.
const NEAR_TRIES: u32 = 32;

/// Makes the epoch of this start: above all files in the prefix and above `seen`, the highest of
/// any daemon. The second value says why the prefix could not be used, if so; it has `limit` to
/// answer.
pub fn begin(
    prefix: &Path,
    seen: Epoch,
    job_id: &str,
    host: &str,
    limit: Duration,
) -> (Epoch, Option<io::Error>) {
    let prefix = prefix.to_owned();
    let content = format!("job {job_id}\nhost {host}\npid {}\n", std::process::id());
    // A file that is made too late is this start's all the same: its number is the one that is
    // taken below.
    let result = bounded::within(limit, move || {
        let directory = scrfs::prefix::make(&prefix)?;
        let existing = list(&directory)?;
        // The files may have been removed, and the datasets not.
        let sealed = scrfs::prefix::highest_epoch(&prefix).unwrap_or_else(|error| {
            tracing::warn!(%error, "the epochs of the prefix's datasets are not known");
            by_clock()
        });
        let above = Epoch(existing.last().map_or(0, |(n, _)| *n).max(seen.0).max(sealed.0));
        Ok((above, create_next(&directory, &existing, above, content.as_bytes())))
    });
    match result {
        Ok((_, Ok(epoch))) => (epoch, None),
        Ok((above, Err(error))) => (next(above), Some(error)),
        Err(error) => (next(seen.max(by_clock())), Some(error)),
    }
}

fn next(epoch: Epoch) -> Epoch {
    Epoch(epoch.0.saturating_add(1))
}

/// The time since 1970 in units of ten minutes: above all that is counted from 0, one for each
/// start, and for centuries below the epochs that the revisions of catalogs are made from.
fn by_clock() -> Epoch {
    const UNIT: u64 = 600;
    Epoch(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs() / UNIT))
}

/// The highest epoch that was begun in the prefix, if that tells within `limit`.
pub fn newest(prefix: &Path, limit: Duration) -> io::Result<Epoch> {
    let prefix = prefix.to_owned();
    bounded::within(limit, move || {
        let existing = list(&scrfs::prefix::make(&prefix)?)?;
        Ok(Epoch(existing.last().map_or(0, |(number, _)| *number)))
    })
}

fn create_next(
    directory: &Path,
    existing: &[(u64, PathBuf)],
    above: Epoch,
    content: &[u8],
) -> io::Result<Epoch> {
    let mut next = above.0.saturating_add(1);
    // Ever farther, nobody knows how far: a stranger who can make names there has made some of
    // them.
    for tries in 0..TRIES {
        match scrfs::prefix::make_file(&directory.join(format!("epoch.{next}"))) {
            Ok(mut file) => {
                file.write_all(content)?;
                file.sync_all()?;
                File::open(directory)?.sync_all()?;
                prune(existing);
                return Ok(Epoch(next));
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let span = 1 << tries.saturating_sub(NEAR_TRIES);
                next = next.saturating_add(1 + RandomState::new().hash_one(tries) % span);
            }
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::new(
        io::ErrorKind::AlreadyExists,
        "others have taken all numbers that were tried for an epoch",
    ))
}

/// Epoch files, lowest first.
fn list(directory: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        let number = name.to_str().and_then(|n| n.strip_prefix("epoch.")).and_then(|n| n.parse().ok());
        let number = number.filter(|number| scrfs::prefix::is_epoch(&entry.path(), *number));
        found.extend(number.map(|n| (n, entry.path())));
    }
    found.sort_unstable();
    Ok(found)
}

/// Removes the oldest; all of these are below the one just made.
fn prune(existing: &[(u64, PathBuf)]) {
    let surplus = existing.len().saturating_sub(KEPT - 1);
    for (_, path) in existing.iter().take(surplus) {
        if let Err(error) = fs::remove_file(path) {
            tracing::debug!(path = %path.display(), %error, "could not remove an old epoch file");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_mins(1);

    #[test]
    fn each_start_gets_a_higher_one_and_old_files_go() {
        let prefix = tempfile::tempdir().unwrap();
        for n in 1..=20 {
            let (epoch, problem) = begin(prefix.path(), Epoch(0), "j1", "node0", LIMIT);
            assert!(problem.is_none());
            assert_eq!(epoch, Epoch(n));
        }
        assert_eq!(begin(prefix.path(), Epoch(40), "j1", "node0", LIMIT).0, Epoch(41));
        let left = list(&prefix.path().join(".scr")).unwrap();
        assert_eq!((left.len(), left.last().unwrap().0), (KEPT, 41));
    }

    #[test]
    fn starts_at_the_same_time_never_share_one() {
        let prefix = tempfile::tempdir().unwrap();
        let mut got: Vec<_> = std::thread::scope(|scope| {
            let starts: Vec<_> =
                (0..8).map(|_| scope.spawn(|| begin(prefix.path(), Epoch(3), "j", "h", LIMIT).0)).collect();
            starts.into_iter().map(|s| s.join().unwrap()).collect()
        });
        got.sort_unstable();
        got.dedup();
        assert_eq!(got.len(), 8);
        assert!(got[0] > Epoch(3));
    }

    #[test]
    fn a_prefix_that_does_not_tell_may_have_more_than_daemons_saw() {
        let silent = tempfile::tempdir().unwrap();
        (0..40).for_each(|n| drop(begin(silent.path(), Epoch(n), "j1", "node0", LIMIT)));
        let (epoch, problem) = begin(silent.path(), Epoch(0), "j2", "node7", Duration::ZERO);
        assert!(problem.is_some() && epoch > Epoch(40), "{epoch}");
        // When it answers again, the next start is above that.
        assert!(begin(silent.path(), epoch, "j2", "node7", LIMIT).0 > epoch);
    }

    #[test]
    fn without_the_prefix_it_is_above_what_daemons_saw() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let before = by_clock();
        let (epoch, problem) = begin(file.path(), Epoch(6), "j1", "node0", LIMIT);
        assert!(epoch > before);
        assert!(problem.is_some());
        let high = Epoch(u64::from(u32::MAX));
        assert_eq!(begin(file.path(), high, "j1", "node0", LIMIT).0, next(high));
        // Nor is one made whose parent is not there: somebody mistyped it.
        let place = tempfile::tempdir().unwrap();
        let (epoch, problem) = begin(&place.path().join("typo/run1"), Epoch(6), "j1", "node0", LIMIT);
        assert!(epoch > before);
        assert!(problem.unwrap().to_string().contains("typo is missing"));
        assert!(!place.path().join("typo").exists());
    }

    #[test]
    fn names_that_strangers_have_made_end_no_epochs() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let prefix = tempfile::tempdir().unwrap();
        let directory = prefix.path().join(".scr");
        fs::create_dir(&directory).unwrap();
        let strange = |number: u64| {
            let path = directory.join(format!("epoch.{number}"));
            fs::write(&path, "").unwrap();
            std::os::unix::fs::chown(path, Some(54_321), None).unwrap();
        };
        strange(u64::MAX);
        strange(u64::MAX / 2);
        strange(u64::from(u32::MAX) + 1);
        let start = || {
            let (epoch, problem) = begin(prefix.path(), Epoch(0), "j1", "node0", LIMIT);
            assert!(problem.is_none(), "{problem:?}");
            epoch.0
        };
        assert_eq!(start(), 1);
        assert_eq!(start(), 2);
        // Each of a growing step, and all names that are near.
        let near = (0..40).chain((0..NEAR_TRIES).map(|more| 40 + (1 << more)));
        near.for_each(|above| strange(u64::from(u32::MAX) + 2 + above));
        // As high as a name counts, and all names right above that.
        strange(u64::from(u32::MAX));
        (0..5000).for_each(|above| strange(u64::from(u32::MAX) + above));
        let high = start();
        // The steps are drawn: that they grow beyond this before one leads past those names does
        // not happen in 10^15 starts.
        let far = u64::from(u32::MAX) + 5000 + (1 << 22);
        assert!(high > u64::from(u32::MAX) + 4999 && high < far, "{high}");
        assert!(start() > high);
        // Where everybody can make files, no stranger's counts.
        strange(high + 100);
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o1777);
        fs::set_permissions(&directory, open).unwrap();
        assert!(start() < high + 100);
        strange(high + 1_000_000);
        assert!(newest(prefix.path(), LIMIT).unwrap().0 < high + 100);
    }
}

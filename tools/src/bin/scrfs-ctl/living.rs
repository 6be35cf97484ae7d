//! Which runs are at work in a prefix: the job itself, and those that have a `--name` and so a
//! prefix of their own in it.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use scrfs::bounded;
use scrfs::status::last::{self, LastStatus};
use scrfs_tools::{Failure, Outcome};

/// A PFS that takes longer has a problem.
const PFS_LIMIT: Duration = Duration::from_secs(20);
/// Coordinators that live write the status at least every minute.
const SIGN_OF_LIFE: Duration = Duration::from_secs(150);
/// Names in a prefix that are looked at.
const ENTRIES_MAX: usize = 100_000;

/// What lives.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Living {
    /// A run without a name.
    pub(crate) itself: bool,
    /// The names of the others, in order.
    pub(crate) names: Vec<String>,
}

/// By the status that each run keeps in its own prefix. What cannot be read does not live.
pub(crate) fn living(prefix: &Path) -> Outcome<Living> {
    let lives = |prefix: &Path| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        LastStatus::read(prefix).is_ok_and(|last| !last.ended && last.age(now) < SIGN_OF_LIFE)
    };
    let (shown, prefix) = (prefix.display().to_string(), prefix.to_owned());
    let look = move || {
        let entries = std::fs::read_dir(&prefix)?.take(ENTRIES_MAX).flatten();
        let named = entries.filter(|entry| last::is_kept_below(&entry.path()) && lives(&entry.path()));
        // Names of runs are plain.
        let mut names: Vec<String> = named.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.retain(|name| !name.contains(char::is_control));
        names.sort();
        Ok(Living { itself: lives(&prefix), names })
    };
    bounded::within(PFS_LIMIT, look).map_err(|e| Failure::system(shown, &e))
}

impl Living {
    /// The prefixes of the runs with a name.
    pub(crate) fn prefixes(&self, prefix: &Path) -> Vec<PathBuf> {
        self.names.iter().map(|name| prefix.join(name)).collect()
    }

    /// As options of a command line.
    pub(crate) fn options(&self, prefix: &Path) -> String {
        let each = self.prefixes(prefix);
        each.iter().map(|path| format!("--prefix {}", path.display())).collect::<Vec<_>>().join(", ")
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Leaves the status of a run in `prefix`, so many seconds old.
    pub(crate) fn leave(prefix: &Path, ended: bool, age: u64) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros();
        let written_us = u64::try_from(now).unwrap() - age * 1_000_000;
        let status = crate::status::tests::node(Vec::new());
        let last = LastStatus { written_us, ended, status };
        std::fs::create_dir_all(prefix.join(".scr")).unwrap();
        std::fs::write(last::status_path(prefix), serde_json::to_vec(&last).unwrap()).unwrap();
    }

    #[test]
    fn named_runs_are_found_and_a_dataset_is_none() {
        let place = tempfile::tempdir().unwrap();
        for (name, ended, age) in
            [("right", false, 20), ("left", false, 3), ("done", true, 3), ("dead", false, 600)]
        {
            leave(&place.path().join(name), ended, age);
        }
        std::fs::create_dir_all(place.path().join("ck.7/.scr")).unwrap();
        let names = vec!["left".to_owned(), "right".to_owned()];
        let found = living(place.path()).unwrap();
        assert_eq!(found, Living { itself: false, names: names.clone() });
        assert_eq!(found.options(Path::new("/pfs/job")), "--prefix /pfs/job/left, --prefix /pfs/job/right");
        leave(place.path(), false, 3);
        assert_eq!(living(place.path()).unwrap(), Living { itself: true, names });
    }
}

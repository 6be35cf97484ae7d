//! Where datasets are in a mount: what `SCRFS_CHECKPOINT_PATH` says, relative to the mount's root.
//!
//! The mount is made before the job's environment exists, so the job may set another path than the
//! mount was made with. The node records the job's path in the control directory, and the next
//! worker serves by it: a worker knows one path only. The path of a mount is recorded too: while
//! the node has datasets of the job, the job is mounted by that one again.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::path::RelPath;
use crate::store::{Store, StoreError};

/// The record in the control directory.
const NAME: &str = "checkpoint-path";
/// Longest record, bytes: two paths and what encodes them.
const BYTES_MAX: u64 = 16 << 10;

/// Why a path cannot be the checkpoint path.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("checkpoint path {path:?}: {reason}")]
pub struct Refused {
    /// As given.
    pub path: PathBuf,
    /// Why.
    pub reason: String,
}

/// `path` relative to the mount's root; an absolute one must lie below the mount point.
pub fn relative(path: &Path, mount_point: &Path) -> Result<RelPath, Refused> {
    let refused = |reason: &str| Refused { path: path.to_owned(), reason: reason.to_owned() };
    let below = if path.is_absolute() {
        path.strip_prefix(mount_point).map_err(|_| refused("not below the mount point"))?
    } else {
        path
    };
    let trimmed = below.as_os_str().as_bytes();
    let trimmed = trimmed.strip_suffix(b"/").unwrap_or(trimmed);
    // The mount's own directory there: nothing can be made in it.
    if trimmed == b".scrfs" || trimmed.starts_with(b".scrfs/") {
        return Err(refused("`.scrfs` is a reserved name"));
    }
    RelPath::new(trimmed).map_err(|e| refused(&e.to_string()))
}

/// The path that a parameter names, or what it should be. Whether an absolute one is below the
/// mount point is known when that is.
pub(crate) fn named(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    if path.is_relative() {
        relative(&path, Path::new("/"))
            .map_err(|refused| format!("expected a path below the mount's root: {}", refused.reason))?;
    }
    Ok(path)
}

/// A checkpoint path, for people.
pub fn shown(path: &RelPath) -> String {
    if path.is_root() { "the mount's root".to_owned() } else { path.to_string() }
}

/// The path by which a job's datasets on this node are found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chosen {
    /// The path that holds.
    pub path: RelPath,
    /// The path by which the filemap's journal was written, while that has not been rewritten.
    pub former: Option<RelPath>,
}

impl Chosen {
    /// Reads the record; `None` where the job has set no path.
    ///
    /// # Errors
    /// It cannot be read, or is damaged; both name the file.
    pub fn load(store: &Store) -> Result<Option<Self>, StoreError> {
        let Some(bytes) = store.read(NAME, BYTES_MAX)? else { return Ok(None) };
        let decoded = postcard::from_bytes(&bytes).map_err(|error| StoreError::Failed {
            path: store.path().join(NAME),
            step: "decode",
            source: std::io::Error::new(std::io::ErrorKind::InvalidData, error),
        });
        decoded.map(Some)
    }

    /// Writes the record; when this returns, it is on storage.
    pub fn commit(&self, store: &Store) -> Result<(), StoreError> {
        let bytes = postcard::to_stdvec(self).unwrap_or_default();
        store.commit(NAME, &bytes)
    }
}

/// Decides by which path a mount that is made with `made_with` serves, and records that path. It is
/// the recorded one as long as this node has datasets of the job, or where no path was named.
///
/// # Errors
/// Those of [`Chosen::load`] and [`Chosen::commit`].
pub fn settle(store: &Store, made_with: &RelPath, has_datasets: bool) -> Result<(), StoreError> {
    let former = Chosen::load(store)?;
    let holds = |former: &Chosen| has_datasets || made_with.is_root() || former.path == *made_with;
    if former.as_ref().is_some_and(holds) {
        return Ok(());
    }
    let written_by = former.map(|former| former.former.unwrap_or(former.path));
    Chosen { path: made_with.clone(), former: written_by }.commit(store)
}

/// The checkpoint path by which this worker serves: the job's, else the one that the mount was made
/// with.
///
/// # Errors
/// Those of [`Chosen::load`]; the control directory cannot be opened.
pub fn in_force(control: &Path, made_with: &RelPath) -> Result<Chosen, StoreError> {
    let store = Store::open(control).map_err(|source| StoreError::Failed {
        path: control.to_owned(),
        step: "open",
        source,
    })?;
    let chosen = Chosen::load(&store)?;
    Ok(chosen.unwrap_or_else(|| Chosen { path: made_with.clone(), former: None }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_lie_below_the_mount_point() {
        let at = |path: &str| relative(Path::new(path), Path::new("/scr"));
        assert_eq!(at("run/ckpt"), Ok(RelPath::new("run/ckpt").unwrap()));
        assert_eq!(at("/scr/run/ckpt/"), Ok(RelPath::new("run/ckpt").unwrap()));
        assert_eq!(at("/scr"), Ok(RelPath::root()));
        for (path, reason) in [
            ("/data/me", "not below the mount point"),
            (".scrfs/x", "`.scrfs` is a reserved name"),
            ("../x", ".."),
        ] {
            let refused = at(path).unwrap_err().to_string();
            assert!(refused.starts_with(&format!("checkpoint path {path:?}: ")), "{refused}");
            assert!(refused.contains(reason), "{refused}");
        }
    }

    #[test]
    fn a_mount_with_datasets_is_made_again_by_their_path() {
        let control = tempfile::tempdir().unwrap();
        let store = Store::open(control.path()).unwrap();
        let path = |text: &str| RelPath::new(text).unwrap();
        let after = |made_with: &RelPath, has_datasets| {
            settle(&store, made_with, has_datasets).unwrap();
            let chosen = in_force(control.path(), made_with).unwrap();
            (chosen.path, chosen.former)
        };
        assert_eq!(after(&path("a"), false), (path("a"), None));
        assert_eq!(after(&path("b"), true), (path("a"), None));
        assert_eq!(after(&RelPath::root(), true), (path("a"), None));
        // Of a job that has none yet.
        assert_eq!(after(&RelPath::root(), false), (path("a"), None));
        assert_eq!(after(&path("b"), false), (path("b"), Some(path("a"))));
    }

    #[test]
    fn the_jobs_path_wins_over_the_mounts() {
        let control = tempfile::tempdir().unwrap();
        let path = |text: &str| RelPath::new(text).unwrap();
        let made_with = Chosen { path: path("a"), former: None };
        assert_eq!(in_force(control.path(), &path("a")).unwrap(), made_with);
        let chosen = Chosen { path: path("b/c"), former: Some(path("a")) };
        chosen.commit(&Store::open(control.path()).unwrap()).unwrap();
        assert_eq!(in_force(control.path(), &path("a")).unwrap(), chosen);
        std::fs::write(control.path().join(NAME), [0xff; 3]).unwrap();
        let damaged = in_force(control.path(), &path("a")).unwrap_err().to_string();
        assert!(damaged.contains(NAME), "{damaged}");
    }
}

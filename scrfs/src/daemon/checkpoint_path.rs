//! The job's checkpoint path, where it is not the one that the mount was made with.
//!
//! The path is recorded, and the next worker serves by it. It changes only while the node has no
//! sealed dataset: what was made before is not sealed, and counts by the path that holds now.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::checkpoint_path::{Chosen, relative, shown};
use crate::control::{Answer, Reason};
use crate::path::RelPath;
use crate::store::{Store, StoreError};

use super::journal::Journal;
use super::loose_store;
use super::node::{Node, NodeError};
use super::state::Dataset;

/// Brings the records of a worker that served by another path to the path that holds now. A worker
/// that dies within begins again; what that costs is which rank made a file.
pub(super) fn rebase(journal: &mut Journal, chosen: &Chosen, store: &Store) -> Result<(), NodeError> {
    let Some(former) = &chosen.former else { return Ok(()) };
    let failed = |source: std::io::Error| NodeError::Directory { path: store.path().to_owned(), source };
    journal.rebase(former, &chosen.path)?;
    // Pointer files of the former path belong to no dataset. In the mount they stay as they are.
    loose_store::forget_all(store).map_err(failed)?;
    Chosen { path: chosen.path.clone(), former: None }.commit(store)?;
    Ok(())
}

impl Node {
    /// The job's path is `wanted`, as a person wrote it. [`Answer::Done`]: that is the path that
    /// holds. [`Answer::Reloading`]: it is recorded, and another worker is about to take over.
    pub(super) fn choose_checkpoint_path(&self, wanted: &[u8], uid: u32) -> Answer {
        let wanted = match relative(Path::new(OsStr::from_bytes(wanted)), &self.config.mount_point) {
            Ok(wanted) => wanted,
            Err(refused) => return Answer::Failed(refused.to_string()),
        };
        let now = &self.config.checkpoint_path.path;
        if wanted == *now {
            return Answer::Done;
        }
        let disk = self.disk.lock();
        if let Err(reason) = self.may_choose(now) {
            return Answer::Failed(format!("SCRFS_CHECKPOINT_PATH={wanted}: {reason}"));
        }
        if let Err(error) = record_path(disk.store(), &wanted, Some(now)) {
            return Answer::Failed(error.to_string());
        }
        if !(self.config.on_reload)() {
            let undone = record_path(disk.store(), now, None);
            let reason = "its supervisor is gone: unmount it and mount it again";
            return Answer::Failed(undone.map_or_else(|error| error.to_string(), |()| reason.into()));
        }
        let text = format!("user {uid}: datasets are in {} from now on", shown(&wanted));
        self.events.info(None, &text);
        Answer::Reloading
    }

    fn may_choose(&self, now: &RelPath) -> Result<(), Reason> {
        let state = self.state.lock();
        if state.attached.is_some() {
            return Err("coordinators are at work: it can be set before they start".into());
        }
        let kept = state.table.datasets.values().map(Dataset::shown_name);
        let owed = state.table.owed.names().map(|name| String::from_utf8_lossy(name).into_owned());
        match kept.chain(owed).last() {
            None => Ok(()),
            Some(name) => Err(format!(
                "dataset {name} of this job is in {}: leave the path as it is, or give the job's datasets up (scrfs umount --job-id ID --purge)",
                shown(now)
            )
            .into()),
        }
    }

    /// Why coordinators whose job has set this path cannot work with this mount.
    pub(super) fn of_another_path(&self, wanted: Option<&[u8]>) -> Option<String> {
        let wanted = Path::new(OsStr::from_bytes(wanted?));
        let now = &self.config.checkpoint_path.path;
        match relative(wanted, &self.config.mount_point) {
            Ok(wanted) if wanted == *now => None,
            Ok(wanted) => Some(format!(
                "SCRFS_CHECKPOINT_PATH is {} for the job and {} in this mount: `scrfs-ctl probe --checkpoint-path` sets it before \
                 coordinators start, as scrfs-run does",
                shown(&wanted),
                shown(now)
            )),
            Err(refused) => Some(refused.to_string()),
        }
    }
}

fn record_path(store: &Store, path: &RelPath, former: Option<&RelPath>) -> Result<(), StoreError> {
    Chosen { path: path.clone(), former: former.cloned() }.commit(store)
}

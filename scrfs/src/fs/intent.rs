//! Requests that a predecessor got and did not answer: decided by their intent, not repeated
//! (`scrfs/docs/mount.md`).
//!
//! An operation writes its intent before its first effect, under the same lock of the world in
//! which it has checked that it may have it; the adapter takes it back when the answer is with the
//! kernel.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::AtFlags;

use super::FileSystem;
use super::attr::key_of;
use super::inodes::Key;
use super::view::{Place, Sealed};
use crate::control::DirOp;
use crate::dataset::MARKER;
use crate::errno::Errno;
use crate::ids::{DatasetId, RequestId};
use crate::keep::Keep;
use crate::keep::decide::{Intent, Now};
use crate::path::RelPath;

/// What this worker has begun for requests, and what its predecessor had.
#[derive(Debug)]
pub(crate) struct Intents {
    keep: Arc<Keep>,
}

impl Intents {
    pub(crate) fn new(keep: Arc<Keep>) -> Self {
        Self { keep }
    }

    /// The state memory, in which they are.
    pub(crate) fn keep(&self) -> &Arc<Keep> {
        &self.keep
    }

    /// The intent of request `unique`, if there is one.
    pub(crate) fn of(&self, unique: u64) -> Option<Intent> {
        self.keep.intent(unique)
    }

    /// Request `unique` is about to have its effect.
    pub(crate) fn begin(&self, unique: u64, intent: Intent) {
        self.keep.begin(unique, intent);
    }

    /// A predecessor had the effect of request `unique`; `now` looks what is there.
    pub(crate) fn had_effect(
        &self,
        unique: u64,
        now: impl FnOnce() -> Result<Now, Errno>,
    ) -> Result<bool, Errno> {
        match self.of(unique) {
            None | Some(Intent::Global { .. }) => Ok(false),
            Some(intent) => {
                let done = intent.is_done(&now()?);
                tracing::info!(unique, ?intent, done, "a predecessor had this request");
                Ok(done)
            }
        }
    }

    /// A predecessor made `name` for this request.
    pub(crate) fn has_made(&self, unique: u64, dir: &OwnedFd, name: &[u8]) -> Result<bool, Errno> {
        self.had_effect(unique, || Ok(Now { name: key_at(dir, name)?, ..Now::default() }))
    }

    /// `name` is about to be made, unless it is there: then the request will say so.
    pub(crate) fn will_make(&self, unique: u64, dir: &OwnedFd, name: &[u8]) -> Result<(), Errno> {
        if unique != 0 && key_at(dir, name)?.is_none() {
            self.begin(unique, Intent::Make);
        }
        Ok(())
    }

    /// `name` is about to be removed; true when a predecessor did.
    pub(crate) fn will_remove(&self, unique: u64, dir: &OwnedFd, name: &[u8]) -> Result<bool, Errno> {
        if unique == 0 {
            return Ok(false);
        }
        let there = key_at(dir, name)?;
        if self.had_effect(unique, || Ok(Now { name: there, ..Now::default() }))? {
            return Ok(true);
        }
        if let Some(victim) = there {
            self.begin(unique, Intent::Remove { victim });
        }
        Ok(false)
    }

    /// A name of a sealed dataset is about to be hidden; true when a predecessor did that.
    pub(crate) fn will_hide(&self, unique: u64, sealed: &Sealed, place: &Place) -> bool {
        let inner = place.inner();
        let present = if place.is_marker() { !sealed.shows_marker() } else { sealed.entry(&inner).is_none() };
        let hidden = matches!(self.of(unique), Some(Intent::Hide)) && present;
        if !hidden && !present {
            self.begin(unique, Intent::Hide);
        }
        hidden
    }

    /// A predecessor asked the lead for this request.
    pub(crate) fn asked_before(&self, unique: u64) -> bool {
        matches!(self.of(unique), Some(Intent::Global { .. }))
    }

    /// Hides a name of a sealed dataset, also from successors.
    pub(crate) fn hide(&self, sealed: &Sealed, path: RelPath) {
        self.keep.hide(sealed.mark(&path));
        sealed.hide(path);
    }

    /// Shows it again.
    pub(crate) fn show(&self, sealed: &Sealed, path: &RelPath) {
        self.keep.show(sealed.mark(path));
        sealed.show(path);
    }

    /// Dataset `id` is not seen any more.
    pub(crate) fn show_all(&self, id: DatasetId) {
        self.keep.show_all(id.0);
    }
}

impl FileSystem {
    /// The answer to request `unique` is given.
    pub fn answered(&self, unique: u64) {
        self.intents.keep().answered(unique);
    }

    /// Under which id the lead is asked for `op`, or the outcome if that is known: the lead decides
    /// a request once, also when a successor asks again.
    pub(crate) fn ask_once(
        &self,
        unique: u64,
        op: &DirOp,
        new: impl FnOnce() -> RequestId,
    ) -> Result<RequestId, Result<(), Errno>> {
        match self.intents.of(unique) {
            Some(Intent::Global { outcome: Some(errno), .. }) => {
                Err(if errno == 0 { Ok(()) } else { Err(Errno(errno)) })
            }
            Some(Intent::Global { alone: true, .. }) if self.done_alone(op) => Err(Ok(())),
            Some(Intent::Global { request, alone, .. }) => {
                if let (DirOp::Remove { path }, true) = (op, alone) {
                    self.hide_marker_again(path);
                }
                Ok(request)
            }
            _ => {
                let request = new();
                self.intents.begin(unique, Intent::Global { request, alone: false, outcome: None });
                Ok(request)
            }
        }
    }

    /// `op`, which was allowed and begun here without a lead, is done.
    fn done_alone(&self, op: &DirOp) -> bool {
        let there = |path| self.trees.open_directory(path).is_ok();
        match op {
            DirOp::Make { path, .. } => there(path),
            // The node forgets a sealed dataset after its directory is gone.
            DirOp::Remove { path } => !there(path) && !self.view.is_listed(path),
            DirOp::Rename { from, to, exchange: false, .. } => !there(from) && there(to),
            // Nobody can tell: both are there before and after.
            DirOp::Rename { .. } => false,
        }
    }

    /// A removal was allowed, so nothing was seen in the directory. It may have begun with the
    /// marker's being shown again, of which the node's journal has nothing.
    fn hide_marker_again(&self, path: &RelPath) {
        if !self.view.is_listed(path) {
            return;
        }
        if let (Some(sealed), Ok(marker)) =
            (self.view.world().base(&self.view.place(path)), RelPath::new(MARKER))
        {
            self.intents.hide(sealed, marker);
        }
    }
}

/// What a name stands for.
pub(crate) fn key_at(dir: impl AsFd, name: &[u8]) -> Result<Option<Key>, Errno> {
    match rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(key_of(&stat))),
        Err(rustix::io::Errno::NOENT) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

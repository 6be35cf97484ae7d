//! unlink(2); the local half of rmdir(2).

use std::sync::Arc;

use rustix::fs::AtFlags;

use super::FileSystem;
use super::attr::Kind;
use super::create::effect;
use super::errno::{Stop, fail};
use super::view::World;
use super::wait::Done;
use crate::caller::Caller;
use crate::control::DirOp;
use crate::errno::Errno;

/// What became of a name, with the flat dataset that it was in.
enum Gone {
    Here(Option<Vec<u8>>),
    /// This is to be asked for.
    Everywhere(DirOp, Vec<u8>),
}

impl FileSystem {
    /// unlink(2). In a sealed dataset it only hides the name here, until its next generation is
    /// sealed; that of a flat one on all nodes.
    pub fn unlink(self: &Arc<Self>, caller: Caller, parent: u64, name: &[u8], done: Done<()>) {
        let done = self.after_loose(caller, &[(parent, name)], |fs, ()| fs.changed(), done);
        self.unlink_as(caller, (parent, name.to_vec()), true, done);
    }

    fn unlink_as(self: &Arc<Self>, caller: Caller, at: (u64, Vec<u8>), everywhere: bool, done: Done<()>) {
        let (fs, again) = (Arc::clone(self), at.clone());
        let finish = move |gone: Result<Gone, Errno>| match gone {
            Ok(Gone::Here(None)) => done(Ok(())),
            Ok(Gone::Here(Some(dataset))) => fs.tidy_flat(&dataset, caller, done),
            Ok(Gone::Everywhere(op, dataset)) => {
                let after = Arc::clone(&fs);
                let answer = move |outcome| match outcome {
                    Ok(()) => after.tidy_flat(&dataset, caller, done),
                    // On some node it is another file by now: then as in any other dataset.
                    Err(Errno(libc::EBUSY | libc::ENOENT | libc::ENOTDIR)) => {
                        after.unlink_as(caller, again, false, done);
                    }
                    Err(error) => done(Err(error)),
                };
                fs.ask_directory(op, caller, Box::new(answer));
            }
            Err(error) => done(Err(error)),
        };
        let step = move |fs: &Self, world: &World| fs.unlink_found(world, caller, (at.0, &at.1), everywhere);
        self.attempt(caller, step, Box::new(finish));
    }

    fn unlink_found(
        &self,
        world: &World,
        caller: Caller,
        (parent, name): (u64, &[u8]),
        everywhere: bool,
    ) -> Result<Gone, Stop> {
        if everywhere
            && self.intents.asked_before(caller.unique)
            && let Some((op, dataset)) = self.unlink_asked(parent, name)
        {
            return Ok(Gone::Everywhere(op, dataset));
        }
        let spot = self.spot(world, parent, name)?;
        let dataset = spot.dataset().map(<[u8]>::to_vec);
        if everywhere && let Some(op) = self.unlink_everywhere(world, &spot)? {
            return Ok(Gone::Everywhere(op, dataset.unwrap_or_default()));
        }
        self.unlink_now(world, caller, spot.parent, &spot.name)?;
        Ok(Gone::Here(dataset))
    }

    fn unlink_now(&self, world: &World, caller: Caller, parent: u64, name: &[u8]) -> Result<(), Stop> {
        let _change = self.table.change(parent);
        let (path, place) = self.may_change(world, parent, name)?;
        if let Some(sealed) = world.sealed(&place) {
            if self.intents.will_hide(caller.unique, sealed, &place) {
                return Ok(());
            }
            let inner = place.inner();
            if place.is_marker() {
                if !sealed.shows_marker() {
                    return fail(libc::ENOENT);
                }
                // Its file is no data, so it goes; where none was written there is nothing to
                // remove.
                if let Ok(dir) = self.table.get(parent)?.fd() {
                    self.trees.as_owner(&dir, || super::create::remove_stale_marker(&dir, name))?;
                }
                self.intents.hide(sealed, inner);
            } else {
                let entry = sealed.entry(&inner).ok_or(Errno(libc::ENOENT))?;
                if Kind::of_entry(entry) == Kind::Directory {
                    return fail(libc::EISDIR);
                }
                self.removes(sealed, &inner)?;
                self.keep_hidden(sealed, &path);
            }
        } else if let Some(open) = world.open(&place).filter(|_| !place.is_marker()) {
            self.unlink_open(world, open, (&path, &place), caller)?;
        } else {
            let dir = self.directory_of(parent, name)?;
            if !self.intents.will_remove(caller.unique, &dir, name)? {
                rustix::fs::unlinkat(&dir, name, AtFlags::empty())?;
                effect()?;
            }
        }
        tracing::trace!(%path, "unlinked");
        self.table.cut(parent, name);
        Ok(())
    }

    /// rmdir(2) of plain scratch.
    pub(crate) fn rmdir_local(&self, caller: Caller, parent: u64, name: &[u8]) -> Result<(), Errno> {
        let dir = self.table.get(parent)?.fd()?;
        if !self.intents.will_remove(caller.unique, &dir, name)? {
            rustix::fs::unlinkat(&dir, name, AtFlags::REMOVEDIR)?;
            effect()?;
        }
        self.table.cut(parent, name);
        Ok(())
    }
}

//! unlink(2); the local half of rmdir(2).

use std::sync::Arc;

use rustix::fs::AtFlags;

use super::FileSystem;
use super::attr::Kind;
use super::create::effect;
use super::errno::{Stop, fail};
use super::names::inner_of;
use super::wait::Done;
use super::world::World;
use crate::daemon::boundary::{Caller, Errno};

impl FileSystem {
    /// unlink(2). In a sealed dataset it only hides the name here, until its next generation is sealed.
    pub fn unlink(self: &Arc<Self>, caller: Caller, parent: u64, name: &[u8], done: Done<()>) {
        let name = name.to_vec();
        self.attempt(caller, move |fs, world| fs.unlink_now(world, caller, parent, &name), done);
    }

    fn unlink_now(&self, world: &World, caller: Caller, parent: u64, name: &[u8]) -> Result<(), Stop> {
        let _change = self.gates.change(parent);
        let (path, place) = self.may_change(world, parent, name)?;
        if let Some(sealed) = world.sealed(&place) {
            if self.will_hide(caller.unique, sealed, &place) {
                return Ok(());
            }
            let inner = inner_of(&place);
            if place.is_marker() {
                if !sealed.shows_marker() {
                    return fail(libc::ENOENT);
                }
                // Its file is no data, so it goes; where none was written there is nothing to remove.
                if let Ok(dir) = self.table.get(parent)?.fd() {
                    self.as_owner(&dir, || super::create::remove_stale_marker(&dir, name))?;
                }
                self.hide(sealed, inner);
            } else {
                let entry = sealed.entry(&inner).ok_or(Errno(libc::ENOENT))?;
                if Kind::of_entry(entry) == Kind::Directory {
                    return fail(libc::EISDIR);
                }
                self.removes(sealed, &inner)?;
            }
        } else if let Some(open) = world.open(&place).filter(|_| !place.is_marker()) {
            self.unlink_open(open, (&path, &place), caller.unique)?;
        } else {
            let dir = self.table.get(parent)?.fd()?;
            if !self.will_remove(caller.unique, &dir, name)? {
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
        if !self.will_remove(caller.unique, &dir, name)? {
            rustix::fs::unlinkat(&dir, name, AtFlags::REMOVEDIR)?;
            effect()?;
        }
        self.table.cut(parent, name);
        Ok(())
    }
}

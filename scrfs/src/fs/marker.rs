//! When the marker is set (DESIGN 4.5).
//!
//! `touch` and shells close a descriptor of the marker while another one of it is open, and only the last close can
//! report an error; a process that dies by a signal closes all it has. So: at a close of a writable handle by a
//! process that has no other descriptor of it and is not dying by a signal.

use std::sync::Arc;

use super::FileSystem;
use super::caller::{dying_by_signal, has_descriptor};
use super::place::Place;
use super::wait::Done;
use crate::daemon::boundary::{Caller, Errno};

impl FileSystem {
    /// A descriptor of a writable handle of the marker at `place` was closed.
    pub(crate) fn marker_closed(&self, place: &Place, nodeid: u64, caller: Caller, done: Done<()>) {
        let Some(dataset) = place.dataset() else { return done(Ok(())) };
        if has_descriptor(caller, nodeid) || dying_by_signal(caller) {
            return done(Ok(()));
        }
        self.set_marker(dataset, caller, done);
    }

    /// The marker of `dataset` was set: `done` learns whether the dataset was sealed.
    pub(crate) fn set_marker(&self, dataset: &[u8], caller: Caller, done: Done<()>) {
        match self.requests() {
            Ok(requests) => Arc::clone(requests).marker(dataset, caller, done),
            Err(_) => done(Err(Errno(libc::EIO))),
        }
    }

    /// A writable handle of `inode` is gone: who waits for its dataset to be quiet looks again.
    pub(crate) fn tell_released(&self, inode: u64) {
        let Some((_, Place::Inside { dataset, .. })) = self.place_of(inode) else { return };
        let wakes: Vec<_> = {
            let wakes = self.wakes.lock();
            wakes.iter().filter(|(name, _)| *name == dataset).map(|(_, wake)| Arc::clone(wake)).collect()
        };
        for wake in wakes {
            wake();
        }
    }
}

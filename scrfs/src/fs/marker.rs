//! When the marker is set (`scrfs/docs/semantics.md`, The marker).
//!
//! `touch` and shells close a descriptor of the marker while another one of it is open, and only
//! the last close can report an error; a process that dies by a signal closes all it has. So: at a
//! close of a writable handle by a process that has no other such descriptor and is not dying by a
//! signal. A marker that is data (`SCRFS_MARKER`) must be whole: there no other process may have it
//! open for writing either. Its own handle, whose close waits, is no writer that the seal would
//! wait for.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::FileSystem;
use super::caller::dying_by_signal;
use super::files::Handle;
use super::view::Place;
use super::wait::Done;
use crate::boundary::Marking;
use crate::caller::Caller;
use crate::errno::Errno;
use crate::path::RelPath;

impl FileSystem {
    /// A descriptor of a writable handle of the marker at `place` was closed.
    pub(crate) fn marker_closed(&self, place: &Place, handle: &Arc<Handle>, caller: Caller, done: Done<()>) {
        let Place::Inside { dataset, inner } = place else { return done(Ok(())) };
        let inode = handle.inode.id;
        let sought = self.processes.sought(inode, inner.as_bytes());
        if sought.is_written_by(caller) || dying_by_signal(caller) {
            return done(Ok(()));
        }
        if place.is_marker() {
            return self.set_marker(dataset, Marking::default(), caller, done);
        }
        if sought.is_written_by_others(caller) {
            return done(Ok(()));
        }
        handle.marking.fetch_add(1, Ordering::AcqRel);
        // A seal may wait for this very handle by now.
        self.tell_released(inode);
        let closing = Arc::clone(handle);
        let answer = move |outcome| {
            closing.marking.fetch_sub(1, Ordering::AcqRel);
            done(outcome);
        };
        self.set_marker(dataset, Marking::default(), caller, Box::new(answer));
    }

    /// The marker of `dataset` was set: `done` learns whether the dataset was sealed.
    pub(crate) fn set_marker(&self, dataset: &[u8], marking: Marking, caller: Caller, done: Done<()>) {
        match self.node.get() {
            Ok(requests) => requests.marker(dataset, marking, caller, done),
            Err(_) => done(Err(Errno(libc::EIO))),
        }
    }

    /// The marker of `dataset` was set by rename(2) or link(2). The name has changed, so the
    /// program's call succeeds whatever becomes of the seal; `done` learns when the call may
    /// return.
    pub(crate) fn set_marker_by_name(
        self: &Arc<Self>,
        dataset: &[u8],
        marking: Marking,
        caller: Caller,
        done: Box<dyn FnOnce(()) + Send>,
    ) {
        let (fs, shown) = (Arc::clone(self), String::from_utf8_lossy(dataset).into_owned());
        let answer = move |sealed: Result<(), Errno>| {
            if let Err(Errno(errno)) = sealed {
                let reason = std::io::Error::from_raw_os_error(errno);
                fs.node.note(format!(
                    "{shown}: its marker was set by rename or link, and the dataset is not sealed ({reason}): close .complete to try again"
                ));
            }
            done(());
        };
        self.set_marker(dataset, marking, caller, Box::new(answer));
    }

    /// A directory has got the name `to`: is that a marker?
    pub(crate) fn renamed_to(
        self: &Arc<Self>,
        to: &RelPath,
        caller: Caller,
        done: Box<dyn FnOnce(()) + Send>,
    ) {
        match self.view.place(to) {
            Place::Entry(dataset) if self.view.rules().commits(&dataset) => {
                let marking = Marking { holds_directory: true, everywhere: true };
                self.set_marker_by_name(&dataset, marking, caller, done);
            }
            _ => done(()),
        }
    }

    /// A writable handle of `inode` is gone: who waits for its dataset to be quiet looks again.
    pub(crate) fn tell_released(&self, inode: u64) {
        let dataset = match self.place_of(inode) {
            Some((_, Place::Inside { dataset, .. })) => dataset,
            Some((_, Place::Entry(name))) => {
                if let Ok(requests) = self.node.get() {
                    requests.loose_closed(&name);
                }
                return;
            }
            _ => return,
        };
        self.waits.released(&dataset);
    }
}

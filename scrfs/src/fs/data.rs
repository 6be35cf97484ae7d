//! What is done with open files, where the kernel does not do it alone.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::fs::{FallocateFlags, Mode, OFlags, SeekFrom};

use super::errno::fail;
use super::eyes::{is_directory_handle, opened_eye};
use super::files::{Failing, served, write_all};
use super::view::Place;
use super::wait::Done;
use super::{FileSystem, proc_path};
use crate::caller::Caller;
use crate::errno::Errno;
use crate::keep::decide::{Intent, Now};

/// The marker is no data file.
pub(crate) const MARKER_BYTES_MAX: u64 = 4096;

impl FileSystem {
    /// read(2) of a handle that the daemon serves, up to the length of `buffer`: how many bytes
    /// there are.
    pub fn read(&self, fh: u64, offset: u64, buffer: &mut [u8]) -> Result<usize, Errno> {
        if let Some(eye) = opened_eye(fh) {
            return self.eyes.read(eye, fh, offset, buffer);
        }
        self.files.read(fh, offset, buffer)
    }

    /// write(2) to a handle that the daemon serves. The kernel says where an appending one goes,
    /// and lets no other write of the file come between: one that is sent again goes to the same
    /// place.
    pub fn write(&self, caller: Caller, fh: u64, offset: u64, data: &[u8]) -> Result<usize, Errno> {
        if let Some(eye) = opened_eye(fh) {
            return self.eyes.write(eye, caller, data);
        }
        let handle = self.files.get(fh)?;
        let file = served(&handle)?;
        let end = offset.checked_add(data.len() as u64).ok_or(Errno(libc::EFBIG))?;
        if end > MARKER_BYTES_MAX
            && self.place_of(handle.inode.id).is_some_and(|(_, place)| place.is_marker())
        {
            return fail(libc::EFBIG);
        }
        let written = self.trees.changed_by(caller, file, || write_all(file, offset, data));
        self.files.moved(&handle, Failing::Write, &written);
        written
    }

    /// A descriptor of a handle was closed. For the marker this is the moment.
    pub fn flush(self: &Arc<Self>, caller: Caller, fh: u64, done: Done<()>) {
        let handle = match self.files.get(fh) {
            Ok(handle) => handle,
            Err(_) if opened_eye(fh).is_some() => return done(Ok(())),
            Err(error) => return done(Err(error)),
        };
        let place = self.place_of(handle.inode.id).map(|(_, place)| place);
        match place {
            Some(place) if handle.writable() && self.view.is_mark(&place) => {
                self.marker_closed(&place, &handle, caller, done);
            }
            Some(Place::Entry(name)) if handle.writable() => {
                self.loose_closed(name, handle.inode.id, caller, done);
            }
            // Its dataset was removed, or it alone: nothing was sealed, and nothing will be.
            None if handle.writable() && handle.marks => done(Err(Errno(libc::EIO))),
            _ => done(Ok(())),
        }
    }

    /// The last descriptor of a handle is gone.
    pub fn release(&self, fh: u64) {
        if opened_eye(fh).is_some() {
            return self.eyes.release(fh);
        }
        let Some(closed) = self.files.close(fh) else { return };
        if let (Some(record), Ok(node)) = (closed.record, self.node.get()) {
            node.record(&record);
        }
        if closed.let_go {
            self.table.closed(closed.inode);
        }
        self.table.rest();
        if closed.writable {
            self.tell_released(closed.inode);
        }
    }

    /// fsync(2) and fdatasync(2).
    pub fn fsync(&self, fh: u64, data_only: bool) -> Result<(), Errno> {
        if opened_eye(fh).is_some() {
            return Ok(());
        }
        let side = self.files.side(fh, self.trees.privileged(), OFlags::RDONLY)?;
        let file = side.file()?;
        let synced = if data_only { file.sync_data() } else { file.sync_all() };
        let loses = |error: &io::Error| {
            let of_the_call = [libc::EINVAL, libc::EBADF, libc::EROFS, libc::EINTR];
            error.raw_os_error().is_none_or(|errno| !of_the_call.contains(&errno))
        };
        if synced.as_ref().is_err_and(loses) {
            self.node.get()?.lost_writes(file.as_fd());
        }
        let synced = synced.map(|()| 0);
        self.files.moved(&*self.files.get(fh)?, Failing::Sync, &synced);
        Ok(synced.map(drop)?)
    }

    /// fsync(2) of a directory. One that is only in a catalog is on storage already.
    pub fn fsync_directory(&self, fh: u64, data_only: bool) -> Result<(), Errno> {
        if is_directory_handle(fh) {
            return Ok(());
        }
        let handle = self.files.directory(fh)?;
        let Ok(fd) = handle.inode.fd() else { return Ok(()) };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::open(proc_path(&fd), flags, Mode::empty())?;
        for other in self.other_directories(handle.inode.id) {
            rustix::fs::fsync(other.read_checkpoint(false)?)?;
        }
        Ok(if data_only { rustix::fs::fdatasync(&dir) } else { rustix::fs::fsync(&dir) }?)
    }

    /// fallocate(2).
    pub fn fallocate(
        &self,
        caller: Caller,
        fh: u64,
        offset: u64,
        length: u64,
        mode: i32,
    ) -> Result<(), Errno> {
        let mode = FallocateFlags::from_bits_retain(mode.cast_unsigned());
        let side = self.files.side(fh, self.trees.privileged(), OFlags::RDWR)?;
        let file = side.file()?;
        let change = || Ok(rustix::fs::fallocate(file, mode, offset, length)?);
        if mode.intersects(FallocateFlags::COLLAPSE_RANGE | FallocateFlags::INSERT_RANGE) {
            let size = file.metadata()?.len();
            if self.intents.had_effect(caller.unique, || Ok(Now { size, ..Now::default() }))? {
                return Ok(());
            }
            self.intents.begin(caller.unique, Intent::Resize { before: size });
        }
        let changed = self.trees.changed_by(caller, file, change).map(|()| 0);
        self.files.moved(&*self.files.get(fh)?, Failing::Allocate, &changed);
        changed.map(drop)
    }

    /// lseek(2) with SEEK_DATA or SEEK_HOLE; the kernel does the others.
    pub fn seek(&self, fh: u64, offset: i64, whence: i32) -> Result<i64, Errno> {
        let at = u64::try_from(offset).map_err(|_| Errno(libc::ENXIO))?;
        let to = match whence {
            libc::SEEK_DATA => SeekFrom::Data(at),
            libc::SEEK_HOLE => SeekFrom::Hole(at),
            libc::SEEK_SET => SeekFrom::Start(at),
            libc::SEEK_END => SeekFrom::End(offset),
            _ => return fail(libc::EINVAL),
        };
        // The position that this moves is nobody's: reads and writes carry their own.
        let file = self.files.side(fh, self.trees.privileged(), OFlags::RDONLY)?;
        let found = rustix::fs::seek(file.file()?.as_fd(), to)?;
        i64::try_from(found).map_err(|_| Errno(libc::EOVERFLOW))
    }

    /// copy_file_range(2) between two handles.
    pub fn copy_range(
        &self,
        caller: Caller,
        from: (u64, u64),
        to: (u64, u64),
        length: u64,
    ) -> Result<usize, Errno> {
        let source = self.files.side(from.0, self.trees.privileged(), OFlags::RDONLY)?;
        let target = self.files.side(to.0, self.trees.privileged(), OFlags::RDWR)?;
        let (mut from_at, mut to_at) = (from.1, to.1);
        // One reply carries 32 bits.
        let length = usize::try_from(length.min(1 << 30)).unwrap_or(1 << 30);
        let (from, to) = (source.file()?, target.file()?);
        self.trees.changed_by(caller, to, || {
            Ok(rustix::fs::copy_file_range(from, Some(&mut from_at), to, Some(&mut to_at), length)?)
        })
    }
}

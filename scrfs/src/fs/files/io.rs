//! How the daemon reads and writes for open files.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use rustix::fs::{Mode, OFlags};

use super::handles::Handle;
use super::meter::Failing;
use super::open_files::OpenFiles;
use crate::errno::Errno;
use crate::fs::bound::Bound;
use crate::fs::errno::fail;
use crate::fs::eyes::opened_eye;
use crate::fs::proc_path;

impl OpenFiles {
    /// read(2) of a handle that the daemon serves, up to the length of `buffer`: how many bytes
    /// there are.
    pub(crate) fn read(&self, fh: u64, offset: u64, buffer: &mut [u8]) -> Result<usize, Errno> {
        let handle = self.get(fh)?;
        let filled = read_all(served(&handle)?, offset, buffer);
        self.moved(&handle, Failing::Read, &filled);
        filled
    }

    /// The daemon has done this for a program, or could not.
    pub(crate) fn moved<E>(&self, handle: &Handle, what: Failing, outcome: &Result<usize, E>) {
        self.meters.moved(handle, what, outcome);
    }

    /// The daemon's descriptor for a handle.
    pub(crate) fn side(&self, fh: u64, privileged: bool, access: OFlags) -> Result<Side, Errno> {
        if opened_eye(fh).is_some() {
            return fail(libc::EOPNOTSUPP);
        }
        let handle = self.get(fh)?;
        if handle.file.is_some() {
            return Ok(Side::Handle(handle));
        }
        Ok(Side::Side(side_file(&handle, access, privileged, self.bound)?))
    }
}

/// A descriptor to copy from or to.
pub(crate) enum Side {
    Handle(Arc<Handle>),
    Side(Arc<File>),
}

impl Side {
    pub(crate) fn file(&self) -> Result<&File, Errno> {
        match self {
            Self::Handle(handle) => served(handle),
            Self::Side(file) => Ok(file),
        }
    }
}

fn read_all(file: &File, offset: u64, buffer: &mut [u8]) -> Result<usize, Errno> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read_at(&mut buffer[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) if filled > 0 => break,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(filled)
}

pub(crate) fn write_all(file: &File, offset: u64, data: &[u8]) -> Result<usize, Errno> {
    let mut written = 0;
    while written < data.len() {
        match file.write_at(&data[written..], offset + written as u64) {
            Ok(0) => break,
            Ok(n) => written += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) if written > 0 => break,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(written)
}

pub(crate) fn served(handle: &Handle) -> Result<&File, Errno> {
    handle.file.as_ref().ok_or(Errno(libc::EBADF))
}

/// The daemon's own descriptor of a passthrough handle, opened when it is first needed. It is
/// opened for writing only when the handle is, so it never outlasts the right to write, nor counts
/// as a writer that is not there.
fn side_file(handle: &Handle, access: OFlags, privileged: bool, bound: Bound) -> Result<Arc<File>, Errno> {
    let writes = access == OFlags::RDWR;
    if writes && !handle.writable() {
        return fail(libc::EBADF);
    }
    let mut side = handle.side.lock();
    if let Some(file) = &*side {
        return Ok(Arc::clone(file));
    }
    let access = if handle.writable() { OFlags::RDWR } else { OFlags::RDONLY };
    // Where the program's own reads leave no access time, ours for it leave none.
    let quiet = own_flags(handle.flags, privileged) & OFlags::NOATIME;
    let flags = access | quiet | OFlags::CLOEXEC;
    let fd = rustix::fs::open(proc_path(&handle.inode.fd()?), flags, Mode::empty())?;
    let file = Arc::new(File::from(fd));
    // Only for this once, where many are open.
    if bound.admits(&*file) {
        *side = Some(Arc::clone(&file));
    }
    Ok(file)
}

/// Flags for the daemon's own descriptor of a handle: what the kernel does itself is left out (it
/// has found the end that an append goes to, and RWF_NOAPPEND means another place), and O_DIRECT,
/// for which our buffers are not aligned.
pub(crate) fn own_flags(flags: i32, privileged: bool) -> OFlags {
    let mut out = libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW | libc::O_NOCTTY | libc::O_DIRECT;
    out |= libc::O_APPEND | libc::O_ASYNC;
    if !privileged {
        out |= libc::O_NOATIME;
    }
    OFlags::from_bits_retain((flags & !out).cast_unsigned()) | OFlags::CLOEXEC
}

//! The kernel's numbers for backing files. One per inode while any handle is open, as the kernel
//! demands, and kept in the state memory: a successor must name the same number for as long as a
//! program has a predecessor's handle open.
#![expect(unsafe_code, reason = "fuser's types for these numbers end with the process; ioctl gives them up")]

use std::any::Any;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::Duration;

use fuser::{BackingId, FileAttr, FileHandle, FopenFlags, Generation, ReplyCreate, ReplyOpen};

use crate::fs::{Handle, Registered};
use crate::keep::Keep;

/// An inode's place for its registration.
type Slot = Option<Weak<dyn Any + Send + Sync>>;

nix::ioctl_write_ptr!(backing_close, 229, 2, u32);

/// A number, given up when the last handle that uses it is released.
#[derive(Debug)]
pub(super) struct Registration {
    id: u32,
    record: Option<u32>,
    device: Arc<OwnedFd>,
    keep: Arc<Keep>,
}

impl Drop for Registration {
    fn drop(&mut self) {
        let _ = crate::faults::hit("passthrough.unused");
        // First of all nobody may use it any more.
        if let Some(record) = self.record {
            self.keep.clear_registration(record, self.id);
        }
        // SAFETY: the ioctl reads four bytes at the pointer, which is a reference to as many.
        let closed = unsafe { backing_close(self.device.as_raw_fd(), &raw const self.id) };
        if let Err(error) = closed {
            tracing::debug!(id = self.id, %error, "a backing file cannot be given up");
        }
    }
}

/// Makes and finds them.
#[derive(Debug)]
pub(super) struct Registrations {
    device: Arc<OwnedFd>,
    keep: Arc<Keep>,
}

impl Registrations {
    pub(super) fn new(device: Arc<OwnedFd>, keep: Arc<Keep>) -> Self {
        Self { device, keep }
    }

    /// The number of a handle's inode.
    pub(super) fn of(&self, handle: &Handle) -> io::Result<Arc<Registration>> {
        let mut slot = handle.inode.passthrough.lock();
        let id = if let Some(id) = current(&slot) {
            id
        } else {
            let fd = handle.inode.fd().map_err(|e| io::Error::from_raw_os_error(e.0))?;
            let id = BackingId::create_raw(self.device.as_fd(), fd.as_fd())?;
            self.enter(&mut slot, handle, id)
        };
        *handle.registration.lock() = Some(Arc::clone(&id) as _);
        Ok(id)
    }

    fn enter(&self, slot: &mut Slot, handle: &Handle, id: u32) -> Arc<Registration> {
        let record = handle.inode.record;
        if let Some(record) = record {
            self.keep.set_registration(record, id);
        }
        let (device, keep) = (Arc::clone(&self.device), Arc::clone(&self.keep));
        let id = Arc::new(Registration { id, record, device, keep });
        let any: Arc<dyn Any + Send + Sync> = Arc::clone(&id) as _;
        *slot = Some(Arc::downgrade(&any));
        id
    }

    /// Handles that a predecessor opened go on with its numbers.
    pub(super) fn take_in(&self, kept: Vec<Registered>) {
        for Registered { handle, id } in kept {
            let mut slot = handle.inode.passthrough.lock();
            let id = current(&slot).unwrap_or_else(|| self.enter(&mut slot, &handle, id));
            *handle.registration.lock() = Some(id as _);
        }
    }
}

fn current(slot: &Slot) -> Option<Arc<Registration>> {
    slot.as_ref().and_then(Weak::upgrade).and_then(|any| any.downcast().ok())
}

pub(super) fn opened(reply: ReplyOpen, fh: FileHandle, flags: FopenFlags, id: &Registration) {
    // SAFETY: `id` is open on this connection, and is not given up while it is borrowed.
    let borrowed = unsafe { reply.wrap_backing(id.id) };
    reply.opened_passthrough(fh, flags, &borrowed);
    // It stays `id`'s.
    let _ = borrowed.into_raw();
}

pub(super) fn created(
    reply: ReplyCreate,
    (ttl, attr): (&Duration, &FileAttr),
    fh: FileHandle,
    flags: FopenFlags,
    id: &Registration,
) {
    // SAFETY: as in `opened`.
    let borrowed = unsafe { reply.wrap_backing(id.id) };
    reply.created_passthrough(ttl, attr, Generation(0), fh, flags, &borrowed);
    let _ = borrowed.into_raw();
}

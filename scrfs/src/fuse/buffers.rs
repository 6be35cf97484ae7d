//! Session threads' buffers, whose pages are there before the first request is.
//!
//! The kernel copies a request into a buffer while a thread reads the connection. If the thread is
//! killed meanwhile, and the page that comes next has never been touched, the kernel cannot make it
//! any more, and ends the request with EIO: its program would notice that a worker died. fuser
//! makes its buffers itself, each of them a large piece of zeros, so it is the allocator that sees
//! to it.
#![expect(unsafe_code, reason = "an allocator")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Nothing else in a worker asks for so much at once: fuser's largest request.
const BUFFER_BYTES_MIN: usize = 16 << 20;
/// The smallest page there is.
const PAGE_BYTES: usize = 4096;

static TOUCHED: AtomicUsize = AtomicUsize::new(0);

/// Buffers that are made from now on have their first `bytes`.
pub(super) fn have(bytes: usize) {
    TOUCHED.store(bytes.min(BUFFER_BYTES_MIN), Ordering::Relaxed);
}

/// The system's allocator, with that.
#[derive(Debug)]
pub struct Allocator;

// SAFETY: what the system's allocator gives is passed on; bytes of a new allocation are written
// within its layout.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        let made = unsafe { System.alloc_zeroed(layout) };
        if layout.size() >= BUFFER_BYTES_MIN && !made.is_null() {
            for offset in (0..TOUCHED.load(Ordering::Relaxed)).step_by(PAGE_BYTES) {
                // SAFETY: within the allocation, which nobody else knows yet; it stays zero.
                unsafe { made.add(offset).write_volatile(0) };
            }
        }
        made
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's promise.
        unsafe { System.realloc(at, layout, size) }
    }
}

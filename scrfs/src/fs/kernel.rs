//! What the kernel does for this mount, as the adapter has found out.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::view::LOCAL;
use crate::lock::RwLock;

/// How file data is served, and why so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataMode {
    /// The kernel serves reads and writes itself.
    pub passthrough: bool,
    /// For people.
    pub reason: String,
}

/// See the module.
pub(crate) struct Kernel {
    passthrough: AtomicBool,
    /// For people: why the mode is this one.
    reason: RwLock<String>,
    /// Makes the kernel forget all names.
    forget: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl Default for Kernel {
    fn default() -> Self {
        let reason = RwLock::leaf("not mounted yet".into());
        Self { passthrough: AtomicBool::new(false), reason, forget: OnceLock::new() }
    }
}

impl Kernel {
    pub(crate) fn set_mode(&self, mode: DataMode) {
        self.passthrough.store(mode.passthrough, Ordering::Release);
        *self.reason.write() = mode.reason;
    }

    /// The kernel serves the data of files that are opened from now on.
    pub(crate) fn serves_data(&self) -> bool {
        self.passthrough.load(Ordering::Acquire)
    }

    pub(crate) fn mode(&self) -> DataMode {
        DataMode { passthrough: self.serves_data(), reason: self.reason.read().clone() }
    }

    /// From now on the kernel may remember names that other nodes change.
    pub(crate) fn forgets_names_by(&self, forget: impl Fn() + Send + Sync + 'static) {
        let _ = self.forget.set(Box::new(forget));
    }

    /// Has forgotten all names when this returns.
    pub(crate) fn forget_names(&self) {
        if let Some(forget) = self.forget.get() {
            forget();
        }
    }

    /// How long it may keep a name that other nodes change: not at all, unless it can be told of
    /// each change.
    pub(crate) fn shared_ttl(&self) -> Duration {
        if self.forget.get().is_some() { LOCAL } else { Duration::ZERO }
    }
}

//! How a job ends: what is saved, for how long, and how the program is asked to end.

use std::time::Duration;

use super::{ConfigError, Layers, defs, value};

/// See the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ending {
    /// `SCRFS_END_GRACE`: for bringing the newest protected dataset to the PFS; zero: it is not brought there.
    pub grace: Duration,
    /// `SCRFS_HALT_SIGNAL`, one of [`defs::SIGNALS`].
    pub signal: &'static str,
    /// `SCRFS_HALT_GRACE`: for the program to end by itself.
    pub halt_grace: Duration,
    /// `SCRFS_KEEP_UNSEALED`: a restart moves aside what it would remove.
    pub keep_unsealed: bool,
}

impl Ending {
    /// Seconds that stopping the program and saving may take of the allocation; 0: nothing is saved.
    pub(super) fn reserve(&self) -> u64 {
        if self.grace.is_zero() { 0 } else { (self.grace + self.halt_grace).as_secs().max(1) }
    }
}

impl Layers {
    pub(super) fn ending(&self) -> Result<Ending, ConfigError> {
        let signal = self.read("SCRFS_HALT_SIGNAL", |text, _| value::word(text, defs::SIGNALS))?;
        Ok(Ending {
            grace: self.time("SCRFS_END_GRACE")?,
            signal: signal.unwrap_or(defs::SIGNALS[0]),
            halt_grace: self.time("SCRFS_HALT_GRACE")?,
            keep_unsealed: self.boolean("SCRFS_KEEP_UNSEALED")?,
        })
    }
}

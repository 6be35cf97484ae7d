//! When a program is ended because it hangs, and when it is started again.

use std::time::Duration;

use super::{ConfigError, Layers, value};

/// Seconds: a launcher that starts one program after another needs some between two of them.
const LAUNCHER_TIMEOUT_MIN: u64 = 4;

/// See the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Relaunch {
    /// `SCR_RUNS`; `None`: until two runs in a row protect nothing new.
    pub runs: Option<u32>,
    /// `SCR_MIN_NODES`; `None`: as many as the last run used.
    pub min_nodes: Option<u32>,
    /// `SCRFS_LAUNCHER_TIMEOUT`; zero: launchers are waited for.
    pub launcher_timeout: Duration,
    /// `SCR_WATCHDOG_TIMEOUT`; zero: a program may take as long as it likes from one dataset to the
    /// next.
    pub watchdog_timeout: Duration,
}

impl Layers {
    pub(super) fn relaunch(&self) -> Result<Relaunch, ConfigError> {
        let of_launcher = |text: &str, _| value::zero_or_from(text, LAUNCHER_TIMEOUT_MIN);
        Ok(Relaunch {
            runs: self.small("SCR_RUNS")?,
            min_nodes: self.small("SCR_MIN_NODES")?,
            launcher_timeout: self.read("SCRFS_LAUNCHER_TIMEOUT", of_launcher)?.unwrap_or_default(),
            watchdog_timeout: Duration::from_secs(self.count("SCR_WATCHDOG_TIMEOUT")?.unwrap_or_default()),
        })
    }
}

//! From where a restart takes its dataset, and when programs may start.

use super::{ConfigError, Layers, defs, value};
use crate::control::RestartRules;

/// See the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "parameters, each of its own")]
pub struct Restarting {
    /// `SCR_DISTRIBUTE`: from the caches.
    pub distribute: bool,
    /// `SCR_FETCH`: from the prefix.
    pub fetch: bool,
    /// `SCRFS_KEEP_UNSEALED`: it moves aside what it would remove.
    pub keep_unsealed: bool,
    /// `SCRFS_RESTART`: programs start before lost members are rebuilt.
    pub lazy: bool,
}

impl Restarting {
    /// As daemons are told.
    pub(super) fn rules(self) -> RestartRules {
        let Self { keep_unsealed, lazy, .. } = self;
        RestartRules { keep_unsealed, lazy, ..RestartRules::default() }
    }
}

impl Layers {
    pub(super) fn restarting(&self) -> Result<Restarting, ConfigError> {
        let way = self.read("SCRFS_RESTART", |text, _| value::word(text, defs::RESTARTS))?;
        Ok(Restarting {
            distribute: self.boolean("SCR_DISTRIBUTE")?,
            fetch: self.boolean("SCR_FETCH")?,
            keep_unsealed: self.boolean("SCRFS_KEEP_UNSEALED")?,
            lazy: way == Some("lazy"),
        })
    }
}

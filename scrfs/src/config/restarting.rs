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
    /// `SCRFS_FETCH`, or `SCRFS_RESTART`: they start before what only the prefix has is fetched.
    pub lazy_fetch: bool,
}

impl Restarting {
    /// As daemons are told.
    pub(super) fn rules(self) -> RestartRules {
        let Self { keep_unsealed, lazy, lazy_fetch, .. } = self;
        RestartRules { keep_unsealed, lazy, lazy_fetch, ..RestartRules::default() }
    }
}

impl Layers {
    pub(super) fn restarting(&self) -> Result<Restarting, ConfigError> {
        let is_lazy = |name| {
            let way = self.read(name, |text, _| value::word(text, defs::RESTARTS))?;
            Ok::<_, ConfigError>(way == Some("lazy"))
        };
        let (lazy, lazy_fetch) = (is_lazy("SCRFS_RESTART")?, is_lazy("SCRFS_FETCH")?);
        Ok(Restarting {
            distribute: self.boolean("SCR_DISTRIBUTE")?,
            fetch: self.boolean("SCR_FETCH")?,
            keep_unsealed: self.boolean("SCRFS_KEEP_UNSEALED")?,
            lazy,
            lazy_fetch: lazy || lazy_fetch,
        })
    }
}

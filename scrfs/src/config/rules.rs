//! The rules by which datasets are marked, pointer files told, and data encoded.

use super::{ConfigError, Layers, defs, value};
use crate::control::{JobRules, LooseRules, MarkerScope, SealRules};
use crate::pattern::NamePattern;

impl Layers {
    pub(super) fn sealing(&self) -> Result<SealRules, ConfigError> {
        let word = |name, words| self.read(name, |text, _| value::word(text, words));
        let all = word("SCRFS_MARKER_SCOPE", defs::SCOPES)? == Some("all");
        Ok(SealRules {
            markers: self.read("SCRFS_MARKER", |text, _| value::markers(text))?.unwrap_or_default(),
            scope: if all { MarkerScope::All } else { MarkerScope::Any },
            background: word("SCRFS_SEAL", defs::SEALS)? == Some("background"),
            commit_on_rename: self.pattern("SCRFS_COMMIT_ON_RENAME", NamePattern::new)?,
            program_hosts: Vec::new(),
        })
    }

    pub(super) fn loose(&self) -> Result<LooseRules, ConfigError> {
        Ok(LooseRules {
            pattern: self.pattern("SCRFS_DATASET_PATTERN", NamePattern::capturing)?,
            max_bytes: self.count("SCRFS_LOOSE_MAX")?.unwrap_or_default(),
            max_names: self.small("SCRFS_LOOSE_FILES")?.unwrap_or_default(),
        })
    }

    pub(super) fn jobs(&self) -> Result<JobRules, ConfigError> {
        Ok(JobRules {
            block_bytes: self.small("SCR_MPI_BUF_SIZE")?.unwrap_or_default(),
            encode_threads: self.small("SCRFS_ENCODE_THREADS")?.unwrap_or_default(),
        })
    }
}

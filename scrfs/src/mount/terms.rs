//! What a mount began with, of the parameters: its supervisor hands that to each worker.
//!
//! A worker reads no settings itself. The files may be others by then, or have a mistake in them:
//! what is written there is for later mounts, and must not end one that lives.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Options;
use crate::dataset::Protections;

/// Of [`Options`] what has no command-line option of its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terms {
    /// As in [`Options`], like all others here.
    pub mode: u32,
    /// Likewise.
    pub operator_group: Option<String>,
    /// Likewise.
    pub protections: Protections,
    /// Likewise.
    pub cache_bytes: u64,
    /// Likewise.
    pub coordinator_wait: Duration,
    /// Likewise.
    pub seal_timeout: Duration,
}

impl Terms {
    /// Those of a mount.
    pub fn of(options: &Options) -> Self {
        Self {
            mode: options.mode,
            operator_group: options.operator_group.clone(),
            protections: options.protections.clone(),
            cache_bytes: options.cache_bytes,
            coordinator_wait: options.coordinator_wait,
            seal_timeout: options.seal_timeout,
        }
    }

    /// As a worker gets them: JSON.
    ///
    /// # Errors
    /// They cannot be written so.
    pub fn text(&self) -> std::io::Result<String> {
        serde_json::to_string(self).map_err(Into::into)
    }

    /// The other end of [`Terms::text`].
    ///
    /// # Errors
    /// What is wrong with the text.
    pub fn parse(text: &str) -> Result<Self, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::stores::tests::options;
    use super::*;
    use crate::dataset::{Protection, Scheme};

    #[test]
    fn a_worker_gets_what_its_supervisor_has() {
        let began = Options {
            mode: 0o750,
            operator_group: Some("ops".into()),
            protections: Protections {
                descriptors: vec![Protection {
                    store: Some(b"/st\xff".to_vec()),
                    ..Protection::by(Scheme::ReedSolomon { failures: 3 })
                }],
                ..Protections::default()
            },
            cache_bytes: 1 << 40,
            coordinator_wait: Duration::from_millis(1500),
            seal_timeout: Duration::from_secs(30),
            ..options(Path::new("/control"), &[])
        };
        let terms = Terms::of(&began);
        assert_eq!(Terms::parse(&terms.text().unwrap()).unwrap(), terms);
        assert!(Terms::parse("{}").is_err());
    }
}

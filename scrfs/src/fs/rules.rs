//! What the job's settings say of names: which mark a dataset, which belong to one.

use crate::control::{LooseRules, Settings};
use crate::pattern::NamePattern;

use super::place::Place;

/// The settings that the mounted tree follows, compiled. The default holds until a coordinator has attached.
#[derive(Debug, Clone, Default)]
#[allow(dead_code, reason = "read where names are looked up")]
pub(crate) struct Rules {
    markers: Vec<Vec<u8>>,
    commit_on_rename: Option<NamePattern>,
    /// `SCRFS_DATASET_PATTERN`.
    pub(crate) dataset_pattern: Option<NamePattern>,
    /// Bounds of pointer files.
    pub(crate) loose: LooseRules,
}

impl Rules {
    /// Compiles what `settings` say. A pattern that is none has no effect; the texts are for the events.
    pub(crate) fn new(settings: &Settings) -> (Self, Vec<String>) {
        let mut problems = Vec::new();
        let mut compiled = |name, text: Option<&String>, compile: fn(&str) -> Result<NamePattern, String>| {
            let text = text?;
            compile(text)
                .map_err(|error| problems.push(format!("{name}={text:?} has no effect: {error}")))
                .ok()
        };
        let rename = settings.sealing.commit_on_rename.as_ref();
        let commit_on_rename = compiled("SCRFS_COMMIT_ON_RENAME", rename, NamePattern::new);
        let dataset_pattern =
            compiled("SCRFS_DATASET_PATTERN", settings.loose.pattern.as_ref(), NamePattern::capturing);
        let rules = Self {
            markers: settings.sealing.markers.clone(),
            commit_on_rename,
            dataset_pattern,
            loose: settings.loose.clone(),
        };
        (rules, problems)
    }

    /// A file there is data, and marks its dataset.
    pub(crate) fn marks(&self, place: &Place) -> bool {
        matches!(place, Place::Inside { inner, .. } if self.markers.iter().any(|name| *name == inner.as_bytes()))
    }

    /// A marker's name deeper in a dataset: an ordinary file that its maker may have meant as a marker.
    pub(crate) fn mistaken(&self, place: &Place) -> bool {
        let Place::Inside { inner, .. } = place else { return false };
        let deeper = inner.split_last().filter(|(dir, _)| !dir.is_root());
        deeper.is_some_and(|(_, name)| self.markers.iter().any(|marker| *marker == name))
    }

    /// A directory that is renamed to this dataset's name is marked by that.
    pub(crate) fn commits(&self, dataset: &[u8]) -> bool {
        self.commit_on_rename.as_ref().is_some_and(|pattern| pattern.matches(dataset))
    }
}

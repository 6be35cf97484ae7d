//! What the job's settings say of names: which mark a dataset, which belong to one.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::control::{LooseRules, Settings};
use crate::path::NAME_BYTES_MAX;
use crate::pattern::NamePattern;

use super::place::{Place, RESERVED_AT_ROOT, RESERVED_IN_DATASET};
use crate::dataset::{INVALID, MARKER};

/// Numbers rules.
static SERIAL: AtomicU64 = AtomicU64::new(1);

/// Why a name that the pattern matches belongs to no dataset.
const UNFIT: &str = "what SCRFS_DATASET_PATTERN captures is no name of a dataset";

/// The settings that the mounted tree follows, compiled. The default holds until a coordinator has
/// attached.
#[derive(Debug, Clone, Default)]
pub(crate) struct Rules {
    /// No other rules have it.
    pub(crate) serial: u64,
    markers: Vec<Vec<u8>>,
    commit_on_rename: Option<NamePattern>,
    /// `SCRFS_DATASET_PATTERN`.
    pub(crate) dataset_pattern: Option<NamePattern>,
    loose: LooseRules,
}

/// A name of the checkpoint path that is one of a dataset's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FlatName<'name> {
    pub(crate) dataset: &'name [u8],
    /// In the dataset's directory.
    pub(crate) inner: &'name [u8],
}

impl Rules {
    /// Compiles what `settings` say. A pattern that is none has no effect; the texts are for the
    /// events.
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
            serial: SERIAL.fetch_add(1, Ordering::Relaxed),
            markers: settings.sealing.markers.clone(),
            commit_on_rename,
            dataset_pattern,
            loose: settings.loose.clone(),
        };
        (rules, problems)
    }

    /// The same pattern as that of `other`.
    pub(crate) fn has_pattern_of(&self, other: &Self) -> bool {
        self.loose.pattern == other.loose.pattern
    }

    /// `name`, in the checkpoint path, is a name of a dataset's directory: a file's that the
    /// pattern matches, or that of the marker. `Err`: it matches, and says no dataset.
    pub(crate) fn flat<'name>(&self, name: &'name [u8]) -> Option<Result<FlatName<'name>, &'static str>> {
        let pattern = self.dataset_pattern.as_ref()?;
        for marker in [MARKER, INVALID] {
            let after = name.strip_prefix(marker).and_then(|rest| rest.strip_prefix(b"."));
            if let Some(dataset) = after.filter(|dataset| is_name(dataset)) {
                return Some(Ok(FlatName { dataset, inner: marker }));
            }
        }
        let dataset = pattern.capture(name)?;
        let reserved = [MARKER, INVALID, RESERVED_IN_DATASET, RESERVED_AT_ROOT].contains(&name);
        Some(if is_name(dataset) && !reserved { Ok(FlatName { dataset, inner: name }) } else { Err(UNFIT) })
    }

    /// The pattern says that the file called `name` is of `dataset`.
    pub(crate) fn gives(&self, name: &[u8], dataset: &[u8]) -> bool {
        self.flat(name) == Some(Ok(FlatName { dataset, inner: name }))
    }

    /// A file there is data, and marks its dataset.
    pub(crate) fn marks(&self, place: &Place) -> bool {
        matches!(place, Place::Inside { inner, .. } if self.markers.iter().any(|name| *name == inner.as_bytes()))
    }

    /// A marker's name deeper in a dataset: an ordinary file that its maker may have meant as a
    /// marker.
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

/// A dataset can be called so: names with a dot first are reserved, and its marker's name is longer
/// by ten bytes.
fn is_name(dataset: &[u8]) -> bool {
    !dataset.is_empty() && dataset[0] != b'.' && dataset.len() + MARKER.len() < NAME_BYTES_MAX
}

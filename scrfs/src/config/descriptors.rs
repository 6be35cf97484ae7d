//! SCR's lines for stores and checkpoint descriptors: `STORE=/ssd COUNT=2`,
//! `CKPT=1 INTERVAL=4 STORE=/ssd`.
//!
//! What a checkpoint descriptor does not say is as `SCR_COPY_TYPE`, `SCR_SET_SIZE`,
//! `SCR_SET_FAILURES`, `SCR_HOP_DISTANCE` and `SCR_GROUP` have it. Fields that this version does not follow are
//! told to have no effect.

use std::path::PathBuf;

use super::defs::{FAILURES_MAX, HOP_DISTANCE_MAX, SET_SIZE_MAX};
use super::{ConfigError, Layers, Origin, groups, value};
use crate::dataset::{NODE, Scheme};
use crate::redundancy::FAILURES;

/// The parameter that stands for a file's descriptors.
pub(super) const PARAMETER: &str = "SCRFS_DESCRIPTORS";
/// Begins a descriptor's line, and one of the parameter's.
pub(super) const CHECKPOINT: &str = "CKPT";
/// Begins a store's.
pub(super) const STORE: &str = "STORE";
/// Descriptors at most: each is looked at for each dataset.
const DESCRIPTORS_MAX: usize = 64;
/// Longest interval.
const INTERVAL_MAX: u64 = 1_000_000_000;
/// Largest set with RS: a set has up to twice as many members, and with as many parities as there
/// may be they must be fewer than the field has points.
const RS_SET_SIZE_MAX: u32 = 96;
/// Words of SCR's that this version does not follow.
const NOT_YET: &[&str] = &["OUTPUT", "BYPASS", "COPIES"];

/// How datasets are protected for which no descriptor says that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Usual {
    /// `SCR_COPY_TYPE`.
    pub(super) scheme: Scheme,
    /// `SCR_SET_FAILURES`, whatever the scheme; at most [`FAILURES_MAX`].
    pub(super) failures: u32,
    /// `SCR_SET_SIZE`.
    pub(super) set_size: u32,
    /// `SCR_HOP_DISTANCE`.
    pub(super) hop_distance: u32,
    /// `SCR_GROUP`, in capitals.
    pub(super) group: String,
}

/// Which datasets are whose, how they are protected, and where they go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckpointDescriptor {
    /// It is for checkpoint ids that this divides; at least 1.
    pub interval: u32,
    /// How the members of a set protect one another.
    pub scheme: Scheme,
    /// Members of a set.
    pub set_size: u32,
    /// Distance between neighbours of a set in the order of members.
    pub hop_distance: u32,
    /// Kind of failure groups, of each of which a set has one member at most; in capitals.
    pub group: String,
    /// Where they go; `None`: the store with most room.
    pub store: Option<PathBuf>,
}

/// Descriptors of one source, and what of them has no effect.
#[derive(Debug, Default)]
pub(super) struct Descriptors {
    found: Vec<(String, CheckpointDescriptor)>,
    pub(super) warnings: Vec<String>,
}

impl Descriptors {
    /// Reads the rest of a line that begins with `CKPT=`. A later one of the same name takes its
    /// place.
    fn add(
        &mut self,
        text: &str,
        origin: &Origin,
        stores: &[PathBuf],
        usual: &Usual,
    ) -> Result<(), ConfigError> {
        let wrong = |expected: String| refused(origin, CHECKPOINT, text, expected);
        let mut words = text.split_ascii_whitespace();
        let name = words.next().ok_or_else(|| wrong("expected a number and fields".to_owned()))?;
        // SCR's own are numbers too; a word would be a mistyped field.
        if !name.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(wrong("expected a number before the fields".to_owned()));
        }
        let (mut interval, mut store, mut enabled) = (1, None, true);
        let mut protection = usual.clone();
        for word in words {
            let (field, text) =
                word.split_once('=').ok_or_else(|| wrong(format!("{word:?} is not FIELD=VALUE")))?;
            let wrong = |expected: String| refused(origin, field, text, expected);
            match field {
                "INTERVAL" => interval = value::small(text, 1, INTERVAL_MAX).map_err(wrong)?,
                "STORE" => store = Some(known(text, origin, stores)?),
                "ENABLED" => enabled = value::boolean(text).map_err(wrong)?,
                "TYPE" => protection.scheme = value::scheme(text, FAILURES).map_err(wrong)?,
                "SET_SIZE" => protection.set_size = value::small(text, 1, SET_SIZE_MAX).map_err(wrong)?,
                "SET_FAILURES" => {
                    protection.failures = value::small(text, 1, FAILURES_MAX).map_err(wrong)?;
                }
                "HOP_DISTANCE" => {
                    protection.hop_distance = value::small(text, 1, HOP_DISTANCE_MAX).map_err(wrong)?;
                }
                "GROUP" => protection.group = groups::kind(text).map_err(wrong)?,
                _ => self.unused(&[CHECKPOINT], field, origin),
            }
        }
        let scheme = protection.checked().map_err(wrong)?;
        let Usual { set_size, hop_distance, group, .. } = protection;
        let descriptor = CheckpointDescriptor { interval, scheme, set_size, hop_distance, group, store };
        self.found.retain(|(other, _)| other != name);
        if enabled {
            self.found.push((name.to_owned(), descriptor));
        }
        if self.found.len() > DESCRIPTORS_MAX {
            return Err(wrong(format!("expected at most {DESCRIPTORS_MAX} descriptors")));
        }
        Ok(())
    }

    /// All have been read; the last line is named where they leave checkpoints out.
    fn checked(&self, text: &str, origin: &Origin) -> Result<(), ConfigError> {
        if self.found.is_empty() || self.found.iter().any(|(_, one)| one.interval == 1) {
            return Ok(());
        }
        let expected = "expected a descriptor with INTERVAL=1 among them, for checkpoints whose id no other interval divides";
        Err(refused(origin, CHECKPOINT, text, expected.to_owned()))
    }

    /// Reads the rest of a line that begins with `STORE=`: stores are those of `SCR_CACHE_BASE`.
    pub(super) fn store(&mut self, text: &str, origin: &Origin, stores: &[PathBuf]) {
        let mut words = text.split_ascii_whitespace();
        let name = words.next().unwrap_or_default();
        if !stores.contains(&PathBuf::from(name)) {
            let told = format!("{origin}: STORE={name:?} is not in SCR_CACHE_BASE; it has no effect");
            return self.warnings.push(told);
        }
        for word in words {
            match word.split_once('=') {
                Some(("GROUP", group)) if group.eq_ignore_ascii_case("NODE") => {}
                Some((field, _)) => self.unused(&[STORE, "GROUP", "COUNT", "MKDIR", "TYPE"], field, origin),
                None => self.warnings.push(format!("{origin}: {word:?} is not FIELD=VALUE; ignored")),
            }
        }
    }

    fn unused(&mut self, words: &[&str], field: &str, origin: &Origin) {
        self.warnings.push(if NOT_YET.contains(&field) || words.contains(&field) {
            format!("{origin}: {field} of {} has no effect in this version", words[0])
        } else {
            format!("{origin}: {field} of {} is unknown; ignored", words[0])
        });
    }

    pub(super) fn take(self) -> Vec<CheckpointDescriptor> {
        self.found.into_iter().map(|(_, descriptor)| descriptor).collect()
    }
}

impl Layers {
    /// How datasets are protected for which no descriptor says that.
    pub(super) fn usual(&self) -> Result<Usual, ConfigError> {
        let scheme = self.read("SCR_COPY_TYPE", |text, _| value::scheme(text, FAILURES))?;
        let hop_distance = self.small("SCR_HOP_DISTANCE")?.unwrap_or_default();
        let group = self.read("SCR_GROUP", |text, _| groups::kind(text))?.unwrap_or_else(|| NODE.to_owned());
        let scheme = scheme.unwrap_or(Scheme::Xor);
        let mut usual = Usual { scheme, failures: 1, set_size: 0, hop_distance, group };
        let set_size = self.read("SCR_SET_SIZE", |text, _| {
            let set_size = value::small(text, 1, SET_SIZE_MAX)?;
            Usual { set_size, ..usual.clone() }.checked().map(|_| set_size)
        })?;
        usual.set_size = set_size.unwrap_or_default();
        let failures = self.read("SCR_SET_FAILURES", |text, _| {
            let failures = value::small(text, 1, FAILURES_MAX)?;
            Usual { failures, ..usual.clone() }.checked().map(|_| failures)
        })?;
        usual.failures = failures.unwrap_or(usual.failures);
        Ok(usual)
    }

    /// The descriptors of the strongest source that has any.
    pub(super) fn descriptors(
        &mut self,
        stores: &[PathBuf],
        usual: &Usual,
    ) -> Result<Vec<CheckpointDescriptor>, ConfigError> {
        let mut read = Descriptors::default();
        for (_, rest, origin) in self.lines.values().flatten().filter(|(word, ..)| *word == STORE) {
            read.store(rest, origin, stores);
        }
        let all = self.strongest(CHECKPOINT, PARAMETER)?;
        for (at, one) in all.iter().enumerate() {
            let added = read.add(&one.text, &one.origin, stores, usual);
            let checked = added.and_then(|()| match all.get(at + 1) {
                None => read.checked(&one.text, &one.origin),
                Some(_) => Ok(()),
            });
            checked.map_err(|error| if one.by_parameter { within(&one.text, error) } else { error })?;
        }
        self.warnings.append(&mut read.warnings);
        Ok(read.take())
    }
}

impl Usual {
    /// The scheme, with RS of so many losses.
    pub(super) fn scheme(&self) -> Scheme {
        match self.scheme {
            Scheme::ReedSolomon { .. } => {
                Scheme::ReedSolomon { failures: u8::try_from(self.failures).unwrap_or(u8::MAX) }
            }
            other => other,
        }
    }

    /// The scheme, if sets of this size can have it.
    pub(super) fn checked(&self) -> Result<Scheme, String> {
        let Scheme::ReedSolomon { .. } = self.scheme else { return Ok(self.scheme) };
        if self.set_size > RS_SET_SIZE_MAX {
            return Err(format!(
                "expected a set size of at most {RS_SET_SIZE_MAX} with RS, not {}",
                self.set_size
            ));
        }
        if self.failures >= self.set_size {
            let (failures, size) = (self.failures, self.set_size);
            return Err(format!(
                "expected fewer failures ({failures}) than members of a set ({size}) with RS"
            ));
        }
        Ok(self.scheme())
    }
}

fn known(text: &str, origin: &Origin, stores: &[PathBuf]) -> Result<PathBuf, ConfigError> {
    let path = PathBuf::from(text);
    if stores.contains(&path) {
        return Ok(path);
    }
    Err(refused(origin, STORE, text, format!("expected one of SCR_CACHE_BASE: {}", super::show(stores))))
}

/// An error in descriptor `one` of the parameter, which has no line that could be named.
fn within(one: &str, error: ConfigError) -> ConfigError {
    match error {
        ConfigError::Value { origin, name, text, expected } => {
            refused(&origin, PARAMETER, one, format!("{name}={text:?}: {expected}"))
        }
        other => other,
    }
}

fn refused(origin: &Origin, name: &str, text: &str, expected: String) -> ConfigError {
    ConfigError::Value { origin: origin.clone(), name: name.to_owned(), text: text.to_owned(), expected }
}

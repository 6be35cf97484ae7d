//! SCR's lines for stores and checkpoint descriptors: `STORE=/ssd COUNT=2`, `CKPT=1 INTERVAL=4 STORE=/ssd`.
//!
//! Of a checkpoint descriptor its interval and its store count; what else such a line may say is told to have no effect.

use std::path::PathBuf;

use super::defs::{OTHER_SCHEMES, SCHEMES};
use super::{ConfigError, Layers, Origin};

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
/// Words of SCR's that this version does not follow.
const NOT_YET: &[&str] = &["OUTPUT", "BYPASS", "SET_SIZE", "SET_FAILURES", "HOP_DISTANCE", "COPIES"];

/// Which datasets are whose, and where they go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckpointDescriptor {
    /// It is for checkpoint ids that this divides; at least 1.
    pub interval: u32,
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
    /// Reads the rest of a line that begins with `CKPT=`. A later one of the same name takes its place.
    pub(super) fn add(&mut self, text: &str, origin: &Origin, stores: &[PathBuf]) -> Result<(), ConfigError> {
        let wrong = |expected: String| value(origin, CHECKPOINT, text, expected);
        let mut words = text.split_ascii_whitespace();
        let name = words.next().ok_or_else(|| wrong("expected a number and fields".to_owned()))?;
        // SCR's own are numbers too; a word would be a mistyped field.
        if !name.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(wrong("expected a number before the fields".to_owned()));
        }
        let mut descriptor = CheckpointDescriptor { interval: 1, store: None };
        let mut enabled = true;
        for word in words {
            let (field, text) =
                word.split_once('=').ok_or_else(|| wrong(format!("{word:?} is not FIELD=VALUE")))?;
            match field {
                "INTERVAL" => {
                    let interval = super::value::count(text, 1, INTERVAL_MAX);
                    let interval = interval.map_err(|expected| value(origin, field, text, expected))?;
                    descriptor.interval = u32::try_from(interval).unwrap_or(u32::MAX);
                }
                "STORE" => descriptor.store = Some(known(text, origin, stores)?),
                "ENABLED" => {
                    enabled = super::value::boolean(text).map_err(|e| value(origin, field, text, e))?;
                }
                "TYPE" => self.scheme(text, origin)?,
                "GROUP" if text.eq_ignore_ascii_case("NODE") => {}
                _ => self.unused(&[CHECKPOINT, "GROUP"], field, origin),
            }
        }
        self.found.retain(|(other, _)| other != name);
        if enabled {
            self.found.push((name.to_owned(), descriptor));
        }
        if self.found.len() > DESCRIPTORS_MAX {
            return Err(wrong(format!("expected at most {DESCRIPTORS_MAX} descriptors")));
        }
        Ok(())
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

    /// One scheme holds for all datasets.
    fn scheme(&mut self, text: &str, origin: &Origin) -> Result<(), ConfigError> {
        let words = [SCHEMES, OTHER_SCHEMES].concat();
        if !words.iter().any(|word| word.eq_ignore_ascii_case(text)) {
            let expected = format!("expected one of {}", words.join(", "));
            return Err(value(origin, "TYPE", text, expected));
        }
        self.warnings.push(format!(
            "{origin}: TYPE={text} of a descriptor has no effect in this version: SCR_COPY_TYPE holds for all datasets"
        ));
        Ok(())
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
    /// The descriptors of the strongest source that has any.
    pub(super) fn descriptors(
        &mut self,
        stores: &[PathBuf],
    ) -> Result<Vec<CheckpointDescriptor>, ConfigError> {
        let mut read = Descriptors::default();
        let parameter = self.read(PARAMETER, |text, _| Ok(text.to_owned()))?;
        let at = self.texts.get(PARAMETER).and_then(|layers| layers.first_key_value());
        let at = at.map(|(rank, (_, origin))| (*rank, origin.clone()));
        let ranks = self.lines.iter().filter(|(_, lines)| lines.iter().any(|(word, ..)| *word == CHECKPOINT));
        let lines = ranks.map(|(rank, _)| *rank).min();
        let named = at.filter(|(rank, _)| lines.is_none_or(|lines| *rank <= lines));
        if let (Some(text), Some((_, origin))) = (parameter, &named) {
            for one in text.split(';').map(str::trim).filter(|one| !one.is_empty()) {
                let prefix = format!("{CHECKPOINT}=");
                read.add(one.strip_prefix(&prefix).unwrap_or(one), origin, stores)
                    .map_err(|error| within(one, error))?;
            }
        }
        for (rank, lines_there) in &self.lines {
            for (word, rest, origin) in lines_there {
                if *word == STORE {
                    read.store(rest, origin, stores);
                } else if named.is_none() && Some(*rank) == lines {
                    read.add(rest, origin, stores)?;
                }
            }
        }
        self.warnings.append(&mut read.warnings);
        Ok(read.take())
    }
}

fn known(text: &str, origin: &Origin, stores: &[PathBuf]) -> Result<PathBuf, ConfigError> {
    let path = PathBuf::from(text);
    if stores.contains(&path) {
        return Ok(path);
    }
    Err(value(origin, STORE, text, format!("expected one of SCR_CACHE_BASE: {}", super::show(stores))))
}

/// An error in descriptor `one` of the parameter, which has no line that could be named.
fn within(one: &str, error: ConfigError) -> ConfigError {
    match error {
        ConfigError::Value { origin, name, text, expected } => {
            value(&origin, PARAMETER, one, format!("{name}={text:?}: {expected}"))
        }
        other => other,
    }
}

fn value(origin: &Origin, name: &str, text: &str, expected: String) -> ConfigError {
    ConfigError::Value { origin: origin.clone(), name: name.to_owned(), text: text.to_owned(), expected }
}

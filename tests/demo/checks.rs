//! What the demo compares: checksums of files, and which checkpoints a node calls protected.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// SHA-256 by file name.
pub(crate) type Sums = BTreeMap<String, String>;

/// A sealed checkpoint: the sums of its files, taken where each was written.
#[derive(Debug, Default)]
pub(crate) struct Checkpoint {
    sums: Sums,
    writers: BTreeMap<String, usize>,
}

impl Checkpoint {
    /// Files that `node` has written.
    pub(crate) fn add(&mut self, node: usize, sums: Sums) {
        self.writers.extend(sums.keys().map(|name| (name.clone(), node)));
        self.sums.extend(sums);
    }

    pub(crate) fn files(&self) -> usize {
        self.sums.len()
    }

    pub(crate) fn files_of(&self, node: usize) -> impl Iterator<Item = &str> {
        self.writers.iter().filter(move |(_, writer)| **writer == node).map(|(name, _)| name.as_str())
    }

    /// All files, and no others, with the same bytes.
    pub(crate) fn compare(&self, read: &Sums, what: &str) -> Result<(), String> {
        if read.keys().ne(self.sums.keys()) {
            let names = |sums: &Sums| sums.keys().cloned().collect::<Vec<_>>().join(" ");
            return Err(format!("{what}: has {} instead of {}", names(read), names(&self.sums)));
        }
        self.compare_some(read, what)
    }

    /// These files have the same bytes.
    pub(crate) fn compare_some(&self, read: &Sums, what: &str) -> Result<(), String> {
        match read.iter().find(|(name, sum)| self.sums.get(*name) != Some(sum)) {
            Some((name, _)) => Err(format!("{what}: {name} has other bytes than were written")),
            None => Ok(()),
        }
    }
}

/// Reads what `sha256sum` prints.
pub(crate) fn parse(text: &str) -> Result<Sums, String> {
    let sums: Option<Sums> = text
        .lines()
        .map(|line| line.split_once("  ").map(|(sum, name)| (name.to_owned(), sum.to_owned())))
        .collect();
    sums.filter(|s| !s.is_empty()).ok_or_else(|| format!("sha256sum said {text:?}"))
}

/// Sums of the restart files in a directory of the host.
pub(crate) fn sums_on_host(directory: &Path) -> Result<Sums, String> {
    let output = Command::new("/bin/sh")
        .args(["-c", "sha256sum -- *.restart"])
        .current_dir(directory)
        .output()
        .map_err(|e| format!("{}: {e}", directory.display()))?;
    parse(&String::from_utf8_lossy(&output.stdout)).map_err(|e| format!("{}: {e}", directory.display()))
}

/// A checkpoint that a node's status calls protected.
#[derive(Debug)]
pub(crate) struct Protected {
    pub(crate) id: u64,
    pub(crate) name: String,
    pub(crate) scheme: String,
    pub(crate) bytes: u64,
    pub(crate) hosts: Vec<String>,
    pub(crate) flushed: bool,
}

/// All that are, oldest first.
pub(crate) fn protected(status: &Value) -> Vec<Protected> {
    let all = status["datasets"].as_array().into_iter().flatten();
    let mut found: Vec<Protected> = all
        .filter(|d| matches!(d["state"].as_str(), Some("protected" | "flushing" | "flushed")))
        .filter_map(|d| {
            Some(Protected {
                id: d["id"].as_u64()?,
                name: d["name"].as_str()?.to_owned(),
                scheme: d["scheme"].as_str()?.to_owned(),
                bytes: d["bytes"].as_u64()?,
                hosts: d["hosts"].as_array()?.iter().filter_map(|h| Some(h.as_str()?.to_owned())).collect(),
                flushed: d["flushed"].as_bool()?,
            })
        })
        .collect();
    found.sort_by_key(|d| d.id);
    found
}

//! Checksums of whole trees, taken where the files are seen: what is read on one node must be what
//! another wrote.

use std::collections::BTreeMap;

use crate::shell::{Ran, Shell};

/// SHA-256 of every regular file below `dir`, as that place and user sees it, by path relative to
/// `dir`.
///
/// # Panics
/// When a file cannot be read.
#[track_caller]
pub fn checksums(shell: &Shell, dir: &str) -> BTreeMap<String, String> {
    let mut command = shell.cmd("/bin/sh");
    command.args([
        "-c",
        "cd \"$1\" && find . -type f -print0 | sort -z | xargs -0 -r sha256sum -z",
        "sh",
        dir,
    ]);
    let ran = Ran::of(&mut command);
    assert!(ran.ok(), "{ran}");
    let entries = ran.out.split('\0').filter(|entry| !entry.is_empty());
    entries
        .map(|entry| {
            let (sum, path) = entry.split_once("  ").unwrap_or_else(|| panic!("not a checksum: {entry:?}"));
            (path.trim_start_matches("./").to_owned(), sum.to_owned())
        })
        .collect()
}

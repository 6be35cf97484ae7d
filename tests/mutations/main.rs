//! Thousands of damaged files and messages, made from whole ones with a seed: nothing may panic,
//! and memory stays a small multiple of the input, whatever lengths it claims.
//!
//! By hand, for minutes and from another seed:
//! `MUTATION_SECONDS=300 MUTATION_SEED=7 cargo test -p scrfs-tests --test mutations -- --nocapture`.
//! What fails is written below `target/tmp/`, and its name told.

#![expect(clippy::unwrap_used, reason = "a test")]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "nothing of scrfs itself")]

mod allocations;
mod damage;
mod whole;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::{Duration, Instant};

use damage::Damage;
use scrfs_harness::parsers;

/// Damaged inputs per test where no time is given.
const CASES: u64 = 20_000;
/// Bytes that any input may cost, however short it is: texts of errors, tables.
const AHEAD: usize = 16 << 10;

/// What may be allocated at once per byte of the input. A message is there twice for the
/// comparison; its worst is a list of empty texts.
const OF_MESSAGES: usize = 256;
/// A tree, the record or catalog made of it, and both again: an element is 5 bytes at least and 48
/// in memory.
const OF_TREES: usize = 192;

#[test]
fn hash_files() {
    hunt("hash_file", &whole::hash_files(), parsers::hash_file, OF_TREES);
}

#[test]
fn records() {
    hunt("records", &whole::hash_files(), parsers::records, OF_TREES);
}

#[test]
fn messages() {
    hunt("wire", &whole::messages(), parsers::wire, OF_MESSAGES);
}

#[test]
fn logs() {
    hunt("log", &whole::logs(), parsers::log, OF_MESSAGES);
}

/// Gives all whole inputs, then damaged ones, to `parser`.
#[track_caller]
fn hunt(name: &str, whole: &[Vec<u8>], parser: fn(&[u8]), factor: usize) {
    assert!(!whole.is_empty(), "no inputs");
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seed = number("MUTATION_SEED").unwrap_or(1);
    let limit = number("MUTATION_SECONDS").map(Duration::from_secs);
    let begun = Instant::now();
    let mut most = 0;
    for bytes in whole {
        try_one(name, seed, bytes, parser, factor, &mut most);
    }
    let mut cases = 0;
    let mut damage = Damage::new(seed);
    while limit.map_or(cases < CASES, |limit| begun.elapsed() < limit) {
        let bytes = damage.one_of(whole);
        try_one(name, seed, &bytes, parser, factor, &mut most);
        cases += 1;
    }
    println!(
        "{name}: {cases} damaged inputs from {} whole ones, seed {seed}, {:.1} s; at most {most} bytes of memory per byte",
        whole.len(),
        begun.elapsed().as_secs_f32()
    );
}

#[track_caller]
fn try_one(name: &str, seed: u64, bytes: &[u8], parser: fn(&[u8]), factor: usize, most: &mut usize) {
    let (outcome, peak) = allocations::peak_of(|| catch_unwind(AssertUnwindSafe(|| parser(bytes))).is_ok());
    // How many bytes each byte has cost, beyond what is allowed for any.
    *most = (*most).max(peak.saturating_sub(AHEAD) / bytes.len().max(1));
    let too_much = peak > bytes.len() * factor + AHEAD;
    if !outcome || too_much {
        let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.{seed}.bad"));
        std::fs::write(&kept, bytes).unwrap();
        let what = if outcome { format!("takes {peak} bytes") } else { "panics".to_owned() };
        panic!("{name} {what} on {} bytes: {}", bytes.len(), kept.display());
    }
}

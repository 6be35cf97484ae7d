//! For tests: waiting for what another thread or process brings about.
//!
//! A test whose descriptors decide something waits for that, too: a child of a test that runs at
//! the same time has copies of all descriptors between fork(2) and execve(2), locks and open files
//! with them.

use std::time::{Duration, Instant};

/// More than a busy machine needs.
const MOST: Duration = Duration::from_mins(1);

/// Waits until it `holds`.
///
/// # Panics
/// When it does not within a minute.
#[track_caller]
pub(crate) fn until(what: &str, holds: impl Fn() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < MOST, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(2));
    }
}

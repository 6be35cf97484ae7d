//! The two commands, interrupted. Half-way through real work: `tests/interrupt.py`, by hand.

use std::process::Command;

use scrfs_harness::Ran;
use scrfs_harness::cluster::workspace;

#[test]
fn installation_and_build_can_be_interrupted() {
    let script = workspace().join("tests/interrupt.py");
    let ran = Ran::of(Command::new("timeout").args(["-k", "5", "240"]).arg(script).arg("quick"));
    assert!(ran.must().lines().count() >= 9, "{ran}");
}

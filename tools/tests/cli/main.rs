//! The tools as people meet them: exit codes, what goes where, hints.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use scrfs::hash::{Hash, encode};

fn ctl(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_scrfs-ctl")).args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn print(path: &Path) -> Output {
    ctl(&["print", path.to_str().unwrap()])
}

fn nodes(n: u64) -> Hash {
    let mut tree = Hash::new();
    tree.set_value("NODES", n);
    tree
}

#[test]
fn print_shows_the_tree() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("nodes.scr");
    fs::write(&path, encode(&nodes(4))).unwrap();
    let out = print(&path);
    assert_eq!((out.status.code(), text(&out.stdout).as_str()), (Some(0), "  NODES\n    4\n"));
}

#[test]
fn print_shows_all_records_of_a_leaf_but_no_parity() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rank2file.0.0.scr");
    fs::write(&path, [encode(&nodes(1)), encode(&nodes(2))].concat()).unwrap();
    assert_eq!(text(&print(&path).stdout), "  NODES\n    1\n  NODES\n    2\n");

    // The parity of a set of two is the neighbour's data, and that may look like a record.
    // So is a partner's copy, whose header has no chunk.
    let mut header = nodes(7);
    header.set_value("GROUP", 100_u64);
    fs::write(&path, [encode(&header), encode(&nodes(2))].concat()).unwrap();
    let shown = text(&print(&path).stdout);
    assert!(shown.contains("GROUP") && shown.matches("NODES").count() == 1, "{shown}");
}

#[test]
fn print_refuses_what_is_no_hash_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x");
    let whole = encode(&nodes(4));
    let mut lying = whole.clone();
    lying[8..16].copy_from_slice(&u64::MAX.to_be_bytes());
    let mut flipped = whole.clone();
    flipped[21] ^= 1;
    let cut = whole[..whole.len() - 1].to_vec();
    for bad in [b"no hash file at all, but long enough".to_vec(), Vec::new(), lying, flipped, cut] {
        fs::write(&path, &bad).unwrap();
        let out = print(&path);
        assert_eq!(out.status.code(), Some(1), "{bad:?}");
        assert!(out.stdout.is_empty() && text(&out.stderr).contains(path.to_str().unwrap()), "{out:?}");
    }
    assert_eq!(print(&dir.path().join("nothing")).status.code(), Some(1));
    assert_eq!(print(dir.path()).status.code(), Some(1));
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("big");
    let mut tree = Hash::new();
    for n in 0..50_000_u64 {
        tree.set_flag(n);
    }
    fs::write(&path, encode(&tree)).unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_scrfs-ctl"))
        .arg("print")
        .arg(&path)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let out = child.wait_with_output().unwrap();
    assert_eq!((out.status.code(), text(&out.stderr).as_str()), (Some(0), ""));
}

#[test]
fn without_a_mount_there_is_a_message_and_a_hint() {
    let dir = tempfile::tempdir().unwrap();
    let mount = dir.path().to_str().unwrap();
    for verb in ["status", "list", "events", "wait"] {
        let out = ctl(&[verb, "--mount", mount]);
        let talk = text(&out.stderr);
        assert_eq!(out.status.code(), Some(1), "{verb}");
        assert!(talk.contains("not an scrfs mount") && talk.contains("\nhint: "), "{talk}");
        assert!(out.stdout.is_empty());
    }
}

#[test]
fn wrong_usage_is_2() {
    assert_eq!(ctl(&[]).status.code(), Some(2));
    assert_eq!(ctl(&["status", "--no-such"]).status.code(), Some(2));
    let run = |arguments: &[&str], flush: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_scrfs-run"));
        command.args(arguments).env("SCR_FLUSH", flush).env_remove("SCR_NODELIST").output().unwrap()
    };
    assert_eq!(run(&["--nodes", "3", "--hosts", "a,b", "--", "true"], "1").status.code(), Some(2));
    assert_eq!(run(&["--hosts", "a,b"], "1").status.code(), Some(2));
    let out = run(&["--hosts", "a", "--", "true"], "often");
    assert_eq!(out.status.code(), Some(2));
    assert!(text(&out.stderr).contains("SCR_FLUSH=\"often\""), "{}", text(&out.stderr));
}

fn run(arguments: &[&str], place: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_scrfs-run"));
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default()).env("SCR_JOB_ID", "77");
    command.arg("--prefix").arg(place).args(arguments).stdin(Stdio::null()).output().unwrap()
}

#[test]
fn a_directory_is_no_program() {
    let dir = tempfile::tempdir().unwrap();
    // Looked for at first, beside scrfs-run.
    let coordinator = dir.path().join("scrfs-coordinator");
    fs::write(&coordinator, "").unwrap();
    for launcher in ["mpirun", "none"] {
        let coordinator = coordinator.to_str().unwrap();
        let out = run(&["--launcher", launcher, "--coordinator", coordinator, "--", "/etc"], dir.path());
        assert_eq!(out.status.code(), Some(1));
        let said = text(&out.stderr);
        assert!(said.contains("scrfs-run: /etc is a directory\nhint: "), "{said}");
    }
}

#[test]
fn jobs_claims_nothing_of_a_scheduler_that_fails() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("squeue");
    fs::write(&path, "#!/bin/sh\necho squeue: error: Unable to contact slurm controller >&2\nexit 1\n")
        .unwrap();
    fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let jobs = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_scrfs-ctl"));
        command.env("PATH", dir.path()).arg("jobs").args(arguments).output().unwrap()
    };
    for arguments in [&[][..], &["--json"]] {
        let out = jobs(arguments);
        let said = text(&out.stderr);
        assert!(said.contains("Unable to contact slurm controller\nhint: "), "{said}");
        assert!(!said.contains("the scheduler knows none"), "{said}");
        assert_eq!(out.status.code(), Some(1), "{said}");
    }
    fs::remove_file(&path).unwrap();
    assert_eq!(jobs(&[]).status.code(), Some(0));
}

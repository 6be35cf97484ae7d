//! Programs save their checkpoints in many ways. Each of them here runs on four nodes with two
//! ranks each, loses a node after a checkpoint is written and before it is sealed, and another one
//! after one is sealed, and goes on.

use std::fs;
use std::time::Duration;

use scrfs_harness::Cluster;
use scrfs_harness::cluster::workspace;
use scrfs_harness::job::{Job, SOON};
use scrfs_harness::wait;

const LIMIT: Duration = Duration::from_mins(3);
/// Debian's own, whatever else is in the path.
const PYTHON: &str = "/usr/bin/python3";

/// Runs it through both losses.
fn survives(pattern: &str, settings: &[(&str, &str)]) {
    let cluster = Cluster::up(6);
    let job = settings.iter().fold(Job::new(&cluster, pattern), |job, (name, value)| job.set(name, value));
    job.mount(0..6);
    let script = workspace().join("tests/programs/patterns.py").display().to_string();
    let log = job.log_path();
    let hold = |what: &str| job.host_prefix().with_extension("test").join(format!("log.{what}"));
    let (unsealed, sealed) = (hold("written.2"), hold("sealed.3"));
    for path in [&unsealed, &sealed] {
        fs::write(path, "").expect("the PFS can be written");
    }
    let program = [PYTHON, "-m", "mpi4py", &script, "/scr", &log, "4", pattern];
    let mut run = job.start(&[0, 1, 2, 3, 4, 5], 4, 2, &program);
    run.await_line(&job, "written 2", LIMIT);
    cluster.poweroff(1);
    fs::remove_file(unsealed).expect("it is there");
    run.await_line(&job, "sealed 3", LIMIT);
    cluster.poweroff(2);
    fs::remove_file(sealed).expect("it is there");
    assert_eq!(run.wait(LIMIT), 0, "{}\n{:?}", run.output(), job.log());
    let starts: Vec<String> = job.log().into_iter().filter(|line| line.starts_with("start")).collect();
    assert_eq!(starts, ["start after 0", "start after 1", "start after 3"], "{:?}", job.log());
    assert_eq!(job.sealed().last(), Some(&4), "{:?}", job.log());
    let listed = |node: usize| job.on(node).run("ls -A /scr").out;
    wait::until_true("the same listing on all nodes", SOON, || listed(0) == listed(3));
}

#[test]
fn temporary_files_that_are_renamed() {
    survives("files", &[]);
}

#[test]
fn a_temporary_directory_that_rank_0_renames() {
    survives("directory", &[]);
}

#[test]
fn two_directories_in_turn() {
    survives("turns", &[]);
}

#[test]
fn one_directory_in_place() {
    survives("inplace", &[]);
}

#[test]
fn a_marker_on_every_node() {
    survives("everywhere", &[("SCRFS_MARKER_SCOPE", "all")]);
}

#[test]
fn a_table_of_contents_that_is_renamed_as_marker() {
    survives("metadata", &[("SCRFS_MARKER", ".metadata")]);
}

#[test]
fn loose_files_with_a_dataset_pattern() {
    survives("flat", &[("SCRFS_DATASET_PATTERN", r"melt\.(\d+)\.\d+\.restart")]);
}

#[test]
fn hdf5_files_with_locks() {
    survives("hdf5", &[]);
}

#[test]
fn a_file_that_names_the_latest() {
    survives("latest", &[]);
}

#[test]
fn one_rank_removes_old_checkpoints() {
    survives("remove-one", &[]);
}

#[test]
fn all_ranks_remove_old_checkpoints() {
    survives("remove-all", &[]);
}

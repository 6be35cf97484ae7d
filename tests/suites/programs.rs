//! Programs as people write them, unchanged: rank 0 makes the directory or every rank does; two
//! ranks on each node.

use std::time::Duration;

use scrfs_harness::Cluster;
use scrfs_harness::job::Job;
use scrfs_harness::programs::program;

const LIMIT: Duration = Duration::from_mins(2);

#[test]
fn program_of_the_scr_manual_on_four_nodes_with_two_ranks_each() {
    let cluster = Cluster::up(4);
    let job = Job::new(&cluster, "manual");
    job.mount(0..4);
    let program = program("ckpt");
    let mut run = job.start(&[0, 1, 2, 3], 4, 2, &[&program, "/scr", &job.log_path(), "3"]);
    assert_eq!(run.wait(LIMIT), 0, "{}", run.output());
    assert_eq!(job.sealed(), [1, 2, 3]);
    // A second run starts from the newest one and finds it byte for byte, from the writers' nodes
    // and from others.
    let mut again = job.start(&[0, 1, 2, 3], 4, 2, &[&program, "/scr", &job.log_path(), "4"]);
    assert_eq!(again.wait(LIMIT), 0, "{}", again.output());
    assert!(job.log().iter().any(|line| line == "start after 3"), "{:?}", job.log());
    assert_eq!(job.sealed(), [1, 2, 3, 4]);
}

#[test]
fn program_in_which_every_rank_makes_the_directory() {
    let cluster = Cluster::up(4);
    let job = Job::new(&cluster, "makedirs");
    job.mount(0..4);
    let program = program("ckpt");
    let arguments = [program.as_str(), "/scr", &job.log_path(), "3", "makedirs", "uneven"];
    let mut run = job.start(&[0, 1, 2, 3], 4, 2, &arguments);
    assert_eq!(run.wait(LIMIT), 0, "{}", run.output());
    assert_eq!(job.sealed(), [1, 2, 3]);
}

#[test]
fn two_nodes_make_different_and_equal_directories_a_thousand_times() {
    let cluster = Cluster::up(2);
    let job = Job::new(&cluster, "mkdirs");
    job.mount(0..2);
    let program = program("mkdirs");
    let mut run = job.start(&[0, 1], 2, 1, &[&program, "/scr", "1000"]);
    assert_eq!(run.wait(Duration::from_mins(4)), 0, "{}", run.output());
    let left = job.on(1).run("ls -A /scr");
    assert_eq!(left.must(), "");
}

//! `scrfs-run` relaunches: a node dies under the program, the job goes on with the spare.

use std::time::Duration;

use scrfs_harness::job::{Job, SOON};
use scrfs_harness::programs::program;
use scrfs_harness::{Cluster, wait};

#[test]
fn a_node_loses_power_in_mid_run_and_the_spare_takes_over() {
    let cluster = Cluster::up(5);
    let job = Job::new(&cluster, "relaunch");
    job.mount(0..5);
    let program = program("ckpt");
    let arguments = [program.as_str(), "/scr", &job.log_path(), "12", "uneven", "pause=200"];
    let mut run = job.start(&[0, 1, 2, 3, 4], 4, 1, &arguments);
    run.await_line(&job, "sealed 4", SOON);
    cluster.poweroff(2);
    let code = run.wait(Duration::from_secs(150));
    assert_eq!(code, 0, "{}", run.output());
    let starts: Vec<u64> =
        job.log().iter().filter_map(|l| l.strip_prefix("start after ")?.parse().ok()).collect();
    assert_eq!(starts.len(), 2, "{:?}", job.log());
    assert!(starts[1] >= 4, "{starts:?}");
    assert_eq!(job.sealed().last(), Some(&12));
    // Nothing of the job is left on the nodes but the mounts.
    for node in [0, 1, 3, 4] {
        wait::until_true("coordinators to end", SOON, || !job.on(node).run("pgrep -x scrfs-coordinat").ok());
    }
}

#[test]
fn a_signal_to_scrfs_run_ends_all_of_the_job() {
    let cluster = Cluster::up(2);
    let job = Job::new(&cluster, "signals");
    job.mount(0..2);
    let mut run = job.start(&[0, 1], 2, 1, &["/bin/sleep", "600"]);
    for node in 0..2 {
        job.await_coordinator(node);
    }
    let code = run.stop();
    assert_eq!(code, 128 + 15, "{}", run.output());
    for node in 0..2 {
        wait::until_true("all to end", SOON, || {
            !job.on(node).run("pgrep -f 'scrfs-coordinato[r]|sleep 60[0]'").ok()
        });
    }
}

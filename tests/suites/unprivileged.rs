//! The job as uid 1000, the daemon as root.

use std::time::Duration;

use scrfs_harness::Cluster;
use scrfs_harness::job::Job;
use scrfs_harness::place::{CACHE, SCR};
use scrfs_harness::programs::program;

const LIMIT: Duration = Duration::from_mins(2);

#[test]
fn a_users_job_loses_a_node_and_goes_on() {
    let cluster = Cluster::up(4);
    let job = Job::unprivileged(&cluster, "user").set("SCR_FLUSH", "1");
    job.mount(0..4);
    let program = program("ckpt");
    let mut run = job.start(&[0, 1, 2, 3], 3, 2, &[&program, "/scr", &job.log_path(), "2", "uneven"]);
    assert_eq!(run.wait(LIMIT), 0, "{}", run.output());
    // Files are the user's, the cache is root's alone, the flushed copy is the user's.
    let owner = job.on(0).run(&format!("stat -c %u:%g {SCR}/ck.2 {SCR}/ck.2/*"));
    assert!(owner.must().lines().all(|line| line == "1000:1000"), "{owner}");
    assert!(!job.on(0).run(&format!("ls {CACHE}/job/scr.user")).ok(), "the cache is open to its user");
    let flushed = job.on(0).run(&format!("stat -c %u {}/ck.2/.scr/summary.scr", job.prefix()));
    assert_eq!(flushed.must(), "1000");
    // Another user sees nothing that permissions do not give.
    let secret = format!("umask 077; mkdir {SCR}/mine; echo x > {SCR}/mine/secret");
    job.on(0).run(&secret).must();
    assert!(!cluster.on(0).user(1001).run(&format!("cat {SCR}/mine/secret")).ok());
    job.on(0).run(&format!("rm -rf {SCR}/mine")).must();

    cluster.poweroff(1);
    let mut run = job.start(&[0, 2, 3], 3, 2, &[&program, "/scr", &job.log_path(), "3", "uneven"]);
    assert_eq!(run.wait(LIMIT), 0, "{}", run.output());
    assert!(job.log().iter().any(|line| line == "start after 2"), "{:?}", job.log());
}

//! The job as uid 1000, the daemon as root.

use std::time::Duration;

use scrfs_harness::job::{Job, SOON};
use scrfs_harness::place::{CACHE, SCR};
use scrfs_harness::programs::program;
use scrfs_harness::{Cluster, wait};

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

#[test]
fn an_owner_removes_a_dataset_that_its_modes_close() {
    let cluster = Cluster::up(2);
    let job = Job::unprivileged(&cluster, "closed");
    job.mount(0..2);
    let mut run = job.start(&[0, 1], 2, 1, &["/bin/sleep", "600"]);
    for node in 0..2 {
        job.await_coordinator(node);
    }
    job.on(0).run(&format!("mkdir -p {SCR}/ck/d && echo x > {SCR}/ck/d/a && mkfifo {SCR}/ck/d/pipe")).must();
    job.on(1).run(&format!("echo y > {SCR}/ck/b")).must();
    for node in 0..2 {
        job.on(node).run(&format!("chmod 0400 {SCR}/ck/d/* 2>/dev/null; chmod 0500 {SCR}/ck/d")).must();
    }
    job.on(0).run(&format!("touch {SCR}/ck/.complete")).must();
    assert!(job.events(0).contains("d/pipe (a FIFO)"), "{}", job.events(0));
    assert_eq!(job.on(0).run(&format!("ls {SCR}/ck/d")).must(), "a");
    // The node that wrote nothing into it: first as natively, then as people do.
    let on = job.on(1);
    assert!(!on.run(&format!("rm -rf {SCR}/ck")).ok(), "the directory's mode is the owner's own will");
    assert!(!cluster.on(1).user(1001).run(&format!("chmod -R u+w {SCR}/ck")).ok(), "it is not theirs");
    on.run(&format!("chmod -R u+w {SCR}/ck")).must();
    assert_eq!(on.run(&format!("stat -c %a {SCR}/ck/d {SCR}/ck/d/a")).must(), "700\n600");
    assert_eq!(job.on(0).run(&format!("stat -c %a {SCR}/ck/d {SCR}/ck/d/a")).must(), "500\n400");
    on.run(&format!("rm -rf {SCR}/ck")).must();
    for node in 0..2 {
        assert_eq!(job.on(node).run(&format!("ls -A {SCR}")).must(), "");
        wait::until_true("the bytes to go", SOON, || {
            cluster.on(node).run(&format!("find {CACHE} -type f")).must().is_empty()
        });
    }
    run.stop();
}

//! Coordinators that are lost, or that open their epoch anew, are awaited: the mount of a job that
//! goes on stays, and what needs a coordinator waits. Processes of a daemon that are stopped are
//! named.

use scrfs_harness::job::{IDLE, Job, SOON};
use scrfs_harness::place::{BIN, JOB_UID, SCR};
use scrfs_harness::{Cluster, wait};

const CONTROL: &str = "/run/scrfs/job/scr.awaited";

#[test]
fn a_job_whose_coordinators_are_lost_keeps_its_mounts() {
    let cluster = Cluster::up(2);
    let job = Job::unprivileged(&cluster, "awaited");
    job.mount(0..2);
    let mut run = job.idle(&[0, 1]);
    for turn in 0..4 {
        // Its own coordinator is killed, or another node's, and with that all end.
        cluster.on(turn % 2).run("kill -KILL $(pgrep -x scrfs-coordinat)").must();
        let refused = job.unmount(turn / 2);
        assert!(
            !refused.ok() && refused.err.contains("/scr is in use: "),
            "{turn}: {refused}\n{}",
            run.output()
        );
        for node in 0..2 {
            job.await_coordinator(node);
        }
    }
    // Nor is it taken while its coordinators do not come back.
    cluster.head().run("pkill -STOP -x scrfs-run").must();
    cluster.on(0).run("kill -KILL $(pgrep -x scrfs-coordinat)").must();
    let refused = job.unmount(0);
    assert!(
        !refused.ok() && refused.err.contains("no scrfs-run has said that the job has ended"),
        "{refused}"
    );
    cluster.head().run("pkill -CONT -x scrfs-run").must();
    job.await_coordinator(0);
    // Nor between two runs of the program.
    cluster.on(1).run(&format!("pkill -KILL -xf '{IDLE}'")).must();
    wait::until_true("the end of the first run", SOON, || run.output().contains("the program ended with"));
    let refused = job.unmount(0);
    assert!(!refused.ok() && refused.err.contains("/scr is in use: "), "{refused}\n{}", run.output());
    job.await_coordinator(0);
    // At its end scrfs-run says so.
    cluster.head().run("pkill -TERM -x scrfs-run").must();
    assert_eq!(run.wait(SOON), 128 + 15, "{}", run.output());
    for node in 0..2 {
        let ended = job.unmount(node);
        assert!(ended.ok(), "{ended}\n{}", run.output());
    }
}

#[test]
fn a_wish_waits_for_coordinators_that_open_their_epoch_anew() {
    let cluster = Cluster::up(2);
    let job = Job::unprivileged(&cluster, "awaited");
    job.mount(0..2);
    let mut run = job.idle(&[0, 1]);
    for turn in 0..8 {
        let made = format!(
            "mkdir {SCR}/ck.{turn} && echo {turn} > {SCR}/ck.{turn}/f && touch {SCR}/ck.{turn}/.complete"
        );
        job.on(0).run(&made).must();
        cluster.on(1).run(&format!("kill -KILL $(cat {CONTROL}/worker.lock)")).must();
        let wish = if turn % 2 == 0 { "flush --wait" } else { "scrub" };
        job.on(0).run(&format!("{BIN}/scrfs-ctl {wish} ck.{turn}")).must();
    }
    cluster.head().run("pkill -TERM -x scrfs-run").must();
    run.wait(SOON);
}

#[test]
fn the_jobs_user_is_told_which_process_of_roots_daemon_is_stopped() {
    let cluster = Cluster::up(1);
    let job = Job::unprivileged(&cluster, "awaited");
    job.mount([0]);
    let pid = |lock: &str| cluster.on(0).run(&format!("cat {CONTROL}/{lock}.lock")).must().to_owned();
    let (worker, supervisor) = (pid("worker"), pid("supervisor"));
    let signal = |name: &str, pid: &str| {
        cluster.on(0).run(&format!("kill -{name} {pid}")).must();
        let state = if name == "STOP" { "T" } else { "S" };
        let is_so = format!("grep -q '^State:.{state}' /proc/{pid}/status");
        wait::until_true("the state of a process", SOON, || cluster.on(0).run(&is_so).ok());
    };
    let asks = || cluster.on(0).user(JOB_UID).run(&format!("{BIN}/scrfs-ctl status --mount {SCR}"));
    signal("STOP", &worker);
    let told = asks();
    assert_eq!(told.code, 1, "{told}");
    assert!(told.err.contains(&format!("is stopped: its worker, process {worker}\n")), "{told}");
    assert!(
        told.err.contains(&format!("an administrator can let it go on: kill -CONT {worker}; ")),
        "{told}"
    );
    signal("STOP", &supervisor);
    let told = asks();
    let both = format!("its worker, process {worker}, and its supervisor, process {supervisor}\n");
    assert!(told.code == 1 && told.err.contains(&both), "{told}");
    assert!(told.err.contains(&format!("kill -CONT {supervisor} {worker}; ")), "{told}");
    signal("CONT", &worker);
    let told = asks();
    assert!(told.must().contains(&format!("its supervisor, process {supervisor}, is stopped")), "{told}");
    signal("CONT", &supervisor);
    assert!(!asks().must().contains("stopped"));
}

//! `scrfs-run` relaunches: a node dies under the program, the job goes on with the spare.

use std::time::Duration;

use scrfs_harness::job::{Job, SOON};
use scrfs_harness::place::{BIN, SCR};
use scrfs_harness::programs::program;
use scrfs_harness::{Cluster, wait};

/// For what has several steps, each of which is slow on a busy machine.
const LIMIT: Duration = Duration::from_secs(150);

#[test]
fn a_node_loses_power_in_mid_run_and_the_spare_takes_over() {
    let cluster = Cluster::up(5);
    let job = Job::new(&cluster, "relaunch");
    job.mount(0..5);
    let (program, [hold, at]) = (program("ckpt"), job.hold_at(6));
    let arguments = [program.as_str(), "/scr", &job.log_path(), "12", "uneven", "pause=200", &hold, &at];
    let mut run = job.start(&[0, 1, 2, 3, 4], 4, 1, &arguments);
    run.await_line(&job, "sealed 4", SOON);
    cluster.poweroff(2);
    job.let_go();
    let code = run.wait(LIMIT);
    assert_eq!(code, 0, "{}", run.output());
    let starts: Vec<u64> =
        job.log().iter().filter_map(|l| l.strip_prefix("start after ")?.parse().ok()).collect();
    assert_eq!(starts.len(), 2, "{:?}", job.log());
    assert!(starts[1] >= 4, "{starts:?}");
    let said = run.output();
    assert!(
        said.contains("node2 has lost its power or its network") || said.contains("node2 is lost"),
        "{said}"
    );
    // Said in a line; what its launchers and their libraries say of it is in the log.
    assert!(!said.contains("-----") && !said.contains("ORTE"), "{said}");
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
    for (name, number) in [("TERM", 15), ("USR1", 10)] {
        let mut run = job.start(&[0, 1], 2, 1, &["/bin/sleep", "600"]);
        for node in 0..2 {
            job.await_coordinator(node);
        }
        cluster.head().run(&format!("pkill -{name} -x scrfs-run")).must();
        assert_eq!(run.wait(SOON), 128 + number, "{}", run.output());
        for node in 0..2 {
            wait::until_true("all to end", SOON, || {
                !job.on(node).run("pgrep -f 'scrfs-coordinato[r]|sleep 60[0]'").ok()
            });
        }
    }
}

/// Nothing is restarted beneath a living program: not by a second start, and not after the first
/// was killed, before what it left is ended.
#[test]
fn a_second_scrfs_run_leaves_a_living_program_alone_and_ends_an_orphaned_one() {
    let cluster = Cluster::up(2);
    let job = Job::new(&cluster, "second");
    job.mount(0..2);
    let program = "mkdir -p /scr/live && exec 3>/scr/live/f.$(hostname) && exec sleep 600";
    let mut first = job.start(&[0, 1], 2, 1, &["/bin/sh", "-c", program]);
    let is_written = |node: usize| job.on(node).run(&format!("test -e /scr/live/f.node{node}")).ok();
    let sleeps = |node: usize| job.on(node).run("pgrep -x sleep").ok();
    wait::until_true("both to write", SOON, || (0..2).all(is_written));

    let mut second = job.start(&[0, 1], 2, 1, &["/bin/true"]);
    assert_eq!(second.wait(SOON), 1, "{}", second.output());
    let said = second.output();
    assert!(said.contains("another scrfs-run of job root/second is alive on head (pid "), "{said}");
    assert!(said.contains("\nhint: ") && first.try_code().is_none(), "{said}");
    // From another host it cannot be seen that the first one lives: what runs on the nodes is
    // named, and goes on.
    let probe = format!("{BIN}/scrfs-ctl probe --mount {SCR} --sweep 1-1@elsewhere/root/second");
    let answer = job.on(0).run(&probe).out;
    for named in ["sleep, of scrfs-run ", "scrfs-coordinat, of scrfs-run ", "writes /scr/live/f.node0"] {
        assert!(answer.contains(named), "{named}: {answer}");
    }
    assert!((0..2).all(|node| is_written(node) && sleeps(node)));

    let killed = cluster.head().run("kill -KILL $(pgrep -x scrfs-run)");
    assert!(killed.ok(), "{killed}");
    wait::until_true("its end", SOON, || first.try_code().is_some());
    assert!((0..2).all(sleeps), "the program lives on");
    let mut third = job.start(&[0, 1], 2, 1, &["/bin/true"]);
    assert_eq!(third.wait(Duration::from_secs(90)), 0, "{}", third.output());
    let said = third.output();
    assert!(said.contains("node0: ended ") && said.contains("node1: ended "), "{said}");
    assert!(!(0..2).any(sleeps), "{said}");
}

/// The launcher notices one of them at once, tells all others to end, and waits for ever for those
/// that have lost their power.
#[test]
fn nodes_that_die_together_are_left_out_and_the_job_goes_on() {
    let cluster = Cluster::up(11);
    let job = Job::new(&cluster, "together").set("SCRFS_NODE_TIMEOUT", "6s");
    job.mount(0..11);
    let (program, [hold, at]) = (program("ckpt"), job.hold_at(6));
    let arguments = [program.as_str(), "/scr", &job.log_path(), "8", "pause=100", &hold, &at];
    let mut run = job.start(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10], 8, 1, &arguments);
    run.await_line(&job, "sealed 3", LIMIT);
    cluster.poweroff(3);
    cluster.poweroff(2);
    cluster.kill(7);
    job.let_go();
    wait::until_true("another run", LIMIT, || run.output().contains("run 2 on node0 node1 node4"));
    assert_eq!(run.wait(LIMIT), 0, "{}", run.output());
    assert_eq!(job.sealed().last(), Some(&8));
}

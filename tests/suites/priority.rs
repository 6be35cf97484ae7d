//! Who is waited for goes first, and not for longer (operations: "While programs spin").

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

use scrfs_harness::Cluster;
use scrfs_harness::job::{Job, SOON};
use scrfs_harness::place::{BIN, SCR};
use scrfs_harness::wait;

const DAEMON: &str = "scrfs";
/// What a job's user can put into its coordinator: a thread that never sleeps.
const THIEF: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <string.h>
static void *spin(void *none) { for (;;) __asm__ volatile(""); return none; }
__attribute__((constructor)) static void steal(void) {
    pthread_t thread;
    if (strcmp(program_invocation_short_name, "scrfs-coordinator") == 0) pthread_create(&thread, 0, spin, 0);
}
"#;
/// As the kernel shortens it.
const COORDINATOR: &str = "scrfs-coordinat";

/// How the kernel schedules each thread of the node's programs of this name: raised or not.
fn raised(job: &Job<'_>, node: usize, name: &str) -> Vec<bool> {
    let line = format!("for p in $(pgrep -x {name}); do chrt -a -p $p; done | grep policy");
    job.on(node).run(&line).out.lines().map(|line| line.contains("SCHED_RR")).collect()
}

fn nothing_is_raised(job: &Job<'_>) {
    for node in [0, 1] {
        for name in [DAEMON, COORDINATOR] {
            wait::until_true(&format!("{name} to step back on node{node}"), SOON, || {
                !raised(job, node, name).contains(&true)
            });
        }
        let status = job.status(node).expect("status");
        assert_eq!((&status["priority"]["raised"], &status["priority"]["why"]), (&false.into(), &"".into()));
    }
}

#[test]
fn processes_of_ours_go_first_while_a_marker_waits() {
    let cluster = Cluster::up(2);
    let job = Job::new(&cluster, "first").set("SCRFS_SEAL_TIMEOUT", "60s");
    job.mount(0..2);
    let mut run = job.idle(&[0, 1]);
    job.on(0).run(&format!("mkdir {SCR}/d && echo a > {SCR}/d/a")).must();
    let mut writer = job.on(1).sh(&format!("exec 7> {SCR}/d/b; read never"));
    let mut writer = writer.stdin(Stdio::piped()).spawn().expect("a shell");
    wait::until_true("the writer", SOON, || job.on(1).run(&format!("test -e {SCR}/d/b")).ok());
    nothing_is_raised(&job);

    // The writer keeps the seal waiting; a worker's death in between leaves nothing raised that is
    // not waited for.
    let mut touch = job.on(0).sh(&format!("touch {SCR}/d/.complete")).spawn().expect("a shell");
    let why = |node: usize| job.status(node).map(|s| s["priority"]["why"].as_str().unwrap_or("").to_owned());
    for round in 0..2 {
        for (node, word) in [(0, "a marker waits"), (1, "a seal is under way")] {
            wait::until_true(&format!("{word} on node{node}"), SOON, || why(node).as_deref() == Some(word));
            assert!(raised(&job, node, COORDINATOR).contains(&true), "{round}: {}", job.events(node));
            let daemon = raised(&job, node, DAEMON);
            assert!(
                daemon.contains(&true) && daemon.contains(&false),
                "background work stays nice: {daemon:?}"
            );
            for of_users in ["sleep", "sh", "touch"] {
                assert!(!raised(&job, node, of_users).contains(&true), "{of_users} on node{node}");
            }
        }
        if round == 0 {
            cluster.on(0).run("pkill -9 -f 'scrfs worke[r]'").must();
            job.await_coordinator(0);
        }
    }
    assert!(touch.try_wait().expect("wait").is_none(), "{}", job.events(0));
    drop(writer.stdin.take());
    writer.wait().expect("wait");
    assert!(touch.wait().expect("wait").success(), "{}", job.events(0));
    nothing_is_raised(&job);
    run.stop();
}

/// Code of the user's own is in the coordinator, and somebody waits all the time: the other users'
/// programs get theirs.
#[test]
fn a_job_that_is_never_done_steps_back() {
    let cluster = Cluster::up(1);
    let job = Job::unprivileged(&cluster, "thief");
    job.mount([0]);
    let library = job.host_prefix().join("thief.so");
    let mut compiler = Command::new("cc")
        .args(["-shared", "-fPIC", "-pthread", "-x", "c", "-", "-o"])
        .arg(&library)
        .stdin(Stdio::piped())
        .spawn()
        .expect("cc");
    compiler.stdin.take().expect("a pipe").write_all(THIEF.as_bytes()).expect("cc reads");
    assert!(compiler.wait().expect("wait").success());

    let (prefix, limit) = (job.prefix(), Duration::from_mins(3));
    let coordinator = format!(
        "LD_PRELOAD={prefix}/thief.so exec {BIN}/scrfs-coordinator --attach --mount {SCR} --prefix {prefix} --job-id thief"
    );
    let mut coordinator = job.on(0).limit(limit).sh(&coordinator).spawn().expect("a coordinator");
    job.await_coordinator(0);
    let waits = format!("while mkdir {SCR}/d && rmdir {SCR}/d; do :; done");
    let mut waits = job.on(0).limit(limit).sh(&waits).spawn().expect("a shell");
    let was_raised = || raised(&job, 0, COORDINATOR).contains(&true);
    wait::until_true("the coordinator to be raised", SOON, was_raised);
    let told = "have had their share of the processors";
    wait::until_true("an event", limit, || job.events(0).contains(told));
    // Somebody waits still. In one shell and not for long: after 15 s they may go first again.
    let rounds = format!(
        "end=$(($(date +%s) + 5))
         for round in $(seq 20); do
             for p in $(pgrep -x {COORDINATOR}); do chrt -a -p $p; done | grep SCHED_RR && exit 3
             mkdir {SCR}/e && rmdir {SCR}/e || exit 4
             test $(date +%s) -lt $end || break
         done
         {BIN}/scrfs-ctl status --mount {SCR}"
    );
    let status = job.on(0).run(&rounds);
    assert!(
        status.ok() && status.out.contains("do not go before programs that spin: stepped back: their share"),
        "{status}\n{}",
        job.events(0)
    );
    assert_eq!(job.events(0).matches(told).count(), 1, "{}", job.events(0));
    for child in [&mut waits, &mut coordinator] {
        child.kill().expect("kill");
        child.wait().expect("wait");
    }
}

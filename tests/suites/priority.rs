//! Who is waited for goes first, and not for longer (operations: "While programs spin").
//!
//! How long anything takes here is no matter: what is looked at lasts until the test ends it, or
//! was noted down by who saw it.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use scrfs_harness::Cluster;
use scrfs_harness::job::Job;
use scrfs_harness::place::{BIN, SCR};
use scrfs_harness::wait;
use serde_json::Value;

/// On a machine that is busy with other things.
const LIMIT: Duration = Duration::from_mins(5);
/// What waits is ended by its test.
const HELD: Duration = Duration::from_mins(20);
/// A seal waits as long for who writes.
const SEAL_TIMEOUT: &str = "1200s";

const DAEMON: &str = "scrfs";
/// What a job's user can put into its coordinator: threads that never sleep. One of them notes how
/// the kernel schedules it.
const THIEF: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static int notes;
static void *spin(void *none) { for (;;) __asm__ volatile(""); return none; }
static void *note(void *none) {
    for (int was = 0;;) {
        int is = (sched_getscheduler(0) & ~SCHED_RESET_ON_FORK) == SCHED_RR;
        if (is != was) dprintf(notes, is ? "raised\n" : "lowered\n");
        was = is;
    }
    return none;
}
__attribute__((constructor)) static void steal(void) {
    pthread_t thread;
    if (strcmp(program_invocation_short_name, "scrfs-coordinator") != 0) return;
    notes = open(getenv("THIEF_NOTES"), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    for (long left = sysconf(_SC_NPROCESSORS_ONLN); left > 0; left--)
        pthread_create(&thread, 0, left == 1 ? note : spin, 0);
}
"#;
/// As the kernel shortens it.
const COORDINATOR: &str = "scrfs-coordinat";
/// Programs of the job's.
const USERS: [&str; 3] = ["sleep", "sh", "touch"];

/// A look at a node.
struct Look {
    /// What its status says of priority, before the look at the threads and after it.
    status: [Value; 2],
    /// How the kernel schedules each thread of the programs of this name: raised or not.
    raised: BTreeMap<String, Vec<bool>>,
}

impl Look {
    /// `None`: the daemon does not answer.
    fn at(job: &Job<'_>, node: usize) -> Option<Self> {
        let status = format!("{BIN}/scrfs-ctl status --mount {SCR} --json");
        let names = [&[DAEMON, COORDINATOR], &USERS[..]].concat().join(" ");
        let threads = format!(
            "for n in {names}; do for p in $(pgrep -x $n); do
                 chrt -a -p $p | sed -n \"s/.*policy: /$n /p\"
             done; done"
        );
        // In one command: on a busy machine each takes its time.
        let ran = job.on(node).run(&format!("{status} && echo -- && {threads}; echo -- && {status}"));
        let parts: Vec<&str> = ran.out.split("--\n").filter(|_| ran.ok()).collect();
        let [before, threads, after] = parts[..] else { return None };
        let priority = |text: &str| Some(serde_json::from_str::<Value>(text).ok()?["priority"].clone());
        let mut raised: BTreeMap<String, Vec<bool>> = BTreeMap::new();
        for (name, policy) in threads.lines().filter_map(|line| line.split_once(' ')) {
            raised.entry(name.to_owned()).or_default().push(policy.contains("SCHED_RR"));
        }
        Some(Self { status: [priority(before)?, priority(after)?], raised })
    }

    fn is_raised(&self, name: &str) -> bool {
        self.raised.get(name).is_some_and(|threads| threads.contains(&true))
    }

    fn says(&self, raised: bool, why: &str) -> bool {
        self.status.iter().all(|status| status["raised"] == raised && status["why"] == why)
    }
}

/// The first look at a node that is as `wanted`.
#[track_caller]
fn look(what: &str, job: &Job<'_>, node: usize, wanted: impl Fn(&Look) -> bool) -> Look {
    let found = wait::poll(LIMIT, || Look::at(job, node).filter(&wanted));
    found.unwrap_or_else(|| {
        let last = Look::at(job, node).map(|last| (last.status, last.raised));
        panic!("in vain: {what} on node{node}: {last:?}\n{}", job.events(node))
    })
}

fn nothing_is_raised(job: &Job<'_>) {
    for node in [0, 1] {
        look("to step back", job, node, |look| {
            look.says(false, "") && !look.is_raised(DAEMON) && !look.is_raised(COORDINATOR)
        });
    }
}

/// A program on a node that has a file open until its input ends.
fn writer(job: &Job<'_>, node: usize, path: &str) -> Child {
    let mut writer = job.on(node).limit(HELD).sh(&format!("exec 7> {path}; echo open; read never"));
    let mut writer = writer.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a shell");
    let mut line = String::new();
    BufReader::new(writer.stdout.take().expect("a pipe")).read_line(&mut line).expect("its word");
    assert_eq!(line, "open\n");
    writer
}

#[test]
fn processes_of_ours_go_first_while_a_marker_waits() {
    let cluster = Cluster::up(2);
    let job = Job::new(&cluster, "first").limit(HELD * 2);
    let job = job.set("SCRFS_SEAL_TIMEOUT", SEAL_TIMEOUT).set("SCRFS_COORDINATOR_WAIT", "300s");
    job.mount(0..2);
    let mut run = job.idle(&[0, 1]);
    job.on(0).run(&format!("mkdir {SCR}/d && echo a > {SCR}/d/a")).must();
    let mut writer = writer(&job, 1, &format!("{SCR}/d/b"));
    nothing_is_raised(&job);

    // The writer keeps the seal waiting; a worker's death in between leaves nothing raised that is
    // not waited for.
    let touch = job.on(0).limit(HELD).sh(&format!("touch {SCR}/d/.complete")).spawn();
    let mut touch = touch.expect("a shell");
    for round in 0..2 {
        for (node, word) in [(0, "a marker waits"), (1, "a seal is under way")] {
            let look = look(word, &job, node, |look| look.says(true, word));
            let why = || format!("{round}: {:?}\n{}", look.raised, job.events(node));
            assert!(look.is_raised(COORDINATOR), "{}", why());
            let daemon = &look.raised[DAEMON];
            assert!(daemon.contains(&true), "{}", why());
            assert!(daemon.contains(&false), "background work stays nice: {}", why());
            assert!(look.raised.contains_key("sleep"), "{}", why());
            for of_users in USERS {
                assert!(!look.is_raised(of_users), "{of_users} on node{node}: {}", why());
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

/// One thief at a time on this machine: two would keep each other from their shares, so that
/// neither has had its own.
fn only_thief() -> File {
    let place = File::open(std::env::temp_dir()).expect("a directory");
    place.lock().expect("its lock");
    place
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

    let _only = only_thief();
    let prefix = job.prefix();
    let coordinator = format!(
        "export SCRFS_SEAL_TIMEOUT={SEAL_TIMEOUT} THIEF_NOTES={prefix}/notes
         LD_PRELOAD={prefix}/thief.so exec {BIN}/scrfs-coordinator --attach --mount {SCR} --prefix {prefix} \
             --job-id thief"
    );
    let mut coordinator = job.on(0).limit(HELD).sh(&coordinator).spawn().expect("a coordinator");
    job.await_coordinator(0);
    job.on(0).run(&format!("mkdir {SCR}/d")).must();
    let mut writer = writer(&job, 0, &format!("{SCR}/d/b"));
    let touch = job.on(0).limit(HELD).sh(&format!("touch {SCR}/d/.complete")).spawn();
    let mut touch = touch.expect("a shell");
    let told = "have had their share of the processors";
    wait::until_true("an event", LIMIT, || job.events(0).contains(told));
    // Somebody waits still, and another asks: nothing is raised for them. Where this comes later
    // than 15 s after the event they may go first again, and are to step back again.
    let notes = || fs::read_to_string(job.host_prefix().join("notes")).unwrap_or_default();
    let ask = format!("mkdir {SCR}/e && rmdir {SCR}/e && {BIN}/scrfs-ctl status --mount {SCR}");
    let refused = wait::poll(LIMIT, || {
        let before = notes();
        let status = job.on(0).run(&ask).must().to_owned();
        let stepped_back = status.contains("do not go before programs that spin: stepped back: their share");
        (before.ends_with("lowered\n") && stepped_back && notes() == before).then_some(())
    });
    assert!(refused.is_some(), "{}\n{}", notes(), job.events(0));
    assert!(touch.try_wait().expect("wait").is_none(), "{}", job.events(0));
    assert_eq!(job.events(0).matches(told).count(), 1, "{}", job.events(0));
    drop(writer.stdin.take());
    for child in [&mut touch, &mut coordinator, &mut writer] {
        child.kill().expect("kill");
        child.wait().expect("wait");
    }
}

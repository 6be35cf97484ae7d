//! A PFS that takes requests and answers none: a daemon that was killed meanwhile cannot end, and
//! has its locks and its mount still. What it has left is cleared away, and nobody waits for it.

use scrfs_harness::job::{Job, SOON};
use scrfs_harness::place::{BIN, CACHE, SCR, USERS};
use scrfs_harness::shell::Ran;
use scrfs_harness::{Cluster, programs, wait};

use crate::scavenge::{all_are, job, killed_after};

#[test]
fn what_a_killed_daemon_leaves_is_cleared_away() {
    let cluster = Cluster::up(4);
    let job = job(&cluster, "stuck");
    killed_after(&job, &["ck"]);
    hang(&job, 3);
    the_supervisor_lives(&job, 3);
    answers_again(&job, 3);
    hang(&job, 2);
    both_are_killed(&job, 2);
    answers_again(&job, 2);
    // On the other nodes nothing has happened.
    all_are(&job.end([0, 1], &["--save", "60"]), true, "ck (dataset 1): saved, and not published");
}

/// The PFS of a node takes requests and answers none, one of the daemon's among them.
fn hang(job: &Job<'_>, node: usize) {
    job.on(node).run(&programs::hanging(&job.prefix())).must();
    all_are(&job.end([node], &["--save", "1"]), false, "ck (dataset 1): not done in 1 s");
}

/// The PFS is there again, and what was killed has ended.
fn answers_again(job: &Job<'_>, node: usize) {
    job.on(node).run(&format!("pkill -KILL -f hangin[g].py; umount -l {}", job.prefix())).must();
    let gone = || job.on(node).run("! pgrep -x scrfs").ok();
    wait::until_true("the end of what was killed", SOON, gone);
    job.on(node).run(&format!("! mountpoint -q {SCR} && test ! -e {CACHE}/root/scr.stuck")).must();
}

fn kill(job: &Job<'_>, node: usize, lock: &str) {
    job.on(node).run(&format!("kill -9 $(cat /run/scrfs/root/scr.stuck/{lock}.lock)")).must();
}

fn is_mounted(job: &Job<'_>, node: usize) -> bool {
    job.on(node).run("grep -q scr.stuck /proc/self/mountinfo").ok()
}

fn discard(job: &Job<'_>, node: usize) -> Ran {
    job.on(node).run(&format!("timeout -k 1 60 {BIN}/scrfs sweep --alive none --discard"))
}

/// Its supervisor waits for the worker's end.
fn the_supervisor_lives(job: &Job<'_>, node: usize) {
    kill(job, node, "worker");
    let other = job.clone().with_id("other").try_mount(node);
    assert!(
        other.err.contains("/scr is a mount point of scrfs@/run/scrfs/root/scr.stuck already"),
        "{other}"
    );
    // A Prolog that runs again hears of it.
    let again = job.try_mount(node);
    assert!(!again.ok() && again.err.contains("was killed and has not ended"), "{again}");
    assert!(is_mounted(job, node));
    let link =
        format!("ln -s {SCR} /tmp/link && ! timeout -k 1 20 {BIN}/scrfs mount --job-id other /tmp/link");
    job.on(node).run(&link).must();
    let swept = discard(job, node);
    assert!(swept.ok() && swept.err.contains("what was not saved is lost: "), "{swept}");
    assert!(!is_mounted(job, node));
    goes_on(job, node);
}

/// Both are killed: nobody but the next mount or sweep detaches what they have left.
fn both_are_killed(job: &Job<'_>, node: usize) {
    kill(job, node, "supervisor");
    kill(job, node, "worker");
    let again = job.try_mount(node);
    assert!(
        !again.ok() && again.err.contains("was killed and has not ended: a file system may not answer it"),
        "{again}"
    );
    assert!(!is_mounted(job, node), "it was detached");
    goes_on(job, node);
    let swept = discard(job, node);
    assert!(swept.ok() && swept.err.contains("/root/scr.stuck is removed"), "{swept}");
}

/// Another job mounts, uses its mount, and ends.
fn goes_on(job: &Job<'_>, node: usize) {
    let next = job.clone().with_id("next");
    next.mount([node]);
    job.on(node).run(&format!("echo all > {SCR}/f && grep all {SCR}/f")).must();
    all_are(&next.end([node], &["--purge"]), true, "is removed");
}

/// What another user has mounted over a file is not asked.
#[test]
fn print_waits_for_no_stranger() {
    let cluster = Cluster::up(1);
    let mate = cluster.on(0).user(USERS[1].1);
    cluster.on(0).run("echo user_allow_other >> /etc/fuse.conf").must();
    let file = format!("{CACHE}/summary.scr");
    mate.run(&format!("touch {file} && {}", programs::hanging(&file))).must();
    let printed = cluster.on(0).run(&format!("timeout -k 1 20 {BIN}/scrfs-ctl print {file}"));
    mate.run(&format!("fusermount3 -u {file}")).must();
    assert!(printed.code == 1 && printed.err.contains("something is mounted there"), "{printed}");
}

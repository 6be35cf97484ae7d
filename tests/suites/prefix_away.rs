//! The prefix goes away under a job: it restarts from the caches all the same, and nothing waits
//! for the prefix for ever. What the restart presents was rebuilt; the program compares every byte.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use scrfs_harness::job::{Job, Running, SOON};
use scrfs_harness::programs::program;
use scrfs_harness::{Cluster, wait};

const LIMIT: Duration = Duration::from_mins(3);
const HOSTS: [usize; 5] = [0, 1, 2, 3, 4];

fn start(job: &Job<'_>, hosts: &[usize], steps: &str) -> Running {
    let (program, [hold, at]) = (program("ckpt"), job.hold_at(5));
    job.start(hosts, 4, 1, &[&program, "/scr", &job.log_path(), steps, "uneven", "pause=200", &hold, &at])
}

/// Takes the power of node 2, before the program has gone beyond step 5.
fn lose_node2(cluster: &Cluster, job: &Job<'_>) {
    cluster.poweroff(2);
    job.let_go();
}

/// The steps that starts went on from.
fn started_after(job: &Job<'_>) -> Vec<u64> {
    job.log().iter().filter_map(|l| l.strip_prefix("start after ")?.parse().ok()).collect()
}

/// The program ends well, on a second start that came after step 4 or a later one; `code` is that
/// of scrfs-run.
#[track_caller]
fn goes_on(job: &Job<'_>, run: &mut Running, steps: u64, code: i32) {
    assert_eq!(run.wait(LIMIT), code, "{}\n{}", run.output(), job.events(0));
    let starts = started_after(job);
    assert!(starts.len() == 2 && starts[1] >= 4, "{starts:?}\n{}", run.output());
    assert_eq!(job.sealed().last(), Some(&steps));
    assert!(run.output().contains("cannot be written"), "{}", run.output());
    let events = job.events(0);
    assert!(events.contains("cannot be written"), "{events}");
}

#[test]
fn a_file_in_its_place_and_the_user_file_gone_with_it() {
    let cluster = Cluster::up(5);
    // Every fourth is to be flushed, and cannot be.
    let job = Job::new(&cluster, "replaced").set("SCR_FLUSH", "4");
    job.mount(HOSTS);
    let prefix = job.host_prefix();
    fs::write(prefix.join(".scrconf"), "SCR_CACHE_SIZE=1\n").unwrap();
    let mut run = start(&job, &HOSTS, "7");
    // Long before the fourth.
    run.await_line(&job, "sealed 1", SOON);
    fs::rename(&prefix, prefix.with_extension("gone")).unwrap();
    fs::write(&prefix, b"no directory").unwrap();
    run.await_line(&job, "sealed 4", SOON);
    lose_node2(&cluster, &job);
    // The program has ended with 0, and what was due is not on the PFS.
    goes_on(&job, &mut run, 7, 1);
    assert!(run.output().contains("on the PFS: ck.4 (dataset 4, "), "{}", run.output());
    // What the user file had set still holds: besides 4, which stays until its flush is given up,
    // only the newest is kept.
    let kept = job.on(0).run("/run/sim/bin/scrfs-ctl list --mount /scr").must().to_owned();
    assert_eq!(kept.lines().filter(|line| !line.ends_with("\tck.4")).count(), 1, "{kept}");
}

#[test]
fn one_that_the_jobs_user_may_only_read_and_then_not_even_that() {
    let cluster = Cluster::up(5);
    let job = Job::unprivileged(&cluster, "readonly");
    job.mount(HOSTS);
    let mode = |mode: u32| {
        let records = job.host_prefix().join(".scr");
        for directory in [records, job.host_prefix()] {
            fs::set_permissions(directory, fs::Permissions::from_mode(mode)).unwrap();
        }
    };
    let mut run = start(&job, &HOSTS, "8");
    run.await_line(&job, "sealed 4", SOON);
    mode(0o555);
    lose_node2(&cluster, &job);
    goes_on(&job, &mut run, 8, 0);

    // A new scrfs-run does not need it either, and says so at once.
    mode(0);
    let mut again = start(&job, &[0, 1, 3, 4], "9");
    let code = again.wait(LIMIT);
    let text = again.output();
    assert_eq!(code, 0, "{text}");
    assert_eq!(started_after(&job).last(), Some(&8), "{text}");
    assert!(text.contains("scrfs-run: warning: ") && text.contains("\nhint: name a directory"), "{text}");
    mode(0o755);
}

/// Stops the processes `pids` of the FUSE server of `mount` at a moment when no request of a
/// program is with them. A process whose request a stopped server has read cannot be ended by any
/// signal, which no restart can mend.
pub(crate) fn stop_between_requests(pids: &str, mount: &str) -> String {
    format!(
        "set -e; pids=$({pids}); connection=$(mountpoint -d {mount} | cut -d: -f2); mount -t fusectl none /mnt
        threads() {{ for pid in $pids; do cat /proc/$pid/task/*/status; done | grep ^State:; }}
        while :; do
            kill -STOP $pids
            while threads | grep -qv 'T (stopped)'; do :; done
            test $(cat /mnt/$connection/waiting) -ne 0 || break
            kill -CONT $pids; sleep 0.01
        done; umount /mnt"
    )
}

#[test]
fn one_that_does_not_answer() {
    let cluster = Cluster::up(5);
    let job = Job::new(&cluster, "silent");
    job.mount(HOSTS);
    // On the lead's node the prefix is a file system of its own, whose server is stopped.
    let server = "--job-id pfsserver --cache-base /cache --control-base /dev/shm --checkpoint-path data";
    let line = format!("/run/sim/bin/scrfs mount {server} {}", job.prefix());
    job.on(0).run(&line).must();
    let mut run = start(&job, &HOSTS, "8");
    run.await_line(&job, "sealed 4", SOON);
    job.on(0).run(&format!("test -e {}/.scr/epoch.1", job.prefix())).must();
    job.on(0).run(&stop_between_requests("pgrep -f 'job-id.pfsserve[r]'", &job.prefix())).must();
    lose_node2(&cluster, &job);
    goes_on(&job, &mut run, 8, 0);
    wait::until_true("coordinators to end", SOON, || !job.on(0).run("pgrep -x scrfs-coordinat").ok());
}

//! Nodes and caches are lost; what comes back is byte for byte what was sealed, or nothing.
//!
//! The program itself compares: every rank reads its own files and its right neighbour's after a restart.

use std::time::Duration;

use scrfs_harness::Cluster;
use scrfs_harness::job::{Job, Running};
use scrfs_harness::place::CACHE;
use scrfs_harness::programs::program;

const LIMIT: Duration = Duration::from_mins(2);

/// Runs the uneven program (several files per rank, rank 1 without any, an empty one, blanks, subdirectories).
fn uneven(job: &Job<'_>, hosts: &[usize], steps: &str) -> Running {
    let program = program("ckpt");
    let mut run = job.start(hosts, 4, 1, &[&program, "/scr", &job.log_path(), steps, "uneven"]);
    assert_eq!(run.wait(LIMIT), 0, "{}", run.output());
    run
}

fn started_after(job: &Job<'_>) -> Vec<u64> {
    job.log().iter().filter_map(|l| l.strip_prefix("start after ")?.parse().ok()).collect()
}

#[test]
fn any_one_node_is_rebuilt_on_the_spare_or_after_its_reboot() {
    let cluster = Cluster::up(5);
    let job = Job::new(&cluster, "anyone");
    job.mount(0..5);
    uneven(&job, &[0, 1, 2, 3, 4], "2");
    let mut steps = 2;
    // Node 0 is replaced by the spare, node 4; the others come back empty, one after the other.
    cluster.poweroff(0);
    steps += 1;
    let mut run = uneven(&job, &[1, 2, 3, 4], &steps.to_string());
    assert_eq!(run.wait(LIMIT), 0);
    for lost in 1..4 {
        cluster.kill(lost);
        cluster.boot(lost).unwrap();
        job.mount([lost]);
        steps += 1;
        uneven(&job, &[1, 2, 3, 4], &steps.to_string());
    }
    assert_eq!(started_after(&job), [0, 2, 3, 4, 5], "{:?}", job.log());
}

#[test]
fn newest_gone_on_two_nodes_gives_the_older_cached_one() {
    let cluster = Cluster::up(4);
    let job = Job::new(&cluster, "older");
    job.mount(0..4);
    uneven(&job, &[0, 1, 2, 3], "3");
    for node in [1, 2] {
        // Behind the daemon's back, as a broken disk would: the newest dataset's files and redundancy data.
        let newest = format!(
            "set -e; cd {CACHE}/root/scr.older; find . -path '*ck.3/*' -type f -delete; rm -rf ./*dataset.3"
        );
        cluster.on(node).run(&newest).must();
    }
    uneven(&job, &[0, 1, 2, 3], "3");
    assert_eq!(started_after(&job), [0, 2], "{:?}", job.log());
}

#[test]
fn two_nodes_gone_gives_the_prefix_and_without_it_nothing() {
    let cluster = Cluster::up(4);
    let job = Job::new(&cluster, "prefix").set("SCR_FLUSH", "2");
    job.mount(0..4);
    uneven(&job, &[0, 1, 2, 3], "3");
    // Ids 2 is on the PFS; 3 is not.
    let lose_two = || {
        for node in [0, 2] {
            cluster.kill(node);
            cluster.boot(node).unwrap();
        }
        job.mount([0, 2]);
    };
    lose_two();
    let mut run = uneven(&job, &[0, 1, 2, 3], "2");
    assert_eq!(run.wait(LIMIT), 0);
    assert_eq!(started_after(&job), [0, 2], "{:?}", job.log());

    // What was fetched is protected again: one node may go.
    cluster.kill(1);
    cluster.boot(1).unwrap();
    job.mount([1]);
    uneven(&job, &[0, 1, 2, 3], "2");
    assert_eq!(started_after(&job), [0, 2, 2], "{:?}", job.log());

    // Neither cache nor prefix: a clear word, an empty checkpoint path, a start from the beginning.
    lose_two();
    let hidden = job.host_prefix().join("hidden");
    std::fs::create_dir(&hidden).unwrap();
    std::fs::rename(job.host_prefix().join(".scr"), hidden.join(".scr")).unwrap();
    std::fs::rename(job.host_prefix().join("ck.2"), hidden.join("ck.2")).unwrap();
    let mut run = job.start(
        &[0, 1, 2, 3],
        4,
        1,
        &["/bin/sh", "-c", "test -z \"$SCRFS_CURRENT\" && test -z \"$(ls -A /scr)\""],
    );
    assert_eq!(run.wait(LIMIT), 0, "{}", run.output());
    assert!(run.output().contains("no checkpoint"), "{}", run.output());
}

#[test]
fn a_flipped_bit_in_the_cache_is_rebuilt_not_presented() {
    let cluster = Cluster::up(4);
    let job = Job::new(&cluster, "bitflip");
    job.mount(0..4);
    uneven(&job, &[0, 1, 2, 3], "1");
    let flip = format!(
        "set -e; cd {CACHE}/root/scr.bitflip; f=$(find . -path '*ck.1/*' -name 'rank 3 part 0.ckpt'); test -n \"$f\"; \
         printf '\\377\\000\\377' | dd of=\"$f\" bs=1 seek=1000 conv=notrunc status=none"
    );
    cluster.on(3).run(&flip).must();
    uneven(&job, &[0, 1, 2, 3], "1");
    assert_eq!(started_after(&job), [0, 1], "{:?}", job.log());
}

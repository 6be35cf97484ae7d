//! What a program leaves unsealed has taken the room of the dataset that a restart is to present.

use std::time::Duration;

use scrfs_harness::Cluster;
use scrfs_harness::cluster::Config;
use scrfs_harness::job::{Job, SOON};
use scrfs_harness::place::{CACHE, SCR};
use scrfs_harness::wait;

const LIMIT: Duration = Duration::from_mins(2);

fn cluster(nodes: usize) -> Cluster {
    Cluster::start(&Config { cache_size: "64m".into(), ..Config::new(nodes) }).expect("a cluster")
}

/// The program has failed, and what it had not sealed takes the room of the dataset that it is to
/// go on from, bytes or names: that has left the caches, and is on the PFS.
#[test]
fn what_is_not_sealed_goes_before_what_is_fetched_needs_its_room() {
    let cluster = cluster(1);
    let program = |rest: &str| {
        format!(
            "if test \"$SCRFS_CURRENT\"; then yes one | head -c 40M | cmp - {SCR}/ck.1/f; exit; fi
             mkdir {SCR}/ck.1 && yes one | head -c 40M > {SCR}/ck.1/f && touch {SCR}/ck.1/.complete &&
             scrfs-ctl wait ck.1 --flushed --limit 60 && mkdir {SCR}/ck.2 &&
             while test -e {SCR}/ck.1; do sleep .1; done; cd {SCR}/ck.2; {rest}; exit 1"
        )
    };
    for (name, rest) in [
        ("bytes", "head -c 40M /dev/urandom > f"),
        ("names", "seq 5000 | xargs touch; df -i . | tail -n 1 | grep -q ' 0 ' || exit 0"),
    ] {
        let job = Job::new(&cluster, name).set("SCR_FLUSH", "1").set("SCR_RUNS", "1");
        job.mount([0]);
        if name == "names" {
            cluster.on(0).run(&format!("mount -o remount,nr_inodes=400 {CACHE}")).must();
        }
        let line = program(rest);
        let words = ["/bin/sh", "-c", &line];
        let kept = job.clone().option("--keep-unsealed");
        assert_eq!(kept.start(&[0], 1, 1, &words).wait(LIMIT), 1);
        // Kept, it takes the room still: that is said, and nothing is lost.
        let mut run = kept.start(&[0], 1, 1, &words);
        assert_ne!(run.wait(LIMIT), 0, "{name}: {}", run.output());
        let said = run.output();
        assert!(said.contains("ck.1 (dataset 1) needs more room: "), "{said}");
        assert!(said.contains("--keep-unsealed"), "{said}");
        let mut run = job.start(&[0], 1, 1, &words);
        assert_eq!(run.wait(LIMIT), 0, "{name}: {}\n{}", run.output(), job.events(0));
        assert!(job.events(0).contains("ck.2: what is not sealed is removed, as a dataset needs its room"));
        assert!(job.end([0], &["--purge"])[0].ok());
    }
}

/// One of two has room; what is there goes on both before anything is fetched again.
#[test]
fn it_goes_on_all_nodes_when_one_has_no_room() {
    let cluster = cluster(2);
    let job = Job::new(&cluster, "nodes").set("SCR_FLUSH", "1").set("SCR_COPY_TYPE", "LOCAL");
    job.mount(0..2);
    let mut run = job.idle(&[0, 1]);
    job.on(0).run(&format!("mkdir {SCR}/ck.1")).must();
    for node in 0..2 {
        job.on(node).run(&format!("yes {node} | head -c 40M > {SCR}/ck.1/f{node}")).must();
    }
    job.on(0).run(&format!("touch {SCR}/ck.1/.complete")).must();
    wait::until_true("ck.1 on the PFS", SOON, || job.state(0, "ck.1") == "flushed");
    job.on(0).run(&format!("mkdir {SCR}/ck.2")).must();
    wait::until_true("ck.1 to leave", SOON, || job.on(1).run(&format!("ls {SCR}")).must() == "ck.2");
    job.on(0).run(&format!("head -c 1M /dev/zero > {SCR}/ck.2/f0")).must();
    // What has left is deleted behind that.
    let fills = || job.on(1).run(&format!("head -c 40M /dev/zero > {SCR}/ck.2/f1")).ok();
    wait::until_true("the room of ck.1", SOON, fills);
    run.stop();
    let mut run = job.idle(&[0, 1]);
    for node in 0..2 {
        assert_eq!(job.on(node).run(&format!("ls {SCR}")).must(), "ck.1", "{}", job.events(node));
        job.on(node).run(&format!("yes {node} | head -c 40M | cmp - {SCR}/ck.1/f{node}")).must();
        assert!(
            job.events(node).contains("ck.2: what is not sealed is removed, as a dataset needs its room")
        );
    }
    run.stop();
}

/// The member of a lost node is to be rebuilt where unsealed files fill the cache, with what
/// protects it: the next loss costs nothing either.
#[test]
fn so_it_does_for_what_is_rebuilt_and_for_what_protects_it() {
    let cluster = cluster(4);
    let job = Job::new(&cluster, "rebuilt").set("SCR_FLUSH", "0").set("SCR_FETCH", "0");
    job.mount(0..4);
    let mut run = job.idle(&[0, 1, 2, 3]);
    job.on(0).run(&format!("mkdir {SCR}/ck.1")).must();
    for node in 0..4 {
        job.on(node).run(&format!("yes {node} | head -c 6M > {SCR}/ck.1/f{node}")).must();
    }
    job.on(0).run(&format!("touch {SCR}/ck.1/.complete")).must();
    job.on(0).run(&format!("mkdir {SCR}/ck.2")).must();
    for node in 0..4 {
        let filled = job.on(node).run(&format!("cat /dev/zero > {SCR}/ck.2/f{node}"));
        assert!(filled.err.contains("No space left"), "{filled}");
    }
    run.stop();
    cluster.poweroff(3);
    for left in [&[0, 1, 2][..], &[0, 1]] {
        let mut run = job.idle(left);
        for of in 0..4 {
            let line = format!("yes {of} | head -c 6M | cmp - {SCR}/ck.1/f{of}");
            job.on(0).run(&line).must();
        }
        run.stop();
        if left.len() == 3 {
            assert!(job.events(0).contains("as a dataset needs its room"), "{}", job.events(0));
            cluster.poweroff(2);
        }
    }
}

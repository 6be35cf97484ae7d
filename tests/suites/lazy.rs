//! Lazy restarts (`SCRFS_RESTART=lazy`): programs start when all names are there, and what was lost
//! is rebuilt behind them.

use scrfs_harness::job::{Job, Running, SOON};
use scrfs_harness::place::{CACHE, SCR};
use scrfs_harness::{Cluster, wait};

use super::recovery::{flip, runs, seal_two_each, state, sums};

/// Four nodes and a spare; the PFS is out of it.
fn lazy<'a>(cluster: &'a Cluster, name: &str) -> Job<'a> {
    let job = Job::new(cluster, name).set("SCR_FLUSH", "0").set("SCR_FETCH", "0");
    let job = job.set("SCRFS_RESTART", "lazy");
    job.mount(0..5);
    job
}

/// The program runs on these nodes.
fn start(job: &Job<'_>, hosts: [usize; 4]) -> Running {
    let mut run = job.start(&hosts, 4, 1, &["/bin/sleep", "600"]);
    wait::until_true("the program on all nodes", SOON, || {
        let ended = run.try_code();
        assert_eq!(ended, None, "{}", run.output());
        hosts.iter().all(|node| runs(job, *node))
    });
    run
}

/// Members of `ck` that no node has yet, as this node knows.
fn restoring(job: &Job<'_>, node: usize) -> u64 {
    let status = job.status(node).unwrap_or_default();
    status["datasets"][0]["restoring"].as_u64().unwrap_or(u64::MAX)
}

fn await_whole(job: &Job<'_>, hosts: [usize; 4]) {
    for node in hosts {
        wait::until_true(&format!("ck to be protected, says node{node}"), SOON, || {
            state(job, node, "ck") == ("protected".to_owned(), true) && restoring(job, node) == 0
        });
    }
}

#[test]
fn programs_start_before_what_was_lost_is_rebuilt_and_an_open_waits_for_that() {
    let cluster = Cluster::up(5);
    let job = lazy(&cluster, "lazy");
    let mut run = start(&job, [0, 1, 2, 3]);
    let written = seal_two_each(&job, 4, "ck");
    run.stop();
    cluster.poweroff(1);
    job.arm("rebuild.start=wait");
    let hosts = [0, 4, 2, 3];
    let mut run = start(&job, hosts);
    for node in hosts {
        let listed =
            job.on(node).run(&format!("cd {SCR}/ck && stat -c '%n %s' big.* .complete")).must().to_owned();
        let sizes = "big.0 100000\nbig.1 200000\nbig.2 300000\nbig.3 400000\n.complete 0";
        assert_eq!(listed.trim(), sizes, "on node{node}");
    }
    assert_eq!(sums(&job, 4, 2, "ck"), written[2], "what is there is read meanwhile");
    let status = job.status(0).expect("it is mounted");
    assert_eq!((state(&job, 0, "ck").0.as_str(), restoring(&job, 0)), ("sealed", 1), "{status}");
    assert!(status["datasets"][0]["survives"].to_string().contains("false"), "{status}");
    let shown = job.on(0).run("scrfs-ctl status").must().to_owned();
    assert!(shown.contains("ck: 1 of its members are on no node yet"), "{shown}");

    let mut open = job.on(3).sh(&format!("cd {SCR}/ck; md5sum big.1 small.1 > /tmp/sums")).spawn().unwrap();
    wait::until_true("the open to wait", SOON, || {
        job.status(3).is_some_and(|status| status["waiting"].as_u64() > Some(0))
    });
    assert!(open.try_wait().unwrap().is_none(), "it waits");
    job.arm("rebuild.start=wait@1000");
    assert!(open.wait().unwrap().success(), "{}", job.events(3));
    assert_eq!(job.on(3).run("cat /tmp/sums").must().trim(), written[1].trim(), "{}", job.events(3));
    await_whole(&job, hosts);
    assert!(job.events(0).contains("all its members are on their nodes again"), "{}", job.events(0));
    run.stop();

    // So another node may be lost.
    cluster.kill(2);
    cluster.boot(2).expect("it boots");
    job.mount([2]);
    let mut run = start(&job, hosts);
    for (of, sum) in written.iter().enumerate() {
        assert_eq!(sums(&job, hosts[(of + 1) % 4], of, "ck"), *sum, "of node{of}");
    }
    await_whole(&job, hosts);
    run.stop();
}

/// Nothing of the caches is read before the program starts.
#[test]
fn programs_start_before_what_is_there_is_verified_and_have_no_bad_bytes() {
    let cluster = Cluster::up(4);
    let job = Job::new(&cluster, "unread").set("SCR_FLUSH", "0").set("SCR_FETCH", "0");
    let job = job.set("SCRFS_RESTART", "lazy");
    job.mount(0..4);
    let hosts = [0, 1, 2, 3];
    let mut run = start(&job, hosts);
    let written = seal_two_each(&job, 4, "ck");
    run.stop();
    flip(&cluster, "unread", 3, "ck/big.3");
    job.arm_daemon("verify.block=wait");
    let mut run = start(&job, hosts);
    for node in hosts {
        let listed = job.on(node).run(&format!("cd {SCR}/ck && stat -c '%n %s' big.* .complete"));
        let sizes = "big.0 100000\nbig.1 200000\nbig.2 300000\nbig.3 400000\n.complete 0";
        assert_eq!(listed.must().trim(), sizes, "on node{node}");
    }
    // One reading behind the programs is held up, and with it the others on its node.
    let unread = |node: usize| {
        let status = job.status(node).expect("it is mounted");
        status["datasets"][0]["unread"].as_u64().expect("a number")
    };
    let held = wait::until("all other nodes to have read theirs", SOON, || {
        // The bad file stays unread until it is rebuilt.
        let left = hosts.map(|node| unread(node).saturating_sub(u64::from(node == 3)));
        let nodes: Vec<usize> = hosts.into_iter().filter(|node| left[*node] > 0).collect();
        (nodes.len() == 1).then(|| nodes[0])
    });
    let shown = job.on(held).run("scrfs-ctl status").must().to_owned();
    assert!(shown.contains("of its files here are not verified yet"), "{shown}");
    assert_eq!(sums(&job, held, held, "ck"), written[held], "no program waits for what is read behind it");
    job.arm_daemon("verify.block=wait@1000");
    wait::until_true("all to be verified", SOON, || hosts.into_iter().all(|node| unread(node) == 0));
    assert_eq!(sums(&job, 3, 3, "ck"), written[3], "{}", job.events(3));
    let is_rebuilt = |node: usize| {
        let text = format!("was bad on node{node} and is rebuilt from its set");
        wait::until_true(&text, SOON, || job.events(0).contains(&text));
    };
    is_rebuilt(3);
    let told = job.events(3);
    assert!(told.contains("a file was bad, and is removed: big.3: 400000 bytes with CRC"), "{told}");
    await_whole(&job, hosts);
    run.stop();

    // Redundancy data, which nobody opens, is verified too: else another loss would cost the
    // dataset.
    let parity = "printf '\\377\\000\\377' | dd bs=1 seek=30000 conv=notrunc status=none of=";
    let file = format!("{CACHE}/root/scr.unread/dataset.*/*.xor");
    cluster.on(0).run(&format!("{parity}$(echo {file})")).must();
    let mut run = start(&job, hosts);
    is_rebuilt(0);
    let told = |text: &str| job.events(0).lines().any(|line| line.contains(text) && line.contains(".xor"));
    assert!(told("is bad: ") && told("has bad bytes: "), "{}", job.events(0));
    await_whole(&job, hosts);
    run.stop();
    cluster.kill(1);
    cluster.boot(1).expect("it boots");
    job.mount([1]);
    let mut run = start(&job, hosts);
    for (of, sum) in written.iter().enumerate() {
        assert_eq!(sums(&job, hosts[(of + 1) % 4], of, "ck"), *sum, "of node{of}");
    }
    run.stop();
}

#[test]
fn successors_of_coordinators_that_die_restore_what_is_left() {
    let cluster = Cluster::up(5);
    let job = lazy(&cluster, "lazier");
    let mut run = start(&job, [0, 1, 2, 3]);
    let written = seal_two_each(&job, 4, "ck");
    run.stop();
    cluster.poweroff(1);
    let hosts = [0, 4, 2, 3];
    for fault in ["rebuild.start=kill@1", "rebuild.block=kill@1", "rebuild.finish=kill@1"] {
        job.arm(fault);
        let mut run = start(&job, hosts);
        wait::until_true(fault, SOON, || job.fired());
        await_whole(&job, hosts);
        assert_eq!(sums(&job, 0, 1, "ck"), written[1], "{fault}");
        run.stop();
        cluster.kill(4);
        cluster.boot(4).expect("it boots");
        job.mount([4]);
    }
}

/// Its files are carried on by the nodes that have them: the seal waits until all are there.
#[test]
fn the_next_generation_of_a_dataset_that_is_not_whole_yet_has_all_its_files() {
    let cluster = Cluster::up(5);
    let job = lazy(&cluster, "onward");
    let mut run = start(&job, [0, 1, 2, 3]);
    let mut written = seal_two_each(&job, 4, "ck");
    run.stop();
    cluster.poweroff(1);
    job.arm("rebuild.start=wait");
    let hosts = [0, 4, 2, 3];
    let mut run = start(&job, hosts);
    job.on(2).run(&format!("cd {SCR}/ck && echo changed > small.2")).must();
    let mut marker = job.on(2).sh(&format!("touch {SCR}/ck/.complete")).spawn().unwrap();
    wait::until_true("the marker to wait", SOON, || {
        job.status(2).is_some_and(|status| status["waiting"].as_u64() > Some(0))
    });
    assert!(marker.try_wait().unwrap().is_none(), "it waits");
    job.arm("rebuild.start=wait@1000");
    assert!(marker.wait().unwrap().success(), "{}", job.events(2));
    written[2] = sums(&job, 2, 2, "ck");
    run.stop();
    cluster.kill(0);
    cluster.boot(0).expect("it boots");
    job.mount([0]);
    let mut run = start(&job, hosts);
    for (of, sum) in written.iter().enumerate() {
        assert_eq!(sums(&job, hosts[(of + 1) % 4], of, "ck"), *sum, "of node{of}");
    }
    run.stop();
}

/// Nothing is left in any cache: names come from what the prefix records, bytes behind them.
#[test]
fn what_only_the_prefix_has_is_listed_at_once_and_fetched_behind_the_program() {
    let cluster = Cluster::up(5);
    let job = Job::new(&cluster, "afar").set("SCR_FLUSH", "1").set("SCRFS_RESTART", "lazy");
    job.mount(0..5);
    let mut run = start(&job, [0, 1, 2, 3]);
    let written = seal_two_each(&job, 4, "ck");
    wait::until_true("the flush", SOON, || state(&job, 0, "ck").0 == "flushed");
    run.stop();
    for node in 0..4 {
        cluster.kill(node);
        cluster.boot(node).expect("it boots");
    }
    job.mount(0..4);
    job.arm_daemon("fetch.block=wait");
    let hosts = [0, 1, 2, 3];
    let mut run = start(&job, hosts);
    for node in hosts {
        let listed = job.on(node).run(&format!("cd {SCR}/ck && stat -c '%n %s' big.* .complete"));
        let sizes = "big.0 100000\nbig.1 200000\nbig.2 300000\nbig.3 400000\n.complete 0";
        assert_eq!(listed.must().trim(), sizes, "on node{node}");
    }
    assert_eq!(restoring(&job, 0), 4, "{}", job.events(0));
    for (of, sum) in written.iter().enumerate() {
        assert_eq!(sums(&job, hosts[(of + 1) % 4], of, "ck"), *sum, "of node{of}, before it is there");
    }
    job.arm_daemon("fetch.block=wait@1000");
    for node in hosts {
        wait::until_true(&format!("ck to be whole, says node{node}"), SOON, || restoring(&job, node) == 0);
    }
    run.stop();

    // It is protected: without the prefix, too, a node may be lost.
    let gone = format!("rm -r {0}/ck {0}/.scr/index.scr", job.prefix());
    job.on(0).run(&gone).must();
    cluster.poweroff(1);
    let hosts = [0, 4, 2, 3];
    let mut run = start(&job, hosts);
    for (of, sum) in written.iter().enumerate() {
        assert_eq!(sums(&job, hosts[(of + 1) % 4], of, "ck"), *sum, "of node{of}, without the prefix");
    }
    run.stop();
}

/// What has come from the prefix goes bad before it is encoded: it is not encoded as it is, and
/// comes again.
#[test]
fn what_goes_bad_before_its_set_is_encoded_is_fetched_again() {
    let cluster = Cluster::up(4);
    let job = Job::new(&cluster, "again").set("SCR_FLUSH", "1").set("SCRFS_RESTART", "lazy");
    job.mount(0..4);
    let hosts = [0, 1, 2, 3];
    let mut run = start(&job, hosts);
    let written = seal_two_each(&job, 4, "ck");
    wait::until_true("the flush", SOON, || state(&job, 0, "ck").0 == "flushed");
    run.stop();
    for node in hosts {
        cluster.kill(node);
        cluster.boot(node).expect("it boots");
    }
    job.mount(0..4);
    // One of them waits, and no set is encoded before all are there.
    job.arm_daemon("fetch.block=wait");
    let mut run = start(&job, hosts);
    let fetched = |node: usize| job.events(node).matches("fetched from the PFS as member").count();
    let node = wait::until("a fetch", SOON, || hosts.into_iter().find(|node| fetched(*node) > 0));
    flip(&cluster, "again", node, &format!("big.{node}"));
    job.arm_daemon("fetch.block=wait@1000");
    for node in hosts {
        wait::until_true(&format!("ck to be whole, says node{node}"), SOON, || restoring(&job, node) == 0);
    }
    assert!(fetched(node) > 1, "{}", job.events(node));
    for (of, sum) in written.iter().enumerate() {
        assert_eq!(sums(&job, hosts[(of + 1) % 4], of, "ck"), *sum, "of node{of}");
    }
    run.stop();
}

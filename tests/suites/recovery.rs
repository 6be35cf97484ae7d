//! Nodes and caches are lost; what comes back is byte for byte what was sealed, or nothing.
//!
//! The program itself compares: every rank reads its own files and its right neighbour's after a
//! restart.

use std::time::Duration;

use scrfs_harness::job::{Job, Running, SOON};
use scrfs_harness::place::{CACHE, SCR};
use scrfs_harness::programs::program;
use scrfs_harness::{Cluster, wait};

const LIMIT: Duration = Duration::from_mins(2);

/// Runs the uneven program (several files per rank, rank 1 without any, an empty one, blanks,
/// subdirectories).
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
    let told = job.events(1);
    assert!(told.contains("are rebuilt from the others: 0 of node0 on node4"), "{told}");
    for lost in 1..4 {
        cluster.kill(lost);
        cluster.boot(lost).unwrap();
        job.mount([lost]);
        steps += 1;
        uneven(&job, &[1, 2, 3, 4], &steps.to_string());
    }
    assert_eq!(started_after(&job), [0, 2, 3, 4, 5], "{:?}", job.log());
    let told = job.events(1);
    assert!(
        told.contains(") leaves the caches: SCR_CACHE_SIZE and SCRFS_CACHE_BYTES have room for 2 others"),
        "{told}"
    );
}

#[test]
fn with_reed_solomon_any_two_nodes_are_rebuilt_and_three_are_too_many() {
    // Neighbours in the ring, and others.
    loses_together("RS", "RS(2)", &[&[0, 1], &[3, 1]], &[0, 1, 4]);
}

#[test]
fn with_partners_every_other_node_is_rebuilt_and_neighbours_are_too_many() {
    loses_together("PARTNER", "PARTNER", &[&[0, 2], &[3, 1]], &[0, 1]);
}

/// Of four nodes those of each of `pairs` come back empty together; then nodes 2 and 3 are replaced
/// by the spares 4 and 5, one after the other with PARTNER, where they are neighbours; then the
/// nodes in `too_many` are lost. `SCR_FETCH=0`: the PFS is out of it. Datasets are encoded in
/// several strips.
fn loses_together(word: &str, shown: &str, pairs: &[&[usize]], too_many: &[usize]) {
    let cluster = Cluster::up(6);
    let job = Job::new(&cluster, "together");
    let job = job.set("SCR_COPY_TYPE", word).set("SCR_FLUSH", "0").set("SCR_FETCH", "0");
    let job = job.set("SCRFS_ENCODE_THREADS", "4").set("SCR_MPI_BUF_SIZE", "4k");
    job.mount(0..6);
    uneven(&job, &[0, 1, 2, 3], "2");
    let status = job.status(0).expect("it is mounted");
    assert_eq!(status["datasets"][0]["scheme"].as_str(), Some(shown), "{status}");
    let lose = |nodes: &[usize]| {
        for &node in nodes {
            cluster.kill(node);
            cluster.boot(node).expect("it boots");
        }
        job.mount(nodes.iter().copied());
    };
    let (mut steps, mut started) = (2, vec![0]);
    let mut goes_on = |hosts: &[usize]| {
        started.push(steps);
        steps += 1;
        uneven(&job, hosts, &steps.to_string());
        assert_eq!(started_after(&job), started, "{:?}", job.log());
    };
    for pair in pairs {
        lose(pair);
        goes_on(&[0, 1, 2, 3]);
    }
    cluster.poweroff(2);
    if word == "PARTNER" {
        goes_on(&[0, 1, 4, 3]);
    }
    cluster.poweroff(3);
    goes_on(&[0, 1, 4, 5]);
    lose(too_many);
    uneven(&job, &[0, 1, 4, 5], "1");
    started.push(0);
    assert_eq!(started_after(&job), started, "{:?}", job.log());
}

#[test]
fn a_dataset_whose_files_all_went_on_one_node_is_rebuilt_there() {
    let cluster = Cluster::up(4);
    let job = Job::new(&cluster, "emptied").set("SCR_FLUSH", "0");
    job.mount(0..4);
    uneven(&job, &[0, 1, 2, 3], "2");
    job.unmount(1).must();
    // What is known of it is in the control directory, and stays.
    let line = format!("rm -r {CACHE}/root/scr.*/dataset.* {CACHE}/root/scr.*/tree/ck.*");
    cluster.on(1).run(&line).must();
    job.mount([1]);
    uneven(&job, &[0, 1, 2, 3], "3");
    assert_eq!(started_after(&job), [0, 2], "{:?}", job.log());
}

#[test]
fn datasets_below_a_checkpoint_path_of_their_own() {
    let cluster = Cluster::up(5);
    let job = Job::new(&cluster, "below").set("SCRFS_CHECKPOINT_PATH", "run/ckpt").set("SCR_FLUSH", "2");
    let program = program("ckpt");
    let to = |hosts: &[usize], steps: &str| {
        let place = format!("{SCR}/run/ckpt");
        let mut run = job.start(hosts, 4, 1, &[&program, &place, &job.log_path(), steps, "uneven"]);
        assert_eq!(run.wait(LIMIT), 0, "{}", run.output());
    };
    job.mount(0..5);
    to(&[0, 1, 2, 3, 4], "3");
    job.on(2).run(&format!("echo mine > {SCR}/notes && mkdir -p {SCR}/scratch/ck.9")).must();
    cluster.poweroff(1);
    to(&[0, 2, 3, 4], "4");
    // Older ones make room, names elsewhere are nobody's business.
    for node in [0, 2, 3, 4] {
        assert_eq!(job.on(node).run(&format!("ls {SCR}/run/ckpt")).must(), "ck.3\nck.4");
    }
    assert_eq!(job.on(2).run(&format!("ls {SCR}")).must(), "notes\nrun\nscratch");
    assert_eq!(job.on(0).run(&format!("ls {SCR}")).must(), "run");
    // From the prefix alone: 4 was flushed.
    for node in [0, 2, 3, 4] {
        cluster.kill(node);
        cluster.boot(node).unwrap();
    }
    job.mount([0, 2, 3, 4]);
    to(&[0, 2, 3, 4], "5");
    assert_eq!(started_after(&job), [0, 3, 4], "{:?}", job.log());
}

#[test]
fn newest_gone_on_two_nodes_gives_the_older_cached_one() {
    let cluster = Cluster::up(4);
    let job = Job::new(&cluster, "older");
    job.mount(0..4);
    uneven(&job, &[0, 1, 2, 3], "3");
    for node in [1, 2] {
        // Behind the daemon's back, as a broken disk would: the newest dataset's files and
        // redundancy data.
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
fn a_restart_uses_the_cache_and_the_pfs_only_where_the_job_lets_it() {
    let cluster = Cluster::up(4);
    let mut job = Job::new(&cluster, "sources").set("SCR_FLUSH", "2");
    job.mount(0..4);
    uneven(&job, &[0, 1, 2, 3], "3");
    let lose = |job: &Job<'_>, nodes: &[usize]| {
        for node in nodes {
            cluster.kill(*node);
            cluster.boot(*node).unwrap();
            job.mount([*node]);
        }
    };
    // The newest is on no PFS: only the cache has it.
    lose(&job, &[1]);
    job = job.set("SCR_FETCH", "0");
    uneven(&job, &[0, 1, 2, 3], "3");
    // The newest on the PFS, though the cache has a newer one.
    job = job.set("SCR_FETCH", "1").set("SCR_DISTRIBUTE", "0");
    uneven(&job, &[0, 1, 2, 3], "2");
    // Neither has one.
    lose(&job, &[0, 1, 2, 3]);
    job = job.set("SCR_FETCH", "0").set("SCR_DISTRIBUTE", "1");
    uneven(&job, &[0, 1, 2, 3], "0");
    assert_eq!(started_after(&job), [0, 3, 2, 0], "{:?}", job.log());
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

/// Changes bytes of a sealed file in the cache of a node, behind the daemon's back and at the same
/// size.
pub(super) fn flip(cluster: &Cluster, job: &str, node: usize, file: &str) {
    let line = format!(
        "set -e; f=$(find {CACHE}/root/scr.{job}/tree -path '*/{file}'); test -n \"$f\"; \
         printf '\\377\\000\\377' | dd of=\"$f\" bs=1 seek=1000 conv=notrunc status=none"
    );
    cluster.on(node).run(&line).must();
}

/// Every node writes two files into dataset `name`, and its marker is set; their checksums where
/// they were written.
pub(super) fn seal_two_each(job: &Job<'_>, nodes: usize, name: &str) -> Vec<String> {
    job.on(0).run(&format!("mkdir {SCR}/{name}")).must();
    for node in 0..nodes {
        let line = format!(
            "cd {SCR}/{name} && head -c {}00000 /dev/urandom > big.{node} && head -c 5000 /dev/urandom > small.{node}",
            node + 1
        );
        job.on(node).run(&line).must();
    }
    job.on(1).run(&format!("touch {SCR}/{name}/.complete")).must();
    (0..nodes).map(|node| sums(job, node, node, name)).collect()
}

/// Checksums of the files that `of` wrote, as node `node` reads them.
pub(super) fn sums(job: &Job<'_>, node: usize, of: usize, name: &str) -> String {
    job.on(node).run(&format!("cd {SCR}/{name} && md5sum big.{of} small.{of}")).must().to_owned()
}

fn idle(job: &Job<'_>) -> Running {
    await_end(job);
    let run = job.start(&[0, 1, 2, 3], 4, 1, &["/bin/sleep", "600"]);
    for node in 0..4 {
        job.await_coordinator(node);
    }
    run
}

/// Is the program itself running there? It is started once all mounts present their datasets.
pub(super) fn runs(job: &Job<'_>, node: usize) -> bool {
    job.on(node).run("pgrep -f '^(/bin/)?sleep 600$'").ok()
}

fn await_end(job: &Job<'_>) {
    for node in 0..4 {
        wait::until_true("the end of the former program", SOON, || !runs(job, node));
    }
}

fn await_listed(job: &Job<'_>, name: &str) {
    for node in 0..4 {
        wait::until_true(&format!("{name} to be presented"), SOON, || {
            runs(job, node) && job.on(node).run(&format!("test -e {SCR}/{name}/.complete")).ok()
        });
    }
}

pub(super) fn state(job: &Job<'_>, node: usize, name: &str) -> (String, bool) {
    let status = job.status(node).unwrap_or_default();
    let datasets = status["datasets"].as_array().cloned().unwrap_or_default();
    let found = datasets.iter().find(|d| d["name"] == name).cloned().unwrap_or_default();
    (found["state"].as_str().unwrap_or("").to_owned(), found["current"] == true)
}

#[test]
fn bytes_that_go_bad_while_a_program_runs_are_rebuilt_for_who_opens_them() {
    let cluster = Cluster::up(4);
    let job = Job::new(&cluster, "mend");
    job.mount(0..4);
    let mut run = idle(&job);
    let written = seal_two_each(&job, 4, "ck");
    flip(&cluster, "mend", 3, "ck/big.3");
    assert_eq!(sums(&job, 0, 3, "ck"), written[3], "{}", job.events(0));
    assert!(job.events(0).contains("is rebuilt from its set"), "{}", job.events(0));
    assert_eq!(sums(&job, 3, 3, "ck"), written[3], "the writer has right bytes again");

    // What is missing where it was written is found at its own open.
    let lose = format!("set -e; cd {CACHE}/root/scr.mend/tree/ck; rm big.2; truncate -s 7 small.2");
    cluster.on(2).run(&lose).must();
    assert_eq!(sums(&job, 2, 2, "ck"), written[2], "{}", job.events(2));

    // Coordinators that die in the middle leave it to their successors.
    for fault in ["rebuild.start=kill@1", "rebuild.block=kill@1", "rebuild.finish=kill@1"] {
        flip(&cluster, "mend", 1, "ck/big.1");
        job.arm(fault);
        // Not opened there yet, or taken from there since.
        cluster.on(2).run(&format!("rm -f {CACHE}/root/scr.mend/tree/ck/big.1")).must();
        assert_eq!(sums(&job, 2, 1, "ck"), written[1], "{fault}: {}", job.events(2));
        assert!(job.fired(), "{fault} has not fired");
    }
    for node in 0..4 {
        assert_eq!(state(&job, node, "ck"), ("protected".to_owned(), true), "node{node}");
    }
    run.stop();
    // One node may be lost still: what was rebuilt has its parity.
    cluster.kill(0);
    cluster.boot(0).unwrap();
    job.mount([0]);
    let mut run = idle(&job);
    await_listed(&job, "ck");
    assert_eq!(sums(&job, 0, 0, "ck"), written[0]);
    run.stop();
}

/// Two lost members go onto the one spare, and have a file of one path, with the same bytes.
#[test]
fn with_reed_solomon_two_nodes_are_rebuilt_on_one_spare() {
    let cluster = Cluster::up(5);
    let job =
        Job::new(&cluster, "spare").set("SCR_COPY_TYPE", "RS").set("SCR_FLUSH", "0").set("SCR_FETCH", "0");
    job.mount(0..5);
    let mut run = idle(&job);
    job.on(0).run(&format!("mkdir {SCR}/ck")).must();
    for node in 0..4 {
        let line =
            format!("cd {SCR}/ck && head -c 70000 /dev/zero | tr '\\0' x > same && echo {node} > own.{node}");
        job.on(node).run(&line).must();
    }
    job.on(0).run(&format!("touch {SCR}/ck/.complete")).must();
    let sums = format!("cd {SCR}/ck && md5sum same own.*");
    let written = job.on(0).run(&sums).must().to_owned();
    run.stop();
    cluster.poweroff(2);
    cluster.poweroff(3);
    let mut run = job.start(&[0, 1, 4], 3, 1, &["/bin/sleep", "600"]);
    wait::until_true("ck to be presented", SOON, || {
        runs(&job, 4) && job.on(4).run(&format!("test -e {SCR}/ck/.complete")).ok()
    });
    let told = job.events(0);
    assert!(told.contains("2 of node2 on node4, 3 of node3 on node4"), "{told}");
    for node in [0, 4] {
        assert_eq!(job.on(node).run(&sums).must(), written, "node{node}: {told}");
    }
    run.stop();
}

/// Six nodes in two sets of three lose one of each, and no spare is there: two nodes have two
/// members then. One of these is lost next, with `SCR_FETCH=0`, and nothing new was sealed.
#[test]
fn without_spares_a_dataset_is_protected_again() {
    let cluster = Cluster::up(6);
    let job =
        Job::new(&cluster, "fewer").set("SCR_SET_SIZE", "3").set("SCR_FLUSH", "0").set("SCR_FETCH", "0");
    // Nodes 3 to 5 hear the lead through nodes 1 and 2.
    let job = job.set("SCRFS_FANOUT", "2");
    job.mount(0..6);
    let mut run = job.start(&[0, 1, 2, 3, 4, 5], 6, 1, &["/bin/sleep", "600"]);
    for node in 0..6 {
        job.await_coordinator(node);
    }
    // So they hear of the next epoch, which the same coordinators open when a worker dies.
    let coordinators =
        || [0, 1, 2, 3, 4, 5].map(|node| job.on(node).run("pgrep -x scrfs-coordinat").must().to_owned());
    let before = coordinators();
    job.on(4).run("pkill -9 -f 'scrfs worke[r]'").must();
    let written = seal_two_each(&job, 6, "ck");
    assert_eq!(coordinators(), before);
    run.stop();
    let mut left = vec![0, 1, 2, 3, 4, 5];
    for (lost, hosts) in [(vec![1, 4], 4), (vec![0], 3), (vec![2], 2)] {
        for node in &lost {
            cluster.poweroff(*node);
        }
        left.retain(|node| !lost.contains(node));
        let mut run = job.start(&left, hosts, 2, &["/bin/sleep", "600"]);
        for node in &left {
            wait::until_true("ck to be presented", SOON, || {
                runs(&job, *node) && job.on(*node).run(&format!("test -e {SCR}/ck/.complete")).ok()
            });
        }
        let told = job.events(left[0]);
        // At first each finds a place where the other set has its members.
        let anew = told.contains("members of one redundancy set are together on a node");
        assert!(anew || left.len() > 2, "{told}");
        for (at, sum) in written.iter().enumerate() {
            let reader = left[at % left.len()];
            assert_eq!(sums(&job, reader, at, "ck"), *sum, "of node{at}, read on node{reader}: {told}");
        }
        let status = job.status(left[0]).expect("it is mounted");
        let survives = status["datasets"][0]["survives"].to_string();
        assert!(!survives.contains("false"), "{status}");
        run.stop();
    }
}

/// Nodes 0 and 1 are in one rack, 2 and 3 in another: by their numbers alone neighbours would share
/// a set.
#[test]
fn a_whole_rack_is_lost_and_rebuilt_from_the_others() {
    let racks = "GROUPS=node[0-1] RACK=a; node[2-3] RACK=b; node[4-5] RACK=c";
    let cluster = Cluster::up(6);
    let job = Job::new(&cluster, "rack")
        .set("SCR_SET_SIZE", "2")
        .set("SCR_GROUP", "rack")
        .set("SCRFS_GROUPS", racks)
        .set("SCR_FLUSH", "0")
        .set("SCR_FETCH", "0");
    job.mount(0..6);
    let mut run = idle(&job);
    let written = seal_two_each(&job, 4, "ck");
    let told = job.events(0);
    assert!(!told.contains("groups of the kind"), "{told}");
    run.stop();
    cluster.poweroff(2);
    cluster.poweroff(3);
    let mut run = job.start(&[0, 1, 4, 5], 4, 1, &["/bin/sleep", "600"]);
    wait::until_true("ck to be presented", SOON, || {
        runs(&job, 4) && job.on(4).run(&format!("test -e {SCR}/ck/.complete")).ok()
    });
    for (at, sum) in written.iter().enumerate() {
        assert_eq!(sums(&job, 4, at, "ck"), *sum, "of node{at}: {}", job.events(0));
    }
    run.stop();
}

#[test]
fn nodes_without_a_failure_group_are_named_and_nothing_starts() {
    let cluster = Cluster::up(2);
    let job = Job::new(&cluster, "none").set("SCR_GROUP", "RACK").set("SCRFS_GROUPS", "node0 RACK=a");
    job.mount(0..2);
    let mut run = job.start(&[0, 1], 2, 1, &["/bin/sleep", "600"]);
    let code = run.wait(SOON);
    let told = run.output();
    assert_ne!(code, 0, "{told}");
    for part in [
        "groups of the kind RACK are asked for, and no GROUPS line has one of node1",
        "hint: name the node in a GROUPS line",
    ] {
        assert_eq!(told.matches(part).count(), 1, "once {part:?}: {told}");
    }
}

#[test]
fn with_reed_solomon_bytes_may_go_bad_on_two_nodes_while_a_program_runs() {
    let cluster = Cluster::up(4);
    let job = Job::new(&cluster, "two").set("SCR_COPY_TYPE", "RS").set("SCR_FLUSH", "0");
    job.mount(0..4);
    let mut run = idle(&job);
    let written = seal_two_each(&job, 4, "ck");
    for node in [1, 3] {
        flip(&cluster, "two", node, &format!("ck/big.{node}"));
    }
    assert_eq!(sums(&job, 0, 3, "ck"), written[3], "{}", job.events(0));
    // The other one was found on the way.
    let told = job.events(0);
    assert_eq!(told.matches("is rebuilt from its set").count(), 1, "{told}");
    assert_eq!(sums(&job, 1, 1, "ck"), written[1], "{}", job.events(0));
    for node in 0..4 {
        assert_eq!(state(&job, node, "ck"), ("protected".to_owned(), true), "node{node}");
    }
    run.stop();
}

/// Of a node whose files went bad, and of a copy that did.
#[test]
fn with_partners_bytes_may_go_bad_while_a_program_runs() {
    let cluster = Cluster::up(4);
    let job = Job::new(&cluster, "bad").set("SCR_COPY_TYPE", "PARTNER").set("SCR_FLUSH", "0");
    job.mount(0..4);
    let mut run = idle(&job);
    let written = seal_two_each(&job, 4, "ck");
    flip(&cluster, "bad", 1, "ck/big.1");
    assert_eq!(sums(&job, 3, 1, "ck"), written[1], "{}", job.events(0));
    // Node 3 has the copy of node 2's.
    let copy = format!("{CACHE}/root/scr.*/dataset.*/4_of_4_in_0.partner");
    cluster
        .on(3)
        .run(&format!("printf '\\377\\000\\377' | dd of=$(echo {copy}) bs=1 seek=70000 conv=notrunc"))
        .must();
    flip(&cluster, "bad", 2, "ck/big.2");
    let ran = job.on(0).run(&format!("md5sum {SCR}/ck/big.2"));
    assert!(!ran.ok() && ran.err.contains("Input/output error"), "{ran}");
    let told = job.events(0);
    assert!(told.contains("no source has the right bytes of big.2"), "{told}");
    assert_eq!(sums(&job, 1, 0, "ck"), written[0], "{told}");
    run.stop();
}

#[test]
fn bytes_that_nobody_can_give_back_fail_their_dataset_and_a_restart_takes_the_older() {
    let cluster = Cluster::up(4);
    let job = Job::new(&cluster, "beyond");
    job.mount(0..4);
    let mut run = idle(&job);
    let older = seal_two_each(&job, 4, "old");
    let newer = seal_two_each(&job, 4, "new");
    flip(&cluster, "beyond", 1, "new/big.1");
    flip(&cluster, "beyond", 2, "new/big.2");
    let ran = job.on(0).run(&format!("md5sum {SCR}/new/big.1"));
    assert!(!ran.ok() && ran.err.contains("Input/output error"), "{ran}");
    for node in 0..4 {
        let failed = || state(&job, node, "new") == ("failed".to_owned(), false);
        wait::until_true(&format!("the mark on node{node}"), SOON, failed);
        assert!(state(&job, node, "old").1, "node{node}: the older one is current");
    }
    assert!(job.events(0).contains("no source has the right bytes of big.1"), "{}", job.events(0));
    // Files that are good are still read, and its marker is true no more.
    assert_eq!(sums(&job, 1, 3, "new"), newer[3]);
    assert!(!job.on(3).run(&format!("touch {SCR}/new/.complete")).ok());
    run.stop();
    await_end(&job);
    let mut run = job.start(
        &[0, 1, 2, 3],
        4,
        1,
        &["/bin/sh", "-c", "test \"$SCRFS_CURRENT\" = old && test ! -e /scr/new && exec sleep 600"],
    );
    for node in 0..4 {
        job.await_coordinator(node);
    }
    await_listed(&job, "old");
    for (node, sum) in older.iter().enumerate() {
        assert_eq!(sums(&job, (node + 1) % 4, node, "old"), *sum);
    }
    assert_eq!(run.try_code(), None, "{}", run.output());
    run.stop();
}

//! Sealed datasets that programs change (semantics: "After it is sealed"): what was sealed is there
//! until its next generation is, on whatever nodes the ranks run by then.

use scrfs_harness::Cluster;
use scrfs_harness::job::{Job, SOON};
use scrfs_harness::place::{BIN, CACHE, SCR};
use scrfs_harness::wait;

/// Rank `rank`, on `node`, writes its file of dataset `name`, as step `step`.
fn write(job: &Job<'_>, node: usize, name: &str, rank: usize, step: usize) {
    let line =
        format!("cd {SCR}/{name} && yes 'rank {rank} step {step}' | head -n {} > r{rank}", 2000 + step);
    job.on(node).run(&line).must();
}

fn mark(job: &Job<'_>, node: usize, name: &str) {
    job.on(node).run(&format!("touch {SCR}/{name}/.complete")).must();
}

/// Every rank's file is step `step`'s, as seen from each of `nodes`.
fn is_step(job: &Job<'_>, nodes: &[usize], name: &str, step: usize) {
    for node in nodes {
        for rank in 0..3 {
            let seen = job.on(*node).run(&format!("uniq -c {SCR}/{name}/r{rank}"));
            let wanted = format!("{} rank {rank} step {step}", 2000 + step);
            assert_eq!(seen.must().trim(), wanted, "{name}/r{rank} on node {node}");
        }
    }
}

#[test]
fn one_directory_is_overwritten_in_place() {
    let cluster = Cluster::up(5);
    let job = Job::new(&cluster, "inplace");
    job.mount(0..5);
    let mut run = job.idle(&[0, 1, 2]);
    job.on(0).run(&format!("mkdir {SCR}/ck && echo same > {SCR}/ck/input")).must();
    for rank in 0..3 {
        write(&job, rank, "ck", rank, 1);
    }
    mark(&job, 0, "ck");
    is_step(&job, &[0, 1, 2], "ck", 1);
    // The next step is half-written when a node goes.
    write(&job, 0, "ck", 0, 2);
    write(&job, 1, "ck", 1, 2);
    let status = job.on(0).run(&format!("{BIN}/scrfs-ctl status --mount {SCR}"));
    let lines = status.must();
    assert!(lines.contains("ck: changed here since it was sealed") && lines.contains("1 files, "), "{lines}");
    assert!(lines.contains("ck (what was changed since it was sealed)"), "{lines}");
    let json = job.on(0).run(&format!("{BIN}/scrfs-ctl status --mount {SCR} --json"));
    let json: serde_json::Value = serde_json::from_str(json.must()).unwrap();
    let ck = json["datasets"].as_array().unwrap().iter().find(|dataset| dataset["name"] == "ck").unwrap();
    let size = "rank 0 step 2\n".len() as u64 * 2002;
    assert_eq!((ck["changed"]["files"].as_u64(), ck["changed"]["bytes"].as_u64()), (Some(1), Some(size)));
    let state = job.on(0).run(&format!("getfattr --only-values -n user.scrfs.state {SCR}/ck"));
    assert!(state.must().starts_with("protected; changed since "), "{state}");
    assert!(!job.on(0).run(&format!("ls -A {SCR}/ck")).must().contains(".complete"));
    run.stop();
    cluster.poweroff(1);
    // Ranks run on other nodes now.
    let mut run = job.idle(&[3, 0, 2]);
    is_step(&job, &[0, 2, 3], "ck", 1);
    assert_eq!(job.on(3).run(&format!("cat {SCR}/ck/input")).must(), "same");
    for (rank, node) in [3, 0, 2].into_iter().enumerate() {
        write(&job, node, "ck", rank, 3);
    }
    mark(&job, 2, "ck");
    is_step(&job, &[0, 2, 3], "ck", 3);
    run.stop();
    cluster.poweroff(0);
    let mut run = job.idle(&[2, 4, 3]);
    is_step(&job, &[2, 3, 4], "ck", 3);
    assert_eq!(job.on(4).run(&format!("cat {SCR}/ck/input")).must(), "same", "carried on");
    for step in 4..8 {
        for (rank, node) in [4, 3, 2].into_iter().enumerate() {
            write(&job, node, "ck", rank, step);
        }
        mark(&job, step % 3 + 2, "ck");
        is_step(&job, &[2, 3, 4], "ck", step);
    }
    run.stop();
}

#[test]
fn sealed_bytes_that_cannot_be_copied_stay_and_the_program_hears_of_it() {
    let cluster = Cluster::up(2);
    let job = Job::new(&cluster, "uncopied");
    job.mount(0..2);
    let mut run = job.idle(&[0, 1]);
    // A name that must not be taken for what an error message says of the bytes.
    let file = "CRC_table.dat";
    job.on(0).run(&format!("mkdir {SCR}/ck && echo sealed > {SCR}/ck/{file}")).must();
    mark(&job, 0, "ck");
    job.arm_daemon("generation.filled=error");
    let append = format!("echo changed >> {SCR}/ck/{file}");
    let failed = job.on(0).run(&append);
    assert!(!failed.ok() && failed.err.contains("Input/output error"), "{failed:?}");
    assert!(job.fired());
    assert!(job.events(0).contains("its sealed bytes cannot be kept"), "{}", job.events(0));
    let aside = job.on(0).run(&format!("cat {CACHE}/*/scr.*/dataset.1/aside/{file}"));
    assert_eq!(aside.must().trim(), "sealed");
    job.on(0).run(&append).must();
    mark(&job, 0, "ck");
    assert_eq!(job.on(1).run(&format!("cat {SCR}/ck/{file}")).must().trim(), "sealed\nchanged");
    run.stop();
}

#[test]
fn what_was_changed_since_it_was_sealed_is_not_moved_away_unprotected() {
    let cluster = Cluster::up(2);
    let job = Job::new(&cluster, "moved");
    job.mount(0..2);
    let mut run = job.idle(&[0, 1]);
    job.on(0).run(&format!("mkdir {SCR}/ck && echo one > {SCR}/ck/f")).must();
    mark(&job, 0, "ck");
    job.on(0).run(&format!("echo two >> {SCR}/ck/f")).must();
    let moved = job.on(0).run(&format!("mv {SCR}/ck {SCR}/new"));
    assert!(!moved.ok() && moved.err.contains("busy"), "{moved:?}");
    assert!(
        job.events(0).contains("ck: not renamed, for it was changed since it was sealed"),
        "{}",
        job.events(0)
    );
    assert_eq!(job.on(0).run(&format!("ls {SCR} && cat {SCR}/ck/f")).must(), "ck\none\ntwo");
    mark(&job, 0, "ck");
    job.on(0).run(&format!("mv {SCR}/ck {SCR}/new")).must();
    wait::until_true("the seal of the copy", SOON, || job.is_sealed(1, "new"));
    assert_eq!(job.on(1).run(&format!("ls {SCR} && cat {SCR}/new/f")).must(), "new\none\ntwo");
    run.stop();
}

#[test]
fn a_flush_takes_the_sealed_bytes_while_a_program_changes_them() {
    let cluster = Cluster::up(2);
    let job = Job::new(&cluster, "overflush").set("SCR_FLUSH", "1");
    job.mount(0..2);
    let mut run = job.idle(&[0, 1]);
    job.on(0).run(&format!("mkdir {SCR}/ck && echo first > {SCR}/ck/a && echo second > {SCR}/ck/b")).must();
    // The daemon has opened one file and has not read it; the other one it opens later.
    job.arm_daemon("flush.block=wait");
    mark(&job, 0, "ck");
    wait::until_true("the flush to begin", SOON, || job.fired());
    for (letter, file) in [("F", "a"), ("S", "b")] {
        job.on(0).run(&format!("printf {letter} | dd of={SCR}/ck/{file} conv=notrunc status=none")).must();
    }
    job.arm_daemon("");
    wait::until_true("the flush", SOON, || {
        job.events(0).contains("bytes of this node are copied to the PFS")
    });
    let read = |file: &str| std::fs::read_to_string(job.host_prefix().join("ck").join(file)).ok();
    let sealed = Some(("first\n".to_owned(), "second\n".to_owned()));
    wait::until_true("the dataset on the PFS", SOON, || read("a").zip(read("b")) == sealed);
    assert!(!job.events(0).contains("flush: "), "no try failed: {}", job.events(0));
    assert_eq!(job.on(0).run(&format!("cat {SCR}/ck/a {SCR}/ck/b")).must().trim(), "First\nSecond");
    run.stop();
}

#[test]
fn two_directories_in_turn_always_leave_one() {
    let cluster = Cluster::up(4);
    let job = Job::new(&cluster, "turns");
    job.mount(0..4);
    let mut run = job.idle(&[0, 1, 2]);
    job.on(0).run(&format!("mkdir {SCR}/A {SCR}/B")).must();
    for step in 1..6 {
        let name = ["A", "B"][step % 2];
        for rank in 0..3 {
            write(&job, rank, name, rank, step);
        }
        mark(&job, step % 3, name);
        is_step(&job, &[0, 1, 2], name, step);
    }
    // Step 6 overwrites A, which was step 4's, and is not sealed.
    for rank in 0..3 {
        write(&job, rank, "A", rank, 6);
    }
    run.stop();
    cluster.poweroff(2);
    let mut run = job.idle(&[0, 1, 3]);
    is_step(&job, &[0, 1, 3], "B", 5);
    is_step(&job, &[0, 1, 3], "A", 4);
    run.stop();
}

#[test]
fn names_that_are_changed_on_two_nodes() {
    let cluster = Cluster::up(3);
    let job = Job::new(&cluster, "names");
    job.mount(0..3);
    let mut run = job.idle(&[0, 1, 2]);
    let on = |node: usize, line: &str| job.on(node).run(&format!("cd {SCR}/ck && {line}"));
    job.on(0).run(&format!("mkdir -p {SCR}/ck/sub {SCR}/ck/old")).must();
    on(0, "echo 1 > shared; echo 1 > sub/zero; echo 1 > gone0; echo 1 > old/zero").must();
    on(1, "echo 1 > sub/one; echo 1 > gone1; ln -s shared link; echo 1 > old/one").must();
    on(2, "echo 1 > two").must();
    mark(&job, 0, "ck");
    // The same path with other bytes: both nodes and the path are named, and what was sealed stays.
    on(0, "echo from zero > shared").must();
    on(1, "echo from one! > shared").must();
    let failed = job.on(2).run(&format!("touch {SCR}/ck/.complete"));
    assert!(!failed.ok() && failed.err.contains("Input/output error"), "{failed}");
    let events = job.events(2);
    assert!(["shared", "node0", "node1"].iter().all(|word| events.contains(word)), "{events}");
    // With equal bytes it is one file. Removals, moves and links are everybody's once they are
    // sealed.
    on(1, "echo from zero > shared").must();
    on(2, "rm gone0 gone1 && mv two three && ln -sf sub link && mkdir new && echo n > new/n").must();
    on(0, "mv sub moved && rm -r old").must();
    mark(&job, 1, "ck");
    for node in 0..3 {
        let listed = on(node, "find . -mindepth 1 | LC_ALL=C sort | tr '\\n' ' '");
        let wanted = "./.complete ./link ./moved ./moved/one ./moved/zero ./new ./new/n ./shared ./three";
        assert_eq!(listed.must().trim(), wanted, "on node {node}");
        assert_eq!(on(node, "cat shared && readlink link").must(), "from zero\nsub");
        assert_eq!(on(node, "cat moved/zero moved/one three new/n").must(), "1\n1\n1\nn");
    }
    // All of it goes, from one node.
    on(1, "echo changed > three").must();
    job.on(1).run(&format!("rm -rf {SCR}/ck")).must();
    for node in 0..3 {
        wait::until_true("it to be gone", SOON, || {
            job.on(node).run(&format!("ls -A {SCR}")).must().is_empty()
        });
    }
    run.stop();
}

#[test]
fn nothing_changed_is_sealed_already() {
    let cluster = Cluster::up(2);
    let job = Job::new(&cluster, "unchanged");
    job.mount(0..2);
    let mut run = job.idle(&[0, 1]);
    job.on(0).run(&format!("mkdir {SCR}/ck && echo 1 > {SCR}/ck/a")).must();
    mark(&job, 0, "ck");
    for node in 0..2 {
        mark(&job, node, "ck");
    }
    let status = job.status(0).unwrap();
    let ids: Vec<_> =
        status["datasets"].as_array().unwrap().iter().map(|d| d["id"].as_u64().unwrap()).collect();
    assert_eq!(ids, [1]);
    // Opened for writing it counts as changed.
    job.on(1).run(&format!("echo 2 >> {SCR}/ck/a")).must();
    mark(&job, 0, "ck");
    assert_eq!(job.on(0).run(&format!("cat {SCR}/ck/a")).must(), "1\n2");
    run.stop();
}

#[test]
fn old_datasets_are_removed_by_one_rank_and_by_all() {
    let cluster = Cluster::up(4);
    let job = Job::new(&cluster, "removal").set("SCR_CACHE_SIZE", "4");
    job.mount(0..4);
    let mut run = job.idle(&[0, 1, 2]);
    for step in 1..4 {
        let name = format!("ck.{step}");
        job.on(0).run(&format!("mkdir {SCR}/{name}")).must();
        for rank in 0..3 {
            write(&job, rank, &name, rank, step);
        }
        mark(&job, 0, &name);
    }
    // The program has begun to overwrite one of those that it removes.
    write(&job, 1, "ck.2", 1, 4);
    job.on(1).run(&format!("rm -rf {SCR}/ck.1")).must();
    let remove = |node: usize| job.on(node).sh(&format!("rm -rf {SCR}/ck.2")).spawn().unwrap();
    let all: Vec<_> = (0..3).map(remove).collect();
    for mut removal in all {
        assert!(removal.wait().unwrap().success());
    }
    for node in 0..3 {
        let listed = job.on(node).run(&format!("ls -A {SCR}")).must().to_owned();
        assert_eq!(listed.trim(), "ck.3", "on node {node}");
    }
    run.stop();
    cluster.poweroff(2);
    let mut run = job.idle(&[0, 1, 3]);
    is_step(&job, &[0, 1, 3], "ck.3", 3);
    // Names that were removed are free for other datasets.
    job.on(3).run(&format!("mkdir {SCR}/ck.2")).must();
    for (rank, node) in [0, 1, 3].into_iter().enumerate() {
        write(&job, node, "ck.2", rank, 5);
    }
    mark(&job, 1, "ck.2");
    is_step(&job, &[0, 1, 3], "ck.2", 5);
    run.stop();
}

#[test]
fn a_removal_takes_the_generation_before_with_it_that_is_still_flushed() {
    let cluster = Cluster::up(3);
    let job = Job::new(&cluster, "flushremoval").set("SCR_FLUSH", "1");
    job.mount(0..3);
    let mut run = job.idle(&[0, 1, 2]);
    job.arm_daemon("flush.block=wait");
    job.on(0).run(&format!("mkdir {SCR}/ck && echo old > {SCR}/ck/f")).must();
    mark(&job, 0, "ck");
    wait::until_true("the flush to begin", SOON, || job.fired());
    job.on(0).run(&format!("echo new > {SCR}/ck/f")).must();
    mark(&job, 0, "ck");
    job.on(0).run(&format!("rm -rf {SCR}/ck")).must();
    job.arm_daemon("");
    for node in 0..3 {
        wait::until_true("nothing to be left", SOON, || {
            let status = job.status(node).unwrap();
            let left = job.on(node).run(&format!("ls -d {CACHE}/*/scr.*/dataset.*"));
            status["datasets"].as_array().is_some_and(Vec::is_empty) && !left.ok()
        });
    }
    run.stop();
    let mut run = job.idle(&[0, 1, 2]);
    for node in 0..3 {
        assert_eq!(job.on(node).run(&format!("ls -A {SCR}")).must(), "", "on node {node}");
    }
    run.stop();
}

#[test]
fn a_restart_presents_what_was_sealed_whole_on_every_node() {
    let cluster = Cluster::up(2);
    let job = Job::new(&cluster, "whole");
    job.mount(0..2);
    let mut run = job.idle(&[0, 1]);
    job.on(0).run(&format!("mkdir {SCR}/other && echo o > {SCR}/other/f")).must();
    mark(&job, 0, "other");
    job.on(0).run(&format!("mkdir {SCR}/ck && cd {SCR}/ck && echo 0 > f0 && echo 1 > f1")).must();
    job.on(1).run(&format!("echo 2 > {SCR}/ck/g")).must();
    mark(&job, 0, "ck");
    // Given up by a restart, also where the daemon goes on: a removal, modes, owners and times,
    // before the next generation has begun there and in it.
    job.on(0).run(&format!("rm {SCR}/ck/f0")).must();
    job.on(1).run(&format!("chmod 000 {SCR}/ck/g && chown 1000 {SCR}/ck/f1")).must();
    let given = "chmod 777 f1 && chown 1001 f1 && touch -d 2001-01-01 f1";
    job.on(0).run(&format!("cd {SCR}/ck && echo lost > f0 && {given}")).must();
    run.stop();
    let mut run = job.idle(&[0, 1]);
    for node in 0..2 {
        let seen = job
            .on(node)
            .run(&format!("cd {SCR}/ck && stat -c '%n %a %u' f0 f1 g && ls -A . .. && cat f0 f1 g"));
        let wanted = "f0 644 0\nf1 644 0\ng 644 0\n.:\n.complete\nf0\nf1\ng\n\n..:\nck\nother\n0\n1\n2";
        assert_eq!(seen.must(), wanted, "node {node}");
    }
    // Whatever was hidden: it can be changed and sealed again, and takes no other dataset's place.
    job.on(1).run(&format!("echo new > {SCR}/ck/step")).must();
    job.on(0).run(&format!("echo >> {SCR}/ck/f0 && truncate -s 2 {SCR}/ck/f0")).must();
    mark(&job, 1, "ck");
    for node in 0..2 {
        let kept = job.on(node).run(&format!("cd {SCR}/ck && stat -c '%a %u' f1 g && find f1 -mmin +600"));
        assert_eq!(kept.must(), "644 0\n644 0", "node {node}");
        assert_eq!(
            job.on(node).run(&format!("cat {SCR}/ck/f0 {SCR}/ck/step {SCR}/other/f")).must(),
            "0\nnew\no"
        );
    }
    run.stop();
}

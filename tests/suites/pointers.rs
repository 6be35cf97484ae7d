//! Pointer files (semantics: "Pointer files"): what all nodes see, and what a restart presents with
//! which dataset.

use scrfs_harness::Cluster;
use scrfs_harness::job::{Job, SOON};
use scrfs_harness::place::SCR;
use scrfs_harness::wait;

/// On each of `hosts` a rank writes its file of a new dataset.
fn write(job: &Job<'_>, hosts: &[usize], name: &str) {
    job.on(hosts[0]).run(&format!("mkdir {SCR}/{name}")).must();
    for (rank, &node) in hosts.iter().enumerate() {
        job.on(node).run(&format!("echo {name} rank {rank} > {SCR}/{name}/r{rank}")).must();
    }
}

fn mark(job: &Job<'_>, node: usize, name: &str) {
    job.on(node).run(&format!("touch {SCR}/{name}/.complete")).must();
}

/// By a file written elsewhere and renamed, by a file in place, by a link.
fn point(job: &Job<'_>, node: usize, name: &str) {
    let line = format!(
        "cd {SCR} && echo {name} > latest.tmp && mv latest.tmp latest && echo {name} > inplace && ln -sfn {name} link"
    );
    job.on(node).run(&line).must();
}

/// All pointers name `name`, which can be read, on each of `nodes`.
#[track_caller]
fn points(job: &Job<'_>, nodes: &[usize], name: &str) {
    for &node in nodes {
        let line = format!("cd {SCR} && cat latest inplace && readlink link && cat $(cat latest)/r0 link/r0");
        let wanted = format!("{name}\n{name}\n{name}\n{name} rank 0\n{name} rank 0");
        assert_eq!(job.on(node).run(&line).must().trim(), wanted, "on node {node}: {}", job.events(node));
    }
}

#[test]
fn read_by_all_ranks_when_the_node_that_wrote_them_is_lost() {
    let cluster = Cluster::up(5);
    let job = Job::new(&cluster, "pointers");
    job.mount(0..5);
    let mut run = job.idle(&[0, 1, 2]);
    // The marker first, then the pointers; read at once on other nodes.
    write(&job, &[0, 1, 2], "ck.1");
    mark(&job, 0, "ck.1");
    point(&job, 1, "ck.1");
    points(&job, &[0, 1, 2], "ck.1");
    // The pointers first, and no marker: who wrote them is lost.
    write(&job, &[0, 1, 2], "ck.2");
    point(&job, 1, "ck.2");
    let listed =
        job.on(0).run(&format!("cd {SCR} && cat latest inplace && readlink link && ls -A")).must().to_owned();
    let wanted = ["ck.2", "ck.2", "ck.2", "ck.1", "ck.2", "inplace", "latest", "link"];
    assert_eq!(listed.split_whitespace().collect::<Vec<_>>(), wanted);
    run.stop();
    cluster.poweroff(1);
    let mut run = job.idle(&[0, 2, 3]);
    points(&job, &[0, 2, 3], "ck.1");
    // The pointers first, then the marker.
    write(&job, &[0, 2, 3], "ck.2");
    point(&job, 2, "ck.2");
    mark(&job, 3, "ck.2");
    // Of the dataset after it, and not sealed.
    write(&job, &[0, 2, 3], "ck.3");
    point(&job, 0, "ck.3");
    run.stop();
    cluster.poweroff(2);
    let mut run = job.idle(&[0, 3, 4]);
    points(&job, &[0, 3, 4], "ck.2");
    run.stop();
}

#[test]
fn an_older_dataset_comes_with_its_own() {
    let cluster = Cluster::up(4);
    let job = Job::new(&cluster, "older").set("SCRFS_LOOSE_MAX", "1k").set("SCRFS_LOOSE_FILES", "4");
    job.mount(0..4);
    let mut run = job.idle(&[0, 1, 2]);
    for name in ["ck.1", "ck.2"] {
        write(&job, &[0, 1, 2], name);
        point(&job, 0, name);
        mark(&job, 1, name);
    }
    job.on(2).run(&format!("cd {SCR} && mv inplace moved && chmod 640 moved && cp -p moved inplace")).must();
    points(&job, &[0, 1, 2], "ck.2");
    assert_eq!(job.on(0).run(&format!("stat -c %a {SCR}/inplace")).must(), "640");
    // Beyond the bounds nothing is brought anywhere, and nobody is kept from writing it.
    job.on(2).run(&format!("cd {SCR} && seq 1000 > large && echo x > fifth")).must();
    let seen = job.on(0).run(&format!("ls {SCR}")).must().to_owned();
    assert_eq!(
        seen.split_whitespace().collect::<Vec<_>>(),
        ["ck.1", "ck.2", "inplace", "latest", "link", "moved"]
    );
    // A name that goes, goes everywhere.
    job.on(1).run(&format!("rm {SCR}/moved")).must();
    assert!(!job.on(0).run(&format!("test -e {SCR}/moved")).ok());
    run.stop();
    // Bytes of the newest rot on two nodes: a restart must take the one before it.
    for node in 1..3 {
        let rot = "for f in $(find /dev/shm /cache /tmp /var -path '*tree/ck.2/r*' 2>/dev/null); do echo rotten > $f; done";
        job.on(node).run(rot).must();
    }
    let mut run = job.idle(&[0, 1, 2]);
    points(&job, &[0, 1, 2], "ck.1");
    run.stop();
}

#[test]
fn they_come_from_the_prefix() {
    let cluster = Cluster::up(4);
    let job = Job::new(&cluster, "stored").set("SCR_FLUSH", "1");
    job.mount(0..4);
    let mut run = job.idle(&[0, 1]);
    write(&job, &[0, 1], "ck.1");
    point(&job, 0, "ck.1");
    mark(&job, 0, "ck.1");
    let flushed = |name: &str| {
        let status = job.status(0).unwrap_or_default();
        let all = status["datasets"].as_array().cloned().unwrap_or_default();
        all.iter().any(|dataset| dataset["name"] == name && dataset["flushed"] == true)
    };
    wait::until_true("the flush", SOON, || flushed("ck.1"));
    write(&job, &[0, 1], "ck.2");
    mark(&job, 1, "ck.2");
    wait::until_true("the flush", SOON, || flushed("ck.2"));
    // After the flush.
    point(&job, 1, "ck.2");
    let kept = job.host_prefix().join(".scr/loose");
    wait::until_true("the pointers in the prefix", SOON, || {
        let sets = std::fs::read_dir(&kept).into_iter().flatten().flatten();
        // The link is the last of them.
        sets.filter_map(|set| std::fs::read_link(set.path().join("files/link")).ok())
            .any(|to| to.as_os_str() == "ck.2")
    });
    run.stop();
    for node in 0..2 {
        cluster.poweroff(node);
    }
    let mut run = job.idle(&[2, 3]);
    points(&job, &[2, 3], "ck.2");
    // What comes after it goes on from there.
    point(&job, 3, "ck.2");
    points(&job, &[2, 3], "ck.2");
    run.stop();
}

#[test]
fn dead_coordinators_and_workers_lose_none() {
    let cluster = Cluster::up(3);
    let job = Job::new(&cluster, "lost");
    job.mount(0..3);
    let mut run = job.idle(&[0, 1, 2]);
    write(&job, &[0, 1, 2], "ck.1");
    mark(&job, 0, "ck.1");
    point(&job, 0, "ck.1");
    for fault in ["loose.ask", "loose.store", "loose.stored", "loose.finish"] {
        job.arm(&format!("{fault}=kill"));
        point(&job, 1, "ck.1");
        assert!(job.fired(), "{fault}");
        points(&job, &[0, 1, 2], "ck.1");
    }
    for fault in ["loose.storing", "loose.indexed", "loose.placed"] {
        job.arm_daemon(&format!("{fault}=kill"));
        point(&job, 2, "ck.1");
        points(&job, &[0, 1, 2], "ck.1");
    }
    // A program that has it open for writing keeps what it writes, and its close is the last word.
    // It has no children: each that ended would close a descriptor of the file, too.
    let line = format!(
        "exec python3 -c \"import os, time
file = open('{SCR}/inplace', 'w')
open('/tmp/open', 'w').close()
while not os.path.exists('/tmp/go'): time.sleep(0.1)
file.write('ck.1' + chr(10))
file.close()\""
    );
    let mut writer = job.on(1).sh(&line).spawn().unwrap();
    wait::until_true("the writer", SOON, || job.on(1).run("test -e /tmp/open").ok());
    job.on(0).run(&format!("echo other > {SCR}/inplace")).must();
    assert_eq!(job.on(2).run(&format!("cat {SCR}/inplace")).must(), "other");
    job.on(1).run("touch /tmp/go").must();
    assert!(writer.wait().unwrap().success());
    points(&job, &[0, 1, 2], "ck.1");
    run.stop();
}

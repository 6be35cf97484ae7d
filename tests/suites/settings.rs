//! What sets a marker and what its close means, as the job's settings say (semantics: "Other
//! markers").

use scrfs_harness::job::{Job, SOON};
use scrfs_harness::place::{CACHE, SCR};
use scrfs_harness::{Cluster, wait};

/// Mounts everywhere, coordinators on `used`, and a program that does nothing.
fn idle<'a>(cluster: &'a Cluster, name: &str, settings: &[(&str, &str)], mounts: usize) -> Job<'a> {
    let mut job = Job::new(cluster, name);
    for (key, value) in settings {
        job = job.set(key, value);
    }
    job.mount(0..mounts);
    job
}

fn await_seal(job: &Job<'_>, nodes: &[usize], name: &str) {
    wait::until_true("the seal", SOON, || nodes.iter().all(|node| job.is_sealed(*node, name)));
}

fn part(job: &Job<'_>, node: usize, name: &str) {
    job.on(node).run(&format!("yes 'part {node} of {name}' | head -n 3000 > {SCR}/{name}/p{node}")).must();
}

/// The parts that nodes 0 to 2 wrote, as seen on `nodes`.
fn is_whole(job: &Job<'_>, nodes: &[usize], name: &str) {
    for node in nodes {
        for of in 0..3 {
            let seen = job.on(*node).run(&format!("uniq -c {SCR}/{name}/p{of}"));
            assert_eq!(seen.must().trim(), format!("3000 part {of} of {name}"), "on node {node}");
        }
    }
}

#[test]
fn a_file_that_is_renamed_to_its_name_marks_what_it_is_part_of() {
    let cluster = Cluster::up(5);
    let job = idle(&cluster, "metadata", &[("SCRFS_MARKER", ".metadata")], 5);
    let mut run = job.idle(&[0, 1, 2]);
    job.on(0).run(&format!("mkdir {SCR}/ck.1 {SCR}/ck.2 {SCR}/ck.3")).must();
    let save = |name: &str, last: &str| {
        (0..3).for_each(|node| part(&job, node, name));
        job.on(0).run(&format!("cd {SCR}/{name} && {last}")).must();
    };
    save("ck.1", "echo 'all of ck.1' > .metadata.tmp && mv .metadata.tmp .metadata");
    await_seal(&job, &[0, 1, 2], "ck.1");
    // Written in place: the close of the file is the marker, and waits until it is protected.
    save("ck.2", r#"python3 -c "f = open('.metadata', 'w'); f.write('all of ck.2'); f.close()""#);
    assert!(job.is_sealed(0, "ck.2"), "its close has waited");
    await_seal(&job, &[1, 2], "ck.2");
    // Not sealed: a node is lost before.
    (0..3).for_each(|node| part(&job, node, "ck.3"));
    run.stop();
    cluster.poweroff(1);
    let mut run = job.idle(&[0, 2, 3]);
    for node in [0, 2, 3] {
        assert_eq!(job.on(node).run(&format!("cat {SCR}/ck.2/.metadata")).must(), "all of ck.2");
        assert!(!job.on(node).run(&format!("ls {SCR}/ck.3")).ok(), "it was not sealed");
    }
    is_whole(&job, &[0, 2, 3], "ck.2");
    run.stop();
    cluster.poweroff(0);
    let mut run = job.idle(&[2, 3, 4]);
    is_whole(&job, &[2, 3, 4], "ck.2");
    assert_eq!(job.on(4).run(&format!("cat {SCR}/ck.2/.metadata")).must(), "all of ck.2");
    run.stop();
}

#[test]
fn what_is_written_elsewhere_right_after_a_marker_that_is_data_is_named() {
    let cluster = Cluster::up(3);
    let job = idle(&cluster, "early", &[("SCRFS_MARKER", ".metadata")], 3);
    let mut run = job.idle(&[0, 1, 2]);
    job.on(0).run(&format!("mkdir {SCR}/ck")).must();
    part(&job, 0, "ck");
    part(&job, 1, "ck");
    job.on(0).run(&format!("echo all > {SCR}/ck/.metadata")).must();
    assert!(job.is_sealed(0, "ck"), "its close has waited");
    // Nodes that do not know of it yet let writers wait. What comes more than ten seconds after it
    // is not told.
    part(&job, 2, "ck");
    job.on(1).run(&format!("echo more >> {SCR}/ck/p1")).must();
    job.on(0).run(&format!("echo more >> {SCR}/ck/p0")).must();
    for (node, named) in [(2, "p2: written here right after"), (1, "p1: written here right after")] {
        assert!(job.events(node).contains(named), "{}", job.events(node));
    }
    assert!(!job.events(0).contains("written here right after"), "its own writer knows what it wrote");
    run.stop();
}

#[test]
fn the_marker_is_needed_on_every_node() {
    let cluster = Cluster::up(4);
    let settings = [("SCRFS_MARKER_SCOPE", "all"), ("SCRFS_SEAL_TIMEOUT", "10s")];
    let job = idle(&cluster, "everywhere", &settings, 4);
    let mut run = job.idle(&[0, 1, 2]);
    job.on(0).run(&format!("mkdir {SCR}/ck.1 {SCR}/ck.2")).must();
    (0..3).for_each(|node| part(&job, node, "ck.1"));
    let touch = |node: usize, name: &str| job.on(node).sh(&format!("touch {SCR}/{name}/.complete")).spawn();
    // One is missing, and is named.
    let two: Vec<_> = [0, 2].into_iter().map(|node| touch(node, "ck.1").unwrap()).collect();
    for mut child in two {
        assert!(!child.wait().unwrap().success(), "sealed without node 1");
    }
    let events = job.events(2);
    assert!(events.contains("not set on node1 within 10 s"), "{events}");
    assert!(!job.is_sealed(0, "ck.1"));
    // All of them, one after the other; the first ones wait.
    let mut first: Vec<_> = [2, 0].into_iter().map(|node| touch(node, "ck.1").unwrap()).collect();
    wait::until_true("a waiting marker", SOON, || job.on(0).run("pgrep -f 'touch /sc[r]'").ok());
    assert!(first[0].try_wait().unwrap().is_none());
    first.push(touch(1, "ck.1").unwrap());
    for mut child in first {
        assert!(child.wait().unwrap().success(), "{}", job.events(0));
    }
    assert!((0..3).all(|node| job.is_sealed(node, "ck.1")));
    // Nothing was changed: at once, from one node.
    job.on(1).run(&format!("touch {SCR}/ck.1/.complete")).must();
    // A worker dies while two nodes' markers wait.
    (0..3).for_each(|node| part(&job, node, "ck.2"));
    run.stop();
    cluster.poweroff(2);
    let job2 = job.set("SCRFS_SEAL_TIMEOUT", "60s");
    let mut run = job2.idle(&[0, 1, 3]);
    is_whole(&job2, &[0, 1, 3], "ck.1");
    job2.on(0).run(&format!("mkdir {SCR}/ck.4")).must();
    for node in [0, 1, 3] {
        part(&job2, node, "ck.4");
    }
    let waiting: Vec<_> = [0, 3]
        .into_iter()
        .map(|node| job2.on(node).sh(&format!("touch {SCR}/ck.4/.complete")).spawn().unwrap())
        .collect();
    cluster.on(0).run("pkill -9 -f 'scrfs worke[r]'").must();
    job2.await_coordinator(0);
    job2.on(1).run(&format!("touch {SCR}/ck.4/.complete")).must();
    for mut child in waiting {
        assert!(child.wait().unwrap().success(), "{}", job2.events(0));
    }
    await_seal(&job2, &[0, 1, 3], "ck.4");
    run.stop();
}

#[test]
fn a_marker_in_the_background_returns_when_all_are_frozen() {
    let cluster = Cluster::up(4);
    let settings =
        [("SCRFS_SEAL", "background"), ("SCRFS_COMMIT_ON_RENAME", r"ck\.\d+"), ("SCR_CACHE_SIZE", "20")];
    let job = idle(&cluster, "background", &settings, 4);
    let mut run = job.idle(&[0, 1, 2]);
    // A directory that is renamed into place.
    job.on(0).run(&format!("mkdir {SCR}/ck.1.tmp")).must();
    for node in 0..3 {
        let line = format!("yes 'part {node} of ck.1' | head -n 3000 > {SCR}/ck.1.tmp/p{node}");
        job.on(node).run(&line).must();
    }
    job.on(0).run(&format!("mv {SCR}/ck.1.tmp {SCR}/ck.1")).must();
    await_seal(&job, &[0, 1, 2], "ck.1");
    is_whole(&job, &[0, 1, 2], "ck.1");
    // A failure after the close has returned is in the events, and the dataset can be sealed again.
    job.on(1).run(&format!("mkdir {SCR}/b")).must();
    (0..3).for_each(|node| part(&job, node, "b"));
    job.arm("encode.block=error");
    job.on(0).run(&format!("touch {SCR}/b/.complete")).must();
    // Who sets it where the failed seal has not ended yet joins that.
    let told = |node| job.events(node).contains("its seal is given up");
    wait::until_true("the failure", SOON, || (0..3).all(told));
    assert!(job.fired() && !job.is_sealed(0, "b"));
    job.on(2).run(&format!("touch {SCR}/b/.complete")).must();
    await_seal(&job, &[0, 1, 2], "b");
    // The coordinators die in between, and a worker: what was promised is sealed, as it was.
    for (turn, fault) in ["encode.block=kill", "encode.finish=kill"].into_iter().enumerate() {
        let name = format!("c{turn}");
        job.on(0).run(&format!("mkdir {SCR}/{name}")).must();
        (0..3).for_each(|node| part(&job, node, &name));
        job.arm(fault);
        job.on(0).run(&format!("touch {SCR}/{name}/.complete")).must();
        let mut late = job.on(1).sh(&format!("echo late >> {SCR}/{name}/p1")).spawn().unwrap();
        if turn == 1 {
            cluster.on(2).run("pkill -9 -f 'scrfs worke[r]'").must();
        }
        await_seal(&job, &[0, 1, 2], &name);
        assert!(late.wait().unwrap().success());
        assert_eq!(job.on(0).run(&format!("uniq -c {SCR}/{name}/p1 | wc -l")).must().trim(), "1");
    }
    run.stop();
    cluster.poweroff(0);
    let mut run = job.idle(&[1, 2, 3]);
    is_whole(&job, &[1, 2, 3], "c1");
    run.stop();
}

/// Also where the coordinators die meanwhile: both were promised.
#[test]
fn markers_and_directories_do_not_wait_for_the_encoding_of_another_dataset() {
    let cluster = Cluster::up(3);
    let job = idle(&cluster, "another", &[("SCRFS_SEAL", "background"), ("SCR_CACHE_SIZE", "20")], 3);
    let mut run = job.idle(&[0, 1, 2]);
    let mark = |name: &str, by: usize| {
        job.on(by).run(&format!("mkdir {SCR}/{name}")).must();
        (0..3).for_each(|node| part(&job, node, name));
        job.on(by).run(&format!("touch {SCR}/{name}/.complete")).must();
    };
    for (first, second, dies) in [("a", "b", false), ("c", "d", true)] {
        job.arm("encode.block=wait");
        mark(first, 0);
        wait::until_true("the encoding to wait", SOON, || job.fired());
        mark(second, 1);
        job.on(2).run(&format!("mkdir {SCR}/beside.{first}")).must();
        assert!(!job.is_sealed(0, first) && !job.is_sealed(0, second), "{}", job.events(0));
        // It is frozen as it is.
        let mut late = job.on(2).sh(&format!("echo late >> {SCR}/{second}/p2")).spawn().unwrap();
        if dies {
            cluster.on(1).run("pkill -9 -x scrfs-coordinat").must();
        }
        job.arm("encode.block=wait@1000");
        for name in [first, second] {
            await_seal(&job, &[0, 1, 2], name);
        }
        assert!(late.wait().unwrap().success(), "{}", job.events(2));
        let sealed = job.on(0).run(&format!("uniq -c {SCR}/{second}/p2")).must().to_owned();
        assert_eq!(sealed.trim(), format!("3000 part 2 of {second}"));
        is_whole(&job, &[0, 1, 2], first);
    }
    run.stop();
    cluster.poweroff(1);
    let mut run = job.idle(&[0, 2]);
    is_whole(&job, &[0, 2], "d");
    run.stop();
}

#[test]
fn an_invalid_dataset_is_not_sealed() {
    let cluster = Cluster::up(3);
    let job = idle(&cluster, "invalid", &[("SCRFS_SEAL_TIMEOUT", "20s")], 3);
    let mut run = job.idle(&[0, 1, 2]);
    job.on(0).run(&format!("mkdir {SCR}/ck")).must();
    (0..3).for_each(|node| part(&job, node, "ck"));
    job.on(2).run(&format!("touch {SCR}/ck/.invalid")).must();
    let failed = job.on(0).run(&format!("touch {SCR}/ck/.complete"));
    assert!(!failed.ok() && failed.err.contains("Input/output error"), "{failed}");
    let events = job.events(0);
    assert!(events.contains("node2") && events.contains(".invalid"), "{events}");
    job.on(2).run(&format!("rm {SCR}/ck/.invalid")).must();
    // While the seal waits for a writer: it is dropped, and the file is there.
    let mut writer = job
        .on(1)
        .sh(&format!("exec 7<> {SCR}/ck/p1; read never"))
        .stdin(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    // The shell may be there before it has opened the file.
    let has_it = "for p in $(pgrep -f 'read neve[r]'); do readlink /proc/$p/fd/7; done | grep -q scr";
    wait::until_true("the writer", SOON, || job.on(1).run(has_it).ok());
    let mut touch = job.on(0).sh(&format!("touch {SCR}/ck/.complete 2>/dev/null")).spawn().unwrap();
    wait::until_true("the seal to begin", SOON, || job.state(1, "ck") == "sealing");
    job.on(2).run(&format!("touch {SCR}/ck/.invalid")).must();
    assert!(!touch.wait().unwrap().success());
    drop(writer.stdin.take());
    writer.wait().unwrap();
    assert!(!job.on(0).run(&format!("touch {SCR}/ck/.complete")).ok());
    job.on(2).run(&format!("rm {SCR}/ck/.invalid")).must();
    // A marker set where the failed seal has not ended yet joins it.
    wait::until_true("the next try", SOON, || job.on(1).run(&format!("touch {SCR}/ck/.complete")).ok());
    await_seal(&job, &[0, 1, 2], "ck");
    is_whole(&job, &[0, 1, 2], "ck");
    run.stop();
}

#[test]
fn switched_off_directories_are_global_and_nothing_is_protected() {
    let cluster = Cluster::up(2);
    let job = idle(&cluster, "off", &[("SCR_ENABLE", "0")], 2);
    let mut run = job.idle(&[0, 1]);
    assert!(run.output().contains("SCR_ENABLE=0: markers succeed at once"), "{}", run.output());
    job.on(0).run(&format!("mkdir {SCR}/ck")).must();
    (0..2).for_each(|node| part(&job, node, "ck"));
    for node in [1, 0, 1] {
        job.on(node).run(&format!("touch {SCR}/ck/.complete")).must();
        assert_eq!(job.state(node, "ck"), "open");
        assert_eq!(job.status(node).unwrap()["enabled"], false);
        let shown = job.on(node).run(&format!("cat {SCR}/.scrfs/status; ls -A {SCR}/ck"));
        assert!(shown.out.contains("nothing is protected") && !shown.out.contains(".complete"), "{shown}");
        assert!(job.events(node).contains("ck: not protected: SCR_ENABLE=0"), "{}", job.events(node));
    }
    run.stop();
}

/// What an administrator writes into the system file is for later mounts, and a mistake there ends
/// none that lives: another worker goes on with what the mount began with.
#[test]
fn what_becomes_of_the_system_file_ends_no_mount() {
    let cluster = Cluster::up(1);
    let root = cluster.on(0);
    let conf = |text: &str| root.run(&format!("printf '{text}' >/etc/scrfs.conf")).must().to_owned();
    conf(&format!("SCR_CACHE_BASE={CACHE}\\nSCRFS_MODE=0711\\n"));
    root.run(&format!("scrfs mount --user job --job-id conf {SCR}")).must();
    cluster.on(0).job().run(&format!("echo kept >{SCR}/kept")).must();
    let control = "/run/scrfs/job/scr.conf";
    for text in ["SCR_CACHE_BASE=/dev/shm\\n", "no setting\\n", "SCRFS_MODE=open\\n", "A=\\377\\n"] {
        conf(text);
        for act in [format!("kill -9 $(cat {control}/worker.lock)"), format!("scrfs reload {SCR}")] {
            root.run(&act).must();
            let read = cluster.on(0).job().limit(SOON).run(&format!("cat {SCR}/kept"));
            assert_eq!(read.must(), "kept", "{text}: {act}");
        }
    }
    let log = root.run(&format!("cat {control}/daemon.log")).must().to_owned();
    assert!(!log.contains("does not start"), "{log}");
    // Those who come later hear of it.
    assert!(root.run("scrfs mount --user job --job-id later /mnt").err.contains("/etc/scrfs.conf"));
    root.run("rm /etc/scrfs.conf; scrfs umount --job-id conf --purge").must();
}

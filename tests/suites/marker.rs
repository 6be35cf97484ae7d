//! The marker (semantics: "The marker"): what sets it, what its close means, and that no wait
//! outlives its caller.

use std::time::Duration;

use scrfs_harness::job::{Job, Running, SOON};
use scrfs_harness::place::{CACHE, SCR};
use scrfs_harness::{Cluster, Config, wait};

/// Two nodes with coordinators and a program that does nothing, so that people and scripts can work
/// on /scr.
fn idle_job<'a>(cluster: &'a Cluster, name: &str, settings: &[(&str, &str)]) -> (Job<'a>, Running) {
    start_idle(Job::new(cluster, name), settings)
}

fn start_idle<'a>(mut job: Job<'a>, settings: &[(&str, &str)]) -> (Job<'a>, Running) {
    for (key, value) in settings {
        job = job.set(key, value);
    }
    job.mount(0..2);
    let run = job.start(&[0, 1], 2, 1, &["/bin/sleep", "600"]);
    for node in 0..2 {
        job.await_coordinator(node);
    }
    (job, run)
}

fn fill(job: &Job<'_>, name: &str) {
    job.on(0).run(&format!("mkdir {SCR}/{name} && head -c 300000 /dev/urandom > {SCR}/{name}/a")).must();
    job.on(1).run(&format!("head -c 200000 /dev/urandom > {SCR}/{name}/b")).must();
}

#[test]
fn every_way_to_set_it_seals() {
    let cluster = Cluster::up(2);
    let (job, mut run) = idle_job(&cluster, "ways", &[("SCR_CACHE_SIZE", "20")]);
    let ways = [
        ("touch", "touch $D/.complete"),
        ("python", "python3 -c \"open('$D/.complete','w').close()\""),
        ("rename", "echo done > $D/tmp.marker && mv $D/tmp.marker $D/.complete"),
        ("echo", "echo done > $D/.complete"),
        ("c", "/run/sim/bin/programs/marker $D/.complete"),
    ];
    scrfs_harness::programs::program("marker");
    for (name, line) in ways {
        fill(&job, name);
        job.on(1).run(&format!("D={SCR}/{name}; {line}")).must();
        // `echo` cannot tell of an error, a rename waits until all are frozen; the others return
        // only when it is sealed.
        if ["echo", "rename"].contains(&name) {
            wait::until_true("the seal that was begun", SOON, || job.is_sealed(1, name));
        }
        for node in 0..2 {
            assert!(job.is_sealed(node, name), "{name}: {}", job.state(node, name));
            let listed = job.on(node).run(&format!("ls -A {SCR}/{name}"));
            assert_eq!(
                listed.must().split_whitespace().collect::<Vec<_>>(),
                [".complete", "a", "b"],
                "{name}"
            );
        }
        // The same bytes everywhere.
        let sums: Vec<_> = (0..2)
            .map(|n| job.on(n).run(&format!("cd {SCR}/{name} && md5sum a b")).must().to_owned())
            .collect();
        assert_eq!(sums[0], sums[1]);
        // Closing it again succeeds at once.
        job.on(0).run(&format!("touch {SCR}/{name}/.complete")).must();
    }
    // rm -rf works from any node and takes everything everywhere.
    for (n, (name, _)) in ways.iter().enumerate() {
        job.on(n % 2).run(&format!("rm -rf {SCR}/{name}")).must();
    }
    for node in 0..2 {
        assert_eq!(job.on(node).run(&format!("ls -A {SCR}")).must(), "");
        // On the other node they go a moment after the name.
        wait::until_true("the bytes of removed datasets to go", SOON, || {
            cluster.on(node).run(&format!("find {CACHE} -type f")).must().is_empty()
        });
    }
    run.stop();
}

#[test]
fn a_writer_that_was_killed_seals_nothing() {
    let cluster = Cluster::up(2);
    let (job, mut run) = idle_job(&cluster, "killed", &[]);
    fill(&job, "k");
    let line = format!("sh -c 'exec 5> {SCR}/k/.complete; kill -9 $$'; true");
    job.on(0).run(&line).must();
    assert!(!job.is_sealed(0, "k"));
    assert!(!job.on(1).run(&format!("ls -A {SCR}/k")).must().contains(".complete"));
    job.on(0).run(&format!("touch {SCR}/k/.complete")).must();
    assert!(job.is_sealed(1, "k"));
    run.stop();
}

#[test]
fn two_touches_at_once_have_one_outcome() {
    let cluster = Cluster::up(2);
    let (job, mut run) = idle_job(&cluster, "twice", &[("SCR_CACHE_SIZE", "20")]);
    for round in 0..5 {
        let name = format!("t{round}");
        fill(&job, &name);
        let children: Vec<_> =
            (0..2).map(|n| job.on(n).sh(&format!("touch {SCR}/{name}/.complete")).spawn().unwrap()).collect();
        for mut child in children {
            assert!(child.wait().unwrap().success());
        }
        assert!(job.is_sealed(0, &name) && job.is_sealed(1, &name));
    }
    let status = job.status(0).unwrap();
    let ids: Vec<_> =
        status["datasets"].as_array().unwrap().iter().map(|d| d["id"].as_u64().unwrap()).collect();
    assert_eq!(ids, [5, 4, 3, 2, 1], "one id each");
    run.stop();
}

/// A program on `node` that has `file` open for writing until its input ends.
fn writer(job: &Job<'_>, node: usize, file: &str) -> std::process::Child {
    let line = format!("exec 7<> {SCR}/{file}; read never");
    let writer = job.on(node).sh(&line).stdin(std::process::Stdio::piped()).spawn().expect("a shell");
    // The shell may be there before it has opened the file.
    let has_it = "for p in $(pgrep -f 'read neve[r]'); do readlink /proc/$p/fd/7; done | grep -q scr";
    wait::until_true("the writer", SOON, || job.on(node).run(has_it).ok());
    writer
}

#[test]
fn a_signal_ends_the_wait_and_leaves_nobody_stuck() {
    let cluster = Cluster::up(2);
    let (job, mut run) = idle_job(&cluster, "signal", &[("SCRFS_SEAL_TIMEOUT", "120s")]);
    fill(&job, "s");
    // A writer on the other node keeps the seal waiting.
    let mut writer = writer(&job, 1, "s/b");
    let line = format!("touch {SCR}/s/.complete & p=$!; read go; kill -TERM $p; wait $p");
    let mut first = job.on(0).sh(&line).stdin(std::process::Stdio::piped()).spawn().expect("a shell");
    wait::until_true("the seal to begin", SOON, || job.state(1, "s") == "sealing");
    let told = std::time::Instant::now();
    drop(first.stdin.take());
    assert_eq!(first.wait().unwrap().code(), Some(143));
    // The seal would have ended it in 120 s.
    assert!(told.elapsed() < Duration::from_mins(1), "TERM did not end the wait: {:?}", told.elapsed());
    assert_eq!(job.state(1, "s"), "sealing");
    // The seal goes on; when the writer ends, it succeeds for those who wait now.
    let mut second = job.on(0).sh(&format!("touch {SCR}/s/.complete")).spawn().unwrap();
    drop(writer.stdin.take());
    writer.wait().unwrap();
    assert!(second.wait().unwrap().success(), "{}", job.events(0));
    assert!(job.is_sealed(1, "s"));
    run.stop();
}

#[test]
fn markers_go_on_waiting_when_workers_die() {
    let cluster = Cluster::up(2);
    let settings = [("SCR_CACHE_SIZE", "20"), ("SCRFS_SEAL_TIMEOUT", "60s")];
    let (job, mut run) = idle_job(&cluster, "worker", &settings);
    let kill = |node| cluster.on(node).run("pkill -9 -f 'scrfs worke[r]'").must().to_owned();
    // They open their epoch anew, and need not be started again.
    let coordinators =
        || [0, 1].map(|node| cluster.on(node).run("pgrep -x scrfs-coordinat").must().to_owned());
    let begun = coordinators();
    fill(&job, "w");
    // A writer on the other node keeps the seal waiting.
    let mut writer = writer(&job, 1, "w/b");
    let mut touch = job.on(0).sh(&format!("touch {SCR}/w/.complete")).spawn().unwrap();
    wait::until_true("the seal to begin", SOON, || job.state(1, "w") == "sealing");
    for node in [0, 1, 0] {
        kill(node);
        job.await_coordinator(node);
        wait::until_true("the seal to begin again", SOON, || job.state(1, "w") == "sealing");
        assert!(touch.try_wait().unwrap().is_none(), "{}", job.events(0));
    }
    drop(writer.stdin.take());
    writer.wait().unwrap();
    assert!(touch.wait().unwrap().success(), "{}", job.events(0));
    assert!(job.is_sealed(0, "w") && job.is_sealed(1, "w"));
    // At some moment of a seal.
    for (turn, pause) in [0_u64, 20, 60, 150].into_iter().enumerate() {
        let name = format!("w{turn}");
        fill(&job, &name);
        let mut touch = job.on(0).sh(&format!("touch {SCR}/{name}/.complete")).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(pause));
        kill(turn % 2);
        assert!(touch.wait().unwrap().success(), "{name}: {}", job.events(0));
        wait::until_true("the seal everywhere", SOON, || (0..2).all(|n| job.is_sealed(n, &name)));
    }
    assert_eq!(coordinators(), begun);
    run.stop();
}

#[test]
fn a_writer_fails_the_seal_by_name_and_a_retry_succeeds() {
    let cluster = Cluster::up(2);
    let (job, mut run) = idle_job(&cluster, "writer", &[("SCRFS_SEAL_TIMEOUT", "2s")]);
    fill(&job, "w");
    // The marker's own process: at once.
    let own = format!(
        "import os,sys\nf=open('{SCR}/w/a','r+b')\nm=os.open('{SCR}/w/.complete',os.O_WRONLY|os.O_CREAT)\n\
         try:\n  os.close(m)\nexcept OSError as e:\n  sys.exit(e.errno)\n"
    );
    let ran = cluster.on(0).cmd("python3").args(["-c", &own]).status().unwrap();
    assert_eq!(ran.code(), Some(5), "EIO");
    let events = job.events(0);
    assert!(events.contains("python3") && events.contains("by the process that set the marker"), "{events}");
    assert!(!events.contains("open for writing after"), "it was waited for: {events}");
    // Another's: after the time-out, named.
    let mut other = job
        .on(1)
        .sh(&format!("exec 7<> {SCR}/w/b; read never"))
        .stdin(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    // The shell may be there before it has opened the file.
    let has_it = "for p in $(pgrep -f 'read neve[r]'); do readlink /proc/$p/fd/7; done | grep -q scr";
    wait::until_true("the writer", SOON, || job.on(1).run(has_it).ok());
    let failed = job.on(0).run(&format!("touch {SCR}/w/.complete"));
    assert!(!failed.ok() && failed.err.contains("Input/output error"), "{failed}");
    let events = format!("{}{}", job.events(0), job.events(1));
    assert!(events.contains("/b") || events.contains("\"b\"") || events.contains(" b "), "{events}");
    assert!(!job.on(1).run(&format!("ls -A {SCR}/w")).must().contains(".complete"));
    // The files stay where they were, open and writable.
    job.on(1).run(&format!("echo more >> {SCR}/w/b")).must();
    drop(other.stdin.take());
    other.wait().unwrap();
    job.on(0).run(&format!("touch {SCR}/w/.complete")).must();
    assert!(job.is_sealed(0, "w"));
    run.stop();
}

#[test]
fn encoding_that_fails_is_told_and_can_be_tried_again() {
    let cluster = Cluster::start(&Config { cache_size: "24m".into(), ..Config::new(2) }).unwrap();
    let (job, mut run) = idle_job(&cluster, "full", &[]);
    job.on(0)
        .run(&format!("mkdir {SCR}/first && echo 1 > {SCR}/first/a && touch {SCR}/first/.complete"))
        .must();
    job.on(0).run(&format!("mkdir {SCR}/f && head -c 16000000 /dev/urandom > {SCR}/f/a")).must();
    // Node 0's parity would need as much again as node 1 has, and there is no room for it.
    job.on(1).run(&format!("head -c 14000000 /dev/urandom > {SCR}/f/b")).must();
    let failed = job.on(0).run(&format!("touch {SCR}/f/.complete"));
    assert!(!failed.ok() && failed.err.contains("Input/output error"), "{failed}");
    let events = format!("{}{}", job.events(0), job.events(1));
    assert!(events.contains("No space left"), "{events}");
    assert!(job.is_sealed(0, "first"), "the previous dataset is untouched");
    job.on(0).run(&format!("echo still writable >> {SCR}/f/a && truncate -s 5000000 {SCR}/f/a")).must();
    job.on(1).run(&format!("truncate -s 4000000 {SCR}/f/b")).must();
    job.on(0).run(&format!("touch {SCR}/f/.complete")).must();
    assert!(job.is_sealed(1, "f"));

    // An injected I/O error.
    fill(&job, "e");
    job.arm("encode.block=error");
    let failed = job.on(1).run(&format!("touch {SCR}/e/.complete"));
    assert!(job.fired(), "the fault was never reached");
    assert!(!failed.ok(), "{failed}");
    job.on(1).run(&format!("touch {SCR}/e/.complete")).must();
    assert!(job.is_sealed(0, "e"));
    run.stop();
}

/// A node whose records cannot be written must not hold markers up: neither that of the dataset
/// that waits for it, nor those that follow.
#[test]
fn markers_do_not_wait_for_a_node_that_cannot_record() {
    let cluster = Cluster::up(2);
    let job = Job::new(&cluster, "records").control_in(CACHE);
    let (job, mut run) = start_idle(job, &[("SCRFS_SEAL_TIMEOUT", "2s")]);
    fill(&job, "a");
    fill(&job, "b");
    // Something is in the way of the catalog.
    let control = format!("{CACHE}/root/scr.records");
    job.on(1).run(&format!("mkdir {control}/dataset.1.scrinfo")).must();
    let failed = job.on(0).run(&format!("touch {SCR}/a/.complete"));
    assert!(!failed.ok() && failed.err.contains("Input/output error"), "{failed}\n{}", job.events(0));
    let why = "a is protected but not yet recorded as complete on all nodes: node1 cannot record dataset 1";
    assert!(job.events(0).contains(why), "{}", job.events(0));
    let failed = job.on(1).run(&format!("touch {SCR}/b/.complete"));
    assert!(!failed.ok() && failed.err.contains("Input/output error"), "{failed}\n{}", job.events(1));
    assert!(job.events(1).contains(&format!("b: cannot be sealed: {why}")), "{}", job.events(1));
    assert!(!job.is_sealed(0, "b"));
    // All goes on by itself.
    job.on(1).run(&format!("rmdir {control}/dataset.1.scrinfo")).must();
    wait::until_true("a on both nodes", SOON, || (0..2).all(|node| job.is_sealed(node, "a")));
    job.on(1).run(&format!("touch {SCR}/b/.complete")).must();
    assert!(job.is_sealed(0, "b"));
    run.stop();
}

#[test]
fn a_marker_deeper_down_is_an_ordinary_file_and_an_empty_dataset_is_none() {
    let cluster = Cluster::up(2);
    let (job, mut run) = idle_job(&cluster, "deep", &[]);
    job.on(0).run(&format!("mkdir -p {SCR}/d/sub && echo x > {SCR}/d/sub/.complete")).must();
    assert_eq!(job.on(0).run(&format!("cat {SCR}/d/sub/.complete")).must(), "x");
    assert!(!job.is_sealed(0, "d"));
    job.on(1).run(&format!("mkdir {SCR}/empty")).must();
    let failed = job.on(1).run(&format!("touch {SCR}/empty/.complete"));
    assert!(!failed.ok(), "an empty dataset was sealed");
    run.stop();
}

/// Programs open, write and close small files all the time while seals begin: none of these may see
/// a file between its opening and its close.
#[test]
fn files_that_are_just_being_opened_are_waited_for() {
    const WRITER: &str = "\
import os, sys
top, own = sys.argv[1], sys.argv[2]
names = ['%s/%s.%d' % (top, own, k) for k in range(6)]
for name in names: open(name, 'wb').write(b'0' * 5016)
at = 0
while os.path.exists(sys.argv[3]):
    at += 1
    fd = os.open(names[at % 6], os.O_WRONLY)
    os.write(fd, bytes([at % 250]) * 2508)
    os.write(fd, bytes([at % 250]) * 2508)
    os.close(fd)
";
    let cluster = Cluster::up(2);
    let (job, mut run) = idle_job(&cluster, "opened", &[]);
    let (top, go) = (format!("{SCR}/d"), format!("{}/go", job.prefix()));
    job.on(0).run(&format!("mkdir {top} && touch {go}")).must();
    std::thread::scope(|scope| {
        let writers = ["a", "b", "c"].map(|own| {
            let (job, top, go) = (&job, &top, &go);
            scope.spawn(move || {
                let mut command = job.on(0).cmd("python3");
                scrfs_harness::shell::Ran::of(command.args(["-c", WRITER, top, own, go]))
            })
        });
        let all = || job.on(0).run(&format!("ls {top} | wc -l")).out.trim() == "18";
        wait::until_true("their files", SOON, all);
        let marks = format!("for i in $(seq 60); do touch {top}/.complete || echo failed; done; rm {go}");
        let marked = job.on(1).run(&marks);
        for writer in writers {
            let ran = writer.join().expect("a writer");
            assert!(ran.ok(), "{ran}\n{}", job.events(0));
        }
        assert!(!marked.out.contains("failed"), "{marked}\n{}", job.events(0));
    });
    for words in ["cannot be kept", "its bytes have CRC", "recorded are", "recorded is"] {
        assert!(!job.events(0).contains(words), "{}", job.events(0));
    }
    run.stop();
}

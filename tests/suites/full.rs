//! Caches without room: it is made where it can be, and where it cannot, programs are told at once
//! and nothing that is protected is harmed (semantics: "When the cache is full").

use std::time::Duration;

use scrfs_harness::Cluster;
use scrfs_harness::cluster::Config;
use scrfs_harness::job::{Job, SOON};
use scrfs_harness::place::{CACHE, SCR};
use scrfs_harness::programs::program;
use scrfs_harness::wait;

const NODES: [usize; 3] = [0, 1, 2];
const LIMIT: Duration = Duration::from_mins(3);

fn cluster() -> Cluster {
    Cluster::start(&Config { cache_size: "64m".into(), ..Config::new(4) }).expect("a cluster")
}

/// Each node writes `mib` MiB of its own into the dataset.
fn write(job: &Job<'_>, name: &str, mib: usize) {
    job.on(0).run(&format!("mkdir {SCR}/{name}")).must();
    for node in NODES {
        let line = format!("cd {SCR}/{name} && yes '{name} of {node}' | head -c {mib}M > f{node}");
        job.on(node).run(&line).must();
    }
}

fn is_whole(job: &Job<'_>, nodes: &[usize], name: &str, mib: usize) {
    for node in nodes {
        for of in NODES {
            let line = format!("yes '{name} of {of}' | head -c {mib}M | cmp - {SCR}/{name}/f{of}");
            job.on(*node).run(&line).must();
        }
    }
}

#[test]
fn the_oldest_goes_earlier_for_the_next_dataset() {
    let cluster = cluster();
    // Three of 16 MiB and 8 MiB of parity on each node are more than there is room for.
    let job = Job::new(&cluster, "early").set("SCR_CACHE_SIZE", "3").set("SCR_FLUSH", "0");
    job.mount(0..4);
    let mut run = job.idle(&NODES);
    for step in 1..6 {
        let name = format!("d{step}");
        write(&job, &name, 16);
        let touched = job.on(step % 3).run(&format!("touch {SCR}/{name}/.complete"));
        assert!(touched.ok(), "{touched}\n{}", job.events(0));
    }
    assert!(job.events(0).contains("leaves the caches early"), "{}", job.events(0));
    let listed = job.on(1).run(&format!("ls {SCR}"));
    assert_eq!(listed.must().split_whitespace().collect::<Vec<_>>(), ["d4", "d5"]);
    job.on(1).run(&format!("yes 'd4 of 1' | head -c 16M | cmp - {SCR}/d4/f1")).must();
    run.stop();
    cluster.poweroff(1);
    let mut run = job.idle(&[0, 2, 3]);
    is_whole(&job, &[0, 2, 3], "d5", 16);
    run.stop();
}

/// The spare that is taken has no room, and others have: the lost member is rebuilt there. If none
/// has, the program does not begin from nothing, and what is protected waits for room.
#[test]
fn a_restart_rebuilds_where_there_is_room_and_waits_for_it_where_there_is_none() {
    let cluster = cluster();
    let job = Job::new(&cluster, "spare").set("SCR_FLUSH", "0").set("SCR_FETCH", "0");
    job.mount(0..4);
    let mut run = job.idle(&NODES);
    write(&job, "d1", 12);
    let touched = job.on(0).run(&format!("touch {SCR}/d1/.complete"));
    assert!(touched.ok(), "{touched}\n{}", job.events(0));
    run.stop();
    cluster.poweroff(1);
    for node in [0, 2, 3] {
        let filled = job.on(node).run(&format!("cat /dev/zero > {CACHE}/others"));
        assert!(filled.err.contains("No space left"), "{filled}");
    }
    let mut run = job.start(&[0, 2, 3], 3, 1, &["/bin/sleep", "600"]);
    let code = run.wait(LIMIT);
    let said = run.output();
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("d1 (dataset 1) needs more room"), "{said}");
    assert!(said.contains("giving up: the checkpoint cannot be presented yet"), "{said}");
    assert!(said.contains("make room in the caches of these nodes"), "{said}");

    job.on(0).run(&format!("rm {CACHE}/others")).must();
    let mut run = job.idle(&[0, 2, 3]);
    is_whole(&job, &[0], "d1", 12);
    let told = job.events(0);
    assert!(told.contains("has no room for what is rebuilt; others are tried"), "{told}");
    run.stop();
}

#[test]
fn a_file_that_cannot_come_pushes_nothing_out_and_one_that_can_no_more_than_it_needs() {
    let cluster = cluster();
    let job = Job::new(&cluster, "vain")
        .set("SCR_CACHE_SIZE", "9")
        .set("SCR_FLUSH", "0")
        .set("SCR_COPY_TYPE", "LOCAL");
    job.mount(0..4);
    let mut run = job.idle(&NODES);
    let seal = |name: &str, mib: [usize; 3]| {
        job.on(0).run(&format!("mkdir {SCR}/{name}")).must();
        for (node, mib) in mib.into_iter().enumerate() {
            let line = format!("cd {SCR}/{name} && yes '{name} of {node}' | head -c {mib}M > f{node}");
            job.on(node).run(&line).must();
        }
        let touched = job.on(1).run(&format!("touch {SCR}/{name}/.complete"));
        assert!(touched.ok(), "{touched}\n{}", job.events(0));
    };
    let holds = |node: usize, name: &str, of: usize, mib: usize| {
        let line = format!("yes '{name} of {of}' | head -c {mib}M | cmp - {SCR}/{name}/f{of}");
        job.on(node).run(&line).must();
    };
    let used = || -> u64 {
        job.on(0)
            .run(&format!("df --output=used -k {CACHE} | tail -1"))
            .must()
            .trim()
            .parse()
            .expect("a number")
    };
    // 38 MiB on node 0; what node 1 has of the newest is more than node 0 has room for without the
    // older two.
    seal("d1", [4, 1, 1]);
    seal("d2", [14, 1, 1]);
    seal("d3", [20, 50, 34]);
    let before = used();
    let away = job.on(0).run(&format!("cat {SCR}/d3/f1"));
    assert!(!away.ok() && away.err.contains("No space left on device"), "{away}");
    let told = job.events(0);
    let why = "it takes 52428800 bytes, and ";
    assert!(
        told.contains(why) && told.contains("datasets that may go have ") && told.contains("so none goes"),
        "{told}"
    );
    assert!(!told.contains("leaves the caches early"), "{told}");
    assert!(used() < before + 1024, "{before} KiB were taken, and {} are", used());
    for node in NODES {
        assert_eq!(job.on(node).run(&format!("ls {SCR}")).must(), "d1\nd2\nd3");
        holds(node, "d1", node, [4, 1, 1][node]);
    }
    // For this one d2 has to go; d1 alone would not do, and is not needed then.
    holds(0, "d3", 2, 34);
    let told = job.events(0);
    assert!(told.contains("dataset 2 leaves the caches early"), "{told}");
    for node in NODES {
        assert_eq!(job.on(node).run(&format!("ls {SCR}")).must(), "d1\nd3");
        holds(node, "d1", node, [4, 1, 1][node]);
    }
    holds(0, "d3", 0, 20);
    run.stop();
}

#[test]
fn a_full_cache_harms_nothing() {
    let cluster = cluster();
    let job = Job::new(&cluster, "full").set("SCR_FLUSH", "0");
    job.mount(0..4);
    let mut run = job.idle(&NODES);
    write(&job, "a", 12);
    job.on(0).run(&format!("touch {SCR}/a/.complete")).must();
    // What is told is what can be written, and not a byte more.
    let room = |node: usize| -> u64 {
        job.on(node).run(&format!("echo $(($(stat -f -c %a*%S {SCR})))")).must().parse().expect("a number")
    };
    let told = room(0);
    assert!((30 << 20..52 << 20).contains(&told), "{told}");
    job.on(0).run(&format!("mkdir {SCR}/b")).must();
    job.on(1).run(&format!("yes 'b of 1' | head -c 1M > {SCR}/b/f1")).must();
    let full = job.on(0).run(&format!("cat /dev/zero > {SCR}/b/zero"));
    assert!(!full.ok() && full.err.contains("No space left on device"), "{full}");
    let size: u64 = job.on(0).run(&format!("stat -c %s {SCR}/b/zero")).must().parse().expect("a number");
    assert!(size <= told && size > told - (1 << 20), "{size} of {told} bytes");
    assert!(room(0) < 1 << 20);
    for line in
        [format!("head -c 1 /dev/zero > {SCR}/b/more"), format!("head -c 1M /dev/zero >> {SCR}/b/zero")]
    {
        let full = job.on(0).run(&line);
        assert!(!full.ok() && full.err.contains("No space left on device"), "{full}");
    }
    // Neither can it be sealed, as there is no room for its protection; the program is told, and
    // keeps its files.
    let refused = job.on(0).run(&format!("touch {SCR}/b/.complete"));
    assert!(!refused.ok() && refused.err.contains("Input/output error"), "{refused}");
    // With the node on which there was none, and what to do there.
    wait::until_true("the reason", SOON, || {
        let remedy = "; make room on the node that is named: remove files or datasets";
        let words = ["not sealed", "No space left on device", "node0", remedy];
        job.events(0).lines().any(|line| words.iter().all(|word| line.contains(word)))
    });
    assert_eq!(job.on(0).run(&format!("stat -c %s {SCR}/b/zero")).must(), size.to_string());
    is_whole(&job, &[1, 2], "a", 12);
    // The files that other nodes have of it have no room here; nothing else is wrong with them.
    job.on(0).run(&format!("yes 'a of 0' | head -c 12M | cmp - {SCR}/a/f0")).must();
    let away = job.on(0).run(&format!("cat {SCR}/a/f1"));
    assert!(!away.ok() && away.err.contains("No space left on device"), "{away}");
    job.on(0).run(&format!("truncate -s 1M {SCR}/b/zero && cat {SCR}/a/f1 > /dev/null")).must();
    job.on(0).run(&format!("touch {SCR}/b/.complete")).must();
    run.stop();
    cluster.poweroff(0);
    let mut run = job.idle(&[1, 2, 3]);
    is_whole(&job, &[1, 2, 3], "a", 12);
    job.on(3).run(&format!("head -c 1M /dev/zero | cmp - {SCR}/b/zero")).must();
    run.stop();
}

#[test]
fn what_is_overwritten_stays_and_what_was_asked_for_it_is_forgotten_with_its_seal() {
    let cluster = cluster();
    let job = Job::new(&cluster, "own").set("SCR_FLUSH", "0").set("SCR_CACHE_SIZE", "2");
    job.mount(0..3);
    let mut run = job.idle(&NODES);
    write(&job, "small", 1);
    job.on(0).run(&format!("touch {SCR}/small/.complete")).must();
    job.on(0).run(&format!("mkdir {SCR}/big")).must();
    job.on(1).run(&format!("yes 'big of 1' | head -c 36M > {SCR}/big/f1")).must();
    job.on(0).run(&format!("touch {SCR}/big/.complete")).must();
    // As much as the newest takes is not free for a next generation, and only the one that is
    // changed is older.
    job.on(1).run(&format!("echo more >> {SCR}/small/f1")).must();
    wait::until_true("the lead's word", SOON, || job.events(1).contains("no dataset may leave the caches"));
    let whole = |of_one: &str| {
        for node in NODES {
            assert_eq!(job.on(node).run(&format!("ls {SCR}")).must(), "big\nsmall");
            job.on(node).run(&format!("yes 'small of 0' | head -c 1M | cmp - {SCR}/small/f0")).must();
        }
        assert_eq!(job.on(1).run(&format!("tail -c 5 {SCR}/small/f1")).must(), of_one);
        job.on(1).run(&format!("yes 'big of 1' | head -c 36M | cmp - {SCR}/big/f1")).must();
    };
    whole("more");
    let touched = job.on(2).run(&format!("touch {SCR}/small/.complete"));
    assert!(touched.ok(), "{touched}\n{}", job.events(2));
    // The former generation's removal makes nobody ask again for what has come.
    for node in NODES {
        wait::until_true("the former one to go", SOON, || {
            job.events(node).contains("evicted from this node")
        });
    }
    job.on(0).run(&format!("mkdir {SCR}/next && rmdir {SCR}/next")).must();
    whole("more");
    assert!(!job.events(0).contains("leaves the caches early"), "{}", job.events(0));
    run.stop();
}

#[test]
fn a_dataset_that_a_program_has_open_gives_no_room() {
    let cluster = cluster();
    let job = Job::new(&cluster, "open")
        .set("SCR_FLUSH", "0")
        .set("SCR_CACHE_SIZE", "5")
        .set("SCR_COPY_TYPE", "LOCAL");
    job.mount(0..3);
    let mut run = job.idle(&NODES);
    for (name, node, mib) in [("d1", 1, 36), ("d2", 0, 40)] {
        job.on(node)
            .run(&format!("mkdir {SCR}/{name} && head -c {mib}M /dev/urandom > {SCR}/{name}/f"))
            .must();
        job.on(node).run(&format!("touch {SCR}/{name}/.complete")).must();
    }
    let line = format!("exec 5< {SCR}/d1/f && ! cat {SCR}/d2/f > /dev/null && cmp /dev/fd/5 {SCR}/d1/f");
    let kept = job.on(1).run(&line);
    assert!(kept.ok() && kept.err.contains("No space left on device"), "{kept}");
    assert_eq!(job.on(2).run(&format!("ls {SCR}")).must(), "d1\nd2");
    // Closed, it can go, and is all that has to.
    job.on(1).run(&format!("cat {SCR}/d2/f > /dev/null")).must();
    assert_eq!(job.on(2).run(&format!("ls {SCR}")).must(), "d2");
    run.stop();
}

/// One file system for control directory and cache, as it is where nothing else was set, filled to
/// the last byte in every way and at every moment: each mount goes on under the supervisor that
/// made it, and what is protected stays. The newest does in the caches, as a restart may fetch
/// none; older ones may leave them for what begins, and are on the PFS.
#[test]
fn whatever_fills_the_store_no_mount_and_no_dataset_is_lost() {
    let cluster = Cluster::start(&Config { cache_size: "256m".into(), ..Config::new(4) }).expect("a cluster");
    let job = Job::new(&cluster, "filled")
        .control_in(CACHE)
        .set("SCR_FLUSH", "1")
        .set("SCR_FETCH", "0")
        .set("SCR_CACHE_SIZE", "3");
    job.mount(0..4);
    let control = format!("{CACHE}/root/scr.filled");
    let pid =
        |node: usize, lock: &str| job.on(node).run(&format!("head -1 {control}/{lock}")).must().to_owned();
    let supervisors: Vec<String> = (0..4).map(|node| pid(node, "supervisor.lock")).collect();
    // Until there is not a byte left in what is written already either: a record that is written
    // meanwhile may free some.
    let fill = |node: usize, path: &str| {
        wait::until_true("all room to be taken", SOON, || {
            let full = job.on(node).run(&format!("cat /dev/zero >> {path}"));
            assert!(!full.ok() && full.err.contains("No space left on device"), "{full}");
            !job.on(node).run(&format!("head -c 5000 /dev/zero >> {control}/daemon.log")).ok()
        });
    };
    // The worker dies, so that all that are left have something to log and to record.
    let lives = |node: usize, said: &str| {
        let worker = pid(node, "worker.lock");
        job.on(node).run(&format!("kill -9 {worker} && ls {SCR} > /dev/null")).must();
        assert_eq!(pid(node, "supervisor.lock"), supervisors[node], "{said}");
        job.on(node).run(&format!("kill -0 {}", supervisors[node])).must();
        wait::until_true(said, SOON, || {
            job.status(node).is_some_and(|status| !status["coordinator"].is_null())
        });
        job.on(node).run(&format!("mkdir {SCR}/probe && rmdir {SCR}/probe")).must();
    };
    // Nobody can say anything.
    let full = || std::fs::File::options().write(true).open("/dev/full").expect("/dev/full");
    let mut mute = job.run_command(&NODES, 3, 1, &["/bin/sh", "-c", "echo lost && echo lost >&2"]);
    let ended = mute.stdout(full()).stderr(full()).status().expect("scrfs-run starts");
    assert!(ended.success(), "{ended}");

    let mut run = job.idle(&NODES);
    write(&job, "a", 12);
    job.on(0).run(&format!("touch {SCR}/a/.complete")).must();
    wait::until_true("a on the PFS", SOON, || job.state(0, "a") == "flushed");

    // By the program, which then seals, and is told.
    job.on(0).run(&format!("mkdir {SCR}/b")).must();
    job.on(1).run(&format!("yes 'b of 1' | head -c 1M > {SCR}/b/f1")).must();
    fill(0, &format!("{SCR}/b/zero"));
    lives(0, "filled by the program");
    let refused = job.on(0).run(&format!("touch {SCR}/b/.complete"));
    assert!(!refused.ok() && refused.err.contains("Input/output error"), "{refused}\n{}", job.events(0));
    wait::until_true("the reason", SOON, || job.events(0).contains("No space left on device"));
    wait::until_true("what to do", SOON, || {
        job.events(0).contains("records go on with the room kept back for them")
    });
    lives(0, "after a seal that failed");
    job.on(0).run(&format!("yes 'a of 0' | head -c 12M | cmp - {SCR}/a/f0")).must();
    job.on(0).run(&format!("rm {SCR}/b/zero")).must();
    job.on(0).run(&format!("touch {SCR}/b/.complete")).must();
    wait::until_true("b on the PFS", LIMIT, || job.state(0, "b") == "flushed");

    // By others on two nodes, while they are frozen for the seal, which is refused and told.
    write(&job, "c", 20);
    job.arm_daemon("seal.frozen=wait");
    let others = format!("{CACHE}/others");
    let seal = || job.on(0).run(&format!("touch {SCR}/c/.complete"));
    let refused = std::thread::scope(|scope| {
        let seal = scope.spawn(seal);
        wait::until_true("the seal", SOON, || job.fired());
        for node in [0, 2] {
            fill(node, &others);
        }
        job.arm_daemon("");
        seal.join().expect("a marker")
    });
    assert!(!refused.ok() && refused.err.contains("Input/output error"), "{refused}\n{}", job.events(0));
    for node in [0, 2] {
        lives(node, "filled by others");
    }
    for node in [0, 2] {
        job.on(node)
            .run(&format!("yes 'c of {node}' | head -c 20M | cmp - {SCR}/c/f{node} && rm {others}"))
            .must();
    }
    // And while it is flushed, to a PFS that is full at first.
    job.arm_daemon("flush.block=full");
    let sealed = seal();
    assert!(sealed.ok(), "{sealed}\n{}", job.events(0));
    for node in [0, 2] {
        fill(node, &others);
    }
    lives(2, "filled by others meanwhile");
    wait::until_true("the flush", LIMIT, || job.state(0, "c") == "flushed");
    assert!(job.fired());
    let told = job.events(0);
    assert!(told.contains("tried again") && told.contains("make room on the parallel file system"), "{told}");
    // What has left makes no difference to one who takes all that there is.
    wait::until_true("the older ones to leave", LIMIT, || job.on(0).run(&format!("ls {SCR}")).must() == "c");
    for node in [0, 2] {
        fill(node, &others);
        lives(node, "filled by others again");
    }
    let status = || job.on(0).run("scrfs-ctl status --mount /scr").must().to_owned();
    wait::until_true("the status", SOON, || {
        status().contains("kept back for records are left; make room there")
    });

    // By logs, on a node that is lost then, and on one that is there at the restart.
    for node in [0, 1] {
        let full = job.on(node).run(&format!("yes > {control}/daemon.log"));
        assert!(full.err.contains("No space left"), "{full}");
        lives(node, "filled by logs");
    }

    // A node is lost meanwhile, and a spare takes its place.
    run.stop();
    cluster.poweroff(1);
    let mut run = job.idle(&[0, 2, 3]);
    for node in [0, 2] {
        lives(node, "restarted");
        // What is here can be read; what is elsewhere has no room.
        job.on(node).run(&format!("yes 'c of {node}' | head -c 20M | cmp - {SCR}/c/f{node}")).must();
    }
    for node in [0, 2] {
        job.on(node).run(&format!("rm {CACHE}/others")).must();
    }
    is_whole(&job, &[0, 2, 3], "c", 20);
    for of in NODES {
        job.on(3).run(&format!("yes 'a of {of}' | head -c 12M | cmp - /pfs/filled/a/f{of}")).must();
    }
    job.on(3).run("yes 'b of 1' | head -c 1M | cmp - /pfs/filled/b/f1").must();
    run.stop();
    for node in [0, 2, 3] {
        assert_eq!(pid(node, "supervisor.lock"), supervisors[node]);
    }
}

/// As it is where nobody has set anything: the cache is in /dev/shm, with the segments of Open
/// MPI's ranks, two on each node. It is full to the last byte when the job is started again on the
/// nodes that are left.
#[test]
fn a_job_starts_again_while_the_default_store_is_full() {
    let cluster = Cluster::up(4);
    let job = Job::new(&cluster, "shm").set("SCR_CACHE_BASE", "/dev/shm").set("SCR_FLUSH", "0");
    job.mount(0..4);
    let program = program("ckpt");
    let run = |hosts: &[usize]| {
        let mut run = job.start(hosts, 3, 2, &[&program, "/scr", &job.log_path(), "2", "uneven"]);
        assert_eq!(run.wait(LIMIT), 0, "{}", run.output());
    };
    run(&[0, 1, 2, 3]);
    assert_eq!(job.sealed(), [1, 2]);
    cluster.poweroff(1);
    for node in [0, 2] {
        let full = cluster.on(node).run("cat /dev/zero > /dev/shm/others");
        assert!(!full.ok() && full.err.contains("No space left on device"), "{full}");
    }
    run(&[0, 2, 3]);
    assert!(job.log().iter().any(|line| line == "start after 2"), "{:?}", job.log());
    assert_eq!(job.sealed(), [1, 2], "nothing had to be written again");
}

/// A job that is queued again may find that others have taken all room where its control directory
/// is: that has room of its own.
/// As for want of bytes: what leaves gives both.
#[test]
fn the_oldest_goes_earlier_for_want_of_inodes() {
    let cluster = Cluster::start(&Config { cache_size: "64m".into(), ..Config::new(2) }).expect("a cluster");
    let job = Job::new(&cluster, "names").set("SCR_CACHE_SIZE", "3").set("SCR_FLUSH", "0");
    job.mount(0..2);
    let mut run = job.idle(&[0, 1]);
    let write = |name: &str| {
        job.on(0).run(&format!("mkdir {SCR}/{name} && touch {SCR}/{name}/first")).must();
        let others = || job.on(0).run(&format!("ls {SCR}")).must().to_owned();
        wait::until_true("room", SOON, || name < "d3" || !others().contains("d1"));
        for node in 0..2 {
            job.on(node).run(&format!("cd {SCR}/{name} && seq -f {node}.%.0f 100 | xargs touch")).must();
        }
        let touched = job.on(0).run(&format!("touch {SCR}/{name}/.complete"));
        assert!(touched.ok(), "{touched}\n{}", job.events(0));
    };
    write("d1");
    write("d2");
    for node in 0..2 {
        let few = format!("$(($(df --output=iused {CACHE} | tail -1) + 60))");
        cluster.on(node).run(&format!("mount -o remount,nr_inodes={few} {CACHE}")).must();
    }
    write("d3");
    assert!(job.events(0).contains(" bytes are free, for want of inodes"), "{}", job.events(0));
    assert!(job.events(0).contains("dataset 1 leaves the caches early"), "{}", job.events(0));
    assert_eq!(job.on(1).run(&format!("ls {SCR}; ls {SCR}/d3 | wc -l")).must(), "d2\nd3\n201");
    run.stop();
}

/// A store with room for bytes, and none for names.
#[test]
fn a_restart_that_finds_no_inodes_does_not_begin_from_nothing() {
    let cluster = Cluster::start(&Config { cache_size: "64m".into(), ..Config::new(1) }).expect("a cluster");
    let job = Job::new(&cluster, "inodes").set("SCR_FLUSH", "1");
    job.mount([0]);
    let mut run = job.idle(&[0]);
    job.on(0).run(&format!("mkdir {SCR}/ck && echo bytes >{SCR}/ck/f && touch {SCR}/ck/.complete")).must();
    assert_eq!(run.stop(), 128 + 15, "{}", run.output());
    assert!(job.end([0], &["--purge"])[0].ok());
    cluster.on(0).run(&format!("mkdir {CACHE}/full && mount -o remount,nr_inodes=400 {CACHE}")).must();
    job.mount([0]);
    cluster.on(0).run(&format!("cd {CACHE}/full && ! (seq 500 | xargs touch)")).must();
    let mut run = job.start(&[0], 1, 1, &["/bin/sh", "-c", "cat /scr/$SCRFS_CURRENT/f"]);
    assert_ne!(run.wait(LIMIT), 0, "{}", run.output());
    assert!(run.output().contains("ck (dataset 1) needs more room: "), "{}", run.output());
    cluster.on(0).run(&format!("rm -r {CACHE}/full")).must();
    let mut run = job.start(&[0], 1, 1, &["/bin/sh", "-c", "cat /scr/$SCRFS_CURRENT/f"]);
    assert_eq!(run.wait(LIMIT), 0, "{}", run.output());
    assert!(run.output().contains("bytes"), "{}", run.output());
}

#[test]
fn a_job_is_mounted_again_where_its_control_directory_is_full() {
    let cluster = cluster();
    let job = Job::new(&cluster, "again").control_in(CACHE).set("SCR_FLUSH", "0").set("SCR_FETCH", "0");
    job.mount(0..3);
    let mut run = job.idle(&NODES);
    write(&job, "ck", 4);
    job.on(0).run(&format!("touch {SCR}/ck/.complete")).must();
    run.stop();
    job.unmount(0).must();
    let full = job.on(0).run(&format!("cat /dev/zero > {CACHE}/others"));
    assert!(!full.ok() && full.err.contains("No space left on device"), "{full}");
    job.mount([0]);
    let mut run = job.idle(&NODES);
    job.on(0).run(&format!("yes 'ck of 0' | head -c 4M | cmp - {SCR}/ck/f0")).must();
    // What other nodes have needs room for a copy.
    job.on(0).run(&format!("rm {CACHE}/others")).must();
    is_whole(&job, &NODES, "ck", 4);
    run.stop();
}

/// Another user can leave a node without an inode. What cannot be made there is made nowhere, and
/// can be made when there is one; what fails there in spite of its vote comes there later.
#[test]
fn a_directory_that_one_node_has_no_room_for_is_on_all_nodes_or_on_none() {
    let cluster = cluster();
    let job = Job::new(&cluster, "inodes").set("SCR_FLUSH", "0");
    job.mount(0..3);
    let mut run = job.idle(&NODES);
    let listed = || NODES.map(|node| job.on(node).run(&format!("ls {SCR}")).must().to_owned());
    let others = format!("{CACHE}/others");
    job.on(1).run(&format!("mkdir {others}; mount -o remount,nr_inodes=100 {CACHE}")).must();
    job.on(1).run(&format!("i=0; while touch {others}/$i; do i=$((i + 1)); done 2>&1; true")).must();
    for node in NODES {
        let refused = job.on(node).run(&format!("mkdir {SCR}/ck"));
        assert!(!refused.ok() && refused.err.contains("No space left on device"), "{refused}");
        assert_eq!(listed(), ["", "", ""], "from node {node}");
    }
    let told = "mkdir ck is refused: node1 has no room for it (No space left on device (os error 28)); make room there";
    wait::until_true("the reason", SOON, || job.events(0).contains(told));
    job.on(1).run(&format!("rm -r {others}")).must();
    job.on(0).run(&format!("mkdir {SCR}/ck")).must();
    assert_eq!(listed(), ["ck", "ck", "ck"]);

    job.arm_daemon("round.recorded=full");
    let failed = job.on(0).run(&format!("mkdir {SCR}/late"));
    assert!(!failed.ok() && failed.err.contains("No space left on device"), "{failed}");
    wait::until_true("it on all nodes", SOON, || listed() == ["ck\nlate", "ck\nlate", "ck\nlate"]);
    let told = |node: usize| {
        let events = job.events(node);
        events.contains("mkdir late: done on other nodes, and not here: ")
            && events.contains("mkdir late: done here too")
    };
    assert_eq!(NODES.iter().filter(|node| told(**node)).count(), 1, "{}", job.events(0));
    // It can be used, and removed where it is not yet.
    job.arm_daemon("round.recorded=full");
    let failed = job.on(0).run(&format!("mkdir {SCR}/gone"));
    assert!(!failed.ok(), "{failed}");
    let there = NODES.into_iter().find(|node| job.on(*node).run(&format!("rmdir {SCR}/gone")).ok());
    assert!(there.is_some(), "{:?}", listed());
    for node in NODES {
        job.on(node).run(&format!("echo {node} > {SCR}/late/f{node}")).must();
    }
    job.on(2).run(&format!("touch {SCR}/late/.complete")).must();
    for node in NODES {
        assert_eq!(job.on(node).run(&format!("cat {SCR}/late/f*")).must(), "0\n1\n2");
    }
    assert_eq!(listed(), ["ck\nlate", "ck\nlate", "ck\nlate"]);
    run.stop();
}

//! The end of a job: what is newest is on the PFS, whichever end; halting; what a restart goes on
//! from and what becomes of the rest (operations: "The end of a job", "Halting").

use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use scrfs_harness::job::{Job, Running, SOON};
use scrfs_harness::place::{BIN, SCR};
use scrfs_harness::programs::program;
use scrfs_harness::{Cluster, wait};

const LIMIT: Duration = Duration::from_mins(2);
const ALL: [usize; 3] = [0, 1, 2];

/// Makes a dataset of one file, on one node; `marker`: seals it.
fn write(job: &Job<'_>, node: usize, name: &str, marker: bool) {
    let dir = format!("{SCR}/{name}");
    let seal = if marker { format!("&& touch {dir}/.complete") } else { String::new() };
    job.on(node).run(&format!("mkdir {dir} && echo {name} > {dir}/f {seal}")).must();
}

fn on_pfs(job: &Job<'_>, name: &str) -> bool {
    std::fs::read_to_string(job.host_prefix().join(name).join("f")).is_ok_and(|text| text.trim() == name)
}

fn ctl(job: &Job<'_>, node: usize, arguments: &str) -> (bool, String) {
    let ran = job.on(node).run(&format!("{BIN}/scrfs-ctl {arguments}"));
    (ran.ok(), ran.to_string())
}

#[track_caller]
fn says(ran: &(bool, String), ok: bool, text: &str) {
    assert!(ran.0 == ok && ran.1.contains(text), "{text:?}: {ran:?}");
}

#[test]
fn what_is_newest_is_on_the_pfs_at_every_end() {
    let cluster = Cluster::up(3);
    let job = Job::new(&cluster, "endings").set("SCRFS_END_GRACE", "60").set("SCRFS_HALT_GRACE", "2");
    job.mount(ALL);

    // Done.
    let ckpt = program("ckpt");
    let mut run = job.start(&ALL, 3, 1, &[&ckpt, SCR, &job.log_path(), "2"]);
    assert_eq!(run.wait(LIMIT), 0, "{}", run.output());
    let there = |name: &str| job.host_prefix().join(name).join(".scr/summary.scr").exists();
    assert!(there("ck.2") && !there("ck.1"), "SCR_FLUSH=0 holds along the way\n{}", run.output());
    // What was protected can still be read where it is, and without coordinators.
    for node in ALL {
        job.on(node)
            .run(&format!("cd {SCR}/ck.1 && test -e .complete && cat rank_{node}.ckpt > /dev/null"))
            .must();
    }
    says(&ctl(&job, 0, "flush --json"), true, "\"state\":\"flushed\"");
    says(&ctl(&job, 0, "flush ck.1"), false, "no coordinator serves this node");
    says(&ctl(&job, 0, "flush ck.9"), false, "no dataset ck.9");

    // Asked for.
    let mut run = job.idle(&ALL);
    write(&job, 1, "asked", true);
    write(&job, 1, "loose", false);
    says(&ctl(&job, 1, "flush loose"), false, "loose is not sealed");
    std::fs::write(job.host_prefix().join("asked"), b"in the way").unwrap();
    says(&ctl(&job, 2, "flush asked --wait --limit 4"), false, "is no dataset has this name in the prefix");
    std::fs::remove_file(job.host_prefix().join("asked")).unwrap();
    says(&ctl(&job, 2, "flush --wait"), true, "asked (dataset ");
    assert!(on_pfs(&job, "asked"));
    says(&ctl(&job, 2, "wait asked"), true, "");
    says(&ctl(&job, 2, "wait asked --flushed"), true, "");
    says(&ctl(&job, 1, "wait loose --limit 1"), false, "loose is open after 1 s, and not protected");
    says(&ctl(&job, 1, "wait nothing --flushed --limit 1"), false, "nothing is not there after 1 s");

    // TERM.
    write(&job, 0, "term", true);
    assert_eq!(run.stop(), 128 + 15, "{}", run.output());
    assert!(on_pfs(&job, "term"), "{}\n{}", run.output(), job.events(0));

    // Given up; the restart before names what it removes.
    let program = "test $(hostname) = node0 || exec sleep 60; cd /scr; mkdir up && echo up > up/f && touch up/.complete; exit 3";
    let once = job.clone().set("SCR_RUNS", "1");
    let mut run = once.start(&ALL, 3, 1, &["/bin/sh", "-c", program]);
    assert_eq!(run.wait(LIMIT), 3, "{}", run.output());
    assert!(on_pfs(&job, "up"), "{}\n{}", run.output(), job.events(0));
    let text = run.output();
    assert!(text.contains("loose is not sealed: this restart removes its 1 files (6 B) on node1"), "{text}");
    assert!(job.events(1).contains("loose: what is not sealed is removed: 1 files"), "{}", job.events(1));

    // What cannot be saved is named.
    let mut run = job.clone().set("SCRFS_END_GRACE", "3").idle(&ALL);
    std::fs::write(job.host_prefix().join("stuck"), b"in the way").unwrap();
    write(&job, 0, "stuck", true);
    assert_eq!(run.stop(), 128 + 15, "{}", run.output());
    let text = run.output();
    assert!(
        text.contains("not on the PFS: stuck (dataset ") && text.contains("in the caches of node[0-2]"),
        "{text}"
    );
    std::fs::remove_file(job.host_prefix().join("stuck")).unwrap();
}

/// What could not be flushed is flushed by the next run, to the prefix that it is given; and what
/// is on the PFS under one prefix is not taken for being under another.
#[test]
fn a_run_with_another_prefix_saves_there_what_the_caches_have() {
    let cluster = Cluster::up(2);
    let wrong = Job::new(&cluster, "wrong").set("SCRFS_END_GRACE", "40").set("SCR_FLUSH", "1");
    wrong.mount(0..2);
    let mut run = wrong.idle(&[0, 1]);
    let stray = wrong.host_prefix().join("ck");
    std::fs::write(&stray, b"in the way").expect("the PFS can be written");
    write(&wrong, 0, "ck", true);
    let given_up =
        || wrong.status(0).is_some_and(|status| status["datasets"][0]["flush_failed"]["given_up"] == true);
    wait::until_true("it to be given up", LIMIT, given_up);
    // Nobody ends the mount under a job by mistake, though it has no file open.
    for what in ["/scr", "--job-id wrong --purge"] {
        let ran = cluster.on(0).run(&format!("{BIN}/scrfs umount {what}"));
        assert!(!ran.ok() && ran.err.contains("/scr is in use: a coordinator (process "), "{ran}");
        assert!(ran.err.contains("hint: end the job first; "), "{ran}");
    }
    assert_eq!(run.stop(), 128 + 15, "{}", run.output());
    let name = "is no dataset has this name in the prefix";
    assert!(
        run.output().contains("not on the PFS: ck (dataset ") && run.output().contains(name),
        "{}",
        run.output()
    );

    // Where the reason is gone, the next end tries anew.
    std::fs::remove_file(&stray).expect("the PFS can be written");
    let mut run = wrong.start(&[0, 1], 2, 1, &["/bin/true"]);
    assert_eq!(run.wait(LIMIT), 0, "{}", run.output());
    assert!(on_pfs(&wrong, "ck"), "{}", run.output());

    for prefix in ["right", "third"] {
        let right = Job::new(&cluster, prefix).with_id("wrong").set("SCRFS_END_GRACE", "40");
        let mut run = right.start(&[0, 1], 2, 1, &["/bin/true"]);
        assert_eq!(run.wait(LIMIT), 0, "{}", run.output());
        assert!(on_pfs(&right, "ck"), "{}\n{}", run.output(), right.events(0));
        let told = format!(") in {}", right.prefix());
        assert!(
            run.output().contains("on the PFS: ck (dataset ") && run.output().contains(&told),
            "{}",
            run.output()
        );
    }

    // A job has one mount; a mistake in the configuration is no reason to leave it.
    let ran = cluster.on(0).run(&format!("mkdir -p /scr2 && {BIN}/scrfs mount --job-id wrong /scr2"));
    assert!(!ran.ok() && ran.err.contains("job wrong of root is mounted at /scr already"), "{ran}");
    let ran = cluster.on(0).run(&format!("SCR_FLUSH=often {BIN}/scrfs umount --job-id wrong --purge"));
    assert!(ran.ok() && ran.err.contains("it has no effect on this command"), "{ran}");
    assert!(ran.err.contains("/scr is unmounted"), "{ran}");
}

/// scrfs-run is killed, or its host is lost: the caches have what it has not saved. No program is
/// started any more, and none will be: it is saved all the same.
#[test]
fn what_a_killed_scrfs_run_left_is_saved_where_no_program_is_started() {
    let cluster = Cluster::up(3);
    let job = Job::new(&cluster, "left").set("SCRFS_END_GRACE", "60");
    job.mount(ALL);
    let halt = |arguments: &str| {
        cluster.head().run(&format!("{BIN}/scrfs-ctl halt --prefix {} {arguments}", job.prefix())).must();
    };
    let kill = |run: &mut Running| {
        let killed = cluster.head().run("kill -KILL $(pgrep -x scrfs-run)");
        assert!(killed.ok(), "{killed}");
        wait::until_true("its end", SOON, || run.try_code().is_some());
    };
    let mut first = job.idle(&ALL);
    write(&job, 1, "left", true);
    kill(&mut first);
    assert!(!on_pfs(&job, "left"), "{}", first.output());
    // Those that it has left would save it themselves as soon as they see the halt.
    for node in ALL {
        cluster.on(node).run("kill -STOP $(pgrep scrfs-coordinat)").must();
    }
    halt("");
    let mut second = job.start(&ALL, 3, 1, &["/bin/true"]);
    assert_eq!(second.wait(LIMIT), 75, "{}", second.output());
    assert!(on_pfs(&job, "left"), "{}\n{}", second.output(), job.events(0));
    assert!(
        second.output().contains("starting coordinators to save the newest dataset"),
        "{}",
        second.output()
    );
    halt("--remove");

    // Where it cannot be saved it is named: nothing is there that could be started.
    let mut third = job.idle(&ALL);
    write(&job, 2, "named", true);
    kill(&mut third);
    let mut fourth = job.clone().option("--coordinator=/bin/false").start(&ALL, 3, 1, &["/bin/true"]);
    assert_eq!(fourth.wait(LIMIT), 1, "{}", fourth.output());
    let text = fourth.output();
    assert!(
        text.contains("not on the PFS: named (dataset ")
            && text.contains("in the caches of node0 node1 node2"),
        "{text}"
    );
    assert!(!on_pfs(&job, "named"), "{text}");

    // A second run whose program cannot be started any more ends as any other: with what the first
    // has sealed.
    for node in ALL {
        let unmounted = job.unmount(node);
        assert!(unmounted.ok(), "{unmounted}");
    }
    let alone = Job::new(&cluster, "once");
    alone.mount([0]);
    let desk = alone.prefix();
    let path = alone.host_prefix().join("once");
    let program =
        "#!/bin/sh\nmkdir /scr/ck && echo ck > /scr/ck/f && touch /scr/ck/.complete && rm $0\nexit 4\n";
    std::fs::write(&path, program).expect("the PFS can be written");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("its mode");
    let ran = alone.on(0).limit(LIMIT).run(&format!(
        "SCRFS_END_GRACE=30 SCR_FLUSH=0 SCR_JOB_ID=once {BIN}/scrfs-run --launcher none --hosts node0 --prefix {desk} -- {desk}/once"
    ));
    assert_eq!(ran.code, 4, "{ran}");
    assert!(ran.err.contains("giving up: ") && ran.err.contains("cannot be started"), "{ran}");
    assert!(on_pfs(&alone, "ck"), "{ran}");
}

/// Coordinators that were started to save have attached, and the daemon serves a moment later: a
/// flush that was asked for too early is asked for again.
#[test]
fn a_flush_that_nobody_has_heard_of_is_asked_for_again() {
    let cluster = Cluster::up(1);
    let job = Job::new(&cluster, "soon").set("SCRFS_END_GRACE", "40").set("SCR_RUNS", "1");
    job.mount([0]);
    let go = format!("{}/go", job.prefix());
    let program = format!(
        "mkdir {SCR}/ck && echo ck > {SCR}/ck/f && touch {SCR}/ck/.complete && until test -e {go}; do sleep 0.1; done; exit 3"
    );
    let mut run = job.start(&[0], 1, 1, &["/bin/sh", "-c", &program]);
    wait::until_true("a seal", SOON, || job.on(0).run(&format!("test -e {SCR}/ck/.complete")).ok());
    job.arm_daemon("present.served=wait");
    job.on(0).run(&format!("touch {go}")).must();
    wait::until_true("coordinators that attach", SOON, || job.fired());
    // Between two questions it sleeps.
    let asks = "awk '/^voluntary/ { exit $2 < 20 }' /proc/$(pgrep -f '^[^ ]*scrfs-ctl save')/status";
    wait::until_true("some questions", SOON, || job.on(0).run(asks).ok());
    assert!(!on_pfs(&job, "ck"), "{}", run.output());
    job.arm_daemon("present.served=wait@1000");
    assert_eq!(run.wait(LIMIT), 3, "{}\n{}", run.output(), job.events(0));
    assert!(on_pfs(&job, "ck"), "{}\n{}", run.output(), job.events(0));
    assert!(run.output().contains("starting coordinators to save"), "{}", run.output());
}

#[test]
fn a_job_is_halted_and_begins_afresh() {
    let cluster = Cluster::up(3);
    let job = Job::new(&cluster, "halting").set("SCRFS_END_GRACE", "20").set("SCRFS_HALT_GRACE", "2");
    job.mount(ALL);
    let halt = |arguments: &str| {
        let ran = cluster.head().run(&format!("{BIN}/scrfs-ctl halt --prefix {} {arguments}", job.prefix()));
        (ran.ok(), ran.to_string())
    };

    // At a checkpoint, of which its program hears with the marker.
    let mut run = job.idle(&ALL);
    says(&halt("--checkpoints 1"), true, "stop after 1 more checkpoints");
    write(&job, 0, "last", false);
    job.on(0).run(&format!("touch {SCR}/last/.complete")).must();
    // The halt file is read while the dataset is sealed; where that takes longer, a moment later.
    let told = || job.on(0).run(&format!("cat {SCR}/.scrfs/should_exit")).must() == "1";
    wait::until_true("the advice to end", SOON, told);
    assert_eq!(run.wait(LIMIT), 75, "{}", run.output());
    let text = run.output();
    assert!(
        text.contains("halting, because no checkpoints are left") && text.contains("sending it signal 15"),
        "{text}"
    );
    assert!(on_pfs(&job, "last"), "{text}");
    says(&halt("--list"), true, "stop after 0 more checkpoints");

    // It is not started while that holds.
    let mut run = job.start(&ALL, 3, 1, &["/bin/sleep", "600"]);
    assert_eq!(run.wait(LIMIT), 75, "{}", run.output());
    assert!(run.output().contains("the program is not started"), "{}", run.output());
    says(&halt("--remove"), true, "no condition is set");

    // At once; and a program that fails then is not started again.
    let mut run = job.idle(&ALL);
    write(&job, 1, "now", true);
    says(&halt("--immediate --reason maintenance"), true, "stop at once: maintenance");
    assert_eq!(run.wait(LIMIT), 75, "{}", run.output());
    assert!(
        run.output().contains("the halt file says maintenance, at once") && on_pfs(&job, "now"),
        "{}",
        run.output()
    );
    says(&halt("--remove"), true, "no condition is set");
    says(&halt("--before yesterday"), false, "--before: \"yesterday\" is no time");

    // Before the allocation ends.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let ending = job.clone().set("SCRFS_END_TIME", &(now + 60).to_string());
    let mut run = ending.start(&ALL, 3, 1, &["/bin/sleep", "600"]);
    assert_eq!(run.wait(LIMIT), 75, "{}", run.output());
    assert!(run.output().contains("because the allocation ends in "), "{}", run.output());

    // Afresh: nothing of before is presented, and all of it is still on the PFS.
    write(&job, 2, "half", false);
    let fresh = job.clone().option("--fresh").option("--keep-unsealed");
    let mut run =
        fresh.start(&ALL, 3, 1, &["/bin/sh", "-c", "test -z \"$SCRFS_CURRENT\" && test -z \"$(ls /scr)\""]);
    assert_eq!(run.wait(LIMIT), 0, "{}", run.output());
    let text = run.output();
    assert!(text.contains("half is not sealed: this restart moves aside its 1 files"), "{text}");
    assert!(on_pfs(&job, "now") && on_pfs(&job, "last"));
    let status = job.status(2).expect("status of node2");
    let cache = status["cache_directory"].as_str().expect("the cache's directory");
    let kept = job.on(2).run(&format!("cat {cache}/tree/.scrfs/kept.*/half/f"));
    assert_eq!(kept.must(), "half", "{cache}");
    // Without --fresh it goes on from the newest.
    let mut run = job.start(&ALL, 3, 1, &["/bin/sh", "-c", "test \"$SCRFS_CURRENT\" = now"]);
    assert_eq!(run.wait(LIMIT), 0, "{}", run.output());
    for node in ALL {
        let unmounted = job.unmount(node);
        assert!(unmounted.ok(), "{unmounted}");
    }

    // Two at once, on different nodes.
    let names = Job::new(&cluster, "names").set("SCRFS_END_GRACE", "20");
    names.mount(ALL);
    let (left, right) = (names.clone().option("--name=left"), names.clone().option("--name=right"));
    let mut one = left.idle(&[0]);
    let mut two = right.idle(&[1, 2]);
    write(&names, 0, "same", true);
    write(&names, 1, "same", true);
    // Nothing reads a halt file of the job itself; each has one of its own.
    let halt = |prefix: String, arguments: &str| {
        let ran = cluster.head().run(&format!("{BIN}/scrfs-ctl halt --prefix {prefix} {arguments}"));
        (ran.ok(), ran.to_string())
    };
    // Each keeps its status in its prefix, a moment after its start.
    wait::until_true("both names", SOON, || {
        halt(names.prefix(), "--checkpoints 9").1.contains("has names (left, right)")
    });
    says(&halt(names.prefix(), "--checkpoints 9"), false, "/left, --prefix ");
    says(&halt(format!("{}/left", names.prefix()), "--checkpoints 9"), true, "the running job sees it");
    let mut third = right.start(&[2], 1, 1, &["/bin/true"]);
    assert_eq!(third.wait(LIMIT), 1, "{}", third.output());
    assert!(third.output().contains("another scrfs-run of job "), "{}", third.output());
    let mut fourth = names.clone().option("--name=other").start(&[2], 1, 1, &["/bin/true"]);
    assert_eq!(fourth.wait(LIMIT), 1, "{}", fourth.output());
    assert!(
        fourth.output().contains("an attached coordinator that this scrfs-run did not start"),
        "{}",
        fourth.output()
    );
    assert_eq!((one.stop(), two.stop()), (143, 143), "{}\n{}", one.output(), two.output());
    for (name, run, node) in [("left", &one, 0), ("right", &two, 1)] {
        let copy = names.host_prefix().join(name).join("same/f");
        assert!(copy.exists(), "{name}: {}\n{}", run.output(), names.events(node));
    }
    // What one has sealed is no other's to go on from.
    let mut fifth = names.clone().option("--name=other").start(&[0], 1, 1, &["/bin/true"]);
    assert_eq!(fifth.wait(LIMIT), 1, "{}", fifth.output());
    assert!(fifth.output().contains("has datasets of the run --name left"), "{}", fifth.output());
    assert!(!fifth.output().contains("once more"), "{}", fifth.output());
}

/// Its launcher is sent a SIGTERM to pass on, and is asked to end a moment later.
#[test]
fn a_program_that_is_halted_has_ended_when_the_newest_is_saved() {
    let cluster = Cluster::up(2);
    let job = Job::new(&cluster, "deaf").set("SCRFS_END_GRACE", "20").set("SCRFS_HALT_GRACE", "1");
    job.mount([0, 1]);
    let alive = || [0, 1].map(|node| cluster.on(node).run("pgrep -cxf 'sleep 7654'").out.trim().to_owned());
    let deaf = "trap '' TERM; sleep 7654";
    let mut run = job.start(&[0, 1], 2, 1, &["/bin/sh", "-c", deaf]);
    wait::until_true("the program", LIMIT, || alive() == ["1", "1"]);
    write(&job, 1, "newest", true);
    let halt = format!("{BIN}/scrfs-ctl halt --prefix {} --immediate", job.prefix());
    cluster.head().run(&halt).must();
    wait::until_true("the save", LIMIT, || run.output().contains("no program runs any more"));
    assert_eq!(alive(), ["0", "0"], "{}", run.output());
    assert_eq!(run.wait(LIMIT), 75, "{}", run.output());
    assert!(on_pfs(&job, "newest"), "{}", run.output());
}

/// A process that makes a session of its own is out of its launcher's reach.
#[test]
fn what_has_left_its_launchers_reach_ends_with_the_job() {
    let cluster = Cluster::up(2);
    let job = Job::new(&cluster, "apart").set("SCRFS_END_GRACE", "20");
    job.mount([0, 1]);
    let apart = "setsid --fork sleep 6543 < /dev/null > /dev/null 2>&1";
    let alive = || [0, 1].map(|node| cluster.on(node).run("pgrep -cxf 'sleep 6543'").out.trim().to_owned());
    // What another job has started is none of its.
    let mark = format!("SCRFS_RUN_TOKEN=1-1@{}/root/other", cluster.head().run("hostname").must());
    cluster.on(1).run(&format!("{mark} {apart}")).must();
    let mut run = job.start(&[0, 1], 2, 1, &["/bin/sh", "-c", apart]);
    assert_eq!(run.wait(LIMIT), 0, "{}", run.output());
    assert_eq!(alive(), ["0", "1"], "{}", run.output());
    let mut run = job.start(&[0, 1], 2, 1, &["/bin/sh", "-c", &format!("{apart}; exec sleep 600")]);
    wait::until_true("the program", LIMIT, || alive() == ["1", "2"]);
    assert_eq!(run.stop(), 128 + 15, "{}", run.output());
    assert_eq!(alive(), ["0", "1"], "{}", run.output());
    cluster.on(1).run("pkill -xf 'sleep 6543'").must();
}

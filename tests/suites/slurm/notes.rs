//! What hooks keep on a node: nobody else's to write or to hold, known of whatever is killed, and
//! none where scrfs is not to be.

use scrfs_harness::cluster::workspace;
use scrfs_harness::place::{BIN, USERS};

use super::*;

/// A job on a node that is mounted there, and on one where that failed.
#[test]
fn what_hooks_keep_is_roots() {
    let cluster = Cluster::up(2);
    let slurm = Slurm::start(&cluster, SYSTEM);
    cluster.on(0).run(&format!("mount -o remount,ro {CACHE}")).must();
    let batch = slurm.submit(JOB_UID, "reader", "-N2 --comment=scrfs", "exec sleep 600");
    let told = || slurm.output("reader", &batch);
    wait::until_true("the reason", LIMIT, || told().contains("scrfs is not mounted on node0: scrfs: "));
    assert!(told().contains(CACHE), "{}", told());
    let note = format!("grep -h ^state /run/scrfs-slurm/{}", batch.0);
    let said = format!("/run/scrfs-slurm/.said.{}", batch.0);
    for (node, state) in [(0, "failed"), (1, "mounted")] {
        let is_noted = || cluster.on(node).run(&note).out.trim() == format!("state {state}");
        wait::until_true("the note", SOON, is_noted);
        // The job's user can write nothing there, and so keep nothing in root's memory.
        let theirs = format!("find /run/scrfs-slurm -writable -o ! -user 0; test ! -w {said}");
        assert_eq!(cluster.on(node).job().run(&theirs).must(), "", "node{node}");
    }
    // A message may name files.
    cluster.on(0).job().run(&format!("grep {CACHE} {said}")).must();
    assert!(!cluster.on(0).user(USERS[1].1).run(&format!("cat {said}")).ok(), "another user reads it");
    cluster.on(0).run(&format!("mount -o remount,rw {CACHE}")).must();
    slurm.cancel(&batch);
    nothing_is_left(&cluster, 0..2);
}

/// All jobs are mounted at one place: what is left there keeps others away.
#[test]
fn what_killed_hooks_leave_is_freed() {
    let cluster = Cluster::up(1);
    let slurm = Slurm::start(&cluster, "");
    let killed_prolog = |variables: &str| {
        let kill = format!("{BIN}/scrfs \"$@\" && pkill -KILL -f \"/hooks/prolog$\"; exit");
        let lines = format!("[ \"$1\" != mount ] || {{ {kill}; }}\nexec {BIN}/scrfs \"$@\"");
        stand_in(&cluster, 0, "scrfs", &lines);
        let killed = slurm.hook(0, "prolog", variables);
        assert_eq!(killed.code, 137, "{killed}");
        no_stand_ins(&cluster, 0);
    };
    // The job's Epilog knows of it.
    let (batch, variables) = job_on(&slurm, 0);
    killed_prolog(&variables);
    let there = format!("mountpoint /scr && grep -x \"state mounting\" /run/scrfs-slurm/{}", batch.0);
    cluster.on(0).run(&there).must();
    within_bound(&slurm, 0, "epilog", &variables);
    cluster.on(0).run(&format!("! mountpoint /scr && ! ls -d {CACHE}/job")).must();
    nothing_is_known_of(&cluster, 0, &batch);
    slurm.cancel(&batch);
    // So does the sweep, where no Epilog runs.
    killed_prolog("SLURM_JOB_ID=900200 SLURM_JOB_USER=job SLURM_JOB_GID=1000 SLURM_JOB_COMMENT=scrfs");
    nothing_is_left(&cluster, [0]);
    // Of what nobody has noted too.
    cluster.on(0).run("scrfs mount --user job --job-id 900201 /scr").must();
    nothing_is_left(&cluster, [0]);
    // Nor does a daemon that a sweep has started to save something keep the next sweep away.
    let refuse = "case \"$*\" in *--save*) echo no room >&2; exit 1;; esac";
    stand_in(&cluster, 0, "scrfs", &format!("{refuse}\nexec {BIN}/scrfs \"$@\""));
    let keep = "scrfs mount --user job --job-id 900202 /scr && scrfs umount --user job --job-id 900202";
    // A dataset of which there is nothing but its directory.
    cluster.on(0).run(&format!("{keep} && mkdir -m 700 {CACHE}/job/scr.900202/dataset.1")).must();
    let tried = "mountpoint /run/scrfs-slurm/.mount.900202 && grep unsaved-since /run/scrfs-slurm/900202";
    wait::until_true("a sweep", SOON, || cluster.on(0).run(tried).ok());
    // Nor does a stranger, whose mount namespace has a copy of what that sweep has mounted.
    let hold = "unshare -Urm sleep 6542 </dev/null >/dev/null 2>&1 & \
                until [ \"$(readlink /proc/$!/ns/mnt)\" != \"$(readlink /proc/self/ns/mnt)\" ]; do sleep 0.1; done";
    cluster.on(0).user(USERS[1].1).run(hold).must();
    no_stand_ins(&cluster, 0);
    let gone = format!("! ls -d {CACHE}/job/scr.900202 /run/scrfs-slurm/900202");
    wait::until_true("the next sweep", SOON, || cluster.on(0).run(&gone).ok());
    cluster.on(0).run("pkill -KILL -xf 'sleep 6542'").must();
    nothing_is_left(&cluster, [0]);
}

/// A job that runs again cannot be mounted: what its caches have of before is saved all the same.
#[test]
fn caches_beside_which_no_mount_can_be_are_saved() {
    let cluster = Cluster::up(2);
    let slurm = Slurm::start(&cluster, SYSTEM);
    let job = Saver::new(&slurm, "unmounted");
    let hold = format!("2 uneven hold={PFS}/unmounted/go at=1");
    let batch = job.submit("--nodes=2 --requeue", "export SCR_FLUSH=0", "", &hold);
    job.await_sealed(&batch, 1);
    // It saves nothing.
    cluster.on(0).run("pkill -STOP -x scrfs-run").must();
    slurm.client(0, &format!("scontrol requeuehold {}", batch.0)).must();
    wait::until_true("the job to wait", LIMIT, || slurm.node(0) == "idle" && slurm.node(1) == "idle");
    let refuse = "case \"$*\" in mount*\" /scr/\"*) echo no place for it >&2; exit 1;; esac";
    for node in [0, 1] {
        stand_in(&cluster, node, "scrfs", &format!("{refuse}\nexec {BIN}/scrfs \"$@\""));
    }
    slurm.client(0, &format!("scontrol release {}", batch.0)).must();
    job.await_state(&batch, "FAILED");
    let output = job.output(&batch);
    assert!(output.contains("scrfs is not mounted on node0: no place for it\n"), "{output}");
    nothing_is_left(&cluster, 0..2);
    for node in [0, 1] {
        no_stand_ins(&cluster, node);
    }
    assert_eq!(job.current(), 1, "{}", job.account(&batch));
    job.goes_on_from_newest("--nodes=2", "");
    nothing_is_left(&cluster, 0..2);
}

/// A store is not mounted when a job that waited to run again is cancelled: what is in it is saved
/// when it is back.
#[test]
fn stores_that_are_away_keep_what_is_unsaved() {
    let cluster = Cluster::up(2);
    let slurm = Slurm::start(&cluster, SYSTEM);
    let (store, away) = (format!("{CACHE}/st"), format!("{CACHE}/away"));
    slurm.write("/etc/scrfs.conf", &format!("SCR_CACHE_BASE={store}\n{SYSTEM}"));
    let job = Saver::new(&slurm, "away");
    let hold = format!("2 uneven hold={PFS}/away/go at=1");
    let batch = job.submit("--nodes=2 --requeue", "export SCR_FLUSH=0", "", &hold);
    job.await_sealed(&batch, 1);
    // It saves nothing.
    cluster.on(0).run("pkill -STOP -x scrfs-run").must();
    slurm.client(0, &format!("scontrol requeuehold {}", batch.0)).must();
    wait::until_true("the job to wait", LIMIT, || slurm.node(0) == "idle" && slurm.node(1) == "idle");
    for node in [0, 1] {
        cluster.on(node).run(&format!("mv {store} {away}")).must();
    }
    slurm.cancel(&batch);
    let told = format!("job {}: scrfs: job {0}: not saved", batch.0);
    let lacks = format!("its store {store}: no such directory");
    for node in [0, 1] {
        // Not while another health check is at it.
        let checked = wait::until("a health check", LIMIT, || {
            Some(slurm.hook(node, "health", "")).filter(|ran| ran.err.contains(&told))
        });
        assert!(checked.ok() && checked.err.contains(&lacks), "node{node}: {checked}");
        let kept = format!("grep unsaved-since /run/scrfs-slurm/{0} && ls /run/scrfs/job/scr.{0}", batch.0);
        cluster.on(node).run(&kept).must();
        cluster.on(node).run(&format!("mv {away} {store}")).must();
    }
    nothing_is_left(&cluster, 0..2);
    assert_eq!(job.current(), 1, "{}", job.account(&batch));
    job.goes_on_from_newest("--nodes=2", "");
    nothing_is_left(&cluster, 0..2);
}

/// They are not drained for what they lack, where features tell them from the others.
#[test]
fn nodes_that_are_not_to_have_scrfs() {
    let cluster = Cluster::up(2);
    let slurm = Slurm::start(&cluster, SYSTEM);
    let features = |node: usize, of: &str| {
        let line = format!("scontrol update NodeName=node{node} AvailableFeatures={of} ActiveFeatures={of}");
        slurm.client(0, &line).must();
    };
    let reason = || slurm.client(0, "sinfo -h -R -o %n,%E").out.trim().to_owned();
    let without_scrfs = |node| stand_in(&cluster, node, "settings", "PATH=/usr/bin:/bin:/usr/sbin:/sbin");
    features(1, "scrfs2");
    without_scrfs(1);
    // An earlier version had drained it.
    slurm.client(0, "scontrol update NodeName=node1 State=DRAIN Reason=\"scrfs: no program\"").must();
    slurm.await_node(1, "idle");
    let checked = slurm.hook(1, "health", "");
    assert!(checked.ok() && checked.err.is_empty() && reason().is_empty(), "{checked}\n{}", reason());
    let script = "echo mount=$SCRFS_MOUNT";
    let batch = slurm.submit(JOB_UID, "unmeant", "--comment=scrfs -w node1", script);
    slurm.await_state("unmeant", &batch, "COMPLETED", LIMIT);
    let output = slurm.output("unmeant", &batch);
    let told = "scrfs is not mounted on node1: no program scrfs in /usr/bin:/bin:/usr/sbin:/sbin";
    assert_eq!(output, format!("{told}\nmount=\n"));
    nothing_is_left(&cluster, [1]);
    // One that is to have it is, and so are all where no node has the word.
    without_scrfs(0);
    slurm.await_node(0, "drained");
    assert!(reason().starts_with("node0,scrfs: no program scrfs"), "{}", reason());
    no_stand_ins(&cluster, 0);
    slurm.await_node(0, "idle");
    assert_eq!(slurm.node(1), "idle");
    (0..2).for_each(|node| features(node, ""));
    slurm.await_node(1, "drained");
    no_stand_ins(&cluster, 1);
    slurm.await_node(1, "idle");
}

/// By these Slurm's commands leave jobs and nodes out; the others stay as they are.
#[test]
fn hooks_ask_for_all_jobs_whatever_the_environment_says() {
    let hooks = workspace().join("deploy/slurm/hooks.sh");
    let hiding = ["SLURM_CLUSTERS", "SQUEUE_STATES", "SQUEUE_USERS", "SINFO_PARTITION", "SCANCEL_STATE"];
    let mut sh = std::process::Command::new("sh");
    sh.arg("-c").arg(format!(". {}; env", hooks.display())).env("SLURM_CONF", "kept");
    let ran = Ran::of(sh.envs(hiding.map(|name| (name, "x"))));
    let is_left = |name: &&str| ran.out.lines().any(|line| line.starts_with(&format!("{name}=")));
    assert_eq!(hiding.iter().find(|name| is_left(name)), None, "{ran}");
    assert!(is_left(&"SLURM_CONF"), "{ran}");
}

/// Of Slurm's states, those that nothing follows; a job that runs again is PENDING.
#[test]
fn jobs_are_over_in_these_states() {
    let hooks = workspace().join("deploy/slurm/hooks.sh");
    let states = "BOOT_FAIL CANCELLED COMPLETED COMPLETING CONFIGURING DEADLINE FAILED NODE_FAIL OUT_OF_MEMORY \
                  PENDING PREEMPTED REQUEUED REQUEUE_FED REQUEUE_HOLD RESIZING RESV_DEL_HOLD REVOKED RUNNING \
                  SIGNALING SPECIAL_EXIT STAGE_OUT STOPPED SUSPENDED TIMEOUT";
    let lines = format!(
        ". {}; for state in {states}; do ! is_over 7 \"17 RUNNING\n7 $state 1 1 node0\" || echo $state; done",
        hooks.display()
    );
    let ran = Ran::of(std::process::Command::new("sh").arg("-c").arg(lines));
    let over: Vec<&str> = ran.must().lines().collect();
    let expected =
        "BOOT_FAIL CANCELLED COMPLETED DEADLINE FAILED NODE_FAIL OUT_OF_MEMORY PREEMPTED REVOKED TIMEOUT";
    assert_eq!(over, expected.split(' ').collect::<Vec<_>>(), "{ran}");
}

//! Hooks by hand, on nodes that are drained, that boot, that hang, and with a slurmctld that says
//! nothing.

use scrfs_harness::Config;
use scrfs_harness::place::BIN;

use super::*;

#[test]
fn hooks_of_nodes_that_are_drained_that_boot_and_that_hang() {
    let config = Config { keep_cache: true, ..Config::new(4) };
    let cluster = Cluster::start(&config).expect("a cluster");
    let slurm = Slurm::start(&cluster, SYSTEM);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            leftovers_do_not_hold_up_other_jobs(&cluster, &slurm, 2);
            a_frozen_daemon_is_given_up_at_last(&cluster, &slurm, 2);
        });
        scope.spawn(|| a_silent_controller_holds_up_nobody(&cluster, &slurm, 3));
        who_drained_a_node_takes_it_back(&cluster, &slurm);
        notes_that_cannot_be_made(&cluster, &slurm);
        hooks_may_run_twice(&cluster, &slurm);
        what_cannot_be_saved_is_given_up_at_last(&cluster, &slurm);
        no_note_is_made_of_what_an_epilog_frees(&cluster, &slurm);
    });
    a_mount_that_takes_too_long(&cluster, &slurm);
    caches_that_a_disk_has_kept(&cluster, &slurm);
    nothing_is_left(&cluster, 0..4);
}

/// Notes of jobs that nobody knows.
fn old_notes(cluster: &Cluster, node: usize) {
    let write = "mkdir -p /run/scrfs-slurm; for job in $(seq 900001 900020); do printf '%s\\n' \"mount /scr/$job\" \
                 'run 0' 'user job' 'state mounted' >/run/scrfs-slurm/$job; done";
    cluster.on(node).run(write).must();
}

fn leftovers_do_not_hold_up_other_jobs(cluster: &Cluster, slurm: &Slurm<'_>, node: usize) {
    let (batch, variables) = job_on(slurm, node);
    stand_in(
        cluster,
        node,
        "scrfs",
        &format!("[ \"$1\" != umount ] || exec sleep 600\nexec {BIN}/scrfs \"$@\""),
    );
    // A store that does not answer.
    let hang = "case \"$*\" in *-mindepth*) exec sleep 600;; esac\nexec /usr/bin/find \"$@\"";
    stand_in(cluster, node, "find", hang);
    old_notes(cluster, node);
    within_bound(slurm, node, "prolog", &variables);
    cluster.on(node).run(&format!("mountpoint /scr/{}", batch.0)).must();
    within_bound(slurm, node, "health", "");
    no_stand_ins(cluster, node);
    within_bound(slurm, node, "epilog", &variables);
    slurm.cancel(&batch);
    nothing_is_left(cluster, [node]);
}

fn a_silent_controller_holds_up_nobody(cluster: &Cluster, slurm: &Slurm<'_>, node: usize) {
    let (batch, variables) = job_on(slurm, node);
    for name in ["squeue", "scontrol"] {
        stand_in(cluster, node, name, "exec sleep 600");
    }
    old_notes(cluster, node);
    within_bound(slurm, node, "prolog", &variables);
    let cache = format!("ls -d {CACHE}/job/scr.{}", batch.0);
    cluster.on(node).run(&cache).must();
    within_bound(slurm, node, "health", "");
    // Whether the job runs again nobody says: its caches stay until somebody does.
    within_bound(slurm, node, "epilog", &variables);
    cluster.on(node).run(&format!("{cache} && ! mountpoint /scr/{}", batch.0)).must();
    no_stand_ins(cluster, node);
    slurm.cancel(&batch);
    nothing_is_left(cluster, [node]);
}

/// What the hooks have drained they take back, also after a reboot; what an administrator has
/// drained they leave alone.
fn who_drained_a_node_takes_it_back(cluster: &Cluster, slurm: &Slurm<'_>) {
    let no_fuse = "touch /tmp/none && mount --bind /tmp/none /dev/fuse";
    let reason =
        |node: usize| slurm.client(0, &format!("sinfo -h -N -n node{node} -o %E")).out.trim().to_owned();
    slurm.client(0, "scontrol update NodeName=node0 State=DRAIN Reason='bad DIMM'").must();
    for node in [0, 1] {
        cluster.on(node).run(no_fuse).must();
        let ran = slurm.hook(node, "health", "");
        assert!(ran.ok() && ran.err.contains("scrfs: /dev/fuse is missing"), "{ran}");
    }
    assert_eq!((reason(0), slurm.node(0)), ("bad DIMM".to_owned(), "drained".to_owned()));
    assert_eq!(
        (reason(1), slurm.node(1)),
        ("scrfs: /dev/fuse is missing (modprobe fuse)".into(), "drained".into())
    );
    cluster.on(0).run("umount /dev/fuse").must();
    cluster.poweroff(1);
    cluster.boot(1).expect("node1 boots");
    slurm.start_node(1);
    slurm.await_node(1, "idle");
    assert!(slurm.hook(0, "health", "").ok());
    assert_eq!((reason(0), slurm.node(0)), ("bad DIMM".to_owned(), "drained".to_owned()));
    slurm.client(0, "scontrol update NodeName=node0 State=RESUME").must();
    slurm.await_node(0, "idle");
}

/// The node's fault too.
fn notes_that_cannot_be_made(cluster: &Cluster, slurm: &Slurm<'_>) {
    // The node's own health checks make the directory and write there meanwhile, and may take the
    // node back once more after what they saw before.
    let until_done =
        |line: &str| wait::until_true(line, SOON, || cluster.on(1).run(&format!("cd /run && {line}")).ok());
    until_done("rm -rf scrfs-slurm && touch scrfs-slurm && test -f scrfs-slurm");
    let ran = slurm.hook(1, "prolog", "SLURM_JOB_ID=900100 SLURM_JOB_USER=job SLURM_JOB_COMMENT=scrfs");
    assert!(
        ran.code == 1 && ran.err.contains("scrfs: the directory /run/scrfs-slurm cannot be made"),
        "{ran}"
    );
    slurm.await_node(1, "drained");
    // Made, and full to the last byte.
    let make = "rm scrfs-slurm && mkdir -p scrfs-slurm && mount -t tmpfs -o size=64k none scrfs-slurm";
    cluster.on(1).run(&format!("cd /run && {make}")).must();
    slurm.await_node(1, "idle");
    until_done("cat /dev/zero >>scrfs-slurm/.others; test $(stat -c %s scrfs-slurm/.others) = 65536");
    let ran = slurm.hook(1, "prolog", "SLURM_JOB_ID=900100 SLURM_JOB_USER=job SLURM_JOB_COMMENT=scrfs");
    assert!(ran.code == 1 && ran.err.contains("scrfs: /run/scrfs-slurm has no room for notes"), "{ran}");
    slurm.await_node(1, "drained");
    until_done("{ ! mountpoint -q scrfs-slurm || umount scrfs-slurm; } && rm -rf scrfs-slurm");
    slurm.await_node(1, "idle");
}

fn hooks_may_run_twice(cluster: &Cluster, slurm: &Slurm<'_>) {
    let (batch, variables) = job_on(slurm, 0);
    let mounted = format!("cat /run/scrfs-slurm/{0}; grep ' /scr/{0} ' /proc/self/mountinfo", batch.0);
    within_bound(slurm, 0, "prolog", &variables);
    let first = cluster.on(0).run(&mounted).must().to_owned();
    within_bound(slurm, 0, "prolog", &variables);
    assert_eq!(cluster.on(0).run(&mounted).must(), first, "the same mount");
    let told = slurm.hook(0, "task-prolog", &variables);
    assert_eq!(told.must(), format!("export SCRFS_MOUNT=/scr/{}", batch.0));
    // Its daemon was killed between, and nobody serves what is mounted.
    let control = format!("/run/scrfs/job/scr.{}", batch.0);
    let kill = format!("kill -9 $(cat {control}/supervisor.lock) $(cat {control}/worker.lock)");
    cluster.on(0).run(&kill).must();
    let is_dead = || cluster.on(0).run(&format!("ls /scr/{}", batch.0)).err.contains("not connected");
    wait::until_true("a dead mount", SOON, is_dead);
    within_bound(slurm, 0, "prolog", &variables);
    cluster.on(0).run(&format!("mountpoint /scr/{0} && ls /scr/{0}", batch.0)).must();
    within_bound(slurm, 0, "epilog", &variables);
    cluster.on(0).run(&format!("! grep ' /scr/{} ' /proc/self/mountinfo", batch.0)).must();
    nothing_is_known_of(cluster, 0, &batch);
    within_bound(slurm, 0, "epilog", &variables);
    slurm.cancel(&batch);
    nothing_is_left(cluster, [0]);
}

/// Nobody can have the node's memory for ever. What is lost is said.
fn what_cannot_be_saved_is_given_up_at_last(cluster: &Cluster, slurm: &Slurm<'_>) {
    let (batch, variables) = job_on(slurm, 1);
    let refuse = "case \"$*\" in *--save*) echo no room >&2; exit 1;; esac";
    stand_in(cluster, 1, "scrfs", &format!("{refuse}\nexec {BIN}/scrfs \"$@\""));
    within_bound(slurm, 1, "prolog", &variables);
    let there = format!(
        "mountpoint /scr/{0} && ls {CACHE}/job/scr.{0} && grep unsaved /run/scrfs-slurm/{0}",
        batch.0
    );
    let first = within_bound(slurm, 1, "epilog", &variables);
    assert!(first.err.contains(&format!("scrfs: job {}: no room", batch.0)), "{first}");
    cluster.on(1).run(&there).must();
    // Somebody sets the node's clock.
    stand_in(cluster, 1, "date", "exec /bin/date -d tomorrow \"$@\"");
    within_bound(slurm, 1, "epilog", &variables);
    cluster.on(1).run(&there).must();
    stand_in(cluster, 1, "settings", "KEEP=0");
    let last = within_bound(slurm, 1, "epilog", &variables);
    assert!(last.err.contains("what the PFS lacks of them is lost: no room"), "{last}");
    nothing_is_known_of(cluster, 1, &batch);
    no_stand_ins(cluster, 1);
    slurm.cancel(&batch);
    nothing_is_left(cluster, [1]);
}

/// To hear that it does not answer takes a health check all its time: the next one purges.
fn a_frozen_daemon_is_given_up_at_last(cluster: &Cluster, slurm: &Slurm<'_>, node: usize) {
    let (batch, variables) = job_on(slurm, node);
    let note = format!("/run/scrfs-slurm/{}", batch.0);
    let is_noted = |line: &str| cluster.on(node).run(&format!("grep '^{line} ' {note}")).ok();
    within_bound(slurm, node, "prolog", &variables);
    cluster.on(node).run(&format!("kill -STOP $(cat /run/scrfs/job/scr.{}/worker.lock)", batch.0)).must();
    // The Epilog is the first to try, and has no time for more.
    stand_in(cluster, node, "settings", "KEEP=0 LIMIT=4");
    stand_in(cluster, node, "logger", &format!("echo \"$*\" >>{STAND_INS}/logged"));
    slurm.cancel(&batch);
    wait::until_true("an Epilog that cannot save", LIMIT, || is_noted("unsaved-since"));
    wait::until_true("a health check that gives it up", LIMIT, || is_noted("given-up"));
    within_bound(slurm, node, "health", "");
    nothing_is_left(cluster, [node]);
    let logged = cluster.on(node).run(&format!("cat {STAND_INS}/logged")).must().to_owned();
    let lost = format!("job {}: its caches are given up after 0 s, and what the PFS lacks of them", batch.0);
    // The hook may be told, or end the try itself.
    let why = ["is stopped: its worker, process ", "not unmounted in time"];
    assert!(logged.matches(&lost).count() == 1 && why.iter().any(|why| logged.contains(why)), "{logged}");
    no_stand_ins(cluster, node);
}

/// The sweep of a health check finds a cache, and at that moment an Epilog purges it.
fn no_note_is_made_of_what_an_epilog_frees(cluster: &Cluster, slurm: &Slurm<'_>) {
    let (batch, _) = job_on(slurm, 1);
    let cache = format!("{CACHE}/job/scr.{}", batch.0);
    let purge = format!("case \"$*\" in *--caches*) rm -rf {cache};; esac");
    stand_in(cluster, 1, "scrfs", &format!("{BIN}/scrfs \"$@\"; code=$?; {purge}; exit $code"));
    cluster.on(1).run(&format!("mkdir -p {cache}")).must();
    within_bound(slurm, 1, "health", "");
    nothing_is_known_of(cluster, 1, &batch);
    no_stand_ins(cluster, 1);
    slurm.cancel(&batch);
    nothing_is_left(cluster, [1]);
}

/// The job runs, is told, and no node is drained for it.
fn a_mount_that_takes_too_long(cluster: &Cluster, slurm: &Slurm<'_>) {
    stand_in(cluster, 1, "settings", "LIMIT=2");
    stand_in(cluster, 1, "scrfs", &format!("[ \"$1\" != mount ] || exec sleep 600\nexec {BIN}/scrfs \"$@\""));
    let batch = slurm.submit(JOB_UID, "late", "--comment=scrfs -w node1", "echo done");
    slurm.await_state("late", &batch, "COMPLETED", LIMIT);
    let output = slurm.output("late", &batch);
    assert_eq!(output, "scrfs is not mounted on node1: no mount after 2 s\ndone\n");
    no_stand_ins(cluster, 1);
    slurm.await_node(1, "idle");
}

/// A job waits to run again while its node boots; when it is cancelled nothing on the node
/// remembers it but its caches.
fn caches_that_a_disk_has_kept(cluster: &Cluster, slurm: &Slurm<'_>) {
    let job = Saver::new(slurm, "kept");
    let hold = format!("1 uneven hold={PFS}/kept/go");
    let batch = job.submit("-w node[0-1] --nodes=2 --requeue", "export SCR_FLUSH=0", "", &hold);
    let cache = format!("ls -d {CACHE}/job/scr.{}", batch.0);
    job.await_sealed(&batch, 1);
    slurm.client(0, &format!("scontrol requeuehold {}", batch.0)).must();
    wait::until_true("the job to wait", LIMIT, || slurm.node(0) == "idle" && slurm.node(1) == "idle");
    cluster.poweroff(1);
    cluster.boot(1).expect("node1 boots");
    slurm.start_node(1);
    slurm.await_node(1, "idle");
    within_bound(slurm, 1, "health", "");
    for node in [0, 1] {
        cluster.on(node).run(&cache).must();
    }
    slurm.cancel(&batch);
    nothing_is_left(cluster, [0, 1]);
    // Of the node that did not boot the part was saved, though nothing was mounted there; the other
    // is rebuilt from it.
    job.goes_on_from_newest("--nodes=2", "");
}

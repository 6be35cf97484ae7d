//! What hooks do when something is wrong with a node, for jobs that end before their time, and for jobs that want nothing
//! of scrfs.

use super::*;

#[test]
fn hooks_of_nodes_that_fail_and_of_jobs_that_are_ended() {
    let cluster = Cluster::up(6);
    let slurm = Slurm::start(&cluster, SYSTEM);
    other_jobs_pay_nothing(&cluster, &slurm);
    a_node_without_fuse_is_drained_and_comes_back(&cluster, &slurm);
    a_mount_that_fails_is_told_in_the_output(&cluster, &slurm);
    a_mount_point_that_others_can_change(&cluster, &slurm);
    names_that_look_like_answers(&cluster, &slurm);
    a_step_that_cannot_be_had(&slurm);
    a_job_that_is_cancelled_in_a_flush(&slurm);
    jobs_that_are_queued_again(&cluster, &slurm);
    the_batch_host_of_an_allocation_that_goes_on(&cluster, &slurm);
    nothing_is_left(&cluster, 1..6);
}

fn other_jobs_pay_nothing(cluster: &Cluster, slurm: &Slurm<'_>) {
    let batch =
        slurm.submit(JOB_UID, "plain", "--comment=noscrfs", "env; grep scrfs /proc/self/mountinfo; true");
    slurm.await_state("plain", &batch, "COMPLETED", LIMIT);
    let output = slurm.output("plain", &batch);
    assert!(!output.contains("scrfs@") && !output.contains("SCRFS_"), "{output}");
    nothing_is_left(cluster, 0..6);
}

/// The node's fault: it is drained with a reason, and the job runs elsewhere.
fn a_node_without_fuse_is_drained_and_comes_back(cluster: &Cluster, slurm: &Slurm<'_>) {
    cluster.on(0).run("touch /tmp/none && mount --bind /tmp/none /dev/fuse").must();
    let batch =
        slurm.submit(JOB_UID, "drained", "--comment='with scrfs, please'", "hostname; echo $SCRFS_MOUNT");
    slurm.await_state("drained", &batch, "COMPLETED", LIMIT);
    let output = slurm.output("drained", &batch);
    assert_eq!(output, format!("node1\n/scr/{}\n", batch.0));
    assert!(slurm.node(0).starts_with("drain"), "{}", slurm.node(0));
    let reason = slurm.client(0, "sinfo -h -R -o %E").out;
    assert!(reason.contains("scrfs: /dev/fuse is missing"), "{reason}");
    cluster.on(0).run("umount /dev/fuse").must();
    slurm.await_node(0, "idle");
}

/// Nobody's fault that Slurm should know of: the job hears of it, of every node, and scrfs-run goes without them.
fn a_mount_that_fails_is_told_in_the_output(cluster: &Cluster, slurm: &Slurm<'_>) {
    let remount = |how: &str| {
        for node in [0, 2] {
            cluster.on(node).run(&format!("mount -o remount,{how} {CACHE}")).must();
        }
    };
    remount("ro");
    let job = Saver::new(slurm, "failing");
    let batch = job.submit("--nodes=6", "export SCR_FLUSH=0", "--nodes 4", "2 uneven");
    job.await_state(&batch, "COMPLETED");
    let output = job.output(&batch);
    assert!(output.contains("scrfs is not mounted on node0: "), "{output}");
    assert!(output.contains("the batch script has no `#SBATCH --no-kill`"), "{output}");
    for node in [0, 2] {
        let told = format!("node{node} is left out from now on: ");
        let line = output.lines().find_map(|line| line.split_once(&told)).map(|(_, why)| why);
        let why = line.unwrap_or_default();
        assert!(why.contains("is not an scrfs mount (") && why.contains(CACHE), "node{node}: {output}");
    }
    remount("rw");
    nothing_is_left(cluster, 0..6);
    slurm.await_node(0, "idle");
}

/// Root makes no directory where others could put a link in its place.
fn a_mount_point_that_others_can_change(cluster: &Cluster, slurm: &Slurm<'_>) {
    let conf = |mount: &str| slurm.write("/etc/scrfs.conf", &format!("SCR_CACHE_BASE={CACHE}\n{mount}"));
    let before = cluster.head().run("cat /etc/scrfs.conf").must().to_owned();
    conf("SCRFS_MOUNT=/tmp/theirs/%j\n");
    cluster.on(1).job().run("mkdir /tmp/theirs").must();
    let batch =
        slurm.submit(JOB_UID, "unsafe", "--constraint=scrfs -w node1", "ls -A /tmp/theirs; echo done");
    slurm.await_state("unsafe", &batch, "COMPLETED", LIMIT);
    let output = slurm.output("unsafe", &batch);
    assert!(output.contains("scrfs is not mounted on node1: ") && output.contains("/tmp/theirs"), "{output}");
    assert!(output.ends_with("\ndone\n") && !output.contains(&format!("\n{}\n", batch.0)), "{output}");
    slurm.write("/etc/scrfs.conf", &before);
    slurm.await_node(1, "idle");
}

/// Whatever a user calls a job, alone or one of an array or of a heterogeneous job, it is over when Slurm says so.
fn names_that_look_like_answers(cluster: &Cluster, slurm: &Slurm<'_>) {
    let script = "ls -d $SCRFS_MOUNT";
    for (name, options) in [
        ("array", "--array=1-2 --job-name='x Restarts=9'"),
        ("states", "--job-name='x JobState=RUNNING'"),
        ("parts", "--comment=scrfs : --comment=scrfs"),
    ] {
        let batch = slurm.submit(JOB_UID, name, &format!("--constraint=scrfs {options}"), script);
        slurm.await_state(name, &batch, "COMPLETED", LIMIT);
        let told = wait::poll(SOON, || slurm.output(name, &batch).contains("/scr/").then_some(()));
        assert!(told.is_some(), "{}", slurm.account(name, &batch));
    }
    nothing_is_left(cluster, 0..6);
}

/// Told at once, with what to do, and not tried again.
fn a_step_that_cannot_be_had(slurm: &Slurm<'_>) {
    let job = Saver::new(slurm, "greedy");
    let batch = job.submit("--nodes=2", "", "--launcher srun --ranks-per-node 9", "1");
    job.await_state(&batch, "FAILED");
    let output = job.output(&batch);
    assert!(output.contains("Unable to create step") && output.contains("hint: ask for no more"), "{output}");
    assert!(!output.contains("run 2 on"), "{output}");
}

/// The caches of a job that waits to run again stay, those of one that will not are freed; without them the job goes on
/// from the PFS.
fn jobs_that_are_queued_again(cluster: &Cluster, slurm: &Slurm<'_>) {
    let job = Saver::new(slurm, "queued");
    let hold = format!("2 uneven hold={PFS}/queued/go");
    // A name with what hooks could look for.
    let name = "--job-name='x JobState=RUNNING Restarts=9'";
    let batch = job.submit(&format!("--nodes=3 --requeue {name}"), "export SCR_FLUSH=1", "", &hold);
    let cache = format!("ls -d {CACHE}/*/scr.{}", batch.0);
    let queue_again = |step: u64| {
        job.await_sealed(&batch, step);
        wait::until_true("its flush", SOON, || job.current() == step);
        let of_nodes = slurm.field(&batch, "NodeList");
        slurm.client(0, &format!("scontrol requeuehold {}", batch.0)).must();
        wait::until_true("the job to wait", LIMIT, || slurm.node(0) == "idle" && slurm.node(2) == "idle");
        assert_eq!(of_nodes, "node[0-2]");
        (0..3).for_each(|node| drop(cluster.on(node).run(&cache).must().to_owned()));
    };
    queue_again(2);
    for node in 0..3 {
        let purge = format!("scrfs umount --job-id {} --user job --purge", batch.0);
        cluster.on(node).run(&purge).must();
        assert!(!cluster.on(node).run(&cache).ok(), "node{node}");
    }
    slurm.client(0, &format!("scontrol release {}", batch.0)).must();
    let starts = wait::poll(LIMIT, || Some(job.started_after()).filter(|starts| starts.len() == 2));
    assert_eq!(starts, Some(vec![0, 2]), "{}", job.account(&batch));
    queue_again(2);
    slurm.cancel(&batch);
    nothing_is_left(cluster, 0..6);
}

/// Nothing half-done is taken for a checkpoint: the next job of the prefix starts from what that says is current.
fn a_job_that_is_cancelled_in_a_flush(slurm: &Slurm<'_>) {
    let job = Saver::new(slurm, "cancelled");
    let prefix = slurm.directory(JOB_UID, "cancelled");
    let flushes = || {
        let names = std::fs::read_dir(prefix.join(".scr")).into_iter().flatten().flatten();
        names.filter(|entry| entry.file_name().to_string_lossy().starts_with("flush.")).count() > 0
    };
    let batch = job.submit("--nodes=4", "export SCR_FLUSH=2", "", "40 uneven bytes=30000000 pause=300");
    job.await_sealed(&batch, 2);
    wait::until_true("a flush", SOON, flushes);
    slurm.cancel(&batch);
    job.await_state(&batch, "CANCELLED");
    // Slurm says so before all has ended.
    slurm.await_node(0, "idle");
    let step = job.current();
    let last = job.sealed() + 1;
    let again = job.submit("--nodes=4", "export SCR_FLUSH=0", "", &format!("{last} uneven bytes=30000000"));
    job.await_state(&again, "COMPLETED");
    assert_eq!(job.started_after(), [0, step], "{}", job.account(&again));
}

/// With `--no-kill` nothing runs in the allocation any more when its batch host is gone: the health check of those left
/// puts it back into the queue, and it starts from the caches. One that a person holds has no batch host, and stays.
fn the_batch_host_of_an_allocation_that_goes_on(cluster: &Cluster, slurm: &Slurm<'_>) {
    let held = Held::start(cluster, slurm, 6);
    let job = Saver::new(slurm, "headless");
    let batch =
        job.submit("--nodes=5 --no-kill --requeue", "export SCR_FLUSH=0", "--nodes 4", "8 uneven pause=500");
    job.await_sealed(&batch, 3);
    let sealed = job.sealed();
    assert_eq!(slurm.field(&batch, "BatchHost"), "node0");
    cluster.poweroff(0);
    job.await_sealed(&batch, 8);
    job.await_state(&batch, "COMPLETED");
    let starts = job.started_after();
    assert!(starts.len() == 2 && starts[1] >= sealed, "{}", job.account(&batch));
    // It has lost the same node, and the health checks that saw to the other one saw it too.
    assert_eq!(slurm.state(&held.batch), "RUNNING", "{}", slurm.account("held", &held.batch));
    assert_eq!(slurm.field(&held.batch, "NodeList"), "node[1-5]");
    held.end(slurm);
}

/// An allocation on all nodes that a person asked for at a terminal, who does nothing in it yet.
struct Held {
    batch: Batch,
    salloc: std::process::Child,
}

impl Held {
    fn start(cluster: &Cluster, slurm: &Slurm<'_>, nodes: usize) -> Self {
        let line = format!(
            "export SLURM_CONF={}; salloc --job-name=held -N{nodes} --no-kill --constraint=scrfs sleep 300",
            Slurm::CONF
        );
        let salloc = cluster.head().job().limit(LIMIT * 2).sh(&line).spawn().expect("salloc");
        let id = wait::until("an allocation", SOON, || {
            let told = slurm.client(0, "squeue -h -n held -t RUNNING -o %A").out;
            Some(told.trim().to_owned()).filter(|id| !id.is_empty())
        });
        Self { batch: Batch(id), salloc }
    }

    fn end(mut self, slurm: &Slurm<'_>) {
        slurm.cancel(&self.batch);
        self.salloc.wait().expect("salloc's end");
    }
}

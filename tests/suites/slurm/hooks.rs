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

/// Nobody's fault that Slurm should know of: the job hears of it, and scrfs-run goes without the node.
fn a_mount_that_fails_is_told_in_the_output(cluster: &Cluster, slurm: &Slurm<'_>) {
    cluster.on(0).run(&format!("mount -o remount,ro {CACHE}")).must();
    let job = Saver::new(slurm, "failing");
    let batch = job.submit("--nodes=6", "export SCR_FLUSH=0", "--nodes 4", "2 uneven");
    job.await_state(&batch, "COMPLETED");
    let output = job.output(&batch);
    assert!(output.contains("scrfs is not mounted on node0: "), "{output}");
    assert!(output.contains("the batch script has no `#SBATCH --no-kill`"), "{output}");
    assert!(output.contains(CACHE) && output.contains("node0 is left out from now on"), "{output}");
    cluster.on(0).run(&format!("mount -o remount,rw {CACHE}")).must();
    nothing_is_left(cluster, 0..6);
    slurm.await_node(0, "idle");
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
    let batch = job.submit("--nodes=3 --requeue", "export SCR_FLUSH=1", "", &hold);
    let cache = format!("ls -d {CACHE}/*/scr.{}", batch.0);
    let queue_again = |step: u64| {
        job.await_sealed(&batch, step);
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
    let current = std::fs::read_link(prefix.join("scr.current")).unwrap_or_default();
    let step = current.to_string_lossy().strip_prefix("ck.").map_or(0, |n| n.parse().expect("a number"));
    let last = job.sealed() + 1;
    let again = job.submit("--nodes=4", "export SCR_FLUSH=0", "", &format!("{last} uneven bytes=30000000"));
    job.await_state(&again, "COMPLETED");
    assert_eq!(job.started_after(), [0, step], "{}", job.account(&again));
}

/// With `--no-kill` nothing runs in the allocation any more when its batch host is gone: the health check of those left
/// puts it back into the queue, and it starts from the caches.
fn the_batch_host_of_an_allocation_that_goes_on(cluster: &Cluster, slurm: &Slurm<'_>) {
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
}

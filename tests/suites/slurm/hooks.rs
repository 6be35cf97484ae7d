//! What hooks do when something is wrong with a node, whatever jobs are called, and for jobs that
//! want nothing of scrfs.

use scrfs_harness::place::USERS;
use scrfs_harness::programs;

use super::*;

#[test]
fn hooks_of_nodes_that_fail() {
    let cluster = Cluster::up(6);
    let slurm = Slurm::start(&cluster, SYSTEM);
    other_jobs_pay_nothing(&cluster, &slurm);
    a_node_without_fuse_is_drained_and_comes_back(&cluster, &slurm);
    a_mount_that_fails_is_told_in_the_output(&cluster, &slurm);
    a_mount_point_that_others_can_change(&cluster, &slurm);
    names_that_look_like_answers(&cluster, &slurm);
    a_step_that_cannot_be_had(&slurm);
    a_strangers_file_system_in_a_store(&cluster, &slurm);
    a_strangers_mount_with_a_jobs_name(&cluster, &slurm);
    nothing_is_left(&cluster, 0..6);
}

/// Where users may open what they mount to all, one can stand where hooks look for caches. None of
/// them waits for it.
fn a_strangers_file_system_in_a_store(cluster: &Cluster, slurm: &Slurm<'_>) {
    let place = format!("{CACHE}/evil");
    cluster.on(3).run("echo user_allow_other >> /etc/fuse.conf").must();
    let mount = format!("mkdir {place} && {}", programs::hanging(&place));
    cluster.on(3).user(USERS[1].1).run(&mount).must();
    let (batch, variables) = job_on(slurm, 3);
    for hook in ["health", "prolog", "health", "epilog"] {
        let ran = within_bound(slurm, 3, hook, &variables);
        assert!(!ran.err.contains("stores"), "{hook}: {ran}");
    }
    slurm.cancel(&batch);
    let gone = format!("fusermount3 -u {place}; rmdir {place}");
    cluster.on(3).user(USERS[1].1).run(&gone).must();
}

/// A user can give a mount a name that reads as if root had mounted it for a job. Hooks do not take
/// it for one, and do not wait for it: that job's caches are saved and freed.
fn a_strangers_mount_with_a_jobs_name(cluster: &Cluster, slurm: &Slurm<'_>) {
    let (job, place) = (900_300, "/tmp/forged");
    let options = format!("allow_other,subtype=scrfs,fsname=scrfs@/x\\,user_id=0\\,/scr.{job}");
    let mount = format!("mkdir {place} && {} '{options}'", programs::hanging(place));
    cluster.on(2).run("echo user_allow_other >> /etc/fuse.conf").must();
    cluster.on(2).user(USERS[1].1).run(&mount).must();
    cluster
        .on(2)
        .run(&format!("grep -F ' - fuse.scrfs scrfs@/x,user_id=0,/scr.{job} ' /proc/self/mountinfo"))
        .must();
    // A dataset of which there is nothing but its directory.
    let of_job = format!("--user job --job-id {job}");
    let keep = format!(
        "scrfs mount {of_job} /scr/{job} && scrfs umount {of_job} && mkdir -m 700 {CACHE}/job/scr.{job}/dataset.1"
    );
    cluster.on(2).run(&keep).must();
    let gone = format!("! ls -d {CACHE}/job/scr.{job} /run/scrfs-slurm/{job}");
    wait::until_true("the sweep", SOON, || {
        within_bound(slurm, 2, "health", "");
        cluster.on(2).run(&gone).ok()
    });
    cluster.on(2).user(USERS[1].1).run(&format!("fusermount3 -u {place}; rmdir {place}")).must();
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

/// Nobody's fault that Slurm should know of: the job hears of it, of every node, and scrfs-run goes
/// without them.
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
    conf(" SCRFS_MOUNT = \"/tmp/theirs/%j\"  # as any configuration is written\n");
    cluster.on(1).job().run("mkdir /tmp/theirs").must();
    let batch =
        slurm.submit(JOB_UID, "theirs", "--constraint=scrfs -w node1", "ls -A /tmp/theirs; echo done");
    slurm.await_state("theirs", &batch, "COMPLETED", LIMIT);
    let output = slurm.output("theirs", &batch);
    assert!(output.contains("scrfs is not mounted on node1: ") && output.contains("/tmp/theirs"), "{output}");
    assert!(output.ends_with("\ndone\n") && !output.contains(&format!("\n{}\n", batch.0)), "{output}");
    slurm.write("/etc/scrfs.conf", &before);
    slurm.await_node(1, "idle");
}

/// Whatever a user calls a job, alone or one of an array or of a heterogeneous job, it is over when
/// Slurm says so.
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

//! Jobs that end before their time: what is protected is saved, or waits on the nodes for the job
//! to run again.

use super::*;

#[test]
fn jobs_that_are_ended() {
    let cluster = Cluster::up(4);
    let slurm = Slurm::start(&cluster, SYSTEM);
    a_job_that_is_cancelled_in_a_flush(&slurm);
    a_prefix_that_cannot_be_written_at_the_end(&cluster, &slurm);
    jobs_that_are_queued_again(&cluster, &slurm);
    a_node_without_files_is_waited_for(&cluster, &slurm);
    a_held_job_of_which_some_nodes_were_purged(&cluster, &slurm);
    nothing_is_left(&cluster, 0..4);
}

/// What these nodes have saved and what the others have kept is put together when it is released.
fn a_held_job_of_which_some_nodes_were_purged(cluster: &Cluster, slurm: &Slurm<'_>) {
    let job = Saver::new(slurm, "held");
    let hold = format!("2 uneven hold={PFS}/held/go");
    let batch = job.submit("--nodes=4 --requeue", "export SCR_FLUSH=0", "", &hold);
    job.await_sealed(&batch, 2);
    slurm.client(0, &format!("scontrol requeuehold {}", batch.0)).must();
    (0..4).for_each(|node| slurm.await_node(node, "idle"));
    for node in 0..2 {
        let of_job = format!("--user job --job-id {}", batch.0);
        let lines = format!(
            "scrfs mount {of_job} /scr/{0} && scrfs umount --force {of_job} --save 20 --purge",
            batch.0
        );
        cluster.on(node).run(&lines).must();
    }
    slurm.client(0, &format!("scontrol release {}", batch.0)).must();
    let starts = wait::poll(LIMIT, || Some(job.started_after()).filter(|starts| starts.len() == 2));
    assert_eq!(starts, Some(vec![0, 2]), "{}", job.account(&batch));
    slurm.cancel(&batch);
    nothing_is_left(cluster, 0..4);
}

/// Rank 1 writes no files, and nothing protects those of rank 0: the one that has saved its part
/// last publishes, and that may be the one that has none.
fn a_node_without_files_is_waited_for(cluster: &Cluster, slurm: &Slurm<'_>) {
    let job = Saver::new(slurm, "empty");
    let hold = format!("2 uneven hold={PFS}/empty/go");
    let batch = job.submit("--nodes=2 --requeue", "export SCR_FLUSH=0 SCR_COPY_TYPE=SINGLE", "", &hold);
    job.await_sealed(&batch, 2);
    slurm.client(0, &format!("scontrol requeuehold {}", batch.0)).must();
    (0..2).for_each(|node| slurm.await_node(node, "idle"));
    slurm.cancel(&batch);
    nothing_is_left(cluster, 0..4);
    assert_eq!(job.current(), 2, "{}", job.account(&batch));
}

/// The caches of a job that waits to run again stay, those of one that will not are freed; without
/// them the job goes on from the PFS.
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
        wait::until_true("the job to wait", LIMIT, || (0..3).all(|node| slurm.node(node) == "idle"));
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
    nothing_is_left(cluster, 0..4);
}

/// What is protected is saved by the Epilogs, and nothing half-done is taken for a checkpoint, or
/// stays.
fn a_job_that_is_cancelled_in_a_flush(slurm: &Slurm<'_>) {
    let job = Saver::new(slurm, "cancelled");
    let begun = |what: &str| job.unfinished().iter().any(|name| name.starts_with(what));
    let batch = job.submit("--nodes=4", "export SCR_FLUSH=2", "", "40 uneven bytes=30000000 pause=300");
    job.await_sealed(&batch, 2);
    wait::until_true("a flush", SOON, || begun("flush."));
    slurm.cancel(&batch);
    job.await_state(&batch, "CANCELLED");
    // Slurm says so before all has ended.
    (0..4).for_each(|node| slurm.await_node(node, "idle"));
    // Nobody was there to write a status when the Epilogs saved the newest.
    let list = slurm.client(JOB_UID, &format!("scrfs-ctl list --prefix {PFS}/{}", job.name));
    let saved = format!("\tck.{}", job.current());
    let is_saved = |row: &str| !row.ends_with(&saved) || row.contains("\tflushed\t");
    assert!(list.must().lines().all(is_saved), "{saved}: {list}");
    job.goes_on_from_newest("--nodes=4", "bytes=30000000");
    assert!(job.unfinished().is_empty(), "{:?}", job.unfinished());
}

/// The Epilogs cannot save: caches stay, and the health checks save them when that can be done.
fn a_prefix_that_cannot_be_written_at_the_end(cluster: &Cluster, slurm: &Slurm<'_>) {
    let job = Saver::new(slurm, "readonly");
    let batch = job.submit("--nodes=4", "export SCR_FLUSH=0", "", "40 uneven pause=300");
    job.await_sealed(&batch, 2);
    let of = |uid: u32| {
        let directory = slurm.directory(JOB_UID, job.name).join(".scr");
        std::os::unix::fs::chown(directory, Some(uid), Some(uid)).expect("chown on the PFS");
    };
    of(0);
    slurm.cancel(&batch);
    job.await_state(&batch, "CANCELLED");
    (0..4).for_each(|node| slurm.await_node(node, "idle"));
    for node in 0..4 {
        let note = format!("cat /run/scrfs-slurm/{0} && mountpoint /scr/{0}", batch.0);
        let note = cluster.on(node).run(&note).must().to_owned();
        assert!(note.contains("unsaved-since "), "node{node}: {note}\n{}", job.account(&batch));
    }
    assert_eq!(job.current(), 0);
    of(JOB_UID);
    nothing_is_left(cluster, 0..4);
    assert!(job.current() >= job.sealed(), "{} is on the PFS: {}", job.current(), job.account(&batch));
    assert_eq!(job.open_to_others(), "", "what nodes have saved");
    job.goes_on_from_newest("--nodes=4", "");
}

/// For its exit code Slurm queues a job again, and says so when the last Epilog is done: the caches
/// are there when it runs again, and go when it is over.
#[test]
fn a_job_that_is_queued_again_for_its_exit_code() {
    let cluster = Cluster::up(1);
    let slurm = Slurm::start(&cluster, SYSTEM);
    let add = format!("echo RequeueExit=7 >>{}", Slurm::CONF);
    cluster.head().run(&add).must();
    slurm.client(0, "scontrol reconfigure").must();
    let script = "[ -z \"$SLURM_RESTART_COUNT\" ] || { cat $SCRFS_MOUNT/seen; exit; }\n\
                  echo kept >$SCRFS_MOUNT/seen; exit 7";
    let batch = slurm.submit(JOB_UID, "exit", "--requeue --comment=scrfs", script);
    wait::until_true("the second run", LIMIT, || {
        slurm.field(&batch, "Restarts") == "1" && slurm.state(&batch) == "COMPLETED"
    });
    assert_eq!(slurm.output("exit", &batch), "kept\n", "{}", slurm.account("exit", &batch));
    nothing_is_left(&cluster, [0]);
}

/// With `--no-kill` nothing runs in the allocation any more when its batch host is gone: the health
/// check of those left puts it back into the queue, and it starts from the caches. One that a
/// person holds has no batch host, and stays.
#[test]
fn the_batch_host_of_an_allocation_that_goes_on() {
    let cluster = Cluster::up(6);
    let slurm = Slurm::start(&cluster, SYSTEM);
    let held = Held::start(&cluster, &slurm, 6);
    // Neither is near its end when the node is lost, however long the other takes to start.
    let once = Saver::new(&slurm, "once");
    let options = "-w node[0-4] --nodes=5 --no-kill --no-requeue";
    let single = once.submit(options, "export SCR_FLUSH=0", "--nodes 4", "200 uneven pause=500");
    once.await_sealed(&single, 3);
    let job = Saver::new(&slurm, "headless");
    let batch = job.submit(
        "--nodes=5 --no-kill --requeue",
        "export SCR_FLUSH=0",
        "--launcher mpirun --nodes 4",
        "24 uneven pause=500",
    );
    job.await_sealed(&batch, 3);
    let sealed = job.sealed();
    for batch in [&batch, &single] {
        assert_eq!(slurm.field(batch, "BatchHost"), "node0");
    }
    cluster.poweroff(0);
    job.await_sealed(&batch, 24);
    job.await_state(&batch, "COMPLETED");
    let starts = job.started_after();
    assert!(starts.len() == 2 && starts[1] >= sealed, "{}", job.account(&batch));
    // It has lost the same node, and the health checks that saw to the other one saw it too.
    assert_eq!(slurm.state(&held.batch), "RUNNING", "{}", slurm.account("held", &held.batch));
    assert_eq!(slurm.field(&held.batch, "NodeList"), "node[1-5]");
    held.end(&slurm);
    // One that may not run again is ended. The others have saved their parts, and the lost one is
    // rebuilt from those.
    once.await_state(&single, "CANCELLED");
    (1..5).for_each(|node| slurm.await_node(node, "idle"));
    once.goes_on_from_newest("--nodes=4", "");
    nothing_is_left(&cluster, 1..6);
}

/// The first node of those left says that the batch host is gone, though nothing is mounted there
/// for one of these jobs, and the other one's mount there is dead.
#[test]
fn a_batch_host_is_lost_and_the_next_node_has_no_mount() {
    let cluster = Cluster::up(5);
    let slurm = Slurm::start(&cluster, SYSTEM);
    let options = "-w node[0-3] --nodes=4 --no-kill --requeue";
    let submit = |job: &Saver<'_>| {
        let batch = job.submit(options, "export SCR_FLUSH=0", "--nodes 3", "200 uneven pause=500");
        job.await_sealed(&batch, 3);
        assert_eq!(slurm.field(&batch, "BatchHost"), "node0");
        batch
    };
    let remount = |how: &str| cluster.on(1).run(&format!("mount -o remount,{how} {CACHE}")).must().to_owned();
    remount("ro");
    let unmounted = Saver::new(&slurm, "unmounted");
    let first = submit(&unmounted);
    cluster.on(1).run(&format!("grep \"^state failed$\" /run/scrfs-slurm/{}", first.0)).must();
    remount("rw");
    let dead = Saver::new(&slurm, "dead");
    let second = submit(&dead);
    let control = format!("/run/scrfs/job/scr.{}", second.0);
    let kill = format!("kill -9 $(cat {control}/supervisor.lock) $(cat {control}/worker.lock)");
    cluster.on(1).run(&kill).must();
    cluster.poweroff(0);
    // They wait then: `-w` names a node that is down.
    for (job, batch) in [(&unmounted, &first), (&dead, &second)] {
        let restarts = wait::poll(LIMIT, || (slurm.field(batch, "Restarts") == "1").then_some(()));
        assert!(restarts.is_some(), "{}", job.account(batch));
        slurm.cancel(batch);
        job.await_state(batch, "CANCELLED");
    }
    nothing_is_left(&cluster, 1..5);
    // Node 0's parts are lost, and are rebuilt from what the others have saved.
    unmounted.goes_on_from_newest("--nodes=3", "");
    dead.goes_on_from_newest("--nodes=3", "");
    nothing_is_left(&cluster, 1..5);
}

/// An allocation on all nodes that a person asked for at a terminal, who does nothing in it yet.
struct Held {
    batch: Batch,
    salloc: std::process::Child,
}

impl Held {
    fn start(cluster: &Cluster, slurm: &Slurm<'_>, nodes: usize) -> Self {
        let line = format!(
            "export SLURM_CONF={}; \
             salloc --kill-command --job-name=held -N{nodes} --no-kill --constraint=scrfs sleep 300",
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

//! Nodes are lost under a job: it goes on on a spare, or is queued again and goes on from the
//! caches.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;

use scrfs_harness::cluster::workspace;

use super::*;

/// From the power-off of a node to the dataset that the program restarts from: no claim, which a
/// loaded machine could not keep (the time is printed), but a bound for what waits in vain.
const PRESENTED: Duration = Duration::from_mins(1);

/// What is paid for, from the power-off to the first checkpoint after it.
const PARTS: [(&str, &str); 5] = [
    ("is left out from now on", "the node is named"),
    ("run 2 on", "nodes are asked"),
    ("can restart from", "rebuilt and presented"),
    ("start after", "the program starts"),
    ("sealed", "its first step"),
];

#[test]
fn a_job_outlives_its_nodes() {
    let cluster = Cluster::up(6);
    let slurm = Slurm::start(&cluster, SYSTEM);
    the_batch_script_as_it_is(&slurm);
    a_spare_takes_over(&cluster, &slurm, "mpirun");
    a_spare_takes_over(&cluster, &slurm, "srun");
    caches_of_a_requeued_job(&cluster, &slurm);
    a_new_job_starts_from_the_prefix(&slurm);
    nothing_is_left(&cluster, [1, 2, 3, 4, 5]);
}

/// As a person submits it, with a program of its own.
fn the_batch_script_as_it_is(slurm: &Slurm<'_>) {
    let job = Saver::new(slurm, "script");
    let directory = slurm.directory(JOB_UID, job.name);
    let simulate = directory.join("simulate");
    let line = format!("#!/bin/sh\nexec {} \"$SCRFS_MOUNT\" {PFS}/{}/log 2\n", program("ckpt"), job.name);
    std::fs::write(&simulate, line).expect("the PFS can be written");
    std::fs::set_permissions(simulate, std::fs::Permissions::from_mode(0o755)).expect("chmod on the PFS");
    let script = std::fs::read_to_string(workspace().join("deploy/slurm/job.sh")).expect("the script");
    let batch = slurm.submit_as_it_is(JOB_UID, job.name, "", &script);
    job.await_state(&batch, "COMPLETED");
    let output = job.output(&batch);
    assert!(output.contains("(spares: 1)") && !output.contains("warning"), "{output}");
    assert_eq!((job.current(), job.started_after()), (2, vec![0]), "{}", job.account(&batch));
    assert!(job.log().iter().any(|line| line == "end"), "{}", job.account(&batch));
}

/// A login node is told how the job is; and what an administrator has planned for a node does not
/// stop a healthy program, nor is it run again when it has ended.
#[test]
fn a_drained_node_changes_nothing() {
    let cluster = Cluster::up(3);
    let slurm = Slurm::start(&cluster, SYSTEM);
    let job = Saver::new(&slurm, "planned");
    let hold = format!("6 uneven pause=300 hold={PFS}/planned/go");
    let batch = job.submit("--nodes=3 --no-kill", "export SCR_FLUSH=0", "--nodes 2", &hold);
    job.await_sealed(&batch, 1);
    slurm.client(0, "scontrol update NodeName=node1 State=DRAIN Reason=later").must();
    the_login_node_is_told(&slurm, &batch);
    job.await_sealed(&batch, 6);
    job.let_go();
    job.await_state(&batch, "COMPLETED");
    assert_eq!(job.started_after(), [0], "{}", job.account(&batch));
    slurm.client(0, "scontrol update NodeName=node1 State=RESUME").must();
    slurm.await_node(1, "idle");
    input_is_the_same_again_under_srun(&slurm);
    nobody_is_left_out_for_a_controller_that_restarts(&cluster, &slurm);
    nothing_is_left(&cluster, 0..3);
}

/// A node is lost, and whoever asks about the others through Slurm gets no answer for a while.
fn nobody_is_left_out_for_a_controller_that_restarts(cluster: &Cluster, slurm: &Slurm<'_>) {
    let job = Saver::new(slurm, "restarts");
    let hold = format!("4 uneven hold={PFS}/restarts/go at=2");
    let batch = job.submit("--nodes=3 --no-kill", "export SCR_FLUSH=0", "--nodes 2", &hold);
    job.await_sealed(&batch, 1);
    slurm.stop_controller();
    cluster.poweroff(1);
    let told = wait::poll(SOON, || job.output(&batch).contains("is left out from now on").then_some(()));
    slurm.start_controller();
    assert!(told.is_some(), "{}", job.account(&batch));
    job.let_go();
    job.await_state(&batch, "COMPLETED");
    let (starts, output) = (job.started_after(), job.output(&batch));
    assert!(starts.len() == 2 && starts[1] >= 1 && job.sealed() == 4, "{}", job.account(&batch));
    assert_eq!(output.matches("is left out").count(), 1, "{output}");
    cluster.boot(1).expect("node1 boots");
    slurm.start_node(1);
    slurm.await_node(1, "idle");
}

/// The first run of the program ends badly after it has read its input, the second well.
fn input_is_the_same_again_under_srun(slurm: &Slurm<'_>) {
    let name = "input";
    let directory = slurm.directory(JOB_UID, name);
    std::fs::write(directory.join("input"), "skipped\nread\n".repeat(3000)).expect("the PFS can be written");
    let script = format!(
        "export SCR_PREFIX={PFS}/{name}
         {{ read line; scrfs-run --launcher srun -- /bin/sh -c 'test $SLURM_PROCID = 0 || exec cat
             cat > {PFS}/{name}/in.$SCRFS_RUN; test $SCRFS_RUN = 2'; }} < {PFS}/{name}/input"
    );
    let options = "--nodes=2 --ntasks-per-node=1 --constraint=scrfs";
    let batch = slurm.submit(JOB_UID, name, options, &script);
    slurm.await_state(name, &batch, "COMPLETED", LIMIT);
    for run in ["in.1", "in.2"] {
        let read = std::fs::read_to_string(directory.join(run)).unwrap_or_default();
        assert!(read == "skipped\nread\n".repeat(3000)[8..], "{run}: {}", slurm.account(name, &batch));
    }
}

/// By the job's user, where there is no mount.
fn the_login_node_is_told(slurm: &Slurm<'_>, batch: &Batch) {
    let ask = |line: &str| slurm.client(JOB_UID, &format!("cd / && scrfs-ctl {line}"));
    let says = format!("the scheduler says of job {} of job: RUNNING on node[0-2]", batch.0);
    let mut srun = String::new();
    for line in ["status".to_owned(), format!("status --job {}", batch.0)] {
        let mut told = ask(&line);
        // Coordinators write there now and then.
        let seen = wait::poll(SOON, || {
            told = ask(&line);
            (told.ok() && told.out.contains(" ck.")).then_some(())
        });
        assert!(seen.is_some() && told.out.contains(&says), "{told}");
        let shown = told.out.lines().find_map(|line| Some(&line[line.find("srun --jobid")?..]));
        shown.unwrap_or_else(|| panic!("no srun: {told}")).clone_into(&mut srun);
    }
    let live = slurm.client(JOB_UID, &srun);
    assert!(live.must().contains(&format!("job {} of job", batch.0)), "{srun}: {live}");
    let jobs = ask("jobs --json");
    let rows: serde_json::Value = serde_json::from_str(jobs.must()).expect("JSON");
    let row = rows.as_array().and_then(|rows| rows.iter().find(|row| row["job"] == batch.0.as_str()));
    let row = row.unwrap_or_else(|| panic!("{jobs}"));
    assert!(row["user"] == "job" && row["mount"].is_null(), "{jobs}");
    assert!(row["current"].as_str().is_some_and(|name| name.starts_with("ck.")), "{jobs}");
}

/// Nobody touches it: the node dies, the program goes on on the spare.
fn a_spare_takes_over(cluster: &Cluster, slurm: &Slurm<'_>, launcher: &'static str) {
    let job = Saver::new(slurm, launcher);
    let arguments = format!("--launcher {launcher} --nodes 4");
    // It is not near its end when the node is lost, however long that takes.
    let steps = format!("12 uneven pause=300 hold={PFS}/{launcher}/go at=6");
    let batch = job.submit("--nodes=6 --no-kill", "export SCR_FLUSH=0", &arguments, &steps);
    job.await_sealed(&batch, 4);
    let sealed = job.sealed();
    cluster.poweroff(2);
    let begun = Instant::now();
    job.let_go();
    let marks = PARTS.map(|(mark, _)| mark);
    let before = job.log().len();
    let mut seen = times(begun, &marks[..3], || job.output(&batch));
    seen.extend(times(begun, &marks[3..], || {
        let log = job.log();
        // The step that was under way does not count.
        let from = log.iter().skip(before).position(|l| l.starts_with("start")).unwrap_or(0);
        log[before + from..].join("\n")
    }));
    assert_eq!(seen.len(), marks.len(), "{}", job.account(&batch));
    report(launcher, &seen);
    assert!(seen[2] <= PRESENTED, "{:?}: {}", seen[2], job.account(&batch));
    job.await_state(&batch, "COMPLETED");
    let starts = job.started_after();
    assert!(starts.len() == 2 && starts[1] >= sealed, "{}", job.account(&batch));
    assert_eq!(job.sealed(), 12);
    // What a login node is told afterwards.
    let status = std::fs::read_to_string(slurm.directory(JOB_UID, launcher).join(".scr/status"));
    assert!(status.as_ref().is_ok_and(|text| text.contains("\"ended\":true")), "{status:?}");
    cluster.boot(2).expect("node2 boots");
    slurm.start_node(2);
    slurm.await_node(2, "idle");
    nothing_is_left(cluster, 0..6);
}

fn report(launcher: &str, seen: &[Duration]) {
    let before = std::iter::once(&Duration::ZERO).chain(seen);
    let parts: Vec<String> = seen
        .iter()
        .zip(before)
        .zip(PARTS)
        .map(|((at, before), (_, what))| format!("{what} {:.1}", at.saturating_sub(*before).as_secs_f64()))
        .collect();
    let _ = writeln!(
        std::io::stderr(),
        "slurm, {launcher}: power-off to presented {:.1} s, to the first checkpoint {:.1} s: {}",
        seen[2].as_secs_f64(),
        seen[4].as_secs_f64(),
        parts.join("; ")
    );
}

/// Without `--no-kill`: the batch host dies, Slurm queues the job again, and it starts from the
/// caches of the others.
fn caches_of_a_requeued_job(cluster: &Cluster, slurm: &Slurm<'_>) {
    let job = Saver::new(slurm, "requeued");
    let steps = format!("8 uneven pause=500 hold={PFS}/requeued/go at=5");
    let batch = job.submit("--nodes=4 --requeue", "export SCR_FLUSH=0", "", &steps);
    job.await_sealed(&batch, 3);
    let sealed = job.sealed();
    assert_eq!(slurm.field(&batch, "BatchHost"), "node0");
    cluster.poweroff(0);
    job.let_go();
    job.await_sealed(&batch, 8);
    job.await_state(&batch, "COMPLETED");
    let starts = job.started_after();
    assert!(starts.len() == 2 && starts[1] >= sealed, "{}", job.account(&batch));
    assert_eq!(slurm.field(&batch, "Restarts"), "1");
}

/// Caches are purged with their job: the next one of the same prefix has that alone.
fn a_new_job_starts_from_the_prefix(slurm: &Slurm<'_>) {
    let job = Saver::new(slurm, "prefix");
    for (steps, after) in [("2", 0), ("3", 2)] {
        let batch = job.submit("--nodes=4", "export SCR_FLUSH=1", "", &format!("{steps} uneven"));
        job.await_state(&batch, "COMPLETED");
        assert_eq!(job.started_after().last(), Some(&after), "{}", job.account(&batch));
    }
}

//! Nodes are lost under a job: it goes on on a spare, or is queued again and goes on from the caches.

use std::io::Write;
use std::time::Instant;

use super::*;

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
    a_spare_takes_over(&cluster, &slurm, "mpirun");
    a_spare_takes_over(&cluster, &slurm, "srun");
    caches_of_a_requeued_job(&cluster, &slurm);
    a_new_job_starts_from_the_prefix(&slurm);
    nothing_is_left(&cluster, [1, 2, 3, 4, 5]);
}

/// Nobody touches it: the node dies, the program goes on on the spare.
fn a_spare_takes_over(cluster: &Cluster, slurm: &Slurm<'_>, launcher: &'static str) {
    let job = Saver::new(slurm, launcher);
    let arguments = format!("--launcher {launcher} --nodes 4");
    let batch = job.submit("--nodes=6 --no-kill", "export SCR_FLUSH=0", &arguments, "12 uneven pause=300");
    job.await_sealed(&batch, 4);
    let sealed = job.sealed();
    cluster.poweroff(2);
    let begun = Instant::now();
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

/// Without `--no-kill`: the batch host dies, Slurm queues the job again, and it starts from the caches of the others.
fn caches_of_a_requeued_job(cluster: &Cluster, slurm: &Slurm<'_>) {
    let job = Saver::new(slurm, "requeued");
    let batch = job.submit("--nodes=4 --requeue", "export SCR_FLUSH=0", "", "8 uneven pause=500");
    job.await_sealed(&batch, 3);
    let sealed = job.sealed();
    assert_eq!(slurm.field(&batch, "BatchHost"), "node0");
    cluster.poweroff(0);
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

//! Slurm answers slowly: nodes are there all the same.

use super::*;

/// As on a node of high load. Slurm gives it up much later.
#[test]
fn a_healthy_job_goes_on_where_slurmd_does_not_answer() {
    let cluster = Cluster::up(4);
    let slurm = Slurm::start(&cluster, SYSTEM);
    let patient = "sed -i 's/^SlurmdTimeout=.*/SlurmdTimeout=300/' $SLURM_CONF && scontrol reconfigure";
    slurm.client(0, patient).must();
    let job = Saver::new(&slurm, "busy");
    let settings = "export SCRFS_LAUNCHER_TIMEOUT=4s SCR_FLUSH=0";
    let arguments = "--launcher srun --nodes 3";
    let batch = job.submit("-w node[0-3] --nodes=4", settings, arguments, "120 uneven pause=500");
    job.await_sealed(&batch, 2);
    // The batch host is among them.
    let signal = |signal: &str| {
        for node in [0, 1] {
            cluster.on(node).run(&format!("kill -{signal} $(cat /run/slurmd.pid)")).must();
        }
    };
    signal("STOP");
    let before = job.sealed();
    let doubts =
        wait::poll(LIMIT, || job.output(&batch).contains("no answer through the launcher").then_some(()));
    // Two more looks.
    std::thread::sleep(Duration::from_secs(20));
    let after = job.sealed();
    signal("CONT");
    let account = || job.account(&batch);
    assert!(doubts.is_some() && after > before + 5, "{before} {after}: {}", account());
    job.await_state(&batch, "COMPLETED");
    let output = job.output(&batch);
    assert!(!output.contains("left out") && !output.contains("run 2"), "{}", account());
    assert_eq!(job.started_after(), [0], "{}", account());
    nothing_is_left(&cluster, 0..4);
}

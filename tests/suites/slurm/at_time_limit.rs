//! Jobs at the end of their time, or asked to end: what is newest is on the PFS before Slurm ends
//! them.

use super::*;

/// Slurm counts time limits in minutes, and looks at them twice a minute. A minute is the least,
/// and may be over before a slow machine has sealed anything.
const ONE_MINUTE: &str = "--nodes=2 --time=1";
/// For jobs of which two steps are wanted before their end is near.
const TWO_MINUTES: &str = "--nodes=2 --time=2";

#[test]
fn jobs_at_their_time_limit() {
    let cluster = Cluster::up(4);
    let slurm = Slurm::start(&cluster, SYSTEM);
    let ways = [
        // Slurm says so beforehand, when the script asks it to: 40 s before the end, or up to a
        // minute earlier. What scrfs-run keeps for the end, 26 s, begins later.
        (
            "warned",
            "--signal=B:TERM@40",
            "SCRFS_END_GRACE=12 SCRFS_HALT_GRACE=1",
            "signal 15: ending the job",
        ),
        // Nobody says so: the end is known from the scheduler. 62 s are kept for it.
        ("found", "", "SCRFS_END_GRACE=40 SCRFS_HALT_GRACE=5", "halting, because"),
        // A person says so.
        ("asked", "", "SCRFS_END_TIME=4000000000", "signal 15: ending the job"),
    ]
    .map(|(name, signal, settings, words)| {
        let job = Saver::new(&slurm, name);
        let settings = format!("export SCR_FLUSH=0 {settings}");
        let batch = job.submit(&format!("{TWO_MINUTES} {signal}"), &settings, "", "1000 uneven pause=2000");
        (job, batch, words)
    });
    // Nobody says so, and what it believes of its end is wrong: Slurm kills it.
    let unwarned = Saver::new(&slurm, "unwarned");
    let believes = "export SCR_FLUSH=0 SCRFS_END_TIME=4000000000";
    let cut_off = unwarned.submit(ONE_MINUTE, believes, "", "1000 uneven pause=2000");
    for (job, batch, words) in ways.iter().rev() {
        job.await_sealed(batch, 2);
        if job.name == "asked" {
            slurm.client(job.uid, &format!("scancel --batch --signal=TERM {}", batch.0)).must();
        }
        job.await_state(batch, "FAILED");
        assert!(job.output(batch).contains(words), "{words:?}: {}", job.account(batch));
    }
    unwarned.await_state(&cut_off, "TIMEOUT");
    for node in 0..4 {
        slurm.await_node(node, "idle");
    }
    for (job, batch, ..) in &ways {
        assert!(job.current() >= job.sealed(), "{} is on the PFS: {}", job.current(), job.account(batch));
    }
    nothing_is_left(&cluster, 0..4);
    // The Epilogs have saved what the job could not.
    unwarned.goes_on_from_newest("--nodes=2", "");
    nothing_is_left(&cluster, 0..4);
}

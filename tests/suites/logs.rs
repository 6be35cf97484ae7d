//! Logs that stay open for append in their dataset (semantics: "Logs").

use std::time::Duration;

use scrfs_harness::Cluster;
use scrfs_harness::job::Job;
use scrfs_harness::place::SCR;
use scrfs_harness::programs::program;

const LIMIT: Duration = Duration::from_mins(2);

#[test]
fn a_log_is_sealed_as_it_is_at_the_marker_and_goes_on_growing() {
    let cluster = Cluster::up(6);
    let job = Job::new(&cluster, "logs");
    job.mount(0..6);
    let hold = format!("{}.hold", job.log_path());
    let go = |what: &str| {
        cluster.head().run(&format!("touch {hold}.{what}")).must();
    };
    for step in ["1.after", "2", "3.after", "4", "5.after", "6.after", "7.after"] {
        go(step);
    }
    let program = program("logs");
    let hosts = [0, 1, 2, 3, 4, 5];
    let mut run = job.start(&hosts, 4, 2, &[&program, SCR, &job.log_path(), "7", &hold]);

    // A worker dies once its copies are there.
    run.await_line(&job, "written 1", LIMIT);
    job.arm_daemon("seal.logs=kill");
    go("1");

    // Where it is written it grows, elsewhere it is what was sealed. A worker dies: the handle goes
    // on.
    run.await_line(&job, "grown 2", LIMIT);
    let last = format!("tail -n 1 {SCR}/run/log.0 | tr -d .");
    assert_eq!(job.on(0).run(&last).must(), "rank 0 after step 2");
    assert_eq!(job.on(3).run(&last).must(), "rank 0 step 2 line 499");
    assert!(job.events(1).contains("is open for append, sealed is a copy"), "{}", job.events(1));
    for node in [0, 1] {
        cluster.on(node).run("pkill -9 -f 'scrfs worke[r]'").must();
    }
    go("2.after");

    assert!(job.fired(), "{}", run.output());

    // A node is lost before the seal, and one after it.
    run.await_line(&job, "written 3", LIMIT);
    cluster.poweroff(2);
    go("3");
    run.await_line(&job, "grown 4", LIMIT);
    cluster.poweroff(1);
    go("4.after");

    // The coordinators die between freeze and commit; then a seal fails.
    run.await_line(&job, "written 5", LIMIT);
    job.arm("encode.finish=kill");
    go("5");
    run.await_line(&job, "written 6", LIMIT);
    assert!(job.fired(), "{}", run.output());
    job.arm("encode.block=error");
    go("6");
    // A worker dies when the next generation has begun and no program knows it.
    run.await_line(&job, "written 7", LIMIT);
    assert!(job.fired(), "{}", run.output());
    job.arm_daemon("generation.recorded=kill");
    go("7");
    run.await_line(&job, "done", LIMIT);
    assert!(job.fired());
    assert_eq!(run.wait(LIMIT), 0, "{}", run.output());
    assert_eq!(job.sealed(), [1, 2, 3, 4, 5, 6, 7]);
    let starts: Vec<String> = job
        .log()
        .into_iter()
        .filter(|line| line.starts_with("start after") || line.starts_with("marker"))
        .collect();
    assert_eq!(
        starts,
        ["start after 0", "start after 2", "start after 4", "marker 6 failed: Input/output error"],
        "{:?}",
        job.log()
    );

    // Nobody has it open any more, and it is as it was sealed: nothing that came after.
    let mut again = job.start(&[0, 3, 4, 5], 4, 2, &[&program, SCR, &job.log_path(), "7", &hold]);
    assert_eq!(again.wait(LIMIT), 0, "{}", again.output());
    assert!(job.log().iter().any(|line| line == "start after 7"), "{:?}", job.log());
}

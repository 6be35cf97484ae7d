//! Eight nodes of two ranks lose two at once and have no spares: the program goes on with six nodes
//! and twice the ranks on each, finds all bytes at the same paths from every node, and what it
//! found is protected again, which the loss of one more node shows.

use std::collections::BTreeMap;

use scrfs_harness::Cluster;
use scrfs_harness::job::Job;
use scrfs_harness::programs::program;
use scrfs_harness::tree::checksums;
use scrfs_harness::wait;

use crate::LIMIT;

const NODES: usize = 8;
const RANKS: usize = 2;

/// Settings of a scheme, and two nodes that it gives back when they are lost together.
struct Case {
    name: &'static str,
    settings: &'static [(&'static str, &'static str)],
    lost: [usize; 2],
}

const CASES: [Case; 4] = [
    // Sets of four, of which each has every other node.
    Case { name: "XOR", settings: &[("SCR_COPY_TYPE", "XOR"), ("SCR_SET_SIZE", "4")], lost: [2, 5] },
    Case { name: "PARTNER", settings: &[("SCR_COPY_TYPE", "PARTNER")], lost: [1, 6] },
    Case {
        name: "RS(1)",
        settings: &[("SCR_COPY_TYPE", "RS"), ("SCR_SET_FAILURES", "1"), ("SCR_SET_SIZE", "4")],
        lost: [3, 4],
    },
    Case { name: "RS(2)", settings: &[("SCR_COPY_TYPE", "RS"), ("SCR_SET_FAILURES", "2")], lost: [6, 7] },
];

pub(crate) fn fewer() {
    for case in &CASES {
        let cluster = Cluster::up(NODES);
        let job = Job::new(&cluster, "fewer").set("SCR_FETCH", "0");
        let job = case.settings.iter().fold(job, |job, (name, value)| job.set(name, value));
        goes_on(&cluster, &job, case);
        println!("{}: {:?} lost of {NODES}, then one more: all is there each time", case.name, case.lost);
    }
}

fn goes_on(cluster: &Cluster, job: &Job<'_>, case: &Case) {
    job.mount(0..NODES);
    let mut left: Vec<_> = (0..NODES).collect();
    let seen = |node: usize| checksums(&job.on(node), "/scr/ck.1");
    let mut whole = BTreeMap::new();
    run(job, &left, RANKS, || whole = seen(0));
    assert!(whole.len() > NODES, "{whole:?}");
    let one_more = left.iter().copied().find(|node| !case.lost.contains(node)).expect("six are left");
    for lost in [&case.lost[..], &[one_more]] {
        for &node in lost {
            cluster.kill(node);
        }
        left.retain(|node| !lost.contains(node));
        run(job, &left, 2 * RANKS, || {
            for &node in &left {
                assert!(seen(node) == whole, "{}: node{node} sees other files after {lost:?}", case.name);
            }
            let status = job.status(left[0]).expect("it is mounted");
            let survives = status["datasets"][0]["survives"].as_array().expect("what each loss costs");
            let all = survives.iter().all(|pair| pair[1] == true);
            assert!(all && !survives.is_empty(), "{}: not protected after {lost:?}: {status}", case.name);
        });
    }
}

/// Nothing new is written after the first time. `look` while it runs, as files that are elsewhere
/// are brought by coordinators.
fn run(job: &Job<'_>, nodes: &[usize], ranks: usize, look: impl FnOnce()) {
    let [hold, _] = job.hold_at(1);
    let writers = format!("writers={}", NODES * RANKS);
    let words = [&program("ckpt"), "/scr", &job.log_path(), "1", "uneven", &writers, &hold];
    let done = || job.log().iter().filter(|line| *line == "steps done").count();
    let before = done();
    // Of the run before.
    job.on(nodes[0]).run(&format!("rm -f {}", hold.trim_start_matches("hold="))).must();
    let mut run = job.start(nodes, nodes.len(), ranks, &words);
    let waits = wait::poll(LIMIT, || {
        assert_eq!(run.try_code(), None, "{}", run.output());
        (done() > before).then_some(())
    });
    assert!(waits.is_some(), "{}", run.output());
    look();
    job.let_go();
    assert_eq!(run.wait(LIMIT), 0, "{}", run.output());
}

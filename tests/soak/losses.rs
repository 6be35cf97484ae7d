//! Every loss that a scheme promises to survive: eight nodes of two ranks each, uneven files. The
//! nodes of each loss come back empty, together, and the program finds all bytes.

use std::time::Instant;

use scrfs_harness::Cluster;
use scrfs_harness::job::Job;
use scrfs_harness::programs::program;

use crate::LIMIT;

const NODES: usize = 8;
const RANKS: usize = 2;

/// Settings of a scheme, its name in status, and which nodes it promises to give back when they are
/// lost together.
struct Scheme {
    copy_type: &'static str,
    failures: &'static str,
    shown: &'static str,
    survives: fn(usize, usize) -> bool,
}

const SCHEMES: [Scheme; 4] = [
    Scheme { copy_type: "XOR", failures: "1", shown: "XOR", survives: |_, _| false },
    // A node and the next one have both copies of the first.
    Scheme {
        copy_type: "PARTNER",
        failures: "1",
        shown: "PARTNER",
        survives: |a, b| (b - a) % (NODES - 1) > 1,
    },
    Scheme { copy_type: "RS", failures: "1", shown: "RS(1)", survives: |_, _| false },
    Scheme { copy_type: "RS", failures: "2", shown: "RS(2)", survives: |_, _| true },
];

pub(crate) fn losses() {
    for scheme in &SCHEMES {
        let pairs = (0..NODES).flat_map(|a| (a + 1..NODES).map(move |b| (a, b)));
        let pairs = pairs.filter(|(a, b)| (scheme.survives)(*a, *b)).map(|(a, b)| vec![a, b]);
        let lost: Vec<_> = (0..NODES).map(|node| vec![node]).chain(pairs).collect();
        let begun = Instant::now();
        survived(scheme, &lost);
        println!("{}: {} losses survived, {:?}", scheme.shown, lost.len(), begun.elapsed());
    }
}

fn survived(scheme: &Scheme, losses: &[Vec<usize>]) {
    let cluster = Cluster::up(NODES);
    let job = Job::new(&cluster, "losses")
        .set("SCR_COPY_TYPE", scheme.copy_type)
        .set("SCR_SET_FAILURES", scheme.failures)
        .set("SCR_FETCH", "0");
    job.mount(0..NODES);
    let hosts: Vec<_> = (0..NODES).collect();
    let run = |steps: usize| {
        let words = [&program("ckpt"), "/scr", &job.log_path(), &steps.to_string(), "uneven"];
        let mut run = job.start(&hosts, NODES, RANKS, &words);
        assert_eq!(run.wait(LIMIT), 0, "{}", run.output());
    };
    run(1);
    let status = job.status(0).expect("it is mounted");
    assert_eq!(status["datasets"][0]["scheme"].as_str(), Some(scheme.shown), "{status}");
    for (at, lost) in losses.iter().enumerate() {
        for &node in lost {
            cluster.kill(node);
            cluster.boot(node).expect("it boots");
        }
        job.mount(lost.iter().copied());
        run(at + 2);
        let start = format!("start after {}", at + 1);
        assert!(job.log().contains(&start), "{}: {lost:?}: {:?}", scheme.shown, job.log());
    }
}

//! One job loses node after node, at random moments and in random ways; when there are no spares
//! left, the lost ones come back, with what they had or empty, and the job is started again. After
//! each loss the program goes on from its newest sealed checkpoint or a newer one.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use scrfs_harness::job::{Job, Running};
use scrfs_harness::place::{CACHE, SCR};
use scrfs_harness::programs::program;
use scrfs_harness::{Cluster, wait};

use crate::LIMIT;
use crate::watch::{LOSSES, Loss, Watch};

const NODES: usize = 8;
const USED: usize = 4;
/// Most memory of a daemon's process at any time: it holds two datasets of a few files.
const DAEMON_MOST_KIB: u64 = 64 << 10;
/// A loss comes within this time after a checkpoint: while one is written, sealed, encoded,
/// committed.
const MOMENTS_MS: u64 = 400;

/// Numbers that look random (splitmix64).
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % n
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        let at = self.below(u64::try_from(all.len()).expect("a length"));
        all[usize::try_from(at).expect("an index")]
    }
}

struct Soak<'a> {
    watch: Watch<'a>,
    random: Random,
    lost: Vec<(usize, Loss)>,
    failures: u32,
    slowest: Duration,
}

pub(crate) fn row(failures: u32, seed: u64) {
    println!("seed {seed}");
    let mut random = Random(seed);
    let (copy_type, set_failures) = random.of(&[("XOR", "1"), ("PARTNER", "1"), ("RS", "1"), ("RS", "2")]);
    println!("{copy_type}, SCR_SET_FAILURES={set_failures}");
    let cluster = Cluster::up(NODES);
    let job = Job::new(&cluster, "row")
        .set("SCR_COPY_TYPE", copy_type)
        .set("SCR_SET_FAILURES", set_failures)
        .set("SCR_FETCH", "0")
        // A node that hangs is to be lost soon.
        .set("SCRFS_NODE_TIMEOUT", "10s");
    job.mount(0..NODES);
    let before: Vec<_> = (0..NODES).map(|node| processes(&cluster, node)).collect();
    let mut soak = Soak {
        watch: Watch { cluster: &cluster, job },
        random,
        lost: Vec::new(),
        failures: 0,
        slowest: Duration::ZERO,
    };
    while soak.failures < failures {
        let hosts = soak.shuffled();
        let words = [
            &program("ckpt"),
            "/scr",
            &soak.watch.job.log_path(),
            "1000000",
            "uneven",
            "pause=50",
            "bytes=300000",
        ];
        let started = soak.watch.starts();
        let newest = soak.watch.newest();
        let mut run = soak.watch.job.start(&hosts, USED, 1, &words);
        soak.watch.goes_on(&mut run, started, newest);
        while soak.failures < failures && soak.lost.len() < NODES - USED {
            soak.lose_one(&mut run);
        }
        soak.watch.await_checkpoints(&mut run);
        run.stop();
        soak.bring_back();
    }
    for (node, before) in before.iter().enumerate() {
        let left = || processes(&cluster, node);
        let gone = wait::poll(LIMIT, || (left().len() <= before.len()).then_some(()));
        assert!(gone.is_some(), "node{node} has other processes than at first: {:?}, {before:?}", left());
        soak.look_for_leaks(node);
    }
    println!("{failures} failures, none lost anything; the slowest restart took {:?}", soak.slowest);
}

impl Soak<'_> {
    fn shuffled(&mut self) -> Vec<usize> {
        let mut left: Vec<_> = (0..NODES).collect();
        let mut hosts = Vec::new();
        while !left.is_empty() {
            let next = self.random.of(&left);
            left.retain(|node| *node != next);
            hosts.push(next);
        }
        hosts
    }

    fn lose_one(&mut self, run: &mut Running) {
        self.watch.await_checkpoints(run);
        let up = (0..NODES).filter(|node| self.lost.iter().all(|(lost, _)| lost != node));
        // Not those that have ended, and that nobody has waited for yet.
        let runs = |node: &usize| self.watch.job.on(*node).run("pgrep -x -r R,S,D,T ckpt").ok();
        let used: Vec<_> = up.filter(runs).collect();
        assert_eq!(used.len(), USED, "the program runs on {used:?}: {}", run.output());
        let (node, loss) = (self.random.of(&used), self.random.of(&LOSSES));
        std::thread::sleep(Duration::from_millis(self.random.below(MOMENTS_MS)));
        let (starts, begun) = (self.watch.starts(), Instant::now());
        loss.befall(self.watch.cluster, node);
        let newest = self.watch.newest();
        self.lost.push((node, loss));
        self.failures += 1;
        self.watch.goes_on(run, starts, newest);
        let took = begun.elapsed();
        self.slowest = self.slowest.max(took);
        println!("{}: node{node}, {loss:?}, after {newest}: restarted in {took:.1?}", self.failures);
    }

    /// All that were lost: with what they had, or empty.
    fn bring_back(&mut self) {
        for (node, loss) in std::mem::take(&mut self.lost) {
            loss.undo(&self.watch.job, self.watch.cluster, node);
        }
    }

    /// Nothing but the datasets that are kept is on the node, and its daemon has not grown.
    fn look_for_leaks(&self, node: usize) {
        let on = self.watch.cluster.on(node);
        let mut told = String::new();
        for what in [
            format!("ls {CACHE}/root/scr.row {SCR}"),
            format!("du -sk {CACHE} /dev/shm /tmp | tr '\\n' ' '"),
            "for of in $(pgrep -x scrfs); do grep -h VmHWM /proc/$of/status; done".to_owned(),
        ] {
            let _ = write!(told, "{} ", on.run(&what).must().replace('\n', " "));
        }
        println!("node{node}: {told}");
        let listed = on.run(&format!("ls {SCR} | wc -l")).must().parse::<usize>().expect("a number");
        let kept = on.run(&format!("ls -d {CACHE}/root/scr.row/dataset.* | wc -l"));
        let kept = kept.must().parse::<usize>().expect("a number");
        assert!(listed <= 3 && kept <= 3, "node{node}: {told}");
        let peaks =
            on.run("for of in $(pgrep -x scrfs); do awk '/^VmHWM/ { print $2 }' /proc/$of/status; done");
        let most = peaks.must().lines().map(|kib| kib.parse::<u64>().expect("a number")).max();
        assert!(most < Some(DAEMON_MOST_KIB), "node{node}: {told}");
    }
}

/// What runs on a node, by name.
fn processes(cluster: &Cluster, node: usize) -> Vec<String> {
    let name = |pid: &i32| std::fs::read_to_string(format!("/proc/{pid}/comm")).ok();
    let trimmed = |name: String| name.trim().to_owned();
    let mut names: Vec<_> = cluster.processes(node).iter().filter_map(name).map(trimmed).collect();
    names.sort();
    names
}

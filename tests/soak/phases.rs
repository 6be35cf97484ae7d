//! Each scheme loses the nodes that it promises to give back, in each way in which a node is lost,
//! in each phase of a checkpoint's life: two ranks a node, uneven files, each rank compares its own
//! files and those of a rank of the next node.

use std::time::Instant;

use scrfs_harness::job::{Job, Running};
use scrfs_harness::programs::program;
use scrfs_harness::{Cluster, wait};

use crate::LIMIT;
use crate::watch::{LOSSES, Loss, Watch};

const RANKS: usize = 2;
/// A pattern has two nodes at most, and the one that takes a lost node's place may be lost as well.
const SPARES: usize = 3;

/// Where a checkpoint is when nodes are lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Each rank is in the middle of a file.
    Writing,
    Sealing,
    Encoding,
    Committing,
    /// The former loss is being rebuilt, and the node that it is rebuilt on is lost.
    Rebuilding,
}

const PHASES: [Phase; 5] =
    [Phase::Writing, Phase::Sealing, Phase::Encoding, Phase::Committing, Phase::Rebuilding];

impl Phase {
    /// Where a coordinator waits meanwhile.
    fn point(self) -> Option<&'static str> {
        match self {
            Self::Writing => None,
            Self::Sealing => Some("seal.frozen"),
            Self::Encoding => Some("encode.block"),
            Self::Committing => Some("commit.done"),
            Self::Rebuilding => Some("rebuild.block"),
        }
    }
}

struct Scheme {
    copy_type: &'static str,
    failures: &'static str,
    /// What is lost together in the `turn`-th case, as places in a ring of `nodes`.
    pattern: fn(turn: usize, nodes: usize) -> Vec<usize>,
}

const SCHEMES: [Scheme; 4] = [
    Scheme { copy_type: "XOR", failures: "1", pattern: one },
    Scheme { copy_type: "PARTNER", failures: "1", pattern: one_or_two_apart },
    Scheme { copy_type: "RS", failures: "1", pattern: one },
    Scheme { copy_type: "RS", failures: "2", pattern: two },
];

fn one(turn: usize, nodes: usize) -> Vec<usize> {
    vec![turn % nodes]
}

/// The node after each of them is left.
fn one_or_two_apart(turn: usize, nodes: usize) -> Vec<usize> {
    let first = turn / 2 % nodes;
    if turn.is_multiple_of(2) { vec![first] } else { vec![first, (first + 2) % nodes] }
}

/// All pairs in turn.
fn two(turn: usize, nodes: usize) -> Vec<usize> {
    let pairs: Vec<_> = (0..nodes).flat_map(|a| (a + 1..nodes).map(move |b| vec![a, b])).collect();
    pairs[turn % pairs.len()].clone()
}

pub(crate) fn phases(nodes: usize, only: Option<&str>) {
    for scheme in &SCHEMES {
        let shown = format!("{}({})", scheme.copy_type, scheme.failures);
        if only.is_some_and(|only| only != shown) {
            continue;
        }
        let begun = Instant::now();
        let cases = survived(scheme, nodes);
        println!("{nodes} nodes, {shown}: {cases} losses survived, {:.0?}", begun.elapsed());
    }
}

fn survived(scheme: &Scheme, nodes: usize) -> usize {
    let cluster = Cluster::up(nodes + SPARES);
    let job = Job::new(&cluster, "phases")
        .set("SCR_COPY_TYPE", scheme.copy_type)
        .set("SCR_SET_FAILURES", scheme.failures)
        .set("SCR_FETCH", "0")
        // A node that hangs is to be lost soon.
        .set("SCRFS_NODE_TIMEOUT", "10s");
    job.mount(0..nodes + SPARES);
    let mut matrix = Matrix {
        watch: Watch { cluster: &cluster, job },
        nodes,
        hosts: (0..nodes + SPARES).collect(),
        lost: Vec::new(),
    };
    let cases = LOSSES.iter().flat_map(|loss| PHASES.iter().map(move |phase| (*loss, *phase)));
    let mut turn = 0;
    for (loss, phase) in cases {
        matrix.survives(loss, phase, &(scheme.pattern)(turn, nodes));
        turn += 1;
    }
    turn
}

struct Matrix<'a> {
    watch: Watch<'a>,
    nodes: usize,
    hosts: Vec<usize>,
    lost: Vec<(usize, Loss)>,
}

impl Matrix<'_> {
    fn survives(&mut self, loss: Loss, phase: Phase, pattern: &[usize]) {
        let (starts, newest) = (self.watch.starts(), self.watch.newest());
        let mut run = self.start();
        self.watch.goes_on(&mut run, starts, newest);
        self.watch.await_checkpoints(&mut run);
        let used = used(&run, 1);
        assert_eq!(used.len(), self.nodes, "{}", run.output());
        let nodes: Vec<_> = pattern.iter().map(|place| used[*place]).collect();
        let begun = Instant::now();
        match phase.point() {
            None => self.in_the_middle_of_files(&mut run, loss, &nodes),
            Some(point) if phase == Phase::Rebuilding => self.in_a_rebuild(&mut run, point, loss, &nodes),
            Some(point) => self.at(&mut run, point, loss, &nodes),
        }
        let took = begun.elapsed();
        self.watch.await_checkpoints(&mut run);
        run.stop();
        println!("{phase:?}, {loss:?} of {nodes:?}: restarted in {took:.1?}");
        self.bring_back();
    }

    fn start(&self) -> Running {
        let (log, part) = (self.watch.job.log_path(), self.watch.job.part());
        let (program, stride) = (program("ckpt"), format!("stride={RANKS}"));
        let words = [&program, "/scr", &log, "1000000", "uneven", "pause=50", "bytes=300000", &part, &stride];
        self.watch.job.start(&self.hosts, self.nodes, RANKS, &words)
    }

    fn in_the_middle_of_files(&mut self, run: &mut Running, loss: Loss, nodes: &[usize]) {
        self.watch.job.hold_files(true);
        let held = || {
            let log = self.watch.job.log();
            log.last()?.strip_prefix("writing ")?.parse::<u64>().ok()
        };
        let step = wait::poll(LIMIT, held).expect("ranks wait in the middle of their files");
        let starts = self.lose(loss, nodes);
        self.watch.job.hold_files(false);
        let from = self.watch.await_start(run, starts);
        assert_eq!(from, step - 1, "{}\n{:?}", run.output(), self.watch.tail());
    }

    fn at(&mut self, run: &mut Running, point: &str, loss: Loss, nodes: &[usize]) {
        self.await_point(run, point);
        let newest = self.watch.newest();
        let starts = self.lose(loss, nodes);
        self.release();
        self.watch.goes_on(run, starts, newest);
    }

    /// The first node of the pattern is lost, then the spare in its place and the others.
    fn in_a_rebuild(&mut self, run: &mut Running, point: &str, loss: Loss, nodes: &[usize]) {
        self.watch.job.arm(&format!("{point}=wait@1"));
        let (starts, newest) = (self.lose(loss, &nodes[..1]), self.watch.newest());
        let fired = wait::poll(LIMIT, || self.watch.job.fired().then_some(()));
        assert!(fired.is_some(), "no rebuild: {}\n{:?}", run.output(), self.watch.tail());
        let before = used(run, 1);
        let spare = used(run, 2).into_iter().find(|node| !before.contains(node)).expect("a spare is used");
        let with_spare: Vec<_> = [spare].iter().chain(&nodes[1..]).copied().collect();
        let before = self.lose(loss, &with_spare);
        assert_eq!(before, starts, "no program reads what is being rebuilt: {:?}", self.watch.tail());
        self.release();
        self.watch.goes_on(run, before, newest);
    }

    fn await_point(&self, run: &mut Running, point: &str) {
        self.watch.job.arm(&format!("{point}=wait@1"));
        let fired = wait::poll(LIMIT, || {
            assert_eq!(run.try_code(), None, "{}\n{:?}", run.output(), self.watch.tail());
            self.watch.job.fired().then_some(())
        });
        assert!(
            fired.is_some(),
            "{point} is not passed (programs need the feature `faults`): {}",
            run.output()
        );
    }

    /// Who waits at a point goes on.
    fn release(&self) {
        self.watch.job.arm("");
    }

    /// Gives how often the program had started before.
    fn lose(&mut self, loss: Loss, nodes: &[usize]) -> usize {
        let starts = self.watch.starts();
        for node in nodes {
            loss.befall(self.watch.cluster, *node);
            self.lost.push((*node, loss));
        }
        starts
    }

    /// Those that were lost are the last spares.
    fn bring_back(&mut self) {
        for (node, loss) in std::mem::take(&mut self.lost) {
            loss.undo(&self.watch.job, self.watch.cluster, node);
            self.hosts.retain(|host| *host != node);
            self.hosts.push(node);
        }
    }
}

/// The nodes of the `nth` run of the program, in the order of their ranks: those that have a part
/// of the newest checkpoint come first, and spares after them.
fn used(run: &Running, nth: usize) -> Vec<usize> {
    let (output, mark) = (run.output(), format!("run {nth} on "));
    let line = output.lines().find_map(|line| line.split_once(&mark)).expect("it says where it runs").1;
    let names = line.split(" (").next().unwrap_or_default().split_whitespace();
    names.map(|name| name.trim_start_matches("node").parse().expect("a node")).collect()
}

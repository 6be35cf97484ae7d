//! What rank 0 waits for while all other ranks spin, to the same while they sleep, in one run of
//! one program on three simulated nodes with coordinators of their own.

use std::io;
use std::time::Duration;

use scrfs_harness::job::Job;
use scrfs_harness::programs::program;
use scrfs_harness::{Cluster, Config};

use crate::Arguments;
use crate::backing::Kind;
use crate::mount::Mode;
use crate::pairs::median;
use crate::table::{Bound, Measure, Ranks, Row, Waited};

/// What `--only` takes for it.
pub(crate) const NAME: &str = "spin";

const NODES: usize = 3;
/// Of one checkpoint on one node.
const BYTES: usize = 64 << 20;
const LIMIT: Duration = Duration::from_mins(20);
/// Times are held to this: costs.
const BOUND: Bound = Bound::AtMost { gate: 2.5, goal: 1.2 };

pub(crate) fn rows(arguments: &Arguments) -> io::Result<Vec<Row>> {
    let cores = std::thread::available_parallelism()?.get();
    let cluster = Cluster::start(&Config { cache_size: "1g".into(), ..Config::new(NODES) })?;
    let job = Job::new(&cluster, "spin").set("OMPI_MCA_mpi_yield_when_idle", "0");
    job.mount(0..NODES);
    let mut rows = Vec::new();
    for (name, ranks, spinning) in [("one", Ranks::AsCores, cores), ("two", Ranks::TwiceCores, 2 * cores)] {
        // One of them waits for us and does not spin.
        let a_node = (spinning + 1).div_ceil(NODES);
        eprintln!("{NAME}: {} ranks spin on {cores} cores", a_node * NODES - 1);
        rows.extend(
            measure(&job, name, a_node, arguments.pairs)?.map(|(waited, times)| row(waited, ranks, &times)),
        );
    }
    Ok(rows)
}

/// Seconds with ranks that sleep and with ranks that spin, pair by pair.
type Times = Vec<(f64, f64)>;

fn measure(job: &Job<'_>, name: &str, a_node: usize, pairs: usize) -> io::Result<[(Waited, Times); 3]> {
    let (path, bytes) = (format!("/scr/{name}"), (BYTES / a_node).to_string());
    let spin = program("spin");
    let all: Vec<_> = (0..NODES).collect();
    let mut run = job.start(&all, NODES, a_node, &[&spin, &path, &bytes, &pairs.to_string()]);
    let code = run.wait(LIMIT);
    let output = run.output();
    if code != 0 {
        return Err(io::Error::other(format!("the program ended with {code}:\n{output}")));
    }
    let times = |what: &str| {
        let of = |mode: &str| {
            let begin = format!("{what} {mode} ");
            output.lines().filter_map(|line| line.strip_prefix(&begin)?.parse().ok()).collect::<Vec<f64>>()
        };
        let times: Times = of("sleep").into_iter().zip(of("spin")).collect();
        if times.len() == pairs {
            Ok(times)
        } else {
            Err(io::Error::other(format!("{what}: lines are missing")))
        }
    };
    Ok([
        (Waited::Marker, times("marker")?),
        (Waited::Directory, times("mkdir")?),
        (Waited::Open, times("open")?),
    ])
}

fn row(waited: Waited, ranks: Ranks, times: &Times) -> Row {
    let shown = |values: Vec<f64>| format!("{:.1} ms", median(values) * 1e3);
    Row {
        measure: Measure::Spin(waited, ranks),
        backing: Kind::Tmpfs,
        mode: Mode::Passthrough,
        peer: shown(times.iter().map(|(sleep, _)| *sleep).collect()),
        scr: shown(times.iter().map(|(_, spin)| *spin).collect()),
        figure: median(times.iter().map(|(sleep, spin)| spin / sleep).collect()),
        bound: Some(BOUND),
    }
}

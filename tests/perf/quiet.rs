//! A job to which little happens: what its coordinators and daemons take of a processor while
//! nothing is asked of them, and how long a marker takes when there is next to nothing to protect.

use std::time::{Duration, Instant};
use std::{fs, io};

use scrfs_harness::job::Job;
use scrfs_harness::{Cluster, Config};

use crate::Arguments;
use crate::backing::Kind;
use crate::mount::Mode;
use crate::protect::{self, SharedMemory};
use crate::table::{Bound, Measure, Row, Scheme};

/// What `--only` takes for it.
pub(crate) const NAME: &str = "quiet";

/// Nodes of a job that is idle.
const NODES: usize = 4;
/// Whatever happened last has been forgotten.
const SETTLED: Duration = Duration::from_secs(5);
const MEASURED: Duration = Duration::from_secs(20);
/// Bytes of each rank of a tiny dataset.
const TINY: usize = 4096;

pub(crate) fn rows(arguments: &Arguments) -> io::Result<Vec<Row>> {
    let wants = |measure: Measure| arguments.wants(NAME) || arguments.wants(&measure.name());
    let mut rows = if wants(Measure::IdleCoordinator) { idle()? } else { Vec::new() };
    for nodes in [2, 4, 8, 16].into_iter().filter(|nodes| wants(Measure::Tiny(*nodes))) {
        rows.push(tiny(nodes, arguments.pairs)?);
    }
    Ok(rows)
}

fn idle() -> io::Result<Vec<Row>> {
    eprintln!("{NAME}: idle");
    let cluster = Cluster::start(&Config::new(NODES))?;
    let job = Job::new(&cluster, NAME);
    job.mount(0..NODES);
    let nodes: Vec<_> = (0..NODES).collect();
    let _run = job.idle(&nodes);
    std::thread::sleep(SETTLED);
    let (begun, before) = (Instant::now(), taken(&cluster)?);
    std::thread::sleep(MEASURED);
    let (seconds, after) = (begun.elapsed().as_secs_f64(), taken(&cluster)?);
    let percent = |of: fn(&Taken) -> f64| {
        let nodes = before.iter().zip(&after);
        nodes.map(|(before, after)| (of(after) - of(before)) / seconds * 100.0).fold(0.0, f64::max)
    };
    let row = |measure, figure: f64, bound| Row {
        measure,
        backing: Kind::Tmpfs,
        mode: Mode::Passthrough,
        peer: "-".to_owned(),
        scr: format!("{figure:.2} %"),
        figure,
        bound,
    };
    let bound = Some(Bound::AtMost { gate: 0.3, goal: 0.1 });
    let (coordinator, daemon) = (percent(|taken| taken.coordinator), percent(|taken| taken.daemon));
    Ok(vec![row(Measure::IdleCoordinator, coordinator, bound), row(Measure::IdleDaemon, daemon, None)])
}

/// Seconds of a processor that a node's processes have taken.
#[derive(Default)]
struct Taken {
    coordinator: f64,
    daemon: f64,
}

fn taken(cluster: &Cluster) -> io::Result<Vec<Taken>> {
    let of_node = |node| {
        let mut taken = Taken::default();
        for pid in cluster.processes(node) {
            let seconds = match fs::read_to_string(format!("/proc/{pid}/comm"))?.trim_end() {
                "scrfs-coordinat" => &mut taken.coordinator,
                "scrfs" => &mut taken.daemon,
                _ => continue,
            };
            for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
                // proc(5): nanoseconds on a processor come first.
                let text = fs::read_to_string(thread?.path().join("schedstat"))?;
                let nanoseconds = text.split(' ').next().and_then(|word| word.parse::<f64>().ok());
                *seconds += nanoseconds.unwrap_or(0.0) / 1e9;
            }
        }
        Ok(taken)
    };
    (0..cluster.size()).map(of_node).collect()
}

fn tiny(nodes: usize, pairs: usize) -> io::Result<Row> {
    let measure = Measure::Tiny(nodes);
    eprintln!("{NAME}: {}", measure.name());
    let cluster = Cluster::start(&Config::new(nodes))?;
    let times = protect::measured(&SharedMemory::new(&cluster)?, TINY, Scheme::Xor, pairs)?;
    Ok(protect::row(measure, &times.native, &times.marker, None))
}

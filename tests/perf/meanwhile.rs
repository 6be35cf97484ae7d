//! How long a program waits for the next checkpoint's directory and marker while a dataset is
//! encoded, and how long where none is, in one run of one program.

use std::io;

use scrfs_harness::programs::program;
use scrfs_harness::{Cluster, Config};

use crate::Arguments;
use crate::backing::Kind;
use crate::mount::Mode;
use crate::pairs::median;
use crate::protect::{Runs, SharedMemory};
use crate::table::{Bound, Extent, Measure, Next, Row};

/// What `--only` takes for it.
pub(crate) const NAME: &str = "meanwhile";

/// The dataset that is encoded.
const EXTENT: Extent = Extent::Four256;
/// Milliseconds.
const BOUND: Bound = Bound::AtMost { gate: 50.0, goal: 20.0 };

pub(crate) fn rows(arguments: &Arguments) -> io::Result<Vec<Row>> {
    eprintln!("{NAME}");
    let cluster = Cluster::start(&Config { cache_size: "2g".into(), ..Config::new(EXTENT.nodes()) })?;
    let (bytes, pairs) = ((EXTENT.mib() << 20).to_string(), arguments.pairs.to_string());
    let words = [&program(NAME), "/scr/ck", &bytes, &pairs];
    let settings = [("SCR_COPY_TYPE", "XOR"), ("SCRFS_SEAL", "background")];
    let output = SharedMemory::new(&cluster)?.run(settings, &words)?;
    let rows = [("mkdir", Next::Directory), ("marker", Next::Marker)].map(|(what, next)| {
        let times = |kind: &str| {
            let begin = format!("{what} {kind} ");
            let times = output.lines().filter_map(|line| line.strip_prefix(&begin)?.parse().ok());
            times.collect::<Vec<f64>>()
        };
        let (quiet, busy) = (times("quiet"), times("busy"));
        if quiet.len() != arguments.pairs || busy.len() != arguments.pairs {
            return Err(io::Error::other(format!("lines are missing:\n{output}")));
        }
        Ok(row(next, quiet, busy))
    });
    rows.into_iter().collect()
}

fn row(next: Next, quiet: Vec<f64>, busy: Vec<f64>) -> Row {
    let longest = busy.iter().copied().fold(0.0, f64::max) * 1e3;
    let shown = |values: Vec<f64>| format!("{:.1} ms", median(values) * 1e3);
    Row {
        measure: Measure::Meanwhile(next),
        backing: Kind::Tmpfs,
        mode: Mode::Passthrough,
        figure: longest,
        peer: shown(quiet),
        scr: shown(busy),
        bound: Some(BOUND),
    }
}

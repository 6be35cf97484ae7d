//! How long a program waits for its marker, to what as many ranks need to write the same bytes into
//! their nodes' own file systems, in one run of one program; for each scheme, on simulated nodes of
//! one machine.

use std::io;
use std::time::Duration;

use scrfs_harness::job::Job;
use scrfs_harness::place::CACHE;
use scrfs_harness::programs::program;
use scrfs_harness::{Cluster, Config};

use crate::Arguments;
use crate::backing::Kind;
use crate::mount::Mode;
use crate::pairs::median;
use crate::table::{Bound, Extent, Measure, Row, Scheme};

/// What `--only` takes for it.
pub(crate) const NAME: &str = "protect";

const LIMIT: Duration = Duration::from_mins(20);

/// The settings of a scheme, and what its figure is held to: the gate is what SCR 3.1 needed, which
/// computes no checksums, for 4 × 256 MiB.
fn settings(scheme: Scheme) -> (&'static str, &'static str, Bound) {
    let bound = |gate, goal| Bound::AtMost { gate, goal };
    match scheme {
        Scheme::Partner => ("PARTNER", "1", bound(1.7, 1.1)),
        Scheme::Xor => ("XOR", "1", bound(2.7, 0.8)),
        Scheme::Rs1 => ("RS", "1", bound(1.2, 0.9)),
        Scheme::Rs2 => ("RS", "2", bound(3.8, 1.5)),
    }
}

pub(crate) fn rows(arguments: &Arguments) -> io::Result<Vec<Row>> {
    let mut rows = Vec::new();
    for extents in [&[Extent::Four64, Extent::Four256][..], &[Extent::Eight128][..]] {
        let nodes = extents[0].nodes();
        let cluster = Cluster::start(&Config { cache_size: "2g".into(), ..Config::new(nodes) })?;
        let job = Job::new(&cluster, NAME);
        job.mount(0..nodes);
        for &extent in extents {
            for scheme in [Scheme::Partner, Scheme::Xor, Scheme::Rs1, Scheme::Rs2] {
                eprintln!("{NAME}: {}", Measure::Protect(extent, scheme).name());
                rows.push(measure(&job, extent, scheme, arguments.pairs)?);
            }
        }
    }
    Ok(rows)
}

fn measure(job: &Job<'_>, extent: Extent, scheme: Scheme, pairs: usize) -> io::Result<Row> {
    let (copy_type, failures, bound) = settings(scheme);
    let job = job.clone().set("SCR_COPY_TYPE", copy_type).set("SCR_SET_FAILURES", failures);
    let (nodes, bytes) = (extent.nodes(), (extent.mib() << 20).to_string());
    let words = [&program("protect"), "/scr/ck", &format!("{CACHE}/native"), &bytes, &pairs.to_string()];
    let mut run = job.start(&(0..nodes).collect::<Vec<_>>(), nodes, 1, &words);
    let code = run.wait(LIMIT);
    let output = run.output();
    if code != 0 {
        return Err(io::Error::other(format!("the program ended with {code}:\n{output}")));
    }
    let times = |what: &str| -> Vec<f64> {
        output.lines().filter_map(|line| line.strip_prefix(what)?.trim().parse().ok()).collect()
    };
    let (native, marker) = (times("native "), times("marker "));
    if native.len() != pairs || marker.len() != pairs {
        return Err(io::Error::other("lines are missing"));
    }
    let ratios = native.iter().zip(&marker).map(|(native, marker)| marker / native).collect();
    let shown = |values: Vec<f64>| format!("{:.0} ms", median(values) * 1e3);
    Ok(Row {
        measure: Measure::Protect(extent, scheme),
        backing: Kind::Tmpfs,
        mode: Mode::Passthrough,
        figure: median(ratios),
        peer: shown(native),
        scr: shown(marker),
        bound: Some(bound),
    })
}

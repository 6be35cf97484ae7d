//! How long the members of nodes that are lost take to be rebuilt, and presented again, to what the
//! same nodes need to write as many bytes into their own file systems.

use std::io;
use std::time::Duration;

use scrfs_harness::job::Job;
use scrfs_harness::place::{BIN, CACHE, SCR};
use scrfs_harness::{Cluster, Config};
use serde_json::Value;

use crate::Arguments;
use crate::backing::Kind;
use crate::mount::Mode;
use crate::pairs::{self, Pairs};
use crate::protect::settings;
use crate::relaunch::seal;
use crate::table::{Extent, Measure, Row, Scheme};

/// What `--only` takes for it.
pub(crate) const NAME: &str = "rebuild";

const LIMIT: Duration = Duration::from_mins(5);
const EXTENT: Extent = Extent::Four256;

/// As many as the scheme gives back; they come back empty.
fn lost(scheme: Scheme) -> &'static [usize] {
    if scheme == Scheme::Rs2 { &[1, 2] } else { &[1] }
}

pub(crate) fn rows(arguments: &Arguments) -> io::Result<Vec<Row>> {
    [Scheme::Partner, Scheme::Xor, Scheme::Rs1, Scheme::Rs2]
        .into_iter()
        .map(|scheme| Ok(row(Measure::Rebuild(scheme), measured(scheme, arguments.pairs)?)))
        .collect()
}

fn measured(scheme: Scheme, pairs: usize) -> io::Result<Pairs> {
    let nodes = EXTENT.nodes();
    let cluster = Cluster::start(&Config { cache_size: "2g".into(), ..Config::new(nodes) })?;
    let (copy_type, failures, _) = settings(scheme);
    let job = Job::new(&cluster, NAME).set("SCR_FLUSH", "0").set("SCRFS_END_GRACE", "0");
    let job = job.set("SCR_COPY_TYPE", copy_type).set("SCR_SET_FAILURES", failures);
    job.mount(0..nodes);
    seal(&job, nodes);
    let native = || native(&job, lost(scheme));
    pairs::run(&Measure::Rebuild(scheme).name(), pairs, native, || rebuilt(&cluster, &job, lost(scheme)))
}

fn row(measure: Measure, pairs: Pairs) -> Row {
    Row {
        measure,
        backing: Kind::Tmpfs,
        mode: Mode::Passthrough,
        peer: format!("{:.0} ms", pairs.first * 1e3),
        scr: format!("{:.0} ms", pairs.second * 1e3),
        figure: pairs.ratio,
        bound: None,
    }
}

/// Seconds until each of these nodes has written as much as it has of the dataset.
fn native(job: &Job<'_>, nodes: &[usize]) -> io::Result<f64> {
    let line = format!(
        "begun=$(date +%s.%N); dd if=/dev/zero of={CACHE}/native bs=1M count={} 2>/dev/null
         echo $begun $(date +%s.%N); rm {CACHE}/native",
        EXTENT.mib()
    );
    let told: Vec<String> = std::thread::scope(|scope| {
        let writing: Vec<_> =
            nodes.iter().map(|node| scope.spawn(|| job.on(*node).run(&line).must().to_owned())).collect();
        writing.into_iter().map(|one| one.join().unwrap_or_default()).collect()
    });
    let times = |at: usize| -> io::Result<Vec<f64>> {
        let time = |line: &String| line.split_whitespace().nth(at)?.parse().ok();
        told.iter().map(time).collect::<Option<_>>().ok_or_else(|| io::Error::other(told.join("\n")))
    };
    let begun = times(0)?.into_iter().fold(f64::INFINITY, f64::min);
    Ok(times(1)?.into_iter().fold(0.0, f64::max) - begun)
}

/// Loses the nodes and relaunches: seconds between two events of a node that was not lost.
fn rebuilt(cluster: &Cluster, job: &Job<'_>, lost: &[usize]) -> io::Result<f64> {
    for &node in lost {
        cluster.kill(node);
        cluster.boot(node)?;
    }
    job.mount(lost.iter().copied());
    let nodes: Vec<_> = (0..cluster.size()).collect();
    let mut run = job.clone().set("SCRFS_RESTART", "eager").start(&nodes, nodes.len(), 1, &["/bin/true"]);
    if run.wait(LIMIT) != 0 {
        return Err(io::Error::other(run.output()));
    }
    let told = job.on(0).run(&format!("{BIN}/scrfs-ctl events --mount {SCR} -n 200")).must().to_owned();
    let events: Vec<Value> = told.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let last = |text: &str| -> io::Result<f64> {
        let is_it = |event: &&Value| event["text"].as_str().is_some_and(|told| told.contains(text));
        let event = events.iter().rev().find(is_it);
        let time = event.and_then(|event| event["time_us"].as_f64());
        time.map(|time| time / 1e6).ok_or_else(|| io::Error::other(format!("no event {text:?}:\n{told}")))
    };
    Ok(last("presented: ")? - last("are rebuilt from the others")?)
}

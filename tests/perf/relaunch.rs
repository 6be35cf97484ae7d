//! How long a job that has lost a node takes from `scrfs-run` to the first byte that its program
//! reads, and until every rank has read all of its own: a lazy restart to an eager one.

use std::time::{Duration, SystemTime, UNIX_EPOCH};
use std::{fs, io};

use scrfs_harness::job::Job;
use scrfs_harness::place::{PFS, SCR};
use scrfs_harness::{Cluster, Config, wait};

use crate::Arguments;
use crate::backing::Kind;
use crate::mount::Mode;
use crate::pairs;
use crate::table::{Extent, Measure, Row};

/// What `--only` takes for it.
pub(crate) const NAME: &str = "relaunch";

const LIMIT: Duration = Duration::from_mins(5);
/// Comes back empty each time.
const LOST: usize = 1;
const EXTENT: Extent = Extent::Four256;

/// Each rank says when it has its first byte, and when it has all.
const PROGRAM: &str = "f=/scr/ck/f.$OMPI_COMM_WORLD_RANK; d=$1/$OMPI_COMM_WORLD_RANK
head -c 1 $f > /dev/null; date +%s.%N > $d.first; cat $f > /dev/null; date +%s.%N > $d.all";

/// Seconds.
#[derive(Clone, Copy)]
struct Times {
    first: f64,
    all: f64,
}

pub(crate) fn rows(arguments: &Arguments) -> io::Result<Vec<Row>> {
    let nodes = EXTENT.nodes();
    let cluster = Cluster::start(&Config { cache_size: "2g".into(), ..Config::new(nodes) })?;
    let job = Job::new(&cluster, NAME).set("SCR_FLUSH", "0").set("SCRFS_END_GRACE", "0");
    job.mount(0..nodes);
    seal(&job, nodes);
    let (mut eager, mut lazy) = (Vec::new(), Vec::new());
    let label = Measure::RelaunchFirst.name();
    let relaunch = |way, times: &mut Vec<Times>| {
        let taken = relaunch(&cluster, &job, way)?;
        times.push(taken);
        Ok(taken.first)
    };
    let first = pairs::run(
        &label,
        arguments.pairs,
        || relaunch("eager", &mut eager),
        || relaunch("lazy", &mut lazy),
    )?;
    // The first pair warms caches.
    let all = |times: &[Times]| times.iter().skip(1).map(|times| times.all).collect::<Vec<_>>();
    let (eager, lazy) = (all(&eager), all(&lazy));
    let ratios = eager.iter().zip(&lazy).map(|(eager, lazy)| lazy / eager).collect();
    let all = pairs::Pairs {
        first: pairs::median(eager),
        second: pairs::median(lazy),
        ratio: pairs::median(ratios),
    };
    Ok([(Measure::RelaunchFirst, first), (Measure::RelaunchAll, all)].map(row).into())
}

fn row((measure, pairs): (Measure, pairs::Pairs)) -> Row {
    Row {
        measure,
        backing: Kind::Tmpfs,
        mode: Mode::Passthrough,
        peer: format!("{:.2} s eager", pairs.first),
        scr: format!("{:.2} s lazy", pairs.second),
        figure: pairs.ratio,
        bound: None,
    }
}

/// Every node has a file of a dataset that is sealed.
pub(crate) fn seal(job: &Job<'_>, nodes: usize) {
    let all: Vec<_> = (0..nodes).collect();
    let mut run = job.idle(&all);
    job.on(0).run(&format!("mkdir {SCR}/ck")).must();
    for node in 0..nodes {
        let line = format!("head -c {}m /dev/urandom > {SCR}/ck/f.{node}", EXTENT.mib());
        job.on(node).run(&line).must();
    }
    job.on(0).run(&format!("touch {SCR}/ck/.complete")).must();
    run.stop();
}

fn relaunch(cluster: &Cluster, job: &Job<'_>, way: &str) -> io::Result<Times> {
    cluster.kill(LOST);
    cluster.boot(LOST)?;
    job.mount([LOST]);
    let said = cluster.pfs().join("relaunch");
    if said.exists() {
        fs::remove_dir_all(&said)?;
    }
    fs::create_dir(&said)?;
    let nodes: Vec<_> = (0..cluster.size()).collect();
    let job = job.clone().set("SCRFS_RESTART", way);
    let begun = SystemTime::now().duration_since(UNIX_EPOCH).map_err(io::Error::other)?.as_secs_f64();
    let there = format!("{PFS}/relaunch");
    let mut run = job.start(&nodes, nodes.len(), 1, &["/bin/sh", "-c", PROGRAM, "sh", &there]);
    if run.wait(LIMIT) != 0 {
        return Err(io::Error::other(run.output()));
    }
    wait::until_true("the end of the coordinators", LIMIT, || {
        nodes.iter().all(|node| !job.on(*node).run("pgrep -x scrfs-coordinat").ok())
    });
    let when = |node: &usize, what: &str| -> io::Result<f64> {
        let text = fs::read_to_string(said.join(format!("{node}.{what}")))?;
        Ok(text.trim().parse::<f64>().map_err(io::Error::other)? - begun)
    };
    let all_of = |what: &str| nodes.iter().map(|node| when(node, what)).collect::<io::Result<Vec<_>>>();
    Ok(Times {
        first: all_of("first")?.into_iter().fold(f64::INFINITY, f64::min),
        all: all_of("all")?.into_iter().fold(0.0, f64::max),
    })
}

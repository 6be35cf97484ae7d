//! How long a program waits for its marker, to what as many ranks need to write the same bytes into
//! their nodes' own file systems, and to what they need to protect those by themselves, as SCR does
//! (`tests/programs/plain.h`), in one run of one program; for each scheme, on simulated nodes of
//! one machine, whose MPI goes over shared memory or over their own network.

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;
use std::{fs, io};

use scrfs_harness::job::Job;
use scrfs_harness::mpirun::site_environment;
use scrfs_harness::place::{CACHE, PFS};
use scrfs_harness::programs::program;
use scrfs_harness::shell::Ran;
use scrfs_harness::{Cluster, Config};

use crate::Arguments;
use crate::backing::Kind;
use crate::mount::Mode;
use crate::pairs::median;
use crate::table::{Bound, Extent, Measure, Medium, Row, Scheme};

/// What `--only` takes for it.
pub(crate) const NAME: &str = "protect";

/// What protects files without checksums, records or agreement is to be no faster.
const TO_PLAIN: Bound = Bound::AtMost { gate: 1.0, goal: 0.8 };

const LIMIT: Duration = Duration::from_mins(20);

/// The settings of a scheme, and what its figure is held to: the gate is what SCR 3.1 needed, which
/// computes no checksums, for 4 × 256 MiB.
pub(crate) fn settings(scheme: Scheme) -> (&'static str, &'static str, Bound) {
    let bound = |gate, goal| Bound::AtMost { gate, goal };
    match scheme {
        Scheme::Partner => ("PARTNER", "1", bound(1.7, 1.1)),
        Scheme::Xor => ("XOR", "1", bound(2.7, 0.8)),
        Scheme::Rs1 => ("RS", "1", bound(1.2, 0.9)),
        Scheme::Rs2 => ("RS", "2", bound(3.8, 1.5)),
    }
}

/// What the program has printed: seconds, pair by pair.
pub(crate) struct Times {
    pub(crate) native: Vec<f64>,
    /// Of a program that protects the same bytes and does nothing else.
    plain: Vec<f64>,
    pub(crate) marker: Vec<f64>,
    ring: Vec<f64>,
}

/// Runs the program with these words on all nodes, by these settings; gives its output.
pub(crate) trait Runs {
    const MEDIUM: Medium;

    fn run(&self, settings: [(&str, &str); 2], words: &[&str]) -> io::Result<String>;
}

/// Over the nodes' own network, as a job runs.
struct Network<'a> {
    job: Job<'a>,
    nodes: usize,
}

/// Over shared memory: `neighbours.sh`.
pub(crate) struct SharedMemory<'a> {
    cluster: &'a Cluster,
    script: String,
}

impl Runs for Network<'_> {
    const MEDIUM: Medium = Medium::Network;

    fn run(&self, settings: [(&str, &str); 2], words: &[&str]) -> io::Result<String> {
        let nodes: Vec<_> = (0..self.nodes).collect();
        let job = settings.iter().fold(self.job.clone(), |job, (name, value)| job.set(name, value));
        let mut run = job.start(&nodes, nodes.len(), 1, words);
        match run.wait(LIMIT) {
            0 => Ok(run.output()),
            code => Err(io::Error::other(format!("the program ended with {code}:\n{}", run.output()))),
        }
    }
}

impl<'a> SharedMemory<'a> {
    pub(crate) fn new(cluster: &'a Cluster) -> io::Result<Self> {
        let name = "neighbours.sh";
        let path = cluster.pfs().join(name);
        fs::write(&path, include_str!("neighbours.sh"))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        Ok(Self { cluster, script: format!("{PFS}/{name}") })
    }
}

impl Runs for SharedMemory<'_> {
    const MEDIUM: Medium = Medium::SharedMemory;

    fn run(&self, settings: [(&str, &str); 2], words: &[&str]) -> io::Result<String> {
        let mut command = self.cluster.head().limit(LIMIT).cmd(&self.script);
        command.arg(self.cluster.size().to_string()).args(words).envs(site_environment()).envs(settings);
        command.env("SCR_JOB_ID", NAME).env("SCR_PREFIX", PFS).env("SCR_FLUSH", "0");
        let ran = Ran::of(&mut command);
        if ran.ok() { Ok(ran.out) } else { Err(io::Error::other(ran.to_string())) }
    }
}

pub(crate) fn rows(arguments: &Arguments) -> io::Result<Vec<Row>> {
    let mut rows = Vec::new();
    for extents in [&[Extent::Four64, Extent::Four256][..], &[Extent::Eight128][..]] {
        let config = Config { cache_size: "2g".into(), ..Config::new(extents[0].nodes()) };
        if any_wanted(arguments, Medium::SharedMemory, extents) {
            let cluster = Cluster::start(&config)?;
            rows.extend(over(&SharedMemory::new(&cluster)?, extents, arguments)?);
        }
        if any_wanted(arguments, Medium::Network, extents) {
            let cluster = Cluster::start(&config)?;
            let job = Job::new(&cluster, NAME);
            let nodes = cluster.size();
            job.mount(0..nodes);
            rows.extend(over(&Network { job, nodes }, extents, arguments)?);
        }
    }
    Ok(rows)
}

fn any_wanted(arguments: &Arguments, medium: Medium, extents: &[Extent]) -> bool {
    extents.iter().any(|extent| wanted(arguments, medium, *extent).next().is_some())
}

fn wanted(
    arguments: &Arguments,
    medium: Medium,
    extent: Extent,
) -> impl Iterator<Item = (Measure, Scheme)> + use<'_> {
    let schemes = [Scheme::Partner, Scheme::Xor, Scheme::Rs1, Scheme::Rs2];
    let all = schemes.into_iter().map(move |scheme| (Measure::Protect(medium, extent, scheme), scheme));
    all.filter(|(measure, _)| arguments.wants(NAME) || arguments.wants(&measure.name()))
}

fn over<R: Runs>(runs: &R, extents: &[Extent], arguments: &Arguments) -> io::Result<Vec<Row>> {
    let mut rows = Vec::new();
    for &extent in extents {
        let mut rings = Vec::new();
        for (measure, scheme) in wanted(arguments, R::MEDIUM, extent) {
            eprintln!("{NAME}: {}", measure.name());
            let times = measured(runs, extent.mib() << 20, scheme, arguments.pairs)?;
            let (_, _, bound) = settings(scheme);
            rows.push(row(measure, &times.native, &times.marker, Some(bound)));
            let to_plain = Measure::ProtectToPlain(R::MEDIUM, extent, scheme);
            rows.push(row(to_plain, &times.plain, &times.marker, Some(TO_PLAIN)));
            rings.push(times);
        }
        if rings.is_empty() {
            continue;
        }
        let all = |of: fn(&Times) -> &Vec<f64>| rings.iter().flat_map(of).copied().collect::<Vec<_>>();
        let (native, ring) = (all(|times| &times.native), all(|times| &times.ring));
        rows.push(row(Measure::Ring(R::MEDIUM, extent), &native, &ring, None));
    }
    Ok(rows)
}

/// Of as many bytes on each node.
pub(crate) fn measured(runs: &impl Runs, bytes: usize, scheme: Scheme, pairs: usize) -> io::Result<Times> {
    let (copy_type, failures, _) = settings(scheme);
    let bytes = bytes.to_string();
    let (native, pairs_word) = (format!("{CACHE}/native"), pairs.to_string());
    let words = [&program("protect"), "/scr/ck", &native, &bytes, &pairs_word, copy_type, failures];
    let output = runs.run([("SCR_COPY_TYPE", copy_type), ("SCR_SET_FAILURES", failures)], &words)?;
    let times = |what: &str| -> Vec<f64> {
        output.lines().filter_map(|line| line.strip_prefix(what)?.trim().parse().ok()).collect()
    };
    let (native, plain, marker, ring) = (times("native "), times("plain "), times("marker "), times("ring "));
    let times = Times { native, plain, marker, ring };
    if [&times.native, &times.plain, &times.marker, &times.ring].iter().any(|all| all.len() != pairs) {
        return Err(io::Error::other(format!("lines are missing:\n{output}")));
    }
    Ok(times)
}

/// `times` as a multiple of `native`, pair by pair.
pub(crate) fn row(measure: Measure, native: &[f64], times: &[f64], bound: Option<Bound>) -> Row {
    let shown = |values: &[f64]| format!("{:.1} ms", median(values.to_vec()) * 1e3);
    Row {
        measure,
        backing: Kind::Tmpfs,
        mode: Mode::Passthrough,
        figure: median(native.iter().zip(times).map(|(native, time)| time / native).collect()),
        peer: shown(native),
        scr: shown(times),
        bound,
    }
}

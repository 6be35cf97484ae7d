//! The demo: a job loses a node and carries on from its checkpoint.
//!
//! Four nodes and a spare, simulated on this machine; LAMMPS as Debian ships it; node2 loses its
//! power right after a chosen checkpoint was sealed. Everything that is claimed at the end was
//! compared byte for byte on the way.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "nothing of scrfs itself")]

mod checks;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use checks::{Checkpoint, Sums};
use clap::Parser;
use scrfs_harness::cluster::workspace;
use scrfs_harness::job::{Job, Running};
use scrfs_harness::place::{BIN, SCR};
use scrfs_harness::{Cluster, wait};

/// Steps between checkpoints: some seconds of work on two cores.
const EVERY: u64 = 100;
/// The step of the last checkpoint.
const LAST: u64 = 600;
/// The power goes after this one was sealed. It is not flushed (every second one is), so only
/// parity can bring it back.
const CHOSEN: &str = "ck_300";
/// Whose power goes.
const VICTIM: usize = 2;
/// The hosts in order: four of them run LAMMPS, the fifth is the spare.
const HOSTS: [usize; 5] = [0, 1, 2, 3, 4];
/// After this time the demo has failed, whatever it waits for.
const LIMIT: Duration = Duration::from_secs(170);
/// Between two looks at the status.
const PAUSE: Duration = Duration::from_millis(150);

type Outcome<T> = Result<T, String>;

/// Shows a job that loses a node and carries on from its checkpoint, on simulated nodes.
#[derive(Parser)]
struct Arguments {
    /// The programs of scrfs, as a package lays them out; without it those beside this one.
    programs: Option<PathBuf>,
}

fn main() -> ExitCode {
    let begun = Instant::now();
    let arguments = Arguments::parse();
    // The harness panics where a test would fail; here that is a sentence and exit code 1, after
    // clearing up.
    std::panic::set_hook(Box::new(|_| {}));
    let outcome =
        catch_unwind(AssertUnwindSafe(|| demo(begun, arguments.programs))).unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().cloned();
            Err(text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned())).unwrap_or_default())
        });
    match outcome {
        Ok(proved) => {
            println!("\n{proved}");
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("\nthe demo failed: {why}");
            ExitCode::FAILURE
        }
    }
}

fn demo(begun: Instant, programs: Option<PathBuf>) -> Outcome<String> {
    let teller = Teller { begun };
    teller.tell("booting 4 nodes and a spare");
    let mut config = scrfs_harness::Config::new(HOSTS.len());
    config.bin = programs.unwrap_or(config.bin);
    let cluster = Cluster::start(&config).map_err(|e| e.to_string())?;
    let job = Job::new(&cluster, "demo").set("SCR_FLUSH", "2").set("SCR_CACHE_SIZE", "20");
    job.mount(HOSTS);
    teller.tell(&format!(
        "{SCR} is mounted on each; starting LAMMPS on node0 node1 node2 node3 through scrfs-run"
    ));
    let input = workspace().join("tests/demo/in.melt");
    let (every, last) = (EVERY.to_string(), LAST.to_string());
    let program = [
        "lmp",
        "-in",
        &input.to_string_lossy(),
        "-log",
        "none",
        "-var",
        "scr",
        SCR,
        "-var",
        "every",
        &every,
        "-var",
        "last",
        &last,
    ];
    let run = job.start(&HOSTS, 4, 1, &program);
    let mut story = Story { teller, cluster: &cluster, job: &job, run, shown: 0, seen: BTreeMap::new() };
    story.until_chosen()?;
    let restart = story.power_off()?;
    story.until_relaunched(&restart)?;
    story.until_done(&restart)?;
    story.conclude(&restart)
}

/// Says what happens, with the time.
struct Teller {
    begun: Instant,
}

impl Teller {
    fn tell(&self, line: &str) {
        println!("[{:3} s] {line}", self.begun.elapsed().as_secs());
    }
}

struct Story<'a> {
    teller: Teller,
    cluster: &'a Cluster,
    job: &'a Job<'a>,
    run: Running,
    /// Bytes of the job's output that were shown.
    shown: usize,
    /// Every checkpoint that was seen sealed, with the sums of its files.
    seen: BTreeMap<String, Checkpoint>,
}

impl Story<'_> {
    /// Follows the job until the chosen checkpoint is sealed and its sums are taken.
    fn until_chosen(&mut self) -> Outcome<()> {
        self.follow(&[0, 1, 2, 3], |story| story.seen.contains_key(CHOSEN))
    }

    /// Takes the power of the victim; gives the checkpoint that a restart has to present.
    fn power_off(&mut self) -> Outcome<String> {
        let before = self.status_table(0)?;
        self.cluster.poweroff(VICTIM);
        self.teller.tell(&format!("node{VICTIM} has lost its power; scrfs-ctl status on node0 just before:"));
        print_indented(&before);
        let newest = self.protected(0)?.into_iter().max_by_key(|c| c.id).ok_or("nothing is protected")?;
        if !self.seen.contains_key(&newest.name) {
            return Err(format!("{} was sealed before its sums could be taken; try again", newest.name));
        }
        if newest.flushed {
            return Err(format!(
                "{} is on the PFS already: it would prove nothing about parity",
                newest.name
            ));
        }
        Ok(newest.name)
    }

    /// Follows until LAMMPS goes on, and says where it does.
    fn until_relaunched(&mut self, restart: &str) -> Outcome<()> {
        let expected = format!("going on from {restart}");
        self.follow(&[], |story| story.run.output().contains("lammps: going on from "))?;
        if !self.run.output().contains(&expected) {
            return Err(format!("LAMMPS did not go on from {restart}"));
        }
        // Read while the job runs: from every node, the spare and the writers' neighbours too.
        for node in [0, 1, 3, 4] {
            let read = self.read(restart, node, "*.restart")?;
            self.seen[restart].compare(&read, &format!("{restart} read on node{node}"))?;
        }
        let count = self.seen[restart].files();
        self.teller.tell(&format!("all {count} files of {restart} are byte-identical on node0, 1, 3 and 4"));
        Ok(())
    }

    /// Follows until the job has ended; shows the status when the first new checkpoint is protected
    /// again.
    fn until_done(&mut self, restart: &str) -> Outcome<()> {
        let known = self.seen.len();
        self.follow(&[0, 1, 3, 4], |story| story.seen.len() > known)?;
        let after = self.status_table(0)?;
        self.teller.tell("scrfs-ctl status on node0, with the spare in the place of the dead node:");
        print_indented(&after);
        let host = format!("node{VICTIM}");
        let table = self.protected(0)?;
        let moved = table.iter().find(|c| c.name == restart).is_some_and(|c| !c.hosts.contains(&host));
        if !moved {
            return Err(format!("{restart} still counts on {host}"));
        }
        self.follow(&[0, 1, 3, 4], |story| story.run.try_code().is_some())
    }

    fn conclude(mut self, restart: &str) -> Outcome<String> {
        let code = self.run.wait(Duration::from_secs(1));
        let output = self.run.output();
        if code != 0 || !output.contains("lammps: done") {
            return Err(after(&output, &format!("scrfs-run ended with exit code {code}")));
        }
        if !output.contains("scrfs-run: run 2 on node0 node1 node3 node4")
            || output.contains("scrfs-run: run 3 ")
        {
            return Err("it took another way than one relaunch with the spare".to_owned());
        }
        let mut flushed = 0;
        for checkpoint in self.protected(0)?.iter().filter(|c| c.flushed) {
            let directory = self.job.host_prefix().join(&checkpoint.name);
            let read = checks::sums_on_host(&directory)?;
            let Some(written) = self.seen.get(&checkpoint.name) else { continue };
            written.compare(&read, &format!("{} on the PFS", checkpoint.name))?;
            flushed += 1;
        }
        if flushed == 0 {
            return Err("nothing was flushed".to_owned());
        }
        self.teller
            .tell(&format!("the flushed copies of {flushed} checkpoints on the PFS are byte-identical"));
        let index = self.on(0, &format!("{BIN}/scrfs-ctl print {}/.scr/index.scr", self.job.prefix()))?;
        if !index.contains("COMPLETE") {
            return Err(after(&index, "the index on the PFS has no complete dataset"));
        }
        let (all, files) = (self.seen.len(), self.seen.values().map(Checkpoint::files).sum::<usize>());
        Ok(format!(
            "proved: unmodified LAMMPS lost node{VICTIM} in mid-run and went on from {restart}, its newest checkpoint, on the \
             spare; node{VICTIM}'s file was rebuilt from parity; {files} restart files of {all} checkpoints were \
             byte-identical when read from other nodes than their writers', and {flushed} checkpoints on the PFS; {} s",
            self.teller.begun.elapsed().as_secs()
        ))
    }

    /// Shows the job's output and takes sums of what gets sealed, until `done`. `writers`: the node
    /// of each rank.
    fn follow(&mut self, writers: &[usize], mut done: impl FnMut(&mut Self) -> bool) -> Outcome<()> {
        loop {
            let ended = self.run.try_code();
            self.show_output();
            if !writers.is_empty() && ended.is_none() {
                self.look(writers)?;
            }
            if done(self) {
                return Ok(());
            }
            if let Some(code) = ended {
                return Err(after(&self.run.output(), &format!("scrfs-run ended with exit code {code}")));
            }
            if self.teller.begun.elapsed() > LIMIT {
                return Err(after(&self.run.output(), &format!("{} s are over", LIMIT.as_secs())));
            }
            wait::poll(PAUSE, || self.run.try_code());
        }
    }

    /// Takes the sums of checkpoints that were sealed since the last look: each file at its writer,
    /// then on the next node, where it was not written.
    fn look(&mut self, writers: &[usize]) -> Outcome<()> {
        // A status that cannot be had now can be had later.
        let Ok(sealed) = self.protected(0) else { return Ok(()) };
        for found in sealed {
            if self.seen.contains_key(&found.name) {
                continue;
            }
            let mut written = Checkpoint::default();
            for (rank, &node) in writers.iter().enumerate() {
                let own = if rank == 0 {
                    "melt.base.restart melt.0.restart"
                } else {
                    &format!("melt.{rank}.restart")
                };
                let sums = self.read(&found.name, node, own)?;
                written.add(node, sums);
            }
            self.teller.tell(&format!(
                "{} is sealed: {} files, {} MiB on {}, protected by {}",
                found.name,
                written.files(),
                found.bytes >> 20,
                found.hosts.join(" "),
                found.scheme
            ));
            if found.name != CHOSEN {
                for (at, &node) in writers.iter().enumerate() {
                    let neighbour = writers[(at + 1) % writers.len()];
                    let names: Vec<&str> = written.files_of(node).collect();
                    let read = self.read(&found.name, neighbour, &names.join(" "))?;
                    written.compare_some(&read, &format!("{} read on node{neighbour}", found.name))?;
                }
            }
            self.seen.insert(found.name, written);
        }
        Ok(())
    }

    fn protected(&self, node: usize) -> Outcome<Vec<checks::Protected>> {
        let status = self.job.status(node).ok_or_else(|| format!("no status from node{node}"))?;
        Ok(checks::protected(&status))
    }

    fn status_table(&self, node: usize) -> Outcome<String> {
        self.on(node, &format!("{BIN}/scrfs-ctl status --mount {SCR}"))
    }

    /// Sums of files of a checkpoint, read through the mount on a node.
    fn read(&self, checkpoint: &str, node: usize, names: &str) -> Outcome<Sums> {
        let text = self.on(node, &format!("cd {SCR}/{checkpoint} && sha256sum -- {names}"))?;
        checks::parse(&text)
    }

    fn on(&self, node: usize, line: &str) -> Outcome<String> {
        let ran = self.job.on(node).run(line);
        if ran.ok() { Ok(ran.out) } else { Err(format!("on node{node}: {ran}")) }
    }

    /// New lines that scrfs-run and our input file wrote; LAMMPS itself says much more.
    fn show_output(&mut self) {
        let output = self.run.output();
        let fresh = output.get(self.shown..).unwrap_or_default();
        let whole = fresh.rfind('\n').map_or(0, |at| at + 1);
        for line in
            fresh[..whole].lines().filter(|l| l.starts_with("scrfs-run: ") || l.starts_with("lammps: "))
        {
            self.teller.tell(line);
        }
        self.shown += whole;
    }
}

/// Shows all that a program wrote, so that `why`, which is given back, comes below it, as the last
/// line.
fn after(output: &str, why: &str) -> String {
    eprintln!("{}", output.trim_end());
    why.to_owned()
}

fn print_indented(text: &str) {
    for line in text.lines() {
        println!("        {line}");
    }
}

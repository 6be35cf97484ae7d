//! Under real Slurm, as an ordinary user, with the hooks of `deploy/slurm/` as they are.
//!
//! Each test has one cluster and many jobs on it: what is waited for is mostly Slurm.

// Tests begin in the order of their names: this one waits longest, and computes least.
mod at_time_limit;
mod busy;
mod ended;
mod hooks;
mod losses;
mod manuals;
mod neighbours;
mod nodes;
mod notes;
mod steps;

use std::time::{Duration, Instant};

use scrfs_harness::job::SOON;
use scrfs_harness::place::{CACHE, JOB_UID, PFS};
use scrfs_harness::programs::program;
use scrfs_harness::shell::Ran;
use scrfs_harness::slurm::STAND_INS;
use scrfs_harness::{Batch, Cluster, Slurm, wait};

/// Each job has a mount of its own.
const SYSTEM: &str = "SCRFS_MOUNT=/scr/%j\n";
/// PrologEpilogTimeout is three times as long, and Slurm kills a health check after a minute.
const BOUND: Duration = Duration::from_secs(50);
/// Slurm notices the loss of a node in 10 to 20 s, and lets a job run again some seconds later.
const LIMIT: Duration = Duration::from_secs(150);

/// A job of `scrfs-run` with the program of the tests, its prefix, and its log.
struct Saver<'a> {
    slurm: &'a Slurm<'a>,
    name: &'static str,
    uid: u32,
}

impl<'a> Saver<'a> {
    fn new(slurm: &'a Slurm<'a>, name: &'static str) -> Self {
        Self { slurm, name, uid: JOB_UID }
    }

    /// Submits it for `steps` checkpoints; `settings` are lines of the script before scrfs-run,
    /// `arguments` its own.
    fn submit(&self, options: &str, settings: &str, arguments: &str, steps: &str) -> Batch {
        let (program, name) = (program("ckpt"), self.name);
        let script = format!(
            "export SCR_PREFIX={PFS}/{name}\n{settings}\n\
             exec scrfs-run {arguments} -- {program} \"$SCRFS_MOUNT\" {PFS}/{name}/log {steps}"
        );
        let options = format!("--ntasks-per-node=1 --constraint=scrfs {options}");
        self.slurm.submit(self.uid, name, &options, &script)
    }

    fn log(&self) -> Vec<String> {
        let path = self.slurm.directory(self.uid, self.name).join("log");
        let text = std::fs::read_to_string(path).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    fn numbers(&self, before: &str) -> Vec<u64> {
        self.log().iter().filter_map(|line| line.strip_prefix(before)?.parse().ok()).collect()
    }

    /// The newest step whose marker's close succeeded.
    fn sealed(&self) -> u64 {
        self.numbers("sealed ").last().copied().unwrap_or(0)
    }

    /// The step that is current on the PFS; 0: none.
    fn current(&self) -> u64 {
        let link = self.slurm.directory(self.uid, self.name).join("scr.current");
        let name = std::fs::read_link(link).unwrap_or_default().to_string_lossy().into_owned();
        name.strip_prefix("ck.").and_then(|step| step.parse().ok()).unwrap_or(0)
    }

    /// What the prefix has of work that is under way, or was.
    fn unfinished(&self) -> Vec<String> {
        let names = std::fs::read_dir(self.slurm.directory(self.uid, self.name).join(".scr"));
        let names = names.into_iter().flatten().flatten().map(|entry| entry.file_name());
        let names = names.filter_map(|name| name.into_string().ok());
        names.filter(|name| ["flush.", "scavenge."].iter().any(|begin| name.starts_with(begin))).collect()
    }

    /// What was saved for the job's user others than that one can change.
    fn open_to_others(&self) -> String {
        let prefix = self.slurm.directory(self.uid, self.name);
        let mut find = std::process::Command::new("find");
        let found = find.arg(prefix).args(["!", "-type", "l", "-perm", "/022"]).output().expect("find");
        String::from_utf8_lossy(&found.stdout).into_owned()
    }

    /// A new job of the prefix starts from the newest sealed step, whose job has ended, and takes
    /// one step more.
    #[track_caller]
    fn goes_on_from_newest(&self, options: &str, words: &str) {
        let (sealed, before) = (self.sealed(), self.started_after().len());
        let again = self.submit(options, "export SCR_FLUSH=1", "", &format!("{} uneven {words}", sealed + 1));
        self.await_state(&again, "COMPLETED");
        let starts = self.started_after();
        // It may have been sealed, and its program killed before it could say so.
        let newest = starts.get(before).is_some_and(|start| [sealed, sealed + 1].contains(start));
        assert!(newest && starts.len() == before + 1, "{starts:?}: {}", self.account(&again));
    }

    /// What each start of the program went on from.
    fn started_after(&self) -> Vec<u64> {
        self.numbers("start after ")
    }

    /// A program that was told to wait for `go` in the job's directory waits no longer.
    #[track_caller]
    fn let_go(&self) {
        let go = self.slurm.directory(self.uid, self.name).join("go");
        std::fs::write(go, "").expect("the PFS can be written");
    }

    /// Slurm may have to notice the loss of a node before.
    #[track_caller]
    fn await_sealed(&self, job: &Batch, step: u64) {
        let seen = wait::poll(LIMIT, || (self.sealed() >= step).then_some(()));
        assert!(seen.is_some(), "step {step}: {:?}\n{}", self.log(), self.slurm.account(self.name, job));
    }

    #[track_caller]
    fn await_state(&self, job: &Batch, state: &str) {
        self.slurm.await_state(self.name, job, state, LIMIT);
    }

    fn output(&self, job: &Batch) -> String {
        self.slurm.output(self.name, job)
    }

    fn account(&self, job: &Batch) -> String {
        format!("{:?}\n{}", self.log(), self.slurm.account(self.name, job))
    }
}

/// Of jobs that are over nothing is left on these nodes: no process, mount, cache, control
/// directory or note.
#[track_caller]
fn nothing_is_left(cluster: &Cluster, nodes: impl IntoIterator<Item = usize>) {
    let look = format!(
        "ps -eo user,args | grep -E '^(job|mate) |scrf[s]( |-)' | grep -v -e simnode; grep 'fuse[.]scrfs' /proc/self/mountinfo; \
         ls -d {CACHE}/*/* /dev/shm/*/scr.* /run/scrfs/*/* /scr/* 2>/dev/null; \
         find /run/scrfs-slurm -type f ! -name .sweep 2>/dev/null; \
         find /tmp -maxdepth 1 '(' -user job -o -user mate ')' '(' -name 'scrfs*' -o -name '*mpi*' -o -name '*pmix*' ')'; true"
    );
    for node in nodes {
        let mut left = String::new();
        let gone = wait::poll(SOON, || {
            cluster.on(node).run(&look).must().clone_into(&mut left);
            left.is_empty().then_some(())
        });
        assert!(gone.is_some(), "left on node{node}:\n{left}");
    }
}

/// Neither a cache nor a note. The node's own health check may have found the cache before it was
/// freed, and then makes a note, looks once more, and takes the note away again.
#[track_caller]
fn nothing_is_known_of(cluster: &Cluster, node: usize, batch: &Batch) {
    let known = format!("ls -d {CACHE}/job/scr.{0} || ls /run/scrfs-slurm/{0}", batch.0);
    let is_gone = || !cluster.on(node).run(&known).ok();
    assert!(wait::poll(SOON, || is_gone().then_some(())).is_some(), "node{node} knows job {}", batch.0);
}

/// Stands for a program in the hooks of one node.
fn stand_in(cluster: &Cluster, node: usize, name: &str, lines: &str) {
    let path = format!("{STAND_INS}/{name}");
    let write = format!(
        "mkdir -p {STAND_INS} && printf '%s\\n' '#!/bin/sh' '{lines}' >{path}.new && chmod 755 {path}.new && \
         mv {path}.new {path}"
    );
    cluster.on(node).run(&write).must();
}

fn no_stand_ins(cluster: &Cluster, node: usize) {
    cluster.on(node).run(&format!("rm -rf {STAND_INS}")).must();
}

/// Runs a hook that must not fail, and not take long.
#[track_caller]
fn within_bound(slurm: &Slurm<'_>, node: usize, hook: &str, variables: &str) -> Ran {
    let begun = Instant::now();
    let ran = slurm.hook(node, hook, variables);
    assert!(ran.ok() && begun.elapsed() < BOUND, "{hook} on node{node}: {:?}\n{ran}", begun.elapsed());
    ran
}

/// A job without scrfs on this node, for hooks that are run by hand: its id, and their variables.
fn job_on(slurm: &Slurm<'_>, node: usize) -> (Batch, String) {
    let name = ["hand0", "hand1", "hand2", "hand3"][node];
    let batch = slurm.submit(JOB_UID, name, &format!("-w node{node}"), "exec sleep 600");
    slurm.await_state(name, &batch, "RUNNING", LIMIT);
    let variables = format!(
        "SLURM_JOB_ID={} SLURM_JOB_USER=job SLURM_JOB_UID={JOB_UID} SLURM_JOB_GID={JOB_UID} \
         SLURM_JOB_CONSTRAINTS=scrfs",
        batch.0
    );
    (batch, variables)
}

/// When each of `marks` appears in what `text` gives, in order, since `begun`.
fn times(begun: Instant, marks: &[&str], mut text: impl FnMut() -> String) -> Vec<Duration> {
    let mut from = 0;
    marks
        .iter()
        .map_while(|mark| {
            let at = wait::poll(LIMIT, || text().get(from..)?.find(mark))?;
            from += at + mark.len();
            Some(begun.elapsed())
        })
        .collect()
}

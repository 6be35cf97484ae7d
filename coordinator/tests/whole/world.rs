//! Nodes, their coordinators and the prefix; what happens next, the seed decides.

use std::collections::VecDeque;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use scrfs::control::server::Greeting;
use scrfs::control::{Command, LooseRules, RestartRules, SealRules, Settings, Start};
use scrfs::dataset::{Protection, Protections, Scheme};
use scrfs::faults::Interruption;
use scrfs::ids::{Epoch, NodeRank};
use scrfs::prefix::PfsTask;
use scrfs_coordinator::epoch;
use scrfs_coordinator::groups::FailureGroups;
use scrfs_coordinator::job::{Job, JobFailure, JobId, JobResult};
use scrfs_coordinator::lead::{Input, Lead, Output};

use crate::counts::Counts;
use crate::machine::Machine;
use crate::programs::Programs;
use crate::rng::Rng;

/// How much time passes when nothing else happens.
const TICK: Duration = Duration::from_millis(500);
/// So much of what former leads have sent is kept.
const FORMER: usize = 40;
/// The lane of flushes.
const FLUSHES: &str = "scrfs-transfer";

#[allow(clippy::struct_excessive_bools, reason = "a test's knobs")]
pub(crate) struct World {
    pub(crate) rng: Rng,
    pub(crate) directory: tempfile::TempDir,
    pub(crate) settings: Settings,
    /// By rank of the running (or last) epoch.
    pub(crate) machines: Vec<Machine>,
    /// Lost nodes that may come back with what they had.
    away: Vec<Machine>,
    pub(crate) lead: Option<Lead>,
    pub(crate) epoch: Epoch,
    pub(crate) start: Start,
    now: u64,
    down: Vec<VecDeque<Command>>,
    /// What former leads have sent and what has not arrived, with the hosts and links.
    former: VecDeque<(String, u64, Command)>,
    pub(crate) jobs: Vec<(JobId, Job)>,
    pub(crate) results: Vec<(NodeRank, JobId, JobResult)>,
    tasks: VecDeque<PfsTask>,
    next_host: u64,
    pub(crate) programs: Programs,
    /// The start of this epoch is over.
    pub(crate) ready: bool,
    /// Workers die within their work.
    pub(crate) deadly: bool,
    /// Steps of theirs fail, or did.
    pub(crate) failing: bool,
    failed: bool,
    /// The mounts could not be presented: what they lacked is there now.
    lacks: bool,
    /// Bits of sealed files flip while programs run.
    pub(crate) flipping: bool,
    /// All nodes are lost at once now and then.
    wiping: bool,
    /// Steps of programs that are to interrupt something.
    pub(crate) put_off: Option<Vec<Interruption>>,
    pub(crate) counts: Counts,
    trace: VecDeque<String>,
    is_traced: bool,
}

fn settings(rng: &mut Rng, prefix: &Path) -> Settings {
    let failures = 1 + u8::try_from(rng.below(2)).expect("small");
    let schemes = [Scheme::Xor, Scheme::Partner, Scheme::ReedSolomon { failures }, Scheme::Single];
    let scheme = *rng.pick(&schemes).expect("some");
    let set_size = *rng.pick(&[2, 3, 8]).expect("some");
    let protection = Protection { set_size, ..Protection::by(scheme) };
    Settings {
        prefix: prefix.as_os_str().as_bytes().to_vec(),
        user: "u".to_owned(),
        job_id: "j".to_owned(),
        checkpoint_path: None,
        coordinator_wait_ms: 10_000,
        seal_timeout_ms: 30_000,
        cache_size: 2,
        cache_bytes: 0,
        protections: Protections::all(protection),
        enable: true,
        flush_every: *rng.pick(&[0, 0, 1, 3]).expect("some"),
        scrub_interval_ms: 0,
        fetch: rng.chance(70),
        distribute: true,
        list_max: 100,
        jobs: scrfs::control::JobRules { block_bytes: 64, encode_threads: 2 },
        sealing: SealRules { background: rng.chance(20), ..SealRules::default() },
        loose: LooseRules::default(),
        restart: RestartRules::default(),
        advice: scrfs::control::AdviceRules::default(),
    }
}

impl World {
    pub(crate) fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
        let mut settings = settings(&mut rng, &directory.path().join("pfs"));
        // Of its own, so that all else of a seed stays what it was.
        settings.restart.lazy = seed % 2 == 1;
        settings.restart.lazy_fetch = !seed.is_multiple_of(3);
        let count = 1 + rng.below(6);
        let (deadly, failing) = (rng.chance(60), rng.chance(30));
        let mut world = Self {
            rng,
            directory,
            settings,
            machines: Vec::new(),
            away: Vec::new(),
            lead: None,
            epoch: Epoch(0),
            start: Start::Restart,
            now: 1_700_000_000_000_000,
            down: Vec::new(),
            former: VecDeque::new(),
            jobs: Vec::new(),
            results: Vec::new(),
            tasks: VecDeque::new(),
            next_host: 0,
            programs: Programs::default(),
            ready: false,
            deadly,
            failing,
            failed: false,
            lacks: false,
            // Of its own, too.
            flipping: seed % 5 == 1,
            wiping: seed.is_multiple_of(2),
            put_off: None,
            counts: Counts::default(),
            trace: VecDeque::new(),
            is_traced: std::env::var_os("SIMULATION_TRACE").is_some(),
        };
        for _ in 0..count {
            world.add_machine();
        }
        world
    }

    fn add_machine(&mut self) {
        self.next_host += 1;
        let host = format!("n{}", self.next_host);
        let directory = self.directory.path().join(&host);
        self.machines.push(Machine::new(&host, directory));
    }

    pub(crate) fn say(&mut self, text: impl FnOnce() -> String) {
        if self.is_traced {
            self.trace.push_back(text());
            if self.trace.len() > 6000 {
                self.trace.pop_front();
            }
        }
    }

    pub(crate) fn is_traced(&self) -> bool {
        self.is_traced
    }

    pub(crate) fn trace(&self) -> impl Iterator<Item = &String> {
        self.trace.iter()
    }

    /// Coordinators start on the nodes, in any order of ranks.
    pub(crate) fn start(&mut self, start: Start) {
        for at in (1..self.machines.len()).rev() {
            let other = self.rng.below(at + 1);
            self.machines.swap(at, other);
        }
        let prefix = self.directory.path().join("pfs");
        std::fs::create_dir_all(&prefix).expect("a prefix");
        let (epoch, problem) = epoch::begin(&prefix, self.epoch, "j", "n", Duration::from_mins(1));
        assert!(problem.is_none(), "{problem:?}");
        self.epoch = epoch;
        let names: Vec<String> = self.machines.iter().map(|machine| machine.host.clone()).collect();
        self.say(|| format!("=== {start:?} {epoch:?} {names:?}"));
        if start == Start::Restart {
            self.end_programs();
            self.counts.restarts += 1;
        }
        self.down = self.machines.iter().map(|_| VecDeque::new()).collect();
        self.programs.absent.clear();
        self.programs.since = self.programs.next;
        self.start = start;
        self.ready = false;
        for (rank, machine) in (0..).map(NodeRank).zip(&mut self.machines) {
            let (hosts, settings) = (names.clone(), self.settings.clone());
            machine.attach(Greeting { epoch, rank, hosts, start, settings });
        }
        self.lead = Some(Lead::new());
        self.feed(Input::Now(self.now));
        let (groups, settings) = (FailureGroups::default(), Box::new(self.settings.clone()));
        self.feed(Input::Begin { epoch, hosts: names, groups, start, settings });
    }

    /// All processes of the program die, which nodes see before any coordinators start.
    pub(crate) fn end_programs(&mut self) {
        self.programs.end();
        self.machines.iter().for_each(|machine| machine.pass(Duration::ZERO));
    }

    /// All coordinators die: nothing in flight arrives, or it does when others have attached.
    pub(crate) fn kill(&mut self) {
        self.say(|| "=== coordinators die".to_owned());
        self.lead = None;
        let down = std::mem::take(&mut self.down);
        for (machine, commands) in self.machines.iter().zip(down) {
            let link = machine.link();
            self.former.extend(commands.into_iter().map(|command| (machine.host.clone(), link, command)));
        }
        let many = self.former.len().saturating_sub(FORMER);
        self.former.drain(..many);
        self.jobs.clear();
        self.results.clear();
        self.tasks.clear();
        for machine in &mut self.machines {
            // Some nodes see nothing of the death before others attach.
            if self.rng.chance(70) {
                machine.detach();
            }
        }
    }

    /// A worker dies, and its successor takes over. The coordinators open a new epoch.
    pub(crate) fn replace_worker(&mut self, at: usize) {
        let host = self.machines[at].host.clone();
        self.say(|| format!("=== the worker of {host} dies"));
        self.kill();
        self.programs.forget(&host);
        self.machines[at].succeed();
        self.counts.deaths += 1;
        self.start_again();
    }

    /// Nodes die, with all that they have; others come, or come back.
    pub(crate) fn lose_nodes(&mut self) {
        let most = if self.settings.protections.usual.scheme.failures() == Some(2) { 2 } else { 1 };
        let is_wiped = self.wiping && self.rng.chance(30);
        let lost = self.rng.below(most + 1).min(self.machines.len() - 1);
        let lost = if is_wiped { self.machines.len() } else { lost };
        self.counts.wipes += u64::from(is_wiped);
        for _ in 0..lost {
            let at = self.rng.below(self.machines.len());
            let machine = self.machines.swap_remove(at);
            let host = machine.host.clone();
            self.say(|| format!("=== {host} is lost"));
            self.programs.lost();
            if self.rng.chance(30) {
                self.away.push(machine);
            } else {
                machine.destroy();
            }
            if !is_wiped && self.rng.chance(70) {
                self.add_machine();
            }
        }
        if is_wiped {
            (0..lost).for_each(|_| self.add_machine());
        }
        if self.rng.chance(20)
            && let Some(mut machine) = self.away.pop()
        {
            self.say(|| format!("=== {} is back", machine.host));
            machine.succeed();
            self.machines.push(machine);
        }
    }

    pub(crate) fn feed(&mut self, input: Input) {
        self.say(|| format!("> {input:?}"));
        let Some(lead) = &mut self.lead else { return };
        for output in lead.step(input) {
            self.say(|| format!("    < {output:?}"));
            self.output(output);
        }
    }

    fn output(&mut self, output: Output) {
        match output {
            Output::Command(nodes, command) => {
                if let Command::Commit(catalog) = &command {
                    self.programs.commits(catalog);
                }
                if let Command::Revise(revision) = &command {
                    self.programs.revises(revision);
                }
                if let Command::Evict(id) = &command {
                    self.programs.evicts(*id);
                }
                if let Command::MarkAbsent { id, members } = &command {
                    self.counts.absent += u64::from(!members.is_empty());
                    self.programs.lacks(*id, !members.is_empty());
                }
                for node in nodes {
                    self.down[node.0 as usize].push_back(command.clone());
                }
            }
            Output::Start(id, job) => self.jobs.push((id, job)),
            Output::Abort(job, nodes, reason) => {
                // One that has begun ends by itself here.
                let waiting = self.jobs.iter().position(|(id, _)| *id == job);
                if let Some(at) = waiting.filter(|_| self.rng.chance(50)) {
                    self.jobs.swap_remove(at);
                    let failed = || Err(JobFailure::passing(reason.clone()));
                    self.results.extend(nodes.into_iter().map(|node| (node, job, failed())));
                }
            }
            Output::Pfs(task) => self.tasks.push_back(task),
            Output::Ready(current) => {
                self.ready = true;
                let is_restart = self.start == Start::Restart;
                self.say(|| format!("ready: {current:?}"));
                if is_restart {
                    if let Some((id, name)) = &current {
                        self.check_removed(*id, std::str::from_utf8(name).expect("its name"));
                    }
                    let current = current.map(|(_, name)| String::from_utf8(name).expect("its name"));
                    self.check_presented(current.as_deref());
                    self.check_pointer(current.as_deref());
                }
                self.programs.run();
            }
            Output::GiveUp(lack, reason) => {
                assert!(self.failing || self.failed, "given up: {lack:?}, {reason}");
                self.lacks = true;
            }
            Output::Halt(reason) => panic!("no halt was asked for: {reason}"),
            Output::Sealed(id) => {
                self.counts.seals += 1;
                self.programs.sealed(id);
            }
            Output::Note(_, text) => {
                assert!(!text.contains("awaits"), "the lead met what it does not await: {text}");
            }
        }
    }

    /// One step; false when there was nothing to do but to let time pass.
    pub(crate) fn step(&mut self, acts: bool) -> bool {
        if std::mem::take(&mut self.lacks) {
            self.kill();
            self.start(Start::Restart);
            return true;
        }
        let mut choices: Vec<(u8, usize, &'static str)> = Vec::new();
        for (at, machine) in self.machines.iter().enumerate() {
            if machine.speaks() {
                choices.push((0, at, ""));
            }
            if self.down.get(at).is_some_and(|down| !down.is_empty()) {
                choices.push((1, at, ""));
            }
            choices.extend(machine.worker.agenda.lanes().into_iter().map(|lane| (2, at, lane)));
        }
        choices.extend((0..self.jobs.len()).map(|at| (3, at, "")));
        choices.extend((0..self.results.len()).map(|at| (4, at, "")));
        if !self.tasks.is_empty() {
            choices.push((5, 0, ""));
        }
        // The halt file is looked at for ever.
        let looks = self.tasks.iter().all(|task| matches!(task, PfsTask::Halt { .. }));
        let busy = choices.len() > usize::from(looks && !self.tasks.is_empty());
        if acts && self.ready {
            choices.push((6, 0, ""));
        }
        if !busy || self.rng.chance(2) {
            choices.push((7, 0, ""));
        }
        if self.lead.is_some() && !self.former.is_empty() && self.rng.chance(5) {
            choices.push((8, 0, ""));
        }
        let Some(&(kind, at, lane)) = self.rng.pick(&choices) else { return false };
        match kind {
            0 => {
                let event = self.machines[at].event().expect("it speaks");
                self.feed(Input::Daemon(rank(at), event));
            }
            1 => {
                let command = self.down[at].pop_front().expect("not empty");
                self.say(|| format!("  rank {at}: {command:?}"));
                self.mortal(at, false, |machine| machine.command(command));
            }
            2 => {
                self.say(|| format!("  rank {at}: {lane}"));
                self.mortal(at, acts && self.ready && lane == FLUSHES, |machine| {
                    machine.worker.agenda.work(lane);
                });
            }
            3 => self.run_job(at),
            4 => {
                let (rank, id, result) = self.results.swap_remove(at);
                self.feed(Input::Job(rank, id, result));
            }
            5 => {
                let task = self.tasks.pop_front().expect("not empty");
                self.run_task(task);
            }
            6 => self.act(),
            8 => self.former_speaks(),
            _ => {
                self.now += u64::try_from(TICK.as_micros()).expect("short");
                self.machines.iter().for_each(|machine| machine.pass(TICK));
                self.feed(Input::Now(self.now));
            }
        }
        self.hear();
        busy
    }

    /// A command of a former lead arrives after a newer one has attached: nothing comes of it.
    fn former_speaks(&mut self) {
        let at = self.rng.below(self.former.len());
        let (host, link, command) = self.former.remove(at).expect("not empty");
        let Some(machine) = self.machines.iter().find(|machine| machine.host == host) else { return };
        let looks = |machine: &Machine| (machine.worker.agenda.lanes(), machine.events());
        let before = looks(machine);
        machine.command_of(link, command.clone());
        assert_eq!(looks(machine), before, "{host} obeys a former lead: {command:?}");
        self.counts.former += 1;
        self.say(|| format!("  {host} is told by a former lead: {command:?}"));
    }

    /// Steps of workers may have failed.
    pub(crate) fn failing(&self) -> bool {
        self.failing || self.failed
    }

    /// Nothing fails from now on.
    pub(crate) fn calm(&mut self) {
        self.failed |= self.failing;
        (self.deadly, self.failing) = (false, false);
    }
}

fn rank(at: usize) -> NodeRank {
    NodeRank(u32::try_from(at).expect("few nodes"))
}

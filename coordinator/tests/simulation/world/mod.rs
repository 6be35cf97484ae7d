//! The world of one seed: daemons, links, jobs, prefix, programs, and a lead that may die at any
//! instant. One step is one delivery, one share of a job, one PFS task, one program's act or a tick
//! of the clock.

mod absent;
mod checks;
mod decay;
mod jobs;
mod losses;
mod pointers;
mod programs;
mod racks;
mod refusals;
mod removals;
mod room;
mod rounds;
mod settings;
mod wishes;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::LazyLock;

use scrfs::control::{
    Command, DirOp, Event, FetchFailure, HeldState, MarkerOutcome, NoRoom, Settings, Start,
};
use scrfs::dataset::Catalog;
use scrfs::ids::{DatasetId, Epoch, Member, NodeRank, RequestId};
use scrfs::path::RelPath;
use scrfs::prefix::{PfsCause, PfsTask};
use scrfs_coordinator::groups::FailureGroups;
use scrfs_coordinator::job::JobId;
use scrfs_coordinator::lead::{Input, Lack, Lead, Output};

use self::jobs::Share;
use crate::counts::Counts;
use crate::daemon::{Daemon, Dataset, Trouble};
use crate::observer::{self, Key, Truth};
use crate::prefix::{Curse, Prefix, failed};
use crate::rng::Rng;

#[allow(clippy::struct_excessive_bools, reason = "a test's knobs")]
pub(crate) struct World {
    pub(crate) rng: Rng,
    pub(crate) settings: Settings,
    /// By rank of the running (or last) epoch.
    pub(crate) nodes: Vec<Daemon>,
    /// Lost nodes that may come back with what they had.
    graveyard: Vec<Daemon>,
    pub(crate) prefix: Prefix,
    lead: Option<Lead>,
    epoch: u64,
    now: u64,
    up: Vec<VecDeque<Event>>,
    down: Vec<VecDeque<Command>>,
    shares: Vec<Share>,
    /// Nodes whose bytes the first share of a job found bad; the others meet the same bytes.
    found_bad: BTreeMap<JobId, Vec<usize>>,
    /// And when they were given.
    tasks: VecDeque<(u64, PfsTask)>,
    /// The PFS hangs now and then; until this time.
    hangs: bool,
    hang: u64,
    /// Programs run.
    pub(crate) programs: bool,
    /// The start of this epoch is over.
    pub(crate) ready: bool,
    start: Start,
    /// Of a lazy restart, also with what has rotted and nobody has read.
    expected: [Option<Key>; 2],
    /// All that this restart may go on from.
    whole: Vec<Key>,
    /// Tries of a restart to rebuild a dataset that were made to fail.
    spoilt: BTreeMap<DatasetId, u32>,
    /// Nothing is made to fail in this start.
    calm: bool,
    /// This start began while things are made to fail in a restart too; that may end before it.
    troubled: bool,
    /// Per 10,000.
    pub(crate) trouble: u64,
    /// Nothing fails by chance in the whole run.
    smooth: bool,
    /// Also while a restart looks for its dataset.
    pub(crate) trouble_in_restart: bool,
    /// Directories as the order of operations has them.
    oracle: BTreeSet<RelPath>,
    /// The same when the last round was prepared: an eviction may come between.
    prepared: BTreeSet<RelPath>,
    ops: BTreeMap<RequestId, DirOp>,
    finished: BTreeMap<RequestId, i32>,
    /// What nodes have said in the round that was prepared last.
    votes: BTreeMap<RequestId, BTreeSet<i32>>,
    /// Which datasets this lead has had frozen.
    seals: BTreeMap<DatasetId, Vec<u8>>,
    catalogs: BTreeMap<(Key, u32), Catalog>,
    /// What was told to be sealed, and when.
    sealed_at: BTreeMap<u64, BTreeSet<DatasetId>>,
    truth: Truth,
    pointers: pointers::Oracle,
    /// Acts since the clock moved.
    moments: u64,
    /// The last restart fetched its dataset.
    from_prefix: bool,
    /// Datasets whose marker's close returned 0, or that were presented.
    promised: BTreeMap<Key, Vec<u8>>,
    removing: BTreeSet<Vec<u8>>,
    /// Datasets that programs have removed, and heard so: the newest of each name.
    removed: BTreeMap<Vec<u8>, Key>,
    /// Names whose removal only a node speaks of that was away.
    excused: BTreeSet<Vec<u8>>,
    /// What the last restart has left in caches and not presented.
    hidden: BTreeSet<Key>,
    next_host: u64,
    pub(crate) gave_up: bool,
    pub(crate) counts: Counts,
    /// Datasets marked as failed.
    pub(crate) failed: BTreeSet<Key>,
    /// Datasets of which bytes went bad while programs ran.
    decayed: BTreeSet<Key>,
    /// How often each of their members did.
    rots: BTreeMap<(Key, Member), u32>,
    /// The lead lets a dataset go for want of room.
    early: bool,
    /// Those that have gone so.
    sacrificed: BTreeSet<DatasetId>,
    /// Datasets of which this lead knows that programs change them. Where `None`, nodes say nothing
    /// of that, and more may leave for want of room.
    overwriting: Option<BTreeSet<DatasetId>>,
    /// Datasets that were promised, and of which bytes went bad beyond what anybody can give back.
    rotten: BTreeSet<Key>,
    /// Datasets that lack what their sets do not give back, be it redundancy data alone: they
    /// protect nothing. The lead knows that once somebody has read it.
    bared: BTreeSet<Key>,
    /// Bytes of each cache, where they are few.
    capacity: Option<u64>,
    /// What caches had no room for, and said.
    shortages: Vec<(String, NoRoom)>,
    /// What leaves them for that in this step.
    going: Vec<room::Going>,
    /// Members that no node had when programs started, and that are not restored yet.
    absent: BTreeMap<DatasetId, BTreeSet<Member>>,
    /// Operators ask for flushes in this seed; for which, of this epoch's.
    wishes: bool,
    wished: BTreeSet<DatasetId>,
    /// When a flush failed last; it is tried again a while later.
    flush_failed: BTreeMap<DatasetId, u64>,
    /// How many of these there were.
    pub(crate) wishes_made: u64,
    /// Restarts of this seed find caches without room for what is rebuilt; on these hosts now.
    cramps: bool,
    cramped: BTreeSet<String>,
    /// Of these, where what is not sealed takes the room.
    littered: BTreeSet<String>,
    /// The lead gave up for that.
    starved: bool,
    /// Bytes that rot between two runs are those of redundancy data.
    bare: bool,
    /// Nothing but death and decay happens in this seed.
    quiet: bool,
    /// Jobs of this seed are held now and then: nodes save what they have, and are purged.
    held: bool,
    trace: VecDeque<String>,
}

impl World {
    pub(crate) fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let mut settings = settings::of(&mut rng);
        // Of its own, so that all else of a seed stays what it was.
        if seed % 10 == 3 {
            settings.cache_bytes = 500 + seed % 4001;
        }
        settings.restart.lazy = seed % 4 == 2;
        settings.restart.lazy_fetch = seed % 8 > 5;
        racks::ask(&mut settings, seed);
        if seed % 3 == 1 {
            settings.advice.seconds = 1 + seed % 20;
        }
        let count = 1 + rng.below(6);
        let trouble = *rng.pick(&[0, 0, 60, 300]).expect("some");
        let hangs = rng.chance(10);
        let curses = [Curse::Begin, Curse::Copy, Curse::Publish];
        let curse = rng.chance(20).then(|| *rng.pick(&curses).expect("some"));
        let mut world = Self {
            trouble_in_restart: rng.chance(30),
            rng,
            settings,
            nodes: Vec::new(),
            graveyard: Vec::new(),
            prefix: Prefix { curse, ..Prefix::default() },
            lead: None,
            epoch: 0,
            now: 1_000_000,
            up: Vec::new(),
            down: Vec::new(),
            shares: Vec::new(),
            found_bad: BTreeMap::new(),
            tasks: VecDeque::new(),
            hangs,
            hang: 0,
            programs: false,
            ready: false,
            start: Start::Restart,
            expected: [None; 2],
            whole: Vec::new(),
            spoilt: BTreeMap::new(),
            calm: true,
            troubled: false,
            trouble,
            smooth: trouble == 0 && !hangs,
            oracle: BTreeSet::new(),
            prepared: BTreeSet::new(),
            ops: BTreeMap::new(),
            finished: BTreeMap::new(),
            votes: BTreeMap::new(),
            seals: BTreeMap::new(),
            catalogs: BTreeMap::new(),
            sealed_at: BTreeMap::new(),
            truth: Truth::new(),
            pointers: pointers::Oracle::default(),
            moments: 0,
            from_prefix: false,
            promised: BTreeMap::new(),
            early: false,
            sacrificed: BTreeSet::new(),
            overwriting: seed.is_multiple_of(3).then(BTreeSet::new),
            removing: BTreeSet::new(),
            removed: BTreeMap::new(),
            excused: BTreeSet::new(),
            hidden: BTreeSet::new(),
            next_host: 0,
            gave_up: false,
            counts: Counts::default(),
            failed: BTreeSet::new(),
            decayed: BTreeSet::new(),
            rots: BTreeMap::new(),
            rotten: BTreeSet::new(),
            bared: BTreeSet::new(),
            capacity: Self::capacity(seed),
            shortages: Vec::new(),
            going: Vec::new(),
            absent: BTreeMap::new(),
            wishes: seed % 5 == 2,
            wished: BTreeSet::new(),
            flush_failed: BTreeMap::new(),
            wishes_made: 0,
            cramps: seed % 6 == 1,
            cramped: BTreeSet::new(),
            littered: BTreeSet::new(),
            starved: false,
            bare: seed % 4 == 3,
            quiet: trouble == 0,
            held: seed % 7 == 6,
            trace: VecDeque::new(),
        };
        for _ in 0..count {
            world.add_node();
        }
        world
    }

    fn add_node(&mut self) {
        self.next_host += 1;
        self.nodes.push(Daemon::new(&format!("n{}", self.next_host), self.next_host));
    }

    fn say(&mut self, text: impl FnOnce() -> String) {
        static TRACED: LazyLock<bool> = LazyLock::new(|| std::env::var_os("SIMULATION_TRACE").is_some());
        if *TRACED {
            self.trace.push_back(text());
            if self.trace.len() > 4000 {
                self.trace.pop_front();
            }
        }
    }

    /// The last things that happened, when a seed is run again with `SIMULATION_TRACE`.
    pub(crate) fn trace(&self) -> impl Iterator<Item = &String> {
        self.trace.iter()
    }

    /// Starts coordinators on the nodes, in any order of ranks.
    pub(crate) fn start(&mut self, start: Start) {
        assert!(self.lead.is_none());
        for at in (1..self.nodes.len()).rev() {
            let other = self.rng.below(at + 1);
            self.nodes.swap(at, other);
        }
        let highest = self.nodes.iter().map(|node| node.epoch.0).max().unwrap_or(0);
        self.epoch = self.epoch.max(highest) + 1;
        let epoch = Epoch(self.epoch);
        self.say(|| format!("=== {start:?} {epoch:?}"));
        for node in &mut self.nodes {
            node.attach(epoch);
            node.unhurried = self.settings.sealing.background;
            node.lazy = self.settings.restart.lazy;
            if start == Start::Restart {
                node.forget_programs();
            }
        }
        if start == Start::Restart {
            self.programs = false;
            self.cramp();
            self.nodes.iter_mut().for_each(|node| node.pointers.begins());
            self.prefix.adopt(&self.truth);
            self.whole = observer::found(&self.nodes, &self.prefix, &self.settings).collect();
            let told = observer::found(&self.as_told(), &self.prefix, &self.settings).next();
            self.expected = [self.whole.first().copied(), told];
            self.spoilt.clear();
        }
        // What was fetched by a restart that did not come to its end is in the caches now.
        self.from_prefix &= !self.ready;
        self.up = self.nodes.iter().map(|_| VecDeque::new()).collect();
        self.down = self.nodes.iter().map(|_| VecDeque::new()).collect();
        self.start = start;
        self.ready = false;
        self.absent.clear();
        self.troubled = self.injects() && self.trouble > 0;
        self.calm = !self.troubled;
        self.lead = Some(Lead::new());
        self.feed(Input::Now(self.now));
        let hosts = self.nodes.iter().map(|node| node.host.clone()).collect();
        let settings = Box::new(self.settings.clone());
        self.overwriting.iter_mut().for_each(BTreeSet::clear);
        self.feed(Input::Begin { epoch, hosts, groups: self.groups(), start, settings });
    }

    /// All coordinators die: nothing in flight arrives, jobs stop where they are.
    pub(crate) fn kill(&mut self) {
        self.say(|| "=== killed".to_owned());
        self.lead = None;
        self.up.clear();
        self.down.clear();
        self.shares.clear();
        self.found_bad.clear();
        self.votes.clear();
        self.seals.clear();
        if let Some((_, task)) = self.tasks.pop_front().filter(|_| self.rng.chance(50)) {
            self.prefix.carry_out(task, &self.truth);
        }
        self.tasks.clear();
        self.wished.clear();
        self.flush_failed.clear();
        self.prefix.tried.clear();
        self.prefix.tried_at.clear();
        self.prefix.to_mark.clear();
        self.hang = 0;
        // What it gave up for is for the next ones to find.
        self.starved = false;
    }

    fn feed(&mut self, input: Input) {
        self.say(|| format!("> {input:?}"));
        let Some(lead) = &mut self.lead else { return };
        self.early = false;
        for output in lead.step(input) {
            self.say(|| format!("    < {output:?}"));
            self.output(output);
        }
        self.check_going();
    }

    fn output(&mut self, output: Output) {
        match output {
            Output::Command(nodes, command) => {
                for node in nodes {
                    self.command(node, command.clone());
                }
            }
            Output::Start(id, job) => {
                let failing = self.injects() && self.rng.rarely(self.trouble * 3);
                let nodes: BTreeSet<NodeRank> = job.nodes().into_iter().collect();
                for node in nodes {
                    let fails = failing && self.rng.chance(60);
                    self.shares.push(Share { id, job: job.clone(), node: node.0 as usize, fails });
                }
            }
            // Some are past the last point where they look.
            Output::Abort(job, nodes, _) => {
                for share in self.shares.iter_mut().filter(|share| share.id == job) {
                    share.fails |= nodes.iter().any(|n| n.0 as usize == share.node) && self.rng.chance(70);
                }
            }
            Output::Pfs(task) => {
                self.flush_begins(&task);
                self.tasks.push_back((self.now, task));
            }
            Output::Ready(current) => self.got_ready(current.map(|(_, name)| name)),
            Output::GiveUp(lack, reason) => {
                // Also where what was injected has hit each try.
                let hangs = self.hangs || self.troubled;
                assert!(if lack == Lack::Room { !self.cramped.is_empty() } else { hangs }, "{reason}");
                self.starved = true;
            }
            Output::Sealed(_) => {}
            Output::Halt(reason) => unreachable!("no halt was asked for: {reason}"),
            Output::Note(_, text) => {
                assert!(!text.contains("awaits"), "the lead met what it does not await: {text}");
                self.gave_up |= text.contains("given up");
                self.spoilt(&text);
                if text.contains("leaves the caches early") {
                    self.early = true;
                    self.going(&text);
                }
            }
        }
    }

    fn command(&mut self, node: NodeRank, command: Command) {
        match &command {
            Command::DirFinish { results } => self.finished(results),
            Command::Commit(catalog) => self.committing(catalog),
            Command::Revise(revision) => {
                let before = self.catalogs.get(&((revision.epoch, revision.id), revision.of));
                let catalog = before.and_then(|catalog| revision.applied_to(catalog));
                self.committing(&catalog.expect("it follows one that was committed"));
            }
            Command::Evict(id) => self.evicting(*id),
            Command::MarkAbsent { id, members } if node.0 == 0 => self.marked_absent(*id, members),
            Command::Freeze { id, name, .. } => {
                self.seals.insert(*id, name.clone());
                self.freezing(name);
            }
            Command::Drop { id, reason } if node.0 == 0 => self.check_drop(*id, reason),
            Command::MarkersEnd { name, outcome: MarkerOutcome::Refused(reason), .. } => {
                self.check_refusal(name, reason);
            }
            Command::AllFrozen(id) => {
                // One of an earlier epoch that is complete somewhere is decided; others may have to
                // get it yet.
                let here = |node: &Daemon| node.datasets.contains_key(id);
                let decided = |node: &Daemon| {
                    node.datasets.get(id).is_some_and(|dataset| dataset.state == HeldState::Complete)
                };
                let may = self.nodes.iter().all(here) || self.nodes.iter().any(decided);
                assert!(may, "{id} is not frozen everywhere");
            }
            // Also before a program hears of it: its predecessor may go from now on.
            Command::Sealed(id) => {
                if self.wishes && node.0 == 0 {
                    self.wish(*id);
                }
                self.sealed_at.entry(self.now).or_default().insert(*id);
                let key = |dataset: &Dataset| ((dataset.epoch, *id), dataset.name.clone());
                let sealed = self.nodes.iter().find_map(|node| node.datasets.get(id).map(key));
                // One that had begun to leave for want of room may come back without what is gone.
                let whole = |key: Key| !self.sacrificed.contains(&key.1) || self.can_give(key);
                let sealed = sealed.filter(|(key, _)| self.may_promise(*key) && whole(*key));
                self.promised.extend(sealed);
            }
            Command::MarkFailed { id, .. } => self.marked_failed(*id),
            Command::FlushFailed { id, given_up: false, .. } => drop(self.flush_failed.insert(*id, self.now)),
            Command::Save(_) => self.counts.joined += 1,
            Command::DirPrepare { .. } => {
                self.prepared = self.oracle.clone();
                self.votes.clear();
            }
            _ => {}
        }
        self.down[node.0 as usize].push_back(command);
    }

    fn injects(&self) -> bool {
        self.ready || self.trouble_in_restart || self.start == Start::Attach
    }

    /// One step; false when there was nothing to do but to let time pass.
    pub(crate) fn step(&mut self, acts: bool) -> bool {
        if std::mem::take(&mut self.starved) {
            self.room_is_made();
            return true;
        }
        let mut choices: Vec<(u8, usize)> = Vec::new();
        choices.extend((0..self.up.len()).filter(|at| !self.up[*at].is_empty()).map(|at| (0, at)));
        choices.extend((0..self.down.len()).filter(|at| !self.down[*at].is_empty()).map(|at| (1, at)));
        choices.extend((0..self.shares.len()).map(|at| (2, at)));
        let hanging = self.hangs(acts);
        choices.extend(self.tasks.front().filter(|_| !hanging).map(|_| (3, 0)));
        // The halt file is looked at for ever.
        let looks = self.tasks.iter().all(|(_, task)| matches!(task, PfsTask::Halt { .. }));
        let busy = choices.len() > usize::from(looks && !self.tasks.is_empty() && !hanging);
        if acts && self.programs {
            choices.push((4, 0));
        }
        if !busy || self.rng.chance(2) {
            choices.push((5, 0));
        }
        let Some(&(kind, at)) = self.rng.pick(&choices) else { return false };
        match kind {
            0 => {
                let event = self.up[at].pop_front().expect("not empty");
                self.overwritten(&event);
                self.feed(Input::Daemon(rank(at), event));
            }
            1 => self.deliver(at),
            2 => {
                let share = self.shares.swap_remove(at);
                let result = self.share(&share);
                self.feed(Input::Job(rank(share.node), share.id, result));
            }
            3 => {
                let (_, task) = self.tasks.pop_front().expect("not empty");
                self.from_prefix |= matches!(task, PfsTask::ReadLoose(_));
                let fails = self.injects() && self.rng.rarely(self.trouble * 3);
                // The survey decides what a restart may expect, it fails only while programs run.
                let outcome = if fails && (self.ready || task != PfsTask::Survey) {
                    self.prefix.to_mark.clear();
                    failed(task, PfsCause::Unavailable, "injected")
                } else {
                    self.prefix.carry_out(task, &self.truth)
                };
                self.feed(Input::Pfs(outcome));
            }
            4 => self.act(),
            _ => {
                self.moments = 0;
                self.now += if hanging { 30_000_000 } else { 500_000 };
                self.feed(Input::Now(self.now));
            }
        }
        self.check_answers();
        self.check_pointer_answers();
        if !busy {
            self.check_flushes();
            self.check_held_up();
        }
        busy
    }

    fn deliver(&mut self, at: usize) {
        let command = self.down[at].pop_front().expect("not empty");
        if let Command::MarkersEnd { outcome: MarkerOutcome::NotSealed(id), .. } = &command {
            let counts = |node: &Daemon| node.datasets.contains_key(id);
            assert!(!self.nodes.iter().any(counts), "{id}: a marker that is set now fails with it");
        }
        let full = match &command {
            Command::CopyFromPrefix { file, .. } => {
                let key = self.nodes[at].key(file.id);
                let content = key.and_then(|key| self.prefix.read(key, &file.path));
                content.and_then(|content| self.no_room(at, content))
            }
            _ => None,
        };
        if let (Some(full), Command::CopyFromPrefix { request, .. }) = (full, &command) {
            let failure = FetchFailure { reason: "full".to_owned(), corrupt: false, full: Some(full) };
            let (request, result) = (*request, Err(failure));
            return self.up[at].push_back(Event::CopiedFromPrefix { request, result });
        }
        match &command {
            Command::RemoveUnsealed => {
                let names = u64::from(self.remove_unsealed(at));
                self.say(|| format!("  n{at} {command:?}: {names}"));
                return self.up[at].push_back(Event::UnsealedRemoved { names });
            }
            Command::FetchMember { id, .. } if self.is_littered(at) => {
                let full = Some(NoRoom::default());
                let failure = FetchFailure { reason: "littered".to_owned(), corrupt: false, full };
                let (id, result) = (*id, Err(failure));
                return self.up[at].push_back(Event::FetchedMember { id, result });
            }
            _ => {}
        }
        if let Command::Advise(advice) = &command {
            self.check_advice(&self.nodes[at], advice);
        }
        let trouble = Trouble(if self.injects() { self.trouble } else { 0 });
        self.say(|| format!("  n{at} {command:?}"));
        self.nodes[at].pointers.moment = self.moment();
        let events = self.nodes[at].command(command, &mut self.prefix, &mut self.rng, trouble);
        for event in &events {
            if let Event::DirPrepared { votes, .. } = event {
                self.voted(at, votes);
            }
        }
        self.up[at].extend(events);
    }

    fn send_up(&mut self, at: usize, event: Event) {
        if self.lead.is_some() {
            self.up[at].push_back(event);
        }
    }
}

fn rank(at: usize) -> NodeRank {
    NodeRank(u32::try_from(at).expect("few nodes"))
}

//! The world of one seed: daemons, links, jobs, prefix, programs, and a lead that may die at any instant. One step is
//! one delivery, one share of a job, one PFS task, one program's act or a tick of the clock.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use scrfs::control::{Command, DirOp, Event, HeldState, SealedFile, Settings, Start};
use scrfs::dataset::{Catalog, EntryKind, Scheme};
use scrfs::ids::{DatasetId, Epoch, Member, NodeRank, RequestId};
use scrfs::path::RelPath;
use scrfs_coordinator::job::{Job, JobId, JobOutput, JobResult, SetMember};
use scrfs_coordinator::lead::{Input, Lead, Output};
use scrfs_coordinator::pfs::{PfsOutcome, PfsTask};

use crate::daemon::{
    Answered, Daemon, Dataset, EEXIST, MemberData, Trouble, op_paths, rename, size_of, top_of,
};
use crate::observer::{self, Key, Truth};
use crate::prefix::Prefix;
use crate::rng::Rng;

/// One node's share of a job.
#[derive(Debug)]
struct Share {
    id: JobId,
    job: Job,
    node: usize,
    fails: bool,
}

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
    tasks: VecDeque<PfsTask>,
    /// Programs run.
    pub(crate) programs: bool,
    /// The start of this epoch is over.
    pub(crate) ready: bool,
    start: Start,
    expected: Option<Key>,
    /// Nothing is made to fail in this start.
    calm: bool,
    /// Per 10,000.
    pub(crate) trouble: u64,
    /// Also while a restart looks for its dataset.
    pub(crate) trouble_in_restart: bool,
    /// Directories as the order of operations has them.
    oracle: BTreeSet<RelPath>,
    /// The same when the last round was prepared: an eviction may come between.
    prepared: BTreeSet<RelPath>,
    ops: BTreeMap<RequestId, DirOp>,
    finished: BTreeMap<RequestId, i32>,
    catalogs: BTreeMap<(Key, u32), Catalog>,
    truth: Truth,
    /// Datasets whose marker's close returned 0, or that were presented.
    promised: BTreeMap<Key, Vec<u8>>,
    removing: BTreeSet<Vec<u8>>,
    next_host: u64,
    pub(crate) gave_up: bool,
    pub(crate) seals: u64,
    pub(crate) rebuilt: u64,
    trace: VecDeque<String>,
}

fn settings(rng: &mut Rng) -> Settings {
    Settings {
        prefix: b"/pfs".to_vec(),
        user: "u".to_owned(),
        job_id: "j".to_owned(),
        coordinator_wait_ms: 10_000,
        seal_timeout_ms: 30_000,
        cache_size: *rng.pick(&[1, 2, 2, 3]).expect("some"),
        scheme: *rng.pick(&[Scheme::Xor, Scheme::Xor, Scheme::Partner, Scheme::Single]).expect("some"),
        set_size: *rng.pick(&[2, 3, 8]).expect("some"),
        hop_distance: 1,
        flush_every: *rng.pick(&[0, 1, 2, 3]).expect("some"),
        fetch: rng.chance(90),
        distribute: rng.chance(92),
        list_max: 100,
        block_bytes: 4096,
    }
}

impl World {
    pub(crate) fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let settings = settings(&mut rng);
        let count = 1 + rng.below(6);
        let trouble = *rng.pick(&[0, 0, 60, 300]).expect("some");
        let mut world = Self {
            trouble_in_restart: rng.chance(30),
            rng,
            settings,
            nodes: Vec::new(),
            graveyard: Vec::new(),
            prefix: Prefix::default(),
            lead: None,
            epoch: 0,
            now: 1_000_000,
            up: Vec::new(),
            down: Vec::new(),
            shares: Vec::new(),
            tasks: VecDeque::new(),
            programs: false,
            ready: false,
            start: Start::Restart,
            expected: None,
            calm: true,
            trouble,
            oracle: BTreeSet::new(),
            prepared: BTreeSet::new(),
            ops: BTreeMap::new(),
            finished: BTreeMap::new(),
            catalogs: BTreeMap::new(),
            truth: Truth::new(),
            promised: BTreeMap::new(),
            removing: BTreeSet::new(),
            next_host: 0,
            gave_up: false,
            seals: 0,
            rebuilt: 0,
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
        if std::env::var_os("SIMULATION_TRACE").is_some() {
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
            if start == Start::Restart {
                node.forget_programs();
            }
        }
        if start == Start::Restart {
            self.programs = false;
            let Settings { distribute, fetch, .. } = self.settings;
            self.expected = observer::expected(&self.nodes, &self.prefix, distribute, fetch);
        }
        self.up = self.nodes.iter().map(|_| VecDeque::new()).collect();
        self.down = self.nodes.iter().map(|_| VecDeque::new()).collect();
        self.start = start;
        self.ready = false;
        self.calm = !self.injects() || self.trouble == 0;
        self.lead = Some(Lead::new());
        self.feed(Input::Now(self.now));
        let hosts = self.nodes.iter().map(|node| node.host.clone()).collect();
        self.feed(Input::Begin { epoch, hosts, start, settings: self.settings.clone() });
    }

    /// All coordinators die: nothing in flight arrives, jobs stop where they are.
    pub(crate) fn kill(&mut self) {
        self.say(|| "=== killed".to_owned());
        self.lead = None;
        self.up.clear();
        self.down.clear();
        self.shares.clear();
        if let Some(task) = self.tasks.pop_front().filter(|_| self.rng.chance(50)) {
            self.prefix.carry_out(task);
        }
        self.tasks.clear();
    }

    /// Loses nodes between two runs. The newest promised dataset must be there before, and after the loss of any node
    /// that its scheme promises to survive.
    pub(crate) fn lose_nodes(&mut self) {
        assert!(self.lead.is_none());
        let promise = self.newest_promise();
        if let Some(key) = promise {
            assert!(self.can_give(key), "the newest promised dataset {key:?} is gone without a loss");
        }
        if self.rng.chance(10) && !self.graveyard.is_empty() {
            let at = self.rng.below(self.graveyard.len());
            let back = self.graveyard.remove(at);
            if self.nodes.iter().all(|node| node.host != back.host) {
                self.say(|| format!("=== {} comes back", back.host));
                self.nodes.push(back);
            }
        }
        let losses = *self.rng.pick(&[0, 1, 1, 1, 1, 2, 3]).expect("some");
        for _ in 0..losses.min(self.nodes.len()) {
            self.lose_one(if losses == 1 { promise } else { None });
        }
        if self.rng.chance(10) {
            let all: Vec<Key> = self.prefix.datasets.keys().copied().collect();
            if let Some(key) = self.rng.pick(&all) {
                self.prefix.datasets.get_mut(key).expect("there").bad = true;
                self.promised.remove(key);
            }
        }
        if self.nodes.is_empty() {
            self.add_node();
        }
    }

    fn lose_one(&mut self, promise: Option<Key>) {
        let at = self.rng.below(self.nodes.len());
        let host = self.nodes[at].host.clone();
        self.say(|| format!("=== loses {host}"));
        let survives = promise.is_some_and(|key| {
            let layout = observer::catalog(&self.nodes, key).map(|catalog| &catalog.layout);
            // Members that an earlier loss took and that are not rebuilt yet do not count as protected.
            let whole = layout.is_some_and(|layout| {
                (0..).map(Member).zip(&layout.members).all(|(member, place)| {
                    let holder = self.nodes.iter().find(|node| node.host == place.host);
                    let data = holder.and_then(|node| node.datasets.get(&key.1)?.members.get(&member));
                    data.is_some_and(|data| !data.bad)
                })
            });
            let hosts = layout.map(|layout| scrfs::status::survives(layout, false)).unwrap_or_default();
            whole
                && self.settings.distribute
                && hosts.iter().all(|(name, survives)| *name != host || *survives)
        });
        let dead = match self.rng.below(4) {
            // Some bytes rot.
            0 => {
                for dataset in self.nodes[at].datasets.values_mut() {
                    dataset.members.values_mut().for_each(|data| data.bad = true);
                }
                None
            }
            // It boots again, empty.
            1 => {
                let origin = self.next_host + 1000;
                self.next_host += 1;
                Some(std::mem::replace(&mut self.nodes[at], Daemon::new(&host, origin)))
            }
            // A spare takes its place.
            2 => {
                self.add_node();
                Some(self.nodes.swap_remove(at))
            }
            _ => Some(self.nodes.swap_remove(at)),
        };
        self.graveyard.extend(dead);
        if self.nodes.is_empty() {
            self.add_node();
        }
        if let Some(key) = promise.filter(|_| survives) {
            assert!(self.can_give(key), "dataset {key:?} did not survive the loss of {host}");
        }
    }

    fn can_give(&self, key: Key) -> bool {
        let prefix = observer::in_prefix(&self.prefix, key) && self.settings.fetch;
        // Without SCR_DISTRIBUTE the caches promise nothing.
        observer::in_caches(&self.nodes, key) || prefix || !self.settings.distribute
    }

    fn newest_promise(&self) -> Option<Key> {
        // After a loss beyond the promise nothing is promised until the next restart has found something.
        let (key, name) = self.promised.last_key_value().filter(|_| self.ready || self.programs)?;
        (!self.removing.contains(name)).then_some(*key)
    }

    fn feed(&mut self, input: Input) {
        self.say(|| format!("> {input:?}"));
        let Some(lead) = &mut self.lead else { return };
        for output in lead.step(input) {
            self.say(|| format!("    < {output:?}"));
            self.output(output);
        }
    }

    fn output(&mut self, output: Output) {
        match output {
            Output::Command(node, command) => {
                match &command {
                    Command::DirFinish { results } => self.finished(results),
                    Command::Commit(catalog) => self.committing(catalog),
                    Command::Evict(id) => self.evicting(*id),
                    // Also before a program hears of it: its predecessor may go from now on.
                    Command::Sealed(id) => {
                        let key = |dataset: &Dataset| ((dataset.epoch, *id), dataset.name.clone());
                        let sealed = self.nodes.iter().find_map(|node| node.datasets.get(id).map(key));
                        self.promised.extend(sealed);
                    }
                    Command::DirPrepare { .. } => self.prepared = self.oracle.clone(),
                    _ => {}
                }
                self.down[node.0 as usize].push_back(command);
            }
            Output::Start(id, job) => {
                let failing = self.injects() && self.rng.rarely(self.trouble * 3);
                let nodes: BTreeSet<NodeRank> = job.nodes().into_iter().collect();
                for node in nodes {
                    let fails = failing && self.rng.chance(60);
                    self.shares.push(Share { id, job: job.clone(), node: node.0 as usize, fails });
                }
            }
            Output::Pfs(task) => self.tasks.push_back(task),
            Output::Ready(name) => self.got_ready(name),
            Output::Note(text) => {
                assert!(!text.contains("awaits"), "the lead met what it does not await: {text}");
                self.gave_up |= text.contains("given up");
            }
        }
    }

    fn injects(&self) -> bool {
        self.ready || self.trouble_in_restart || self.start == Start::Attach
    }

    fn got_ready(&mut self, name: Option<Vec<u8>>) {
        assert!(!self.ready, "ready once");
        self.ready = true;
        self.programs = true;
        if self.start == Start::Attach {
            // An eviction that was decided and never reached a node did not happen.
            // What all have recorded is promised from now on, its predecessor may go.
            let everywhere = |id: &DatasetId| {
                let complete = |node: &Daemon| node.datasets.get(id).is_some_and(|d| d.listed);
                self.nodes.iter().all(complete)
            };
            let whole = self.nodes[0].datasets.iter().filter(|(id, _)| everywhere(id));
            self.promised.extend(whole.map(|(id, dataset)| ((dataset.epoch, *id), dataset.name.clone())));
            let evicts = self.down.iter().flatten().filter_map(|command| match command {
                Command::Evict(id) => Some(*id),
                _ => None,
            });
            let evicts: BTreeSet<DatasetId> = evicts.collect();
            for node in &self.nodes {
                let listed = |top: &[u8]| node.listed(top).is_some_and(|(id, _)| !evicts.contains(&id));
                self.oracle.extend(node.directories.iter().filter(|dir| listed(top_of(dir))).cloned());
            }
            return;
        }
        self.promised.clear();
        self.removing.clear();
        let listed: Vec<(DatasetId, Dataset)> = self.nodes[0]
            .datasets
            .iter()
            .filter(|(_, dataset)| dataset.listed)
            .map(|(id, dataset)| (*id, dataset.clone()))
            .collect();
        self.oracle = self.nodes[0].directories.clone();
        for node in &self.nodes {
            assert_eq!(node.directories, self.oracle, "directories after a restart");
            assert!(node.files.is_empty(), "unsealed files after a restart");
            let here: Vec<DatasetId> =
                node.datasets.iter().filter(|(_, d)| d.listed).map(|(id, _)| *id).collect();
            assert_eq!(here, listed.iter().map(|(id, _)| *id).collect::<Vec<_>>(), "listed on {}", node.host);
        }
        for (id, _) in &listed {
            observer::readable(&self.nodes, &self.truth, *id);
        }
        let current = listed.iter().map(|(id, dataset)| (dataset.epoch, *id)).max();
        let current_name = listed.iter().find(|(id, _)| Some(*id) == current.map(|key| key.1));
        assert_eq!(name, current_name.map(|(_, dataset)| dataset.name.clone()), "ready names current");
        if self.calm {
            assert_eq!(current, self.expected, "the newest that can be recovered");
        }
        self.promised.extend(current.into_iter().zip(name));
        self.rebuilt += u64::from(current.is_some());
    }

    fn finished(&mut self, results: &[(RequestId, i32)]) {
        for &(id, errno) in results {
            match self.finished.insert(id, errno) {
                Some(0) => assert_eq!(errno, 0, "a request that took effect fails"),
                // It failed, its program never heard of it and asked the next coordinators again.
                _ if errno == 0 => self.took_effect(id),
                _ if errno == EEXIST => {
                    if let Some(DirOp::Make { path, .. }) = self.ops.get(&id) {
                        let exists = self.oracle.contains(path) || self.prepared.contains(path);
                        assert!(exists, "EEXIST, but {path} does not exist");
                    }
                }
                _ => {}
            }
        }
    }

    fn took_effect(&mut self, id: RequestId) {
        match self.ops.get(&id).expect("a known request") {
            DirOp::Make { path, .. } => {
                assert!(self.oracle.insert(path.clone()) || !self.ready, "{path} was made twice");
            }
            DirOp::Remove { path } => {
                let exists = self.oracle.contains(path) || self.prepared.contains(path);
                assert!(exists || !self.ready, "{path} was removed twice");
                self.oracle.retain(|dir| dir.strip(path).is_none());
            }
            DirOp::Rename { from, to, .. } => {
                assert!(self.oracle.contains(from) || !self.ready, "{from} was renamed twice");
                rename(&mut self.oracle, from, to);
            }
        }
    }

    /// With a listed dataset its directories go.
    fn evicting(&mut self, id: DatasetId) {
        let listed =
            self.nodes.iter().filter_map(|node| node.datasets.get(&id)).find(|dataset| dataset.listed);
        if let Some(dataset) = listed.filter(|_| self.ready) {
            let top = RelPath::new(dataset.name.clone()).expect("a name");
            self.oracle.retain(|dir| dir.strip(&top).is_none());
        }
    }

    fn committing(&mut self, catalog: &Catalog) {
        let key = (catalog.epoch, catalog.id);
        let stored = self.catalogs.entry((key, catalog.revision)).or_insert_with(|| catalog.clone());
        assert_eq!(stored, catalog, "two catalogs under one id and revision");
        if self.start == Start::Attach && self.truth.contains_key(&key) {
            // It was checked when it was sealed; it may have lost members since.
            return;
        }
        let mut sealed = BTreeMap::new();
        for entry in &catalog.entries {
            let EntryKind::File(copy) = &entry.kind else { continue };
            let host = &catalog.layout.members[copy.member.0 as usize].host;
            let holder = self.nodes.iter().find(|node| node.host == *host).expect("takes part");
            let data = &holder.datasets[&catalog.id].members[&copy.member];
            let content = data.files[&entry.path];
            assert_eq!((size_of(content), data.bad), (copy.size, false), "committed before it was recorded");
            sealed.insert(entry.path.clone(), content);
        }
        if let Some(truth) = self.truth.get(&key) {
            assert_eq!(*truth, sealed, "other bytes under the id of {key:?}");
        } else {
            self.truth.insert(key, sealed);
            self.seals += 1;
        }
    }

    /// One step; false when there was nothing to do but to let time pass.
    pub(crate) fn step(&mut self, acts: bool) -> bool {
        let mut choices: Vec<(u8, usize)> = Vec::new();
        choices.extend((0..self.up.len()).filter(|at| !self.up[*at].is_empty()).map(|at| (0, at)));
        choices.extend((0..self.down.len()).filter(|at| !self.down[*at].is_empty()).map(|at| (1, at)));
        choices.extend((0..self.shares.len()).map(|at| (2, at)));
        choices.extend(self.tasks.front().map(|_| (3, 0)));
        let busy = !choices.is_empty();
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
                self.feed(Input::Daemon(rank(at), event));
            }
            1 => self.deliver(at),
            2 => {
                let share = self.shares.swap_remove(at);
                let result = self.share(&share);
                self.feed(Input::Job(rank(share.node), share.id, result));
            }
            3 => {
                let task = self.tasks.pop_front().expect("not empty");
                let fails = self.injects() && self.rng.rarely(self.trouble * 3);
                // The survey decides what a restart may expect, it fails only while programs run.
                let outcome = if fails && (self.ready || task != PfsTask::Survey) {
                    PfsOutcome::Failed(task, "injected".to_owned())
                } else {
                    self.prefix.carry_out(task)
                };
                self.feed(Input::Pfs(outcome));
            }
            4 => self.act(),
            _ => {
                self.now += 500_000;
                self.feed(Input::Now(self.now));
            }
        }
        self.check_answers();
        busy
    }

    fn deliver(&mut self, at: usize) {
        let command = self.down[at].pop_front().expect("not empty");
        let trouble = Trouble(if self.injects() { self.trouble } else { 0 });
        self.say(|| format!("  n{at} {command:?}"));
        let events = self.nodes[at].command(command, &mut self.prefix, &mut self.rng, trouble);
        self.up[at].extend(events);
    }

    fn share(&mut self, share: &Share) -> JobResult {
        if share.fails {
            return Err("injected".to_owned());
        }
        match &share.job {
            Job::Encode { id, paths, set, .. } => {
                for (member, paths) in set.iter().zip(paths) {
                    let frozen = self.nodes[member.node.0 as usize].datasets.get(id);
                    let frozen =
                        frozen.and_then(|dataset| dataset.frozen.as_ref()).ok_or("a peer is gone")?;
                    let files: Vec<&RelPath> = frozen.1.files.keys().collect();
                    let sizes: Vec<u64> = frozen.1.files.values().map(|content| size_of(*content)).collect();
                    assert_eq!((files, &sizes), (paths.iter().collect(), &member.sizes), "what was frozen");
                }
                let part = self.nodes[share.node].finish_member(*id)?;
                Ok(JobOutput::Part(Box::new(part)))
            }
            Job::Rebuild { catalog, set, lost } => {
                let copy = &set[(*lost as usize + 1) % set.len()];
                let lost = &set[*lost as usize];
                if share.node != lost.node.0 as usize {
                    return Ok(JobOutput::Done);
                }
                let partner = catalog.layout.scheme == Scheme::Partner;
                let gives = |m: &&SetMember| {
                    if partner { m.member == copy.member } else { m.member != lost.member }
                };
                for member in set.iter().filter(gives) {
                    let peer = self.nodes[member.node.0 as usize].datasets.get(&catalog.id);
                    let data = peer.and_then(|dataset| dataset.members.get(&member.member));
                    data.filter(|data| !data.bad).ok_or("a member is bad")?;
                }
                let truth = &self.truth[&(catalog.epoch, catalog.id)];
                let files = catalog.files_of(lost.member).map(|(entry, _)| entry.path.clone());
                let files = files.map(|path| (path.clone(), truth[&path])).collect();
                let dataset = self.nodes[share.node].datasets.entry(catalog.id).or_insert_with(|| Dataset {
                    epoch: catalog.epoch,
                    name: catalog.name.clone(),
                    state: HeldState::Recorded,
                    frozen: None,
                    members: BTreeMap::new(),
                    catalog: Some((**catalog).clone()),
                    flushed: false,
                    listed: false,
                });
                dataset.members.insert(lost.member, MemberData { files, bad: false });
                let entries = Vec::new();
                let part = scrfs::control::MemberPart { member: lost.member, entries };
                Ok(JobOutput::Part(Box::new(part)))
            }
            Job::Send { file, from, .. } => {
                let held = self.nodes[from.0 as usize].datasets.get(&file.id).ok_or("gone")?;
                let has = |data: &MemberData| !data.bad && data.files.contains_key(&file.path);
                let good = held.members.values().any(has);
                if good { Ok(JobOutput::Done) } else { Err("no such file".to_owned()) }
            }
        }
    }

    fn check_answers(&mut self) {
        for at in 0..self.nodes.len() {
            for answer in std::mem::take(&mut self.nodes[at].answered) {
                self.check_answer(at, &answer);
            }
        }
    }

    fn check_answer(&mut self, at: usize, answer: &Answered) {
        match answer {
            Answered::Directory(_, DirOp::Make { path, .. }, 0) => {
                for node in &self.nodes {
                    assert!(node.directories.contains(path), "{path} is not on {}", node.host);
                }
            }
            Answered::Directory(_, DirOp::Remove { path }, 0) => {
                for node in &self.nodes {
                    assert!(!node.directories.contains(path), "{path} is still on {}", node.host);
                }
            }
            Answered::Marker(name, Some(id)) => {
                let epoch = self.nodes[at].datasets[id].epoch;
                for node in &self.nodes {
                    let Some(dataset) = node.datasets.get(id) else {
                        // An old one whose marker was set again; it has made room meanwhile.
                        let newer = node.datasets.iter().any(|(other, d)| other > id && d.listed);
                        assert!(newer, "{id} is not on {}", node.host);
                        continue;
                    };
                    assert_eq!(
                        (&dataset.name, dataset.state),
                        (name, HeldState::Complete),
                        "on {}",
                        node.host
                    );
                }
                self.promised.insert((epoch, *id), name.clone());
            }
            _ => {}
        }
    }

    /// A program does something on some node.
    fn act(&mut self) {
        let at = self.rng.below(self.nodes.len());
        match self.rng.below(20) {
            0..=4 => {
                let path = self.some_path();
                self.directory(at, DirOp::Make { path, mode: 0o755, uid: 1, gid: 1 });
            }
            5 => {
                let path = self.some_path();
                self.directory(at, DirOp::Remove { path });
            }
            6 => {
                let (from, to) = (self.some_path(), self.some_path());
                self.directory(at, DirOp::Rename { from, to, no_replace: true, exchange: false });
            }
            7..=14 => self.write(at),
            15..=17 => {
                let name = self.some_name();
                let path = RelPath::new(name.clone()).expect("a name");
                let node = &mut self.nodes[at];
                if node.directories.contains(&path) && node.markers.insert(name.clone()) && node.serving {
                    self.send_up(at, Event::Marker { name });
                }
            }
            18 => self.open(at),
            _ => {
                // rm -rf of a whole dataset, seldom.
                let name = self.some_name();
                let listed = self.nodes[at].listed(&name).map(|(id, _)| id);
                if let Some(id) = listed.filter(|_| self.rng.chance(40)) {
                    self.nodes[at].emptied.insert(id);
                    self.removing.insert(name.clone());
                    let path = RelPath::new(name).expect("a name");
                    self.directory(at, DirOp::Remove { path });
                }
            }
        }
    }

    fn some_name(&mut self) -> Vec<u8> {
        vec![*self.rng.pick(b"abcdef").expect("some")]
    }

    fn some_path(&mut self) -> RelPath {
        let mut bytes = self.some_name();
        if self.rng.chance(40) {
            bytes.extend_from_slice(self.rng.pick(&[b"/x", b"/y"]).expect("some").as_slice());
        }
        RelPath::new(bytes).expect("a path")
    }

    fn send_up(&mut self, at: usize, event: Event) {
        if self.lead.is_some() {
            self.up[at].push_back(event);
        }
    }

    fn directory(&mut self, at: usize, op: DirOp) {
        let node = &mut self.nodes[at];
        if node.waiting.len() >= 3 {
            return;
        }
        // In a frozen dataset the mount makes these wait.
        let below = |path: &RelPath| path.names().count() > 1 && node.is_frozen(top_of(path));
        if op_paths(&op).into_iter().any(below) {
            return;
        }
        node.serial += 1;
        let request = RequestId { origin: node.origin, serial: node.serial };
        node.waiting.insert(request, op.clone());
        self.ops.insert(request, op.clone());
        if node.serving {
            self.send_up(at, Event::DirRequest { request, op: op.clone() });
            if self.rng.chance(3) {
                self.send_up(at, Event::DirRequest { request, op });
            }
        }
    }

    fn write(&mut self, at: usize) {
        let node = &self.nodes[at];
        let free = |dir: &&RelPath| {
            let top = top_of(dir);
            node.listed(top).is_none() && !node.is_frozen(top) && !node.is_held(dir)
        };
        let dirs: Vec<&RelPath> = node.directories.iter().filter(free).collect();
        let Some(&dir) = self.rng.pick(&dirs) else { return };
        let shared = self.rng.chance(2);
        let name = if shared { "all".to_owned() } else { format!("{}.{}", node.host, self.rng.below(3)) };
        let path = dir.join(name.as_bytes()).expect("short");
        let content = self.rng.number();
        self.nodes[at].files.insert(path, content);
    }

    fn open(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        let listed = node.datasets.iter().filter(|(_, d)| d.listed && d.state == HeldState::Complete);
        let mut files = Vec::new();
        for (id, dataset) in listed {
            let catalog = dataset.catalog.as_ref().expect("complete");
            for entry in catalog.entries.iter().filter(|entry| matches!(entry.kind, EntryKind::File(_))) {
                files.push(SealedFile { id: *id, path: entry.path.clone() });
            }
        }
        let Some(file) = self.rng.pick(&files).cloned() else { return };
        node.serial += 1;
        let request = RequestId { origin: node.origin, serial: node.serial };
        node.fetches.insert(request, file.clone());
        if node.serving {
            self.send_up(at, Event::Fetch { request, file });
        }
    }

    /// Nothing is left to do, and nothing waits.
    pub(crate) fn check_settled(&self) {
        assert!(self.ready, "ready");
        for node in &self.nodes {
            let host = &node.host;
            assert!(node.waiting.is_empty(), "{host}: {:?} wait", node.waiting);
            assert!(node.markers.is_empty(), "{host}: markers {:?} wait", node.markers);
            assert!(node.fetches.is_empty(), "{host}: fetches wait");
            assert!(node.unfinished.is_empty() && node.prepared.is_none(), "{host}: a round is not finished");
            assert_eq!(node.directories, self.nodes[0].directories, "directories on {host}");
            assert_eq!(node.directories, self.oracle, "directories of the order");
            let listed = |node: &Daemon| -> Vec<DatasetId> {
                let complete = node.datasets.iter().filter(|(_, d)| d.listed);
                complete.map(|(id, _)| *id).collect()
            };
            assert_eq!(listed(node), listed(&self.nodes[0]), "listed on {host}");
            assert!(
                node.datasets.values().all(|d| d.state == HeldState::Complete),
                "{host}: a seal in doubt"
            );
            let size = self.settings.cache_size as usize;
            assert!(listed(node).len() <= size, "{host} keeps {:?}", listed(node));
        }
    }
}

fn rank(at: usize) -> NodeRank {
    NodeRank(u32::try_from(at).expect("few nodes"))
}

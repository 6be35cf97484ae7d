//! The lead: orders directory operations, drives seals, flushes and recovery. A state machine:
//! inputs in, outputs out; no file, socket, clock, thread or MPI.
//!
//! Each concern is a machine of its own in a file of its own: `settle` and `recover` (with
//! `rebuild`, `refetch` and `saving`) until programs are served, then `directories`, `seal` (with
//! `markers`, `generation`, `encoding`, `catalog` and `committing`), `flush`, `fetch` (with `mend`,
//! `restore` and `refill`), `scrub`, `eviction`, `advice` and `loose` side by side; `phases` goes
//! from the ones to the others. All of them share `cluster`. [`Lead`] hands each input to the
//! machine that awaits it; what nobody awaits is ignored with a note, never trusted.
//!
//! All steps are done in one thread, that of rank 0's loop ([`crate::run`]).

mod advice;
mod answers;
mod bind;
mod catalog;
mod cluster;
mod committing;
mod datasets;
mod directories;
mod encoding;
mod eviction;
mod fetch;
mod flush;
mod generation;
mod held;
mod jobs;
mod loose;
mod loose_set;
mod markers;
mod mend;
mod names;
mod phases;
mod policy;
mod prefix;
mod rebuild;
mod recover;
mod refetch;
mod refill;
mod requests;
mod restore;
mod saving;
mod scrub;
mod seal;
mod settle;
mod spread;
mod versions;

use std::collections::BTreeSet;

use scrfs::control::loose::Age;
use scrfs::control::{Command, DirOp, Event, Reason, Settings, Severity, Start};
use scrfs::ids::{DatasetId, Epoch, NodeRank};
use scrfs::path::RelPath;
use scrfs::prefix::{Contents, PfsOutcome, PfsTask};

use self::advice::Advice;
use self::cluster::Cluster;
use self::directories::{Directories, Hold};
use self::eviction::{Leaving, free_in_words};
use self::fetch::Fetches;
use self::flush::Flushes;
use self::jobs::ShareEnd;
use self::loose::{Loose, Now};
use self::markers::Marker;
use self::names::name_of;
use self::phases::Phase;
use self::policy::MS;
use self::prefix::Asked;
use self::scrub::Scrubs;
use self::seal::Seals;
use self::settle::Settle;
use crate::job::{Job, JobId, JobResult};

/// A PFS that does not say what it has keeps seals and restarts waiting no longer than this,
/// microseconds.
const SURVEY_LIMIT: u64 = 30_000 * MS;

/// What the lead is told.
#[derive(Debug, Clone, PartialEq)]
pub enum Input {
    /// Once, and before all others save `Now`: the epoch begins, all daemons have accepted it.
    Begin {
        /// This epoch.
        epoch: Epoch,
        /// Host names by rank.
        hosts: Vec<String>,
        /// Of which failure groups they are.
        groups: crate::groups::FailureGroups,
        /// How it starts.
        start: Start,
        /// The job's settings.
        settings: Box<Settings>,
    },
    /// A daemon said something.
    Daemon(NodeRank, Event),
    /// A node's share of a job ended; once per node that [`Job::nodes`] names.
    Job(NodeRank, JobId, JobResult),
    /// A PFS task ended.
    Pfs(PfsOutcome),
    /// Time passed: microseconds since 1970, never going back; about every 100 ms. Before `Begin`
    /// it sets the time and does nothing else.
    Now(u64),
}

/// What the lead wants.
#[derive(Debug, Clone, PartialEq)]
pub enum Output {
    /// To the daemon of each of these nodes; no node is named twice.
    Command(Vec<NodeRank>, Command),
    /// To every node that [`Job::nodes`] names, once to each.
    Start(JobId, Job),
    /// To these nodes, whose shares of the job are awaited: they end for this reason, as if another
    /// share had failed.
    Abort(JobId, Vec<NodeRank>, Reason),
    /// To the PFS worker; one at a time, in order.
    Pfs(PfsTask),
    /// The mounts present their dataset, programs may start (id and name of current, if any):
    /// scrfs-run waits for this.
    Ready(Option<(DatasetId, Vec<u8>)>),
    /// The mounts cannot present what there is until it has what it lacks, for this reason: the
    /// coordinators end, and the program does not start.
    GiveUp(Lack, String),
    /// This dataset is complete on all nodes: scrfs-run sees that its program goes on.
    Sealed(DatasetId),
    /// A halt condition is due, for this reason: scrfs-run ends the program.
    Halt(String),
    /// For the log. What operators should see goes to the daemons too, as [`Command::Note`].
    Note(Severity, String),
}

/// What a dataset waits for that cannot be presented yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lack {
    /// Room in the caches.
    Room,
    /// What the prefix has of it, which is not known, or could not be published.
    Prefix,
}

/// What the prefix has.
#[derive(Debug)]
enum Survey {
    Asked(Asked),
    Known(Contents),
    /// It failed time and again, or took too long.
    Unknown,
}

/// The lead of one epoch.
#[derive(Debug, Default)]
pub struct Lead {
    now: u64,
    epoch: Option<Box<Running>>,
}

impl Lead {
    /// Before its epoch begins.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes an input; gives what is to be done, in order.
    pub fn step(&mut self, input: Input) -> Vec<Output> {
        match (input, &mut self.epoch) {
            (Input::Now(now), epoch) => {
                self.now = self.now.max(now);
                epoch.as_mut().map(|running| running.tick(self.now)).unwrap_or_default()
            }
            (Input::Begin { epoch, hosts, groups, start, settings }, slot @ None) => {
                let cluster = Cluster::new(epoch, hosts, *settings, self.now).of_groups(groups);
                slot.insert(Box::new(Running::begin(cluster, start))).cluster.take_outputs()
            }
            (input, Some(running)) => running.step(input),
            (input, None) => vec![Output::Note(Severity::Info, format!("before the epoch began: {input:?}"))],
        }
    }
}

#[derive(Debug)]
struct Running {
    cluster: Cluster,
    phase: Phase,
    survey: Survey,
    directories: Directories,
    seals: Seals,
    flushes: Flushes,
    scrubs: Scrubs,
    fetches: Fetches,
    advice: Advice,
    leaving: Leaving,
    /// Datasets whose next generation has begun on some node.
    overwritten: BTreeSet<DatasetId>,
    loose: Loose,
}

impl Running {
    fn begin(mut cluster: Cluster, start: Start) -> Self {
        let settle = Settle::begin(&mut cluster, start);
        let loose = Loose::begin_epoch(&mut cluster);
        cluster.pfs(PfsTask::Survey);
        Self {
            cluster,
            phase: Phase::Settling(Box::new(settle)),
            survey: Survey::Asked(Asked::default()),
            directories: Directories::default(),
            seals: Seals::default(),
            flushes: Flushes::default(),
            scrubs: Scrubs::default(),
            fetches: Fetches::default(),
            advice: Advice::default(),
            leaving: Leaving::default(),
            overwritten: BTreeSet::new(),
            loose,
        }
    }

    fn step(&mut self, input: Input) -> Vec<Output> {
        match input {
            Input::Daemon(node, event) if self.cluster.has(node) => self.event(node, event),
            Input::Job(node, job, result) if self.cluster.has(node) => {
                self.job(ShareEnd { node, job, result });
            }
            Input::Pfs(outcome) => self.pfs(outcome),
            other => self.cluster.log(format!("not expected: {other:?}")),
        }
        self.advance();
        self.cluster.take_outputs()
    }

    fn tick(&mut self, now: u64) -> Vec<Output> {
        self.cluster.now = now;
        self.tick_survey();
        self.loose.tick(&mut self.cluster);
        match &mut self.phase {
            Phase::Recovering(recover) => recover.tick(&mut self.cluster),
            Phase::Settling(_) => {}
            Phase::Serving => {
                self.seals.tick(&mut self.cluster);
                if self.flushes.tick(&mut self.cluster) {
                    self.evict();
                }
                self.scrubs.tick(&self.cluster);
                self.advise();
            }
        }
        self.advance();
        self.cluster.take_outputs()
    }

    /// Hands an event to the machine that awaits it.
    fn event(&mut self, node: NodeRank, event: Event) {
        let cluster = &mut self.cluster;
        let what = name_of(&event);
        let awaited = match (&mut self.phase, event) {
            // Requests are taken at any time; they are carried out when programs are served.
            (_, Event::DirRequest { request, op }) => {
                self.directories.request(cluster, node, request, op);
                true
            }
            (_, Event::Asked { times }) => {
                self.advice.asked(times);
                true
            }
            (_, Event::FlushWanted(id)) => {
                self.flushes.wish(id);
                true
            }
            (_, Event::ScrubWanted(id)) => {
                self.scrubs.wish(id);
                true
            }
            (_, Event::Posted { text }) => {
                let host = cluster.host(node).to_owned();
                cluster.pfs(PfsTask::Post { host, text });
                true
            }
            (_, Event::Marker { request, name, base, everywhere }) => {
                let since = cluster.now;
                self.advice.marked(since);
                self.seals.marker(cluster, &name, Marker { node, request, base, everywhere, since });
                true
            }
            (_, Event::Invalid { name }) => self.seals.invalid(cluster, node, &name),
            (_, Event::Fetch { request, file }) => {
                self.fetches.fetch(node, request, file);
                true
            }
            (_, Event::LooseRequest { request, entries }) => {
                self.loose.request(cluster, node, request, entries);
                true
            }
            (_, Event::LooseInventory(inventory)) => self.loose.inventory(node, *inventory),
            (_, Event::LooseRead { stamp, version }) => {
                self.loose.read(cluster, node, stamp, version.map(|version| *version))
            }
            (_, Event::LooseStored { round, errno }) => self.loose.stored(cluster, node, round, errno),
            (_, Event::Removed(id)) => {
                self.forget(id);
                true
            }
            (_, Event::Overwritten(id)) => {
                self.overwritten.insert(id);
                true
            }
            (Phase::Serving, Event::RoomShort { free, wanted, begins, helps }) => {
                let short = format!("room is short: {}, {wanted} are wanted", free_in_words(free));
                self.make_room(node, &short, begins, helps.as_deref());
                true
            }
            // It looks again once it is served.
            (_, Event::RoomShort { .. }) => true,
            (Phase::Settling(settle), event) => match event {
                Event::Inventory(inventory) => settle.inventory(cluster, node, *inventory),
                Event::DirApplied { round, results } => settle.applied(cluster, node, round, results),
                Event::Dropped(id) => settle.dropped(cluster, node, id),
                Event::Catalog { id, catalog } => settle.catalog(cluster, node, id, catalog),
                Event::DirUnited => settle.united(node),
                Event::Evicted(id) => settle.evicted(cluster, node, id),
                _ => false,
            },
            (Phase::Recovering(recover), event) => {
                // What cannot be recovered is dropped by the way.
                let by_the_way = matches!(event, Event::Evicted(_) | Event::Dropped(_));
                recover.event(cluster, node, event) || by_the_way
            }
            (Phase::Serving, Event::DirPrepared { round, votes }) => {
                self.directories.prepared(cluster, node, round, &votes)
            }
            (Phase::Serving, Event::DirApplied { round, results }) => {
                let (awaited, done) = self.directories.applied(cluster, node, round, &results);
                self.directories_done(done);
                awaited
            }
            (Phase::Serving, Event::Frozen { id, result }) => {
                self.loose.frozen(id, result.as_ref().map_or(0, |part| part.begun_us));
                self.seals.frozen(cluster, node, id, result)
            }
            (Phase::Serving, Event::LooseBegun { round, begun }) => {
                let now = Now { committing: self.seals.commits() };
                self.loose.asked(cluster, now, node, round, begun)
            }
            (Phase::Serving, Event::Changes { id, changed }) => {
                let is_whole = !self.fetches.restores(cluster, id);
                let (awaited, all) = self.seals.changes(cluster, node, (id, is_whole), changed);
                if all {
                    // It has stayed for these answers.
                    self.evict();
                }
                awaited
            }
            (Phase::Serving, Event::Carried { id, result }) => self.seals.carried(cluster, node, id, result),
            (Phase::Serving, Event::Dropped(id)) => {
                let (awaited, ended) = self.seals.dropped(cluster, node, id);
                if ended {
                    // What the seal was built on has stayed for it.
                    self.evict();
                }
                awaited
            }
            (Phase::Serving, Event::Committed { id, result, decided }) => {
                let (awaited, sealed) = self.seals.committed(cluster, node, (id, decided), result);
                if let Some((id, waited)) = sealed {
                    self.sealed(id, waited);
                }
                awaited
            }
            (Phase::Serving, Event::Scrubbed { id, round, bad }) => {
                let bad = self.scrubs.scrubbed(cluster, node, (id, round), bad);
                // What has left is scrubbed no more.
                let awaited = bad.is_some() || cluster.datasets.any(id).is_none();
                for member in bad.into_iter().flatten() {
                    self.fetches.mend(id, member);
                }
                awaited
            }
            (Phase::Serving, Event::Verified { id, members }) => {
                for (member, reason) in members.iter().filter_map(|read| Some((read.member, read.bad()?))) {
                    if cluster.holds(node, id, member) {
                        let reason = reason.on(cluster.host(node));
                        cluster.warn(format!("dataset {id}: member {member} has bad bytes: {reason}"));
                        self.fetches.mend(id, member);
                        // Which tells what could not be rebuilt.
                        self.scrubs.wish(id);
                    }
                }
                true
            }
            (Phase::Serving, Event::FlushedMember { id, result, bad }) => {
                let (awaited, ended) = self.flushes.copied(cluster, node, id, result);
                for member in bad {
                    if cluster.holds(node, id, member) {
                        self.fetches.mend(id, member);
                    }
                }
                if let Some(known) = self.flushes.publishing().and_then(|id| cluster.datasets.get(id)) {
                    let age = Age { epoch: known.catalog.epoch, id: known.catalog.id };
                    self.loose.publish(cluster, age);
                }
                let gone = cluster.datasets.get(id).is_none();
                if ended {
                    // It may be given up now: then it may go, and the next one may be due.
                    self.choose();
                }
                awaited || gone
            }
            (Phase::Serving, Event::FetchedMember { id, result }) => {
                self.fetches.fetched_member(cluster, node, id, result.map(drop));
                true
            }
            (Phase::Serving, Event::CopiedFromPrefix { request, result }) => {
                self.fetches.copied(cluster, node, request, result)
            }
            (Phase::Serving, Event::Evicted(id)) => {
                self.left(id, node);
                true
            }
            (Phase::Serving, _) => false,
        };
        if !awaited {
            let host = self.cluster.host(node).to_owned();
            self.cluster.log(format!("{host} said {what}, which nobody awaits: ignored"));
        }
    }

    fn job(&mut self, share: ShareEnd) {
        let (node, job) = (share.node, share.job);
        let cluster = &mut self.cluster;
        let awaited = match &mut self.phase {
            Phase::Recovering(recover) => recover.job(cluster, share),
            Phase::Serving => {
                let before = self.seals.commits().is_some();
                if let Some(base) = self.seals.bad_base(&share) {
                    cluster.warn(format!("dataset {base}: has bad bytes, which its next generation would have carried on; it is scrubbed"));
                    self.scrubs.wish(base);
                }
                let sealing = self.seals.job(cluster, share.clone());
                if let Some(catalog) = self.seals.commits().filter(|_| sealing && !before) {
                    self.loose.committing(cluster, catalog);
                }
                sealing || self.fetches.job(cluster, share)
            }
            Phase::Settling(_) => false,
        };
        // Shares of jobs whose purpose failed meanwhile still end.
        if !awaited && !cluster.started(job) {
            let host = cluster.host(node).to_owned();
            cluster.log(format!("{host} ended job {}, which was never started: ignored", job.0));
        }
    }

    /// Operations that took effect everywhere: datasets may be gone with them.
    fn directories_done(&mut self, done: Vec<DirOp>) {
        let top = |path: &RelPath| path.names().count() == 1;
        for op in done {
            if let DirOp::Rename { from, to, exchange, .. } = &op {
                if top(from) && top(to) {
                    self.loose.renamed(&mut self.cluster, from.as_bytes(), to.as_bytes(), *exchange);
                } else if top(from) {
                    // It goes on in another dataset.
                    self.loose.removed(&mut self.cluster, from.as_bytes());
                }
            }
            let DirOp::Remove { path } = op else { continue };
            if top(&path) {
                let name = path.as_bytes();
                self.loose.removed(&mut self.cluster, name);
                self.seals.removed(&mut self.cluster, name);
                for id in self.cluster.datasets.all_named(name) {
                    self.removed(id);
                }
            }
        }
    }

    /// A dataset is complete everywhere; its program has `waited` so many microseconds for it.
    fn sealed(&mut self, id: DatasetId, waited: u64) {
        let cluster = &mut self.cluster;
        cluster.sealed(id);
        // Before the marker is answered: what its program is advised goes with it.
        self.advice.sealed(cluster.now, waited);
        let flush = self.flushes.longest();
        cluster.at_front(|cluster| self.advice.tick(cluster, flush));
        let busy = |known: &datasets::Known| {
            self.fetches.rebuilding(known.catalog.id) || self.seals.needs(&known.catalog)
        };
        for (id, known) in self.cluster.datasets.take_left_over(busy) {
            self.let_go(id);
            self.vacated(known);
        }
        self.choose();
        if self.advice.ends() {
            self.flush_newest();
        }
        self.loose.sealed(&mut self.cluster);
    }

    fn choose(&mut self) {
        if matches!(self.phase, Phase::Serving) {
            self.flushes.choose(&self.cluster);
            self.evict();
        }
    }

    /// Goes on wherever something is free now.
    fn advance(&mut self) {
        self.change_phase();
        let is_decided = self.seals.is_decided();
        let commits = self.seals.commits().map(|catalog| loose::Commit::of(catalog, is_decided));
        self.loose.commits(&self.cluster, commits);
        self.loose.doubts = self.seals.doubts().map(loose::age_of).collect();
        if !matches!(self.phase, Phase::Serving) {
            return;
        }
        let cluster = &mut self.cluster;
        let may_give_ids = !matches!(self.survey, Survey::Asked(_));
        let lacking = self.fetches.lacking(cluster);
        let is_whole = |name: &[u8]| !lacking.values().any(|of| of == name);
        while self.seals.begin(cluster, may_give_ids, |name| self.directories.round_touches(name), is_whole) {
        }
        let asks = self.loose.asks();
        self.directories.begin(cluster, |op| match self.fetches.hold(op) {
            Hold::Free if asks && directories::renames_dataset(op) => Hold::Wait,
            Hold::Free => self.seals.hold(op),
            held => held,
        });
        for id in self.fetches.take_unflushed() {
            self.flushes.wish(id);
        }
        let is_rebuilt = |id| self.fetches.rebuilding(id) || lacking.contains_key(&id);
        self.flushes.begin(cluster, is_rebuilt, |id| self.seals.committing(id));
        self.scrubs.begin(cluster, is_rebuilt);
        if !self.directories.renames_datasets() {
            self.loose.begin(cluster);
        }
        self.make_room_for_fetches();
        let committing = |id| self.seals.committing(id);
        self.fetches.begin(&mut self.cluster, committing, |name| self.directories.round_touches(name));
        if self.fetches.take_ended() {
            self.evict();
        }
        self.make_room_for_fetches();
    }
}

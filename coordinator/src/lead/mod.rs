//! The lead: orders directory operations, drives seals, flushes and recovery. A state machine: inputs in, outputs out;
//! no file, socket, clock, thread or MPI.
//!
//! Each concern is a machine of its own in a file of its own: `settle` and `recover` (with `rebuild` and `refetch`)
//! until programs are served, then `directories`, `seal`, `flush` and `fetch` (with `mend`) side by side. [`Lead`] hands each input to
//! the machine that awaits it; what nobody awaits is ignored with a note, never trusted.

mod advice;
mod answers;
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
mod jobs;
mod markers;
mod mend;
mod policy;
mod rebuild;
mod recover;
mod refetch;
mod seal;
mod settle;

use scrfs::control::{Command, DirOp, Event, Settings, Severity, Start};
use scrfs::dataset::Catalog;
use scrfs::ids::{DatasetId, Epoch, NodeRank};

use self::advice::Advice;
use self::cluster::Cluster;
use self::directories::{Directories, Hold};
use self::eviction::Leaving;
use self::fetch::Fetches;
use self::flush::Flushes;
use self::jobs::Share;
use self::policy::MS;
use self::recover::Recover;
use self::seal::Seals;
use self::settle::Settle;
use crate::job::{Job, JobId, JobResult};
use crate::pfs::{PfsCause, PfsOutcome, PfsTask, StoredDataset};

/// A PFS that does not say what it has keeps seals and restarts waiting no longer than this, microseconds.
const SURVEY_LIMIT: u64 = 30_000 * MS;

/// What the lead is told.
#[derive(Debug, Clone, PartialEq)]
pub enum Input {
    /// Once, first: the epoch begins, all daemons have accepted it.
    Begin {
        /// This epoch.
        epoch: Epoch,
        /// Host names by rank.
        hosts: Vec<String>,
        /// How it starts.
        start: Start,
        /// The job's settings.
        settings: Settings,
    },
    /// A daemon said something.
    Daemon(NodeRank, Event),
    /// A node's share of a job ended; once per node that [`Job::nodes`] names.
    Job(NodeRank, JobId, JobResult),
    /// A PFS task ended.
    Pfs(PfsOutcome),
    /// Time passed: microseconds since 1970, never going back. Also before `Begin`; about every 100 ms.
    Now(u64),
}

/// What the lead wants.
#[derive(Debug, Clone, PartialEq)]
pub enum Output {
    /// To one node's daemon.
    Command(NodeRank, Command),
    /// To every node that [`Job::nodes`] names, once to each.
    Start(JobId, Job),
    /// To the PFS worker; one at a time, in order.
    Pfs(PfsTask),
    /// The mounts present their dataset, programs may start (the name of current, if any): scrfs-run waits for this.
    Ready(Option<Vec<u8>>),
    /// For the log. What operators should see goes to the daemons too, as [`Command::Note`].
    Note(Severity, String),
}

/// What the prefix has.
#[derive(Debug)]
enum Survey {
    /// Asked; not waited for after this time (once the time is known).
    Asked(Option<u64>),
    Known(Vec<StoredDataset>),
    /// It failed or took too long.
    Unknown,
}

#[derive(Debug)]
enum Phase {
    Settling(Box<Settle>),
    Recovering(Box<Recover>),
    Serving,
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
            (Input::Begin { epoch, hosts, start, settings }, slot @ None) => {
                let running = Running::begin(Cluster::new(epoch, hosts, settings, self.now), start);
                slot.insert(Box::new(running)).cluster.take_outputs()
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
    fetches: Fetches,
    advice: Advice,
    leaving: Leaving,
}

impl Running {
    fn begin(mut cluster: Cluster, start: Start) -> Self {
        let settle = Settle::begin(&mut cluster, start);
        cluster.pfs(PfsTask::Survey);
        Self {
            cluster,
            phase: Phase::Settling(Box::new(settle)),
            survey: Survey::Asked(None),
            directories: Directories::default(),
            seals: Seals::default(),
            flushes: Flushes::default(),
            fetches: Fetches::default(),
            advice: Advice::default(),
            leaving: Leaving::default(),
        }
    }

    fn step(&mut self, input: Input) -> Vec<Output> {
        match input {
            Input::Daemon(node, event) if self.cluster.has(node) => self.event(node, event),
            Input::Job(node, job, result) if self.cluster.has(node) => self.job(Share { node, job, result }),
            Input::Pfs(outcome) => self.pfs(outcome),
            other => self.cluster.log(format!("not expected: {other:?}")),
        }
        self.advance();
        self.cluster.take_outputs()
    }

    fn tick(&mut self, now: u64) -> Vec<Output> {
        self.cluster.now = now;
        match &mut self.survey {
            Survey::Asked(limit @ None) => *limit = Some(now + SURVEY_LIMIT),
            Survey::Asked(Some(limit)) if *limit <= now => self.no_survey("no answer in time"),
            _ => {}
        }
        match &mut self.phase {
            Phase::Recovering(recover) => recover.tick(&mut self.cluster),
            Phase::Settling(_) => {}
            Phase::Serving => {
                self.seals.tick(&mut self.cluster);
                if self.flushes.tick(&mut self.cluster) {
                    self.evict();
                }
                self.advice.tick(&mut self.cluster);
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
            (_, Event::Posted { text }) => {
                let host = cluster.host(node).to_owned();
                cluster.pfs(PfsTask::Post { host, text });
                true
            }
            (_, Event::Marker { name, everywhere }) => {
                self.advice.marked(cluster.now, &name);
                self.seals.marker(cluster, node, name, everywhere);
                true
            }
            (_, Event::Invalid { name }) => self.seals.invalid(cluster, node, &name),
            (_, Event::Refused { name }) => self.seals.refused(node, name),
            (_, Event::Heard(id)) => self.seals.heard(node, id),
            (_, Event::Fetch { request, file }) => {
                self.fetches.fetch(node, request, file);
                true
            }
            (_, Event::Removed(id)) => {
                cluster.datasets.remove(id);
                self.flushes.removed(id);
                true
            }
            (Phase::Serving, Event::RoomShort { free, wanted, begins }) => {
                let short = format!("room is short: {free} bytes are free, {wanted} are wanted");
                self.make_room(node, &short, begins);
                true
            }
            // It looks again once it is served.
            (_, Event::RoomShort { .. }) => true,
            (Phase::Settling(settle), event) => match event {
                Event::Inventory(inventory) => settle.inventory(cluster, node, *inventory),
                Event::DirApplied { round, results } => settle.applied(cluster, node, round, results),
                Event::Dropped(id) => settle.dropped(cluster, node, id),
                Event::Catalog { id, catalog } => settle.catalog(cluster, node, id, catalog.map(|c| *c)),
                Event::DirUnited => settle.united(node),
                // Strangers are evicted by the way.
                event => matches!(event, Event::Evicted(_)),
            },
            (Phase::Recovering(recover), event) => {
                // What cannot be recovered is dropped by the way.
                let by_the_way = matches!(event, Event::Evicted(_) | Event::Dropped(_));
                recover.event(cluster, node, event) || by_the_way
            }
            (Phase::Serving, Event::DirPrepared { round, votes }) => {
                self.directories.prepared(cluster, node, round, votes)
            }
            (Phase::Serving, Event::DirApplied { round, results }) => {
                let (awaited, done) = self.directories.applied(cluster, node, round, results);
                self.directories_done(done);
                awaited
            }
            (Phase::Serving, Event::Frozen { id, result }) => self.seals.frozen(cluster, node, id, result),
            (Phase::Serving, Event::Changes { id, changed }) => {
                self.seals.changes(cluster, node, id, changed)
            }
            (Phase::Serving, Event::Carried { id, result }) => self.seals.carried(cluster, node, id, result),
            (Phase::Serving, Event::Dropped(id)) => {
                let awaited = self.seals.dropped(node, id);
                // What the seal was built on has stayed for it.
                self.evict();
                awaited
            }
            (Phase::Serving, Event::Committed { id, result }) => {
                let (awaited, sealed) = self.seals.committed(cluster, node, id, result);
                if let Some(id) = sealed {
                    self.sealed(id);
                }
                awaited
            }
            (Phase::Serving, Event::FlushedMember { id, result }) => {
                let awaited = self.flushes.copied(cluster, node, id, result);
                let gone = cluster.datasets.get(id).is_none();
                // It may be given up now: then it may go, and the next one may be due.
                self.choose();
                awaited || gone
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

    fn job(&mut self, share: Share) {
        let (node, job) = (share.node, share.job);
        let cluster = &mut self.cluster;
        let awaited = match &mut self.phase {
            Phase::Recovering(recover) => recover.job(cluster, share),
            Phase::Serving => self.seals.job(cluster, share.clone()) || self.fetches.job(cluster, share),
            Phase::Settling(_) => false,
        };
        // Shares of jobs whose purpose failed meanwhile still end.
        if !awaited && !cluster.started(job) {
            let host = cluster.host(node).to_owned();
            cluster.log(format!("{host} ended job {}, which was never started: ignored", job.0));
        }
    }

    fn pfs(&mut self, outcome: PfsOutcome) {
        let cluster = &mut self.cluster;
        let awaited = match outcome {
            PfsOutcome::Surveyed(stored) => {
                self.surveyed(stored);
                true
            }
            PfsOutcome::FlushBegun(id, directory) => {
                self.flushes.begun(cluster, id, &directory) || cluster.datasets.get(id).is_none()
            }
            PfsOutcome::Published(id) => {
                self.flushes.published(cluster, id);
                self.evict();
                true
            }
            PfsOutcome::Catalog(stored, catalog) => {
                self.stored(&stored, Ok(*catalog));
                true
            }
            PfsOutcome::Marked(_) | PfsOutcome::Posted => true,
            PfsOutcome::Halt(halt) => {
                self.advice.halt(cluster.now, Ok(*halt));
                true
            }
            PfsOutcome::Failed(task, failure) => match task {
                PfsTask::Survey => {
                    self.no_survey(&failure.reason);
                    true
                }
                PfsTask::Halt { sealed } => {
                    self.advice.halt(cluster.now, Err(sealed));
                    true
                }
                PfsTask::Post { text, .. } => {
                    cluster.warn(format!("{}: not kept in the prefix: {text}", failure.reason));
                    true
                }
                PfsTask::BeginFlush(catalog) | PfsTask::Publish(catalog) => {
                    self.flushes.failed(cluster, catalog.id, &failure.reason);
                    self.choose();
                    true
                }
                PfsTask::ReadCatalog(stored) => {
                    if failure.cause == PfsCause::Damaged {
                        cluster.pfs(PfsTask::MarkFailed(stored.clone()));
                    }
                    self.stored(&stored, Err(&failure.reason));
                    true
                }
                PfsTask::MarkFailed(stored) => {
                    let reason = failure.reason;
                    cluster.warn(format!("dataset {} could not be marked FAILED: {reason}", stored.id));
                    true
                }
            },
        };
        if !awaited {
            self.cluster.log("an outcome on the PFS that nobody awaits: ignored".to_owned());
        }
    }

    /// The records of a dataset in the prefix; when they come late nobody needs them any more.
    fn stored(&mut self, stored: &StoredDataset, catalog: Result<Catalog, &str>) {
        if let Phase::Recovering(recover) = &mut self.phase {
            recover.stored(&mut self.cluster, stored, catalog);
        }
    }

    /// What the prefix has; also when it comes late.
    fn surveyed(&mut self, stored: Vec<StoredDataset>) {
        let cluster = &mut self.cluster;
        for dataset in &stored {
            cluster.seen_id(dataset.id.0);
            if dataset.usable {
                cluster.datasets.highest_flushed = cluster.datasets.highest_flushed.max(dataset.id.0);
            }
        }
        self.survey = Survey::Known(stored);
        self.flushes.surveyed();
        if matches!(self.phase, Phase::Serving) {
            self.mark_flushed();
            self.choose();
        }
    }

    fn no_survey(&mut self, reason: &str) {
        if matches!(self.survey, Survey::Asked(_)) {
            self.cluster.warn(format!("what the prefix has is not known: {reason}"));
            self.survey = Survey::Unknown;
            self.flushes.surveyed();
            self.choose();
        }
    }

    /// Datasets of which the caches do not know that they are on the PFS.
    fn mark_flushed(&mut self) {
        let Survey::Known(stored) = &self.survey else { return };
        for dataset in stored.iter().filter(|dataset| dataset.usable) {
            let known = self.cluster.datasets.any(dataset.id);
            if known.is_some_and(|known| !known.flushed && known.catalog.epoch == dataset.epoch) {
                self.cluster.datasets.flushed(dataset.id);
                self.cluster.send_all(&Command::MarkFlushed(dataset.id));
            }
        }
    }

    /// Operations that took effect everywhere: datasets may be gone with them.
    fn directories_done(&mut self, done: Vec<DirOp>) {
        for op in done {
            let DirOp::Remove { path } = op else { continue };
            if path.names().count() == 1 {
                let name = path.as_bytes();
                self.seals.removed(&mut self.cluster, name);
                for id in self.cluster.datasets.all_named(name) {
                    self.cluster.datasets.remove(id);
                    self.flushes.removed(id);
                }
            }
        }
    }

    /// A dataset is complete everywhere.
    fn sealed(&mut self, id: DatasetId) {
        let cluster = &mut self.cluster;
        if let Some(name) = cluster.datasets.get(id).map(|known| known.catalog.name.clone()) {
            self.advice.sealed(cluster.now, &name);
            self.advice.tick(cluster);
        }
        let busy = |known: &datasets::Known| {
            self.fetches.rebuilding(known.catalog.id) || self.seals.needs(&known.catalog)
        };
        for id in self.cluster.datasets.take_left_over(busy) {
            self.let_go(id);
        }
        self.choose();
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
        if !matches!(self.phase, Phase::Serving) {
            return;
        }
        let cluster = &mut self.cluster;
        let may_give_ids = !matches!(self.survey, Survey::Asked(_));
        while self.seals.begin(cluster, may_give_ids, |name| self.directories.round_touches(name)) {}
        self.directories.begin(cluster, |op| match self.fetches.hold(op) {
            Hold::Free => self.seals.hold(op),
            held => held,
        });
        self.flushes.begin(cluster);
        let committing = |id| self.seals.committing(id);
        self.fetches.begin(cluster, committing, |name| self.directories.round_touches(name));
        if self.fetches.take_ended() {
            self.evict();
        }
        self.make_room_for_fetches();
    }

    fn change_phase(&mut self) {
        if matches!(&self.phase, Phase::Settling(settle) if settle.done()) {
            let restart = matches!(&self.phase, Phase::Settling(settle) if settle.start() == Start::Restart);
            if restart && matches!(self.survey, Survey::Asked(_)) {
                return;
            }
            if let Phase::Settling(settle) = std::mem::replace(&mut self.phase, Phase::Serving) {
                if restart {
                    let stored = match &self.survey {
                        Survey::Known(stored) => stored.clone(),
                        _ => Vec::new(),
                    };
                    let recover = Recover::begin(&mut self.cluster, settle.held, stored);
                    self.phase = Phase::Recovering(Box::new(recover));
                } else {
                    settle.hand_over(&mut self.cluster, &mut self.seals);
                    let current =
                        self.cluster.datasets.newest_first().first().map(|known| known.catalog.name.clone());
                    self.serve(current);
                }
            }
        }
        if matches!(&self.phase, Phase::Recovering(recover) if recover.done())
            && let Phase::Recovering(recover) = std::mem::replace(&mut self.phase, Phase::Serving)
        {
            let current = recover.current().map(<[u8]>::to_vec);
            recover.hand_over(&mut self.cluster);
            self.serve(current);
        }
    }

    fn serve(&mut self, current: Option<Vec<u8>>) {
        self.cluster.send_all(&Command::Serve);
        self.advice.serve(self.cluster.now);
        self.advice.tick(&mut self.cluster);
        self.cluster.ready(current);
        self.mark_flushed();
        self.choose();
    }
}

/// For notes: an event without its contents, which may be long.
fn name_of(event: &Event) -> &'static str {
    match event {
        Event::Inventory(_) => "Inventory",
        Event::Catalog { .. } => "Catalog",
        Event::DirRequest { .. } => "DirRequest",
        Event::DirPrepared { .. } => "DirPrepared",
        Event::DirApplied { .. } => "DirApplied",
        Event::DirUnited => "DirUnited",
        Event::Marker { .. } => "Marker",
        Event::Asked { .. } => "Asked",
        Event::Posted { .. } => "Posted",
        Event::Invalid { .. } => "Invalid",
        Event::Refused { .. } => "Refused",
        Event::Heard(_) => "Heard",
        Event::Frozen { .. } => "Frozen",
        Event::Changes { .. } => "Changes",
        Event::Carried { .. } => "Carried",
        Event::Dropped(_) => "Dropped",
        Event::Committed { .. } => "Committed",
        Event::Evicted(_) => "Evicted",
        Event::Removed(_) => "Removed",
        Event::RoomShort { .. } => "RoomShort",
        Event::FlushedMember { .. } => "FlushedMember",
        Event::Verified { .. } => "Verified",
        Event::FetchedMember { .. } => "FetchedMember",
        Event::Presented { .. } => "Presented",
        Event::Fetch { .. } => "Fetch",
        Event::CopiedFromPrefix { .. } => "CopiedFromPrefix",
    }
}

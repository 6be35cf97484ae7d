//! The loop of one coordinator: transport, daemon, jobs, PFS worker and time on one side, the lead
//! (rank 0) on the other.
//!
//! One thread owns the transport and runs this loop. Everything else that can wait has its own
//! thread and speaks through one channel, which is also what the loop sleeps on. The lead's
//! commands go to the daemons and their events to the lead unchanged and in order.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use scrfs::control::ready::{HaltDue, Leaving, Ready, Sealed};
use scrfs::control::{Command, Settings, Severity};
use scrfs::ids::NodeRank;
use scrfs::prefix::status::Reporter;
use scrfs::prefix::{PfsOutcome, Worker};

use crate::bell::{Ringer, Trust};
use crate::comm::{CommError, Received, Transport};
use crate::inbox::Inbox;
use crate::jobs::Jobs;
use crate::jobs::block::{Address, Outgoing};
use crate::jobs::link::Connector;
use crate::lead::{Input, Lack, Lead, Output};
use crate::message::{Opening, PeerMessage};
use crate::node::{FromDaemon, Node};
use crate::open::{self, Early, OpenError};
use crate::pace::{pause, warm};
use crate::peers::{Heard, Peers};
use crate::{points, ready};

/// How often the lead is told the time when nothing else is told.
const TICK: Duration = Duration::from_millis(100);
/// The next dataset may come soon, and fresh memory costs as much as the copying of a tenth of it.
const BUFFERS_KEPT: Duration = Duration::from_mins(1);
/// Who has lost its daemon is told by the lead within this time how it goes on.
const REOPEN_LIMIT: Duration = Duration::from_secs(10);
/// What was begun in the prefix ends within this time where the epoch is opened anew.
const PREFIX_LIMIT: Duration = Duration::from_secs(2);
/// Messages taken from one source before the others have their turn.
const TURN: usize = 128;

/// What the loop is woken by.
#[derive(Debug)]
pub enum Wake {
    /// The daemon's link.
    Daemon(FromDaemon),
    /// A job's worker.
    Job(Outgoing),
    /// The PFS worker.
    Pfs(Box<PfsOutcome>),
    /// A peer is about to send something.
    Rung,
    /// A signal asks this process to end.
    Signal(i32),
}

/// Why a coordinator ends other than by a signal. The whole coordinators' job ends with it.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The transport failed.
    #[error(transparent)]
    Comm(#[from] CommError),
    /// A message could not be read or written.
    #[error(transparent)]
    Peer(#[from] OpenError),
    /// The daemon of this host is gone or has a newer coordinator, and the epoch cannot be opened
    /// anew.
    #[error("the link to the daemon of {0} is lost: {1}")]
    DaemonLost(String, String),
    /// A dataset cannot be presented yet, for this reason, and there is no other.
    #[error("{1}")]
    Lacks(Lack, String),
    /// The epoch cannot be opened anew in this process.
    #[error("a daemon is lost, and what was begun in the prefix takes longer than {} s", PREFIX_LIMIT.as_secs())]
    PrefixBusy,
    /// An injected fault.
    #[error("injected at {0}: {1}")]
    Fault(&'static str, std::io::Error),
}

/// How the loop ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// A signal to this or another coordinator.
    Asked,
    /// The same, and rank 0 had not told that the mounts are ready.
    AskedEarly,
    /// A link to a daemon was lost: the epoch is opened anew, in the next session.
    Lost,
}

/// What only rank 0 has.
struct LeadSide {
    lead: Lead,
    pfs: Worker,
    reporter: Option<Reporter>,
    epoch: scrfs::ids::Epoch,
    clock: Clock,
    told: Instant,
    is_ready: bool,
    /// It was in a session before this one.
    was_ready: bool,
}

impl LeadSide {
    /// Two sessions of one process are never at work in the prefix at the same time: they would not
    /// tell their files apart.
    fn stop(self) -> Result<(), RunError> {
        let reported = self.reporter.is_none_or(|reporter| reporter.stop(PREFIX_LIMIT));
        if self.pfs.stop(PREFIX_LIMIT) && reported { Ok(()) } else { Err(RunError::PrefixBusy) }
    }
}

/// Microseconds since 1970. The clock of the machine is read once: when it is set later, waits of
/// the lead neither end at once nor last longer.
struct Clock {
    began_us: u64,
    began: Instant,
}

impl Clock {
    fn new() -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { began_us: u64::try_from(now.as_micros()).unwrap_or_default(), began: Instant::now() }
    }

    fn now(&self) -> u64 {
        let passed = u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.began_us.saturating_add(passed)
    }
}

/// One coordinator after the opening.
pub struct Coordinator<T> {
    peers: Peers<T>,
    node: Node,
    trust: Trust,
    jobs: Jobs,
    lead: Option<LeadSide>,
    wakes: Inbox<Wake>,
    /// When anything happened last.
    worked: Instant,
    /// This host's name.
    host: String,
    /// Since when the link to the daemon is lost, and why.
    lost: Option<(Instant, String)>,
    end: Option<Ended>,
}

/// What a coordinator is made of.
pub struct Parts<T> {
    /// The transport, opened.
    pub transport: T,
    /// The greeted daemon.
    pub node: Node,
    /// Data connections to it.
    pub connect: Connector,
    /// Rings at peers.
    pub ringer: Ringer,
    /// Everything that wakes the loop.
    pub wakes: Inbox<Wake>,
    /// How the epoch opened.
    pub opening: Opening,
    /// Rank 0: takes PFS tasks.
    pub pfs: Option<Worker>,
    /// Rank 0: keeps the last status in the prefix.
    pub reporter: Option<Reporter>,
    /// There was a session before this one.
    pub is_next: bool,
}

impl<T: Transport> Coordinator<T> {
    /// Runs until a signal, an error, or the loss of a daemon; gives back what outlives the
    /// session. `early` came before the loop began.
    pub fn start(mut parts: Parts<T>, early: Early) -> (T, Ringer, Result<Ended, RunError>) {
        let notes = std::mem::take(&mut parts.opening.notes);
        let (mut this, begin) = Self::new(parts);
        let begun = this
            .note(notes)
            .and_then(|()| this.tell(begin))
            .and_then(|()| early.into_iter().try_for_each(|message| this.came(message)));
        let result = begun.and_then(|()| this.run());
        this.jobs.abort_all("the coordinator ends");
        let result = match (result, this.lead) {
            (Ok(Ended::Lost), Some(side)) => side.stop().map(|()| Ended::Lost),
            (Ok(ended), Some(LeadSide { reporter: Some(reporter), .. })) => {
                reporter.end();
                Ok(ended)
            }
            (result, _) => result,
        };
        let (transport, ringer) = this.peers.into_parts();
        (transport, ringer, result)
    }

    fn came(&mut self, message: Received) -> Result<(), RunError> {
        let heard = self.peers.hear(message)?;
        self.received(heard)
    }

    /// Puts the parts together; the lead, at rank 0, is to be told the second value first.
    fn new(parts: Parts<T>) -> (Self, Input) {
        let Parts { transport, node, connect, ringer, wakes, opening, pfs, reporter, is_next } = parts;
        let Opening { epoch, hosts, groups, start, fanout, settings, .. } = opening;
        let host = hosts.get(transport.rank().0 as usize).cloned().unwrap_or_default();
        let peers = Peers::new(transport, ringer, fanout);
        let Settings { jobs: rules, .. } = settings;
        let wake = wakes.clone();
        let emit = Arc::new(move |out| wake.send(Wake::Job(out)));
        let jobs = Jobs::new(peers.me(), rules, connect, emit, peers.buffers().clone());
        let lead = pfs.map(|pfs| LeadSide {
            lead: Lead::new(),
            pfs,
            reporter,
            epoch,
            clock: Clock::new(),
            told: Instant::now(),
            is_ready: false,
            was_ready: is_next,
        });
        let (worked, trust) = (Instant::now(), Trust::default());
        let this = Self { peers, node, trust, jobs, lead, wakes, worked, host, lost: None, end: None };
        (this, Input::Begin { epoch, hosts, groups, start, settings: Box::new(settings) })
    }

    /// What the opening had to say goes to the lead's log and every node's events.
    fn note(&mut self, notes: Vec<String>) -> Result<(), RunError> {
        if self.lead.is_none() {
            return Ok(());
        }
        let nodes: Vec<NodeRank> = self.peers.others().chain([self.peers.me()]).collect();
        for text in notes {
            tracing::warn!("{text}");
            let note = Command::Note { severity: Severity::Warning, text };
            self.say_to(&nodes, PeerMessage::Relay(note))?;
        }
        Ok(())
    }

    fn run(&mut self) -> Result<Ended, RunError> {
        loop {
            if let Some(end) = self.end {
                return Ok(end);
            }
            // The lead may have begun to end, or hang.
            if let Some((_, reason)) = self.lost.take_if(|(since, _)| since.elapsed() >= REOPEN_LIMIT) {
                return Err(RunError::DaemonLost(self.host.clone(), reason));
            }
            self.turn()?;
        }
    }

    /// All coordinators were asked to end.
    fn leave(&mut self) {
        let early = self.lead.as_ref().is_some_and(|side| !side.is_ready && !side.was_ready);
        self.end = Some(if early { Ended::AskedEarly } else { Ended::Asked });
    }

    /// This coordinator ends, and so do all others: the lead tells them, once it knows. A signal
    /// that comes to each at the same time is so no word of each to all.
    fn leave_together(&mut self) -> Result<(), RunError> {
        match self.end {
            Some(Ended::Asked | Ended::AskedEarly) => {}
            _ if self.lead.is_some() => {
                let others: Vec<NodeRank> = self.peers.others().collect();
                self.say_to(&others, PeerMessage::Leave)?;
            }
            _ => self.say(NodeRank(0), PeerMessage::Leave)?,
        }
        self.leave();
        Ok(())
    }

    /// The daemon of `from` is lost, says the lead or, to the lead, that node. Programs run as soon
    /// as the mounts are ready; before that the start is made again, by who began it.
    fn reopen(&mut self, from: NodeRank) -> Result<(), RunError> {
        if let Some(side) = &self.lead {
            if !side.is_ready {
                let why = self.lost.take().map_or_else(|| "it said so".to_owned(), |(_, why)| why);
                let host = if from == self.peers.me() { self.host.clone() } else { format!("rank {from}") };
                return Err(RunError::DaemonLost(host, why));
            }
            tracing::warn!(%from, "the link to a daemon is lost: the epoch is opened anew");
            let others: Vec<NodeRank> = self.peers.others().collect();
            self.say_to(&others, PeerMessage::Reopen)?;
        }
        // Not over a signal that came before.
        self.end.get_or_insert(Ended::Lost);
        Ok(())
    }

    fn turn(&mut self) -> Result<(), RunError> {
        let mut worked = false;
        for _ in 0..TURN {
            let Some(heard) = self.peers.poll()? else { break };
            if !worked && self.worked.elapsed() >= warm(self.trust.holds()) {
                self.trust.missed();
            }
            self.received(heard)?;
            worked = true;
        }
        for _ in 0..TURN {
            let Some(wake) = self.wakes.take() else { break };
            self.woken(wake)?;
            worked = true;
        }
        self.peers.send_held()?;
        self.peers.send_risen()?;
        self.tick()?;
        let now = Instant::now();
        if worked {
            self.worked = now;
            return Ok(());
        }
        let busy = self.jobs.busy() || self.peers.is_busy();
        if !busy && now - self.worked >= BUFFERS_KEPT {
            self.peers.buffers().clear();
        }
        let pause = pause(busy, now - self.worked, self.trust.holds());
        let Some(wake) = self.wakes.wait(pause) else { return Ok(()) };
        self.worked = Instant::now();
        self.woken(wake)
    }

    fn tick(&mut self) -> Result<(), RunError> {
        match &self.lead {
            Some(side) if side.told.elapsed() >= TICK => self.lead_steps(None),
            _ => Ok(()),
        }
    }

    fn received(&mut self, heard: Heard) -> Result<(), RunError> {
        match heard {
            Heard::Passing => Ok(()),
            Heard::Message(from, message) => self.heard(from, message),
            Heard::Block(Address { job, stream }, block) => {
                self.jobs.arrived(job, stream, block);
                Ok(())
            }
        }
    }

    fn heard(&mut self, from: NodeRank, message: PeerMessage) -> Result<(), RunError> {
        match message {
            PeerMessage::Relay(command) => self.relay(command),
            PeerMessage::Report(event) => self.tell(Input::Daemon(from, event)),
            PeerMessage::StartJob(id, job) => {
                self.jobs.start(id, *job);
                Ok(())
            }
            PeerMessage::JobDone(id, result) => self.tell(Input::Job(from, id, result)),
            PeerMessage::Credit { job, stream } => {
                self.jobs.credited(job, stream);
                Ok(())
            }
            PeerMessage::JobAbort { job, reason } => {
                self.jobs.abort(job, reason);
                Ok(())
            }
            PeerMessage::Leave => {
                tracing::info!(%from, "asked to end by a peer");
                if self.lead.is_some() {
                    return self.leave_together();
                }
                self.leave();
                Ok(())
            }
            PeerMessage::Reopen => self.reopen(from),
            PeerMessage::Greeting(_) | PeerMessage::Begin(_) | PeerMessage::Attached => {
                Err(OpenError::Message(from, "a message of the opening, after it".to_owned()).into())
            }
            PeerMessage::Pass(_) => {
                Err(OpenError::Message(from, "to be passed on, and not from above".to_owned()).into())
            }
            PeerMessage::Fold(_) => {
                Err(OpenError::Message(from, "words of nodes that are not below".to_owned()).into())
            }
        }
    }

    fn woken(&mut self, wake: Wake) -> Result<(), RunError> {
        match wake {
            Wake::Daemon(FromDaemon::Event(event)) => {
                points::passes(points::of_event(&event))?;
                self.report(PeerMessage::Report(event))
            }
            Wake::Daemon(FromDaemon::Lost(reason)) => {
                tracing::warn!(reason, "the link to the daemon is lost");
                // Both halves tell.
                if self.lost.is_none() {
                    self.lost = Some((Instant::now(), reason));
                    self.say(NodeRank(0), PeerMessage::Reopen)?;
                }
                Ok(())
            }
            Wake::Job(Outgoing::Block { node, address, bytes }) => {
                self.peers.send_block(node, address, bytes);
                Ok(())
            }
            Wake::Job(Outgoing::Credit { node, job, stream }) => {
                self.say(node, PeerMessage::Credit { job, stream })
            }
            Wake::Job(Outgoing::Ended { job, result, peers }) => {
                self.jobs.ended(job);
                if let Err(failure) = &result {
                    let reason = &failure.reason;
                    tracing::warn!(job = job.0, %reason, bad = ?failure.bad, "a job's share failed");
                    for peer in peers {
                        let reason = reason.clone().on(format_args!("node {}", self.peers.me()));
                        self.say(peer, PeerMessage::JobAbort { job, reason })?;
                    }
                }
                self.report(PeerMessage::JobDone(job, result))
            }
            Wake::Pfs(outcome) => self.tell(Input::Pfs(*outcome)),
            Wake::Rung => {
                self.trust.rung();
                Ok(())
            }
            Wake::Signal(signal) => {
                tracing::info!(signal, "asked to end by a signal");
                // Its launcher may never end, as one that waits for a node that is gone.
                if let Err(error) = ready::announce(&mut std::io::stdout().lock(), &Leaving { signal }) {
                    tracing::debug!(%error, "nobody was told of the signal");
                }
                self.leave_together()
            }
        }
    }

    /// Says something to a node; to this one without the transport.
    fn say(&mut self, to: NodeRank, message: PeerMessage) -> Result<(), RunError> {
        if to == self.peers.me() {
            return self.heard(to, message);
        }
        Ok(self.peers.say(to, &message)?)
    }

    /// Says to the lead what is to be heard in this order; on its own node without the transport.
    fn report(&mut self, message: PeerMessage) -> Result<(), RunError> {
        if self.lead.is_some() {
            return self.heard(self.peers.me(), message);
        }
        Ok(self.peers.report(&message)?)
    }

    /// As the lead, says the same to each of `nodes`; no node is named twice.
    fn say_to(&mut self, nodes: &[NodeRank], message: PeerMessage) -> Result<(), RunError> {
        let me = self.peers.me();
        let (here, others): (Vec<NodeRank>, Vec<NodeRank>) = nodes.iter().partition(|node| **node == me);
        let bytes = if others.is_empty() { Vec::new() } else { open::encode(me, &message)? };
        if !here.is_empty() {
            self.heard(me, message)?;
        }
        if others.is_empty() { Ok(()) } else { Ok(self.peers.lead(others, bytes)?) }
    }

    fn relay(&mut self, command: Command) -> Result<(), RunError> {
        points::passes(points::of_command(&command))?;
        if let Some(reporter) = self.lead.as_ref().and_then(|side| side.reporter.as_ref()) {
            reporter.told(&command);
        }
        self.node.send(command);
        Ok(())
    }

    /// Tells the lead; elsewhere nobody should have asked.
    fn tell(&mut self, input: Input) -> Result<(), RunError> {
        if self.lead.is_none() && !matches!(input, Input::Begin { .. }) {
            tracing::warn!("something for the lead came to a node that is not; dropped");
        }
        self.lead_steps(Some(input))
    }

    /// The time, then `input`: one step each; carries out what the lead wants.
    fn lead_steps(&mut self, input: Option<Input>) -> Result<(), RunError> {
        let Some(side) = &mut self.lead else { return Ok(()) };
        side.told = Instant::now();
        // The first input is Begin, before any time.
        let mut outputs = Vec::new();
        let now = Input::Now(side.clock.now());
        if matches!(input, Some(Input::Begin { .. })) {
            outputs.extend(input.map(|begin| side.lead.step(begin)).unwrap_or_default());
            outputs.extend(side.lead.step(now));
        } else {
            outputs.extend(side.lead.step(now));
            outputs.extend(input.map(|input| side.lead.step(input)).unwrap_or_default());
        }
        if !outputs.is_empty() {
            // Answers come soon, and whoever gives one takes this node for awake.
            self.worked = Instant::now();
        }
        outputs.into_iter().try_for_each(|output| self.carry_out(output))
    }

    fn carry_out(&mut self, output: Output) -> Result<(), RunError> {
        match output {
            Output::Command(nodes, command) => self.say_to(&nodes, PeerMessage::Relay(command)),
            Output::Start(id, job) => {
                let mut nodes = job.nodes();
                nodes.sort_unstable();
                nodes.dedup();
                self.say_to(&nodes, PeerMessage::StartJob(id, Box::new(job)))
            }
            Output::Abort(job, nodes, reason) => self.say_to(&nodes, PeerMessage::JobAbort { job, reason }),
            Output::Pfs(task) => {
                points::passes(points::of_task(&task))?;
                if let Some(side) = &self.lead {
                    side.pfs.send(task);
                }
                Ok(())
            }
            Output::Ready(current) => {
                let Some(LeadSide { epoch, is_ready, .. }) = &mut self.lead else { return Ok(()) };
                *is_ready = true;
                let id = current.as_ref().map_or(0, |(id, _)| id.0);
                let current = current.map(|(_, name)| name);
                let shown = current.as_deref().map(String::from_utf8_lossy);
                tracing::info!(current = shown.as_deref().unwrap_or("none"), "the mounts are ready");
                let ready = Ready { epoch: *epoch, current, id };
                if let Err(error) = ready::announce(&mut std::io::stdout().lock(), &ready) {
                    // Whoever waited for it is gone, or never was: the mounts are served all the
                    // same.
                    tracing::warn!(%error, "nobody was told that the mounts are ready");
                }
                Ok(())
            }
            Output::Sealed(id) => {
                let told = ready::announce_if_room(&mut std::io::stdout().lock(), &Sealed { id });
                if let Err(error) = told {
                    tracing::debug!(%error, "nobody was told that a dataset is complete");
                }
                Ok(())
            }
            Output::GiveUp(lack, reason) => Err(RunError::Lacks(lack, reason)),
            Output::Halt(reason) => {
                tracing::info!(reason, "a halt is due");
                if let Err(error) = ready::announce(&mut std::io::stdout().lock(), &HaltDue { reason }) {
                    tracing::warn!(%error, "nobody was told that a halt is due");
                }
                Ok(())
            }
            Output::Note(severity, text) => {
                match severity {
                    Severity::Info => tracing::info!("{text}"),
                    Severity::Warning => tracing::warn!("{text}"),
                }
                Ok(())
            }
        }
    }
}

//! Rank 0: the lead, and what it has to send.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::time::ClockId;
use scrfs::ids::{Epoch, NodeRank};
use scrfs_coordinator::fold::Rising;
use scrfs_coordinator::lead::{Input, Lead, Output};
use scrfs_coordinator::message::PeerMessage;
use scrfs_coordinator::open;
use scrfs_coordinator::tree::{FANOUT, Place};

use crate::answers::Answers;

const LEAD: NodeRank = NodeRank(0);

/// What an operation did cost.
pub(crate) struct Cost {
    /// In the lead, in the codec, and in the queue of sends.
    pub(crate) time: Duration,
    /// The longest step of the lead, in which nothing else is served.
    pub(crate) step: Duration,
    /// Bytes, as are those sent.
    pub(crate) memory: u64,
    pub(crate) sent: u64,
    pub(crate) messages: u64,
    /// Messages that have come.
    pub(crate) received: u64,
}

pub(crate) struct Rank0 {
    lead: Lead,
    answers: Answers,
    arriving: VecDeque<Arriving>,
    /// What nodes have said, by the neighbours through which it comes. It comes when rank 0 has
    /// done all that there was to do: by then all have answered.
    rising: BTreeMap<u32, Rising>,
    began: Instant,
    received: u64,
    place: Place,
    /// What no node has taken yet.
    sending: Vec<(NodeRank, Arc<Vec<u8>>)>,
    busy: Duration,
    longest: Duration,
    /// The lead has presented a dataset, or that there is none.
    is_ready: bool,
}

enum Arriving {
    Message(NodeRank, Vec<u8>),
    Here(Input),
}

impl Rank0 {
    /// Of a job without datasets that serves programs.
    pub(crate) fn begun(answers: Answers) -> Result<Self, String> {
        let mut rank0 = Self::new(answers);
        let begin = rank0.answers.begin(Epoch(1))?;
        rank0.arriving.push_back(Arriving::Here(begin));
        rank0.settle()?;
        if rank0.is_ready { Ok(rank0) } else { Err("the first start did not come to its end".to_owned()) }
    }

    fn new(answers: Answers) -> Self {
        Self {
            lead: Lead::new(),
            arriving: VecDeque::new(),
            rising: BTreeMap::new(),
            began: Instant::now(),
            received: 0,
            sending: Vec::new(),
            place: Place::new(LEAD, answers.nodes(), FANOUT),
            busy: Duration::ZERO,
            longest: Duration::ZERO,
            is_ready: false,
            answers,
        }
    }

    /// A marker in the dataset of this name.
    pub(crate) fn seal(&mut self, name: &str) -> Result<Cost, String> {
        let before = self.answers.sealed();
        let cost = self.cost_of(|rank0| {
            let marker = rank0.answers.marker(name);
            rank0.says(LEAD, &PeerMessage::Report(marker))?;
            rank0.settle()
        })?;
        if self.answers.sealed() == before + 1 { Ok(cost) } else { Err(format!("{name} was not sealed")) }
    }

    /// The first `nodes` make a directory each; `time` makes the names new.
    pub(crate) fn make_directories(&mut self, time: u32, nodes: u32) -> Result<Cost, String> {
        let before = self.answers.made();
        let cost = self.cost_of(|rank0| {
            for node in (0..nodes).map(NodeRank) {
                let wish = Answers::make_directory(node, time)?;
                rank0.says(node, &PeerMessage::Report(wish))?;
            }
            rank0.settle()
        })?;
        let made = self.answers.made() - before;
        if made == nodes { Ok(cost) } else { Err(format!("{made} of {nodes} directories were made")) }
    }

    /// The next epoch, with a spare in the place of one node.
    pub(crate) fn restart(self) -> Result<(Self, Cost), String> {
        let mut next = Self::new(self.answers.with_a_spare());
        // What the last epoch had is not there any more.
        drop((self.lead, self.sending));
        let begin = next.answers.begin(Epoch(2))?;
        let cost = next.cost_of(|rank0| {
            rank0.arriving.push_back(Arriving::Here(begin));
            rank0.settle()
        })?;
        match (next.is_ready, next.answers.rebuilt()) {
            (true, 1) => Ok((next, cost)),
            (is_ready, rebuilt) => Err(format!("ready: {is_ready}, members rebuilt: {rebuilt}")),
        }
    }

    fn cost_of(&mut self, operation: impl FnOnce(&mut Self) -> Result<(), String>) -> Result<Cost, String> {
        (self.busy, self.longest, self.received) = (Duration::ZERO, Duration::ZERO, 0);
        self.sending.clear();
        let before = memory("VmRSS:")?;
        std::fs::write("/proc/self/clear_refs", "5").map_err(|e| format!("/proc/self/clear_refs: {e}"))?;
        operation(self)?;
        Ok(Cost {
            time: self.busy,
            step: self.longest,
            memory: memory("VmHWM:")?.saturating_sub(before),
            sent: self.sending.iter().map(|(_, bytes)| bytes.len() as u64).sum(),
            messages: self.sending.len() as u64,
            received: self.received,
        })
    }

    /// Until nothing is on its way here.
    fn settle(&mut self) -> Result<(), String> {
        loop {
            let Some(arriving) = self.arriving.pop_front() else {
                if !self.all_rises()? {
                    return Ok(());
                }
                continue;
            };
            match arriving {
                Arriving::Here(input) => self.step(input)?,
                Arriving::Message(from, bytes) => {
                    self.received += u64::from(from != LEAD);
                    self.hear(from, &bytes)?;
                }
            }
        }
    }

    /// As the loop of a coordinator does it.
    fn hear(&mut self, from: NodeRank, bytes: &[u8]) -> Result<(), String> {
        let begun = cpu_time();
        let message = open::decode(from, bytes).map_err(|e| e.to_string())?;
        if let PeerMessage::Fold(fold) = message {
            if !fold.is_from_below(self.place, from) {
                return Err(format!("{from} speaks for others"));
            }
            let words: Vec<_> = fold.into_words(self.answers.nodes()).collect();
            self.busy += cpu_time().saturating_sub(begun);
            return words.into_iter().try_for_each(|(from, word)| self.hear(from, &word));
        }
        let input = match message {
            PeerMessage::Report(event) => Input::Daemon(from, event),
            PeerMessage::JobDone(id, result) => Input::Job(from, id, result),
            other => return Err(format!("{other:?} for the lead")),
        };
        self.busy += cpu_time().saturating_sub(begun);
        self.step(input)
    }

    /// A node says something to rank 0, which costs that one nothing yet.
    fn says(&mut self, from: NodeRank, message: &PeerMessage) -> Result<(), String> {
        let bytes = encoded(from, message)?;
        let towards = if self.place.is_flat() { None } else { self.place.towards(from.0) };
        let Some(child) = towards else {
            self.arriving.push_back(Arriving::Message(from, bytes));
            return Ok(());
        };
        let rising = self.rising.entry(child).or_default();
        rising.say(from, bytes, !message.is_one_of_many(), self.began);
        self.rises(child, u64::MAX)
    }

    /// What waits at this neighbour comes, if so many speak through it.
    fn rises(&mut self, child: u32, nodes: u64) -> Result<(), String> {
        let fold = self.rising.get_mut(&child).and_then(|rising| rising.due(nodes, self.began));
        if let Some(fold) = fold {
            let child = NodeRank(child);
            let bytes = encoded(child, &PeerMessage::Fold(fold))?;
            self.arriving.push_back(Arriving::Message(child, bytes));
        }
        Ok(())
    }

    /// All that nodes have said comes; whether there was anything.
    fn all_rises(&mut self) -> Result<bool, String> {
        let children: Vec<u32> = self.rising.keys().copied().collect();
        children.into_iter().try_for_each(|child| self.rises(child, 0))?;
        Ok(!self.arriving.is_empty())
    }

    fn step(&mut self, input: Input) -> Result<(), String> {
        let begun = cpu_time();
        let outputs = self.lead.step(input);
        self.busy += cpu_time().saturating_sub(begun);
        self.longest = self.longest.max(cpu_time().saturating_sub(begun));
        for output in outputs {
            match output {
                Output::Command(nodes, command) => self.send(&nodes, &PeerMessage::Relay(command))?,
                Output::Start(id, job) => {
                    let nodes = job.nodes();
                    self.send(&nodes, &PeerMessage::StartJob(id, Box::new(job)))?;
                }
                Output::Pfs(task) => {
                    self.arriving.extend(Answers::of_pfs(&task).map(|o| Arriving::Here(Input::Pfs(o))));
                }
                Output::GiveUp(_, reason) => return Err(reason),
                Output::Ready(_) => self.is_ready = true,
                Output::Abort(..) | Output::Sealed(_) | Output::Halt(_) | Output::Note(..) => {}
            }
        }
        Ok(())
    }

    /// As the loop of a coordinator does it; then the nodes answer, which costs rank 0 nothing.
    fn send(&mut self, nodes: &[NodeRank], message: &PeerMessage) -> Result<(), String> {
        let begun = cpu_time();
        let bytes = Arc::new(encoded(LEAD, message)?);
        if self.place.is_flat() {
            let others = nodes.iter().filter(|node| **node != LEAD);
            self.sending.extend(others.map(|node| (*node, Arc::clone(&bytes))));
        } else {
            for (child, ranks) in self.place.route(&nodes.iter().copied().collect()).on {
                self.sending.push((child, Arc::new(encoded(LEAD, &PeerMessage::Pass(ranks))?)));
                self.sending.push((child, Arc::clone(&bytes)));
            }
        }
        self.busy += cpu_time().saturating_sub(begun);
        for node in nodes {
            if let Some(answer) = self.answers.of_node(*node, message) {
                self.says(*node, &answer)?;
            }
        }
        Ok(())
    }
}

fn encoded(from: NodeRank, message: &PeerMessage) -> Result<Vec<u8>, String> {
    open::encode(from, message).map_err(|error| error.to_string())
}

/// What this thread has had of a processor: what else runs on the machine does not count.
fn cpu_time() -> Duration {
    ClockId::CLOCK_THREAD_CPUTIME_ID.now().map_or(Duration::ZERO, Duration::from)
}

/// Bytes.
fn memory(what: &str) -> Result<u64, String> {
    let status =
        std::fs::read_to_string("/proc/self/status").map_err(|e| format!("/proc/self/status: {e}"))?;
    let line = status.lines().find_map(|line| line.strip_prefix(what)?.trim().strip_suffix(" kB"));
    let kib: u64 =
        line.and_then(|kib| kib.trim().parse().ok()).ok_or(format!("/proc/self/status: no {what}"))?;
    Ok(kib << 10)
}

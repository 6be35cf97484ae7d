//! `scrfs-perf-lead`: what a seal costs the lead's coordinator on many nodes: time, memory, and what
//! it sends through the tree. No node and no network is behind it: answers come at once, and what
//! is to be sent stays in memory until the seal is over, as if no node had taken any of it.
//!
//! `cargo build --release --workspace && target/release/scrfs-perf-lead`
//!
//! Exit 1 when a gate is missed.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "nothing of scrfs itself")]

mod answers;

use std::collections::VecDeque;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Parser;
use scrfs::ids::{Epoch, NodeRank};
use scrfs_coordinator::lead::{Input, Lead, Output};
use scrfs_coordinator::message::PeerMessage;
use scrfs_coordinator::open;
use scrfs_coordinator::tree::{FANOUT, Place};

use answers::Answers;

const LEAD: NodeRank = NodeRank(0);

/// What a seal may cost with up to so many nodes of 32 files each.
struct Gate {
    nodes: u32,
    time: Duration,
    /// Of one step, in which nothing else is served.
    step: Duration,
    /// Bytes.
    memory: u64,
    sent: u64,
}

const STEP: Duration = Duration::from_millis(100);

const GATES: [Gate; 2] = [
    Gate { nodes: 1000, time: Duration::from_millis(200), step: STEP, memory: 30_000_000, sent: 40_000_000 },
    Gate { nodes: 10_000, time: Duration::from_secs(3), step: STEP, memory: 200_000_000, sent: 400_000_000 },
];

/// What a seal did cost.
struct Cost {
    time: Duration,
    memory: u64,
    sent: u64,
    messages: u64,
    step: Duration,
}

#[derive(Parser)]
#[command(about = "Measures what a seal on many nodes costs rank 0")]
struct Arguments {
    /// Nodes.
    #[arg(long, default_value_t = 1000)]
    nodes: u32,
    /// Files of each node.
    #[arg(long, default_value_t = 32)]
    files: u32,
    /// Seals.
    #[arg(long, default_value_t = 5)]
    seals: u32,
}

/// Rank 0: the lead, and what it has to send.
struct Rank0 {
    lead: Lead,
    answers: Answers,
    arriving: VecDeque<Arriving>,
    place: Place,
    /// What no node has taken yet.
    sending: Vec<(NodeRank, Arc<Vec<u8>>)>,
    /// In the lead, in the codec, and in the queue of sends.
    busy: Duration,
    longest: Duration,
}

enum Arriving {
    Message(NodeRank, Vec<u8>),
    Here(Input),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match measure(&arguments) {
        Ok(cost) => {
            let gate = GATES.iter().find(|gate| arguments.nodes <= gate.nodes);
            let holds = gate.is_none_or(|gate| {
                cost.time <= gate.time
                    && cost.step <= gate.step
                    && cost.memory <= gate.memory
                    && cost.sent <= gate.sent
            });
            println!(
                "seal of {} nodes with {} files each, on rank 0: {:.3} s, longest step {:.3} s, {:.1} MB of memory, \
                 {:.1} MB sent in {} messages{}",
                arguments.nodes,
                arguments.files,
                cost.time.as_secs_f64(),
                cost.step.as_secs_f64(),
                mb(cost.memory),
                mb(cost.sent),
                cost.messages,
                gate.map(shown).unwrap_or_default()
            );
            if holds { ExitCode::SUCCESS } else { ExitCode::from(1) }
        }
        Err(error) => {
            eprintln!("scrfs-perf-lead: {error}");
            ExitCode::from(1)
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "shown with one digit")]
fn mb(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

fn shown(gate: &Gate) -> String {
    let (seconds, memory, sent) = (gate.time.as_secs_f64(), mb(gate.memory), mb(gate.sent));
    format!(" (gates {seconds} s, {} s, {memory} MB, {sent} MB)", gate.step.as_secs_f64())
}

/// The median time of the seals, and the most of all else.
fn measure(arguments: &Arguments) -> Result<Cost, String> {
    let answers = Answers::new(arguments.nodes, arguments.files);
    let mut rank0 = Rank0 {
        lead: Lead::new(),
        arriving: VecDeque::new(),
        sending: Vec::new(),
        place: Place::new(LEAD, arguments.nodes, FANOUT),
        busy: Duration::ZERO,
        longest: Duration::ZERO,
        answers,
    };
    let begin = rank0.answers.begin(Epoch(1))?;
    rank0.step(begin)?;
    rank0.settle()?;
    let mut times = Vec::new();
    let mut cost = Cost { time: Duration::ZERO, memory: 0, sent: 0, messages: 0, step: Duration::ZERO };
    rank0.longest = Duration::ZERO;
    for seal in 0..arguments.seals.max(1) {
        rank0.busy = Duration::ZERO;
        rank0.sending.clear();
        let before = memory("VmRSS:")?;
        std::fs::write("/proc/self/clear_refs", "5").map_err(|e| format!("/proc/self/clear_refs: {e}"))?;
        let marker = Answers::marker(&format!("ck.{seal}"));
        rank0.arriving.push_back(Arriving::Message(LEAD, encoded(LEAD, &PeerMessage::Report(marker))?));
        rank0.settle()?;
        if rank0.answers.sealed() != seal + 1 {
            return Err(format!("seal {seal} did not come to its end"));
        }
        times.push(rank0.busy);
        cost.memory = cost.memory.max(memory("VmHWM:")?.saturating_sub(before));
        cost.sent = cost.sent.max(rank0.sending.iter().map(|(_, bytes)| bytes.len() as u64).sum());
        cost.messages = cost.messages.max(rank0.sending.len() as u64);
    }
    times.sort_unstable();
    Ok(Cost { time: times[times.len() / 2], step: rank0.longest, ..cost })
}

impl Rank0 {
    /// Until nothing is on its way here.
    fn settle(&mut self) -> Result<(), String> {
        while let Some(arriving) = self.arriving.pop_front() {
            let begun = Instant::now();
            let input = match arriving {
                Arriving::Here(input) => input,
                Arriving::Message(from, bytes) => {
                    match open::decode(from, &bytes).map_err(|e| e.to_string())? {
                        PeerMessage::Report(event) => Input::Daemon(from, event),
                        PeerMessage::JobDone(id, result) => Input::Job(from, id, result),
                        other => return Err(format!("{other:?} for the lead")),
                    }
                }
            };
            self.busy += begun.elapsed();
            self.step(input)?;
        }
        Ok(())
    }

    fn step(&mut self, input: Input) -> Result<(), String> {
        let begun = Instant::now();
        let outputs = self.lead.step(input);
        self.busy += begun.elapsed();
        self.longest = self.longest.max(begun.elapsed());
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
                Output::GiveUp(reason) => return Err(reason),
                Output::Ready(_) | Output::Halt(_) | Output::Note(..) => {}
            }
        }
        Ok(())
    }

    /// As the loop of a coordinator does it; then the nodes answer, which costs rank 0 nothing.
    fn send(&mut self, nodes: &[NodeRank], message: &PeerMessage) -> Result<(), String> {
        let begun = Instant::now();
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
        self.busy += begun.elapsed();
        for node in nodes {
            if let Some(answer) = self.answers.of_node(*node, message) {
                self.arriving.push_back(Arriving::Message(*node, encoded(*node, &answer)?));
            }
        }
        Ok(())
    }
}

fn encoded(from: NodeRank, message: &PeerMessage) -> Result<Vec<u8>, String> {
    open::encode(from, message).map_err(|error| error.to_string())
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

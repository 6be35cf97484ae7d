//! `scrfs-perf-lead`: what a seal costs the lead's coordinator on many nodes: time and memory. No
//! node and no network is behind it: answers come at once, and what is to be sent stays in memory
//! until the seal is over, as if no node had taken any of it.
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

use answers::Answers;

const LEAD: NodeRank = NodeRank(0);

/// Of 1,000 nodes with 32 files each.
const TIME_MAX: Duration = Duration::from_millis(200);
const MEMORY_MAX: u64 = 50 << 20;

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
    /// What no node has taken yet.
    sending: Vec<(NodeRank, Arc<Vec<u8>>)>,
    /// In the lead, in the codec, and in the queue of sends.
    busy: Duration,
}

enum Arriving {
    Message(NodeRank, Vec<u8>),
    Here(Input),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match measure(&arguments) {
        Ok((time, bytes)) => {
            let holds = time <= TIME_MAX && bytes <= MEMORY_MAX;
            println!(
                "seal of {} nodes with {} files each, on rank 0: {:.3} s (gate {:.1}), {} MiB (gate {})",
                arguments.nodes,
                arguments.files,
                time.as_secs_f64(),
                TIME_MAX.as_secs_f64(),
                bytes >> 20,
                MEMORY_MAX >> 20
            );
            if holds { ExitCode::SUCCESS } else { ExitCode::from(1) }
        }
        Err(error) => {
            eprintln!("scrfs-perf-lead: {error}");
            ExitCode::from(1)
        }
    }
}

/// The median time of the seals, and the most memory that one of them took beyond what was there
/// before.
fn measure(arguments: &Arguments) -> Result<(Duration, u64), String> {
    let answers = Answers::new(arguments.nodes, arguments.files);
    let mut rank0 = Rank0 {
        lead: Lead::new(),
        arriving: VecDeque::new(),
        sending: Vec::new(),
        busy: Duration::ZERO,
        answers,
    };
    let begin = rank0.answers.begin(Epoch(1))?;
    rank0.step(begin)?;
    rank0.settle()?;
    let mut times = Vec::new();
    let mut most = 0;
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
        most = most.max(memory("VmHWM:")?.saturating_sub(before));
    }
    times.sort_unstable();
    Ok((times[times.len() / 2], most))
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
        self.sending.extend(nodes.iter().map(|node| (*node, Arc::clone(&bytes))));
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

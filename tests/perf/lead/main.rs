//! `scrfs-perf-lead`: what operations cost the lead's coordinator on many nodes: time, memory, and
//! what it sends through the tree. No node and no network is behind it: answers come at once, and
//! what is to be sent stays in memory until the operation is over, as if no node had taken any of
//! it.
//!
//! `cargo build --release --workspace && target/release/scrfs-perf-lead --nodes 64,1000,10000`
//!
//! Exit 1 when a gate is missed.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "nothing of scrfs itself")]

mod answers;
mod rank0;

use std::process::{Command, ExitCode};
use std::time::Duration;

use clap::{Parser, ValueEnum};

use answers::Answers;
use rank0::{Cost, Rank0};

/// What one operation may cost with up to so many nodes of 32 files each.
struct Gate {
    nodes: u32,
    time: Duration,
    /// Bytes.
    memory: u64,
    sent: u64,
}

const GATES: [Gate; 2] = [
    Gate { nodes: 1000, time: Duration::from_millis(200), memory: 30_000_000, sent: 40_000_000 },
    Gate { nodes: 10_000, time: Duration::from_secs(3), memory: 200_000_000, sent: 400_000_000 },
];
/// Of one step of the lead, in which nothing else is served.
const STEP: Duration = Duration::from_millis(100);

#[derive(Parser)]
#[command(about = "Measures what operations on many nodes cost rank 0")]
struct Arguments {
    /// Nodes: one number, or several with commas between them.
    #[arg(long, value_delimiter = ',', default_values_t = [1000])]
    nodes: Vec<u32>,
    /// Files of each node.
    #[arg(long, default_value_t = 32)]
    files: u32,
    /// How often each operation is done; the median of times counts, and the most of all else.
    #[arg(long, default_value_t = 3)]
    times: u32,
    /// Only this one.
    #[arg(long, value_enum)]
    operation: Option<Operation>,
}

/// What is done.
#[derive(Clone, Copy, clap::ValueEnum)]
enum Operation {
    /// A marker in a directory that was never sealed.
    Seal,
    /// Again in the same one, of which all files were changed.
    NextGeneration,
    /// One node makes a directory.
    Directory,
    /// Each node makes one.
    DirectoryEach,
    /// One node of the newest dataset is gone, and a spare takes its place.
    Restart,
}

impl Operation {
    fn name(self) -> &'static str {
        match self {
            Self::Seal => "seal",
            Self::NextGeneration => "seal of its next generation",
            Self::Directory => "mkdir",
            Self::DirectoryEach => "mkdir on each node",
            Self::Restart => "restart with a lost node",
        }
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let Some(operation) = arguments.operation else { return all(&arguments) };
    let mut holds = true;
    for &nodes in &arguments.nodes {
        match measure(operation, nodes, &arguments) {
            Ok(cost) => holds &= shown(operation, nodes, &cost),
            Err(error) => {
                eprintln!("scrfs-perf-lead: {}, {nodes} nodes: {error}", operation.name());
                return ExitCode::from(1);
            }
        }
    }
    if holds { ExitCode::SUCCESS } else { ExitCode::from(1) }
}

/// Each operation in a process of its own: what another one has freed is no memory of this one.
fn all(arguments: &Arguments) -> ExitCode {
    println!("| nodes | operation | CPU | longest step | memory | sent | messages | received |");
    println!("|---|---|---|---|---|---|---|---|");
    let mut holds = true;
    for nodes in &arguments.nodes {
        for operation in Operation::value_variants() {
            let name = operation.to_possible_value().map(|value| value.get_name().to_owned());
            let status = std::env::current_exe().and_then(|program| {
                let mut command = Command::new(program);
                command.arg(format!("--nodes={nodes}")).arg(format!("--files={}", arguments.files));
                command.arg(format!("--times={}", arguments.times));
                command.arg(format!("--operation={}", name.unwrap_or_default())).status()
            });
            holds &= status.is_ok_and(|status| status.success());
        }
    }
    if holds { ExitCode::SUCCESS } else { ExitCode::from(1) }
}

/// A line of the table; whether gates hold.
fn shown(operation: Operation, nodes: u32, cost: &Cost) -> bool {
    let gate = GATES.iter().find(|gate| nodes <= gate.nodes);
    let missed = |is: fn(&Gate, &Cost) -> bool| gate.is_some_and(|gate| is(gate, cost));
    let marks = [
        missed(|gate, cost| cost.time > gate.time),
        missed(|_, cost| cost.step > STEP),
        missed(|gate, cost| cost.memory > gate.memory),
        missed(|gate, cost| cost.sent > gate.sent),
    ];
    let [time, step, memory, sent] = marks.map(|missed| if missed { " (missed)" } else { "" });
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    println!(
        "| {nodes} | {} | {:.1} ms{time} | {:.1} ms{step} | {:.1} MB{memory} | {:.2} MB{sent} | {} | {} |",
        operation.name(),
        ms(cost.time),
        ms(cost.step),
        mb(cost.memory),
        mb(cost.sent),
        cost.messages,
        cost.received
    );
    !marks.contains(&true)
}

#[expect(clippy::cast_precision_loss, reason = "shown with one digit")]
fn mb(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

/// The median time, and the most of all else.
fn measure(operation: Operation, nodes: u32, arguments: &Arguments) -> Result<Cost, String> {
    let mut rank0 = Rank0::begun(Answers::new(nodes, arguments.files))?;
    let mut costs = Vec::new();
    for time in 0..arguments.times.max(1) {
        costs.push(match operation {
            Operation::Seal => rank0.seal(&format!("ck.{time}"))?,
            Operation::NextGeneration => {
                if time == 0 {
                    rank0.seal("ck")?;
                }
                rank0.seal("ck")?
            }
            Operation::Directory => rank0.make_directories(time, 1)?,
            Operation::DirectoryEach => rank0.make_directories(time, nodes)?,
            Operation::Restart => {
                rank0 = Rank0::begun(Answers::new(nodes, arguments.files))?;
                rank0.seal("ck")?;
                let (next, cost) = rank0.restart()?;
                rank0 = next;
                cost
            }
        });
    }
    costs.sort_unstable_by_key(|cost| cost.time);
    let most = |of: fn(&Cost) -> u64| costs.iter().map(of).max().unwrap_or(0);
    Ok(Cost {
        time: costs[costs.len() / 2].time,
        step: costs.iter().map(|cost| cost.step).max().unwrap_or_default(),
        memory: most(|cost| cost.memory),
        sent: most(|cost| cost.sent),
        messages: most(|cost| cost.messages),
        received: most(|cost| cost.received),
    })
}

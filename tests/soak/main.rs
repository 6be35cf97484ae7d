//! `scrfs-soak`: failures in numbers, on a simulated cluster with the real programs. Not part of
//! `tests/run`, since it takes minutes to hours; the figures are in
//! `scrfs/docs/failure-model.md`. Needs root.
//!
//! - `row`: one job loses node after node, at random moments and in random ways
//! - `losses`: each loss that each scheme promises to survive, on eight nodes
//! - `phases`: nodes are lost in each way, in each phase of a checkpoint's life
//! - `fewer`: eight nodes lose two, and the program goes on with six
//!
//! The program compares each byte of its own files and of another rank's at each start. The
//! PFS has no copy (`SCR_FLUSH=0`, `SCR_FETCH=0`). Panics at the first defect.
#![allow(clippy::print_stdout, reason = "nothing of scrfs itself")]

mod fewer;
mod losses;
mod phases;
mod row;
mod watch;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::{Parser, Subcommand};

/// A restart, or a step of the program, on a machine that has other things to do.
const LIMIT: Duration = Duration::from_mins(3);

#[derive(Parser)]
#[command(about = "Has jobs lose nodes, again and again")]
struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// One job, node after node.
    Row {
        /// Nodes that are lost.
        #[arg(long, default_value_t = 20)]
        failures: u32,
        /// Another seed has other nodes fail, in other ways, at other moments [default: the time].
        #[arg(long)]
        seed: Option<u64>,
    },
    /// Every loss that a scheme promises to survive.
    Losses,
    /// Each scheme, each way to lose a node, in each phase of a checkpoint's life. The programs
    /// need the feature `faults`.
    Phases {
        /// Nodes that are used; 3 more are spares.
        #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(4..=16))]
        nodes: u64,
        /// One scheme alone, such as XOR(1) or RS(2).
        #[arg(long)]
        only: Option<String>,
    },
    /// A restart with fewer nodes, and more ranks on each.
    Fewer,
}

fn main() {
    match Arguments::parse().what {
        What::Row { failures, seed } => {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            row::row(failures, seed.unwrap_or(now.as_secs()));
        }
        What::Phases { nodes, only } => {
            let nodes = usize::try_from(nodes).expect("a number of nodes");
            phases::phases(nodes, only.as_deref());
        }
        What::Losses => losses::losses(),
        What::Fewer => fewer::fewer(),
    }
}

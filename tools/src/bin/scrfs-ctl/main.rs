//! `scrfs-ctl`: questions and requests of operators, one file per verb.

mod events;
mod jobs;
mod list;
mod place;
mod print;
mod probe;
mod status;
mod wait;
mod watch;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use scrfs_tools::node::{MOUNT, Node};
use scrfs_tools::{Outcome, exit};

use crate::place::At;

/// Ask and steer scrfs.
#[derive(Debug, Parser)]
#[command(name = "scrfs-ctl", version, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, clap::Args)]
struct AtMount {
    /// Where scrfs is mounted.
    #[arg(long, value_name = "DIR", default_value = MOUNT)]
    mount: PathBuf,
}

impl AtMount {
    fn node(&self) -> Outcome<Node> {
        Node::at(&self.mount)
    }
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Mount mode, coordinator, datasets, and what the loss of each node would cost.
    Status {
        #[command(flatten)]
        at: At,
        /// One JSON object.
        #[arg(long, conflicts_with = "watch")]
        json: bool,
        /// Again every so many seconds, with bars; a line for each change where standard output is no terminal.
        #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1",
              value_parser = clap::value_parser!(u64).range(1..=86_400))]
        watch: Option<u64>,
    },
    /// Jobs mounted on this node and your jobs by the scheduler: state, newest protected dataset, current one.
    Jobs {
        /// A JSON array.
        #[arg(long)]
        json: bool,
    },
    /// Datasets, one per line, newest first: id, state, bytes, name.
    List {
        #[command(flatten)]
        at: At,
    },
    /// What happened on this node, oldest first, a JSON line each.
    Events {
        #[command(flatten)]
        at: At,
        /// How many, the newest ones.
        #[arg(short = 'n', value_name = "N", default_value_t = 20)]
        count: u32,
    },
    /// Begins or ends a record of each file's opens, bytes, time and failures at its last close, in the events.
    Records {
        #[command(flatten)]
        at: AtMount,
        /// Take them or not.
        #[arg(value_parser = ["on", "off"])]
        switch: String,
    },
    /// The tree in an SCR hash file of any generation, redundancy headers included.
    Print {
        /// The file.
        file: PathBuf,
    },
    /// Returns when nothing is being sealed or flushed any more.
    Wait {
        #[command(flatten)]
        at: AtMount,
        /// Give up after this many seconds (exit code 1).
        #[arg(long, value_name = "SECONDS", default_value_t = 600)]
        limit: u64,
        /// `SCR_FLUSH`: datasets whose flush is due are waited for, too [default: the job's].
        #[arg(long, value_name = "N")]
        every: Option<u32>,
    },
    /// For scrfs-run: is this node fit for use.
    #[command(hide = true)]
    Probe {
        #[command(flatten)]
        at: AtMount,
        /// End what carries this mark of a job.
        #[arg(long)]
        sweep: Option<String>,
        /// Do not look at the mount.
        #[arg(long)]
        unmounted: bool,
    },
}

fn main() -> ExitCode {
    exit("scrfs-ctl", carry_out(Arguments::parse().verb))
}

fn carry_out(verb: Verb) -> Outcome {
    match verb {
        Verb::Status { at, watch: Some(seconds), .. } => {
            watch::watch(&at.place()?, Duration::from_secs(seconds))
        }
        Verb::Status { at, json, watch: None } => status::status(&at.place()?, json),
        Verb::Jobs { json } => jobs::jobs(json),
        Verb::List { at } => list::list(&at.place()?),
        Verb::Events { at, count } => events::events(&at.place()?, count),
        Verb::Records { at, switch } => at.node()?.record_io(switch == "on"),
        Verb::Print { file } => print::print(&file),
        Verb::Wait { at, limit, every } => wait::wait(&at.node()?, limit, every),
        Verb::Probe { at, sweep, unmounted } => {
            probe::probe((!unmounted).then_some(at.mount.as_path()), sweep.as_deref())
        }
    }
}

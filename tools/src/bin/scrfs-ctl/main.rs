//! `scrfs-ctl`: questions and requests of operators, one file per verb.

mod events;
mod list;
mod print;
mod probe;
mod status;
mod wait;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use scrfs::manual::{self, Page};
use scrfs_tools::node::{MOUNT, Node};
use scrfs_tools::{Outcome, exit};

/// What the manual says beside the command line.
const PAGE: Page = Page { name: "scrfs-ctl", section: 1, text: include_str!("scrfs-ctl.1") };

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
        at: AtMount,
        /// One JSON object.
        #[arg(long)]
        json: bool,
    },
    /// Datasets, one per line, newest first: id, state, bytes, name.
    List {
        #[command(flatten)]
        at: AtMount,
    },
    /// What happened on this node, oldest first, a JSON line each.
    Events {
        #[command(flatten)]
        at: AtMount,
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
    if let Some(written) = manual::when_asked(std::env::args_os(), Arguments::command, PAGE, false) {
        return written;
    }
    exit("scrfs-ctl", carry_out(Arguments::parse().verb))
}

fn carry_out(verb: Verb) -> Outcome {
    match verb {
        Verb::Status { at, json } => status::status(&at.node()?, json),
        Verb::List { at } => list::list(&at.node()?),
        Verb::Events { at, count } => events::events(&at.node()?, count),
        Verb::Records { at, switch } => at.node()?.record_io(switch == "on"),
        Verb::Print { file } => print::print(&file),
        Verb::Wait { at, limit, every } => wait::wait(&at.node()?, limit, every),
        Verb::Probe { at, sweep, unmounted } => {
            probe::probe((!unmounted).then_some(at.mount.as_path()), sweep.as_deref())
        }
    }
}

//! `scrfs-ctl`: questions and requests of operators, one file per verb.

mod events;
mod flush;
mod halt;
mod list;
mod print;
mod probe;
mod save;
mod status;
mod time;
mod wait;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use scrfs_tools::node::{MOUNT, Node};
use scrfs_tools::{Outcome, exit};

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
    /// Has a dataset copied to the parallel file system, whatever SCR_FLUSH says.
    Flush {
        #[command(flatten)]
        at: AtMount,
        /// Its name [default: the newest protected one].
        dataset: Option<OsString>,
        /// Return when it is there.
        #[arg(long)]
        wait: bool,
        /// Give up waiting after this many seconds (exit code 1).
        #[arg(long, value_name = "SECONDS", default_value_t = 600, requires = "wait")]
        limit: u64,
        /// One JSON object.
        #[arg(long)]
        json: bool,
    },
    /// Stops a job at its next checkpoint, at a time, or at once; works without a mount, in the prefix.
    Halt(halt::Wish),
    /// For scrfs-run, at the end of a job: brings to the parallel file system what is to be there, or names it.
    #[command(hide = true)]
    Save {
        #[command(flatten)]
        at: AtMount,
        /// Give up after this many seconds.
        #[arg(long, value_name = "SECONDS")]
        limit: u64,
        /// The newest protected dataset, whatever `SCR_FLUSH` says.
        #[arg(long)]
        newest: bool,
        /// `SCR_FLUSH`: what is due is waited for.
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
        Verb::Status { at, json } => status::status(&at.node()?, json),
        Verb::List { at } => list::list(&at.node()?),
        Verb::Events { at, count } => events::events(&at.node()?, count),
        Verb::Records { at, switch } => at.node()?.record_io(switch == "on"),
        Verb::Print { file } => print::print(&file),
        Verb::Wait { at, limit, every } => wait::wait(&at.node()?, limit, every),
        Verb::Flush { at, dataset, wait, limit, json } => {
            let wait = wait.then(|| Duration::from_secs(limit));
            flush::flush(&at.node()?, dataset.as_deref(), wait, json)
        }
        Verb::Halt(wish) => halt::halt(&wish),
        Verb::Save { at, limit, newest, every } => {
            save::save(&at.node()?, Duration::from_secs(limit), newest, every)
        }
        Verb::Probe { at, sweep, unmounted } => {
            probe::probe((!unmounted).then_some(at.mount.as_path()), sweep.as_deref())
        }
    }
}

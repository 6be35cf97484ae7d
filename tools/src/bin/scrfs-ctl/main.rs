//! `scrfs-ctl`: questions and requests of operators, one file per verb.

mod agent;
mod crowd;
mod events;
mod flush;
mod halt;
mod jobs;
mod list;
mod living;
mod place;
mod print;
mod probe;
mod save;
mod scavenge;
mod scrub;
mod status;
mod time;
mod wait;
mod watch;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{CommandFactory, Parser, Subcommand};
use scrfs::manual::{self, Page};
use scrfs_tools::node::{Node, mount_point};
use scrfs_tools::{Outcome, exit, session};

use crate::place::At;

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
    /// Where scrfs is mounted [default: SCRFS_MOUNT, else /scr].
    #[arg(long, value_name = "DIR")]
    mount: Option<PathBuf>,
}

impl AtMount {
    fn node(&self) -> Outcome<Node> {
        Node::at(&self.point()?)
    }

    fn point(&self) -> Outcome<PathBuf> {
        mount_point(self.mount.clone())
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
        /// Again every so many seconds, with bars; a line for each change where standard output is
        /// no terminal.
        #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1",
              allow_negative_numbers = true, value_parser = clap::value_parser!(u64).range(1..=86_400))]
        watch: Option<u64>,
    },
    /// Jobs mounted on this node and your jobs by the scheduler, for root all users': state, newest
    /// protected dataset, current one.
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
        #[arg(short = 'n', value_name = "N", default_value_t = 20, allow_negative_numbers = true)]
        count: u32,
    },
    /// Begins or ends a record of each file's opens, bytes, time and failures at its last close, in
    /// the events.
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
    /// Returns when nothing is being sealed or flushed any more, or when one dataset is protected.
    Wait {
        #[command(flatten)]
        at: AtMount,
        /// Wait for this dataset alone; it may not have begun yet.
        dataset: Option<OsString>,
        /// Until it is protected (the default).
        #[arg(long, requires = "dataset", conflicts_with = "flushed")]
        protected: bool,
        /// Until it is on the parallel file system.
        #[arg(long, requires = "dataset")]
        flushed: bool,
        /// Give up after this many seconds (exit code 1).
        #[arg(long, value_name = "SECONDS", default_value_t = 600, allow_negative_numbers = true)]
        limit: u64,
        /// `SCR_FLUSH`: datasets whose flush is due are waited for, too [default: the job's].
        #[arg(long, value_name = "N", conflicts_with = "dataset")]
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
        #[arg(
            long,
            value_name = "SECONDS",
            default_value_t = 600,
            allow_negative_numbers = true,
            requires = "wait"
        )]
        limit: u64,
        /// One JSON object.
        #[arg(long)]
        json: bool,
    },
    /// Has the cached bytes of sealed datasets compared with their checksums on all nodes, while
    /// programs run. Members with bad bytes are rebuilt from their sets; what cannot be is named
    /// (exit code 1).
    Scrub {
        #[command(flatten)]
        at: AtMount,
        /// Its name [default: all that are sealed, newest first].
        dataset: Option<OsString>,
        /// Give up waiting for one after this many seconds (exit code 1); it goes on.
        #[arg(long, value_name = "SECONDS", default_value_t = 600, allow_negative_numbers = true)]
        limit: u64,
        /// A JSON object for each dataset.
        #[arg(long)]
        json: bool,
    },
    /// Stops a job at its next checkpoint, at a time, or at once; works without a mount, in the
    /// prefix.
    Halt(halt::Wish),
    /// Publishes what nodes have saved in the prefix when a job ended without its coordinators, as
    /// the job's next start does: members whose nodes are lost are rebuilt. What cannot be
    /// published is named (exit code 1).
    Scavenge {
        /// The job's directory on the parallel file system
        /// [default: SCR_PREFIX, else the working directory].
        #[arg(long, value_name = "DIR")]
        prefix: Option<PathBuf>,
        /// One JSON object.
        #[arg(long)]
        json: bool,
    },
    /// For scrfs-run, at the end of a job: brings to the parallel file system what is to be there,
    /// or names it.
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
    /// For mpirun: becomes its daemon on this node, whose files are where nobody else can be first.
    #[command(hide = true)]
    MpiAgent {
        /// The daemon and its arguments.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
        command: Vec<OsString>,
    },
    /// For an epilog, as the job's user: takes away what Open MPI's daemons of ended runs have
    /// left.
    #[command(hide = true)]
    MpiSweep,
    /// For scrfs-run: is this node fit for use.
    #[command(hide = true)]
    Probe {
        #[command(flatten)]
        at: AtMount,
        /// End what carries this mark of a job.
        #[arg(long)]
        sweep: Option<String>,
        /// Count what may be processes of the program that carries this mark.
        #[arg(long)]
        count: Option<String>,
        /// The process of that program's launcher, beside scrfs-run.
        #[arg(long, requires = "count")]
        launcher: Option<u32>,
        /// The file of its coordinators.
        #[arg(long, requires = "count")]
        coordinator: Option<PathBuf>,
        /// Have datasets in this directory of the mount, as `SCRFS_CHECKPOINT_PATH` names it.
        #[arg(long, value_name = "PATH")]
        checkpoint_path: Option<OsString>,
        /// The job has ended.
        #[arg(long)]
        ended: bool,
    },
}

fn main() -> ExitCode {
    if let Some(written) = manual::when_asked(std::env::args_os(), Arguments::command, PAGE, false) {
        return written;
    }
    exit("scrfs-ctl", carry_out(scrfs::usage::parse::<Arguments>("scrfs-ctl").verb))
}

fn carry_out(verb: Verb) -> Outcome {
    match verb {
        Verb::Status { at, watch: Some(seconds), .. } => {
            watch::watch(&at.place()?, Duration::from_secs(seconds))
        }
        Verb::Status { at, json: true, watch: None } => status::json(&at.place()?),
        Verb::Status { at, json: false, watch: None } => status::status(&at.places()?),
        Verb::Jobs { json } => jobs::jobs(json),
        Verb::List { at } => list::list(&at.place()?),
        Verb::Events { at, count } => events::events(&at.place()?, count),
        Verb::Records { at, switch } => at.node()?.record_io(switch == "on"),
        Verb::Print { file } => print::print(&file),
        Verb::Wait { at, dataset: Some(name), protected: _, flushed, limit, every: _ } => {
            let until = if flushed { wait::Until::Flushed } else { wait::Until::Protected };
            wait::wait_for(&at.node()?, &name, until, Duration::from_secs(limit))
        }
        Verb::Wait { at, limit, every, .. } => wait::wait(&at.node()?, limit, every),
        Verb::Flush { at, dataset, wait, limit, json } => {
            let wait = wait.then(|| Duration::from_secs(limit));
            flush::flush(&at.node()?, dataset.as_deref(), wait, json)
        }
        Verb::Scrub { at, dataset, limit, json } => {
            scrub::scrub(&at.node()?, dataset.as_deref(), Duration::from_secs(limit), json)
        }
        Verb::Halt(wish) => halt::halt(&wish),
        Verb::Scavenge { prefix, json } => scavenge::scavenge(prefix.as_ref(), json),
        Verb::Save { at, limit, newest, every } => {
            save::save(&at.node()?, Duration::from_secs(limit), newest, every)
        }
        Verb::MpiAgent { command } => Err(agent::become_daemon(command)),
        Verb::MpiSweep => {
            session::sweep_after_job();
            Ok(())
        }
        Verb::Probe { at, sweep, count, launcher, coordinator, checkpoint_path, ended } => {
            if let Some(mark) = count {
                return crowd::count(&mark, launcher, coordinator.as_deref());
            }
            let point = at.point()?;
            if ended {
                return probe::ended(&point, sweep.as_deref());
            }
            probe::probe(&point, sweep.as_deref(), checkpoint_path.as_deref())
        }
    }
}

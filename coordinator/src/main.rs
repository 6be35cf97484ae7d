//! scrfs-coordinator: see the library's documentation. This file puts the parts together; the loop
//! is in `run`.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use scrfs::config::hosts;
use scrfs::control::Start;
use scrfs::manual::{self, Page};
use scrfs_coordinator::comm::mpi::MpiTransport;
use scrfs_coordinator::service::{self, Options};

/// What the manual says beside the command line.
const PAGE: Page = Page { name: "scrfs-coordinator", section: 8, text: include_str!("scrfs-coordinator.8") };

/// Protects, rebuilds and flushes checkpoints, one on each node of a job
///
/// `scrfs-run` starts them, as one MPI job. When programs may start, the first one prints a line
/// that begins with `scrfs-ready` on standard output.
#[derive(Debug, Parser)]
#[command(name = "scrfs-coordinator", version)]
#[command(group(clap::ArgGroup::new("start").required(true).args(["attach", "restart"])))]
struct Arguments {
    /// Where scrfs is mounted on every node.
    #[arg(long, default_value = "/scr")]
    mount: PathBuf,
    /// Programs run: settle what is in doubt; present, hide and remove nothing.
    #[arg(long)]
    attach: bool,
    /// No program runs: choose a dataset, rebuild, present it, remove junk.
    #[arg(long)]
    restart: bool,
    /// The job's directory on the parallel file system (SCR_PREFIX).
    #[arg(long, value_name = "DIR")]
    prefix: Option<PathBuf>,
    /// The job's id (SCR_JOB_ID).
    #[arg(long, value_name = "ID")]
    job_id: Option<String>,
    /// Where the program runs; default: where coordinators do.
    #[arg(long, value_name = "HOSTS", value_parser = program_hosts)]
    program_hosts: Option<ProgramHosts>,
    /// A restart presents no dataset of an earlier epoch.
    #[arg(long, value_name = "EPOCH", default_value_t = 0)]
    not_before: u64,
    /// Which of several scrfs-runs of the job, on different nodes, this belongs to.
    #[arg(long, default_value = "", hide_default_value = true)]
    name: String,
    /// The file that standard error is: it is kept small.
    #[arg(long, hide = true, value_name = "FILE")]
    log: Option<PathBuf>,
}

/// Hosts by name, as they are listed on command lines.
#[derive(Debug, Clone, Default)]
struct ProgramHosts(Vec<String>);

fn program_hosts(list: &str) -> Result<ProgramHosts, String> {
    hosts::expand(list).map(ProgramHosts)
}

fn main() -> ExitCode {
    if let Some(written) = manual::when_asked(std::env::args_os(), Arguments::command, PAGE, false) {
        return written;
    }
    let arguments = scrfs::usage::parse::<Arguments>("scrfs-coordinator");
    if let Some(log) = &arguments.log {
        scrfs::log::keep_bounded(log);
    }
    scrfs::usage::raise_descriptors();
    scrfs::priority::threads::be_prompt();
    let start = if arguments.restart { Start::Restart } else { Start::Attach };
    let Arguments { mount, prefix, job_id, program_hosts, not_before, name, .. } = arguments;
    let ProgramHosts(program_hosts) = program_hosts.unwrap_or_default();
    let options = Options { mount, start, prefix, job_id, program_hosts, not_before, name };
    match MpiTransport::new() {
        Ok(transport) => service::serve(transport, &options),
        Err(error) => {
            // Whether anybody reads it changes nothing.
            drop(writeln!(std::io::stderr(), "scrfs-coordinator: {error}"));
            ExitCode::FAILURE
        }
    }
}

//! `scrfs-run`: runs a program so that it outlives its nodes. In reading order:
//!
//! - `arguments`: the command line and the parameters, as one checked value
//! - `supervise`: what is done when; a state machine
//! - `prefix`: whether the prefix can be written
//! - `launcher`: the command lines of mpirun
//! - `drive`: carries out what `supervise` decides
//! - `announce`: reads that programs may start
//! - `process`: starting and ending process groups
//! - `look`: how nodes are

mod announce;
mod arguments;
mod drive;
mod launcher;
mod look;
mod prefix;
mod process;
mod supervise;

use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use scrfs::manual::{self, Page};
use scrfs_tools::{Outcome, exit};

/// What the manual says beside the command line.
const PAGE: Page = Page { name: "scrfs-run", section: 1, text: include_str!("scrfs-run.1") };

fn main() -> ExitCode {
    let command = arguments::Arguments::command;
    if let Some(written) = manual::when_asked(std::env::args_os(), command, PAGE, false) {
        return written;
    }
    match run() {
        Ok(code) => ExitCode::from(code),
        Err(failure) => exit("scrfs-run", Err(failure)),
    }
}

fn run() -> Outcome<u8> {
    let job = arguments::Arguments::parse().into_job()?;
    if job.enable { drive::supervised(job) } else { drive::plain(job) }
}

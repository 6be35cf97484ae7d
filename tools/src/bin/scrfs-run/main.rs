//! `scrfs-run`: runs a program so that it outlives its nodes. In reading order:
//!
//! - `arguments`: the command line and the parameters, as one checked value
//! - `forgotten`: what to say when `--` is missing
//! - `allocation`: when it ends, and whether it outlives a node
//! - `supervise`: what is done when; a state machine
//! - `prefix`: whether the prefix can be written, and what the halt file says
//! - `launcher`: the command lines of mpirun, srun and others, and what they say
//! - `layout`, `scheduler`: what the allocation says
//! - `drive`: carries out what `supervise` decides
//! - `announce`, `talk`: what coordinators announce, and what launchers say
//! - `input`: the program's standard input, at each run
//! - `process`: starting and ending process groups
//! - `look`, `reach`: how nodes are

mod allocation;
mod announce;
mod apart;
mod arguments;
mod drive;
mod forgotten;
mod input;
mod launcher;
mod layout;
mod look;
mod prefix;
mod process;
mod reach;
mod scheduler;
mod supervise;
mod talk;

use std::process::ExitCode;

use clap::CommandFactory;
use scrfs::manual::{self, Page};
use scrfs::status::people::shortened;
use scrfs_tools::Outcome;

/// What the manual says beside the command line.
const PAGE: Page = Page { name: "scrfs-run", section: 1, text: include_str!("scrfs-run.1") };

fn main() -> ExitCode {
    let command = arguments::Arguments::command;
    if let Some(written) = manual::when_asked(std::env::args_os(), command, PAGE, false) {
        return written;
    }
    let code = run().unwrap_or_else(|failure| {
        talk::line(&shortened(&format!("scrfs-run: {}", failure.message)));
        talk::line(&shortened(&format!("hint: {}", failure.hint)));
        failure.code
    });
    talk::finish();
    ExitCode::from(code)
}

fn run() -> Outcome<u8> {
    drive::supervised(forgotten::parse(&std::env::args_os().collect::<Vec<_>>())?.into_job()?)
}

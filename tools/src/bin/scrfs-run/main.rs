//! `scrfs-run`: runs a program so that it outlives its nodes. In reading order:
//!
//! - `arguments`: the command line and the parameters, as one checked value
//! - `forgotten`: what to say when `--` is missing
//! - `supervise`: what is done when; a state machine
//! - `prefix`: whether the prefix can be written
//! - `launcher`: the command lines of mpirun, srun and others, and what they say
//! - `layout`, `scheduler`: what the allocation says
//! - `drive`: carries out what `supervise` decides
//! - `announce`, `talk`: what coordinators announce, and what launchers say
//! - `input`: the program's standard input, at each run
//! - `process`: starting and ending process groups
//! - `look`, `reach`: how nodes are

mod announce;
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

use scrfs_tools::{Outcome, exit};

fn main() -> ExitCode {
    match run() {
        Ok(code) => ExitCode::from(code),
        Err(failure) => exit("scrfs-run", Err(failure)),
    }
}

fn run() -> Outcome<u8> {
    let job = forgotten::parse(&std::env::args_os().collect::<Vec<_>>())?.into_job()?;
    if job.enable { drive::supervised(job) } else { drive::plain(job) }
}

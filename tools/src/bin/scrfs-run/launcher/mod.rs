//! Launchers: programs that start processes on nodes. One trait, one file for each driver; pure:
//! what is to run in, program, arguments and environment out; a piece of what it said in, what that
//! means out.
//!
//! - `lines`: the command lines of one job
//! - `choose`: which driver a job gets
//! - `mpirun`, `srun`, `none`, `pernode`, `pbs`, `flux`: the drivers

mod choose;
mod flux;
mod lines;
mod mpirun;
mod none;
mod pbs;
mod pernode;
mod srun;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

use nix::sys::signal::Signal;

pub(crate) use choose::{Asked, Surroundings, choose};
pub(crate) use lines::{Lines, Restart};
pub(crate) use srun::is_of_a_restart;

/// A command, ready to be started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CommandLine {
    pub(crate) program: OsString,
    pub(crate) arguments: Vec<OsString>,
    /// All of it; nothing is inherited.
    pub(crate) environment: BTreeMap<OsString, OsString>,
    /// Where it runs; `None`: in this program's working directory.
    pub(crate) directory: Option<PathBuf>,
}

/// What is to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Task {
    pub(crate) hosts: Vec<String>,
    pub(crate) per_node: usize,
    pub(crate) command: Vec<OsString>,
    /// All of it.
    pub(crate) environment: BTreeMap<OsString, OsString>,
    pub(crate) kind: Kind,
    pub(crate) cpus: Cpus,
}

/// What each process of a program has of its node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Cpus {
    /// What its launcher gives it.
    #[default]
    Any,
    /// So many, for threads.
    Each(usize),
    /// It starts others: whatever there is.
    All,
}

/// Whose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The user's: placed and bound as the launcher does it, and as the user asks.
    Program,
    /// Ours: a guest on cores that are the program's.
    Service,
    /// The same, and no MPI program.
    Tool,
}

/// What a launcher said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Said {
    /// It has lost these nodes.
    Lost(Vec<String>),
    /// It waits for something that others have.
    Waits,
    /// It could not start what was to run; to try the same again is of no use.
    Refused(Refusal),
    /// It could not launch on these nodes, or these tasks.
    NotLaunched(NotLaunched),
    /// An error of its own, in its words; else it is as noise.
    Failed(String),
    /// What it says when something else has gone wrong; of interest only when nothing else explains
    /// the end.
    Noise,
}

/// On which nodes, or what of a task, nothing could be launched.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct NotLaunched {
    pub(crate) hosts: Vec<String>,
    /// By their numbers.
    pub(crate) tasks: Vec<usize>,
    pub(crate) what: String,
}

/// A launch error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) what: String,
    pub(crate) hint: &'static str,
}

/// A driver.
pub(crate) trait Launcher: fmt::Debug + Send + Sync {
    /// As people name it.
    fn name(&self) -> &'static str;

    /// The command that runs the task.
    fn line(&self, task: Task) -> CommandLine;

    /// The meaning of a line or block of its standard error, if that is the launcher's own. `pid`
    /// is the launcher's.
    fn understand(&self, text: &str, pid: u32) -> Option<Said>;

    /// Asks it to have a service end by itself.
    fn stop_signal(&self) -> Signal {
        Signal::SIGTERM
    }

    /// Arguments of `/bin/sh` that send `signal` to the program's processes, where the launcher, of
    /// which `pid` is the process here, does not pass it on.
    fn signal(&self, signal: Signal, pid: u32) -> Option<Vec<OsString>> {
        let _ = (signal, pid);
        None
    }

    /// The program itself is started: nothing stands between it and scrfs-run.
    fn is_program(&self) -> bool {
        false
    }

    /// It says more than a line at a time, between lines of this beginning.
    fn fence(&self) -> Option<&'static str> {
        None
    }
}

/// The host that follows `key` in a text.
fn word_after<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let rest = &text[text.find(key)? + key.len()..];
    let word = rest.split(|c: char| c.is_whitespace() || c == ',').find(|word| !word.is_empty())?;
    Some(word.trim_end_matches(['.', ':', ';']))
}

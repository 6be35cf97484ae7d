//! No launcher: one process on this host.

use std::collections::BTreeMap;
use std::ffi::OsString;

use super::{CommandLine, Launcher, Said, Task};

/// Starts the task itself.
#[derive(Debug, Clone)]
pub(crate) struct Alone;

impl Launcher for Alone {
    fn name(&self) -> &'static str {
        "none"
    }

    fn line(&self, task: Task) -> CommandLine {
        let Task { command, environment, .. } = task;
        let mut words = command.into_iter();
        let program = words.next().unwrap_or_default();
        CommandLine { program, arguments: words.collect(), environment: plain(environment), directory: None }
    }

    fn is_program(&self) -> bool {
        true
    }

    fn understand(&self, _: &str, _: u32) -> Option<Said> {
        None
    }
}

/// The task is rank 0 of its own; whatever this program is.
fn plain(mut environment: BTreeMap<OsString, OsString>) -> BTreeMap<OsString, OsString> {
    environment.remove(std::ffi::OsStr::new("SLURM_PROCID"));
    environment
}

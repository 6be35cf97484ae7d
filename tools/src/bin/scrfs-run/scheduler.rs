//! What Slurm says when it is asked. Every question is bounded; no answer is no answer.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::time::Duration;

use scrfs::allocation::{PMIX_QUESTIONS, has_pmix, hides_something};
use scrfs::config::hosts::list;

use crate::launcher::CommandLine;
use crate::look::{Ended, bounded};

/// A controller that is slow tells nothing that a look at the nodes does not.
const LIMIT: Duration = Duration::from_secs(2);
/// The plugins are files of this host.
const PLUGINS_LIMIT: Duration = Duration::from_secs(5);

/// The answers to [`PMIX_QUESTIONS`], if there is an srun.
pub(crate) fn mpi_plugins() -> Option<String> {
    let [list, load] = PMIX_QUESTIONS;
    let srun = |words: &[&str]| {
        ask("srun", &words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>(), PLUGINS_LIMIT)
    };
    let list = srun(list)?;
    let load = if has_pmix(&list) { srun(load) } else { None };
    Some(list + "\n" + &load.unwrap_or_default())
}

/// What Slurm says of a node that is not simply in use, with its word for the state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It is gone: what ran there does not run any more.
    Lost(String),
    /// New jobs are not to use it; those that have it go on.
    Leaving(String),
}

/// The standing of those of `hosts` that have one; empty outside of an allocation. `None`: in an
/// allocation, whose scheduler does not answer.
pub(crate) fn standings(hosts: &[String]) -> Option<BTreeMap<String, Standing>> {
    if std::env::var_os("SLURM_JOB_ID").is_none_or(|id| id.is_empty()) {
        return Some(BTreeMap::new());
    }
    let arguments = ["-h", "-N", "-o", "%N %T", "-n", &list(hosts)].map(str::to_owned);
    // Where it cannot be asked at all it says nothing of itself either.
    ended("sinfo", &arguments, LIMIT).map_or_else(|| Some(BTreeMap::new()), |answer| told(&answer))
}

fn told(answer: &Ended) -> Option<BTreeMap<String, Standing>> {
    match answer.code {
        Some(0) => Some(read_states(&answer.output)),
        Some(_) if !answer.output.contains("Unable to contact slurm controller") => Some(BTreeMap::new()),
        _ => None,
    }
}

/// Whether the batch script asks Slurm to keep the allocation when a node of it fails. `None`:
/// there is no script, or Slurm does not show it. (What `sbatch` was given besides is kept nowhere
/// that can be asked.)
pub(crate) fn script_keeps_allocation(job: &str) -> Option<bool> {
    let arguments = ["write", "batch_script", job, "-"].map(str::to_owned);
    ask("scontrol", &arguments, LIMIT)
        .filter(|script| script.starts_with("#!"))
        .map(|script| has_no_kill(&script))
}

fn has_no_kill(script: &str) -> bool {
    let words =
        script.lines().filter_map(|line| line.strip_prefix("#SBATCH")).flat_map(str::split_whitespace);
    words
        .filter_map(|word| word.strip_prefix("--no-kill").or_else(|| word.strip_prefix("-k")))
        .any(str::is_empty)
}

fn ask(program: &str, arguments: &[String], limit: Duration) -> Option<String> {
    ended(program, arguments, limit).filter(|ended| ended.code.is_some()).map(|ended| ended.output)
}

fn ended(program: &str, arguments: &[String], limit: Duration) -> Option<Ended> {
    let line = CommandLine {
        program: program.into(),
        arguments: arguments.iter().map(OsString::from).collect(),
        // A node of another cluster may be called as one of this job's.
        environment: std::env::vars_os().filter(|(name, _)| !hides_something(name)).collect(),
        directory: Some("/".into()),
    };
    bounded(&line, limit, true).ok()
}

/// One that merely does not answer (`*`) is asked by us. `failing` is `fail` while a job runs
/// there. A node that was drained and then lost is `drained` too: whether it answers is ours to
/// find out.
fn read_states(answer: &str) -> BTreeMap<String, Standing> {
    const LOST: [&str; 4] = ["down", "fail", "powered_down", "powering_down"];
    const LEAVING: [&str; 5] = ["drain", "drained", "draining", "failing", "power_down"];
    let rows = answer.lines().filter_map(|line| line.split_once(' '));
    rows.filter_map(|(host, state)| {
        let state = state.trim();
        let plain = state.trim_end_matches(['*', '~', '#', '!', '%', '$', '@', '^', '-']);
        let standing = match plain {
            _ if LOST.contains(&plain) => Standing::Lost(state.to_owned()),
            _ if LEAVING.contains(&plain) => Standing::Leaving(state.to_owned()),
            _ => return None,
        };
        Some((host.to_owned(), standing))
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_batch_script_asks_for() {
        for (line, expected) in [
            ("#SBATCH --no-kill", true),
            ("#SBATCH -N 4 --no-kill -t 1:00", true),
            ("#SBATCH -k", true),
            ("#SBATCH --no-kill=off", false),
            ("##SBATCH --no-kill", false),
            ("scrfs-run --no-kill", false),
        ] {
            assert_eq!(has_no_kill(&format!("#!/bin/sh\n#SBATCH -n 3\n{line}\n")), expected, "{line}");
        }
    }

    #[test]
    fn no_answer_in_time_or_no_controller_is_no_answer() {
        let answer = |code, output: &str| Ended { output: output.to_owned(), code, signal: None };
        assert!(told(&answer(None, "")).is_none());
        let away = "slurm_load_node: Unable to contact slurm controller (connect failure)";
        assert!(told(&answer(Some(1), away)).is_none());
        for other in [answer(Some(127), "sinfo: not found"), answer(Some(0), "node0 allocated\n")] {
            assert_eq!(told(&other), Some(BTreeMap::new()), "{other:?}");
        }
    }

    /// Recorded from Slurm 22.05.
    #[test]
    fn states_as_sinfo_writes_them() {
        let answer = "node0 allocated\nnode1 down*\nnode2 drained\nnode3 mixed\nnode4 allocated*\nnode5 draining\n\
             node6 powering_down\nnode7 failing\nnode8 fail\n";
        let states: Vec<_> = read_states(answer)
            .into_iter()
            .map(|(host, standing)| match standing {
                Standing::Lost(state) => format!("{host} lost: {state}"),
                Standing::Leaving(state) => format!("{host} leaving: {state}"),
            })
            .collect();
        assert_eq!(
            states,
            [
                "node1 lost: down*",
                "node2 leaving: drained",
                "node5 leaving: draining",
                "node6 lost: powering_down",
                "node7 leaving: failing",
                "node8 lost: fail"
            ]
        );
        assert!(read_states("").is_empty() && read_states("sinfo: error: x\n").is_empty());
    }
}

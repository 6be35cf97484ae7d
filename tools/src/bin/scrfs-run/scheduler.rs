//! What Slurm says when it is asked. Every question is bounded; no answer is no answer.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::time::Duration;

use crate::launcher::CommandLine;
use crate::look::bounded;

/// A controller that is slow tells nothing that a look at the nodes does not.
const LIMIT: Duration = Duration::from_secs(2);
/// The plugins are files of this host.
const PLUGINS_LIMIT: Duration = Duration::from_secs(5);

/// The answer to `srun --mpi=list`, if there is an srun.
pub(crate) fn mpi_plugins() -> Option<String> {
    ask("srun", &["--mpi=list".to_owned()], PLUGINS_LIMIT)
}

/// Nodes of `hosts` that Slurm says not to use, each with its state. Empty outside of an allocation.
pub(crate) fn unfit(hosts: &[String]) -> BTreeMap<String, String> {
    if std::env::var_os("SLURM_JOB_ID").is_none_or(|id| id.is_empty()) {
        return BTreeMap::new();
    }
    let arguments = ["-h", "-N", "-o", "%N %T", "-n", &hosts.join(",")].map(str::to_owned);
    ask("sinfo", &arguments, LIMIT).map(|answer| read_states(&answer)).unwrap_or_default()
}

/// Whether the batch script asks Slurm to keep the allocation when a node of it fails. `None`: there is no script, or Slurm
/// does not show it. (What `sbatch` was given besides is kept nowhere that can be asked.)
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
    let line = CommandLine {
        program: program.into(),
        arguments: arguments.iter().map(OsString::from).collect(),
        environment: std::env::vars_os().collect(),
        directory: Some("/".into()),
    };
    bounded(&line, limit, true).ok().filter(|ended| ended.code.is_some()).map(|ended| ended.output)
}

/// States that say that a node is lost or is not to be used any more. One that merely does not answer (`*`) is asked by
/// us.
fn read_states(answer: &str) -> BTreeMap<String, String> {
    const UNFIT: [&str; 7] = ["down", "drain", "drained", "draining", "fail", "failing", "powered_down"];
    let rows = answer.lines().filter_map(|line| line.split_once(' '));
    rows.map(|(host, state)| (host, state.trim()))
        .filter(|(_, state)| {
            UNFIT.contains(&state.trim_end_matches(['*', '~', '#', '!', '%', '$', '@', '^', '-']))
        })
        .map(|(host, state)| (host.to_owned(), state.to_owned()))
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

    /// Recorded from Slurm 22.05.
    #[test]
    fn states_as_sinfo_writes_them() {
        let answer =
            "node0 allocated\nnode1 down*\nnode2 drained\nnode3 mixed\nnode4 allocated*\nnode5 draining\n";
        let unfit: Vec<_> = read_states(answer).into_iter().map(|(h, s)| format!("{h} {s}")).collect();
        assert_eq!(unfit, ["node1 down*", "node2 drained", "node5 draining"]);
        assert!(read_states("").is_empty() && read_states("sinfo: error: x\n").is_empty());
    }
}

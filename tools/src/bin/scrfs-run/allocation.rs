//! What the scheduler knows of the allocation: when it ends, where the environment does not say so, and whether it outlives
//! a node.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};

pub(crate) use scrfs::allocation::now;
use scrfs::allocation::{self, SLURM_JOB};
use scrfs_tools::output;

use crate::scheduler;

/// When it ends, seconds since 1970, if anybody knows. `set`: by SCRFS_END_TIME or the scheduler's environment; 0: by
/// neither. Then Slurm is asked.
pub(crate) fn end_time(set: u64, environment: &BTreeMap<OsString, OsString>) -> Option<u64> {
    let now = now();
    if set > now {
        return Some(set);
    }
    if set > 0 {
        output::talk(&format!(
            "scrfs-run: warning: SCRFS_END_TIME is {set}, which is past: it has no effect"
        ));
        return None;
    }
    let job = environment.get(OsStr::new(SLURM_JOB)).filter(|job| !job.is_empty())?;
    allocation::end_time(job, environment.clone()).unwrap_or_else(|why| unknown(&why))
}

/// Says so when the script does not ask for an allocation that outlives a node, as far as can be known.
pub(crate) fn look_for_no_kill(environment: &BTreeMap<OsString, OsString>) {
    let set = |name: &str| {
        environment.get(OsStr::new(name)).and_then(|value| value.to_str()).filter(|v| !v.is_empty())
    };
    let Some(job) = set("SLURM_JOB_ID").filter(|_| set("SBATCH_NO_KILL").is_none()) else { return };
    if scheduler::script_keeps_allocation(job) == Some(false) {
        output::talk(
            "scrfs-run: warning: the batch script has no `#SBATCH --no-kill`: unless sbatch was given it, Slurm ends the job \
             when a node fails",
        );
        output::talk(
            "hint: with it in the script, or SBATCH_NO_KILL=yes, the program goes on on the nodes that are left",
        );
    }
}

fn unknown(why: &str) -> Option<u64> {
    output::talk(&format!("scrfs-run: warning: when the allocation ends is not known ({why})"));
    output::talk("hint: set SCRFS_END_TIME, so that the newest dataset is saved before that");
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_set_counts_unless_it_is_past() {
        let none = BTreeMap::new();
        assert_eq!(end_time(u64::MAX, &none), Some(u64::MAX));
        assert_eq!(end_time(1, &none), None);
        assert_eq!(end_time(0, &none), None);
    }
}

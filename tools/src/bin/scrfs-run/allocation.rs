//! What the scheduler knows of the allocation: when it ends, where the environment does not say so, and whether it outlives
//! a node.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use scrfs::bounded;
use scrfs_tools::output;

use crate::scheduler;

/// A scheduler that takes longer is not asked again.
const LIMIT: Duration = Duration::from_secs(10);

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// When it ends, seconds since 1970, if anybody knows. `set`: by SCRFS_END_TIME or the scheduler's environment; 0: by
/// neither. Slurm before 23.02 does not set it, and is asked for the time that is left: that needs no time zone.
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
    let job = environment.get(OsStr::new("SLURM_JOB_ID")).filter(|job| !job.is_empty())?.clone();
    let environment = environment.clone();
    let ask = move || {
        let mut squeue = Command::new("squeue");
        squeue.args(["-h", "-o", "%L", "-j"]).arg(job).env_clear().envs(environment).output()
    };
    match bounded::within(LIMIT, ask) {
        Ok(answer) if answer.status.success() => {
            let left = left(&String::from_utf8_lossy(&answer.stdout));
            left.map(|left| now.saturating_add(left))
        }
        Ok(answer) => {
            let said = String::from_utf8_lossy(&answer.stderr);
            unknown(said.lines().next().unwrap_or("squeue failed"))
        }
        Err(error) => unknown(&format!("squeue: {error}")),
    }
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

/// Seconds in `days-hours:minutes:seconds`; `None` for a job without a limit.
fn left(text: &str) -> Option<u64> {
    let (days, clock) = match text.trim().split_once('-') {
        Some((days, clock)) => (days.parse::<u64>().ok()?, clock),
        None => (0, text.trim()),
    };
    let parts: Option<Vec<u64>> = clock.split(':').map(|part| part.parse().ok()).collect();
    let parts = parts.filter(|parts| (2..=3).contains(&parts.len()))?;
    let seconds = parts.iter().try_fold(0_u64, |sum, part| sum.checked_mul(60)?.checked_add(*part))?;
    days.checked_mul(86_400)?.checked_add(seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_squeue_says() {
        let cases = [
            ("4:59\n", Some(299)),
            ("1:00:00", Some(3600)),
            ("2-03:04:05\n", Some(2 * 86_400 + 3 * 3600 + 245)),
            ("0:00", Some(0)),
            ("UNLIMITED", None),
            ("NOT_SET", None),
            ("INVALID", None),
            ("", None),
            ("7", None),
            ("1:2:3:4", None),
            ("99999999999999999999:00", None),
        ];
        for (text, seconds) in cases {
            assert_eq!(left(text), seconds, "{text}");
        }
    }

    #[test]
    fn what_is_set_counts_unless_it_is_past() {
        let none = BTreeMap::new();
        assert_eq!(end_time(u64::MAX, &none), Some(u64::MAX));
        assert_eq!(end_time(1, &none), None);
        assert_eq!(end_time(0, &none), None);
    }
}

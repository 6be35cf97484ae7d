//! When an allocation ends, asked of the scheduler where the environment does not say so.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::bounded;

/// Names Slurm's job in the environment of its processes.
pub const SLURM_JOB: &str = "SLURM_JOB_ID";
/// A scheduler that takes longer is not asked again.
const LIMIT: Duration = Duration::from_secs(10);

/// Seconds since 1970.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// When the Slurm job `job` ends, in seconds since 1970; `None`: it has no limit. Slurm before 23.02 does not set it in the
/// environment, and is asked for the time that is left: that needs no time zone. `environment` is squeue's.
///
/// # Errors
/// Why Slurm does not tell, in its own words if it has any.
pub fn end_time(job: &OsStr, environment: BTreeMap<OsString, OsString>) -> Result<Option<u64>, String> {
    let (job, now) = (job.to_owned(), now());
    let ask = move || {
        let mut squeue = Command::new("squeue");
        squeue.args(["-h", "-o", "%L", "-j"]).arg(job).env_clear().envs(environment).output()
    };
    match bounded::within(LIMIT, ask) {
        Ok(answer) if answer.status.success() => {
            let left = left(&String::from_utf8_lossy(&answer.stdout));
            Ok(left.map(|left| now.saturating_add(left)))
        }
        Ok(answer) => {
            let said = String::from_utf8_lossy(&answer.stderr);
            Err(said.lines().next().unwrap_or("squeue failed").to_owned())
        }
        Err(error) => Err(format!("squeue: {error}")),
    }
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
    fn squeue_is_asked_in_the_environment_that_is_given() {
        use std::os::unix::fs::PermissionsExt;

        let dir = tempfile::tempdir().unwrap();
        let squeue = dir.path().join("squeue");
        let script = "#!/bin/sh\n[ \"$*\" = '-h -o %L -j 77' ] || { echo \"no job: $*\" >&2; exit 1; }\necho \"$LEFT\"\n";
        std::fs::write(&squeue, script).unwrap();
        std::fs::set_permissions(&squeue, std::fs::Permissions::from_mode(0o755)).unwrap();
        let ask = |job: &str, left: &str| {
            let set = [("PATH", dir.path().as_os_str()), ("LEFT", left.as_ref())];
            let set = set.map(|(name, value)| (OsString::from(name), value.to_owned()));
            end_time(job.as_ref(), set.into())
        };
        let before = now();
        let told = ask("77", "1:00").unwrap().unwrap();
        assert!((before + 60..=now() + 60).contains(&told), "{told}");
        assert_eq!(ask("77", "UNLIMITED"), Ok(None));
        assert_eq!(ask("78", ""), Err("no job: -h -o %L -j 78".to_owned()));
        std::fs::remove_file(squeue).unwrap();
        assert!(ask("77", "1:00").unwrap_err().starts_with("squeue: "));
    }
}

//! What schedulers tell: when an allocation ends, where the environment does not say so, and
//! whether Slurm starts MPI programs.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::bounded;

/// Names Slurm's job in the environment of its processes.
pub const SLURM_JOB: &str = "SLURM_JOB_ID";
/// When Slurm ended the job, had nobody moved that.
pub const SLURM_END: &str = "SLURM_JOB_END_TIME";
/// A scheduler that takes longer is not asked again.
const LIMIT: Duration = Duration::from_secs(10);

/// Seconds since 1970.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn set<'a>(environment: &'a BTreeMap<OsString, OsString>, name: &str) -> Option<&'a str> {
    environment.get(OsStr::new(name)).and_then(|value| value.to_str()).filter(|v| !v.is_empty())
}

/// The end that parameters say is the user's own word, and not the scheduler's, which may move it.
/// 0: they say none.
pub fn is_users(known: u64, environment: &BTreeMap<OsString, OsString>) -> bool {
    known > 0
        && (set(environment, "SCRFS_END_TIME").is_some()
            || set(environment, SLURM_END).and_then(|text| text.parse().ok()) != Some(known))
}

/// A variable that gives one of Slurm's commands options that nobody sees: by it the command tells
/// of some users, states, partitions or nodes only, or of another cluster. Where it matters what is
/// not told, commands run without such variables.
pub fn hides_something(variable: &OsStr) -> bool {
    let begins = ["SQUEUE_", "SINFO_", "SCONTROL_", "SCANCEL_"];
    variable == "SLURM_CLUSTERS"
        || begins.iter().any(|begin| variable.as_encoded_bytes().starts_with(begin.as_bytes()))
}

/// The command that asks the scheduler for the time that is left: that needs no time zone. `None`:
/// nobody tells.
pub fn question(environment: &BTreeMap<OsString, OsString>) -> Option<Vec<String>> {
    let words = if let Some(job) = set(environment, SLURM_JOB) {
        vec!["squeue", "-h", "-o", "%L %A", "-j", job]
    } else if set(environment, "FLUX_URI").is_some() {
        vec!["flux", "job", "timeleft"]
    } else {
        return None;
    };
    Some(words.into_iter().map(str::to_owned).collect())
}

/// What is asked of `srun` to know whether it has PMIx: which plugins there are, and whether the
/// one for PMIx can be loaded. Debian's needs `libpmix.so`, which only `libpmix-dev` has. The
/// second submits nothing; where the controller does not answer, or refuses such a job, the first
/// counts.
pub const PMIX_QUESTIONS: [&[&str]; 2] =
    [&["--mpi=list"], &["--mpi=pmix", "--test-only", "--nodes=1", "--ntasks=1", "true"]];

/// Whether Slurm has a plugin for PMIx that can be used, by all that `srun` prints to standard
/// output and error when it is asked the [`PMIX_QUESTIONS`].
pub fn has_pmix(answers: &str) -> bool {
    let refused = ["Invalid MPI type", "can not load PMIx library"];
    !refused.iter().any(|words| answers.contains(words))
        && answers
            .split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
            .any(|word| word == "pmix" || word.starts_with("pmix_v"))
}

/// When the job ends, in seconds since 1970, by the answer to `question`; `None`: it has no limit.
/// Slurm before 23.02 does not set it in the environment. `environment` is the command's.
///
/// # Errors
/// Why the scheduler does not tell, in its own words if it has any.
pub fn end_time(
    question: &[String],
    environment: BTreeMap<OsString, OsString>,
) -> Result<Option<u64>, String> {
    let [program, arguments @ ..] = question else { return Ok(None) };
    let (name, now, arguments) = (program.clone(), now(), arguments.to_vec());
    let environment: BTreeMap<_, _> =
        environment.into_iter().filter(|(name, _)| !hides_something(name)).collect();
    let ask =
        move || Command::new(name).args(arguments).env_clear().envs(environment).current_dir("/").output();
    match bounded::within(LIMIT, ask) {
        Ok(answer) if answer.status.success() => {
            let left = left(question, &String::from_utf8_lossy(&answer.stdout))?;
            Ok(left.map(|left| now.saturating_add(left)))
        }
        Ok(answer) => {
            let said = String::from_utf8_lossy(&answer.stderr);
            Err(said.lines().next().map_or_else(|| format!("{program} failed"), str::to_owned))
        }
        Err(error) => Err(format!("{program}: {error}")),
    }
}

/// The seconds that are left, by what the command of `question` has printed; `None` for a job
/// without a limit.
///
/// # Errors
/// That is no time, or not of this job. Of a job array whose id is that of one of its tasks Slurm
/// lists all tasks, each with its own id.
pub fn left(question: &[String], output: &str) -> Result<Option<u64>, String> {
    let job = question.last().map(String::as_str).unwrap_or_default();
    let lines = output.lines().map(str::split_whitespace).map(Iterator::collect::<Vec<_>>);
    let told = lines.filter_map(|words| match *words.as_slice() {
        [time, id] if id == job => Some((true, time)),
        // Flux tells of one job, and gives no id.
        [time] => Some((false, time)),
        _ => None,
    });
    let Some((_, time)) = told.max_by_key(|(is_own, _)| *is_own) else {
        let program = question.first().map(String::as_str).unwrap_or_default();
        return Err(format!("{program} does not tell of this job: {:?}", output.trim()));
    };
    if ["UNLIMITED", "inf", "infinity"].contains(&time) {
        return Ok(None);
    }
    seconds(time).map(Some).ok_or_else(|| format!("the time that is left is {time:?}"))
}

/// In `days-hours:minutes:seconds`, or a number of seconds (Flux).
fn seconds(text: &str) -> Option<u64> {
    if !text.contains(':') {
        return text.trim().parse::<f64>().ok().filter(|n| n.is_finite() && *n >= 0.0).map(whole);
    }
    let (days, clock) = match text.trim().split_once('-') {
        Some((days, clock)) => (days.parse::<u64>().ok()?, clock),
        None => (0, text.trim()),
    };
    let parts: Option<Vec<u64>> = clock.split(':').map(|part| part.parse().ok()).collect();
    let parts = parts.filter(|parts| (2..=3).contains(&parts.len()))?;
    let seconds = parts.iter().try_fold(0_u64, |sum, part| sum.checked_mul(60)?.checked_add(*part))?;
    days.checked_mul(86_400)?.checked_add(seconds)
}

fn whole(seconds: f64) -> u64 {
    Duration::try_from_secs_f64(seconds).map_or(u64::MAX, |whole| whole.as_secs())
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
            ("NOT_SET", None),
            ("INVALID", None),
            ("", None),
            ("7", Some(7)),
            ("3599.5\n", Some(3599)),
            ("-7", None),
            ("1:2:3:4", None),
            ("99999999999999999999:00", None),
        ];
        for (text, seconds) in cases {
            let told = left(&["flux".to_owned()], text);
            assert_eq!(told.clone().ok(), seconds.map(Some), "{text}: {told:?}");
        }
        for text in ["UNLIMITED\n", "inf", "infinity"] {
            assert_eq!(left(&["flux".to_owned()], text), Ok(None), "{text}");
        }
    }

    #[test]
    fn of_an_arrays_tasks_the_own_one() {
        let question = |job| question(&environment(&[(SLURM_JOB, job)])).unwrap();
        let tasks = "59:00 8\n1:00 7\nUNLIMITED 9\n";
        for (job, expected) in [("7", Ok(Some(60))), ("8", Ok(Some(3540))), ("9", Ok(None))] {
            assert_eq!(left(&question(job), tasks), expected, "{job}");
        }
        let other = left(&question("6"), tasks).unwrap_err();
        assert!(other.contains("squeue does not tell of this job: \"59:00 8"), "{other}");
        assert_eq!(
            left(&question("7"), "INVALID 7\n"),
            Err("the time that is left is \"INVALID\"".to_owned())
        );
    }

    fn environment(set: &[(&str, &str)]) -> BTreeMap<OsString, OsString> {
        set.iter().map(|(name, value)| (name.into(), value.into())).collect()
    }

    #[test]
    fn who_is_asked() {
        let words = |set: &[(&str, &str)]| question(&environment(set)).map(|words| words.join(" "));
        assert_eq!(words(&[(SLURM_JOB, "7")]).as_deref(), Some("squeue -h -o %L %A -j 7"));
        assert_eq!(words(&[(SLURM_JOB, ""), ("FLUX_URI", "x")]).as_deref(), Some("flux job timeleft"));
        assert_eq!(words(&[("PBS_JOBID", "7")]), None);
    }

    #[test]
    fn the_user_s_word_is_told_from_the_scheduler_s() {
        for (known, set, users) in [
            (0, &[][..], false),
            (9, &[(SLURM_END, "9")], false),
            (9, &[(SLURM_END, "9"), ("SCRFS_END_TIME", "9")], true),
            // From a file.
            (9, &[(SLURM_END, "8")], true),
            (9, &[], true),
        ] {
            assert_eq!(is_users(known, &environment(set)), users, "{known} {set:?}");
        }
    }

    #[test]
    fn variables_that_hide_something() {
        let hides = |name: &&str| hides_something(OsStr::new(name));
        assert!(["SQUEUE_STATES", "SINFO_PARTITION", "SLURM_CLUSTERS"].iter().all(hides));
        assert!(!["SLURM_CONF", SLURM_JOB, "PATH", "SLURM_CLUSTER_NAME"].iter().any(hides));
    }

    #[test]
    fn squeue_is_asked_in_the_environment_that_is_given() {
        use std::os::unix::fs::PermissionsExt;

        let dir = tempfile::tempdir().unwrap();
        let squeue = dir.path().join("squeue");
        let script = "#!/bin/sh\n[ \"$*$SQUEUE_USERS\" = '-h -o %L %A -j 77' ] || { echo \"no job: $*\" >&2; exit 1; }\necho \"$LEFT 77\"\n";
        std::fs::write(&squeue, script).unwrap();
        std::fs::set_permissions(&squeue, std::fs::Permissions::from_mode(0o755)).unwrap();
        let ask = |job: &str, left: &str| {
            let path = dir.path().to_str().unwrap();
            let set =
                environment(&[("PATH", path), ("LEFT", left), (SLURM_JOB, job), ("SQUEUE_USERS", "eve")]);
            end_time(&question(&set).unwrap(), set)
        };
        let before = now();
        let told = ask("77", "1:00").unwrap().unwrap();
        assert!((before + 60..=now() + 60).contains(&told), "{told}");
        assert_eq!(ask("77", "UNLIMITED"), Ok(None));
        assert_eq!(ask("78", ""), Err("no job: -h -o %L %A -j 78".to_owned()));
        std::fs::remove_file(squeue).unwrap();
        assert!(ask("77", "1:00").unwrap_err().starts_with("squeue: "));
    }
}

//! What the scheduler knows of the allocation: its hosts and its end, where the environment does
//! not say them, and whether it outlives a node.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::time::Duration;

pub(crate) use scrfs::allocation::now;
use scrfs::allocation::{SLURM_END, is_users, left, question};
use scrfs_tools::{Failure, Outcome};

use crate::launcher::{Asked, CommandLine};
use crate::look;
use crate::scheduler;
use crate::talk;

/// A scheduler that takes longer is not waited for.
const LIMIT: Duration = Duration::from_secs(10);
const AGAIN_LIMIT: Duration = Duration::from_secs(2);
/// More hosts than any allocation has.
const HOSTS_BYTES_MAX: usize = 1 << 20;

fn set<'a>(environment: &'a BTreeMap<OsString, OsString>, name: &str) -> Option<&'a str> {
    environment.get(OsStr::new(name)).and_then(|value| value.to_str()).filter(|v| !v.is_empty())
}

/// The end of the allocation.
#[derive(Debug, Clone, Default)]
pub(crate) struct End {
    /// Seconds since 1970; `None`: it is not known, or there is none.
    pub(crate) at: Option<u64>,
    /// Whom to ask again: an operator may have moved it. `None`: the user has set it, or nobody
    /// knows.
    pub(crate) question: Option<Question>,
}

/// How a scheduler is asked for the time that is left: that needs no time zone.
#[derive(Debug, Clone)]
pub(crate) struct Question {
    words: Vec<String>,
    line: CommandLine,
}

impl Question {
    fn of(environment: &BTreeMap<OsString, OsString>) -> Option<Self> {
        question(environment).map(|words| Self { line: command(&words, environment), words })
    }

    /// Asks again. What was known holds where no answer comes soon: a relaunch does not wait for a
    /// scheduler.
    pub(crate) fn ask_again(&self) -> Result<Option<u64>, String> {
        self.ask(AGAIN_LIMIT)
    }

    /// When it ends, seconds since 1970; `None`: never.
    fn ask(&self, limit: Duration) -> Result<Option<u64>, String> {
        let failed = || format!("{} failed", self.line.program.display());
        let ended = look::bounded(&self.line, limit, true).map_err(|e| format!("{}: {e}", failed()))?;
        if ended.code != Some(0) {
            let mut lines = ended.output.lines().map(str::trim).filter(|line| !line.is_empty());
            return Err(lines.next().map_or_else(failed, str::to_owned));
        }
        let left = left(&self.words, &ended.output)?;
        Ok(left.map(|left| now().saturating_add(left)))
    }
}

fn command(words: &[impl AsRef<OsStr>], environment: &BTreeMap<OsString, OsString>) -> CommandLine {
    CommandLine {
        program: words[0].as_ref().into(),
        arguments: words[1..].iter().map(OsString::from).collect(),
        environment: environment.clone(),
        directory: Some("/".into()),
    }
}

/// Finds it. `known`: by `SCRFS_END_TIME` or the scheduler's environment; 0: by neither. Slurm
/// before 23.02 does not set it. What is past counts as not set.
pub(crate) fn end(known: u64, environment: &BTreeMap<OsString, OsString>) -> End {
    let (is_users, is_past) = (is_users(known, environment), known > 0 && known <= now());
    if is_past {
        let name = if is_users { "SCRFS_END_TIME" } else { SLURM_END };
        talk::tell(&format!("warning: {name} is {known}, which is past: it has no effect"));
    }
    let of_scheduler = || set(environment, SLURM_END).and_then(|text| text.parse().ok()).unwrap_or(0);
    let known = if is_past { of_scheduler() } else { known };
    let is_users = is_users && !is_past;
    let question = Question::of(environment).filter(|_| !is_users);
    if known > now() {
        return End { at: Some(known), question };
    }
    let asked = match &question {
        Some(question) => question.ask(LIMIT),
        None if !is_users && set(environment, "PBS_JOBID").is_some() => {
            Err("PBS does not tell its jobs".to_owned())
        }
        None => Ok(None),
    };
    match asked {
        Ok(at) => End { at, question },
        Err(why) => {
            talk::tell(&format!("warning: when the allocation ends is not known ({why})"));
            talk::line("hint: set SCRFS_END_TIME, so that the newest dataset is saved before that");
            End { at: None, question }
        }
    }
}

/// The hosts of an allocation whose scheduler sets no variable that lists them; `None`: this
/// launcher's does.
pub(crate) fn hosts(asked: Asked, environment: &BTreeMap<OsString, OsString>) -> Outcome<Option<String>> {
    let (found, whose) = match asked {
        Asked::Pbs => (pbs_hosts(environment), "a PBS job has them in the file that PBS_NODEFILE names"),
        Asked::Flux => (flux_hosts(environment), "in a Flux instance `flux resource list` has them"),
        _ => return Ok(None),
    };
    found.map(Some).map_err(|why| {
        Failure::new(format!("which hosts to use is not known: {why}"))
            .hint(format!("name them with --hosts; {whose}"))
            .code(2)
    })
}

/// Each is in the file as often as it has processes.
fn pbs_hosts(environment: &BTreeMap<OsString, OsString>) -> Result<String, String> {
    let path = set(environment, "PBS_NODEFILE").ok_or("PBS_NODEFILE is not set")?;
    let text = std::fs::read(path).map_err(|e| format!("{path}: {e}"))?;
    let text = String::from_utf8_lossy(&text[..text.len().min(HOSTS_BYTES_MAX)]).into_owned();
    in_order(text.lines()).ok_or_else(|| format!("{path} names none"))
}

fn flux_hosts(environment: &BTreeMap<OsString, OsString>) -> Result<String, String> {
    let line = command(&["flux", "resource", "list", "-s", "up", "-n", "-o", "{nodelist}"], environment);
    let ended = look::bounded(&line, LIMIT, true).map_err(|e| format!("flux: {e}"))?;
    if ended.code != Some(0) {
        return Err(format!("`flux resource list`: {}", ended.output.lines().next().unwrap_or("failed")));
    }
    in_order(ended.output.lines()).ok_or_else(|| "`flux resource list` names none".to_owned())
}

/// Each once, with commas.
fn in_order<'a>(lines: impl Iterator<Item = &'a str>) -> Option<String> {
    let mut hosts: Vec<&str> = Vec::new();
    for host in lines.map(str::trim).filter(|host| !host.is_empty()) {
        if !hosts.contains(&host) {
            hosts.push(host);
        }
    }
    (!hosts.is_empty()).then(|| hosts.join(","))
}

/// Says so when the script does not ask for an allocation that outlives a node, as far as can be
/// known.
pub(crate) fn look_for_no_kill(environment: &BTreeMap<OsString, OsString>) {
    let Some(job) = set(environment, "SLURM_JOB_ID").filter(|_| set(environment, "SBATCH_NO_KILL").is_none())
    else {
        return;
    };
    if scheduler::script_keeps_allocation(job) == Some(false) {
        talk::line(
            "scrfs-run: warning: the batch script has no `#SBATCH --no-kill`: unless sbatch was given it, Slurm ends the job \
             when a node fails",
        );
        talk::line(
            "hint: with it in the script, or SBATCH_NO_KILL=yes, the program goes on on the nodes that are left",
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(set: &[(&str, &str)]) -> BTreeMap<OsString, OsString> {
        set.iter().map(|(name, value)| (name.into(), value.into())).collect()
    }

    #[test]
    fn what_is_set_counts_unless_it_is_past() {
        let none = environment(&[]);
        assert_eq!(end(u64::MAX, &none).at, Some(u64::MAX));
        assert_eq!(end(1, &none).at, None);
        assert_eq!(end(0, &none).at, None);
    }

    #[test]
    fn what_the_user_has_set_is_nobody_elses_to_move() {
        let later = now() + 1000;
        let text = later.to_string();
        let slurm = ("SLURM_JOB_ID", "7");
        for (set, asks) in [
            (vec![slurm, ("SLURM_JOB_END_TIME", text.as_str())], true),
            (vec![slurm, ("SCRFS_END_TIME", text.as_str()), ("SLURM_JOB_END_TIME", "5")], false),
            // From a file.
            (vec![slurm], false),
            (vec![("SLURM_JOB_END_TIME", text.as_str())], false),
        ] {
            let found = end(later, &environment(&set));
            assert_eq!((found.at, found.question.is_some()), (Some(later), asks), "{set:?}");
        }
        // What is past leaves it to the scheduler.
        let past = [slurm, ("SCRFS_END_TIME", "5"), ("SLURM_JOB_END_TIME", text.as_str())];
        let found = end(5, &environment(&past));
        assert_eq!((found.at, found.question.is_some()), (Some(later), true));
    }

    #[test]
    fn hosts_of_a_pbs_job_and_a_flux_instance() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("nodes");
        std::fs::write(&file, "n2.site\nn2.site\nn1.site\n\nn2.site\n").unwrap();
        let path = file.to_str().unwrap();
        let pbs = hosts(Asked::Pbs, &environment(&[("PBS_NODEFILE", path)])).unwrap();
        assert_eq!(pbs.as_deref(), Some("n2.site,n1.site"));
        let missing = hosts(Asked::Pbs, &environment(&[])).unwrap_err();
        assert!(missing.message.contains("PBS_NODEFILE is not set"), "{missing}");
        assert!(missing.hint.contains("--hosts"));
        assert_eq!(hosts(Asked::Auto, &environment(&[])).unwrap(), None);

        let flux = place.path().join("flux");
        let script =
            "#!/bin/sh\ntest \"$*\" = 'resource list -s up -n -o {nodelist}' && echo 'node[0-3],fat'\n";
        std::fs::write(&flux, script).unwrap();
        std::fs::set_permissions(&flux, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let path = format!("{}:/bin:/usr/bin", place.path().display());
        let found = flux_hosts(&environment(&[("PATH", &path)]));
        assert_eq!(found.as_deref(), Ok("node[0-3],fat"));
    }
}

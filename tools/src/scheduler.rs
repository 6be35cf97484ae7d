//! What the scheduler knows of jobs, asked of `squeue` within a limit. A machine without one has no
//! such jobs.

use std::io::{self, Read};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use scrfs::bounded;
pub use scrfs::config::hosts::short;

use crate::{Failure, Outcome};

/// A controller that is away lets `squeue` hang.
const LIMIT: Duration = Duration::from_secs(10);
/// More output than this is not read.
const OUTPUT_MAX: u64 = 4 << 20;
/// Between two fields of a line; neither directories nor comments have it.
const SEPARATOR: char = '\u{1f}';
/// Id, user, state, nodes, comment, working directory. The id is the job's own, as SLURM_JOB_ID and
/// mounts have it, also of one of an array or of a heterogeneous job (79_2, 80+1).
const FIELDS: &str = "%A\u{1f}%u\u{1f}%T\u{1f}%N\u{1f}%k\u{1f}%Z";

/// A job as the scheduler tells of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScheduledJob {
    /// Its id.
    pub id: String,
    /// Whose it is.
    pub user: String,
    /// The scheduler's word: `RUNNING`, `PENDING`, ...
    pub state: String,
    /// Its nodes as the scheduler writes them; empty before it has any.
    pub nodes: String,
    /// Where it was submitted, or what its comment says (`SCR_PREFIX=DIR`).
    pub prefix: PathBuf,
}

impl ScheduledJob {
    /// It will not run any more.
    pub fn is_over(&self) -> bool {
        !self.runs()
            && !matches!(self.state.as_str(), "PENDING" | "CONFIGURING" | "REQUEUED" | "REQUEUE_HOLD")
    }

    /// It runs, also when it is about to end.
    pub fn runs(&self) -> bool {
        matches!(self.state.as_str(), "RUNNING" | "COMPLETING" | "SUSPENDED" | "STOPPED")
    }
}

/// A job by its id, as long as the scheduler remembers it; `None`: there is no scheduler, or it
/// does not know the job any more.
pub fn job(id: &str) -> Outcome<Option<ScheduledJob>> {
    if id.is_empty() || !id.chars().all(|c| c.is_ascii_alphanumeric() || "_-[].+".contains(c)) {
        return Err(Failure::new(format!("--job {id:?}: no job id"))
            .hint("`squeue --me` shows the ids of your jobs")
            .code(2));
    }
    // Also one that has just ended: its prefix is where the last status is.
    match ask(&["--states=all", "-j", id]) {
        Ok(jobs) => Ok(chosen(jobs, id)),
        Err(Problem::Absent) => Ok(None),
        // It fails for one that it does not know.
        Err(Problem::Said(words)) if words.contains("Invalid job id") => Ok(None),
        Err(Problem::Said(words)) => Err(says(&words)),
    }
}

/// Of the tasks of an array, one of which has the array's id, that one.
fn chosen(mut jobs: Vec<ScheduledJob>, id: &str) -> Option<ScheduledJob> {
    let at = jobs.iter().position(|job| job.id == id).unwrap_or(0);
    (at < jobs.len()).then(|| jobs.swap_remove(at))
}

/// Of whom jobs are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whose {
    /// This user's.
    Mine,
    /// Everybody's that this user may see.
    All,
}

/// The jobs that wait or run; none where there is no scheduler.
pub fn jobs(whose: Whose) -> Outcome<Vec<ScheduledJob>> {
    let arguments: &[&str] = match whose {
        Whose::Mine => &["--me"],
        Whose::All => &[],
    };
    match ask(arguments) {
        Err(Problem::Absent) => Ok(Vec::new()),
        Err(Problem::Said(words)) => Err(says(&words)),
        Ok(jobs) => Ok(jobs),
    }
}

fn says(words: &str) -> Failure {
    let words = words.trim_start_matches("squeue: ").trim_start_matches("error: ");
    Failure::new(format!("the scheduler was asked with squeue, and says: {words}"))
        .hint("a command that takes --prefix DIR or --mount DIR needs no scheduler with it")
}

enum Problem {
    /// There is no such command here.
    Absent,
    Said(String),
}

fn ask(arguments: &[&str]) -> Result<Vec<ScheduledJob>, Problem> {
    let mut command = Command::new("squeue");
    command.args(["--noheader", "-o", FIELDS]).args(arguments);
    let (code, text, words) = run(&mut command).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Problem::Absent,
        _ => Problem::Said(error.to_string()),
    })?;
    if code != Some(0) {
        // The first lines tell of details.
        let line = words.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("it failed");
        return Err(Problem::Said(line.escape_debug().to_string()));
    }
    Ok(parse(&text))
}

/// Exit code, standard output, standard error.
fn run(command: &mut Command) -> io::Result<(Option<i32>, String, String)> {
    let end = Instant::now() + LIMIT;
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let (out, words) = (child.stdout.take(), child.stderr.take());
    let read = move || text_of(words);
    let words = std::thread::Builder::new().spawn(read).inspect_err(|_| {
        let _ = child.kill().and_then(|()| child.wait());
    })?;
    let text = bounded::within(LIMIT, move || text_of(out));
    let ended = loop {
        match child.try_wait()? {
            Some(status) => break Some(status),
            None if text.is_err() || Instant::now() >= end => break None,
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    let Some(status) = ended else {
        child.kill()?;
        child.wait()?;
        let text = format!("no answer in {} s", LIMIT.as_secs());
        return Err(io::Error::new(io::ErrorKind::TimedOut, text));
    };
    let words = words.join().unwrap_or_else(|_| Ok(String::new()))?;
    Ok((status.code(), text?, words))
}

fn text_of(pipe: Option<impl Read>) -> io::Result<String> {
    let mut bytes = Vec::new();
    if let Some(pipe) = pipe {
        pipe.take(OUTPUT_MAX).read_to_end(&mut bytes)?;
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Lines that do not have all fields are left out.
fn parse(text: &str) -> Vec<ScheduledJob> {
    let job = |line: &str| {
        let mut fields = line.split(SEPARATOR).map(str::trim);
        let mut next = || fields.next().map(str::to_owned);
        let (id, user, state, nodes, comment, directory) =
            (next()?, next()?, next()?, next()?, next()?, next()?);
        let said = comment.split([' ', ',', ';']).find_map(|word| word.strip_prefix("SCR_PREFIX="));
        let prefix = said.filter(|path| path.starts_with('/')).map_or(directory, str::to_owned);
        // Another user may have written it.
        let plain =
            [&id, &user, &state, &nodes, &prefix].iter().all(|field| !field.contains(char::is_control));
        (plain && !id.is_empty()).then(|| ScheduledJob { id, user, state, nodes, prefix: prefix.into() })
    };
    text.lines().filter_map(job).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_squeue() {
        let line = |fields: &[&str]| fields.join("\u{1f}");
        let text = [
            line(&["77", "ann", "RUNNING", "node[0-3]", "(null)", "/users/ann/run"]),
            line(&["78", "ann", "PENDING", "", "scrfs SCR_PREFIX=/pfs/a b", "/users/ann"]),
            line(&["79_2", "bob", "RUNNING", "n1", "SCR_PREFIX=relative", "/w d/x"]),
            line(&["80", "bob", "RUN\u{1b}", "n1", "", "/"]),
            "squeue: something else".to_owned(),
        ]
        .join("\n");
        let told = parse(&text);
        let told: Vec<_> = told
            .iter()
            .map(|job| (&*job.id, job.runs(), &*job.nodes, job.prefix.to_str().unwrap()))
            .collect();
        assert_eq!(
            told,
            [
                ("77", true, "node[0-3]", "/users/ann/run"),
                ("78", false, "", "/pfs/a"),
                ("79_2", true, "n1", "/w d/x"),
            ]
        );
    }

    #[test]
    fn of_an_arrays_tasks_the_one_that_was_asked_for() {
        let text =
            ["2", "1"].map(|id| format!("{id}\u{1f}ann\u{1f}RUNNING\u{1f}n1\u{1f}\u{1f}/w")).join("\n");
        let id = |asked: &str| chosen(parse(&text), asked).map(|job| job.id);
        assert_eq!((id("1"), id("2"), id("1_0")), (Some("1".into()), Some("2".into()), Some("2".into())));
        assert_eq!(chosen(Vec::new(), "1"), None);
    }

    #[test]
    fn a_job_that_waits_or_runs_is_not_over() {
        let job = |state: &str| ScheduledJob {
            id: "7".into(),
            user: "ann".into(),
            state: state.into(),
            nodes: String::new(),
            prefix: "/".into(),
        };
        let over = |states: &[&str]| states.iter().map(|state| job(state).is_over()).collect::<Vec<_>>();
        assert_eq!(over(&["PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED"]), [false; 5]);
        assert_eq!(over(&["COMPLETED", "CANCELLED", "FAILED", "NODE_FAIL", "TIMEOUT"]), [true; 5]);
    }

    #[test]
    fn an_id_is_no_option() {
        for id in ["", "1 2", "--help;", "$(x)"] {
            assert_eq!(job(id).unwrap_err().code, 2, "{id}");
        }
    }

    #[test]
    fn a_command_tells_how_it_ended() {
        let (code, text, words) = run(Command::new("sh").args(["-c", "echo a; echo b >&2; exit 3"])).unwrap();
        assert_eq!((code, &*text, &*words), (Some(3), "a\n", "b\n"));
        let absent = run(&mut Command::new("/nonexistent/squeue")).unwrap_err();
        assert_eq!(absent.kind(), io::ErrorKind::NotFound);
    }
}

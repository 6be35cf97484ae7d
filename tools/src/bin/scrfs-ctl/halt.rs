//! `scrfs-ctl halt`: when a job is to stop. Changes the halt file in the prefix, as SCR's
//! `scr_halt` does.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};
use scrfs::bounded;
use scrfs::config::{self, Config, Sources};
use scrfs::halt::{self, Access, HaltFile};
use scrfs::hash::Text;
use scrfs::record::Halt;
use scrfs::status::last::{self, LastStatus};
use scrfs_tools::{Failure, Outcome, output, scheduler};

use crate::living::{Living, living};
use crate::time;

/// SCR's word for a job that a person halted.
const HALTED: &[u8] = b"JOB_HALTED";
/// A tool that holds the lock for longer has a problem, as has a PFS that takes longer.
const LOCK_LIMIT: Duration = Duration::from_secs(5);
const PFS_LIMIT: Duration = Duration::from_secs(20);
/// Where the end of the allocation is not known.
const NO_END: &str = "warning: --seconds counts from the end of the allocation, or from the time of --before: no end is known here, and \
                      where the job knows none it has no effect\nhint: give --before, or start the job with SCRFS_END_TIME";

/// A time of day is one of today.
const OVER: &str = "warning: the time of --before is over: a job stops as soon as it sees that\nhint: `18:00 tomorrow` or `+2h` is later; --unset before takes it back";

/// Without a condition the job stops at its next checkpoint. Conditions add to those that are set.
#[derive(Debug, Clone, Args)]
#[expect(clippy::struct_excessive_bools, reason = "options of a command line")]
pub(crate) struct Wish {
    /// Stop after so many more checkpoints.
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(i64).range(0..))]
    checkpoints: Option<i64>,
    /// Stop before this time: `2026-11-23T18:00`, `18:00`, `6pm tomorrow`, `+2h`, seconds since
    /// 1970.
    #[arg(long, value_name = "TIME")]
    before: Option<String>,
    /// Stop at the first checkpoint after this time.
    #[arg(long, value_name = "TIME")]
    after: Option<String>,
    /// Stop so many seconds before the allocation ends, or before the time of --before.
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true, value_parser = clap::value_parser!(i64).range(0..))]
    seconds: Option<i64>,
    /// Do not wait for a checkpoint: save the newest dataset and end the program.
    #[arg(long)]
    immediate: bool,
    /// Stop at the next checkpoint, for this reason [default: JOB_HALTED].
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["checkpoints", "before", "after", "seconds"])]
    reason: Option<String>,
    /// Take a condition back; may be given again.
    #[arg(long, value_name = "CONDITION", value_enum)]
    unset: Vec<Condition>,
    /// Only say what is set.
    #[arg(long, conflicts_with_all = ["checkpoints", "before", "after", "seconds", "immediate", "reason", "unset", "remove"])]
    list: bool,
    /// Take all conditions back: the job goes on.
    #[arg(long, conflicts_with_all = ["checkpoints", "before", "after", "seconds", "immediate", "reason", "unset"])]
    remove: bool,
    /// The job's directory on the parallel file system
    /// [default: SCR_PREFIX, else the working directory].
    #[arg(long, value_name = "DIR", conflicts_with = "job")]
    prefix: Option<PathBuf>,
    /// The job of this id: the scheduler says what its directory is.
    #[arg(long, value_name = "ID")]
    job: Option<String>,
    /// One JSON object.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Condition {
    Checkpoints,
    Before,
    After,
    Seconds,
    Reason,
}

pub(crate) fn halt(wish: &Wish) -> Outcome {
    let of_job = wish.job.as_deref().map(prefix_of_job).transpose()?;
    let config = config(of_job.as_ref().or(wish.prefix.as_ref()))?;
    let (prefix, end) = (config.prefix, config.advice.end_time);
    let now = jiff::Zoned::now();
    let change = Change::of(wish, &now)?;
    let found = living(&prefix)?;
    if matches!(change, Change::Set { .. }) && !found.itself && !found.names.is_empty() {
        return Err(no_named_run_reads_it(&prefix, &found));
    }
    if let (Some(id), Change::Set { .. }, false) = (&wish.job, &change, found.itself) {
        let shown = prefix.display();
        return Err(Failure::new(format!("job {id}: nothing of scrfs is known to run in {shown}")).hint(
            "it may not have begun yet; or its SCR_PREFIX is another directory, which --prefix names",
        ));
    }
    let asked = change.clone();
    let path = halt::path(&prefix);
    let shown = path.display().to_string();
    let set = bounded::within(PFS_LIMIT, move || Ok(carry_out(&path, &change)))
        .map_err(|e| Failure::system(shown, &e))??;
    let text = if wish.json { json(&set) } else { people(&set, &now) };
    output::data(&text)?;
    if counts_from_nothing(&asked, &set, end) && !is_scheduled(&prefix) {
        output::talk(&format!("scrfs-ctl: {NO_END}"));
    }
    if is_over(&asked, now.timestamp().as_second()) {
        output::talk(&format!("scrfs-ctl: {OVER}"));
    }
    if !wish.list && !wish.json {
        output::talk(if found.itself {
            match asked {
                Change::Remove => {
                    "the running job sees it within 10 seconds; a halt that it has announced it does not take back"
                }
                _ => "the running job sees it at its next marker, or within 10 seconds",
            }
        } else {
            "no job is known to run with this prefix: one that begins sees it"
        });
        if !found.names.is_empty() {
            let names = found.names.join(", ");
            output::talk(&format!("runs with a name have halt files of their own: {names}"));
        }
    }
    Ok(())
}

fn prefix_of_job(id: &str) -> Outcome<PathBuf> {
    let unknown = || Failure::new(format!("job {id}: no scheduler here knows it"));
    let job =
        scheduler::job(id)?.ok_or_else(|| unknown().hint("name its directory on the PFS: --prefix DIR"))?;
    if job.is_over() {
        return Err(Failure::new(format!("job {id} is over ({})", job.state))
            .hint("`squeue --me` shows your jobs; the next one with this prefix: --prefix DIR"));
    }
    Ok(job.prefix)
}

fn no_named_run_reads_it(prefix: &Path, living: &Living) -> Failure {
    Failure::new(format!(
        "nothing would read it: what runs in {} has names ({}), and halt files of its own",
        prefix.display(),
        living.names.join(", ")
    ))
    .hint(format!("halt each: {}", living.options(prefix)))
}

/// As scrfs-run finds it, but for that of a job that is not this process's.
pub(crate) fn prefix(named: Option<&PathBuf>) -> Outcome<PathBuf> {
    config(named).map(|config| config.prefix)
}

fn config(named: Option<&PathBuf>) -> Outcome<Config> {
    let mut environment: BTreeMap<OsString, OsString> = std::env::vars_os().collect();
    environment.extend(named.map(|prefix| ("SCR_PREFIX".into(), prefix.into())));
    let sources = Sources::of_process(environment).map_err(|e| {
        Failure::new(format!("this process's user or working directory: {e}")).hint(config::PROCESS_HINT)
    })?;
    let config =
        Config::load(&sources, config::read_file).map_err(|e| Failure::new(&e).hint(e.hint()).code(2))?;
    let prefix = &config.prefix;
    let asked = prefix.clone();
    let is_there = bounded::within(PFS_LIMIT, move || last::has_state(&asked))
        .map_err(|e| Failure::system(prefix.display(), &e))?;
    if !is_there {
        return Err(Failure::new(format!("{} is no job's prefix: it has no .scr", prefix.display()))
            .hint("name the job's directory on the parallel file system with --prefix or SCR_PREFIX"));
    }
    Ok(config)
}

/// `--seconds` counts from an end that nobody here knows (`end`: seconds since 1970; 0: none).
fn counts_from_nothing(change: &Change, now: &Halt, end: u64) -> bool {
    let Change::Set { set, .. } = change else { return false };
    set.halt_seconds.is_some_and(|seconds| seconds > 0) && now.exit_before.is_none() && end == 0
}

/// What is to be done before a time cannot be done any more.
fn is_over(change: &Change, now: i64) -> bool {
    let Change::Set { set, .. } = change else { return false };
    set.exit_before.is_some_and(|before| before <= now)
}

/// The scheduler knows when the job of this prefix ends.
fn is_scheduled(prefix: &Path) -> bool {
    let job =
        LastStatus::read(prefix).ok().and_then(|last| Some(last.status.job.split_once(' ')?.1.to_owned()));
    job.is_some_and(|id| scheduler::job(&id).is_ok_and(|job| job.is_some_and(|job| !job.is_over())))
}

fn carry_out(path: &Path, change: &Change) -> Outcome<Halt> {
    let access = match change {
        Change::None => Access::Read,
        Change::Remove => Access::Write,
        Change::Set { .. } => Access::Create,
    };
    let failed = |error: halt::HaltError| {
        let hint = match &error {
            halt::HaltError::Io { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
                "it is another user's (`ls -l` names the owner), who can change it, as root can"
            }
            halt::HaltError::Strangers { .. } => {
                "it does not count: remove it, and see who may write to its directory (`ls -ld`)"
            }
            halt::HaltError::Io { .. } => "see what is there (`ls -ld`, `findmnt`)",
            _ => "`scrfs-ctl print` shows what the file has; remove it to begin anew",
        };
        Failure::new(error).hint(hint)
    };
    let Some(mut file) = HaltFile::open(path, access, LOCK_LIMIT).map_err(failed)? else {
        return Ok(Halt::default());
    };
    change.apply(&mut file.halt);
    if *change != Change::None {
        file.store().map_err(failed)?;
    }
    Ok(file.halt.clone())
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Change {
    None,
    Remove,
    Set { set: Box<Halt>, unset: Vec<Condition> },
}

impl Change {
    fn of(wish: &Wish, now: &jiff::Zoned) -> Outcome<Self> {
        if wish.list {
            return Ok(Self::None);
        }
        if wish.remove {
            return Ok(Self::Remove);
        }
        let at = |option: &str, text: &Option<String>| -> Outcome<Option<i64>> {
            let parsed = text.as_deref().map(|text| time::parse(text, now)).transpose();
            parsed.map_err(|wrong| {
                Failure::new(format!("{option}: {wrong}"))
                    .hint("`2026-11-23T18:00`, `18:00`, `6pm tomorrow`, `+2h` or seconds since 1970")
                    .code(2)
            })
        };
        let (exit_before, exit_after) = (at("--before", &wish.before)?, at("--after", &wish.after)?);
        if wish.reason.as_ref().is_some_and(String::is_empty) {
            return Err(Failure::new("--reason \"\": there is nothing in it")
                .hint("say why, or leave --reason out; a script's variable may be unset")
                .code(2));
        }
        let other = wish.checkpoints.is_some()
            || wish.seconds.is_some()
            || exit_before.is_some()
            || exit_after.is_some()
            || !wish.unset.is_empty();
        let reason = match &wish.reason {
            Some(text) => Some(text.as_bytes()),
            None if wish.immediate || !other => Some(HALTED),
            None => None,
        };
        let reason = reason.map(Text::new).transpose().map_err(|_| {
            Failure::new("--reason: it has a zero byte").hint("any other text will do").code(2)
        })?;
        let set = Halt {
            exit_reason: reason,
            checkpoints_left: wish.checkpoints,
            exit_before,
            exit_after,
            halt_seconds: wish.seconds,
            immediate: wish.immediate.then_some(1),
            ..Halt::default()
        };
        Ok(Self::Set { set: Box::new(set), unset: wish.unset.clone() })
    }

    fn apply(&self, halt: &mut Halt) {
        match self {
            Self::None => {}
            Self::Remove => *halt = Halt::default(),
            Self::Set { set, unset } => {
                for condition in unset {
                    match condition {
                        Condition::Checkpoints => halt.checkpoints_left = None,
                        Condition::Before => halt.exit_before = None,
                        Condition::After => halt.exit_after = None,
                        Condition::Seconds => halt.halt_seconds = None,
                        Condition::Reason => (halt.exit_reason, halt.immediate) = (None, None),
                    }
                }
                if set.exit_reason.is_some() {
                    halt.exit_reason.clone_from(&set.exit_reason);
                    halt.immediate = set.immediate;
                }
                halt.checkpoints_left = set.checkpoints_left.or(halt.checkpoints_left);
                halt.exit_before = set.exit_before.or(halt.exit_before);
                halt.exit_after = set.exit_after.or(halt.exit_after);
                halt.halt_seconds = set.halt_seconds.or(halt.halt_seconds);
            }
        }
    }
}

fn reason(halt: &Halt) -> Option<String> {
    let text = halt.exit_reason.as_ref().map(Text::as_bytes).filter(|text| !text.is_empty())?;
    Some(String::from_utf8_lossy(text).into_owned())
}

fn people(halt: &Halt, now: &jiff::Zoned) -> String {
    let mut text = String::new();
    let at = |seconds| time::show(seconds, now);
    let when = if halt.immediate == Some(1) { "at once" } else { "at the next checkpoint" };
    // Writing to a String cannot fail.
    if let Some(reason) = reason(halt) {
        let _ = writeln!(text, "stop {when}: {}", reason.escape_debug());
    }
    if let Some(left) = halt.checkpoints_left {
        let _ = writeln!(text, "stop after {left} more checkpoints");
    }
    if let Some(before) = halt.exit_before {
        let _ = writeln!(text, "stop before {}", at(before));
    }
    if let Some(after) = halt.exit_after {
        let _ = writeln!(text, "stop at the first checkpoint after {}", at(after));
    }
    match halt.halt_seconds {
        Some(seconds) if seconds > 0 => {
            let _ = writeln!(
                text,
                "stop {seconds} s before the allocation ends, or before the time to stop before"
            );
        }
        Some(_) => text.push_str("do not stop for the end of the allocation, whatever SCR_HALT_SECONDS is\n"),
        None => {}
    }
    if text.is_empty() {
        text.push_str("no condition is set: the job goes on\n");
    }
    text
}

fn json(halt: &Halt) -> String {
    let value = serde_json::json!({
        "reason": reason(halt),
        "immediate": halt.immediate == Some(1),
        "checkpoints": halt.checkpoints_left,
        "before": halt.exit_before,
        "after": halt.exit_after,
        "seconds": halt.halt_seconds,
    });
    format!("{value}\n")
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        wish: Wish,
    }

    fn changed(from: &Halt, arguments: &[&str]) -> String {
        let line = Line::try_parse_from(std::iter::once(&"halt").chain(arguments)).unwrap();
        let now: jiff::Zoned = "2026-11-23T12:00:00-05:00[-05:00]".parse().unwrap();
        let mut halt = from.clone();
        Change::of(&line.wish, &now).unwrap().apply(&mut halt);
        people(&halt, &now)
    }

    #[test]
    fn conditions_are_set_added_and_taken_back() {
        let none = Halt::default();
        assert_eq!(changed(&none, &["--list"]), "no condition is set: the job goes on\n");
        assert_eq!(changed(&none, &[]), "stop at the next checkpoint: JOB_HALTED\n");
        assert_eq!(changed(&none, &["--immediate", "--reason", "disk"]), "stop at once: disk\n");
        assert_eq!(changed(&none, &["--checkpoints", "3"]), "stop after 3 more checkpoints\n");
        assert_eq!(
            changed(&none, &["--before", "6pm", "--seconds", "60"]),
            "stop before 2026-11-23 18:00:00 -05\nstop 60 s before the allocation ends, or before the time to stop before\n"
        );
        let all = Halt {
            exit_reason: Text::new(b"disk").ok(),
            immediate: Some(1),
            checkpoints_left: Some(2),
            ..Halt::default()
        };
        assert_eq!(
            changed(&all, &["--after", "1795435200"]),
            "stop at once: disk\nstop after 2 more checkpoints\nstop at the first checkpoint after 2026-11-23 07:00:00 -05\n"
        );
        assert_eq!(changed(&all, &["--unset", "reason"]), "stop after 2 more checkpoints\n");
        assert_eq!(
            changed(&all, &["--reason", "x", "--unset", "checkpoints"]),
            "stop at the next checkpoint: x\n"
        );
        assert_eq!(changed(&all, &["--remove"]), "no condition is set: the job goes on\n");
        for bad in [&["--checkpoints", "-1"][..], &["--list", "--remove"], &["--unset", "all"]] {
            assert!(Line::try_parse_from(std::iter::once(&"halt").chain(bad)).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn what_would_have_no_effect_is_told() {
        let now = jiff::Zoned::now();
        let of = |arguments: &[&str]| {
            let line = Line::try_parse_from(std::iter::once(&"halt").chain(arguments)).unwrap();
            Change::of(&line.wish, &now)
        };
        let failure = of(&["--reason", ""]).unwrap_err();
        assert!(failure.code == 2 && failure.message.contains("--reason"), "{failure}");
        assert!(of(&["--reason", "", "--immediate"]).is_err());
        let warns =
            |arguments: &[&str], end| counts_from_nothing(&of(arguments).unwrap(), &Halt::default(), end);
        assert!(warns(&["--seconds", "60"], 0) && !warns(&["--seconds", "60"], 7));
        assert!(!warns(&["--seconds", "0"], 0) && !warns(&["--checkpoints", "1"], 0));
        let before = Halt { exit_before: Some(7), ..Halt::default() };
        assert!(!counts_from_nothing(&of(&["--seconds", "60"]).unwrap(), &before, 0));
        let is_over = |before| is_over(&of(&["--before", before]).unwrap(), now.timestamp().as_second());
        assert!(is_over("2020-01-01T12:00") && !is_over("+2h"));
        let living = Living { itself: false, names: vec!["left".to_owned()] };
        let refused = no_named_run_reads_it(Path::new("/pfs/job"), &living);
        assert_eq!(refused.hint, "halt each: --prefix /pfs/job/left");
    }

    #[test]
    fn the_file_is_made_changed_and_read() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("halt.scr");
        assert_eq!(carry_out(&path, &Change::None).unwrap(), Halt::default());
        assert_eq!(carry_out(&path, &Change::Remove).unwrap(), Halt::default());
        assert!(!path.exists());
        let set = Halt { checkpoints_left: Some(1), ..Halt::default() };
        let change = Change::Set { set: Box::new(set.clone()), unset: Vec::new() };
        assert_eq!(carry_out(&path, &change).unwrap().checkpoints_left, Some(1));
        assert_eq!(carry_out(&path, &Change::None).unwrap().checkpoints_left, Some(1));
        carry_out(&path, &Change::Remove).unwrap();
        assert_eq!(carry_out(&path, &Change::None).unwrap(), Halt::default());
        std::fs::write(&path, b"junk").unwrap();
        let failure = carry_out(&path, &change).unwrap_err();
        assert!(
            failure.message.contains("halt.scr") && failure.hint.contains("scrfs-ctl print"),
            "{failure}"
        );
    }
}

//! What jobs that are gone have left: mounts, caches, control directories.
//!
//! A job is gone if the scheduler, asked after its directory was seen, does not know it. What the
//! scheduler cannot know, as a job without a number, stays.

use std::collections::BTreeSet;
use std::io::Read;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::MountError;
use super::jobs::{Bases, Job, Order, Unsaved, all, end};
use super::supervisor::readable;
use super::unmount::Despite;
use crate::allocation::hides_something;
use crate::config::NO_JOB;

/// Bound on the scheduler's answer.
const ASK_BOUND: Duration = Duration::from_secs(20);
/// Bytes of that answer.
const ANSWER_MAX: u64 = 16 << 20;

/// In the place of a list: no job lives.
const NONE: &str = "none";

/// As schedulers make them: `12_3`, `12[4].server`, `12+1`, a letter and digits.
fn is_job_id(word: &str) -> bool {
    word != NONE && word.chars().all(|c| c.is_alphanumeric() || "._-[]+".contains(c))
}

/// Who says which jobs live.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Alive {
    /// The administrator: these and no others.
    Listed(Vec<String>),
    /// `squeue`.
    Scheduler,
}

impl Alive {
    /// The administrator's list: ids with commas, blanks or newlines between them, or `none`.
    ///
    /// # Errors
    /// There is no id in it, or something that is none: whoever made the list may have failed, and
    /// a job that it does not name loses everything here.
    pub fn listed(text: &str) -> Result<Self, MountError> {
        let ids = text.split(|c: char| c == ',' || c.is_whitespace()).filter(|id| !id.is_empty());
        let ids: Vec<String> = ids.map(str::to_owned).collect();
        match &ids[..] {
            [] => Err(MountError::NobodyAlive(text.to_owned())),
            [none] if none == NONE => Ok(Self::Listed(Vec::new())),
            _ => match ids.iter().find(|id| !is_job_id(id)) {
                Some(word) => Err(MountError::NoJobId { list: text.to_owned(), word: word.clone() }),
                None => Ok(Self::Listed(ids)),
            },
        }
    }

    /// The ids; asked after `found` were seen.
    fn ids(&self) -> Result<BTreeSet<String>, MountError> {
        match self {
            Self::Listed(ids) => Ok(ids.iter().cloned().collect()),
            Self::Scheduler => ask(),
        }
    }

    /// `job`, which is not among the living, is gone for sure.
    fn would_know(&self, job: &Job) -> bool {
        match self {
            Self::Listed(_) => job.id != NO_JOB,
            Self::Scheduler => !job.id.is_empty() && job.id.bytes().all(|b| b.is_ascii_digit()),
        }
    }
}

/// How a sweep goes about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Manner {
    /// Nothing new is begun after this time.
    pub limit: Duration,
    /// What each job has here and not on the PFS is saved, within so long.
    pub save: Option<Duration>,
    /// What is not on the PFS, and is not saved, is removed too.
    pub discard: bool,
}

impl Manner {
    fn unsaved(&self) -> Unsaved {
        self.save.map_or(Unsaved::Keep, Unsaved::Save)
    }
}

/// Ends and removes what is here of jobs that are gone, of one user or of all. Lines for people.
///
/// # Errors
/// The scheduler does not say which jobs live: then nothing is touched. Or something could not be
/// removed, or there was no time for it; or it has datasets that are not on the PFS.
pub fn sweep(
    alive: &Alive,
    user: Option<&str>,
    bases: &Bases,
    manner: &Manner,
) -> Result<Vec<String>, MountError> {
    // First: of a job that begins later there is nothing in it.
    let mut found = all(bases)?;
    found.retain(|job| user.is_none_or(|user| job.user == user));
    sweep_of(&found, alive, bases, manner)
}

fn sweep_of(
    found: &BTreeSet<Job>,
    alive: &Alive,
    bases: &Bases,
    manner: &Manner,
) -> Result<Vec<String>, MountError> {
    let begun = Instant::now();
    let living = if found.is_empty() { BTreeSet::new() } else { alive.ids()? };
    let (mut lines, mut left, mut unsaved) = (Vec::new(), Vec::new(), false);
    for job in found.iter().filter(|job| !living.contains(&job.id)) {
        if !alive.would_know(job) {
            let remedy =
                format!("scrfs umount --job-id {} --user {} --purge removes what is there", job.id, job.user);
            lines.push(format!(
                "job {} of {}: not a job of the scheduler; it stays ({remedy})",
                job.id, job.user
            ));
            continue;
        }
        if begun.elapsed() >= manner.limit {
            left.push(format!("job {} of {}: no time left", job.id, job.user));
            continue;
        }
        match end_gone(job, bases, manner) {
            Ok(done) => lines.extend(done),
            Err(MountError::NotSaved { why, .. }) => {
                unsaved = true;
                left.push(format!("job {} of {}: not saved, so it stays: {why}", job.id, job.user));
            }
            Err(error) => left.push(format!("job {} of {}: {error}", job.id, job.user)),
        }
    }
    if left.is_empty() {
        return Ok(lines);
    }
    Err(MountError::Left { what: left.join("; "), unsaved, done: lines })
}

fn end_gone(job: &Job, bases: &Bases, manner: &Manner) -> Result<Vec<String>, MountError> {
    let order = |unsaved, despite| {
        let (job_id, user) = (job.id.clone(), Some(job.user.clone()));
        Order { job_id, user, mount_point: None, unsaved, purge: true, despite }
    };
    // A job that is gone may have left a coordinator.
    let ended =
        end(job, &order(manner.unsaved(), Despite::Coordinator), bases).map_err(|error| match error {
            // What it tells of may be unsaved, and whoever gives that up need not mend it first.
            MountError::Record { path, problem } => {
                MountError::NotSaved { job_id: job.id.clone(), why: format!("{}: {problem}", path.display()) }
            }
            other => other,
        });
    if !manner.discard {
        return ended;
    }
    let (ended, lost) = match ended {
        Err(MountError::NotSaved { why, .. }) => {
            (end(job, &order(Unsaved::GiveUp, Despite::Coordinator), bases), Some(why))
        }
        ended => (ended, None),
    };
    let mut lines = match ended {
        // Its daemon does not end, as the PFS may not answer it; or somebody uses its mount, here
        // or in another namespace.
        Err(
            MountError::Timeout { .. }
            | MountError::Lives { .. }
            | MountError::Busy { .. }
            | MountError::InUse(_)
            | MountError::Elsewhere { .. },
        ) => end(job, &order(Unsaved::GiveUp, Despite::Use), bases)?,
        ended => ended?,
    };
    lines
        .extend(lost.map(|why| format!("job {} of {}: what was not saved is lost: {why}", job.id, job.user)));
    Ok(lines)
}

/// Asks for all jobs, whatever the environment would have squeue leave out: a job that is not told
/// of loses everything here.
fn question() -> Command {
    let mut squeue = Command::new("squeue");
    // Of all partitions, hidden ones too.
    squeue.args(["-a", "-h", "-o", "%A"]);
    squeue.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    for (variable, _) in std::env::vars_os().filter(|(variable, _)| hides_something(variable)) {
        squeue.env_remove(variable);
    }
    squeue
}

fn ask() -> Result<BTreeSet<String>, MountError> {
    let failed = |why: String| MountError::Scheduler(format!("squeue: {why}"));
    let mut child = question().spawn().map_err(|e| failed(e.to_string()))?;
    let text = child.stdout.take().map(|out| {
        let (until, mut out, mut text) = (Instant::now() + ASK_BOUND, out, Vec::new());
        loop {
            if !readable(std::os::fd::AsFd::as_fd(&out), until) {
                return Err(format!("no answer in {} s", ASK_BOUND.as_secs()));
            }
            let mut block = [0; 1 << 12];
            match out.read(&mut block) {
                Ok(0) => return Ok(text),
                Ok(bytes) => text.extend_from_slice(&block[..bytes]),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.to_string()),
            }
            if text.len() as u64 > ANSWER_MAX {
                return Err(format!("more than {ANSWER_MAX} bytes"));
            }
        }
    });
    let text = text.unwrap_or_else(|| Err("no answer".into()));
    if text.is_err() {
        let _ = child.kill();
    }
    let status = child.wait().map_err(|e| failed(e.to_string()))?;
    let text = text.map_err(failed)?;
    if !status.success() {
        return Err(failed(status.to_string()));
    }
    let text = String::from_utf8(text).map_err(|e| failed(e.to_string()))?;
    parse(&text).map_err(failed)
}

/// A line that is no job's id means that this is another program's output, or another version's.
fn parse(text: &str) -> Result<BTreeSet<String>, String> {
    let ids = text.lines().map(str::trim).filter(|line| !line.is_empty());
    ids.map(|id| {
        let digits = id.bytes().all(|b| b.is_ascii_digit());
        if digits { Ok(id.to_owned()) } else { Err(format!("{id:?} is no job's id")) }
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::super::jobs::with_directories;
    use super::super::records::TABLE;
    use super::super::stores::tests::table_of;
    use super::*;
    use crate::daemon::disk::FILEMAP;
    use crate::hash::{self, Hash};

    #[test]
    fn what_squeue_says() {
        assert_eq!(parse("12\n 7\n\n12\n").unwrap(), ["12".to_owned(), "7".to_owned()].into());
        assert!(parse("").unwrap().is_empty());
        assert!(parse("12\nslurm_load_jobs error\n").is_err());
    }

    #[test]
    fn only_what_is_gone_for_sure_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for name in ["ann/scr.7", "ann/scr.8", "ann/scr.mine", "bob/scr.local", "bob/scr.9"] {
            std::fs::create_dir_all(at(name)).unwrap();
        }
        let bases = Bases { control: at(""), caches: Vec::new() };
        let left = |alive: &Alive, limit| {
            // Not what is mounted on this machine.
            let manner = Manner { limit, save: None, discard: false };
            let _ = sweep_of(&with_directories(&bases), alive, &bases, &manner);
            with_directories(&bases).into_iter().map(|job| job.id).collect::<Vec<_>>().join(" ")
        };
        let soon = Duration::from_mins(1);
        for text in ["7,8", "7 8", " 7\n8\n", "7, 8,"] {
            assert_eq!(Alive::listed(text).unwrap(), Alive::Listed(vec!["7".into(), "8".into()]), "{text:?}");
        }
        assert_eq!(Alive::listed("none").unwrap(), Alive::Listed(Vec::new()));
        // Whoever should have said which jobs live has failed.
        for text in ["", "\n", ", "] {
            let error = Alive::listed(text).unwrap_err();
            assert!(error.hint().contains("--alive none"), "{error}");
        }
        for text in ["1;2", "7,none", "none none", "7 $(squeue)", "7,8/", "slurm: error"] {
            let refused = Alive::listed(text);
            assert!(matches!(refused, Err(MountError::NoJobId { .. })), "{text:?}: {refused:?}");
        }
        for text in ["12_3", "12[4].server-1", "12+1", "mine", "f2A"] {
            assert_eq!(Alive::listed(text).unwrap(), Alive::Listed(vec![text.into()]));
        }
        let listed = |ids: &[&str]| Alive::Listed(ids.iter().map(|id| (*id).to_owned()).collect());
        assert_eq!(left(&listed(&["7", "8"]), Duration::ZERO), "7 8 mine 9 local", "no time");
        let mine = Job { user: "ann".into(), id: "mine".into() };
        assert!(!Alive::Scheduler.would_know(&mine) && listed(&[]).would_know(&mine));
        assert_eq!(left(&listed(&["7", "9"]), soon), "7 9 local");
        // Of a job that runs nothing is taken.
        let held = super::super::lock::Lock::take(&at("ann/scr.7"), "supervisor.lock").unwrap();
        assert_eq!(left(&listed(&[]), soon), "7 local");
        drop(held);
        crate::patience::until("the end of job 7", || left(&listed(&[]), soon) == "local");
    }

    #[test]
    fn datasets_go_only_when_told_and_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let cache = dir.path().join("shm/ann/scr.7");
        std::fs::create_dir_all(cache.join("dataset.3")).unwrap();
        let bases = Bases { control: dir.path().join("run"), caches: vec![dir.path().join("shm")] };
        let sweep = |save: Option<u64>, discard| {
            let (limit, save) = (Duration::from_mins(1), save.map(Duration::from_secs));
            let none = Alive::Listed(Vec::new());
            sweep_of(&with_directories(&bases), &none, &bases, &Manner { limit, save, discard })
        };
        for save in [None, Some(1)] {
            let refused = sweep(save, false).unwrap_err();
            assert!(matches!(refused, MountError::Left { unsaved: true, .. }), "{refused}");
            let told = "job 7 of ann: not saved, so it stays: its caches hold datasets";
            let text = refused.to_string();
            assert!(text.starts_with(told) && text.ends_with("scr.7/dataset.3"), "{text}");
            assert!(refused.hint().contains("--discard") && cache.exists(), "{}", refused.hint());
        }
        // One that no other node protects is in the records alone.
        std::fs::remove_dir(cache.join("dataset.3")).unwrap();
        let control = dir.path().join("run/ann/scr.7");
        let record = |flushed| {
            std::fs::create_dir_all(&control).unwrap();
            std::fs::write(control.join(TABLE), table_of(3, flushed)).unwrap();
        };
        let count = || super::super::jobs::in_stores(&bases).unwrap()[0].datasets;
        record(false);
        assert_eq!(count(), 0, "its files have gone");
        // One that has no files here is waited for by other nodes.
        let map = |has_files: bool| {
            let mut map = Hash::new();
            for (member, has_files) in [("0", false), ("1", has_files)] {
                let dataset = map.child("RANK").child(member).child("DSET").child("3");
                if has_files {
                    dataset.child("FILE").set_flag("f");
                }
            }
            std::fs::write(control.join(FILEMAP), hash::encode(&map)).unwrap();
        };
        map(false);
        assert_eq!(count(), 1);
        map(true);
        assert_eq!(count(), 0, "they have gone");
        std::fs::create_dir_all(cache.join("tree/ck")).unwrap();
        std::fs::write(cache.join("tree/ck/f"), "bytes").unwrap();
        let text = sweep(None, false).unwrap_err().to_string();
        assert!(text.ends_with("and it is not mounted: ck (dataset 3)") && cache.exists(), "{text}");
        assert_eq!(count(), 1);
        // A catalog is written before the table.
        std::fs::write(control.join("dataset.4.scrinfo"), "").unwrap();
        assert_eq!(count(), 2);
        std::fs::remove_file(control.join("dataset.4.scrinfo")).unwrap();
        record(true);
        assert!(sweep(None, false).unwrap().iter().any(|line| line.ends_with("is removed")));
        assert!(!cache.exists());

        std::fs::create_dir_all(cache.join("dataset.3")).unwrap();
        let lines = sweep(None, true).unwrap();
        let lost = |line: &String| line.contains("is lost: ") && line.ends_with("scr.7/dataset.3");
        assert!(lines.iter().any(lost) && !cache.exists(), "{lines:?}");

        // A record that cannot be read may be of something that is not saved.
        for record in [TABLE, super::super::stores::RECORD] {
            std::fs::create_dir_all(cache.join("tree")).unwrap();
            std::fs::create_dir_all(&control).unwrap();
            std::fs::write(control.join(record), "{").unwrap();
            let refused = sweep(None, false).unwrap_err();
            let told = format!("job 7 of ann: not saved, so it stays: {}", control.join(record).display());
            assert!(refused.to_string().starts_with(&told), "{refused}");
            assert!(refused.hint().contains("--discard") && cache.exists(), "{}", refused.hint());
            let lines = sweep(None, true).unwrap();
            let lost = |line: &String| line.contains("is lost: ") && line.contains(record);
            assert!(lines.iter().any(lost) && !cache.exists() && !control.exists(), "{lines:?}");
        }
    }
}

//! What a job has here and not on the PFS: it is saved, or at least known, before all is removed.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{Bases, Job, cache, caches};
use crate::control::client::ClientError;
use crate::control::question::{self, QuestionError};
use crate::control::{Answer, Ask, Named, Scavenged};
use crate::mount::records::{self, Recorded};
use crate::mount::{MountError, stores};
use crate::status::{DatasetStatus, HIDDEN};

/// A daemon that has not answered so long after its limit does not.
const ANSWER_BOUND: Duration = Duration::from_secs(5);
const OTHER_VERSION: &str = "its daemon is of another version";

impl Job {
    fn not_saved(&self, why: String) -> MountError {
        MountError::NotSaved { job_id: self.id.clone(), why }
    }
}

/// The caches of a job that is not mounted hold no datasets: only a mount knows which of them are
/// whole.
pub(super) fn has_nothing_to_save(job: &Job, bases: &Bases) -> Result<(), MountError> {
    let hold = |who: &str, datasets: Vec<String>| match &datasets[..] {
        [] => Ok(()),
        all => Err(job.not_saved(format!("its {who} datasets, and it is not mounted: {}", all.join(", ")))),
    };
    hold("caches hold", datasets(job, bases).iter().map(|path| path.display().to_string()).collect())?;
    let Some(control) = job.directory(&bases.control) else { return Ok(()) };
    if let Some((base, problem)) = stores::away(&control, |base| cache(job, base, Some(&control)))? {
        let base = base.display();
        let why = format!("its store {base}: {problem}; datasets of this job are there, or may be");
        return Err(job.not_saved(why));
    }
    // One that no other node protects has no directory of its own. A cache may have been given up.
    if !caches(job, bases).iter().any(|cache| stores::has_tree(cache)) {
        return Ok(());
    }
    hold("records name", unsaved(&control)?.iter().map(named).collect())
}

fn named(dataset: &Recorded) -> String {
    format!("{} (dataset {})", dataset.name, dataset.id)
}

/// What is so called in a cache is a dataset's.
fn is_dataset(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"dataset."))
}

/// How many datasets a job has in the cache directories that are named; with those that its records
/// alone tell of: where programs' files are there all of these, else those that have no files here,
/// and that other nodes may wait for. Where the records cannot be read there may be one.
pub(super) fn count(job: &Job, caches: &[PathBuf], bases: &Bases) -> usize {
    let mut ids: BTreeSet<u64> = caches.iter().flat_map(|cache| stores::datasets_in(cache)).collect();
    let Some(control) = job.directory(&bases.control) else { return ids.len() };
    if !caches.iter().any(|cache| stores::has_tree(cache)) {
        ids.extend(records::without_files_of(&control));
        return ids.len();
    }
    match records::datasets_of(&control) {
        Ok(recorded) => ids.extend(recorded.into_iter().map(|dataset| dataset.id)),
        Err(_) => return ids.len().max(1),
    }
    ids.len()
}

/// Datasets that a control directory tells of, newer than all that are on the PFS, and not found
/// bad.
fn unsaved(control: &Path) -> Result<Vec<Recorded>, MountError> {
    let mut all = records::datasets_of(control)?;
    let flushed = all.iter().filter(|dataset| dataset.flushed).map(|dataset| dataset.id).max();
    all.retain(|dataset| !dataset.failed && Some(dataset.id) > flushed);
    Ok(all)
}

/// The directories of datasets in the job's caches, and the caches of which they cannot be known.
fn datasets(job: &Job, bases: &Bases) -> Vec<PathBuf> {
    let in_cache = |cache: PathBuf| match fs::read_dir(&cache) {
        Ok(entries) => {
            let paths = entries.map_while(Result::ok).map(|entry| entry.path());
            paths.filter(|path| is_dataset(path)).collect()
        }
        Err(_) => vec![cache],
    };
    let mut found: Vec<PathBuf> = caches(job, bases).into_iter().flat_map(in_cache).collect();
    found.sort();
    found
}

/// The daemon of a control directory has no complete dataset that is newer than those on the PFS,
/// and none that may be complete elsewhere.
pub(super) fn is_saved(job: &Job, control: &Path) -> Result<(), MountError> {
    let status = match ask(job, control, &Ask::Status, ANSWER_BOUND)? {
        Answer::Status(status) => status,
        Answer::Failed(reason) => return Err(job.not_saved(reason)),
        _ => return Err(job.not_saved(OTHER_VERSION.to_owned())),
    };
    // Nothing was ever protected.
    if status.prefix.is_empty() || !status.enabled {
        return Ok(());
    }
    let is_whole = |dataset: &&DatasetStatus| dataset.is_complete() || dataset.state == HIDDEN;
    let newest = status.datasets.iter().filter(|dataset| dataset.flushed).map(|dataset| dataset.id).max();
    let unsaved = status.datasets.iter().filter(|dataset| !dataset.flushed && Some(dataset.id) > newest);
    let may_be = |dataset: &&DatasetStatus| is_whole(dataset) || dataset.state == "encoding";
    let named = unsaved.filter(may_be).map(|dataset| format!("{} (dataset {})", dataset.name, dataset.id));
    let named: Vec<String> = named.collect();
    if named.is_empty() {
        return Ok(());
    }
    Err(job.not_saved(format!("not on the PFS: {}", named.join(", "))))
}

/// Has the daemon of a control directory save what this node has of the newest dataset. Lines for
/// people.
pub(super) fn save(job: &Job, control: &Path, limit: Duration) -> Result<Vec<String>, MountError> {
    let question = Ask::Scavenge { limit_ms: u64::try_from(limit.as_millis()).unwrap_or(u64::MAX) };
    let tried = match ask(job, control, &question, limit + ANSWER_BOUND)? {
        Answer::Scavenged(Scavenged::Nothing(why)) => {
            return Ok(vec![format!("job {}: nothing is to be saved: {why}", job.id)]);
        }
        Answer::Scavenged(Scavenged::Attached) => {
            return Err(job.not_saved("a coordinator is attached, and flushing is its work".to_owned()));
        }
        Answer::Scavenged(Scavenged::Tried(tried)) => tried,
        Answer::Failed(reason) => return Err(job.not_saved(reason)),
        _ => return Err(job.not_saved(OTHER_VERSION.to_owned())),
    };
    let shown = |named: &Named| format!("{} (dataset {})", String::from_utf8_lossy(&named.name), named.id);
    let failed: Vec<String> = tried
        .iter()
        .filter_map(|(named, saved)| saved.as_ref().err().map(|why| format!("{}: {why}", shown(named))))
        .collect();
    if !failed.is_empty() {
        return Err(job.not_saved(failed.join("; ")));
    }
    let lines = tried.iter().filter_map(|(named, saved)| Some((shown(named), saved.as_ref().ok()?)));
    Ok(lines.map(|(shown, how)| format!("job {}: {shown}: {how}", job.id)).collect())
}

fn ask(job: &Job, control: &Path, asked: &Ask, limit: Duration) -> Result<Answer, MountError> {
    question::ask(control, asked, limit).map_err(|error| {
        let mut why = match error {
            QuestionError::Client(ClientError::Connect { source, .. }) => {
                format!("its daemon does not answer: {source}")
            }
            QuestionError::Client(ClientError::Stream(error)) => {
                format!("its daemon does not answer: {error}")
            }
            other => other.to_string(),
        };
        let recorded: Vec<String> = unsaved(control).unwrap_or_default().iter().map(named).collect();
        if !recorded.is_empty() {
            why.push_str("; its records name ");
            why.push_str(&recorded.join(", "));
        }
        job.not_saved(why)
    })
}

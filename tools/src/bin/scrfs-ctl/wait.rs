//! `scrfs-ctl wait`: returns when nothing is being sealed or flushed, or when one dataset is safe.

use std::ffi::OsStr;
use std::thread::sleep;
use std::time::{Duration, Instant};

use scrfs::status::{DatasetStatus, NodeStatus, SEALED};
use scrfs_tools::node::Node;
use scrfs_tools::output::{self, bytes_for_people, escaped};
use scrfs_tools::{Failure, Outcome};

/// The daemon has no way to tell an operator's connection of changes, so it is asked again after
/// this time.
pub(crate) const PAUSE: Duration = Duration::from_millis(200);
/// A flush that is due begins within this time, or something keeps it from it (a full PFS; the
/// events say what).
pub(crate) const DUE: Duration = Duration::from_secs(15);
/// How often progress is told.
pub(crate) const TELL: Duration = Duration::from_secs(2);

pub(crate) fn wait(node: &Node, limit: u64, every: Option<u32>) -> Outcome {
    let begun = Instant::now();
    let limit = Duration::from_secs(limit);
    let mut busy_last = begun;
    let mut told = begun;
    loop {
        let status = node.status()?;
        let every = every.unwrap_or(status.flush_every);
        if let Some(line) = busy(&status) {
            busy_last = Instant::now();
            if told.elapsed() >= TELL {
                output::talk(&line);
                told = Instant::now();
            }
        } else if !status.datasets.iter().any(|d| is_due(d, &status.datasets, every)) {
            return Ok(());
        } else if busy_last.elapsed() >= DUE {
            return Err(not_flushed(&status, every));
        }
        if begun.elapsed() >= limit {
            return Err(
                Failure::new(format!("still busy after {} s", limit.as_secs())).hint("scrfs-ctl status")
            );
        }
        sleep(PAUSE);
    }
}

/// What one dataset is waited for to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Until {
    Protected,
    Flushed,
}

/// Returns when the newest dataset `name` is what is wished; it may not have begun yet.
pub(crate) fn wait_for(node: &Node, name: &OsStr, until: Until, limit: Duration) -> Outcome {
    let (begun, mut told) = (Instant::now(), Instant::now());
    let name = name.to_string_lossy();
    loop {
        let status = node.status()?;
        let state = match judge(&status, &name, until) {
            Judged::Done => return Ok(()),
            Judged::Never(failure) => return Err(failure),
            Judged::NotYet(state) => state,
        };
        if told.elapsed() >= TELL {
            output::talk(&format!("{} is {state}", escaped(&name)));
            told = Instant::now();
        }
        if begun.elapsed() >= limit {
            let wished = if until == Until::Flushed { "on the PFS" } else { "protected" };
            let (name, seconds) = (escaped(&name), limit.as_secs());
            let text = format!("{name} is {state} after {seconds} s, and not {wished}");
            return Err(Failure::new(text).hint("`scrfs-ctl events` may say why"));
        }
        sleep(PAUSE);
    }
}

/// What a status says of the wish.
#[derive(Debug)]
enum Judged {
    Done,
    /// Its state meanwhile.
    NotYet(String),
    Never(Failure),
}

fn judge(status: &NodeStatus, name: &str, until: Until) -> Judged {
    let named = || status.datasets.iter().filter(|dataset| dataset.name == name);
    // Of a dataset that is sealed anew there are two: what is being sealed has no id yet, or the
    // higher one.
    let busy = named().find(|dataset| matches!(dataset.state.as_str(), "sealing" | "encoding"));
    let Some(dataset) = busy.or_else(|| named().max_by_key(|dataset| dataset.id)) else {
        // One that has left the caches comes from there.
        let is_on_pfs = status.on_pfs.as_ref().is_some_and(|gone| gone.name == name);
        let is_done = is_on_pfs && until == Until::Flushed;
        return if is_done { Judged::Done } else { Judged::NotYet("not there".to_owned()) };
    };
    let (state, name) = (dataset.state.clone(), escaped(name));
    match (state.as_str(), until) {
        ("failed", _) => {
            let text = format!("{name} has failed: its bytes are lost, or wrong");
            Judged::Never(Failure::new(text).hint("`scrfs-ctl events` says why"))
        }
        (_, Until::Flushed) if dataset.flushed => Judged::Done,
        (_, Until::Flushed) => match &dataset.flush_failed {
            Some(failed) if failed.given_up => Judged::Never(
                Failure::new(format!("{name} could not be flushed: {}", failed.reason))
                    .hint("mend what is named, then `scrfs-ctl flush --wait`"),
            ),
            _ => Judged::NotYet(state),
        },
        ("protected" | "flushing" | "flushed", Until::Protected) => Judged::Done,
        (SEALED, Until::Protected) if dataset.scrubbed.as_ref().is_some_and(|s| s.left.is_some()) => {
            let text = format!("{name} has bad bytes that a scrub could not mend");
            Judged::Never(
                Failure::new(text)
                    .hint("write a new checkpoint: `scrfs-ctl status` says what a restart would present"),
            )
        }
        (SEALED, Until::Protected) if dataset.restoring > 0 => {
            Judged::NotYet(format!("{state}, {} members are being restored", dataset.restoring))
        }
        (SEALED, Until::Protected) => {
            let text =
                format!("{name} is sealed, and nothing protects it: the loss of one node would take it");
            Judged::Never(Failure::new(text).hint("`scrfs-ctl flush --wait` brings it to the PFS"))
        }
        _ => Judged::NotYet(state),
    }
}

/// What runs now, in words.
pub(crate) fn busy(status: &NodeStatus) -> Option<String> {
    let d =
        status.datasets.iter().find(|d| matches!(d.state.as_str(), "sealing" | "encoding" | "flushing"))?;
    let progress =
        d.progress.map(|(done, all)| format!(": {} of {}", bytes_for_people(done), bytes_for_people(all)));
    Some(format!("{} is {}{}", escaped(&d.name), d.state, progress.unwrap_or_default()))
}

/// A flush is due: a multiple of `every` lies above the dataset before it, up to its own id.
pub(crate) fn is_due(dataset: &DatasetStatus, all: &[DatasetStatus], every: u32) -> bool {
    let (id, every) = (dataset.id, u64::from(every));
    if every == 0 || id == 0 || dataset.flushed || !matches!(dataset.state.as_str(), "protected" | SEALED) {
        return false;
    }
    let before = all.iter().map(|d| d.id).filter(|other| *other < id).max().unwrap_or(0);
    // Ids below those that are here may have been flushed and evicted: they are not asked for.
    let before = if before == 0 { id - 1 } else { before };
    id / every > before / every
}

fn not_flushed(status: &NodeStatus, every: u32) -> Failure {
    let due = status.datasets.iter().filter(|d| is_due(d, &status.datasets, every));
    let names: Vec<String> = due.map(|d| escaped(&d.name)).collect();
    Failure::new(format!("not flushed: {}", names.join(", "))).hint("`scrfs-ctl events` may say why")
}

#[cfg(test)]
mod tests {
    use scrfs::status::FlushFailure;

    use super::*;
    use crate::status::tests::{dataset, node};

    #[test]
    fn one_dataset_is_waited_for_by_name() {
        let said = |datasets: &[DatasetStatus], until| match judge(&node(datasets.to_vec()), "ck", until) {
            Judged::Done => "done".to_owned(),
            Judged::NotYet(state) => state,
            Judged::Never(failure) => format!("never: {failure}"),
        };
        let ck = |id, state| dataset(id, "ck", state, &["a", "b"]);
        let both =
            |datasets: &[DatasetStatus]| (said(datasets, Until::Protected), said(datasets, Until::Flushed));
        let pair = |one: &str, two: &str| (one.to_owned(), two.to_owned());
        assert_eq!(both(&[dataset(3, "other", "flushed", &["a"])]), pair("not there", "not there"));
        assert_eq!(both(&[ck(0, "open")]), pair("open", "open"));
        assert_eq!(both(&[ck(2, "protected")]), pair("done", "protected"));
        assert_eq!(both(&[ck(2, "flushing")]), pair("done", "flushing"));
        assert_eq!(both(&[ck(2, "flushed")]), pair("done", "done"));
        assert_eq!(both(&[ck(2, "flushed"), ck(0, "encoding")]).0, "encoding", "the next generation");
        assert_eq!(both(&[ck(2, "flushed"), ck(3, "protected")]).1, "protected");
        assert!(both(&[ck(2, SEALED)]).0.starts_with("never: ck is sealed, and nothing protects it"));
        assert!(both(&[ck(2, "failed")]).1.starts_with("never: ck has failed"));
        let mut given_up = ck(2, "protected");
        given_up.flush_failed = Some(FlushFailure { reason: "full".to_owned(), given_up: true });
        let (protected, flushed) = both(&[given_up]);
        assert_eq!(
            (protected.as_str(), flushed.starts_with("never: ck could not be flushed: full")),
            ("done", true)
        );
    }

    #[test]
    fn one_that_has_left_the_caches_is_on_the_pfs() {
        let gone = scrfs::status::Elsewhere { id: 2, name: "ck".to_owned() };
        let left = NodeStatus { on_pfs: Some(gone), ..node(Vec::new()) };
        assert!(matches!(judge(&left, "ck", Until::Flushed), Judged::Done));
        assert!(matches!(judge(&left, "ck", Until::Protected), Judged::NotYet(_)));
        assert!(matches!(judge(&left, "other", Until::Flushed), Judged::NotYet(_)));
        let mut bad = dataset(3, "ck", SEALED, &["a", "b"]);
        bad.scrubbed =
            Some(scrfs::status::Scrubbed { at_us: 1, found: 2, left: Some("a: bad CRC".to_owned()) });
        let Judged::Never(failure) = judge(&node(vec![bad]), "ck", Until::Protected) else { panic!() };
        assert!(failure.to_string().contains("bad bytes"), "{failure}");
    }

    #[test]
    fn what_is_waited_for() {
        let mut one = dataset(4, "ck.4", "protected", &["a", "b"]);
        let due = |d: &DatasetStatus, every| {
            is_due(d, &[dataset(2, "ck.2", "protected", &["a"]), d.clone()], every)
        };
        // Id 3 was used up by a seal that failed.
        assert!(due(&one, 2) && due(&one, 1) && due(&one, 3) && !due(&one, 5) && !due(&one, 0));
        assert!(!is_due(&one, std::slice::from_ref(&one), 3));
        one.flushed = true;
        assert!(!due(&one, 2));
        assert_eq!(busy(&node(vec![one.clone()])), None);
        one.state = "flushing".to_owned();
        one.progress = Some((1024, 4096));
        assert_eq!(busy(&node(vec![one])).as_deref(), Some("ck.4 is flushing: 1.0 KiB of 4.0 KiB"));
    }
}

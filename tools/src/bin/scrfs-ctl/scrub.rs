//! `scrfs-ctl scrub`: has cached bytes compared with their checksums, and what is bad mended.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::thread::sleep;
use std::time::{Duration, Instant};

use scrfs::control::{Flushable, Named};
use scrfs::status::{DatasetStatus, NodeStatus, Scrubbed};
use scrfs_tools::node::Node;
use scrfs_tools::output::{self, escaped};
use scrfs_tools::{Failure, Outcome};

use crate::flush::find;
use crate::wait::PAUSE;

/// What to do about bytes that could not be mended: only the events have the reason.
const LEFT: &str = "`scrfs-ctl events` on the nodes says why; where it was room, make some (`rm -r` of datasets, SCR_CACHE_SIZE) \
                    and scrub again; else write a new checkpoint: `scrfs-ctl status` says what a restart would present";

/// Scrubs a dataset, or all that are complete, one after the other; each for so long at most. What
/// is bad and cannot be mended is a failure, after all have been looked at.
pub(crate) fn scrub(node: &Node, dataset: Option<&OsStr>, limit: Duration, json: bool) -> Outcome {
    let wanted: Vec<(Vec<u8>, Option<u64>)> = match dataset {
        Some(name) => vec![(name.as_bytes().to_vec(), None)],
        None => complete(&node.status()?),
    };
    if wanted.is_empty() {
        return Err(Failure::new("no dataset is sealed, so there is none to scrub")
            .hint("a dataset is sealed when its marker is set: `touch .complete` in its directory"));
    }
    let (mut left, mut unnamed) = (Vec::new(), Vec::new());
    for (name, id) in wanted {
        let plain = String::from_utf8_lossy(&name);
        let shown = escaped(&plain);
        let (named, report) = match one(node, &name, limit)? {
            Some(ended) => ended,
            None if id.is_some_and(|id| is_there(node, id)) => {
                unnamed.push(shown);
                continue;
            }
            // It makes room for newer ones while others are looked at.
            None if id.is_some() => continue,
            None => {
                return Err(Failure::new(format!("no dataset {shown} is in the caches"))
                    .hint("`scrfs-ctl list` names those that there are"));
            }
        };
        let text = if json {
            serde_json::json!({ "id": named.id.0, "name": plain, "found": report.found, "left": report.left })
                .to_string()
        } else {
            format!("{shown} (dataset {}): {}", named.id, in_words(&report))
        };
        output::data(&format!("{text}\n"))?;
        left.extend(report.left.map(|_| shown));
    }
    outcome(&left, &unnamed)
}

/// `left`: those with bad bytes; `unnamed`: those that could not be asked for.
fn outcome(left: &[String], unnamed: &[String]) -> Outcome {
    let unasked =
        format!("not scrubbed, as the status does not tell all of the name: {}", unnamed.join(", "));
    match (left, unnamed) {
        ([], []) => Ok(()),
        ([], _) => {
            Err(Failure::new(unasked).hint("a name that is no UTF-8 is to be given: scrfs-ctl scrub NAME"))
        }
        (left, unnamed) => {
            let also = if unnamed.is_empty() { String::new() } else { format!("; {unasked}") };
            Err(Failure::new(format!("bad bytes are left in {}{also}", left.join(", "))).hint(LEFT))
        }
    }
}

/// Names and ids, newest first. A byte that is no UTF-8 is another one in the name.
fn complete(status: &NodeStatus) -> Vec<(Vec<u8>, Option<u64>)> {
    let mut found: Vec<_> = status.datasets.iter().filter(|dataset| dataset.is_complete()).collect();
    found.sort_by_key(|dataset| std::cmp::Reverse(dataset.id));
    found.iter().map(|dataset| (dataset.name.clone().into_bytes(), Some(dataset.id))).collect()
}

/// A dataset that is not known by its name is in the caches all the same.
fn is_there(node: &Node, id: u64) -> bool {
    node.status().is_ok_and(|status| find(&status, id).is_some_and(DatasetStatus::is_complete))
}

fn in_words(report: &Scrubbed) -> String {
    match (&report.left, report.found) {
        (None, 0) => "all bytes are as they were sealed".to_owned(),
        (None, 1) => "one member had bad bytes, and is rebuilt".to_owned(),
        (None, found) => format!("{found} members had bad bytes, and are rebuilt"),
        (Some(left), _) => format!("bad bytes are left: {left}"),
    }
}

/// Asks for it, and waits until it has ended; `None` when it has left the caches.
fn one(node: &Node, name: &[u8], limit: Duration) -> Outcome<Option<(Named, Scrubbed)>> {
    let before = node.status()?;
    let Some(named) = ask(node, name)? else { return Ok(None) };
    let before = last(&before, named.id.0);
    let begun = Instant::now();
    let mut asked_in = None;
    loop {
        let status = node.status()?;
        let Some(dataset) = find(&status, named.id.0) else { return Ok(None) };
        let report = dataset.scrubbed.clone().filter(|report| Some(report.at_us) != before);
        if let Some(report) = report {
            return Ok(Some((named, report)));
        }
        // Successors of the coordinators that were asked do not know of it.
        if status.coordinator.is_some() && asked_in.replace(status.epoch).is_some_and(|e| e != status.epoch) {
            ask(node, name)?;
        }
        if begun.elapsed() >= limit {
            let shown = escaped(String::from_utf8_lossy(name));
            return Err(Failure::new(format!("{shown} is not scrubbed after {} s", limit.as_secs()))
                .hint("it goes on; `scrfs-ctl events` tells its end"));
        }
        sleep(PAUSE);
    }
}

/// When its last scrub ended.
fn last(status: &NodeStatus, id: u64) -> Option<u64> {
    Some(find(status, id)?.scrubbed.as_ref()?.at_us)
}

/// `None`: it is not there.
fn ask(node: &Node, name: &[u8]) -> Outcome<Option<Named>> {
    let shown = escaped(String::from_utf8_lossy(name));
    match node.scrub(name)? {
        Flushable::Asked(named) | Flushable::Done(named) => Ok(Some(named)),
        Flushable::None | Flushable::Unknown => Ok(None),
        Flushable::Unsealed => Err(Failure::new(format!("{shown} is not sealed, so it has no checksums"))
            .hint("set its marker first: `touch .complete` in its directory")),
        Flushable::Failed(reason) => Err(Failure::new(format!("{shown} has failed: {reason}"))
            .hint("`scrfs-ctl list` says which others there are")),
        Flushable::NoCoordinator(_) => Err(Failure::new(format!(
            "{shown} cannot be scrubbed: no coordinator serves this node"
        ))
        .hint("`scrfs-run` starts coordinators; a restart verifies what it presents without being asked")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_found_in_words() {
        let report = |found, left: Option<&str>| Scrubbed { at_us: 1, found, left: left.map(str::to_owned) };
        assert_eq!(in_words(&report(0, None)), "all bytes are as they were sealed");
        assert_eq!(in_words(&report(1, None)), "one member had bad bytes, and is rebuilt");
        assert_eq!(in_words(&report(2, None)), "2 members had bad bytes, and are rebuilt");
        assert_eq!(in_words(&report(2, Some("n1: f"))), "bad bytes are left: n1: f");
    }

    #[test]
    fn one_that_could_not_be_asked_for_is_a_failure() {
        let told = |left: &[&str], unnamed: &[&str]| {
            let owned = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
            outcome(&owned(left), &owned(unnamed)).err().map(|failure| failure.to_string())
        };
        assert_eq!(told(&[], &[]), None);
        assert_eq!(told(&["a", "b"], &[]).as_deref(), Some("bad bytes are left in a, b"));
        let unasked = "not scrubbed, as the status does not tell all of the name: c";
        assert_eq!(told(&[], &["c"]).as_deref(), Some(unasked));
        assert_eq!(told(&["a"], &["c"]), Some(format!("bad bytes are left in a; {unasked}")));
    }
}

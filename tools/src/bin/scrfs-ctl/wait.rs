//! `scrfs-ctl wait`: returns when nothing is being sealed or flushed. scrfs-run runs it before it stops coordinators.

use std::thread::sleep;
use std::time::{Duration, Instant};

use scrfs::status::{DatasetStatus, NodeStatus, SEALED};
use scrfs_tools::node::Node;
use scrfs_tools::output::{self, bytes_for_people};
use scrfs_tools::{Failure, Outcome};

/// The daemon has no way to tell an operator's connection of changes, so it is asked again after this time.
pub(crate) const PAUSE: Duration = Duration::from_millis(200);
/// A flush that is due begins within this time, or something keeps it from it (a full PFS; the events say what).
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

/// What runs now, in words.
pub(crate) fn busy(status: &NodeStatus) -> Option<String> {
    let d =
        status.datasets.iter().find(|d| matches!(d.state.as_str(), "sealing" | "encoding" | "flushing"))?;
    let progress =
        d.progress.map(|(done, all)| format!(": {} of {}", bytes_for_people(done), bytes_for_people(all)));
    Some(format!("{} is {}{}", d.name, d.state, progress.unwrap_or_default()))
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
    let names: Vec<&str> = status
        .datasets
        .iter()
        .filter(|d| is_due(d, &status.datasets, every))
        .map(|d| d.name.as_str())
        .collect();
    Failure::new(format!("not flushed: {}", names.join(", "))).hint("`scrfs-ctl events` may say why")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::tests::{dataset, node};

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

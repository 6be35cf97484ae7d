//! `scrfs-ctl save`: at the end of a job scrfs-run has the newest protected dataset brought to the
//! PFS, and waits for what is being sealed or flushed. What did not get there in time is named,
//! also what has left the caches meanwhile.

use std::thread::sleep;
use std::time::{Duration, Instant};

use scrfs::control::Flushable;
use scrfs::status::{DatasetStatus, NodeStatus, SEALED, Unsaved};
use scrfs_tools::node::Node;
use scrfs_tools::output::{self, bytes_for_people, escaped, hosts_for_people};
use scrfs_tools::probe::NAMED;
use scrfs_tools::{Failure, Outcome};

use crate::wait::{DUE, PAUSE, TELL, busy, is_due};

/// What to do about it.
const LATER: &str = "a scrfs-run with the same job id and hosts goes on from there, and saves it at its end in the prefix that it \
                     is given, as long as the nodes keep their caches (under a scheduler: while the job lasts); SCRFS_END_GRACE is the time that it gets";

pub(crate) fn save(node: &Node, limit: Duration, newest: bool, every: Option<u32>) -> Outcome {
    let begun = Instant::now();
    let (mut busy_last, mut told) = (begun, begun);
    let mut asked: Option<Wish> = None;
    loop {
        let status = node.status()?;
        let left = left(&status, newest, every);
        let working = busy(&status);
        if working.is_some() {
            busy_last = Instant::now();
        }
        if let Some(line) = working.as_ref().filter(|_| told.elapsed() >= TELL) {
            output::talk(line);
            told = Instant::now();
        }
        let can_ask = newest && status.coordinator.is_some();
        let hopeless = left.iter().all(|dataset| is_hopeless(dataset, asked.as_ref(), can_ask));
        let stuck = newest_of(&left).is_none() && busy_last.elapsed() >= DUE;
        if working.is_none() && (hopeless || stuck) || begun.elapsed() >= limit {
            let here = left.iter().map(|dataset| unsaved(dataset, limit));
            let lines: Vec<String> = here.chain(status.unsaved.iter().map(gone)).collect();
            if !lines.is_empty() {
                return Err(Failure::new(lines.join("\n")).hint(LATER).code(NAMED));
            }
            if let Some(dataset) = status.datasets.iter().find(|dataset| dataset.current && dataset.flushed) {
                let (name, prefix) = (escaped(&dataset.name), &status.prefix);
                output::talk(&format!("on the PFS: {name} (dataset {}) in {prefix}", dataset.id));
            }
            return Ok(());
        }
        if let Some(dataset) = newest_of(&left).filter(|_| can_ask) {
            let is_asked = asked.as_ref().is_some_and(|wish| wish.is_of(status.epoch, dataset.id));
            let can_be = matches!(dataset.state.as_str(), "protected" | SEALED);
            if can_be && !is_asked && is_heard(&node.flush(None)?) {
                asked = Some(Wish { epoch: status.epoch, id: dataset.id, again: given_up(dataset) });
            }
        }
        sleep(PAUSE);
    }
}

/// A dataset whose flush was asked for.
#[derive(Debug, PartialEq, Eq)]
struct Wish {
    epoch: u64,
    id: u64,
    /// It had been given up before: one more try is enough.
    again: bool,
}

impl Wish {
    fn is_of(&self, epoch: u64, id: u64) -> bool {
        (self.epoch, self.id) == (epoch, id)
    }
}

/// No more tries of a flush are waited for.
fn is_hopeless(dataset: &DatasetStatus, asked: Option<&Wish>, can_ask: bool) -> bool {
    let Some(failure) = &dataset.flush_failed else { return false };
    match asked.filter(|wish| wish.id == dataset.id) {
        Some(wish) => failure.given_up || wish.again,
        None => failure.given_up && !(can_ask && dataset.current),
    }
}

/// The wish needs not be told again. Coordinators that have just attached do not serve yet, and
/// until then nobody hears of it.
fn is_heard(wish: &Flushable) -> bool {
    !matches!(wish, Flushable::NoCoordinator(_) | Flushable::None)
}

/// What is to be on the PFS and is not.
fn left(status: &NodeStatus, newest: bool, every: Option<u32>) -> Vec<&DatasetStatus> {
    let due = |dataset: &&DatasetStatus| {
        let due = every.is_some_and(|every| is_due(dataset, &status.datasets, every));
        !dataset.flushed && (due || (newest && dataset.current))
    };
    status.datasets.iter().filter(due).collect()
}

fn newest_of<'a>(left: &[&'a DatasetStatus]) -> Option<&'a DatasetStatus> {
    left.iter().find(|dataset| dataset.current).copied()
}

fn given_up(dataset: &DatasetStatus) -> bool {
    dataset.flush_failed.as_ref().is_some_and(|failure| failure.given_up)
}

fn unsaved(dataset: &DatasetStatus, limit: Duration) -> String {
    let why = match &dataset.flush_failed {
        Some(failure) => failure.reason.clone(),
        None => format!("not done in {} s", limit.as_secs()),
    };
    format!(
        "not on the PFS: {}: {why}; it is {}in the caches of {}",
        sized(&dataset.name, dataset.id, dataset.bytes),
        if dataset.state == SEALED { "" } else { "protected " },
        hosts_for_people(dataset.hosts.iter().map(String::as_str))
    )
}

fn gone(dataset: &Unsaved) -> String {
    format!(
        "not on the PFS: {}: {}; it has left the caches",
        sized(&dataset.name, dataset.id, dataset.bytes),
        dataset.reason
    )
}

fn sized(name: &str, id: u64, bytes: u64) -> String {
    format!("{} (dataset {id}, {})", escaped(name), bytes_for_people(bytes))
}

#[cfg(test)]
mod tests {
    use scrfs::status::FlushFailure;

    use super::*;
    use crate::status::tests::{dataset, node};

    #[test]
    fn what_is_saved_and_how_it_is_named() {
        let mut newest = dataset(5, "ck.5", "protected", &["n1", "n2"]);
        newest.current = true;
        let status = node(vec![newest.clone(), dataset(4, "ck.4", "protected", &["n1", "n2"])]);
        let ids = |newest, every| left(&status, newest, every).iter().map(|d| d.id).collect::<Vec<_>>();
        assert_eq!(ids(true, None), [5]);
        assert_eq!(ids(false, Some(2)), [4]);
        assert_eq!(ids(true, Some(2)), [5, 4]);
        assert!(ids(false, Some(0)).is_empty());
        newest.flushed = true;
        assert!(left(&node(vec![newest.clone()]), true, Some(1)).is_empty());

        newest.flushed = false;
        assert!(!given_up(&newest));
        assert_eq!(
            unsaved(&newest, Duration::from_mins(1)),
            "not on the PFS: ck.5 (dataset 5, 3.0 MiB): not done in 60 s; it is protected in the caches of n[1-2]"
        );
        newest.flush_failed = Some(FlushFailure { reason: "/pfs: full".into(), given_up: true });
        let wish = |again| Wish { epoch: 1, id: 5, again };
        assert!(is_hopeless(&newest, None, false) && !is_hopeless(&newest, None, true));
        assert!(is_hopeless(&newest, Some(&wish(false)), true));
        newest.flush_failed = Some(FlushFailure { reason: "/pfs: full".into(), given_up: false });
        assert!(!is_hopeless(&newest, Some(&wish(false)), true), "it is tried again by itself");
        assert!(is_hopeless(&newest, Some(&wish(true)), true), "that was the one try more");
        newest.flush_failed = None;
        assert!(!is_hopeless(&newest, Some(&wish(true)), true));
        newest.flush_failed = Some(FlushFailure { reason: "/pfs: full".into(), given_up: true });
        assert!(given_up(&newest) && unsaved(&newest, Duration::ZERO).contains(": /pfs: full; "));
        newest.name = "ck\n5".to_owned();
        assert!(unsaved(&newest, Duration::ZERO).contains(r"PFS: ck\n5 (dataset 5, "));
        let old = Unsaved { id: 4, name: "ck.4".into(), bytes: 3 << 20, reason: "/pfs: full".into() };
        assert_eq!(
            gone(&old),
            "not on the PFS: ck.4 (dataset 4, 3.0 MiB): /pfs: full; it has left the caches"
        );
    }
}

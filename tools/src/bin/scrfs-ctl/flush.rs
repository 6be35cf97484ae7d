//! `scrfs-ctl flush`: has a dataset copied to the parallel file system.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::thread::sleep;
use std::time::{Duration, Instant};

use scrfs::control::{Flushable, Named};
use scrfs::status::{DatasetStatus, FlushFailure, NodeStatus};
use scrfs_tools::node::Node;
use scrfs_tools::output::{self, escaped};
use scrfs_tools::{Failure, Outcome};

use crate::wait::{PAUSE, TELL, busy};

/// What to do where there are no coordinators.
const START: &str = "its bytes stay in the caches; `scrfs-run` with the same job id and hosts starts coordinators and saves the \
                     newest dataset at its end in the prefix that it is given, also with `true` as the program";

/// `wait`: until it is there, at most for so long.
pub(crate) fn flush(node: &Node, dataset: Option<&OsStr>, wait: Option<Duration>, json: bool) -> Outcome {
    let (named, mut there) = ask(node, dataset)?;
    if let Some(limit) = wait.filter(|_| !there) {
        await_flush(node, &named, limit)?;
        there = true;
    }
    let name = String::from_utf8_lossy(&named.name);
    let text = if json {
        let state = if there { "flushed" } else { "asked" };
        serde_json::json!({ "id": named.id.0, "name": name, "state": state }).to_string()
    } else {
        let state = if there { "is on the PFS" } else { "is going to be flushed" };
        format!("{} (dataset {}) {state}", escaped(&name), named.id)
    };
    output::data(&format!("{text}\n"))
}

/// Which it is, and whether it is on the PFS already.
fn ask(node: &Node, dataset: Option<&OsStr>) -> Outcome<(Named, bool)> {
    let shown = escaped(dataset.unwrap_or_default().display());
    match node.flush(dataset.map(OsStr::as_bytes))? {
        Flushable::Done(named) => Ok((named, true)),
        Flushable::Asked(named) => Ok((named, false)),
        Flushable::None => Err(Failure::new("no dataset is protected, so there is none to flush")
            .hint("a dataset is protected when its marker is set: `touch .complete` in its directory")),
        Flushable::Unknown => {
            Err(Failure::new(format!("no dataset {shown}"))
                .hint("`scrfs-ctl list` names those that there are"))
        }
        Flushable::Unsealed => Err(Failure::new(format!("{shown} is not sealed, so it cannot be flushed"))
            .hint("set its marker first: `touch .complete` in its directory")),
        Flushable::Failed(reason) => Err(Failure::new(format!("{shown} has failed: {reason}"))
            .hint("`scrfs-ctl list` says which others there are")),
        Flushable::NoCoordinator(named) => {
            let name = escaped(String::from_utf8_lossy(&named.name));
            Err(Failure::new(format!("{name} cannot be flushed: no coordinator serves this node"))
                .hint(START))
        }
    }
}

fn await_flush(node: &Node, named: &Named, limit: Duration) -> Outcome {
    let (begun, mut told) = (Instant::now(), Instant::now());
    let mut asked_in = None;
    let mut failure: Option<FlushFailure> = None;
    let name = escaped(String::from_utf8_lossy(&named.name));
    loop {
        let status = node.status()?;
        let Some(dataset) = find(&status, named.id.0) else { return left_for_pfs(&status, named) };
        if dataset.flushed {
            return Ok(());
        }
        if dataset.flush_failed != failure {
            failure.clone_from(&dataset.flush_failed);
            if let Some(failure) = &failure {
                output::talk(&format!("scrfs-ctl: {name}: {}", failure.reason));
            }
        }
        if let Some(failure) = failure.as_ref().filter(|failure| failure.given_up) {
            return Err(Failure::new(format!("{name} could not be flushed: {}", failure.reason))
                .hint("mend what is named, and ask again; it stays protected in the caches"));
        }
        // Successors of the coordinators that were asked do not know of it.
        if status.coordinator.is_some() && asked_in.replace(status.epoch).is_some_and(|e| e != status.epoch) {
            ask(node, Some(OsStr::from_bytes(&named.name)))?;
        }
        if told.elapsed() >= TELL {
            if let Some(line) = busy(&status) {
                output::talk(&line);
            }
            told = Instant::now();
        }
        if begun.elapsed() >= limit {
            let why = failure.map(|failure| format!(": {}", failure.reason)).unwrap_or_default();
            return Err(Failure::new(format!("{name} is not on the PFS after {} s{why}", limit.as_secs()))
                .hint("it goes on; `scrfs-ctl status` shows how far it is"));
        }
        sleep(PAUSE);
    }
}

/// A dataset that is not in the caches any more is on the PFS: it may have left them at once.
fn left_for_pfs(status: &NodeStatus, named: &Named) -> Outcome {
    if status.on_pfs.as_ref().is_some_and(|gone| gone.id == named.id.0) {
        return Ok(());
    }
    let name = escaped(String::from_utf8_lossy(&named.name));
    Err(Failure::new(format!("{name} has left the caches, and nothing tells that it is on the PFS"))
        .hint("`ls` in the prefix shows what is there"))
}

pub(crate) fn find(status: &NodeStatus, id: u64) -> Option<&DatasetStatus> {
    status.datasets.iter().find(|dataset| dataset.id == id)
}

#[cfg(test)]
mod tests {
    use scrfs::ids::DatasetId;
    use scrfs::status::Elsewhere;

    use super::*;
    use crate::status::tests::node;

    #[test]
    fn one_that_has_left_the_caches_may_be_on_the_pfs() {
        let named = |id| Named { id: DatasetId(id), name: b"ck".to_vec() };
        let gone = Elsewhere { id: 2, name: "ck".to_owned() };
        let left = NodeStatus { on_pfs: Some(gone), ..node(Vec::new()) };
        assert!(left_for_pfs(&left, &named(2)).is_ok());
        // An older generation of that name.
        for (status, id) in [(&left, 3), (&node(Vec::new()), 2)] {
            let refused = left_for_pfs(status, &named(id)).unwrap_err().to_string();
            assert!(refused.contains("nothing tells that it is on the PFS"), "{refused}");
        }
    }
}

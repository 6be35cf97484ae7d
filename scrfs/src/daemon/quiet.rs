//! A dataset is quiet when nobody can write its files any more, save at the end of those that
//! programs hold open for append only (`scrfs/docs/semantics.md`, The marker). The freezing thread
//! (`scrfs-freeze`) waits here; whoever releases a file, or cancels the seal, rings its bell.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::control::Reason;
use crate::lane::Hands;
use crate::lock::{Condvar, Mutex};
use crate::path::RelPath;

use super::core::seals::Refusal;
use super::freeze::Signals;
use super::node::Node;
use crate::boundary::Writer;
use crate::caller;

/// How often leases are looked at while somebody writes who has no handle whose release would tell.
const LEASE_TICK: Duration = Duration::from_millis(20);
/// A release reaches the daemon a little after its close(2) has returned: a writer who must not be
/// waited for may still seem to be one for that long.
const RELEASE_GRACE: Duration = Duration::from_millis(250);

/// Wakes a freezing thread.
#[derive(Default)]
pub(super) struct Bell {
    rung: Mutex<bool>,
    wake: Condvar,
}

impl Bell {
    pub(super) fn ring(&self) {
        *self.rung.lock() = true;
        self.wake.notify_all();
    }

    fn wait(&self, hands: &Hands, at_most: Duration) {
        if let Hands::Agenda(agenda) = hands {
            // Nobody else goes on meanwhile.
            return agenda.pass(at_most);
        }
        let mut rung = self.rung.lock();
        if !*rung {
            self.wake.wait_for(&mut rung, at_most);
        }
        *rung = false;
    }
}

impl Node {
    /// Waits until no writable descriptor or mapping is left but of files to which all writers
    /// append: those are told. Else says who has one.
    pub(super) fn wait_quiet(&self, name: &[u8], signals: &Signals) -> Result<BTreeSet<RelPath>, Reason> {
        let ring = Arc::clone(&signals.bell);
        self.tree.on_release(name, Arc::new(move || ring.ring()));
        let logs = self.wait_for_writers(name, signals);
        self.tree.end_wait(name);
        logs
    }

    fn wait_for_writers(&self, name: &[u8], signals: &Signals) -> Result<BTreeSet<RelPath>, Reason> {
        let begun = self.now();
        let timeout = self.state.lock().seal_timeout();
        loop {
            let mut writers = self.tree.writers(name)?;
            let nobody = apart(writers.clone()).1.is_empty();
            // Operations that went on meanwhile may have brought a writer in. From here on none
            // does.
            if nobody && self.tree.end_wait(name) {
                writers = self.tree.writers(name)?;
            }
            let waited = self.now().duration_since(begun);
            let closing = writers.iter().any(|writer| writer.closing) && waited < RELEASE_GRACE.min(timeout);
            let (logs, writers) = apart(writers);
            if writers.is_empty() && !closing {
                return Ok(logs);
            }
            if signals.cancelled.is_cancelled() {
                return Err(Refusal::GivenUp.into());
            }
            self.tree.begin_wait(name);
            let own = self.own_writer(name, &writers);
            if let Some(writer) = own.filter(|_| waited >= RELEASE_GRACE.min(timeout)) {
                return Err(format!(
                    "{} is still open for writing by the process that set the marker, or one that it descends from",
                    shown(writer)
                )
                .into());
            }
            if waited >= timeout {
                let names: Vec<_> = writers.iter().take(8).map(shown).collect();
                return Err(format!("still open for writing after {timeout:?}: {}", names.join(", ")).into());
            }
            let unseen = writers.iter().any(|writer| writer.pid == 0);
            let left = timeout.saturating_sub(waited);
            let most =
                if unseen || closing || own.is_some() { LEASE_TICK } else { Duration::from_millis(500) };
            signals.bell.wait(&self.config.hands, left.min(most));
        }
    }

    /// A writer that is the process whose marker waits here, or an ancestor of it: it would wait
    /// for itself.
    fn own_writer<'a>(&self, name: &[u8], writers: &'a [Writer]) -> Option<&'a Writer> {
        let tids = self.state.lock().desk.waiting().marker_callers(name);
        if tids.is_empty() {
            return None;
        }
        let own = caller::with_ancestors(tids.into_iter());
        writers.iter().find(|writer| own.contains(&writer.pid))
    }
}

/// Files that have appending writers only, and the writers of all others.
fn apart(writers: Vec<Writer>) -> (BTreeSet<RelPath>, Vec<Writer>) {
    let written: BTreeSet<RelPath> =
        writers.iter().filter(|writer| !writer.appends).map(|writer| writer.path.clone()).collect();
    let (others, logs): (Vec<_>, Vec<_>) =
        writers.into_iter().partition(|writer| written.contains(&writer.path));
    (logs.into_iter().map(|writer| writer.path).collect(), others)
}

fn shown(writer: &Writer) -> String {
    if writer.pid == 0 {
        format!("{} (a mapping)", writer.path)
    } else {
        format!("{} by {} (pid {})", writer.path, writer.command, writer.pid)
    }
}

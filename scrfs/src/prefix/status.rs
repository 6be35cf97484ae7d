//! The last status and the events of the lead's node, kept in the prefix for those who have no
//! mount ([`crate::status::last`]). In a thread of its own: a PFS that hangs holds up nothing else.
//!
//! The thread asks the daemon when the lead has told it something that changes a dataset, and every
//! `PERIOD`. What changed in a dataset's life is written at once, figures at most once a period.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::control::{Command, Reason};
use crate::status::NodeStatus;
use crate::status::last::{self, LastStatus};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use serde_json::Value;

use super::directory::{PfsError, Prefix, Result, append, rename, replace};

/// Between two looks at the daemon while nothing is told to it.
const PERIOD: Duration = Duration::from_secs(10);
/// What the lead tells comes in bursts, and the daemon acts on it first.
const SETTLE: Duration = Duration::from_millis(300);
/// How long the end waits for the last word.
const END_LIMIT: Duration = Duration::from_secs(2);
/// Events asked for at once; the daemon keeps no more.
const EVENTS_ASKED: u32 = 1000;
/// A file of events that is longer becomes `events.1`.
const EVENTS_MAX: u64 = 16 << 20;

/// What the thread asks of the daemon.
pub trait Source: Send + 'static {
    /// Its status.
    fn status(&self) -> std::result::Result<NodeStatus, Reason>;
    /// Its newest events, at most so many, oldest first.
    fn events(&self, most: u32) -> std::result::Result<Vec<String>, Reason>;
}

enum Nudge {
    Changed,
    End,
}

/// The thread, for the coordinator's loop.
#[derive(Debug)]
pub struct Reporter {
    nudge: Sender<Nudge>,
    ended: Receiver<()>,
}

impl Reporter {
    /// Starts the thread for the coordinators that work in `prefix`.
    ///
    /// # Errors
    /// No thread can be had.
    pub fn start(prefix: Prefix, daemon: impl Source) -> std::io::Result<Self> {
        let (nudge, nudges) = bounded(16);
        let (tell_end, ended) = bounded(1);
        let work = move || {
            Desk { prefix, daemon, written: None, noted_us: None, failing: false }.work(&nudges);
            drop(tell_end);
        };
        std::thread::Builder::new().name("status".to_owned()).spawn(work)?;
        Ok(Self { nudge, ended })
    }

    /// The daemon is told `command`.
    pub fn told(&self, command: &Command) {
        let changes = matches!(
            command,
            Command::Serve
                | Command::Freeze { .. }
                | Command::Commit(_)
                | Command::Revise(_)
                | Command::Sealed(_)
                | Command::Drop { .. }
                | Command::MarkersEnd { .. }
                | Command::Evict(_)
                | Command::FlushMember { .. }
                | Command::MarkFlushed(_)
                | Command::UnmarkFlushed(_)
                | Command::MarkFailed { .. }
                | Command::Present { .. }
                | Command::Note { .. }
        );
        if changes {
            // A full channel has what wakes the thread.
            let _ = self.nudge.try_send(Nudge::Changed);
        }
    }

    /// The coordinators end as they were asked to: one last word. A thread that has not come to
    /// look at what it was told before waits for the PFS, and is not waited for.
    pub fn end(self) {
        if self.nudge.try_send(Nudge::End).is_ok() {
            let _ = self.ended.recv_timeout(END_LIMIT);
        }
    }

    /// The coordinators go on in another session, with another one: no last word. False when what
    /// it is at takes longer than `limit`.
    pub fn stop(self, limit: Duration) -> bool {
        drop(self.nudge);
        self.ended.recv_timeout(limit) == Err(RecvTimeoutError::Disconnected)
    }
}

struct Desk<S> {
    prefix: Prefix,
    daemon: S,
    /// What was written last, and when.
    written: Option<(NodeStatus, Instant)>,
    /// The time of the newest event in the file; `None` until the file was looked at.
    noted_us: Option<u64>,
    /// It was said that the prefix or the daemon fails.
    failing: bool,
}

impl<S: Source> Desk<S> {
    /// Until the end is told, or the coordinator fails.
    fn work(mut self, nudges: &Receiver<Nudge>) {
        while let Some(ends) = next(nudges) {
            let kept = self.keep(ends);
            if let Err(reason) = &kept
                && !self.failing
            {
                tracing::warn!(%reason, "the last status cannot be kept in the prefix");
            }
            self.failing = kept.is_err();
            if ends {
                return;
            }
        }
    }

    fn keep(&mut self, ended: bool) -> std::result::Result<(), Reason> {
        let status = self.daemon.status()?;
        let events = self.daemon.events(EVENTS_ASKED)?;
        self.write_status(status, ended).and_then(|()| self.append(&events)).map_err(Reason::from)
    }

    fn write_status(&mut self, status: NodeStatus, ended: bool) -> Result<()> {
        let now = Instant::now();
        let fresh = |(known, at): &(NodeStatus, Instant)| !is_due(known, &status, now - *at);
        if !ended && self.written.as_ref().is_some_and(fresh) {
            return Ok(());
        }
        self.prefix.make()?;
        self.prefix.newest()?;
        let path = last::status_path(self.prefix.root());
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let written_us = u64::try_from(since.as_micros()).unwrap_or(u64::MAX);
        let last = LastStatus { written_us, ended, status };
        let mut text =
            serde_json::to_vec(&last).map_err(|e| PfsError::io(&path, "JSON")(std::io::Error::other(e)))?;
        text.push(b'\n');
        replace(&path, &text)?;
        self.written = Some((last.status, now));
        Ok(())
    }

    /// Those that are newer than all in the file. A former lead's stay, and what it was told too is
    /// not told again.
    fn append(&mut self, events: &[String]) -> Result<()> {
        let noted_us = self.noted_us.unwrap_or_else(|| {
            let newest = last::events(self.prefix.root(), 1).unwrap_or_default();
            newest.first().and_then(|line| time_of(line)).unwrap_or(0)
        });
        let newer = events.iter().filter(|line| time_of(line) > Some(noted_us));
        let lines: Vec<String> = newer.filter_map(|line| with_host(line, &self.prefix.host)).collect();
        self.noted_us = Some(events.iter().filter_map(|line| time_of(line)).fold(noted_us, u64::max));
        if lines.is_empty() {
            return Ok(());
        }
        let path = last::events_path(self.prefix.root());
        if crate::plain::look(&path).is_ok_and(|meta| meta.len() > EVENTS_MAX) {
            rename(&path, &self.prefix.state("events.1"))?;
        }
        append(&path, lines.concat().as_bytes())
    }
}

/// Waits for what is worth a look, and lets more of it come. True: the end; `None`: without a last
/// word.
fn next(nudges: &Receiver<Nudge>) -> Option<bool> {
    match nudges.recv_timeout(PERIOD) {
        Err(RecvTimeoutError::Disconnected) => return None,
        Err(RecvTimeoutError::Timeout) => return Some(false),
        Ok(Nudge::End) => return Some(true),
        Ok(Nudge::Changed) => {}
    }
    let until = Instant::now() + SETTLE;
    loop {
        match nudges.recv_deadline(until) {
            Ok(Nudge::Changed) => {}
            Ok(Nudge::End) => return Some(true),
            Err(RecvTimeoutError::Disconnected) => return None,
            Err(RecvTimeoutError::Timeout) => return Some(false),
        }
    }
}

/// Whether `status` is to be written, `age` after `known` was.
fn is_due(known: &NodeStatus, status: &NodeStatus, age: Duration) -> bool {
    // Two looks are a little less or more than a period apart.
    let next = age + PERIOD / 2;
    lives(known) != lives(status) || (known != status && next >= PERIOD) || next >= last::RENEWED
}

/// What is told at once: each dataset's life, whether coordinators serve, and of which epoch.
fn lives(status: &NodeStatus) -> impl PartialEq {
    let datasets = status.datasets.iter().filter(|d| d.id != 0);
    let lives = datasets.map(|d| (d.id, d.name.clone(), d.state.clone(), d.flushed, d.current));
    (status.epoch, status.coordinator.is_some(), lives.collect::<Vec<_>>())
}

fn time_of(line: &str) -> Option<u64> {
    serde_json::from_str::<Value>(line).ok()?.get("time_us")?.as_u64()
}

/// The event as a line of a file that has those of several hosts.
fn with_host(line: &str, host: &str) -> Option<String> {
    let mut event: serde_json::Map<String, Value> = serde_json::from_str(line).ok()?;
    event.insert("host".to_owned(), host.into());
    serde_json::to_string(&event).ok().map(|line| line + "\n")
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use crate::ids::Epoch;
    use parking_lot::Mutex;

    use super::*;

    type Told = (NodeStatus, Vec<String>);

    /// A daemon that tells what it was given.
    struct Fake(Arc<Mutex<Told>>);

    impl Source for Fake {
        fn status(&self) -> std::result::Result<NodeStatus, Reason> {
            Ok(self.0.lock().0.clone())
        }
        fn events(&self, _: u32) -> std::result::Result<Vec<String>, Reason> {
            Ok(self.0.lock().1.clone())
        }
    }

    fn status(state: &str) -> NodeStatus {
        let json = serde_json::json!({
            "version": last::VERSION, "host": "node0", "mount_point": "/scr",
            "mode": "plain", "mode_reason": "none", "job": "ann 7", "control_directory": "/c",
            "cache_directory": "/k", "stores": [], "cache_bytes": null, "coordinator": null,
            "was_attached": true, "epoch": 3, "flush_every": 10, "enabled": true, "waiting": 0,
            "priority": { "raised": false, "why": "", "how": "" }, "datasets": [{
                "id": 1, "name": "ck", "state": state, "scheme": "XOR", "bytes": 5, "files": 1, "hosts": [],
                "flushed": false, "current": true, "progress": null, "survives": [],
            }],
        });
        serde_json::from_value(json).unwrap()
    }

    fn event(time_us: u64) -> String {
        format!("{{\"time_us\":{time_us},\"text\":\"x\"}}")
    }

    fn desk(root: &Path, told: &Arc<Mutex<Told>>) -> Desk<Fake> {
        let prefix = Prefix::new(root.as_os_str().as_encoded_bytes(), Epoch(3), "node0");
        Desk { prefix, daemon: Fake(Arc::clone(told)), written: None, noted_us: None, failing: false }
    }

    #[test]
    fn a_change_of_life_is_written_at_once_and_figures_later() {
        let (one, mut more) = (status("protected"), status("protected"));
        more.waiting = 1;
        let flushed = status("flushed");
        let seconds = Duration::from_secs;
        assert!(!is_due(&one, &one, seconds(20)) && is_due(&one, &one, seconds(55)));
        assert!(!is_due(&one, &more, seconds(4)) && is_due(&one, &more, seconds(10)));
        assert!(is_due(&one, &flushed, Duration::ZERO));
    }

    #[test]
    fn the_prefix_has_the_last_status_and_each_event_once() {
        let root = tempfile::tempdir().unwrap();
        let told = Arc::new(Mutex::new((status("protected"), vec![event(4), event(5)])));
        let mut first = desk(root.path(), &told);
        first.keep(false).unwrap();
        told.lock().1.push(event(6));
        first.keep(false).unwrap();
        told.lock().0 = status("flushed");
        // A successor goes on where the file ends.
        desk(root.path(), &told).keep(true).unwrap();
        let kept = LastStatus::read(root.path()).unwrap();
        assert_eq!((kept.status, kept.ended), (status("flushed"), true));
        let events = last::events(root.path(), 10).unwrap();
        let times: Vec<_> = events.iter().filter_map(|line| time_of(line)).collect();
        assert_eq!(times, [4, 5, 6]);
        assert!(events.iter().all(|line| line.contains("\"host\":\"node0\"")), "{events:?}");
    }

    #[test]
    fn who_was_superseded_writes_nothing_more() {
        let root = tempfile::tempdir().unwrap();
        let told = Arc::new(Mutex::new((status("protected"), Vec::new())));
        crate::prefix::make(root.path()).unwrap();
        std::fs::write(root.path().join(".scr/epoch.4"), b"").unwrap();
        assert!(desk(root.path(), &told).keep(false).unwrap_err().words().contains("epoch 4 has begun"));
        assert!(LastStatus::read(root.path()).is_err());
    }
}

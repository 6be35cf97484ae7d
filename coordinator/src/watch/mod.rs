//! Nodes watch one another: who has lost power or network, or hangs, is named within seconds,
//! whatever the launcher notices.
//!
//! Every node watches [`OTHERS`] others over a connection each (`links`), on which the other says
//! every [`BEAT`] that it lives, as long as its daemon answers its coordinator. The kernels notice
//! a dead network by themselves; a node that is stopped, or whose daemon hangs, falls silent. Here
//! is decided what that means; no socket, clock or thread.

mod links;

use std::collections::BTreeMap;
use std::time::Duration;

pub use links::Watched;
use scrfs::control::lost::Why;

/// Between two signs of life.
pub const BEAT: Duration = Duration::from_millis(500);
/// Who looks less often than this was stopped itself, and has missed what came meanwhile.
const LATE: Duration = Duration::from_secs(2);
/// Others that one node watches.
pub const OTHERS: usize = 3;
/// Who has lost all others may be the one that is cut off: then the others name it within this
/// time.
const ALONE: Duration = Duration::from_secs(4);
/// Whose scrfs-run is gone with its node ends by itself after this time: nobody else ends it, and a
/// scheduler takes the job for alive. Where scrfs-run lives after all it has acted long before.
const FORSAKEN: Duration = Duration::from_secs(20);
/// Who has answered within this time is there.
const FRESH: Duration = Duration::from_millis(1500);

/// Whom rank `me` of `size` watches: its next neighbours and one that is far off, since neighbours
/// may be lost together.
pub fn watched_by(me: u32, size: u32) -> Vec<u32> {
    let mut others = Vec::new();
    for step in [1, size / 2, 2] {
        let (me, step, size) = (u64::from(me), u64::from(step), u64::from(size));
        let Ok(other) = u32::try_from((me + step) % size.max(1)) else { continue };
        if u64::from(other) != me && !others.contains(&other) {
            others.push(other);
        }
    }
    others.truncate(OTHERS);
    others
}

/// What the links notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Noticed {
    /// A sign of life of this rank.
    Beat(u32),
    /// The connection to it is dead: its network does not answer.
    Dead(u32),
    /// It has closed the connection: its coordinator has ended, which says nothing about the node.
    Closed(u32),
    /// A coordinator that this one watches says that scrfs-run is gone.
    Forsaken,
    /// Time has passed.
    Tick,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Last heard then.
    Open(Duration),
    /// Dead since then.
    Dead(Duration),
    /// Named, or of no interest any more.
    Done,
}

/// The judge.
#[derive(Debug)]
pub struct Watch {
    others: BTreeMap<u32, State>,
    silence: Duration,
    last: Duration,
    /// On whose node scrfs-run is, if this node watches that one.
    run: Option<u32>,
    /// From when on this process is to end, as scrfs-run is gone.
    end: Option<Duration>,
}

impl Watch {
    /// Of connections that were made at `now`; `silence`: `SCRFS_NODE_TIMEOUT`.
    pub fn new(others: impl IntoIterator<Item = u32>, silence: Duration, now: Duration) -> Self {
        let others = others.into_iter().map(|other| (other, State::Open(now))).collect();
        Self { others, silence, last: now, run: None, end: None }
    }

    /// The node of this rank has scrfs-run.
    #[must_use]
    pub fn with_run(self, run: Option<u32>) -> Self {
        Self { run, ..self }
    }

    /// Nobody is left who would end this process.
    pub fn is_forsaken(&self, now: Duration) -> bool {
        self.end.is_some_and(|end| end <= now)
    }

    /// Takes what was noticed at `now`; gives who is lost, each once.
    pub fn step(&mut self, now: Duration, noticed: Noticed) -> Vec<(u32, Why)> {
        if now.saturating_sub(self.last) > LATE {
            self.forgive(now);
        }
        self.last = now;
        match noticed {
            Noticed::Beat(other) => self.set(other, State::Open(now)),
            Noticed::Dead(other) => self.set(other, State::Dead(now)),
            Noticed::Closed(other) => self.set(other, State::Done),
            Noticed::Forsaken => self.end = Some(now),
            Noticed::Tick => {}
        }
        let lost = self.lost(now);
        if lost.iter().any(|(other, why)| *why == Why::Network && Some(*other) == self.run) {
            self.end = Some(now + FORSAKEN);
        }
        lost
    }

    fn set(&mut self, other: u32, state: State) {
        if let Some(known) = self.others.get_mut(&other)
            && *known != State::Done
        {
            *known = state;
        }
    }

    /// This process was stopped itself: what it did not hear proves nothing.
    fn forgive(&mut self, now: Duration) {
        for state in self.others.values_mut() {
            if let State::Open(heard) = state {
                *heard = now;
            }
        }
    }

    fn lost(&mut self, now: Duration) -> Vec<(u32, Why)> {
        let fresh = |state: &State| matches!(state, State::Open(at) if now.saturating_sub(*at) < FRESH);
        let in_company = self.others.len() < 2 || self.others.values().any(fresh);
        let mut lost = Vec::new();
        for (&other, state) in &mut self.others {
            let why = match *state {
                State::Dead(since) if in_company || now.saturating_sub(since) >= ALONE => Why::Network,
                State::Open(heard) if now.saturating_sub(heard) >= self.silence => Why::Silent,
                _ => continue,
            };
            *state = State::Done;
            lost.push((other, why));
        }
        lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    /// All others beat until `until`; what is named on the way.
    fn pass(watch: &mut Watch, from: u64, until: u64, beating: &[u32]) -> Vec<(u32, Why)> {
        let mut named = Vec::new();
        for at in (from..until).step_by(250) {
            for &other in beating {
                named.extend(watch.step(ms(at), Noticed::Beat(other)));
            }
            named.extend(watch.step(ms(at), Noticed::Tick));
        }
        named
    }

    #[test]
    fn everybody_is_watched_by_as_many_as_there_can_be() {
        assert_eq!(watched_by(0, 1), [0_u32; 0]);
        assert_eq!(watched_by(1, 2), [0]);
        assert_eq!(watched_by(2, 3), [0, 1]);
        assert_eq!(watched_by(9_999, 10_000), [0, 4_999, 1]);
        assert_eq!(watched_by(u32::MAX - 1, u32::MAX), [0, u32::MAX / 2 - 1, 1]);
        for size in 2..40 {
            for node in 0..size {
                let by = (0..size).filter(|&other| watched_by(other, size).contains(&node)).count();
                let most = OTHERS.min(size as usize - 1);
                assert!((most.min(2)..=most).contains(&by), "{node} of {size}: {by}");
            }
        }
    }

    #[test]
    fn a_dead_network_is_named_at_once_and_once() {
        let mut watch = Watch::new([1, 2, 3], ms(30_000), ms(0));
        assert_eq!(pass(&mut watch, 0, 5_000, &[1, 2, 3]), []);
        assert_eq!(watch.step(ms(5_000), Noticed::Dead(2)), [(2, Why::Network)]);
        assert_eq!(watch.step(ms(5_001), Noticed::Dead(2)), []);
        assert_eq!(pass(&mut watch, 5_250, 90_000, &[1, 3]), []);
        // One of two.
        let mut watch = Watch::new([1], ms(30_000), ms(0));
        assert_eq!(watch.step(ms(3_000), Noticed::Dead(1)), [(1, Why::Network)]);
    }

    #[test]
    fn who_is_cut_off_names_nobody_before_the_others_have_named_it() {
        let mut watch = Watch::new([1, 2, 3], ms(30_000), ms(0));
        assert_eq!(pass(&mut watch, 0, 5_000, &[1, 2, 3]), []);
        // The kernels notice one after the other; nothing was heard for seconds.
        assert_eq!(pass(&mut watch, 5_000, 7_750, &[]), []);
        for other in 1..4 {
            assert_eq!(watch.step(ms(7_750 + u64::from(other)), Noticed::Dead(other)), []);
        }
        assert_eq!(pass(&mut watch, 8_000, 11_500, &[]), []);
        assert_eq!(pass(&mut watch, 11_500, 12_500, &[]).len(), 3, "the others are lost indeed");
    }

    #[test]
    fn who_is_silent_is_named_after_the_limit() {
        let mut watch = Watch::new([1, 2, 3], ms(30_000), ms(0));
        assert_eq!(pass(&mut watch, 0, 30_000, &[1, 3]), []);
        assert_eq!(pass(&mut watch, 30_000, 60_000, &[1, 3]), [(2, Why::Silent)]);
    }

    #[test]
    fn whose_run_is_gone_with_its_node_ends_after_a_while() {
        let watch = || Watch::new([1, 2], ms(30_000), ms(0)).with_run(Some(1));
        let mut other = watch();
        assert_eq!(other.step(ms(0), Noticed::Dead(2)), [(2, Why::Network)]);
        assert_eq!(pass(&mut other, 0, 60_000, &[1]), []);
        assert!(!other.is_forsaken(ms(60_000)));
        let mut run = watch();
        assert_eq!(pass(&mut run, 0, 1_000, &[1, 2]), []);
        assert_eq!(run.step(ms(1_000), Noticed::Dead(1)), [(1, Why::Network)]);
        assert!(!run.is_forsaken(ms(999) + FORSAKEN) && run.is_forsaken(ms(1_000) + FORSAKEN));
        // Others hear of it from one that has waited.
        let mut told = Watch::new([3], ms(30_000), ms(0));
        told.step(ms(1_000), Noticed::Forsaken);
        assert!(told.is_forsaken(ms(1_000)));
    }

    #[test]
    fn who_was_stopped_itself_accuses_nobody() {
        let mut watch = Watch::new([1, 2, 3], ms(30_000), ms(0));
        assert_eq!(pass(&mut watch, 0, 1_000, &[1, 2, 3]), []);
        assert_eq!(watch.step(ms(100_000), Noticed::Tick), []);
        assert_eq!(pass(&mut watch, 100_000, 129_000, &[1]), []);
        assert_eq!(pass(&mut watch, 129_000, 131_000, &[1]), [(2, Why::Silent), (3, Why::Silent)]);
    }

    #[test]
    fn a_coordinator_that_has_ended_is_no_lost_node() {
        let mut watch = Watch::new([1, 2, 3], ms(30_000), ms(0));
        assert_eq!(watch.step(ms(1_000), Noticed::Closed(2)), []);
        assert_eq!(watch.step(ms(1_000), Noticed::Dead(2)), []);
        assert_eq!(pass(&mut watch, 1_000, 90_000, &[1, 3]), []);
    }
}

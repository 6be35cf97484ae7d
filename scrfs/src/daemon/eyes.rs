//! What programs and monitors read in `.scrfs`, and what `user.scrfs.*` tells of a file
//! (`scrfs/docs/semantics.md`, Eyes).

use std::collections::HashMap;

use crate::control::{Advice, Event, HeldState};
use crate::path::RelPath;
use crate::status::people::hosts_for_people;
use crate::status::{Changed, show};

use super::node::Node;
use super::report::state_word;
use super::state::State;
use crate::boundary::Eye;
use crate::caller::Caller;
use crate::errno::Errno;

mod metrics;

/// Lines of events in the file.
const EVENTS_MAX: usize = 1000;
/// Threads of programs whose questions are counted: at least this many, at most twice as many.
const ASKERS: usize = 4096;

/// How often threads have asked whether to write a checkpoint, since the last seal. Programs may
/// ask from ever new threads, so those that have asked longest ago are forgotten.
#[derive(Debug, Default)]
pub(super) struct Askers {
    times: HashMap<u32, u32>,
    /// Those that have not asked since `times` was full.
    earlier: HashMap<u32, u32>,
    most: u32,
}

impl Askers {
    /// Counts one question; the new number if nobody here has asked as often before.
    fn asked(&mut self, tid: u32) -> Option<u32> {
        if self.times.len() >= ASKERS && !self.times.contains_key(&tid) {
            self.earlier = std::mem::take(&mut self.times);
        }
        let before = self.earlier.remove(&tid).unwrap_or(0);
        let times = self.times.entry(tid).or_insert(before);
        *times = times.saturating_add(1);
        let new = *times > self.most;
        self.most = self.most.max(*times);
        new.then_some(*times)
    }

    /// The most that one has asked.
    pub(super) fn most(&self) -> Option<u32> {
        Some(self.most).filter(|most| *most > 0)
    }

    /// A dataset is sealed, or another program begins: the count begins anew.
    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }
}

/// What the program is advised, and how often it has asked. Of a program that is over nothing is
/// left.
#[derive(Debug, Default)]
pub(super) struct Advised {
    /// The lead's, the same on all nodes.
    pub(super) advice: Option<Advice>,
    pub(super) askers: Askers,
}

impl Advised {
    /// By a former worker.
    pub(super) fn found(advice: Option<Advice>) -> Self {
        Self { advice, askers: Askers::default() }
    }

    /// Until a lead advises: nothing is known against a checkpoint.
    fn need_checkpoint(&self) -> bool {
        self.advice.is_none_or(|advice| advice.need_checkpoint)
    }

    fn should_exit(&self) -> bool {
        self.advice.is_some_and(|advice| advice.should_exit)
    }
}

impl Node {
    pub(super) fn look_at(&self, eye: Eye, caller: Caller) -> Result<Vec<u8>, Errno> {
        let flag = |set: bool| if set { "1\n" } else { "0\n" }.to_owned();
        Ok(match eye {
            Eye::Status => show(&self.status()),
            Eye::StatusJson => serde_json::to_string_pretty(&self.status())
                .map(|text| text + "\n")
                .map_err(|_| Errno(libc::EIO))?,
            Eye::Current => return Ok(self.current_name()),
            Eye::Events => {
                let lines = self.events.newest(EVENTS_MAX);
                lines.into_iter().map(|line| line + "\n").collect()
            }
            Eye::Metrics => self.metrics(),
            Eye::NeedCheckpoint => flag(self.asks(caller)),
            Eye::ShouldExit => flag(self.state.lock().advised.should_exit()),
            Eye::Post => String::new(),
        }
        .into_bytes())
    }

    /// A program asks whether to write a checkpoint.
    fn asks(&self, caller: Caller) -> bool {
        let mut state = self.state.lock();
        if let Some(times) = state.advised.askers.asked(caller.tid) {
            state.send_request(Event::Asked { times });
        }
        state.advised.need_checkpoint()
    }

    /// For the next worker. In the records' thread.
    pub(super) fn keep_advice(&self, advice: &Advice) {
        if let Err(error) = self.disk.lock().record_advice(advice) {
            self.events.error(None, &format!("what programs are advised cannot be kept: {error}"));
        }
    }

    fn current_name(&self) -> Vec<u8> {
        let state = self.state.lock();
        let current = state.presented_now().and_then(|id| state.table.datasets.get(&id));
        let mut name = current.map(|dataset| dataset.name.clone()).unwrap_or_default();
        if !name.is_empty() {
            name.push(b'\n');
        }
        name
    }

    pub(super) fn take_message(&self, caller: Caller, text: &str) {
        let text = format!("message of user {}: {text}", caller.uid);
        self.events.info(None, &text);
        self.state.lock().send_request(Event::Posted { text });
    }

    pub(super) fn facts(&self, name: &[u8], path: &RelPath) -> Vec<(&'static str, String)> {
        let changed = RelPath::new(name).and_then(|top| top.concat(path));
        // Lock order: the journal's before the state's.
        let (changed, rank, gone) = changed.map_or((false, None, false), |full| {
            let journal = self.journal.lock();
            let base = self.state.lock().base(name).map(|dataset| dataset.id);
            let gone = RelPath::new(name).ok().zip(base).map(|(top, id)| journal.gone(&top, id));
            let gone = gone.is_some_and(|gone| gone.cover(path));
            (journal.has(&full), journal.rank_of(&full), gone)
        });
        let since = if path.is_root() { self.changed_since(name) } else { String::new() };
        let state = self.state.lock();
        let sealed =
            state.base(name).filter(|dataset| dataset.life.is_listed() && (path.is_root() || !changed));
        let mut facts = match sealed {
            Some(dataset) => {
                vec![("id", dataset.id.to_string()), ("state", format!("{}{since}", state_word(dataset)))]
            }
            None => return unsealed(&state, name, path, &self.config.host, rank),
        };
        let layout = sealed.and_then(|dataset| dataset.life.catalog()).map(|index| &index.catalog().layout);
        if path.is_root() {
            let hosts = layout.into_iter().flat_map(|layout| &layout.members).map(|at| at.host.as_str());
            facts.push(("node", hosts_for_people(hosts)));
        } else if let Some((_, copy)) = sealed.filter(|_| !gone).and_then(|dataset| dataset.file(path)) {
            let place = layout.and_then(|layout| layout.members.get(copy.member.0 as usize));
            facts.extend(place.map(|place| ("node", place.host.clone())));
            facts.push(("member", copy.member.to_string()));
            facts.extend(copy.program_rank.map(|rank| ("rank", rank.to_string())));
            facts.push(("crc", format!("{:08x}", copy.crc)));
        }
        facts
    }

    /// What follows a sealed dataset's state while its next generation is made here; empty where
    /// none has begun.
    fn changed_since(&self, name: &[u8]) -> String {
        let open = self.state.lock().base(name).filter(|dataset| dataset.life.is_overwritten()).cloned();
        let Some(Changed { since_us, files, bytes, .. }) = open.and_then(|dataset| self.changed(&dataset))
        else {
            return String::new();
        };
        let since = since_us.map(|since| format!(" since {}", since / 1_000_000)).unwrap_or_default();
        format!("; changed{since}: {files} files, {bytes} bytes")
    }
}

/// What is open is on this node alone.
fn unsealed(
    state: &State,
    name: &[u8],
    path: &RelPath,
    host: &str,
    rank: Option<u32>,
) -> Vec<(&'static str, String)> {
    let frozen = state.by_name(name).filter(|dataset| dataset.state() != HeldState::Complete);
    let word = if state.seals.is_freezing(name) { "sealing" } else { frozen.map_or("open", state_word) };
    let mut facts = vec![("state", word.to_owned())];
    if !path.is_root() {
        facts.push(("node", host.to_owned()));
        facts.extend(rank.map(|rank| ("rank", rank.to_string())));
    }
    facts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_are_counted_until_the_next_seal() {
        let mut askers = Askers::default();
        assert_eq!(
            [askers.asked(7), askers.asked(8), askers.asked(8), askers.asked(7)],
            [Some(1), None, Some(2), None]
        );
        askers.forget();
        assert_eq!(askers.asked(7), Some(1));
    }

    #[test]
    fn of_ever_new_threads_those_are_forgotten_that_asked_longest_ago() {
        let mut askers = Askers::default();
        let few = u32::try_from(ASKERS).unwrap();
        for round in 1..=20 {
            assert_eq!((round, askers.asked(7)), (round, Some(round)));
            let others = few / 2 * round;
            (others..others + few / 2).for_each(|tid| assert_eq!(askers.asked(100 + tid), None));
            assert!(askers.times.len() + askers.earlier.len() <= 2 * ASKERS);
        }
        askers.asked(8);
        for tid in 0..2 * few {
            askers.asked(1_000_000 + tid);
        }
        assert!(!askers.times.contains_key(&8) && !askers.earlier.contains_key(&8));
        assert_eq!(askers.most(), Some(20));
    }
}

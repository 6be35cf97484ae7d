//! What programs and monitors read in `.scrfs`, and what `user.scrfs.*` tells of a file (DESIGN 4.10).

use std::collections::HashMap;

use crate::control::{Event, HeldState};
use crate::path::RelPath;
use crate::status::people::hosts_for_people;
use crate::status::show;

use super::boundary::{Caller, Errno, Eye};
use super::node::Node;
use super::report::state_word;
use super::state::State;

mod metrics;

/// Lines of events in the file.
const EVENTS_MAX: usize = 1000;
/// Threads of programs whose questions are counted.
const ASKERS_MAX: usize = 4096;

/// The lead's advice, the same on all nodes. Until a lead gives some: nothing is known against a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Advice {
    pub(super) need_checkpoint: bool,
    pub(super) should_exit: bool,
}

impl Default for Advice {
    fn default() -> Self {
        Self { need_checkpoint: true, should_exit: false }
    }
}

/// How often threads have asked whether to write a checkpoint, since the last seal.
#[derive(Debug, Default)]
pub(super) struct Askers {
    times: HashMap<u32, u32>,
    most: u32,
}

impl Askers {
    /// Counts one question; the new number if nobody here has asked as often before.
    fn asked(&mut self, tid: u32) -> Option<u32> {
        if self.times.len() >= ASKERS_MAX && !self.times.contains_key(&tid) {
            return None;
        }
        let times = self.times.entry(tid).or_default();
        *times = times.saturating_add(1);
        let new = *times > self.most;
        self.most = self.most.max(*times);
        new.then_some(*times)
    }

    /// A dataset is sealed: the count begins anew.
    pub(super) fn forget(&mut self) {
        *self = Self::default();
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
            Eye::NeedCheckpoint => flag(self.asks(caller).need_checkpoint),
            Eye::ShouldExit => flag(self.state.lock().advice.should_exit),
            Eye::Post => String::new(),
        }
        .into_bytes())
    }

    fn asks(&self, caller: Caller) -> Advice {
        let mut state = self.state.lock();
        let advice = state.advice;
        if let Some(times) = state.askers.asked(caller.tid) {
            state.send_request(Event::Asked { times });
        }
        advice
    }

    fn current_name(&self) -> Vec<u8> {
        let state = self.state.lock();
        let current = state.current_now().and_then(|id| state.table.datasets.get(&id));
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
        let (changed, rank, origin) = changed.map_or((false, None, None), |full| {
            let journal = self.journal.lock();
            let base = self.state.lock().base(name).map(|dataset| dataset.id);
            let moves = RelPath::new(name).ok().zip(base).map(|(top, id)| journal.moves(&top, id));
            let origin = moves.map_or(Some(path.clone()), |moves| moves.origin(path));
            (journal.has(&full), journal.rank_of(&full), origin)
        });
        let state = self.state.lock();
        let sealed = state.base(name).filter(|dataset| dataset.listed && (path.is_root() || !changed));
        let mut facts = match sealed {
            Some(dataset) => {
                vec![("id", dataset.id.to_string()), ("state", state_word(dataset).to_owned())]
            }
            None => return unsealed(&state, name, path, &self.config.host, rank),
        };
        let layout = sealed.and_then(|dataset| dataset.catalog.as_ref()).map(|index| &index.catalog().layout);
        if path.is_root() {
            let hosts = layout.into_iter().flat_map(|layout| &layout.members).map(|at| at.host.as_str());
            facts.push(("node", hosts_for_people(hosts)));
        } else if let Some((_, copy)) = sealed.zip(origin).and_then(|(dataset, path)| dataset.file(&path)) {
            let place = layout.and_then(|layout| layout.members.get(copy.member.0 as usize));
            facts.extend(place.map(|place| ("node", place.host.clone())));
            facts.push(("member", copy.member.to_string()));
            facts.extend(copy.program_rank.map(|rank| ("rank", rank.to_string())));
            facts.push(("crc", format!("{:08x}", copy.crc)));
        }
        facts
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
    let freezing = state.freezing.values().any(|freezing| freezing.name == name);
    let frozen = state.by_name(name).filter(|dataset| dataset.state() != HeldState::Complete);
    let word = if freezing { "sealing" } else { frozen.map_or("open", state_word) };
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
        for tid in 100..100 + u32::try_from(ASKERS_MAX).unwrap() * 2 {
            askers.asked(tid);
        }
        assert!(askers.times.len() <= ASKERS_MAX);
    }
}

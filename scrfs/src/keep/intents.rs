//! The intents of requests under way, by the kernel's number of the request.
//!
//! A request that was answered is never sent again, so an intent that a predecessor left and that
//! nobody asks for is waste: the oldest of those go when room is short.

use std::collections::{BTreeSet, HashMap};

use super::Keep;
use super::decide::Intent;
use super::memory::{Memory, Region};
use crate::ids::RequestId;
use crate::lock::{Mutex, Rank};

pub(super) const WORDS: usize = 8;
pub(super) const COUNT: usize = 1 << 14;
/// Marks the number of a request that the kernel has sent to a predecessor already.
const RESENT: u64 = 1 << 63;

#[derive(Debug, Default)]
struct Live {
    records: HashMap<u64, u32>,
    requests: HashMap<RequestId, u64>,
    /// Left by predecessors, not asked for.
    stale: BTreeSet<u64>,
}

/// See the module.
#[derive(Debug)]
pub struct Intents {
    region: Region,
    live: Mutex<Live>,
}

/// Did a predecessor get this request?
pub fn is_resent(unique: u64) -> bool {
    unique & RESENT != 0
}

/// The number of a request, however often it was sent.
pub fn number_of(unique: u64) -> u64 {
    unique & !RESENT
}

impl Intents {
    pub(super) fn take_up(memory: &Memory, region: Region) -> Self {
        region.take_up(memory);
        let mut live = Live::default();
        for record in region.all(memory) {
            let Some(intent) = read(memory, &region, record) else { continue };
            let unique = memory.get(region.at(record, 1));
            live.records.insert(unique, record);
            live.stale.insert(unique);
            if let Intent::Global { request, .. } = intent {
                live.requests.insert(request, unique);
            }
        }
        Self { region, live: Mutex::new(Rank::Intents, live) }
    }
}

impl Keep {
    /// Request `unique` is about to have an effect. Number 0 is no request of the kernel's.
    pub(crate) fn begin(&self, unique: u64, intent: Intent) {
        let unique = number_of(unique);
        if unique == 0 {
            return;
        }
        let (memory, region) = (&self.memory, &self.intents.region);
        let mut live = self.intents.live.lock();
        live.stale.remove(&unique);
        let known = live.records.get(&unique).copied().or_else(|| region.take(memory));
        let record = known.or_else(|| {
            let oldest = live.stale.pop_first()?;
            live.forget(oldest)
        });
        let Some(record) = record else {
            tracing::warn!("too many requests under way to keep their intents");
            return;
        };
        memory.set(region.at(record, 0), 0);
        memory.set(region.at(record, 1), unique);
        let (kind, words) = write(&intent);
        for (word, value) in words.into_iter().enumerate() {
            memory.set(region.at(record, 2 + word), value);
        }
        memory.set(region.at(record, 0), kind);
        live.records.insert(unique, record);
        if let Intent::Global { request, .. } = intent {
            live.requests.insert(request, unique);
        }
    }

    /// The intent of a request, if it got so far.
    pub(crate) fn intent(&self, unique: u64) -> Option<Intent> {
        if !is_resent(unique) {
            return None;
        }
        let record = *self.intents.live.lock().records.get(&number_of(unique))?;
        read(&self.memory, &self.intents.region, record)
    }

    /// Request `unique` has its answer.
    pub(crate) fn answered(&self, unique: u64) {
        let record = {
            let mut live = self.intents.live.lock();
            live.stale.remove(&number_of(unique));
            live.forget(number_of(unique))
        };
        if let Some(record) = record {
            self.intents.region.give_back(&self.memory, record);
        }
    }

    /// Changes the intent that asks the lead under `request`; false when there is none.
    pub(crate) fn note_global(
        &self,
        request: RequestId,
        change: impl FnOnce(&mut bool, &mut Option<i32>),
    ) -> bool {
        let unique = self.intents.live.lock().requests.get(&request).copied();
        let Some((record, mut alone, mut outcome)) = unique.and_then(|unique| self.global(unique)) else {
            return false;
        };
        change(&mut alone, &mut outcome);
        let (_, words) = write(&Intent::Global { request, alone, outcome });
        // What they are about stays valid all the time; an outcome counts once its flag is stored.
        for word in [2, 4, 3] {
            self.memory.set(self.intents.region.at(record, 2 + word), words[word]);
        }
        true
    }

    fn global(&self, unique: u64) -> Option<(u32, bool, Option<i32>)> {
        let record = *self.intents.live.lock().records.get(&unique)?;
        match read(&self.memory, &self.intents.region, record)? {
            Intent::Global { alone, outcome, .. } => Some((record, alone, outcome)),
            _ => None,
        }
    }

    /// The lead's answer to `request`, if it came.
    pub(crate) fn global_outcome(&self, request: RequestId) -> Option<i32> {
        let unique = *self.intents.live.lock().requests.get(&request)?;
        self.global(unique)?.2
    }
}

impl Live {
    fn forget(&mut self, unique: u64) -> Option<u32> {
        let record = self.records.remove(&unique)?;
        self.requests.retain(|_, other| *other != unique);
        Some(record)
    }
}

/// Kind and words.
fn write(intent: &Intent) -> (u64, [u64; 6]) {
    match *intent {
        Intent::Make => (1, [0; 6]),
        Intent::Remove { victim } => (2, [victim.0, victim.1, 0, 0, 0, 0]),
        Intent::Rename { from, to, exchange } => {
            let other = to.unwrap_or_default();
            (3, [from.0, from.1, other.0, other.1, to.is_some().into(), exchange.into()])
        }
        Intent::Resize { before } => (4, [before, 0, 0, 0, 0, 0]),
        Intent::SetAttribute => (5, [0; 6]),
        Intent::RemoveAttribute => (6, [0; 6]),
        Intent::Hide => (7, [0; 6]),
        Intent::Global { request, alone, outcome } => {
            let errno = outcome.map_or(0, |errno| u64::from(errno.unsigned_abs()));
            (8, [request.origin, request.serial, alone.into(), outcome.is_some().into(), errno, 0])
        }
    }
}

fn read(memory: &Memory, region: &Region, record: u32) -> Option<Intent> {
    let word = |at: usize| memory.get(region.at(record, at));
    let key = |at: usize| (word(at), word(at + 1));
    Some(match word(0) {
        1 => Intent::Make,
        2 => Intent::Remove { victim: key(2) },
        3 => Intent::Rename { from: key(2), to: (word(6) != 0).then(|| key(4)), exchange: word(7) != 0 },
        4 => Intent::Resize { before: word(2) },
        5 => Intent::SetAttribute,
        6 => Intent::RemoveAttribute,
        7 => Intent::Hide,
        8 => Intent::Global {
            request: RequestId { origin: word(2), serial: word(3) },
            alone: word(4) != 0,
            outcome: (word(5) != 0).then(|| i32::try_from(word(6)).unwrap_or(libc::EIO)),
        },
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::super::memory::create;
    use super::*;

    fn resent(unique: u64) -> u64 {
        unique | RESENT
    }

    #[test]
    fn only_what_was_sent_again_is_decided() {
        let memory = create().unwrap();
        let keep = Keep::map(&memory).unwrap();
        let request = RequestId { origin: u64::MAX, serial: 3 };
        let rename = Intent::Rename { from: (1, 2), to: Some((1, 3)), exchange: true };
        keep.begin(10, Intent::Make);
        keep.begin(12, rename);
        keep.begin(14, Intent::Global { request, alone: false, outcome: None });
        keep.begin(16, Intent::Resize { before: 5 });
        keep.answered(16);
        assert_eq!(keep.intent(10), None, "its first time");
        drop(keep);

        let keep = Keep::map(&memory).unwrap();
        assert_eq!(keep.intent(10), None, "another request");
        assert_eq!(keep.intent(resent(10)), Some(Intent::Make));
        assert_eq!(keep.intent(resent(12)), Some(rename));
        assert_eq!(keep.intent(resent(16)), None);
        assert!(keep.note_global(request, |_, outcome| *outcome = Some(libc::EEXIST)));
        assert_eq!(Keep::map(&memory).unwrap().global_outcome(request), Some(libc::EEXIST));
        keep.answered(resent(14));
        assert!(!keep.note_global(request, |alone, _| *alone = true));
    }

    #[test]
    fn waste_makes_room() {
        let memory = create().unwrap();
        let keep = Keep::map(&memory).unwrap();
        for unique in 1..=COUNT as u64 {
            keep.begin(unique, Intent::Make);
        }
        keep.begin(1 << 40, Intent::Hide);
        assert_eq!(keep.intent(resent(1 << 40)), None, "all are under way");
        let keep = Keep::map(&memory).unwrap();
        keep.begin(1 << 40, Intent::Hide);
        assert_eq!(keep.intent(resent(1 << 40)), Some(Intent::Hide));
        assert_eq!((keep.intent(resent(1)), keep.intent(resent(2))), (None, Some(Intent::Make)));
    }
}

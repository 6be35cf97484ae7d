//! What operators ask of the lead through a node, and which run of the job it works for.

use std::collections::BTreeSet;

use crate::control::{Event, Flushable, Named, Settings};
use crate::ids::DatasetId;
use crate::status::FlushFailure;

use super::node::Node;
use super::state::{Dataset, State};

/// What operators have asked the lead for, and what has not come to its end: coordinators that open
/// an epoch are asked again. It goes with the worker.
#[derive(Debug, Default)]
pub(super) struct Wishes {
    flushes: BTreeSet<DatasetId>,
    scrubs: BTreeSet<DatasetId>,
}

impl Wishes {
    /// The flush has ended, or was given up.
    pub(super) fn flushed(&mut self, id: DatasetId) {
        self.flushes.remove(&id);
    }

    /// The scrub has ended.
    pub(super) fn scrubbed(&mut self, id: DatasetId) {
        self.scrubs.remove(&id);
    }
}

impl State {
    /// Asks the lead for it: `FlushWanted` or `ScrubWanted`.
    pub(super) fn wish(&mut self, wish: Event) {
        match &wish {
            Event::FlushWanted(id) => self.wishes.flushes.insert(*id),
            Event::ScrubWanted(id) => self.wishes.scrubs.insert(*id),
            _ => false,
        };
        self.send_request(wish);
    }

    /// Asks this lead for what the former one was asked.
    pub(super) fn wish_again(&mut self) {
        let datasets = &self.table.datasets;
        let present = |id: &DatasetId| datasets.get(id).filter(|dataset| !dataset.life.is_leaving());
        self.wishes.flushes.retain(|id| present(id).is_some_and(|dataset| !dataset.flushed));
        self.wishes.scrubs.retain(|id| present(id).is_some());
        let flushes = self.wishes.flushes.iter().copied().map(Event::FlushWanted);
        let scrubs = self.wishes.scrubs.iter().copied().map(Event::ScrubWanted);
        for wish in flushes.chain(scrubs).collect::<Vec<_>>() {
            self.send_request(wish);
        }
    }
}

impl Node {
    /// Asks the lead to flush a dataset, the newest protected one where none is named.
    pub(super) fn want_flush(&self, name: Option<&[u8]>, uid: u32) -> Flushable {
        // Lock order: the journal's before the state's.
        let begun = name.is_some_and(|name| self.journal.lock().names().iter().any(|open| open == name));
        let asked = {
            let mut state = self.state.lock();
            let chosen = match name {
                None => state.current_now(),
                Some(name) => {
                    let complete = |dataset: &&Dataset| dataset.name == name && dataset.life.is_complete();
                    let newest = state.present().filter(complete).max_by_key(|d| (d.epoch, d.id));
                    newest.map(|dataset| dataset.id)
                }
            };
            let known = name.is_some_and(|name| begun || state.by_name(name).is_some());
            let served = state.served();
            let Some(dataset) = chosen.and_then(|id| state.table.datasets.get_mut(&id)) else {
                return match name {
                    None => Flushable::None,
                    Some(_) if known => Flushable::Unsealed,
                    Some(_) => Flushable::Unknown,
                };
            };
            let named = Named { id: dataset.id, name: dataset.name.clone() };
            if dataset.flushed {
                return Flushable::Done(named);
            }
            if let Some(reason) = &dataset.failed {
                return Flushable::Failed(reason.clone());
            }
            if !served {
                return Flushable::NoCoordinator(named);
            }
            // It begins anew.
            dataset.told.flush_failed = None;
            state.wish(Event::FlushWanted(named.id));
            named
        };
        self.events.info(Some(asked.id), &format!("user {uid} asked for its flush"));
        Flushable::Asked(asked)
    }

    /// Several scrfs-runs of a job work on nodes of their own, each with a prefix of its own: what
    /// one has sealed here is no other's to go on from. Says whose it is.
    pub(super) fn of_another_run(&self, name: &str) -> Option<String> {
        let state = self.state.lock();
        let former = &state.settings.as_ref()?.restart.name;
        let held = state.present().any(|dataset| dataset.life.is_complete());
        let shown =
            |name: &str| if name.is_empty() { "without a name".to_owned() } else { format!("--name {name}") };
        (held && former != name).then(|| {
            let (former, name) = (shown(former), shown(name));
            format!("this node has datasets of the run {former}, and this is the run {name}: use other nodes, or unmount with --purge")
        })
    }

    /// The last job's prefix, where these `settings` have another one.
    pub(super) fn left_prefix(&self, settings: &Settings) -> Option<String> {
        let state = self.state.lock();
        let former = &state.settings.as_ref()?.prefix;
        (*former != settings.prefix).then(|| String::from_utf8_lossy(former).into_owned())
    }

    /// A try to flush it has failed.
    pub(super) fn flush_failed(&self, id: DatasetId, failure: FlushFailure) {
        let mut state = self.state.lock();
        if failure.given_up {
            state.wishes.flushed(id);
        }
        if let Some(dataset) = state.table.datasets.get_mut(&id) {
            dataset.told.flush_failed = Some(failure);
        }
    }
}

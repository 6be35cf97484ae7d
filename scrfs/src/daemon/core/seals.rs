//! This node's part in seals: how far each is here, which names they take, and how long a frozen
//! dataset stays as it is.
//!
//! ```text
//! ordered --> freezing --> frozen --> (sealed, dropped, or its lead is gone)
//!    |           |  |
//!    |           |  +--> thawing --> (its thread has ended)
//!    +-----------+-----> failed  --> (dropped, or its lead is gone)
//! ```
//!
//! [`Seals`] are those of one lead, in memory: nothing of them outlives that lead save threads that
//! are thawing. What outlives it is [`Owed`], on storage: from the moment at which this node's part
//! is recorded, programs may have been told that the dataset will be sealed as it is. So the
//! dataset stays frozen, and its seal is asked for again by every lead, until there is an outcome.

use std::collections::BTreeMap;

use crate::control::{HeldState, are_reasons};
use crate::ids::DatasetId;

/// How far a seal is on this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The lead has ordered it. The records are asked whether it can begin.
    Ordered,
    /// A thread freezes the dataset.
    Freezing,
    /// It was given up while its thread froze the dataset. The thread ends soon; until then it may
    /// still change what programs see at the dataset's name.
    Thawing,
    /// This node's part is recorded, and the lead has been told.
    Frozen,
    /// It could not be frozen, and the lead has been told.
    Failed,
}

#[derive(Debug)]
struct Seal {
    name: Vec<u8>,
    stage: Stage,
}

impl Seal {
    /// A thread works at it.
    fn is_freezing(&self) -> bool {
        matches!(self.stage, Stage::Freezing | Stage::Thawing)
    }
}

/// A dataset in the records of this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::daemon) struct OnRecord {
    pub(in crate::daemon) id: DatasetId,
    pub(in crate::daemon) state: HeldState,
}

/// Why a seal does not begin here. The lead and the events have these words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(in crate::daemon) enum Refusal {
    #[error("the generation before it is not here")]
    NoBase,
    #[error("its name is that of dataset {}, {:?} here", .0.id, .0.state)]
    Named(OnRecord),
    #[error("it is being sealed already")]
    UnderWay,
    #[error("the seal was given up")]
    GivenUp,
}

are_reasons!(Refusal);

/// The seals of the lead that is attached, and those that are thawing.
#[derive(Debug, Default)]
pub(in crate::daemon) struct Seals(BTreeMap<DatasetId, Seal>);

impl Seals {
    /// The lead orders this node to freeze dataset `name` for seal `id`.
    ///
    /// # Errors
    /// A thread freezes for that seal already, and goes on.
    pub(in crate::daemon) fn ordered(&mut self, id: DatasetId, name: &[u8]) -> Result<(), Refusal> {
        if self.0.get(&id).is_some_and(Seal::is_freezing) {
            return Err(Refusal::UnderWay);
        }
        self.0.insert(id, Seal { name: name.to_vec(), stage: Stage::Ordered });
        Ok(())
    }

    /// A seal of `name` that was given up has not thawed yet: another one waits for that.
    pub(in crate::daemon) fn is_thawing(&self, name: &[u8]) -> bool {
        self.0.values().any(|seal| seal.stage == Stage::Thawing && seal.name == name)
    }

    /// Whether an ordered seal over the generation `base` can begin. The records have `here` under
    /// its name; `is_recorded`: they have its id.
    ///
    /// # Errors
    /// Why not.
    pub(in crate::daemon) fn may_begin(
        &self,
        id: DatasetId,
        base: Option<DatasetId>,
        here: Option<OnRecord>,
        is_recorded: bool,
    ) -> Result<(), Refusal> {
        let Some(seal) = self.0.get(&id) else { return Err(Refusal::GivenUp) };
        let is_base = |here: &OnRecord| here.state == HeldState::Complete && Some(here.id) == base;
        match here {
            None if base.is_some() => return Err(Refusal::NoBase),
            Some(here) if !is_base(&here) => return Err(Refusal::Named(here)),
            _ => {}
        }
        if is_recorded || self.is_freezing(&seal.name) {
            return Err(Refusal::UnderWay);
        }
        Ok(())
    }

    /// The thread of an ordered seal begins.
    ///
    /// # Errors
    /// It was given up since it was ordered.
    pub(in crate::daemon) fn begins(&mut self, id: DatasetId) -> Result<(), Refusal> {
        match self.0.get_mut(&id) {
            Some(seal) if seal.stage == Stage::Ordered => seal.stage = Stage::Freezing,
            _ => return Err(Refusal::GivenUp),
        }
        Ok(())
    }

    /// The freeze has come to nothing before its thread began; true if the lead that ordered it is
    /// to be told.
    pub(in crate::daemon) fn refused(&mut self, id: DatasetId) -> bool {
        let Some(seal) = self.0.get_mut(&id) else { return false };
        if seal.stage == Stage::Ordered {
            seal.stage = Stage::Failed;
        }
        true
    }

    /// The freeze for this seal has been given up: its thread records nothing any more.
    pub(in crate::daemon) fn is_given_up(&self, id: DatasetId) -> bool {
        self.0.get(&id).is_none_or(|seal| seal.stage == Stage::Thawing)
    }

    /// What the thread for this seal froze counts for nothing: the seal was given up, and this
    /// node's part is not in the records, or not any more.
    pub(in crate::daemon) fn came_to_nothing(&self, id: DatasetId, is_recorded: bool) -> bool {
        self.is_given_up(id) && !is_recorded
    }

    /// The freezing thread has undone what it had to, and ends; `is_frozen`: this node's part is
    /// recorded. True if the lead that ordered the freeze is to be told.
    pub(in crate::daemon) fn ended(&mut self, id: DatasetId, is_frozen: bool) -> bool {
        match self.0.get_mut(&id) {
            Some(seal) if seal.stage == Stage::Freezing => {
                seal.stage = if is_frozen { Stage::Frozen } else { Stage::Failed };
                true
            }
            Some(seal) if seal.stage == Stage::Thawing => {
                self.0.remove(&id);
                false
            }
            _ => false,
        }
    }

    /// The lead drops the seal; its name, if it was under way here. A thread that freezes for it is
    /// to end.
    pub(in crate::daemon) fn dropped(&mut self, id: DatasetId) -> Option<Vec<u8>> {
        let seal = self.0.get_mut(&id).filter(|seal| seal.stage != Stage::Thawing)?;
        if seal.stage == Stage::Freezing {
            seal.stage = Stage::Thawing;
            return Some(seal.name.clone());
        }
        self.0.remove(&id).map(|seal| seal.name)
    }

    /// All members have recorded COMPLETE.
    pub(in crate::daemon) fn sealed(&mut self, id: DatasetId) {
        self.0.retain(|other, seal| *other != id || seal.is_freezing());
    }

    /// The coordinator is gone, another one has come, or the daemon ends: all seals are given up.
    /// Threads that freeze are to end.
    pub(in crate::daemon) fn lead_gone(&mut self) {
        self.0.retain(|_, seal| {
            let is_freezing = seal.is_freezing();
            seal.stage = Stage::Thawing;
            is_freezing
        });
    }

    /// The name of a seal that the lead has ordered and not ended.
    pub(in crate::daemon) fn name(&self, id: DatasetId) -> Option<&[u8]> {
        self.0.get(&id).filter(|seal| seal.stage != Stage::Thawing).map(|seal| seal.name.as_slice())
    }

    /// A seal that the lead has ordered has not ended: this one, or any.
    pub(in crate::daemon) fn is_under_way(&self, id: Option<DatasetId>) -> bool {
        match id {
            Some(id) => self.name(id).is_some(),
            None => self.0.values().any(|seal| seal.stage != Stage::Thawing),
        }
    }

    /// Seals for which a thread freezes, or thaws, and their names.
    pub(in crate::daemon) fn freezing(&self) -> impl Iterator<Item = (DatasetId, &Vec<u8>)> {
        self.0.iter().filter(|(_, seal)| seal.is_freezing()).map(|(id, seal)| (*id, &seal.name))
    }

    /// A thread freezes, or thaws, the dataset: its name is taken.
    pub(in crate::daemon) fn is_freezing(&self, name: &[u8]) -> bool {
        self.freezing().any(|(_, other)| other == name)
    }
}

/// What dropping a seal means for the markers that asked for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::daemon) enum Settling {
    /// Programs are served: the seal failed, and its markers with it.
    No,
    /// An attach settles: its markers are sent again after `Serve`, and until then the dataset
    /// stays frozen, as some of them may have been answered when all nodes were frozen.
    Kept,
    /// A restart settles, or no successor came: the dataset is thawed. Markers that still wait are
    /// sent again, if a lead comes.
    Given,
}

/// What may end the freeze of a dataset, beside its seal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::daemon) enum Ending {
    /// This node could not be frozen. What becomes of a dataset that is owed from before, the lead
    /// decides, which drops that seal.
    NotFrozen,
    /// The lead dropped its seal.
    Dropped(Settling),
    /// No seal of it comes: its marker was refused, or no lead has come. `in_doubt`: all of this
    /// node's part is recorded, so the dataset may be complete elsewhere.
    NoneComes { in_doubt: bool },
}

/// Datasets that are frozen here for a seal whose outcome is not known here, each with the id of
/// the last such seal; all of them, not only those of `SCRFS_SEAL=background`. On storage.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::daemon) struct Owed(BTreeMap<Vec<u8>, DatasetId>);

impl Owed {
    /// This node's part in seal `id` of `name` is recorded.
    pub(in crate::daemon) fn frozen(&mut self, name: &[u8], id: DatasetId) {
        self.0.insert(name.to_vec(), id);
    }

    /// COMPLETE is recorded of seal `id` of `name`. It may be a later revision of the generation
    /// over which the dataset is being sealed: that is no outcome.
    pub(in crate::daemon) fn sealed(&mut self, name: &[u8], id: DatasetId) {
        if self.0.get(name).is_some_and(|owed| *owed <= id) {
            self.0.remove(name);
        }
    }

    /// It is sealed already, or given up.
    pub(in crate::daemon) fn ended(&mut self, name: &[u8]) {
        self.0.remove(name);
    }

    pub(in crate::daemon) fn has(&self, name: &[u8]) -> bool {
        self.0.contains_key(name)
    }

    pub(in crate::daemon) fn names(&self) -> impl Iterator<Item = &Vec<u8>> {
        self.0.keys()
    }

    /// In the order in which they were frozen, which is that of their markers.
    pub(in crate::daemon) fn in_order(&self) -> Vec<Vec<u8>> {
        let mut owed: Vec<_> = self.iter().collect();
        owed.sort_by_key(|(_, id)| *id);
        owed.into_iter().map(|(name, _)| name.clone()).collect()
    }

    pub(in crate::daemon) fn iter(&self) -> impl Iterator<Item = (&Vec<u8>, DatasetId)> {
        self.0.iter().map(|(name, id)| (name, *id))
    }

    /// The dataset stays frozen. Else it is thawed; if it was owed, first that it is so no more is
    /// recorded.
    pub(in crate::daemon) fn keeps(&self, name: &[u8], ending: Ending) -> bool {
        let keeps = match ending {
            Ending::NotFrozen => true,
            Ending::Dropped(settling) => settling == Settling::Kept,
            Ending::NoneComes { in_doubt } => in_doubt,
        };
        keeps && self.has(name)
    }
}

#[cfg(test)]
mod tests;

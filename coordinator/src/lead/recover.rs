//! Restart: which datasets can be presented. Candidates, newest first, from the caches or from the
//! prefix, or put together there from both ([`super::saving`]), until one is good: that is current.
//! Older ones are then taken from the caches only. Then `Present`.

mod candidate;

use std::collections::{BTreeSet, HashMap, VecDeque};

use scrfs::control::loose::Age;
use scrfs::control::{Command, Event, Reason};
use scrfs::dataset::Catalog;
use scrfs::ids::{DatasetId, Epoch, NodeRank};
use scrfs::prefix::{Contents, PfsFailure, StoredDataset};

pub(super) use self::candidate::Chosen;
use self::candidate::{Candidate, aside, candidates, not_before};
use super::Lack;
use super::answers::Answers;
use super::cluster::Cluster;
use super::held::Held;
use super::jobs::ShareEnd;
use super::policy::{MS, delay};
use super::rebuild::{Rebuild, Recovered};
use super::refetch::Refetch;
use super::saving::Saving;

#[derive(Debug)]
enum Step {
    FromCache(Candidate, Box<Rebuild>),
    FromPrefix(Candidate, Box<Refetch>),
    IntoPrefix(Candidate, Saving),
    /// `RemoveUnsealed` was sent: the step that lacked room, the reason, and the answers. When all
    /// have answered and something was removed, the step is tried once more.
    MakingRoom(Box<Step>, Reason, Answers<u64>),
    /// All are found; what is presented beside them is brought to all nodes.
    Found,
    Presenting {
        answers: Answers<Result<(), Reason>>,
        tries: u32,
    },
    /// No dataset is presented, since one lacks room, or its parts on the PFS: these coordinators
    /// end.
    GivenUp,
    /// Some node could not; again at this time.
    Again {
        until: u64,
        tries: u32,
    },
    Done,
}

/// Why something may be there, and is not presented.
#[derive(Debug, Default)]
struct Why {
    /// Why the newest that is not presented for want of room alone could not be had.
    no_room: Option<String>,
    /// Why nobody knows whether the prefix has something to go on from; or why what it has could
    /// not be had, though it is not bad.
    unreached: Option<String>,
}

/// The search for what to present.
#[derive(Debug)]
pub(super) struct Recover {
    /// Newest first.
    candidates: VecDeque<Candidate>,
    /// What the index names as the one to restart from.
    stored_current: Option<(Epoch, DatasetId)>,
    /// Datasets of which the prefix has parts that nodes have saved, and which are not published.
    partial: BTreeSet<Age>,
    /// Of these, those that the PFS kept from being published; `None`: what the prefix has is not
    /// known.
    hindered: Option<BTreeSet<Age>>,
    chosen: Vec<Chosen>,
    /// What caches have of candidates that cannot be presented.
    aside: Vec<(DatasetId, Held)>,
    /// Of these, former generations of what is presented: they leave when that is.
    replaced: Vec<DatasetId>,
    /// What the prefix has of current.
    stored: Option<StoredDataset>,
    /// It left a question without an answer: it is not asked again.
    prefix_hangs: bool,
    why: Why,
    /// What is not sealed was removed for a dataset.
    made_room: bool,
    step: Step,
}

impl Recover {
    /// `prefix`: what it has, if that is known.
    pub(super) fn begin(
        cluster: &mut Cluster,
        held: Vec<(DatasetId, Held)>,
        prefix: Option<Contents>,
    ) -> Self {
        let is_known = prefix.is_some();
        // What is older than a fresh start does not matter.
        let may_have = Epoch(cluster.settings.restart.not_before) < cluster.epoch;
        let unknown = "the caches have no dataset that is whole, and what the prefix has is not known";
        let prefix = prefix.unwrap_or_default();
        let (held, stored) = not_before(cluster, held, prefix.datasets);
        let mut recover = Self {
            stored_current: current(stored.iter()),
            candidates: candidates(held, stored),
            partial: prefix.partial.iter().chain(&prefix.hindered).copied().collect(),
            hindered: is_known.then(|| prefix.hindered.into_iter().collect()),
            chosen: Vec::new(),
            aside: Vec::new(),
            replaced: Vec::new(),
            stored: None,
            prefix_hangs: false,
            why: Why { no_room: None, unreached: (!is_known && may_have).then(|| unknown.to_owned()) },
            made_room: false,
            step: Step::Done,
        };
        recover.next(cluster);
        recover
    }

    pub(super) fn done(&self) -> bool {
        matches!(self.step, Step::Done)
    }

    /// What a restart presents.
    pub(super) fn current(&self) -> Option<&Catalog> {
        self.chosen.first().map(|chosen| &*chosen.catalog)
    }

    /// The chosen datasets become the known ones.
    pub(super) fn hand_over(self, cluster: &mut Cluster) {
        for Chosen { catalog, flushed, marked, absent } in self.chosen {
            let id = catalog.id;
            if flushed {
                cluster.send_all(Command::MarkFlushed(catalog.id));
            } else if marked {
                cluster.send_all(Command::UnmarkFlushed(catalog.id));
            }
            cluster.note_unprotected(&catalog);
            cluster.datasets.insert(catalog, flushed);
            cluster.lacks(id, absent);
        }
        for id in self.replaced {
            cluster.datasets.remove(id);
            cluster.send_all(Command::Evict(id));
        }
    }

    /// Takes the next candidate, or presents.
    fn next(&mut self, cluster: &mut Cluster) {
        while let Some(candidate) = self.candidates.pop_front() {
            // What is presented under its id has made room for itself.
            if self.chosen.iter().any(|chosen| chosen.catalog.id == candidate.id) {
                continue;
            }
            // Of two datasets of one name only the newer can be at that path.
            let taken = |held: &Held| self.chosen.iter().any(|chosen| chosen.catalog.name == held.name);
            if candidate.held.as_ref().is_some_and(taken) {
                self.replaced.push(candidate.id);
                self.put_aside(cluster, candidate);
                continue;
            }
            let failed = candidate.held.as_ref().is_some_and(Held::failed);
            if failed {
                cluster.note(format!(
                    "dataset {} is marked failed: it is not taken from the caches",
                    candidate.id
                ));
            }
            let source = candidate.held.clone().filter(|_| cluster.settings.distribute && !failed);
            if let Some(held) = source {
                let may_make_room = self.may_make_room(cluster);
                let rebuild = Rebuild::begin(cluster, candidate.id, held, may_make_room);
                self.step = Step::FromCache(candidate, Box::new(rebuild));
                return;
            }
            if self.bring_from_prefix(cluster, candidate) {
                return;
            }
        }
        self.step = Step::Found;
    }

    /// The search is over: what is found, newest first.
    pub(super) fn found(&self) -> Option<&[Chosen]> {
        matches!(self.step, Step::Found).then_some(&*self.chosen)
    }

    /// What the prefix has of current.
    pub(super) fn current_in_prefix(&self) -> Option<&StoredDataset> {
        self.stored.as_ref()
    }

    /// Starts what brings it from the prefix, if anything may; only current is fetched. Otherwise
    /// it is put aside.
    fn bring_from_prefix(&mut self, cluster: &mut Cluster, candidate: Candidate) -> bool {
        let may = cluster.settings.fetch && self.chosen.is_empty() && !self.prefix_hangs;
        let step = if may {
            self.fetch(cluster, &candidate).or_else(|| self.save(cluster, &candidate))
        } else {
            None
        };
        let Some(step) = step else {
            self.put_aside(cluster, candidate);
            return false;
        };
        self.step = step;
        true
    }

    /// A fetch, of nothing newer than what the index says.
    fn fetch(&mut self, cluster: &mut Cluster, candidate: &Candidate) -> Option<Step> {
        let allowed = |stored: &StoredDataset| {
            stored.usable && self.stored_current.is_none_or(|current| (stored.epoch, stored.id) <= current)
        };
        let stored = candidate.stored.clone().filter(allowed)?;
        // Others under the same id make room too, older and newer ones: nodes were cut off when ids
        // were given.
        let newer = self.aside.iter().filter(|(id, _)| *id == candidate.id).map(|(_, held)| held);
        let same_id = self.candidates.iter().filter(|other| other.id == candidate.id);
        let older = same_id.filter_map(|other| other.held.as_ref());
        let held: Vec<Held> = candidate.held.iter().chain(newer).chain(older).cloned().collect();
        let refetch = Refetch::begin(cluster, stored, &held);
        Some(Step::FromPrefix(candidate.clone(), Box::new(refetch)))
    }

    /// Has the nodes save what they have of a candidate whose other parts the prefix has; once.
    fn save(&mut self, cluster: &mut Cluster, candidate: &Candidate) -> Option<Step> {
        let held = candidate.held.as_ref().filter(|held| !held.failed())?;
        if !self.partial.remove(&Age { epoch: held.epoch, id: candidate.id }) {
            return None;
        }
        let saving = Saving::begin(cluster, candidate.id, held);
        Some(Step::IntoPrefix(candidate.clone(), saving))
    }

    /// The prefix is to be surveyed again.
    pub(super) fn wants_survey(&self) -> bool {
        matches!(&self.step, Step::IntoPrefix(_, saving) if saving.is_surveying())
    }

    /// What the prefix has, after [`Self::wants_survey`]; `None` if that is not known in time.
    pub(super) fn surveyed(&mut self, cluster: &mut Cluster, contents: Option<&Contents>) {
        if !self.wants_survey() {
            return;
        }
        let Step::IntoPrefix(mut candidate, _) = std::mem::replace(&mut self.step, Step::Done) else {
            return;
        };
        self.prefix_hangs |= contents.is_none();
        self.hindered = contents.map(|contents| contents.hindered.iter().copied().collect());
        if let Some(contents) = contents {
            let floor = Epoch(cluster.settings.restart.not_before);
            let stored = || contents.datasets.iter().filter(|stored| stored.epoch >= floor);
            self.stored_current = current(stored());
            // What was published may have taken the place of another one of its name.
            let by_age: HashMap<_, _> = stored().map(|stored| ((stored.epoch, stored.id), stored)).collect();
            for candidate in self.candidates.iter_mut().chain([&mut candidate]) {
                let stored = candidate.age().and_then(|age| by_age.get(&age).copied());
                candidate.stored = stored.filter(|stored| candidate.is(stored)).cloned();
            }
        }
        if !self.bring_from_prefix(cluster, candidate) {
            self.next(cluster);
        }
    }

    fn put_aside(&mut self, cluster: &mut Cluster, candidate: Candidate) {
        let Some(held) = candidate.held else { return };
        aside(cluster, candidate.id, &held);
        self.aside.push((candidate.id, held));
    }

    fn may_make_room(&self, cluster: &Cluster) -> bool {
        !self.made_room && !cluster.settings.restart.keep_unsealed
    }

    /// What is not sealed goes now, as its room is needed by the dataset that is tried. False where
    /// that was done, or is kept.
    fn make_room(&mut self, cluster: &mut Cluster, reason: &Reason) -> bool {
        let (Step::FromCache(candidate, _) | Step::FromPrefix(candidate, _)) = &self.step else {
            return false;
        };
        if !self.may_make_room(cluster) {
            return false;
        }
        cluster
            .note(format!("dataset {} needs more room: what is not sealed is removed for it", candidate.id));
        cluster.send_all(Command::RemoveUnsealed);
        self.made_room = true;
        let failed = Box::new(std::mem::replace(&mut self.step, Step::Done));
        self.step = Step::MakingRoom(failed, reason.clone(), Answers::of(cluster.nodes()));
        true
    }

    fn room_made(&mut self, cluster: &mut Cluster, node: NodeRank, names: u64) -> bool {
        let Step::MakingRoom(failed, reason, answers) = &mut self.step else { return false };
        match answers.answered(node, names) {
            None => return false,
            Some(false) => return true,
            Some(true) => {}
        }
        let removed = answers.iter().any(|(_, names)| *names > 0);
        let (failed, reason) = (std::mem::replace(&mut **failed, Step::Done), reason.clone());
        let outcome = match failed {
            Step::FromCache(candidate, mut rebuild) => {
                let outcome = rebuild.room_made(cluster, removed);
                self.step = Step::FromCache(candidate, rebuild);
                outcome
            }
            Step::FromPrefix(candidate, _) if removed && let Some(step) = self.fetch(cluster, &candidate) => {
                self.step = step;
                Recovered::Running
            }
            failed => {
                self.step = failed;
                Recovered::NoRoom(reason)
            }
        };
        self.outcome(cluster, Some(outcome))
    }

    /// The dataset that is tried could be had if caches had more room.
    fn want_room(&mut self, reason: &Reason, keeps: bool) {
        let (Step::FromCache(candidate, _) | Step::FromPrefix(candidate, _)) = &self.step else { return };
        let what = candidate.in_words();
        let kept = if keeps { "; what is not sealed takes some, and is kept (--keep-unsealed)" } else { "" };
        self.why.no_room.get_or_insert_with(|| format!("{what} needs more room: {reason}{kept}"));
    }

    /// Older datasets under the id of one that is brought are no candidates once they make room for
    /// it. Before that it may turn out that it cannot be had, and they stay where they are.
    fn forget_evicted(&mut self) {
        let brought = match &mut self.step {
            Step::FromPrefix(candidate, refetch) if refetch.evicts() => candidate,
            Step::FromCache(candidate, rebuild) if rebuild.has_evicted_strangers() => candidate,
            _ => return,
        };
        let id = brought.id;
        if let Some(held) = &mut brought.held {
            held.strangers.clear();
        }
        for other in self.candidates.iter_mut().filter(|other| other.id == id) {
            other.held = None;
        }
        self.candidates.retain(|other| other.held.is_some() || other.stored.is_some());
    }

    /// Takes what a candidate's machine said; false when it did not await that.
    fn outcome(&mut self, cluster: &mut Cluster, outcome: Option<Recovered>) -> bool {
        self.forget_evicted();
        match outcome {
            None => return false,
            Some(Recovered::Running) => {}
            Some(Recovered::Done(catalog)) => {
                let (marked, stored, absent) = match std::mem::replace(&mut self.step, Step::Done) {
                    Step::FromPrefix(candidate, refetch) => (true, candidate.stored, refetch.into_absent()),
                    Step::FromCache(candidate, rebuild) => {
                        let stored = candidate.stored.filter(|stored| stored.usable && stored.is(&catalog));
                        (candidate.held.as_ref().is_some_and(Held::flushed), stored, rebuild.into_absent())
                    }
                    _ => (false, None, BTreeSet::new()),
                };
                // Where it is known what the prefix has, that counts, and not what nodes recorded.
                let flushed = stored.is_some() || marked && self.hindered.is_none();
                if self.chosen.is_empty() {
                    self.stored = stored;
                }
                self.replaced.retain(|id| *id != catalog.id);
                self.chosen.push(Chosen { catalog, flushed, marked, absent });
                self.next(cluster);
            }
            Some(Recovered::NoRoom(reason)) => {
                if self.make_room(cluster, &reason) {
                    return true;
                }
                self.want_room(&reason, cluster.settings.restart.keep_unsealed);
                // As many bytes of the prefix have no room either: what caches have would go for a
                // fetch that fails. A lazy one lists it without any.
                if !cluster.settings.restart.lazy_fetch
                    && let Step::FromCache(candidate, _) = &self.step
                {
                    let candidate = candidate.clone();
                    cluster.warn(format!("dataset {} has no room in the caches: {reason}", candidate.id));
                    self.put_aside(cluster, candidate);
                    self.next(cluster);
                    return true;
                }
                return self.outcome(cluster, Some(Recovered::Failed(reason)));
            }
            Some(Recovered::Failed(reason)) => {
                match std::mem::replace(&mut self.step, Step::Done) {
                    Step::FromCache(candidate, _) => {
                        cluster.warn(format!("dataset {} is not in the caches: {reason}", candidate.id));
                        if self.bring_from_prefix(cluster, candidate) {
                            return true;
                        }
                    }
                    Step::FromPrefix(candidate, refetch) => {
                        if !refetch.is_bad() {
                            self.why.unreached.get_or_insert_with(|| {
                                let what = candidate.in_words();
                                format!("{what} is in the prefix, and cannot be fetched now: {reason}")
                            });
                        }
                        cluster.warn(format!(
                            "dataset {}: its copy in the prefix cannot be had: {reason}",
                            candidate.id
                        ));
                        self.put_aside(cluster, candidate);
                    }
                    _ => {}
                }
                self.next(cluster);
            }
        }
        true
    }

    /// What the newest dataset lacks that may be had later.
    fn lacking(&mut self, cluster: &Cluster) -> Option<(Lack, String)> {
        if let Some(reason) = self.why.no_room.take() {
            return Some((Lack::Room, reason));
        }
        let may_come = |(id, held): &&(DatasetId, Held)| {
            let age = Age { epoch: held.epoch, id: *id };
            !held.failed() && self.hindered.as_ref().is_none_or(|hindered| hindered.contains(&age))
        };
        if !cluster.settings.fetch {
            return None;
        }
        let Some((id, held)) = self.aside.iter().find(may_come) else {
            // No cache has any of it: the next flush would make it needless, whole as it may be.
            let floor = Epoch(cluster.settings.restart.not_before);
            let saved = self.hindered.iter().flatten().rev().find(|age| age.epoch >= floor);
            let saved = saved.map(|saved| {
                let what = format!("dataset {} was saved in the prefix when a job ended", saved.id);
                format!("{what}, and the PFS keeps it from being published")
            });
            return saved.or_else(|| self.why.unreached.take()).map(|reason| (Lack::Prefix, reason));
        };
        let name = String::from_utf8_lossy(&held.name);
        let reason = format!("{name} (dataset {id}) is in the caches in part only, and the prefix is away");
        Some((Lack::Prefix, reason))
    }

    pub(super) fn present(&mut self, cluster: &mut Cluster, tries: u32) {
        // A program that began from nothing would write over what is only waiting.
        if self.chosen.is_empty()
            && let Some((lack, reason)) = self.lacking(cluster)
        {
            self.step = Step::GivenUp;
            cluster.warn(reason.clone());
            cluster.give_up(lack, reason);
            return;
        }
        if self.chosen.is_empty() && tries == 0 {
            cluster.note("no complete dataset was found in the caches or the prefix".to_owned());
        }
        let datasets = self.chosen.iter().map(|chosen| chosen.catalog.id).collect();
        cluster.send_all(Command::Present { datasets });
        self.step = Step::Presenting { answers: Answers::of(cluster.nodes()), tries };
    }

    fn presented(&mut self, cluster: &mut Cluster, node: NodeRank, result: Result<(), Reason>) -> bool {
        let Step::Presenting { answers, tries } = &mut self.step else { return false };
        let failure =
            result.as_ref().err().map(|why| format!("{} cannot present: {why}", cluster.host(node)));
        if !answers.put(node, result) {
            return false;
        }
        if let Some(text) = failure {
            cluster.warn(text);
        }
        if answers.all() {
            let tries = *tries + 1;
            let failed = answers.iter().any(|(_, result)| result.is_err());
            self.step = if failed {
                Step::Again { until: cluster.now + delay(tries, 200 * MS, 10_000 * MS), tries }
            } else {
                Step::Done
            };
        }
        true
    }

    /// An event that may be the recovery's; false when it is not awaited.
    pub(super) fn event(&mut self, cluster: &mut Cluster, node: NodeRank, event: Event) -> bool {
        let outcome = match (&mut self.step, event) {
            (_, Event::Presented { result }) => return self.presented(cluster, node, result),
            (_, Event::UnsealedRemoved { names }) => return self.room_made(cluster, node, names),
            (Step::FromCache(candidate, rebuild), event) => match event {
                Event::Catalog { id, catalog } if id == candidate.id => {
                    rebuild.catalog(cluster, node, catalog)
                }
                Event::Verified { id, members } if id == candidate.id => {
                    rebuild.verified(cluster, node, members)
                }
                Event::Evicted(id) if id == candidate.id => rebuild.evicted(cluster, node),
                Event::Committed { id, result, decided } if id == candidate.id => {
                    rebuild.committed(cluster, node, (result, decided))
                }
                _ => None,
            },
            (Step::FromPrefix(candidate, refetch), event) => match event {
                Event::Evicted(id) if id == candidate.id => refetch.evicted(cluster, node),
                Event::FetchedMember { id, result } if id == candidate.id => {
                    refetch.fetched(cluster, node, result)
                }
                Event::Committed { id, result, decided } if id == candidate.id => {
                    refetch.committed(cluster, node, (result, decided))
                }
                Event::Dropped(id) if id == candidate.id => refetch.dropped(cluster, node),
                _ => None,
            },
            (Step::IntoPrefix(candidate, saving), Event::Saved { id, result }) if id == candidate.id => {
                return saving.saved(cluster, node, result).is_some();
            }
            _ => None,
        };
        self.outcome(cluster, outcome)
    }

    /// A share ended; false when it is no share of the recovery's jobs.
    pub(super) fn job(&mut self, cluster: &mut Cluster, share: ShareEnd) -> bool {
        let outcome = match &mut self.step {
            Step::FromCache(_, rebuild) => rebuild.job(cluster, share),
            Step::FromPrefix(_, refetch) => refetch.job(cluster, share),
            _ => None,
        };
        self.outcome(cluster, outcome)
    }

    /// The prefix's catalog of a candidate, or why there is none.
    pub(super) fn stored(
        &mut self,
        cluster: &mut Cluster,
        stored: &StoredDataset,
        catalog: Result<Catalog, &PfsFailure>,
    ) {
        // One that comes late is another candidate's.
        let asked = |refetch: &Refetch| refetch.is_of(stored);
        let outcome = match &mut self.step {
            Step::FromPrefix(_, refetch) if asked(refetch) => match catalog {
                Ok(catalog) => refetch.catalog(cluster, catalog),
                Err(failure) => refetch.unreadable(cluster, failure),
            },
            _ => None,
        };
        self.outcome(cluster, outcome);
    }

    pub(super) fn tick(&mut self, cluster: &mut Cluster) {
        match &mut self.step {
            Step::FromCache(_, rebuild) => rebuild.tick(cluster),
            Step::FromPrefix(_, refetch) => {
                if let Some(outcome) = refetch.tick(cluster) {
                    self.prefix_hangs = true;
                    self.outcome(cluster, Some(outcome));
                }
            }
            Step::IntoPrefix(candidate, saving) if saving.is_silent(cluster) => {
                let candidate = candidate.clone();
                (self.prefix_hangs, self.hindered) = (true, None);
                self.put_aside(cluster, candidate);
                self.next(cluster);
            }
            Step::Again { until, tries } if *until <= cluster.now => {
                let tries = *tries;
                self.present(cluster, tries);
            }
            _ => {}
        }
    }
}

/// What the index names as the one to restart from.
fn current<'a>(mut stored: impl Iterator<Item = &'a StoredDataset>) -> Option<(Epoch, DatasetId)> {
    stored.find(|dataset| dataset.current && dataset.usable).map(|dataset| (dataset.epoch, dataset.id))
}

#[cfg(test)]
mod tests;

//! Flushes, one at a time: begin, members copy, publish (`scrfs/docs/protocol.md`, Flush).
//!
//! What is due for the longest time goes first. After a failure a dataset is due again when a
//! growing delay is over, and others go meanwhile: one that fails every time holds nobody up, and
//! as a new one is due from when it was chosen, new ones do not hold up a retry either. After some
//! tries the dataset need not stay in the caches for its flush any more, and it is tried again now
//! and then: a file system that is full for hours has room again some time.

use std::collections::BTreeSet;
use std::sync::Arc;

use scrfs::control::{Command, Reason};
use scrfs::ids::{DatasetId, NodeRank};
use scrfs::prefix::PfsTask;

use super::answers::Answers;
use super::cluster::Cluster;
use super::policy::{MS, delay, flush_due};

/// Tries for which a dataset stays in the caches.
const TRIES: u32 = 6;
/// Between two tries after those.
const NOW_AND_THEN: u64 = 600_000 * MS;
/// A flush of which nothing is heard for so long is held up: then those that wait may make room in
/// the caches.
const HELD_UP: u64 = 900_000 * MS;

#[derive(Debug)]
enum Step {
    Beginning,
    Copying(Answers<Result<(), Reason>>),
    Publishing,
}

#[derive(Debug)]
struct Flush {
    id: DatasetId,
    /// That failed.
    tries: u32,
    step: Step,
    /// When something was heard of it.
    heard: u64,
    begun: u64,
}

#[derive(Debug)]
struct Waiting {
    id: DatasetId,
    /// That failed.
    tries: u32,
    /// Not before this time.
    due: u64,
}

/// The running flush and those that wait.
#[derive(Debug, Default)]
pub(super) struct Flushes {
    waiting: Vec<Waiting>,
    current: Option<Flush>,
    /// Asked for, by whomever; they go before others.
    wished: BTreeSet<DatasetId>,
    /// The longest that one took so far, microseconds.
    longest: u64,
    /// What the prefix has is known, or cannot be known.
    surveyed: bool,
    held_up: bool,
    /// The dataset of the running flush is gone: what took its place may be due instead.
    gone: bool,
    /// Why flushes fail, as it was told last; the same is not told again until one succeeds, save
    /// of what is given up. Each dataset's status has it anyway.
    told: Option<String>,
}

impl Flushes {
    /// What the prefix has is known now (or cannot be known): flushes can be chosen.
    pub(super) fn surveyed(&mut self) {
        self.surveyed = true;
    }

    /// Somebody wants it flushed, whatever `SCR_FLUSH` says.
    pub(super) fn wish(&mut self, id: DatasetId) {
        self.wished.insert(id);
    }

    /// The job is about to end: the newest dataset is wanted on the PFS, before older ones that are
    /// due, though not before those that somebody has asked for. One that has failed keeps its
    /// delay; one that has failed too often is tried now and then anyway.
    pub(super) fn wish_newest(&mut self, cluster: &Cluster) {
        let newest = cluster.datasets.newest_first().first().map(|known| (known.catalog.id, known.flushed));
        let Some((id, false)) = newest else { return };
        if let Some(waiting) = self.waiting.iter_mut().find(|waiting| waiting.id == id) {
            if waiting.tries == 0 {
                waiting.due = 0;
            }
        } else if !self.runs(id) {
            self.wished.insert(id);
        }
    }

    /// The longest that one took so far, microseconds.
    pub(super) fn longest(&self) -> u64 {
        self.longest
    }

    /// Queues what was asked for, once it is known what the prefix has.
    fn take_wishes(&mut self, cluster: &mut Cluster, committing: impl Fn(DatasetId) -> bool) {
        if !self.surveyed {
            return;
        }
        for id in self.wished.extract_if(.., |id| !committing(*id)).collect::<Vec<_>>() {
            match cluster.datasets.get(id).map(|known| known.flushed) {
                // Some node did not know.
                Some(true) => cluster.send_all(Command::MarkFlushed(id)),
                Some(false) => {
                    self.waiting.retain(|waiting| waiting.id != id);
                    if !self.runs(id) {
                        self.waiting.push(Waiting { id, tries: 0, due: 0 });
                    }
                }
                None => {
                    let reason = "it is not complete on all nodes, or has failed".to_owned();
                    cluster.warn(format!("dataset {id} is not flushed: {reason}"));
                    cluster.send_all(Command::FlushFailed { id, reason, given_up: true });
                }
            }
        }
    }

    /// Queues what is due, oldest first.
    pub(super) fn choose(&mut self, cluster: &Cluster) {
        if !self.surveyed {
            return;
        }
        for known in cluster.datasets.newest_first().iter().rev() {
            let id = known.catalog.id;
            let counts = |other: &DatasetId| !cluster.datasets.is_of_former_branch(*other, &known.catalog);
            let last_here = self.ids().filter(counts).max().map_or(0, |id| id.0);
            let last = last_here.max(cluster.datasets.highest_flushed(&known.catalog));
            if !known.flushed && !self.waits(id) && flush_due(id, last, cluster.settings.flush_every) {
                self.waiting.push(Waiting { id, tries: 0, due: cluster.now });
            }
        }
    }

    fn waits(&self, id: DatasetId) -> bool {
        self.waiting.iter().any(|waiting| waiting.id == id)
    }

    /// Datasets of which a flush runs, or waits and is expected to succeed.
    fn ids(&self) -> impl Iterator<Item = DatasetId> {
        let waiting = self.waiting.iter().filter(|waiting| waiting.tries < TRIES).map(|waiting| waiting.id);
        waiting.chain(self.current.iter().map(|flush| flush.id))
    }

    /// It stays in the caches: a flush of it runs, or waits and is not held up without end, or it
    /// is not known yet whether one is due.
    pub(super) fn busy(&self, id: DatasetId) -> bool {
        let hoped = || self.waiting.iter().any(|waiting| waiting.id == id && waiting.tries < TRIES);
        let waits = || self.wished.contains(&id) || hoped();
        !self.surveyed || self.runs(id) || (!self.held_up && waits())
    }

    /// It is read now, so it has to stay.
    pub(super) fn runs(&self, id: DatasetId) -> bool {
        self.current.as_ref().is_some_and(|flush| flush.id == id)
    }

    /// All of it is copied; it gets its name and its index entry.
    pub(super) fn publishing(&self) -> Option<DatasetId> {
        self.current.as_ref().filter(|flush| matches!(flush.step, Step::Publishing)).map(|flush| flush.id)
    }

    /// It leaves the caches. Where a flush of it was due and none has failed yet, the nodes are
    /// told that it failed: so the loss is named in the status and at the job's end.
    pub(super) fn lost(&mut self, cluster: &mut Cluster, id: DatasetId) {
        let waits = self.waiting.iter().any(|waiting| waiting.id == id && waiting.tries == 0);
        let runs = self.current.as_ref().is_some_and(|flush| flush.id == id && flush.tries == 0);
        if waits || runs || self.wished.contains(&id) {
            let reason = "room in the caches was short before it was on the PFS".to_owned();
            cluster.send_all(Command::FlushFailed { id, reason, given_up: true });
        }
        self.removed(id);
    }

    /// A program removed it, or there is a newer generation.
    pub(super) fn removed(&mut self, id: DatasetId) {
        self.wished.remove(&id);
        self.waiting.retain(|waiting| waiting.id != id);
        self.gone |= self.current.take_if(|flush| flush.id == id).is_some();
    }

    /// Begins the next flush, or the next try of one, when none runs and one is due.
    /// Not while members of it are `rebuilding`, nor while some node has not recorded it
    /// (`committing`).
    pub(super) fn begin(
        &mut self,
        cluster: &mut Cluster,
        rebuilding: impl Fn(DatasetId) -> bool,
        committing: impl Fn(DatasetId) -> bool,
    ) {
        self.take_wishes(cluster, committing);
        if self.current.is_some() {
            return;
        }
        let waited = self.waiting.len();
        self.waiting.retain(|waiting| cluster.datasets.get(waiting.id).is_some());
        if std::mem::take(&mut self.gone) || self.waiting.len() < waited {
            // What took the place of a dataset that was due is due instead.
            self.choose(cluster);
        }
        let is_due = |waiting: &Waiting| waiting.due <= cluster.now && !rebuilding(waiting.id);
        let due = self.waiting.iter().enumerate().filter(|(_, waiting)| is_due(waiting));
        let next = due.min_by_key(|(_, waiting)| (waiting.due, waiting.id)).map(|(at, _)| at);
        let Some(Waiting { id, tries, .. }) = next.map(|at| self.waiting.swap_remove(at)) else { return };
        if let Some(known) = cluster.datasets.get(id) {
            let task = PfsTask::BeginFlush(Arc::clone(&known.catalog));
            self.current =
                Some(Flush { id, tries, step: Step::Beginning, heard: cluster.now, begun: cluster.now });
            cluster.pfs(task);
        }
    }

    /// The directory is there: the members copy. False when that is not awaited.
    pub(super) fn begun(&mut self, cluster: &mut Cluster, id: DatasetId, directory: &[u8]) -> bool {
        let Some(flush) = self.current.as_mut().filter(|flush| flush.id == id) else { return false };
        if !matches!(flush.step, Step::Beginning) {
            return false;
        }
        flush.step = Step::Copying(Answers::of(cluster.nodes()));
        flush.heard = cluster.now;
        cluster.send_all(Command::FlushMember { id, directory: directory.to_vec() });
        true
    }

    /// A node has copied its files, or could not: whether that was awaited, and whether all have.
    pub(super) fn copied(
        &mut self,
        cluster: &mut Cluster,
        node: NodeRank,
        id: DatasetId,
        result: Result<(), Reason>,
    ) -> (bool, bool) {
        let Some(flush) = self.current.as_mut().filter(|flush| flush.id == id) else { return (false, false) };
        let Step::Copying(answers) = &mut flush.step else { return (false, false) };
        if !answers.put(node, result) {
            return (false, false);
        }
        flush.heard = cluster.now;
        let all = answers.all();
        // Also after a failure all are awaited: the next try must not meet this one's writers.
        if all {
            let failed = answers.iter().filter_map(|(node, result)| Some((node, result.as_ref().err()?)));
            let reasons = failed.map(|(node, reason)| reason.clone().on(cluster.host(node)));
            if let Some(reason) = Reason::all(reasons) {
                self.failed(cluster, id, &reason);
            } else if let Some(known) = cluster.datasets.get(id) {
                flush.step = Step::Publishing;
                let task = PfsTask::Publish(Arc::clone(&known.catalog));
                cluster.pfs(task);
            } else {
                self.current = None;
            }
        }
        (true, all)
    }

    /// True when the running flush is held up from now on: some datasets need not wait for theirs
    /// any more.
    pub(super) fn tick(&mut self, cluster: &mut Cluster) -> bool {
        let late = self.current.as_ref().filter(|flush| flush.heard + HELD_UP <= cluster.now);
        let begins = late.is_some() && !self.held_up;
        self.held_up = late.is_some();
        if let Some(id) = late.filter(|_| begins).map(|flush| flush.id) {
            let minutes = HELD_UP / (60_000 * MS);
            cluster.warn(format!(
                "flush of dataset {id} is held up: nothing was heard of it for {minutes} minutes; \
                 datasets that wait behind it make room when the caches need it"
            ));
        }
        begins
    }

    /// It is in the index.
    pub(super) fn published(&mut self, cluster: &mut Cluster, id: DatasetId) {
        cluster.datasets.flushed(id);
        self.told = None;
        // Also of one that has left meanwhile: nodes may have told that it is lost.
        cluster.send_all(Command::MarkFlushed(id));
        if let Some(flush) = self.current.take_if(|flush| flush.id == id) {
            self.longest = self.longest.max(cluster.now.saturating_sub(flush.begun));
        }
    }

    /// A try failed. False when no such flush runs.
    pub(super) fn failed(&mut self, cluster: &mut Cluster, id: DatasetId, reason: &Reason) -> bool {
        let Some(flush) = self.current.take_if(|flush| flush.id == id) else { return false };
        let tries = flush.tries.saturating_add(1);
        let given_up = tries >= TRIES;
        let wait = if given_up { NOW_AND_THEN } else { delay(tries, 1_000 * MS, 60_000 * MS) };
        self.waiting.push(Waiting { id, tries, due: cluster.now + wait });
        let reason = format!("{reason}{}", remedy(reason));
        cluster.send_all(Command::FlushFailed { id, reason: reason.clone(), given_up });
        if given_up {
            let minutes = NOW_AND_THEN / (60_000 * MS);
            cluster.warn(format!(
                "flush of dataset {id} failed {tries} times, it is tried again every {minutes} minutes; it may leave the \
                 caches for newer ones by then: {reason}"
            ));
        } else if self.told.as_ref() != Some(&reason) {
            cluster.warn(format!("flush of dataset {id} failed, it will be tried again: {reason}"));
            self.told = Some(reason);
        }
        true
    }
}

/// What a person can do about a failed flush; nothing where the reason says it.
fn remedy(reason: &Reason) -> &'static str {
    if reason.is_shortage_of_room() {
        "; make room on the parallel file system: remove datasets in the prefix that are not needed"
    } else if reason.is_refusal_to_write() {
        "; the job's user must be able to write the prefix (SCR_PREFIX)"
    } else {
        ""
    }
}

#[cfg(test)]
pub(super) mod tests {
    use rustix::io::Errno;
    use scrfs::dataset::{Catalog, Layout, Protection, Scheme};
    use scrfs::ids::Epoch;

    use super::*;
    use crate::lead::Output;
    use crate::settings::tests::settings;

    pub(in crate::lead) fn catalog(id: u64) -> Catalog {
        Catalog {
            id: DatasetId(id),
            epoch: Epoch(1),
            revision: 0,
            name: format!("ck.{id}").into_bytes(),
            created_us: 0,
            user: String::new(),
            job_id: String::new(),
            layout: Layout {
                encoding: 0,
                protection: Protection::by(Scheme::Single),
                members: Vec::new(),
                sets: Vec::new(),
            },
            entries: Vec::new(),
        }
    }

    struct Bench {
        cluster: Cluster,
        flushes: Flushes,
    }

    impl Bench {
        /// Datasets 1 to 3; none is flushed along the way.
        fn new() -> Self {
            let settings = scrfs::control::Settings { flush_every: 0, ..settings() };
            let mut cluster = Cluster::new(Epoch(1), vec!["a".to_owned()], settings, 100);
            (1..=3).for_each(|id| cluster.datasets.insert(catalog(id).into(), false));
            let mut flushes = Flushes::default();
            flushes.surveyed();
            Self { cluster, flushes }
        }

        /// What begins, and what nodes are told.
        fn step(&mut self) -> Vec<String> {
            self.flushes.choose(&self.cluster);
            self.flushes.begin(&mut self.cluster, |_| false, |_| false);
            let outputs = self.cluster.take_outputs();
            let said = outputs.iter().filter_map(|output| match output {
                Output::Pfs(PfsTask::BeginFlush(catalog)) => Some(format!("begin {}", catalog.id)),
                Output::Command(_, Command::MarkFlushed(id)) => Some(format!("flushed {id}")),
                Output::Command(_, Command::FlushFailed { id, given_up, .. }) => {
                    Some(format!("failed {id}{}", if *given_up { " for good" } else { "" }))
                }
                _ => None,
            });
            said.collect()
        }

        fn end(&mut self, id: u64) {
            self.flushes.published(&mut self.cluster, DatasetId(id));
        }
    }

    #[test]
    fn a_full_file_system_has_a_remedy() {
        for (errno, word) in [
            (Some(Errno::NOSPC), "; make room"),
            (Some(Errno::DQUOT), "; make room"),
            (Some(Errno::ACCESS), "; the job's user"),
            (Some(Errno::IO), ""),
            (None, ""),
        ] {
            // Whatever a path says.
            let named = Reason::from("/p/No space left on device (os error 28): flush");
            let reason = &errno.map_or(named, |errno| Reason::from(errno).on("node1"));
            assert!(
                remedy(reason).starts_with(word) && remedy(reason).is_empty() == word.is_empty(),
                "{reason}"
            );
        }
    }

    #[test]
    fn why_flushes_fail_is_told_once() {
        let mut bench = Bench::new();
        (1..=3).for_each(|id| bench.flushes.wish(DatasetId(id)));
        let mut fails = |id: u64, reason: &str| {
            bench.cluster.now += NOW_AND_THEN;
            bench.flushes.waiting.iter_mut().for_each(|waiting| waiting.due = u64::from(waiting.id.0 != id));
            bench.step();
            assert!(bench.flushes.failed(&mut bench.cluster, DatasetId(id), &reason.into()));
            let outputs = bench.cluster.take_outputs();
            outputs.iter().filter(|output| matches!(output, Output::Note(..))).count()
        };
        assert_eq!([fails(1, "/pfs: full"), fails(1, "/pfs: full"), fails(2, "/pfs: full")], [1, 0, 0]);
        assert_eq!([fails(2, "/pfs: read-only"), fails(3, "/pfs: read-only")], [1, 0]);
        let given_up: Vec<usize> = (3..=TRIES).map(|_| fails(1, "/pfs: read-only")).collect();
        assert_eq!(given_up, [0, 0, 0, 1], "what is given up is told whatever the reason");
    }

    #[test]
    fn what_is_asked_for_is_flushed_whatever_is_due() {
        let mut bench = Bench::new();
        assert!(bench.step().is_empty());
        bench.flushes.wish(DatasetId(2));
        bench.flushes.wish(DatasetId(2));
        assert!(bench.flushes.busy(DatasetId(2)) && !bench.flushes.busy(DatasetId(3)));
        assert_eq!(bench.step(), ["begin 2"]);
        bench.flushes.wish(DatasetId(3));
        assert!(bench.step().is_empty(), "one at a time");
        bench.cluster.now += 7;
        bench.end(2);
        assert_eq!(bench.step(), ["flushed 2", "begin 3"]);
        assert_eq!(bench.flushes.longest(), 7);
        bench.end(3);
        bench.step();
        bench.flushes.wish(DatasetId(3));
        assert_eq!(bench.step(), ["flushed 3"], "a node that asks does not know");
        bench.flushes.wish(DatasetId(9));
        assert_eq!(bench.step(), ["failed 9 for good"]);
    }

    #[test]
    fn what_takes_the_place_of_a_dataset_that_was_due_is_due() {
        let mut bench = Bench::new();
        bench.cluster.settings.flush_every = 2;
        bench.flushes.wish(DatasetId(1));
        assert_eq!(bench.step(), ["begin 1"]);
        assert!(bench.step().is_empty() && bench.flushes.busy(DatasetId(2)), "2 is due, and waits");
        assert!(!bench.flushes.busy(DatasetId(3)));
        // Dataset 3 was the next generation of dataset 2.
        bench.cluster.datasets.remove(DatasetId(2));
        bench.end(1);
        bench.flushes.begin(&mut bench.cluster, |_| false, |_| false);
        assert!(bench.flushes.runs(DatasetId(3)));
    }

    #[test]
    fn what_takes_the_place_of_a_dataset_that_was_being_flushed_is_due() {
        let mut bench = Bench::new();
        bench.cluster.settings.flush_every = 2;
        assert_eq!(bench.step(), ["begin 2"]);
        bench.cluster.datasets.remove(DatasetId(2));
        bench.flushes.removed(DatasetId(2));
        bench.flushes.begin(&mut bench.cluster, |_| false, |_| false);
        assert!(bench.flushes.runs(DatasetId(3)));
    }

    /// A node has come back with what a branch that was given up had not flushed.
    #[test]
    fn a_dataset_of_a_later_branch_does_not_wait_for_a_higher_id_of_a_former_one() {
        let mut bench = Bench::new();
        bench.flushes.wish(DatasetId(3));
        assert_eq!(bench.step(), ["begin 3"]);
        bench.cluster.datasets.insert(Catalog { epoch: Epoch(3), ..catalog(2) }.into(), false);
        bench.cluster.settings.flush_every = 2;
        assert!(bench.step().is_empty() && bench.flushes.busy(DatasetId(2)), "it is due, and waits");
        bench.flushes.failed(&mut bench.cluster, DatasetId(3), &"full".into());
        assert_eq!(bench.step(), ["failed 3", "begin 2"]);
    }

    #[test]
    fn what_leaves_the_caches_before_its_turn_is_told() {
        let mut bench = Bench::new();
        bench.flushes.wish(DatasetId(1));
        bench.flushes.wish(DatasetId(2));
        assert_eq!(bench.step(), ["begin 1"]);
        bench.flushes.lost(&mut bench.cluster, DatasetId(3));
        assert!(bench.step().is_empty(), "it was not due");
        bench.flushes.lost(&mut bench.cluster, DatasetId(2));
        assert_eq!(bench.step(), ["failed 2 for good"]);
        bench.end(1);
        assert_eq!(bench.step(), ["flushed 1"], "2 is tried no more");
        bench.flushes.wish(DatasetId(3));
        assert_eq!(bench.step(), ["begin 3"]);
        bench.flushes.failed(&mut bench.cluster, DatasetId(3), &"full".into());
        assert_eq!(bench.step(), ["failed 3"]);
        bench.flushes.lost(&mut bench.cluster, DatasetId(3));
        assert!(bench.step().is_empty(), "it was told already, with a better reason");
    }

    #[test]
    fn what_leaves_while_it_is_published_is_on_the_pfs_nonetheless() {
        let mut bench = Bench::new();
        bench.flushes.wish(DatasetId(1));
        assert_eq!(bench.step(), ["begin 1"]);
        assert!(bench.flushes.begun(&mut bench.cluster, DatasetId(1), b"/p"));
        let copied = bench.flushes.copied(&mut bench.cluster, NodeRank(0), DatasetId(1), Ok(()));
        assert_eq!(copied, (true, true));
        assert_eq!(bench.flushes.publishing(), Some(DatasetId(1)));
        bench.cluster.datasets.remove(DatasetId(1));
        bench.flushes.lost(&mut bench.cluster, DatasetId(1));
        assert_eq!(bench.step(), ["failed 1 for good"]);
        bench.end(1);
        assert_eq!(bench.step(), ["flushed 1"]);
    }

    #[test]
    fn what_somebody_wants_that_is_being_committed_waits_for_that() {
        let mut bench = Bench::new();
        let step = |bench: &mut Bench, commits: bool| {
            bench.flushes.begin(&mut bench.cluster, |_| false, |id| commits && id == DatasetId(4));
            let outputs = bench.cluster.take_outputs();
            let begins = |output: &Output| matches!(output, Output::Pfs(PfsTask::BeginFlush(_)));
            let fails = |output: &Output| matches!(output, Output::Command(_, Command::FlushFailed { .. }));
            (outputs.iter().any(begins), outputs.iter().any(fails))
        };
        bench.flushes.wish(DatasetId(4));
        assert_eq!(step(&mut bench, true), (false, false));
        bench.cluster.datasets.insert(catalog(4).into(), false);
        assert_eq!(step(&mut bench, false), (true, false));
        bench.flushes.wish(DatasetId(5));
        assert_eq!(step(&mut bench, true), (false, true));
    }

    #[test]
    fn nothing_begins_before_it_is_known_what_the_prefix_has() {
        let mut bench = Bench::new();
        bench.flushes.surveyed = false;
        bench.flushes.wish(DatasetId(1));
        assert!(bench.step().is_empty());
        bench.cluster.datasets.flushed(DatasetId(1));
        bench.flushes.surveyed();
        assert_eq!(bench.step(), ["flushed 1"]);
    }

    #[test]
    fn what_fails_too_often_is_tried_now_and_then_and_when_it_is_asked_for() {
        let mut bench = Bench::new();
        bench.flushes.wish(DatasetId(3));
        for tried in 1..=TRIES {
            assert!(bench.step().contains(&"begin 3".to_owned()), "{tried}");
            bench.flushes.failed(&mut bench.cluster, DatasetId(3), &"full".into());
            bench.cluster.now += 100_000 * MS;
        }
        assert_eq!(bench.step(), ["failed 3 for good"]);
        assert!(!bench.flushes.busy(DatasetId(3)), "it need not stay");
        bench.flushes.wish_newest(&bench.cluster);
        assert!(bench.step().is_empty(), "the end of the job does not try without end");
        bench.cluster.now += NOW_AND_THEN;
        assert_eq!(bench.step(), ["begin 3"], "there may be room again");
        bench.flushes.failed(&mut bench.cluster, DatasetId(3), &"full".into());
        assert_eq!(bench.step(), ["failed 3 for good"], "whoever waits by now is told, too");
        bench.flushes.wish(DatasetId(3));
        assert!(bench.flushes.busy(DatasetId(3)));
        assert_eq!(bench.step(), ["begin 3"]);
        bench.end(3);
        bench.step();
        bench.flushes.wish_newest(&bench.cluster);
        assert!(bench.step().is_empty(), "it is there");
    }

    #[test]
    fn the_end_of_the_job_wants_the_newest() {
        let mut bench = Bench::new();
        bench.flushes.wish_newest(&bench.cluster);
        assert_eq!(bench.step(), ["begin 3"]);
        bench.flushes.wish_newest(&bench.cluster);
        bench.end(3);
        assert_eq!(bench.step(), ["flushed 3"]);
    }

    #[test]
    fn the_end_of_the_job_wants_the_newest_before_older_ones() {
        let mut bench = Bench::new();
        bench.cluster.settings.flush_every = 1;
        bench.flushes.choose(&bench.cluster);
        assert_eq!(bench.step(), ["begin 1"]);
        bench.flushes.wish_newest(&bench.cluster);
        bench.end(1);
        assert_eq!(bench.step(), ["flushed 1", "begin 3"]);
        bench.end(3);
        assert_eq!(bench.step(), ["flushed 3", "begin 2"]);
    }
}

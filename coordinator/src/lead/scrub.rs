//! Scrubs: the cached bytes of a dataset are read on all nodes and compared with their checksums,
//! one dataset at a time, when an operator asks or as `SCRFS_SCRUB_INTERVAL` says. Members with bad
//! bytes are rebuilt where they are ([`super::mend`]); then the dataset is read once more, and the
//! report says what was found.

use std::collections::{BTreeMap, VecDeque};

use scrfs::control::{Command, Reason};
use scrfs::ids::{DatasetId, Member, NodeRank};
use scrfs::status::Scrubbed;

use super::answers::Answers;
use super::cluster::Cluster;
use super::policy::MS;

/// What a node has found to be bad.
type Found = Vec<(Member, Reason)>;

#[derive(Debug)]
enum Step {
    Reading(Answers<Found>),
    /// The members that were bad are being rebuilt.
    Mending,
}

#[derive(Debug)]
struct Scrub {
    id: DatasetId,
    gently: bool,
    /// Names this reading: answers to others are nobody's.
    round: u64,
    /// Members that were bad at the first reading; `None` before that.
    found: Option<u32>,
    step: Step,
}

/// The scrub that runs, and those that wait.
#[derive(Debug, Default)]
pub(super) struct Scrubs {
    /// Those that operators have asked for before those that go gently.
    waiting: VecDeque<(DatasetId, bool)>,
    current: Option<Scrub>,
    rounds: u64,
    /// When all datasets are due.
    due: Option<u64>,
}

impl Scrubs {
    /// An operator asks for it.
    pub(super) fn wish(&mut self, id: DatasetId) {
        if self.current.as_ref().is_some_and(|scrub| scrub.id == id && !scrub.gently) {
            return;
        }
        self.waiting.retain(|(waiting, _)| *waiting != id);
        let asked = self.waiting.iter().take_while(|(_, gently)| !gently).count();
        self.waiting.insert(asked, (id, false));
    }

    /// Queues all datasets when they are due.
    pub(super) fn tick(&mut self, cluster: &Cluster) {
        let interval = cluster.settings.scrub_interval_ms.saturating_mul(MS);
        if interval == 0 {
            return;
        }
        let due = *self.due.get_or_insert(cluster.now.saturating_add(interval));
        if due <= cluster.now && self.current.is_none() && self.waiting.is_empty() {
            let all = cluster.datasets.newest_first();
            self.waiting.extend(all.iter().map(|known| (known.catalog.id, true)));
            self.due = Some(cluster.now.saturating_add(interval));
        }
    }

    /// Begins the next reading where none runs; `rebuilding` tells whether members of a dataset
    /// are.
    pub(super) fn begin(&mut self, cluster: &mut Cluster, rebuilding: impl Fn(DatasetId) -> bool) {
        // One that cannot begin yet takes nobody's place: nothing would be read meanwhile.
        let asked = self.waiting.iter().any(|(id, gently)| !gently && !rebuilding(*id));
        if let Some(scrub) = self.current.take_if(|scrub| scrub.gently && asked && scrub.found.is_none()) {
            self.waiting.push_back((scrub.id, true));
        }
        if let Some(scrub) = &self.current {
            let again = matches!(scrub.step, Step::Mending) && !rebuilding(scrub.id);
            if again && let Some(scrub) = self.current.take() {
                self.read(cluster, scrub.id, scrub.gently, scrub.found);
            }
            return;
        }
        // What is not there yet is not bad.
        let is_whole = |(id, _): &(DatasetId, bool)| !rebuilding(*id);
        while self.current.is_none()
            && let Some(at) = self.waiting.iter().position(is_whole)
            && let Some((id, gently)) = self.waiting.remove(at)
        {
            self.read(cluster, id, gently, None);
        }
    }

    fn read(&mut self, cluster: &mut Cluster, id: DatasetId, gently: bool, found: Option<u32>) {
        if cluster.datasets.get(id).is_none() {
            // Who waits is told.
            if !gently || found.is_some() {
                let left = Some("it is not complete on all nodes, or has failed".to_owned());
                end(cluster, id, gently, found.unwrap_or(0), left);
            }
            return;
        }
        self.rounds += 1;
        let round = self.rounds;
        cluster.send_all(Command::Scrub { id, round, gently });
        let step = Step::Reading(Answers::of(cluster.nodes()));
        self.current = Some(Scrub { id, gently, round, found, step });
    }

    /// A node has read its members. The members to be rebuilt, when all have and some are bad;
    /// `None` when the answer is not awaited.
    pub(super) fn scrubbed(
        &mut self,
        cluster: &mut Cluster,
        node: NodeRank,
        (id, round): (DatasetId, u64),
        bad: Found,
    ) -> Option<Vec<Member>> {
        let scrub = self.current.as_mut().filter(|scrub| (scrub.id, scrub.round) == (id, round))?;
        let Step::Reading(answers) = &mut scrub.step else { return None };
        if !answers.answered(node, bad)? {
            return Some(Vec::new());
        }
        let mut all: BTreeMap<Member, Reason> = BTreeMap::new();
        for (node, found) in answers.iter() {
            let told = found.iter().map(|(member, reason)| (*member, reason.clone().on(cluster.host(node))));
            all.extend(told);
        }
        let gently = scrub.gently;
        match scrub.found {
            None if !all.is_empty() => {
                for (member, reason) in &all {
                    cluster.warn(format!("dataset {id}: member {member} has bad bytes: {reason}"));
                }
                scrub.found = u32::try_from(all.len()).ok();
                scrub.step = Step::Mending;
                Some(all.into_keys().collect())
            }
            found => {
                self.current = None;
                end(
                    cluster,
                    id,
                    gently,
                    found.unwrap_or(0),
                    Reason::all(all.into_values()).map(|r| r.to_string()),
                );
                Some(Vec::new())
            }
        }
    }

    /// It is no dataset any more.
    pub(super) fn removed(&mut self, id: DatasetId) {
        self.waiting.retain(|(waiting, _)| *waiting != id);
        self.current.take_if(|scrub| scrub.id == id);
    }
}

/// Tells everybody what was found.
fn end(cluster: &mut Cluster, id: DatasetId, gently: bool, found: u32, left: Option<String>) {
    match (&left, found) {
        (Some(left), _) => cluster.warn(format!("dataset {id} was scrubbed, and bad bytes are left: {left}")),
        (None, 0) if gently => {}
        (None, 0) => cluster.note(format!("dataset {id} was scrubbed: all bytes are as they were sealed")),
        (None, _) => cluster.warn(format!(
            "dataset {id} was scrubbed: {found} members had bad bytes, which are as they were sealed again"
        )),
    }
    let report = Scrubbed { at_us: cluster.now, found, left };
    cluster.send_all(Command::MarkScrubbed { id, report });
}

#[cfg(test)]
mod tests {
    use scrfs::ids::Epoch;

    use super::*;
    use crate::lead::Output;
    use crate::lead::flush::tests::catalog;
    use crate::settings::tests::settings;

    /// Two nodes with two datasets.
    fn cluster() -> Cluster {
        let hosts = vec!["a".to_owned(), "b".to_owned()];
        let mut cluster = Cluster::new(Epoch(1), hosts, settings(), 100);
        (1..=2).for_each(|id| cluster.datasets.insert(catalog(id).into(), false));
        cluster
    }

    /// What all nodes are told.
    fn told(cluster: &mut Cluster) -> Vec<Command> {
        let outputs = cluster.take_outputs().into_iter();
        let command = |output| match output {
            Output::Command(_, command @ (Command::Scrub { .. } | Command::MarkScrubbed { .. })) => {
                Some(command)
            }
            _ => None,
        };
        outputs.filter_map(command).collect()
    }

    fn read(id: u64, round: u64, gently: bool) -> Command {
        Command::Scrub { id: DatasetId(id), round, gently }
    }

    fn ended(id: u64, at_us: u64, found: u32, left: Option<&str>) -> Command {
        let report = Scrubbed { at_us, found, left: left.map(str::to_owned) };
        Command::MarkScrubbed { id: DatasetId(id), report }
    }

    #[test]
    fn bad_members_are_rebuilt_and_all_is_read_again() {
        let (mut cluster, mut scrubs) = (cluster(), Scrubs::default());
        let nodes: Vec<NodeRank> = cluster.nodes().collect();
        scrubs.wish(DatasetId(1));
        scrubs.begin(&mut cluster, |_| false);
        assert_eq!(told(&mut cluster), [read(1, 1, false)]);
        for node in &nodes {
            let bad = if node.0 == 0 { vec![(Member(0), Reason::from("f: CRC"))] } else { Vec::new() };
            let mend = scrubs.scrubbed(&mut cluster, *node, (DatasetId(1), 1), bad).unwrap();
            let last = node == nodes.last().unwrap();
            assert_eq!(mend, if last { vec![Member(0)] } else { vec![] });
        }
        scrubs.begin(&mut cluster, |_| true);
        assert_eq!(told(&mut cluster), []);
        scrubs.begin(&mut cluster, |_| false);
        assert_eq!(told(&mut cluster), [read(1, 2, false)]);
        assert_eq!(
            scrubs.scrubbed(&mut cluster, nodes[0], (DatasetId(1), 1), Vec::new()),
            None,
            "of the first reading"
        );
        for node in &nodes {
            scrubs.scrubbed(&mut cluster, *node, (DatasetId(1), 2), Vec::new()).unwrap();
        }
        let now = cluster.now;
        assert_eq!(told(&mut cluster), [ended(1, now, 1, None)]);
    }

    #[test]
    fn what_an_operator_asks_for_goes_before_what_is_due() {
        let (mut cluster, mut scrubs) = (cluster(), Scrubs::default());
        cluster.settings.scrub_interval_ms = 1000;
        scrubs.tick(&cluster);
        scrubs.begin(&mut cluster, |_| false);
        assert_eq!(told(&mut cluster), [], "not before the interval is over");
        cluster.now += 1000 * MS;
        scrubs.tick(&cluster);
        scrubs.begin(&mut cluster, |_| false);
        assert_eq!(told(&mut cluster), [read(2, 1, true)]);
        scrubs.wish(DatasetId(1));
        scrubs.begin(&mut cluster, |_| false);
        assert_eq!(told(&mut cluster), [read(1, 2, false)]);
        for node in cluster.nodes().collect::<Vec<_>>() {
            scrubs.scrubbed(&mut cluster, node, (DatasetId(1), 2), vec![]).unwrap();
        }
        let now = cluster.now;
        scrubs.begin(&mut cluster, |_| false);
        assert_eq!(told(&mut cluster), [ended(1, now, 0, None), read(2, 3, true)]);
        scrubs.removed(DatasetId(2));
        scrubs.begin(&mut cluster, |_| false);
        assert_eq!(told(&mut cluster), []);
    }

    #[test]
    fn a_dataset_that_is_not_whole_yet_is_read_when_it_is() {
        let (mut cluster, mut scrubs) = (cluster(), Scrubs::default());
        scrubs.wish(DatasetId(1));
        scrubs.begin(&mut cluster, |id| id == DatasetId(1));
        assert_eq!(told(&mut cluster), []);
        scrubs.wish(DatasetId(2));
        scrubs.begin(&mut cluster, |id| id == DatasetId(1));
        assert_eq!(told(&mut cluster), [read(2, 1, false)], "the other one need not wait for it");
        for node in cluster.nodes().collect::<Vec<_>>() {
            scrubs.scrubbed(&mut cluster, node, (DatasetId(2), 1), vec![]).unwrap();
        }
        told(&mut cluster);
        scrubs.begin(&mut cluster, |_| false);
        assert_eq!(told(&mut cluster), [read(1, 2, false)]);
    }

    #[test]
    fn what_is_due_is_not_begun_again_for_what_cannot_begin_yet() {
        let (mut cluster, mut scrubs) = (cluster(), Scrubs::default());
        let begins = |cluster: &mut Cluster, scrubs: &mut Scrubs, is_whole: bool| {
            scrubs.begin(cluster, |id| id == DatasetId(1) && !is_whole);
            told(cluster)
        };
        scrubs.waiting.push_back((DatasetId(2), true));
        assert_eq!(begins(&mut cluster, &mut scrubs, false), [read(2, 1, true)]);
        scrubs.wish(DatasetId(1));
        for _ in 0..2 {
            assert_eq!(begins(&mut cluster, &mut scrubs, false), []);
        }
        assert_eq!(begins(&mut cluster, &mut scrubs, true), [read(1, 2, false)]);
    }

    #[test]
    fn who_asks_for_what_is_no_dataset_is_told() {
        let (mut cluster, mut scrubs) = (cluster(), Scrubs::default());
        scrubs.wish(DatasetId(9));
        scrubs.begin(&mut cluster, |_| false);
        let now = cluster.now;
        let left = Some("it is not complete on all nodes, or has failed");
        assert_eq!(told(&mut cluster), [ended(9, now, 0, left)]);
    }
}

//! What the PFS worker answers: the survey of the prefix, flushes, records that were read.

use scrfs::control::Command;
use scrfs::dataset::Catalog;
use scrfs::ids::DatasetId;
use scrfs::prefix::{Contents, PfsCause, PfsFailure, PfsOutcome, PfsTask, StoredDataset};

use super::cluster::Cluster;
use super::policy::MS;
use super::{Phase, Running, SURVEY_LIMIT, Survey};

/// A survey that fails is tried again so many times: an error of a PFS may pass.
const SURVEYS_AGAIN: u32 = 2;
/// And after so long, microseconds.
const SURVEY_PAUSE: u64 = 3_000 * MS;

/// A survey that is awaited.
#[derive(Debug, Default)]
pub(super) struct Asked {
    /// Not waited for after this time (once the time is known).
    limit: Option<u64>,
    /// The times that it failed.
    failures: u32,
    /// It failed, and is asked for again at this time.
    again: Option<u64>,
}

impl Running {
    pub(super) fn pfs(&mut self, outcome: PfsOutcome) {
        let cluster = &mut self.cluster;
        let awaited = match outcome {
            PfsOutcome::Surveyed(contents) => {
                self.surveyed(contents);
                true
            }
            PfsOutcome::Busy(text) => {
                if let Survey::Asked(asked) = &mut self.survey {
                    asked.limit = None;
                }
                if let Some(text) = text {
                    cluster.note(text);
                }
                true
            }
            PfsOutcome::FlushBegun(id, directory) => {
                self.flushes.begun(cluster, id, &directory) || cluster.datasets.get(id).is_none()
            }
            PfsOutcome::Published(id) => {
                self.flushes.published(cluster, id);
                self.loose.refresh(cluster);
                self.evict();
                true
            }
            PfsOutcome::Catalog(stored, catalog) => {
                self.stored(&stored, Ok(*catalog));
                true
            }
            PfsOutcome::Marked(_) | PfsOutcome::Posted => true,
            PfsOutcome::LoosePut(age) => {
                self.loose.sets.done(cluster, age);
                true
            }
            PfsOutcome::Halt(halt) => {
                self.advice.halt(cluster.now, Ok(*halt));
                true
            }
            PfsOutcome::Loose(age, set) => {
                self.loose.fetched(age, set.map(|set| *set));
                true
            }
            PfsOutcome::Failed(task, failure) => match task {
                PfsTask::Survey => {
                    self.survey_failed(failure.reason.words());
                    true
                }
                PfsTask::Halt { sealed } => {
                    self.advice.unread(cluster, sealed, failure.reason.words());
                    true
                }
                PfsTask::Post { text, .. } => {
                    cluster.warn(format!("{}: not kept in the prefix: {text}", failure.reason));
                    true
                }
                PfsTask::BeginFlush(catalog) | PfsTask::Publish(catalog) => {
                    self.flushes.failed(cluster, catalog.id, &failure.reason);
                    self.choose();
                    true
                }
                PfsTask::ReadCatalog(stored) => {
                    if failure.cause == PfsCause::Damaged {
                        cluster.pfs(PfsTask::MarkFailed(stored.clone()));
                    }
                    self.stored(&stored, Err(&failure));
                    true
                }
                PfsTask::PutLoose(set) => {
                    self.loose.sets.failed(cluster, set.age, failure.reason.words());
                    true
                }
                PfsTask::ReadLoose(age) => {
                    cluster.warn(format!("pointer files of dataset {}: {}", age.id, failure.reason));
                    if failure.cause == PfsCause::Unavailable {
                        self.loose.sets.unread(cluster, age);
                    } else {
                        self.loose.fetched(age, None);
                    }
                    true
                }
                PfsTask::MarkFailed(stored) => {
                    let reason = failure.reason;
                    cluster.warn(format!("dataset {} could not be marked FAILED: {reason}", stored.id));
                    true
                }
            },
        };
        if !awaited {
            self.cluster.log("an outcome on the PFS that nobody awaits: ignored".to_owned());
        }
    }

    /// The records of a dataset in the prefix; when they come late nobody needs them any more.
    fn stored(&mut self, stored: &StoredDataset, catalog: Result<Catalog, &PfsFailure>) {
        if let Phase::Recovering(recover) = &mut self.phase {
            recover.stored(&mut self.cluster, stored, catalog);
        }
    }

    /// What the prefix has; also when it comes late.
    fn surveyed(&mut self, contents: Contents) {
        let cluster = &mut self.cluster;
        for dataset in &contents.datasets {
            cluster.seen_id(dataset.id.0);
            if dataset.usable {
                cluster.datasets.on_pfs((dataset.epoch, dataset.id));
            }
        }
        for age in &contents.partial {
            cluster.seen_id(age.id.0);
        }
        if let Phase::Recovering(recover) = &mut self.phase {
            recover.surveyed(cluster, Some(&contents));
        }
        self.survey = Survey::Known(contents);
        self.flushes.surveyed();
        if matches!(self.phase, Phase::Serving) {
            self.mark_flushed();
            self.choose();
        }
    }

    pub(super) fn tick_survey(&mut self) {
        let Survey::Asked(asked) = &mut self.survey else { return };
        let now = self.cluster.now;
        let limit = *asked.limit.get_or_insert(now + SURVEY_LIMIT);
        if limit <= now {
            self.no_survey("no answer in time");
        } else if asked.again.take_if(|at| *at <= now).is_some() {
            self.cluster.pfs(PfsTask::Survey);
        }
    }

    fn survey_failed(&mut self, reason: &str) {
        match &mut self.survey {
            Survey::Asked(asked) if asked.failures < SURVEYS_AGAIN => {
                asked.failures += 1;
                asked.again = Some(self.cluster.now + SURVEY_PAUSE);
                self.cluster.log(format!("the survey of the prefix failed, and is tried again: {reason}"));
            }
            _ => self.no_survey(reason),
        }
    }

    fn no_survey(&mut self, reason: &str) {
        if matches!(self.survey, Survey::Asked(_)) {
            self.cluster.warn(format!("what the prefix has is not known: {reason}"));
            self.survey = Survey::Unknown;
            if let Phase::Recovering(recover) = &mut self.phase {
                recover.surveyed(&mut self.cluster, None);
            }
            self.flushes.surveyed();
            self.choose();
        }
    }

    /// Datasets of which the caches do not know that they are on the PFS, or that they are not: a
    /// lead may have died before all nodes knew.
    pub(super) fn mark_flushed(&mut self) {
        let Survey::Known(Contents { datasets, .. }) = &self.survey else { return };
        for id in no_longer_there(datasets, &self.cluster) {
            self.cluster.datasets.bad_there(id);
            if self.cluster.datasets.get(id).is_some_and(|known| !known.flushed) {
                self.cluster.send_all(Command::UnmarkFlushed(id));
                self.flushes.wish(id);
            }
        }
        for dataset in datasets.iter().filter(|dataset| dataset.usable) {
            let known = self.cluster.datasets.any(dataset.id);
            if known.is_some_and(|known| !known.in_prefix() && dataset.is(&known.catalog)) {
                self.cluster.datasets.flushed(dataset.id);
                self.cluster.send_all(Command::MarkFlushed(dataset.id));
            }
        }
        if matches!(self.phase, Phase::Serving) {
            self.loose.refresh(&mut self.cluster);
        }
    }
}

/// Those that count as flushed, and that the prefix lists as marked FAILED, or gone.
fn no_longer_there(stored: &[StoredDataset], cluster: &Cluster) -> Vec<DatasetId> {
    let is_there = |catalog: &Catalog| {
        let mut listed = stored.iter().filter(|dataset| dataset.is(catalog)).peekable();
        listed.peek().is_none() || listed.any(|dataset| dataset.usable)
    };
    let counted = cluster.datasets.newest_first().into_iter().filter(|known| known.flushed);
    counted.filter(|known| !is_there(&known.catalog)).map(|known| known.catalog.id).collect()
}

#[cfg(test)]
mod tests {
    use scrfs::control::{Settings, Severity, Start};
    use scrfs::ids::{Epoch, NodeRank};

    use super::super::flush::tests::catalog;
    use super::super::policy::MS;
    use super::super::{Input, Lead, Output, SURVEY_LIMIT};
    use super::*;

    fn settings() -> Settings {
        Settings { flush_every: 0, ..crate::settings::tests::settings() }
    }

    /// A restart that did not wait would go on from an older dataset, or from nothing.
    #[test]
    fn a_survey_that_rebuilds_what_was_scavenged_is_waited_for_as_long_as_it_goes_on() {
        let mut lead = Lead::new();
        let (hosts, settings) = (vec!["n0".to_owned()], Box::new(settings()));
        let groups = crate::groups::FailureGroups::default();
        lead.step(Input::Begin { epoch: Epoch(2), hosts, groups, start: Start::Restart, settings });
        let unknown = |output: &Output| match output {
            Output::Note(Severity::Warning, text) => text.contains("not known"),
            _ => false,
        };
        let warned = |outputs: Vec<Output>| outputs.iter().any(unknown);
        let mut now = 1;
        for _ in 0..5 {
            assert!(!warned(lead.step(Input::Now(now))));
            now += SURVEY_LIMIT - MS;
            assert!(!warned(lead.step(Input::Now(now))));
            let said = lead.step(Input::Pfs(PfsOutcome::Busy(Some("member 1 is rebuilt".to_owned()))));
            let to_daemons = |output: &&Output| matches!(output, Output::Command(_, Command::Note { .. }));
            assert_eq!(said.iter().filter(to_daemons).count(), 1);
        }
        assert!(!warned(lead.step(Input::Now(now))));
        assert!(warned(lead.step(Input::Now(now + SURVEY_LIMIT))));
    }

    /// The former lead died when some nodes had heard of it.
    #[test]
    fn what_the_index_has_as_failed_counts_as_flushed_on_no_node() {
        let told = |usable: &[bool]| {
            let cluster = Cluster::new(Epoch(2), vec!["n0".to_owned()], settings(), 1);
            let mut running = Running::begin(cluster, Start::Attach);
            running.phase = Phase::Serving;
            running.cluster.datasets.insert(catalog(1).into(), true);
            running.cluster.take_outputs();
            let stored = |usable: &bool| StoredDataset {
                id: DatasetId(1),
                epoch: Epoch(1),
                name: b"ck.1".to_vec(),
                directory: b"/p/ck.1".to_vec(),
                created_us: None,
                usable: *usable,
                current: false,
            };
            let datasets = usable.iter().map(stored).collect();
            let outcome = PfsOutcome::Surveyed(Contents { datasets, ..Contents::default() });
            let outputs = running.step(Input::Pfs(outcome));
            let has = |output: &Output| outputs.contains(output);
            let unmarks = has(&Output::Command(vec![NodeRank(0)], Command::UnmarkFlushed(DatasetId(1))));
            (unmarks, has(&Output::Pfs(PfsTask::BeginFlush(catalog(1).into()))))
        };
        assert_eq!(told(&[false]), (true, true));
        assert_eq!([told(&[]), told(&[true]), told(&[false, true])], [(false, false); 3]);
    }

    #[test]
    fn a_survey_that_fails_is_tried_again() {
        let mut lead = Lead::new();
        let (hosts, settings) = (vec!["n0".to_owned()], Box::new(settings()));
        let groups = crate::groups::FailureGroups::default();
        let mut surveys = |input| {
            let outputs = lead.step(input);
            let is_survey = |output: &&Output| **output == Output::Pfs(PfsTask::Survey);
            let is_unknown = |output: &Output| match output {
                Output::Note(_, text) => text.contains("not known"),
                _ => false,
            };
            (outputs.iter().filter(is_survey).count(), outputs.iter().any(is_unknown))
        };
        let begin = Input::Begin { epoch: Epoch(2), hosts, groups, start: Start::Restart, settings };
        assert_eq!(surveys(begin), (1, false));
        let failed = || {
            let failure = PfsFailure { cause: PfsCause::Unavailable, reason: "ESTALE".into() };
            Input::Pfs(PfsOutcome::Failed(PfsTask::Survey, failure))
        };
        for again in 1..=2 {
            assert_eq!(surveys(failed()), (0, false));
            assert_eq!(surveys(Input::Now(again * SURVEY_PAUSE)), (1, false));
        }
        assert_eq!(surveys(failed()), (0, true));
    }
}

//! From one phase of an epoch to the next: the nodes' records are settled; in a restart, what is
//! presented is looked for; then programs are served.

use scrfs::control::loose::Age;
use scrfs::control::{Command, Start};
use scrfs::ids::DatasetId;
use scrfs::prefix::PfsTask;

use super::prefix::Asked;
use super::recover::Recover;
use super::settle::Settle;
use super::{Running, Survey, loose};

#[derive(Debug)]
pub(super) enum Phase {
    Settling(Box<Settle>),
    Recovering(Box<Recover>),
    Serving,
}

impl Running {
    pub(super) fn change_phase(&mut self) {
        if matches!(&self.phase, Phase::Settling(settle) if settle.done() && self.loose.told()) {
            let restart = matches!(&self.phase, Phase::Settling(settle) if settle.start() == Start::Restart);
            if restart && matches!(self.survey, Survey::Asked(_)) {
                return;
            }
            if let Phase::Settling(settle) = std::mem::replace(&mut self.phase, Phase::Serving) {
                self.settled(*settle, restart);
            }
        }
        if matches!(&self.phase, Phase::Recovering(recover) if recover.wants_survey())
            && !matches!(self.survey, Survey::Asked(_))
        {
            self.survey = Survey::Asked(Asked::default());
            self.cluster.pfs(PfsTask::Survey);
        }
        self.present();
        if matches!(&self.phase, Phase::Recovering(recover) if recover.done())
            && let Phase::Recovering(recover) = std::mem::replace(&mut self.phase, Phase::Serving)
        {
            let current = recover.current().map(|catalog| (catalog.id, catalog.name.clone()));
            recover.hand_over(&mut self.cluster);
            self.advice.begin(self.cluster.now);
            self.serve(current);
        }
    }

    /// The nodes' records are one: programs are served, or in a `restart` what is presented is
    /// looked for.
    fn settled(&mut self, settle: Settle, restart: bool) {
        if !restart {
            let undecided = settle.undecided.iter();
            self.loose.dropped =
                undecided.map(|(&(epoch, id), name)| (Age { epoch, id }, name.clone())).collect();
        }
        let older = settle.older.iter().map(|(id, held)| (id, held));
        self.loose.held =
            settle.held.iter().chain(older).map(|(&id, held)| Age { epoch: held.epoch, id }).collect();
        if restart {
            let contents = match &self.survey {
                Survey::Known(contents) => Some(contents.clone()),
                _ => None,
            };
            self.loose.tell_bound(&mut self.cluster);
            let held = settle.held.into_iter().chain(settle.older).collect();
            let recover = Recover::begin(&mut self.cluster, held, contents);
            self.phase = Phase::Recovering(Box::new(recover));
        } else {
            let (advised, removed) = (settle.advised(), settle.removed());
            settle.hand_over(&mut self.cluster, &mut self.seals);
            let sealed = self.cluster.datasets.all().map(|catalog| catalog.created_us).max();
            self.advice.resume(self.cluster.now, &advised, sealed);
            let newest = self.cluster.datasets.newest_first();
            let current = newest.first().map(|known| (known.catalog.id, known.catalog.name.clone()));
            self.serve(current);
            self.loose.doubts = self.seals.doubts().map(loose::age_of).collect();
            let doubts = self.seals.doubts().map(|catalog| (catalog.name.clone(), catalog.id));
            let doubts: Vec<_> = doubts.collect();
            self.loose.attach(&mut self.cluster, &doubts, &removed);
        }
    }

    /// Everything that is presented is found: when every node has what goes with it, it is
    /// presented.
    fn present(&mut self) {
        let Phase::Recovering(recover) = &mut self.phase else { return };
        let Some(found) = recover.found() else { return };
        let cluster = &mut self.cluster;
        let known = self.loose.joined()
            || found.first().is_none_or(|first| self.loose.knows(loose::age_of(&first.catalog)));
        let there =
            known || recover.current_in_prefix().is_none_or(|stored| self.loose.sets.wants(cluster, stored));
        let stored = recover.current_in_prefix().is_some();
        if there && self.loose.present(cluster, found, stored) {
            recover.present(cluster, 0);
        }
    }

    fn serve(&mut self, current: Option<(DatasetId, Vec<u8>)>) {
        self.cluster.send_all(Command::Serve);
        self.advise();
        self.cluster.ready(current);
        self.mark_flushed();
        self.choose();
    }
}

//! Which thread carries out which command, so that directory rounds and markers are served whatever
//! else goes on.
//!
//! Directory rounds, and answers to programs that need no record: here, in the link's own thread,
//! which is called `scrfs-control`. One thread (`scrfs-records`) carries out, in the lead's order,
//! the commands that read records; that freeze, carry on, commit or drop; that present, or remove
//! unsealed files; that store pointer files; and that mark a dataset as flushed or failed.
//! Transfers, scrubs, files that programs wait for, evictions: a thread each
//! ([`super::node::Lanes`]). Freezing: a thread per seal. Evictions, transfers, freezes and data
//! connections change records too, in their own threads.

use std::sync::Arc;

use crate::control::{Command, Event, Severity};
use crate::dataset::lifecycle::Step;
use crate::faults;
use crate::ids::DatasetId;
use crate::status::FlushFailure;

use super::core::desk::Input;
use super::core::seals::Settling;
use super::freeze::Order;
use super::node::Node;
use super::priority::is_waited_for;
use super::requests::with_link;
use super::room::Shortage;
use super::state::Attached;
use super::transfers::FetchOrder;

impl Node {
    pub(super) fn carry_out(&self, link: u64, command: Command) {
        if !self.state.lock().is_attached(link) {
            return;
        }
        if is_waited_for(&command) {
            self.hurry();
        }
        match command {
            Command::DirPrepare { round, ops } => self.dir_prepare(round, ops),
            Command::DirApply { round, verdicts } => self.dir_apply(round, &verdicts),
            Command::DirReplay { round, ops } => self.dir_replay(round, &ops),
            Command::DirFinish { results } => self.dir_finish(&results),
            Command::DirUnite { directories } => self.dir_unite(directories),

            Command::Ping => self.state.lock().send(Event::Pong),
            Command::Inventory => self.in_records(link, Self::send_inventory),
            Command::ReadCatalog(id) => self.in_records(link, move |node| node.send_catalog(id)),
            Command::Serve => {
                // What is still held is the former lead's and was never decided. Now, before this
                // lead's first round.
                self.release_held();
                self.in_records(link, Self::serve);
            }
            Command::AskChanges(id) => self.in_records(link, move |node| node.send_changes(id)),
            Command::Freeze { id, name, member, base } => {
                let order = Order { id, name, member, base };
                self.in_records(link, move |node| node.freeze(link, order));
            }
            Command::AllFrozen(id) => self.in_records(link, move |node| node.all_frozen(id)),
            Command::Carry { id, dropped } => self.in_records(link, move |node| node.carry(id, &dropped)),
            Command::Drop { id, reason } => {
                // Looked at in its turn: settling ends there too.
                self.in_records(link, move |node| node.drop_seal(id, &reason, node.settling()));
            }
            Command::Commit(catalog) => {
                self.in_records(link, move |node| node.commit(Arc::unwrap_or_clone(catalog)));
            }
            Command::Revise(revision) => self.in_records(link, move |node| node.revise(&revision)),
            Command::Sealed(id) => self.in_records(link, move |node| node.sealed(id)),
            Command::MarkFlushed(id) => self.in_records(link, move |node| node.mark_flushed(Some(link), id)),
            Command::UnmarkFlushed(id) => self.in_records(link, move |node| node.unmark_flushed(link, id)),
            Command::FlushFailed { id, reason, given_up } => {
                self.flush_failed(id, FlushFailure { reason, given_up });
            }
            Command::MarkFailed { id, reason } => {
                self.in_records(link, move |node| node.mark_failed(id, &reason));
            }
            Command::Present { datasets } => self.in_records(link, move |node| node.present(&datasets)),

            Command::MarkersEnd { name, requests, outcome } => {
                self.markers_end(link, name, requests, outcome);
            }
            Command::Fetched { request, errno: 0 } => self.at_desk(Input::Fetched(request, 0)),
            // After what was to be recorded of the failure: the program's death may end the
            // coordinators.
            Command::Fetched { request, errno } => {
                self.in_records(link, move |node| node.at_desk(Input::Fetched(request, errno)));
            }
            Command::LooseInventory => self.in_records(link, Self::send_loose_inventory),
            Command::ReadLoose(stamp) => self.in_records(link, move |node| node.send_loose(stamp)),
            Command::LooseAsk { round } => self.send_begun(round),
            Command::LooseStore { round, versions, place } => {
                self.in_records(link, move |node| node.store_loose(round, &versions, place));
            }
            Command::LooseFinish { results } => self.finish_loose(&results),
            Command::LooseBind { bound, began } => {
                self.in_records(link, move |node| node.bind_loose(bound, began));
            }
            Command::LooseForget { versions, datasets } => {
                self.in_records(link, move |node| node.forget_loose(&versions, &datasets));
            }
            Command::LooseShow { versions, shown } => {
                self.in_records(link, move |node| node.plan_loose(versions, shown));
            }
            Command::Note { severity: Severity::Info, text } => self.events.info(None, &text),
            Command::Note { severity: Severity::Warning, text } => self.events.warning(None, &text),
            Command::Advise(advice) => {
                self.state.lock().advised.advice = Some(advice);
                self.in_records(link, move |node| node.keep_advice(&advice));
            }
            Command::Evict(id) => self.evict(link, id),

            Command::FlushMember { id, directory } => {
                self.in_transfers(link, move |node| node.flush_member(link, id, &directory));
            }
            Command::Scrub { id, round, gently } => {
                self.scrub_begins(round);
                let me = self.me.clone();
                self.lanes
                    .scrubs
                    .run(move || with_link(&me, link, |node| node.scrub(link, id, round, gently)));
            }
            Command::MarkScrubbed { id, report } => self.scrubbed(id, report),
            Command::MarkAbsent { id, members } => self.mark_absent(id, members),
            // In the transfers' lane a PFS that hangs would hold up a restart from caches.
            Command::Verify(id) => {
                let me = self.me.clone();
                self.lanes.scrubs.run(move || with_link(&me, link, |node| node.verify(link, id)));
            }
            Command::FetchMember { id, epoch, name, member, directory, entries } => {
                let order = FetchOrder { id, epoch, name, member, directory, entries };
                self.in_transfers(link, move |node| node.fetch_member(link, &order));
            }
            Command::RemoveUnsealed => self.in_records(link, Self::remove_unsealed),
            Command::Save(id) => self.in_transfers(link, move |node| node.save_for_lead(link, id)),
            Command::CopyFromPrefix { request, file, directory } => {
                let me = self.me.clone();
                self.lanes.opens.run(move || {
                    with_link(&me, link, |node| node.copy_from_prefix(request, &file, &directory));
                });
            }
        }
    }

    fn in_transfers(&self, link: u64, work: impl FnOnce(&Self) + Send + 'static) {
        let me = self.me.clone();
        self.lanes.transfers.run(move || with_link(&me, link, work));
    }

    /// Answers the coordinator of `link`, unless it is gone or has a successor.
    pub(super) fn send_to(&self, link: u64, event: Event) {
        let state = self.state.lock();
        if state.is_attached(link) {
            state.send(event);
        }
    }

    /// What a seal that is dropped now means for those who wait for it.
    fn settling(&self) -> Settling {
        let state = self.state.lock();
        match (state.served(), state.attached.as_ref().is_some_and(Attached::presents_later)) {
            (true, _) => Settling::No,
            (false, true) => Settling::Given,
            (false, false) => Settling::Kept,
        }
    }

    /// Settling is over.
    fn serve(&self) {
        let record = || self.disk.lock().change(&self.state, |table| table.served = table.epoch);
        let recorded = faults::hit("present.served")
            .map_err(|error| error.to_string())
            .and_then(|()| record().map_err(|error| error.to_string()));
        if let Err(error) = recorded {
            self.events.error(None, &format!("that programs are served cannot be recorded: {error}"));
        }
        {
            let mut state = self.state.lock();
            let mut news = false;
            for dataset in state.table.datasets.values_mut() {
                // What is complete was brought to all nodes while settling.
                news |= !dataset.life.is_settled() && dataset.step(&Step::Settled).is_ok();
            }
            if news {
                // The former lead did not come to say that it is sealed.
                state.advised.askers.forget();
            }
            if let Some(attached) = &mut state.attached {
                attached.served = true;
            }
            state.shortage = Shortage::default();
            // This lead has not heard it, and a question that is not a new maximum is not told.
            if let Some(times) = state.advised.askers.most() {
                state.send_request(Event::Asked { times });
            }
            state.wish_again();
        }
        // Markers too whose dataset turned out complete: whether it was changed since then the lead
        // finds out.
        self.send_waiting();
        self.tell_loose();
        self.verify_behind();
    }

    /// `link`: the lead's that says so, if any.
    pub(super) fn mark_flushed(&self, link: Option<u64>, id: DatasetId) {
        let mut disk = self.disk.lock();
        if link.is_some_and(|link| !self.is_attached(link)) {
            return;
        }
        let marked = disk.change(&self.state, |table| {
            if let Some(dataset) = table.datasets.get_mut(&id) {
                dataset.flushed = true;
                dataset.told.flush_failed = None;
            }
        });
        drop(disk);
        match marked {
            Ok(()) => {
                {
                    let mut state = self.state.lock();
                    state.wishes.flushed(id);
                    state.losses.saved(id);
                }
                self.events.info(Some(id), "is on the PFS");
            }
            Err(error) => {
                self.events.error(Some(id), &format!("that it is on the PFS cannot be recorded: {error}"));
            }
        }
    }

    /// A lead that was replaced while this waited for the lock of the records may speak of another
    /// prefix.
    fn is_attached(&self, link: u64) -> bool {
        self.state.lock().is_attached(link)
    }

    fn unmark_flushed(&self, link: u64, id: DatasetId) {
        let mut disk = self.disk.lock();
        if !self.is_attached(link) {
            return;
        }
        let was_marked = self.state.lock().table.datasets.get(&id).is_some_and(|dataset| dataset.flushed);
        let unmarked = disk.change(&self.state, |table| {
            if let Some(dataset) = table.datasets.get_mut(&id) {
                dataset.flushed = false;
            }
        });
        drop(disk);
        if was_marked {
            self.events.warning(Some(id), "is not on the PFS any more: its copy there is bad, or gone");
        }
        if let Err(error) = unmarked {
            self.events.error(Some(id), &format!("that it is not on the PFS cannot be recorded: {error}"));
        }
    }

    fn mark_failed(&self, id: DatasetId, reason: &str) {
        let marked = self.disk.lock().change(&self.state, |table| {
            if let Some(dataset) = table.datasets.get_mut(&id) {
                dataset.failed = Some(reason.to_owned());
            }
        });
        self.events.warning(Some(id), &format!("failed: {reason}"));
        if let Err(error) = marked {
            self.events.error(Some(id), &format!("that it has failed cannot be recorded: {error}"));
        }
    }
}

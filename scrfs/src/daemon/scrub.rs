//! Scrubs: the bytes of a dataset's members here are read and compared with their checksums, while
//! programs run. What is bad is told to the lead, which has it rebuilt.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::control::{Event, Flushable, Named, Reason};
use crate::dataset::{Entry, FileCopy};
use crate::ids::{DatasetId, Member};
use crate::path::RelPath;
use crate::status::Scrubbed;
use crate::store::beneath;
use crate::transfer::pfs::compare;
use crate::transfer::{Monitor, TransferError, copy};

use super::members::file_name;
use super::node::Node;
use super::state::{Dataset, Part};

/// A scrub in the background rests so many times as long as it has read.
const REST: u32 = 9;
/// But no longer at a time.
const REST_MAX: Duration = Duration::from_secs(1);

impl Node {
    /// Asks the lead to scrub a dataset that is complete here.
    pub(super) fn want_scrub(&self, name: &[u8], uid: u32) -> Flushable {
        let named = {
            let mut state = self.state.lock();
            let complete = |dataset: &&Dataset| {
                dataset.name == name && dataset.life.is_complete() && !dataset.life.is_hidden()
            };
            let Some(dataset) = state.present().filter(complete).max_by_key(|d| (d.epoch, d.id)) else {
                let known = state.by_name(name).is_some();
                return if known { Flushable::Unsealed } else { Flushable::Unknown };
            };
            let named = Named { id: dataset.id, name: dataset.name.clone() };
            if let Some(reason) = &dataset.failed {
                return Flushable::Failed(reason.clone());
            }
            if !state.served() {
                return Flushable::NoCoordinator(named);
            }
            state.wish(Event::ScrubWanted(named.id));
            named
        };
        self.events.info(Some(named.id), &format!("user {uid} asked for its scrub"));
        Flushable::Asked(named)
    }

    /// The command of a scrub has come: one that goes gently makes room for it.
    pub(super) fn scrub_begins(&self, round: u64) {
        self.comparisons.scrub_round.store(round, Ordering::SeqCst);
    }

    /// In the scrubs' lane, for the coordinator of `link`.
    pub(super) fn scrub(&self, link: u64, id: DatasetId, round: u64, gently: bool) {
        let scrub = Scrub { node: self, link, id, round, gently, monitor: Monitor::new(u64::MAX) };
        let bad = scrub.bad_members();
        let state = self.state.lock();
        // Rounds are numbered by each lead anew.
        if state.is_attached(link) {
            state.send(Event::Scrubbed { id, round, bad });
        }
    }

    /// How a scrub ended, on all nodes.
    pub(super) fn scrubbed(&self, id: DatasetId, report: Scrubbed) {
        let mut state = self.state.lock();
        state.wishes.scrubbed(id);
        if let Some(dataset) = state.table.datasets.get_mut(&id) {
            dataset.told.scrubbed = Some(report);
        }
    }

    /// Why a flush could not copy a file, if that is this cache's fault.
    pub(super) fn bad_file(
        &self,
        id: DatasetId,
        entry: &Entry,
        copy: &FileCopy,
        monitor: &Monitor,
    ) -> Option<Reason> {
        let link = self.state.lock().attached.as_ref()?.link.id();
        let monitor = monitor.clone();
        let scrub = Scrub { node: self, link, id, round: 0, gently: false, monitor };
        scrub.twice(|| scrub.sealed_file(entry, copy))
    }
}

/// Bytes of a dataset here, being read.
struct Scrub<'a> {
    node: &'a Node,
    /// Of the coordinator that wants it.
    link: u64,
    id: DatasetId,
    round: u64,
    gently: bool,
    monitor: Monitor,
}

impl Scrub<'_> {
    /// The members that the catalog has here, and that are not here as they were sealed.
    fn bad_members(&self) -> Vec<(Member, Reason)> {
        let Ok(dataset) = self.node.dataset(self.id) else { return Vec::new() };
        let Some(index) = dataset.life.catalog() else { return Vec::new() };
        let places = (0..).map(Member).zip(&index.catalog().layout.members);
        let own = places.filter(|(_, place)| place.host == self.node.config.host);
        let layout = &index.catalog().layout;
        let bad = |member: Member, files: u64| {
            let part = dataset.parts.get(&member).filter(|part| part.recorded);
            let has_any = files > 0 || layout.has_redundancy_file(member);
            match part {
                Some(part) => self.twice(|| self.member(&dataset, member, part)),
                None => has_any.then(|| Reason::from("it is not recorded here")),
            }
        };
        own.filter_map(|(member, place)| Some((member, bad(member, place.files)?))).collect()
    }

    /// What is found again when it is looked at once more: files may be on their way to another
    /// place. Nothing of a scrub that is over.
    fn twice(&self, look: impl Fn() -> Option<Reason>) -> Option<Reason> {
        look().filter(|_| !self.is_over())?;
        look().filter(|_| !self.is_over())
    }

    fn member(&self, dataset: &Dataset, member: Member, part: &Part) -> Option<Reason> {
        let files = part.files.iter().filter_map(|(entry, copy)| self.sealed_file(entry, copy));
        Reason::all(files.chain(self.redundancy(dataset, member, part)))
    }

    fn redundancy(&self, dataset: &Dataset, member: Member, part: &Part) -> Option<Reason> {
        let Some(file) = dataset.redundancy(part) else {
            let layout = dataset.life.catalog().map(|index| &index.catalog().layout);
            let lacks = layout.is_some_and(|layout| layout.has_redundancy_file(member));
            return lacks.then(|| Reason::from("its redundancy file is not here"));
        };
        let recorded = FileCopy { size: file.size, crc: file.crc, member, program_rank: None };
        let read = || {
            let name = file_name(self.id, &file.name)?;
            let own = self.node.cache.own(self.id)?;
            let open = beneath::open_file(own.as_fd(), &name);
            self.file(open.map_err(TransferError::io(&name, "open"))?, &name, &recorded)?;
            Ok::<_, Reason>(())
        };
        read().err()
    }

    fn sealed_file(&self, entry: &Entry, copy: &FileCopy) -> Option<Reason> {
        self.node.copy_out(self.id, &entry.path, |local| self.file(local, &entry.path, copy)).err()
    }

    fn file(&self, file: OwnedFd, path: &RelPath, recorded: &FileCopy) -> Result<(), TransferError> {
        let mut paced = Paced { file: file.into(), scrub: self };
        let seen = copy::copy(&mut paced, recorded.size, "verify.block", &self.monitor, None)
            .map_err(TransferError::io(path, "read"))?;
        compare(path, seen, recorded)
    }

    /// Another scrub has begun since, the coordinator or the dataset is gone, or the daemon ends.
    fn is_over(&self) -> bool {
        let state = self.node.state.lock();
        let is_attached = state.is_attached(self.link);
        let is_there = state.table.datasets.get(&self.id).is_some_and(|dataset| !dataset.life.is_leaving());
        let is_replaced =
            self.gently && self.node.comparisons.scrub_round.load(Ordering::SeqCst) != self.round;
        self.monitor.is_cancelled() || state.stopping || !is_attached || !is_there || is_replaced
    }
}

/// A file that is read with rests, while it is wanted.
struct Paced<'a> {
    file: File,
    scrub: &'a Scrub<'a>,
}

impl Read for Paced<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.scrub.is_over() {
            return Err(io::Error::other("it is not wanted any more"));
        }
        let begun = Instant::now();
        let count = self.file.read(buffer)?;
        if self.scrub.gently {
            std::thread::sleep((begun.elapsed() * REST).min(REST_MAX));
        }
        Ok(count)
    }
}

//! Scrubs: the bytes of a dataset's members here are read and compared with their checksums, while
//! programs run. What is bad is told to the lead, which has it rebuilt.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::control::{Event, Flushable, Named, Reason};
use crate::dataset::FileCopy;
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
            let state = self.state.lock();
            let complete = |dataset: &&Dataset| dataset.name == name && dataset.life.is_complete();
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
            state.send_request(Event::ScrubWanted(named.id));
            named
        };
        self.events.info(Some(named.id), &format!("user {uid} asked for its scrub"));
        Flushable::Asked(named)
    }

    /// The command of a scrub has come: one that goes gently makes room for it.
    pub(super) fn scrub_begins(&self, round: u64) {
        self.scrub_round.store(round, Ordering::SeqCst);
    }

    /// In the scrubs' lane.
    pub(super) fn scrub(&self, id: DatasetId, round: u64, gently: bool) {
        let bad = self.bad_members(id, round, gently);
        self.state.lock().send(Event::Scrubbed { id, round, bad });
    }

    /// How a scrub ended, on all nodes.
    pub(super) fn scrubbed(&self, id: DatasetId, report: Scrubbed) {
        if let Some(dataset) = self.state.lock().table.datasets.get_mut(&id) {
            dataset.scrubbed = Some(report);
        }
    }

    fn bad_members(&self, id: DatasetId, round: u64, gently: bool) -> Vec<(Member, Reason)> {
        let Ok(dataset) = self.dataset(id) else { return Vec::new() };
        let Some(index) = dataset.life.catalog() else { return Vec::new() };
        let places = &index.catalog().layout.members;
        let is_at_home = |member: Member| {
            places.get(member.0 as usize).is_some_and(|place| place.host == self.config.host)
        };
        let own = dataset.parts.iter().filter(|(member, part)| part.recorded && is_at_home(**member));
        let mut bad = Vec::new();
        for (member, part) in own {
            let monitor = Monitor::new(part.bytes());
            match self.state.lock().attached.as_mut() {
                Some(attached) => attached.transfers.push(monitor.clone()),
                None => return Vec::new(),
            }
            let scrub = Scrub { node: self, id, round, gently, monitor };
            bad.extend(scrub.member(&dataset, *member, part).map(|reason| (*member, reason)));
        }
        bad
    }

    /// The files of a member here whose bytes are not those that were sealed; `None` when there are
    /// none. For a flush that failed.
    pub(super) fn is_bad(&self, id: DatasetId, member: Member, monitor: &Monitor) -> Option<Reason> {
        let dataset = self.dataset(id).ok()?;
        let part = dataset.parts.get(&member)?;
        let round = self.scrub_round.load(Ordering::SeqCst);
        let scrub = Scrub { node: self, id, round, gently: false, monitor: monitor.clone() };
        scrub.files(part)
    }
}

/// One member's bytes, being read.
struct Scrub<'a> {
    node: &'a Node,
    id: DatasetId,
    round: u64,
    gently: bool,
    monitor: Monitor,
}

impl Scrub<'_> {
    /// What is wrong with a member; `None` when nothing is, or when that cannot be told any more.
    fn member(&self, dataset: &Dataset, member: Member, part: &Part) -> Option<Reason> {
        let redundancy = || {
            let Some(file) = dataset.redundancy(part) else {
                let layout = dataset.life.catalog().map(|index| &index.catalog().layout);
                let lacks = layout.is_some_and(|layout| layout.has_redundancy_file(member));
                return lacks.then(|| Reason::from("its redundancy file is not here"));
            };
            let name = file_name(self.id, &file.name).ok()?;
            let own = self.node.cache.own(self.id).ok()?;
            let recorded = FileCopy { size: file.size, crc: file.crc, member, program_rank: None };
            let result = beneath::open_file(own.as_fd(), &name)
                .map_err(TransferError::io(&name, "open"))
                .and_then(|file| self.file(file, &name, &recorded));
            result.err().filter(is_wrong).map(Reason::from)
        };
        let reason = Reason::all(self.files(part).into_iter().chain(redundancy()))?;
        // What was removed meanwhile is not bad.
        let still = self.node.dataset(self.id).ok().and_then(|now| now.parts.get(&member).cloned());
        (still.is_some_and(|now| now.files == part.files && now.redundancy == part.redundancy)
            && !self.is_over())
        .then_some(reason)
    }

    fn files(&self, part: &Part) -> Option<Reason> {
        let wrong = |(entry, recorded): &(crate::dataset::Entry, FileCopy)| {
            let is_wrong_here = Cell::new(false);
            let result = self.node.copy_out(self.id, &entry.path, |local| {
                let result = self.file(local, &entry.path, recorded);
                is_wrong_here.set(result.as_ref().is_err_and(is_wrong));
                result
            });
            result.err().filter(|reason| is_wrong_here.get() || reason.is_missing())
        };
        Reason::all(part.files.iter().filter_map(wrong))
    }

    fn file(&self, file: OwnedFd, path: &RelPath, recorded: &FileCopy) -> Result<(), TransferError> {
        let mut paced = Paced { file: file.into(), scrub: self };
        let seen = copy::copy(&mut paced, recorded.size, "verify.block", &self.monitor, None)
            .map_err(TransferError::io(path, "read"))?;
        compare(path, seen, recorded)
    }

    /// Another scrub has begun since, or the coordinator is gone.
    fn is_over(&self) -> bool {
        self.monitor.is_cancelled()
            || (self.gently && self.node.scrub_round.load(Ordering::SeqCst) != self.round)
    }
}

/// Its bytes were read and are others, or are not there.
fn is_wrong(error: &TransferError) -> bool {
    match error {
        TransferError::Mismatch { .. } => true,
        TransferError::Io { source, .. } => {
            matches!(source.raw_os_error(), Some(libc::ENOENT | libc::EIO))
        }
        TransferError::Cancelled | TransferError::Identity { .. } => false,
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
            return Err(io::Error::other("another scrub has begun"));
        }
        let begun = Instant::now();
        let count = self.file.read(buffer)?;
        if self.scrub.gently {
            std::thread::sleep((begun.elapsed() * REST).min(REST_MAX));
        }
        Ok(count)
    }
}

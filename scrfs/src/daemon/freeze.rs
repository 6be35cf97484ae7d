//! Freezing: from the lead's order to the record of this node's part.
//!
//! It is ordered in the records' thread. A thread of its own waits until nobody can write, no
//! longer than the job's seal time-out. The part is recorded before the lead hears of it, so that a
//! restarted worker freezes the dataset again. What [`super::core::seals`] decides is carried out
//! here.
//!
//! Fault points: `seal.begun`, `seal.quiet`, `seal.frozen`.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::control::{Event, FrozenPart, Reason};
use crate::dataset::lifecycle::Files;
use crate::dataset::{EntryKind, FileCopy};
use crate::faults;
use crate::ids::{DatasetId, Member};
use crate::lock::{Condvar, Mutex};
use crate::path::RelPath;
use crate::record::catalog_file;
use crate::store::beneath;
use crate::transfer::Monitor;

use super::core::seals::{Ending, Refusal, Seals};
use super::links::{Link, Linked};
use super::listing::{Lost, entry_of, walk};
use super::logs::Logs;
use super::node::Node;
use super::priority::seal_waited_for;
use super::quiet::Bell;
use super::remedies;
use super::state::{Dataset, Origin, Part, State};

/// The name of the threads that freeze, one for each seal.
const FREEZES: &str = "scrfs-freeze";
/// How long a given up seal may take to thaw.
const THAW_MAX: Duration = Duration::from_secs(5);

/// What the lead orders.
pub(super) struct Order {
    pub(super) id: DatasetId,
    pub(super) name: Vec<u8>,
    pub(super) member: Member,
    /// The complete generation over which the dataset is sealed.
    pub(super) base: Option<DatasetId>,
}

impl Order {
    fn shown_name(&self) -> String {
        String::from_utf8_lossy(&self.name).into_owned()
    }
}

/// Through these a freezing thread hears that its seal was given up.
#[derive(Clone, Default)]
pub(super) struct Signals {
    pub(super) cancelled: Monitor,
    /// Wakes it, also when a writer is gone.
    pub(super) bell: Arc<Bell>,
}

/// The threads that freeze.
#[derive(Default)]
pub(super) struct Freezes {
    signals: Mutex<BTreeMap<DatasetId, Signals>>,
    /// One has ended. Waited for with the state's lock.
    ended: Condvar,
}

impl Freezes {
    fn begin(&self, id: DatasetId) -> Signals {
        let signals = Signals::default();
        self.signals.lock().insert(id, signals.clone());
        signals
    }

    /// Ends the threads whose seals were given up.
    pub(super) fn end_given_up(&self, seals: &Seals) {
        let given_up: Vec<Signals> = {
            let signals = self.signals.lock();
            signals.iter().filter(|(id, _)| seals.is_given_up(**id)).map(|(_, one)| one.clone()).collect()
        };
        for signals in given_up {
            signals.cancelled.cancel();
            signals.bell.ring();
        }
    }

    /// A thread ends, or could not begin.
    fn end(&self, id: DatasetId) {
        self.signals.lock().remove(&id);
        self.ended.notify_all();
    }
}

impl Node {
    /// Starts freezing. In the records' thread.
    pub(super) fn freeze(&self, link: u64, order: Order) {
        let id = order.id;
        let (ordered, waited) = {
            let mut state = self.state.lock();
            // Whoever takes the coordinator away gives up the seals that were ordered by then.
            if !state.is_attached(link) {
                return;
            }
            (state.seals.ordered(id, &order.name), seal_waited_for(&state, Some(id)))
        };
        // What was preferred for the order may have been given back while this waited for the
        // records' thread.
        if waited {
            self.hurry();
        }
        let signals = match ordered.map_err(Reason::from).and_then(|()| self.begin_freeze(&order)) {
            Ok(signals) => signals,
            Err(reason) => {
                self.tell_not_frozen(&order, &reason);
                let mut state = self.state.lock();
                if state.seals.refused(id) {
                    state.send(Event::Frozen { id, result: Err(reason) });
                }
                return;
            }
        };
        let me = self.me.clone();
        let spawned = self.config.hands.begin(FREEZES, move || {
            if let Some(node) = me.upgrade() {
                node.freeze_and_tell(&order, &signals);
            }
        });
        if let Err(error) = spawned {
            self.end_freeze(id, Err(format!("no thread: {error}").into()));
        }
    }

    fn begin_freeze(&self, order: &Order) -> Result<Signals, Reason> {
        let Order { id, ref name, base, .. } = *order;
        catalog_file::validate_name(name)?;
        self.config.hands.finish(FREEZES);
        {
            let mut state = self.state.lock();
            let until = Instant::now() + THAW_MAX;
            let thawing = |state: &mut State| state.seals.is_thawing(name);
            self.freezes.ended.wait_while_until(&mut state, thawing, until);
            let here = state.by_name(name).map(Dataset::on_record);
            let is_recorded = state.table.datasets.contains_key(&id);
            state.seals.may_begin(id, base, here, is_recorded)?;
        }
        faults::hit("seal.begun")?;
        self.disk.lock().change(&self.state, |table| table.highest_id = table.highest_id.max(id.0))?;
        let mut state = self.state.lock();
        state.seals.begins(id)?;
        Ok(self.freezes.begin(id))
    }

    /// Freezes the dataset and answers the lead. The whole of a freezing thread.
    fn freeze_and_tell(&self, order: &Order, signals: &Signals) {
        let (id, name) = (order.id, order.name.as_slice());
        self.tree.freeze(name);
        let mut result = self.freeze_quiet(order, signals);
        let (came_to_nothing, stays_frozen) = {
            let state = self.state.lock();
            let came_to_nothing = state.seals.came_to_nothing(id, state.table.datasets.contains_key(&id));
            (came_to_nothing, state.table.owed.keeps(name, Ending::NotFrozen))
        };
        if came_to_nothing {
            result = Err(Refusal::GivenUp.into());
        }
        match &result {
            Ok(part) => {
                let bytes: u64 = part.files.iter().map(|file| file.size).sum();
                let (files, carried) = (part.files.len(), part.carried.len());
                let (shown, member) = (order.shown_name(), order.member);
                let text = format!(
                    "{shown}: frozen as member {member}, {files} files, {bytes} bytes, and {carried} carried on"
                );
                self.events.info(Some(id), &text);
            }
            Err(reason) => {
                if !stays_frozen {
                    self.tree.thaw(name);
                }
                self.drop_copies(id);
                self.tell_not_frozen(order, reason);
            }
        }
        self.end_freeze(id, result);
    }

    fn tell_not_frozen(&self, order: &Order, reason: &Reason) {
        let (shown, remedy) = (order.shown_name(), remedies::of_cache(reason, &self.config.host));
        self.events.error(Some(order.id), &format!("{shown}: cannot be frozen: {reason}{remedy}"));
    }

    /// The freezing thread has nothing left to do, or could not begin.
    fn end_freeze(&self, id: DatasetId, result: Result<FrozenPart, Reason>) {
        let mut state = self.state.lock();
        if state.seals.ended(id, result.is_ok()) {
            state.send(Event::Frozen { id, result });
        }
        self.freezes.end(id);
    }

    /// Waits until the frozen dataset is quiet, then records this node's part. In the freezing
    /// thread.
    fn freeze_quiet(&self, order: &Order, signals: &Signals) -> Result<FrozenPart, Reason> {
        let Order { id, ref name, base, .. } = *order;
        let cancelled = &signals.cancelled;
        if self.tree.is_invalid(name) {
            return Err(".invalid is in it".into());
        }
        let logs = self.wait_quiet(name, signals)?;
        faults::hit("seal.quiet")?;
        if let Some(base) = base {
            // Its sealed files leave the tree also where nothing was changed: the tree is the new
            // generation's.
            self.open_generation(base, self.presentations())?;
        }
        self.cache.settle(id, name, &[])?;
        let logs = self.copy_logs(id, name, &logs, cancelled)?;
        let mut frozen = self.tree.files(name)?;
        for file in &mut frozen {
            if let Some(log) = logs.get(&file.path) {
                file.size = log.size;
            }
        }
        let limit = self.state.lock().settings.as_ref().map_or(u64::MAX, |settings| settings.list_max);
        if frozen.len() as u64 > limit {
            return Err(format!("{} files, more than SCRFS_LIST_MAX ({limit})", frozen.len()).into());
        }
        let base = base.map(|base| self.dataset(base)).transpose()?;
        let told = match &base {
            Some(base) => self.part_over(base, frozen)?.0,
            None => FrozenPart { files: frozen, ..FrozenPart::default() },
        };
        let told = FrozenPart { begun_us: self.begun_at(name), ..told };
        let (part, links) = self.describe(order, &told, base.as_ref(), &logs)?;
        let bytes = part.files.iter().map(|(_, copy)| copy.size).sum();
        self.copy_links(id, name, (links, bytes), cancelled)?;
        self.record_frozen(order, part)?;
        faults::hit("seal.frozen")?;
        Ok(told)
    }

    /// The member's files with their attributes and ranks, and the links and directories beside
    /// them; also the names that are to be files of their own.
    fn describe(
        &self,
        order: &Order,
        told: &FrozenPart,
        base: Option<&Dataset>,
        logs: &Logs,
    ) -> Result<(Part, Vec<Link>), Reason> {
        let Order { id, ref name, member, .. } = *order;
        let top = self.tree.backing_directory(name)?;
        let at = |path: &RelPath, error: io::Error| format!("{path}: {error}");
        let name = RelPath::new(name.as_slice())?;
        let mut files = Vec::with_capacity(told.files.len() + told.carried.len());
        let carried: BTreeSet<RelPath> = told.carried.iter().map(|file| file.path.clone()).collect();
        let mut linked = Linked::default();
        for file in told.carried.iter().chain(&told.files) {
            let log = logs.get(&file.path);
            let stat = match log {
                Some(log) => log.stat,
                None => beneath::open_file(top.as_fd(), &file.path)
                    .and_then(|fd| Ok(rustix::fs::fstat(&fd)?))
                    .map_err(|e| at(&file.path, e))?,
            };
            if stat.st_size.cast_unsigned() != file.size {
                return Err(format!("{}: changed its size while frozen", file.path).into());
            }
            if let Some(why) = self.cache.lost_writes.why_not(&stat) {
                return Err(format!("{}: {why}", file.path).into());
            }
            if log.is_none() {
                linked.add(&file.path, &stat, carried.contains(&file.path));
            }
            let rank = name.concat(&file.path).ok().and_then(|path| self.journal.lock().rank_of(&path));
            let crc = log.map_or(0, |log| log.crc);
            let mut copy = FileCopy { size: file.size, crc, member, program_rank: rank };
            let sealed = base.filter(|_| carried.contains(&file.path));
            if let Some((_, sealed)) = sealed.and_then(|base| base.file(&file.path)) {
                (copy.crc, copy.program_rank) = (sealed.crc, sealed.program_rank);
            }
            files.push((entry_of(file.path.clone(), EntryKind::File(copy.clone()), &stat), copy));
        }
        let (mut others, mut lost) = (Vec::new(), Lost::default());
        walk(top.as_fd(), &RelPath::root(), &mut others, &mut lost)
            .map_err(|error| Reason::from(error).on("cannot be listed"))?;
        if let Some(text) = lost.told(&name) {
            self.events.warning(Some(id), &text);
        }
        let mut part = Part::new(Origin::Here, files, others);
        part.carried = Arc::new(carried);
        Ok((part, self.links_of(name.as_bytes(), linked)?))
    }

    fn record_frozen(&self, order: &Order, part: Part) -> Result<(), Reason> {
        let Order { id, ref name, member, .. } = *order;
        let part = Arc::new(part);
        let mut disk = self.disk.lock();
        // The lead's Drop takes this lock between giving up the seal and looking at the table.
        let epoch = {
            let state = self.state.lock();
            if state.seals.is_given_up(id) {
                return Err(Refusal::GivenUp.into());
            }
            state.table.epoch
        };
        let recorded = disk.change(&self.state, |table| {
            let mut dataset = Dataset::new(id, epoch, name.clone(), Files::InTree);
            dataset.parts.insert(member, Arc::clone(&part));
            table.datasets.insert(id, dataset);
            // When all nodes are frozen, markers may be answered: from here on it stays as it is
            // until the outcome.
            table.owed.frozen(name, id);
        });
        recorded.map_err(Reason::from)
    }
}

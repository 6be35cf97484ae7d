//! Removing a dataset from this node: first it is marked as going, on storage, so that a restarted
//! worker finishes the removal; then its bytes go, and its records last. This is done in the
//! evictions' thread (`scrfs-evict`). A dataset whose directory a program removes is marked, and
//! leaves the tree, in the thread of the operation before that (`scrfs-control` or `scrfs-local`);
//! what a restart finds half-removed leaves the tree in the records' thread.
//!
//! Fault points: `evict.begun`, `evict.removed`.

use std::io;

use crate::control::{Event, Reason};
use crate::dataset::lifecycle::Step;
use crate::faults;
use crate::ids::DatasetId;
use crate::path::RelPath;

use super::node::Node;
use super::requests::with_link;
use super::room::Moment;
use super::state::{Dataset, Table};

impl Node {
    /// The lead's eviction.
    pub(super) fn evict(&self, link: u64, id: DatasetId) {
        {
            let state = &mut *self.state.lock();
            state.losses.leaves(id, &state.table);
        }
        let me = self.me.clone();
        self.lanes.evictions.run(move || {
            with_link(&me, link, |node| {
                if node.remove_from_node(id) {
                    node.events.info(Some(id), "evicted from this node");
                }
                // Also when bytes of it are left: it is spoken of no more, and its removal goes on
                // at the next start.
                node.send_to(link, Event::Evicted(id));
                node.look_at_room(Moment::Gone);
            });
        });
    }

    /// A program removed the dataset's directory; the tree has forgotten it already. Former
    /// generations, which are here as long as they are flushed, go too: one record takes all, so
    /// none is left to be presented. The lead hears of it before the round's end.
    pub(super) fn remove_dataset(&self, id: DatasetId) {
        let (name, epoch, is_overwritten, is_everywhere, going) = {
            let state = self.state.lock();
            let is_everywhere = state.attached.is_some();
            let Some(dataset) = state.table.datasets.get(&id) else { return };
            let hidden = |other: &&Dataset| other.life.is_hidden() && other.name == dataset.name;
            let mut going: Vec<DatasetId> = state.present().filter(hidden).map(|other| other.id).collect();
            going.push(id);
            (dataset.name.clone(), dataset.epoch, dataset.life.is_overwritten(), is_everywhere, going)
        };
        let leave = |table: &mut Table, step: &Step| going.iter().for_each(|id| drop(table.step(*id, step)));
        let recorded = self.disk.lock().change(&self.state, |table| {
            // What is removed on this node alone the next start presents again.
            if is_everywhere {
                table.removed.add(&name, (epoch, id), table.served);
            }
            leave(table, &Step::Leaves);
        });
        if let Err(error) = recorded {
            leave(&mut self.state.lock().table, &Step::Leaves);
            self.events.error(Some(id), &format!("that it was removed cannot be recorded: {error}"));
        }
        // At once: the program may make a directory of that name again.
        if is_overwritten {
            // The tree has let its next generation go, and the sealed one is aside.
        } else if let Err(error) = self.cache.put_aside(id, &name) {
            self.events.error(Some(id), &format!("its bytes cannot be put aside for removal: {error}"));
        }
        {
            let state = &mut *self.state.lock();
            if let Some(dataset) = state.table.datasets.get(&id) {
                state.losses.stays_on_pfs(dataset);
            }
            leave(&mut state.table, &Step::Removed);
            for id in &going {
                state.send(Event::Removed(*id));
            }
        }
        let me = self.me.clone();
        self.lanes.evictions.run(move || {
            let Some(node) = me.upgrade() else { return };
            for id in going {
                if node.remove_from_node(id) {
                    node.events.info(Some(id), "removed by a program");
                }
            }
        });
    }

    /// Goes on with a removal that a former worker began.
    pub(super) fn evict_in_background(&self, id: DatasetId) {
        let me = self.me.clone();
        self.lanes.evictions.run(move || {
            if let Some(node) = me.upgrade() {
                node.remove_from_node(id);
            }
        });
    }

    fn remove_from_node(&self, id: DatasetId) -> bool {
        match self.try_remove(id) {
            Ok(()) => true,
            Err(reason) => {
                self.events.error(Some(id), &format!("cannot be removed from this node: {reason}"));
                false
            }
        }
    }

    fn try_remove(&self, id: DatasetId) -> Result<(), Reason> {
        let Some(dataset) = self.state.lock().table.datasets.get(&id).cloned() else { return Ok(()) };
        self.disk.lock().step(&self.state, id, &Step::Leaves)?;
        if let Some((_, monitor)) = &dataset.transfer {
            monitor.cancel();
        }
        faults::hit("evict.begun")?;
        self.take_out_of_sight(&dataset)?;
        self.forget_generation(id);
        self.recycle(&dataset);
        self.cache.remove_own(id)?;
        faults::hit("evict.removed")?;
        let mut disk = self.disk.lock();
        disk.remove_complete(id)?;
        disk.change(&self.state, |table| drop(table.datasets.remove(&id))).map_err(Reason::from)
    }

    /// What a removal that failed has left in programs' sight goes out of that now, and its bytes
    /// by and by: a restart presents nothing of it.
    pub(super) fn hide_leaving(&self) -> Result<(), Reason> {
        let is_seen = |dataset: &&Dataset| {
            dataset.life.is_leaving() && (dataset.life.is_listed() || dataset.life.has_name())
        };
        let seen: Vec<Dataset> = self.state.lock().table.datasets.values().filter(is_seen).cloned().collect();
        for dataset in seen {
            self.take_out_of_sight(&dataset)?;
            self.evict_in_background(dataset.id);
        }
        Ok(())
    }

    /// Takes the dataset out of the tree; to be called before a program can make a directory of
    /// that name.
    fn take_out_of_sight(&self, dataset: &Dataset) -> Result<(), Reason> {
        let id = dataset.id;
        if dataset.life.is_overwritten() && dataset.life.is_listed() && self.owns_name(id, &dataset.name) {
            // Without what it was built on its next generation is nothing.
            self.cache.put_away(id, &dataset.name)?;
            self.forget_changes(&dataset.name)?;
        }
        if dataset.life.is_in_tree() && self.owns_name(id, &dataset.name) {
            self.cache.put_aside(id, &dataset.name)?;
            // Else names that were removed from it would pass for a dataset that has begun.
            self.forget_changes(&dataset.name)?;
        }
        if dataset.life.is_listed() {
            self.tree.unlisted(id);
        } else if dataset.life.is_in_tree() {
            self.tree.thaw(&dataset.name);
        }
        // In memory only: that the dataset leaves is recorded already.
        let _ = self.state.lock().table.step(id, &Step::Removed);
        Ok(())
    }

    fn forget_changes(&self, name: &[u8]) -> io::Result<()> {
        let top = RelPath::new(name).ok();
        top.map_or(Ok(()), |top| self.journal.lock().forget(&top))
    }

    /// No other dataset, and no program's new directory, has the name in the tree by now.
    fn owns_name(&self, id: DatasetId, name: &[u8]) -> bool {
        let state = self.state.lock();
        let other =
            state.present().any(|other| other.id != id && other.life.is_in_tree() && other.name == name);
        !other && !state.seals.is_freezing(name)
    }
}

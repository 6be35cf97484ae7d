//! A lazy restart: datasets are presented before each member is on its node. Its set gives it back.

use std::collections::BTreeSet;

use scrfs::control::Start;
use scrfs::dataset::{Catalog, EntryKind, FileCopy};
use scrfs::ids::{DatasetId, Member};

use super::World;
use crate::daemon::Daemon;
use crate::observer::{self, Key};

impl World {
    /// The nodes as a restart takes them: a lazy one reads nothing before it presents a dataset.
    pub(super) fn as_told(&self) -> Vec<Daemon> {
        let mut nodes = self.nodes.clone();
        if self.settings.restart.lazy {
            let datasets = nodes.iter_mut().flat_map(|node| node.datasets.values_mut());
            datasets.flat_map(|dataset| dataset.members.values_mut()).for_each(|data| data.bad = false);
        }
        nodes
    }

    /// Of a dataset that was sealed before, this file may be on no node when it is committed: its
    /// member is rebuilt behind the programs.
    pub(super) fn may_be_absent(&self, catalog: &Catalog, copy: &FileCopy) -> bool {
        let restart = &self.settings.restart;
        let (whole, readable) = observer::in_places(&self.as_told(), catalog);
        let key = (catalog.epoch, catalog.id);
        self.start == Start::Restart
            && self.truth.contains_key(&key)
            && !readable.contains(&copy.member)
            && (restart.lazy_fetch && self.is_fetched(key)
                || restart.lazy && observer::has_source(catalog, (&whole, &readable), copy.member))
    }

    /// A restart would fetch it.
    pub(super) fn is_fetched(&self, key: Key) -> bool {
        self.settings.fetch && self.prefix.datasets.contains_key(&key)
    }

    pub(super) fn marked_absent(&mut self, id: DatasetId, members: &[Member]) {
        self.counts.absent += u64::from(!members.is_empty());
        self.absent.insert(id, members.iter().copied().collect());
    }

    pub(super) fn absent(&self, id: DatasetId) -> BTreeSet<Member> {
        self.absent.get(&id).cloned().unwrap_or_default()
    }

    /// All is at rest, and nothing has failed: what can be given back is on its node.
    pub(super) fn check_restored(&self) {
        let listed = self.nodes[0].datasets.iter().filter(|(_, dataset)| dataset.listed && !dataset.failed);
        for (&id, dataset) in listed.filter(|_| self.calm) {
            let Some(catalog) = &dataset.catalog else { continue };
            let (whole, readable) = observer::in_places(&self.nodes, catalog);
            for member in self.absent(id) {
                let has_files = catalog
                    .entries
                    .iter()
                    .any(|entry| matches!(&entry.kind, EntryKind::File(copy) if copy.member == member));
                let can = has_files && observer::rebuildable(catalog, &whole, member)
                    || self.settings.fetch && observer::in_prefix(&self.prefix, (catalog.epoch, id));
                assert!(readable.contains(&member) || !can, "member {member} of {id} is not restored");
            }
        }
    }
}

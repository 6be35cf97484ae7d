//! What nodes have saved in the model prefix when their job ended without coordinators.

use std::collections::{BTreeMap, BTreeSet};

use scrfs::control::HeldState;
use scrfs::control::loose::Age;
use scrfs::dataset::{Catalog, EntryKind};
use scrfs::ids::{DatasetId, Member};

use crate::daemon::{Daemon, MemberData, crc_of, size_of};
use crate::observer::{self, Key, Truth};
use crate::prefix::{Prefix, Stored};

/// The parts of one dataset.
#[derive(Debug, Clone, Default)]
pub(crate) struct Saved {
    /// The highest revision's.
    catalog: Option<Catalog>,
    members: BTreeMap<Member, MemberData>,
}

impl Saved {
    /// Files that are not those of the catalog do not count.
    fn has_files(catalog: &Catalog, member: Member, data: &MemberData) -> bool {
        let files: Vec<_> = catalog.files_of(member).collect();
        let is_there = |entry: &&scrfs::dataset::Entry| {
            let EntryKind::File(copy) = &entry.kind else { return false };
            let content = data.files.get(&entry.path);
            content.is_some_and(|content| (size_of(*content), crc_of(*content)) == (copy.size, copy.crc))
        };
        files.iter().map(|(entry, _)| entry).all(is_there)
    }

    /// Members that are neither here nor can be given back; `None` if that is not known.
    fn missing(&self) -> Option<BTreeSet<Member>> {
        let catalog = self.catalog.as_ref()?;
        let there = self.members.iter().filter(|(member, data)| Self::has_files(catalog, **member, data));
        let readable: BTreeSet<Member> = there.clone().map(|(member, _)| *member).collect();
        let whole = there.filter(|(member, data)| data.guards(&catalog.layout, **member));
        let whole: BTreeSet<Member> = whole.map(|(member, _)| *member).collect();
        let all = (0..).map(Member).zip(&catalog.layout.members).map(|(member, _)| member);
        Some(all.filter(|member| !observer::has_source(catalog, (&whole, &readable), *member)).collect())
    }

    fn is_whole(&self) -> bool {
        self.missing().is_some_and(|missing| missing.is_empty())
    }

    fn take(&mut self, node: &Daemon, key: Key) -> Result<(), String> {
        let dataset = node.datasets.get(&key.1).filter(|dataset| dataset.epoch == key.0);
        let dataset = dataset.filter(|dataset| dataset.state != HeldState::Frozen).ok_or("not here")?;
        let revision = |catalog: &Option<Catalog>| catalog.as_ref().map(|catalog| catalog.revision);
        if dataset.state == HeldState::Complete && revision(&dataset.catalog) > revision(&self.catalog) {
            self.catalog.clone_from(&dataset.catalog);
        }
        for (member, data) in dataset.members.iter().filter(|(_, data)| !data.bad) {
            let saved = self.members.entry(*member).or_default();
            saved.files.clone_from(&data.files);
            saved.encodings.extend(&data.encodings);
        }
        if dataset.members.values().any(|data| data.bad) { Err("bad CRC".to_owned()) } else { Ok(()) }
    }
}

impl Prefix {
    pub(crate) fn has_newer(&self, key: Key) -> bool {
        self.datasets.iter().any(|(other, stored)| *other > key && !stored.failed)
    }

    /// A node saves its part.
    pub(crate) fn save(&mut self, node: &Daemon, key: Key) -> Result<(), String> {
        let is_stored = self.datasets.get(&key).is_some_and(|stored| !stored.failed);
        if is_stored || self.has_newer(key) {
            return Ok(());
        }
        self.saved.entry(key).or_default().take(node, key)
    }

    /// Publishes what is whole; what is not, newest first.
    pub(crate) fn adopt(&mut self, truth: &Truth) -> Vec<Age> {
        let mut partial = Vec::new();
        for (key, saved) in std::mem::take(&mut self.saved).into_iter().rev() {
            let is_stored = self.datasets.get(&key).is_some_and(|stored| !stored.failed);
            let is_whole = saved.is_whole();
            if is_stored || (self.has_newer(key) && !is_whole) {
                continue;
            }
            let of_name = |stored: &Stored| {
                let name = saved.catalog.as_ref().map(|catalog| &catalog.name);
                name == Some(&stored.catalog.name)
            };
            let replaces =
                |(other, stored): (&Key, &Stored)| *other > key && !stored.failed && of_name(stored);
            if self.datasets.iter().any(replaces) {
                continue;
            }
            if !is_whole {
                partial.push(Age { epoch: key.0, id: key.1 });
                self.saved.insert(key, saved);
                continue;
            }
            self.datasets.retain(|_, stored| !of_name(stored));
            let catalog = saved.catalog.expect("whole means that it is known");
            let stored =
                Stored { catalog, files: truth[&key].clone(), failed: false, bad: false, unreadable: false };
            self.datasets.insert(key, stored);
            self.adopted += 1;
        }
        partial
    }

    /// What the nodes have and what others have saved is the whole of it.
    pub(crate) fn can_join(&self, nodes: &[Daemon], key: Key) -> bool {
        let Some(saved) = self.saved.get(&key) else { return false };
        let mut joined = saved.clone();
        for node in nodes {
            // Who has bad bytes saves the others.
            let _ = joined.take(node, key);
        }
        joined.is_whole()
    }
}

impl Daemon {
    /// What is to be saved: the newest that is presented, and newer ones that another node may
    /// have, or that the last restart could not present.
    pub(crate) fn unsaved(&self) -> Vec<Key> {
        let complete = || self.datasets.iter().filter(|(_, d)| d.state == HeldState::Complete && !d.failed);
        let key = |(id, dataset): (&DatasetId, &crate::daemon::Dataset)| (dataset.epoch, *id);
        let newest = complete().filter(|(_, d)| d.listed).map(key).max();
        let hidden = complete().filter(|(_, d)| !d.listed && !d.flushed).map(key).max();
        let recorded = self.datasets.iter().filter(|(_, d)| d.state == HeldState::Recorded).map(key);
        let newer = hidden.into_iter().chain(recorded).filter(|key| Some(*key) > newest);
        newest.filter(|(_, id)| !self.datasets[id].flushed).into_iter().chain(newer).collect()
    }
}

//! Members on their way: frozen, finished, committed, fetched, copied to the prefix, presented.

use std::collections::{BTreeMap, BTreeSet};

use scrfs::control::{
    DirHeld, Event, FetchFailure, FrozenFile, FrozenPart, HeldDataset, HeldState, Inventory, MemberPart,
    Reason, Removed, VerifiedMember, sum_of_paths,
};
use scrfs::dataset::{Catalog, Entry, EntryKind, FileCopy};
use scrfs::ids::{DatasetId, Member};
use scrfs::path::RelPath;

use super::{Daemon, Dataset, MemberData, Next, Trouble, crc_of, entry, listing, root, size_of, top_of};
use crate::observer::Key;
use crate::prefix::Prefix;
use crate::rng::Rng;

impl Daemon {
    /// It records COMPLETE, or fails to.
    pub(super) fn committed(&mut self, catalog: &Catalog, trouble_now: &mut impl FnMut() -> bool) -> Event {
        let is_hindered = trouble_now();
        // Also after COMPLETE.
        let decided = !is_hindered || trouble_now();
        if decided {
            self.commit(catalog);
        }
        let result = if is_hindered { Err(Reason::from("injected")) } else { Ok(()) };
        Event::Committed { id: catalog.id, result, decided }
    }

    /// The files of an unsealed dataset, relative to it.
    pub(super) fn files_in(&self, name: &[u8]) -> BTreeMap<RelPath, u64> {
        let top = RelPath::new(name).expect("a name");
        let inner = self.files.iter().filter_map(|(path, content)| Some((path.strip(&top)?, *content)));
        inner.collect()
    }

    /// What this node has of a dataset that is frozen, and all the files of its part.
    pub(super) fn part(&self, name: &[u8], base: Option<DatasetId>) -> (FrozenPart, BTreeMap<RelPath, u64>) {
        let Some(base) = base else {
            let files = self.files_in(name);
            return (FrozenPart { files: listing(&files), ..FrozenPart::default() }, files);
        };
        let Next { changed, removed } = self.next.get(&base).cloned().unwrap_or_default();
        let members = self.datasets[&base].members.values().filter(|data| !data.bad);
        let own = members.flat_map(|data| &data.files);
        let carried: BTreeMap<RelPath, u64> = own
            .filter(|(path, _)| !changed.contains_key(*path) && !removed.contains(*path))
            .map(|(path, content)| (path.clone(), *content))
            .collect();
        let part = FrozenPart {
            files: listing(&changed),
            carried: listing(&carried),
            removed: removed.iter().chain(changed.keys()).cloned().collect(),
            links: Vec::new(),
            begun_us: 0,
        };
        (part, carried.into_iter().chain(changed).collect())
    }

    /// Takes names of the base out of the frozen part.
    pub(super) fn carry(&mut self, id: DatasetId, dropped: &[RelPath]) -> Result<(), String> {
        let dataset = self.datasets.get_mut(&id).ok_or("no such seal")?;
        let (_, next) = dataset.over.as_ref().expect("over another");
        let (_, data) = dataset.frozen.as_mut().expect("frozen");
        data.files.retain(|path, _| !dropped.contains(path) || next.changed.contains_key(path));
        Ok(())
    }

    fn directories_in(&self, name: &[u8]) -> Vec<Entry> {
        let top = RelPath::new(name).expect("a name");
        let inner = self.directories.iter().filter_map(|path| path.strip(&top));
        inner.filter(|path| !path.is_root()).map(|path| entry(path, EntryKind::Directory)).collect()
    }

    pub(super) fn inventory(&self) -> Inventory {
        let sealed: BTreeSet<&[u8]> =
            self.datasets.values().filter(|d| d.listed).map(|d| d.name.as_slice()).collect();
        let directories = self.directories.iter().filter(|path| !sealed.contains(top_of(path)));
        Inventory {
            epoch: self.epoch,
            served: self.served,
            highest_id: self.highest_id,
            directories: directories
                .map(|path| DirHeld { path: path.clone(), mode: 0o755, uid: 1, gid: 1 })
                .collect(),
            unfinished: self.unfinished.iter().map(|(id, op)| (*id, op.clone())).collect(),
            datasets: self
                .datasets
                .iter()
                .map(|(id, dataset)| HeldDataset {
                    id: *id,
                    epoch: dataset.epoch,
                    revision: dataset.catalog.as_ref().map_or(0, |catalog| catalog.revision),
                    name: dataset.name.clone(),
                    state: dataset.state,
                    members: dataset.members.keys().copied().collect(),
                    encoded: dataset
                        .members
                        .iter()
                        .flat_map(|(member, data)| data.encodings.iter().map(|encoding| (*member, *encoding)))
                        .collect(),
                    paths: dataset
                        .members
                        .iter()
                        .filter(|_| dataset.state != HeldState::Complete)
                        .map(|(member, data)| (*member, sum_of_paths(data.files.keys())))
                        .collect(),
                    flushed: dataset.flushed,
                    listed: dataset.listed,
                    failed: dataset.failed,
                })
                .collect(),
            removed: self
                .removed
                .iter()
                .map(|(name, ((epoch, id), during))| Removed {
                    name: name.clone(),
                    epoch: *epoch,
                    id: *id,
                    during: *during,
                })
                .collect(),
            advice: self.advised,
        }
    }

    /// What a scrub finds.
    pub(super) fn bad_members(&self, id: DatasetId) -> Vec<(Member, Reason)> {
        let Some(dataset) = self.datasets.get(&id) else { return Vec::new() };
        let Some(catalog) = &dataset.catalog else { return Vec::new() };
        let is_bad = |(member, data): &(&Member, &MemberData)| {
            // Of a member that was recorded before the dataset was laid out anew nobody asks.
            let home = catalog.layout.members.get(member.0 as usize);
            home.is_some_and(|home| home.host == self.host) && !data.is_whole(&catalog.layout, **member)
        };
        let bad = dataset.members.iter().filter(is_bad);
        bad.map(|(member, _)| (*member, Reason::from("bad CRC"))).collect()
    }

    /// All members here are read.
    pub(super) fn verified(&self, id: DatasetId) -> Vec<VerifiedMember> {
        let Some(dataset) = self.datasets.get(&id) else { return Vec::new() };
        let said = |good: bool| if good { Ok(()) } else { Err(Reason::from("bad CRC")) };
        let read = |(member, data): (&Member, &MemberData)| {
            let layout = dataset.catalog.as_ref().map(|catalog| &catalog.layout);
            let recorded = || data.encodings.contains(&0);
            let guards = layout.map_or_else(recorded, |layout| data.guards(layout, *member));
            VerifiedMember { member: *member, files: said(!data.bad), redundancy: said(guards) }
        };
        dataset.members.iter().map(read).collect()
    }

    /// A worker finishes the frozen member: its vote.
    pub(crate) fn finish_member(&mut self, id: DatasetId) -> Result<MemberPart, String> {
        let directories = self.datasets.get(&id).map(|dataset| self.directories_in(&dataset.name));
        let dataset = self.datasets.get_mut(&id).ok_or("no such seal")?;
        let (member, mut data) = dataset.frozen.clone().ok_or("not frozen")?;
        data.encodings.insert(0);
        let mut entries = vec![root()];
        entries.extend(directories.unwrap_or_default());
        for (path, content) in &data.files {
            let (size, crc) = (size_of(*content), crc_of(*content));
            let copy = FileCopy { size, crc, member, program_rank: None };
            entries.push(entry(path.clone(), EntryKind::File(copy)));
        }
        if dataset.state == HeldState::Frozen {
            dataset.state = HeldState::Recorded;
        }
        dataset.members.insert(member, data);
        Ok(MemberPart { member, entries, taken: 0 })
    }

    pub(super) fn commit(&mut self, catalog: &Catalog) {
        self.highest_id = self.highest_id.max(catalog.id.0);
        let dataset = self
            .datasets
            .entry(catalog.id)
            .or_insert_with(|| Dataset { catalog: None, ..Dataset::arriving(catalog) });
        assert_eq!(dataset.epoch, catalog.epoch, "another dataset under this id");
        for (member, data) in &dataset.members {
            // A daemon refuses that.
            assert!(data.is_dealt_by(catalog, *member), "{} has other files of {member}", self.host);
        }
        if dataset.catalog.as_ref().is_none_or(|stored| stored.revision <= catalog.revision) {
            dataset.catalog = Some(catalog.clone());
            for data in dataset.members.values_mut() {
                data.encodings.retain(|encoding| *encoding == catalog.layout.encoding);
            }
        }
        dataset.state = HeldState::Complete;
        dataset.listed = true;
        dataset.failed = false;
        if self.removed.get(&catalog.name).is_some_and(|(newest, _)| (catalog.epoch, catalog.id) <= *newest) {
            self.removed.remove(&catalog.name);
        }
        dataset.frozen = None;
        dataset.fetched.clear();
        for (id, former) in &mut self.datasets {
            if former.name == catalog.name && (former.epoch, *id) < (catalog.epoch, catalog.id) {
                former.listed = false;
                self.next.remove(id);
            }
        }
        self.background.remove(&catalog.name);
        self.thawed(&catalog.name);
        let top = RelPath::new(catalog.name.clone()).expect("a name");
        self.files.retain(|path, _| path.strip(&top).is_none());
        self.forget_begun(&catalog.name);
        self.list_directories(&catalog.clone());
    }

    pub(super) fn fetch_member(
        &mut self,
        prefix: &Prefix,
        rng: &mut Rng,
        trouble: Trouble,
        key: Key,
        member: Member,
        entries: &[Entry],
    ) -> Result<Vec<FrozenFile>, FetchFailure> {
        if rng.rarely(trouble.0) {
            return Err(FetchFailure { reason: "injected".to_owned(), corrupt: false, full: None });
        }
        let mut data = MemberData::default();
        for entry in entries {
            let EntryKind::File(copy) = &entry.kind else { continue };
            assert_eq!(copy.member, member, "another member's file");
            let content = prefix.read(key, &entry.path).filter(|content| crc_of(*content) == copy.crc);
            let Some(content) = content else {
                return Err(FetchFailure {
                    reason: format!("{} is bad", entry.path),
                    corrupt: true,
                    full: None,
                });
            };
            data.files.insert(entry.path.clone(), content);
        }
        let files = listing(&data.files);
        let dataset = self.datasets.get_mut(&key.1).expect("just made");
        if dataset.listed {
            dataset.fetched.insert(member, data);
        } else {
            dataset.frozen = Some((member, data));
        }
        Ok(files)
    }

    /// The right bytes of a sealed file, if they are here.
    pub(crate) fn good(&self, id: DatasetId, path: &RelPath) -> Option<u64> {
        let mut members = self.datasets.get(&id)?.members.values().filter(|data| !data.bad);
        let own = members.find_map(|data| data.files.get(path).copied());
        own.or_else(|| self.copies.get(&(id, path.clone())).copied())
    }

    pub(super) fn copy_out(
        &self,
        id: DatasetId,
        dataset: &Dataset,
        catalog: &Catalog,
        prefix: &mut Prefix,
    ) -> Result<(), Member> {
        for (member, place) in (0..).map(Member).zip(&catalog.layout.members) {
            if place.host != self.host || place.files == 0 {
                continue;
            }
            let data = dataset.members.get(&member).filter(|data| !data.bad);
            let data = data.ok_or(member)?;
            prefix.copy(id, &data.files);
        }
        Ok(())
    }

    pub(super) fn present(&mut self, listed: &[DatasetId]) {
        self.files.clear();
        self.directories.clear();
        self.next.clear();
        for id in listed {
            let dataset = self.datasets.get(id).expect("presented means here");
            assert_eq!(dataset.state, HeldState::Complete, "presented means complete");
            assert!(!dataset.failed, "a failed dataset is presented");
        }
        for (id, dataset) in &mut self.datasets {
            dataset.listed = listed.contains(id);
        }
        for id in listed {
            let catalog = self.datasets.get(id).and_then(|dataset| dataset.catalog.clone());
            self.list_directories(&catalog.expect("complete"));
        }
    }
}

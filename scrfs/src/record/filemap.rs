//! Which member has which files of which dataset.

use super::descriptor::{DatasetDescriptor, FlushDescriptor, RedundancyDescriptor};
use super::field::record;
use super::meta::Meta;
use super::ordered::{Ordered, Words};
use crate::hash::Text;
use crate::ids::{DatasetId, Member};

record! {
    /// `filemap.scrinfo`: the paths of a node's filemaps.
    FilemapMaster {
        /// Full paths.
        filemaps: Words = ["Filemap"],
    }
}

record! {
    /// `filemap_<k>.scrinfo`: what a node holds. The same facts twice, by dataset and by member;
    /// change them with [`FilemapMember::set_entry`] and [`FilemapMember::remove_entry`], which
    /// keep both sides together.
    FilemapMember {
        /// The members of each dataset that have an entry here.
        by_dataset: Ordered<DatasetId, DatasetMembers> = ["DSET", "CKPT"],
        /// Each member's datasets.
        by_member: Ordered<Member, MemberDatasets> = ["RANK"],
    }
}

/// `<rank>.scrfilemap` of a scavenged dataset: a filemap with one member and one dataset, file
/// names relative to the dataset's directory.
pub type RankFilemap = FilemapMember;

record! {
    /// The members of one dataset.
    DatasetMembers {
        /// Their ranks.
        members: Ordered<Member, ()> = ["RANK"],
    }
}

record! {
    /// The datasets of one member.
    MemberDatasets {
        /// What it has of each.
        datasets: Ordered<DatasetId, FilemapEntry> = ["DSET", "CKPT"],
    }
}

record! {
    /// What one member has of one dataset. A member without files has an entry too; a left
    /// neighbour's entry may hold nothing but its redundancy descriptor, which so survives the
    /// neighbour's loss.
    FilemapEntry {
        /// The files, redundancy file included. Their order is the order of the logical file.
        files: Ordered<Text, FileEntry> = ["FILE"],
        /// How the member is protected.
        redundancy: Option<RedundancyDescriptor> = ["REDDESC", "CKPTDESC"],
        /// How it is to be flushed.
        flush: Option<FlushDescriptor> = ["FLUSH"],
        /// The dataset.
        dataset: Option<DatasetDescriptor> = ["DSETDESC", "DATADESC"],
        /// How many files there must be, the redundancy file counted (`EXPECT` in 2011).
        expected_files: Option<u64> = ["FILES", "EXPECT"],
        /// The node whose files these are copies of (2011).
        partner: Words = ["PARTNER"],
    }
}

record! {
    /// One file.
    FileEntry {
        /// What is known of it (not in 2011).
        meta: Option<Meta> = ["META"],
    }
}

impl FilemapMember {
    /// What `member` has of dataset `id`.
    pub fn entry(&self, member: Member, id: DatasetId) -> Option<&FilemapEntry> {
        self.by_member.get(&member)?.datasets.get(&id)
    }

    /// What `member` has of dataset `id`, to change it.
    pub fn entry_mut(&mut self, member: Member, id: DatasetId) -> Option<&mut FilemapEntry> {
        self.by_member.get_mut(&member)?.datasets.get_mut(&id)
    }

    /// Sets what `member` has of dataset `id`.
    pub fn set_entry(&mut self, member: Member, id: DatasetId, entry: FilemapEntry) {
        if !self.by_member.contains(&member) {
            self.by_member.set_first(member, MemberDatasets::default());
        }
        if let Some(of_member) = self.by_member.get_mut(&member) {
            of_member.datasets.set_first(id, entry);
        }
        if !self.by_dataset.contains(&id) {
            self.by_dataset.set_first(id, DatasetMembers::default());
        }
        if let Some(of_dataset) = self.by_dataset.get_mut(&id).filter(|of| !of.members.contains(&member)) {
            of_dataset.members.set_first(member, ());
        }
    }

    /// Removes what `member` has of dataset `id`, and member and dataset where nothing is left of
    /// them.
    pub fn remove_entry(&mut self, member: Member, id: DatasetId) -> Option<FilemapEntry> {
        let removed = self.by_member.get_mut(&member)?.datasets.remove(&id);
        if self.by_member.get(&member).is_some_and(|of| of.datasets.is_empty()) {
            self.by_member.remove(&member);
        }
        if let Some(of_dataset) = self.by_dataset.get_mut(&id) {
            of_dataset.members.remove(&member);
            if of_dataset.members.is_empty() {
                self.by_dataset.remove(&id);
            }
        }
        removed
    }

    /// All entries: member, dataset, what it has.
    pub fn entries(&self) -> impl Iterator<Item = (Member, DatasetId, &FilemapEntry)> {
        self.by_member
            .iter()
            .flat_map(|(&member, of)| of.datasets.iter().map(move |(&id, entry)| (member, id, entry)))
    }
}

impl From<Meta> for FileEntry {
    fn from(meta: Meta) -> Self {
        Self { meta: Some(meta), ..Self::default() }
    }
}

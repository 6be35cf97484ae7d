//! A member's data on a node.

use std::collections::{BTreeMap, BTreeSet};

use scrfs::dataset::{Catalog, Layout};
use scrfs::ids::Member;
use scrfs::path::RelPath;

/// A member's files by path in the dataset; `bad`: some byte has rotted.
#[derive(Debug, Clone, Default)]
pub(crate) struct MemberData {
    pub(crate) files: BTreeMap<RelPath, u64>,
    pub(crate) bad: bool,
    /// Of which encodings its redundancy data is there.
    pub(crate) encodings: BTreeSet<u32>,
}

impl MemberData {
    /// What this layout needs of it is there.
    pub(crate) fn is_whole(&self, layout: &Layout, member: Member) -> bool {
        !self.bad && self.guards(layout, member)
    }

    /// Its files are those that the catalog has of the member.
    pub(crate) fn is_dealt_by(&self, catalog: &Catalog, member: Member) -> bool {
        self.files.keys().eq(catalog.files_of(member).map(|(entry, _)| &entry.path))
    }

    /// Some of its bytes go bad; of its redundancy data, if it has no other.
    pub(crate) fn rot(&mut self, redundancy: bool) {
        if redundancy || self.files.is_empty() {
            self.encodings.clear();
        } else {
            self.bad = true;
        }
    }

    /// Its redundancy data is there, if this layout has it.
    pub(crate) fn guards(&self, layout: &Layout, member: Member) -> bool {
        !layout.has_redundancy_file(member) || self.encodings.contains(&layout.encoding)
    }
}

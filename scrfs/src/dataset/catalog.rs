//! The catalog of a sealed dataset: every name in it, where its bytes are, and how they are
//! protected.
//!
//! The lead joins the members' parts into one catalog; each daemon stores it when it records
//! COMPLETE. From then on listings, attributes, fetch on open, status and recovery are answered
//! from it.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Protection;
use crate::ids::{DatasetId, Epoch, Member};
use crate::path::RelPath;

/// How a dataset is protected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Scheme {
    /// Nothing but the member's own files (LOCAL).
    Single,
    /// A full copy on the right neighbour.
    Partner,
    /// One lost member per set can be rebuilt.
    Xor,
    /// Any `failures` lost members per set can be rebuilt (RS).
    ReedSolomon {
        /// At least 1; a set of no more members than this survives all losses but of all of it.
        failures: u8,
    },
}

/// Seconds and nanoseconds since 1970; `nsecs` is below 1,000,000,000.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Stamp {
    /// Seconds, negative before 1970.
    pub secs: i64,
    /// Nanoseconds within the second.
    pub nsecs: u32,
}

impl Stamp {
    /// Times of the last access, of the last change, and of the inode's last change.
    pub(crate) fn times_of(stat: &rustix::fs::Stat) -> [Self; 3] {
        let stamp = |secs: i64, nsecs: u64| Self { secs, nsecs: u32::try_from(nsecs).unwrap_or(0) };
        #[expect(clippy::useless_conversion, reason = "the fields' types differ between platforms")]
        let (atime, mtime, ctime) = (stat.st_atime.into(), stat.st_mtime.into(), stat.st_ctime.into());
        #[expect(clippy::useless_conversion, reason = "the fields' types differ between platforms")]
        let nsecs = [stat.st_atime_nsec.into(), stat.st_mtime_nsec.into(), stat.st_ctime_nsec.into()];
        [stamp(atime, nsecs[0]), stamp(mtime, nsecs[1]), stamp(ctime, nsecs[2])]
    }
}

/// The bytes of one sealed file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileCopy {
    /// Bytes.
    pub size: u64,
    /// CRC32 (zlib) of all of them.
    pub crc: u32,
    /// Whose data it is part of.
    pub member: Member,
    /// MPI rank of the process that created it, where its environment told.
    pub program_rank: Option<u32>,
}

/// What a name stands for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum EntryKind {
    /// A directory.
    Directory,
    /// A regular file.
    File(FileCopy),
    /// A symbolic link and its target's bytes.
    Symlink(Vec<u8>),
}

/// One name of the dataset.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Relative to the dataset's directory; the root path is that directory itself.
    pub path: RelPath,
    /// File, directory or link.
    pub kind: EntryKind,
    /// Permission bits (07777).
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Last access when it was sealed.
    pub atime: Stamp,
    /// Last change of the bytes.
    pub mtime: Stamp,
}

/// One member: where its data is now and how much it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberPlace {
    /// Host name of the node that holds it.
    pub host: String,
    /// Files, without the redundancy file.
    pub files: u64,
    /// Bytes of those files together: the length of its logical file.
    pub bytes: u64,
    /// Bytes of the cache that they and the redundancy file took when it was sealed, if that is
    /// known: holes take none.
    pub taken: Option<u64>,
}

/// Members and redundancy sets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    /// What was chosen for it when it was sealed: the scheme is every set's.
    pub protection: Protection,
    /// Indexed by [`Member`].
    pub members: Vec<MemberPlace>,
    /// Each set's members in ring order; every member is in exactly one.
    pub sets: Vec<Vec<Member>>,
    /// The revision with which the sets were laid out and encoded anew; 0: when it was sealed. The
    /// names of redundancy files tell it, so that those of two encodings can be there at a time.
    pub encoding: u32,
}

impl Layout {
    /// The scheme of every set.
    pub fn scheme(&self) -> Scheme {
        self.protection.scheme
    }
}

/// A sealed dataset.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Catalog {
    /// The dataset's id.
    pub id: DatasetId,
    /// The epoch in which it was sealed.
    pub epoch: Epoch,
    /// Counts changes of place (rebuilds), from 0; the higher one of the same id is right.
    pub revision: u32,
    /// The directory's name in the checkpoint path.
    pub name: Vec<u8>,
    /// When it was sealed, microseconds since 1970.
    pub created_us: u64,
    /// Who made it: the job's user name.
    pub user: String,
    /// The job's id.
    pub job_id: String,
    /// Who protects whom.
    pub layout: Layout,
    /// All names, sorted by path; the first is the dataset's directory itself.
    pub entries: Vec<Entry>,
}

/// A later revision of a catalog, for who has the one before: members have other places or sets,
/// and all names are the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revision {
    /// The dataset's id.
    pub id: DatasetId,
    /// The epoch in which it was sealed.
    pub epoch: Epoch,
    /// The revision that this one follows.
    pub of: u32,
    /// Its own.
    pub revision: u32,
    /// [`Catalog::sum`] of both.
    pub sum: u32,
    /// Who protects whom now, and where members are.
    pub layout: Layout,
}

impl Revision {
    /// To who has the revision `of`, of which `revised` changes places and sets only.
    pub fn new(of: u32, revised: &Catalog) -> Self {
        let Catalog { id, epoch, revision, .. } = *revised;
        Self { id, epoch, of, revision, sum: revised.sum(), layout: revised.layout.clone() }
    }

    /// It follows that catalog.
    pub fn is_of(&self, catalog: &Catalog) -> bool {
        (self.id, self.epoch, self.of) == (catalog.id, catalog.epoch, catalog.revision)
            && self.sum == catalog.sum()
    }

    /// The catalog that this makes of the one that it follows; `None` for another one.
    pub fn applied_to(&self, catalog: &Catalog) -> Option<Catalog> {
        let Self { revision, layout, .. } = self;
        self.is_of(catalog).then(|| Catalog {
            revision: *revision,
            layout: layout.clone(),
            name: catalog.name.clone(),
            user: catalog.user.clone(),
            job_id: catalog.job_id.clone(),
            entries: catalog.entries.clone(),
            ..*catalog
        })
    }
}

impl Catalog {
    /// A CRC32 of its name and its entries' paths, and of files also size, CRC and member.
    pub fn sum(&self) -> u32 {
        let mut sum = crc32fast::Hasher::new();
        sum.update(&self.name);
        for entry in &self.entries {
            sum.update(b"\0");
            sum.update(entry.path.as_bytes());
            if let EntryKind::File(copy) = &entry.kind {
                sum.update(&copy.size.to_le_bytes());
                sum.update(&copy.crc.to_le_bytes());
                sum.update(&copy.member.0.to_le_bytes());
            }
        }
        sum.finalize()
    }

    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.layout.members.iter().map(|m| m.bytes).sum()
    }

    /// Files of `member`, in catalog order: this is the order of its logical file.
    pub fn files_of(&self, member: Member) -> impl Iterator<Item = (&Entry, &FileCopy)> {
        self.entries.iter().filter_map(move |entry| match &entry.kind {
            EntryKind::File(copy) if copy.member == member => Some((entry, copy)),
            _ => None,
        })
    }

    /// The entry of `path`; the lowest member's of equal files. Entries must be sorted.
    pub fn entry(&self, path: &RelPath) -> Option<&Entry> {
        self.position(path).map(|at| &self.entries[at])
    }

    /// Where that entry is among all.
    pub fn position(&self, path: &RelPath) -> Option<usize> {
        let at = self.entries.partition_point(|e| e.path < *path);
        self.entries.get(at).filter(|e| e.path == *path).map(|_| at)
    }

    /// Puts entries in order. Of two members' equal files the lower member's stays visible by
    /// [`Catalog::entry`].
    pub fn sort(&mut self) {
        self.entries.sort_by(|a, b| a.path.cmp(&b.path).then_with(|| member_of(a).cmp(&member_of(b))));
    }
}

fn member_of(entry: &Entry) -> Option<Member> {
    match &entry.kind {
        EntryKind::File(copy) => Some(copy.member),
        _ => None,
    }
}

/// A catalog with what a listing needs: the names in each directory.
#[derive(Debug)]
pub struct CatalogIndex {
    catalog: Arc<Catalog>,
    /// Directory -> positions of its entries; directories that no entry names are there too.
    children: BTreeMap<RelPath, Vec<usize>>,
}

impl CatalogIndex {
    /// Indexes a catalog.
    pub fn new(mut catalog: Catalog) -> Self {
        catalog.sort();
        let mut children: BTreeMap<RelPath, Vec<usize>> = BTreeMap::new();
        let mut last: Option<&RelPath> = None;
        for (at, entry) in catalog.entries.iter().enumerate() {
            if matches!(entry.kind, EntryKind::Directory) {
                children.entry(entry.path.clone()).or_default();
            }
            // Equal files of two members are one name.
            if last == Some(&entry.path) {
                continue;
            }
            last = Some(&entry.path);
            if let Some((dir, _)) = entry.path.split_last() {
                children.entry(dir).or_default().push(at);
            }
        }
        Self { catalog: Arc::new(catalog), children }
    }

    /// The catalog itself.
    pub fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    /// The catalog, for others to keep.
    pub fn shared(&self) -> Arc<Catalog> {
        Arc::clone(&self.catalog)
    }

    /// The entry of `path`; the first of equal ones.
    pub fn entry(&self, path: &RelPath) -> Option<&Entry> {
        self.catalog.entry(path)
    }

    /// `path` is a name of the dataset, if only by what is below it.
    pub fn has(&self, path: &RelPath) -> bool {
        self.children.contains_key(path) || self.entry(path).is_some()
    }

    /// All directories that have an entry, or an entry in them.
    pub fn directories(&self) -> impl Iterator<Item = &RelPath> {
        self.children.keys()
    }

    /// Entries directly in `dir`; `None` when it is no directory of the dataset.
    pub fn children(&self, dir: &RelPath) -> Option<impl Iterator<Item = &Entry>> {
        let positions = self.children.get(dir)?;
        Some(positions.iter().map(|&at| &self.catalog.entries[at]))
    }
}

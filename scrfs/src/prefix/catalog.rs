//! A dataset's catalog as the records beside its files, and back.
//!
//! `summary.scr` has the dataset's descriptor and, as keys that other readers ignore, its epoch,
//! directories and links; the rank2file leaf has each member's files with size and CRC, and in
//! further such keys mode, owner and times. What SCR wrote has none of these; then the files' own
//! attributes on the PFS count.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use crate::dataset::{Catalog, Entry, EntryKind, FileCopy, Layout, MemberPlace, Protection, Scheme, Stamp};
use crate::hash::{NulInText, Text};
use crate::ids::{Epoch, Member};
use crate::path::RelPath;
use crate::plain;
use crate::record::rank2file::{Rank2FileBody, RecordPlace};
use crate::record::summary::{FileOnPfs, NameOnPfs, RankFiles, SUMMARY_VERSION, Summary};
use crate::record::{Attributes, Crc32, DatasetDescriptor, Rank2File, Rank2FileLeaf, Rank2FileNode, Record};
use crate::store::beneath;
use rustix::fs::{Mode, OFlags, Stat};

use super::StoredDataset;
use super::directory::{PfsError, Prefix, RECORD_BYTES_MAX, Result, decode, read_inside};
use super::strangers;

/// Stands for the dataset's own directory.
const OWN: &str = ".";
const LEAF: &str = ".scr/rank2file.0.0.scr";
/// SCR's trees have two levels up to millions of members.
const LEVELS_MAX: u32 = 8;
/// Members of a dataset; far above any machine, far below what could exhaust memory.
const MEMBERS_MAX: u64 = 1 << 20;
const MODE_BITS: u32 = 0o7777;

/// The records of one dataset, as bytes.
pub(super) struct Published {
    pub(super) summary: Vec<u8>,
    pub(super) root: Vec<u8>,
    pub(super) leaf: Vec<u8>,
}

impl Published {
    pub(super) fn of(catalog: &Catalog) -> std::result::Result<Self, String> {
        let nul = |e: NulInText| e.to_string();
        let ranks = catalog.layout.members.len() as u64;
        let mut leaf = Rank2FileLeaf { level: Some(0), ranks: Some(ranks), ..Rank2FileLeaf::default() };
        for member in (0..).zip(&catalog.layout.members).map(|(m, _)| Member(m)) {
            let files =
                catalog.files_of(member).map(|(entry, copy)| (Text::from(&entry.path), file_of(entry, copy)));
            leaf.by_member.set_last(member, RankFiles { files: files.collect(), ..RankFiles::default() });
        }
        let mut root = Rank2FileNode { level: Some(1), ranks: Some(ranks), ..Rank2FileNode::default() };
        let place = RecordPlace { offset: Some(0), file: Some(LEAF.into()), ..RecordPlace::default() };
        root.children.set_last(Member(0), place);
        let mut summary = Summary {
            dataset: Some(DatasetDescriptor::of(catalog).map_err(nul)?),
            complete: Some(true),
            version: Some(SUMMARY_VERSION),
            epoch: Some(catalog.epoch.0),
            ..Summary::default()
        };
        for entry in &catalog.entries {
            let path = if entry.path.is_root() { Text::from(OWN) } else { Text::from(&entry.path) };
            match &entry.kind {
                EntryKind::File(_) => {}
                EntryKind::Directory => drop(summary.directories.set_last(path, name_of(entry, None))),
                EntryKind::Symlink(target) => {
                    let target = Text::new(target.clone()).map_err(nul)?;
                    summary.links.set_last(path, name_of(entry, Some(target)));
                }
            }
        }
        Ok(Self { summary: summary.encode(), root: root.encode(), leaf: leaf.encode() })
    }
}

fn file_of(entry: &Entry, copy: &FileCopy) -> FileOnPfs {
    FileOnPfs {
        size: Some(copy.size),
        crc: Some(Crc32(copy.crc)),
        program_rank: copy.program_rank,
        attributes: Some(Attributes::of(entry)),
        ..FileOnPfs::default()
    }
}

fn name_of(entry: &Entry, target: Option<Text>) -> NameOnPfs {
    NameOnPfs { target, attributes: Some(Attributes::of(entry)), ..NameOnPfs::default() }
}

/// Reads the catalog of a dataset in the prefix: names, sizes and CRCs; every member is a set of
/// its own.
pub(super) fn read(prefix: &Prefix, stored: &StoredDataset) -> Result<Catalog> {
    let directory = prefix.dataset(&stored.name);
    strangers::look(&directory).map_err(PfsError::io(&directory, "look at"))?;
    let top = plain::open_moved(&directory).map_err(PfsError::io(&directory, "open"))?;
    let reader = Reader { directory: &directory, top };
    let path = directory.join("summary.scr");
    let summary = match reader.record::<Summary>(&[".scr/summary.scr", "summary.scr"])? {
        Some(summary) if summary.is_complete() => summary,
        Some(_) => return Err(PfsError::content(&path, "the dataset is not complete")),
        None => return Err(PfsError::content(&path, "missing")),
    };
    let about = summary.dataset.clone().unwrap_or_default();
    if about.id.is_some_and(|id| id != stored.id) {
        return Err(PfsError::content(&path, "another dataset has this name now"));
    }
    let (ranks, files) = reader.files(&summary, stored)?;
    let mut members = vec![MemberPlace { host: String::new(), files: 0, bytes: 0, taken: None }; ranks];
    let mut entries = reader.names(&summary)?;
    for (member, path, file) in files {
        let entry = reader.file(member, path, &file)?;
        let (Some(place), EntryKind::File(copy)) = (members.get_mut(member.0 as usize), &entry.kind) else {
            return Err(PfsError::content(&directory, format!("member {member} of {ranks}")));
        };
        place.files += 1;
        place.bytes = place.bytes.saturating_add(copy.size);
        entries.push(entry);
    }
    reader.add_missing_directories(&mut entries)?;
    let groups = nix::unistd::getgroups().unwrap_or_default();
    let groups: Vec<u32> = groups.into_iter().map(nix::unistd::Gid::as_raw).collect();
    let user = plain::acting();
    for entry in &mut entries {
        take(user, &groups, entry);
    }
    let sets = (0..).zip(&members).map(|(m, _)| vec![Member(m)]).collect();
    let text = |text: Option<Text>| text.map(|t| t.to_string()).unwrap_or_default();
    let mut catalog = Catalog {
        id: stored.id,
        epoch: Epoch(summary.epoch.unwrap_or(stored.epoch.0)),
        revision: 0,
        name: stored.name.clone(),
        created_us: about.created_us.unwrap_or(0),
        user: text(about.user),
        job_id: text(about.job_id),
        layout: Layout { protection: Protection::by(Scheme::Single), members, sets, encoding: 0 },
        entries,
    };
    catalog.sort();
    Ok(catalog)
}

/// A colleague's file is `user`'s in the mount, as a copy of it would be. Root restores the
/// recorded owners.
fn take((user, group): (u32, u32), groups: &[u32], entry: &mut Entry) {
    const SET_USER: u32 = 0o4000;
    const SET_GROUP: u32 = 0o2000;
    if user == 0 {
        return;
    }
    if entry.uid != user {
        entry.uid = user;
        entry.mode &= !SET_USER;
    }
    if entry.gid != group && !groups.contains(&entry.gid) {
        entry.gid = group;
        if entry.kind != EntryKind::Directory {
            entry.mode &= !SET_GROUP;
        }
    }
}

type FileRow = (Member, RelPath, FileOnPfs);

struct Reader<'a> {
    directory: &'a Path,
    top: OwnedFd,
}

impl Reader<'_> {
    /// The first of `names` that is there.
    fn record<R: Record>(&self, names: &[&str]) -> Result<Option<R>> {
        for name in names {
            if let Some(bytes) = read_inside(&self.top, self.directory, Path::new(name))? {
                return decode(&self.directory.join(name), &bytes).map(Some);
            }
        }
        Ok(None)
    }

    /// Number of members, and all files that a fetch takes.
    fn files(&self, summary: &Summary, stored: &StoredDataset) -> Result<(usize, Vec<FileRow>)> {
        let path = self.directory.join(".scr/rank2file.scr");
        let mut rows = Vec::new();
        let ranks = if let Some(checkpoint) = summary.checkpoints.get(&stored.id) {
            for (member, files) in checkpoint.by_member.iter() {
                self.rows(*member, files, &mut rows)?;
            }
            checkpoint.ranks
        } else {
            let root = self.record::<Rank2File>(&[".scr/rank2file.scr", "rank2file.scr"])?;
            let Some(root) = root else { return Err(PfsError::content(&path, "missing")) };
            let ranks = match &root.body {
                Rank2FileBody::Node(node) => node.ranks,
                Rank2FileBody::Leaf(leaf) => leaf.ranks,
            };
            self.descend(&root.body, LEVELS_MAX, &mut rows)?;
            ranks
        };
        match ranks {
            Some(ranks @ 1..=MEMBERS_MAX) => Ok((usize::try_from(ranks).unwrap_or(0), rows)),
            Some(ranks) if ranks > MEMBERS_MAX => Err(PfsError::unusable(&path, format!("{ranks} members"))),
            other => Err(PfsError::content(&path, format!("{other:?} members"))),
        }
    }

    fn descend(&self, body: &Rank2FileBody, levels: u32, rows: &mut Vec<FileRow>) -> Result<()> {
        let node = match body {
            Rank2FileBody::Leaf(leaf) => {
                return leaf.by_member.iter().try_for_each(|(member, files)| self.rows(*member, files, rows));
            }
            Rank2FileBody::Node(node) => node,
        };
        if levels == 0 {
            return Err(PfsError::unusable(
                self.directory,
                format!("rank2file has more than {LEVELS_MAX} levels"),
            ));
        }
        for (member, place) in node.children.iter() {
            let Some(file) = &place.file else {
                return Err(PfsError::content(
                    self.directory,
                    format!("rank2file names no file for member {member}"),
                ));
            };
            let inner = self.inner(file)?;
            let path = self.directory.join(inner.as_path());
            let bytes = read_inside(&self.top, self.directory, inner.as_path())?;
            let Some(bytes) = bytes else { return Err(PfsError::content(&path, "missing")) };
            let below = Rank2File::decode_at(&bytes, place.offset.unwrap_or(0))
                .map_err(|source| PfsError::Record { path, source })?;
            self.descend(&below.body, levels - 1, rows)?;
        }
        Ok(())
    }

    fn rows(&self, member: Member, files: &RankFiles, rows: &mut Vec<FileRow>) -> Result<()> {
        for (path, file) in files.files.iter().filter(|(_, file)| !file.no_fetch) {
            rows.push((member, self.inner(path)?, file.clone()));
        }
        if rows.len() as u64 > RECORD_BYTES_MAX / 16 {
            return Err(PfsError::unusable(self.directory, "more files than its records could hold"));
        }
        Ok(())
    }

    /// A path that stays in the dataset.
    fn inner(&self, path: &Text) -> Result<RelPath> {
        let inner = RelPath::new(path.as_bytes()).ok().filter(|path| !path.is_root());
        inner.ok_or_else(|| PfsError::content(self.directory, format!("{path} is not a path in the dataset")))
    }

    fn file(&self, member: Member, path: RelPath, file: &FileOnPfs) -> Result<Entry> {
        let (Some(size), Some(Crc32(crc))) = (file.size, file.crc) else {
            let reason = format!("{path}: no size or no CRC recorded; it cannot be verified");
            return Err(PfsError::unusable(self.directory, reason));
        };
        let kind = EntryKind::File(FileCopy { size, crc, member, program_rank: file.program_rank });
        self.entry(path, kind, file.attributes)
    }

    /// With the attributes that were recorded; where none were, with those that it has on the PFS.
    fn entry(&self, path: RelPath, kind: EntryKind, recorded: Option<Attributes>) -> Result<Entry> {
        match recorded {
            Some(attributes) => Ok(attributes.entry(path, kind)),
            None => self.stat(&path).map(|stat| entry_of_stat(path, kind, &stat)),
        }
    }

    /// Directories and links that the summary lists.
    fn names(&self, summary: &Summary) -> Result<Vec<Entry>> {
        let mut entries = Vec::new();
        for (path, name) in summary.directories.iter() {
            let path = if *path == OWN { RelPath::root() } else { self.inner(path)? };
            entries.push(self.entry(path, EntryKind::Directory, name.attributes)?);
        }
        for (path, name) in summary.links.iter() {
            let Some(target) = &name.target else {
                return Err(PfsError::content(self.directory, format!("{path}: a link without a target")));
            };
            let kind = EntryKind::Symlink(target.as_bytes().to_vec());
            entries.push(self.entry(self.inner(path)?, kind, name.attributes)?);
        }
        Ok(entries)
    }

    /// Directories that no record lists, as they are on the PFS.
    fn add_missing_directories(&self, entries: &mut Vec<Entry>) -> Result<()> {
        let known: BTreeSet<RelPath> = entries.iter().map(|e| e.path.clone()).collect();
        let mut missing = BTreeSet::from([RelPath::root()]);
        for entry in entries.iter() {
            let mut at = entry.path.split_last().map(|(parent, _)| parent);
            while let Some(parent) = at {
                at = parent.split_last().map(|(above, _)| above);
                if !missing.insert(parent) {
                    break;
                }
            }
        }
        for path in missing.into_iter().filter(|path| !known.contains(path)) {
            let stat = self.stat(&path)?;
            entries.push(entry_of_stat(path, EntryKind::Directory, &stat));
        }
        Ok(())
    }

    fn stat(&self, path: &RelPath) -> Result<Stat> {
        let shown = || self.directory.join(path.as_path());
        let found = beneath::open(self.top.as_fd(), path, OFlags::PATH | OFlags::NOFOLLOW, Mode::empty());
        let found = found.map_err(PfsError::io(&shown(), "open"))?;
        rustix::fs::fstat(&found).map_err(|e| PfsError::io(&shown(), "stat")(e.into()))
    }
}

fn entry_of_stat(path: RelPath, kind: EntryKind, stat: &Stat) -> Entry {
    let time = |secs: i64, nsecs: u64| Stamp { secs, nsecs: u32::try_from(nsecs).unwrap_or(0) };
    Entry {
        path,
        kind,
        mode: stat.st_mode & MODE_BITS,
        uid: stat.st_uid,
        gid: stat.st_gid,
        atime: time(stat.st_atime, stat.st_atime_nsec),
        mtime: time(stat.st_mtime, stat.st_mtime_nsec),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_a_colleagues_on_the_pfs_is_its_readers_in_the_mount() {
        let copy = FileCopy { size: 0, crc: 0, member: Member(0), program_rank: None };
        let stamp = Stamp { secs: 0, nsecs: 0 };
        let file = |uid, gid, mode| Entry {
            path: RelPath::new("f").unwrap(),
            kind: EntryKind::File(copy.clone()),
            mode,
            uid,
            gid,
            atime: stamp,
            mtime: stamp,
        };
        let taken = |user: u32, mut entry: Entry| {
            take((user, 7), &[7, 9], &mut entry);
            (entry.uid, entry.gid, entry.mode)
        };
        assert_eq!(taken(5, file(5, 7, 0o6755)), (5, 7, 0o6755));
        assert_eq!(taken(5, file(6, 9, 0o6755)), (5, 9, 0o2755), "of a group of both");
        assert_eq!(taken(5, file(0, 0, 0o6755)), (5, 7, 0o755));
        assert_eq!(taken(0, file(6, 8, 0o6755)), (6, 8, 0o6755), "root's keep theirs");
    }
}

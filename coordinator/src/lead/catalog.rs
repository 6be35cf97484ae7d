//! Joining the members' parts to one catalog, and checking catalogs that come from disk.

use std::collections::BTreeMap;

use scrfs::control::{FrozenFile, MemberPart, Reason};
use scrfs::dataset::{Catalog, Entry, EntryKind, Layout, MemberPlace};
use scrfs::ids::{DatasetId, Epoch, Member, NodeRank};
use scrfs::path::RelPath;

use crate::job::About;

/// Members of one dataset that are accepted from disk.
const MEMBERS_MAX: usize = 1 << 16;

/// A dataset that is being made.
#[derive(Debug, Clone)]
pub(super) struct Making {
    pub(super) id: DatasetId,
    pub(super) epoch: Epoch,
    pub(super) revision: u32,
    pub(super) about: About,
}

/// The sizes of members' files, in which two different ones of one path are found before any byte
/// is read.
#[derive(Debug, Default)]
pub(super) struct Sizes {
    seen: BTreeMap<RelPath, (NodeRank, u64)>,
}

impl Sizes {
    /// Another node's files; or both hosts and the path.
    pub(super) fn add(
        &mut self,
        node: NodeRank,
        files: &[FrozenFile],
        host: &impl Fn(NodeRank) -> String,
    ) -> Result<(), Reason> {
        for file in files {
            match self.seen.get(&file.path) {
                Some(&(other, size)) if size != file.size => {
                    let (one, other) = (node.min(other), node.max(other));
                    return Err(conflict(&file.path, &host(one), &host(other)).into());
                }
                Some(_) => {}
                None => {
                    self.seen.insert(file.path.clone(), (node, file.size));
                }
            }
        }
        Ok(())
    }
}

fn conflict(path: &RelPath, one: &str, other: &str) -> String {
    format!("{path} differs between {one} and {other}: one file written by several nodes is not supported")
}

/// `SCRFS_LIST_MAX` bounds the directories, and all other names; apart, so that a program's files
/// can be counted.
pub(super) fn within<'a>(kinds: impl Iterator<Item = &'a EntryKind>, list_max: u64) -> Result<(), Reason> {
    let (mut directories, mut names) = (0_u64, 0_u64);
    for kind in kinds {
        *if matches!(kind, EntryKind::Directory) { &mut directories } else { &mut names } += 1;
    }
    bounded(directories, names, list_max)
}

fn bounded(directories: u64, names: u64, list_max: u64) -> Result<(), Reason> {
    match directories.max(names) {
        most if most <= list_max => Ok(()),
        _ if names > list_max => Err(format!("{names} files, more than SCRFS_LIST_MAX ({list_max})").into()),
        _ => Err(format!("{directories} directories, more than SCRFS_LIST_MAX ({list_max})").into()),
    }
}

/// A catalog on its way: members' parts join it as they come, so that no single step of the lead
/// does the work of all of them.
#[derive(Debug)]
pub(super) struct Joining {
    making: Making,
    layout: Layout,
    /// In the order of the catalog. Equal files of two members are both there, as each is part of
    /// its member's logical file; of directories and links the one that came first is there,
    /// without a member. With each is who told of it.
    entries: BTreeMap<(RelPath, Option<Member>), (Member, Entry)>,
    directories: u64,
    names: u64,
}

impl Joining {
    /// `layout` has the members' hosts; files and bytes are counted here.
    pub(super) fn new(making: Making, layout: Layout) -> Self {
        Self { making, layout, entries: BTreeMap::new(), directories: 0, names: 0 }
    }

    /// A member's part.
    pub(super) fn add(&mut self, part: MemberPart) -> Result<(), Reason> {
        let member = part.member;
        let Some(place) = self.layout.members.get_mut(member.0 as usize) else {
            return Err(format!("a part of member {member} came, which is not in the dataset").into());
        };
        place.taken = Some(part.taken);
        part.entries.into_iter().try_for_each(|entry| self.add_name(member, entry))
    }

    fn add_name(&mut self, member: Member, mut entry: Entry) -> Result<(), Reason> {
        let place = &mut self.layout.members[member.0 as usize];
        let mut owner = None;
        if let EntryKind::File(copy) = &entry.kind {
            if copy.member != member {
                let (host, path, other) = (&place.host, &entry.path, copy.member);
                return Err(format!("{host} told of {path} as member {other}'s").into());
            }
            place.files += 1;
            place.bytes = place.bytes.saturating_add(copy.size);
            owner = Some(member);
        }
        let mut key = (std::mem::take(&mut entry.path), None);
        let there = self.entries.range(&key..).next().filter(|((path, _), _)| *path == key.0);
        match there.map(|(_, told)| told) {
            None if matches!(entry.kind, EntryKind::Directory) => self.directories += 1,
            None => self.names += 1,
            Some((by, there)) if same(&there.kind, &entry.kind) && *by != member => {}
            Some((by, _)) if *by == member => {
                return Err(format!("{} told of {} twice", place.host, key.0).into());
            }
            Some((by, _)) => {
                let host = |member: Member| &self.layout.members[member.0 as usize].host;
                return Err(conflict(&key.0, host(member.min(*by)), host(member.max(*by))).into());
            }
        }
        key.1 = owner;
        self.entries.entry(key).or_insert((member, entry));
        Ok(())
    }

    /// The catalog of all parts.
    pub(super) fn joined(&mut self, list_max: u64) -> Result<Catalog, Reason> {
        bounded(self.directories, self.names, list_max)?;
        let (making, layout) = (self.making.clone(), self.layout.clone());
        let entries = std::mem::take(&mut self.entries);
        let entries = entries.into_iter().map(|((path, _), (_, entry))| Entry { path, ..entry }).collect();
        Ok(Catalog {
            id: making.id,
            epoch: making.epoch,
            revision: making.revision,
            name: making.about.name,
            created_us: making.about.created_us,
            user: making.about.user,
            job_id: making.about.job_id,
            layout,
            entries,
        })
    }
}

fn same(one: &EntryKind, other: &EntryKind) -> bool {
    match (one, other) {
        (EntryKind::Directory, EntryKind::Directory) => true,
        (EntryKind::Symlink(a), EntryKind::Symlink(b)) => a == b,
        (EntryKind::File(a), EntryKind::File(b)) => a.size == b.size && a.crc == b.crc,
        _ => false,
    }
}

/// Places of members before anything is counted.
pub(super) fn places(hosts: &[String]) -> Vec<MemberPlace> {
    hosts.iter().map(|host| MemberPlace { host: host.clone(), files: 0, bytes: 0, taken: None }).collect()
}

/// Why a catalog read from a daemon or the PFS cannot be used. Where `sets` holds, every member is
/// in exactly one set.
pub(super) fn check(catalog: &Catalog, id: DatasetId, sets: bool) -> Result<(), Reason> {
    let members = catalog.layout.members.len();
    if catalog.id != id {
        return Err(format!("the catalog says it is of dataset {}", catalog.id).into());
    }
    if members == 0 || members > MEMBERS_MAX {
        return Err(format!("the catalog has {members} members").into());
    }
    let stray = catalog
        .entries
        .iter()
        .find(|entry| matches!(&entry.kind, EntryKind::File(copy) if copy.member.0 as usize >= members));
    if let Some(entry) = stray {
        return Err(format!("{} belongs to no member", entry.path).into());
    }
    if sets {
        let mut all: Vec<Member> = catalog.layout.sets.iter().flatten().copied().collect();
        all.sort_unstable();
        if all.len() != members || all.iter().enumerate().any(|(at, member)| member.0 as usize != at) {
            return Err("the catalog's sets are not a partition of its members".into());
        }
    }
    Ok(())
}

/// Two catalogs of one dataset mean the same by each member but for its set, and with that what
/// protects its files.
pub(super) fn same_files(one: &Catalog, other: &Catalog) -> bool {
    one.epoch == other.epoch
        && one.name == other.name
        && one.layout.protection == other.layout.protection
        && one.layout.members.len() == other.layout.members.len()
        && one.entries == other.entries
}

#[cfg(test)]
pub(super) mod tests {
    use scrfs::dataset::{FileCopy, Protection, Scheme, Stamp};

    use super::*;

    fn entry(path: &str, kind: EntryKind) -> Entry {
        let (atime, mtime) = (Stamp::default(), Stamp::default());
        Entry { path: RelPath::new(path).unwrap(), kind, mode: 0o644, uid: 0, gid: 0, atime, mtime }
    }

    fn file(path: &str, member: u32, size: u64, crc: u32) -> Entry {
        entry(path, EntryKind::File(FileCopy { size, crc, member: Member(member), program_rank: None }))
    }

    /// Of dataset `ck`, the first.
    pub(in crate::lead) fn making() -> Making {
        let about = About {
            name: b"ck".to_vec(),
            created_us: 1,
            user: "u".into(),
            job_id: "j".into(),
            files: 0,
            bytes: 0,
        };
        Making { id: DatasetId(1), epoch: Epoch(1), revision: 0, about }
    }

    fn joined(parts: Vec<Vec<Entry>>) -> Result<Catalog, Reason> {
        let hosts: Vec<String> = (0..parts.len()).map(|n| format!("n{n}")).collect();
        let sets = vec![(0..u32::try_from(parts.len()).unwrap()).map(Member).collect()];
        let layout =
            Layout { protection: Protection::by(Scheme::Xor), members: places(&hosts), sets, encoding: 0 };
        let mut joining = Joining::new(making(), layout);
        for (member, entries) in (0..).map(Member).zip(parts) {
            joining.add(MemberPart { member, entries, taken: 4096 })?;
        }
        joining.joined(5)
    }

    #[test]
    fn parts_join_sorted_with_directories_once() {
        let root = || entry("", EntryKind::Directory);
        let catalog = joined(vec![
            vec![root(), file("b", 0, 3, 1)],
            vec![root(), file("a", 1, 4, 2), file("c", 1, 0, 0)],
        ])
        .unwrap();
        let paths: Vec<String> = catalog.entries.iter().map(|e| e.path.to_string()).collect();
        assert_eq!(paths, ["", "a", "b", "c"]);
        let MemberPlace { files, bytes, taken, .. } = catalog.layout.members[1];
        assert_eq!((files, bytes, taken), (2, 4, Some(4096)));
        assert!(check(&catalog, DatasetId(1), true).is_ok());
        assert!(check(&catalog, DatasetId(2), true).is_err());
    }

    #[test]
    fn equal_files_agree_and_unequal_ones_name_both_hosts() {
        assert_eq!(
            joined(vec![vec![file("x", 0, 1, 7)], vec![file("x", 1, 1, 7)]]).unwrap().entries.len(),
            2
        );
        let error = joined(vec![vec![file("x", 0, 1, 7)], vec![file("x", 1, 1, 8)]]).unwrap_err();
        assert!(
            error.words().contains('x') && error.words().contains("n0") && error.words().contains("n1"),
            "{error}"
        );
        let kinds = joined(vec![vec![file("x", 0, 1, 7)], vec![entry("x", EntryKind::Directory)]]);
        assert!(kinds.is_err());
        let links = joined(vec![
            vec![entry("l", EntryKind::Symlink(b"a".to_vec()))],
            vec![entry("l", EntryKind::Symlink(b"b".to_vec()))],
        ]);
        assert!(links.is_err());
    }

    #[test]
    fn two_frozen_files_of_one_path_and_different_sizes_name_both_nodes() {
        let frozen = |path: &str, size| [FrozenFile { path: RelPath::new(path).unwrap(), size }];
        let mut sizes = Sizes::default();
        let mut add = |node, file: &[FrozenFile]| sizes.add(NodeRank(node), file, &|node| format!("n{node}"));
        add(0, &frozen("a", 1)).unwrap();
        add(1, &frozen("a", 1)).unwrap();
        add(1, &frozen("b", 2)).unwrap();
        let error = add(2, &frozen("a", 2)).unwrap_err();
        let words = error.words();
        assert!(words.starts_with("a differs between n0 and n2:"), "{error}");
        let error = add(0, &frozen("b", 1)).unwrap_err();
        assert!(error.words().starts_with("b differs between n0 and n1:"), "whoever came first: {error}");
    }

    #[test]
    fn hostile_parts_are_refused() {
        assert!(joined(vec![vec![file("x", 1, 1, 7)], vec![]]).is_err(), "another member's");
        assert!(joined(vec![vec![file("x", 0, 1, 7), file("x", 0, 1, 7)]]).is_err(), "twice");
        let many = (0..6).map(|n| file(&n.to_string(), 0, 0, 0)).collect();
        assert!(joined(vec![many]).unwrap_err().words().contains("LIST_MAX"));
        let directory = |n: u32| entry(&n.to_string(), EntryKind::Directory);
        assert!(joined(vec![(10..15).map(directory).collect()]).is_ok(), "as many as files");
        assert!(
            joined(vec![(10..16).map(directory).collect()]).unwrap_err().words().contains("6 directories")
        );
    }

    #[test]
    fn sets_must_be_a_partition() {
        let mut catalog = joined(vec![vec![file("a", 0, 1, 7)], vec![file("b", 1, 1, 7)]]).unwrap();
        catalog.layout.sets = vec![vec![Member(0), Member(0)]];
        assert!(check(&catalog, DatasetId(1), true).is_err());
        assert!(check(&catalog, DatasetId(1), false).is_ok());
    }
}

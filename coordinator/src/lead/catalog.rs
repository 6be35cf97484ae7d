//! Joining the members' parts to one catalog, and checking catalogs that come from disk.

use std::collections::BTreeMap;

use scrfs::control::{FrozenFile, MemberPart, Reason};
use scrfs::dataset::{Catalog, Entry, EntryKind, Layout, MemberPlace};
use scrfs::ids::{DatasetId, Epoch, Member};
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

/// Two members with one path and different sizes, seen before any byte is read: both hosts and the
/// path.
pub(super) fn size_conflict(frozen: &[&[FrozenFile]], hosts: &[String]) -> Option<String> {
    let mut seen: BTreeMap<&RelPath, (usize, u64)> = BTreeMap::new();
    for (member, files) in frozen.iter().enumerate() {
        for file in *files {
            match seen.get(&file.path) {
                Some(&(other, size)) if size != file.size => {
                    return Some(conflict(&file.path, &hosts[other], &hosts[member]));
                }
                Some(_) => {}
                None => {
                    seen.insert(&file.path, (member, file.size));
                }
            }
        }
    }
    None
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
    match directories.max(names) {
        most if most <= list_max => Ok(()),
        _ if names > list_max => Err(format!("{names} files, more than SCRFS_LIST_MAX ({list_max})").into()),
        _ => Err(format!("{directories} directories, more than SCRFS_LIST_MAX ({list_max})").into()),
    }
}

/// Joins the parts, one of each member, to the catalog. `layout` has the members' hosts; files and
/// bytes are counted here. Equal files of two members both stay (each is part of its member's
/// logical file); directories and links that several members tell are one entry.
pub(super) fn join(
    making: &Making,
    mut layout: Layout,
    parts: BTreeMap<Member, MemberPart>,
    list_max: u64,
) -> Result<Catalog, Reason> {
    let hosts: Vec<String> = layout.members.iter().map(|place| place.host.clone()).collect();
    let mut entries: Vec<Entry> = Vec::new();
    let mut first: BTreeMap<RelPath, (usize, Member)> = BTreeMap::new();
    for (member, part) in parts {
        let place = layout
            .members
            .get_mut(member.0 as usize)
            .ok_or_else(|| format!("a part of member {member} came, which is not in the dataset"))?;
        place.taken = Some(part.taken);
        for entry in part.entries {
            if let EntryKind::File(copy) = &entry.kind {
                if copy.member != member {
                    let (host, path, other) = (&place.host, &entry.path, copy.member);
                    return Err(format!("{host} told of {path} as member {other}'s").into());
                }
                place.files += 1;
                place.bytes = place.bytes.saturating_add(copy.size);
            }
            match first.get(&entry.path) {
                None => {
                    first.insert(entry.path.clone(), (entries.len(), member));
                    entries.push(entry);
                }
                Some(&(at, other)) if same(&entries[at].kind, &entry.kind) => {
                    if other == member {
                        return Err(format!("{} told of {} twice", place.host, entry.path).into());
                    }
                    if matches!(entry.kind, EntryKind::File(_)) {
                        entries.push(entry);
                    }
                }
                Some(&(_, other)) => {
                    let text = conflict(&entry.path, &hosts[other.0 as usize], &hosts[member.0 as usize]);
                    return Err(text.into());
                }
            }
        }
    }
    within(first.values().map(|(at, _)| &entries[*at].kind), list_max)?;
    let mut catalog = Catalog {
        id: making.id,
        epoch: making.epoch,
        revision: making.revision,
        name: making.about.name.clone(),
        created_us: making.about.created_us,
        user: making.about.user.clone(),
        job_id: making.about.job_id.clone(),
        layout,
        entries,
    };
    catalog.sort();
    Ok(catalog)
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
mod tests {
    use scrfs::dataset::{FileCopy, Protection, Scheme, Stamp};

    use super::*;

    fn entry(path: &str, kind: EntryKind) -> Entry {
        let (atime, mtime) = (Stamp::default(), Stamp::default());
        Entry { path: RelPath::new(path).unwrap(), kind, mode: 0o644, uid: 0, gid: 0, atime, mtime }
    }

    fn file(path: &str, member: u32, size: u64, crc: u32) -> Entry {
        entry(path, EntryKind::File(FileCopy { size, crc, member: Member(member), program_rank: None }))
    }

    fn joined(parts: Vec<Vec<Entry>>) -> Result<Catalog, Reason> {
        let hosts: Vec<String> = (0..parts.len()).map(|n| format!("n{n}")).collect();
        let about = About {
            name: b"ck".to_vec(),
            created_us: 1,
            user: "u".into(),
            job_id: "j".into(),
            files: 0,
            bytes: 0,
        };
        let making = Making { id: DatasetId(1), epoch: Epoch(1), revision: 0, about };
        let sets = vec![(0..u32::try_from(parts.len()).unwrap()).map(Member).collect()];
        let layout =
            Layout { protection: Protection::by(Scheme::Xor), members: places(&hosts), sets, encoding: 0 };
        let parts = (0..)
            .map(Member)
            .zip(parts)
            .map(|(member, entries)| (member, MemberPart { member, entries, taken: 4096 }));
        join(&making, layout, parts.collect(), 5)
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

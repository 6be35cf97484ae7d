//! `dataset.<id>.scrinfo`: the COMPLETE record of a dataset with its catalog, as an SCR hash file.
//!
//! That this file is there, whole, *is* the record: it is written in one commit when all members
//! have voted.

use super::{Crc32, Word};
use crate::dataset::{Catalog, EntryKind, Layout, MemberPlace, Protection, Scheme};
use crate::hash::codec::pack_with_values;
use crate::hash::{self, FieldError, FieldProblem, FormatError, Hash, NulInText, Text, framed};
use crate::ids::{DatasetId, Epoch, Member};
use crate::path::RelPath;
use crate::redundancy::FAILURES;

mod lines;

use lines::{LINE_BYTES, entry_of, put_line};

/// What the names of a dataset are below, a line each.
const ENTRIES: &str = "ENTRIES";
/// Members of one dataset.
const MEMBERS_MAX: usize = 1 << 20;

/// Why a catalog is none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CatalogError {
    /// A value is missing or not what it should be.
    #[error(transparent)]
    Field(#[from] FieldError),
    /// A text that cannot be a key.
    #[error(transparent)]
    Nul(#[from] NulInText),
    /// They are no record.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// Its parts do not fit together.
    #[error("{0}")]
    Wrong(String),
}

fn wrong<T>(text: impl Into<String>) -> Result<T, CatalogError> {
    Err(CatalogError::Wrong(text.into()))
}

/// Refuses a catalog whose parts do not fit together, so that nobody else needs to doubt one.
pub(crate) fn validate(catalog: &Catalog) -> Result<(), CatalogError> {
    if catalog.id.0 == 0 {
        return wrong("dataset id 0");
    }
    validate_name(&catalog.name)?;
    let members = catalog.layout.members.len();
    if members > MEMBERS_MAX {
        return wrong(format!("{members} members"));
    }
    let mut in_set = vec![false; members];
    for member in catalog.layout.sets.iter().flatten() {
        match in_set.get_mut(member.0 as usize) {
            Some(seen) if !*seen => *seen = true,
            _ => return wrong(format!("member {member} is in two sets, or there is no such member")),
        }
    }
    if in_set.contains(&false) {
        return wrong("a member is in no set");
    }
    for entry in &catalog.entries {
        if let EntryKind::File(copy) = &entry.kind
            && (copy.member.0 as usize >= members || entry.path.is_root())
        {
            return wrong(format!("file {}: no such member {}", entry.path, copy.member));
        }
        if entry.atime.nsecs > 999_999_999 || entry.mtime.nsecs > 999_999_999 {
            return wrong(format!("{}: nanoseconds beyond a second", entry.path));
        }
    }
    Ok(())
}

/// Refuses what cannot be the name of a directory in the checkpoint path.
pub(crate) fn validate_name(name: &[u8]) -> Result<RelPath, CatalogError> {
    match RelPath::new(name) {
        Ok(path) if path.names().count() == 1 => Ok(path),
        Ok(_) => wrong("a dataset's name is one directory's name"),
        Err(error) => wrong(error.to_string()),
    }
}

/// The record of a catalog.
pub fn encode(catalog: &Catalog) -> Result<Vec<u8>, CatalogError> {
    let mut tree = Hash::new();
    put(&mut tree, "COMPLETE", 1_u32);
    put(&mut tree, "ID", catalog.id.0);
    put(&mut tree, "EPOCH", catalog.epoch.0);
    put(&mut tree, "REVISION", catalog.revision);
    put(&mut tree, "NAME", Text::new(catalog.name.clone())?);
    if catalog.layout.encoding != 0 {
        put(&mut tree, "ENCODING", catalog.layout.encoding);
    }
    put(&mut tree, "CREATED", catalog.created_us);
    put(&mut tree, "USER", Text::new(catalog.user.clone())?);
    put(&mut tree, "JOBID", Text::new(catalog.job_id.clone())?);
    put_protection(&mut tree, &catalog.layout.protection)?;
    let mut members = Hash::new();
    for (at, place) in catalog.layout.members.iter().enumerate() {
        let mut member = Hash::new();
        put(&mut member, "HOST", Text::new(place.host.clone())?);
        put(&mut member, "FILES", place.files);
        put(&mut member, "SIZE", place.bytes);
        if let Some(taken) = place.taken {
            put(&mut member, "TAKEN", taken);
        }
        members.append(Text::from(at), member);
    }
    tree.append("MEMBER".into(), members);
    let mut sets = Hash::new();
    for (at, set) in catalog.layout.sets.iter().enumerate() {
        let mut ring = Hash::new();
        for (position, member) in set.iter().enumerate() {
            ring.append(Text::from(position), Hash::value(member.0));
        }
        sets.append(Text::from(at), ring);
    }
    tree.append("SET".into(), sets);
    let (entries, mut lines) = (&catalog.entries, 0);
    for entry in entries {
        lines += LINE_BYTES + entry.path.as_bytes().len();
    }
    let line = |at: usize, out: &mut Vec<u8>| put_line(&entries[at], out);
    Ok(framed(lines, |out| pack_with_values(&tree, &ENTRIES.into(), entries.len(), line, out))?)
}

/// Reads a record; what it gives is valid.
pub fn decode(bytes: &[u8]) -> Result<Catalog, CatalogError> {
    let mut entries = Vec::new();
    let mut wrong_line = None;
    let tree = &hash::decode_file_with_values(bytes, ENTRIES.as_bytes(), &mut |line| match entry_of(line) {
        Ok(entry) => entries.push(entry),
        Err(error) => drop(wrong_line.get_or_insert(error)),
    })?;
    if let Some(error) = wrong_line {
        return Err(error);
    }
    entries.shrink_to_fit();
    if need(tree.number::<u32>("COMPLETE"), "COMPLETE")? != 1 {
        return wrong("COMPLETE is not 1");
    }
    let members = numbered(tree, "MEMBER", |_, member| {
        Ok(MemberPlace {
            host: utf8(member, "HOST")?,
            files: need(member.number("FILES"), "FILES")?,
            bytes: need(member.number("SIZE"), "SIZE")?,
            taken: member.number("TAKEN")?,
        })
    })?;
    let sets = numbered(tree, "SET", |_, set| {
        let mut ring = Vec::with_capacity(set.len());
        for (position, value) in set.iter() {
            let member = value.keys().next().and_then(Text::number).map(Member);
            match (position.number::<usize>(), member) {
                (Some(position), Some(member)) => ring.push((position, member)),
                _ => return wrong(format!("position {position} of a set")),
            }
        }
        ring.sort_unstable();
        Ok(ring.into_iter().map(|(_, member)| member).collect())
    })?;
    let encoding = tree.number("ENCODING")?.unwrap_or(0);
    let layout = Layout { protection: protection_of(tree)?, members, sets, encoding };
    let mut catalog = Catalog {
        id: DatasetId(need(tree.number("ID"), "ID")?),
        epoch: Epoch(need(tree.number("EPOCH"), "EPOCH")?),
        revision: need(tree.number("REVISION"), "REVISION")?,
        name: need(tree.text("NAME"), "NAME")?.as_bytes().to_vec(),
        created_us: need(tree.number("CREATED"), "CREATED")?,
        user: utf8(tree, "USER")?,
        job_id: utf8(tree, "JOBID")?,
        layout,
        entries,
    };
    catalog.sort();
    validate(&catalog)?;
    Ok(catalog)
}

pub(crate) fn put(tree: &mut Hash, key: &'static str, value: impl Into<Text>) {
    tree.append(key.into(), Hash::value(value));
}

pub(crate) fn need<T>(found: Result<Option<T>, FieldError>, key: &'static str) -> Result<T, FieldError> {
    found?.ok_or_else(|| FieldError::at(key, FieldProblem::Missing))
}

/// What is below `key`: elements with dense numbers from 0 as keys, in any order.
fn numbered<T>(
    tree: &Hash,
    key: &'static str,
    mut decode: impl FnMut(usize, &Hash) -> Result<T, CatalogError>,
) -> Result<Vec<T>, CatalogError> {
    let Some(list) = tree.get(key) else { return Ok(Vec::new()) };
    let mut found = Vec::with_capacity(list.len());
    for (number, below) in list.iter() {
        let Some(number) = number.number::<usize>() else {
            return wrong(format!("{key}/{number} is not a number"));
        };
        found.push((number, decode(number, below)?));
    }
    found.sort_by_key(|&(number, _)| number);
    if found.iter().enumerate().any(|(at, &(number, _))| at != number) {
        return wrong(format!("{key}: numbers are not dense"));
    }
    Ok(found.into_iter().map(|(_, value)| value).collect())
}

fn utf8(tree: &Hash, key: &'static str) -> Result<String, CatalogError> {
    match need(tree.text(key), key)?.as_str() {
        Some(text) => Ok(text.to_owned()),
        None => wrong(format!("{key} is not UTF-8")),
    }
}

pub(crate) fn crc_text(crc: u32) -> Text {
    Crc32(crc).to_word()
}

pub(crate) fn crc_of(text: &Text) -> Result<u32, FieldError> {
    Crc32::from_word(text).map(|Crc32(crc)| crc).map_err(|problem| FieldError::at("CRC", problem))
}

fn put_protection(tree: &mut Hash, protection: &Protection) -> Result<(), CatalogError> {
    put(tree, "TYPE", protection.scheme.scr_word());
    if let Some(failures) = protection.scheme.failures() {
        put(tree, "SET_FAILURES", u32::from(failures));
    }
    put(tree, "INTERVAL", protection.interval);
    put(tree, "SET_SIZE", protection.set_size);
    put(tree, "HOP_DISTANCE", protection.hop_distance);
    put(tree, "GROUP", Text::new(protection.group.clone())?);
    if let Some(store) = &protection.store {
        put(tree, "STORE", Text::new(store.clone())?);
    }
    Ok(())
}

/// Catalogs of versions that did not choose say the scheme alone.
fn protection_of(tree: &Hash) -> Result<Protection, CatalogError> {
    let failures = tree.number("SET_FAILURES")?.unwrap_or(FAILURES);
    let usual = Protection::by(scheme_of(need(tree.text("TYPE"), "TYPE")?, failures)?);
    let group = tree.text("GROUP")?.map(|group| String::from_utf8_lossy(group).into_owned());
    Ok(Protection {
        interval: tree.number("INTERVAL")?.unwrap_or(usual.interval),
        set_size: tree.number("SET_SIZE")?.unwrap_or(usual.set_size),
        hop_distance: tree.number("HOP_DISTANCE")?.unwrap_or(usual.hop_distance),
        group: group.unwrap_or(usual.group),
        store: tree.text("STORE")?.map(|store| store.as_bytes().to_vec()),
        ..usual
    })
}

fn scheme_of(word: &Text, failures: u8) -> Result<Scheme, CatalogError> {
    Scheme::from_word(word, failures).map_or_else(|| wrong(format!("unknown scheme {word}")), Ok)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::dataset::{Entry, FileCopy, Stamp};

    pub(crate) fn example() -> Catalog {
        let stamp = Stamp { secs: -5, nsecs: 7 };
        let entry = |path: &str, kind| Entry {
            path: RelPath::new(path).unwrap(),
            kind,
            mode: 0o644,
            uid: 1000,
            gid: 1001,
            atime: stamp,
            mtime: stamp,
        };
        let file = |size, member| {
            EntryKind::File(FileCopy {
                size,
                crc: 0x0089_8812,
                member: Member(member),
                program_rank: Some(3),
            })
        };
        let place = |host: &str, files, bytes, taken| MemberPlace { host: host.into(), files, bytes, taken };
        Catalog {
            id: DatasetId(4),
            epoch: Epoch(9),
            revision: 2,
            name: b"ck \xff4".to_vec(),
            created_us: 12,
            user: "u".into(),
            job_id: "j".into(),
            layout: Layout {
                encoding: 0,
                protection: Protection::by(Scheme::Xor),
                members: vec![
                    place("n0", 1, 5, Some(4096)),
                    place("n1", 1, 0, None),
                    place("n2", 0, 0, Some(0)),
                ],
                sets: vec![vec![Member(2), Member(0), Member(1)]],
            },
            entries: vec![
                entry("", EntryKind::Directory),
                entry("a b", file(5, 0)),
                entry("d", EntryKind::Directory),
                entry("d/x", file(0, 1)),
                entry("link", EntryKind::Symlink(b"../there".to_vec())),
            ],
        }
    }

    #[test]
    fn there_and_back() {
        let catalog = example();
        let bytes = encode(&catalog).unwrap();
        assert_eq!(decode(&bytes).unwrap(), catalog);
        // Any reader of hash files can print it.
        let tree = hash::decode_file(&bytes).unwrap();
        let lines = tree.get(ENTRIES).unwrap();
        let second = lines.get("1").unwrap().keys().next().unwrap();
        assert_eq!(*second, "F 644 1000 1001 -5.7 -5.7 5 0x898812 0 3 a b");
    }

    #[test]
    fn what_does_not_fit_together_is_refused() {
        let change = |with: &dyn Fn(&mut Catalog)| {
            let mut catalog = example();
            with(&mut catalog);
            validate(&catalog)
        };
        change(&|_| {}).unwrap();
        assert!(change(&|c| c.name = b"../x".to_vec()).is_err());
        assert!(change(&|c| c.name = b"a/b".to_vec()).is_err());
        assert!(change(&|c| c.name = Vec::new()).is_err());
        assert!(change(&|c| c.id = DatasetId(0)).is_err());
        assert!(change(&|c| c.layout.sets[0].push(Member(0))).is_err());
        assert!(change(&|c| c.layout.sets[0][0] = Member(7)).is_err());
        assert!(change(&|c| c.layout.sets[0].truncate(2)).is_err());
        assert!(change(&|c| c.layout.members.truncate(2)).is_err());
        assert!(change(&|c| c.entries[0].mtime.nsecs = 1_000_000_000).is_err());
    }
}

//! The next generation of a sealed dataset, when all nodes are frozen: which node's part has which
//! name (DESIGN 4.6).
//!
//! A changed file takes the place of the sealed one of its path, wherever that is; removed names go
//! everywhere; what nobody changed or removed is carried on by the node that has its bytes. Only
//! two changed files of one path may conflict.

use std::collections::{BTreeMap, BTreeSet};

use scrfs::control::{FrozenFile, FrozenPart, Reason};
use scrfs::dataset::{Catalog, EntryKind};
use scrfs::path::RelPath;

/// What one node's part is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Merged {
    /// Its files, in the order of the logical file.
    pub(super) files: Vec<FrozenFile>,
    /// Names of the base that do not belong to it, for `Carry`.
    pub(super) dropped: Vec<RelPath>,
}

/// Joins the parts, one of each node, over `base`, the sealed generation before if there is one. Or
/// says why they do not fit. That two changed files of one path have one size is known before.
pub(super) fn merge(base: Option<&Catalog>, parts: Vec<FrozenPart>) -> Result<Vec<Merged>, Reason> {
    let Some(base) = base else {
        return Ok(parts.into_iter().map(|part| Merged { files: part.files, dropped: Vec::new() }).collect());
    };
    let overlay = Overlay::new(&parts);
    let merged: Vec<Merged> = parts.iter().enumerate().map(|(node, part)| overlay.part(node, part)).collect();
    all_there(base, &parts, &overlay)?;
    Ok(merged)
}

/// What nodes changed and removed, and which nodes.
struct Overlay<'a> {
    /// Changed files and links.
    changed: BTreeSet<&'a RelPath>,
    /// Sealed names that are gone, with all below them, or replaced.
    gone: BTreeMap<&'a RelPath, BTreeSet<usize>>,
}

impl<'a> Overlay<'a> {
    fn new(parts: &'a [FrozenPart]) -> Self {
        let mut overlay = Self { changed: BTreeSet::new(), gone: BTreeMap::new() };
        for (node, part) in parts.iter().enumerate() {
            overlay.changed.extend(part.files.iter().map(|file| &file.path).chain(&part.links));
            for path in &part.removed {
                overlay.gone.entry(path).or_default().insert(node);
            }
        }
        overlay
    }

    /// That name of the base is gone, or replaced.
    fn is_gone(&self, sealed: &RelPath) -> bool {
        let mut at = Some(sealed.clone());
        while let Some(path) = at {
            if self.gone.contains_key(&path) {
                return true;
            }
            at = path.split_last().map(|(above, _)| above);
        }
        false
    }

    fn stays(&self, carried: &FrozenFile) -> bool {
        !self.changed.contains(&carried.path) && !self.is_gone(&carried.path)
    }

    fn part(&self, node: usize, part: &FrozenPart) -> Merged {
        let (carried, lost): (Vec<&FrozenFile>, Vec<&FrozenFile>) =
            part.carried.iter().partition(|carried| self.stays(carried));
        let mut files = part.files.clone();
        files.extend(carried.into_iter().cloned());
        files.sort_by(|a, b| a.path.cmp(&b.path));
        let others = |nodes: &BTreeSet<usize>| nodes.iter().any(|other| *other != node);
        let elsewhere = self.gone.iter().filter(|(_, nodes)| others(nodes)).map(|(path, _)| (*path).clone());
        let dropped: BTreeSet<RelPath> =
            lost.into_iter().map(|carried| carried.path.clone()).chain(elsewhere).collect();
        Merged { files, dropped: dropped.into_iter().collect() }
    }
}

/// Every file of the base goes on somewhere, or was changed or removed.
fn all_there(base: &Catalog, parts: &[FrozenPart], overlay: &Overlay<'_>) -> Result<(), Reason> {
    let there: BTreeSet<&RelPath> =
        parts.iter().flat_map(|part| &part.carried).map(|carried| &carried.path).collect();
    let files = base.entries.iter().filter(|entry| matches!(entry.kind, EntryKind::File(_)));
    for entry in files {
        if !overlay.is_gone(&entry.path) && !there.contains(&entry.path) {
            return Err(format!("{} was not changed, and no node has its sealed bytes", entry.path).into());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use scrfs::dataset::{Entry, FileCopy, Layout, Protection, Scheme, Stamp};
    use scrfs::ids::{DatasetId, Epoch, Member};

    use super::*;

    fn path(text: &str) -> RelPath {
        RelPath::new(text).unwrap()
    }

    fn files(texts: &[(&str, u64)]) -> Vec<FrozenFile> {
        texts.iter().map(|(text, size)| FrozenFile { path: path(text), size: *size }).collect()
    }

    fn part(
        changed: &[(&str, u64)],
        carried: &[(&str, u64)],
        removed: &[&str],
        links: &[&str],
    ) -> FrozenPart {
        let paths = |texts: &[&str]| texts.iter().map(|text| path(text)).collect();
        FrozenPart {
            files: files(changed),
            carried: files(carried),
            removed: changed
                .iter()
                .map(|(text, _)| text)
                .chain(removed)
                .chain(links)
                .map(|text| path(text))
                .collect(),
            links: paths(links),
            begun_us: 0,
        }
    }

    fn base(names: &[&str]) -> Catalog {
        let copy = FileCopy { size: 1, crc: 0, member: Member(0), program_rank: None };
        let entry = |text: &&str| Entry {
            path: path(text),
            kind: EntryKind::File(copy.clone()),
            mode: 0,
            uid: 0,
            gid: 0,
            atime: Stamp::default(),
            mtime: Stamp::default(),
        };
        Catalog {
            id: DatasetId(1),
            epoch: Epoch(1),
            revision: 0,
            name: b"ck".to_vec(),
            created_us: 0,
            user: String::new(),
            job_id: String::new(),
            layout: Layout {
                protection: Protection::by(Scheme::Xor),
                members: Vec::new(),
                sets: Vec::new(),
                encoding: 0,
            },
            entries: names.iter().map(entry).collect(),
        }
    }

    fn shown(merged: &[Merged]) -> Vec<(String, String)> {
        let join = |names: Vec<String>| names.join(" ");
        let files = |part: &Merged| join(part.files.iter().map(|f| f.path.to_string()).collect());
        let dropped = |part: &Merged| join(part.dropped.iter().map(ToString::to_string).collect());
        merged.iter().map(|part| (files(part), dropped(part))).collect()
    }

    #[test]
    fn changed_beats_carried_and_removed_and_names_go_everywhere() {
        let sealed = base(&["a", "b", "d/x", "d/y", "e"]);
        let one = part(&[("b", 9)], &[("a", 1), ("d/x", 1)], &["e"], &[]);
        let two = part(&[("e", 3)], &[("b", 1), ("d/y", 1)], &["d"], &["l"]);
        let merged = merge(Some(&sealed), vec![one, two]).unwrap();
        let text = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        assert_eq!(shown(&merged), [text("a b", "d d/x e l"), text("e", "b d/y e")]);
    }

    #[test]
    fn a_file_that_nobody_has_any_more_is_named() {
        let error = merge(Some(&base(&["a", "b"])), vec![part(&[], &[("a", 1)], &[], &[])]).unwrap_err();
        assert!(error.words().contains('b'), "{error}");
        assert!(merge(Some(&base(&["a", "b"])), vec![part(&[], &[("a", 1)], &["b"], &[])]).is_ok());
    }
}

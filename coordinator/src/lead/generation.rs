//! The next generation of a sealed dataset, when all nodes are frozen: which node's part has which
//! name (`scrfs/docs/protocol.md`, Next generation).
//!
//! A changed file takes the place of the sealed one of its path, wherever that is; removed names go
//! everywhere; what nobody changed or removed is carried on by the node that has its bytes. Of
//! several such nodes the one does so that has the file by the catalog: another one's copy is of
//! the time before its member was rebuilt elsewhere, and may have gone bad since. Only two changed
//! files of one path may conflict.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use scrfs::control::{FrozenFile, FrozenPart, Reason};
use scrfs::dataset::{Catalog, Entry, EntryKind, Names};
use scrfs::ids::NodeRank;
use scrfs::path::RelPath;

use super::catalog::Sizes;

/// What one node's part is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Merged {
    /// Its files, in the order of the logical file.
    pub(super) files: Vec<FrozenFile>,
    /// Files of the base that it does not carry on, as another node changed or removed them, or
    /// carries them on.
    pub(super) dropped: Vec<RelPath>,
}

/// The nodes' parts, taken in as they come, so that no single step of the lead does the work of all
/// of them.
#[derive(Debug, Default)]
pub(super) struct Merging {
    /// The sealed generation before, if there is one.
    base: Option<Arc<Catalog>>,
    sizes: Sizes,
    /// Of each entry of the base, in its order.
    marks: Vec<Marks>,
    /// Names of the base other than files that are gone, or replaced, with all below them.
    gone: Names,
    parts: BTreeMap<NodeRank, Told>,
}

/// What became of an entry of the base.
#[derive(Debug, Default, Clone, Copy)]
struct Marks {
    /// It was removed or replaced.
    gone: bool,
    /// Some node carries it on.
    carried: bool,
    /// A node does that has it by the catalog.
    at_home: bool,
}

/// A node's part.
#[derive(Debug)]
struct Told {
    files: Vec<FrozenFile>,
    /// With their places in the base, and whether the node has them by the catalog.
    carried: Vec<(FrozenFile, usize, bool)>,
}

impl Merging {
    /// Over `base`, the sealed generation before if there is one.
    pub(super) fn over(base: Option<Arc<Catalog>>) -> Self {
        let marks = vec![Marks::default(); base.as_ref().map_or(0, |base| base.entries.len())];
        Self { base, marks, ..Self::default() }
    }

    /// A node's part; or why it does not fit to the others.
    pub(super) fn add(
        &mut self,
        node: NodeRank,
        part: FrozenPart,
        host: impl Fn(NodeRank) -> String,
    ) -> Result<(), Reason> {
        let FrozenPart { files, carried, removed, links, .. } = part;
        self.sizes.add(node, &files, &host)?;
        let mut told = Told { files, carried: Vec::new() };
        if let Some(base) = &self.base {
            for path in removed.iter().chain(told.files.iter().map(|file| &file.path)).chain(&links) {
                match base.position(path) {
                    Some(at) if is_file(&base.entries[at]) => self.marks[at].gone = true,
                    Some(_) => self.gone.insert(path.clone()),
                    None if has_below(base, path) => self.gone.insert(path.clone()),
                    None => {}
                }
            }
            let host = host(node);
            for file in carried {
                let Some(at) = base.position(&file.path) else {
                    let path = &file.path;
                    return Err(format!("{host} carries {path} on, which was not sealed").into());
                };
                let at_home = is_on(base, at, &host);
                self.marks[at].carried = true;
                self.marks[at].at_home |= at_home;
                told.carried.push((file, at, at_home));
            }
        }
        self.parts.insert(node, told);
        Ok(())
    }

    /// All parts are there: what each is, by rank, and what is gone for all of them, for `Carry`.
    pub(super) fn merged(&mut self) -> Result<(Vec<Merged>, Names), Reason> {
        self.all_there()?;
        let parts = std::mem::take(&mut self.parts);
        let merged = parts.into_values().map(|told| self.part(told)).collect();
        Ok((merged, std::mem::take(&mut self.gone)))
    }

    fn part(&self, told: Told) -> Merged {
        let Told { mut files, carried } = told;
        let mut dropped = Vec::new();
        for (file, at, at_home) in carried {
            if self.is_gone(at, &file.path) || self.marks[at].at_home && !at_home {
                dropped.push(file.path);
            } else {
                files.push(file);
            }
        }
        files.sort_by(|a, b| a.path.cmp(&b.path));
        Merged { files, dropped }
    }

    fn is_gone(&self, at: usize, path: &RelPath) -> bool {
        self.marks[at].gone || self.gone.cover(path)
    }

    /// Every file of the base goes on somewhere, or was changed or removed.
    fn all_there(&self) -> Result<(), Reason> {
        let Some(base) = &self.base else { return Ok(()) };
        let mut before: Option<&RelPath> = None;
        for (at, entry) in base.entries.iter().enumerate() {
            let path = &entry.path;
            // Of equal files of two members the first stands for both.
            let is_first = before.replace(path) != Some(path);
            let marks = self.marks[at];
            if is_first && is_file(entry) && !marks.carried && !self.is_gone(at, path) {
                return Err(format!("{path} was not changed, and no node has its sealed bytes").into());
            }
        }
        Ok(())
    }
}

/// What a node is told not to carry on: what it drops alone, and what is gone for all.
pub(super) fn dropped(own: Vec<RelPath>, gone: &Names) -> Vec<RelPath> {
    let all: BTreeSet<RelPath> = own.into_iter().chain(gone.iter().cloned()).collect();
    all.into_iter().collect()
}

/// The catalog has the file of this place, which may be of several members, on `host`.
fn is_on(base: &Catalog, at: usize, host: &str) -> bool {
    let path = &base.entries[at].path;
    let equal = base.entries[at..].iter().take_while(|entry| entry.path == *path);
    let place = |entry: &Entry| match &entry.kind {
        EntryKind::File(copy) => base.layout.members.get(copy.member.0 as usize),
        _ => None,
    };
    equal.filter_map(place).any(|place| place.host == host)
}

fn is_file(entry: &Entry) -> bool {
    matches!(entry.kind, EntryKind::File(_))
}

/// It is a directory that no entry names, but some are in.
fn has_below(base: &Catalog, path: &RelPath) -> bool {
    let mut below = path.as_bytes().to_vec();
    below.push(b'/');
    let at = base.entries.partition_point(|entry| entry.path.as_bytes() < below.as_slice());
    base.entries.get(at).is_some_and(|entry| entry.path.as_bytes().starts_with(&below))
}

#[cfg(test)]
mod tests {
    use scrfs::dataset::{FileCopy, Layout, MemberPlace, Protection, Scheme, Stamp};
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

    /// Files of each node, and what it is told not to carry on.
    fn merge(base: Option<Catalog>, parts: Vec<FrozenPart>) -> Result<Vec<(String, String)>, Reason> {
        let mut merging = Merging::over(base.map(Arc::new));
        for (node, part) in (0..).map(NodeRank).zip(parts) {
            merging.add(node, part, |node| format!("n{node}"))?;
        }
        let (merged, gone) = merging.merged()?;
        let join = |names: Vec<String>| names.join(" ");
        let shown = |Merged { files, dropped: own }| {
            let dropped = dropped(own, &gone);
            (
                join(files.iter().map(|file| file.path.to_string()).collect()),
                join(dropped.iter().map(ToString::to_string).collect()),
            )
        };
        Ok(merged.into_iter().map(shown).collect())
    }

    fn text(files: &str, dropped: &str) -> (String, String) {
        (files.to_owned(), dropped.to_owned())
    }

    #[test]
    fn changed_beats_carried_and_removed_and_names_go_everywhere() {
        let sealed = base(&["a", "b", "d/x", "d/y", "e"]);
        let one = part(&[("b", 9)], &[("a", 1), ("d/x", 1)], &["e"], &[]);
        let two = part(&[("e", 3)], &[("b", 1), ("d/y", 1)], &["d"], &["l"]);
        let merged = merge(Some(sealed), vec![one, two]).unwrap();
        assert_eq!(merged, [text("a b", "d d/x"), text("e", "b d d/y")]);
    }

    #[test]
    fn files_that_others_changed_are_told_to_nobody_who_does_not_carry_them() {
        let names: Vec<String> = (0..100).map(|node| format!("rank{node:02}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let all = names.iter().map(|name| part(&[(name, 1)], &[], &[], &[])).collect();
        let merged = merge(Some(base(&names)), all).unwrap();
        assert!(merged.iter().zip(&names).all(|(got, name)| *got == text(name, "")), "{merged:?}");
    }

    #[test]
    fn a_file_that_nobody_has_any_more_is_named() {
        let error = merge(Some(base(&["a", "b"])), vec![part(&[], &[("a", 1)], &[], &[])]).unwrap_err();
        assert!(error.words().contains('b'), "{error}");
        merge(Some(base(&["a", "b"])), vec![part(&[], &[("a", 1)], &["b"], &[])]).unwrap();
        let error = merge(Some(base(&["a"])), vec![part(&[], &[("a", 1), ("c", 1)], &[], &[])]).unwrap_err();
        assert!(error.words().contains("n0 carries c on"), "{error}");
    }

    #[test]
    fn equal_files_of_two_members_are_one_name() {
        let both = || part(&[], &[("a", 1)], &[], &[]);
        let merged = merge(Some(base(&["a", "a"])), vec![both(), both()]).unwrap();
        assert_eq!(merged, [text("a", ""), text("a", "")]);
        let merged = merge(Some(base(&["a", "a"])), vec![part(&[("a", 2)], &[], &[], &[]), both()]).unwrap();
        assert_eq!(merged, [text("a", ""), text("", "a")]);
    }

    /// Its member was rebuilt on n1, and n0 has come back with what it had.
    #[test]
    fn a_node_that_has_an_old_copy_of_a_member_carries_nothing_of_that_on_but_where_nobody_else_does() {
        let member = MemberPlace { host: "n1".into(), files: 1, bytes: 1, taken: None };
        let sealed = || {
            let mut sealed = base(&["a"]);
            sealed.layout.members = vec![member.clone()];
            Some(sealed)
        };
        let (carries, nothing) = (part(&[], &[("a", 1)], &[], &[]), part(&[], &[], &[], &[]));
        let merged = merge(sealed(), vec![carries.clone(), carries.clone()]).unwrap();
        assert_eq!(merged, [text("", "a"), text("a", "")]);
        let merged = merge(sealed(), vec![carries, nothing]).unwrap();
        assert_eq!(merged, [text("a", ""), text("", "")]);
    }

    #[test]
    fn without_a_base_all_is_new() {
        let merged = merge(None, vec![part(&[("b", 1), ("c", 1)], &[], &[], &[]), part(&[], &[], &[], &[])]);
        assert_eq!(merged.unwrap(), [text("b c", ""), text("", "")]);
        let parts = vec![part(&[("a", 1)], &[], &[], &[]), part(&[("a", 2)], &[], &[], &[])];
        assert!(merge(None, parts).unwrap_err().words().contains("differs between n0 and n1"));
    }
}

//! `filemap_0.scrinfo`: which member of which dataset is here, with its files, in the form of SCR
//! 2013.
//!
//! The filemap key, META/FILE and META/NAME are the path relative to the dataset's directory; RANK
//! is the member's index; FILES counts the redundancy file; a member without files still has its
//! entry. Mode, owner, times and the program's rank are extra keys of META.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::dataset::{Entry, EntryKind, FileCopy, Protection, Protections};
use crate::hash::{FieldError, FieldProblem, Hash, Text};
use crate::ids::{DatasetId, Member};
use crate::path::RelPath;
use crate::record::{
    Attributes, Crc32, DatasetDescriptor, FileKind, FilemapEntry, FilemapMaster, FilemapMember,
    FlushDescriptor, Meta, Record, RedundancyDescriptor, RedundancyFileName, require,
};

use crate::stores::Place;

use super::state::{Dataset, Part, RedundancyFile};

/// What the filemap tells of one member.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Mapped {
    pub(super) files: Vec<(Entry, FileCopy)>,
    pub(super) redundancy: Vec<RedundancyFile>,
}

/// All members of all datasets here.
pub(super) type Filemap = BTreeMap<(DatasetId, Member), Mapped>;

/// Where a dataset's cache is, for the descriptors.
pub(super) struct CacheNames {
    pub(super) base: Text,
    pub(super) directory: Text,
}

impl CacheNames {
    pub(super) fn of(place: &Place) -> Self {
        let text = |path: &Path| Text::new(path.as_os_str().as_bytes()).unwrap_or_default();
        Self { base: text(&place.base), directory: text(&place.cache) }
    }
}

/// The filemap of `datasets`; `cache` tells where each is.
pub(super) fn encode<'a>(
    datasets: impl Iterator<Item = &'a Dataset>,
    protections: &Protections,
    cache: impl Fn(DatasetId) -> CacheNames,
) -> FilemapMember {
    let mut map = FilemapMember::default();
    for dataset in datasets {
        let protection = match dataset.life.catalog() {
            Some(index) => &index.catalog().layout.protection,
            None => protections.of(dataset.id.0),
        };
        for (member, part) in &dataset.parts {
            let mut entry = entry_of(part);
            // Known once the dataset is complete; what cannot be put down has not been recorded
            // either.
            entry.dataset = dataset.life.catalog().and_then(|c| DatasetDescriptor::of(c.catalog()).ok());
            if !part.set.is_empty() {
                let sets = dataset.life.catalog().map_or(1, |index| index.catalog().layout.sets.len().max(1));
                entry.redundancy = Some(redundancy_of(*member, part, protection, sets, &cache(dataset.id)));
            }
            map.set_entry(*member, dataset.id, entry);
        }
    }
    map
}

fn entry_of(part: &Part) -> FilemapEntry {
    let flush =
        FlushDescriptor { preserve: Some(false), container: Some(false), ..FlushDescriptor::default() };
    let mut entry = FilemapEntry { flush: Some(flush), ..FilemapEntry::default() };
    let meta = |name: &Text, kind, size| Meta {
        file: Some(name.clone()),
        kind: Some(kind),
        ranks: Some(part.members.into()),
        size: Some(size),
        complete: Some(part.recorded),
        ..Meta::default()
    };
    for (file, copy) in &part.files {
        let name = Text::from(&file.path);
        let meta = Meta {
            orig: Some(name.clone()),
            name: Some(name.clone()),
            crc: (part.recorded || part.crcs_known || copy.crc != 0).then_some(Crc32(copy.crc)),
            program_rank: copy.program_rank,
            attributes: Some(Attributes::of(file)),
            ..meta(&name, FileKind::User, copy.size)
        };
        entry.files.set_last(name, meta.into());
    }
    for file in part.redundancy.values() {
        // Made by the coordinator of position, size and set: never has a NUL.
        let name = Text::new(file.name.clone()).unwrap_or_default();
        let kind = RedundancyFileName::parse(file.name.as_bytes())
            .map_or(FileKind::Xor, |name| name.kind.file_kind());
        let meta = Meta { crc: Some(Crc32(file.crc)), ..meta(&name, kind, file.size) };
        entry.files.set_last(name, meta.into());
    }
    entry.expected_files = Some(entry.files.len() as u64);
    entry
}

fn redundancy_of(
    member: Member,
    part: &Part,
    protection: &Protection,
    sets: usize,
    cache: &CacheNames,
) -> RedundancyDescriptor {
    RedundancyDescriptor {
        enabled: Some(true),
        interval: Some(protection.interval.into()),
        base: Some(cache.base.clone()),
        directory: Some(cache.directory.clone()),
        kind: Some(protection.scheme.scr_word().into()),
        failures: protection.scheme.failures().map(u32::from),
        groups: Some(sets as u64),
        // SCR names a set after its first member.
        group_id: Some(part.set.first().map_or(member, |first| *first).0.into()),
        group_size: Some(part.set.len() as u64),
        group_rank: Some(part.set.iter().position(|&m| m == member).unwrap_or(0) as u64),
        ..RedundancyDescriptor::default()
    }
}

/// Reads a filemap; a member whose record is wrong is left out and told in the second value.
pub(super) fn decode(tree: &Hash) -> (Filemap, Vec<String>) {
    let mut map = Filemap::new();
    let mut problems = Vec::new();
    let ranks = tree.get("RANK").into_iter().flat_map(Hash::iter);
    for (rank, below) in ranks {
        for (id, entry) in below.get("DSET").into_iter().flat_map(Hash::iter) {
            let (Some(member), Some(dataset)) = (rank.number(), id.number()) else {
                problems.push(format!("RANK/{rank}/DSET/{id}: not numbers"));
                continue;
            };
            match FilemapEntry::from_hash(entry).and_then(|entry| mapped(&entry, Member(member))) {
                Ok(mapped) => drop(map.insert((DatasetId(dataset), Member(member)), mapped)),
                Err(error) => problems.push(format!("RANK/{rank}/DSET/{id}/{error}")),
            }
        }
    }
    (map, problems)
}

fn mapped(entry: &FilemapEntry, member: Member) -> Result<Mapped, FieldError> {
    let mut mapped = Mapped { files: Vec::new(), redundancy: Vec::new() };
    for (name, file) in entry.files.iter() {
        let meta = require(file.meta.as_ref(), "META");
        let added = meta
            .and_then(|meta| add_file(meta, name, member, &mut mapped).map_err(|error| error.under("META")));
        added.map_err(|error| error.under(name).under("FILE"))?;
    }
    let expected = *require(entry.expected_files.as_ref(), "FILES")?;
    if (mapped.files.len() + mapped.redundancy.len()) as u64 != expected {
        return Err(FieldError::at("FILES", FieldProblem::Other("is not the number of files")));
    }
    Ok(mapped)
}

fn add_file(meta: &Meta, name: &Text, member: Member, mapped: &mut Mapped) -> Result<(), FieldError> {
    let size = *require(meta.size.as_ref(), "SIZE")?;
    let crc = meta.crc.map_or(0, |crc| crc.0);
    let kind = require(meta.kind.as_ref(), "TYPE")?;
    if matches!(kind, FileKind::Partner | FileKind::Xor | FileKind::ReedSolomon) {
        let name = name.as_str().ok_or_else(|| FieldError::here(FieldProblem::Other("is not UTF-8")))?;
        mapped.redundancy.push(RedundancyFile { name: name.to_owned(), size, crc });
        return Ok(());
    }
    let path = RelPath::new(name.as_bytes()).map_err(|error| FieldError::here(error.into()))?;
    let copy = FileCopy { size, crc, member, program_rank: meta.program_rank };
    let attributes = require(meta.attributes.as_ref(), "MODE")?;
    mapped.files.push((attributes.entry(path, EntryKind::File(copy.clone())), copy));
    Ok(())
}

/// `filemap.scrinfo`: the list of this node's filemaps.
pub(super) fn master(path_of_filemap: Text) -> FilemapMaster {
    FilemapMaster { filemaps: [(path_of_filemap, ())].into_iter().collect(), ..FilemapMaster::default() }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::daemon::state::Origin;
    use crate::dataset::CatalogIndex;
    use crate::dataset::lifecycle::Files;
    use crate::record::catalog_file::tests::example;

    #[test]
    fn there_and_back_and_counts_the_redundancy_file() {
        let catalog = example();
        let mut dataset = Dataset::new(catalog.id, catalog.epoch, catalog.name.clone(), Files::InTree);
        let files = catalog.files_of(Member(0)).map(|(e, c)| (e.clone(), c.clone())).collect();
        let mut part = Part::new(Origin::Here, files, Vec::new());
        part.recorded = true;
        part.members = 3;
        part.set = vec![Member(2), Member(0), Member(1)];
        let redundancy = RedundancyFile { name: "2_of_3_in_2.xor".into(), size: 99, crc: 5 };
        part.redundancy.insert(0, redundancy.clone());
        dataset.parts.insert(Member(0), Arc::new(part.clone()));
        dataset.parts.insert(Member(2), Arc::new(Part::new(Origin::Here, Vec::new(), Vec::new())));
        dataset.complete(&Arc::new(CatalogIndex::new(catalog)));
        let cache = |_| CacheNames { base: "/dev/shm".into(), directory: "/dev/shm/u/scr.j".into() };
        let filemap = encode([&dataset].into_iter(), &Protections::default(), cache);
        assert_eq!(FilemapMember::decode(&filemap.encode()).unwrap(), filemap);
        let tree = crate::hash::decode_file(&filemap.encode()).unwrap();
        let (map, problems) = decode(&tree);
        assert!(problems.is_empty(), "{problems:?}");
        assert_eq!(map.len(), 2);
        let mapped = &map[&(DatasetId(4), Member(0))];
        assert_eq!(mapped.files, part.files);
        assert_eq!(mapped.redundancy, [redundancy]);
        assert_eq!(tree.to_string(), include_str!("filemap_0.txt"));
    }

    #[test]
    fn the_master_names_this_filemap() {
        let master = master(Text::new("/dev/shm/u/scr.j/filemap_0.scrinfo").unwrap());
        assert_eq!(FilemapMaster::decode(&master.encode()).unwrap(), master);
        assert_eq!(master.to_hash().to_string(), "  Filemap\n    /dev/shm/u/scr.j/filemap_0.scrinfo\n");
    }

    #[test]
    fn a_wrong_member_is_told_and_left_out() {
        let mut tree = Hash::new();
        let part = tree.child("RANK").child(1_u32).child("DSET").child(7_u64);
        part.set_value("FILES", 1_u32);
        let meta = part.child("FILE").child(Text::new("../../x").unwrap()).child("META");
        meta.set_value("SIZE", 1_u32);
        meta.set_value("TYPE", "USER");
        let (map, problems) = decode(&tree);
        assert!(map.is_empty());
        assert_eq!(problems.len(), 1);
    }
}

//! `filemap_0.scrinfo`: which member of which dataset is here, with its files, in the form of SCR 2013 (FORMATS 2).
//!
//! The filemap key, META/FILE and META/NAME are the path relative to the dataset's directory; RANK is the member's
//! index; FILES counts the redundancy file; a member without files still has its entry. Mode, owner, times and the
//! program's rank are extra keys of META.

use std::collections::BTreeMap;

use crate::dataset::{Entry, EntryKind, FileCopy, Scheme, Stamp};
use crate::hash::{FieldError, FieldProblem, Hash, Text};
use crate::ids::{DatasetId, Member};
use crate::path::RelPath;

use super::catalog_file::{crc_of, crc_text, decode_attributes, encode_attributes, need, put, scheme_word};
use super::state::{Dataset, Part, RedundancyFile};

/// What the filemap tells of one member.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Mapped {
    pub(super) files: Vec<(Entry, FileCopy)>,
    pub(super) redundancy: Option<RedundancyFile>,
}

/// All members of all datasets here.
pub(super) type Filemap = BTreeMap<(DatasetId, Member), Mapped>;

/// Where the cache is, for the descriptors.
pub(super) struct CacheNames {
    pub(super) base: Text,
    pub(super) directory: Text,
}

/// The filemap of `datasets`.
pub(super) fn encode<'a>(
    datasets: impl Iterator<Item = &'a Dataset>,
    scheme: Scheme,
    cache: &CacheNames,
) -> Hash {
    let mut by_dataset = Hash::new();
    let mut by_member: BTreeMap<Member, Hash> = BTreeMap::new();
    for dataset in datasets.filter(|dataset| !dataset.parts.is_empty()) {
        let scheme = dataset.catalog.as_ref().map_or(scheme, |index| index.catalog().layout.scheme);
        let mut ranks = Hash::new();
        for (member, part) in &dataset.parts {
            ranks.append(Text::from(member.0), Hash::new());
            let datasets = by_member.entry(*member).or_default();
            datasets.append(Text::from(dataset.id.0), encode_part(dataset, *member, part, scheme, cache));
        }
        let mut rank = Hash::new();
        rank.append("RANK".into(), ranks);
        by_dataset.append(Text::from(dataset.id.0), rank);
    }
    let mut tree = Hash::new();
    if by_dataset.is_empty() {
        return tree;
    }
    tree.append("DSET".into(), by_dataset);
    let mut ranks = Hash::new();
    for (member, datasets) in by_member {
        let mut below = Hash::new();
        below.append("DSET".into(), datasets);
        ranks.append(Text::from(member.0), below);
    }
    tree.append("RANK".into(), ranks);
    tree
}

fn encode_part(dataset: &Dataset, member: Member, part: &Part, scheme: Scheme, cache: &CacheNames) -> Hash {
    let mut tree = Hash::new();
    put(&mut tree, "FILES", part.files.len() + usize::from(part.redundancy.is_some()));
    if let Some(descriptor) = encode_descriptor(dataset) {
        tree.append("DSETDESC".into(), descriptor);
    }
    let mut files = Hash::new();
    for (entry, copy) in &part.files {
        let mut meta = Hash::new();
        let name = Text::from(&entry.path);
        put_meta(&mut meta, &name, "USER", part.members, copy.size);
        put(&mut meta, "ORIG", &name);
        put(&mut meta, "NAME", &name);
        put(&mut meta, "COMPLETE", u32::from(part.recorded));
        if part.recorded || part.crcs_known {
            put(&mut meta, "CRC", crc_text(copy.crc));
        }
        if let Some(rank) = copy.program_rank {
            put(&mut meta, "PROGRAM_RANK", rank);
        }
        encode_attributes(&mut meta, entry);
        files.append(name, meta_of(meta));
    }
    if let Some(redundancy) = &part.redundancy {
        let name = Text::new(redundancy.name.clone()).unwrap_or_default();
        let mut meta = Hash::new();
        put_meta(&mut meta, &name, "XOR", part.members, redundancy.size);
        put(&mut meta, "COMPLETE", u32::from(part.recorded));
        put(&mut meta, "CRC", crc_text(redundancy.crc));
        files.append(name, meta_of(meta));
    }
    tree.append("FILE".into(), files);
    if !part.set.is_empty() {
        tree.append("REDDESC".into(), encode_redundancy(dataset, member, part, scheme, cache));
    }
    let mut flush = Hash::new();
    put(&mut flush, "PRESERVE", 0_u32);
    put(&mut flush, "CONTAINER", 0_u32);
    tree.append("FLUSH".into(), flush);
    tree
}

fn put_meta(meta: &mut Hash, name: &Text, kind: &'static str, members: u32, size: u64) {
    put(meta, "FILE", name);
    put(meta, "TYPE", kind);
    put(meta, "RANKS", members);
    put(meta, "SIZE", size);
}

fn meta_of(meta: Hash) -> Hash {
    let mut tree = Hash::new();
    tree.append("META".into(), meta);
    tree
}

/// Known once the dataset is complete.
fn encode_descriptor(dataset: &Dataset) -> Option<Hash> {
    let catalog = dataset.catalog.as_ref()?.catalog();
    let mut tree = Hash::new();
    put(&mut tree, "CKPT", dataset.id.0);
    put(&mut tree, "JOBID", Text::new(catalog.job_id.clone()).unwrap_or_default());
    put(&mut tree, "USER", Text::new(catalog.user.clone()).unwrap_or_default());
    put(&mut tree, "CREATED", catalog.created_us);
    put(&mut tree, "NAME", Text::new(catalog.name.clone()).unwrap_or_default());
    put(&mut tree, "ID", dataset.id.0);
    put(&mut tree, "FILES", catalog.layout.members.iter().map(|place| place.files).sum::<u64>());
    put(&mut tree, "SIZE", catalog.bytes());
    put(&mut tree, "COMPLETE", 1_u32);
    Some(tree)
}

fn encode_redundancy(
    dataset: &Dataset,
    member: Member,
    part: &Part,
    scheme: Scheme,
    cache: &CacheNames,
) -> Hash {
    let mut tree = Hash::new();
    put(&mut tree, "ENABLED", 1_u32);
    put(&mut tree, "INTERVAL", 1_u32);
    put(&mut tree, "BASE", &cache.base);
    put(&mut tree, "DIRECTORY", &cache.directory);
    put(&mut tree, "TYPE", scheme_word(scheme));
    // SCR names a set after its first member.
    let groups = dataset.catalog.as_ref().map_or(1, |index| index.catalog().layout.sets.len().max(1));
    put(&mut tree, "GROUPS", groups);
    put(&mut tree, "GROUP_ID", part.set.first().map_or(member.0, |first| first.0));
    put(&mut tree, "GROUP_SIZE", part.set.len());
    put(&mut tree, "GROUP_RANK", part.set.iter().position(|&m| m == member).unwrap_or(0));
    tree
}

/// Reads a filemap; a member whose record is wrong is left out and told in the second value.
pub(super) fn decode(tree: &Hash) -> (Filemap, Vec<String>) {
    let mut map = Filemap::new();
    let mut problems = Vec::new();
    let ranks = tree.get("RANK").into_iter().flat_map(Hash::iter);
    for (rank, below) in ranks {
        for (id, part) in below.get("DSET").into_iter().flat_map(Hash::iter) {
            let (Some(member), Some(dataset)) = (rank.number(), id.number()) else {
                problems.push(format!("RANK/{rank}/DSET/{id}: not numbers"));
                continue;
            };
            match decode_part(part, Member(member)) {
                Ok(mapped) => drop(map.insert((DatasetId(dataset), Member(member)), mapped)),
                Err(error) => problems.push(format!("RANK/{rank}/DSET/{id}/{error}")),
            }
        }
    }
    (map, problems)
}

fn decode_part(tree: &Hash, member: Member) -> Result<Mapped, FieldError> {
    let expected: usize = need(tree.number("FILES"), "FILES")?;
    let mut mapped = Mapped { files: Vec::new(), redundancy: None };
    for (name, below) in tree.get("FILE").into_iter().flat_map(Hash::iter) {
        let decoded = below
            .get("META")
            .ok_or_else(|| FieldError::at("META", FieldProblem::Missing))
            .and_then(|meta| decode_meta(meta, name, member, &mut mapped));
        decoded.map_err(|error| error.under(name).under("FILE"))?;
    }
    if mapped.files.len() + usize::from(mapped.redundancy.is_some()) != expected {
        return Err(FieldError::at("FILES", FieldProblem::Other("is not the number of files")));
    }
    // The order of the logical file, whatever order the record has.
    mapped.files.sort_by(|(a, _), (b, _)| a.path.cmp(&b.path));
    Ok(mapped)
}

fn decode_meta(meta: &Hash, name: &Text, member: Member, mapped: &mut Mapped) -> Result<(), FieldError> {
    let size = need(meta.number("SIZE"), "SIZE")?;
    let crc = meta.text("CRC")?.map(crc_of).transpose()?.unwrap_or(0);
    if need(meta.text("TYPE"), "TYPE")? == "XOR" {
        let name = name.as_str().ok_or_else(|| FieldError::here(FieldProblem::Other("is not UTF-8")))?;
        mapped.redundancy = Some(RedundancyFile { name: name.to_owned(), size, crc });
        return Ok(());
    }
    let path = RelPath::new(name.as_bytes())
        .map_err(|_| FieldError::here(FieldProblem::Other("is not a path in the dataset")))?;
    let copy = FileCopy { size, crc, member, program_rank: meta.number("PROGRAM_RANK")? };
    let mut entry = Entry {
        path,
        kind: EntryKind::File(copy.clone()),
        mode: 0,
        uid: 0,
        gid: 0,
        atime: Stamp::default(),
        mtime: Stamp::default(),
    };
    decode_attributes(meta, &mut entry)?;
    mapped.files.push((entry, copy));
    Ok(())
}

/// `filemap.scrinfo`: the list of this node's filemaps.
pub(super) fn master(path_of_filemap: Text) -> Hash {
    let mut tree = Hash::new();
    put(&mut tree, "Filemap", path_of_filemap);
    tree
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::daemon::catalog_file::tests::example;
    use crate::daemon::state::{Home, Origin};
    use crate::dataset::CatalogIndex;

    #[test]
    fn there_and_back_and_counts_the_redundancy_file() {
        let catalog = example();
        let mut dataset = Dataset::new(catalog.id, catalog.epoch, catalog.name.clone(), Home::Tree);
        let files = catalog.files_of(Member(0)).map(|(e, c)| (e.clone(), c.clone())).collect();
        let mut part = Part::new(Origin::Here, files, Vec::new());
        part.recorded = true;
        part.members = 3;
        part.set = vec![Member(2), Member(0), Member(1)];
        let redundancy = RedundancyFile { name: "2_of_3_in_2.xor".into(), size: 99, crc: 5 };
        part.redundancy = Some(redundancy.clone());
        dataset.parts.insert(Member(0), Arc::new(part.clone()));
        dataset.parts.insert(Member(2), Arc::new(Part::new(Origin::Here, Vec::new(), Vec::new())));
        dataset.catalog = Some(Arc::new(CatalogIndex::new(catalog)));
        let cache = CacheNames { base: "/dev/shm".into(), directory: "/dev/shm/u/scr.j".into() };
        let tree = encode([&dataset].into_iter(), Scheme::Xor, &cache);
        let (map, problems) = decode(&tree);
        assert!(problems.is_empty(), "{problems:?}");
        assert_eq!(map.len(), 2);
        let mapped = &map[&(DatasetId(4), Member(0))];
        assert_eq!(mapped.files, part.files);
        assert_eq!(mapped.redundancy, Some(redundancy));
        let part = tree.get("RANK").unwrap().get("0").unwrap().get("DSET").unwrap().get("4").unwrap();
        assert_eq!(part.number::<u32>("FILES").unwrap(), Some(2));
        assert_eq!(part.get("REDDESC").unwrap().number::<u32>("GROUP_RANK").unwrap(), Some(1));
        assert_eq!(part.get("DSETDESC").unwrap().number::<u64>("SIZE").unwrap(), Some(5));
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

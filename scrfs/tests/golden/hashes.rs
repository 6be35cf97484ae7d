//! Every hash file, as a tree and as a record.

use std::collections::BTreeMap;

use scrfs::hash::{decode_file, decode_record, encode};
use scrfs::record::{FilemapMember, Rank2File, Rank2FileBody, Record, RecordKind as K, detect};

use crate::vectors::{RELEASES, Vector, release};

#[test]
fn every_hash_file_parses_and_comes_back() {
    let mut counts = BTreeMap::new();
    for name in RELEASES {
        for file in release(name).into_iter().filter(Vector::is_hash_file) {
            let (tree, size) = decode_record(&file.bytes).unwrap_or_else(|e| panic!("{:?}: {e}", file.path));
            assert_eq!(encode(&tree), file.bytes[..size], "{:?}", file.path);
            if !file.has_payload() {
                assert_eq!(decode_file(&file.bytes), Ok(tree), "{:?}", file.path);
            }
            *counts.entry(name).or_insert(0) += 1;
        }
    }
    let expected =
        [("scr-2011-04", 138), ("scr-2013-08", 135), ("scr-1.1.8", 26), ("scr-1.2", 66), ("scr-3", 377)];
    assert_eq!(counts, expected.into_iter().collect());
}

/// Reads every file of `release` as the record that it is and compares what is written again.
/// Returns how many there were of each kind, and how many are no record of ours.
fn round_trips(name: &str) -> (BTreeMap<K, usize>, usize) {
    let mut counts = BTreeMap::new();
    let mut others = 0;
    for file in release(name).into_iter().filter(Vector::is_hash_file) {
        let (tree, size) = decode_record(&file.bytes).unwrap();
        let Some(kind) = detect(file.name().as_bytes(), &tree) else {
            others += 1;
            continue;
        };
        let record = kind.read(&tree).unwrap_or_else(|e| panic!("{:?}: {e}", file.path));
        assert_eq!(encode(&record.to_hash()), file.bytes[..size], "{:?}: {record:?}", file.path);
        *counts.entry(kind).or_insert(0) += 1;
    }
    (counts, others)
}

#[test]
fn records_of_2013_come_back() {
    let counts = [
        (K::FilemapMaster, 20),
        (K::FilemapMember, 20),
        (K::RankFilemap, 7),
        (K::RedundancyHeader, 31),
        (K::Summary, 10),
        (K::Rank2File, 20),
        (K::Index, 6),
        (K::Flush, 7),
        (K::Halt, 7),
        (K::Nodes, 7),
    ];
    assert_eq!(round_trips("scr-2013-08"), (counts.into_iter().collect(), 0));
}

#[test]
fn records_of_2011_come_back() {
    let counts = [
        (K::Meta, 69),
        (K::FilemapMaster, 8),
        (K::FilemapMember, 8),
        (K::RankFilemap, 7),
        (K::RedundancyHeader, 23),
        (K::Summary, 3),
        (K::Index, 2),
        (K::Flush, 8),
        (K::Halt, 2),
        (K::Nodes, 8),
    ];
    assert_eq!(round_trips("scr-2011-04"), (counts.into_iter().collect(), 0));
}

#[test]
fn records_of_later_releases_come_back() {
    let counts = [
        (K::FilemapMaster, 4),
        (K::FilemapMember, 4),
        (K::RedundancyHeader, 8),
        (K::Summary, 2),
        (K::Rank2File, 4),
        (K::Index, 1),
        (K::Flush, 1),
        (K::Halt, 1),
        (K::Nodes, 1),
    ];
    assert_eq!(round_trips("scr-1.1.8"), (counts.into_iter().collect(), 0));
    let counts = [
        (K::FilemapMaster, 8),
        (K::FilemapMember, 8),
        (K::RankFilemap, 7),
        (K::RedundancyHeader, 23),
        (K::Summary, 3),
        (K::Rank2File, 6),
        (K::Index, 2),
        (K::Flush, 3),
        (K::Halt, 3),
        (K::Nodes, 3),
    ];
    assert_eq!(round_trips("scr-1.2"), (counts.into_iter().collect(), 0));
    // The others are redundancy descriptors, cache indexes and the like, which have no record of
    // ours.
    let counts =
        [(K::Summary, 7), (K::Rank2File, 14), (K::Index, 4), (K::Flush, 5), (K::Halt, 5), (K::Nodes, 5)];
    assert_eq!(round_trips("scr-3"), (counts.into_iter().collect(), 337));
}

#[test]
fn no_file_is_what_its_fields_cannot_be() {
    // Each file as each record: some fit (an empty halt file is an empty anything), none panics.
    for file in release("scr-2013-08").into_iter().filter(Vector::is_hash_file) {
        let (tree, _) = decode_record(&file.bytes).unwrap();
        for kind in K::ALL {
            if let Ok(record) = kind.read(&tree) {
                assert_eq!(encode(&record.to_hash()), encode(&tree), "{:?} as {kind:?}", file.path);
            }
        }
    }
}

#[test]
fn crcs_and_sizes_are_those_of_the_files() {
    let mut checked = 0;
    for name in ["scr-2013-08", "scr-1.1.8", "scr-1.2"] {
        for file in release(name) {
            // Names are relative to the dataset's directory, in 1.2 to the prefix.
            let up = if name == "scr-1.2" { 3 } else { 2 };
            let Some(top) = file.path.ancestors().nth(up) else { continue };
            let mut named: Vec<_> = Vec::new();
            if file.name().starts_with("rank2file.0") {
                let Rank2FileBody::Leaf(leaf) = Rank2File::decode(&file.bytes).unwrap().body else {
                    panic!("{:?} is no leaf", file.path)
                };
                for files in leaf.by_member.iter().map(|(_, files)| &files.files) {
                    named.extend(files.iter().map(|(name, f)| (name.clone(), f.size, f.crc)));
                }
            } else if file.name().ends_with(".scrfilemap") || file.name().starts_with("fmap.") {
                let filemap = FilemapMember::decode(&file.bytes).unwrap();
                for (_, _, entry) in filemap.entries() {
                    assert_eq!(entry.expected_files, Some(entry.files.len() as u64));
                    let metas = entry.files.iter().map(|(name, file)| (name, file.meta.as_ref().unwrap()));
                    named.extend(metas.map(|(name, meta)| (name.clone(), meta.size, meta.crc)));
                }
            }
            for (name, size, crc) in named {
                let bytes = std::fs::read(top.join(name.as_path())).unwrap();
                assert_eq!(size, Some(bytes.len() as u64), "{name} of {:?}", file.path);
                assert_eq!(crc.unwrap().0, crc32fast::hash(&bytes), "{name} of {:?}", file.path);
                checked += 1;
            }
        }
    }
    assert_eq!(checked, 130);
}

//! Spellings, order, foreign keys, and what is refused.

use proptest::prelude::*;

use super::*;
use crate::dataset::Stamp;
use crate::hash::Text;
use crate::ids::{DatasetId, Member};

fn tree(lines: &str) -> Hash {
    // Two blanks a level, as the printable form has it.
    fn parse(lines: &mut std::iter::Peekable<std::str::Lines<'_>>, depth: usize) -> Hash {
        let mut tree = Hash::new();
        while let Some(line) = lines.next_if(|line| line.len() - line.trim_start().len() == depth * 2) {
            let below = parse(lines, depth + 1);
            tree.append(Text::new(line.trim()).unwrap(), below);
        }
        tree
    }
    parse(&mut lines.lines().peekable(), 1)
}

fn same<R: Record + std::fmt::Debug>(lines: &str) -> R {
    let record = R::from_hash(&tree(lines)).unwrap();
    assert_eq!(record.to_hash().to_string(), lines);
    record
}

fn refused<R: Record + std::fmt::Debug>(lines: &str) -> String {
    R::from_hash(&tree(lines)).unwrap_err().to_string()
}

#[test]
fn order_spelling_and_foreign_keys_come_back() {
    let meta: Meta =
        same("  SIZE\n    7\n  THEIRS\n    A\n      B\n    C\n  FILE\n    a b\n  TYPE\n    FULL\n");
    assert_eq!((meta.size, meta.kind.as_ref()), (Some(7), Some(&FileKind::Full)));
    assert_eq!(meta.shape.foreign().map(|(key, _)| key.to_string()).collect::<Vec<_>>(), ["THEIRS"]);
    // A change is written in its place, what is new at the head, what is gone not at all.
    let changed = Meta { size: Some(8), crc: Some(Crc32(10)), kind: None, ..meta };
    let lines = "  CRC\n    0xa\n  SIZE\n    8\n  THEIRS\n    A\n      B\n    C\n  FILE\n    a b\n";
    assert_eq!(changed.to_hash().to_string(), lines);
}

#[test]
fn a_new_record_is_in_scrs_order() {
    let meta = Meta {
        file: Some("f".into()),
        kind: Some(FileKind::User),
        ranks: Some(4),
        orig: Some("f".into()),
        path: Some("/p".into()),
        name: Some("f".into()),
        size: Some(1),
        complete: Some(true),
        ..Meta::default()
    };
    let order: Vec<_> = meta.to_hash().keys().map(ToString::to_string).collect();
    assert_eq!(order, ["COMPLETE", "SIZE", "NAME", "PATH", "ORIG", "RANKS", "TYPE", "FILE"]);
    assert_eq!(Meta::decode(&meta.encode()), Ok(meta));
}

#[test]
fn our_own_meta_keys() {
    let attributes = Attributes {
        mode: 0o100_644,
        uid: 1000,
        gid: 0,
        atime: Stamp::default(),
        mtime: Stamp { secs: -1, nsecs: 999_999_999 },
    };
    let meta = Meta { attributes: Some(attributes), program_rank: Some(17), ..Meta::default() };
    let lines = "  PROGRAM_RANK\n    17\n  MODE\n    33188\n  UID\n    1000\n  GID\n    0\n  ATIME_SECS\n    0\n  ATIME_NSECS\n    0\n  MTIME_SECS\n    -1\n  MTIME_NSECS\n    999999999\n";
    assert_eq!(meta.to_hash().to_string(), lines);
    assert_eq!(same::<Meta>(lines), meta);
    // Some of them only: not ours, and kept.
    let theirs: Meta = same("  MODE\n    33188\n  SIZE\n    1\n  UID\n    x\n");
    assert_eq!((theirs.attributes, theirs.shape.foreign().count()), (None, 2));
    let late = lines.replace("999999999", "1000000000");
    assert_eq!(refused::<Meta>(&late), "MTIME_NSECS: is not within a second");
}

#[test]
fn older_words_are_read() {
    let entry: FilemapEntry = same(
        "  EXPECT\n    2\n  CKPTDESC\n    TYPE\n      LOCAL\n    STORE\n      /dev/shm\n  DATADESC\n    ID\n      5\n",
    );
    assert_eq!(entry.expected_files, Some(2));
    let descriptor = entry.redundancy.unwrap();
    assert_eq!(descriptor.scheme(), Some(crate::redundancy::Scheme::Single));
    assert_eq!(descriptor.base, Some("/dev/shm".into()));
    assert_eq!(entry.dataset.unwrap().id, Some(DatasetId(5)));
    // Where both words are there, ours counts and the other is foreign.
    let both: FilemapEntry = same("  EXPECT\n    2\n  FILES\n    3\n");
    assert_eq!(both.expected_files, Some(3));
}

#[test]
fn both_sides_of_a_filemap_stay_together() {
    let mut filemap = FilemapMember::default();
    for (member, id) in [(0, 1), (1, 1), (0, 2)] {
        filemap.set_entry(Member(member), DatasetId(id), FilemapEntry::default());
    }
    assert_eq!(filemap.entries().count(), 3);
    let members =
        |filemap: &FilemapMember, id| filemap.by_dataset.get(&DatasetId(id)).map_or(0, |of| of.members.len());
    assert_eq!((members(&filemap, 1), members(&filemap, 2)), (2, 1));
    assert!(filemap.remove_entry(Member(0), DatasetId(2)).is_some());
    assert!(filemap.remove_entry(Member(0), DatasetId(2)).is_none());
    assert!(filemap.remove_entry(Member(0), DatasetId(1)).is_some());
    assert_eq!((members(&filemap, 1), members(&filemap, 2)), (1, 0));
    assert!(filemap.remove_entry(Member(1), DatasetId(1)).is_some());
    assert!(filemap.to_hash().is_empty());
}

#[test]
fn index_of_every_version() {
    let mut index = Index::new();
    index.set_entry("a b".into(), DatasetId(3), IndexEntry { complete: Some(true), ..IndexEntry::default() });
    let lines = "  VERSION\n    1\n  DIR\n    a b\n      DSET\n        3\n  DSET\n    3\n      DIR\n        a b\n          COMPLETE\n            1\n";
    assert_eq!(index.to_hash().to_string(), lines);
    assert_eq!(same::<Index>(lines), index);
    let second: Index = same(
        "  DSET\n    3\n      COMPLETE\n        1\n      DSET\n        NAME\n          x\n  VERSION\n    2\n",
    );
    let view = second.entries().next().unwrap();
    assert_eq!((view.id, view.name, view.complete), (DatasetId(3), Some(&"x".into()), true));
    assert!(index.remove_entry(&"a b".into(), DatasetId(3)).is_some());
    assert_eq!(index, Index::new());
}

#[test]
fn rank2file_levels_offsets_and_wrapping() {
    let leaf = |member| {
        let mut leaf = Rank2FileLeaf { level: Some(0), ranks: Some(1), ..Rank2FileLeaf::default() };
        leaf.by_member.set_first(Member(member), RankFiles::default());
        leaf
    };
    let (bytes, offsets) = Rank2File::concatenate(&[leaf(0), leaf(1)]);
    for (member, offset) in (0..).zip(&offsets) {
        let body = Rank2FileBody::Leaf(leaf(member));
        assert_eq!(Rank2File::decode_at(&bytes, *offset), Ok(Rank2File { body, wrapped: false }));
    }
    for wrong in [1, bytes.len() as u64, u64::MAX] {
        assert!(Rank2File::decode_at(&bytes, wrong).is_err());
    }
    let wrapped: Rank2File =
        same("  RANK2FILE\n    LEVEL\n      2\n    RANK\n      0\n        OFFSET\n          0\n");
    assert!(wrapped.wrapped && matches!(wrapped.body, Rank2FileBody::Node(_)));
    assert_eq!(refused::<Rank2File>("  RANKS\n    4\n"), "LEVEL: is missing");
}

#[test]
fn headers_that_lie_are_refused() {
    let files: MemberFiles =
        same("  FILE\n    1\n      SIZE\n        5\n    0\n      SIZE\n        4\n  FILES\n    2\n");
    assert_eq!(files.sizes(), Ok(vec![4, 5]));
    let gap: MemberFiles =
        same("  FILE\n    2\n      SIZE\n        5\n    0\n      SIZE\n        4\n  FILES\n    2\n");
    assert_eq!(gap.in_order().unwrap_err().to_string(), "FILE/1: is missing");
    let short: MemberFiles = same("  FILES\n    18446744073709551615\n");
    assert!(short.in_order().is_err());
    let group = SetMembers::new(&[Member(4), Member(9)]);
    assert_eq!(group.in_order(), Ok(vec![Member(4), Member(9)]));
    let lying = SetMembers { size: Some(3), ..group };
    assert!(lying.in_order().is_err());
    assert_eq!(require(lying.size.as_ref(), "GROUP/RANKS"), Ok(&3));
    assert_eq!(require::<u64>(None, "GROUP/RANKS").unwrap_err().to_string(), "GROUP/RANKS: is missing");
}

#[test]
fn xor_file_names_of_both_forms() {
    let name =
        RedundancyFileName { kind: RedundancyKind::Xor, position: 2, members: 4, group: 10, encoding: 0 };
    assert_eq!(name.to_string(), "3_of_4_in_10.xor");
    assert_eq!(RedundancyFileName::parse(b"3_of_4_in_10.xor"), Some(name));
    assert_eq!(RedundancyFileName::parse(b"xor.10_3_of_4.scr"), Some(name));
    let rs = RedundancyFileName { kind: RedundancyKind::ReedSolomon, ..name };
    assert_eq!(rs.to_string(), "3_of_4_in_10.rs");
    assert_eq!(RedundancyFileName::parse(b"3_of_4_in_10.rs"), Some(rs));
    let copy = RedundancyFileName { kind: RedundancyKind::Partner, ..name };
    assert_eq!(copy.to_string(), "3_of_4_in_10.partner");
    assert_eq!(RedundancyFileName::parse(b"3_of_4_in_10.partner"), Some(copy));
    let anew = RedundancyFileName { encoding: 513, ..name };
    assert_eq!(anew.to_string(), "3_of_4_in_10.r513.xor");
    assert_eq!(RedundancyFileName::parse(b"3_of_4_in_10.r513.xor"), Some(anew));
    for bad in [
        "3_of_4_in_10.r.xor",
        "3_of_4_in_10.r99999999999.xor",
        "0_of_4_in_1.xor",
        "5_of_4_in_1.xor",
        "+1_of_4_in_1.xor",
        "1_of_4.xor",
        "_of__in_.xor",
        "1_of_4_in_1xor",
        "xor.1.scr",
    ] {
        assert_eq!(RedundancyFileName::parse(bad.as_bytes()), None, "{bad}");
    }
}

#[test]
fn paths_stay_in_the_dataset() {
    let meta = |file: &'static str| Meta { file: Some(file.into()), ..Meta::default() };
    assert_eq!(meta("a b/c").path_in_dataset().unwrap().as_bytes(), b"a b/c");
    for bad in ["../x", "/etc/passwd", "a/../../b", "a//b"] {
        let error = meta(bad).path_in_dataset().unwrap_err();
        assert!(matches!(error.problem, FieldProblem::Path(_)), "{bad}");
    }
    assert_eq!(Meta::default().path_in_dataset().unwrap_err().to_string(), "FILE: is missing");
}

#[test]
fn wrong_values_are_named_with_their_path() {
    let lines = "  RANK\n    0\n      DSET\n        1\n          FILE\n            f\n              META\n                SIZE\n                  big\n";
    assert_eq!(
        refused::<FilemapMember>(lines),
        "RANK/0/DSET/1/FILE/f/META/SIZE: big is not a number of the right range"
    );
    assert_eq!(
        refused::<Nodes>("  NODES\n    4\n    5\n"),
        "NODES: should have one plain value but has 2 elements"
    );
    assert_eq!(refused::<Nodes>("  NODES\n"), "NODES: should have one plain value but has 0 elements");
    assert_eq!(refused::<Meta>("  COMPLETE\n    2\n"), "COMPLETE: 2 is neither 0 nor 1");
    assert_eq!(refused::<Meta>("  CRC\n    12\n"), "CRC: 12 is not a CRC32");
    assert_eq!(refused::<FlushFile>("  DATASET\n    1\n    01\n"), "DATASET/01: is in its list already");
    assert_eq!(
        refused::<FilemapMaster>("  Filemap\n    /f\n      x\n"),
        "Filemap//f: should have nothing below it"
    );
}

#[test]
fn transfer_and_halt() {
    let lines = "  FILES\n    /a\n      DESTINATION\n        /b\n      SIZE\n        9\n      WRITTEN\n        4\n  BW\n    1048576.000000\n  COMMAND\n    RUN\n  FLAG\n    DONE\n";
    let transfer: Transfer = same(lines);
    assert_eq!(transfer.bandwidth, Some(Decimal { millionths: 1_048_576_000_000 }));
    assert!(transfer.flags.contains(&"DONE".into()));
    let halt: Halt = same("  CheckpointsLeft\n    -1\n  ExitReason\n    a reason\n");
    assert_eq!(halt.checkpoints_left, Some(-1));
}

#[test]
fn ordered_maps_keep_their_order() {
    let mut map: Ordered<u32, char> = [(5, 'a'), (3, 'b')].into_iter().collect();
    map.set_first(9, 'c');
    assert_eq!(map.set_first(3, 'd'), Some('b'));
    assert_eq!(map.set_last(5, 'e'), Some('a'));
    *map.get_mut(&9).unwrap() = 'f';
    assert_eq!(map.iter().collect::<Vec<_>>(), [(&3, &'d'), (&9, &'f'), (&5, &'e')]);
    assert_eq!((map.remove(&9), map.remove(&9), map.len()), (Some('f'), None, 2));
}

/// Trees made of the records' own words, so that they are almost records.
fn almost_a_record() -> impl Strategy<Value = Hash> {
    let words = [
        "RANK", "DSET", "CKPT", "FILE", "META", "SIZE", "CRC", "FILES", "LEVEL", "OFFSET", "DIR", "NAME",
        "COMPLETE", "REDDESC", "TYPE", "XOR", "0", "1", "01", "-1", "0x5", "CURRENT", "GROUP", "DATASET",
        "LOCATION", "FLUSHED",
    ];
    Just(Hash::new()).prop_recursive(8, 60, 4, move |below| {
        proptest::collection::vec((prop::sample::select(words.to_vec()), below), 0..5).prop_map(|elements| {
            let mut tree = Hash::new();
            for (word, below) in elements {
                tree.set(word, below);
            }
            tree
        })
    })
}

proptest! {
    #[test]
    fn what_is_read_is_written_as_it_says(tree in almost_a_record()) {
        for kind in RecordKind::ALL {
            if let Ok(record) = kind.read(&tree) {
                prop_assert_eq!(kind.read(&record.to_hash()), Ok(record));
            }
        }
    }
}

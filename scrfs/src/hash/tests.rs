//! Malformed records by hand, then records and mutations at random.

use proptest::prelude::*;

use super::codec::DEPTH_MAX;
use super::file::HEADER_BYTES;
use super::*;

/// Bytes of the CRC behind the tree.
const CRC_BYTES: usize = 4;

fn sample() -> Hash {
    let mut tree = Hash::new();
    tree.set_value("RANKS", 4_u64);
    tree.child("FILE").set_flag("a b");
    tree.child("FILE").child("dir/c").set_value("SIZE", 12_u64);
    tree
}

/// `packed` with a right header and CRC around it.
fn framed(packed: &[u8]) -> Vec<u8> {
    let mut bytes = encode(&Hash::new());
    bytes.truncate(HEADER_BYTES);
    bytes.extend_from_slice(packed);
    let size = (bytes.len() + CRC_BYTES) as u64;
    bytes[8..16].copy_from_slice(&size.to_be_bytes());
    sealed(bytes)
}

fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
    let crc = crc32fast::hash(&bytes);
    bytes.extend_from_slice(&crc.to_be_bytes());
    bytes
}

fn resealed(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.truncate(bytes.len() - CRC_BYTES);
    sealed(bytes)
}

fn patched(at: usize, with: &[u8]) -> Vec<u8> {
    let mut bytes = encode(&sample());
    bytes[at..at + with.len()].copy_from_slice(with);
    resealed(bytes)
}

#[test]
fn set_goes_to_the_head_as_scrs_does() {
    let mut tree = Hash::new();
    tree.set_value("A", 1_u64);
    tree.set_value("B", 2_u64);
    tree.set_value("A", 3_u64);
    assert_eq!(tree.keys().map(ToString::to_string).collect::<Vec<_>>(), ["A", "B"]);
    assert_eq!(tree.number::<u64>("A").unwrap(), Some(3));
    assert_eq!(tree.number::<u64>("C").unwrap(), None);
}

#[test]
fn merge_unites_keys_on_every_level() {
    let mut tree = sample();
    let mut other = Hash::new();
    other.child("FILE").child("dir/c").set_value("CRC", 1_u64);
    other.set_value("LEVEL", 0_u64);
    tree.merge(&other);
    let file = tree.get("FILE").unwrap().get("dir/c").unwrap();
    assert_eq!((file.number("SIZE").unwrap(), file.number("CRC").unwrap()), (Some(12), Some(1)));
    assert_eq!(tree.len(), 3);
}

#[test]
fn fields_that_are_not_what_they_should_be_are_named() {
    let mut tree = sample();
    let error = tree.text("FILE").unwrap_err();
    assert_eq!(error.problem, FieldProblem::NotOneValue(2));
    for bad in ["", "-", "+4", "4 ", "0x4", "18446744073709551616", "-1"] {
        tree.set_value("RANKS", Text::new(bad).unwrap());
        let error = tree.number::<u64>("RANKS").unwrap_err();
        assert_eq!(error.problem, FieldProblem::NotANumber(Text::new(bad).unwrap()));
        assert_eq!(error.under("DSET").to_string().split(':').next(), Some("DSET/RANKS"));
    }
}

#[test]
fn record_and_what_follows_it() {
    let mut bytes = encode(&sample());
    let size = bytes.len();
    assert_eq!(decode_file(&bytes), Ok(sample()));
    bytes.extend_from_slice(b"payload");
    assert_eq!(decode_record(&bytes), Ok((sample(), size)));
    assert_eq!(decode_file(&bytes), Err(FormatError::Trailing { offset: size, extra: 7 }));
    assert_eq!(record_size(&bytes[..HEADER_BYTES], 1 << 20), Ok(size as u64));
}

#[test]
fn header_lies_are_named() {
    let size = encode(&sample()).len() as u64;
    assert_eq!(decode_file(&patched(0, &[0])), Err(FormatError::Magic { found: 0x001f_c3f5 }));
    assert_eq!(decode_file(&patched(5, &[2])), Err(FormatError::Type { found: 2 }));
    assert_eq!(decode_file(&patched(7, &[9])), Err(FormatError::Version { found: 9 }));
    assert_eq!(decode_file(&patched(19, &[0])), Err(FormatError::Flags { found: 0 }));
    assert_eq!(decode_file(&patched(19, &[3])), Err(FormatError::Flags { found: 3 }));
    for lie in [0, 27] {
        assert_eq!(decode_file(&patched(8, &u64::to_be_bytes(lie))), Err(FormatError::Size { found: lie }));
    }
    for lie in [size + 1, u64::MAX] {
        let offset = usize::try_from(size).unwrap();
        let error = FormatError::Truncated { offset, needed: lie - size, left: 0 };
        assert_eq!(decode_file(&patched(8, &lie.to_be_bytes())), Err(error));
        let error = FormatError::TooLarge { found: lie, limit: size };
        assert_eq!(record_size(&patched(8, &lie.to_be_bytes()), size), Err(error));
    }
    let shorter = patched(8, &(size - 1).to_be_bytes());
    assert!(matches!(decode_file(&shorter), Err(FormatError::Crc { .. })));
}

#[test]
fn every_truncation_is_an_error() {
    let bytes = encode(&sample());
    for end in 0..bytes.len() {
        assert!(decode_record(&bytes[..end]).is_err(), "cut at {end}");
    }
}

#[test]
fn every_flipped_bit_is_an_error() {
    let bytes = encode(&sample());
    for at in 0..bytes.len() * 8 {
        let mut broken = bytes.clone();
        broken[at / 8] ^= 1 << (at % 8);
        assert!(decode_file(&broken).is_err(), "bit {at}");
    }
}

#[test]
fn packed_lies_are_named() {
    let error = |packed: &[u8]| decode_file(&framed(packed)).unwrap_err();
    assert_eq!(error(b"\xff\xff\xff\xff"), FormatError::Count { offset: 20, count: u32::MAX, left: 0 });
    assert_eq!(error(b"\0\0\0\x02A\0\0\0\0\0"), FormatError::Count { offset: 20, count: 2, left: 6 });
    // The inner list asks for the bytes that the outer one's second element needs.
    let inner = b"\0\0\0\x02A\0\0\0\0\x01\0\0\0\0\0\0";
    assert_eq!(error(inner), FormatError::Count { offset: 26, count: 1, left: 6 });
    assert_eq!(error(b"\0\0\0\x01ABCDE"), FormatError::MissingNul { offset: 24 });
    assert_eq!(error(b"\0\0\0\x01ABCDE\0"), FormatError::Truncated { offset: 30, needed: 4, left: 0 });
    assert_eq!(error(b"\0\0\0\0\0"), FormatError::Slack { offset: 24, extra: 1 });
    let equal = b"\0\0\0\x02A\0\0\0\0\0A\0\0\0\0\0";
    assert_eq!(error(equal), FormatError::EqualKeys { offset: 30, key: "A".into() });
}

#[test]
fn equal_keys_are_found_in_long_lists() {
    let mut tree = Hash::new();
    for i in 0..1000_u64 {
        tree.append(i.into(), Hash::new());
    }
    assert_eq!(decode_file(&encode(&tree)).as_ref(), Ok(&tree));
    tree.append(Text::from(77_u64), Hash::new());
    assert!(matches!(decode_file(&encode(&tree)), Err(FormatError::EqualKeys { .. })));
}

#[test]
fn depth_is_limited() {
    let nested = |depth: usize| {
        (0..depth).fold(Hash::new(), |below, _| {
            let mut tree = Hash::new();
            tree.set("K", below);
            tree
        })
    };
    assert_eq!(decode_file(&encode(&nested(DEPTH_MAX))), Ok(nested(DEPTH_MAX)));
    let error = FormatError::Depth { offset: 20 + (DEPTH_MAX + 1) * 6, limit: DEPTH_MAX };
    assert_eq!(decode_file(&encode(&nested(DEPTH_MAX + 1))), Err(error));
    // Packing and printing do not recurse.
    assert!(decode_file(&encode(&nested(5000))).is_err());
}

fn any_tree() -> impl Strategy<Value = Hash> {
    let key = proptest::collection::vec(1..=255_u8, 0..6).prop_map(|bytes| Text::new(bytes).unwrap());
    let leaf = Just(Hash::new());
    leaf.prop_recursive(6, 60, 5, move |below| {
        proptest::collection::vec((key.clone(), below), 0..5).prop_map(|elements| {
            let mut tree = Hash::new();
            for (key, below) in elements {
                tree.set(key, below);
            }
            tree
        })
    })
}

proptest! {
    #[test]
    fn any_tree_comes_back(tree in any_tree()) {
        let bytes = encode(&tree);
        prop_assert_eq!(decode_file(&bytes), Ok(tree));
    }

    #[test]
    fn mutations_never_panic_and_what_is_accepted_is_canonical(
        tree in any_tree(),
        edits in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut body = encode(&tree)[HEADER_BYTES..].to_vec();
        body.truncate(body.len() - CRC_BYTES);
        for (at, byte) in edits {
            let at = at.index(body.len());
            body[at] = byte;
        }
        for packed in [&body[..], &body[..cut.index(body.len())]] {
            let bytes = framed(packed);
            if let Ok(tree) = decode_file(&bytes) {
                prop_assert_eq!(encode(&tree), bytes);
            }
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = decode_record(&bytes);
        let _ = decode_file(&framed(&bytes));
    }
}

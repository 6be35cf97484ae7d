//! Sets, geometry, schedules and CRCs against plain definitions.

use proptest::prelude::*;

use super::crc::{CrcError, SegmentCrcs};
use super::plan::{EncodeStep, encode_steps};
use super::reference::{Rebuilt, Survivor, encode, rebuild};
use super::xor::{Geometry, GeometryError, LogicalFile, Part, Segment, blocks};
use super::*;
use crate::ids::Member;

fn layout(groups: &[u32], set_size: usize, hop: usize) -> Vec<Vec<u32>> {
    let sets = sets::lay_out(groups, set_size, hop);
    sets.into_iter().map(|set| set.into_iter().map(|Member(m)| m).collect()).collect()
}

fn distinct(members: u32) -> Vec<u32> {
    (0..members).collect()
}

#[test]
fn what_each_scheme_survives() {
    use Scheme::{Partner, Single, Xor};
    for scheme in [Single, Partner, Xor] {
        assert!(scheme.survives(4, &[]) && !scheme.survives(1, &[0]));
        assert_eq!(Scheme::from_word(scheme.word().as_bytes()), Some(scheme));
    }
    assert!(!Single.survives(4, &[2]));
    assert!(Xor.survives(4, &[2]) && Xor.survives(2, &[0]) && !Xor.survives(4, &[0, 2]));
    assert!(Partner.survives(4, &[0, 2]) && !Partner.survives(4, &[3, 0]) && !Partner.survives(4, &[1, 2]));
}

#[test]
fn sets_are_sized_as_scr_sizes_them() {
    assert_eq!(layout(&distinct(4), 8, 1), [[0, 1, 2, 3]]);
    assert_eq!(layout(&distinct(10), 4, 1), [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]);
    assert_eq!(layout(&distinct(8), 4, 1), [[0, 1, 2, 3], [4, 5, 6, 7]]);
    assert_eq!(layout(&distinct(11), 3, 1), [vec![0, 1, 2, 3], vec![4, 5, 6, 7], vec![8, 9, 10]]);
    assert_eq!(layout(&distinct(1), 8, 1), [[0]]);
    assert_eq!(layout(&[], 8, 1), Vec::<Vec<u32>>::new());
    assert_eq!(
        layout(&distinct(2), 0, 0).len(),
        1,
        "senseless sizes are taken as the least that makes sense"
    );
}

#[test]
fn a_failure_group_is_never_twice_in_a_set() {
    // Six ranks on three nodes, as SCR lays them out.
    assert_eq!(layout(&[0, 0, 1, 1, 2, 2], 3, 1), [[0, 2, 4], [1, 3, 5]]);
    // Uneven groups: nobody is left alone who need not be.
    assert_eq!(layout(&[7, 7, 7, 8, 9], 8, 1), [vec![0, 3], vec![1, 4], vec![2]]);
}

#[test]
fn hops_stride() {
    assert_eq!(layout(&distinct(8), 4, 2), [[0, 2, 4, 6], [1, 3, 5, 7]]);
    assert_eq!(layout(&distinct(4), 8, 99), [[0, 2], [1, 3]]);
}

#[test]
fn geometry_of_the_walkthrough() {
    // Three members, the longest with 10 bytes: chunk 5, two pieces each.
    let geometry = Geometry::new(&[10, 3, 0]).unwrap();
    assert_eq!((geometry.members(), geometry.chunk()), (3, 5));
    let parts: Vec<_> = (0..3).map(|column| geometry.part(1, column)).collect();
    assert_eq!(parts, [Part::Data { start: 0 }, Part::Parity, Part::Data { start: 5 }]);
    assert_eq!(Geometry::new(&[0, 0]).unwrap().chunk(), 1, "empty data still has a byte of parity");
    assert_eq!(Geometry::new(&[7]), Err(GeometryError::TooFew(1)));
    assert_eq!(Geometry::new(&[u64::MAX, 0, 0]), Err(GeometryError::TooLarge));
    assert_eq!(Geometry::with_chunk(2, 0), Err(GeometryError::NoChunk));
    assert_eq!(LogicalFile::new([u64::MAX, 1]), Err(GeometryError::TooLarge));
}

#[test]
fn segments_skip_empty_files_and_end_in_zeros() {
    let logical = LogicalFile::new([0, 4, 0, 0, 6, 0]).unwrap();
    let segments = |range| logical.segments(range).collect::<Vec<_>>();
    let file = |index, offset, len| Segment::File { index, offset, len };
    assert_eq!(segments(0..10), [file(1, 0, 4), file(4, 0, 6)]);
    assert_eq!(segments(3..5), [file(1, 3, 1), file(4, 0, 1)]);
    assert_eq!(segments(4..5), [file(4, 0, 1)]);
    assert_eq!(segments(8..15), [file(4, 4, 2), Segment::Zeros { len: 5 }]);
    assert_eq!(segments(20..22), [Segment::Zeros { len: 2 }]);
    assert_eq!(segments(5..5), []);
    let nothing = LogicalFile::new([]).unwrap();
    assert!(nothing.is_empty());
    assert_eq!(nothing.segments(0..2).collect::<Vec<_>>(), [Segment::Zeros { len: 2 }]);
}

#[test]
fn the_ring_of_four() {
    let columns = |member| encode_steps(4, member).map(|step| step.column).collect::<Vec<_>>();
    assert_eq!((columns(0), columns(1)), (vec![3, 2, 1, 0], vec![0, 3, 2, 1]));
    let last = EncodeStep { step: 4, column: 2, receive: true, send: false };
    assert_eq!(encode_steps(4, 2).last(), Some(last));
    let first = EncodeStep { step: 1, column: 1, receive: false, send: true };
    assert_eq!(encode_steps(4, 2).next(), Some(first));
    assert_eq!(plan::rebuild_chain(4, 2).collect::<Vec<_>>(), [3, 0, 1]);
}

#[test]
fn crcs_refuse_what_is_not_the_file() {
    let mut crcs = SegmentCrcs::new([4, 0]);
    assert_eq!(crcs.add(0, 2, b"abc"), Err(CrcError::Outside { index: 0, offset: 2, end: 5 }));
    assert_eq!(crcs.add(2, 0, b""), Err(CrcError::Outside { index: 2, offset: 0, end: 0 }));
    crcs.add(0, 2, b"c").unwrap();
    assert_eq!(crcs.clone().finish(), Err(CrcError::NotCovered { index: 0, offset: 0 }));
    crcs.add(0, 0, b"ab").unwrap();
    assert_eq!(crcs.clone().finish(), Err(CrcError::NotCovered { index: 0, offset: 3 }));
    crcs.add(0, 3, b"d").unwrap();
    assert_eq!(crcs.clone().finish(), Ok(vec![crc32fast::hash(b"abcd"), 0]));
    assert_eq!(crcs.add(0, 2, b"cd"), Err(CrcError::NotCovered { index: 0, offset: 3 }));
}

/// The definition, byte by byte.
fn parity_by_definition(members: &[Vec<Vec<u8>>]) -> Vec<Vec<u8>> {
    let n = members.len();
    let data: Vec<Vec<u8>> = members.iter().map(|files| files.concat()).collect();
    let longest = data.iter().map(Vec::len).max().unwrap();
    let chunk = longest.div_ceil(n - 1).max(1);
    let byte = |r: usize, m: usize, b: usize| {
        let piece = if m < r { m } else { m - 1 };
        data[r].get(piece * chunk + b).copied().unwrap_or(0)
    };
    let parity =
        |m| (0..chunk).map(|b| (0..n).filter(|&r| r != m).fold(0, |x, r| x ^ byte(r, m, b))).collect();
    (0..n).map(parity).collect()
}

fn any_set() -> impl Strategy<Value = Vec<Vec<Vec<u8>>>> {
    let file = proptest::collection::vec(any::<u8>(), 0..60);
    let member = proptest::collection::vec(file, 0..4);
    proptest::collection::vec(member, 2..7)
}

fn borrowed(members: &[Vec<Vec<u8>>]) -> Vec<Vec<&[u8]>> {
    members.iter().map(|files| files.iter().map(Vec::as_slice).collect()).collect()
}

proptest! {
    #[test]
    fn the_ring_makes_what_the_definition_says(members in any_set(), block in 1..40_u64) {
        prop_assert_eq!(encode(&borrowed(&members), block).unwrap(), parity_by_definition(&members));
    }

    #[test]
    fn any_one_member_comes_back(members in any_set(), lost in any::<prop::sample::Index>(), block in 1..40_u64) {
        let parity = parity_by_definition(&members);
        let lost = lost.index(members.len());
        let data = borrowed(&members);
        let survivors: Vec<_> = (0..members.len())
            .map(|m| (m != lost).then(|| Survivor { files: data[m].clone(), parity: &parity[m] }))
            .collect();
        let sizes: Vec<u64> = members[lost].iter().map(|file| file.len() as u64).collect();
        let rebuilt = rebuild(&survivors, parity[0].len() as u64, &sizes, block).unwrap();
        let wanted = Rebuilt { files: members[lost].clone(), parity: parity[lost].clone() };
        prop_assert_eq!(rebuilt, wanted);
    }

    #[test]
    fn xor_is_xor(target in proptest::collection::vec(any::<u8>(), 0..300), cut in 0..300_usize, from in 0..8_usize) {
        let source: Vec<u8> = target.iter().rev().copied().skip(from).take(cut).collect();
        let mut fast = target.clone();
        kernel::xor_into(&mut fast, &source);
        let naive: Vec<u8> =
            (0..target.len()).map(|i| target[i] ^ source.get(i).copied().unwrap_or(0)).collect();
        prop_assert_eq!(fast, naive);
    }

    #[test]
    fn crcs_in_the_order_of_encoding(
        files in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..200), 0..5),
        members in 2..6_usize,
        block in 1..50_u64,
    ) {
        let sizes: Vec<u64> = files.iter().map(|file| file.len() as u64).collect();
        let logical = LogicalFile::new(sizes.iter().copied()).unwrap();
        let mut lengths = vec![0; members];
        lengths[1] = logical.len();
        let geometry = Geometry::new(&lengths).unwrap();
        let mut crcs = SegmentCrcs::new(sizes);
        for range in blocks(geometry.chunk(), block) {
            for step in encode_steps(members, 1).filter(|step| step.send) {
                let range = geometry.part(1, step.column).data_range(&range).unwrap();
                for segment in logical.segments(range) {
                    if let Segment::File { index, offset, len } = segment {
                        let (from, to) = (usize::try_from(offset).unwrap(), usize::try_from(offset + len).unwrap());
                        crcs.add(index, offset, &files[index][from..to]).unwrap();
                    }
                }
            }
        }
        let plain: Vec<u32> = files.iter().map(|file| crc32fast::hash(file)).collect();
        prop_assert_eq!(crcs.finish(), Ok(plain));
    }

    #[test]
    fn layouts_are_sound(groups in proptest::collection::vec(0..9_u32, 0..40), size in 0..10_usize, hop in 0..6_usize) {
        let sets = layout(&groups, size, hop);
        let mut members: Vec<u32> = sets.iter().flatten().copied().collect();
        members.sort_unstable();
        prop_assert_eq!(members, (0..u32::try_from(groups.len()).unwrap()).collect::<Vec<_>>());
        for set in &sets {
            let mut seen: Vec<u32> = set.iter().map(|&m| groups[m as usize]).collect();
            seen.sort_unstable();
            seen.dedup();
            prop_assert_eq!(seen.len(), set.len(), "a failure group twice in {:?}", set);
        }
    }
}

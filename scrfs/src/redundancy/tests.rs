//! Sets, geometry, schedules and CRCs against plain definitions.

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;

use proptest::prelude::*;

use super::code::{Code, TooMany};
use super::crc::{CrcError, SegmentCrcs};
use super::geometry::{Geometry, GeometryError, LogicalFile, Part, Segment, Strip, blocks};
use super::payload::Payloads;
use super::plan::{Gift, Intake, gifts, intakes};
use super::reference::{Rebuilt, Survivor, encode, rebuild};
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
    use Scheme::{Partner, ReedSolomon, Single, Xor};
    let rs = ReedSolomon { failures: 2 };
    for scheme in [Single, Partner, Xor, rs] {
        assert!(scheme.survives(4, &[]) && !scheme.survives(1, &[0]));
        assert_eq!(Scheme::from_word(scheme.word().as_bytes(), 2), Some(scheme));
        assert!(!scheme.survives(3, &[0, 1, 2]), "somebody must be left");
    }
    assert!(!Single.survives(4, &[2]));
    assert!(Xor.survives(4, &[2]) && Xor.survives(2, &[0]) && !Xor.survives(4, &[0, 2]));
    assert!(Partner.survives(4, &[0, 2]) && !Partner.survives(4, &[3, 0]) && !Partner.survives(4, &[1, 2]));
    assert!(rs.survives(4, &[3, 0]) && rs.survives(3, &[1, 2]) && !rs.survives(4, &[0, 1, 2]));
    assert!(rs.survives(2, &[1]) && !rs.survives(2, &[0, 1]), "a small set survives what it can");
    assert_eq!([Single, Partner, Xor, rs].map(|scheme| scheme.losses(5)), [0, 1, 1, 2]);
    assert_eq!([Xor, rs].map(|scheme| scheme.to_string()), ["XOR", "RS(2)"]);
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
    let geometry = Geometry::new(&[10, 3, 0], 1).unwrap();
    assert_eq!((geometry.members(), geometry.chunk(), geometry.payload()), (3, 5, 5));
    let parts: Vec<_> = (0..3).map(|column| geometry.part(1, column)).collect();
    assert_eq!(parts, [Part::Data { piece: 0 }, Part::Parity { index: 0 }, Part::Data { piece: 1 }]);
    assert_eq!(geometry.range(parts[2], &(1..3)), 6..8);
    assert_eq!(Geometry::new(&[0, 0], 1).unwrap().chunk(), 1, "empty data still has a byte of parity");
    let too_few = |members, losses| Err(GeometryError::TooFew { members, losses });
    assert_eq!(Geometry::new(&[7], 1), too_few(1, 1));
    assert_eq!((Geometry::new(&[7, 7], 2), Geometry::new(&[7, 7], 0)), (too_few(2, 2), too_few(2, 0)));
    assert_eq!(Geometry::new(&[u64::MAX, 0, 0], 1), Err(GeometryError::TooLarge));
    assert_eq!(Geometry::with_chunk(2, 1, 0), Err(GeometryError::NoChunk));
    assert_eq!(LogicalFile::new([u64::MAX, 1]), Err(GeometryError::TooLarge));
}

#[test]
fn two_parities_wrap_round_the_ring() {
    let geometry = Geometry::new(&[10; 4], 2).unwrap();
    assert_eq!((geometry.chunk(), geometry.payload()), (5, 10));
    let parts = |member| (0..4).map(|column| geometry.part(member, column)).collect::<Vec<_>>();
    let (data, parity) = (|piece| Part::Data { piece }, |index| Part::Parity { index });
    assert_eq!(parts(0), [parity(0), parity(1), data(0), data(1)]);
    assert_eq!(parts(2), [data(0), data(1), parity(0), parity(1)]);
    assert_eq!(parts(3), [parity(1), data(0), data(1), parity(0)]);
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
fn a_set_of_four() {
    // Chunks of 5 bytes; the pieces of member 1 are bytes 0 to 4 and 5 to 6, the rest is padding.
    let lengths = [10, 7, 0, 10];
    let set = Payloads::of(Scheme::ReedSolomon { failures: 2 }, &lengths).unwrap();
    let sent: Vec<_> = gifts(&set, &lengths, 1, Strip::only(4)).collect();
    let gift = |bytes, to| Gift { bytes, to };
    assert_eq!(sent, [gift(5..7, vec![3, 2]), gift(0..4, vec![0, 3]), gift(4..5, vec![0, 3])]);
    let got: Vec<_> = intakes(&set, &lengths, 3, Strip::only(4)).collect();
    let from = |intake: &Intake| intake.addends.iter().map(|a| (a.from, a.sum, a.bytes)).collect::<Vec<_>>();
    assert_eq!(
        got.iter().map(|intake| intake.sums.clone()).collect::<Vec<_>>(),
        [[0..4, 5..9], [4..5, 9..10]]
    );
    assert_eq!(
        (from(&got[0]), from(&got[1])),
        (vec![(1, 0, 2), (0, 0, 4), (1, 1, 4)], vec![(0, 0, 1), (1, 1, 1)])
    );
    assert_eq!(gifts(&set, &lengths, 2, Strip::only(4)).count(), 0, "padding is not sent");
    assert_eq!(plan::rebuild_chain(4, &[2]).collect::<Vec<_>>(), [3, 0, 1]);
    assert_eq!(plan::rebuild_chain(5, &[1, 3]).collect::<Vec<_>>(), [2, 4, 0]);
}

#[test]
fn a_code_needs_points_for_all() {
    let rs = |failures| Scheme::ReedSolomon { failures };
    assert_eq!(Code::of(rs(2), 255), Err(TooMany { members: 255, losses: 2 }));
    assert_eq!(Code::of(rs(2), 254).map(|code| code.map(|code| code.parities())), Ok(Some(2)));
    assert_eq!(Code::of(rs(7), 3).map(|code| code.map(|code| code.parities())), Ok(Some(2)));
    assert_eq!(Code::of(Scheme::Xor, 300).map(|code| code.map(|code| code.parities())), Ok(Some(1)));
    for none in [(Scheme::Xor, 1), (rs(2), 1), (Scheme::Single, 4), (Scheme::Partner, 4)] {
        assert_eq!(Code::of(none.0, none.1), Ok(None));
    }
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

/// Redset's matrix: Vandermonde's, brought by operations on columns to the unit in its first rows.
fn matrix(n: usize, k: usize) -> Vec<Vec<u8>> {
    let mut rows: Vec<Vec<u8>> = Vec::new();
    for x in 0..n + k {
        let x = u8::try_from(x).unwrap();
        let powers = std::iter::successors(Some(1), |power| Some(galois::multiply(*power, x)));
        rows.push(powers.take(n).collect());
    }
    for at in 0..n {
        let pivot = (at..n).find(|&column| rows[at][column] != 0).unwrap();
        let factor = galois::inverse(rows[at][pivot]).unwrap();
        for row in &mut rows {
            row.swap(at, pivot);
            row[at] = galois::multiply(row[at], factor);
        }
        for column in (0..n).filter(|column| *column != at) {
            let factor = rows[at][column];
            for row in &mut rows {
                row[column] ^= galois::multiply(factor, row[at]);
            }
        }
    }
    rows.split_off(n)
}

/// The definition of SCR (XOR) and of redset (Reed-Solomon), byte by byte.
fn parity_by_definition(scheme: Scheme, members: &[Vec<Vec<u8>>]) -> Vec<Vec<u8>> {
    let (n, k) = (members.len(), scheme.parities(members.len()));
    let rows = if scheme == Scheme::Xor { vec![vec![1; n]] } else { matrix(n, k) };
    let data: Vec<Vec<u8>> = members.iter().map(|files| files.concat()).collect();
    let longest = data.iter().map(Vec::len).max().unwrap();
    let chunk = longest.div_ceil(n - k).max(1);
    let byte = |m: usize, i: usize, b: usize| {
        let c = (m + i) % n;
        let piece = |r: usize| c - if c > r { k } else { 0 } - (r + k).saturating_sub(n);
        let of = |r: usize| data[r].get(piece(r) * chunk + b).copied().unwrap_or(0);
        let there = (0..n).filter(|r| (c + n - r) % n >= k);
        there.fold(0, |sum, r| sum ^ galois::multiply(rows[i][r], of(r)))
    };
    (0..n)
        .map(|m| (0..k).flat_map(|i| (0..chunk).map(move |b| (i, b))).map(|(i, b)| byte(m, i, b)).collect())
        .collect()
}

fn any_scheme() -> impl Strategy<Value = Scheme> {
    let rs = (1..5_u8).prop_map(|failures| Scheme::ReedSolomon { failures });
    prop_oneof![Just(Scheme::Xor), rs]
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
    fn the_schedule_makes_what_the_definition_says(
        scheme in any_scheme(),
        members in any_set(),
        strips in 1..5_u32,
        block in 1..40_u64,
    ) {
        let code = Code::of(scheme, members.len()).unwrap().unwrap();
        let made = encode(&code, &borrowed(&members), strips, block).unwrap();
        prop_assert_eq!(made, parity_by_definition(scheme, &members));
    }

    /// However fast each is: with one block on its way from one member to another there is always
    /// somebody who can go on.
    #[test]
    fn nobody_waits_for_ever(
        scheme in prop_oneof![any_scheme(), Just(Scheme::Partner)],
        lengths in proptest::collection::vec(0..200_u64, 2..9),
        block in 1..40_u64,
    ) {
        let set = Payloads::of(scheme, &lengths).unwrap();
        let each = 0..lengths.len();
        let strip = Strip::only(block);
        let sends = |me| gifts(&set, &lengths, me, strip).flat_map(|gift| gift.to).collect::<VecDeque<_>>();
        let gets = |me| intakes(&set, &lengths, me, strip).flat_map(|intake| intake.addends).map(|a| a.from);
        let mut sends: Vec<_> = each.clone().map(sends).collect();
        let mut gets: Vec<VecDeque<usize>> = each.clone().map(|me| gets(me).collect()).collect();
        let mut flying = BTreeSet::new();
        let mut goes_on = true;
        while goes_on {
            goes_on = false;
            for me in each.clone() {
                if let Some(to) = sends[me].front() && flying.insert((me, *to)) {
                    sends[me].pop_front();
                    goes_on = true;
                }
                if let Some(from) = gets[me].front() && flying.remove(&(*from, me)) {
                    gets[me].pop_front();
                    goes_on = true;
                }
            }
        }
        prop_assert!(flying.is_empty() && sends.iter().chain(&gets).all(VecDeque::is_empty));
    }

    #[test]
    fn any_members_that_may_be_lost_come_back(
        scheme in any_scheme(),
        members in any_set(),
        order in Just((0..7_usize).collect::<Vec<_>>()).prop_shuffle(),
        block in 1..40_u64,
    ) {
        let n = members.len();
        let code = Code::of(scheme, n).unwrap().unwrap();
        let parity = parity_by_definition(scheme, &members);
        let chunk = (parity[0].len() / code.parities()) as u64;
        let data = borrowed(&members);
        let order: Vec<usize> = order.into_iter().filter(|at| *at < n).collect();
        for count in 0..=code.parities() + 1 {
            let mut lost = order[..count].to_vec();
            lost.sort_unstable();
            let survivors: Vec<_> = (0..n)
                .map(|m| (!lost.contains(&m)).then(|| Survivor { files: data[m].clone(), parity: &parity[m] }))
                .collect();
            let sizes: Vec<Vec<u64>> =
                lost.iter().map(|m| members[*m].iter().map(|file| file.len() as u64).collect()).collect();
            let rebuilt = rebuild(&code, &survivors, chunk, &sizes, block).unwrap();
            let wanted = lost.iter().map(|m| Rebuilt { files: members[*m].clone(), parity: parity[*m].clone() });
            prop_assert_eq!(rebuilt, scheme.survives(n, &lost).then(|| wanted.collect()));
        }
    }

    #[test]
    fn strips_have_each_byte_once(length in 0..10_000_u64, of in 1..9_u32, block in 1..40_u64) {
        let strips: Vec<Vec<Range<u64>>> =
            Strip::all(of, block).map(|strip| strip.blocks(length).collect()).collect();
        let counts = strips.iter().map(Vec::len);
        prop_assert!(counts.clone().max().unwrap() - counts.min().unwrap() <= 1);
        let joined: Vec<Range<u64>> = strips.concat();
        prop_assert_eq!(joined, blocks(length, block).collect::<Vec<_>>());
    }

    #[test]
    fn multiples_are_multiples(target in proptest::collection::vec(any::<u8>(), 0..300), cut in 0..300_usize, factor in any::<u8>()) {
        let source: Vec<u8> = target.iter().rev().copied().take(cut).collect();
        let mut fast = target.clone();
        kernel::add_multiple(&mut fast, &source, factor);
        let plain = |at: usize| target[at] ^ galois::multiply(factor, source.get(at).copied().unwrap_or(0));
        prop_assert_eq!(fast, (0..target.len()).map(plain).collect::<Vec<_>>());
        let mut scaled = target.clone();
        kernel::multiply_by(&mut scaled, factor);
        prop_assert_eq!(scaled, target.iter().map(|x| galois::multiply(factor, *x)).collect::<Vec<_>>());
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
        failures in 1..3_u8,
        members in 3..6_usize,
        strips in 1..4_u32,
        block in 1..50_u64,
    ) {
        let sizes: Vec<u64> = files.iter().map(|file| file.len() as u64).collect();
        let logical = LogicalFile::new(sizes.iter().copied()).unwrap();
        let mut lengths = vec![0; members];
        lengths[1] = logical.len();
        let set = Payloads::of(Scheme::ReedSolomon { failures }, &lengths).unwrap();
        let mut crcs = SegmentCrcs::new(sizes.iter().copied());
        for strip in Strip::all(strips, block) {
            let mut of_strip = SegmentCrcs::new(sizes.iter().copied());
            for gift in gifts(&set, &lengths, 1, strip) {
                for segment in logical.segments(gift.bytes) {
                    if let Segment::File { index, offset, len } = segment {
                        let (from, to) =
                            (usize::try_from(offset).unwrap(), usize::try_from(offset + len).unwrap());
                        of_strip.add(index, offset, &files[index][from..to]).unwrap();
                    }
                }
            }
            crcs.join(of_strip).unwrap();
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

//! Encoding and rebuilding in memory, by the same schedules that the coordinators carry out over
//! the network. For tests, and for files that fit in memory.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use super::code::Code;
use super::geometry::{Geometry, GeometryError, LogicalFile, Part, Segment, Strip, blocks};
use super::kernel::add_multiple;
use super::payload::Payloads;
use super::plan::{Addend, Gift, Intake, gifts, intakes, rebuild_chain};

/// A member's data: its files' bytes, in filemap order.
pub type Files<'a> = Vec<&'a [u8]>;

/// A surviving member.
#[derive(Debug, Clone)]
pub struct Survivor<'a> {
    /// Its data.
    pub files: Files<'a>,
    /// The payload of its redundancy file.
    pub parity: &'a [u8],
}

/// What was lost, recomputed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rebuilt {
    /// The files' bytes, in filemap order.
    pub files: Vec<Vec<u8>>,
    /// The payload of the redundancy file.
    pub parity: Vec<u8>,
}

/// The payload of each member's redundancy file, made in so many strips, in blocks of `block`
/// bytes.
///
/// # Panics
/// If what a member gets is not what the others send it: the schedule is wrong.
pub fn encode(
    code: &Code,
    members: &[Files<'_>],
    strips: u32,
    block: u64,
) -> Result<Vec<Vec<u8>>, GeometryError> {
    let logical: Vec<LogicalFile> = members.iter().map(|files| logical(files)).collect::<Result<_, _>>()?;
    let lengths: Vec<u64> = logical.iter().map(LogicalFile::len).collect();
    let geometry = Geometry::new(&lengths, code.parities())?;
    let set = Payloads::Parities(geometry, code.clone());
    let mut payloads = vec![vec![0; index(geometry.payload())]; members.len()];
    for strip in Strip::all(strips, block) {
        // By sender and receiver.
        let mut on_the_way: BTreeMap<(usize, usize), VecDeque<Vec<u8>>> = BTreeMap::new();
        for from in 0..members.len() {
            for Gift { bytes, to } in gifts(&set, &lengths, from, strip) {
                let mut data = zeros(&bytes);
                add_data(&mut data, 1, bytes, &logical[from], &members[from]);
                for to in to {
                    on_the_way.entry((from, to)).or_default().push_back(data.clone());
                }
            }
        }
        for (to, payload) in payloads.iter_mut().enumerate() {
            for Intake { sums, addends } in intakes(&set, &lengths, to, strip) {
                for Addend { from, sum, bytes, factor } in addends {
                    let data = on_the_way.get_mut(&(from, to)).and_then(VecDeque::pop_front);
                    let data = data.unwrap_or_default();
                    assert_eq!(data.len() as u64, bytes, "what is due is what was sent");
                    let at = index(sums[sum].start);
                    add_multiple(&mut payload[at..at + data.len()], &data, factor);
                }
            }
        }
        assert!(on_the_way.values().all(VecDeque::is_empty), "all that was sent was due");
    }
    Ok(payloads)
}

/// Recomputes the members that are `None`, whose files had `sizes`, in order, in blocks of `block`
/// bytes; `None` when they are too many.
///
/// # Panics
/// If a payload has not the length that the code and `chunk` say.
pub fn rebuild(
    code: &Code,
    members: &[Option<Survivor<'_>>],
    chunk: u64,
    sizes: &[Vec<u64>],
    block: u64,
) -> Result<Option<Vec<Rebuilt>>, GeometryError> {
    let geometry = Geometry::with_chunk(members.len(), code.parities(), chunk)?;
    let lost: Vec<usize> = (0..members.len()).filter(|at| members[*at].is_none()).collect();
    let chain: Vec<_> = rebuild_chain(members.len(), &lost)
        .filter_map(|m| members[m].as_ref().map(|survivor| (m, survivor)))
        .map(|(m, survivor)| Ok((m, survivor, logical(&survivor.files)?)))
        .collect::<Result<_, _>>()?;
    let targets: Vec<LogicalFile> =
        sizes.iter().map(|sizes| LogicalFile::new(sizes.iter().copied())).collect::<Result<_, _>>()?;
    let empty = |sizes: &Vec<u64>| Rebuilt {
        files: sizes.iter().map(|&size| vec![0; index(size)]).collect(),
        parity: vec![0; index(geometry.payload())],
    };
    let mut rebuilt: Vec<Rebuilt> = sizes.iter().map(empty).collect();
    for column in 0..members.len() {
        let Some(recipe) = code.recipe(column, &lost) else { return Ok(None) };
        for range in blocks(chunk, block) {
            let mut sums = vec![zeros(&range); lost.len()];
            for (m, survivor, logical) in &chain {
                let part = geometry.part(*m, column);
                let own = geometry.range(part, &range);
                for (sum, factor) in sums.iter_mut().zip(recipe.coefficients_of(*m)) {
                    match part {
                        Part::Data { .. } => add_data(sum, factor, own.clone(), logical, &survivor.files),
                        Part::Parity { .. } => {
                            add_multiple(sum, &survivor.parity[index(own.start)..index(own.end)], factor);
                        }
                    }
                }
            }
            for (at, (sum, rebuilt)) in sums.iter().zip(&mut rebuilt).enumerate() {
                let part = geometry.part(lost[at], column);
                let own = geometry.range(part, &range);
                match part {
                    Part::Data { .. } => put_segments(&mut rebuilt.files, &targets[at], own, sum),
                    Part::Parity { .. } => {
                        rebuilt.parity[index(own.start)..index(own.end)].copy_from_slice(sum);
                    }
                }
            }
        }
    }
    Ok(Some(rebuilt))
}

fn logical(files: &[&[u8]]) -> Result<LogicalFile, GeometryError> {
    LogicalFile::new(files.iter().map(|file| file.len() as u64))
}

fn zeros(range: &Range<u64>) -> Vec<u8> {
    vec![0; index(range.end - range.start)]
}

/// A size of something in memory.
fn index(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// Adds `range` of a member's logical file, times `factor`, to `sum`.
fn add_data(sum: &mut [u8], factor: u8, range: Range<u64>, logical: &LogicalFile, files: &[&[u8]]) {
    let mut at = 0;
    for segment in logical.segments(range) {
        let end = at + index(segment.len());
        if let Segment::File { index: file, offset, len } = segment {
            add_multiple(&mut sum[at..end], &files[file][index(offset)..index(offset + len)], factor);
        }
        at = end;
    }
}

/// Puts `bytes`, which are `range` of the logical file, where they belong.
fn put_segments(files: &mut [Vec<u8>], logical: &LogicalFile, range: Range<u64>, bytes: &[u8]) {
    let mut at = 0;
    for segment in logical.segments(range) {
        let end = at + index(segment.len());
        if let Segment::File { index: file, offset, len } = segment {
            files[file][index(offset)..index(offset + len)].copy_from_slice(&bytes[at..end]);
        }
        at = end;
    }
}

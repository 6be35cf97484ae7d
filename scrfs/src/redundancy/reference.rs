//! Encoding and rebuilding in memory, by the same schedules that the coordinators carry out over the network. For
//! tests, and for files that fit in memory.

use std::ops::Range;

use super::kernel::xor_into;
use super::plan::{encode_steps, rebuild_chain};
use super::right;
use super::xor::{Geometry, GeometryError, LogicalFile, Part, Segment, blocks};

/// A member's data: its files' bytes, in filemap order.
pub type Files<'a> = Vec<&'a [u8]>;

/// A surviving member: its files and the payload of its redundancy file.
#[derive(Debug, Clone)]
pub struct Survivor<'a> {
    /// Its data.
    pub files: Files<'a>,
    /// Its parity.
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

/// Each member's parity, made in blocks of `block` bytes.
pub fn encode(members: &[Files<'_>], block: u64) -> Result<Vec<Vec<u8>>, GeometryError> {
    let logical: Vec<LogicalFile> = members.iter().map(|files| logical(files)).collect::<Result<_, _>>()?;
    let lengths: Vec<u64> = logical.iter().map(LogicalFile::len).collect();
    let geometry = Geometry::new(&lengths)?;
    let n = members.len();
    let mut parity = vec![Vec::new(); n];
    for range in blocks(geometry.chunk(), block) {
        let mut on_the_way: Vec<Vec<u8>> = vec![Vec::new(); n];
        for step in 1..=n {
            let mut arriving = vec![Vec::new(); n];
            for member in 0..n {
                let Some(todo) = encode_steps(n, member).nth(step - 1) else { continue };
                let mut bytes =
                    if todo.receive { std::mem::take(&mut on_the_way[member]) } else { zeros(&range) };
                if todo.send {
                    let own = geometry.part(member, todo.column);
                    xor_part(&mut bytes, own, &range, &logical[member], &members[member], &[]);
                    arriving[right(n, member)] = bytes;
                } else {
                    parity[todo.column].append(&mut bytes);
                }
            }
            on_the_way = arriving;
        }
    }
    Ok(parity)
}

/// Recomputes the one member that is `None`, whose files had `lost_sizes`, in blocks of `block` bytes.
///
/// # Panics
/// If not exactly one member is `None`, or a parity is not one chunk long.
pub fn rebuild(
    members: &[Option<Survivor<'_>>],
    chunk: u64,
    lost_sizes: &[u64],
    block: u64,
) -> Result<Rebuilt, GeometryError> {
    let geometry = Geometry::with_chunk(members.len(), chunk)?;
    let lost = members.iter().position(Option::is_none).unwrap_or(0);
    let chain: Vec<_> = rebuild_chain(members.len(), lost)
        .filter_map(|m| members[m].as_ref().map(|survivor| (m, survivor)))
        .map(|(m, survivor)| Ok((m, survivor, logical(&survivor.files)?)))
        .collect::<Result<_, _>>()?;
    assert!(members[lost].is_none() && chain.len() + 1 == members.len(), "exactly one member is lost");
    let target = LogicalFile::new(lost_sizes.iter().copied())?;
    let mut rebuilt =
        Rebuilt { files: lost_sizes.iter().map(|&size| vec![0; index(size)]).collect(), parity: Vec::new() };
    for column in 0..members.len() {
        for range in blocks(chunk, block) {
            let mut bytes = zeros(&range);
            for (m, survivor, logical) in &chain {
                let part = geometry.part(*m, column);
                xor_part(&mut bytes, part, &range, logical, &survivor.files, survivor.parity);
            }
            match geometry.part(lost, column).data_range(&range) {
                None => rebuilt.parity.append(&mut bytes),
                Some(range) => put_segments(&mut rebuilt.files, &target, range, &bytes),
            }
        }
    }
    Ok(rebuilt)
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

/// XORs a block of a member's part into `bytes`.
fn xor_part(
    bytes: &mut [u8],
    part: Part,
    block: &Range<u64>,
    logical: &LogicalFile,
    files: &[&[u8]],
    parity: &[u8],
) {
    let Some(range) = part.data_range(block) else {
        return xor_into(bytes, &parity[index(block.start)..index(block.end)]);
    };
    let mut at = 0;
    for segment in logical.segments(range) {
        let end = at + index(segment.len());
        if let Segment::File { index: file, offset, len } = segment {
            xor_into(&mut bytes[at..end], &files[file][index(offset)..index(offset + len)]);
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

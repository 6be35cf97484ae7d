//! Writing without zeros: where whole pages of what is written are zero, a hole is left.
//!
//! A sealed dataset may have sparse files, and there may be room for their data alone. So whatever
//! scrfs writes itself, copies, rebuilt files, redundancy files, takes no more room than what
//! programs wrote, whether its source was a hole or zeros. What is read is the same.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};

use rustix::fs::FallocateFlags;
use rustix::io::Errno;

/// What a hole consists of; file systems that allocate larger units fill them up.
const PAGE: usize = 4096;
/// Bytes compared in one go: the compiler turns a line into a few wide operations, and most pages
/// of data end at their first line.
const LINE: usize = 64;

/// Writes `bytes` at `offset` of `file`, where nothing was written before, except for pages of
/// zeros. The file may be shorter than what was written by then: see [`end`].
pub fn write_at(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    runs(bytes, offset).try_for_each(|(start, data)| file.write_all_at(data, offset + start as u64))
}

/// As [`write_at`], where bytes of something else may be: where pages are zero holes are made, also
/// where some of a page was written before. The caller has written all from `own` to `offset`, and
/// nobody else writes there. The file is open for reading too.
pub fn rewrite_at(file: &File, bytes: &[u8], offset: u64, own: u64) -> io::Result<()> {
    let mut done = 0;
    let clear = |done: usize, to: usize| match to - done {
        0 => Ok(()),
        len => make_hole(file, offset + done as u64, len, own),
    };
    for (start, data) in runs(bytes, offset) {
        clear(done, start)?;
        file.write_all_at(data, offset + start as u64)?;
        done = start + data.len();
    }
    clear(done, bytes.len())
}

/// Zeros; a hole where the file system can make one, from the beginning of its first page if that
/// is the caller's own, and zero.
fn make_hole(file: &File, offset: u64, len: usize, own: u64) -> io::Result<()> {
    let mut page = [0; PAGE];
    let before = &mut page[..usize::try_from(offset % PAGE as u64).unwrap_or(0)];
    let first = offset - before.len() as u64;
    // Beyond the file's end they stay zero.
    let clears = own <= first && file.read_at(before, first).is_ok() && is_zero(before);
    let from = if clears { first } else { offset };
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    match rustix::fs::fallocate(file, hole, from, offset - from + len as u64) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => file.write_all_at(&vec![0; len], offset),
        other => Ok(other?),
    }
}

/// Gives a file its size once all of it was written: zeros at its end were left out.
pub fn end(file: &File, size: u64) -> io::Result<()> {
    if file.metadata()?.len() == size { Ok(()) } else { file.set_len(size) }
}

/// Bytes that a copy of a file takes: what the file takes where it is, but no more than its size in
/// whole pages.
pub fn room_of(file: &Metadata) -> u64 {
    file.blocks().saturating_mul(512).min(file.len().next_multiple_of(PAGE as u64))
}

/// The parts of `bytes` that are not zero, as long as they can be, and where they begin. They begin
/// and end at pages of the file, or where `bytes` does.
fn runs(bytes: &[u8], offset: u64) -> impl Iterator<Item = (usize, &[u8])> {
    let before = usize::try_from(offset % PAGE as u64).unwrap_or(0);
    let page_from = move |at: usize| (at + PAGE - (before + at) % PAGE).min(bytes.len());
    let mut at = 0;
    std::iter::from_fn(move || {
        while at < bytes.len() && is_zero(&bytes[at..page_from(at)]) {
            at = page_from(at);
        }
        let start = at;
        while at < bytes.len() && !is_zero(&bytes[at..page_from(at)]) {
            at = page_from(at);
        }
        (start < at).then(|| (start, &bytes[start..at]))
    })
}

/// Is there no other byte than 0?
fn is_zero(bytes: &[u8]) -> bool {
    let (lines, rest) = bytes.as_chunks::<LINE>();
    let zero = |line: &[u8]| line.iter().fold(0, |all, byte| all | byte) == 0;
    lines.iter().all(|line| zero(line)) && zero(rest)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Seek};

    use proptest::prelude::*;

    use super::*;

    const P: u64 = PAGE as u64;

    /// Written in pieces of `piece` bytes, with what that takes of the cache.
    fn written(bytes: &[u8], first: u64, piece: usize) -> (Vec<u8>, u64) {
        // There pages are the unit of room.
        let mut file = tempfile::tempfile_in("/dev/shm").unwrap();
        for (n, part) in bytes.chunks(piece).enumerate() {
            write_at(&file, part, first + (n * piece) as u64).unwrap();
        }
        end(&file, first + bytes.len() as u64).unwrap();
        let mut read = Vec::new();
        file.rewind().unwrap();
        file.read_to_end(&mut read).unwrap();
        assert!(read[..usize::try_from(first).unwrap()].iter().all(|byte| *byte == 0));
        (read.split_off(usize::try_from(first).unwrap()), file.metadata().unwrap().blocks() * 512)
    }

    /// Pages of the file that have a byte which is not zero.
    fn pages_needed(bytes: &[u8], first: u64) -> u64 {
        let pages = bytes.iter().zip(first..).filter(|(byte, _)| **byte != 0).map(|(_, at)| at / P);
        let mut pages: Vec<u64> = pages.collect();
        pages.dedup();
        pages.len() as u64
    }

    /// Pages of these kinds, less the last `rest` bytes.
    fn bytes_of(pages: &[u8], rest: usize) -> Vec<u8> {
        let page = |kind: &u8| match kind {
            0 => vec![0; PAGE],
            1 => vec![9; PAGE],
            _ => [vec![0; PAGE - 1], vec![1]].concat(),
        };
        let mut bytes: Vec<u8> = pages.iter().flat_map(page).collect();
        bytes.truncate(bytes.len().saturating_sub(rest));
        bytes
    }

    #[test]
    fn a_run_of_zeros_at_each_boundary() {
        let near = |at: usize| [at.saturating_sub(1), at, at + 1];
        for from in [near(0), near(LINE), near(PAGE), near(2 * PAGE)].concat() {
            for to in [near(LINE), near(PAGE), near(2 * PAGE), near(3 * PAGE), near(4 * PAGE)].concat() {
                let mut bytes = vec![7; 4 * PAGE + 1];
                let to = to.min(bytes.len());
                bytes[from.min(to)..to].fill(0);
                for first in [0, 1, P - 1, P] {
                    for piece in [1000, PAGE - 1, PAGE, PAGE + 1, bytes.len()] {
                        let (read, room) = written(&bytes, first, piece);
                        assert!(read == bytes, "{from}..{to} at {first} by {piece}");
                        assert_eq!(
                            room,
                            P * pages_needed(&bytes, first),
                            "{from}..{to} at {first} by {piece}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn zeros_take_no_room_and_the_size_is_true() {
        for size in [0, 1, PAGE - 1, PAGE, 5 * PAGE + 3] {
            assert_eq!(written(&vec![0; size], 0, PAGE), (vec![0; size], 0));
            let mut last = vec![0; size];
            if let Some(byte) = last.last_mut() {
                *byte = 1;
                assert_eq!(written(&last, 0, 1 << 20), (last.clone(), P));
            }
        }
    }

    /// They may be written at this moment by somebody else.
    #[test]
    fn bytes_of_others_are_not_cleared_with_their_page() {
        for (own, blocks) in [(100, PAGE), (0, 0)] {
            let file = tempfile::tempfile_in("/dev/shm").unwrap();
            file.write_all_at(&[[0; 100].as_slice(), &[0xa5; PAGE - 100]].concat(), 0).unwrap();
            rewrite_at(&file, &[0; PAGE - 100], 100, own).unwrap();
            assert_eq!(file.metadata().unwrap().blocks() * 512, blocks as u64, "{own}");
        }
    }

    #[test]
    fn dense_data_is_written_in_one_piece() {
        let mut bytes = vec![0; 64 * PAGE];
        bytes.iter_mut().step_by(PAGE / 2).for_each(|byte| *byte = 1);
        bytes[64 * PAGE - 1] = 1;
        let one = |first| runs(&bytes, first).map(|(at, run)| (at, run.len())).collect::<Vec<_>>();
        assert_eq!(one(0), [(0, bytes.len())]);
        assert_eq!(one(P), [(0, bytes.len())]);
        assert_eq!(one(77), [(0, bytes.len())]);
    }

    proptest! {
        /// Whatever was there, and however long that was.
        #[test]
        fn any_pages_in_used_ones(
            pages in proptest::collection::vec(0..3_u8, 0..12),
            rest in prop_oneof![Just(0), 0..PAGE],
            used in 0..12 * PAGE,
            piece in prop_oneof![1..3 * PAGE, (1..4_usize).prop_map(|pages| pages * PAGE)],
        ) {
            let bytes = bytes_of(&pages, rest);
            let mut file = tempfile::tempfile_in("/dev/shm").unwrap();
            file.write_all_at(&vec![0xa5; used], 0).unwrap();
            for (n, part) in bytes.chunks(piece).enumerate() {
                rewrite_at(&file, part, (n * piece) as u64, 0).unwrap();
            }
            end(&file, bytes.len() as u64).unwrap();
            let mut read = Vec::new();
            file.read_to_end(&mut read).unwrap();
            prop_assert!(read == bytes);
            // Of the last page nobody writes the rest.
            if rest == 0 {
                prop_assert_eq!(file.metadata().unwrap().blocks() * 512, P * pages_needed(&bytes, 0));
            }
        }

        #[test]
        fn any_pages(
            pages in proptest::collection::vec(0..3_u8, 0..12),
            rest in 0..PAGE,
            first in 0..2 * P,
            piece in 1..5 * PAGE,
        ) {
            let bytes = bytes_of(&pages, rest);
            let (read, room) = written(&bytes, first, piece.max(500));
            prop_assert!(read == bytes);
            prop_assert_eq!(room, P * pages_needed(&bytes, first));
        }
    }
}

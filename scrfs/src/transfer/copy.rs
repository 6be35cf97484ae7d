//! The copy loop: read a block, take its CRC, write what is not zero of it.

use std::fs::File;
use std::io::{self, Read};

use super::{Monitor, sparse};
use crate::faults;

/// Bytes of one block.
const BLOCK: usize = 1 << 20;

/// What was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// Bytes.
    pub size: u64,
    /// CRC32 (zlib) of them.
    pub crc: u32,
}

/// Reads `from` to its end, at most `limit` bytes and one more to show that there are more, and
/// writes it to `to`, which is empty.
pub fn copy(
    from: &mut impl Read,
    limit: u64,
    point: &'static str,
    monitor: &Monitor,
    to: Option<&File>,
) -> io::Result<Seen> {
    let mut block = vec![0; BLOCK];
    let mut from = from.take(limit.saturating_add(1));
    let mut crc = crc32fast::Hasher::new();
    let mut size = 0;
    loop {
        faults::hit(point)?;
        let count = match from.read(&mut block) {
            Ok(0) => break,
            Ok(count) => count,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(e),
        };
        crc.update(&block[..count]);
        if let Some(to) = to {
            sparse::write_at(to, &block[..count], size)?;
        }
        size += count as u64;
        monitor.advance(count as u64)?;
    }
    if let Some(to) = to {
        sparse::end(to, size)?;
    }
    Ok(Seen { size, crc: crc.finalize() })
}

/// Reads `from` to its end.
pub fn checksum(from: &mut impl Read, limit: u64, monitor: &Monitor) -> io::Result<Seen> {
    copy(from, limit, "verify.block", monitor, None)
}

#[cfg(test)]
mod tests {
    use std::io::{Seek, Write};
    use std::os::unix::fs::MetadataExt;

    use super::*;

    fn file(bytes: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file.rewind().unwrap();
        file
    }

    #[test]
    fn bytes_and_crc_in_one_pass() {
        let bytes: Vec<u8> = (0..(5 << 19) + 3).map(|i: u32| u8::try_from(i % 251).unwrap()).collect();
        let mut to = tempfile::tempfile().unwrap();
        let monitor = Monitor::new(bytes.len() as u64);
        let seen = copy(&mut file(&bytes), u64::MAX, "flush.block", &monitor, Some(&to)).unwrap();
        assert_eq!(seen, Seen { size: bytes.len() as u64, crc: crc32fast::hash(&bytes) });
        assert_eq!(monitor.progress(), (seen.size, seen.size));
        to.rewind().unwrap();
        let mut copied = Vec::new();
        to.read_to_end(&mut copied).unwrap();
        assert!(copied == bytes);
    }

    #[test]
    fn holes_stay_holes_and_count_as_zeros() {
        let mut bytes = vec![0; 5 << 19];
        bytes[1 << 20..(1 << 20) + 9].fill(1);
        let from = tempfile::tempfile().unwrap();
        sparse::write_at(&from, &bytes, 0).unwrap();
        sparse::end(&from, bytes.len() as u64).unwrap();
        let mut to = tempfile::tempfile_in("/dev/shm").unwrap();
        let seen = copy(&mut &from, u64::MAX, "flush.block", &Monitor::default(), Some(&to)).unwrap();
        assert_eq!(seen, Seen { size: bytes.len() as u64, crc: crc32fast::hash(&bytes) });
        assert_eq!(to.metadata().unwrap().blocks() * 512, 4096);
        let mut copied = Vec::new();
        to.read_to_end(&mut copied).unwrap();
        assert!(copied == bytes);
    }

    #[test]
    fn a_file_that_grew_is_not_read_on_and_on() {
        let seen = checksum(&mut file(&[1; 100]), 10, &Monitor::default()).unwrap();
        assert_eq!(seen.size, 11);
        assert_eq!(checksum(&mut file(b""), 0, &Monitor::default()).unwrap(), Seen { size: 0, crc: 0 });
    }

    #[test]
    fn a_cancelled_copy_ends() {
        let monitor = Monitor::default();
        monitor.cancel();
        let error = checksum(&mut file(b"x"), 1, &monitor).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::Interrupted);
    }
}

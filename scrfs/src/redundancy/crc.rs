//! CRCs of files that are read out of order.
//!
//! Encoding reads a logical file block by block of each piece in turn, so a file that spans pieces
//! is seen as several interleaved runs. Each run has its own CRC32; at the end the runs of a file
//! are joined without reading it again.

use std::collections::HashMap;

use crc32fast::Hasher;

/// Collects the bytes of some files in any number of interleaved runs.
#[derive(Debug, Clone)]
pub struct SegmentCrcs {
    sizes: Vec<u64>,
    /// Runs by (file, end): a contribution that begins where a run ends continues it.
    runs: HashMap<(usize, u64), Run>,
}

#[derive(Debug, Clone)]
struct Run {
    start: u64,
    hasher: Hasher,
}

/// Bytes that do not make up the files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CrcError {
    /// No such file, or beyond its end.
    #[error("bytes {offset} to {end} are not within file {index}")]
    Outside {
        /// Which file.
        index: usize,
        /// First byte.
        offset: u64,
        /// Behind the last.
        end: u64,
    },
    /// Bytes were left out or came twice.
    #[error("file {index} is not covered exactly once at byte {offset}")]
    NotCovered {
        /// Which file.
        index: usize,
        /// Where the first gap or overlap is.
        offset: u64,
    },
}

impl SegmentCrcs {
    /// For files of these sizes.
    pub fn new(sizes: impl IntoIterator<Item = u64>) -> Self {
        Self { sizes: sizes.into_iter().collect(), runs: HashMap::new() }
    }

    /// Takes `bytes` of file `index` at `offset`. Bytes of one run come in order; runs may
    /// interleave.
    pub fn add(&mut self, index: usize, offset: u64, bytes: &[u8]) -> Result<(), CrcError> {
        let end = offset.saturating_add(bytes.len() as u64);
        if self.sizes.get(index).is_none_or(|&size| end > size) {
            return Err(CrcError::Outside { index, offset, end });
        }
        if bytes.is_empty() {
            return Ok(());
        }
        let continued = self.runs.remove(&(index, offset));
        let mut run = continued.unwrap_or_else(|| Run { start: offset, hasher: Hasher::new() });
        run.hasher.update(bytes);
        match self.runs.insert((index, end), run) {
            None => Ok(()),
            // Two runs that end at one byte have that byte in common.
            Some(_) => Err(CrcError::NotCovered { index, offset: end - 1 }),
        }
    }

    /// Takes what another one has collected of the same files.
    pub fn join(&mut self, other: Self) -> Result<(), CrcError> {
        for ((index, end), run) in other.runs {
            if self.runs.insert((index, end), run).is_some() {
                return Err(CrcError::NotCovered { index, offset: end - 1 });
            }
        }
        Ok(())
    }

    /// One CRC32 per file. Every byte of every file must have come exactly once.
    pub fn finish(self) -> Result<Vec<u32>, CrcError> {
        let mut runs: Vec<_> = self.runs.into_iter().map(|((index, end), run)| (index, run, end)).collect();
        runs.sort_unstable_by_key(|(index, run, end)| (*index, run.start, *end));
        let mut runs = runs.into_iter().peekable();
        let mut crcs = Vec::with_capacity(self.sizes.len());
        for (file, &size) in self.sizes.iter().enumerate() {
            let mut whole = Hasher::new();
            let mut covered = 0;
            while let Some((index, run, end)) = runs.next_if(|(index, ..)| *index == file) {
                if run.start != covered {
                    return Err(CrcError::NotCovered { index, offset: covered.min(run.start) });
                }
                whole.combine(&run.hasher);
                covered = end;
            }
            if covered != size {
                return Err(CrcError::NotCovered { index: file, offset: covered });
            }
            crcs.push(whole.finalize());
        }
        Ok(crcs)
    }
}

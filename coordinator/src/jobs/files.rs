//! A member's files, read or written at any order of places, every byte once.
//!
//! Files are opened when their first byte is due and closed after their last, so that the number of
//! open descriptors is bounded by the pieces that are worked on at the same time. CRCs are taken in
//! the same pass.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use scrfs::ids::{DatasetId, Member};
use scrfs::path::RelPath;
use scrfs::redundancy::crc::SegmentCrcs;
use scrfs::redundancy::geometry::{LogicalFile, Segment};
use scrfs::transfer::sparse;

use super::error::JobError;
use super::link::Daemon;

/// How often the daemon is told how much of a member is read.
const TELL: Duration = Duration::from_millis(250);

/// Bytes that are read or written and summed up in turn: they are in the processor's own cache the
/// second time.
pub(super) const AT_HAND: usize = 128 << 10;

/// Names and sizes of a member's files, in the order of its logical file.
#[derive(Debug, Clone)]
pub struct Files {
    id: DatasetId,
    paths: Vec<RelPath>,
    sizes: Vec<u64>,
    logical: LogicalFile,
}

impl Files {
    /// Refuses numbers that differ and sizes whose sum does not fit.
    pub fn new(id: DatasetId, paths: Vec<RelPath>, sizes: Vec<u64>) -> Result<Self, JobError> {
        let plan = |reason| JobError::Plan { id, reason };
        if paths.len() != sizes.len() {
            return Err(plan(format!("{} names and {} sizes of files", paths.len(), sizes.len())));
        }
        let logical = LogicalFile::new(sizes.iter().copied()).map_err(|e| plan(e.to_string()))?;
        Ok(Self { id, paths, sizes, logical })
    }

    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.logical.len()
    }

    /// Names and sizes, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&RelPath, u64)> {
        self.paths.iter().zip(self.sizes.iter().copied())
    }

    /// What the bytes from `offset` belong to: file, offset there, and where in the buffer; padding
    /// is left out.
    fn runs(&self, offset: u64, len: usize) -> impl Iterator<Item = (usize, u64, Range<usize>)> {
        let end = offset.saturating_add(len as u64);
        self.logical
            .segments(offset..end)
            .scan(0, |at, segment| {
                let begin = *at;
                // Within the buffer, so it fits.
                *at += usize::try_from(segment.len()).unwrap_or(usize::MAX);
                Some((segment, begin..*at))
            })
            .filter_map(|(segment, range)| match segment {
                Segment::File { index, offset, .. } => Some((index, offset, range)),
                Segment::Zeros { .. } => None,
            })
    }

    /// The CRCs of all files must be those that were sealed; else the first that is not.
    pub fn compare(&self, found: &[u32], sealed: &[u32]) -> Result<(), (usize, JobError)> {
        let id = self.id;
        if found.len() != sealed.len() || self.paths.len() != sealed.len() {
            let reason = "a file without a CRC".to_owned();
            return Err((usize::MAX, JobError::Plan { id, reason }));
        }
        for (index, (path, (&found, &sealed))) in self.paths.iter().zip(found.iter().zip(sealed)).enumerate()
        {
            if found != sealed {
                return Err((index, JobError::Crc { id, path: path.clone(), found, sealed }));
            }
        }
        Ok(())
    }

    fn io(&self, verb: &str, file: usize, source: std::io::Error) -> JobError {
        let path = self.paths.get(file).map_or_else(String::new, ToString::to_string);
        JobError::Io { id: self.id, what: format!("{verb} {path}"), source }
    }

    fn crc(&self, error: scrfs::redundancy::crc::CrcError) -> JobError {
        JobError::Plan { id: self.id, reason: error.to_string() }
    }
}

/// Files that have had some of their bytes, and how many are left.
#[derive(Default)]
struct Open(BTreeMap<usize, (File, u64)>);

impl Open {
    /// The file; opened by `open`, which gives its size too, when this is its first byte.
    fn file(
        &mut self,
        index: usize,
        open: impl FnOnce() -> Result<(File, u64), JobError>,
    ) -> Result<&File, JobError> {
        Ok(match self.0.entry(index) {
            Entry::Occupied(entry) => &entry.into_mut().0,
            Entry::Vacant(entry) => &entry.insert(open()?).0,
        })
    }

    /// It has had `len` more of its bytes; given back, to be closed, after the last.
    fn done(&mut self, index: usize, len: usize) -> Option<File> {
        let (_, left) = self.0.get_mut(&index)?;
        *left = left.saturating_sub(len as u64);
        if *left == 0 { self.0.remove(&index).map(|(file, _)| file) } else { None }
    }
}

/// Reads a member's files.
pub struct Reader<'a> {
    files: &'a Files,
    daemon: &'a Daemon,
    open: Open,
    crcs: SegmentCrcs,
    /// The number that each file had when it was opened; 0 before that.
    inodes: Vec<u64>,
    /// Bytes that all readers of these files have read, and when this one told the daemon.
    done: Arc<AtomicU64>,
    told: Instant,
}

impl<'a> Reader<'a> {
    /// Opens nothing yet.
    pub fn new(files: &'a Files, daemon: &'a Daemon) -> Self {
        let crcs = SegmentCrcs::new(files.sizes.iter().copied());
        let (open, inodes) = (Open::default(), vec![0; files.sizes.len()]);
        Self { files, daemon, open, crcs, inodes, done: Arc::default(), told: Instant::now() }
    }

    /// Another one, for other bytes of the same files.
    #[must_use]
    pub fn beside(&self) -> Self {
        Self { done: Arc::clone(&self.done), ..Self::new(self.files, self.daemon) }
    }

    /// Takes the CRCs of what that one has read.
    pub fn join(&mut self, other: Self) -> Result<(), JobError> {
        self.crcs.join(other.crcs).map_err(|e| self.files.crc(e))
    }

    /// Fills `buffer` from `offset` of the logical file, beyond whose end there are zeros. No byte
    /// may be read twice.
    pub fn read(&mut self, offset: u64, buffer: &mut [u8]) -> Result<(), JobError> {
        let files = self.files;
        let data = files.bytes().saturating_sub(offset);
        if let Some(padding) = usize::try_from(data).ok().and_then(|data| buffer.get_mut(data..)) {
            padding.fill(0);
        }
        for (index, at, range) in files.runs(offset, buffer.len()) {
            let (bytes, len) = (&mut buffer[range.clone()], range.len());
            self.fill(index, at, bytes).map_err(|error| self.unless_moved(error, index))?;
            self.have_read(index, len);
        }
        Ok(())
    }

    /// Reads into `bytes` from `at` of a file.
    fn fill(&mut self, index: usize, at: u64, bytes: &mut [u8]) -> Result<(), JobError> {
        let Self { files, daemon, open, crcs, inodes, .. } = self;
        let file = open.file(index, || open_checked(files, daemon, inodes, index))?;
        bytes.chunks_mut(AT_HAND).zip((at..).step_by(AT_HAND)).try_for_each(|(bytes, at)| {
            file.read_exact_at(bytes, at).map_err(|e| files.io("read", index, e))?;
            crcs.add(index, at, bytes).map_err(|e| files.crc(e))
        })
    }

    fn have_read(&mut self, index: usize, len: usize) {
        self.open.done(index, len);
        let done = self.done.fetch_add(len as u64, Ordering::Relaxed) + len as u64;
        if self.told.elapsed() >= TELL {
            self.daemon.progress(self.files.id, done, self.files.bytes());
            self.told = Instant::now();
        }
    }

    /// CRC32 of each file; all bytes must have been read.
    pub fn finish(self) -> Result<Vec<u32>, JobError> {
        self.crcs.finish().map_err(|e| self.files.crc(e))
    }

    /// As [`Self::finish`], of files that were sealed with these CRCs.
    pub fn finish_sealed(mut self, sealed: &[u32]) -> Result<(), JobError> {
        let crcs = std::mem::replace(&mut self.crcs, SegmentCrcs::new(std::iter::empty()));
        let crcs = crcs.finish().map_err(|e| self.files.crc(e))?;
        self.files.compare(&crcs, sealed).map_err(|(index, error)| self.unless_moved(error, index))
    }

    /// A file that has not been opened yet is as it is.
    fn unless_moved(&self, error: JobError, index: usize) -> JobError {
        match (self.files.paths.get(index), self.inodes.get(index)) {
            (Some(path), Some(&inode)) if inode != 0 => {
                self.daemon.unless_moved(error, self.files.id, path, inode)
            }
            _ => error,
        }
    }
}

/// A file, which has the size it was frozen with, and that size. Notes the file's number.
fn open_checked(
    files: &Files,
    daemon: &Daemon,
    inodes: &mut [u64],
    index: usize,
) -> Result<(File, u64), JobError> {
    let (path, size) = (&files.paths[index], files.sizes[index]);
    let file = daemon.open_file(files.id, path)?;
    let meta = file.metadata().map_err(|e| files.io("stat", index, e))?;
    if meta.len() != size {
        let reason = format!("{path} has {} bytes, not {size}", meta.len());
        return Err(daemon.unless_moved(JobError::Plan { id: files.id, reason }, files.id, path, meta.ino()));
    }
    inodes[index] = meta.ino();
    Ok((file, size))
}

/// Writes a member's files anew; where there are zeros they have holes.
pub struct Writer<'a> {
    files: &'a Files,
    member: Member,
    daemon: &'a Daemon,
    open: Open,
    crcs: SegmentCrcs,
}

impl<'a> Writer<'a> {
    /// Makes the empty files; the others are made when their first byte comes.
    pub fn new(files: &'a Files, member: Member, daemon: &'a Daemon) -> Result<Self, JobError> {
        for (path, _) in files.iter().filter(|(_, size)| *size == 0) {
            daemon.create_file(files.id, member, path)?;
        }
        let crcs = SegmentCrcs::new(files.sizes.iter().copied());
        Ok(Self { files, member, daemon, open: Open::default(), crcs })
    }

    /// Writes `bytes` at `offset` of the logical file; what is beyond its end is padding and
    /// dropped.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), JobError> {
        let (files, member, daemon) = (self.files, self.member, self.daemon);
        for (index, at, range) in files.runs(offset, bytes.len()) {
            let bytes = &bytes[range];
            let create =
                || Ok((daemon.create_file(files.id, member, &files.paths[index])?, files.sizes[index]));
            let file = self.open.file(index, create)?;
            sparse::write_at(file, bytes, at).map_err(|e| files.io("write", index, e))?;
            if let Some(whole) = self.open.done(index, bytes.len()) {
                sparse::end(&whole, files.sizes[index]).map_err(|e| files.io("write", index, e))?;
            }
            self.crcs.add(index, at, bytes).map_err(|e| files.crc(e))?;
        }
        Ok(())
    }

    /// CRC32 of each file; all bytes must have been written.
    pub fn finish(self) -> Result<Vec<u32>, JobError> {
        self.crcs.finish().map_err(|e| self.files.crc(e))
    }
}

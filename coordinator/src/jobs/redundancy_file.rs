//! A member's redundancy file, written or read once, with its CRC in the same pass.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use scrfs::ids::{DatasetId, Member};
use scrfs::redundancy::crc::{CrcError, SegmentCrcs};
use scrfs::transfer::sparse;

use super::error::JobError;
use super::files::AT_HAND;
use super::header::SetRecord;
use super::link::Daemon;

/// Writes a redundancy file: header, then payload, with holes where that is zero.
pub(super) struct RedundancyWriter {
    id: DatasetId,
    name: String,
    file: Arc<File>,
    crc: SegmentCrcs,
    /// Bytes of the header.
    header: u64,
    /// Bytes of all of it.
    size: u64,
    /// So many bytes of another one were in it: what is zero has to be made so there.
    used: u64,
    /// What this one has written last, without a gap.
    own: Range<u64>,
}

impl RedundancyWriter {
    /// Makes the file of `member`, at `position` of its set, and writes the header; the payload is
    /// to follow.
    pub(super) fn create(
        id: DatasetId,
        member: Member,
        position: u32,
        record: &SetRecord,
        daemon: &Daemon,
    ) -> Result<Self, JobError> {
        let (name, header) = (record.file_name(position)?, record.header(position)?);
        let file = Arc::new(daemon.create_redundancy(id, member, &name)?);
        let size = header.len() as u64 + record.payloads().bytes(position as usize);
        let used = file
            .metadata()
            .map_err(|source| JobError::Io { id, what: format!("stat {name}"), source })?
            .len();
        let mut writer =
            Self { id, name, file, crc: SegmentCrcs::new([size]), header: 0, size, used, own: 0..0 };
        writer.write(0, &header)?;
        writer.header = header.len() as u64;
        Ok(writer)
    }

    /// Another one, for other bytes of the payload.
    pub(super) fn beside(&self) -> Self {
        let (name, file, crc) = (self.name.clone(), Arc::clone(&self.file), SegmentCrcs::new([self.size]));
        Self { name, file, crc, own: self.own.clone(), ..*self }
    }

    /// Takes the CRC of what that one has written.
    pub(super) fn join(&mut self, other: Self) -> Result<(), JobError> {
        self.crc.join(other.crc).map_err(|e| self.misfit(e))
    }

    /// Writes `bytes` at `at` of the payload. Those of a chunk come in order.
    pub(super) fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), JobError> {
        let first = self.header + at;
        if first != self.own.end {
            // Others may write what is before it at this moment.
            self.own.start = first;
        }
        self.own.end = first + bytes.len() as u64;
        bytes.chunks(AT_HAND).zip((first..).step_by(AT_HAND)).try_for_each(|(bytes, at)| {
            let written = if at < self.used {
                sparse::rewrite_at(&self.file, bytes, at, self.own.start)
            } else {
                sparse::write_at(&self.file, bytes, at)
            };
            written.map_err(|e| self.io(e))?;
            self.crc.add(0, at, bytes).map_err(|e| self.misfit(e))
        })
    }

    /// Name, size, CRC32.
    pub(super) fn finish(self) -> Result<(String, u64, u32), JobError> {
        sparse::end(&self.file, self.size).map_err(|e| self.io(e))?;
        let crcs = self.crc.clone().finish().map_err(|e| self.misfit(e))?;
        Ok((self.name, self.size, crcs.first().copied().unwrap_or_default()))
    }

    fn io(&self, source: std::io::Error) -> JobError {
        JobError::Io { id: self.id, what: format!("write {}", self.name), source }
    }

    fn misfit(&self, error: CrcError) -> JobError {
        JobError::Plan { id: self.id, reason: format!("{}: {error}", self.name) }
    }
}

/// A survivor's redundancy file.
pub(super) struct RedundancyReader {
    id: DatasetId,
    member: Member,
    file: File,
    /// What was recorded of the whole file.
    crc: u32,
    /// Bytes in front of the payload.
    header: u64,
    read: SegmentCrcs,
}

impl RedundancyReader {
    /// The file of `member`, at `position` of its set, checked to be of this set.
    pub(super) fn open(
        id: DatasetId,
        member: Member,
        position: u32,
        record: &SetRecord,
        daemon: &Daemon,
    ) -> Result<Self, JobError> {
        let (file, crc) = daemon.open_redundancy(id, member)?;
        let mut reader = Self { id, member, file, crc, header: 0, read: SegmentCrcs::new([]) };
        let size = reader.file.metadata().map_err(|e| reader.io(e))?.len();
        let header = record.check_header(position, &reader.file, size)?;
        let payload = record.payloads().bytes(position as usize);
        reader.header = header.len() as u64;
        if size != reader.header.saturating_add(payload) {
            return Err(reader.wrong(format!("{size} bytes, not {} + {payload}", reader.header)));
        }
        reader.read = SegmentCrcs::new([size]);
        reader.add(0, &header)?;
        Ok(reader)
    }

    /// Fills `buffer` from `at` of the payload. Those of a chunk come in order.
    pub(super) fn read(&mut self, at: u64, buffer: &mut [u8]) -> Result<(), JobError> {
        self.file.read_exact_at(buffer, self.header + at).map_err(|e| self.io(e))?;
        self.add(self.header + at, buffer)
    }

    fn add(&mut self, at: u64, bytes: &[u8]) -> Result<(), JobError> {
        self.read.add(0, at, bytes).map_err(|e| self.wrong(e.to_string()))
    }

    /// All of it was read: it must be what was recorded.
    pub(super) fn finish(self) -> Result<(), JobError> {
        let found = self.read.clone().finish().map_err(|e| self.wrong(e.to_string()))?;
        if found == [self.crc] {
            return Ok(());
        }
        Err(self.wrong(format!("its CRC is not {:#x}, which was recorded", self.crc)))
    }

    fn wrong(&self, reason: String) -> JobError {
        JobError::Redundancy { id: self.id, member: self.member, reason }
    }

    fn io(&self, source: std::io::Error) -> JobError {
        JobError::Io {
            id: self.id,
            what: format!("read the redundancy file of member {}", self.member),
            source,
        }
    }
}

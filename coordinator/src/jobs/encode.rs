//! The *encode* job: every file of a member is read once, its CRC taken, and the set's redundancy
//! data made on the way.
//!
//! A member's share is two threads with a few blocks between them: one reads, combines with what
//! comes from the left neighbour and sends to the right one, the other writes this member's
//! redundancy file. Each hand-over to a third would stand behind the time slices of a program that
//! spins. [`super::plan`] has the order of the blocks.

use std::fs::File;

use crossbeam_channel::{Receiver, Sender, bounded};
use scrfs::dataset::Scheme;
use scrfs::ids::{DatasetId, Member};
use scrfs::redundancy::code::Code;
use scrfs::redundancy::crc::{CrcError, SegmentCrcs};
use scrfs::redundancy::geometry::Geometry;
use scrfs::redundancy::{left, right};
use scrfs::transfer::sparse;

use super::block::Block;
use super::error::{JobError, fault};
use super::files::{Files, Reader};
use super::header::{Described, SetRecord};
use super::link::{Daemon, Finish};
use super::plan::{Turn, add, encode_turns, len};
use super::streams::Peers;
use crate::job::{Job, JobOutput, SetMember};

/// Blocks between the threads of a share.
const PIPE: usize = 4;

/// One member's share.
pub fn run(job: &Job, block: usize, daemon: &Daemon, peers: &Peers) -> Result<JobOutput, JobError> {
    let Job::Encode { id, scheme, about, paths, set, members } = job else {
        return Err(JobError::Aborted("not an encode job".into()));
    };
    let id = *id;
    fault("encode.start")?;
    let record = SetRecord::new(&Described { id, scheme: *scheme, about, members: *members }, set, paths)?;
    let me = peers.me();
    let Some(SetMember { member, .. }) = set.get(me as usize) else {
        return Err(record.unfit("no such position"));
    };
    let share = Share { id, member: *member, me, block, record: &record, daemon, peers };
    let result = share.encode(*scheme).and_then(|(crcs, redundancy)| {
        fault("encode.finish")?;
        let set: Vec<Member> = set.iter().map(|m| m.member).collect();
        daemon.finish_member(id, Finish { member: *member, crcs, redundancy, set, members: *members })
    });
    if result.is_err() {
        daemon.abandon_member(id, *member);
    }
    result.map(JobOutput::Part)
}

struct Share<'a> {
    id: DatasetId,
    member: Member,
    me: u32,
    block: usize,
    record: &'a SetRecord,
    daemon: &'a Daemon,
    peers: &'a Peers,
}

/// CRCs of the files; name, size and CRC of the redundancy file.
type Encoded = (Vec<u32>, Option<(String, u64, u32)>);

impl Share<'_> {
    fn encode(&self, scheme: Scheme) -> Result<Encoded, JobError> {
        let files = self.record.files(self.me)?;
        match (scheme, self.record.parity()) {
            (Scheme::Partner, _) => Err(self.record.unfit("PARTNER copies are not made in this version")),
            (_, Some((geometry, code))) => self.with_parity(geometry, code, files),
            (_, None) => Ok((self.read_through(files)?, None)),
        }
    }

    /// CRCs only: nothing protects this member.
    fn read_through(&self, files: &Files) -> Result<Vec<u32>, JobError> {
        let mut reader = Reader::new(files, self.daemon);
        let mut buffer = vec![0; self.block];
        let mut at = 0;
        while at < files.bytes() {
            self.peers.check()?;
            fault("encode.block")?;
            let len = usize::try_from(files.bytes() - at).unwrap_or(self.block).min(self.block);
            reader.read(at, &mut buffer[..len])?;
            at += len as u64;
        }
        reader.finish()
    }

    fn with_parity(&self, geometry: Geometry, code: &Code, files: &Files) -> Result<Encoded, JobError> {
        let (parity_out, parity) = bounded(PIPE);
        std::thread::scope(|scope| {
            // Each thread owns its end, so that the other's waits end with it.
            let writing = scope.spawn(move || self.noted(self.write(geometry, &parity)));
            let combined = self.noted(self.combine(geometry, code, files, &parity_out));
            drop(parity_out);
            // The cause first, then what it took along.
            match (combined, joined(writing.join())) {
                (Ok(crcs), Ok(redundancy)) => Ok((crcs, Some(redundancy))),
                (combined, redundancy) => Err(first_cause([combined.err(), redundancy.err()])),
            }
        })
    }

    /// A failing thread ends the waits of the others at once.
    fn noted<T>(&self, result: Result<T, JobError>) -> Result<T, JobError> {
        if let Err(error) = &result {
            self.peers.fail(error.reason());
        }
        result
    }

    /// The turns of this member. The sums of a block that travel together are no larger than one
    /// block may be.
    fn turns(&self, geometry: Geometry) -> impl Iterator<Item = Turn> {
        encode_turns(geometry, self.me as usize, self.block / geometry.parities())
    }

    /// Reads each block while the sums of the left neighbour are on their way; CRC32 of each file.
    fn combine(
        &self,
        geometry: Geometry,
        code: &Code,
        files: &Files,
        parity: &Sender<Parity>,
    ) -> Result<Vec<u32>, JobError> {
        let members = geometry.members();
        let neighbour = |at: usize| u32::try_from(at).map_err(|_| self.record.unfit("no such position"));
        let left = neighbour(left(members, self.me as usize))?;
        let right = neighbour(right(members, self.me as usize))?;
        let factors = code.coefficients_of(self.me as usize);
        let mut reader = Reader::new(files, self.daemon);
        for Turn { step, block: range } in self.turns(geometry) {
            fault("encode.block")?;
            let len = len(&range);
            let part = geometry.part(self.me as usize, step.column);
            let at = geometry.range(part, &range).start;
            let own = step.adds().then(|| read(&mut reader, at, len)).transpose()?;
            let came = if step.receive > 0 { Some(self.peers.recv(left, step.receive * len)?) } else { None };
            match (own, came) {
                (Some(own), came) => self.peers.send(right, add(own, came, &factors))?,
                (None, Some(mut sums)) => {
                    let last = sums.split_last(len);
                    let kept = if let Some(last) = last {
                        self.peers.send(right, sums)?;
                        last
                    } else {
                        sums
                    };
                    parity.send(Parity { at, block: kept }).map_err(|_| ended())?;
                }
                (None, None) => return Err(self.record.unfit("a step without bytes")),
            }
        }
        reader.finish()
    }

    fn write(&self, geometry: Geometry, parity: &Receiver<Parity>) -> Result<(String, u64, u32), JobError> {
        let name = self.record.file_name(self.me);
        let file = self.daemon.create_redundancy(self.id, self.member, &name)?;
        let header = self.record.header(self.me)?;
        let mut writer = RedundancyWriter::new(self.id, name, file, &header, geometry.payload())?;
        let mut left = geometry.payload();
        while left > 0 {
            let Parity { at, block } = parity.recv().map_err(|_| ended())?;
            writer.write(at, block.payload())?;
            left = left.saturating_sub(block.payload().len() as u64);
        }
        writer.finish()
    }
}

/// A block of this member's redundancy data.
struct Parity {
    /// Where it begins in the payload.
    at: u64,
    block: Block,
}

fn read(reader: &mut Reader<'_>, offset: u64, len: usize) -> Result<Block, JobError> {
    let mut block = Block::zeroed(len);
    reader.read(offset, block.payload_mut())?;
    Ok(block)
}

/// Writes a redundancy file: header, then payload, with holes where that is zero; its CRC in the
/// same pass.
pub(super) struct RedundancyWriter {
    id: DatasetId,
    name: String,
    file: File,
    crc: SegmentCrcs,
    /// Of the header.
    header: u64,
    /// Of all of it.
    size: u64,
}

impl RedundancyWriter {
    /// Writes the header; a payload of so many bytes is to follow.
    pub(super) fn new(
        id: DatasetId,
        name: String,
        file: File,
        header: &[u8],
        payload: u64,
    ) -> Result<Self, JobError> {
        let size = header.len() as u64 + payload;
        let mut writer = Self { id, name, file, crc: SegmentCrcs::new([size]), header: 0, size };
        writer.write(0, header)?;
        writer.header = header.len() as u64;
        Ok(writer)
    }

    /// Writes `bytes` at `at` of the payload. Those of a chunk come in order.
    pub(super) fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), JobError> {
        let at = self.header + at;
        sparse::write_at(&self.file, bytes, at).map_err(|e| self.io(e))?;
        self.crc.add(0, at, bytes).map_err(|e| self.misfit(e))
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

/// A thread of this share ended; its own error says why.
pub(super) fn ended() -> JobError {
    JobError::Aborted("another thread of this share ended".into())
}

/// A thread's result; a panic ends the process anyway, by the hook.
pub(super) fn joined<T>(result: std::thread::Result<Result<T, JobError>>) -> Result<T, JobError> {
    result.unwrap_or_else(|_| Err(JobError::Aborted("a worker thread panicked".into())))
}

/// Of the errors of one share's threads, one that is not a consequence.
pub(super) fn first_cause<const N: usize>(errors: [Option<JobError>; N]) -> JobError {
    let mut errors: Vec<_> = errors.into_iter().flatten().collect();
    let at = errors.iter().position(|e| !matches!(e, JobError::Aborted(_))).unwrap_or(0);
    if errors.is_empty() { ended() } else { errors.swap_remove(at) }
}

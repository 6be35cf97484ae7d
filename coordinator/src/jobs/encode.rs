//! The *encode* job: every file of a member is read once, its CRC taken, and the set's redundancy data made on the way.
//!
//! A member's share is two threads with a few blocks between them: one reads, combines with what comes from the left
//! neighbour and sends to the right one, the other writes this member's redundancy file. Each hand-over to a third would
//! stand behind the time slices of a program that spins. [`super::plan`] has the order of the blocks.

use std::fs::File;

use crossbeam_channel::{Receiver, Sender, bounded};
use scrfs::dataset::Scheme;
use scrfs::ids::{DatasetId, Member};
use scrfs::redundancy::kernel::xor_into;
use scrfs::redundancy::xor::Geometry;
use scrfs::redundancy::{left, right};
use scrfs::transfer::sparse;

use super::block::Block;
use super::error::{JobError, fault};
use super::files::{Files, Reader};
use super::header::{Described, SetRecord};
use super::link::{Daemon, Finish};
use super::plan::{Turn, encode_turns, len};
use super::streams::Peers;
use crate::job::{Job, JobOutput, SetMember};

/// Blocks between the threads of a share.
const PIPE: usize = 4;

/// One member's share.
pub fn run(job: &Job, block: usize, daemon: &Daemon, peers: &Peers) -> Result<JobOutput, JobError> {
    let Job::Encode { id, scheme, about, paths, set, members } = job else {
        return Err(JobError::Aborted("not an encode job".to_owned()));
    };
    let id = *id;
    fault("encode.start")?;
    let record = SetRecord::new(&Described { id, about, members: *members }, set, paths)?;
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
        match (scheme, self.record.geometry()) {
            (Scheme::Xor, Some(geometry)) => self.xor(geometry, files),
            (Scheme::Xor | Scheme::Single, _) => Ok((self.read_through(files)?, None)),
            (Scheme::Partner, _) => Err(self.record.unfit("PARTNER copies are not made in this version")),
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

    fn xor(&self, geometry: Geometry, files: &Files) -> Result<Encoded, JobError> {
        let (parity_out, parity) = bounded(PIPE);
        std::thread::scope(|scope| {
            // Each thread owns its end, so that the other's waits end with it.
            let writing = scope.spawn(move || self.noted(self.write(geometry, &parity)));
            let combined = self.noted(self.combine(geometry, files, &parity_out));
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
            self.peers.fail(&error.to_string());
        }
        result
    }

    fn turns(&self, geometry: Geometry) -> impl Iterator<Item = Turn> {
        encode_turns(geometry, self.me as usize, self.block)
    }

    /// Reads each block while that of the left neighbour is on its way; CRC32 of each file.
    fn combine(
        &self,
        geometry: Geometry,
        files: &Files,
        parity: &Sender<Block>,
    ) -> Result<Vec<u32>, JobError> {
        let members = geometry.members();
        let neighbour = |at: usize| u32::try_from(at).map_err(|_| self.record.unfit("no such position"));
        let left = neighbour(left(members, self.me as usize))?;
        let right = neighbour(right(members, self.me as usize))?;
        let mut reader = Reader::new(files, self.daemon);
        for Turn { step, block: range } in self.turns(geometry) {
            fault("encode.block")?;
            let own = geometry.part(self.me as usize, step.column).data_range(&range);
            let own = own.filter(|_| step.send).map(|data| read(&mut reader, data.start, len(&range)));
            let own = own.transpose()?;
            let came = if step.receive { Some(self.peers.recv(left, len(&range))?) } else { None };
            match (own, came) {
                (Some(mut own), came) => {
                    if let Some(came) = came {
                        xor_into(own.payload_mut(), came.payload());
                    }
                    self.peers.send(right, own)?;
                }
                (None, Some(whole)) => parity.send(whole).map_err(|_| ended())?,
                (None, None) => return Err(self.record.unfit("a step without bytes")),
            }
        }
        reader.finish()
    }

    fn write(&self, geometry: Geometry, parity: &Receiver<Block>) -> Result<(String, u64, u32), JobError> {
        let name = self.record.file_name(self.me);
        let file = self.daemon.create_redundancy(self.id, self.member, &name)?;
        let mut writer = RedundancyWriter::new(self.id, name, file, &self.record.header(self.me)?)?;
        let mut left = geometry.chunk();
        while left > 0 {
            let block = parity.recv().map_err(|_| ended())?;
            writer.write(block.payload())?;
            left = left.saturating_sub(block.payload().len() as u64);
        }
        writer.finish()
    }
}

fn read(reader: &mut Reader<'_>, offset: u64, len: usize) -> Result<Block, JobError> {
    let mut block = Block::zeroed(len);
    reader.read(offset, block.payload_mut())?;
    Ok(block)
}

/// Writes a redundancy file front to back: header, then payload, with holes where that is zero; its CRC in the same
/// pass.
pub(super) struct RedundancyWriter {
    id: DatasetId,
    name: String,
    file: File,
    crc: crc32fast::Hasher,
    bytes: u64,
}

impl RedundancyWriter {
    /// Writes the header.
    pub(super) fn new(id: DatasetId, name: String, file: File, header: &[u8]) -> Result<Self, JobError> {
        let mut writer = Self { id, name, file, crc: crc32fast::Hasher::new(), bytes: 0 };
        writer.write(header)?;
        Ok(writer)
    }

    /// Appends.
    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<(), JobError> {
        sparse::write_at(&self.file, bytes, self.bytes).map_err(|e| self.io(e))?;
        self.crc.update(bytes);
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    /// Name, size, CRC32.
    pub(super) fn finish(self) -> Result<(String, u64, u32), JobError> {
        sparse::end(&self.file, self.bytes).map_err(|e| self.io(e))?;
        Ok((self.name, self.bytes, self.crc.finalize()))
    }

    fn io(&self, source: std::io::Error) -> JobError {
        JobError::Io { id: self.id, what: format!("write {}", self.name), source }
    }
}

/// A thread of this share ended; its own error says why.
pub(super) fn ended() -> JobError {
    JobError::Aborted("another thread of this share ended".to_owned())
}

/// A thread's result; a panic ends the process anyway, by the hook.
pub(super) fn joined<T>(result: std::thread::Result<Result<T, JobError>>) -> Result<T, JobError> {
    result.unwrap_or_else(|_| Err(JobError::Aborted("a worker thread panicked".to_owned())))
}

/// Of the errors of one share's threads, one that is not a consequence.
pub(super) fn first_cause<const N: usize>(errors: [Option<JobError>; N]) -> JobError {
    let mut errors: Vec<_> = errors.into_iter().flatten().collect();
    let at = errors.iter().position(|e| !matches!(e, JobError::Aborted(_))).unwrap_or(0);
    if errors.is_empty() { ended() } else { errors.swap_remove(at) }
}

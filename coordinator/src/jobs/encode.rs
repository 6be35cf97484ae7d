//! The *encode* job: every file of a member is read once, its CRC taken, and the set's redundancy
//! data made on the way.
//!
//! A member's share is two threads with a few blocks between them: one reads, combines with what
//! comes from the left neighbour and sends to the right one, the other writes this member's
//! redundancy file. Each hand-over to a third would stand behind the time slices of a program that
//! spins. [`super::plan`] has the order of the blocks.

use std::thread::{Builder, Scope, ScopedJoinHandle};

use crossbeam_channel::{Receiver, Sender, bounded};
use scrfs::ids::{DatasetId, Member};
use scrfs::redundancy::code::Code;
use scrfs::redundancy::geometry::{Geometry, blocks};
use scrfs::redundancy::payload::Payloads;
use scrfs::redundancy::{left, right};

use super::block::Block;
use super::error::{JobError, fault};
use super::files::{AT_HAND, Files, Reader};
use super::header::{Described, SetRecord};
use super::link::{Daemon, Finish};
use super::plan::{Turn, encode_turns, len, put};
use super::redundancy_file::RedundancyWriter;
use super::streams::Peers;
use crate::job::{Job, JobOutput, SetMember};

/// Blocks between the threads of a share.
const PIPE: usize = 4;

/// One member's share.
pub fn run(job: &Job, block: usize, daemon: &Daemon, peers: &Peers) -> Result<JobOutput, JobError> {
    let Job::Encode { id, scheme, about, paths, set, members, encoding, fresh } = job else {
        return Err(JobError::Aborted("not an encode job".into()));
    };
    let id = *id;
    fault("encode.start")?;
    let record = SetRecord::new(
        &Described { id, scheme: *scheme, about, members: *members, encoding: *encoding },
        set,
        paths,
    )?;
    let me = peers.me();
    let Some(SetMember { member, .. }) = set.get(me as usize) else {
        return Err(record.unfit("no such position"));
    };
    let share = Share { id, member: *member, me, block, record: &record, daemon, peers };
    let fresh = fresh.as_ref().filter(|fresh| fresh.members.contains(member));
    let begun = fresh.map_or(Ok(()), |fresh| daemon.begin_member(&fresh.catalog, *member));
    let result = begun.and_then(|()| share.encode()).and_then(|(crcs, redundancy)| {
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
    fn encode(&self) -> Result<Encoded, JobError> {
        let files = self.record.files(self.me)?;
        match self.record.payloads() {
            Payloads::None => Ok((self.read_through(files)?, None)),
            Payloads::Copies { .. } => self.with_copies(files),
            Payloads::Parities(geometry, code) => self.with_parity(*geometry, code, files),
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
            let writing = begin(scope, move || self.noted(self.write(geometry, &parity)))?;
            let combined = self.noted(self.combine(geometry, code, files, &parity_out));
            drop(parity_out);
            // The cause first, then what it took along.
            match (combined, joined(writing.join())) {
                (Ok(crcs), Ok(redundancy)) => Ok((crcs, Some(redundancy))),
                (combined, redundancy) => Err(first_cause([combined.err(), redundancy.err()])),
            }
        })
    }

    /// PARTNER: the files go to the right neighbour, and those of the left one are kept as a copy.
    fn with_copies(&self, files: &Files) -> Result<Encoded, JobError> {
        std::thread::scope(|scope| {
            let keeping = begin(scope, || self.noted(self.keep_copy()))?;
            let given = self.noted(self.give_copy(files));
            match (given, joined(keeping.join())) {
                (Ok(crcs), Ok(redundancy)) => Ok((crcs, Some(redundancy))),
                (given, kept) => Err(first_cause([given.err(), kept.err()])),
            }
        })
    }

    fn give_copy(&self, files: &Files) -> Result<Vec<u32>, JobError> {
        let right = self.record.neighbour(self.me, right)?;
        let mut reader = Reader::new(files, self.daemon);
        for range in blocks(files.bytes(), self.block as u64) {
            fault("encode.block")?;
            self.peers.send(right, self.read(&mut reader, range.start, len(&range))?)?;
        }
        reader.finish()
    }

    fn keep_copy(&self) -> Result<(String, u64, u32), JobError> {
        let left = self.record.neighbour(self.me, left)?;
        let mut writer = RedundancyWriter::create(self.id, self.member, self.me, self.record, self.daemon)?;
        for range in blocks(self.record.files(left)?.bytes(), self.block as u64) {
            let block = self.peers.recv(left, len(&range))?;
            writer.write(range.start, block.payload())?;
            block.free(self.peers.buffers());
        }
        writer.finish()
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

    /// Adds this member's bytes to the sums that come from the left neighbour, several blocks of
    /// which are on their way; CRC32 of each file.
    fn combine(
        &self,
        geometry: Geometry,
        code: &Code,
        files: &Files,
        parity: &Sender<Parity>,
    ) -> Result<Vec<u32>, JobError> {
        let left = self.record.neighbour(self.me, left)?;
        let right = self.record.neighbour(self.me, right)?;
        let factors = code.coefficients_of(self.me as usize);
        let mut reader = Reader::new(files, self.daemon);
        let buffers = self.peers.buffers();
        let mut own = vec![0; self.block.min(AT_HAND)];
        for Turn { step, block: range } in self.turns(geometry) {
            fault("encode.block")?;
            let len = len(&range);
            let part = geometry.part(self.me as usize, step.column);
            let at = geometry.range(part, &range).start;
            let came = if step.receive > 0 { Some(self.peers.recv(left, step.receive * len)?) } else { None };
            match came {
                came if step.adds() => {
                    let begins = came.is_none();
                    let mut sums = came.unwrap_or_else(|| Block::used(factors.len() * len, buffers));
                    for from in (0..len).step_by(own.len()) {
                        let own = &mut own[..(len - from).min(AT_HAND)];
                        reader.read(at + from as u64, own)?;
                        for (sum, factor) in sums.payload_mut().chunks_exact_mut(len).zip(&factors) {
                            put(&mut sum[from..from + own.len()], own, *factor, begins);
                        }
                    }
                    self.peers.send(right, sums)?;
                }
                Some(mut sums) => {
                    let last = sums.split_last(len, buffers);
                    let kept = if let Some(last) = last {
                        self.peers.send(right, sums)?;
                        last
                    } else {
                        sums
                    };
                    parity.send(Parity { at, block: kept }).map_err(|_| ended())?;
                }
                None => return Err(self.record.unfit("a step without bytes")),
            }
        }
        reader.finish()
    }

    fn read(&self, reader: &mut Reader<'_>, offset: u64, len: usize) -> Result<Block, JobError> {
        let mut block = Block::used(len, self.peers.buffers());
        reader.read(offset, block.payload_mut())?;
        Ok(block)
    }

    fn write(&self, geometry: Geometry, parity: &Receiver<Parity>) -> Result<(String, u64, u32), JobError> {
        let mut writer = RedundancyWriter::create(self.id, self.member, self.me, self.record, self.daemon)?;
        let mut left = geometry.payload();
        while left > 0 {
            let Parity { at, block } = parity.recv().map_err(|_| ended())?;
            writer.write(at, block.payload())?;
            left = left.saturating_sub(block.payload().len() as u64);
            block.free(self.peers.buffers());
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

/// A thread of this share ended; its own error says why.
pub(super) fn ended() -> JobError {
    JobError::Aborted("another thread of this share ended".into())
}

/// A thread's result; a panic ends the process anyway, by the hook.
pub(super) fn joined<T>(result: std::thread::Result<Result<T, JobError>>) -> Result<T, JobError> {
    result.unwrap_or_else(|_| Err(JobError::Aborted("a worker thread panicked".into())))
}

/// Begins a thread of a share.
pub(super) fn begin<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    work: impl FnOnce() -> T + Send + 'scope,
) -> Result<ScopedJoinHandle<'scope, T>, JobError> {
    fault("job.thread")?;
    Builder::new().spawn_scoped(scope, work).map_err(JobError::Thread)
}

/// Of the errors of one share's threads, one that is not a consequence.
pub(super) fn first_cause<const N: usize>(errors: [Option<JobError>; N]) -> JobError {
    let mut errors: Vec<_> = errors.into_iter().flatten().collect();
    let at = errors.iter().position(|e| !matches!(e, JobError::Aborted(_))).unwrap_or(0);
    if errors.is_empty() { ended() } else { errors.swap_remove(at) }
}

#[cfg(all(test, feature = "faults"))]
mod tests {
    use super::*;

    /// The program's processes count towards the limit of the job's user.
    #[test]
    fn a_share_fails_where_no_thread_can_be_made() {
        scrfs::faults::arm(1, scrfs::faults::Fault::Error(libc::EAGAIN));
        let begun = std::thread::scope(|scope| begin(scope, || ()).map(drop));
        let error = begun.unwrap_err();
        assert!(error.to_string().contains("injected") && !error.is_bad_data(), "{error}");
    }
}

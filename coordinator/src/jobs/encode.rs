//! The *encode* job: every file of a member is read once, its CRC taken, and the set's redundancy
//! data made on the way.
//!
//! A member's share has two threads for each strip of the set. One sends this member's bytes to the
//! members that hold their parities; the other adds up the blocks that come, and writes the
//! redundancy file. Neither waits for the other, nor for those of another strip. Where there is
//! next to nothing to send ([`Pace::is_brief`]) one thread does both in turn.
//! [`scrfs::redundancy::plan`] has the order of the blocks.

use std::cmp::Reverse;
use std::ops::Range;
use std::sync::Arc;
use std::thread::{Builder, Scope, ScopedJoinHandle};

use scrfs::ids::{DatasetId, Member};
use scrfs::priority::threads::be_patient;
use scrfs::redundancy::geometry::Strip;
use scrfs::redundancy::kernel::{add_multiple, multiply_by};
use scrfs::redundancy::payload::Payloads;
use scrfs::redundancy::plan::{Addend, Gift, Intake, gifts, intakes};

use super::block::Block;
use super::error::{JobError, fault};
use super::files::{AT_HAND, Files, Reader};
use super::header::{Described, SetRecord};
use super::link::{Daemon, Finish};
use super::plan::{Pace, len};
use super::redundancy_file::RedundancyWriter;
use super::streams::Peers;
use crate::job::{Job, JobOutput, SetMember};

/// A member of fewer bytes is encoded before anything could wait for long behind it.
const LONG: u64 = 4 << 20;

/// What is behind the ends of all members' files.
static ZEROS: [u8; AT_HAND] = [0; AT_HAND];

/// How finely a set may be cut.
#[derive(Debug, Clone, Copy)]
pub struct Most {
    /// Bytes of a block, at most.
    pub block: usize,
    /// Strips that are encoded at a time, at most.
    pub strips: u32,
}

/// One member's share.
pub fn run(job: &Job, most: Most, daemon: &Daemon, peers: &Peers) -> Result<JobOutput, JobError> {
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
    let pace = Pace::of(record.payloads(), most.block, most.strips);
    let peers = &peers.within(pace.window);
    let share = Share { id, member: *member, me, pace, record: &record, daemon, peers };
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
    pace: Pace,
    record: &'a SetRecord,
    daemon: &'a Daemon,
    peers: &'a Peers,
}

/// What gives the blocks of a strip, and what keeps those that come.
type StripThreads<'scope, 'r> = (
    ScopedJoinHandle<'scope, Result<Reader<'r>, JobError>>,
    ScopedJoinHandle<'scope, Result<RedundancyWriter, JobError>>,
);

/// CRCs of the files; name, size and CRC of the redundancy file.
type Encoded = (Vec<u32>, Option<(String, u64, u32)>);

impl Share<'_> {
    fn encode(&self) -> Result<Encoded, JobError> {
        let files = self.record.files(self.me)?;
        match self.record.payloads() {
            Payloads::None => Ok((self.patient(|| self.read_through(files))?, None)),
            Payloads::Copies { .. } | Payloads::Parities(..) => self.exchange(files),
        }
    }

    /// CRCs only: nothing protects this member.
    fn read_through(&self, files: &Files) -> Result<Vec<u32>, JobError> {
        let mut reader = Reader::new(files, self.daemon);
        let mut buffer = vec![0; self.pace.block];
        let mut at = 0;
        while at < files.bytes() {
            self.peers.check()?;
            fault("encode.block")?;
            let block = self.pace.block;
            let len = usize::try_from(files.bytes() - at).unwrap_or(block).min(block);
            reader.read(at, &mut buffer[..len])?;
            at += len as u64;
        }
        reader.finish()
    }

    /// Gives this member's blocks to who needs them, and keeps what comes from the others.
    fn exchange(&self, files: &Files) -> Result<Encoded, JobError> {
        let mut reader = Reader::new(files, self.daemon);
        let mut writer = RedundancyWriter::create(self.id, self.member, self.me, self.record, self.daemon)?;
        if self.pace.is_brief {
            for strip in Strip::all(self.pace.strips, self.pace.block as u64) {
                reader = self.give(strip, reader)?;
                writer = self.keep(strip, writer)?;
            }
            return Ok((reader.finish()?, Some(writer.finish()?)));
        }
        let ended: Vec<_> = std::thread::scope(|scope| {
            let strips = Strip::all(self.pace.strips, self.pace.block as u64);
            let begun = strips.map(|strip| self.begin_strip(scope, strip, reader.beside(), writer.beside()));
            let begun = begun.collect::<Result<Vec<_>, _>>()?;
            let end = begun.into_iter().map(|(give, keep)| (joined(give.join()), joined(keep.join())));
            Ok::<_, JobError>(end.collect())
        })?;
        let mut errors = Vec::new();
        for (given, kept) in ended {
            errors.push(given.and_then(|given| reader.join(given)).err());
            errors.push(kept.and_then(|kept| writer.join(kept)).err());
        }
        if errors.iter().any(Option::is_some) {
            return Err(first_cause(errors));
        }
        Ok((reader.finish()?, Some(writer.finish()?)))
    }

    fn begin_strip<'scope, 'r: 'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        strip: Strip,
        reader: Reader<'r>,
        writer: RedundancyWriter,
    ) -> Result<StripThreads<'scope, 'r>, JobError> {
        let giving = begin(scope, move || self.noted(self.patient(|| self.give(strip, reader))));
        let keeping = begin(scope, move || self.noted(self.patient(|| self.keep(strip, writer))));
        Ok((self.noted(giving)?, self.noted(keeping)?))
    }

    /// Works as one that takes long, where that is so: others then go first.
    fn patient<T>(&self, work: impl FnOnce() -> Result<T, JobError>) -> Result<T, JobError> {
        if self.record.lengths().iter().any(|bytes| *bytes >= LONG) {
            be_patient();
        }
        work()
    }

    /// What has read this member's bytes of a strip.
    fn give<'r>(&self, strip: Strip, mut reader: Reader<'r>) -> Result<Reader<'r>, JobError> {
        let (lengths, peers) = (self.record.lengths(), self.peers.of_strip(strip.at));
        for Gift { bytes, to } in gifts(self.record.payloads(), &lengths, self.me as usize, strip) {
            fault("encode.block")?;
            let mut block = Block::used(len(&bytes), peers.buffers());
            reader.read(bytes.start, block.payload_mut())?;
            self.send(&peers, &to, block.into())?;
        }
        Ok(reader)
    }

    /// Sends a block to each of `to`.
    fn send(&self, peers: &Peers, to: &[usize], block: Arc<Vec<u8>>) -> Result<(), JobError> {
        let Some((last, others)) = to.split_last() else { return Ok(()) };
        others.iter().try_for_each(|to| peers.send(self.record.at(*to)?, Arc::clone(&block)))?;
        // Nothing of it stays here, so that its buffer is used again when the last one has it.
        peers.send(self.record.at(*last)?, block)
    }

    /// What has written a strip of the redundancy file.
    fn keep(&self, strip: Strip, mut writer: RedundancyWriter) -> Result<RedundancyWriter, JobError> {
        let (lengths, peers) = (self.record.lengths(), self.peers.of_strip(strip.at));
        for Intake { sums, addends } in intakes(self.record.payloads(), &lengths, self.me as usize, strip) {
            peers.check()?;
            let mut parts: Vec<Vec<(Block, u8)>> = sums.iter().map(|_| Vec::new()).collect();
            for Addend { from, sum, bytes, factor } in addends {
                let block = peers.recv(self.record.at(from)?, len(&(0..bytes)))?;
                parts[sum].push((block, factor));
            }
            for (sum, mut parts) in sums.into_iter().zip(parts) {
                write_sum(&mut writer, &sum, &mut parts)?;
                for (part, _) in parts {
                    part.free(peers.buffers());
                }
            }
        }
        Ok(writer)
    }

    /// A failing thread ends the waits of the others at once.
    fn noted<T>(&self, result: Result<T, JobError>) -> Result<T, JobError> {
        if let Err(error) = &result {
            self.peers.fail(error.reason());
        }
        result
    }
}

/// Writes the sum of `parts`, each times its factor, at `sum` of the payload. Behind the end of the
/// longest part there are zeros.
fn write_sum(
    writer: &mut RedundancyWriter,
    sum: &Range<u64>,
    parts: &mut [(Block, u8)],
) -> Result<(), JobError> {
    // The sum is made in the longest part, and each slice of it is written while it is at hand.
    parts.sort_by_key(|(part, _)| Reverse(part.payload().len()));
    let mut done = 0;
    if let Some(((longest, factor), others)) = parts.split_first_mut() {
        for slice in longest.payload_mut().chunks_mut(AT_HAND) {
            multiply_by(slice, *factor);
            for (other, factor) in &*others {
                let other = other.payload();
                let end = other.len().min(done + slice.len());
                add_multiple(slice, other.get(done..end).unwrap_or_default(), *factor);
            }
            writer.write(sum.start + done as u64, slice)?;
            done += slice.len();
        }
    }
    let rest = len(sum).saturating_sub(done);
    (0..rest).step_by(AT_HAND).try_for_each(|at| {
        let zeros = &ZEROS[..(rest - at).min(AT_HAND)];
        writer.write(sum.start + (done + at) as u64, zeros)
    })
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
pub(super) fn first_cause(errors: impl IntoIterator<Item = Option<JobError>>) -> JobError {
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

//! The *rebuild* job: the lost members of a set, files and redundancy files, computed by a chain
//! over the survivors.
//!
//! Every byte of a lost member is a sum of one byte of each survivor, each times what the code's
//! recipe says. A block, with a sum for each lost member, starts at the first lost member's right
//! neighbour, gathers at each survivor, and ends at the nodes that will hold the members; so each
//! survivor reads its files and redundancy file once, and sends about as much for each lost member.
//! Survivors check the CRCs of what they read, of their files and of their redundancy file; the
//! targets check those of the files that they wrote. A member counts when all were right.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use crossbeam_channel::{Receiver, Sender, bounded};
use scrfs::dataset::Catalog;
use scrfs::ids::{DatasetId, Member};
use scrfs::redundancy::crc::{CrcError, SegmentCrcs};
use scrfs::redundancy::geometry::{Geometry, Part, blocks};
use scrfs::redundancy::plan::rebuild_chain;

use super::block::Block;
use super::encode::{RedundancyWriter, ended, first_cause, joined};
use super::error::{JobError, fault};
use super::files::{Files, Reader, Writer};
use super::header::SetRecord;
use super::link::{Daemon, Finish};
use super::plan::{add, len};
use super::streams::Peers;
use crate::job::{JobOutput, SetMember};

/// Blocks between two threads of a share.
const PIPE: usize = 4;

/// What is rebuilt.
pub struct Task<'a> {
    /// The dataset.
    pub catalog: &'a Catalog,
    /// In ring order.
    pub set: &'a [SetMember],
    /// Positions of the lost members in `set`.
    pub lost: &'a [u32],
}

/// One member's share.
pub fn run(task: &Task<'_>, block: usize, daemon: &Daemon, peers: &Peers) -> Result<JobOutput, JobError> {
    fault("rebuild.start")?;
    let catalog = task.catalog;
    let record = SetRecord::of_catalog(catalog, task.set)?;
    let me = peers.me();
    let Some(SetMember { member, .. }) = task.set.get(me as usize) else {
        return Err(record.unfit("no such position"));
    };
    let member = *member;
    let Some((geometry, code)) = record.parity() else {
        return Err(record.unfit("nothing protects the members of this set"));
    };
    let lost: Vec<usize> = task.lost.iter().map(|at| *at as usize).collect();
    if lost.is_empty() || lost.iter().any(|at| *at >= geometry.members()) {
        return Err(record.unfit("no such position"));
    }
    let factors = |column| code.recipe(column, &lost).map(|recipe| recipe.coefficients_of(me as usize));
    let factors: Option<Vec<Vec<u8>>> = (0..geometry.members()).map(factors).collect();
    let Some(factors) = factors else {
        return Err(record.unfit("more members are lost than the set can give back"));
    };
    let chain: Vec<u32> =
        rebuild_chain(geometry.members(), &lost).filter_map(|at| u32::try_from(at).ok()).collect();
    let here = chain.iter().position(|at| *at == me);
    let from = match here {
        Some(at) => at.checked_sub(1).and_then(|left| chain.get(left)),
        None => chain.last(),
    };
    let from = from.copied();
    let block = (block / lost.len()).max(1);
    let share = Share {
        catalog,
        set: task.set,
        geometry,
        factors,
        lost: task.lost,
        member,
        me,
        from,
        block,
        record: &record,
        daemon,
        peers,
    };
    if let Some(at) = here {
        share.survive(chain.get(at + 1).copied())?;
        return Ok(JobOutput::Done);
    }
    let result = share.become_lost();
    if result.is_err() {
        daemon.abandon_member(catalog.id, member);
    }
    let place = catalog.layout.members.get(member.0 as usize);
    let sizes = || place.map_or(0, |place| place.bytes).saturating_add(geometry.payload());
    let takes = place.and_then(|place| place.taken).unwrap_or_else(sizes);
    result.map_err(|error| daemon.with_figures(error, catalog.id, takes))
}

struct Share<'a> {
    catalog: &'a Catalog,
    set: &'a [SetMember],
    geometry: Geometry,
    /// For each column, what this survivor's part is multiplied with, for each lost member.
    factors: Vec<Vec<u8>>,
    /// Positions of the lost members.
    lost: &'a [u32],
    member: Member,
    me: u32,
    /// Whose blocks come here; `None` where the chain begins.
    from: Option<u32>,
    block: usize,
    record: &'a SetRecord,
    daemon: &'a Daemon,
    peers: &'a Peers,
}

/// One block of one column, on its way through the chain.
struct Link<'a> {
    /// What this member holds of it.
    part: Part,
    /// Which bytes of the chunk.
    range: Range<u64>,
    factors: &'a [u8],
}

impl Share<'_> {
    /// All blocks, in the order in which every share walks them.
    fn links(&self) -> impl Iterator<Item = Link<'_>> {
        let (geometry, me) = (self.geometry, self.me as usize);
        blocks(geometry.chunk(), self.block as u64).flat_map(move |range| {
            (0..).zip(&self.factors).map(move |(column, factors)| Link {
                part: geometry.part(me, column),
                range: range.clone(),
                factors,
            })
        })
    }

    /// Takes part in the chain; `to` is the next survivor, `None` behind the last.
    fn survive(&self, to: Option<u32>) -> Result<(), JobError> {
        let files = self.record.files(self.me)?;
        let (read_out, read) = bounded(PIPE);
        std::thread::scope(|scope| {
            // Each thread owns its end, so that the other's waits end with it.
            let reading = scope.spawn(move || self.noted(self.read(files, &read_out)));
            let passed = self.noted(self.pass_on(&read, to));
            drop(read);
            match (joined(reading.join()), passed) {
                (Ok(crcs), Ok(())) => self.check(files, &crcs),
                (crcs, passed) => Err(first_cause([crcs.err(), passed.err()])),
            }
        })?;
        // The last block, one byte for each lost member, goes the same way: each survivor passes it
        // on once its own bytes proved good.
        let good = match self.from {
            Some(from) => self.peers.recv(from, self.lost.len())?,
            None => Block::zeroed(self.lost.len()),
        };
        self.send(to, good, 1)
    }

    /// Sends the sums of a block, `len` bytes each, to the next survivor, or each to the node of
    /// its lost member.
    fn send(&self, to: Option<u32>, mut sums: Block, len: usize) -> Result<(), JobError> {
        if let Some(to) = to {
            return self.peers.send(to, sums);
        }
        let (first, others) =
            self.lost.split_first().ok_or_else(|| self.record.unfit("no member is lost"))?;
        for lost in others.iter().rev() {
            let sum = sums.split_last(len).ok_or_else(|| self.record.unfit("a sum is missing"))?;
            self.peers.send(*lost, sum)?;
        }
        self.peers.send(*first, sums)
    }

    /// This survivor's part of each block. Also what no lost member needs is read, so that the CRC
    /// of the redundancy file is known: it protects what is rebuilt from now on.
    fn read(&self, files: &Files, out: &Sender<Block>) -> Result<Vec<u32>, JobError> {
        let mut redundancy = self.redundancy()?;
        let mut reader = Reader::new(files, self.daemon);
        for Link { part, range, .. } in self.links() {
            let mut block = Block::zeroed(len(&range));
            let at = self.geometry.range(part, &range).start;
            match part {
                Part::Data { .. } => reader.read(at, block.payload_mut())?,
                Part::Parity { .. } => redundancy.read(at, block.payload_mut())?,
            }
            out.send(block).map_err(|_| ended())?;
        }
        redundancy.finish()?;
        reader.finish()
    }

    /// This survivor's redundancy file, checked to be of this set.
    fn redundancy(&self) -> Result<RedundancyReader, JobError> {
        let (id, member) = (self.catalog.id, self.member);
        let (file, crc) = self.daemon.open_redundancy(id, member)?;
        let mut reader = RedundancyReader { id, member, file, crc, header: 0, read: SegmentCrcs::new([]) };
        let size = reader.file.metadata().map_err(|e| reader.io(e))?.len();
        let header = self.record.check_header(self.me, &reader.file, size)?;
        reader.header = header.len() as u64;
        if size != reader.header.saturating_add(self.geometry.payload()) {
            return Err(reader.wrong(format!(
                "{size} bytes, not {} + {}",
                reader.header,
                self.geometry.payload()
            )));
        }
        reader.read = SegmentCrcs::new([size]);
        reader.add(0, &header)?;
        Ok(reader)
    }

    fn pass_on(&self, read: &Receiver<Block>, to: Option<u32>) -> Result<(), JobError> {
        for Link { range, factors, .. } in self.links() {
            fault("rebuild.block")?;
            let own = read.recv().map_err(|_| ended())?;
            let len = len(&range);
            let came = self.from.map(|from| self.peers.recv(from, self.lost.len() * len)).transpose()?;
            self.send(to, add(own, came, factors), len)?;
        }
        Ok(())
    }

    /// The target: all blocks end here.
    fn become_lost(&self) -> Result<JobOutput, JobError> {
        let id = self.catalog.id;
        let files = self.record.files(self.me)?;
        let Some(from) = self.from else { return Err(self.record.unfit("no survivor")) };
        self.daemon.begin_member(self.catalog, self.member)?;
        let name = self.record.file_name(self.me);
        let parity = self.daemon.create_redundancy(id, self.member, &name)?;
        let (header, payload) = (self.record.header(self.me)?, self.geometry.payload());
        let mut parity = RedundancyWriter::new(id, name, parity, &header, payload)?;
        let mut writer = Writer::new(files, self.member, self.daemon)?;
        for Link { part, range, .. } in self.links() {
            fault("rebuild.block")?;
            let block = self.peers.recv(from, len(&range))?;
            let at = self.geometry.range(part, &range).start;
            match part {
                Part::Data { .. } => writer.write(at, block.payload())?,
                Part::Parity { .. } => parity.write(at, block.payload())?,
            }
        }
        let crcs = writer.finish()?;
        self.check(files, &crcs)?;
        self.peers.recv(from, 1)?;
        fault("rebuild.finish")?;
        let finish = Finish {
            member: self.member,
            crcs,
            redundancy: Some(parity.finish()?),
            set: self.set.iter().map(|m| m.member).collect(),
            members: u32::try_from(self.catalog.layout.members.len()).unwrap_or(u32::MAX),
        };
        Ok(JobOutput::Part(self.daemon.finish_member(id, finish)?))
    }

    /// What was read or made must be what was sealed.
    fn check(&self, files: &Files, crcs: &[u32]) -> Result<(), JobError> {
        let sealed: Vec<_> = self.catalog.files_of(self.member).collect();
        if sealed.len() != crcs.len() || files.iter().len() != crcs.len() {
            return Err(self.record.unfit("a file without a CRC"));
        }
        for ((entry, copy), found) in sealed.into_iter().zip(crcs) {
            if copy.crc != *found {
                let (id, path) = (self.catalog.id, entry.path.clone());
                return Err(JobError::Crc { id, path, found: *found, sealed: copy.crc });
            }
        }
        Ok(())
    }

    /// A failing thread ends the waits of the others at once.
    fn noted<T>(&self, result: Result<T, JobError>) -> Result<T, JobError> {
        if let Err(error) = &result {
            self.peers.fail(error.reason());
        }
        result
    }
}

/// A survivor's redundancy file, read once.
struct RedundancyReader {
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
    /// Fills `buffer` from `at` of the payload. Those of a chunk come in order.
    fn read(&mut self, at: u64, buffer: &mut [u8]) -> Result<(), JobError> {
        self.file.read_exact_at(buffer, self.header + at).map_err(|e| self.io(e))?;
        self.add(self.header + at, buffer)
    }

    fn add(&mut self, at: u64, bytes: &[u8]) -> Result<(), JobError> {
        self.read.add(0, at, bytes).map_err(|e: CrcError| self.wrong(e.to_string()))
    }

    /// All of it was read: it must be what was recorded.
    fn finish(self) -> Result<(), JobError> {
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

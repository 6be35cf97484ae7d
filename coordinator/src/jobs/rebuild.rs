//! The *rebuild* job: the lost member of a set, files and redundancy file, computed by a chain over the survivors.
//!
//! Every byte of the lost member is the XOR of one byte of each survivor. A block starts at the lost member's right
//! neighbour, gathers at each survivor, and ends at the node that will hold the member; so each survivor reads its files
//! and redundancy file once and sends their size once. Survivors check their own CRCs as they read, the target those of
//! what it wrote, against the catalog, before the member counts.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use crossbeam_channel::{Receiver, Sender, bounded};
use scrfs::dataset::Catalog;
use scrfs::ids::Member;
use scrfs::redundancy::kernel::xor_into;
use scrfs::redundancy::plan::rebuild_chain;
use scrfs::redundancy::xor::{Geometry, Part, blocks};

use super::block::Block;
use super::encode::{RedundancyWriter, ended, first_cause, joined};
use super::error::{JobError, fault};
use super::files::{Files, Reader, Writer};
use super::header::SetRecord;
use super::link::{Daemon, Finish};
use super::plan::len;
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
    /// Position of the lost member in `set`.
    pub lost: u32,
}

/// One member's share.
pub fn run(task: &Task<'_>, block: usize, daemon: &Daemon, peers: &Peers) -> Result<JobOutput, JobError> {
    fault("rebuild.start")?;
    let catalog = task.catalog;
    let record = SetRecord::of_catalog(catalog, task.set)?;
    let me = peers.me();
    let position = |at: u32| task.set.get(at as usize).map(|m| m.member);
    let (Some(member), Some(_)) = (position(me), position(task.lost)) else {
        return Err(record.unfit("no such position"));
    };
    let Some(geometry) = record.geometry() else {
        return Err(record.unfit("a set of one member cannot be rebuilt"));
    };
    let chain: Vec<_> = rebuild_chain(geometry.members(), task.lost as usize)
        .filter_map(|at| u32::try_from(at).ok())
        .collect();
    let here = chain.iter().position(|at| *at == me);
    let from = match here {
        Some(at) => at.checked_sub(1).and_then(|left| chain.get(left)),
        None => chain.last(),
    };
    let to = here.map(|at| chain.get(at + 1).copied().unwrap_or(task.lost));
    let from = from.copied();
    let share =
        Share { catalog, set: task.set, geometry, member, me, from, block, record: &record, daemon, peers };
    let Some(to) = to else {
        let result = share.become_lost();
        if result.is_err() {
            daemon.abandon_member(catalog.id, member);
        }
        let place = catalog.layout.members.get(member.0 as usize);
        let sizes = || place.map_or(0, |place| place.bytes).saturating_add(geometry.chunk());
        let takes = place.and_then(|place| place.taken).unwrap_or_else(sizes);
        return result.map_err(|error| daemon.with_figures(error, catalog.id, takes));
    };
    share.survive(to)?;
    Ok(JobOutput::Done)
}

struct Share<'a> {
    catalog: &'a Catalog,
    set: &'a [SetMember],
    geometry: Geometry,
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
struct Link {
    /// What this member holds of it.
    part: Part,
    /// Which bytes of the chunk.
    range: Range<u64>,
}

impl Share<'_> {
    /// All blocks, in the order in which every share walks them.
    fn links(&self) -> impl Iterator<Item = Link> {
        let (geometry, me) = (self.geometry, self.me as usize);
        blocks(geometry.chunk(), self.block as u64).flat_map(move |range| {
            (0..geometry.members())
                .map(move |column| Link { part: geometry.part(me, column), range: range.clone() })
        })
    }

    fn survive(&self, to: u32) -> Result<(), JobError> {
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
        // The last block, one byte, goes the same way: each survivor passes it on once its own bytes proved good.
        if let Some(from) = self.from {
            self.peers.recv(from, 1)?;
        }
        self.peers.send(to, Block::zeroed(1))
    }

    /// This survivor's part of each block.
    fn read(&self, files: &Files, out: &Sender<Block>) -> Result<Vec<u32>, JobError> {
        let (redundancy, payload) = self.redundancy()?;
        let mut reader = Reader::new(files, self.daemon);
        for Link { part, range } in self.links() {
            let mut block = Block::zeroed(len(&range));
            match part.data_range(&range) {
                Some(data) => reader.read(data.start, block.payload_mut())?,
                None => redundancy
                    .read_exact_at(block.payload_mut(), payload + range.start)
                    .map_err(|source| self.io_of_redundancy(source))?,
            }
            out.send(block).map_err(|_| ended())?;
        }
        reader.finish()
    }

    fn io_of_redundancy(&self, source: std::io::Error) -> JobError {
        let what = format!("read the redundancy file of member {}", self.member);
        JobError::Io { id: self.catalog.id, what, source }
    }

    /// This survivor's redundancy file, checked to be of this set, and where its payload begins.
    fn redundancy(&self) -> Result<(File, u64), JobError> {
        let file = self.daemon.open_redundancy(self.catalog.id, self.member)?;
        let size = file.metadata().map_err(|e| self.io_of_redundancy(e))?.len();
        let payload = self.record.check_header(self.me, &file, size)?;
        if size != payload.saturating_add(self.geometry.chunk()) {
            let reason = format!("{size} bytes, not {payload} + {}", self.geometry.chunk());
            return Err(JobError::Redundancy { id: self.catalog.id, member: self.member, reason });
        }
        Ok((file, payload))
    }

    fn pass_on(&self, read: &Receiver<Block>, to: u32) -> Result<(), JobError> {
        for Link { range, .. } in self.links() {
            fault("rebuild.block")?;
            let mut block = read.recv().map_err(|_| ended())?;
            if let Some(from) = self.from {
                let came = self.peers.recv(from, len(&range))?;
                xor_into(block.payload_mut(), came.payload());
            }
            self.peers.send(to, block)?;
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
        let mut parity = RedundancyWriter::new(id, name, parity, &self.record.header(self.me)?)?;
        let mut writer = Writer::new(files, self.daemon)?;
        for Link { part, range } in self.links() {
            fault("rebuild.block")?;
            let block = self.peers.recv(from, len(&range))?;
            match part.data_range(&range) {
                Some(data) => writer.write(data.start, block.payload())?,
                None => parity.write(block.payload())?,
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
            self.peers.fail(&error.to_string());
        }
        result
    }
}

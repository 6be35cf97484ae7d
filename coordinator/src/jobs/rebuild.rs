//! The *rebuild* job: the lost members of a set, files and redundancy files, computed by a chain
//! over the survivors.
//!
//! Every byte of a lost member is a sum of one byte of each survivor, each times what the code's
//! recipe says. A block, with a sum for each lost member, starts at the first lost member's right
//! neighbour, gathers at each survivor, and ends at the nodes that will hold the members; so each
//! survivor reads its files and redundancy file once, and sends about as much for each lost member.
//! Survivors check the CRCs of what they read, of their files and of their redundancy file; the
//! targets check those of the files that they wrote. A member counts when all were right.

use std::ops::Range;

use crossbeam_channel::{Receiver, Sender, bounded};
use scrfs::dataset::Catalog;
use scrfs::ids::Member;
use scrfs::redundancy::code::Code;
use scrfs::redundancy::geometry::{Geometry, Part, blocks};
use scrfs::redundancy::payload::Payloads;
use scrfs::redundancy::plan::rebuild_chain;

use super::block::Block;
use super::copies;
use super::encode::{begin, ended, first_cause, joined};
use super::error::{JobError, fault};
use super::files::{Files, Reader};
use super::header::SetRecord;
use super::link::Daemon;
use super::plan::{add, len};
use super::streams::Peers;
use super::target::{Target, Writing};
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
    let lost: Vec<usize> = task.lost.iter().map(|at| *at as usize).collect();
    if lost.is_empty() || lost.iter().any(|at| *at >= task.set.len()) {
        return Err(record.unfit("no such position"));
    }
    let members: Vec<Member> = task.set.iter().map(|member| member.member).collect();
    if !catalog.layout.survives(&members, &lost) {
        return Err(record.unfit("the set cannot give back these members"));
    }
    let target = Target { catalog, set: task.set, member, me, record: &record, daemon };
    match record.payloads() {
        Payloads::None => Err(record.unfit("nothing protects the members of this set")),
        Payloads::Copies { .. } => copies::rebuild(&target, task.lost, block, peers),
        Payloads::Parities(geometry, code) => sums(&target, (*geometry, code), task.lost, block, peers),
    }
}

/// One member's share where the set has parities.
fn sums(
    target: &Target<'_>,
    (geometry, code): (Geometry, &Code),
    lost: &[u32],
    block: usize,
    peers: &Peers,
) -> Result<JobOutput, JobError> {
    let Target { me, record, .. } = *target;
    let positions: Vec<usize> = lost.iter().map(|at| *at as usize).collect();
    let factors = |column| code.recipe(column, &positions).map(|recipe| recipe.coefficients_of(me as usize));
    let factors: Option<Vec<Vec<u8>>> = (0..geometry.members()).map(factors).collect();
    let Some(factors) = factors else {
        return Err(record.unfit("more members are lost than the set can give back"));
    };
    let chain: Vec<u32> =
        rebuild_chain(geometry.members(), &positions).filter_map(|at| u32::try_from(at).ok()).collect();
    let here = chain.iter().position(|at| *at == me);
    let from = match here {
        Some(at) => at.checked_sub(1).and_then(|left| chain.get(left)),
        None => chain.last(),
    };
    let block = (block / lost.len()).max(1);
    let share = Share { target, geometry, factors, lost, from: from.copied(), block, peers };
    match here {
        Some(at) => share.survive(chain.get(at + 1).copied()).map(|()| JobOutput::Done),
        None => target.restore(|writing| share.take_all(writing)),
    }
}

struct Share<'a> {
    target: &'a Target<'a>,
    geometry: Geometry,
    /// For each column, what this survivor's part is multiplied with, for each lost member.
    factors: Vec<Vec<u8>>,
    /// Positions of the lost members.
    lost: &'a [u32],
    /// Whose blocks come here; `None` where the chain begins.
    from: Option<u32>,
    block: usize,
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
        let (geometry, me) = (self.geometry, self.target.me as usize);
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
        let files = self.target.record.files(self.target.me)?;
        let (read_out, read) = bounded(PIPE);
        std::thread::scope(|scope| {
            // Each thread owns its end, so that the other's waits end with it.
            let reading = begin(scope, move || self.noted(self.read(files, &read_out)))?;
            let passed = self.noted(self.pass_on(&read, to));
            drop(read);
            match (joined(reading.join()), passed) {
                (Ok(()), Ok(())) => Ok(()),
                (read, passed) => Err(first_cause([read.err(), passed.err()])),
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
            self.lost.split_first().ok_or_else(|| self.target.record.unfit("no member is lost"))?;
        for lost in others.iter().rev() {
            let sum = sums
                .split_last(len, self.peers.buffers())
                .ok_or_else(|| self.target.record.unfit("a sum is missing"))?;
            self.peers.send(*lost, sum)?;
        }
        self.peers.send(*first, sums)
    }

    /// This survivor's part of each block. Also what no lost member needs is read, so that the CRC
    /// of the redundancy file is known: it protects what is rebuilt from now on.
    fn read(&self, files: &Files, out: &Sender<Block>) -> Result<(), JobError> {
        let mut redundancy = self.target.open_redundancy()?;
        let mut reader = Reader::new(files, self.target.daemon);
        for Link { part, range, .. } in self.links() {
            let mut block = Block::used(len(&range), self.peers.buffers());
            let at = self.geometry.range(part, &range).start;
            match part {
                Part::Data { .. } => reader.read(at, block.payload_mut())?,
                Part::Parity { .. } => redundancy.read(at, block.payload_mut())?,
            }
            out.send(block).map_err(|_| ended())?;
        }
        redundancy.finish()?;
        self.target.check_read(reader)
    }

    fn pass_on(&self, read: &Receiver<Block>, to: Option<u32>) -> Result<(), JobError> {
        for Link { range, factors, .. } in self.links() {
            fault("rebuild.block")?;
            let own = read.recv().map_err(|_| ended())?;
            let len = len(&range);
            let came = self.from.map(|from| self.peers.recv(from, self.lost.len() * len)).transpose()?;
            self.send(to, add(own, came, factors, self.peers.buffers()), len)?;
        }
        Ok(())
    }

    /// The lost member: all blocks end here, then the word that they were good.
    fn take_all(&self, writing: &mut Writing<'_>) -> Result<(), JobError> {
        let Some(from) = self.from else { return Err(self.target.record.unfit("no survivor")) };
        for Link { part, range, .. } in self.links() {
            fault("rebuild.block")?;
            let block = self.peers.recv(from, len(&range))?;
            let at = self.geometry.range(part, &range).start;
            match part {
                Part::Data { .. } => writing.files.write(at, block.payload())?,
                Part::Parity { .. } => writing.redundancy.write(at, block.payload())?,
            }
            block.free(self.peers.buffers());
        }
        self.peers.recv(from, 1).map(drop)
    }

    /// A failing thread ends the waits of the others at once.
    fn noted<T>(&self, result: Result<T, JobError>) -> Result<T, JobError> {
        if let Err(error) = &result {
            self.peers.fail(error.reason());
        }
        result
    }
}

//! Lost members of a PARTNER set: each gets its files from the copy at its right neighbour, and its
//! own copy from the files of its left one. The others have no part in that.
//!
//! Givers check the CRCs of what they read, and say so with a last block; the target checks those
//! of the files that it wrote.

use scrfs::redundancy::plan::{Returned, returned};
use scrfs::redundancy::{left, right};

use super::block::Block;
use super::encode::{begin, first_cause, joined};
use super::error::{JobError, fault};
use super::files::Reader;
use super::plan::len;
use super::streams::Peers;
use super::target::{Target, Writing};
use crate::job::JobOutput;

/// One member's share; `lost` has the positions of the lost ones.
pub(super) fn rebuild(
    member: &Target<'_>,
    lost: &[u32],
    block: usize,
    peers: &Peers,
) -> Result<JobOutput, JobError> {
    let share = Share { member, lost, block: block as u64, peers };
    if lost.contains(&member.me) {
        return member.restore(|writing| share.take(writing));
    }
    let (left, right) = (share.neighbour(member.me, left)?, share.neighbour(member.me, right)?);
    if left == right {
        return share.noted(share.give(left)).map(|()| JobOutput::Done);
    }
    std::thread::scope(|scope| {
        let giving = || begin(scope, || share.noted(share.give(left)));
        let to_left = lost.contains(&left).then(giving).transpose()?;
        let to_right = if lost.contains(&right) { share.noted(share.give(right)) } else { Ok(()) };
        let to_left = to_left.map_or(Ok(()), |thread| joined(thread.join()));
        match (to_left, to_right) {
            (Ok(()), Ok(())) => Ok(JobOutput::Done),
            (left, right) => Err(first_cause([left.err(), right.err()])),
        }
    })
}

struct Share<'a> {
    member: &'a Target<'a>,
    lost: &'a [u32],
    block: u64,
    peers: &'a Peers,
}

impl Share<'_> {
    fn neighbour(&self, of: u32, which: fn(usize, usize) -> usize) -> Result<u32, JobError> {
        self.member.record.neighbour(of, which)
    }

    /// The blocks of the lost member at `position`, in the order in which it takes them.
    fn blocks(
        &self,
        position: u32,
    ) -> Result<impl Iterator<Item = (Returned, std::ops::Range<u64>)>, JobError> {
        let files = self.member.record.files(position)?.bytes();
        let copy = self.member.record.payloads().bytes(position as usize);
        Ok(returned(files, copy, self.block))
    }

    /// The lost member: all its blocks, then a word of each giver that they were good.
    fn take(&self, writing: &mut Writing<'_>) -> Result<(), JobError> {
        let me = self.member.me;
        let (left, right) = (self.neighbour(me, left)?, self.neighbour(me, right)?);
        for (which, range) in self.blocks(me)? {
            fault("rebuild.block")?;
            let giver = if which == Returned::Files { right } else { left };
            let block = self.peers.recv(giver, len(&range))?;
            match which {
                Returned::Files => writing.files.write(range.start, block.payload())?,
                Returned::Copy => writing.redundancy.write(range.start, block.payload())?,
            }
            block.free(self.peers.buffers());
        }
        // A neighbour that is lost too had nothing to give: there is no byte of its part.
        let givers = if left == right { vec![right] } else { vec![right, left] };
        givers
            .iter()
            .filter(|giver| !self.lost.contains(giver))
            .try_for_each(|giver| self.peers.recv(*giver, 1).map(drop))
    }

    /// Gives the lost member at `to` what this one has for it: its files, if this is its right
    /// neighbour; what it is to have a copy of, if this is its left one.
    fn give(&self, to: u32) -> Result<(), JobError> {
        let Target { record, me, daemon, .. } = *self.member;
        let files = record.files(me)?;
        let mut copy =
            (self.neighbour(to, right)? == me).then(|| self.member.open_redundancy()).transpose()?;
        let mut own = (self.neighbour(to, left)? == me).then(|| Reader::new(files, daemon));
        for (which, range) in self.blocks(to)? {
            fault("rebuild.block")?;
            let block = || Block::used(len(&range), self.peers.buffers());
            let block = match (which, &mut copy, &mut own) {
                (Returned::Files, Some(copy), _) => {
                    let mut block = block();
                    copy.read(range.start, block.payload_mut())?;
                    block
                }
                (Returned::Copy, _, Some(own)) => {
                    let mut block = block();
                    own.read(range.start, block.payload_mut())?;
                    block
                }
                (Returned::Files, None, _) | (Returned::Copy, _, None) => continue,
            };
            self.peers.send(to, block)?;
        }
        if let Some(copy) = copy {
            copy.finish()?;
        }
        if let Some(own) = own {
            self.member.check_read(own)?;
        }
        self.peers.send(to, Block::zeroed(1))
    }

    /// A failing thread ends the waits of the others at once.
    fn noted<T>(&self, result: Result<T, JobError>) -> Result<T, JobError> {
        if let Err(error) = &result {
            self.peers.fail(error.reason());
        }
        result
    }
}

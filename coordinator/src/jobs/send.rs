//! The *send* job: one sealed file goes whole from its holder to the node that opens it; both check
//! size and CRC.

use std::fs::{File, Metadata};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::time::Instant;

use scrfs::control::SealedFile;
use scrfs::priority::LINGER;
use scrfs::transfer::sparse;

use super::block::Block;
use super::error::{JobError, fault};
use super::link::Daemon;
use super::streams::Peers;
use crate::job::JobOutput;

/// Position of the holder in a send job.
pub const HOLDER: u32 = 0;
/// Position of the asker.
pub const ASKER: u32 = 1;

/// Bytes of the first block, which says how much room the file takes where it is.
const TAKES: usize = 8;

/// What is sent.
pub struct Parcel<'a> {
    /// Which file.
    pub file: &'a SealedFile,
    /// Bytes.
    pub size: u64,
    /// CRC32.
    pub crc: u32,
    /// Bytes of one block.
    pub block: usize,
}

/// The share of either node.
pub fn run(parcel: &Parcel<'_>, daemon: &Daemon, peers: &Peers) -> Result<JobOutput, JobError> {
    if peers.me() == HOLDER { send(parcel, daemon, peers) } else { receive(parcel, daemon, peers) }?;
    Ok(JobOutput::Done)
}

fn send(parcel: &Parcel<'_>, daemon: &Daemon, peers: &Peers) -> Result<(), JobError> {
    daemon.waited();
    let source = daemon.open_file(parcel.file.id, &parcel.file.path)?;
    let meta = source.metadata().map_err(|e| parcel.io("stat", e))?;
    let inode = meta.ino();
    give(parcel, (source, &meta), daemon, peers)
        .map_err(|error| daemon.unless_moved(error, parcel.file.id, &parcel.file.path, inode))
}

fn give(
    parcel: &Parcel<'_>,
    (mut source, meta): (File, &Metadata),
    daemon: &Daemon,
    peers: &Peers,
) -> Result<(), JobError> {
    let mut told = Instant::now();
    let held = meta.len();
    if held != parcel.size {
        let reason = format!("{} has {held} bytes, sealed with {}", parcel.file.path, parcel.size);
        return Err(JobError::Plan { id: parcel.file.id, reason });
    }
    let mut takes = Block::zeroed(TAKES);
    takes.payload_mut().copy_from_slice(&sparse::room_of(meta).to_le_bytes());
    peers.send(ASKER, takes)?;
    let mut crc = crc32fast::Hasher::new();
    for len in parcel.blocks() {
        fault("fetch.send")?;
        if told.elapsed() > LINGER / 2 {
            daemon.waited();
            told = Instant::now();
        }
        let mut block = Block::used(len, peers.buffers());
        source.read_exact(block.payload_mut()).map_err(|e| parcel.io("read", e))?;
        crc.update(block.payload());
        peers.send(ASKER, block)?;
    }
    parcel.check(crc.finalize())
}

fn receive(parcel: &Parcel<'_>, daemon: &Daemon, peers: &Peers) -> Result<(), JobError> {
    let takes = peers.recv(HOLDER, TAKES)?.payload().try_into().map_or(parcel.size, u64::from_le_bytes);
    let target = daemon
        .create_copy(parcel.file, takes)
        .map_err(|error| daemon.with_figures(error, parcel.file.id, takes))?;
    let received = write(parcel, &target, peers).and_then(|crc| {
        fault("fetch.install")?;
        daemon.install_copy(parcel.file, parcel.size, crc)
    });
    drop(target);
    received.map_err(|error| {
        daemon.abandon_copy(parcel.file);
        // Others took the room, or it takes more here than there.
        daemon.with_figures(error, parcel.file.id, parcel.size)
    })
}

/// The bytes as they come; their CRC is the sealed one.
fn write(parcel: &Parcel<'_>, target: &File, peers: &Peers) -> Result<u32, JobError> {
    let mut crc = crc32fast::Hasher::new();
    let mut at = 0;
    for len in parcel.blocks() {
        let block = peers.recv(HOLDER, len)?;
        crc.update(block.payload());
        sparse::write_at(target, block.payload(), at).map_err(|e| parcel.io("write", e))?;
        block.free(peers.buffers());
        at += len as u64;
    }
    sparse::end(target, parcel.size).map_err(|e| parcel.io("write", e))?;
    let crc = crc.finalize();
    parcel.check(crc)?;
    Ok(crc)
}

impl Parcel<'_> {
    /// Lengths of the blocks, first to last.
    fn blocks(&self) -> impl Iterator<Item = usize> {
        let (size, block) = (self.size, self.block as u64);
        (0..size.div_ceil(block)).map(move |n| usize::try_from((size - n * block).min(block)).unwrap_or(0))
    }

    fn check(&self, found: u32) -> Result<(), JobError> {
        if found == self.crc {
            return Ok(());
        }
        Err(JobError::Crc { id: self.file.id, path: self.file.path.clone(), found, sealed: self.crc })
    }

    fn io(&self, verb: &str, source: std::io::Error) -> JobError {
        JobError::Io { id: self.file.id, what: format!("{verb} {}", self.file.path), source }
    }
}

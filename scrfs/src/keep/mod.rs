//! What outlives a worker: its descriptors and the state memory (`scrfs/docs/mount.md`).
//!
//! A worker may be killed between any two instructions. What its successor needs to go on unseen is
//! therefore never collected at the end but kept all the time, in two places:
//!
//! * [`keeper`]: a process that shares the worker's descriptor table and does nothing else. The
//!   descriptors of inodes and open files live as long as it does; the successor takes them from
//!   there, under the same numbers.
//! * [`memory`]: a file in memory that the supervisor made. [`records`] are its inodes, handles and
//!   listings, [`intents`] what changing requests were about to do. Every record becomes valid by
//!   one store that is done last.
//!
//! [`decide`] tells from an intent, and from what is there now, whether a request that the kernel
//! sends again has had its effect.

pub mod decide;
pub mod intents;
pub mod keeper;
pub mod memory;
pub mod records;

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use self::intents::Intents;
use self::memory::{Memory, Region};

/// Tells state memory from anything else, and its layout from others.
const MAGIC: u64 = u64::from_le_bytes(*b"scrfs\0k1");
/// Keepers that may live at once: a successor may be killed before its predecessor's keeper was
/// ended.
pub const KEEPERS_MAX: usize = 8;

/// Words of the header, by what they hold.
mod word {
    pub(super) const MAGIC: usize = 0;
    pub(super) const NEXT_INODE: usize = 1;
    pub(super) const GENERATION: usize = 2;
    pub(super) const OFFERED: usize = 3;
    pub(super) const VERSION: usize = 5;
    pub(super) const MODE: usize = 6;
    /// 1: the kernel can be told to forget names; 2: it cannot.
    pub(super) const FORGETS: usize = 7;
    pub(super) const SHARED: usize = 8;
    /// How far each region was ever used.
    pub(super) const USED: usize = 16;
    /// Process ids, one each.
    pub(super) const KEEPERS: usize = 32;
    pub(super) const HEADER: usize = 512;
}

/// Inodes at most. What is beyond is served as well, but not after the worker's death.
const INODES_MAX: usize = 1 << 22;
const FILES_MAX: usize = 1 << 20;
const DIRECTORIES_MAX: usize = 1 << 16;
const HIDDEN_MAX: usize = 1 << 20;

/// How kernel and first worker have greeted each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Greeting {
    /// Capabilities that the connection has.
    pub offered: u64,
    /// The protocol's minor version.
    pub minor: u32,
}

/// How file data is served on this connection; it cannot change while it lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// By the kernel.
    Passthrough,
    /// By the daemon.
    Plain,
}

/// The state memory with what this process knows of its use.
#[derive(Debug)]
pub struct Keep {
    memory: Memory,
    inodes: Region,
    files: Region,
    directories: Region,
    hidden: Region,
    intents: Intents,
}

impl Keep {
    /// State memory of nobody else: for a tree that no worker takes over.
    ///
    /// # Errors
    /// No memory, no descriptor.
    pub fn alone() -> io::Result<Self> {
        Self::map(&memory::create()?)
    }

    /// Maps state memory that was made by [`memory::create`], taking up what is in it.
    ///
    /// # Errors
    /// It cannot be mapped, or is none.
    pub fn map(file: &OwnedFd) -> io::Result<Self> {
        let mut at = word::HEADER;
        let mut region = |index: usize, words: usize, count: usize| {
            let region = Region::new(at, words, count, word::USED + index);
            at += words * count;
            region
        };
        let inodes = region(0, records::INODE_WORDS, INODES_MAX);
        let files = region(1, records::FILE_WORDS, FILES_MAX);
        let directories = region(2, records::DIRECTORY_WORDS, DIRECTORIES_MAX);
        let hidden = region(3, records::HIDDEN_WORDS, HIDDEN_MAX);
        let intents = region(4, intents::WORDS, intents::COUNT);
        let memory = Memory::map(file, at)?;
        match memory.get(word::MAGIC) {
            0 => memory.set(word::MAGIC, MAGIC),
            MAGIC => {}
            _ => return Err(io::Error::new(io::ErrorKind::InvalidData, "no state memory of this version")),
        }
        for region in [&inodes, &files, &directories, &hidden] {
            region.take_up(&memory);
        }
        let intents = Intents::take_up(&memory, intents);
        Ok(Self { memory, inodes, files, directories, hidden, intents })
    }

    /// Maps state memory by a path such as /proc/self/fd/N.
    ///
    /// # Errors
    /// As [`Keep::map`].
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = std::fs::File::options().read(true).write(true).open(path)?;
        Self::map(&file.into())
    }

    /// A number that no inode had before on this mount; the second one is `floor` at least.
    pub(crate) fn next_inode(&self, floor: u64) -> u64 {
        let number = self.memory.get(word::NEXT_INODE).max(floor);
        self.memory.set(word::NEXT_INODE, number + 1);
        number
    }

    /// Counts the workers of this memory: begins a new one's life.
    pub(crate) fn begin_generation(&self) -> u64 {
        let generation = self.memory.get(word::GENERATION) + 1;
        self.memory.set(word::GENERATION, generation);
        generation
    }

    /// The greeting of the connection, once there was one.
    pub fn greeting(&self) -> Option<Greeting> {
        let version = self.memory.get(word::VERSION);
        let narrow = |value: u64| u32::try_from(value).unwrap_or(0);
        (version != 0).then(|| Greeting { offered: self.memory.get(word::OFFERED), minor: narrow(version) })
    }

    /// Keeps the greeting for successors.
    pub fn set_greeting(&self, greeting: Greeting) {
        self.memory.set(word::OFFERED, greeting.offered);
        self.memory.set(word::VERSION, greeting.minor.into());
    }

    /// How data is served, once that was found out.
    pub fn mode(&self) -> Option<Mode> {
        match self.memory.get(word::MODE) {
            1 => Some(Mode::Passthrough),
            2 => Some(Mode::Plain),
            _ => None,
        }
    }

    /// Keeps the mode for successors.
    pub fn set_mode(&self, mode: Mode) {
        self.memory.set(word::MODE, if mode == Mode::Passthrough { 1 } else { 2 });
    }

    /// Can the kernel be told to forget names? `None`: nobody has tried.
    pub fn forgets(&self) -> Option<bool> {
        match self.memory.get(word::FORGETS) {
            1 => Some(true),
            2 => Some(false),
            _ => None,
        }
    }

    /// Keeps that for successors.
    pub fn set_forgets(&self, forgets: bool) {
        self.memory.set(word::FORGETS, if forgets { 1 } else { 2 });
    }

    /// Other nodes may have changed names that the kernel was not told of, should this worker die
    /// now.
    pub fn shared(&self) -> bool {
        self.memory.get(word::SHARED) != 0
    }

    /// See [`Keep::shared`].
    pub fn set_shared(&self, shared: bool) {
        self.memory.set(word::SHARED, shared.into());
    }

    /// What changing requests are about to do.
    pub fn intents(&self) -> &Intents {
        &self.intents
    }

    /// Process ids of keepers that were started and not [ended](Keep::keeper_ended).
    pub fn keepers(&self) -> Vec<i32> {
        let pids = (0..KEEPERS_MAX).map(|slot| self.keeper_in(slot));
        pids.filter(|&pid| pid > 0).collect()
    }

    /// A keeper is no more.
    pub fn keeper_ended(&self, pid: i32) {
        for slot in (0..KEEPERS_MAX).filter(|&slot| self.keeper_in(slot) == pid) {
            self.memory.set(word::KEEPERS + slot, 0);
        }
    }

    /// The kernel writes a process id into the first four bytes of a word.
    fn keeper_in(&self, slot: usize) -> i32 {
        let bytes = self.memory.get(word::KEEPERS + slot).to_ne_bytes();
        i32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    }
}

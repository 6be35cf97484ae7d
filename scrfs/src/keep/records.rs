//! Inodes, open files, open directories and hidden names in the state memory.
//!
//! An inode's backing can change while it is known: it has two places for one, and the word that is
//! stored last says which counts. Lookups may be counted too high after a death, never too low.

use std::os::fd::RawFd;
use std::sync::atomic::Ordering;

use super::Keep;
use super::decide::Key;

pub(super) const INODE_WORDS: usize = 12;
pub(super) const FILE_WORDS: usize = 10;
pub(super) const DIRECTORY_WORDS: usize = 7;
pub(super) const HIDDEN_WORDS: usize = 2;

const VALID: u64 = 1;
/// The second place counts.
const SECOND: u64 = 2;
const BACKED: u64 = 4;
/// Bytes of a command's name.
const COMMAND_BYTES: usize = 16;

/// Words of an inode.
mod inode {
    pub(super) const STATE: usize = 0;
    pub(super) const NUMBER: usize = 1;
    pub(super) const LOOKUPS: usize = 2;
    pub(super) const REGISTRATION: usize = 3;
    /// Descriptor, device, inode number; twice.
    pub(super) const PLACES: usize = 4;
    pub(super) const DATASET: usize = 10;
    pub(super) const NAME: usize = 11;
}

/// A descriptor and the file that it must be open on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeptFd {
    /// Its number in every worker.
    pub number: RawFd,
    /// Device and inode number.
    pub key: Key,
}

/// A name of a sealed dataset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct SealedMark {
    /// The dataset's id; 0 = none.
    pub dataset: u64,
    /// Of the path within it; see [`mark_of`].
    pub name: u64,
}

/// An inode as it was left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptInode {
    /// Where.
    pub record: u32,
    /// Its number.
    pub number: u64,
    /// At least what the kernel has counted.
    pub lookups: u64,
    /// The kernel's number for its backing file; 0 = none.
    pub registration: u32,
    /// Its backing.
    pub backing: Option<KeptFd>,
    /// What its backing was, where no descriptor of it is held.
    pub parked: Option<Key>,
    /// Its sealed name.
    pub sealed: SealedMark,
}

impl KeptInode {
    /// What it stands for.
    pub fn key(&self) -> Option<Key> {
        self.backing.map(|backing| backing.key).or(self.parked)
    }
}

/// An open file as it was left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptFile {
    /// Its number for the kernel.
    pub handle: u64,
    /// The inode's number.
    pub inode: u64,
    /// The request that opened it.
    pub unique: u64,
    /// open(2) flags.
    pub flags: i32,
    /// The daemon's descriptor, where it serves the data.
    pub data: Option<KeptFd>,
    /// Who opened it.
    pub pid: u32,
    /// Rank of that process.
    pub rank: Option<u32>,
    /// Command of that process.
    pub command: String,
}

/// An open directory as it was left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptDirectory {
    /// Its number for the kernel.
    pub handle: u64,
    /// The inode's number.
    pub inode: u64,
    /// The request that opened it.
    pub unique: u64,
    /// How many entries its listing had; 0: it had none, or nobody knows.
    pub end: u32,
    /// Its listing, as far as one had to be kept.
    pub listing: Option<KeptFd>,
}

/// A stable number of a path (FNV-1a); of 100,000 paths two are the same once in 10^9 datasets.
pub fn mark_of(path: &[u8]) -> u64 {
    path.iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

fn pair(high: u32, low: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

fn halves(word: u64) -> (u32, u32) {
    let low = u32::try_from(word & u64::from(u32::MAX)).unwrap_or(0);
    (u32::try_from(word >> 32).unwrap_or(0), low)
}

/// Descriptors are kept one higher, so that 0 is none.
fn fd_of(word: u32) -> Option<RawFd> {
    i32::try_from(word).ok()?.checked_sub(1).filter(|&fd| fd >= 0)
}

fn fd_word(fd: RawFd) -> u32 {
    u32::try_from(fd.saturating_add(1)).unwrap_or(0)
}

impl Keep {
    /// Begins an inode's record with no lookups counted. `None`: there is no room, and it is not
    /// kept.
    pub(crate) fn add_inode(&self, number: u64, backing: Option<KeptFd>, sealed: SealedMark) -> Option<u32> {
        let Some(record) = self.inodes.take(&self.memory) else {
            tracing::warn!(number, "too many inodes to keep them all for a successor");
            return None;
        };
        self.set_inode(record, inode::NUMBER, number);
        self.set_inode(record, inode::LOOKUPS, 0);
        self.set_inode(record, inode::REGISTRATION, 0);
        self.set_inode(record, inode::DATASET, sealed.dataset);
        self.set_inode(record, inode::NAME, sealed.name);
        if let Some(backing) = backing {
            self.set_place(record, 0, backing);
        }
        self.set_inode(record, inode::STATE, VALID | if backing.is_some() { BACKED } else { 0 });
        Some(record)
    }

    fn set_inode(&self, record: u32, word: usize, value: u64) {
        self.memory.set(self.inodes.at(record, word), value);
    }

    fn inode_word(&self, record: u32, word: usize) -> u64 {
        self.memory.get(self.inodes.at(record, word))
    }

    fn set_place(&self, record: u32, place: usize, backing: KeptFd) {
        let at = inode::PLACES + 3 * place;
        self.set_inode(record, at, fd_word(backing.number).into());
        self.set_inode(record, at + 1, backing.key.0);
        self.set_inode(record, at + 2, backing.key.1);
    }

    /// The inode has another backing, or its first.
    pub(crate) fn set_backing(&self, record: u32, backing: KeptFd) {
        let second = self.inode_word(record, inode::STATE) & SECOND == 0;
        self.set_place(record, usize::from(second), backing);
        self.set_inode(record, inode::STATE, VALID | BACKED | if second { SECOND } else { 0 });
    }

    /// The inode's descriptor is about to be closed; its backing stays what it is.
    pub(crate) fn park(&self, record: u32) {
        self.set_inode(record, self.place_of(record), 0);
    }

    /// It has no descriptor any more.
    pub(crate) fn clear_backing(&self, record: u32) {
        self.set_inode(record, inode::STATE, VALID);
    }

    /// The first word of the place that counts.
    fn place_of(&self, record: u32) -> usize {
        let second = self.inode_word(record, inode::STATE) & SECOND != 0;
        inode::PLACES + if second { 3 } else { 0 }
    }

    /// How often the kernel may have looked it up.
    pub(crate) fn set_lookups(&self, record: u32, lookups: u64) {
        self.set_inode(record, inode::LOOKUPS, lookups);
    }

    /// The kernel's number for the backing file; 0 before the kernel gives it up.
    #[cfg_attr(all(not(feature = "fuse"), not(test)), expect(dead_code, reason = "the adapter's"))]
    pub(crate) fn set_registration(&self, record: u32, id: u32) {
        self.set_inode(record, inode::REGISTRATION, id.into());
    }

    /// Backing file `id` is about to be given up. The inode may have another by now: the last
    /// handle is released while the next open is served. And the record may be another inode's.
    #[cfg_attr(all(not(feature = "fuse"), not(test)), expect(dead_code, reason = "the adapter's"))]
    pub(crate) fn clear_registration(&self, record: u32, id: u32) {
        let word = self.memory.word(self.inodes.at(record, inode::REGISTRATION));
        let _ = word.compare_exchange(id.into(), 0, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// The inode is known no longer; before its descriptor is closed.
    pub(crate) fn remove_inode(&self, record: u32) {
        self.inodes.give_back(&self.memory, record);
    }

    /// All inodes that a predecessor left.
    pub(crate) fn inodes(&self) -> impl Iterator<Item = KeptInode> {
        self.inodes.all(&self.memory).filter_map(|record| self.kept_inode(record))
    }

    fn kept_inode(&self, record: u32) -> Option<KeptInode> {
        let word = |at| self.inode_word(record, at);
        let state = word(inode::STATE);
        if state & VALID == 0 {
            return None;
        }
        let at = self.place_of(record);
        let number = fd_of(halves(word(at)).1);
        let key = (state & BACKED != 0).then(|| (word(at + 1), word(at + 2)));
        Some(KeptInode {
            record,
            number: word(inode::NUMBER),
            lookups: word(inode::LOOKUPS),
            registration: halves(word(inode::REGISTRATION)).1,
            backing: number.zip(key).map(|(number, key)| KeptFd { number, key }),
            parked: key.filter(|_| number.is_none()),
            sealed: SealedMark { dataset: word(inode::DATASET), name: word(inode::NAME) },
        })
    }

    /// Keeps an open file.
    pub(crate) fn add_file(&self, file: &KeptFile) -> Option<u32> {
        let record = self.files.take(&self.memory)?;
        let set = |word, value| self.memory.set(self.files.at(record, word), value);
        set(1, file.handle);
        set(2, file.inode);
        set(3, file.unique);
        set(4, pair(file.flags.cast_unsigned(), file.data.map_or(0, |fd| fd_word(fd.number))));
        let key = file.data.map_or((0, 0), |fd| fd.key);
        set(5, key.0);
        set(6, key.1);
        set(7, pair(file.pid, file.rank.map_or(0, |rank| rank.saturating_add(1))));
        let mut command = [0; COMMAND_BYTES];
        let length = file.command.len().min(COMMAND_BYTES);
        command[..length].copy_from_slice(&file.command.as_bytes()[..length]);
        let (first, second) = command.split_at(8);
        set(8, u64::from_ne_bytes(first.try_into().unwrap_or_default()));
        set(9, u64::from_ne_bytes(second.try_into().unwrap_or_default()));
        set(0, VALID);
        Some(record)
    }

    /// The file is closed; before its descriptor is.
    pub(crate) fn remove_file(&self, record: u32) {
        self.files.give_back(&self.memory, record);
    }

    /// All open files that a predecessor left, each with its record.
    pub(crate) fn open_files(&self) -> Vec<(u32, KeptFile)> {
        let valid = |record: &u32| self.memory.get(self.files.at(*record, 0)) == VALID;
        self.files.all(&self.memory).filter(valid).map(|record| (record, self.kept_file(record))).collect()
    }

    fn kept_file(&self, record: u32) -> KeptFile {
        let word = |at| self.memory.get(self.files.at(record, at));
        let (flags, fd) = halves(word(4));
        let (pid, rank) = halves(word(7));
        let command = [word(8).to_ne_bytes(), word(9).to_ne_bytes()].concat();
        let end = command.iter().position(|&b| b == 0).unwrap_or(COMMAND_BYTES);
        KeptFile {
            handle: word(1),
            inode: word(2),
            unique: word(3),
            flags: flags.cast_signed(),
            data: fd_of(fd).map(|number| KeptFd { number, key: (word(5), word(6)) }),
            pid,
            rank: rank.checked_sub(1),
            command: String::from_utf8_lossy(&command[..end]).into_owned(),
        }
    }

    /// Keeps an open directory.
    pub(crate) fn add_directory(&self, handle: u64, inode: u64, unique: u64) -> Option<u32> {
        let record = self.directories.take(&self.memory)?;
        let set = |word, value| self.memory.set(self.directories.at(record, word), value);
        set(1, handle);
        set(2, inode);
        set(3, unique);
        set(4, 0);
        set(0, VALID);
        Some(record)
    }

    /// The directory's listing has `end` entries, and is in this descriptor; `None` before that is
    /// closed.
    pub(crate) fn set_listing(&self, record: u32, end: u32, listing: Option<KeptFd>) {
        let set = |word, value| self.memory.set(self.directories.at(record, word), value);
        // Never a descriptor with another one's key.
        set(4, pair(end, 0));
        if let Some(listing) = listing {
            set(5, listing.key.0);
            set(6, listing.key.1);
            set(4, pair(end, fd_word(listing.number)));
        }
    }

    /// The directory is closed; before its listing is.
    pub(crate) fn remove_directory(&self, record: u32) {
        self.directories.give_back(&self.memory, record);
    }

    /// All open directories that a predecessor left, each with its record.
    pub(crate) fn open_directories(&self) -> Vec<(u32, KeptDirectory)> {
        let kept = |record| {
            let word = |at| self.memory.get(self.directories.at(record, at));
            let (end, fd) = halves(word(4));
            let listing = fd_of(fd).map(|number| KeptFd { number, key: (word(5), word(6)) });
            let kept = KeptDirectory { handle: word(1), inode: word(2), unique: word(3), end, listing };
            (word(0) == VALID).then_some((record, kept))
        };
        self.directories.all(&self.memory).filter_map(kept).collect()
    }

    /// A name of a sealed dataset was removed here.
    pub(crate) fn hide(&self, mark: SealedMark) {
        if self.find_hidden(mark).is_some() {
            return;
        }
        if let Some(record) = self.hidden.take(&self.memory) {
            self.memory.set(self.hidden.at(record, 1), mark.name);
            self.memory.set(self.hidden.at(record, 0), mark.dataset);
        }
    }

    /// It was made anew.
    pub(crate) fn show(&self, mark: SealedMark) {
        if let Some(record) = self.find_hidden(mark) {
            self.hidden.give_back(&self.memory, record);
        }
    }

    /// A dataset is no longer listed.
    pub(crate) fn show_all(&self, dataset: u64) {
        for (record, mark) in self.hidden_records() {
            if mark.dataset == dataset {
                self.hidden.give_back(&self.memory, record);
            }
        }
    }

    /// All hidden names.
    pub(crate) fn hidden(&self) -> Vec<SealedMark> {
        self.hidden_records().map(|(_, mark)| mark).collect()
    }

    fn find_hidden(&self, mark: SealedMark) -> Option<u32> {
        self.hidden_records().find(|(_, other)| *other == mark).map(|(record, _)| record)
    }

    fn hidden_records(&self) -> impl Iterator<Item = (u32, SealedMark)> {
        self.hidden.all(&self.memory).filter_map(|record| {
            let dataset = self.memory.get(self.hidden.at(record, 0));
            let name = self.memory.get(self.hidden.at(record, 1));
            (dataset != 0).then_some((record, SealedMark { dataset, name }))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::memory::create;
    use super::*;

    #[test]
    fn a_successor_finds_what_was_left() {
        let memory = create().unwrap();
        let keep = Keep::map(&memory).unwrap();
        let (one, two) = (KeptFd { number: 9, key: (1, 2) }, KeptFd { number: 10, key: (1, 3) });
        let record = keep.add_inode(5, Some(one), SealedMark::default()).unwrap();
        keep.set_lookups(record, 3);
        keep.set_backing(record, two);
        keep.set_registration(record, 76);
        keep.set_registration(record, 77);
        keep.clear_registration(record, 76);
        let mark = SealedMark { dataset: 4, name: mark_of(b"a/b") };
        let sealed = keep.add_inode(6, None, mark).unwrap();
        let gone = keep.add_inode(7, None, mark).unwrap();
        keep.remove_inode(gone);
        let file = KeptFile {
            handle: 1 << 40,
            inode: 5,
            unique: 12,
            flags: libc::O_RDWR,
            data: Some(one),
            pid: 33,
            rank: Some(0),
            command: "a program".into(),
        };
        keep.add_file(&file).unwrap();
        let directory = keep.add_directory(2, 6, 13).unwrap();
        keep.set_listing(directory, 9, Some(two));
        keep.hide(mark);
        keep.hide(SealedMark { dataset: 9, name: 1 });
        keep.show_all(9);

        let next = Keep::map(&memory).unwrap();
        let inodes: Vec<KeptInode> = next.inodes().collect();
        assert_eq!(inodes.len(), 2);
        assert_eq!((inodes[0].lookups, inodes[0].registration, inodes[0].backing), (3, 77, Some(two)));
        assert_eq!((inodes[1].record, inodes[1].sealed, inodes[1].key()), (sealed, mark, None));
        assert_eq!(next.open_files(), [(0, file)]);
        let left = &next.open_directories()[0].1;
        assert_eq!((left.end, left.listing), (9, Some(two)));
        next.set_listing(directory, 7, None);
        let left = &next.open_directories()[0].1;
        assert_eq!((left.end, left.listing), (7, None));
        assert_eq!(next.hidden(), [mark]);
        assert_eq!(next.add_inode(8, None, mark), Some(gone), "a free record is used again");
        next.park(record);
        let first = || next.inodes().next().unwrap();
        let parked = first();
        assert_eq!((parked.backing, parked.key()), (None, Some(two.key)));
        next.set_backing(record, one);
        assert_eq!(first().backing, Some(one));
        next.clear_backing(record);
        assert_eq!(first().key(), None);
    }
}

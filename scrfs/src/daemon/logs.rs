//! Logs that stay open (`scrfs/docs/semantics.md`, Logs): a file to which all its writers append is
//! sealed at the size that it has when its dataset is frozen, from a copy of its first bytes in
//! `dataset.<id>/logs`. The program's file is not touched.
//!
//! Until COMPLETE the copy is read wherever a sealed byte of the file is wanted; a failed seal
//! removes it with the dataset's directory. With COMPLETE the dataset's next generation has begun
//! here: the sealed files are aside, the copies among them, and the program's file is one that was
//! changed. So it goes on growing where programs see it, the next marker seals it at its size then,
//! and a restart presents the sealed one. What is left in `logs` (the same file under another name)
//! says which files it was: one that has not grown since was not changed.
//!
//! Fault points: `seal.log` (each block), `seal.logs`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read, Seek};
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{OFlags, SeekFrom, Stat};
use rustix::io::Errno;

use crate::control::{FrozenFile, Reason};
use crate::dataset::{CatalogIndex, EntryKind, FileCopy};
use crate::faults;
use crate::ids::{DatasetId, Member};
use crate::path::RelPath;
use crate::store::beneath;
use crate::transfer::copy::{Seen, copy};
use crate::transfer::{Monitor, sparse};

use super::cache::{Instead, Staged};
use super::listing::entry_of;
use super::members::settle_file;
use super::node::Node;
use super::state::Dataset;
use crate::boundary::Generation;

/// Bytes that the kernel is asked to copy at once: a seal that is given up ends between two.
const CHUNK: u64 = 16 << 20;

/// What is sealed of a log.
pub(super) struct LogCopy {
    pub(super) size: u64,
    pub(super) crc: u32,
    /// The program's file when it had that size.
    pub(super) stat: Stat,
}

/// By path in the dataset.
pub(super) type Logs = BTreeMap<RelPath, LogCopy>;

impl Node {
    /// Copies what `paths` hold now. When this returns, the copies are on storage.
    pub(super) fn copy_logs(
        &self,
        id: DatasetId,
        name: &[u8],
        paths: &BTreeSet<RelPath>,
        cancelled: &Monitor,
    ) -> Result<Logs, Reason> {
        let mut logs = Logs::new();
        if paths.is_empty() {
            return Ok(logs);
        }
        self.cache.discard_copies(id, Instead::Log)?;
        let top = self.tree.backing_directory(name)?;
        for path in paths {
            let log = self
                .copy_log(id, &top, path, cancelled)
                .map_err(|error| error.on(format_args!("{path} is open for append and cannot be copied")))?;
            let told = format!("{path}: is open for append, sealed is a copy of its {} bytes", log.size);
            self.events.info(Some(id), &told);
            logs.insert(path.clone(), log);
        }
        self.cache.sync_copies(id, Instead::Log, paths)?;
        faults::hit("seal.logs")?;
        Ok(logs)
    }

    fn copy_log(
        &self,
        id: DatasetId,
        top: &OwnedFd,
        path: &RelPath,
        cancelled: &Monitor,
    ) -> Result<LogCopy, Reason> {
        let staged = Staged::Instead(Instead::Log, path.clone());
        let (copied, stat) = self.copy_frozen(id, top, (path, &staged), cancelled)?;
        Ok(LogCopy { size: copied.size, crc: copied.crc, stat })
    }

    /// Copies what `path` holds now to `staged`, with its attributes; the copy is on storage when
    /// this returns.
    pub(super) fn copy_frozen(
        &self,
        id: DatasetId,
        top: &OwnedFd,
        (path, staged): (&RelPath, &Staged),
        cancelled: &Monitor,
    ) -> Result<(Seen, Stat), Reason> {
        let from = File::from(beneath::open_file(top.as_fd(), path)?);
        let stat = rustix::fs::fstat(&from)?;
        let size = stat.st_size.cast_unsigned();
        let staged = self.cache.stage(id, staged, OFlags::RDWR)?;
        let to = File::from(staged.try_clone()?);
        fill(&from, &to, size, cancelled)?;
        let copied = first(&to, size, cancelled)?;
        let written = first(&from, size, cancelled)?;
        if copied != written || copied.size != size {
            return Err("its bytes changed meanwhile".into());
        }
        let recorded = FileCopy { size, crc: copied.crc, member: Member(0), program_rank: None };
        let entry = entry_of(path.clone(), EntryKind::File(recorded.clone()), &stat);
        settle_file(id, &staged, &entry, &recorded)?;
        Ok((copied, stat))
    }

    /// A dataset was not frozen: its copies go, unless it is recorded as frozen; then they go with
    /// it.
    pub(super) fn drop_copies(&self, id: DatasetId) {
        if self.state.lock().table.datasets.contains_key(&id) {
            return;
        }
        let dropped = self.discard_sealed_copies(id).and_then(|()| self.cache.drop_if_empty(id));
        if let Err(error) = dropped {
            self.events.warning(Some(id), &format!("copies for its seal cannot be removed: {error}"));
        }
    }

    fn discard_sealed_copies(&self, id: DatasetId) -> io::Result<()> {
        self.cache.discard_copies(id, Instead::Log)?;
        self.cache.discard_copies(id, Instead::Link)
    }

    /// A complete dataset with logs has its files aside from now on, and its next generation has
    /// begun. Done again after a crash at any point; the tree has to be told.
    pub(super) fn place_logs(&self, id: DatasetId) -> Result<Option<Generation>, Reason> {
        let dataset = self.dataset(id)?;
        if !dataset.life.is_in_tree() || !dataset.life.is_complete() {
            return Ok(None);
        }
        let logs = self.cache.copies(id, Instead::Log)?;
        if logs.is_empty() {
            return Ok(None);
        }
        self.begin_generation(&mut self.generations.lock(), id, &logs)
    }

    /// A file of a dataset that is here, with the bytes that are sealed.
    pub(super) fn open_sealed(
        &self,
        dataset: &Dataset,
        home: &OwnedFd,
        path: &RelPath,
    ) -> io::Result<OwnedFd> {
        if dataset.life.is_in_tree()
            && let Some(copy) = self.cache.instead(dataset.id, path)?
        {
            return Ok(copy);
        }
        beneath::open_file(home.as_fd(), path)
    }

    /// Takes out of `files`, which are in the tree, the logs that are as they were sealed.
    pub(super) fn leave_out_logs(
        &self,
        dataset: &Dataset,
        index: &CatalogIndex,
        files: &mut Vec<FrozenFile>,
    ) -> io::Result<()> {
        let logs = self.cache.copies(dataset.id, Instead::Log)?;
        if logs.is_empty() {
            return Ok(());
        }
        let tree = self.cache.tree(dataset.id, &dataset.name)?;
        let gone = self.gone_of(dataset);
        let rests = |file: &FrozenFile| {
            let is_log = logs.contains(&file.path) && !gone.cover(&file.path);
            let Some(sealed) = index.entry(&file.path).filter(|_| is_log) else { return false };
            let now = beneath::open_file(tree.as_fd(), &file.path)
                .and_then(|fd| Ok(entry_of(file.path.clone(), sealed.kind.clone(), &rustix::fs::fstat(fd)?)));
            matches!(&sealed.kind, EntryKind::File(copy) if copy.size == file.size)
                && now.is_ok_and(|now| now.mtime == sealed.mtime)
        };
        files.retain(|file| !rests(file));
        Ok(())
    }

    /// Removes copies for seals of which nothing was recorded: a worker died while it made them.
    pub(super) fn discard_half_made_copies(&self) -> io::Result<()> {
        for id in self.cache.own_directories()? {
            if !self.state.lock().table.datasets.contains_key(&id) {
                self.discard_sealed_copies(id)?;
            }
        }
        let known = self.state.lock().table.datasets.keys().copied().collect();
        self.cache.drop_empty(&known)
    }
}

/// Gives `to`, which is empty, the first `size` bytes of `from`: their blocks are shared where the
/// file system can do that, else the kernel copies them, else they are read and written. Holes stay
/// holes.
fn fill(from: &File, to: &File, size: u64, cancelled: &Monitor) -> io::Result<()> {
    if rustix::fs::ioctl_ficlone(to, from).is_ok() {
        return to.set_len(size);
    }
    let mut at = 0;
    while let Some(data) = data_from(from, at, size)? {
        let (mut read, mut written) = (data.start, data.start);
        while read < data.end {
            faults::hit("seal.log")?;
            cancelled.advance(0)?;
            let first = at == 0 && read == data.start;
            let most = usize::try_from((data.end - read).min(CHUNK)).unwrap_or(usize::MAX);
            match rustix::fs::copy_file_range(from, Some(&mut read), to, Some(&mut written), most) {
                Ok(0) if first => return fill_by_hand(from, to, size, cancelled),
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::XDEV | Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) if first => {
                    return fill_by_hand(from, to, size, cancelled);
                }
                Err(errno) => return Err(errno.into()),
            }
        }
        at = data.end;
    }
    sparse::end(to, size)
}

/// The first bytes from `at` on, before `size`, that are in no hole.
fn data_from(from: &File, at: u64, size: u64) -> io::Result<Option<Range<u64>>> {
    if at >= size {
        return Ok(None);
    }
    let start = match rustix::fs::seek(from, SeekFrom::Data(at)) {
        Ok(start) if start < size => start,
        Ok(_) => return Ok(None),
        Err(Errno::NXIO) if from.metadata()?.len() >= size => return Ok(None),
        Err(Errno::NXIO) => return Err(io::ErrorKind::UnexpectedEof.into()),
        // It does not tell of holes.
        Err(Errno::INVAL) => return Ok(Some(at..size)),
        Err(errno) => return Err(errno.into()),
    };
    Ok(Some(start..rustix::fs::seek(from, SeekFrom::Hole(start))?.min(size)))
}

fn fill_by_hand(mut from: &File, to: &File, size: u64, cancelled: &Monitor) -> io::Result<()> {
    from.rewind()?;
    copy(&mut from.take(size), size, "seal.log", cancelled, Some(to)).map(drop)
}

/// What the first `size` bytes are.
fn first(mut file: &File, size: u64, cancelled: &Monitor) -> io::Result<Seen> {
    file.rewind()?;
    copy(&mut file.take(size), size, "seal.log", cancelled, None)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::{FileExt, MetadataExt};

    use super::*;

    #[test]
    fn each_way_gives_the_first_bytes() {
        let bytes: Vec<u8> = (0..(5_u32 << 19) + 7).map(|i| u8::try_from(i % 251).unwrap_or(0)).collect();
        let mut from = tempfile::tempfile().unwrap();
        from.write_all(&bytes).unwrap();
        for size in [0, 1, bytes.len() - 3, bytes.len()] {
            let wanted = Seen { size: size as u64, crc: crc32fast::hash(&bytes[..size]) };
            for by_hand in [false, true] {
                let (to, monitor) = (tempfile::tempfile().unwrap(), Monitor::default());
                let filled = if by_hand {
                    fill_by_hand(&from, &to, size as u64, &monitor)
                } else {
                    fill(&from, &to, size as u64, &monitor)
                };
                filled.unwrap();
                assert_eq!(to.metadata().unwrap().len(), size as u64);
                assert_eq!(first(&to, size as u64, &Monitor::default()).unwrap(), wanted);
            }
        }
        let given_up = Monitor::default();
        given_up.cancel();
        let to = tempfile::tempfile().unwrap();
        assert_eq!(fill_by_hand(&from, &to, 9, &given_up).unwrap_err().kind(), io::ErrorKind::Interrupted);
    }

    #[test]
    fn holes_stay_holes_each_way() {
        let page = |n: u64| n * 4096;
        for (data, size, blocks) in [
            (vec![], page(9), 0),
            (vec![0], page(9), 1),
            (vec![3, 7], page(8), 2),
            (vec![3, 9], page(9) + 5, 2),
        ] {
            let from = tempfile::tempfile_in("/dev/shm").unwrap();
            from.set_len(page(20)).unwrap();
            for at in data {
                from.write_all_at(&[1; 4096], page(at)).unwrap();
            }
            let wanted = first(&from, size, &Monitor::default()).unwrap();
            for by_hand in [false, true] {
                let to = tempfile::tempfile_in("/dev/shm").unwrap();
                let filled = if by_hand { fill_by_hand } else { fill };
                filled(&from, &to, size, &Monitor::default()).unwrap();
                assert_eq!(first(&to, u64::MAX, &Monitor::default()).unwrap(), wanted);
                assert_eq!(to.metadata().unwrap().blocks() * 512, page(blocks));
            }
        }
        let short = tempfile::tempfile_in("/dev/shm").unwrap();
        short.set_len(page(1)).unwrap();
        let error = fill(&short, &tempfile::tempfile_in("/dev/shm").unwrap(), page(2), &Monitor::default());
        assert_eq!(error.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }
}

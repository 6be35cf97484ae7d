//! Which program rank creates which file, in an append-only file: an entry is there before its file is, and the 10,000th
//! costs what the 10th did. Entries are folded into the filemap when their dataset is sealed.
//!
//! In the next generation of a sealed dataset an entry means that the file was made or changed here; a name that was
//! removed has an entry too, which counts for that one sealed dataset only. Such a name is the one that was sealed: where
//! that is now is told by what directories have moved ([`Moves`]), which is kept here as well. A directory is about to be
//! moved, then it was or was not: who dies in between looks which it is.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::dataset::Moves;
use crate::ids::DatasetId;
use crate::path::RelPath;
use crate::store::log::Log;
use crate::store::{Store, StoreError};

const NAME: &str = "filemap_0.journal";
/// Bytes of entries that are not current any more before the file is written anew.
const WASTE_MAX: u64 = 8 << 20;
/// Entries kept; a program that creates and removes files without end must not fill the memory.
const ENTRIES_MAX: usize = 1 << 20;
/// And bytes of them: their names may be long. The rest of the file is for what counts.
const ENTRIES_BYTES_MAX: u64 = 64 << 20;

type Append = fn(&mut Log<Record>, &Record) -> io::Result<()>;

/// One entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
enum Record {
    /// A file is about to be created.
    Create(RelPath, Option<u32>),
    /// A directory got another name.
    Rename(RelPath, RelPath),
    /// What is at or below it is in the filemap now, or gone; of a whole dataset its removed names too.
    Forget(RelPath),
    /// A name of this sealed dataset is about to be removed.
    Remove(RelPath, DatasetId),
    /// As [`Record::Forget`], but removed names stay.
    ForgetFiles(RelPath),
    /// A directory below a sealed dataset is about to be moved.
    Moving(Moving),
    /// It was; or it stayed.
    Moved(bool),
    /// What was sealed at this path of a sealed dataset, or has moved there, is gone everywhere.
    Gone(RelPath, DatasetId),
    /// The next generation over that sealed dataset has begun in this directory, and what was removed before is out of it.
    Begun(RelPath, DatasetId),
    /// At this path of a sealed dataset there is what was sealed under that name of it.
    Stands(RelPath, DatasetId, Option<RelPath>),
    /// Two directories exchanged their names.
    Exchange(RelPath, RelPath),
    /// The first file of this name in the root was entered then, microseconds since 1970.
    Since(Vec<u8>, u64),
}

/// A directory below a sealed dataset that is about to be moved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Moving {
    pub(super) id: DatasetId,
    /// Relative to the checkpoint path.
    pub(super) from: RelPath,
    pub(super) to: RelPath,
    pub(super) exchange: bool,
    /// The directory itself: where this is, there it is.
    pub(super) inode: u64,
}

/// See the module.
pub(super) struct Journal {
    log: Log<Record>,
    files: BTreeMap<RelPath, Option<u32>>,
    removed: BTreeMap<RelPath, DatasetId>,
    /// By the dataset's directory.
    moves: BTreeMap<RelPath, (DatasetId, Moves)>,
    moving: Option<Moving>,
    begun_over: BTreeMap<RelPath, DatasetId>,
    /// When the first file of each name in the root was entered, microseconds since 1970; 0: not known.
    begun: BTreeMap<Vec<u8>, u64>,
    /// Bytes of the file when it was last written anew.
    compact: u64,
    /// Since then some entries have ceased to be current.
    wasted: bool,
}

impl Journal {
    /// Reads it; also tells the bytes of a torn tail.
    pub(super) fn load(store: &Arc<Store>) -> Result<(Self, u64), StoreError> {
        let (log, records, torn) = Log::open(store, NAME)?;
        let (files, removed, begun) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let (moves, moving, begun_over) = (BTreeMap::new(), None, BTreeMap::new());
        let mut journal =
            Self { log, files, removed, moves, moving, begun_over, begun, compact: 0, wasted: true };
        for record in records {
            journal.follow(record, 0);
        }
        Ok((journal, torn))
    }

    /// `path` (relative to the checkpoint path) is about to be created by a process of `rank`. Where there is no room for
    /// its entry there is none for the file.
    pub(super) fn creating(&mut self, path: &RelPath, rank: Option<u32>) -> io::Result<()> {
        self.enter(path, rank, Log::append)
    }

    /// The same of a file that is there and gets this name: it takes no more room.
    pub(super) fn naming(&mut self, path: &RelPath, rank: Option<u32>) -> io::Result<()> {
        self.enter(path, rank, Log::append_surely)
    }

    fn enter(&mut self, path: &RelPath, rank: Option<u32>, append: Append) -> io::Result<()> {
        if self.files.get(path) == Some(&rank) {
            return Ok(());
        }
        if self.files.len() >= ENTRIES_MAX || self.log.bytes() >= ENTRIES_BYTES_MAX {
            // Only the rank is lost: a seal takes its files from the tree.
            return Ok(());
        }
        self.add_by(append, Record::Create(path.clone(), rank))
    }

    /// As [`Journal::creating`], where the entry itself counts: it is never left out.
    pub(super) fn changing(&mut self, path: &RelPath, rank: Option<u32>) -> io::Result<()> {
        if self.files.contains_key(path) {
            return Ok(());
        }
        self.add(Record::Create(path.clone(), rank))
    }

    /// `path`, a name of sealed dataset `id`, is about to be removed.
    pub(super) fn removing(&mut self, path: &RelPath, id: DatasetId) -> io::Result<()> {
        if self.removed.get(path) == Some(&id) {
            return Ok(());
        }
        self.add(Record::Remove(path.clone(), id))
    }

    /// Nothing is there that is not sealed.
    pub(super) fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// The file has an entry.
    pub(super) fn has(&self, path: &RelPath) -> bool {
        self.files.contains_key(path)
    }

    /// Files that have an entry in dataset `name`, relative to it.
    pub(super) fn files_of(&self, name: &RelPath) -> Vec<RelPath> {
        self.below(name).filter_map(|(path, _)| path.strip(name)).collect()
    }

    /// Names of sealed dataset `id` that were removed, relative to its directory `name`.
    pub(super) fn removed_of(&self, name: &RelPath, id: DatasetId) -> Vec<RelPath> {
        let below = self.removed.iter().filter(|(_, of)| **of == id);
        below.filter_map(|(path, _)| path.strip(name)).collect()
    }

    /// Where directories of sealed dataset `id` have moved to; `name` is its own.
    pub(super) fn moves(&self, name: &RelPath, id: DatasetId) -> &Moves {
        static NONE: Moves = Moves::new();
        self.moves.get(name).filter(|(of, _)| *of == id).map_or(&NONE, |(_, moves)| moves)
    }

    /// Something of sealed dataset `id` was removed, or moved.
    pub(super) fn is_rearranged(&self, name: &RelPath, id: DatasetId) -> bool {
        !self.moves(name, id).is_empty() || !self.removed_of(name, id).is_empty()
    }

    /// What was sealed at `path` in dataset `id`, or has moved there, is about to go everywhere.
    pub(super) fn going(&mut self, path: &RelPath, id: DatasetId) -> io::Result<()> {
        self.add(Record::Gone(path.clone(), id))
    }

    /// The next generation over sealed dataset `id` has begun in `name`, and what was removed before is out of the tree.
    pub(super) fn begun_over(&mut self, name: &RelPath, id: DatasetId) -> io::Result<()> {
        self.add(Record::Begun(name.clone(), id))
    }

    pub(super) fn has_begun_over(&self, name: &RelPath, id: DatasetId) -> bool {
        self.begun_over.get(name) == Some(&id)
    }

    /// A directory of a sealed dataset is about to be moved.
    pub(super) fn moving(&mut self, moving: Moving) -> io::Result<()> {
        self.add(Record::Moving(moving))
    }

    /// What is about to be moved, or was when the worker before died.
    pub(super) fn is_moving(&self) -> Option<&Moving> {
        self.moving.as_ref()
    }

    /// It was moved, or stays. That is known here also when it cannot be recorded.
    pub(super) fn moved(&mut self, moved: bool) -> io::Result<()> {
        let added = self.add(Record::Moved(moved));
        if added.is_err() {
            self.follow(Record::Moved(moved), 0);
        }
        added
    }

    /// Forgets what says nothing of where names of dataset `id` are: at `paths`, relative to it, or anywhere. `known`: that
    /// name was sealed.
    pub(super) fn prune(
        &mut self,
        name: &RelPath,
        id: DatasetId,
        paths: Option<&[RelPath]>,
        known: impl Fn(&RelPath) -> bool,
    ) {
        if let Some((_, moves)) = self.moves.get_mut(name).filter(|(of, _)| *of == id) {
            match paths {
                Some(paths) => moves.prune(paths, known),
                None => moves.prune_all(known),
            }
            if moves.is_empty() {
                self.moves.remove(name);
            }
        }
    }

    pub(super) fn renamed(&mut self, from: &RelPath, to: &RelPath) -> io::Result<()> {
        self.add(Record::Rename(from.clone(), to.clone()))
    }

    pub(super) fn exchanged(&mut self, one: &RelPath, other: &RelPath) -> io::Result<()> {
        self.add(Record::Exchange(one.clone(), other.clone()))
    }

    /// Forgets what is at or below `path`.
    pub(super) fn forget(&mut self, path: &RelPath) -> io::Result<()> {
        if path.is_root() {
            self.files.clear();
            self.removed.clear();
            self.moves.clear();
            self.moving = None;
            self.begun_over.clear();
            self.begun.clear();
            self.compact = 0;
            return self.log.clear();
        }
        let removed = self.removed.keys().chain(self.moves.keys()).chain(self.begun_over.keys());
        let removed = removed.into_iter().any(|name| name.strip(path).is_some());
        if self.below(path).next().is_none() && !removed {
            return Ok(());
        }
        self.add(Record::Forget(path.clone()))
    }

    /// Makes entries that are relative to `former` relative to `now`, another checkpoint path. What is not below that is no
    /// dataset's any more, and is forgotten. For a node that has no sealed dataset, so nothing else is entered.
    pub(super) fn rebase(&mut self, former: &RelPath, now: &RelPath) -> Result<(), StoreError> {
        let begun: BTreeMap<Vec<u8>, u64> = self.begun().into_iter().collect();
        let mut since: BTreeMap<Vec<u8>, u64> = BTreeMap::new();
        for (path, rank) in std::mem::take(&mut self.files) {
            let moved = former.concat(&path).ok().and_then(|whole| whole.strip(now));
            let Some((name, inner)) = moved.as_ref().and_then(RelPath::split_first) else { continue };
            if !inner.is_root() {
                let before = path.split_first().and_then(|(name, _)| begun.get(name)).copied().unwrap_or(0);
                since.entry(name.to_vec()).and_modify(|s| *s = before.min(*s)).or_insert(before);
            }
            self.files.extend(moved.map(|moved| (moved, rank)));
        }
        self.begun = since;
        self.rewrite()
    }

    /// Forgets files at or below `path`; removed names stay.
    pub(super) fn forget_files(&mut self, path: &RelPath) -> io::Result<()> {
        if self.below(path).next().is_none() {
            return Ok(());
        }
        self.add(Record::ForgetFiles(path.clone()))
    }

    /// The rank that created the file.
    pub(super) fn rank_of(&self, path: &RelPath) -> Option<u32> {
        self.files.get(path).copied().flatten()
    }

    /// Names directly in the root that have files.
    pub(super) fn names(&self) -> Vec<Vec<u8>> {
        let mut names: Vec<Vec<u8>> = self
            .files
            .keys()
            .filter_map(RelPath::split_first)
            .filter(|(_, rest)| !rest.is_root())
            .map(|(name, _)| name.to_vec())
            .collect();
        names.dedup();
        names
    }

    /// Also when there is no room: files are removed because of that.
    fn add(&mut self, record: Record) -> io::Result<()> {
        self.add_by(Log::append_surely, record)
    }

    fn add_by(&mut self, append: Append, record: Record) -> io::Result<()> {
        if let Err(error) = append(&mut self.log, &record) {
            // Where there is no room, what is not current need not take any.
            if !self.wasted || error.raw_os_error() != Some(libc::ENOSPC) {
                return Err(error);
            }
            self.write_anew();
            append(&mut self.log, &record)?;
        }
        self.wasted |= !matches!(record, Record::Create(..));
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let now = u64::try_from(now.as_micros()).unwrap_or(u64::MAX);
        for begun in self.follow(record, now) {
            self.log.append_surely(&Record::Since(begun, now))?;
        }
        if self.log.bytes() > self.compact.saturating_mul(2) + WASTE_MAX {
            self.write_anew();
        }
        Ok(())
    }

    /// With what is current only.
    fn write_anew(&mut self) {
        if let Err(error) = self.rewrite() {
            // The entry is there all the same; when it has grown again it is tried again.
            tracing::warn!(%error, "the filemap's journal cannot be written anew");
        }
        self.compact = self.log.bytes();
        self.wasted = false;
    }

    /// Replaces the file by one that has what is current, and no more.
    fn rewrite(&mut self) -> Result<(), StoreError> {
        let since = self.begun();
        let files = self.files.iter().map(|(path, rank)| Record::Create(path.clone(), *rank));
        let removed = self.removed.iter().map(|(path, id)| Record::Remove(path.clone(), *id));
        let moves = self.moves.iter().flat_map(|(top, (id, moves))| {
            moves.iter().filter_map(|(path, sealed)| {
                Some(Record::Stands(top.concat(path).ok()?, *id, sealed.cloned()))
            })
        });
        let since = since.into_iter().map(|(top, since)| Record::Since(top, since));
        let over = self.begun_over.iter().map(|(top, id)| Record::Begun(top.clone(), *id));
        let moving = self.moving.iter().cloned().map(Record::Moving);
        let records: Vec<Record> =
            files.chain(since).chain(removed).chain(over).chain(moves).chain(moving).collect();
        self.log.rewrite(records.iter())
    }

    /// Gives the names in the root that begin with it, `now`.
    fn follow(&mut self, record: Record, now: u64) -> Vec<Vec<u8>> {
        match record {
            Record::Create(path, rank) => {
                let inside = path.split_first().filter(|(_, rest)| !rest.is_root());
                let begun = inside.and_then(|(name, _)| self.begins(name, now));
                self.files.insert(path, rank);
                return begun.into_iter().collect();
            }
            Record::Rename(from, to) => {
                let begun = self.begins_as(&from, &to, now);
                let moved = self.take_files(&from);
                self.put_files(&to, moved);
                return begun.into_iter().collect();
            }
            Record::Exchange(one, other) => return self.follow_exchange(&one, &other, now),
            Record::Since(name, since) => drop(self.begun.insert(name, since)),
            Record::Forget(path) => {
                self.drop_files(&path);
                if path.names().count() == 1 {
                    self.removed.retain(|name, _| name.strip(&path).is_none());
                    self.moves.remove(&path);
                    self.begun_over.remove(&path);
                }
            }
            Record::Remove(path, id) => drop(self.removed.insert(path, id)),
            Record::ForgetFiles(path) => self.drop_files(&path),
            Record::Begun(path, id) => drop(self.begun_over.insert(path, id)),
            Record::Moving(moving) => self.moving = Some(moving),
            Record::Moved(moved) => {
                if let Some(moving) = self.moving.take().filter(|_| moved) {
                    self.follow_move(&moving);
                }
            }
            Record::Gone(path, id) => {
                if let Some((moves, inner)) = self.moves_at(&path, id) {
                    moves.remove(&inner);
                }
            }
            Record::Stands(path, id, sealed) => {
                if let Some((moves, inner)) = self.moves_at(&path, id) {
                    moves.set(inner, sealed);
                }
            }
        }
        Vec::new()
    }

    fn follow_exchange(&mut self, one: &RelPath, other: &RelPath, now: u64) -> Vec<Vec<u8>> {
        let was = self.begun.clone();
        let mut begun: Vec<Vec<u8>> = Vec::new();
        begun.extend(self.begins_as(one, other, now));
        // As it was before the first of the two moved.
        let (after, there) = (std::mem::replace(&mut self.begun, was), other.split_first());
        begun.extend(self.begins_as(other, one, now));
        if let Some((name, since)) = there.and_then(|(name, _)| after.get_key_value(name)) {
            self.begun.insert(name.clone(), *since);
        }
        let (first, second) = (self.take_files(one), self.take_files(other));
        self.put_files(other, first);
        self.put_files(one, second);
        begun
    }

    fn follow_move(&mut self, Moving { id, from, to, exchange, .. }: &Moving) {
        let (moved, replaced) = (self.take_files(from), self.take_files(to));
        self.put_files(to, moved);
        if *exchange {
            self.put_files(from, replaced);
        }
        let inner = to.split_first().map(|(_, inner)| inner);
        if let (Some((moves, from)), Some(to)) = (self.moves_at(from, *id), inner) {
            moves.rename(&from, &to, *exchange);
        }
    }

    /// Of the dataset that `path` is below, and the path in it.
    fn moves_at(&mut self, path: &RelPath, id: DatasetId) -> Option<(&mut Moves, RelPath)> {
        let (name, inner) = path.split_first().filter(|(_, inner)| !inner.is_root())?;
        let known = self.moves.entry(RelPath::new(name).ok()?).or_insert((id, Moves::new()));
        if known.0 != id {
            *known = (id, Moves::new());
        }
        Some((&mut known.1, inner))
    }

    /// Takes out what is at or below `path`, relative to it.
    fn take_files(&mut self, path: &RelPath) -> Vec<(RelPath, Option<u32>)> {
        let taken: Vec<_> = self.below(path).map(|(path, rank)| (path.clone(), rank)).collect();
        for (file, _) in &taken {
            self.files.remove(file);
        }
        taken.into_iter().filter_map(|(file, rank)| Some((file.strip(path)?, rank))).collect()
    }

    fn put_files(&mut self, path: &RelPath, files: Vec<(RelPath, Option<u32>)>) {
        let placed = files.into_iter().filter_map(|(inner, rank)| Some((path.concat(&inner).ok()?, rank)));
        self.files.extend(placed);
    }

    /// Dataset `name` begins, if it has not.
    fn begins(&mut self, name: &[u8], now: u64) -> Option<Vec<u8>> {
        if self.begun.contains_key(name) && self.has_files(name) {
            return None;
        }
        self.begun.insert(name.to_vec(), now);
        Some(name.to_vec())
    }

    /// What moves takes its beginning with it; what moves into a dataset that has begun does not change when that did.
    fn begins_as(&mut self, from: &RelPath, to: &RelPath, now: u64) -> Option<Vec<u8>> {
        let ((from_top, from_rest), (to_top, to_rest)) = (from.split_first()?, to.split_first()?);
        let goes_on = !to_rest.is_root() && self.has_files(to_top);
        if from_top == to_top || goes_on || self.below(from).next().is_none() {
            return None;
        }
        let whole = from_rest.is_root() && to_rest.is_root();
        let since = self.begun.get(from_top).copied().filter(|_| whole);
        self.begun.insert(to_top.to_vec(), since.unwrap_or(now));
        since.is_none().then(|| to_top.to_vec())
    }

    fn has_files(&self, name: &[u8]) -> bool {
        RelPath::new(name).is_ok_and(|top| self.below(&top).any(|(path, _)| path != &top))
    }

    /// Names in the root that have files, and when the first of them was entered; 0: not known.
    pub(super) fn begun(&mut self) -> Vec<(Vec<u8>, u64)> {
        let begun = std::mem::take(&mut self.begun);
        self.begun = begun.into_iter().filter(|(name, _)| self.has_files(name)).collect();
        self.begun.iter().map(|(name, since)| (name.clone(), *since)).collect()
    }

    fn drop_files(&mut self, path: &RelPath) {
        self.take_files(path);
    }

    /// Entries at or below `path`. In byte order others can come between (`a`, `a.b`, `a/c`).
    fn below<'a>(&'a self, path: &'a RelPath) -> impl Iterator<Item = (&'a RelPath, Option<u32>)> {
        self.files
            .range(path..)
            .take_while(|(file, _)| file.as_bytes().starts_with(path.as_bytes()))
            .filter(|(file, _)| file.strip(path).is_some())
            .map(|(file, rank)| (file, *rank))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> RelPath {
        RelPath::new(text).unwrap()
    }

    #[test]
    fn removed_names_count_for_their_dataset_only() {
        let dir = tempfile::tempdir().unwrap();
        let store = Arc::new(Store::open(dir.path()).unwrap());
        let (mut journal, _) = Journal::load(&store).unwrap();
        journal.removing(&path("ck/a"), DatasetId(3)).unwrap();
        journal.removing(&path("ck/sub"), DatasetId(3)).unwrap();
        journal.removing(&path("ck.b/a"), DatasetId(3)).unwrap();
        journal.changing(&path("ck/a"), Some(1)).unwrap();
        journal.forget_files(&path("ck")).unwrap();
        journal.forget(&path("ck/sub")).unwrap();
        for _ in 0..2 {
            assert_eq!(journal.removed_of(&path("ck"), DatasetId(3)), [path("a"), path("sub")]);
            assert!(journal.removed_of(&path("ck"), DatasetId(4)).is_empty());
            assert!(!journal.has(&path("ck/a")));
            journal = Journal::load(&store).unwrap().0;
        }
        journal.forget(&path("ck")).unwrap();
        assert!(journal.removed_of(&path("ck"), DatasetId(3)).is_empty());
        assert_eq!(journal.removed_of(&path("ck.b"), DatasetId(3)), [path("a")]);
    }

    #[test]
    fn directories_of_a_sealed_dataset_take_along_what_is_below() {
        let dir = tempfile::tempdir().unwrap();
        let store = Arc::new(Store::open(dir.path()).unwrap());
        let (mut journal, _) = Journal::load(&store).unwrap();
        let id = DatasetId(3);
        let moving = |from: &str, to: &str, exchange| Moving {
            id,
            from: path(from),
            to: path(to),
            exchange,
            inode: 7,
        };
        journal.changing(&path("ck/d/new"), Some(1)).unwrap();
        journal.changing(&path("ck/e/stale"), None).unwrap();
        journal.changing(&path("ck/q/other"), Some(2)).unwrap();
        journal.moving(moving("ck/d", "ck/e", false)).unwrap();
        journal.moved(true).unwrap();
        journal.moving(moving("ck/e", "ck/f", false)).unwrap();
        journal.moved(false).unwrap();
        journal.moving(moving("ck/e", "ck/q", true)).unwrap();
        journal.moved(true).unwrap();
        journal.going(&path("ck/e/s"), id).unwrap();
        journal.moving(moving("ck/q", "ck/z", false)).unwrap();
        for _ in 0..2 {
            let moves = journal.moves(&path("ck"), id);
            assert_eq!(moves.present(&path("d/x")), Some(path("q/x")));
            assert_eq!(moves.present(&path("q/x")), Some(path("e/x")));
            assert_eq!(moves.present(&path("q/s/x")), None);
            assert!(journal.moves(&path("ck"), DatasetId(4)).is_empty());
            assert_eq!(journal.files_of(&path("ck")), [path("e/other"), path("q/new")]);
            assert_eq!(journal.is_moving(), Some(&moving("ck/q", "ck/z", false)), "nobody knows yet");
            journal = Journal::load(&store).unwrap().0;
        }
        journal.moved(true).unwrap();
        assert_eq!(journal.moves(&path("ck"), id).present(&path("d/x")), Some(path("z/x")));
        journal.forget_files(&path("ck")).unwrap();
        assert!(journal.is_rearranged(&path("ck"), id) && journal.files_of(&path("ck")).is_empty());
        journal.forget(&path("ck")).unwrap();
        assert!(!Journal::load(&store).unwrap().0.is_rearranged(&path("ck"), id));
    }

    #[test]
    fn entries_survive_renames_and_are_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let store = Arc::new(Store::open(dir.path()).unwrap());
        let (mut journal, _) = Journal::load(&store).unwrap();
        for (file, rank) in [("a/1", 1), ("a/d/2", 2), ("a.b/3", 3), ("loose", 4), ("z/5", 5)] {
            journal.creating(&path(file), Some(rank)).unwrap();
        }
        journal.renamed(&path("a"), &path("b")).unwrap();
        journal.forget(&path("z")).unwrap();
        for _ in 0..2 {
            assert_eq!(journal.rank_of(&path("b/1")), Some(1));
            assert_eq!(journal.rank_of(&path("b/d/2")), Some(2));
            assert_eq!(journal.rank_of(&path("a/1")), None);
            assert_eq!(journal.rank_of(&path("a.b/3")), Some(3));
            assert_eq!(journal.rank_of(&path("z/5")), None);
            assert_eq!(journal.names(), [b"a.b".to_vec(), b"b".to_vec()]);
            let begun: Vec<_> = journal.begun().into_iter().map(|(name, _)| name).collect();
            assert_eq!(begun, journal.names());
            journal = Journal::load(&store).unwrap().0;
        }
        journal.forget(&RelPath::root()).unwrap();
        assert!(Journal::load(&store).unwrap().0.names().is_empty());
    }

    #[test]
    fn when_datasets_began_outlives_the_worker() {
        let dir = tempfile::tempdir().unwrap();
        let store = Arc::new(Store::open(dir.path()).unwrap());
        let (mut journal, _) = Journal::load(&store).unwrap();
        journal.creating(&path("a/1"), None).unwrap();
        journal.creating(&path("b/1"), None).unwrap();
        let old = journal.begun();
        assert!(old.iter().all(|(_, since)| *since > 0));
        journal.creating(&path("a/2"), None).unwrap();
        journal.renamed(&path("b"), &path("c")).unwrap();
        journal.renamed(&path("a/1"), &path("d/1")).unwrap();
        // All its files go, and it begins again.
        journal.creating(&path("e/1"), None).unwrap();
        journal.forget(&path("e/1")).unwrap();
        let between = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        journal.creating(&path("e/2"), None).unwrap();
        for (old, new) in [("v/1", "w/1"), ("v/d/2", "w/d/3")] {
            journal.creating(&path(old), Some(1)).unwrap();
            journal.creating(&path(new), Some(2)).unwrap();
        }
        let times = |journal: &mut Journal| {
            let begun = journal.begun();
            [b"v", b"w"].map(|name| begun.iter().find(|(begun, _)| begun == name).unwrap().1)
        };
        let [v, w] = times(&mut journal);
        journal.exchanged(&path("v"), &path("w")).unwrap();
        assert_eq!(times(&mut journal), [w, v]);
        journal.exchanged(&path("v/d"), &path("w/d")).unwrap();
        assert_eq!(times(&mut journal), [w, v]);
        let files = |name| journal.files_of(&path(name));
        assert_eq!((files("v"), files("w")), (vec![path("1"), path("d/2")], vec![path("1"), path("d/3")]));
        assert_eq!((journal.rank_of(&path("v/1")), journal.rank_of(&path("v/d/2"))), (Some(2), Some(1)));
        let now = journal.begun();
        let since = |name: &[u8]| now.iter().find(|(begun, _)| begun == name).unwrap().1;
        assert_eq!((since(b"a"), since(b"c")), (old[0].1, old[1].1));
        assert!(since(b"d") > old[1].1 && u128::from(since(b"e")) >= between.as_micros());
        assert_eq!(Journal::load(&store).unwrap().0.begun(), now);
        let log = &store.path().join(NAME);
        let bytes = std::fs::metadata(log).unwrap().len();
        journal.compact = 0;
        for time in 0..=100_000 {
            assert!(time < 100_000, "it is not written anew");
            journal.creating(&path(&format!("{}/{time}", "x".repeat(200))), None).unwrap();
            journal.forget(&path("x".repeat(200).as_str())).unwrap();
            if time > 1 && std::fs::metadata(log).unwrap().len() < bytes + 1000 {
                break;
            }
        }
        assert_eq!(Journal::load(&store).unwrap().0.begun(), now, "also when it was written anew");
    }

    #[test]
    fn long_names_leave_room_for_what_counts() {
        let dir = tempfile::tempdir().unwrap();
        let store = Arc::new(Store::open(dir.path()).unwrap());
        let (mut journal, _) = Journal::load(&store).unwrap();
        let long = |n: u32| path(&format!("ck/{}/{n}", vec!["x".repeat(250); 15].join("/")));
        for n in 0..18_000 {
            journal.creating(&long(n), Some(n)).unwrap();
        }
        assert_eq!(journal.rank_of(&long(3)), Some(3));
        assert_eq!(journal.rank_of(&long(17_999)), None, "it has no entry");
        journal.changing(&path("ck/counts"), Some(1)).unwrap();
        let bytes = std::fs::metadata(dir.path().join(NAME)).unwrap().len();
        assert!((ENTRIES_BYTES_MAX..ENTRIES_BYTES_MAX + 20_000).contains(&bytes), "{bytes}");
        assert!(Journal::load(&store).unwrap().0.has(&path("ck/counts")));
    }
}

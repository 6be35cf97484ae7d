//! Which program rank creates which file, in an append-only file: an entry is there before its file
//! is, and the 10,000th costs what the 10th did. Entries are folded into the filemap when their
//! dataset is sealed.
//!
//! In the next generation of a sealed dataset an entry means that the file was made or changed
//! here; a name that was removed has an entry too, which counts for that one sealed dataset only.
//! What programs of this node have removed, and what directory operations have removed on all
//! nodes, are two things: other nodes see the first until the next seal.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::dataset::Names;
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
    /// What is at or below it is in the filemap now, or gone; of a whole dataset its removed names
    /// too.
    Forget(RelPath),
    /// A name of this sealed dataset is about to be removed.
    Remove(RelPath, DatasetId),
    /// As [`Record::Forget`], but removed names stay.
    ForgetFiles(RelPath),
    /// What was sealed at this path of a sealed dataset is gone everywhere.
    Gone(RelPath, DatasetId),
    /// The next generation over that sealed dataset has begun in this directory, and what was
    /// removed before is out of it.
    Begun(RelPath, DatasetId),
    /// Two directories exchanged their names.
    Exchange(RelPath, RelPath),
    /// The first file of dataset NAME was made, or its first sealed name removed, then;
    /// microseconds since 1970.
    Since(Vec<u8>, u64),
}

/// See the module.
pub(super) struct Journal {
    log: Log<Record>,
    files: BTreeMap<RelPath, Option<u32>>,
    removed: BTreeMap<RelPath, DatasetId>,
    /// By the dataset's directory: names of that sealed dataset that are gone everywhere.
    gone: BTreeMap<RelPath, (DatasetId, Names)>,
    begun_over: BTreeMap<RelPath, DatasetId>,
    /// When the first file of each name in the checkpoint path was entered, or the first sealed one
    /// removed, microseconds since 1970; 0: not known.
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
        let (gone, begun_over) = (BTreeMap::new(), BTreeMap::new());
        let mut journal = Self { log, files, removed, gone, begun_over, begun, compact: 0, wasted: true };
        for record in records {
            journal.follow(record, 0);
        }
        Ok((journal, torn))
    }

    /// `path` (relative to the checkpoint path) is about to be created by a process of `rank`.
    /// Where there is no room for its entry there is none for the file.
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

    /// Names of sealed dataset `id` that were removed here, relative to its directory `name`.
    pub(super) fn removed_of(&self, name: &RelPath, id: DatasetId) -> Vec<RelPath> {
        let below = self.removed.iter().filter(|(_, of)| **of == id);
        below.filter_map(|(path, _)| path.strip(name)).collect()
    }

    /// Names of sealed dataset `id` that are gone everywhere; `name` is its directory.
    pub(super) fn gone(&self, name: &RelPath, id: DatasetId) -> &Names {
        static NONE: Names = Names::new();
        self.gone.get(name).filter(|(of, _)| *of == id).map_or(&NONE, |(_, gone)| gone)
    }

    /// Something of sealed dataset `id` was removed.
    pub(super) fn has_removed(&self, name: &RelPath, id: DatasetId) -> bool {
        !self.gone(name, id).is_empty() || !self.removed_of(name, id).is_empty()
    }

    /// What was sealed at `path` in dataset `id` is about to go everywhere.
    pub(super) fn going(&mut self, path: &RelPath, id: DatasetId) -> io::Result<()> {
        self.add(Record::Gone(path.clone(), id))
    }

    /// The next generation over sealed dataset `id` has begun in `name`, and what was removed
    /// before is out of the tree.
    pub(super) fn begun_over(&mut self, name: &RelPath, id: DatasetId) -> io::Result<()> {
        self.add(Record::Begun(name.clone(), id))
    }

    pub(super) fn has_begun_over(&self, name: &RelPath, id: DatasetId) -> bool {
        self.begun_over.get(name) == Some(&id)
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
            self.gone.clear();
            self.begun_over.clear();
            self.begun.clear();
            self.compact = 0;
            return self.log.clear();
        }
        let removed = self.removed.keys().chain(self.gone.keys()).chain(self.begun_over.keys());
        let removed = removed.into_iter().any(|name| name.strip(path).is_some());
        if self.below(path).next().is_none() && !removed {
            return Ok(());
        }
        self.add(Record::Forget(path.clone()))
    }

    /// Makes entries that are relative to `former` relative to `now`, another checkpoint path. What
    /// is not below that is no dataset's any more, and is forgotten. For a node that has no sealed
    /// dataset, so nothing else is entered.
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

    /// Names directly in the checkpoint path that have files.
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
        let gone = self.gone.iter().flat_map(|(top, (id, gone))| {
            gone.iter().filter_map(|path| Some(Record::Gone(top.concat(path).ok()?, *id)))
        });
        let since = since.into_iter().map(|(top, since)| Record::Since(top, since));
        let over = self.begun_over.iter().map(|(top, id)| Record::Begun(top.clone(), *id));
        let records: Vec<Record> = files.chain(removed).chain(since).chain(over).chain(gone).collect();
        self.log.rewrite(records.iter())
    }

    /// Applies a record. Returns the datasets that begin with that record, at `now`.
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
                    self.gone.remove(&path);
                    self.begun_over.remove(&path);
                }
            }
            Record::Remove(path, id) => {
                // A generation may begin with that, too.
                let inside = path.split_first().filter(|(_, rest)| !rest.is_root());
                let begun = inside.and_then(|(name, _)| self.begins(name, now));
                self.removed.insert(path, id);
                return begun.into_iter().collect();
            }
            Record::ForgetFiles(path) => self.drop_files(&path),
            Record::Begun(path, id) => drop(self.begun_over.insert(path, id)),
            Record::Gone(path, id) => self.follow_gone(&path, id),
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

    fn follow_gone(&mut self, path: &RelPath, id: DatasetId) {
        let Some((name, inner)) = path.split_first().filter(|(_, inner)| !inner.is_root()) else { return };
        let Ok(top) = RelPath::new(name) else { return };
        let known = self.gone.entry(top).or_insert((id, Names::new()));
        if known.0 != id {
            *known = (id, Names::new());
        }
        known.1.insert(inner);
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
        if self.begun.contains_key(name) && self.has_begun(name) {
            return None;
        }
        self.begun.insert(name.to_vec(), now);
        Some(name.to_vec())
    }

    /// What moves takes its beginning with it; what moves into a dataset that has begun does not
    /// change when that did.
    fn begins_as(&mut self, from: &RelPath, to: &RelPath, now: u64) -> Option<Vec<u8>> {
        let ((from_top, from_rest), (to_top, to_rest)) = (from.split_first()?, to.split_first()?);
        let goes_on = !to_rest.is_root() && self.has_begun(to_top);
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

    /// Files were made in dataset `name`, or sealed ones removed.
    fn has_begun(&self, name: &[u8]) -> bool {
        let has_removed = |top: RelPath| {
            let removed = self.removed.range(&top..).map(|(path, _)| path);
            let mut near = removed.take_while(|path| path.as_bytes().starts_with(top.as_bytes()));
            near.any(|path| path.strip(&top).is_some())
        };
        self.has_files(name) || RelPath::new(name).is_ok_and(has_removed)
    }

    /// Names in the checkpoint path that have begun, and when; 0: not known.
    pub(super) fn begun(&mut self) -> Vec<(Vec<u8>, u64)> {
        let begun = std::mem::take(&mut self.begun);
        self.begun = begun.into_iter().filter(|(name, _)| self.has_begun(name)).collect();
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
    fn what_is_gone_everywhere_counts_for_its_dataset_only() {
        let dir = tempfile::tempdir().unwrap();
        let store = Arc::new(Store::open(dir.path()).unwrap());
        let (mut journal, _) = Journal::load(&store).unwrap();
        let id = DatasetId(3);
        journal.changing(&path("ck/d/new"), Some(1)).unwrap();
        journal.going(&path("ck/d/s"), id).unwrap();
        journal.going(&path("ck.b/d"), id).unwrap();
        journal.forget_files(&path("ck")).unwrap();
        for time in 0..3 {
            let gone = journal.gone(&path("ck"), id);
            assert!(gone.cover(&path("d/s/x")) && !gone.cover(&path("d/x")));
            assert!(journal.gone(&path("ck"), DatasetId(4)).is_empty());
            assert!(journal.has_removed(&path("ck"), id) && journal.files_of(&path("ck")).is_empty());
            journal = Journal::load(&store).unwrap().0;
            if time == 1 {
                journal.rewrite().unwrap();
            }
        }
        journal.forget(&path("ck")).unwrap();
        journal.going(&path("ck.b/q"), DatasetId(4)).unwrap();
        let journal = Journal::load(&store).unwrap().0;
        assert!(!journal.has_removed(&path("ck"), id) && !journal.has_removed(&path("ck.b"), id));
        assert!(journal.gone(&path("ck.b"), DatasetId(4)).cover(&path("q")));
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
        // A generation begins with a removal as well; what is made later does not change that.
        journal.removing(&path("f.g/1"), DatasetId(1)).unwrap();
        journal.removing(&path("f/1"), DatasetId(2)).unwrap();
        let since = |journal: &mut Journal| journal.begun().into_iter().find(|(name, _)| name == b"f");
        let removed = since(&mut journal).unwrap();
        assert!(u128::from(removed.1) >= between.as_micros());
        journal.creating(&path("f/2"), None).unwrap();
        assert_eq!(since(&mut journal), Some(removed));
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

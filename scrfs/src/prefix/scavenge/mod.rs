//! What nodes save of a dataset when their job has ended without its coordinators:
//! `<prefix>/.scr/scavenge.<epoch>.<id>/`. In reading order: this file (what is in it, and a node's
//! part), `adopt` (it becomes a dataset of the prefix), `again` (others do the same at once),
//! `presume` and `audit` (what has gone bad by then), `rebuild` (members whose nodes are lost, or
//! whose bytes are bad), `pointers`.
//!
//! | name | what |
//! |---|---|
//! | `dataset/` | files under the names that the program gave them; it becomes `<prefix>/<dataset name>` |
//! | `<m>_of_<n>_in_<g>.xor`, `.rs`, `.partner` | redundancy files, those of several encodings if a node has them |
//! | `catalog.<revision>` | COMPLETE and the catalog, in the daemon's form; the highest revision counts |
//! | `pointers` | the pointer files that it is presented with |
//! | `member.<m>` | [`MemberRecord`]: what belongs to this member is here, whole and checked |
//! | `bad.<m>` | bytes of this member were found bad since: it counts as missing |
//! | `publisher` | the node that is about to publish it |
//! | `copy.*` | on its way |
//!
//! Everything is written under a name of its own and gets its place by a rename once it is whole
//! and on storage. So nodes and publishers may work side by side: what is in place is never written
//! again. A node that is late finds no `dataset/` any more when others have published, so it
//! changes nothing in the prefix.
//!
//! Fault points: `scavenge.begun`, `scavenge.catalog`, `scavenge.member`, `scavenge.rebuilt`,
//! `scavenge.whole`, `scavenge.swap`, `scavenge.published`, and those of a flush.

mod adopt;
mod again;
pub(super) mod audit;
mod pointers;
mod presume;
mod rebuild;

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use crate::control::loose::Age;
use crate::dataset::{Catalog, EntryKind, FileCopy};
use crate::hash::{self, FieldError, FieldProblem, Hash, NulInText, Text};
use crate::ids::{DatasetId, Epoch, Member};
use crate::path::RelPath;
use crate::plain;
use crate::record::catalog_file;
use crate::record::{RecordError, RedundancyFileName};
use crate::store::beneath;

use super::directory::{PfsError, Prefix, Result, SYNC, exists, read_bounded, remove_file, replace_by};
use super::{Known, StoredDataset, index, strangers};

pub use self::adopt::{Adoption, By, Outcome, Progress, Tell, adopt, adopt_all};

/// Begins the directory's name.
pub(super) const WORD: &str = "scavenge.";
/// The dataset itself, below the directory.
pub const DATASET: &str = "dataset";
/// Begins the catalogs' names.
const CATALOG: &str = "catalog.";
const POINTERS: &str = "pointers";
const PUBLISHER: &str = "publisher";
/// Begins the names of the marks that a member's bytes are bad.
const BAD: &str = "bad.";

/// Where the nodes put their parts of one dataset.
#[derive(Debug, Clone)]
pub struct Collection {
    age: Age,
    directory: PathBuf,
}

/// Whether a node has to save its part.
#[derive(Debug, Clone)]
pub enum Begun {
    /// There.
    Collect(Collection),
    /// The dataset is on the PFS.
    Stored,
    /// A newer dataset is: nobody goes on from this one.
    Newer(StoredDataset),
}

/// A member's redundancy file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedundancyCopy {
    /// [`crate::record::RedundancyFileName`].
    pub name: RelPath,
    /// Bytes.
    pub size: u64,
    /// CRC32 of them.
    pub crc: u32,
}

impl RedundancyCopy {
    /// [`crate::dataset::Layout::encoding`], which the name tells.
    fn encoding(&self) -> Option<u32> {
        RedundancyFileName::parse(self.name.as_bytes()).map(|name| name.encoding)
    }
}

/// `member.<m>`: what this member has of the dataset is in the directory, whole and checked. A hash
/// file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberRecord {
    /// Of which dataset.
    pub age: Age,
    /// Which member.
    pub member: Member,
    /// The node that saved it, or rebuilt it.
    pub host: String,
    /// [`digest`] of its files.
    pub digest: u32,
    /// Its redundancy files, one for each encoding that the node has; none if the member is alone
    /// in its set, or was rebuilt.
    pub redundancy: Vec<RedundancyCopy>,
}

/// What names, sizes and CRCs of a member's files are told apart by: the CRC32 of all of them, in
/// the order of the paths.
pub fn digest<'a>(files: impl Iterator<Item = (&'a RelPath, &'a FileCopy)>) -> u32 {
    let mut files: Vec<_> = files.collect();
    files.sort_by_key(|(path, _)| *path);
    let mut crc = crc32fast::Hasher::new();
    for (path, copy) in files {
        crc.update(path.as_bytes());
        crc.update(&[0]);
        crc.update(&copy.size.to_be_bytes());
        crc.update(&copy.crc.to_be_bytes());
    }
    crc.finalize()
}

/// Datasets that nodes have saved, or begun to, newest first.
///
/// # Errors
/// `.scr` cannot be listed.
pub fn ages(prefix: &Prefix) -> Result<Vec<Age>> {
    let mut ages = prefix.named(WORD, |rest| {
        let (epoch, id) = rest.split_once('.')?;
        Some(Age { epoch: Epoch(epoch.parse().ok()?), id: DatasetId(id.parse().ok()?) })
    })?;
    ages.reverse();
    Ok(ages)
}

impl Collection {
    pub(super) fn of(prefix: &Prefix, age: Age) -> Self {
        Self { age, directory: prefix.state(format!("{WORD}{age}")) }
    }

    /// Makes the directory, unless there is nothing to be saved in it.
    ///
    /// # Errors
    /// The prefix cannot be read or written.
    pub fn begin(prefix: &Prefix, dataset: &Known) -> Result<Begun> {
        prefix.is_ours()?;
        prefix.make()?;
        match standing(&index::survey(prefix)?, dataset) {
            Standing::Stored => return Ok(Begun::Stored),
            Standing::Older(newer) => return Ok(Begun::Newer(newer)),
            Standing::Newest => {}
        }
        let this = Self::of(prefix, dataset.age);
        for directory in [&this.directory, &this.directory.join(DATASET)] {
            match plain::make_directory(directory) {
                Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(PfsError::io(directory, "mkdir")(e));
                }
                _ => {}
            }
            strangers::look(directory).map_err(PfsError::io(directory, "look at"))?;
        }
        prefix.step("scavenge.begun")?;
        Ok(Begun::Collect(this))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.directory
    }

    /// Whether the member's part is there already, not found bad since, with the redundancy files
    /// of these names: a node that had the member before may have saved it without.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn has(&self, member: Member, digest: u32, redundancy: &[RelPath]) -> Result<bool> {
        let has =
            |record: &MemberRecord, name: &RelPath| record.redundancy.iter().any(|copy| copy.name == *name);
        let is_there = self.record_of(member)?.is_some_and(|record| {
            record.digest == digest && redundancy.iter().all(|name| has(&record, name))
        });
        Ok(is_there && !exists(&self.bad_path(member))?)
    }

    /// The member's part is there, and on storage.
    ///
    /// # Errors
    /// This cannot be recorded.
    pub fn record(&self, prefix: &Prefix, record: &MemberRecord) -> Result<()> {
        prefix.step("scavenge.member")?;
        let path = self.record_path(record.member);
        let tree = record.encode().map_err(|e| PfsError::content(&path, e.to_string()))?;
        match put(prefix, &path, &hash::encode(&tree)) {
            // It was there, and who saw all parts then has taken them away to publish them.
            Err(PfsError::Io { path: gone, step: SYNC, source })
                if gone == self.directory && source.kind() == io::ErrorKind::NotFound =>
            {
                Ok(())
            }
            Ok(()) => remove_file(&self.bad_path(record.member)),
            failed => failed,
        }
    }

    /// A person, or the next start, need not read all of it to know.
    fn mark_bad(&self, prefix: &Prefix, member: Member) -> Result<()> {
        put(prefix, &self.bad_path(member), b"")
    }

    /// Members of which bytes were found bad, and that have not been saved again or rebuilt.
    fn bad(&self) -> Result<BTreeSet<Member>> {
        let numbers = self.numbered(BAD)?.into_iter().map(Member);
        // A stranger's mark is none.
        let is_ours = |member: &Member| strangers::look(&self.bad_path(*member)).is_ok();
        Ok(numbers.filter(is_ours).collect())
    }

    /// COMPLETE is recorded by the node that says so, with this catalog.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn put_catalog(&self, prefix: &Prefix, catalog: &Catalog) -> Result<()> {
        // One that is damaged is replaced.
        let path = self.catalog_path(catalog.revision);
        if matches!(self.read_catalog(&path), Ok(Some(_))) {
            return Ok(());
        }
        prefix.step("scavenge.catalog")?;
        let record = catalog_file::encode(catalog).map_err(|e| PfsError::content(&path, e.to_string()))?;
        put(prefix, &path, &record)
    }

    fn record_path(&self, member: Member) -> PathBuf {
        self.directory.join(format!("member.{member}"))
    }

    fn bad_path(&self, member: Member) -> PathBuf {
        self.directory.join(format!("{BAD}{member}"))
    }

    fn catalog_path(&self, revision: u32) -> PathBuf {
        self.directory.join(format!("{CATALOG}{revision}"))
    }

    /// The catalog that counts, if one of this dataset is there: the highest revision that can be
    /// read.
    fn catalog(&self) -> Result<Option<Catalog>> {
        let mut revisions = self.numbered(CATALOG)?;
        revisions.sort_unstable_by_key(|revision| std::cmp::Reverse(*revision));
        let mut damaged = None;
        for revision in revisions {
            match self.read_catalog(&self.catalog_path(revision)) {
                Ok(Some(catalog)) => return Ok(Some(catalog)),
                Ok(None) => {}
                Err(error) => {
                    tracing::warn!(%error, "a catalog does not count");
                    damaged.get_or_insert(error);
                }
            }
        }
        damaged.map_or(Ok(None), Err)
    }

    /// The numbers behind this word of names in the directory; none where there is no directory.
    fn numbered(&self, word: &str) -> Result<Vec<u32>> {
        let listed = match fs::read_dir(&self.directory) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            listed => listed.map_err(PfsError::io(&self.directory, "list"))?,
        };
        let mut numbers = Vec::new();
        for entry in listed {
            let name = entry.map_err(PfsError::io(&self.directory, "list"))?.file_name();
            numbers.extend(name.to_str().and_then(|name| name.strip_prefix(word)?.parse::<u32>().ok()));
        }
        Ok(numbers)
    }

    fn read_catalog(&self, path: &Path) -> Result<Option<Catalog>> {
        let Some(bytes) = read_bounded(path)? else { return Ok(None) };
        let catalog = catalog_file::decode(&bytes).map_err(|e| PfsError::content(path, e.to_string()))?;
        if (catalog.epoch, catalog.id) != (self.age.epoch, self.age.id) {
            return Err(PfsError::content(path, "is of another dataset"));
        }
        Ok(Some(catalog))
    }

    /// `None` where there is none that is sound, so that it is made anew.
    fn record_of(&self, member: Member) -> Result<Option<MemberRecord>> {
        let path = self.record_path(member);
        let read = read_tree(&path).and_then(|tree| {
            let decode = |tree: Hash| MemberRecord::decode(&tree);
            tree.map(decode).transpose().map_err(|e| PfsError::content(&path, e.to_string()))
        });
        match read {
            Ok(record) => Ok(record.filter(|found| found.age == self.age && found.member == member)),
            Err(error @ (PfsError::Record { .. } | PfsError::Content { .. })) => {
                tracing::warn!(%error, "a member's record does not count");
                Ok(None)
            }
            Err(PfsError::Io { path, step, source }) if is_not_there(&source, &path) => {
                tracing::warn!(error = %source, "{}: {step}: no record of a member", path.display());
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// For each member its record, if its files are there with their sizes. Of its redundancy files
    /// only that of the catalog's encoding is in it. `goes` is told for each file.
    pub(super) fn members(&self, catalog: &Catalog, goes: &dyn Fn()) -> Result<Vec<Option<MemberRecord>>> {
        let numbers = (0..).zip(&catalog.layout.members).map(|(number, _)| Member(number));
        let dataset = self.directory.join(DATASET);
        let top = match open(&dataset) {
            // Nothing was saved yet, or another node publishes at this moment.
            Err(PfsError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                return Ok(numbers.map(|_| None).collect());
            }
            top => top?,
        };
        let whole = |(member, files): (Member, Vec<(&RelPath, &FileCopy)>)| {
            let of = digest(files.iter().copied());
            let Some(mut record) = self.record_of(member)?.filter(|record| record.digest == of) else {
                return Ok(None);
            };
            record.redundancy.retain(|copy| copy.encoding() == Some(catalog.layout.encoding));
            Ok(are_there(&top, &dataset, &files, goes)?.then_some(record))
        };
        numbers.zip(files_of_members(catalog)).map(whole).collect()
    }
}

/// Each member's files.
fn files_of_members(catalog: &Catalog) -> Vec<Vec<(&RelPath, &FileCopy)>> {
    let mut files = vec![Vec::new(); catalog.layout.members.len()];
    for entry in &catalog.entries {
        if let EntryKind::File(copy) = &entry.kind
            && let Some(of) = files.get_mut(copy.member.0 as usize)
        {
            of.push((&entry.path, copy));
        }
    }
    files
}

/// These files are in `dataset`, which is `top`, with their sizes.
fn are_there(
    top: &OwnedFd,
    dataset: &Path,
    files: &[(&RelPath, &FileCopy)],
    goes: &dyn Fn(),
) -> Result<bool> {
    for (path, copy) in files {
        goes();
        let at = || dataset.join(path.as_path());
        match size_of(top, path) {
            Ok(size) if size == copy.size => {}
            Ok(_) => return Ok(false),
            Err(e) if is_not_there(&e, &at()) => return Ok(false),
            Err(e) => return Err(PfsError::io(&at(), "open")(e)),
        }
    }
    Ok(true)
}

/// What the index says of a dataset.
enum Standing {
    /// It is in the prefix.
    Stored,
    /// It is not, and the newest that is is newer.
    Older(StoredDataset),
    Newest,
}

/// In a prefix that other jobs have used, another dataset may have its age.
fn standing(stored: &[StoredDataset], known: &Known) -> Standing {
    let of = |dataset: &StoredDataset| Age { epoch: dataset.epoch, id: dataset.id };
    let usable = || stored.iter().filter(|dataset| dataset.usable);
    if usable().any(|dataset| dataset.may_be(known)) {
        return Standing::Stored;
    }
    match usable().find(|dataset| of(dataset) > known.age) {
        Some(newer) => Standing::Older(newer.clone()),
        None => Standing::Newest,
    }
}

fn read_tree(path: &Path) -> Result<Option<Hash>> {
    let Some(bytes) = read_bounded(path)? else { return Ok(None) };
    let decoded = hash::decode_file(&bytes);
    decoded
        .map(Some)
        .map_err(|error| PfsError::Record { path: path.to_owned(), source: RecordError::Format(error) })
}

/// Positions of the members of a set that cannot help to rebuild others: they are not there, or
/// have been rebuilt, without their redundancy data.
fn gone(set: &[Member], records: &[Option<MemberRecord>]) -> Vec<usize> {
    let redundancy = |member: &Member| records.get(member.0 as usize)?.as_ref()?.redundancy.first();
    (0..set.len()).filter(|at| redundancy(&set[*at]).is_none()).collect()
}

/// No record is there that a node has saved: its bytes have gone bad, or something else has its
/// name.
fn is_lost(error: &PfsError) -> bool {
    match error {
        PfsError::Content { .. } | PfsError::Unusable { .. } => true,
        PfsError::Io { path, source, .. } => is_not_there(source, path),
        _ => false,
    }
}

/// What has this name, if anything, is no file that a node has saved.
fn is_not_there(error: &io::Error, path: &Path) -> bool {
    use io::ErrorKind::{InvalidData, InvalidInput, IsADirectory, NotADirectory, NotFound, PermissionDenied};
    match error.kind() {
        NotFound | NotADirectory | IsADirectory | InvalidInput | InvalidData => true,
        // Of the user's own the PFS may be to blame.
        PermissionDenied if error.raw_os_error().is_some() => {
            plain::look(path).is_ok_and(|there| plain::is_theirs(&there))
        }
        _ => error.raw_os_error() == Some(libc::ELOOP) || strangers::is_of_strangers(error),
    }
}

fn size_of(top: &OwnedFd, path: &RelPath) -> io::Result<u64> {
    let file = beneath::open_file(top.as_fd(), path)?;
    Ok(rustix::fs::fstat(&file)?.st_size.cast_unsigned())
}

fn open(directory: &Path) -> Result<OwnedFd> {
    use rustix::fs::{Mode, OFlags};
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(rustix::fs::CWD, directory, flags, Mode::empty())
        .map_err(|e| PfsError::io(directory, "open")(e.into()))
}

impl MemberRecord {
    fn encode(&self) -> std::result::Result<Hash, NulInText> {
        let mut tree = Hash::new();
        tree.set_value("EPOCH", self.age.epoch.0);
        tree.set_value("ID", self.age.id.0);
        tree.set_value("MEMBER", self.member.0);
        tree.set_value("HOST", Text::new(self.host.clone())?);
        tree.set_value("DIGEST", self.digest);
        for copy in &self.redundancy {
            let below = tree.child("REDUNDANCY").child(Text::from(&copy.name));
            below.set_value("SIZE", copy.size);
            below.set_value("CRC", copy.crc);
        }
        Ok(tree)
    }

    fn decode(tree: &Hash) -> std::result::Result<Self, FieldError> {
        fn need<T>(
            found: std::result::Result<Option<T>, FieldError>,
            key: &'static str,
        ) -> std::result::Result<T, FieldError> {
            found?.ok_or_else(|| FieldError::at(key, FieldProblem::Missing))
        }
        let redundancy = |(name, below): (&Text, &Hash)| {
            let wrong =
                || FieldError::at("REDUNDANCY", FieldProblem::Other("is no name of a redundancy file"));
            RedundancyFileName::parse(name.as_bytes()).ok_or_else(wrong)?;
            Ok(RedundancyCopy {
                name: RelPath::new(name.as_bytes()).map_err(|_| wrong())?,
                size: need(below.number("SIZE"), "SIZE")?,
                crc: need(below.number("CRC"), "CRC")?,
            })
        };
        let host = need(tree.text("HOST"), "HOST")?;
        Ok(Self {
            age: Age {
                epoch: Epoch(need(tree.number("EPOCH"), "EPOCH")?),
                id: DatasetId(need(tree.number("ID"), "ID")?),
            },
            member: Member(need(tree.number("MEMBER"), "MEMBER")?),
            host: String::from_utf8_lossy(host.as_bytes()).into_owned(),
            digest: need(tree.number("DIGEST"), "DIGEST")?,
            redundancy: tree
                .get("REDUNDANCY")
                .into_iter()
                .flat_map(Hash::iter)
                .map(redundancy)
                .collect::<std::result::Result<_, _>>()?,
        })
    }
}

/// Several nodes may write the same file at a time. A directory in its place is nobody's who saves.
fn put(prefix: &Prefix, path: &Path, bytes: &[u8]) -> Result<()> {
    match replace_by(path, bytes, &prefix.token()) {
        Err(PfsError::Io { source, .. }) if source.kind() == io::ErrorKind::IsADirectory => {
            let removed = fs::remove_dir(path);
            // Whose it is, if nobody saves under this name.
            removed.or_else(|e| strangers::check(path).and(Err(e))).map_err(PfsError::io(path, "replace"))?;
            replace_by(path, bytes, &prefix.token())
        }
        put => put,
    }
}

//! Pointer files in the prefix: `.scr/loose/<epoch>.<id>.<epoch>.<serial>/`, which names the
//! dataset that they are presented with and the newest version that was considered. In it `files/`
//! has them as programs made them, and `versions` has what a file system cannot keep, with sizes
//! and CRCs. A set appears whole, by a rename; then former ones of its dataset go.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::control::loose::{Age, LooseKind, LooseSet, LooseStamp};
use crate::ids::{DatasetId, Epoch};
use crate::path::RelPath;
use crate::plain;

use super::directory::{
    PfsError, Prefix, Result, read_bounded, remove_tree, rename, sync_directory, sync_parent,
};
use super::index;
use super::strangers;

/// The bytes before the body of `versions`: CRC32 of the body, big-endian.
const HEAD: usize = 4;
const RECORD: &str = "versions";
const FILES: &str = "files";
/// Begins the name of a set on its way.
const NEW: &str = "new.";

fn directory(prefix: &Prefix) -> PathBuf {
    prefix.state("loose")
}

/// Fails where a stranger has made it.
fn check(prefix: &Prefix) -> Result<()> {
    let path = directory(prefix);
    match strangers::look(&path) {
        Err(error) if strangers::is_of_strangers(&error) => Err(PfsError::io(&path, "look at")(error)),
        _ => Ok(()),
    }
}

/// What a set's directory is called.
fn named(age: Age, as_of: LooseStamp) -> String {
    format!("{age}.{}.{}", as_of.epoch, as_of.serial)
}

fn parse(name: &str) -> Option<(Age, LooseStamp)> {
    let numbers: Vec<u64> = name.split('.').map(str::parse).collect::<std::result::Result<_, _>>().ok()?;
    let [epoch, id, at, serial] = numbers[..] else { return None };
    let age = Age { epoch: Epoch(epoch), id: DatasetId(id) };
    Some((age, LooseStamp { epoch: Epoch(at), serial }))
}

/// All sets in the prefix, newest first.
fn sets(prefix: &Prefix) -> Result<Vec<(Age, LooseStamp)>> {
    let path = directory(prefix);
    // A restart cannot wait for it to go.
    if let Err(error) = check(prefix) {
        tracing::warn!(%error, "pointer files are passed over");
        return Ok(Vec::new());
    }
    let names = match fs::read_dir(&path) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(PfsError::io(&path, "list"))?,
    };
    let mut found = Vec::new();
    for name in names {
        let name = name.map_err(PfsError::io(&path, "list"))?;
        let is_theirs = strangers::look(&name.path()).is_err_and(|e| strangers::is_of_strangers(&e));
        found.extend(name.file_name().to_str().and_then(parse).filter(|_| !is_theirs));
    }
    found.sort_unstable_by(|a, b| b.cmp(a));
    Ok(found)
}

/// Keeps a set.
pub(super) fn put(prefix: &Prefix, set: &LooseSet) -> Result<()> {
    let path = directory(prefix);
    prefix.make()?;
    check(prefix)?;
    match plain::make_directory(&path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => {
            return Err(PfsError::io(&path, "mkdir")(error));
        }
        _ => {}
    }
    let place = path.join(named(set.age, set.as_of));
    let is_there = strangers::has(&place).map_err(PfsError::io(&place, "look at"))?;
    let is_damaged = is_there && matches!(read_set(&place, set.age), Err(PfsError::Content { .. }));
    if is_damaged {
        remove_tree(&place)?;
    }
    if !is_there || is_damaged {
        // Two that publish it may be here at once.
        let fresh = path.join(format!("{NEW}{}.{}", set.age, prefix.token()));
        remove_tree(&fresh)?;
        write(&fresh, set)?;
        prefix.step("loose.written")?;
        if let Err(error) = rename(&fresh, &place) {
            // Another has put the same there.
            remove_tree(&fresh)?;
            read_set(&place, set.age).map_err(|_| error)?;
        }
        sync_directory(&path)?;
    }
    prefix.step("loose.cleanup")?;
    let known: Vec<DatasetId> = index::survey(prefix)?.into_iter().map(|stored| stored.id).collect();
    for (age, as_of) in sets(prefix)? {
        let former = age == set.age && as_of < set.as_of;
        // Of datasets that are in the prefix no more.
        let orphan = age < set.age && !known.contains(&age.id);
        if former || orphan {
            remove_tree(&path.join(named(age, as_of)))?;
        }
    }
    remove_left(&path, set.age)
}

/// What a crash has left of sets of older datasets, and of this one under the name that former
/// versions gave.
fn remove_left(path: &Path, than: Age) -> Result<()> {
    for name in fs::read_dir(path).map_err(PfsError::io(path, "list"))? {
        let name = name.map_err(PfsError::io(path, "list"))?.file_name();
        let Some(rest) = name.to_str().and_then(|name| name.strip_prefix(NEW)) else { continue };
        let mut parts = rest.splitn(3, '.');
        let mut number = || parts.next()?.parse::<u64>().ok();
        let (Some(epoch), Some(id)) = (number(), number()) else { continue };
        let age = Age { epoch: Epoch(epoch), id: DatasetId(id) };
        if age < than || age == than && parts.next().is_none() {
            remove_tree(&path.join(&name))?;
        }
    }
    Ok(())
}

fn write(fresh: &Path, set: &LooseSet) -> Result<()> {
    let files = fresh.join(FILES);
    for directory in [fresh, &files] {
        plain::make_directory(directory).map_err(PfsError::io(directory, "mkdir"))?;
    }
    let mut record = set.clone();
    for version in &mut record.versions {
        let entry = &mut version.entry;
        let path = files.join(std::ffi::OsStr::from_bytes(&entry.name));
        match &entry.kind {
            LooseKind::Gone => {}
            LooseKind::Symlink(target) => {
                let target = std::ffi::OsStr::from_bytes(target);
                std::os::unix::fs::symlink(target, &path).map_err(PfsError::io(&path, "symlink"))?;
            }
            LooseKind::File { .. } => {
                let bytes = std::mem::take(&mut entry.bytes);
                // Its owner can always read it: the mode is in the record.
                write_file(&path, &bytes, entry.mode & plain::FILE_MODE | 0o600)?;
            }
        }
    }
    let path = fresh.join(RECORD);
    write_file(&path, &encode(&record, &path)?, 0o644)?;
    sync_directory(&files)?;
    sync_parent(&path)
}

/// A set as the bytes of one file, `path`.
pub(super) fn encode(set: &LooseSet, path: &Path) -> Result<Vec<u8>> {
    let body = postcard::to_stdvec(set).map_err(|error| PfsError::content(path, error.to_string()))?;
    let mut bytes = crc32fast::hash(&body).to_be_bytes().to_vec();
    bytes.extend(body);
    Ok(bytes)
}

/// The set of dataset `age` in the bytes of `path`; its files have the bytes that they came with.
pub(super) fn decode(bytes: &[u8], path: &Path, age: Age) -> Result<LooseSet> {
    let (crc, body) =
        bytes.split_first_chunk::<HEAD>().ok_or_else(|| PfsError::content(path, "is too short"))?;
    if u32::from_be_bytes(*crc) != crc32fast::hash(body) {
        return Err(PfsError::content(path, "has a wrong CRC"));
    }
    let set: LooseSet =
        postcard::from_bytes(body).map_err(|error| PfsError::content(path, error.to_string()))?;
    if set.age != age {
        return Err(PfsError::content(path, "is of another dataset"));
    }
    let is_name = |name: &[u8]| RelPath::new(name).is_ok_and(|name| name.names().count() == 1);
    if set.versions.iter().any(|version| !is_name(&version.entry.name)) {
        return Err(PfsError::content(path, "has a name that is none"));
    }
    Ok(set)
}

fn write_file(path: &Path, bytes: &[u8], mode: u32) -> Result<()> {
    let mut options = OpenOptions::new();
    let file: std::io::Result<File> = options.write(true).create_new(true).mode(mode).open(path);
    let mut file = file.map_err(PfsError::io(path, "create"))?;
    file.write_all(bytes).map_err(PfsError::io(path, "write"))?;
    file.sync_all().map_err(PfsError::io(path, "fsync"))
}

/// The newest whole set of a dataset.
pub(super) fn read(prefix: &Prefix, age: Age) -> Result<Option<LooseSet>> {
    let mut problem = None;
    for (of, as_of) in sets(prefix)?.into_iter().filter(|(of, _)| *of == age) {
        match read_set(&directory(prefix).join(named(of, as_of)), age) {
            Ok(set) => return Ok(Some(set)),
            Err(error) => {
                tracing::warn!(%error, "a set of pointer files in the prefix cannot be used");
                problem.get_or_insert(error);
            }
        }
    }
    problem.map_or(Ok(None), Err)
}

fn read_set(place: &Path, age: Age) -> Result<LooseSet> {
    let path = place.join(RECORD);
    let bytes = read_bounded(&path)?.ok_or_else(|| PfsError::content(&path, "is missing"))?;
    let mut set = decode(&bytes, &path, age)?;
    for version in &mut set.versions {
        let entry = &mut version.entry;
        let name = std::ffi::OsString::from_vec(entry.name.clone());
        let file = place.join(FILES).join(name);
        if matches!(entry.kind, LooseKind::File { .. }) {
            entry.bytes = read_bounded(&file)?.ok_or_else(|| PfsError::content(&file, "is missing"))?;
        }
        if !entry.is_whole() {
            return Err(PfsError::content(&file, "has a wrong size or CRC"));
        }
    }
    Ok(set)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::loose::{LooseEntry, LooseOwner, LooseVersion};
    use crate::ids::RequestId;

    fn set(age: Age, serial: u64, says: &str) -> LooseSet {
        let version = |serial, name: &str, kind, bytes: &str| LooseVersion {
            stamp: LooseStamp { epoch: Epoch(1), serial },
            request: RequestId { origin: 1, serial },
            owner: LooseOwner::Sealed(age),
            entry: LooseEntry { kind, bytes: bytes.into(), mode: 0o400, ..LooseEntry::gone(name.into()) },
        };
        let file = LooseKind::File { size: says.len() as u64, crc: crc32fast::hash(says.as_bytes()) };
        let link = LooseKind::Symlink(says.into());
        LooseSet {
            age,
            as_of: LooseStamp { epoch: Epoch(1), serial },
            versions: vec![version(serial - 1, "latest", file, says), version(serial, "link", link, "")],
        }
    }

    #[test]
    fn a_set_is_kept_whole_and_the_newest_counts() {
        let dir = tempfile::tempdir().unwrap();
        let prefix = Prefix::new(dir.path().as_os_str().as_bytes(), Epoch(1), "host");
        let age = Age { epoch: Epoch(1), id: DatasetId(3) };
        assert_eq!(read(&prefix, age).unwrap(), None);
        let (old, new) = (set(age, 2, "ck.2"), set(age, 7, "ck.3"));
        for set in [&old, &new, &new] {
            put(&prefix, set).unwrap();
            assert_eq!(read(&prefix, age).unwrap().as_ref(), Some(set));
        }
        let place = dir.path().join(".scr/loose/1.3.1.7");
        assert_eq!(fs::read_to_string(place.join("files/latest")).unwrap(), "ck.3");
        assert_eq!(fs::read_link(place.join("files/link")).unwrap(), Path::new("ck.3"));
        assert_eq!(fs::read_dir(dir.path().join(".scr/loose")).unwrap().count(), 1);
        fs::remove_file(place.join("files/latest")).unwrap();
        fs::write(place.join("files/latest"), "ck.4").unwrap();
        assert!(read(&prefix, age).unwrap_err().to_string().contains("wrong size or CRC"));
        // Sets of datasets that are not in the prefix go.
        let next = Age { epoch: Epoch(1), id: DatasetId(4) };
        put(&prefix, &set(next, 9, "ck.4")).unwrap();
        assert_eq!(read(&prefix, age).unwrap(), None);
        assert!(read(&prefix, next).unwrap().is_some());
    }

    #[test]
    fn a_crash_leaves_the_former_set_or_the_new_one() {
        let age = Age { epoch: Epoch(1), id: DatasetId(3) };
        let (old, new) = (set(age, 2, "ck.2"), set(age, 7, "ck.3"));
        for steps in 0..3 {
            let dir = tempfile::tempdir().unwrap();
            let mut prefix = Prefix::new(dir.path().as_os_str().as_bytes(), Epoch(1), "host");
            put(&prefix, &old).unwrap();
            prefix.steps_left = std::cell::Cell::new(steps);
            let crashed = put(&prefix, &new).is_err();
            assert_eq!(crashed, steps < 2);
            let read = read(&prefix, age).unwrap().unwrap();
            assert!(read == if steps == 0 { old.clone() } else { new.clone() }, "{steps}");
        }
    }
}

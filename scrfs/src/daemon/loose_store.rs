//! Versions of pointer files on storage: in `loose/` of the control directory a file
//! `<epoch>.<serial>` with the bytes of each, and `index` with everything else. Bytes come first,
//! the index makes them count; what it does not name is removed at start. A version's size and CRC
//! are in the index: bytes that do not fit are treated as missing.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::control::Reason;
use crate::control::loose::{
    Age, LooseBase, LooseEntry, LooseKind, LooseOwner, LooseSet, LooseStamp, LooseVersion,
};
use crate::store::reserve::Reserve;
use crate::store::{Store, StoreError, beneath};

/// In the control directory.
pub(super) const DIRECTORY: &str = "loose";
const INDEX: &str = "index";
/// Largest index, bytes.
const INDEX_MAX: u64 = 64 << 20;
/// Largest version, bytes: more than any setting allows.
const BYTES_MAX: u64 = 1 << 30;

/// Sealed datasets of which it is kept when they began.
const BEGAN_MAX: usize = 1024;

/// What the index holds.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Index {
    /// Without bytes.
    versions: BTreeMap<LooseStamp, LooseVersion>,
    /// The version of each name that stands.
    live: BTreeMap<Vec<u8>, LooseStamp>,
    /// What was put in the mount last under each name; what is there now may be a program's change
    /// of it.
    placed: BTreeMap<Vec<u8>, (LooseStamp, LooseEntry)>,
    base: Option<LooseBase>,
    /// When sealed datasets began, microseconds since 1970.
    began: BTreeMap<Age, u64>,
    /// Of versions that were bound to a dataset: whose they were before.
    bound: BTreeMap<LooseStamp, (Age, LooseOwner)>,
}

/// Forgets all versions that are kept in the control directory, before they are loaded.
pub(super) fn forget_all(control: &Store) -> io::Result<()> {
    let index = control.path().join(DIRECTORY).join(INDEX);
    match std::fs::remove_file(&index) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// See the module.
pub(super) struct LooseStore {
    store: Store,
    index: Index,
    /// Differs from what is on storage.
    changed: bool,
}

impl LooseStore {
    /// Opens `directory`, which is made if it is not there; also tells what could not be used.
    pub(super) fn open(directory: &Path, reserve: Option<Arc<Reserve>>) -> io::Result<(Self, Vec<String>)> {
        use std::os::unix::fs::DirBuilderExt;
        match std::fs::DirBuilder::new().mode(0o700).create(directory) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
            _ => {}
        }
        let store = Store::open(directory)?.with_reserve(reserve);
        let mut problems = Vec::new();
        let index = match store.read(INDEX, INDEX_MAX) {
            Ok(None) => Index::default(),
            Ok(Some(bytes)) => decode(&bytes).unwrap_or_else(|reason| {
                problems.push(format!("pointer files: the index: {reason}"));
                Index::default()
            }),
            Err(error) => {
                problems.push(error.to_string());
                Index::default()
            }
        };
        let this = Self { store, index, changed: false };
        this.sweep()?;
        Ok((this, problems))
    }

    /// Removes what the index does not name.
    fn sweep(&self) -> io::Result<()> {
        let known: BTreeSet<String> = self.index.versions.keys().map(file_of).collect();
        for name in beneath::names(self.store.directory())? {
            let Ok(name) = String::from_utf8(name) else { continue };
            if name != INDEX && !known.contains(&name) {
                self.store.remove(&name).map_err(io::Error::other)?;
            }
        }
        Ok(())
    }

    pub(super) fn began_all(&self) -> Vec<(Age, u64)> {
        self.index.began.iter().map(|(age, began)| (*age, *began)).collect()
    }

    /// A dataset that is about to be committed began then.
    pub(super) fn began(&mut self, age: Age, began_us: u64) {
        self.changed |= self.index.began.insert(age, began_us) != Some(began_us);
        while self.index.began.len() > BEGAN_MAX {
            self.index.began.pop_first();
        }
    }

    pub(super) fn bound_all(&self) -> Vec<(LooseStamp, Age, LooseOwner)> {
        let bound = self.index.bound.iter();
        bound.map(|(stamp, (age, owner))| (*stamp, *age, owner.clone())).collect()
    }

    pub(super) fn base(&self) -> Option<LooseBase> {
        self.index.base
    }

    /// All versions whose bytes are whole, without them; others are forgotten.
    pub(super) fn whole(&mut self) -> (Vec<LooseVersion>, Vec<Reason>) {
        let bad: Vec<(LooseStamp, Reason)> = self
            .index
            .versions
            .keys()
            .filter_map(|stamp| self.read(*stamp).err().map(|why| (*stamp, why)))
            .collect();
        let stamps: Vec<LooseStamp> = bad.iter().map(|(stamp, _)| *stamp).collect();
        self.index.versions.retain(|stamp, _| !stamps.contains(stamp));
        self.changed |= !stamps.is_empty();
        (self.index.versions.values().cloned().collect(), bad.into_iter().map(|(_, why)| why).collect())
    }

    /// What dataset `age`, which is presented or newer, is to be presented with: of each name that
    /// is something the newest version that is not later.
    pub(super) fn set_of(&self, age: Age) -> Result<LooseSet, Reason> {
        let belongs = |version: &&LooseVersion| {
            let lost = self.index.base.is_some_and(|base| base.gave_up(version));
            !lost && matches!(version.owner, LooseOwner::Sealed(owner) if owner <= age)
        };
        let mut newest: BTreeMap<&[u8], &LooseVersion> = BTreeMap::new();
        for version in self.index.versions.values().filter(belongs) {
            newest.insert(&version.entry.name, version);
        }
        let shown = newest.into_values().filter(|version| !version.entry.is_gone());
        let versions = shown.map(|version| self.read(version.stamp)).collect::<Result<_, _>>()?;
        let as_of = self.index.versions.keys().next_back().copied().unwrap_or_default();
        Ok(LooseSet { age, as_of, versions })
    }

    /// A version with its bytes, checked.
    pub(super) fn read(&self, stamp: LooseStamp) -> Result<LooseVersion, Reason> {
        let mut version = self.index.versions.get(&stamp).cloned().ok_or("no such version")?;
        let name = String::from_utf8_lossy(&version.entry.name).into_owned();
        if matches!(version.entry.kind, LooseKind::File { .. }) {
            let bytes =
                self.store.read(&file_of(&stamp), BYTES_MAX).map_err(|e| Reason::from(e).on(&name))?;
            version.entry.bytes = bytes.ok_or_else(|| Reason::from("its bytes are gone").on(&name))?;
        }
        if version.entry.is_whole() { Ok(version) } else { Err(Reason::from("wrong size or CRC").on(&name)) }
    }

    /// Puts bytes on storage; [`LooseStore::commit`] makes them count.
    pub(super) fn add(&mut self, version: &LooseVersion) -> Result<(), StoreError> {
        if matches!(version.entry.kind, LooseKind::File { .. }) {
            self.store.commit(&file_of(&version.stamp), &version.entry.bytes)?;
        }
        self.index.versions.insert(version.stamp, version.head());
        self.changed = true;
        Ok(())
    }

    /// This version stands from now on, unless a newer one does; true if it does.
    pub(super) fn stands(&mut self, version: &LooseVersion) -> bool {
        let newest = self.index.live.get(&version.entry.name).is_none_or(|live| *live <= version.stamp);
        if newest {
            self.index.live.insert(version.entry.name.clone(), version.stamp);
            self.changed = true;
        }
        newest
    }

    /// The version of `name` that stands.
    pub(super) fn live(&self, name: &[u8]) -> Option<&LooseVersion> {
        self.index.versions.get(self.index.live.get(name)?)
    }

    /// Names that are pointer files.
    pub(super) fn names(&self) -> impl Iterator<Item = &[u8]> {
        self.index
            .live
            .keys()
            .filter(|name| self.live(name).is_some_and(|v| !v.entry.is_gone()))
            .map(Vec::as_slice)
    }

    /// Names of which something else stands than what is in the mount.
    pub(super) fn late(&self) -> Vec<Vec<u8>> {
        let late = |name: &&Vec<u8>| {
            self.live(name)
                .is_some_and(|live| self.placed(name).is_none_or(|(stamp, _)| *stamp != live.stamp))
        };
        self.index.live.keys().filter(late).cloned().collect()
    }

    /// What was put in the mount under this name.
    pub(super) fn placed(&self, name: &[u8]) -> Option<&(LooseStamp, LooseEntry)> {
        self.index.placed.get(name)
    }

    /// It is in the mount.
    pub(super) fn place(&mut self, version: &LooseVersion) {
        let placed = (version.stamp, version.entry.head());
        self.index.placed.insert(version.entry.name.clone(), placed);
        self.changed = true;
    }

    pub(super) fn bind(&mut self, stamp: LooseStamp, owner: LooseOwner) {
        if let Some(version) = self.index.versions.get_mut(&stamp) {
            let former = std::mem::replace(&mut version.owner, owner);
            if let (LooseOwner::Begun { .. }, LooseOwner::Sealed(age)) = (&former, &version.owner) {
                self.index.bound.insert(stamp, (*age, former));
            }
            self.changed = true;
        }
    }

    /// What is bound to `age` belongs to the unsealed dataset `name` again.
    pub(super) fn unbind(&mut self, age: Age, name: &[u8]) {
        let Some(since_us) = self.index.began.remove(&age) else { return };
        self.changed = true;
        let after = self.index.began.range(..age).next_back().map(|(age, _)| *age).unwrap_or_default();
        for version in self.index.versions.values_mut() {
            if version.owner == LooseOwner::Sealed(age) {
                let bound = self.index.bound.remove(&version.stamp);
                let former = bound.filter(|(to, _)| *to == age).map(|(_, former)| former);
                version.owner =
                    former.unwrap_or_else(|| LooseOwner::Begun { name: name.to_vec(), since_us, after });
            }
        }
    }

    /// Forgets versions, and when datasets began; their bytes go after [`LooseStore::commit`].
    pub(super) fn forget(&mut self, stamps: &[LooseStamp], datasets: &[Age]) -> Result<(), StoreError> {
        for age in datasets {
            self.changed |= self.index.began.remove(age).is_some();
        }
        for stamp in stamps {
            if let Some(version) = self.index.versions.remove(stamp) {
                self.changed = true;
                self.index.bound.remove(stamp);
                let name = &version.entry.name;
                // A name that is nothing needs no record of that.
                if self.index.live.get(name) == Some(stamp) {
                    self.index.live.remove(name);
                    if self.placed(name).is_some_and(|(_, entry)| entry.is_gone()) {
                        self.index.placed.remove(name);
                    }
                }
            }
        }
        self.commit()?;
        for stamp in stamps {
            self.store.remove(&file_of(stamp))?;
        }
        Ok(())
    }

    /// The mount has none of them any more: a restart of `base` begins.
    pub(super) fn clear_places(&mut self, base: Option<LooseBase>) {
        self.index.live.clear();
        self.index.placed.clear();
        self.index.base = base.or(self.index.base);
        self.changed = true;
    }

    /// Puts the index on storage, if it has changed.
    pub(super) fn commit(&mut self) -> Result<(), StoreError> {
        if self.changed {
            let body = postcard::to_stdvec(&self.index).map_err(|error| StoreError::Failed {
                path: self.store.path().join(INDEX),
                step: "encode",
                source: io::Error::new(io::ErrorKind::InvalidInput, error),
            })?;
            let mut bytes = crc32fast::hash(&body).to_be_bytes().to_vec();
            bytes.extend(body);
            self.store.commit(INDEX, &bytes)?;
            self.changed = false;
        }
        Ok(())
    }
}

fn decode(bytes: &[u8]) -> Result<Index, Reason> {
    let (crc, body) = bytes.split_first_chunk().ok_or("it is too short")?;
    if u32::from_be_bytes(*crc) != crc32fast::hash(body) {
        return Err("its CRC is wrong".into());
    }
    postcard::from_bytes(body).map_err(|error| Reason::of(&error))
}

fn file_of(stamp: &LooseStamp) -> String {
    format!("{}.{}", stamp.epoch, stamp.serial)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{DatasetId, Epoch, RequestId};

    fn version(serial: u64, name: &str, says: &str) -> LooseVersion {
        let kind = LooseKind::File { size: says.len() as u64, crc: crc32fast::hash(says.as_bytes()) };
        LooseVersion {
            stamp: LooseStamp { epoch: Epoch(1), serial },
            request: RequestId { origin: 1, serial },
            owner: LooseOwner::Sealed(Age::default()),
            entry: LooseEntry { kind, bytes: says.into(), ..LooseEntry::gone(name.into()) },
        }
    }

    #[test]
    fn versions_outlive_the_process_and_bad_bytes_do_not_count() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("loose");
        let (one, two) = (version(1, "latest", "ck.1"), version(2, "latest", "ck.2"));
        {
            let (mut store, problems) = LooseStore::open(&path, None).unwrap();
            assert!(problems.is_empty());
            for version in [&one, &two] {
                store.add(version).unwrap();
                assert!(store.stands(version));
            }
            assert!(!store.stands(&one));
            store.place(&one);
            let owner = LooseOwner::Sealed(Age { epoch: Epoch(1), id: DatasetId(2) });
            store.bind(two.stamp, owner);
            store.commit().unwrap();
            // Never committed.
            store.add(&version(3, "other", "x")).unwrap();
        }
        let (mut store, _) = LooseStore::open(&path, None).unwrap();
        assert_eq!(store.read(one.stamp).unwrap(), one);
        assert!(!path.join("1.3").exists());
        assert_eq!(store.late(), [b"latest".to_vec()]);
        assert_eq!(store.live(b"latest").unwrap().stamp, two.stamp);
        assert!(matches!(store.live(b"latest").unwrap().owner, LooseOwner::Sealed(age) if age.id.0 == 2));
        let former = LooseOwner::Begun { name: b"old".to_vec(), since_us: 3, after: Age::default() };
        let third = Age { epoch: Epoch(1), id: DatasetId(3) };
        store.began(third, 9);
        store.bind(one.stamp, former.clone());
        store.bind(one.stamp, LooseOwner::Sealed(third));
        assert_eq!(store.bound_all(), [(one.stamp, third, former.clone())]);
        store.unbind(third, b"new");
        assert_eq!(store.read(one.stamp).unwrap().owner, former);
        std::fs::write(path.join("1.1"), "ck.7").unwrap();
        let (whole, bad) = store.whole();
        assert_eq!((whole.len(), bad.len()), (1, 1), "{bad:?}");
        store.began(Age { epoch: Epoch(1), id: DatasetId(2) }, 7);
        store.unbind(Age { epoch: Epoch(1), id: DatasetId(2) }, b"ck");
        let owner = &store.live(b"latest").unwrap().owner;
        assert!(matches!(owner, LooseOwner::Begun { name, since_us: 7, .. } if name == b"ck"), "{owner:?}");
        store.forget(&[two.stamp], &[]).unwrap();
        assert!(store.names().next().is_none() && !path.join("1.2").exists());
        std::fs::write(path.join(INDEX), "torn").unwrap();
        let (store, problems) = LooseStore::open(&path, None).unwrap();
        assert_eq!((store.names().count(), problems.len()), (0, 1));
    }
}

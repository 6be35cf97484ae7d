//! What the records in a control directory tell of a job's datasets, without a daemon.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::{MountError, failed};
use crate::daemon::disk::{FILEMAP, dataset_of_file};
use crate::hash::{self, FieldError, Hash};
use crate::store::{Store, beneath};

/// The node's table of datasets.
pub(super) const TABLE: &str = "node.scrinfo";
/// Largest table that is read; bytes.
const TABLE_MAX: u64 = 1 << 30;

/// A dataset that is recorded. Only a mount knows whether it is whole.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Recorded {
    pub(super) id: u64,
    /// Empty where its catalog alone is there: that is written before the table.
    pub(super) name: String,
    /// It is on the PFS.
    pub(super) flushed: bool,
    /// It was found bad.
    pub(super) failed: bool,
}

/// All that are recorded, by id: complete ones, those that may be, and those whose marker has
/// succeeded while they are sealed in the background.
///
/// # Errors
/// [`MountError::Record`]: the table cannot be read. The directory cannot be listed.
pub(super) fn datasets(store: &Store) -> Result<Vec<Recorded>, MountError> {
    let problem = |problem: String| MountError::Record { path: store.path().join(TABLE), problem };
    let names = beneath::names(store.directory()).map_err(failed("cannot list", store.path()))?;
    let catalogs = names.iter().filter_map(|name| Some(dataset_of_file(name)?.1.0));
    let mut all: BTreeMap<u64, Recorded> =
        catalogs.map(|id| (id, Recorded { id, ..Recorded::default() })).collect();
    if let Some(table) = store.read(TABLE, TABLE_MAX).map_err(|error| problem(error.to_string()))? {
        let table = hash::decode_file(&table).map_err(|error| problem(error.to_string()))?;
        for (id, below) in
            ["BACKGROUND", "DATASET"].iter().filter_map(|part| table.get(*part)).flat_map(Hash::iter)
        {
            let Some(id) = id.number() else { continue };
            all.insert(id, recorded(id, below).map_err(|error| problem(error.to_string()))?);
        }
    }
    Ok(all.into_values().collect())
}

/// The same of the control directory at this path; none where there is no such directory.
pub(super) fn datasets_of(control: &Path) -> Result<Vec<Recorded>, MountError> {
    match Store::open(control) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        store => datasets(&store.map_err(failed("cannot open", control))?),
    }
}

/// The ids of datasets of which this node has members, and these have no files: nothing of them can
/// have gone with a cache. None where that is not known.
pub(super) fn without_files_of(control: &Path) -> BTreeSet<u64> {
    let read = || Store::open(control).ok()?.read(FILEMAP, TABLE_MAX).ok()?;
    let Some(map) = read().and_then(|bytes| hash::decode_file(&bytes).ok()) else { return BTreeSet::new() };
    let members = map.get("RANK").into_iter().flat_map(Hash::iter);
    let of_member = members.filter_map(|(_, below)| below.get("DSET")).flat_map(Hash::iter);
    let has_files = |entry: &Hash| entry.get("FILE").is_some_and(|files| files.iter().len() > 0);
    let of_dataset = of_member.filter_map(|(id, entry)| Some((id.number()?, has_files(entry))));
    let (with, without): (Vec<(u64, bool)>, Vec<_>) = of_dataset.partition(|(_, has_files)| *has_files);
    let without = without.into_iter().map(|(id, _)| id);
    without.filter(|id| !with.contains(&(*id, true))).collect()
}

fn recorded(id: u64, below: &Hash) -> Result<Recorded, FieldError> {
    let is = |name| Ok(below.number::<u32>(name)? == Some(1));
    let name = below.text("NAME")?.map(ToString::to_string).unwrap_or_default();
    Ok(Recorded { id, name, flushed: is("FLUSHED")?, failed: is("FAILED")? })
}

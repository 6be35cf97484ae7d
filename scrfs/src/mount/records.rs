//! What the records in a control directory tell of a job's datasets, without a daemon.

use std::collections::BTreeMap;
use std::path::Path;

use super::{MountError, failed};
use crate::daemon::disk::dataset_of_file;
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

fn recorded(id: u64, below: &Hash) -> Result<Recorded, FieldError> {
    let is = |name| Ok(below.number::<u32>(name)? == Some(1));
    let name = below.text("NAME")?.map(ToString::to_string).unwrap_or_default();
    Ok(Recorded { id, name, flushed: is("FLUSHED")?, failed: is("FAILED")? })
}

//! What the records in a control directory tell of a job's datasets, without a daemon.

use std::path::Path;

use super::{MountError, failed};
use crate::daemon::disk::catalog_name;
use crate::hash::{self, FieldError, Hash};
use crate::ids::DatasetId;
use crate::store::Store;

/// The node's table of datasets.
pub(super) const TABLE: &str = "node.scrinfo";
/// Largest table that is read; bytes.
const TABLE_MAX: u64 = 1 << 30;

/// A dataset that the table names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Recorded {
    pub(super) id: u64,
    pub(super) name: String,
    /// Its catalog is here: it was sealed on all nodes, or is about to be.
    pub(super) complete: bool,
    /// It is on the PFS.
    pub(super) flushed: bool,
    /// It was found bad.
    pub(super) failed: bool,
}

/// All that the table names; none where there is no table.
///
/// # Errors
/// [`MountError::Record`]: the table cannot be read.
pub(super) fn datasets(store: &Store) -> Result<Vec<Recorded>, MountError> {
    let problem = |problem: String| MountError::Record { path: store.path().join(TABLE), problem };
    let Some(table) = store.read(TABLE, TABLE_MAX).map_err(|error| problem(error.to_string()))? else {
        return Ok(Vec::new());
    };
    let table = hash::decode_file(&table).map_err(|error| problem(error.to_string()))?;
    let named = table.get("DATASET").into_iter().flat_map(Hash::iter);
    let named = named.filter_map(|(id, below)| Some((id.number()?, below)));
    named.map(|(id, below)| recorded(store.path(), id, below).map_err(|e| problem(e.to_string()))).collect()
}

/// The same of the control directory at this path.
pub(super) fn datasets_of(control: &Path) -> Result<Vec<Recorded>, MountError> {
    datasets(&Store::open(control).map_err(failed("cannot open", control))?)
}

fn recorded(control: &Path, id: u64, below: &Hash) -> Result<Recorded, FieldError> {
    let is = |name| Ok(below.number::<u32>(name)? == Some(1));
    Ok(Recorded {
        id,
        name: below.text("NAME")?.map(ToString::to_string).unwrap_or_default(),
        complete: control.join(catalog_name(DatasetId(id))).symlink_metadata().is_ok(),
        flushed: is("FLUSHED")?,
        failed: is("FAILED")?,
    })
}

//! The job's directory on the PFS, the prefix: its layout, and the work of the lead there, which is
//! done with the job user's rights, in a worker thread of rank 0.
//!
//! Tasks and outcomes are values; the lead orders them, [`start`] makes the thread that carries
//! them out. In reading order: `layout` (what all parts agree on), `worker`, `flush` (copy, swap,
//! recovery), `index`, `lock`, `catalog` (the records), `halt`, `loose` (pointer files),
//! `directory` (paths and small files). [`scavenge`] is what nodes do without coordinators. Beside
//! the worker, `status` keeps the last status.

mod catalog;
mod directory;
mod flush;
mod halt;
mod index;
mod layout;
mod lock;
mod loose;
pub mod scavenge;
pub mod status;
pub mod strangers;
#[cfg(test)]
mod tests;
mod worker;

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use crate::control::Reason;
use crate::control::loose::{Age, LooseSet};
use crate::dataset::Catalog;
use crate::ids::{DatasetId, Epoch};
use crate::record::Halt;

pub use self::directory::{PfsError, Prefix, is_epoch, open_log};
pub(crate) use self::index::stamp;
pub use self::layout::{ForeignLayout, foreign_layout, make};
pub use self::worker::{Worker, outcome, start};
pub use crate::plain::make_file;

/// The highest epoch that has sealed a dataset of the prefix at `root`, also one of which nodes
/// have saved parts only; 0 where there is none.
///
/// # Errors
/// The PFS does not let read which datasets there are.
pub fn highest_epoch(root: &Path) -> Result<Epoch, PfsError> {
    let prefix = Prefix::new(root.as_os_str().as_bytes(), Epoch(0), "");
    let of_parts = scavenge::ages(&prefix)?.first().map_or(Epoch(0), |age| age.epoch);
    Ok(index::highest_epoch(&prefix)?.max(of_parts))
}

/// What the lead wants done in the prefix.
#[derive(Debug, Clone, PartialEq)]
pub enum PfsTask {
    /// Which datasets does the prefix have? Finishes or undoes half-done swaps first.
    Survey,
    /// Make `<prefix>/.scr/flush.<epoch>.<id>/` with the dataset's directories and links; a
    /// leftover of a former try is removed.
    BeginFlush(Arc<Catalog>),
    /// All members are copied: summary and rank2file, swap it in, index entry, current. The commit
    /// point of a flush.
    Publish(Arc<Catalog>),
    /// Read a dataset's names, sizes and CRCs as a catalog to fetch by; members as its rank2file
    /// has them.
    ReadCatalog(StoredDataset),
    /// Mark it FAILED in the index: a fetch found bad bytes or records.
    MarkFailed(StoredDataset),
    /// Read the halt file, and count checkpoints in it.
    Halt {
        /// How many were sealed since it was counted last.
        sealed: u32,
    },
    /// Keep a program's message.
    Post {
        /// The node's.
        host: String,
        /// The message.
        text: String,
    },
    /// Keep the pointer files that a dataset is presented with; former ones of it go.
    PutLoose(Box<LooseSet>),
    /// Read them.
    ReadLoose(Age),
}

/// A dataset in the prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredDataset {
    /// Its id.
    pub id: DatasetId,
    /// The epoch that sealed it; 0 where the index has none (written by SCR).
    pub epoch: Epoch,
    /// Directory relative to the prefix: the dataset's name for what scrfs wrote.
    pub name: Vec<u8>,
    /// Absolute path.
    pub directory: Vec<u8>,
    /// When it was sealed, microseconds since 1970, if the index says so.
    pub created_us: Option<u64>,
    /// The index says complete and not failed, and something has its name.
    pub usable: bool,
    /// A person or scrfs marked it as the one to restart from.
    pub current: bool,
}

impl StoredDataset {
    /// It is the dataset of this catalog. In a prefix that other jobs have used, another dataset
    /// may have its id, epoch and name.
    pub fn is(&self, catalog: &Catalog) -> bool {
        self.may_be(&Known::of(catalog))
    }

    /// Nothing that is known of a dataset says that this is another.
    pub(crate) fn may_be(&self, known: &Known) -> bool {
        let is_other_name = known.name.as_ref().is_some_and(|name| *name != self.name);
        let times = self.created_us.zip(known.created_us);
        (self.epoch, self.id) == (known.age.epoch, known.age.id)
            && !is_other_name
            && times.is_none_or(|(stored, known)| stored == known)
    }
}

/// What is known of a dataset by whoever looks for it in the prefix: its age, and the rest as far
/// as a catalog says it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Known {
    /// Its epoch and id.
    pub age: Age,
    /// Its name.
    pub name: Option<Vec<u8>>,
    /// When it was sealed, microseconds since 1970.
    pub created_us: Option<u64>,
}

impl Known {
    /// All of it.
    pub fn of(catalog: &Catalog) -> Self {
        Self {
            age: Age { epoch: catalog.epoch, id: catalog.id },
            name: Some(catalog.name.clone()),
            created_us: Some(catalog.created_us),
        }
    }

    /// No more than its age.
    pub(crate) fn by_age(age: Age) -> Self {
        Self { age, name: None, created_us: None }
    }
}

/// What the prefix has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Contents {
    /// Those in the index, newest first.
    pub datasets: Vec<StoredDataset>,
    /// Those of which nodes have saved parts ([`scavenge`]), which are not the whole.
    pub partial: Vec<Age>,
    /// The same of which the PFS did not let see or publish the whole.
    pub hindered: Vec<Age>,
}

/// What a task ended with.
#[derive(Debug, Clone, PartialEq)]
pub enum PfsOutcome {
    /// To `Survey`.
    Surveyed(Contents),
    /// To `BeginFlush`: the absolute directory that daemons copy into.
    FlushBegun(DatasetId, Vec<u8>),
    /// To `Publish`.
    Published(DatasetId),
    /// To `ReadCatalog`.
    Catalog(StoredDataset, Box<Catalog>),
    /// To `MarkFailed`.
    Marked(DatasetId),
    /// To `Halt`.
    Halt(Box<Halt>),
    /// To `Post`.
    Posted,
    /// To `PutLoose`.
    LoosePut(Age),
    /// To `ReadLoose`: `None` where there are none.
    Loose(Age, Option<Box<LooseSet>>),
    /// The task in hand takes long and goes on; with something to say, now and then.
    Busy(Option<String>),
    /// The task failed.
    Failed(PfsTask, PfsFailure),
}

/// Why a task failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PfsFailure {
    /// What it says of the dataset.
    pub cause: PfsCause,
    /// With the path.
    pub reason: Reason,
}

/// What the failure of a task says of its dataset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PfsCause {
    /// Nothing: the PFS does not serve, or what is there is beyond this version.
    Unavailable,
    /// To `ReadCatalog`: the dataset's records are torn or fail their CRC.
    Damaged,
}

//! Open files and directories.
//!
//! [`OpenFiles`] keeps them, also for a successor, and what goes with them: what programs have done
//! with each file (`meter`), and which pages of theirs the kernel may keep (`pages`).

mod handles;
mod io;
mod meter;
mod open_files;
mod pages;
mod snapshot;

pub(crate) use self::handles::DirHandle;
pub use self::handles::Handle;
pub(crate) use self::io::{own_flags, served, write_all};
pub(crate) use self::meter::Failing;
pub(crate) use self::open_files::OpenFiles;
pub use self::open_files::Registered;
#[cfg(test)]
pub(crate) use self::snapshot::LISTINGS_MAX;
pub use self::snapshot::{DirEntry, Taken};
pub(crate) use self::snapshot::{Listings, Share, Snapshot};

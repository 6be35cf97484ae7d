//! Open files and directories.
//!
//! [`OpenFiles`] keeps them, also for a successor, and what goes with them: what programs have done
//! with each file (`meter`), and which pages of theirs the kernel may keep (`pages`).

mod handles;
mod io;
mod meter;
mod pages;
mod snapshot;

pub(crate) use self::handles::{DirHandle, OpenFiles};
pub use self::handles::{Handle, Registered};
pub(crate) use self::io::{own_flags, served, write_all};
pub(crate) use self::meter::Failing;
pub use self::snapshot::DirEntry;
pub(crate) use self::snapshot::Snapshot;

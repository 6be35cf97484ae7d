//! Open files and directories.

mod handles;
mod meter;
mod pages;
mod snapshot;

pub use self::handles::Handle;
pub(crate) use self::handles::{DirHandle, Handles};
pub(crate) use self::meter::{Failing, Meters};
pub(crate) use self::pages::Pages;
pub use self::snapshot::DirEntry;
pub(crate) use self::snapshot::Snapshot;

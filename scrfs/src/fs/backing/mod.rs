//! The directories of the cache that are behind the mount.
//!
//! [`Trees`] opens what is in them and changes it as the caller would; [`Removals`] takes out what
//! goes. Both know paths of the mount and no inodes.

mod contents;
mod directories;
mod doomed;
mod removals;
mod rights;
mod roots;
mod search;
mod trees;

pub(crate) use self::directories::open_path;
pub(crate) use self::removals::Removals;
pub(crate) use self::rights::{administers, change_mode};
pub(crate) use self::roots::Root;
pub(crate) use self::trees::Trees;

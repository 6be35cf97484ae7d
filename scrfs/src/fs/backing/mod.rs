//! The directories of the cache that are behind the mount.

mod doomed;
mod rights;
mod roots;

pub(crate) use self::doomed::Doomed;
pub(crate) use self::rights::{administers, change_mode};
pub(crate) use self::roots::{Root, Roots};

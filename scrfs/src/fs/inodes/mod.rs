//! Inodes that the kernel knows: their numbers, their names, and the files behind them.
//!
//! [`Table`] owns them. `numbers` says which number an inode gets, `nodes` is what the table's lock
//! guards, `parked` closes descriptors that nobody uses, and `admission` says what programs may
//! hold open. A change of names in a directory excludes lookups there (`gates`); names that got
//! files of their own are remembered for requests that are under way (`partings`).

mod admission;
mod gates;
mod inode;
mod nodes;
mod numbers;
mod parked;
mod partings;
mod table;

pub(crate) use self::gates::Change;
pub(crate) use self::inode::{Backing, Inode, Key};
pub use self::numbers::ROOT;
pub(crate) use self::numbers::{EYES, is_eye};
pub(crate) use self::partings::Moment;
pub(crate) use self::table::Table;

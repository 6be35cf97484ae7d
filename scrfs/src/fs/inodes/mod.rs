//! Inodes that the kernel knows: their numbers, their names, and the files behind them.

mod gates;
mod inode;
mod nodes;
mod numbers;
mod parked;
mod partings;
mod table;

pub(crate) use self::gates::{Change, Gates};
pub(crate) use self::inode::{Backing, Inode, Key};
pub use self::numbers::ROOT;
pub(crate) use self::numbers::{EYES, is_eye};
pub(crate) use self::partings::{Moment, Partings};
pub(crate) use self::table::Table;

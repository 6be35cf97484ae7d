//! What a dataset is once it is sealed: its [`Catalog`], the same on every node.

mod catalog;
mod moves;
mod room;

pub use catalog::{Catalog, CatalogIndex, Entry, EntryKind, FileCopy, Layout, MemberPlace, Scheme, Stamp};
pub use moves::Moves;

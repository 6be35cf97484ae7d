//! What a dataset is once it is sealed: its [`Catalog`], the same on every node.

mod catalog;
pub mod lifecycle;
mod losses;
mod names;
pub mod protection;
mod room;

pub use catalog::{Catalog, CatalogIndex, Entry, EntryKind, FileCopy, Layout, MemberPlace, Scheme, Stamp};
pub use losses::Repair;
pub use names::Names;
pub use protection::{NODE, Protection, Protections};

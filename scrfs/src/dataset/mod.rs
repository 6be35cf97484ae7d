//! What a dataset is once it is sealed: its [`Catalog`], the same on every node.

mod catalog;
pub mod lifecycle;
mod losses;
mod names;
pub mod protection;
mod room;

pub use catalog::{
    Catalog, CatalogIndex, Entry, EntryKind, FileCopy, Layout, MemberPlace, Revision, Scheme, Stamp,
};
pub use losses::Repair;
pub use names::Names;
pub use protection::{NODE, Protection, Protections};

/// The marker's name at the top of a dataset's directory.
pub const MARKER: &[u8] = b".complete";
/// At the top of a dataset's directory it keeps the dataset from being sealed.
pub const INVALID: &[u8] = b".invalid";
/// These mode bits together, which mean nothing on a directory and which nobody sets, mark the
/// directory of a flat dataset: its files are directly in the checkpoint path.
pub const FLAT: u32 = libc::S_ISUID | libc::S_ISVTX;

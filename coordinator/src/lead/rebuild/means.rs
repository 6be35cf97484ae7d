//! What a node has recorded of a dataset may belong to an older catalog than the newest.

use scrfs::dataset::Catalog;

use crate::lead::catalog::same_files;

/// How an older catalog compares with the newest one.
#[derive(Debug, Clone, Copy)]
pub(super) enum Means {
    /// The same.
    All,
    /// The same of their files; what protects them is another encoding's.
    Files,
    /// Something else.
    Other,
}

impl Means {
    pub(super) fn of(older: &Catalog, newest: &Catalog) -> Self {
        if !same_files(older, newest) {
            Self::Other
        } else if older.layout.encoding != newest.layout.encoding {
            Self::Files
        } else if older.layout.sets == newest.layout.sets {
            Self::All
        } else {
            Self::Other
        }
    }
}

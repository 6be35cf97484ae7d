//! What a path of the mount means: plain scratch, the checkpoint path, a dataset, a marker, a
//! reserved name.

use crate::control::DirOp;
use crate::dataset::{INVALID, MARKER};
use crate::path::{PathError, RelPath};

/// Reserved at the top of a dataset's directory.
pub(crate) const RESERVED_IN_DATASET: &[u8] = b".scr";
/// Reserved at the mount's root; inside the tree the daemon keeps what it is about to delete there.
pub(crate) const RESERVED_AT_ROOT: &[u8] = b".scrfs";

/// Where a path is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    /// Node-local scratch, or a directory above the checkpoint path.
    Outside,
    /// The checkpoint path itself.
    Top,
    /// Directly in the checkpoint path: a dataset's directory, or a loose file.
    Entry(Vec<u8>),
    /// Below a dataset's directory.
    Inside {
        /// The dataset's name.
        dataset: Vec<u8>,
        /// Relative to its directory; never the root.
        inner: RelPath,
    },
}

impl Place {
    /// The dataset that the path belongs to or names.
    pub(crate) fn dataset(&self) -> Option<&[u8]> {
        match self {
            Self::Entry(name) | Self::Inside { dataset: name, .. } => Some(name),
            Self::Outside | Self::Top => None,
        }
    }

    /// True for the marker of a dataset.
    pub(crate) fn is_marker(&self) -> bool {
        matches!(self, Self::Inside { inner, .. } if inner.as_bytes() == MARKER)
    }

    /// The path within the dataset.
    pub(crate) fn inner(&self) -> RelPath {
        match self {
            Self::Inside { inner, .. } => inner.clone(),
            Self::Outside | Self::Top | Self::Entry(_) => RelPath::root(),
        }
    }

    /// True for what keeps a dataset from being sealed.
    pub(crate) fn is_invalid(&self) -> bool {
        matches!(self, Self::Inside { inner, .. } if inner.as_bytes() == INVALID)
    }
}

/// The mount's name rules.
#[derive(Debug, Clone)]
pub(crate) struct Namespace {
    checkpoint: RelPath,
}

impl Namespace {
    /// Datasets live in `checkpoint`, relative to the mount's root.
    pub(crate) fn new(checkpoint: RelPath) -> Self {
        Self { checkpoint }
    }

    /// The checkpoint path.
    pub(crate) fn checkpoint(&self) -> &RelPath {
        &self.checkpoint
    }

    /// Where `path` is.
    pub(crate) fn place(&self, path: &RelPath) -> Place {
        let Some(below) = path.strip(&self.checkpoint) else { return Place::Outside };
        match below.split_first() {
            None => Place::Top,
            Some((name, inner)) if inner.is_root() => Place::Entry(name.to_vec()),
            Some((dataset, inner)) => Place::Inside { dataset: dataset.to_vec(), inner },
        }
    }

    /// No program may make or see this name.
    pub(crate) fn reserved(&self, path: &RelPath) -> bool {
        if path.as_bytes() == RESERVED_AT_ROOT {
            return true;
        }
        matches!(self.place(path), Place::Inside { inner, .. } if inner.as_bytes() == RESERVED_IN_DATASET)
    }

    /// The checkpoint path or a directory above it: neither moves nor goes.
    pub(crate) fn fixed(&self, path: &RelPath) -> bool {
        self.checkpoint.strip(path).is_some()
    }

    /// A marker's name deeper in a dataset: an ordinary file that its maker may have meant as a
    /// marker.
    pub(crate) fn mistaken_marker(&self, path: &RelPath) -> bool {
        let Place::Inside { inner, .. } = self.place(path) else { return false };
        inner.split_last().is_some_and(|(dir, name)| !dir.is_root() && name == MARKER)
    }

    /// What other nodes are told: paths relative to the checkpoint path. `None`: the operation
    /// leads out of it.
    pub(crate) fn outward(&self, op: &DirOp) -> Option<DirOp> {
        with_paths(op, |path| path.strip(&self.checkpoint))
    }

    /// What other nodes tell; the inverse of [`Namespace::outward`]. `None`: the whole path would
    /// be too long.
    pub(crate) fn inward(&self, op: &DirOp) -> Option<DirOp> {
        with_paths(op, |path| self.checkpoint.concat(path).ok())
    }

    /// Where `.invalid` of dataset `name` would be.
    pub(crate) fn invalid_path(&self, name: &[u8]) -> Result<RelPath, PathError> {
        self.dataset_path(name)?.join(INVALID)
    }

    /// The directory of dataset `name`.
    pub(crate) fn dataset_path(&self, name: &[u8]) -> Result<RelPath, PathError> {
        self.checkpoint.join(name)
    }
}

fn with_paths(op: &DirOp, change: impl Fn(&RelPath) -> Option<RelPath>) -> Option<DirOp> {
    let mut op = op.clone();
    match &mut op {
        DirOp::Make { path, .. } | DirOp::Remove { path } => *path = change(path)?,
        DirOp::Rename { from, to, .. } => (*from, *to) = (change(from)?, change(to)?),
    }
    Some(op)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> RelPath {
        RelPath::new(text).unwrap()
    }

    #[test]
    fn places_with_the_root_as_checkpoint_path() {
        let names = Namespace::new(RelPath::root());
        assert_eq!(names.place(&RelPath::root()), Place::Top);
        assert_eq!(names.place(&path("ck")), Place::Entry(b"ck".to_vec()));
        assert_eq!(names.place(&path("ck/a")), Place::Inside { dataset: b"ck".to_vec(), inner: path("a") });
        assert!(names.place(&path("ck/.complete")).is_marker());
        assert!(!names.place(&path(".complete")).is_marker());
        assert!(names.mistaken_marker(&path("ck/a/.complete")));
        assert!(names.reserved(&path(".scrfs")) && names.reserved(&path("ck/.scr")));
        assert!(!names.reserved(&path("ck/a/.scr")));
    }

    #[test]
    fn places_with_a_checkpoint_path_below_the_root() {
        let names = Namespace::new(path("job/ckpt"));
        assert_eq!(names.place(&path("job")), Place::Outside);
        assert_eq!(names.place(&path("scratch/x")), Place::Outside);
        assert_eq!(names.place(&path("job/ckpt")), Place::Top);
        assert_eq!(names.place(&path("job/ckpt/1")), Place::Entry(b"1".to_vec()));
        let here = DirOp::Rename {
            from: path("job/ckpt/1/a"),
            to: path("job/ckpt/2"),
            no_replace: true,
            exchange: false,
        };
        let told = names.outward(&here).unwrap();
        assert!(matches!(&told, DirOp::Rename { from, to, .. } if *from == path("1/a") && *to == path("2")));
        assert_eq!(names.inward(&told), Some(here));
        assert_eq!(names.outward(&DirOp::Remove { path: path("job/other") }), None);
        assert!(names.fixed(&path("job")) && names.fixed(&path("job/ckpt")) && !names.fixed(&path("job/x")));
    }
}

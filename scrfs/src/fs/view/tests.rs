//! A world for the tests of this folder: dataset `sealed` as it was sealed, and dataset `open`, of
//! which the next generation has begun.

use std::sync::Arc;

use super::{Namespace, Place, Sealed, World};
use crate::boundary::Generation;
use crate::dataset::CatalogIndex;
use crate::fs::tests::catalog;
use crate::path::RelPath;

pub(super) fn path(text: &str) -> RelPath {
    RelPath::new(text).unwrap()
}

/// What `text` means, where the checkpoint path is the mount's root.
pub(super) fn at(text: &str) -> Place {
    Namespace::new(RelPath::root()).place(&path(text))
}

pub(super) fn world() -> World {
    let mut world = World::default();
    for (id, name) in [(1, "sealed"), (2, "open")] {
        let index = CatalogIndex::new(catalog(id, name, &[("a", 1), ("changed", 1), ("here", 1)]));
        world.seal(Arc::new(Sealed::new(Arc::new(index))));
    }
    let changed = vec![path("changed")];
    let next = Generation { open: true, changed, ..Generation::default() };
    world.named(b"open").unwrap().take_up(next);
    world
}

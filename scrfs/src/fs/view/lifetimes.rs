//! How long the kernel may keep what it is told of a name.

use std::time::Duration;

use super::place::Place;
use crate::fs::attr::{Attr, Kind};

/// How long it may keep names and attributes that only this node changes. Not longer: stores
/// through a mapping change times that the kernel does not see.
pub(crate) const LOCAL: Duration = Duration::from_secs(1);

/// How long it may keep attributes of a directory whose names other nodes change: one walk along a
/// path.
const WALK: Duration = Duration::from_millis(10);

/// See the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lifetimes {
    /// The name's.
    pub(crate) entry: Duration,
    /// The attributes'.
    pub(crate) attr: Duration,
    /// Another node may change what the name stands for.
    pub(crate) shared: bool,
}

impl Lifetimes {
    /// Of what is in the tree at `place`. `stored`: a program may store through a mapping of it.
    /// `shared`: how long the kernel may keep a name that other nodes change.
    pub(crate) fn of(place: &Place, attr: &Attr, stored: bool, shared: Duration) -> Self {
        // A write clears these bits behind the kernel's back.
        let clears = attr.kind == Kind::File && attr.perm & 0o6000 != 0;
        let own = if clears { Duration::ZERO } else { LOCAL };
        let (entry, attr, is_shared) = match place {
            Place::Entry(_) | Place::Inside { .. } if attr.kind == Kind::Directory => (shared, WALK, true),
            Place::Inside { .. } if place.is_marker() => (Duration::ZERO, Duration::ZERO, true),
            // A pointer file: another node may put another one in its place.
            Place::Entry(_) => (shared, own, true),
            // A seal makes its names files of their own.
            Place::Inside { .. } if attr.kind == Kind::File && attr.nlink > 1 => (shared, own, false),
            Place::Outside | Place::Top | Place::Inside { .. } => (LOCAL, own, false),
        };
        Self { entry, attr: if stored { Duration::ZERO } else { attr }, shared: is_shared }
    }

    /// Of a sealed name: its next generation, sealed from another node, may have another file there
    /// at any time.
    pub(crate) fn of_sealed(attr: &Attr, shared: Duration) -> Self {
        let of_attr = if attr.kind == Kind::Directory { WALK } else { shared };
        Self { entry: shared, attr: of_attr, shared: true }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::Stamp;
    use crate::fs::view::tests::at;

    #[test]
    fn what_other_nodes_change_is_kept_no_longer_than_they_let() {
        let file = Attr::of_empty_file(2, (0, 0), Stamp::default());
        let directory = Attr { kind: Kind::Directory, ..file.clone() };
        let (linked, setuid) = (Attr { nlink: 2, ..file.clone() }, Attr { perm: 0o4755, ..file.clone() });
        let (short, none) = (Duration::from_millis(500), Duration::ZERO);
        for (place, attr, entry, of_attr, shared) in [
            (Place::Outside, &directory, LOCAL, LOCAL, false),
            (at("d"), &directory, short, WALK, true),
            (at("latest"), &file, short, LOCAL, true),
            (at("d/a"), &file, LOCAL, LOCAL, false),
            (at("d/a"), &linked, short, LOCAL, false),
            (at("d/a"), &setuid, LOCAL, none, false),
            (at("d/.complete"), &file, none, none, true),
        ] {
            let found = Lifetimes::of(&place, attr, false, short);
            assert_eq!(found, Lifetimes { entry, attr: of_attr, shared }, "{place:?}");
            assert_eq!(Lifetimes::of(&place, attr, true, short).attr, none, "it may be stored to");
        }
        assert_eq!(Lifetimes::of_sealed(&file, short).attr, short);
        assert_eq!(Lifetimes::of_sealed(&directory, short).attr, WALK);
    }
}

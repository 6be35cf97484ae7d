//! Votes on directory operations, as far as what is sealed and frozen decides them. What is in the
//! trees is asked for only where it matters.

use super::place::Place;
use super::world::World;
use crate::errno::Errno;
use crate::fs::attr::Kind;
use crate::fs::errno::fail;
use crate::path::RelPath;

/// What becomes of the name that a directory gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target {
    /// Nothing has it.
    Free,
    /// A directory has it, which has to be empty.
    Replaced,
    /// A directory has it, which moves in turn.
    Exchanged,
}

impl Target {
    /// Of a name at which `there` is.
    pub(crate) fn of(there: Result<Kind, Errno>, no_replace: bool, exchange: bool) -> Result<Self, Errno> {
        match there {
            Ok(_) if no_replace => fail(libc::EEXIST),
            Ok(Kind::Directory) if exchange => Ok(Self::Exchanged),
            Ok(Kind::Directory) => Ok(Self::Replaced),
            Ok(_) => fail(libc::ENOTDIR),
            Err(Errno(libc::ENOENT)) if !exchange => Ok(Self::Free),
            Err(error) => Err(error),
        }
    }
}

impl World {
    /// A dataset that is being sealed: its directories are in the catalog by now.
    pub(crate) fn refuse_frozen(&self, place: &Place) -> Result<(), Errno> {
        if self.frozen(place) { fail(libc::EBUSY) } else { Ok(()) }
    }

    /// May a directory be made at `place`? True: if the trees allow it.
    pub(crate) fn vote_make(&self, place: &Place) -> Result<bool, Errno> {
        let Some(sealed) = self.sealed(place) else { return self.refuse_frozen(place).map(|()| true) };
        let inner = place.inner();
        if sealed.kind(&inner).is_some() {
            return fail(libc::EEXIST);
        }
        self.refuse_frozen(place)?;
        let (above, _) = inner.split_last().ok_or(Errno(libc::EEXIST))?;
        if sealed.kind(&above) == Some(Kind::Directory) { Ok(false) } else { fail(libc::ENOENT) }
    }

    /// May the directory at `place` be removed? True: if nobody uses it. `there` looks what is in
    /// the trees; `is_asked`: a program of this node wants it.
    pub(crate) fn vote_remove(
        &self,
        place: &Place,
        there: impl FnOnce() -> Result<Kind, Errno>,
        is_asked: bool,
    ) -> Result<bool, Errno> {
        if let Some(sealed) = self.sealed(place) {
            // A file that is removed before a directory gets its name; or it is hidden here
            // already, and what another node wants is done.
            return Ok(sealed.kind(&place.inner()) == Some(Kind::Directory));
        }
        match there() {
            Ok(Kind::Directory) => Ok(true),
            // The same of a file that is as it was sealed.
            Ok(_) if self.is_as_sealed(place) => Ok(false),
            // Removed here already, or never made for want of room: what another node wants is
            // done.
            Err(Errno(libc::ENOENT)) if self.open(place).is_some() || !is_asked => Ok(false),
            other => other.and_then(|_| fail(libc::ENOTDIR)),
        }
    }

    /// May a directory be renamed, as far as the paths and what is sealed decide?
    pub(crate) fn vote_rename(
        &self,
        (from, from_place): (&RelPath, &Place),
        (to, to_place): (&RelPath, &Place),
        exchange: bool,
    ) -> Result<(), Errno> {
        self.refuse_frozen(from_place)?;
        self.refuse_frozen(to_place)?;
        if self.base(from_place).is_some() || self.base(to_place).is_some() {
            // Records name a dataset by its directory, and its files by where they were sealed.
            return fail(libc::EXDEV);
        }
        let is_inside = |path: &RelPath, dir: &RelPath| path.strip(dir).is_some_and(|below| !below.is_root());
        if is_inside(to, from) || exchange && is_inside(from, to) { fail(libc::EINVAL) } else { Ok(()) }
    }

    /// Nobody has changed the file here.
    fn is_as_sealed(&self, place: &Place) -> bool {
        let inner = place.inner();
        self.open(place).is_some_and(|open| open.kind(&inner).is_some() && !open.is_changed(&inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::view::tests::{at, path, world};

    fn code<T>(vote: Result<T, Errno>) -> Result<T, i32> {
        vote.map_err(|Errno(number)| number)
    }

    #[test]
    fn votes_on_making() {
        let mut world = world();
        world.freeze(b"frozen");
        for (place, vote) in [
            ("new", Ok(true)),
            ("sealed", Err(libc::EEXIST)),
            ("sealed/a", Err(libc::EEXIST)),
            ("sealed/b", Ok(false)),
            ("sealed/none/b", Err(libc::ENOENT)),
            ("sealed/a/b", Err(libc::ENOENT)),
            ("open/b", Ok(true)),
            ("frozen/b", Err(libc::EBUSY)),
        ] {
            assert_eq!(code(world.vote_make(&at(place))), vote, "{place}");
        }
    }

    #[test]
    fn votes_on_removing() {
        let world = world();
        let (file, directory, none) = (Ok(Kind::File), Ok(Kind::Directory), Err(Errno(libc::ENOENT)));
        for (place, there, is_asked, vote) in [
            ("new", directory, true, Ok(true)),
            ("new", file, true, Err(libc::ENOTDIR)),
            ("new", none, true, Err(libc::ENOENT)),
            ("new", none, false, Ok(false)),
            ("sealed", none, true, Ok(true)),
            ("sealed/a", none, true, Ok(false)),
            ("open/a", file, true, Ok(false)),
            ("open/changed", file, true, Err(libc::ENOTDIR)),
            ("open/a", none, true, Ok(false)),
        ] {
            assert_eq!(code(world.vote_remove(&at(place), || there, is_asked)), vote, "{place} {there:?}");
        }
    }

    #[test]
    fn votes_on_renaming() {
        let mut world = world();
        world.freeze(b"frozen");
        for (from, to, exchange, vote) in [
            ("one", "two", false, Ok(())),
            ("one", "one/below", false, Err(libc::EINVAL)),
            ("one/below", "one", false, Ok(())),
            ("one/below", "one", true, Err(libc::EINVAL)),
            ("sealed", "two", false, Err(libc::EXDEV)),
            ("one", "open/d", false, Err(libc::EXDEV)),
            ("one", "frozen", false, Err(libc::EBUSY)),
        ] {
            let voted = world.vote_rename((&path(from), &at(from)), (&path(to), &at(to)), exchange);
            assert_eq!(code(voted), vote, "{from} {to}");
        }
        let none = Err(Errno(libc::ENOENT));
        assert_eq!(Target::of(none, true, false), Ok(Target::Free));
        assert_eq!(Target::of(none, false, true), Err(Errno(libc::ENOENT)));
        assert_eq!(Target::of(Ok(Kind::Directory), true, false), Err(Errno(libc::EEXIST)));
        assert_eq!(Target::of(Ok(Kind::Directory), false, true), Ok(Target::Exchanged));
        assert_eq!(Target::of(Ok(Kind::File), false, false), Err(Errno(libc::ENOTDIR)));
    }
}

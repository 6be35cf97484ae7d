//! What rename(2) may do with names of sealed datasets, and who takes part in it. What is in the
//! trees is asked for only where it matters.

use super::place::Place;
use super::sealed::Sealed;
use super::world::World;
use crate::errno::Errno;
use crate::fs::attr::Kind;
use crate::fs::errno::{Stop, fail};

/// A name goes from one place to another, and with `exchange` what is there comes back.
pub(crate) struct Move<'a> {
    pub(crate) world: &'a World,
    pub(crate) from: &'a Place,
    pub(crate) to: &'a Place,
    pub(crate) exchange: bool,
}

/// Who renames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    /// This node alone.
    Here,
    /// All nodes: a directory of the checkpoint path moves.
    Everywhere,
}

impl<'a> Move<'a> {
    /// The dataset whose marker is set once more by this: two ranks set it at once, and this one's
    /// file was sealed with the rest meanwhile.
    pub(crate) fn repeats_marker(&self) -> Option<&'a Sealed> {
        let sealed = self.world.sealed(self.from)?;
        let same = self.to.is_marker() && self.to.dataset() == self.from.dataset();
        (same && !self.exchange && sealed.kind(&self.from.inner()) == Some(Kind::File)).then_some(sealed)
    }

    /// May it be done, as far as what is sealed decides? EBUSY of a dataset that was changed since.
    pub(crate) fn of_sealed(
        &self,
        source: impl Fn() -> Result<Kind, Errno>,
        target: impl Fn() -> Result<Kind, Errno>,
    ) -> Result<(), Errno> {
        let (from, to) = (self.world.base(self.from), self.world.base(self.to));
        if let (Place::Entry(_), Some(sealed)) = (self.from, from) {
            // Records name a dataset by its directory. But on EXDEV `mv` copies and then removes.
            // Of a changed dataset it would copy all but the marker, which is not listed, and then
            // remove what is protected.
            let changed = sealed.has_next() || !sealed.shows_marker();
            return fail(if changed { libc::EBUSY } else { libc::EXDEV });
        }
        if matches!(self.to, Place::Entry(_)) && to.is_some() {
            let directory = source()? == Kind::Directory;
            return fail(if directory { libc::ENOTEMPTY } else { libc::EISDIR });
        }
        // Its files are recorded by where they were sealed.
        let of_directory =
            || self.is_directory(self.from, &source) || self.exchange && self.is_directory(self.to, &target);
        if (from.is_some() || to.is_some()) && of_directory() { fail(libc::EXDEV) } else { Ok(()) }
    }

    fn is_directory(&self, place: &Place, there: impl Fn() -> Result<Kind, Errno>) -> bool {
        match self.world.sealed(place) {
            Some(sealed) => sealed.kind(&place.inner()) == Some(Kind::Directory),
            None => there() == Ok(Kind::Directory),
        }
    }

    /// Who renames what is of kind `source`, in the place of what is of kind `target`.
    pub(crate) fn scope(&self, source: Kind, target: Option<Kind>, whiteout: bool) -> Result<Scope, Stop> {
        let back = Some(Kind::Directory).filter(|_| self.exchange);
        let directory = source == Kind::Directory || back.is_some() && target == back;
        let global = |place: &Place| !matches!(place, Place::Outside | Place::Top);
        if !directory || !(global(self.from) || global(self.to)) {
            return Ok(Scope::Here);
        }
        // Between scratch and the checkpoint path a directory would change from this node's to
        // everybody's.
        let crosses = !(global(self.from) && global(self.to));
        if crosses || source != Kind::Directory || self.exchange && target != back {
            return fail(libc::EXDEV);
        }
        if target.is_some_and(|kind| kind != Kind::Directory) {
            return fail(libc::ENOTDIR);
        }
        // Whole directories move: nothing in them may change or be frozen meanwhile.
        if self.world.frozen(self.from) || self.world.frozen(self.to) {
            return Err(Stop::Frozen);
        }
        if whiteout { fail(libc::EINVAL) } else { Ok(Scope::Everywhere) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::view::tests::{at, world};

    const FILE: Kind = Kind::File;
    const DIRECTORY: Kind = Kind::Directory;

    fn stop(number: i32) -> Stop {
        Stop::Errno(Errno(number))
    }

    #[test]
    fn what_is_sealed_stays_where_it_is() {
        let world = world();
        for (from, to, source, may) in [
            ("sealed", "other", Ok(DIRECTORY), Err(libc::EXDEV)),
            ("open", "other", Ok(DIRECTORY), Err(libc::EBUSY)),
            ("other", "sealed", Ok(DIRECTORY), Err(libc::ENOTEMPTY)),
            ("other", "sealed", Ok(FILE), Err(libc::EISDIR)),
            ("other", "sealed", Err(Errno(libc::ENOENT)), Err(libc::ENOENT)),
            ("open/d", "open/e", Ok(DIRECTORY), Err(libc::EXDEV)),
            ("open/a", "open/e", Ok(FILE), Ok(())),
            ("sealed/a", "sealed/e", Err(Errno(libc::ENOENT)), Ok(())),
            ("other/d", "other/e", Ok(DIRECTORY), Ok(())),
        ] {
            let (from_place, to_place) = (at(from), at(to));
            let way = Move { world: &world, from: &from_place, to: &to_place, exchange: false };
            let found = way.of_sealed(|| source, || Err(Errno(libc::ENOENT)));
            assert_eq!(found.map_err(|Errno(number)| number), may, "{from} {to}");
        }
        let (from, to, other) = (at("sealed/a"), at("sealed/.complete"), at("open/.complete"));
        let way = Move { world: &world, from: &from, to: &to, exchange: false };
        assert!(way.repeats_marker().is_some());
        assert!(Move { to: &other, ..way }.repeats_marker().is_none());
        let way = Move { world: &world, from: &from, to: &to, exchange: true };
        assert!(way.repeats_marker().is_none(), "both names stay");
    }

    #[test]
    fn directories_of_the_checkpoint_path_move_everywhere() {
        let mut world = world();
        world.freeze(b"frozen");
        for (from, to, kinds, exchange, scope) in [
            ("a/f", "b/f", (FILE, None), false, Ok(Scope::Here)),
            ("a/d", "b/d", (DIRECTORY, None), false, Ok(Scope::Everywhere)),
            ("a/d", "b/d", (DIRECTORY, Some(FILE)), false, Err(stop(libc::ENOTDIR))),
            ("a/d", "b/d", (DIRECTORY, Some(DIRECTORY)), true, Ok(Scope::Everywhere)),
            ("a/f", "b/d", (FILE, Some(DIRECTORY)), true, Err(stop(libc::EXDEV))),
            ("a/d", "../d", (DIRECTORY, None), false, Err(stop(libc::EXDEV))),
            ("../c", "../d", (DIRECTORY, None), false, Ok(Scope::Here)),
            ("frozen/d", "b/d", (DIRECTORY, None), false, Err(Stop::Frozen)),
        ] {
            let place = |text| if text == "../c" || text == "../d" { Place::Outside } else { at(text) };
            let (from_place, to_place) = (place(from), place(to));
            let way = Move { world: &world, from: &from_place, to: &to_place, exchange };
            assert_eq!(way.scope(kinds.0, kinds.1, false), scope, "{from} {to} {kinds:?}");
        }
        let (from, to) = (at("a/d"), at("b/d"));
        let way = Move { world: &world, from: &from, to: &to, exchange: false };
        assert_eq!(way.scope(DIRECTORY, None, true), Err(stop(libc::EINVAL)));
    }
}

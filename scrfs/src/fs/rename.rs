//! rename(2): files here, directories of the checkpoint path through the lead.

use std::sync::Arc;

use rustix::fs::{AtFlags, FileType, RenameFlags, Stat};

use super::FileSystem;
use super::attr::Kind;
use super::create::{Grows, effect};
use super::errno::{Stop, fail};
use super::inodes::Key;
use super::intent::key_at;
use super::view::{Move, Scope, World};
use super::wait::Done;
use crate::boundary::Marking;
use crate::caller::Caller;
use crate::control::DirOp;
use crate::errno::Errno;
use crate::keep::decide::{Intent, Now};
use crate::keep::intents::is_resent;
use crate::path::RelPath;

/// A name in a directory.
type At = (u64, Vec<u8>);

/// rename(2) and link(2) hold directories until they are answered.
pub(crate) const HOLDS: Marking = Marking { holds_directory: true, everywhere: false };

enum Step {
    Renamed,
    Marker(Vec<u8>),
    Global(DirOp),
}

impl FileSystem {
    /// rename(2) and renameat2(2) with its `flags`. Renaming onto the marker's name
    /// sets the marker.
    pub fn rename(
        self: &Arc<Self>,
        caller: Caller,
        from: (u64, &[u8]),
        to: (u64, &[u8]),
        flags: u32,
        done: Done<()>,
    ) {
        let flags = RenameFlags::from_bits_retain(flags);
        let known = RenameFlags::NOREPLACE | RenameFlags::EXCHANGE | RenameFlags::WHITEOUT;
        if !known.contains(flags) {
            return done(fail(libc::EINVAL));
        }
        let done = self.after_loose(caller, &[from, to], |fs, ()| fs.changed(), done);
        let from: At = (from.0, from.1.to_vec());
        let to: At = (to.0, to.1.to_vec());
        // A directory has no place in the journal, and what replaces nothing new is there already.
        let file = self.is_regular_at(&from);
        if file && let Err(error) = self.announce(caller, (to.0, &to.1), Grows::No) {
            return done(Err(error));
        }
        let fs = Arc::clone(self);
        let finish = move |moved: Result<(Step, Option<Vec<u8>>), Errno>| {
            let (step, left) = match moved {
                Ok(moved) => moved,
                Err(error) => return done(Err(error)),
            };
            let done = fs.after_leaving(left, caller, done);
            match step {
                Step::Renamed => done(Ok(())),
                Step::Marker(dataset) => {
                    fs.set_marker_by_name(&dataset, HOLDS, caller, Box::new(move |()| done(Ok(()))));
                }
                Step::Global(op) => {
                    let (after, renamed) = (Arc::clone(&fs), op.clone());
                    let answer = move |outcome: Result<(), Errno>| match renamed {
                        DirOp::Rename { to, .. } if outcome.is_ok() => {
                            after.renamed_to(&to, caller, Box::new(move |()| done(Ok(()))));
                        }
                        _ => done(outcome),
                    };
                    fs.ask_directory(op, caller, Box::new(answer));
                }
            }
        };
        let step = move |fs: &Self, world: &World| fs.rename_found(world, caller, &from, &to, flags);
        self.attempt(caller, step, Box::new(finish));
    }

    /// Finds where both names are. Also tells the flat dataset that a file has left.
    fn rename_found(
        &self,
        world: &World,
        caller: Caller,
        from: &At,
        to: &At,
        flags: RenameFlags,
    ) -> Result<(Step, Option<Vec<u8>>), Stop> {
        if !self.view.has_pattern() {
            return Ok((self.rename_now(world, caller, from, to, flags)?, None));
        }
        let source = self.spot(world, from.0, &from.1)?;
        let target = if self.kind_at(&source.at()) == Ok(Kind::Directory) {
            self.spot_of_directory(world, to.0, &to.1)?
        } else {
            self.spot_to_make(world, to.0, &to.1)?
        };
        if target.dataset().is_some() && self.kind_at(&source.at()) == Ok(Kind::File) {
            self.announce_in(world, caller, &self.table.path_in(target.parent, &target.name)?, Grows::No)?;
        }
        let left = source.dataset().filter(|name| target.dataset() != Some(name)).map(<[u8]>::to_vec);
        Ok((self.rename_now(world, caller, &source.at(), &target.at(), flags)?, left))
    }

    /// `done`, after a flat dataset that a file has left, if that was its last one, is gone.
    fn after_leaving(self: &Arc<Self>, left: Option<Vec<u8>>, caller: Caller, done: Done<()>) -> Done<()> {
        let Some(left) = left else { return done };
        let fs = Arc::clone(self);
        Box::new(move |outcome| match outcome {
            Ok(()) => fs.tidy_flat(&left, caller, done),
            Err(error) => done(Err(error)),
        })
    }

    fn is_regular_at(&self, at: &At) -> bool {
        self.kind_at(at).is_ok_and(|kind| kind == Kind::File)
    }

    fn kind_at(&self, at: &At) -> Result<Kind, Errno> {
        Ok(kind_of(&self.stat_at(at)?.ok_or(Errno(libc::ENOENT))?))
    }

    /// What has that name, if something has.
    fn stat_at(&self, at: &At) -> Result<Option<Stat>, Errno> {
        let dir = self.directory_of(at.0, &at.1)?;
        match rustix::fs::statat(&dir, &*at.1, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(rustix::io::Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// What a predecessor did for this request.
    fn renamed_before(
        &self,
        world: &World,
        unique: u64,
        (from, to): (&At, &At),
        (from_path, to_path): (&RelPath, &RelPath),
        flags: RenameFlags,
    ) -> Result<Option<Step>, Errno> {
        if self.intents.asked_before(unique) {
            let (from, to) = (from_path.clone(), to_path.clone());
            let no_replace = flags.contains(RenameFlags::NOREPLACE);
            let exchange = flags.contains(RenameFlags::EXCHANGE);
            return Ok(Some(Step::Global(DirOp::Rename { from, to, no_replace, exchange })));
        }
        let from_place = self.view.place(from_path);
        let seen = || world.base(&from_place).is_some_and(|base| base.entry(&from_place.inner()).is_some());
        if !self.intents.had_effect(unique, || {
            let name = self.key_of_name(from)?;
            Ok(Now { name, to: self.key_of_name(to)?, present: !seen(), ..Now::default() })
        })? {
            return Ok(None);
        }
        if matches!(self.intents.of(unique), Some(Intent::Hide)) {
            return Ok(Some(Step::Renamed));
        }
        let place = self.view.place(to_path);
        if self.view.is_mark(&place) && self.kind_at(to)? == Kind::File {
            return Ok(Some(Step::Marker(place.dataset().unwrap_or_default().to_vec())));
        }
        Ok(Some(Step::Renamed))
    }

    fn key_of_name(&self, at: &At) -> Result<Option<Key>, Errno> {
        key_at(self.directory_of(at.0, &at.1)?, &at.1)
    }

    fn rename_now(
        &self,
        world: &World,
        caller: Caller,
        from: &At,
        to: &At,
        flags: RenameFlags,
    ) -> Result<Step, Stop> {
        let unique = caller.unique;
        let _change = self.table.change_two(from.0, to.0);
        let key = |at| self.key_of_name(at).ok().flatten();
        if is_resent(unique) {
            // What is done waits for nothing: a freeze, of which it was the marker, goes on.
            let paths = (self.table.path_in(from.0, &from.1)?, self.table.path_in(to.0, &to.1)?);
            if let Some(step) = self.renamed_before(world, unique, (from, to), (&paths.0, &paths.1), flags)? {
                return Ok(step);
            }
        }
        let (from_path, from_place) = self.may_change_with(world, from.0, &from.1, key(to))?;
        let (to_path, to_place) = self.may_change_with(world, to.0, &to.1, key(from))?;
        let exchange = flags.contains(RenameFlags::EXCHANGE);
        let way = Move { world, from: &from_place, to: &to_place, exchange };
        if let Some(sealed) = way.repeats_marker() {
            // Its file was sealed as data, and is none: other nodes hear of that at the next seal.
            self.intents.begin(unique, Intent::Hide);
            self.removes(sealed, &from_place.inner())?;
            self.keep_hidden(sealed, &from_path);
            self.table.cut(from.0, &from.1);
            return Ok(Step::Renamed);
        }
        let may = way.of_sealed(|| self.kind_at(from), || self.kind_at(to));
        if may == fail(libc::EBUSY) {
            self.node.note(format!(
                "{from_path}: not renamed, for it was changed since it was sealed: set its .complete again first"
            ));
        }
        may?;
        let leaves = from_place.dataset() != to_place.dataset();
        self.ready_to_move(world, (&from_path, &from_place), (from.0, &from.1), leaves, caller)?;
        if exchange {
            self.ready_to_move(world, (&to_path, &to_place), (to.0, &to.1), leaves, caller)?;
        } else if flags.contains(RenameFlags::NOREPLACE)
            && self.elsewhere(world, &to_path, &to_place).is_some()
        {
            return fail(libc::EEXIST);
        }
        match world.sealed(&to_place) {
            // The marker may be set again by a rename, as by any other way.
            Some(sealed) if to_place.is_marker() => {
                if !sealed.shows_marker() {
                    self.intents.show(sealed, &to_place.inner());
                }
            }
            _ => world.need_open(&to_place)?,
        }
        if self.view.names().fixed(&from_path) || self.view.names().fixed(&to_path) {
            return fail(libc::EBUSY);
        }
        let source = self.kind_at(from)?;
        if to_place.is_marker() && source != Kind::File {
            return fail(libc::EPERM);
        }
        let replaced = self.stat_at(to)?;
        let target = replaced.as_ref().map(kind_of);
        if way.scope(source, target, flags.contains(RenameFlags::WHITEOUT))? == Scope::Everywhere {
            let no_replace = flags.contains(RenameFlags::NOREPLACE);
            return Ok(Step::Global(DirOp::Rename { from: from_path, to: to_path, no_replace, exchange }));
        }
        let (from_dir, to_dir) = (self.directory_of(from.0, &from.1)?, self.directory_of(to.0, &to.1)?);
        // A marker that is not listed is not there for the program that says NOREPLACE.
        let flags = if to_place.is_marker() { flags - RenameFlags::NOREPLACE } else { flags };
        let change = || -> Result<(), Errno> {
            self.note_move(world, &from_place, &to_place, source == Kind::File, caller)?;
            if exchange {
                self.note_move(world, &to_place, &from_place, target == Some(Kind::File), caller)?;
            }
            if unique != 0
                && let Some(moved) = self.key_of_name(from)?
            {
                let to = self.key_of_name(to)?;
                self.intents.begin(unique, Intent::Rename { from: moved, to, exchange });
            }
            // A whiteout is a new file, in the old place.
            self.trees
                .made_by(caller, 0, || rustix::fs::renameat_with(&from_dir, &*from.1, &to_dir, &*to.1, flags))
        };
        if let Err(error) = change() {
            self.stays(world, (&from_path, &from_place), caller);
            self.stays(world, (&to_path, &to_place), caller);
            return Err(error.into());
        }
        effect()?;
        if let (Some(replaced), Some(sealed)) = (replaced.filter(|_| !exchange), world.open(&to_place)) {
            Self::keep_nameless(sealed, &replaced);
        }
        self.table.rename((from.0, &from.1), (to.0, &to.1), exchange);
        if self.view.is_mark(&to_place) && source == Kind::File {
            return Ok(Step::Marker(to_place.dataset().unwrap_or_default().to_vec()));
        }
        Ok(Step::Renamed)
    }
}

fn kind_of(stat: &Stat) -> Kind {
    Kind::of(FileType::from_raw_mode(stat.st_mode))
}

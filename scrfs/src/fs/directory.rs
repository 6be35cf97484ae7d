//! Directories of the checkpoint path: every change goes to the lead and takes effect on all nodes
//! (`scrfs/docs/protocol.md`, Directories).

use std::sync::Arc;

use super::FileSystem;
use super::attr::{Kind, stat_of};
use super::backing::open_path;
use super::errno::{Stop, fail};
use super::names::Entry;
use super::view::{Place, Target, World};
use super::wait::Done;
use crate::caller::Caller;
use crate::control::DirOp;
use crate::errno::Errno;
use crate::path::RelPath;

enum Step<T> {
    Here(T),
    Global(DirOp),
}

impl FileSystem {
    /// mkdir(2).
    pub fn mkdir(self: &Arc<Self>, caller: Caller, parent: u64, name: &[u8], mode: u32, done: Done<Entry>) {
        let fs = Arc::clone(self);
        let made = name.to_vec();
        let finish = move |step: Result<Step<Entry>, Errno>| match step {
            Ok(Step::Here(entry)) => done(Ok(entry)),
            Ok(Step::Global(op)) => {
                let after = Arc::clone(&fs);
                let answer = move |outcome: Result<(), Errno>| match outcome {
                    Ok(()) => after.lookup_for(parent, &made, done),
                    Err(error) => done(Err(error)),
                };
                fs.ask_directory(op, caller, Box::new(answer));
            }
            Err(error) => done(Err(error)),
        };
        let name = name.to_vec();
        let step = move |fs: &Self, world: &World| fs.mkdir_now(world, caller, parent, &name, mode);
        self.attempt(caller, step, Box::new(finish));
    }

    fn mkdir_now(
        &self,
        world: &World,
        caller: Caller,
        parent: u64,
        name: &[u8],
        mode: u32,
    ) -> Result<Step<Entry>, Stop> {
        let _change = self.table.change(parent);
        if self.intents.asked_before(caller.unique) {
            let path = self.table.path_in(parent, name)?;
            return Ok(Step::Global(self.make_op(caller, path, parent, mode)?));
        }
        let made = self.intents.has_made(caller.unique, &*self.table.get(parent)?.fd()?, name)?;
        let (path, place) = self.may_make(world, parent, name, None)?;
        if place.is_marker() {
            // The marker is a file.
            return fail(libc::EPERM);
        }
        let dir = self.table.get(parent)?.fd()?;
        world.need_gone(&path, &place)?;
        if matches!(place, Place::Outside | Place::Top) {
            if made {
                self.trees.complete_mode(open_path(&dir, name)?, mode)?;
            } else {
                self.intents.will_make(caller.unique, &dir, name)?;
                self.trees.make_directory_in(&dir, name, caller, mode)?;
                super::create::effect()?;
            }
            return Ok(Step::Here(self.lookup_in(world, parent, name)?));
        }
        Ok(Step::Global(self.make_op(caller, path, parent, mode)?))
    }

    /// A directory made by `caller`: in a setgid directory it is one too, and of its group.
    fn make_op(&self, caller: Caller, path: RelPath, parent: u64, mode: u32) -> Result<DirOp, Errno> {
        let above = stat_of(self.table.get(parent)?.fd()?)?;
        let setgid = above.st_mode & libc::S_ISGID != 0;
        Ok(DirOp::Make {
            path,
            mode: mode & 0o7777 | if setgid { libc::S_ISGID } else { 0 },
            uid: caller.uid,
            gid: if setgid { above.st_gid } else { caller.gid },
        })
    }

    /// rmdir(2).
    pub fn rmdir(self: &Arc<Self>, caller: Caller, parent: u64, name: &[u8], done: Done<()>) {
        let fs = Arc::clone(self);
        let finish = move |step: Result<Step<()>, Errno>| match step {
            Ok(Step::Here(())) => done(Ok(())),
            Ok(Step::Global(op)) => fs.ask_directory(op, caller, done),
            Err(error) => done(Err(error)),
        };
        let name = name.to_vec();
        let step = move |fs: &Self, world: &World| fs.rmdir_now(world, caller, parent, &name);
        self.attempt(caller, step, Box::new(finish));
    }

    fn rmdir_now(&self, world: &World, caller: Caller, parent: u64, name: &[u8]) -> Result<Step<()>, Stop> {
        let _change = self.table.change(parent);
        if self.intents.asked_before(caller.unique) {
            return Ok(Step::Global(DirOp::Remove { path: self.table.path_in(parent, name)? }));
        }
        let (path, place) = self.may_change(world, parent, name)?;
        if self.view.names().fixed(&path) {
            return fail(libc::EBUSY);
        }
        if matches!(place, Place::Outside | Place::Top) {
            self.rmdir_local(caller, parent, name)?;
            return Ok(Step::Here(()));
        }
        if world.frozen(&place) {
            return Err(Stop::Frozen);
        }
        // The lookup gives the directory a number to list it by; it is given back at once.
        let entry = self.lookup_in(world, parent, name)?;
        let empty = self.check_empty(world, entry.attr.nodeid);
        self.forget(entry.attr.nodeid, 1);
        empty?;
        Ok(Step::Global(DirOp::Remove { path }))
    }

    /// Hands an operation to the lead, and its outcome to `done`.
    pub(crate) fn ask_directory(self: &Arc<Self>, op: DirOp, caller: Caller, done: Done<()>) {
        let requests = match self.node.get() {
            Ok(requests) => requests,
            Err(error) => return done(Err(error)),
        };
        let Some(told) = self.view.names().outward(&op) else { return done(fail(libc::EXDEV)) };
        let request = match self.ask_once(caller.unique, &op, || requests.new_request()) {
            Ok(request) => request,
            Err(outcome) => return done(outcome),
        };
        if let DirOp::Remove { path } = &op {
            self.removals.ask(path);
        }
        let (fs, asked) = (Arc::clone(self), op);
        let answer = move |outcome| {
            let DirOp::Remove { path } = &asked else { return done(outcome) };
            match fs.removals.decided(path) {
                Some(number) if outcome.is_ok() => fs.when_gone(number, caller, done),
                _ => done(outcome),
            }
        };
        requests.directory(request, told, caller, Box::new(answer));
    }

    /// The names have changed. What comes with that can fail yet, and then the kernel would take
    /// them for what they were.
    fn in_spite_of_errors(self: &Arc<Self>, done: Done<()>) -> Done<()> {
        let fs = Arc::clone(self);
        Box::new(move |outcome| {
            if outcome.is_err() {
                fs.changed();
            }
            done(outcome);
        })
    }

    /// Answers a removal when its room is free, as any file system does; should that take too long,
    /// without it.
    fn when_gone(self: &Arc<Self>, number: u64, caller: Caller, done: Done<()>) {
        let done = self.in_spite_of_errors(done);
        let step =
            move |fs: &Self, _: &World| if fs.removals.is_gone(number)? { Ok(()) } else { Err(Stop::Wait) };
        let finish = move |gone: Result<(), Errno>| match gone {
            Err(Errno(libc::ETIMEDOUT)) => done(Ok(())),
            outcome => done(outcome),
        };
        self.attempt(caller, step, Box::new(finish));
    }

    /// May `op` be done here? The vote of [`crate::boundary::MountedTree::prepare`].
    pub(crate) fn vote(&self, world: &World, op: &DirOp) -> Result<(), Errno> {
        for path in super::view::paths_of(op) {
            if self.view.names().reserved(path) || self.view.names().fixed(path) {
                return fail(libc::EPERM);
            }
        }
        match op {
            DirOp::Make { path, .. } => self.vote_make(world, path),
            DirOp::Remove { path } => self.vote_remove(world, path),
            DirOp::Rename { from, to, no_replace, exchange } => {
                self.vote_rename(world, from, to, *no_replace, *exchange)
            }
        }
    }

    fn vote_make(&self, world: &World, path: &RelPath) -> Result<(), Errno> {
        let place = self.view.place(path);
        if self.has_flat_file(world, path) {
            return fail(libc::EEXIST);
        }
        if !world.vote_make(&place)? {
            return Ok(());
        }
        if self.elsewhere(world, path, &place).is_some() {
            return fail(libc::EEXIST);
        }
        match self.trees.kind_of(path) {
            Ok(_) => fail(libc::EEXIST),
            Err(Errno(libc::ENOENT)) => {
                let (above, _) = path.split_last().ok_or(Errno(libc::EEXIST))?;
                self.trees.has_inode(&self.trees.open_directory(&above)?)
            }
            Err(error) => Err(error),
        }
    }

    fn vote_remove(&self, world: &World, path: &RelPath) -> Result<(), Errno> {
        let place = self.view.place(path);
        world.refuse_frozen(&place)?;
        if let Some(vote) = self.vote_flat(world, &place) {
            return vote;
        }
        let is_asked = self.removals.is_asked(path);
        if !world.vote_remove(&place, || self.trees.kind_of(path), is_asked)? {
            return Ok(());
        }
        // Asked for here: empty then, perhaps not now.
        if is_asked && let Some(id) = self.table.find(path) {
            self.check_empty(world, id)?;
        }
        if self.open_below(path) { fail(libc::ENOTEMPTY) } else { Ok(()) }
    }

    fn vote_rename(
        &self,
        world: &World,
        from: &RelPath,
        to: &RelPath,
        no_replace: bool,
        exchange: bool,
    ) -> Result<(), Errno> {
        world.vote_rename((from, &self.view.place(from)), (to, &self.view.place(to)), exchange)?;
        if self.trees.kind_of(from)? != Kind::Directory {
            return fail(libc::ENOTDIR);
        }
        match Target::of(self.trees.kind_of(to), no_replace, exchange)? {
            Target::Replaced if !self.trees.is_empty(to)? => return fail(libc::ENOTEMPTY),
            Target::Replaced | Target::Exchanged => {}
            Target::Free => {
                let (above, _) = to.split_last().ok_or(Errno(libc::EBUSY))?;
                self.trees.open_directory(&above)?;
            }
        }
        self.trees.open_both(from, to, exchange).map(drop)
    }

    /// A file at or below `path` is open here.
    fn open_below(&self, path: &RelPath) -> bool {
        self.files
            .all()
            .iter()
            .any(|handle| self.table.path(handle.inode.id).is_some_and(|file| file.strip(path).is_some()))
    }

    /// Does a decided operation; what is done already is no error.
    pub(crate) fn carry_out(&self, world: &mut World, op: &DirOp) -> Result<(), Errno> {
        match op {
            DirOp::Make { path, mode, uid, gid } => {
                let owner = Caller { uid: *uid, gid: *gid, ..Caller::default() };
                match self.trees.make_directory(path, owner, *mode) {
                    Err(Errno(libc::EEXIST)) if self.trees.open_directory(path).is_ok() => {}
                    outcome => outcome?,
                }
                let place = self.view.place(path);
                if let (Some(sealed), Place::Inside { inner, .. }) = (world.base(&place), &place) {
                    sealed.set_gone(inner);
                }
                Ok(())
            }
            DirOp::Remove { path } => self.remove_directory(world, path),
            DirOp::Rename { from, to, exchange, .. } => self.rename_directory(from, to, *exchange),
        }
    }

    fn remove_directory(&self, world: &mut World, path: &RelPath) -> Result<(), Errno> {
        if self.remove_flat_file(world, path)? {
            return Ok(());
        }
        let place = self.view.place(path);
        match (world.base(&place).cloned(), &place) {
            (Some(sealed), Place::Entry(_)) => {
                world.unlist(sealed.id());
                self.intents.show_all(sealed.id());
                self.removals.take(&self.trees, path)?;
            }
            (Some(sealed), _) => {
                let open = sealed.has_next();
                sealed.set_gone(&place.inner());
                if open && self.trees.kind_of(path).is_ok_and(|kind| kind != Kind::Directory) {
                    self.take_out_file(&sealed, path)?;
                } else if open {
                    self.removals.take(&self.trees, path)?;
                }
            }
            (None, _) => match self.trees.remove_empty(path) {
                // Local files that other nodes never saw go with it.
                Err(Errno(libc::ENOTEMPTY)) => self.removals.take(&self.trees, path)?,
                outcome => outcome?,
            },
        }
        self.table.let_below_go(path);
        Ok(())
    }

    fn rename_directory(&self, from: &RelPath, to: &RelPath, exchange: bool) -> Result<(), Errno> {
        let ((from_dir, from_name), (to_dir, to_name)) =
            from.split_last().zip(to.split_last()).ok_or(Errno(libc::EBUSY))?;
        if self.trees.rename_directory(from, to, exchange)? {
            self.table.move_names((&from_dir, from_name), (&to_dir, to_name), exchange);
        }
        Ok(())
    }
}

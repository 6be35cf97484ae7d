//! Flat datasets: files directly in the checkpoint path whose names tell their dataset
//! (`SCRFS_DATASET_PATTERN`).
//!
//! In the tree, and to everything below it, such a dataset is a directory like any other, called
//! what the pattern captures. Only names differ. A name of the checkpoint path that the pattern
//! matches is that name in the dataset's directory, `.complete.<dataset>` is `.complete` there, and
//! the directory itself is not seen: [`FileSystem::spot`] says where a name is, and after that an
//! operation is one in a dataset. What is seen in the checkpoint path under the very name comes
//! first: a file that was made before there was a pattern stays a loose one.
//!
//! That a directory is one of these its mode tells ([`FLAT`]), which goes wherever the directory
//! goes: to other nodes with the round that makes it, into the catalog, to the prefix and back,
//! past the death of a worker. The round is asked for when the first file of a dataset is made on a
//! node that does not have it. A sealed dataset is flat when its directory was and the pattern
//! gives the names of all its files; otherwise it is seen as the directory that it is.
//!
//! To unlink a sealed file is an operation of all nodes: each rank may remove its own. A dataset of
//! which no node lists a file any more is removed, sealed or not.

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::Arc;

use rustix::fs::{AtFlags, CWD, FileType, Mode, Stat};

use super::attr::{Kind, stat_of};
use super::errno::{Need, Stop, fail};
use super::files::DirEntry;
use super::inodes::Inode;
use super::listing::Looks;
use super::view::{FlatName, Name, Place, Rules, Sealed, World};
use super::wait::Done;
use super::{FileSystem, proc_path};
use crate::caller::Caller;
use crate::control::DirOp;
use crate::dataset::{FLAT, INVALID, MARKER};
use crate::errno::Errno;
use crate::path::RelPath;

/// Where a name is in the tree.
pub(crate) struct Spot<'a> {
    pub(crate) parent: u64,
    pub(crate) name: Cow<'a, [u8]>,
    flat: Option<Held<'a>>,
}

/// A flat dataset whose directory the table keeps meanwhile.
struct Held<'a> {
    fs: &'a FileSystem,
    directory: u64,
    dataset: Vec<u8>,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.fs.forget(self.directory, 1);
    }
}

impl<'a> Spot<'a> {
    fn plain(parent: u64, name: &'a [u8]) -> Self {
        Self { parent, name: Cow::Borrowed(name), flat: None }
    }

    /// The flat dataset that it is in.
    pub(crate) fn dataset(&self) -> Option<&[u8]> {
        self.flat.as_ref().map(|held| held.dataset.as_slice())
    }

    pub(crate) fn at(&self) -> (u64, Vec<u8>) {
        (self.parent, self.name.to_vec())
    }
}

/// Names.
impl FileSystem {
    /// `name` in `parent` is one of a dataset's files by the pattern, or its marker.
    pub(crate) fn is_flat_name(&self, parent: u64, name: &[u8]) -> bool {
        self.in_checkpoint_path(parent) && matches!(self.view.rules().flat(name), Some(Ok(_)))
    }

    fn in_checkpoint_path(&self, parent: u64) -> bool {
        self.view.has_pattern()
            && self.table.path(parent).is_some_and(|path| path == *self.view.names().checkpoint())
    }

    /// Where `name` of `parent` is.
    pub(crate) fn spot<'a>(&'a self, world: &World, parent: u64, name: &'a [u8]) -> Result<Spot<'a>, Errno> {
        if !self.in_checkpoint_path(parent) {
            return Ok(Spot::plain(parent, name));
        }
        match self.view.rules().flat(name) {
            Some(Ok(flat)) if self.is_flat(world, flat.dataset) && !self.is_seen(world, &flat, name) => {
                self.spot_in(world, parent, flat.dataset, flat.inner)
            }
            _ => Ok(Spot::plain(parent, name)),
        }
    }

    /// Where `name` of `parent` is to be made. [`Need::Flat`] when it is the first of its dataset.
    pub(crate) fn spot_to_make<'a>(
        &'a self,
        world: &World,
        parent: u64,
        name: &'a [u8],
    ) -> Result<Spot<'a>, Stop> {
        if !self.in_checkpoint_path(parent) {
            return Ok(Spot::plain(parent, name));
        }
        let flat = match self.view.rules().flat(name) {
            None => return Ok(Spot::plain(parent, name)),
            Some(Err(unfit)) => {
                self.node.note_once(format!("{}: {unfit}; it is a loose file", shown(name)));
                return Ok(Spot::plain(parent, name));
            }
            Some(Ok(flat)) => flat,
        };
        if self.is_seen(world, &flat, name) {
            return Ok(Spot::plain(parent, name));
        }
        if self.is_flat(world, flat.dataset) {
            return Ok(self.spot_in(world, parent, flat.dataset, flat.inner)?);
        }
        let path = self.view.names().dataset_path(flat.dataset)?;
        if world.held(&path) {
            return Err(Stop::Wait);
        }
        if flat.inner != name {
            self.node.note_once(format!("{}: there is no file of such a dataset", shown(name)));
            return fail(libc::ENOENT);
        }
        if world.named(flat.dataset).is_some() || self.trees.stat_below(&path).is_some() {
            self.node.note_once(format!(
                "{}: refused, because {path} is there and is not its dataset",
                shown(name)
            ));
            return fail(libc::EEXIST);
        }
        Err(Stop::Need(Need::Flat(flat.dataset.to_vec())))
    }

    /// Where a directory is to be made by renaming: it is no file of a dataset, and takes no file's
    /// place.
    pub(crate) fn spot_of_directory<'a>(
        &'a self,
        world: &World,
        parent: u64,
        name: &'a [u8],
    ) -> Result<Spot<'a>, Errno> {
        let path = self.table.path_in(parent, name)?;
        if self.has_flat_file(world, &path) { fail(libc::ENOTDIR) } else { Ok(Spot::plain(parent, name)) }
    }

    fn spot_in<'a>(
        &'a self,
        world: &World,
        parent: u64,
        dataset: &[u8],
        inner: &[u8],
    ) -> Result<Spot<'a>, Errno> {
        let directory = self.lookup_hidden(world, parent, dataset)?.attr.nodeid;
        let flat = Some(Held { fs: self, directory, dataset: dataset.to_vec() });
        Ok(Spot { parent: directory, name: Cow::Owned(inner.to_vec()), flat })
    }

    /// A loose file, or a directory, of that very name comes first.
    fn is_seen(&self, world: &World, flat: &FlatName<'_>, name: &[u8]) -> bool {
        let there = || world.named(name).is_some() || self.stat_of_entry(name).is_some();
        flat.inner == name && there() && !self.is_flat(world, name)
    }

    /// The directory of a flat dataset, which programs do not see.
    pub(crate) fn hides(&self, world: &World, place: &Place) -> bool {
        matches!(place, Place::Entry(name) if self.view.has_pattern() && self.is_flat(world, name))
    }

    /// As [`FileSystem::hides`], of a name that is about to change: says so.
    pub(crate) fn refuses(&self, world: &World, path: &RelPath, place: &Place) -> bool {
        let hidden = self.hides(world, place);
        if hidden {
            self.node.note_once(format!(
                "{path}: refused, because files of the checkpoint path are dataset {path}"
            ));
        }
        hidden
    }

    /// Dataset `name` is a flat one.
    pub(crate) fn is_flat(&self, world: &World, name: &[u8]) -> bool {
        if !self.view.has_pattern() {
            return false;
        }
        match world.named(name) {
            Some(sealed) => self.is_sealed_flat(sealed),
            None => self.stat_of_entry(name).is_some_and(|stat| is_marked(&stat)),
        }
    }

    /// Says so when a dataset that was sealed as a flat one cannot be seen as one.
    pub(crate) fn is_sealed_flat(&self, sealed: &Sealed) -> bool {
        if sealed.top().is_none_or(|top| top.mode & FLAT != FLAT) {
            return false;
        }
        let rules = self.view.rules();
        let fits = sealed.is_flat(rules.serial, |path| {
            path.split_last().is_some_and(|(dir, name)| dir.is_root() && rules.gives(name, sealed.name()))
        });
        if !fits {
            self.node.note_once(format!(
                "dataset {0} was sealed as files of the checkpoint path, of which SCRFS_DATASET_PATTERN does not give all names now: they are in directory {0}",
                shown(sealed.name())
            ));
        }
        fits
    }

    fn stat_of_entry(&self, name: &[u8]) -> Option<Stat> {
        self.trees.stat_below(&self.view.names().dataset_path(name).ok()?)
    }
}

/// Listings.
impl FileSystem {
    /// Puts the files of flat datasets into a listing of the checkpoint path, in the place of their
    /// directories.
    pub(crate) fn list_flat(
        &self,
        world: &World,
        top: &Inode,
        looks: Looks,
        entries: &mut Vec<DirEntry>,
    ) -> Result<(), Errno> {
        if !self.view.has_pattern() {
            return Ok(());
        }
        let mut datasets = Vec::new();
        entries.retain(|entry| {
            let flat = entry.kind == Kind::Directory && self.is_flat(world, &entry.name);
            if flat {
                datasets.push(entry.name.clone());
            }
            !flat
        });
        let seen: HashSet<Vec<u8>> = entries.iter().map(|entry| entry.name.clone()).collect();
        let rules = self.view.rules();
        for dataset in datasets {
            let spot = self.spot_in(world, top.id, &dataset, b"")?;
            let directory = self.table.get(spot.parent)?;
            for mut entry in self.list(world, &directory, looks)? {
                entry.name = match entry.name.as_slice() {
                    MARKER | INVALID => [&entry.name, &b"."[..], &dataset].concat(),
                    name if rules.gives(name, &dataset) => entry.name,
                    _ => continue,
                };
                if !seen.contains(&entry.name) {
                    entries.push(entry);
                }
            }
        }
        Ok(())
    }

    /// No file of flat dataset `name` is seen here; its marker is none.
    fn is_flat_empty(&self, world: &World, name: &[u8]) -> Result<bool, Errno> {
        let (place, root) = (Place::Entry(name.to_vec()), RelPath::root());
        if let Some(sealed) = world.sealed(&place) {
            return Ok(sealed.children(&root).iter().all(|(_, what)| matches!(what, Name::Marker)));
        }
        let there = match self.trees.names_below(&self.view.names().dataset_path(name)?) {
            Err(Errno(libc::ENOENT)) => Vec::new(),
            names => names?,
        };
        if there.iter().any(|(path, _)| !self.view.place(path).is_marker()) {
            return Ok(false);
        }
        let none = HashSet::new();
        Ok(world.open(&place).is_none_or(|open| open.names_elsewhere(&root, &none).is_empty()))
    }

    /// A flat dataset has a file that is seen at `path`.
    pub(crate) fn has_flat_file(&self, world: &World, path: &RelPath) -> bool {
        let Place::Entry(name) = self.view.place(path) else { return false };
        let rules = self.view.rules();
        let Some(Ok(flat)) = rules.flat(&name) else { return false };
        if !self.is_flat(world, flat.dataset) {
            return false;
        }
        let (Ok(top), Ok(inner)) = (self.view.names().dataset_path(flat.dataset), RelPath::new(flat.inner))
        else {
            return false;
        };
        let in_tree = || top.concat(&inner).is_ok_and(|path| self.trees.stat_below(&path).is_some());
        match world.named(flat.dataset) {
            Some(sealed) if !sealed.has_next() => sealed.entry(&inner).is_some(),
            Some(sealed) => sealed.file(&inner).is_some() || in_tree(),
            None => in_tree(),
        }
    }
}

/// What all nodes do.
impl FileSystem {
    /// Has the directory of flat dataset `name` made on all nodes. `done` learns no more than that
    /// it may be there now.
    pub(crate) fn make_flat(self: &Arc<Self>, name: &[u8], caller: Caller, done: Done<()>) {
        let op = match self.flat_directory(name, caller) {
            Ok(op) => op,
            Err(error) => return done(Err(error)),
        };
        let answer = move |made| match made {
            // By another rank; or it is no dataset, which the operation will see when it is tried
            // again.
            Err(Errno(libc::EEXIST)) => done(Ok(())),
            other => done(other),
        };
        // Nothing is lost when it is asked for twice: the request has its own intent.
        self.ask_directory(op, Caller { unique: 0, ..caller }, Box::new(answer));
    }

    /// The caller's, and open to those to whom the checkpoint path is; who may make files there the
    /// kernel knows.
    fn flat_directory(&self, name: &[u8], caller: Caller) -> Result<DirOp, Errno> {
        let above = stat_of(self.trees.open_directory(self.view.names().checkpoint())?)?;
        let setgid = above.st_mode & libc::S_ISGID;
        Ok(DirOp::Make {
            path: self.view.names().dataset_path(name)?,
            mode: FLAT | setgid | above.st_mode & 0o755 | 0o700,
            uid: caller.uid,
            gid: if setgid == 0 { caller.gid } else { above.st_gid },
        })
    }

    /// Unlinking the sealed file at `spot` is what this says, on all nodes. `None`: it is this
    /// node's matter, as a file of the next generation is.
    pub(crate) fn unlink_everywhere(&self, world: &World, spot: &Spot<'_>) -> Result<Option<DirOp>, Stop> {
        if spot.flat.is_none() {
            return Ok(None);
        }
        let (path, place) = self.may_change(world, spot.parent, &spot.name)?;
        let inner = place.inner();
        let sealed = world.base(&place).filter(|sealed| sealed.entry(&inner).is_some());
        let changed = sealed.is_none_or(|sealed| sealed.has_next() && sealed.is_changed(&inner));
        Ok((!changed && !place.is_marker()).then_some(DirOp::Remove { path }))
    }

    /// The same for a request that a predecessor has asked the lead for.
    pub(crate) fn unlink_asked(&self, parent: u64, name: &[u8]) -> Option<(DirOp, Vec<u8>)> {
        if !self.in_checkpoint_path(parent) {
            return None;
        }
        let rules = self.view.rules();
        let flat = rules.flat(name)?.ok()?;
        let path = self.view.names().dataset_path(flat.dataset).ok()?.join(flat.inner).ok()?;
        Some((DirOp::Remove { path }, flat.dataset.to_vec()))
    }

    /// A file of flat dataset `name` is gone: was it the last one, the dataset goes, unless another
    /// node has one.
    pub(crate) fn tidy_flat(self: &Arc<Self>, name: &[u8], caller: Caller, done: Done<()>) {
        let empty = {
            let world = self.view.world();
            self.is_flat(&world, name) && self.is_flat_empty(&world, name) == Ok(true)
        };
        match self.view.names().dataset_path(name) {
            Ok(path) if empty => {
                let caller = Caller { unique: 0, ..caller };
                self.ask_directory(DirOp::Remove { path }, caller, Box::new(move |_| done(Ok(()))));
            }
            _ => done(Ok(())),
        }
    }

    /// The vote on a removal in, or of, a flat dataset; `None` for any other.
    pub(crate) fn vote_flat(&self, world: &World, place: &Place) -> Option<Result<(), Errno>> {
        let name = place.dataset().filter(|name| self.is_flat(world, name))?;
        match (place, world.base(place)) {
            (Place::Entry(_), _) => Some(match self.is_flat_empty(world, name) {
                Ok(true) => Ok(()),
                Ok(false) => fail(libc::ENOTEMPTY),
                Err(error) => Err(error),
            }),
            // The file here is one of the next generation.
            (_, Some(sealed)) if sealed.has_next() && sealed.is_changed(&place.inner()) => {
                Some(fail(libc::EBUSY))
            }
            (_, Some(_)) => Some(Ok(())),
            (_, None) => None,
        }
    }

    /// Takes out a sealed file that some node has unlinked; the node's journal has that. False: it
    /// is none.
    pub(crate) fn remove_flat_file(&self, world: &World, path: &RelPath) -> Result<bool, Errno> {
        let place = self.view.place(path);
        let (Place::Inside { dataset, inner }, Some(sealed)) = (&place, world.base(&place)) else {
            return Ok(false);
        };
        if !self.is_flat(world, dataset) {
            return Ok(false);
        }
        sealed.set_gone(inner);
        self.take_out_file(sealed, path)?;
        Ok(true)
    }

    /// Takes a file out of the tree that is gone from the next generation of `sealed`, if that has
    /// begun.
    pub(crate) fn take_out_file(&self, sealed: &Sealed, path: &RelPath) -> Result<(), Errno> {
        let (above, name) = path.split_last().ok_or(Errno(libc::EBUSY))?;
        if !sealed.has_next() {
            self.keep_hidden(sealed, path);
        } else if let Some(stat) = self.trees.stat_below(path) {
            let dir = self.trees.open_directory(&above)?;
            self.trees.as_owner(&dir, || Ok(rustix::fs::unlinkat(&dir, name, AtFlags::empty())?))?;
            Self::keep_nameless(sealed, &stat);
        }
        self.table.cut_path(path);
        Ok(())
    }
}

/// Another pattern.
impl FileSystem {
    /// The job's pattern is another one than before. No lock is held.
    pub(crate) fn pattern_changed(&self, rules: &Rules) {
        if let Err(error) = self.settle_names(rules) {
            self.node.note(format!("files that SCRFS_DATASET_PATTERN matches cannot be looked for: {error}"));
        }
        self.changed();
    }

    /// Directories whose files the pattern does not give become ordinary ones; what matches and is
    /// loose stays so.
    fn settle_names(&self, rules: &Rules) -> Result<(), Errno> {
        for (path, kind) in self.trees.names_below(self.view.names().checkpoint())? {
            let Place::Entry(name) = self.view.place(&path) else { continue };
            if kind != FileType::Directory {
                if matches!(rules.flat(&name), Some(Ok(_))) {
                    self.node.note_once(format!(
                        "{path}: was made before SCRFS_DATASET_PATTERN held, and stays a loose file"
                    ));
                }
                continue;
            }
            let dir = self.trees.open_directory(&path)?;
            let stat = stat_of(&dir)?;
            if !is_marked(&stat) {
                continue;
            }
            let fits = |file: &RelPath| {
                let inner = file.split_last().map_or(&b""[..], |(_, name)| name);
                matches!(inner, MARKER | INVALID) || rules.gives(inner, &name)
            };
            if !self.trees.names_below(&path)?.iter().all(|(file, _)| fits(file)) {
                let mode = Mode::from_raw_mode(stat.st_mode & 0o7777 & !FLAT);
                rustix::fs::chmodat(CWD, proc_path(&dir), mode, AtFlags::empty())?;
                self.node.note_once(format!("{path}: SCRFS_DATASET_PATTERN does not give all its files' names now: they are in directory {path}"));
            }
        }
        Ok(())
    }
}

fn is_marked(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory && stat.st_mode & FLAT == FLAT
}

fn shown(name: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(name)
}

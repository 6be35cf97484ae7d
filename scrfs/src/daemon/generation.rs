//! The next generation of a sealed dataset on this node (`scrfs/docs/semantics.md`, Generations):
//! begun at the first change, kept apart from the sealed bytes file by file, sealed, and put in the
//! place of the one before.
//!
//! When it begins, all sealed files that are in the tree get a second name in `dataset.<id>/aside`,
//! which is the sealed dataset's home from then on; the tree is the working copy. Both names share
//! an inode until the file's bytes are about to change: then aside gets a copy of its own. So the
//! inode that programs have open stays, and the sealed generation is whole at every instant, in the
//! shape that recovery, flush and fetch know.
//!
//! A directory below a sealed dataset is never renamed, so a sealed name is the same aside, in the
//! tree and on other nodes.
//!
//! Fault points: `generation.begun`, `generation.linked`, `generation.recorded`,
//! `generation.filled`, `generation.copied`, `generation.kept`, `generation.tidied`.

use std::collections::hash_map::Entry as Slot;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::fs::{Mode, OFlags};

use crate::control::{Event, FrozenFile, Reason};
use crate::dataset::lifecycle::{Files, Step};
use crate::dataset::{CatalogIndex, Entry, EntryKind, FileCopy, Names};
use crate::faults;
use crate::ids::{DatasetId, Epoch, Member};
use crate::path::{PathError, RelPath};
use crate::store::beneath;
use crate::transfer::{Monitor, copy};

use super::cache::{Cache, Inodes, Staged};
use super::journal::Journal;
use super::listing::{Lost, walk};
use super::members::{DataError, make_others, settle_file};
use super::node::Node;
use super::rounds::Answer;
use super::state::{Arrival, Dataset};
use crate::boundary::{Completion, Generation};
use crate::errno::Errno;

/// Which inodes the sealed generations have aside, of those whose next generation has begun. Its
/// lock is taken before the disk's.
#[derive(Default)]
pub(super) struct Generations {
    aside: HashMap<DatasetId, Inodes>,
}

impl Generations {
    /// The inodes that a dataset has aside.
    pub(super) fn inodes(
        &mut self,
        cache: &Cache,
        id: DatasetId,
        index: &CatalogIndex,
    ) -> io::Result<&mut Inodes> {
        Ok(match self.aside.entry(id) {
            Slot::Occupied(known) => known.into_mut(),
            Slot::Vacant(slot) => slot.insert(cache.inodes_aside(id, &index.catalog().entries)?),
        })
    }
}

impl Generations {
    /// The file of this name and inode number is not aside any more: a file system gives the number
    /// of a file that is gone to another one.
    pub(super) fn forget_aside(&mut self, id: DatasetId, inode: u64, path: &RelPath) {
        if let Some(inodes) = self.aside.get_mut(&id)
            && inodes.get(&inode).is_some_and(|names| names == std::slice::from_ref(path))
        {
            inodes.remove(&inode);
        }
    }
}

/// Why a sealed file did not get a copy of its own.
#[derive(Debug, thiserror::Error)]
enum CopyError {
    /// The program's request looks for the file again.
    #[error("the file, or its dataset, is not what it was")]
    Moved,
    /// The bytes were read, and they are not those that were sealed. Both as size and CRC32.
    #[error("{} bytes with CRC {:#x}, sealed were {} with {:#x}", found.0, found.1, sealed.0, sealed.1)]
    Damaged { found: (u64, u32), sealed: (u64, u32) },
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Data(#[from] DataError),
}

impl CopyError {
    /// What the program gets.
    fn errno(&self) -> Errno {
        Errno(match self {
            Self::Moved => libc::EAGAIN,
            Self::Damaged { .. } => libc::EIO,
            Self::Io(error) => error.raw_os_error().unwrap_or(libc::EIO),
            Self::Data(error) => error.errno(),
        })
    }
}

/// A dataset's directory, relative to the checkpoint path.
pub(super) fn top_of(name: &[u8]) -> Result<RelPath, PathError> {
    RelPath::new(name)
}

impl Node {
    /// Carries out a program's request in the generations' thread, unless a restart comes first
    /// (EINTR); `work` is given the number of presentations before it was asked for. `done` also
    /// runs when the node ends first.
    pub(super) fn in_generations(
        &self,
        done: Completion,
        work: impl FnOnce(&Self, u64) -> Result<(), Errno> + Send + 'static,
    ) {
        let (me, answer, asked) = (self.me.clone(), Answer::new(done), self.presentations());
        self.lanes.generations.run(move || {
            let Some(node) = me.upgrade() else { return };
            let is_over = || node.presentations() != asked;
            let result = if is_over() { Ok(()) } else { work(&node, asked) };
            answer.give(if is_over() { Err(Errno(libc::EINTR)) } else { result });
        });
    }

    /// How often restarts have presented datasets. Programs that asked for anything before that
    /// have ended: what they asked for is not done any more.
    pub(super) fn presentations(&self) -> u64 {
        self.comparisons.presentations.load(Ordering::SeqCst)
    }

    /// A restart presents datasets: from now on no next generation begins for who asked before.
    pub(super) fn begin_presentation(&self) {
        self.tree.presenting();
        self.comparisons.presentations.fetch_add(1, Ordering::SeqCst);
        // One that is about to begin is begun by now.
        drop(self.generations.lock());
    }

    /// A program changes a sealed dataset: its next generation begins, and may need room for all
    /// that it will be.
    pub(super) fn change(&self, id: DatasetId, asked: u64) -> Result<(), Reason> {
        if self.open_generation(id, asked)? {
            let name = self.dataset(id)?.name;
            self.begins(&name);
        }
        Ok(())
    }

    /// Begins the next generation of a sealed dataset that programs see; false if it has begun
    /// before. In the generations' thread for a program's request; in the freezing thread for a
    /// seal; for a vote in the thread that votes. `asked`: [`Node::presentations`] when it was
    /// asked for.
    pub(super) fn open_generation(&self, id: DatasetId, asked: u64) -> Result<bool, Reason> {
        let mut generations = self.generations.lock();
        if self.presentations() != asked {
            return Err("datasets were presented meanwhile".into());
        }
        let begun = self.begin_generation(&mut generations, id, &BTreeSet::new())?;
        let Some(generation) = begun else { return Ok(false) };
        self.tree.generation(id, generation);
        self.note_begun(id);
        Ok(true)
    }

    /// The tree has nothing any more that was removed before the next generation began: what is at
    /// such a name from now on was made anew.
    fn note_begun(&self, id: DatasetId) {
        let noted = self
            .dataset(id)
            .map_err(Reason::from)
            .and_then(|dataset| Ok(top_of(&dataset.name)?))
            .and_then(|top| self.journal.lock().begun_over(&top, id).map_err(Reason::from));
        if let Err(reason) = noted {
            let text = format!("that its next generation has begun cannot be recorded: {reason}");
            self.events.warning(Some(id), &text);
        }
    }

    /// As [`Node::open_generation`], but the caller tells the tree: gives what the tree has to be
    /// told; `None` if the generation has begun before. The files `logs` count as changed: their
    /// sealed bytes are in copies.
    pub(super) fn begin_generation(
        &self,
        generations: &mut Generations,
        id: DatasetId,
        logs: &BTreeSet<RelPath>,
    ) -> Result<Option<Generation>, Reason> {
        let dataset = self.dataset(id)?;
        let index = dataset.life.catalog().cloned().ok_or("it is not complete")?;
        match dataset.life.files() {
            Files::Beneath => return Ok(None),
            Files::Aside => return Err("it is not presented".into()),
            Files::InTree => {}
        }
        let top = top_of(&dataset.name)?;
        faults::hit("generation.begun")?;
        let entries = &index.catalog().entries;
        let inodes = self.cache.link(id, &dataset.name, entries, logs)?;
        faults::hit("generation.linked")?;
        let (removed, gone) = {
            let journal = self.journal.lock();
            (journal.removed_of(&top, id), journal.gone(&top, id).clone())
        };
        let here: Names = removed.iter().cloned().collect();
        let stays = |entry: &&Entry| !here.cover(&entry.path) && !gone.cover(&entry.path);
        let kept: Vec<Entry> = entries.iter().filter(stays).cloned().collect();
        make_others(&self.cache.tree(dataset.id, &dataset.name)?, &kept)?;
        // What an earlier generation of the name had is sealed.
        self.journal.lock().forget_files(&top)?;
        for log in logs {
            let rank = match index.entry(log).map(|entry| &entry.kind) {
                Some(EntryKind::File(copy)) => copy.program_rank,
                _ => None,
            };
            self.journal.lock().changing(&top.concat(log)?, rank)?;
        }
        let opened = self.disk.lock().change_with(
            &self.state,
            // It is in the tree, as was seen above.
            |table| drop(table.step(id, &Step::Overwritten)),
            || self.cache.take_linked_aside(id),
        );
        opened?;
        generations.aside.insert(id, inodes);
        faults::hit("generation.recorded")?;
        self.events.info(Some(id), &format!("{}: its next generation has begun here", dataset.shown_name()));
        self.state.lock().send_request(Event::Overwritten(id));
        let changed = logs.iter().cloned().collect();
        Ok(Some(Generation { open: true, removed, changed, gone, begins: true }))
    }

    /// Tells the tree of a sealed dataset whose next generation has begun with that.
    pub(super) fn tell_begun(&self, id: DatasetId, catalog: Arc<CatalogIndex>, generation: Generation) {
        self.tree.sealed_and_changed(catalog, generation);
        self.note_begun(id);
    }

    /// Shows a complete dataset as the former worker did.
    pub(super) fn list_again(&self, id: DatasetId) {
        let Ok(dataset) = self.dataset(id) else { return };
        let Some(catalog) = dataset.life.catalog().cloned() else { return };
        let newest = self.state.lock().base(&dataset.name).map(|base| base.id);
        if newest != Some(id) {
            // Of two generations the newer one, which lets the former leave.
            return;
        }
        if let Err(reason) = self.supersede(&catalog) {
            let text = format!("is not shown: the generation before it cannot leave: {reason}");
            self.events.error(Some(id), &text);
            // What is at its name may be the former's. The next record of COMPLETE tries again.
            self.tree.freeze(&dataset.name);
            if let Some(dataset) = self.state.lock().table.datasets.get_mut(&id) {
                drop(dataset.step(&Step::Unlisted));
            }
            return;
        }
        self.place_links(id);
        match self.place_logs(id) {
            Ok(Some(generation)) => self.tell_begun(id, catalog, generation),
            Ok(None) => {
                self.tree.sealed(catalog);
                self.tell_generation(&dataset);
            }
            Err(reason) => {
                let text = format!("its logs cannot be kept apart: {reason}");
                self.events.error(Some(id), &text);
                // Nothing of it may change until that is done.
                self.tree.freeze(&dataset.name);
            }
        }
    }

    /// Tells the tree what programs have done to a dataset before this worker's start.
    pub(super) fn tell_generation(&self, dataset: &Dataset) {
        let Ok(top) = top_of(&dataset.name) else { return };
        let open = dataset.life.is_overwritten();
        let (removed, changed, gone, begins) = {
            let journal = self.journal.lock();
            let gone = journal.gone(&top, dataset.id).clone();
            let begins = open && !journal.has_begun_over(&top, dataset.id);
            (journal.removed_of(&top, dataset.id), journal.files_of(&top), gone, begins)
        };
        if let Err(error) = self.cache.discard_half_kept(dataset.id) {
            self.events.warning(Some(dataset.id), &format!("half-kept files cannot be removed: {error}"));
        }
        let changed = if open { changed } else { Vec::new() };
        if open || !removed.is_empty() || !gone.is_empty() {
            self.tree.generation(dataset.id, Generation { open, removed, changed, gone, begins });
            if begins {
                self.note_begun(dataset.id);
            }
        }
    }

    /// Lets the sealed generation have its own copy of a file whose bytes are about to change;
    /// EAGAIN if it is not at that path any more. In the generations' thread.
    pub(super) fn keep_sealed_file(
        &self,
        id: DatasetId,
        path: &RelPath,
        wanted: (u64, u64),
    ) -> Result<(), Errno> {
        self.try_keep(id, path, wanted).map_err(|error| {
            if !matches!(error, CopyError::Moved) {
                self.events.error(Some(id), &format!("{path}: its sealed bytes cannot be kept: {error}"));
            }
            error.errno()
        })
    }

    fn try_keep(&self, id: DatasetId, path: &RelPath, wanted: (u64, u64)) -> Result<(), CopyError> {
        let other = |reason: String| CopyError::Io(io::Error::other(reason));
        // Sealed, presented or removed meanwhile: the program's request looks again.
        let dataset = self.overwritten(id).ok_or(CopyError::Moved)?;
        let index = dataset.life.catalog().cloned().ok_or_else(|| other("it is not complete".into()))?;
        let tree = self.cache.tree(dataset.id, &dataset.name)?;
        let file = match beneath::open_file(tree.as_fd(), path) {
            // It has moved, or lost its name: the program's request looks again.
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(CopyError::Moved),
            other => other?,
        };
        let stat = rustix::fs::fstat(&file).map_err(io::Error::from)?;
        if (stat.st_dev, stat.st_ino) != wanted {
            // Another file has the name by now.
            return Err(CopyError::Moved);
        }
        let inode = stat.st_ino;
        let found = self.names_aside(&mut self.generations.lock(), id, &index, inode)?;
        let Some(names) = found else { return Ok(()) };
        let record = names.first().and_then(|name| index.entry(name));
        let Some(entry @ Entry { kind: EntryKind::File(copy), .. }) = record else {
            return Err(other("it is not a file of the dataset".into()));
        };
        self.tell_aliases(&dataset, &names, inode)?;
        let kept = self.copy_kept(id, file, entry, copy);
        faults::hit("generation.copied")?;
        let mut generations = self.generations.lock();
        // The copy takes its time: another generation may be sealed, or a restart may have
        // presented this one. With the lock it stays what it is now.
        if !self.names_aside(&mut generations, id, &index, inode).is_ok_and(|now| now == Some(names.clone()))
        {
            self.cache.discard(id, &Staged::Kept(entry.path.clone()))?;
            if self.dataset(id).is_err() {
                // Its removal has ended, and the copy has made its directory again.
                self.cache.remove_own(id)?;
            }
            return Err(CopyError::Moved);
        }
        match kept {
            Ok(()) => {
                self.cache.place_kept(id, &names)?;
                self.keep_for_former(&mut generations, &dataset, inode, (&names, copy))?;
            }
            Err(error) => {
                // The unfinished copy takes room that programs need, and may be why there is none.
                self.cache.discard(id, &Staged::Kept(entry.path.clone()))?;
                if let CopyError::Damaged { .. } = error {
                    // These bytes are of no use to anyone. Without them a restart rebuilds the
                    // file.
                    let aside = self.cache.aside(id)?;
                    for name in &names {
                        beneath::remove_tree(aside.as_fd(), name)?;
                    }
                    generations.aside.entry(id).or_default().remove(&inode);
                }
                return Err(error);
            }
        }
        generations.aside.entry(id).or_default().remove(&inode);
        Ok(faults::hit("generation.kept")?)
    }

    /// The dataset, if its next generation has begun here.
    fn overwritten(&self, id: DatasetId) -> Option<Dataset> {
        self.dataset(id).ok().filter(|dataset| dataset.life.is_overwritten())
    }

    /// The names aside that share `inode` with the tree.
    fn names_aside(
        &self,
        generations: &mut Generations,
        id: DatasetId,
        index: &CatalogIndex,
        inode: u64,
    ) -> Result<Option<Vec<RelPath>>, CopyError> {
        self.overwritten(id).ok_or(CopyError::Moved)?;
        Ok(generations.inodes(&self.cache, id, index)?.get(&inode).cloned())
    }

    /// Other names of the file change with it.
    fn tell_aliases(&self, dataset: &Dataset, names: &[RelPath], inode: u64) -> io::Result<()> {
        let (Ok(top), tree) = (top_of(&dataset.name), self.cache.tree(dataset.id, &dataset.name)?) else {
            return Ok(());
        };
        let gone = self.gone_of(dataset);
        for name in names.iter().filter(|name| !gone.cover(name)) {
            let flags = OFlags::PATH | OFlags::NOFOLLOW;
            let Ok(file) = beneath::open(tree.as_fd(), name, flags, Mode::empty()) else { continue };
            if rustix::fs::fstat(&file)?.st_ino == inode
                && let Ok(path) = top.concat(name)
            {
                self.journal.lock().changing(&path, None)?;
            }
        }
        Ok(())
    }

    fn copy_kept(
        &self,
        id: DatasetId,
        from: OwnedFd,
        entry: &Entry,
        recorded: &FileCopy,
    ) -> Result<(), CopyError> {
        let staged = Staged::Kept(entry.path.clone());
        let to = self.cache.stage(id, &staged, OFlags::RDWR)?;
        if rustix::fs::ioctl_ficlone(&to, &from).is_err() {
            let to = File::from(to.try_clone()?);
            let monitor = Monitor::new(recorded.size);
            let seen =
                copy::copy(&mut File::from(from), recorded.size, "generation.block", &monitor, Some(&to))?;
            let (found, sealed) = ((seen.size, seen.crc), (recorded.size, recorded.crc));
            if found != sealed {
                return Err(CopyError::Damaged { found, sealed });
            }
        }
        faults::hit("generation.filled").map_err(DataError::io(id, &entry.path))?;
        Ok(settle_file(id, &to, entry, recorded)?)
    }

    /// Puts a sealed file that was brought here where programs find it. With the generations' lock
    /// nothing is changed, removed or moved meanwhile.
    pub(super) fn place_copy(&self, id: DatasetId, staged: &Staged, path: &RelPath) -> io::Result<()> {
        let mut generations = self.generations.lock();
        let dataset = self.dataset(id).map_err(|error| io::Error::new(io::ErrorKind::NotFound, error))?;
        let home = self.cache.home_to_fill(&dataset, self.tree.as_ref())?;
        let inode = || Ok::<_, io::Error>(rustix::fs::fstat(beneath::open_file(home.as_fd(), path)?)?.st_ino);
        let former = inode().ok();
        self.cache.put_in_place(id, staged, home.as_fd(), path)?;
        if !dataset.life.is_overwritten() {
            return Ok(());
        }
        if let Some(former) = former {
            generations.forget_aside(id, former, path);
        }
        if let Some(inodes) = generations.aside.get_mut(&id) {
            inodes.insert(inode()?, vec![path.clone()]);
        }
        let top = top_of(&dataset.name).map_err(io::Error::other)?;
        // A name that goes is recorded first, then removed: with the journal's lock it is there
        // before that, or never.
        let journal = self.journal.lock();
        if is_removed(&journal, &top, id, path) {
            return Ok(());
        }
        self.cache.link_back(id, &dataset.name, path)
    }

    /// The checked files of a rebuilt member get their places, below the directory that is given
    /// back. Where the next generation has begun, what programs have not changed is renewed for
    /// them too.
    pub(super) fn place_member(
        &self,
        id: DatasetId,
        (name, epoch): (&[u8], Epoch),
        (member, arrival): (Member, Arrival),
        files: &[(Entry, FileCopy)],
    ) -> Result<OwnedFd, DataError> {
        let mut generations = self.generations.lock();
        let dataset = self.dataset(id)?;
        // Coordinators may have come since that know another dataset of this id.
        if dataset.is_other_than(name, epoch) {
            return Err(DataError::new(id, libc::ECANCELED, "is another dataset by now"));
        }
        let home = self.cache.home_to_fill(&dataset, self.tree.as_ref());
        let home = home.map_err(DataError::io(id, member))?;
        self.place_files(&dataset, (member, arrival), &home, files)?;
        if dataset.life.is_overwritten() {
            // Other inodes are aside now; they are looked at when they are asked for.
            generations.aside.remove(&id);
            for (entry, _) in files {
                self.renew_shared(&dataset, &entry.path).map_err(DataError::io(id, &entry.path))?;
            }
        }
        Ok(home)
    }

    fn renew_shared(&self, dataset: &Dataset, path: &RelPath) -> io::Result<()> {
        let tree = self.cache.tree(dataset.id, &dataset.name)?;
        let journal = self.journal.lock();
        if Self::is_programs_own(&journal, dataset, path)? {
            return Ok(());
        }
        // A bad one may have been removed, or it was on no node.
        if beneath::open_file(tree.as_fd(), path).is_ok() {
            beneath::remove_tree(tree.as_fd(), path)?;
        }
        self.cache.link_back(dataset.id, &dataset.name, path)
    }

    /// Programs have made, changed or removed this name in the next generation.
    pub(super) fn is_programs_own(journal: &Journal, dataset: &Dataset, path: &RelPath) -> io::Result<bool> {
        let top = top_of(&dataset.name).map_err(io::Error::other)?;
        let full = top.concat(path).map_err(io::Error::other)?;
        Ok(journal.has(&full) || is_removed(journal, &top, dataset.id, path))
    }

    /// `new` is complete and has its files in the tree: the generation before it leaves. What it
    /// alone had in the tree goes; its sealed bytes stay aside until the lead evicts it. False when
    /// there is none. Done again after a crash at any point.
    ///
    /// With the generations' lock no member of the former is rebuilt meanwhile: its files would
    /// come back into the tree, among those of `new`.
    pub(super) fn supersede(&self, new: &CatalogIndex) -> Result<bool, Reason> {
        let catalog = new.catalog();
        let _places = self.generations.lock();
        let mut disk = self.disk.lock();
        let former: Vec<Dataset> = {
            let state = self.state.lock();
            let before = |dataset: &&Dataset| {
                dataset.name == catalog.name
                    && dataset.life.has_name()
                    && dataset.life.is_complete()
                    && (dataset.epoch, dataset.id) < (catalog.epoch, catalog.id)
            };
            state.present().filter(before).cloned().collect()
        };
        if former.is_empty() {
            return Ok(false);
        }
        let top = top_of(&catalog.name)?;
        for former in &former {
            if former.life.is_overwritten() {
                self.tidy(former, new)?;
            } else {
                // It was never changed here, and nothing of the new one is here.
                self.cache.put_aside(former.id, &former.name)?;
            }
        }
        faults::hit("generation.tidied")?;
        self.journal.lock().forget(&top)?;
        let left = disk.change(&self.state, |table| {
            for id in former.iter().map(|former| former.id) {
                // One that leaves by now needs no other state.
                drop(table.step(id, &Step::Superseded));
            }
        });
        left?;
        for former in former {
            self.events.info(Some(former.id), "a newer generation is in its place");
        }
        Ok(true)
    }

    /// Removes from the tree what is not of `new`: other nodes changed or removed it.
    fn tidy(&self, former: &Dataset, new: &CatalogIndex) -> Result<(), Reason> {
        let catalog = new.catalog();
        let top = top_of(&catalog.name)?;
        let own: HashSet<RelPath> = {
            let state = self.state.lock();
            let parts = state.table.datasets.get(&catalog.id).map(|dataset| dataset.parts.values());
            let files = parts.into_iter().flatten().flat_map(|part| &part.files);
            files.map(|(entry, _)| entry.path.clone()).collect()
        };
        let bytes = |entry: Option<&Entry>| match entry.map(|entry| &entry.kind) {
            Some(EntryKind::File(copy)) => Some((copy.size, copy.crc)),
            _ => None,
        };
        let (before, removed) = (former.life.catalog(), self.gone_of(former));
        let tree = self.cache.tree(catalog.id, &catalog.name)?;
        let gone = |path: &RelPath| {
            beneath::remove_tree(tree.as_fd(), path).map_err(|e| Reason::from(e).on(format_args!("{path}")))
        };
        for FrozenFile { path, .. } in self.tree.files(&catalog.name)? {
            let touched = top.concat(&path).is_ok_and(|path| self.journal.lock().has(&path));
            let same = before.is_some_and(|index| {
                let sealed = bytes(new.entry(&path));
                let former = index.entry(&path).filter(|_| !removed.cover(&path));
                sealed.is_some() && bytes(former) == sealed
            });
            if !own.contains(&path) && (touched || !same) {
                gone(&path)?;
            }
        }
        let mut others = Vec::new();
        walk(tree.as_fd(), &RelPath::root(), &mut others, &mut Lost::default())?;
        for entry in others {
            let stays = match &entry.kind {
                EntryKind::Directory => entry.path.is_root() || new.children(&entry.path).is_some(),
                kind => new.entry(&entry.path).is_some_and(|sealed| sealed.kind == *kind),
            };
            if !stays {
                gone(&entry.path)?;
            }
        }
        Ok(())
    }

    /// A restart gives up the next generation of a dataset, which counts as hidden from now on. No
    /// file gets its place aside meanwhile.
    pub(super) fn hide_generation(&self, id: DatasetId) -> Result<(), Reason> {
        let mut generations = self.generations.lock();
        generations.aside.remove(&id);
        self.disk.lock().step(&self.state, id, &Step::Hidden).map_err(Reason::from)
    }

    /// Forgets which inodes a dataset that is gone had aside.
    pub(super) fn forget_generation(&self, id: DatasetId) {
        self.generations.lock().aside.remove(&id);
    }
}

/// A name of sealed dataset `id` that programs do not see in its next generation: removed on this
/// node, or everywhere.
fn is_removed(journal: &Journal, top: &RelPath, id: DatasetId, path: &RelPath) -> bool {
    let here: Names = journal.removed_of(top, id).into_iter().collect();
    here.cover(path) || journal.gone(top, id).cover(path)
}

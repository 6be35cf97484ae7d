//! What the node asks of the mounted tree: votes, freezes, listings of what is to be sealed. Each
//! call runs in the node's thread that makes it: rounds in the link's (`scrfs-control`) or in
//! `scrfs-local`, freezes in `scrfs-freeze`, seals and presenting in `scrfs-records`, removals in
//! `scrfs-evict`.

use std::collections::HashSet;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{FileType, OFlags};

use super::FileSystem;
use super::attr::{key_of, stat_of};
use super::files::Handle;
use super::inodes::Key;
use super::kernel::DataMode;
use super::view::{Place, Rules, Sealed};
use crate::boundary::{Generation, Look, MountedTree, Writer};
use crate::control::loose::LooseEntry;
use crate::control::{DirHeld, DirOp, FrozenFile, Settings};
use crate::dataset::CatalogIndex;
use crate::errno::Errno;
use crate::ids::{DatasetId, RequestId};
use crate::path::RelPath;
use crate::store::lease;

/// How long a restart waits for the room of what it removes.
const JUNK_WAIT: Duration = Duration::from_mins(1);

impl MountedTree for FileSystem {
    fn prepare(&self, op: &DirOp) -> Result<(), Errno> {
        let op = self.view.names().inward(op).ok_or(Errno(libc::ENAMETOOLONG))?;
        let mut world = self.view.change();
        self.vote(&world, &op)?;
        world.hold(op);
        Ok(())
    }

    fn apply(&self, op: &DirOp) -> Result<(), Errno> {
        self.apply_as(op, false)
    }

    fn apply_asked(&self, op: &DirOp) -> Result<(), Errno> {
        self.apply_as(op, true)
    }

    fn names_changed(&self) {
        self.changed();
    }

    fn attached(&self) {
        self.intents.keep().set_shared(true);
    }

    fn release(&self, op: &DirOp) {
        if let Some(op) = self.view.names().inward(op) {
            self.view.change().release(&op);
        }
        self.waits.wake();
    }

    fn open_files(&self) -> HashSet<Key> {
        self.files.all().iter().filter_map(|handle| handle.inode.key()).collect()
    }

    fn directories(&self) -> Result<Vec<DirHeld>, Errno> {
        let mut found = Vec::new();
        let world = self.view.world();
        let mut pending = vec![self.view.names().checkpoint().clone()];
        while let Some(dir) = pending.pop() {
            for (path, kind) in self.trees.names_below(&dir)? {
                if kind != FileType::Directory || world.base(&self.view.place(&path)).is_some() {
                    continue;
                }
                let stat = stat_of(self.trees.open_directory(&path)?)?;
                let mode = stat.st_mode & 0o7777;
                let told = path.strip(self.view.names().checkpoint()).ok_or(Errno(libc::EIO))?;
                found.push(DirHeld { path: told, mode, uid: stat.st_uid, gid: stat.st_gid });
                pending.push(path);
            }
        }
        // A directory's path sorts before those below it.
        found.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(found)
    }

    fn freeze(&self, name: &[u8]) {
        self.view.change().freeze(name);
    }

    fn begin_wait(&self, name: &[u8]) {
        if self.view.change().begin_wait(name) {
            self.waits.wake();
        }
    }

    fn end_wait(&self, name: &[u8]) -> bool {
        self.view.change().end_wait(name)
    }

    fn writers(&self, name: &[u8]) -> Result<Vec<Writer>, Errno> {
        let top = self.view.names().dataset_path(name)?;
        let handles = self.files.writable();
        let mut found = Vec::new();
        for (inner, _) in self.trees.regular_files(name)? {
            let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW;
            let file = match self.trees.open(&top.concat(&inner)?, flags) {
                Ok(file) => file,
                Err(Errno(libc::ENOENT)) => continue,
                Err(error) => return Err(error),
            };
            let known = handles.get(&key_of(&stat_of(&file)?)).map_or(&[][..], Vec::as_slice);
            let (marking, others): (Vec<_>, Vec<_>) = known.iter().partition(|handle| handle.is_marking());
            let writes = match lease::has_writer(file.as_fd()) {
                Ok(writes) => writes,
                // Without privileges there is no lease on another user's file: the handles must do.
                Err(error) if error.raw_os_error() == Some(libc::EACCES) => !others.is_empty(),
                Err(error) => return Err(error.into()),
            };
            // A file that the kernel serves it opens after the answer to the open, and closes
            // before the daemon hears of that.
            let others: Vec<_> = others.into_iter().filter(|handle| writes || !handle.inherited).collect();
            if !writes && others.is_empty() {
                continue;
            }
            // The last writer of a file that has set the marker waits for this seal.
            if others.is_empty() && marking.is_empty() {
                found.push(Writer {
                    path: inner,
                    pid: 0,
                    command: "a memory mapping".into(),
                    appends: false,
                    closing: false,
                });
            } else {
                found.extend(others.into_iter().map(|handle| self.writer(&inner, handle)));
            }
        }
        Ok(found)
    }

    fn is_invalid(&self, name: &[u8]) -> bool {
        let path = self.view.names().invalid_path(name);
        path.is_ok_and(|path| self.trees.open(&path, OFlags::PATH | OFlags::NOFOLLOW).is_ok())
    }

    fn on_release(&self, name: &[u8], wake: Arc<dyn Fn() + Send + Sync>) {
        self.waits.on_release(name, wake);
    }

    fn files(&self, name: &[u8]) -> Result<Vec<FrozenFile>, Errno> {
        let files = self.trees.regular_files(name)?;
        Ok(files.into_iter().map(|(path, size)| FrozenFile { path, size }).collect())
    }

    fn backing_directory(&self, name: &[u8]) -> Result<OwnedFd, Errno> {
        self.trees.open(
            &self.view.names().dataset_path(name)?,
            OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW,
        )
    }

    fn thaw(&self, name: &[u8]) {
        self.view.change().thaw(name);
        self.waits.end_releases(name);
        self.waits.wake();
    }

    fn sealed(&self, catalog: Arc<CatalogIndex>) {
        self.take_sealed(catalog, None, None);
    }

    fn sealed_and_changed(&self, catalog: Arc<CatalogIndex>, generation: Generation) {
        self.take_sealed(catalog, Some(generation), None);
    }

    fn sealed_unread(&self, catalog: Arc<CatalogIndex>, files: Vec<RelPath>) {
        self.take_sealed(catalog, None, Some(files));
    }

    fn unread(&self, id: DatasetId, files: Vec<RelPath>) {
        if let Some(sealed) = self.view.world().by_id(id) {
            sealed.set_unread(files);
        }
    }

    fn verified(&self, id: DatasetId, files: &[RelPath]) {
        if let Some(sealed) = self.view.world().by_id(id) {
            sealed.set_verified(files);
        }
    }

    fn generation(&self, id: DatasetId, generation: Generation) {
        let world = self.view.change();
        if let Some(sealed) = world.by_id(id).cloned() {
            self.take_generation(&world, &sealed, generation);
        }
        drop(world);
        self.changed();
    }

    fn parted(&self, name: &[u8], files: &[RelPath]) {
        let Ok(top) = self.view.names().dataset_path(name) else { return };
        let _world = self.view.change();
        for path in files.iter().filter_map(|file| top.concat(file).ok()) {
            self.forget_parted(&path);
        }
    }

    fn unlisted(&self, id: DatasetId) {
        let gone = {
            let mut world = self.view.change();
            let gone = world.unlist(id);
            self.intents.show_all(id);
            if let Some(path) = gone.as_ref().and_then(|s| self.view.names().dataset_path(s.name()).ok()) {
                self.table.let_tree_go(&path);
            }
            gone
        };
        if gone.is_some() {
            self.changed();
        }
    }

    fn loose_names(&self) -> Result<Vec<Vec<u8>>, Errno> {
        self.list_loose()
    }

    fn loose_entry(&self, name: &[u8], max: u64) -> Result<Look, Errno> {
        self.look_loose(name, max)
    }

    fn place_loose(&self, entry: &LooseEntry, max: u64) -> Result<bool, Errno> {
        self.put_loose(entry, max)
    }

    fn presenting(&self) {
        self.view.change().present();
    }

    fn remove_junk(&self, keep: Option<&str>) -> Result<(), Errno> {
        let world = self.view.change();
        for (path, _) in self.trees.names_below(self.view.names().checkpoint())? {
            if world.base(&self.view.place(&path)).is_none() {
                // In a list of stores a directory may be in each.
                while let Some(label) = keep {
                    match self.removals.put_by(&self.trees, &path, label) {
                        Err(Errno(libc::ENOENT)) => break,
                        other => other?,
                    }
                }
                if keep.is_none() {
                    self.removals.doom(&self.trees, &path)?;
                }
                self.table.let_tree_go(&path);
            }
        }
        drop(world);
        self.await_deletion()
    }

    fn remove_unsealed(&self, names: &[&[u8]]) -> Result<(), Errno> {
        let world = self.view.change();
        for name in names {
            let path = self.view.names().dataset_path(name)?;
            if world.base(&self.view.place(&path)).is_none() {
                match self.removals.doom(&self.trees, &path) {
                    Ok(_) | Err(Errno(libc::ENOENT)) => {}
                    Err(error) => return Err(error),
                }
                self.table.let_tree_go(&path);
            }
        }
        drop(world);
        self.await_deletion()
    }

    fn follow(&self, settings: &Settings) {
        let bound = settings.seal_timeout_ms.saturating_add(settings.coordinator_wait_ms);
        self.set_wait_bound(Duration::from_millis(bound));
        self.trees.stores().follow(&settings.protections);
        let (rules, problems) = Rules::new(settings);
        let rules = Arc::new(rules);
        let before = self.view.follow(Arc::clone(&rules));
        for problem in problems {
            self.node.note(problem);
        }
        if !rules.has_pattern_of(&before) {
            self.pattern_changed(&rules);
        }
    }

    fn record_io(&self, on: bool) {
        self.files.record_io(on);
    }

    fn decided(&self, request: RequestId, errno: i32) {
        self.intents.keep().note_global(request, |_, outcome| *outcome = Some(errno));
    }

    fn decision(&self, request: RequestId) -> Option<i32> {
        self.intents.keep().global_outcome(request)
    }

    fn going_alone(&self, request: RequestId) {
        self.intents.keep().note_global(request, |alone, _| *alone = true);
    }

    fn mode(&self) -> (String, String) {
        let DataMode { passthrough, reason } = self.kernel.mode();
        (if passthrough { "passthrough" } else { "plain" }.into(), reason)
    }
}

impl FileSystem {
    /// `asked`: by a program here.
    fn apply_as(&self, op: &DirOp, asked: bool) -> Result<(), Errno> {
        let op = &self.view.names().inward(op).ok_or(Errno(libc::ENAMETOOLONG))?;
        let outcome = {
            let mut world = self.view.change();
            let outcome = self.carry_out(&mut world, op);
            world.release(op);
            outcome
        };
        // The kernel remembers no name that is not there.
        if matches!(op, DirOp::Make { .. }) || asked {
            self.waits.wake();
        } else {
            self.changed();
        }
        outcome
    }

    /// Names of the checkpoint path are not what they were: before another node may build on that,
    /// no lookup here must be answered from what the kernel remembers. What waits looks again.
    ///
    /// Not for less than that: the kernel takes every name that it knew out of its tree and finds
    /// it again, and meanwhile a working directory has no path, and a name waits for whatever else
    /// is under way in its directory.
    pub(super) fn changed(&self) {
        self.kernel.forget_names();
        self.waits.wake();
    }

    /// Unlisted names were removed: the kernel forgets names, and this waits for the deletion.
    fn await_deletion(&self) -> Result<(), Errno> {
        self.changed();
        // What is brought here next may need the room.
        if !self.removals.wait(JUNK_WAIT)? {
            self.node.note("what is not sealed is out of sight, but still being deleted".into());
        }
        Ok(())
    }

    /// The file at `inner` is open for writing.
    fn writer(&self, inner: &RelPath, handle: &Handle) -> Writer {
        let appends = handle.appends();
        let name = inner.split_last().map_or(&[][..], |(_, name)| name);
        let process = &handle.process;
        let held = || self.processes.sought(handle.inode.id, name).is_written_by_anybody(process.pid);
        Writer {
            path: inner.clone(),
            pid: process.pid,
            command: process.command.clone(),
            appends,
            closing: appends && !held(),
        }
    }

    fn take_sealed(
        &self,
        catalog: Arc<CatalogIndex>,
        generation: Option<Generation>,
        unread: Option<Vec<RelPath>>,
    ) {
        let name = catalog.catalog().name.clone();
        // What takes long with many names is done before any operation has to wait for it.
        let sealed = Arc::new(Sealed::new(catalog));
        self.is_sealed_flat(&sealed);
        let before = {
            let mut world = self.view.change();
            let before = world.base(&Place::Entry(name.clone())).cloned();
            let same = before.clone().filter(|before| before.id() == sealed.id());
            if let (Some(before), None, Ok(top)) = (&before, &same, self.view.names().dataset_path(&name)) {
                self.intents.show_all(before.id());
                self.forget_replaced(&top);
            }
            if let Some(same) = same {
                sealed.see_as(&same);
            }
            if let Some(files) = unread {
                sealed.set_unread(files);
            }
            world.seal(Arc::clone(&sealed));
            if let Some(generation) = generation {
                self.take_generation(&world, &sealed, generation);
            }
            before
        };
        drop(before);
        self.waits.end_releases(&name);
        self.changed();
    }
}

//! A successor's tree: inodes, open files and listings of a worker that was killed, from the state
//! memory.
//!
//! Names are not kept there. An inode's own descriptor tells its path; hard links, and what was
//! unlinked under the name by which it was opened, are looked for in the tree. A sealed name
//! without a descriptor is found by its mark.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use rustix::fs::{FileType, Mode, Stat};

use super::FileSystem;
use super::attr::{key_of, stat_of};
use super::caller::Process;
use super::files::{Handle, Registered, Snapshot, own_flags};
use super::inodes::{Backing, Inode, Key};
use super::view::World;
use crate::errno::Errno;
use crate::keep::keeper::Keepers;
use crate::keep::records::{KeptFile, KeptInode, mark_of};
use crate::path::RelPath;

impl FileSystem {
    /// Takes over what `keepers` and the state memory hold, before anything else happens to the
    /// tree. Sealed names come later: [`FileSystem::restore_sealed`].
    pub fn restore(&self, keepers: &Keepers) -> Result<(), Errno> {
        self.trees.drop_doubles()?;
        let mut lost = HashMap::new();
        let mut registrations = HashMap::new();
        let mut taken = Vec::new();
        for inode in self.intents.keep().inodes() {
            let fd = inode.backing.and_then(|kept| keepers.take(kept).map(|fd| (fd, kept)));
            let backing = fd.map(|(fd, kept)| {
                let backing = Backing { fd: Arc::new(fd), key: kept.key };
                if backing.fd.as_raw_fd() != kept.number {
                    self.intents.keep().set_backing(inode.record, backing.kept());
                }
                backing
            });
            if let (None, Some(key)) = (&backing, inode.key()) {
                self.intents.keep().park(inode.record);
                lost.insert(key, inode.number);
            }
            if inode.registration != 0 {
                registrations.insert(inode.number, inode.registration);
            }
            taken.push((inode, backing));
        }
        let inodes = self.table.take_in(taken);
        self.restore_names(&inodes, lost)?;
        self.restore_handles(keepers, &registrations);
        self.table.drop_idle();
        Ok(())
    }

    /// Gives inodes their names; those without a descriptor, which are in `wanted`, where they can
    /// be found.
    fn restore_names(&self, inodes: &[Arc<Inode>], mut wanted: HashMap<Key, u64>) -> Result<(), Errno> {
        let trees = self.trees.kernel_paths()?;
        let mut paths: Vec<(RelPath, u64)> = Vec::with_capacity(inodes.len());
        for inode in inodes {
            let Some(backing) = inode.backing() else { continue };
            let stat = stat_of(&backing.fd)?;
            match self.trees.path_of(&backing, &stat, &trees)? {
                Some(path) if single(&stat) => paths.push((path, inode.id)),
                None if single(&stat) && stat.st_nlink == 0 => {}
                found => {
                    wanted.insert(backing.key, inode.id);
                    paths.extend(found.map(|path| (path, inode.id)));
                }
            }
        }
        if !wanted.is_empty() {
            paths.extend(self.trees.find_all(&wanted)?);
        }
        // A directory's path is shorter than those below it.
        paths.sort_by_key(|(path, _)| path.as_bytes().len());
        for (path, id) in paths {
            self.table.link_kept(&path, id);
        }
        Ok(())
    }

    fn restore_handles(&self, keepers: &Keepers, registrations: &HashMap<u64, u32>) {
        let mut registered = Vec::new();
        for (record, file) in self.intents.keep().open_files() {
            let data = match file.data {
                None => None,
                Some(kept) => match keepers.take(kept).map(File::from).or_else(|| self.reopen(&file)) {
                    Some(file) => Some(file),
                    // Its operations fail (EBADF): what it was open on is not to be had.
                    None => continue,
                },
            };
            let Ok(inode) = self.table.get(file.inode) else { continue };
            let marks = self.place_of(file.inode).is_some_and(|(_, place)| self.view.is_mark(&place));
            let plain = data.is_some();
            let process = Arc::new(Process { pid: file.pid, command: file.command.clone(), rank: file.rank });
            let closed = Handle::nowhere(inode, file.flags);
            let handle = Handle { file: data, process, marks, inherited: true, ..closed };
            self.files.take_in(file.handle, handle, record, file.unique);
            if !plain
                && let Some(&id) = registrations.get(&file.inode)
                && let Ok(handle) = self.files.get(file.handle)
            {
                registered.push(Registered { handle, id });
            }
        }
        self.files.register(registered);
        for (record, directory) in self.intents.keep().open_directories() {
            let Ok(inode) = self.table.get(directory.inode) else { continue };
            let listing = directory.listing.and_then(|kept| keepers.take(kept)).and_then(Snapshot::read);
            let listing = (directory.end, listing);
            self.files.take_in_directory(directory.handle, inode, listing, record, directory.unique);
        }
    }

    /// Opens a file anew whose descriptor is lost.
    fn reopen(&self, file: &KeptFile) -> Option<File> {
        let inode = self.table.get(file.inode).ok()?;
        let flags = own_flags(file.flags & !libc::O_TRUNC, self.trees.privileged());
        let fd = rustix::fs::open(super::proc_path(inode.fd().ok()?), flags, Mode::empty()).ok()?;
        let key = key_of(&stat_of(&fd).ok()?);
        (Some(key) == file.data.map(|data| data.key)).then(|| fd.into())
    }

    /// Puts sealed inodes in their places and hides what was removed, once sealed datasets are
    /// listed and before requests are served.
    pub fn restore_sealed(&self) {
        let world = self.view.change();
        let hidden = self.intents.keep().hidden();
        let inodes: Vec<KeptInode> =
            self.intents.keep().inodes().filter(|inode| inode.sealed.dataset != 0).collect();
        for sealed in world.all_sealed() {
            let dataset = sealed.id().0;
            let marks: HashMap<u64, RelPath> =
                sealed.all_paths().into_iter().map(|path| (mark_of(path.as_bytes()), path)).collect();
            for mark in hidden.iter().filter(|mark| mark.dataset == dataset) {
                if let Some(path) = marks.get(&mark.name) {
                    sealed.hide(path.clone());
                }
            }
            let Ok(top) = self.view.names().dataset_path(sealed.name()) else { continue };
            let mut found: Vec<(RelPath, u64)> = inodes
                .iter()
                .filter(|inode| inode.sealed.dataset == dataset && self.table.path(inode.number).is_none())
                .filter_map(|inode| {
                    let path = marks.get(&inode.sealed.name).filter(|path| !sealed.is_gone(path))?;
                    Some((top.concat(path).ok()?, inode.number))
                })
                .collect();
            found.sort_by_key(|(path, _)| path.as_bytes().len());
            for (path, id) in found {
                self.table.link_kept(&path, id);
            }
            for path in sealed.removed().into_iter().filter(|_| !sealed.has_next()) {
                // Its file stays in the tree, and is no name of it any more.
                if let Ok(path) = top.concat(&path) {
                    self.table.cut_path(&path);
                }
            }
        }
        self.keep_all_nameless(&world);
    }

    /// Files whose names programs have removed or replaced, and which have another link: they may
    /// still be a sealed dataset's.
    fn keep_all_nameless(&self, world: &World) {
        for kept in self.intents.keep().inodes() {
            let nameless = self.table.path(kept.number).is_none();
            let inode = self.table.get(kept.number).ok().filter(|_| nameless);
            let Some(backing) = inode.and_then(|inode| inode.backing()) else { continue };
            if stat_of(&backing.fd).is_ok_and(|stat| stat.st_nlink > 0) {
                world.all_sealed().for_each(|sealed| sealed.set_kept(backing.key));
            }
        }
    }
}

/// One name at most: a directory, or a file without hard links.
fn single(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory || stat.st_nlink <= 1
}

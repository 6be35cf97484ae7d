//! A tree that is a plain directory, for a node without a mount.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags};

use crate::boundary::{Generation, Look, MountedTree, Writer};
use crate::control::loose::LooseEntry;
use crate::control::{DirHeld, DirOp, FrozenFile, Settings};
use crate::dataset::CatalogIndex;
use crate::errno::Errno;
use crate::ids::{DatasetId, RequestId};
use crate::path::RelPath;

/// A tree without a mount: what programs would do is done to its directory.
pub(super) struct FakeTree {
    pub(super) root: PathBuf,
    /// The second store's tree, if there is one.
    pub(super) other: Option<PathBuf>,
    pub(super) inner: Mutex<Inner>,
}

#[derive(Default)]
pub(super) struct Inner {
    pub(super) held: Vec<DirOp>,
    pub(super) frozen: BTreeSet<Vec<u8>>,
    pub(super) sealed: BTreeMap<Vec<u8>, Arc<CatalogIndex>>,
    pub(super) generations: BTreeMap<DatasetId, Generation>,
    pub(super) unread: BTreeMap<DatasetId, BTreeSet<RelPath>>,
    pub(super) writers: Vec<Writer>,
    /// Who writes for one look.
    pub(super) passing: Option<Vec<Writer>>,
    /// A seal has asked who writes.
    pub(super) looked: bool,
    pub(super) wakers: Vec<Arc<dyn Fn() + Send + Sync>>,
    /// A process makes this file right after junk was removed.
    pub(super) intruder: Option<PathBuf>,
}

impl FakeTree {
    pub(super) fn at(&self, path: &RelPath) -> PathBuf {
        let top = path.split_first().map(|(name, _)| RelPath::new(name).unwrap());
        let there = |other: &&PathBuf| top.as_ref().is_some_and(|top| other.join(top.as_path()).exists());
        self.other.as_ref().filter(there).unwrap_or(&self.root).join(path.as_path())
    }

    pub(super) fn is_frozen(&self, name: &str) -> bool {
        self.inner.lock().frozen.contains(name.as_bytes())
    }

    pub(super) fn is_sealed(&self, name: &str) -> bool {
        self.inner.lock().sealed.contains_key(name.as_bytes())
    }

    pub(super) fn held(&self) -> usize {
        self.inner.lock().held.len()
    }

    pub(super) fn set_writers(&self, writers: Vec<Writer>) {
        self.inner.lock().writers = writers;
        let wakers = self.inner.lock().wakers.clone();
        for wake in wakers {
            wake();
        }
    }

    /// Who writes until they have been seen once.
    pub(super) fn set_passing_writers(&self, writers: Vec<Writer>) {
        self.inner.lock().passing = Some(writers);
    }

    /// Who writes has been seen.
    pub(super) fn has_looked(&self) -> bool {
        self.inner.lock().looked
    }
}

fn errno(error: &std::io::Error) -> Errno {
    Errno(error.raw_os_error().unwrap_or(libc::EIO))
}

impl MountedTree for FakeTree {
    fn prepare(&self, op: &DirOp) -> Result<(), Errno> {
        let need = |path: &RelPath, there: bool| match (self.at(path).exists(), there) {
            (true, false) => Err(Errno(libc::EEXIST)),
            (false, true) => Err(Errno(libc::ENOENT)),
            _ => Ok(()),
        };
        match op {
            DirOp::Make { path, .. } => need(path, false)?,
            DirOp::Remove { path } => need(path, true)?,
            DirOp::Rename { from, .. } => need(from, true)?,
        }
        self.inner.lock().held.push(op.clone());
        Ok(())
    }

    fn apply(&self, op: &DirOp) -> Result<(), Errno> {
        self.release(op);
        let done = match op {
            DirOp::Make { path, .. } => std::fs::create_dir(self.at(path)),
            DirOp::Remove { path } if self.inner.lock().sealed.remove(path.as_bytes()).is_some() => Ok(()),
            DirOp::Remove { path } => std::fs::remove_dir(self.at(path)),
            DirOp::Rename { from, to, exchange: true, .. } => {
                let (cwd, flags) = (rustix::fs::CWD, rustix::fs::RenameFlags::EXCHANGE);
                rustix::fs::renameat_with(cwd, self.at(from), cwd, self.at(to), flags)
                    .map_err(std::io::Error::from)
            }
            DirOp::Rename { from, to, .. } => std::fs::rename(self.at(from), self.at(to)),
        };
        done.map_err(|e| errno(&e))
    }

    fn apply_asked(&self, op: &DirOp) -> Result<(), Errno> {
        self.apply(op)
    }

    fn names_changed(&self) {}

    fn attached(&self) {}

    fn release(&self, op: &DirOp) {
        self.inner.lock().held.retain(|held| held != op);
    }

    fn open_files(&self) -> HashSet<(u64, u64)> {
        HashSet::new()
    }

    fn directories(&self) -> Result<Vec<DirHeld>, Errno> {
        let sealed: Vec<Vec<u8>> = self.inner.lock().sealed.keys().cloned().collect();
        let mut found = Vec::new();
        let read = |root: &PathBuf| std::fs::read_dir(root).map_err(|e| errno(&e));
        let other = self.other.as_ref().map(read).transpose()?;
        for entry in read(&self.root)?.chain(other.into_iter().flatten()) {
            let name = entry.map_err(|e| errno(&e))?.file_name();
            if !sealed.iter().any(|s| s == name.as_bytes()) {
                found.push(DirHeld {
                    path: RelPath::new(name.as_bytes()).unwrap(),
                    mode: 0o755,
                    uid: 0,
                    gid: 0,
                });
            }
        }
        found.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(found)
    }

    fn freeze(&self, name: &[u8]) {
        self.inner.lock().frozen.insert(name.to_vec());
    }

    fn begin_wait(&self, _: &[u8]) {}

    fn end_wait(&self, _: &[u8]) -> bool {
        false
    }

    fn writers(&self, _: &[u8]) -> Result<Vec<Writer>, Errno> {
        let mut inner = self.inner.lock();
        inner.looked = true;
        Ok(inner.passing.take().unwrap_or_else(|| inner.writers.clone()))
    }

    fn is_invalid(&self, _: &[u8]) -> bool {
        false
    }

    fn on_release(&self, _: &[u8], wake: Arc<dyn Fn() + Send + Sync>) {
        self.inner.lock().wakers.push(wake);
    }

    fn files(&self, name: &[u8]) -> Result<Vec<FrozenFile>, Errno> {
        let top = self.at(&RelPath::new(name).unwrap());
        let mut files = Vec::new();
        collect(&top, &RelPath::root(), &mut files).map_err(|e| errno(&e))?;
        files.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(files)
    }

    fn backing_directory(&self, name: &[u8]) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::open(self.at(&RelPath::new(name).unwrap()), flags, Mode::empty())
            .map_err(|e| Errno(e.raw_os_error()))
    }

    fn thaw(&self, name: &[u8]) {
        self.inner.lock().frozen.remove(name);
    }

    fn sealed(&self, catalog: Arc<CatalogIndex>) {
        let mut inner = self.inner.lock();
        let name = catalog.catalog().name.clone();
        inner.frozen.remove(&name);
        inner.sealed.insert(name, catalog);
    }

    fn sealed_and_changed(&self, catalog: Arc<CatalogIndex>, generation: Generation) {
        let id = catalog.catalog().id;
        self.sealed(catalog);
        self.generation(id, generation);
    }

    fn parted(&self, _: &[u8], _: &[RelPath]) {}

    fn generation(&self, id: DatasetId, generation: Generation) {
        self.inner.lock().generations.insert(id, generation);
    }

    fn sealed_unread(&self, catalog: Arc<CatalogIndex>, files: Vec<RelPath>) {
        self.unread(catalog.catalog().id, files);
        self.sealed(catalog);
    }

    fn unread(&self, id: DatasetId, files: Vec<RelPath>) {
        self.inner.lock().unread.insert(id, files.into_iter().collect());
    }

    fn verified(&self, id: DatasetId, files: &[RelPath]) {
        self.inner.lock().unread.entry(id).or_default().retain(|path| !files.contains(path));
    }

    fn unlisted(&self, id: DatasetId) {
        self.inner.lock().sealed.retain(|_, catalog| catalog.catalog().id != id);
    }

    fn loose_names(&self) -> Result<Vec<Vec<u8>>, Errno> {
        Ok(Vec::new())
    }

    fn loose_entry(&self, name: &[u8], _: u64) -> Result<Look, Errno> {
        Ok(Look::Pointer(LooseEntry::gone(name.to_vec())))
    }

    fn place_loose(&self, _: &LooseEntry, _: u64) -> Result<bool, Errno> {
        Ok(true)
    }

    fn presenting(&self) {}

    fn remove_unsealed(&self, names: &[&[u8]]) -> Result<(), Errno> {
        for name in names {
            let at = self.at(&RelPath::new(*name).unwrap());
            std::fs::remove_dir_all(at).map_err(|e| errno(&e))?;
        }
        Ok(())
    }

    fn remove_junk(&self, _keep: Option<&str>) -> Result<(), Errno> {
        for DirHeld { path, .. } in self.directories()? {
            let at = self.at(&path);
            let removed = if at.is_dir() { std::fs::remove_dir_all(at) } else { std::fs::remove_file(at) };
            removed.map_err(|e| errno(&e))?;
        }
        if let Some(file) = self.inner.lock().intruder.take() {
            let made =
                std::fs::create_dir_all(file.parent().unwrap()).and_then(|()| std::fs::write(file, b"x"));
            made.map_err(|e| errno(&e))?;
        }
        Ok(())
    }

    fn follow(&self, _: &Settings) {}

    fn decided(&self, _: RequestId, _: i32) {}

    fn decision(&self, _: RequestId) -> Option<i32> {
        None
    }

    fn going_alone(&self, _: RequestId) {}

    fn record_io(&self, _: bool) {}

    fn mode(&self) -> (String, String) {
        ("plain".into(), "no mount".into())
    }
}

fn collect(top: &Path, at: &RelPath, files: &mut Vec<FrozenFile>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(top.join(at.as_path()))? {
        let entry = entry?;
        let path = at.join(entry.file_name().as_bytes()).unwrap();
        if entry.file_type()?.is_dir() {
            collect(top, &path, files)?;
        } else if entry.file_type()?.is_file() {
            files.push(FrozenFile { path, size: entry.metadata()?.len() });
        }
    }
    Ok(())
}

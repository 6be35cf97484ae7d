//! Removals under way: directories whose removal a program has asked for, and trees that are out of
//! sight and whose bytes go by and by.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::doomed::Doomed;
use super::trees::Trees;
use crate::errno::Errno;
use crate::lane::Hands;
use crate::lock::Mutex;
use crate::path::RelPath;

/// A removal that was asked for here and is not answered.
struct Asked {
    path: RelPath,
    /// The bytes to wait for before it is answered, once it is decided.
    bytes: Option<u64>,
}

/// See the module.
pub(crate) struct Removals {
    asked: Mutex<Vec<Asked>>,
    doomed: OnceLock<Doomed>,
    /// Called when the bytes of a tree are gone.
    gone: Arc<dyn Fn() + Send + Sync>,
}

impl Removals {
    pub(crate) fn new(gone: impl Fn() + Send + Sync + 'static) -> Self {
        Self { asked: Mutex::default(), doomed: OnceLock::new(), gone: Arc::new(gone) }
    }

    /// Nobody else uses the trees any more: finishes what a predecessor had begun to delete.
    pub(crate) fn begin(&self, trees: &Trees, hands: Hands) -> Result<(), Errno> {
        let _ = self.doomed.set(Doomed::open(&trees.paths(), hands)?);
        Ok(())
    }

    /// The deleting half; not before [`Removals::begin`].
    fn doomed(&self) -> Result<&Doomed, Errno> {
        self.doomed.get().ok_or(Errno(libc::EAGAIN))
    }

    /// Where files of a store can be made that programs do not see; what is left there is deleted
    /// at the next start.
    pub(crate) fn aside(&self, store: usize) -> Result<BorrowedFd<'_>, Errno> {
        Ok(self.doomed()?.directory(store))
    }

    /// A program has asked for the removal of `path`.
    pub(crate) fn ask(&self, path: &RelPath) {
        self.asked.lock().push(Asked { path: path.clone(), bytes: None });
    }

    /// A program here has asked for its removal.
    pub(crate) fn is_asked(&self, path: &RelPath) -> bool {
        self.asked.lock().iter().any(|asked| asked.path == *path)
    }

    /// The removal of `path` is decided. The number, where there are any bytes, is to wait for.
    pub(crate) fn decided(&self, path: &RelPath) -> Option<u64> {
        let mut asked = self.asked.lock();
        let at = asked.iter().position(|asked| asked.path == *path)?;
        asked.swap_remove(at).bytes
    }

    /// Takes `path` out of sight, if it is there; its bytes go by and by.
    pub(crate) fn take(&self, trees: &Trees, path: &RelPath) -> Result<(), Errno> {
        let number = match self.doom(trees, path) {
            Err(Errno(libc::ENOENT)) => None,
            outcome => outcome?,
        };
        for asked in self.asked.lock().iter_mut().filter(|asked| asked.path == *path) {
            asked.bytes = number;
        }
        Ok(())
    }

    /// As [`Removals::take`], of what nobody has asked for: ENOENT where it is not there. The
    /// number, where there are any bytes, is to wait for.
    pub(crate) fn doom(&self, trees: &Trees, path: &RelPath) -> Result<Option<u64>, Errno> {
        let doomed = self.doomed()?;
        let take = |store, dir: &OwnedFd, name: &[u8]| doomed.take(store, dir.try_clone()?, name);
        let taken = in_parent(trees, path, take)?;
        let gone = Arc::clone(&self.gone);
        Ok(taken.map(|aside| doomed.delete(aside, move || gone())))
    }

    /// Puts `path` out of sight, where it stays.
    pub(crate) fn put_by(&self, trees: &Trees, path: &RelPath, label: &str) -> Result<(), Errno> {
        let doomed = self.doomed()?;
        in_parent(trees, path, |store, dir, name| doomed.keep(store, dir, name, label))
    }

    /// Have its bytes gone?
    pub(crate) fn is_gone(&self, number: u64) -> Result<bool, Errno> {
        Ok(self.doomed()?.is_gone(number))
    }

    /// Waits until all that was taken so far is gone; false when that takes longer.
    pub(crate) fn wait(&self, at_most: Duration) -> Result<bool, Errno> {
        Ok(self.doomed()?.wait(at_most))
    }
}

/// Changes the directory in which `path` is, by its store, descriptor and the name in it.
fn in_parent<T>(
    trees: &Trees,
    path: &RelPath,
    change: impl Fn(usize, &OwnedFd, &[u8]) -> Result<T, Errno>,
) -> Result<T, Errno> {
    let (_, name) = path.split_last().ok_or(Errno(libc::EBUSY))?;
    let (store, dir) = trees.open_above(path)?;
    trees.as_owner(&dir, || change(store, &dir, name))
}

//! `.scrfs` at the mount's root: small files whose text is made when they are opened
//! (`scrfs/docs/semantics.md`, Eyes).
//!
//! None of it is on the backing tree, in the inode table or in the state memory: numbers of inodes
//! and handles say which file is meant, so a new worker goes on with them. Sizes are told as 0, as
//! in /proc; reads do not go through the page cache. The directory is found by name and not listed
//! at the root.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::attr::{Attr, Changes, Kind, stat_of};
use super::errno::fail;
use super::files::{DirEntry, Handle, Listings, OpenFiles, Share, Taken};
use super::inodes::{EYES, Inode, ROOT, is_eye};
use super::names::Entry;
use super::node::NodeLink;
use super::open::{Data, Opened};
use super::view::{LOCAL, RESERVED_AT_ROOT};
use crate::boundary::Eye;
use crate::caller::Caller;
use crate::errno::Errno;
use crate::lock::Mutex;

/// Marks numbers of inodes and handles in here. Those of other handles have the worker's count in
/// bits 40 and above.
const MARK: u64 = EYES;
/// Where a handle's number tells its file.
const EYE_SHIFT: u32 = 48;
/// Where it tells the worker that opened it.
const GENERATION_SHIFT: u32 = 32;
/// Longest text of one write to `post`.
pub(crate) const POST_BYTES_MAX: usize = 4096;

/// Every file, in the order in which it is listed.
const FILES: [(Eye, &str); 8] = [
    (Eye::Current, "current"),
    (Eye::Events, "events"),
    (Eye::Metrics, "metrics"),
    (Eye::NeedCheckpoint, "need_checkpoint"),
    (Eye::Post, "post"),
    (Eye::ShouldExit, "should_exit"),
    (Eye::Status, "status"),
    (Eye::StatusJson, "status.json"),
];

/// The number of the directory.
const DIRECTORY: u64 = EYES;

fn number_of(eye: Eye) -> u64 {
    let at = FILES.iter().position(|(other, _)| *other == eye).unwrap_or(0);
    DIRECTORY + 1 + at as u64
}

fn at(index: u64) -> Option<Eye> {
    FILES.get(usize::try_from(index).ok()?).map(|(eye, _)| *eye)
}

fn eye_of(inode: u64) -> Option<Eye> {
    at(inode.checked_sub(DIRECTORY + 1)?)
}

/// The file that a handle is open on.
pub(crate) fn opened_eye(handle: u64) -> Option<Eye> {
    at((handle & !MARK) >> EYE_SHIFT).filter(|_| handle & MARK != 0)
}

/// The handle is the directory's.
pub(crate) fn is_directory_handle(handle: u64) -> bool {
    handle == DIRECTORY
}

/// A text as it was when its file was opened.
struct Text {
    bytes: Vec<u8>,
    /// Of the memory that all may take, with the listings of directories.
    _share: Share,
}

/// See the module.
pub(super) struct Eyes {
    next: AtomicU64,
    open: Mutex<HashMap<u64, Arc<Text>>>,
    listings: Listings,
    /// Who makes the texts.
    node: Arc<NodeLink>,
    /// The mount's root, whose owner and times they have.
    root: Arc<OwnedFd>,
}

impl Eyes {
    /// Numbers of handles begin above those of former workers: one of these may be open still.
    pub(super) fn new(node: Arc<NodeLink>, root: Arc<OwnedFd>, files: &OpenFiles) -> Self {
        let next = AtomicU64::new(files.generation() << GENERATION_SHIFT);
        Self { next, open: Mutex::default(), listings: files.listings().clone(), node, root }
    }

    /// Makes the text of a file; ENOMEM where there is no room for it.
    fn text(&self, eye: Eye, caller: Caller) -> Result<Arc<Text>, Errno> {
        let bytes = self.node.get()?.look(eye, caller)?;
        let share = self.listings.take(bytes.len())?;
        Ok(Arc::new(Text { bytes, _share: share }))
    }

    /// `name` in `parent`, if one of them is of the eyes.
    pub(crate) fn look_up(&self, parent: u64, name: &[u8]) -> Option<Result<Entry, Errno>> {
        let id = if parent == ROOT && name == RESERVED_AT_ROOT {
            DIRECTORY
        } else if is_eye(parent) {
            let found = FILES.iter().find(|(_, known)| known.as_bytes() == name);
            match found {
                Some((eye, _)) if parent == DIRECTORY => number_of(*eye),
                _ => return Some(fail(libc::ENOENT)),
            }
        } else {
            return None;
        };
        let entry = |attr| Entry { attr, entry_ttl: LOCAL, attr_ttl: LOCAL, shared: false };
        Some(self.attr(id).map(entry))
    }

    /// Attributes of one of them.
    pub(crate) fn attr(&self, id: u64) -> Result<Attr, Errno> {
        let root = Attr::of(id, &stat_of(&self.root)?);
        let (kind, perm, nlink) = match eye_of(id) {
            None => (Kind::Directory, 0o555, 2),
            // For the job's user alone, to whom the root belongs.
            Some(Eye::Post) => (Kind::File, 0o200, 1),
            Some(_) => (Kind::File, 0o444, 1),
        };
        Ok(Attr { kind, perm, nlink, size: 0, blocks: 0, rdev: 0, ..root })
    }

    /// A truncation, as `>` does it, changes nothing; nothing else can be changed.
    pub(crate) fn set_attr(&self, id: u64, changes: &Changes) -> Result<Attr, Errno> {
        let size = Changes { size: changes.size, handle: changes.handle, ..Changes::default() };
        if *changes != size || eye_of(id) != Some(Eye::Post) {
            return fail(libc::EPERM);
        }
        self.attr(id)
    }

    /// Makes the text. The kernel has checked the mode.
    pub(crate) fn open(&self, caller: Caller, id: u64, flags: i32) -> Result<Opened, Errno> {
        let eye = eye_of(id).ok_or(Errno(libc::EISDIR))?;
        let changes = flags & libc::O_ACCMODE != libc::O_RDONLY || flags & libc::O_TRUNC != 0;
        // Modes do not keep root from it.
        if changes && eye != Eye::Post {
            return fail(libc::EPERM);
        }
        let at = number_of(eye) - DIRECTORY - 1;
        let serial = self.next.fetch_add(1, Ordering::Relaxed) & ((1 << EYE_SHIFT) - 1);
        let fh = MARK | at << EYE_SHIFT | serial;
        if flags & libc::O_ACCMODE != libc::O_WRONLY {
            let text = self.text(eye, caller)?;
            self.open.lock().insert(fh, text);
        }
        let handle = Arc::new(Handle::nowhere(Inode::nowhere(id), flags));
        Ok(Opened { fh, handle, data: Data::Direct, acts: false })
    }

    /// The text from `offset` on. What a predecessor opened is made anew.
    pub(crate) fn read(&self, eye: Eye, fh: u64, offset: u64, buffer: &mut [u8]) -> Result<usize, Errno> {
        let known = self.open.lock().get(&fh).cloned();
        let text = if let Some(text) = known {
            text
        } else {
            let text = self.text(eye, Caller::default())?;
            self.open.lock().insert(fh, Arc::clone(&text));
            text
        };
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(text.bytes.len());
        let rest = &text.bytes[from..];
        let length = rest.len().min(buffer.len());
        buffer[..length].copy_from_slice(&rest[..length]);
        Ok(length)
    }

    /// One message.
    pub(crate) fn write(&self, eye: Eye, caller: Caller, data: &[u8]) -> Result<usize, Errno> {
        if eye != Eye::Post {
            return fail(libc::EBADF);
        }
        if data.len() > POST_BYTES_MAX {
            return fail(libc::EMSGSIZE);
        }
        self.node.get()?.post(caller, String::from_utf8_lossy(data).trim_end());
        Ok(data.len())
    }

    pub(crate) fn release(&self, fh: u64) {
        self.open.lock().remove(&fh);
    }

    /// The number of an open directory of eyes, if `id` is one.
    pub(crate) fn open_directory(id: u64) -> Option<Result<u64, Errno>> {
        is_eye(id).then(|| if id == DIRECTORY { Ok(DIRECTORY) } else { fail(libc::ENOTDIR) })
    }

    /// As [`super::FileSystem::readdir`].
    pub(crate) fn list(
        &self,
        offset: u64,
        plus: bool,
        emit: &mut dyn FnMut(&DirEntry, Option<&Entry>, u64) -> Taken,
    ) {
        let dots = [(".", DIRECTORY), ("..", ROOT)].map(|(name, ino)| (name, Kind::Directory, ino));
        let files = FILES.map(|(eye, name)| (name, Kind::File, number_of(eye)));
        for (next, (name, kind, ino)) in (1..).zip(dots.into_iter().chain(files)) {
            let listed = DirEntry { name: name.as_bytes().to_vec(), kind, ino };
            let file = plus && kind == Kind::File;
            let entry = file.then(|| self.look_up(DIRECTORY, &listed.name)?.ok()).flatten();
            if next > offset && emit(&listed, entry.as_ref(), next) == Taken::Full {
                break;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_tell_the_file() {
        for (index, (eye, _)) in FILES.iter().enumerate() {
            assert_eq!(eye_of(number_of(*eye)), Some(*eye));
            assert_eq!(opened_eye(MARK | (index as u64) << EYE_SHIFT | 7), Some(*eye));
        }
        for other in [ROOT, 1 << 56, 1 << 63, DIRECTORY - 1, DIRECTORY + 9, (1 << 63) | 3] {
            assert!(!is_eye(other), "{other:x}");
        }
        assert_eq!(opened_eye(3 << 40 | 1), None);
    }
}

//! Opening files: passthrough, through the daemon, the marker, and sealed files whose bytes must
//! come, or be verified, first. An open begins in the session thread that took the request. After a
//! wait for a held name or a frozen dataset it goes on in `scrfs-held`; after a fetch, or the begin
//! of a generation, in the node's thread that answers.

use std::fs::File;
use std::sync::Arc;

use rustix::fs::{FileType, Mode, OFlags};

use super::attr::{key_of, stat_of};
use super::errno::{Stop, fail};
use super::files::{Handle, own_flags};
use super::inodes::{Backing, Change, Inode, Moment, is_eye};
use super::view::{Place, Sealed, World};
use super::wait::Done;
use super::{FileSystem, proc_path};
use crate::caller::Caller;
use crate::dataset::EntryKind;
use crate::dataset::MARKER;
use crate::errno::Errno;
use crate::ids::DatasetId;
use crate::keep::intents::is_resent;
use crate::path::RelPath;

/// How often one open asks for the same file again, when what was brought is gone before it could
/// be opened.
const FETCHES_MAX: u32 = 3;

/// How the data of an open file are served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Data {
    /// By the kernel, from the inode's backing.
    Passthrough,
    /// By the daemon, through the page cache; `kept`: what that has of the file from former opens
    /// is good.
    Paged {
        /// See above.
        kept: bool,
    },
    /// By the daemon, past the page cache (the marker, the eyes).
    Direct,
}

/// A file that was opened.
#[derive(Debug, Clone)]
pub struct Opened {
    /// Its number.
    pub fh: u64,
    /// The handle itself.
    pub handle: Arc<Handle>,
    /// Who serves its data.
    pub data: Data,
    /// It is a dataset's marker, or a pointer file: its close is an act.
    pub acts: bool,
}

impl Opened {
    /// Its close sets no marker and sends no pointer file, and the daemon has nothing left to
    /// write. (A file that gets the marker's name, or a pointer's, while it is open has acted by
    /// that.)
    pub fn no_flush(&self) -> bool {
        !self.handle.writable() || (self.data == Data::Passthrough && !self.acts)
    }
}

enum Step {
    Opened(Opened),
    Fetch(DatasetId, RelPath),
}

impl FileSystem {
    /// open(2) of an inode. A sealed file that is elsewhere is brought here first.
    pub fn open(self: &Arc<Self>, caller: Caller, id: u64, flags: i32, done: Done<Opened>) {
        if is_eye(id) {
            return done(self.eyes.open(caller, id, flags));
        }
        let since = self.table.moment();
        self.open_after(caller, id, flags, (since, 0), done);
    }

    fn open_after(
        self: &Arc<Self>,
        caller: Caller,
        id: u64,
        flags: i32,
        (since, fetched): (Moment, u32),
        done: Done<Opened>,
    ) {
        self.forget_opened(caller.unique);
        let fs = Arc::clone(self);
        let finish = move |step: Result<Step, Errno>| match step {
            Ok(Step::Opened(opened)) => done(Ok(opened)),
            Ok(Step::Fetch(..)) if fetched >= FETCHES_MAX => done(fail(libc::EIO)),
            Ok(Step::Fetch(dataset, path)) => {
                let requests = match fs.node.get() {
                    Ok(requests) => requests,
                    Err(error) => return done(Err(error)),
                };
                let again = move |fetch: Result<(), Errno>| match fetch {
                    Ok(()) => fs.open_after(caller, id, flags, (since, fetched + 1), done),
                    Err(error) => done(Err(error)),
                };
                requests.fetch(dataset, &path, caller, Box::new(again));
            }
            Err(error) => done(Err(error)),
        };
        let step = move |fs: &Self, world: &World| {
            fs.table.check(id, since)?;
            fs.open_now(world, caller, id, flags)
        };
        self.attempt(caller, step, Box::new(finish));
    }

    /// A request that a predecessor got opens its file anew: nobody was told of the former handle.
    pub(crate) fn forget_opened(&self, unique: u64) {
        if is_resent(unique)
            && let Some(former) = self.files.file_opened_by(unique)
        {
            self.release(former);
        }
    }

    fn open_now(&self, world: &World, caller: Caller, id: u64, flags: i32) -> Result<Step, Stop> {
        let inode = self.table.get(id)?;
        let changes = flags & libc::O_ACCMODE != libc::O_RDONLY || flags & libc::O_TRUNC != 0;
        let _change = if changes { self.gate_of_owned(world, id) } else { None };
        let Some((path, place)) = self.place_of(id) else {
            // Removed while the kernel still knew it.
            if changes {
                // By this error the kernel looks the name up once more: another file may have it.
                Self::own_nameless(world, &inode, libc::ESTALE)?;
            }
            return Ok(Step::Opened(self.open_backed(&inode, &Place::Outside, flags, caller, false)?));
        };
        if world.held(&path) {
            return Err(Stop::Wait);
        }
        let data = matches!(place, Place::Inside { .. }) && !place.is_marker();
        if changes && data && world.frozen(&place) {
            return Err(Stop::Frozen);
        }
        if let Some(sealed) = world.sealed(&place) {
            if place.is_marker() {
                return Ok(Step::Opened(self.open_marker(sealed, caller, id, flags)?));
            }
            let inner = place.inner();
            if !changes && !self.have_bytes(sealed, &inode, &path, &inner)? {
                return Ok(Step::Fetch(sealed.id(), inner));
            }
        }
        if data && changes {
            self.own(world, (&path, &place), &inode, caller, flags & libc::O_TRUNC != 0)?;
        } else if data {
            self.here(world, &path, &place, &inode)?;
        }
        Ok(Step::Opened(self.open_backed(&inode, &place, flags, caller, false)?))
    }

    /// Keeps a file of a generation that has begun at its name, while it becomes the program's own.
    pub(crate) fn gate_of_owned(&self, world: &World, id: u64) -> Option<Change<'_>> {
        let parent = || {
            let (path, place) = self.place_of(id)?;
            world.open(&place)?;
            self.table.find(&path.split_last()?.0)
        };
        loop {
            let directory = parent()?;
            let change = self.table.change(directory);
            // It may have been renamed to another directory before.
            if parent() == Some(directory) {
                return Some(change);
            }
        }
    }

    /// True when the sealed file is in the tree in its full size, and not to be verified first; the
    /// inode stands for it then.
    fn have_bytes(
        &self,
        sealed: &Sealed,
        inode: &Inode,
        path: &RelPath,
        inner: &RelPath,
    ) -> Result<bool, Errno> {
        let Some(EntryKind::File(copy)) = sealed.entry(inner).map(|entry| &entry.kind) else {
            return fail(libc::ENOENT);
        };
        if sealed.is_unread(inner) {
            return Ok(false);
        }
        let fd = match self.trees.open(path, OFlags::PATH | OFlags::NOFOLLOW) {
            Ok(fd) => fd,
            Err(Errno(libc::ENOENT | libc::ENOTDIR)) => return Ok(false),
            Err(error) => return Err(error),
        };
        let stat = stat_of(&fd)?;
        let whole = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
            && u64::try_from(stat.st_size).is_ok_and(|size| size == copy.size);
        if !whole {
            return Ok(false);
        }
        let key = key_of(&stat);
        // While the kernel serves handles of it, all opens must name the same backing file.
        if inode.backing().is_none_or(|now| now.key != key) && !inode.passthrough_in_use() {
            self.table.attach(inode, Backing { fd: Arc::new(fd), key });
        }
        Ok(true)
    }

    /// Opens an inode that has its backing. `made` says that this open made the file.
    pub(crate) fn open_backed(
        &self,
        inode: &Arc<Inode>,
        place: &Place,
        flags: i32,
        caller: Caller,
        made: bool,
    ) -> Result<Opened, Errno> {
        let marker = place.is_marker();
        // A checkpoint can be sealed whatever programs have open.
        if !marker {
            self.table.admit(inode)?;
        }
        let fd = inode.fd()?;
        // The kernel looks at writers itself before it asks here; at others that truncate only
        // afterwards.
        let truncates = flags & libc::O_TRUNC != 0 && !made;
        if truncates && flags & libc::O_ACCMODE == libc::O_RDONLY && self.files.is_executed(inode.id) {
            return fail(libc::ETXTBSY);
        }
        let passthrough = self.kernel.serves_data()
            // What the kernel serves already, under a name that became the marker's, it must go on
            // serving.
            && (!marker || inode.passthrough_in_use());
        let file = if passthrough {
            if truncates {
                let truncate = OFlags::WRONLY | OFlags::TRUNC | OFlags::CLOEXEC;
                self.trees.changed_by(caller, &fd, || {
                    Ok(rustix::fs::open(proc_path(&fd), truncate, Mode::empty()).map(drop)?)
                })?;
            }
            None
        } else {
            let own = own_flags(flags, self.trees.privileged());
            let open = || Ok(rustix::fs::open(proc_path(&fd), own, Mode::empty())?);
            let open =
                || if marker { self.table.opening(open) } else { self.table.admitted(open) }.map(File::from);
            Some(if truncates { self.trees.changed_by(caller, &fd, open)? } else { open()? })
        };
        Ok(self.opened(inode, flags, caller, file, place))
    }

    /// Opens the marker of a sealed dataset; where nobody wrote one, an empty one is made.
    pub(crate) fn open_marker(
        &self,
        sealed: &Sealed,
        caller: Caller,
        id: u64,
        flags: i32,
    ) -> Result<Opened, Errno> {
        let inode = self.table.get(id)?;
        if inode.backing().is_none() {
            self.write_marker(sealed, &inode)?;
        }
        let inner = RelPath::new(MARKER)?;
        let place = Place::Inside { dataset: sealed.name().to_vec(), inner };
        self.open_backed(&inode, &place, flags, caller, false)
    }

    /// Makes the empty file behind a marker that was set on another node.
    pub(crate) fn write_marker(&self, sealed: &Sealed, inode: &Inode) -> Result<(), Errno> {
        let top = self.view.names().dataset_path(sealed.name())?;
        let owner = sealed.top().map_or(Caller::default(), |e| Caller {
            uid: e.uid,
            gid: e.gid,
            ..Caller::default()
        });
        let dir = match self.trees.open_directory(&top) {
            Ok(dir) => dir,
            Err(Errno(libc::ENOENT)) => {
                let (above, name) = top.split_last().ok_or(Errno(libc::EIO))?;
                let above = self.trees.open_directory(&above)?;
                let mode = sealed.top().map_or(0o755, |e| e.mode);
                self.trees.make_directory_in(&above, name, owner, mode)?
            }
            Err(error) => return Err(error),
        };
        let made = match self.trees.as_owner(&dir, || self.new_file(owner, &dir, MARKER, 0o644)) {
            Ok((made, _)) => made,
            Err(Errno(libc::EEXIST)) => {
                self.trees.open(&top.join(MARKER)?, OFlags::PATH | OFlags::NOFOLLOW)?
            }
            Err(error) => return Err(error),
        };
        let key = key_of(&stat_of(&made)?);
        self.table.attach(inode, Backing { fd: Arc::new(made), key });
        Ok(())
    }

    fn opened(
        &self,
        inode: &Arc<Inode>,
        flags: i32,
        caller: Caller,
        file: Option<File>,
        place: &Place,
    ) -> Opened {
        let marks = self.view.is_mark(place);
        let writes = flags & libc::O_ACCMODE != libc::O_RDONLY;
        let data = match &file {
            None => Data::Passthrough,
            Some(_) if place.is_marker() => Data::Direct,
            Some(file) => Data::Paged { kept: self.files.keeps_pages(inode.id, file) },
        };
        let paged = matches!(data, Data::Paged { .. });
        let process = if writes { self.processes.of(caller) } else { Arc::default() };
        let handle = Handle { file, paged, process, marks, ..Handle::nowhere(Arc::clone(inode), flags) };
        let path = || Some(self.table.path(inode.id)?.to_string());
        let (fh, handle) = self.files.open(handle, caller, path);
        let acts = marks || matches!(place, Place::Entry(_));
        Opened { fh, handle, data, acts }
    }
}

//! Files with several names in a dataset (hard links): sealed, each name is a file of its own, on
//! the node that made them as on all others. So a change of one is no change of another, and does
//! not conflict with what other nodes do.
//!
//! When the dataset is frozen, all names but the first get a copy in `dataset.<id>/links`: blocks
//! are shared where the file system can. From then on the copy is what is read for the seal. With
//! COMPLETE it takes its name's place in the tree; a failed seal removes it with the dataset's
//! directory, and the program's names are one file as they were. Where there is no room for a copy
//! its name stays what it is, and an event says so: that is no reason not to protect it.
//!
//! A file may have a name outside the dataset too, to which it was renamed. Then the first name
//! gets a copy as well, and without room the seal fails: what is sealed must not change with what
//! is not.
//!
//! Fault points: `seal.links`, `commit.links`.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{AtFlags, Stat, XattrFlags};
use rustix::io::Errno;

use crate::control::Reason;
use crate::dataset::{INVALID, MARKER};
use crate::faults;
use crate::ids::DatasetId;
use crate::path::RelPath;
use crate::store::beneath;
use crate::stores::PRIMARY;
use crate::transfer::Monitor;

use super::cache::{Cache, Instead, Staged, sync_directories};
use super::core::seals::Refusal;
use super::node::Node;
use crate::errno;

/// Bytes of a list of extended attributes, and of a value (`XATTR_LIST_MAX`, `XATTR_SIZE_MAX`).
const XATTR_BYTES_MAX: usize = 65_536;

/// A name of a frozen file that has several and becomes a file of its own.
pub(super) struct Link {
    path: RelPath,
    /// It has a name outside the dataset.
    leaves: bool,
}

/// Names of frozen files that have several, by inode.
#[derive(Default)]
pub(super) struct Linked(BTreeMap<u64, Names>);

#[derive(Default)]
struct Names {
    found: Vec<RelPath>,
    /// One of them is as the generation before has it, and that has further names for it.
    carried: bool,
    /// All that the file has.
    all: usize,
}

impl Linked {
    pub(super) fn add(&mut self, path: &RelPath, stat: &Stat, carried: bool) {
        if stat.st_nlink > 1 {
            let names = self.0.entry(stat.st_ino).or_default();
            names.found.push(path.clone());
            names.carried |= carried;
            names.all = usize::try_from(stat.st_nlink).unwrap_or(usize::MAX);
        }
    }

    /// Files that have names which were not added.
    fn have_others(&self) -> BTreeSet<u64> {
        let others = |names: &Names| !names.carried && names.all > names.found.len();
        self.0.iter().filter(|(_, names)| others(names)).map(|(inode, _)| *inode).collect()
    }

    /// All names but the first of each file; of those that `leave` that too.
    fn parted(self, leave: &BTreeSet<u64>) -> Vec<Link> {
        let links = self.0.into_iter().flat_map(|(inode, names)| {
            let leaves = leave.contains(&inode);
            let further = names.found.into_iter().skip(usize::from(!leaves));
            further.map(move |path| Link { path, leaves })
        });
        links.collect()
    }
}

impl Node {
    /// Which names of frozen dataset `name` are to be files of their own.
    pub(super) fn links_of(&self, name: &[u8], linked: Linked) -> Result<Vec<Link>, Reason> {
        let mut leave = linked.have_others();
        if !leave.is_empty() {
            let here = self.names_not_sealed(name, &leave)?;
            leave.retain(|inode| {
                let names = linked.0.get(inode).map_or(0, |names| names.all - names.found.len());
                names > here.get(inode).copied().unwrap_or(0)
            });
        }
        Ok(linked.parted(&leave))
    }

    /// For each inode, how many of its names are neither sealed nor a program's: those that former
    /// generations have aside, and those that are no data.
    fn names_not_sealed(&self, name: &[u8], inodes: &BTreeSet<u64>) -> io::Result<BTreeMap<u64, usize>> {
        let mut names: BTreeMap<u64, usize> = BTreeMap::new();
        let mut add = |inode: u64, count| {
            if inodes.contains(&inode) {
                *names.entry(inode).or_default() += count;
            }
        };
        let unseen = |errno: errno::Errno| io::Error::from_raw_os_error(errno.0);
        let top = self.tree.backing_directory(name).map_err(unseen)?;
        for other in [MARKER, INVALID] {
            match rustix::fs::statat(&top, other, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => add(stat.st_ino, 1),
                Err(Errno::NOENT) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        let former: Vec<_> = {
            let state = self.state.lock();
            let has_name = state.table.datasets.values().filter(|dataset| dataset.name == name);
            has_name.filter_map(|dataset| Some((dataset.id, dataset.life.catalog().cloned()?))).collect()
        };
        for (id, catalog) in former.into_iter().filter(|(id, _)| self.cache.is_aside(*id)) {
            let aside = self.cache.inodes_aside(id, &catalog.catalog().entries)?;
            for (inode, paths) in aside {
                add(inode, paths.len());
            }
        }
        Ok(names)
    }

    /// Copies `links`, names of frozen files of `bytes` in all. When this returns, the copies are
    /// on storage.
    pub(super) fn copy_links(
        &self,
        id: DatasetId,
        name: &[u8],
        (links, bytes): (Vec<Link>, u64),
        cancelled: &Monitor,
    ) -> Result<(), Reason> {
        self.cache.discard_copies(id, Instead::Link)?;
        if links.is_empty() {
            return Ok(());
        }
        let top = self.tree.backing_directory(name)?;
        let (mut copied, mut left) = (BTreeSet::new(), Vec::new());
        for Link { path: link, leaves } in links {
            let staged = Staged::Instead(Instead::Link, link.clone());
            let made = self.has_room_for_link(name, top.as_fd(), (&link, leaves), bytes).and_then(|()| {
                self.copy_frozen(id, &top, (&link, &staged), cancelled)?;
                let (from, to) = (beneath::open_file(top.as_fd(), &link), self.cache.staged(id, &staged));
                copy_attributes(from?, to?).map_err(Reason::from)
            });
            match made {
                Ok(()) => drop(copied.insert(link)),
                Err(_) if cancelled.is_cancelled() => return Err(Refusal::GivenUp.into()),
                Err(reason) if leaves => {
                    let what = format_args!("{link} has a name outside the dataset, and cannot be copied");
                    return Err(reason.on(what));
                }
                Err(reason) => {
                    self.cache.discard(id, &staged)?;
                    left.push((link, reason));
                }
            }
        }
        if let Some((link, reason)) = left.first() {
            let others = match left.len() - 1 {
                0 => String::new(),
                others => format!(", and so do {others} more names"),
            };
            let told = format!("{link} stays one file with its other names here{others}: {reason}");
            self.events.warning(Some(id), &told);
        }
        if !copied.is_empty() {
            self.cache.sync_copies(id, Instead::Link, &copied)?;
        }
        faults::hit("seal.links").map_err(Reason::from)
    }

    /// The seal needs room too: for what protects `bytes`, at most as many. A name that leaves goes
    /// first.
    fn has_room_for_link(
        &self,
        name: &[u8],
        top: BorrowedFd<'_>,
        (link, leaves): (&RelPath, bool),
        bytes: u64,
    ) -> Result<(), Reason> {
        if leaves {
            return Ok(());
        }
        let size = rustix::fs::fstat(beneath::open_file(top, link)?)?.st_size;
        let store = self.cache.tree_store(name)?.unwrap_or(PRIMARY);
        let room = self.room_in(store)?;
        if size.cast_unsigned().saturating_add(bytes) > room.f_bavail.saturating_mul(room.f_frsize) {
            return Err("there is no room for a copy beside what protects the dataset".into());
        }
        Ok(())
    }

    /// The copies that were sealed get their places in the tree. Done again after a crash at any
    /// point.
    pub(super) fn place_links(&self, id: DatasetId) {
        let Ok(dataset) = self.dataset(id) else { return };
        if !dataset.life.is_in_tree() || !dataset.life.is_complete() {
            return;
        }
        if self.cache.copies(id, Instead::Link).is_ok_and(|links| links.is_empty()) {
            return;
        }
        // Other nodes' changes may have taken the place of some since they were copied.
        let files = dataset.parts.values().flat_map(|part| &part.files);
        let own: HashSet<&RelPath> = files.map(|(entry, _)| &entry.path).collect();
        let placed = self.cache.place_links(id, &dataset.name, &own).and_then(|placed| {
            if !placed.is_empty() {
                self.tree.parted(&dataset.name, &placed);
            }
            faults::hit("commit.links")
        });
        // What has its place is right, and the rest is as it was before the seal.
        if let Err(error) = placed {
            let told = format!("hard links of it cannot be made files of their own here: {error}");
            self.events.warning(Some(id), &told);
        }
    }
}

impl Cache {
    fn place_links(&self, id: DatasetId, name: &[u8], own: &HashSet<&RelPath>) -> io::Result<Vec<RelPath>> {
        let links = self.copies(id, Instead::Link)?.into_iter();
        let links: Vec<RelPath> = links.filter(|link| own.contains(link)).collect();
        let tree = self.tree(id, name)?;
        for link in &links {
            self.put_in_place(id, &Staged::Instead(Instead::Link, link.clone()), tree.as_fd(), link)?;
        }
        sync_directories(tree.as_fd(), links.iter())?;
        self.discard_copies(id, Instead::Link)?;
        Ok(links)
    }
}

/// Gives a file another's extended attributes, where its file system has any.
fn copy_attributes(from: impl AsFd, to: impl AsFd) -> io::Result<()> {
    let mut names = vec![0_u8; XATTR_BYTES_MAX];
    let length = match rustix::fs::flistxattr(&from, &mut names[..]) {
        Err(Errno::OPNOTSUPP) => return Ok(()),
        other => other?,
    };
    let mut value = vec![0_u8; XATTR_BYTES_MAX];
    for name in names[..length].split(|&byte| byte == 0).filter(|name| !name.is_empty()) {
        let length = rustix::fs::fgetxattr(&from, name, &mut value[..])?;
        match rustix::fs::fsetxattr(&to, name, &value[..length], XattrFlags::empty()) {
            // Some are the administrator's.
            Err(Errno::PERM) if !rustix::process::geteuid().is_root() => {}
            other => other?,
        }
    }
    Ok(())
}

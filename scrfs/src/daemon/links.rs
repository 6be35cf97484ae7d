//! Files with several names in a dataset (hard links): sealed, each name is a file of its own, on the node that made them
//! as on all others. So a change of one is no change of another, and does not conflict with what other nodes do.
//!
//! When the dataset is frozen, all names but the first get a copy in `dataset.<id>/links`: blocks are shared where the
//! file system can. From then on the copy is what is read for the seal. With COMPLETE it takes its name's place in the
//! tree; a failed seal removes it with the dataset's directory, and the program's names are one file as they were. Where
//! there is no room for a copy its name stays what it is, and an event says so: that is no reason not to protect it.
//!
//! A file may have a name outside the dataset too, to which it was renamed. Then the first name gets a copy as well, and
//! without room the seal fails: what is sealed must not change with what is not.
//!
//! Fault points: `seal.links`, `commit.links`.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::AsFd;

use rustix::fs::{Stat, XattrFlags};
use rustix::io::Errno;

use crate::faults;
use crate::ids::DatasetId;
use crate::path::RelPath;
use crate::store::beneath;
use crate::transfer::Monitor;

use super::cache::{Cache, Instead, Staged, sync_directories};
use super::generation::text;
use super::node::Node;
use super::state::Home;

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

    /// All but the first of each file; also that, if the file has names that were not added.
    pub(super) fn parted(self) -> Vec<Link> {
        let links = self.0.into_values().flat_map(|names| {
            let leaves = !names.carried && names.all > names.found.len();
            let further = names.found.into_iter().skip(usize::from(!leaves));
            further.map(move |path| Link { path, leaves })
        });
        links.collect()
    }
}

impl Node {
    /// Copies `links`, names of frozen files. When this returns, the copies are on storage.
    pub(super) fn copy_links(
        &self,
        id: DatasetId,
        name: &[u8],
        links: Vec<Link>,
        cancelled: &Monitor,
    ) -> Result<(), String> {
        self.cache.discard_copies(id, Instead::Link).map_err(text)?;
        if links.is_empty() {
            return Ok(());
        }
        let top = self.tree.backing_directory(name).map_err(text)?;
        let mut copied = BTreeSet::new();
        for Link { path: link, leaves } in links {
            let staged = Staged::Instead(Instead::Link, link.clone());
            let made = self.copy_frozen(id, &top, (&link, &staged), cancelled).and_then(|_| {
                let (from, to) = (beneath::open_file(top.as_fd(), &link), self.cache.staged(id, &staged));
                copy_attributes(from.map_err(text)?, to.map_err(text)?).map_err(text)
            });
            match made {
                Ok(()) => drop(copied.insert(link)),
                Err(_) if cancelled.is_cancelled() => return Err(super::seal::GIVEN_UP.into()),
                Err(reason) if leaves => {
                    return Err(format!(
                        "{link} has a name outside the dataset, and cannot be copied: {reason}"
                    ));
                }
                Err(reason) => {
                    self.cache.discard(id, &staged).map_err(text)?;
                    let told = format!("{link} stays one file with its other names here: {reason}");
                    self.events.warning(Some(id), &told);
                }
            }
        }
        if !copied.is_empty() {
            self.cache.sync_copies(id, Instead::Link, &copied).map_err(text)?;
        }
        faults::hit("seal.links").map_err(text)
    }

    /// The copies that were sealed get their places in the tree. Done again after a crash at any point.
    pub(super) fn place_links(&self, id: DatasetId) {
        let Ok(dataset) = self.dataset(id) else { return };
        if dataset.home != Home::Tree || dataset.catalog.is_none() {
            return;
        }
        let placed = self.cache.place_links(id, &dataset.name).and_then(|placed| {
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
    fn place_links(&self, id: DatasetId, name: &[u8]) -> io::Result<Vec<RelPath>> {
        let links: Vec<RelPath> = self.copies(id, Instead::Link)?.into_iter().collect();
        if links.is_empty() {
            return Ok(links);
        }
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

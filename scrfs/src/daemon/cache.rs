//! The node's cache directory: where a dataset's bytes are, and how they move between their places.
//!
//! `tree/<name>/` while it is in the mount; `dataset.<id>/` has its redundancy files, `aside/` its files while it is not
//! presented, `staged/` what is arriving and not yet checked.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags};

use crate::ids::{DatasetId, Member};
use crate::path::RelPath;
use crate::store::beneath;

use super::boundary::MountedTree;
use super::state::{Dataset, Home};

/// See the module.
pub(super) struct Cache {
    root: OwnedFd,
}

/// What is arriving.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Staged {
    /// The files of a member that is rebuilt here.
    File(Member, RelPath),
    /// A member's redundancy file.
    Redundancy(Member, RelPath),
    /// A sealed file that is copied here to be read.
    Copy(RelPath),
}

impl Staged {
    /// Below the dataset's own directory.
    fn path(&self) -> io::Result<RelPath> {
        let (directory, inner) = match self {
            Self::File(member, path) => (format!("staged/member.{member}"), path),
            Self::Redundancy(member, name) => (format!("staged/redundancy.{member}"), name),
            Self::Copy(path) => ("staged/copy".to_owned(), path),
        };
        RelPath::new(directory).and_then(|directory| directory.concat(inner)).map_err(invalid)
    }
}

fn invalid(error: crate::path::PathError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, error)
}

impl Cache {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self { root: rustix::fs::open(path, flags, Mode::empty())? })
    }

    fn own_path(id: DatasetId) -> io::Result<RelPath> {
        RelPath::new(format!("dataset.{id}")).map_err(invalid)
    }

    /// `dataset.<id>`, made if it is not there.
    pub(super) fn own(&self, id: DatasetId) -> io::Result<OwnedFd> {
        beneath::make_directories(self.root.as_fd(), &Self::own_path(id)?)
    }

    /// The directory that a dataset's files are in.
    pub(super) fn home(&self, dataset: &Dataset, tree: &dyn MountedTree) -> io::Result<OwnedFd> {
        match dataset.home {
            Home::Tree => {
                tree.backing_directory(&dataset.name).map_err(|e| io::Error::from_raw_os_error(e.0))
            }
            Home::Aside => self.aside(dataset.id),
        }
    }

    fn aside(&self, id: DatasetId) -> io::Result<OwnedFd> {
        let own = self.own(id)?;
        beneath::make_directories(own.as_fd(), &RelPath::new("aside").map_err(invalid)?)
    }

    /// Are its files aside?
    pub(super) fn is_aside(&self, id: DatasetId) -> bool {
        let aside = Self::own_path(id).and_then(|own| own.join(b"aside").map_err(invalid));
        aside.and_then(|aside| beneath::open_directory(self.root.as_fd(), &aside)).is_ok()
    }

    /// A new file for what arrives.
    pub(super) fn stage(&self, id: DatasetId, what: &Staged, flags: OFlags) -> io::Result<OwnedFd> {
        beneath::create_file(self.own(id)?.as_fd(), &what.path()?, flags)
    }

    /// What has arrived.
    pub(super) fn staged(&self, id: DatasetId, what: &Staged) -> io::Result<OwnedFd> {
        beneath::open_file(self.own(id)?.as_fd(), &what.path()?)
    }

    /// What has arrived and was checked gets its place below `to`.
    pub(super) fn put_in_place(
        &self,
        id: DatasetId,
        what: &Staged,
        to: BorrowedFd<'_>,
        path: &RelPath,
    ) -> io::Result<()> {
        beneath::put_in_place(self.own(id)?.as_fd(), &what.path()?, to, path)
    }

    /// Forgets what was arriving for one member (`None`: for all, and copies).
    pub(super) fn discard_staged(&self, id: DatasetId, member: Option<Member>) -> io::Result<()> {
        let own = Self::own_path(id)?;
        let below: &[String] = &match member {
            Some(member) => vec![format!("staged/member.{member}"), format!("staged/redundancy.{member}")],
            None => vec!["staged".to_owned()],
        };
        for path in below {
            let path = RelPath::new(path.as_bytes()).and_then(|path| own.concat(&path)).map_err(invalid)?;
            beneath::remove_tree(self.root.as_fd(), &path)?;
        }
        Ok(())
    }

    /// Ids of which there is a directory of their own.
    pub(super) fn own_directories(&self) -> io::Result<Vec<DatasetId>> {
        let names = beneath::names(self.root.as_fd())?;
        let id = |name: &[u8]| std::str::from_utf8(name).ok()?.strip_prefix("dataset.")?.parse().ok();
        Ok(names.iter().filter_map(|name| id(name)).map(DatasetId).collect())
    }

    /// Removes a dataset's own directory with all in it.
    pub(super) fn remove_own(&self, id: DatasetId) -> io::Result<()> {
        beneath::remove_tree(self.root.as_fd(), &Self::own_path(id)?)
    }

    fn in_tree(name: &[u8]) -> io::Result<RelPath> {
        RelPath::new("tree").and_then(|tree| tree.join(name)).map_err(invalid)
    }

    /// Moves a dataset's files out of the mounted tree; none there is no error.
    pub(super) fn put_aside(&self, id: DatasetId, name: &[u8]) -> io::Result<()> {
        let own = self.own(id)?;
        let aside = RelPath::new("aside").map_err(invalid)?;
        match beneath::open_directory(self.root.as_fd(), &Self::in_tree(name)?) {
            Ok(_) => {}
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(e) => return Err(e),
        }
        beneath::remove_tree(own.as_fd(), &aside)?;
        beneath::put_in_place(self.root.as_fd(), &Self::in_tree(name)?, own.as_fd(), &aside)
    }

    /// Moves a dataset's files into the mounted tree; an empty directory of that name there is replaced.
    pub(super) fn put_back(&self, id: DatasetId, name: &[u8]) -> io::Result<()> {
        let own = self.own(id)?;
        let aside = RelPath::new("aside").map_err(invalid)?;
        match beneath::open_directory(own.as_fd(), &aside) {
            Ok(_) => beneath::put_in_place(own.as_fd(), &aside, self.root.as_fd(), &Self::in_tree(name)?),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                beneath::make_directories(self.root.as_fd(), &Self::in_tree(name)?).map(drop)
            }
            Err(e) => Err(e),
        }
    }
}

/// Puts the directories on storage that lead to `paths` below `home`, `home` itself too.
pub(super) fn sync_directories<'a>(
    home: BorrowedFd<'_>,
    paths: impl Iterator<Item = &'a RelPath>,
) -> io::Result<()> {
    let mut directories = std::collections::BTreeSet::from([RelPath::root()]);
    for path in paths {
        let mut at = path.split_last().map(|(parent, _)| parent);
        while let Some(directory) = at {
            at = directory.split_last().map(|(parent, _)| parent);
            if !directories.insert(directory) {
                break;
            }
        }
    }
    for directory in &directories {
        rustix::fs::fsync(beneath::open_directory(home, directory)?)?;
    }
    Ok(())
}

//! Going to a directory step by step, and looking before each step whose file system is next: that
//! of another user is not entered, nor asked, as it may never answer.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::Problem;
use crate::mounted;

/// Symbolic links on the way.
pub(super) const LINKS_MAX: usize = 40;

/// The real path of `path`, and what it is. `visit` is shown each directory and symbolic link on
/// the way, the root and the last name too.
pub(super) fn to(
    path: &Path,
    visit: impl Fn(&Path, &Metadata) -> Result<(), Problem>,
) -> Result<(PathBuf, Metadata), Problem> {
    let path = std::path::absolute(path).map_err(Problem::io(path))?;
    let mut left: VecDeque<OsString> = names(&path).collect();
    let mut way = Way::from_root()?;
    let mut links = 0;
    visit(&way.path, &way.meta()?)?;
    while let Some(name) = left.pop_front() {
        if name == ".." {
            way.up();
            continue;
        }
        let next = way.path.join(&name);
        let found = way.look(&name, &next)?;
        let meta = found.metadata().map_err(Problem::io(&next))?;
        visit(&next, &meta)?;
        if !meta.is_symlink() {
            way.enter(found, next);
            continue;
        }
        links += 1;
        if links > LINKS_MAX {
            return Err(Problem::io(&next)(io::Error::from_raw_os_error(libc::ELOOP)));
        }
        let target = target(&found).map_err(Problem::io(&next))?;
        if target.is_absolute() {
            way.back_to_root();
        }
        for name in names(&target).collect::<Vec<_>>().into_iter().rev() {
            left.push_front(name);
        }
    }
    let meta = way.meta()?;
    Ok((way.path, meta))
}

/// What the directories below `base` on the way to `path` are, and `path` itself; no link is
/// followed, and nothing entered that is mounted there (EXDEV).
pub(super) fn below(base: &Path, path: &Path) -> io::Result<Vec<Metadata>> {
    let rest = path.strip_prefix(base).map_err(io::Error::other)?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut at = File::from(rustix::fs::open(base, flags, Mode::empty())?);
    let mut found = Vec::new();
    for name in names(rest) {
        let resolve = ResolveFlags::NO_XDEV | ResolveFlags::BENEATH;
        at = open(&at, &name, OFlags::empty(), resolve)?;
        found.push(at.metadata()?);
    }
    Ok(found)
}

/// The directories that were entered from the root on; never empty.
struct Way {
    opened: Vec<File>,
    root: File,
    path: PathBuf,
}

impl Way {
    fn from_root() -> Result<Self, Problem> {
        let path = PathBuf::from("/");
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(&path, flags, Mode::empty());
        let root = root.map_err(|errno| Problem::io(&path)(errno.into()))?;
        Ok(Self { opened: Vec::new(), root: root.into(), path })
    }

    fn last(&self) -> &File {
        self.opened.last().unwrap_or(&self.root)
    }

    fn meta(&self) -> Result<Metadata, Problem> {
        self.last().metadata().map_err(Problem::io(&self.path))
    }

    fn up(&mut self) {
        self.path.pop();
        self.opened.pop();
    }

    fn enter(&mut self, found: File, path: PathBuf) {
        self.opened.push(found);
        self.path = path;
    }

    fn back_to_root(&mut self) {
        self.opened.clear();
        self.path = PathBuf::from("/");
    }

    /// Opens `name`, which is `path`, without looking into it. The first try makes an automounter
    /// mount what it will.
    fn look(&self, name: &OsStr, path: &Path) -> Result<File, Problem> {
        let at = self.last();
        let opened = match open(at, name, OFlags::DIRECTORY, ResolveFlags::NO_XDEV) {
            Err(Errno::NOTDIR) => open(at, name, OFlags::empty(), ResolveFlags::NO_XDEV),
            other => other,
        };
        let opened = match opened {
            Err(Errno::XDEV) => {
                mounted_by_friends(path)?;
                open(at, name, OFlags::empty(), ResolveFlags::empty())
            }
            other => other,
        };
        opened.map_err(|errno| Problem::io(path)(errno.into()))
    }
}

/// Whether something is mounted there; another user's is refused. Who could mount there could until
/// now: where root or this user has, nobody else can.
pub(super) fn mounted_by_friends(path: &Path) -> Result<bool, Problem> {
    match mounted::mounted_at(path).map_err(Problem::io(path))? {
        Some(mount) if !mount.is_trusted() => {
            Err(Problem::Mounted { path: path.to_owned(), owner: mount.owner.unwrap_or(u32::MAX) })
        }
        mounted => Ok(mounted.is_some()),
    }
}

fn open(at: &File, name: &OsStr, flags: OFlags, resolve: ResolveFlags) -> Result<File, Errno> {
    let flags = flags | OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = resolve | ResolveFlags::NO_MAGICLINKS;
    Ok(rustix::fs::openat2(at, name, flags, Mode::empty(), resolve)?.into())
}

fn target(link: &File) -> io::Result<PathBuf> {
    let target = rustix::fs::readlinkat(link, "", Vec::new())?;
    Ok(OsString::from_vec(target.into_bytes()).into())
}

fn names(path: &Path) -> impl Iterator<Item = OsString> {
    path.components().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        _ => None,
    })
}

//! The mount point: what it must be, and making it where it is missing.

use std::fs::{self, DirBuilder, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::table::{self, TABLE};
use super::{MountError, failed};
use crate::store::private::{self, Problem};

/// In the control directory: which directories were made for the mount, the deepest first, a zero
/// byte after each.
const MADE: &str = "mount_point.made";

/// Absolute, without symlinks; the last name may be a mount that nobody serves, or one that lets
/// nobody but its user in, so it is not looked into.
pub(super) fn without_symlinks(path: &Path) -> io::Result<PathBuf> {
    if let Some(point) = mount_at(path)? {
        return Ok(point);
    }
    match path.canonicalize() {
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOTCONN | libc::EACCES)) => {
            beneath_its_parent(path).ok_or(error)
        }
        found => found,
    }
}

/// The real path of the mount that `path` names, if that is one. What is mounted is not touched:
/// its daemon may hang.
fn mount_at(path: &Path) -> io::Result<Option<PathBuf>> {
    let Some(point) = beneath_its_parent(path) else { return Ok(None) };
    Ok(table::mounted_at(&point)?.map(|mount| mount.mount_point))
}

/// The path with the links resolved that are above its last name.
fn beneath_its_parent(path: &Path) -> Option<PathBuf> {
    let name = path.file_name()?;
    Some(above(path).canonicalize().ok()?.join(name))
}

/// The directory in which its last name is.
fn above(path: &Path) -> &Path {
    match path.parent() {
        Some(above) if !above.as_os_str().is_empty() => above,
        _ => Path::new("."),
    }
}

/// Looking at it asks no file system of another user.
pub(super) fn is_passable(path: &Path) -> Result<(), MountError> {
    private::passable(path).map_err(|source| MountError::Strangers { path: path.to_owned(), source })
}

/// The same of what is on the way to it. What is mounted there may be any user's.
pub(super) fn is_reached(path: &Path) -> Result<(), MountError> {
    is_passable(above(path))?;
    // Else it may be a link.
    if mount_at(path).is_ok_and(|mount| mount.is_some()) { Ok(()) } else { is_passable(path) }
}

/// Where it really is.
pub(super) fn find(path: &Path) -> Result<PathBuf, MountError> {
    let found = without_symlinks(path)
        .map_err(|error| MountError::MountPoint { path: path.to_owned(), reason: error.to_string() })?;
    trusted(path, found)
}

/// `found` is where `path` leads. Root, who can mount and unmount anywhere, follows no link of
/// another user.
pub(super) fn trusted(path: &Path, found: PathBuf) -> Result<PathBuf, MountError> {
    if !rustix::process::geteuid().is_root() {
        return Ok(found);
    }
    let real =
        |path| private::real(path).map_err(|source| MountError::Strangers { path: path.to_owned(), source });
    if let Some(name) = path.file_name() {
        let point = real(above(path))?.join(name);
        // What is mounted is not touched: its daemon may hang.
        if table::mounted_at(&point).map_err(failed("cannot read", TABLE))?.is_some() {
            return Ok(point);
        }
    }
    real(path)
}

/// Nothing of ours is mounted there, and a mount would hide nothing.
pub(super) fn check(point: &Path) -> Result<(), MountError> {
    let mounted = table::mounted_at(point).map_err(failed("cannot read", TABLE))?;
    if let Some(mount) = mounted.filter(|mount| mount.fs_type == table::FS_TYPE) {
        let source_name = mount.source.to_string_lossy().into_owned();
        return Err(MountError::Mounted { path: point.to_owned(), source_name });
    }
    let no_directory = match point.metadata() {
        Ok(found) if found.is_dir() => None,
        Ok(_) => Some("not a directory".to_owned()),
        // One that another user's mount hides from this one, for example.
        Err(error) => Some(error.to_string()),
    };
    if let Some(reason) = no_directory {
        return Err(MountError::MountPoint { path: point.to_owned(), reason });
    }
    let mut names = fs::read_dir(point).map_err(failed("cannot list", point))?;
    if names.next().is_some() {
        let reason = "not empty: its files would be out of sight".into();
        return Err(MountError::MountPoint { path: point.to_owned(), reason });
    }
    Ok(())
}

/// Makes what is missing of `path`, if root asks: below directories that only root can change. What
/// was made, the deepest first.
pub(super) fn make(path: &Path) -> Result<Vec<PathBuf>, MountError> {
    let missing = |path: &Path| path.symlink_metadata().is_err_and(|e| e.kind() == ErrorKind::NotFound);
    let is_mounted = || mount_at(path).is_ok_and(|mount| mount.is_some());
    if !rustix::process::geteuid().is_root() || is_mounted() || !missing(path) {
        return Ok(Vec::new());
    }
    let path = std::path::absolute(path).map_err(failed("cannot find", path))?;
    let absent: Vec<&Path> = path.ancestors().take_while(|path| missing(path)).collect();
    let not_made = |source: Problem| MountError::NotMade { path: path.clone(), source };
    let above = absent.last().and_then(|last| last.parent()).unwrap_or(Path::new("/"));
    private::real(above).map_err(|source| MountError::Strangers { path: path.clone(), source })?;
    private::safe(above).map_err(not_made)?;
    let mut made = Vec::new();
    for directory in absent.iter().rev() {
        match DirBuilder::new().mode(0o755).create(directory) {
            Ok(()) => {}
            // Another job's mount made it at this moment.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => continue,
            Err(error) => {
                remove(made);
                return Err(failed("cannot make", *directory)(error));
            }
        }
        let open = fs::set_permissions(directory, Permissions::from_mode(0o755));
        open.map_err(failed("cannot chmod", *directory))?;
        made.insert(0, directory.to_path_buf());
    }
    Ok(made)
}

/// For [`remove_made`], also of a mount that is made again.
pub(super) fn remember_made(control: &Path, made: &[PathBuf]) -> Result<(), MountError> {
    if made.is_empty() {
        return Ok(());
    }
    let text: Vec<u8> = made.iter().flat_map(|path| [path.as_os_str().as_bytes(), b"\0"].concat()).collect();
    let file = control.join(MADE);
    fs::write(&file, text).map_err(failed("cannot write", &file))
}

/// Removes the directories that were made for the mount, as far as they are empty.
pub(super) fn remove_made(control: &Path) {
    let file = control.join(MADE);
    let Ok(text) = fs::read(&file) else { return };
    remove(text.split(|&b| b == 0).map(|path| PathBuf::from(std::ffi::OsString::from_vec(path.to_vec()))));
    let _ = fs::remove_file(file);
}

/// The same before anything remembers them.
pub(super) fn remove(made: impl IntoIterator<Item = PathBuf>) {
    for path in made {
        // Another job's mount point may be in it by now.
        let _ = fs::remove_dir(path);
    }
}

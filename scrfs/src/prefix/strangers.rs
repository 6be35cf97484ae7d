//! What others than root and the job's user have made of a prefix. A project's directory may be a
//! colleague's: it can be used, and somebody is told. Where everybody may make names, no stranger's
//! counts.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::plain::{self, Links, STATE};

pub use crate::plain::is_of_strangers;
pub(crate) use crate::plain::{is_planted, is_theirs, refuse_planted};

/// What a stranger, neither root nor `user`, made first: the prefix, a link to it, or the directory
/// of its state, which is no link of anybody's; and whether everybody may make names in these. Such
/// users can read what is kept there, or put other things in its place.
pub fn made(prefix: &Path, user: u32) -> Vec<String> {
    let state = prefix.join(STATE);
    let belongs = |path: &Path, meta: fs::Metadata| {
        let is_strange = ![0, user].contains(&meta.uid());
        is_strange.then(|| format!("{} belongs to user {}", path.display(), meta.uid()))
    };
    let named = fs::symlink_metadata(prefix).ok();
    let link = named.filter(fs::Metadata::is_symlink);
    let link = link.and_then(|meta| belongs(prefix, meta)).map(|text| text + ", the link");
    let directory = fs::metadata(prefix).ok();
    let open = directory.as_ref().and_then(|meta| is_open(prefix, meta));
    let directory = directory.and_then(|meta| belongs(prefix, meta));
    let kept = match plain::look(&state) {
        Ok(meta) if meta.is_symlink() => Some(format!("{} is a symbolic link", state.display())),
        Ok(meta) => is_open(&state, &meta).or_else(|| belongs(&state, meta)),
        Err(error) if error.kind() == ErrorKind::CrossesDevices => {
            Some(format!("{}: {error}", state.display()))
        }
        Err(_) => None,
    };
    link.into_iter().chain(directory).chain(open).chain(kept).collect()
}

fn is_open(path: &Path, meta: &fs::Metadata) -> Option<String> {
    (meta.mode() & 0o002 != 0).then(|| format!("everybody may make names in {}", path.display()))
}

/// What the file, link or directory at `path` is. The caller passes over what a stranger can have
/// put there, or names it ([`is_of_strangers`]).
///
/// # Errors
/// As [`plain::look`] and [`plain::refuse_planted`].
pub(crate) fn look(path: &Path) -> io::Result<fs::Metadata> {
    let found = plain::look(path)?;
    refuse_planted(&found, path)?;
    Ok(found)
}

/// Whether something is at `path` which no stranger can have put there.
///
/// # Errors
/// A stranger can have; those of the system calls.
pub(super) fn has(path: &Path) -> io::Result<bool> {
    match look(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        found => found.map(|_| true),
    }
}

/// Fails if a stranger can have put there what is at the prefix's `.scr`.
///
/// # Errors
/// That a stranger can have.
pub fn check_state(prefix: &Path) -> io::Result<()> {
    check(&prefix.join(STATE))
}

/// The same of what is at `path`.
///
/// # Errors
/// That a stranger can have put it there.
pub fn check(path: &Path) -> io::Result<()> {
    match look(path) {
        Err(error) if is_of_strangers(&error) => Err(plain::named(path, &error)),
        _ => Ok(()),
    }
}

/// Opens a file that a person names, for reading. A link of that person's, or of root's, is
/// followed; what is mounted at the name itself is not asked.
///
/// # Errors
/// Those of the system calls; something is mounted there (`CrossesDevices`); it is no regular file
/// (`InvalidData`).
pub fn open(path: &Path) -> io::Result<fs::File> {
    match plain::look(path) {
        Ok(link) if link.is_symlink() && !is_theirs(&link) => plain::open(path, Links::Follow),
        _ => plain::read_unmounted(path, Links::Follow),
    }
}

/// User and group of the prefix's `.scr`, if it is there and nobody has mounted anything there.
pub fn owner_of_state(prefix: &Path) -> Option<(u32, u32)> {
    plain::look(&prefix.join(STATE)).ok().map(|state| (state.uid(), state.gid()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_strangers_have_made_of_a_prefix_is_named() {
        use std::os::unix::fs::{chown, lchown, symlink};
        const ANN: u32 = 54_321;
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let found = |name: &str| -> Vec<String> {
            let shown = dir.path().display().to_string() + "/";
            made(&at(name), ANN).iter().map(|text| text.replace(&shown, "")).collect()
        };
        for (name, owner) in
            [("ann", ANN), ("ann/.scr", ANN), ("eve", ANN + 1), ("root", 0), ("root/.scr", 7)]
        {
            fs::create_dir(at(name)).unwrap();
            chown(at(name), Some(owner), None).unwrap();
        }
        for (link, to, owner) in [("mine", "ann", ANN), ("theirs", "ann", 7), ("eve/.scr", "../ann", ANN)] {
            symlink(to, at(link)).unwrap();
            lchown(at(link), Some(owner), None).unwrap();
        }
        assert_eq!((found("ann"), found("mine"), found("none")), Default::default());
        assert_eq!(found("theirs"), ["theirs belongs to user 7, the link"]);
        assert_eq!(found("eve"), ["eve belongs to user 54322", "eve/.scr is a symbolic link"]);
        assert_eq!(found("root"), ["root/.scr belongs to user 7"]);
    }
}

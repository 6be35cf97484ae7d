//! Directories of one's own in places that others can write to, such as /dev/shm
//! (`scrfs/docs/security.md`, Directories).
//!
//! `<base>/<name>` belongs to whoever makes it first. If that is somebody else, ours is
//! `<base>/<name>.<16 digits>`, which nobody can guess; it is found again because nobody else can
//! make a directory that is ours. What is made in it needs no such care: only its owner can make
//! names there.
//!
//! Owner and mode are believed of the base's own file system alone. A user may mount one at a
//! directory of his own, and that one says what he likes, or never answers: so what is mounted
//! below a base is nobody's, and is not asked. On the way to a base there are no mounts but root's
//! and this user's ([`crate::mounted`]).

mod walk;

use std::fs::{self, DirBuilder, File, Metadata, Permissions};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Variables that tell Open MPI 4 and 5 where its processes are to keep their small files. Its own
/// choice is a name in /tmp that every user can know and make first.
pub const OPEN_MPI_PLACES: [&str; 2] = ["OMPI_MCA_orte_tmpdir_base", "PRTE_MCA_prte_tmpdir_base"];

/// And of a part of these. Open MPI does not start when they are set beside the former.
pub const OPEN_MPI_PARTS: [&str; 4] = [
    "OMPI_MCA_orte_local_tmpdir_base",
    "OMPI_MCA_orte_remote_tmpdir_base",
    "PRTE_MCA_prte_local_tmpdir_base",
    "PRTE_MCA_prte_remote_tmpdir_base",
];

/// Variables that tell Open MPI 4 and 5 what mpirun is to start on other nodes, and what they start
/// by themselves.
pub const OPEN_MPI_AGENTS: [(&str, &str); 2] =
    [("OMPI_MCA_orte_launch_agent", "orted"), ("PRTE_MCA_prte_launch_agent", "prted")];

/// Digits after the name of a directory whose plain name is somebody else's.
const DIGITS: usize = 16;
/// Tries for a name that nobody has.
const TRIES: usize = 8;

/// Why a place cannot be relied upon.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    /// Somebody else's, who can put other things in its place.
    #[error("{path} belongs to user {owner}", path = path.display())]
    Owner {
        /// What.
        path: PathBuf,
        /// Whose.
        owner: u32,
    },
    /// A file system that somebody else has mounted: it may say what is not so, or nothing.
    #[error("{path} is a mount of user {owner}", path = path.display())]
    Mounted {
        /// Where.
        path: PathBuf,
        /// Whose.
        owner: u32,
    },
    /// What is in it can be renamed by others.
    #[error("others may rename and remove what is in {path}: it is writable to them and has no sticky bit", path = path.display())]
    Writable {
        /// What.
        path: PathBuf,
    },
    /// A system call failed.
    #[error("{path}: {source}", path = path.display())]
    Io {
        /// On what.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl Problem {
    fn io(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { path, source }
    }
}

fn me() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// A directory of this process's user, into which nobody else can write, in a directory that is
/// [`safe`], or is such a one itself; what is mounted there is not.
pub fn is_ours(path: &Path) -> bool {
    path.parent().is_some_and(|parent| is_ours_below(parent, path))
}

/// The same of `path` and of each directory between it and `base`, which is [`safe`].
pub fn is_ours_below(base: &Path, path: &Path) -> bool {
    whose_below(base, path) == Whose::Ours
}

/// Whose `path` below `base` is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whose {
    /// It is [`is_ours_below`].
    Ours,
    /// It, or a directory on the way, is another user's, or no directory, or something is mounted
    /// there.
    Others,
    /// There is none.
    Nobody,
    /// It cannot be seen.
    Unknown,
}

/// Whose `path` below `base` is; what is mounted below `base` is not asked.
pub fn whose_below(base: &Path, path: &Path) -> Whose {
    let ours = |meta: &Metadata| meta.is_dir() && meta.uid() == me() && meta.mode() & 0o022 == 0;
    match walk::below(base, path) {
        Ok(all) if !all.is_empty() && all.iter().all(ours) => Whose::Ours,
        Ok(_) => Whose::Others,
        Err(error) => match error.raw_os_error() {
            Some(libc::ENOENT) => Whose::Nobody,
            // Below a file or a link, or where something is mounted.
            Some(libc::ENOTDIR | libc::ELOOP | libc::EXDEV) => Whose::Others,
            _ => Whose::Unknown,
        },
    }
}

/// A directory of root's or of this process's user, where nothing is mounted.
pub fn is_roots_or_ours(path: &Path) -> bool {
    let trusted = |meta: &Metadata| meta.is_dir() && [0, me()].contains(&meta.uid());
    let last = path.parent().and_then(|parent| walk::below(parent, path).ok()?.pop());
    last.is_some_and(|meta| trusted(&meta))
}

/// A directory of user `owner`, to which no mount leads but root's, this process's user's and
/// theirs that the kernel serves.
pub fn is_of(path: &Path, owner: u32) -> bool {
    let last = walk::to(path, |_, _| Ok(()));
    last.is_ok_and(|(_, meta)| meta.is_dir() && meta.uid() == owner)
}

/// No file system of another user is at `path`, nor on the way to it: that might never answer. What
/// cannot be seen for another reason, whoever looks there will be told.
///
/// # Errors
/// [`Problem::Mounted`].
pub fn passable(path: &Path) -> Result<(), Problem> {
    let refused = |walked: Result<_, Problem>| match walked {
        Err(problem @ Problem::Mounted { .. }) => Err(problem),
        other => Ok(other.ok()),
    };
    let mut path = path.to_owned();
    for _ in 0..walk::LINKS_MAX {
        let above = match path.parent() {
            Some(above) if !above.as_os_str().is_empty() => above,
            _ => Path::new("."),
        };
        let Some((real, _)) = refused(walk::to(above, |_, _| Ok(())))? else { return Ok(()) };
        let Some(name) = path.file_name() else { break };
        // What is mounted there is told by the table, and not touched: a daemon of ours may hang.
        let point = real.join(name);
        if walk::mounted_by_friends(&point)? {
            return Ok(());
        }
        let Ok(target) = point.read_link() else { break };
        path = real.join(target);
    }
    refused(walk::to(&path, |_, _| Ok(()))).map(drop)
}

/// Nobody but root and this process's user can put something else in the place of the directory
/// `path`, or of anything that those two have in it. Its real path.
///
/// # Errors
/// Somebody can, or there is no such directory.
pub fn safe(path: &Path) -> Result<PathBuf, Problem> {
    let visit =
        |at: &Path, meta: &Metadata| if meta.is_symlink() { owned(at, meta) } else { check(at, meta) };
    walk::to(path, visit).map(|(real, _)| real)
}

/// Where the directory `path` really is. Of the links on the way each is root's or this process's
/// user's, in a directory that is [`safe`]: another user's would lead where that user likes.
///
/// # Errors
/// A link is another's, or could be exchanged for one; or there is no such directory.
pub fn real(path: &Path) -> Result<PathBuf, Problem> {
    let visit = |at: &Path, meta: &Metadata| {
        if !meta.is_symlink() {
            return Ok(());
        }
        owned(at, meta)?;
        at.parent().map_or(Ok(()), |above| safe(above).map(drop))
    };
    walk::to(path, visit).map(|(real, _)| real)
}

fn owned(path: &Path, meta: &Metadata) -> Result<(), Problem> {
    if meta.uid() == 0 || meta.uid() == me() {
        return Ok(());
    }
    Err(Problem::Owner { path: path.to_owned(), owner: meta.uid() })
}

fn check(path: &Path, meta: &Metadata) -> Result<(), Problem> {
    if !meta.is_dir() {
        return Err(Problem::io(path)(io::Error::from_raw_os_error(libc::ENOTDIR)));
    }
    owned(path, meta)?;
    // A user's own group is often that user's alone.
    let trusted = [0, rustix::process::getegid().as_raw()];
    let others = meta.mode() & 0o002 != 0 || (meta.mode() & 0o020 != 0 && !trusted.contains(&meta.gid()));
    if others && meta.mode() & 0o1000 == 0 {
        return Err(Problem::Writable { path: path.to_owned() });
    }
    Ok(())
}

/// This user's directory `name` in `base`, if there is one.
pub fn find(base: &Path, name: &str) -> Option<PathBuf> {
    safe(base).ok()?;
    let plain = base.join(name);
    if is_ours(&plain) {
        return Some(plain);
    }
    let others = fs::read_dir(base).ok()?.flatten().map(|entry| entry.path());
    let others = others
        .filter(|path| path.file_name().is_some_and(|found| is_name_of(found.as_encoded_bytes(), name)));
    // Of two that were made at once the first.
    let made = |path: &PathBuf| fs::symlink_metadata(path).and_then(|meta| meta.created()).ok();
    others.filter(|path| is_ours(path)).min_by_key(|path| (made(path), path.clone()))
}

/// `found` is a name that `find` accepts for `name`.
pub fn is_name_of(found: &[u8], name: &str) -> bool {
    found.strip_prefix(name.as_bytes()).is_some_and(|rest| {
        let digits = rest.strip_prefix(b".").unwrap_or(b"?");
        rest.is_empty() || (digits.len() == DIGITS && digits.iter().all(u8::is_ascii_hexdigit))
    })
}

/// The same, made if there is none: others may go through it (0711).
///
/// # Errors
/// `base` cannot be relied upon, or nothing can be made there.
pub fn find_or_make(base: &Path, name: &str) -> Result<PathBuf, Problem> {
    safe(base)?;
    if let Some(found) = find(base, name) {
        return Ok(found);
    }
    let mut path = base.join(name);
    for _ in 0..TRIES {
        match DirBuilder::new().mode(0o711).create(&path) {
            Ok(()) => {
                // Whatever the umask.
                fs::set_permissions(&path, Permissions::from_mode(0o711)).map_err(Problem::io(&path))?;
                // Another process may have been first.
                return Ok(find(base, name).unwrap_or(path));
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                if let Some(found) = find(base, name) {
                    return Ok(found);
                }
                tracing::warn!(path = %path.display(), "is somebody else's; another name is used");
                path = base.join(format!("{name}.{}", random().map_err(Problem::io(base))?));
            }
            Err(error) => return Err(Problem::io(&path)(error)),
        }
    }
    Err(Problem::io(&path)(io::ErrorKind::AlreadyExists.into()))
}

/// Makes a new one that only its owner can enter, under a name that nobody can know before:
/// `<base>/<name>.<16 digits>`.
///
/// # Errors
/// `base` cannot be relied upon, or nothing can be made there.
pub fn make_new(base: &Path, name: &str) -> Result<PathBuf, Problem> {
    safe(base)?;
    let path = base.join(format!("{name}.{}", random().map_err(Problem::io(base))?));
    DirBuilder::new().mode(0o700).create(&path).map_err(Problem::io(&path))?;
    Ok(path)
}

fn random() -> io::Result<String> {
    let mut bytes = [0; DIGITS / 2];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(format!("{:016x}", u64::from_ne_bytes(bytes)))
}

/// Makes the directory `path`, of which the parent is [`find_or_make`]'s.
///
/// # Errors
/// It cannot be made, or is there and is not this user's.
pub fn make_in(path: &Path, mode: u32) -> Result<(), Problem> {
    match DirBuilder::new().mode(mode).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(Problem::io(path)(error)),
        _ => {}
    }
    let meta = fs::symlink_metadata(path).map_err(Problem::io(path))?;
    if !meta.is_dir() || meta.uid() != me() {
        return Err(Problem::Owner { path: path.to_owned(), owner: meta.uid() });
    }
    fs::set_permissions(path, Permissions::from_mode(mode)).map_err(Problem::io(path))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{chown, symlink};

    use super::*;

    /// A shared directory as /dev/shm is; the rest needs root.
    fn shared() -> Option<tempfile::TempDir> {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), Permissions::from_mode(0o1777)).unwrap();
        rustix::process::geteuid().is_root().then_some(dir)
    }

    #[test]
    fn a_name_that_somebody_else_has_is_passed_over_and_ours_found_again() {
        let Some(dir) = shared() else { return };
        let base = dir.path();
        assert_eq!(find(base, "ann"), None);
        let first = find_or_make(base, "bob").unwrap();
        assert_eq!((first.clone(), find(base, "bob")), (base.join("bob"), Some(first)));
        let squats: [fn(&Path); 5] = [
            |path| {
                fs::create_dir(path).unwrap();
                chown(path, Some(54_321), None).unwrap();
            },
            |path| fs::write(path, "").unwrap(),
            |path| symlink("/etc", path).unwrap(),
            |path| symlink("nowhere", path).unwrap(),
            |path| {
                fs::create_dir(path).unwrap();
                fs::set_permissions(path, Permissions::from_mode(0o777)).unwrap();
            },
        ];
        for (at, squat) in squats.iter().enumerate() {
            let name = format!("ann{at}");
            squat(&base.join(&name));
            let ours = find_or_make(base, &name).unwrap();
            assert!(is_ours(&ours) && ours != base.join(&name), "{ours:?}");
            let _ = fs::remove_dir_all(base.join(&name)).or_else(|_| fs::remove_file(base.join(&name)));
            assert_eq!(find_or_make(base, &name).unwrap(), ours, "also when the other has gone");
        }
        assert!(!is_name_of(b"ann.b", "ann") && !is_name_of(b"anna", "ann") && is_name_of(b"ann", "ann"));
    }

    #[test]
    fn what_is_mounted_at_a_name_is_not_ours() {
        use nix::mount::{MntFlags, MsFlags, mount, umount2};
        use nix::sched::{CloneFlags, unshare};
        let Some(dir) = shared() else { return };
        let base = dir.path().to_owned();
        // The mount namespace is the thread's.
        let test = move || {
            unshare(CloneFlags::CLONE_NEWNS).unwrap();
            let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
            mount(None::<&str>, "/", None::<&str>, private, None::<&str>).unwrap();
            // In place of a user's FUSE that says it is root's.
            let plain = base.join("ann");
            fs::create_dir(&plain).unwrap();
            let all = MsFlags::empty();
            mount(Some("tmpfs"), &plain, Some("tmpfs"), all, Some("mode=0711")).unwrap();
            fs::create_dir(plain.join("scr.1")).unwrap();
            assert!(!is_ours(&plain) && !is_roots_or_ours(&plain));
            assert_eq!(find(&base, "ann"), None);
            for (path, whose) in [
                ("ann", Whose::Others),
                ("ann/scr.1", Whose::Others),
                ("ann/none", Whose::Others),
                ("none/scr.1", Whose::Nobody),
                ("", Whose::Others),
            ] {
                assert_eq!(whose_below(&base, &base.join(path)), whose, "{path}");
            }
            let ours = find_or_make(&base, "ann").unwrap();
            assert!(ours != plain && find(&base, "ann") == Some(ours.clone()));
            assert_eq!(fs::read_dir(&plain).unwrap().count(), 1, "nothing is put into it");
            fs::create_dir(ours.join("scr.1")).unwrap();
            assert_eq!(whose_below(&base, &ours.join("scr.1")), Whose::Ours);
            // A site may mount one at the base.
            let within = find_or_make(&plain, "bob").unwrap();
            assert!(within == plain.join("bob") && is_ours(&within));
            umount2(&plain, MntFlags::MNT_DETACH).unwrap();
        };
        std::thread::spawn(test).join().unwrap();
    }

    #[test]
    fn a_base_that_others_can_exchange_is_refused() {
        let Some(dir) = shared() else { return };
        let at = |name: &str| dir.path().join(name);
        for name in ["open", "theirs", "theirs/mine", "good"] {
            fs::create_dir(at(name)).unwrap();
        }
        fs::set_permissions(at("open"), Permissions::from_mode(0o777)).unwrap();
        chown(at("theirs"), Some(54_321), None).unwrap();
        symlink("good", at("link")).unwrap();
        symlink("good", at("trap")).unwrap();
        std::os::unix::fs::lchown(at("trap"), Some(54_321), None).unwrap();
        symlink("loop", at("loop")).unwrap();
        assert_eq!(safe(&at("link")).unwrap(), at("good").canonicalize().unwrap());
        let refused = |name: &str, told: &str| {
            let error = find_or_make(&at(name), "ann").unwrap_err().to_string();
            assert!(error.contains(told), "{name}: {error}");
        };
        refused("open", "no sticky bit");
        refused("theirs", "theirs belongs to user 54321");
        refused("theirs/mine", "theirs belongs to user 54321");
        refused("trap", "trap belongs to user 54321");
        refused("none", "No such file");
        refused("loop", "loop: ");
    }
}

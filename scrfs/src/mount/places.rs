//! The directories of one job on one node, and the lock that keeps a second daemon away.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};

use rustix::fs::FlockOperation;

use super::{MountError, Options, failed};

/// Control and cache directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Places {
    /// Small state, the socket, the log.
    pub control: PathBuf,
    /// Files and redundancy data.
    pub cache: PathBuf,
    /// The job's user.
    pub uid: u32,
    /// That user's group.
    pub gid: u32,
}

impl Places {
    /// Where `options` put them: `<base>/<user>/scr.<job id>`.
    pub fn of(options: &Options) -> Result<Self, MountError> {
        single_name("user", &options.user)?;
        single_name("job id", &options.job_id)?;
        let user = nix::unistd::User::from_name(&options.user).ok().flatten();
        let user = user.ok_or_else(|| MountError::NoUser(options.user.clone()))?;
        let control = below(&options.control_base, options);
        let cache = Self::cache_of(options, options.cache_base());
        Ok(Self { control, cache, uid: user.uid.as_raw(), gid: user.gid.as_raw() })
    }

    /// The cache directory in the store `base`. Where that is the control directory's base too, it is `cache` below the
    /// control directory: the job's user must reach the socket in the one and nothing in the other.
    pub(super) fn cache_of(options: &Options, base: &Path) -> PathBuf {
        let cache = below(base, options);
        if cache == below(&options.control_base, options) { cache.join("cache") } else { cache }
    }

    /// No directory of the job lies at or below the mount point: every use of it there would wait for the daemon itself.
    /// Nor is the mount point in one, where the mount would hide a part of it.
    pub(super) fn are_apart(options: &Options) -> Result<(), MountError> {
        let point = resolved(&options.mount_point);
        let control = ("SCR_CNTL_BASE (--control-base)", &options.control_base);
        let caches = options.cache_bases.iter().map(|base| ("SCR_CACHE_BASE (--cache-base)", base));
        for (parameter, base) in std::iter::once(control).chain(caches) {
            let directory = resolved(&below(base, options));
            let reason = if directory.starts_with(&point) {
                "files of the mount would be at or below the mount point"
            } else if point.starts_with(&directory) {
                "the mount point is among the job's own files there:"
            } else {
                continue;
            };
            let (base, mount_point) = (base.clone(), point.clone());
            return Err(MountError::NotApart { parameter, base, reason, mount_point });
        }
        Ok(())
    }

    /// The tree that the mount shows.
    pub fn tree(&self) -> PathBuf {
        self.cache.join("tree")
    }

    /// The log of supervisor and workers.
    pub fn log(&self) -> PathBuf {
        self.control.join("daemon.log")
    }

    /// Makes the control directory.
    pub fn make_control(&self) -> Result<(), MountError> {
        own_directory(&self.control, 0o711)
    }

    /// Makes the cache directory. The mount's root belongs to the job's user, all else to the daemon's.
    pub fn make_cache(&self) -> Result<(), MountError> {
        own_directory(&self.cache, 0o700)?;
        let tree = self.tree();
        if std::fs::symlink_metadata(&tree).is_ok_and(|meta| meta.is_dir()) {
            return Ok(());
        }
        let io = |doing| failed(doing, &tree);
        DirBuilder::new().mode(0o755).create(&tree).map_err(io("cannot make"))?;
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&tree, Some(self.uid), Some(self.gid))
                .map_err(io("cannot give away"))?;
        }
        std::fs::set_permissions(&tree, std::fs::Permissions::from_mode(0o755)).map_err(io("cannot chmod"))
    }
}

fn below(base: &Path, options: &Options) -> PathBuf {
    base.join(&options.user).join(format!("scr.{}", options.job_id))
}

/// Without symbolic links and `..`, as far as it exists.
fn resolved(path: &Path) -> PathBuf {
    path.components().fold(PathBuf::new(), |so_far, component| {
        if component == Component::ParentDir {
            return so_far.parent().unwrap_or(&so_far).to_owned();
        }
        let next = so_far.join(component);
        next.canonicalize().unwrap_or(next)
    })
}

fn single_name(what: &'static str, name: &str) -> Result<(), MountError> {
    let good = !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '\0', '\n']);
    if good { Ok(()) } else { Err(MountError::Name { what, name: name.to_owned() }) }
}

/// Makes `path` and what is missing above it. Bases such as /dev/shm are writable by everybody, so a directory that is
/// there already must be ours, and no symlink.
fn own_directory(path: &Path, mode: u32) -> Result<(), MountError> {
    let io = |doing| failed(doing, path);
    if let Some(above) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o711).create(above).map_err(io("cannot make"))?;
    }
    match DirBuilder::new().mode(mode).create(path) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(io("cannot make")(error)),
    }
    for ours in [path.parent().unwrap_or(path), path] {
        let meta = std::fs::symlink_metadata(ours).map_err(io("cannot look at"))?;
        let mine = meta.uid() == rustix::process::geteuid().as_raw() || meta.uid() == 0;
        if !meta.is_dir() || !mine {
            let error = io::Error::new(io::ErrorKind::PermissionDenied, "belongs to somebody else");
            return Err(failed("cannot use", ours)(error));
        }
    }
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).map_err(io("cannot chmod"))
}

/// Held as long as its process lives.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the lock `name` in the control directory and writes this process's id into it.
    pub fn take(control: &Path, name: &str) -> Result<Self, MountError> {
        let path = control.join(name);
        let io = |doing| failed(doing, &path);
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o644)
            .open(&path)
            .map_err(io("cannot open"))?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                return Err(MountError::Busy { directory: control.to_owned(), pid: read_pid(&mut file) });
            }
            Err(error) => return Err(io("cannot lock")(error.into())),
        }
        let write = |file: &mut File| {
            // Never empty: others read it.
            let line = format!("{}\n", std::process::id());
            file.write_all(line.as_bytes())?;
            file.set_len(line.len() as u64)
        };
        write(&mut file).map_err(io("cannot write"))?;
        Ok(Self { _file: file })
    }
}

/// The supervisor that holds the lock of a control directory; `None` when none does.
pub fn supervisor_of(control: &Path) -> Option<u32> {
    holder(control, SUPERVISOR_LOCK)
}

/// The process that holds the lock `name` of a control directory.
pub fn holder(control: &Path, name: &str) -> Option<u32> {
    let mut file = File::open(control.join(name)).ok()?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared) {
        Err(rustix::io::Errno::WOULDBLOCK) => Some(read_pid(&mut file)).filter(|&pid| pid != 0),
        _ => None,
    }
}

/// The supervisor's lock file.
pub const SUPERVISOR_LOCK: &str = "supervisor.lock";
/// The worker's: a worker that has lost its supervisor keeps others away.
pub const WORKER_LOCK: &str = "worker.lock";

fn read_pid(file: &mut File) -> u32 {
    let mut text = String::new();
    if file.take(32).read_to_string(&mut text).is_err() {
        return 0;
    }
    text.lines().next().unwrap_or_default().parse().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_in_their_base() {
        for bad in ["", ".", "..", "a/b", "a\nb"] {
            assert!(single_name("user", bad).is_err(), "{bad:?}");
        }
        assert!(single_name("job id", "123.batch").is_ok());
    }

    #[test]
    fn the_jobs_directories_and_the_mount_point_are_apart() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::create_dir_all(at("scr")).unwrap();
        std::fs::create_dir_all(at("cache")).unwrap();
        std::os::unix::fs::symlink("scr", at("link")).unwrap();
        let refused = |point: &str, control: &str, caches: &[&str]| {
            let mut options = super::super::stores::tests::options(&at(control), &[]);
            options.cache_bases = caches.iter().map(|base| at(base)).collect();
            options.mount_point = at(point);
            Places::are_apart(&options).map_err(|error| error.to_string()).err().unwrap_or_default()
        };
        for cache in ["scr", "scr/sub", "link", "link/a/b", "new/../scr", "cache/../link/../scr/x"] {
            let told = refused("scr", "control", &["cache", cache]);
            assert!(told.starts_with("SCR_CACHE_BASE (--cache-base): ") && told.contains(cache), "{told}");
            let told = refused("scr", cache, &["cache"]);
            assert!(told.starts_with("SCR_CNTL_BASE (--control-base): ") && told.contains(cache), "{told}");
        }
        // Beside one another in one directory is as it should be.
        for good in ["", "scr2", "scratch", "scr/../cache"] {
            assert_eq!(refused("scr", "control", &[good]), "", "{good}");
        }
        let options = super::super::stores::tests::options(&at("control"), &[&at("cache")]);
        let inside = Places::of(&options).unwrap().tree();
        let inside = inside.strip_prefix(dir.path()).unwrap().to_str().unwrap();
        assert!(refused(inside, "control", &["cache"]).contains("the job's own files"));
    }

    #[test]
    fn one_lock_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let lock = Lock::take(dir.path(), SUPERVISOR_LOCK).unwrap();
        assert!(matches!(
            Lock::take(dir.path(), SUPERVISOR_LOCK),
            Err(MountError::Busy { pid, .. }) if pid == std::process::id()
        ));
        assert_eq!(supervisor_of(dir.path()), Some(std::process::id()));
        drop(lock);
        assert_eq!(supervisor_of(dir.path()), None);
    }
}

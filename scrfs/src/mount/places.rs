//! The directories of one job on one node.

use std::fs::DirBuilder;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};

use super::{MountError, Options, failed};
use crate::control::directory::{JOB_PREFIX, LOG, SUPERVISOR_LOCK};
use crate::store::private::{self, Problem};

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
        let control = below(&options.control_base, options);
        let cache = Self::cache_of(options, options.cache_base());
        Ok(Self { control, cache, uid: options.uid, gid: options.gid })
    }

    /// The cache directory in the store `base`. Where that is the control directory's base too, it
    /// is `cache` below the control directory: the job's user must reach the socket in the one and
    /// nothing in the other.
    pub(super) fn cache_of(options: &Options, base: &Path) -> PathBuf {
        let cache = below(base, options);
        if cache == below(&options.control_base, options) { Self::cache_in(&cache) } else { cache }
    }

    /// The cache in a control directory.
    pub(super) fn cache_in(control: &Path) -> PathBuf {
        control.join("cache")
    }

    /// No other user's mount is on the way to a base, or is one: it may never answer.
    pub(super) fn are_reached(options: &Options) -> Result<(), MountError> {
        let caches = options.cache_bases.iter().map(|base| (CACHE, base));
        for (parameter, base) in std::iter::once((CONTROL, &options.control_base)).chain(caches) {
            private::passable(base).map_err(shared(parameter, base))?;
        }
        Ok(())
    }

    /// No directory of the job lies at or below the mount point: every use of it there would wait
    /// for the daemon itself. Nor is the mount point in one, where the mount would hide a part of
    /// it.
    pub(super) fn are_apart(options: &Options) -> Result<(), MountError> {
        let point = resolved(&options.mount_point);
        let control = (CONTROL, &options.control_base);
        let caches = options.cache_bases.iter().map(|base| (CACHE, base));
        for (parameter, base) in std::iter::once(control).chain(caches) {
            // Below its base no link is followed, and another user's mount not entered.
            let below = below(base, options);
            let directory = resolved(base).join(below.strip_prefix(base).unwrap_or(&below));
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
        self.control.join(LOG)
    }

    /// Makes the control directory: others may go through it to the socket.
    pub fn make_control(options: &Options) -> Result<Self, MountError> {
        make(CONTROL, &options.control_base, options, 0o711)?;
        Self::of(options)
    }

    /// Makes the cache directory in the first store. The mount's root belongs to the job's user,
    /// all else to the daemon's.
    pub fn make_cache(options: &Options) -> Result<Self, MountError> {
        make(CACHE, options.cache_base(), options, 0o700)?;
        let places = Self::of(options)?;
        let problem = |source| shared(CACHE, options.cache_base())(source);
        private::make_in(&places.cache, 0o700).map_err(problem)?;
        places.make_tree(options.mode)?;
        Ok(places)
    }

    fn make_tree(&self, mode: u32) -> Result<(), MountError> {
        let tree = self.tree();
        if std::fs::symlink_metadata(&tree).is_ok_and(|meta| meta.is_dir()) {
            return Ok(());
        }
        let io = |doing| failed(doing, &tree);
        DirBuilder::new().mode(0o700).create(&tree).map_err(io("cannot make"))?;
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&tree, Some(self.uid), Some(self.gid))
                .map_err(io("cannot give away"))?;
        }
        std::fs::set_permissions(&tree, std::fs::Permissions::from_mode(mode)).map_err(io("cannot chmod"))
    }
}

const CONTROL: &str = "SCR_CNTL_BASE (--control-base)";
const CACHE: &str = "SCR_CACHE_BASE (--cache-base)";

fn shared(parameter: &'static str, base: &Path) -> impl FnOnce(Problem) -> MountError {
    let base = base.to_owned();
    move |source| MountError::Shared { parameter, base, source }
}

/// Makes the job's directory in `base`; the base too, if it is missing.
fn make(parameter: &'static str, base: &Path, options: &Options, mode: u32) -> Result<(), MountError> {
    // Nothing is made where a link of another user leads.
    let there = base.ancestors().find(|path| path.symlink_metadata().is_ok());
    private::safe(there.unwrap_or(Path::new("/"))).map_err(shared(parameter, base))?;
    DirBuilder::new().recursive(true).mode(0o755).create(base).map_err(failed("cannot make", base))?;
    let home = private::find_or_make(base, &options.user).map_err(shared(parameter, base))?;
    let job = home.join(directory_of(&options.job_id));
    // The cache may be in it.
    let mode = if job.join(SUPERVISOR_LOCK).exists() { 0o711 } else { mode };
    private::make_in(&job, mode).map_err(shared(parameter, base))
}

/// The job's directory in `base`: the one that is there, else where it would be if nobody else had
/// the name.
fn below(base: &Path, options: &Options) -> PathBuf {
    let home = private::find(base, &options.user).unwrap_or_else(|| base.join(&options.user));
    home.join(directory_of(&options.job_id))
}

/// The name of a job's directories.
pub(super) fn directory_of(job_id: &str) -> String {
    format!("{JOB_PREFIX}{job_id}")
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
}
